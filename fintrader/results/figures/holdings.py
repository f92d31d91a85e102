"""Figures on holdings, trades and costs, and on the result with one choice changed at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader.metrics import divide, find_session_ends
from fintrader.results.analysis import Variation
from fintrader.results.figures.curves import Session
from fintrader.results.figures.style import (
    INK,
    MOST_LINES,
    MUTED,
    SINGLE,
    ZERO_LINE,
    add_curve,
    choose_colour,
    draw_lines,
    escape_label,
    layout,
    stamps,
    time_axis,
)
from fintrader.results.formatting import format_title

BUY = "#0b6e99"
SELL = "#b42318"
SHADES = (
    *("#0b4f9e", "#2a9d8f", "#d9730d", "#9065b0", "#c14c8a", "#6b8e23", "#b8860b"),
    *("#4682b4", "#cd5c5c", "#20b2aa", "#8b6f9c", "#708090", "#a9a9a9"),
)
APART = 8
"""Number of symbols whose weights are drawn separately, unless the reader chooses another."""
MOST_MARKS = 600
"""Most fills that are marked on a price."""


def weights_figure(weights: pd.DataFrame, *, top: int = APART) -> go.Figure:
    """Stacked weights over time: the `top` symbols by mean weight, the others together, the rest is
    cash."""
    shown = _gather_others(weights, weights.abs().mean(), top)
    figure = go.Figure()
    mixed = bool((weights < 0).any().any())
    for position, name in enumerate(shown.columns):
        look = {"width": 1.2 if mixed else 0.4, "color": SHADES[position % len(SHADES)]}
        stack = None if mixed else "weights"
        x = np.arange(len(shown))
        add_curve(figure, x, shown[name], name, "%{y:.1%}", line=look, stackgroup=stack)
    if len(shown):
        time_axis(figure, pd.DatetimeIndex(weights.index))
    figure = layout(
        figure, "Weights at each session's close", "share of equity", percent=True, height=400
    )
    if not mixed:
        figure.update_yaxes(
            range=[0, max(1.0, float(weights.sum(axis=1).max()))]
        )  # above 1 on borrowed money
    return figure


def _gather_others(values: pd.DataFrame, size: pd.Series, most: int) -> pd.DataFrame:
    """The `most` columns of the largest `size`, and the sum of the others."""
    order = size.sort_values(ascending=False, kind="stable").index
    shown = values[order[:most]].copy()
    if len(order) > most:
        shown[f"{len(order) - most} others"] = values[order[most:]].sum(axis=1)
    return shown


def turnover_figure(
    turnover: pd.Series, equity: pd.Series, session: Session, *, name: str
) -> go.Figure:
    """Notional traded in each session over the equity at its end. Both in USD, at every bar."""
    ends = find_session_ends(session)
    traded = turnover.groupby(np.asarray(session)).sum().to_numpy()
    share = divide(traded, equity.to_numpy()[ends])
    times = pd.DatetimeIndex(equity.index[ends])
    label = escape_label(format_title(name))
    figure = go.Figure(
        go.Bar(
            x=np.arange(len(share)),
            y=share,
            marker={"color": choose_colour(name, 0)},
            customdata=list(times.strftime("%d %b %Y")),
            hovertemplate=f"%{{customdata}}: %{{y:.1%}}<extra>{label}</extra>",
        )
    )
    time_axis(figure, times)
    title = "Turnover of each session"
    return layout(figure, title, "share of equity", percent=True, height=280, **SINGLE)


def pnl_figure(profit: pd.DataFrame) -> go.Figure:
    """Profit so far, USD, of the symbols that made or lost most, the others together. `profit`:
    `[S, N]` USD of each session and symbol."""
    shown = _gather_others(profit, profit.sum().abs(), MOST_LINES - 1).cumsum()
    figure = go.Figure()
    times = pd.DatetimeIndex(profit.index)
    days = list(times.strftime("%d %b %Y"))
    for position, name in enumerate(shown.columns):
        look = {"width": 1.6, "color": SHADES[position % len(SHADES)]}
        hover = "%{customdata}: %{y:$,.0f}"
        x = np.arange(len(shown))
        add_curve(figure, x, shown[name], name, hover, line=look, customdata=days)
    time_axis(figure, times)
    figure.add_hline(y=0, line=ZERO_LINE)
    return layout(figure, "Profit so far by symbol, net of costs", "USD", height=380)


def paid_figure(costs: pd.DataFrame, session: Session) -> go.Figure:
    """Costs paid so far, USD, at each session's close. `costs`: wide, USD at every bar, one column
    a strategy."""
    figure = draw_lines(costs.cumsum().iloc[find_session_ends(session)], "%{y:$,.2f}")
    layout(figure, "Costs so far", "USD", height=280, showlegend=costs.shape[1] > 1)
    return figure.update_yaxes(rangemode="tozero")


def trades_figure(closes: pd.Series, trades: pd.DataFrame, *, symbol: str) -> go.Figure:
    """A symbol's session closes with the fills on them. `closes`: index the session's last bar.

    Fills are drawn between the sessions' closes at their own time; beyond MOST_MARKS only the
    largest are drawn.
    """
    times = pd.DatetimeIndex(closes.index)
    x = np.arange(len(times), dtype=np.float64)
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=closes.to_numpy(),
            name="session close",
            mode="lines",
            line={"color": MUTED, "width": 1.4},
            customdata=list(times.strftime("%d %b %Y")),
            hovertemplate="%{customdata}: %{y:,.2f} USD<extra></extra>",
        )
    )
    own, cut = _largest(trades[trades["symbol"] == symbol])
    filled = pd.DatetimeIndex(own["fill_time"]).as_unit("ns").asi8
    _add_fills(figure, own, np.interp(filled, times.as_unit("ns").asi8, x), times.tz)
    time_axis(figure, times)
    return layout(figure, _on_price(symbol, cut), "USD", height=360, hovermode="closest")


def candles_figure(
    bars: pd.DataFrame, trades: pd.DataFrame | None, *, symbol: str, timezone: str
) -> go.Figure:
    """Candles (`open, high, low, close`, index: start) with the fills on them, in the time of
    `timezone`.

    A fill is drawn on the candle that contains the start of its bar (`bar_start`, an extra column
    of `trades`, because a fill at a bar's close has the time of the next bar); beyond MOST_MARKS
    only the largest are drawn.
    """
    times = pd.DatetimeIndex(bars.index)
    local = times.tz_convert(timezone)
    one_day = bool((local.normalize() == local[0].normalize()).all())
    labels = local.strftime("%H:%M" if one_day else "%d %b %Y %H:%M")
    figure = go.Figure(
        go.Candlestick(
            x=labels,
            open=bars["open"],
            high=bars["high"],
            low=bars["low"],
            close=bars["close"],
            name=escape_label(symbol),
            increasing={"line": {"color": "#2a9d8f", "width": 1}},
            decreasing={"line": {"color": SELL, "width": 1}},
            showlegend=False,
        )
    )
    heading = symbol
    if trades is not None:
        own, cut = _largest(trades[trades["symbol"] == symbol])
        candle = times.searchsorted(pd.DatetimeIndex(own["bar_start"]), side="right") - 1
        _add_fills(figure, own, labels.to_numpy()[candle.clip(0)], local.tz)
        heading = _on_price(symbol, cut)
    figure = layout(figure, heading, "USD", height=440, hovermode="closest")
    title = {"text": f"{timezone} time", "font": {"color": MUTED}}
    return figure.update_xaxes(
        type="category", nticks=8, rangeslider={"visible": False}, title=title
    )


def _largest(trades: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The MOST_MARKS largest fills in their order, and whether some were left out."""
    trades = trades[trades["kind"] != "split"]
    if len(trades) <= MOST_MARKS:
        return trades, False
    largest = trades["notional_usd"].nlargest(MOST_MARKS).index
    return trades.loc[trades.index.isin(largest)], True


def _on_price(symbol: str, cut: bool) -> str:
    return f"{symbol}: fills on its price" + (f" (the {MOST_MARKS} largest)" if cut else "")


def _add_fills(figure: go.Figure, fills: pd.DataFrame, x: Any, zone: Any) -> None:
    """Buys and sells as triangles at their prices, their times in `zone`. `x`: the place of each
    row."""
    shares = fills["shares"].to_numpy()
    for side, rows, colour, mark in (
        ("bought", shares > 0, BUY, "triangle-up"),
        ("sold", shares < 0, SELL, "triangle-down"),
    ):
        part = fills[rows]
        times = stamps(pd.DatetimeIndex(part["fill_time"]).tz_convert(zone))
        figure.add_trace(
            go.Scatter(
                x=x[rows],
                y=part["price_usd"].to_numpy(),
                name=side,
                mode="markers",
                marker={
                    "color": colour,
                    "symbol": mark,
                    "size": 8,
                    "line": {"color": "white", "width": 0.5},
                },
                customdata=[
                    (time, f"{size:+,.6g}", f"{cost:,.2f}")
                    for time, size, cost in zip(
                        times, part["shares"], part["cost_usd"], strict=True
                    )
                ],
                hovertemplate="%{customdata[0]}: %{customdata[1]} at %{y:,.2f}, "
                "costs %{customdata[2]} USD<extra></extra>",
            )
        )


def _draw_variations(rows: Sequence[Variation], height: str, other: str, hover: str) -> go.Figure:
    """Draw the field `height` over the varied numbers, the chosen one marked, with the field
    `other` in the hover text."""
    ordered = sorted(rows, key=lambda row: row.number)
    figure = go.Figure(
        go.Scatter(
            x=[row.number for row in ordered],
            y=[getattr(row, height) for row in ordered],
            customdata=[[getattr(row, other)] for row in ordered],
            mode="lines+markers",
            line={"color": choose_colour("ensemble", 0), "width": 2},
            marker={"size": [11 if row.is_chosen else 7 for row in ordered]},
            hovertemplate=f"{hover}<extra></extra>",
        )
    )
    return figure.add_hline(y=0, line=ZERO_LINE)


def cost_figure(rows: Sequence[Variation]) -> go.Figure:
    """Draw the return at every proportional cost. `rows`: variations of `cost_bps`."""
    hover = "%{x} bps: %{y:.2%}, Sharpe %{customdata[0]:.2f}"
    figure = _draw_variations(rows, "cumulative_return", "sharpe", hover)
    for row in rows:
        if row.is_chosen and row.cumulative_return is not None:
            figure.add_annotation(
                x=row.number, y=row.cumulative_return, text="as traded", yshift=18, showarrow=False
            )
    title = "Return at other costs"
    x_title = "cost, basis points of every trade's notional"
    return layout(figure, title, "cumulative return", x_title, percent=True, height=320, **SINGLE)


def capital_figure(rows: Sequence[Variation]) -> go.Figure:
    """Draw the net Sharpe ratio at every capital. `rows`: variations of `capital_usd`."""
    hover = "$%{x:,.0f}: Sharpe %{y:.2f}, return %{customdata[0]:.2%}"
    figure = _draw_variations(rows, "sharpe", "cumulative_return", hover)
    title = "Sharpe ratio with more capital"
    layout(figure, title, "Sharpe ratio, net", height=300, showlegend=False)
    under = {"text": "starting capital, USD", "font": {"color": MUTED}}
    return figure.update_xaxes(type="log", dtick=1, tickprefix="$", title=under)


def without_figure(rows: Sequence[Variation], returned: float | None) -> go.Figure:
    """Draw the change of the return without each symbol, for the 20 that matter most. `rows`:
    variations of `without`."""
    base = returned or 0.0
    outcomes = [(row.setting, row.cumulative_return) for row in rows]
    known = [(symbol, value - base) for symbol, value in outcomes if value is not None]
    ranked = sorted(known, key=lambda pair: (-abs(pair[1]), pair[0]))[:20]
    ranked.sort(key=lambda pair: (pair[1], pair[0]))
    figure = go.Figure(
        go.Bar(
            x=[pair[1] for pair in ranked],
            y=[escape_label(pair[0]) for pair in ranked],
            orientation="h",
            marker={"color": [SELL if pair[1] < 0 else BUY for pair in ranked]},
            hovertemplate="without %{y}: %{x:+.2%}<extra></extra>",
        )
    )
    title = "Change of the return without one symbol"
    layout(figure, title, "", height=max(220, 90 + 22 * len(ranked)), **SINGLE)
    return figure.update_xaxes(tickformat="+.1%", zeroline=True, zerolinecolor=INK)
