"""`TrackRecord`: daily, weekly or monthly returns of any strategy, made from tables of returns or
equity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader.errors import ReturnsError
from fintrader.metrics import Array
from fintrader.numerals import format_count
from fintrader.progress import shorten_list
from fintrader.verdict.weights_account import WeightedAccount

Kind = Literal["returns", "percent", "log", "equity"]
"""Values of a series: returns (0.01 is 1 %), the same in per cent, log returns, or equity."""
CASH = "cash"
READ_AS: dict[Kind, str] = {
    "returns": "returns, where 0.01 is 1 %",
    "percent": "per cent, where 1 is 1 %",
    "log": "log returns",
    "equity": "equity, where the first row is the starting capital",
}
PROFITS = ("pnl", "p&l", "profit", "profits", "net_profit", "profit_abs", "daily_pnl")
"""Columns that usually hold money."""
IN_MONEY = "add profits in money to the capital, and give the account's value: kind=equity"
RETURNS = ("returns", "return", "ret", "strategy_returns", "daily_return", "daily_returns")
EQUITY = (
    "equity",
    "portfolio_value",
    "total_value",
    "net_asset_value",
    "nav",
    "value",
    "balance",
    "adj close",
    "close",
)
DATES = (
    "(index)",
    "date",
    "datetime",
    "time",
    "timestamp",
    "day",
    "session",
    "month",
    "index",
    "unnamed: 0",
)
REPEATED = "repeated"
"""Attribute of a table with the number of its rows that were left out."""
PERIODS = {12: (26, 35), 26: (13, 16), 52: (5, 9)}
"""Periods a year, and the days between their ends."""
EVERY_DAY = 0.05
"""Least share of each day of the week in a market that has 365 sessions a year."""
FEWEST_DATES = 0.95
"""Fewest dates in a year of complete returns, as a part of its periods."""
MOST_DATES = 1.33
"""Most dates in such a year, as a part of its periods."""
MOST_ABSENT = 0.01
"""Most sessions without a return, as a part of those with one: leaving out the five worst of a year
raises a strategy's Sharpe ratio by 0.8."""


@dataclass(frozen=True, eq=False)
class TrackRecord:
    """Returns of one strategy and of its benchmark over S periods. Raises ReturnsError unless there
    are two finite returns of -1 or more."""

    name: str
    dates: NDArray[np.datetime64]
    """`[S]`: last day of each period."""
    returns: Array
    """`[S]`: simple returns."""
    sessions_a_year: int
    """As stated, or 252, 365, 52, 26 or 12."""
    benchmark: Array | None = None
    """`[S]`: returns of the benchmark over the same periods; None for cash, which earns nothing."""
    benchmark_name: str = CASH
    holdings: WeightedAccount | None = None
    """Positions, if known."""
    notes: tuple[str, ...] = ()
    """Sentences on the reading of the values."""
    caveats: tuple[str, ...] = ()
    """Reasons against likely skill; each completes "with ..."."""
    strategy: str | None = None
    """Hash of the deployed strategy that made the returns."""

    def __post_init__(self) -> None:
        if len(self.returns) < 2:
            raise ReturnsError(f"{self.name}: give at least two returns over common dates")
        least = self.returns.min()
        if not least >= -1:
            raise ReturnsError(
                f"{self.name}: a return of {least:g} is a loss of more than 100 %; if these are per"
                f" cent, say so (kind=percent); {IN_MONEY}"
            )

    @property
    def benchmark_returns(self) -> Array:
        """`[S]`: returns of the benchmark, zeros for cash."""
        return np.zeros_like(self.returns) if self.benchmark is None else self.benchmark


