import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.calendar import session_grid
from fintrader.bars.checks import KINDS, find_faults
from fintrader.bars.corporate_actions import Action
from fintrader.config import validate
from fintrader.files import read_json
from fintrader.market.inspect import (
    QualityReport,
    examine,
    quality_page,
    quality_report,
    read_source,
    write_quality,
)
from fintrader.market.settings import DataSettings
from fintrader.records import from_json
from tests.bars.tables import (
    COLUMNS,
    PRICES,
    REAL_2016,
    REAL_2019,
    RawFeed,
    as_bars,
    file_settings,
    merged,
    write_actions,
    write_csv,
)
from tests.bars.test_partial_faults import documented
from tests.quick import slow_but

DAY = "2016-01-06"
NOW = dt.datetime(2016, 3, 1, tzinfo=dt.UTC).timestamp()
WHOLE_DAY = ("00:00", "23:59")
Change = Callable[[pd.DataFrame], pd.DataFrame]


def rows_of(table, start="00:00", stop="23:59", symbol="BBB"):
    clock = table.ts.dt.strftime("%H:%M")
    day = table.ts.dt.strftime("%Y-%m-%d")
    return table.index[(table.ticker == symbol) & (day == DAY) & (clock >= start) & (clock <= stop)]


def put(columns, value, start="11:00", stop="11:00"):
    """Another value in these columns, or what a function makes of the old ones."""

    def change(table):
        rows = rows_of(table, start, stop)
        table = table.astype({"volume": float})
        table.loc[rows, columns] = value(table.loc[rows, columns]) if callable(value) else value
        return table

    return change


def drop(start, stop, *symbols):
    def change(table):
        return table.drop(
            index=[row for name in symbols or ["BBB"] for row in rows_of(table, start, stop, name)]
        )

    return change


def extra(**changes):
    def change(table):
        row = table.loc[rows_of(table, "12:00", "12:00")].assign(**changes)
        return pd.concat([table, row], ignore_index=True)

    return change


def spike(table):
    row = rows_of(table, "11:00", "11:00")[0]
    table.loc[row, ["high", "close"]] *= 1.12
    table.loc[row + 1, ["open", "high"]] = table.loc[row, "close"]
    return table


def from_other(table):
    table.loc[rows_of(table), PRICES] = table.loc[rows_of(table, symbol="CCC"), PRICES].to_numpy()
    return table


def last_bar(table):
    row = table.index[table.ticker == "BBB"][-1]
    table.loc[row, ["high", "close"]] *= 1.08
    return table


def volumes(factor):
    """BBB's volumes times `factor` from DAY on."""

    def change(table):
        later = (table.ticker == "BBB") & (table.ts >= DAY)
        return table.assign(volume=np.floor(table.volume * np.where(later, factor, 1.0)))

    return change


def every(step):
    """Of DAY's minutes only each `step`th is there."""
    return lambda table: table.drop(
        index=[row for row in rows_of(table) if table.ts[row].minute % step]
    )


def repeat_day(table):
    rows = rows_of(table)
    table.loc[rows, PRICES] = table.loc[rows - 390, PRICES].to_numpy()
    return table


def split(table):
    table = moved(table, 1 / 4)
    table.loc[(table.ticker == "BBB") & (table.ts >= DAY), "volume"] *= 4
    return table


def back(table):
    row = rows_of(table, "11:00", "11:00")[0]
    order = list(table.index)
    order[row], order[row + 3] = order[row + 3], order[row]
    return table.loc[order]


def listed(start, stop):
    """BBB has no bars before the one day nor from the other on."""
    return lambda table: table[(table.ticker != "BBB") | ((table.ts >= start) & (table.ts < stop))]


def moved(table, ratio, days=100):
    """BBB's prices times `ratio` from DAY on, for so many days."""
    table = table.copy()
    until = pd.Timestamp(DAY) + pd.Timedelta(days=days)
    table.loc[(table.ticker == "BBB") & (table.ts >= DAY) & (table.ts < until), PRICES] *= ratio
    return table


