import datetime as dt
import functools

import numpy as np
import pandas as pd
import pytest
import torch

from fintrader import EnvSettings
from fintrader.backtesting.lookahead import lookahead
from fintrader.bars.calendar import find_exchange_timezone, session_grid, to_wall
from fintrader.bars.detect import detect
from fintrader.bars.sources.layout import FilesSettings
from fintrader.errors import BarError, ConfigError, DataError
from fintrader.market.bar_source import open_source
from fintrader.market.build import build_market
from fintrader.market.config_path import choose_config_path
from fintrader.market.inspect import examine
from fintrader.market.load import load_market
from fintrader.market.settings import read_settings
from fintrader.market.starter import write_config
from fintrader.market.synthetic import SyntheticSettings, generate, synthetic_grid
from tests.bars.tables import assert_same_market
from tests.quick import mostly_slow, slow_but

SOURCE = SyntheticSettings(num_symbols=3, num_sessions=6, missing=0.01)
SETTINGS = {
    "features": {"names": ["return_1", "volume_30"], "context": ["time_of_day"]},
    "windows": {"embargo_sessions": 0},
}
WINDOWS = {"windows": SETTINGS["windows"]}
ZONE = "America/New_York"
DAYS = dt.date(2021, 1, 4), dt.date(2021, 6, 30)


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
    slow_but(
        0,
        2,
        5,
        8,
        10,
        every=[
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
            (
                lambda long: long.assign(Date=long["Date"] + pd.Timedelta(minutes=1)),
                {"label": "end"},
            ),
            (
                lambda long: long.rename(columns={"Close": "last"}),
                {"source": {"columns": {"close": "last"}}},
            ),
            (lambda long: long.assign(note="x", rank=1), {}),
        ],
    ),
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
            "column 'volume' is missing; found Date, Tic, Open, High, Low, Close; without",
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
        (_naive, {}, "have no time zone; name it, like timezone="),
        (lambda t: t.iloc[:0], {}, "holds no bar"),
        (lambda t: t.assign(time=t["Date"]), {}, "columns Date, time could all be the time"),
        (
            lambda t: t.assign(Close=t["Close"].where(t.index != 5)),
            {},
            "row 5, column 'close': the cell is empty; fill it or remove the row",
        ),
        (
            lambda t: t.assign(Close=t["Close"].where(~t.index.isin([5, 8, 9]))),
            {},
            "row 5, column 'close': the cell is empty, as in 2 more rows; fill it or remove",
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


def test_without_volumes_the_remedy_works(long):
    bars = long.drop(columns="Volume")
    market = load_market(bars, source={"columns": {"volume": None}}, **SETTINGS)
    assert float(market.volume.sum()) == 0.0


# --- files, days in words, other libraries --------------------------------------------------------

DAILY = {"windows": {"embargo_sessions": 0}, "features": ["return_1"]}
FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d")


@pytest.fixture(scope="module")
def days():
    random = np.random.default_rng(0)
    parts = []
    for symbol in ("AAA", "BBB"):
        dates = pd.DatetimeIndex(session_grid("XNAS", DAYS[0], DAYS[1], 1440).dates)
        close = (100 * np.exp(np.cumsum(random.normal(0, 0.01, len(dates))))).round(4)
        prices = {"Open": close, "High": close + 1, "Low": close - 1, "Close": close}
        parts.append(pd.DataFrame({"Date": dates, "Symbol": symbol, **prices, "Volume": 1e6}))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("form", mostly_slow("%Y-%m-%d", "%d.%m.%Y", every=FORMATS))
@pytest.mark.parametrize("settings", slow_but(0, every=[{}, {"timezone": ZONE}]))
def test_days_in_words_are_days(form, settings, days):
    expected = load_market(days, **DAILY)
    worded = days.assign(Date=days["Date"].dt.strftime(form))
    market = load_market(worded, **DAILY, **settings)
    assert market.bar_minutes == expected.bar_minutes == 1440
    assert_same_market(market, expected)
    assert any("guessed calendar XNAS" in guess for guess in market.guesses)
    assert "guessed calendar XNAS" in repr(market).splitlines()[4]


@pytest.mark.parametrize(
    "place", mostly_slow("my.csv", every=["my.csv", "my.parquet", "folder", "m*"])
)
def test_files_of_bars_are_read_as_init_reads_them(place, days, tmp_path):
    worded = days.assign(Date=days["Date"].dt.strftime("%d.%m.%Y"))
    if place == "my.parquet":
        days.to_parquet(tmp_path / place)
    elif place == "folder":
        (tmp_path / place).mkdir()
        for symbol, part in worded.groupby("Symbol"):
            part.drop(columns="Symbol").to_csv(tmp_path / place / f"{symbol}.csv", index=False)
    else:
        worded.to_csv(tmp_path / "my.csv", index=False)
    market = load_market(tmp_path / place, cache=tmp_path / "cache", **DAILY)
    expected = load_market(days, **DAILY)
    assert market.symbols == ("AAA", "BBB")
    assert market.close.tolist() == expected.close.tolist()
    assert any(guess.startswith("guessed calendar") for guess in market.guesses)
    config = choose_config_path(str(tmp_path / place), tmp_path / "init.yaml")
    write_config(detect(str(tmp_path / place)), config)
    written = load_market(config, cache=tmp_path / "cache", **DAILY)
    assert written.close.tolist() == market.close.tolist()
    assert written.bar_minutes == market.bar_minutes


@pytest.mark.parametrize(
    ("dates", "calendar"),
    slow_but(
        1,
        every=[
            (pd.bdate_range("2022-01-03", periods=300), "24/5"),
            (pd.date_range("2022-01-01", periods=300), "24/7"),
            (pd.date_range("2012-01-06", periods=300, freq="W-FRI"), None),
        ],
    ),
)
def test_days_of_any_type_are_one_market(dates, calendar):
    table = pd.DataFrame({"date": dates, "ticker": "AAA", "volume": 1e6})
    table = table.assign(**dict.fromkeys(("open", "high", "low", "close"), np.arange(300) + 50.5))
    for form in (dates, dates.strftime("%Y-%m-%d"), dates.date):
        given = table.assign(date=form)
        if calendar is None:
            with pytest.raises(BarError, match=r"^the DataFrame: bars stand 7 days apart"):
                load_market(given, **DAILY)
        else:
            market = load_market(given, **DAILY)
            assert len(market) == 300
            assert any(f"calendar {calendar}" in guess for guess in market.guesses)


@pytest.mark.slow
def test_an_index_that_was_written_to_a_file_is_the_time(days, tmp_path):
    one = days[days["Symbol"] == "AAA"].drop(columns="Symbol").set_index("Date")
    one.rename_axis(None).to_csv(tmp_path / "one.csv")
    market = load_market({"AAA": pd.read_csv(tmp_path / "one.csv")}, **DAILY)
    assert len(market) == len(one)


def test_an_index_without_names_is_one_clear_error(days):
    levels = pd.MultiIndex.from_arrays([np.arange(len(days)), days["Symbol"], days["Date"].dt.day])
    with pytest.raises(BarError, match="index of 3 levels cannot become columns"):
        load_market(days.drop(columns="Symbol").set_index(levels.set_names([None] * 3)), **DAILY)


def test_a_file_that_makes_no_market_says_why(tmp_path):
    with pytest.raises(DataError, match="no bar file there"):
        load_market(tmp_path / "none.csv")
    (tmp_path / "bars.csv").write_text("date,open,high,low,close\n2020-01-02,5,5,5,5\n")
    with pytest.raises(DataError, match="holds no session"):
        load_market(tmp_path / "bars.csv", cache=tmp_path)
    with pytest.raises(ConfigError, match="no market can be made of Series"):
        load_market(pd.Series([1.0]))


class Foreign:
    """A table of another library, such as polars or pyarrow."""

    def __init__(self, table):
        self.table = table

    def to_pandas(self):
        return self.table


@pytest.mark.slow
def test_tables_of_other_libraries_are_taken(days):
    expected = load_market(days, **DAILY)
    parts = {symbol: Foreign(part) for symbol, part in days.groupby("Symbol")}
    assert_same_market(load_market(Foreign(days), **DAILY), expected)
    assert_same_market(load_market(parts, **DAILY), expected)
    polars = pytest.importorskip("polars")
    assert_same_market(load_market(polars.from_pandas(days), **DAILY), expected)


# --- own features ---------------------------------------------------------------------------------


def weekday(bars):
    return bars.time.weekday


def change(bars):
    return bars.to_pandas()["close"].pct_change()


def ahead(bars):
    return np.append(np.diff(bars.close), 0.0)


def centred(bars):
    return pd.Series(bars.close).rolling(5, center=True).mean()


def standardised(bars):
    return (bars.close - bars.close.mean()) / bars.close.std()


def test_features_are_a_list_of_names_and_functions(days):
    raw = {"names": ["return_1", weekday, change], "scaling": "none"}
    market = load_market(days, features=raw, windows=DAILY["windows"])
    assert market.feature_names == ("return_1", f"{__name__}:weekday", f"{__name__}:change")
    own = market.features[1:, 0].numpy()
    dates = pd.DatetimeIndex(market.timestamps()[1:], tz="UTC").tz_convert(ZONE)
    assert own[:, 1].tolist() == dates.weekday.tolist()
    assert own[:, 2] == pytest.approx(np.expm1(own[:, 0]), abs=1e-5)
    listed = load_market(days, features=["return_1", lambda bars: bars.volume], **WINDOWS)
    assert listed.feature_names[1].startswith(f"{__name__}:test_features_are")
    assert load_market(days, features="return_5", **WINDOWS).feature_names == ("return_5",)


def of_three(bars):
    closes = pd.Series(bars.close)
    return closes.groupby(np.arange(len(bars)) // 3).transform("last")


@pytest.mark.parametrize("own", slow_but(0, 1, every=[ahead, centred, standardised, of_three]))
def test_a_feature_that_looks_ahead_is_refused(own, days):
    for rows in range(3):  # wherever blocks of bars end
        table = days.groupby("Symbol").head(len(days) // days["Symbol"].nunique() - rows)
        with pytest.raises(DataError, match=rf"{own.__name__} of AAA looks ahead: .* up to t"):
            load_market(table, features=[own], **WINDOWS)


def test_a_feature_that_writes_to_its_bars_changes_no_price(days):
    def spoil(bars):
        bars.close[:] = 1.0
        return bars.close

    names = ["return_1", spoil, "return_5"]
    plain = load_market(days, features=["return_1", "return_5"], **WINDOWS)
    market = load_market(days, features=names, **WINDOWS)
    assert torch.equal(market.close, plain.close)
    assert torch.equal(market.features[..., [0, 2]], plain.features)


def test_own_functions_of_any_kind_are_read_anew_when_their_file_changes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_kinds.py"
    source = {"kind": "synthetic", "num_symbols": 2, "num_sessions": 20}
    names = [f"own_kinds:{name}" for name in ("partial", "cached", "wrapped")]
    features = {"names": names, "context": [], "scaling": "none"}
    for value in (1.0, 2.25):
        file.write_text(
            "import functools, numpy, torch\n"
            f"def full(bars, by={value}): return numpy.full(len(bars), by)\n"
            "partial = functools.partial(full)\ncached = functools.lru_cache(full)\n"
            "wrapped = torch.no_grad()(full)\n"
        )
        values = {"source": source, "bar_minutes": 390, "features": features}
        assert (load_market(values, cache=tmp_path / "cache").features[..., :3] == value).all()


def test_an_own_feature_is_read_anew_when_a_module_that_it_imports_changes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "own_parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "signals.py").write_text(
        "import numpy, torch\nfrom . import levels\n"
        "def level(bars): return numpy.full(len(bars), levels.LEVEL)\n"
    )
    source = {"kind": "synthetic", "num_symbols": 2, "num_sessions": 20}
    features = {"names": ["own_parts.signals:level"], "context": [], "scaling": "none"}
    for value in (1.0, 2.25):
        (package / "levels.py").write_text(f"from own_parts import signals\nLEVEL = {value}\n")
        values = {"source": source, "bar_minutes": 390, "features": features}
        assert (load_market(values, cache=tmp_path / "cache").features[..., 0] == value).all()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([lambda bars: bars.close.pct_change()], r"no attribute 'pct_change'; .*to_pandas\(\)"),
        ([lambda bars: bars.close[1:]], r"must return \(\d+,\)"),
        ([lambda bars: "x"], "could not convert string"),
        ([weekday, weekday], "two features are called"),
        (["alpha"], "a column of the bars goes into features.extra"),
    ],
)
def test_a_feature_that_cannot_be_used_is_named(names, message, days):
    with pytest.raises((DataError, ConfigError), match=message):
        load_market(days, features=names, **WINDOWS)


