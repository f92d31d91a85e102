"""Fewer points, same picture: a long series keeps its exact extremes, its first and its last point.

Minute series are drawn with at most a few thousand points. In each bucket of neighbouring points the first, the lowest,
the highest and the last are kept (the M4 aggregation of Jugel et al., VLDB 2014), so that no spike, no drawdown and no
gap is lost or invented: every drawn point is a stored one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_CHART_BYTES = 300_000


def keep(values: npt.NDArray[np.float64], points: int) -> npt.NDArray[np.int64]:
    """Indices, ascending, of at most `points` (>= 8) of the values `[T]`; NaN is kept only as a gap.

    The global minimum and maximum, the first and the last value are always among them.
    """
    size = len(values)
    if size <= max(points, 8):
        return np.arange(size)
    buckets = max(points, 8) // 4
    edges = np.linspace(0, size, buckets + 1).astype(np.int64)
    starts = edges[:-1]
    missing = np.isnan(values)
    low = np.where(missing, np.inf, values)
    high = np.where(missing, -np.inf, values)
    chosen = [starts, edges[1:] - 1, _arg(np.minimum, low, edges), _arg(np.maximum, high, edges)]
    return np.unique(np.concatenate(chosen))


def _arg(ufunc: Any, values: npt.NDArray[np.float64], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Index of each bucket's first extreme."""
    extremes = ufunc.reduceat(values, edges[:-1])
    hits = np.flatnonzero(values == np.repeat(extremes, np.diff(edges)))
    return hits[np.searchsorted(hits, edges[:-1])]


def figure_bytes(figure: Any) -> int:
    """What a figure weighs on its way to the browser."""
    return len(figure.to_json().encode())


def fit(figure: Any, limit: int = MAX_CHART_BYTES) -> Any:
    """Thin out the lines of a plotly figure, in place, until it weighs at most `limit` bytes; returns it.

    Only lines and point clouds are thinned; bars, heat maps and candles are built small by who builds them.
    """
    lines = [trace for trace in figure.data if trace.type in {"scatter", "scattergl"} and trace.y is not None]
    points = 4_000
    original = [(trace, _columns(trace)) for trace in lines]
    while True:
        for trace, columns in original:
            _thin(trace, columns, points)
        if points <= 64 or figure_bytes(figure) <= limit:
            return figure
        points //= 2


_PER_POINT = ("x", "y", "text", "customdata", "hovertext", "ids")


def _columns(trace: Any) -> dict[str, Any]:
    size = len(trace.y)
    found = {}
    for name in _PER_POINT:
        value = getattr(trace, name, None)
        if value is not None and not isinstance(value, str) and len(value) == size:
            found[name] = np.asarray(value)
    return found


def _thin(trace: Any, columns: dict[str, Any], points: int) -> None:
    y = columns["y"]
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError):
        return
    kept = keep(numbers, points)
    for name, values in columns.items():
        column = values[kept]
        if np.issubdtype(column.dtype, np.datetime64):
            column = stamps(column)
        trace[name] = column


def stamps(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`datetime64` as short text: days when all are midnights, else to the minute or, if need be, finer."""
    for unit in ("D", "m", "s"):
        rounded = times.astype(f"datetime64[{unit}]")
        if bool(np.all((rounded == times) | np.isnat(times))):
            return np.datetime_as_string(rounded, unit=unit).astype(object)
    return np.datetime_as_string(times).astype(object)
