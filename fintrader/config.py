"""Base of all settings models: frozen and strict, readable errors, YAML in and out, checked paths.

Each model is next to the code it sets (`EnvSettings` in `envs/settings.py`); `pipeline/config.py`
joins them into one `RunConfig`.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    ValidationError,
    WrapValidator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from fintrader.errors import ConfigError, DataError, find_meant, suggest
from fintrader.yaml_text import MOST_BYTES, parse_yaml, shorten

log = logging.getLogger("fintrader")
SettingsT = TypeVar("SettingsT", bound="Settings")


Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFraction = Annotated[float, Field(gt=0.0, le=1.0)]
BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]


def _check_address(address: object) -> object:
    port = str(address).rpartition(":")[2]
    if address is not None and not (port.isdecimal() and int(port) <= 65535):
        raise ValueError("expected PORT or HOST:PORT, with a port of at most 65535")
    return address if address is None else str(address)


Address = Annotated[str | None, BeforeValidator(_check_address)]
"""`PORT`, on 127.0.0.1 (0: any free port), or `HOST:PORT`."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an `Address`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def fill_mapping(defaults: Mapping[str, Any]) -> BeforeValidator:
    """Complete a setting that is a mapping with its defaults, as a pydantic validator."""
    return BeforeValidator(
        lambda value: {**defaults, **value} if isinstance(value, Mapping) else value
    )


REFERENCE = "package.module:name"
"""Form of the name of a user's own object in a setting."""


_GIVEN: dict[int, Callable[..., Any]] = {}
"""`id` -> callable passed in Python, with which a copy in this process or in a fork is restored."""


def _copy_own(text: str, number: int) -> str:
    call = _GIVEN.get(number)
    same = None if call is None else OwnFunction(call)
    return same if same == text and same is not None else text


class OwnFunction(str):
    """The text `module:name` of a callable given in Python, and the callable. Only the text is
    stored, compared, and known to another process."""

    call: Callable[..., Any]

    def __new__(cls, call: Callable[..., Any]) -> Self:
        named = getattr(call, "func", call)  # a functools.partial has no name
        named = named if hasattr(named, "__qualname__") else type(named)
        self = super().__new__(cls, f"{named.__module__}:{named.__qualname__}")
        self.call = call
        _GIVEN[id(call)] = call
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy_own, (str(self), id(self.call))

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @property
    def is_importable(self) -> bool:
        """True if another process finds the same callable by its text."""
        module, _, name = self.partition(":")
        return module != "__main__" and getattr(sys.modules.get(module), name, None) is self.call


def _read_own(value: Any, read: Callable[[Any], Any]) -> Any:
    if isinstance(value, OwnFunction):
        return value
    return OwnFunction(value) if callable(value) else read(value)


Own = Annotated[str, WrapValidator(_read_own)]
"""Setting for a name, the text `package.module:name` of a callable, or a callable itself."""


def refuse_own(names: Iterable[str], setting: str) -> None:
    """Raise ValueError for a callable that another process cannot import."""
    for name in names:
        if isinstance(name, OwnFunction) and not name.is_importable:
            raise ValueError(
                f"{setting}: the workers of a run are other processes and cannot import {name}; put"
                " it into a module on PYTHONPATH, and give 'module:name'"
            )


def _ticker(value: object) -> object:
    if isinstance(value, bool | int | float | dt.date):
        raise ValueError(
            "YAML reads TRUE, NO, ON, numbers and dates as values; quote the ticker, like 'TRUE' or"
            " '0700'"
        )
    if isinstance(value, str) and not value.strip():
        raise ValueError("a ticker is empty; leave it out")
    return value


Ticker = Annotated[str, BeforeValidator(_ticker)]
"""A symbol in settings: any text that is not empty."""


