"""What the site is given when it is built: tables made from the code, and formulas as MathML.

A line `<!-- settings: package.module:Model prefix -->` becomes a table of the model's fields,
nested models by dotted name (`own` instead of `settings`: without nested models). `<!-- metrics
-->`, `<!-- commands -->`, `<!-- faults -->`, `<!-- injected -->`, `<!-- cheats -->`, `<!-- errors -->`, `<!-- features -->`, `<!-- series
-->`, `<!-- optimum -->` and `<!-- scaling: which -->` become tables of what their names say.
`<!-- picture: name -->` becomes the `figure` that the page's Python blocks above it make. Nothing
of that is typed by hand, so nothing in it can be out of date.
"""

from __future__ import annotations

import contextlib
import html
import inspect
import io
import os
import re
import tempfile
import types
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest import mock

from _measured import (
    calibration_table,
    engines_table,
    optimum_table,
    scaling_table,
    table,
)  # mkdocs puts the folder of a hook on the path
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_MARK = re.compile(
    r"^<!--"
    r" (settings|own|optimum|metrics|commands|faults|injected|cheats|errors|features|series|scaling"
    r"|engines|calibration)"
    r"(?:: (\S+))?(?: (\S+))? -->$",
    re.M,
)
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥"}


_PICTURE = re.compile(r"^<!-- picture: (\w+) -->$", re.M)
_PLOTLY = "assets/plotly.min.js"
_pictures: dict[str, str] = {}
"""Name of each picture -> its HTML; one page's at a time."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this before a page is rendered."""
    draw_pictures(markdown)
    return _MARK.sub(lambda match: _MAKERS[match[1]](match[2], match[3]), markdown)


def on_page_content(content: str, **_: Any) -> str:
    """mkdocs calls this after a page is rendered: TeX to MathML, which browsers draw without any
    script."""
    from latex2mathml.converter import convert

    content = _PICTURE.sub(lambda match: _pictures[match[1]], content)

    def tex(source: str) -> str:
        # MathML puts no space between a function's name and its argument, TeX does
        return re.sub(r"\\(log|ln) (?=[\\\w])", r"\\,\\\1\\,", html.unescape(source).strip())

    def inline(match: re.Match[str]) -> str:
        return str(convert(tex(match[1]))).replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")

    def block(match: re.Match[str]) -> str:
        formula = convert(tex(match[1]), display="block").replace(
            "<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"
        )
        return f'<div class="formula">{formula}</div>'

    content = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', inline, content, flags=re.S)
    return re.sub(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', block, content, flags=re.S)


def on_post_build(config: Any, **_: Any) -> None:
    """mkdocs calls this at the end: pictures are drawn by a script of the site."""
    from plotly.offline import get_plotlyjs

    Path(config["site_dir"], _PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")


def draw_pictures(markdown: str) -> None:
    """Run the Python blocks of a page with pictures, in a folder that is then removed, and keep
    each picture."""
    _pictures.clear()
    if not _PICTURE.search(markdown):
        return
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    script = f'<script src="../{_PLOTLY}"></script>'
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        # The looks of a build are no user's.
        stack.enter_context(mock.patch.dict(os.environ, {"FINTRADER_HOME": folder}))
        for part in re.split(r"(?m)^(?=<!-- picture: )", markdown):
            name = _PICTURE.match(part)
            if name is not None:
                _pictures[name[1]] = script + render_picture(namespace["figure"])
                script = ""
            for code in re.findall(r"^```python\n(.*?)^```$", part, re.M | re.S):
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(code, "docs", "exec"), namespace)


def render_picture(figure: Any) -> str:
    """A figure as HTML in colours that suit a light and a dark page."""
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font_color="#808b96"
    )
    grid = dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor"), "rgba(128,139,150,.25)")
    figure.update_layout(title_font_color="#808b96").update_xaxes(**grid).update_yaxes(**grid)
    options = {"displayModeBar": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=options))


# --- settings -------------------------------------------------------------------------------------


def settings_table(reference: str, prefix: str | None = None) -> str:
    """The fields of a settings model as a Markdown table."""
    module, _, name = reference.partition(":")
    model = getattr(import_module(module), name)
    rows = [
        row
        for path, field, owner in fields_of(model, f"{prefix}." if prefix else "")
        for row in [_row(path, field, owner)]
    ]
    return table(("setting", "type", "default", "meaning"), rows)


