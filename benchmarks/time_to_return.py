"""How long until a policy earns a given return where it was not trained: ours beside its peers.

    python -m benchmarks.time_to_return [--quick] [--side ppo apg jax sb3 ...] [--assets 10 100]
                                        [--seeds 10] [--seconds 8] [--fresh] [--save]

ElegantRL-Podracer's own measure, on a minute market with a planted signal (_planted.py). Thresholds
are 10, 25, 50 and 75 % of the log return of a rule that knows the signal and holds equal weights of
all that will rise. A training ends at the last of them. The clock stands still while a policy is
judged and starts after one throw-away update, which loads compiled code.

Everyone trains on one thread, process CPU time, ten seeds, on ten assets and on a hundred (with
four times the seconds). Ours are the default PPO and APG. `jax` is the default PPO with its account
in one compiled call (_train_jax.py). All others train in `TradingEnv`. Theirs have our adapter, our actions (target weights by a softmax) and settings tuned
on seeds from 100 on, which are not reported: Stable-Baselines3's PPO without (`sb3`) and with
state-dependent exploration (`sb3_gsde`), a CleanRL-style loop (`clean`), TorchTrade's PPO example
as published (`torchtrade`): _train_peers.py. The figure that counts is against the better of the
two of Stable-Baselines3.

`start_seconds` is the time before the clock starts: with us it loads compiled code, with JAX it
compiles. `cold_seconds`: the same of ours where nothing was compiled before.

`thirty_assets` is what the default PPO has learned on 30 planted assets after 14 CPU-seconds.

A seed that never passed a threshold counts as never: a median without a number means that most did
not. Finished trainings are in `runs/benchmarks`; `--fresh` measures them again. `--quick`: one
seed, 0.3 seconds each.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import tempfile
from dataclasses import asdict
from functools import partial

import numpy as np
import torch

from benchmarks._bench import (
    FinishedRuns,
    NoPeer,
    Values,
    call_in_child,
    list_seeds,
    read_arguments,
)
from benchmarks._learning import OutOfTime
from benchmarks._planted import (
    MARKS,
    OURS,
    SHARES_OF_RULE,
    TRAIN,
    VALIDATION,
    Decide,
    Referee,
    log_return,
    observe_with,
    rule,
    seconds_to,
    windows,
)
from benchmarks._train_peers import LEARNERS, load_jax, load_sb3, train_peer
from fintrader.agents import PPO, Budget, make_agent, train
from fintrader.agents.agent import Agent
from fintrader.envs import TradingEnv
from fintrader.market.tensors import MarketTensors
from tests.engines.tiny import agent_settings

AGENTS = ("ppo", "apg")
"""Ours, with the defaults of their settings and of the environment's accounts."""
SIDES = [*AGENTS, "jax", *LEARNERS]
SIZES = {10: 1.0, 100: 4.0}
"""Assets -> factor on the seconds of a training."""
RIVALS = {
    "jax": ("jax",),
    "fair_sb3": ("sb3", "sb3_gsde"),
    "fair_clean": ("clean",),
}
THIRTY = 30
THIRTY_SECONDS = 14.0
THIRTY_SEEDS = 3
LEVELS = {f"{share:.0%}": share for share in SHARES_OF_RULE}
Curve = list[dict[str, float]]


def train_ours(algo: str, market: MarketTensors, referee: Referee, seed: int) -> None:
    """Train with the defaults of its settings, after one update that does not count."""

    def prepare() -> tuple[Agent, TradingEnv]:
        env = TradingEnv(market, OURS, seed=seed)
        return make_agent(agent_settings(algo, {}), env.layout, seed=seed), env

    train(*prepare(), Budget(env_steps=1))
    agent, env = prepare()
    referee.start()
    with contextlib.suppress(OutOfTime):
        train(
            agent,
            env,
            Budget(seconds=1e9),
            on_progress=lambda now: referee.look(now.env_steps, lambda: observe_with(agent.policy)),
        )


def train_jax(market: MarketTensors, referee: Referee, seed: int) -> None:
    """Train the default PPO in JAX, after an update that compiles. Raises NoPeer."""
    peer = load_jax().JaxPPO(market, OURS, PPO(), OURS.num_envs, seed)
    peer.update()
    peer.decide(referee.market)
    peer.restart(seed)

    def make_policy() -> Decide:
        actions = torch.from_numpy(peer.decide(referee.market))
        return lambda account: actions[account.bar][None]

    referee.follow(peer.update, make_policy)


