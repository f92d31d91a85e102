"""`Table`: rows of text for every screen, and the tables of a strategy's metrics.

A terminal prints a table as text, a report and a notebook as HTML, the app as its own widget.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from rich.console import Console
from rich.table import Table as RichTable

from fintrader.numerals import format_interval
from fintrader.results.catalogue import CATALOGUE
from fintrader.results.formatting import (
    ACTIVE_COLUMNS,
    INTERVAL,
    PAPER_COLUMNS,
    explain_short_window,
    format_metric,
    format_title,
    rival_name,
)
from fintrader.results.strategy_metrics import StrategyMetrics

WIDTH = 120
"""Columns of a table printed as text."""


@dataclass(frozen=True)
class Row:
    """Cells of one row; the first one names it."""

    cells: Sequence[str]
    is_main: bool = False
    note: str = ""
    """Small print below the name."""


@dataclass(frozen=True)
class Table:
    """Rows of text under columns. Without column titles, each row is a name and a sentence."""

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    notes: Sequence[str] = ()
    words: Sequence[str] = ()
    """Columns that hold words, aligned left; the first column always is."""
    is_half: bool = False
    """Narrow enough to stand next to another on a wide screen."""
    is_folded: bool = False
    """Long, and closed until a reader opens it, where a screen can."""

    @classmethod
    def of(
        cls,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        title: str = "",
        notes: Sequence[str] = (),
        words: Sequence[str] = (),
    ) -> Table:
        """Make a table of plain rows."""
        return cls(columns, list(map(Row, rows)), title, notes, words)

    @property
    def has_heading(self) -> bool:
        """The columns have titles."""
        return any(self.columns)

    def __str__(self) -> str:
        """The table without a frame, equal wherever it is printed."""
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.show_header = self.has_heading
        for place, column in enumerate(self.columns):
            is_text = place == 0 or column in self.words or not self.has_heading
            is_fixed = place == 0 and len(self.columns) > 2
            table.add_column(column, justify="left" if is_text else "right", no_wrap=is_fixed)
        for row in self.rows:
            table.add_row(*(cell.replace("\u00a0", " ") for cell in row.cells))
        console = Console(width=WIDTH, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(table, markup=False)
        lines = [line.rstrip() for line in capture.get().rstrip().splitlines()]
        return "\n".join([*filter(None, [self.title]), *lines, *self.notes])

    def _repr_html_(self) -> str:
        """The table and its notes as HTML."""
        notes = "".join(f'<p class="note">{html.escape(text)}</p>' for text in self.notes)
        return self.to_html() + notes

    def to_html(self) -> str:
        """Render the table alone as HTML: every word escaped, losses marked."""
        if not self.has_heading:
            pairs = (
                f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
                for name, text in (row.cells for row in self.rows)
            )
            return f"<dl>{''.join(pairs)}</dl>"
        styles = [' class="words"' if column in self.words else "" for column in self.columns]
        head = "".join(
            f'<th scope="col"{style}>{html.escape(column)}</th>'
            for style, column in zip(styles, self.columns, strict=True)
        )
        lines = []
        for row in self.rows:
            note = f'<span class="note">{html.escape(row.note)}</span>' if row.note else ""
            cells = [f'<th scope="row">{html.escape(row.cells[0])}{note}</th>']
            for style, cell in zip(styles[1:], row.cells[1:], strict=True):
                # An interval is a loss where both of its ends are.
                is_loss = all(end.startswith("-") for end in cell.split(" to "))
                loss = ' class="neg"' if not style and is_loss else style
                cells.append(f"<td{loss}>{html.escape(cell)}</td>")
            kind = ' class="main"' if row.is_main else ""
            lines.append(f"<tr{kind}>{''.join(cells)}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def render_notice(notice: str) -> str:
    """Render a synthetic market's banner as HTML; empty without one."""
    words = html.escape(notice)
    # The border also shows in a notebook, which has none of a page's styles.
    look = 'class="notice" role="alert" style="border-left:4px solid #b42318"'
    return f"<p {look}>{words}</p>" if words else ""


def list_facts(facts: Mapping[str, str]) -> Table:
    """Make a table without column titles: names and sentences, empty ones left out."""
    return Table.of(("", ""), [pair for pair in facts.items() if pair[1]])


def paper_table(
    metrics: Mapping[str, StrategyMetrics],
    *,
    title: str = "",
    main: str = "",
    about: Mapping[str, str] | None = None,
) -> Table:
    """Tabulate the paper's columns, a row a strategy; `about` is small print by strategy."""
    columns = ("Strategy", *(heading for _, heading in PAPER_COLUMNS))
    rows = [
        Row(
            (format_title(name), *(format_metric(key, values) for key, _ in PAPER_COLUMNS)),
            is_main=name == main,
            note=(about or {}).get(name, ""),
        )
        for name, values in metrics.items()
    ]
    return Table(columns, rows, title, explain_short_window(metrics.values()))


def active_table(
    metrics: Mapping[str, StrategyMetrics], portfolio: str | None = None, *, main: str = ""
) -> Table:
    """Tabulate the differences of each strategy from the benchmark portfolio."""
    against = "the portfolio" if portfolio is None else rival_name(portfolio)
    rows = [
        Row((format_title(name), *format_active(values)), is_main=name == main)
        for name, values in metrics.items()
    ]
    headings = (heading for _, heading in ACTIVE_COLUMNS)
    return Table((f"Against {against}", *headings, INTERVAL), rows)


def format_active(values: StrategyMetrics) -> list[str]:
    """Write a strategy's ACTIVE_COLUMNS and the information ratio's interval."""
    band = format_interval(values.information_ratio_low, values.information_ratio_high)
    return [*(format_metric(key, values) for key, _ in ACTIVE_COLUMNS), band]


def metrics_tables(metrics: Mapping[str, StrategyMetrics]) -> list[Table]:
    """Tabulate every metric of the catalogue, one table a group, a column a strategy."""
    short = explain_short_window(metrics.values())
    tables = []
    for group, members in groupby(CATALOGUE, attrgetter("group")):
        rows = [
            Row(
                (known.title, *(format_metric(known.key, values) for values in metrics.values())),
                note=f"{known.formula} ({known.source})",
            )
            for known in members
            if any(values[known.key] is not None for values in metrics.values())
        ]
        if rows:
            columns = (group.capitalize(), *map(format_title, metrics))
            tables.append(Table(columns, rows, notes=short, is_folded=True))
    return tables
