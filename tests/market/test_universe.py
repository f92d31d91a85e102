import datetime as dt

import numpy as np
import pandas as pd
import pytest
import torch

from fintrader.bars.calendar import session_grid
from fintrader.config import validate
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import DataError
from fintrader.market.build import make_market
from fintrader.market.load import load_market
from fintrader.market.settings import DataSettings
from fintrader.market.universe import (
    missing_members,
    read_membership,
    survivorship,
)
from tests.bars.tables import PLAIN, minute_table, write_csv
from tests.quick import slow_but


def test_membership_stops_buying_but_keeps_the_prices(tmp_path):
    (tmp_path / "list.csv").write_text(
        "ticker,member_from,member_to\nAAA,2015-01-01,2016-01-06\nBBB,2016-01-07,\nDDD,2016-01-04,\nAAA,2016-01-08,2016-01-08\n"
    )
    values = {
        "path": str(write_csv(tmp_path, minute_table(3, 6))),
        "universe": {"members": str(tmp_path / "list.csv")},
        **PLAIN,
    }
    market = make_market(validate(DataSettings, values, "test"))
    assert market.symbols == ("AAA", "BBB")
    assert market.provenance.left_out == {"CCC": "never a member in the range"}
    days = market.member.reshape(6, 390, 2)
    assert (days == days[:, :1]).all()
    assert days[:, 0].tolist() == [[True, False]] * 3 + [[False, True], [True, True], [False, True]]
    assert market.tradable.all()
    assert not torch.isnan(market.close).any()
    values["universe"] = {"members": str(tmp_path / "list.csv"), "aliases": {"CCC": "DDD"}}
    market = make_market(validate(DataSettings, values, "test"))
    assert market.symbols == ("AAA", "BBB", "CCC")
    assert market.member[:, 2].all()


def market_with_ipo(folder, **values):
    """BBB is listed on the second day of the test window, 2016-01-21."""
    table = minute_table(3, 16)
    table = table[(table.ticker != "BBB") | (table.ts >= "2016-01-21 11:00")]
    values = {"path": str(write_csv(folder, table)), **PLAIN, **values}
    return make_market(validate(DataSettings, values, "test"))


@pytest.mark.parametrize(
    ("names", "first"),
    slow_but(
        1,
        3,
        every=[
            (["return_1"], "2016-01-22"),  # part of its first day is over
            (["return_1", "sma_400"], "2016-01-25"),
            (["return_1", "beta_900"], "2016-01-26"),  # of the members' returns
            (["gap_3"], "2016-01-26"),  # days, not bars
            (["sma_4000"], None),
        ],
    ),
)
def test_a_late_listing_is_bought_once_its_features_have_history(tmp_path, caplog, names, first):
    market = market_with_ipo(tmp_path, features={"names": names, "context": []})
    dates = market.timestamps().astype("datetime64[D]").astype(str)
    bought = market.member[:, 1].numpy()
    assert bought.tolist() == (dates >= (first or "9999")).tolist()
    assert (market.features[bought, 1] != 0).any(dim=-1).sum() >= 0.9 * bought.sum()
    assert market.member[:, [0, 2]].all()
    assert f"enough history: BBB {f'from {first}' if first else 'never'}" in caplog.text
    # prices stay, and leavers are unaffected
    assert torch.isfinite(market.close[dates >= "2016-01-22", 1]).all()
    assert market.provenance.survivorship.left_the_list == 0


def test_no_account_buys_a_listing_without_history(tmp_path):
    market = market_with_ipo(tmp_path, features={"names": ["sma_400"], "context": []})
    test = market.split().test
    env = TradingEnv(test, EnvSettings(num_envs=1, start="first"), seed=0)
    env.reset()
    held = [0.0]
    for _ in range(test.num_bars - 2):
        env.step(torch.ones(1, 3))
        held.append(float(env.account.shares[0, 1]))
    assert np.isfinite(test.close[480:, 1]).all()
    assert int(np.flatnonzero(held)[0]) == int(test.member[:, 1].int().argmax()) > 480


def test_a_bad_list_is_named(tmp_path):
    (tmp_path / "list.csv").write_text("ticker,member_from,member_to\nAAA,soon,\n")
    with pytest.raises(DataError, match=r"list.csv, line 2"):
        read_membership(tmp_path / "list.csv")
    with pytest.raises(DataError, match=r"does not exist; see data.universe.members"):
        read_membership(tmp_path / "nothing.csv")


def growth(close, held):
    """Yearly log growth of equal weights, the slow way."""
    steps = []
    for day in range(1, len(close)):
        ratios = [close[day, n] / close[day - 1, n] for n in range(close.shape[1]) if held[day, n]]
        ratios = [ratio for ratio in ratios if np.isfinite(ratio)]
        steps += [np.log(np.mean(ratios))] if ratios else []
    return 252 * float(np.mean(steps))


