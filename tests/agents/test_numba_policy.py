from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fintrader.agents.networks import ActionHeadSettings, NetworkSettings
from fintrader.agents.policy import ActorPolicy, EnsemblePolicy, PolicyModule
from fintrader.envs import ObservationLayout
from fintrader.envs.observation import FlatLayout

LAYOUT = ObservationLayout(num_assets=7, num_features=3, num_context=2)
NETWORKS: dict[str, dict[str, Any]] = {
    "default": {},
    "account": {"account": True, "hidden": (9, 5, 6)},
    "tanh": {"activation": "tanh"},
    "silu": {"activation": "silu", "hidden": (16,)},
    "elu": {"activation": "elu"},
    "norm": {"layer_norm": True, "hidden": (10, 7)},
    "mlp": {"kind": "mlp", "hidden": (20, 11)},
    "mlp_norm": {"kind": "mlp", "layer_norm": True, "activation": "tanh"},
}
HEADS: dict[str, dict[str, Any]] = {
    "aim": {"kind": "aim"},
    "band": {"kind": "aim", "band": 0.3, "scale": 2.0},
    "direct": {"kind": "direct"},
}


def actor(layout: ObservationLayout, seed: int, head: str, outputs: int = 1, **network: Any) -> ActorPolicy:
    """An actor whose weights and statistics are far from where training begins."""
    torch.manual_seed(seed)
    squash = bool(seed % 2)
    settings = NetworkSettings(**network)
    policy = ActorPolicy(layout, settings, ActionHeadSettings(**HEADS[head]), outputs=outputs, squash=squash)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    policy.normaliser.update(2 * torch.randn(200, layout.width) + 0.3)
    return policy.eval().requires_grad_(False)


def observations(layout: ObservationLayout, count: int) -> torch.Tensor:
    obs = torch.randn(count, layout.width, generator=torch.Generator().manual_seed(1))
    obs[:, layout.slices["holdings"]] = obs[:, layout.slices["holdings"]].abs() / layout.num_assets
    obs[0, layout.slices["features"]] *= 1e4  # far outside what the statistics clip at
    return obs


def bound_actions(policy: PolicyModule, obs: torch.Tensor, layout: ObservationLayout) -> np.ndarray:
    bound = policy.bind(obs[:, layout.private_width :].numpy())
    private = obs[:, : layout.private_width].numpy()
    return np.stack([bound(bar, private[bar]).copy() for bar in range(len(obs))])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("network", NETWORKS)
def test_one_network_acts_as_it_does_itself(network: str, head: str) -> None:
    obs = observations(LAYOUT, 12)
    for seed, outputs in ((0, 1), (1, 2)):
        policy = actor(LAYOUT, seed, head, outputs, **NETWORKS[network])
        expected = policy(obs).numpy()
        assert expected.std() > 0.01
        assert bound_actions(policy, obs, LAYOUT) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("mode", ["mean", "weighted", "vote"])
@pytest.mark.parametrize("count", [1, 4, 5])
def test_an_ensemble_of_unlike_members(mode: Any, count: int) -> None:
    kinds = ["default", "mlp", "account", "norm", "elu"][:count]
    heads = list(HEADS)
    members = [actor(LAYOUT, k, heads[k % 3], **NETWORKS[kind]) for k, kind in enumerate(kinds)]
    policy = EnsemblePolicy(members, [0.5 + k for k in range(count)], mode).eval()
    obs = observations(LAYOUT, 12)
    assert bound_actions(policy, obs, LAYOUT) == pytest.approx(policy(obs).numpy(), abs=2e-5)


def test_what_only_the_networks_can_do_is_not_bound() -> None:
    rows = np.zeros((3, LAYOUT.market_width), np.float32)
    policy = actor(LAYOUT, 0, "aim")
    assert policy.bind(rows) is not None
    assert policy.bind(rows[:, 1:]) is None
    assert EnsemblePolicy([EnsemblePolicy([policy])]).bind(rows) is None
    flat = ActorPolicy(FlatLayout(4, 2), NetworkSettings(), ActionHeadSettings())
    assert flat.bind(rows) is None

    class Louder(ActorPolicy):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(obs)

    assert Louder(LAYOUT, NetworkSettings(), ActionHeadSettings()).bind(rows) is None
    next(policy.parameters()).fill_(float("nan"))
    assert policy.bind(rows) is None
