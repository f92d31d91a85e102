"""Scale and efficiency of the tournament's engine.

    python benchmarks/orchestrator.py [--efficiency] [--devices cuda] [--save]

Scale, with stub pods that sleep and then publish a result as any pod does: 1,000 pods registered,
256 at once, run by farm processes apart from the orchestrator's; what the orchestrator costs, how
long its turns take, how many durable submissions it takes in a second, and how soon a changed
capacity is honoured. Efficiency, with real PPO pods: the aggregate env-steps a second of several
pods against one pod pinned to one core (or alone on the GPU), in turn, beside what the machine
gives to as many processes that only count. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.common import finish
from fintrader.runs import RunFolder
from fintrader.tournament.launchers import PodProgress
from fintrader.tournament.pod import run_pod
from fintrader.tournament.spec import PodContext, PodResult, PodSpec


class FarmLauncher:
    """Stub pods as sleeping threads of a few farm processes: the orchestrator's own process does no
    pod's work."""

    def __init__(self, run: RunFolder, workers: int, seconds: float, farms: int = 2) -> None:
        self.limit = workers
        self.futures: dict[str, Future[PodResult]] = {}
        command = [sys.executable, __file__, "--farm", str(run.root), str(seconds)]
        pipe = subprocess.PIPE
        self.farms = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(farms)
        ]
        for farm in self.farms:
            threading.Thread(target=self._read, args=(farm,), daemon=True).start()

    def capacity(self) -> int:
        return self.limit

    def resize(self, workers: int | None) -> None:
        self.limit = workers or 1

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        future = self.futures[spec.pod] = Future()
        farm = self.farms[spec.index % len(self.farms)]
        assert farm.stdin is not None
        farm.stdin.write(json.dumps(spec.model_dump(mode="json")) + "\n")
        farm.stdin.flush()
        return future

    def _read(self, farm: subprocess.Popen[str]) -> None:
        assert farm.stdout is not None
        for line in farm.stdout:
            result = PodResult.model_validate_json(line)
            self.futures.pop(result.pod).set_result(result)

    def progress(self) -> dict[str, PodProgress]:
        return {}

    def tick(self) -> None:
        """Nothing to look after."""

    def close(self) -> None:
        for farm in self.farms:
            assert farm.stdin is not None
            farm.stdin.close()
            farm.wait()


def farm(root: str, seconds: float) -> None:
    """One farm: a thread a pod, results as JSON lines."""
    run = RunFolder(Path(root))
    out = queue.SimpleQueue[str]()

    def body(spec: PodSpec, context: PodContext) -> PodResult:
        time.sleep(seconds * (0.75 + 0.5 * (spec.seed % 1000) / 1000))
        from fintrader.tournament.store import RunStore

        snapshot = RunStore(context.run).put(spec.pod.encode())
        score = (spec.seed % 997) / 997
        return PodResult(
            pod=spec.pod,
            status="done",
            score=score,
            snapshot=snapshot,
            returns=(0.01,) * 60,
            env_steps=1,
        )

    def work(spec: PodSpec) -> None:
        out.put(json.dumps(run_pod(spec, PodContext(run, run.root), body).model_dump(mode="json")))

    def write() -> None:
        while True:
            print(out.get(), flush=True)

    threading.Thread(target=write, daemon=True).start()
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=work, args=(PodSpec.model_validate_json(line),)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def race(run: RunFolder, launcher: Any, pods: int, watch: Any = None) -> Any:
    """An asynchronous tournament of stub pods."""
    from fintrader.tournament.run_tournament import run_tournament
    from fintrader.tournament.settings import Range, TournamentSettings
    from tests.engines import stubs

    settings = TournamentSettings(
        pods=pods,
        order="arrival",
        search={"learning_rate": Range(low=1e-5, high=1e-1, log=True)},
        leaderboard_size=64,
        fresh=0.25,
    )
    return run_tournament(
        settings,
        folder=run,
        market=stubs.market(run.root.parent),
        agent=stubs.StubAgent(),
        seed=0,
        launcher=launcher,
        ensemble=stubs.ensemble,
        watch=watch,
    )


def timed_turns() -> list[float]:
    """Make every reconcile note how long it took."""
    from fintrader.tournament.orchestrator import Orchestrator

    turns: list[float] = []
    reconcile = Orchestrator.reconcile

    def timed(self: Orchestrator) -> None:
        begun = time.perf_counter()
        reconcile(self)
        turns.append(time.perf_counter() - begun)

    Orchestrator.reconcile = timed  # type: ignore[method-assign]
    return turns


