"""Returns in tables and curves: against the baselines, over time, by calendar and by state of the
index."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import pandas as pd
import plotly.graph_objects as go

from fintrader.numerals import count, percent, period_name, ratio, span
from fintrader.results import figures, periods
from fintrader.results.formatting import BASELINES, format_title, rival_name, statistic
from fintrader.results.sections.section import BacktestView, Chart, Section
from fintrader.results.table import Row, Table, active_table, metrics_tables, paper_table

_FREQUENCIES = {12: "Monthly", 26: "Two-weekly", 52: "Weekly"}
Scale = Literal["USD", "Relative", "Log"]


def present_baselines(view: BacktestView) -> Section:
    """Present the paper's table and the differences from the benchmark portfolio."""
    stored = view.stored
    context = stored.context
    metrics = {name: stored.find_metrics(name) for name in view.names}
    paper = paper_table(metrics, main=view.main, about=context.strategies)
    frequency = _FREQUENCIES.get(stored.sessions_a_year, "Daily")
    period = period_name(stored.sessions_a_year)
    basis = (
        f"{frequency} returns, {stored.sessions_a_year} {period}s a year, risk-free rate 0; Calmar"
        " = annual return / |max drawdown|. From less than a year, an annual return is an"
        " extrapolation."
    )
    tables = [replace(paper, notes=[*paper.notes, basis])]
    if stored.portfolio is not None:
        rival = stored.portfolio
        if view.is_foreign and stored.verdict is not None:
            rival = stored.verdict.evidence.against
        reasons = "; ".join(f"{name}: {why}" for name, why in context.left_out.items())
        pays = " (env.benchmark), which pays the same costs; the index pays none"
        notes = [
            f"Active: {frequency.lower()} returns less those of {rival_name(rival)}"
            f"{'' if view.is_foreign else pays}. Active return is the mean times"
            f" {stored.sessions_a_year}; unlike the annual return it is not compounded. The"
            f" interval is the information ratio's, from resampled blocks of the same {period}s; if"
            " it contains 0, the difference may be chance."
        ]
        if reasons:
            notes.append(f"Left out: {reasons}.")
        tables.append(replace(active_table(metrics, rival, main=view.main), notes=notes))
    verdict = stored.verdict
    charts = []
    if verdict is not None and verdict.excess and verdict.strategy == view.main:
        scale, over = span(verdict.sessions, verdict.sessions_a_year)
        charts.append(Chart("excess", partial(figures.excess_figure, verdict.excess, scale, over)))
    return Section("baselines", "Against the baselines", figures=charts, tables=tables)


def present_metrics(view: BacktestView) -> Section:
    """Present every metric of every strategy, with its formula and source."""
    metrics = {name: view.stored.find_metrics(name) for name in view.names}
    return Section("metrics", "Every number", tables=metrics_tables(metrics))


# --- curves ---------------------------------------------------------------------------------------


def present_curves(view: BacktestView, scale: Scale = "USD") -> Section:
    """Present wealth and drawdown over time; all but the main strategy, its benchmark portfolio and
    the index are pale. External returns, which have no capital, are drawn as multiples of the
    start."""
    stored = view.stored
    if view.is_foreign and not view.has_positions:
        scale = "Relative"

    def draw_equity() -> go.Figure:
        figure = figures.equity_figure(stored.curve()[view.names], relative=scale == "Relative")
        if scale == "Log":
            figure.update_yaxes(type="log", tickformat="~s")
        return figures.fade_others(figure, view.key_names)

    def draw_drawdown() -> go.Figure:
        figure = figures.drawdown_figure(stored.curve()[view.names], session=stored.session)
        return figures.fade_others(figure, view.key_names)

    charts = [Chart("equity", draw_equity), Chart("drawdown", draw_drawdown)]
    return Section("equity", "Wealth and drawdown", figures=charts)


def present_drawdowns(view: BacktestView) -> Section:
    """Tabulate the deepest drawdowns, and plot the drawdown at every bar."""
    stored = view.stored
    measured = {"max_drawdown": "between session closes", "minute_max_drawdown": "at every bar"}
    depths = [
        f"{format_title(name)} "
        + ", ".join(
            f"{statistic(key, stored.find_metrics(name)[key])} {when}"
            for key, when in measured.items()
        )
        for name in view.names
    ]
    by_bar = (
        Chart(
            "drawdown-bars",
            lambda: figures.drawdown_figure(stored.curve()[view.key_names]),
            note=f"Deepest: {'; '.join(depths)}.",
        ),
    )
    return Section(
        key="drawdowns",
        title="Deepest drawdowns",
        figures=by_bar if view.has_intraday_bars else (),
        tables=[_drawdowns_table(view)],
    )


def _drawdowns_table(view: BacktestView) -> Table:
    title = f"Worst drawdowns of {view.title.lower()}, from session closes"
    columns = ("Peak", "Trough", "Recovered", "Depth", "Sessions")
    depths = figures.deepest_drawdowns(view.stored.daily_with_start()[view.main])
    rows = [
        (
            f"{peak:%d %b %Y}",
            f"{trough:%d %b %Y}",
            "not yet" if pd.isna(recovered) else f"{recovered:%d %b %Y}",
            percent(depth),
            count(sessions),
        )
        for _, peak, trough, recovered, depth, sessions in depths.itertuples()
    ]
    return Table.of(
        columns, rows, title, notes=[] if rows else ["No session closed below an earlier one."]
    )


