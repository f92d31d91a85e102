"""Each of the four parallelisms of ElegantRL-Podracer, measured on and off in turns.

    python benchmarks/parallelism.py [--rounds 5] [--seconds 2] [--device cpu] [--save]

worker    accounts of one vector environment against as many steps of one account; processes of
          `AsyncVectorEnv` against one process (HalfCheetah, or Pendulum without MuJoCo)
learner   K PPO learners in one batch (`agent.learners`) against one after another (equal results)
pipeline  TD3 that learns while the accounts trade (`agent.pipeline`) against one that takes turns
ensemble  K critics as one batched network against K networks (forward and backward)

Every figure is the median over the rounds of on / off within a round: above 1, the parallel form is
faster. Every process has one thread, so that processes do not compete with threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._bench import finish, read_arguments
from benchmarks._learning import make_random_market
from fintrader.agents import (
    PPO,
    TD3,
    Budget,
    NetworkSettings,
    TrainProgress,
    make_agent,
    train,
)
from fintrader.agents.buffers import Transition
from fintrader.agents.network_kinds import make_critic
from fintrader.agents.normalisation import ObservationNormaliser
from fintrader.agents.parallel import average
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.classic import WorkerEnv
from fintrader.envs.settings import GymnasiumSettings
from fintrader.market.tensors import MarketTensors

ASSETS = 20
LEARNERS = 4
MEMBERS = 5
Rate = Callable[[], float]


def measure_rate(step: Callable[[], int], seconds: float, device: str) -> float:
    """Units a second, of a call that says how many it did; at least two calls, one more to warm
    up."""
    step()
    wait(device)
    done = 0
    calls = 0
    started = time.perf_counter()
    while calls < 2 or time.perf_counter() - started < seconds:
        done += step()
        calls += 1
    wait(device)
    return done / (time.perf_counter() - started)


def wait(device: str) -> None:
    """Wait until the device has done what was queued."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def take_turns(on: Rate, off: Rate, rounds: int) -> dict[str, Any]:
    """Both by turns, the first of a round changing; `gain` is the median of on / off within a
    round."""
    ons = []
    offs = []
    for number in range(rounds):
        for kind in (on, off) if number % 2 else (off, on):
            (ons if kind is on else offs).append(kind())
    gains = [a / b for a, b in zip(ons, offs, strict=True)]
    return {
        "gain": round(statistics.median(gains), 3),
        "gains": [round(gain, 3) for gain in gains],
        "on_per_second": round(statistics.median(ons), 1),
        "off_per_second": round(statistics.median(offs), 1),
    }


# --- worker ---------------------------------------------------------------------------------------


def run_steps(env: Any, action: torch.Tensor, seconds: float, device: str) -> float:
    """Steps a second of all accounts of an environment."""

    def step() -> int:
        for _ in range(20):
            env.step(action)
        return 20 * len(action)

    return measure_rate(step, seconds, device)


def run_accounts(bars: MarketTensors, count: int, options: argparse.Namespace) -> Rate:
    """So many accounts of one vector environment."""
    settings = EnvSettings(num_envs=count, episode_bars=500)
    env = TradingEnv(bars, settings, device=options.device, seed=options.seed)
    env.reset(seed=options.seed)
    action = torch.rand(count, ASSETS, device=env.device) * 0.1
    return lambda: run_steps(env, action, options.seconds, options.device)


def run_copies(workers: Any, options: argparse.Namespace) -> Rate:
    """Eight copies of one environment."""
    name = "HalfCheetah-v5" if importlib.util.find_spec("mujoco") else "Pendulum-v1"
    settings = GymnasiumSettings(id=name, num_envs=8, workers=workers)

    def measure() -> float:
        env = WorkerEnv.make(settings, seed=options.seed)
        env.reset(seed=options.seed)
        rate = run_steps(env, torch.zeros(8, env.layout.num_actions), options.seconds, "cpu")
        env.close()
        return rate

    return measure


# --- learner --------------------------------------------------------------------------------------


class OneAfterAnother:
    """K learners, each with its share of the accounts, averaged after every update; a batch of
    learners replaces them."""

    def __init__(self, settings: PPO, layout: Any, options: argparse.Namespace) -> None:
        self.learners: list[Any] = [
            make_agent(settings, layout, device=options.device, seed=options.seed)
            for _ in range(LEARNERS)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learners[0], name)

    def prepare_env(self, env: Any) -> Any:
        """One environment, whose market every learner knows."""
        for learner in self.learners:
            env = learner.prepare_env(env)
        return env

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Each learner draws for its own accounts."""
        shares = zip(self.learners, obs.chunk(LEARNERS), strict=True)
        return torch.cat([learner.act(share) for learner, share in shares])

    def observe(self, transition: Transition) -> None:
        """Share out one step."""
        shares = zip(*(column.chunk(LEARNERS) for column in transition), strict=True)
        for learner, share in zip(self.learners, shares, strict=True):
            learner.observe(Transition(*share))

    def update(self) -> dict[str, float] | None:
        """All learners' updates, then their average."""
        found = [learner.update() for learner in self.learners]
        if found[0] is not None:
            fused = average([learner.collect_inheritable_state() for learner in self.learners])
            for learner in self.learners:
                learner.inherit(fused)
        return found[0]


