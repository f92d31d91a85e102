"""Isaac Gym's contract: tensors without copies, exact bootstrapping at time limits, seeds, ends."""

import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.isaac import IsaacVecEnv, RslRlEnv
from fintrader.errors import EnvError
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value
from tests.factories import make_market

SETTINGS = EnvSettings(episode_bars=6, decision_interval=2)


def make(seed=3, **options):
    return IsaacVecEnv(TradingEnv(make_market(90, 3), SETTINGS, num_envs=5, seed=seed, **options))


def roll(env, steps=9):
    draw = torch.Generator().manual_seed(0)
    return [
        env.step(torch.rand(env.num_envs, env.action_dim, generator=draw)) for _ in range(steps)
    ]


def test_it_is_the_environment_under_other_names():
    env, twin = make(), TradingEnv(make_market(90, 3), SETTINGS, num_envs=5, seed=3)
    assert torch.equal(env.get_observations(), twin.reset()[0])
    assert (env.max_step, env.state_dim, env.num_actions) == (3, twin.layout.width, 3)
    draw = torch.Generator().manual_seed(0)
    for obs, reward, done, extras in roll(env):
        after, paid, terminated, truncated, _ = twin.step(torch.rand(5, 3, generator=draw))
        assert torch.equal(obs, after)
        assert torch.equal(reward, paid)
        assert torch.equal(done, terminated | truncated)
        assert torch.equal(extras["time_outs"], truncated)
    # A later reset is not one: accounts are reset one by one as they end.
    assert torch.equal(env.reset(), after)


def test_equal_seeds_give_equal_episodes_and_others_do_not():
    first, second, other = (make(seed) for seed in (3, 3, 4))
    starts = [env.reset() for env in (first, second, other)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    for one, two in zip(roll(first), roll(second), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], two[:3], strict=True))


def test_lengths_of_episodes_are_counted_and_cannot_be_set():
    env = make()
    env.reset()
    done = torch.stack([step[2] for step in roll(env, 7)])
    assert done.sum(0).tolist() == [2] * 5
    assert env.episode_length_buf.tolist() == [1] * 5
    with pytest.raises(AttributeError):
        env.episode_length_buf = torch.zeros(5)


@pytest.mark.parametrize("bootstraps", [True, False])
def test_bootstrapping_makes_every_temporal_difference_zero(bootstraps):
    """In a market whose values are known, with cuts and ruins."""
    env = IsaacVecEnv(TradingEnv(oracle_market(), oracle_settings(), num_envs=16, seed=3))
    if bootstraps:
        env.bootstrap_with(lambda obs: value(obs).unsqueeze(1), GAMMA)
    obs = env.reset()
    errors, cuts = [], 0
    for _ in range(60):
        after, reward, done, extras = env.step(torch.rand(16, 2) * 2 - 1)
        errors.append((reward + GAMMA * value(after) * ~done - value(obs)).abs())
        obs = after
        assert ("time_outs" in extras) != bootstraps
        cuts += int(done.sum())
    assert cuts > 100
    assert bool(torch.stack(errors).max() < 1e-4) == bootstraps


def test_only_the_mode_that_resets_at_once_is_taken():
    with pytest.raises(EnvError, match="SAME_STEP"):
        make(autoreset_mode=AutoresetMode.NEXT_STEP)


def test_rsl_rls_returns_equal_the_known_value():
    """Its own PPO, storage and advantages, with the oracle in place of its critic's value."""
    runners = pytest.importorskip("rsl_rl.runners", reason="rsl_rl is not installed")
    env = RslRlEnv(TradingEnv(oracle_market(), oracle_settings(), num_envs=8, seed=3))
    noise = {"class_name": "GaussianDistribution", "init_std": 0.5}
    actor = {"class_name": "MLPModel", "hidden_dims": [8], "distribution_cfg": noise}
    critic = {"class_name": "MLPModel", "hidden_dims": [8]}
    groups = {"actor": ["policy"], "critic": ["policy"]}
    config = {"num_steps_per_env": 32, "save_interval": 100, "obs_groups": groups}
    config |= {"actor": actor, "critic": critic}
    config["algorithm"] = {"class_name": "PPO", "gamma": GAMMA, "lam": 0.95}
    ppo = runners.OnPolicyRunner(env, config).alg
    ppo.critic.forward = lambda obs, **_: value(obs["policy"]).unsqueeze(1)
    env.bootstrap_with(lambda obs: ppo.critic(env.pack(obs)), GAMMA)
    obs = env.get_observations()
    with torch.no_grad():
        for _ in range(32):
            obs, *outcome = env.step(ppo.act(obs))
            ppo.process_env_step(obs, *outcome)
        ppo.compute_returns(obs)
    storage = ppo.storage
    assert storage.dones.sum() > 30
    expected = value(storage.observations["policy"]).unsqueeze(-1)
    torch.testing.assert_close(storage.returns, expected, atol=2e-3, rtol=0.0)
