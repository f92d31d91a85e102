import datetime as dt
import json
import logging
import re
import zipfile
from pathlib import Path

import exchange_calendars as xc
import numpy as np
import pandas as pd
import pytest
import yaml

from fintrader.bars.calendar import FX, session_grid
from fintrader.bars.detect import describe_detection, detect
from fintrader.bars.sniff import name_pattern
from fintrader.bars.sources.bar_files import fold_warnings, read_files
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.bars.sources.presets import PRESETS
from fintrader.cli import main
from fintrader.config import validate
from fintrader.errors import BarError, ConfigError
from fintrader.market.bar_source import open_slice
from fintrader.market.build import make_market
from fintrader.market.config_path import choose_config_path
from fintrader.market.settings import DataSettings
from fintrader.market.starter import render_yaml, write_config
from fintrader.pipeline.config import RunConfig
from tests.bars.tables import (
    COLUMNS,
    PRICES,
    assert_same_market,
    minute_table,
    stamps_of,
    write_csv,
)
from tests.engines.runs import fintrader
from tests.quick import mostly_slow, slow_but


@pytest.fixture(scope="module")
def bars():
    """Bars of two symbols over a change of clocks: from 2016-03-07 on."""
    table = minute_table(2, 10)
    table["ts"] += pd.Timedelta(days=63)
    return table.round(2)


def utc(table):
    return table.ts.dt.tz_localize("America/New_York").dt.tz_convert("UTC")


def around(table):
    """The same with some trading before the open and after the close."""
    clock = table.ts.dt.strftime("%H:%M")
    early = table[clock < "11:00"].assign(ts=lambda rows: rows.ts - pd.Timedelta("3h"), volume=3)
    late = table[clock >= "15:00"].assign(ts=lambda rows: rows.ts + pd.Timedelta("1h"), volume=3)
    whole = pd.concat([table, early, late]).sort_values(["ticker", "ts"])
    return whole.drop_duplicates(["ticker", "ts"])


def lean(folder, table):
    table = around(table)
    for (ticker, day), rows in table.groupby(["ticker", table.ts.dt.strftime("%Y%m%d")]):
        home = folder / "lean" / ticker.lower()
        home.mkdir(parents=True, exist_ok=True)
        milliseconds = (rows.ts - rows.ts.dt.normalize()) // pd.Timedelta("1ms")
        prices = (rows[PRICES] * 10_000).round().astype(int)
        text = pd.concat([milliseconds, prices, rows.volume], axis=1).to_csv(
            index=False, header=False
        )
        with zipfile.ZipFile(home / f"{day}_trade.zip", "w") as archive:
            archive.writestr(f"{day}_{ticker.lower()}_minute_trade.csv", text)
    return folder / "lean"


def polygon(folder, table):
    table = around(table)
    table = table.assign(window_start=stamps_of(table), transactions=5)
    columns = ["ticker", "volume", "open", "close", "high", "low", "window_start", "transactions"]
    for day, rows in table.groupby(table.ts.dt.strftime("%Y-%m-%d")):
        write_csv(folder / "polygon", rows[columns], f"{day}.csv.gz")
    return folder / "polygon"


def databento(folder, table):
    stamps = utc(table).dt.strftime("%Y-%m-%dT%H:%M:%S.000000000Z")
    table = table.assign(ts_event=stamps, rtype=33, publisher_id=2, instrument_id=7)
    columns = ["ts_event", "rtype", "publisher_id", "instrument_id", *COLUMNS, "symbol"]
    return write_csv(folder, table.rename(columns={"ticker": "symbol"})[columns], "databento.csv")


def by_ticker(folder, table, columns, name="{}.csv", **how):
    """A file for each ticker, called by it."""
    for ticker, rows in table.groupby("ticker"):
        write_csv(folder, rows[columns], name.format(ticker), **how)
    return folder


def firstrate(folder, table):
    columns = ["ts", *COLUMNS]
    name = "{}_full_1min_UNADJ.txt"
    return by_ticker(folder / "firstrate", around(table), columns, name, header=False)


def kibot(folder, table):
    table = table.assign(day=table.ts.dt.strftime("%m/%d/%Y"), clock=table.ts.dt.strftime("%H:%M"))
    columns = ["day", "clock", *COLUMNS]
    return by_ticker(folder / "kibot", table, columns, "{}.txt", header=False)


def alpaca(folder, table):
    table = table.assign(timestamp=utc(table), trade_count=3, vwap=table.close)
    columns = ["symbol", "timestamp", *COLUMNS, "trade_count", "vwap"]
    return write_csv(folder, table.rename(columns={"ticker": "symbol"})[columns], "alpaca.csv")


def yahoo(folder, table):
    table = table.assign(Datetime=table.ts.dt.tz_localize("America/New_York"))
    titles = {name: name.title() for name in COLUMNS}
    return by_ticker(folder / "yahoo", table.rename(columns=titles), ["Datetime", *titles.values()])


def german(folder, table):
    words = dict(zip(COLUMNS, ("Eröffnung", "Hoch", "Tief", "Schluss", "Volumen"), strict=True))
    parts = [
        rows.set_index("ts")[COLUMNS].rename(columns=words).add_prefix(f"{ticker} ")
        for ticker, rows in table.groupby("ticker")
    ]
    wide = pd.concat(parts, axis=1)
    wide.insert(0, "Zeit", wide.index.strftime("%d.%m.%Y %H:%M"))
    wide.to_csv(folder / "kurse.csv", sep=";", decimal=",", index=False)
    return folder / "kurse.csv"


