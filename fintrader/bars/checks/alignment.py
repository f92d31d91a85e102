"""Days of a symbol that are early or late against the other symbols, and sessions without their
first or last bar.

A bar that is stamped one place early shows the next return: its returns agree with those that the
others make one bar later. Let x be the returns of a symbol, m the sum of the others' returns, and
x(t) = beta m(t + k) + e(t) with k = 0 in clean bars. The likelihood ratio of a lag k against none,

    log L = (beta / var e) sum_t (x(t) - beta (m(t) + m(t + k)) / 2) (m(t + k) - m(t)),

rises by log(1 / p) from a given bar on with a probability of p at most where k is 0 (Ville). It
counts by a half, which keeps this true of bars that are twice as volatile as those around. On days
on which the symbol goes its own way the ratio is a walk without drift, so the score

    S = sum_t x(t) m(t + k) / sqrt(sum_t (x(t) m(t + k))^2)

must speak for the lag too: P(S > c) <= exp(-c^2 / 2) for terms of symmetric sign, whatever their
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
"""Besides lags of one to three bars."""
_UNIT = np.float32(30)
"""Of `Days.moves`: a standard deviation."""
_LEAST_SCORE = 5.0
"""Of S: four in a million at most."""
_SLIGHT = 5.0
_CHANCE = 1e-3
"""Probability of one false alarm in a whole market, shared by all tests (Bonferroni)."""
_LEAST_SILENCE = 0.005
"""Minutes without a trade are not independent: their probability counts as no less."""
_LEAST_SURPRISE = 0.02
"""Least probability that an opening print differs by chance."""


def find_misaligned(days: Sequence[Days]) -> Iterator[Fault]:
    """Find runs of bars whose returns agree better with the others' returns some bars earlier or
    later than with those at the same time."""
    for length in {one.length for one in days if one.length > 0}:
        alike = [one for one in days if one.length == length]
        if len(alike) < 2:
            continue
        total = np.sum([one.moves for one in alike], axis=0, dtype=np.int32)
        steps = {1, 2, 3} | {minutes // length for minutes in _LAG_MINUTES if minutes > 3 * length}
        lags = sorted({sign * step for step in steps for sign in (-1, 1)}, key=abs)
        # a run may begin at every bar
        tests = len(lags) * sum(int(one.bars.sum()) for one in alike)
        for one in alike:
            own = one.moves / _UNIT
            runs = sorted(_find_runs(own, total / _UNIT - own, lags, np.log(tests / _CHANCE)))
            explained = np.zeros(len(one.session), dtype=bool)
            for _, lag, *places in reversed(runs):
                first, last = np.searchsorted(one.place, places, side="right") - 1
                if not explained[first : last + 1].any():
                    explained[first : last + 1] = True
                    minutes = abs(lag) * length
                    said = f"{minutes} minute{'s' * (minutes > 1)} {'early' if lag > 0 else 'late'}"
                    until = f", to {one.dates[last]}" if last > first else ""
                    count = one.bars[first : last + 1].sum()
                    yield one.fault("misaligned", first, said + until, count)


def _find_runs(
    own: Array, others: Array, lags: Sequence[int], least: float
) -> Iterator[tuple[float, int, int, int]]:
    """Find the runs in which log L of a lag rises by more than `least` (Page's test): by how much,
    the lag, the first place and the last. own, others: `[P]` moves."""
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
    # the symbol may be late on all days, so the strongest lag gives its beta
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
                # bars at the two ends by which log L hardly rises are chance
                part = rise[first : last + 1]
                begin = first + int(np.argmax(part > _SLIGHT))
                end = first + int(np.flatnonzero(part < part[-1] - _SLIGHT)[-1])
                yield float(rise[last]), lag, int(seen[begin]), int(seen[end])


def find_missing_edges(days: Sequence[Days], sessions: int) -> Iterator[Fault]:
    """Find sessions whose first or last bar is missing in all symbols or in one, more often than
    its other silent bars allow; where the opening's volume is missing too, the bars are early.

    sessions: S of the grid.
    """
    days = [one for one in days if one.length > 0]
    if not days:
        return
    silence = np.array([_rate_silence(one) for one in days])
    for name, end in (("first", 0), ("last", 1)):
        lost = np.full((len(days), sessions), np.nan, dtype=np.float32)
        for row, one in enumerate(days):
            lost[row, one.session] = one.silent[end] > 0
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
                said = "early: its last bar is missing, its first bar is not the opening"
                yield days[row].fault("misaligned", day, said)
            suspect &= ~early
        for one, rate in zip(days, silence, strict=True):
            yield from _find_moved(one, rate, end)
        for row in np.flatnonzero(suspect.any(axis=1)).tolist():
            one = days[row]
            hit = np.flatnonzero(suspect[row, one.session])
            said = f"the {name} bar, on {len(hit)} of {len(one.session)} days"
            yield one.fault("missing_edge", hit[0], said, len(hit))


def _find_moved(days: Days, silence: float, end: int) -> Iterator[Fault]:
    """Find days whose bars begin late (end: 0) or stop early (1) by more silent bars than chance
    allows, and whose volume is shifted with them: high at the silent end, low at the other. After a
    halt both are in place."""
    ends = days.ends[[0, 2]]
    usual = np.median(ends, axis=1, keepdims=True)
    away = ends < usual / 2
    moved = (days.silent[end] * np.log10(silence) < UNLIKELY) & (days.silent[1 - end] == 0)
    moved &= ~away[end] & away[1 - end] & bool((usual > np.log(2)).all())
    for day in np.flatnonzero(moved).tolist():
        count = int(days.silent[end, day])
        said = f"the {'last' if end else 'first'} {count}, as of a day {'early' if end else 'late'}"
        yield days.fault("missing_edge", day, said, count)


def _find_unopened(days: Sequence[Days], lost: Array, expected: Array, tests: int) -> Array:
    """`[N, S]` bool: days without a last bar whose first bar lacks the opening print of daily bars,
    in symbols with more of them than two independent events allow."""
    prints = np.full(lost.shape, np.nan)
    for row, one in enumerate(days):
        prints[row, one.session] = one.unopened
    usual = np.where(lost == 0, prints, np.nan)
    rate = np.nansum(usual, axis=1) / np.maximum(np.isfinite(usual).sum(axis=1), 1)
    both = lost * prints
    chance = np.isfinite(both) * expected * np.maximum(rate, _LEAST_SURPRISE)[:, None]
    return np.asarray((both > 0) & _is_unlikely(both, chance, 1, tests, 0.0)[:, None])


def _rate_silence(days: Days) -> float:
    """The share of bars between a day's first and its last that are missing."""
    silent = days.places - days.silent.sum(axis=0) - days.bars
    return max(float(silent.sum() / days.places.sum()), _LEAST_SILENCE)


def _is_unlikely(lost: Array, expected: Array, axis: int, tests: int, share: float) -> Array:
    """True where more are lost along the axis than chance allows, and no less than a share.

    Chernoff's bound of a sum of independent events: P(K >= k) <= exp(-(k log(k / mu) - k + mu)).
    Late openings are not independent, hence the share.
    """
    listed = np.isfinite(lost).sum(axis=axis)
    count = np.maximum(np.nansum(lost, axis=axis), 1e-9)
    expected = np.maximum(expected.sum(axis=axis), 1e-9)
    bound = count * np.log(count / expected) - count + expected
    is_rare = (count > expected) & (bound > np.log(tests / _CHANCE))
    return np.asarray(is_rare & (count >= share * listed))


def _measure_openings(days: Sequence[Days], suspect: Array) -> Array:
    """`[N, S]` volume of a suspect day's first bar on a scale from a usual opening (0) to a usual
    second bar (1), of the symbol or else of all; NaN on other days, and where usual openings have
    less than twice as much. The opening print of daily bars, if known, decides."""
    away = np.full(suspect.shape, np.nan)
    usual = [one.ends[:2, ~suspect[row, one.session]] for row, one in enumerate(days)]
    every = np.concatenate(usual, axis=1)
    for row, one in enumerate(days):
        hit = suspect[row, one.session]
        own = usual[row] if usual[row].shape[1] >= 5 else every
        if hit.any() and own.shape[1] >= 5:
            first, second = np.median(own, axis=1)
            if first - second > np.log(2):
                away[row, one.session[hit]] = (first - one.ends[0, hit]) / (first - second)
        hit &= np.isfinite(one.unopened)
        away[row, one.session[hit]] = one.unopened[hit]
    return away


def _exceed_half(values: Array, axis: int) -> Array:
    """True where the median of three known values or more along an axis is above one half."""
    count = np.isfinite(values).sum(axis=axis)
    above = (values > 0.5).sum(axis=axis)
    return np.asarray((count >= 3) & (2 * above > count))
