"""Every number on screen is the stored one.

What a report shows as well is compared in `tests/results`: texts in `test_same_text.py`, charts in
`test_figures.py`.
"""

import html
import json
import math
import re
import sqlite3

import numpy as np
import pandas as pd
import pytest
from streamlit.proto.Metric_pb2 import Metric

from fintrader.backtesting import read_backtest
from fintrader.market.tensors import MarketTensors
from fintrader.numerals import DASH, count, percent, ratio
from fintrader.results.formatting import PAPER_COLUMNS, duration, statistic
from fintrader_app import tables
from fintrader_app.sections import read_numbers
from tests.app.conftest import box, cards, healthy, said, table_with, texts_of
from tests.results.test_figures import numbers

OF_A_YEAR = {
    "annual_return",
    "annual_volatility",
    "calmar",
    "active_return",
    "tracking_error",
    "turnover",
}
NO_COLOUR = Metric.MetricColor.GRAY


def stored(path):
    return json.loads(path.read_text())


def find_metrics(site, name):
    """The stored metrics of each strategy; how they follow from returns is the metrics' own tests'
    concern."""
    return dict(stored(site / "runs" / name / "backtest" / "metrics.json"))


def test_headline_cards_are_the_stored_metrics(open_page, template):
    test = open_page(template, "runs", run="demo")
    metrics = find_metrics(template, "demo")
    mine = metrics["ensemble"]
    shown = {metric.label: metric for metric in test.metric}
    assert set(shown) == {title for _, title in tables.SHORT_HEADLINE}, (
        "ten sessions have no figures of a year"
    )
    assert shown["Sessions"].value == "10"
    for key, title in tables.SHORT_HEADLINE[:-1]:
        assert shown[title].value == statistic(key, mine[key]), key
        assert not shown[title].delta, "its benchmark portfolio is cash"


def test_a_difference_names_the_benchmark_portfolio(open_page, site):
    """The verdict's yardstick, not another one next to it."""
    path = site / "runs" / "demo" / "backtest" / "context.json"
    path.write_text(json.dumps(stored(path) | {"portfolio": "equal_weight"}))
    metrics = find_metrics(site, "demo")
    shown = {metric.label: metric for metric in open_page(site, "backtest", run="demo").metric}
    for key, title in tables.SHORT_HEADLINE[:-1]:
        away = metrics["ensemble"][key] - metrics["equal_weight"][key]
        assert shown[title].delta == f"{statistic(key, away, signed=True)} vs equal weight", key
        assert shown[title].proto.color == NO_COLOUR, "luck is neither green nor red"
    for name, words in (("equal_weight", ""), ("best", " vs equal weight")):
        test = open_page(site, "backtest", run="demo", strategy=name)
        assert test.metric[0].delta.endswith(words)


def test_the_list_of_runs_holds_their_metrics_and_nothing_invented(open_page, template):
    table = open_page(template, "runs").dataframe[0].value.set_index("name")
    columns = {"return": "cumulative_return", "sharpe": "sharpe", "drawdown": "max_drawdown"}
    for name in ("demo", "second"):
        metrics = find_metrics(template, name)
        assert {column: table.loc[name, column] for column in columns} == {
            column: metrics["ensemble"][key] for column, key in columns.items()
        }
        assert table.loc[name, "index"] == metrics["benchmark"]["cumulative_return"]
        assert table.loc[name, "trials"] == 7
    for name in ("started", "racing", "raced"):
        assert table.loc[name, ["return", "index", "sharpe", "drawdown"]].isna().all()


def test_before_the_table_stand_its_first_rows(open_page, template):
    """As HTML, which needs none of a table's code; the table then holds the same runs in the same
    order."""
    first = open_page(template, "runs", ready=False)
    assert not first.dataframe
    assert not first.get("plotly_chart")
    rows = re.findall(
        r"<tr>(<td>.*?)</tr>", "".join(element.proto.body for element in first.get("html"))
    )
    table = open_page(template, "runs").dataframe[0].value
    assert len(rows) == min(len(table), 8) > 3
    for row, known in zip(rows, table.to_dict("records"), strict=False):
        name, status, verdict, returned, index = re.findall(r"<td>(.*?)</td>", row)
        assert (status, name, verdict) == (
            known["status"],
            known["name"],
            html.escape(known["verdict"]),
        )
        for told, value in ((returned, known["return"]), (index, known["index"])):
            assert told == (DASH if np.isnan(value) else f"{value:.2%}")