def epoch(folder, table):
    rows = table.assign(ts=stamps_of(table) // 10**9)
    return write_csv(folder, rows.rename(columns={"ts": "t", "ticker": "sym"}), "epoch.csv")


def many(folder, table):
    ends = table.assign(time=table.ts + pd.Timedelta("1min"))
    return by_ticker(folder / "many", ends, ["time", *COLUMNS])


def chicago(folder, table):
    return write_csv(folder, table.assign(ts=table.ts - pd.Timedelta("1h")), "chicago.csv")


def polygon_api(folder, table):
    short = {name: name[0] for name in COLUMNS}
    rows = table.rename(columns=short).assign(t=stamps_of(table) // 10**6, vw=1.5, n=3)
    return by_ticker(folder / "polygon_api", rows, ["t", *short.values(), "vw", "n"])


def fixed_point(folder, table):
    """Databento's prices as whole billionths, its moments as nanoseconds."""
    rows = table.rename(columns={"ts": "ts_event", "ticker": "symbol"})
    rows["ts_event"] = stamps_of(table)
    rows[PRICES] = (rows[PRICES] * 1e9).round().astype("int64")
    rows.insert(1, "rtype", 33)
    return write_csv(folder, rows, "fixed_point.csv")


def naive_utc(folder, table):
    rows = table.assign(ts=utc(table).dt.tz_localize(None)).rename(columns={"ts": "Date Time"})
    return write_csv(folder, rows, "naive_utc.csv")


def single(folder, table):
    table.astype(dict.fromkeys(PRICES, "float32")).to_parquet(folder / "single.parquet")
    return folder / "single.parquet"


LAYOUTS = {
    one.__name__: one
    for one in (
        polygon_api,
        fixed_point,
        naive_utc,
        single,
        lean,
        polygon,
        databento,
        firstrate,
        kibot,
        alpaca,
        yahoo,
        german,
        epoch,
        many,
        chicago,
    )
}


def settings_of(text):
    """The market's settings in a configuration."""
    return validate(DataSettings, yaml.safe_load(text)["data"], "test")


def built(found, folder):
    return settings_of(render_yaml(found, folder / "x.yaml"))


def refused(*words):
    """Run a command that is refused; return its error."""
    result = fintrader(*map(str, words))
    assert result.status == 2
    return result.err


def findings(path):
    return {one.setting: one for one in detect(str(path)).findings}


@pytest.fixture(scope="module")
def plain(bars, tmp_path_factory):
    """The market of the bars as a CSV file that needs no thought."""
    folder = tmp_path_factory.mktemp("plain")
    return make_market(built(detect(str(write_csv(folder, bars))), folder))


@pytest.mark.parametrize("name", mostly_slow("lean", every=LAYOUTS))
def test_any_layout_becomes_the_market_of_its_bars(name, bars, plain, tmp_path):
    found = detect(str(LAYOUTS[name](tmp_path, bars)))
    market = make_market(built(found, tmp_path))
    assert (found.bar_minutes, len(found.sessions), found.symbols) == (1, 10, ("AAA", "BBB"))
    assert_same_market(market, plain)
    assert found.extended == (name in ("lean", "polygon", "firstrate"))
    assert "range" in describe_detection(found)
    assert "waive" not in render_yaml(found, tmp_path / "x.yaml")


@pytest.mark.parametrize("preset", slow_but(3, every=PRESETS))
def test_each_preset_reads_its_vendors_files(preset, bars, plain, tmp_path):
    path = str(LAYOUTS[preset](tmp_path, bars))
    told = built(detect(path), tmp_path).model_copy(update={"source": DataSettings().source})
    values = told.model_dump(mode="json") | {
        "path": path,
        "source": {"kind": "files", "preset": preset},
    }
    assert_same_market(make_market(validate(DataSettings, values, "test")), plain)
    asked = make_market(built(detect(path, preset=preset), tmp_path))
    assert_same_market(asked, plain)


def test_what_was_found_is_told_with_how_sure_it_is(bars, tmp_path):
    found = findings(many(tmp_path, bars))
    assert (found["label"].value, found["label"].sure) == ("end", "sure")
    assert (found["timezone"].value, found["timezone"].sure) == ("America/New_York", "sure")
    winter = findings(write_csv(tmp_path, minute_table(2, 10)))["timezone"]
    assert winter.sure == "assumed"  # no change of clocks in January
    assert "Etc/GMT+5" in winter.why
    split = minute_table(1, 10)
    split.loc[split.ts >= "2016-01-11", PRICES] /= 4
    told = findings(write_csv(tmp_path, split, "split.csv"))["adjustment"]
    assert "AAA 4 to 1 on 2016-01-11" in told.why


def test_a_configuration_is_not_written_over(bars, tmp_path):
    found = detect(str(write_csv(tmp_path, bars)))
    path = tmp_path / "my.yaml"
    write_config(found, path)
    with pytest.raises(ConfigError, match="--force"):
        write_config(found, path)
    write_config(found, path, force=True)
    assert str(choose_config_path("x/my.bars.csv.gz")) == "my.bars.yaml"
    with pytest.raises(BarError, match="span 2 sessions"):
        render_yaml(detect(str(write_csv(tmp_path, minute_table(1, 2), "two.csv"))), path)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            minute_table(1, 1).drop(columns="close"),
            "which column is the close? It has ts, ticker, open",
        ),
        (pd.DataFrame({"ts": ["2016-01-04"], "ticker": ["A"], "price": [1]}), ""),
        (minute_table(1, 1).drop(columns="ts"), ""),
        (minute_table(1, 1).assign(ts="noon"), ""),
    ],
    ids=["no close", "no prices", "no time", "noon"],
)
def test_nothing_to_be_inferred(tmp_path, table, problem):
    out = tmp_path / "my.yaml"
    said = refused("init", write_csv(tmp_path, table), "--out", out)
    assert said.startswith("fintrader: ")
    assert problem in said
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(("offset", "told"), [("", "09:35:00"), ("-05:00", "14:35:00 UTC")])
def test_the_time_of_a_bad_row_is_told_as_it_was_written(offset, told, tmp_path):
    """Which zone it is in is not known yet, unless it says so itself."""
    table = minute_table(1, 2)
    table["ts"] = table.ts.dt.strftime("%Y-%m-%d %H:%M:%S") + offset
    bad = table.index[table.ts.str.contains("09:35:00")][0]
    table.loc[bad, "low"] = -1.0
    told_row = rf"row {bad + 2} \(AAA at 2016-01-\d\dT{told}\), column 'low': -1\.0 is no price"
    with pytest.raises(BarError, match=told_row):
        detect(str(write_csv(tmp_path, table)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sessions", "tested"), slow_but(1, every=[(100, 40), (320, 126), (800, 160)])
)
def test_few_sessions_are_tested_on_half_a_year_where_they_hold_one(sessions, tested, tmp_path):
    days = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2019, 12, 30), 390).dates[:sessions]
    prices = dict.fromkeys(("Open", "High", "Low", "Close"), np.linspace(50.0, 60.0, sessions))
    table = pd.DataFrame({"Date": days.astype(str), **prices, "Volume": 100})
    found = detect(str(write_csv(tmp_path, table, "AAA.csv")))
    first, last = built(found, tmp_path).windows.test
    assert sum(first <= day <= last for day in found.sessions) == tested


