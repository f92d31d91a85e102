"""Row by row: every value in a table or on a card is the stored one, and nothing stored is left out."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fintrader.results.catalogue import BY_KEY
from fintrader.results.formatting import chance, count, duration, percent, probability, ratio, statistic
from fintrader_app import metric_table
from fintrader_app.wording import human
from tests.app.conftest import Open, healthy, said
from tests.app.test_numbers import chart, numbers


def stored(site: Path, *parts: str) -> Any:
    return json.loads((site / "runs" / "demo").joinpath(*parts).read_text())


def cards(test: Any) -> dict[str, str]:
    return {metric.label: metric.value for metric in test.metric}


def table_with(test: Any, column: str) -> pd.DataFrame:
    return next(frame.value for frame in test.dataframe if column in frame.value)


def value_of(text: str) -> float:
    """What a reader takes a metric's text for."""
    for word in ("$", ",", "%", "bps", "sessions", "minutes"):
        text = text.replace(word, "")
    return float(text)


@pytest.mark.parametrize("strategy", ["ensemble", "buy_and_hold"])
def test_all_metrics(open_page: Open, template: Path, strategy: str) -> None:
    test = open_page(template, "backtest", run="demo", part="metrics", strategy=strategy, beside="benchmark")
    table = table_with(test, "Formula").set_index("Metric")
    metrics = stored(template, "backtest", "metrics.json")
    assert {human(name) for name in (strategy, "benchmark")} <= set(table.columns)
    for name in (strategy, "benchmark"):
        for key, value in metrics[name].items():
            shown = table.loc[BY_KEY[key].title if key in BY_KEY else human(key), human(name)]
            if value is None:
                assert shown == "–", key
                continue
            size = 100.0 if "%" in shown else 1.0
            assert value_of(shown) == pytest.approx(value * size, abs=0.5 if abs(value * size) >= 100 else 0.006), key


def test_every_row_of_compare(open_page: Open, template: Path) -> None:
    lines = ("demo / ensemble", "second / best")
    test = open_page(template, "compare", runs="demo,second", lines=",".join(lines))
    table = test.dataframe[-1].value.set_index("Metric")
    one = stored(template, "backtest", "metrics.json")["ensemble"]
    two = json.loads((template / "runs/second/backtest/metrics.json").read_text())["best"]
    keys = {metric_table.title_of(key): key for key in one}
    assert len(table) == 13
    for title, row in table.iterrows():
        key = keys[str(title)]
        assert row[lines[0]] == statistic(key, one.get(key)), key
        told = statistic(key, two.get(key))
        if one.get(key) is not None and two.get(key) is not None:
            told += f"  ({statistic(key, two[key] - one[key], signed=True)})"
        assert row[lines[1]] == told, key


def test_honesty_cards(open_page: Open, template: Path) -> None:
    report = stored(template, "backtest", "honesty.json")
    shown = cards(open_page(template, "honesty", run="demo"))
    sharpe = report["sharpe"]
    assert shown == {
        "Trials": count(report["trials"]),
        "Sharpe": ratio(sharpe["sharpe"]),
        "95 % interval": f"{ratio(sharpe['low'])} to {ratio(sharpe['high'])}",
        "Best by luck": ratio(sharpe["expected_best"]),
        "Deflated Sharpe": probability(sharpe["deflated"]),
        "Overfitting": probability(report["overfitting"]["probability"]),
        "Sessions": count(report["sessions"]),
    }


def test_honesty_tables(open_page: Open, template: Path) -> None:
    test = open_page(template, "honesty", run="demo")
    healthy(test)
    report = stored(template, "backtest", "honesty.json")
    bands = table_with(test, "Estimate")
    assert len(bands) == len(report["intervals"])
    for row, (key, band) in zip(bands.to_dict("records"), report["intervals"].items(), strict=True):
        expected = [statistic(key, band[name]) for name in ("low", "estimate", "high")]
        assert [row["Low"], row["Estimate"], row["High"]] == expected, key
    rivals = table_with(test, "Against").set_index("Against")
    assert len(rivals) == len(report["excess"])
    for name, one in report["excess"].items():
        row = rivals.loc[human(name)]
        assert row["Excess a year"] == percent(one["excess"], signed=True)
        assert (row["Low"], row["High"]) == (percent(one["low"], signed=True), percent(one["high"], signed=True))
        assert row["p, paired bootstrap"] == chance(one["p_value"])
        assert row["p, reality check"] == chance(report["superiority"][name]["reality_check"])
        assert row["p, SPA"] == chance(report["superiority"][name]["spa"])
    control = table_with(test, "Strategy").set_index("Strategy").loc["Control"]
    for key, title in metric_table.HEADLINE:
        assert control[title] == statistic(key, report["control"]["metrics"].get(key)), key


def test_honesty_panels_are_drawn(open_page: Open, template: Path) -> None:
    test = open_page(template, "honesty", run="demo")
    report = stored(template, "backtest", "honesty.json")
    drawn = [chart(test, k)["data"] for k in range(len(test.get("plotly_chart")))]
    bars = [numbers(data[0]["y"]).tolist() for data in drawn if data[0]["type"] == "bar" and data[0].get("width")]
    assert report["overfitting"]["logit_counts"] in bars
    assert report["random_portfolios"]["histogram"]["counts"] in bars
    above = report["random_portfolios"]["share_above"]
    words = said(test)
    assert f"cumulative return {percent(above['cumulative_return'])}" in words
    assert f"sharpe {percent(above['sharpe'], 1)}" in words
    assert f"{percent(report['overfitting']['probability'], 0)} of {count(report['overfitting']['splits'])}" in words
    assert "No look-ahead was found" in words
    assert "Not computed" not in words
    assert "not run" not in words