def test_a_tournaments_numbers_are_those_of_its_leaderboard(open_page, template):
    test = open_page(template, "tournament", run="demo")
    shown = cards(test)
    with sqlite3.connect(template / "runs" / "demo" / "leaderboard.sqlite") as connection:
        rows = connection.execute(
            "SELECT score, env_steps, started, finished, status FROM entries"
        ).fetchall()
    scores = [row[0] for row in rows if row[0] is not None]
    span = max(row[3] for row in rows) - min(row[2] for row in rows)
    assert shown["Pods done"] == count(len(rows))
    assert shown["Failed"] == count(sum(row[4] == "failed" for row in rows))
    assert shown["Best score"] == ratio(max(scores), 3)
    assert shown["Elapsed"] == duration(span)
    worked = ended = 0.0
    for began, over in sorted(row[2:4] for row in rows):
        worked += max(over - max(began, ended), 0.0)
        ended = max(ended, over)
    assert shown["Env-steps"] == f"{sum(row[1] for row in rows) / worked / 1000:.3g} k/s"
    board = test.dataframe[0].value
    assert board[board["pod"] != "benchmark"]["score"].tolist() == sorted(scores, reverse=True)
    assert board["score"].is_monotonic_decreasing
    assert board[board["pod"] == "benchmark"][["rank", "score"]].isna().values.tolist() == [
        [True, False]
    ]


def test_a_decision_lists_its_fills(open_page, template):
    test = open_page(template, "backtest", run="demo", part="decisions", clock="utc")
    trades = read_backtest(template / "runs" / "demo" / "backtest")
    chosen = box(test, "Decided at the close of this bar (UTC)").value
    mine = trades.select_trades("ensemble")
    bars = trades.minutes[mine["decision_bar"]].strftime("%Y-%m-%d %H:%M")
    mine = mine[bars == chosen]
    assert 0 < len(mine) < len(bars)
    listed = table_with(test, "decision_time")
    assert listed["symbol"].tolist() == mine["symbol"].astype(str).tolist()
    assert listed["price_usd"].tolist() == mine["price_usd"].tolist()


def choose_row(test, key, place):
    (key,) = (name for name in test.session_state if name.startswith(key))
    test.session_state[key] = {"selection": {"rows": [place], "columns": [], "cells": []}}
    test.run()
    healthy(test)
    assert not test.warning
    return test


def test_a_fill_leads_to_its_decision_and_back(open_page, template):
    trades = read_backtest(template / "runs" / "demo" / "backtest")
    known = [*trades.explanation.times]
    query = {"run": "demo", "part": "trades", "strategy": "ensemble", "clock": "utc"}
    test = open_page(template, "backtest", **query)
    fills = table_with(test, "fill_time")
    ours = trades.select_fills("ensemble")
    symbol = fills["symbol"].iloc[0]
    mine = ours[(ours["symbol"] == symbol).to_numpy()]
    times = trades.minutes[mine["decision_bar"]]
    assert len(mine) == len(fills)
    for is_examined in (True, False):
        place = next(k for k, time in enumerate(times) if (time in known) == is_examined)
        test = open_page(template, "backtest", **query)
        test = choose_row(test, "trades_table", place)
        chosen = box(test, "Decided at the close of this bar (UTC)").value
        assert chosen == times[place].strftime("%Y-%m-%d %H:%M")
        assert ("Not among the" in said(test)) != is_examined
        listed = table_with(test, "fill_time")
        back = listed["symbol"].tolist().index(symbol)
        test = choose_row(test, "decision_fills", back)
        assert box(test, "Symbol, most traded first").value == symbol
        assert box(test, "Strategy").value == "ensemble"
        filled = listed["fill_time"].iloc[back]
        assert filled in table_with(test, "fill_time")["fill_time"].tolist()
        assert box(test, "Session").value == filled.strftime("%Y-%m-%d")


