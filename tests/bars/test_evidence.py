import datetime as dt
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.bars import MINUTE_NS, concat
from fintrader.bars.calendar import session_date, session_grid
from fintrader.bars.evidence import SessionEvidence, has_opening_prints, split_by_day
from fintrader.bars.sources.bar_files import read_files
from fintrader.bars.sources.layout import FilesSettings
from fintrader.errors import BarError, DataError
from fintrader.market.build import make_market
from tests.bars.tables import (
    COLUMNS,
    PLAIN,
    REAL_2016,
    REAL_2019,
    REAL_FOLDER,
    as_bars,
    assert_same_market,
    file_settings,
    merged,
    minute_table,
    write_csv,
)
from tests.quick import slow_but

GRID = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 1, 15))


def settings(path, source=(), **values):
    return file_settings(path, source={"kind": "files", **dict(source)}, **values)


def with_prints(table):
    """END-labelled bars, and the opening's print stamped at the open."""
    ends = table.assign(ts=table.ts + pd.Timedelta("1min"))
    first = table[table.ts.dt.strftime("%H:%M") == "09:30"]
    prints = first.assign(high=first.open, low=first.open, close=first.open, volume=1000)
    return pd.concat([ends, prints]).sort_values(["ticker", "ts"], ignore_index=True)


def as_standard_time(table):
    utc = table.ts.dt.tz_localize("America/New_York")
    return table.assign(ts=utc.dt.tz_convert("Etc/GMT+5").dt.tz_localize(None))


def spring(table):
    """The same bars on sessions from 7 March 2016 on: clocks go forward on the 13th."""
    return table.assign(ts=table.ts + pd.Timedelta(days=63))


def test_ends_read_as_starts_are_refused_also_beside_an_opening_print(tmp_path):
    table = minute_table(2, 8)
    path = write_csv(tmp_path, with_prints(table))
    with pytest.raises(
        BarError,
        match=r"AAA begin and end one bar too late on 8 of 8 days.*data.source.label to end",
    ):
        make_market(settings(path))
    market = make_market(settings(path, {"label": "end"}))
    assert market.provenance.repairs["opening_print"] == 16
    plain = make_market(settings(write_csv(tmp_path, table, "plain.csv")))
    for name in ("open", "close", "features", "tradable"):
        np.testing.assert_array_equal(
            getattr(market, name).numpy(), getattr(plain, name).numpy(), err_msg=name
        )
    opening = [day * 390 for day in range(8)]
    np.testing.assert_allclose((market.volume - plain.volume)[opening].numpy(), 1000)


def test_starts_with_a_closing_print_are_no_ends(tmp_path):
    table = minute_table(2, 8)
    last = table[table.ts.dt.strftime("%H:%M") == "15:59"]
    prints = last.assign(
        ts=last.ts + pd.Timedelta("1min"), open=last.close, high=last.close, low=last.close
    )
    path = write_csv(tmp_path, pd.concat([table, prints]))
    assert make_market(settings(path)).provenance.repairs["extended_hours"] == 16
    with pytest.raises(
        BarError, match=r"one bar too early on 8 of 8 days.*data.source.label to start"
    ):
        make_market(settings(path, {"label": "end"}))


def test_standard_time_all_year_is_no_new_york(tmp_path):
    path = write_csv(tmp_path, as_standard_time(spring(minute_table(2, 9))))
    with pytest.raises(
        BarError, match=r"60 minutes before the sessions .* on 4 of 9 days.*one season.*Etc/GMT\+5"
    ):
        make_market(settings(path))
    market = make_market(settings(path, {"timezone": "Etc/GMT+5"}))
    plain = make_market(settings(write_csv(tmp_path, spring(minute_table(2, 9)), "plain.csv")))
    assert_same_market(market, plain)


def test_bars_of_five_minutes_fill_no_grid_of_one(tmp_path):
    table = minute_table(2, 8)
    path = write_csv(tmp_path, table[table.ts.dt.minute % 5 == 0])
    with pytest.raises(
        BarError, match=r"5 minutes apart.*data.source.bar_minutes to 5 and data.bar_minutes to 5"
    ):
        make_market(settings(path))
    with pytest.raises(
        BarError, match=r"cannot be spread over bars of 1; set data.bar_minutes to 5"
    ):
        make_market(settings(path, {"bar_minutes": 5}))
    with pytest.raises(
        BarError, match=r"cannot be spread over bars of 7; set data.bar_minutes to 5"
    ):
        make_market(settings(path, {"bar_minutes": 5}, bar_minutes=7))
    make_market(settings(path, {"bar_minutes": 5}, bar_minutes=30))
    with pytest.raises(BarError, match=r"stand 1 minute apart, and data.source.bar_minutes says 5"):
        make_market(
            settings(write_csv(tmp_path, table, "one.csv"), {"bar_minutes": 5}, bar_minutes=5)
        )


def test_days_fill_no_grid_of_minutes(tmp_path):
    table = minute_table(2, 8)
    days = merged(table)
    path = write_csv(tmp_path, days.assign(ts=days.ts.dt.strftime("%Y-%m-%d")))
    with pytest.raises(BarError, match=r"daily.*set data.source.bar_minutes and data.bar_minutes"):
        make_market(settings(path))
    features = {"names": ["return_1"]}
    make_market(settings(path, {"bar_minutes": 390}, bar_minutes=390, features=features))
    make_market(settings(path, bar_minutes=390, features=features))


