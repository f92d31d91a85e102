"""Proposal of an exchange's calendar, and of the zone of times without one, from the times of bars.

Time is cut into slots: quarters of an hour, or days if the bars are daily. Each pair of a calendar
and a zone is a hypothesis on which slots contain rows. Within the sessions any share of the slots
may be filled, so that thinly traded symbols can be used too; outside of them nearly none may be.
The cost of a hypothesis is minus the logarithm of the likelihood of the rows. Hypotheses that cost
clearly more than the best are refuted by the data.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from fintrader.bars.bars import DAY_MINUTES, MINUTE_NS, Array, Bars
from fintrader.bars.calendar import (
    FX,
    NASDAQ_NIGHT,
    QUARTER_NS,
    Hours,
    find_exchange_timezone,
    session_date,
    session_edges,
    session_grid,
    since_midnight,
)
from fintrader.bars.sources.presets import split_words
from fintrader.errors import DataError
from fintrader.results.market_description import MOST_OUTSIDE

USUAL = split_words(
    "XNAS XTSE XLON XETR XTKS XKRX XHKG XSHG XBOM XASX XTAI BVMF XIST CMES"
    f" 24/7 {FX} 24/5 {NASDAQ_NIGHT}"
)
"""Calendars that are tried first, the more common ones in front. XBOM has the sessions of India's
NSE."""
_PAIR = r"(?:(?:USD|EUR|GBP|JPY|CHF|AUD|NZD|CAD|SEK|NOK|DKK|SGD|HKD|CNH|PLN|MXN|ZAR)[/_.-]?){2}"
"""Pattern of a pair of currencies, which trade on weekdays, also when CMES has a holiday."""
RARER = split_words(
    "XEUR XPAR XMIL XMAD XSWX XSTO XOSL XCSE XHEL XWBO XDUB XWAR XPRA XBUD XMOS XJSE XMEX XBUE"
    " XSGO XSES XBKK XIDX XKLS XPHS XNZE XKAR XCBF"
)
"""Calendars that are tried if the usual ones do not fit, or as alternatives with the same clock."""
ZONES = split_words(
    "UTC America/New_York Etc/GMT+5 America/Chicago America/Denver America/Los_Angeles"
    " America/Sao_Paulo Europe/London Europe/Berlin Europe/Athens Asia/Kolkata Asia/Shanghai"
    " Asia/Tokyo Australia/Sydney"
)
"""Zones that are tried for times without a zone. Athens is the clock of MetaTrader's servers."""
_UTC_ONLY = ("24/7", "24/5")
OPEN = (*_UTC_ONLY, FX, NASDAQ_NIGHT, "CMES")
"""Calendars that are open at nearly all hours, so that few rows can lie outside."""
_FILLED = (0.8, 0.99)
"""Least share of the slots of an `OPEN` calendar's sessions that must be filled: quarters of an
hour, and days of daily bars."""
_WEEKS = 0.98
"""Share of the filled slots above which another calendar must contain all rows."""
_MOSTLY = 0.7
"""Share of the sessions' slots above which a calendar may be sure."""
_REST = {"CMES": 60 * MINUTE_NS}
"""Calendar -> pause at the end of each session, nanoseconds, which exchange_calendars does not
know."""
_MOST_AT_REST = 0.2
"""Largest share of the slots of such a pause that may be filled."""
_CLEAR = {False: 20.0, True: 10.0}
"""Excess cost above which a hypothesis is refuted, for intraday (False) and daily (True) bars:
about the rows of some hours at the wrong time, or of two days."""
_RARE = 10.0
"""Extra cost of the hypothesis that times are the ends of bars, for bars of five minutes or
more."""
_MOST_AWAY = 0.3
"""Largest share of the volume that may lie before the open and after the close."""
_AROUND_THE_CLOCK = 0.6
"""Share of all slots above which a market counts as open around the clock."""
_LONG = 30 * MINUTE_NS
"""Least length of bars whose ends are sought."""
_MOST_A_DAY = 30
"""Largest number of such bars in a day, on average."""
_EXACT = 0.99
"""Least share of the rows of such bars that must be ends."""
_NEARLY_ALL = 0.9
"""Least share of such ends at which there must be a row."""
_ALIKE = 2.0
"""Costs that differ by no more than this count as equal; the hypothesis with the lower `rank` is
then chosen."""


