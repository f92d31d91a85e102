"""Compiled networks and gradient steps are the readable ones: values, the weights that a step leads
to, Adam's moments and the metrics."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import functional_call

from fintrader.agents import PPO, make_agent, networks, on_policy
from fintrader.agents.fast import descent
from fintrader.agents.normalisation import Batch
from fintrader.agents.on_policy import Rollout, log_prob_per_latent
from fintrader.agents.ppo import PPOAgent
from fintrader.envs import ObservationLayout
from tests.quick import slow_but

CHOICES = {
    "hidden": ([32, 32], [8], [30, 17, 9], [5, 64]),
    "assets": (1, 3, 10, 50),
    "features": (1, 8, 13),
    "context": (0, 3),
    "head": ("aim", "tilt", "direct"),
    "noise_decay": (0.02, "learned"),
    "weight_decay": (0.0, 0.05),
    "ent_coef": (0.0, 0.02),
    "bars": (1, 7, 40, None),
    "num_minibatches": (1, 2, 5),
    "max_grad_norm": (0.5, 1e-3, 1e6),
    "target_kl": (None, 0.02),
}


def make_state(number):
    """An agent somewhere in its training, and a rollout: number of both."""
    generator = torch.Generator().manual_seed(number)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    def choose(values):
        return values[int(torch.randint(len(values), (), generator=generator))]

    chosen = {name: choose(values) for name, values in CHOICES.items()}
    assets = chosen["assets"]
    if assets == 1:
        chosen["head"] = "aim"
    layout = ObservationLayout(
        assets, chosen["features"], chosen["context"], benchmark=chosen["head"] == "tilt"
    )
    agent = make_agent(
        PPO.model_validate(
            {
                "network": {"kind": "market_once", "hidden": chosen["hidden"]},
                "head": {"kind": chosen["head"]},
                "update_epochs": 2,
            }
            | {name: chosen[name] for name in ("noise_decay", "weight_decay", "ent_coef")}
            | {name: chosen[name] for name in ("num_minibatches", "max_grad_norm", "target_kl")}
        ),
        layout,
        seed=number,
    )
    rows = 60
    bars = chosen["bars"] or rows
    place = None
    if chosen["bars"]:
        place = torch.randint(bars, (rows,), generator=generator)
    batch = Batch(draw(rows, layout.private_width), draw(bars, layout.market_width), place)
    with torch.no_grad():
        for weight in agent.modules.parameters():
            weight += 0.3 * draw(*weight.shape) * (weight.ndim > 1)
        latent = draw(rows, agent.head.latents)
        mean, index = agent.mean_by_bar(batch)
        mean = mean if index is None else mean[index]
        log_prob = log_prob_per_latent(
            (latent - mean) * torch.exp(-agent.log_std), agent.log_std
        ) + 0.2 * draw(*latent.shape)
    return agent, Rollout(batch, latent, log_prob, draw(rows), draw(rows))


def to_double(agent, rollout):
    agent = copy.deepcopy(agent)
    agent.modules.double()
    batch = rollout.batch._replace(
        private=rollout.batch.private.double(), rows=rollout.batch.rows.double()
    )
    return agent, Rollout(batch, *(column.double() for column in rollout[1:]))


def collect(agent):
    """Everything that a step changes."""
    adam = agent.optimisers["adam"].state
    found = {}
    for name, weight in agent.modules.named_parameters():
        found[name] = weight.detach().clone()
        found |= {f"{name} {key}": value.clone() for key, value in adam[weight].items()}
    return found


def learn(take_passes, agent, rollout, updates=2):
    """Let a copy of an agent learn from a rollout again and again."""
    agent = copy.deepcopy(agent)
    for _ in range(updates):
        agent.generator.manual_seed(5)
        bars = len(rollout.batch.rows)
        passes = agent.draw_passes(len(rollout.latent), rollout.batch.row_index, bars)
        metrics = take_passes(rollout.latent, agent, rollout, passes)
    return collect(agent), metrics


def measure_difference(agent, rollout):
    """The largest difference of any weight, moment or metric, relative to the largest of its
    tensor."""
    wanted, wanted_metrics = learn(on_policy.take_passes.__wrapped__, agent, rollout)
    found, metrics = learn(descent.take_passes, agent, rollout)
    assert found.keys() == wanted.keys()
    assert metrics.keys() == wanted_metrics.keys()
    pairs = [(found[name], wanted[name]) for name in wanted]
    pairs += [(metrics[name], wanted_metrics[name].detach()) for name in wanted_metrics]
    worst = 0.0
    for one, other in pairs:
        scale = max(float(other.abs().max()), 1e-3)
        worst = max(worst, float((one.double() - other.double()).abs().max()) / scale)
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_in_float64_a_hundred_steps_are_the_readable_ones(number):
    assert measure_difference(*to_double(*make_state(number))) < 1e-10


@pytest.mark.parametrize("number", range(12))
def test_in_float32_a_step_is_the_readable_one(number):
    assert measure_difference(*make_state(number)) < 1e-3


@pytest.mark.parametrize("number", slow_but(0, 1, 2, 3, every=range(100)))
def test_in_float32_an_update_is_the_readable_one(number):
    """Weights and moments each as one vector: Adam's first steps are as long as the learning rate
    where a gradient is mere rounding, so that single weights may differ by more."""
    agent, rollout = make_state(number)
    wanted, _ = learn(on_policy.take_passes.__wrapped__, agent, rollout, updates=1)
    found, _ = learn(descent.take_passes, agent, rollout, updates=1)
    assert found.keys() == wanted.keys()
    for kind in ("exp_avg", "exp_avg_sq", "step", ""):
        names = [name for name in wanted if name.partition(" ")[2] == kind]
        one, other = (
            torch.cat([state[name].double().flatten() for name in names])
            for state in (found, wanted)
        )
        assert torch.dist(one, other) < 1e-5 * other.norm(), kind


def test_a_network_that_diverged_shows():
    """Loops compiled for speed could turn a NaN into 0."""
    for number in (0, 3):
        agent, rollout = make_state(number)
        for name, _ in agent.modules.named_parameters():
            broken = copy.deepcopy(agent)
            dict(broken.modules.named_parameters())[name].detach().view(-1)[0] = torch.nan
            state, metrics = learn(descent.take_passes, broken, rollout, updates=1)
            assert not metrics["grad_norm"].isfinite(), name
            assert not all(bool(value.isfinite().all()) for value in state.values()), name


def test_training_takes_the_compiled_steps(monkeypatch):
    agent, rollout = make_state(0)
    calls = []
    take_step = descent.take_step
    monkeypatch.setattr(descent, "take_step", lambda *given: (calls.append(1), take_step(*given)))
    agent.learn(rollout)
    assert len(calls) == 2 * agent.settings.num_minibatches


class OtherLoss(PPOAgent):
    def loss(self, rollout):
        loss, parts = super().loss(rollout)
        return 2 * loss, parts


@pytest.mark.parametrize(
    "settings",
    [
        {"network": {"kind": "per_asset", "hidden": [8]}},
        {"network": {"kind": "mlp", "hidden": [8]}},
        {"network": {"hidden": [8], "activation": "tanh"}},
        {"network": {"hidden": [8], "layer_norm": True}},
        {"network": {"hidden": [8, 129]}},
        {"network": {"hidden": [8], "private": ["holdings"]}},
        {"network": {"hidden": [8], "private": ["account"]}},
    ],
    ids=str,
)
def test_other_networks_take_torchs_steps(settings):
    agent = make_agent(PPO.model_validate(settings), ObservationLayout(3, 2, 0), seed=1)
    _, rollout = make_state(0)
    assert descent.take_passes(rollout.latent, agent, rollout, []) is NotImplemented


def test_another_loss_takes_torchs_steps():
    agent, rollout = make_state(1)
    other = OtherLoss(agent.settings, agent.layout, device="cpu", seed=1)
    assert descent.take_passes(rollout.latent, other, rollout, []) is NotImplemented
    agent.loss = other.loss
    assert descent.take_passes(rollout.latent, agent, rollout, []) is NotImplemented


def test_a_noise_that_is_trained_later_has_its_own_count_of_steps():
    """Adam divides the moments of its first steps by the share that they have reached."""
    number = next(n for n in range(50) if make_state(n)[0].settings.noise_decay == "learned")
    agent, rollout = to_double(*make_state(number))
    agent.noise.requires_grad_(False)
    passes = agent.draw_passes(
        len(rollout.latent), rollout.batch.row_index, len(rollout.batch.rows)
    )
    descent.take_passes(rollout.latent, agent, rollout, passes)
    agent.noise.requires_grad_(True)
    assert descent.take_passes(rollout.latent, agent, rollout, []) is NotImplemented


def test_values_follow_weights_that_are_put_in_place_of_others():
    agent, rollout = make_state(0)
    weights = {name: 2 * weight.detach() for name, weight in agent.critic.named_parameters()}
    with torch.no_grad():
        agent.critic(rollout.batch)
        found = functional_call(agent.critic, weights, (rollout.batch,))
    wanted = functional_call(agent.critic, weights, (rollout.batch,))  # with gradients: by torch
    torch.testing.assert_close(found, wanted.detach(), atol=1e-4, rtol=1e-4)


def test_threads_share_a_network_but_no_memory():
    agent, rollout = make_state(3)
    rows = torch.randn(4000, rollout.batch.rows.shape[1])
    networks_of = (agent.actor.trunk, agent.actor.head, agent.actor.extra_head)

    def run(scale):
        with torch.no_grad():
            return networks.run_market_once(scale * rows, *networks_of)[0]

    scales = [1.0, -1.0, 2.0, 0.5] * 5
    wanted = [run(scale) for scale in scales]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, scales))
    assert all(map(torch.equal, found, wanted))
