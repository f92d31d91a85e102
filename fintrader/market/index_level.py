"""Index level of a market: from a file, from the synthetic market, or the universe in equal
weights."""

from __future__ import annotations

import io
import itertools
import logging
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from fintrader.bars.bars import Array
from fintrader.bars.calendar import SessionGrid, find_exchange_timezone
from fintrader.config import strip_folders
from fintrader.errors import DataError
from fintrader.market.columns import Sheet
from fintrader.market.features import TRUSTED, lag_ns
from fintrader.market.moving import carry_forward, find_latest
from fintrader.storage.objects import read_whole

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("fintrader.market")

_LATE_HOUR = 18
"""Local hour from which a daily close may be stamped with the midnight of another zone."""
EQUAL_WEIGHT = "equal-weight index of the universe"


def file_benchmark(path: str, grid: SessionGrid) -> tuple[Array, str]:
    """`[T]` float64, the level as known at each bar's close, and its name.

    A daily close is known only at the last bar of its day, so earlier bars of that day have the
    previous close. If the file begins with the market's first session, these bars have its open, if
    the file has opens. Times within the day are starts of bars, whose closes are known at their
    ends. Raises DataError for a file that cannot be used.
    """
    file = strip_folders(path)
    table = read_level(path, grid.calendar, "data.benchmark")
    values = _read_closes(table, file, "data.benchmark")
    stamps = table["when"].dt.tz_localize(None).to_numpy().astype("datetime64[D]")
    if stamps[-1] < grid.dates[0]:
        log.warning("%s: ends before the market begins, on %s", file, stamps[-1])
    is_daily = bool((np.diff(stamps) > np.timedelta64(0)).all())
    is_midnight = (table["when"] == table["when"].dt.normalize()).all()
    if is_midnight or (is_daily and (table["when"].dt.hour < _LATE_HOUR).all()):
        before = np.searchsorted(stamps, grid.dates, side="left") - 1
        close = _known(values, before)
        if before[0] < 0 and "open" in table and stamps[0] == grid.dates[0]:
            close[0] = float(table["open"].iloc[0])
        level = close[grid.session]
        today = np.searchsorted(stamps, grid.dates, side="right") - 1
        level[grid.first_bar[1:] - 1] = _known(values, today)
    elif is_daily:
        raise DataError(
            f"{file}: has one close a day, late in the evening, which may be the next day's; give"
            " days like 2024-05-02 (data.benchmark)"
        )
    else:
        moments = table["when"].dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        starts = moments.astype("datetime64[ns]").astype(np.int64)
        steps, counts = np.unique(np.diff(starts), return_counts=True)
        session = np.maximum(np.searchsorted(grid.begin, starts, side="right") - 1, 0)
        close = grid.end[session]
        known = starts + steps[counts.argmax()]
        known = np.where(starts < close, np.minimum(known, close), known)
        level = _known(values, np.searchsorted(known, grid.ends, side="right") - 1)
    if np.isnan(level).any():
        raise DataError(
            f"{file}: begins after the market's first bar ({grid.dates[0]}); give a benchmark that"
            " begins a day earlier"
        )
    return level, PurePosixPath(file).stem


def daily_level(name: str, path: str, grid: SessionGrid, known_at: str = TRUSTED) -> Array:
    """`[T]` ln of the last close that was known on a day before each bar's session, NaN before the
    first; `known_at`: see `FeatureSettings`.

    Raises DataError when the file has no date and close, or holds values that are not positive.
    """
    setting = f"data.features.daily.{name}"
    table = read_level(path, grid.calendar, setting, known_at)
    values = _read_closes(table, strip_folders(path), setting)
    days = table["known"].dt.tz_localize(None).to_numpy().astype("datetime64[D]")
    visible = np.searchsorted(grid.dates, days, side="right")
    return np.log(_known(values, find_latest(visible, grid.num_sessions)))[grid.session]


def _read_closes(table: pd.DataFrame, file: str, setting: str) -> Array:
    values = table["close"].to_numpy(dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise DataError(
            f"{file}: column 'close' holds values that are not positive; correct the file"
            f" ({setting})"
        )
    return values


def _known(values: Array, at: Array) -> Array:
    """`values[at]`, NaN where `at` is negative."""
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)


