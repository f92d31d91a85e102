"""Splits and dividends that a vendor announces, and prices that it adjusts."""

import datetime as dt

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fintrader.bars.checks import STOPPING
from fintrader.bars.corporate_actions import Action, add_announced, load_actions
from fintrader.bars.sources.announced import scale, select_for_accounts
from fintrader.errors import BarError, DataError
from fintrader.market.build import build_market, make_market
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from tests.bars.tables import COLUMNS, PRICES, file_settings, minute_table, write_actions, write_csv
from tests.bars.test_vendors import (  # noqa: F401  (fixtures)
    _own_yfinance,
    bars,
    fake,
    fake_alpaca,
    fake_yahoo,
    first_days,
    forget_answers,
    kind,
    prepared,
    then,
)

EX = "2016-01-14"


def splitting(fake):
    """AAA splits 4 for 1 on EX, and pays 0.40 for an old share two days before and 0.20 for a new
    one after."""
    days = fake.table.ts.dt.strftime("%Y-%m-%d")
    before = (fake.table.ticker == "AAA") & (days < EX)
    for name in PRICES:
        fake.table.loc[before, name] *= 4
    fake.table["volume"] = fake.table.volume.astype(float)
    fake.actions = [
        ("AAA", EX, 4.0, 0.0),
        ("AAA", "2016-01-12", 1.0, 0.4),
        ("AAA", "2016-01-20", 1.0, 0.2),
    ]


def adjusting(kind):
    return {"adjustment": "split"} if kind == "alpaca" else {}


@pytest.mark.slow
def test_a_store_that_grew_across_a_split_has_one_scale(kind, fake, tmp_path):
    splitting(fake)
    fake.now = "2016-01-13"
    early = prepared(
        kind, tmp_path / "grown", end="2016-01-12", today=dt.date(2016, 1, 13), **adjusting(kind)
    )
    old = early.bars("AAA")
    fake.now = "2016-01-29"
    forget_answers()
    asked = len(fake.requests)
    grown = prepared(kind, tmp_path / "grown", **adjusting(kind))
    assert (
        min(first_days(fake.requests[asked:])) >= "2016-01-13"
    )  # what was stored is not asked for again
    at_once = prepared(kind, tmp_path / "fresh", **adjusting(kind))
    for name in ("AAA", "BBB"):
        for column in COLUMNS:
            mine, theirs = (getattr(feed.bars(name), column) for feed in (grown, at_once))
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    first = slice(len(old))
    np.testing.assert_allclose(grown.bars("AAA").close[first], old.close / 4, rtol=1e-12)
    np.testing.assert_allclose(grown.bars("AAA").volume[first], old.volume * 4, rtol=1e-12)
    close = grown.bars("AAA").close
    assert np.abs(np.diff(np.log(close))).max() < 0.1
    assert grown.inputs != early.inputs
    again = prepared(kind, tmp_path / "grown", **adjusting(kind))
    assert again.inputs == grown.inputs


@pytest.mark.slow
def test_announcements_are_asked_for_once(kind, fake, tmp_path):
    splitting(fake)
    prepared(kind, tmp_path)
    asked = list(fake.asked_for_actions)
    assert sorted(name for names in asked for name in names.split(",")) == ["AAA", "BBB"]
    feed = prepared(kind, tmp_path)
    assert fake.asked_for_actions == asked
    silent = prepared(kind, tmp_path / "silent", actions=False)
    assert fake.asked_for_actions == asked
    assert silent.actions == ()
    assert silent.inputs != feed.inputs


def test_what_is_in_the_prices_reaches_no_account(kind, fake, tmp_path):
    splitting(fake)
    adjusted = prepared(kind, tmp_path, **adjusting(kind))
    found = [(one.day.day, one.split, pytest.approx(one.dividend_usd)) for one in adjusted.actions]
    assert found == [(12, 1.0, 0.1), (20, 1.0, 0.2)]  # for shares of today


def test_an_action_of_a_day_off_happens_on_the_next_session(fake_alpaca, tmp_path):
    fake_alpaca.actions = [("AAA", day, 1.0, 0.1) for day in ("2016-01-09", "2016-01-23")]
    assert [action.day.day for action in prepared("alpaca", tmp_path).actions] == [11]