_FAULTS = {
    "NaN close": ("not_finite_price", put("close", np.nan)),
    "infinite high": ("not_finite_price", put("high", np.inf)),
    "zero open": ("zero_price", put("open", 0.0)),
    "negative low": ("negative_price", put("low", -1.0)),
    "negative volume": ("negative_volume", put("volume", -5.0)),
    "NaN volume": ("not_finite_volume", put("volume", np.nan)),
    "bar from the future": ("future", extra(ts=pd.Timestamp("2031-01-06 12:00")), "2031-01-06"),
    "second, different row": ("conflicting_duplicate", extra(close=99.98)),
    "row twice": ("exact_duplicate", extra()),
    "rows swapped": ("out_of_order", back),
    "half a minute late": ("off_minute", extra(ts=pd.Timestamp(f"{DAY} 12:00:30"))),
    "high and low swapped": (
        "crossed_range",
        put(["high", "low"], lambda old: old[["low", "high"]].to_numpy(), *WHOLE_DAY),
    ),
    "open above high": ("open_outside_range", put("open", lambda old: old * 1.02)),
    "close below low": ("close_outside_range", put("close", lambda old: old * 0.98)),
    "bar on a Saturday": ("closed_day", extra(ts=pd.Timestamp("2016-01-09 12:00")), "2016-01-09"),
    "bar on a holiday": ("closed_day", extra(ts=pd.Timestamp("2016-01-18 12:00")), "2016-01-18"),
    "bar before the open": ("outside_session", extra(ts=pd.Timestamp(f"{DAY} 08:12"))),
    "bar after the close": ("outside_session", extra(ts=pd.Timestamp(f"{DAY} 16:00"))),
    "day in another zone": (
        "shifted_day",
        put("ts", lambda old: old + pd.Timedelta("1h"), *WHOLE_DAY),
    ),
    "close that jumps and returns": ("price_spike", spike),
    "high far away": ("wick", put("high", lambda old: old * 1.3)),
    "low far away": ("wick", put("low", lambda old: old * 0.7)),
    "frozen feed": (
        "stale_run",
        put(COLUMNS, lambda old: old.to_numpy()[0], "11:00", "11:19"),
    ),
    "day delivered twice": ("repeated_day", repeat_day),
    "unadjusted split": ("split", split),
    "unadjusted split of 5 for 4": ("small_split", lambda table: moved(table, 0.8)),
    "another stock's day": ("foreign_day", from_other),
    "a day 6 % up": ("excursion_day", put(PRICES, lambda old: old * 1.06, *WHOLE_DAY)),
    "last bar 8 % up": ("last_bar_jump", last_bar, "2016-01-20"),
    "other units from a day on": ("quiet_jump", lambda table: moved(table, 0.85)),
    "special dividend": ("quiet_jump", lambda table: moved(table, 0.88)),
    "volume in thousands before": ("volume_scale", volumes(1000)),
    "volume in lots": ("volume_scale", volumes(0.01)),
    "an hour at one price": (
        "frozen_price",
        put(PRICES, lambda old: old.close.iloc[0], "11:00", "11:59"),
    ),
    "every other minute": ("bar_length", every(2)),
    "a day in five-minute bars": ("bar_length", every(5)),
    "a day backwards": (
        "reversed_day",
        put(COLUMNS, lambda old: old.to_numpy()[::-1], *WHOLE_DAY),
    ),
    "cents for dollars": ("scale_jump", put(PRICES, lambda old: old * 100, "11:00", "11:30")),
    "moves without volume": ("zero_volume", put("volume", 0.0)),
    "volume in another unit": ("volume_outlier", put("volume", lambda old: old * 1e6)),
    "twenty minutes lost": ("gap", drop("11:00", "11:19")),
    "two thirds of a day lost": ("thin_day", drop("09:30", "14:00")),
    "a day lost": ("missing_session", drop(*WHOLE_DAY)),
    "ten minutes lost for all": ("market_hole", drop("11:00", "11:09", "AAA", "BBB", "CCC")),
    "listed late": ("late_listing", listed(DAY, "2030-01-01")),
    "delisted": ("ended", listed("2000-01-01", "2016-01-07"), DAY),
}
FAULTS = {name: (*fault, DAY)[:3] for name, fault in _FAULTS.items()}
"""Name -> kind, change of sound bars, and the day on which the fault is found."""


def examined(table, *announced, **settings):
    return examine(RawFeed(as_bars(table), announced), DataSettings(**settings), now=NOW)


