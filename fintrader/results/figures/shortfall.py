"""Charts of a deployment: its account, its twin and the backtest's band, and the causes of the
difference between account and twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from fintrader.results.figures.style import COLOURS, MUTED, PALETTE, SINGLE, layout, stamps

SHORTFALL = {
    "delay": "Delay: decision to open",
    "spread_and_impact": "Spread and impact",
    "fees": "Fees",
    "unfilled": "Not filled",
    "rounding": "Rounding to whole shares",
}
"""Parts of an order's cost against the price it was decided at, in the order of a drift report."""


def drift_figure(
    dates: Sequence[str],
    account_usd: Sequence[float],
    twin_usd: Sequence[float],
    band: tuple[Sequence[float], Sequence[float]] | None,
) -> go.Figure:
    """Draw account and twin at each session's close, over the `band` (low, high) of the backtest's
    days."""
    days = pd.to_datetime(pd.Series(dates))
    figure = go.Figure()
    if band is not None:
        low_usd, high_usd = band
        figure.add_scatter(x=days, y=low_usd, line={"width": 0}, showlegend=False, hoverinfo="skip")
        figure.add_scatter(
            x=days,
            y=high_usd,
            fill="tonexty",
            fillcolor="rgba(97,110,124,0.15)",
            line={"width": 0},
            name="90 % of accounts that resample the backtest's days",
            hoverinfo="skip",
        )
    for values, name, look in (
        (
            twin_usd,
            "Twin: the same bars in the backtest's ledger",
            {"color": PALETTE[1], "dash": "dash"},
        ),
        (account_usd, "Account", {"color": COLOURS["ensemble"], "width": 2}),
    ):
        figure.add_scatter(
            x=days, y=values, name=name, line=look, hovertemplate="%{y:,.0f} USD<extra></extra>"
        )
    return layout(figure, "Value of the account", "USD", height=400)


def account_figure(curve: Sequence[tuple[int, float]], timezone: str) -> go.Figure:
    """Draw an account while it trades. `curve`: start of the bar (ns) and equity, USD; times are
    shown in `timezone`."""
    times = pd.to_datetime([bar for bar, _ in curve], utc=True).tz_convert(timezone)
    look = {"color": COLOURS["ensemble"], "width": 2}
    wall = times.tz_localize(None)  # plotly knows no time zones
    figure = go.Figure(
        go.Scatter(x=wall, y=[equity for _, equity in curve], customdata=stamps(times), line=look)
    )
    figure.update_traces(hovertemplate="%{customdata}: %{y:,.0f} USD<extra></extra>")
    return layout(
        figure, "Value of the account", "USD", f"{timezone} time", height=400, showlegend=False
    )


def difference_figure(
    dates: Sequence[str], account_usd: Sequence[float], twin_usd: Sequence[float]
) -> go.Figure:
    """Account less twin at each session's close, bps of the twin."""
    days = pd.to_datetime(pd.Series(dates))
    apart = [1e4 * (ours / theirs - 1) for ours, theirs in zip(account_usd, twin_usd, strict=True)]
    figure = go.Figure(go.Bar(x=days, y=apart, marker={"color": PALETTE[1]}))
    figure.update_traces(hovertemplate="%{x|%d %b %Y}: %{y:+.2f} bps<extra></extra>")
    layout(figure, "Account less twin", "bps of the twin", height=260, **SINGLE)
    if apart and max(map(abs, apart)) < 0.01:
        figure.update_yaxes(range=[-1, 1]).update_xaxes(range=[days.iloc[0], days.iloc[-1]])
        figure.add_annotation(
            text="equal to the last cent",
            showarrow=False,
            font={"color": MUTED},
            xref="paper",
            x=0.5,
            y=0.4,
        )
    return figure


def shortfall_figure(bps: Mapping[str, float]) -> go.Figure:
    """Parts of the implementation shortfall, bps of the ordered amount."""
    sizes = [bps[name] for name in SHORTFALL]
    figure = go.Figure(go.Bar(x=sizes, y=list(SHORTFALL.values()), orientation="h"))
    figure.update_traces(
        marker={"color": [PALETTE[0], PALETTE[1], PALETTE[3], PALETTE[5], PALETTE[6]]},
        hovertemplate="%{x:+.2f} bps<extra></extra>",
    )
    layout(figure, "", "", "bps of the ordered amount", height=260, hovermode="closest")
    return figure.update_yaxes(autorange="reversed", automargin=True)
