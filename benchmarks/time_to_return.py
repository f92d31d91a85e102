"""How long until a policy earns a given return where it was not trained: ours beside its peers.

    python benchmarks/time_to_return.py [--quick] [--side ppo apg sb3 ...] [--seeds 5] [--seconds
    60] [--fresh] [--save]

ElegantRL-Podracer's own measure, on a minute market with a planted signal (_planted.py). Thresholds
are 10, 25, 50 and 75 % of the log return of a rule that knows the signal and holds equal weights of
all that will rise. A training ends at the last of them. The clock stands still while a policy is
judged and starts after one throw-away update, which loads compiled code.

Everyone trains in `TradingEnv` on one thread, process CPU time, five seeds. Ours are the default
PPO and APG. Theirs have our adapter, our actions (target weights by a softmax) and settings tuned
on seeds from 100 on, which are not reported: Stable-Baselines3's PPO without (`sb3`) and with
state-dependent exploration (`sb3_gsde`), a CleanRL-style loop (`clean`), TorchTrade's PPO example
as published (`torchtrade`): _train_peers.py. The figure that counts is against the better of the
two of Stable-Baselines3.

`thirty_assets` is what the default PPO has learned on 30 planted assets after 14 CPU-seconds.

A seed that never passed a threshold counts as never: a median without a number means that most did
not. Finished trainings are in `runs/benchmarks`; `--fresh` measures them again. `--quick`: one
seed, 0.3 seconds each. `--one SIDE,SEED,SECONDS`: the curve of one training.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._bench import FinishedRuns, NoPeer, finish, read_arguments, run_child
from benchmarks._learning import OutOfTime
from benchmarks._planted import (
    ASSETS,
    MARKS,
    OURS,
    SHARES_OF_RULE,
    TRAIN,
    VALIDATION,
    Referee,
    log_return,
    rule,
    seconds_to,
    windows,
)
from benchmarks._train_peers import LEARNERS, load_sb3, train_peer
from fintrader.agents import Budget, TrainProgress, make_agent, train
from fintrader.envs import TradingEnv
from fintrader.market.tensors import MarketTensors
from tests.engines.tiny import agent_settings

AGENTS = ("ppo", "apg")
"""Ours, with the defaults of their settings and of the environment's accounts."""
SIDES = [*AGENTS, *LEARNERS]
RIVALS = {
    "fair_sb3": ("sb3", "sb3_gsde"),
    "fair_clean": ("clean",),
}
THIRTY = 30
THIRTY_SECONDS = 14.0
THIRTY_SEEDS = 3
LEVELS = {f"{share:.0%}": share for share in SHARES_OF_RULE}
Curve = list[dict[str, float]]


def train_ours(algo: str, market: MarketTensors, referee: Referee, seed: int) -> Curve:
    """Train with the defaults of its settings, after one update that does not count."""

    def once(budget: Budget, *, look: bool) -> None:
        env = TradingEnv(market, OURS, seed=seed)
        agent = make_agent(agent_settings(algo, {}), env.layout, seed=seed)

        def on_progress(progress: TrainProgress) -> None:
            if look:
                referee.look(
                    progress.env_steps, lambda: lambda account: agent.policy(account.observe())
                )

        referee.start()
        train(agent, env, budget, on_progress=on_progress)

    once(Budget(env_steps=1), look=False)
    with contextlib.suppress(OutOfTime):
        once(Budget(seconds=1e9), look=True)
    return referee.curve


def train_side(side: str, seed: int, seconds: float) -> Curve:
    """The curve of one side. Raises NoPeer."""
    torch.set_num_threads(1)
    if side == "thirty":
        training, validation = windows(seed, THIRTY)
        referee = Referee(validation, OURS, seconds, marks=[], stop_at=math.inf)
        return train_ours("ppo", training, referee, seed)
    training, validation = windows(seed)
    referee = Referee(validation, OURS, seconds)
    if side in AGENTS:
        return train_ours(side, training, referee, seed)
    return train_peer(side, training, OURS, referee, seed)


