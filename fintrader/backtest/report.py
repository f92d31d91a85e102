"""`report.html`: one self-contained page, verdict first. No network, no wall clock: equal inputs, equal bytes.

plotly.js travels inside the page, compressed (about 2 MB); the browser unpacks it with `DecompressionStream`,
which Chromium 80, Firefox 113 and Safari 16.4 brought.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from fintrader.backtest import figures
from fintrader.backtest.honesty import main_strategy
from fintrader.backtest.measures import BY_KEY, CATALOGUE
from fintrader.backtest.store import StoredBacktest
from fintrader.backtest.style import CSS, SCRIPT
from fintrader.backtest.table import PAPER_COLUMNS, show

KINDS = {
    "share": "percent",
    "share a year": "percent",
    "share of equity": "percent",
    "share of bars": "percent",
    "USD": "usd",
}


def verdict(stored: StoredBacktest) -> str:
    """What the result amounts to: the assessment's sentence, the number of trials in it."""
    return str(stored.honesty.get("verdict") or "Not assessed: this backtest was written without an assessment.")


def summary(stored: StoredBacktest) -> str:
    """The plain numbers behind the verdict: return and Sharpe ratio beside the simplest baselines."""
    name = main_strategy(stored.strategies)
    own = stored.metrics[name]
    text = (
        f"{figures.title_of(name)} returned {_signed(own.get('cumulative_return'))} over {_sessions(stored)} sessions"
    )
    text += f" (Sharpe {show(own.get('sharpe'), 'ratio')})"
    for rival in ("equal_weight", "benchmark"):
        if rival in stored.metrics and rival != name:
            text += f", {figures.title_of(rival).lower()} {_signed(stored.metrics[rival].get('cumulative_return'))}"
    return text + "."


def _signed(value: float | None) -> str:
    return "an undefined return" if value is None else f"{value:+.2%}".replace("%", " %").replace("-", "−")


def _sessions(stored: StoredBacktest) -> int:
    return int(stored.equity["session"].nunique())


def render_report(stored: StoredBacktest) -> str:
    """The page as text. Pure: equal tables give equal text."""
    main = main_strategy(stored.strategies)
    curves = stored.curve()
    charts = [
        ("equity", "Equity", figures.equity_figure(curves, main=main)),
        ("drawdown", "Drawdown", figures.drawdown_figure(_main_first(curves, main), main=main)),
    ]
    title = figures.title_of(main)
    weights = stored.weights(main)
    if weights.shape[1]:
        charts.append(("weights", f"Weights at session close: {title}", figures.weights_figure(weights)))
    sections = [
        _section("Against the baselines", _paper_table(stored, main)),
        *(_section(title, _chart(key, figure)) for key, title, figure in charts),
        _section("Every number", _all_metrics(stored)),
        _section("Where this comes from", _provenance(stored.context)),
    ]
    return _page(stored, main, "\n".join(sections), {key: figure for key, _, figure in charts})


def _main_first(curves: pd.DataFrame, main: str) -> pd.DataFrame:
    return curves[[main, *[name for name in curves.columns if name != main]]]


# --- parts -------------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    heading = f"<h2>{html.escape(title)}</h2>" if title else ""
    return f"<section>{heading}{body}</section>"


def _chart(key: str, figure: go.Figure) -> str:
    height = int(figure.layout.height or 380)
    return f'<div class="chart" id="chart-{key}" style="min-height:{height}px"></div>'


