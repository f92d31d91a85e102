"""Sections of a page about a backtest: one content for terminal, report and app.

Each function takes a `BacktestView` and returns a `Section`, or None where there is nothing to say.
"""

from __future__ import annotations

from fintrader.results.sections.choices import present_decisions, present_sensitivity
from fintrader.results.sections.opening import describe_market, present_verdict
from fintrader.results.sections.origins import present_data, present_origin
from fintrader.results.sections.performance import (
    present_baselines,
    present_curves,
    present_folds,
    present_metrics,
    present_periods,
    present_regimes,
    present_returns,
    present_rolling,
)
from fintrader.results.sections.positions import (
    present_capacity,
    present_execution,
    present_fills,
    present_positions,
)
from fintrader.results.sections.profits import (
    present_attribution,
    present_factors,
    present_profit,
    present_trips,
)
from fintrader.results.sections.section import BacktestView, Chart, Section
from fintrader.results.sections.skill import (
    evidence_table,
    present_evidence,
    present_search,
    search_table,
)

__all__ = [
    "BacktestView",
    "Chart",
    "Section",
    "describe_market",
    "evidence_table",
    "present_attribution",
    "present_backtest",
    "present_baselines",
    "present_capacity",
    "present_curves",
    "present_data",
    "present_decisions",
    "present_evidence",
    "present_execution",
    "present_factors",
    "present_fills",
    "present_folds",
    "present_metrics",
    "present_origin",
    "present_periods",
    "present_positions",
    "present_profit",
    "present_regimes",
    "present_returns",
    "present_rolling",
    "present_search",
    "present_sensitivity",
    "present_trips",
    "present_verdict",
    "search_table",
]


def present_backtest(view: BacktestView) -> list[Section]:
    """Present everything about a backtest, the verdict first."""
    near = view.narrow()
    sections = (
        present_verdict(view),
        present_baselines(view),
        present_curves(view),
        present_folds(view),
        present_evidence(view),
        present_search(view),
        present_returns(view),
        present_rolling(view),
        present_periods(near),
        present_regimes(near),
        present_positions(view),
        present_fills(view),
        present_profit(view),
        present_attribution(view),
        present_trips(view),
        present_execution(view),
        present_capacity(view),
        present_factors(view),
        present_decisions(view),
        present_sensitivity(view),
        present_metrics(view),
        present_data(view),
        present_origin(view),
    )
    return [section for section in sections if section is not None]
