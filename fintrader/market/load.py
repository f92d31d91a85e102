"""`load_market`: a market from a configuration, a finished file, files of bars, or bars in pandas.

Bars in pandas come as a long table, a wide one (a column for each field and symbol), or one table
for each symbol. Every form becomes a long table, which is then read like a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from fintrader.bars.bars import COLUMNS, DAY_MINUTES, MINUTE_NS, Bars, bar_length
from fintrader.bars.calendar import day_starts
from fintrader.bars.sources.bar_files import present_columns, select_files
from fintrader.bars.sources.cells import carries_zone, convert_table, round_ends
from fintrader.bars.sources.feed import MemoryFeed
from fintrader.bars.sources.layout import FilesSettings, column_names
from fintrader.bars.sources.listing import find_file_kind
from fintrader.bars.sources.presets import SPELLINGS, WEAK, plain
from fintrader.config import (
    OwnFunction,
    Settings,
    list_shipped_configs,
    merge_values,
    validate,
)
from fintrader.errors import BarError, ConfigError, DataError, check_keywords
from fintrader.market.bar_source import open_daily
from fintrader.market.build import assemble, build_market, make_market
from fintrader.market.features import is_kind, read_names
from fintrader.market.settings import DataSettings, read_settings
from fintrader.market.tensors import MarketTensors
from fintrader.progress import shorten_list

Frames: TypeAlias = "pd.DataFrame | Mapping[str, pd.DataFrame]"
Values: TypeAlias = Mapping[str, Any]
"""Settings by name, as a call or a file gives them."""

ORIGIN = "the DataFrame"
_CLOCK = r":|(\d{8}|\d+[-/.](\d\d?|[A-Za-z]{3})[-/.]\d+)[ T]\d{3,6}(?!\d)|^\d{12}(\d\d)?$"
"""Pattern of a text with a time of day, as in 2024-01-02 09:30, 20240102 0930, 20240102093000."""
_ISO = r"\d{4}-\d\d-\d\d[ T]\d\d:"
"""Pattern of a time that is read without a detection of its format."""


@check_keywords
def load_market(
    data: Settings | Mapping[str, Any] | pd.DataFrame | Path | str | None = None,
    *,
    cache: Path | str = "data/tensors",
    timezone: str | None = None,
    label: Literal["start", "end"] | None = None,
    **settings: Any,
) -> MarketTensors:
    """Load a market from the cache, or build it if it is not there.

    `data` is one of

    - a market file (`.safetensors`);
    - a configuration: its name, a YAML file, or settings (a whole run's or only its `data` part);
    - a file or a folder of bars, whose layout is detected as by `fintrader init` (the warnings of
      `print(market)` list the guesses);
    - bars in pandas or polars: a long table (time, symbol, open, high, low, close, volume, in any
      order and in the usual spellings; the time may be the index), a wide one with columns (field,
      symbol) or (symbol, field), or a dictionary of one table for each symbol.

    `settings` are fields of `DataSettings` that override the configuration:
    `load_market(bars, bar_minutes=5, windows={"fractions": [0.6, 0.2, 0.2]})`. `features=[...]` is
    short for `features={"names": [...]}`, of kinds, columns of the bars and own functions; a market
    of own functions is built in memory.

    For bars, `timezone` is the zone of times without one, and `label` says whether a time is its
    bar's start (the default) or end. `bar_minutes` is detected by default.

    Raises ConfigError for a setting that is wrong, DataError (BarError, MarketError) for bars or
    files that are wrong.
    """
    data = _to_pandas(data)
    if "features" in settings:
        settings["features"] = read_names(settings["features"])
    reading = {"timezone": timezone, "label": label}
    reading = {name: one for name, one in reading.items() if one is not None}
    if _are_frames(data):
        return _build_from_frames(data, reading, settings)
    if isinstance(data, str | Path) and _holds_bars(str(data)):
        return _load_detected(str(data), reading, settings, Path(cache))
    if reading:
        raise ConfigError(
            "timezone and label are for bars; in a configuration, set them in `source`"
        )
    if isinstance(data, str | Path) and Path(data).suffix == ".safetensors":
        if settings:
            raise ConfigError(
                f"{data} is built already, so {', '.join(settings)} cannot be set; give its"
                " configuration"
            )
        return MarketTensors.load(data)
    data = {} if data is None else data
    if not isinstance(data, str | Path | Mapping | Settings) or not (data or settings):
        kind = "nothing" if isinstance(data, Mapping) else type(data).__name__
        raise ConfigError(
            f"no market can be made of {kind}: give a configuration's name or path,"
            " a market file, a file of bars, settings, a DataFrame, or a dictionary of DataFrames"
        )
    return _build(read_settings(data, settings), Path(cache))


def _build(settings: DataSettings, cache: Path) -> MarketTensors:
    """Build a market in the cache; in memory if its features include functions of this process,
    because functions of another process may have the same names."""
    if any(isinstance(name, OwnFunction) for name in settings.features.names):
        return make_market(settings)
    return MarketTensors.load(build_market(settings, cache=cache))


def _holds_bars(path: str) -> bool:
    """True for a path or URL of bars, not of a configuration or a run."""
    if path in list_shipped_configs() or (Path(path) / "config.yaml").is_file():
        return False
    return "*" in path or find_file_kind(path, text=True) is not None or Path(path).is_dir()


def _load_detected(path: str, reading: Values, values: Values, cache: Path | None) -> MarketTensors:
    """Build the market of files of bars whose layout is detected; without a cache, in memory."""
    # Daily bars of a table get DAY_MINUTES, as they do without detection.
    settings, guesses = _detect_settings(path, reading, values, is_table=cache is None)
    market = make_market(settings) if cache is None else _build(settings, cache)
    return replace(market, guesses=guesses, trusted=True)


def _detect_settings(
    path: str, reading: Values, values: Values, *, is_table: bool = False
) -> tuple[DataSettings, tuple[str, ...]]:
    """Return the settings of files of bars, and a line for each guess among them."""
    from fintrader.bars.detect import detect

    values = {
        name: one.model_dump(exclude_unset=True) if isinstance(one, Settings) else one
        for name, one in values.items()
    }
    known = {**values.get("source", {}), **reading}
    known.pop("kind", None)
    found = detect(path, calendar=values.get("calendar"), known=known)
    source = found.settings()
    values = _name_columns(values, lambda: present_columns(select_files(source, path)[0], source))
    is_day = is_table and found.bar_minutes >= found.session_minutes
    detected = {
        "source": {"kind": "files", **found.source},
        "path": path,
        "calendar": found.calendar,
        "bar_minutes": DAY_MINUTES if is_day else found.bar_minutes,
    }
    if "bar_minutes" not in values:  # hours are those of the bars as they are
        detected["hours"] = found.hours
    settings = validate(DataSettings, merge_values(detected, values), "settings")
    guesses = tuple(
        f"guessed {one.setting} {one.value} ({one.why})"
        for one in found.findings
        if one.sure in ("likely", "assumed")
    )
    return settings, guesses


def find_settings(data: Settings | Values | Path | str, settings: Values) -> DataSettings:
    """Find the settings by which `load_market` builds a configuration, or a file or folder of
    bars, overridden by `settings`.

    Raises ConfigError for a table or a market, which no other process can build again.
    """
    if _are_frames(_to_pandas(data)) or isinstance(data, MarketTensors):
        raise ConfigError(
            "other processes build the market again, from files: write the bars to one, for example"
            " bars.to_parquet('bars.parquet'), and give its path"
        )
    if "features" in settings:
        settings = {**settings, "features": read_names(settings["features"])}
    if isinstance(data, str | Path) and _holds_bars(str(data)):
        return _detect_settings(str(data), {}, settings)[0]
    return read_settings(data, settings)


def _build_from_frames(bars: Any, reading: Values, values: Values) -> MarketTensors:
    """Build the market of bars in pandas, in memory and by the same steps as from files."""
    frames = [bars] if isinstance(bars, pd.DataFrame) else bars.values()
    values = _name_columns(values, lambda: [name for frame in frames for name in frame.columns])
    chosen = merge_values({"source": {"kind": "files", **reading}}, values)
    settings = validate(DataSettings, chosen, "settings").effective()
    if not isinstance(settings.source, FilesSettings):
        raise ConfigError(
            "the bars are those of the DataFrame, so `source` takes only how files are read"
        )
    zoned = "timezone" in chosen["source"]
    source = settings.source
    table = _stack_frames(bars, source)
    if table.empty:
        raise BarError(f"{ORIGIN} holds no bar; check the range it was loaded for")
    times = table[source.names["ts"]]
    is_text = not pd.api.types.is_datetime64_any_dtype(times) and not _carries_zone(times)
    first = str(times.iloc[0])
    days = _are_whole_days(times) or (is_text and not re.search(_CLOCK, first))
    if days or (is_text and not (zoned and re.match(_ISO, first))):
        known: dict[str, object] = {} if days else dict(reading)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "DataFrame.csv"
            table.to_csv(path, index=False)
            known["columns"] = column_names(source)
            try:
                return _load_detected(str(path), known, values, None)
            except DataError as error:
                text = str(error).replace(str(path), ORIGIN).replace(path.name, ORIGIN)
                raise type(error)(text) from None
    feed, minutes = _frames_feed(table, source, zoned=zoned, calendar=settings.calendar)
    if "bar_minutes" not in source.model_fields_set:
        settings = settings.model_copy(
            update={"source": source.model_copy(update={"bar_minutes": minutes})}
        )
    if "bar_minutes" not in values:
        settings = settings.model_copy(update={"bar_minutes": minutes})
    feed.daily = open_daily(settings)
    return assemble(settings, feed)


def _name_columns(values: Values, list_columns: Callable[[], list[Any]]) -> Values:
    """Move the features that are columns of the bars from `names` to `extra`."""
    chosen = values.get("features")
    if not isinstance(chosen, Mapping) or "names" not in chosen:
        return values
    own = [name for name in chosen["names"] if isinstance(name, str) and not is_kind(name)]
    columns = list_columns() if own else []
    extra = [name for name in own if name in columns]
    names = [name for name in chosen["names"] if name not in extra]
    prices = [name for name in map(str, chosen["names"]) if name.lower() in COLUMNS]
    if prices:
        raise ConfigError(
            f"features: {prices[0]!r} is no feature by itself; give a kind, such as return_1, or a"
            f" function, lambda bars: bars.{prices[0].lower()}"
        )
    extra = [*chosen.get("extra", ()), *extra]
    return {**values, "features": {**chosen, "names": names, "extra": extra}}


# --- bars in pandas -------------------------------------------------------------------------------


def _are_frames(value: object) -> bool:
    """True of a table, or a dictionary of tables."""
    return isinstance(value, pd.DataFrame) or (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(one, pd.DataFrame) for one in value.values())
    )


def _to_pandas(value: Any) -> Any:
    """Convert tables of polars or pyarrow, also in a dictionary; anything else stays as it is."""
    if isinstance(value, Mapping):
        return {name: _to_pandas(one) for name, one in value.items()}
    is_foreign = hasattr(value, "to_pandas") and not isinstance(value, MarketTensors)
    return value.to_pandas() if is_foreign else value


def _frames_feed(
    table: pd.DataFrame, source: FilesSettings, *, zoned: bool, calendar: str
) -> tuple[MemoryFeed, int]:
    """Return the bars of a long table as a feed, and their length in minutes: the most frequent
    step within a symbol.

    `zoned`: True if `source.timezone` is set; otherwise times without a zone are refused. Bars
    whose times are all midnights are daily; they get the first minute of their session, whatever
    the zone.

    Raises BarError for a column that is missing or appears twice, times without a zone, and bad
    cells.
    """
    name = source.names["ts"]
    daily = _are_whole_days(table[name])
    if daily:
        table = table.assign(**{name: table[name].dt.tz_localize(None)})
    elif not (zoned or _carries_zone(table[name])):
        raise BarError(
            f"{ORIGIN}: its times have no time zone; name it, like timezone='America/New_York'"
        )
    reading = source.model_copy(update={"label": "start"} | ({"timezone": "UTC"} if daily else {}))
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    bars = convert_table(arrow, reading, origin=ORIGIN, rows=np.arange(len(table))).sorted()
    length = DAY_MINUTES if daily else bar_length(bars)
    if daily:
        bars = replace(bars, ts=day_starts(calendar, "UTC", bars.ts))
    elif source.label == "end":
        own = source.bar_minutes if "bar_minutes" in source.model_fields_set else length
        bars = replace(bars, ts=round_ends(bars.ts) - own * MINUTE_NS)
    return MemoryFeed(bars, {"kind": "frames", "sha256": _digest(bars)}), length


def _stack_frames(frames: Frames, source: FilesSettings) -> pd.DataFrame:
    """Stack all bars in one table, with the column names of `source.columns`; extra columns keep
    theirs."""
    if isinstance(frames, pd.DataFrame):
        if frames.columns.nlevels == 1:
            return _select_columns(frames, source)
        frames = _split_by_symbol(frames, source)
    parts = []
    for symbol, frame in frames.items():
        part = _select_columns(
            frame.assign(**{source.names["symbol"]: str(symbol)}), source, where=f" of {symbol}"
        )
        parts.append(
            part.dropna(
                how="all", subset=[source.names[name] for name in COLUMNS if name in source.names]
            )
        )
    return pd.concat(parts, ignore_index=True)


def _split_by_symbol(frame: pd.DataFrame, source: FilesSettings) -> dict[str, pd.DataFrame]:
    """Split a wide table, (field, symbol) or (symbol, field), into one table for each symbol."""
    if frame.columns.nlevels != 2:
        raise BarError(
            f"{ORIGIN}: columns of {frame.columns.nlevels} levels; give two, field and symbol"
        )
    found = [
        len(_roles(frame.columns.get_level_values(level).unique(), source, COLUMNS))
        for level in (0, 1)
    ]
    if not any(found):
        raise BarError(
            f"{ORIGIN}: neither level of its columns holds {', '.join(COLUMNS)}; found"
            f" {shorten_list(frame.columns, most=12) or 'no column'}"
        )
    other = 1 if found[0] >= found[1] else 0
    symbols = frame.columns.get_level_values(other).unique()
    return {str(symbol): pd.DataFrame(frame.xs(symbol, axis=1, level=other)) for symbol in symbols}


def _select_columns(frame: pd.DataFrame, source: FilesSettings, where: str = "") -> pd.DataFrame:
    """Select and rename the columns that are needed. Raises BarError naming a missing one."""
    frame = _with_index(frame, source)
    roles = _roles(frame.columns, source, tuple(SPELLINGS))
    for role, columns in roles.items():
        columns[:] = [one for one in columns if plain(one) not in WEAK] or columns
        if len(columns) > 1:
            raise BarError(
                f"{ORIGIN}{where}: columns {shorten_list(columns)} could all be the {_word(role)};"
                " drop or rename some"
            )
    names = column_names(source)
    # An extra column may have the name of a required one.
    wanted = {name: _word(role) for role, name in names.items()}
    wanted |= {name: name for name in source.extra if name not in wanted}
    known = {name: name for name in source.extra if name in frame.columns}
    known |= {names[role]: columns[0] for role, columns in roles.items() if role in names}
    for name, word in wanted.items():
        if name not in known:
            hints = {
                "symbol": "; a table of one symbol goes into a dict, like {'AAPL': table}",
                "volume": "; without volumes, source={'columns': {'volume': None}}",
            }
            added = source.columns["symbol"] if where else None
            found = [column for column in frame.columns if column != added]
            raise BarError(
                f"{ORIGIN}{where}: column {word!r} is missing; found"
                f" {shorten_list(found, most=12) or 'no column'}"
                f"{hints.get(word, '')}"
            )
    return frame[[known[name] for name in wanted]].set_axis([*wanted], axis=1)


def _with_index(frame: pd.DataFrame, source: FilesSettings) -> pd.DataFrame:
    """Turn the index into columns unless it only counts rows. `Unnamed: 0` is an index that was
    written to a file."""
    if "Unnamed: 0" in frame.columns and not _roles(frame.columns, source, ("ts",)):
        frame = frame.rename(columns={"Unnamed: 0": source.columns["ts"]})
    if isinstance(frame.index, pd.RangeIndex):
        return frame
    names: list[Hashable] = []
    for level in range(frame.index.nlevels):
        values = frame.index.get_level_values(level)
        name = frame.index.names[level]
        is_time = isinstance(values, pd.DatetimeIndex)
        if name is None or (is_time and not _roles([name], source, ("ts",))):
            name = (
                source.columns["ts"]
                if is_time
                else (source.columns["symbol"] if frame.index.nlevels > 1 else "index")
            )
        names.append(f"index {name}" if name in frame.columns else name)
    try:
        return frame.reset_index(names=names)
    except ValueError as error:
        raise BarError(
            f"{ORIGIN}: its index of {frame.index.nlevels} levels cannot become columns"
            f" ({error}); name them, frame.index.names = ['date', 'symbol']"
        ) from None


def _roles(columns: Any, source: FilesSettings, roles: tuple[str, ...]) -> dict[str, list[Any]]:
    """Find the columns that could play each role: `open`, `ts`, ..."""
    found: dict[str, list[Any]] = {}
    for role in roles:
        own = source.names.get(role)
        named = [column for column in columns if column == own]
        spelt = [column for column in columns if plain(column) in SPELLINGS[role]]
        if named or spelt:
            found[role] = named or spelt
    return found


def _word(role: str) -> str:
    return "time" if role == "ts" else role


def _are_whole_days(times: pd.Series[Any]) -> bool:
    return pd.api.types.is_datetime64_any_dtype(times) and bool(
        (times.dropna().dt.normalize() == times.dropna()).all()
    )


def _carries_zone(times: pd.Series[Any]) -> bool:
    if pd.api.types.is_datetime64_any_dtype(times):
        return times.dt.tz is not None
    return carries_zone(times.head(1))


def _digest(bars: Bars) -> str:
    digest = hashlib.sha256("\0".join(bars.symbols).encode())
    for values in (
        bars.ts,
        bars.symbol,
        *(getattr(bars, name) for name in COLUMNS),
        *bars.extras.values(),
    ):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()