def scale(home: Path, pods: int, at_once: int, seconds: float) -> dict[str, Any]:
    """The steady state: `at_once` pods at work until `pods` have been."""
    run = RunFolder(home / "scale")
    run.root.mkdir(parents=True)
    launcher = FarmLauncher(run, at_once, seconds)
    turns = timed_turns()
    most = 0

    def watch(orchestrator: Any) -> None:
        nonlocal most
        most = max(most, len(orchestrator.running))

    wall = time.perf_counter()
    cpu = time.process_time()
    race(run, launcher, pods, watch)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    ordered = sorted(turns)
    return {
        "pods": pods,
        "at_once": most,
        "pod_seconds": seconds,
        "wall_seconds": round(wall, 2),
        "pods_per_second": round(pods / wall, 1),
        "orchestrator_core_share": round(cpu / wall, 4),
        "orchestrator_cpu_ms_per_pod": round(1000 * cpu / pods, 2),
        "reconciles": len(turns),
        "reconcile_ms_p50": round(1000 * statistics.median(turns), 2),
        "reconcile_ms_p99": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 2),
        "reconcile_ms_max": round(1000 * ordered[-1], 2),
    }


def submissions(home: Path, count: int, burst: int) -> dict[str, Any]:
    """Results taken in per second, durable (log synced, index committed) before the next burst,
    `burst` at a time."""
    from fintrader.tournament.events import EventLog
    from fintrader.tournament.leaderboard import FinishedPod, Leaderboard, LeaderboardIndex
    from fintrader.tournament.updater import applied_event, submit

    run = RunFolder(home / "submissions")
    specs = [
        PodSpec(
            pod=f"p{k:04d}",
            index=k,
            seed=k,
            origin="fresh",
            agent={"algo": "stub"},
            budget={"env_steps": 1},
        )
        for k in range(count)
    ]
    results = [
        PodResult(
            pod=s.pod,
            status="done",
            score=(s.index * 7919 % 997) / 997,
            snapshot="0" * 64,
            returns=(0.01,) * 60,
        )
        for s in specs
    ]
    log = EventLog(run.events)
    index = LeaderboardIndex(run.leaderboard)
    board = Leaderboard(64)
    index.rebuild(64, specs, [])
    begun = time.perf_counter()
    for start in range(0, count, burst):
        entries = [
            FinishedPod(specs[k], results[k]) for k in range(start, min(start + burst, count))
        ]
        log.append(*[applied_event(e, start + k, submit(board, e)) for k, e in enumerate(entries)])
        index.write_turn((), entries, start, ())
    seconds = time.perf_counter() - begun
    index.close()
    return {
        "count": count,
        "burst": burst,
        "seconds": round(seconds, 4),
        "per_second": round(count / seconds),
    }


def elasticity(home: Path) -> dict[str, Any]:
    """Capacity 4 -> 64 -> 3: reconciles until the number of pods at work follows (down: as pods
    end)."""
    from fintrader.tournament.status import scale as wish

    run = RunFolder(home / "elastic")
    run.root.mkdir(parents=True)
    asked: dict[int, int] = {}
    honoured: dict[int, int] = {}

    def watch(orchestrator: Any) -> None:
        turn = orchestrator.reconciles
        at_work = len(orchestrator.running)
        for pods in asked:
            reached = at_work >= pods if pods == 64 else orchestrator.launcher.capacity() == pods
            if pods not in honoured and reached and turn > asked[pods]:
                honoured[pods] = turn - asked[pods]
        if 64 not in asked and at_work == 4:
            asked[64] = turn
            wish(run, 64)
        elif 64 in honoured and 3 not in asked:
            asked[3] = turn
            wish(run, 3)

    race(run, FarmLauncher(run, 4, 1.0), 160, watch)
    return {"up_4_to_64_reconciles": honoured.get(64), "down_64_to_3_reconciles": honoured.get(3)}


SPIN = """
import sys, time
end, done = time.perf_counter() + float(sys.argv[1]), 0
while time.perf_counter() < end:
    for _ in range(10000):
        done += 1
print(done)
"""


def spin(count: int, seconds: float) -> float:
    """Turns a second of `count` processes that only count, each pinned to a core: what the machine
    itself can do."""
    command = [sys.executable, "-c", SPIN, str(seconds)]
    ones = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for core, one in zip(sorted(os.sched_getaffinity(0)), ones, strict=False):
        os.sched_setaffinity(one.pid, {core})
    return sum(int(one.communicate()[0]) for one in ones) / seconds