def _table(head: list[str], rows: Iterable[tuple[str, list[str]]], *, css: str = "") -> str:
    """`rows`: (class, cells); the first cell of each is its heading."""
    cells = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr class="{kind}"><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>"
        for kind, row in rows
    )
    return (
        f'<div class="scroll"><table class="{css}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _paper_table(stored: StoredBacktest, main: str) -> str:
    extra = [("turnover", "Turnover a year", "ratio"), ("cost_usd", "Costs, USD", "usd")]
    columns = [*PAPER_COLUMNS, *extra]
    notes = stored.context.get("strategies", {})
    rows = []
    for name in stored.strategies:
        values = stored.metrics[name]
        note = notes.get(name, "") if isinstance(notes, Mapping) else ""
        title = html.escape(figures.title_of(name))
        label = title + (f'<span class="note">{html.escape(str(note))}</span>' if note else "")
        cells = [_number(values.get(key), kind) for key, _, kind in columns]
        rows.append(("main" if name == main else "", [label, *cells]))
    caption = (
        '<p class="note">Daily returns, 252 sessions a year, risk-free rate 0; Calmar = annual return / |max '
        "drawdown|. An annual return of a window shorter than a year is an extrapolation.</p>"
    )
    return _table(["Strategy", *[heading for _, heading, _ in columns]], rows) + caption


def _number(value: float | None, kind: str) -> str:
    negative = value is not None and value < 0
    text = html.escape(show(value, kind).replace("-", "−"))
    return f'<span class="neg">{text}</span>' if negative else text


def _all_metrics(stored: StoredBacktest) -> str:
    parts = []
    for group in dict.fromkeys(metric.group for metric in CATALOGUE):
        rows = []
        for metric in (metric for metric in CATALOGUE if metric.group == group):
            kind = KINDS.get(metric.unit, "ratio")
            cells = [_number(stored.metrics[name].get(metric.key), kind) for name in stored.strategies]
            title = f'<span title="{html.escape(metric.formula)} ({html.escape(metric.source)})">'
            unit = "" if kind == "percent" else f' <span class="unit">{html.escape(metric.unit)}</span>'
            rows.append(("", [f"{title}{html.escape(metric.title)}</span>{unit}", *cells]))
        head = [group.capitalize(), *[figures.title_of(name) for name in stored.strategies]]
        parts.append(_table(head, rows, css="dense"))
    return f"<details><summary>{len(BY_KEY)} metrics for each strategy</summary>{''.join(parts)}</details>"


def _provenance(context: Mapping[str, Any]) -> str:
    hidden = {"strategies", "honesty", "quality"}
    rows = [
        ("", [html.escape(str(key).replace("_", " ")), f"<code>{html.escape(_plain(value))}</code>"])
        for key, value in sorted(context.items())
        if key not in hidden
    ]
    return _table(["What", "Value"], rows, css="left") if rows else '<p class="note">Nothing was recorded.</p>'


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


# --- page --------------------------------------------------------------------------------------------------


@cache
def _plotly_js() -> str:
    """plotly.js, gzipped and base64-coded (mtime 0: the same bytes every time)."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def _page(stored: StoredBacktest, main: str, body: str, charts: Mapping[str, go.Figure]) -> str:
    drawn = {key: json.loads(figure.update_layout(title=None, margin_t=36).to_json()) for key, figure in charts.items()}
    data = json.dumps(drawn, sort_keys=True)
    data = data.replace("</", "<\\/")  # a label must not be able to close the script element
    run = str(stored.context.get("run") or "Backtest")
    first, last = (pd.Timestamp(stored.equity["minute"].iloc[k]).strftime("%d %b %Y") for k in (0, -1))
    window = str(stored.context.get("window") or "")
    about = f"{first} to {last}, {_sessions(stored)} sessions" + (f", {window} window" if window else "")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(run)}: {html.escape(figures.title_of(main))}</title>
<style>{CSS}</style></head>
<body><main>
<header><p class="kicker">{html.escape(run)}</p><h1>{html.escape(verdict(stored))}</h1>
<p class="lead">{html.escape(summary(stored))}</p>
<p class="about">{html.escape(about)}</p></header>
{body}
</main>
<script type="application/json" id="charts">{data}</script>
<script type="text/plain" id="plotly">{_plotly_js()}</script>
<script>{SCRIPT}</script>
</body></html>
"""
