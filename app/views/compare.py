"""Compare: two to eight strategies, of one run or of several, overlaid."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from fintrader.errors import FintraderError
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.folders import NotThereError, RunsFolder
from fintrader.results.formatting import number, statistic
from fintrader_app import artifacts, charts, metric_table
from fintrader_app.artifacts import summaries
from fintrader_app.shell import guarded, linked_several, page, remember_several
from fintrader_app.wording import label, plain

MOST = 8
KEYS = (
    "cumulative_return",
    "annual_return",
    "annual_volatility",
    "sharpe",
    "sortino",
    "max_drawdown",
    "calmar",
    "turnover",
    "cost_usd",
    "exposure_mean",
    "beta",
    "information_ratio",
    "final_equity_usd",
)


def render(runs: RunsFolder) -> None:
    names = [run.name for run in summaries(runs) if run.metrics]
    if not names:
        raise NotThereError("there is no finished backtest to compare yet")
    chosen = pick(names, "runs", "Runs", names[:2])
    if not chosen:
        st.info("Choose at least one run.", icon=":material/compare_arrows:")
        return
    stored = load(runs, chosen)
    if not stored:
        return
    options = [f"{run} / {strategy}" for run, backtest in stored.items() for strategy in backtest.strategies]
    default = [f"{run} / {backtest.strategies[0]}" for run, backtest in stored.items()]
    if len(stored) == 1:
        default = options[: min(4, len(options))]
    lines = pick(options, "lines", "Strategies", default[:MOST])
    if len(lines) < 2:
        st.info("Choose at least two strategies.", icon=":material/compare_arrows:")
        return
    shown = {line: stored[line.partition(" / ")[0]] for line in lines}
    overlay(shown)
    with guarded():
        differences(shown)


def pick(options: list[str], key: str, title: str, default: list[str]) -> list[str]:
    """A multiselect that is part of the page's address."""
    widget = linked_several(key, options, default, MOST)
    value: list[str] = st.multiselect(title, options, max_selections=MOST, key=widget)
    remember_several(key, value)
    return value


def load(runs: RunsFolder, names: list[str]) -> dict[str, StoredBacktest]:
    """The backtests that can be read; a message for each that cannot."""
    found = {}
    for name in names:
        try:
            found[name] = artifacts.backtest(runs.run(name))
        except FintraderError as error:
            st.error(f"{plain(name)}: {plain(error)}", icon=":material/error:")
    return found


def strategy_of(line: str) -> str:
    return line.partition(" / ")[2]


def overlay(shown: dict[str, StoredBacktest]) -> None:
    """Equity in multiples of the start, and drawdown, over time."""
    first = next(iter(shown.values()))
    if all(backtest.minutes.equals(first.minutes) for backtest in shown.values()):
        curves = {label(line): backtest.curve()[strategy_of(line)] for line, backtest in shown.items()}
        wide = pd.DataFrame(curves)
        closes = wide.iloc[[0, *first.ends]]
        st.subheader("Wealth, multiples of the start", anchor=False)
        charts.show(charts.equity(wide, relative=True), "compare_equity", height=400)
        st.subheader("Drawdown, from session closes", anchor=False)
        charts.show(charts.underwater(closes), "compare_drawdown", height=280)
        return
    st.warning("These backtests cover different windows; their figures are not like for like.")
    wealth, below = {}, {}
    for line, backtest in shown.items():
        strategy = strategy_of(line)
        curve = backtest.curve()[strategy]
        wealth[line] = (curve.index.tz_localize(None).to_numpy(), (curve / curve.iloc[0]).to_numpy())
        daily = backtest.daily_with_start()[strategy]
        below[line] = (daily.index.tz_localize(None).to_numpy(), (daily / daily.cummax() - 1).to_numpy())
    st.subheader("Wealth, multiples of the start", anchor=False)
    charts.show(charts.lines(wealth, height=400), "compare_equity")
    st.subheader("Drawdown, from session closes", anchor=False)
    charts.show(charts.lines(below, percent=True, height=280), "compare_drawdown")


def differences(shown: dict[str, StoredBacktest]) -> None:
    """Metrics side by side, and their differences from the first."""
    st.subheader("Metrics", anchor=False)
    lines = list(shown)
    base = st.selectbox("Differences from", lines, key=f"compare_base_{len(lines)}")
    values = {line: backtest.metrics.get(strategy_of(line), {}) for line, backtest in shown.items()}
    rows = []
    for key in KEYS:
        row = {"Metric": metric_table.title_of(key)}
        zero = number(values[base].get(key))
        for line in lines:
            own = number(values[line].get(key))
            told = statistic(key, own)
            if line != base and own is not None and zero is not None:
                told += f"  ({statistic(key, own - zero, signed=True)})"
            row[line] = told
        rows.append(row)
    config = {line: st.column_config.TextColumn(label(line), alignment="right") for line in lines}
    config["Metric"] = st.column_config.TextColumn(pinned=True)
    frame = pd.DataFrame(rows)
    st.dataframe(frame, hide_index=True, width="stretch", height="content", key="compare_table", column_config=config)


page("Compare", render)
