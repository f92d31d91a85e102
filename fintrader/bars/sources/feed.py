"""A feed hands out bars symbol by symbol, so that no more than one symbol needs to be in memory.

Files go through the store (`feeds`), and so do a vendor's bars (`vendor`); `MemoryFeed` wraps bars
in memory.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from fintrader.bars.bars import Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.corporate_actions import Action
from fintrader.progress import Progress

if TYPE_CHECKING:
    from fintrader.bars.chunks import Collection


class Feed(Protocol):
    """Bars by symbol. Only `inputs` may be read before `prepare` has run, and not where
    `inputs_need_bars`."""

    inputs: Mapping[str, Any]
    """Identity of the bars, as plain JSON without any path."""
    inputs_need_bars: bool = False
    actions: tuple[Action, ...] = ()
    """Splits and dividends that the source itself announces."""
    daily: Feed | None = None
    """Daily bars of the same symbols from another source, to compare these with."""
    symbols: list[str]
    """Symbols that have bars, sorted."""
    missing: Sequence[str] = ()
    """Tickers that were asked for and have no bars."""
    tickers_as_of: dt.date | None = None
    """The day whose tickers the source uses for bars of all years; None: each bar has the ticker of
    its day."""
    companies: Mapping[str, str] = MappingProxyType({})
    """Symbol -> key of its company (`bars.companies`), "" for an unknown company; empty unless bars
    are joined by company."""

    def holder(self, ticker: str, day: dt.date) -> str | None:
        """The symbol that traded under a ticker on a day; None where the source has no bars of
        it."""
        return ticker if ticker in self.symbols else None

    def prepare(self, progress: Progress | None = None) -> None:
        """Read files or request bars. Raises DataError."""
        return

    def stored(self) -> list[Collection]:
        """The stored collections of the feed's bars; may be called before `prepare`."""
        return []

    def span(self) -> tuple[int, int]:
        """First and last time of all bars (int64 nanoseconds)."""

    def bars(self, symbol: str) -> Bars:
        """All bars of one symbol as the source had them."""

    def index(self, grid: SessionGrid) -> Array | None:
        """`[T]` level of the source's index at each bar's close, None where it has none."""
        return None


class MemoryFeed(Feed):
    """Bars in memory."""

    def __init__(self, bars: Bars, inputs: Mapping[str, Any]) -> None:
        self.inputs = inputs
        self._bars = bars.sorted().by_symbol()
        self.symbols = sorted(self._bars)
        times = (bars.without_empty() or bars).ts
        self._span = int(times.min()), int(times.max())

    def span(self) -> tuple[int, int]:
        return self._span

    def bars(self, symbol: str) -> Bars:
        return self._bars[symbol]
