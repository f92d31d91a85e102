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


def cut(calendar, minutes, first=FIRST, last=LAST):
    """Starts and ends of bars that begin anew when trading does."""
    trading = session_grid(calendar, first, last).exchange_minutes
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
    with pytest.raises(BarError, match=f"set data.source.label to {label}"):
        build(tmp_path / "bars.csv", "XNYS", minutes, label=wrong)
    market = build(tmp_path / "bars.csv", "XNYS", minutes, label=label)
    np.testing.assert_allclose(market.close.numpy(), closes, rtol=1e-6)


def test_hours_of_shanghai_are_no_ends_of_tokyo(tmp_path):
    """The hours of Shanghai begin where bars of 90 minutes end in Tokyo: the holidays decide."""
    write(tmp_path / "hours.csv", "XSHG", 60, "start", "utc")
    write(tmp_path / "ends.csv", "XTKS", 90, "end", "utc")
    hours = detect(str(tmp_path / "hours.csv"))
    ends = detect(str(tmp_path / "ends.csv"))
    assert (hours.calendar, hours.bar_minutes, hours.source.get("label")) == ("XSHG", 60, None)
    assert (ends.calendar, ends.bar_minutes, ends.source["label"]) == ("XTKS", 90, "end")


@pytest.mark.parametrize(
    ("calendar", "first", "last"),
    [("XTKS", "2021-02-01", "2021-03-31"), ("XSHG", "2021-05-06", "2021-09-30")],
)
def test_full_hours_of_asia_are_no_ends_of_sydney(calendar, first, last, tmp_path):
    """Read so, each close would appear one hour early."""
    days = map(dt.date.fromisoformat, (first, last))
    hours = pd.DatetimeIndex(session_grid(calendar, *days, 60, "clock").minutes, tz="UTC")
    write_bars(tmp_path / "bars.csv", hours)
    found = detect(str(tmp_path / "bars.csv"))
    assert (found.calendar, found.bar_minutes, found.hours) == (calendar, 60, "clock")
    assert "label" not in found.source


@pytest.mark.slow
@pytest.mark.parametrize("calendar", ["XPAR", "XSTO", "XSWX", "XWBO"])
def test_ends_of_rarer_exchanges_keep_their_holidays(calendar, tmp_path):
    _, ends = cut(calendar, 60, dt.date(2021, 10, 1), dt.date(2022, 6, 30))
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(ends, tz="UTC"))
    found = detect(str(tmp_path / "bars.csv"))
    assert (found.calendar, found.source["label"]) == (calendar, "end")


def write_bars(path, ts, symbol="AAA", **more):
    close = 100 * np.exp(
        np.random.default_rng([len(ts), *symbol.encode()]).normal(0, 0.003, len(ts)).cumsum()
    )
    prices = {"open": close, "high": 1.001 * close, "low": 0.999 * close, "close": close}
    table = pd.DataFrame({"ts": ts, "symbol": symbol, **prices, "volume": 1000.0})
    table.to_csv(path, index=False, **more)


WINDOWS = {
    "train": ["2021-03-01", "2021-03-31"],
    "validation": ["2021-04-01", "2021-04-15"],
    "test": ["2021-04-16", "2021-04-30"],
}


SHARES = {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0}


def build(path, calendar, minutes, hours="regular", label="start", windows=WINDOWS, **more):
    source = {"kind": "files", "columns": {"symbol": "symbol"}, "bar_minutes": minutes}
    source["label"] = label
    data = {"path": str(path), "calendar": calendar, "bar_minutes": minutes, "source": source}
    data |= {"hours": hours, "windows": windows, **more}
    return load_market(data, cache=path.parent / "tensors")


