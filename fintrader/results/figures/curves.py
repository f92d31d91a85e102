"""Wealth, drawdown, rolling ratios, weights and turnover over time."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader.metrics import TRADING_DAYS
from fintrader.results.figures.style import colour_of, layout, lines, time_axis, title_of


def equity_figure(curves: pd.DataFrame, *, main: str | None = None) -> go.Figure:
    """Wealth of every strategy, USD. `curves`: wide equity."""
    figure = go.Figure()
    lines(figure, curves, "%{y:$,.0f}", main or str(curves.columns[0]))
    return layout(figure, "Equity", "USD", height=420)


def drawdown_figure(curves: pd.DataFrame, *, main: str | None = None) -> go.Figure:
    """Distance of every strategy below its running peak. `curves`: wide equity."""
    peak = curves.cummax()
    below = (curves / peak.where(peak > 0) - 1).fillna(0.0)
    figure = go.Figure()
    lines(figure, below, "%{y:.2%}", main or str(curves.columns[0]))
    figure.data[0].update(fill="tozeroy", fillcolor="rgba(11,79,158,0.10)")
    return layout(figure, "Drawdown", "below peak", percent=True, height=320)


def weights_figure(
    weights: pd.DataFrame, *, title: str = "Weights at each session's close", top: int = 12
) -> go.Figure:
    """Stacked weights over time: the `top` symbols by mean weight, the others together, the rest is cash."""
    order = weights.abs().mean().sort_values(ascending=False, kind="stable").index
    shown = weights[order[:top]].copy()
    if len(order) > top:
        shown[f"{len(order) - top} others"] = weights[order[top:]].sum(axis=1)
    figure = go.Figure()
    times = pd.DatetimeIndex(weights.index)
    steps = np.arange(len(shown))
    mixed = bool((weights < 0).any().any())
    for position, name in enumerate(shown.columns):
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=shown[name].to_numpy(),
                name=str(name),
                mode="lines",
                line={"width": 1.2 if mixed else 0.4, "color": _shade(position)},
                stackgroup=None if mixed else "weights",
                hovertemplate="%{y:.1%}<extra>" + str(name) + "</extra>",
            )
        )
    if len(shown):
        time_axis(figure, times)
    figure = layout(figure, title, "share of equity", percent=True, height=400)
    if not mixed:
        figure.update_yaxes(range=[0, 1.0])
    return figure


def _shade(position: int) -> str:
    shades = (
        "#0b4f9e", "#2a9d8f", "#d9730d", "#9065b0", "#c14c8a", "#6b8e23", "#b8860b",
        "#4682b4", "#cd5c5c", "#20b2aa", "#8b6f9c", "#708090", "#a9a9a9",
    )  # fmt: skip
    return shades[position % len(shades)]


def rolling_figure(returns: pd.DataFrame, *, main: str, window: int = 20, benchmark: str = "benchmark") -> go.Figure:
    """Rolling annualised Sharpe ratio of every strategy. `returns`: wide daily returns; needs `window` sessions."""
    mean, spread = returns.rolling(window).mean(), returns.rolling(window).std()
    ratio = (mean / spread.where(spread > 1e-12)).iloc[window - 1 :] * math.sqrt(TRADING_DAYS)
    figure = go.Figure()
    lines(figure, ratio, "%{y:.2f}", main)
    figure.add_hline(y=0, line={"color": "#9aa5b1", "width": 1})
    return layout(figure, f"Sharpe ratio over the last {window} sessions", "Sharpe ratio", height=320)


def beta_figure(returns: pd.DataFrame, *, main: str, window: int = 20, benchmark: str = "benchmark") -> go.Figure:
    """Rolling beta of every strategy against `benchmark`. `returns`: wide daily returns; needs `window` sessions."""
    index = returns[benchmark]
    others = returns.drop(columns=[benchmark])
    variance = index.rolling(window).var()
    slope = pd.DataFrame({name: others[name].rolling(window).cov(index) / variance for name in others.columns})
    figure = go.Figure()
    lines(figure, slope.iloc[window - 1 :], "%{y:.2f}", main)
    figure.add_hline(y=1, line={"color": "#9aa5b1", "width": 1})
    return layout(figure, f"Beta over the last {window} sessions", "beta", height=320)


def turnover_figure(turnover: pd.Series, equity: pd.Series, *, name: str) -> go.Figure:
    """Notional traded in each session over the equity at its end. Both by session (index: its last bar, UTC)."""
    share = (turnover / equity.where(equity > 0)).fillna(0.0)
    times = pd.DatetimeIndex(share.index)
    figure = go.Figure(
        go.Bar(
            x=np.arange(len(share)),
            y=share.to_numpy(),
            marker={"color": colour_of(name, 0)},
            customdata=list(times.strftime("%d %b %Y")),
            hovertemplate="%{customdata}: %{y:.1%}<extra>" + title_of(name) + "</extra>",
        )
    )
    time_axis(figure, times)
    figure = layout(figure, "Turnover of each session", "share of equity", percent=True, height=280)
    return figure.update_layout(showlegend=False, hovermode="closest")
