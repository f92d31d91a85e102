"""What could be seen at a bar: the bars of some days up to it, and every dated file up to that
day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fintrader.bars.bars import PRICES, Array, Bars, concat
from fintrader.bars.calendar import SessionGrid, WindowSettings
from fintrader.bars.checks import STOPPING
from fintrader.bars.companies import Interval
from fintrader.bars.corporate_actions import Action, load_actions
from fintrader.bars.sources.feed import Feed
from fintrader.market.index_level import read_level
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import DataSettings
from fintrader.market.universe import UniverseSettings, load_membership, load_shares
from fintrader.seeding import create_numpy_generator

Mode = Literal["cut", "scrambled"]
MODES: tuple[Mode, ...] = ("cut", "scrambled")
_QUARTER_DAY_NS = 6 * 3_600_000_000_000


@dataclass(frozen=True)
class Cut:
    """A moment from which on everything is hidden or made up."""

    ts: int
    """Start of the first hidden bar, nanoseconds since 1970 UTC."""
    day: dt.date
    """Session of the last bar that can be seen."""
    over: bool
    """Whether that session is over: its daily closes are known."""
    mode: Mode


@dataclass(frozen=True)
class View:
    """Which market to build."""

    first_ts: int
    last_ts: int
    """Starts of the first and the last bar."""
    start: dt.date
    end: dt.date
    windows: tuple[dt.date, dt.date, dt.date] | None = None
    """Last day of training, days of validation and test: of a piece of the range; None: the whole,
    as configured."""
    symbols: tuple[str, ...] = ()
    """Of a piece: the whole market's symbols."""
    cut: Cut | None = None


def settings_of(settings: DataSettings, view: View, folder: Path) -> DataSettings:
    """The (effective) settings of a view; dated files that end at its cut are written to `folder`.

    A piece has no choice of symbols by its bars, and no signal planted into real bars: both belong
    to the windows of the whole.
    """
    # what another future holds is no market's doing
    values: dict[str, Any] = {"start": view.start, "end": view.end, "waive": STOPPING}
    universe = settings.universe
    if view.windows is not None:
        train, validation, test = view.windows
        values["windows"] = WindowSettings(
            train=(view.start, train),
            validation=(validation, validation),
            test=(test, view.end),
            embargo_sessions=0,
        )
        universe = universe.model_copy(
            update={"symbols": (), "min_coverage": 0.0, "max_symbols": None}
        )
        if isinstance(settings.source, PlantedInSettings):
            values["source"] = settings.source.files()
    if view.cut is not None:
        cut = view.cut
        universe = _universe_until(universe, cut.day, view.end, folder)
        values["actions"] = _actions_until(settings.actions, cut.day, folder / "actions.csv")
        if settings.benchmark is not None:
            where = (settings.calendar, "data.benchmark")
            known = folder / "benchmark.csv"
            values["benchmark"] = _level_until(settings.benchmark, where, cut, known)
        daily = {}
        for name, path in settings.features.daily.items():
            where = (settings.calendar, f"data.features.daily.{name}")
            daily[name] = _level_until(path, where, cut, folder / f"{name}.csv")
        values["features"] = settings.features.model_copy(update={"daily": daily})
    return settings.model_copy(update={**values, "universe": universe})


def _actions_until(path: str | None, day: dt.date, known: Path) -> str | None:
    """Write the splits and dividends up to a day to `known`; None where there are none."""
    rows = [
        (action.symbol, action.day, action.split, action.dividend_usd)
        for action in load_actions(path)
        if action.day <= day
    ]
    if not rows:
        return None
    _write(known, "symbol,day,split,dividend_usd", rows)
    return str(known)


def _level_until(path: str, where: tuple[str, str], cut: Cut, known_path: Path) -> str:
    """A series without the rows that nobody could know; the file itself where no row would be
    left. where: the calendar of its times, and the setting that names it."""
    table = read_level(path, *where)
    days = table["when"].dt.normalize()
    if (table["when"] == days).all():
        dates = days.dt.tz_localize(None)
        known = dates <= pd.Timestamp(cut.day) if cut.over else dates < pd.Timestamp(cut.day)
        table = table.assign(date=dates.dt.strftime("%Y-%m-%d"))
    else:
        known = table["when"].dt.tz_convert("UTC").dt.tz_localize(None) < pd.Timestamp(cut.ts)
        table = table.assign(ts=table["when"].map(lambda moment: moment.isoformat()))
    columns = [name for name in ("ts", "date", "open", "close") if name in table]
    if not known.any():
        return path
    table.loc[known, columns].to_csv(known_path, index=False)
    return str(known_path)


