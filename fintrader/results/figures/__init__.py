"""Charts as `plotly.graph_objects.Figure`: pure functions of tables, shared by the report, the app and notebooks."""

from __future__ import annotations

from fintrader.results.figures.curves import (
    beta_figure,
    drawdown_figure,
    equity_figure,
    rolling_figure,
    turnover_figure,
    weights_figure,
)
from fintrader.results.figures.luck import excess_figure, overfitting_figure, random_portfolios_figure, sharpe_figure
from fintrader.results.figures.returns import distribution_figure, intraday_figure, monthly_figure
from fintrader.results.figures.style import COLOURS, DASHES, PALETTE, colour_of, thin, title_of
from fintrader.results.figures.trading import cost_figure, trades_figure, without_figure

__all__ = [
    "COLOURS",
    "DASHES",
    "PALETTE",
    "beta_figure",
    "colour_of",
    "cost_figure",
    "distribution_figure",
    "drawdown_figure",
    "equity_figure",
    "excess_figure",
    "intraday_figure",
    "monthly_figure",
    "overfitting_figure",
    "random_portfolios_figure",
    "rolling_figure",
    "sharpe_figure",
    "thin",
    "title_of",
    "trades_figure",
    "turnover_figure",
    "weights_figure",
    "without_figure",
]
