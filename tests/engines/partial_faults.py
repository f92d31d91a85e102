"""Clean synthetic markets, faults in a part of their bars, and the answer of a build to each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fintrader.bars.bars import COLUMNS, MINUTE_NS, Bars, concat, wrap_columns
from fintrader.bars.calendar import SessionGrid, session_grid
from fintrader.bars.checks import STOPPING
from fintrader.bars.sources.feed import MemoryFeed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.errors import BarError
from fintrader.market.reading import Reader
from fintrader.market.settings import DataSettings

PRICES = ["open", "high", "low", "close"]
MARKETS = {
    "us": ("XNAS", "2019-02-15", 1, 2),
    "24/7": ("24/7", "2019-02-15", 5, 2),
    "fx": ("24/5", "2019-02-15", 5, 5),
    "krx": ("XKRX", "2019-02-15", 1, -1),
}
"""Name -> calendar, first day, minutes of a bar, decimals of a price."""
Table = dict[str, pd.DataFrame]
"""Symbol -> ts (nanoseconds), open, high, low, close, volume."""


@dataclass(frozen=True)
class Clean:
    """A clean market."""

    kind: str
    grid: SessionGrid
    table: Table
    decimals: int

    @property
    def step(self) -> int:
        """Nanoseconds of a bar."""
        return self.grid.bar_minutes * MINUTE_NS


def make_clean(
    kind: str,
    seed: int = 0,
    *,
    names: int = 8,
    sessions: int = 40,
    thin: int = 0,
    common: float = 0.6,
) -> Clean:
    """A market with a common factor; the last `thin` names have half of their bars."""
    calendar, first, minutes, decimals = MARKETS[kind]
    start = pd.Timestamp(first)
    grid = session_grid(
        calendar, start.date(), (start + pd.Timedelta(days=2 * sessions)).date(), minutes
    )
    grid = session_grid(calendar, start.date(), grid.dates[sessions - 1].item(), minutes)
    random = np.random.default_rng(seed)
    bars = grid.num_bars
    place = np.arange(bars) - grid.first_bar[grid.session]
    length = np.diff(grid.first_bar)[grid.session]
    open_all_day = kind in ("24/7", "fx")
    hour = place / length
    # calm at night, or U-shaped between open and close
    shape = 1 + 0.6 * np.sin(2 * np.pi * hour) if open_all_day else 0.5 + 2 * (2 * hour - 1) ** 2
    daily = np.exp(random.normal(0, 0.3, grid.num_sessions))[grid.session]
    size = 5e-4 * np.sqrt(minutes * shape) * daily
    factor = random.standard_t(5, bars) * np.sqrt(3 / 5)
    result = {}
    for number in range(names):
        own = random.standard_t(5, bars) * np.sqrt(3 / 5)
        night = np.where((place == 0) & (not open_all_day), random.normal(0, 0.008, bars), 0.0)
        level = {"us": 60, "24/7": 300, "fx": 1.1, "krx": 60_000}[kind] * 1.6**number
        move = size * (np.sqrt(common) * factor + np.sqrt(1 - common) * own)
        close = level * np.exp(np.cumsum(move + night))
        open_ = np.concatenate([[level], close[:-1]]) * np.exp(
            night + 0.1 * size * random.normal(size=bars)
        )
        reach = 0.5 * size * np.abs(random.normal(size=(2, bars)))
        volume = 2_000 * (1 + number) * shape * daily * np.exp(random.normal(0, 0.6, bars))
        if not open_all_day:
            volume *= np.where(place == 0, 6, np.where(place == length - 1, 4, 1))
        one = pd.DataFrame({"ts": grid.minutes, "open": open_, "close": close})
        one["high"] = np.maximum(open_, close) * (1 + reach[0])
        one["low"] = np.minimum(open_, close) * (1 - reach[1])
        one["volume"] = np.ceil(volume)
        one[PRICES] = one[PRICES].round(decimals)
        kept = (random.random(bars) < 0.5) | (place == 0) | (number < names - thin)
        result[f"N{number:02d}"] = one[kept].reset_index(drop=True)
    return Clean(kind, grid, result, decimals)


# --- faults ---------------------------------------------------------------------------------------

Source = dict[int, tuple[int, int]]
"""Name -> the name whose bars it gets, and of how many sessions before."""
Change = Callable[[pd.DataFrame, Clean], pd.DataFrame]
"""One symbol's rows of some days -> other rows."""


