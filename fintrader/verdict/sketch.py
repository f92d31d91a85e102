"""Sketch of a window: enough of its returns to recognise it under any name.

Each run of `RUN` sessions of a series is divided by its root mean square, rounded and hashed. No
name, date, price level, bar length, leverage or sign enters, and the runs of a subset of the series
are a subset of the runs. Only hashes below a limit are kept, the same limit for all windows of a
size (Irber et al., "Lightweight compositional analysis of metagenomes with FracMinHash", 2022), so
that the kept hashes estimate the share of common runs, also between windows of very different
sizes.

A `Curve` has the returns themselves, coarsely and by date. It recognises what hashes cannot: the
same days as weekly bars or in another currency, and an index much like this one.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fintrader.metrics import Array

RUN = 10
"""Sessions hashed together. Ten rounded returns have some 10^9 forms, so few runs of 500 series
over four years coincide by chance."""
STEPS = 4.0
"""Rounding steps per root mean square of a run: a change of a stock's prices by a tenth of a basis
point alters one run in a hundred."""
MOST = 512
"""Most hashes kept of a window."""
SAME = 0.03
"""Least share of the smaller window's runs that the other window has too, for a look at one to
count for both."""
FEWEST = 3
"""Fewest common runs of two windows for them to count as the same."""
ALIKE = 0.8
"""Least rank correlation of two curves of the same window. Two indices of the large companies of a
country exceed it."""
FEWEST_ALIKE = 12
"""Fewest common returns of two curves."""
_DISTINCT = 6
"""Fewest different values in a kept run: series that hardly move have fewer."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_BITS = 32
_AT_ONCE = 64


@dataclass(frozen=True)
class Sketch:
    """Kept hashes of a window."""

    halvings: int = 0
    """Hashes below 2^32 / 2^halvings are kept."""
    hashes: str = ""
    """The hashes, 32 bits each, ascending, little-endian in base64. Empty for too few sessions, or
    series that hardly move."""

    @classmethod
    def of(cls, returns: Array) -> Sketch:
        """Sketch simple returns `[S, N]` over the sessions; NaN where a series has none."""
        hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *_hash_runs(returns)]))
        halvings = 0
        while (hashes < 2**_BITS >> halvings).sum() > MOST:
            halvings += 1
        kept = hashes[hashes < 2**_BITS >> halvings].astype("<u4")
        return cls(halvings, base64.b64encode(kept.tobytes()).decode())

    def overlaps(self, other: Sketch) -> bool:
        """Report whether the windows share at least `SAME` of the smaller one's runs."""
        limit = 2**_BITS >> max(self.halvings, other.halvings)
        common = len(self._kept & other._kept)  # below both limits
        if not common:
            return False
        # If few hashes of the smaller window are below the common limit, half of them decide.
        smaller = min(sum(map(limit.__gt__, one._kept)) for one in (self, other))
        return bool(common >= max(min(FEWEST, smaller / 2), SAME * smaller))

    @cached_property
    def _kept(self) -> frozenset[int]:
        return frozenset(np.frombuffer(base64.b64decode(self.hashes), "<u4").tolist())


@dataclass(frozen=True)
class Curve:
    """Returns of one series by date."""

    first: int
    """Date of the first return, in days since 1970."""
    returns: str
    """A return for each day of the calendar, 0 where there is none: float16, little-endian, in
    base64."""

    @classmethod
    def of(cls, days: NDArray[np.int64], returns: Array) -> Curve:
        """Make a curve of simple returns `[S]` on ascending `days` `[S]` since 1970."""
        by_day = np.zeros(days[-1] - days[0] + 1, "<f2")
        by_day[days - days[0]] = returns
        return cls(int(days[0]), base64.b64encode(by_day.tobytes()).decode())

    def follows(self, other: Curve) -> bool:
        """Report whether the series move together, up or down, between their common dates."""
        from scipy.stats import rankdata  # slow to load

        first = max(self.first, other.first)
        parts = [one._by_day[first - one.first :] for one in (self, other)]
        both = np.stack([part[: min(map(len, parts))] for part in parts])
        moves = np.diff(both.cumsum(axis=1)[:, both.all(axis=0)])
        # A constant series follows no other.
        if moves.shape[1] < FEWEST_ALIKE or not np.ptp(moves, axis=1).all():
            return False
        # Ranks, so that a single crash does not decide.
        return bool(abs(np.corrcoef(rankdata(moves, axis=1))[0, 1]) >= ALIKE)

    @cached_property
    def _by_day(self) -> Array:
        return np.frombuffer(base64.b64decode(self.returns), "<f2").astype(np.float64)


def _hash_runs(returns: Array) -> Iterator[NDArray[np.uint64]]:
    """Hash the runs of returns `[S, N]`, a few series at a time to save memory."""
    if len(returns) < RUN:
        return
    for first in range(0, returns.shape[1], _AT_ONCE):
        part = returns[:, first : first + _AT_ONCE]
        runs = np.lib.stride_tricks.sliding_window_view(part, RUN, axis=0).reshape(-1, RUN)
        scale = np.sqrt(np.square(runs).mean(axis=1))
        runs = runs[scale > 1e-9]  # false for NaN
        steps = np.rint(STEPS * runs / scale[scale > 1e-9, None]).astype(np.int64)
        steps *= np.sign(steps[:, :1])
        distinct = 1 + (np.diff(np.sort(steps)) != 0).sum(axis=1)
        mixed = np.zeros(len(steps), np.uint64)
        for column in steps.view(np.uint64).T:
            mixed = _mix(mixed ^ column)
        yield mixed[distinct >= _DISTINCT] >> np.uint64(64 - _BITS)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits (the finaliser of SplitMix64; Steele, Lea and Flood 2014)."""
    values = values + _MIX
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def session_returns(close: NDArray[np.floating], session: NDArray[np.integer]) -> Array:
    """Compute returns `[S - 1, N]` from the last price of each session to that of the next. `close`
    `[T, N]` is NaN where there is no price; `session` `[T]` numbers the sessions in order."""
    ends = np.flatnonzero(np.diff(session, append=-1))
    rows = np.where(np.isfinite(close), np.arange(len(close))[:, None], -1)
    np.maximum.accumulate(rows, axis=0, out=rows)
    last = np.take_along_axis(close, np.maximum(rows[ends], 0), axis=0).astype(np.float64)
    starts = np.append(0, ends[:-1] + 1)
    last[rows[ends] < starts[:, None]] = np.nan  # without a price in that session
    with np.errstate(divide="ignore", invalid="ignore"):
        return last[1:] / last[:-1] - 1.0
