"""Scaling to a cluster: constants measured here, a curve predicted from them, the orchestrator
tried at its size.

    python -m benchmarks.scaling [--pods 4800] [--quick] [--save]

constants    the costs of a pod besides its training, each as a distribution
throughput   time to a fixed total of pods on 8 to 1,000 GPUs, simulated with samples of those
             constants and with the real orchestrator on a simulated clock, its own CPU seconds
             included
stress       1,000 to 10,000 pods with failures, preemptions, late results and deaths of the
             orchestrator: every result is applied once, capacity is honoured

A GPU's time is a sequence of pods. Beside its training of S seconds a pod costs its GPU

    o = process + start + evaluation + S / 10 s x checkpoint + snapshot (get, put) + result + wait
    for the next turn

and the orchestrator, of which there is one, c seconds of CPU. A pod with a GPU has a process and a
task of Ray's. With P pods in all on G GPUs the time is

    T(G) = (P / G) (S + o) + tail,   as long as  G c < S + o

with the tail in which GPUs run out of work one after another, up to a whole pod. The simulation
(_cluster.py) plays this with samples of every constant instead of means, and with the real
orchestrator's CPU seconds. Nothing here ran on 80 GPUs: `throughput` is a prediction.
docs/scaling.md states the model and its limits; `search.py` measures how much the selection itself
gains. `--save` draws docs/images/scaling.png; `--quick` makes everything small.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks._bench import ROOT, Values, draw_picture, finish, read_arguments
from benchmarks._cluster import World, check, make_settings, simulate
from benchmarks._records import describe_paper
from fintrader.agents import Budget, load_policy, train
from fintrader.agents.training import TrainingRun
from fintrader.config import read_yaml, validate
from fintrader.market.build import build_market
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig
from fintrader.runs import RunFolder
from fintrader.storage.objects import ObjectStore
from fintrader.tournament.evaluator import evaluate
from fintrader.tournament.fusion.learners import build_maker, read_parent_state
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.pod import run_pod
from fintrader.tournament.pod_context import BODY, PodContext
from fintrader.tournament.process import build_environment
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.store import RunStore
from tests.engines import object_stores

Samples = list[float]
"""Seconds."""
PODS_OF = {"long_pods": 600.0, "short_pods": 60.0}
"""Seconds of training of a curve's pods."""
GPUS = (8, 16, 32, 80, 1000)
STRESS = ((1_000, 100), (4_000, 400), (10_000, 1_000))
"""Pods and GPUs."""
SPREAD = 0.2
"""Pods take S to within this share: machines of one kind, budgets in env-steps."""
CHECKPOINT_SECONDS = 10.0
"""Between two checkpoints of `train`."""


