"""What one pod costs besides its training, measured piece by piece on this machine, each as a
distribution."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from fintrader.runs import RunFolder
from fintrader.tournament.process import worker_environment
from fintrader.tournament.spec import BODY, PodContext, PodResult, PodSpec
from fintrader.tournament.store import RunStore

Samples = list[float]
"""Seconds."""


def distribution(samples: Samples) -> dict[str, float | int]:
    """Count, mean, percentiles and largest, in milliseconds."""
    ordered = sorted(samples)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)

    return {
        "n": len(ordered),
        "mean_ms": round(1000 * statistics.fmean(ordered), 4),
        "p05_ms": at(0.05),
        "p50_ms": at(0.5),
        "p95_ms": at(0.95),
        "max_ms": round(1000 * ordered[-1], 4),
    }


def timed(call: Callable[[], Any], count: int) -> Samples:
    """Wall seconds of each of `count` calls."""
    samples = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begun)
    return samples


def configuration(cache: Path) -> Any:
    """The quickstart, with a data cache of its own."""
    from fintrader.config import read_yaml, validate
    from fintrader.pipeline.config import RunConfig

    values = read_yaml(ROOT / "configs" / "quickstart.yaml")
    values["cache"] = str(cache)
    return validate(RunConfig, values, "configs/quickstart.yaml")


def one_pod(home: Path) -> tuple[Any, PodSpec, PodContext, PodResult]:
    """The quickstart's market and a trained pod of it, whose files the measurements are taken
    from."""
    from fintrader.market.build import build_market
    from fintrader.tournament.generator import Generator
    from fintrader.tournament.leaderboard import Leaderboard
    from fintrader.tournament.pod import run_pod
    from fintrader.tournament.settings import TournamentSettings

    config = configuration(home / "cache")
    market = build_market(config.data, cache=config.cache)
    settings = TournamentSettings.model_validate(
        {**config.tournament.model_dump(), "budget": {"env_steps": 20_000}, "retries": 0}
    )
    breeder = Generator(
        settings, (config.only_agent,), config.env.model_dump(mode="json"), seed=1, data_hash=""
    )
    spec = breeder.fresh(0, Leaderboard(4))
    context = PodContext(RunFolder(home / "run"), market)
    return config, spec, context, run_pod(spec, context)


def cold_start(count: int) -> Samples:
    """From the process's birth to its `ready`: the interpreter, PyTorch and what the body
    imports."""

    def start() -> None:
        command = [sys.executable, "-m", "fintrader.tournament.pod", str(os.getpid()), BODY]
        environment = {
            **worker_environment(),
            "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
        }
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
        process.wait()
        assert json.loads(line)["kind"] == "ready", line

    return timed(start, count)


def task_start(count: int) -> Samples:
    """From handing a task with a GPU to Ray until its process, which is new, has imported what the
    body needs.

    On a cluster of this machine alone, which takes our word for its GPU; CUDA's own start comes on
    top. Empty without Ray.
    """
    try:
        import ray
    except ImportError:
        return []
    from fintrader.tournament.launchers.ray.cluster import remote

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        start = remote(imported, {"CPU": 1, "GPU": 1}, "imports")
        pids = set()
        samples = timed(lambda: pids.add(ray.get(next(start()))), count + 1)
        assert len(pids) == count + 1, "a process was used again"
    finally:
        ray.shutdown()
    return samples[1:]  # the first waits for the cluster too


def imported() -> Iterator[int]:
    """What a pod's task does before it can begin; its process."""
    from fintrader.config import load_object

    load_object(BODY)
    yield os.getpid()


def warm_start(spec: PodSpec, context: PodContext, count: int) -> Samples:
    """In a process that has its imports: environment and agent made, the parent's snapshot verified
    and taken."""
    import torch

    from fintrader.tournament.fusion.learners import maker, parent_state

    def start() -> None:
        agent, env = maker(spec, context)(0, 0, torch.device("cpu"))
        state = parent_state(spec, context)
        assert state is not None
        agent.inherit(state)
        env.reset(seed=1)

    return timed(start, count)


def evaluation(config: Any, context: PodContext, pod: str, count: int) -> tuple[Samples, int]:
    """The validation window traded once in float64, and how many bars that is."""
    from fintrader.agents import load_policy
    from fintrader.market.tensors import MarketTensors
    from fintrader.tournament.evaluator import evaluate

    validation = MarketTensors.load(context.market).split().validation
    policy = load_policy(context.run.pod(pod) / "policy.safetensors")
    return timed(lambda: evaluate([(policy, validation)], config.env), count), validation.num_bars


