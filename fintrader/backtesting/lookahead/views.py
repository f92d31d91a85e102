"""Views of a market as of a bar: the bars up to it, and the rows of dated files up to its day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fintrader.bars.bars import PRICES, Array, Bars, concat
from fintrader.bars.calendar import SessionGrid, WindowSettings
from fintrader.bars.checks import STOPPING
from fintrader.bars.corporate_actions import Action, load_actions
from fintrader.bars.sources.feed import Feed
from fintrader.market.features import TRUSTED, lag_ns
from fintrader.market.index_level import read_level
from fintrader.market.settings import DataSettings
from fintrader.market.universe import UniverseSettings, load_membership, load_shares
from fintrader.seeding import create_numpy_generator

_KEPT = 0.8
"""Share of a changed future's bars that are not dropped."""


@dataclass(frozen=True)
class Cut:
    """The moment from which all data are changed."""

    ts: int
    """Start of the first changed bar, nanoseconds since 1970 UTC."""
    day: dt.date
    """Session of the last unchanged bar."""
    over: bool
    """True if that session is over, so that its daily closes are known."""


@dataclass(frozen=True)
class View:
    """Description of one build: the whole market, or the market with a changed future."""

    cut: Cut | None = None
    symbols: tuple[str, ...] = ()
    """The market's symbols, regardless of their bars; empty: as configured."""
    statistics: str | None = None
    """JSON of the statistics that scale columns; None: of the training window, as configured."""
    last_days: tuple[dt.date, dt.date, dt.date] | None = None
    """Last sessions of the training, validation and test window; None: all days and windows, as
    configured."""
    last_ts: int | None = None
    """Start of the last bar, nanoseconds since 1970 UTC; None: all bars."""


def derive_settings(
    settings: DataSettings, view: View, span: tuple[dt.date, dt.date], folder: Path
) -> DataSettings:
    """Make the (effective) settings of a view of a market whose first and last days are `span`;
    dated files that end at the cut are written to `folder`."""
    start = settings.start or span[0]
    end = settings.end or span[1]
    # Faults of a changed future are not faults of the market.
    values: dict[str, Any] = {"waive": STOPPING}
    if view.last_days is not None:
        train, validation, end = view.last_days
        values["windows"] = WindowSettings(
            train=(start, train),
            validation=(validation, validation),
            test=(end, end),
            embargo_sessions=0,
        )
    universe = settings.universe
    features = settings.features
    if view.symbols:
        chosen = {"symbols": view.symbols, "min_coverage": 0.0, "max_symbols": None}
        universe = universe.model_copy(update=chosen)
    if view.statistics is not None:
        statistics = folder / "statistics.json"
        statistics.write_text(view.statistics)
        features = features.model_copy(update={"normalisation": str(statistics)})
    if view.cut is not None:
        cut = view.cut
        universe = _universe_until(universe, cut.day, end, folder)
        values["actions"] = _actions_until(settings.actions, cut.day, folder / "actions.csv")
        if settings.benchmark is not None:
            where = (settings.calendar, "data.benchmark", TRUSTED)
            known = folder / "benchmark.csv"
            values["benchmark"] = _level_until(settings.benchmark, where, cut, known)
        daily = {}
        for name, path in features.daily.items():
            known_at = features.known_at.get(name, TRUSTED)
            where = (settings.calendar, f"data.features.daily.{name}", known_at)
            daily[name] = _level_until(path, where, cut, folder / f"{name}.csv")
        features = features.model_copy(update={"daily": daily})
    values |= {"start": start, "end": end, "universe": universe, "features": features}
    return settings.model_copy(update=values)


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


def _level_until(path: str, where: tuple[str, str, str], cut: Cut, known_path: Path) -> str:
    """Write the rows of a series that are known at the cut to `known_path`, and return the path;
    return `path` if no row is left. `where`: calendar of the times, setting that names the series,
    and when it was known."""
    table = read_level(path, *where)
    moments = table["known"]
    own = table["when"].dt.normalize()
    if (table["when"] == own).all():
        dates = moments.dt.tz_localize(None).dt.normalize()
        known = dates <= pd.Timestamp(cut.day) if cut.over else dates < pd.Timestamp(cut.day)
        table = table.assign(date=own.dt.strftime("%Y-%m-%d"))
    else:
        known = moments.dt.tz_convert("UTC").dt.tz_localize(None) < pd.Timestamp(cut.ts)
        moments = table["when"].dt.tz_convert("UTC")  # two offsets in one column cannot be read
        table = table.assign(ts=moments.map(lambda moment: moment.isoformat()))
    columns = [name for name in ("ts", "date", "open", "close", where[2]) if name in table]
    if not known.any():
        return path
    table.loc[known, columns].to_csv(known_path, index=False)
    return str(known_path)


