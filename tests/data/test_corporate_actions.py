from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fintrader.data.build import make_market
from fintrader.data.corporate_actions import Action, AdjustSettings, adjust, load_actions
from fintrader.data.sources.files import FilesSettings, read_files
from fintrader.errors import DataError
from tests.data.tables import file_settings, minute_table, write_csv

EX_DAY = dt.date(2016, 1, 7)
PRICES = ["open", "high", "low", "close"]


def market_of(path: Path, **adjust_values: object):
    features = {"names": ["return_1", "volume_30"], "context": []}
    return make_market(file_settings(path, features=features, adjust=adjust_values))[0]


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


def test_a_vendors_adjustment_is_undone_and_done_again(tmp_path: Path) -> None:
    table, raw = split_table(4.0)
    later = (table.ticker != "AAA") | (table.ts >= pd.Timestamp(EX_DAY))
    path = write_csv(tmp_path / "vendor", table.assign(factor=np.where(later, 1.0, 4.0)))
    traded = market_of(path, factor_column="factor")
    torch.testing.assert_close(traded.close, market_of(write_csv(tmp_path / "raw", raw)).close, rtol=1e-6, atol=0)
    action = {"symbol": "AAA", "day": str(EX_DAY), "split": 4.0}
    again = market_of(path, factor_column="factor", actions=[action])
    torch.testing.assert_close(again.close, market_of(write_csv(tmp_path / "plain", table)).close, rtol=1e-6, atol=0)


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
    found = [(action.symbol, action.day.day, action.split, action.dividend_usd) for action in load_actions(settings)]
    assert found == [("AAA", 5, 1.0, 0.5), ("BBB", 6, 2.0, 0.0)]
    (tmp_path / "actions.csv").write_text("symbol,day,split\nAAA,soon,4\n")
    with pytest.raises(DataError, match=r"actions.csv, line 2"):
        load_actions(settings)
    with pytest.raises(DataError, match=r"no such file; see data.adjust.path"):
        load_actions(AdjustSettings(path=tmp_path / "nothing.csv"))


def test_a_dividend_above_the_price_is_refused(tmp_path: Path) -> None:
    bars = read_files(FilesSettings(path=str(write_csv(tmp_path, minute_table(1, 6))))).sorted()
    with pytest.raises(DataError, match="exceeds the close"):
        adjust(bars, [Action(symbol="AAA", day=EX_DAY, dividend_usd=500.0)], "XNAS")
