"""Tests for bars that are early or late against the other symbols, and for sessions without their
first or last bar.

If a symbol's bars are stamped one place too early, its returns agree with those of the other
symbols one bar later, so that it shows their next return. Let x be the returns of a symbol, m the
sum of the others' returns, and x(t) = beta m(t + k) + e(t), with k = 0 in clean bars. If k is 0,
the log likelihood ratio of a lag k against none,

    log L = (beta / var e) sum_t (x(t) - beta (m(t) + m(t + k)) / 2) (m(t + k) - m(t)),

rises by log(1 / p) from a given bar on with a probability of at most p (Ville's inequality). The
code takes half of it, so that the bound also holds for bars twice as volatile as those around. On
days on which the symbol does not follow the others, the ratio is a random walk without drift. So
the score

    S = sum_t x(t) m(t + k) / sqrt(sum_t (x(t) m(t + k))^2)

must exceed a threshold too: P(S > c) <= exp(-c^2 / 2) for terms of symmetric sign, whatever their
size and beta (Efron 1969). No threshold is fitted to a market.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fintrader.bars.bars import Array
from fintrader.bars.checks.days import Days
from fintrader.bars.checks.kinds import UNLIKELY
from fintrader.results.market_description import Fault

_LAG_MINUTES = (5, 15, 30, 60, 120)
"""Lags that are tested in addition to those of one to three bars."""
_UNIT = np.float32(30)
"""One standard deviation in the units of `Days.moves`."""
_LEAST_SCORE = 5.0
"""Least score S: chance exceeds it with a probability of at most four in a million."""
_SLIGHT = 5.0
"""Rise of log L that chance explains; bars at the ends of a run that add less are cut off."""
_CHANCE = 1e-3
"""Probability of one false alarm in a whole market, shared by all tests (Bonferroni)."""
_LEAST_SILENCE = 0.005
"""Least probability of a bar without a trade, since such bars are not independent of each other."""
_LEAST_SURPRISE = 0.02
"""Least probability that a day's first bar differs from the daily open by chance."""


