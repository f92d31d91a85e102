"""Orders that rest at a price: against the one-account loop, engine against engine, and in numbers
worked out by hand."""

import copy
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.joined import JoinedEnv
from fintrader.envs.randomised import RandomisedEnv
from fintrader.market.tensors import Events
from tests.engines.strategies import env_settings, random_actions
from tests.engines.twins import assert_bit_equal
from tests.envs.test_ledger_oracle import GIVEN, MODES, SIGHT, compare
from tests.factories import examples, make_market, market_of

# --- random settings ------------------------------------------------------------------------------


@settings(max_examples=examples(16))
@given(
    config=env_settings(limit=True),
    sight=SIGHT,
    seed=st.integers(0, 10_000),
    mode=MODES,
    given=GIVEN,
)
def test_the_environment_agrees_with_the_oracle(config, sight, seed, mode, given):
    config = config.model_copy(update=sight)
    assert compare(config, seed, 40, mode=mode, given=given) > 0


@pytest.mark.slow
def test_a_hundred_thousand_steps_agree():
    total = 0

    @settings(
        max_examples=105, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        config=env_settings(limit=True),
        sight=SIGHT,
        seed=st.integers(0, 10**9),
        mode=MODES,
        given=GIVEN,
    )
    def agree(config, sight, seed, mode, given):
        nonlocal total
        total += compare(
            config.model_copy(update=sight), seed, 60, count=16, mode=mode, given=given
        )

    agree()
    assert total >= 50_000


def test_limits_away_from_the_close_fill_sometimes():
    """Otherwise the random markets would try little."""
    market = make_market(60, 5, seed=1, volatility=0.03)
    config = EnvSettings(
        action="limit", limit_offset_bps=200.0, decision_interval=2, cost_bps=0.0, short=True
    )
    env = TradingEnv(market, config, num_envs=16, seed=0, record=True)
    env.reset()
    at_open = at_limit = none = 0
    for action in random_actions(3, 20, 16, 10):
        *_, info = env.step(action)
        ordered = info["ordered"] != 0
        filled = info["fill_shares"] != 0
        opens = (info["fill_price"] - market.open[info["fill_bar"]].double()).abs() < 1e-9
        none += int((ordered & ~filled).sum())
        at_open += int((filled & opens).sum())
        at_limit += int((filled & ~opens).sum())
    assert min(at_open, at_limit, none) > 100


@settings(max_examples=examples(16))
@given(
    config=env_settings(limit=True),
    seed=st.integers(0, 10_000),
    mode=MODES,
    factored=st.booleans(),
    endowed=st.booleans(),
    cheapest=st.sampled_from([0.02, 25.0]),
)
def test_the_fused_engine_is_bit_equal(config, seed, mode, factored, endowed, cheapest):
    config = config.model_copy(update={"observation": "factored" if factored else "flat"})
    market = make_market(
        60, 5, seed=seed % 5, volatility=0.04, volume=(1e9, 400.0)[seed % 2], events=seed % 3 > 0
    )
    scale = cheapest / 25.0
    prices = {name: getattr(market, name) * scale for name in ("open", "high", "low", "close")}
    paid = market.events.dividend_usd * scale
    market = replace(market, events=market.events._replace(dividend_usd=paid), **prices)
    slow, fast = (
        TradingEnv(market, config, num_envs=9, seed=seed, autoreset_mode=mode, engine=engine)
        for engine in ("torch", "fused")
    )
    assert fast.engine == "fused"
    width = slow.layout.num_actions
    assert_bit_equal(slow, fast, random_actions(seed, 30, 9, width), endowed=endowed)


# --- exact numbers --------------------------------------------------------------------------------

QUIET = (100.0, 100.0, 100.0, 100.0)
"""Open, high, low and close of a bar."""
BELOW = (100.0, 100.0, 98.0, 100.0)
"""A bar that trades through 99."""


@pytest.fixture(params=["torch", "fused"])
def engine(request):
    return request.param


