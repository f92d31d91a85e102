"""Metrics as readers see them: headline cards, the paper's table, and everything with its formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from fintrader.results.catalogue import BY_KEY
from fintrader.results.formatting import number, statistic
from fintrader_app.shell import table
from fintrader_app.wording import human

HEADLINE = (
    ("cumulative_return", "Return"),
    ("annual_return", "Annual return"),
    ("annual_volatility", "Volatility"),
    ("sharpe", "Sharpe"),
    ("max_drawdown", "Max drawdown"),
    ("calmar", "Calmar"),
)
FEW_SESSIONS = 63


def title_of(key: str) -> str:
    """A metric's name as readers see it."""
    known = BY_KEY.get(key)
    return str(known.title) if known else human(key)


def cards(metrics: Mapping[str, Any], versus: Mapping[str, Any] | None = None, *, versus_name: str = "") -> None:
    """The headline numbers of one strategy, each with its difference from another."""
    with st.container(horizontal=True, gap="small"):
        for key, title in HEADLINE:
            difference = _difference(key, metrics, versus)
            st.metric(
                title,
                statistic(key, metrics.get(key)),
                difference,
                delta_color="inverse" if key == "annual_volatility" else "normal",
                help=_help(key, versus_name if difference else ""),
                width="stretch",
                height="stretch",
                border=True,
            )


def _difference(key: str, metrics: Mapping[str, Any], versus: Mapping[str, Any] | None) -> str | None:
    if versus is None:
        return None
    mine, other = number(metrics.get(key)), number(versus.get(key))
    return None if mine is None or other is None else statistic(key, mine - other, signed=True)


def _help(key: str, versus_name: str) -> str:
    known = BY_KEY.get(key)
    text = f"`{known.formula}` from daily returns; {known.source}." if known else ""
    return text + (f" Below it: the difference from {versus_name}." if versus_name else "")


def short_window(sessions: int) -> None:
    """Say so when annual figures are made from a few weeks."""
    if sessions < FEW_SESSIONS:
        st.caption(
            f":material/warning: Only {sessions} sessions: annual figures and ratios are extrapolated from a few weeks."
        )


def paper_table(metrics: Mapping[str, Mapping[str, Any]], key: str) -> None:
    """One row a strategy, the paper's columns."""
    rows = [
        {"Strategy": human(name), **{title: statistic(metric, values.get(metric)) for metric, title in HEADLINE}}
        for name, values in metrics.items()
    ]
    table(rows, key, right=[title for _, title in HEADLINE], pinned="Strategy")


def full_table(metrics: Mapping[str, Mapping[str, Any]], key: str) -> None:
    """Every stored metric: one row a metric, one column a strategy, with formula and source."""
    rows = []
    for name in dict.fromkeys(name for values in metrics.values() for name in values):
        known = BY_KEY.get(name)
        row = {"Metric": title_of(name)}
        row |= {human(strategy): statistic(name, values.get(name)) for strategy, values in metrics.items()}
        rows.append(row | {"Formula": known.formula if known else "", "Source": known.source if known else ""})
    table(rows, key, right=map(human, metrics), pinned="Metric", height=520)
