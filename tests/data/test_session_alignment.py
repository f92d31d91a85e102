from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fintrader.config import validate
from fintrader.data.build import make_market
from fintrader.data.settings import DataSettings
from fintrader.errors import BarError
from tests.data.tables import PLAIN, minute_table, write_csv


def build(folder: Path, table: pd.DataFrame, **source: object) -> dict[str, int]:
    path = write_csv(folder, table)
    _, report = make_market(validate(DataSettings, {"source": {"kind": "files", "path": path, **source}, **PLAIN}, "t"))
    return dict(report["repairs"])


@pytest.mark.parametrize(
    ("zone", "minutes"),
    [("America/Chicago", 60), ("America/Denver", 120), ("America/Los_Angeles", 180), ("America/Halifax", -60)],
)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_wrong_zone_is_refused(tmp_path: Path, zone: str, minutes: int, missing: float) -> None:
    side = "after" if minutes > 0 else "before"
    with pytest.raises(BarError, match=rf"AAA stand {abs(minutes)} minutes {side} the sessions of XNAS on . of 8 days"):
        build(tmp_path, minute_table(3, 8, missing=missing), timezone=zone)


@pytest.mark.parametrize("length", [1, 5, 30])
def test_a_wrong_label_is_refused(tmp_path: Path, length: int) -> None:
    table = minute_table(3, 8)
    table = table[table.ts.dt.minute % length == 0]
    source = {"bar_minutes": length}
    assert build(tmp_path, table, **source)["outside_session"] == 0
    with pytest.raises(BarError, match=r"one bar too early on 8 of 8 days.*set data.source.label to start"):
        build(tmp_path, table, label="end", **source)
    table["ts"] += pd.Timedelta(minutes=length)
    assert build(tmp_path, table, label="end", **source)["outside_session"] == 0
    with pytest.raises(BarError, match=r"one bar too late on 8 of 8 days.*set data.source.label to end"):
        build(tmp_path, table, **source)


def test_some_displaced_days_are_no_wrong_zone(tmp_path: Path) -> None:
    table = minute_table(3, 8)
    odd = (table.ticker == "BBB") & (table.ts.dt.day <= 6)
    table.loc[odd, "ts"] += pd.Timedelta("1h")
    assert build(tmp_path, table)["outside_session"] == 3 * 60


def test_thin_symbols_auctions_and_long_hours_are_no_pattern(tmp_path: Path) -> None:
    table = minute_table(2, 12)
    clock = table.ts.dt.strftime("%H:%M")
    random = np.random.default_rng(0)
    thin = table[(table.ticker == "AAA") | (random.random(len(table)) < 0.01) | (clock == "15:59")]
    assert build(tmp_path, thin)["outside_session"] == 0
    auction = table[clock == "15:59"].assign(ts=lambda rows: rows.ts + pd.Timedelta("1min"))
    assert build(tmp_path, pd.concat([thin, auction]))["outside_session"] == 24
    late_start = table[(clock >= "10:30") & (clock < "15:30")]
    assert build(tmp_path, late_start)["outside_session"] == 0
    evening = table[clock >= "12:30"].assign(ts=lambda rows: rows.ts + pd.Timedelta("210min"))
    morning = table[clock < "12:30"].assign(ts=lambda rows: rows.ts - pd.Timedelta("180min"))
    assert build(tmp_path, pd.concat([table, morning, evening]))["outside_session"] == 2 * 12 * 390
