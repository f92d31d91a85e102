import datetime as dt

import numpy as np
import pandas as pd
import pytest

from fintrader.errors import BarError, ConfigError
from fintrader.market.load import load_market
from fintrader.market.synthetic import SyntheticSettings, generate, synthetic_grid
from tests.bars.tables import assert_same_market

SOURCE = SyntheticSettings(num_symbols=3, num_sessions=6, missing=0.01)
SETTINGS = {
    "features": {"names": ["return_1", "volume_30"], "context": ["time_of_day"]},
    "windows": {"embargo_sessions": 0},
}
ZONE = "America/New_York"


@pytest.fixture(scope="module")
def long():
    bars = generate(SOURCE, synthetic_grid(SOURCE, "XNAS", 1)).bars
    columns = {
        "Date": pd.to_datetime(bars.ts, utc=True),
        "Tic": np.array(bars.symbols)[bars.symbol],
    }
    return pd.DataFrame(
        columns
        | {name.title(): getattr(bars, name) for name in ("open", "high", "low", "close", "volume")}
    )


@pytest.fixture(scope="module")
def expected(long):
    return load_market(long, **SETTINGS)


def _wide(long):
    return long.pivot(index="Date", columns="Tic")


def _naive(long):
    return long.assign(Date=long["Date"].dt.tz_convert(ZONE).dt.tz_localize(None))


def _days(long, zone):
    day = long["Date"].dt.tz_convert(ZONE).dt.normalize()
    rules = {"Open": "first", "High": "max", "Low": "min", "Close": "last", "Volume": "sum"}
    whole = long.assign(Date=day if zone else day.dt.tz_localize(None))
    return whole.groupby(["Date", "Tic"], as_index=False).agg(rules)


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        (lambda long: long.sample(frac=1, random_state=0), {}),
        (
            lambda long: long.rename(columns=str.lower).rename(
                columns={"date": "timestamp", "tic": "ticker"}
            ),
            {},
        ),
        (lambda long: long.set_index(["Tic", "Date"]), {}),
        (lambda long: long.set_index(["Date", "Tic"]).rename_axis([None, None]), {}),
        (lambda long: long.set_index("Date"), {}),
        (_wide, {}),
        (lambda long: _wide(long).swaplevel(axis=1), {}),
        (lambda long: _wide(long).rename_axis(None), {}),
        (
            lambda long: {
                name: part.drop(columns="Tic").set_index("Date")
                for name, part in long.groupby("Tic")
            },
            {},
        ),
        (lambda long: dict(iter(long.groupby("Tic"))), {}),
        (_naive, {"timezone": ZONE}),
        (
            lambda long: _naive(long).assign(Date=lambda table: table["Date"].astype(str)),
            {"timezone": ZONE},
        ),
        (lambda long: long.assign(Date=long["Date"].astype(str)), {}),
        (lambda long: long.assign(Date=long["Date"] + pd.Timedelta(minutes=1)), {"label": "end"}),
        (
            lambda long: long.rename(columns={"Close": "last"}),
            {"source": {"columns": {"close": "last"}}},
        ),
        (lambda long: long.assign(note="x", rank=1), {}),
    ],
)
def test_every_form_is_the_same_market(form, settings, long, expected):
    market = load_market(form(long), **SETTINGS, **settings)
    assert market.symbols == expected.symbols
    assert_same_market(market, expected)
    assert market.provenance.source.kind == "frames"


def test_it_is_the_market_that_the_same_bars_in_a_file_make(long, expected, tmp_path):
    path = tmp_path / "bars.parquet"
    columns = {"symbol": "Tic", "ts": "Date"} | {
        name: name.title() for name in ("open", "high", "low", "close", "volume")
    }
    long.to_parquet(path)
    filed = load_market(
        path=str(path), source={"kind": "files", "columns": columns}, cache=tmp_path, **SETTINGS
    )
    assert_same_market(filed, expected)


def test_a_markets_bars_are_as_long_as_those_given(long):
    rows = (
        long.assign(Date=long["Date"].dt.floor("5min"))
        .groupby(["Date", "Tic"], as_index=False)
        .last()
    )
    assert load_market(rows, **SETTINGS).bar_minutes == 5
    assert load_market(rows, bar_minutes=30, **SETTINGS).bar_minutes == 30
    shifted = rows.assign(Date=rows["Date"] + pd.Timedelta(minutes=5))
    assert (
        load_market(shifted, label="end", **SETTINGS).num_bars
        == load_market(rows, **SETTINGS).num_bars
    )


