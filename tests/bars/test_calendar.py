import datetime as dt

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.bars import MINUTE_NS
from fintrader.bars.calendar import (
    find_exchange_timezone,
    session_date,
    session_grid,
    to_wall,
)
from fintrader.errors import BarError, DataError
from fintrader.market.build import make_market
from tests.bars.tables import file_settings, minute_table, write_csv
from tests.quick import slow_but


@pytest.mark.parametrize(
    ("start", "end", "sessions", "minutes", "early"),
    [
        (dt.date(2016, 1, 1), dt.date(2020, 5, 25), 1105, 429_330, 9),
        (dt.date(2020, 5, 26), dt.date(2021, 5, 26), 254, 98_700, 2),
        (dt.date(2015, 10, 12), dt.date(2016, 4, 1), 119, 46_050, 2),
    ],
)
def test_golden_counts(start, end, sessions, minutes, early):
    for calendar in ("XNAS", "XNYS"):
        grid = session_grid(calendar, start, end)
        assert (grid.num_sessions, grid.num_bars) == (sessions, minutes)
        assert int((grid.session_minutes < 390).sum()) == early
        assert int(grid.session_minutes[grid.session_minutes < 390].min()) == 210


def test_daylight_saving_and_half_days_in_utc():
    grid = session_grid("XNAS", dt.date(2015, 10, 26), dt.date(2015, 11, 27))
    starts = {
        str(day): str(grid.minutes[bar].astype("datetime64[ns]"))[11:16]
        for day, bar in zip(grid.dates, grid.first_bar, strict=False)
    }
    assert starts["2015-10-30"] == "13:30"
    assert starts["2015-11-02"] == "14:30"  # clocks went back on 1 November
    assert "2015-11-26" not in starts  # Thanksgiving
    assert (
        str(grid.minutes[-1].astype("datetime64[ns]"))[:16] == "2015-11-27T17:59"
    )  # closes at 13:00 in New York


