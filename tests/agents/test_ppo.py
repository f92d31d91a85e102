"""PPO against known answers: its objective by hand, constant rewards, an identity task, a rising asset."""

from __future__ import annotations

import pytest
import torch

from fintrader.agents import PPO, ActionHeadSettings, Budget, NetworkSettings, make_agent, train
from fintrader.agents.on_policy import gaussian_log_prob
from fintrader.agents.ppo import PPOAgent, ppo_objective
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.errors import ConfigError
from tests.agents.planted import planted_market
from tests.agents.tiny import ConstantReward, ConstantRewardEnding, Identity, TinyEnv


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(3.0, 1.0, 0.0), (3.0, -1.0, -1.0), (0.5, 1.0, 1.0), (0.5, -1.0, 0.0), (1.0, 2.0, 2.0)],
)
def test_gradient_of_the_clipped_objective(ratio: float, advantage: float, gradient: float) -> None:
    r = torch.tensor(ratio, requires_grad=True)
    ppo_objective(r, torch.tensor(advantage), 0.2).backward()
    assert r.grad is not None
    assert r.grad.item() == gradient


def test_log_density_is_that_of_torch() -> None:
    latent, mean, log_std = torch.randn(5, 3), torch.randn(5, 3), torch.randn(3)
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(latent).sum(-1)
    torch.testing.assert_close(gaussian_log_prob(latent, mean, log_std), expected)


def learned_value(env: TinyEnv) -> float:
    settings = PPO(
        gamma=0.9,
        update_epochs=4,
        num_minibatches=4,
        learning_rate=0.01,
        normalise_rewards=False,
        network=NetworkSettings(hidden=(8,)),
    )
    agent = make_agent(settings, env.layout, seed=1)
    train(agent, env, Budget(env_steps=24_000))
    assert isinstance(agent, PPOAgent)
    with torch.no_grad():
        return float(agent.critic(agent.normaliser(torch.zeros(1, env.width))))


def test_a_time_limit_is_no_end() -> None:
    # reward 1 for ever, γ = 0.9: V = 1 / (1 − 0.9) = 10, whatever clock cuts the episodes
    assert learned_value(ConstantReward()) == pytest.approx(10.0, rel=0.05)


def test_a_time_limit_taken_for_an_end_gives_another_value() -> None:
    # eight steps, seen at a random one of them: mean over k of (1 − 0.9^k) / 0.1 = 3.6
    assert learned_value(ConstantRewardEnding()) == pytest.approx(3.6, rel=0.15)


def test_learns_the_identity() -> None:
    env = Identity(seed=3)
    settings = PPO(
        gamma=0.0,
        num_steps=32,
        update_epochs=4,
        num_minibatches=4,
        noise=0.3,
        learn_noise=True,
        network=NetworkSettings(hidden=(32,)),
    )
    agent = make_agent(settings, env.layout, seed=0)
    train(agent, env, Budget(env_steps=40_000))
    shown = torch.linspace(-0.8, 0.8, 9).unsqueeze(1).expand(-1, 2)
    with torch.no_grad():
        assert float((agent.policy(shown) - shown).abs().mean()) < 0.12


def test_finds_the_asset_that_always_rises() -> None:
    market = planted_market(600, 2, drift=1e-3, volatility=5e-4, regime_bars=10**9, noise_features=0, seed=0)
    rising = [n for n in range(2) if market.close[-1, n] > market.close[0, n]]
    assert len(rising) == 1  # the seed gives one of each
    env = TradingEnv(market, EnvSettings(num_envs=16, episode_bars=60, fractional=True), seed=0)
    agent = make_agent(PPO(num_steps=32), env.layout, seed=0)
    train(agent, env, Budget(env_steps=20_000))
    obs, _ = env.reset(seed=9)
    with torch.no_grad():
        for _ in range(30):
            obs, *_ = env.step(agent.policy(obs))
    held = obs[:, env.layout.slices["holdings"]].mean(dim=0)
    assert held[rising[0]] > 0.7
    assert held[1 - rising[0]] < 0.1


def test_same_seed_same_weights_and_another_seed_others() -> None:
    def weights(seed: int) -> torch.Tensor:
        env = Identity(seed=5)
        agent = make_agent(PPO(num_steps=8), env.layout, seed=seed)
        train(agent, env, Budget(env_steps=1000))
        return torch.cat([p.flatten() for p in agent.policy.parameters()]).detach()

    first = weights(1)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))


def test_initial_weights_leave_the_global_random_stream_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    make_agent(PPO(), Identity().layout, seed=4)
    assert torch.equal(torch.rand(1), expected)


def test_fixed_noise_stays_and_learned_noise_moves() -> None:
    for learn in (False, True):
        env = Identity(seed=5)
        agent = make_agent(PPO(num_steps=8, learn_noise=learn), env.layout, seed=0)
        assert isinstance(agent, PPOAgent)
        before = agent.noise["log_std"].detach().clone()
        train(agent, env, Budget(env_steps=500))
        assert torch.equal(before, agent.noise["log_std"]) is not learn


def test_target_kl_stops_the_passes() -> None:
    env = Identity(seed=5)
    moved = []
    for target in (1e-8, None):
        agent = make_agent(PPO(num_steps=8, target_kl=target), env.layout, seed=0)
        before = torch.cat([p.flatten() for p in agent.policy.parameters()]).detach().clone()
        train(agent, env, Budget(env_steps=128))
        after = torch.cat([p.flatten() for p in agent.policy.parameters()]).detach()
        moved.append(float((after - before).abs().sum()))
    assert moved[0] < moved[1]


def test_aim_actions_are_refused_by_a_trade_environment() -> None:
    env = TradingEnv(planted_market(100, 2), EnvSettings(num_envs=4, action="trade"))
    with pytest.raises(ConfigError, match=r"env\.action"):
        train(make_agent(PPO(), env.layout), env, Budget(env_steps=10))
    direct = PPO(num_steps=2, head=ActionHeadSettings(kind="direct"))
    assert train(make_agent(direct, env.layout), env, Budget(env_steps=16)).updates == 2


def test_more_minibatches_than_steps_is_refused() -> None:
    env = Identity(num_envs=1)
    with pytest.raises(ConfigError, match="num_minibatches"):
        train(make_agent(PPO(num_steps=1), env.layout), env, Budget(env_steps=10))


@pytest.mark.slow
def test_learns_a_planted_drift_at_twenty_basis_points() -> None:
    market = planted_market(9000, seed=0)
    train_market, unseen = market.window(0, 6000), market.window(6000, 9000)
    settings = EnvSettings(num_envs=64, episode_bars=390, decision_interval=5, cost_bps=20)
    env = TradingEnv(train_market, settings, seed=1)
    agent = make_agent(PPO(), env.layout, seed=1)
    train(agent, env, Budget(env_steps=100_000))

    @torch.no_grad()
    def log_return(policy: object) -> float:
        account = TradingEnv.evaluation(unseen, settings, record=False)
        obs, _ = account.reset()
        over = False
        while not over:
            obs, _, terminated, truncated, _ = account.step(policy(obs))  # type: ignore[operator]
            over = bool((terminated | truncated).all())
        return float(torch.log(account.equity / settings.initial_cash_usd))

    def greedy(obs: torch.Tensor) -> torch.Tensor:
        return (env.layout.split(obs)["features"][..., 0] > 0).float()

    equal = log_return(lambda obs: torch.full((1, 8), 0.125))
    best = log_return(greedy)
    reached = log_return(agent.policy)
    assert best > 0.2
    assert reached > equal
    assert reached > 0.3 * best
