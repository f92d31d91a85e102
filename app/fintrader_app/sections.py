"""Sections of a backtest (`fintrader.results.sections`) as widgets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import pandas as pd
import streamlit as st

from fintrader.numerals import DASH
from fintrader.results.sections import BacktestView, Chart, Section, present_verdict
from fintrader.results.table import Table
from fintrader_app import charts, tables
from fintrader_app.shell import LONGEST, draw_notice, heading, plain

Present = Callable[..., Section | None]
Part = TypeVar("Part", Chart, Table)
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<currency>\$?)(?P<digits>[\d,]*\.?\d+)(?P<unit>\s?%?)")


def show(present: Present, view: BacktestView, version: Hashable, **choices: Hashable) -> None:
    """Draw the section that `present` makes of a backtest; it is made once for each `version` of
    the files and for each choice."""
    state = (version, view.main, view.others, view.stored.timezone, *choices.items())
    section = _make(present.__name__, state, lambda: present(view, **choices))
    if section is not None:
        draw(section, state)


@st.cache_resource(max_entries=64, show_spinner=False)
def _make(
    name: str, state: Hashable, _make_section: Callable[[], Section | None]
) -> Section | None:
    """Make a section, which all browser sessions share unchanged."""
    return _make_section()


def draw(section: Section, state: Hashable, key: str = "") -> None:
    """Draw a section. `state` changes when its figures do; `key` distinguishes sections of a
    kind."""
    draw_notice(section.warning)
    name = f"{key}{section.key}"
    if section.tone is not None:
        _draw_finding(section, name)
        return
    if section.title:
        heading(plain(section.title))
    if section.headline:
        st.markdown(plain(section.headline, LONGEST))
    for chart in _lay_out(section.figures):
        charts.show(chart.draw, f"{name}_{chart.key}", version=state, is_titled=True)
        draw_notes([chart.note])
    for place, table in enumerate(_lay_out(section.tables)):
        draw_table(table, f"{name}_{place}")
    draw_notes(section.notes)


def _draw_finding(section: Section, name: str) -> None:
    """Draw a finding in one line, its title and its first fact; everything else is folded."""
    facts = [row.cells for table in section.tables for row in table.rows]
    title = f"**{plain(section.title.rstrip('.'), LONGEST)}.**"
    if facts:
        title += f" {plain(facts[0][1], LONGEST)}"
    with st.container(key=f"answer-{section.tone}-{name}"), st.expander(title):
        draw_notes([section.headline])
        for fact, text in facts[1:]:
            st.caption(f"**{plain(fact)}.** {plain(text, LONGEST)}")
        draw_notes(section.notes)


def draw_verdict(view: BacktestView, run: str) -> None:
    """Draw the verdict on a backtest of the run of this name, without the banner, which the page
    shows."""
    verdict = present_verdict(view)
    draw(replace(verdict, title=f"{run}: {verdict.title}", warning=""), (), f"{run}-")


def _lay_out(parts: Iterable[Part]) -> Iterable[Part]:
    """Yield one part after another; neighbours of half width go into two columns."""
    for is_half, group in groupby(parts, key=lambda part: part.is_half):
        row = list(group)
        columns = st.columns(2) if is_half and len(row) > 1 else [st.container()]
        for place, part in enumerate(row):
            with columns[place % len(columns)]:
                yield part


def draw_table(table: Table, key: str) -> None:
    """Draw a table, with the notes of its rows as a last column and hide secrets in its texts."""
    if not table.has_heading:
        st.caption(_write_facts(table))
        return
    names = [column or "Item" for column in table.columns]
    cells = [
        [
            tables.hide_secret(row.cells[0], cell) if column in table.words else cell
            for column, cell in zip(table.columns, row.cells, strict=True)
        ]
        for row in table.rows
    ]
    shown = pd.DataFrame(cells, columns=names)
    numbers = {
        name: read_numbers(list(shown[name])) for name in names[1:] if name not in table.words
    }
    read = {name: values for name, values in numbers.items() if values is not None}
    frame = shown.assign(**read)
    if any(row.note for row in table.rows):
        frame["About"] = [row.note for row in table.rows]
    styled = frame.style
    for name, values in read.items():
        texts: dict[object, str] = dict(zip(values, shown[name], strict=True))
        styled = styled.format(texts.__getitem__, [name], na_rep=DASH)
    title = table.title or table.columns[0]
    with st.expander(plain(title)) if table.is_folded else st.container():
        if table.title and not table.is_folded:
            st.markdown(f"**{plain(title)}**")
        right = [name for name in names[1:] if name not in (*table.words, *read)]
        tables.table(styled, key, right=right, pinned=names[0], height="few")
        draw_notes(table.notes)


def read_numbers(cells: Sequence[str]) -> list[float] | None:
    """Read the cells of a column as numbers to sort by, NaN for a dash; None where they are no
    numbers of one unit.

    Different cells get different numbers, so that each leads back to its cell: of -0.00 and 0.00
    one is moved to the next float.
    """
    numbers = []
    units = set()
    texts: dict[float, str] = {}
    for cell in cells:
        found = _NUMBER.fullmatch(cell)
        if found is not None:
            units.add((found["currency"], found["unit"]))
            value = float(found["sign"] + found["digits"].replace(",", ""))
            while texts.setdefault(value, cell) != cell:
                value = math.nextafter(value, math.inf)
            numbers.append(value)
        elif cell == DASH:
            numbers.append(math.nan)
        else:
            return None
    return numbers if len(units) == 1 else None


def _write_facts(table: Table) -> str:
    """Write each row as a paragraph."""
    return "\n\n".join(
        f"**{plain(name)}.** {plain(text, LONGEST)}"
        for name, text in (row.cells for row in table.rows)
    )


def draw_notes(notes: Iterable[str]) -> None:
    """Draw lines of small print, empty ones left out."""
    for note in notes:
        if note:
            st.caption(plain(note, LONGEST))