def checkpoint(spec: PodSpec, context: PodContext, home: Path, count: int) -> tuple[Samples, int]:
    """One `state.safetensors`: agent, environment and random streams, hashed, written, synced."""
    import torch

    from fintrader.agents import Budget, train
    from fintrader.agents.training import TrainingRun
    from fintrader.tournament.fusion.learners import maker

    agent, env = maker(spec, context)(0, 0, torch.device("cpu"))
    budget = Budget(env_steps=2_000)
    train(agent, env, budget)
    training = TrainingRun(agent, env, budget, home)
    training.obs, _ = env.reset(seed=1)
    return timed(training.save, count), training.path.stat().st_size


def snapshots(store: RunStore, data: bytes, count: int) -> dict[str, Samples]:
    """Storing, verifying and reading a snapshot by its content; every one is another, as a pod's
    is."""
    digests: list[str] = []
    numbers = iter(range(count))

    def put() -> None:
        digests.append(store.put(data + next(numbers).to_bytes(8, "big")))

    put_seconds = timed(put, count)
    names = iter(digests)
    return {"put": put_seconds, "get": timed(lambda: store.get(next(names)), count)}


def snapshots_s3(data: bytes, count: int) -> dict[str, Samples] | None:
    """The same bytes through s3fs and a local S3 server (moto); None where those are not
    installed."""
    try:
        import s3fs
        from moto.server import ThreadedMotoServer
    except ImportError:
        return None
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        fs = s3fs.S3FileSystem(key="local", secret="local", endpoint_url=f"http://{host}:{port}")
        fs.call_s3("create_bucket", Bucket="snapshots")
        names = [f"snapshots/{number}" for number in range(count)]
        putting = iter(names)
        getting = iter(names)
        return {
            "put": timed(lambda: fs.pipe_file(next(putting), data), count),
            "get": timed(lambda: fs.cat_file(next(getting)), count),
        }
    finally:
        server.stop()


def database(home: Path, result: PodResult, count: int) -> dict[str, Samples]:
    """What makes one result durable: the pod's result file, the synced event, the index's
    transaction."""
    from fintrader.tournament.events import EventLog
    from fintrader.tournament.leaderboard import FinishedPod, Leaderboard, LeaderboardIndex
    from fintrader.tournament.updater import applied_event, submit

    run = RunFolder(home / "database")
    store = RunStore(run)
    log = EventLog(run.events)
    index = LeaderboardIndex(run.leaderboard)
    board = Leaderboard(64)
    specs = [
        PodSpec(
            pod=f"p{k:04d}",
            index=k,
            seed=k,
            origin="fresh",
            agent={"algo": "ppo"},
            budget={"env_steps": 1},
        )
        for k in range(count)
    ]
    results = [result.model_copy(update={"pod": spec.pod}) for spec in specs]
    index.rebuild(64, specs, [])
    files = iter(results)
    places = iter(range(count))

    def submission() -> None:
        place = next(places)
        entry = FinishedPod(specs[place], results[place])
        log.append(applied_event(entry, place, submit(board, entry)))
        index.write_turn((), [entry], place, ())

    figures = {"result_file": timed(lambda: store.write_result(next(files)), count)}
    figures["submission"] = timed(submission, count)
    index.close()
    return figures


@contextlib.contextmanager
def workplace(home: Path) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(home: Path, quick: bool) -> tuple[dict[str, Samples], dict[str, Any]]:
    """All constants as samples, and the sizes they belong to."""
    few, many = (2, 10) if quick else (8, 100)
    config, spec, context, result = one_pod(home)
    store = RunStore(context.run)
    assert result.snapshot is not None
    snapshot = store.get(result.snapshot)
    child = spec.model_copy(update={"pod": "p0001", "snapshot": result.snapshot})
    samples: dict[str, Samples] = {
        "cold_start": cold_start(few),
        "warm_start": warm_start(child, context, few + 2),
    }
    if taken := task_start(few):
        samples["task_start"] = taken
    samples["evaluation"], bars = evaluation(config, context, spec.pod, few)
    samples["checkpoint"], checkpoint_bytes = checkpoint(
        spec, context, home / "checkpoint", few + 2
    )
    large = os.urandom(8_000_000)
    for name, data in (("snapshot", snapshot), ("snapshot_8mb", large)):
        count = many if name == "snapshot" else few + 2
        samples |= {
            f"{name}_{what}": taken for what, taken in snapshots(store, data, count).items()
        }
        remote = snapshots_s3(data, count)
        if remote is not None:
            samples |= {f"{name}_s3_{what}": taken for what, taken in remote.items()}
    samples |= database(home, result, many)
    sizes = {
        "snapshot_bytes": len(snapshot),
        "checkpoint_bytes": checkpoint_bytes,
        "validation_bars": bars,
        "symbols": 8,
    }
    return samples, sizes
