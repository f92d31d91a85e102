"""Compare: two to eight strategies, of one run or of several, overlaid."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.errors import FintraderError
from fintrader.numerals import DASH
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import format_metric, format_title, statistic
from fintrader.results.sections import BacktestView
from fintrader.results.sections.comparison import present_comparison
from fintrader_app import artifacts, charts, tables
from fintrader_app.artifacts import load_summaries
from fintrader_app.sections import draw, draw_verdict
from fintrader_app.shell import choose_several, guarded, heading, page, plain
from fintrader_app.tables import table

T = TypeVar("T")
MOST_LINES = 8
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


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    names = [run.name for run in load_summaries(runs) if run.metrics]
    if not names:
        raise NotThereError(
            "no backtest has finished yet: finish a run, then compare its strategies"
        )
    with head:
        chosen = choose_several("Runs", names, "runs", names[:2], MOST_LINES)
    if not chosen:
        raise NotThereError("choose at least one run")
    stored = load(runs, chosen, artifacts.backtest)
    options = {
        f"{run} / {strategy}": Contender(run, strategy, backtest)
        for run, backtest in stored.items()
        for strategy in backtest.strategies
    }
    default = [f"{run} / {backtest.strategies[0]}" for run, backtest in stored.items()]
    if len(stored) == 1:
        default = list(options)[:4]
    names = choose_several("Strategies", list(options), "lines", default, MOST_LINES)
    if len(names) < 2:
        raise NotThereError("choose at least two strategies")
    lines = {name: options[name] for name in names}
    with guarded():
        backtests = {line.run: line.backtest for line in lines.values()}
        draw(present_comparison(backtests), ())
    versions = (artifacts.backtest_version(runs.run(line.run)) for line in lines.values())
    draw_curves(lines, tuple(zip(lines, versions, strict=True)))
    with guarded():
        heading("Verdicts")
        for run, backtest in backtests.items():
            draw_verdict(BacktestView.of(backtest), run)
    with guarded():
        list_differences(lines)
    with guarded():
        settings = load(runs, chosen, artifacts.load_config)
        if len(settings) > 1:
            heading("Settings that differ")
            tables.show_differing_settings(settings, "compare_settings")


class Contender(NamedTuple):
    """A strategy of a run."""

    run: str
    strategy: str
    backtest: StoredBacktest


def load(runs: RunsFolder, names: list[str], read: Callable[[Folder], T]) -> dict[str, T]:
    """Read these runs; show a message for each that cannot be read."""
    found = {}
    for name in names:
        try:
            found[name] = read(runs.run(name))
        except FintraderError as error:
            st.error(f"{plain(name)}: {plain(error)}", icon=":material/error:")
    return found


def draw_curves(lines: dict[str, Contender], version: Hashable) -> None:
    """Draw growth and drawdown of each strategy, from session closes."""

    def figure(**look: Any) -> go.Figure:
        daily = {name: line.backtest.daily_returns()[line.strategy] for name, line in lines.items()}
        return figures.growth_figure(daily, **look)

    first, *others = (line.backtest.minutes for line in lines.values())
    if not all(map(first.equals, others)):
        st.warning("These backtests cover different windows: do not compare their figures.")
    heading("Wealth, multiples of the start")
    charts.show(figure, "compare_equity", height=400, version=version)
    heading("Drawdown, from session closes")
    charts.show(partial(figure, drawdown=True), "compare_drawdown", height=280, version=version)


def list_differences(lines: dict[str, Contender]) -> None:
    """List metrics of each strategy, and their differences from a chosen one."""
    heading("Metrics")
    base = st.selectbox("Differences from", list(lines), key=f"compare_base_{len(lines)}")
    values = {name: line.backtest.find_metrics(line.strategy) for name, line in lines.items()}
    portfolios = {
        name: format_title(line.backtest.portfolio or DASH) for name, line in lines.items()
    }
    rows = [{"Metric": "Benchmark portfolio", **portfolios}]
    for key in KEYS:
        row = {"Metric": tables.find_title(key)}
        zero = values[base][key]
        for name, metrics in values.items():
            text = format_metric(key, metrics)
            value = metrics[key]
            if name != base and text != DASH and value is not None and zero is not None:
                text += f"  ({statistic(key, value - zero, signed=True)})"
            row[name] = text
        rows.append(row)
    table(rows, "compare_table", height="content", right=lines, pinned="Metric")
    tables.explain_dashes(values.values())


page("Compare", render)