@pytest.mark.parametrize("name", slow_but(*range(0, len(FAULTS), 6), every=FAULTS))
def test_an_injected_fault_is_found(name, healthy):
    kind, change, day = FAULTS[name]
    report = examined(change(healthy.copy()))
    found = [fault for fault in report.faults if fault.kind == kind]
    assert len(found) == 1, report.faults
    assert found[0].day == day
    assert found[0].symbol == ("" if kind == "market_hole" else "BBB")
    others = [fault for fault in report.faults if fault.symbol in ("AAA", "CCC")]
    assert others == []


def test_every_kind_is_tested_and_explained():
    partial = {said.partition(": ")[2] for _, said in documented().values()} - {""}
    elsewhere = {"market_halt", "paid_twice", "unlike_daily"}
    elsewhere |= {"filled_day", "volume_jump", "limit_price", "between_bars"}  # test_true_days
    assert {kind for kind, _, _ in FAULTS.values()} | partial | elsewhere == set(KINDS)


def test_clean_bars_raise_no_alarm(healthy):
    assert examined(healthy).faults == ()


def test_false_alarms_stay_below_a_thousandth():
    wild = {"kind": "synthetic", "num_sessions": 60, "missing": 0.3, "volatility_bps": 15}
    settings = validate(DataSettings, {"source": wild}, "test")
    bars = read_source(settings)
    report = examine(RawFeed(bars), settings)
    alarms = sum(fault.count for fault in report.faults)
    assert len(bars) > 150_000
    assert alarms < 1e-3 * len(bars), report.kinds


@pytest.mark.parametrize(
    ("declared", "found"),
    slow_but(
        0,
        1,
        5,
        every=[
            ({}, [("split", "BBB", "4 to 1, and none is declared")]),
            ({"BBB": 4.0}, []),
            ({"BBB": 2.0}, [("split", "BBB", "4 to 1, and 2 to 1 is declared")]),
            ({"BBB": 4.0, "AAA": 3.0}, [("split", "AAA", "no split, and 3 to 1 is declared")]),
            ({"BBB": 4.0, "AAA": 1.05}, []),  # less than a day moves it
            ({"BBB": 3.0}, [("split", "BBB", "4 to 1, and 3 to 1 is declared")]),
            ({"BBB": 0.25}, [("split", "BBB", "4 to 1, and 0.25 to 1 is declared")]),
            ({"BBB": 4.0, "AAA": 7.5}, [("split", "AAA", "no split, and 7.5 to 1 is declared")]),
        ],
    ),
)
def test_declared_splits_are_compared_with_what_the_prices_show(tmp_path, healthy, declared, found):
    table = FAULTS["unadjusted split"][1](healthy.copy())
    actions = [{"symbol": name, "day": DAY, "split": ratio} for name, ratio in declared.items()]
    report = examined(table, actions=write_actions(tmp_path, actions))
    assert [(fault.kind, fault.symbol, fault.detail) for fault in report.faults] == found
    announced = map(Action.model_validate, actions)
    assert examined(table, *announced).faults == report.faults


@pytest.mark.parametrize("declared", ["2016-01-05", "2016-01-07"])
def test_a_split_that_is_declared_for_the_wrong_day_is_named(healthy, declared):
    table = FAULTS["unadjusted split"][1](healthy.copy())
    faults = examined(table, Action(symbol="BBB", day=declared, split=4.0)).faults
    said = [(fault.kind, fault.day, fault.detail) for fault in faults]
    assert said == [("split", DAY, f"declared for {declared}")]


def test_dividends_are_compared_with_the_prices_and_with_each_other(healthy):
    fallen = moved(healthy, 0.95)
    before = healthy[(healthy.ticker == "BBB") & (healthy.ts < DAY)].close.iloc[-1]
    paid = round(0.05 * before, 2)
    for table, rows, found in (
        (fallen, [(DAY, paid)], []),
        (healthy, [(DAY, paid)], [(DAY, f"{paid:g} USD, and no fall")]),
        (healthy, [("2016-01-08", 0.01), ("2016-01-13", 0.02)], []),
        (
            healthy,
            [("2016-01-08", 0.01), ("2016-01-12", 0.01)],
            [("2016-01-12", "0.01 USD again after 2 sessions")],
        ),
    ):
        actions = [Action(symbol="BBB", day=day, dividend_usd=paid) for day, paid in rows]
        faults = examined(table, *actions).faults
        assert [(fault.day, fault.detail) for fault in faults] == found
        assert {fault.kind for fault in faults} <= {"paid_twice"}


