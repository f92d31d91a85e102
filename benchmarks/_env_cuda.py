"""What `benchmarks/env.py --device cuda` measures: the environment on one GPU, beside the device's
copy bandwidth.

Steps are queued without waiting for the device and timed by one wait at the end; the best of
several rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from benchmarks import _env_peers
from fintrader.agents import PPO, Budget, TrainProgress, make_agent, train
from fintrader.agents.settings import NetworkSettings
from fintrader.envs import EnvSettings, FactoredLinear, TradingEnv
from fintrader.market.tensors import MarketTensors

LARGEST = 1 << 18
"""Accounts of the figures that stand for themselves; the curve goes further."""
LEARNING = 1 << 16
"""Accounts of the training figure: a rollout of 16 steps of 1,004 numbers takes 4.3 GB, and about
four times that while it is learned from."""
POWERS = range(6, 21, 2)

KINDS: dict[str, dict[str, Any]] = {
    "flat_float32": {},
    "flat_bfloat16": {"observation_dtype": "bfloat16"},
    "factored": {"observation": "factored"},
}


def wait(device: torch.device) -> None:
    """Until the device has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rate(run: Callable[[int], int], steps: int, device: torch.device, rounds: int = 5) -> float:
    """Account steps a second, best of `rounds`."""
    run(3)
    best = 0.0
    for _ in range(rounds):
        wait(device)
        start = time.perf_counter()
        done = run(steps)
        wait(device)
        best = max(best, done / (time.perf_counter() - start))
    return best


def make_env(
    market: MarketTensors, accounts: int, device: torch.device, **changes: Any
) -> TradingEnv:
    """Buffers are reused, so that a step is one graph."""
    env = TradingEnv(
        market,
        EnvSettings(episode_bars=1000, **changes),
        num_envs=accounts,
        device=device,
        copy=False,
    )
    env.reset(seed=0)
    return env


def stepping(env: TradingEnv) -> Callable[[int], int]:
    """Random actions."""
    actions = [
        torch.rand(env.num_envs, env.layout.num_assets, device=env.device) * 2 - 1 for _ in range(2)
    ]
    return _env_peers.stepping(env, actions, env.num_envs)


def deciding(env: TradingEnv) -> Callable[[int], int]:
    """A 128-128 tanh network in bfloat16 decides, on flat bfloat16 observations."""
    width = env.layout.width
    assets = env.layout.num_assets
    policy = torch.nn.Sequential(
        torch.nn.Linear(width, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, assets),
        torch.nn.Tanh(),
    ).to(env.device, torch.bfloat16)
    obs, _ = env.reset(seed=0)
    state = {"obs": obs}

    @torch.no_grad()
    def run(steps: int) -> int:
        for _ in range(steps):
            state["obs"], *_ = env.step(policy(state["obs"]))
        return steps * env.num_envs

    return run


def deciding_factored(env: TradingEnv) -> Callable[[int], int]:
    """The same network on factored observations: market rows are projected once, and gathered by
    the clock."""
    policy = torch.nn.Sequential(
        torch.nn.Linear(env.layout.width, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, env.layout.num_assets),
        torch.nn.Tanh(),
    ).to(env.device, torch.bfloat16)
    policy[0] = FactoredLinear(policy[0], env.market_rows)
    obs, _ = env.reset(seed=0)
    state = {"obs": obs}

    @torch.no_grad()
    def run(steps: int) -> int:
        policy.eval()  # as after every update: the rows are projected anew
        for _ in range(steps):
            state["obs"], *_ = env.step(policy(state["obs"]))
        return steps * env.num_envs

    return run


def training(
    market: MarketTensors, accounts: int, device: torch.device, updates: int = 8
) -> dict[str, float]:
    """PPO with its defaults but for an MLP of 256 x 256, updates included: account steps a second,
    best update.

    Matrix products are in TF32 where the device has it. The observations are copies: PPO keeps each
    until the step after it was taken.
    """
    settings = PPO(network=NetworkSettings(kind="mlp", hidden=(256, 256)))
    env = TradingEnv(market, EnvSettings(episode_bars=1000), num_envs=accounts, device=device)
    agent = make_agent(settings, env.layout, device=device, seed=0)
    ends: list[float] = []

    def note(progress: TrainProgress) -> None:
        wait(device)
        ends.append(time.perf_counter())

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        # The first two updates compile and allocate.
        train(
            agent,
            env,
            Budget(env_steps=(updates + 2) * settings.num_steps * accounts),
            on_progress=note,
        )
    finally:
        torch.set_float32_matmul_precision(before)
    seconds = [later - earlier for earlier, later in pairwise(ends[1:])]
    steps = settings.num_steps * accounts
    return {
        "training_steps_per_second": steps / min(seconds),
        "training_mean_steps_per_second": steps * len(seconds) / sum(seconds),
        "training_accounts": accounts,
    }


def copy_bytes_per_second(device: torch.device, size: int = 1 << 30) -> float:
    """Bytes read and written by a copy of `size` bytes."""
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))

    def run(steps: int) -> int:
        for _ in range(steps):
            target.copy_(source)
        return 2 * size * steps

    return rate(run, 10, device)


def measure(market: MarketTensors, device: torch.device, largest: int = LARGEST) -> dict[str, Any]:
    """All figures; rates are account steps a second, memory is in GiB."""
    figures: dict[str, Any] = {
        "accounts": largest,
        "copy_gb_per_second": copy_bytes_per_second(device) / 1e9,
    }
    market = market.to(device)
    assets = market.num_assets
    row = market.num_assets * (market.num_features + 1)
    for name, changes in KINDS.items():
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        env = make_env(market, largest, device, **changes)
        figures["engine"] = type(env._fused).__name__ if env._fused is not None else "torch"
        figures[f"{name}_steps_per_second"] = rate(stepping(env), 50, device)
        # Read: the market's row, three rows of prices, shares and action (twice: the graph keeps a
        # copy of it). Written: the observation, the shares and that copy.
        size = 2 if name == "flat_bfloat16" else 4
        market_bytes = 0 if name == "factored" else 2 * size * row
        moved = market_bytes + size * (4 + assets) + 4 * assets * (3 + 1 + 2 + 1 + 1)
        figures[f"{name}_roofline_steps_per_second"] = figures["copy_gb_per_second"] * 1e9 / moved
        if device.type == "cuda":
            figures[f"{name}_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
        del env
    flat = make_env(market, largest, device, observation_dtype="bfloat16")
    figures["env_and_policy_steps_per_second"] = rate(deciding(flat), 20, device)
    del flat
    factored = make_env(market, largest, device, observation="factored")
    figures["env_and_policy_factored_steps_per_second"] = rate(
        deciding_factored(factored), 20, device
    )
    del factored
    figures |= training(market, min(LEARNING, largest), device)
    figures["curve_steps_per_second"] = {
        name: {
            str(1 << power): rate(
                stepping(make_env(market, 1 << power, device, **changes)),
                1000 if power < 16 else 20,
                device,
                3,
            )
            for power in POWERS
            if 1 << power <= 4 * largest
        }
        for name, changes in KINDS.items()
    }
    return figures
