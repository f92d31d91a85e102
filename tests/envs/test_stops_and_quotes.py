"""Stops, and quotes of a bid and an ask, in numbers worked out by hand."""

import numpy as np
import pytest

from fintrader.market.tensors import Events
from tests.envs.test_limit_orders import BELOW, QUIET, decide, open_account, seen

ABOVE = (100.0, 102.0, 100.0, 100.0)
"""A bar that trades through 101."""
BOTH = (100.0, 102.0, 98.0, 100.0)
"""A bar that trades through 99 and 101."""
GONE = (np.nan,) * 4


@pytest.fixture(params=["torch", "fused"])
def engine(request):
    return request.param


def flat(price):
    """A bar of one price."""
    return (price,) * 4


def down_to(low):
    """A bar from 100 that falls to `low`, and comes back."""
    return (100.0, 100.0, low, 100.0)


def open_guarded(engine, *assets, **given):
    """One account whose stops lie 25 % from the close for an action just above 0, and at the close
    for 1: where this is 100 and the action 0.75, at 93.75 and at 106.25."""
    return open_account(engine, *assets, stop_offset_bps=2500.0, **given)


def open_quotes(engine, *assets, size=5.0, **given):
    """One account that quotes `size` shares each way; for actions of 1 a bid at 99 and an ask at
    101 where the close is 100."""
    equity = given.get("cash", 1000.0) + 100.0 * sum(given.get("shares") or [])
    weight = (size + 1e-9) * 100.0 / equity
    return open_account(engine, *assets, action="quote", quote_weight=weight, **given)


# --- stops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nearness", "low", "left"),
    [
        *[(0.75, 93.75, 0), (0.75, 93.76, 10)],
        *[(0.5, 87.5, 0), (0.5, 87.51, 10)],
        *[(1.0, 100.0, 0), (2.0, 100.0, 0)],
        *[(0.0, 1.0, 10), (-1.0, 1.0, 10)],  # none
    ],
)
def test_a_bar_that_touches_the_stop_reaches_it(engine, nearness, low, left):
    bars = [QUIET, down_to(low), flat(90.0)]
    env = open_guarded(engine, bars, cash=0.0, shares=[10.0], decision_interval=2)
    assert decide(env, 1.0, 0.0, nearness) == (90.0 * (10 - left), [left])


def test_the_exit_at_the_next_open_pays_spread_and_impact(engine):
    costs = {"cost_bps": 10.0, "half_spread_bps": 40.0, "impact_bps": 100.0}
    env = open_guarded(
        engine,
        [QUIET, (100.0, 100.0, 93.0, 94.0), (95.0, 96.0, 95.0, 96.0)],
        cash=0.0,
        shares=[10.0],
        decision_interval=2,
        given={"volume": np.full((3, 1), 1000.0)},
        **costs,
    )
    cash, shares = decide(env, 1.0, 0.0, 0.75)
    # Of 950 USD 10 and 40 basis points: 0.95 and 3.80. Ten shares are a hundredth of the volume,
    # which pays a tenth of 100 basis points: 0.95.
    assert shares == [0.0]
    assert cash == pytest.approx(944.3, abs=2e-6)


def test_a_gap_through_the_stop_leaves_at_the_open_after_it(engine):
    """Not at the stop, nor at the open of the bar that lay below it."""
    bars = [QUIET, (80.0, 82.0, 78.0, 82.0), flat(85.0)]
    env = open_guarded(engine, bars, cash=0.0, shares=[10.0], decision_interval=2)
    assert decide(env, 1.0, 0.0, 0.75) == (850.0, [0.0])


def leaving(engine, **rules):
    """Ten shares, of which a bar takes four: bar 1 reaches the stop."""
    return open_guarded(
        engine,
        [QUIET, down_to(90.0), BELOW, BELOW, BELOW, BELOW],
        cash=0.0,
        shares=[10.0],
        given={"volume": np.full((6, 1), 40.0)},
        participation=0.1,
        **rules,
    )