def run_team(together: bool, bars: MarketTensors, options: argparse.Namespace) -> Rate:
    """Updates a second of K learners of PPO, 16 accounts each; only the updates are timed."""
    settings = PPO(
        num_steps=16, network=NetworkSettings(hidden=(64, 64)), learners=LEARNERS if together else 1
    )
    env = TradingEnv(
        bars, EnvSettings(num_envs=16 * LEARNERS), device=options.device, seed=options.seed
    )
    team = OneAfterAnother(settings, env.layout, options)
    if together:
        team = make_agent(settings, env.layout, device=options.device, seed=options.seed)

    def measure() -> float:
        spent = 0.0
        before = team.update

        def update() -> Any:
            nonlocal spent
            wait(options.device)
            started = time.perf_counter()
            found = before()
            if found is not None:
                wait(options.device)
                spent += time.perf_counter() - started
            return found

        team.update = update
        try:
            result = train(team, env, Budget(seconds=options.seconds))
        finally:
            team.update = before
        return result.updates / spent

    return measure


# --- pipeline -------------------------------------------------------------------------------------


def run_pipeline(on: bool, bars: MarketTensors, options: argparse.Namespace) -> Rate:
    """Env-steps a second of TD3, one update for each step of 256 accounts."""
    settings = TD3(learning_starts=2_000, batch_size=256, buffer_size=20_000, pipeline=on)

    def measure() -> float:
        env = TradingEnv(
            bars, EnvSettings(num_envs=256, decision_interval=5), device=options.device, seed=1
        )
        agent = make_agent(settings, env.layout, device=options.device, seed=1)
        begun: list[tuple[float, int]] = []

        def seen(progress: TrainProgress) -> None:
            if "critic_loss" in progress.metrics:
                begun.append((time.perf_counter(), progress.env_steps))

        # The first reports are of warming up, and an update more or less: rates are from the first
        # to the last.
        train(agent, env, Budget(env_steps=256 * 20 * options.pipeline_reports), on_progress=seen)
        return (begun[-1][1] - begun[0][1]) / (begun[-1][0] - begun[0][0])

    return measure


# --- ensemble -------------------------------------------------------------------------------------


def run_critics(together: bool, bars: MarketTensors, options: argparse.Namespace) -> Rate:
    """Gradients a second of 5 critics on 256 rows."""
    layout = TradingEnv(bars, EnvSettings(num_envs=1)).layout
    network = NetworkSettings(kind="market_once", hidden=(64, 64), layer_norm=True)
    if together:
        critics = [make_critic(layout, network, latents=ASSETS + 1, members=MEMBERS)]
    else:
        critics = [make_critic(layout, network, latents=ASSETS + 1) for _ in range(MEMBERS)]
    critics = [critic.to(options.device) for critic in critics]
    normaliser = ObservationNormaliser(layout).to(options.device)
    obs = normaliser.normalise(torch.randn(256, layout.width, device=options.device))
    latent = torch.randn(256, ASSETS + 1, device=options.device)

    def step() -> int:
        for critic in critics:
            critic.zero_grad(set_to_none=True)
            torch.autograd.backward(critic(obs, latent).pow(2).mean())
        return 1

    return lambda: measure_rate(step, options.seconds, options.device)


def main() -> None:
    """Measure both forms of each parallelism."""
    options = read_arguments(__doc__, rounds=5, seconds=2.0, device="cpu", pipeline_reports=8)
    torch.set_num_threads(1)
    bars = make_random_market(2000, ASSETS, 6, seed=options.seed, context=1).to(options.device)
    pairs = {
        "worker_accounts_1024_over_1": (
            run_accounts(bars, 1024, options),
            run_accounts(bars, 1, options),
        ),
        "worker_processes_over_one": (run_copies("async", options), run_copies("sync", options)),
        "learner_batched_over_sequential": (
            run_team(True, bars, options),
            run_team(False, bars, options),
        ),
        "pipeline_over_turns": (
            run_pipeline(True, bars, options),
            run_pipeline(False, bars, options),
        ),
        "ensemble_batched_over_separate_critics": (
            run_critics(True, bars, options),
            run_critics(False, bars, options),
        ),
    }
    figures = {"learners": LEARNERS, "critics": MEMBERS, "rounds": options.rounds}
    for name, (on, off) in pairs.items():
        figures[name] = take_turns(on, off, options.rounds)
        print(name, figures[name])
    figures |= {"device": options.device, "load": os.getloadavg()[0]}
    finish("parallelism" if options.device == "cpu" else "parallelism_cuda", figures, options)


if __name__ == "__main__":
    main()
