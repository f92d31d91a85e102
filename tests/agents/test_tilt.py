import numpy as np
import pytest
import torch

from fintrader.agents import APG, PPO, SAC, NetworkSettings, make_agent
from fintrader.agents.heads import ActionHead
from fintrader.agents.policy import EnsemblePolicy
from fintrader.agents.rebalancing import tilt
from fintrader.agents.settings import ActionHeadSettings
from fintrader.backtesting.baselines import simulate_benchmark_portfolio
from fintrader.backtesting.simulation import simulate
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.errors import ConfigError
from tests.factories import make_market
from tests.oracles.tilt_oracle import tilted
from tests.quick import slow_but

LAYOUT = ObservationLayout(5, 3, 2, benchmark=1)
SETTINGS = EnvSettings(benchmark="equal_weight", decision_interval=20)
MARKET = make_market(1200, 6, session_bars=20, volatility=0.004, events=True)
DAILY = make_market(600, 6, session_bars=1, volatility=0.015, events=True)
WINDOWS = [
    (MARKET, 20, (0, 400), 5),  # a late listing
    (MARKET, 20, (400, 800), 5),  # a change of members
    (make_market(800, 6, session_bars=20, gaps=False, volatility=0.004), 20, (0, 800), 5),
    (MARKET, 1, (400, 800), 5),
    # Where decisions miss the session's first bar, or a symbol ends between two, the account
    # follows a little later.
    (MARKET, 7, (20, 800), 50),
    (MARKET, 20, (0, 1200), 20),  # a symbol that ends
    (DAILY, 1, (0, 470), 5),
    (DAILY, 1, (300, 420), 5),
    (DAILY, 1, (0, 600), 5),  # a symbol that ends
]


def weights(cases, assets, seed, *, cash):
    """Portfolios `[cases, N]`, with names that have no weight; with `cash`, part of them is not
    invested."""
    rng = np.random.default_rng(seed)
    drawn = rng.exponential(size=(cases, assets)) * (rng.random((cases, assets)) > 0.3)
    drawn[drawn.sum(1) == 0, 0] = 1.0
    drawn /= drawn.sum(1, keepdims=True)
    return torch.tensor(drawn * (rng.random((cases, 1)) if cash else 1.0))