@pytest.mark.parametrize("missing", ["all", "some"])
def test_a_bar_after_the_close_of_extended_hours_is_no_end(missing, tmp_path):
    """Four hours each from 4:00 on: 16:00 is the close, and the bar that begins there."""
    grid = session_grid("XNYS", FIRST, LAST, 240, "extended")
    ts = pd.DatetimeIndex(grid.minutes, tz="UTC")
    number = np.arange(len(ts)) % 4
    gone = (number == 0) & (missing == "all") | (number == 0) & (np.arange(len(ts)) % 12 == 0)
    write_bars(tmp_path / "bars.csv", ts[~gone])
    assert build(tmp_path / "bars.csv", "XNYS", 240, "extended").bar_minutes == 240


@pytest.mark.parametrize(("calendar", "minutes"), [("23/5", 240), ("CMES", 120)])
def test_symbols_that_do_not_trade_at_night_are_not_early(calendar, minutes, tmp_path):
    """The bar before the open is the last one of the session before."""
    grid = session_grid(calendar, FIRST, LAST, minutes)
    place = np.arange(grid.num_bars) - grid.first_bar[grid.session]
    ts = pd.DatetimeIndex(grid.minutes, tz="UTC")
    is_last = np.append(np.diff(grid.session) > 0, True)
    for number in range(4):
        kept = (place > 2) & (~is_last | (grid.session % 2 == number % 2))
        mode = {"mode": "a", "header": False} if number else {}
        write_bars(tmp_path / "bars.csv", ts[kept], f"S{number}", **mode)
    assert build(tmp_path / "bars.csv", calendar, minutes).bar_minutes == minutes


def test_a_trade_a_day_and_the_closing_cross_are_no_long_bars(tmp_path):
    """Few minutes of a thin symbol say nothing about the label of all."""
    grid = session_grid("XNYS", FIRST, LAST)
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(grid.minutes, tz="UTC"))
    seen = np.sort(np.concatenate([grid.open[-8:] + 97 * MINUTE, grid.close[-8:]]))
    thin = pd.DatetimeIndex(seen, tz="UTC")
    write_bars(tmp_path / "bars.csv", thin, "THIN", mode="a", header=False)
    assert build(tmp_path / "bars.csv", "XNYS", 1).num_assets == 2


@pytest.mark.parametrize("minutes", [25, 45, 75, 105])
def test_missing_bars_do_not_shorten_the_others(minutes, tmp_path):
    """With the divisor of 15 minutes, each close would appear an hour early."""
    starts, _ = cut("XNYS", minutes)
    kept = np.random.default_rng(minutes).random(len(starts)) > 0.4
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(starts[kept], tz="UTC"))
    assert load_market(tmp_path / "bars.csv", cache=tmp_path / "tensors").bar_minutes == minutes


@pytest.mark.parametrize(
    ("calendar", "lengths"),
    [
        ("XNYS", (60, 120)),
        ("XNYS", (75, 150)),
        ("XNYS", (60, 90)),
        ("XNYS", (60, 390)),
        ("XHKG", (60, 120)),
    ],
)
def test_bars_of_two_lengths_are_refused(calendar, lengths, tmp_path):
    middle = dt.date(2021, 11, 30)
    early, _ = cut(calendar, lengths[0], FIRST, middle)
    late, _ = cut(calendar, lengths[1], middle + dt.timedelta(1), dt.date(2021, 12, 30))
    ts = pd.DatetimeIndex(np.concatenate([early, late]), tz="UTC")
    write_bars(tmp_path / "bars.csv", ts)
    why = f"{max(lengths)} minutes apart, elsewhere {min(lengths)}"
    with pytest.raises(BarError, match=f"bar_length of AAA.*{why}"):
        build(tmp_path / "bars.csv", calendar, min(lengths), windows=SHARES)
    kept = ts[ts < pd.Timestamp("2021-12-01", tz="UTC")]
    write_bars(tmp_path / "bars.csv", kept)
    market = load_market(tmp_path / "bars.csv", cache=tmp_path / "tensors")
    assert market.bar_minutes == lengths[0]


