"""Every setting's default as a table, for readers of runs that must not load the models.

    python -m fintrader.pipeline.defaults     # writes fintrader/results/defaults.json anew

A test compares the table with the models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from fintrader.config import flatten_values, list_models, unwrap_annotation
from fintrader.files import write_json
from fintrader.pipeline.config import CHOICES, RunConfig
from fintrader.results.settings import DEFAULTS
from fintrader.tournament.generator import select_values


def table() -> dict[str, Any]:
    """List `settings`: dotted name -> default; `choices`: place of a union -> member -> the
    defaults of that member; `mappings`: settings whose keys are a user's own (`tournament.search`)
    -> their entries."""
    settings = flatten_values(whole := RunConfig().model_dump(mode="json"))
    choices = {
        place: {
            name: dict(_defaults(model, place.rpartition(".")[0]))
            for name, model in members.items()
        }
        for place, members in CHOICES.items()
        if place in settings
    }
    names = set(_mappings(RunConfig))
    for place, members in CHOICES.items():
        for model in members.values():
            names |= set(_mappings(model, f"{place.rpartition('.')[0]}."))
    entries = select_values(whole, names)
    mappings = {name: entries.get(name) or {} for name in sorted(names)}
    return {"settings": settings, "choices": choices, "mappings": mappings}


def _defaults(model: type[BaseModel], place: str) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():  # a required field has None as default
        value = (
            None
            if field.is_required()
            else to_jsonable_python(field.get_default(call_default_factory=True))
        )
        yield from flatten_values({f"{place}.{name}": value}).items()


def _mappings(model: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        origin = get_origin(unwrap_annotation(field.annotation)[0])
        if isinstance(origin, type) and issubclass(origin, Mapping):
            yield f"{before}{name}"
        else:
            for below in list_models(field.annotation):
                yield from _mappings(below, f"{before}{name}.")


if __name__ == "__main__":
    write_json(DEFAULTS, table())
