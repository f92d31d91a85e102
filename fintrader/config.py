"""What every settings model shares: frozen, strict, readable errors, YAML in and out; which paths
they take.

The models themselves stand beside the code they set (`EnvSettings` in `envs/settings.py`, and so
on); `pipeline/config.py` puts them together into one `RunConfig`.
"""

from __future__ import annotations

import datetime as dt
import difflib
import importlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Tag, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from fintrader.errors import ConfigError, DataError
from fintrader.yaml_text import MOST_BYTES, parse_yaml, shorten

SettingsT = TypeVar("SettingsT", bound="Settings")
REFERENCE = "package.module:name"
"""Name of an object of a user's own, where a setting takes one."""


def _ticker(value: object) -> object:
    if isinstance(value, bool | int | float | dt.date):
        raise ValueError(
            "YAML reads TRUE, NO, ON, numbers and dates as such; quote the ticker, like 'TRUE' or"
            " '0700'"
        )
    if isinstance(value, str) and not value.strip():
        raise ValueError("an empty text is no ticker; leave it out")
    return value


Ticker = Annotated[str, BeforeValidator(_ticker)]
"""A symbol in settings: any text but the empty one."""


class Settings(BaseModel):
    """Base of all settings: immutable, no unknown fields, docstrings below fields are their help
    text."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError, one line, naming the field and what to do."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = type(self).__name__
            problem = first_problem(type(self), error)
            raise ConfigError(
                problem if problem.startswith(f"{name}: ") else f"{name}: {problem}"
            ) from None

    # pydantic then goes on validating models in models itself, so that a problem in YAML has its
    # whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def validate(model: type[SettingsT], values: Mapping[str, Any], where: str) -> SettingsT:
    """Build `model` from plain values. Raises ConfigError, one line, naming the field and what to
    do.

    `where` says where the values come from (a file's name, usually).
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_problem(model, error)}") from None


def validate_below(model: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Build a nested model that its outer model does not name. For validators: a problem is told with
    its whole path."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = f".{first_problem(model, error)}".removeprefix(f".{model.__name__}")
        raise PydanticCustomError("below", "{problem}", {"problem": problem}) from None


def first_problem(
    model: type[BaseModel], error: ValidationError, prefer: Collection[str] = ()
) -> str:
    """The first problem of a ValidationError as one line: dotted field, what is wrong, what to do.
    One of the fields `prefer` (or below one) goes before others."""
    problems: dict[str, ErrorDetails] = {}
    for one in error.errors(
        include_url=False
    ):  # a value that fits no member of a union has a problem with each
        problems.setdefault(".".join(map(str, _follow(model, one["loc"])[0])), one)
    wanted = (
        path for path in problems if any(f"{path}.".startswith(f"{name}.") for name in prefer)
    )
    path = next(wanted, next(iter(problems)))
    first = problems[path]
    field = path or model.__name__
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        hint = _suggest_setting(model, first["loc"])
        return f"{field}: unknown setting; {hint}{more}"
    if first["type"] == "below":
        return f"{field}{first['msg']}"
    if first["type"] == "missing":
        if isinstance(first["loc"][-1], int):
            whole_field = ".".join(map(str, _follow(model, first["loc"][:-1])[0]))
            return f"{whole_field}: too few values, got {shorten(repr(first['input']))}"
        return f"{field}: a value is required; set it in the file or on the command line{more}"
    message = _PLAIN.get(first["type"]) or first["msg"].removeprefix("Value error, ").removeprefix(
        "Assertion failed, "
    )
    if first["type"] == "literal_error":
        message = f"choose one of {first['ctx']['expected']}"
    if first["type"] == "too_long" and "actual_length" in first["ctx"]:
        message = (
            f"expected {first['ctx']['max_length']} values, got {first['ctx']['actual_length']}"
        )
    value = first["input"]
    told = isinstance(value, dict | BaseModel) or (
        isinstance(value, str) and repr(value) in message
    )
    got = "" if told else f", got {shorten(repr(value))}"
    return f"{field}: {message[:1].lower()}{message[1:]}{got}{more}"


def _suggest_setting(model: type[BaseModel], path: tuple[int | str, ...]) -> str:
    """Name the setting likely to be meant: of that name elsewhere, or alike here."""
    unknown = str(path[-1])
    names = [name for below in _follow(model, path[:-1])[1] for name in below.model_fields]
    elsewhere = [name for name in list_settings(model) if name.rpartition(".")[2] == unknown]
    close = elsewhere[:1] or difflib.get_close_matches(unknown, names, n=1)
    return (
        f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names)) or 'none'}"
    )


