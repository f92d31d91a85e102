"""Alarms for columns that predict too well to be honest.

A column computed elsewhere may hold the next return and still be equal in every truncated view, so
truncation cannot prove the leak. Only its strength shows it: each column is correlated with the
returns after it over several horizons, and traded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student

from fintrader.bars.bars import Array
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import create_numpy_generator

IMPLAUSIBLE_IC = 0.1
"""Rank correlation with the return ahead. On real minute bars no honest and significant column
reaches 0.04."""
DOUBTFUL_IC = 0.04
"""The same bound for a column computed elsewhere, if its maker does not say when it was known."""
IMPLAUSIBLE_SHARPE = 10.0
"""Annualised, before costs. On real minute bars no honest column reaches 6."""
FALSE_ALARMS = 0.001
"""Probability, for each of the two measures, that any column of a market without information passes
the test of significance."""
STRONGER = 1.25
"""Factor over the planted signal above which another column is implausible."""
NEXT_OPEN = "to the next open"
_BLOCKS = 50
_FEWEST_BLOCKS = 12
_HORIZONS_A_BLOCK = 3
_MOST_ROWS = 20_000


@dataclass(frozen=True)
class Alarm:
    """A column that predicts implausibly well."""

    column: str
    measure: str
    """`rank correlation`, or `Sharpe ratio`."""
    value: float
    horizon: str
    """Span of the return, such as `of the next 30 bars`, or from a session's last close `to the
    next open`."""
    t: float
    """`value` in standard errors."""

    def __str__(self) -> str:
        return (
            f"{self.column}: {self.measure} {self.value:+.3g} with the return {self.horizon}"
            f" (t = {self.t:+.1f})"
        )


def implausible(
    market: MarketTensors, planted: str | None = None, doubtful: Collection[str] = ()
) -> tuple[Alarm, ...]:
    """Find columns whose rank correlation with a return ahead, or whose Sharpe ratio, is both too
    large to be honest and too significant to be chance. Each column raises at most one alarm of
    each kind, the most significant.

    `planted` names a column that is meant to be good: it raises no alarm, and other columns are
    compared with it. The rank correlations of `doubtful` columns have a lower bound
    (`DOUBTFUL_IC`).
    """
    strengths = list(rank_correlations(market))
    ratios = list(sharpe_ratios(market))
    alarms: dict[tuple[str, str], Alarm] = {}
    for candidates, usual in ((strengths, IMPLAUSIBLE_IC), (ratios, IMPLAUSIBLE_SHARPE)):
        known = {
            (alarm.measure, alarm.horizon): abs(alarm.value)
            for alarm, _ in candidates
            if alarm.column == planted
        }
        for alarm, samples in candidates:
            is_doubtful = alarm.column in doubtful and alarm.measure == "rank correlation"
            level = DOUBTFUL_IC if is_doubtful else usual
            enough = max(level, STRONGER * known.get((alarm.measure, alarm.horizon), 0.0))
            significant = student.ppf(1 - FALSE_ALARMS / (2 * len(candidates)), samples - 1)
            if alarm.column != planted and abs(alarm.value) > enough and abs(alarm.t) > significant:
                before = alarms.get((alarm.column, alarm.measure))
                if before is None or abs(alarm.t) > abs(before.t):
                    alarms[alarm.column, alarm.measure] = alarm
    return tuple(alarms.values())


def rank_correlations(market: MarketTensors) -> Iterator[tuple[Alarm, int]]:
    """Yield each column's rank correlation over every horizon that fits often enough into the
    market, with the number of blocks behind its t.

    It is Spearman's over time, at each symbol's bars with a trade, averaged over symbols. Its error
    is that of the mean of up to fifty blocks of consecutive bars, each at least three horizons
    long.
    """
    closes = np.log(market.to_numpy("adjusted_close"))
    opens = np.log(market.adjust(market.open).numpy())
    traded = market.tradable.numpy()
    session = market.session.numpy()
    length = int(np.median(np.bincount(session - session[0])))
    bars = market.num_bars
    sample = np.sort(create_numpy_generator(0, "lookahead-rows").permutation(bars)[:_MOST_ROWS])
    for horizon in sorted({1, 5, 30, length, 5 * length}):
        blocks = min(_BLOCKS, bars // (_HORIZONS_A_BLOCK * horizon))
        if blocks >= _FEWEST_BLOCKS:
            rows = sample[sample < bars - horizon]
            ahead = closes[rows + horizon] - closes[rows]
            yield from _strengths(
                market, rows, ahead, traded[rows], f"of the next {horizon} bars", blocks
            )
    last = np.flatnonzero(np.diff(session))
    blocks = min(_BLOCKS, len(last) // _HORIZONS_A_BLOCK)
    if blocks >= _FEWEST_BLOCKS:
        yield from _strengths(
            market, last, opens[last + 1] - closes[last], traded[last], NEXT_OPEN, blocks
        )


def _strengths(
    market: MarketTensors, rows: Array, ahead: Array, traded: Array, horizon: str, blocks: int
) -> Iterator[tuple[Alarm, int]]:
    """Correlate every column at `rows` `[R]` with the returns `ahead` `[R, N]`, and context with
    their mean over symbols."""
    known = np.isfinite(ahead)
    together = np.where(known, ahead, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    common = together[:, None], np.asarray(known.any(axis=1, keepdims=True))
    for k, (name, values) in enumerate(market.columns()):
        returns, counted = (ahead, traded & known) if k < market.num_features else common
        means = _block_means(values[rows].numpy(), returns, counted, blocks)
        if len(means) >= _FEWEST_BLOCKS:
            yield (
                Alarm(name, "rank correlation", float(means.mean()), horizon, _t(means)),
                len(means),
            )


def _block_means(values: Array, ahead: Array, counted: Array, blocks: int) -> Array:
    """Compute the mean product of the rank scores of `values` and `ahead` `[R, N]` in each block of
    rows; empty blocks are left out."""
    total = np.zeros(blocks)
    count = np.zeros(blocks)
    block = np.arange(len(values)) * blocks // len(values)
    for column in range(values.shape[1]):
        rows = np.flatnonzero(counted[:, column])
        own = values[rows, column]
        informs = _mask_informative(own)
        rows = rows[informs]
        total += np.bincount(
            block[rows], _scores(own[informs]) * _scores(ahead[rows, column]), blocks
        )
        count += np.bincount(block[rows], minlength=blocks)
    return np.asarray(total[count > 0] / count[count > 0])


def _mask_informative(values: Array) -> Array:
    """Mask the rows in which a column carries information: those that differ from the median, if
    they are a minority with several values; else all."""
    usual = np.median(values) if len(values) else 0.0
    other = values != usual
    several = other.any() and np.ptp(values[other]) > 0
    if several and np.count_nonzero(other) < len(values) / 2:
        return np.asarray(other)
    return np.ones(len(values), dtype=bool)


def _scores(values: Array) -> Array:
    """Ranks with mean 0 and deviation 1; 0 where all are equal."""
    ranks = rankdata(values) - (len(values) + 1) / 2
    spread = ranks.std() if len(ranks) else 0.0
    return np.asarray(ranks / spread if spread > 0 else ranks)


def _t(samples: Array) -> float:
    error = samples.std(ddof=1) / np.sqrt(len(samples))
    return float(samples.mean() / error) if error > 0 else 0.0


def sharpe_ratios(market: MarketTensors) -> Iterator[tuple[Alarm, int]]:
    """Yield the Sharpe ratio of trading each feature, before costs, with its number of
    sessions.

    Each symbol is held from the next open to the one after: long if the column is above its mean
    over time at the close, short if below.
    """
    opens = np.log(market.adjust(market.open).numpy())
    ahead = opens[2:] - opens[1:-1]
    known = market.tradable[:-2].numpy() & np.isfinite(ahead)
    session = market.session[:-2].numpy()
    day = session - session[0]
    for k, name in enumerate(market.feature_names):
        earned = np.zeros(int(day[-1]) + 1)
        for column in range(market.num_assets):
            rows = np.flatnonzero(known[:, column])
            values = market.features[rows, column, k].numpy()
            side = np.sign(values - values.mean()) if len(values) else values
            earned += np.bincount(day[rows], side * ahead[rows, column], len(earned))
        if len(earned) >= _FEWEST_BLOCKS:
            t = _t(earned)
            ratio = t / np.sqrt(len(earned)) * np.sqrt(market.sessions_a_year)
            yield Alarm(name, "Sharpe ratio", float(ratio), "of the next bar", t), len(earned)