def open_account(engine, *assets, cash=1000.0, shares=None, given=None, **rules):
    """One account in a market of bars (open, high, low, close) of each asset. Prices of its orders
    lie up to 1 % from the close; nothing costs anything unless the rules say so."""
    opens, highs, lows, closes = np.array(assets).transpose(2, 1, 0)
    prices = {"open": opens, "high": highs, "low": lows}
    market = market_of(closes, len(closes), **prices, **(given or {}))
    free = {"limit_offset_bps": 100.0, "cost_bps": 0.0, "participation": None, "ruin_fraction": 0.0}
    env = TradingEnv(
        market,
        EnvSettings(start="first", **{"action": "limit"} | free | rules),
        num_envs=1,
        seed=0,
        engine=engine,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    owned = {} if shares is None else {"shares": torch.tensor(shares, dtype=torch.float64)}
    env.reset(options={"start": 0, "cash_usd": cash, **owned})
    return env


def decide(env, *action):
    """Carry out one decision: weights, then prices. Returns cash and shares."""
    env.step(torch.tensor([action]))
    return float(env.account.cash), env.account.shares[0].tolist()


@pytest.mark.parametrize(("low", "bought"), [(99.0, 0), (98.99, 10)])
def test_a_purchase_fills_where_the_bar_trades_through_its_price(engine, low, bought):
    env = open_account(engine, [QUIET, (100.0, 100.0, low, 100.0)])
    assert decide(env, 1.0, -1.0) == (1000.0 - 99.0 * bought, [bought])


@pytest.mark.parametrize(("high", "sold"), [(101.0, 0), (101.01, 10)])
def test_a_sale_fills_where_the_bar_trades_through_its_price(engine, high, sold):
    env = open_account(engine, [QUIET, (100.0, high, 100.0, 100.0)], cash=5.0, shares=[10.0])
    assert decide(env, 0.0, 1.0) == (5.0 + 101.0 * sold, [10 - sold])


@pytest.mark.parametrize(
    ("open_", "price", "takes"),
    # Between its price and the close; at its price; below.
    [(99.5, 99.0, False), (99.0, 99.0, True), (97.0, 97.0, True)],
)
def test_what_fills_at_the_open_pays_spread_and_impact(engine, open_, price, takes):
    costs = {"cost_bps": 10.0, "half_spread_bps": 40.0, "impact_bps": 100.0}
    volume = {"volume": np.full((2, 1), 1000.0)}
    bars = [QUIET, (open_, 100.0, 96.0, 100.0)]
    env = open_account(engine, bars, cash=1009.0, given=volume, **costs)
    cash, shares = decide(env, 1.0, -1.0)
    x = 10 * price
    # The order is a hundredth of the volume: a tenth of the impact.
    cost = x * 0.001 + takes * x * (0.004 + 0.01 * 0.1)
    assert shares == [10.0]
    assert cash == pytest.approx(1009.0 - x - cost, abs=2e-6)


@pytest.mark.parametrize(("open_", "price"), [(100.5, 101.0), (101.0, 101.0), (103.0, 103.0)])
def test_a_sale_beyond_its_price_fills_at_the_open(engine, open_, price):
    bars = [QUIET, (open_, 104.0, 100.0, 100.0)]
    env = open_account(engine, bars, cash=0.0, shares=[10.0], half_spread_bps=40.0)
    cash, shares = decide(env, 0.0, 1.0)
    assert shares == [0.0]
    assert cash == pytest.approx(10 * price * (1.0 - 0.004 * (open_ >= 101.0)), abs=2e-6)


@pytest.mark.parametrize(("interval", "bought"), [(1, 4), (2, 7), (3, 7), (4, 7), (5, 10)])
def test_bars_fill_a_part_each(engine, interval, bought):
    """A tenth of the volume; nothing in a bar that does not reach the price, or has no trade."""
    volume = np.array([[0.0], [40.0], [30.0], [1000.0], [0.0], [1000.0]])
    given = {"volume": volume, "tradable": volume > 0}
    bars = [QUIET, BELOW, BELOW, QUIET, QUIET, BELOW]
    rules = {"participation": 0.1, "decision_interval": interval}
    env = open_account(engine, bars, given=given, **rules)
    assert decide(env, 1.0, -1.0) == (1000.0 - 99.0 * bought, [bought])


def test_each_part_pays_the_least_commission(engine):
    given = {"volume": np.array([[0.0], [40.0], [30.0], [1000.0]])}
    rules = {"participation": 0.1, "decision_interval": 3, "min_commission_usd": 2.0}
    env = open_account(engine, [QUIET, BELOW, BELOW, BELOW], cash=1050.0, given=given, **rules)
    assert decide(env, 1.0, -1.0) == (1050.0 - 990.0 - 6.0, [10.0])


@pytest.mark.parametrize(
    ("time_in_force", "bought"), [(1, 0), (2, 10), (3, 10), (9, 10), (None, 10)]
)
def test_orders_end_with_their_time(engine, time_in_force, bought):
    rules = {"decision_interval": 3, "time_in_force": time_in_force}
    env = open_account(engine, [QUIET, QUIET, BELOW, QUIET], **rules)
    assert decide(env, 1.0, -1.0)[1] == [bought]


def test_a_decision_cancels_what_rests_and_places_its_own(engine):
    up = (104.0, 104.0, 104.0, 104.0)
    through = (104.0, 104.0, 98.0, 104.0)
    bars = [QUIET, up, through, through]
    env = open_account(engine, bars, time_in_force=9)
    assert decide(env, 1.0, -1.0) == (1000.0, [0.0])
    assert decide(env, 0.0, -1.0) == (1000.0, [0.0])  # the order at 99 is gone
    # A share for a tenth of 1,000 USD at 104: nine of them, at 1 % below 104.
    cash, shares = decide(env, 1.0, -1.0)
    assert shares == [9.0]
    assert cash == pytest.approx(1000.0 - 9 * 102.96, abs=2e-6)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize(("interval", "bought", "cash"), [(1, 2, 1062.0), (2, 12, 72.0)])
def test_a_sale_pays_for_no_purchase_of_its_bar(engine, short, interval, bought, cash):
    """Of twelve shares ordered the 250 USD pay two, and the next bar has the proceeds."""
    above = (100.0, 102.0, 100.0, 100.0)
    sold = [QUIET, above, above]
    asked = [QUIET, BELOW, BELOW]
    env = open_account(
        engine,
        *(sold, asked),
        cash=250.0,
        shares=[10.0, 0.0],
        decision_interval=interval,
        short=short,
    )
    assert decide(env, 0.0, 1.0, 1.0, -1.0) == (cash, [0.0, bought])


def test_what_a_sale_costs_is_not_spent_on_a_purchase(engine):
    """At leverage 2 a sale of 101 USD that costs as much takes more room than it gives."""
    above = (100.0, 102.0, 100.0, 100.0)
    env = open_account(
        engine,
        *([QUIET, above], [QUIET, BELOW], [QUIET, QUIET]),
        cash=0.0,
        shares=[1.0, 0.0, 9.0],
        short=True,
        max_leverage=2.0,
        min_commission_usd=101.0,
    )
    # Ten shares ordered. Before the sale there is room for 1,001 USD, after it for 900; twice the
    # commission is kept back, which leaves 7.05 shares at 99.
    cash, shares = decide(env, 0.0, 1.0, 0.9, 1.0, -1.0, 0.0)
    assert shares == [0.0, 7.0, 9.0]
    assert cash == 101.0 - 101.0 - 7 * 99.0 - 101.0
    assert 2.0 * (cash + 7 * 99.0 + 900.0) >= 7 * 99.0 + 900.0


@pytest.mark.parametrize(("low", "bought"), [(49.5, 0), (49.49, 20)])
def test_a_split_doubles_an_order_and_halves_its_price(engine, low, bought):
    bars = [QUIET, QUIET, (50.0, 50.0, low, 50.0)]
    given = {"events": Events.of([(2, 0, 2.0, 0.0)])}
    env = open_account(engine, bars, decision_interval=2, given=given)
    assert decide(env, 1.0, -1.0) == (1000.0 - 49.5 * bought, [bought])


def test_a_dividend_leaves_orders_alone(engine):
    bars = [QUIET, QUIET, (99.5, 99.5, 98.9, 99.5)]
    given = {"events": Events.of([(2, 0, 1.0, 0.5)])}
    env = open_account(engine, bars, cash=500.0, shares=[5.0], decision_interval=2, given=given)
    assert decide(env, 1.0, -1.0) == (500.0 + 2.5 - 5 * 99.0, [10.0])


@pytest.mark.parametrize(
    ("open_", "low", "cash", "bought"),
    [
        (100.0, 98.51, 1000.0, 0),
        (100.0, 98.5, 10.0, 10),
        (98.75, 98.5, 12.5, 10),
        (98.6, 98.6, 1000.0, 0),
    ],
)
def test_a_margin_lies_beyond_the_price(engine, open_, low, cash, bought):
    """50 basis points below 99 are 98.505."""
    bars = [QUIET, (open_, 100.0, low, 100.0)]
    env = open_account(engine, bars, limit_margin_bps=50.0)
    assert decide(env, 1.0, -1.0) == (cash, [bought])


@pytest.mark.parametrize(("interval", "left"), [(1, 7), (2, 4)])
def test_turbulence_sells_at_the_open_whatever_the_price(engine, interval, left):
    given = {
        "context": np.array([[5.0], [0.0], [0.0]]),
        "volume": np.full((3, 1), 30.0),
    }
    low = (90.0, 90.0, 90.0, 90.0)
    rules = {
        "turbulence": {"c0": 3.0},
        "participation": 0.1,
        "limit_margin_bps": 100.0,
        "half_spread_bps": 100.0,
        "decision_interval": interval,
    }
    bars = [QUIET, low, low]
    env = open_account(engine, bars, cash=0.0, shares=[10.0], given=given, **rules)
    cash, shares = decide(env, 1.0, 1.0)
    assert shares == [left]
    assert cash == pytest.approx(90.0 * 0.99 * (10 - left))


def test_orders_end_with_the_last_bar_of_their_symbol(engine):
    gone = (np.nan,) * 4
    listed = np.array([[True, True]] * 3 + [[False, True]] * 2)
    env = open_account(
        engine,
        *([QUIET, QUIET, BELOW, gone, gone], [QUIET] * 5),
        cash=500.0,
        shares=[5.0, 0.0],
        decision_interval=3,
        given={"tradable": listed, "benchmark": np.full(5, 100.0)},
    )
    # What would enlarge the position does not fill in the last bar, at whose close it is sold.
    assert decide(env, 1.0, 0.0, -1.0, 0.0) == (1000.0, [0.0, 0.0])
    assert not env.account.resting.any()


def squeezed(engine, context):
    """20 shares sold short, and a bar that calls for more margin: its close takes all of them."""
    rises = (125.0,) * 4
    falls = (99.0,) * 4
    return open_account(
        engine,
        [QUIET, rises, falls, falls],
        cash=2900.0,
        shares=[-20.0],
        given={"context": np.full((4, 1), context), "volume": np.full((4, 1), 50.0)},
        short=True,
        maintenance_margin=0.3,
        participation=0.1,
        decision_interval=3,
        turbulence={"c0": 3.0},
    )


@pytest.mark.parametrize("context", [5.0, 0.0], ids=["turbulence", "exit"])
def test_no_position_is_opened_by_what_a_margin_call_has_closed(engine, context):
    """In turbulence nothing is bought; five shares fill in each bar."""
    env = squeezed(engine, context)
    cash, shares = decide(env, 0.0, 1.0)
    assert cash == 400.0
    assert shares == [0.0]


def test_a_whole_share_rests_on_however_cheap(engine):
    cheap = (0.004,) * 4
    through = (0.004, 0.004, 0.003, 0.004)
    env = open_account(
        engine,
        [cheap, through, through],
        cash=101 * 0.00401,
        participation=0.1,
        decision_interval=2,
        given={"volume": np.full((3, 1), 1000.0)},
    )
    assert decide(env, 1.0, -1.0)[1] == [101.0]


# --- what is seen ---------------------------------------------------------------------------------


def seen(env, *action):
    """The columns of orders after a decision, `[3, N]`."""
    obs = env.step(torch.tensor([action]))[0]
    return env.layout.split(obs)["resting"][0].double().numpy()


def test_columns_of_what_rests(engine):
    """Weight of what is left, distance of its price, share of its time."""
    bars = [QUIET, (100.0, 102.0, 98.0, 102.0)]
    other = [QUIET, QUIET]
    given = {"volume": np.array([[40.0, 40.0]] * 2)}
    env = open_account(engine, *(bars, other), given=given, participation=0.1, time_in_force=4)
    # 5 shares at 99, of which 4 fill and are worth 102 then; 3 shares at 99.5 that do not fill.
    columns = seen(env, 0.5, 0.3, -1.0, -0.5)
    equity = 1000.0 + 4 * (102.0 - 99.0)
    assert columns == pytest.approx(
        np.array([[102.0 / equity, 300.0 / equity], [99.0 / 102.0 - 1, -0.005], [0.25, 0.25]])
    )


def test_a_sale_is_negative_and_far_prices_are_cut(engine):
    up = (40.0,) * 4
    env = open_account(engine, [QUIET, up], cash=500.0, shares=[5.0], limit_offset_bps=1000.0)
    columns = seen(env, 0.0, 1.0)
    assert columns == pytest.approx(np.array([[-200.0 / 700.0], [1.0], [1.0]]))


def test_nothing_is_seen_of_orders_that_ended(engine):
    env = open_account(engine, [QUIET, BELOW, QUIET, QUIET], time_in_force=1)
    assert not seen(env, 1.0, -1.0).any()  # filled
    assert not seen(env, 0.0, 1.0).any()  # its time is over


def test_variants_pieces_and_numpy_take_prices():
    market = make_market(200, 3, session_bars=20, gaps=False)
    chosen = EnvSettings(
        action="limit", num_envs=4, randomise={"variants": 2, "block_sessions": 2, "delay_bars": 1}
    )
    several = [
        RandomisedEnv(TradingEnv(market, chosen, seed=1), seed=1),
        JoinedEnv([market.window(0, 90), market.window(110, 200)], chosen, seed=1),
    ]
    for env in several:
        env.reset()
        for _ in range(20):
            obs, reward, *_ = env.step(torch.rand(4, 6) * 2 - 1)
        assert obs.shape == (4, env.layout.width)
        assert reward.isfinite().all()
    single = gymnasium.make("fintrader/Trading-v0", market=market, settings=chosen)
    single.reset(seed=1)
    assert single.action_space.shape == (6,)
    assert np.isfinite(single.step(single.action_space.sample())[1])


def test_a_copy_and_a_stored_state_go_on_with_what_rests():
    market = make_market(100, 3, seed=2)
    env = TradingEnv(market, action="limit", num_envs=8, seed=1)
    env.reset()
    action = torch.rand(3, 8, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    env.step(action[0])
    assert (env.account.resting[:, 0] != 0).any()
    stored = TradingEnv(market, action="limit", num_envs=8, seed=9)
    stored.reset()
    stored.load_state_dict(env.state_dict())
    for other in (copy.deepcopy(env), stored):
        assert torch.equal(other.account.resting, env.account.resting)
    expected = env.step(action[1])[0]
    assert torch.equal(stored.step(action[1])[0], expected)


def gains_of_fills(market, offset_bps, seed):
    """Basis points that each asset and bar's fills are ahead of the bar's close, `[T, N]`; NaN
    without any. Orders rest for a bar, up to `offset_bps` from the last close, at no cost."""
    config = EnvSettings(
        action="limit",
        limit_offset_bps=offset_bps,
        cost_bps=0.0,
        participation="none",
        fractional=True,
        start="first",
        ruin_fraction=0.0,
    )
    env = TradingEnv(market, config, num_envs=16, seed=seed, record=True)
    env.reset()
    draws = np.random.default_rng(seed)
    gains = np.full(market.close.shape, np.nan)
    for _ in range(market.num_bars - 1):
        action = torch.from_numpy(draws.uniform(-1.0, 1.0, (16, 2 * market.num_assets))).float()
        *_, info = env.step(action)
        bar = int(info["fill_bar"][0])
        shares = info["fill_shares"].numpy()
        paid = (np.abs(shares) * market.close[bar].double().numpy()).sum(0)
        ahead = shares * (market.close[bar].double().numpy() - info["fill_price"].numpy())
        with np.errstate(invalid="ignore"):
            gains[bar] = 1e4 * ahead.sum(0) / paid
    return gains[np.isfinite(gains)]


@pytest.mark.slow
def test_a_random_walk_gives_nothing_away():
    """No time of buying or selling beats a martingale (Doob): bars of 400 ticks each, of which the
    environment sees four prices, must leave the fills where they were on average, or behind."""
    draws = np.random.default_rng(3)
    ticks = 50.0 * np.exp(np.cumsum(draws.normal(0.0, 2e-4, (600, 400, 12)).reshape(-1, 12), 0))
    path = ticks.reshape(600, 400, 12)
    ends = {"open": path[:, 0], "high": path.max(1), "low": path.min(1)}
    market = market_of(path[:, -1], 60, **ends)
    gains = gains_of_fills(market, 60.0, seed=1)
    error = gains.std() / len(gains) ** 0.5
    assert len(gains) > 5_000
    assert -0.6 - 4 * error < gains.mean() < 4 * error
    assert error < 0.6
