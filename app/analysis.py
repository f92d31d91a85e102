"""Figures of a backtest beyond the curves: calendar, rolling risk, weights, trades. All from stored rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader import metrics as m
from fintrader_app.charts import DIVERGING, figures, framed, lines
from fintrader_app.wording import label

EXCHANGE_TIME = "America/New_York"


def rolling_figure(returns: pd.DataFrame, kind: str, window: int, benchmark: str | None) -> go.Figure:
    """Rolling Sharpe ratio, volatility or beta over `window` sessions, one line a strategy; full windows only."""
    curves = {}
    for name in returns.columns:
        daily = returns[name]
        if kind == "sharpe":
            spread = daily.rolling(window).std()
            values = daily.rolling(window).mean() / spread.where(spread > 0) * np.sqrt(m.TRADING_DAYS)
        elif kind == "volatility":
            values = daily.rolling(window).std() * np.sqrt(m.TRADING_DAYS)
        else:
            if benchmark is None or name == benchmark:
                continue
            other = returns[benchmark]
            values = daily.rolling(window).cov(other) / other.rolling(window).var()
        curves[str(name)] = (returns.index.strftime("%Y-%m-%d"), values.to_numpy())
    figure = lines({figures.title_of(name): curve for name, curve in curves.items()}, percent=kind == "volatility")
    for trace, name in zip(figure.data, curves, strict=True):
        trace.line.color = figures.colour_of(name, list(returns.columns).index(name))
        trace.line.dash = figures.DASHES.get(name, "solid")
    return figure


def monthly_table(equity: pd.Series[float], session: np.ndarray[Any, Any]) -> pd.DataFrame:
    """Return of each calendar month (UTC): one row a year, one column a month; NaN where there is none."""
    ends = m.session_ends(session)
    index = equity.index[ends]
    months = np.asarray(index.year * 12 + index.month - 1)
    returns = m.daily_returns(equity.to_numpy()[ends], months, start=equity.iloc[0])
    distinct = np.unique(months)
    table = pd.DataFrame({"year": distinct // 12, "month": distinct % 12 + 1, "value": returns})
    return table.pivot(index="year", columns="month", values="value").reindex(columns=range(1, 13))


def monthly_figure(table: pd.DataFrame) -> go.Figure:
    """Monthly returns as a heat map."""
    names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    return heat(table.to_numpy(), names, [str(year) for year in table.index], height=90 + 46 * max(2, len(table)))


def intraday_table(equity: pd.Series[float], session: np.ndarray[Any, Any], minutes: int) -> pd.DataFrame:
    """Mean return by weekday and time of day (New York), slots of `minutes`, the night apart as `overnight`."""
    local = equity.index.tz_convert(EXCHANGE_TIME)
    returns = np.append(0.0, np.diff(equity.to_numpy()) / equity.to_numpy()[:-1])
    start = np.append(True, np.diff(session) > 0)
    slot = (local.hour * 60 + local.minute) // minutes * minutes
    names = np.array([f"{k // 60:02d}:{k % 60:02d}" for k in slot], dtype=object)
    names[start] = "overnight"
    frame = pd.DataFrame({"day": local.day_of_week, "slot": names, "session": session, "r": np.log1p(returns)})
    frame = frame.iloc[1:]
    sums = frame.groupby(["session", "day", "slot"], sort=False)["r"].sum().reset_index()
    table = np.expm1(sums.groupby(["day", "slot"])["r"].mean()).unstack("slot")
    return table[sorted(table.columns, key=lambda name: (name != "overnight", name))]


def intraday_figure(table: pd.DataFrame) -> go.Figure:
    """Mean return by weekday and time of day as a heat map."""
    days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    rows = [days[k] for k in table.index]
    return heat(table.to_numpy(), list(table.columns), rows, height=90 + 40 * max(3, len(rows)), digits=3)


def heat(
    values: np.ndarray[Any, Any], columns: list[str], rows: list[str], *, height: int, digits: int = 1
) -> go.Figure:
    """Returns as a heat map, red below zero and green above; empty where there is nothing."""
    known = values[np.isfinite(values)]
    top = float(np.abs(known).max()) if known.size else 1.0
    few = values.size <= 130
    shown = [["" if not np.isfinite(v) else f"{100 * v:.{digits}f}" for v in row] for row in values] if few else None
    figure = go.Figure(
        go.Heatmap(
            z=np.where(np.isfinite(values), values, None),
            x=columns,
            y=rows,
            zmin=-top or -1,
            zmax=top or 1,
            colorscale=DIVERGING,
            text=shown,
            texttemplate="%{text}" if few else None,
            hovertemplate="%{y} %{x}: %{z:.3%}<extra></extra>",
            showscale=not few,
            colorbar={"tickformat": ".1%", "thickness": 10, "outlinewidth": 0},
            xgap=2,
            ygap=2,
        )
    )
    framed(figure, hover="closest", height=height)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, tickformat=None)
    figure.update_xaxes(type="category", side="top")
    return figure


def distribution_figure(returns: pd.DataFrame, main: str, var: float | None) -> go.Figure:
    """Daily returns of one strategy as a histogram with its value at risk."""
    values = returns[main].to_numpy()
    counts, edges = np.histogram(values[np.isfinite(values)], bins=min(60, max(8, int(np.sqrt(len(values)) * 2))))
    centres = (edges[:-1] + edges[1:]) / 2
    figure = go.Figure(
        go.Bar(
            x=centres,
            y=counts,
            width=np.diff(edges) * 0.94,
            marker={"color": figures.colour_of(main, 0)},
            hovertemplate="%{x:.2%}: %{y} sessions<extra></extra>",
            showlegend=False,
        )
    )
    if var is not None:
        figure.add_vline(
            x=var,
            line={"color": "#b42318", "dash": "dash", "width": 1.5},
            annotation_text="VaR 5 %",
            annotation_position="top right",
        )
    framed(figure, y_title="sessions", hover="closest", height=300)
    figure.update_xaxes(tickformat=".1%")
    return figure


def drawdown_rows(daily: pd.Series[float], top: int = 5) -> pd.DataFrame:
    """The deepest drawdowns between session closes: peak, trough, recovery, depth, sessions."""
    values = daily.to_numpy()
    peak = np.maximum.accumulate(values)
    below = values / peak - 1
    under = below < 0
    rows = []
    k = 0
    while k < len(values):
        if not under[k]:
            k += 1
            continue
        stop = k
        while stop < len(values) and under[stop]:
            stop += 1
        trough = k + int(np.argmin(below[k:stop]))
        rows.append(
            {
                "Peak": daily.index[k - 1],
                "Trough": daily.index[trough],
                "Recovered": daily.index[stop] if stop < len(values) else None,
                "Depth": float(below[trough]),
                "Sessions": stop - k + (1 if stop < len(values) else 0),
            }
        )
        k = stop
    frame = pd.DataFrame(rows, columns=["Peak", "Trough", "Recovered", "Depth", "Sessions"])
    return frame.sort_values("Depth").head(top)


def candles_figure(bars: pd.DataFrame, trades: pd.DataFrame, symbol: str) -> go.Figure:
    """Candles (`open, high, low, close`, index: time) with the fills on them."""
    local = bars.index.tz_convert(EXCHANGE_TIME)
    one_day = bool((local.normalize() == local[0].normalize()).all())
    pattern = "%H:%M" if one_day else "%d %b %Y %H:%M"
    stamps = local.strftime(pattern)
    figure = go.Figure(
        go.Candlestick(
            x=stamps,
            open=bars["open"],
            high=bars["high"],
            low=bars["low"],
            close=bars["close"],
            name=label(symbol),
            increasing={"line": {"color": "#2a9d8f", "width": 1}},
            decreasing={"line": {"color": "#b42318", "width": 1}},
            showlegend=False,
        )
    )
    for side, marker, colour in (("Bought", "triangle-up", "#0b6e99"), ("Sold", "triangle-down", "#d9730d")):
        rows = trades[(trades["shares"] > 0) == (side == "Bought")]
        if len(rows):
            figure.add_trace(
                go.Scatter(
                    x=rows["bar"].dt.tz_convert(EXCHANGE_TIME).dt.strftime(pattern),
                    y=rows["price_usd"],
                    mode="markers",
                    name=side,
                    marker={"symbol": marker, "size": 10, "color": colour, "line": {"width": 1, "color": "white"}},
                    customdata=np.stack([rows["shares"].abs(), rows["cost_usd"]], axis=1),
                    hovertemplate=side
                    + " %{customdata[0]:,.4~f} at %{y:,.2f}, cost $%{customdata[1]:,.2f}<extra></extra>",
                )
            )
    framed(figure, y_title="USD", hover="closest", height=440)
    zone = "New York time" if one_day else ""
    figure.update_xaxes(type="category", nticks=8, rangeslider={"visible": False}, title={"text": zone})
    return figure
