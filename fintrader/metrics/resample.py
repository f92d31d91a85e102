"""From an equity curve at every bar to one value, and one return, a session."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
TRADING_DAYS = 252
"""Sessions in a year: the convention of the paper's table and of empyrical."""


def session_ends(session: ArrayLike) -> NDArray[np.int64]:
    """Index of the last bar of each session, `[S]`. `session`: `[T]`, never decreasing."""
    numbers = np.asarray(session)
    if numbers.size == 0:
        return np.empty(0, dtype=np.int64)
    return np.append(np.flatnonzero(np.diff(numbers)), numbers.size - 1).astype(np.int64)


def session_starts(session: ArrayLike) -> NDArray[np.int64]:
    """Index of the first bar of each session, `[S]`. `session`: `[T]`, never decreasing, not empty."""
    return np.append(0, session_ends(session)[:-1] + 1)


def daily_equity(equity: ArrayLike, session: ArrayLike) -> Array:
    """The last value of each session: `[T]` (or `[T, B]`) and `[T]` -> `[S]` (or `[S, B]`)."""
    values: Array = np.asarray(equity, dtype=np.float64)[session_ends(session)]
    return values


def returns_of(equity: ArrayLike, start: Any = None) -> Array:
    """Simple returns along axis 0. With `start` (USD) the first value is a return too, against that capital.

    A value that follows zero equity returns 0: nothing is left that could grow.
    """
    values = np.asarray(equity, dtype=np.float64)
    if start is not None:
        values = np.concatenate([np.broadcast_to(np.asarray(start, dtype=np.float64), values[:1].shape), values])
    before, after = values[:-1], values[1:]
    alive = before != 0
    return np.where(alive, after / np.where(alive, before, 1.0) - 1, 0.0)


def daily_returns(equity: ArrayLike, session: ArrayLike, start: Any = None) -> Array:
    """Return of each session, the first one against the starting capital: `[T]`, `[T]` -> `[S]`.

    `start` defaults to the first equity value, which a backtest books before anything has been traded.
    """
    values = np.asarray(equity, dtype=np.float64)
    if values.shape[0] == 0:
        return values
    return returns_of(daily_equity(values, session), values[0] if start is None else start)