def test_columns_of_the_table_may_be_among_the_names(days):
    market = load_market(days.assign(alpha=2.0), features=["return_1", "alpha"], **WINDOWS)
    assert market.feature_names == ("return_1", "alpha")
    assert market.provenance.trusted_columns == ("alpha",)
    assert "computed by others: alpha" in repr(market)


def test_a_configuration_takes_own_functions_and_keeps_nothing_of_them(tmp_path):
    config = {"source": SOURCE, **WINDOWS}
    market = load_market(config, features=["return_1", weekday], cache=tmp_path)
    assert market.feature_names[:2] == ("return_1", f"{__name__}:weekday")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [577, 2000])
def test_a_synthetic_market_is_as_long_as_asked_for(sessions):
    settings = SyntheticSettings(num_sessions=sessions)
    grid = synthetic_grid(settings, "XNAS", 390, dt.date(2016, 1, 4))
    assert grid.num_sessions == sessions


def test_a_feature_filled_from_behind_is_refused(days):
    def filled(bars):
        return pd.Series(bars.close).pct_change(10).bfill()

    with pytest.raises(DataError, match="filled of AAA looks ahead"):
        load_market(days, features=[filled], **WINDOWS)


@pytest.mark.parametrize("form", [lambda one: one, lambda one: one.tolist()])
def test_a_feature_that_reads_data_of_its_own_is_trusted_by_name(form, days):
    known = form(days.groupby("Symbol")["Close"].shift(-1).to_numpy())

    def told(bars):
        return np.array(known[: len(bars)])

    def own(bars, window=5):
        return pd.Series(bars.close).rolling(window).mean()

    tables = {"AAA": np.array(known), "BBB": np.array(known)}

    def by_symbol(bars):
        return tables[bars.symbol][: len(bars)]

    def scaled(bars):
        return log_of_two * bars.close

    log_of_two = np.log(2)
    given = functools.partial(lambda known, bars: np.array(known[: len(bars)]), known)
    features = [told, by_symbol, given, own, scaled]
    market = load_market(days, features=features, **WINDOWS)
    assert market.provenance.trusted_columns == market.feature_names[:3]
    assert "told" in repr(market)