def walk_on(calendar, first, days, step, zone=None):
    """A walk over all bars of so many days of a calendar; `zone` writes its times without one."""
    last = first + dt.timedelta(days - 1)
    grid = session_grid(calendar, first, last, step)
    minutes = grid.minutes
    if calendar == "CMES":  # an hour's rest before the next session opens
        minutes = minutes[minutes < grid.close[grid.session] - 3_600_000_000_000]
    stamps = pd.DatetimeIndex(minutes.astype("datetime64[ns]"), tz="UTC")
    random = np.random.default_rng(4)
    close = (80 * np.exp(np.cumsum(random.normal(0, 5e-4, len(stamps))))).round(2)
    table = pd.DataFrame(dict.fromkeys(PRICES, close), index=stamps.rename("ts"))
    table["volume"] = random.integers(1, 900, len(table))
    if zone:
        table.index = table.index.tz_convert(zone).tz_localize(None)
    return table.reset_index()


SURE = "sure"
SPRING = dt.date(2024, 2, 26)
MARKETS = {
    "currencies": (FX, dt.date(2024, 6, 3), 26, 60, None, SURE),
    "currencies in New York": (FX, SPRING, 40, 5, "America/New_York", SURE),
    "a week of currencies": (FX, dt.date(2024, 6, 3), 5, 5, None, "assumed"),
    "weekdays": ("24/5", SPRING, 19, 60, None, SURE),
    "crypto": ("24/7", SPRING, 9, 5, "UTC", SURE),
    "futures": ("CMES", SPRING, 19, 5, "America/Chicago", SURE),
    "Seoul": ("XKRX", SPRING, 19, 1, "Asia/Seoul", SURE),
    "Tokyo with lunch": ("XTKS", SPRING, 19, 15, "UTC", SURE),
    "Hong Kong by the hour": ("XHKG", SPRING, 60, 60, "Asia/Hong_Kong", SURE),
    "Mumbai": ("XBOM", SPRING, 19, 5, None, SURE),
    "Frankfurt or Paris": ("XETR", SPRING, 90, 15, "Europe/Berlin", "assumed"),
    "currencies by a broker's clock": ("24/5", SPRING, 19, 60, "UTC", "assumed"),
    "New York or Toronto": ("XNAS", SPRING, 19, 1, None, "assumed"),
    "NASDAQ by night": ("23/5", dt.date(2026, 1, 5), 19, 5, "America/New_York", SURE),
}


@pytest.mark.parametrize(
    ("name", "missing"),
    slow_but(
        0,
        6,
        8,
        13,
        every=[
            *((name, 0.0) for name in MARKETS),
            *((name, 0.6) for name in MARKETS if SURE in MARKETS[name]),
        ],
    ),
)
def test_the_times_show_the_calendar_and_the_zone(name, missing, tmp_path):
    calendar, first, days, step, zone, sure = MARKETS[name]
    whole = walk_on(calendar, first, days, step)
    keep = np.random.default_rng(5).random(len(whole)) >= missing
    table = walk_on(calendar, first, days, step, zone)[keep]
    found = detect(str(write_csv(tmp_path, table, "AAA.csv")))
    noted = {one.setting: one for one in found.findings}
    assert found.calendar == calendar
    if not missing:
        assert noted["calendar"].sure == sure
        assert found.bar_minutes == step
    market = make_market(built(found, tmp_path).model_copy(update={"bar_minutes": step}))
    traded = market.minutes.numpy()[market.tradable[:, 0].numpy()]
    stamps = pd.DatetimeIndex(whole.ts[keep]).tz_localize(None)
    assert (traded.astype("datetime64[ns]") == stamps.to_numpy()).all()


@pytest.mark.parametrize(
    "calendar", mostly_slow("XNAS", every=["XNAS", "XLON", "XTKS", "XHKG", "24/5", "24/7"])
)
def test_the_days_with_bars_show_the_calendar(calendar, tmp_path):
    whole = session_grid(calendar, dt.date(2022, 1, 3), dt.date(2022, 12, 30), 1440)
    table = walk_on("24/7", dt.date(2022, 1, 1), 364, 1440)
    table["ts"] = table.ts.dt.strftime("%Y-%m-%d")
    table = table[table.ts.isin(whole.dates.astype(str))]
    found = detect(str(write_csv(tmp_path, table, "AAA.csv")))
    noted = {one.setting: one for one in found.findings}
    assert (noted["calendar"].value, noted["calendar"].sure) == (calendar, "sure")
    assert len(found.sessions) == len(table)
    market = make_market(built(found, tmp_path))
    assert market.num_bars == int(market.tradable.sum()) == len(table)
    assert (market.symbols, market.bar_minutes) == (("AAA",), found.session_minutes)


def test_calendars_that_fit_as_well_are_named(tmp_path):
    """Two years of days tell Warsaw from Frankfurt, but not Frankfurt from Paris."""
    for calendar, others in {"XWAR": "XETR fits worse", "XETR": "XPAR"}.items():
        whole = session_grid(calendar, dt.date(2022, 1, 3), dt.date(2023, 12, 29), 1440)
        table = walk_on("24/7", dt.date(2022, 1, 1), 728, 1440)
        table["ts"] = table.ts.dt.strftime("%Y-%m-%d")
        table = table[table.ts.isin(whole.dates.astype(str))]
        noted = findings(write_csv(tmp_path, table, f"{calendar}.csv"))["calendar"]
        assert (noted.value, noted.sure) == (calendar, "assumed")
        assert others in noted.why


def test_currencies_with_sundays_are_only_assumed_to_trade_always(tmp_path):
    table = walk_on("24/7", dt.date(2022, 1, 1), 500, 1440)
    table = table[table.ts.dt.day_name() != "Saturday"].assign(
        ts=lambda rows: rows.ts.dt.strftime("%Y-%m-%d")
    )
    noted = findings(write_csv(tmp_path, table, "EURUSD.csv"))["calendar"]
    assert (noted.value, noted.sure) == ("24/7", "assumed")
    assert "24/5 fits worse: 16.8% lie outside" in noted.why