def percentile(ordered: list[float], share: float) -> float:
    """Nearest rank in a sorted list."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# --- the constants, measured piece by piece -------------------------------------------------------


def describe_samples(samples: Samples) -> dict[str, float | int]:
    """Count, mean, percentiles and largest, in milliseconds."""
    ordered = sorted(samples)
    shares = {"p05_ms": 0.05, "p50_ms": 0.5, "p95_ms": 0.95}
    return {
        "n": len(ordered),
        "mean_ms": 1e3 * statistics.fmean(ordered),
        **{name: 1e3 * percentile(ordered, share) for name, share in shares.items()},
        "max_ms": 1e3 * ordered[-1],
    }


def time_calls(call: Callable[[], Any], count: int) -> Samples:
    """Wall seconds of each of `count` calls."""
    samples = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begun)
    return samples


def train_one_pod(home: Path) -> tuple[Any, PodSpec, PodContext, PodResult]:
    """The quickstart's market and a trained pod of it, whose files the measurements are taken
    from."""
    values = read_yaml(ROOT / "configs" / "quickstart.yaml")
    config = validate(RunConfig, {**values, "cache": str(home / "cache")}, "quickstart.yaml")
    market = build_market(config.data, cache=config.cache)
    settings = TournamentSettings.model_validate(
        {**config.tournament.model_dump(), "budget": {"env_steps": 20_000}}
    )
    breeder = Generator(
        settings, (config.only_agent,), config.env.model_dump(mode="json"), seed=1, data_hash=""
    )
    spec = breeder.draw_fresh(0, Leaderboard(4))
    context = PodContext(RunFolder(home / "run"), market)
    return config, spec, context, run_pod(spec, context)


def time_cold_start(count: int) -> Samples:
    """From the process's birth to its `ready`: the interpreter, PyTorch and the body's imports."""

    def start() -> None:
        command = [sys.executable, "-m", "fintrader.tournament.pod", str(os.getpid()), BODY]
        environment = {
            **build_environment(),
            "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
        }
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)
        line = process.stdout.readline()
        process.kill()
        process.wait()
        assert json.loads(line)["kind"] == "ready", line

    return time_calls(start, count)


def time_task_start(count: int) -> Samples:
    """From handing a task with a GPU to Ray until its new process has imported the body.

    The cluster is this machine alone and believes in its GPU; CUDA's own start comes on top.
    """
    import ray

    from fintrader.tournament.launchers.ray.cluster import wrap_remote

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        start = wrap_remote(import_body, {"CPU": 1, "GPU": 1}, "imports")
        pids = set()
        samples = time_calls(lambda: pids.add(ray.get(next(start()))), count + 1)
        assert len(pids) == count + 1, "a process was used again"
    finally:
        ray.shutdown()
    return samples[1:]  # the first waits for the cluster too


def import_body() -> Iterator[int]:
    """Do what a pod's task does before it can begin; return its process."""
    from fintrader.config import load_object

    load_object(BODY)
    yield os.getpid()


def time_warm_start(spec: PodSpec, context: PodContext, count: int) -> Samples:
    """In a process that has its imports: make environment and agent, verify and take the parent's
    snapshot."""

    def start() -> None:
        agent, env = build_maker(spec, context)(0, 0, torch.device("cpu"))
        state = read_parent_state(spec, context)
        assert state is not None
        agent.inherit(state)
        env.reset(seed=1)

    return time_calls(start, count)


def time_evaluation(config: Any, context: PodContext, pod: str, count: int) -> Samples:
    """Trade the validation window once in float64."""
    validation = MarketTensors.load(context.market).split().validation
    policy = load_policy(context.run.pod(pod) / "policy.safetensors")
    return time_calls(lambda: evaluate([(policy, validation)], config.trading), count)


def time_checkpoint(spec: PodSpec, context: PodContext, home: Path, count: int) -> Samples:
    """Hash, write and sync one `state.safetensors`."""
    agent, env = build_maker(spec, context)(0, 0, torch.device("cpu"))
    budget = Budget(env_steps=2_000)
    train(agent, env, budget)
    training = TrainingRun(agent, env, budget, home)
    training.obs, _ = env.reset(seed=1)
    return time_calls(training.save, count)


def time_store(store: RunStore, result: PodResult, count: int) -> dict[str, Samples]:
    """Store, verify and read a snapshot by its content, on the disk and on a local S3 server; write
    a result. Each differs, as pods' do."""
    data = store.get(str(result.snapshot))
    snapshots = iter([data + number.to_bytes(8, "big") for number in range(count)])
    digests = []
    put = time_calls(lambda: digests.append(store.put(next(snapshots))), count)
    stored = iter(digests)
    get = time_calls(lambda: store.get(next(stored)), count)
    results = [replace(result, pod=f"p1{number:04d}") for number in range(count)]
    left = iter(results)
    figures = {"snapshot_put": put, "snapshot_get": get}
    figures["result_file"] = time_calls(lambda: store.write_result(next(left)), count)
    with pytest.MonkeyPatch.context() as patch, object_stores.s3(patch):
        there = ObjectStore(f"s3://{object_stores.BUCKET}/snapshots")
        names = iter(digests)
        figures["snapshot_s3_put"] = time_calls(lambda: there.put(next(names), data), count)
        stored = iter(digests)
        figures["snapshot_s3_get"] = time_calls(lambda: there.get(next(stored)), count)
    return figures