def test_a_feature_that_keeps_what_it_made_of_all_bars_is_refused(days):
    kept = {}

    def memoised(bars):
        return kept.setdefault(bars.symbol, np.append(np.diff(bars.close), 0.0))

    with pytest.raises(DataError, match=r"returned shape .* it must return"):
        load_market(days, features=[memoised], **WINDOWS)


@pytest.mark.parametrize(
    ("names", "message"),
    slow_but(
        0,
        every=[
            (["close"], "'close' is no feature by itself"),
            (["Close"], "'Close' is no feature by itself"),
            ([["return_1"]], "expected text"),
            ({"mom": change}, "functions as a list"),
        ],
    ),
)
def test_names_that_are_none_are_answered(names, message, days):
    with pytest.raises(ConfigError, match=message):
        load_market(days, features=names, **WINDOWS)
    one = load_market(days, features={"names": "return_1"}, **WINDOWS)
    assert one.feature_names == ("return_1",)


def test_a_function_has_no_place_in_a_cache(tmp_path):
    settings = read_settings({"source": SOURCE, **WINDOWS, "features": {"names": [change]}}, {})
    for use in (
        lambda: build_market(settings, cache=tmp_path),
        lambda: lookahead(settings, EnvSettings()),
    ):
        with pytest.raises(ConfigError, match="give its name, 'module:name'"):
            use()