def test_a_length_is_not_sure_where_most_rows_stand_further_apart(tmp_path):
    """Bars of five minutes with one more row each day can be bars of a minute."""
    table = walk_on("XNAS", SPRING, 40, 5, "America/New_York")
    more = table[::78].assign(ts=lambda rows: rows.ts + pd.Timedelta("31min"))
    path = write_csv(tmp_path, pd.concat([table, more]).sort_values("ts"), "AAA.csv")
    noted = findings(path)["bar_minutes"]
    assert (noted.value, noted.sure) == ("1", "assumed")
    assert "most rows are 5 minutes apart" in noted.why
    found = detect(str(path), known={"bar_minutes": 5})
    assert make_market(built(found, tmp_path)).num_bars == len(table)


def test_prices_outside_of_their_range_are_refused(bars, tmp_path):
    path = str(write_csv(tmp_path, bars.assign(close=bars.close * 1.03), "bad.csv"))
    with pytest.raises(BarError, match=r"in 100% of the rows the close lies outside .*--close"):
        detect(path)
    assert detect(path, known={"columns": {"close": "close"}}).symbols


@pytest.mark.slow
def test_without_volume_nothing_is_certain(tmp_path):
    table = walk_on(FX, SPRING, 40, 60, "America/New_York").assign(volume=0)
    noted = findings(write_csv(tmp_path, table, "AAA.csv"))
    assert noted["timezone"].value == "America/New_York"
    assert (noted["timezone"].sure, noted["calendar"].sure) == ("assumed", "assumed")
    table = walk_on("24/7", SPRING, 9, 60, "UTC")
    zone = findings(write_csv(tmp_path, table, "BBB.csv"))["timezone"]
    assert (zone.value, zone.sure) == ("UTC", "assumed")


def test_rows_outside_of_the_sessions_are_refused_or_counted(tmp_path):
    whole = walk_on("XKRX", SPRING, 19, 5, "Asia/Seoul")
    night = whole[::20].assign(ts=lambda rows: rows.ts + pd.Timedelta("10h"))
    path = str(write_csv(tmp_path, pd.concat([whole, night]).sort_values("ts"), "AAA.csv"))
    for given in ({}, {"calendar": "XKRX"}):
        with pytest.raises(BarError, match=r"4\.8% of the rows .* AAA at 2024-02-26T10:00 UTC"):
            detect(path, **given)
    found = detect(path, calendar="XKRX", known={"timezone": "Asia/Seoul"})
    assert "95.2% of the rows" in {one.setting: one.why for one in found.findings}["calendar"]
    provenance = make_market(built(found, tmp_path)).provenance
    assert provenance.outside == pytest.approx(len(night) / (len(whole) + len(night)))
    hours = str(write_csv(tmp_path, walk_on(FX, SPRING, 19, 60, "UTC"), "EURUSD.csv"))
    with pytest.raises(BarError, match=r"outside of the sessions of XNAS.*--calendar.*--zone"):
        detect(hours, calendar="XNAS")


def scaled(table):
    """One day of one symbol in cents."""
    day = (table.ticker == "AAA") & (table.ts.dt.normalize() == "2016-01-07")
    table.loc[day, PRICES] *= 100
    return table


def repeated(table):
    return pd.concat([table, table.iloc[[700]].assign(volume=1)], ignore_index=True)


@pytest.mark.parametrize("change", slow_but(0, every=[scaled, repeated]))
@pytest.mark.parametrize("label", mostly_slow("end", every=["start", "end"]))
def test_bars_that_a_build_refuses_come_with_what_would_let_them_pass(change, label, tmp_path):
    table = change(minute_table(2, 10))
    if label == "end":
        table["ts"] += pd.Timedelta("1min")
    found = detect(str(write_csv(tmp_path, table)))
    text = render_yaml(found, tmp_path / "x.yaml")
    with pytest.raises(BarError, match=r"data\.waive"):
        make_market(built(found, tmp_path))
    marked = [line for line in text.splitlines() if line.startswith(("  # waive", "  #   - "))]
    assert len(marked) >= 2
    for line in marked:
        text = text.replace(line, line.replace("  # ", "  ", 1))
    make_market(settings_of(text))
    assert "a build stops at" in describe_detection(found)


def test_what_to_do_next_depends_on_faults(tmp_path, capsys):
    for change, first in (
        (scaled, "correct the bars, or uncomment its `waive`"),
        (pd.DataFrame.copy, "`fintrader run"),
    ):
        path = write_csv(tmp_path, change(minute_table(2, 10)))
        main(["init", str(path), "--out", str(tmp_path / "x.yaml"), "--force"])
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.partition(" is written; ")[2].startswith(first)


@pytest.mark.slow
@pytest.mark.parametrize(("sessions", "a_day"), [(199, 1), (200, 13), (260, 1)])
def test_from_a_file_of_many_days_to_a_backtest(tmp_path, monkeypatch, sessions, a_day):
    """From 200 sessions on 120 lie before the test, and what `init` writes judges agents where they
    were not trained."""
    monkeypatch.chdir(tmp_path)
    names = {"ts": "Timestamp", "ticker": "Symbol", "volume": "Volume"}
    write_csv(tmp_path, days_table(sessions, a_day).rename(columns=names), "my.csv")
    main(["init", "my.csv"])
    written = validate(RunConfig, yaml.safe_load(Path("my.yaml").read_text()), "my.yaml")
    careful = sessions >= 200
    assert (written.tournament.validation_folds is not None) is careful
    assert (written.tournament.ensemble_shrinkage == "james_stein") is careful
    assert written.env.decision_interval in ({a_day} if careful else {1})
    assert written.tournament.fresh == 1.0
    small = "--tournament.budget.env-steps 12000 --backtest.null-model False"
    main(["run", "my.yaml", *small.split()])
    assert json.loads((tmp_path / "runs" / "my" / "backtest" / "metrics.json").read_text())


def days_table(sessions, a_day):
    """Five walks of so many sessions of the exchange from 2015-03-02 on, in days or in half
    hours."""
    from exchange_calendars import get_calendar

    days = get_calendar("XNAS").sessions_in_range("2015-03-02", "2016-12-30")[:sessions]
    random = np.random.default_rng(3)
    opens = pd.Timedelta("9h30min")
    ts = (
        [day + opens + k * pd.Timedelta("30min") for day in days for k in range(a_day)]
        if a_day > 1
        else list(days)
    )
    tables = []
    for number in range(5):
        close = (
            50 * (number + 1) * np.exp(np.cumsum(random.normal(0, 0.01 / a_day**0.5, len(ts))))
        ).round(2)
        open_ = np.concatenate([close[:1], close[:-1]])
        prices = {
            "open": open_,
            "high": np.maximum(open_, close),
            "low": np.minimum(open_, close),
            "close": close,
        }
        volume = 1000 + random.integers(0, 500, len(ts))
        tables.append(
            pd.DataFrame({"ts": ts, "ticker": chr(65 + number) * 3, **prices, "volume": volume})
        )
    return pd.concat(tables)


