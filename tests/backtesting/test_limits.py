"""Limits over random accounts, orders and prices."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.limits import Limits, LimitSettings
from fintrader.backtesting.shadow import decide, shadow_backtest
from fintrader.bars.bars import MINUTE_NS
from fintrader.envs import EnvSettings
from tests.factories import examples, make_market

N = 4
prices = st.lists(st.floats(0.5, 500.0), min_size=N, max_size=N).map(np.array)
shares = st.lists(st.integers(0, 20_000), min_size=N, max_size=N).map(
    lambda x: np.array(x, dtype=np.float64)
)
shares_of_equity = st.floats(0.01, 1.0)


@settings(max_examples=examples(200))
@given(
    want=shares,
    held=shares,
    price=prices,
    cash=st.floats(0, 5e6),
    weight=shares_of_equity,
    order=shares_of_equity,
    turnover=st.floats(0.05, 3.0),
)
def test_no_order_breaks_a_limit(want, held, price, cash, weight, order, turnover):
    chosen = LimitSettings(weight=weight, order=order, turnover=turnover)
    limits = Limits(chosen)
    equity = cash + float(held @ price)
    if equity < 1:
        return
    limits.watch(0, equity)
    benchmark = np.full(N, 0.3)
    near = 1 + 1e-9
    for _ in range(3):  # three decisions of one session
        orders = limits.clip(want - held, held, price, equity, benchmark).orders
        goal = held + orders
        assert (orders == np.trunc(orders)).all()
        assert (np.sign(orders) * np.sign(want - held) >= 0).all()  # never the other way
        assert (np.abs(orders) <= np.abs(want - held)).all()  # never more
        assert (np.abs(orders) * price <= order * equity * near).all()
        bought = orders > 0
        assert (goal[bought] * price[bought] <= max(weight, 0.3) * equity * near).all()
        if bought.any():
            assert goal @ price <= max(equity, np.minimum(goal, held) @ price) * near
        held = goal
    assert limits.traded_usd <= turnover * equity * near


@pytest.mark.parametrize(
    ("chosen", "want", "held"),
    [({}, [100.0, 50.0], [90.0, 60.0]), ({"weight": 0.1}, [4000.0, 0.0], [5000.0, 0.0])],
    ids=["within all", "a sale of what grew beyond its weight"],
)
def test_what_limits_allow_is_left_as_it_is(chosen, want, held):
    limits = Limits(LimitSettings(**chosen))
    limits.watch(0, 1e6)
    price = np.array([100.0, 20.0])
    orders = np.array(want) - held
    clipped = limits.clip(orders, np.array(held), price, 1e6, np.zeros(2))
    assert clipped.by == ()
    assert clipped.orders.tolist() == orders.tolist()


@pytest.mark.parametrize(
    ("equities", "why"),
    [
        ([(0, 1e6), (0, 9.8e5), (1, 9.6e5)], ""),  # 2 % and 2 %: neither a day's loss nor 10 %
        ([(0, 1e6), (1, 9.69e5)], "since the session before"),
        ([(0, 1e6), (1, 9.8e5), (2, 9.6e5), (3, 9.4e5), (4, 9.2e5), (5, 8.99e5)], "since its peak"),
    ],
)
def test_losses_halt(equities, why):
    limits = Limits(LimitSettings())
    found = ""
    for session, equity in equities:
        found = limits.watch(session, equity)
    assert (why in found) if why else found == ""
    if why:  # and it stays halted, whatever is earned then
        assert limits.watch(99, 2e6) == found


def test_an_empty_account_halts_and_a_deposit_is_no_gain():
    limits = Limits(LimitSettings())
    assert limits.watch(0, 0.0) == "nothing is left in the account"
    limits.resume()
    assert limits.watch(0, 1e5) == ""
    assert "since the session before" in limits.watch(0, 9e4)


def test_a_deposit_after_debts_is_no_loss():
    limits = Limits(LimitSettings())
    limits.watch(0, 1e5)
    assert limits.watch(0, -1e3) == "nothing is left in the account"
    limits.resume()
    assert limits.watch(1, 1e5) == ""
    assert limits.watch(2, 1e5) == ""


def test_a_session_across_midnight_is_one():
    """The same bars at other hours of UTC."""
    market = make_market(60, 3, gaps=False)
    limits = LimitSettings(turnover=0.1, weight=1.0)
    env = EnvSettings()

    def swing(obs):
        swings.append(None)
        return torch.tensor([[9.0, -9.0, -9.0] if len(swings) % 2 else [-9.0, 9.0, -9.0]])

    found = []
    for minutes in (0, 560):
        swings = []
        shifted = replace(market, minutes=market.minutes + minutes * MINUTE_NS)
        found.append(shadow_backtest(swing, shifted, env, limits)[0])
    days = [len(np.unique(one.minutes // (1440 * MINUTE_NS))) for one in found]
    assert days == [3, 4]
    assert (found[0].shares == found[1].shares).all()
    assert found[0].trades["shares"].any()


def test_a_new_session_may_turn_over_again():
    limits = Limits(LimitSettings(turnover=0.1, order=1.0, weight=1.0))
    limits.watch(0, 1e6)
    price = np.array([10.0])
    nothing = np.zeros(1)
    wanted = np.array([50_000.0])
    first = limits.clip(wanted, nothing, price, 1e6, nothing).orders
    assert first[0] == 10_000.0
    assert limits.clip(wanted - first, first, price, 1e6, nothing).orders[0] == 0.0
    limits.watch(1, 1e6)
    assert limits.clip(wanted - first, first, price, 1e6, nothing).orders[0] == 10_000.0


@settings(max_examples=examples(60))
@given(
    held=st.lists(st.integers(0, 9_999), min_size=N, max_size=N).map(np.array),
    split=st.sampled_from([1.1, 1.5, 1 / 3, 0.1]),
    action=st.lists(st.floats(-1, 1, width=32), min_size=N, max_size=N).map(np.float32),
    most=st.sampled_from([0.02, 1.0]),
)
def test_fractions_that_a_split_left_make_no_order_of_parts_of_shares(held, split, action, most):
    """A broker with whole shares refuses 974.9999999999999 of them."""
    env = EnvSettings()
    shares = held * split
    account = BacktestAccount(make_market(30, N, 2, seed=1), env)
    account.set_books(
        bar=5,
        cash=1e6,
        equity=2e6,
        capital=(2e6, 2e6),
        shares=shares,
    )
    chosen = LimitSettings(order=most, weight=1.0, turnover=10.0, symbols_with_bars=0.1)
    orders = decide(account, action, Limits(chosen)).orders
    parts = orders[orders > 0]
    assert (parts == np.rint(parts)).all()
    sales = orders[orders < 0]
    assert ((sales == np.rint(sales)) | (sales == -shares[orders < 0])).all()


def test_too_few_bars():
    limits = Limits(LimitSettings(symbols_with_bars=0.8))
    member = np.array([True] * 5 + [False] * 5)
    seen = np.zeros((3, 10), dtype=bool)
    seen[0, :3] = True
    assert not limits.has_enough_bars(seen, member)
    seen[2, 3] = True
    assert limits.has_enough_bars(seen, member)  # four of five members, over three minutes
    assert limits.has_enough_bars(np.zeros((3, 10), dtype=bool), np.zeros(10, dtype=bool))