def late(bars: int, *, crop: bool = False) -> Change:
    """Rows so many bars late (early: negative); with `crop`, without those outside the sessions."""

    def change(rows: pd.DataFrame, market: Clean) -> pd.DataFrame:
        rows = rows.assign(ts=rows.ts + bars * market.step)
        return rows[market.grid.locate(rows.ts.to_numpy()) >= 0] if crop else rows

    return change


def times(factor: float, columns: Iterable[str] = PRICES) -> Change:
    """Columns times a factor, with all digits."""
    names = list(columns)
    return lambda rows, _: rows.assign(**{name: rows[name] * factor for name in names})


def lots(rows: pd.DataFrame, _: Clean) -> pd.DataFrame:
    """Volume in lots of a hundred."""
    return rows.assign(volume=np.floor(rows.volume / 100))


def middle(rows: pd.DataFrame, market: Clean) -> pd.DataFrame:
    """Each close is the middle of high and low."""
    return rows.assign(close=((rows.high + rows.low) / 2).round(market.decimals + 2))


def without(place: int) -> Change:
    """Rows without each session's first (0) or last (-1) bar."""

    def change(rows: pd.DataFrame, market: Clean) -> pd.DataFrame:
        at = market.grid.locate(rows.ts.to_numpy())
        edge = market.grid.first_bar[1:] - 1 if place else market.grid.first_bar[:-1]
        return rows[~np.isin(at, edge)]

    return change


def away(factor: float, bars: int) -> Change:
    """Prices away by a factor for so many bars in the middle of each day."""

    def change(rows: pd.DataFrame, market: Clean) -> pd.DataFrame:
        rows = rows.copy()
        at = market.grid.locate(rows.ts.to_numpy())
        place = at - market.grid.first_bar[market.grid.session[at]]
        rows.loc[(place >= 60) & (place < 60 + bars), PRICES] *= factor
        return rows

    return change


def hours(change: Change, first: int, stop: int) -> Change:
    """Change only the bars at these places of a session."""

    def only(rows: pd.DataFrame, market: Clean) -> pd.DataFrame:
        at = market.grid.locate(rows.ts.to_numpy())
        place = at - market.grid.first_bar[market.grid.session[at]]
        inside = (place >= first) & (place < stop)
        moved = change(rows[inside], market)
        rest = rows[~inside]
        # a file has one row a bar: the moved one stands in the other's place
        return pd.concat([rest[~rest.ts.isin(moved.ts)], moved])

    return only


def still(rows: pd.DataFrame, _: Clean) -> pd.DataFrame:
    """All prices are the first close; trades go on."""
    return rows.assign(**dict.fromkeys(PRICES, rows.close.iloc[0]))


@dataclass(frozen=True)
class PartialFault:
    """A change of some days of some names of one market."""

    kind: str
    apply: Callable[[Clean], Table]


def part(
    kind: str, change: Change, days: Iterable[int] = range(40), names: Iterable[int] = range(99)
) -> PartialFault:
    """A fault of these sessions and names."""
    chosen = list(days)
    who = {f"N{number:02d}" for number in names}

    def apply(market: Clean) -> Table:
        result = dict(market.table)
        for name in who & result.keys():
            one = result[name]
            session = market.grid.session[market.grid.locate(one.ts.to_numpy())]
            hit = np.isin(session, chosen)
            if hit.any():
                changed = change(one[hit], market)
                # where a moved day meets the next one, the later day's row stands
                rest = one[~hit]
                changed = changed[~changed.ts.isin(rest.ts)]
                result[name] = pd.concat([rest, changed]).sort_values("ts", ignore_index=True)
        return result

    return PartialFault(kind, apply)


def pasted(
    kind: str,
    days: Iterable[int],
    source: Source,
    *,
    volume: bool = True,
    places: slice = slice(None),
) -> PartialFault:
    """Copy prices and volume of another name and day to these days, or places of them."""
    columns = [*PRICES, "volume"] if volume else PRICES

    def apply(market: Clean) -> Table:
        result = {name: one.copy() for name, one in market.table.items()}
        first = market.grid.first_bar
        for day in days:
            for number, (other, ago) in source.items():
                begin = first[day - ago]
                length = min(first[day + 1] - first[day], first[day - ago + 1] - begin)
                theirs = market.table[f"N{other:02d}"][columns].iloc[begin : begin + length]
                rows = np.arange(first[day], first[day] + length)[places]
                result[f"N{number:02d}"].loc[rows, columns] = theirs.to_numpy()[places]
        return result

    return PartialFault(kind, apply)


