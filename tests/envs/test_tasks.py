"""Tasks whose best result is known: the plans of the oracle earn in the environment what they are
worth, and meet the closed forms where these hold."""

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from scipy.stats import norm

from tests.oracles.task_optima import (
    Hedging,
    Market,
    Quoting,
    Task,
    log_return,
    mean_variance,
    solve,
    solve_hedge,
    solve_quotes,
    walk_bars,
)
from tests.oracles.task_runs import (
    TASKS,
    find_worths,
    follow_plan,
    load_task,
    open_task,
    play,
    read_hedging,
    read_quoting,
    read_task,
    start_hedge,
)
from tests.quick import mostly_slow

# --- closed forms ---------------------------------------------------------------------------------


def test_without_risk_aversion_the_best_sale_is_even():
    """Almgren and Chriss (2000): any convex cost is least for equal slices."""
    market = Market(volatility_bps=40.0, impact_bps=100.0, shares_of_volume=0.5)
    weights = np.linspace(0.0, 1.0, 101)
    plan = solve(Task(market, 10, np.expm1, weights, close_at_end=True))
    held = [1.0]
    for goal in plan.goal[:-1]:
        held.append(float(np.interp(held[-1], weights, goal)))
    # The last slice is what the end closes.
    assert held == pytest.approx(np.linspace(1.0, 2.0 / 11.0, 10), abs=0.03)


def test_with_quadratic_costs_the_sale_follows_almgren_and_chriss():
    """x[k] = sinh(kappa (T - k)) / sinh(kappa T), with cosh(kappa) - 1 = risk / (4 cost) here:
    maximise - sum of cost dx^2 - risk/2 sum of x^2."""
    scale = 0.004
    aversion = 100.0
    cost = 0.002
    horizon = 12
    market = Market(volatility_bps=1e4 * scale, quadratic=cost)
    weights = np.linspace(0.0, 1.0, 201)
    # The sum over decisions of r - aversion/2 r^2, of which - r^2/2 is the logarithm's.
    task = Task(market, horizon - 1, mean_variance(aversion - 1.0), weights, close_at_end=True)
    plan = solve(task)
    held = [1.0]
    for goal in plan.goal:
        held.append(float(np.interp(held[-1], weights, goal)))
    kappa = np.arccosh(1.0 + aversion * scale**2 / (4.0 * cost))
    expected = np.sinh(kappa * np.arange(horizon, 0, -1)) / np.sinh(kappa * horizon)
    assert held == pytest.approx(expected, abs=0.01)


def test_without_costs_the_best_share_is_kellys():
    market = Market(volatility_bps=500.0, drift_bps=15.0)
    plan = solve(Task(market, 3, log_return, np.linspace(0.0, 1.0, 201), nodes=15))
    assert plan.goal == pytest.approx(0.6, abs=0.006)


def test_costs_leave_a_region_without_trade():
    """Trades go to its edges, not to Kelly's share."""
    market = Market(volatility_bps=500.0, drift_bps=15.0, cost_bps=100.0)
    weights = np.linspace(0.0, 1.0, 101)
    goal = solve(Task(market, 60, log_return, weights)).goal[0]
    inside = goal == weights
    low, high = weights[inside][[0, -1]]
    assert low < 0.55
    assert high > 0.65
    assert (goal[weights < low] == low).all()
    assert (goal[weights > high] == high).all()


def test_without_risk_aversion_quotes_stand_where_distance_times_fills_is_largest():
    """Avellaneda and Stoikov (2008) for a price that does not move: with fills exp(-d / k) the best
    distance is k, whatever is held."""
    task = Quoting(
        walk_bars(200_000, 0.0, 1, wick_bps=10.0),
        size=0.1,
        horizon=5,
        risk_aversion=0.0,
        distances=np.linspace(1e-4, 30e-4, 30),
        most=3,
    )
    assert solve_quotes(task).distance * 1e4 == pytest.approx(10.0, abs=1.5)


