"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tabulate(rows: Sequence[Mapping[str, Any]], *columns: str) -> str:
    """Format rows as a table of those `columns` that at least one row has."""
    from fintrader.numerals import score
    from fintrader.results.table import Table

    present = [column for column in columns if any(column in row for row in rows)]
    formats = {"score": score}
    cells = [[formats.get(name, format_cell)(row.get(name)) for name in present] for row in rows]
    return str(Table.of(present, cells))


def format_cell(value: Any) -> str:
    """Format a value as the text of a cell."""
    from fintrader.numerals import DASH, count

    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_cell(below)}" for key, below in value.items())
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
