"""Charts as `plotly.graph_objects.Figure`: one function for each chart, from plain tables, without
torch.

The report, the app and the notebooks call these. The app adds a dark theme and thins curves, and
changes no number.
"""

from fintrader.results.figures.curves import (
    FEWEST_TO_ROLL,
    deepest_drawdowns,
    drawdown_figure,
    equity_figure,
    exposure_figure,
    fade_others,
    growth_figure,
    rolling_figure,
    rolling_sessions,
    wealth_figure,
)
from fintrader.results.figures.feature_attribution import decision_figure, importance_figure
from fintrader.results.figures.holdings import (
    APART,
    MOST_MARKS,
    candles_figure,
    capital_figure,
    cost_figure,
    paid_figure,
    pnl_figure,
    trades_figure,
    turnover_figure,
    weights_figure,
    without_figure,
)
from fintrader.results.figures.returns import (
    SCALE,
    distribution_figure,
    intraday_figure,
    monthly_figure,
)
from fintrader.results.figures.skill import (
    BINS,
    MOST_BARS,
    alpha_figure,
    betting_figure,
    excess_figure,
    overfitting_figure,
    random_portfolios_figure,
    sharpe_figure,
    trials_figure,
)
from fintrader.results.figures.style import PALETTE
