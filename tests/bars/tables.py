"""Small tables of minute bars as a user would bring them, for the data tests."""

from pathlib import Path

import numpy as np
import pandas as pd

from fintrader.bars.bars import Bars
from fintrader.bars.sources.feed import Feed
from fintrader.config import validate
from fintrader.market.settings import DataSettings
from tests import ROOT

PRICES = ["open", "high", "low", "close"]
COLUMNS = [*PRICES, "volume"]
REAL_FOLDER = ROOT.parent / "shared" / "data"
REAL_2016 = REAL_FOLDER / "minute_n100_20151012_20160401.parquet"
REAL_2019 = REAL_FOLDER / "minute_us14_20190102_20201231.parquet"


def minute_table(symbols=2, sessions=5, *, seed=0, missing=0.0):
    """Minute bars from 2016-01-04 (New York time, bar starts), tickers AAA, BBB, ..., sorted by
    ticker and time."""
    random = np.random.default_rng(seed)
    days = pd.bdate_range("2016-01-04", periods=sessions, freq="C", holidays=["2016-01-18"])
    ts = pd.DatetimeIndex(
        np.concatenate(
            [pd.date_range(day + pd.Timedelta("9h30min"), periods=390, freq="min") for day in days]
        )
    )
    parts = []
    for number in range(symbols):
        close = 50 * (number + 1) * np.exp(np.cumsum(random.normal(0, 0.001, len(ts))))
        open_ = np.concatenate([close[:1], close[:-1]]) * np.exp(random.normal(0, 0.0002, len(ts)))
        part = pd.DataFrame(
            {
                "ts": ts,
                "ticker": chr(ord("A") + number) * 3,
                "open": open_,
                "high": np.maximum(open_, close) * 1.0003,
                "low": np.minimum(open_, close) * 0.9997,
                "close": close,
                "volume": random.integers(100, 10_000, len(ts)),
            }
        ).round(dict.fromkeys(PRICES, 4))
        keep = random.random(len(part)) >= missing
        keep[0] = True
        parts.append(part[keep])
    return pd.concat(parts, ignore_index=True)


def as_bars(table, **extras):
    """The table as bars, with its other columns of those names as extras."""
    codes, names = pd.factorize(table.ticker, sort=True)
    columns = {name: table[name].to_numpy(dtype=float) for name in COLUMNS}
    columns["extras"] = {
        name: table[column].to_numpy(dtype=float) for name, column in extras.items()
    }
    return Bars(ts=stamps_of(table), symbol=codes.astype(np.int32), symbols=tuple(names), **columns)


def stamps_of(table):
    """When each bar begins, in nanoseconds since 1970."""
    utc = table.ts.dt.tz_localize("America/New_York").astype("datetime64[ns, UTC]")
    return utc.astype("int64").to_numpy()


def write_csv(folder, table, name="bars.csv", **how):
    """Write a table the way a user would."""
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / name, index=False, **how)
    return folder / name


def merged(table, rule="1D"):
    """Longer bars of minute bars, whole days unless told otherwise; each begins with its first."""
    prices = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    by = ["ticker", table.ts.dt.floor(rule)]
    return table.groupby(by, as_index=False).agg({"ts": "first", **prices})


WINDOWS = {"windows": {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0}}
PLAIN = {
    **WINDOWS,
    "features": {"names": ["return_1", "sma_5"], "context": ["time_of_day", "index_return_1"]},
}


def file_settings(path, **values):
    """Settings for a file of at least five sessions."""
    return validate(DataSettings, {"path": str(path), **PLAIN, **values}, "test")


def write_actions(folder, actions):
    """Write splits and dividends as a file for `data.actions`; returns its path."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / "actions.csv"
    names = ["symbol", "day", "split", "dividend_usd"]
    pd.DataFrame(actions).reindex(columns=names).to_csv(path, index=False)
    return str(path)


# for data of three sessions
SHORT_WINDOWS = {"windows": {"fractions": [0.34, 0.33, 0.33], "embargo_sessions": 0}}


def assert_same_market(one, other):
    """Every array to the last bit, NaN where NaN."""
    for name, tensor in one.arrays():
        np.testing.assert_array_equal(tensor.numpy(), getattr(other, name).numpy(), err_msg=name)


class RawFeed(Feed):
    """Bars in their order, each symbol's as a report on their quality reads them."""

    def __init__(self, bars, announced=()):
        self._bars = bars.take(np.argsort(bars.symbol, kind="stable")).by_symbol()
        self.symbols = sorted(self._bars)
        self.actions = tuple(announced)

    def bars(self, symbol):
        return self._bars[symbol]
