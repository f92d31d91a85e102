"""Convert frozen dataclasses to JSON values and back.

A record's fields hold booleans, numbers, text, None, other records, tuples, mappings by text, and
literals, and settings. The members of a union of records differ in a field with one literal each. The only
conversion is from a whole number to a float. A missing or an unknown field is an error. This module
needs the standard library alone, so that reading a run stays fast.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
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
Reader: TypeAlias = Callable[[Any], Any]
_PLAIN = frozenset((bool, int, float, str, NoneType))


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
    names = (field.name for field in dataclasses.fields(cast(Any, record)))
    return {name: to_plain(getattr(record, name)) for name in names}


def to_plain(value: Any) -> Any:
    """Return the JSON value of a record, or of a tuple or a mapping of them."""
    if type(value) in _PLAIN:
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
    return cast(T, _reader_of(cast(Hashable, kind))(value))


@cache
def _reader_of(kind: Any) -> Reader:
    """Build the function that reads values of this type; cached by type."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _record_reader(cast("type[Any]", kind))
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin in (dict, Mapping):
        return _mapping_reader(arguments[1])
    if origin is Literal:
        return _literal_reader(arguments)
    if kind is float:
        return _read_float
    if kind in (bool, int, str):
        return _exact_reader(kind)
    if kind is JsonValue:
        return lambda value: value
    if hasattr(kind, "model_validate"):
        return _settings_reader(kind.model_validate)
    raise TypeError(f"{kind} has no place in a stored record")


def _record_reader(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    readers = {name: _reader_of(hints[name]) for name in names}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        if missing := [name for name in readers if name not in value]:
            raise RecordError("is missing", missing[0])
        if unknown := value.keys() - readers.keys():
            raise RecordError("is a field that this version does not know", min(unknown)[:60])
        values = {}
        name = ""
        try:
            for name, reader in readers.items():
                values[name] = reader(value[name])
        except RecordError as error:
            raise error.within(name) from None
        try:
            return kind(**values)
        except ValueError as error:
            raise RecordError(str(error)) from None

    return read


def _settings_reader(validate: Reader) -> Reader:
    def read(value: Any) -> Any:
        try:
            return validate(value)
        except ValueError as error:
            raise RecordError(f"is no such settings ({str(error).splitlines()[0]})") from None

    return read


def _find_tag(kinds: Sequence[Any]) -> str | None:
    """Find the field whose one literal tells records apart; None where there is none."""
    if len(kinds) < 2 or not all(map(dataclasses.is_dataclass, kinds)):
        return None
    hints = [get_type_hints(kind) for kind in kinds]
    return next(
        (name for name in hints[0] if all(_find_word(own.get(name)) for own in hints)), None
    )


def _find_word(hint: Any) -> str:
    """Find the only word of a literal; empty for another type."""
    words = get_args(hint) if get_origin(hint) is Literal else ()
    return str(words[0]) if len(words) == 1 else ""


def _tagged_reader(tag: str, kinds: Sequence[Any]) -> Reader:
    readers = {_find_word(get_type_hints(kind)[tag]): _reader_of(kind) for kind in kinds}
    read_word = _literal_reader(tuple(readers))

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        try:
            word = read_word(value.get(tag))
        except RecordError as error:
            raise error.within(tag) from None
        return readers[word](value)

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    """Build a reader that takes the kind with the value's tag; without tags the first kind that
    fits, and an error is that of the last kind."""
    present = [kind for kind in kinds if kind is not NoneType]
    tag = _find_tag(present)
    readers = [_tagged_reader(tag, present)] if tag else [_reader_of(kind) for kind in present]
    is_optional = NoneType in kinds

    def read(value: Any) -> Any:
        if value is None and is_optional:
            return None
        for reader in readers[:-1]:
            with contextlib.suppress(RecordError):
                return reader(value)
        return readers[-1](value)

    return read


def _tuple_reader(kinds: tuple[Any, ...]) -> Reader:
    """Build a reader of lists: of any length for `tuple[X, ...]`, otherwise of fixed length."""
    readers = [_reader_of(kind) for kind in kinds if kind is not Ellipsis]
    is_open = kinds[-1] is Ellipsis

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not (is_open or len(value) == len(readers)):
            raise _wrong(value, "a list" if is_open else f"a list of {len(readers)}")
        by_place = readers * len(value) if is_open else readers
        return tuple(_each(enumerate(zip(by_place, value, strict=True))).values())

    return read


def _mapping_reader(kind: Any) -> Reader:
    reader = _reader_of(kind)

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return _each((name, (reader, item)) for name, item in value.items())

    return read


def _each(items: Any) -> dict[Any, Any]:
    """Read (place, (reader, value)) pairs; an error names its place."""
    read = {}
    place: Any = ""
    try:
        for place, (reader, value) in items:
            read[place] = reader(value)
    except RecordError as error:
        raise error.within(str(place)[:60]) from None
    return read


def _literal_reader(words: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in words:
            raise _wrong(value, f"one of {', '.join(map(str, words))}")
        return value

    return read


def _exact_reader(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(value, {bool: "true or false", int: "a whole number"}.get(kind, "text"))
        return value

    return read


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    try:
        if type(value) is int:
            return float(value)
    except OverflowError:
        pass
    raise _wrong(value, "a number")


def _wrong(value: object, expected: str) -> RecordError:
    text = ascii(value)
    return RecordError(f"is {text if len(text) <= 60 else text[:57] + '...'}, not {expected}")
