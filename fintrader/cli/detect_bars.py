"""`fintrader init`: detect the layout of bar files, or download bars. Needs no torch."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import find_file_kind, list_files
from fintrader.bars.sources.presets import Preset, split_words
from fintrader.bars.sources.tickers import is_path, is_ticker, read_tickers
from fintrader.bars.sources.vendor_settings import DownloadOptions
from fintrader.cli.options import parse
from fintrader.config import Count, Ticker, is_url, validate
from fintrader.errors import ConfigError, DataError
from fintrader.market.config_path import choose_config_path, refuse_existing
from fintrader.terminal_progress import reporter

if TYPE_CHECKING:
    from fintrader.bars.detect import Detection
    from fintrader.bars.sniff import Known

COLUMNS = ("ts", "date", "open", "high", "low", "close", "volume")
SETTINGS = {"zone": "timezone"} | {
    name: name
    for name in split_words(
        "symbol name_pattern label bar_minutes time_format decimal delimiter price_divisor"
    )
}
"""Option -> setting of `data.source`."""
_OPTIONS = {
    "data.calendar": "--calendar",
    "data.universe.members": "--index",
    "data.source.exchange": "--from",
    "data.start": "--start",
    "data.end": "--end",
}
"""Other setting -> option."""
_OF_TICKERS = {*DownloadOptions.model_fields} - {"calendar", "bar_minutes"}


class InitOptions(DownloadOptions):
    """Bar files to read or tickers to download, and the configuration to write. `init` detects
    every setting for which no option is given."""

    preset: Preset | None = None
    """The vendor of the files; detected by default."""
    ts: str | None = None
    """Column of the times. Without a header, columns are numbers from 1."""
    date: str | None = None
    """Column of the dates, if --ts holds only the time of day."""
    symbol: Ticker | None = None
    """Column of the symbols, or the one symbol of all files."""
    name_pattern: str | None = None
    """Pattern of file names, like "{symbol}_*"; others are skipped."""
    open: str | None = None
    """Column of the opening prices."""
    high: str | None = None
    """Column of the highest prices."""
    low: str | None = None
    """Column of the lowest prices."""
    close: str | None = None
    """Column of the closing prices; {symbol} if each symbol has its own."""
    volume: str | None = None
    """Column of the volumes, or none."""
    zone: str | None = None
    """Time zone, like Europe/Berlin, of times that name none."""
    label: Literal["start", "end"] | None = None
    """Meaning of a bar's time: its start or its end."""
    time_format: str | None = None
    """Format of the times, like "%d.%m.%Y %H:%M", epoch for numbers since 1970, or "days since
    1904-01-01"."""
    decimal: Literal[".", ","] | None = None
    """Decimal sign."""
    delimiter: str | None = Field(None, min_length=1, max_length=1)
    """Character between the fields."""
    price_divisor: Count | None = None
    """Divisor of prices that are whole numbers."""
    out: Path | None = None
    """File to write; named after the bars, in this folder, unless set."""
    force: bool = False
    """Overwrite an existing configuration."""
    print_only: bool = False
    """Print the detected settings and their certainty, or the size of a download, and write
    nothing."""

    def source(self) -> Known:
        """Settings of `data.source` that were given. Raises ConfigError for an invalid one."""
        given = self.model_dump(exclude_none=True)
        columns = {role: given[role] for role in COLUMNS if role in given}
        known = {setting: given[name] for name, setting in SETTINGS.items() if name in given}
        files = {setting: value for setting, value in known.items() if setting != "symbol"}
        validate(FilesSettings, files, "data.source")
        return known | ({"columns": columns} if columns else {})


def init(argv: list[str]) -> None:
    """Detect the layout of bar files, or download bars, and write a configuration that runs."""
    try:
        _init(argv)
    except (ConfigError, DataError) as error:
        raise type(error)(_name_options(str(error))) from None


