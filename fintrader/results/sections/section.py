"""`Section`: one part of a page about a backtest, in words, figures and tables.

A terminal prints its words and tables (`str`), a report renders it as HTML, the app as widgets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import plotly.graph_objects as go

from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import format_title, in_order, main_strategy
from fintrader.results.table import Row, Table
from fintrader.verdict.verdict import FOREIGN

Tone = Literal["good", "doubt", "alarm"]


@dataclass(frozen=True)
class BacktestView:
    """A stored backtest, the strategy that a page is about, and those shown for comparison."""

    stored: StoredBacktest
    main: str
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, stored: StoredBacktest) -> BacktestView:
        """View all strategies of a backtest, its main one first."""
        main = main_strategy(stored.strategies)
        others = tuple(name for name in in_order(stored.strategies) if name != main)
        return cls(stored, main, others)

    @property
    def names(self) -> list[str]:
        """All strategies shown, the main one first."""
        return [self.main, *self.others]

    @property
    def index(self) -> str | None:
        """The index that betas and regimes are measured against; None where there is none, or it
        is the main strategy itself."""
        has_index = "benchmark" in self.stored.strategies and self.main != "benchmark"
        return "benchmark" if has_index else None

    @property
    def is_foreign(self) -> bool:
        """True for external returns, whose market, search and settings are unknown."""
        verdict = self.stored.verdict
        return verdict is not None and verdict.window == FOREIGN

    @property
    def has_positions(self) -> bool:
        """True if the positions of the main strategy are known."""
        return self.stored.find_metrics(self.main).trades is not None

    @property
    def has_intraday_bars(self) -> bool:
        """True if sessions have more than one bar."""
        return len(self.stored.session) > len(self.stored.ends) + 1

    @property
    def key_names(self) -> list[str]:
        """The main strategy, its benchmark portfolio unless that is cash, and the index."""
        portfolio = self.stored.portfolio
        named = (self.main, None if portfolio == "cash" else portfolio, self.index)
        return [name for name in dict.fromkeys(named) if name in self.stored.strategies]

    @property
    def title(self) -> str:
        """Readable name of the main strategy."""
        return format_title(self.main)


@dataclass(frozen=True)
class Chart:
    """A figure, drawn when a screen asks for it."""

    key: str
    """Names the chart on its page."""
    draw: Callable[[], go.Figure]
    """Its title is the chart's title."""
    note: str = ""
    is_half: bool = False
    """Narrow enough to stand next to another on a wide screen."""


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    key: str
    """Names the section on its page, and in links to it."""
    title: str
    headline: str = ""
    figures: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    warning: str = ""
    """Warning to read before any number; shown first."""
    tone: Tone | None = None
    """Colour of the title where it states a finding."""

    def __str__(self) -> str:
        """Words and tables as text."""
        parts = [self.warning, self.title, self.headline, *map(str, self.tables), *self.notes]
        return "\n".join(filter(None, parts))


# --- periods other than days ----------------------------------------------------------------------

_OF_DAYS = re.compile(r"\b(daily|session|day)(?=s?\b)", re.IGNORECASE)


def name_periods(part: Any, unit: str) -> Any:
    """Put `unit` (week, month) in place of sessions and days in a section's words and its figures'
    titles."""

    def rename(match: re.Match[str]) -> str:
        word = f"{unit}ly" if match[1].lower() == "daily" else unit
        return word.capitalize() if match[1][0].isupper() else word

    if isinstance(part, str):
        return _OF_DAYS.sub(rename, part)
    if isinstance(part, list | tuple):
        return [name_periods(one, unit) for one in part]
    if isinstance(part, Chart):
        return replace(part, note=name_periods(part.note, unit), draw=partial(_redraw, part, unit))
    if isinstance(part, Section | Table | Row):
        words = {one.name: name_periods(getattr(part, one.name), unit) for one in fields(part)}
        return replace(part, **words | ({"key": part.key} if isinstance(part, Section) else {}))
    return part


def _redraw(chart: Chart, unit: str) -> go.Figure:
    """Draw a chart with `unit` in its titles."""
    figure = chart.draw()
    for part in (figure.layout, figure.layout.xaxis, figure.layout.yaxis):
        part.title.text = name_periods(part.title.text, unit)
    return figure
