"""Growth: CPU time and memory of every stage by assets, accounts, bars, pods, runs and looks.

    python -m benchmarks.growth [--only build training] [--quick] [--save]

Each point has a process of its own. It imports everything, prepares its input, works once on the
smallest size, so that kernels are compiled, and then once on its own. `cpu_seconds` is that one
work; `mib` its peak of memory beyond the process with its input. An exponent is the slope between
the two largest sizes, on logarithmic axes: 1 is linear. The page lists each above 1.1, with its
reason from titles.yaml. `--quick` measures two small sizes of each; `--save` draws
docs/images/growth.png.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks._bench import Values, draw_picture, finish, read_arguments
from benchmarks._cluster import SEARCH
from benchmarks._figures import list_steep
from benchmarks._learning import make_random_market
from benchmarks.data_build import SCHEMA, make_symbol
from benchmarks.env import run_random
from benchmarks.orchestrator import FarmLauncher, stub_result
from benchmarks.training import run_ours
from fintrader.agents import PPO, ActionHeadSettings, NetworkSettings
from fintrader.agents.policy import ActorPolicy
from fintrader.backtesting import simulate, simulate_baselines, write_backtest
from fintrader.bars.calendar import session_grid
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.market.build import build_market
from fintrader.market.settings import DataSettings
from fintrader.results.context import BacktestContext
from fintrader.results.folders import FileCache, RunsFolder
from fintrader.results.run import summaries
from fintrader.results.tournament_events import ProposalEvent
from fintrader.runs import RunFolder
from fintrader.tournament.events import EventLog
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.run_tournament import describe_identity
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import build_result_event, submit
from fintrader.verdict.looks import Ledger, Look, Window
from tests.engines import fakes, stubs
from tests.engines.races import stub_race

ASSETS = (10, 100, 1_000, 3_000)
ACCOUNTS = (1, 256, 4_096, 65_536)
BARS = (10_000, 100_000, 1_000_000)
PODS = (100, 1_000, 10_000)
RUNS = (100, 1_000, 4_000)
LOOKS = (10, 100, 1_000)
FEATURES = 8
FEW = 10
"""Assets where accounts or bars grow."""
SESSIONS = 5
"""Sessions of minutes where the assets of a build grow."""
SETTINGS = EnvSettings(episode_bars=390)

Figures = dict[str, dict[str, float]]


class Watch:
    """CPU seconds (the program's own among them) and peak memory of each part of a work, by name."""

    def __init__(self) -> None:
        self.figures: Figures = {}

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        """Do the work; note what it took."""
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak until now
        before = read_memory("VmRSS")
        began = getrusage(RUSAGE_SELF)
        result = work()
        ended = getrusage(RUSAGE_SELF)
        user = ended.ru_utime - began.ru_utime
        system = ended.ru_stime - began.ru_stime
        peak = max(read_memory("VmHWM") - before, 0.0)
        self.figures[name] = {
            "cpu_seconds": user + system,
            "user_seconds": user,
            "mib": peak,
        }
        return result


def read_memory(name: str) -> float:
    """This process's figure of that name, MiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(found[1]) / 1024


Work = Callable[[int, Path, Watch], None]
"""Takes a size, an empty folder and the watch."""


# --- stages ---------------------------------------------------------------------------------------


def build(home: Path, symbols: int, minutes: np.ndarray, watch: Watch) -> None:
    """Build a market from one Parquet file, and load it."""
    stamps = pa.array(minutes, pa.timestamp("ns", tz="UTC"))
    with pq.ParquetWriter(home / "bars.parquet", SCHEMA) as writer:
        for number in range(symbols):
            writer.write_table(make_symbol(stamps, number, 0))
    settings = DataSettings.model_validate(
        {
            "path": str(home / "bars.parquet"),
            "source": {"kind": "files", "timezone": "UTC"},
            "windows": {"fractions": [0.6, 0.2, 0.2], "embargo_sessions": 0},
        }
    )
    watch.measure("build", lambda: build_market(settings, cache=home / "cache"))


def build_by_assets(size: int, home: Path, watch: Watch) -> None:
    build(home, size, list_minutes(SESSIONS * 390), watch)


def build_by_bars(size: int, home: Path, watch: Watch) -> None:
    build(home, FEW, list_minutes(size), watch)


def list_minutes(bars: int) -> np.ndarray:
    """The first minutes of New York's sessions since 2010."""
    last = date(2010 + math.ceil(bars / 95_000), 12, 31)
    return session_grid("XNAS", date(2010, 1, 1), last).minutes[:bars]


def step(assets: int, accounts: int, bars: int, watch: Watch) -> None:
    """Make an environment, and step it 20 times."""
    market = make_random_market(bars, assets, FEATURES, seed=0)
    env = watch.measure("make", lambda: TradingEnv(market, SETTINGS, num_envs=accounts, seed=0))
    run = run_random(env)
    run(2)
    watch.measure("20 steps", lambda: run(20))


def learn(assets: int, accounts: int, bars: int, watch: Watch) -> None:
    """Prepare the default PPO, and update it once."""
    market = make_random_market(bars, assets, FEATURES, seed=0)
    _, update = watch.measure("start", lambda: run_ours(market, PPO(), accounts, 0))
    watch.measure("first update", lambda: update(1))


def trade(assets: int, bars: int, home: Path, watch: Watch) -> None:
    """Trade a network and the baselines over all bars, half-hourly, and write the result."""
    market = make_random_market(bars, assets, FEATURES, seed=0, volatility=3e-4)
    rules = EnvSettings(decision_interval=30, cost_bps=2.0)
    layout = ObservationLayout(assets, FEATURES, 0)
    torch.manual_seed(0)
    policy = ActorPolicy(layout, NetworkSettings(), ActionHeadSettings())
    policy.eval().requires_grad_(False)
    result = watch.measure("simulate", lambda: simulate(policy, market, rules))
    baselines = watch.measure("baselines", lambda: simulate_baselines(market, rules))
    context = BacktestContext(trials=8)
    both = {"ensemble": result, **baselines}
    watch.measure(
        "assess", lambda: write_backtest(home, both, context=context, market=market, settings=rules)
    )


def make_settings(pods: int) -> TournamentSettings:
    return TournamentSettings(
        pods=pods,
        order="arrival",
        search=SEARCH,
        fresh=0.25,
        leaderboard_size=pods,
        keep="all",
    )


def race(size: int, home: Path, watch: Watch) -> None:
    """Write a tournament of finished pods, its leaderboard as large; resume it."""
    run = RunFolder(home / "run")
    settings = make_settings(size)
    watch.measure("write", lambda: fill(run, settings))
    launcher = FarmLauncher(run, 1, 0.0, farms=0)
    watch.measure("resume", lambda: stub_race(run, settings, launcher=launcher, seed=0))


def fill(run: RunFolder, settings: TournamentSettings) -> None:
    """Write a tournament that has ended after `settings.pods` pods, with two months of daily
    returns and small networks."""
    store = RunStore(run)
    board = Leaderboard(settings.leaderboard_size)
    generator = Generator(settings, (stubs.StubAgent(),), {}, 0, "data")
    random = np.random.default_rng(0)
    events = []
    store.claim(describe_identity(generator), lambda: True)
    store.snapshots.mkdir(exist_ok=True)
    for number in range(settings.pods):
        spec = generator.propose(number, board)
        store.write_spec(spec)
        policy, snapshot = random.bytes(5_000), random.bytes(20_000)
        store.locate_policy(spec.pod).write_bytes(policy)
        digest = hashlib.sha256(snapshot).hexdigest()
        store.locate_snapshot(digest).write_bytes(snapshot)
        score, first, second = random.random(3).tolist()
        returns, active = (tuple(row) for row in random.normal(size=(2, 42)).tolist())
        result = replace(
            stub_result(spec, digest),
            spec=spec.digest,
            score=score,
            policy=hashlib.sha256(policy).hexdigest(),
            rung_scores={"0.25": first, "0.5": second},
            returns=returns,
            active_returns=active,
            metrics=dict.fromkeys(("sharpe", "calmar", "return", "volatility"), score),
        )
        store.locate_result(spec.pod).write_text(result.to_json())
        entry = FinishedPod(spec, result)
        events.append(
            ProposalEvent(pod=spec.pod, origin=spec.origin, parent=spec.parent, seen=spec.seen)
        )
        events.append(build_result_event(entry, number, submit(board, entry)))
    EventLog(run.events).append(*events)


def list_runs(size: int, home: Path, watch: Watch) -> None:
    """List all runs of a folder, as the app does at its start."""
    market = fakes.save_market(home / "data" / "tensors")
    template = fakes.make_run(home / "one" / "runs", "demo", market=market)
    fakes.many_runs(template, home / "many", size)
    runs = RunsFolder.at(home / "many")
    watch.measure("list", lambda: list(summaries(runs, FileCache(summaries=4096))))


def look(size: int, home: Path, watch: Watch) -> None:
    """Count looks at a window of ten symbols; and a further one."""
    random = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(0.01 * random.standard_normal((250, FEW)), axis=0))
    days = (20_000 + np.arange(250)) * 86_400_000_000_000
    bars = Window.of([f"S{k}" for k in range(FEW)], days, close)
    own = Look("judge", "run", None, "", 0, "test", bars, ("ensemble",), "", 1, None)
    ledger = Ledger(home)

    def count(first: int, last: int) -> None:
        for number in range(first, last):
            ledger.record(replace(own, result=str(number)))

    watch.measure("all looks", lambda: count(0, size))
    watch.measure("20 further looks", lambda: count(size, size + 20))


