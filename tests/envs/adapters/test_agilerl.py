"""AgileRL: the targets of what its training stores, and the actions that it sends."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value

pytest.importorskip("agilerl", reason="agilerl is not installed")

from agilerl.algorithms import TD3
from agilerl.components import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy

NOISE = {"O_U_noise": False, "expl_noise": 1.0}  # little noise never ends in ruin


def collect(mode):
    """Train for some steps: what was stored `[T, B]`, and what the environment got and gave."""
    inner = TradingEnv(oracle_market(), oracle_settings(), num_envs=8, seed=3, autoreset_mode=mode)
    env = NumpyVectorEnv(inner)
    seen, step = [], env.step
    env.step = lambda actions: seen.append((actions, *step(actions))) or seen[-1][1:]
    agent = TD3(
        env.single_observation_space,
        env.single_action_space,
        vect_noise_dim=8,
        gamma=GAMMA,
        **NOISE,
    )
    memory = ReplayBuffer(max_size=10_000)
    limits = {"max_steps": 2048, "evo_steps": 2048, "eval_steps": 5, "verbose": False}
    limits["learning_delay"] = 10_000  # a policy that learns avoids ruin
    train_off_policy(env, "oracle", "TD3", [agent], memory, **limits)
    names = ("obs", "action", "reward", "next_obs", "done")
    stored = {name: memory._storage[name][: len(memory)].unflatten(0, (-1, 8)) for name in names}
    return agent, stored, seen[: len(stored["obs"])]


def measure_errors(stored):
    """r + gamma V(next) - V, as TD3 computes the target, `[T, B]`."""
    done = stored["done"].squeeze(-1).bool()
    ahead = torch.where(done, 0.0, value(stored["next_obs"]))
    return stored["reward"].squeeze(-1) + GAMMA * ahead - value(stored["obs"])


def test_targets_hold_at_time_limits_and_ruins_but_not_in_steps_that_only_reset():
    agent, stored, seen = collect(AutoresetMode.NEXT_STEP)
    ended = torch.as_tensor(np.stack([step[3] | step[4] for step in seen]))
    assert torch.as_tensor(np.stack([step[4] for step in seen])).sum() > 50
    assert stored["done"].any()
    errors = measure_errors(stored)
    resets = torch.zeros_like(ended)
    resets[1:] = ended[:-1]
    torch.testing.assert_close(errors[~resets], 0.0 * errors[~resets], atol=2e-3, rtol=0.0)
    # Such a step goes from the last observation to the next episode's first one, whose V is 10.
    wrong = 10.0 * GAMMA - value(stored["obs"])[resets]
    torch.testing.assert_close(errors[resets], wrong, atol=2e-3, rtol=0.0)
    # Noise is clipped, and nothing is scaled.
    sent = torch.as_tensor(np.stack([step[0] for step in seen]))
    torch.testing.assert_close(sent, stored["action"], check_dtype=False)
    assert sent.abs().max() <= 1.0
    obs = stored["obs"][0]
    with torch.no_grad():
        mean = agent.actor(obs)
    np.testing.assert_allclose(agent.get_action(obs.numpy(), training=False), mean, atol=1e-6)


def test_the_mode_that_resets_at_once_would_lose_the_last_observations():
    """It takes the next episode's first observation for what followed: hence NEXT_STEP."""
    _, stored, seen = collect(AutoresetMode.SAME_STEP)
    cut = torch.as_tensor(np.stack([step[4] for step in seen]))
    final = value(torch.as_tensor(np.stack([step[5]["final_obs"] for step in seen])))
    wrong = torch.where(cut, GAMMA * (10.0 - final), 0.0)
    torch.testing.assert_close(measure_errors(stored), wrong, atol=2e-3, rtol=0.0)
    assert wrong.abs().max() > 0.1