@pytest.mark.parametrize("zone", [None, ZONE])
def test_days_are_bars_of_one_session_each(long, zone):
    days = _days(long, zone)
    settings = SETTINGS | {"features": {"names": ["return_1"], "context": []}}
    market = load_market(days, **settings)
    assert (market.num_bars, market.bar_minutes) == (SOURCE.num_sessions, 1440)
    assert market.tradable.all()
    assert market.close[:, 0].tolist() == pytest.approx(
        days.loc[days["Tic"] == market.symbols[0], "Close"].tolist()
    )


def test_extra_columns_become_features(long):
    windows = SETTINGS["windows"]
    market = load_market(
        long.assign(mood=1.0),
        windows=windows,
        features={"names": ["return_1"], "extra": ["mood"], "context": []},
    )
    assert market.feature_names == ("return_1", "mood")
    assert market.provenance.trusted_columns == ("mood",)
    with pytest.raises(BarError, match="column 'mood' is missing"):
        load_market(long, windows=windows, features={"names": ["return_1"], "extra": ["mood"]})


@pytest.mark.parametrize(
    ("extra", "columns"),
    [("volume", {}), ("Close", {}), ("px", {"close": "px"}), ("Close", {"close": "px"})],
)
def test_an_extra_column_may_be_called_like_a_price(extra, columns, long):
    market = load_market(
        long.rename(columns={"Volume": "volume"}).assign(px=long["Close"]),
        windows=SETTINGS["windows"],
        source={"columns": columns},
        features={"names": ["return_1"], "extra": [extra], "context": []},
    )
    assert market.feature_names == ("return_1", extra)


@pytest.mark.parametrize(
    ("form", "settings", "message"),
    [
        (
            lambda t: t.drop(columns="Volume"),
            {},
            "column 'volume' is missing; found Date, Tic, Open, High, Low, Close$",
        ),
        (lambda t: t.drop(columns="Tic"), {}, r"column 'symbol' is missing; .* \{'AAPL': table\}"),
        (lambda t: t.drop(columns="Date"), {}, "column 'time' is missing"),
        (
            lambda t: _wide(t).drop(columns="Volume", level=0),
            {},
            "of S000: column 'volume' is missing",
        ),
        (
            lambda t: _wide(t).rename(columns=lambda name: f"x {name}"),
            {},
            "neither level of its columns holds open",
        ),
        (
            lambda t: {"AAA": t[["Date", "Open"]]},
            {},
            "of AAA: column 'high' is missing; found Date, Open$",
        ),
        (_naive, {}, "carry no time zone; name theirs, timezone="),
        (lambda t: t.iloc[:0], {}, "holds no bar"),
        (lambda t: t.assign(time=t["Date"]), {}, "columns Date, time could all be the time"),
        (
            lambda t: t.assign(Close=t["Close"].where(t.index != 5)),
            {},
            "row 5, column 'close': the cell is empty",
        ),
        (lambda t: t.assign(Close="a lot"), {}, "column 'close': 'a lot' is no number"),
        (
            lambda t: t.assign(Date=t["Date"] + pd.Timedelta(minutes=1)),
            {},
            "set data.source.label to end",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_named(form, settings, message, long):
    with pytest.raises(BarError, match=message):
        load_market(form(long), **SETTINGS, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timezone": "Mars"}, "not a time zone"),
        ({"label": "middle"}, "source.label"),
        ({"source": {"kind": "synthetic"}}, "takes only how files are read"),
        ({"bar_minuts": 5}, "did you mean 'bar_minutes'"),
    ],
)
def test_a_wrong_setting_is_named(settings, message, long):
    with pytest.raises(ConfigError, match=message):
        load_market(long, **settings)


def test_a_file_of_bars_is_no_configuration(tmp_path):
    (tmp_path / "bars.csv").write_text("date,close\n2020-01-02,5\n")
    with pytest.raises(ConfigError, match=r"`fintrader init .*bars.csv` writes one"):
        load_market(tmp_path / "bars.csv")


@pytest.mark.parametrize("sessions", [577, 2000])
def test_a_synthetic_market_is_as_long_as_asked_for(sessions):
    settings = SyntheticSettings(num_sessions=sessions)
    grid = synthetic_grid(settings, "XNAS", 390, dt.date(2016, 1, 4))
    assert grid.num_sessions == sessions