def equal_weight(
    close: Array | Sheet,
    first_bar: Array,
    member: Array,
    base: float = 100.0,
    reference: Array | None = None,
) -> Array:
    """`[T]` level of the members in equal weights, rebalanced at each session's end; `base` at the
    first bar.

    close: `[T, N]`, NaN where unlisted; first_bar: `[S + 1]`, the edges of sessions; member:
    `[S, N]` bool; base and reference: level and closes `[N]` before the first bar. A new member
    counts from the first session of membership on, from the close before it; in a session without a
    member the level stays. Rebalancing at every bar would count the bid-ask bounce as a gain.
    """
    level = np.empty(len(close))
    reference = close[0:1][0].astype(np.float64) if reference is None else reference
    for number, (start, stop) in enumerate(itertools.pairwise(first_bar.tolist())):
        # a session at a time: two copies of a market may not fit memory
        block = np.array(close[start:stop], dtype=np.float64, order="C")
        # a symbol listed today has no reference; one that ended keeps its last price until the day
        # is over
        ratio = carry_forward(block / reference)
        listed = np.isfinite(ratio) & member[number]
        count = listed.sum(axis=1)
        mean = np.where(listed, ratio, 0.0).sum(axis=1) / np.maximum(count, 1)
        level[start:stop] = np.where(count > 0, base * mean, base)
        base = level[stop - 1]
        reference = block[-1]
    return level


def _read_times(column: pd.Series[Any]) -> pd.Series[Any]:
    """Read times; texts with several offsets from UTC, as before and after a clock change, become
    UTC, unless they are all midnights, which are days without a zone."""
    import pandas as pd

    offset = r"(?<=:\d\d)(?:\.\d+)?\s*(Z|[+-]\d\d:?\d\d)$"
    text = column.astype(str)
    found = text.str.extract(offset)[0]
    if not pd.api.types.is_string_dtype(column) or found.isna().any() or found.nunique() < 2:
        return pd.to_datetime(column)
    wall = pd.to_datetime(text.str.replace(offset, "", regex=True))
    is_day = (wall == wall.dt.normalize()).all()
    return wall if is_day else pd.to_datetime(column, utc=True)


def read_level(path: str, calendar: str, setting: str, known_at: str = TRUSTED) -> pd.DataFrame:
    """Read the file's table in order of time. `when`: each row's time in the calendar's zone;
    `known`: the time at which its values became known (`FeatureSettings.known_at`). Raises
    DataError for a file that cannot be used."""
    import pandas as pd

    name = strip_folders(path)
    zone = find_exchange_timezone(calendar)
    data = io.BytesIO(read_whole(path, setting))
    try:
        if name.endswith((".parquet", ".pq")):
            table = pd.read_parquet(data)
        else:
            table = pd.read_csv(data, compression="gzip" if name.endswith(".gz") else None)
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: cannot be read ({error})") from None
    when = next(
        (name for name in ("ts", "time", "timestamp", "datetime", "date") if name in table), None
    )
    if when is not None and table.empty:
        raise DataError(f"{name}: holds no row; give a file with closes ({setting})")
    lag = lag_ns(known_at)
    known = when if lag is not None else known_at
    if when is None or "close" not in table or known not in table:
        more = "" if lag is not None else f" and {known_at} (data.features.known_at)"
        raise DataError(
            f"{name}: needs a column date or ts and a column close{more}; it has {list(table)}"
        )
    moments = {}
    for kind, column in (("when", when), ("known", known)):
        try:
            if pd.api.types.is_numeric_dtype(table[column]):
                raise ValueError("numbers; write days like 2024-05-02, or times with a zone")
            times = _read_times(table[column])
            if times.dt.tz is None or (times == times.dt.normalize()).all():
                times = times.dt.tz_localize(None).dt.tz_localize(zone)  # days of any zone
            moments[kind] = times.dt.tz_convert(zone)
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"{name}: column {column!r} holds values that are no dates ({error})"
            ) from None
    # A lag of a day is one day of the clock, even if it has 23 or 25 hours.
    wall = moments["known"].dt.tz_localize(None) + pd.Timedelta(lag or 0)
    later = np.zeros(len(table), dtype=bool)
    moments["known"] = wall.dt.tz_localize(zone, ambiguous=later, nonexistent="shift_forward")
    return table.assign(**moments).sort_values("when", kind="stable")