@pytest.mark.parametrize(("calendar", "minutes"), [("XSHG", 120), ("XNYS", 390)])
def test_a_symbol_of_longer_bars_is_refused(calendar, minutes, tmp_path):
    """One bar in each part of a session has no next bar to show its length."""
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(cut(calendar, 60)[0], tz="UTC"))
    starts = pd.DatetimeIndex(cut(calendar, minutes)[0], tz="UTC")
    write_bars(tmp_path / "bars.csv", starts, "LONG", mode="a", header=False)
    with pytest.raises(BarError, match=rf"the bars of LONG.*bar_minutes to {minutes}"):
        build(tmp_path / "bars.csv", calendar, 60)


@pytest.mark.parametrize(
    ("calendar", "minutes", "hours", "missing", "last"),
    [
        ("XNYS", 120, "regular", 0.0, dt.date(2021, 3, 8)),
        ("XNYS", 120, "regular", 0.4, LAST),
        ("XHKG", 75, "regular", 0.2, LAST),
        ("XSHG", 60, "regular", 0.0, LAST),
        ("XNYS", 240, "extended", 0.0, LAST),
        ("XNYS", 30, "regular", 0.4, LAST),
        ("CMES", 60, "regular", 0.0, LAST),
        ("FX", 240, "regular", 0.0, LAST),
        ("23/5", 60, "regular", 0.2, LAST),
    ],
)
def test_starts_are_no_ends(calendar, minutes, hours, missing, last, tmp_path):
    """Read as ends, each close would appear one bar early."""
    grid = session_grid(calendar, FIRST, last, minutes, hours)
    is_traded = np.ones(grid.num_bars, dtype=bool)
    if calendar == "CMES":  # an hour of rest, which the calendar does not know
        is_traded = grid.minutes + minutes * MINUTE < grid.close[grid.session]
    for seed in range(4):
        kept = is_traded & (np.random.default_rng(seed).random(grid.num_bars) >= missing)
        ts = pd.DatetimeIndex(grid.minutes[kept], tz="UTC")
        mode = {"mode": "a", "header": False} if seed else {}
        write_bars(tmp_path / "bars.csv", ts, f"S{seed}", **mode)
    with pytest.raises(BarError, match=r"set data\.source\.label to start"):
        build(tmp_path / "bars.csv", calendar, minutes, hours, "end", SHARES)
    assert build(tmp_path / "bars.csv", calendar, minutes, hours, "start", SHARES).num_assets == 4


def test_ends_one_second_late_keep_the_last_bar(tmp_path):
    """The last bar of 75 minutes has 15."""
    _, ends = cut("XNYS", 75)
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(ends + 1_000_000_000, tz="UTC"))
    market = build(tmp_path / "bars.csv", "XNYS", 75, label="end")
    close = pd.read_csv(tmp_path / "bars.csv").close
    np.testing.assert_allclose(market.close.numpy()[:, 0], close, rtol=1e-6)


@pytest.mark.parametrize("rows", ["all", "one symbol", "a month"])
def test_ends_shorter_than_declared_are_refused(rows, tmp_path):
    """They would begin, and their closes appear, up to one declared bar too early."""
    _, long = cut("XNYS", 130)
    _, short = cut("XNYS", 65)
    april = pd.Timestamp("2021-04-01").value
    if rows == "a month":
        short = np.concatenate([long[long < april], short[short > april]])
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(short, tz="UTC"), "SHORT")
    if rows == "one symbol":
        ts = pd.DatetimeIndex(long, tz="UTC")
        write_bars(tmp_path / "bars.csv", ts, "LONG", mode="a", header=False)
    with pytest.raises(BarError, match=r"the bars of SHORT stand 65 minutes apart.*one length"):
        build(tmp_path / "bars.csv", "XNYS", 130, label="end")
    if rows == "all":
        assert build(tmp_path / "bars.csv", "XNYS", 65, label="end").num_bars == len(short)


