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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from fintrader.cli.judging import FileOptions
from fintrader.cli.options import parse
from fintrader.config import list_code, list_texts, read_yaml
from fintrader.errors import FintraderError
from fintrader.files import append_jsonl, make_folder, read_jsonl
from fintrader.records import from_json, to_json
from fintrader.results.folders import FileCache, RunsFolder
from fintrader.results.run import Run, summaries
from fintrader.runs import RunFolder
from fintrader.verdict.alpha import level_of_look
from fintrader.verdict.looks import Ledger, by_window

if TYPE_CHECKING:
    from fintrader.pipeline.config import RunConfig

SPENT = "mcp_looks.jsonl"
"""Looks that servers have spent, next to the ledger of looks."""
GYMNASIUM_ID = re.compile(r"[\w.]+:[\w-]+-v\d+")
"""Name of a gymnasium environment, with the package that it imports first."""
INSTRUCTIONS = (
    "fintrader trains trading agents and tests whether results are skill. Every judgement and"
    " backtest is a look at a held-out window: looks are few, they are counted for good, and each"
    " one raises the level that a later result must reach. Plan before you look, and report"
    " verdicts as they are."
)
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
Overrides = dict[str, str | int | float | bool]
"""Dotted setting -> value, such as `env.cost_bps`: 30."""


@dataclass(frozen=True)
class SpentLook:
    """A look that a server spent."""

    folder: str
    tool: str
    subject: str
    time: float
    """Seconds since 1970."""


class LookBudget:
    """Looks that may be spent in a folder, by all servers that ever worked in it."""

    def __init__(self, folder: Path, looks: int) -> None:
        self.folder = str(folder)
        self.looks = looks
        self.path = Ledger().path.with_name(SPENT)

    def list_spent(self) -> list[SpentLook]:
        """List the looks spent in this folder, oldest first."""
        lines = read_jsonl(self.path) if self.path.is_file() else []
        spent = [from_json(SpentLook, line) for line in lines]
        return [look for look in spent if look.folder == self.folder]

    def spend(self, tool: str, subject: str) -> None:
        """Spend one look, before its result exists. Raises ToolError when none is left."""
        look = SpentLook(self.folder, tool, subject, time.time())
        if len(self.list_spent()) < self.looks:
            append_jsonl(self.path, to_json(look))
            # Of servers that spend at once, the first lines count.
            if look in self.list_spent()[: self.looks]:
                return
        raise ToolError(
            f"the budget of {self.looks} looks in {self.folder} is spent; a person may start the"
            " server with a larger --looks"
        )


@dataclass(frozen=True)
class RunLine:
    """A run of the list."""

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
class LooksShown:
    """Looks so far, and those left to the server."""

    windows: tuple[WindowLine, ...]
    left: int


