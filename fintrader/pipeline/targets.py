"""Time until a run's agents earned a target, from the snapshots of its pods: the paper's figure of
training time against cumulative return.

Every pod that led the leaderboard when its result came is played over the test window. Each of them
counts as a look at that window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fintrader.agents.policy import load_policy
from fintrader.backtesting import BacktestResult, simulate, simulate_all_baselines
from fintrader.backtesting.look_record import look_at
from fintrader.errors import RunError
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig, load_config_of_run
from fintrader.pipeline.session import run_store
from fintrader.results.tournament_events import (
    LaunchEvent,
    ResultEvent,
    read_events,
    select_events,
)
from fintrader.runs import Manifest, RunFolder
from fintrader.terminal_progress import reporter
from fintrader.verdict.looks import count_look


@dataclass(frozen=True)
class Leader:
    """A pod that led when its result came."""

    seconds: float
    """From the start of the first pod to this one's result, pauses of the run included."""
    pod: str
    score: float
    """On the validation window."""
    growth: float
    """Equity at the end of the test window over the initial capital, net of costs."""


@dataclass(frozen=True)
class Race:
    """Leaders of a run over time, and the benchmark's growth in the same window."""

    leaders: tuple[Leader, ...]
    benchmark: float
    """Growth of the benchmark portfolio, net of costs; `portfolio`: its name."""
    portfolio: str
    looks: int | None
    """Looks at the window so far, these included; None where the ledger could not be written."""

    def find_first(self, target: float) -> Leader | None:
        """Find the first leader whose account grew to `target` times its capital."""
        return next((one for one in self.leaders if one.growth >= target), None)


def play_leaders(folder: Path) -> Race:
    """Play a run's leaders over its test window, and count the looks.

    Raises RunError for a run without a finished tournament, a walk-forward and a classic
    environment, and for a pod whose policy is gone; LedgerError for a changed ledger.
    """
    run = RunFolder(folder)
    run.refuse_unsafe()
    config = load_config_of_run(folder)
    manifest = Manifest.load(run.manifest)
    if config.is_classic:
        raise RunError(f"{folder}: a classic environment has no test window of a market")
    if (run.root / "folds").is_dir():
        raise RunError(
            f"{folder}: a walk-forward has a test window for each fold; give a run of `fintrader"
            " run`"
        )
    if not manifest.done("tournament"):
        raise RunError(
            f"{folder}: its tournament has not finished; run `fintrader run {folder}/config.yaml`"
            " first"
        )
    store = run_store(run)
    market = store.fetch_own_market(Path(str(manifest.values["market"])))
    windows = MarketTensors.load(market).split()
    results = store.read_results()
    events = read_events(run.events)
    began = min(event.time for event in events if isinstance(event, LaunchEvent))
    ended = {event.pod: event.time for event in events if isinstance(event, ResultEvent)}
    played = {}
    led = [
        (event.score, results[event.pod])
        for event in select_events(events, ResultEvent)
        if event.score is not None and event.position == 0
    ]
    with reporter() as progress:
        for _, result in led:
            store.ensure_policy(result)
            path = run.pod(result.pod) / "policy.safetensors"
            if not path.is_file():
                raise RunError(
                    f"{path} is gone, and {result.pod} led the race; `tournament.keep: all` keeps"
                    " every policy of a new run"
                )
            policy = load_policy(path)
            played[result.pod] = simulate(
                policy, windows.test, config.trading, name=result.pod, progress=progress
            )
        baselines = simulate_all_baselines(windows.test, config.trading)
    looks = _count_looks(run, config, manifest, windows.test, played)
    leaders = tuple(
        Leader(ended[result.pod] - began, result.pod, score, _measure_growth(played[result.pod]))
        for score, result in led
    )
    portfolio = baselines.portfolio
    return Race(leaders, _measure_growth(portfolio), portfolio.name, looks)


def _measure_growth(result: BacktestResult) -> float:
    return float(result.equity[-1] / result.equity[0])


def _count_looks(
    run: RunFolder,
    config: RunConfig,
    manifest: Manifest,
    market: MarketTensors,
    played: Mapping[str, BacktestResult],
) -> int | None:
    """Record a look for each leader; return the number of the last."""
    number = None
    for pod in played:
        look = look_at(
            [market],
            played,
            [pod],
            kind="targets",
            run=config.name,
            created=manifest.values["created"],
            folder=run.root.name,
            seed=config.seed,
            window="test",
            trials=int(manifest.values["trials"]),
            command=f"fintrader targets {run.root.name}",
        )
        number, _ = count_look(look)
    return number