@pytest.mark.parametrize("value", [np.nan, np.inf, 3.0])
def test_a_feature_that_says_nothing_is_named(value, days, caplog):
    def silent(bars):
        return np.full(len(bars.close), value)

    load_market(days, features=["return_1", silent], **WINDOWS)
    warned = [line for line in caplog.messages if "without any variation" in line]
    assert len(warned) == 1
    assert warned[0].endswith("silent")


def test_settings_and_columns_of_a_file_are_taken_as_those_of_a_table(days, tmp_path):
    days.assign(mood=1.0).to_csv(tmp_path / "my.csv", index=False)
    chosen = {**WINDOWS, "features": ["return_1", "mood"], "cache": tmp_path / "cache"}
    market = load_market(tmp_path / "my.csv", source=FilesSettings(delimiter=","), **chosen)
    assert market.feature_names == ("return_1", "mood")
    with pytest.raises(ConfigError, match="'mud' is no feature"):
        load_market(tmp_path / "my.csv", **{**chosen, "features": ["mud"]})


def test_bars_of_full_hours_are_built_as_a_configuration_of_init_builds_them(tmp_path):
    days = session_grid("XNAS", *DAYS).dates
    times = pd.DatetimeIndex(
        [day + np.timedelta64(hour, "h") for day in days for hour in range(9, 16)]
    )
    price = 100 + np.arange(len(times)) % 7 / 4
    table = pd.DataFrame({"ts": times, "volume": 1500 + np.arange(len(times)) * 37 % 90})
    table = table.assign(**dict.fromkeys(("open", "high", "low", "close"), price))
    table.to_csv(tmp_path / "AAA.csv", index=False)
    market = load_market(tmp_path / "AAA.csv", cache=tmp_path / "cache", calendar="XNAS", **WINDOWS)
    assert (market.num_bars, market.bar_minutes) == (len(times), 60)


