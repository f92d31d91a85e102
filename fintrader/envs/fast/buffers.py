"""Accounts packed for the fused kernels: few arrays with many rows, because each array that is
passed costs time."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fintrader.envs.account import Account, Record
from fintrader.envs.market_view import MarketView
from fintrader.envs.money import LEAST_CHANGE, USD_GRID
from fintrader.envs.reward import REMEMBERING, Outcome, Reward, update_memory
from fintrader.envs.settings import SHARPE_PRIOR_VOLATILITY, EnvSettings

# Kinds of rewards: a kernel prepares growth or profit, and torch finishes it.
OTHER, LOG_RETURN, PROFIT = range(3)
WORTHS = {"log_return": LOG_RETURN, "profit": PROFIT}
INTS = range(5)
"""Rows of `ints`."""
BAR, START, END, EPISODE, FINAL_BAR = INTS
FLOATS = range(9)
"""Rows of `floats`; from `STEP_EQUITY` on they describe the step, before any reset."""
CASH, EQUITY, PEAK, FIRST, STEP_EQUITY, STEP_PEAK, COST, TURNOVER, WORTH = FLOATS
FLAGS = range(4)
"""Rows of `flags`."""
TERMINATED, TRUNCATED, FINISHED, DONE = FLAGS


class Rules(NamedTuple):
    """`EnvSettings` as compiled code reads them."""

    is_short: bool
    is_target: bool
    is_limit: bool
    """Orders rest: actions are weights and prices, or prices alone."""
    is_quote: bool
    """A bid and an ask rest in each asset."""
    has_stops: bool
    closes_at_end: bool
    has_option: bool
    """Accounts have sold an option."""
    is_whole: bool
    is_same_bar: bool
    """Orders fill at the close at which they are decided."""
    is_proportional: bool
    """Costs are a fixed share of the notional; otherwise they are computed for each order."""
    starts_anywhere: bool
    """An episode may begin at any bar."""
    interval: int
    reward: int
    """`LOG_RETURN`, `PROFIT` or `OTHER`."""
    cost_rate: float
    """Commission and half-spread; of symbols with their own spread see `Prices.spread`."""
    fee_rate: float
    impact_rate: float
    impact_per_usd: float
    min_commission_usd: float
    max_leverage: float
    trade_rate: float
    band: float
    """Change of a weight or an action that is too small to be ordered."""
    max_shares: float
    quote_weight: float
    offset: float
    """Share of the last close by which an action of 1 moves an order's price."""
    margin: float
    """Share of an order's price that a bar must trade beyond it."""
    stop_offset: float
    """Distance of the farthest stop from the last close, as a share of it."""
    time_in_force: int
    """Bars; 0 without an end."""
    per_bar: float
    """A bar's share of the time that an order may rest."""
    borrow_rate: float
    maintenance_margin: float
    ruin_fraction: float

    @classmethod
    def from_settings(cls, settings: EnvSettings) -> Rules:
        """Take the rules of an environment."""
        is_target = settings.action != "trade"
        return cls(
            is_short=settings.short,
            is_target=is_target,
            is_limit=settings.orders_rest,
            is_quote=settings.num_sides == 2,
            has_stops=settings.has_stops,
            closes_at_end=settings.close_at_end,
            has_option=settings.option is not None,
            is_whole=not settings.fractional,
            is_same_bar=settings.fill == "close",
            is_proportional=settings.costs_are_proportional,
            starts_anywhere=settings.start == "bar",
            interval=settings.decision_interval,
            reward=WORTHS.get(settings.reward, OTHER),
            cost_rate=settings.cost_rate,
            fee_rate=settings.fee_rate,
            impact_rate=settings.impact_rate,
            impact_per_usd=settings.impact_per_usd,
            min_commission_usd=settings.min_commission_usd,
            max_leverage=settings.max_leverage,
            trade_rate=settings.trade_rate,
            band=max(settings.band, LEAST_CHANGE) if is_target else settings.band,
            max_shares=settings.max_shares,
            quote_weight=settings.quote_weight,
            offset=settings.limit_offset_bps / 1e4,
            margin=settings.limit_margin_bps / 1e4,
            stop_offset=(settings.stop_offset_bps or 0.0) / 1e4,
            time_in_force=settings.time_in_force or 0,
            per_bar=1.0 / settings.order_bars,
            borrow_rate=settings.borrow_bps_per_year / 1e4 if settings.short else 0.0,
            maintenance_margin=settings.maintenance_margin,
            ruin_fraction=settings.ruin_fraction,
        )


