"""How a result came about: what a report says of its bars, settings, code and machine, and what it
carries."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from fintrader.records import JsonValue, to_json
from fintrader.report.page import Page, facts, note
from fintrader.report.recipe import element, record_of
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.context import BacktestContext
from fintrader.results.formatting import DASH

_FACTS = {
    "run_command": "policies trained by",
    "changed": "not as trained",
    "look": "look at these bars, of all runs",
}
_SHOWN_ELSEWHERE = (
    "strategies",
    "quality",
    "data",
    "folds",
    "left_out",
    "market",
    "recipe",
)


def provenance_section(page: Page, stored: StoredBacktest) -> None:
    """How to get the result again: in rows, in a fold-out, and for `fintrader verify`."""
    record = record_of(
        stored.context, {name: values.by_key() for name, values in stored.metrics.items()}
    )
    page.section(
        "How to get this again", _facts_of(stored.context), _folded(record), link="Provenance"
    )
    page.carry(element(record))


def data_section(page: Page, context: BacktestContext) -> None:
    """Show the window's extent and holes, the repairs and the faults found."""
    named = {
        name.replace("_", " "): value for name, value in (context.data | context.quality).items()
    }
    if named:
        page.section("The data behind it", facts(named), link="Data")


def known_facts(context: BacktestContext) -> dict[str, JsonValue]:
    """The parts of a context that are known, as JSON by name."""
    return {name: value for name, value in to_json(context).items() if value not in (None, {}, ())}


def _facts_of(context: BacktestContext) -> str:
    trading = {} if context.trading is None else to_json(context.trading)
    known = known_facts(context) | trading  # a row for each of the trading settings
    first = (
        "command",
        "run_command",
        "run",
        "window",
        "seed",
        "trials",
        "look",
        "changed",
        *trading,
    )
    keys = [
        *(key for key in first if key in known),
        *sorted(set(known) - {*first, "trading", *_SHOWN_ELSEWHERE}),
    ]
    values = {_FACTS.get(key, str(key).replace("_", " ")): known[key] for key in keys} | _made_by(
        context
    )
    return facts(values) if values else note("Nothing was recorded about the run.")


def _made_by(context: BacktestContext) -> dict[str, Any]:
    """Code and machine of the run, and the bars it was made of, as rows."""
    recipe: Mapping[str, Any] = context.recipe
    market = context.market
    if not recipe:
        return {}
    changed = {True: ", with uncommitted changes", False: ", no uncommitted changes", None: ""}
    processors = [one.get("processor", DASH) for one in recipe.get("processors", ())]
    source = market.get("source")
    return {
        "commit": f"{recipe.get('commit') or 'unknown'}{changed[recipe.get('dirty')]}",
        "processor": ", ".join(processors) or "unknown",
        **({"bars": source} if source else {}),
        **{
            name.replace("_", " "): market[name]
            for name in ("calendar", "build_version")
            if name in market
        },
    }


def _folded(record: Mapping[str, Any]) -> str:
    """The whole recipe, to read; `fintrader verify` takes the same out of the page."""
    shown = {"recipe": record["recipe"], "market": record.get("market", {})}
    text = html.escape(json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False))
    how = (
        "<code>fintrader verify report.html</code> reads it, runs the run again and compares"
        " every metric."
    )
    title = "<summary>The whole configuration and the data's recipe</summary>"
    return f"<details>{title}<p>{how}</p><pre>{text}</pre></details>"
