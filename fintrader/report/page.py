"""HTML that needs no network: sections, tables, charts, and the page around them.

plotly.js and the charts travel inside the page, compressed (about 2 MB); the browser unpacks them
with `DecompressionStream`, which Chromium 80, Firefox 113 and Safari 16.4 brought.
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

from fintrader.results.figures.style import ON_DARK
from fintrader.results.formatting import missing, shown
from fintrader.results.strategy_metrics import StrategyMetrics


@dataclass
class Page:
    """A page that is put together section by section. Equal sections give equal bytes."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _links: list[tuple[str, str]] = field(default_factory=list)
    _charts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def header(
        self,
        kicker: str,
        heading: str,
        lead: str,
        about: str,
        *,
        tone: str = "",
        sentences: Mapping[str, str] | None = None,
    ) -> None:
        """The top of the page: the heading is the verdict, and below it what each of its
        `sentences` answers."""
        answers = "".join(
            f"<dt>{html.escape(question)}</dt><dd>{html.escape(said)}</dd>"
            for question, said in (sentences or {}).items()
        )
        parts = [
            f'<p class="kicker">{html.escape(kicker)}</p>',
            f'<h1 class="{tone}">{html.escape(heading)}</h1>',
            f'<dl class="told verdict">{answers}</dl>' if answers else "",
            f'<p class="lead">{html.escape(lead)}</p>',
            f'<p class="about">{html.escape(about)}</p>',
        ]
        self._parts.append(f"<header>{''.join(parts)}</header>")

    def notice(self, text: str) -> None:
        """A line that nobody can overlook."""
        self._parts.append(f'<p class="notice" role="alert">{html.escape(text)}</p>')

    def told(self, lines: Mapping[str, str]) -> None:
        """Words and what they stand for, one a line, right below the header."""
        rows = "".join(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
            for name, text in lines.items()
        )
        self._parts.append(f'<dl class="told">{rows}</dl>')

    def carry(self, element: str) -> None:
        """An element that is not shown."""
        self._parts.append(element)

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

    def chart(self, key: str, figure: go.Figure) -> str:
        """A place for a figure. Its title stands above it as text, where it can wrap."""
        text = str(figure.layout.title.text or "")
        height = int(figure.layout.height or 380) - 40
        # Plain values from here on: a copy as a figure would have every one of them validated
        # again.
        drawn = json.loads(figure.to_json())
        drawn["layout"].pop("title", None)
        drawn["layout"]["height"] = height
        drawn["layout"].setdefault("margin", {})["t"] = 36
        self._charts[key] = drawn
        heading = f"<h3>{html.escape(text)}</h3>" if text else ""
        place = f'<div class="chart" id="chart-{key}" style="min-height:{height}px"></div>'
        said = (figure.layout.meta or {}).get("note")
        return f"<div>{heading}{place}{note(said) if said else ''}</div>"

    def render(self) -> str:
        links = "".join(f'<a href="#{key}">{html.escape(text)}</a>' for key, text in self._links)
        body = "\n".join(self._parts).replace("\0contents\0", f"<nav>{links}</nav>")
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(self.title)}</title>
<style>{CSS}</style></head>
<body><main>
{body}
</main>
<script type="text/plain" id="charts">{packed(json.dumps(self._charts, sort_keys=True))}</script>
<script type="text/plain" id="plotly">{_plotly_js()}</script>
<script>{SCRIPT.replace("ON_DARK", json.dumps(ON_DARK))}</script>
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
    safe = html.escape(text)
    return f'<span class="neg">{safe}</span>' if text.startswith("-") else safe


def metric(key: str, values: StrategyMetrics) -> str:
    """A strategy's metric as HTML; a dash says why when somebody points at it."""
    text = number(shown(key, values))
    why = missing(key, values)
    return f'<span title="{html.escape(why)}">{text}</span>' if why else text


def facts(values: Mapping[str, Any]) -> str:
    """A two-column table of names and values (plain text or JSON)."""
    rows = [
        ("", [html.escape(key), f"<code>{html.escape(_plain(value))}</code>"])
        for key, value in values.items()
    ]
    return table(["What", "Value"], rows, css="left")


def _plain(value: Any) -> str:
    if (
        isinstance(value, Mapping)
        and value
        and all(isinstance(one, str | int | float) for one in value.values())
    ):
        return ", ".join(f"{name} {one}" for name, one in sorted(value.items()))
    return (
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    )


