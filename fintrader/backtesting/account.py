"""Three ways to run one account over a window: through `TradingEnv`, and by the same arithmetic in numpy, or compiled.

`EnvAccount` is the environment itself. `NumpyAccount` follows the environment's ledger line by line for long-only
accounts, without the cost of sixty tensor operations on a handful of numbers: bit for bit with whole shares (every
product and sum is exact there), to rounding with fractions and with impact. `KernelAccount` does the same where numba
is installed. The tests hold each to the environment.
"""

from __future__ import annotations

import importlib.util
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
from fintrader.envs.ledger import DUST_USD, MAX_WHOLE_SHARES, WEIGHT_GRID

Array = NDArray[np.float64]


Action: TypeAlias = "Tensor | NDArray[np.float32]"
"""`[1, N]` from a policy, `[N]` from a bound one."""


class BacktestAccount(Protocol):
    """An account at a decision: what a strategy may look at, and how it is told what to do."""

    market: MarketTensors
    settings: EnvSettings
    layout: ObservationLayout
    book: TradeLog

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
    """A fast desk where one applies, the environment where none does (shorts), or where `exact` asks for it."""
    settings = settings.model_copy(update={"random_start": False, "episode_bars": None})
    plain = settings.observation == "flat" and settings.observation_dtype == "float32"
    usable = plain and not settings.short and settings.max_leverage == 1 and settings.maintenance_margin == 0
    if exact or not usable:
        return EnvAccount(market, settings)
    if importlib.util.find_spec("numba") is None:
        return NumpyAccount(market, settings)
    return KernelAccount(market, settings)


class EnvAccount:
    """The environment's own step, written down."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        self.env = TradingEnv.evaluation(market, settings)
        self.market, self.settings, self.layout = market, settings, self.env.layout
        self.book = TradeLog(market, settings)
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
        """Go on with another desk's account and book: same market, an interval or another rule of its own."""
        self.env.load_state_dict(other.env.state_dict())
        self.book, self._obs = other.book, other.observe()

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """`bars` is not offered here: the environment's interval is fixed."""
        if action is None:
            action = torch.zeros(1, self.layout.num_assets, dtype=torch.float64)
        given = torch.as_tensor(action).reshape(1, -1).to(self.env.device)
        self._obs, _, terminated, truncated, info = self.env.step(given)
        self._write({name: value[0].cpu().numpy() for name, value in info.items()})
        if bool(terminated[0]):
            self.book.ruin(self.bar)
        return bool(terminated[0] | truncated[0])

    def _write(self, info: dict[str, NDArray[np.float64]]) -> None:
        """One decision: its fills, then each bar it lasted."""
        book, bars = self.book, info["bars"].astype(np.int64)
        first, last = int(bars[0]), int(bars[-1])
        decided, filled = int(info["decision_bar"]), int(info["fill_bar"])
        traded, price, cost = (info[name].astype(np.float64) for name in ("fill_shares", "fill_price", "fill_cost"))
        book.trade("order", decided, filled, first, traded, price, cost)
        book.shares[first : last + 1] = self.held
        book.equity[bars] = info["bar_equity"]
        closed, costs = info["closed_shares"], info["closed_cost"]
        for k in np.flatnonzero(closed.any(axis=1)):
            bar = int(bars[k])
            book.shares[first:bar] -= closed[k]
            book.trade("forced", bar, bar, bar, closed[k], book.mark[bar], costs[k])
        np.add.at(book.costs, bars, info["interest"])


def flat_action(action: Action) -> Array:
    """`[N]` float64."""
    values = action.detach().cpu().numpy() if isinstance(action, Tensor) else action
    return np.asarray(values, dtype=np.float64).reshape(-1)


