"""Policies on the factored observation beside the same policy on the flat one, for
`benchmarks/env.py`.

A 128-128 tanh network on 100 stocks and 8 features, one thread. Flat and factored alternate within
one run; rates are samples a second of process CPU time, the best round of several counts. Every
variant has the same parameters and gives the same actions (`tests/envs/test_factored.py`).

- `inference`: a rollout of 16 steps of 4,096 accounts, then the weights count as changed. The flat
  policy is given observations that lie ready; the factored one projects the market's 4,096 rows
  anew in each rollout. With the environment's step, each side steps its own kind of environment.
- `training`: gather a minibatch of 4,096 samples from a stored rollout, forward, backward. `rows`
  of them are different bars, drawn from the ratio in the key. `factored` chooses by that ratio,
  `occurring` always projects the occurring rows, `gathered` never does: where the last two cross is
  `factored.WORTH_SORTING`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks._bench import Run, Values
from benchmarks._learning import make_network
from fintrader.envs import EnvSettings, FactoredLinear, TradingEnv, factored
from fintrader.market.tensors import MarketTensors

ACCOUNTS = 4096
STEPS = 16
SAMPLES = 4096
STORED = 16384
RATIOS = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1.0)
"""Different rows per sample of a minibatch."""

Turns = Callable[[dict[str, Run]], dict[str, list[float]]]
"""Lets runs alternate; samples a second of each, in every round."""


def run_rollouts(policy: nn.Sequential, obs: Any, env: TradingEnv | None) -> Run:
    """Rollouts of `STEPS` decisions, in `env` or on one observation; the weights may have changed
    before each."""
    state = {"obs": obs}

    @torch.no_grad()
    def run(rollouts: int) -> int:
        for _ in range(rollouts):
            policy.eval()
            for _ in range(STEPS):
                action = policy(state["obs"])
                if env is not None:
                    state["obs"], *_ = env.step(action)
        return rollouts * STEPS * ACCOUNTS

    return run


def run_learning(
    policy: nn.Sequential,
    stored: Tensor | Mapping[str, Tensor],
    worth: float = factored.WORTH_SORTING,
) -> Run:
    """Minibatches drawn from what is stored, forwards and backwards; rows are sorted out up to
    `worth` a sample."""
    policy.train()
    generator = torch.Generator().manual_seed(1)

    def run(steps: int) -> int:
        with patch.object(factored, "WORTH_SORTING", worth):
            for _ in range(steps):
                # Bars follow each other in turn, so that any SAMPLES neighbours hold all that are
                # wanted.
                first = int(torch.randint(STORED - SAMPLES, (1,), generator=generator))
                rows = first + torch.randperm(SAMPLES, generator=generator)
                batch = (
                    stored[rows]
                    if isinstance(stored, Tensor)
                    else {n: part[rows] for n, part in stored.items()}
                )
                policy.zero_grad(set_to_none=True)
                policy(batch).square().mean().backward()
        return steps * SAMPLES

    return run


def measure(market: MarketTensors, turns: Turns) -> Values:
    """Rates, and how many times faster factored is than flat."""

    def compare(runs: dict[str, Run]) -> tuple[dict[str, float], dict[str, float]]:
        rate = {name: max(values) for name, values in turns(runs).items()}
        return rate, {f"{name}_samples_per_second": value for name, value in rate.items()}

    settings = EnvSettings(episode_bars=1000)
    envs = {
        kind: TradingEnv(
            market, settings.model_copy(update={"observation": kind}), num_envs=ACCOUNTS
        )
        for kind in ("flat", "factored")
    }
    flat_obs, obs = (env.reset(seed=0)[0] for env in envs.values())
    rows_of_market = envs["factored"].market_rows
    flat = make_network(envs["flat"].layout.width, market.num_assets)
    policy = nn.Sequential(FactoredLinear(flat[0], rows_of_market), *flat[1:])
    rate, inference = compare(
        {
            "flat": run_rollouts(flat, flat_obs.clone(), None),
            "factored": run_rollouts(policy, {n: part.clone() for n, part in obs.items()}, None),
            "env_and_flat": run_rollouts(flat, flat_obs, envs["flat"]),
            "env_and_factored": run_rollouts(policy, obs, envs["factored"]),
        }
    )
    inference["factored_times_flat"] = rate["factored"] / rate["flat"]
    times = rate["env_and_factored"] / rate["env_and_flat"]
    inference["env_and_factored_times_env_and_flat"] = times
    training = {}
    for ratio in RATIOS:
        rows = int(ratio * SAMPLES)
        clock = torch.randperm(market.num_bars)[:rows].repeat(STORED // rows + 1)[:STORED]
        parts = {"private": torch.randn(STORED, envs["flat"].layout.private_width), "clock": clock}
        whole = envs["flat"].layout.assemble(parts["private"], rows_of_market[clock])
        rate, found = compare(
            {
                "flat": run_learning(flat, whole),
                "factored": run_learning(policy, parts),
                "occurring": run_learning(policy, parts, 1.0),
                "gathered": run_learning(policy, parts, 0.0),
            }
        )
        for name in ("factored", "occurring", "gathered"):
            found[f"{name}_times_flat"] = rate[name] / rate["flat"]
        training[f"{ratio:g}"] = {"rows": rows, **found}
    return {
        "accounts": ACCOUNTS,
        "rollout_steps": STEPS,
        "market_rows": market.num_bars,
        "minibatch_samples": SAMPLES,
        "worth_sorting": factored.WORTH_SORTING,
        "inference": inference,
        "training": training,
    }
