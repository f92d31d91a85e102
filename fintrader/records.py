"""Convert frozen dataclasses to JSON values and back.

A record's fields hold booleans, numbers, text, None, literals, other records, settings, tuples, and
mappings with text keys. In a union of records, one field has a different literal in each.
Whole numbers become floats where a float is declared; nothing else is converted. A missing or an
unknown field is an error. This module imports the standard library only, so that reading a run
stays fast.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from fintrader.errors import RunError

T = TypeVar("T")
if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None
    )
else:
    JsonValue = object
_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
"""Types stored unchanged -> their names in messages."""


class RecordError(RunError):
    """A stored value does not have the type that its record declares."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place} {problem}" if place else problem)
        self.problem = problem
        self.place = place

    def within(self, name: str) -> RecordError:
        """Return the same problem with its place seen from the enclosing record."""
        return RecordError(self.problem, f"{name}.{self.place}" if self.place else name)


def to_json(record: object) -> dict[str, JsonValue]:
    """Return the fields of a record by name, ready for `files.write_json`."""
    return {
        name: to_plain(getattr(record, name)) for name in _list_field_names(cast(Any, type(record)))
    }


@cache
def _list_field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def resembles(kind: type, names: Iterable[str]) -> bool:
    """Check that `names` hold most of a record's fields, as in a record of another version."""
    own = _list_field_names(cast(Any, kind))
    return 2 * len({*own}.intersection(names)) > len(own)


def to_plain(value: Any) -> Any:
    """Return the JSON value of a record, or of a tuple or mapping of records."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if dataclasses.is_dataclass(value):
        return to_json(value)
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def from_json(kind: type[T], value: object) -> T:
    """Make a record from parsed JSON. Raises RecordError naming the first field that is wrong."""
    return cast(T, _read(kind, value))


def _read(kind: Any, value: Any) -> Any:
    if kind is JsonValue or (type(value) is kind and kind in _PLAIN):
        return value
    origin, arguments = _take_apart(kind)
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, value)
    if origin in (Union, UnionType):
        return _read_union(arguments, value)
    if origin is tuple:
        return _read_tuple(arguments, value)
    if origin in (dict, Mapping):
        items = _expect_object(value).items()
        return _read_each((name, arguments[1], item) for name, item in items)
    if origin is Literal:
        if value not in arguments:
            raise _wrong(value, f"one of {', '.join(map(str, arguments))}")
        return value
    if kind is float and type(value) is int:
        with contextlib.suppress(OverflowError):
            return float(value)
    if kind in _PLAIN:
        raise _wrong(value, _PLAIN[kind])
    if not hasattr(kind, "model_validate"):
        raise TypeError(f"{kind} has no place in a stored record")
    try:
        return kind.model_validate(value)
    except ValueError as error:
        raise RecordError(f"holds no valid settings ({str(error).splitlines()[0]})") from None


@cache
def _take_apart(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


@cache
def _list_fields(kind: Any) -> dict[str, Any]:
    """Name -> type of a record's fields."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _read_record(kind: Any, value: Any) -> Any:
    fields = _list_fields(kind)
    stored = _expect_object(value)
    if missing := [name for name in fields if name not in stored]:
        raise RecordError("is missing", missing[0])
    if unknown := stored.keys() - fields.keys():
        raise RecordError("is a field that this version does not know", min(unknown)[:60])
    try:
        return kind(**_read_each((name, field, stored[name]) for name, field in fields.items()))
    except ValueError as error:
        raise RecordError(str(error)) from None


@cache
def _sort_union(kinds: Sequence[Any]) -> tuple[list[Any], str, dict[str, Any]]:
    """Return the kinds other than None, the field whose literal tells records apart, and the record
    of each literal; field and records are empty if no field does."""
    present = [kind for kind in kinds if kind is not NoneType]
    if len(present) > 1 and all(map(dataclasses.is_dataclass, present)):
        for name in _list_fields(present[0]):
            hints = [_list_fields(kind).get(name) for kind in present]
            words = [get_args(hint) for hint in hints if get_origin(hint) is Literal]
            if [len(literals) for literals in words] == [1] * len(present):
                by_word = {word: kind for (word,), kind in zip(words, present, strict=True)}
                return present, name, by_word
    return present, "", {}


def _read_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """Read a value as the kind with its tag or, without tags, as the first kind that fits. Raises
    the error of the last kind if none fits."""
    if value is None and NoneType in kinds:
        return None
    present, tag, by_word = _sort_union(kinds)
    if tag:
        word = _expect_object(value).get(tag)
        read = _read_each([(tag, Literal[tuple(by_word)], word)])
        return _read(by_word[read[tag]], value)
    for kind in present[:-1]:
        with contextlib.suppress(RecordError):
            return _read(kind, value)
    return _read(present[-1], value)


def _read_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Read a list: of any length for `tuple[X, ...]`, otherwise of fixed length."""
    is_open = kinds[-1] is Ellipsis
    if not isinstance(value, list | tuple) or not (is_open or len(value) == len(kinds)):
        raise _wrong(value, "a list" if is_open else f"a list of {len(kinds)}")
    if is_open and kinds[0] in _PLAIN and set(map(type, value)) <= {kinds[0]}:
        return tuple(value)  # thirty times as fast, as for a fund's symbols
    by_place = kinds[:1] * len(value) if is_open else kinds
    places = range(len(value))
    return tuple(_read_each(zip(places, by_place, value, strict=True)).values())


def _read_each(items: Iterable[tuple[Any, Any, Any]]) -> dict[Any, Any]:
    """Read (place, kind, value); an error names its place."""
    read = {}
    place: Any = ""
    try:
        for place, kind, value in items:
            read[place] = _read(kind, value)
    except RecordError as error:
        raise error.within(str(place)[:60]) from None
    return read


def _expect_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, "an object")
    return value


def abbreviate(value: object) -> str:
    """Format a value for a message: in ASCII, at most 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(value: object, expected: str) -> RecordError:
    return RecordError(f"is {abbreviate(value)}, not {expected}")
