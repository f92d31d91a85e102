"""Rules that give orders: every kind in numbers worked out by hand, and the desk against quotes."""

from itertools import chain

import numpy as np
import pytest
import torch

import fintrader
from fintrader.backtesting import OrderRule, simulate
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import lay_out
from fintrader.errors import BacktestError
from fintrader.market.tensors import Events
from fintrader.results.history import round_trips
from tests.factories import make_market, market_of
from tests.oracles.trade_list import trade_list_profit

FREE = EnvSettings(cost_bps=0.0, participation=None, benchmark="cash", initial_cash_usd=10_000.0)
QUIET = (100.0, 100.0, 100.0, 100.0)


def identify_bars(*bars, events=()):
    """A market of one symbol from open, high, low and close of its bars."""
    opens, highs, lows, closes = np.array(bars).T[:, :, None]
    return market_of(
        closes, len(bars), open=opens, high=highs, low=lows, events=Events.of(list(events))
    )


def fills_of(rule, market, settings=FREE):
    """Bar, shares and price of each fill."""
    trades = simulate(OrderRule(rule), market, settings).trades
    trades = trades[trades["kind"] == "order"]
    return list(
        zip(
            trades["fill_bar"].tolist(),
            trades["shares"].tolist(),
            trades["price_usd"].round(6).tolist(),
            strict=True,
        )
    )


def at(bar, order):
    """A rule that gives one order at a bar."""
    return lambda desk: order(desk) if desk.bar == bar else None


DIP = (100.0, 100.0, 98.5, 100.0)
RISE = (100.0, 103.0, 100.0, 102.0)
FALL = (100.0, 100.0, 94.0, 95.0)
AFTER = (94.5, 96.0, 94.0, 95.0)


def test_a_limit_rests_until_it_fills():
    market = identify_bars(QUIET, QUIET, QUIET, DIP, QUIET)
    assert fills_of(at(0, lambda d: d.limit("S000", 10, 99.0)), market) == [(3, 10.0, 99.0)]


def test_a_cancelled_limit_does_not_fill():
    market = identify_bars(QUIET, QUIET, QUIET, DIP, QUIET)

    def rule(desk):
        if desk.bar == 0:
            desk.limit("S000", 10, 99.0)
        if desk.bar == 2:
            assert desk.working("S000") == {
                "buy": 10.0, "buy_at": 99.0, "sell": 0.0, "sell_at": 0.0, "stop": 0.0
            }  # fmt: skip
            desk.cancel("S000")

    assert fills_of(rule, market) == []


def test_a_market_order_fills_at_the_next_open():
    market = identify_bars(QUIET, RISE, (101.0, 101.0, 101.0, 101.0))
    assert fills_of(at(1, lambda d: d.market("S000", 7)), market) == [(2, 7.0, 101.0)]


def hold_from_the_start(order):
    """A rule that buys ten shares at bar 0, and gives an order at bar 1, when it holds them."""

    def rule(desk):
        if desk.bar == 0:
            desk.market("S000", 10)
        if desk.bar == 1:
            assert desk.shares("S000") == 10
            order(desk)

    return rule


def test_a_stop_closes_at_the_open_after_the_bar_that_reaches_it():
    market = identify_bars(QUIET, QUIET, QUIET, FALL, AFTER, QUIET)
    found = fills_of(hold_from_the_start(lambda d: d.stop("S000", 95.0)), market)
    assert found == [(1, 10.0, 100.0), (4, -10.0, 94.5)]


def test_no_order_is_taken_while_a_stop_sells():
    market = identify_bars(QUIET, QUIET, FALL, AFTER, QUIET, QUIET)
    taken = []

    def rule(desk):
        if desk.bar == 0:
            desk.market("S000", 10)
            desk.stop("S000", 95.0)
        else:
            taken.append(desk.limit("S000", 5, 50.0))
            if desk.bar == 2:
                desk.cancel("S000")

    assert fills_of(rule, market) == [(1, 10.0, 100.0), (3, -10.0, 94.5)]
    assert taken == [True, False, True, True]


def test_a_trailing_stop_follows_the_highest_high():
    # The high of 110 carries the stop to 104.5; a later high of 106 leaves it there.
    climb = (100.0, 110.0, 100.0, 108.0)
    rest = (106.0, 106.0, 105.0, 105.0)
    fall = (105.0, 105.0, 104.5, 105.0)
    market = identify_bars(QUIET, QUIET, climb, rest, fall, (103.0, 103.0, 103.0, 103.0))
    found = fills_of(hold_from_the_start(lambda d: d.trail("S000", 500)), market)
    assert found == [(1, 10.0, 100.0), (5, -10.0, 103.0)]