def test_no_decision_comes_between_a_stop_and_the_end_of_its_position(engine):
    env = leaving(engine)
    assert decide(env, 1.0, 0.0, 0.75) == (0.0, [10.0])
    # These would buy at 99 what has gone, and place another stop.
    assert decide(env, 1.0, -1.0, 0.75) == (400.0, [6.0])
    assert decide(env, 1.0, -1.0, 0.75) == (800.0, [2.0])
    assert decide(env, 1.0, -1.0, 0.75) == (1000.0, [0.0])
    # Ten shares ordered, of which four fill.
    assert decide(env, 1.0, -1.0, 0.0) == (604.0, [4.0])


@pytest.mark.parametrize("time_in_force", [None, 1])
def test_a_stop_that_was_reached_is_seen_as_a_sale_without_age(engine, time_in_force):
    """What is left, its distance and age; the stop."""
    env = leaving(engine, time_in_force=time_in_force)
    for left in (-1.0, -0.6, -0.2):
        columns = seen(env, 1.0, 0.0, 0.75)
        assert columns == pytest.approx(np.array([[left], [-1.0], [0.0], [1.0]]))
    assert not seen(env, 1.0, 0.0, 0.75).any()


@pytest.mark.parametrize(("low", "cash"), [(93.0, 900.0), (94.0, 1010.0)])
def test_of_a_sale_and_a_stop_in_one_bar_the_stop_comes_first(engine, low, cash):
    bars = [QUIET, (100.0, 102.0, low, 100.0), flat(90.0)]
    env = open_guarded(engine, bars, cash=0.0, shares=[10.0], decision_interval=2)
    assert decide(env, 0.0, 1.0, 0.75) == (cash, [0.0])


@pytest.mark.parametrize(("low", "cash", "left"), [(93.0, 960.0, 0), (94.0, 10.0, 10)])
def test_the_bar_that_opens_a_position_can_stop_it(engine, low, cash, left):
    bars = [QUIET, (100.0, 100.0, low, 96.0), flat(95.0)]
    env = open_guarded(engine, bars, decision_interval=2)
    assert decide(env, 1.0, -1.0, 0.75) == (cash, [left])


def test_what_enlarges_a_position_in_the_bar_of_its_stop_is_closed_too(engine):
    bars = [QUIET, (100.0, 100.0, 93.0, 96.0), flat(95.0)]
    env = open_guarded(engine, bars, cash=500.0, shares=[5.0], decision_interval=2)
    assert decide(env, 1.0, -1.0, 0.75) == (500.0 - 5 * 99.0 + 10 * 95.0, [0.0])


def test_a_stop_cancels_what_rests(engine):
    """A bar takes two shares: of five ordered two fill, and no more while seven are sold."""
    env = open_guarded(
        engine,
        [QUIET, (100.0, 100.0, 93.0, 96.0), flat(95.0), flat(95.0)],
        cash=500.0,
        shares=[5.0],
        given={"volume": np.full((4, 1), 20.0)},
        participation=0.1,
        decision_interval=3,
    )
    assert decide(env, 1.0, -1.0, 0.75) == (500.0 - 2 * 99.0 + 4 * 95.0, [3.0])


@pytest.mark.parametrize(("high", "cash", "left"), [(106.25, 920.0, 0), (106.24, 2000.0, -10)])
def test_the_stop_of_a_short_position_lies_above_it(engine, high, cash, left):
    bars = [QUIET, (100.0, high, 100.0, 100.0), flat(108.0)]
    env = open_guarded(engine, bars, cash=2000.0, shares=[-10.0], short=True, decision_interval=2)
    assert decide(env, -1.0, 0.0, 0.75) == (cash, [left])