class NumpyAccount:
    """A long-only account in numpy."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        self._device = market.device  # the policy's: observations are handed over there
        market = market if market.device.type == "cpu" else market.to("cpu")
        view = market_view(market, settings, torch.float64)
        self.market, self.settings = market, settings
        self.layout = ObservationLayout.of(market, settings.lookback)
        self.book = TradeLog(market, settings)
        self._mark, self._fill, self._buyable = view.mark.numpy(), view.fill.numpy(), view.buyable.numpy()
        self._rows, self._risk_off = view.rows, view.risk_off.numpy()
        self._end = market.num_bars - 1
        self._last_bar = last = view.last_bar.numpy()
        self._endings = {int(bar): last == bar for bar in np.unique(last[last < market.num_bars])}
        self._bar = 0
        self._cash = self._equity = self._peak = self._first = float(settings.initial_cash_usd)
        self._held = np.zeros(market.num_assets)

    @property
    def bar(self) -> int:
        return self._bar

    @property
    def equity(self) -> float:
        return self._equity

    @property
    def held(self) -> Array:
        return self._held

    @property
    def rows(self) -> NDArray[np.float32]:
        """`[T, N*F + N + M]`: the market's part of every observation."""
        rows: NDArray[np.float32] = self._rows.numpy()
        return rows

    def private(self) -> NDArray[np.float32]:
        """`[A + N]`, as `envs.observation.private_part`; the next call may overwrite it."""
        private = np.empty(self.layout.private_width)
        safe = max(self._equity, 1e-6 * self._first)
        account = (self._cash / safe, safe / self._first - 1.0, self._equity / self._peak - 1.0)
        private[: self.layout.account_width] = (*account, (self._end - self._bar) / max(self._end, 1))
        private[self.layout.account_width :] = self._held * self._mark[self._bar] / safe
        return private.astype(np.float32)

    def observe(self) -> Tensor:
        """The private part beside the market's row."""
        obs = torch.cat((torch.from_numpy(self.private()), self._rows[self.bar])).unsqueeze(0)
        return obs.to(self._device)

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """`bars` may exceed the decision interval: ruin is still looked for at the end of every interval."""
        start, interval = self._bar, self.settings.decision_interval
        stop = min(start + (interval if bars is None else bars), self._end)
        if action is not None:
            self._order(flat_action(action))
        ruined = self._wait(start, stop, interval)
        if ruined:
            self.book.ruin(self._bar)
        return ruined or self._bar >= self._end

    # --- fills, as in envs.ledger ----------------------------------------------------------------------

    def _order(self, action: Array) -> None:
        settings, bar, held = self.settings, self._bar, self._held
        filled = bar if settings.fill == "close" else min(bar + 1, self._end)
        want = self._desired(action)
        price = self._fill[filled]
        trades = price > 0
        kept = np.where(trades, np.minimum(want, held), held)
        addition = np.where(self._buyable[filled] & trades, want - kept, 0.0)
        closing = (held - kept) * price
        cash = self._cash + (closing.sum() - self._total_cost(closing, closing=True))
        scale = self._scale(addition * price, cash)
        added = self._whole(scale * addition)
        opening = added * price
        self._cash = max(cash - (opening.sum() + self._total_cost(opening, closing=False)), 0.0)
        after = kept + added
        if not np.array_equal(after, held):
            cost = np.minimum(self._cost(closing), closing) + self._cost(opening)
            self.book.trade("order", bar, filled, min(bar + 1, self._end), after - held, price, cost)
        self._held = after

    def _whole(self, shares: Array) -> Array:
        return shares if self.settings.fractional else np.trunc(shares)

    def _desired(self, action: Array) -> Array:
        settings, held, price = self.settings, self._held, self._mark[self._bar]
        action = np.clip(action, -1.0, 1.0)
        if not settings.fractional:
            action = np.round(action * WEIGHT_GRID) / WEIGHT_GRID
        if settings.action == "target":
            value = max(self._equity, 0.0)
            positive = np.maximum(action, 0.0)
            values = positive * (value / max(float(positive.sum()), 1.0))
            listed = price > 0
            want = np.where(listed, self._whole(values / np.where(listed, price, 1.0)), 0.0)
            if settings.rebalance_band > 0:
                near = np.abs(want - held) * price <= settings.rebalance_band * value
                want = np.where(near & (want != 0), held, want)
        else:
            order = np.where(np.abs(action) > settings.dead_band, action, 0.0) * settings.max_shares
            want = np.maximum(held + self._whole(order), 0.0)
        if not settings.fractional:
            want = np.minimum(want, MAX_WHOLE_SHARES)
        return np.zeros_like(want) if self._risk_off[self._bar] else want

    def _cost(self, notional: Array) -> Array:
        settings = self.settings
        if settings.min_commission_usd == 0.0:
            cost = (settings.fee_rate + settings.spread_rate) * notional
        else:
            least = settings.min_commission_usd * (notional > DUST_USD)
            cost = np.maximum(least, settings.fee_rate * notional) + settings.spread_rate * notional
        if settings.impact_rate > 0.0:
            cost = cost + settings.impact_rate * notional * notional
        return cost

    def _total_cost(self, notional: Array, *, closing: bool) -> float:
        settings = self.settings
        if settings.min_commission_usd == 0.0 and settings.impact_rate == 0.0:
            return float((settings.fee_rate + settings.spread_rate) * notional.sum())
        cost = self._cost(notional)
        return float((np.minimum(cost, notional) if closing else cost).sum())

    def _scale(self, notional: Array, budget: float) -> float:
        settings = self.settings
        ordered = float(notional.sum())
        if ordered + self._total_cost(notional, closing=False) <= budget:
            return 1.0
        if settings.min_commission_usd > 0.0:
            budget -= settings.min_commission_usd * int((notional > DUST_USD).sum())
        budget = max(budget, 0.0)
        b = (1.0 + (settings.fee_rate + settings.spread_rate)) * ordered
        if settings.impact_rate > 0.0:
            a = settings.impact_rate * float((notional * notional).sum())
            b = 0.5 * (b + (np.sqrt(b * b + 4.0 * a * budget) if b > 0 else 1.0))
        scale = budget / (b if b > 0 else 1.0)
        if settings.fractional:
            scale *= 1.0 - 2.0**-40
        return min(float(scale), 1.0)

    # --- time, as in envs.core.advance -----------------------------------------------------------------

    def _wait(self, start: int, stop: int, interval: int) -> bool:
        """Mark bars `(start, stop]`, closing symbols that end; True when the account is ruined at an interval's end."""
        book, bar = self.book, start
        while bar < stop:
            until = min((end for end in self._endings if bar < end < stop), default=stop)
            rows = slice(bar + 1, until + 1)
            book.shares[rows] = self._held
            equity = self._cash + self._mark[rows] @ self._held
            ends = np.arange(bar + 1, until + 1)
            checked = ((ends - start) % interval == 0) | (ends == stop)
            broke = self.settings.ruin_fraction * self._first
            # What ends at the last of these bars is sold there, unless the account was ruined before.
            if until in self._endings and not (checked[:-1] & (equity[:-1] <= broke)).any():
                self._close(until)
                equity[-1] = self._cash + self._mark[until] @ self._held
            book.equity[rows] = equity
            ruin = np.flatnonzero(checked & (equity <= broke))
            if ruin.size:
                bar = bar + 1 + int(ruin[0])
                self._bar, self._equity = bar, float(equity[ruin[0]])
                return True
            self._peak = max(self._peak, float(equity.max()))
            bar = until
        self._bar, self._equity = stop, float(book.equity[stop])
        return False

    def _close(self, bar: int) -> None:
        """Sell what ends at this bar, at its close."""
        over = self._endings[bar] & (self._held != 0)
        if not over.any():
            return
        closed = np.where(over, self._held, 0.0)
        notional = closed * self._mark[bar]
        self._cash = self._cash + (notional.sum() - self._total_cost(notional, closing=True))
        self._held = np.where(over, 0.0, self._held)
        cost = np.minimum(self._cost(notional), notional)
        self.book.trade("forced", bar, bar, bar, -closed, self._mark[bar], cost)
        self.book.shares[bar] = self._held