class Case(NamedTuple):
    """A stage by one axis."""

    stage: str
    axis: str
    sizes: tuple[int, ...]
    work: Work


CASES = (
    Case("build", "assets", ASSETS, build_by_assets),
    Case("build", "bars", BARS, build_by_bars),
    Case("environment", "assets", ASSETS, lambda n, _, watch: step(n, 256, 1_000, watch)),
    Case("environment", "accounts", ACCOUNTS, lambda n, _, watch: step(FEW, n, 1_000, watch)),
    Case("environment", "bars", BARS, lambda n, _, watch: step(FEW, 256, n, watch)),
    Case("training", "assets", ASSETS, lambda n, _, watch: learn(n, 64, 1_000, watch)),
    Case("training", "accounts", ACCOUNTS, lambda n, _, watch: learn(FEW, n, 1_000, watch)),
    Case("training", "bars", BARS, lambda n, _, watch: learn(FEW, 64, n, watch)),
    Case("backtest", "assets", ASSETS, lambda n, home, watch: trade(n, 3_900, home, watch)),
    Case("backtest", "bars", BARS, lambda n, home, watch: trade(FEW, n, home, watch)),
    Case("tournament", "pods", PODS, race),
    Case("catalogue", "runs", RUNS, list_runs),
    Case("ledger", "looks", LOOKS, look),
)
NAMES = list(dict.fromkeys(case.stage for case in CASES))