def test_a_trailing_stop_of_an_entry_keeps_its_distance_from_the_entry():
    """A limit order waits 5 % below the market. Neither the close, nor a high before the entry,
    carries the stop above the entry's price."""
    high = (100.0, 104.0, 100.0, 100.0)
    entry = (100.0, 103.0, 94.0, 95.0)
    rest = (95.0, 96.0, 94.5, 95.0)
    market = identify_bars(QUIET, high, entry, rest, (93.0, 93.0, 92.0, 92.0), QUIET)
    stops = []

    def rule(desk):
        if desk.bar == 0:
            desk.limit("S000", 10, 95.0)
            desk.trail("S000", 200)
        stops.append(desk.working("S000")["stop"])

    assert fills_of(rule, market) == [(2, 10.0, 95.0), (5, -10.0, 100.0)]
    assert stops[:4] == pytest.approx([93.1, 93.1, 93.1, 0.98 * 96.0])


def test_the_bar_that_sets_a_new_high_cannot_reach_the_stop_it_moves():
    """Its high and low are in an unknown order; the stop moves at its close."""
    wild = (100.0, 110.0, 96.0, 100.0)
    market = identify_bars(QUIET, QUIET, wild, (103.0, 103.0, 102.0, 103.0), QUIET, QUIET)
    found = fills_of(hold_from_the_start(lambda d: d.trail("S000", 500)), market)
    assert found == [(1, 10.0, 100.0), (4, -10.0, 100.0)]


def bracket(desk):
    desk.bracket("S000", 10, 99.0, take_profit=102.5, stop=95.0)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ((QUIET, RISE), [(2, 10.0, 99.0), (4, -10.0, 102.5)]),
        ((FALL, AFTER), [(2, 10.0, 99.0), (4, -10.0, 94.5)]),
        # A bar that reaches both: the stop is taken to come first.
        (((100.0, 104.0, 94.0, 100.0), AFTER), [(2, 10.0, 99.0), (4, -10.0, 94.5)]),
        # The bar of the entry closes nothing with a profit.
        ((QUIET, QUIET), [(2, 10.0, 99.0)]),
    ],
)
def test_a_bracket_leaves_by_one_of_its_exits(later, expected):
    entry = (100.0, 103.0, 98.5, 100.0)
    market = identify_bars(QUIET, QUIET, entry, *later, QUIET, QUIET)
    assert fills_of(at(0, bracket), market) == expected


def test_after_one_exit_of_a_bracket_the_other_is_cancelled():
    market = identify_bars(QUIET, DIP, RISE, FALL, AFTER, QUIET)
    seen = []

    def rule(desk):
        if desk.bar == 0:
            bracket(desk)
        seen.append(desk.working("S000")["stop"])

    assert fills_of(rule, market) == [(1, 10.0, 99.0), (2, -10.0, 102.5)]
    assert seen == [95.0, 95.0, 0.0, 0.0, 0.0]


def test_a_bracket_goes_short():
    rules = FREE.model_copy(update={"short": True})
    order = at(0, lambda d: d.bracket("S000", -10, 102.0, take_profit=98.0, stop=105.0))
    market = identify_bars(QUIET, RISE, (100.0, 100.0, 97.0, 97.0), QUIET)
    assert fills_of(order, market, rules) == [(1, -10.0, 102.0), (2, 10.0, 98.0)]
    market = identify_bars(QUIET, RISE, (102.0, 105.0, 102.0, 104.0), (104.0,) * 4, QUIET)
    assert fills_of(order, market, rules) == [(1, -10.0, 102.0), (3, 10.0, 104.0)]


def test_a_split_divides_the_exits_of_a_bracket():
    half = tuple(np.array(QUIET) / 2)
    market = identify_bars(
        QUIET, QUIET, (50.0, 50.0, 49.0, 50.0), half, (50.0, 51.5, 50.0, 50.0), half,
        events=[(1, 0, 1.0, 0.0), (2, 0, 2.0, 0.0)],
    )  # fmt: skip
    assert fills_of(at(0, bracket), market) == [(2, 20.0, 49.5), (4, -20.0, 51.25)]