def measure_constants(home: Path, quick: bool) -> dict[str, Samples]:
    """All constants."""
    few, many = (2, 10) if quick else (8, 100)
    config, spec, context, result = train_one_pod(home)
    child = replace(spec, pod="p0001", snapshot=result.snapshot)
    return {
        "cold_start": time_cold_start(few),
        "warm_start": time_warm_start(child, context, few + 2),
        "task_start": time_task_start(few),
        "evaluation": time_evaluation(config, context, spec.pod, few),
        "checkpoint": time_checkpoint(spec, context, home / "checkpoint", few + 2),
        **time_store(RunStore(context.run), result, many),
    }


# --- the curve ------------------------------------------------------------------------------------


def add_overhead(samples: dict[str, Samples], seconds: float) -> dict[str, Samples]:
    """Costs of a pod with snapshots on S3 to its GPU, before and after its training, as samples of
    the sums."""

    def mean(name: str) -> float:
        return statistics.fmean(samples[name])

    checkpoints = seconds / CHECKPOINT_SECONDS * mean("checkpoint")
    rest = mean("warm_start") + mean("snapshot_s3_get") + checkpoints
    start = [one + rest for one in samples["task_start"]]
    after = mean("snapshot_s3_put") + mean("result_file")
    return {"start": start, "end": [one + after for one in samples["evaluation"]]}


def predict_throughput(
    home: Path,
    samples: dict[str, Samples],
    *,
    pods: int,
    seconds: float,
    gpus: tuple[int, ...] = GPUS,
) -> Values:
    """Simulated time to `pods` pods by number of GPUs; efficiency against pods without overhead on
    GPUs never idle."""
    sums = add_overhead(samples, seconds)
    rows = {}
    for count in gpus:
        world = World(
            gpus=count,
            pod=((1 - SPREAD) * seconds, (1 + SPREAD) * seconds),
            start=tuple(sums["start"]),
            end=tuple(sums["end"]),
        )
        asked = make_settings(pods, count)
        outcome = simulate(home / f"{seconds:g}-{count}", asked, world, charge=1.0)
        check(outcome, asked)
        ideal = pods * seconds / count
        rows[str(count)] = {
            "seconds": outcome.makespan,
            "efficiency": ideal / outcome.makespan,
            "orchestrator_cpu_ms_per_pod": 1e3 * outcome.clock.cpu / pods,
        }
    found = {
        "pods": pods,
        "pod_seconds": seconds,
        "overhead_seconds": statistics.fmean(sums["start"]) + statistics.fmean(sums["end"]),
        "by_gpus": rows,
    }
    if {"16", "80"} <= set(rows):
        found["efficiency_16_to_80"] = rows["16"]["seconds"] / rows["80"]["seconds"] / 5
    return found