class Prices(NamedTuple):
    """`MarketView` as compiled code reads it."""

    quotes: Any
    """`[T, 3, N]` float32: see `MarketView.quotes`."""
    inverse_root_volume: Any
    """`[T, N]` float32: 1 / sqrt(volume in shares), very large without volume."""
    ranges: Any
    """`[T, 2, N]` float32: lows and highs; `[T, 0, N]` where no order rests."""
    spread: Any
    """`[N]` float64, as a share of the notional."""
    last_bar: Any
    """`[N]` int64."""
    ends: Any
    """`[T]` bool: bars at which any symbol ends."""
    event_row: Any
    """`[T]` int64: row of `splits` and `dividends`; 0 for nothing."""
    splits: Any
    """`[R, N]` float64: new shares for an old one."""
    dividends: Any
    """`[R, N]` float64: units of money for an old share."""
    risk_off: Any
    """`[T]` bool."""
    years: Any
    """`[T]` float64."""
    clock: Any
    """`[T]` float64."""
    starts: Any
    """`[S]` int64: see `MarketView`."""
    stops: Any
    """`[T]` int64."""
    underlying: Any
    """`[2, T]` float64; the next two `[L + 1, K]` and `[L + 1]`: see `MarketView`."""
    option_value: Any
    option_scale: Any

    @classmethod
    def from_view(cls, view: MarketView) -> Prices:
        """Take the prices of a market on CPU."""
        view = view._replace(dividends=view.dividends * USD_GRID)
        return cls(*(getattr(view, name).numpy() for name in cls._fields))


class State(NamedTuple):
    """Accounts as compiled code names them: views of `Buffers`, `[B]` each."""

    bar: Any
    start_bar: Any
    end_bar: Any
    episode: Any
    final_bar: Any
    """The fields named `final` describe the step, before any reset."""
    cash: Any
    equity: Any
    peak_equity: Any
    first_equity: Any
    final_equity: Any
    final_peak: Any
    cost: Any
    turnover: Any
    worth: Any
    """The part of a reward that the kernel prepares: growth or profit."""
    terminated: Any
    truncated: Any
    finished: Any
    done: Any
    shares: Any
    """`[B, N]`."""
    resting: Any
    """`[B, 3, N]`, prices in USD; `[B, 0, N]` unless orders rest."""


class Workspace(NamedTuple):
    """Scratch of the G accounts that step together: `[G]` float64 USD each, unless a field says
    otherwise."""

    weights: Any
    """`[G, N]` float32, in whole units of weight."""
    desired: Any
    """`[G, N]` shares to reach."""
    kept: Any
    """`[G, N]` shares after the sales."""
    addition: Any
    """`[G, N]` shares to buy, before they are scaled."""
    quote: Any
    """`[3, N]` float64, as `Prices.quotes`: prices of one account's orders that rest."""
    root: Any
    """`[N]`: 1 / sqrt(volume) for these orders, 0 where they fill at their limit price."""
    spread: Any
    """`[N]`: their half-spreads, as shares of the notional, 0 there, too."""
    start: Any
    """`[N]` shares before the bar."""
    left: Any
    """`[N]` shares of these orders that the bar may fill."""
    fill_bar: Any
    """`[G]` int64."""
    unit: Any
    """Units of money for a unit of weight."""
    sales: Any
    sales_cost: Any
    ordered: Any
    """Notional of the purchases, before they are scaled."""
    variable_cost: Any
    """Cost of the purchases without minimum commissions."""
    commissions: Any
    """Number of purchases that owe a minimum commission."""
    budget: Any
    scale: Any
    value: Any
    """The holdings at the close of the bar after the decision."""


class AccountLog(NamedTuple):
    """A backtest's bars and trades as compiled code writes them; omitted parts are empty."""

    shares: Any
    """`[T, N]` at each close."""
    equity: Any
    """`[T]` USD at each close, as the next three."""
    costs: Any
    turnover: Any
    income: Any
    kind: Any
    """Trades, a row each, with room for more: `account.ORDER`, `FORCED` or `SPLIT`."""
    decision_bar: Any
    fill_bar: Any
    asset: Any
    amount: Any
    """Shares, signed."""
    price: Any
    cost: Any
    size: Any
    """`[1]` int64: trades so far."""
    filled: Any
    """`[2, N]`: shares that each resting order has traded so far, bids and asks."""
    counts: Any
    """`[4]`: number of orders, of orders above the volume limit, and of orders without a fill; and
    USD of all cancelled parts."""


class Inputs(NamedTuple):
    """A step's actions, the accounts' random streams, and their endowment."""

    action: Any
    """`[B, N]` float32."""
    key: Any
    cash: Any
    shares: Any
    episode_bars: Any


class Outputs(NamedTuple):
    """Arrays for observations, and the market's rows that are copied into them."""

    obs: Any
    """`[B, D]` float32."""
    final_obs: Any
    """`[B, D]` float32, before the reset; written for accounts whose episode ends."""
    rows: Any
    """`[T, W]` float32."""
    row_bytes: int
    """Bytes of a market row in an observation: with a lookback, those of several bars."""
    is_flat: bool
    is_streamed: bool
    """Rows are written past the caches."""
    resets: bool