def train_pods(
    home: Path, devices: str, count: int, env_steps: int, market: Path, num_envs: int
) -> float:
    """Aggregate env-steps a second of `count` real pods training at once, each on a core of its own
    on the CPU."""
    from fintrader.agents import PPO, Budget
    from fintrader.envs import EnvSettings
    from fintrader.tournament.run_tournament import run_tournament
    from fintrader.tournament.settings import TournamentSettings
    from fintrader.tournament.store import RunStore

    cores = sorted(os.sched_getaffinity(0))
    if devices == "cpu":
        os.sched_setaffinity(0, set(cores[:count]))
    try:
        run = RunFolder(home)
        run_tournament(
            TournamentSettings(
                pods=2 * count,
                pool_size=count,
                workers=count,
                devices=(devices,),
                pods_per_device=count,
                budget=Budget(env_steps=env_steps),
                ensemble_size=1,
                fresh=1.0,
            ),
            folder=run,
            market=market,
            env=EnvSettings(num_envs=num_envs, episode_bars=390, decision_interval=5),
            agent=PPO(),
            seed=0,
        )
    finally:
        os.sched_setaffinity(0, set(cores))
    # Pods of the second wave all run in warm workers beside each other.
    warm = list(RunStore(run).results().values())[count:]
    return sum(result.env_steps / result.seconds for result in warm)


def efficiency(
    home: Path, devices: str, counts: list[int], env_steps: int, repeats: int
) -> dict[str, Any]:
    """Several pods at once against one alone, in turn, `repeats` times; and the same of processes
    that only count."""
    from tests.factories import make_market

    market = home / "market.safetensors"
    make_market(3 * 390 * 4, 8, 6, session_bars=390).save(market)
    num_envs = 64 if devices == "cpu" else 2048
    pods: dict[str, list[float]] = {str(count): [] for count in counts}
    bare: dict[str, list[float]] = {str(count): [] for count in counts}
    for repeat in range(repeats):
        for count in counts:
            folder = home / f"efficiency-{repeat}-{count}"
            pods[str(count)].append(train_pods(folder, devices, count, env_steps, market, num_envs))
            if devices == "cpu":
                bare[str(count)].append(spin(count, 3.0))
            print(f"{count} pod(s): {pods[str(count)][-1]:,.0f} env-steps/s", flush=True)
    rates = {count: statistics.median(values) for count, values in pods.items()}
    base = str(counts[0])
    figures: dict[str, Any] = {
        "devices": devices,
        "num_envs": num_envs,
        "repeats": repeats,
        "env_steps_per_second": {count: round(rate, 1) for count, rate in rates.items()},
        "every_repeat": {
            count: [round(value, 1) for value in values] for count, values in pods.items()
        },
        "ratio_to_one": {count: round(rate / rates[base], 3) for count, rate in rates.items()},
    }
    if devices == "cpu":
        ceiling = {count: statistics.median(values) for count, values in bare.items()}
        figures["bare_processes_ratio_to_one"] = {
            count: round(rate / ceiling[base], 3) for count, rate in ceiling.items()
        }
    return figures


def main() -> None:
    if "--farm" in sys.argv:
        farm(sys.argv[2], float(sys.argv[3]))
        return
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pods", type=int, default=1000)
    arguments.add_argument("--at-once", type=int, default=256)
    arguments.add_argument("--pod-seconds", type=float, default=10.0)
    arguments.add_argument(
        "--efficiency", action="store_true", help="measure real pods, not the engine"
    )
    arguments.add_argument("--devices", default="cpu")
    arguments.add_argument("--counts", type=int, nargs="+", default=None)
    arguments.add_argument("--env-steps", type=int, default=400_000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="orchestrator-"))
    try:
        if options.efficiency:
            counts = options.counts or ([1, 2] if options.devices == "cpu" else [1, 2, 4, 8])
            figures = efficiency(home, options.devices, counts, options.env_steps, options.repeats)
            name = f"efficiency_{options.devices}"
        else:
            figures = {
                "scale": scale(home, options.pods, options.at_once, options.pod_seconds),
                "submissions": submissions(home, 4096, options.at_once),
                "submissions_one_by_one": submissions(home / "single", 512, 1),
                "elasticity": elasticity(home),
            }
            name = "orchestrator"
    finally:
        shutil.rmtree(home, ignore_errors=True)
    finish(name, figures, seed=0, save=options.save)


if __name__ == "__main__":
    main()
