"""The paper's table, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

PAPER_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("cumulative_return", "Cumulative return", "percent"),
    ("annual_return", "Annual return", "percent"),
    ("annual_volatility", "Annual volatility", "percent"),
    ("max_drawdown", "Max drawdown", "percent"),
    ("sharpe", "Sharpe", "ratio"),
    ("calmar", "Calmar", "ratio"),
)
"""Key, heading and kind of the columns of the paper's Table 2, in its order."""


def show(value: float | None, kind: str) -> str:
    """A number as people read it: `percent`, `ratio`, `usd` or `number`; an en dash where it is undefined."""
    if value is None:
        return "–"
    if kind == "percent":
        digits = 0 if abs(value) >= 100 else 2
        return f"{value:,.{digits}%}".replace("%", " %")
    if kind == "usd":
        return f"{value:,.0f}"
    return f"{value:,.2f}"


def window_words(window: str) -> str:
    """`test` as "test window"; a walk-forward already says what it is."""
    return window if window.startswith("walk-forward") else f"{window} window"


def metrics_table(metrics: Mapping[str, Mapping[str, float | None]], *, title: str | None = None) -> Table:
    """One row a strategy, with the paper's columns."""
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("Strategy", no_wrap=True)
    for _, heading, _ in PAPER_COLUMNS:
        table.add_column(heading, justify="right")
    for strategy, values in metrics.items():
        cells = [show(values.get(key), kind) for key, _, kind in PAPER_COLUMNS]
        table.add_row(strategy.replace("_", " "), *cells)
    return table
