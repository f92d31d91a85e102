"""The curve: what the measured constants say about clusters of other sizes, and what the paper
measured.

A GPU's time is a sequence of pods. Beside its training of S seconds a pod costs its GPU

    o = process + start + evaluation + S / 10 s x checkpoint + snapshot (get, put) + result + wait
    for the next turn

and the orchestrator, of which there is one, c seconds of CPU. A pod with a GPU has a process of its
own, a task of Ray's. With P pods in all on G GPUs the time is

    T(G) = (P / G) (S + o) + tail,   as long as  G c < S + o

where the tail is the time in which GPUs run out of work one after another, up to a whole pod. The
simulation plays this with samples of every constant instead of means, and with the real
orchestrator's real CPU seconds.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.cluster.constants import Samples
from benchmarks.cluster.simulation import Simulated, World, check, settings, simulate

GPUS = (8, 16, 32, 80, 1000)
PAPER = {"1.7": {"16": 3400.0, "80": 1900.0}, "1.8": {"16": 4000.0, "80": 2200.0}}
"""Seconds to a return of 1.7 and of 1.8 (ElegantRL-Podracer, arXiv 2112.05923, section 5)."""
SPREAD = 0.2
"""Pods take S to within this share: machines of one kind, budgets in env-steps."""
CHECKPOINT_SECONDS = 10.0
"""`train` stores its state so often."""


def overhead(samples: dict[str, Samples], seconds: float, remote: bool) -> dict[str, Samples]:
    """What a pod costs its GPU before and after its training, as samples of the sums."""
    via = "_s3" if remote and "snapshot_s3_get" in samples else ""

    def mean(name: str) -> float:
        return statistics.fmean(samples[name])

    checkpoints = seconds / CHECKPOINT_SECONDS * mean("checkpoint")
    process = "task_start" if "task_start" in samples else "cold_start"
    rest = mean("warm_start") + mean(f"snapshot{via}_get") + checkpoints
    start = [one + rest for one in samples[process]]
    after = mean(f"snapshot{via}_put") + mean("result_file")
    return {"start": start, "end": [one + after for one in samples["evaluation"]]}


def amdahl(times: dict[str, float]) -> dict[str, float]:
    """T(G) = serial + parallel / G through the points at 16 and at 80 GPUs."""
    parallel = (times["16"] - times["80"]) / (1 / 16 - 1 / 80)
    serial = times["16"] - parallel / 16
    return {"serial_seconds": round(serial, 1), "parallel_gpu_seconds": round(parallel, 1)}


def paper() -> dict[str, Any]:
    """The paper's figures, the efficiency they amount to, and the serial part that would explain
    it."""
    found: dict[str, Any] = {}
    for target, times in PAPER.items():
        speedup = times["16"] / times["80"]
        found[target] = {
            "seconds": times,
            "speedup_16_to_80": round(speedup, 3),
            "efficiency_16_to_80": round(speedup / 5, 3),
            **amdahl(times),
        }
    return found


def throughput(
    home: Path,
    samples: dict[str, Samples],
    *,
    pods: int,
    seconds: float,
    remote: bool,
    gpus: tuple[int, ...] = GPUS,
) -> dict[str, Any]:
    """Simulated time to `pods` pods by number of GPUs; efficiency against pods without overhead on
    GPUs never idle."""
    sums = overhead(samples, seconds, remote)
    rows: dict[str, Any] = {}
    for count in gpus:
        world = World(
            gpus=count,
            pod=((1 - SPREAD) * seconds, (1 + SPREAD) * seconds),
            start=tuple(sums["start"]),
            end=tuple(sums["end"]),
        )
        asked = settings(pods, count)
        outcome = simulate(home / f"{seconds:g}-{remote}-{count}", asked, world, charge=1.0)
        check(outcome, asked)
        ideal = pods * seconds / count
        rows[str(count)] = {
            "seconds": round(outcome.makespan, 1),
            "efficiency": round(ideal / outcome.makespan, 4),
            "orchestrator_cpu_ms_per_pod": round(1000 * outcome.clock.cpu / pods, 3),
            "orchestrator_core_share": round(outcome.clock.cpu / outcome.makespan, 5),
        }
    found: dict[str, Any] = {
        "pods": pods,
        "pod_seconds": seconds,
        "store": "s3" if remote else "local",
        "overhead_seconds": round(
            statistics.fmean(sums["start"]) + statistics.fmean(sums["end"]), 3
        ),
        "by_gpus": rows,
    }
    if {"16", "80"} <= set(rows):
        found["efficiency_16_to_80"] = round(rows["16"]["seconds"] / rows["80"]["seconds"] / 5, 4)
    cpu = (
        rows[str(max(gpus))]["orchestrator_cpu_ms_per_pod"] / 1000
    )  # with few GPUs most turns find nothing to do
    found["gpus_at_which_the_orchestrator_is_full"] = round(
        (seconds + found["overhead_seconds"]) / cpu
    )
    return found


def stress(home: Path, *, pods: int, gpus: int, quick: bool) -> dict[str, Any]:
    """The orchestrator before a large, rough cluster: checks what must hold, and reports what it
    cost."""
    world = World(
        gpus=gpus,
        pod=(400.0, 800.0),
        start=(5.0, 10.0, 30.0),
        end=(1.0, 3.0),
        failure_rate=1 / 10_000,
        preemption_rate=1 / 20_000,
        zombies=0.2,
        seed=7,
    )
    asked = settings(pods, gpus, halving=0.5)
    deaths = (pods // 3, pods // 3 + 1, 2 * pods // 3)
    outcome = simulate(home / f"stress-{pods}-{gpus}", asked, world, charge=1.0, kill_after=deaths)
    check(outcome, asked)
    return {**figures(outcome, world, pods), "lost_or_doubled_results": 0, "capacity_exceeded": 0}


def figures(outcome: Simulated, world: World, pods: int) -> dict[str, Any]:
    """What the orchestrator cost, and what its pods waited for."""
    cluster = outcome.cluster
    clock = outcome.clock
    waits = sorted(
        outcome.applied[pod] - cluster.ended.get(pod, outcome.applied[pod])
        for pod in outcome.applied
    )
    idle = sorted(cluster.idle[world.gpus :]) or [0.0]
    turns = sorted(clock.turns)
    return {
        "pods": pods,
        "gpus": world.gpus,
        "simulated_hours": round(outcome.makespan / 3600, 2),
        "orchestrator_cpu_seconds": round(clock.cpu, 2),
        "orchestrator_cpu_ms_per_pod": round(1000 * clock.cpu / pods, 3),
        "turns": len(turns),
        "turn_cpu_ms_p50": round(1000 * statistics.median(turns), 2),
        "turn_cpu_ms_p99": round(1000 * percentile(turns, 0.99), 2),
        "result_waits_seconds_p50": round(percentile(waits, 0.5), 3),
        "result_waits_seconds_p99": round(percentile(waits, 0.99), 3),
        "gpu_idle_between_pods_seconds_p50": round(percentile(idle, 0.5), 3),
        "gpu_idle_between_pods_seconds_p99": round(percentile(idle, 0.99), 3),
        "losses": dict(cluster.losses),
        "attempts_most": max(cluster.attempts.values()),
        "orchestrator_restarts": outcome.restarts,
    }


def percentile(ordered: list[float], share: float) -> float:
    """Nearest rank in a sorted list."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