def _universe_until(
    universe: UniverseSettings, day: dt.date, end: dt.date, folder: Path
) -> UniverseSettings:
    """Members and shares as of a day; who joins later joins at the end, to keep its column."""
    values: dict[str, Any] = {}
    membership = load_membership(universe)
    if membership is not None:
        rows = [
            row
            for name, spans in membership.items()
            for row in _members_until(name, spans, day, end)
        ]
        _write(folder / "membership.csv", "ticker,member_from,member_to", rows)
        values |= {"members": str(folder / "membership.csv")}
    shares = load_shares(universe)
    if shares is not None:
        known = [
            (name, first, number)
            for name, spans in shares.items()
            for first, number in spans
            if first <= day
        ]
        _write(folder / "shares.csv", "symbol,from,shares", known)
        values["shares_outstanding"] = str(folder / "shares.csv") if known else None
    return universe.model_copy(update=values)


def _members_until(
    name: str, spans: list[Interval], day: dt.date, end: dt.date
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for first, stop in spans:
        if first <= day:
            left = stop is not None and stop <= day
            rows.append(
                (name, first, stop - dt.timedelta(days=1) if left and stop is not None else "")
            )
        elif first <= end:
            rows.append((name, end, ""))
    return rows


def _write(path: Path, header: str, rows: list[tuple[Any, ...]]) -> None:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


class ViewFeed(Feed):
    """Another feed's bars as a view shows them. Its span stays, so that nothing seems to have ended
    early."""

    def __init__(self, feed: Feed, bars: Mapping[str, Bars], view: View, seed: int) -> None:
        self._feed = feed
        self._bars = bars
        self._view = view
        self._seed = seed
        self.inputs = feed.inputs
        self.companies = feed.companies
        self.missing = feed.missing
        low = view.first_ts - _QUARTER_DAY_NS
        high = view.last_ts + _QUARTER_DAY_NS
        wanted = view.symbols or feed.symbols
        is_whole = view.windows is None
        found = {name: bars[name].ts for name in wanted}
        self._rows = {name: is_whole | ((ts >= low) & (ts <= high)) for name, ts in found.items()}
        self.symbols = [name for name in feed.symbols if name in found and self._rows[name].any()]
        known: dt.date = view.cut.day if view.cut else dt.date.max
        self.actions: tuple[Action, ...] = tuple(
            action for action in feed.actions if action.day <= known
        )

    def span(self) -> tuple[int, int]:
        return self._feed.span()

    def holder(self, ticker: str, day: dt.date) -> str | None:
        return self._feed.holder(
            ticker, day
        )  # of the whole: an action of a symbol that is not in view is no error

    def bars(self, symbol: str) -> Bars:
        bars = self._bars[symbol].take(self._rows[symbol])
        cut = self._view.cut
        if cut is None:
            return bars
        if cut.mode == "cut":
            return ending(bars, cut.ts, self._view.last_ts)
        return scrambled(
            bars, bars.ts >= cut.ts, create_numpy_generator(self._seed, "scramble", symbol)
        )

    def index(self, grid: SessionGrid) -> Array | None:
        level = self._feed.index(grid)
        cut = self._view.cut
        if level is None or cut is None:
            return level
        changed = np.array(level)
        later = grid.minutes >= cut.ts
        changed[later] *= create_numpy_generator(self._seed, "scramble", "index").uniform(
            0.8, 1.25, int(later.sum())
        )
        return changed


def ending(bars: Bars, ts: int, last_ts: int) -> Bars:
    """Bars that end at `ts` with one that repeats the last close, so that silent bars before it are
    still carried.

    A symbol that begins only then has its one bar at `last_ts`; one that had ended stays as it was.
    """
    before = bars.ts < ts
    if before.all():
        return bars
    known = bars.take(before)
    one = known.take(np.array([known.ts.argmax()])) if len(known) else bars.take(slice(1))
    price = one.close if len(known) else np.ones(1)
    when = np.array([ts if len(known) else last_ts])
    last = replace(one, ts=when, volume=np.zeros(1), open=price, high=price, low=price, close=price)
    return concat([known, last])


def scrambled(bars: Bars, rows: Array, rng: np.random.Generator) -> Bars:
    """The same times with other prices, volumes and extra columns in `rows`: shuffled among them,
    prices moved."""
    where = np.flatnonzero(rows)
    order = np.arange(len(bars))
    order[where] = rng.permutation(where)
    move = np.where(rows, rng.uniform(0.8, 1.25), 1.0)
    mixed = bars.take(order)
    prices = {name: getattr(mixed, name) * move for name in PRICES}
    return replace(mixed, ts=bars.ts, row=bars.row, **prices)
