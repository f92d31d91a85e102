"""Sections of a page about a backtest: one content for terminal, report and app.

Each function takes a `BacktestView` and returns a `Section`, or None where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable

from fintrader.numerals import period_name
from fintrader.results.sections.choices import present_decisions, present_sensitivity
from fintrader.results.sections.opening import present_verdict
from fintrader.results.sections.origins import present_data, present_origin
from fintrader.results.sections.performance import (
    present_baselines,
    present_curves,
    present_drawdowns,
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
from fintrader.results.sections.section import BacktestView, Chart, Section, name_periods
from fintrader.results.sections.skill import (
    evidence_table,
    present_evidence,
    present_search,
    search_table,
)


def present_backtest(view: BacktestView) -> list[Section]:
    """Present everything about a backtest: the verdict, wealth, months, then the rest. Returns by
    the week or month are named so."""
    presenters: tuple[Callable[[BacktestView], Section | None], ...] = (
        present_verdict,
        present_curves,
        _present_near_periods,
        present_baselines,
        present_folds,
        present_evidence,
        present_search,
        present_drawdowns,
        present_returns,
        present_rolling,
        present_regimes,
        present_positions,
        present_fills,
        present_profit,
        present_attribution,
        present_trips,
        present_execution,
        present_capacity,
        present_factors,
        present_decisions,
        present_sensitivity,
        present_metrics,
        present_data,
        present_origin,
    )
    if view.is_foreign:
        presenters = _OF_POSITIONS if view.has_positions else _OF_RETURNS
    sections = [section for present in presenters if (section := present(view)) is not None]
    unit = period_name(view.stored.sessions_a_year)
    return sections if unit == "session" else [name_periods(one, unit) for one in sections]


def _present_near_periods(view: BacktestView) -> Section:
    """Show the closest strategies only: columns for all would not fit."""
    return present_periods(BacktestView(view.stored, view.main, tuple(view.key_names[1:])))


_OF_RETURNS: tuple[Callable[[BacktestView], Section | None], ...] = (
    present_verdict,
    present_curves,
    present_baselines,
    present_evidence,
    present_drawdowns,
    present_returns,
    present_rolling,
    _present_near_periods,
    present_regimes,
    present_metrics,
    present_origin,
)
"""Sections on external returns, in their order."""
_OF_POSITIONS = (
    *_OF_RETURNS[:-2],
    present_positions,
    present_fills,
    present_profit,
    present_trips,
    *_OF_RETURNS[-2:],
)
"""The same where the positions are known."""