@dataclass(frozen=True)
class Hypothesis:
    """A calendar and a zone for times without one, and the fit of both to the rows."""

    calendar: str
    zone: str
    rank: tuple[bool, ...]
    """Order of plausibility, the most plausible lowest; the last entry is True if times are the
    ends of bars."""
    outside: float
    """Share of the rows outside of the sessions and their extended hours."""
    away: float
    """Share of the volume outside of the sessions."""
    filled: float
    """Share of the sessions' slots that contain rows."""
    cost: float
    """Minus the logarithm of the likelihood of the rows, plus penalties."""


@dataclass(frozen=True)
class Proposal:
    """The hypothesis that fits best, and the alternatives that the data does not refute."""

    best: Hypothesis
    calendars: tuple[str, ...]
    """Other calendars that are not refuted, the best first."""
    zones: tuple[str, ...]
    """Other zones that are not refuted, with any calendar, the best first."""
    may_be_sure: bool
    """False where the proposal can never be certain: all volumes are equal, or the calendar is open
    at nearly all hours, and missing rows or the zone leave doubt."""
    refuted: Hypothesis | None = None
    """The best hypothesis of another set of calendars, which the proposal replaces."""


@dataclass(frozen=True, eq=False)
class _Slots:
    """Rows by slot: arrays `[Q]`, whose first entry is slot number `base` (counted from 1970)."""

    base: int
    rows: Array
    volume: Array
    is_filled: Array
    is_known: Array
    """Slots within the parts of the data that were read; of the others nothing is known."""
    width: int
    """Number of slots that one bar fills."""


def find_calendar(
    bars: Bars, zones: Sequence[str], step: int, spans: Sequence[tuple[int, int]]
) -> Proposal:
    """Propose a usual calendar, if its sessions contain nearly all rows and most of the volume.
    Otherwise, or if the calendar is open at nearly all hours and lacks rows, propose a rarer one
    that fits better, or 24/7 for bars around the clock.

    Parameters and errors are those of `propose`.
    """
    usual = propose(bars, _list_usual(bars), zones, step, spans)
    is_daily = step >= DAY_MINUTES - 60
    fits = usual.best.outside <= MOST_OUTSIDE and usual.best.away < _MOST_AWAY
    if fits and usual.best.calendar not in OPEN:
        return _compare_rarer(usual, bars, zones, step, spans)
    # CMES has so few holidays that others' days fit, too
    is_other = not is_daily or usual.best.calendar != "CMES"
    if fits and usual.best.filled > _FILLED[is_daily] and is_other:
        # a week of currency trading by a broker's clock looks like one of 24/5; a broker may also
        # change its clock, after which rows lie outside
        is_broker = len(zones) > 1 and (usual.best.calendar == "24/5" or usual.best.outside > 0)
        return replace(usual, may_be_sure=usual.may_be_sure and not is_broker)
    other = _propose_rarer(bars, zones, step, spans)
    # a week without a few days is rather one of 24/5 than another market's
    most = 0.0 if fits and usual.best.filled > _WEEKS else MOST_OUTSIDE
    if other.best.outside <= most and other.best.cost < usual.best.cost:
        return replace(other, refuted=usual.best)
    if fits:  # a calendar that is not among those tried may fit better
        week = propose(bars, ("24/5",), zones, step, spans).best
        refuted = week if usual.best.calendar == "24/7" else None
        return replace(usual, may_be_sure=False, refuted=refuted)
    always = propose(bars, ("24/7",), zones, step, spans)
    is_always = _trades_at_weekends(bars) if is_daily else always.best.filled > _AROUND_THE_CLOCK
    return replace(always, refuted=usual.best) if is_always else usual


def _list_usual(bars: Bars) -> list[str]:
    """List the usual calendars that the names of the bars do not rule out."""
    is_money = all(re.fullmatch(_PAIR, name, re.IGNORECASE) for name in bars.symbols)
    return [one for one in USUAL if not (is_money and one == "CMES")]


def _propose_rarer(
    bars: Bars, zones: Sequence[str], step: int, spans: Sequence[tuple[int, int]]
) -> Proposal:
    """Propose a rarer calendar; times without a zone may be in its own, too."""
    homes = map(find_exchange_timezone, RARER) if len(zones) > 1 else ()
    return propose(bars, RARER, [*zones, *homes], step, spans)