@pytest.mark.parametrize(
    ("calendar", "minutes", "hole"),
    [
        ("XSHG", 120, lambda number, random: number % 8 == 7),
        ("XTKS", 120, lambda number, random: random < 0.5),
        ("XHKG", 120, lambda number, random: random < 0.4),
        ("XNYS", 195, lambda number, random: random < 0.9),
    ],
)
def test_missing_bars_are_no_longer_ones(calendar, minutes, hole, tmp_path):
    starts, _ = cut(calendar, minutes, last=dt.date(2021, 12, 30))
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(starts, tz="UTC"), "WHOLE")
    number = np.arange(len(starts))
    kept = ~hole(number, np.random.default_rng(3).random(len(starts)))
    ts = pd.DatetimeIndex(starts[kept], tz="UTC")
    write_bars(tmp_path / "bars.csv", ts, "THIN", mode="a", header=False)
    assert build(tmp_path / "bars.csv", calendar, minutes, windows=SHARES).num_assets == 2


def test_opening_prints_and_missing_last_bars_keep_their_label(tmp_path):
    """The print at the open stands one bar early, but trades at a single price."""
    grid = session_grid("XNYS", FIRST, dt.date(2021, 12, 30))
    _, ends = cut("XNYS", 60, last=dt.date(2021, 12, 30))
    is_last = np.isin(ends, grid.close)
    ends = ends[~is_last | (np.random.default_rng(1).random(len(ends)) > 0.2)]
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(ends, tz="UTC"))
    table = pd.read_csv(tmp_path / "bars.csv", parse_dates=["ts"])
    prints = table.iloc[: len(grid.open)].assign(ts=pd.DatetimeIndex(grid.open, tz="UTC"))
    prints = prints.assign(**dict.fromkeys(("open", "high", "low"), prints.close))
    pd.concat([table, prints]).sort_values("ts").to_csv(tmp_path / "bars.csv", index=False)
    market = build(tmp_path / "bars.csv", "XNYS", 60, label="end", windows=SHARES)
    assert len(market.session_starts) == grid.num_sessions


def test_one_stretch_of_sessions_does_not_refute_a_label(tmp_path):
    """A bar before the range's begin is no bar before the open of a market that never closes."""
    grid = session_grid("24/7", dt.date(2021, 1, 1), LAST, 240)
    ends = pd.DatetimeIndex(grid.minutes[1:-2], tz="UTC")
    write_bars(tmp_path / "bars.csv", ends)
    data = {"label": "end", "windows": SHARES, "start": "2021-02-01"}
    assert len(build(tmp_path / "bars.csv", "24/7", 240, **data).session_starts) == 89


def test_a_symbol_of_single_bars_has_no_label(tmp_path):
    ends = cut("XNYS", 60)[1]
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(ends, tz="UTC"))
    thin = pd.DatetimeIndex(ends[3 : 3 + 21 : 7], tz="UTC")
    write_bars(tmp_path / "bars.csv", thin, "THIN", mode="a", header=False)
    assert build(tmp_path / "bars.csv", "XNYS", 60, label="end").num_assets == 2


def test_days_of_a_first_and_a_last_bar_are_no_longer_ones(tmp_path):
    """A symbol may trade every minute in some weeks, and only at the open and the close in others."""
    grid = session_grid("XNYS", FIRST, LAST)
    minutes = grid.exchange_minutes
    write_bars(tmp_path / "bars.csv", pd.DatetimeIndex(minutes, tz="UTC"))
    quiet = slice(14, 24)
    is_quiet = (minutes >= grid.open[quiet][0]) & (minutes < grid.close[quiet][-1])
    is_edge = np.isin(minutes, grid.open) | np.isin(minutes, grid.close - MINUTE)
    ts = pd.DatetimeIndex(minutes[~is_quiet | is_edge], tz="UTC")
    write_bars(tmp_path / "bars.csv", ts, "THIN", mode="a", header=False)
    assert build(tmp_path / "bars.csv", "XNYS", 1, windows=SHARES).num_assets == 2
