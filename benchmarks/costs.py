"""Costs of starting, training, checking data and judging, on this tree and on an older one in turn.

    python -m benchmarks.costs --base FOLDER [--only help looks] [--part 0.1] [--fresh] [--save]

`--base` is a checkout of the older commit. Each point is a process with one thread, in which
a small warm-up compiles the kernels before the work is measured: `cpu_seconds`, and `peak_mib`, the
most memory of the process meanwhile, libraries included. Both trees take turns, at most three times,
until a process takes 10 CPU-seconds; medians are noted. `--part` scales all sizes but the
quickstart's, which each tree runs with its own configuration (8 pods of 200,000 steps in 7d5d1ad, of
180,000 now, and a longer test window). Start-ups are of the whole process (`code` is its exit
status). CPU seconds, because other processes may run; `load` says how many did. A finished row is
not measured again, except with `--fresh`; a record takes all rows.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from statistics import median
from typing import Any, NamedTuple

Work = Callable[[], Any]
Stage = Callable[[int, Path], Any]
FEW_SECONDS = 10
ROUNDS = 3
BODY = "fintrader.tournament.pod_training:train_and_evaluate"
START = {
    "interpreter": ("-c", "pass"),
    "torch": ("-c", "import torch"),
    "imports": ("-c", "import fintrader; fintrader.TradingEnv; fintrader.train"),
    "help": ("-m", "fintrader", "run", "--help"),
    "refusal": ("-m", "fintrader", "run", "quickstart", "--env.cost_bps=-1"),
    "worker": ("-m", "fintrader.tournament.pod", str(os.getpid()), BODY),
}


# --- works, of this tree or of the older one ------------------------------------------------------


def find(name: str, then: str, now: str) -> Any:
    """The object of that name, from its module of the older tree or of this one."""
    is_old = find_spec("fintrader.data") is not None
    return getattr(import_module(f"fintrader.{then if is_old else now}"), name)


def make_market(bars: int, assets: int, features: int = 8) -> Any:
    """Random walks, by the tree's own benchmark."""
    if find_spec("fintrader.data") is None:
        from benchmarks._learning import make_random_market

        return make_random_market(bars, assets, features, seed=0, volatility=6e-4, context=4)
    sys.path.insert(0, f"{os.environ['PYTHONPATH']}/benchmarks")
    return import_module("backtest").make_market(bars, assets, features, 0)


def save_market(bars: int, home: Path) -> None:
    make_market(bars, 100).save(home / "market.safetensors")


class FirstStep(Exception):
    """A training asks for its first action."""


def begin_training(bars: int, home: Path) -> Work:
    """Load a stored market of 100 assets, and train in it until the first step."""
    from fintrader import TradingEnv
    from fintrader.agents import PPO, Budget, make_agent, train

    path = home / "market.safetensors"

    def stop(_: object) -> None:
        raise FirstStep

    def work() -> dict[str, float]:
        market = find("MarketTensors", "data.tensors", "market.tensors").load(path)
        env = TradingEnv(market, num_envs=64, seed=0)
        agent = make_agent(PPO(), env.layout, seed=0)
        agent.act = stop
        try:
            train(agent, env, Budget(env_steps=64))
        except FirstStep:
            return {"file_mib": path.stat().st_size / 2**20}

    return work


def write_bars(bars: int, home: Path) -> None:
    """Minutes of 100 symbols in a Parquet file, by this tree for both."""
    if find_spec("fintrader.data") is not None:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.data_build import SCHEMA, make_symbol
    from benchmarks.growth import list_minutes

    stamps = pa.array(list_minutes(bars), pa.timestamp("ns", tz="UTC"))
    with pq.ParquetWriter(home.parents[1] / f"bars-{home.name}.parquet", SCHEMA) as writer:
        for number in range(100):
            writer.write_table(make_symbol(stamps, number, 0))


