"""The commands of `fintrader`: their arguments, their help and the code behind them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """A command. Its code is imported when it runs."""

    reference: str
    """`module:function` in `fintrader.cli`; the function takes the words after the command."""
    takes: str
    """Its arguments and usual options, as the first line of its help shows them."""
    about: str
    """Its purpose; the overview shows the text before the first semicolon."""
    settings: tuple[str, ...] = ()
    """`package.module:Model` of the models whose fields are its options."""

    def run(self, argv: list[str]) -> None:
        """Run the command on the words after its name."""
        module, _, function = self.reference.partition(":")
        getattr(import_module(f"fintrader.cli.{module}"), function)(argv)


RUN = "fintrader.pipeline.config:RunConfig"
DATA = "fintrader.market.data_config:DataConfig"
SEARCH = "fintrader.cli.commands:SearchOptions"
_PLACE = ("fintrader.cli.deployments:PlaceOptions",)

GROUPS: Mapping[str, Mapping[str, Command]] = {
    "run": {
        "init": Command(
            "detect_bars:init",
            "FILE|FOLDER|TICKER ... [--from VENDOR] [--days N] [--index I] [--out CONFIG]",
            "read or download bars, and write a configuration ready for `run`",
            ("fintrader.cli.detect_bars:InitOptions",),
        ),
        "run": Command(
            "commands:run",
            "CONFIG [--overrides]",
            "bars to verdict, all stages; after a kill the same command resumes where it was",
            (SEARCH, RUN),
        ),
        "plan": Command(
            "commands:plan",
            "CONFIG [--on-demand-usd P] [--spot-usd P] [--overrides]",
            "bars, symbols by day, pods, memory, hours and cost of `run`; nothing is started, built"
            " or downloaded",
            ("fintrader.cli.commands:PlanOptions", SEARCH, RUN),
        ),
        "submit": Command(
            "commands:submit",
            "CONFIG --to PLACE [--image NAME] [--overrides]",
            "start `run` on a Ray or Kubernetes cluster; --to is ray://HOST or kubernetes, and how"
            " to watch it is printed",
            ("fintrader.pipeline.submission:SubmitOptions", SEARCH, RUN),
        ),
        "walkforward": Command(
            "commands:walk_forward",
            "CONFIG [--overrides]",
            "train, choose, test, roll on; each fold is a tournament, all test windows one"
            " backtest",
            (SEARCH, RUN),
        ),
        "train": Command(
            "commands:train",
            "CONFIG [--overrides]",
            "one agent, no tournament, for the budget of a pod; it is scored on the validation"
            " window",
            (RUN,),
        ),
        "tournament": Command(
            "commands:tournament",
            "CONFIG [--overrides]",
            "data and tournament, without the look at the test window",
            (SEARCH, RUN),
        ),
        "backtest": Command(
            "commands:backtest",
            "RUN [--overrides]",
            "backtest a run's policies again, e.g. at other costs; nothing is trained",
            (RUN,),
        ),
    },
    "look": {
        "app": Command(
            "start:app",
            "[--runs-dir DIR_OR_URL] [--port N]",
            "the app on your runs, in a browser; it listens on loopback unless --host is given,"
            " and its printed address has a token in it",
            ("fintrader.cli.start:AppSettings",),
        ),
        "mcp": Command(
            "start:mcp",
            "[--folder DIR] [--looks N] [--train]",
            "a server for assistants (MCP); it only reads, unless --looks gives it a budget of"
            " looks, or --train",
            ("fintrader.cli.start:McpSettings",),
        ),
        "status": Command(
            "tournaments:status",
            "RUN|NAME [--json] [--lineage POD] [--workers N]",
            "progress and leaderboard of a run, or state of a deployment; a pod's lineage, and"
            " losses with their reasons; of a deployment also --drift and --promote",
            ("fintrader.cli.tournaments:StatusOptions",),
        ),
        "targets": Command(
            "tournaments:targets",
            "RUN --at GROWTH ... [--json]",
            "time until a run's best pod reached a target growth; a look at the test window",
            ("fintrader.cli.tournaments:TargetOptions",),
        ),
        "compare": Command(
            "commands:compare",
            "RUN RUN ... [--out FILE]",
            "several backtests on one page; RUN/backtest/WINDOW is one of another window",
            ("fintrader.cli.commands:ComparisonOptions",),
        ),
        "runs": Command(
            "commands:edit_run",
            "RUN [--note TEXT] [--tags A B] [--archived] [--delete [--yes]]",
            "show or write a run's note and tags, put it aside, delete it",
            ("fintrader.cli.commands:RunsOptions",),
        ),
        "export": Command(
            "tournaments:export",
            "RUN [--format onnx|html|tensorboard|mlflow] [--out PATH]",
            "a policy as ONNX, static pages, curves for TensorBoard or MLflow",
            ("fintrader.cli.tournaments:ExportOptions",),
        ),
    },
    "doubt": {
        "judge": Command(
            "judging:judge",
            "FILE [--benchmark COLUMN|FILE|cash] [--trials N] [--held-out] [--claim ID]",
            "test any strategy's returns for skill; FILE: CSV, Parquet, or a result of"
            " freqtrade or Lean; or --weights FILE --prices FILE",
            ("fintrader.cli.judging:JudgeOptions",),
        ),
        "judge register": Command(
            "judging:register",
            "SOURCE [--first DATE] [--last DATE] [--benchmark COLUMN|FILE|cash]",
            "seal a claim on a window that has not begun; SOURCE: a file of returns that grows, or"
            " files of a strategy; `judge --claim ID` judges it, as a first look",
            ("fintrader.cli.judging:RegisterOptions",),
        ),
        "verify": Command(
            "checks:verify",
            "PATH [--repair] [--replay]",
            "recompute and compare a run, a report, a market or bars; a configuration stands for"
            " its stored bars; status 1 when something is wrong",
            ("fintrader.cli.checks:VerifyOptions",),
        ),
        "lookahead": Command(
            "commands:lookahead",
            "CONFIG [--budget-minutes M] [--overrides]",
            "change future bars, see whether earlier ones change; status 1 for a leak, 3 for an"
            " alarm",
            ("fintrader.backtesting.settings:LookaheadSettings", RUN),
        ),
        "looks": Command(
            "commands:looks",
            "[--runs-dir DIR]",
            "looks at each window, by all runs, and its next level; status 1 when the ledger was"
            " changed",
            ("fintrader.cli.commands:LooksOptions",),
        ),
    },
    "data": {
        "data build": Command(
            "commands:build_data",
            "CONFIG [--dry-run] [--overrides], or CONFIG ... --prune [--yes]",
            "make the market file, print the bars it would read, or prune; --prune lists the stored"
            " markets and bars that nothing refers to, and removes them with --yes",
            ("fintrader.cli.commands:BuildOptions", DATA),
        ),
        "data quality": Command(
            "commands:report_quality",
            "CONFIG [--overrides]",
            "every hole and fault of the bars, by symbol and day",
            (DATA,),
        ),
        "data compare": Command(
            "data_compare:compare_data",
            "A B [--json] [--out DIR]",
            "two sources of bars, cell by cell; minutes against days too; writes a page with a heat"
            " map",
            ("fintrader.cli.data_compare:CompareOptions",),
        ),
    },
    "trade": {
        "paper": Command(
            "deployments:paper",
            "RUN [--freeze | --install] [--feed F] [--broker B] [--speed S]",
            "trade a run on, as a replay or on a paper account; its drift from the backtest is"
            " reported at the end; a replay needs no keys",
            ("fintrader.cli.deployments:PaperOptions", "fintrader.deploy.settings:PaperSettings"),
        ),
        "live": Command(
            "deployments:live",
            "NAME",
            "real money, after twenty sessions on paper and a person's consent; closed until a"
            " market-life simulator has passed on this code",
            ("fintrader.cli.deployments:ServiceOptions", "fintrader.deploy.settings:LiveSettings"),
        ),
        "halt": Command(
            "deployments:halt", "NAME", "order nothing more, at once; shares stay", _PLACE
        ),
        "resume": Command(
            "deployments:resume",
            "NAME",
            "let a halted deployment go on; a flatten ends first",
            _PLACE,
        ),
        "accept": Command(
            "deployments:accept",
            "NAME",
            "take over the differences of the account that a halt names; then resume",
            _PLACE,
        ),
        "flatten": Command(
            "deployments:flatten",
            "NAME|--all",
            "halt, cancel the orders, sell everything; again and again until nothing is held",
            ("fintrader.cli.deployments:FlattenOptions",),
        ),
    },
}
"""The commands by the title under which the overview names them."""
COMMANDS = {name: one for commands in GROUPS.values() for name, one in commands.items()}