def jump(kind: str, factor: float, lost: int = 0) -> PartialFault:
    """One name's prices times a factor from a day on, after so many lost days."""

    def apply(market: Clean) -> Table:
        one = market.table["N02"]
        session = market.grid.session[market.grid.locate(one.ts.to_numpy())]
        one = one[(session < 20 - lost) | (session >= 20)].copy()
        later = one.ts >= market.grid.begin[20]
        one.loc[later, PRICES] *= factor
        one[PRICES] = one[PRICES].round(max(market.decimals, 2))
        one.loc[later, "volume"] /= factor
        return market.table | {"N02": one.reset_index(drop=True)}

    return PartialFault(kind, apply)


ONE, FEW, HALF = (2,), (1, 4), range(4)
DAY, DAYS, WEEK, MONTH = (17,), (5, 12, 13, 21, 30, 34), range(15, 20), range(10, 30)
SWAPPED = {2: (3, 0), 3: (2, 0)}

FAULTS = {
    "a day of one name one bar early": part("us", late(-1, crop=True), DAY, ONE),
    "some days of one name one bar early": part("us", late(-1, crop=True), DAYS, ONE),
    "a week of two names one bar early": part("us", late(-1, crop=True), WEEK, FEW),
    "all days of one name one bar early": part("us", late(-1, crop=True), names=ONE),
    "all days of half of the names one bar early": part("us", late(-1, crop=True), names=HALF),
    "a day of all names one bar early": part("us", late(-1, crop=True), DAY),
    "some days of all names one bar early": part("us", late(-1, crop=True), DAYS),
    "a month of all names one bar early": part("us", late(-1, crop=True), MONTH),
    "a day of all names one bar early, whole": part("us", late(-1), DAY),
    "some days of all names one bar early, whole": part("us", late(-1), DAYS),
    "some days of one name one bar early, whole": part("us", late(-1), DAYS, ONE),
    "two hours of some days of one name one bar early": part(
        "us", hours(late(-1), 120, 240), DAYS, ONE
    ),
    "two hours of a month of one name one bar early": part(
        "us", hours(late(-1), 120, 240), MONTH, ONE
    ),
    "five bars early, some days of one name": part("us", late(-5, crop=True), DAYS, ONE),
    "a day of one name one bar late": part("us", late(1, crop=True), DAY, ONE),
    "some days of one name one bar late": part("us", late(1, crop=True), DAYS, ONE),
    "some days of all names one bar late": part("us", late(1, crop=True), DAYS),
    "some days of all names one bar late, whole": part("us", late(1), DAYS),
    "END labels in a month of all names": part("us", late(1), MONTH),
    "END labels in a month of one name": part("us", late(1), MONTH, ONE),
    "START labels in a month, read as END": part("us", late(-1), MONTH),
    "a day of one name 15 minutes late": part("us", late(15), DAY, ONE),
    "a day of all names 15 minutes late": part("us", late(15), DAY),
    "a day of all names 15 minutes late, cut": part("us", late(15, crop=True), DAY),
    "a day of one name 15 minutes late, cut": part("us", late(15, crop=True), DAY, ONE),
    "a day of one name an hour late": part("us", late(60), DAY, ONE),
    "a day of all names an hour late": part("us", late(60), DAY),
    "a day of all names an hour late, cut": part("us", late(60, crop=True), DAY),
    "daylight saving missed": part("us", late(60), range(15, 30)),
    "daylight saving missed, cut": part("us", late(60, crop=True), range(15, 30)),
    "one name over another for three days": pasted("us", range(9, 12), {2: (5, 0)}),
    "one name's prices over another for a day": pasted("us", DAY, {2: (5, 0)}, volume=False),
    "two names swapped for a week": pasted("us", WEEK, SWAPPED),
    "6 % up for 45 bars": part("us", away(1.06, 45), DAY, ONE),
    "6 % down for 45 bars": part("us", away(0.94, 45), DAY, ONE),
    "6 % up for 45 bars of some days": part("us", away(1.06, 45), DAYS, FEW),
    "12 % up for two hours": part("us", away(1.12, 120), DAY, ONE),
    "opening bar missing on all days": part("us", without(0)),
    "opening bar missing on some days": part("us", without(0), DAYS),
    "opening bar of one name missing on all days": part("us", without(0), names=ONE),
    "closing bar missing on all days": part("us", without(-1)),
    "closing bar missing on some days": part("us", without(-1), DAYS),
    "closing bar of one name missing on all days": part("us", without(-1), names=ONE),
    "close the middle of high and low": part("us", middle),
    "close the middle of high and low, one name": part("us", middle, names=ONE),
    "close the middle of high and low, a month": part("us", middle, MONTH),
    "a day repeated": pasted("us", DAY, {2: (2, 1)}),
    "a day repeated for all names": pasted("us", DAY, {name: (name, 1) for name in range(8)}),
    "a stale day": part("us", still, DAY, ONE),
    "prices of a week before": pasted("us", DAY, {2: (2, 5)}, volume=False),
    "volume in lots for a month": part("us", lots, MONTH, ONE),
    "volume in lots for a month, all names": part("us", lots, MONTH),
    "split of 2 to 1 that is not declared": jump("us", 0.5),
    "merger of 10 to 1 that is not declared": jump("us", 10.0),
    "split of 1231 to 1000 that is not declared": jump("us", 1000 / 1231),
    "merger of 190 to 1 that is not declared": jump("us", 190.0),
    "dividends adjusted in the first half, one name": part("us", times(0.9873), range(20), ONE),
    "dividends adjusted in the first half": part("us", times(0.9873), range(20)),
    "24/7: some days of one name one bar early": part("24/7", late(-1), DAYS, ONE),
    "24/7: a month of one name one bar early": part("24/7", late(-1), MONTH, ONE),
    "24/7: all days of one name one bar early": part("24/7", late(-1), names=ONE),
    "24/7: all days of one name one bar late": part("24/7", late(1), names=ONE),
    "24/7: a day of one name 15 minutes late": part("24/7", late(3), DAY, ONE),
    "24/7: a week of one name an hour late": part("24/7", late(12), WEEK, ONE),
    "24/7: a week of all names an hour late": part("24/7", late(12), WEEK),
    "24/7: ×10 over two lost days": jump("24/7", 10.0, lost=2),
    "24/7: ×0.5 over two lost days": jump("24/7", 0.5, lost=2),
    "24/7: 6 % up for 45 bars": part("24/7", away(1.06, 45), DAY, ONE),
    "24/7: two names swapped for a week": pasted("24/7", WEEK, SWAPPED),
    "24/7: close the middle of high and low": part("24/7", middle, names=ONE),
    "FX: a week of one name one bar early": part("fx", late(-1), WEEK, ONE),
    "FX: all days of one name one bar early": part("fx", late(-1), names=ONE),
    "FX: daylight saving missed": part("fx", late(12), range(16, 31)),
    "FX: a day of one name an hour late": part("fx", late(12), DAY, ONE),
    "FX: 6 % up for 45 bars": part("fx", away(1.06, 45), DAY, ONE),
    "FX: one name over another for three days": pasted(
        "fx", range(9, 12), {2: (5, 0)}, volume=False
    ),
    "KRX: some days of two names one bar early": part("krx", late(-1, crop=True), DAYS, FEW),
    "KRX: a month of all names one bar early": part("krx", late(-1, crop=True), MONTH),
    "KRX: a day of all names 15 minutes late": part("krx", late(15), DAY),
    "KRX: split of 5 to 1 that is not declared": jump("krx", 0.2),
    "KRX: closing bar missing on all days": part("krx", without(-1)),
    "45 bars of one name over another": pasted("us", DAY, {2: (5, 0)}, places=slice(60, 105)),
    "KRX: 45 bars of one name over another": pasted("krx", DAY, {2: (5, 0)}, places=slice(60, 105)),
    "alone: some days one bar early": part("alone", late(-1, crop=True), DAYS),
    "alone: some days one bar early, whole": part("alone", late(-1), DAYS),
    "alone: a day one bar early": part("alone", late(-1, crop=True), DAY),
    "alone: a week one bar early": part("alone", late(-1, crop=True), WEEK),
    "alone: a month one bar early": part("alone", late(-1, crop=True), MONTH),
    "alone: all days one bar early": part("alone", late(-1, crop=True)),
    "alone: two hours of some days one bar early": part("alone", hours(late(-1), 120, 240), DAYS),
    "alone: some days one bar late": part("alone", late(1, crop=True), DAYS),
    "alone: END labels in a month": part("alone", late(1), MONTH),
    "alone: a day 15 minutes late": part("alone", late(15), DAY),
    "alone: a day 15 minutes late, cut": part("alone", late(15, crop=True), DAY),
    "alone: a day 15 minutes early, cut": part("alone", late(-15, crop=True), DAY),
    "alone: a week an hour late, cut": part("alone", late(60, crop=True), WEEK),
    "alone: daylight saving missed, cut": part("alone", late(60, crop=True), range(15, 30)),
    "alone: 6 % up for 45 bars": part("alone", away(1.06, 45), DAY),
    "alone: 3 % up for 45 bars": part("alone", away(1.03, 45), DAY),
    "alone: opening bar missing on all days": part("alone", without(0)),
    "alone: close the middle of high and low": part("alone", middle),
    "alone: volume in lots for a month": part("alone", lots, MONTH),
    "apart: some days of one name one bar early": part("apart", late(-1, crop=True), DAYS, ONE),
    "apart: a week of one name one bar early": part("apart", late(-1, crop=True), WEEK, ONE),
    "apart: all days of one name one bar early": part("apart", late(-1, crop=True), names=ONE),
    "apart: a week of one name 15 minutes late, cut": part("apart", late(15, crop=True), WEEK, ONE),
}
"""Fault -> the change that makes it."""


