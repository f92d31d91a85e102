"""Bars against daily bars of another source: the faults found in a single symbol."""

import numpy as np
import pandas as pd
import pytest

from fintrader.errors import BarError, DataError
from fintrader.market.build import build_market, make_market
from fintrader.market.inspect import dry_run, examine
from fintrader.market.load import load_market
from fintrader.market.settings import DataSettings
from tests.bars.tables import (
    PRICES,
    REAL_2016,
    REAL_FOLDER,
    RawFeed,
    as_bars,
    file_settings,
    merged,
    minute_table,
    write_csv,
)
from tests.engines import partial_faults as engine
from tests.engines.partial_faults import DAYS, MARKETS, WEEK, away, late, make_clean, part, pasted
from tests.quick import mostly_slow, slow_but

ALL = range(40)


@pytest.fixture(scope="module", params=mostly_slow("krx", "24/7", every=MARKETS))
def market(request):
    return make_clean(request.param, 3, names=1)


def split_by_day(market, scale=1.0):
    """Aggregate the market's bars to days, as another vendor has them."""
    (one,) = market.table.values()
    session = market.grid.session[market.grid.locate(one.ts.to_numpy())]
    how = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    days = one.groupby(market.grid.dates[session].astype(str)).agg(how)
    days[PRICES] *= scale
    return days.rename_axis("date").reset_index().assign(symbol="N00")


def found(market, table, folder, scale=1.0):
    """Find the kind and day of the faults that a build stops at or names."""
    path = write_csv(folder, split_by_day(market, scale), "days.csv")
    length = market.grid.bar_minutes
    settings = DataSettings(calendar=market.grid.calendar, bar_minutes=length, daily=str(path))
    faults = examine(RawFeed(engine.as_bars(table)), settings).faults
    wanted = ("misaligned", "unlike_daily", "price_spike")
    return [(fault.kind, fault.day) for fault in faults if fault.kind in wanted]


def test_clean_bars_agree_with_their_days_on_any_scale(market, tmp_path):
    steps = np.where(np.arange(len(split_by_day(market))) < 17, 0.25, 1.0)  # adjusted for a split
    for scale in (1.0, 0.7314, steps[:, None] * np.ones(4)):
        assert found(market, market.table, tmp_path, scale) == []


@pytest.mark.parametrize("days", slow_but(1, every=[WEEK, DAYS, ALL]))
def test_early_bars_of_a_single_symbol_are_refused(market, tmp_path, days):
    for crop in (True, False):
        if crop or market.kind in ("24/7", "fx"):
            table = part(market.kind, late(-1, crop=crop), days).apply(market)
            kinds = {kind for kind, _ in found(market, table, tmp_path)}
            assert kinds == {"misaligned"}


def test_a_day_that_has_the_next_days_prices_is_refused(market, tmp_path):
    day = str(market.grid.dates[17])
    for ahead in (-1, 1):
        table = pasted(market.kind, (17,), {0: (0, ahead)}).apply(market)
        assert ("misaligned", day) in found(market, table, tmp_path)


def test_days_of_other_prices_are_named(market, tmp_path):
    day = str(market.grid.dates[17])
    table = part(market.kind, engine.times(1.05), (17,)).apply(market)
    assert ("unlike_daily", day) in found(market, table, tmp_path)
    table = part(market.kind, away(1.05, 45), (3, 17, 20, 30)).apply(market)
    assert ("unlike_daily", str(market.grid.dates[3])) in found(market, table, tmp_path)


@pytest.fixture
def minutes(tmp_path):
    table = minute_table(2, 12)
    days = merged(table)
    path = write_csv(tmp_path, days.assign(ts=days.ts.dt.strftime("%Y-%m-%d")), "days.csv")
    return table, str(path)


def test_a_build_compares_by_itself_and_remembers(tmp_path, minutes, caplog):
    table, daily = minutes
    path = write_csv(tmp_path, table)
    alone = build_market(file_settings(path), cache=tmp_path / "cache")
    other = build_market(file_settings(path, daily=daily), cache=tmp_path / "cache")
    assert alone.parent != other.parent  # it names its daily bars
    assert dry_run(file_settings(path, daily=daily), cache=tmp_path / "cache").market == other
    changed = table.copy()
    changed.loc[(table.ticker == "BBB") & (table.ts.dt.day == 12), PRICES] *= 1.09
    settings = {"daily": daily, "waive": ["excursion_day"]}
    market = build_market(
        file_settings(write_csv(tmp_path, changed, "changed.csv"), **settings),
        cache=tmp_path / "cache",
    )
    assert "unlike_daily of BBB on 2016-01-12 (+9.0%)" in caplog.text
    assert "unlike_daily" in market.with_name("build.json").read_text()
    frames = table.assign(ts=table.ts.dt.tz_localize("America/New_York"))
    windows = {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0}
    load_market(frames, daily=daily, windows=windows)
    early = frames.ts.dt.day.isin([6, 11, 12, 13, 14])
    frames["ts"] = frames.ts.where(~early, frames.ts - pd.Timedelta("1min"))
    regular = frames.ts.dt.strftime("%H:%M") >= "09:30"
    with pytest.raises(BarError, match="misaligned of AAA on 2016-01-06"):
        load_market(frames[regular], daily=daily, windows=windows)


def test_daily_bars_need_no_extra_columns(tmp_path, minutes):
    table, daily = minutes
    path = write_csv(tmp_path, table.assign(sentiment=1.0))
    features = {"names": ["return_1"], "extra": ["sentiment"]}
    assert make_market(file_settings(path, daily=daily, features=features)).symbols


def test_bars_that_are_no_daily_source_are_refused(tmp_path, minutes):
    table, daily = minutes
    path = write_csv(tmp_path, table)
    with pytest.raises(DataError, match="1-minute bars; give one bar a day"):
        build_market(file_settings(path, daily=str(path)), cache=tmp_path / "cache")
    other = write_csv(tmp_path, table.assign(ticker="X" + table.ticker), "other.csv")
    with pytest.raises(DataError, match=r"data\.daily has no bars of XAAA, XBBB; its symbols are"):
        build_market(file_settings(other, daily=daily), cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"data\.daily"):
        build_market(file_settings(path, daily=str(tmp_path / "no.csv")), cache=tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.real_data(REAL_2016)
def test_real_minutes_agree_with_real_days():
    table = pd.read_parquet(REAL_2016)
    table["ts"] = table.ts.dt.tz_localize(None)
    daily = REAL_FOLDER / "daily_n100_20151001_20180215.parquet"
    faults = examine(RawFeed(as_bars(table)), DataSettings(daily=str(daily))).faults
    assert not {fault.kind for fault in faults} & {"misaligned", "unlike_daily"}