class Settings(BaseModel):
    """Base of all settings: immutable, without unknown fields; docstrings below fields are their
    help."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    def __init__(self, *unnamed: Any, **values: Any) -> None:
        """Validate the values. Raises ConfigError, one line with the field and the remedy."""
        if unnamed:
            names = ", ".join(list(type(self).model_fields)[:3])
            raise ConfigError(f"{type(self).__name__}: settings are given by name: {names}, ...")
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = type(self).__name__
            problem = describe_problem(type(self), error)
            raise ConfigError(
                problem if problem.startswith(f"{name}: ") else f"{name}: {problem}"
            ) from None

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Show the settings that differ from their defaults."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.get_default(call_default_factory=True):
                yield name, value

    __str__ = BaseModel.__repr__

    # With this mark pydantic validates nested models itself, so that an error has its whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def validate(model: type[SettingsT], values: Mapping[str, Any], where: str) -> SettingsT:
    """Build `model` from plain values. Raises ConfigError, one line with the field and the remedy.

    `where`: source of the values, usually a file's name.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {describe_problem(model, error)}") from None


def override(
    settings: SettingsT, changes: Mapping[str, Any], where: str, also: Collection[str] = ()
) -> SettingsT:
    """Override settings with keyword arguments of a call; `also`: more keywords of `where`.

    Raises ConfigError for an unknown keyword, and suggests a known one.
    """
    model = type(settings)
    for name in changes:
        if name not in model.model_fields:
            problem = suggest(name, [*model.model_fields, *also])
            raise ConfigError(f"{where}: {name}: unknown argument; {problem}")
    return validate(model, merge_values(settings.model_dump(exclude_unset=True), changes), where)


