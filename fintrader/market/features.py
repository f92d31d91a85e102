"""The features of a market: names like `return_30`, a kind and its window in bars.

Every value at bar t is made of bars up to t; later bars change no bit. Most kinds read one
symbol's bars, adjusted forward; `beta` reads all closes at once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, PositiveFloat, ValidationInfo, field_validator
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from fintrader.bars.bars import MINUTE_NS, Array
from fintrader.bars.clean import SymbolBars
from fintrader.config import Own, OwnFunction, PathText, Settings, load_object
from fintrader.errors import OWN_FAILURES, ConfigError, DataError
from fintrader.market.columns import Sheet
from fintrader.market.moving import (
    moving_deviation,
    moving_mean,
    moving_moments,
    moving_sum,
)


class FeatureSettings(Settings):
    """Features of a market, and their scaling."""

    names: tuple[Own, ...] = (
        "return_1",
        "return_5",
        "return_30",
        "volatility_30",
        "volume_30",
        "rsi_30",
        "macd",
        "bollinger_upper",
        "bollinger_lower",
        "sma_60",
    )
    """`kind_window`, or a function of one symbol's bars, in YAML `package.module:function`. Kinds:
    return, gap, intraday, volatility, beta, volume, relative_volume, rsi, cci, dx, macd,
    bollinger_upper, bollinger_lower, sma, age."""
    scaling: Literal["window", "zscore", "rank", "none"] = "window"
    """Scale of `names` and `extra`. `window`: by mean and standard deviation of the training
    window. `zscore` and `rank` compare a symbol with the other members at the same bar: by standard
    deviations from their mean, or by ranks with mean 0 and deviation 1. They use no training
    statistics; context columns are then scaled by `window`. `none`: no scaling."""
    extra: tuple[str, ...] = ()
    """Extra columns of the bars that become features, scaled like `names`."""
    context: tuple[str, ...] = (
        "time_of_day",
        "time_to_close",
        "turbulence",
        "index_return_1",
        "index_return_30",
    )
    """Columns common to all symbols. Kinds: time_of_day, time_to_close, index_return_K,
    index_volatility_K, turbulence_K (a finished day's returns against those of the K days before
    it; `turbulence`: 60)."""
    daily: Mapping[str, PathText] = Field(default_factory=dict)
    """Daily series that become context, name -> CSV or Parquet file with date and close, like {vix:
    vix.csv}: each bar sees the logarithm of the last finished day's close."""
    known_at: Mapping[str, str] = Field(default_factory=dict)
    """Time at which values of `extra` and `daily` became known, by name: a column of the same table
    (a date counts once it is over), or a lag after the row's own time (3w, 45d, 2h, 30min). A bar
    sees the last value that was known at its close. `trusted`, the default, takes values as they
    are; every verdict names the columns that do."""
    clip: PositiveFloat = 10.0
    """Clip scaled features at this many standard deviations."""
    normalisation: PathText | None = None
    """Scale by an earlier market's statistics, not the training window's: its file, its build.json,
    or a JSON of statistics. A policy trained on that market can then trade later bars, scaled as in
    its training."""

    @property
    def cross_sectional(self) -> Literal["none", "zscore", "rank"]:
        """Scale across the members of a bar."""
        return "none" if self.scaling == "window" else self.scaling

    @property
    def standardise(self) -> bool:
        """True where columns are scaled by the training window."""
        return self.scaling != "none"

    @field_validator("known_at")
    @classmethod
    def _known_names(cls, value: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        others = (*info.data.get("extra", ()), *info.data.get("daily", ()))
        for name in value:
            if name not in others:
                raise ValueError(f"{name!r} is neither in extra nor in daily; add it there")
        return value

    @field_validator("names")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if ":" not in name:
                _parse(name)
            elif value.count(name) > 1:
                raise ValueError(f"two features are called {name}; give each a `def` of its name")
        return value

    @field_validator("context")
    @classmethod
    def _known_context(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            known = name in ("time_of_day", "time_to_close") or _INDEX.fullmatch(name)
            days = turbulence_days(name)
            if not known and days is None:
                raise ValueError(
                    f"{name!r} is no context; known: time_of_day, time_to_close, turbulence,"
                    " turbulence_K, index_return_K, index_volatility_K"
                )
            if days is not None and days < FEWEST_TURBULENCE_DAYS:
                raise ValueError(
                    f"{name!r}: a covariance needs {FEWEST_TURBULENCE_DAYS} days or more"
                )
        return value


def read_names(value: Any) -> Any:
    """Read a list of features, or a single one, as the mapping `{"names": [...]}`. Raises
    ConfigError for a mapping of functions."""
    if isinstance(value, Mapping):
        if any(callable(own) for own in value.values() if own is not value.get("names")):
            raise ConfigError(
                "features: give functions as a list, [f, g]; features are named after them"
            )
        names = read_names(value.get("names"))
        return {**value, **names} if isinstance(names, dict) else value
    if isinstance(value, str) or callable(value):
        value = [value]
    return {"names": list(value)} if isinstance(value, list | tuple) else value


TRUSTED = "trusted"
_LAG = re.compile(r"(\d+) ?(min|h|d|w)", re.IGNORECASE)
_UNITS_NS = {"min": MINUTE_NS, "h": 60 * MINUTE_NS, "d": 1440 * MINUTE_NS, "w": 10080 * MINUTE_NS}


def lag_ns(text: str) -> int | None:
    """Read a time like 45d, 2h or 30min, in nanoseconds, 0 for `trusted`; None for a column."""
    if text == TRUSTED:
        return 0
    match = _LAG.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS_NS[match[2].lower()]


def log_return(bars: SymbolBars, window: int) -> Array:
    """ln(close[t] / close[t - window])."""
    result = np.full(bars.close.shape, np.nan)
    result[..., window:] = np.log(bars.close[..., window:] / bars.close[..., :-window])
    return result


def gap(bars: SymbolBars, window: int) -> Array:
    """ln(open / previous close) of a session, summed over the last `window` sessions. The open is
    that of the session's first trade, known once that bar has closed; 0 before it."""
    sessions = _find_sessions(bars)
    return sessions.sum_sessions(sessions.night, window)


def intraday(bars: SymbolBars, window: int) -> Array:
    """ln(close[t] / open of the session), plus ln(close / open) of the `window - 1` sessions
    before."""
    sessions = _find_sessions(bars)
    return sessions.sum_sessions(np.log(sessions.close / sessions.open), window)


class _Sessions:
    """A symbol's sessions and their opening prices, as known at every bar; if only the last
    `wanted` bars are needed, at the sessions' ends and then at those bars."""

    def __init__(self, bars: SymbolBars) -> None:
        length = len(bars)
        rows = np.arange(length)
        begins = np.diff(bars.session, prepend=bars.session[:1] - 1) != 0
        starts = np.flatnonzero(begins)
        last = np.append(starts[1:], length) - 1
        at = np.append(last, rows[-bars.wanted :]) if bars.wanted else rows
        self._ends = slice(0, len(last)) if bars.wanted else last
        self._wanted = slice(len(last) if bars.wanted else 0, None)
        self._number = (np.cumsum(begins) - 1)[at]
        self._skipped = int(bars.session[0]) if bars.skipped else 0
        traded = np.where(bars.tradable, rows, length)
        first = np.minimum.reduceat(traded, starts, axis=-1)
        opens = np.take_along_axis(bars.open, np.minimum(first, length - 1), axis=-1)
        known = first[..., self._number] <= at
        self.close = bars.close[..., at]
        self.open = np.where(known, opens[..., self._number], self.close)
        """The open, or before the session's first trade the carried close."""
        before = np.full(first.shape, np.nan)
        before[..., 1:] = bars.close[..., starts[1:] - 1]
        self.night = np.log(self.open / before[..., self._number])

    def sum_sessions(self, values: Array, window: int) -> Array:
        """Sum `values` at each bar (or those `wanted`) and the ends of the `window - 1` sessions
        before; NaN with fewer."""
        here = values[..., self._wanted]
        if window == 1:
            return here
        ends = values[..., self._ends]
        before = np.full(ends.shape, np.nan)
        before[..., 1:] = moving_sum(ends, window - 1, self._skipped)[..., :-1]
        return np.asarray(here + before[..., self._number[self._wanted]])


@lru_cache(maxsize=1)
def _find_sessions(bars: SymbolBars) -> _Sessions:
    return _Sessions(bars)


def volatility(bars: SymbolBars, window: int) -> Array:
    """Square root of the mean squared one-bar log return of the last `window` bars."""
    square = moving_mean(bars.steps, window, bars.skipped, bars.wanted, times=bars.steps)
    return np.asarray(np.sqrt(square))


def volume(bars: SymbolBars, window: int) -> Array:
    """Volume surprise: ln((1 + volume[t]) / (1 + mean volume of the last `window` bars))."""
    mean = moving_mean(bars.volume, window, bars.skipped, bars.wanted)
    return np.asarray(np.log1p(bars.volume[..., -bars.wanted :]) - np.log1p(mean))


def relative_volume(bars: SymbolBars, window: int) -> Array:
    """ln((1 + mean volume of the last `window` bars) / (1 + that of the last 20 times as many))."""
    short, long = (
        moving_mean(bars.volume, length, bars.skipped, bars.wanted)
        for length in (window, 20 * window)
    )
    return np.asarray(np.log1p(short) - np.log1p(long))


def _exponential_mean(values: Array, alpha: float) -> Array:
    from fintrader.bars import kernels

    series = np.ascontiguousarray(np.atleast_2d(values), dtype=np.float64)
    return np.asarray(kernels.exponential_mean(series, alpha).reshape(values.shape))


def _percentage(part: Array, total: Array, otherwise: float, window: int) -> Array:
    """100 · part / total, `otherwise` where the total is 0; NaN on the first `window` bars."""
    result = np.divide(100.0 * part, total, out=np.full(total.shape, otherwise), where=total > 0)
    result[..., :window] = np.nan
    return np.asarray(result)


def rsi(bars: SymbolBars, window: int) -> Array:
    """Relative strength index, 0 to 100: 100 · up / (up + down), Wilder means of rises and falls
    (50 if no move)."""
    change = np.diff(bars.close, prepend=bars.close[..., :1])
    up, down = (
        _exponential_mean(np.maximum(moved, 0.0), 1.0 / window) for moved in (change, -change)
    )
    return _percentage(up, up + down, 50.0, window)


def cci(bars: SymbolBars, window: int) -> Array:
    """Commodity channel index: (typical - mean) / (0.015 · mean absolute deviation), typical =
    (high+low+close)/3."""
    typical = (bars.high + bars.low + bars.close) / 3.0
    mean = moving_mean(typical, window, bars.skipped)
    spread = moving_deviation(typical, mean, window)
    distance = typical - mean
    # in a window without movement the quotient is rounding noise
    flat = spread <= 1e-12 * typical
    return np.where(
        np.isnan(spread),
        np.nan,
        np.divide(distance, 0.015 * spread, out=np.zeros(spread.shape), where=~flat),
    )


def dx(bars: SymbolBars, window: int) -> Array:
    """Directional movement index, 0 to 100: 100 · |+DI − −DI| / (+DI + −DI), Wilder means of the
    larger of the two movements at each bar (the true range, which divides both, cancels)."""
    rise = np.diff(bars.high, prepend=bars.high[..., :1])
    fall = -np.diff(bars.low, prepend=bars.low[..., :1])
    plus, minus = (
        _exponential_mean(np.where(own > np.maximum(other, 0.0), own, 0.0), 1.0 / window)
        for own, other in ((rise, fall), (fall, rise))
    )
    return _percentage(np.abs(plus - minus), plus + minus, 0.0, window)


def macd(bars: SymbolBars, window: int) -> Array:
    """(EMA of span 12 − EMA of span 26) / close; `window` stretches both spans (macd_2 has 24 and
    52)."""
    fast, slow = (_exponential_mean(bars.close, 2.0 / (span * window + 1)) for span in (12, 26))
    result = (fast - slow) / bars.close
    result[..., : 26 * window - 1] = np.nan
    return np.asarray(result)


def bollinger(bars: SymbolBars, window: int, deviations: float) -> Array:
    """(mean + 2 standard deviations) / close − 1, of the last `window` closes; − 2 for the lower
    band."""
    mean, deviation = _moments(bars, window)
    return (mean + deviations * deviation) / bars.close[..., -bars.wanted :] - 1.0


@lru_cache(maxsize=1)  # the second band takes the moments of the first
def _moments(bars: SymbolBars, window: int) -> tuple[Array, Array]:
    return moving_moments(bars.close, window, bars.skipped, bars.wanted)


def sma(bars: SymbolBars, window: int) -> Array:
    """Mean of the last `window` closes / close − 1."""
    mean = moving_mean(bars.close, window, bars.skipped, bars.wanted)
    return mean / bars.close[..., -bars.wanted :] - 1.0


def age(bars: SymbolBars, window: int) -> Array:
    """Bars since the last trade, at most `window`: the age of the carried price."""
    index = np.arange(len(bars))
    last = np.maximum.accumulate(np.where(bars.tradable, index, 0), axis=-1)
    return np.minimum(index - last, window).astype(np.float64)


def beta(own: Array, market: Array, window: int, skipped: int = 0, wanted: int = 0) -> Array:
    """Slope of the one-bar log returns `[..., L]` on those of the members' mean `[L]` (equal
    weights), over the last `window` bars."""
    mean, square, product, alone = (
        moving_mean(values, window, skipped, wanted, times)
        for values, times in ((market, 1.0), (market, market), (own, market), (own, 1.0))
    )
    variance = square - mean**2
    covariance = product - mean * alone
    moved = variance > 1e-12 * square  # no slope against a market without movement
    return np.asarray(
        np.divide(covariance, variance, out=np.full(covariance.shape, np.nan), where=moved)
    )


def member_return(close: Array | Sheet, member: Array | Sheet) -> Array:
    """`[T]` mean one-bar log return of the members with two prices; 0 where there is none.

    close: `[T, N]` float32 adjusted forward, NaN where unlisted; member: `[T, N]` bool.
    """
    mean = np.zeros(len(close))
    for start in range(1, len(close), 4096):  # two float64 copies may not fit memory
        rows = slice(start, min(start + 4096, len(close)))
        steps = np.diff(np.log(close[rows.start - 1 : rows.stop].astype(np.float64)), axis=0)
        mean[rows] = mean_return(steps, member[rows])
    return mean


def mean_return(steps: Array, member: Array) -> Array:
    """`[R]` mean of the finite log returns `[R, N]` of the members `[R, N]`."""
    counts = member & np.isfinite(steps)
    total = np.where(counts, steps, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(counts.sum(axis=1), 1))


class _Kind(NamedTuple):
    """A kind of features."""

    function: Callable[..., Array]
    """Computes values `[L]` from `SymbolBars` and a window."""
    window: int
    """Window of a name without one."""
    reach: float = 1.0
    """Bars that a value depends on, in windows; for exponential means, until earlier bars are lost
    to rounding."""
    is_endless: bool = False
    """True if a value depends on all earlier bars."""
    in_sessions: bool = False
    """True if its windows are sessions."""


_FEATURES = {
    "return": _Kind(log_return, 1),
    "gap": _Kind(gap, 1, in_sessions=True),
    "intraday": _Kind(intraday, 1, in_sessions=True),
    "volatility": _Kind(volatility, 30),
    "volume": _Kind(volume, 30),
    "relative_volume": _Kind(relative_volume, 390, 20.0),
    "rsi": _Kind(rsi, 30, 40.0, is_endless=True),
    "cci": _Kind(cci, 30, 2.0),
    "dx": _Kind(dx, 30, 40.0, is_endless=True),
    "macd": _Kind(macd, 1, 520.0, is_endless=True),
    "bollinger_upper": _Kind(partial(bollinger, deviations=2.0), 20),
    "bollinger_lower": _Kind(partial(bollinger, deviations=-2.0), 20),
    "sma": _Kind(sma, 30),
    "age": _Kind(age, 60),
}
_MARKET_FEATURES = {"beta": _Kind(beta, 390)}
"""Kinds that read all symbols at once: functions of log returns and of `member_return`, both
`[L]`."""
TURBULENCE_DAYS = 60
"""Days that the column `turbulence` looks back on: a quarter."""
FEWEST_TURBULENCE_DAYS = 5
_INDEX = re.compile(r"index_(return|volatility)_([1-9]\d*)")


@cache
def _parse(name: str) -> tuple[_Kind, int]:
    """Return the kind and the window of a feature's name. Raises ValueError."""
    match = re.fullmatch(r"([a-z_]+?)(?:_([1-9]\d*))?", name)
    known = {**_FEATURES, **_MARKET_FEATURES}
    if not match or match.group(1) not in known:
        raise ValueError(
            f"{name!r} is no feature; known kinds: {', '.join(known)} (like rsi_30), or"
            " module:function; a column of the bars goes into features.extra"
        )
    kind = known[match.group(1)]
    return kind, int(match.group(2) or kind.window)


def is_kind(name: object) -> bool:
    """True for the name of a built-in feature, like `rsi_30`."""
    try:
        return bool(_parse(str(name)))
    except ValueError:
        return False


def reach(names: Sequence[str], context: Sequence[str] = ()) -> tuple[int, int]:
    """Count the bars and whole sessions that features and context look back on, without the daily
    series and turbulence. Raises ConfigError for a user's own function, whose reach is unknown."""
    bars = 1
    sessions = 0
    for name in names:
        if ":" in name:
            raise ConfigError(f"{name} looks back an unknown number of bars")
        kind, window = _parse(name)
        if kind.in_sessions:
            sessions = max(sessions, window)
        else:
            bars = max(bars, int(kind.reach * window) + 1)
    for name in context:
        match = _INDEX.fullmatch(name)
        if match:
            bars = max(bars, int(match.group(2)) + 1)
    return bars, sessions


def market_wide(names: Sequence[str]) -> list[str]:
    """Select the features that need all symbols (see `market_feature`)."""
    return [name for name in names if re.sub(r"_\d+$", "", name) in _MARKET_FEATURES]


def market_feature(name: str, close: Array, market: Array) -> Array:
    """Compute `[T]` float32 from a symbol's adjusted closes (NaN where unlisted) and
    `member_return`; NaN while undefined."""
    kind, window = _parse(name)
    result = np.full(len(close), np.nan, dtype=np.float32)
    listed = np.flatnonzero(np.isfinite(close))
    if len(listed) > window:
        rows = slice(int(listed[0]) + 1, int(listed[-1]) + 1)
        own = np.diff(np.log(close[listed[0] : listed[-1] + 1].astype(np.float64)))
        result[rows] = kind.function(own, market[rows], window)
    return result


def last_features(
    bars: SymbolBars, names: Sequence[str], rows: int, own: Array, market: Array
) -> Array:
    """Compute the features `[rows, N, F]` float32 of the last bars of `N` symbols, bit-equal to
    those that `symbol_features` and `market_feature` compute from all bars.

    own: `[N, L]` log returns of the closes as a market holds them; market: `[L]` `member_return`.
    Users' own functions, which read all bars, are not computed here.
    """
    table = np.empty((rows, len(bars.close), len(names)), dtype=np.float32)
    first = len(bars) - rows
    since = cache(bars.since)
    sessions = reach([name for name in names if name not in bars.extras])[1]
    for column, name in enumerate(names):
        if name in bars.extras:
            values = bars.extras[name]
        else:
            kind, window = _parse(name)
            start = max(first - int(kind.reach * window) - 1, 0)
            if kind.in_sessions:
                start = int(np.searchsorted(bars.session, bars.session[first] - sessions))
            if kind in _MARKET_FEATURES.values():
                start = max(start, 1)  # the first bar has no return
                values = kind.function(own[:, start:], market[start:], window, start - 1, rows)
            else:
                values = kind.function(since(0 if kind.is_endless else start), window)
        table[..., column] = values[:, -rows:].T
    table[np.isnan(bars.close[:, -rows:]).T] = np.nan  # after a symbol's end
    return table


def symbol_features(
    bars: SymbolBars, names: Sequence[str], later: Collection[str] = (), dtype: type = np.float64
) -> Array:
    """Compute the features `[L, F]` of `dtype`, NaN while undefined. Columns in `later`, which need
    all symbols, are NaN throughout.

    Raises DataError when a user's function returns another shape.
    """
    # written column by column
    table: Array = np.empty((len(bars), len(names)), dtype=dtype, order="F")
    for column, name in enumerate(names):
        if name in later:
            values = np.full(len(bars), np.nan)
        elif ":" in name:
            values = _compute_checked(name, bars)
        elif name in bars.extras:
            values = bars.extras[name]
        else:
            try:
                kind, window = _parse(name)
            except ValueError as error:
                raise ConfigError(f"data.features.names: {error}") from None
            values = kind.function(bars, window)
        table[:, column] = values
    return table


def _compute_checked(name: str, bars: SymbolBars) -> Array:
    """Compute a user's own feature `[L]`; check that a Python function does not look ahead. The
    function is called again with the first two thirds of the bars, with one bar more (only one of
    two bars in a row can end a session or a week), and with two bars (a gap may be filled
    backwards). Its values of these bars must not change. Raises DataError."""
    values = _compute_own(name, bars)
    third = 2 * len(bars) // 3
    for cut in (third, third + 1, 2) if isinstance(name, OwnFunction) else ():
        try:
            earlier = _compute_own(name, bars.until(cut))
        except DataError as error:
            # it was given fewer bars, and returned values of all
            if cut > 2 and error.__cause__ is None:
                raise
            continue  # some functions need more bars
        same = np.isclose(values[:cut], earlier, rtol=1e-6, atol=1e-12, equal_nan=True)
        if not same.all():
            raise DataError(
                f"feature {name} of {bars.symbol} looks ahead: its value at"
                f" {bars.time[int(same.argmin())]} changes when the bars from"
                f" {bars.time[cut]} on are cut off; compute row t from bars up to t"
            )
    return values


MOST_CONSTANTS = 50
"""Longest list of constants; a longer one is data."""


def reads_data(name: str) -> bool:
    """True if a Python function reads tables or arrays that are not its argument: shortened bars
    cannot show whether these look ahead."""
    if not isinstance(name, OwnFunction):
        return False
    call: Any = name.call
    function = inspect.unwrap(getattr(call, "func", call))
    if not inspect.isfunction(function):
        return not inspect.isbuiltin(function)
    found = inspect.getclosurevars(function)
    given = [getattr(call, "args", ()), getattr(call, "keywords", ()), function.__defaults__]
    return _is_data([found.nonlocals, found.globals, *given])


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return len(value) > MOST_CONSTANTS or any(map(_is_data, value))
    is_array = hasattr(value, "__array__") and not isinstance(value, type)
    return is_array and getattr(value, "ndim", 1) > 0  # numpy's scalars have no dimension


def _compute_own(name: str, bars: SymbolBars) -> Array:
    own = load_object(name)
    try:
        # A copy: the function may write to it, and it does not show that the symbol ends.
        values = np.asarray(own(bars.until(len(bars))), dtype=np.float64)
    except OWN_FAILURES as error:
        raise DataError(
            f"feature {name} of {bars.symbol}: {type(error).__name__}: {error}; it gets arrays [L],"
            " bars.close, bars.volume, ..., and bars.time; bars.to_pandas() is a table of them"
        ) from error
    if values.shape != (len(bars),):
        raise DataError(
            f"feature {name} returned shape {values.shape}; it must return ({len(bars)},)"
        )
    return values


def count_undefined(
    names: Sequence[str], table: Array, later: Collection[str], extras: Collection[str]
) -> int:
    """Count the first bars of a symbol before the windows of its features `[L, F]` are full.

    Features, users' own too, are NaN until then; columns of the file (`extras`) and a planted
    signal have no window.
    """
    wide = market_wide(names)
    counts = [_parse(name)[1] for name in wide]
    for column, name in enumerate(names):
        if name not in later and name not in extras:
            known = np.isfinite(table[:, column])
            counts.append(int(known.argmax()) if known.any() else len(table))
    return min(max(counts, default=0), len(table))


def context_features(
    names: Sequence[str],
    session: Array,
    *,
    benchmark: Array,
    day_close: Array,
    member: Array,
) -> Array:
    """Context columns `[T, M]` float64, NaN while undefined.

    session `[T]`: number from 0; benchmark `[T]`; day_close `[S, N]`: closes by session (NaN where
    unlisted), of which bar t sees the earlier sessions'; member `[S, N]` bool, by session.
    """
    length = np.bincount(session)
    # the bar's number in its session
    inside = np.arange(len(session)) - (np.cumsum(length) - length)[session]
    steps = np.diff(np.log(benchmark), prepend=np.log(benchmark[:1]))
    table = np.empty((len(session), len(names)))
    for column, name in enumerate(names):
        match = _INDEX.fullmatch(name)
        if match and match.group(1) == "return":
            values = moving_sum(steps, int(match.group(2)))
        elif match:
            values = np.sqrt(moving_mean(steps * steps, int(match.group(2))))
        elif name == "time_of_day":
            values = 2.0 * (inside + 0.5) / length.max() - 1.0
        elif name == "time_to_close":
            values = 2.0 * (length[session] - inside - 0.5) / length.max() - 1.0
        elif (days := turbulence_days(name)) is not None:
            before = turbulence(day_close, member, days)[:-1]
            values = np.log1p(np.append(np.nan, before))[session]
        table[:, column] = values
    return table


def turbulence_days(name: str) -> int | None:
    """Read the days that a column of turbulence looks back on; None for another context column."""
    match = re.fullmatch(r"turbulence(?:_([1-9]\d*))?", name)
    return None if match is None else int(match.group(1) or TURBULENCE_DAYS)


@cache
def _find_pools() -> Any:
    return ThreadpoolController()


def turbulence(day_close: Array, member: Array, days: int) -> Array:
    """`[S]`: squared Mahalanobis distance of each day's returns from the `days` before, per symbol.

    day_close: `[S, N]`, NaN where unlisted; member: `[S, N]` bool, on the day itself.
    d[s] = (y[s] − μ)ᵀ Σ⁻¹ (y[s] − μ) / n, with μ and Σ of days s − days … s − 1 (Kritzman & Li
    2010, doi: 10.2469/faj.v66.n5.3). Σ is shrunk half-way to its diagonal, because there are often
    more symbols than days. Only members with a price on all these days count. NaN while fewer than
    `days` are finished.
    """
    returns = np.full(day_close.shape, np.nan)
    returns[1:] = np.log(day_close[1:] / day_close[:-1])
    result = np.full(len(day_close), np.nan)
    # on a busy machine a second thread costs a hundred times what it saves
    with _find_pools().limit(limits=1, user_api="blas"):
        for today in range(days + 1, len(day_close)):
            past = returns[today - days : today]
            now = returns[today]
            listed = np.isfinite(past).all(axis=0) & np.isfinite(now) & member[today]
            listed &= np.where(listed, past, 0.0).std(axis=0) > 0
            if not listed.any():
                continue
            past, gap = past[:, listed], now[listed] - past[:, listed].mean(axis=0)
            covariance = np.atleast_2d(np.cov(past, rowvar=False))
            shrunk = 0.5 * covariance + 0.5 * np.diag(np.diag(covariance))
            result[today] = float(gap @ np.linalg.solve(shrunk, gap)) / len(gap)
    return result
