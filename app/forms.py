"""A form made from the JSON schema of pydantic models: one widget a field, with its own help, limits and choices.

The draft is plain JSON-like data (what a YAML file would hold); the models judge it, nobody else.
"""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import streamlit as st
import yaml
from pydantic import BaseModel

from fintrader_app.shell import human

Draft = dict[str, Any]
Schema = dict[str, Any]


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """A model's JSON schema, its references followed: what a field is stands in the field itself."""
    whole = model.model_json_schema(by_alias=False)

    def follow(part: Any) -> Any:
        if isinstance(part, list):
            return [follow(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:  # what is said of a model is not said of the field that holds one
            part = {**whole["$defs"][part["$ref"].rpartition("/")[2]], "description": None, **part}
        return {name: follow(below) for name, below in part.items() if name not in ("$defs", "$ref")}

    found: Schema = follow(whole)
    return found


def defaults(schema: Schema) -> Draft:
    """A model's default values; fields without a default are left out."""
    fields = schema["properties"].items()
    return {name: copy.deepcopy(field["default"]) for name, field in fields if "default" in field}


def optional(field: Schema) -> tuple[Schema, bool]:
    """The field without null, and whether it may be null."""
    options = field.get("anyOf", [field])
    kinds = [option for option in options if option.get("type") != "null"]
    return ({**field, **kinds[0]} if len(kinds) == 1 else field), len(kinds) < len(options)


def draw(schema: Schema, draft: Draft, key: str, *, skip: tuple[str, ...] = ()) -> None:
    """Widgets for all fields of a model, two columns; what is typed goes into `draft`, in place."""
    fields = {name: field for name, field in schema["properties"].items() if name not in skip}
    nested = [name for name, field in fields.items() if "properties" in field or "oneOf" in field]
    simple = [name for name in fields if name not in nested]
    for row in range(0, len(simple), 2):
        for place, name in zip(st.columns(2, vertical_alignment="bottom"), simple[row : row + 2], strict=False):
            with place:
                widget(fields[name], name, draft, f"{key}.{name}")
    for name in nested:
        with st.expander(human(name), expanded=len(nested) == 1 or not simple):
            if text := fields[name].get("description"):
                st.caption(text)
            group(fields[name], name, draft, f"{key}.{name}")


def group(field: Schema, name: str, draft: Draft, key: str) -> None:
    """A nested model, or one of several by its discriminator."""
    models = field.get("oneOf", [field])
    if not isinstance(draft.get(name), dict):
        draft[name] = defaults(models[0])
    below: Draft = draft[name]
    if len(models) == 1:
        draw(models[0], below, key)
        return
    tag = field["discriminator"]["propertyName"]
    by_tag = {str(one["properties"][tag]["const"]): one for one in models}
    current = str(below.get(tag, next(iter(by_tag))))
    chosen = st.selectbox(human(tag), list(by_tag), index=_index(list(by_tag), current), key=f"{key}.{tag}")
    model = by_tag[chosen]
    if chosen != current:
        shared = {k: v for k, v in below.items() if k in model["properties"] and k != tag}
        draft[name] = below = {**defaults(model), **shared, tag: chosen}
    below.setdefault(tag, chosen)
    draw(model, below, f"{key}({below.get(tag)})", skip=(tag,))


def _index(options: list[Any], value: Any) -> int:
    return options.index(value) if value in options else 0


def widget(field: Schema, name: str, draft: Draft, key: str) -> None:
    """One field. A value that the widget cannot read is kept as text, for the models to refuse."""
    field, may_be_none = optional(field)
    kind, text, title = field.get("type"), field.get("description"), human(name)
    value = draft.get(name, field.get("default", {} if kind == "object" else None))
    if kind == "boolean" and not may_be_none:
        draft[name] = st.toggle(title, value=bool(value), help=text, key=key)
    elif "enum" in field or "const" in field:
        options = [*([None] if may_be_none else []), *field.get("enum", [field.get("const")])]
        how: dict[str, Any] = {"format_func": lambda option: "none" if option is None else str(option)}
        draft[name] = st.selectbox(title, options, _index(options, value), help=text, key=key, **how)
    elif kind in ("integer", "number") and not may_be_none and _is_number(value):
        draft[name] = _number(title, value, field, key)
    elif kind == "string" and field.get("format", "path") == "path":
        typed = st.text_input(title, "" if value is None else str(value), help=text, key=key, placeholder="none")
        draft[name] = None if may_be_none and not typed.strip() else typed
    else:
        draft[name] = _yaml(title, value, text, key)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(title: str, value: Any, field: Schema, key: str) -> Any:
    """An open limit is kept as it is: the models say where it lies."""
    kind: Any = int if field["type"] == "integer" else float
    step = 10.0 ** math.floor(math.log10(abs(value))) / 10 if value else 0.1
    how: dict[str, Any] = {"step": 1} if kind is int else {"step": step, "format": "%g"}
    bounds = {"min_value": ("minimum", "exclusiveMinimum"), "max_value": ("maximum", "exclusiveMaximum")}
    for limit, names in bounds.items():
        found = next((field[name] for name in names if name in field), None)
        how[limit] = None if found is None else kind(found)
    return st.number_input(title, value=kind(value), help=field.get("description"), key=key, **how)


def _yaml(title: str, value: Any, text: str | None, key: str) -> Any:
    """Lists, mappings and optional numbers: as they would stand in a YAML file, on one line."""
    shown = "" if value is None else yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n")
    typed = st.text_input(title, shown.removesuffix("\n...").strip(), help=text, key=key, placeholder="none")
    if not typed.strip():
        return None
    try:
        return yaml.safe_load(typed)
    except (yaml.YAMLError, RecursionError):
        return typed
