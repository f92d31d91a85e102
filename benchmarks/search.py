"""The gain of the search itself from more GPUs: real pods on a simulated clock.

    python -m benchmarks.search [--seeds 20] [--gpus 8 16 32 80] [--jobs 2] [--fresh] [--save]

Pods are real trainings (PPO on the market of Gârleanu and Pedersen, whose optimum is known:
`known_optimum.py`), bred by the real generator from the real leaderboard. Only time is simulated: a
pod takes `POD_SECONDS` of a GPU, so that 80 of them work at once although they are
computed one after another. The result is the time until the leaderboard's best agent reaches a
share of the optimum, for each number of GPUs. The figures do not depend on the machine's speed.
Finished searches are in `runs/benchmarks`; `--fresh` runs them again; `--jobs` are at work at once.
With `--save` the picture of docs/scaling.md is drawn again.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors.torch import load, save

from benchmarks._bench import FinishedRuns, Values, read_arguments
from benchmarks._cluster import World, make_settings, simulate
from benchmarks.known_optimum import ENGINE_PPO, JUDGE, QuadraticMarket, evaluate, optimal_policy
from benchmarks.scaling import redraw
from fintrader.agents import PPO, Budget, make_agent, train
from fintrader.errors import TrainingError
from fintrader.seeding import derive
from fintrader.tournament.orchestrator import Orchestrator
from fintrader.tournament.settings import Range
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.store import RunStore
from tests.engines.tiny import agent_settings

TARGETS = (0.80, 0.90, 0.95)
"""Shares of the optimal utility; fixed before the first full run."""
POD_SECONDS = (240.0, 360.0)
ENV_STEPS = 8_192
NUM_ENVS = 64
WAVES = 14
"""Rounds of pods after which a search is stopped that has not arrived."""
SEARCH = {
    "learning_rate": Range(low=1e-5, high=1e-1, log=True),
    "noise": Range(low=0.02, high=2.0, log=True),
}


@cache
def find_optimum() -> float:
    """Utility of the best policy there is, on the paths on which all are judged."""
    return evaluate(optimal_policy, **JUDGE)[0]


def learn(spec: PodSpec, store: RunStore) -> tuple[float | None, bytes, int]:
    """One pod: continue from the parent's networks and optimiser, train, and judge."""
    env = QuadraticMarket(NUM_ENVS, seed=derive(spec.seed, "env"))
    settings = agent_settings(spec.agent["algo"], spec.agent)
    agent = make_agent(settings, env.layout, seed=spec.seed)
    if spec.snapshot:
        agent.inherit(load(store.get(spec.snapshot)))
    try:
        train(agent, env, Budget(env_steps=ENV_STEPS))
    except TrainingError:
        return None, b"", ENV_STEPS
    utility, _ = evaluate(agent.policy, **JUDGE)
    state = {name: tensor.contiguous() for name, tensor in sorted(agent.state_dict().items())}
    return utility / find_optimum(), save(state), ENV_STEPS


def search(gpus: int, seed: int) -> Values:
    """One tournament on so many GPUs: simulated seconds to each target."""
    torch.set_num_threads(1)
    times = {str(target): None for target in TARGETS}

    def watch(orchestrator: Orchestrator, now: float) -> bool:
        rows = orchestrator.leaderboard.rows
        for target in TARGETS:
            if rows and rows[0].score >= target and times[str(target)] is None:
                times[str(target)] = round(now, 1)
        return all(value is not None for value in times.values())

    asked = make_settings(
        WAVES * gpus, gpus, search=SEARCH, founders=4, leaderboard_size=16, fresh=0.1
    )
    with tempfile.TemporaryDirectory(prefix="search-") as home:
        simulate(
            Path(home) / "run",
            asked,
            World(gpus=gpus, pod=POD_SECONDS, seed=seed),
            score=learn,
            agent=PPO.model_validate(ENGINE_PPO),
            stop=watch,
        )
    return {"gpus": gpus, "seed": seed, "seconds": times}


def summarise_runs(runs: list[Values]) -> Values:
    """Seconds to each target by number of GPUs: medians over the seeds that arrived.

    A search that did not arrive counts as longer than all that did.
    """
    figures = {}
    for target in map(str, TARGETS):
        times = {(run["gpus"], run["seed"]): run["seconds"][target] or math.inf for run in runs}
        entry = {"seconds": {}, "arrived": {}}
        for gpus in sorted({run["gpus"] for run in runs}):
            own = [time for (count, _), time in times.items() if count == gpus]
            middle = statistics.median(own)
            entry["arrived"][str(gpus)] = sum(map(math.isfinite, own))
            if math.isfinite(middle):
                entry["seconds"][str(gpus)] = round(middle, 1)
        figures[target] = entry
    return figures


def main() -> None:
    """Every number of GPUs with every seed."""
    options = read_arguments(__doc__, seeds=20, gpus=[8, 16, 32, 80], jobs=2, fresh=False)
    finished = FinishedRuns("search", options)
    settings = {"targets": TARGETS, "pod_seconds": POD_SECONDS, "steps": ENV_STEPS, "waves": WAVES}
    pairs = [(gpus, seed) for seed in range(options.seeds) for gpus in sorted(options.gpus)]
    with (
        ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool,
        ThreadPoolExecutor(options.jobs) as threads,
    ):

        def run(pair: tuple[int, int]) -> Values:
            work = partial(pool.submit, search, *pair)
            return finished.get("{}-{}".format(*pair), settings, lambda: work().result())

        runs = list(threads.map(run, pairs))
    record = {
        "problem": "PPO on the Garleanu-Pedersen market, 10 assets",
        "pod_env_steps": ENV_STEPS,
        "pod_seconds_simulated": POD_SECONDS,
        "waves_at_most": WAVES,
        "targets": summarise_runs(runs),
        "runs": runs,
    }
    finished.finish(record)
    if options.save:
        redraw()


if __name__ == "__main__":
    main()
