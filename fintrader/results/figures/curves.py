"""Wealth, drawdown, growth, rolling risk and exposure over time."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from fintrader.metrics import (
    drawdowns,
    find_episodes,
    find_session_ends,
    simple_returns,
)
from fintrader.results.figures.style import (
    MOST_LINES,
    PALETTE,
    ZERO_LINE,
    add_curve,
    draw_lines,
    escape_label,
    layout,
    note_left_out,
    time_axis,
)
from fintrader.results.formatting import format_title

Session = NDArray[np.int64] | pd.Series
"""`[T]`: number of each bar's session, never decreasing."""
Rolling = Literal["sharpe", "volatility", "beta"]

LONGEST_ROLLING = 20
SHORTEST_ROLLING = 5
"""Sessions that a rolling figure looks back over, unless the reader chooses another window."""
FEWEST_TO_ROLL = 15
"""Sessions below which a rolling ratio would be a handful of points, each from five days or
fewer."""


def equity_figure(
    curves: pd.DataFrame, *, main: str | None = None, relative: bool = False, notice: str = ""
) -> go.Figure:
    """Wealth of every strategy, USD, or in multiples of its start if `relative`. `curves`: wide
    equity; `notice`: banner of a synthetic market."""
    lines = textwrap.wrap(escape_label(notice, 500), 100)
    title = f"Equity<br><sup>{'<br>'.join(lines)}</sup>" if notice else "Equity"
    if not relative:
        figure = layout(draw_lines(curves, "%{y:$,.0f}", main, curves), title, "USD")
        if not lines:
            return figure.update_layout(margin_t=84)
        # The legend begins below the notice, however many lines it takes.
        return figure.update_layout(
            title_y=0.96, title_yanchor="top", margin_t=64 + 20 * len(lines)
        )
    figure = draw_lines(curves / curves.iloc[0], "%{y:.3f} ×", main, curves)
    layout(figure, title, "multiple of the start")
    return figure.update_yaxes(tickformat=".2f")


def drawdown_figure(curves: pd.DataFrame, *, session: Session | None = None) -> go.Figure:
    """Distance of every strategy below its running peak. `curves`: wide equity at every bar.

    With `session` it is measured between session closes, the starting capital included, as the
    metric `max_drawdown` is; without, at every bar, as `minute_max_drawdown` is.
    """
    shown = curves
    if session is not None:  # the starting capital and each session's last row
        shown = curves.iloc[np.union1d([0], find_session_ends(session))]
    peak = shown.cummax()
    below = (shown / peak.where(peak > 0) - 1).fillna(0.0)
    figure = draw_lines(below, "%{y:.2%}", wealth=curves)
    figure.data[0].update(fill="tozeroy", fillcolor="rgba(11,79,158,0.10)")
    title = "Drawdown at every bar" if session is None else "Drawdown, from session closes"
    return layout(figure, title, "below peak", percent=True, height=320)


def wealth_figure(curves: pd.DataFrame) -> go.Figure:
    """Wealth of every strategy in multiples of its start, above its distance from its running peak.
    `curves`: wide equity at session closes, after a row with the start."""
    figure = equity_figure(curves, relative=True)
    below = drawdown_figure(curves)
    below.update_traces(yaxis="y2", showlegend=False)
    return figure.add_traces(below.data).update_layout(
        title_text="Equity and drawdown",
        height=460,
        hoversubplots="axis",
        xaxis_anchor="y2",
        yaxis_domain=[0.38, 1.0],
        yaxis2=below.layout.yaxis,
        yaxis2_domain=[0.0, 0.3],
    )


def fade_others(figure: go.Figure, strategies: Collection[str]) -> go.Figure:
    """Make every line of a figure pale, except those of these strategies."""
    titles = {escape_label(format_title(name)) for name in strategies}
    for trace in figure.data:
        if trace.name not in titles:
            trace.update(opacity=0.7, line_width=1.3)
    return figure


def deepest_drawdowns(equity: pd.Series) -> pd.DataFrame:
    """The five deepest drawdowns between session closes, the deepest first: peak, trough, recovery,
    depth, sessions.

    `equity`: the starting capital, then the equity at each session's close (index: time).
    `Recovered` is None while the peak has not been reached again.
    """
    times = pd.DatetimeIndex(equity.index)
    below = drawdowns(simple_returns(equity.to_numpy()))
    rows = []
    for start, stop in find_episodes(below):  # period k ends at row k + 1
        back = stop < len(below)
        rows.append(
            {
                "Peak": times[start],
                "Trough": times[start + int(np.argmin(below[start:stop])) + 1],
                "Recovered": times[stop + 1] if back else None,
                "Depth": float(below[start:stop].min()),
                "Sessions": stop - start + int(back),
            }
        )
    frame = pd.DataFrame(rows, columns=["Peak", "Trough", "Recovered", "Depth", "Sessions"])
    return frame.sort_values("Depth", kind="stable").head(5)


