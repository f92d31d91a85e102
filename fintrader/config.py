"""What every settings model shares: frozen, strict, readable errors, YAML in and out.

The models themselves stand beside the code they set (`EnvSettings` in `envs/settings.py`, and so on);
`pipeline/config.py` puts them together into one `RunConfig`.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from fintrader.errors import ConfigError

SettingsT = TypeVar("SettingsT", bound="Settings")
_SECRET_URL = re.compile(r"(\w+://)(?=[^\s'\"]*[@?])[^\s'\"]*")
"""URLs with more than a place in them: a message goes to logs and screens, so of these it names the scheme only."""


class Settings(BaseModel):
    """Base of all settings: immutable, no unknown fields, docstrings below fields are their help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError, one line, naming the field and what to do."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            name, problem = type(self).__name__, first_problem(type(self), error)
            raise ConfigError(problem if problem.startswith(f"{name}: ") else f"{name}: {problem}") from None

    # pydantic then goes on validating models in models itself, so that a problem in YAML has its whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def validate(model: type[SettingsT], values: Mapping[str, Any], where: str) -> SettingsT:
    """Build `model` from plain values. Raises ConfigError, one line, naming the field and what to do.

    `where` says where the values come from (a file's name, usually).
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_problem(model, error)}") from None


def first_problem(model: type[BaseModel], error: ValidationError) -> str:
    """The first problem of a ValidationError as one line: dotted field, what is wrong, what to do."""
    problems = error.errors(include_url=False)
    first = problems[0]
    field = ".".join(str(part) for part in _without_tags(model, first["loc"])) or model.__name__
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        names = _sibling_names(model, first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names)) or 'none'}"
        return f"{field}: unknown setting; {hint}{more}"
    if first["type"] == "missing":
        return f"{field}: a value is required; set it in the file or on the command line{more}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    got = "" if isinstance(first["input"], dict | BaseModel) else f", got {_short(first['input'])}"
    return f"{field}: {message[:1].lower()}{message[1:]}{got}{more}"


def _short(value: object) -> str:
    text = _SECRET_URL.sub(r"\1…", repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


def _without_tags(model: type[BaseModel], path: tuple[int | str, ...]) -> Iterator[int | str]:
    """The parts of a problem's path that a user wrote: which member of a union was meant is none of them."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        known = [candidate for candidate in models if part in candidate.model_fields]
        tags = {tag for candidate in models for field in candidate.model_fields.values() for tag in _literals(field)}
        if len(models) > 1 and not known and part in tags:
            continue
        yield part
        models = [below for one in known for below in models_in(one.model_fields[str(part)].annotation)] or models


def _literals(field: FieldInfo) -> tuple[Any, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def _sibling_names(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Names of the fields that stand where `path` points; discriminator tags and indices are passed over."""
    models = [model]
    for part in path:
        below: list[type[BaseModel]] = []
        for candidate in models:
            if part in candidate.model_fields:
                below += models_in(candidate.model_fields[str(part)].annotation)
        models = below or models
    return [name for candidate in models for name in candidate.model_fields]


def models_in(annotation: object) -> list[type[BaseModel]]:
    """The settings models that an annotation names, unions looked through."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def shipped_configs() -> dict[str, Path]:
    """Name -> file of the configurations that come with fintrader, e.g. `quickstart`."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs", package.parent / "configs"):  # of a wheel; of the source tree
        if (folder / "quickstart.yaml").is_file():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def find_config(path: Path | str) -> Path:
    """The file itself, or the shipped configuration of that name. A path that leads nowhere comes back as it is."""
    path = Path(path)
    if path.is_file() or len(path.parts) > 1:
        return path
    return shipped_configs().get(path.name, path)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """The mapping in a YAML file, or in the shipped configuration of that name.

    Raises ConfigError when it is missing, unreadable or no mapping.
    """
    path = find_config(path)
    try:
        values = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        names = ", ".join(shipped_configs())
        raise ConfigError(f"{path}: no such file; give the path of a YAML configuration, or one of {names}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}: not valid YAML{line}: {getattr(error, 'problem', error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected `name: value` lines at the top level")
    return values


def overlay(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes` over them, mapping by mapping; one that names another `kind` or `algo` stands alone."""
    merged = dict(values)
    for name, change in changes.items():
        below = merged.get(name)
        if isinstance(change, Settings):
            change = change.model_dump(mode="json")
        if isinstance(change, Mapping) and isinstance(below, Mapping):
            named = [key for key in ("kind", "algo") if key in change and key in below]
            if all(change[key] == below[key] for key in named):
                change = overlay(below, change)
        merged[name] = change
    return merged


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested plain values as dotted name -> value."""
    if not isinstance(values, dict) or not values:
        return {prefix.removesuffix("."): values}
    return {key: value for name, below in values.items() for key, value in flat(below, f"{prefix}{name}.").items()}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (before, now) of everything in which nested plain values differ, in order; None where missing."""
    old, new = flat(before), flat(now)
    return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


def dump_yaml(settings: Settings) -> str:
    """Settings as YAML text that `read_yaml` and `validate` turn back into equal settings."""
    return yaml.safe_dump(json.loads(settings.model_dump_json()), sort_keys=False, allow_unicode=True)


def load_object(reference: str) -> Any:
    """Import what `package.module:name` names. Raises ConfigError when it cannot be found."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r}: expected 'package.module:name'")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{reference!r} cannot be imported ({error}); check the spelling and PYTHONPATH") from None
