"""Compare: two to eight strategies, of one run or of several, overlaid."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from fintrader.errors import FintraderError
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.figures.style import escape_label
from fintrader.results.folders import NotThereError, RunsFolder
from fintrader.results.formatting import DASH, format_metric, number, statistic
from fintrader.results.sections import BacktestView
from fintrader.results.sections.comparison import present_comparison
from fintrader.results.strategy_metrics import NO_METRICS
from fintrader_app import artifacts, charts, tables
from fintrader_app.artifacts import load_summaries
from fintrader_app.sections import draw, draw_verdict
from fintrader_app.shell import choose_several, guarded, page, plain
from fintrader_app.tables import table

MOST = 8
KEYS = (
    "cumulative_return",
    "annual_return",
    "annual_volatility",
    "sharpe",
    "sortino",
    "max_drawdown",
    "calmar",
    "invested_share",
    "active_return",
    "tracking_error",
    "information_ratio",
    "turnover",
    "cost_usd",
    "beta",
    "final_equity_usd",
)


def render(runs: RunsFolder) -> None:
    names = [run.name for run in load_summaries(runs) if run.metrics]
    if not names:
        raise NotThereError("there is no finished backtest to compare yet")
    chosen = choose_several("Runs", names, "runs", names[:2], MOST)
    if not chosen:
        st.info("Choose at least one run.", icon=":material/compare_arrows:")
        return
    stored = load(runs, chosen)
    if not stored:
        return
    options = [
        f"{run} / {strategy}"
        for run, backtest in stored.items()
        for strategy in backtest.strategies
    ]
    default = [f"{run} / {backtest.strategies[0]}" for run, backtest in stored.items()]
    if len(stored) == 1:
        default = options[: min(4, len(options))]
    lines = choose_several("Strategies", options, "lines", default[:MOST], MOST)
    if len(lines) < 2:
        st.info("Choose at least two strategies.", icon=":material/compare_arrows:")
        return
    chosen_lines = {line: stored[run_of(line)] for line in lines}
    with guarded():
        backtests = {run_of(line): backtest for line, backtest in chosen_lines.items()}
        draw(present_comparison(backtests), ())
        for run, backtest in backtests.items():
            draw_verdict(BacktestView.of(backtest), run)
    overlay(
        chosen_lines,
        tuple((line, artifacts.backtest_version(runs.run(run_of(line)))) for line in lines),
    )
    with guarded():
        differences(chosen_lines)
    if len(chosen) > 1:
        with guarded():
            settings(runs, list(chosen))


def load(runs: RunsFolder, names: list[str]) -> dict[str, StoredBacktest]:
    """The backtests that can be read; a message for each that cannot."""
    found = {}
    for name in names:
        try:
            found[name] = artifacts.backtest(runs.run(name))
        except FintraderError as error:
            st.error(f"{plain(name)}: {plain(error)}", icon=":material/error:")
    return found


def run_of(line: str) -> str:
    return line.partition(" / ")[0]


def strategy_of(line: str) -> str:
    return line.partition(" / ")[2]


def overlay(chosen: dict[str, StoredBacktest], version: Hashable) -> None:
    """Growth and drawdown of each strategy, from session closes."""

    def figure(**look: Any) -> go.Figure:
        daily = {
            line: backtest.daily_returns()[strategy_of(line)] for line, backtest in chosen.items()
        }
        return figures.growth_figure(daily, **look)

    first = next(iter(chosen.values()))
    if not all(backtest.minutes.equals(first.minutes) for backtest in chosen.values()):
        st.warning("These backtests cover different windows; their figures are not like for like.")
    st.subheader("Wealth, multiples of the start", anchor=False)
    charts.show(figure, "compare_equity", height=400, version=version)
    st.subheader("Drawdown, from session closes", anchor=False)
    charts.show(partial(figure, drawdown=True), "compare_drawdown", height=280, version=version)


def differences(chosen: dict[str, StoredBacktest]) -> None:
    """Metrics side by side, and their differences from the first."""
    st.subheader("Metrics", anchor=False)
    lines = list(chosen)
    base = st.selectbox("Differences from", lines, key=f"compare_base_{len(lines)}")
    values = {
        line: backtest.metrics.get(strategy_of(line), NO_METRICS)
        for line, backtest in chosen.items()
    }
    rows = []
    for key in KEYS:
        row = {"Metric": tables.find_title(key)}
        zero = number(values[base][key])
        for line in lines:
            own = number(values[line][key])
            text = format_metric(key, values[line])
            if line != base and text != DASH and own is not None and zero is not None:
                text += f"  ({statistic(key, own - zero, signed=True)})"
            row[line] = text
        rows.append(row)
    config = {
        line: st.column_config.TextColumn(escape_label(line), alignment="right") for line in lines
    }
    config["Metric"] = st.column_config.TextColumn(pinned=True)
    table(rows, "compare_table", height="content", column_config=config)
    tables.explain_dashes(values.values())


def settings(runs: RunsFolder, names: list[str]) -> None:
    """In what the runs were made differently."""
    st.subheader("Settings that differ", anchor=False)
    found = {}
    for name in names:
        try:
            found[name] = artifacts.load_config(runs.run(name))
        except FintraderError as error:
            st.error(f"{plain(name)}: {plain(error)}", icon=":material/error:")
    if len(found) > 1:
        tables.show_differing_settings(found, "compare_settings")


page("Compare", render)