def test_a_list_of_survivors_is_noticed_and_its_bias_measured():
    random = np.random.default_rng(0)
    steps = random.normal(0, 0.01, (252, 40))
    steps[:, 20:] -= 0.004  # these fall, and half of them are delisted half-way
    close = 50 * np.exp(np.cumsum(steps, axis=0))
    index = close.mean(axis=1)
    close[126:, 30:] = np.nan
    member = np.ones(close.shape, dtype=bool)
    ended = [f"S{n}" for n in range(30, 40)]
    whole = survivorship(ended, close, member)
    assert not whole.survivors_only
    assert whole.describe() == ""
    lasting = member & (np.arange(40) < 30)
    assert whole.bias_per_year == pytest.approx(
        growth(close, lasting) - growth(close, member), rel=1e-9
    )
    assert whole.bias_per_year > 0.02
    survivors = survivorship([], close[:, :30], member[:, :30])
    assert survivors.survivors_only
    assert (
        survivors.bias_per_year is None
    )  # what is not there cannot be measured, and is not nothing
    assert "unknown" in survivors.describe()
    beside = survivorship([], close[:, :30], member[:, :30], index=index, index_name="TIX")
    expected = growth(close, lasting) - 252 * np.log(index[-1] / index[0]) / 251
    assert beside.bias_per_year == pytest.approx(expected, rel=1e-9)
    assert f"{expected:+.1%} a year against TIX" in beside.describe()
    assert not survivorship(
        [], close[:40, :30], member[:40, :30]
    ).survivors_only  # too short to tell


def test_who_enters_proves_nothing_and_who_leaves_does():
    close = 50 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.01, (252, 30)), axis=0))
    member = np.ones(close.shape, dtype=bool)
    member[:100, 3] = False  # a list of today's members, with the days on which they came in
    entries = survivorship([], close, member)
    assert entries.survivors_only
    assert entries.bias_per_year is None
    member[150:, 4] = False
    four_years = np.ones((1008, 150), dtype=bool)
    four_years[500:, 4] = False
    one = survivorship([], np.tile(close, (4, 5)), four_years)
    assert one.survivors_only  # one exit of 150 names in four years makes no complete list
    assert one.describe().startswith("a list of survivors? 1 symbol leaves in 1008 sessions")
    exits = survivorship([], close, member)
    assert not exits.survivors_only
    lasting = np.ones(close.shape, dtype=bool)
    lasting[:, 4] = False
    assert exits.bias_per_year == pytest.approx(
        growth(close, lasting) - growth(close, member), rel=1e-9
    )
    lacking = survivorship([], close, member, missing={"GONE": 0.04, "LOST": 0.03})
    assert lacking.survivors_only
    assert lacking.bias_per_year is None
    assert "2 members lack bars (7.00% of the member-days: GONE, LOST)" in lacking.describe()
    few = survivorship(
        [], close[:40, :7], member[:40, :7], missing={f"M{n}": 0.01 for n in range(93)}
    )
    assert few.survivors_only  # few names over a short time say as much when nearly all are missing
    assert (
        "93 members lack bars (93.00% of the member-days: M0, M1, M2, M3, M4 and 88 more)"
        in few.describe()
    )
    some = survivorship([], close[:40, :7], member[:40, :7], missing={"GONE": 0.004})
    assert not some.survivors_only
    assert some.describe() == "1 members lack bars (0.40% of the member-days: GONE)"
    closed = survivorship([], close, np.ones(close.shape, dtype=bool), missing={"GONE": 0.004})
    assert "no symbol leaves in 252 sessions; 1 members lack bars" in closed.describe()


def test_members_without_bars_are_counted_by_company():
    dates = np.arange("2016-01-04", "2016-01-14", dtype="datetime64[D]")
    always = [(dt.date(2015, 1, 1), None)]
    membership = {
        "AAA": always,
        "NEW": always,
        "LATE": always,
        "GONE": [(dt.date(2015, 1, 1), dt.date(2016, 1, 9))],
        "BEFORE": [(dt.date(2014, 1, 1), dt.date(2015, 1, 1))],
        "BBB": always,
    }
    since = np.arange(10) >= 3
    listed = {"AAA": np.ones(10, dtype=bool), "LATE": since}
    found = missing_members(
        ["AAA", "NEW", "LATE", "ZZZ"], membership, dates, {"ZZZ": "BBB"}, listed
    )
    assert found == {"GONE": pytest.approx(5 / 45), "LATE": pytest.approx(3 / 45)}
    assert missing_members(["AAA"], None, dates, {}) == {}
    parts = {"X": ~since, "Y": since, "Z": since}
    aliases = {"X": "AAA", "Y": "AAA", "Z": "BBB"}
    found = missing_members([*parts], {"AAA": always, "BBB": always}, dates, aliases, parts)
    assert found == {"BBB": pytest.approx(3 / 20)}


def test_survivors_are_reported_with_the_market(tmp_path, caplog):
    values = {
        "source": {"kind": "synthetic", "num_sessions": 70, "num_symbols": 12},
        "bar_minutes": 30,
    }
    market = make_market(validate(DataSettings, values, "test"))
    assert not market.provenance.survivorship.survivors_only  # nobody chose names that are made up
    assert market.provenance.survivorship.bias_against == "synthetic index"
    assert caplog.text == ""
    days = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 5, 30), 390).dates
    close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.01, (len(days), 3)).cumsum(axis=0))
    bars = pd.DataFrame(close, pd.DatetimeIndex(days.astype("datetime64[ns]"), name="date"))
    long = bars.rename(columns="S{}".format).reset_index().melt("date", None, "symbol", "close")
    prices = dict.fromkeys(("open", "high", "low"), long.close)
    market = load_market(long.assign(volume=1000.0, **prices), bar_minutes=390)
    assert market.provenance.survivorship.survivors_only
    assert "a list of survivors?" in caplog.text
