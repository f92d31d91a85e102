"""Columns on one scale: across the members at each bar, or by mean and deviation of the training window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from fintrader.data.bars import Array

_BLOCK = 4096
FEWEST = 3
"""With fewer members a cross-section says nothing."""


def cross_section(
    values: Array, member: Array, columns: Sequence[int], how: Literal["zscore", "rank"], clip: float
) -> None:
    """In place: `columns` of `[T, N, F]` relative to the members (`[T, N]` bool) whose value is known at that bar.

    `zscore` is (x - mean) / std, cut off at ±clip. `rank` is (r - (n + 1) / 2) / sqrt((n² - 1) / 12), where r is the
    rank of 1 to n, equal values sharing theirs: mean 0 and deviation 1 whatever n is. 0 for everybody else, where all
    values are equal, and with fewer than three members.
    """
    for start in range(0, len(values), _BLOCK):
        rows = slice(start, start + _BLOCK)
        for column in columns:
            block = values[rows, :, column].astype(np.float64)
            known = member[rows] & np.isfinite(block)
            values[rows, :, column] = relative(block, known, how).clip(-clip, clip)


def relative(values: Array, known: Array, how: Literal["zscore", "rank"]) -> Array:
    """`[T, N]` float64: `values` relative to those `known` `[T, N]` in their row, 0 elsewhere; see `cross_section`."""
    count = known.sum(axis=1, keepdims=True)
    if how == "rank":
        ranks = rankdata(np.where(known, values, np.inf), axis=1)  # what is unknown comes after everything known
        centred = np.where(known, ranks - (count + 1) / 2, 0.0)
        spread = np.sqrt(np.maximum(count**2 - 1, 1) / 12)
    else:
        mean = np.where(known, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
        centred = np.where(known, values - mean, 0.0)
        spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count, 1))
        spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(mean)), spread, np.inf)
    return np.where(count >= FEWEST, centred / spread, 0.0)


def scale(values: Array, train: tuple[int, int], scaled: Array) -> tuple[Array, Array]:
    """Mean and standard deviation `[F]` of each column of `[T, N, F]` over the training window, of finite values only.

    0 and 1 for columns that are not `scaled` (`[F]` bool), hold nothing finite, or do not vary.
    """
    width = values.shape[2]
    blocks = [slice(start, min(start + _BLOCK, train[1])) for start in range(train[0], train[1], _BLOCK)]
    count, total, square = np.zeros(width), np.zeros(width), np.zeros(width)
    for rows in blocks:
        block = values[rows].astype(np.float64)
        finite = np.isfinite(block)
        count += finite.sum(axis=(0, 1))
        total += np.where(finite, block, 0.0).sum(axis=(0, 1))
    mean = total / np.maximum(count, 1)
    for rows in blocks:
        block = values[rows].astype(np.float64) - mean
        square += (np.where(np.isfinite(block), block, 0.0) ** 2).sum(axis=(0, 1))
    spread = np.sqrt(square / np.maximum(count, 1))
    varies = scaled & (spread > 1e-12 * np.maximum(1.0, np.abs(mean)))
    return np.where(scaled, mean, 0.0), np.where(varies, spread, 1.0)


def standardise(
    values: Array, names: Sequence[str], train: tuple[int, int], scaled: Array, clip: float
) -> dict[str, dict[str, float]]:
    """In place: (x − mean) / std with the statistics of `scale`, which are returned by name; 0 where undefined.

    `scaled` columns are cut off at ±clip.
    """
    mean, spread = scale(values, train, scaled)
    low, high = np.where(scaled, -clip, -np.inf), np.where(scaled, clip, np.inf)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        block[...] = np.clip((block - mean) / spread, low, high)
        np.nan_to_num(block, copy=False, nan=0.0, posinf=clip, neginf=-clip)
    return {name: {"mean": float(m), "std": float(s)} for name, m, s in zip(names, mean, spread, strict=True)}
