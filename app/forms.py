"""A form made from pydantic models: one widget a field, with the field's own help, limits and choices.

The draft is plain JSON-like data (what a YAML file would hold); the models judge it, nobody else.
"""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import streamlit as st
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fintrader.config import models_in
from fintrader_app.shell import human

Draft = dict[str, Any]


def bare(annotation: Any) -> Any:
    """An annotation without `Annotated`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def optional(annotation: Any) -> tuple[Any, bool]:
    """The annotation without None, and whether None is allowed."""
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [bare(part) for part in get_args(annotation) if part is not type(None)]
        if len(rest) < len(get_args(annotation)):
            return (rest[0] if len(rest) == 1 else Union[tuple(rest)]), True  # noqa: UP007 - built at run time
    return annotation, False


def is_models(annotation: Any) -> bool:
    """Whether the value is one settings model, or one of several."""
    annotation = bare(annotation)
    if isinstance(annotation, type):
        return issubclass(annotation, BaseModel)
    if get_origin(annotation) in (Union, types.UnionType):
        return all(is_models(part) for part in get_args(annotation))
    return False


def discriminator(models: list[type[BaseModel]]) -> str | None:
    """The field by whose one allowed value the models are told apart."""
    for name, field in models[0].model_fields.items():
        if all(name in model.model_fields and tags(model, name) for model in models) and tags(models[0], name):
            values = [tag for model in models for tag in tags(model, name)]
            if len(values) == len(set(values)) and get_origin(bare(field.annotation)) is Literal:
                return name
    return None


def tags(model: type[BaseModel], name: str) -> tuple[Any, ...]:
    annotation = bare(model.model_fields[name].annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def defaults(model: type[BaseModel]) -> Draft:
    """A model's default values as plain data; fields without a default are left out."""
    return {name: default_of(field) for name, field in model.model_fields.items() if not field.is_required()}


def default_of(field: FieldInfo) -> Any:
    """A field's default as plain data, None where it has none."""
    return None if field.is_required() else plain_data(field.get_default(call_default_factory=True))  # type: ignore[call-arg]


def plain_data(value: Any) -> Any:
    """A default as a YAML file would hold it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: plain_data(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(below) for below in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def limits(field: FieldInfo, annotation: Any) -> tuple[float | None, float | None]:
    """Smallest and largest value that the field's constraints name; an open limit is kept as it is."""
    metadata = list(field.metadata)
    for part in (field.annotation, *get_args(field.annotation), annotation):
        for piece in getattr(part, "__metadata__", ()):
            metadata += getattr(piece, "metadata", [piece])
    lows = [bound for piece in metadata for name in ("ge", "gt") if (bound := getattr(piece, name, None)) is not None]
    highs = [bound for piece in metadata for name in ("le", "lt") if (bound := getattr(piece, name, None)) is not None]
    return (lows[-1] if lows else None), (highs[-1] if highs else None)


def draw(model: type[BaseModel], draft: Draft, key: str, *, skip: tuple[str, ...] = ()) -> None:
    """Widgets for all fields of `model`, two columns; what is typed goes into `draft`, in place."""
    simple = [n for n, f in model.model_fields.items() if n not in skip and not is_models(optional(f.annotation)[0])]
    nested = [n for n in model.model_fields if n not in skip and n not in simple]
    for row in range(0, len(simple), 2):
        for place, name in zip(st.columns(2, vertical_alignment="bottom"), simple[row : row + 2], strict=False):
            with place:
                widget(model.model_fields[name], name, draft, f"{key}.{name}")
    for name in nested:
        annotation, may_be_none = optional(model.model_fields[name].annotation)
        models = models_in(annotation)
        with st.expander(human(name), expanded=len(nested) == 1 or not simple):
            if text := model.model_fields[name].description:
                st.caption(text)
            group(models, name, draft, f"{key}.{name}", may_be_none=may_be_none)


def group(models: list[type[BaseModel]], name: str, draft: Draft, key: str, *, may_be_none: bool = False) -> None:
    """A nested model, or one of several by its discriminator."""
    if may_be_none:
        on = st.toggle("Set", value=isinstance(draft.get(name), dict), key=f"{key}?")
        if not on:
            draft[name] = None
            return
    if not isinstance(draft.get(name), dict):
        draft[name] = defaults(models[0])
    below: Draft = draft[name]
    tag = discriminator(models) if len(models) > 1 else None
    model = models[0]
    if tag is not None:
        by_tag = {str(value): one for one in models for value in tags(one, tag)}
        current = str(below.get(tag, next(iter(by_tag))))
        chosen = st.selectbox(human(tag), list(by_tag), index=_index(list(by_tag), current), key=f"{key}.{tag}")
        model = by_tag[chosen]
        if chosen != current:
            shared = {k: v for k, v in below.items() if k in model.model_fields and k != tag}
            draft[name] = below = {**defaults(model), **shared, tag: chosen}
        below.setdefault(tag, chosen)
    draw(model, below, f"{key}({below.get(tag)})" if tag else key, skip=(tag,) if tag else ())


def _index(options: list[Any], value: Any) -> int:
    return options.index(value) if value in options else 0


def widget(field: FieldInfo, name: str, draft: Draft, key: str) -> None:
    """One field. A value that the widget cannot read is kept as text, for the models to refuse."""
    annotation, may_be_none = optional(field.annotation)
    value = draft.get(name, default_of(field))
    text, title = field.description, human(name)
    low, high = limits(field, annotation)
    if annotation is bool and not may_be_none:
        draft[name] = st.toggle(title, value=bool(value), help=text, key=key)
    elif get_origin(annotation) is Literal:
        options = [*([None] if may_be_none else []), *get_args(annotation)]
        how: dict[str, Any] = {"format_func": lambda option: "none" if option is None else str(option)}
        draft[name] = st.selectbox(title, options, _index(options, value), help=text, key=key, **how)
    elif annotation in (int, float) and not may_be_none and _is_number(value):
        draft[name] = _number(title, value, annotation, low, high, text, key)
    elif annotation in (str, Path):
        typed = st.text_input(title, "" if value is None else str(value), help=text, key=key, placeholder="none")
        draft[name] = None if may_be_none and not typed.strip() else typed
    else:
        draft[name] = _yaml(title, value, text, key)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(title: str, value: Any, kind: type, low: Any, high: Any, text: str | None, key: str) -> Any:
    if kind is int:
        floor, top = (None if low is None else int(low)), (None if high is None else int(high))
        return st.number_input(title, value=int(value), min_value=floor, max_value=top, step=1, help=text, key=key)
    step = 10.0 ** math.floor(math.log10(abs(value))) / 10 if value else 0.1
    floor, top = (None if low is None else float(low)), (None if high is None else float(high))
    return st.number_input(
        title, value=float(value), min_value=floor, max_value=top, step=step, format="%g", help=text, key=key
    )


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