def growth_figure(daily: Mapping[str, pd.Series], *, drawdown: bool = False) -> go.Figure:
    """Growth of 1 (or the drawdown) of results of different runs, by session since each one's
    start.

    `daily`: name to daily returns (index: the session's last bar, UTC), the first against the
    starting capital.
    """
    figure = go.Figure()
    kept = list(daily)[:MOST_LINES]  # as they were named: runs have no rank
    note_left_out(figure, list(daily), kept)
    daily = {name: daily[name] for name in kept}
    indices = [pd.DatetimeIndex(returns.index) for returns in daily.values()]
    hover = "%{customdata}: %{y:.2%}" if drawdown else "%{customdata}: %{y:.3f}"
    for position, ((name, returns), times) in enumerate(zip(daily.items(), indices, strict=True)):
        growth = np.concatenate([[1.0], np.cumprod(1 + returns.to_numpy())])
        values = growth / np.maximum.accumulate(growth) - 1 if drawdown else growth
        look = {"color": PALETTE[position % len(PALETTE)], "width": 2}
        days = ["start", *times.strftime("%d %b %Y")]
        x = np.arange(len(values))
        add_curve(figure, x, values, name, hover, line=look, customdata=days)
    title = "Drawdown, from session closes" if drawdown else "Growth of 1, from session closes"
    unit = "below peak" if drawdown else "multiple of the start"
    layout(figure, title, unit, percent=drawdown, height=400)
    if all(times.equals(indices[0]) for times in indices):
        time_axis(figure, indices[0])
    else:
        figure.update_xaxes(title={"text": "sessions since the window's start"})
    return figure


def rolling_sessions(sessions: int) -> int | None:
    """Length of the rolling windows: a third of the sessions, between 5 and 20; None where they are
    too few."""
    return (
        None
        if sessions < FEWEST_TO_ROLL
        else min(LONGEST_ROLLING, max(SHORTEST_ROLLING, sessions // 3))
    )


def rolling_figure(
    returns: pd.DataFrame,
    kind: Rolling,
    *,
    main: str,
    window: int,
    sessions_a_year: int,
) -> go.Figure:
    """Rolling Sharpe ratio or volatility, or beta to the benchmark, of every strategy; full windows
    only.

    The ratio is annualised; the volatility is that of a session, as a rolling window has too few
    for an annual rate.

    `returns`: wide daily returns of at least `window` sessions; for the beta `benchmark` is one of
    the columns.
    """
    rolled = returns.rolling(window)
    match kind:
        case "sharpe":
            spread = rolled.std()
            values = rolled.mean() / spread.where(spread > 1e-12) * math.sqrt(sessions_a_year)
            title = "Sharpe ratio"
            unit = "Sharpe ratio, annualised"
            level = 0
        case "volatility":
            values = rolled.std()
            title = "Volatility"
            unit = "volatility of a session"
            level = 0
        case "beta":
            index = returns["benchmark"]
            variance = index.rolling(window).var()
            covariance = returns.drop(columns="benchmark").rolling(window).cov(index)
            values = covariance.div(variance.where(variance > 0), axis=0)
            title = "Beta"
            unit = "beta to the index"
            level = 1
    percent = kind == "volatility"
    hover = "%{y:.2%}" if percent else "%{y:.2f}"
    figure = draw_lines(values.iloc[window - 1 :], hover, main, (1 + returns).cumprod())
    figure.add_hline(y=level, line=ZERO_LINE)
    title += f" over the last {window} sessions"
    return layout(figure, title, unit, percent=percent, height=320)


def exposure_figure(exposure: pd.DataFrame) -> go.Figure:
    """Gross value of all positions as a share of equity, at every bar. `exposure`: wide, one column
    per strategy."""
    figure = draw_lines(exposure, "%{y:.1%}")
    has_names = exposure.shape[1] > 1
    layout(figure, "Exposure", "share of equity", height=280, showlegend=has_names)
    return figure.update_yaxes(tickformat=".0%", rangemode="tozero")
