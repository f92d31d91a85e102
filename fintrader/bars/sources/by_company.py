"""Bars of a source joined by company, across its tickers."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fintrader.bars.bars import Array, Bars, concat
from fintrader.bars.calendar import SessionGrid, exchange_days, session_date
from fintrader.bars.chunks import Collection
from fintrader.bars.companies import EVER, NEVER, Company, Name, list_index_companies, overlaps
from fintrader.bars.sources.feed import Feed
from fintrader.errors import DataError
from fintrader.progress import Progress

log = logging.getLogger("fintrader.bars")


class CompanyFeed(Feed):
    """Bars of another feed, joined by company: one symbol for each company, named by the last of
    its tickers that has bars.

    A ticker's bars on a day belong to the company that had the ticker on that day. Some sources use
    the tickers of one day for all years (a vendor those of today); `tickers_as_of` is that day.
    Then a ticker's bars of all years belong to the company that had it on that day, and bars under
    the company's other tickers fill missing sessions. Without it, bars under a ticker from before
    the company took it count as the company's if no session is missing around the change, since
    bars of two companies do not join so closely.

    Bars of a ticker that no company of the index ever had stay unchanged, without a company.
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
        self._bearers: dict[str, list[tuple[Name, Company]]] = {}
        for company in companies:
            for name in company.names:
                self._bearers.setdefault(name.ticker, []).append((name, company))
        self._as_of = tickers_as_of or feed.tickers_as_of
        self._aliases = aliases or {}
        self._wanted = set(wanted)

    def prepare(self, progress: Progress | None = None) -> None:
        """Prepare the feed, and assign its tickers to companies. Raises DataError."""
        self.feed.prepare(progress)
        self.inputs = self.feed.inputs
        self.missing = self.feed.missing
        first, last = (session_date(self.calendar, ts) for ts in self.feed.span())
        self._days = first, last
        spans = {company.key: self._find_spans(company) for company in self._companies}
        used = {span.ticker for own_spans in spans.values() for span in own_spans}
        others = [name for name in self.feed.symbols if name not in used]
        self._by_symbol = {name: [Name(name, EVER, NEVER)] for name in others}
        # they have no company, even if a member had the ticker before or will have it later
        self.companies = dict.fromkeys(others, "")
        for company in sorted(self._companies, key=lambda one: one.names[-1].stop, reverse=True):
            own_spans = spans[company.key]
            if not own_spans:
                continue
            wanted = [span.ticker for span in own_spans if span.ticker in self._wanted]
            name = (wanted or [max(own_spans, key=lambda span: span.start).ticker])[0]
            if name in self._by_symbol:  # the company that had the ticker last keeps it
                name = company.key
            self._by_symbol[name] = own_spans
            self.companies[name] = company.key
        if self._as_of is None:
            self._warn_of_members(others, spans)
        self.symbols = sorted(self._by_symbol)
        self.actions = tuple(
            action.model_copy(
                update={"symbol": self.holder(action.symbol, action.day) or action.symbol}
            )
            for action in self.feed.actions
        )

    def stored(self) -> list[Collection]:
        return self.feed.stored()

    def span(self) -> tuple[int, int]:
        return self.feed.span()

    def index(self, grid: SessionGrid) -> Array | None:
        return self.feed.index(grid)

    def holder(self, ticker: str, day: dt.date) -> str | None:
        """Return the symbol that traded under a ticker on a day; without one, the symbol of a
        company that had the ticker on another day; None if there is none either."""
        for symbol, spans in self._by_symbol.items():
            if any(span.ticker == ticker and span.start <= day < span.stop for span in spans):
                return symbol
        mine = {key: name for name, key in self.companies.items() if key}
        ever = [one for _, one in self._bearers.get(ticker, ())]
        then = [one for one in ever if one.holds(ticker, day)]
        return next((mine[one.key] for one in (*then, *ever[::-1]) if one.key in mine), None)

    def bars(self, symbol: str) -> Bars:
        spans = self._by_symbol[symbol]
        if len(spans) == 1 and (spans[0].start, spans[0].stop) == (EVER, NEVER):
            return replace(self.feed.bars(spans[0].ticker), symbols=(symbol,))
        parts: list[Bars] = []
        covered: Array = np.zeros(0, dtype="datetime64[D]")
        for span in spans:
            bars = self.feed.bars(span.ticker)
            days = exchange_days(self.calendar, bars.ts)
            free = (days < np.datetime64(span.stop)) & ~np.isin(days, covered)
            keep = free & (days >= np.datetime64(self._first_day(symbol, span, days[free])))
            covered = np.union1d(covered, days[keep])
            parts.append(replace(bars.take(keep), symbols=(symbol,)))
        filled = [part for part in parts if len(part)] or parts[:1]
        return filled[0] if len(filled) == 1 else replace(concat(filled), row=None).sorted()

    def _find_spans(self, company: Company) -> list[Name]:
        """List the tickers under which the source has a company's bars, each with its days, in
        order of preference."""
        there = set(self.feed.symbols) - set(self._aliases)
        tickers = [
            name
            for name, theirs in self._aliases.items()
            if name in self.feed.symbols and self._is_alias_of(theirs, company)
        ]
        if self._as_of is not None:
            ticker = company.ticker(self._as_of)
            if ticker in there and self._find_holder(ticker, self._as_of) == company.key:
                tickers.append(ticker)
        spans = [Name(ticker, EVER, NEVER) for ticker in tickers]
        named = [
            name
            for name in company.names
            if name.ticker in there - set(tickers) and overlaps(name[1:], *self._days)
        ]
        return spans + (named if self._as_of is None else named[::-1])

    def _find_holder(self, ticker: str, day: dt.date) -> str:
        """Return the key of the company that has a ticker on a day, or else of the one that had it
        last before."""
        ranked = [
            (name.start <= day < name.stop, name.start <= day, name.start, company.key)
            for name, company in self._bearers[ticker]
        ]
        return max(ranked)[-1]

    def _is_alias_of(self, ticker: str, company: Company) -> bool:
        """Report whether an alias's ticker stands for a company: the last one that had it on some
        of the source's days, or else at any time."""
        ever = self._bearers.get(ticker, [])
        then = [pair for pair in ever if overlaps(pair[0][1:], *self._days)]
        return [one for _, one in then or ever][-1:] == [company]

    def _first_day(self, symbol: str, span: Name, days: Array) -> dt.date:
        """Return the first day from which a ticker's bars are the company's.

        That is the day on which the company took the ticker. It is the first of the bars' `days`
        `[R]` if bars run through that day without a gap, as in a file that uses later tickers.
        """
        took = np.datetime64(span.start)
        early = days[days < took]
        late = days[days >= took]
        before = dt.date.fromordinal(max(span.start.toordinal() - 1, 1))
        if not len(early) or any(one.holds(span.ticker, before) for one in self._companies):
            return span.start
        company = next(one for one in self._companies if one.key == self.companies[symbol])
        earlier = [
            name.ticker
            for name in company.names
            if name.stop <= span.start and name.ticker != span.ticker
        ]
        if self._as_of is None and not set(earlier) & set(self.feed.symbols):
            weekend = np.timedelta64(5, "D")  # a long one
            if len(late) and late.min() - early.max() <= weekend:
                first: dt.date = early.min().item()
                return first
        log.warning(
            "%d bars of %s before %s are left out: %s then traded as %s (if the file uses the"
            " tickers of a later day, set data.universe.tickers_as_of to that day)",
            *(len(early), span.ticker, span.start, company.key),
            earlier[-1] if earlier else "nothing",
        )
        return span.start

    def _warn_of_members(self, others: Sequence[str], spans: Mapping[str, Sequence[Name]]) -> None:
        """Warn of tickers without a company that belong, on other days, to a member without
        bars."""
        members = [
            one
            for one in self._companies
            if not spans[one.key] and any(overlaps(span, *self._days) for span in one.member)
        ]
        for ticker in sorted(others):
            for one in members:
                if any(name.ticker == ticker for name in one.names):
                    log.warning(
                        "%s is no member: from %s to %s the ticker did not belong to %s, which"
                        " traded as %s (if the file uses the tickers of another day, set"
                        " data.universe.tickers_as_of to that day)",
                        *(ticker, *self._days, one.key, one.ticker(self._days[1])),
                    )


def join_by_company(feed: Feed, index: str | None, calendar: str, **how: Any) -> Feed:
    """Join a feed's bars by the companies of an index; without an index, return the feed unchanged.
    how: options of `CompanyFeed`. Raises DataError for an alias to a ticker that no member ever
    had."""
    if index is None:
        return feed
    companies = list_index_companies(index)
    known = {name.ticker for company in companies for name in company.names}
    for symbol, theirs in (how.get("aliases") or {}).items():
        if theirs not in known:
            raise DataError(
                f"data.universe.aliases: no member of {index} ever traded as {theirs}; correct"
                f" the alias of {symbol}"
            )
    return CompanyFeed(feed, companies, calendar, **how)