def test_a_position_on_the_other_side_has_no_stop(engine):
    """Three shares a bar turn five short into one long, which alone the stop below is for."""
    env = open_guarded(
        engine,
        [QUIET, down_to(93.0), down_to(93.0), flat(95.0)],
        cash=1500.0,
        shares=[-5.0],
        short=True,
        given={"volume": np.full((4, 1), 30.0)},
        participation=0.1,
        decision_interval=3,
    )
    assert decide(env, 0.5, -1.0, 0.75) == (1500.0 - 6 * 99.0 + 95.0, [0.0])


@pytest.mark.parametrize(("low", "cash", "left"), [(46.875, 960.0, 0), (46.88, 0.0, 20)])
def test_a_split_halves_a_stop(engine, low, cash, left):
    env = open_guarded(
        engine,
        [QUIET, QUIET, (50.0, 50.0, low, 50.0), flat(48.0)],
        cash=0.0,
        shares=[10.0],
        given={"events": Events.of([(2, 0, 2.0, 0.0)])},
        decision_interval=3,
    )
    assert decide(env, 1.0, 0.0, 0.75) == (cash, [left])


def test_a_split_doubles_what_a_stop_closes(engine):
    env = open_guarded(
        engine,
        [QUIET, down_to(93.0), flat(48.0)],
        cash=0.0,
        shares=[10.0],
        given={"events": Events.of([(2, 0, 2.0, 0.0)])},
        decision_interval=2,
    )
    assert decide(env, 1.0, 0.0, 0.75) == (960.0, [0.0])


@pytest.mark.parametrize(
    ("quiet_bar", "cash", "left"),
    [(1, 0.0, 10), (2, 950.0, 0), (3, 970.0, 0)],
    ids=["reaches none", "delays the exit", "after it"],
)
def test_a_bar_without_a_trade(engine, quiet_bar, cash, left):
    volume = np.full((4, 1), 1e9)
    volume[quiet_bar] = 0.0
    env = open_guarded(
        engine,
        [QUIET, down_to(93.0), flat(97.0), flat(95.0)],
        cash=0.0,
        shares=[10.0],
        given={"volume": volume, "tradable": volume > 0},
        decision_interval=3,
    )
    assert decide(env, 1.0, 0.0, 0.75) == (cash, [left])


