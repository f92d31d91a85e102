"""The commands that make something (data, tournaments, backtests), and those that check what was
made."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fintrader.cli.options import parse, parse_config, parse_data_config, positional
from fintrader.cli.run_arguments import run_path
from fintrader.cli.terminal_tables import table_of
from fintrader.config import Settings
from fintrader.errors import ConfigError

if TYPE_CHECKING:
    from fintrader.market.data_config import DataConfig
    from fintrader.pipeline.config import RunConfig

# --- make -----------------------------------------------------------------------------------------


def verb(
    name: str, function: str, about: str, *, bars_only: bool = False
) -> Callable[[list[str]], None]:
    """The command that calls `pipeline.<function>` on a configuration, or
    `data.commands.<function>` on what it says of its bars, which needs no torch; exit status 1
    where that answers False."""

    def command(argv: list[str]) -> None:
        home = import_module(
            "fintrader.market.data_commands" if bars_only else "fintrader.pipeline"
        )
        config = parse_data_config(name, argv) if bars_only else parse_config(name, argv)
        done = getattr(home, function)(config)
        if done is False:
            sys.exit(1)
        if isinstance(done, Path) and (report := done / "backtest" / "report.html").is_file():
            print("\n".join(_afterwards(config, report)))

    command.__doc__ = f"CONFIG [--overrides]: {about}"
    return command


def _afterwards(config: RunConfig | DataConfig, report: Path) -> Iterator[str]:
    """What to do with a finished run: read its report, and come back with bars of one's own."""
    program = Path(sys.argv[0])
    found = shutil.which("fintrader")
    named = program.name == "fintrader" and (
        found is None or Path(found).resolve() != program.resolve()
    )
    us = shlex.quote(os.path.relpath(program)) if named else "fintrader"
    home = (
        ""
        if config.runs_dir == Path("runs")
        else f" --runs-dir {shlex.quote(str(config.runs_dir))}"
    )
    yield f"\nOpen {report} in a browser, or see all of the run in `{us} app{home}`."
    if config.data.source.kind == "synthetic":
        yield (
            f"These bars are made up. With a file or folder of your own: `{us} init FILE`, and run"
            " what it writes."
        )


def collect_garbage(argv: list[str]) -> None:
    """CONFIG ... [--yes]: list markets and bars kept that neither these nor a run need; with --yes,
    remove them."""
    from fintrader.market.data_commands import collect_garbage
    from fintrader.market.data_config import load_data_config

    words = [word for word in argv if word != "--yes"]
    if not words or any(word.startswith("-") for word in words):
        raise ConfigError("`fintrader data gc` needs CONFIG ..., and knows no option but --yes")
    collect_garbage([load_data_config(word) for word in words], remove="--yes" in argv)


def lookahead(argv: list[str]) -> None:
    """CONFIG [--prefixes N] [--overrides]: change the future; exit status 1 when the past notices,
    3 for an alarm."""
    from fintrader import pipeline
    from fintrader.backtesting.settings import LookaheadSettings

    own = []
    rest = []
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        field = name[2:].replace("-", "_")
        if name.startswith("--") and field in LookaheadSettings.model_fields:
            flag = LookaheadSettings.model_fields[field].annotation is bool
            own += (
                [word]
                if equals or flag
                else [word, *[value for value in (next(words, None),) if value is not None]]
            )
        else:
            rest.append(word)
    settings = parse(LookaheadSettings(), own, "lookahead")
    report = pipeline.check_lookahead(parse_config("lookahead", rest), settings)
    if not report.clean:
        sys.exit(1 if report.leaks else 3)


def backtest(argv: list[str]) -> None:
    """RUN [--overrides]: backtest a run's ensemble and best pod again, from the stored policies."""
    from fintrader import pipeline

    folder, rest = positional("backtest", "RUN_DIR", argv)
    home = pipeline.open_run(folder)
    path = home / "config.yaml"
    if not path.is_file():
        raise ConfigError(
            f"{folder}: no run lies here (it would hold config.yaml); give the folder of a run"
        )
    config = parse(pipeline.load_config(path), rest, "backtest")
    pipeline.backtest_run(home, config, called=folder)


def compare(argv: list[str]) -> None:
    """RUN RUN ... [--out FILE]: several backtests in one page; RUN/backtest/WINDOW is one of
    another window."""
    from fintrader.report.run_comparison import labels, write_comparison

    words = list(argv)
    out = Path("comparison.html")
    if "--out" in words:
        place = words.index("--out")
        if not words[place + 1 :]:
            raise ConfigError("--out needs a value: the file to write")
        out = Path(words[place + 1])
        del words[place : place + 2]
    if not words or any(word.startswith("-") for word in words):
        raise ConfigError(
            "`fintrader compare` needs RUN RUN ..., and knows no option but --out FILE"
        )
    if out.is_dir():
        raise ConfigError(f"--out: {out} is a folder; name the file to write")
    from fintrader.results.backtest_files import read_backtest
    from fintrader.results.looks import LedgerError, note_shown

    found = {}
    for label, word in zip(labels(words), words, strict=True):
        home = run_path(word)
        found[label] = read_backtest(
            home if (home / "metrics.json").is_file() else home / "backtest"
        )
        if found[label].changed:
            print(f"{label}: {found[label].changed}")
    for stored in found.values():
        try:
            note_shown(stored, shlex.join(["fintrader", "compare", *words]))
        except LedgerError as error:
            print(f"not noted as a look: {error}")
    print(write_comparison(out, found))


class LooksOptions(Settings):
    """Whose ledger of looks is shown."""

    runs_dir: str = "runs"
    """Folder that holds the runs."""


def looks(argv: list[str]) -> None:
    """[--runs-dir DIR]: how often each window was looked at, by all runs; status 1 when the ledger
    was changed."""
    from fintrader.results.looks import Ledger, LedgerError, astray, by_window

    home = Path(parse(LooksOptions(), argv, "looks").runs_dir)
    if not home.is_dir():
        raise ConfigError(f"{home}: no such folder; give the one that holds the runs (--runs-dir)")
    ledger = Ledger(home)
    try:
        lines = ledger.looks()
        deleted, foreign = astray(home)
    except LedgerError as error:
        print(f"{error}")
        sys.exit(1)
    rows = [
        {
            "window": f"{one.bars.first} to {one.bars.last}",
            "called": ", ".join(one.names),
            "universe": _universe(one.bars.symbols),
            "looks": one.looks,
            "results here": one.results,
            "runs": ", ".join(one.runs),
            "first": one.first[:16].replace("T", " "),
            "last": one.last[:16].replace("T", " "),
        }
        for one in by_window(lines)
    ]
    if rows:
        console = Console()
        console = (
            console if console.is_terminal else Console(width=200)
        )  # a table cut to 80 columns says nothing
        console.print(table_of(rows, tuple(rows[0])))
    for sentence in (*deleted, *foreign):
        print(sentence)
    print(f"{ledger.path}: {len(lines)} looks, no line of it changed, deleted or moved")
    sys.exit(1 if deleted else 0)


def _universe(symbols: tuple[str, ...]) -> str:
    return f"{len(symbols)}: {', '.join(symbols[:4])}{' ...' if len(symbols) > 4 else ''}"
