"""Dependence of the result on the policy's inputs, and on one choice at a time."""

from __future__ import annotations

from functools import partial

from fintrader.results import figures
from fintrader.results.analysis import Variation
from fintrader.results.explanation import METHOD
from fintrader.results.formatting import percent, ratio, title_of
from fintrader.results.sections.section import BacktestView, Chart, Section
from fintrader.results.strategy_metrics import NO_METRICS
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
    found = view.stored.explanation
    if found is None:
        note = (
            "Not examined: an earlier version wrote this backtest, or its policy sees observations"
            " in parts. `fintrader backtest RUN_DIR` adds it."
        )
        return Section("decisions", "Influence of the inputs", notes=(note,))
    return Section(
        key="decisions",
        title=f"Influence of the inputs on {title_of(found.strategy).lower()}",
        headline=found.sentence(),
        figures=(Chart("importance", partial(figures.importance_figure, found)),),
        notes=(METHOD,),
    )


def present_sensitivity(view: BacktestView) -> Section | None:
    """Present the result with one choice changed at a time; None where nothing was traded."""
    stored = view.stored
    varied = [row for row in stored.sensitivity if row.kind in _CHOICES]
    by_cost = [row for row in varied if row.kind == "cost_bps"]
    without = [row for row in varied if row.kind == "without"]
    charts = []
    if len(by_cost) > 1:
        charts.append(
            Chart(
                "costs",
                partial(figures.cost_figure, by_cost),
                note="Every point is a whole simulation at that cost.",
            )
        )
    elif stored.trades.empty:
        return None
    else:
        charts.append(_first_order_chart(view))
    if without:
        returned = stored.metrics.get(view.main, NO_METRICS).cumulative_return
        charts.append(Chart("without", partial(figures.without_figure, without, returned)))
    rows = tuple(
        Row(
            (f"{_CHOICES[row.kind]}: {row.setting.replace('_', ' ')}", *variation_cells(row)),
            is_main=row.is_chosen,
        )
        for kind in _CHOICES
        for row in varied
        if row.kind == kind
    )
    columns = ("Choice", "Cumulative return", "Sharpe", "Max drawdown")
    folds = "Each fold's policy over its own test window, the windows one after another as above."
    return Section(
        key="sensitivity",
        title="What if one choice had been another?",
        figures=tuple(charts),
        tables=(Table(columns, rows),) if rows else (),
        notes=(folds,) if stored.context.folds else (),
    )


def _first_order_chart(view: BacktestView) -> Chart:
    """Chart the stored trades at other costs."""
    stored = view.stored
    traded = stored.curve("turnover_usd")[view.names]
    names = [name for name in view.names if (traded[name] > 0).any()]
    even = ", ".join(
        f"{title_of(name)} {ratio(stored.metrics.get(name, NO_METRICS).break_even_cost_bps, 1)} bps"
        for name in names
    )
    return Chart(
        "costs",
        lambda: figures.first_order_cost_figure(
            *(stored.curve(name)[names] for name in ("equity_usd", "cost_usd", "turnover_usd"))
        ),
        note="First-order: the stored trades at another proportional cost, the money saved or lost"
        f" not re-invested. Break-even: {even}.",
    )


def variation_cells(row: Variation) -> tuple[str, str, str]:
    """Write return, Sharpe ratio and drawdown of a simulation with one choice changed."""
    return percent(row.cumulative_return), ratio(row.sharpe), percent(row.max_drawdown)