class Confinement:
    """The folder that files, runs and the settings of configurations may name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str) -> Path:
        """Find a file of the folder. Raises ToolError for one outside it, or none."""
        path = self.resolve(name)
        if not path.is_file():
            raise ToolError(f"{name}: there is no such file in {self.folder}")
        return path

    def resolve(self, name: str) -> Path:
        """Resolve a path, links included. Raises ToolError when it leads out of the folder."""
        path = (self.folder / Path(name).expanduser()).resolve()
        if not path.is_relative_to(self.folder):
            raise ToolError(f"{name} lies outside {self.folder}, where this server works")
        return path

    def check(self, texts: Sequence[str]) -> None:
        """Raise ToolError for texts of settings that name code, a URL or a file outside the
        folder."""
        code = [*list_code(texts), *filter(GYMNASIUM_ID.fullmatch, texts)]
        if code:
            raise ToolError(f"the settings import {', '.join(code)}; a person may run such code")
        for text in texts:
            if "://" in text:
                raise ToolError(f"{text}: this server uses no store and no URL")
            self.resolve(text)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Print to standard error, since standard output carries the protocol; raise problems of the
    project as answers to the assistant."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except FintraderError as error:
        raise ToolError(str(error)) from None


def _list_words(overrides: Overrides | None) -> list[str]:
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
        with _answering():
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
        costs, beside the baselines. This is no new look."""
        with _answering():
            return repr(Run(runs.run(name).root))

    def show_looks() -> LooksShown:
        """Show the looks at each held-out window so far, the level that the next result must reach,
        and the looks that are left to this server."""
        with _answering():
            windows = tuple(
                WindowLine(
                    one.bars.first,
                    one.bars.last,
                    len(one.bars.symbols),
                    one.looks,
                    level_of_look(one.looks + 1),
                    one.runs,
                )
                for one in by_window(Ledger().looks())
            )
            return LooksShown(windows, max(0, budget.looks - len(budget.list_spent())))

    def judge(
        file: str,
        benchmark: str | None = None,
        trials: int | Literal["unknown"] = "unknown",
        held_out: bool = False,
    ) -> str:
        """Test a file of returns (CSV, Parquet, ...) for skill, net of the number of trials. Counts
        as a look, and spends one of the budget.

        `benchmark`: a column of the file, another file, or `cash`; `trials`: number of strategies
        tried on these returns; `held_out`: true only if none was selected with them.
        """
        with _answering():
            from fintrader.report.judged import judge as judge_returns

            if benchmark is not None and (folder / benchmark).exists():
                benchmark = str(inside.find(benchmark))
            record = FileOptions(benchmark=benchmark).read(str(inside.find(file)))
            budget.spend("judge", file)
            command = f"fintrader mcp: judge {file}"
            return repr(judge_returns(record, trials=trials, held_out=held_out, command=command))

    def backtest(run: str, overrides: Overrides | None = None) -> str:
        """Backtest a finished run's policies again, with other settings of `backtest` or the
        trading of `env` (costs, fill, decision interval). Counts as a look, and spends one of the
        budget. The run's report is written anew."""
        with _answering():
            from fintrader.pipeline.run_stages import backtest_run

            home = runs.run(run).root
            config = _read(home / "config.yaml", overrides)
            budget.spend("backtest", run)
            backtest_run(home, config, called=f"{runs_dir}/{run}")
            return repr(Run(home))

    def train_agents(config: str, name: str, overrides: Overrides | None = None) -> str:
        """Start a tournament of agents by a configuration of the folder, in the background; no look
        at the test window. `name`: of the new run; `show_run` follows it."""
        with _answering():
            path = inside.find(config)
            place = RunFolder.named(name, runs.root)
            _read(path, overrides)
            # -P: nothing in the working directory is imported.
            words = [sys.executable, "-P", "-m", "fintrader", "tournament", str(path)]
            words += ["--name", name, "--runs-dir", str(runs.root), *_list_words(overrides)]
            make_folder(runs.root)
            with place.root.with_suffix(".log").open("a") as log:
                subprocess.Popen(
                    words,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return f"{name} is started; show_run gives its state, {log.name} has its lines"

    def _read(path: Path, overrides: Overrides | None) -> RunConfig:
        """Read a configuration that stays inside the folder."""
        from fintrader.pipeline.config import load_config

        inside.check([*list_texts(read_yaml(path)), *list_texts(overrides or {})])
        return parse(load_config(path), _list_words(overrides), "mcp")

    for tool in (list_runs, show_run, show_looks):
        offer(READS, tool)
    if looks:
        offer(WRITES, judge)
        offer(WRITES, backtest)
    if train:
        offer(WRITES, train_agents)
    return server


def serve(folder: Path, runs_dir: str, *, looks: int, train: bool) -> None:
    """Serve on standard input and output until the assistant hangs up."""
    folder = folder.resolve()
    os.chdir(folder)
    # What is imported later must not come from files that an assistant put here.
    if not Path(__file__).is_relative_to(folder):
        sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != folder]
    make_server(folder, runs_dir, looks=looks, train=train).run()