def test_a_rule_remembers_and_sees_no_bar_ahead():
    market = make_market(50, 3, seed=2)
    lengths = []

    def rule(desk):
        desk.memory["calls"] = desk.memory.get("calls", 0) + 1
        lengths.append((desk.memory["calls"], len(desk.bars("high")), len(desk.bars("low", 5))))

    simulate(OrderRule(rule), market, FREE)
    assert lengths == [(bar + 1, bar + 1, min(bar + 1, 5)) for bar in range(49)]
    lengths.clear()
    simulate(OrderRule(rule), market, FREE)
    assert lengths[0] == (1, 1, 1)


def test_mistakes_are_named():
    market = identify_bars(QUIET, QUIET, QUIET)
    for order, words in [
        (lambda d: d.limit("S00", 1, 99.0), "did you mean 'S000'"),
        (lambda d: d.limit("S000", 0, 99.0), "a nonzero number of shares"),
        (lambda d: d.limit("S000", 0.5, 99.0), "whole without env.fractional"),
        (lambda d: d.limit("S000", 1, float("nan")), "a price in USD"),
        (lambda d: d.stop("S000", -1.0), "a stop needs a price"),
        (lambda d: d.trail("S000", 100), "no position or order for a stop"),
        (lambda d: d.bracket("S000", 1, 99.0, take_profit=98.0, stop=90.0), "between its exits"),
        (
            lambda d: 1 / 0,
            r"fails at bar 0 \(line \d+ of test_desk.py\): ZeroDivisionError: division by zero",
        ),
    ]:
        with pytest.raises(BacktestError, match=words):
            simulate(OrderRule(at(0, order)), market, FREE)
    with pytest.raises(
        BacktestError, match=r"pass a rule that takes a Desk as .*OrderRule\(rule\)"
    ):
        simulate(lambda desk: desk.symbols, market, FREE)


@pytest.mark.parametrize("short", [False, True])
def test_a_rule_that_quotes_is_a_policy_that_quotes(short):
    """The same orders through the desk and as actions: the same account to the last bit."""
    market = make_market(150, 3, seed=4, volatility=0.02, gaps=False)
    rules = EnvSettings(
        action="quote", quote_weight=0.02, limit_offset_bps=200.0, stop_offset_bps=300.0,
        short=short, benchmark="cash", half_spread_bps=3.0,
    )  # fmt: skip
    layout = lay_out(market, rules)
    actions = torch.rand(150, layout.num_actions, generator=torch.manual_seed(3)) * 2 - 1
    asked = chain(actions, actions)
    own = simulate(lambda _: next(asked)[None], market, rules)
    close = market.close.double().numpy()

    def rule(desk):
        bid, ask, wish = actions[desk.bar].double().numpy().reshape(3, -1)
        for n, symbol in enumerate(desk.symbols):
            price = close[desk.bar, n]
            held = desk.shares(symbol)
            size = np.trunc(0.02 * desk.equity / price)
            desk.cancel(symbol)
            desk.limit(symbol, size, price * (1.0 - (0.5 + 0.5 * bid[n]) * 0.02))
            sale = size if short else min(size, held)
            if sale:
                desk.limit(symbol, -sale, price * (1.0 + (0.5 + 0.5 * ask[n]) * 0.02))
            if held and wish[n] > 0:
                side = np.sign(held)
                desk.stop(symbol, price * (1.0 - side * (1.0 - wish[n]) * 0.03))

    by_desk = simulate(OrderRule(rule), market, rules)
    assert len(own.trades) > 100
    assert (own.equity == by_desk.equity).all()
    assert own.orders == by_desk.orders
    assert trade_list_profit(own) == pytest.approx(own.equity[-1] - own.equity[0], abs=1.0)


def test_a_rule_is_backtested_beside_its_baselines():
    market = make_market(300, 3, seed=3, gaps=False)
    rule = OrderRule(lambda d: d.limit("S000", 10, 1e6) if d.bar == 0 else None)
    tests = fintrader.backtest(rule, market, name="one order")
    assert list(tests)[:2] == ["one order", "buy_and_hold"]
    assert tests["one order"].orders.given == 1
    assert tests.settings.terms().fill == "limit"


