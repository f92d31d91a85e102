"""Scale columns: across the members at each bar, or by mean and standard deviation of the training
window.

A market stores the statistics of its scaling (`Normalisation`); a later market can be scaled by
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fintrader.bars.bars import Array
from fintrader.errors import DataError
from fintrader.files import unseal
from fintrader.market.columns import Sheet
from fintrader.market.market_file import read_description
from fintrader.records import RecordError, from_json
from fintrader.results.market_description import BuildRecord, ColumnScale, Normalisation
from fintrader.storage.objects import read_whole

if TYPE_CHECKING:
    from fintrader.market.features import FeatureSettings

_BLOCK = 4096
FEWEST = 3
"""Fewest members that a cross-section needs."""


def cross_section(
    values: Array,
    member: Array,
    columns: Sequence[int],
    how: Literal["zscore", "rank"],
    clip: float,
) -> None:
    """Express `columns` of `[T, N, F]` relative to the members (`[T, N]` bool) with a known value
    at that bar, in place.

    `zscore` is (x - mean) / std, cut off at ±clip. `rank` is (r - (n + 1) / 2) / sqrt((n² - 1) /
    12), where r is the rank from 1 to n (equal values share one): mean 0 and deviation 1 for every
    n. 0 for all other cells, where all values are equal, and with fewer than three members.
    """
    for column in columns:
        block = values[:, :, column].astype(np.float64)
        known = member & np.isfinite(block)
        values[:, :, column] = relative(block, known, how).clip(-clip, clip)


def relative(values: Array, known: Array, how: Literal["zscore", "rank"]) -> Array:
    """`[T, N]` float64: `values` relative to those `known` `[T, N]` in their row, 0 elsewhere; see
    `cross_section`."""
    count = known.sum(axis=1, keepdims=True)
    if how == "rank":
        from scipy.stats import rankdata  # slow to load

        # unknown values rank last
        ranks = rankdata(np.where(known, values, np.inf), axis=1)
        centred = np.where(known, ranks - (count + 1) / 2, 0.0)
        spread = np.sqrt(np.maximum(count**2 - 1, 1) / 12)
    else:
        mean = np.where(known, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
        centred = np.where(known, values - mean, 0.0)
        spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count, 1))
        spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(mean)), spread, np.inf)
    return np.where(count >= FEWEST, centred / spread, 0.0)


def scale(values: Array | Sheet, train: tuple[int, int], scaled: Array) -> tuple[Array, Array]:
    """Mean and standard deviation `[F]` of each column of `[T, N, F]` over the training window, of
    finite values only.

    0 and 1 for columns that are not `scaled` (`[F]` bool), hold nothing finite, or do not vary.
    """
    if not scaled.any():
        return np.zeros(len(scaled)), np.ones(len(scaled))
    mean = _average(values, train, np.zeros(len(scaled)), is_squared=False)
    spread = np.sqrt(_average(values, train, mean, is_squared=True))
    varies = scaled & (spread > 1e-12 * np.maximum(1.0, np.abs(mean)))
    return np.where(scaled, mean, 0.0), np.where(varies, spread, 1.0)


def _average(
    values: Array | Sheet, train: tuple[int, int], mean: Array, *, is_squared: bool
) -> Array:
    """`[F]`: the average of the finite distances from `mean`, or of their squares, over the
    training window of `[T, N, F]`.

    Blocks of `_BLOCK` bars are summed separately. The order is numpy's: several columns row by row,
    a single one in pairs.
    """
    from fintrader.bars import kernels

    total = np.zeros(len(mean))
    count = np.zeros(len(mean))
    for start in range(*train, _BLOCK):
        block = values[start : min(start + _BLOCK, train[1])]
        rows = block.reshape(len(block) * block.shape[1], block.shape[2])
        part = np.zeros(len(mean))
        if len(mean) == 1:
            distance = rows.astype(np.float64) - mean
            finite = np.isfinite(distance)
            distance = np.where(finite, distance, 0.0)
            part = (np.square(distance) if is_squared else distance).sum(axis=0)
            count += finite.sum(axis=0)
        else:
            kernels.add_distances(rows, mean, is_squared, part, count)
        total += part
    return total / np.maximum(count, 1)


def apply_scale(values: Array, mean: Array, spread: Array, scaled: Array, clip: float) -> None:
    """Apply (x − mean) / std to `[T, N, F]` in place; cut `scaled` columns off at ±clip, and write
    0 where undefined."""
    from fintrader.bars import kernels

    low = np.where(scaled, -clip, -np.inf)
    high = np.where(scaled, clip, np.inf)
    rows = values.view()
    rows.shape = values.shape[0] * values.shape[1], values.shape[2]  # never a copy
    kernels.apply_scale(rows, mean, spread, low, high, clip)


def name_scales(names: Sequence[str], mean: Array, spread: Array) -> dict[str, ColumnScale]:
    """Name the means and deviations `[F]` by their columns."""
    return {
        name: ColumnScale(float(m), float(s))
        for name, m, s in zip(names, mean, spread, strict=True)
    }


def read_statistics(path: str) -> Normalisation:
    """Read the statistics by which a market was scaled.

    path: the market's file, the `build.json` next to it, or a JSON file of `Normalisation`. Raises
    DataError for any other file.
    """
    setting = "data.features.normalisation"
    reason: object = "it holds no statistics"
    found = None
    if path.endswith(".safetensors"):
        found = read_description(path)[0].normalisation
    else:
        data = read_whole(path, setting)
        try:
            body = json.loads(data)
            if "sha256" in body:
                body = unseal(data, DataError(f"{path} is damaged; build its market again"))
                found = from_json(BuildRecord, body).normalisation
            else:
                found = from_json(Normalisation, body)
        except (ValueError, TypeError, RecordError) as error:
            reason = error
    if found is None:
        raise DataError(
            f"{path} does not say how a market was scaled ({reason}): give a market file, its"
            " build.json, or JSON of features and context (column -> mean and std), clip and"
            f" cross_sectional; see {setting}"
        )
    return found


def fit_scales(
    part: Literal["features", "context"],
    values: Array | Sheet,
    names: Sequence[str],
    scaled: Array,
    train: tuple[int, int],
    settings: FeatureSettings,
) -> tuple[Array, Array]:
    """Return the means and deviations `[F]` of the columns of `[T, N, F]`: from `scale`, or as
    stored in the file that `settings` name.

    Raises DataError if the stored statistics lack a column, or were made by other rules.
    """
    if settings.normalisation is None:
        return scale(values, train, scaled)
    stored = read_statistics(settings.normalisation)
    scales: Mapping[str, ColumnScale] = getattr(stored, part)
    remedy = "build with the same data.features as the market of data.features.normalisation"
    lacking = [name for name in names if name not in scales]
    if lacking:
        raise DataError(f"the stored statistics have no {', '.join(lacking)} ({part}); {remedy}")
    for name in ("clip", "cross_sectional"):
        theirs, own = (getattr(one, name) for one in (stored, settings))
        if theirs != own:
            raise DataError(f"the stored statistics are for {name} {theirs}, not {own}; {remedy}")
    chosen = [scales[name] for name in names]
    for name, column, is_scaled in zip(names, chosen, scaled, strict=True):
        if not is_scaled and column != ColumnScale(0.0, 1.0):
            raise DataError(
                f"{name} was standardised in the market of the stored statistics and is not here;"
                f" {remedy}"
            )
    return np.array([one.mean for one in chosen]), np.array([one.std for one in chosen])
