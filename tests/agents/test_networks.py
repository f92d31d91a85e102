from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fintrader.agents import (
    PPO,
    ActionHeadSettings,
    Budget,
    EnsemblePolicy,
    FlatLayout,
    NetworkSettings,
    load_policy,
    make_agent,
    save_policy,
    train,
)
from fintrader.agents.networks import ActionHead, Actor, Critic, GruEncoder
from fintrader.agents.normalisation import ObservationNormaliser, RewardScaler
from fintrader.backtesting import simulate
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.envs.observation import split_columns, statistic_groups, window_of
from fintrader.errors import ConfigError
from tests.engines.tiny import agent_settings
from tests.factories import joined, make_market

LAYOUT = ObservationLayout(5, 3, 2)


def permuted(obs: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The observation of the same account with its assets in another order."""
    obs = obs.clone()
    slices = LAYOUT.slices
    for name in ("holdings", "tradable"):
        obs[:, slices[name]] = obs[:, slices[name]][:, order]
    features = obs[:, slices["features"]].reshape(-1, 5, 3)
    obs[:, slices["features"]] = features[:, order].flatten(1)
    return obs


@pytest.mark.parametrize(("account", "layer_norm"), [(True, False), (False, True)])
def test_permuting_assets_permutes_actions_and_leaves_the_value(account: bool, layer_norm: bool) -> None:
    network = NetworkSettings(hidden=(16, 16), account=account, layer_norm=layer_norm)
    agent = make_agent(PPO(network=network), LAYOUT, seed=1)
    torch.manual_seed(1)
    for parameter in agent.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    agent.policy.normaliser.update(torch.randn(50, LAYOUT.width) * 3 + 1)
    agent.policy.requires_grad_(False)
    obs = torch.rand(7, LAYOUT.width)
    order = torch.tensor([3, 0, 4, 1, 2])
    action, moved = agent.policy(obs), agent.policy(permuted(obs, order))
    torch.testing.assert_close(moved, action[:, order])
    assert float((action[:, 0] - action[:, 1]).abs().max()) > 1e-3
    critic = agent.critic  # type: ignore[attr-defined]
    normalise = agent.policy.normaliser
    torch.testing.assert_close(critic(normalise(permuted(obs, order))), critic(normalise(obs)))


def test_an_action_critic_sees_each_action_at_its_asset() -> None:
    critic = Critic(LAYOUT, NetworkSettings(hidden=(8,)), latents=6)
    obs, latent = torch.randn(3, LAYOUT.width), torch.randn(3, 6)
    order = torch.tensor([3, 0, 4, 1, 2])
    both = torch.cat([latent[:, order], latent[:, 5:]], dim=1)
    torch.testing.assert_close(critic(permuted(obs, order), both), critic(obs, latent))
    swapped = torch.cat([latent[:, order], latent[:, 5:]], dim=1)
    assert not torch.allclose(critic(obs, swapped), critic(obs, latent))
    cash = latent.clone()
    cash[:, 5] += 1
    assert not torch.allclose(critic(obs, cash), critic(obs, latent))


def test_the_action_is_the_aim() -> None:
    head = ActionHead(LAYOUT, ActionHeadSettings(scale=2.0, cash_logit=0.5))
    obs = torch.zeros(1, LAYOUT.width)
    obs[0, LAYOUT.slices["holdings"]] = torch.tensor([0.4, 0.0, 0.0, 0.1, 0.0])
    latent = torch.tensor([[0.3, -0.2, 0.0, 0.1, 0.5, -0.4]])
    logits = [2.0 * z for z in latent[0].tolist()]
    logits[5] += math.log(5) + 0.5
    total = sum(math.exp(x) for x in logits)
    expected = [math.exp(x) / total for x in logits[:5]]
    torch.testing.assert_close(head.decode(obs, latent), torch.tensor([expected]))


def test_a_gap_inside_the_band_is_not_traded() -> None:
    head = ActionHead(LAYOUT, ActionHeadSettings(band=0.5))
    obs = torch.zeros(1, LAYOUT.width)
    aim = ActionHead(LAYOUT, ActionHeadSettings()).decode(obs, torch.zeros(1, 6))
    held = aim + torch.tensor([[0.09, -0.09, 0.0, 0.12, -0.12]])
    obs[:, LAYOUT.slices["holdings"]] = held
    action = head.decode(obs, torch.zeros(1, 6))
    torch.testing.assert_close(action[0, :3], held[0, :3])
    torch.testing.assert_close(action[0, 3:], aim[0, 3:] + torch.tensor([0.1, -0.1]))


def test_observation_statistics_pool_assets_and_match_numpy() -> None:
    groups = statistic_groups(LAYOUT)
    slices = LAYOUT.slices
    assert groups[slices["features"]].reshape(5, 3).unique(dim=0).shape[0] == 1
    assert groups[slices["holdings"]].unique().numel() == 1
    obs = torch.randn(40, LAYOUT.width, dtype=torch.float32) * 2 + 100
    normaliser = ObservationNormaliser(LAYOUT)
    for part in obs.split([1, 9, 30]):
        normaliser.update(part)
    assert normaliser.count == 40
    second = obs[:, slices["features"]].reshape(-1, 3)[:, 1].double()
    column = int(groups[slices["features"]][1])
    assert normaliser.mean[column].item() == pytest.approx(second.mean().item(), abs=1e-5)
    assert normaliser.var[column].item() == pytest.approx(second.var(correction=0).item(), rel=1e-4)
    scaled = normaliser(obs)[:, slices["features"]].reshape(-1, 3)[:, 1]
    assert scaled.mean().item() == pytest.approx(0, abs=1e-3)
    assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-3)
    copy = ObservationNormaliser(LAYOUT)
    copy.load_state_dict(normaliser.state_dict())
    assert torch.equal(copy(obs), normaliser(obs))


def test_rewards_are_divided_by_the_deviation_of_their_return() -> None:
    scaler = RewardScaler(0.5)
    rewards = torch.tensor([[1.0], [2.0], [4.0]])
    scaler.update(rewards[:2], torch.tensor([[False], [True]]))
    scaler.update(rewards[2:], torch.tensor([[False]]))
    # returns: 1, 2 + 0.5·1 = 2.5, then a new episode: 4
    deviation = torch.tensor([1.0, 2.5, 4.0]).std(correction=0)
    torch.testing.assert_close(scaler(rewards), rewards / deviation)


WINDOWED = ObservationLayout(5, 3, 2, lookback=4)
ENCODERS = ["none", "gru", "attention"]
BARS = 4


def network(encoder: str, **values: Any) -> NetworkSettings:
    return NetworkSettings.model_validate({"hidden": (8,), "encoder": encoder, "encoder_width": 6, **values})


def seen(market: MarketTensors, lookback: int = BARS, count: int = 30, **values: Any) -> Tensor:
    """Observations of one account that does nothing, from the first bar on."""
    env = TradingEnv(market, EnvSettings(random_start=False, lookback=lookback, **values), num_envs=1)
    rows = [env.reset(seed=0)[0]]
    rows += [env.step(torch.zeros(1, market.num_assets))[0] for _ in range(count - 1)]
    return torch.cat(rows)


def test_history_is_what_the_bars_before_showed() -> None:
    market = make_market(60, 4)
    obs, plain = seen(market), seen(market, lookback=1)
    layout, single = (ObservationLayout.of(market, bars) for bars in (BARS, 1))
    parts, rows = layout.split(obs), plain[:, single.private_width :]
    assert torch.equal(obs[:, : layout.private_width], plain[:, : single.private_width])
    assert torch.equal(obs[:, -single.row_width :], rows)
    for t in range(30):
        for back in range(1, BARS):
            assert torch.equal(parts["history"][t, BARS - 1 - back], rows[max(t - back, 0)]), (t, back)
    # the window that the networks read is the same thing by asset
    window = window_of(split_columns(obs, layout))
    assert torch.equal(window[9, :, -1, :-1], market.features[9])
    assert torch.equal(window[9, :, 0, :-1], market.features[6])
    assert torch.equal(window[9, :, 1, -1].bool(), market.tradable[7])


@pytest.mark.parametrize("cut", [5, 17])
def test_no_future(cut: int) -> None:
    market = make_market(60, 4, seed=1)
    other = make_market(60, 4, seed=2)
    before, after = seen(market, fill="close"), seen(joined(market, other, cut), fill="close")
    assert torch.equal(before[:cut], after[:cut])
    assert not torch.equal(before[cut], after[cut])
    policy = make_agent(PPO(network=network("gru")), ObservationLayout.of(market, BARS)).policy
    with torch.no_grad():
        assert torch.equal(policy(before[:cut]), policy(after[:cut]))


@pytest.mark.parametrize("kind", ["per_asset", "mlp"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_network_reads_its_window_and_nothing_older(kind: str, encoder: str) -> None:
    market = make_market(60, 4)
    layout = ObservationLayout.of(market, BARS)
    torch.manual_seed(0)
    actor = Actor(layout, network(encoder, kind=kind), cash=True, out_gain=1.0)
    features = market.features.clone()
    features[10, 2] += 1.0
    obs, bumped = seen(market), seen(dataclasses.replace(market, features=features))
    with torch.no_grad():
        moved = (actor(obs)[0] - actor(bumped)[0]).abs().amax(dim=1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [10, 11, 12, 13]


def test_the_gru_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = GruEncoder(3, 5, BARS), nn.GRU(3, 5, batch_first=True)
    with torch.no_grad():
        for name, layer in (("ih", ours.input), ("hh", ours.recurrent)):
            layer.bias.normal_()
            getattr(theirs, f"weight_{name}_l0").copy_(layer.weight.T)
            getattr(theirs, f"bias_{name}_l0").copy_(layer.bias)
        window = torch.randn(7, BARS, 3)
        torch.testing.assert_close(ours(window), theirs(window)[1][0])


@pytest.mark.parametrize("kind", ["per_asset", "mlp"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_members_are_independent_networks(kind: str, encoder: str) -> None:
    several = Critic(WINDOWED, network(encoder, kind=kind), latents=6, members=3)
    single = Critic(WINDOWED, network(encoder, kind=kind), latents=6)
    obs, latent = torch.randn(2, WINDOWED.width), torch.randn(2, 6)
    values = several(obs, latent)
    assert values.shape == (3, 2)
    for k in range(3):
        shapes = {name: tensor.shape for name, tensor in single.state_dict().items()}
        single.load_state_dict({n: t[k].reshape(shapes[n]) for n, t in several.state_dict().items()})
        torch.testing.assert_close(values[k], single(obs, latent))


@pytest.mark.parametrize(
    ("algo", "encoder"),
    [
        ("sac", "attention"),
        *(
            pytest.param(algo, encoder, marks=pytest.mark.slow)
            for algo in ("ppo", "a2c", "apg", "ddpg", "td3", "redq")
            for encoder in ("gru", "attention")
        ),
    ],
)
def test_every_algorithm_takes_an_encoder_all_the_way(tmp_path: Path, algo: str, encoder: str) -> None:
    market = make_market(60, 4)
    settings = EnvSettings(num_envs=4, episode_bars=20, lookback=BARS)
    small = {"num_steps": 4} if algo in ("ppo", "a2c", "apg") else {"learning_starts": 8, "batch_size": 8}
    given = agent_settings(algo, {"network": network(encoder).model_dump(), **small})
    env = TradingEnv(market, settings, seed=1)
    agent = make_agent(given, env.layout, seed=1)
    before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    train(agent, env, Budget(env_steps=200))
    learned = [name for name, tensor in agent.policy.state_dict().items() if not torch.equal(tensor, before[name])]
    assert any("encoder" in name for name in learned)

    save_policy(tmp_path / "policy.safetensors", agent, market=market)
    policy = load_policy(tmp_path / "policy.safetensors", market=market)
    obs = seen(market)
    with torch.no_grad():
        assert torch.equal(policy(obs), agent.policy(obs))
    both = EnsemblePolicy([policy, policy], mode="vote")
    assert torch.equal(both(obs), policy(obs))
    one, two = (simulate(each, market, settings, name="x") for each in (policy, both))
    assert one.metrics == two.metrics


def test_encoders_where_there_is_nothing_to_encode() -> None:
    with pytest.raises(ConfigError, match=r"env\.lookback"):
        make_agent(PPO(network=network("gru")), ObservationLayout(5, 3, 2))
    with pytest.raises(ConfigError, match="none"):
        make_agent(PPO(network=network("attention")), FlatLayout(3, 1))