KINDS = np.array(["order", "forced"], dtype=object)
"""Names of `ledger.ORDER` and `ledger.FORCED`."""


_NOTHING = np.zeros(0)


_COLUMNS = (np.int8, np.int64, np.int64, np.int64, np.float64, np.float64, np.float64)
"""Kind, decision bar, fill bar, asset, shares, price, cost."""


class KernelAccount(NumpyAccount):
    """A long-only account. Raises ImportError without numba."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        super().__init__(market, settings)
        count = market.num_assets
        self._state = np.full(4, float(settings.initial_cash_usd))
        self._rules = np.array(
            [
                settings.fee_rate,
                settings.spread_rate,
                settings.impact_rate,
                settings.min_commission_usd,
                settings.rebalance_band,
                settings.dead_band,
                settings.max_shares,
                settings.ruin_fraction,
            ]
        )
        self._flags = (settings.fractional, settings.action == "target", settings.fill == "close")
        self._market = (self._mark, self._fill, self._buyable, self._risk_off, self._last_bar)
        book = self.book
        self._book = (book.shares, book.equity, book.costs, book.turnover)
        self._work = tuple(np.zeros(count) for _ in range(4))
        self._seen = np.zeros(self.layout.private_width, np.float32)
        self._fills, self._noted = tuple(np.zeros(8 * count, kind) for kind in _COLUMNS), 0

    @property
    def equity(self) -> float:
        return float(self._state[ledger.EQUITY])

    def private(self) -> NDArray[np.float32]:
        ledger.see(self._bar, self._state, self._held, self._mark, self._seen)
        return self._seen

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """As `NumpyAccount.act`."""
        start, interval = self._bar, self.settings.decision_interval
        stop = min(start + (interval if bars is None else bars), self._end)
        # An order has at most N fills, and every symbol ends at most once.
        if self._noted + 2 * len(self._held) > len(self._fills[0]):
            self._fills = tuple(np.concatenate((column, np.zeros_like(column))) for column in self._fills)
        given = _NOTHING if action is None else flat_action(action)
        times = (start, stop, interval)
        self._bar, self._noted, ruined = ledger.decide_and_wait(
            given,
            times,
            self._state,
            self._held,
            self._rules,
            self._flags,
            self._market,
            self._book,
            self._fills,
            self._noted,
            self._work,
        )
        over = ruined or self._bar >= self._end
        if over:
            kinds, *columns = (column[: self._noted] for column in self._fills)
            self.book.trades(KINDS[kinds], *columns)
        if ruined:
            self.book.ruin(self._bar)
        return over
