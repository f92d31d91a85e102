"""`fintrader init`: find out how files of bars are to be read. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.presets import Preset
from fintrader.cli.options import parse_argument
from fintrader.config import Settings, Ticker, validate
from fintrader.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fintrader.bars.sniff import Known

_COLUMNS = ("ts", "date", "open", "high", "low", "close", "volume")
_SETTINGS = {"zone": "timezone"} | {
    name: name
    for name in (
        *("symbol", "name_pattern", "label", "bar_minutes", "time_format", "decimal", "delimiter"),
        "price_divisor",
    )
}
"""Option -> setting of `data.source`."""


class InitOptions(Settings):
    """Reading of files of bars, and the configuration written for them. All is found from the
    files; an option answers for a setting."""

    preset: Preset | None = None
    """The vendor that they come from; found from the files by default."""
    calendar: str | None = None
    """The exchange's calendar, as exchange_calendars calls it, or FX; found from the times by
    default."""
    ts: str | None = None
    """Column of the times. A column of a file without names is a number, from 1 on."""
    date: str | None = None
    """Column of the dates, where --ts holds the time of day only."""
    symbol: Ticker | None = None
    """Column of the symbols, or the one symbol of files that say none."""
    name_pattern: str | None = None
    """How the files are called, like "{symbol}_*"; others are passed over."""
    open: str | None = None
    """Column of the opening prices."""
    high: str | None = None
    """Column of the highest prices."""
    low: str | None = None
    """Column of the lowest prices."""
    close: str | None = None
    """Column of the closing prices."""
    volume: str | None = None
    """Column of the volumes."""
    zone: str | None = None
    """Zone of times that carry none, like Europe/Berlin."""
    label: Literal["start", "end"] | None = None
    """Whether a bar's time is its start or its end."""
    bar_minutes: int | None = Field(None, ge=1)
    """Length of the bars."""
    time_format: str | None = None
    """Format of the times, like "%d.%m.%Y %H:%M", or epoch for numbers since 1970."""
    decimal: Literal[".", ","] | None = None
    """Decimal sign."""
    delimiter: str | None = Field(None, min_length=1, max_length=1)
    """Character between the fields."""
    price_divisor: int | None = Field(None, ge=1)
    """Prices are divided by this, where they are whole numbers."""
    out: Path | None = None
    """File to write; named after the bars, in this folder, unless set."""
    force: bool = False
    """Write over a configuration that is there."""
    print_only: bool = False
    """Print how the bars are read, and how sure that is, and write nothing."""

    def source(self) -> Known:
        """Settings of `data.source` that were given. Raises ConfigError for one that is invalid."""
        given = self.model_dump(exclude_none=True)
        columns = {role: given[role] for role in _COLUMNS if role in given}
        known = {setting: given[name] for name, setting in _SETTINGS.items() if name in given}
        files = {setting: value for setting, value in known.items() if setting != "symbol"}
        validate(FilesSettings, files, "data.source")
        return known | ({"columns": columns} if columns else {})


def init(argv: list[str]) -> None:
    """Find out how files of bars are read, and write a configuration that runs."""
    from fintrader.bars.detect import describe_detection, detect
    from fintrader.market.starter import config_path, write_config

    bars, options = parse_argument("init", InitOptions(), argv, "FILE|FOLDER")
    path = config_path(bars, options.out)
    if path.exists() and not (options.force or options.print_only):
        raise ConfigError(
            f"{path} is there already; choose another --out, or write over it with --force"
        )
    try:
        found = detect(
            bars, preset=options.preset, calendar=options.calendar, known=options.source()
        )
        print(describe_detection(found))
        if options.print_only:
            return
        write_config(found, path, force=options.force)
    except (ConfigError, DataError) as error:
        raise type(error)(_name_options(str(error))) from None
    runs = f"`fintrader run {path}` goes from these bars to a backtest"
    if found.waivers:
        runs = f"correct the bars, or take the # from waive in it where they are right; then {runs}"
    print(f"\n{path} is written; {runs}")


def _name_options(problem: str) -> str:
    """Name in a problem the options that answer it: there is no configuration yet."""
    problem = re.sub(r"(?:--)?data\.source\.columns\.(\w+)", r"--\1", problem)
    for option, setting in _SETTINGS.items():
        name = f"--{option.replace('_', '-')}"
        problem = re.sub(rf"\bdata\.source[.:] ?{setting}\b", name, problem)
    for words, instead in (
        (" under data.source.columns", ""),
        (", or let `fintrader init` find out", ""),
        ("data.calendar", "--calendar"),
    ):
        problem = problem.replace(words, instead)
    return problem