def market_of(symbols, tmp_path, **changes):
    """The market of Alpaca's bars of these symbols as traded."""
    settings = {
        "source": {"kind": "alpaca"},
        "start": "2016-01-04",
        "end": "2016-01-22",
        "universe": {"symbols": symbols},
        "features": {"names": ["return_1"], "context": []},
    }
    chosen = DataSettings.model_validate(settings | changes)
    return MarketTensors.load(build_market(chosen, cache=tmp_path / "a"))


@pytest.mark.usefixtures("then")
def test_raw_bars_come_with_their_splits_and_dividends(fake_alpaca, tmp_path, caplog):
    splitting(fake_alpaca)
    market = market_of(["AAA"], tmp_path)
    bar = 8 * 390
    assert market.events.bar.tolist() == [6 * 390, bar, 11 * 390]
    assert market.events.split.tolist() == [1.0, 4.0, 1.0]
    assert market.events.dividend_usd.tolist() == [0.4, 0.0, 0.2]
    assert float(market.close[bar - 1, 0] / market.close[bar, 0]) == pytest.approx(4, rel=0.05)
    assert market.provenance.contradictions == ()
    mine = [
        {"symbol": "AAA", "day": EX, "split": 4.0},
        {"symbol": "AAA", "day": "2016-01-12", "dividend_usd": 0.5},
    ]
    again = market_of(["AAA"], tmp_path, actions=write_actions(tmp_path, mine))
    assert again.events.split.tolist() == [1.0, 4.0, 1.0]  # declared and announced is one split
    assert again.events.dividend_usd.tolist() == [0.5, 0.0, 0.2]
    line = "AAA 2016-01-12: dividend_usd 0.5 is declared, the source says 0.4"
    assert again.provenance.contradictions == (line,)
    assert line in caplog.text


@pytest.mark.usefixtures("then")
def test_a_split_that_a_vendor_announces_and_its_prices_lack_is_refused(fake_alpaca, tmp_path):
    """The remedy of the message works: the user's actions override the vendor's."""
    fake_alpaca.actions = [("AAA", EX, 4.0, 0.0), ("BBB", "2016-01-12", 1.0, 0.01)]
    with pytest.raises(BarError, match="no split, and 4 to 1 is declared") as caught:
        market_of(["AAA", "BBB"], tmp_path)
    assert "declare the action under data.actions (with split: 1 if no split happened)" in str(
        caught.value
    )
    none = [
        {"symbol": "AAA", "day": EX, "split": 1.0},
        {"symbol": "BBB", "day": "2016-01-12", "dividend_usd": 0.0},
    ]
    market = market_of(["AAA", "BBB"], tmp_path, actions=write_actions(tmp_path, none))
    assert len(market.events.bar) == 0
    assert market.provenance.contradictions == (
        f"AAA {EX}: split 1 is declared, the source says 4",
        "BBB 2016-01-12: dividend_usd 0 is declared, the source says 0.01",
    )


@pytest.mark.usefixtures("then")
def test_a_step_in_a_vendors_prices_that_it_does_not_announce_is_refused(fake_alpaca, tmp_path):
    splitting(fake_alpaca)
    fake_alpaca.actions = fake_alpaca.actions[1:]
    with pytest.raises(BarError, match="4 to 1, and none is declared"):
        market_of(["AAA"], tmp_path)
    mine = write_actions(tmp_path, [{"symbol": "AAA", "day": EX, "split": 4.0}])
    market = market_of(["AAA"], tmp_path, actions=mine)
    assert market.events.split.tolist() == [1.0, 4.0, 1.0]


def test_prices_with_dividends_in_them_are_asked_for_again(fake_alpaca, tmp_path):
    splitting(fake_alpaca)
    fake_alpaca.actions = [("AAA", EX, 1.0, 0.3)]
    prepared("alpaca", tmp_path, end="2016-01-12", today=dt.date(2016, 1, 13), adjustment="all")
    asked = len(fake_alpaca.requests)
    prepared("alpaca", tmp_path, adjustment="all")
    new = [(item["symbols"], item["start"][:10]) for item in fake_alpaca.requests[asked:]]
    assert ("AAA", "2016-01-04") in new
    assert ("BBB", "2016-01-13") in new
    assert not any("BBB" in names for names, start in new if start < "2016-01-13")


