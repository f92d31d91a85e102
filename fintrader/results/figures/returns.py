"""Figures of returns: by month, by weekday and time of day, and as a distribution.

Days, months and times of day are those of the market's own time zone (`timezone`, an IANA name).
All returns are simple: (last equity - first equity) / first equity of a period.
"""

from __future__ import annotations

from calendar import day_abbr, month_abbr
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader.metrics import (
    Array,
    conditional_value_at_risk,
    find_session_ends,
    simple_returns,
    value_at_risk,
)
from fintrader.results.figures.curves import Session
from fintrader.results.figures.style import INK, choose_colour, escape_label, histogram, layout
from fintrader.results.formatting import format_title

SCALE = [[0.0, "#b42318"], [0.5, "#ffffff"], [1.0, "#0b6e99"]]
"""Red for losses, white for zero, blue for gains: readable with red-green blindness."""

OVERNIGHT = "overnight"
MOST_LABELLED = 16
MOST_IN_A_ROW = 5
"""Most columns of a heat map with numbers in its cells: MOST_LABELLED with several rows,
MOST_IN_A_ROW with one, whose numbers plotly does not shrink to the width of a phone."""


def monthly_returns(daily: pd.Series, timezone: str) -> pd.DataFrame:
    """Compute compound returns, years by months; NaN where there was no session.

    `daily`: return of each session (index: its last bar, UTC).
    """
    times = pd.DatetimeIndex(daily.index).tz_convert(timezone)
    grown = (1 + daily).groupby([times.year, times.month]).prod() - 1
    return grown.unstack().reindex(columns=range(1, 13))


def monthly_figure(daily: pd.Series, timezone: str) -> go.Figure:
    """Heat map of the compound return of each calendar month; the first and the last may be
    partial."""
    table = monthly_returns(daily, timezone)
    rows = [str(year) for year in table.index]
    table.columns = pd.Index(month_abbr[1:])
    # A single year shows only its months with sessions: a phone has room for a few numbers.
    if len(table) == 1:
        months = table.columns[table.notna().any()]
        table = table.loc[:, months[0] : months[-1]]
    figure = _draw_returns(table, rows, "{:+.1%}")
    figure.data[0].colorbar.update(title={"text": "return"}, tickformat=".1%")
    height = 120 + 44 * max(2, len(table))
    layout(figure, "Return of each month", "", height=height, hovermode="closest")
    return figure.update_yaxes(autorange="reversed", type="category")


def intraday_returns(
    curve: pd.Series, session: Session, timezone: str, minutes: int = 30
) -> pd.DataFrame:
    """Compute the mean return of each slot of the session (columns) on each weekday (rows, 0 is
    Monday), basis points.

    `curve`: equity at each bar's close (index: the bar's start, UTC). A bar belongs to the slot of
    `minutes` in which it starts, named by the slot's first minute (`09:30`); a longer bar is its
    own slot. In a market that closes, a session's first bar is a separate slot, `overnight`: from
    the close of the session before to the close of that bar, as only closes are marked. A session
    belongs to the weekday on which it ends. The very first bar has no return.
    """
    local = pd.DatetimeIndex(curve.index).tz_convert(timezone)
    gaps = measure_gaps(curve)
    number = np.asarray(session)
    opens = np.append(True, np.diff(number) != 0)
    clock = local.hour * 60 + local.minute
    if gaps.min() < minutes:
        clock = clock // minutes * minutes
    has_night = (gaps[opens[1:]] > gaps.min()).any()
    slot = np.where(opens & has_night, -1, clock)
    ends = find_session_ends(number)
    weekday = pd.Series(local.day_of_week[ends], index=number[ends])
    clocks = np.unique(clock)
    pauses = np.diff(clocks, prepend=clocks[-1] - 24 * 60)
    # The day begins after its longest pause, midnight or not.
    order = [-1, *np.roll(clocks, -int(pauses.argmax()))]
    growth = pd.Series(1 + simple_returns(curve.to_numpy()))
    grown = growth.groupby([number[1:], slot[1:]]).prod().unstack() - 1
    table = grown.groupby(weekday).mean()
    shown = [int(k) for k in order if k in table.columns]
    names = [OVERNIGHT if k < 0 else f"{k // 60:02d}:{k % 60:02d}" for k in shown]
    return (
        (table[shown] * 1e4)
        .set_axis(pd.Index(names, name="slot"), axis=1)
        .rename_axis(index="weekday")
    )


