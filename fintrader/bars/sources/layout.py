"""Settings of a source of files: the layout of the tables of bars in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fintrader.bars.sources.presets import PRESETS, Preset
from fintrader.config import Settings, fill_mapping

Column = Literal["ts", "date", "symbol", "open", "high", "low", "close", "volume", "factor"]
COLUMN_NAMES: Mapping[Column, str] = {
    "ts": "ts",
    "symbol": "ticker",
    "open": "open",
    "high": "high",
    "low": "low",
    "close": "close",
    "volume": "volume",
}
"""Our name of a column -> its name in a file, unless a configuration gives another."""


KINDS = {
    "parquet": "parquet|pq",
    "csv": "csv|tsv",
    "feather": "feather|arrow|ipc",
    "json": "json|jsonl|ndjson",
    "excel": "xlsx",
    "zip": "zip",
}
"""Kind of a file -> the endings of its name, separated by |."""
PACKINGS = "gz|bz2|zst|lz4|xz"
"""Endings of compressed CSV and JSON files."""
ENDINGS = rf"(?:\.(?:{'|'.join(KINDS.values())}|txt|dat|asc))?(?:\.(?:{PACKINGS}))?"
"""Pattern of the end of a bar file's name."""


class FilesSettings(Settings):
    """Tables of bars in files of any of `KINDS`, with one row per bar or with columns for each
    symbol (`wide`)."""

    kind: Literal["files"] = "files"
    preset: Preset | None = None
    """The vendor whose layout the files have; it sets all settings that are not set here."""
    name_pattern: str | None = None
    """Pattern of the files' names without endings, like `{symbol}_{date}_*`; it may include
    folders, like `{symbol}/{date}`. Files with other names are ignored. With `{symbol}` each file
    contains one symbol, which its name states; without, a column states it; `*{symbol=AAPL}` sets
    the symbol whatever the name. Text files (.txt, .dat, .asc) are read only if this is set."""
    uppercase: bool = False
    """Write symbols in capitals."""
    header: tuple[str, ...] = ()
    """Names of the columns, in order, for CSV files without a line of names, and for JSON whose
    rows are lists."""
    skip_rows: int = Field(0, ge=0)
    """Number of lines to skip at the beginning of a CSV file, including a line of names if `header`
    replaces it."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    """Character between the fields of a CSV file."""
    decimal: Literal[".", ","] = "."
    """Decimal sign of a CSV file."""
    wide: str | None = None
    """For tables with columns for each symbol: the pattern of their names, like `{symbol}_{field}`,
    where a field is one of `columns.open` to `columns.volume`; or `{symbol}`, if each symbol has a
    single column, of closes."""
    columns: Annotated[Mapping[Column, str | None], fill_mapping(COLUMN_NAMES)] = COLUMN_NAMES
    """Names of the file's columns. `ts`: the time, or the time of day if the date stands in a
    column `date` or in the file's name. `volume`: null if there is none (it is then 0; set
    `env.participation: none`); `Up + Down` for the sum of two columns. `factor` (optional): factor
    that turns adjusted prices into traded ones; prices are multiplied by it, and volumes
    divided."""
    time_format: str | None = None
    """Format of times; ISO 8601 unless set. `epoch`: numbers since 1970 UTC in seconds,
    milliseconds, microseconds or nanoseconds, as the size of each shows (`epoch_local`: since 1970
    in local time of `timezone`, as MetaTrader's servers count). `s`, `ms`, `us` or `ns`: numbers in
    this unit since 1970 UTC, or since midnight if the date stands elsewhere. `excel`: days since
    1899-12-30; `days since 1904-01-01`, `seconds since 1960-01-01` or `ticks since 0001-01-01`
    (.NET's, of 100 ns) for others.
    `minguo`: dates like 113/01/02, whose years count from 1911. Or a pattern like `%d.%m.%Y %H:%M`
    for date and time together; ` %Z` at its end stands for the name of a zone, such as EST or
    US/Eastern."""
    timezone: str = "America/New_York"
    """Zone of times that contain no zone; times with an offset or a zone are read by it."""
    label: Literal["start", "end", "day", "eve"] = "start"
    """Meaning of a bar's time: its start; its end; `day`: any time of its day, as for daily bars
    that are stamped at the close; or `eve`: a time of the evening before, for markets that open
    then. With `end`, an opening print (a bar of a single price stamped at the open, on most days)
    becomes part of the first bar."""
    bar_minutes: int = Field(1, ge=1, le=1440)
    """Length of the bars in the files, minutes; with label `end`, times are moved back by it."""
    price_divisor: int = Field(1, ge=1)
    """Prices are divided by this: 10000 if they are whole numbers of 1/10,000 USD."""
    extra: tuple[str, ...] = ()
    """Further numeric columns to read; name them under `features` to make them features."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        preset = values.get("preset") if isinstance(values, dict) else None
        if preset not in PRESETS:
            return values
        known = PRESETS[preset]
        columns = {**known.get("columns", {}), **values.get("columns", {})}
        return {**known, **values, "columns": columns}

    @model_validator(mode="after")
    def _readable(self) -> Self:
        lacking = {"ts", "symbol", "open", "high", "low", "close"} - {*self.names}
        if lacking:
            raise ValueError(f"columns.{min(lacking)}: name a column; only volume may be null")
        if self.wide is not None and "{symbol}" not in self.wide:
            raise ValueError("wide: expected a pattern of names of columns, like {symbol}_{field}")
        if self.wide is not None and self.extra:
            raise ValueError(
                "extra: a wide table has columns of prices and volumes only; leave extra empty"
            )
        return self

    @property
    def names(self) -> dict[str, str]:
        """Our name -> the file's name of each column that is not null."""
        return {role: name for role, name in self.columns.items() if name is not None}

    def read_name(self, place: str) -> tuple[str, str | None] | None:
        """Read symbol and date of a file from its path: the symbol, "" without one, and the date
        like 20160104, None without one.

        None if the path does not match `name_pattern`.
        """
        pattern, _, fixed = (self.name_pattern or "{symbol}").partition("{symbol=")
        body = (
            re.escape(pattern)
            .replace(r"\*", "[^/]*")
            .replace(r"\{symbol\}", "(?P<symbol>[^/]+?)")
            .replace(r"\{date\}", r"(?P<date>\d{4}-?\d\d-?\d\d)")
        )
        match = re.fullmatch(rf"(?:.*/)?{body}{ENDINGS}", place, re.IGNORECASE)
        if match is None:
            return None
        groups = match.groupdict()
        symbol = fixed.removesuffix("}") or groups.get("symbol") or ""
        date = (groups.get("date") or "").replace("-", "")
        return symbol.upper() if self.uppercase else symbol, date or None

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        import zoneinfo

        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("not a time zone; write it like America/New_York") from None
        return value


def column_names(settings: FilesSettings) -> dict[str, str]:
    """Return our name -> the file's name of the needed columns: without `factor`, and without
    `symbol` if the names of files or columns state it."""
    names = settings.names
    names.pop("factor", None)  # read as an extra column
    if "{symbol" in (settings.name_pattern or "") or settings.wide is not None:
        del names["symbol"]
    return names


def split_sum(name: str | None, present: Sequence[str]) -> list[str]:
    """Split the name of a volume like `Up + Down` into the columns to sum, unless a column of
    `present` has this name itself; empty for None."""
    if name is None:
        return []
    return [name] if name in present else name.split(" + ")