def median(values: list[float | None]) -> float | None:
    """Median of what some never reached; None where most did not."""
    found = float(np.median([math.inf if value is None else value for value in values]))
    return round(found, 3) if math.isfinite(found) else None


def summarise_side(curves: list[Curve], goals: list[float]) -> dict[str, dict[str, Any]]:
    """By threshold: seconds of each seed, their median, and how many got there."""
    found = {}
    for level, share in LEVELS.items():
        seconds = [
            seconds_to(share * goal, curve) for curve, goal in zip(curves, goals, strict=True)
        ]
        reached = f"{sum(value is not None for value in seconds)} of {len(seconds)}"
        found[level] = {"seeds": seconds, "median": median(seconds), "reached": reached}
    return found


def compare(times: dict[str, dict[str, dict[str, Any]]], limit: float) -> dict[str, Any]:
    """How many times as long the best of each rival takes; where none got there, at least the whole
    time's."""
    figures: dict[str, Any] = {}
    for group, members in RIVALS.items():
        for level in LEVELS if "ppo" in times else ():
            ours = times["ppo"][level]["median"]
            known = [times[name][level]["median"] for name in members if name in times]
            there = [value for value in known if value is not None]
            figures[f"{group}_times_ppo_to_{level}"] = {
                "times": round(min(there, default=limit) / ours, 2) if ours and known else None,
                "at_least": bool(ours and known and not there),
            }
    return figures


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    options = read_arguments(
        __doc__, side=SIDES, seeds=5, seconds=60.0, quick=False, fresh=False, one=str
    )
    if options.one:
        side, seed, seconds = options.one.split(",")
        print(json.dumps(train_side(side, int(seed), float(seconds))))
        return
    thirty_seconds = THIRTY_SECONDS
    if options.quick:
        options.seeds = 1
        options.seconds = thirty_seconds = 0.3
    try:
        load_sb3()
    except NoPeer as error:
        print(error, file=sys.stderr)
        options.side = [side for side in options.side if not side.startswith("sb3")]
    name = "time_to_return_quick" if options.quick else "time_to_return"
    finished = FinishedRuns(name, fresh=options.fresh or options.quick)
    recipes = {name: {"algo": kind, **asdict(recipe)} for name, (kind, recipe) in LEARNERS.items()}

    def run(side: str, seed: int, seconds: float) -> Curve:
        settings = {
            "seconds": seconds,
            "marks": MARKS,
            "recipe": recipes.get(side, {}),
            "env": OURS.model_dump(mode="json"),
            "market": (THIRTY if side == "thirty" else ASSETS, TRAIN, VALIDATION),
        }
        words = [__file__, "--one", f"{side},{seed},{seconds}"]
        record = finished.get(
            f"{side}-{seed}", settings, lambda: {"curve": run_child(words, PYTHONWARNINGS="ignore")}
        )
        return record["curve"]

    seeds = range(options.seed, options.seed + options.seeds)
    goals = [log_return(rule, windows(seed)[1], OURS) for seed in seeds]
    curves = {side: [] for side in options.side}
    for seed in seeds:
        for side, known in curves.items():
            known.append(run(side, seed, options.seconds))
    shares = []
    for seed in seeds[:THIRTY_SEEDS]:
        earned = run("thirty", seed, thirty_seconds)[-1]["log_return"]
        shares.append(round(earned / log_return(rule, windows(seed, THIRTY)[1], OURS), 3))
    times = {side: summarise_side(known, goals) for side, known in curves.items()}
    figures = compare(times, options.seconds)
    record = {
        "figures": figures,
        "times": times,
        "thirty_assets": {"seconds": thirty_seconds, "shares_of_rule": shares},
        "rule_log_return": [round(goal, 4) for goal in goals],
        "seconds": options.seconds,
        "recipes": recipes,
        "curves": curves,
        "commits": sorted(finished.commits),
    }
    finish("time_to_return", record, options)


if __name__ == "__main__":
    main()
