"""An MCP server (https://modelcontextprotocol.io): an assistant lists runs, reads verdicts and
looks, and, as far as a person allows it, judges, backtests and trains.

It stays in one folder, starts no shell, and imports no code that a configuration names. Judgements
and backtests are looks at held-out windows: they are counted on the user's ledger like all others,
and refused when the budget of the folder is spent, restarts of the server included.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from fintrader.cli.judging import FileOptions
from fintrader.cli.options import parse, parse_config
from fintrader.config import list_code, list_texts
from fintrader.errors import ConfigError, FintraderError
from fintrader.files import append_jsonl, make_folder, read_jsonl
from fintrader.numerals import format_count
from fintrader.records import RecordError, from_json, to_json
from fintrader.results.folders import FileCache, RunsFolder
from fintrader.results.run import Run, summaries
from fintrader.runs import explain_failure
from fintrader.verdict.alpha import level_of_look
from fintrader.verdict.looks import HELD_OUT, Ledger, summarise_windows

if TYPE_CHECKING:
    from fintrader.pipeline.config import RunConfig

SPENT_FILE = "mcp_looks.jsonl"
"""File of the looks that servers have spent, next to the ledger of looks."""
INSTRUCTIONS = (
    "fintrader trains trading agents and tests whether results are skill. Every judgement and"
    " backtest is a look at a held-out window: looks are few, they are counted for good, and each"
    " one lowers the p-value that a later result must reach. Plan before you look, and report"
    " verdicts as they are."
)
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
Overrides = dict[str, str | int | float | bool]
"""Dotted setting -> value, such as `env.cost_bps`: 30."""


@dataclass(frozen=True)
class SpentLooks:
    """Looks that a server spent; a negative count gives back looks that showed no result."""

    folder: str
    tool: str
    subject: str
    count: int
    time: float
    """Seconds since 1970."""


class LookBudget:
    """Looks that may be spent in a folder, by all servers that ever worked in it."""

    def __init__(self, folder: Path, looks: int) -> None:
        self.folder = str(folder)
        self.looks = looks
        self.path = Ledger().path.with_name(SPENT_FILE)

    def count_spent(self, last: SpentLooks | None = None) -> int:
        """Count the looks spent in this folder, up to the line `last` if it is given. Raises
        ToolError for a damaged file."""
        total = 0
        try:
            for line in read_jsonl(self.path) if self.path.exists() else []:
                spent = from_json(SpentLooks, line)
                total += spent.count * (spent.folder == self.folder)
                if spent == last:
                    break
        except (OSError, RecordError) as error:
            raise ToolError(
                f"{self.path} is damaged ({error}); a person may remove it, which resets the budget"
            ) from None
        return total

    @contextlib.contextmanager
    def spend(self, tool: str, subject: str, count: int = 1) -> Iterator[None]:
        """Spend looks, then run the block; give them back if it fails before it adds a look to the
        ledger. Raises ToolError when too few are left."""
        seen = len(Ledger().looks())
        spent = SpentLooks(self.folder, tool, subject, count, time.time())
        given_back = to_json(replace(spent, count=-count))
        refusal = (
            f"this needs {format_count(count, 'look')}, and fewer are left of the {self.looks} in"
            f" {self.folder}; a person may start the server with a larger --looks"
        )
        if self.count_spent() + count > self.looks:
            raise ToolError(refusal)
        append_jsonl(self.path, to_json(spent))
        if self.count_spent(spent) > self.looks:  # another server was first
            append_jsonl(self.path, given_back)
            raise ToolError(refusal)
        try:
            yield
        except Exception:
            if len(Ledger().looks()) == seen:
                append_jsonl(self.path, given_back)
            raise


@dataclass(frozen=True)
class RunLine:
    """One run, as `list_runs` shows it."""

    name: str
    status: str
    created: str | None
    trials: int | None
    verdict: str | None
    """State of the verdict on the held-out window."""
    notice: str
    """Banner of a market with made-up prices."""
    problem: str | None


@dataclass(frozen=True)
class WindowLine:
    """Looks at a held-out window."""

    first: str
    last: str
    symbols: int
    looks: int
    next_level: float
    """p-value that the next result must reach."""
    runs: tuple[str, ...]


@dataclass(frozen=True)
class LookReport:
    """Looks so far, and the looks left to the server."""

    windows: tuple[WindowLine, ...]
    left: int


@dataclass
class Confinement:
    """The folder that files, runs and the settings of configurations may name."""

    folder: Path

    def find(self, name: str) -> Path:
        """Find a file of the folder. Raises ToolError for a path outside it, or a missing file."""
        path = self.resolve(name)
        if not path.is_file():
            raise ToolError(f"{name}: there is no such file in {self.folder}")
        return path

    def resolve(self, name: str) -> Path:
        """Resolve a path, links included. Raises ToolError when it leads out of the folder."""
        try:
            path = (self.folder / Path(name).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise ToolError(f"{name[:80]!r} is not a valid path: {error}") from None
        if not path.is_relative_to(self.folder):
            raise ToolError(f"{name} lies outside {self.folder}, where this server works")
        return path

    def check(self, config: RunConfig) -> None:
        """Raise ToolError for settings that name code, a URL or a file outside the folder, or reach
        other machines."""
        values = config.model_dump(mode="json")
        texts = [*list_texts(values)]
        code = list_code(texts)
        if config.is_classic and ":" in str(values["env"]["id"]):
            code.append(str(values["env"]["id"]))
        if code:
            raise ToolError(
                f"the settings import {', '.join(code)}, but this server runs no such code; a"
                " person can run it with `fintrader`"
            )
        if config.launcher.kind != "local" or config.operations.metrics is not None:
            raise ToolError("launcher and operations.metrics reach other machines; leave them out")
        for text in texts:
            if "://" in text:
                raise ToolError(f"{text}: this server uses no store and no URL")
            self.resolve(text)


@contextlib.contextmanager
def _turn_errors_into_answers() -> Iterator[None]:
    """Print to standard error, since standard output carries the protocol, and turn errors into
    answers to the assistant."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (FintraderError, OSError, ValueError) as error:
        raise ToolError(explain_failure(error)) from None


