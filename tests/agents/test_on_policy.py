from itertools import pairwise

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from fintrader import train
from fintrader.agents import A2C, make_agent, on_policy
from fintrader.agents.buffers import Transition
from fintrader.agents.normalisation import Batch
from fintrader.agents.on_policy import Rollout, subtract_group_baseline
from fintrader.agents.training import as_tensor
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.errors import ConfigError
from tests.engines.tiny import agent_settings
from tests.factories import make_market
from tests.quick import slow_but


def test_advantages_are_judged_against_the_others_at_the_bar():
    place = torch.tensor([2, 0, 2, 5, 2, 0, 7])
    advantage = torch.randn(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    judged = subtract_group_baseline(advantage, place, 8)
    for row in range(7):
        others = [float(advantage[k]) for k in range(7) if k != row and place[k] == place[row]]
        expected = float(advantage[row]) - (sum(others) / len(others) if others else 0.0)
        assert judged[row].item() == pytest.approx(expected)
    for bar in (0, 2):
        assert judged[place == bar].mean().item() == pytest.approx(0)
    assert torch.equal(judged[[3, 6]], advantage[[3, 6]])  # alone at their bars


@pytest.mark.parametrize("features", [2, 0])  # without features a row has one column
@pytest.mark.parametrize("baseline", [True, False])
def test_a_rollout_is_judged_by_its_bars_where_it_knows_them(baseline, features):
    """Rollouts of accounts in two groups: what all of a group gained alike tells nothing."""
    market = make_market(60, 3 if features else 1, features, gaps=bool(features))
    rules = EnvSettings(start_groups=2, episode_bars=30, benchmark="cash")
    env = TradingEnv(market, rules, num_envs=8)
    agent = make_agent(
        agent_settings("a2c", {"num_steps": 4, "group_baseline": baseline}), env.layout, seed=1
    )
    learned = []
    agent.learn = lambda rollout: learned.append(rollout) or {}
    env = agent.prepare_env(env)
    obs = as_tensor(env.reset(seed=1)[0])
    for _ in range(4):
        after, reward, terminated, truncated, _ = env.step(agent.act(obs))
        agent.observe(
            Transition(obs, reward, reward.float(), terminated, truncated, as_tensor(after))
        )
        obs = as_tensor(after)
    agent.update()
    place = learned[0].batch.row_index
    bars = place.unique()
    assert len(bars) == 8
    means = torch.stack([learned[0].advantage[place == bar].mean() for bar in bars])
    assert bool((means.abs() < 1e-4).all()) is baseline
    # The number of a bar is in no statistic, also where a row is as wide.
    private = agent.normaliser.private
    assert (agent.normaliser.mean[agent.normaliser.groups[private:]].abs() < 5).all()


def test_targets_go_on_from_where_each_step_truly_led():
    """Accounts whose episode ends go on from another observation than the final one."""
    layout = ObservationLayout(3, 2, 0)
    values = {"num_steps": 3, "group_baseline": False, "normalise": []}
    agent = make_agent(agent_settings("a2c", values), layout, seed=1)
    learned = []
    agent.learn = lambda rollout: learned.append(rollout) or {}
    draw = torch.Generator().manual_seed(0)
    wanted = []
    obs = torch.randn(2, layout.width, generator=draw)
    ends = [(True, False), (False, False), (False, True)]
    for over in ends:
        final, fresh = torch.randn(2, 2, layout.width, generator=draw)
        truncated = torch.tensor(over)
        reward = torch.randn(2, generator=draw)
        action = agent.act(obs)
        never = torch.zeros(2, dtype=torch.bool)
        agent.observe(Transition(obs, action, reward, never, truncated, final))
        with torch.no_grad():
            value, following = (agent.critic(agent.normalise(one)) for one in (obs, final))
        wanted.append((reward, value, following, truncated))
        obs = torch.where(truncated.unsqueeze(1), fresh, final)
    agent.update()
    found = learned[0].target.view(3, 2)
    gamma, gae_lambda = agent.settings.gamma, agent.settings.gae_lambda
    for account in range(2):
        trace = 0.0
        for t in (2, 1, 0):
            reward, value, following, truncated = (float(one[account]) for one in wanted[t])
            trace = (
                reward + gamma * following - value + gamma * gae_lambda * (1 - truncated) * trace
            )
            assert float(found[t, account]) == pytest.approx(trace + value, abs=1e-5)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize("kind", ["market_once", "mlp"])
def test_losses_in_pieces_are_the_loss(algo, kind, monkeypatch):
    """In float64, so that the order of sums does not show."""
    layout = ObservationLayout(5, 3, 2)
    results = []
    small = {"num_minibatches": 2, "update_epochs": 2} if algo == "ppo" else {}
    for rows_at_once in (1_000, 7):
        monkeypatch.setitem(on_policy.ROWS_AT_ONCE, "cpu", rows_at_once)
        values = {"network": {"kind": kind}, "noise_decay": "learned", "ent_coef": 0.1, **small}
        agent = make_agent(agent_settings(algo, values), layout, seed=1)
        agent.modules.double()
        draw = torch.Generator().manual_seed(3)

        def randn(*shape, draw=draw):
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        seen = Batch(
            randn(60, layout.private_width), randn(9, layout.market_width), torch.arange(60) % 9
        )
        metrics = agent.learn(
            Rollout(seen, randn(60, 6), randn(60, 6) * 0.1 - 1, randn(60), randn(60))
        )
        results.append({**metrics, **dict(agent.modules.named_parameters())})
    whole, pieces = results
    assert whole.keys() == pieces.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(pieces[name], tensor, atol=1e-9, rtol=1e-7, msg=name)


@pytest.mark.usefixtures("frequent_reports")
@pytest.mark.parametrize("kind", slow_but(0, 2, every=["market_once", "per_asset", "mlp"]))
@pytest.mark.parametrize("algo", ["a2c", "sac"])
def test_clocks_teach_what_rows_teach(algo, kind):
    """Two agents with equal experience, the one's flat, the other's clocked; accounts end and start
    anew in it."""
    env = TradingEnv(
        make_market(60, 3),
        EnvSettings(start_groups=3, episode_bars=7, observation="factored"),
        num_envs=6,
    )
    values = {"normalise": ["rewards"], "network": {"kind": kind, "hidden": [8, 8]}}
    if algo == "a2c":
        values |= {"num_steps": 12, "group_baseline": False}
    else:
        values |= {"learning_starts": 12, "batch_size": 16}
    flat, clocked = (make_agent(agent_settings(algo, values), env.layout, seed=1) for _ in range(2))
    first = parameters_to_vector(clocked.policy.parameters()).detach().clone()
    assert clocked.prepare_env(env) is env
    said = []
    obs = env.reset(seed=1)[0]
    for _ in range(12):
        shown = [as_tensor(obs), env.layout.assemble(obs["private"], env.market_rows[obs["clock"]])]
        actions = [agent.act(each) for agent, each in zip((clocked, flat), shown, strict=True)]
        torch.testing.assert_close(actions[0], actions[1], atol=1e-5, rtol=1e-4)
        obs, reward, terminated, truncated, info = env.step(actions[0])
        final = info["final_obs"]
        after = [
            as_tensor(final),
            env.layout.assemble(final["private"], env.market_rows[final["clock"]]),
        ]
        for agent, before, reached in zip((clocked, flat), shown, after, strict=True):
            agent.observe(Transition(before, actions[0], reward, terminated, truncated, reached))
        said = [agent.update() for agent in (clocked, flat)]
    assert said[0] == pytest.approx(said[1], abs=1e-4, rel=1e-3)
    weights = [parameters_to_vector(agent.policy.parameters()) for agent in (clocked, flat)]
    for one, other in pairwise(weights):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(weights[0], first, atol=1e-4)


def test_a_rollout_beyond_the_machines_memory_is_refused_in_words():
    env = TradingEnv(make_market(num_assets=3), EnvSettings(num_envs=4, episode_bars=20), seed=1)
    with pytest.raises(ConfigError, match="a rollout of 1,000,000,000,000 steps of 4 accounts"):
        train(A2C(num_steps=10**12), env, env_steps=64)
