"""Bars of half an hour to a session, stamped with their starts or ends: each close appears at the
end of its bar, whatever remains for the last bar before a close or a break."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.calendar import find_exchange_timezone, session_grid
from fintrader.bars.detect import detect
from fintrader.errors import BarError
from fintrader.market.load import load_market

MINUTE = 60_000_000_000
FIRST = dt.date(2021, 3, 1)
LAST = dt.date(2021, 4, 30)


def cut(calendar, minutes):
    """Starts and ends of bars that begin anew when trading does."""
    trading = session_grid(calendar, FIRST, LAST).exchange_minutes
    parts = np.split(trading, np.flatnonzero(np.diff(trading) > MINUTE) + 1)
    starts = np.concatenate([part[::minutes] for part in parts])
    stops = np.concatenate([np.full(-(-len(part) // minutes), part[-1] + MINUTE) for part in parts])
    return starts, np.minimum(starts + minutes * MINUTE, stops)


def write(path, calendar, minutes, label, clock):
    starts, ends = cut(calendar, minutes)
    ts = pd.DatetimeIndex(starts if label == "start" else ends, tz="UTC")
    if clock == "local":
        ts = ts.tz_convert(find_exchange_timezone(calendar)).tz_localize(None)
    tables = []
    for seed, symbol in enumerate(("AAA", "BBB")):
        close = (
            100 * np.exp(np.random.default_rng(seed).normal(0, 0.004, len(ts)).cumsum())
        ).round(3)
        prices = dict.fromkeys(("open", "high", "low", "close"), close)
        tables.append(pd.DataFrame({"ts": ts, "symbol": symbol, **prices, "volume": 1000.0}))
    pd.concat(tables).to_csv(path, index=False)
    return ends, np.stack([table.close for table in tables], axis=1)


MARKETS = ["XNYS", "XTKS", "XHKG", "XSHG", "XLON", "XETR", "XBOM", "XKRX"]
SLOW = [
    pytest.param(*one, marks=pytest.mark.slow)
    for one in [
        (calendar, minutes, label, clock)
        for calendar in MARKETS
        for minutes in (30, 60, 75, 90, 120, 130, 195, 240)
        for label in ("start", "end")
        for clock in ("utc", "local")
    ]
]
QUICK = [
    ("XNYS", 75, "end", "local"),
    ("XNYS", 240, "end", "utc"),
    ("XLON", 60, "end", "local"),
    ("XTKS", 90, "end", "utc"),
    ("XHKG", 120, "end", "local"),
]


@pytest.mark.parametrize(("calendar", "minutes", "label", "clock"), [*QUICK, *SLOW])
def test_each_close_appears_at_the_end_of_its_bar(calendar, minutes, label, clock, tmp_path):
    ends, closes = write(tmp_path / "bars.csv", calendar, minutes, label, clock)
    market = load_market(tmp_path / "bars.csv", cache=tmp_path / "tensors")
    begins = market.timestamps().astype("datetime64[ns]").astype(np.int64)
    own = ends[np.searchsorted(ends, begins, side="right")]
    assert market.bar_minutes == min(
        minutes, int((ends - cut(calendar, minutes)[0]).max() // MINUTE)
    )
    assert len(np.unique(own)) == market.num_bars == len(ends)
    np.testing.assert_allclose(market.close.numpy(), closes, rtol=1e-6)


@pytest.mark.parametrize("minutes", [75, 120, 195])
@pytest.mark.parametrize("label", ["start", "end"])
def test_the_wrong_label_of_long_bars_is_refused(minutes, label, tmp_path):
    """Ends that are starts would show each close one bar early."""
    _, closes = write(tmp_path / "bars.csv", "XNYS", minutes, label, "utc")
    wrong = {"start": "end", "end": "start"}[label]
    source = {"kind": "files", "columns": {"symbol": "symbol"}, "bar_minutes": minutes}
    data = {
        "path": str(tmp_path / "bars.csv"),
        "calendar": "XNYS",
        "bar_minutes": minutes,
        "windows": {
            "train": ["2021-03-01", "2021-03-31"],
            "validation": ["2021-04-01", "2021-04-15"],
            "test": ["2021-04-16", "2021-04-30"],
        },
    }
    with pytest.raises(BarError, match=f"set data.source.label to {label}"):
        load_market({**data, "source": {**source, "label": wrong}}, cache=tmp_path / "wrong")
    market = load_market({**data, "source": {**source, "label": label}}, cache=tmp_path / "right")
    np.testing.assert_allclose(market.close.numpy(), closes, rtol=1e-6)


def test_hours_of_shanghai_are_no_ends_of_tokyo(tmp_path):
    """The hours of Shanghai begin where bars of 90 minutes end in Tokyo: the holidays decide."""
    write(tmp_path / "hours.csv", "XSHG", 60, "start", "utc")
    write(tmp_path / "ends.csv", "XTKS", 90, "end", "utc")
    hours = detect(str(tmp_path / "hours.csv"))
    ends = detect(str(tmp_path / "ends.csv"))
    assert (hours.calendar, hours.bar_minutes, hours.source.get("label")) == ("XSHG", 60, None)
    assert (ends.calendar, ends.bar_minutes, ends.source["label"]) == ("XTKS", 90, "end")