# --- points and exponents -------------------------------------------------------------------------


def do_work(number: int, size: int) -> Figures:
    """Do the smallest size of a case, by its number, and then this one."""
    torch.set_num_threads(1)
    case = CASES[number]
    with tempfile.TemporaryDirectory(prefix="growth-") as home:
        watch = Watch()
        for name, count in (("small", min(case.sizes)), ("own", size)):
            (Path(home) / name).mkdir()
            case.work(count, Path(home) / name, watch)
    return watch.figures


def measure_point(case: Case, size: int) -> Figures:
    """One point, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        figures = pool.submit(do_work, CASES.index(case), size).result()
    print(f"{case.stage} by {case.axis}, {size:,}: {json.dumps(figures)}")
    return figures


def find_exponent(points: dict[int, Figures], part: str, unit: str) -> float | None:
    """Slope between the two largest sizes, at least a hundredth of a second and 4 MiB."""
    small, large = sorted(points)[-2:]
    least = 4.0 if unit == "mib" else 0.01
    first, last = (max(points[size][part][unit], least) for size in (small, large))
    return None if last == least else round(math.log(last / first) / math.log(large / small), 2)


def summarise_case(case: Case, points: dict[int, Figures]) -> list[Values]:
    """A row for each part of a case: its points, and its exponents."""
    rows = []
    for part in points[max(points)]:
        row = {"stage": case.stage, "axis": case.axis, "part": part}
        row["points"] = {f"{size}": found[part] for size, found in points.items()}
        for unit in ("cpu_seconds", "user_seconds", "mib"):
            row[f"{unit}_exponent"] = find_exponent(points, part, unit)
        rows.append(row)
    return rows


# --- the picture ----------------------------------------------------------------------------------


def draw(rows: list[Values]) -> None:
    """CPU seconds above, memory below, a column for each axis, on grey lines of linear growth."""
    columns = (("assets",), ("accounts",), ("bars",), ("pods", "runs", "looks"))
    parts = dict.fromkeys(row["part"] for row in rows)
    styles = dict(zip(parts, 5 * ("-", "--", ":"), strict=False))
    with draw_picture("growth", 2, 4, figsize=(14, 8), sharex="col") as axes:
        for column, names in enumerate(columns):
            shown = [row for row in rows if row["axis"] in names]
            for axis, unit in zip(axes[:, column], ("cpu_seconds", "mib"), strict=True):
                for row in shown:
                    points = {int(size): point[unit] for size, point in row["points"].items()}
                    axis.plot(
                        [*points],
                        [value or math.nan for value in points.values()],
                        styles[row["part"]],
                        color=f"C{NAMES.index(row['stage'])}",
                        marker="o",
                        markersize=3,
                        label=f"{row['stage']}: {row['part']}",
                    )
                draw_linear_growth(axis)
            axes[1][column].set_xlabel(" or ".join(names))
            axes[0][column].legend(
                frameon=False, fontsize=7, ncols=2, loc="lower left", bbox_to_anchor=(-0.1, 1.0)
            )
        axes[0][0].set_ylabel("CPU seconds")
        axes[1][0].set_ylabel("MiB beyond libraries and input")


def draw_linear_growth(axis: Any) -> None:
    """Draw slopes of 1 behind the curves of a picture on logarithmic axes."""
    axis.set(xscale="log", yscale="log")
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    for shift in range(8):
        start = low * 100**shift / 100
        axis.plot([left, right], [start, start * right / left], color="0.9", zorder=0)
    axis.set(xlim=(left, right), ylim=(low, high))


def main() -> None:
    """Measure every point, and list what grows faster than linearly."""
    options = read_arguments(__doc__, only=NAMES, quick=False)
    rows = []
    for case in CASES:
        if case.stage in options.only:
            sizes = case.sizes[:2] if options.quick else case.sizes
            rows += summarise_case(case, {size: measure_point(case, size) for size in sizes})
    print(*list_steep(rows), sep="\n")
    finish("growth", {"rows": rows, "load": os.getloadavg()[0]}, options)
    if options.save:
        draw(rows)


if __name__ == "__main__":
    main()