def test_only_an_explained_order_leads_to_a_decision(open_page, site):
    test = open_page(site, "backtest", run="demo", part="trades", strategy="buy_and_hold")
    assert table_with(test, "fill_time") is not None
    assert "Choose a fill" not in said(test)
    path = site / "runs" / "demo" / "backtest" / "trades.parquet"
    rows = pd.read_parquet(path)
    rows.assign(
        kind=rows["kind"].astype(str).where(rows["strategy"] != "ensemble", "forced")
    ).to_parquet(path)
    test = open_page(site, "backtest", run="demo", part="trades", strategy="ensemble")
    test = choose_row(test, "trades_table", 0)
    assert "follows from no decision" in said(test)


@pytest.mark.parametrize("pod", ["p0000", "p0003", "p0006"])
def test_a_pods_cards_and_curves_are_those_of_its_files(open_page, template, pod):
    demo = template / "runs" / "demo"
    with sqlite3.connect(demo / "leaderboard.sqlite") as connection:
        connection.row_factory = sqlite3.Row
        query = "SELECT p.*, e.* FROM pods p JOIN entries e ON e.pod = p.pod WHERE p.pod = ?"
        row = dict(connection.execute(query, (pod,)).fetchone())
    result = stored(demo / "pods" / pod / "result.json")
    test = open_page(template, "pod", run="demo", pod=pod)
    assert cards(test) == {
        "Score": ratio(result["score"], 3),
        "State": result["status"] + (f" ({result['reason']})" if result["reason"] else ""),
        "Origin": f"{row['origin']} of {row['parent']}" if row["parent"] else row["origin"],
        "Generation": count(row["generation"]),
        "Env-steps": count(result["env_steps"]),
        "With ancestors": count(row["lineage_env_steps"]),
        "Took": duration(result["seconds"]),
    }
    lines = [
        json.loads(line)
        for line in (demo / "pods" / pod / "metrics.jsonl").read_text().splitlines()
    ]
    drawn = json.loads(test.get("plotly_chart")[0].proto.spec)["data"][0]["y"]
    assert numbers(drawn) == [line["entropy"] for line in lines]


def test_a_markets_numbers_are_those_of_its_tensors(open_page, template):
    market = MarketTensors.load(template / "data" / "tensors" / "market-0.safetensors")
    shown = cards(open_page(template, "market", run="demo"))
    assert shown["Bars"] == count(market.num_bars)
    assert shown["Symbols"] == count(market.num_assets)
    assert shown["Traded cells"] == percent(float(market.tradable.float().mean()), 1)
    assert shown["Sessions"] == count(len(np.unique(market.session)))
    assert shown["Features"] == f"{len(market.feature_names)} + {len(market.context_names)}"
    assert shown["Index"] == market.benchmark_name


def test_a_comparison_shows_every_metric_and_how_far_it_is_from_the_first(open_page, template):
    lines = ("demo / ensemble", "second / best")
    test = open_page(template, "compare", runs="demo,second", lines=",".join(lines))
    table = table_with(test, "Metric").set_index("Metric")
    one = find_metrics(template, "demo")["ensemble"]
    two = find_metrics(template, "second")["best"]
    keys = {tables.find_title(key): key for key in one}
    assert table.loc["Benchmark portfolio"].tolist() == ["Cash", "Cash"]
    assert "Beta, against the index" in table.index
    table = table.drop(index="Benchmark portfolio")
    assert len(table) == 15
    for title, row in table.iterrows():
        key = keys[str(title)]
        if key in OF_A_YEAR:
            assert row[lines[0]] == row[lines[1]] == DASH, key
            continue
        assert row[lines[0]] == statistic(key, one.get(key)), key
        told = statistic(key, two.get(key))
        if one.get(key) is not None and two.get(key) is not None:
            told += f"  ({statistic(key, two[key] - one[key], signed=True)})"
        assert row[lines[1]] == told, key


