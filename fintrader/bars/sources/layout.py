"""Settings of a source of files: the layout of tables of bars."""

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
"""Names of the columns of a file that a configuration does not rename."""


KINDS = {
    "parquet": "parquet|pq",
    "csv": "csv|tsv",
    "feather": "feather|arrow|ipc",
    "json": "json|jsonl|ndjson",
    "excel": "xlsx",
    "zip": "zip",
}
"""Kind of a file -> the endings of its name."""
PACKINGS = "gz|bz2|zst|lz4|xz"
"""Endings of CSV and JSON files that are packed."""
ENDINGS = rf"(?:\.(?:{'|'.join(KINDS.values())}|txt|dat|asc))?(?:\.(?:{PACKINGS}))?"


class FilesSettings(Settings):
    """Long tables of bars in files of any of `KINDS`."""

    kind: Literal["files"] = "files"
    preset: Preset | None = None
    """The vendor whose layout the files have; it sets what is not set here."""
    name_pattern: str | None = None
    """Pattern of the files' names, without endings, like `{symbol}_{date}_*` (folders may stand
    before, `{symbol}/{date}`); others are passed over. With `{symbol}` a file holds one symbol and
    its name says which, else a column does; `*{symbol=AAPL}` sets it for any name. A .txt, .dat
    or .asc file is read if this is set and no other file matches."""
    uppercase: bool = False
    """Write symbols in capitals."""
    header: tuple[str, ...] = ()
    """Names of the columns, in order, of CSV files that have no line with names, and of JSON
    whose rows are lists."""
    skip_rows: int = Field(0, ge=0)
    """Lines at the beginning of a CSV file that are left out, a line with names included where
    `header` is set."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    """Character between the fields of a CSV file."""
    decimal: Literal[".", ","] = "."
    """Decimal sign of a CSV file."""
    wide: str | None = None
    """For tables with columns for each symbol: how these are called, like `{symbol}_{field}`, where
    a field is one of `columns.open` to `columns.volume`; `{symbol}` for a column of closes each."""
    columns: Annotated[Mapping[Column, str | None], fill_mapping(COLUMN_NAMES)] = COLUMN_NAMES
    """Names of the file's columns. `ts`: the time, or the time of day where `date` names another
    column, or the file's name holds the date. `volume`: null where there is none (it is 0 then; set
    `env.participation: none`); `Up + Down` for the sum of two columns. `factor` (optional): factors
    that turn prices into those that were traded; prices are multiplied by it first, volumes
    divided."""
    time_format: str | None = None
    """Format of times: `epoch` for numbers since 1970, each in seconds to nanoseconds by its size
    (`epoch_local` where the clock of `timezone` counts, as MetaTrader's servers do); `s`, `ms`,
    `us` or `ns` since 1970 (since midnight where a date stands elsewhere); `excel` for days since
    1899-12-30, and `days since 1904-01-01` or `seconds since 1960-01-01` for other first days;
    `minguo` for dates like 113/01/02, whose years count from 1911; or a pattern like
    `%d.%m.%Y %H:%M`, for date and time together, with ` %Z` at its end for the name of a zone, such
    as EST or US/Eastern. ISO 8601 unless set."""
    timezone: str = "America/New_York"
    """Zone of times that carry none themselves (times with an offset or a zone are taken as they
    are)."""
    label: Literal["start", "end", "day", "eve"] = "start"
    """Whether a bar's time is its start, its end, any time of its day (daily bars stamped at the
    close), or of the evening before (where a day opens then). With `end`, a bar stamped at the open
    becomes part of the first bar where most days have one, of a single price: it is the opening's
    print."""
    bar_minutes: int = Field(1, ge=1)
    """Length of the bars in the files; used to move end labels to the start."""
    price_divisor: int = Field(1, ge=1)
    """Prices are divided by this (10000 where they are integers of 1/10,000 USD)."""
    extra: tuple[str, ...] = ()
    """Further numeric columns to carry along; name them under `features` to make them features."""

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
            raise ValueError("wide: expected how columns are called, like {symbol}_{field}")
        if self.wide is not None and self.extra:
            raise ValueError(
                "extra: a wide table has columns of prices and volumes only; leave it empty"
            )
        return self

    @property
    def names(self) -> dict[str, str]:
        """Our name -> the file's name of each column that is there."""
        return {role: name for role, name in self.columns.items() if name is not None}

    def read_name(self, place: str) -> tuple[str, str | None] | None:
        """Symbol ("" where none stands there) and date (like 20160104) of a file by its path and
        name.

        None where it is called otherwise than `name_pattern` says.
        """
        pattern, _, fixed = (self.name_pattern or "{symbol}").partition("{symbol=")
        body = (
            re.escape(pattern)
            .replace(r"\*", "[^/]*")
            .replace(r"\{symbol\}", "(?P<symbol>[^/]+?)")
            .replace(r"\{date\}", r"(?P<date>\d{4}-?\d\d-?\d\d)")
        )
        found = re.fullmatch(rf"(?:.*/)?{body}{ENDINGS}", place, re.IGNORECASE)
        if found is None:
            return None
        groups = found.groupdict()
        symbol = fixed.removesuffix("}") or groups.get("symbol") or ""
        date = (groups.get("date") or "").replace("-", "")
        return symbol.upper() if self.uppercase else symbol, date or None

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        import zoneinfo

        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            raise ValueError("not a time zone; write it like America/New_York") from None
        return value


def column_names(settings: FilesSettings) -> dict[str, str]:
    """Our name -> the table's name of the columns that are needed; no `symbol` where it stands in a
    file's name."""
    names = settings.names
    names.pop("factor", None)  # read as an extra column
    if "{symbol" in (settings.name_pattern or "") or settings.wide is not None:
        del names["symbol"]
    return names


def split_sum(name: str | None, present: Sequence[str]) -> list[str]:
    """Split the name of a volume into the columns that it sums, like `Up + Down`."""
    if name is None:
        return []
    return [name] if name in present else name.split(" + ")
