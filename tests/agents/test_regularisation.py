from dataclasses import replace

import pytest
import torch

from fintrader.agents import APG, PPO, SAC, Budget, NetworkSettings, make_agent, train
from fintrader.agents.buffers import Transition
from fintrader.agents.regularisation import Perturbation, make_perturbation
from fintrader.agents.training import as_tensor, select_true_next_obs
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.envs.observation import FlatLayout
from fintrader.seeding import create_generator
from tests.factories import make_market

LAYOUT = ObservationLayout(3, 4, 2, lookback=3, benchmark=1)
MARKET = make_market(200, 3)
HIDING = {"feature_dropout": 0.4, "feature_noise": 0.2, "weight_decay": 0.1}
NETWORK = NetworkSettings(hidden=(8,))
ON_POLICY = {"num_steps": 4, "network": NETWORK}


def perturbation(dropout, noise):
    return Perturbation(LAYOUT, dropout, noise, create_generator(1, "test"))


def bars(rows):
    """Rows `[U, L*W]` bar by bar: `[U, L, W]`."""
    return rows.view(len(rows), LAYOUT.lookback, LAYOUT.row_width)


def windows(count=30):
    """Rows that overlap as a market's do: what is the newest bar of one is the bar before in the
    next."""
    newest = torch.randn(count + 2, LAYOUT.row_width, generator=torch.Generator().manual_seed(2))
    return torch.cat([newest[:-2], newest[1:-1], newest[2:]], dim=1)


def test_whole_features_are_hidden_and_the_others_make_up_for_them():
    rows = windows()
    hides = perturbation(0.25, 0.0)
    kept = []
    for _ in range(400):
        shown = bars(hides(rows, None))
        ratio = (shown / bars(rows))[..., :12].unflatten(-1, (3, 4))  # [U, L, N, F]
        assert torch.allclose(ratio, ratio[:1, :1, :1].expand_as(ratio)), "not the same everywhere"
        assert torch.equal(shown[..., 12:], bars(rows)[..., 12:]), "more than features was touched"
        factors = ratio[0, 0, 0]
        assert ((factors == 0) | (factors - 4 / 3).abs().lt(1e-5)).all()
        kept.append((factors > 0).float())
        hides.redraw()
    assert float(torch.stack(kept).mean()) == pytest.approx(0.75, abs=0.05)


def test_a_bar_has_one_noise_until_the_next_draw_wherever_it_is_seen():
    rows = windows()
    noisy = perturbation(0.0, 0.5)
    numbers = torch.arange(100, 130)
    shown = noisy(rows, numbers)
    noise = bars(shown - rows)[..., :12]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.1)
    assert torch.allclose(noise[1:, 1], noise[:-1, 2], atol=1e-6), (
        "another noise when seen as the bar before"
    )
    some = torch.tensor([7, 3, 20])
    assert torch.equal(noisy(rows[some], numbers[some]), shown[some])
    assert torch.equal(bars(shown)[..., 12:], bars(rows)[..., 12:])
    noisy.redraw()
    again = bars(noisy(rows, numbers) - rows)[..., :12]
    assert abs(float(torch.corrcoef(torch.stack([noise.flatten(), again.flatten()]))[0, 1])) < 0.2


def test_without_anything_to_hide_rows_are_left_alone():
    stream = create_generator(1, "test")
    hiding = PPO(feature_dropout=0.5, feature_noise=0.5)
    assert make_perturbation(LAYOUT, PPO(), stream) is None
    assert make_perturbation(FlatLayout(LAYOUT.market_width, 2), hiding, stream) is None
    assert make_perturbation(replace(LAYOUT, num_features=0), hiding, stream) is None
    assert make_perturbation(LAYOUT, hiding, stream) is not None


ALGORITHMS = [
    PPO(num_minibatches=1, update_epochs=1, **ON_POLICY, **HIDING),
    APG(**ON_POLICY, **HIDING),
    SAC(learning_starts=8, batch_size=8, network=NETWORK, **HIDING),
]


