"""A compiled decision, and the compiled sums over a rollout, are the readable ones."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fintrader.agents import PPO, buffers, make_agent, on_policy
from fintrader.agents.fast import rollout, training
from fintrader.envs import ObservationLayout
from fintrader.envs.observation import MarketTable
from tests.quick import slow_but

READABLE = on_policy.draw_actions.__wrapped__
CHOICES = {
    "hidden": ([32, 32], [8], [17, 9]),
    "assets": (1, 3, 10, 50),
    "head": ("aim", "tilt", "direct"),
    "noise": (0.1, 1.0),
    "noise_persistence": (None, 0.0, 0.5),
    "feature_dropout": (0.0, 0.3),
}
BARS = 40


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_state(number, accounts=12):
    """An agent somewhere in its training, and observations with the bars' numbers."""
    generator = torch.Generator().manual_seed(number)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    def choose(values):
        return values[int(torch.randint(len(values), (), generator=generator))]

    chosen = {name: choose(values) for name, values in CHOICES.items()}
    assets = chosen.pop("assets")
    head = "aim" if assets == 1 else chosen["head"]
    layout = ObservationLayout(assets, 3, 2, benchmark=head == "tilt")
    values = {name: chosen[name] for name in ("noise", "noise_persistence", "feature_dropout")}
    values |= {"network": {"kind": "market_once", "hidden": chosen["hidden"]}}
    values |= {"head": {"kind": head, "scale": choose((0.5, 4.0)), "cash_logit": choose((-1, 2))}}
    agent = make_agent(PPO.model_validate(values), layout, seed=number)
    with torch.no_grad():
        for weight in agent.modules.parameters():
            weight += 0.3 * draw(*weight.shape) * (weight.ndim > 1)
    widths = (3 * assets, *[assets] * (1 + 2 * layout.benchmark), 2)
    parts = [draw(BARS, width).abs() for width in widths]
    agent.table = MarketTable(parts, torch.get_default_dtype())
    agent.normaliser.update_market(agent.table)
    private = 0.1 * draw(accounts, layout.private_width).abs()
    agent.normaliser.update(torch.cat([private, torch.zeros(accounts, 1)], 1))
    clock = torch.randint(BARS, (accounts, 1), generator=generator)
    return agent, torch.cat([private, clock.to(private.dtype)], 1)


def measure_difference(number):
    """The largest difference of actions, latents and their densities in two decisions."""
    agent, obs = make_state(number)
    twin = copy.deepcopy(agent)
    if torch.get_default_dtype() == torch.float64:
        for one in (agent, twin):
            one.modules.double()
            one.normaliser._shift = one.normaliser._shift.double()
            one.normaliser._scale = one.normaliser._scale.double()
    worst = 0.0
    with torch.no_grad():
        for _ in range(2):  # the second time with the noise of the first
            found = training.draw_actions(obs, agent)
            wanted = READABLE(obs, twin)
            for one, other in zip(found, wanted, strict=True):
                assert one.dtype == other.dtype
                assert one.shape == other.shape
                worst = max(worst, float((one - other).abs().max()))
    return worst


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("number", slow_but(*range(0, 40, 5), every=range(40)))
def test_in_float64_a_decision_is_the_readable_one(number):
    assert measure_difference(number) < 1e-10


@pytest.mark.parametrize("number", slow_but(*range(1, 40, 5), every=range(40)))
def test_in_float32_a_decision_is_the_readable_one(number):
    assert measure_difference(number) < 1e-5


def test_a_decision_on_the_cpu_is_the_compiled_one(monkeypatch):
    agent, obs = make_state(0)
    calls = []
    draw = training._draw
    monkeypatch.setattr(training, "_draw", lambda *given: calls.append(1) or draw(*given))
    agent.act(obs)
    assert len(calls) == 2  # the first one finds that no bar has a mean


def test_weights_of_a_logit_far_from_the_highest_are_right():
    """The exponential is exact near 0 alone; far from it a weight is too small to matter."""
    agent, obs = make_state(next(n for n in range(99) if make_state(n)[0].head.kind == "aim"))
    agent.head.settings = agent.head.settings.model_copy(update={"scale": 20.0})
    twin = copy.deepcopy(agent)
    with torch.no_grad():
        found = training.draw_actions(obs, agent)[0]
        wanted = READABLE(obs, twin)[0]
    assert float(wanted.min()) < 1e-7
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_network_that_diverged_shows_in_its_actions(number):
    """Loops compiled for speed could turn a NaN into a weight."""
    agent, obs = make_state(number)
    agent.actor.head.bias.detach().fill_(torch.nan)
    action = agent.act(obs)
    assert agent.latent.isnan().any()
    assert action.isnan().any()


@pytest.mark.parametrize("bar", [-1.0, float(BARS), 1e9, torch.nan, torch.inf])
def test_a_bar_that_is_not_there_is_refused(bar):
    agent, obs = make_state(0)
    obs[0, -1] = BARS - 1
    agent.act(obs)
    obs[3, -1] = bar
    with pytest.raises(IndexError):
        agent.act(obs)


def test_threads_decide_as_one_alone():
    states = [make_state(number, accounts=200) for number in range(4)] * 3
    states = [(copy.deepcopy(agent), obs) for agent, obs in states]
    alone = [copy.deepcopy(agent) for agent, _ in states]
    wanted = [agent.act(obs) for agent, (_, obs) in zip(alone, states, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda state: state[0].act(state[1]), states))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_compiled_advantages_are_the_readable_ones(dtype):
    draw = torch.Generator().manual_seed(0)
    for steps, accounts in ((1, 1), (1, 7), (8, 5), (16, 64)) * 5:
        shape = (steps, accounts)
        columns = [torch.randn(shape, generator=draw, dtype=dtype) for _ in range(3)]
        columns += [torch.rand(shape, generator=draw) < 0.2 for _ in range(2)]
        discounts = torch.rand(2, generator=draw).tolist()
        found = rollout.gae(*columns, *discounts)
        wanted = buffers.gae.__wrapped__(*columns, *discounts)
        limit = 1e-10 if dtype == torch.float64 else 1e-5
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=limit, rtol=limit)


def test_advantages_with_a_gradient_are_torchs():
    columns = [torch.randn(3, 2) for _ in range(3)] + [torch.zeros(3, 2, dtype=torch.bool)] * 2
    columns[1].requires_grad_()
    assert buffers.gae(*columns, 0.9, 0.9)[0].requires_grad
