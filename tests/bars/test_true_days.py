"""True days stop no build: crashes, coarse prices, thin trading, price limits and outages. Errors
among them do."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.checks import DOUBTFUL, STOPPING
from fintrader.errors import BarError
from fintrader.market.inspect import examine
from fintrader.market.load import load_market
from fintrader.market.settings import DataSettings
from tests.bars.tables import PRICES, WINDOWS, RawFeed, as_bars
from tests.quick import slow_but

DATES = pd.bdate_range("2016-01-04", "2019-12-31")


def make_days(seed, *, tick=0.01, volatility=0.015, nights=0.5, names=1, price=60.0, lot=1):
    """Make daily bars `[D]` of each name: fat tails, clustered volatility, `nights` of it
    overnight, prices in ticks, volumes in lots."""
    rng = np.random.default_rng(seed)
    calm = np.exp(0.5 * np.convolve(rng.standard_normal(len(DATES) + 19), np.ones(20) / 4, "valid"))
    tables = []
    for number in range(names):
        size = volatility * calm
        night, day = size * rng.standard_t(4, (2, len(DATES))) * np.array([[nights], [0.7]])
        close = price * np.exp(np.cumsum(night + day - np.mean(night + day)))
        open_ = close * np.exp(-day)
        reach = np.abs(rng.standard_normal((2, len(DATES)))) * 0.6 * size
        table = pd.DataFrame(
            {
                "ts": DATES,
                "ticker": f"N{number}",
                "open": open_,
                "high": np.maximum(open_, close) * np.exp(reach[0]),
                "low": np.minimum(open_, close) * np.exp(-reach[1]),
                "close": close,
            }
        )
        table[PRICES] = np.maximum(np.round(table[PRICES] / tick), 1) * tick
        news = np.exp(np.minimum(np.abs(night + day) / size / 3, 2))
        volume = 1e6 * np.exp(0.3 * rng.standard_normal(len(DATES))) * news
        tables.append(table.assign(volume=np.round(volume / lot) * lot))
    return pd.concat(tables, ignore_index=True)


def find(table, calendar="24/5", minutes=1440):
    """Count by kind the faults that stop a build, and those that are named."""
    settings = DataSettings(calendar=calendar, bar_minutes=minutes)
    counts = Counter(fault.kind for fault in examine(RawFeed(as_bars(table)), settings).faults)
    return tuple(
        {kind: counts[kind] for kind in kinds if kind in counts} for kinds in (STOPPING, DOUBTFUL)
    )


def crash(table, day, fall=0.2):
    """Add a crash within a day, with opens that jump to and fro and days that move as far after
    it."""
    table = table.copy()
    factors = np.ones(len(table))
    factors[day] = 1 - fall / 4
    later = np.arange(len(table)) >= day
    table.loc[later, PRICES] *= 1 - fall
    table[PRICES] = table[PRICES].mul(factors, axis=0)
    near = slice(day - 1, day + 3)
    table.loc[table.index[near], "high"] *= 1 + fall / 2
    table.loc[table.index[near], "low"] *= 1 - fall / 2
    return table


@pytest.mark.parametrize("seed", slow_but(0, every=range(6)))
@pytest.mark.parametrize(
    "how",
    slow_but(
        *range(0, 14, 3),
        every=[
            {},
            {"volatility": 0.025, "nights": 1.0},
            {"nights": 1.0},
            {"names": 6},
            {"tick": 0.125, "price": 3.0},
            {"tick": 0.05, "price": 8.0, "lot": 10_000_000},
            {"tick": 0.0001, "price": 0.77, "volatility": 0.0003},
        ],
    ),
)
def test_fat_tailed_days_and_coarse_prices_stop_nothing(seed, how):
    stopping, _ = find(make_days(seed, **how))
    assert stopping == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_bounce_after_a_crash_is_named_at_most(seed):
    stopping, named = find(crash(make_days(seed, nights=0.1), 500))
    assert stopping == {}
    assert set(named) <= {"quiet_jump"}


@pytest.mark.parametrize("seed", slow_but(0, every=range(4)))
@pytest.mark.parametrize("factor", slow_but(*range(0, 6, 2), every=[0.01, 0.1, 0.5, 1.6, 10, 100]))
def test_a_day_that_cannot_be_true_still_stops(seed, factor):
    table = make_days(seed)
    table.loc[500, PRICES] *= factor
    stopping, _ = find(table)
    assert {"excursion_day", "scale_jump"} & set(stopping)


def test_an_excursion_that_may_be_true_is_named():
    table = make_days(1, nights=0.1)
    table.loc[500, PRICES] *= 0.94
    assert find(table) == ({}, {"quiet_jump": 1})


@pytest.mark.parametrize("seed", slow_but(0, every=range(3)))
def test_repeated_bars_stop_where_chance_makes_none(seed):
    fine = make_days(seed)
    copied = [*PRICES, "volume"]
    fine.loc[500, copied] = fine.loc[497, copied]
    assert find(fine)[0] == {"repeated_day": 1}
    coarse = make_days(seed, tick=0.05, price=6.0, volatility=0.04).assign(volume=0.0)
    assert find(coarse)[0] == {}
    coarse.loc[500:505, copied] = coarse.loc[300:305, copied].to_numpy()
    assert find(coarse)[0]["repeated_day"] >= 4


def test_a_filled_holiday_is_named():
    table = make_days(2)
    copied = [*PRICES, "volume"]
    table.loc[500, copied] = table.loc[499, copied]
    stopping, named = find(table)
    assert (stopping, named["filled_day"]) == ({}, 1)


@pytest.mark.parametrize("seed", slow_but(0, every=range(4)))
def test_volumes_of_news_and_of_thin_trading_are_named(seed):
    table = make_days(seed)
    rng = np.random.default_rng(seed)
    news = table.copy()
    news.loc[500:520, "volume"] *= 60
    news.loc[500:520, "high"] *= 1.2
    news.loc[500:520, "low"] *= 0.8
    thin = table.assign(volume=np.round(np.exp(3.5 * rng.standard_normal(len(table))) * 1e4))
    pause = table.drop(index=range(400, 500)).reset_index(drop=True)
    pause.loc[400:, "volume"] *= 100
    for changed in (news, thin, pause):
        stopping, named = find(changed)
        assert "volume_scale" not in stopping
        assert "volume_jump" in named


@pytest.mark.parametrize("seed", slow_but(0, every=range(4)))
@pytest.mark.parametrize("factor", [0.001, 0.01, 100, 1000])
def test_volumes_in_another_unit_still_stop(seed, factor):
    table = make_days(seed)
    table.loc[500:, "volume"] *= factor
    assert find(table)[0] == {"volume_scale": 1}


def make_hours(names):
    """Make hourly bars around the clock `[H]`; an outage moves those of a day by half an hour."""
    rng = np.random.default_rng(7)
    ts = pd.date_range("2019-01-01", "2019-02-01", freq="h", inclusive="left")
    tables = []
    for number in range(names):
        close = 100 * np.exp(np.cumsum(0.005 * rng.standard_normal(len(ts))))
        open_ = np.append(100.0, close[:-1])
        table = pd.DataFrame({"ts": ts, "ticker": f"N{number}", "open": open_, "close": close})
        table["high"] = table[["open", "close"]].max(axis=1) * 1.001
        table["low"] = table[["open", "close"]].min(axis=1) * 0.999
        tables.append(table.assign(volume=rng.integers(100, 1000, len(ts)).astype(float)))
    return pd.concat(tables, ignore_index=True)


def test_hours_after_an_outage_are_named_where_all_symbols_have_them():
    table = make_hours(2)
    hit = (table.ts >= "2019-01-09 19:00") & (table.ts < "2019-01-10 19:00")  # a day in UTC
    alike = table.assign(ts=table.ts.where(~hit, table.ts + pd.Timedelta("29min")))
    assert find(alike, "24/7", 60) == ({}, {"between_bars": 2})
    hit &= table.ticker == "N0"
    alone = table.assign(ts=table.ts.where(~hit, table.ts + pd.Timedelta("29min")))
    assert find(alone, "24/7", 60)[0] == {"shifted_day": 1}


def test_a_price_at_its_limit_is_named_and_a_frozen_one_stops(healthy):
    day = (healthy.ticker == "BBB") & (healthy.ts.dt.strftime("%Y-%m-%d") == "2016-01-06")
    top = healthy[day].high.max()
    clock = healthy.ts.dt.strftime("%H:%M")
    for price, expected in ((top, "limit_price"), (healthy[day].close.median(), "frozen_price")):
        table = healthy.copy()
        table.loc[day & (clock >= "14:00") & (clock < "15:30"), PRICES] = price
        stopping, named = find(table, "XNAS", 1)
        assert expected in {**stopping, **named}
        assert ("frozen_price" in stopping) == (expected == "frozen_price")


DAYS = {"calendar": "24/5", "bar_minutes": 1440, **WINDOWS}


def in_utc(table):
    """The table as `load_market` takes it."""
    return table.assign(ts=table.ts.dt.tz_localize("UTC")).rename(columns={"ticker": "symbol"})


def test_lows_above_highs_stop_a_build_until_they_are_waived():
    swapped = make_days(3)
    moved = swapped.loc[:100, ["close", "high", "low"]].to_numpy()
    swapped.loc[:100, ["high", "low", "close"]] = moved
    bars = in_utc(swapped)
    with pytest.raises(BarError, match=r"crossed_range.*data\.waive: \[crossed_range\]"):
        load_market(bars, **DAYS)
    assert len(load_market(bars, **DAYS, waive=["crossed_range"]).provenance.waived) > 90


def test_ranges_too_narrow_for_many_rows_are_named():
    bars = in_utc(make_days(3))
    assert load_market(bars, **DAYS).provenance.doubtful == ()
    bars.loc[:50, "close"] = bars.loc[:50, "high"] * 1.002
    named = load_market(bars, **DAYS).provenance.doubtful
    assert [(one.kind, one.count) for one in named] == [("close_outside_range", 51)]
