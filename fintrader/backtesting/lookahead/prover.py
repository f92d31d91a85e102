"""The look-ahead check: which views of a market are tried, and what is asked of each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fintrader.backtesting.lookahead.alarms import implausible
from fintrader.backtesting.lookahead.differences import (
    Leak,
    compare_markets,
    compare_trading,
    reacting_policy,
    unmoved,
)
from fintrader.backtesting.lookahead.fresh import FreshBuilds
from fintrader.backtesting.lookahead.report import (
    LookaheadReport,
    gathered,
    trusted,
)
from fintrader.backtesting.lookahead.views import MODES, Cut, Mode, View
from fintrader.backtesting.settings import LookaheadSettings
from fintrader.bars.calendar import exchange_days, session_date
from fintrader.envs import EnvSettings, Policy
from fintrader.errors import BacktestError, DataError
from fintrader.market.index_level import EQUAL_WEIGHT
from fintrader.market.settings import DataSettings, planted_column
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress
from fintrader.seeding import create_numpy_generator

Rebuild: TypeAlias = Callable[[int, Mode], MarketTensors]
"""Builds the market again from bars that were changed from a bar number on, and how."""
_LONGEST_WARM_UP = 10_000
"""Bars. Columns that need more before they say something are tried on the whole market only."""


def lookahead(
    data: DataSettings,
    env: EnvSettings,
    settings: LookaheadSettings | None = None,
    *,
    seed: int = 0,
    cache: Path | None = None,
    setup: str | None = None,
    progress: Progress = SILENT,
) -> LookaheadReport:
    """The whole way from bars to equity, for a configuration, every view built in a process that
    built nothing before.

    Cuts of the whole market lie after the training window: inside it, the statistics that features
    are standardised with change with the bars, as they should. The pieces around a bar have
    training windows of their own, before it. `cache` is where a vendor's bars are kept, `setup`
    names a function (`package.module:function`) that the process calls first. Raises DataError
    where the market cannot be built, BacktestError where there is no bar to cut at or where code of
    your own fails on a part of the rows.
    """
    settings = settings or LookaheadSettings()
    data = data.effective()
    with FreshBuilds(data, seed=seed, cache=cache, setup=setup) as build:
        first, last = build.span
        start, end = (session_date(data.calendar, ts) for ts in (first, last))
        whole = View(first, last, data.start or start, data.end or end)
        market = build(whole)
        pieces = _Pieces(market, data.calendar, seed)
        found: list[Leak] = []
        still: list[set[str]] = []

        def rebuild(cut: int, mode: Mode) -> MarketTensors:
            changed = build(replace(whole, last_ts=pieces.last_ts, cut=pieces.cut(cut, mode)))
            still.extend([unmoved(market, changed, cut)] if mode == "scrambled" else [])
            return changed

        report = find_leaks(market, rebuild, env, cuts=settings.cuts, seed=seed, progress=progress)
        found += report.leaks
        tried: list[int] = []
        untried = [
            f"{name}: says nothing before {bars:,} bars" for name, bars in pieces.late.items()
        ]
        with progress.task("look-ahead", total=market.num_bars, unit="bars") as task:
            for piece in pieces.plan(settings):
                try:
                    found += _leaks_of(piece, build, env, seed)
                    tried += [cut for cut, _ in piece.cuts]
                except DataError as error:
                    untried.append(f"bars {piece.first} to {piece.first + piece.bars - 1}: {error}")
                task.advance(piece.own_bars)
        alarms = implausible(market, planted_column(data))
        own_index = market.benchmark_name != EQUAL_WEIGHT
        names = sorted(set.intersection(*still)) if still else []
        return LookaheadReport(
            report.cuts,
            gathered(found),
            prefixes=tuple(sorted(tried)),
            alarms=tuple(map(str, alarms)),
            trusted=trusted(data, market.benchmark_name, own_index, names),
            untried=tuple(untried),
        )


def find_leaks(
    market: MarketTensors,
    rebuild: Rebuild,
    env: EnvSettings,
    *,
    cuts: int = 3,
    seed: int = 0,
    progress: Progress = SILENT,
) -> LookaheadReport:
    """Compare `market` with what `rebuild` makes of changed futures, at `cuts` random bars.

    Raises BacktestError when there is no bar to cut at.
    """
    begin = market.windows.train[1] if market.windows else market.num_bars // 3
    candidates = np.arange(begin + 2, market.num_bars - 2)
    if not candidates.size or cuts < 1:
        raise BacktestError(
            "there is no bar after the training window to cut at; give a longer market or more cuts"
        )
    rng = create_numpy_generator(seed, "lookahead")
    chosen = np.sort(rng.choice(candidates, size=min(cuts, candidates.size), replace=False))
    policy = reacting_policy(market, seed, env)
    leaks: list[Leak] = []
    with progress.task("look-ahead", total=len(chosen) * len(MODES), unit="builds") as task:
        for cut in chosen.tolist():
            for mode in MODES:
                changed = rebuild(cut, mode)
                leaks += compare_markets(market, changed, cut, mode)
                # A symbol whose bars are cut off ends there and is sold: fills are compared where
                # nothing ends.
                if mode == "scrambled":
                    leaks += compare_trading(market, changed, cut, mode, env, policy)
                task.advance()
    return LookaheadReport(tuple(chosen.tolist()), gathered(leaks))


@dataclass(frozen=True)
class _Piece:
    """Some sessions, built as a market of their own, and the bars of the whole market to cut it
    at."""

    view: View
    first: int
    """The whole market's number of its first bar."""
    bars: int
    own_bars: int
    """Of the session that is tried."""
    cuts: tuple[tuple[int, Cut], ...]


