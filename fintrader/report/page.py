"""A page of sections in one HTML file that needs no network.

plotly.js and the charts travel inside the page, compressed (about 2 MB); the browser unpacks them
with `DecompressionStream` (Chromium 80, Firefox 113, Safari 16.4 or later).
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

from fintrader.results.figures.style import ON_DARK
from fintrader.results.sections import Chart, Section
from fintrader.results.table import Table, render_notice


@dataclass
class Page:
    """A page that is put together section by section. Equal sections give equal bytes."""

    title: str
    hidden: str = ""
    """An element that is not shown."""
    _header: str = ""
    _sections: list[str] = field(default_factory=list)
    _links: list[str] = field(default_factory=list)
    _folded: int = 0
    _charts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_header(self, kicker: str, section: Section) -> None:
        """Put a section at the top; its title is the finding of the page."""
        self._header = (
            render_notice(section.warning)
            + f'<header><p class="kicker">{html.escape(kicker)}</p>'
            + f'<h1 class="{section.tone or ""}">{html.escape(section.title)}</h1>'
            + _render_words('<p class="lead">{}</p>', section.headline)
            + self._render_parts(replace(section, tables=section.tables[:1]))
            + "".join(
                f"<details><summary>How it was made</summary>{render_table(table)}</details>"
                for table in section.tables[1:]
            )
            + "</header>"
        )

    def add(self, section: Section, *, is_folded: bool = False) -> None:
        """Add a section as a card with a link to it. A folded section is closed until a reader
        opens it, and is printed only if it is open."""
        title = f"<h2>{html.escape(section.title)}</h2>"
        headline = _render_words("<p>{}</p>", section.headline)
        body = f"{headline}{self._render_parts(section)}"
        if is_folded:
            self._folded += 1
            body = f'<details class="part"><summary>{title}</summary>{body}</details>'
        else:
            link = section.key.replace("-", " ").capitalize()
            self._links.append(f'<a href="#{section.key}">{html.escape(link)}</a>')
            body = f"{title}{body}"
        self._sections.append(f'<section id="{section.key}">{body}</section>')

    def link(self, text: str, address: str) -> None:
        """Add a link to another page."""
        self._links.append(f'<a href="{html.escape(address)}">{html.escape(text)}</a>')

    def _render_parts(self, section: Section) -> str:
        charts = [(chart.is_half, self._render_chart(chart)) for chart in section.figures]
        tables = [(table.is_half, render_table(table)) for table in section.tables]
        return _lay_out(charts) + _lay_out(tables) + render_notes(section.notes)

    def _render_chart(self, chart: Chart) -> str:
        """Make a place for a figure, below its title as text, which can wrap."""
        figure = chart.draw()
        text = str(figure.layout.title.text or "")
        height = int(figure.layout.height or 380) - 40
        # Plain values from here on: plotly would validate every value of a copied figure again.
        drawn = json.loads(figure.to_json())
        drawn["layout"].pop("title", None)
        drawn["layout"]["height"] = height
        drawn["layout"].setdefault("margin", {})["t"] = 36
        self._charts[chart.key] = drawn
        heading = _render_words("<h3>{}</h3>", text)
        place = f'<div class="chart" id="chart-{chart.key}" style="min-height:{height}px"></div>'
        left_out = (figure.layout.meta or {}).get("note", "")
        return f"<div>{heading}{place}{render_notes((left_out, chart.note))}</div>"

    def render(self) -> str:
        """Render the whole page."""
        links = "".join(self._links)
        if self._folded:
            links += f'<button id="all">Show all {self._folded} other sections</button>'
        body = "\n".join([self._header, f"<nav>{links}</nav>", *self._sections])
        charts = pack(json.dumps(self._charts, sort_keys=True))
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(self.title)}</title>
<style>{_read_asset("page.css")}</style></head>
<body><main>
{body}
</main>
{self.hidden}
<script type="application/json" id="tones">{json.dumps(ON_DARK)}</script>
<script type="text/plain" id="charts">{charts}</script>
<script type="text/plain" id="plotly">{_pack_plotly()}</script>
<script>{_read_asset("page.js")}</script>
</body></html>
"""


def pack(text: str) -> str:
    """Compress and base64-encode, without a timestamp: equal text gives equal bytes."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def _pack_plotly() -> str:
    from plotly.offline import get_plotlyjs

    return pack(get_plotlyjs())


@cache
def _read_asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()


def _lay_out(parts: Iterable[tuple[bool, str]]) -> str:
    """Put neighbours of half width (True) into two columns on a wide screen."""
    rows = []
    for is_half, group in groupby(parts, key=lambda part: part[0]):
        row = "".join(text for _, text in group)
        rows.append(f'<div class="grid">{row}</div>' if is_half else row)
    return "".join(rows)


def render_table(table: Table) -> str:
    """Render a table with its title and notes; a long one is closed until a reader opens it."""
    body = table.to_html()
    if table.has_heading:
        body = f'<div class="scroll">{body}</div>'
    body += render_notes(table.notes)
    if table.is_folded:
        title = html.escape(table.title or table.columns[0])
        return f"<details><summary>{title}</summary>{body}</details>"
    return f"<div>{_render_words('<h3>{}</h3>', table.title)}{body}</div>"


def render_notes(notes: Iterable[str]) -> str:
    """Render lines of small print, empty ones left out."""
    return "".join(_render_words('<p class="note">{}</p>', note) for note in notes)


def _render_words(element: str, words: str) -> str:
    """Put escaped words into the braces of an element; empty without words."""
    return element.format(html.escape(words)) if words else ""
