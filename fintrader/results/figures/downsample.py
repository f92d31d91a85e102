"""Fewer points, same picture: a long series keeps its exact extremes, its first and its last point.

Minute series are drawn with at most a few thousand points. In each bucket of neighbouring points
the first, the lowest, the highest and the last are kept (the M4 aggregation of Jugel et al., VLDB
2014), so that no spike, no drawdown and no gap is lost or invented: every drawn point is a stored
one. That holds only for lines over an ordered axis. Point clouds keep an even sample, whose size
the figure states. Loose segments are sampled evenly, none is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fintrader.metrics import Array

MAX_CHART_BYTES = 300_000
MOST_POINTS = 4_000
FEWEST_POINTS = 64
Indices = npt.NDArray[np.int64]


def keep(values: Array, points: int) -> Indices:
    """Choose ascending indices of at most `points` (>= 8) of the values `[T]`.

    The global minimum and maximum, the first and the last value are always among them. Where values
    are missing (NaN) between two kept ones, a missing one is kept too: a line must not be drawn
    over a gap.
    """
    size = len(values)
    if size <= points:
        return np.arange(size)
    missing = np.isnan(values)
    buckets = points // (8 if missing.any() else 4)
    edges = np.linspace(0, size, buckets + 1).astype(np.int64)
    lowest = _arg(np.minimum, np.where(missing, np.inf, values), edges)
    highest = _arg(np.maximum, np.where(missing, -np.inf, values), edges)
    kept = np.unique(np.concatenate([edges[:-1], edges[1:] - 1, lowest, highest]))
    gaps = np.flatnonzero(missing)
    if not len(gaps):
        return kept
    after = gaps[np.searchsorted(gaps, kept[:-1], side="right").clip(max=len(gaps) - 1)]
    return np.union1d(kept, after[(after > kept[:-1]) & (after < kept[1:])])


def _arg(ufunc: Any, values: Array, edges: Indices) -> Indices:
    """Index of each bucket's first extreme."""
    extremes = ufunc.reduceat(values, edges[:-1])
    hits = np.flatnonzero(values == np.repeat(extremes, np.diff(edges)))
    return hits[np.searchsorted(hits, edges[:-1])]


def sample(values: Array | None, size: int, points: int) -> Indices:
    """Choose ascending indices of about `points` of `size`, evenly spread, with the extremes of
    `values`."""
    if size <= points:
        return np.arange(size)
    even = np.linspace(0, size - 1, max(2, points - 2)).astype(np.int64)
    if values is None or np.isnan(values).all():
        return np.unique(even)
    return np.union1d(even, [int(np.nanargmin(values)), int(np.nanargmax(values))])


def figure_bytes(figure: Any) -> int:
    """Measure the bytes that the browser receives for a figure."""
    return len(figure.to_json().encode())


def fit(figure: Any, limit: int = MAX_CHART_BYTES) -> Any:
    """Thin out the scatters of a plotly figure, in place, until it weighs at most `limit` bytes;
    returns it.

    Where points of a cloud are left out, `figure.layout.meta["shown"]` has the number of drawn
    points and of all points. Bars, heat maps and candles must be small from the start;
    `charts.show` leaves out figures above the limit.
    """
    scatters = [
        (trace, _columns(trace))
        for trace in figure.data
        if trace.type in {"scatter", "scattergl"} and _size(trace)
    ]
    points = MOST_POINTS
    while True:
        shown = total = 0
        for trace, columns in scatters:
            kept = _choose_points(trace, columns, points)
            if not _has_lines(trace):
                shown = shown + len(kept)
                total = total + _size(columns)
            if len(kept) < _size(columns):
                for name, values in columns.items():
                    column = values[kept]
                    is_time = np.issubdtype(column.dtype, np.datetime64)
                    trace[name] = stamps(column) if is_time else column
        if shown < total:
            figure.layout.meta = {**(figure.layout.meta or {}), "shown": [shown, total]}
        if points <= FEWEST_POINTS or figure_bytes(figure) <= limit:
            return figure
        points //= 2


def _size(trace: Any) -> int:
    """Count the points of a trace whose `y` is a plain array."""
    y = trace["y"]
    return len(y) if isinstance(y, list | tuple | np.ndarray) else 0


def _has_lines(trace: Any) -> bool:
    return trace.mode is None or "lines" in trace.mode


def _columns(trace: Any) -> dict[str, npt.NDArray[Any]]:
    """Collect the arrays of a trace with one entry per point, by dotted name: `x`, `customdata`,
    `marker.color` ..."""
    size = _size(trace)
    return {
        name: np.asarray(
            value, dtype=object if isinstance(value, list | tuple) and name != "y" else None
        )
        for name, value in _arrays(trace.to_plotly_json())
        if len(value) == size and not name.endswith("colorscale")
    }


def _arrays(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _arrays(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple | np.ndarray):
            yield f"{prefix}{name}", value


def _choose_points(trace: Any, columns: dict[str, npt.NDArray[Any]], points: int) -> Indices:
    """Choose the points to draw: a line keeps its extremes, a cloud is sampled, loose segments stay
    whole."""
    size = _size(columns)
    y = np.asarray(pd.to_numeric(pd.Series(columns["y"]), errors="coerce"), np.float64)
    if size <= points:
        return np.arange(size)
    if not _has_lines(trace):
        return sample(y, size, points)
    # All traces of a stack keep the same points: a missing one would count as 0.
    if trace.stackgroup is not None:
        return sample(None, size, points)
    # Without x, points are numbered.
    if "x" not in columns or pd.Index(columns["x"]).is_monotonic_increasing:
        return keep(y, points)
    if size % 3 == 0 and np.isnan(y[2::3]).all() and not np.isnan(y[0::3]).any():
        firsts = 3 * sample(None, size // 3, points // 3)
        return (firsts[:, None] + np.arange(3)).ravel()
    return np.arange(size)  # a path through the plane needs all its points


def stamps(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Write `datetime64` as short text: days if all are midnights, else to the minute or finer."""
    for unit in ("D", "m", "s"):
        rounded = times.astype(f"datetime64[{unit}]")
        if bool(np.all((rounded == times) | np.isnat(times))):
            return np.datetime_as_string(rounded, unit=unit).astype(object)
    return np.datetime_as_string(times).astype(object)