CSS = """
:root { --ink: #1f2933; --muted: #616e7c; --line: #e4e7eb; --accent: #0b4f9e; --paper: #ffffff; --wash: #f5f7fa; }
:root { --main: #eef4fb; --bad: #b42318; --alarm: #7a1a12; --alarm-wash: #fdecea; color-scheme: light dark; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6eaef; --muted: #9aa7b4; --line: #2b3440; --accent: #6cb2ff; --paper: #161b22; --wash: #0f141b; }
  :root { --main: #1c2836; --bad: #ff8f86; --alarm: #ffc9c4; --alarm-wash: #3a1715; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); }
body { font: 15px/1.55 Inter, "Segoe UI", system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
header { padding: 8px 0 20px; }
.kicker { margin: 0 0 8px; color: var(--accent); font-weight: 600; letter-spacing: .04em; }
h1 { margin: 0; font-size: 26px; line-height: 1.32; font-weight: 650; max-width: 40em; }
.lead { margin: 12px 0 0; font-size: 17px; }
.about { margin: 12px 0 0; color: var(--muted); }
.notice { margin: 0 0 16px; padding: 10px 14px; border: 1px solid #b42318; border-radius: 6px; }
.notice { background: var(--alarm-wash); color: var(--alarm); font-weight: 600; }
dl.told { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0 0 16px; font-size: 14px; }
dl.told dt { color: var(--muted); }
dl.told dd { margin: 0; }
dl.verdict { margin: 12px 0; font-size: 16px; }
pre { overflow-x: auto; background: var(--wash); padding: 12px; font-size: 12px; line-height: 1.45; }
h1.doubt { border-left: 5px solid #d9730d; padding-left: 14px; }
h1.good { border-left: 5px solid #448361; padding-left: 14px; }
nav { position: sticky; top: 0; z-index: 5; background: var(--wash); padding: 8px 0; display: flex; gap: 4px 18px; }
nav { flex-wrap: wrap; border-bottom: 1px solid var(--line); }
nav a { color: var(--accent); text-decoration: none; font-size: 14px; }
nav a:hover { text-decoration: underline; }
section { scroll-margin-top: 48px; }
.grid { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 28px; }
.grid > div { min-width: 0; }
h2 { margin: 0 0 12px; font-size: 18px; }
h3 { margin: 20px 0 8px; font-size: 15px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; }
section { padding: 20px 24px; margin: 16px 0; }
.chart { width: 100%; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th, td { vertical-align: top; }
thead th { color: var(--muted); font-weight: 600; font-size: 13px; border-bottom: 2px solid var(--line); }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child { text-align: left; }
tbody th { font-weight: 500; }
tr.main th, tr.main td { font-weight: 650; background: var(--main); }
table.dense th, table.dense td { padding: 4px 10px; font-size: 13px; }
table.dense { margin-top: 16px; }
table.left td, table.left th { text-align: left; }
table.words td:last-child { color: var(--muted); }
table.words td:last-child, table.words thead th:last-child { text-align: left; }
table.words th:first-child { min-width: 15em; white-space: normal; }
table.left td { white-space: normal; overflow-wrap: anywhere; }
table.words td { overflow-wrap: break-word; }
.neg { color: var(--bad); }
.note { color: var(--muted); font-size: 13px; }
th .note { display: block; font-weight: 400; white-space: normal; max-width: 22em; }
span[title] { text-decoration: underline dotted #9aa5b1; text-underline-offset: 3px; }
summary { cursor: pointer; color: var(--accent); font-weight: 600; }
code { font: 13px/1.5 ui-monospace, "Cascadia Mono", Menlo, monospace; }
@media (max-width: 860px) { .grid { grid-template-columns: 1fr; } }
@media (max-width: 640px) {
  nav { flex-wrap: nowrap; overflow-x: auto; }
  table.words th:first-child { min-width: 8em; }
  main { padding: 16px 10px 40px; }
  dl.told { grid-template-columns: 1fr; }
  dl.told dd { margin-bottom: 6px; }
  h1 { font-size: 20px; }
  section { padding: 14px 12px; border-radius: 6px; }
  th, td { padding: 7px 8px; font-size: 13px; }
  tbody th { white-space: normal; min-width: 9em; }
  th .note { display: none; }
  .scroll th:first-child { position: sticky; left: 0; background: var(--paper); }
  tr.main th:first-child { background: var(--main); }
}
@media print {
  body { background: white; }
  section { border: 0; padding: 8px 0; break-inside: avoid; }
}
"""
SCRIPT = """
(async () => {
  const unpack = async id => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
  };
  const script = document.createElement('script');
  script.textContent = await unpack('plotly');
  document.head.appendChild(script);
  const tones = ON_DARK;
  const dark = matchMedia('screen and (prefers-color-scheme: dark)').matches;
  const dressed = text => dark ? text.replace(/"(white|#[0-9a-f]{6}|rgba\\([^"]*\\))"/g,
    (all, tone) => tone in tones ? JSON.stringify(tones[tone]) : all) : text;
  const charts = JSON.parse(dressed(await unpack('charts')));
  const narrow = matchMedia('(max-width: 640px)').matches;
  for (const [key, figure] of Object.entries(charts)) {
    const layout = Object.assign({}, figure.layout, {autosize: true});
    if (narrow) {
      layout.margin = Object.assign({}, layout.margin, {l: Math.min(48, (layout.margin || {}).l || 48), r: 8});
      layout.font = Object.assign({}, layout.font, {size: 11});
      if (layout.xaxis && Array.isArray(layout.xaxis.ticktext)) {
        layout.xaxis = Object.assign({}, layout.xaxis,
          {ticktext: layout.xaxis.ticktext.map((text, k) => k % 2 ? '' : text)});
      }
    }
    if (narrow && figure.data.length > 5) {
      layout.legend = Object.assign({}, layout.legend, {y: -0.22, yanchor: 'top', font: {size: 10}});
      layout.height = (layout.height || 380) + 20 * figure.data.length;
    }
    if (narrow) {
      for (const trace of figure.data) {
        if (trace.type === 'heatmap') { delete trace.texttemplate; }
      }
    }
    await Plotly.newPlot('chart-' + key, figure.data, layout, {responsive: true, displaylogo: false,
      displayModeBar: false});
  }
  document.body.dataset.ready = 'yes';
})().catch(error => { document.body.dataset.ready = 'failed: ' + error; });
"""