@pytest.mark.parametrize(("shares", "short"), [(100, True), (-5, False)])
def test_a_bracket_is_refused_where_there_is_a_position(shares, short):
    """It would take the position for its own."""
    rules = FREE.model_copy(update={"short": short})
    levels = (
        {"take_profit": 110.0, "stop": 85.0} if shares > 0 else {"take_profit": 90.0, "stop": 115.0}
    )

    def rule(desk):
        if desk.bar == 0:
            desk.market("S000", -50 if short else 10)
        if desk.bar == 1:
            desk.bracket("S000", shares, 100.0, **levels)

    with pytest.raises(BacktestError, match="a symbol without a position"):
        simulate(OrderRule(rule), identify_bars(*[QUIET] * 5), rules)


def test_a_position_that_turns_over_leaves_its_bracket():
    rules = FREE.model_copy(update={"short": True})

    def rule(desk):
        if desk.bar == 0:
            desk.bracket("S000", 10, take_profit=110.0, stop=90.0)
        if desk.bar == 1:
            desk.market("S000", -30)
        if desk.bar == 3:
            assert desk.working("S000")["stop"] == 0.0

    found = fills_of(rule, identify_bars(*[QUIET] * 6), rules)
    assert found == [(1, 10.0, 100.0), (2, -30.0, 100.0)]


def test_a_stop_beyond_the_close_sells_all_the_same():
    """Set at 97 when the close is 96: the next bar is below it."""
    bars = [QUIET, (100.0, 100.0, 96.0, 96.0), (96.0, 96.0, 90.0, 90.0), (90.0, 90.0, 80.0, 80.0)]
    order = hold_from_the_start(lambda d: d.stop("S000", 97.0))
    assert fills_of(order, identify_bars(*bars, QUIET)) == [(1, 10.0, 100.0), (3, -10.0, 90.0)]


def test_a_sale_of_more_than_is_held_does_not_wait_for_purchases():
    def rule(desk):
        if desk.bar == 0:
            desk.market("S000", 10)
        if desk.bar == 1:
            desk.market("S000", -100)
        if desk.bar == 3:
            desk.market("S000", 5)

    found = fills_of(rule, identify_bars(*[QUIET] * 7))
    assert found == [(1, 10.0, 100.0), (2, -10.0, 100.0), (4, 5.0, 100.0)]


def test_a_rules_own_order_stands_in_place_of_a_brackets_profit():
    def rule(desk):
        if desk.bar == 0:
            desk.bracket("S000", 10, take_profit=110.0, stop=90.0)
        if desk.bar == 2:
            desk.limit("S000", -5, 103.0)

    bars = [QUIET, QUIET, QUIET, QUIET, (100.0, 104.0, 100.0, 104.0), QUIET, QUIET]
    assert fills_of(rule, identify_bars(*bars)) == [(1, 10.0, 100.0), (4, -5.0, 103.0)]


def test_bars_are_those_that_a_trader_sees():
    market = identify_bars(QUIET, QUIET, QUIET)
    for name, count in [("last_bar", 1), ("member", None), ("close", 0)]:
        with pytest.raises(BacktestError, match="bars are open, high, low, close, volume"):
            simulate(OrderRule(lambda d, n=name, c=count: d.bars(n, c)), market, FREE)


def test_shares_from_the_start_are_lots_of_their_own():
    """Sold without a gain, split or not; baselines begin with their worth in cash."""
    half = tuple(np.array(QUIET) / 2)
    market = identify_bars(QUIET, QUIET, half, half, half, events=[(2, 0, 2.0, 0.0)])
    rules = FREE.model_copy(update={"initial_shares": 100.0})
    tests = fintrader.backtest(
        OrderRule(at(2, lambda d: d.market("S000", -200))), market, rules, name="sale"
    )
    trips = round_trips(tests["sale"].trades)
    assert trips["profit_usd"].tolist() == [0.0]
    assert trips["shares"].tolist() == [200.0]
    assert {float(tests[name].equity[0]) for name in tests} == {20_000.0}
    owed = FREE.model_copy(update={"initial_shares": -10.0, "short": True})
    assert (
        float(fintrader.backtest(lambda obs: [[0.0]], market, owed)["buy_and_hold"].equity[0])
        == 9_000.0
    )


def test_a_walk_forward_of_rules_says_how_their_orders_fill():
    market = make_market(900, 2, seed=3, gaps=False, volatility=0.01)
    rule = OrderRule(at(0, lambda d: d.limit("S000", 1, 1e6)))
    found = fintrader.walk_forward(lambda train, validation: rule, market, folds=2)
    assert found.settings.terms().fill == "limit"
    assert found["policy"].orders.given == 2