@pytest.mark.parametrize(
    ("algo", "market", "interval", "window", "bps"),
    slow_but(
        *range(0, 9, 2),
        9,
        12,
        every=[
            *((PPO, *window) for window in WINDOWS),
            *((algo, *WINDOWS[row]) for algo in (APG, SAC) for row in (0, 5, 8)),
        ],
    ),
)
def test_untrained_it_is_its_benchmark(algo, market, interval, window, bps):
    settings = SETTINGS.model_copy(update={"decision_interval": interval})
    agent = make_agent(algo(), TradingEnv(market, settings, num_envs=1).layout, seed=1)
    assert agent.head.kind == "tilt", "auto, where there is a benchmark"
    played = market.window(*window)
    result = simulate(agent.policy, played, settings)
    expected = simulate_benchmark_portfolio(played, settings)
    assert np.abs(result.equity / expected.equity - 1).max() < bps * 1e-4
    assert abs(expected.equity[-1] / expected.equity[0] - 1) > 5e-3, "nothing happened"
    invested = 1 - (result.cash / result.equity)[2:]  # not everything trades in the first bar
    assert invested.mean() > 0.998
    assert invested.min() > (
        0.99 if (played.last_bar == played.num_bars - 1).all() and interval != 7 else 0.8
    )


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_log_tilt": 0.3, "max_active_tilt": 0.1},
        {"trade_rate": 0.7, "tilt_scale": 0.4},
        {"fully_invested": False},
        {"tilt_scale": 3.0},
    ],
    ids=["default", "tight", "shrunk", "cash", "bold"],
)
def test_the_formula(values):
    settings = ActionHeadSettings(kind="tilt", **values)
    head = ActionHead(LAYOUT, settings)
    cases = 200
    benchmark = weights(cases, 5, 1, cash=False)
    held = weights(cases, 5, 2, cash=True)
    latent = torch.randn(
        cases, head.latents, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    latent *= torch.logspace(-3, 0.5, cases, dtype=torch.float64).unsqueeze(
        1
    )  # from almost nothing to a lot
    actions = tilt(benchmark, held, latent, head.settings)
    given = {
        "max_log_tilt": settings.max_log_tilt,
        "most": settings.max_active_tilt,
        "start_rate": settings.trade_rate,
        "tilt_scale": settings.tilt_scale,
        "fully_invested": settings.fully_invested,
    }
    for row in range(cases):
        expected = tilted(
            benchmark[row].tolist(), held[row].tolist(), latent[row].tolist(), **given
        )
        assert actions[row].tolist() == pytest.approx(expected, abs=1e-12)


def test_what_is_idle_is_invested_and_what_left_the_benchmark_is_sold():
    head = ActionHead(LAYOUT, ActionHeadSettings(kind="tilt"))
    benchmark = torch.tensor([[0.5, 0.3, 0.2, 0.0, 0.0]], dtype=torch.float64)
    held = torch.tensor([[0.2, 0.1, 0.1, 0.4, 0.0]], dtype=torch.float64)
    latent = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    action = tilt(benchmark, held, latent, head.settings)
    assert action[0, 3:].tolist() == [0, 0]
    assert float(action.sum()) == pytest.approx(1.0)
    # Who holds nothing goes to the aim at once, whatever the rate says.
    slow = latent.clone()
    slow[0, 5] = -20.0
    assert torch.allclose(
        tilt(benchmark, torch.zeros_like(held), slow, head.settings),
        tilt(benchmark, 0 * held, latent, head.settings),
    )


def test_no_more_than_allowed_lies_elsewhere():
    latent = 3 * torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    benchmark = weights(50, 5, 1, cash=False)
    cash = torch.zeros_like(benchmark)

    def elsewhere(**values):
        settings = ActionHeadSettings(**values)
        return 0.5 * (tilt(benchmark, cash, latent, settings) - benchmark).abs().sum(1)

    free = elsewhere()
    bound = free > 0.05
    assert 10 < bound.sum() < 50
    assert torch.allclose(elsewhere(max_active_tilt=0.05), free.clamp(max=0.05))
    assert elsewhere(tilt_scale=0.0).max() < 1e-12
    assert torch.allclose(elsewhere(tilt_scale=0.5), 0.5 * free)
    timid = free < 0.01
    assert torch.allclose(elsewhere(tilt_scale=2.0)[timid], 2 * free[timid])


def acting(seed, settings):
    """A policy that bets a lot, and private parts `[R, A + N]` and rows of the market `[R, W]` that
    it may meet."""
    env = TradingEnv(MARKET, SETTINGS, num_envs=30)
    agent = make_agent(settings, env.layout, seed=seed)
    torch.manual_seed(seed)
    for parameter in agent.actor.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    env.reset(seed=seed)
    obs, *_ = env.step(torch.rand(30, 6))
    agent.normaliser.update(obs)
    return agent.policy.eval().requires_grad_(False), obs[:, :10], obs[:, 10:]


NETWORKS = [{}, {"private": ("account", "holdings")}]
HEADS = [{}, {"max_active_tilt": 0.1}, {"fully_invested": False}]


@pytest.mark.parametrize("network", NETWORKS, ids=["blind", "seeing"])
def test_bound_to_a_market_it_acts_as_it_does_itself(network):
    members = []
    for seed, head in enumerate(HEADS):
        settings = PPO(network=NetworkSettings(**network), head=ActionHeadSettings(**head))
        policy, private, rows = acting(seed, settings)
        members.append(policy)
    members.append(acting(9, PPO(head=ActionHeadSettings(kind="aim")))[0])
    for policy in [*members, EnsemblePolicy(members, [1.0, 2.0, 3.0, 4.0], "weighted").eval()]:
        expected = policy(torch.cat([private, rows], dim=1)).numpy()
        assert expected.std() > 0.01
        bound = policy.bind(rows.numpy())
        assert bound is not None
        found = np.stack(
            [bound(bar, private[bar : bar + 1].numpy())[0] for bar in range(len(rows))]
        )
        assert found == pytest.approx(expected, abs=2e-5)


def test_without_a_benchmark_or_features_it_is_refused():
    asked = ActionHeadSettings(kind="tilt")
    with pytest.raises(
        ConfigError, match=r"needs a benchmark to tilt away from: set env.benchmark to equal_weight"
    ):
        ActionHead(ObservationLayout(5, 3, 2), asked)
    with pytest.raises(
        ConfigError, match=r"needs features to tilt by: name some in data.features.names"
    ):
        ActionHead(ObservationLayout(5, 0, 2, benchmark=1), asked)
    assert ActionHead(ObservationLayout(5, 0, 2, benchmark=1), ActionHeadSettings()).kind == "aim"
    alone = ObservationLayout(1, 3, 2, benchmark=1)
    with pytest.raises(ConfigError, match=r"set agent.head.kind to aim"):
        make_agent(PPO(), alone)
    for able in (ActionHeadSettings(kind="aim"), ActionHeadSettings(fully_invested=False)):
        make_agent(PPO(head=able), alone)
    assert ActionHead(ObservationLayout(5, 3, 2), ActionHeadSettings()).kind == "aim"
