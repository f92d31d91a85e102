"""Two ways to run one account over a window: through `TradingEnv`, and by the same arithmetic compiled.

`EnvAccount` is the environment itself. `KernelAccount` follows the environment's ledger line by line for long-only
accounts, without the cost of sixty tensor operations on a handful of numbers: bit for bit with whole shares (every
product and sum is exact there), to rounding with fractions and with impact. The tests hold it to the environment.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.backtesting.trade_log import TradeLog
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.envs.dynamics import market_view
from fintrader.envs.kernels import ledger

Array = NDArray[np.float64]
Action: TypeAlias = "Tensor | NDArray[np.float32]"
"""`[1, N]` from a policy, `[N]` from a bound one."""


class BacktestAccount(Protocol):
    """An account at a decision: what a strategy may look at, and how it is told what to do."""

    market: MarketTensors
    settings: EnvSettings
    layout: ObservationLayout
    trade_log: TradeLog

    @property
    def bar(self) -> int:
        """The bar whose close the account stands at."""

    @property
    def equity(self) -> float:
        """USD."""

    @property
    def held(self) -> Array:
        """`[N]` shares; not to be written to."""

    def observe(self) -> Tensor:
        """`[1, D]` float32."""

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """Decide (None: order nothing), then wait `bars` (default: the decision interval); True when it is over."""


def make_account(market: MarketTensors, settings: EnvSettings, *, exact: bool = False) -> BacktestAccount:
    """The compiled account where it applies, the environment where it does not (shorts) or `exact` asks for it."""
    settings = settings.model_copy(update={"random_start": False, "episode_bars": None})
    plain = settings.observation == "flat" and settings.observation_dtype == "float32"
    usable = plain and not settings.short and settings.max_leverage == 1 and settings.maintenance_margin == 0
    if exact or not usable:
        return EnvAccount(market, settings)
    return KernelAccount(market, settings)


class EnvAccount:
    """The environment's own step, written down."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        self.env = TradingEnv.evaluation(market, settings)
        self.market, self.settings, self.layout = market, settings, self.env.layout
        self.trade_log = TradeLog(market, settings)
        self._obs: Tensor = self.env.reset()[0]

    @property
    def bar(self) -> int:
        return int(self.env.account.bar[0])

    @property
    def equity(self) -> float:
        return float(self.env.equity[0])

    @property
    def held(self) -> Array:
        held: Array = self.env.account.shares[0].to(torch.float64).cpu().numpy()
        return held

    def observe(self) -> Tensor:
        return self._obs

    def take_over(self, other: EnvAccount) -> None:
        """Go on with another account's holdings and log: same market, an interval or another rule of its own."""
        self.env.load_state_dict(other.env.state_dict())
        self.trade_log, self._obs = other.trade_log, other.observe()

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """`bars` is not offered here: the environment's interval is fixed."""
        if action is None:
            action = torch.zeros(1, self.layout.num_assets, dtype=torch.float64)
        given = torch.as_tensor(action).reshape(1, -1).to(self.env.device)
        self._obs, _, terminated, truncated, info = self.env.step(given)
        self._write({name: value[0].cpu().numpy() for name, value in info.items()})
        if bool(terminated[0]):
            self.trade_log.ruin(self.bar)
        return bool(terminated[0] | truncated[0])

    def _write(self, info: dict[str, NDArray[np.float64]]) -> None:
        """One decision: its fills, then each bar it lasted."""
        trade_log, bars = self.trade_log, info["bars"].astype(np.int64)
        first, last = int(bars[0]), int(bars[-1])
        decided, filled = int(info["decision_bar"]), int(info["fill_bar"])
        traded, price, cost = (info[name].astype(np.float64) for name in ("fill_shares", "fill_price", "fill_cost"))
        trade_log.trade("order", decided, filled, first, traded, price, cost)
        trade_log.shares[first : last + 1] = self.held
        trade_log.equity[bars] = info["bar_equity"]
        closed, costs = info["closed_shares"], info["closed_cost"]
        for k in np.flatnonzero(closed.any(axis=1)):
            bar = int(bars[k])
            trade_log.shares[first:bar] -= closed[k]
            trade_log.trade("forced", bar, bar, bar, closed[k], trade_log.mark[bar], costs[k])
        np.add.at(trade_log.costs, bars, info["interest"])


