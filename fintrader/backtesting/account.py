"""One account at a time: what a strategy trades with in a backtest, and where its log is written.

`KernelAccount` is stepped by the functions that step the environment's accounts (`envs.kernels.ledger`), one call a
decision. `EnvAccount` is the environment on its readable torch core, for whoever wants to see the same numbers twice.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.backtesting.trade_log import TradeLog
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.envs.dynamics import market_view
from fintrader.envs.kernels import ledger
from fintrader.envs.kernels.buffers import Prices, Rules
from fintrader.errors import BacktestError

Array = NDArray[np.float64]
Action: TypeAlias = "Tensor | NDArray[np.float32]"
"""`[1, N]` from a policy, `[N]` from a bound one."""


class Holdings(NamedTuple):
    """What a rule may ask for instead of an action: holdings, which are ordered as they stand."""

    shares: Array
    """`[N]`."""




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

    def act(self, action: Action | Holdings | None, bars: int | None = None) -> bool:
        """Decide (None: order nothing), then wait `bars` (default: the decision interval); True when it is over."""


def make_account(market: MarketTensors, settings: EnvSettings, *, exact: bool = False) -> BacktestAccount:
    """The compiled account; the environment, where `exact` asks for it or observations are not flat float32 rows."""
    settings = settings.model_copy(update={"random_start": False, "episode_bars": None})
    plain = settings.observation == "flat" and settings.observation_dtype == "float32"
    return EnvAccount(market, settings) if exact or not plain else KernelAccount(market, settings)


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

    def act(self, action: Action | Holdings | None, bars: int | None = None) -> bool:
        """Neither `bars` nor holdings are offered here: the environment's interval and actions are fixed."""
        if isinstance(action, Holdings):
            raise BacktestError("an environment takes actions, not holdings; leave out exact=True")
        if action is None:
            action = torch.zeros(1, self.layout.num_assets)
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


def flat_action(action: Action) -> NDArray[np.float32]:
    """`[N]`."""
    values = action.detach().cpu().numpy() if isinstance(action, Tensor) else action
    return np.asarray(values, dtype=np.float32).reshape(-1)


KINDS = np.array(["order", "forced"], dtype=object)
"""Names of `ledger.ORDER` and `ledger.FORCED`."""
_COLUMNS = (np.int8, np.int64, np.int64, np.int64, np.float64, np.float64, np.float64)
"""Kind, decision bar, fill bar, asset, shares, price, cost."""


class KernelAccount:
    """An account whose orders, fills and marks are compiled (`envs.kernels.ledger`), as the environment's are."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        self._device = market.device  # the policy's: observations are handed over there
        market = market if market.device.type == "cpu" else market.to("cpu")
        view = market_view(market, settings)
        self.market, self.settings = market, settings
        self.layout = ObservationLayout.of(market, settings.lookback)
        self.trade_log = log = TradeLog(market, settings)
        self._rows = view.rows
        self._end = market.num_bars - 1
        self._bar = 0
        self._state = np.full(4, float(settings.initial_cash_usd))
        self._prices, self._rules = Prices.of(view), Rules.of(settings)
        self._curves = (log.shares, log.equity, log.costs, log.turnover)
        shape = (1, market.num_assets)
        self._shares, self._want, self._kept = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._wish, self._nothing = np.zeros(shape, np.float32), np.zeros((1, 0))
        self._seen = np.zeros((1, self.layout.private_width), np.float32)
        self._fills, self._noted = tuple(np.zeros(8 * market.num_assets, kind) for kind in _COLUMNS), 0

    @property
    def bar(self) -> int:
        return self._bar

    @property
    def equity(self) -> float:
        return float(self._state[ledger.EQUITY])

    @property
    def held(self) -> Array:
        return self._shares[0]

    @property
    def rows(self) -> NDArray[np.float32]:
        """`[T, N*F + N + M]`: the market's part of every observation."""
        rows: NDArray[np.float32] = self._rows.numpy()
        return rows

    def private(self) -> NDArray[np.float32]:
        """`[A + N]`, as `envs.observation.private_part`; the next call overwrites it."""
        ledger.see(self._bar, self._state, self._shares, self._prices, self._seen)
        return self._seen[0]

    def observe(self) -> Tensor:
        """The private part beside the market's row."""
        obs = torch.cat((torch.from_numpy(self.private()), self._rows[self.bar])).unsqueeze(0)
        return obs.to(self._device)

    def act(self, action: Action | Holdings | None, bars: int | None = None) -> bool:
        """`bars` may exceed the decision interval: ruin is still looked for at the end of every interval."""
        want = self._nothing if action is None else self._want
        if isinstance(action, Holdings):
            want[0] = action.shares
        elif action is not None:
            given = flat_action(action)[None]
            ledger.ask(given, self._bar, self._state, self._shares, self._prices, self._rules, self._wish, want)
        start, interval = self._bar, self.settings.decision_interval
        stop = min(start + (interval if bars is None else bars), self._end)
        # An order has at most N fills, and every symbol ends or is called in at most once an interval.
        room = self._noted + self._shares.size * (2 + (stop - start if self._rules.margin else 0))
        while room > len(self._fills[0]):
            self._fills = tuple(np.concatenate((column, np.zeros_like(column))) for column in self._fills)
        self._bar, self._noted, ruined = ledger.decide_and_wait(
            (start, stop, interval), self._state, self._shares, self._prices, self._rules, self._curves, self._fills,
            self._noted, want, self._kept,
        )  # fmt: skip
        over = ruined or self._bar >= self._end
        if over:
            kinds, *columns = (column[: self._noted] for column in self._fills)
            self.trade_log.trades(KINDS[kinds], *columns)
        if ruined:
            self.trade_log.ruin(self._bar)
        return over