def train_side(side: str, seed: int, seconds: float, assets: int) -> Values:
    """The curve of one side, and the seconds before its clock started. Raises NoPeer."""
    training, validation = windows(seed, assets)
    marks = {"marks": [], "stop_at": math.inf} if side == "thirty" else {}
    referee = Referee(validation, OURS, seconds, **marks)
    if side == "jax":
        train_jax(training, referee, seed)
    elif side in LEARNERS:
        train_peer(side, training, OURS, referee, seed)
    else:
        train_ours("ppo" if side == "thirty" else side, training, referee, seed)
    return {"curve": referee.curve, "start_seconds": referee.start_seconds}


def median(values: list[float | None]) -> float | None:
    """Median of what some never reached; None where most did not."""
    found = float(np.median([math.inf if value is None else value for value in values]))
    return round(found, 3) if math.isfinite(found) else None


def summarise_side(curves: list[Curve], goals: list[float]) -> dict[str, Values]:
    """By threshold: seconds of each seed, their median, and how many got there."""
    found = {}
    for level, share in LEVELS.items():
        seconds = [
            seconds_to(share * goal, curve) for curve, goal in zip(curves, goals, strict=True)
        ]
        reached = f"{sum(value is not None for value in seconds)} of {len(seconds)}"
        found[level] = {"seeds": seconds, "median": median(seconds), "reached": reached}
    return found


def compare(times: dict[str, dict[str, Values]], limit: float) -> Values:
    """How many times as long the best of each rival takes; where none got there, at least the whole
    time's."""
    figures = {}
    for group, members in RIVALS.items():
        for level in LEVELS if "ppo" in times else ():
            ours = times["ppo"][level]["median"]
            known = [times[name][level]["median"] for name in members if name in times]
            there = [value for value in known if value is not None]
            figures[f"{group}_times_ppo_to_{level}"] = {
                "times": min(there, default=limit) / ours if ours and known else None,
                "at_least": bool(ours and known and not there),
            }
    return figures


def measure_cold(seed: int, assets: int) -> float:
    """Seconds before the clock of our PPO starts if nothing was compiled before."""
    with tempfile.TemporaryDirectory() as empty:
        found = call_in_child(train_side, "ppo", seed, 0.01, assets, NUMBA_CACHE_DIR=empty)
    return float(found["start_seconds"])


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    options = read_arguments(
        __doc__,
        seed=0,
        side=SIDES,
        assets=list(SIZES),
        seeds=10,
        seconds=8.0,
        quick=False,
        fresh=False,
    )
    thirty_seconds = THIRTY_SECONDS
    if options.quick:
        options.seeds = 1
        options.seconds = thirty_seconds = 0.3
    try:
        load_sb3()
    except NoPeer as error:
        print(error, file=sys.stderr)
        options.side = [side for side in options.side if not side.startswith("sb3")]
    options.fresh |= options.quick
    finished = FinishedRuns("time_to_return", options)
    finished.folder /= "quick" if options.quick else ""
    recipes = {name: {"algo": kind, **asdict(recipe)} for name, (kind, recipe) in LEARNERS.items()}

    def run(side: str, seed: int, seconds: float, assets: int) -> Values:
        settings = {
            "seconds": seconds,
            "marks": MARKS,
            "recipe": recipes.get(side, {}),
            "env": OURS.model_dump(mode="json"),
            "market": (assets, TRAIN, VALIDATION),
        }
        asked = (side, seed, seconds, assets)
        work = partial(call_in_child, train_side, *asked, PYTHONWARNINGS="ignore")
        return finished.get(f"{side}-{assets}-{seed}", settings, work)

    seeds = list_seeds(options)
    sizes = {}
    for assets in options.assets:
        limit = options.seconds * SIZES[assets]
        runs = [{side: run(side, seed, limit, assets) for side in options.side} for seed in seeds]
        goals = [log_return(rule, windows(seed, assets)[1], OURS) for seed in seeds]
        curves = {side: [one[side]["curve"] for one in runs] for side in options.side}
        times = {side: summarise_side(known, goals) for side, known in curves.items()}
        sizes[str(assets)] = {
            "figures": compare(times, limit),
            "times": times,
            "start_seconds": {
                side: statistics.median(one[side]["start_seconds"] for one in runs)
                for side in options.side
            },
            "cold_seconds": measure_cold(options.seed, assets),
            "rule_log_return": goals,
            "seconds": limit,
            "curves": curves,
        }
    shares = []
    for seed in seeds[:THIRTY_SEEDS]:
        earned = run("thirty", seed, thirty_seconds, THIRTY)["curve"][-1]["log_return"]
        shares.append(earned / log_return(rule, windows(seed, THIRTY)[1], OURS))
    record = {
        "sizes": sizes,
        "thirty_assets": {"seconds": thirty_seconds, "shares_of_rule": shares},
        "recipes": recipes,
    }
    finished.finish(record)


if __name__ == "__main__":
    main()
