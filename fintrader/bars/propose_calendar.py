"""Proposal of an exchange's calendar, and of the zone of naive times, from the times of bars.

Each calendar in each zone is a hypothesis on which slots of time hold rows: quarters of an hour, or
days where the bars are daily. Inside of the sessions any share of the slots may be filled, so that
thin symbols count as well; outside next to none. The cost of a hypothesis is how much less likely
than certain the rows are by it (minus the logarithm of their likelihood); the data refutes those
with a clearly higher cost than the best.
"""

from __future__ import annotations

import datetime as dt
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
    session_edges,
    since_midnight,
    timezone_of,
)
from fintrader.bars.sources.presets import split_words
from fintrader.errors import DataError
from fintrader.results.market_description import MOST_OUTSIDE

USUAL = split_words(
    "XNAS XTSE XLON XETR XTKS XKRX XHKG XSHG XBOM XASX XTAI BVMF XIST CMES"
    f" 24/7 {FX} 24/5 {NASDAQ_NIGHT}"
)
"""Calendars that are proposed, the likelier first. XBOM's sessions are those of India's NSE."""
RARER = split_words(
    "XEUR XPAR XMIL XMAD XSWX XSTO XOSL XCSE XHEL XWBO XDUB XWAR XPRA XBUD XMOS XJSE XMEX XBUE"
    " XSGO XSES XBKK XIDX XKLS XPHS XNZE XKAR XCBF"
)
"""Calendars that are tried where many rows lie outside of the usual ones."""
ZONES = split_words(
    "UTC America/New_York Etc/GMT+5 America/Chicago America/Denver America/Los_Angeles"
    " America/Sao_Paulo Europe/London Europe/Berlin Europe/Athens Asia/Kolkata Asia/Shanghai"
    " Asia/Tokyo Australia/Sydney"
)
"""Zones of naive times. Athens is the clock of MetaTrader's servers."""
_UTC_ONLY = ("24/7", "24/5")
OPEN = (*_UTC_ONLY, FX, NASDAQ_NIGHT, "CMES")
"""Calendars that are open at nearly all hours, so that few rows can lie outside."""
_FILLED = (0.8, 0.98)
"""They hold rows at so much of that time, or on so many days."""
_REST = {"CMES": 60 * MINUTE_NS}
"""A pause at the end of each session, which exchange_calendars does not know."""
_MOST_AT_REST = 0.2
_CLEAR = {False: 20.0, True: 10.0}
"""A refuted hypothesis costs so much more: the rows of some hours at the wrong time, or two days of
daily bars."""
_RARE = 10.0
"""Cost of times that are the ends of bars of five minutes or more."""
_MOST_AWAY = 0.3
"""Largest share of the volume before the open and after the close."""
_AROUND_THE_CLOCK = 0.6
"""Share of all hours of all days that markets of 23 hours and five days fill, and no others."""
_ALIKE = 2.0
"""Costs that differ by less are alike, and the likelier hypothesis counts."""


@dataclass(frozen=True)
class Hypothesis:
    """A calendar and a zone of naive times, and how they fit the rows."""

    calendar: str
    zone: str
    rank: tuple[bool, ...]
    """The likelier one is lower; the last says that times are the ends of bars."""
    outside: float
    """Share of the rows outside of the sessions and their extended hours."""
    away: float
    """Share of the volume outside of the sessions."""
    filled: float
    """Share of the sessions' slots with rows."""
    cost: float


@dataclass(frozen=True)
class Proposal:
    """The hypothesis that fits best, and what the data does not refute."""

    best: Hypothesis
    calendars: tuple[str, ...]
    """Other calendars, the best first."""
    zones: tuple[str, ...]
    """Other zones."""
    may_be_sure: bool
    """Volume carries information, and the calendar's hours and days hold rows; else nothing is
    certain."""
    refuted: Hypothesis | None = None
    """The usual calendar that fits best, where another one is proposed."""


@dataclass(frozen=True, eq=False)
class _Slots:
    """Rows by slot, `[Q]` from slot number `base` on."""

    base: int
    rows: Array
    volume: Array
    is_filled: Array
    is_known: Array
    """Slots of which rows were read, if there are any."""
    width: int
    """Slots that a bar fills."""