@pytest.mark.parametrize("interval", [1, 3])
def test_a_margin_call_ends_stops(engine, interval):
    """The second asset's rise calls for all; neither its stop, which the bar reaches, nor the
    first's, which it does not, is left."""
    env = open_guarded(
        engine,
        [QUIET] * 4,
        [QUIET, flat(125.0), flat(99.0), flat(99.0)],
        cash=2400.0,
        shares=[5.0, -20.0],
        short=True,
        maintenance_margin=0.3,
        decision_interval=interval,
    )
    assert not seen(env, 0.0, 0.0, 1.0, 1.0, 0.75, 0.75).any()
    assert float(env.account.cash) == 2400.0 + 500.0 - 2500.0
    assert env.account.shares[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("low", [93.0, 94.0])
@pytest.mark.parametrize("interval", [1, 3])
def test_stops_end_with_the_last_bar_of_their_symbol(engine, interval, low):
    """It is sold at that bar's close, whether the bar reached the stop or not."""
    listed = np.array([[True, True]] * 2 + [[False, True]] * 2)
    env = open_guarded(
        engine,
        *([QUIET, down_to(low), GONE, GONE], [QUIET] * 4),
        cash=500.0,
        shares=[5.0, 0.0],
        given={"tradable": listed, "benchmark": np.full(4, 100.0)},
        decision_interval=interval,
    )
    assert not seen(env, 0.5, 0.0, 0.0, 0.0, 0.75, 0.75).any()
    assert float(env.account.cash) == 1000.0
    assert env.account.shares[0].tolist() == [0.0, 0.0]


def turbulent(engine, bars, *context):
    """Ten shares, of which a bar takes three."""
    return open_guarded(
        engine,
        bars,
        cash=0.0,
        shares=[10.0],
        given={
            "context": np.array(context)[:, None],
            "volume": np.full((len(bars), 1), 30.0),
        },
        participation=0.1,
        turbulence={"c0": 3.0},
    )


def test_no_stop_is_placed_in_turbulence(engine):
    """What is not sold by the next decision is held from then on."""
    env = turbulent(engine, [QUIET, flat(90.0), flat(90.0)], 5.0, 0.0, 0.0)
    assert decide(env, 1.0, 0.0, 0.75) == (270.0, [7.0])
    assert decide(env, 1.0, 0.0, 0.0) == (270.0, [7.0])


def test_a_stop_that_was_reached_goes_on_through_turbulence(engine):
    env = turbulent(engine, [QUIET, down_to(93.0), QUIET, QUIET, QUIET], 0.0, 5.0, 0.0, 0.0, 0.0)
    assert decide(env, 1.0, 0.0, 0.75) == (0.0, [10.0])
    assert decide(env, 1.0, 0.0, 0.75) == (300.0, [7.0])
    assert decide(env, 1.0, 0.0, 0.75) == (600.0, [4.0])
    assert decide(env, 1.0, 0.0, 0.75) == (900.0, [1.0])


def test_time_in_force_ends_orders_but_no_stop(engine):
    """The sale at 101 is gone before a bar reaches it, the stop is not."""
    bars = [QUIET, QUIET, ABOVE, down_to(93.0), flat(95.0)]
    rules = {"decision_interval": 4, "time_in_force": 1}
    env = open_guarded(engine, bars, cash=0.0, shares=[10.0], **rules)
    assert decide(env, 0.0, 1.0, 0.75) == (950.0, [0.0])


def test_the_next_decision_replaces_a_stop(engine):
    bars = [QUIET, QUIET, down_to(90.0), flat(85.0)]
    env = open_guarded(engine, bars, cash=0.0, shares=[10.0])
    assert decide(env, 1.0, 0.0, 0.75) == (0.0, [10.0])
    assert decide(env, 1.0, 0.0, 0.5) == (0.0, [10.0])  # at 87.5
    assert decide(env, 1.0, 0.0, 0.0) == (0.0, [10.0])


@pytest.mark.parametrize(
    ("shares", "cash", "weight", "close", "distance"),
    # 93.75 lies a quarter below 125, 106.25 a quarter above 85.
    [(10.0, 0.0, 1.0, 125.0, -0.25), (-10.0, 2000.0, -1.0, 85.0, 0.25)],
)
def test_the_distance_of_a_stop_is_seen(engine, shares, cash, weight, close, distance):
    bars = [QUIET, flat(close)]
    env = open_guarded(engine, bars, cash=cash, shares=[shares], short=True)
    columns = seen(env, weight, 0.0, 0.75)
    assert columns == pytest.approx(np.array([[0.0], [0.0], [0.0], [distance]]))


# --- quotes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bid", "ask", "earned"),
    # 99 and 101; 99.50 and 100.50; 100 and 100, the open; 99.75 and 101.
    [(1.0, 1.0, 10.0), (0.0, 0.0, 5.0), (-1.0, -1.0, 0.0), (-0.5, 3.0, 6.25)],
)
def test_a_bar_that_fills_both_sides_earns_the_spread(engine, bid, ask, earned):
    env = open_quotes(engine, [QUIET, BOTH], shares=[10.0])
    assert decide(env, bid, ask) == (1000.0 + earned, [10.0])


def test_a_bar_that_only_touches_quotes_fills_neither(engine):
    env = open_quotes(engine, [QUIET, (100.0, 101.0, 99.0, 100.0)], shares=[10.0])
    assert decide(env, 1.0, 1.0) == (1000.0, [10.0])


@pytest.mark.parametrize(("fractional", "earned"), [(False, 10.0), (True, 11.0)])
def test_quotes_are_for_whole_shares_unless_fractional(engine, fractional, earned):
    rules = {"size": 5.5, "fractional": fractional}
    env = open_quotes(engine, [QUIET, BOTH], shares=[10.0], **rules)
    assert decide(env, 1.0, 1.0) == (1000.0 + earned, [10.0])