def measure_stress(home: Path, pods: int, gpus: int) -> Values:
    """Put the orchestrator before a large, rough cluster; check the outcome and report its cost."""
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
    asked = make_settings(pods, gpus)
    deaths = (pods // 3, pods // 3 + 1, 2 * pods // 3)
    outcome = simulate(home / f"stress-{pods}-{gpus}", asked, world, charge=1.0, kill_after=deaths)
    check(outcome, asked)
    cluster = outcome.cluster
    waits = sorted(
        moment - cluster.ended.get(pod, moment) for pod, moment in outcome.applied.items()
    )
    idle = sorted(cluster.idle[gpus:]) or [0.0]
    return {
        "pods": pods,
        "gpus": gpus,
        "orchestrator_cpu_ms_per_pod": 1e3 * outcome.clock.cpu / pods,
        "result_waits_seconds_p50": round(percentile(waits, 0.5), 3),
        "result_waits_seconds_p99": round(percentile(waits, 0.99), 3),
        "gpu_idle_between_pods_seconds_p50": round(percentile(idle, 0.5), 3),
        "gpu_idle_between_pods_seconds_p99": round(percentile(idle, 0.99), 3),
        "losses": dict(cluster.losses),
        "lost_or_doubled_results": 0,
    }


# --- the picture ----------------------------------------------------------------------------------


def redraw() -> None:
    """Draw the picture of the docs from the stored records: efficiency of throughput, and speed-up
    to a target, of the search and of the paper."""
    results = ROOT / "benchmarks" / "results"
    record, search = (
        json.loads((results / f"{name}.json").read_text()) for name in ("scaling", "search")
    )
    with draw_picture("scaling", 1, 2, figsize=(11, 4.2)) as (left, right):
        draw_throughput(left, record)
        draw_search(right, search)
        for axes in (left, right):
            axes.minorticks_off()
            axes.grid(True, alpha=0.25)


def draw_throughput(left: Any, record: Values) -> None:
    """Draw the efficiency of throughput."""
    for curve in record["throughput"].values():
        counts = [int(count) for count in curve["by_gpus"]]
        shares = [100 * row["efficiency"] for row in curve["by_gpus"].values()]
        label = f"pods of {curve['pod_seconds']:g} s"
        left.plot(counts, shares, marker="o", markersize=4, label=label)
    left.set(
        xscale="log",
        ylim=(0, 105),
        xlabel="GPUs",
        ylabel="% of ideal",
        title=f"Throughput: time to {curve['pods']:,} pods (predicted)",
    )
    left.set_xticks(counts, [str(count) for count in counts])
    left.legend(loc="lower left", frameon=False)


def draw_search(right: Any, search: Values) -> None:
    """Draw the speed-up to a target, of the search and of the paper."""
    right.plot([16, 80], [1, 5], color="0.6", linestyle=":", label="ideal")
    lines = {
        f"paper, to a return of {target}": (found, "s--")
        for target, found in describe_paper().items()
    }
    for target, found in search["targets"].items():
        lines[f"simulated search, to {float(target):.0%}"] = (found, "o-")
    for label, (found, style) in lines.items():
        seconds = {int(gpus): value for gpus, value in found["seconds"].items()}
        if 16 in seconds:
            speedups = [seconds[16] / value for value in seconds.values()]
            right.plot([*seconds], speedups, style, markersize=4, label=label)
    right.set(
        xscale="log",
        yscale="log",
        xlabel="GPUs",
        ylabel="speed-up over 16",
        title="Search: time to a target",
    )
    right.set_xticks([8, 16, 32, 80], ["8", "16", "32", "80"])
    right.set_yticks([0.5, 1, 2, 3, 5], ["0.5", "1", "2", "3", "5"])
    right.legend(loc="upper left", frameon=False, fontsize=8)


def main() -> None:
    """Measure, predict, try, and print."""
    options = read_arguments(__doc__, pods=4_800, quick=False)
    pods = 200 if options.quick else options.pods
    gpus = (8, 16, 80) if options.quick else GPUS
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="scaling-") as disk,
        tempfile.TemporaryDirectory(
            prefix="scaling-", dir=memory if memory.is_dir() else None
        ) as ram,
    ):
        samples = measure_constants(Path(disk), options.quick)
        constants = {name: describe_samples(taken) for name, taken in samples.items()}
        print({name: found["mean_ms"] for name, found in constants.items()})
        curves = {}
        for name, seconds in PODS_OF.items():
            curves[name] = predict_throughput(
                Path(ram), samples, pods=pods, seconds=seconds, gpus=gpus
            )
            print(name, curves[name])
        stress = []
        for size in ((100, 16),) if options.quick else STRESS:
            stress.append(measure_stress(Path(ram), *size))
            print(stress[-1])
    record = {
        "constants": constants,
        "throughput": curves,
        "stress": stress,
    }
    finish("scaling", record, options)
    if options.save:
        redraw()


if __name__ == "__main__":
    main()
