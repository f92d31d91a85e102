"""Isaac Gym's contract: tensors without copies, exact bootstrapping at time limits, seeds, ends."""

from pathlib import Path

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
    with pytest.raises(EnvError, match="SameStep"):
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


def watch(env):
    """Collect the actions that reach the environment, with all that it returns."""
    seen, step = [], env.env.step
    env.env.step = lambda actions: seen.append((actions, *step(actions))) or seen[-1][1:]
    return seen


def stack_ends(seen):
    """Truncated and final value of every step, `[T, B]`."""
    truncated = torch.stack([step[4] for step in seen])
    final = value(torch.stack([step[5]["final_obs"] for step in seen]))
    assert truncated.sum() > 30
    assert torch.stack([step[3] for step in seen]).any()  # ruins
    return truncated, torch.where(truncated, final, 0.0)


def make_rl_games_agent(env, scale, decay):
    """rl_games' PPO with the oracle in place of its critic, at the first observations."""
    pytest.importorskip("rl_games", reason="rl_games is not installed")
    import rl_games
    import yaml
    from rl_games.common import env_configurations, ivecenv, vecenv
    from rl_games.torch_runner import Runner

    world = type("Env", (IsaacVecEnv, ivecenv.IVecEnv), {})(env.env)
    vecenv.register("oracle", lambda *names, **options: world)
    env_configurations.register("oracle", {"vecenv_type": "oracle"})
    config = yaml.safe_load(
        (Path(rl_games.__path__[0]) / "configs/ppo_continuous.yaml").read_text()
    )
    config["params"]["torch_threads"] = 1
    config["params"]["config"] |= {"env_name": "oracle", "horizon_length": 32, "device": "cpu"}
    config["params"]["config"] |= {"minibatch_size": 128, "num_actors": env.num_envs}
    config["params"]["config"] |= {"gamma": GAMMA, "tau": decay, "env_config": {}}
    config["params"]["config"]["reward_shaper"] = {"scale_value": scale}
    runner = Runner()
    runner.load(config)
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    act = agent.get_action_values
    agent.get_values = lambda obs: scale * value(obs["obs"]).unsqueeze(1)
    agent.get_action_values = lambda obs: act(obs) | {"values": agent.get_values(obs)}
    agent.init_tensors()
    agent.obs = agent.env_reset()
    return agent, world


@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("bootstraps", [True, False])
def test_rl_gamess_returns(bootstraps, scale, tmp_path, monkeypatch):
    """With the wrapper's bootstrap the known value, whatever its shaper multiplies rewards by.
    Without, it adds gamma V of the state before the cut: wrong by gamma (V(s) - V(final))."""
    monkeypatch.chdir(tmp_path)  # it writes a folder `runs`
    env = IsaacVecEnv(TradingEnv(oracle_market(), oracle_settings(), num_envs=16, seed=3))
    agent, world = make_rl_games_agent(env, scale, 0.95 if bootstraps else 0.0)
    seen = watch(world)
    if bootstraps:
        world.bootstrap_with(lambda obs: agent.get_values({"obs": obs}) / scale, GAMMA)
    with torch.no_grad():
        batch = agent.play_steps()
    truncated, final = stack_ends(seen)
    by_time = {
        name: batch[name].unflatten(0, (16, 32)).transpose(0, 1)
        for name in batch.keys() & {"returns", "obses", "actions"}
    }
    known = value(by_time["obses"])
    wrong = torch.where(truncated, GAMMA * (known - final), 0.0)
    found = by_time["returns"].squeeze(-1) / scale - known
    torch.testing.assert_close(found, 0.0 * wrong if bootstraps else wrong, atol=2e-3, rtol=0.0)
    assert wrong.abs().max() > 0.1
    # Gaussian samples, clipped, and nothing else.
    sent = torch.stack([step[0] for step in seen])
    torch.testing.assert_close(sent, by_time["actions"].clamp(-1, 1))
    assert sent.abs().max() == 1.0


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("bootstraps", [True, False])
def test_elegantrls_advantages(bootstraps, scale):
    """With the wrapper's bootstrap zero, as the critic knows all. Without, it takes the time limit
    for an end: wrong by gamma V(final)."""
    module = pytest.importorskip("elegantrl.agents.AgentPPO", reason="elegantrl is not installed")
    from elegantrl.train.config import Config

    env = IsaacVecEnv(TradingEnv(oracle_market(), oracle_settings(), num_envs=16, seed=3))
    seen = watch(env)
    names = ("env_name", "num_envs", "max_step", "state_dim", "action_dim", "if_discrete")
    config = Config(module.AgentPPO, None, {name: getattr(env, name) for name in names})
    config.gamma, config.reward_scale = GAMMA, scale
    config.lambda_gae_adv = 0.95 if bootstraps else 0.0
    agent = module.AgentPPO([8], env.state_dim, env.action_dim, gpu_id=-1, args=config)
    agent.cri = lambda obs: scale * value(obs)
    if bootstraps:
        env.bootstrap_with(lambda obs: agent.cri(obs) / scale, GAMMA)
    agent.last_state = env.reset()
    with torch.no_grad():
        states, actions, _, rewards, undones = agent.explore_env(env, 32)
        found = agent.get_advantages_origin(rewards, undones, agent.cri(states))
    final = stack_ends(seen)[1]
    wrong = -GAMMA * scale * final
    torch.testing.assert_close(found, 0.0 * wrong if bootstraps else wrong, atol=2e-3, rtol=0.0)
    # It squashes its samples, and its policy squashes their mean.
    torch.testing.assert_close(torch.stack([step[0] for step in seen]), actions.tanh())
    torch.testing.assert_close(agent.act(states[0]), agent.act.net(states[0]).tanh())
