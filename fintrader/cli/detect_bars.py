"""`fintrader init`: find out how files of bars are to be read. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from fintrader.bars.sources.presets import Preset
from fintrader.cli.options import parse_argument
from fintrader.config import Settings
from fintrader.errors import ConfigError


class InitOptions(Settings):
    """Reading of files of bars, and the configuration written for them."""

    preset: Preset | None = None
    """The vendor that they come from; found from the files by default."""
    calendar: str | None = None
    """The exchange's calendar, as exchange_calendars calls it, or FX; found from the times by
    default."""
    out: Path | None = None
    """File to write; named after the bars, in this folder, unless set."""
    force: bool = False
    """Write over a configuration that is there."""
    print_only: bool = False
    """Print how the bars are read, and how sure that is, and write nothing."""


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
    found = detect(bars, preset=options.preset, calendar=options.calendar)
    print(describe_detection(found))
    if options.print_only:
        return
    write_config(found, path, force=options.force)
    runs = f"`fintrader run {path}` goes from these bars to a backtest"
    if found.waivers:
        runs = f"correct the bars, or take the # from waive in it where they are right; then {runs}"
    print(f"\n{path} is written; {runs}")