def test_scales_and_payments_of_any_actions():
    """Holding through the split-adjusted prices earns what holding through the raw ones does."""
    actions = [
        Action(symbol="AAA", day=dt.date(2016, 1, 5), dividend_usd=1.0),
        Action(symbol="AAA", day=dt.date(2016, 1, 8), split=2.0, dividend_usd=0.6),
        Action(symbol="AAA", day=dt.date(2016, 1, 12), dividend_usd=0.25),
        Action(symbol="AAA", day=dt.date(2016, 1, 20), split=0.5),
    ]
    basis = dt.date(2016, 1, 25)
    shares = cash = 0.0
    for start in (dt.date(2016, 1, 4), dt.date(2016, 1, 6), dt.date(2016, 1, 9)):
        shares = 1.0
        cash = 0.0
        for one in actions:
            if one.day > start:
                cash += shares * one.dividend_usd
                shares *= one.split
        assert scale(actions, start, basis) == shares
        paid = sum(
            one.dividend_usd
            for one in select_for_accounts(actions, "split", basis)
            if one.day > start
        )
        assert shares * paid == pytest.approx(cash)
    assert select_for_accounts(actions, "raw", basis) == actions
    assert select_for_accounts(actions, "all", basis) == []
    assert [one.split for one in select_for_accounts(actions, "dividend", basis)] == [2.0, 0.5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "AAA,2016-01-07,split,4\nBBB,2016-01-07,split,4\nAAA,2016-01-07,split,4",
            "line 4: a second split of AAA",
        ),
        (
            "AAA,2016-01-07,dividend,1\nAAA,2016-01-07,dividend,1",
            r"line 3: a second dividend of AAA on 2016-01-07 \(",
        ),
        ("AAA,2016-01-07,split,4\nZZZ,2016-01-07,split,4", "line 3: there are no bars of ZZZ"),
    ],
)
def test_duplicates_and_unknown_symbols_are_errors(tmp_path, rows, message):
    path = tmp_path / "actions.csv"
    path.write_text(f"ticker,ex_date,kind,value\n{rows}\n")
    market = file_settings(write_csv(tmp_path, minute_table(2, 6)), actions=str(path))
    with pytest.raises(DataError, match=f"actions.csv, {message}"):
        make_market(market)


def test_a_split_with_a_dividend_is_no_duplicate(tmp_path):
    day = dt.date(2016, 1, 7)
    split = Action(symbol="AAA", day=day, split=2.0)
    dividend = Action(symbol="AAA", day=day, dividend_usd=1.0)
    rows = [split.model_dump(), dividend.model_dump()]
    assert load_actions(write_actions(tmp_path, rows)) == (split, dividend)
    both = Action(symbol="AAA", day=day, split=2.0, dividend_usd=1.0)
    assert add_announced((split,), [both]) == ((split, dividend), [])


TABLE = minute_table(2, 6)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    row=st.integers(0, 3 * 390 - 1),
    factor=st.floats(0.5, 2.0),
    split=st.sampled_from([0.1, 1.0, 4.0]),
)
def test_a_changed_bar_before_an_ex_date_changes_nothing_before_it(tmp_path, row, factor, split):
    """The dividend's share of the last close before it goes into what comes after, and into nothing
    else."""
    other = TABLE.copy()
    at = other.index[other.ticker == "AAA"][row]
    other.loc[at, PRICES] *= round(factor, 3)
    found = []
    for number, table in enumerate((TABLE, other)):
        actions = [{"symbol": "AAA", "day": "2016-01-07", "split": split, "dividend_usd": 2.0}]
        names = {"names": ["return_1", "sma_5"], "context": ["index_return_1"]}
        chosen = file_settings(
            write_csv(tmp_path / str(number), table),
            actions=write_actions(tmp_path / "declared", actions),
            features=names | {"scaling": "none"},
            waive=STOPPING,
        )
        found.append(make_market(chosen))
    one, two = found
    for name in ("open", "close", "features", "context", "benchmark", "adjusted_close"):
        assert torch.equal(getattr(one, name)[:row], getattr(two, name)[:row]), name
    assert [value.tolist() for value in one.events] == [value.tolist() for value in two.events]
