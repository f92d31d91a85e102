"""Origins of a backtest: its data, and everything needed to make it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fintrader.config import flatten_values
from fintrader.numerals import DASH
from fintrader.records import to_json
from fintrader.results.context import BacktestContext
from fintrader.results.sections.section import BacktestView, Section
from fintrader.results.table import Row, Table

_NAMES = {
    "run_command": "training command",
    "changed": "settings changed since training",
    "look": "number of this look at these bars, over all runs",
}
_FIRST = ("command", "run_command", "run", "window", "seed", "trials", "look", "changed")
_SHOWN_ELSEWHERE = {
    "strategies",
    "quality",
    "data",
    "folds",
    "left_out",
    "correlations",
    "market",
    "recipe",
    "trading",
    "null_model",
    "share_of_oracle",
    "within_limits",
}
_IS_DIRTY = {True: ", with uncommitted changes", False: ", no uncommitted changes", None: ""}


def present_data(view: BacktestView) -> Section | None:
    """Present the extent of the bars, repairs and faults; None where none is recorded."""
    context = view.stored.context
    facts = {**context.data, **context.quality}
    if not facts:
        return None
    return Section("data", "Data", tables=[tabulate_values(facts)])


def present_origin(view: BacktestView) -> Section:
    """Present commands, settings, hashes and code: everything needed to make the backtest again."""
    context = view.stored.context
    title = "Reproduction"
    stored = to_json(context)
    trading = {} if context.trading is None else to_json(context.trading)
    known = {
        name: value for name, value in {**stored, **trading}.items() if value not in (None, {}, ())
    }
    names = [*_FIRST, *trading, *sorted(set(known) - _SHOWN_ELSEWHERE)]
    values = {_NAMES.get(name, name): known[name] for name in names if name in known}
    values |= _describe_code(context)
    if not values:
        return Section("provenance", title, notes=["Nothing was recorded about the run."])
    tables = [tabulate_values(values)]
    parts = {"recipe": stored["recipe"]}
    if context.market.source is not None:
        parts["market"] = stored["market"]
    leaves = sorted(flatten_values(parts).items(), key=lambda leaf: leaf[0].split("."))
    settings = [Row((name, _write(value))) for name, value in leaves if value not in (None, {})]
    notes = []
    if settings:
        text = "The whole configuration and the data's recipe"
        tables.append(Table(("Setting", "Value"), settings, text, words=["Value"], is_folded=True))
    if "config" in context.recipe:
        notes.append(
            "`fintrader verify report.html` reads the report, runs the run again and compares every"
            " metric."
        )
    return Section("provenance", title, tables=tables, notes=notes)


def _describe_code(context: BacktestContext) -> dict[str, Any]:
    """Describe code and machine of the run, and the bars it was made from."""
    recipe: Mapping[str, Any] = context.recipe
    market = context.market
    if not recipe:
        return {}
    processors = [known.get("processor", DASH) for known in recipe.get("processors", ())]
    facts = {
        "commit": f"{recipe.get('commit') or 'unknown'}{_IS_DIRTY[recipe.get('dirty')]}",
        "processor": ", ".join(processors) or "unknown",
        "bars": None if market.source is None else to_json(market.source),
        "calendar": market.calendar,
        "build_version": market.build_version,
    }
    return {name: value for name, value in facts.items() if value is not None}


def tabulate_values(values: Mapping[str, Any]) -> Table:
    """Tabulate names and plain values."""
    rows = [(str(name).replace("_", " "), _write(value)) for name, value in values.items()]
    return Table.of(("Name", "Value"), rows, words=["Value"])


def _write(value: Any) -> str:
    if isinstance(value, str):
        return value
    parts = value.values() if isinstance(value, Mapping) else ()
    if parts and all(isinstance(part, str | int | float) for part in parts):
        return ", ".join(f"{name} {part}" for name, part in sorted(value.items())).replace("_", " ")
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