@pytest.mark.parametrize(("held", "cash"), [(0.0, 505.0), (3.0, 808.0)])
def test_an_ask_does_not_sell_what_the_bid_bought(engine, held, cash):
    """Nor in the next bar: it was for what the decision saw."""
    env = open_quotes(engine, [QUIET, BOTH, BOTH], shares=[held], decision_interval=2)
    assert decide(env, 1.0, 1.0) == (cash, [5.0])


@pytest.mark.parametrize(("interval", "cash", "left"), [(1, 557.0, 7), (2, 260.0, 10)])
def test_an_ask_pays_for_no_bid_of_its_bar(engine, interval, cash, left):
    """250 USD pay two of five shares at 99; the next bar has the 505 USD from the ask."""
    env = open_quotes(
        engine, [QUIET, BOTH, BOTH], cash=250.0, shares=[10.0], decision_interval=interval
    )
    assert decide(env, 1.0, 1.0) == (cash, [left])


def test_the_volume_limits_bid_and_ask_each_on_its_own(engine):
    """Four of five fill on both sides; the fifth is seen, of the bid, then of the ask."""
    volume = {"volume": np.full((2, 1), 40.0)}
    env = open_quotes(engine, [QUIET, BOTH], shares=[10.0], given=volume, participation=0.1)
    columns = seen(env, 1.0, 1.0)
    assert float(env.account.cash) == 1008.0
    assert env.account.shares[0].tolist() == [10.0]
    part = 100.0 / 2008.0
    assert columns == pytest.approx(
        np.array([[part], [-0.01], [1.0], [-part], [0.01], [1.0]]), abs=1e-6
    )


def test_bids_come_before_asks(engine):
    """A thousand USD pay for ten shares at 99, and the ask sells these."""
    env = open_quotes(engine, [QUIET, BOTH], short=True, size=10.0)
    assert decide(env, 1.0, 1.0) == (1020.0, [0.0])


def test_asks_have_the_room_that_bids_left(engine):
    """Of 1,000 USD a bid takes 594: 406 are four shares at 101."""
    env = open_quotes(engine, [QUIET, BELOW], [QUIET, ABOVE], short=True, size=6.0)
    assert decide(env, 1.0, 1.0, 1.0, 1.0) == (1000.0 - 594.0 + 404.0, [6.0, -4.0])


def test_asks_have_no_room_from_what_bids_covered(engine):
    """Of 1,006 USD six shares sold short take 594, at 99, until the bid is filled: 412 are left."""
    env = open_quotes(
        engine,
        *([QUIET, BELOW], [QUIET, ABOVE]),
        cash=1600.0,
        shares=[-6.0, 0.0],
        short=True,
        size=6.0,
    )
    assert decide(env, 1.0, 1.0, 1.0, 1.0) == (1600.0 - 594.0 + 404.0, [0.0, -4.0])


def test_what_bids_covered_does_not_replace_the_room_that_bids_took(engine):
    """Of 2,188 USD six shares sold short take 594 twice, in equity and in exposure: 1,000 are left.
    Another bid takes 594 of these, which leaves 406, whatever the first gives back."""
    env = open_quotes(
        engine,
        *([QUIET, BELOW], [QUIET, BELOW], [QUIET, ABOVE]),
        cash=2188.0,
        shares=[-6.0, 0.0, 0.0],
        short=True,
        size=6.0,
    )
    cash, shares = decide(env, *[1.0] * 6)
    assert shares == [0.0, 6.0, -4.0]
    assert cash == 2188.0 - 594.0 - 594.0 + 404.0


def test_nothing_is_quoted_without_a_price(engine):
    """An ask at nothing would sell to anyone."""
    listed = np.array([[False, True], [True, True]])
    env = open_quotes(
        engine,
        *([GONE, QUIET], [QUIET, QUIET]),
        given={"tradable": listed, "benchmark": np.full(2, 100.0)},
        short=True,
    )
    assert decide(env, 1.0, 1.0, 1.0, 1.0) == (1000.0, [0.0, 0.0])