def find_band(cost_bps):
    """Centre and half-width of the shares at which the best hedge of a call leaves them, struck at
    the price, 400 bars before its expiry."""
    task = Hedging(
        kind="call",
        strike=1.0,
        weight=1.0,
        bars=400,
        horizon=60,
        volatility_bps=50.0,
        cost_bps=cost_bps,
        risk_aversion=99.0,
        shares=np.linspace(0.32, 0.72, 101),
        reach=3.0,
        count=61,
    )
    inside = solve_hedge(task).goal[0, task.count // 2] == task.shares
    low, high = task.shares[inside][[0, -1]]
    return (low + high) / 2.0, (high - low) / 2.0


@pytest.mark.slow
def test_a_hedge_trades_to_the_edges_of_whalleys_and_wilmotts_band():
    """Whalley and Wilmott (1997), for small costs: around the delta, with a half-width of
    (3/2 cost gamma^2 / aversion)^(1/3) at price 1. Between edges b from the delta, which moves by
    a = gamma sigma a bar, the distance is uniform: its variance b^2 / 3 costs aversion / 2 sigma^2
    b^2 / 3 a bar, trade at the edges cost a^2 / (2 b), and the sum is least there. Who trades at
    closes only has edges nearer by -zeta(1/2) / sqrt(2 pi) a (Broadie, Glasserman and Kou 1997)."""
    deviation = 0.1  # of the price at the expiry
    gamma = norm.pdf(deviation / 2.0) / deviation
    for cost_bps in (10.0, 80.0):
        centre, width = find_band(cost_bps)
        assert centre == pytest.approx(norm.cdf(deviation / 2.0), abs=0.004)
        # The logarithm adds 1 to the aversion.
        continuous = (1.5e-4 * cost_bps * gamma**2 / 100.0) ** (1 / 3)
        assert width == pytest.approx(continuous - 0.5826 * gamma * 50e-4, abs=0.004)


def test_the_value_of_an_option_is_a_martingale():
    """So that what is owed more and less is 0 on average, as `play` takes it to be."""
    task = read_hedging()
    points, weights = np.polynomial.hermite_e.hermegauss(64)
    scale = 1e-4 * task.volatility_bps
    for left in (2, 11, 40):
        for price in (0.9, 1.0, 1.07):
            grown = task.value(price * np.exp(scale * points - scale**2 / 2), left - 1)
            mean = weights @ grown / weights.sum()
            assert mean == pytest.approx(task.value(price, left), abs=1e-8)


# --- in the environment ---------------------------------------------------------------------------


def decide_by_plan(name, env):
    """The oracle's plan as a policy, and its worth."""
    horizon = env.settings.episode_bars

    def step_of(parts):
        passed = np.rint(horizon * (1.0 - parts["account"][:, 3].double().numpy()))
        return np.clip(passed.astype(int), 0, horizon - 1)

    if name == "market_making":
        task = read_quoting()
        quotes = solve_quotes(task)
        widest = 1e-4 * env.settings.limit_offset_bps

        def quote(obs):
            parts = env.layout.split(obs)
            held = np.rint(parts["holdings"][:, 0].double().numpy() / task.size).astype(int)
            place = np.clip(held + task.most, 0, 2 * task.most)
            away = quotes.distance[step_of(parts), place]
            return torch.tensor(2.0 * away / widest - 1.0, dtype=torch.float32)

        return quote, quotes.value[0][task.most]
    if name == "hedging":
        hedge = read_hedging()
        best = solve_hedge(hedge)
        deviation = 1e-4 * hedge.volatility_bps * np.sqrt(hedge.bars)
        axes = np.log(hedge.prices), hedge.shares

        def cover(obs):  # all that it needs to know is observed
            parts = env.layout.split(obs)
            seen = parts["account"].double().numpy()
            price = hedge.strike * (1.0 + deviation * seen[:, 4])
            growth = 1.0 + seen[:, 1]
            held = parts["holdings"][:, 0].double().numpy() * growth / price
            places = [
                np.interp(value, axis, np.arange(len(axis)))
                for value, axis in zip((np.log(price), held), axes, strict=True)
            ]
            goal = map_coordinates(best.goal, [step_of(parts), *places], order=1, mode="nearest")
            return torch.tensor(goal * price / growth, dtype=torch.float32)[:, None]

        return cover, start_hedge(hedge, best.value)
    return follow_plan(read_task(name), env)


QUICK = ("market_making",)


@pytest.mark.parametrize("name", mostly_slow(*QUICK, every=TASKS))
def test_a_plan_earns_in_the_environment_what_it_is_worth(name):
    env = open_task(name, 512)
    policy, worth = decide_by_plan(name, env)
    earned = play(policy, env, load_task(name), 2000)
    # Episodes overlap: those that follow one another count once.
    count = env.market.num_bars / env.settings.episode_bars
    error = earned.std() / np.sqrt(min(count, len(earned)))
    assert earned.mean() == pytest.approx(worth, abs=4 * error + 0.01 * abs(worth))
    assert abs(worth) > 10 * error


@pytest.mark.slow
def test_rules_with_one_parameter_earn_less():
    """Otherwise there is nothing to learn."""
    for name in TASKS:
        best, rule, _ = find_worths(name)
        assert rule < best - 0.05 * abs(best), name


def test_a_price_far_from_100_is_split_before_the_next_session():
    """So that a walk of any length keeps prices that a market may have."""
    market = open_task("growth", 2).market
    starts = torch.nonzero(market.session.diff()).flatten() + 1
    before = market.close[starts - 1, 0]
    splits = dict(zip(market.events.bar.tolist(), market.events.split.tolist(), strict=True))
    for start, price in zip(starts.tolist(), before.tolist(), strict=True):
        ratio = splits.pop(start, None)
        assert (ratio is None) == (25.0 <= price <= 400.0)
        if ratio is not None:
            assert 50.0 <= price / ratio <= 200.0
    assert not splits
    # Returns go on as if there were no splits.
    returns = market.adjusted_close[:, 0].log().diff()
    assert float(returns.std()) == pytest.approx(0.2, rel=0.02)
    assert float(returns.abs().max()) < 0.2 * 6