def flat_action(action: Action) -> Array:
    """`[N]` float64."""
    values = action.detach().cpu().numpy() if isinstance(action, Tensor) else action
    return np.asarray(values, dtype=np.float64).reshape(-1)


KINDS = np.array(["order", "forced"], dtype=object)
"""Names of `ledger.ORDER` and `ledger.FORCED`."""
_NOTHING = np.zeros(0)
_COLUMNS = (np.int8, np.int64, np.int64, np.int64, np.float64, np.float64, np.float64)
"""Kind, decision bar, fill bar, asset, shares, price, cost."""


class KernelAccount:
    """A long-only account whose orders, fills and marks are compiled (`envs.kernels.ledger`)."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        self._device = market.device  # the policy's: observations are handed over there
        market = market if market.device.type == "cpu" else market.to("cpu")
        view = market_view(market, settings, torch.float64)
        self.market, self.settings = market, settings
        self.layout = ObservationLayout.of(market, settings.lookback)
        self.trade_log = TradeLog(market, settings)
        self._mark = view.mark.numpy()
        self._rows = view.rows
        self._end = market.num_bars - 1
        self._bar = 0
        self._held = np.zeros(market.num_assets)
        self._state = np.full(4, float(settings.initial_cash_usd))
        rates = (settings.fee_rate, settings.spread_rate, settings.impact_rate, settings.min_commission_usd)
        limits = (settings.rebalance_band, settings.dead_band, settings.max_shares, settings.ruin_fraction)
        self._rules = np.array([*rates, *limits])
        self._flags = (settings.fractional, settings.action == "target", settings.fill == "close")
        self._market = (
            self._mark,
            view.fill.numpy(),
            view.buyable.numpy(),
            view.risk_off.numpy(),
            view.last_bar.numpy(),
        )
        trade_log = self.trade_log
        self._curves = (trade_log.shares, trade_log.equity, trade_log.costs, trade_log.turnover)
        self._work = tuple(np.zeros(market.num_assets) for _ in range(4))
        self._seen = np.zeros(self.layout.private_width, np.float32)
        self._fills, self._noted = tuple(np.zeros(8 * market.num_assets, kind) for kind in _COLUMNS), 0

    @property
    def bar(self) -> int:
        return self._bar

    @property
    def equity(self) -> float:
        return float(self._state[ledger.EQUITY])

    @property
    def held(self) -> Array:
        return self._held

    @property
    def rows(self) -> NDArray[np.float32]:
        """`[T, N*F + N + M]`: the market's part of every observation."""
        rows: NDArray[np.float32] = self._rows.numpy()
        return rows

    def private(self) -> NDArray[np.float32]:
        """`[A + N]`, as `envs.observation.private_part`; the next call overwrites it."""
        ledger.see(self._bar, self._state, self._held, self._mark, self._seen)
        return self._seen

    def observe(self) -> Tensor:
        """The private part beside the market's row."""
        obs = torch.cat((torch.from_numpy(self.private()), self._rows[self.bar])).unsqueeze(0)
        return obs.to(self._device)

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """`bars` may exceed the decision interval: ruin is still looked for at the end of every interval."""
        start, interval = self._bar, self.settings.decision_interval
        stop = min(start + (interval if bars is None else bars), self._end)
        # An order has at most N fills, and every symbol ends at most once.
        if self._noted + 2 * len(self._held) > len(self._fills[0]):
            self._fills = tuple(np.concatenate((column, np.zeros_like(column))) for column in self._fills)
        given = _NOTHING if action is None else flat_action(action)
        self._bar, self._noted, ruined = ledger.decide_and_wait(
            given, (start, stop, interval), self._state, self._held, self._rules, self._flags, self._market,
            self._curves, self._fills, self._noted, self._work,
        )  # fmt: skip
        over = ruined or self._bar >= self._end
        if over:
            kinds, *columns = (column[: self._noted] for column in self._fills)
            self.trade_log.trades(KINDS[kinds], *columns)
        if ruined:
            self.trade_log.ruin(self._bar)
        return over
