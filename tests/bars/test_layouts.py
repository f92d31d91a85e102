"""Layouts as vendors write them: what is found must build the market of the bars that were
written."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fintrader.bars.detect import detect
from fintrader.cli import main
from fintrader.config import validate
from fintrader.market.build import make_market
from fintrader.market.settings import DataSettings
from fintrader.pipeline.config import RunConfig
from tests.bars.tables import PLAIN, minute_table, write_csv

ZONE = "America/New_York"


def zoned(table):
    return table.ts.dt.tz_localize(ZONE).dt.tz_convert("UTC")


def epoch(table, unit):
    nanoseconds = zoned(table).astype("datetime64[ns, UTC]").astype("int64")
    return nanoseconds // {"s": 10**9, "ms": 10**6, "ns": 1}[unit]


def each(folder, table, name="{}.csv", header=True):
    """A file for each symbol, without its column."""
    folder.mkdir()
    for symbol, rows in table.groupby("ticker"):
        rows.drop(columns="ticker").to_csv(folder / name.format(symbol), index=False, header=header)
    return folder


def polygon_api(folder, table):
    short = {name: name[0] for name in ("open", "high", "low", "close", "volume")}
    rows = table.rename(columns={**short, "ts": "t"}).assign(t=epoch(table, "ms"), vw=1.5, n=3)
    return each(folder / "bars", rows)


def databento(folder, table):
    rows = table.rename(columns={"ts": "ts_event", "ticker": "symbol"}).assign(
        ts_event=epoch(table, "ns")
    )
    for name in ("open", "high", "low", "close"):
        rows[name] = (rows[name] * 1e9).round().astype("int64")
    rows.insert(1, "rtype", 33)
    return write_csv(folder, rows)


def utc(folder, table):
    return write_csv(
        folder,
        table.assign(ts=zoned(table).dt.tz_localize(None)).rename(columns={"ts": "Date Time"}),
    )


def single(folder, table):
    prices = dict.fromkeys(("open", "high", "low", "close"), "float32")
    table.astype(prices).to_parquet(folder / "bars.parquet")
    return folder / "bars.parquet"


def with_seconds(folder, table):
    rows = table.assign(ts=epoch(table, "s"))
    return write_csv(folder, rows[["ticker", "ts", "open", "high", "low", "close", "volume"]])


def german(folder, table):
    rows = table.assign(ts=table.ts.dt.strftime("%d.%m.%Y %H:%M"))
    named = rows.rename(
        columns={
            "ts": "Zeit",
            "ticker": "Symbol",
            "open": "Eröffnung",
            "high": "Hoch",
            "low": "Tief",
            "close": "Schluss",
            "volume": "Volumen",
        }
    )
    named.to_csv(folder / "kurse.csv", index=False, sep=";", decimal=",")
    return folder / "kurse.csv"


def lean(folder, table):
    """A zip a day and symbol: milliseconds since midnight, prices in 1/10,000 USD, no header."""
    for (symbol, day), rows in table.groupby(["ticker", table.ts.dt.strftime("%Y%m%d")]):
        cells = rows.drop(columns="ticker").assign(
            ts=(rows.ts - rows.ts.dt.normalize()) // pd.Timedelta("1ms")
        )
        for name in ("open", "high", "low", "close"):
            cells[name] = (cells[name] * 10_000).round().astype("int64")
        home = folder / "minute" / str(symbol).lower()
        home.mkdir(parents=True, exist_ok=True)
        name = f"{day}_{str(symbol).lower()}_minute_trade.csv"
        with zipfile.ZipFile(home / f"{day}_trade.zip", "w") as archive:
            archive.writestr(name, cells.to_csv(index=False, header=False))
    return folder / "minute"


def market_of(source, **values):
    return make_market(
        validate(DataSettings, {"source": {"kind": "files", **source}, **PLAIN, **values}, "test")
    )


def assert_equal_markets(one, other):
    assert one.symbols == other.symbols
    for name in ("open", "close", "volume", "features", "context"):
        np.testing.assert_array_equal(
            np.asarray(getattr(one, name)), np.asarray(getattr(other, name)), err_msg=name
        )


LAYOUTS = [polygon_api, databento, lean, utc, single, with_seconds, german]


@pytest.mark.parametrize("write", LAYOUTS)
def test_what_is_found_builds_the_market_that_was_written(tmp_path, write):
    table = minute_table(2, 8)
    expected = market_of({"path": str(write_csv(tmp_path / "plain", table))})
    path = write(tmp_path, table)
    found = detect(str(path))
    assert (found.bar_minutes, len(found.sessions), found.symbols) == (1, 8, ("AAA", "BBB"))
    assert_equal_markets(market_of({"path": str(path), **found.source}), expected)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"ts": ["2016-01-04"], "ticker": ["A"], "price": [1]}),
        minute_table(1, 1).drop(columns="ts"),
        minute_table(1, 1).assign(ts="noon"),
    ],
    ids=["no prices", "no time", "noon"],
)
def test_nothing_to_be_inferred(tmp_path, table, capsys):
    bars = write_csv(tmp_path, table)
    out = tmp_path / "my.yaml"
    with pytest.raises(SystemExit, match="2"):
        main(["init", str(bars), "--out", str(out)])
    said = capsys.readouterr().err
    assert said.startswith("fintrader: ")
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.slow
def test_from_a_strangers_file_to_a_backtest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = minute_table(3, 30).rename(
        columns={"ts": "Timestamp", "ticker": "Symbol", "volume": "Volume"}
    )
    write_csv(tmp_path, table, "my.csv")
    main(["init", "my.csv"])
    main(
        [
            "run",
            "my.yaml",
            "--tournament.budget.env-steps",
            "640",
            "--tournament.pods",
            "2",
            "--tournament.workers",
            "1",
            "--backtest.null-model",
            "False",
        ]
    )
    assert json.loads((tmp_path / "runs" / "my" / "backtest" / "metrics.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("a_day", [1, 13])
@pytest.mark.parametrize("sessions", [149, 150, 230])
def test_from_a_file_of_many_days_to_a_backtest(tmp_path, monkeypatch, sessions, a_day):
    """From 150 sessions on what is judged has 120, and what `init` writes judges agents where they
    were not trained."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path, days_table(sessions, a_day), "my.csv")
    main(["init", "my.csv"])
    written = validate(RunConfig, yaml.safe_load(Path("my.yaml").read_text()), "my.yaml")
    careful = sessions >= 150
    assert (written.tournament.validation == "kfold") is careful
    assert (written.tournament.ensemble_shrinkage == "james_stein") is careful
    assert written.env.decision_interval in ({a_day} if careful else {1})
    assert written.tournament.fresh == 1.0
    main(
        [
            "run",
            "my.yaml",
            "--tournament.budget.env-steps",
            "12000",
            "--backtest.null-model",
            "False",
        ]
    )
    figures = json.loads((tmp_path / "runs" / "my" / "backtest" / "metrics.json").read_text())
    assert figures


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