@pytest.mark.slow
def test_the_evidence_says_what_was_found_and_what_was_not_asked_for(open_page, site):
    test = open_page(site, "honesty", run="demo")
    control = table_with(test, "Strategy", texts_of).set_index("Strategy").loc["Null model"]
    metrics = stored(site / "runs" / "demo" / "backtest" / "context.json")["null_model"]
    for key, title in PAPER_COLUMNS:
        assert control[title] == (DASH if key in OF_A_YEAR else statistic(key, metrics.get(key))), (
            key
        )
    assert "No look-ahead was found" in said(test)
    assert "Not proved, for lack of time: 3 of 9 other bars" in said(test)
    assert "not computed" not in said(test)
    assert "not run" not in said(test)
    words = said(open_page(site, "honesty", run="second")).replace("\\", "")
    assert "Probability of backtest overfitting: not computed" in words
    assert "features without information was not run" in words
    assert f"fintrader lookahead {site.resolve()}/runs/second/config.yaml" in words
    leaks = ["close: bar 3 changes when bars from 9 on do", "fill: bar 4"]
    (site / "runs" / "demo" / "lookahead.json").write_text(json.dumps({"leaks": leaks}))
    test = open_page(site, "honesty", run="demo")
    assert "2 look-ahead leaks" in test.error[0].value
    assert table_with(test, "Leak")["Leak"].tolist() == leaks
    found = {"leaks": leaks * 150, "alarms": [], "untried": ["reward of an own class"]}
    (site / "runs" / "demo" / "lookahead.json").write_text(json.dumps(found))
    test = open_page(site, "honesty", run="demo")
    assert "300 look-ahead leaks" in test.error[0].value
    assert "could not be built: reward of an own class" in said(test)


CHOICES = {
    "backtest": {
        "run": "demo",
        "strategy": "best",
        "compared": "ensemble,benchmark",
        "part": "risk",
    },
    "pod": {"run": "demo", "pod": "p0002", "pods": "p0001,p0005"},
    "new_run": {"source": "configs/podracer.yaml", "section": "env"},
    "compare": {"runs": "demo,second", "lines": "demo / best,second / benchmark"},
}


@pytest.mark.slow
@pytest.mark.parametrize("page", CHOICES)
def test_choices_come_from_the_address_and_stay_in_it(open_page, template, page):
    test = open_page(template, page, times=2, **CHOICES[page])
    healthy(test)
    assert "is not here" not in said(test)
    assert "Not everything" not in said(test)
    for key, value in CHOICES[page].items():
        assert test.query_params[key] in (value, [value]), key
    chosen, wanted = {
        "backtest": lambda: (test.get("button_group")[0].value, "compared"),
        "pod": lambda: (test.multiselect[0].value, "pods"),
        "new_run": lambda: ([box(test, "Start from").value], "source"),
        "compare": lambda: (test.multiselect[1].value, "lines"),
    }[page]()
    assert chosen == CHOICES[page][wanted].split(",")
    if page == "pod":
        test.multiselect[0].set_value(["p0004"]).run()
        assert test.query_params["pods"] in ("p0004", ["p0004"])


@pytest.mark.parametrize(
    ("cells", "order"),
    [
        (["0.00 %", "-0.00 %", "1.00 %"], [0, 1, 2]),
        (["$100", "-$1,234", "$100.00", "–"], [1, 0, 2]),
        (["9", "10", "-1"], [2, 0, 1]),
    ],
)
def test_a_column_sorts_by_number_and_shows_its_cells(cells, order):
    numbers = read_numbers(cells)
    known = [place for place, number in enumerate(numbers) if not math.isnan(number)]
    assert sorted(known, key=numbers.__getitem__) == order
    assert len({numbers[place] for place in known}) == len(known), "each leads back to its cell"


@pytest.mark.parametrize("cells", [["1 %", "$1"], ["1.2 M", "3"], ["–", "–"], ["2 h 5 min"], []])
def test_a_column_without_one_unit_stays_text(cells):
    assert read_numbers(cells) is None
