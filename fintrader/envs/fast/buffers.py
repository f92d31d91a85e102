"""Accounts packed for the fused kernels: few arrays with many rows, because handing over an array
has a price."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fintrader.envs.account import Account, Record
from fintrader.envs.market_view import MarketView
from fintrader.envs.money import LEAST_CHANGE, USD_GRID
from fintrader.envs.reward import REMEMBERING, Outcome, Reward, update_memory
from fintrader.envs.settings import SHARPE_PRIOR_VOLATILITY, EnvSettings

# rewards: what a kernel prepares for torch to finish
OTHER = 0
LOG_RETURN = 1
PROFIT = 2
WORTHS = {"log_return": LOG_RETURN, "profit": PROFIT}
# rows of `ints`
BAR = 0
START = 1
END = 2
EPISODE = 3
FINAL_BAR = 4
CASH, EQUITY, PEAK, FIRST = (
    0,
    1,
    2,
    3,
)  # rows of `floats`; those below describe the step, before any reset
STEP_EQUITY = 4
STEP_PEAK = 5
COST = 6
TURNOVER = 7
WORTH = 8
# rows of `flags`
TERMINATED = 0
TRUNCATED = 1
FINISHED = 2
DONE = 3
# what `quotes` say of a bar
MOST = 0
FILL = 1
MARK = 2


class Rules(NamedTuple):
    """`EnvSettings` as the compiled code reads them."""

    short: bool
    target: bool
    whole: bool
    same_bar: bool
    each: bool
    """Costs are those of each order, not of their sum."""
    rate: float
    """Commission and half-spread; of symbols with a spread of their own see `Prices.spread`."""
    fee: float
    impact: float
    least: float
    """USD an order."""
    leverage: float
    band: float
    pace: float
    """Part of the way to a target that a decision trades."""
    dead_band: float
    max_shares: float
    borrow: float
    margin: float
    ruin: float

    @classmethod
    def of(cls, settings: EnvSettings) -> Rules:
        """The rules of an environment."""
        return cls(
            short=settings.short,
            target=settings.action == "target",
            whole=not settings.fractional,
            same_bar=settings.fill == "close",
            each=not settings.costs_are_proportional,
            rate=settings.fee_rate + settings.spread_rate,
            fee=settings.fee_rate,
            impact=settings.impact_rate,
            least=settings.min_commission_usd,
            leverage=settings.max_leverage,
            band=max(settings.rebalance_band, LEAST_CHANGE),
            pace=settings.trade_rate,
            dead_band=settings.dead_band,
            max_shares=settings.max_shares,
            borrow=settings.borrow_bps_per_year / 1e4 if settings.short else 0.0,
            margin=settings.maintenance_margin,
            ruin=settings.ruin_fraction,
        )


class Prices(NamedTuple):
    """`MarketView` as the compiled code reads it."""

    quotes: Any
    """`[T, 3, N]` float32: shares that an order takes at most; in units of money, fill prices,
    negative where a symbol may be sold only and 0 where it does not trade; and closes. Side by
    side, so that a step, which goes from one bar's close through the next bar, reads one stretch of
    memory."""
    marks: Any
    """`[T, N]` float32: the closes once more, in one piece, for those who only wait."""
    thinness: Any
    """`[T, N]` float32: 1 / sqrt(volume in shares), very large without volume."""
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

    @classmethod
    def of(cls, view: MarketView) -> Prices:
        """The prices of a market on CPU."""
        return cls(
            quotes=pack_quotes(view).numpy(),
            marks=(view.mark * USD_GRID).numpy(),
            thinness=view.inverse_root_volume.numpy(),
            spread=view.spread.numpy(),
            last_bar=view.last_bar.numpy(),
            ends=view.ends.numpy(),
            event_row=view.event_row.numpy(),
            splits=view.splits.numpy(),
            dividends=(view.dividends * USD_GRID).numpy(),
            risk_off=view.risk_off.numpy(),
            years=view.years.numpy(),
            clock=view.clock.numpy(),
        )


class Buffers(NamedTuple):
    """One generation of accounts as a kernel writes it."""

    ints: Tensor
    """`[5, B]` int64."""
    floats: Tensor
    """`[9, B]` float64."""
    flags: Tensor
    """`[4, B]` bool."""
    shares: Tensor
    """`[B, N]` float64."""

    @classmethod
    def empty(cls, count: int, num_assets: int, device: torch.device) -> Buffers:
        """Room for `count` accounts."""
        return cls(
            torch.empty(5, count, dtype=torch.int64, device=device),
            torch.empty(9, count, dtype=torch.float64, device=device),
            torch.empty(4, count, dtype=torch.bool, device=device),
            torch.empty(count, num_assets, dtype=torch.float64, device=device),
        )

    def account(self, memory: Tensor) -> Account:
        """The accounts in these buffers, which share their memory."""
        ints = self.ints
        floats = self.floats
        return Account(
            bar=ints[BAR],
            cash=floats[CASH],
            shares=self.shares,
            equity=floats[EQUITY],
            peak_equity=floats[PEAK],
            first_equity=floats[FIRST],
            start_bar=ints[START],
            end_bar=ints[END],
            episode=ints[EPISODE],
            memory=memory,
            finished=self.flags[FINISHED],
        )


class Generation:
    """Accounts as a kernel left them: the step's buffers, and the memory of its reward."""

    def __init__(self, buffers: Buffers, memory: Tensor, arrays: tuple[Any, ...] = ()) -> None:
        """`arrays` are the buffers as a kernel on CPU takes them."""
        self.buffers = buffers
        self.memory = memory
        self.arrays = arrays
        self._account: Account | None = None

    @property
    def account(self) -> Account:
        """The accounts; views of the buffers, made when somebody looks."""
        if self._account is None:
            self._account = self.buffers.account(self.memory)
        return self._account

    def copy_from(self, account: Account) -> None:
        """Take over accounts that come from elsewhere (a reset, a checkpoint), all but their
        memory."""
        for name in Account._fields:
            if name != "memory":
                getattr(self.account, name).copy_(getattr(account, name).detach())


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
    """`[B]` bool: either."""
    obs: Tensor
    """`[B, D]`, or `[B, A + N]` where it is factored."""
    final: Tensor
    """`obs` before the reset, valid where `done`."""
    final_bar: Tensor
    """`[B]`: the bar each account stood at before the reset."""
    record: Record | None = None


def pack_quotes(view: MarketView) -> Tensor:
    """`[T, 3, N]`: see `Prices.quotes`."""
    fill = torch.where(view.buyable, view.fill, -view.fill)
    return torch.stack((view.order_limit, fill * USD_GRID, view.mark * USD_GRID), dim=1)


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
