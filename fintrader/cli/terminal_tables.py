"""Tables on the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def table_of(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
    from fintrader.results.formatting import score

    table = Table(pad_edge=False)
    present = [column for column in columns if any(column in row for row in rows)]
    for column in present:
        table.add_column(column)
    for row in rows:
        table.add_row(
            *[
                score(row[column]) if column == "score" else shown(row.get(column))
                for column in present
            ]
        )
    return table


def shown(value: Any) -> str:
    from fintrader.results.formatting import DASH, count

    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(below)}" for key, below in value.items())
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
