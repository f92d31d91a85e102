from __future__ import annotations

import math

import pytest
import torch

from fintrader.agents import PPO, ActionHeadSettings, NetworkSettings, make_agent
from fintrader.agents.networks import ActionHead, Critic
from fintrader.agents.normalisation import ObservationNormaliser, RewardScaler
from fintrader.envs.observation import ObservationLayout, statistic_groups

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
    for parameter in agent.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
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


def test_aim_goes_part_of_the_way() -> None:
    head = ActionHead(LAYOUT, ActionHeadSettings(rate=0.25, scale=2.0, cash_logit=0.5))
    obs = torch.zeros(1, LAYOUT.width)
    obs[0, LAYOUT.slices["holdings"]] = torch.tensor([0.4, 0.0, 0.0, 0.1, 0.0])
    latent = torch.tensor([[0.3, -0.2, 0.0, 0.1, 0.5, -0.4]])
    logits = [2.0 * z for z in latent[0].tolist()]
    logits[5] += math.log(5) + 0.5
    total = sum(math.exp(x) for x in logits)
    held = [0.4, 0.0, 0.0, 0.1, 0.0]
    expected = [w + 0.25 * (math.exp(x) / total - w) for w, x in zip(held, logits, strict=False)]
    torch.testing.assert_close(head.decode(obs, latent), torch.tensor([expected]))


def test_a_gap_inside_the_band_is_not_traded() -> None:
    head = ActionHead(LAYOUT, ActionHeadSettings(rate=1.0, band=0.5))
    obs = torch.zeros(1, LAYOUT.width)
    aim = ActionHead(LAYOUT, ActionHeadSettings(rate=1.0)).decode(obs, torch.zeros(1, 6))
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
