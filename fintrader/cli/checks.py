"""`fintrader verify PATH`: the checks of a run, a report, a market, bars or a configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fintrader.bars.sources.listing import find_file_kind
from fintrader.bars.sources.presets import Preset
from fintrader.cli.options import open_folder, parse, parse_data_config, take_argument
from fintrader.config import PathText, Settings, is_url, list_shipped_configs
from fintrader.errors import ConfigError

if TYPE_CHECKING:
    from fintrader.results.verify import Check

Kind = Literal["run", "report", "market", "bars", "configuration"]

_RUN_MARKS = ("config.yaml", "manifest.json", "tournament.json", "events.jsonl", "pods", "folds")
_KINDS: dict[str, Kind] = {
    ".html": "report",
    ".htm": "report",
    ".safetensors": "market",
    ".yaml": "configuration",
    ".yml": "configuration",
}


class VerifyOptions(Settings):
    """Settings of the checks; each option is for one kind of PATH."""

    repair: bool = False
    """A run: rebuild derived files, and set changed ones aside; the run's command then trains
    the missing pods."""
    replay: bool = False
    """A run: where all is well, race it again from its event log and compare byte by byte."""
    name: str | None = None
    """A run: name of the replay; the run's own with `-replay` unless set."""
    keep: Path | None = None
    """A report: folder in which the reproduced run is kept; by default it is removed."""
    data: PathText | None = None
    """A report: path of the bars here, if it differs from the path in the report."""
    allow_code: bool = False
    """A report: import the code that its configuration names (features or a reward of its
    author)."""
    preset: Preset | None = None
    """Bars: the vendor that they come from; by default it is inferred."""
    calendar: str | None = None
    """Bars: the exchange's calendar, as exchange_calendars calls it, or FX; by default it is
    inferred."""


_OPTIONS: dict[Kind, tuple[str, ...]] = {
    "run": ("repair", "replay", "name"),
    "report": ("keep", "data", "allow_code"),
    "bars": ("preset", "calendar"),
}


def verify(argv: list[str]) -> None:
    """Run the checks of a path."""
    place, words = take_argument("verify", "PATH", argv)
    kind = find_kind(place)
    if kind == "configuration":
        from fintrader.market.data_commands import verify_data

        checks: Iterable[Check] = verify_data(parse_data_config("verify", argv))
    else:
        options = parse(VerifyOptions(), words, "verify")
        _refuse_others(place, kind, options)
        checks = _make_checks(place, kind, options)
    sys.exit(1 if print_checks(checks) else 0)


def find_kind(place: str) -> Kind:
    """Find the kind of a path. Raises ConfigError for one that cannot be checked."""
    path = Path(place)
    if is_url(place):
        return "run"
    if path.is_dir():
        if any(os.path.lexists(path / name) for name in _RUN_MARKS):
            return "run"
        if (path / "market.safetensors").is_file():
            return "market"
        if any(find_file_kind(entry.name) not in (None, "json") for entry in path.rglob("*")):
            return "bars"
        raise ConfigError(f"{place}: this folder has no run, market or bars; give the path of one")
    kind = _KINDS.get(path.suffix.lower())
    if kind is not None:
        return kind
    if path.exists():
        return "bars"
    if place in list_shipped_configs():
        return "configuration"
    raise ConfigError(
        f"{place}: no such file or folder; give a run, a report.html, a market, bars or a"
        " configuration"
    )


def _refuse_others(place: str, kind: Kind, options: VerifyOptions) -> None:
    """Raise ConfigError for an option of another kind of path."""
    for name in options.model_fields_set - set(_OPTIONS.get(kind, ())):
        if getattr(options, name) != VerifyOptions.model_fields[name].default:
            owner = next(owner for owner, names in _OPTIONS.items() if name in names)
            raise ConfigError(
                f"--{name.replace('_', '-')}: an option for {_name_kind(owner, several=True)}, and"
                f" {place} is {_name_kind(kind)}; leave it out"
            )


def _name_kind(kind: Kind, *, several: bool = False) -> str:
    if kind == "bars":
        return kind
    return f"{kind}s" if several else f"a {kind}"


def _make_checks(place: str, kind: Kind, options: VerifyOptions) -> Iterator[Check]:
    if kind == "run":
        yield from _check_run(place, options)
    elif kind == "report":
        from fintrader.pipeline.reproduction import check_report

        yield from check_report(
            Path(place), keep=options.keep, data=options.data, allow_code=options.allow_code
        )
    elif kind == "market":
        from fintrader.market.inspect import check_market

        path = Path(place)
        yield check_market(path / "market.safetensors" if path.is_dir() else path)
    else:
        yield _check_bars(place, options)


def _check_run(place: str, options: VerifyOptions) -> Iterator[Check]:
    from fintrader.pipeline.verification import check_replay, repair_run, verify_run

    home = open_folder(place)
    if options.repair:
        for sentence in repair_run(home):
            print(f"repair: {sentence}")
    is_ok = True
    for check in verify_run(home, reopen=options.repair):
        is_ok = is_ok and check.is_ok
        yield check
    if options.replay and is_ok:
        yield check_replay(home.root, options.name)


def _check_bars(place: str, options: VerifyOptions) -> Check:
    from fintrader.bars.detect import detect
    from fintrader.errors import BarError
    from fintrader.results.verify import Check

    result = ""
    try:
        found = detect(place, preset=options.preset, calendar=options.calendar)
        problems = tuple(found.waivers)
        rows = "all rows" if found.whole else "a sample of the rows"
        span = f"{rows} of {len(found.symbols)} symbols, {found.first} to {found.last}"
        result = f"{span}, have no fault that stops a build"
    except BarError as error:
        problems = (str(error),)
    return Check(
        "bars",
        "bars with each other and with the sessions of the calendar",
        problems,
        result,
        "`fintrader init` writes a configuration, and `fintrader data quality` of it lists every"
        " fault; correct the bars, or name the fault under data.waive where they are right",
    )


def print_checks(checks: Iterable[Check]) -> int:
    """Print each check as it is made, then the remedies; return how many failed."""
    failed = []
    count = 0
    for check in checks:
        count += 1
        for line in check.problems or (check.result,):
            print(f"{'ok   ' if check.is_ok else 'WRONG'}  {check.name}: {line}", flush=True)
        if not check.is_ok:
            print(f"       compared: {check.compares}")
            failed.append(check)
    for remedy in dict.fromkeys(check.remedy for check in failed if check.remedy):
        print(f"Remedy: {remedy}.")
    print(f"{len(failed)} of {count} checks failed" if failed else f"all {count} checks passed")
    return len(failed)
