"""`CompiledDesk`: the numpy desk's account, its orders, fills and marks compiled (`minute`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fintrader.backtest import minute
from fintrader.backtest.desk import Action, FastDesk, flat_action
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings

KINDS = np.array(["order", "forced"], dtype=object)
"""Names of `minute.ORDER` and `minute.FORCED`."""
_NOTHING = np.zeros(0)
_COLUMNS = (np.int8, np.int64, np.int64, np.int64, np.float64, np.float64, np.float64)
"""Kind, decision bar, fill bar, asset, shares, price, cost."""


class CompiledDesk(FastDesk):
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
        return float(self._state[minute.EQUITY])

    def private(self) -> NDArray[np.float32]:
        minute.see(self._bar, self._state, self._held, self._mark, self._seen)
        return self._seen

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """As `FastDesk.act`."""
        start, interval = self._bar, self.settings.decision_interval
        stop = min(start + (interval if bars is None else bars), self._end)
        # An order has at most N fills, and every symbol ends at most once.
        if self._noted + 2 * len(self._held) > len(self._fills[0]):
            self._fills = tuple(np.concatenate((column, np.zeros_like(column))) for column in self._fills)
        given = _NOTHING if action is None else flat_action(action)
        times = (start, stop, interval)
        self._bar, self._noted, ruined = minute.decide_and_wait(
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