def _init(argv: list[str]) -> None:
    first_option = next((at for at, word in enumerate(argv) if word.startswith("-")), len(argv))
    words = argv[:first_option]
    options = parse(InitOptions(), argv[first_option:], "init")
    given = {name for name, value in options if value != getattr(InitOptions(), name)}
    if options.index is not None and words:
        raise ConfigError(f"--index names the tickers; omit {shlex.join(words)}")
    if not words and options.index is None:
        raise ConfigError("`fintrader init` needs FILE|FOLDER, TICKER ... or --index NAME")
    paths = [word for word in words if is_path(word)]
    folders = [word for word in paths if is_ticker(word) and not find_file_kind(word, text=True)]
    if options.vendor is not None:  # a ticker is meant, even where a folder has its name
        paths = [word for word in paths if word not in folders]
    if not paths:
        usual = {"out", "force", "print_only"}
        _refuse(given - usual - {*DownloadOptions.model_fields}, "files, but these are tickers")
        _init_tickers(read_tickers(words), options)
        return
    if len(words) > 1:
        raise ConfigError(
            f"{paths[0]} is a file or a folder, or named like one; give one path, or a pattern in"
            ' quotes like "bars/*.csv", or only tickers (with --from yahoo where a folder has the'
            " name of a ticker)"
        )
    also = " (--from yahoo makes it a ticker)" * bool(folders)
    _refuse(given & _OF_TICKERS, f"tickers, but {paths[0]} is a file or a folder{also}")
    _init_files(paths[0], options)


def _refuse(names: set[str], reason: str) -> None:
    """Raise ConfigError for options that these bars cannot use."""
    for name in sorted(names):
        option = "from" if name == "vendor" else name.replace("_", "-")
        raise ConfigError(f"--{option} is for {reason}; omit it")


def _init_files(bars: str, options: InitOptions) -> None:
    if not is_url(bars):
        list_files(bars, text=True)  # a missing file is refused before the slow imports
    from fintrader.bars.detect import describe_detection, detect
    from fintrader.bars.sources.bar_files import fold_warnings

    path = _choose_path(bars, options)
    known = options.source()
    with fold_warnings():
        found = detect(bars, preset=options.preset, calendar=options.calendar, known=known)
        print(describe_detection(found))
        if not options.print_only:
            _write(found, path, options.force)


def _init_tickers(tickers: list[str], options: InitOptions) -> None:
    from fintrader.bars.detect import describe_detection
    from fintrader.market.download import download, plan_download

    many = f"-and-{len(tickers) - 3}-more" if len(tickers) > 3 else ""
    name = options.index or "-".join(tickers[:3]).replace("/", "") + many
    path = _choose_path(name.lower(), options)
    found = plan_download(tickers, options)
    size = found.open().describe_size()
    if options.print_only:
        print(describe_detection(found), size, sep="\n\n")
        return
    if size:
        print(size, flush=True)
    with reporter() as progress:
        download(found, options.calendar is not None, progress)
    print(describe_detection(found))
    _write(found, path, options.force)


def _choose_path(bars: str, options: InitOptions) -> Path:
    """Choose the configuration's path. Raises ConfigError where it is taken."""
    path = choose_config_path(bars, options.out)
    refuse_existing(path, force=options.force or options.print_only)
    return path


def _write(found: Detection, path: Path, is_forced: bool) -> None:
    from fintrader.market.starter import write_config

    write_config(found, path, force=is_forced)
    runs = f"`fintrader run {shlex.quote(str(path))}` goes from these bars to a backtest"
    if found.waivers:
        runs = f"correct the bars, or uncomment its `waive` if they are right; then {runs}"
    print(f"\n{path} is written; {runs}")


def _name_options(problem: str) -> str:
    """Name options instead of settings in a message: there is no configuration yet."""
    problem = re.sub(r"(?:--)?data\.source\.columns\.(\w+)", r"--\1", problem)
    for option, setting in SETTINGS.items():
        name = f"--{option.replace('_', '-')}"
        problem = re.sub(rf"\bdata\.source[.:] ?{setting}\b", name, problem)
    for words, instead in (
        (" under data.source.columns", ""),
        (" (--data.path)", " as FILE|FOLDER"),
        (", or let `fintrader init` find out", ""),
    ):
        problem = problem.replace(words, instead)
    for setting, option in _OPTIONS.items():
        problem = re.sub(rf"(?<![\w.]){re.escape(setting)}\b", option, problem)
    return problem
