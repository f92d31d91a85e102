"""How far agents go from the best rule with one parameter to the optimum, in tasks that have one.

    python benchmarks/tasks.py [--task liquidation ...] [--algo ppo ...] [--seeds 5]
                               [--env-steps 1000000] [--fresh] [--save]

The tasks are `configs/tasks/*.yaml`; agents have their default settings but for the head, and what
a network sees of the account, that a task names. The optimum J* and the worth of the rule J_rule are those of a dynamic programme on the
environment's own rules (tests/oracles/task_optima.py). An agent's worth J is the mean reward of
episodes on a market of another seed, less what the bars' surprises made of its weights, whose mean
is 0. *Closed* is (J - J_rule) / (J* - J_rule): 0 for the rule, 1 for the optimum. One thread each;
finished trainings are in `runs/benchmarks`.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fintrader
from benchmarks._bench import FinishedRuns, finish, read_arguments
from fintrader.agents.agent import choose_agent
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import FintraderError
from tests.oracles.task_runs import FOLDER, TASKS, find_worths, load_task, open_task, play

EPISODES = 20_000
OTHER_SEED = 1001
"""Of the market that worths are measured on."""


def learn(name: str, algo: str, *, seed: int, env_steps: int) -> dict[str, Any]:
    """Train one agent by default settings and measure its worth, in basis points an episode."""
    config = load_task(name)
    market = fintrader.load_market(FOLDER / f"{name}.yaml")
    env = TradingEnv(market, EnvSettings(**dict(config.env)), seed=seed)
    named = config.agents[0]
    began = time.process_time()
    try:
        agent = choose_agent(algo)
        network = agent.network.model_copy(update={"private": named.network.private})
        agent = agent.model_copy(update={"head": named.head, "network": network})
        trained = fintrader.train(agent, env, env_steps=env_steps, seed=seed)
    except FintraderError as error:
        return {"task": name, "algo": algo, "seed": seed, "refused": str(error)}
    seconds = time.process_time() - began
    earned = play(trained.policy, open_task(name, 512, OTHER_SEED), config, EPISODES)
    return {
        "task": name,
        "algo": algo,
        "seed": seed,
        "worth_bps": round(1e4 * float(earned.mean()), 3),
        "cpu_seconds": round(seconds, 1),
    }


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    options = read_arguments(
        __doc__, task=list(TASKS), algo=["ppo", "apg", "sac"], seeds=5, env_steps=1_000_000,
        fresh=False,
    )  # fmt: skip
    torch.set_num_threads(1)
    finished = FinishedRuns("tasks", fresh=options.fresh)
    figures: dict[str, Any] = {"env_steps": options.env_steps}
    runs: list[dict[str, Any]] = []
    for name in options.task:
        best, rule, words = find_worths(name)
        figures[name] = {
            "optimum_bps": round(1e4 * best, 2),
            "rule_bps": round(1e4 * rule, 2),
            "rule": words,
        }
        for algo in options.algo:
            how = {"env_steps": options.env_steps}
            own = []
            for seed in range(options.seed, options.seed + options.seeds):
                settings = {"task": (FOLDER / f"{name}.yaml").read_text(), **how}
                work = partial(learn, name, algo, seed=seed, **how)
                own.append(finished.get(f"{name}-{algo}-{seed}", settings, work))
            runs += own
            closed = [
                round((1e-4 * run["worth_bps"] - rule) / (best - rule), 3)
                for run in own
                if "worth_bps" in run
            ]
            if closed:
                figures[name][f"{algo}_closed"] = {
                    "median": median(closed),
                    "least": min(closed),
                    "seeds": len(closed),
                }
            else:
                figures[name][f"{algo}_refused"] = own[0]["refused"]
    finish(
        "tasks", {"figures": figures, "runs": runs, "commits": sorted(finished.commits)}, options
    )


if __name__ == "__main__":
    main()