def test_honesty_sensitivity(open_page: Open, template: Path) -> None:
    test = open_page(template, "honesty", run="demo")
    rows = stored(template, "backtest", "sensitivity.json")
    swept = sorted((float(row["setting"]), row["cumulative_return"]) for row in rows if row["kind"] == "cost_bps")
    assert len(swept) >= 4
    drawn = [chart(test, k)["data"][0] for k in range(len(test.get("plotly_chart")))]
    points = [
        (numbers(data["x"]).tolist(), numbers(data["y"]).tolist())
        for data in drawn
        if data.get("mode") == "lines+markers"
    ]
    assert points == [([x for x, _ in swept], [y for _, y in swept])]
    others = [row for row in rows if row["kind"] != "cost_bps"]
    table = table_with(test, "Choice")
    assert len(table) == len(others) > 3
    for shown, row in zip(table.to_dict("records"), others, strict=True):
        assert shown["Setting"] == row["setting"] + (" (as run)" if row["chosen"] else "")
        assert (shown["Return"], shown["Sharpe"]) == (percent(row["cumulative_return"]), ratio(row["sharpe"]))


def test_leaks_are_shown(open_page: Open, site: Path) -> None:
    leaks = ["close: bar 3 changes when bars from 9 on are scrambled", "fill: bar 4"]
    (site / "runs/demo/lookahead.json").write_text(json.dumps({"leaks": leaks}))
    test = open_page(site, "honesty", run="demo")
    assert "2 leak(s)" in test.error[0].value
    assert table_with(test, "Leak")["Leak"].tolist() == leaks


def test_what_was_not_asked_for_is_said(open_page: Open, template: Path) -> None:
    words = said(open_page(template, "honesty", run="second"))
    assert words.count("Not computed") == 2
    assert "This control was not run" in words
    assert "fintrader lookahead" in words
    assert "First-order" in words


@pytest.mark.parametrize("pod", [f"p{k:04d}" for k in range(8)])
def test_every_card_of_a_pod(open_page: Open, template: Path, pod: str) -> None:
    with sqlite3.connect(template / "runs/demo/leaderboard.sqlite") as connection:
        connection.row_factory = sqlite3.Row
        query = "SELECT p.*, e.* FROM pods p JOIN entries e ON e.pod = p.pod WHERE p.pod = ?"
        row = dict(connection.execute(query, (pod,)).fetchone())
    result = stored(template, "pods", pod, "result.json")
    shown = {
        title: value.replace("\\", "")
        for title, value in cards(open_page(template, "pod", run="demo", pod=pod)).items()
    }
    assert shown == {
        "Score": ratio(result["score"], 3),
        "State": result["status"] + (f" ({result['reason']})" if result["reason"] else ""),
        "Origin": f"{row['origin']} of {row['parent']}" if row["parent"] else row["origin"],
        "Generation": count(row["generation"]),
        "Env-steps": count(result["env_steps"]),
        "With its line": count(row["lineage_env_steps"]),
        "Took": duration(result["seconds"]),
    }


def test_market_cards(open_page: Open, template: Path) -> None:
    from fintrader.data.tensors import MarketTensors

    market = MarketTensors.load(template / "data" / "tensors" / "market-0.safetensors")
    shown = cards(open_page(template, "market", run="demo"))
    assert shown["Sessions"] == count(len(np.unique(market.session)))
    assert shown["Features"] == f"{len(market.feature_names)} + {len(market.context_names)}"
    assert shown["Index"].replace("\\", "") == market.benchmark_name


CHOICES = {
    "backtest": {"run": "demo", "strategy": "best", "beside": "ensemble,benchmark", "part": "risk"},
    "pod": {"run": "demo", "pod": "p0002", "pods": "p0001,p0005"},
    "new_run": {"source": "configs/podracer.yaml", "section": "env"},
    "compare": {"runs": "demo,second", "lines": "demo / best,second / benchmark"},
}


@pytest.mark.parametrize("page", CHOICES)
def test_choices_come_from_the_address_and_stay_in_it(open_page: Open, template: Path, page: str) -> None:
    test = open_page(template, page, times=2, **CHOICES[page])
    healthy(test)
    assert "is not here" not in said(test)
    assert "Not everything" not in said(test)
    for key, value in CHOICES[page].items():
        assert test.query_params[key] in (value, [value]), key
    chosen = {
        "backtest": lambda: test.get("button_group")[0].value,
        "pod": lambda: test.multiselect[0].value,
        "new_run": lambda: [next(box for box in test.selectbox if box.label == "Start from").value],
        "compare": lambda: test.multiselect[1].value,
    }[page]()
    wanted = CHOICES[page][{"backtest": "beside", "pod": "pods", "new_run": "source", "compare": "lines"}[page]]
    assert chosen == wanted.split(",")


def test_a_choice_of_several_reaches_the_address(open_page: Open, template: Path) -> None:
    test = open_page(template, "pod", run="demo", pod="p0002")
    test.multiselect[0].set_value(["p0004"]).run()
    assert test.query_params["pods"] in ("p0004", ["p0004"])