def renamed(table, **columns):
    return table.rename(columns=columns)


def in_two_columns(table):
    days = {"Tag des Handels": table.ts.dt.strftime("%Y-%m-%d")}
    return table.assign(**days, ts=table.ts.dt.strftime("%H:%M"))


def shuffled(table):
    """Volumes before the prices, in an unusual order."""
    order = ["ticker", "volume", "close", "ts", "low", "high", "open"]
    return table.assign(volume=table.volume + 50)[order]


ANSWERS = {
    "columns": (
        lambda table: renamed(table, ts="Gmt moment", close="Kurs", volume="pieces"),
        {},
        [
            ("which columns are the close, volume?", ["--close", "Kurs", "--volume", "pieces"]),
            ("", ["--ts", "Gmt moment"]),
        ],
    ),
    "date": (
        lambda table: renamed(in_two_columns(table), ts="Uhr"),
        {},
        [("", ["--ts", "Uhr", "--date", "Tag des Handels"])],
    ),
    "numbers": (
        shuffled,
        {"header": False},
        [
            ("", ["--volume", "2"]),
            ("", ["--open", "7", "--high", "6", "--low", "5", "--close", "3"]),
            ("", ["--ts", "4", "--symbol", "1"]),
        ],
    ),
    "symbol": (
        lambda table: renamed(table, ticker="Wert papier"),
        {},
        [("", ["--symbol", "Wert papier"])],
    ),
    "time format": (
        lambda table: table.assign(ts=table.ts.dt.strftime("%Y:%d:%m %H.%M")),
        {},
        [("are unknown", ["--time-format", "%Y:%d:%m %H.%M"])],
    ),
    "delimiter": (lambda table: table, {"sep": "~"}, [("", ["--delimiter", "~"])]),
}