def _compare_rarer(
    usual: Proposal,
    bars: Bars,
    zones: Sequence[str],
    step: int,
    spans: Sequence[tuple[int, int]],
) -> Proposal:
    """Propose a rarer calendar that fits clearly better: if rows lie outside, one with a clock of
    its own. Otherwise add those with the same clock that the data does not refute either."""
    best = usual.best
    clear = best.cost - _CLEAR[step >= DAY_MINUTES - 60]
    if best.outside and len(zones) > 1:
        other = _propose_rarer(bars, zones, step, spans)
        if not other.best.outside and other.best.cost < clear:
            return replace(other, refuted=best)
    if usual.calendars:
        return usual
    near = (best.calendar, *list_near(best.calendar))
    rarer = propose(bars, near, (best.zone,), step, spans)
    if rarer.best.cost < clear:
        return replace(rarer, zones=usual.zones, refuted=best)
    others = [one for one in (rarer.best.calendar, *rarer.calendars) if one != best.calendar]
    return replace(usual, calendars=tuple(others))


def list_near(calendar: str) -> list[str]:
    """List the rarer calendars with the same clock."""
    home = _list_offsets(find_exchange_timezone(calendar))
    return [one for one in RARER if _list_offsets(find_exchange_timezone(one)) == home]


def _trades_at_weekends(bars: Bars) -> bool:
    """Report whether daily bars lie on weekends whose own and next week also have bars on Monday
    and Friday. Dates that are wrong by one day do not produce such weeks."""
    # whole weeks lie between the numbers of two symbols, so that a number shows symbol and weekday
    days = bars.ts // (DAY_MINUTES * MINUTE_NS) + bars.symbol * 7_000_000
    weekday = (days + 3) % 7  # 1970 began on a Thursday; 0 is Monday
    monday = days[weekday > 4] - weekday[weekday > 4]
    return bool(np.isin(np.add.outer([0, 4, 7, 11], monday), days).all(axis=0).mean() > 0.7)


def _list_needless(bars: Bars) -> list[str]:
    """List calendars that need no comparison with daily bars: FX and NASDAQ_NIGHT have the days of
    24/5 and XNAS, and Korea's exchange never trades on May 1 and December 31. exchange_calendars
    needs two seconds for Korea's holidays."""
    dates = pd.DatetimeIndex(np.unique(bars.ts).astype("datetime64[ns]"))
    is_shut = np.isin(100 * dates.month + dates.day, (501, 1231))
    if (dates == dates.normalize()).all() and is_shut.sum() > 1:
        return [FX, NASDAQ_NIGHT, "XKRX"]
    return [FX, NASDAQ_NIGHT]


def propose(
    bars: Bars,
    calendars: Sequence[str],
    zones: Sequence[str],
    step: int,
    spans: Sequence[tuple[int, int]],
) -> Proposal:
    """Find the calendar and zone that fit the bars best. The times of `bars` were read as if they
    were UTC.

    zones: to be tried for these times, a single one if the times contain a zone; step: length of a
    bar, minutes; spans: first and last time (nanoseconds) of each part of the data that was read,
    because nothing is known of the time between.

    Raises DataError when no calendar covers the years of the bars.
    """
    is_daily = step >= DAY_MINUTES - 60
    has_volume = bool(np.ptp(bars.volume) > 0)
    clocks: dict[tuple[float, ...], str] = {}
    for zone in zones:
        clocks.setdefault(_list_offsets(zone), zone)
    tables = [
        (zone, is_end, table)
        for is_end in _list_labels(bars, step)
        for zone, table in _place_in_slots(
            bars, list(clocks.values()), step, is_end, is_daily, np.array(spans)
        )
    ]
    first = min(table.base for _, _, table in tables)
    stop = max(table.base + len(table.rows) for _, _, table in tables)
    needless = _list_needless(bars) if is_daily and len(calendars) > 1 else []
    hypotheses = []
    for calendar in calendars:
        if calendar in needless:
            continue
        try:
            masks = _session_masks(calendar, first, stop, DAY_MINUTES if is_daily else step)
        except DataError:
            if len(calendars) == 1:
                raise
            continue  # the calendar does not reach back, or not ahead, to these years
        home = clocks.get(_list_offsets(find_exchange_timezone(calendar)))
        for zone, is_end, table in tables:
            name = find_exchange_timezone(calendar) if zone == home else zone
            rank = _rank_zone(calendar, zone, home, len(clocks))
            if rank is not None:
                span = slice(table.base - first, table.base - first + len(table.rows))
                sessions = [mask[span] for mask in masks]
                hypothesis = _judge(calendar, name, (*rank, is_end), table, sessions, has_volume)
                rare = 0.0 if not is_end else _RARE if step >= 5 else _ALIKE / 2
                hypotheses.append(replace(hypothesis, cost=hypothesis.cost + rare))
    if not hypotheses:
        raise DataError("no calendar covers the years of these bars; name one with --calendar")
    return _choose(hypotheses, is_daily, has_volume)


