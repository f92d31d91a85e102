"""YAML texts, read within bounds: their length, their depth, and what their aliases repeat.

    parse_yaml("env: {num_envs: 64}", "my.yaml")

PyYAML alone recurses once a level, expands a few lines of aliases to billions of values, and lets
any error of its constructors through.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import Node, ScalarNode
from yaml.reader import ReaderError

from fintrader.errors import ConfigError

MOST_BYTES = 1 << 20
MOST_LEVELS = 50
MOST_VALUES = 100_000
"""Values and names in a text, counted again for each alias that repeats them."""
MOST_DIGITS = 100
_TAG = "tag:yaml.org,2002:"
_KINDS = {
    f"{_TAG}timestamp": "date",
    f"{_TAG}int": "whole number",
    f"{_TAG}float": "number",
    f"{_TAG}str": "text",
}
_SECRET_URL = re.compile(r"(\w+://)(?=[^\s'\"]*[@?])[^\s'\"]*")
"""URLs with credentials or a query; messages go to logs, so they show only the scheme."""


def parse_yaml(text: str | bytes, where: str) -> Any:
    """Read one YAML document as plain values.

    Raises ConfigError, one line, naming `where` (a file's name, usually) and the line.
    """
    size = len(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    if size > MOST_BYTES:
        raise ConfigError(
            f"{where}: more than the {MOST_BYTES} bytes that a YAML text may have; leave values "
            "out, or keep data in a file of another kind"
        )
    try:
        decoded = text if isinstance(text, str) else text.decode()
        loader = BoundedLoader(decoded)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: not text in UTF-8; give a YAML file") from None
    except _WrongValueError as error:
        raise ConfigError(f"{where}, line {error.line}: {error.problem}; {error.remedy}") from None
    except ReaderError as error:
        line = decoded.count("\n", 0, error.position) + 1
        problem = f"at line {line}: it holds a control character; remove it"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"at line {mark.line + 1}, column {mark.column + 1}" if mark else "at some line"
        cause = shorten(error.problem or error.context or "")
        problem = f"{place}: {cause}; correct it there, or quote the text"
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        problem = f"({shorten(str(error))}); write plain names and values"
    raise ConfigError(f"{where}: not valid YAML {problem}")


def shorten(text: str) -> str:
    """Make foreign text fit for a message: one line, not long, no more of a URL than its scheme."""
    printable = text.encode(errors="backslashreplace").decode()
    shown = " ".join(_SECRET_URL.sub(r"\1…", printable).split())
    return shown if len(shown) <= 80 else shown[:77] + "..."


class _WrongValueError(yaml.YAMLError):
    """A value that only looks like a number or a date, or one that exceeds a bound."""

    def __init__(self, problem: str, remedy: str, mark: Any) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.line = mark.line + 1


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader, with bounds that are checked while the text is read."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.level = 0
        self.deepest = 0
        self.values = 0
        self.extents: dict[int, tuple[int, int]] = {}
        """Id of each complete node -> values in it, levels in it."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Count the values read, as if aliases were written out."""
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        values_before = self.values
        deepest_before = self.deepest
        self.level += 1
        self.deepest = self.level
        self._check_bounds(event)
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self.extents:
                problem = f"*{shorten(str(event.anchor))} is inside the value that it repeats"
                raise _WrongValueError(problem, "write the value out", event.start_mark)
            values, levels = self.extents[id(node)]
            self.values += values
            self.deepest += levels
        else:
            self.values += 1
            self.extents[id(node)] = (self.values - values_before, self.deepest - self.level)
        self._check_bounds(event)
        self.deepest = max(self.deepest, deepest_before)
        self.level -= 1
        return node

    def _check_bounds(self, event: yaml.Event) -> None:
        if self.deepest > MOST_LEVELS:
            problem = f"nested more than {MOST_LEVELS} levels deep"
            raise _WrongValueError(problem, "write it with fewer levels", event.start_mark)
        if self.values > MOST_VALUES:
            problem = f"more than {MOST_VALUES} values, with those that aliases (*name) repeat"
            raise _WrongValueError(problem, "leave values out, or repeat less", event.start_mark)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Construct a value, and turn any error of PyYAML's constructors into one with its line."""
        is_number = node.tag in (f"{_TAG}int", f"{_TAG}float")
        if is_number and isinstance(node, ScalarNode) and len(node.value) > MOST_DIGITS:
            raise self._refuse(node)
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # "\\ud800" is half a character, which no file can hold
            return value
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
            if not isinstance(node, ScalarNode):
                raise ConstructorError(None, None, "unreadable", node.start_mark) from None
            raise self._refuse(node) from None

    def _refuse(self, node: ScalarNode) -> _WrongValueError:
        kind = _KINDS.get(node.tag, f"value of !!{node.tag.removeprefix(_TAG)}")
        resolve: Any = self.resolve
        is_plain = node.tag in (resolve(ScalarNode, node.value, (True, False)), f"{_TAG}str")
        remedy = "correct the value, or quote it"
        if not is_plain:
            remedy = "correct the value, or leave out its tag (!!...)"
        elif kind == "date":
            remedy = "correct it: there is no such date"
        problem = f"{shorten(node.value) or 'an empty text'} is no {kind}"
        return _WrongValueError(problem, remedy, node.start_mark)
