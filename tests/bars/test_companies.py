"""Bars put together by company, whatever tickers they traded under."""

import logging

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.calendar import session_grid
from fintrader.errors import DataError
from fintrader.market.build import build_market, make_market
from fintrader.market.garbage import find_garbage
from fintrader.market.index_level import equal_weight
from tests.bars.tables import PRICES, file_settings, write_csv


def daily(*spans):
    """Daily bars of (ticker, first day, last day, first price), which rise by one cent a day."""
    parts = []
    for ticker, first, last, price in spans:
        grid = session_grid("XNAS", pd.Timestamp(first).date(), pd.Timestamp(last).date(), 390)
        close = price + 0.01 * np.arange(grid.num_sessions)
        columns = dict.fromkeys(PRICES, close)
        parts.append(
            pd.DataFrame(
                {
                    "ts": grid.dates.astype("datetime64[ns]"),
                    "ticker": ticker,
                    **columns,
                    "volume": 1e6,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def members_of(folder, table, universe=(), **values):
    universe = {"members": "nasdaq100", **dict(universe)}
    return file_settings(write_csv(folder, table), bar_minutes=390, universe=universe, **values)


def built(folder, table, **universe):
    return make_market(members_of(folder, table, universe))


def prices(market, symbol):
    """Closes by date, without those that are not there or carried."""
    column = market.symbols.index(symbol)
    days = pd.DatetimeIndex(market.timestamps()).normalize()
    return pd.Series(market.close[:, column].numpy(), days)[market.tradable[:, column].numpy()]


def split_by_day(market, symbol):
    """First and last day of membership, and how many there are."""
    days = market.timestamps()[market.member[:, market.symbols.index(symbol)].numpy()].astype(
        "datetime64[D]"
    )
    return [str(days[0]), str(days[-1]), str(len(days))] if len(days) else []


ALWAYS = ("AAPL", "2021-12-01", "2022-07-29", 150.0)
OLD = ("FB", "2021-12-01", "2022-06-08", 300.0)
NEW = ("META", "2022-06-09", "2022-07-29", 180.0)
FUND = ("META", "2021-12-01", "2022-01-28", 15.0)
"""A fund that had the letters before."""


def test_a_company_that_changed_its_ticker_is_one_symbol_and_the_letters_of_others_are_not_it(
    tmp_path,
):
    table = daily(ALWAYS, FUND, OLD, NEW)
    market = built(tmp_path, table)
    assert market.symbols == ("AAPL", "META")
    mine = table[(table.ticker == "FB") | ((table.ticker == "META") & (table.ts >= "2022-06-09"))]
    assert prices(market, "META").tolist() == pytest.approx(mine.close.tolist())
    assert market.member[:, 1].all()
    assert market.provenance.ended == ()


def test_bars_that_run_through_the_change_are_of_a_file_with_later_tickers(tmp_path):
    whole = ("META", "2021-12-01", "2022-07-29", 300.0)
    market = built(tmp_path / "whole", daily(ALWAYS, whole))
    assert len(prices(market, "META")) == len(market)
    assert market.member.all()
    market = built(tmp_path / "fund", daily(ALWAYS, FUND, NEW))
    assert prices(market, "META").index[0] == pd.Timestamp("2022-06-09")


def test_a_file_with_the_tickers_of_one_day_says_so(tmp_path, caplog):
    """Wholly before the change nothing tells a later ticker from another company."""
    early = daily(
        ("AAPL", "2016-01-04", "2016-03-31", 100.0), ("META", "2016-01-04", "2016-03-31", 100.0)
    )
    market = built(tmp_path, early)
    assert market.symbols == ("AAPL",)
    assert market.provenance.left_out == {"META": "never a member in the range"}
    assert "META" in market.provenance.survivorship.members_without_bars
    assert (
        "META is no member: from 2016-01-04 to 2016-03-31 the ticker did not belong to META"
        in caplog.text
    )
    market = built(tmp_path, early, tickers_as_of="2023-01-03")
    assert market.symbols == ("AAPL", "META")
    assert market.member.all()
    market = built(tmp_path, early, aliases={"META": "FB"})
    assert market.symbols == ("AAPL", "META")
    assert market.member.all()
    with pytest.raises(DataError, match="no member of nasdaq100 ever traded as FBB"):
        built(tmp_path, early, aliases={"META": "FBB"})
    caplog.clear()
    gap = daily(ALWAYS, FUND, NEW)
    with caplog.at_level(logging.WARNING):
        built(tmp_path, gap)
    assert "41 bars of META before 2022-06-09 are left out: META then traded as FB" in caplog.text


def test_willis_is_a_member_from_the_day_it_joined_and_weight_watchers_never(tmp_path):
    watchers = ("WTW", "2018-11-01", "2019-04-18", 50.0)
    willis = ("WLTW", "2018-11-01", "2020-05-29", 150.0)
    market = built(tmp_path, daily(("AAPL", "2018-11-01", "2020-05-29", 150.0), watchers, willis))
    assert market.symbols == ("AAPL", "WLTW")
    assert split_by_day(market, "WLTW") == ["2018-12-24", "2020-04-29", "339"]
    later = daily(
        ("AAPL", "2018-11-01", "2020-05-29", 150.0), ("WTW", "2018-11-01", "2020-05-29", 150.0)
    )
    market = built(tmp_path, later, tickers_as_of="2023-01-03")
    assert split_by_day(market, "WTW") == ["2018-12-24", "2020-04-29", "339"]


def test_letters_that_change_hands_are_two_symbols(tmp_path):
    table = daily(
        ("AAPL", "2018-11-01", "2019-06-28", 150.0), ("FOXA", "2018-11-01", "2019-06-28", 50.0)
    )
    market = built(tmp_path, table)
    assert market.symbols == ("AAPL", "FOXA", "TFCFA")
    whole = table[table.ticker == "FOXA"].set_index("ts").close
    assert prices(market, "TFCFA").tolist() == pytest.approx(whole[:"2019-03-18"].tolist())
    assert prices(market, "FOXA").tolist() == pytest.approx(whole["2019-03-19":].tolist())
    assert split_by_day(market, "TFCFA")[1] == "2019-03-18"
    # It trades from 2019-03-19 on, and is bought once its features have enough history.
    assert split_by_day(market, "FOXA")[0] == "2019-03-25"


def test_a_wanted_symbol_keeps_its_name_and_nobody_is_a_member_before_the_table(tmp_path):
    market = built(tmp_path, daily(ALWAYS, OLD, NEW), symbols=["FB"])
    assert market.symbols == ("FB",)
    assert len(prices(market, "FB")) == len(market)
    with pytest.raises(DataError, match="no symbol of the source was a member from 2006-01-03"):
        built(tmp_path, daily(("AAPL", "2006-01-03", "2006-06-30", 10.0)))


def test_the_table_is_part_of_a_markets_address(tmp_path, monkeypatch):
    settings = members_of(tmp_path, daily(ALWAYS))
    first = build_market(settings, cache=tmp_path / "cache")
    monkeypatch.setattr("fintrader.market.build.hash_index", lambda index: f"another {index}")
    assert build_market(settings, cache=tmp_path / "cache") != first


def slow_equal_weight(close, member):
    """100, then every day the mean return of the day's members that have a price on it and on the
    day before."""
    level = 100.0
    found = []
    for day in range(len(close)):
        steps = [
            close.iat[day, name] / close.iat[day - 1, name]
            for name in range(close.shape[1])
            if day and member.iat[day, name] and np.isfinite(close.iloc[[day - 1, day], name]).all()
        ]
        level *= float(np.mean(steps)) if steps else 1.0
        found.append(level)
    return pd.Series(found)


def test_the_equal_weight_index_counts_the_members_of_the_day():
    random = np.random.default_rng(3)
    grid = session_grid(
        "XNAS", pd.Timestamp("2016-01-04").date(), pd.Timestamp("2016-06-30").date(), 390
    )
    close = 50 * np.exp(np.cumsum(random.normal(0, 0.02, (grid.num_sessions, 6)), axis=0))
    close[:60, 5] *= np.exp(np.linspace(-1.5, 0, 60))  # rises fivefold before it joins
    close[80:, 1] = np.nan
    member = np.ones(close.shape, dtype=bool)
    member[:60, 5] = False
    member[40:90, 2] = False
    expected = slow_equal_weight(pd.DataFrame(close), pd.DataFrame(member))
    np.testing.assert_allclose(equal_weight(close, grid.first_bar, member), expected, rtol=1e-12)
    everybody = equal_weight(close, grid.first_bar, np.ones(close.shape, dtype=bool))
    assert everybody[-1] > 1.2 * expected.iloc[-1]
    nobody = equal_weight(close, grid.first_bar, np.zeros(close.shape, dtype=bool))
    assert (nobody == 100).all()


def test_a_markets_benchmark_and_turbulence_know_members_only(tmp_path):
    """What a symbol does before it joins changes neither; after, both."""
    joins = ("AMD", "2018-10-01", "2019-03-29", 20.0)
    table = daily(
        ("AAPL", "2018-10-01", "2019-03-29", 150.0),
        ("ADBE", "2018-10-01", "2019-03-29", 250.0),
        joins,
    )
    wild = table.copy()
    before = (wild.ticker == "AMD") & (wild.ts < "2018-12-21")
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, before.sum()))
    for name in PRICES:
        wild.loc[before, name] = (wild.loc[before, name] * noise).round(4)
    features = {
        "names": ["return_1"],
        "context": ["turbulence_10", "index_return_1"],
        "scaling": "none",
    }
    values = {"features": features, "waive": ["excursion_day"]}  # the noise
    calm, other = (make_market(members_of(tmp_path, one, **values)) for one in (table, wild))
    assert not calm.close.equal(other.close)
    assert calm.benchmark.equal(other.benchmark)
    joined = int(calm.member[:, calm.symbols.index("AMD")].int().argmax())
    assert calm.context[: joined + 1].equal(
        other.context[: joined + 1]
    )  # a day's turbulence is seen on the next
    assert not calm.context[joined + 1 :].equal(other.context[joined + 1 :])


def test_a_prune_keeps_the_bars_of_an_index(tmp_path):
    settings = members_of(tmp_path, daily(ALWAYS))
    build_market(settings, cache=tmp_path / "cache")
    assert not find_garbage([settings], (), cache=tmp_path / "cache", stored={})


def test_daily_bars_of_an_index_are_joined_by_company_too(tmp_path, caplog):
    table = daily(ALWAYS, OLD, NEW)
    other = write_csv(tmp_path, table.assign(**{name: 2 * table[name] for name in PRICES}), "d.csv")
    market = make_market(members_of(tmp_path, table, daily=str(other)))
    assert market.symbols == ("AAPL", "META")
    assert "data.daily has no bars" not in caplog.text
