"""Feeds deliver bars symbol by symbol, so that only one symbol needs to be in memory.

Bars of files (`feeds`) and of vendors (`vendor`) are kept in a store; `MemoryFeed` wraps bars in
memory.
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
    """Bars by symbol. `prepare` must run before anything else is used, except `stored`, and
    `inputs` if `inputs_need_bars` is False."""

    inputs: Mapping[str, Any]
    """Identity of the bars, as JSON without any path."""
    inputs_need_bars: bool = False
    """True where `inputs` is known only after `prepare`."""
    actions: tuple[Action, ...] = ()
    """Splits and dividends that the source itself announces."""
    daily: Feed | None = None
    """Daily bars of the same symbols from another source, to compare with."""
    symbols: list[str]
    """Symbols that have bars, sorted."""
    missing: Sequence[str] = ()
    """Tickers that were requested and have no bars."""
    tickers_as_of: dt.date | None = None
    """Day whose tickers the source uses for bars of all years; None: each bar has the ticker of its
    own day."""
    companies: Mapping[str, str] = MappingProxyType({})
    """Symbol -> key of its company (`bars.companies`), "" for an unknown company. Empty unless bars
    are joined by company."""

    def holder(self, ticker: str, day: dt.date) -> str | None:
        """Return the symbol that traded under a ticker on a day; None if the source has no bars of
        it."""
        return ticker if ticker in self.symbols else None

    def prepare(self, progress: Progress | None = None) -> None:
        """Read files or request bars. Raises DataError."""
        return

    def stored(self) -> list[Collection]:
        """Open the collections in the store that contain the feed's bars; may be called before
        `prepare`."""
        return []

    def span(self) -> tuple[int, int]:
        """Return the first and the last time of all bars, nanoseconds since 1970 UTC."""

    def bars(self, symbol: str) -> Bars:
        """Return all bars of one symbol, uncleaned. Raises DataError when stored bars are
        damaged."""

    def index(self, grid: SessionGrid) -> Array | None:
        """Return `[T]`: level of the source's index at the close of each bar of `grid`; None if the
        source has no index."""
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
