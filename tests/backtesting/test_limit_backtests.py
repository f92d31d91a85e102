"""Backtests of limit orders: the compiled account against the environment's, its trades, and what
does not follow limit orders."""

import numpy as np
import pytest
import torch

import fintrader
from fintrader.agents import ActionHeadSettings, NetworkSettings, make_agent
from fintrader.agents.heads import ActionHead
from fintrader.agents.network_kinds import resolve_network
from fintrader.agents.rebalancing import approach
from fintrader.backtesting import simulate
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.benchmark import lay_out
from fintrader.errors import BacktestError, ConfigError
from fintrader.market.tensors import Events
from tests.factories import make_market, market_of
from tests.oracles.trade_list import trade_list_profit
from tests.quick import slow_but

CASES = [
    {},
    {"decision_interval": 5, "time_in_force": 3, "limit_margin_bps": 2},
    {"fractional": True, "decision_interval": 3},
    {"short": True, "max_leverage": 2.0, "borrow_bps_per_year": 300, "maintenance_margin": 0.3},
    {"impact_bps": 20, "half_spread_bps": 3, "min_commission_usd": 1, "decision_interval": 4},
    {"turbulence": {"c0": 0.5}, "limit_offset_bps": 200},
    {"stop_offset_bps": 30, "decision_interval": 3, "half_spread_bps": 2},
    {"action": "quote", "quote_weight": 0.01, "decision_interval": 2, "impact_bps": 20},
    {
        "action": "quote",
        "stop_offset_bps": 40,
        "quote_weight": 0.05,
        "short": True,
        "maintenance_margin": 0.3,
        "turbulence": {"c0": 1.0},
    },
]


@pytest.fixture
def market():
    return make_market(120, 4, 2, seed=5, events=True, volume=1e5)


def random_policy(market, chosen):
    layout = lay_out(market, chosen)
    weights = torch.randn(layout.width, layout.num_actions, generator=torch.manual_seed(1))
    return lambda obs: torch.tanh(obs @ (0.3 * weights))


def play(policy, market, chosen):
    """Equity at each bar, cost and turnover in the environment."""
    env = TradingEnv.evaluation(market, chosen)
    obs, _ = env.reset()
    equity = [float(env.equity[0])]
    cost = turnover = 0.0
    while True:
        obs, _, terminated, truncated, info = env.step(policy(obs))
        equity += info["bar_equity"][0].tolist()
        cost += float(info["cost"][0])
        turnover += float(info["turnover"][0])
        if terminated | truncated:
            return np.array(equity)[: market.num_bars], cost, turnover


@pytest.mark.parametrize("case", slow_but(0, 1, 4, 6, 8, every=CASES))
def test_a_backtest_is_the_environments_account(case, market):
    chosen = EnvSettings(**{"action": "limit"} | case)
    policy = random_policy(market, chosen)
    result = simulate(policy, market, chosen)
    equity, cost, turnover = play(policy, market, chosen)
    assert (result.equity == equity).all()
    assert result.turnover_usd.sum() == pytest.approx(turnover, abs=1e-3)
    assert result.costs_usd.sum() == pytest.approx(cost, abs=1e-3)
    assert trade_list_profit(result) == pytest.approx(equity[-1] - equity[0], abs=1.0)
    assert len(result.trades) > 50


def test_orders_that_rest_are_counted(market):
    """A price far below the close is never reached; at one far above it purchases fill at the next
    open, and sales never."""
    chosen = EnvSettings(action="limit", limit_offset_bps=4000, participation="none")
    weights = [0.2, 0.2, 0.2, 0.2]
    low = simulate(lambda _: torch.tensor([[*weights, *[-1.0] * 4]]), market, chosen)
    assert low.orders.given > 300
    assert low.orders.unfilled == low.orders.given
    assert not len(low.trades)
    high = simulate(lambda _: torch.tensor([[*weights, *[1.0] * 4]]), market, chosen)
    filled = high.trades.query("kind == 'order'")
    assert len(filled) > 20
    assert (filled["shares"] > 0).all()
    column = filled["symbol"].map(market.symbols.index)
    opens = market.open[filled["fill_bar"].to_numpy(), column.to_numpy()].double().numpy()
    assert (filled["price_usd"] == opens).all()


def buy_once(market, first, **rules):
    """A backtest that gives one order, at the first decision."""
    chosen = EnvSettings(
        cost_bps=10.0, fractional=True, participation="none", benchmark="cash", **rules
    )
    asked = iter([torch.tensor([first])])
    nothing = torch.zeros(1, len(first))
    return simulate(lambda _: next(asked, nothing), market, chosen)


@pytest.mark.parametrize("split", [1.0, 4.0, 0.1])
def test_fills_are_compared_with_the_last_close(split):
    """A close of 100 at the decision: a purchase at 98 is 2 % better, one at an open of 103 is 3 %
    worse, whatever it costs and whether a split lies between."""
    after = np.array([[100.0, 100, 97, 97]]).T / np.array([[1, 1, split, split]]).T
    opens = np.array([[100.0, 100, 103, 97]]).T / np.array([[1, 1, split, split]]).T
    market = market_of(
        after,
        4,
        open=opens,
        low=np.fmin(after, opens),
        events=Events.of([(2, 0, split, 0.0)] if split != 1.0 else []),
    ).window(1, 4)
    limit = buy_once(market, [0.5, -1.0], action="limit", limit_offset_bps=200.0)
    assert limit.metrics["price_improvement_bps"] == pytest.approx(200.0 / 0.98, abs=0.01)
    at_once = buy_once(market, [0.5], action="trade")
    assert at_once.metrics["price_improvement_bps"] == pytest.approx(-300.0 / 1.03, abs=0.01)
    assert (limit.orders.given, limit.orders.unfilled, at_once.orders.given) == (2, 1, 1)


