"""Every number on screen equals one recomputed from stored artifacts by other means."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import empyrical
import numpy as np
import pandas as pd
import pytest

from fintrader.results.formatting import count, duration, percent, probability, ratio
from tests.app.conftest import Open


def stored(site: Path, name: str, strategy: str) -> dict[str, Any]:
    """Headline metrics from equity.parquet alone, by empyrical."""
    frame = pd.read_parquet(site / "runs" / name / "backtest" / "equity.parquet")
    rows = frame[frame["strategy"] == strategy]
    closes = rows.groupby("session")["equity_usd"].last().to_numpy()
    wealth = np.concatenate([[rows["equity_usd"].iloc[0]], closes])
    daily = pd.Series(wealth[1:] / wealth[:-1] - 1)
    return {
        "Return": wealth[-1] / wealth[0] - 1,
        "Annual return": empyrical.annual_return(daily),
        "Volatility": empyrical.annual_volatility(daily),
        "Sharpe": empyrical.sharpe_ratio(daily),
        "Max drawdown": empyrical.max_drawdown(daily),
        "Calmar": empyrical.calmar_ratio(daily),
    }


SHOWN = {
    "Return": percent,
    "Annual return": percent,
    "Volatility": percent,
    "Sharpe": ratio,
    "Max drawdown": percent,
    "Calmar": ratio,
}


@pytest.mark.parametrize("name", ["demo", "second"])
@pytest.mark.parametrize("page", ["runs", "backtest"])
def test_headline_cards(open_page: Open, template: Path, page: str, name: str) -> None:
    test = open_page(template, page, run=name)
    mine, index = stored(template, name, "ensemble"), stored(template, name, "benchmark")
    shown = {metric.label: metric for metric in test.metric}
    assert set(shown) == set(SHOWN)
    for label, wording in SHOWN.items():
        assert shown[label].value == wording(mine[label]), label
        assert shown[label].delta == wording(mine[label] - index[label], signed=True), label


@pytest.mark.parametrize("strategy", ["best", "equal_weight", "benchmark"])
def test_cards_of_another_strategy(open_page: Open, template: Path, strategy: str) -> None:
    test = open_page(template, "backtest", run="demo", strategy=strategy)
    mine = stored(template, "demo", strategy)
    for metric in test.metric:
        assert metric.value == SHOWN[metric.label](mine[metric.label]), metric.label


def test_paper_table(open_page: Open, template: Path) -> None:
    test = open_page(template, "runs", run="demo")
    table = next(frame.value for frame in test.dataframe if "Strategy" in frame.value)
    assert len(table) >= 5
    for row in table.to_dict("records"):
        values = stored(template, "demo", row["Strategy"].lower().replace(" ", "_"))
        for label, wording in SHOWN.items():
            assert row[label] == wording(values[label]), (row["Strategy"], label)


def test_run_list(open_page: Open, template: Path) -> None:
    table = open_page(template, "runs").dataframe[0].value.set_index("name")
    for name in ("demo", "second"):
        mine, index = stored(template, name, "ensemble"), stored(template, name, "benchmark")
        assert table.loc[name, "return"] == pytest.approx(mine["Return"], abs=1e-12)
        assert table.loc[name, "index"] == pytest.approx(index["Return"], abs=1e-12)
        assert table.loc[name, "sharpe"] == pytest.approx(mine["Sharpe"], abs=1e-9)
        assert table.loc[name, "drawdown"] == pytest.approx(mine["Max drawdown"], abs=1e-12)
        assert table.loc[name, "trials"] == 7
    for name in ("started", "racing", "raced"):
        assert table.loc[name, ["return", "index", "sharpe", "drawdown"]].isna().all()


def test_all_metrics_table(open_page: Open, template: Path) -> None:
    test = open_page(template, "backtest", run="demo", part="metrics")
    table = test.dataframe[0].value
    metrics = json.loads((template / "runs" / "demo" / "backtest" / "metrics.json").read_text())["ensemble"]
    assert len(table) == len(metrics)
    row = table.set_index("Metric").loc["Max drawdown"]
    assert row["Ensemble"] == percent(stored(template, "demo", "ensemble")["Max drawdown"])
    undefined = sum(value is None for value in metrics.values())
    assert (table["Ensemble"] == "–").sum() == undefined


def chart(test: Any, position: int) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(test.get("plotly_chart")[position].proto.spec)
    return spec


def numbers(values: Any) -> np.ndarray[Any, Any]:
    """An array as plotly sends it: a list, or base64 of its bytes."""
    if isinstance(values, dict):
        import base64

        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=np.dtype(values["dtype"]))
    return np.asarray(values, dtype=float)


def test_drawn_extremes_are_exact(open_page: Open, template: Path) -> None:
    test = open_page(template, "backtest", run="demo")
    frame = pd.read_parquet(template / "runs" / "demo" / "backtest" / "equity.parquet")
    mine = frame[frame["strategy"] == "ensemble"]["equity_usd"]
    drawn = numbers(chart(test, 0)["data"][0]["y"])
    assert drawn.max() == mine.max()
    assert drawn.min() == mine.min()
    assert drawn[-1] == mine.iloc[-1]
    below = numbers(chart(test, 1)["data"][0]["y"])
    assert below.min() == pytest.approx(stored(template, "demo", "ensemble")["Max drawdown"], abs=1e-15)


def test_tournament_numbers(open_page: Open, template: Path) -> None:
    test = open_page(template, "tournament", run="demo")
    shown = {metric.label: metric.value for metric in test.metric}
    with sqlite3.connect(template / "runs" / "demo" / "leaderboard.sqlite") as connection:
        rows = connection.execute("SELECT score, env_steps, started, finished, status FROM entries").fetchall()
    scores = [row[0] for row in rows if row[0] is not None]
    span = max(row[3] for row in rows) - min(row[2] for row in rows)
    assert shown["Pods done"] == count(len(rows))
    assert shown["Failed"] == count(sum(row[4] == "failed" for row in rows))
    assert shown["Best score"] == ratio(max(scores), 3)
    assert shown["Elapsed"] == duration(span)
    assert shown["Env-steps"] == f"{sum(row[1] for row in rows) / span / 1000:.3g} k/s"
    board = test.dataframe[0].value
    assert board["score"].tolist() == sorted(scores, reverse=True)


def test_pod_numbers(open_page: Open, template: Path) -> None:
    test = open_page(template, "pod", run="demo", pod="p0001")
    result = json.loads((template / "runs" / "demo" / "pods" / "p0001" / "result.json").read_text())
    shown = {metric.label: metric.value for metric in test.metric}
    assert shown["Score"] == ratio(result["score"], 3)
    assert shown["Env-steps"] == count(result["env_steps"])
    lines = [json.loads(line) for line in (template / "runs/demo/pods/p0001/metrics.jsonl").read_text().splitlines()]
    faint = numbers(chart(test, 0)["data"][0]["y"])
    assert faint.tolist() == [line["value_loss"] for line in lines]


def test_honesty_numbers(open_page: Open, template: Path) -> None:
    test = open_page(template, "honesty", run="demo")
    report = json.loads((template / "runs" / "demo" / "backtest" / "honesty.json").read_text())
    shown = {metric.label: metric.value for metric in test.metric}
    assert shown["Trials"] == "7"
    assert shown["Sharpe"] == ratio(stored(template, "demo", "ensemble")["Sharpe"])
    assert shown["Deflated Sharpe"] == probability(report["sharpe"]["deflated"])
    assert shown["Best by luck"] == ratio(report["sharpe"]["expected_best"])


def test_compare_differences(open_page: Open, template: Path) -> None:
    test = open_page(template, "compare", runs="demo,second", lines="demo / ensemble,second / ensemble")
    table = test.dataframe[-1].value.set_index("Metric")
    one, two = stored(template, "demo", "ensemble"), stored(template, "second", "ensemble")
    row = table.loc["Sharpe ratio"]
    assert row["demo / ensemble"] == ratio(one["Sharpe"])
    assert row["second / ensemble"] == f"{ratio(two['Sharpe'])}  ({ratio(two['Sharpe'] - one['Sharpe'], signed=True)})"


def test_market_numbers(open_page: Open, template: Path) -> None:
    from fintrader.data.tensors import MarketTensors

    market = MarketTensors.load(template / "data" / "tensors" / "market-0.safetensors")
    test = open_page(template, "market", run="demo")
    shown = {metric.label: metric.value for metric in test.metric}
    assert shown["Bars"] == count(market.num_bars)
    assert shown["Symbols"] == count(market.num_assets)
    assert shown["Traded cells"] == percent(float(market.tradable.float().mean()), 1)


def test_monthly_returns_multiply_to_the_total(template: Path) -> None:
    from fintrader.results.folders import RunsFolder
    from fintrader_app import analysis, artifacts

    found = artifacts.backtest(RunsFolder.at(template / "runs").run("demo"))
    table = analysis.monthly_table(found.curve()["ensemble"], found.session)
    total = float(np.nanprod(1 + table.to_numpy())) - 1
    assert total == pytest.approx(stored(template, "demo", "ensemble")["Return"], abs=1e-12)


def test_deepest_drawdown_row_is_the_metric(template: Path) -> None:
    from fintrader.results.folders import RunsFolder
    from fintrader_app import analysis, artifacts

    found = artifacts.backtest(RunsFolder.at(template / "runs").run("demo"))
    for name in found.strategies:
        rows = analysis.drawdown_rows(found.daily_with_start()[name])
        deepest = rows["Depth"].iloc[0] if len(rows) else 0.0
        assert deepest == pytest.approx(stored(template, "demo", name)["Max drawdown"], abs=1e-15)
