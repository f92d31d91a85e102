"""How long until a policy earns a given return where it was not trained: ours beside its peers.

    python benchmarks/time_to_return.py [--quick] [--side ppo apg sb3 ...] [--seeds 5] [--seconds
    60] [--save]

ElegantRL-Podracer's own measure, on a minute market with a planted signal (_planted.py). Thresholds
are 10, 25, 50 and 75 % of the log return of a rule that is told the signal and holds equal weights
of whatever it says will rise. A training ends at the last of them. The clock stands still while a
policy is judged and starts after one throw-away update, which loads compiled code.

1. `fair`: everyone trains in `TradingEnv` on one thread, process CPU time, five seeds. Ours are the
   default PPO and APG. Theirs have our adapter, our actions (target weights by a softmax) and
   settings tuned on seeds from 100 on, which are not reported: Stable-Baselines3's PPO without
   (`sb3`) and with state-dependent exploration (`sb3_gsde`), a CleanRL-style loop (`clean`),
   TorchTrade's PPO example as published (`torchtrade`) and tuned (`torchtrade_tuned`):
   _train_peers.py. The figure that counts is against the better of the two of Stable-Baselines3.
2. `thirty_assets`: what the default PPO has learned on 30 planted assets after 14 CPU-seconds.
3. `as_shipped`: Stable-Baselines3 with FinRL's settings in FinRL's environment, and RLlib
   (_finrl_training.py), wall time, three seeds; RLlib from an environment of its own (`make
   test-adapters` builds `.venv-rllib`; `--rllib-python` names another). Ours are those of `fair`.
   It says how far apart packages are as they come, not algorithms.

A seed that never passed a threshold counts as never: a median without a number means that most did
not. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import _planted as planted
from benchmarks._finrl_training import (
    FINRL_PPO,
    THEIRS,
    FinrlPolicy,
    train_rllib,
    train_sb3,
)
from benchmarks._planted import (
    ASSETS,
    NOISE_FEATURES,
    OURS,
    SESSION,
    SHARES_OF_RULE,
    VALIDATION,
    OutOfTime,
    Referee,
    log_return,
    planted_market,
    rule,
    seconds_to,
    windows,
)
from benchmarks._train_peers import LEARNERS, NoPeer, sb3, train_peer
from benchmarks.common import finish
from benchmarks.resume import Records
from fintrader.agents import AgentSettings, Budget, TrainProgress, make_agent, train
from fintrader.envs import TradingEnv
from fintrader.market.tensors import MarketTensors

__all__ = [
    "ASSETS",
    "NOISE_FEATURES",
    "OURS",
    "SESSION",
    "THEIRS",
    "VALIDATION",
    "FinrlPolicy",
    "log_return",
    "planted_market",
    "rule",
    "windows",
]

AGENTS: dict[str, dict[str, Any]] = {"ppo": {}, "apg": {}}
"""Ours, with the defaults of their settings and of the environment's accounts."""
SHIPPED: dict[str, Callable[[int, float], list[dict[str, float]]]] = {
    "sb3_finrl": train_sb3,
    "rllib": train_rllib,
}
SIDES = (*AGENTS, *LEARNERS, *SHIPPED)
THIRTY = 30
THIRTY_SECONDS = 14.0
THIRTY_SEEDS = 3
SHIPPED_SEEDS = 3
TARGETS = {"fair_sb3_times_ppo_to_50%": 15.0, "thirty_assets_share_of_rule": 0.8}
"""The least that each figure of `table` should be."""
Curve = list[dict[str, float]]


def train_ours(algo: str, market: MarketTensors, referee: Referee, seed: int) -> Curve:
    """With the defaults of its settings."""
    from pydantic import TypeAdapter

    settings = TypeAdapter(AgentSettings).validate_python({"algo": algo, **AGENTS[algo]})

    def one(budget: Budget, look: bool) -> None:
        env = TradingEnv(market, OURS, seed=seed)
        agent = make_agent(settings, env.layout, seed=seed)

        def on_progress(progress: TrainProgress) -> None:
            if look:
                referee.look(
                    progress.env_steps, lambda: lambda account: agent.policy(account.observe())
                )

        referee.start()
        train(agent, env, budget, on_progress=on_progress)

    one(Budget(env_steps=1), look=False)
    with contextlib.suppress(OutOfTime):
        one(Budget(seconds=1e9), look=True)
    return referee.curve


