"""`fintrader init` and `fintrader data detect`: how a stranger's files of bars are to be read.
Neither needs torch."""

from __future__ import annotations

from pathlib import Path

from fintrader.bars.sources.presets import Preset
from fintrader.cli.options import with_options
from fintrader.config import Settings
from fintrader.errors import ConfigError


class DetectOptions(Settings):
    """How files of bars are looked at."""

    preset: Preset | None = None
    """The vendor that they come from; by default all is found out."""
    calendar: str = "XNAS"
    """The exchange's calendar, as exchange_calendars calls it."""


class InitOptions(DetectOptions):
    """How a configuration for files of bars is written."""

    out: Path | None = None
    """File to write; named after the bars, in this folder, unless set."""


def init(argv: list[str]) -> None:
    """FILE|FOLDER [--preset VENDOR] [--out CONFIG] [--force]: find out how these bars are to be
    read, and write a configuration that runs."""
    from fintrader.bars.detect import describe_detection, detect
    from fintrader.market.starter import config_path, write_config

    force = "--force" in argv
    words = [word for word in argv if word != "--force"]
    bars, options = with_options("init", InitOptions(), words, "FILE|FOLDER")
    path = config_path(bars, options.out)
    if path.exists() and not force:
        raise ConfigError(
            f"{path} is there already; choose another --out, or write over it with --force"
        )
    found = detect(bars, preset=options.preset, calendar=options.calendar)
    print(describe_detection(found))
    write_config(found, path, force=force)
    runs = f"`fintrader run {path}` goes from these bars to a backtest"
    if found.waivers:
        runs = f"correct the bars, or take the # from waive in it where they are right; then {runs}"
    print(f"\n{path} is written; {runs}")


def detect(argv: list[str]) -> None:
    """FILE|FOLDER [--preset VENDOR] [--calendar NAME]: say how these bars are to be read, and how
    sure that is."""
    from fintrader.bars.detect import describe_detection
    from fintrader.bars.detect import detect as ask

    bars, options = with_options("data detect", DetectOptions(), argv, "FILE|FOLDER")
    print(describe_detection(ask(bars, preset=options.preset, calendar=options.calendar)))