def present_rolling(view: BacktestView, window: int | None = None) -> Section:
    """Present Sharpe ratio, volatility and beta over a rolling window of sessions."""
    stored = view.stored
    daily = stored.daily_returns()
    title = "Rolling risk"
    usual = figures.rolling_sessions(len(daily))
    if usual is None:
        few = (
            f"Rolling figures need {figures.FEWEST_TO_ROLL} sessions; this window has {len(daily)}."
        )
        return Section("rolling", title, notes=[few])
    roll = partial(
        figures.rolling_figure,
        main=view.main,
        window=window or usual,
        sessions_a_year=stored.sessions_a_year,
    )
    charts = [
        Chart("rolling", lambda: roll(daily[view.names], "sharpe")),
        Chart("volatility", lambda: roll(daily[view.names], "volatility")),
    ]
    if view.index is not None:
        rivals = [name for name in view.others if name in BASELINES and name != "cash"]
        names = dict.fromkeys([view.main, *rivals, view.index])
        charts.append(Chart("beta", lambda: roll(daily[list(names)], "beta")))
    note = f"Each point looks back over {window or usual} sessions."
    return Section("rolling", title, figures=charts, notes=[note])


# --- returns --------------------------------------------------------------------------------------


def present_returns(view: BacktestView, slot_minutes: int = 30) -> Section:
    """Present returns by month, by weekday and time of day, and their distribution."""
    stored = view.stored
    zone = stored.timezone
    daily = stored.daily_returns()
    curve = stored.curve()[view.main]
    session = stored.session
    by_time = (
        Chart(
            "intraday",
            lambda: figures.intraday_figure(curve, session, zone, slot_minutes),
            note=f"Simple returns; times are of {zone}. Overnight, in a market that closes: from"
            " one session's close to the close of the next one's first bar.",
        ),
    )
    return Section(
        key="returns",
        title=f"Returns of {view.title.lower()}",
        figures=[
            Chart(
                "monthly",
                lambda: figures.monthly_figure(daily[view.main], zone),
                note=f"By calendar month ({zone}); the first and the last may be partial.",
            ),
            *(by_time if view.has_intraday_bars else ()),
            Chart(
                "distribution",
                lambda: figures.distribution_figure(daily, main=view.main, benchmark=view.index),
            ),
        ],
    )


def present_periods(view: BacktestView) -> Section:
    """Present the returns of calendar years and months."""
    stored = view.stored
    daily = stored.daily_returns()[view.names]
    months = periods.find_months(daily.index, stored.timezone)
    tables = [
        _returns_table("Year", periods.compound(daily, months.str[:4])),
        _returns_table("Month", periods.compound(daily, months)),
    ]
    return Section("periods", "Years and months", tables=tables)


def _returns_table(period: str, returns: pd.DataFrame) -> Table:
    """Tabulate the compound returns that `periods` makes, one row per year or month."""
    names = list(returns.columns[:-1])
    rows = [
        (str(label), *map(percent, row), count(sessions))
        for label, *row, sessions in returns.itertuples()
    ]
    table = Table.of((period, *map(format_title, names), "Sessions"), rows)
    return replace(table, is_half=len(names) <= 4)


def present_regimes(view: BacktestView) -> Section | None:
    """Present returns by the state of the index, and on its worst days; None without an index."""
    stored = view.stored
    if view.index is None:
        return None
    daily = stored.daily_returns()
    states = periods.regime_table(daily, view.index, view.main, stored.sessions_a_year)
    tables = []
    notes = []
    if states.empty:
        least = periods.FEWEST_SESSIONS
        notes.append(f"Regimes need {least} sessions; this window has {len(daily)}.")
    else:
        rows = [
            (
                str(name).capitalize(),
                count(sessions),
                *map(percent, (ours, theirs)),
                *map(ratio, (sharpe, beta)),
            )
            for name, sessions, ours, theirs, sharpe, beta in states.itertuples()
        ]
        note = (
            f"A session's state comes from the {periods.LOOKBACK} sessions before it; thirds are of"
            " this window. Returns are means per session; beta is to the index."
        )
        heads = ("The index", "Sessions", "Mean return", "Index's mean return", "Sharpe", "Beta")
        tables.append(Table.of(heads, rows, notes=[note]))
    worst = periods.stress_days(daily[view.key_names], view.index)
    if not worst.empty:
        days = worst.itertuples()
        lines = [Row((f"{day:%d %b %Y}", *map(percent, returns))) for day, *returns in days]
        lines.append(Row(("Mean", *map(percent, worst.mean())), is_main=True))
        columns = ("Day", *map(format_title, view.key_names))
        tables.append(Table(columns, lines, f"The index's {len(worst)} worst days"))
    return Section("regimes", "By state of the index", tables=tables, notes=notes)


def present_folds(view: BacktestView) -> Section | None:
    """Present the test windows of a walk-forward one by one; None for another backtest."""
    folds = view.stored.context.folds
    if not folds:
        return None
    rows = [
        Row(
            (f"Fold {number}", *(percent(fold.cumulative_return.get(name)) for name in view.names)),
            note=f"{fold.first} to {fold.last}",
        )
        for number, fold in enumerate(folds, 1)
    ]
    note = (
        "Cumulative return of each test window; between windows all positions are sold, with costs."
    )
    table = Table(("Test window", *map(format_title, view.names)), rows, notes=[note])
    return Section("folds", "Fold by fold", tables=[table])