def check_quality(bars: int, home: Path) -> Work:
    settings = find("DataSettings", "data.settings", "market.settings").model_validate(
        {
            "path": str(home.parents[1] / f"bars-{home.name}.parquet"),
            "source": {"kind": "files", "timezone": "UTC"},
        }
    )
    report = find("quality_report", "data.inspect", "market.inspect")

    def count_bars(found: Any) -> int:
        return found["rows"] if isinstance(found, dict) else found.rows

    return lambda: {"bars": count_bars(report(settings))}


def make_policy(market: Any, head: str) -> tuple[Any, Any]:
    """An untrained default policy with that head, and what it trades by."""
    from fintrader import EnvSettings, TradingEnv
    from fintrader.agents import PPO, ActionHeadSettings, make_agent

    settings = EnvSettings(benchmark="equal_weight", cost_bps=2.0)
    layout = TradingEnv(market, settings, num_envs=1).layout
    agent = make_agent(PPO(head=ActionHeadSettings(kind=head)), layout, seed=0)
    return agent.policy, settings


def leave_out_each(assets: int, home: Path) -> Work:
    """Each stock left out, over one session of minutes."""
    market = make_market(390, assets)
    policy, settings = make_policy(market, "aim")
    module = import_module("fintrader.backtesting.sensitivity")
    simulate = getattr(module, "simulate_without_each", None) or module.without_each
    return lambda: simulate(policy, market, settings)


def look(looks: int, home: Path, symbols: int = 10, further: int = 0) -> Work:
    """Count looks at one window, or the further ones after those."""
    import numpy as np

    looked = [find(name, "results.looks", "verdict.looks") for name in ("Ledger", "Look", "Window")]
    random = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(0.01 * random.standard_normal((250, symbols)), axis=0))
    days = (20_000 + np.arange(250)) * 86_400_000_000_000
    bars = looked[2].of([f"S{k}" for k in range(symbols)], days, close)
    ledger = looked[0](home)
    end = looks + further

    def count(first: int, last: int) -> None:
        for number in range(first, last):
            names = ("backtest", "run", None, "", 0, "test", bars, ("ensemble",), str(number))
            ledger.record(looked[1](*names, 1, None))

    if not further:
        return lambda: count(0, looks)
    count(0, looks)
    return lambda: count(looks, end)


def look_further(looks: int, home: Path) -> Work:
    """Ten looks at 500 symbols, after others."""
    return look(looks, home, symbols=500, further=10)


def hold(bars: int, home: Path) -> Work:
    """Buy and hold 100 assets."""
    from fintrader import EnvSettings
    from fintrader.backtesting.baselines import buy_and_hold

    market = make_market(bars, 100)
    return lambda: buy_and_hold(market, EnvSettings())


def close_lots(fills: int, home: Path) -> Work:
    """Round trips of fills of 100 symbols."""
    import numpy as np
    import pandas as pd

    from fintrader.results.history import round_trips

    random = np.random.default_rng(0)
    trades = pd.DataFrame(
        {
            "fill_time": pd.date_range("2020-01-01", periods=fills, freq="min", tz="UTC"),
            "symbol": [f"S{k}" for k in random.integers(0, 100, fills)],
            "shares": random.integers(1, 100, fills) * random.choice([-1.0, 1.0], fills),
            "price_usd": random.uniform(10, 20, fills),
            "cost_usd": 0.1,
            "kind": "trade",
        }
    )
    return lambda: round_trips(trades)


def train_sac(accounts: int, assets: int, steps: int, **settings: int) -> Work:
    from fintrader import TradingEnv
    from fintrader.agents import SAC, Budget, make_agent, train

    env = TradingEnv(make_market(780, assets), num_envs=accounts, seed=0)
    agent = make_agent(SAC(**settings), env.layout, seed=0)
    return lambda: {"env_steps": train(agent, env, Budget(env_steps=steps)).env_steps}


def replay(kept: int, home: Path) -> Work:
    """Train SAC with 500 assets: 50 steps of all accounts, and a few updates."""
    accounts = kept // 40
    return train_sac(accounts, 500, 50 * accounts, buffer_size=kept, learning_starts=46 * accounts)


