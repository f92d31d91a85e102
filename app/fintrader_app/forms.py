"""A form made from the JSON schema of pydantic models: one widget a field, with its own help,
limits and choices.

The draft is plain data, as in a YAML file; only the models validate it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from datetime import date, datetime
from functools import cache
from typing import Any

import streamlit as st
import yaml
from pydantic import BaseModel

from fintrader.errors import ConfigError
from fintrader.numerals import format_count, number
from fintrader.yaml_text import parse_yaml
from fintrader_app.shell import human, line_up, plain

Draft = dict[str, Any]
Schema = dict[str, Any]


@cache
def read_schema(model: type[BaseModel]) -> Schema:
    """Read a model's JSON schema, with every reference replaced by the schema that it names."""
    whole = model.model_json_schema(by_alias=False)

    def follow(part: Any) -> Any:
        if isinstance(part, list):
            return [follow(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:  # a field does not get the description of its model
            part = {**whole["$defs"][part["$ref"].rpartition("/")[2]], "description": None, **part}
        return {
            name: follow(below) for name, below in part.items() if name not in ("$defs", "$ref")
        }

    found: Schema = follow(whole)
    return found


def collect_defaults(schema: Schema) -> Draft:
    """Collect a model's default values; fields without a default are left out."""
    fields = schema["properties"].items()
    return {name: copy.deepcopy(field["default"]) for name, field in fields if "default" in field}


def split_optional(field: Schema) -> tuple[Schema, bool]:
    """Split a field into its schema without null, and True if it may be null."""
    options = field.get("anyOf", [field])
    kinds = [option for option in options if option.get("type") != "null"]
    return ({**field, **kinds[0]} if len(kinds) == 1 else field), len(kinds) < len(options)


def choose_single(field: Schema) -> Schema:
    """Return the field as one model, where it takes one model or a list of several."""
    for option in field.get("oneOf", []):
        if "oneOf" in option:
            return {**field, **option}
    return field


BASIC = frozenset(
    [
        "path",
        "start",
        "end",
        "bar_minutes",
        "benchmark",
        "num_envs",
        "action",
        "cost_bps",
        "initial_cash_usd",
        "episode_bars",
        "decision_interval",
        "reward",
        "learning_rate",
        "gamma",
        "num_steps",
        "pods",
        "workers",
        "metric",
        "ensemble_size",
        "window",
        "null_model",
        "name",
        "seed",
    ]
)
"""Settings that a first run changes; a form folds the others of the same model."""


def draw_fields(schema: Schema, names: Sequence[str], draft: Draft, key: str) -> None:
    """Draw widgets for these fields, in two columns, the basic ones first and the others folded."""
    basic = [name for name in names if name in BASIC] or names
    rest = [name for name in names if name not in basic]
    draw_pairs(schema, basic, draft, key)
    if rest:
        with st.expander(format_count(len(rest), "more setting")):
            draw_pairs(schema, rest, draft, key)


def draw_pairs(
    schema: Schema, names: Sequence[str], draft: Draft, key: str, empty: str = "none"
) -> None:
    """Draw widgets for these fields, in two columns; `empty` stands where there is no value."""
    for position, name in enumerate(names):
        if position % 2 == 0:
            places = line_up(1, 1)
        with places[position % 2]:
            draw_widget(schema["properties"][name], name, draft, f"{key}.{name}", empty)


def draw(schema: Schema, draft: Draft, key: str, *, skip: tuple[str, ...] = ()) -> None:
    """Draw widgets for all fields of a model; their values go into `draft`, in place."""
    fields = {name: field for name, field in schema["properties"].items() if name not in skip}
    nested = [name for name, field in fields.items() if "properties" in field or "oneOf" in field]
    simple = [name for name in fields if name not in nested]
    draw_fields(schema, simple, draft, key)
    for name in nested:
        with st.expander(human(name), expanded=len(nested) == 1 or not simple):
            if text := fields[name].get("description"):
                st.caption(text)
            draw_group(fields[name], name, draft, f"{key}.{name}")


def draw_group(field: Schema, name: str, draft: Draft, key: str) -> None:
    """Draw a nested model, or one of several by its discriminator."""
    models = field.get("oneOf", [field])
    below = hold_mapping(draft, name, models[0])
    if len(models) == 1:
        draw(models[0], below, key)
        return
    tag = field["discriminator"]["propertyName"]
    by_tag = {str(one["properties"][tag]["const"]): one for one in models}
    options = list(by_tag)
    current = below.setdefault(tag, options[0])
    chosen = st.selectbox(human(tag), options, _index(options, current), key=f"{key}.{tag}")
    model = by_tag[chosen]
    if chosen != current:
        shared = {k: v for k, v in below.items() if k in model["properties"]}
        draft[name] = below = {**collect_defaults(model), **shared, tag: chosen}
    draw(model, below, f"{key}({chosen})", skip=(tag,))


def _index(options: list[Any], value: Any) -> int:
    return options.index(value) if value in options else 0


def draw_widget(field: Schema, name: str, draft: Draft, key: str, empty: str = "none") -> None:
    """Draw one field. A value that the widget cannot read stays text, for the models to refuse."""
    field, may_be_none = split_optional(field)
    kind = field.get("type")
    title = human(name)
    how: dict[str, Any] = {"help": field.get("description"), "key": key}
    typed_in = how | {"placeholder": empty}
    value = draft.get(name, field.get("default", {} if kind == "object" else None))
    if kind == "boolean" and not may_be_none:
        draft[name] = st.toggle(title, bool(value), **how)
    elif "enum" in field or "const" in field:
        options = [*([None] if may_be_none else []), *field.get("enum", [field.get("const")])]
        how["format_func"] = lambda option: empty if option is None else str(option)
        draft[name] = st.selectbox(title, options, _index(options, value), **how)
    elif kind in ("integer", "number") and (value is None or number(value) is not None):
        draft[name] = _draw_number(title, value, field, typed_in)
    elif kind == "string" and "examples" in field and isinstance(value, str):
        # Known names; any other may be typed, and the models check it.
        options = list(dict.fromkeys([*field["examples"], value]))
        draft[name] = st.selectbox(
            title, options, _index(options, value), accept_new_options=True, **typed_in
        )
    elif kind == "string" and field.get("format") == "date" and _is_date(value):
        day = st.date_input(title, _parse_date(value), **_DAYS, **how)
        draft[name] = None if day is None else day.isoformat()
    elif _is_range_of_dates(field) and (
        value is None or (isinstance(value, list) and all(map(_is_date, value)))
    ):
        how["help"] = how["help"] or _RANGE
        days: list[date | datetime | str | None] = list(map(_parse_date, value or ()))
        picked = st.date_input(title, days, **_DAYS, **how)
        draft[name] = [day.isoformat() for day in picked] or None
    elif kind == "string" and field.get("format", "path") == "path":
        typed = st.text_input(title, "" if value is None else str(value), **typed_in)
        draft[name] = None if may_be_none and not typed.strip() else typed
    else:
        draft[name] = _draw_yaml(title, value, typed_in)


_DAYS: dict[str, Any] = {
    "min_value": date(1900, 1, 1),
    "max_value": date(2100, 12, 31),
    "format": "YYYY-MM-DD",
}
_RANGE = "First and last day, both included; none: by shares of the sessions."


def _is_date(value: Any) -> bool:
    try:
        _parse_date(value)
    except (TypeError, ValueError):
        return False
    return True


def _parse_date(value: Any) -> date | None:
    day = None if value is None else date.fromisoformat(value)
    if day is not None and not _DAYS["min_value"] <= day <= _DAYS["max_value"]:
        raise ValueError(value)
    return day


def _is_range_of_dates(field: Schema) -> bool:
    parts = field.get("prefixItems", [])
    return len(parts) == 2 and all(part.get("format") == "date" for part in parts)


def _draw_number(title: str, value: Any, field: Schema, how: dict[str, Any]) -> Any:
    """Draw a number. The widget also takes an exclusive limit itself, which the models refuse."""
    kind = int if field["type"] == "integer" else float
    step = 10.0 ** math.floor(math.log10(abs(value))) / 10 if value else 0.1
    how |= {"step": 1} if kind is int else {"step": step, "format": "%g"}
    bounds = {
        "min_value": field.get("minimum", field.get("exclusiveMinimum")),
        "max_value": field.get("maximum", field.get("exclusiveMaximum")),
    }
    how |= {limit: kind(bound) for limit, bound in bounds.items() if bound is not None}
    # Streamlit fills an emptied field with `value`, so it is given once.
    first = None if value is None or how["key"] in st.session_state else kind(value)
    return st.number_input(title, value=first, **how)


def _draw_yaml(title: str, value: Any, how: dict[str, Any]) -> Any:
    """Draw a list, a mapping or an optional number as one line of YAML."""
    shown = ""
    if value is not None:
        shown = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    typed = st.text_input(title, shown.strip().removesuffix("\n..."), **how)
    if not typed.strip():
        return None
    try:
        return parse_yaml(typed, title)
    except ConfigError:
        return typed


# --- a mapping of models, as rows -----------------------------------------------------------------


def draw_rows(field: Schema, name: str, draft: Draft, key: str, names: Sequence[str]) -> None:
    """Draw a mapping from names to models or lists, one row each, with a line to add one; `names`
    are suggested for new rows."""
    values = field["additionalProperties"]
    model = next(one for one in values.get("anyOf", [values]) if "properties" in one)
    entries = hold_mapping(draft, name)
    if not entries:
        st.caption("Nothing is searched.")
    for entry in list(entries):
        with st.container(border=True):
            left, right = st.columns([5, 1], vertical_alignment="center")
            left.markdown(f"**{plain(entry)}**")
            if right.button(
                "Remove", key=f"{key}.{entry}.remove", icon=":material/delete:", width="stretch"
            ):
                del entries[entry]
                st.rerun()
            if isinstance(entries[entry], list):
                how = {"key": f"{key}.{entry}.choices"}
                entries[entry] = _draw_yaml("Choices", entries[entry], how)
                continue
            row = hold_mapping(entries, entry)
            with st.container(horizontal=True, vertical_alignment="bottom"):
                for part, below in model["properties"].items():
                    with st.container(width=170):
                        draw_widget(below, part, row, f"{key}.{entry}.{part}")
    left, right = line_up(3, 1)
    new = left.selectbox(
        "Add a setting",
        [one for one in names if one not in entries],
        index=None,
        key=f"{key}.new.{len(entries)}",
        accept_new_options=True,
        placeholder="choose one, or type its dotted name",
    )
    if right.button(
        "Add", key=f"{key}.add", icon=":material/add:", disabled=not new, width="stretch"
    ):
        entries[str(new)] = collect_defaults(model)
        st.rerun()


def hold_mapping(draft: Draft, name: str, model: Schema | None = None) -> Draft:
    """Return the mapping of this name; replace any other value by the defaults of its `model`, or
    by an empty mapping."""
    if not isinstance(draft.get(name), dict):
        draft[name] = {} if model is None else collect_defaults(model)
    found: Draft = draft[name]
    return found


def list_numbers(schema: Schema, before: str = "") -> list[str]:
    """List the dotted names of all numeric settings of a model and of the models inside it."""
    found = []
    for name, field in schema.get("properties", {}).items():
        plain_field, _ = split_optional(field)
        if plain_field.get("type") in ("integer", "number"):
            found.append(f"{before}{name}")
        elif "properties" in plain_field:
            found += list_numbers(plain_field, f"{before}{name}.")
    return found
