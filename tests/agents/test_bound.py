from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch

from fintrader.agents.fast import members as bound
from fintrader.agents.policy import ActorPolicy, EnsemblePolicy
from fintrader.agents.settings import ActionHeadSettings, NetworkSettings
from fintrader.envs import ObservationLayout
from fintrader.envs.observation import FlatLayout

LAYOUT = ObservationLayout(num_assets=7, num_features=3, num_context=2)
WINDOWED = replace(LAYOUT, lookback=3)
LONG_ONLY = replace(LAYOUT, short=0)
NETWORKS = {
    "once": {"kind": "market_once"},
    "once_account": {"kind": "market_once", "private": ("account",), "hidden": (9, 5, 6)},
    "once_holdings": {"kind": "market_once", "private": ("holdings",), "activation": "tanh"},
    "once_blind": {"kind": "market_once", "private": ("account",), "layer_norm": True},
    "default": {"kind": "per_asset"},
    "account": {"kind": "per_asset", "private": ("account",), "hidden": (9, 5, 6)},
    "tanh": {"kind": "per_asset", "activation": "tanh"},
    "silu": {"kind": "per_asset", "activation": "silu", "hidden": (16,)},
    "elu": {"kind": "per_asset", "activation": "elu"},
    "norm": {"kind": "per_asset", "layer_norm": True, "hidden": (10, 7)},
    "mlp": {"kind": "mlp", "hidden": (20, 11)},
    "mlp_norm": {"kind": "mlp", "layer_norm": True, "activation": "tanh"},
}
HEADS = {
    "aim": {"kind": "aim"},
    "steep": {"kind": "aim", "scale": 2.0},
    "direct": {"kind": "direct"},
}


KINDS = HEADS | {"weights": {"kind": "weights", "trade_rate": 0.3}}


def actor(layout, seed, head, outputs=1, **network):
    """An actor whose weights and statistics are far from where training begins."""
    torch.manual_seed(seed)
    squash = bool(seed % 2)
    settings = NetworkSettings(**network)
    policy = ActorPolicy(
        layout, settings, ActionHeadSettings(**KINDS[head]), outputs=outputs, squash=squash
    )
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    policy.normaliser.update(2 * torch.randn(200, layout.width) + 0.3)
    return policy.eval().requires_grad_(False)


def observations(layout, count):
    obs = torch.randn(count, layout.width, generator=torch.Generator().manual_seed(1))
    obs[:, layout.slices["holdings"]] = obs[:, layout.slices["holdings"]].abs() / layout.num_assets
    obs[0, layout.slices["features"]] *= 1e4  # far outside what the statistics clip at
    return obs


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Twelve bars are encoded in three blocks, the last of them shorter."""
    monkeypatch.setattr(bound, "NUMBERS_AT_ONCE", 5 * 16 * LAYOUT.num_assets)


def bound_actions(policy, obs, layout):
    """Each bar's action, of bars in no order: blocks are come back to."""
    ask = policy.bind(obs[:, layout.private_width :].numpy())
    assert ask is not None
    private = obs[:, : layout.private_width].numpy()
    actions = np.zeros((len(obs), layout.num_assets), np.float32)
    for bar in [*range(len(obs)), *range(0, len(obs), 4), 0]:
        actions[bar] = ask(bar, private[bar : bar + 1])[0]
    return actions


@pytest.mark.parametrize(
    ("network", "head"), [*zip(NETWORKS, cycle(HEADS)), ("mlp", "weights"), ("mlp_norm", "weights")]
)
def test_one_network_acts_as_it_does_itself(network, head):
    obs = observations(LAYOUT, 12)
    for seed, outputs in ((0, 1), (1, 2)):
        policy = actor(LAYOUT, seed, head, outputs, **NETWORKS[network])
        expected = policy(obs).numpy()
        assert expected.std() > 0.01
        assert bound_actions(policy, obs, LAYOUT) == pytest.approx(expected, abs=2e-5)


def test_weights_that_may_not_be_negative():
    obs = observations(LAYOUT, 12)
    policy = actor(LONG_ONLY, 0, "weights", kind="mlp")
    expected = policy(obs).numpy()
    assert bound_actions(policy, obs, LONG_ONLY) == pytest.approx(expected, abs=2e-5)
    short = actor(LAYOUT, 0, "weights", kind="mlp")(obs).numpy()
    assert expected.min() >= 0 > short.min()


ENSEMBLES = {
    "one": ["default"],
    "numba": ["default", "mlp", "account", "norm", "elu"],
    "once": ["once", "once_account", "once_holdings", "once_blind"],
    "mixed": ["mlp", "once_account", "default", "once", "once_blind"],
}


@pytest.mark.parametrize("mode", ["mean", "weighted", "vote"])
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_an_ensemble_of_unlike_members(mode, ensemble):
    heads = list(HEADS)
    kinds = ENSEMBLES[ensemble]
    members = [actor(LAYOUT, k, heads[k % 3], **NETWORKS[kind]) for k, kind in enumerate(kinds)]
    policy = EnsemblePolicy(members, [0.5 + k for k in range(len(members))], mode).eval()
    obs = observations(LAYOUT, 12)
    assert bound_actions(policy, obs, LAYOUT) == pytest.approx(policy(obs).numpy(), abs=2e-5)


@pytest.mark.parametrize("encoder", ["none", "gru", "attention"])
def test_several_bars_are_read_as_the_networks_read_them(encoder):
    obs = observations(WINDOWED, 12)
    once = actor(WINDOWED, 1, "aim", private=("account",), encoder=encoder)
    each = actor(WINDOWED, 0, "aim", kind="per_asset", encoder=encoder)
    members = [once, each]
    if encoder == "none":
        members.append(actor(WINDOWED, 2, "direct", kind="mlp"))
    for policy in (*members, EnsemblePolicy(members)):
        expected = policy(obs).numpy()
        assert expected.std() > 0.01
        assert bound_actions(policy, obs, WINDOWED) == pytest.approx(expected, abs=2e-5)


def test_what_only_the_networks_can_do_is_not_bound():
    rows = np.zeros((3, LAYOUT.market_width), np.float32)
    policy = actor(LAYOUT, 0, "aim")
    assert policy.bind(rows) is not None
    assert policy.bind(rows[:, 1:]) is None
    assert EnsemblePolicy([EnsemblePolicy([policy])]).bind(rows) is None
    encoded = actor(WINDOWED, 2, "direct", kind="mlp", encoder="gru")
    assert encoded.bind(np.zeros((3, WINDOWED.market_width), np.float32)) is None
    assert EnsemblePolicy([encoded]).bind(np.zeros((3, WINDOWED.market_width), np.float32)) is None
    flat = ActorPolicy(FlatLayout(4, 2), NetworkSettings(), ActionHeadSettings())
    assert flat.bind(rows) is None

    class Louder(ActorPolicy):
        def forward(self, obs):
            return 2 * super().forward(obs)

    assert Louder(LAYOUT, NetworkSettings(), ActionHeadSettings()).bind(rows) is None
    next(policy.parameters()).fill_(float("nan"))
    assert policy.bind(rows) is None
