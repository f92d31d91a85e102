"""When and how returns were earned: by month, by time of day, as a distribution."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from fintrader.metrics import performance as p
from fintrader.results.figures.style import INK, colour_of, layout, title_of

SCALE = [[0.0, "#b42318"], [0.5, "#ffffff"], [1.0, "#0b6e99"]]
"""Red for losses, white for nothing, blue for gains: readable with red-green blindness."""


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def monthly_returns(daily: pd.Series) -> pd.DataFrame:
    """Years by months: compound return, NaN where there was no session. `daily`: index UTC."""
    times = pd.DatetimeIndex(daily.index)
    grown = (1 + daily).groupby([times.year, times.month]).prod() - 1
    table = grown.unstack()
    return table.reindex(columns=range(1, 13))


def monthly_figure(daily: pd.Series) -> go.Figure:
    """Heat map of the compound return of each calendar month (UTC)."""
    table = monthly_returns(daily)
    values = table.to_numpy(dtype=np.float64)
    figure = _heat_map(values, list(MONTHS), [str(year) for year in table.index], "{:+.1%}")
    figure.update_yaxes(autorange="reversed")
    height = 120 + 44 * len(table)
    return layout(figure, "Return of each month", "", height=height).update_layout(hovermode="closest")


def intraday_returns(curve: pd.Series, session: pd.Series, minutes: int = 30) -> pd.DataFrame:
    """Weekdays by time since the session's first bar: mean return of a slot, in basis points.

    `curve`: equity at every bar (index UTC); `session`: number of each bar's session. The night's move belongs to
    the first slot.
    """
    times = pd.DatetimeIndex(curve.index)
    returns = curve.pct_change().fillna(0.0).to_numpy()
    stamps = times.as_unit("ns").asi8
    start = pd.Series(stamps).groupby(session.to_numpy()).transform("min").to_numpy()
    slot = (stamps - start) // (minutes * 60_000_000_000)
    frame = pd.DataFrame({"day": times.day_of_week, "slot": slot, "session": session.to_numpy(), "r": returns})
    summed = frame.groupby(["day", "session", "slot"])["r"].sum()
    return summed.groupby(["day", "slot"]).mean().unstack() * 1e4


def intraday_figure(curve: pd.Series, session: pd.Series, minutes: int = 30) -> go.Figure:
    """Heat map of the mean return by weekday and time since the opening, basis points."""
    table = intraday_returns(curve, session, minutes)
    labels = [f"+{int(slot) * minutes // 60}:{int(slot) * minutes % 60:02d}" for slot in table.columns]
    figure = _heat_map(table.to_numpy(dtype=np.float64), labels, [WEEKDAYS[day] for day in table.index], "{:+.1f}")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title={"text": "hours since the session's first bar"})
    height = 150 + 40 * len(table)
    title = "Mean return by weekday and time of day, basis points"
    figure = layout(figure, title, "", height=height)
    return figure.update_layout(hovermode="closest", margin_b=56)


def _heat_map(values: NDArray[np.float64], columns: list[str], rows: list[str], pattern: str) -> go.Figure:
    reach = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    text = [["" if np.isnan(value) else _plain(pattern.format(value)) for value in row] for row in values]
    return go.Figure(
        go.Heatmap(
            z=values,
            x=columns,
            y=rows,
            text=text,
            texttemplate="%{text}",
            textfont={"size": 11},
            colorscale=SCALE,
            zmid=0,
            zmin=-(reach or 1.0),
            zmax=reach or 1.0,
            showscale=False,
            xgap=2,
            ygap=2,
            hovertemplate="%{y} %{x}: %{text}<extra></extra>",
        )
    )


def distribution_figure(daily: pd.DataFrame, *, main: str, benchmark: str | None = "benchmark") -> go.Figure:
    """Histogram of daily returns with the main strategy's value at risk and expected shortfall."""
    values = daily[main].to_numpy(dtype=np.float64)
    figure = go.Figure()
    shown = [name for name in (main, benchmark) if name is not None and name in daily.columns]
    spread = daily[shown].to_numpy(dtype=np.float64)
    low, high = float(np.nanmin(spread)), float(np.nanmax(spread))
    bins = {"start": low, "end": high, "size": max((high - low) / 40, 1e-6)}
    for position, name in enumerate(shown):
        figure.add_trace(
            go.Histogram(
                x=daily[name].to_numpy(dtype=np.float64),
                name=title_of(name),
                marker={"color": colour_of(name, position)},
                opacity=0.75 if name == main else 0.45,
                xbins=bins,
                hovertemplate="%{x}: %{y} sessions<extra></extra>",
            )
        )
    lines = {"VaR 5 %": p.value_at_risk(values), "Expected shortfall 5 %": p.conditional_value_at_risk(values)}
    for k, (label, value) in enumerate(lines.items()):
        if value is not None:
            figure.add_vline(
                x=value,
                line={"color": "#b42318", "width": 1.5, "dash": "dash" if k else "solid"},
                annotation={"text": f"{label}: {value:.2%}", "yshift": -18 * k, "font": {"color": INK, "size": 11}},
                annotation_position="top left" if k else "top right",
            )
    figure.update_layout(barmode="overlay", bargap=0.04)
    figure = layout(figure, "Distribution of daily returns", "sessions", height=340)
    figure.update_xaxes(tickformat=".1%")
    return figure.update_layout(hovermode="closest")


def _plain(text: str) -> str:
    """A true minus sign, and no sign before nothing."""
    return text.lstrip("+-") if not text.strip("+-0.%") else text.replace("-", "−")