def measure_gaps(curve: pd.Series) -> Array:
    """Measure the minutes from each bar to the next."""
    return np.diff(pd.DatetimeIndex(curve.index).tz_convert(None)) / np.timedelta64(1, "m")


def intraday_figure(curve: pd.Series, session: Session, timezone: str, minutes: int) -> go.Figure:
    """Heat map of `intraday_returns`."""
    table = intraday_returns(curve, session, timezone, minutes)
    figure = _draw_returns(table, [day_abbr[day] for day in table.index], "{:+.1f}")
    figure.data[0].colorbar.update(title={"text": "bps"})
    title = "Mean return by weekday and time of day, basis points"
    x_title = f"slots of {max(minutes, measure_gaps(curve).min()):.0f} minutes, {timezone} time"
    layout(figure, title, "", x_title, height=150 + 40 * len(table), hovermode="closest")
    return figure.update_xaxes(type="category").update_yaxes(autorange="reversed", type="category")


def _draw_returns(table: pd.DataFrame, rows: list[str], pattern: str) -> go.Figure:
    values = table.to_numpy(dtype=np.float64)
    text = [
        ["" if np.isnan(value) else _plain(pattern.format(value)) for value in row]
        for row in values
    ]
    columns = list(table.columns)
    has_room = len(columns) <= (MOST_LABELLED if len(rows) > 1 else MOST_IN_A_ROW)
    inside = "%{text}" if has_room else None
    return heat_map(values, columns, rows, "%{y} %{x}: %{text}", text=text, texttemplate=inside)


def heat_map(
    values: Array, columns: list[str], rows: list[str], hover: str, **look: Any
) -> go.Figure:
    """Draw gains and losses, `[rows, columns]`, as colours around a white zero."""
    reach = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    return go.Figure(
        go.Heatmap(
            z=values,
            x=columns,
            y=rows,
            colorscale=SCALE,
            zmid=0,
            zmin=-(reach or 1.0),
            zmax=reach or 1.0,
            colorbar={"thickness": 10, "outlinewidth": 0},
            xgap=2,
            ygap=2,
            hovertemplate=f"{hover}<extra></extra>",
            **look,
        )
    )


def _plain(text: str) -> str:
    """Use a true minus sign, and none before zero."""
    return text.lstrip("+-") if not text.strip("+-0.%") else text.replace("-", "−")


def distribution_figure(daily: pd.DataFrame, *, main: str, benchmark: str | None) -> go.Figure:
    """Histogram of daily returns with the main strategy's value at risk and expected shortfall.

    `daily`: a column of returns for each strategy; `benchmark`, if given, is drawn behind.
    """
    shown = [name for name in (main, benchmark) if name]
    spread = daily[shown].to_numpy(dtype=np.float64)
    edges = np.histogram_bin_edges(spread[np.isfinite(spread)], bins=40)
    figure = go.Figure()
    for position, name in enumerate(shown):
        counts, _ = np.histogram(daily[name].to_numpy(dtype=np.float64), bins=edges)
        look = {"name": escape_label(format_title(name)), "opacity": 0.75 if name == main else 0.45}
        hover = "%{x:.2%}: %{y} sessions"
        figure.add_trace(histogram(counts, edges, hover, choose_colour(name, position), **look))
    values = daily[main].to_numpy(dtype=np.float64)
    marks = {
        "VaR 5 %": value_at_risk(values),
        "Expected shortfall 5 %": conditional_value_at_risk(values),
    }
    for k, (label, value) in enumerate(marks.items()):
        if value is not None:
            figure.add_vline(
                x=value,
                line={"color": "#b42318", "width": 1.5, "dash": "dash" if k else "solid"},
                annotation={
                    "text": f"{label}: {value:.2%}",
                    "yshift": -18 * k,
                    "font": {"color": INK, "size": 11},
                },
                annotation_position="top left" if k else "top right",
            )
    title = "Distribution of daily returns"
    x_title = "return of a session"
    layout(figure, title, "sessions", x_title, height=340, hovermode="closest", barmode="overlay")
    return figure.update_xaxes(tickformat=".1%")
