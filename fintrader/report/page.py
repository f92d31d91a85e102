"""HTML that needs no network: sections, tables, charts, and the page around them.

plotly.js and the charts travel inside the page, compressed (about 2 MB); the browser unpacks them with
`DecompressionStream`, which Chromium 80, Firefox 113 and Safari 16.4 brought.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import plotly.graph_objects as go

from fintrader.report.style import CSS, SCRIPT


@dataclass
class Page:
    """A page that is put together section by section. Equal sections give equal bytes."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _links: list[tuple[str, str]] = field(default_factory=list)
    _charts: dict[str, go.Figure] = field(default_factory=dict)

    def header(self, kicker: str, heading: str, lead: str, about: str, *, tone: str = "") -> None:
        """The top of the page: the heading is the verdict."""
        parts = [
            f'<p class="kicker">{html.escape(kicker)}</p>',
            f'<h1 class="{tone}">{html.escape(heading)}</h1>',
            f'<p class="lead">{html.escape(lead)}</p>',
            f'<p class="about">{html.escape(about)}</p>',
        ]
        self._parts.append(f"<header>{''.join(parts)}</header>")

    def contents(self) -> None:
        """A line of links to the sections that follow, filled in when the page is rendered."""
        self._parts.append("\0contents\0")

    def section(self, title: str, *body: str, link: str = "") -> None:
        """One card. `link` names it in the table of contents."""
        anchor = ""
        if link:
            key = link.lower().replace(" ", "-")
            self._links.append((key, link))
            anchor = f' id="{key}"'
        heading = f"<h2>{html.escape(title)}</h2>" if title else ""
        self._parts.append(f"<section{anchor}>{heading}{''.join(body)}</section>")

    def chart(self, key: str, figure: go.Figure, *, title: bool = True) -> str:
        """A place for a figure. Its title stands above it as text, where it can wrap."""
        text = str(figure.layout.title.text or "")
        height = int(figure.layout.height or 380) - 40
        self._charts[key] = go.Figure(figure).update_layout(title=None, margin_t=36, height=height)
        heading = f"<h3>{html.escape(text)}</h3>" if title and text else ""
        return f'<div>{heading}<div class="chart" id="chart-{key}" style="min-height:{height}px"></div></div>'

    def render(self) -> str:
        links = "".join(f'<a href="#{key}">{html.escape(text)}</a>' for key, text in self._links)
        body = "\n".join(self._parts).replace("\0contents\0", f"<nav>{links}</nav>")
        drawn = {key: json.loads(figure.to_json()) for key, figure in self._charts.items()}
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(self.title)}</title>
<style>{CSS}</style></head>
<body><main>
{body}
</main>
<script type="text/plain" id="charts">{packed(json.dumps(drawn, sort_keys=True))}</script>
<script type="text/plain" id="plotly">{_plotly_js()}</script>
<script>{SCRIPT}</script>
</body></html>
"""


def packed(text: str) -> str:
    """Gzipped and base64-coded; no time of writing in it, so equal text gives equal bytes."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return packed(get_plotlyjs())


def side_by_side(*parts: str) -> str:
    """Two columns on a wide screen, one on a narrow one."""
    return f'<div class="grid">{"".join(parts)}</div>'


def note(text: str) -> str:
    """A line of small print."""
    return f'<p class="note">{html.escape(text)}</p>'


def table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], *, css: str = "") -> str:
    """`rows`: (class, cells as HTML); the first cell of each is its heading."""
    cells = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    lines = []
    for kind, row in rows:
        values = "".join(f"<td>{cell}</td>" for cell in row[1:])
        lines.append(f'<tr class="{kind}"><th scope="row">{row[0]}</th>{values}</tr>')
    body = f"<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table class="{css}">{body}</table></div>'


def number(text: str) -> str:
    """A formatted number as HTML, losses in red."""
    shown = html.escape(text)
    return f'<span class="neg">{shown}</span>' if text.startswith("-") else shown


def facts(values: Mapping[str, Any]) -> str:
    """A two-column table of names and values (plain text or JSON)."""
    rows = [("", [html.escape(key), f"<code>{html.escape(_plain(value))}</code>"]) for key, value in values.items()]
    return table(["What", "Value"], rows, css="left")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping) and value and all(isinstance(one, str | int | float) for one in value.values()):
        return ", ".join(f"{name} {one}" for name, one in sorted(value.items()))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
