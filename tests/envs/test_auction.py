"""Traders of one market whose orders rest: the opening at which they meet each other, against plain
Python and in numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fintrader
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.games import hold_auction
from fintrader.envs.rivals import RivalsEnv
from fintrader.envs.settings import TraderSettings
from tests.engines.strategies import random_actions
from tests.factories import examples, make_market, market_of
from tests.oracles.auction_oracle import open_bar

QUIET = {"cost_bps": 0.0, "half_spread_bps": 0.0, "impact_bps": 0.0}


def game(teams, impact, **changes):
    traders = TraderSettings(teams=teams, impact_bps_per_million_usd=impact)
    return EnvSettings(**{"action": "limit", "fractional": True, "traders": traders, **changes})


@pytest.mark.parametrize("impact", [0.0, 30.0, 3000.0, 1e6])
@pytest.mark.parametrize("sides", [1, 2])
def test_the_opening_is_that_of_plain_python(impact, sides):
    rng = np.random.default_rng(int(impact) + sides)
    settings = game((1, 2), impact)
    games = examples(400, quick=120)
    price = np.repeat(rng.uniform(5, 200, (games, 2)), 3, axis=0)
    orders = rng.normal(0, 3000, (games * 3, sides, 2)) * (rng.random((games * 3, sides, 2)) > 0.2)
    # A grid of limits, so that several orders share one.
    limits = price[:, None] * (1 + 0.01 * rng.integers(-12, 13, orders.shape))
    limits *= 1 + 1e-6  # none equals the quoted price, whose opening without impact needs no order
    found = hold_auction(*map(torch.from_numpy, (orders, limits, price)), settings)
    for number in range(games):
        rows = slice(3 * number, 3 * number + 3)
        for asset in range(2):
            book = list(zip(orders[rows, :, asset].flat, limits[rows, :, asset].flat, strict=True))
            quoted = float(price[3 * number, asset])
            kappa = settings.impact_per_usd
            opened, fills = open_bar(book, quoted, kappa)
            assert found.price[rows, asset].tolist() == pytest.approx([opened] * 3, rel=1e-9)
            mine = found.shares[rows, :, asset].flatten().tolist()
            assert mine == pytest.approx(fills, rel=1e-6, abs=1e-4)
            if kappa > 1e-12 and abs(opened / quoted - 1) < 0.0999:  # the market took the rest
                assert sum(mine) * kappa * quoted == pytest.approx(opened / quoted - 1, abs=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"action": "quote"},
        {"action": "quote", "stop_offset_bps": 80.0, "decision_interval": 3, "short": True},
        {"stop_offset_bps": 80.0, "limit_margin_bps": 20.0, "time_in_force": 2},
        {"fractional": False, "participation": 0.0001, "cost_bps": 10.0},
    ],
)
def test_without_impact_and_spread_each_trader_is_a_plain_account(changes):
    """Who meets whom makes no difference where the market trades any size at one price."""
    market = make_market(80, 3, events=True, volume=1e7)
    how = {**QUIET, "limit_offset_bps": 120.0, "start": "first", **changes}
    together = TradingEnv(market, game((1, 1, 1), 0.0, **how), num_envs=12, seed=5)
    settings = EnvSettings(**{"action": "limit", "fractional": True, **how})
    alone = TradingEnv(market, settings, num_envs=12, engine="torch", seed=5)
    together.reset()
    alone.reset()
    width = together.layout.num_actions
    traded = 0.0
    for action in random_actions(3, 20, 12, width):
        for one, other in zip(together.step(action)[:4], alone.step(action)[:4], strict=True):
            assert torch.equal(one, other)
        traded += float(together.account.shares.abs().sum())
    assert traded > 0


def flat(bars=6, low=99.0, high=101.0):
    """Every bar opens and closes at 100 USD."""
    level = np.full((bars, 1), 100.0)
    return market_of(level, bars, open=level, low=level * low / 100, high=level * high / 100)


def order(weight, offset):
    """A target weight, and the distance of its limit from the close in parts of 100 basis
    points."""
    return [weight, offset]


def test_traders_that_cross_pay_no_spread():
    settings = game(
        (1, 1, 1), 0.0, limit_offset_bps=100.0, cost_bps=0.0, half_spread_bps=50.0, start="first"
    )
    env = TradingEnv(flat(), settings, num_envs=3, seed=0)
    env.reset()
    env.step(torch.tensor([order(1.0, 1.0), order(0.0, 0.0), order(0.0, 0.0)]))
    bought = env.account.shares[0, 0].item()
    assert bought == pytest.approx(1e6 / 100 / 1.005, rel=1e-3)  # from the market, with its spread
    before = env.account.equity.clone()
    env.step(torch.tensor([order(0.0, -1.0), order(0.5, 1.0), order(0.0, 0.0)]))
    sold, taken, _ = env.account.shares[:, 0].tolist()
    assert sold == 0.0
    assert taken == pytest.approx(5000.0, rel=1e-9)
    paid = (before - env.account.equity).tolist()
    assert paid[1] == 0.0, "all of it came from the first trader"
    outside = 100.0 * (bought - taken)
    assert paid[0] == pytest.approx(0.005 * outside, rel=1e-6), "the rest went to the market"
    assert paid[2] == 0.0


def test_an_order_is_filled_as_far_as_the_price_stays_within_its_limit():
    """10 basis points a million USD: 1,000,000 USD move the price of 100 USD to 100.10 USD."""
    settings = game((1, 1), 10.0, **QUIET, limit_offset_bps=5.0, start="first", short=True)
    env = TradingEnv(flat(low=100.0, high=100.0), settings, num_envs=2, seed=0)
    env.reset()
    env.step(torch.tensor([order(1.0, 1.0), order(0.0, 0.0)]))
    # The limit of 100.05 USD is reached by 500,000 USD at the quoted price; the rest waits.
    assert env.account.shares[:, 0].tolist() == pytest.approx([5000.0, 0.0])
    assert env.account.cash[0].item() == pytest.approx(1e6 - 5000 * 100.05)
    env.reset()
    env.step(torch.tensor([order(1.0, 1.0), order(-0.4, -1.0)]))
    # The second trader's 4,000 shares go to the first at the price of the first one's limit.
    assert env.account.shares[:, 0].tolist() == pytest.approx([9000.0, -4000.0])
    assert env.account.cash[0].item() == pytest.approx(1e6 - 9000 * 100.05)


def test_orders_without_a_limit_move_the_price_as_market_orders_do():
    market = make_market(40, 3, gaps=False)
    traders = TraderSettings(teams=(1, 2), impact_bps_per_million_usd=50.0)
    how = {**QUIET, "fractional": True, "traders": traders, "episode_bars": 9}
    at_market = TradingEnv(market, EnvSettings(**how), num_envs=30, seed=2)
    wide = EnvSettings(action="limit", limit_offset_bps=5000.0, **how)
    resting = TradingEnv(market, wide, num_envs=30, seed=2)
    at_market.reset()
    resting.reset()
    rng = torch.Generator().manual_seed(1)
    # From cash: first purchases, then sales of all, so that no budget binds.
    for weights in (torch.rand(30, 3, generator=rng) / 6, torch.zeros(30, 3)):
        wish = torch.where(weights > 0, 1.0, -1.0)
        reward = at_market.step(weights)[1]
        other = resting.step(torch.cat((weights, wish), 1))[1]
        assert reward.abs().max() > 0
        torch.testing.assert_close(other, reward)


def test_a_purchase_that_cannot_fill_is_no_counterparty():
    market = flat()
    market = replace(market, member=torch.zeros_like(market.member))
    settings = game((1, 1), 0.0, cost_bps=0.0, half_spread_bps=50.0, start="first", short=True)
    env = TradingEnv(market, settings, num_envs=2, seed=0)
    env.reset(options={"shares": torch.tensor([[1000.0], [0.0]])})
    before = env.account.equity[0].item()
    env.step(torch.tensor([order(0.0, -1.0), order(0.5, 1.0)]))
    assert env.account.shares[:, 0].tolist() == [0.0, 0.0]
    paid = before - env.account.equity[0].item()
    assert paid == pytest.approx(0.005 * 1000 * 100), "the market took all of it, with its spread"


@pytest.mark.parametrize("action", ["limit", "quote"])
def test_other_doors_take_the_wider_actions(action):
    market = make_market(60, 2)
    settings = game((1, 2), 20.0, action=action, episode_bars=6)
    env = TradingEnv(market, settings, num_envs=6, seed=1)
    rivals = RivalsEnv(env, [lambda obs: obs.new_ones(len(obs), 4)])
    rivals.reset()
    assert rivals.step(torch.rand(2, 4))[1].isfinite().all()
    pytest.importorskip("pettingzoo")
    from fintrader.envs.adapters.pettingzoo import TradersParallelEnv

    parallel = TradersParallelEnv(market, settings, settings.traders, seed=1)
    parallel.reset(seed=1)
    actions = {one: parallel.action_space(one).sample() for one in parallel.agents}
    assert actions["trader_0"].shape == (4,)
    assert np.isfinite([*parallel.step(actions)[1].values()]).all()


def test_a_shared_policy_learns_to_trade_by_orders_that_rest():
    settings = game((1, 1), 20.0, action="quote", episode_bars=12)
    env = TradingEnv(make_market(60, 2), settings, num_envs=16, seed=1)
    assert env.engine == "torch (traders share the price)"
    trained = fintrader.train("ppo", env, env_steps=640, seed=1)
    action = trained.policy(env.reset()[0])
    assert action.shape == (16, env.layout.num_actions)
    assert action.isfinite().all()
