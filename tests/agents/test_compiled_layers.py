"""What leaves torch's own operations on the CPU is what torch makes of it, which in float64 is what
still runs."""

import copy
from inspect import signature

import pytest
import torch

from fintrader.agents import (
    NetworkSettings,
    buffers,
    make_agent,
    networks,
    on_policy,
    ppo,
)
from fintrader.agents.buffers import Transition
from fintrader.agents.fast import activations, descent, market_once, rollout, surrogate
from fintrader.agents.fast import training as fast_training
from fintrader.agents.network_kinds import make_actor, make_critic
from fintrader.agents.networks import AssetTrunk, tanh
from fintrader.agents.normalisation import Batch
from fintrader.agents.training import as_tensor
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from tests.engines.tiny import agent_settings
from tests.factories import make_market

LAYOUT = ObservationLayout(5, 3, 2)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slopes(out, module):
    """Of a weighted sum of what came out, by each weight."""
    parts = out if isinstance(out, tuple) else (out,)
    weighed = [
        (part * randn(*part.shape, seed=k).to(part.dtype)).sum() for k, part in enumerate(parts)
    ]
    module.zero_grad()
    torch.stack(weighed).sum().backward()
    return {
        name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None
    }


def graph(out):
    """Names of the operations behind a tensor."""
    found = set()
    waiting = [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            found.add(type(node).__name__)
            waiting += [before for before, _ in node.next_functions]
    return found


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("kind", ["market_once", "per_asset", "mlp"])
@pytest.mark.parametrize("shared", [True, False], ids=["bars_shared", "bars_alone"])
def test_networks_and_their_slopes_are_those_in_float64(kind, activation, shared):
    values = {
        "kind": kind,
        "activation": activation,
        "hidden": (64, 96),
        "private": ["account"] if kind == "market_once" else [],
    }
    settings = NetworkSettings.model_validate(values)
    torch.manual_seed(1)
    actor = make_actor(LAYOUT, settings, extra=1, outputs=2)
    critic = make_critic(LAYOUT, settings)
    bars = 40 if shared else 90
    place = torch.arange(90) * 7 % bars if shared else None
    seen = Batch(randn(90, LAYOUT.private_width), randn(bars, LAYOUT.market_width, seed=1), place)
    exact = Batch(seen.private.double(), seen.rows.double(), place)
    for network in (actor, critic):
        twin = copy.deepcopy(network).double()
        out = network(seen)
        wanted = twin(exact)
        found = slopes(out, network)
        expected = slopes(wanted, twin)
        torch.testing.assert_close(out, wanted, check_dtype=False, atol=2e-4, rtol=2e-4)
        assert found.keys() == expected.keys()
        for name, slope in expected.items():
            torch.testing.assert_close(
                found[name], slope, check_dtype=False, atol=5e-3, rtol=1e-3, msg=name
            )
        with torch.no_grad():  # by the compiled networks, where they cover this one
            torch.testing.assert_close(
                network(seen), wanted, check_dtype=False, atol=2e-4, rtol=2e-4
            )


def test_values_that_slopes_go_through_to_holdings_take_torchs_operations():
    critic = make_critic(LAYOUT, NetworkSettings(kind="market_once", hidden=(8,)))
    private = randn(6, LAYOUT.private_width).requires_grad_()
    value = critic(Batch(private, randn(6, LAYOUT.market_width), None))
    value.sum().backward()
    assert private.grad[:, -LAYOUT.num_assets :].abs().sum() > 0


TWINS = [
    (networks.tanh, activations.tanh),
    (networks.run_market_once, market_once.run_market_once),
    (networks.quadratic_value, market_once.quadratic_value),
    (on_policy.take_passes, descent.take_passes),
    (ppo.clipped_surrogate, surrogate.clipped_surrogate),
    (on_policy.draw_actions, fast_training.draw_actions),
    (buffers.gae, rollout.gae),
]


@pytest.mark.parametrize(("readable", "fast"), TWINS, ids=lambda function: function.__name__)
def test_a_fast_pass_has_the_name_and_the_parameters_of_the_readable_one(readable, fast):
    assert readable.__name__ == fast.__name__
    assert list(signature(readable.__wrapped__).parameters) == list(signature(fast).parameters)


def test_a_fast_pass_takes_its_place_on_the_cpu_in_float32_alone():
    x = torch.linspace(-3, 3, 7)
    exact = torch.tanh(x.double())
    assert torch.equal(tanh(x.double()), exact)
    assert graph(tanh(x.clone().requires_grad_())) >= {"_TanhBackward"}
    assert "_TanhBackward" not in graph(tanh(x.double().requires_grad_()))
    inside = torch.func.vmap(tanh)(x.unsqueeze(1))
    assert torch.equal(inside.squeeze(1), torch.tanh(x))


def test_tanh_is_right_to_two_roundings():
    x = torch.cat(
        [torch.linspace(-12, 12, 100_001), torch.tensor([0.0, 1e-8, -1e-8, 90.0, -90.0, torch.inf])]
    )
    x.requires_grad_()
    y = tanh(x)
    assert (y.double() - torch.tanh(x.double())).abs().max() < 2.5e-7
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert (slope.double() - 1 + torch.tanh(x.double()).square()).abs().max() < 1e-6
    assert tanh(torch.tensor([torch.nan])).isnan().all()


def test_a_layer_that_one_output_is_used_of_has_its_slopes():
    """The mean is not always read, nor the embeddings themselves."""
    trunk = AssetTrunk(4, 2, NetworkSettings(hidden=(8, 8)))
    assets = randn(6, 5, 4)
    common = randn(6, 2, seed=1)
    twin = copy.deepcopy(trunk).double()
    for part in (0, 1):
        out = trunk(assets, common)[part]
        wanted = twin(assets.double(), common.double())[part]
        found = slopes(out, trunk)
        expected = slopes(wanted, twin)
        for name, slope in expected.items():
            torch.testing.assert_close(
                found[name], slope, check_dtype=False, atol=1e-4, rtol=1e-4, msg=name
            )


def test_a_trunk_that_has_diverged_says_so():
    """What is no number stays none, as torch's relu has it: a zero would hide that a training is
    lost."""
    trunk = AssetTrunk(4, 2, NetworkSettings(hidden=(8, 8)))
    with torch.no_grad():
        trunk.own[0].weight[0, 3] = torch.nan
    h, mean = trunk(randn(6, 5, 4), randn(6, 2, seed=1))
    assert h.isnan().any()
    assert mean.isnan().any()
    assert any(slope.isnan().any() for slope in slopes((h, mean), trunk).values())


@pytest.mark.parametrize("interval", [1, 3])
def test_bars_ahead_are_decoded_as_one_by_one(interval):
    """Episodes end within rollouts, and accounts begin where nobody looked ahead."""
    rules = EnvSettings(episode_bars=5 * interval, start_groups=2, decision_interval=interval)
    env = TradingEnv(make_market(90, 3), rules, num_envs=6, seed=3)
    agent = make_agent(
        agent_settings("ppo", {"num_steps": 7, "num_minibatches": 2}), env.layout, seed=1
    )
    env = agent.prepare_env(env)
    obs = as_tensor(env.reset(seed=3)[0])
    seen = 0
    plain = agent.mean_latent
    agent.mean_latent = lambda _: pytest.fail("it should have looked ahead")
    for _ in range(21):
        action = agent.act(obs)
        mean = agent.latent - agent.last_noise * agent.log_std.exp()
        torch.testing.assert_close(mean, plain(agent.normalise(obs)), atol=1e-6, rtol=1e-5)
        seen = max(seen, len(agent.embedding_cache.mean))
        after, reward, terminated, truncated, _ = env.step(action)
        after = as_tensor(after)
        agent.observe(Transition(obs, action, reward.float(), terminated, truncated, after))
        agent.update()
        obs = after
    assert 7 < seen <= 28