def test_dates_that_end_with_the_year_carry_no_zone(days):
    worded = days.assign(Date=days["Date"].dt.strftime("%d-%m-%Y"))
    market = load_market(worded, **DAILY)
    assert market.close.tolist() == load_market(days, **DAILY).close.tolist()


def test_ends_of_bars_a_millisecond_early_are_ends(long, expected):
    early = long.assign(Date=long["Date"] + pd.Timedelta(minutes=1, milliseconds=-1))
    assert_same_market(load_market(early, label="end", **SETTINGS), expected)


def _hours(calendar, label, sessions=40):
    """Bars of an hour of two symbols, as vendors write them, by the exchange's clock: the last one
    before a close or a break may be shorter. Also the grid's bar and the close of each."""
    grid = session_grid(calendar, dt.date(2021, 3, 1), dt.date(2021, 6, 1), 60)
    grid = grid.cut(0, sessions - 1)
    stamps = grid.minutes if label == "start" else grid.ends
    zone = find_exchange_timezone(calendar)
    random = np.random.default_rng(3)
    tables = []
    for name in ("AAA", "BBB"):
        close = 100 * np.exp(random.normal(0, 0.005, grid.num_bars).cumsum())
        prices = dict.fromkeys(("open", "high", "low", "close"), close.round(4))
        volume = random.integers(1000, 9000, grid.num_bars)
        ts = to_wall(stamps, zone)
        tables.append(pd.DataFrame({"ts": ts, "symbol": name, **prices, "volume": volume}))
    return pd.concat(tables), grid


@pytest.mark.parametrize("label", ["start", "end"])
@pytest.mark.parametrize("calendar", ["XNAS", "XTKS", "XHKG", "XSHG"])
def test_short_last_hours_are_bars_of_their_own(calendar, label, tmp_path):
    table, grid = _hours(calendar, label)
    zone = find_exchange_timezone(calendar)
    told = {"calendar": calendar, **WINDOWS}
    source = {"kind": "files", "label": label, "bar_minutes": 60, "timezone": zone}
    source["columns"] = {"symbol": "symbol"}
    table.to_csv(tmp_path / "hours.csv", index=False)
    files = {"path": str(tmp_path / "hours.csv"), "bar_minutes": 60, "source": source, **told}
    length = {"bar_minutes": 60}  # with ends, a short bar before lunch makes steps irregular
    for market in (
        load_market(table, timezone=zone, label=label, source=length, **length, **told),
        load_market(files, cache=tmp_path / "tensors"),
    ):
        assert market.num_bars == grid.num_bars
        for column, name in enumerate(("AAA", "BBB")):
            own = table[table.symbol == name]
            shown = market.close[:, column].numpy()
            np.testing.assert_allclose(shown, own.close.to_numpy(), rtol=1e-6)
            np.testing.assert_allclose(market.volume[:, column].numpy(), own.volume.to_numpy())
    guessed = load_market(table.assign(ts=table.ts.dt.tz_localize(zone)), label=label, **told)
    if (calendar, label) != ("XTKS", "end"):  # there as many steps are half an hour long
        assert torch.equal(guessed.close, market.close)
    found = detect(str(tmp_path / "hours.csv"), known={"timezone": zone})
    assert (found.bar_minutes, found.source.get("label", "start")) == (60, label)
    report = examine(open_source(read_settings(files, {}), None), read_settings(files, {}))
    assert min(share for row in report.coverage for share in row) == 1.0