def make_record(
    values: Any,
    *,
    name: str | None = None,
    benchmark: Any = None,
    kind: Kind | None = None,
    column: str | None = None,
    sessions_a_year: int | None = None,
) -> TrackRecord:
    """Make a track record of returns or equity with dates.

    `values`: a pandas or polars Series or DataFrame, a pair of arrays (dates, values), the stats of
    Backtesting.py, or a vectorbt portfolio. `benchmark`: the same, or the name of a column of
    `values`; None or "cash" for cash. `kind`, `column`, `sessions_a_year`: detected from the values
    if None.

    Raises ReturnsError, which names the argument that helps.
    """
    frame, implied = to_frame(values, name or "the table")
    rival: Any = None
    rival_name = CASH
    notes = list[str]()
    if isinstance(benchmark, str) and benchmark != CASH:
        if benchmark not in frame:
            raise ReturnsError(
                f"benchmark {benchmark!r} is no column; there are"
                f" {shorten_list(frame.columns, most=12)}"
            )
        rival_name = benchmark
        rival = _read_rival(frame.pop(benchmark), None, kind, notes)
    elif benchmark is not None and not isinstance(benchmark, str):
        other, other_kind = to_frame(benchmark, "the benchmark")
        rival = pick_column(other, None, "the benchmark")
        rival_name = str(rival.name)
        rival = _read_rival(rival, other_kind, kind, notes)
    series = pick_column(frame, column, name or "the table")
    name = name or str(series.name)
    ours, kind = to_returns(series, kind or implied, name, notes)
    bars = len(ours)
    ours = _by_session(ours)
    days = _read_dates(ours)
    usual = count_sessions_a_year(days, sessions_a_year, name)
    year = sessions_a_year or usual
    caveats = []
    if abs(year - usual) > usual / 3:
        caveats.append(f"{year} periods a year as stated, which its dates do not confirm")
    if year == 12 and (days.day == 1).all():
        days = days + pd.offsets.MonthEnd(0)
        ours.index = days
        notes.append("Months dated by their first day are moved to their last.")
    if REPEATED in frame.attrs:
        notes.append(
            f"{format_count(frame.attrs[REPEATED], 'row')} left out, equal to an earlier one."
        )
    if len(ours) < bars:
        notes.append("Returns within a day were compounded to one a day.")
    theirs: Any = 0.0
    if rival is not None:
        theirs = match_periods(_by_session(rival), days, rival_name, spans=kind == "equity")
    table = pd.DataFrame({"ours": ours, "theirs": theirs})
    rows = np.flatnonzero(np.isfinite(table.to_numpy()).all(axis=1))
    kept = table.iloc[rows]
    if len(kept) < len(table):
        notes.append(
            f"{len(table) - len(kept)} of {len(table)} dates lack a value and are left out."
        )
    absent = max((np.diff(rows) - 1).sum(), _count_absent(_read_dates(kept), usual))
    if absent > MOST_ABSENT * len(kept):
        caveats.append(f"{absent} periods left out (write 0 for those without a position)")
    return TrackRecord(
        name=name,
        dates=kept.index.to_numpy().astype("datetime64[D]"),
        returns=kept["ours"].to_numpy(),
        sessions_a_year=year,
        benchmark=None if rival is None else kept["theirs"].to_numpy(),
        benchmark_name=rival_name,
        notes=tuple(notes),
        caveats=tuple(caveats),
    )


def _count_absent(dates: pd.DatetimeIndex, year: int) -> int:
    """Count the weeks or months that `dates` leave out; days may be holidays, and count as none."""
    if not 0 < year <= 52 or len(dates) < 2:
        return 0
    steps = np.diff(dates.to_numpy()) / np.timedelta64(1, "D")
    return int((np.rint(steps / np.median(steps)) - 1).sum())


def _read_rival(
    cells: pd.Series, implied: Kind | None, kind: Kind | None, notes: list[str]
) -> pd.Series:
    """Read a benchmark's values by their own kind; if that is unclear, by the strategy's."""
    name = str(cells.name)
    try:
        return to_returns(cells, implied, name, notes)[0]
    except ReturnsError as error:
        if kind is None:
            problem = str(error).partition(";")[0]
            raise ReturnsError(
                f"{problem}; give the benchmark as returns (0.01 is 1 %) or prices"
            ) from None
        return to_returns(cells, kind, name, notes)[0]


# --- tables ---------------------------------------------------------------------------------------