def validate_below(model: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Build a nested model that its outer model does not name. For validators: a problem is
    reported with its whole path."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = f".{describe_problem(model, error)}".removeprefix(f".{model.__name__}")
        raise PydanticCustomError("below", "{problem}", {"problem": problem}) from None


def describe_problem(
    model: type[BaseModel], error: ValidationError, prefer: Collection[str] = ()
) -> str:
    """Describe the first problem of a ValidationError in one line: dotted field, problem, remedy.
    Problems of the fields `prefer` and of fields below them come first."""
    problems: dict[str, ErrorDetails] = {}
    words = {}
    # A value that fits no member of a union has one problem with each member: keep the first, and
    # the words that another allows.
    for details in error.errors(include_url=False):
        name = ".".join(map(str, _follow(model, details["loc"])[0]))
        words[name] = _name_words(details, problems.setdefault(name, details))
    # The union member that a value resembles reports problems of its fields; the others refuse the
    # whole value.
    problems = {
        path: details
        for path, details in problems.items()
        if not any(other.startswith(f"{path}.") for other in problems)
    }
    preferred = (
        path for path in problems if any(f"{path}.".startswith(f"{name}.") for name in prefer)
    )
    path = next(preferred, next(iter(problems)))
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
    if first["type"] == "too_short":
        least = first["ctx"]["min_length"]
        message = f"needs at least {least} value{'s' * (least > 1)}"
    if first["type"] == "too_long" and "actual_length" in first["ctx"]:
        message = (
            f"expected {first['ctx']['max_length']} values, got {first['ctx']['actual_length']}"
        )
    message += words.get(path, "")
    value = first["input"]
    is_shown = isinstance(value, str) and repr(value) in message
    is_long = isinstance(value, dict | BaseModel)
    got = "" if is_shown or is_long else f", got {shorten(repr(value))}"
    return f"{field}: {message[:1].lower()}{message[1:]}{got}{more}"


def _name_words(details: ErrorDetails, first: ErrorDetails) -> str:
    is_word = details["type"] == "literal_error" and details is not first
    return f" or {details['ctx']['expected']}" if is_word else ""


def _suggest_setting(model: type[BaseModel], path: tuple[int | str, ...]) -> str:
    """Suggest a setting of this name in another place, or one with a similar name here."""
    unknown = str(path[-1])
    names = [name for below in _follow(model, path[:-1])[1] for name in below.model_fields]
    elsewhere = [name for name in list_settings(model) if name.rpartition(".")[2] == unknown]
    return f"did you mean {elsewhere[0]!r}?" if elsewhere else suggest(unknown, names)


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
"""Message for each of pydantic's error types, in the words of YAML."""


def _follow(
    model: type[BaseModel], path: tuple[int | str, ...]
) -> tuple[list[int | str], list[type[BaseModel]]]:
    """Remove from a problem's path the parts that pydantic adds, such as names of union members;
    returns the parts that the user wrote, and the models at the path's end."""
    written = []
    models: list[type[BaseModel]] = [model]
    annotation: Any = model
    for part in path:
        if part == "[key]":  # pydantic's word for the name of an entry that is unknown
            continue
        tagged = [member for member in get_args(annotation) if _is_tagged(member, part)]
        if tagged:
            models = list_models(tagged[0])
            annotation = unwrap_annotation(tagged[0])[0]
            continue
        known = [candidate for candidate in models if part in candidate.model_fields]
        if known:
            fields = [candidate.model_fields[str(part)].annotation for candidate in known]
            annotation = unwrap_annotation(fields[0])[0]
            models = [below for field in fields for below in list_models(field)]
            written.append(part)
        elif get_origin(annotation) in (Union, UnionType):  # pydantic's name of the member it tried
            members = [member for member in get_args(annotation) if part in _tags(member)]
            models = [below for member in members for below in list_models(member)] or models
            annotation = unwrap_annotation(members[0])[0] if members else None
        else:
            written.append(part)
            inside = [argument for argument in get_args(annotation) if argument is not Ellipsis]
            annotation = unwrap_annotation(inside[-1])[0] if inside else annotation
    return written, models


def _is_tagged(member: Any, part: int | str) -> bool:
    """Check that pydantic calls this member of a union `part`."""
    return get_origin(member) is Annotated and any(
        isinstance(one, Tag) and one.tag == part for one in get_args(member)
    )


def _tags(member: Any) -> set[Any]:
    """List the discriminating values of a member of a union."""
    fields = [
        field.annotation for model in list_models(member) for field in model.model_fields.values()
    ]
    return {
        value
        for annotation in fields
        if get_origin(annotation) is Literal
        for value in get_args(annotation)
    }


def unwrap_annotation(annotation: Any) -> tuple[Any, bool]:
    """Remove `Annotated` and `| None` from an annotation; returns the rest, and True if None was
    allowed."""
    is_optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType) and type(None) in get_args(annotation):
            is_optional = True
            members = tuple(member for member in get_args(annotation) if member is not type(None))
            annotation = Union[members]  # noqa: UP007
        else:
            return annotation, is_optional


def list_settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """List the dotted names of all settings below a model, for every member of its unions."""
    for name, field in model.model_fields.items():
        below = list_models(field.annotation)
        if not below:
            yield f"{prefix}{name}"
        for inner in below:
            yield from list_settings(inner, f"{prefix}{name}.")


