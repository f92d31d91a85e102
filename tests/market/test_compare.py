"""Two sets of bars compared cell by cell, against pandas, and what was done to one of them found
again."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fintrader.cli import main
from fintrader.errors import DataError
from fintrader.market.compare_bars import CompareSettings, Side, compare_bars, open_side
from fintrader.report.bar_comparison import describe, merge_suspicions, render_comparison
from tests.bars.tables import REAL_2016, REAL_FOLDER, as_bars, minute_table, write_csv

PRICES = ["open", "high", "low", "close"]
DAILY = REAL_FOLDER / "daily_n100_20151001_20180215.parquet"


def compared(a, b, **how):
    return compare_bars(Side("one", as_bars(a)), Side("two", as_bars(b)), **how)


def found(report):
    names = ("kind", "symbol", "first", "last", "sessions", "value")
    return [tuple(getattr(one, name) for name in names) for one in report.suspicions]


def test_every_number_is_that_of_pandas():
    random = np.random.default_rng(1)
    table = minute_table(3, 6)
    ours = table[random.random(len(table)) > 0.1]
    theirs = table[random.random(len(table)) > 0.1].copy()
    theirs[PRICES] *= 1 + random.choice([0.0, 0.0, 2e-6, 3e-4], (len(theirs), 4))
    theirs["volume"] += random.integers(0, 2, len(theirs)) * 50
    report = compared(ours, theirs, tolerance_bps=0.1)

    both = ours.merge(
        theirs, on=["ts", "ticker"], suffixes=("_a", "_b"), how="outer", indicator=True
    )
    matched = both[both._merge == "both"]
    assert report.both == len(matched)
    assert (report.only_a, report.only_b) == tuple(
        (both._merge == f"{side}_only").sum() for side in ("left", "right")
    )
    bps = pd.DataFrame(
        {name: 1e4 * (matched[f"{name}_b"] / matched[f"{name}_a"] - 1) for name in PRICES}
    )
    most = np.maximum(matched.volume_a, matched.volume_b)
    bps["volume"] = 1e4 * (matched.volume_b - matched.volume_a) / most
    for name, column in report.columns.items():
        assert column.cells == len(matched)
        assert column.agree == pytest.approx((bps[name].abs() <= 0.1).mean(), abs=1e-4)
        assert column.median_bps == pytest.approx(bps[name].abs().median(), abs=1e-4)
        assert column.largest_bps == pytest.approx(bps[name].abs().max(), abs=1e-3)
        assert column.mean_bps == pytest.approx(bps[name].mean(), abs=1e-3)
    agree = (bps[PRICES].abs() <= 0.1).all(axis=1)
    assert report.agree == agree.sum()
    by = [matched.ticker, matched.ts.dt.date.astype(str)]
    largest = bps.close.abs().groupby(by).max()
    rows = both.groupby([both.ticker, both.ts.dt.date.astype(str)]).size()
    for k, symbol in enumerate(report.symbols):
        for s, day in enumerate(report.sessions):
            assert report.days["close"][k][s] == pytest.approx(largest[symbol, day], abs=1e-3)
            share = agree.groupby(by).sum()[symbol, day] / rows[symbol, day]
            assert report.days["agree"][k][s] == pytest.approx(share, abs=1e-4)


def test_minutes_are_put_together_to_days():
    minutes = minute_table(2, 5, missing=0.3)
    day = minutes.ts.dt.normalize()
    how = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    days = minutes.groupby(["ticker", day.rename("ts")]).agg(how).reset_index()
    days.loc[3, "close"] *= 1.01
    days["ts"] += pd.Timedelta("9h30min")
    report = compared(minutes, days)
    assert (report.bar_minutes, report.both, report.agree) == (390, 10, 9)
    assert report.columns["close"].largest_bps == pytest.approx(100.0, abs=1e-3)
    assert report.columns["volume"].largest_bps == 0.0
    assert report.days["close"][0][3] == pytest.approx(100.0, abs=1e-3)


def test_scales_lots_and_moved_times_are_found_where_they_are():
    table = minute_table(4, 8).astype({"volume": float})
    dates = np.unique(table.ts.dt.date)
    changed = table.copy()
    split = (table.ticker == "AAA") & (table.ts.dt.date >= dates[5])
    changed.loc[split, PRICES] /= 4
    lots = table.ticker == "BBB"
    changed.loc[lots, "volume"] /= 100
    late = (table.ticker == "CCC") & (table.ts.dt.date >= dates[2]) & (table.ts.dt.date < dates[6])
    changed.loc[late, "ts"] += pd.Timedelta("1min")
    early = (table.ticker == "DDD") & (table.ts.dt.date >= dates[6])
    changed.loc[early, "ts"] -= pd.Timedelta("1h")
    report = compared(table, changed)
    days = [str(day) for day in dates]
    assert found(report) == [
        ("scale", "AAA", days[5], days[7], 3, pytest.approx(0.25)),
        ("volume_scale", "BBB", days[0], days[7], 8, pytest.approx(0.01)),
        ("shift", "CCC", days[2], days[5], 4, 1.0),
        ("shift", "DDD", days[6], days[7], 2, -60.0),
    ]
    everybody = table.assign(ts=table.ts + pd.Timedelta("1min"))
    (one,) = merge_suspicions(compared(table, everybody))
    assert (one.symbols, one.symbol_days) == (("AAA", "BBB", "CCC", "DDD"), 32)
    assert one.detail == "B's bars are 1 minute later than A's"


def test_days_that_are_dated_a_session_late_are_found():
    random = np.random.default_rng(0)
    ts = pd.bdate_range("2015-03-02", periods=25) + pd.Timedelta("9h30min")
    close = 50 * np.exp(np.cumsum(random.normal(0, 0.02, 25)))
    days = pd.DataFrame(
        {"ts": ts, "ticker": "AAA", "open": close, "high": close, "low": close, "close": close}
    )
    days["volume"] = 100
    late = days.assign(ts=[*ts[1:], ts[-1] + pd.Timedelta("3D")])
    report = compared(days, late)
    assert {(kind, value) for kind, *_, value in found(report)} == {("shift", 1.0)}
    assert "1 session later" in describe(report)


def test_what_has_nothing_in_common_is_refused():
    table = minute_table(2, 3)
    with pytest.raises(DataError, match="no symbol in common"):
        compared(table, table.assign(ticker="X" + table.ticker))
    with pytest.raises(DataError, match="have no day in common"):
        compared(table, table.assign(ts=table.ts + pd.Timedelta("70D")))


def test_the_command_takes_files_configurations_and_markets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = minute_table(2, 6)
    write_csv(tmp_path, table, "one.csv")
    other = table.rename(columns={"ticker": "Symbol", "ts": "Date", "close": "Close"})
    other.to_parquet(tmp_path / "two.parquet")
    (tmp_path / "one.yaml").write_text(
        "data: {path: one.csv, features: {names: [return_1]}, bar_minutes: 5, windows:"
        " {embargo_sessions: 0}}\n"
    )
    main(["data", "compare", "one.csv", "two.parquet", "--out", "seen"])
    said = capsys.readouterr().out
    assert (
        f"of {len(table):,} bars {len(table):,} agree within 0.1 bps in all prices; 0 only in A"
        in said
    )
    page = (tmp_path / "seen" / "comparison.html").read_text()
    assert "100.0% of the bars agree" in page
    assert "chart-prices" in page
    assert json.loads((tmp_path / "seen" / "comparison.json").read_text())["agree"] == len(table)
    main(["data", "build", "one.yaml", "--cache", "cache"])
    (market,) = (tmp_path / "cache").glob("*/market.safetensors")
    capsys.readouterr()
    main(["data", "compare", "one.yaml", str(market), "--json", "--tolerance-bps", "0.01"])
    report = json.loads(capsys.readouterr().out)
    assert (report["bar_minutes"], report["both"], report["agree"]) == (5, 2 * 6 * 78, 2 * 6 * 78)
    assert report["columns"]["high"]["largest_bps"] < 0.01
    assert report["columns"]["volume"]["largest_bps"] == 0.0
    with pytest.raises(SystemExit) as status:
        main(["data", "compare", "one.csv"])
    assert status.value.code == 2


def test_a_page_says_what_is_missing_and_escapes_names():
    table = minute_table(2, 3)
    ours = table[~((table.ticker == "AAA") & (table.ts.dt.day == 5))]
    report = compare_bars(Side("<b>one", as_bars(ours)), Side("two", as_bars(table)))
    page = render_comparison(report)
    assert "&lt;b&gt;one" in page
    assert "<b>one" not in page
    assert "390 only in B" in page
    assert report.suspicions == ()
    assert report.days["close"][0] == (0.0, None, 0.0)


@pytest.mark.slow
@pytest.mark.real_data(DAILY)
def test_real_minutes_against_real_days():
    (a, calendar), (b, _) = (
        open_side(str(path), CompareSettings(), Path("unused")) for path in (REAL_2016, DAILY)
    )
    report = compare_bars(a, b, calendar)
    assert report.both == 7_945
    for name in ("open", "high", "low"):
        assert report.columns[name].median_bps == 0.0
    # the days are adjusted for the splits of later years, the minutes are as traded
    split = {
        one.symbol: round(1 / one.value, 2) for one in report.suspicions if one.kind == "scale"
    }
    assert split == {
        "AAPL": 4,
        "NVDA": 4,
        "ISRG": 3,
        "MNST": 3,
        "CMCSA": 2,
        "FAST": 2,
        "FISV": 2,
    } | {name: split[name] for name in ("CTXS", "HSIC")}
    assert not [one for one in report.suspicions if one.kind == "shift"]