@pytest.mark.parametrize(
    ("algo", "rules"),
    slow_but(
        0,
        2,
        every=[
            ("ppo", {"action": "limit"}),
            ("sac", {"action": "limit", "stop_offset_bps": 50.0}),
            ("ppo", {"action": "quote", "stop_offset_bps": 50.0, "short": True}),
            ("td3", {"action": "quote"}),
        ],
    ),
)
def test_agents_learn_with_prices(algo, rules, market):
    trained = fintrader.train(algo, TradingEnv(market, **rules, num_envs=16), env_steps=320)
    result = simulate(trained.policy, market, EnvSettings(**rules))
    assert np.isfinite(result.equity).all()
    assert result.orders.given > 0


def test_a_policy_that_names_prices_needs_its_settings():
    train, _, test = make_market(900, 4, 2, seed=5, gaps=False).split()
    trained = fintrader.train("ppo", TradingEnv(train, action="limit", num_envs=8), env_steps=500)
    with pytest.raises(BacktestError, match=r"EnvSettings\(action='limit'\)"):
        fintrader.backtest(trained.policy, test)
    with pytest.raises(BacktestError, match="another form of orders"):
        fintrader.backtest(trained.policy, test, EnvSettings(action="limit", stop_offset_bps=9.0))
    chosen = EnvSettings(action="limit")
    assert fintrader.backtest(trained.policy, test, chosen)["policy"].orders.given > 0


def test_the_head_gives_weights_and_then_prices(market):
    layout = lay_out(market, EnvSettings(action="limit"))
    head = ActionHead(layout, ActionHeadSettings(kind="aim"))
    obs = torch.randn(7, layout.width)
    latent = torch.randn(7, head.latents)
    action = head.decode(obs, latent)
    assert torch.equal(action[:, :4], head.aim(latent[:, :-4]))
    assert torch.equal(action[:, 4:], latent[:, -4:].clamp(-1, 1))
    stopping = lay_out(market, EnvSettings(action="limit", stop_offset_bps=50.0))
    head = ActionHead(stopping, ActionHeadSettings(kind="aim"))
    latent = torch.randn(7, head.latents)
    action = head.decode(torch.randn(7, stopping.width), latent)
    assert torch.equal(action[:, :4], head.aim(latent[:, :-8]))
    assert torch.equal(action[:, 4:], latent[:, -8:].clamp(-1, 1))
    quoting = lay_out(market, EnvSettings(action="quote"))
    head = ActionHead(quoting, ActionHeadSettings())
    assert (head.kind, head.latents) == ("direct", 8)
    for limit in (layout, stopping):
        head = ActionHead(limit, ActionHeadSettings(kind="weights"))
        others = limit.num_actions - 4
        assert head.latents == 8 + others
        obs = torch.rand(7, limit.width)
        latent = torch.randn(7, head.latents)
        action = head.decode(obs, latent)
        held = obs[:, limit.slices["holdings"]]
        weights = approach(held, latent[:, :8], head.settings, short=limit.short)
        assert torch.equal(action[:, :4], weights)
        assert torch.equal(action[:, 4:], latent[:, 8:].clamp(-1, 1))
    with pytest.raises(ConfigError, match="quote takes prices"):
        ActionHead(quoting, ActionHeadSettings(kind="weights"))
    with pytest.raises(ConfigError, match="quote takes prices"):
        ActionHead(quoting, ActionHeadSettings(kind="tilt"))
    assert resolve_network(NetworkSettings(), layout, head).kind == "mlp"
    with pytest.raises(ConfigError, match="does not read resting orders"):
        resolve_network(NetworkSettings(kind="market_once"), layout, head)


def test_what_has_no_orders_that_rest_says_so(market):
    with pytest.raises(ConfigError, match="needs fill: next_open"):
        TradingEnv(market, action="limit", fill="close")
    with pytest.raises(ConfigError, match="gradients, and resting orders have none"):
        fintrader.train("apg", TradingEnv(market, action="limit", num_envs=4), env_steps=100)


def test_a_state_without_orders_is_one_of_an_earlier_version(market):
    env = TradingEnv(market, num_envs=4)
    env.reset(seed=1)
    state = env.state_dict()
    del state["account.resting"]
    env.load_state_dict(state)
    resting = TradingEnv(market, num_envs=4, action="limit")
    resting.reset(seed=1)
    with pytest.raises(Exception, match=r"account\.resting missing"):
        resting.load_state_dict(state)


def test_a_policy_before_orders_rested_is_read(market):
    from fintrader.envs.observation import layout_from_json, layout_to_json

    layout = lay_out(market, EnvSettings())
    stored = layout_to_json(layout)
    del stored["layout"]["resting"]
    assert layout_from_json(stored) == layout
    assert make_agent(fintrader.agents.PPO(), layout, seed=0).head.latents == 5
