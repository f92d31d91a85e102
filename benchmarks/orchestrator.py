"""Scale and efficiency of the tournament's engine.

    python -m benchmarks.orchestrator [--pods 1000] [--at-once 256] [--pod-seconds 10] [--save]
    python -m benchmarks.orchestrator --efficiency [--counts 1 2 4] [--env-steps 400000]
    [--repeats 3] [--save]

Scale, with stub pods that sleep and then publish a result as any pod does: 1,000 pods registered,
256 at once, run by farm processes apart from the orchestrator's; what the orchestrator costs, how
long its turns take, and how many durable submissions it takes in a second. Efficiency, with real
PPO pods: the aggregate env-steps a second of several pods against one, each on a core of its own,
in turn, beside the rate of as many processes that only count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import psutil

from benchmarks._bench import Values, finish, read_arguments
from benchmarks._cluster import SEARCH
from fintrader.agents import PPO, Budget
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors
from fintrader.runs import RunFolder
from fintrader.tournament.events import EventLog
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard, LeaderboardIndex
from fintrader.tournament.orchestrator import Orchestrator
from fintrader.tournament.pod import run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.run_tournament import run_tournament
from fintrader.tournament.settings import OperationsSettings, TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import build_result_event, submit
from tests.engines import stubs
from tests.engines.races import stub_race
from tests.engines.thread_launcher import ThreadLauncher
from tests.factories import make_market

NUM_ENVS = 64
"""Accounts of a real pod."""


class FarmLauncher(ThreadLauncher):
    """Stub pods as sleeping threads of a few farm processes, so that the orchestrator's process
    does no pod's work."""

    def __init__(self, run: RunFolder, workers: int, seconds: float, farms: int = 2) -> None:
        super().__init__(run, run.root, stubs.body, workers=workers)
        self.futures: dict[str, Future[PodResult]] = {}
        self.farms: list[Connection] = []
        context = get_context("spawn")
        for _ in range(farms):
            ours, theirs = context.Pipe()
            context.Process(target=serve_farm, args=(theirs, run, workers, seconds)).start()
            threading.Thread(target=self._read, args=(ours,)).start()
            self.farms.append(ours)

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        future = self.futures[spec.pod] = Future()
        self.farms[spec.index % len(self.farms)].send(spec)
        return future

    def _read(self, farm: Connection) -> None:
        for result in iter(farm.recv, None):
            self.futures.pop(result.pod).set_result(result)

    def close(self) -> None:
        for farm in self.farms:
            farm.send(None)


def stub_result(spec: PodSpec, snapshot: str) -> PodResult:
    """The result of a pod that trained nothing."""
    return PodResult(
        pod=spec.pod,
        status="done",
        score=(spec.seed * 7919 % 997) / 997,
        snapshot=snapshot,
        returns=(0.01,) * 60,
        env_steps=1,
    )


def serve_farm(pipe: Connection, run: RunFolder, workers: int, seconds: float) -> None:
    """Run the pods that come through the pipe, a thread each, and send their results, until None
    comes and goes."""
    lock = threading.Lock()

    def body(spec: PodSpec, context: PodContext) -> PodResult:
        time.sleep(seconds * (0.75 + 0.5 * (spec.seed % 1000) / 1000))
        return stub_result(spec, RunStore(context.run).put(spec.pod.encode()))

    def work(spec: PodSpec) -> None:
        result = run_pod(spec, PodContext(run, run.root), body)
        with lock:
            pipe.send(result)

    with ThreadPoolExecutor(workers) as pool:
        for spec in iter(pipe.recv, None):
            pool.submit(work, spec)
    pipe.send(None)


def measure_scale(home: Path, pods: int, at_once: int, seconds: float) -> Values:
    """The steady state: `at_once` pods at work until `pods` have been."""
    run = RunFolder(home / "scale")
    run.root.mkdir(parents=True)
    settings = TournamentSettings(
        pods=pods, order="arrival", search=SEARCH, leaderboard_size=64, fresh=0.25
    )
    launcher = FarmLauncher(run, at_once, seconds)
    turns = []
    counts = []
    grown = {}
    process = psutil.Process()
    reconcile = Orchestrator.reconcile

    def time_reconcile(self: Orchestrator) -> None:
        begun = time.perf_counter()
        reconcile(self)
        turns.append(time.perf_counter() - begun)
        counts.append(len(self.running))
        tenth = 10 * len(self.leaderboard.applied) // pods
        if tenth not in grown:
            grown[tenth] = {
                "memory_mib": process.memory_info().rss / 2**20,
                "threads": process.num_threads(),
                "open_files": process.num_fds(),
            }

    wall = time.perf_counter()
    cpu = time.process_time()
    with patch.object(Orchestrator, "reconcile", time_reconcile):
        stub_race(run, settings, launcher=launcher, seed=0)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    turns.sort()
    return {
        "pods": pods,
        "at_once": max(counts),
        "pod_seconds": seconds,
        "orchestrator_core_share": cpu / wall,
        "orchestrator_cpu_ms_per_pod": 1e3 * cpu / pods,
        "reconcile_ms_p50": 1e3 * statistics.median(turns),
        "reconcile_ms_p99": 1e3 * turns[int(0.99 * (len(turns) - 1))],
        "reconcile_ms_max": 1e3 * turns[-1],
        "at_tenths": grown,
        "command_cpu_seconds": {name: time_command(name, run) for name in ("status", "verify")},
    }


