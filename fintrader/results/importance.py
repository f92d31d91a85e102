"""Association of the searched settings with the score, compared with luck in as many pods.

Only pods that began from fresh weights, with randomly drawn settings, are used: a child inherits
its parent's networks along with its settings, so its score depends on both, and all descendants of
a lucky founder would count in favour of the founder's settings.

A setting's importance is the share of the variance of the scores' ranks that lies between its
levels (bins of equal counts where it has many values), less the share expected by chance (epsilon
squared: Kelley 1935, https://doi.org/10.1073/pnas.21.9.554). It finds any dependence on one
setting, also one with its best in the middle, but no interaction of two settings. Luck is measured
by permuting the scores among the pods many times and taking the largest share of any setting each
time, which corrects for looking at all settings (Westfall and Young 1993).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader.metrics import Array
from fintrader.numerals import count, number

MIN_PODS = 12
"""Fewest scored pods for which importance is computed: with fewer, luck can produce any share."""
LEVEL = 0.05
"""Significance level: probability that some setting is called important when none has an effect."""
ALGORITHM = "algo"
"""Name of the algorithm among the settings, where several race."""
_PERMUTATIONS = 499
_MOST_LEVELS = 8
_FEWEST_PER_LEVEL = 3


@dataclass(frozen=True)
class Share:
    """Share of the scores' variance that one setting explains."""

    setting: str
    share: float
    """Share of the variance of the scores' ranks, at most 1; below 0 where it is less than
    expected by chance."""
    p_value: float
    """Probability that chance makes the largest share of any setting as large."""

    @property
    def important(self) -> bool:
        return self.p_value <= LEVEL


@dataclass(frozen=True)
class Importance:
    """Importance of the settings that were searched."""

    shares: tuple[Share, ...] = ()
    """Largest first; empty where `why` gives the reason."""
    pods: int = 0
    """Number of pods that they were computed from."""
    luck: float = 0.0
    """95 % quantile, over permuted scores, of the largest share of any setting."""
    constant: tuple[str, ...] = ()
    """Settings with one value in all these pods, and settings that some of them lack."""
    why: str = ""
    """Why there are no shares, as a sentence."""


def list_searched_settings(pods: pd.DataFrame) -> list[dict[str, Any]]:
    """List the searched settings of each pod, with the algorithm where several
    race."""
    rows = [dict(row) if isinstance(row, dict) else {} for row in pods["hyper"]]
    if ALGORITHM in pods and pods[ALGORITHM].nunique() > 1:
        return [{ALGORITHM: algo, **row} for algo, row in zip(pods[ALGORITHM], rows, strict=True)]
    return rows


def importance(pods: pd.DataFrame) -> Importance:
    """Measure the importance of settings in a tournament's pods (rows of `read_pods` with `hyper`,
    `origin`, `score`) that began from fresh weights and have a score."""
    scores = pd.to_numeric(pods["score"], errors="coerce").to_numpy(float)
    fresh = pods[(pods["origin"] == "fresh") & np.isfinite(scores)]
    size = len(fresh)
    settings = list_searched_settings(fresh)
    if not any(list_searched_settings(pods)):
        return Importance(why="This tournament searches no setting.")
    if size < MIN_PODS:
        return Importance(
            pods=size,
            why=(
                f"Importance needs {MIN_PODS} scored pods that began from fresh weights (here:"
                f" {count(size)}). Default runs have fewer: raise `tournament.pods`, or"
                " `tournament.fresh`, the share of pods that begin so. (A child inherits its"
                " parent's networks with its settings, so its score depends on both.)"
            ),
        )
    ranks = pd.to_numeric(fresh["score"]).rank().to_numpy(float)
    centred = ranks - ranks.mean()
    if not centred.any():
        return Importance(pods=size, why="All these pods have the same score.")
    names = dict.fromkeys(name for row in settings for name in row)
    columns = {
        name: [row[name] for row in settings]
        for name in names
        if all(name in row for row in settings)
    }
    codes = {name: levels(column) for name, column in columns.items()}
    codes = {name: one for name, one in codes.items() if len(np.unique(one)) > 1}
    constant = tuple(name for name in names if name not in codes)
    if not codes:
        return Importance(
            pods=size,
            constant=constant,
            why="Every searched setting is the same in all these pods.",
        )
    random = np.random.default_rng(0)
    permuted_scores = random.permuted(np.tile(centred, (_PERMUTATIONS, 1)), axis=1)
    best = np.max([shares(permuted_scores, one) for one in codes.values()], axis=0)
    measured = {name: float(shares(centred[None], one)[0]) for name, one in codes.items()}
    ranked = [
        Share(name, share, float(1 + (best >= share).sum()) / (1 + _PERMUTATIONS))
        for name, share in measured.items()
    ]
    luck = float(np.quantile(best, 1 - LEVEL, method="higher"))
    return Importance(tuple(sorted(ranked, key=lambda row: -row.share)), size, luck, constant)


def levels(values: Sequence[Any]) -> NDArray[np.int64]:
    """The level `[n]` of each value: bins of equal counts for numbers with many values, else the
    values themselves, rare ones together."""
    size = len(values)
    if all(number(value) is not None for value in values):
        bins = min(_MOST_LEVELS, max(2, size // 6))
        if len(set(values)) > bins:
            places = pd.Series(values).rank().to_numpy(float)  # equal values share a bin
            return ((places - 0.5) * bins / size).astype(np.int64)
    texts = pd.Series(list(map(str, values)))
    codes, _ = pd.factorize(texts, sort=True)
    return np.where(texts.map(texts.value_counts()) >= _FEWEST_PER_LEVEL, codes + 1, 0)


def shares(centred: Array, codes: NDArray[np.int64]) -> Array:
    """Epsilon squared of each row of `centred [R, n]` (zero mean, one variance in all rows) between
    levels `[n]`."""
    _, level, counts = np.unique(codes, return_inverse=True, return_counts=True)
    sums = centred @ np.eye(len(counts))[level]
    size = len(codes)
    between = (sums**2 / counts).sum(axis=1) / (centred[0] ** 2).sum()
    result: Array = 1.0 - (1.0 - between) * (size - 1) / (size - len(counts))
    return result
