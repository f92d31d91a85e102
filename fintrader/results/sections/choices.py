"""Dependence of the result on the policy's inputs, and on one choice at a time."""

from __future__ import annotations

from functools import partial

from fintrader.numerals import percent, ratio
from fintrader.results import figures
from fintrader.results.analysis import Variation
from fintrader.results.explanation import METHOD
from fintrader.results.formatting import format_title
from fintrader.results.sections.section import BacktestView, Chart, Section
from fintrader.results.table import Row, Table

_CHOICES = {
    "cost_bps": "Cost, bps",
    "fill": "Fill",
    "delay_bars": "Delay, bars",
    "start_sessions": "Start, sessions later",
    "without": "Without the symbol",
}


def present_decisions(view: BacktestView) -> Section:
    """Present the inputs that moved the policy's decisions."""
    explanation = view.stored.explanation
    if explanation is None:
        note = "Not examined: the policy sees factored observations, or an earlier version wrote"
        note += " this backtest. In that case `fintrader backtest RUN_DIR` examines it."
        return Section("decisions", "Influence of the inputs", notes=[note])
    return Section(
        key="decisions",
        title=f"Influence of the inputs on {format_title(explanation.strategy).lower()}",
        headline=explanation.sentence(),
        figures=[Chart("importance", partial(figures.importance_figure, explanation))],
        notes=[METHOD],
    )


def present_sensitivity(view: BacktestView) -> Section | None:
    """Present the result with one choice changed at a time; None where nothing was simulated."""
    stored = view.stored
    varied = [row for row in stored.sensitivity if row.kind in _CHOICES]
    if not varied:
        return None
    by_cost = [row for row in varied if row.kind == "cost_bps"]
    without = [row for row in varied if row.kind == "without"]
    charts = []
    if len(by_cost) > 1:
        note = "Every point is a whole simulation at that cost."
        charts.append(Chart("costs", partial(figures.cost_figure, by_cost), note))
    if without:
        returned = stored.find_metrics(view.main).cumulative_return
        charts.append(Chart("without", partial(figures.without_figure, without, returned)))
    varied.sort(key=lambda row: list(_CHOICES).index(row.kind))
    rows = [
        Row(
            (f"{_CHOICES[row.kind]}: {row.setting.replace('_', ' ')}", *variation_cells(row)),
            is_main=row.is_chosen,
        )
        for row in varied
    ]
    columns = ("Choice", "Cumulative return", "Sharpe", "Max drawdown")
    folds = "Each fold's policy over its own test window, the windows one after another as above."
    return Section(
        key="sensitivity",
        title="Sensitivity to single choices",
        figures=charts,
        tables=[Table(columns, rows)],
        notes=[folds] if stored.context.folds else [],
    )


def variation_cells(row: Variation) -> tuple[str, str, str]:
    """Write return, Sharpe ratio and drawdown of a simulation with one choice changed."""
    return percent(row.cumulative_return), ratio(row.sharpe), percent(row.max_drawdown)
