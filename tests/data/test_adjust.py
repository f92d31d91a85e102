"""Splits and dividends: a split day shows no P&L, and the real splits of August 2020 come out as the vendor's."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fintrader.config import validate
from fintrader.data.build import make_market
from fintrader.data.corporate_actions import Action, AdjustSettings, adjust, load_actions
from fintrader.data.quality import examine
from fintrader.data.settings import DataSettings
from fintrader.data.sources.files import FilesSettings, read_files
from fintrader.errors import DataError
from tests.data.tables import REAL_2019, minute_table, write_csv

EX_DAY = dt.date(2016, 1, 7)
PRICES = ["open", "high", "low", "close"]


def market_of(path: Path, **adjust_values: object):
    values = {
        "path": str(path),
        "windows": {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0},
        "features": {"names": ["return_1", "volume_30"], "context": []},
        "adjust": adjust_values,
    }
    return make_market(validate(DataSettings, values, "test"))[0]


def split_table(ratio: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table without a split, and the same market with AAA split on EX_DAY."""
    table = minute_table(2, 6)
    raw = table.copy()
    before = (raw.ticker == "AAA") & (raw.ts < pd.Timestamp(EX_DAY))
    raw.loc[before, PRICES] *= ratio
    raw["volume"] = raw.volume.astype(float)
    raw.loc[before, "volume"] /= ratio
    return table, raw


@pytest.mark.parametrize("ratio", [4.0, 0.1])
def test_a_split_day_shows_no_gain_or_loss(tmp_path: Path, ratio: float) -> None:
    table, raw = split_table(ratio)
    plain = market_of(write_csv(tmp_path / "plain", table))
    action = {"symbol": "AAA", "day": str(EX_DAY), "split": ratio}
    adjusted = market_of(write_csv(tmp_path / "raw", raw), actions=[action])
    torch.testing.assert_close(adjusted.close, plain.close, rtol=1e-6, atol=0)
    torch.testing.assert_close(adjusted.open, plain.open, rtol=1e-6, atol=0)
    torch.testing.assert_close(adjusted.features, plain.features, rtol=1e-3, atol=1e-3)
    untouched = market_of(tmp_path / "raw" / "bars.csv")
    row = 3 * 390
    jump = float(untouched.close[row, 0] / untouched.close[row - 1, 0])
    assert jump == pytest.approx(1 / ratio, rel=0.01)
    assert abs(float(torch.log(adjusted.close[row, 0] / adjusted.close[row - 1, 0]))) < 0.01
    assert torch.equal(untouched.close[:, 1], adjusted.close[:, 1])


def test_a_dividend_day_shows_no_loss(tmp_path: Path) -> None:
    table = minute_table(1, 6)
    ex = table.ts >= pd.Timestamp(EX_DAY)
    paid = table.copy()
    paid.loc[ex, PRICES] -= 2.0  # the price falls by what was paid
    market = market_of(write_csv(tmp_path, paid), actions=[{"symbol": "AAA", "day": str(EX_DAY), "dividend_usd": 2.0}])
    close = table.close.to_numpy()
    row = 3 * 390
    night = float(market.open[row, 0] / market.close[row - 1, 0])
    assert night == pytest.approx((table.open[row] - 2.0) / (close[row - 1] - 2.0), rel=1e-5)
    np.testing.assert_allclose(market.close[row:, 0].numpy(), close[row:] - 2.0, rtol=1e-6)
    np.testing.assert_allclose(market.close[:row, 0].numpy(), close[:row] * (1 - 2.0 / close[row - 1]), rtol=1e-6)


def test_actions_after_the_date_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "actions.csv").write_text(
        "symbol,day,split,dividend_usd\nAAA,2016-01-07,4,\nAAA,2016-01-05,,0.5\nBBB,2016-01-06,2,\n"
    )
    settings = AdjustSettings(path=tmp_path / "actions.csv", as_of=dt.date(2016, 1, 6))
    assert [
        (action.symbol, action.day.day, action.split, action.dividend_usd) for action in load_actions(settings)
    ] == [
        ("AAA", 5, 1.0, 0.5),
        ("BBB", 6, 2.0, 0.0),
    ]
    (tmp_path / "actions.csv").write_text("symbol,day,split\nAAA,soon,4\n")
    with pytest.raises(DataError, match=r"actions.csv, line 2"):
        load_actions(settings)
    with pytest.raises(DataError, match=r"no such file; see data.adjust.path"):
        load_actions(AdjustSettings(path=tmp_path / "nothing.csv"))


def test_a_dividend_above_the_price_is_refused(tmp_path: Path) -> None:
    bars = read_files(FilesSettings(path=str(write_csv(tmp_path, minute_table(1, 6))))).sorted()
    with pytest.raises(DataError, match="exceeds the close"):
        adjust(bars, [Action(symbol="AAA", day=EX_DAY, dividend_usd=500.0)], "XNAS")


@pytest.mark.real_data
@pytest.mark.skipif(not REAL_2019.exists(), reason="the real minute bars are not beside the checkout")
def test_the_splits_of_august_2020(tmp_path: Path) -> None:
    base = {
        "path": str(REAL_2019),
        "start": "2020-08-24",
        "end": "2020-09-04",
        "universe": {"symbols": ["AAPL", "TSLA", "V"]},
        "windows": {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0},
        "features": {"names": ["return_1"], "context": []},
    }
    splits = [
        {"symbol": "AAPL", "day": "2020-08-31", "split": 4},
        {"symbol": "TSLA", "day": "2020-08-31", "split": 5},
    ]
    vendor, _ = make_market(validate(DataSettings, base, "test"))
    traded, _ = make_market(validate(DataSettings, base | {"adjust": {"factor_column": "split_factor"}}, "test"))
    ours, _ = make_market(
        validate(DataSettings, base | {"adjust": {"factor_column": "split_factor", "actions": splits}}, "test")
    )
    row = 5 * 390  # the open of 2020-08-31
    ratio = (traded.close[row - 1] / traded.close[row]).tolist()
    assert ratio[0] == pytest.approx(4, rel=0.05)
    assert ratio[1] == pytest.approx(5, rel=0.1)
    torch.testing.assert_close(ours.close, vendor.close, rtol=1e-6, atol=0)
    nights = torch.log(ours.open[row] / ours.close[row - 1]).abs()
    assert float(nights.max()) < 0.05
    assert torch.equal(traded.close[:, 2], vendor.close[:, 2])
    # and without being told, the quality report names both
    bars = read_files(FilesSettings(path=str(REAL_2019), extra=("split_factor",)), ("AAPL", "TSLA"))
    as_traded = adjust(bars, (), "XNAS", "split_factor")
    report = examine(as_traded, DataSettings())
    found = {(fault["symbol"], fault["day"]) for fault in report["faults"] if fault["kind"] == "split"}
    assert found == {("AAPL", "2020-08-31"), ("TSLA", "2020-08-31")}