def time_command(name: str, run: RunFolder) -> float:
    """Measure the processor seconds of a command on a finished run."""
    before = os.times()
    command = [sys.executable, "-m", "fintrader", name, str(run.root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system


def measure_submissions(home: Path, count: int, burst: int) -> Values:
    """Results taken in per second, durable (log synced, index committed) before the next burst,
    `burst` at a time."""
    run = RunFolder(home / "submissions")
    specs = [stubs.spec(number) for number in range(count)]
    entries = [FinishedPod(spec, stub_result(spec, "0" * 64)) for spec in specs]
    log = EventLog(run.events)
    index = LeaderboardIndex(run.leaderboard)
    board = Leaderboard(64)
    index.rebuild(64, specs, [])
    begun = time.perf_counter()
    for start in range(0, count, burst):
        some = entries[start : start + burst]
        log.append(
            *[build_result_event(e, start + k, submit(board, e)) for k, e in enumerate(some)]
        )
        index.write_turn((), some, start, ())
    seconds = time.perf_counter() - begun
    index.close()
    return {"count": count, "burst": burst, "per_second": round(count / seconds)}


SPIN = """
import sys, time
end, done = time.perf_counter() + float(sys.argv[1]), 0
while time.perf_counter() < end:
    for _ in range(10000):
        done += 1
print(done)
"""


def spin(count: int, seconds: float) -> float:
    """Turns a second of `count` processes that only count, each pinned to a core: the
    machine's own rate."""
    command = [sys.executable, "-c", SPIN, str(seconds)]
    ones = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for core, one in zip(sorted(os.sched_getaffinity(0)), ones, strict=False):
        os.sched_setaffinity(one.pid, {core})
    return sum(int(one.communicate()[0]) for one in ones) / seconds


def train_pods(home: Path, count: int, env_steps: int, market: Path) -> float:
    """Aggregate env-steps a second of `count` real pods training at once, each on a core of its
    own."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[:count]))
    try:
        run = RunFolder(home)
        run_tournament(
            TournamentSettings(
                pods=2 * count,
                pool_size=count,
                workers=count,
                devices=("cpu",),
                budget=Budget(env_steps=env_steps),
                ensemble_size=1,
                fresh=1.0,
            ),
            folder=run,
            market=market,
            env=EnvSettings(num_envs=NUM_ENVS, episode_bars=390, decision_interval=5),
            operations=OperationsSettings(),
            data_hash=MarketTensors.stored_hash(market),
            agents=(PPO(),),
            seed=0,
        )
    finally:
        os.sched_setaffinity(0, set(cores))
    # Pods of the second wave all run in warm workers beside each other.
    warm = list(RunStore(run).read_results().values())[count:]
    return sum(result.env_steps / result.seconds for result in warm)


def measure_efficiency(home: Path, counts: list[int], env_steps: int, repeats: int) -> Values:
    """Several pods at once against one alone, in turn, `repeats` times; and the same of processes
    that only count."""
    market = home / "market.safetensors"
    make_market(3 * 390 * 4, 8, 6, session_bars=390).save(market)
    rates = {"pods": {}, "bare_processes": {}}
    for repeat in range(repeats):
        for count in counts:
            rate = train_pods(home / f"efficiency-{repeat}-{count}", count, env_steps, market)
            print(f"{count} pod(s): {rate:,.0f} env-steps/s")
            rates["pods"].setdefault(str(count), []).append(rate)
            rates["bare_processes"].setdefault(str(count), []).append(spin(count, 3.0))
    figures = {"devices": "cpu", "num_envs": NUM_ENVS, "repeats": repeats}
    for name, key in (("pods", "ratio_to_one"), ("bare_processes", "bare_processes_ratio_to_one")):
        medians = {count: statistics.median(values) for count, values in rates[name].items()}
        alone = medians[str(counts[0])]
        figures[key] = {count: rate / alone for count, rate in medians.items()}
    return {**figures, "every_repeat": rates}


def main() -> None:
    """Measure the engine, or with `--efficiency` real pods."""
    options = read_arguments(
        __doc__,
        pods=1000,
        at_once=256,
        pod_seconds=10.0,
        efficiency=False,
        counts=[1, 2],
        env_steps=400_000,
        repeats=3,
    )
    with tempfile.TemporaryDirectory(prefix="orchestrator-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        if options.efficiency:
            figures = measure_efficiency(home, options.counts, options.env_steps, options.repeats)
            finish("efficiency_cpu", figures, options)
            return
        figures = {
            "scale": measure_scale(home, options.pods, options.at_once, options.pod_seconds),
            "submissions": measure_submissions(home, 4096, options.at_once),
        }
        finish("orchestrator", figures, options)


if __name__ == "__main__":
    main()
