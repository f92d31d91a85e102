"""Orders that rest in a deployment: the backtest again, to the last bit, one by one in the
journal."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from fintrader.backtesting import simulate
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.limits import Limits, LimitSettings
from fintrader.backtesting.shadow import decide, shadow_backtest
from fintrader.deploy import control, status
from fintrader.deploy.broker import Order
from fintrader.deploy.drift import measure
from fintrader.deploy.drift_page import render_drift
from fintrader.deploy.entries import BarDecision
from fintrader.deploy.recorder import Recorder
from fintrader.deploy.resting_orders import lay_out_orders, list_orders, trace_order
from fintrader.envs import EnvSettings
from fintrader.envs.market_view import LARGEST
from tests.deploy.test_replay import EVENTFUL, SHORT, replay_through_kills, same
from tests.engines.deployments import FREE, equities, frozen, replayed, run_live, settings
from tests.factories import make_market
from tests.quick import slow_but

CLOCK = {"clock": "session"}
LIMITS = {**CLOCK, "action": "limit", "limit_offset_bps": 30.0}
STOPS = {**LIMITS, "stop_offset_bps": 60.0}
QUOTES = {**STOPS, "action": "quote"}


@pytest.mark.parametrize(
    ("data", "env"),
    slow_but(
        4,
        every=[
            (SHORT, LIMITS),
            (SHORT, {**STOPS, "time_in_force": 3}),
            (SHORT, {**QUOTES, "decision_interval": 1}),
            (EVENTFUL, {**STOPS, "decision_interval": 9, "participation": 0.0001}),
            (EVENTFUL, {**QUOTES, "fractional": True, "half_spread_bps": 2, "impact_bps": 50}),
        ],
    ),
)
def test_a_replay_is_the_backtest(tmp_path, data, env):
    bundle, market = frozen(tmp_path, settings(**data), **env)
    journal = replayed(tmp_path, bundle, market)
    expected = simulate(bundle.policy, market, bundle.env)
    decisions = -(-(market.num_bars - 1) // bundle.env.decision_interval)
    assert same(journal, market, expected.equity) == decisions
    assert np.ptp(expected.equity) > 100
    assert_every_trade_belongs_to_an_order(journal, expected, market)


def assert_every_trade_belongs_to_an_order(journal, expected, market):
    """The orders' fills are the ledger's trades, by symbol and side, and every order has ended. A
    fill after a split is in other dollars than the order's limit."""
    trades = expected.trades[expected.trades["kind"] == "order"]
    theirs = Counter()
    names = ("symbol", "shares", "cost_usd")
    for symbol, shares, cost in zip(*(trades[name] for name in names), strict=True):
        theirs[symbol, shares > 0] += shares
        theirs["costs"] += cost
    ours = Counter()
    reports = journal.orders().values()
    for report in reports:
        ours[report.symbol, report.shares > 0] += report.filled
        ours["costs"] += report.cost_usd
    assert {name: n for name, n in ours.items() if n} == pytest.approx(theirs)
    assert all(report.is_over for report in reports)
    assert all((report.limit_usd is None) != (report.stop_usd is None) for report in reports)
    split = {market.symbols[asset] for asset in market.events.asset[market.events.split != 1]}
    limits = [report for report in reports if report.limit_usd is not None and report.filled]
    for report in [one for one in limits if one.symbol not in split]:
        side = np.sign(report.shares)
        assert side * (report.price_usd - report.limit_usd) <= 1e-6 * report.limit_usd