def test_extended_hours_are_counted_or_kept(tmp_path):
    table = minute_table(2, 8)
    early = table[table.ts.dt.hour < 13].assign(
        ts=lambda rows: rows.ts - pd.Timedelta("4h"), volume=1
    )
    whole = pd.concat([table, early[early.ts.dt.hour * 60 + early.ts.dt.minute < 570]])
    path = write_csv(tmp_path, whole)
    regular = make_market(settings(path))
    assert regular.provenance.repairs["extended_hours"] == len(whole) - len(table)
    assert regular.provenance.repairs["outside_session"] == 0
    assert_same_market(regular, make_market(settings(write_csv(tmp_path, table, "plain.csv"))))
    extended = make_market(settings(path, hours="extended"))
    assert extended.provenance.repairs["extended_hours"] == 0
    assert extended.num_bars == 8 * 960
    assert str(extended.timestamps()[0])[11:16] == "09:00"  # 04:00 in New York
    assert int(extended.tradable.sum()) == len(whole)
    np.testing.assert_array_equal(
        extended.close[330 : 330 + 390].numpy(), regular.close[:390].numpy()
    )
    half = session_grid("XNAS", dt.date(2019, 7, 3), dt.date(2019, 7, 3), hours="extended")
    assert half.num_bars == 13 * 60  # to 17:00
    with pytest.raises(DataError, match="the extended hours of XHKG are not known"):
        session_grid("XHKG", dt.date(2019, 7, 2), dt.date(2019, 7, 2), hours="extended")


@pytest.mark.parametrize("share", [0.003, 0.02, 0.1, 0.5])
def test_thin_symbols_raise_no_alarm(share):
    random = np.random.default_rng(1)
    bars = as_bars(minute_table(6, 10))
    evidence = SessionEvidence(GRID, 1)
    for one in bars.by_symbol().values():
        evidence.examine(one.take(random.random(len(one)) < share))
    evidence.judge()


def ends(bars, _):
    return replace(bars, ts=bars.ts + MINUTE_NS)


def ends_with_prints(bars, grid):
    opening = bars.take(np.isin(bars.ts, grid.open))
    prints = replace(
        opening, ts=opening.ts - MINUTE_NS, high=opening.open, low=opening.open, close=opening.open
    )
    return ends(concat([bars, prints]).sorted(), grid)


def standard_time(bars, _):
    wall = (
        pd.DatetimeIndex(bars.ts.astype("datetime64[ns]"), tz="UTC")
        .tz_convert("Etc/GMT+5")
        .tz_localize(None)
    )
    utc = wall.tz_localize("America/New_York").tz_convert("UTC").tz_localize(None)
    return replace(bars, ts=utc.to_numpy().astype("datetime64[ns]").astype(np.int64))


def fives(bars, _):
    return bars.take(bars.ts // MINUTE_NS % 5 == 0)


@pytest.mark.slow
@pytest.mark.real_data(REAL_2016, REAL_2019)
@pytest.mark.parametrize("path", slow_but(0, every=[REAL_2016, REAL_2019]), ids=["2016", "2019"])
def test_every_misread_real_symbol_is_refused_and_no_good_one(path):
    bars = read_files(FilesSettings(), str(path))
    first, last = (session_date("XNAS", int(ts)) for ts in (bars.ts.min(), bars.ts.max()))
    grid = session_grid("XNAS", first, last)
    misread = [ends, ends_with_prints, standard_time, fives]
    evidence = SessionEvidence(grid, 1)
    random = np.random.default_rng(0)
    for number, one in enumerate(bars.sorted().by_symbol().values()):
        evidence.examine(one)
        if number % 7:
            continue
        assert not has_opening_prints(split_by_day(one, grid))
        for share in (0.003, 0.05):
            SessionEvidence(grid, 1).examine(one.take(random.random(len(one)) < share))
        for change in misread:
            with pytest.raises(BarError):
                SessionEvidence(grid, 1).examine(change(one, grid))
    evidence.judge()


@pytest.mark.slow
@pytest.mark.real_data(REAL_FOLDER / "lean_raw")
def test_raw_lean_bars_equal_those_filtered_outside():
    folder = REAL_FOLDER / "lean_raw"
    source = {"preset": "lean"}
    raw = make_market(settings(folder, source))
    assert raw.provenance.repairs["extended_hours"] > 20_000
    bars = read_files(FilesSettings(preset="lean"), str(folder))
    grid = session_grid("XNAS", dt.date(2019, 6, 3), dt.date(2019, 7, 31))
    inside = bars.take(np.isin(bars.ts, grid.minutes))
    stamps = pd.DatetimeIndex(inside.ts.astype("datetime64[ns]"), tz="UTC")
    frame = pd.DataFrame(
        {name: getattr(inside, name) for name in COLUMNS}
        | {"ts": stamps, "ticker": np.array(inside.symbols)[inside.symbol]}
    )
    from fintrader import load_market

    filtered = load_market(frame, bar_minutes=1, **PLAIN)
    raw, filtered = (
        replace(one, provenance=replace(one.provenance, source=None, repairs={}))
        for one in (raw, filtered)
    )
    assert raw.content_hash() == filtered.content_hash()
    for wrong in (
        {"label": "end"},
        {"timezone": "UTC"},
        {"timezone": "America/Chicago"},
        {"timezone": "Etc/GMT+5"},
    ):
        with pytest.raises(BarError, match=r"data\.source\.(label|timezone)"):
            make_market(settings(folder, source | wrong))