@pytest.mark.parametrize(("held", "cash", "left"), [(10.0, 0.0, 900.0), (-10.0, 2000.0, 1100.0)])
def test_turbulence_closes_what_is_held_and_quotes_nothing(engine, held, cash, left):
    env = open_quotes(
        engine,
        [QUIET, flat(90.0), BOTH],
        cash=cash,
        shares=[held],
        short=True,
        given={"context": np.array([[5.0], [0.0], [0.0]])},
        turbulence={"c0": 3.0},
        decision_interval=2,
    )
    assert decide(env, 1.0, 1.0) == (left, [0.0])


# --- both -----------------------------------------------------------------------------------------


def test_a_stop_comes_before_the_ask_and_after_the_bid(engine):
    """Five bought at 99, none sold at 101: fifteen leave at 95."""
    bars = [QUIET, (100.0, 102.0, 93.0, 100.0), flat(95.0)]
    rules = {"stop_offset_bps": 2500.0, "decision_interval": 2}
    env = open_quotes(engine, bars, shares=[10.0], **rules)
    assert decide(env, 1.0, 1.0, 0.75) == (1000.0 - 495.0 + 15 * 95.0, [0.0])


def test_a_stop_comes_before_the_bid_that_covers(engine):
    """Five more sold short at 101, none bought at 99: fifteen are bought back at 108."""
    bars = [QUIET, (100.0, 107.0, 98.0, 100.0), flat(108.0)]
    rules = {"stop_offset_bps": 2500.0, "decision_interval": 2, "short": True}
    env = open_quotes(engine, bars, cash=3000.0, shares=[-10.0], **rules)
    assert decide(env, 1.0, 1.0, 0.75) == (3000.0 + 505.0 - 15 * 108.0, [0.0])


def test_what_is_quoted_without_a_position_has_no_stop(engine):
    bars = [QUIET, (100.0, 102.0, 93.0, 100.0), flat(95.0)]
    env = open_quotes(engine, bars, stop_offset_bps=2500.0, decision_interval=2)
    assert decide(env, 1.0, 1.0, 0.75) == (505.0, [5.0])


def test_a_stop_outlives_a_position_that_comes_back(engine):
    """Ten sold at 101, ten bought at 99 by a bar that goes on to the stop, and sold at 95."""
    bars = [QUIET, ABOVE, (100.0, 100.0, 93.0, 96.0), flat(95.0)]
    rules = {"stop_offset_bps": 2500.0, "decision_interval": 3, "size": 10.0}
    env = open_quotes(engine, bars, shares=[10.0], **rules)
    assert decide(env, 1.0, 1.0, 0.75) == (1000.0 + 1010.0 - 990.0 + 950.0, [0.0])


def test_the_exit_of_a_quoted_position_is_seen_in_place_of_the_bid(engine):
    """What is left, its distance and age; nothing in place of the ask; the stop."""
    env = open_quotes(
        engine,
        [QUIET, down_to(93.0), BOTH],
        shares=[10.0],
        given={"volume": np.full((3, 1), 40.0)},
        participation=0.1,
        stop_offset_bps=2500.0,
    )
    # Four bought at 99, one still ordered when the stop is reached; then four of fourteen sold.
    columns = seen(env, 1.0, 1.0, 0.75)
    left = -1400.0 / (1000.0 - 396.0 + 1400.0)
    assert columns == pytest.approx(np.array([[left], [-1.0], *[[0.0]] * 4, [1.0]]))
    columns = seen(env, 1.0, 1.0, 0.75)
    left = -1000.0 / (1000.0 - 396.0 + 1400.0)
    assert columns == pytest.approx(np.array([[left], [-1.0], *[[0.0]] * 4, [1.0]]))