def clean_markets() -> dict[str, Clean]:
    """One market of each kind, one of a single name, and one of names without a common factor."""
    alone, apart = make_clean("us", names=1), make_clean("us", common=0.0)
    return {kind: make_clean(kind) for kind in MARKETS} | {"alone": alone, "apart": apart}


# --- the answer -----------------------------------------------------------------------------------


def as_bars(table: Table) -> Bars:
    """All names as one set of bars."""
    return concat(
        [
            wrap_columns(
                name,
                one.ts.to_numpy(np.int64),
                {column: one[column].to_numpy(float) for column in COLUMNS},
                "made up",
            )
            for name, one in table.items()
        ]
    )


def answer(market: Clean, table: Table) -> str:
    """What a build does with the bars, read as it reads them: `refused: KIND`, `named: KIND` or
    `silent`."""
    feed = MemoryFeed(as_bars(table), {})
    length = market.grid.bar_minutes
    source = FilesSettings(timezone="UTC", bar_minutes=length)
    settings = DataSettings(source=source, calendar=market.grid.calendar, bar_minutes=length)
    try:
        reader = Reader(settings, feed, market.grid)
        for symbol in feed.symbols:
            reader.read(symbol)
        reader.evidence.judge()
        _, doubtful = reader.gate.judge(feed.symbols)
    except BarError as error:
        kinds = [word for word in re.findall(r"\w+", str(error)) if word in STOPPING]
        return f"refused: {kinds[0] if kinds else error}"
    return f"named: {doubtful[0].kind}" if doubtful else "silent"


def shown_future(market: Clean, table: Table) -> float:
    """The correlation of the changed bars' returns with the true returns of the bars after them."""
    seen = []
    for name, one in table.items():
        true = market.table[name]
        known = pd.Series(np.log(true.close.to_numpy())).diff().to_numpy()
        ahead = pd.Series(np.append(known[1:], np.nan), index=true.ts)
        own = pd.Series(np.log(one.close.to_numpy())).diff().to_numpy()
        same = np.isclose(
            own, pd.Series(known, index=true.ts).reindex(one.ts).to_numpy(), atol=1e-9
        )
        pair = np.column_stack([own, ahead.reindex(one.ts).to_numpy()])[~same]
        seen.append(pair[np.isfinite(pair).all(axis=1)])
    joined = np.concatenate(seen)
    return float(np.corrcoef(joined.T)[0, 1]) if len(joined) > 100 else 0.0