_PLAIN = {
    **dict.fromkeys(
        ("int_parsing", "int_from_float", "int_parsing_size", "int_type"), "expected a whole number"
    ),
    **dict.fromkeys(("float_parsing", "float_type"), "expected a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "expected true or false"),
    **dict.fromkeys(
        ("date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact", "date_type"),
        "expected a date like 2024-01-31",
    ),
    "string_type": "expected text; quote it",
    "path_type": "expected a path",
    "tuple_type": "expected a list",
    "dict_type": "expected `name: value` lines",
    "mapping_type": "expected `name: value` lines",
    "model_type": "expected `name: value` lines",
    "model_attributes_type": "expected `name: value` lines",
}
"""What a type's complaint says to somebody who writes YAML."""


def _follow(
    model: type[BaseModel], path: tuple[int | str, ...]
) -> tuple[list[int | str], list[type[BaseModel]]]:
    """The parts of a problem's path that a user wrote, and the models it ends in: which one of a
    union is no part."""
    written: list[int | str] = []
    models: list[type[BaseModel]] = [model]
    annotation: Any = model
    for part in path:
        tagged = [member for member in get_args(annotation) if _is_tagged(member, part)]
        if tagged:
            models = models_in(tagged[0])
            annotation = bare(tagged[0])[0]
            continue
        known = [candidate for candidate in models if part in candidate.model_fields]
        if known:
            fields = [candidate.model_fields[str(part)].annotation for candidate in known]
            annotation = bare(fields[0])[0]
            models = [below for field in fields for below in models_in(field)]
            written.append(part)
        elif get_origin(annotation) in (
            Union,
            UnionType,
        ):  # the name that pydantic gives the member it tried
            members = [member for member in get_args(annotation) if part in _tags(member)]
            models = [below for member in members for below in models_in(member)] or models
            annotation = bare(members[0])[0] if members else annotation
        else:
            written.append(part)
            inside = [one for one in get_args(annotation) if one is not Ellipsis]
            annotation = bare(inside[-1])[0] if inside else annotation
    return written, models


def _is_tagged(member: Any, part: int | str) -> bool:
    """Whether pydantic calls this member of a union `part`."""
    return get_origin(member) is Annotated and any(
        isinstance(one, Tag) and one.tag == part for one in get_args(member)
    )


def _tags(member: Any) -> set[Any]:
    """The discriminating values of a member of a union."""
    fields = [field.annotation for one in models_in(member) for field in one.model_fields.values()]
    return {
        value
        for annotation in fields
        if get_origin(annotation) is Literal
        for value in get_args(annotation)
    }


def bare(annotation: Any) -> tuple[Any, bool]:
    """An annotation without what is only said of it, and without `| None`; and whether it was
    there."""
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType) and type(None) in get_args(annotation):
            optional = True
            annotation = Union[tuple(one for one in get_args(annotation) if one is not type(None))]  # noqa: UP007
        else:
            return annotation, optional


def list_settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """List the dotted names of all settings below a model, of all members of unions."""
    for name, field in model.model_fields.items():
        below = models_in(field.annotation)
        if not below:
            yield f"{prefix}{name}"
        for one in below:
            yield from list_settings(one, f"{prefix}{name}.")