def own_table(reference: str, _prefix: str | None = None) -> str:
    """The fields of a settings model that are no models themselves."""
    module, _, name = reference.partition(":")
    model = getattr(import_module(module), name)
    plain = [
        (name, field)
        for name, field in model.model_fields.items()
        if not _is_section(field.annotation)
    ]
    return table(
        ("setting", "type", "default", "meaning"),
        [_row(name, field, model) for name, field in plain],
    )


def _is_section(annotation: Any) -> bool:
    """One model, or one out of several."""
    parts = (
        get_args(annotation)
        if get_origin(annotation) in (Union, types.UnionType)
        else (annotation,)
    )
    return all(isinstance(part, type) and issubclass(part, BaseModel) for part in parts)


def fields_of(
    model: type[BaseModel], prefix: str = ""
) -> Iterable[tuple[str, FieldInfo, type[BaseModel]]]:
    """Dotted name, field and owner of every field; a field that is one model itself is followed
    into it."""
    for name, field in model.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from _with_defaults(below, field, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field, model


def _with_defaults(
    model: type[BaseModel], field: FieldInfo, prefix: str
) -> Iterable[tuple[str, FieldInfo, type[BaseModel]]]:
    """The fields of a nested model, with the defaults that the outer model gives them."""
    given = field.default if isinstance(field.default, BaseModel) else None
    for path, inner, owner in fields_of(model, prefix):
        value: Any = given
        for part in path[len(prefix) :].split("."):
            value = getattr(value, part, PydanticUndefined)
        if given is not None and value is not PydanticUndefined and value != inner.default:
            changed = FieldInfo.from_annotated_attribute(inner.annotation, value)
            changed.description, changed.metadata = inner.description, inner.metadata
            inner = changed
        yield path, inner, owner


def _row(path: str, field: FieldInfo, owner: type[BaseModel]) -> tuple[str, ...]:
    text = " ".join((field.description or "").split())
    if (
        not text
        and get_origin(field.annotation) is Literal
        and len(get_args(field.annotation)) == 1
    ):
        text = "Chooses this model." if path.rpartition(".")[2] in ("algo", "kind") else text
    if not text:
        text = (
            f"See the models of `{path.rpartition('.')[2]}`." if _models(field.annotation) else "–"
        )
    return f"`{path}`", _type(field), _default(field), text


def _models(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _type(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {value:g}"
        for item in field.metadata
        for name, sign in _BOUNDS.items()
        if (value := getattr(item, name, None)) is not None
    ]
    return ", ".join([type_name(field.annotation), *bounds])


def type_name(annotation: Any) -> str:
    """A type as a reader of YAML understands it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is Annotated:
        inner = annotation.__metadata__
        bounds = [
            f"{sign} {value:g}"
            for item in inner
            for part in getattr(item, "metadata", None) or [item]
            for name, sign in _BOUNDS.items()
            if (value := getattr(part, name, None)) is not None
        ]
        return ", ".join([type_name(arguments[0]), *bounds])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(argument) for argument in arguments))
    if origin is tuple:
        inside = [type_name(argument) for argument in arguments if argument is not Ellipsis]
        return f"list of {inside[0]}" if Ellipsis in arguments else " × ".join(inside)
    if (origin is not None and isinstance(origin, type) and issubclass(origin, dict)) or getattr(
        origin, "__name__", ""
    ) == "Mapping":
        return f"{type_name(arguments[0])} → {type_name(arguments[1])}"
    names = {
        "str": "text",
        "int": "integer",
        "float": "number",
        "bool": "true or false",
        "date": "date",
        "Path": "path",
    }
    name = getattr(annotation, "__name__", str(annotation))
    return names.get(name, name.removesuffix("Settings"))


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        value: Any = field.get_default(call_default_factory=True)
    elif field.is_required():
        return "required"
    else:
        value = field.default
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, BaseModel):
        kind = getattr(value, "algo", None) or getattr(value, "kind", None)
        return (
            str(kind)
            if kind
            else "{"
            + ", ".join(f"{k}: {_plain(v)}" for k, v in value if v not in (None, (), False))
            + "}"
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:,.0f}".replace(",", "")
    return "null" if value is None else str(value)


# --- the other tables -----------------------------------------------------------------------------


def metrics_table(*_: Any) -> str:
    """Every number of `metrics.json`, by group."""
    from fintrader.results.catalogue import CATALOGUE

    parts = []
    for group in dict.fromkeys(metric.group for metric in CATALOGUE):
        rows = [
            (f"`{m.key}`", m.title, m.unit, m.formula, m.source)
            for m in CATALOGUE
            if m.group == group
        ]
        parts.append(
            f"### {group[:1].upper()}{group[1:]}\n\n"
            + table(("key", "title", "unit", "formula", "source"), rows)
        )
    return "\n\n".join(parts)


def commands_table(*_: Any) -> str:
    """Every command of `fintrader` with the first line of its help."""
    from fintrader.cli.registry import COMMANDS

    rows = []
    for name, command in COMMANDS.items():
        meaning = command.about[:1].upper() + command.about[1:]
        rows.append((f"`fintrader {name} {command.takes}`", meaning))
    return table(("command", "what it does"), rows)


def faults_table(*_: Any) -> str:
    """Every fault the quality report knows, and what the build makes of it."""
    from fintrader.bars.checks import KINDS

    rows = [
        (f"`{kind}`", *(part[:1].upper() + part[1:] for part in _halves(text)))
        for kind, text in KINDS.items()
    ]
    return table(("kind", "what is wrong", "what the build does"), rows)


def injected_table(*_: Any) -> str:
    """Every fault that the tests inject into a part of clean bars, and the answer of the build."""
    columns, *rows = read_rows("partial_faults.tsv")
    return table(columns, [(fault, shown, f"`{build}`") for fault, shown, build in rows])


def cheats_table(*_: Any) -> str:
    """Every cheat that the tests try on the ledger, and its outcome."""
    columns, *rows = read_rows("cheats.tsv")
    return table(columns, rows).replace("\\*", "*")  # the outcome is in italics


def read_rows(name: str) -> list[tuple[str, ...]]:
    """Read a table of `assets/` that a test compares with the code."""
    text = Path(__file__).with_name("assets").joinpath(name).read_text(encoding="utf-8")
    return [tuple(line.split("\t")) for line in text.splitlines()]


def _halves(text: str) -> tuple[str, str]:
    meaning, _, remedy = text.rpartition(": ")
    return meaning, remedy


def errors_table(*_: Any) -> str:
    """Every error a user can cause."""
    from fintrader import errors

    known = [
        item
        for item in vars(errors).values()
        if inspect.isclass(item) and issubclass(item, errors.FintraderError)
    ]
    return table(
        ("error", "when"),
        [(f"`{item.__name__}`", " ".join((item.__doc__ or "").split())) for item in known],
    )


def features_table(*_: Any) -> str:
    """Every kind of feature with its usual window."""
    from fintrader.market.features import _FEATURES, _MARKET_FEATURES

    rows = []
    for kind, (function, window, *_rest) in {**_FEATURES, **_MARKET_FEATURES}.items():
        text = " ".join((function.__doc__ or "").split())
        rows.append((f"`{kind}`", str(window), text))
    return table(("kind", "window if none is named", "definition"), rows)


def series_table(*_: Any) -> str:
    """Every family of series the metrics endpoint has."""
    from fintrader.tournament.prometheus import CATALOGUE

    ends = {"counter": "_total", "info": "_info", "histogram": "_bucket"}
    rows = [
        (
            f"`{name}{ends.get(one.kind, '')}`",
            one.kind,
            ", ".join(f"`{label}`" for label in one.labels),
            one.meaning,
        )
        for name, one in CATALOGUE.items()
    ]
    return table(("series", "kind", "labels", "meaning"), rows)


_MAKERS: dict[str, Callable[..., str]] = {
    "settings": settings_table,
    "scaling": scaling_table,
    "engines": engines_table,
    "calibration": calibration_table,
    "own": own_table,
    "optimum": optimum_table,
    "metrics": metrics_table,
    "commands": commands_table,
    "faults": faults_table,
    "injected": injected_table,
    "cheats": cheats_table,
    "errors": errors_table,
    "features": features_table,
    "series": series_table,
}