@pytest.mark.parametrize("ratio", slow_but(0, 5, every=[1.74, 1.25, 0.83, 0.6, 1.21, 0.8]))
def test_a_large_night_is_no_split(healthy, ratio):
    loud = moved(healthy, ratio)
    if ratio != 0.8:  # to the cent what a split of 5 for 4 does, but a split makes nobody trade
        assert examined(loud).kinds == {"quiet_jump": 1}
    loud.loc[rows_of(loud), "volume"] *= 8
    assert examined(loud).kinds == {}


@pytest.mark.parametrize(
    "ratio",
    slow_but(
        0,
        2,
        11,
        17,
        every=[1.25, 1.5, 2, 3, 4, 5, 7, 10, 12, 15, 20, 25, 30, 40, 50, 1 / 2, 1 / 10, 1 / 40],
    ),
)
def test_the_ratios_that_boards_choose_are_known(healthy, ratio):
    report = examined(moved(healthy, 1 / ratio))
    kind = "split" if max(ratio, 1 / ratio) >= 2 else "small_split"
    assert [(fault.kind, fault.detail) for fault in report.faults] == [
        (kind, f"{ratio:g} to 1, and none is declared")
    ]


def test_an_ordinary_day_of_a_wild_market_is_no_excursion(healthy):
    """6 % for a day, of a symbol that moves as far on any other."""
    wild = FAULTS["a day 6 % up"][1](healthy.copy())
    rows = wild.ticker == "BBB"
    for name in PRICES:
        move = healthy.loc[rows, name] / healthy.loc[rows, "close"].iloc[0]
        wild.loc[rows, name] *= move**2
    assert "excursion_day" not in examined(wild).kinds


def test_what_returns_the_day_after_was_no_split(healthy):
    for ratio in (0.25, 4.0):
        faults = examined(moved(healthy, ratio, days=1)).faults
        assert [(fault.kind, fault.day) for fault in faults] == [("excursion_day", DAY)]


@pytest.mark.parametrize("length", slow_but(1, 3, every=[1, 2, 5, 30]))
@pytest.mark.parametrize("factor", slow_but(0, 3, every=[1.12, 1.5, 3.0, 0.8]))
def test_bad_prices_are_found_however_long_they_last(healthy, length, factor):
    report = examined(
        put(PRICES, lambda old: old * factor, "11:00", f"11:{length - 1:02d}")(healthy)
    )
    assert [(f.kind, f.symbol, f.day, f.count) for f in report.faults] == [
        ("price_spike", "BBB", DAY, length)
    ]


def test_a_fall_that_stays_or_recovers_slowly_is_no_spike(healthy):
    for recovery in (1, 10):
        table = healthy.copy()
        first = rows_of(table, "11:00", "11:00")[0]
        path = np.linspace(0.88, 1.0, 20) if recovery > 1 else np.full(310, 0.88)
        table.loc[first : first + len(path) - 1, PRICES] *= path[:, None]
        assert "price_spike" not in examined(table).kinds


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_all_of_few_symbols_lack(healthy, number):
    names = ["BBB", "AAA", "CCC"][:number]
    table = healthy[healthy.ticker.isin(names)].reset_index(drop=True)
    lost_day = pd.Timestamp("2016-01-08").date()
    table = drop("11:00", "11:19", *names)(table)
    table = table[table.ts.dt.date != lost_day]
    found = [(f.kind, f.symbol, f.count) for f in examined(table).faults]
    if number == 1:  # one symbol says nothing of the market
        assert found == [("gap", "BBB", 20), ("missing_session", "BBB", 390)]
    else:
        assert found == [("market_hole", "", 20), ("market_hole", "", 390)]


def test_looking_changes_nothing(healthy):
    bars = as_bars(spike(healthy.copy()).sample(frac=1, random_state=0))
    before = [getattr(bars, name).copy() for name in ("ts", "symbol", "open", "close")]
    grid = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 1, 20))
    own = bars.take(np.argsort(bars.symbol, kind="stable")).by_symbol()
    find_faults(own.values(), grid, now=NOW)
    for name, old in zip(("ts", "symbol", "open", "close"), before, strict=True):
        np.testing.assert_array_equal(getattr(bars, name), old)