class Buffers(NamedTuple):
    """One generation of accounts as a kernel writes it; `State` names the rows."""

    ints: Tensor
    """`[5, B]` int64."""
    floats: Tensor
    """`[9, B]` float64."""
    flags: Tensor
    """`[4, B]` bool."""
    shares: Tensor
    """`[B, N]` float64."""
    resting: Tensor
    """`[B, R, N]` float64."""

    @classmethod
    def empty(cls, count: int, num_assets: int, device: torch.device, *, rows: int) -> Buffers:
        """Room for `count` accounts; `rows`: R, of orders that rest."""
        books = torch.empty(count, num_assets, dtype=torch.float64, device=device)
        return cls(
            torch.empty(len(INTS), count, dtype=torch.int64, device=device),
            torch.empty(len(FLOATS), count, dtype=torch.float64, device=device),
            torch.empty(len(FLAGS), count, dtype=torch.bool, device=device),
            books,
            books.new_empty(count, rows, num_assets),
        )


class StepResult(NamedTuple):
    """One step of all accounts."""

    state: Account | Generation
    """The accounts after the step, and after the reset of those whose episodes ended."""
    reward: Tensor
    """`[B]` float32."""
    terminated: Tensor
    """`[B]` bool."""
    truncated: Tensor
    """`[B]` bool."""
    done: Tensor
    """`[B]` bool: terminated or truncated."""
    obs: Tensor
    """`[B, D]`, or `[B, A + N]` where it is factored."""
    final: Tensor
    """`obs` before the reset, valid where `done`."""
    final_bar: Tensor
    """`[B]`: each account's bar before the reset."""
    record: Record | None = None


class Generation:
    """Accounts as a kernel left them: the step's buffers, and the memory of its reward."""

    def __init__(self, buffers: Buffers, memory: Tensor, arrays: tuple[Any, ...] = ()) -> None:
        """`arrays` are the buffers as a kernel on CPU takes them."""
        self.buffers = buffers
        self.memory = memory
        self.arrays = arrays

    @cached_property
    def account(self) -> Account:
        """The accounts as views of the buffers, made on first use."""
        ints, floats, flags, shares, resting = self.buffers
        return Account(
            bar=ints[BAR],
            cash=floats[CASH],
            shares=shares,
            equity=floats[EQUITY],
            peak_equity=floats[PEAK],
            first_equity=floats[FIRST],
            start_bar=ints[START],
            end_bar=ints[END],
            episode=ints[EPISODE],
            memory=self.memory,
            finished=flags[FINISHED],
            resting=resting,
        )

    @property
    def bar(self) -> Tensor:
        """`[B]` int64: the accounts' bars."""
        return self.buffers.ints[BAR]

    def copy_from(self, account: Account) -> None:
        """Copy accounts of a reset or a checkpoint, without the memory of their reward."""
        for name in Account._fields:
            if name != "memory":
                getattr(self.account, name).copy_(getattr(account, name).detach())

    def make_result(self, reward: Tensor, obs: Tensor, final: Tensor) -> StepResult:
        """Make the result of the step that led here."""
        flags = self.buffers.flags
        return StepResult(
            self,
            reward.float(),
            flags[TERMINATED],
            flags[TRUNCATED],
            flags[DONE],
            obs,
            final,
            self.buffers.ints[FINAL_BAR],
        )


def finish_reward(
    old: Generation,
    buffers: Buffers,
    settings: EnvSettings,
    reward: Reward,
    resets: bool,
    benchmark: Tensor,
) -> tuple[Tensor, Tensor]:
    """Reward `[B]` float64 and memory `[B, 2]` after the step that led from `old` to `buffers`;
    `benchmark` is the market view's."""
    floats = buffers.floats
    memory = old.memory
    worth = WORTHS.get(settings.reward, OTHER)
    if worth == LOG_RETURN:
        value = floats[WORTH].log()
    elif worth == PROFIT:
        value = floats[WORTH]
    else:
        account = old.account
        outcome = Outcome(
            account.equity,
            floats[STEP_EQUITY],
            account.peak_equity,
            floats[STEP_PEAK],
            account.first_equity,
            floats[COST],
            floats[TURNOVER],
            account.memory,
            benchmark[buffers.ints[FINAL_BAR]] - benchmark[account.bar],
        )
        value = reward(outcome)
        if settings.reward in REMEMBERING:
            memory = update_memory(outcome, settings)
            if resets:
                prior = torch.zeros_like(memory)
                prior[:, 1] = SHARPE_PRIOR_VOLATILITY**2
                memory = torch.where(buffers.flags[DONE].unsqueeze(1), prior, memory)
    return value if settings.reward_scale == 1.0 else settings.reward_scale * value, memory
