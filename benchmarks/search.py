"""How much the search itself gains from more GPUs: real pods on a simulated clock.

    python benchmarks/search.py [--seeds 20] [--gpus 16 80] [--rows FILE] [--save]

Pods are real trainings (PPO on the market of Gârleanu and Pedersen, whose optimum is known:
`known_optimum.py`), bred by the real generator from the real leaderboard. Only time is simulated: a
pod takes `POD_SECONDS` of a GPU that is its own, so that 80 of them work at once although they are
computed one after another. What comes out is the time until the leaderboard's best agent reaches a
share of the optimum, for each number of GPUs. The figures do not depend on the machine's speed.
With `--save` the picture of docs/scaling.md is drawn again. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from pydantic import TypeAdapter
from safetensors.torch import load, save

from benchmarks.cluster.simulation import World, settings, simulate
from benchmarks.common import ROOT, finish
from benchmarks.known_optimum import ENGINE_PPO, QuadraticMarket, evaluate, optimal_policy
from fintrader.agents import PPO, AgentSettings, Budget, make_agent, train
from fintrader.errors import TrainingError
from fintrader.seeding import derive
from fintrader.tournament.orchestrator import Orchestrator
from fintrader.tournament.settings import Range
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.store import RunStore

TARGETS = (0.80, 0.90, 0.95)
"""Shares of the optimal utility; fixed before the first full run."""
POD_SECONDS = (240.0, 360.0)
ENV_STEPS = 8_192
NUM_ENVS = 64
WAVES = 14
"""A search that has not arrived after so many rounds of pods is stopped."""
SEARCH = {
    "learning_rate": Range(low=1e-5, high=1e-1, log=True),
    "noise": Range(low=0.02, high=2.0, log=True),
}
JUDGE: dict[str, int] = {"steps": 300, "num_envs": 32}


@cache
def optimum() -> float:
    """Utility of the best policy there is, on the paths on which all are judged."""
    return evaluate(optimal_policy, **JUDGE)[0]


def learn(spec: PodSpec, store: RunStore) -> tuple[float | None, bytes, int]:
    """One pod: continue from the parent's networks and optimiser, train, and judge."""
    env = QuadraticMarket(NUM_ENVS, seed=derive(spec.seed, "env"))
    agent = make_agent(
        TypeAdapter(AgentSettings).validate_python(spec.agent), env.layout, seed=spec.seed
    )
    if spec.snapshot:
        agent.inherit(load(store.get(spec.snapshot)))
    try:
        train(agent, env, Budget(env_steps=ENV_STEPS))
    except TrainingError:
        return None, b"", ENV_STEPS
    utility, _ = evaluate(agent.policy, **JUDGE)
    state = {name: tensor.contiguous() for name, tensor in sorted(agent.state_dict().items())}
    return utility / optimum(), save(state), ENV_STEPS


def search(gpus: int, seed: int) -> dict[str, Any]:
    """One tournament on so many GPUs: simulated seconds to each target, and the pods trained until
    then."""
    torch.set_num_threads(1)
    times: dict[str, float | None] = {str(target): None for target in TARGETS}
    trained: dict[str, int] = {}

    def watch(orchestrator: Orchestrator, now: float) -> bool:
        rows = orchestrator.leaderboard.rows
        for target in TARGETS:
            if rows and rows[0].score >= target and times[str(target)] is None:
                times[str(target)] = round(now, 1)
                trained[str(target)] = len(orchestrator.leaderboard.applied)
        return all(value is not None for value in times.values())

    asked = settings(WAVES * gpus, gpus, search=SEARCH, founders=4, leaderboard_size=16, fresh=0.1)
    with tempfile.TemporaryDirectory(prefix="search-") as home:
        outcome = simulate(
            Path(home) / "run",
            asked,
            World(gpus=gpus, pod=POD_SECONDS, seed=seed),
            score=learn,
            agent=PPO.model_validate(ENGINE_PPO),
            stop=watch,
        )
        depth = max(int(RunStore(outcome.run).read_spec(pod).generation) for pod in outcome.applied)
    return {
        "gpus": gpus,
        "seed": seed,
        "seconds": times,
        "pods": trained,
        "deepest_lineage": depth + 1,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds to each target by number of GPUs, and what 16 to 80 gains: medians over the seeds,
    with their range.

    A search that did not arrive counts as longer than all that did; medians and gains are told
    where there are any.
    """
    figures: dict[str, Any] = {}
    for target in map(str, TARGETS):
        times = {(run["gpus"], run["seed"]): run["seconds"][target] for run in runs}
        entry: dict[str, Any] = {"seconds": {}, "arrived": {}}
        for gpus in sorted({run["gpus"] for run in runs}):
            own = [
                math.inf if time is None else time
                for (count, _), time in times.items()
                if count == gpus
            ]
            entry["arrived"][str(gpus)] = sum(map(math.isfinite, own))
            if math.isfinite(middle := statistics.median(own)):
                entry["seconds"][str(gpus)] = round(middle, 1)
        pairs = [
            (times.get((16, seed)), times.get((80, seed)))
            for seed in sorted({run["seed"] for run in runs})
        ]
        gains = [few / many for few, many in pairs if few is not None and many is not None]
        if gains:
            entry["pairs"] = len(gains)
            for name, share in (("speedup", 1), ("efficiency", 5)):
                found = (statistics.median(gains), min(gains), max(gains))
                entry[f"{name}_16_to_80"] = dict(
                    zip(
                        ("median", "least", "most"),
                        (round(one / share, 3) for one in found),
                        strict=True,
                    )
                )
        figures[target] = entry
    return figures


def main() -> None:
    """Every number of GPUs with every seed."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--gpus", type=int, nargs="+", default=[16, 80])
    arguments.add_argument("--jobs", type=int, default=2, help="searches at work at once")
    arguments.add_argument(
        "--rows", type=Path, help="JSON lines of searches: those in it are not run again"
    )
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    runs: list[dict[str, Any]] = []
    if options.rows and options.rows.exists():
        runs = [json.loads(line) for line in options.rows.read_text().splitlines()]
    known = {(run["gpus"], run["seed"]) for run in runs}
    missing = [
        (gpus, seed)
        for seed in range(options.seeds)
        for gpus in options.gpus
        if (gpus, seed) not in known
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(search, *one) for one in missing]):
            runs.append(done.result())
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
            print(runs[-1], flush=True)
    wanted = [run for run in runs if run["seed"] < options.seeds and run["gpus"] in options.gpus]
    wanted.sort(key=lambda run: (run["seed"], run["gpus"]))
    record = {
        "problem": "PPO on the Garleanu-Pedersen market, 10 assets",
        "pod_env_steps": ENV_STEPS,
        "pod_seconds_simulated": POD_SECONDS,
        "waves_at_most": WAVES,
        "targets": summary(wanted),
        "runs": wanted,
    }
    finish("search", record, seed=0, save=options.save)
    if options.save:
        from benchmarks.cluster.picture import redraw

        redraw(ROOT)


if __name__ == "__main__":
    main()
