"""RLlib's PPO for `paper_rows.py`, in an interpreter with RLlib's own gymnasium: trainings in turn,
their leader by validation, and its test after each slice. Prints one line of JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env
from torch import Tensor

from fintrader.backtesting import simulate
from fintrader.envs.adapters.rllib import rllib_env
from fintrader.envs.settings import EnvSettings
from fintrader.market.tensors import MarketTensors
from fintrader.results.formatting import PAPER_COLUMNS

STEPS = 16
"""Decisions of each account between two updates."""


def build(market: str, settings: EnvSettings, asked: dict[str, Any], rate: float) -> Any:
    """A training on the accounts of the environment, in this process."""
    world = {
        "market": market,
        "settings": settings.model_dump(mode="json"),
        "seed": asked["seed"],
    }
    batch = settings.num_envs * STEPS
    config = (
        PPOConfig()
        .environment("fintrader", env_config=world)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=settings.num_envs,
            gym_env_vectorize_mode="vector_entry_point",
            rollout_fragment_length=STEPS,
        )
        .learners(num_learners=0)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .training(
            lr=rate,
            gamma=asked["gamma"],
            lambda_=0.95,
            clip_param=0.2,
            grad_clip=0.5,
            train_batch_size_per_learner=batch,
            minibatch_size=batch // 2,
            num_epochs=3,
            use_kl_loss=False,
        )
        .debugging(seed=asked["seed"], log_level="ERROR")
    )
    return config.build_algo()


def copy_policy(algo: Any, actions: int) -> Any:
    """The mean of the present action distribution, as a policy."""
    module = algo.get_module()
    state = {name: part.clone() for name, part in module.state_dict().items()}

    @torch.no_grad()
    def act(obs: Tensor) -> Tensor:
        present = {name: part.clone() for name, part in module.state_dict().items()}
        module.load_state_dict(state)
        latents = module.forward_inference({"obs": obs})["action_dist_inputs"]
        module.load_state_dict(present)
        return latents[:, :actions]

    return act


def main() -> None:
    """Train as asked for, in slices of equal CPU time, one training after another."""
    asked = json.loads(sys.argv[1])
    settings = EnvSettings(**asked["settings"])
    windows = MarketTensors.load(Path(asked["market"])).split()
    actions = windows.train.num_assets
    ray.init(address="local", include_dashboard=False, num_cpus=1, log_to_driver=False)
    register_env("fintrader", rllib_env)
    leaders: list[dict[str, Any]] = []
    best: tuple[float, Any] | None = None
    spent = 0.0
    with tempfile.TemporaryDirectory(prefix="rllib-") as home:
        path = str(Path(home) / "train.safetensors")
        windows.train.save(path)
        algos = [build(path, settings, asked, rate) for rate in asked["learning_rates"]]
        part = asked["seconds"] / (asked["slices"] * len(algos))
        steps = 0
        for number in range(asked["slices"] * len(algos)):
            if spent >= asked["seconds"]:
                break
            algo = algos[number % len(algos)]
            began = time.process_time()
            while time.process_time() - began < part:
                algo.train()
                steps += settings.num_envs * STEPS
            policy = copy_policy(algo, actions)
            seen = simulate(policy, windows.validation, settings)
            spent += time.process_time() - began
            score = float(seen.equity[-1] / seen.equity[0])
            if best is None or score > best[0]:
                best = (score, policy)
                test = simulate(policy, windows.test, settings)
            growth = round(float(test.equity[-1] / test.equity[0]), 5)
            leaders.append({"cpu_seconds": round(spent, 1), "growth": growth})
    found = test.metrics.by_key()
    print(
        json.dumps(
            {
                "cpu_seconds": round(spent, 1),
                "env_steps": steps,
                "leaders": leaders,
                "test": {key: found[key] for key, _ in PAPER_COLUMNS},
            }
        )
    )


if __name__ == "__main__":
    main()
