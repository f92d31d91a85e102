"""Faults that show only across days or symbols: nights after which prices or volumes have another
scale, and days with the bars of another symbol.

An overnight move is measured in excess of the market's, and compared with the symbol's usual moves.
If news moves a price, volume rises; if a wrong factor moves it, volume stays the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fintrader.bars.bars import Array
from fintrader.bars.checks.days import BLOCK_PLACES, SCALE_JUMP, Days
from fintrader.bars.checks.kinds import SURE
from fintrader.bars.corporate_actions import Events
from fintrader.results.market_description import Fault

_SPLITS: tuple[float, ...] = (1.25, 1.5, 2, 2.5, *range(3, 9), 10, 12, 15, 20, 25, 30, 40, 50)
"""Usual ratios of splits, new shares for one old share."""
_BEYOND_NEWS = float(np.log(19))
"""Size of a log return overnight beyond which no news explains it, however many shares trade."""
_AROUND = 20
"""Number of days before and after a day from which its usual move and volume are taken."""
_FEWEST = 5
"""Fewest symbols from which the market's move is taken, and fewest days for a symbol's usual
move."""
_WEEK = 5
"""Sessions within which no company pays the same dividend twice."""


def compare_days(
    days: Sequence[Days], sessions: int, declared: Mapping[str, Events]
) -> list[Fault]:
    """Find faults that show only across days or symbols. sessions: number of the grid's sessions;
    declared: symbol -> its declared splits and dividends."""
    nights = [_measure_nights(summary, declared[summary.symbol]) for summary in days]
    moves = np.full((len(days), sessions), np.nan, dtype=np.float32)
    for row, (summary, night) in enumerate(zip(days, nights, strict=True)):
        moves[row, summary.session] = np.where(summary.gaps == 1, night, np.nan)
    market = np.zeros(sessions)
    common = np.isfinite(moves).sum(axis=0) >= _FEWEST
    market[common] = np.nanmedian(moves[:, common], axis=0)
    level = np.cumsum(market)
    faults = [*_find_foreign(days), *_find_swapped(days, moves)]
    explained = {(fault.symbol, fault.day) for fault in faults}
    for row, summary in enumerate(days):
        nights[row][1:] -= np.diff(level[summary.session])
        night_faults = _find_night_faults(summary, nights[row], declared[summary.symbol])
        faults += [fault for fault in night_faults if (fault.symbol, fault.day) not in explained]
        faults += _find_volume_scales(summary)
    return faults + list(_find_paid_twice(days, nights, declared))


def _measure_nights(days: Days, declared: Events) -> Array:
    """Return `[D]`: overnight log return to each day's open, with declared splits and dividends
    accounted for; NaN on the first day."""
    worth = days.open[1:].copy()
    for session, (split, dividend) in declared.items():
        happened = (days.session[:-1] < session) & (session <= days.session[1:])
        worth[happened] *= split
        worth[happened] += dividend
    return np.concatenate([[np.nan], np.log(worth / days.close[:-1])])


def _find_swapped(days: Sequence[Days], moves: Array) -> Iterator[Fault]:
    """Find nights after which each of two symbols continues from the other's close.

    moves: `[N, S]` overnight log returns.
    """
    far = np.abs(moves) > 0.15
    for session in np.flatnonzero(far.sum(axis=0) >= 2).tolist():
        for pair in itertools.combinations(np.flatnonzero(far[:, session]).tolist(), 2):
            first, second = (days[row] for row in pair)
            first_day, second_day = (
                int(np.searchsorted(summary.session, session)) for summary in (first, second)
            )
            crossed = (
                np.log(first.open[first_day] / second.close[second_day - 1]),
                np.log(second.open[second_day] / first.close[first_day - 1]),
            )
            if np.abs(crossed).max() < 0.15 * np.abs(moves[list(pair), session]).min():
                yield first.report_fault("foreign_day", first_day, f"goes on from {second.symbol}")
                yield second.report_fault("foreign_day", second_day, f"goes on from {first.symbol}")


def _find_paid_twice(
    days: Sequence[Days], nights: Sequence[Array], declared: Mapping[str, Events]
) -> Iterator[Fault]:
    """Find dividends that prices do not fall by, and dividends that are declared twice.

    Let e be an overnight return in excess of the market's, with the dividend added back, and s its
    usual size. If prices fall by the dividend, e is noise; if they are adjusted for it, e is noise
    plus the yield y. So z = sum(y e / s^2) / sqrt(sum(y^2 / s^2)) over all dividends is standard
    normal in right data. A dividend with a yield of many s is tested alone.
    """
    terms = []
    for summary, night in zip(days, nights, strict=True):
        usual = 1.4826 * float(np.nanmedian(np.abs(night))) if len(night) > 5 else 0.0
        before = (-_WEEK, 0.0)
        for session, (_, dividend) in declared[summary.symbol].items():
            day = int(np.searchsorted(summary.session, session))
            inside = 0 < day < len(night) and summary.session[day] == session
            if dividend == 0 or not inside:
                continue
            if session - before[0] < _WEEK and abs(dividend - before[1]) < 0.01 * dividend:
                again = f"{dividend:g} USD again after {session - before[0]} sessions"
                yield summary.report_fault("paid_twice", day, again, 1)
            before = session, dividend
            if usual > 0 and summary.gaps[day] == 1:
                paid = dividend / float(summary.close[day - 1]) / usual
                left = night[day] / usual
                if paid > SURE and paid / 2 < left < 2 * paid:
                    yield summary.report_fault(
                        "paid_twice", day, f"{dividend:g} USD, and no fall", 1
                    )
                else:
                    terms.append((paid * np.clip(left, -4, 4), paid**2, summary.dates[day]))
    score = sum(term[0] for term in terms) / np.sqrt(sum(term[1] for term in terms) or 1.0)
    if score > SURE:
        first = str(min(term[2] for term in terms))
        yield Fault("paid_twice", "", first, len(terms), f"of {len(terms)} dividends together")


def _find_night_faults(days: Days, night: Array, declared: Events) -> Iterator[Fault]:
    """Find excursions of one day, splits, and moves that persist without unusual volume."""
    size = np.abs(np.nan_to_num(night))
    steps = np.abs(np.diff(np.log(days.close)))
    whole_days = 1.4826 * float(np.median(steps)) if len(steps) else 0.0
    returned = np.zeros(len(night), dtype=bool)
    # a market that never closes hardly moves overnight, so compare with its moves by day as well
    least = max(0.03, 2 * whole_days if len(steps) >= _FEWEST else 0.0)
    for day in np.flatnonzero(size > least).tolist():
        around = slice(max(0, day - _AROUND), day + _AROUND + 1)
        others = size[around][np.isfinite(night[around]) & (days.gaps[around] == 1)]
        usual = 1.4826 * float(np.median(others)) if len(others) >= 5 else 0.01
        if days.gaps[day] > 1:  # days lie in between
            usual = max(usual, whole_days * float(np.sqrt(days.gaps[day])))
        move = float(night[day])
        if size[day] < 6 * usual or returned[day]:
            continue
        activity = _compare_activity(days, day)
        back = float(night[day + 1]) if day + 1 < len(night) else np.nan
        if abs(move + back) < 0.35 * abs(move):
            returned[day + 1] = True
            is_exact = abs(move + back) < 0.15 * abs(move)
            if activity < 2 or (abs(move) > 0.2 and is_exact):
                yield _name_excursion(days, day, move, declared, is_exact)
            continue
        within = float(np.log(days.close[day] / days.open[day]))
        if abs(move + within) < 0.5 * abs(move):  # only the open was off, or the day reversed it
            continue
        split = _name_split(days, day, move, _split_at(days, day, declared))
        if split and (activity < 3 or abs(move) > _BEYOND_NEWS):
            yield split
        elif 0.08 < abs(move) < np.log(SCALE_JUMP) and size[day] > 8 * usual and activity < 1.8:
            yield days.report_fault("quiet_jump", day, f"{np.expm1(move):+.1%}", 1)


def _name_excursion(days: Days, day: int, move: float, declared: Events, is_exact: bool) -> Fault:
    """Return the fault of a day whose prices differ from the days around it: `split` if a split was
    declared for the wrong day, else `excursion_day` or `quiet_jump`."""
    known, after = (_split_at(days, number, declared) for number in (day, day + 1))
    if known == after:
        if _is_beyond_market(days, day, move, is_exact):
            return days.report_fault("excursion_day", day, f"{np.expm1(move):+.1%}")
        return days.report_fault("quiet_jump", day, f"{np.expm1(move):+.1%}, back the next night")
    late = int(known != 1)
    return days.report_fault("split", day + late, f"declared for {days.dates[day + 1 - late]}", 1)


def _is_beyond_market(days: Days, day: int, move: float, is_exact: bool) -> bool:
    """Report whether a move is too large for a single day of a market. In turmoil, the ranges of
    the days are as wide as the jumps between them."""
    reach = np.log(days.high / days.low)
    usual = float(np.median(reach[max(0, day - _AROUND) : day + _AROUND + 1]))
    if days.length > 0:
        return abs(move) > usual
    near = float(reach[max(0, day - 1) : day + 2].max())
    return is_exact and abs(move) > max(0.2, 3 * usual, 2 * near)


def _name_split(days: Days, day: int, move: float, known: float) -> Fault | None:
    """Return the fault of an overnight move that looks like a split beyond the `known` one (1 for
    none); None if it does not."""
    split = _match_split(move)
    part = abs(float(np.log(known))) / 2
    if not split and part and abs(move) > min(part, 0.2):
        split = float(np.exp(-move))
    if not split:
        return None
    seen = split * known
    shown = f"{seen:.3g} to 1" if abs(np.log(seen)) > min(part or 0.2, 0.2) else "no split"
    kind = "split" if max(split, 1 / split, known, 1 / known) >= 2 else "small_split"
    known_as = "none" if known == 1 else f"{known:g} to 1"
    return days.report_fault(kind, day, f"{shown}, and {known_as} is declared", 1)


def _split_at(days: Days, day: int, declared: Events) -> float:
    """Return the split ratio declared for a day, given by its number; 1 without a split."""
    return declared.get(int(days.session[day]), (1.0, 0.0))[0] if day < len(days.bars) else 1.0


def _compare_activity(days: Days, day: int) -> float:
    """Return a day's volume over the usual one of the days around it, in shares or in money,
    whichever ratio is smaller."""
    around = np.r_[max(0, day - _AROUND) : day, day + 1 : min(len(days.session), day + _AROUND + 1)]
    if len(around) == 0:
        return np.inf
    usual = [max(float(np.median(values[around])), 1e-9) for values in (days.volume, days.turnover)]
    return min(float(days.volume[day]) / usual[0], float(days.turnover[day]) / usual[1])


def _match_split(move: float) -> float:
    """Return the ratio of the usual split that explains an overnight log return, 0 without one."""
    for known in _SPLITS:
        # five shares are never merged into four
        for target in (known, 1 / known) if known > 1.25 else (known,):
            if abs(move + np.log(target)) < (0.05 if known > 1.25 else 0.02):
                return target
    return 0.0


def _find_volume_scales(days: Days) -> Iterator[Fault]:
    """Find days from which on volume is more than 30 times larger or smaller than before, both in
    shares and in money. The fault is `volume_scale` if another unit explains it, else
    `volume_jump`."""
    levels = [
        np.log(np.where(values > 0, values, np.nan)) for values in (days.volume, days.turnover)
    ]
    step = np.abs(np.diff(levels[0], prepend=levels[0][:1]))
    for day in np.flatnonzero(np.nan_to_num(step) > np.log(8)).tolist():
        changes = []
        for level in levels:
            before = level[max(0, day - 10) : day]
            after = level[day : day + 10]
            if np.isfinite(before).sum() >= 2 and np.isfinite(after).sum() >= 2:
                changes.append(float(np.nanmedian(after) - np.nanmedian(before)))
        change = min(changes, key=abs, default=0.0)
        if abs(change) > np.log(30):
            factor = np.exp(abs(change))
            detail = f"{factor:,.0f} times as much" if change > 0 else f"one {factor:,.0f}th"
            kind = "volume_scale" if _is_new_unit(days, day) else "volume_jump"
            yield days.report_fault(kind, day, detail, days.bars[day:].sum())


def _is_new_unit(days: Days, day: int) -> bool:
    """Report whether a change of unit explains a jump in volume: the volumes of the ten days before
    and after differ by about 100, 1000 or another power of ten, without overlap, trading did not
    pause, and prices move about as much as before."""
    before = slice(max(0, day - 10), day)
    after = slice(day, day + 10)
    if days.gaps[day] > 3 or (days.length == 0 and day < 10):
        return False
    sizes = [np.sort(days.volume[part][days.volume[part] > 0]) for part in (before, after)]
    reach = np.log(days.high / days.low)
    moved = [float(np.median(reach[part])) for part in (before, after)]
    low, high = sorted(sizes, key=np.median)
    powers = np.log10(np.median(high) / np.median(low))
    if powers < 1.5 or abs(powers - round(powers)) > 0.2:
        return False
    is_apart = (high[0] / low[-1]) ** 2 > np.median(high) / np.median(low)
    is_apart &= high[0] > low[-1]
    is_steady = all(size[-2] < 6 * size[1] for size in sizes)
    return bool(is_apart and is_steady and max(moved) <= 3 * min(moved))


def _find_foreign(days: Sequence[Days]) -> Iterator[Fault]:
    """Find days on which a symbol has the prices of another one, if the two differ on most of their
    common days."""
    import pandas as pd  # imported here: settings load this module, and not pandas

    if not days:
        return
    columns = {
        "session": np.concatenate([summary.session for summary in days]),
        "content": np.concatenate([summary.content for summary in days]),
        "owner": np.repeat(np.arange(len(days)), [len(summary.session) for summary in days]),
    }
    table = pd.DataFrame(columns).query("content != 0")
    twice = table[table.duplicated(["session", "content"], keep=False)]
    pairs: dict[tuple[int, int], set[int]] = {}
    for _, same in twice.groupby(["session", "content"]):
        for pair in itertools.pairwise(same.owner):
            pairs.setdefault(pair, set()).add(int(same.session.iloc[0]))
    for pair, session in _find_pasted(days):
        pairs.setdefault(pair, set()).add(session)
    for (first, second), sessions in pairs.items():
        common = len(np.intersect1d(days[first].session, days[second].session))
        if 2 * len(sessions) < common:  # else one company under its old and its new ticker
            for number in sorted(sessions):
                stranger, donor = _order_by_fit(days[first], days[second], number)
                day = int(np.searchsorted(stranger.session, number))
                yield stranger.report_fault("foreign_day", day, f"same as {donor.symbol}")


def _find_pasted(days: Sequence[Days]) -> Iterator[tuple[tuple[int, int], int]]:
    """Find pairs of symbols with a block of equal closes, and the session of the block."""
    for length in {summary.length for summary in days if summary.length > 0}:
        rows = np.array([row for row, summary in enumerate(days) if summary.length == length])
        table = np.stack([days[row].blocks for row in rows])
        order = np.argsort(table, axis=0, kind="stable")
        ordered = np.take_along_axis(table, order, axis=0)
        alike = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)
        for rank, block in np.argwhere(alike).tolist():
            first, second = rows[order[rank : rank + 2, block]].tolist()
            day = np.searchsorted(days[first].place, BLOCK_PLACES * block, side="right") - 1
            yield (first, second), int(days[first].session[day])


def _order_by_fit(first: Days, second: Days, number: int) -> tuple[Days, Days]:
    """Order two symbols with equal bars in a session: first the one whose days before and after fit
    them less, which is the one with the other's bars."""

    def distance(days: Days) -> float:
        day = int(np.searchsorted(days.session, number))
        near: Iterable[int] = (day - 1, day + 1)
        moves = [
            abs(np.log(days.open[day] / days.close[o])) for o in near if 0 <= o < len(days.session)
        ]
        return max(moves, default=0.0)

    return (first, second) if distance(first) > distance(second) else (second, first)