def overrun(accounts: int, home: Path) -> Work:
    """Train SAC for 25.4 steps of all accounts."""
    return train_sac(accounts, 10, 208_192 * accounts // 8_192, learning_starts=20 * accounts)


def judge(sessions: int, home: Path) -> Work:
    """The resampling of a verdict."""
    import numpy as np

    module = "backtesting.bootstrap", "verdict.bootstrap"
    intervals, excess = (find(name, *module) for name in ("intervals", "paired_excess"))
    test = find("alpha_test", "backtesting.evidence", "verdict.alpha")
    is_old = find_spec("fintrader.data") is not None
    random = np.random.default_rng(0)
    theirs, own = random.normal(5e-4, 0.01, (2, sessions))
    ours = theirs + own / 2

    def work() -> None:
        intervals(ours, **({"seed": 0} if is_old else {}))
        excess(ours, theirs, seed=0)
        test(ours, theirs, seed=0)

    return work


def decide(bars: int, assets: int, head: str | None, members: int = 1, features: int = 8) -> Work:
    """Simulate a policy that decides at every bar; `head` None: a callable."""
    import torch

    from fintrader.agents.policy import EnsemblePolicy
    from fintrader.backtesting import simulate

    market = make_market(bars, assets, features)
    policy, settings = make_policy(market, head or "aim")
    if members > 1:
        others = [make_policy(market, head)[0] for _ in range(members - 1)]
        policy = EnsemblePolicy([policy, *others])
    if head is None:

        def policy(obs: torch.Tensor) -> torch.Tensor:
            return torch.tanh(obs[:, :assets])

    return lambda: {"decisions": simulate(policy, market, settings) and bars - 1}


def run_quickstart(size: int, home: Path) -> Work:
    """Run the quickstart with no kernel compiled before, and again."""
    config = Path(os.environ["PYTHONPATH"]) / "configs" / "quickstart.yaml"
    os.environ["NUMBA_CACHE_DIR"] = str(home / "kernels")
    figures = {}

    def run_both() -> dict[str, float]:
        for name in ("cold", "warm") if size > 50 else ():  # nothing comes before
            before = getrusage(RUSAGE_CHILDREN)
            begun = time.perf_counter()
            command = [sys.executable, "-P", "-m", "fintrader", "run", str(config), "--name", name]
            subprocess.run(command, cwd=home, check=True, capture_output=True)
            after = getrusage(RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            figures[name] = used
            figures[f"{name}_seconds"] = time.perf_counter() - begun
        return figures

    return run_both


class Row(NamedTuple):
    """A work, its full size, and the preparation of its input in a process of its own."""

    work: Stage
    size: int
    prepare: Stage | None = None


ROWS = {
    "training": Row(begin_training, 400_000, save_market),
    "quality": Row(check_quality, 200_000, write_bars),
    "without_300": Row(leave_out_each, 300),
    "without_1000": Row(leave_out_each, 1_000),
    "looks": Row(look, 1_000),
    "further_looks": Row(look_further, 400),
    "hold": Row(hold, 100_000),
    "round_trips": Row(close_lots, 160_000),
    "replay": Row(replay, 40_960),
    "overrun": Row(overrun, 8_192),
    "verdict": Row(judge, 10_000),
    "callable": Row(lambda size, _: decide(size, 10, None), 20_000),
    "reads_bars": Row(lambda size, _: decide(size, 100, "aim"), 20_000),
    "reads_account": Row(lambda size, _: decide(size, 100, "tilt"), 20_000),
    "minutes": Row(lambda size, _: decide(size, 100, "aim", 10, 10), 98_700),
    "quickstart": Row(run_quickstart, 1_000),
}


# --- a point's process ----------------------------------------------------------------------------


def read_memory(name: str) -> float:
    """This process's figure of that name, MiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(found[1]) / 1024


def measure(name: str, size: int, home: Path, *, prepares: bool) -> None:
    """Do or prepare the work of a row on a small size and then on its own; print what it took."""
    row = ROWS[name]
    small = max(size // 20, 40)
    for folder, count in ((home / "small", small), (home / "own", size)):
        folder.mkdir(parents=True, exist_ok=True)
        if prepares:
            row.prepare(count, folder)
            continue
        work = row.work(count, folder)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak until now
        before = getrusage(RUSAGE_SELF)
        extra = work()
        after = getrusage(RUSAGE_SELF)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        figures = {"cpu_seconds": seconds, "peak_mib": read_memory("VmHWM")}
        if isinstance(extra, dict):
            figures |= extra
        del work, extra
    if not prepares:
        print(json.dumps(figures))


# --- both trees in turn ---------------------------------------------------------------------------


def run(tree: Path, home: Path, *words: str) -> tuple[dict[str, float] | str, float]:
    """Run Python in a tree: the figures that it prints, or why it failed; for start-ups the
    seconds of the process. And these seconds."""
    env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    env["FINTRADER_HOME"] = str(home)
    before = getrusage(RUSAGE_CHILDREN)
    command = [sys.executable, "-P", *words]
    nothing = subprocess.DEVNULL
    done = subprocess.run(command, cwd=home, env=env, stdin=nothing, capture_output=True, text=True)
    after = getrusage(RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if words[0] in ("-c", "-m"):
        return {"cpu_seconds": used, "code": done.returncode}, used
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1], used
    return json.loads((done.stdout.splitlines() or ["{}"])[-1]), used


def measure_row(name: str, part: float, trees: dict[str, Path], home: Path) -> dict[str, Any]:
    """Measure a row on both trees in turn: its size, and each tree's medians."""
    row = ROWS.get(name)
    size = 0 if row is None else max(round(part * row.size), 40)
    words = START.get(name) or (__file__, "work", name, str(size))
    found: dict[str, list[Any]] = {tree: [] for tree in trees}
    for tree, path in trees.items():
        if row is None:
            run(path, home, *words)  # writes bytecode
        elif row.prepare:
            run(path, home, __file__, "prepare", name, str(size), str(home / tree))
    longest = 0.0
    while len(found["then"]) < ROUNDS and longest < FEW_SECONDS:
        for tree, path in trees.items():
            place = tree if row and row.prepare else f"{tree}-{len(found[tree])}"
            last = () if row is None else (str(home / place),)
            figures, used = run(path, home, *words, *last)
            found[tree].append(figures)
            longest = max(longest, used)
    summary: dict[str, Any] = {"size": size, "rounds": len(found["then"])}
    for tree, runs in found.items():
        problem = next((one for one in runs if isinstance(one, str)), None)
        summary[tree] = (
            {"problem": problem}
            if problem
            else {key: median(one[key] for one in runs) for key in runs[0]}
        )
    return summary | {"load": os.getloadavg()[0]}


def main() -> None:
    """Measure every row."""
    from benchmarks._bench import ROOT, FinishedRuns, read_arguments

    names = [*START, *ROWS]
    options = read_arguments(__doc__, base=Path, only=names, part=1.0, fresh=False)
    if options.base is None:
        raise SystemExit("name a checkout of the older commit: --base FOLDER")
    if options.save and options.only != names:
        raise SystemExit("a record takes all rows: leave out --only")
    trees = {"now": ROOT, "then": options.base.resolve()}
    ask = ["git", "-C", str(trees["then"]), "rev-parse", "--short=7", "HEAD"]
    older = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    runs = FinishedRuns("costs", options)
    rows = {}
    for name in options.only:
        settings = {"older": older, "part": options.part}
        with tempfile.TemporaryDirectory(prefix="costs-") as home:
            take = partial(measure_row, name, options.part, trees, Path(home))
            rows[name] = runs.get(name, settings, take)
    runs.finish({"older": older, "part": options.part, "rows": rows})


if __name__ == "__main__":
    if sys.argv[1:2] in (["work"], ["prepare"]):
        stage, name, size, home = sys.argv[1:]
        measure(name, int(size), Path(home), prepares=stage == "prepare")
    else:
        main()