def to_frame(values: Any, name: str = "the table") -> tuple[pd.DataFrame, Kind | None]:
    """Make a table of numbers by date, ascending; also the kind of its values, if their type
    implies it. `name`: its name in errors. Raises ReturnsError."""
    kind: Kind | None = None
    if isinstance(values, pd.Series) and "_equity_curve" in values.index:  # backtesting.py
        values = values["_equity_curve"][["Equity"]]
        kind = "equity"
    elif not isinstance(values, pd.DataFrame | pd.Series) and callable(
        getattr(values, "returns", None)
    ):
        values = values.returns()  # a vectorbt portfolio
        kind = "returns"
    if hasattr(values, "to_pandas"):
        values = values.to_pandas()
    values = _join_arrays(values)
    if isinstance(values, pd.Series):
        values = values.to_frame("returns" if values.name is None else values.name)
    if not isinstance(values, pd.DataFrame) or isinstance(values.index, pd.MultiIndex):
        raise ReturnsError(
            "returns come as a pandas or polars Series or DataFrame with dates, or as a pair of"
            f" arrays (dates, values) of one length, not as {type(values).__name__}"
        )
    if values.empty:
        raise ReturnsError(f"{name} is empty; give a row for each date")
    frame = values.set_axis([str(column).strip() for column in values.columns], axis=1)
    if frame.columns.has_duplicates:
        raise ReturnsError(
            f"{name}: two columns have one name ({shorten_list(frame.columns, most=12)}); rename"
            " one"
        )
    if not isinstance(frame.index, pd.DatetimeIndex | pd.PeriodIndex):
        frame = _index_by_date(frame, name)
    if isinstance(frame.index, pd.PeriodIndex):
        frame.index = frame.index.to_timestamp(how="end").normalize()
    absent = int(pd.isna(frame.index).sum())
    if absent:
        raise ReturnsError(f"{name}: {absent} rows have no date; remove them")
    is_repeated = frame.reset_index(names="(index)").duplicated().to_numpy()
    if is_repeated.any():
        frame = frame[~is_repeated]
        frame.attrs[REPEATED] = int(is_repeated.sum())
    twice = frame.index[frame.index.duplicated()].unique()
    if len(twice):
        raise ReturnsError(
            f"{name}: {str(twice[0]).removesuffix(' 00:00:00')} occurs twice, with different values"
            f" ({format_count(len(twice), 'such date')}); give one row a date, for one strategy"
            " at a time"
        )
    frame = frame.sort_index()
    # Only now, because an hour occurs twice on a local clock; this keeps the local day.
    return frame.tz_localize(None), kind


def _join_arrays(values: Any) -> Any:
    """Make a Series of a pair of arrays; other values stay."""
    if not isinstance(values, tuple) or len(values) != 2 or len(values[0]) != len(values[1]):
        return values
    return pd.Series(np.asarray(values[1]), np.asarray(values[0]), name="returns")


