"""What a GPU makes of the environment and of training.

    python -m benchmarks.gpu [--rounds 3] [--seconds 0.3] [--save]

Everything waits for the device before a clock is read. Buffers are reused, so that a step of the
environment is one CUDA graph. Market and settings are those of env.py: 100 stocks, 8 features,
episodes of 1,000 bars.

- `copy_gb_per_second`: speed at which torch copies a block of observations, each byte read and
  written.
- `env`: account decisions a second by kind of observation and number of accounts, random actions;
  `env_and_policy` with a 128-128 network that decides.
- `training`: algorithms at their defaults. `rate`: environment steps a second of whole updates,
  best round; `memory_gib`: peak. Of those that learn from rollouts also `launches` of kernels and
  graphs, and `waits` of the host, in one update; `busy`: share of the time in which a kernel runs.
- `drift`: distance of two equal trainings by the distance that they moved: sums run in any order.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector
from torch.profiler import ProfilerActivity, profile

from benchmarks._bench import Figures, Run, alternate, finish, read_arguments
from benchmarks.env import ASSETS, WIDTH, copy_rows, make_env, make_market, run_policy, run_random
from benchmarks.training import run_ours
from fintrader.agents import A2C, APG, PPO, SAC, TD3
from fintrader.market.tensors import MarketTensors

KINDS = {
    "flat_float32": {},
    "flat_bfloat16": {"observation_dtype": "bfloat16"},
    "factored": {"observation": "factored"},
}
SIZES = tuple(1 << power for power in (6, 10, 14, 18, 20))
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset")
REPLAY = {"learning_starts": 1024, "buffer_size": 1 << 15}
TRAININGS = {
    "ppo": (PPO(), (256, 4096, 16384, 65536)),
    "ppo_mlp": (PPO.model_validate({"network": {"kind": "mlp"}}), (4096,)),
    "a2c": (A2C(), (4096,)),
    "apg": (APG(), (1024,)),
    "sac": (SAC.model_validate(REPLAY), (1024,)),
    "td3": (TD3.model_validate(REPLAY), (1024,)),
}


def read_clock() -> float:
    """Read the time when the device has done everything."""
    torch.cuda.synchronize()
    return time.perf_counter()


def measure_env(market: MarketTensors, turns: Any) -> Figures:
    """The environment's rates."""
    figures = Figures()
    for kind, changes in KINDS.items():
        torch.cuda.reset_peak_memory_stats()
        for accounts in SIZES:
            env = make_env(market, accounts, "cuda", **changes)
            rates = turns({"env": run_random(env)})
            if accounts == SIZES[-2]:
                rates |= turns({"env_and_policy": run_policy(env)})
            figures.add_rates(rates, f"{{}}_{kind}_{accounts}_steps_per_second")
        figures[f"{kind}_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return figures


def count_calls(update: Run, updates: int) -> tuple[float, float, float]:
    """Launches, waits and kernel seconds of some updates."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        update(updates)
        torch.cuda.synchronize()
    launches = waits = busy = 0.0
    for event in profiled.key_averages():
        name = event.key
        launches += event.count * name.startswith(LAUNCHES)
        waits += event.count * name.endswith("Synchronize")
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            busy += event.self_device_time_total / 1e6
    return launches, waits, busy


def measure_training(market: MarketTensors, settings: Any, accounts: int, turns: Any) -> Figures:
    """One training's figures."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    _, update = run_ours(market, settings, accounts, 0)
    rate = max(turns({"train": update})["train"])
    memory = torch.cuda.max_memory_allocated() / 2**30
    figures = Figures(rate=rate, memory_gib=memory)
    if hasattr(settings, "num_steps"):
        # The difference of two updates and one: a call of `train` has its own launches.
        one, two = count_calls(update, 1), count_calls(update, 2)
        launches, waits, busy = (b - a for a, b in zip(one, two, strict=True))
        figures |= {"launches": launches, "waits": waits, "busy": busy * rate / update(1)}
    return figures


def measure_drift(market: MarketTensors) -> float:
    """Distance of two equal trainings by the distance that they moved."""
    ends = []
    for _ in range(2):
        agent, update = run_ours(market, PPO(), 4096, 0)
        start = parameters_to_vector(agent.modules.parameters()).detach().clone()
        update(10)
        ends.append(parameters_to_vector(agent.modules.parameters()).detach())
    return float(torch.dist(*ends) / torch.dist(ends[0], start))


def main() -> None:
    """Measure and print."""
    options = read_arguments(__doc__, seed=0, rounds=3, seconds=0.3)
    torch.manual_seed(options.seed)
    turns = partial(alternate, rounds=options.rounds, seconds=options.seconds, clock=read_clock)
    market = make_market(ASSETS, seed=options.seed).to("cuda")
    training = {}
    for name, (settings, sizes) in TRAININGS.items():
        for accounts in sizes:
            training[f"{name}_{accounts}"] = measure_training(market, settings, accounts, turns)
            print(name, accounts, training[f"{name}_{accounts}"])
    copied = max(turns({"copy": copy_rows(1 << 18, "cuda")})["copy"])
    figures = Figures(training=training, drift=measure_drift(market))
    figures["copy_gb_per_second"] = 2 * 4 * WIDTH * copied / 1e9
    figures["env"] = measure_env(market, turns)
    finish("gpu", figures, options)


if __name__ == "__main__":
    main()