@dataclass(frozen=True)
class Ends:
    """A market in which all times are the ends of bars."""

    calendar: str
    zone: str
    minutes: int
    """Length of the bars."""
    share: float
    """Share of the rows at such ends, less the share of sessions without rows."""


def find_ends(bars: Bars, calendars: Sequence[str], zones: Sequence[str]) -> list[Ends]:
    """List the markets in which the times of long bars are ends, the best first: nearly each row
    lies whole bars after trading began, or where it pauses, and nearly each pause has a row. Bars
    stamped with their starts have rows where trading begins.

    A length of 75 minutes, of which the last bar of a session has 15, is seen in no other way. The
    times of `bars` were read as if they were UTC; zones: to be tried for them, of which a market's
    own and UTC count.
    """
    wall, rows = np.unique(bars.ts, return_counts=True)
    if len(wall) > _MOST_A_DAY * len(np.unique(wall // _DAY_NS)):
        return []
    found = []
    for zone in zones:
        ts = move(wall, zone)
        for calendar in calendars:
            home = find_exchange_timezone(calendar)
            is_home = _list_offsets(zone) == _list_offsets(home)
            if calendar in OPEN or not (is_home or zone == "UTC"):
                continue
            try:
                fit = _fit_ends(ts, rows, *_list_parts(calendar, ts))
            except DataError:
                continue
            if fit is not None:
                named = home if is_home else zone
                found.append((-fit[1], not is_home, Ends(calendar, named, *fit)))
    return [ends for *_, ends in sorted(found, key=lambda one: one[:2])]


def measure_starts(bars: Bars, calendar: str, zone: str, step: int) -> float:
    """Measure the share of the rows at which bars of `step` minutes begin in a market, at its open
    and after its breaks or at full hours, less the share of sessions without rows; 0 where fewer
    than half of the times at which such bars first begin have a row."""
    ts = move(bars.ts, zone)
    first, last = (session_date(calendar, int(at)) for at in (ts.min(), ts.max()))
    shares = [0.0]
    every: tuple[Hours, ...] = ("regular", "clock")
    for hours in every:
        grid = session_grid(calendar, first, last, step, hours)
        is_begun = np.isin(grid.begins if hours == "regular" else grid.begin, ts)
        seen = np.unique(grid.session[np.isin(grid.minutes, ts)])
        if is_begun.sum() >= 0.5 * len(seen):
            shares.append(np.isin(ts, grid.minutes).mean() - 1 + len(seen) / grid.num_sessions)
    return max(shares)


def _list_parts(calendar: str, ts: Array) -> tuple[Array, Array]:
    """Return the times `[P]` at which trading begins, and those at which it ends or pauses, around
    sorted times `ts` `[U]`. Raises DataError where the calendar does not cover them."""
    days = [dt.date(1970, 1, 1) + dt.timedelta(int(at) // _DAY_NS) for at in ts[[0, -1]]]
    _, (_, begin, pause, resume, end, _) = session_edges(calendar, days[0] - _DAY, days[1] + _DAY)
    has_break = resume > pause
    begins = np.sort(np.concatenate([begin, resume[has_break]]))
    return begins, np.sort(np.concatenate([pause, end[has_break]]))


def _fit_ends(ts: Array, rows: Array, begins: Array, stops: Array) -> tuple[int, float] | None:
    """Return the length of the bars in minutes and the share of `Ends`; None where times `ts` `[U]`
    of `rows` `[U]` rows each are not the ends of bars in the parts of sessions from `begins` to
    `stops` `[P]`."""
    at = np.searchsorted(stops, ts)
    if at[-1] == len(stops):
        return None
    offset = ts - begins[at]
    is_last = ts == stops[at]
    seen, first = np.unique(at, return_index=True)
    leads = offset[first[~is_last[first]]]
    length = stops - begins if not len(leads) else leads
    lengths, counts = np.unique(length, return_counts=True)
    usual = int(lengths[counts.argmax()] if len(leads) else lengths[-1])
    fits = (offset > 0) & (is_last | (offset % max(usual, 1) == 0))
    share = float(rows[fits].sum() / rows.sum())
    if usual < _LONG or share < _EXACT or is_last.sum() < max(5, _NEARLY_ALL * len(seen)):
        return None
    # bars on full hours begin with a shorter one: many of the ends at its multiples are not there
    if len(ts) < _NEARLY_ALL * np.ceil((stops - begins)[seen] / usual).sum():
        return None
    return usual // MINUTE_NS, share - 1 + len(seen) / int(seen[-1] - seen[0] + 1)


def _list_labels(bars: Bars, step: int) -> tuple[bool, ...]:
    """List the possible meanings of the times: False for starts of bars, True for ends.

    Daily bars are always stamped at the start. If nearly all days begin one bar after a full
    quarter of an hour and end at a full one, the times must be ends.
    """
    if step >= DAY_MINUTES - 60:
        return (False,)
    ts = np.unique(bars.ts) // MINUTE_NS
    night = np.flatnonzero(np.diff(ts) > 120)
    edges = np.stack([ts[night + 1] - step, ts[night]]) % 15
    return (True,) if step < 15 and night.size and (edges == 0).mean() > 0.9 else (False, True)


def _rank_zone(
    calendar: str, zone: str, home: str | None, num_zones: int
) -> tuple[bool, ...] | None:
    """Rank a zone for a calendar's times, the most plausible lowest; None for a zone that the data
    could not tell from another."""
    if num_zones == 1:
        return (False, False)
    if calendar in _UTC_ONLY and zone != "UTC":
        return None
    if zone == "America/Sao_Paulo" != home:
        return None  # only Brazilian files use it, and it is one hour from New York
    usual = "UTC" if calendar == FX else home
    return (zone not in (home, "UTC"), zone != usual)


def _choose(hypotheses: list[Hypothesis], is_daily: bool, has_volume: bool) -> Proposal:
    least = min(one.cost for one in hypotheses)
    # if any hypothesis that is not refuted has no rows outside its sessions, choose among those
    whole = [one for one in hypotheses if one.cost < least + _CLEAR[is_daily] and not one.outside]
    least = min(one.cost for one in whole or hypotheses)
    best = min(
        (one for one in whole or hypotheses if one.cost <= least + _ALIKE), key=lambda one: one.rank
    )
    likely = sorted(
        (one for one in hypotheses if one.cost < best.cost + _CLEAR[is_daily]),
        key=lambda one: one.cost,
    )
    others = dict.fromkeys(one.calendar for one in likely if one.calendar != best.calendar)
    zones = dict.fromkeys(
        one.zone for one in likely if _list_offsets(one.zone) != _list_offsets(best.zone)
    )
    return Proposal(best, tuple(others), tuple(zones), has_volume and best.filled > _MOSTLY)


def _judge(
    calendar: str,
    zone: str,
    rank: tuple[bool, ...],
    slots: _Slots,
    sessions: Sequence[Array],
    has_volume: bool,
) -> Hypothesis:
    inside, starts, allowed = sessions
    loud = allowed if calendar in _REST else starts
    away = float(slots.volume[~loud].sum() / slots.volume.sum()) if has_volume else 0.0
    # the last bar of a session may be shorter: outside of sessions only a bar's first slot counts
    begins = slots.rows > 0
    known = slots.is_known
    filled = slots.is_filled[inside & known]
    cost = away * np.count_nonzero(slots.is_filled)
    cost += _negative_log_likelihood(filled.sum() / slots.width, len(filled) / slots.width, 1.0)
    rest = (_MOST_AT_REST, 1) if calendar in _REST else (1.0, slots.width)
    for mask, (most, width) in ((allowed & ~starts, rest), (~allowed, (MOST_OUTSIDE, 1))):
        cost += _negative_log_likelihood(
            begins[mask & known].sum(), np.sum(mask & known) / width, most
        )
    outside = float(slots.rows[~allowed].sum() / slots.rows.sum())
    held = float(filled.sum() / max(len(filled), 1))
    return Hypothesis(calendar, zone, rank, outside, away, held, cost)


def _negative_log_likelihood(k: float, n: float, most: float) -> float:
    """-log L = -k log p - (n - k) log(1 - p): minus the log likelihood of `k` bars on `n` places,
    with the best probability p = k / n, limited to `most`."""
    p = min(k / max(n, k, 1), most)
    return float(-k * np.log(p or 1.0) - max(n - k, 0.0) * np.log1p(-p if p < 1 else 0.0))


def _place_in_slots(
    bars: Bars, zones: Sequence[str], step: int, is_end: bool, is_daily: bool, spans: Array
) -> Iterator[tuple[str, _Slots]]:
    """Yield each zone with the rows by slot, if their times are read in that zone and as starts
    (ends if `is_end`) of bars."""
    late = is_end * step * MINUTE_NS
    quarters, quarter_of = np.unique((bars.ts - late) // QUARTER_NS, return_inverse=True)
    rows = np.bincount(quarter_of)
    volume = np.bincount(quarter_of, bars.volume)
    slot_ns = QUARTER_NS * (96 if is_daily else 1)
    width = 1 if is_daily else max(1, step // 15)
    edge = 0 if is_daily else 1  # empty slots added on both sides of each part
    for zone in zones:
        slot = move(quarters * QUARTER_NS, zone) // slot_ns
        base = int(slot.min()) - edge
        at = slot - base
        is_filled, is_known = np.zeros((2, int(at.max()) + width + edge), dtype=bool)
        for later in range(width):
            is_filled[at + later] = True
        parts = move((spans - late).ravel(), zone).reshape(-1, 2) // slot_ns - base
        for first, last in parts:
            is_known[max(0, first - edge) : last + width + edge] = True
        counts = [np.bincount(at, one, len(is_filled)) for one in (rows, volume)]
        yield zone, _Slots(base, counts[0], counts[1], is_filled, is_known, width)


def _session_masks(calendar: str, first: int, stop: int, step: int) -> tuple[Array, Array, Array]:
    """Return three masks `[Q]` of the slots `first` to `stop` - 1: slots of the sessions; slots in
    which the sessions' bars of `step` minutes may begin; slots that may contain rows, extended
    hours and lunch breaks included."""
    is_daily = step >= DAY_MINUTES
    unit = 96 if is_daily else 1
    days = [dt.date(1970, 1, 1) + dt.timedelta(slot * unit // 96) for slot in (first, stop)]
    dates, spans = session_edges(calendar, days[0] - _DAY, days[1] + _DAY)
    if is_daily:
        number = dates.astype(np.int64)
        mask = np.isin(np.arange(first, stop), number)
        return mask, mask, mask
    before, begin, pause, resume, end, after = spans
    last = end - _REST.get(calendar, 0)
    inside = _mask_slots([(begin, np.minimum(pause, last)), (resume, last)], first, stop)
    # a bar on the full hour may begin before the open, unless sessions last nearly a day
    clock = np.concatenate([begin[end - begin < 20 * 60 * MINUTE_NS], resume[resume > pause]])
    clock = clock - since_midnight(clock, find_exchange_timezone(calendar)) % (step * MINUTE_NS)
    starts = inside | _mask_slots([(clock, clock + QUARTER_NS)], first, stop)
    allowed = starts | _mask_slots([(before, pause), (resume, after)], first, stop)
    return inside, starts, allowed


_DAY = dt.timedelta(days=1)
_DAY_NS = DAY_MINUTES * MINUTE_NS


def _mask_slots(spans: Sequence[tuple[Array, Array]], first: int, stop: int) -> Array:
    steps = np.zeros(stop - first + 1, dtype=np.int64)
    for begin, end in spans:
        begin, end = (
            np.clip(at - first, 0, stop - first)
            for at in (begin // QUARTER_NS, -(-end // QUARTER_NS))
        )
        np.add.at(steps, begin, 1)
        np.add.at(steps, np.maximum(begin, end), -1)
    return np.asarray(np.cumsum(steps[:-1]) > 0)


@lru_cache
def _list_offsets(zone: str) -> tuple[float, ...]:
    """Return a zone's offsets from UTC in winter and in summer, seconds; zones with equal clocks
    have equal ones."""
    days = pd.DatetimeIndex(["2024-01-15", "2024-07-15"])
    return tuple(
        (days.tz_localize(zone).tz_convert("UTC").tz_localize(None) - days).total_seconds()
    )


def move(ts: Array, zone: str) -> Array:
    """Return `[R]` int64: times `ts` that were read as UTC, read as local times of a zone instead.
    Local times that do not exist, or exist twice, stay unchanged."""
    wall = pd.DatetimeIndex(ts.astype("datetime64[ns]"))
    placed = wall.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
    utc = placed.tz_convert("UTC").tz_localize(None)
    moved = utc.to_numpy().astype("datetime64[ns]").astype(np.int64)
    return np.where(np.asarray(placed.isna()), ts, moved)