def test_hours_that_end_within_later_bars_are_refused(tmp_path):
    """Bars of full hours in Tokyo, whose sessions go on at 12:30."""
    grid = session_grid("XTKS", dt.date(2021, 3, 1), dt.date(2021, 6, 1), 60, "clock").cut(0, 39)
    ts = to_wall(grid.minutes, "Asia/Tokyo")
    close = 100 + np.arange(len(ts)) / 100
    prices = dict.fromkeys(("open", "high", "low", "close"), close)
    table = pd.DataFrame({"ts": ts, "symbol": "AAA", **prices, "volume": 100})
    told = {"timezone": "Asia/Tokyo", "calendar": "XTKS", **WINDOWS}
    with pytest.raises(BarError, match=r"ends within a later one.*set data.hours to clock"):
        load_market(table, **told)
    market = load_market(table, hours="clock", **told)
    np.testing.assert_allclose(market.close[:, 0].numpy(), close, rtol=1e-6)


def test_days_of_any_pattern_may_have_a_zone():
    table, _ = _hours("XNAS", "start")
    table = table.groupby("symbol").nth(range(0, 280, 7))
    days = pd.to_datetime(table.ts)
    market = load_market(table.assign(ts=days.dt.strftime("%d %m %Y")), timezone=ZONE, **WINDOWS)
    assert market.num_bars == 40


@pytest.mark.parametrize("pattern", ["%Y%m%d %H%M", "%Y%m%d%H%M%S", "%d/%m/%Y %H:%M"])
def test_times_of_any_pattern_may_have_a_zone(pattern):
    table, grid = _hours("XNAS", "start")
    table["ts"] = pd.to_datetime(table["ts"]).dt.strftime(pattern)
    market = load_market(table, timezone=ZONE, **WINDOWS)
    assert (market.minutes.numpy() == grid.minutes).all()


@pytest.mark.parametrize(("calendar", "minutes"), [("XTKS", 150), ("XSHG", 120)])
def test_bars_of_half_sessions_are_no_minutes(calendar, minutes, tmp_path):
    """A bar of the morning and one of the afternoon: no step lies within a part of the session."""
    grid = session_grid(calendar, dt.date(2021, 3, 1), dt.date(2021, 4, 20), minutes)
    close = (100 + np.arange(grid.num_bars) / 7).round(4)
    prices = dict.fromkeys(("open", "high", "low", "close"), close)
    ts = pd.DatetimeIndex(grid.minutes, tz="UTC")
    table = pd.DataFrame({"ts": ts, "symbol": "AAA", **prices, "volume": 1000.0})
    path = tmp_path / "halves.csv"
    table.to_csv(path, index=False)
    market = load_market(path, cache=tmp_path / "tensors", **WINDOWS)
    assert (market.num_bars, market.bar_minutes) == (grid.num_bars, minutes)
    np.testing.assert_allclose(market.close[:, 0].numpy(), close, rtol=1e-6)
    source = {"kind": "files", "columns": {"symbol": "symbol"}}
    told = {"path": str(path), "source": source, "calendar": calendar, "bar_minutes": 30, **WINDOWS}
    with pytest.raises(BarError, match=f"data.bar_minutes to {minutes}"):
        load_market(told, cache=tmp_path / "other")
    source["bar_minutes"] = minutes
    repaired = load_market({**told, "bar_minutes": minutes}, cache=tmp_path / "other")
    assert torch.equal(repaired.close, market.close)