def _leaks_of(piece: _Piece, build: FreshBuilds, env: EnvSettings, seed: int) -> list[Leak]:
    """Compare a piece that was built of everything with what its cuts leave of it."""
    leaks: list[Leak] = []
    reference = build(piece.view)
    policy: Policy | None = None
    views = build.each([replace(piece.view, cut=cut) for _, cut in piece.cuts])
    for (bar, cut), changed in zip(piece.cuts, views, strict=True):
        at = bar - piece.first
        found = compare_markets(reference, changed, at, cut.mode)
        if cut.mode == "scrambled" and cut.over:  # a whole session is traded, to its last bar
            policy = policy or reacting_policy(reference, seed, env)
            found += compare_trading(reference, changed, at, cut.mode, env, policy)
        leaks += [replace(leak, cut=bar, bar=leak.bar + piece.first) for leak in found]
    return leaks


class _Pieces:
    """A market's sessions, where something happens at their edges, and how much must lie before a
    cut."""

    def __init__(self, market: MarketTensors, calendar: str, seed: int) -> None:
        session = market.session.numpy()
        self.market = market
        self.seed = seed
        self.session = session - session[0]
        self.sessions = int(self.session[-1]) + 1
        self.first = np.searchsorted(self.session, np.arange(self.sessions + 1))
        minutes = market.minutes.numpy()
        self.days: list[dt.date] = exchange_days(calendar, minutes[self.first[:-1]]).tolist()
        self.last_ts = int(minutes[-1])
        says = _first_words(market)
        self.late = {name: bar for name, bar in says.items() if bar >= _LONGEST_WARM_UP}
        warm_up = max([bar for bar in says.values() if bar < _LONGEST_WARM_UP], default=0)
        half = int(np.median(np.diff(self.first))) // 2
        self.before = int(self.session[min(warm_up + half, market.num_bars - 1)]) + 1
        """Sessions before the one that is tried: until every column says something, and half of one
        to scale it by."""

    def cut(self, bar: int, mode: Mode) -> Cut:
        """From `bar` on everything changes."""
        seen = int(self.session[bar - 1])
        return Cut(
            int(self.market.minutes[bar]), self.days[seen], bool(self.session[bar] != seen), mode
        )

    def plan(self, settings: LookaheadSettings) -> Iterator[_Piece]:
        """A piece for each session but the first (and the second, of a market of three)."""
        rng = create_numpy_generator(self.seed, "lookahead-prefixes")
        wanted: dict[int, list[tuple[int, Mode]]] = {
            number: [] for number in range(1, self.sessions)
        }
        chosen = np.arange(settings.prefixes) * (self.sessions - 1) // max(settings.prefixes, 1) + 1
        for number in chosen.tolist():
            bar = int(rng.integers(self.first[number], self.first[number + 1]))
            wanted[number].append((bar, MODES[int(rng.integers(len(MODES)))]))
        if self.sessions > 1 and settings.run and not settings.exhaustive:
            # one piece for all, so that what a feature does at every so many of its rows comes up
            start = int(
                rng.integers(
                    self.first[1], max(self.market.num_bars - settings.run, self.first[1]) + 1
                )
            )
            bars = range(start, min(start + settings.run, self.market.num_bars))
            piece = self._piece(int(self.session[start]), [(bar, "cut") for bar in bars])
            if piece is not None:
                yield replace(piece, own_bars=0)
        eventful = self._eventful()
        for number in wanted:
            begin = int(self.first[number])
            end = int(self.first[number + 1])
            wanted[number].append((begin, MODES[number % len(MODES)]))
            if number in eventful:
                wanted[number] += [
                    (bar, mode) for bar in (begin, begin + 1, end - 1) for mode in MODES
                ]
            if settings.exhaustive:
                wanted[number] = [(bar, mode) for bar in range(begin, end) for mode in MODES]
            piece = self._piece(
                number, sorted({pair for pair in wanted[number] if begin <= pair[0] < end})
            )
            if piece is not None:
                yield piece

    def _eventful(self) -> set[int]:
        """Sessions at whose edges something else happens: splits, dividends, members who come or
        go, half days and the sessions after these, listings and ends."""
        market = self.market
        first = self.first
        length = np.diff(first)
        found = set(self.session[market.events.bar.numpy()].tolist())
        short = np.flatnonzero(length < np.median(length))
        found |= {*short.tolist(), *(short + 1).tolist()}
        member = market.member.numpy()[first[:-1]]
        listed = np.isfinite(market.close.numpy()[first[:-1]])
        for table in (member, listed):
            found |= set((np.flatnonzero((table[1:] != table[:-1]).any(axis=1)) + 1).tolist())
        return found

    def _piece(self, number: int, cuts: Sequence[tuple[int, Mode]]) -> _Piece | None:
        """The sessions around one: enough before it, and one after it, or after the last cut, where
        there is one."""
        last = max((int(self.session[bar]) for bar, _ in cuts), default=number)
        stop = min(last + 1, self.sessions - 1)
        trained = min(number - 1, stop - 2)
        if trained < 0:
            return None
        start = max(0, min(number - self.before, trained))
        first = int(self.first[start])
        end = int(self.first[stop + 1])
        days = self.days
        minutes = self.market.minutes
        view = View(
            int(minutes[first]),
            int(minutes[end - 1]),
            days[start],
            days[stop],
            (days[trained], days[trained + 1], days[trained + 2]),
            self.market.symbols,
        )
        own = int(self.first[number + 1] - self.first[number])
        return _Piece(
            view, first, end - first, own, tuple((bar, self.cut(bar, mode)) for bar, mode in cuts)
        )


def _first_words(market: MarketTensors) -> dict[str, int]:
    """Bar from which on each column is something else than 0, which it is while it is undefined."""
    # 0 for a column that never is.
    return {
        name: int((values.numpy() != 0).any(axis=1).argmax()) for name, values in market.columns()
    }