def one_training(side: str, seed: int, seconds: float) -> Curve:
    """The curve of one side. Raises NoPeer where it cannot be had."""
    if side in SHIPPED:
        return SHIPPED[side](seed, seconds)
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


def in_process(side: str, seed: int, seconds: float, python: str) -> dict[str, Any]:
    """One training in a process of its own; RLlib's in an interpreter of its own."""
    from benchmarks.algorithms import peer_folder

    paths = [str(ROOT)]
    if side == "sb3_finrl":
        paths.append(str(peer_folder()))
    threads = {} if side in SHIPPED else {"OMP_NUM_THREADS": "1"}
    environment = {
        **os.environ,
        **threads,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
    }
    command = [python, __file__, "--one", side, str(seed), str(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} seed {seed} failed:\n{done.stderr[-2000:]}")
    return {"curve": json.loads(done.stdout.strip().splitlines()[-1])}


def median(values: list[float | None]) -> float | None:
    """Of what some never reached; None where most did not."""
    found = float(np.median([math.inf if value is None else value for value in values]))
    return round(found, 3) if math.isfinite(found) else None


def times_of(
    curves: dict[str, list[Curve]], goals: list[float]
) -> dict[str, dict[str, dict[str, Any]]]:
    """`[side][threshold]`: seconds of each seed, their median, and how many got there."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for side, runs in curves.items():
        for part in SHARES_OF_RULE:
            seconds = [
                seconds_to(part * goal, curve) for curve, goal in zip(runs, goals, strict=False)
            ]
            reached = f"{sum(value is not None for value in seconds)} of {len(seconds)}"
            figures = {"seeds": seconds, "median": median(seconds), "reached": reached}
            found.setdefault(side, {})[f"{part:.0%}"] = figures
    return found


def ratio(ours: float | None, theirs: list[float | None], limit: float) -> dict[str, Any]:
    """How many times as long the best of `theirs` takes; where none got there, at least the whole
    time's."""
    if ours is None or not theirs:
        return {"times": None, "at_least": False}
    there = [value for value in theirs if value is not None]
    return {"times": round((min(there) if there else limit) / ours, 2), "at_least": not there}


def compare(times: dict[str, dict[str, dict[str, Any]]], seconds: float) -> dict[str, Any]:
    """Ratios of medians, the fair ones first."""
    groups = {
        "fair_sb3": ("sb3", "sb3_gsde"),
        "fair_clean": ("clean",),
        "torchtrade": ("torchtrade",),
        "torchtrade_tuned": ("torchtrade_tuned",),
        **{f"as_shipped_{name}": (name,) for name in SHIPPED},
    }
    figures: dict[str, Any] = {}
    for group, members in groups.items():
        for ours in AGENTS:
            for part in (f"{share:.0%}" for share in SHARES_OF_RULE):
                theirs = [times[name][part]["median"] for name in members if name in times]
                if theirs and ours in times:
                    figures[f"{group}_times_{ours}_to_{part}"] = ratio(
                        times[ours][part]["median"], theirs, seconds
                    )
    return figures


def show(
    times: dict[str, dict[str, dict[str, Any]]], figures: dict[str, Any], table: dict[str, Any]
) -> None:
    """The medians by side, the ratios, the table."""
    for title, sides in (
        ("fair, CPU seconds", (*AGENTS, *LEARNERS)),
        ("as shipped, wall seconds", tuple(SHIPPED)),
    ):
        print(f"\n{title:26}" + "".join(f"{part:>22.0%}" for part in SHARES_OF_RULE))
        for side in sides:
            if side in times:
                cells = [times[side][f"{part:.0%}"] for part in SHARES_OF_RULE]
                shown = [
                    f"{'never' if c['median'] is None else c['median']} ({c['reached']})"
                    for c in cells
                ]
                print(f"{side:26}" + "".join(f"{cell:>22}" for cell in shown))
    print()
    for name, found in figures.items():
        if found["times"] is not None:
            print(f"{name:44} {'at least ' if found['at_least'] else ''}{found['times']:.1f}")
    for name, least in TARGETS.items():
        print(
            f"{name:44} {'none' if table[name] is None else f'{table[name]:.2f}'}   at least"
            f" {least:g}"
        )


def available(options: argparse.Namespace) -> list[str]:
    """The sides asked for that can be had here; says why another cannot."""
    sides = list(options.side)
    try:
        if {"sb3", "sb3_gsde", "sb3_finrl"} & set(sides):
            sb3()
    except NoPeer as error:
        print(f"no peer: {error}", file=sys.stderr)
        sides = [side for side in sides if not side.startswith("sb3")]
    if "rllib" in sides and not Path(options.rllib_python).exists():
        print(
            f"no RLlib at {options.rllib_python}: left out (`make test-adapters` builds it)",
            file=sys.stderr,
        )
        sides.remove("rllib")
    return sides


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument(
        "--quick", action="store_true", help="one seed, 0.3 seconds each, nothing as shipped"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", "--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each training at most")
    parser.add_argument("--rllib-python", default=str(ROOT / ".venv-rllib" / "bin" / "python"))
    parser.add_argument(
        "--fresh", action="store_true", help="measure again what is already in runs/benchmarks"
    )
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/time_to_return.json"
    )
    parser.add_argument("--json", action="store_true", help="the last line is JSON in any case")
    parser.add_argument(
        "--one", nargs=3, metavar=("SIDE", "SEED", "SECONDS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_training(options.one[0], int(options.one[1]), float(options.one[2]))))
        return
    if options.quick:
        options.seeds = 1
        options.seconds = 0.3
        options.side = [side for side in options.side if side not in SHIPPED]
    options.side = available(options)
    records = Records(
        "time_to_return_quick" if options.quick else "time_to_return",
        fresh=options.fresh or options.quick,
    )
    recipes = {name: {"algo": kind, **asdict(recipe)} for name, (kind, recipe) in LEARNERS.items()}
    sizes = (
        SESSION,
        planted.TRAIN,
        VALIDATION,
        planted.DRIFT,
        planted.VOLATILITY,
        planted.REGIME,
        NOISE_FEATURES,
    )

    def run(side: str, seed: int, seconds: float) -> Curve:
        settings = {
            "seconds": seconds,
            "marks": planted.MARKS,
            "recipe": recipes.get(side) or AGENTS.get(side) or FINRL_PPO,
            "env": (THEIRS if side in SHIPPED else OURS).model_dump(mode="json"),
            "market": (THIRTY if side == "thirty" else ASSETS, *sizes),
        }
        python = options.rllib_python if side == "rllib" else sys.executable
        record = records.get(
            f"{side}-{seed}", settings, lambda: in_process(side, seed, seconds, python)
        )
        found: Curve = record["curve"]
        return found

    curves: dict[str, list[Curve]] = {side: [] for side in options.side}
    seeds = range(options.seed, options.seed + options.seeds)
    goals = [log_return(rule, windows(seed)[1], OURS) for seed in seeds]
    for seed, goal in zip(seeds, goals, strict=True):
        for side in options.side:
            if side in SHIPPED and len(curves[side]) >= SHIPPED_SEEDS:
                continue
            curve = run(side, seed, options.seconds)
            curves[side].append(curve)
            best = max(point["log_return"] for point in curve)
            found = [seconds_to(p * goal, curve) for p in SHARES_OF_RULE]
            print(
                f"{side:16} seed {seed}: best {best / goal:6.1%} of the rule, thresholds at"
                f" {found} s",
                flush=True,
            )

    shares = []
    for seed in seeds[:THIRTY_SEEDS]:
        earned = run("thirty", seed, options.seconds if options.quick else THIRTY_SECONDS)[-1][
            "log_return"
        ]
        shares.append(round(earned / log_return(rule, windows(seed, THIRTY)[1], OURS), 3))
        print(f"{THIRTY} assets        seed {seed}: {shares[-1]:6.1%} of the rule", flush=True)

    times = times_of(curves, goals)
    figures = compare(times, options.seconds)
    headline = figures.get("fair_sb3_times_ppo_to_50%", {"times": None})["times"]
    table = {
        "fair_sb3_times_ppo_to_50%": headline,
        "thirty_assets_share_of_rule": float(np.median(shares)),
    }
    show(times, figures, table)
    finish(
        "time_to_return",
        {
            "table": table,
            "figures": figures,
            "times": times,
            "thirty_assets": {"seconds": THIRTY_SECONDS, "shares_of_rule": shares},
            "rule_log_return": [round(goal, 4) for goal in goals],
            "seconds": options.seconds,
            "recipes": recipes,
            "curves": curves,
            "commits": sorted(records.commits),
        },
        seed=options.seed,
        save=options.save,
    )


if __name__ == "__main__":
    main()