def find_calendar(
    bars: Bars, zones: Sequence[str], step: int, spans: Sequence[tuple[int, int]]
) -> Proposal:
    """Propose one of the usual calendars. Where many rows or much volume lie outside of it, or it
    is always open and lacks rows, propose a rarer one that fits better, or 24/7 for bars around the
    clock. See `propose`."""
    usual = propose(bars, USUAL, zones, step, spans)
    is_daily = step >= DAY_MINUTES - 60
    fits = usual.best.outside <= MOST_OUTSIDE and usual.best.away < _MOST_AWAY
    if fits and usual.best.calendar not in OPEN:
        return usual if usual.calendars else _compare_rarer(usual, bars, step, spans)
    # CMES has so few holidays that others' days fit, too
    is_other = not is_daily or usual.best.calendar != "CMES"
    if fits and usual.best.filled > _FILLED[is_daily] and is_other:
        # a currency's week by the clock of a broker looks like one of 24/5
        is_broker = usual.best.calendar == "24/5" and len(zones) > 1
        return replace(usual, may_be_sure=usual.may_be_sure and not is_broker)
    homes = map(timezone_of, RARER) if len(zones) > 1 else ()
    other = propose(bars, RARER, [*zones, *homes], step, spans)
    if other.best.outside <= MOST_OUTSIDE and other.best.cost < usual.best.cost:
        return replace(other, refuted=usual.best)
    if fits:  # a calendar that is not known here may fit better
        week = propose(bars, ("24/5",), zones, step, spans).best
        refuted = week if usual.best.calendar == "24/7" else None
        return replace(usual, may_be_sure=False, refuted=refuted)
    always = propose(bars, ("24/7",), zones, step, spans)
    is_always = _trades_at_weekends(bars) if is_daily else always.best.filled > _AROUND_THE_CLOCK
    return replace(always, refuted=usual.best) if is_always else usual


def _compare_rarer(
    usual: Proposal, bars: Bars, step: int, spans: Sequence[tuple[int, int]]
) -> Proposal:
    """Add the rarer calendars of the same clock that fit as well; propose one that fits better."""
    best = usual.best
    home = _clock(timezone_of(best.calendar))
    near = [one for one in RARER if _clock(timezone_of(one)) == home]
    rarer = propose(bars, (best.calendar, *near), (best.zone,), step, spans)
    if rarer.best.cost < best.cost - _CLEAR[step >= DAY_MINUTES - 60]:
        return replace(rarer, zones=usual.zones, refuted=best)
    others = [one for one in (rarer.best.calendar, *rarer.calendars) if one != best.calendar]
    return replace(usual, calendars=tuple(others))


def _trades_at_weekends(bars: Bars) -> bool:
    """Report whether daily bars of weekends lie between weeks with bars of Monday and Friday, which
    dates that are a day off do not."""
    # whole weeks between the symbols, so that a day's number tells both its symbol and its weekday
    days = bars.ts // (DAY_MINUTES * MINUTE_NS) + bars.symbol * 7_000_000
    weekday = (days + 3) % 7  # 1970 began on a Thursday; 0 is Monday
    monday = days[weekday > 4] - weekday[weekday > 4]
    return bool(np.isin(np.add.outer([0, 4, 7, 11], monday), days).all(axis=0).mean() > 0.7)


def propose(
    bars: Bars,
    calendars: Sequence[str],
    zones: Sequence[str],
    step: int,
    spans: Sequence[tuple[int, int]],
) -> Proposal:
    """Find the calendar and zone that fit the bars best, whose times stand as UTC.

    `step`: minutes of a bar. `spans`: first and last time of each part that was read, because
    nothing is known of the time between parts.

    Raises DataError when no calendar covers the bars.
    """
    is_daily = step >= DAY_MINUTES - 60
    has_volume = bool(np.ptp(bars.volume) > 0)
    clocks: dict[tuple[float, ...], str] = {}
    for zone in zones:
        clocks.setdefault(_clock(zone), zone)
    tables = [
        (zone, is_end, table)
        for is_end in _list_labels(bars, step)
        for zone, table in _slots_by_zone(
            bars, list(clocks.values()), step, is_end, is_daily, np.array(spans)
        )
    ]
    first = min(table.base for _, _, table in tables)
    stop = max(table.base + len(table.rows) for _, _, table in tables)
    found = []
    for calendar in calendars:
        if is_daily and calendar in (FX, NASDAQ_NIGHT) and len(calendars) > 1:
            continue  # their days are those of 24/5 and XNAS
        try:
            masks = _session_masks(calendar, first, stop, DAY_MINUTES if is_daily else step)
        except DataError:
            if len(calendars) == 1:
                raise
            continue  # another century, or a country whose holidays are known to last year only
        home = clocks.get(_clock(timezone_of(calendar)))
        for zone, is_end, table in tables:
            name = timezone_of(calendar) if zone == home else zone
            rank = _rank_zone(calendar, zone, home, len(clocks))
            if rank is not None:
                span = slice(table.base - first, table.base - first + len(table.rows))
                sessions = [mask[span] for mask in masks]
                one = _judge(calendar, name, (*rank, is_end), table, sessions, has_volume)
                rare = 0.0 if not is_end else _RARE if step >= 5 else _ALIKE / 2
                found.append(replace(one, cost=one.cost + rare))
    if not found:
        raise DataError("no calendar covers the years of these bars; name one with --calendar")
    return _choose(found, is_daily, has_volume)


def _list_labels(bars: Bars, step: int) -> tuple[bool, ...]:
    """List the labels that are possible, True for the end of a bar: bars of days carry their begin,
    and days that begin a bar after a full quarter of an hour and end at one carry the end."""
    if step >= DAY_MINUTES - 60:
        return (False,)
    ts = np.unique(bars.ts) // MINUTE_NS
    night = np.flatnonzero(np.diff(ts) > 120)
    edges = np.stack([ts[night + 1] - step, ts[night]]) % 15
    return (True,) if step < 15 and night.size and (edges == 0).mean() > 0.9 else (False, True)