def find_misaligned(days: Sequence[Days]) -> Iterator[Fault]:
    """Find runs of bars whose returns agree better with the other symbols' returns some bars
    earlier or later than with those at the same time."""
    for length in {summary.length for summary in days if summary.length > 0}:
        alike = [summary for summary in days if summary.length == length]
        if len(alike) < 2:
            continue
        total = np.sum([summary.moves for summary in alike], axis=0, dtype=np.int32)
        steps = {1, 2, 3} | {minutes // length for minutes in _LAG_MINUTES if minutes > 3 * length}
        lags = sorted({sign * step for step in steps for sign in (-1, 1)}, key=abs)
        # a run may begin at any bar, so each bar counts as a test
        tests = len(lags) * sum(int(summary.bars.sum()) for summary in alike)
        for summary in alike:
            own = summary.moves / _UNIT
            runs = sorted(_find_runs(own, total / _UNIT - own, lags, np.log(tests / _CHANCE)))
            explained = np.zeros(len(summary.session), dtype=bool)
            for _, lag, *places in reversed(runs):
                first, last = np.searchsorted(summary.place, places, side="right") - 1
                if not explained[first : last + 1].any():
                    explained[first : last + 1] = True
                    minutes = abs(lag) * length
                    detail = (
                        f"{minutes} minute{'s' * (minutes > 1)} {'early' if lag > 0 else 'late'}"
                    )
                    until = f", to {summary.dates[last]}" if last > first else ""
                    count = summary.bars[first : last + 1].sum()
                    yield summary.report_fault("misaligned", first, detail + until, count)


def _find_runs(
    own: Array, others: Array, lags: Sequence[int], least: float
) -> Iterator[tuple[float, int, int, int]]:
    """Find the runs in which log L of a lag rises by more than `least` (Page's test).

    own, others: `[P]` moves of the symbol, and the sum of the others'. Yields the rise, the lag in
    places, and the first and the last place of each run.
    """
    seen = np.flatnonzero(own)
    if len(seen) < 2:
        return
    own = own[seen]
    base = others[seen]

    def at_lag(lag: int) -> Array:
        at = seen + lag
        inside = (at >= 0) & (at < len(others))
        return np.where(inside, others[np.where(inside, at, 0)], 0)

    variance = max(float(np.mean(base**2)), 1e-9)
    # the symbol may be late on all days, so beta is that of the strongest lag
    beta = max(0.0, *(float(np.mean(own * at_lag(lag))) for lag in (0, *lags))) / variance
    rest = max(float(np.mean(own**2)) - beta**2 * variance, 0.05)
    for lag in lags:
        ahead = at_lag(lag)
        gain = own * (ahead - base) - beta * (ahead**2 - base**2) / 2
        level = np.cumsum(beta / (2 * rest) * gain, dtype=np.float64)
        rise = level - np.minimum(np.minimum.accumulate(level), 0.0)
        starts = np.flatnonzero(np.append(True, rise[1:] == 0))
        for number in np.flatnonzero(np.maximum.reduceat(rise, starts) > least):
            first = int(starts[number])
            last = first + int(rise[first : np.append(starts, len(rise))[number + 1]].argmax())
            run = (own * ahead)[first : last + 1]
            if run.sum() > _LEAST_SCORE * np.sqrt((run**2).sum()):
                # at both ends of the run, bars by which log L hardly rises are chance
                part = rise[first : last + 1]
                begin = first + int(np.argmax(part > _SLIGHT))
                end = first + int(np.flatnonzero(part < part[-1] - _SLIGHT)[-1])
                yield float(rise[last]), lag, int(seen[begin]), int(seen[end])


def find_missing_edges(days: Sequence[Days], sessions: int) -> Iterator[Fault]:
    """Find sessions whose first or last bar is missing, in all symbols or in one, more often than
    the symbols' other missing bars make plausible. If the last bar is missing and the first one
    lacks the volume of an opening, the day's bars are early.

    sessions: number of the grid's sessions.
    """
    days = [summary for summary in days if summary.length > 0]
    if not days:
        return
    silence = np.array([_rate_silence(summary) for summary in days])
    for name, end in (("first", 0), ("last", 1)):
        lost = np.full((len(days), sessions), np.nan, dtype=np.float32)
        for row, summary in enumerate(days):
            lost[row, summary.session] = summary.silent[end] > 0
        tests = 2 * (len(days) + sessions)
        expected = np.isfinite(lost) * silence[:, None]
        whole = _is_unlikely(lost, expected, 0, tests, 0.5)
        rest = np.where(whole, np.nan, lost)
        alone = _is_unlikely(rest, expected * ~whole, 1, tests, 0.1)
        suspect = (lost > 0) & (whole | alone[:, None])
        if end:
            away = _measure_openings(days, suspect)
            by_symbol = _exceed_half(np.where(whole, np.nan, away), 1)
            early = suspect & np.where(whole, _exceed_half(away, 0), by_symbol[:, None])
            early |= _find_unopened(days, lost, expected, tests)
            for row, session in np.argwhere(early).tolist():
                day = int(np.searchsorted(days[row].session, session))
                detail = "early: its last bar is missing, and its first bar is not the opening"
                yield days[row].report_fault("misaligned", day, detail)
            suspect &= ~early
        for summary, rate in zip(days, silence, strict=True):
            yield from _find_moved(summary, rate, end)
        for row in np.flatnonzero(suspect.any(axis=1)).tolist():
            summary = days[row]
            hit = np.flatnonzero(suspect[row, summary.session])
            detail = f"the {name} bar, on {len(hit)} of {len(summary.session)} days"
            yield summary.report_fault("missing_edge", hit[0], detail, len(hit))


def _find_moved(days: Days, silence: float, end: int) -> Iterator[Fault]:
    """Find days whose bars begin late (end: 0) or stop early (end: 1) by more bars than chance
    explains, and whose volume is displaced with them. The high volume of the open or close then
    stands next to the missing bars, and the other end of the day has none. After a halt, volumes
    are in place."""
    ends = days.ends[[0, 2]]
    usual = np.median(ends, axis=1, keepdims=True)
    away = ends < usual / 2
    moved = (days.silent[end] * np.log10(silence) < UNLIKELY) & (days.silent[1 - end] == 0)
    moved &= ~away[end] & away[1 - end] & bool((usual > np.log(2)).all())
    for day in np.flatnonzero(moved).tolist():
        count = int(days.silent[end, day])
        which, when = ("last", "early") if end else ("first", "late")
        detail = f"the {which} {count} bars, as if the day were {when}"
        yield days.report_fault("missing_edge", day, detail, count)


def _find_unopened(days: Sequence[Days], lost: Array, expected: Array, tests: int) -> Array:
    """Return `[N, S]` bool: days without a last bar whose first bar does not open at the daily
    open, for symbols with more such days than two independent events explain.

    lost, expected: `[N, S]` 1 where the last bar is missing, and the probability of that.
    """
    prints = np.full(lost.shape, np.nan)
    for row, summary in enumerate(days):
        prints[row, summary.session] = summary.unopened
    usual = np.where(lost == 0, prints, np.nan)
    rate = np.nansum(usual, axis=1) / np.maximum(np.isfinite(usual).sum(axis=1), 1)
    both = lost * prints
    chance = np.isfinite(both) * expected * np.maximum(rate, _LEAST_SURPRISE)[:, None]
    return np.asarray((both > 0) & _is_unlikely(both, chance, 1, tests, 0.0)[:, None])


def _rate_silence(days: Days) -> float:
    """Return the share of places between a day's first and last bar that have no bar; at least
    `_LEAST_SILENCE`."""
    silent = days.places - days.silent.sum(axis=0) - days.bars
    return max(float(silent.sum() / days.places.sum()), _LEAST_SILENCE)


def _is_unlikely(lost: Array, expected: Array, axis: int, tests: int, share: float) -> Array:
    """Return True where more bars are missing along the axis than chance explains, and at least a
    `share` of them.

    lost, expected: `[N, S]` 1 for a missing bar (NaN for an unlisted symbol), and its probability;
    tests: number of tests that share the false alarms. Chernoff's bound for the sum of independent
    events with mean mu: P(K >= k) <= exp(-(k log(k / mu) - k + mu)). Late openings are not
    independent, hence `share`.
    """
    listed = np.isfinite(lost).sum(axis=axis)
    count = np.maximum(np.nansum(lost, axis=axis), 1e-9)
    expected = np.maximum(expected.sum(axis=axis), 1e-9)
    bound = count * np.log(count / expected) - count + expected
    is_rare = (count > expected) & (bound > np.log(tests / _CHANCE))
    return np.asarray(is_rare & (count >= share * listed))


def _measure_openings(days: Sequence[Days], suspect: Array) -> Array:
    """Rate the first bar of each suspect day, `[N, S]`: 0 for the volume of a usual opening, 1 for
    that of a usual second bar.

    The usual volumes are those of the symbol's other days, or of all symbols' if it has fewer than
    five. The result is NaN on days that are not suspect, and if a usual opening has less than twice
    the volume of a second bar. Where `Days.unopened` is known, it is the result.
    """
    away = np.full(suspect.shape, np.nan)
    usual = [summary.ends[:2, ~suspect[row, summary.session]] for row, summary in enumerate(days)]
    every = np.concatenate(usual, axis=1)
    for row, summary in enumerate(days):
        hit = suspect[row, summary.session]
        own = usual[row] if usual[row].shape[1] >= 5 else every
        if hit.any() and own.shape[1] >= 5:
            first, second = np.median(own, axis=1)
            if first - second > np.log(2):
                away[row, summary.session[hit]] = (first - summary.ends[0, hit]) / (first - second)
        hit &= np.isfinite(summary.unopened)
        away[row, summary.session[hit]] = summary.unopened[hit]
    return away


def _exceed_half(values: Array, axis: int) -> Array:
    """Return True where at least three values along an axis are known, and more than half of these
    are above 0.5."""
    count = np.isfinite(values).sum(axis=axis)
    above = (values > 0.5).sum(axis=axis)
    return np.asarray((count >= 3) & (2 * above > count))