@pytest.mark.parametrize("env", slow_but(0, every=[{**STOPS, "participation": 0.0001}, QUOTES]))
def test_a_process_that_is_killed_anywhere_goes_on_to_the_same_bits(tmp_path, env):
    bundle, market = frozen(tmp_path, settings(**EVENTFUL), decision_interval=9, **env)
    expected = simulate(bundle.policy, market, bundle.env)
    journal = replay_through_kills(tmp_path, bundle, market, longest=250)
    assert same(journal, market, expected.equity) == -(-(market.num_bars - 1) // 9)
    assert_every_trade_belongs_to_an_order(journal, expected, market)


@pytest.mark.slow
@pytest.mark.parametrize("env", [STOPS, QUOTES])
def test_limits_bind_the_replay_and_its_twin_alike(tmp_path, env):
    bundle, market = frozen(tmp_path, settings(), **env)
    limits = LimitSettings(weight=0.12, order=0.05, turnover=0.3)
    journal = replayed(tmp_path, bundle, market, limits)
    expected, noted = shadow_backtest(bundle.policy, market, bundle.env, limits)
    same(journal, market, expected.equity)
    assert sum(noted.counts.values()) > 20
    cut = [name for entry in journal.entries(BarDecision) for name in entry.body.clipped]
    assert noted.counts == Counter(cut)
    assert (expected.equity != simulate(bundle.policy, market, bundle.env).equity).any()


def test_the_drift_is_none_and_status_and_page_say_what_rests(tmp_path):
    few = {"participation": 0.0001}
    bundle, market = frozen(tmp_path, settings(**EVENTFUL), **STOPS, **few)
    live = run_live(tmp_path, bundle, market, bars=58)
    resting = [report for report in live.orders().values() if report.rests]
    assert resting
    text = status.describe(status.read_status(tmp_path))
    for report in resting:
        assert f"{abs(report.shares):,g} {report.symbol}" in text
    assert "or less (stop)" in text
    live.close()
    for file in tmp_path.glob("journal*"):
        file.unlink()
    journal = replayed(tmp_path, bundle, market)
    report = measure(journal, bundle, Recorder(bundle, journal).build_market(), FREE)
    assert report.equity.largest_difference_usd == 0.0
    ends = Counter()
    for order in journal.orders().values():
        if order.limit_usd is not None:
            ends[order.state, order.filled != 0.0] += 1
    assert report.shortfall.rested == {
        "filled": ends["filled", True],
        "filled in part": ends["cancelled", True],
        "cancelled": ends["cancelled", False],
    }
    assert min(ends.values()) > 10
    assert f"{ends['cancelled', False]} cancelled, " in render_drift(report)
    assert "rests" not in status.describe(status.read_status(tmp_path))


def backtested(bundle, market, journal):
    """Number of decisions of a live account, all with the backtest's equity."""
    return same(journal, market, simulate(bundle.policy, market, bundle.env).equity)


@pytest.mark.parametrize("env", slow_but(1, every=[STOPS, QUOTES]))
def test_the_live_loop_is_the_backtest_also_across_restarts(tmp_path, env):
    bundle, market = frozen(tmp_path, settings(**EVENTFUL), decision_interval=1, **env)
    for bars in (20, 40):
        journal = run_live(tmp_path, bundle, market, bars=bars)
        assert backtested(bundle, market, journal) == bars + 1
        journal.close()


def test_a_halt_ends_limit_orders_and_keeps_stops(tmp_path):
    bundle, market = frozen(tmp_path, settings(), **{**STOPS, "stop_offset_bps": 600.0})
    run_live(tmp_path, bundle, market, bars=31).close()
    control.ask(tmp_path, "halt")
    journal = run_live(tmp_path, bundle, market, bars=60)
    before, *after = [
        e.body for e in journal.entries(BarDecision) if e.body.bar >= int(market.minutes[30])
    ]
    assert any(order.limit_usd is not None for order in before.resting)
    assert len(after) == 6
    stops = {order.symbol: order.stop_usd for order in before.resting if order.stop_usd}
    assert stops
    for decision in after:
        assert all(order.limit_usd is None for order in decision.resting)
        for order in decision.resting:
            assert order.stop_usd in (0.0, stops[order.symbol])
            assert decision.shares[order.symbol] == -order.shares
    assert after[0].resting


def test_a_flatten_sells_all_at_the_next_open(tmp_path):
    bundle, market = frozen(tmp_path, settings(), **QUOTES)
    run_live(tmp_path, bundle, market, bars=31).close()
    control.ask(tmp_path, "flatten")
    journal = run_live(tmp_path, bundle, market, bars=60)
    last = journal.last(BarDecision).body
    assert not last.shares
    assert not last.resting
    assert not journal.is_flattening()


def test_missed_decisions_leave_nothing_resting(tmp_path):
    """The bars after a decision that was missed fill no order of the one before."""
    bundle, market = frozen(tmp_path, settings(), **LIMITS)

    def asleep(feed, clock):
        clock.jumps.append((int(market.minutes[27]), 240 * 60_000_000_000))

    journal = run_live(tmp_path, bundle, market, change=asleep)
    decided = np.searchsorted(market.minutes.numpy(), sorted(equities(journal)))
    gap = int(np.argmax(np.diff(decided)))
    assert np.diff(decided)[gap] >= 15
    before, after = (journal.entries(BarDecision)[number].body for number in (gap, gap + 1))
    filled = Counter(before.shares)
    for order in before.resting:
        filled[order.symbol] += journal.orders()[order.id].filled
    assert {name: n for name, n in filled.items() if n} == after.shares


def test_rows_of_the_ledger_and_orders_say_the_same():
    env = EnvSettings(**QUOTES)
    account, _ = stand(env, 4.0, 7.0, 5.0)
    rows = np.zeros((7, 4))
    rows[:, 0] = [10.0, 99.0, 0.0, -4.0, 101.0, 0.0, 95.0]
    rows[:, 1] = [-7.0, 0.0, 0.0, 0.0, 0.0, 0.0, LARGEST]
    orders = list_orders(rows, account, "1", 9_000_000_000)
    names = account.market.symbols
    name = "ft-1-19700101T000009Z-"
    assert orders == (
        Order(f"{name}{names[0]}", names[0], 10.0, 9_000_000_000, limit_usd=99.0),
        Order(f"{name}{names[0]}-ask", names[0], -4.0, 9_000_000_000, limit_usd=101.0),
        Order(f"{name}{names[0]}-stop", names[0], -14.0, 9_000_000_000, stop_usd=95.0),
        Order(f"{name}{names[1]}-stop", names[1], -7.0, 9_000_000_000, stop_usd=0.0),
    )
    columns = {symbol: number for number, symbol in enumerate(names)}
    assert (lay_out_orders(orders, columns, env) == rows).all()


def stand(env, *shares):
    """An account of 100,000 USD in four symbols at bar 5 that holds `shares` of the first ones."""
    market = make_market(30, 4, 2, seed=1)
    account = BacktestAccount(market, env)
    account.set_books(
        bar=5,
        cash=100_000.0 - shares[0] * float(market.close[5, 0]),
        equity=100_000.0,
        capital=(100_000.0, 100_000.0),
        shares=np.array([*shares, 0.0, 0.0, 0.0, 0.0][:4]),
    )
    return account, account.prices


WIDE = {"weight": 2.0, "order": 1.0, "turnover": 10.0, "symbols_with_bars": 0.1}


def test_limits_count_a_bid_as_filled_and_an_ask_as_not():
    """With 60 % in one symbol, quotes of 50 % fit a gross of 1 once the bids are cut to 40 % in
    all, though the asks would make room."""
    env = EnvSettings(action="quote", quote_weight=0.5, limit_offset_bps=10.0)
    price = stand(env, 0.0)[1]
    account, _ = stand(env, np.floor(60_000 / price[0]))
    action = np.full(8, 0.5, np.float32)
    free = decide(account, action, Limits(LimitSettings(enforced=False))).resting
    assert (free == account.set_resting_orders(action)).all()
    assert (free[0] * price).sum() > 140_000
    found = decide(account, action, Limits(LimitSettings(**WIDE)))
    assert found.clipped_by[-1] == "gross"
    bids = (found.resting[0] * found.resting[1]).sum()
    assert 39_000 < bids + account.held @ price - 60_000 <= 40_000 * (1 + 1e-9)
    assert found.resting[3, 0] == free[3, 0] < 0
    assert (found.resting[0] == np.trunc(found.resting[0])).all()


def test_limits_count_a_bid_at_its_price():
    env = EnvSettings(action="limit", limit_offset_bps=500.0, stop_offset_bps=100.0)
    account, price = stand(env, 0.0)
    action = np.array([1.0] * 8 + [0.5] * 4, np.float32)
    limits = Limits(LimitSettings(**{**WIDE, "order": 0.1}))
    found = decide(account, action, limits)
    left, limit = found.resting[:2]
    bought = left * limit
    is_listed = price > 0
    assert limit[is_listed] == pytest.approx(1.05 * price[is_listed])
    assert ((bought[is_listed] > 9_000) & (bought[is_listed] <= 10_000)).all()
    assert limits.traded_usd == pytest.approx(bought.sum())
    none = Limits(LimitSettings(**{**WIDE, "order": 1e-9}))
    nothing = decide(account, action, none).resting
    assert (nothing == 0).all()  # a stop protects nothing where nothing is bought


def test_turnover_counts_what_traded_and_what_rests():
    """Quotes far from the price, replaced at every bar, stay one decision's turnover; what fills
    is counted on."""
    env = EnvSettings(action="quote", quote_weight=0.1, limit_offset_bps=3000.0)
    account, price = stand(env, 100.0)
    limits = Limits(LimitSettings(**WIDE))
    action = np.ones(8, np.float32)
    sums = []
    for _ in range(3):
        found = decide(account, action, limits)
        account.replace_orders(found.resting)
        sums.append(limits.traded_usd)
    assert sums == [pytest.approx(sums[0], rel=1e-9)] * 3
    assert sums[0] > 30_000
    filled = found.resting.copy()
    filled[0, 0] -= 10.0
    account.replace_orders(filled)
    decide(account, action, limits)
    assert limits.traded_usd == pytest.approx(sums[0] + 10.0 * price[0], rel=1e-9)


def test_a_halt_leaves_stops_and_the_sales_of_those_that_were_reached():
    env = EnvSettings(action="limit", stop_offset_bps=100.0)
    account, _ = stand(env, 9.0)
    rows = np.zeros((4, 4))
    rows[:, 0] = [-9.0, 0.0, 0.0, LARGEST]
    rows[:, 1] = [5.0, 20.0, 0.0, 19.0]
    account.replace_orders(rows)
    found = decide(account, None, Limits(LimitSettings(), halted="asked to halt"))
    assert found.halted
    assert (found.resting[:, 0] == rows[:, 0]).all()
    assert (found.resting[:, 1:] == 0).all()  # of the second nothing is held
    rows[:, 0] = [4.0, 20.0, 0.0, 19.0]
    account.replace_orders(rows)
    found = decide(account, None, Limits(LimitSettings(), halted="asked to halt"))
    assert found.resting[:, 0].tolist() == [0.0, 0.0, 0.0, 19.0]


@pytest.mark.parametrize(("fill", "state"), [(20.0, "filled"), (10.0, "cancelled")])
def test_an_order_that_rests_across_a_split_is_whole_in_new_shares(fill, state):
    account = SimpleNamespace(
        bar=1,
        settings=EnvSettings(**LIMITS),
        market=SimpleNamespace(minutes=[0, 60]),
        trade_log=SimpleNamespace(shares=np.array([[0.0], [fill]])),
        splits_at=lambda bar: np.array([2.0]),
    )
    order = Order("ft-1", "AA", 10.0, 0, limit_usd=10.0).report("accepted")
    ((bar, report),) = trace_order(account, order, (0, 0), [(0, 0, 1, 0, fill, 5.0, 1.0)], None)
    assert (bar, report.state, report.filled, report.price_usd) == (60, state, fill, 5.0)