def _rank_zone(
    calendar: str, zone: str, home: str | None, num_zones: int
) -> tuple[bool, ...] | None:
    """Rank a zone of a calendar's times, the likeliest lowest; None where it cannot be told from
    UTC."""
    if num_zones == 1:
        return (False, False)
    if calendar in _UTC_ONLY and zone != "UTC":
        return None
    if zone == "America/Sao_Paulo" != home:
        return None  # the clock of Brazil's files alone, and an hour from New York's
    usual = "UTC" if calendar == FX else home
    return (zone not in (home, "UTC"), zone != usual)


def _choose(found: list[Hypothesis], is_daily: bool, has_volume: bool) -> Proposal:
    least = min(one.cost for one in found)
    # of those that the data does not rule out, one without rows outside
    whole = [one for one in found if one.cost < least + _CLEAR[is_daily] and not one.outside]
    least = min(one.cost for one in whole or found)
    best = min(
        (one for one in whole or found if one.cost <= least + _ALIKE), key=lambda one: one.rank
    )
    likely = sorted(
        (one for one in found if one.cost < best.cost + _CLEAR[is_daily]), key=lambda one: one.cost
    )
    others = dict.fromkeys(one.calendar for one in likely if one.calendar != best.calendar)
    zones = dict.fromkeys(one.zone for one in likely if _clock(one.zone) != _clock(best.zone))
    return Proposal(best, tuple(others), tuple(zones), has_volume and best.filled > 0.7)


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
    # a session's last bar may be shorter than the others: outside only the begin of a bar counts
    begins = slots.rows > 0
    known = slots.is_known
    filled = slots.is_filled[inside & known]
    cost = away * np.count_nonzero(slots.is_filled)
    cost += _surprise(filled.sum() / slots.width, len(filled) / slots.width, 1.0)
    rest = (_MOST_AT_REST, 1) if calendar in _REST else (1.0, slots.width)
    for mask, (most, width) in ((allowed & ~starts, rest), (~allowed, (MOST_OUTSIDE, 1))):
        cost += _surprise(begins[mask & known].sum(), np.sum(mask & known) / width, most)
    outside = float(slots.rows[~allowed].sum() / slots.rows.sum())
    held = float(filled.sum() / max(len(filled), 1))
    return Hypothesis(calendar, zone, rank, outside, away, held, cost)


def _surprise(k: float, n: float, most: float) -> float:
    """-log L = -k log p - (n - k) log(1 - p) of bars that `k` of `n` places hold, each with
    probability p = k / n, or at `most` that."""
    p = min(k / max(n, k, 1), most)
    return float(-k * np.log(p or 1.0) - max(n - k, 0.0) * np.log1p(-p if p < 1 else 0.0))


def _slots_by_zone(
    bars: Bars, zones: Sequence[str], step: int, is_end: bool, is_daily: bool, spans: Array
) -> Iterator[tuple[str, _Slots]]:
    """The rows by slot, read as times of each zone, as starts or as ends of bars."""
    late = is_end * step * MINUTE_NS
    quarters, quarter_of = np.unique((bars.ts - late) // QUARTER_NS, return_inverse=True)
    rows = np.bincount(quarter_of)
    volume = np.bincount(quarter_of, bars.volume)
    slot_ns = QUARTER_NS * (96 if is_daily else 1)
    width = 1 if is_daily else max(1, step // 15)
    edge = 0 if is_daily else 1  # of empty slots: the rows may begin and end with a session
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
    """`[Q]` bool three times: slots of the sessions, those in which their bars of `step` minutes
    begin, and those that may hold rows."""
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
    inside = _mask([(begin, np.minimum(pause, last)), (resume, last)], first, stop)
    # a bar of a full hour may begin before the open, if the session before ended earlier
    clock = np.concatenate([begin[end - begin < 20 * 60 * MINUTE_NS], resume[resume > pause]])
    clock = clock - since_midnight(clock, timezone_of(calendar)) % (step * MINUTE_NS)
    starts = inside | _mask([(clock, clock + QUARTER_NS)], first, stop)
    allowed = starts | _mask([(before, pause), (resume, after)], first, stop)
    return inside, starts, allowed


_DAY = dt.timedelta(days=1)


def _mask(spans: Sequence[tuple[Array, Array]], first: int, stop: int) -> Array:
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
def _clock(zone: str) -> tuple[float, ...]:
    """Offsets in winter and in summer, alike for zones whose clocks are."""
    days = pd.DatetimeIndex(["2024-01-15", "2024-07-15"])
    return tuple(
        (days.tz_localize(zone).tz_convert("UTC").tz_localize(None) - days).total_seconds()
    )


def move(ts: Array, zone: str) -> Array:
    """`[R]` int64: times that were read as UTC, as those of a zone; what does not exist there or
    twice stays where it was."""
    wall = pd.DatetimeIndex(ts.astype("datetime64[ns]"))
    placed = wall.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
    utc = placed.tz_convert("UTC").tz_localize(None)
    moved = utc.to_numpy().astype("datetime64[ns]").astype(np.int64)
    return np.where(np.asarray(placed.isna()), ts, moved)