def list_models(annotation: object) -> list[type[BaseModel]]:
    """List the settings models in an annotation, also within unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in list_models(argument)]


def list_shipped_configs() -> dict[str, Path]:
    """List the configurations that come with fintrader, such as `quickstart`: name -> file."""
    package = Path(__file__).resolve().parent
    in_wheel = package / "configs"
    in_source = package.parent / "configs"
    for folder in (in_wheel, in_source):
        if (folder / "quickstart.yaml").is_file():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a mapping from a YAML file, or from a shipped configuration if `path` is its name and no
    file has that name.

    Raises ConfigError when the file is missing, unreadable or not a mapping.
    """
    path = Path(path)
    try:
        if not path.is_file() and len(path.parts) == 1:
            path = list_shipped_configs().get(path.name, path)
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        names = list_shipped_configs()
        meant = find_meant(str(path), names)
        hint = (
            f"did you mean {meant!r}?"
            if meant
            else "`fintrader init` creates one from bars or tickers"
        )
        raise ConfigError(
            f"{path} does not exist; give the path of a YAML configuration, or one of"
            f" {', '.join(names)}; {hint}"
        ) from None
    except IsADirectoryError:
        inside = path / "config.yaml"
        hint = f"; a run's configuration is {inside}" if inside.is_file() else ""
        raise ConfigError(
            f"{path} is a folder; give the path of a YAML configuration{hint}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    except ValueError:  # a NUL character
        raise ConfigError(
            f"{str(path)!r} is not a path; give the path of a YAML configuration"
        ) from None
    hint = f"; if it holds bars, `fintrader init {path}` writes a configuration"
    hint *= path.suffix not in (".yaml", ".yml")
    try:
        values = parse_yaml(text, str(path))
    except ConfigError as error:
        raise ConfigError(f"{error}{hint}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a configuration, of `name: value` lines{hint}")
    return values


def merge_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `values`, mapping by mapping. A mapping with another `kind` or `algo`
    replaces the old one whole."""
    merged = dict(values)
    for name, change in changes.items():
        below = merged.get(name)
        if isinstance(change, Settings):
            change = change.model_dump()
        if isinstance(change, Mapping) and isinstance(below, Mapping):
            named = [key for key in ("kind", "algo") if key in change and key in below]
            if "fractions" in change:  # fractions of windows replace their dates
                below = {
                    key: value
                    for key, value in below.items()
                    if key not in ("train", "validation", "test")
                }
            if all(change[key] == below[key] for key in named):
                change = merge_values(below, change)
        merged[name] = change
    return merged


def flatten_values(
    values: Mapping[str, Any], whole: Collection[str] = (), prefix: str = ""
) -> dict[str, Any]:
    """Flatten nested plain values to dotted name -> value; each entry of the mappings `whole` stays
    one value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and prefix.removesuffix(".") not in whole:
            flat |= flatten_values(value, whole, f"{path}.")
        else:
            flat[path] = value
    return flat


def compare_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compare nested plain values; returns dotted name -> (before, now) of those that differ,
    sorted, with None for a missing value."""
    old = flatten_values(before)
    new = flatten_values(now)
    return {
        name: (old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    }


def describe_differences(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """Describe the first five differences of `compare_values`, its values before as `there`."""
    return "; ".join(
        f"{name}: {there!s:.40} stored, {here!s:.40} requested"
        for name, (there, here) in list(differences.items())[:5]
    )


def dump_yaml(settings: Settings) -> str:
    """Format settings as YAML text, which `read_yaml` and `validate` turn back into equal ones."""
    return yaml.safe_dump(
        json.loads(settings.model_dump_json()), sort_keys=False, allow_unicode=True
    )


_CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def load_object(reference: str) -> Any:
    """Import the object `package.module:name`, or return the callable of an `OwnFunction`. Raises
    ConfigError when it cannot be found."""
    if isinstance(reference, OwnFunction):
        return reference.call
    module_name, _, name = reference.partition(":")
    try:
        if _CODE.fullmatch(reference):  # `list_code` lists exactly these
            return getattr(importlib.import_module(module_name), name)
        if not module_name or "<" not in name:
            raise ConfigError(f"{reference!r}: expected 'package.module:name'")
        raise AttributeError(name)
    except (ImportError, AttributeError) as error:
        is_library = isinstance(error, ModuleNotFoundError) and error.name != module_name
        if is_library and module_name.startswith("fintrader."):
            raise  # for the command line, which names libraries that are missing
        if module_name == "__main__" or "<" in name:
            raise ConfigError(
                f"{reference!r} was a function of a notebook, a script or another function, of"
                " which only the name is stored; pass the function again"
            ) from None
        raise ConfigError(
            f"{reference!r} cannot be imported ({error}); check the spelling and PYTHONPATH"
        ) from None


def list_texts(values: Any) -> Iterator[str]:
    """List every text in plain values, at any depth, without the keys of mappings."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping | list | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from list_texts(value)


def list_code(values: Any) -> list[str]:
    """List the references `package.module:name` in plain settings, whose code is imported."""
    return sorted({text for text in list_texts(values) if _CODE.fullmatch(text)})


def name_code(where: str, values: Any) -> None:
    """Log the code that settings import, before it runs."""
    code = list_code(values)
    if code:
        names = ", ".join(code)
        log.warning(
            "importing %s, as %s asks; run only settings whose code you trust", names, where
        )


def is_url(path: str | Path) -> bool:
    """Check that a path is a URL, like s3://bucket/folder."""
    return "://" in str(path)


def check_url(url: str) -> str:
    """Check the URL of a store; returns it without a final slash. Raises ConfigError for a text
    that is no URL, for a read-only protocol, and for a URL with a secret."""
    if not is_url(url):
        raise ConfigError(
            f"store: {url!r} is not a URL; give one like s3://bucket/runs or"
            " file:///mnt/shared/runs"
        )
    check_file_url(url)
    parts = urlsplit(url)
    if parts.scheme in ("http", "https", "ftp"):
        raise ConfigError(
            f"store: {parts.scheme}:// is read-only; give a store that can be written to, like"
            " s3://bucket/runs"
        )
    if "@" in parts.netloc or parts.query:
        raise ConfigError(
            f"store: the URL of {parts.scheme}://… holds more than a bucket and a path; set"
            " credentials and options in the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,"
            " GOOGLE_APPLICATION_CREDENTIALS)"
        )
    return url.rstrip("/")


def check_file_url(path: str) -> str:
    """Return a path or URL unchanged. Raises ConfigError for a `file://` URL with two slashes,
    whose first folder would be read as a machine's name: `file://runs/x` would mean `/x`."""
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"{path}: the word after file:// names a machine, here {parts.netloc}; write"
            f" file:///folder with three slashes, or the path alone ({parts.netloc}{parts.path})"
        )
    return path


