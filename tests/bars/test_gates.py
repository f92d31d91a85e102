"""What stops a build, what lets it pass, and that both are told."""

import re

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.checks import DOUBTFUL, STOPPING
from fintrader.bars.checks.gates import Waiver, read_waiver
from fintrader.config import validate
from fintrader.errors import BarError, ConfigError
from fintrader.files import read_json
from fintrader.market.build import build_market, make_market
from fintrader.market.inspect import quality_report
from fintrader.market.load import load_market
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from fintrader.records import to_json
from tests.bars.tables import (
    PRICES,
    REAL_2016,
    REAL_FOLDER,
    WINDOWS,
    file_settings,
    merged,
    minute_table,
    write_actions,
    write_csv,
)
from tests.bars.test_faults import DAY, FAULTS, moved
from tests.quick import slow_but

DAILY = "daily_n100_20151001_20180215.parquet"
PLANTED = {name: fault for name, fault in FAULTS.items() if fault[0] in STOPPING}


@pytest.mark.parametrize("name", slow_but(*range(0, len(PLANTED), 8), every=PLANTED))
def test_a_certain_fault_stops_the_build_until_it_is_waived(name, tmp_path, healthy, caplog):
    kind, change, day = PLANTED[name]
    path = write_csv(tmp_path, change(healthy.copy()))
    cache = tmp_path / "cache"
    with pytest.raises(BarError, match=r"data\.waive: \[" + kind) as caught:
        build_market(file_settings(path), cache=cache)
    assert "\n" not in str(caught.value)
    assert not list(cache.rglob("market.safetensors"))
    if kind != "conflicting_duplicate":  # that one is told with its row
        assert f"{kind} of BBB on {day}" in str(caught.value)
    is_first = name == next(iter(PLANTED))  # a waiver is read alike whatever its kind
    for waiver in [f"{kind}:BBB:{day}", *([kind, f"{kind}:BBB"] if is_first else [])]:
        market = make_market(file_settings(path, waive=[waiver]))
        waived = market.provenance.waived
        assert [(one.kind, one.symbol, one.day) for one in waived] == [(kind, "BBB", day)]
    assert f"waived: {kind} of BBB on {day}" in caplog.text
    other_kind = next(one for one in STOPPING if one != kind)
    for other in [other_kind, *([f"{kind}:AAA", f"{kind}:BBB:2016-01-05"] if is_first else [])]:
        with pytest.raises(BarError):
            make_market(file_settings(path, waive=[other]))


def test_a_waived_day_is_a_date():
    assert read_waiver("split:BRK:B:2016-01-04") == Waiver("split", "BRK:B", "2016-01-04")
    assert read_waiver("split:BRK:B") == Waiver("split", "BRK:B")
    with pytest.raises(ValueError, match="'2016-1-4' is no date; write it like 2016-01-04"):
        read_waiver("split:BRK:2016-1-4")


def test_the_message_alone_is_enough_to_go_on(tmp_path, healthy):
    up = FAULTS["a day 6 % up"][1]
    last = FAULTS["last bar 8 % up"][1]
    path = write_csv(tmp_path, last(up(healthy.copy())))
    with pytest.raises(BarError) as caught:
        make_market(file_settings(path))
    waive = re.search(r"data\.waive: \[(.*)\]", str(caught.value))
    make_market(file_settings(path, waive=waive[1].split(", ")))


def test_the_first_of_contradicting_rows_is_kept(tmp_path, healthy):
    row = healthy[(healthy.ticker == "BBB") & (healthy.ts == f"{DAY} 12:00")]
    path = write_csv(
        tmp_path, pd.concat([healthy, row.assign(close=row.close * 0.9999), row], ignore_index=True)
    )
    market = make_market(file_settings(path, waive=["conflicting_duplicate"]))
    whole = make_market(file_settings(write_csv(tmp_path, healthy, "whole.csv")))
    np.testing.assert_array_equal(market.close, whole.close)
    assert market.provenance.repairs["exact_duplicates"] == 1


@pytest.mark.slow
def test_an_empty_row_before_it_costs_no_row_its_price(tmp_path, healthy):
    row = healthy[(healthy.ticker == "BBB") & (healthy.ts == f"{DAY} 12:00")]
    empty = row.assign(**dict.fromkeys(PRICES, np.nan))
    other = row.assign(close=row.close * 0.9999)
    whole = make_market(file_settings(write_csv(tmp_path, healthy, "whole.csv")))
    for rows in ([empty, row], [empty, row, other], [row, empty, other]):
        table = pd.concat([healthy.drop(row.index), *rows], ignore_index=True)
        path = write_csv(tmp_path, table)
        market = make_market(file_settings(path, waive=["conflicting_duplicate"]))
        np.testing.assert_array_equal(market.close, whole.close)
        assert market.provenance.repairs["empty_rows"] == 1
        assert len(market.provenance.waived) == len(rows) - 2