def _index_by_date(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Take the index, or a column, that holds dates as the index."""
    if not pd.api.types.is_numeric_dtype(frame.index):
        frame = frame.reset_index(names="(index)")
    named = [column for column in frame if str(column).lower() in DATES]
    for column in dict.fromkeys([*named, *frame.columns[:1]]):
        dates = read_dates(frame[column])
        if dates is not None and len(frame.columns) > 1:
            frame = frame.drop(columns=[column, "(index)"], errors="ignore")
            return frame.set_axis(dates)
    raise ReturnsError(
        f"{name}: no column of dates among {shorten_list(frame.columns, most=12)}; give the dates"
        " as the index, or in a column called date, each written as 2024-01-31"
    )


def read_dates(cells: pd.Series) -> pd.DatetimeIndex | None:
    """Read dates as text, times or numbers (20240131, or s, ms or ns since 1970); None where they
    are none of these. Raises ReturnsError for ambiguous days and months."""
    if pd.api.types.is_numeric_dtype(cells):
        least = float(cells.min())
        if not 19000101 <= least <= 21001231:
            units = ((1e11, "s"), (1e14, "ms"), (1e17, "us"))
            unit: Any = next((unit for most, unit in units if least < most), "ns")
            return pd.DatetimeIndex(pd.to_datetime(cells, unit=unit)) if least > 1e8 else None
    # The local day counts, so the offset, which summer time changes, is dropped.
    text = cells.astype(str).str.replace(
        r"(\d\d:\d\d(?::[\d.]+)?) ?(?:Z|(?:GMT)?[+-]\d\d(?::?\d\d)?)$", r"\1", regex=True
    )
    try:
        return pd.DatetimeIndex(pd.to_datetime(text, format="ISO8601"))
    except ValueError:
        both = [
            pd.to_datetime(text, format="mixed", dayfirst=is_first, errors="coerce")
            for is_first in (False, True)
        ]
    steady = [one for one in both if one.is_monotonic_increasing or one.is_monotonic_decreasing]
    if len(steady) == 2 and not steady[0].equals(steady[1]):
        raise ReturnsError(
            f"dates such as {cells.iloc[0]!r} can be read in two ways; write them as 2024-01-31"
        )
    return pd.DatetimeIndex(steady[0]) if steady and steady[0].notna().all() else None


def pick_column(frame: pd.DataFrame, column: str | None, name: str) -> pd.Series:
    """Pick the column that holds a strategy's values. Raises ReturnsError."""
    if column is not None:
        if column not in frame:
            raise ReturnsError(
                f"column {column!r} is not there; there are {shorten_list(frame.columns, most=12)}"
            )
        return frame[column]
    known = {str(label).lower(): label for label in frame}
    likely = [known[label] for label in (*RETURNS, *EQUITY) if label in known]
    if len(frame.columns) == 1 or likely:
        return frame[likely[0] if likely else frame.columns[0]]
    raise ReturnsError(
        f"{name} has {len(frame.columns)} columns ({shorten_list(frame.columns, most=12)}); name"
        " one (column=), or keep one. If each is a strategy that was tried, say so too:"
        f" trials={len(frame.columns)}"
    )


# --- values ---------------------------------------------------------------------------------------


def read_numbers(cells: pd.Series) -> tuple[pd.Series, bool]:
    """Read numbers, also text such as `1.2 %`, `1,234.5` and `1,2`; True where the values have a
    per cent sign. Raises ReturnsError."""
    if pd.api.types.is_numeric_dtype(cells):
        return cells.astype(np.float64), False
    text = cells.astype(str).str.strip().mask(cells.isna())
    is_signed = text.str.endswith("%", na=True)
    text = text.str.removesuffix("%").str.strip()
    # `1.234,5`, `0,5` or `12,50`, but not `1,234`.
    if text.str.contains(r"\.\d+,|,(?:\d{0,2}|\d{4,})$|^[+-]?0?,", na=False).any():
        text = text.str.replace(".", "").str.replace(",", ".")
    numbers = pd.to_numeric(text.str.replace(",", ""), errors="coerce")
    wrong = cells[numbers.isna() & text.notna()]
    if len(wrong):
        raise ReturnsError(f"{cells.name}: {wrong.iloc[0]!r} ({wrong.index[0]}) is no number")
    is_percent = bool((is_signed & text.notna()).any())
    if is_percent and numbers[~is_signed].any():
        raise ReturnsError(f"{cells.name}: only some values have a per cent sign; write all alike")
    return numbers.astype(np.float64), is_percent


def to_returns(
    cells: pd.Series, kind: Kind | None, name: str, notes: list[str]
) -> tuple[pd.Series, Kind]:
    """Make simple returns of a series of values by date, and return their kind; add a line on the
    reading to `notes`. Raises ReturnsError."""
    if kind is not None and kind not in get_args(Kind):
        raise ReturnsError(f"kind={kind!r}: choose one of {', '.join(get_args(Kind))}")
    numbers, is_percent = read_numbers(cells)
    numbers = numbers.loc[numbers.first_valid_index() :]
    if numbers.isna().all():
        raise ReturnsError(f"{name}: there is no value")
    if np.isinf(numbers).any():
        raise ReturnsError(f"{name}: a value is infinite; leave it empty if it is not known")
    if is_percent and kind != "equity":
        kind = "equity" if kind is None and numbers.min() > 50 else "percent"
    if kind is None and "%" in str(cells.name):
        raise ReturnsError(
            f"{name}: column {cells.name} names per cent; say which: kind=percent (1 is 1 %),"
            " kind=returns (0.01 is 1 %) or kind=equity"
        )
    if kind is None and str(cells.name).lower() in PROFITS:
        raise ReturnsError(
            f"{name}: column {cells.name} may hold money; if it holds returns, set kind=returns;"
            f" otherwise {IN_MONEY}"
        )
    kind = kind or find_kind(numbers.dropna().to_numpy(), name)
    notes.append(f"Column {cells.name}: values read as {READ_AS[kind]}.")
    if kind == "equity":
        numbers = numbers.dropna()
        if not (numbers[:-1] > 0).all():
            raise ReturnsError(
                f"{name}: an equity of {numbers.min():g} has no return after it; leave out the rows"
                " before or after it or, if these are returns, say so: kind=returns or kind=percent"
            )
        return numbers.clip(lower=0).pct_change().iloc[1:], kind
    if kind == "log":
        return numbers.map(np.expm1), kind
    return numbers / 100 if kind == "percent" else numbers, kind


def find_kind(values: Array, name: str) -> Kind:
    """Detect whether values are returns or equity. Raises ReturnsError if both fit."""
    typical = np.median(np.abs(values))
    unclear = f"{name}: values such as {values[-1]:g} may be"
    # Equity wanders: its steps are small against its range. Growth factors (1 + r) do not.
    wanders = values.size < 3 or np.diff(values).std() <= values.std()
    if typical > 0.5 and wanders:
        return "equity"
    if (values > 0).all() and (typical > 0.5 or values.size > 12):
        raise ReturnsError(
            f"{unclear} equity, returns or per cent; say which: kind=equity, kind=returns or"
            " kind=percent"
        )
    if typical > 0.05 or values.min() < -1:
        raise ReturnsError(
            f"{unclear} returns or per cent; say which: kind=returns or kind=percent; {IN_MONEY}"
        )
    return "returns"


def _read_dates(table: pd.Series | pd.DataFrame) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(table.index)


# --- periods --------------------------------------------------------------------------------------


def _by_session(returns: pd.Series) -> pd.Series:
    """Compound the returns of each day."""
    return (1 + returns).groupby(_read_dates(returns).normalize()).prod(min_count=1) - 1


def count_sessions_a_year(dates: pd.DatetimeIndex, stated: int | None, name: str) -> int:
    """Infer the periods a year from ascending dates: 365 or 252 for days, 52, 26 or 12. For other
    periods, and if many dates are missing, raises ReturnsError, or returns 0 if a number is
    `stated`."""
    if len(dates) < 2:
        raise ReturnsError(f"{name}: too few dates; give at least two returns")
    days = (dates[-1] - dates[0]).days
    gaps = np.diff(dates.to_numpy()) / np.timedelta64(1, "D")
    gap = np.median(gaps)
    rate = (len(dates) - 1) / days * 365.25
    least = np.bincount(dates.day_of_week, minlength=7).min()
    found = 365 if least > EVERY_DAY * len(dates) else 252
    if gap > 4:
        found = next((year for year, (low, high) in PERIODS.items() if low <= gap <= high), 0)
    if not found or (days > 90 and not FEWEST_DATES * found <= rate <= MOST_DATES * found):
        if stated:
            return 0
        raise ReturnsError(
            f"{name}: {len(dates)} dates in {days} days are no daily, weekly or monthly returns"
            f" (longest gap: {gaps.max():.0f} days from {dates[int(gaps.argmax())]:%Y-%m-%d}); give"
            " a return for each period, 0 where nothing was held, or say how many such periods a"
            " year has (sessions_a_year=)"
        )
    return found


def match_periods(
    theirs: pd.Series, dates: pd.DatetimeIndex, name: str, *, spans: bool = False
) -> pd.Series:
    """Compound a benchmark's returns to the periods that end on `dates`; NaN where the benchmark
    has no return, or none near an end of the period. If both have the same periods, keep the
    benchmark's dates that the strategy lacks; but a strategy's return `spans` such dates if it was
    made of equity. Raises ReturnsError if the benchmark's periods are
    longer."""
    within = theirs[(theirs.index >= dates[0]) & (theirs.index <= dates[-1])]
    if not len(within):
        raise ReturnsError(
            f"{name}: its dates ({theirs.index[0]:%Y-%m-%d} to {theirs.index[-1]:%Y-%m-%d}) are not"
            f" those of the strategy ({dates[0]:%Y-%m-%d} to {dates[-1]:%Y-%m-%d})"
        )
    inside = dates[(dates >= theirs.index[0]) & (dates <= theirs.index[-1])]
    is_alike = inside.isin(within.index).mean() > 0.9 and len(within) <= 1.1 * len(inside)
    if is_alike and not (spans and len(within) > len(inside)):
        return theirs.reindex(dates.union(_read_dates(within)))
    if len(within) < 0.9 * len(inside):
        raise ReturnsError(
            f"{name}: {len(within)} dates for {len(inside)} of the strategy's; give a benchmark"
            " with at least as many"
        )
    theirs = theirs.dropna()
    gap = pd.Timedelta(np.median(np.diff(dates.to_numpy())))
    days = _read_dates(theirs)
    step = pd.Timedelta(np.median(np.diff(days.to_numpy())))
    before: Any = gap
    if PERIODS[12][0] <= gap.days <= PERIODS[12][1]:
        before = pd.offsets.MonthEnd(1) if dates[0].day > 24 else pd.DateOffset(months=1)
    edges = pd.DatetimeIndex([dates[0] - before, *dates])
    row = days.searchsorted(edges, side="right")
    away = np.abs((edges - days[np.maximum(row - 1, 0)]).to_numpy())
    nearest = max(step, pd.Timedelta(days=3 if gap.days < 14 else 5))
    pause = max(nearest, pd.Timedelta(days=10))  # an exchange's longest holidays
    is_inner = (edges > days[0]) & (edges < days[-1])
    is_near = away <= np.where(is_inner, pause.to_timedelta64(), nearest.to_timedelta64())
    at = np.where(is_near, np.append(1.0, (1 + theirs).cumprod())[row], np.nan)
    return pd.Series(np.where(np.diff(row), at[1:] / at[:-1] - 1, np.nan), dates)