def models_in(annotation: object) -> list[type[BaseModel]]:
    """The settings models that an annotation names, unions looked through."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def shipped_configs() -> dict[str, Path]:
    """Name -> file of the configurations that come with fintrader, e.g. `quickstart`."""
    package = Path(__file__).resolve().parent
    for folder in (
        package / "configs",
        package.parent / "configs",
    ):  # of a wheel; of the source tree
        if (folder / "quickstart.yaml").is_file():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def find_config(path: Path | str) -> Path:
    """The file itself, or the shipped configuration of that name. A path that leads nowhere comes
    back as it is."""
    path = Path(path)
    if path.is_file() or len(path.parts) > 1:
        return path
    return shipped_configs().get(path.name, path)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """The mapping in a YAML file, or in the shipped configuration of that name.

    Raises ConfigError when it is missing, unreadable or no mapping.
    """
    try:
        path = find_config(path)
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        names = ", ".join(shipped_configs())
        raise ConfigError(
            f"{path}: no such file; give the path of a YAML configuration, or one of {names}"
        ) from None
    except IsADirectoryError:
        inside = Path(path) / "config.yaml"
        hint = f"; a run's configuration is {inside}" if inside.is_file() else ""
        raise ConfigError(
            f"{path}: a folder; give the path of a YAML configuration{hint}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); check the path and its rights"
        ) from None
    except ValueError:  # a NUL in it
        raise ConfigError(f"{str(path)!r}: no path; give that of a YAML configuration") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected `name: value` lines at the top level")
    return values


def overlay(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes` over them, mapping by mapping; one that names another `kind` or
    `algo` stands alone."""
    merged = dict(values)
    for name, change in changes.items():
        below = merged.get(name)
        if isinstance(change, Settings):
            change = change.model_dump(mode="json")
        if isinstance(change, Mapping) and isinstance(below, Mapping):
            named = [key for key in ("kind", "algo") if key in change and key in below]
            if "fractions" in change:  # of windows, in place of dates
                below = {
                    key: value
                    for key, value in below.items()
                    if key not in ("train", "validation", "test")
                }
            if all(change[key] == below[key] for key in named):
                change = overlay(below, change)
        merged[name] = change
    return merged


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested plain values as dotted name -> value."""
    if not isinstance(values, dict) or not values:
        return {prefix.removesuffix("."): values}
    return {
        key: value
        for name, below in values.items()
        for key, value in flat(below, f"{prefix}{name}.").items()
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (before, now) of everything in which nested plain values differ, in order;
    None where missing."""
    old = flat(before)
    new = flat(now)
    return {
        name: (old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    }


def dump_yaml(settings: Settings) -> str:
    """Settings as YAML text that `read_yaml` and `validate` turn back into equal settings."""
    return yaml.safe_dump(
        json.loads(settings.model_dump_json()), sort_keys=False, allow_unicode=True
    )


def load_object(reference: str) -> Any:
    """Import what `package.module:name` names. Raises ConfigError when it cannot be found."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r}: expected 'package.module:name'")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{reference!r} cannot be imported ({error}); check the spelling and PYTHONPATH"
        ) from None


def is_url(path: str | Path) -> bool:
    """Whether a path names a file system of its own, like s3://bucket/folder."""
    return "://" in str(path)


def check_url(url: str) -> str:
    """The URL without a slash at its end. Raises ConfigError for what is none, and for one that
    holds a secret."""
    if not is_url(url):
        raise ConfigError(
            f"store: {url!r} is no URL; give one like s3://bucket/runs or file:///mnt/shared/runs"
        )
    check_place(url)
    parts = urlsplit(url)
    if parts.scheme in ("http", "https", "ftp"):
        raise ConfigError(
            f"store: {parts.scheme}:// can be read at best; a store is written to, like"
            " s3://bucket/runs"
        )
    if "@" in parts.netloc or parts.query:
        raise ConfigError(
            f"store: the URL of {parts.scheme}://… holds more than a bucket and a path; credentials"
            " and options belong into the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,"
            " GOOGLE_APPLICATION_CREDENTIALS)"
        )
    return url.rstrip("/")


def check_place(path: str) -> str:
    """A path or URL as it is. Raises ConfigError for a `file://` URL whose first folder would be
    read as a machine's name: what lies in `file://runs/x` would go to `/x`."""
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"{path}: after file:// comes a machine, here one called {parts.netloc}; write"
            f" file:///folder with three slashes, or the path alone ({parts.netloc}{parts.path})"
        )
    return path


SECRET_NAME = re.compile(r"(sig|token|key|secret|passw|pwd|auth|credential)", re.I)
_SECRET_QUERY = re.compile(r"[?&][\w-]*(sig|token|key|secret|passw|credential)[\w-]*=", re.I)


def check_no_secret(path: str) -> str:
    """A path or URL of data as it is. Raises ConfigError for a URL that holds a password or a
    signed query.

    Less strict than `check_url`: `container@account` and `user@host` are names, and `?` may stand
    in a pattern.
    """
    if is_url(path) and (re.search(r"://[^/\s]*:[^/\s]*@", path) or _SECRET_QUERY.search(path)):
        raise ConfigError(
            f"the URL of {path.partition('://')[0]}://… holds a password or a key; settings are"
            " stored and shown, so credentials belong into the environment or into fsspec's"
            " configuration"
        )
    return check_place(path) if is_url(path) else path


def without_secret(path: Any) -> Any:
    """The same for a validator: raises ValueError."""
    try:
        return check_no_secret(str(path)) if isinstance(path, str | Path) else path
    except ConfigError as error:
        raise ValueError(str(error)) from None


PathText = Annotated[str, BeforeValidator(without_secret)]
"""A setting: a local path or an fsspec URL without credentials; a `pathlib.Path` is taken too."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # pathlib makes one slash of two; C:/ is a drive


def refuse_url(path: Path | str, setting: str) -> None:
    """Raise DataError when a folder that must be local is a URL: as a path it would make a folder
    called `s3:`."""
    if _SCHEME.match(str(path)):
        raise DataError(
            f"{setting}: {path} is a URL, and this folder must be a local one; bars may lie at a"
            " URL (data.store), and so may runs and markets (store)"
        )


def base_name(path: str) -> str:
    """What to call a file in a message: its name without folders."""
    return path.rstrip("/").rpartition("/")[2]