def test_a_kind_is_spelt_right_or_said_to_be_wrong():
    for text, said in (
        ("excursion", "did you mean 'excursion_day'"),
        ("gap", "known: "),
        ("zero_price:AAA", "is not a fault"),
    ):
        with pytest.raises(ConfigError, match=said):
            validate(DataSettings, {"waive": [text]}, "test")
    kept = validate(DataSettings, {"waive": ["split:X:BTC", "split:X:BTC:2016-01-04"]}, "test")
    assert kept.waive == ("split:X:BTC", "split:X:BTC:2016-01-04")


def test_what_is_doubtful_is_told_and_kept(tmp_path, healthy, caplog):
    path = build_market(
        file_settings(write_csv(tmp_path, moved(healthy, 0.85))), cache=tmp_path / "cache"
    )
    assert f"doubtful bars were kept: quiet_jump of BBB on {DAY} (-15.0%)" in caplog.text
    record = read_json(path.with_name("build.json"))
    doubtful = record["provenance"]["doubtful"]
    assert [(fault["kind"], fault["symbol"], fault["day"]) for fault in doubtful] == [
        ("quiet_jump", "BBB", DAY)
    ]
    assert to_json(MarketTensors.load(path).provenance)["doubtful"] == tuple(doubtful)


def test_declared_actions_pass(tmp_path, healthy):
    for factor, action in ((0.88, {"dividend_usd": 12.0}), (1 / 4, {"split": 4})):
        path = write_csv(tmp_path, moved(healthy, factor))
        actions = write_actions(tmp_path / "declared", [{"symbol": "BBB", "day": DAY, **action}])
        provenance = make_market(file_settings(path, actions=actions)).provenance
        assert provenance.waived == provenance.doubtful == ()
    with pytest.raises(BarError, match=r"declare the action under data\.actions"):
        make_market(file_settings(path))


def test_symbols_that_are_not_chosen_stop_nothing(tmp_path, healthy):
    path = write_csv(tmp_path, moved(healthy, 100.0))
    make_market(file_settings(path, universe={"symbols": ["AAA", "CCC"]}))
    make_market(file_settings(path, start=DAY))  # nor days that are not asked for
    with pytest.raises(BarError, match="scale_jump of BBB"):
        make_market(file_settings(path))


def test_a_company_under_two_names_is_no_stranger(tmp_path, healthy):
    twin = healthy[healthy.ticker == "BBB"].assign(ticker="OLD")
    make_market(file_settings(write_csv(tmp_path, pd.concat([healthy, twin]))))


def test_bars_in_pandas_pass_the_same_gate(healthy):
    _, change, day = FAULTS["a day 6 % up"]
    chosen = {"timezone": "America/New_York", **WINDOWS}
    with pytest.raises(BarError, match=f"excursion_day of BBB on {day}"):
        load_market(change(healthy.copy()), **chosen)
    assert load_market(change(healthy.copy()), **chosen, waive=["excursion_day"]).provenance.waived


def test_days_pass_the_gate_as_minutes_do(tmp_path):
    """Bars of whole days: a day's prices away, a split, volumes in lots."""
    table = minute_table(symbols=6, sessions=40)
    days = merged(table)
    days = days.assign(ts=days.ts.dt.strftime("%Y-%m-%d")).astype({"volume": float})
    one = (days.ticker == "BBB") & (days.ts == "2016-02-02")
    later = (days.ticker == "CCC") & (days.ts >= "2016-02-02")
    lots = (days.ticker == "DDD") & (days.ts >= "2016-02-02")
    days.loc[one, PRICES] *= 1.5
    days.loc[later, PRICES] /= 2
    days.loc[lots, "volume"] /= 100
    features = {"names": ["return_1"], "context": []}
    with pytest.raises(BarError) as caught:
        make_market(file_settings(write_csv(tmp_path, days), bar_minutes=390, features=features))
    for fault in ("excursion_day of BBB", "split of CCC", "volume_scale of DDD"):
        assert f"{fault} on 2016-02-02" in str(caught.value)


@pytest.mark.slow
@pytest.mark.real_data(REAL_2016)
def test_what_stops_a_build_of_real_days_is_wrong_there():
    values = {
        "path": str(REAL_FOLDER / DAILY),
        "source": {"kind": "files", "columns": {"ts": "date"}},
    }
    report = quality_report(validate(DataSettings, values, "test"))
    assert (report.bar_minutes, report.rows) == (1440, 71_830)
    found = {
        (fault.kind, fault.symbol, fault.day) for fault in report.faults if fault.kind in STOPPING
    }
    assert found == {
        ("excursion_day", "LILA", "2018-01-03")
    }  # 22 % down for a day without one trade more
    doubtful = {fault.symbol for fault in report.faults if fault.kind in DOUBTFUL}
    assert doubtful == {"CHTR", "LBTYA"}