@pytest.mark.parametrize("name", mostly_slow("columns", "time format", every=ANSWERS))
def test_the_options_that_a_refusal_names_answer_it(name, bars, plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change, how, steps = ANSWERS[name]
    write_csv(tmp_path, change(bars), "my.csv", **how)
    options = []
    for problem, answer in steps:
        if problem:
            said = refused("init", "my.csv", *options)
            assert problem in said
            assert all(word in said for word in answer[:1] if word.startswith("--")), said
            assert "data.source" not in said
            assert not Path("my.yaml").exists()
        options += answer
    main(["init", "my.csv", *options])
    market = make_market(settings_of(Path("my.yaml").read_text()))
    if name != "numbers":  # its volumes differ
        assert_same_market(market, plain)
    assert market.symbols == plain.symbols
    assert (market.close == plain.close).all()


def test_the_options_of_a_message_are_those_that_exist(bars, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path, bars, "AAPL.csv")
    assert "omit it" in (said := refused("init", "AAPL.csv", "--days", "5"))
    assert "--from" not in said  # which would make no ticker of a file
    assert "mydata.endofday.csv" in refused("init", "mydata.endofday.csv")


def test_symbols_with_their_own_times_are_refused(bars, tmp_path):
    words = ("日付", "始値", "高値", "安値", "終値", "")
    rows = [["USDJPY", *[""] * 5, "EURJPY", *[""] * 5], [*words, *words]]
    days = pd.bdate_range("2024-01-01", periods=30).strftime("%Y-%m-%d")
    rows += [[day, "5", "7", "4", "6", ""] * 2 for day in days]
    text = "\n".join(map(",".join, rows)) + "\n"
    (tmp_path / "pairs.csv").write_bytes(text.encode("shift_jis"))
    with pytest.raises(BarError, match=r"its own column of times .* such as '日付_EURJPY'"):
        detect(str(tmp_path / "pairs.csv"))


def test_all_columns_without_known_names_are_asked_for_at_once(bars, plain, tmp_path):
    words = dict(
        zip(["ts", *COLUMNS], ["wann", "auf", "oben", "unten", "zu", "menge"], strict=True)
    )
    table = bars[bars.ticker == "AAA"].drop(columns="ticker").rename(columns=words)
    table["wann"] = table["wann"].dt.strftime("%H:%M on %Y-%m-%d")
    path = str(write_csv(tmp_path, table, "AAA.csv"))
    with pytest.raises(BarError) as caught:
        detect(path)
    said = re.findall(r"--(\w+) COLUMN", str(caught.value))
    assert said == ["ts", "open", "high", "low", "close", "volume"]
    known = {"columns": words, "time_format": "%H:%M on %Y-%m-%d"}
    market = make_market(built(detect(path, known=known), tmp_path))
    assert (market.open == plain.open[:, :1]).all()
    assert (market.volume == plain.volume[:, :1]).all()


@pytest.mark.slow
def test_flat_days_without_volume_count_for_no_calendar(tmp_path):
    days = pd.bdate_range("2023-01-02", "2024-12-31")
    stamps = pd.DatetimeIndex(xc.get_calendar("XSHG").sessions_in_range(days[0], days[-1]))
    table = pd.DataFrame({"open": 5.0, "high": 7.0, "low": 4.0, "close": 6.0, "volume": 9.0}, days)
    table["close"] += np.arange(len(days)) % 9 / 10
    away = ~days.isin(stamps)
    table.loc[away, "close"] = np.nan
    table["close"] = table.close.ffill().fillna(6.0)
    for name in ("open", "high", "low"):
        table.loc[away, name] = table.close[away]
    table.loc[away, "volume"] = 0
    found = detect(str(write_csv(tmp_path, table.rename_axis("Date").reset_index(), "A.csv")))
    assert found.calendar == "XSHG"


@pytest.mark.parametrize(
    ("stems", "pattern"),
    [
        (["Boom_1000_Index_H1", "Jump_Index_H1"], "{symbol}_H1"),
        (["Boom_1000_Index", "Jump_Index"], "{symbol}"),
        (["jpyusd_barchartdotcom"], "{symbol}_barchartdotcom"),
        (["fxcm_eur_usd_eod_data"], "fxcm_{symbol}_eod_data"),
        (["BTC-USD", "BTC-EUR"], "{symbol}"),
    ],
)
def test_the_shared_ending_of_names_is_no_symbol(stems, pattern):
    files = [BarFile(f"{stem}.csv", "csv", f"/x/{stem}.csv") for stem in stems]
    assert name_pattern(files, needs_date=False) == pattern


@pytest.mark.parametrize(
    ("places", "pattern", "symbols"),
    [
        ("AAPL_part1 AAPL_part2", "{symbol}_*", "AAPL"),
        ("AAPL_Q1_2024 AAPL_Q2_2024", "{symbol}_*_*", "AAPL"),
        ("AAPL_Jan2024 AAPL_Feb2024", "{symbol}_*", "AAPL"),
        ("BTCUSD_January BTCUSD_May", "{symbol}_*", "BTCUSD"),
        ("AAPL_train AAPL_test", "{symbol}_*", "AAPL"),
        ("BTC_USDT_2023 BTC_USDT_2024", "BTC_USDT_*{symbol=BTC_USDT}", "BTC_USDT"),
        ("AAPL AAPL~(1) AAPL~(2)", "AAPL*{symbol=AAPL}", "AAPL"),
        ("AAPL AAPL(1) AAPL~-~Copy", "AAPL*{symbol=AAPL}", "AAPL"),
        ("AAPL/2023 AAPL/2024", "{symbol}/*", "AAPL"),
        ("AAPL/2024-01 MSFT/2024-01", "{symbol}/*", "AAPL MSFT"),
        ("AAPL/train AAPL/test", "{symbol}/*", "AAPL"),
        ("AAPL/2023/01 AAPL/2024/01", "{symbol}/*/*", "AAPL"),
        ("AAPL/2024/01/05 MSFT/2024/01/05", "{symbol}/*/*/*", "AAPL MSFT"),
        ("ES~03-24.Last ES~06-24.Last", "{symbol}.Last", "ES~03-24 ES~06-24"),
        ("STOCK_DAY_2330_202401 STOCK_DAY_2330_202402", "STOCK_DAY_{symbol}_*", "2330"),
        ("STOCK_DAY_2330_202401", "STOCK_DAY_{symbol}_*", "2330"),
        ("2330_202401 2317_202402", "{symbol}_*", "2330 2317"),
        ("0005_daily 0700_daily", "{symbol}_daily", "0005 0700"),
        # symbols that are called like months, years or numbers
        ("MAR_daily", "{symbol}_daily", "MAR"),
        ("MAR_1min AAPL_1min", "{symbol}_1min", "MAR AAPL"),
        ("MAR DEC AAPL", "{symbol}", "MAR DEC AAPL"),
        ("2002", "{symbol}", "2002"),
        ("0005 0700", "{symbol}", "0005 0700"),
        ("2023/A 2023/B_C 2024/A 2024/B_C", "{symbol}", "A B_C"),
    ],
)
def test_parts_of_a_series_are_no_symbols(places, pattern, symbols):
    names = places.replace("~", " ") if "/" in places else places
    files = [BarFile(name, "csv", f"/bars/{name.replace('~', ' ')}.csv") for name in names.split()]
    assert name_pattern(files, needs_date=False) == pattern
    settings = FilesSettings(name_pattern=pattern)
    read = [settings.read_name(file.place) for file in files]
    assert [*dict.fromkeys(read)] == [(name.replace("~", " "), None) for name in symbols.split()]


def test_copies_of_several_symbols_are_to_be_renamed(tmp_path):
    table = walk_on("XNAS", dt.date(2023, 1, 2), 140, 390).assign(ts=lambda t: t.ts.dt.date)
    for name, rows in {"A": table[:70], "A (1)": table[70:], "B": table, "B (1)": table}.items():
        write_csv(tmp_path, rows, f"{name}.csv")
    with pytest.raises(BarError, match="call all files alike, such as"):
        detect(str(tmp_path))
    for name in ("A", "B"):
        (tmp_path / f"{name}.csv").rename(tmp_path / f"{name}_part1.csv")
        (tmp_path / f"{name} (1).csv").rename(tmp_path / f"{name}_part2.csv")
    assert detect(str(tmp_path)).symbols == ("A", "B")


def test_symbols_of_which_no_two_trade_in_one_period_are_asked_about(tmp_path):
    table = walk_on("XNAS", dt.date(2023, 1, 2), 140, 390).assign(ts=lambda t: t.ts.dt.date)
    parts = np.array_split(np.arange(len(table)), 4)
    for name, rows in zip(("old_1", "new_1", "old_2", "new_2"), parts, strict=True):
        write_csv(tmp_path, table.iloc[rows], f"{name}.csv")
    with pytest.raises(BarError, match="no two files have bars in the same period") as caught:
        detect(str(tmp_path))
    pattern = re.search("--name-pattern '(.+?)'", str(caught.value))
    assert detect(str(tmp_path), known={"name_pattern": pattern[1]}).symbols == ("NEW", "OLD")
    found = detect(str(tmp_path), known={"symbol": "AAA"})
    assert found.symbols == ("AAA",)
    write_csv(tmp_path, table, "old_2.csv")
    assert detect(str(tmp_path)).symbols == ("NEW", "OLD")


def test_a_warning_of_many_files_is_logged_once(caplog):
    log = logging.getLogger("fintrader.bars")
    with fold_warnings():
        for name in ("A", "B", "A"):
            log.warning("%s: left out", name)
    assert [record.getMessage() for record in caplog.records] == [
        "A: left out (and 1 others like it)"
    ]


def test_given_settings_are_not_guessed(bars, tmp_path):
    one = bars[bars.ticker == "AAA"].drop(columns="ticker")
    path = str(write_csv(tmp_path, one.assign(ts=one.ts + pd.Timedelta("1h")), "x.txt"))
    known = {"timezone": "America/Halifax", "label": "start", "bar_minutes": 1}
    found = detect(path, known={**known, "symbol": "QQ"})
    sure = {one.setting: (one.value, one.sure) for one in found.findings}
    assert sure["name_pattern"] == ("*{symbol=QQ}", "given")
    assert {name: sure[name] for name in known} == {
        name: (str(value), "given") for name, value in known.items()
    }
    write_config(found, tmp_path / "x.yaml")
    market = make_market(settings_of((tmp_path / "x.yaml").read_text()))
    alone = tmp_path / "alone"
    alone.mkdir()
    expected = make_market(built(detect(str(write_csv(alone, one, "QQ.csv"))), tmp_path))
    assert_same_market(market, expected)


@pytest.mark.parametrize(
    ("layout", "options", "said"),
    slow_but(
        *range(0, 8, 2),
        every=[
            (polygon_api, ["--zone", "UTC"], "carry their zone, .*omit --zone"),
            (single, ["--symbol", "AAA"], "the symbols are in column 'ticker'"),
            (single, ["--ts", "when"], "no column 'when'; it has ts, .*correct --ts"),
            (single, ["--zone", "Mars"], "--zone: not a time zone"),
            (
                kibot,
                ["--close", "4"],
                "one column is taken for both high and close; name .*--high or",
            ),
            (
                kibot,
                ["--close", "9"],
                "no column '9'; it has columns without names.* correct --close",
            ),
            (chicago, ["--zone", "America/New_York"], "outside of the sessions.*with --zone"),
            (many, ["--label", "start"], "is not written.* set --label to end"),
            (many, ["--name-pattern", "*"], "give the one symbol of all bars: --symbol"),
        ],
    ),
)
def test_wrong_answers_are_refused(layout, options, said, bars, tmp_path):
    path = layout(tmp_path, bars)
    assert re.search(said, refused("init", path, "--out", tmp_path / "x.yaml", *options))
    assert not (tmp_path / "x.yaml").exists()


def test_nothing_is_written_where_the_first_bars_make_no_market(bars, plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bars").mkdir()
    alone = bars[bars.ticker == "AAA"]
    by_ticker(tmp_path / "bars", alone, ["ts", *COLUMNS], "{}-2016.csv")
    with monkeypatch.context() as patch:
        patch.setattr("fintrader.bars.detect.name_pattern", lambda *_: "{symbol}_*")
        said = refused("init", "bars")
    by_ticker(tmp_path / "bars", bars, ["ts", *COLUMNS], "{}-2016.csv")
    assert re.search(r"bars.yaml is not written.*no file there matches", said)
    assert [one.name for one in tmp_path.iterdir()] == ["bars"]
    main(["init", "bars", "--name-pattern", "{symbol}-*"])
    assert {one.name for one in tmp_path.iterdir()} == {"bars", "bars.yaml"}  # the trial left none
    assert_same_market(make_market(settings_of(Path("bars.yaml").read_text())), plain)


@pytest.mark.slow
def test_the_first_slice_is_bounded(tmp_path):
    table = minute_table(7, 70)
    feed, days = open_slice(FilesSettings(), str(write_csv(tmp_path, table)), "XNAS")
    assert (len(feed.symbols), len(days)) == (5, 60)
    assert len(feed.bars("AAA")) == 60 * 390


def test_the_first_slice_has_days_where_files_are_sorted_by_day(tmp_path):
    table = minute_table(1, 4).drop(columns="ticker")
    for day, rows in table.groupby(table.ts.dt.strftime("%Y%m%d")):
        for number in range(70):
            (tmp_path / day).mkdir(exist_ok=True)
            write_csv(tmp_path / day, rows[:5], f"S{number:02}.csv")
    feed, days = open_slice(FilesSettings(name_pattern="{symbol}"), str(tmp_path), "XNAS")
    assert (len(feed.symbols), len(days)) == (5, 4)


def test_a_given_close_alone_fills_the_orders(bars, tmp_path, capsys):
    table = bars[bars.ticker == "AAA"].rename(columns={"close": "Kurs"})[["ts", "Kurs"]].assign(x=5)
    path = write_csv(tmp_path, table, "AAA.csv")
    out = tmp_path / "x.yaml"
    assert "name it: --close COLUMN" in refused("init", path, "--out", out)
    main(["init", str(path), "--out", str(out), "--close", "Kurs"])
    assert "assumed  closes alone" in capsys.readouterr().out
    columns = yaml.safe_load(out.read_text())["data"]["source"]["columns"]
    assert [columns[name] for name in PRICES] == ["Kurs"] * 4


@pytest.mark.slow
def test_given_divisors_and_zones_are_written(bars, tmp_path):
    whole = bars.assign(**{name: (bars[name] * 100).round().astype(int) for name in PRICES})
    known = {"price_divisor": 100, "timezone": "America/New_York"}
    found = detect(str(write_csv(tmp_path, whole)), known=known)
    assert {name: found.source[name] for name in known} == known
    market = make_market(built(found, tmp_path))
    plain = make_market(built(detect(str(write_csv(tmp_path, bars, "plain.csv"))), tmp_path))
    assert np.allclose(market.close, plain.close)


def test_bids_and_asks_are_not_mixed(bars, tmp_path):
    for word, factor in (("Bid", 0.99), ("Ask", 1.01)):
        table = bars.assign(**{name: bars[name] * factor for name in PRICES})
        by_ticker(tmp_path, table, ["ts", *COLUMNS], f"{{}}.{word}.csv")
    out = tmp_path / "x.yaml"
    said = refused("init", tmp_path, "--out", out)
    pattern = re.search(r"--name-pattern '(.*)'", said)[1]
    main(["init", str(tmp_path), "--out", str(out), "--name-pattern", pattern])
    market = make_market(settings_of(out.read_text()))
    assert (pattern, market.symbols) == ("{symbol}.Ask", ("AAA", "BBB"))
    first = bars[bars.ticker == "AAA"].open.iloc[0] * 1.01
    assert market.open[0, 0].item() == pytest.approx(first)


@pytest.mark.parametrize(
    ("calendar", "count", "sure"),
    slow_but(0, every=[("XNAS", 40, "sure"), ("XNAS", 4, "assumed"), ("24/7", 40, "assumed")]),
)
def test_days_counted_by_excel_are_sure_where_weekends_are_missing(calendar, count, sure, tmp_path):
    table = walk_on(calendar, dt.date(2024, 3, 4), 70, 1440)[:count]
    days = (table.ts.dt.tz_localize(None) - pd.Timestamp("1899-12-30")).dt.days
    path = str(write_csv(tmp_path, table.assign(ts=days), "AAA.csv"))
    noted = findings(path)["time_format"]
    assert (noted.value, noted.sure) == ("excel", sure)
    assert ("--time-format decides" in noted.why) == (sure == "assumed")
    known = detect(path, known={"time_format": "excel"})
    assert known.sessions == detect(path).sessions
    assert len(known.sessions) == count


def test_seconds_of_a_day_are_no_days_of_excel(bars, tmp_path):
    clock = (bars.ts - bars.ts.dt.normalize()) // pd.Timedelta("1s")
    path = write_csv(tmp_path, bars.assign(ts=clock), "AAA.csv")
    with pytest.raises(BarError, match=r"neither dates nor times since 1970.*--date"):
        detect(str(path))


def test_a_zone_with_an_unknown_name_is_asked_for(bars, plain, tmp_path):
    table = bars.assign(ts=bars.ts.dt.strftime("%Y-%m-%d %H:%M:%S NYT"))
    path, out = str(write_csv(tmp_path, table)), tmp_path / "x.yaml"
    said = refused("init", path, "--out", out)
    written = re.search("--time-format '(.*)' --zone", said)[1]
    main(["init", path, "--out", str(out), "--time-format", written, "--zone", "America/New_York"])
    assert_same_market(make_market(settings_of(out.read_text())), plain)


@pytest.mark.slow
def test_one_of_two_volumes_can_be_named(bars, tmp_path):
    one = bars[bars.ticker == "AAA"].drop(columns=["ticker", "volume"]).assign(Up=7, Down=3)
    path = str(write_csv(tmp_path, one, "AAA.txt"))
    for known, volume in (({}, 50), ({"columns": {"volume": "Up"}}, 35)):  # of five minutes
        market = make_market(built(detect(path, known=known), tmp_path))
        assert (market.volume[market.tradable] == volume).all()


def test_columns_of_actions_are_named(bars, tmp_path):
    path = write_csv(tmp_path, bars.assign(divCash=0.0, splitFactor=1.0, adjClose=1.0))
    noted = findings(path)["actions"]
    assert (noted.value, "data.actions" in noted.why) == ("divCash, splitFactor", True)


def test_days_by_a_foreign_clock_are_refused(tmp_path):
    """Midnight in Seoul is 15:00 UTC of the day before, in times without a zone."""
    table = walk_on("XKRX", dt.date(2024, 3, 4), 90, 1440)
    table["ts"] = table.ts.dt.tz_localize(None).dt.normalize() - pd.Timedelta("9h")
    with pytest.raises(BarError, match="neither a date nor midnight"):
        detect(str(write_csv(tmp_path, table, "AAA.csv")))


def test_coins_have_no_hours_and_no_splits_and_columns_read_like_yaml(tmp_path):
    times = pd.date_range("2024-01-01", periods=24 * 40, freq="h", tz="UTC")
    price = 100 + np.arange(len(times)) % 7
    rows = {"timestamp": times, "open": price, "high": price, "low": price, "close": price}
    path = tmp_path / "BTC-USDT.csv"
    pd.DataFrame(rows | {"Vol": price}).to_csv(path, index=False)
    found = detect(str(path), calendar="24/7")
    findings = {one.setting: one for one in found.findings}
    assert "extended hours" not in findings
    assert findings["columns"].value.startswith("ts: timestamp")
    assert "{" not in findings["columns"].value
    text = render_yaml(found, path)
    assert not re.search(r"^  (hours|actions):", text, re.M)
    validate(RunConfig, yaml.safe_load(text), "coins")


def test_the_share_of_rows_that_exist_counts_each_symbol(tmp_path):
    days = pd.bdate_range("2024-01-02", "2024-06-28")
    days = days[~days.isin(pd.to_datetime(["2024-01-15", "2024-02-19", "2024-03-29"]))]
    days = days[~days.isin(pd.to_datetime(["2024-05-27", "2024-06-19"]))]
    price = 100 + np.arange(len(days)) % 5 * 0.25
    rows = {"Date": days, "open": price, "high": price, "low": price, "close": price}
    one = pd.DataFrame(rows | {"volume": 100 + np.arange(len(days)) % 7})
    whole = pd.concat([one.assign(symbol=name) for name in ("AAA", "BBB")])
    for gaps, share in ((0, "100.0%"), (25, f"{1 - 25 / len(whole):.1%}")):
        table = pd.concat([whole.iloc[:10], whole.iloc[10 + gaps :]])
        found = detect(str(write_csv(tmp_path, table, f"gap{gaps}.csv")))
        [calendar] = [one.why for one in found.findings if one.setting == "calendar"]
        assert f"and {share} of their bars are there" in calendar


def test_ends_in_the_last_second_of_a_minute_are_read_as_ends(tmp_path):
    table = walk_on("XNAS", dt.date(2024, 3, 4), 19, 5, "America/New_York")
    late = table.assign(ts=table.ts + pd.Timedelta(minutes=5, seconds=-1))
    found = detect(str(write_csv(tmp_path, late, "AAA.csv")))
    assert found.source["label"] == "end"
    bars = read_files(found.settings(), found.path)
    assert np.array_equal(bars.ts, stamps_of(table))


@pytest.mark.parametrize("clock", ["00:00", "01:00"])
def test_days_of_a_market_that_never_closes_are_those_of_utc(clock, tmp_path):
    """Midnight in New York is later, and 01:00 occurs twice there when summer ends."""
    times = pd.date_range(f"2023-06-01 {clock}", periods=300)
    price = 100 + np.arange(300) % 7
    table = pd.DataFrame({"ts": times, **dict.fromkeys(PRICES, price), "volume": price})
    found = detect(str(write_csv(tmp_path, table, "ETH-USD.csv")))
    bars = read_files(found.settings(), found.path)
    assert np.array_equal(bars.ts.astype("datetime64[ns]"), times.normalize().to_numpy())


def test_names_of_several_lines_stay_one_line_of_yaml(bars, tmp_path):
    named = {name: f"{name.title()}\nPrice" for name in PRICES}
    path = tmp_path / "bars.parquet"
    bars.rename(columns=named).to_parquet(path)
    text = render_yaml(detect(str(path)), path)
    assert yaml.safe_load(text)["data"]["source"]["columns"] == named


def test_packed_text_files_are_read(bars, tmp_path):
    path = tmp_path / "bars.txt.bz2"
    bars.to_csv(path, index=False)
    assert detect(str(path)).source["name_pattern"] == "*"
