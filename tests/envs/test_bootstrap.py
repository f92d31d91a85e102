"""The oracle MDP under each autoreset mode: what the environment returns allows exact
bootstrapping."""

import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import TradingEnv
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value


def temporal_differences(mode, *, mistake=None):
    """r + gamma V(s') - V(s) of every real transition, and how many were cut and ruined."""
    env = TradingEnv(oracle_market(), oracle_settings(), num_envs=16, autoreset_mode=mode, seed=2)
    obs, _ = env.reset()
    begins = torch.zeros(16, dtype=torch.bool)  # NEXT_STEP: this step only begins the next episode
    errors = []
    cuts = 0
    ruins = 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        following, reward, terminated, truncated, info = env.step(
            torch.rand(16, 2, generator=generator)
        )
        successor = following
        if mode is AutoresetMode.SAME_STEP and mistake != "reset_obs":
            successor = torch.where(info["_final_obs"].unsqueeze(1), info["final_obs"], following)
        end = terminated | truncated if mistake == "cut_is_end" else terminated
        if mistake == "end_is_cut":
            end = torch.zeros_like(end)
        error = reward + GAMMA * value(successor) * ~end - value(obs)
        errors.append(error[~begins])
        cuts = cuts + int(truncated.sum())
        ruins = ruins + int(terminated.sum())
        done = terminated | truncated
        if mode is AutoresetMode.NEXT_STEP:
            begins = done
        if mode is AutoresetMode.DISABLED and bool(done.any()):
            following, _ = env.reset(options={"reset_mask": done})
        obs = following
    return torch.cat(errors), cuts, ruins


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_temporal_difference_is_zero(mode):
    errors, cuts, ruins = temporal_differences(mode)
    assert cuts > 50
    assert ruins > 5
    assert float(errors.abs().max()) < 1e-4


@pytest.mark.parametrize("mistake", ["reset_obs", "cut_is_end", "end_is_cut"])
def test_the_oracle_sees_each_mistake(mistake):
    errors, *_ = temporal_differences(AutoresetMode.SAME_STEP, mistake=mistake)
    assert float(errors.abs().max()) > 0.5