def test_the_report_is_written_as_json_and_a_page(tmp_path, healthy):
    table = drop("11:00", "11:19")(healthy.copy())
    report = quality_report(file_settings(write_csv(tmp_path, table)))
    json_path, page = write_quality(report, tmp_path / "quality")
    assert from_json(QualityReport, read_json(json_path)) == report
    text = page.read_text()
    assert "<td>gap</td><td>BBB</td><td>2016-01-06</td><td>20</td>" in text
    assert "coverage" in text
    assert "http-equiv" not in text
    assert report.coverage[1][2] == round(370 / 390, 4)
    hostile = replace(report, symbols=("<script>alert(1)</script>",) * 3)
    assert "<script>alert" not in quality_page(hostile)


def test_days_are_judged_as_days(tmp_path, healthy):
    """Of bars of whole days, and of half hours, nothing is missing that only minutes have."""
    for rule, minutes in (("1D", 1440), ("30min", 30)):
        table = merged(healthy, rule)
        table["ts"] = table.ts.dt.strftime("%Y-%m-%d") if rule == "1D" else table.ts
        report = quality_report(file_settings(write_csv(tmp_path, table)))
        assert (report.bar_minutes, report.faults) == (minutes, ()), rule
        assert {share for line in report.coverage for share in line} == {1.0}
        lost = table[~((table.ticker == "BBB") & (table.ts.astype(str).str.startswith(DAY)))]
        report = quality_report(file_settings(write_csv(tmp_path, lost)))
        assert [(f.kind, f.symbol, f.day) for f in report.faults] == [
            ("missing_session", "BBB", DAY)
        ]


def real_faults(path):
    report = quality_report(DataSettings(path=path))
    found = {}
    for fault in report.faults:
        found.setdefault(fault.kind, set()).add((fault.symbol, fault.day, fault.count))
    found["early_close"] = {("", day, 210) for day in report.early_closes}
    return found


@pytest.mark.slow
@pytest.mark.real_data(REAL_2016)
def test_the_holes_of_the_real_file_of_2015():
    found = real_faults(REAL_2016)
    assert found["early_close"] == {("", "2015-11-27", 210), ("", "2015-12-24", 210)}
    assert found["market_hole"] == {("", "2015-11-16", 20)}
    assert found["ended"] == {("BRCM", "2016-01-29", 1), ("GMCR", "2016-03-02", 1)}
    silent = ["FOXA", "TRIP", "TSCO", "VIAB", "VRTX", "WBA", "WDC", "WFM", "WYNN", "XLNX", "YHOO"]
    days = ("2016-02-16", "2016-02-17", "2016-02-18", "2016-02-19")
    assert found["missing_session"] == {(name, day, 390) for name in silent for day in days} | {
        ("CSX", "2015-12-21", 390)
    }
    # As far as we know a special dividend of 4 USD on 20; not checked against a source.
    assert found["small_split"] == {("SYMC", "2016-03-04", 1)}
    others = {"early_close", "market_hole", "ended", "missing_session", "gap"}
    assert set(found) == others | {"small_split"}


@pytest.mark.slow
@pytest.mark.real_data(REAL_2019)
def test_the_holes_of_the_real_file_of_2019():
    found = real_faults(REAL_2019)
    assert found["market_halt"] == {("", f"2020-03-{day}", 14) for day in ("09", "12", "16", "18")}
    assert found["late_listing"] == {("UBER", "2019-05-10", 1)}
    assert ("UBER", "2019-05-10", 140) not in found["gap"]
    assert found["quiet_jump"] == {("TSLA", "2020-11-17", 1)}  # it was to join the S&P 500
    assert set(found) == {"early_close", "market_halt", "late_listing", "gap", "quiet_jump"}
    half_days = ("2019-07-03", "2019-11-29", "2019-12-24", "2020-11-27", "2020-12-24")
    assert {day for _, day, _ in found["early_close"]} == {*half_days}


def test_days_of_few_trades_are_no_moved_days(healthy):
    """One trade in a hundred minutes: the most frequent step is not the bar length."""
    for seed in range(5):
        kept = np.random.default_rng(seed).random(len(healthy)) < 0.012
        kinds = examined(healthy[kept]).kinds
        assert not {"shifted_day", "bar_length", "misaligned"} & kinds.keys()