def _list_options(overrides: Overrides | None) -> list[str]:
    """List overrides as options of a command line."""
    return [
        part
        for setting, value in (overrides or {}).items()
        for part in (f"--{setting.replace('_', '-')}", str(value))
    ]


def make_server(
    folder: Path, runs_dir: str = "runs", *, looks: int = 0, train: bool = False
) -> MCPServer[Any]:
    """Make the server of a folder. Without `looks` nothing is judged or backtested, without `train`
    nothing is trained.

    Raises ToolError for a `runs_dir` outside the folder.
    """
    folder = folder.resolve()
    inside = Confinement(folder)
    runs = RunsFolder.at(inside.resolve(runs_dir))
    budget = LookBudget(folder, looks)
    server: MCPServer[Any] = MCPServer("fintrader", instructions=INSTRUCTIONS)

    def offer(annotations: ToolAnnotations, tool: Callable[..., Any]) -> None:
        server.tool(annotations=annotations)(tool)

    def list_runs() -> list[RunLine]:
        """List the runs, newest first: status, trials, and the state of the verdict on the
        held-out window."""
        with _turn_errors_into_answers():
            return [
                RunLine(
                    run.name,
                    run.status,
                    run.created,
                    run.trials,
                    None if run.verdict is None else run.verdict.state,
                    run.notice,
                    run.problem,
                )
                for run in summaries(runs, FileCache(summaries=1))
            ]

    def show_run(name: str) -> str:
        """Show a run: its status, and once it is backtested its verdict and its figures net of
        costs, with the baselines. This does not count as a look."""
        with _turn_errors_into_answers():
            return repr(Run(runs.run(name).root))

    def show_looks() -> LookReport:
        """Show the looks at each held-out window so far, the level that the next result must reach,
        and the looks that are left to this server."""
        with _turn_errors_into_answers():
            windows = tuple(
                WindowLine(
                    one.bars.first,
                    one.bars.last,
                    len(one.bars.symbols),
                    one.looks,
                    level_of_look(one.looks + 1),
                    one.runs,
                )
                for one in summarise_windows(Ledger().looks())
            )
            return LookReport(windows, max(0, budget.looks - budget.count_spent()))

    def judge(
        file: str,
        benchmark: str | None = None,
        trials: int | Literal["unknown"] = "unknown",
        held_out: bool = False,
    ) -> str:
        """Test a file of returns (CSV, Parquet, ...) for skill, corrected for the number of trials.
        Counts as a look, and spends one of the budget.

        `benchmark`: a column of the file, another file, or `cash`; `trials`: number of strategies
        tried on these returns; `held_out`: true only if the strategy was
        selected without these returns.
        """
        with _turn_errors_into_answers():
            from fintrader.report.judged import judge as judge_returns

            if benchmark is not None and (folder / benchmark).exists():
                benchmark = str(inside.find(benchmark))
            record = FileOptions(benchmark=benchmark).read(str(inside.find(file)))
            command = f"fintrader mcp: judge {file}"
            with budget.spend("judge", file):
                verdict = judge_returns(record, trials=trials, held_out=held_out, command=command)
            return repr(verdict)

    def backtest(run: str, overrides: Overrides | None = None) -> str:
        """Backtest a finished run's policies again, with other settings of `backtest` or the
        trading of `env` (costs, fill, decision interval). Each held-out window counts as a look and
        spends one of the budget. Rewrites the run's report."""
        with _turn_errors_into_answers():
            from fintrader.pipeline.config import load_config
            from fintrader.pipeline.run_stages import backtest_run

            home = runs.run(run).root
            config = parse(load_config(home / "config.yaml"), _list_options(overrides), "backtest")
            inside.check(config)
            windows = len({*config.backtest.window} & {*HELD_OUT})
            with budget.spend("backtest", run, windows):
                backtest_run(home, config, called=f"{runs_dir}/{run}")
            return repr(Run(home))

    def train_agents(config: str, name: str, overrides: Overrides | None = None) -> str:
        """Start a tournament of agents from a configuration file in the folder, in the background,
        without a look at the test window. `name` is the new run's; `show_run` shows the
        progress."""
        with _turn_errors_into_answers():
            if not re.fullmatch(r"\w[\w-]*", name):
                raise ToolError(f"{name!r}: name a run by letters, digits, '_' and '-'")
            words = [str(inside.find(config)), *_list_options(overrides)]
            words += ["--name", name, "--runs-dir", str(runs.root)]
            inside.check(parse_config("tournament", list(words)))
            make_folder(runs.root)
            # -P: nothing in the working directory is imported.
            words = [sys.executable, "-P", "-m", "fintrader", "tournament", *words]
            with (runs.root / f"{name}.log").open("a") as log:
                subprocess.Popen(
                    words,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return f"{name} is started; show_run gives its state, and its log is {log.name}"

    for tool in (list_runs, show_run, show_looks):
        offer(READS, tool)
    if looks:
        offer(WRITES, judge)
        offer(WRITES, backtest)
    if train:
        offer(WRITES, train_agents)
    return server


def serve(folder: Path, runs_dir: str, *, looks: int, train: bool) -> None:
    """Serve on standard input and output until the assistant disconnects. Raises ConfigError for a
    `runs_dir` outside the folder."""
    folder = folder.resolve()
    os.chdir(folder)
    # Later imports must not take files that an assistant put here.
    if not Path(__file__).is_relative_to(folder):
        sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != folder]
    try:
        server = make_server(folder, runs_dir, looks=looks, train=train)
    except ToolError as error:
        raise ConfigError(f"--runs-dir: {error}") from None
    server.run()