def _universe_until(
    universe: UniverseSettings, day: dt.date, end: dt.date, folder: Path
) -> UniverseSettings:
    """Write members and shares as of a day; later members join on the day `end`, to keep their
    columns."""
    values: dict[str, Any] = {}
    membership = load_membership(universe)
    if membership is not None:
        rows: list[tuple[Any, ...]] = []
        for name, spans in membership.items():
            for first, stop in spans:
                if stop is not None and stop <= day:
                    rows.append((name, first, stop - dt.timedelta(days=1)))
                elif first <= end:
                    rows.append((name, first if first <= day else end, ""))
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


def _write(path: Path, header: str, rows: list[tuple[Any, ...]]) -> None:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


class ViewFeed(Feed):
    """A feed that shows another feed's bars as a view does. The span stays, so that no symbol seems
    to end early."""

    def __init__(
        self,
        feed: Feed,
        bars: Mapping[str, Bars],
        view: View,
        seed: int,
        known_at: Mapping[str, str],
    ) -> None:
        self._known_at = known_at
        self._feed = feed
        self._bars = bars
        self._cut = view.cut
        self._last_ts = feed.span()[1] if view.last_ts is None else view.last_ts
        self._seed = seed
        self.inputs = feed.inputs
        self.companies = feed.companies
        self.missing = feed.missing
        self.symbols = feed.symbols
        known: dt.date = view.cut.day if view.cut else dt.date.max
        self.actions: tuple[Action, ...] = tuple(
            action for action in feed.actions if action.day <= known
        )

    def span(self) -> tuple[int, int]:
        return self._feed.span()

    def holder(self, ticker: str, day: dt.date) -> str | None:
        return self._feed.holder(ticker, day)

    def bars(self, symbol: str) -> Bars:
        bars = self._bars[symbol]
        cut = self._cut
        if cut is None:
            return bars
        random = create_numpy_generator(self._seed, "scramble", symbol)
        bars = self._hide(bars, cut, random)
        return end_bars(scramble_bars(bars, bars.ts >= cut.ts, random), self._last_ts)

    def _hide(self, bars: Bars, cut: Cut, random: np.random.Generator) -> Bars:
        """Replace the values of extra columns that were not known at the cut, in earlier rows
        too."""
        extras = dict(bars.extras)
        for name, when in self._known_at.items():
            if name in extras:
                lag = lag_ns(when)
                # The bar before the cut closes at the cut, and may use values known at that moment.
                hidden = extras[when] > cut.ts if lag is None else bars.ts + lag >= cut.ts
                other = random.permutation(extras[name]) * random.uniform(0.8, 1.25, len(bars))
                extras[name] = np.where(hidden, other, extras[name])
        return replace(bars, extras=extras)

    def index(self, grid: SessionGrid) -> Array | None:
        level = self._feed.index(grid)
        cut = self._cut
        if level is None or cut is None:
            return level
        changed = np.array(level)
        later = grid.minutes >= cut.ts
        changed[later] *= create_numpy_generator(self._seed, "scramble", "index").uniform(
            0.8, 1.25, int(later.sum())
        )
        return changed


def end_bars(bars: Bars, ts: int) -> Bars:
    """Cut the bars after `ts`. A bar at `ts` repeats the last close, so that earlier gaps are still
    filled; a symbol that begins later has only this bar."""
    before = bars.ts < ts
    if (bars.ts <= ts).all():
        return bars
    known = bars.take(before)
    pattern = known.take(np.array([known.ts.argmax()])) if len(known) else bars.take(slice(1))
    price = pattern.close if len(known) else np.ones(1)
    last = replace(
        pattern,
        ts=np.array([ts]),
        volume=np.zeros(1),
        open=price,
        high=price,
        low=price,
        close=price,
    )
    return concat([known, last])


def scramble_bars(bars: Bars, rows: Array, random: np.random.Generator) -> Bars:
    """Shuffle prices, volumes and extra columns among `rows`, multiply the prices by one factor,
    and drop some of the rows. The last row stays, so that no symbol ends early."""
    where = np.flatnonzero(rows)
    order = np.arange(len(bars))
    order[where] = random.permutation(where)
    move = np.where(rows, random.uniform(0.8, 1.25), 1.0)
    mixed = bars.take(order)
    prices = {name: getattr(mixed, name) * move for name in PRICES}
    kept = ~rows | (random.random(len(bars)) < _KEPT)
    kept[bars.ts.argmax()] = True
    return replace(mixed, ts=bars.ts, row=bars.row, **prices).take(kept)