@pytest.mark.parametrize("bar_minutes", [1, 5, 7, 60, 390, 1440])
def test_longer_bars_stay_inside_sessions(bar_minutes):
    grid = session_grid("XNAS", dt.date(2015, 11, 23), dt.date(2015, 11, 30), bar_minutes)
    expected = [-(-minutes // bar_minutes) for minutes in (390, 390, 390, 210, 390)]
    assert np.diff(grid.first_bar).tolist() == expected
    assert (grid.locate(grid.minutes) == np.arange(grid.num_bars)).all()
    second = grid.exchange_minutes + 30_000_000_000
    assert (grid.locate(second) == grid.bar_of_minute).all()
    assert grid.locate(
        np.array([grid.exchange_minutes[0] - 1, grid.exchange_minutes[-1] + 60_000_000_000])
    ).tolist() == [-1, -1]
    assert (
        grid.session[grid.bar_of_minute] == np.repeat(np.arange(5), [390, 390, 390, 210, 390])
    ).all()


def test_a_session_that_opens_on_sunday_is_mondays():
    grid = session_grid("FX", dt.date(2024, 3, 4), dt.date(2024, 3, 15), 60)
    assert np.diff(grid.first_bar).tolist() == [24] * 10
    opens = grid.open[[0, 5]].astype("datetime64[ns]").astype(str)
    assert [moment[:16] for moment in opens] == ["2024-03-03T22:00", "2024-03-10T21:00"]
    for calendar in ("FX", "CMES"):
        sunday, friday = (pd.Timestamp(f"2024-03-{day}").value for day in ("04 00:00", "08 21:00"))
        assert session_date(calendar, sunday - 1) == dt.date(2024, 3, 4)
        assert session_date(calendar, friday) == dt.date(2024, 3, 8)


def test_nasdaq_nearly_around_the_clock():
    """SR-NASDAQ-2025-109: from 21:00 of the evening before to 20:00; Thanksgiving week of 2026."""
    grid = session_grid("23/5", dt.date(2026, 11, 23), dt.date(2026, 11, 30), 60)
    assert [day.day for day in grid.dates.tolist()] == [23, 24, 25, 27, 30]
    assert np.diff(grid.first_bar).tolist() == [23, 23, 23, 20, 23]
    edges = grid.times[[0, 22, 23]].strftime("%d %H:%M").tolist()
    assert edges == ["22 21:00", "23 19:00", "23 21:00"]
    pause, night, holiday = (
        pd.Timestamp(f"2026-11-{clock}", tz="America/New_York").value
        for clock in ("24 20:30", "24 21:00", "25 22:00")
    )
    assert (grid.locate(np.array([pause, night, holiday])) >= 0).tolist() == [False, True, False]
    assert session_date("23/5", night) == dt.date(2026, 11, 25)


def test_a_lunch_break_has_no_minutes():
    grid = session_grid("XHKG", dt.date(2019, 7, 2), dt.date(2019, 7, 2))
    assert grid.num_bars == 330  # 09:30-12:00 and 13:00-16:00
    assert int(np.diff(grid.minutes).max()) == 61 * 60_000_000_000


@pytest.mark.parametrize(
    ("calendar", "minutes", "starts", "last_end"),
    [
        ("XTKS", 60, "09:00 10:00 11:00 12:30 13:30 14:30", "15:00"),
        ("XHKG", 60, "09:30 10:30 11:30 13:00 14:00 15:00", "16:00"),
        ("XTKS", 300, "09:00", "15:00"),
        ("XNAS", 60, "09:30 10:30 11:30 12:30 13:30 14:30 15:30", "16:00"),
    ],
)
def test_bars_begin_anew_after_a_lunch_break(calendar, minutes, starts, last_end):
    grid = session_grid(calendar, dt.date(2019, 7, 2), dt.date(2019, 7, 2), minutes)
    assert " ".join(grid.times.strftime("%H:%M")) == starts
    ends = to_wall(grid.ends, find_exchange_timezone(calendar)).strftime("%H:%M")
    assert ends[-1] == last_end


@pytest.mark.parametrize("calendar", ["XTKS", "XHKG", "XSHG", "XNAS"])
def test_short_bars_that_are_stamped_with_ends_begin_with_the_grids(calendar):
    grid = session_grid(calendar, dt.date(2019, 7, 2), dt.date(2019, 7, 3), 60)
    moved = grid.start_short_bars(grid.ends - 60 * MINUTE_NS, 60)
    assert (moved == grid.minutes).all()
    late = np.sort(np.append(grid.ends, grid.close + 5 * MINUTE_NS))  # a print after the close
    moved = grid.start_short_bars(late - 60 * MINUTE_NS, 60)
    assert (np.diff(moved) > 0).all()
    assert (moved[grid.locate(moved) >= 0] == grid.minutes).all()


def test_the_bars_of_a_session_do_not_depend_on_the_range():
    """Sessions of Tokyo have 330 minutes from November 2024 on."""
    day = dt.date(2024, 6, 3)
    alone = session_grid("XTKS", day, day, 300)
    wide = session_grid("XTKS", day, dt.date(2025, 1, 31), 300)
    assert (wide.cut(0, 0).minutes == alone.minutes).all()


def test_the_exchange_has_its_own_date():
    late = np.datetime64("2016-01-05T01:00", "ns").astype(np.int64)  # still the 4th in New York
    assert session_date("XNAS", int(late)) == dt.date(2016, 1, 4)


def test_what_has_no_session_is_refused():
    with pytest.raises(DataError, match="no session from 2016-01-16 to 2016-01-18"):
        session_grid("XNAS", dt.date(2016, 1, 16), dt.date(2016, 1, 18))
    with pytest.raises(DataError, match="no exchange calendar"):
        session_grid("NASDAQ100", dt.date(2016, 1, 4), dt.date(2016, 1, 5))
    with pytest.raises(DataError, match="after its end on"):
        session_grid("XNAS", dt.date(2016, 1, 5), dt.date(2016, 1, 4))


def build(folder, table, *, waive=None, **source):
    """What was repaired when the table was built as bars of their own length."""
    values = {"bar_minutes": source.get("bar_minutes", 1), "waive": [waive] if waive else []}
    values["source"] = {"kind": "files", **source}
    settings = file_settings(write_csv(folder, table), **values)
    return dict(make_market(settings).provenance.repairs)


@pytest.mark.parametrize(
    ("zone", "minutes"),
    slow_but(
        *range(0, 8, 2),
        every=[
            ("America/Chicago", 60),
            ("America/Denver", 120),
            ("America/Los_Angeles", 180),
            ("America/Halifax", -60),
        ],
    ),
)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_wrong_zone_is_refused(tmp_path, zone, minutes, missing):
    side = "after" if minutes > 0 else "before"
    with pytest.raises(
        BarError,
        match=rf"AAA stand {abs(minutes)} minutes {side} the sessions of XNAS on . of 8 days",
    ):
        build(tmp_path, minute_table(3, 8, missing=missing), timezone=zone)


@pytest.mark.parametrize("length", [1, 5, 30])
def test_a_wrong_label_is_refused(tmp_path, length):
    table = minute_table(3, 8)
    table = table[table.ts.dt.minute % length == 0]
    source = {"bar_minutes": length}
    assert build(tmp_path, table, **source)["outside_session"] == 0
    with pytest.raises(
        BarError, match=r"one bar too early on . of . days.*set data.source.label to start"
    ):
        build(tmp_path, table, label="end", **source)
    table["ts"] += pd.Timedelta(minutes=length)
    assert build(tmp_path, table, label="end", **source)["outside_session"] == 0
    with pytest.raises(
        BarError, match=r"one bar too late on 8 of 8 days.*set data.source.label to end"
    ):
        build(tmp_path, table, **source)


def test_some_displaced_days_are_no_wrong_zone(tmp_path):
    table = minute_table(3, 8)
    odd = (table.ticker == "BBB") & (table.ts.dt.day <= 6)
    table.loc[odd, "ts"] += pd.Timedelta("1h")
    with pytest.raises(BarError, match="shifted_day of BBB on 2016-01-04"):
        build(tmp_path, table)
    assert build(tmp_path, table, waive="shifted_day")["extended_hours"] == 3 * 60


def test_late_starts_and_long_hours_are_no_pattern(tmp_path):
    table = minute_table(2, 12)
    clock = table.ts.dt.strftime("%H:%M")
    late_start = table[(clock >= "10:30") & (clock < "15:30")]
    assert build(tmp_path, late_start)["outside_session"] == 0
    evening = table[clock >= "12:30"].assign(ts=lambda rows: rows.ts + pd.Timedelta("210min"))
    morning = table[clock < "12:30"].assign(ts=lambda rows: rows.ts - pd.Timedelta("180min"))
    assert build(tmp_path, pd.concat([table, morning, evening]))["extended_hours"] == 2 * 12 * 390