SECRET_NAME = re.compile(r"(sig|token|key|secret|passw|pwd|auth|credential)", re.I)
_SECRET_QUERY = re.compile(r"[?&][\w-]*(sig|token|key|secret|passw|credential)[\w-]*=", re.I)


def check_no_secret(path: str) -> str:
    """Return a path or URL of data unchanged. Raises ConfigError for a URL that holds a password or
    a signed query.

    Less strict than `check_url`: `container@account` and `user@host` are names, and `?` may be part
    of a pattern.
    """
    if is_url(path) and (re.search(r"://[^/\s]*:[^/\s]*@", path) or _SECRET_QUERY.search(path)):
        raise ConfigError(
            f"the URL of {path.partition('://')[0]}://… holds a password or a key; settings are"
            " stored and shown, so set credentials in the environment or in fsspec's configuration"
        )
    return check_file_url(path) if is_url(path) else path


def refuse_secret(path: Any) -> Any:
    """Check a path for secrets as a pydantic validator. Raises ConfigError."""
    return check_no_secret(str(path)) if isinstance(path, str | Path) else path


PathText = Annotated[str, BeforeValidator(refuse_secret)]
"""Setting for a local path (text or `pathlib.Path`) or an fsspec URL without credentials."""

# One slash, since pathlib joins two; two letters or more, since C:/ is a drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def refuse_url(path: Path | str, setting: str) -> None:
    """Raise DataError when a folder that must be local is a URL; as a path it would create a folder
    called `s3:`."""
    if _SCHEME.match(str(path)):
        raise DataError(
            f"{setting}: {path} is a URL; give a local folder (data.store may be a URL for"
            " bars, and store for runs and markets)"
        )


def strip_folders(path: str) -> str:
    """Return the last part of a path or URL, for messages."""
    return path.rstrip("/").rpartition("/")[2]
