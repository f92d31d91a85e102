"""A source's bars put together by company, whatever tickers they traded under."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fintrader.bars.bars import Array, Bars, concat
from fintrader.bars.calendar import SessionGrid, exchange_days, session_date
from fintrader.bars.companies import EVER, NEVER, Company, index_companies
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.feed import Feed
from fintrader.errors import DataError
from fintrader.progress import Progress

log = logging.getLogger("fintrader.bars")


class _TickerSpan(NamedTuple):
    """Bars of one ticker that are a company's: those of the days from `start` until before
    `stop`."""

    ticker: str
    start: dt.date
    stop: dt.date


class CompanyFeed(Feed):
    """Another feed's bars, company by company: one symbol for each, called by the last of its
    tickers that has bars.

    A ticker's bars belong to the company that traded under the letters on the day. Files of which
    the tickers are those of one day for all years say so (`tickers_as_of`; a vendor's are those of
    today): then they belong to whoever held the letters on that day, and bars under an earlier
    ticker fill the sessions that are missing. Without it, bars from before a change of ticker are
    taken under the new one where they run through the change session by session: that no two
    companies do.

    Bars of letters that nobody of the index holds stay as they are, and are nobody's.
    """

    def __init__(
        self,
        feed: Feed,
        companies: Sequence[Company],
        calendar: str,
        *,
        tickers_as_of: dt.date | None = None,
        aliases: Mapping[str, str] | None = None,
        wanted: Sequence[str] = (),
    ) -> None:
        self.feed = feed
        self.calendar = calendar
        self.inputs_need_bars = feed.inputs_need_bars
        if not feed.inputs_need_bars:
            self.inputs = feed.inputs
        self._companies = companies
        self._as_of = tickers_as_of or feed.tickers_as_of
        self._aliases = aliases or {}
        self._wanted = set(wanted)

    def prepare(self, progress: Progress | None = None) -> None:
        """Prepare the feed, and settle whose bars it has."""
        self.feed.prepare(progress)
        self.inputs = self.feed.inputs
        self.missing = self.feed.missing
        first, last = (session_date(self.calendar, ts) for ts in self.feed.span())
        pieces = {company.key: self._pieces(company, first, last) for company in self._companies}
        used = {piece.ticker for found in pieces.values() for piece in found}
        own = {
            name: [_TickerSpan(name, EVER, NEVER)] for name in self.feed.symbols if name not in used
        }
        self._by_symbol: dict[str, list[_TickerSpan]] = dict(own)
        self.companies = dict.fromkeys(
            own, ""
        )  # though its letters may once have been, or come to be, a member's
        for company in sorted(self._companies, key=lambda one: one.names[-1].stop, reverse=True):
            if found := pieces[company.key]:
                asked = [piece.ticker for piece in found if piece.ticker in self._wanted]
                name = (asked or [max(found, key=lambda piece: piece.start).ticker])[0]
                if name in self._by_symbol:  # who holds the letters now keeps them
                    name = company.key
                self._by_symbol[name] = found
                self.companies[name] = company.key
        if self._as_of is None:
            self._wonder(own, pieces, first, last)
        self.symbols = sorted(self._by_symbol)
        self.actions = tuple(self._own(action) for action in self.feed.actions)

    def span(self) -> tuple[int, int]:
        return self.feed.span()

    def index(self, grid: SessionGrid) -> Array | None:
        return self.feed.index(grid)

    def holder(self, ticker: str, day: dt.date) -> str | None:
        """The symbol whose share traded under a ticker on a day; also by one of its other tickers,
        if nobody did."""
        mine = {key: name for name, key in self.companies.items() if key}
        ever = [one for one in self._companies if any(name.ticker == ticker for name in one.names)]
        then = [one for one in ever if one.holds(ticker, day)]
        found = [mine[one.key] for one in (*then, *reversed(ever)) if one.key in mine]
        for symbol, pieces in self._by_symbol.items():
            if any(piece.ticker == ticker and piece.start <= day < piece.stop for piece in pieces):
                return symbol
        return found[0] if found else None

    def bars(self, symbol: str) -> Bars:
        pieces = self._by_symbol[symbol]
        if len(pieces) == 1 and (pieces[0].start, pieces[0].stop) == (EVER, NEVER):
            return replace(self.feed.bars(pieces[0].ticker), symbols=(symbol,))
        parts: list[Bars] = []
        covered: Array = np.zeros(0, dtype="datetime64[D]")
        for piece in pieces:
            bars = self.feed.bars(piece.ticker)
            days = exchange_days(self.calendar, bars.ts).astype("datetime64[D]")
            free = (days < np.datetime64(piece.stop)) & ~np.isin(days, covered)
            keep = free & (days >= np.datetime64(self._since(symbol, piece, days[free])))
            covered = np.union1d(covered, days[keep])
            parts.append(replace(bars.take(keep), symbols=(symbol,)))
        filled = [part for part in parts if len(part)] or parts[:1]
        return filled[0] if len(filled) == 1 else replace(concat(filled), row=None).sorted()

    def _pieces(self, company: Company, first: dt.date, last: dt.date) -> list[_TickerSpan]:
        """Which bars of the source are a company's, in order of preference; `first` and `last` are
        its first and last days."""
        there = set(self.feed.symbols) - set(self._aliases)
        declared = [
            name
            for name, theirs in self._aliases.items()
            if self._means(theirs, company, first, last)
        ]
        pieces = [_TickerSpan(name, EVER, NEVER) for name in declared if name in self.feed.symbols]
        if self._as_of is not None:
            ticker = company.ticker(self._as_of)
            if ticker in there and self._holder(ticker, self._as_of) == company.key:
                pieces.append(_TickerSpan(ticker, EVER, NEVER))
        named = [
            _TickerSpan(*name)
            for name in company.names
            if name.ticker in there
            and name.start <= last
            and name.stop > first
            and name.ticker not in _names_in(pieces)
        ]
        return pieces + (named if self._as_of is None else named[::-1])

    def _holder(self, ticker: str, day: dt.date) -> str | None:
        """Whose the letters are on a day: of who holds them, or else of who held them last
        before."""
        ranked = [
            (name.start <= day < name.stop, name.start <= day, name.start, company.key)
            for company in self._companies
            for name in company.names
            if name.ticker == ticker
        ]
        return max(ranked)[-1] if ranked else None

    def _means(self, ticker: str, company: Company, first: dt.date, last: dt.date) -> bool:
        """Whether an alias names a company: by a ticker of it, where it can, one of the source's
        days."""
        ever = [one for one in self._companies for name in one.names if name.ticker == ticker]
        then = [
            one
            for one in self._companies
            for name in one.names
            if name.ticker == ticker and name.start <= last and name.stop > first
        ]
        return (then or ever)[-1:] == [company]

    def _since(self, symbol: str, piece: _TickerSpan, days: Array) -> dt.date:
        """From when on a ticker's bars are the company's: from the day on which it took the
        letters; from their first day where bars on both sides of that day show a file with later
        tickers. `days` are the bars', `[R]`."""
        took = np.datetime64(piece.start)
        early = days[days < took]
        late = days[days >= took]
        before = dt.date.fromordinal(max(piece.start.toordinal() - 1, 1))
        if not len(early) or any(one.holds(piece.ticker, before) for one in self._companies):
            return piece.start
        company = next(one for one in self._companies if one.key == self.companies[symbol])
        earlier = [
            name.ticker
            for name in company.names
            if name.stop <= piece.start and name.ticker != piece.ticker
        ]
        if self._as_of is None and not set(earlier) & set(self.feed.symbols):
            weekend = np.timedelta64(5, "D")  # a long one
            if len(late) and late.min() - early.max() <= weekend:
                first: dt.date = early.min().item()
                return first
        log.warning(
            "%d bars of %s before %s are left out: %s then traded as %s (where the file's tickers"
            " are those of a later day, set data.universe.tickers_as_of to it)",
            *(
                len(early),
                piece.ticker,
                piece.start,
                company.key,
                earlier[-1] if earlier else "nothing",
            ),
        )
        return piece.start

    def _wonder(
        self,
        own: Iterable[str],
        pieces: Mapping[str, Sequence[_TickerSpan]],
        first: dt.date,
        last: dt.date,
    ) -> None:
        """Say which letters are nobody's here, and a member's without bars before or after."""
        members = [
            one
            for one in self._companies
            if not pieces[one.key]
            and any(a <= last and (b is None or b > first) for a, b in one.member)
        ]
        for ticker in sorted(own):
            for one in members:
                if any(name.ticker == ticker for name in one.names):
                    log.warning(
                        "%s is no member: from %s to %s the letters were not those of %s, which"
                        " traded as %s (where the file's tickers are those of another day, set"
                        " data.universe.tickers_as_of to it)",
                        *(ticker, first, last, one.key, one.ticker(last)),
                    )

    def _own(self, action: Action) -> Action:
        symbol = self.holder(action.symbol, action.day)
        return action if symbol is None else action.model_copy(update={"symbol": symbol})


def _names_in(pieces: Iterable[_TickerSpan]) -> set[str]:
    return {piece.ticker for piece in pieces}


def by_company(feed: Feed, index: str | None, calendar: str, **how: Any) -> Feed:
    """The feed by the companies of an index; as it is without one. Raises DataError for an alias
    that nobody bore."""
    if index is None:
        return feed
    companies = index_companies(index)
    known = {name.ticker for company in companies for name in company.names}
    for symbol, theirs in (how.get("aliases") or {}).items():
        if theirs not in known:
            raise DataError(
                f"data.universe.aliases: no member of {index} ever traded as {theirs} ({symbol});"
                " correct it"
            )
    return CompanyFeed(feed, companies, calendar, **how)