def market_env(**values):
    return TradingEnv(
        MARKET, EnvSettings(episode_bars=15, benchmark="equal_weight", **values), num_envs=8
    )


@pytest.mark.parametrize("settings", ALGORITHMS, ids=lambda settings: settings.algo)
def test_what_is_hidden_changes_with_an_update_and_never_for_who_is_judged(settings):
    env = market_env()
    agent = make_agent(settings, env.layout, seed=1)
    own = agent.prepare_env(env)
    obs = first = as_tensor(own.reset(seed=1)[0])
    flat, _ = market_env().reset(seed=1)
    assert torch.equal(agent.normalise(first).rows, agent.normalise(first).rows)
    for _ in range(3):
        before = agent.normalise(first).rows
        drawn = agent.perturbation.drawn
        metrics = None
        while agent.perturbation.drawn is drawn:
            assert metrics is None
            assert torch.equal(agent.normalise(first).rows, before), "changed between updates"
            action = agent.act(obs)
            shown, reward, terminated, truncated, info = own.step(action)
            after = as_tensor(shown)
            led_to = select_true_next_obs(after, info, terminated, truncated)
            agent.observe(Transition(obs, action, reward.float(), terminated, truncated, led_to))
            obs = after
            metrics = agent.update()
        assert not torch.equal(agent.normalise(first).rows, before)
        obs = obs.detach()
        own.load_state_dict({name: tensor.detach() for name, tensor in own.state_dict().items()})
    judged = agent.policy(flat)
    agent.perturbation.redraw()
    assert torch.equal(agent.policy(flat), judged)


@pytest.mark.usefixtures("frequent_reports")
def test_a_pipelined_agent_hides_other_features_after_an_update_too():
    env = market_env()
    settings = SAC(learning_starts=8, batch_size=8, pipeline=True, network=NETWORK, **HIDING)
    agent = make_agent(settings, env.layout, seed=1)
    drawn = agent.agent.perturbation.drawn
    train(agent, env, Budget(env_steps=10 * 8))
    assert not torch.equal(agent.agent.perturbation.drawn, drawn)


def test_decay_shrinks_weights_by_its_share_of_the_step_size():
    agent = make_agent(
        PPO(weight_decay=0.5, learning_rate=0.1, **ON_POLICY), market_env().layout, seed=1
    )
    before = [parameter.detach().clone() for parameter in agent.actor.parameters()]
    nothing = sum(
        (parameter * 0).sum()
        for parameter in [*agent.actor.parameters(), *agent.critic.parameters()]
    )
    agent.descend("adam", [(1.0, nothing, {})])
    for old, parameter in zip(before, agent.actor.parameters(), strict=True):
        assert torch.allclose(parameter, old * (1 - 0.1 * 0.5))


@pytest.mark.parametrize("settings", ALGORITHMS, ids=lambda settings: settings.algo)
def test_training_is_dearer_than_what_it_is_judged_by(settings):
    asked = {
        "cost_bps": 10.0,
        "half_spread_bps": {"S001": 4.0, "others": 2.0},
        "impact_bps": 3.0,
        "fractional": True,
    }
    env = market_env(randomise={"costs": (3.0, 3.0)}, **asked)
    own = make_agent(settings, env.layout).prepare_env(env)
    paid = own.settings
    assert (paid.cost_bps, paid.half_spreads["others"], paid.impact_bps) == (30.0, 6.0, 9.0)
    assert own.view.spread.tolist() == pytest.approx([6e-4, 12e-4, 6e-4])
    assert env.settings.cost_bps == 10.0
    equities = []
    for each in (
        env,
        own,
        TradingEnv.evaluation(MARKET, env.settings),
        TradingEnv.evaluation(MARKET, paid),
    ):
        each.reset(options={"start": 0})
        each.step(torch.full((each.num_envs, 3), 0.3))
        equities.append(float(each.equity[0]))
    assert equities[0] == equities[2]
    assert equities[1] == equities[3] < equities[0]
