"""Settings from command-line words: the fields of a settings model are its options, and pydantic
reads their values.

    fintrader run CONFIG --env.num-envs 64 --data.windows.fractions 0.6 0.2 0.2
    --backtest.null-model false

A mistake is one line that names the option as it was typed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from fintrader.config import (
    SettingsT,
    describe_problem,
    is_url,
    list_models,
    list_settings,
    unwrap_annotation,
)
from fintrader.errors import ConfigError, TournamentError
from fintrader.runs import RunFolder
from fintrader.yaml_text import parse_yaml

if TYPE_CHECKING:
    from fintrader.market.data_config import Choices, DataConfig
    from fintrader.pipeline.config import RunConfig

T = TypeVar("T", bound=BaseModel)
_SHORT = {"from_run": "from", "vendor": "from", "as_json": "json", "print_only": "print"}
"""Options with names that no field can have, by field."""
HELP = {"-h", "--help", "--help-all"}


class Option(NamedTuple):
    """A setting that the command line can give."""

    path: tuple[str, ...]
    """Names of the fields that lead to it, outermost first."""
    annotation: Any
    """Its type, without `| None`."""
    optional: bool
    """True where it may be None."""
    default: Any
    """Its value in the configuration."""
    about: str
    """Its help text."""

    @property
    def name(self) -> str:
        """The typed name: `--env.num-envs`."""
        path = (_SHORT.get(self.path[0], self.path[0]), *self.path[1:])
        return "--" + ".".join(path).replace("_", "-")

    @property
    def is_flag(self) -> bool:
        return self.annotation is bool

    def read(self, words: Sequence[str]) -> Any:
        """Read the value in `words`, for pydantic to convert and check. Raises ConfigError."""
        if self.is_flag:
            return self._read_flag(words)
        if not words:
            raise ConfigError(f"{self.name} needs a value: {describe_shape(self)}")
        if len(words) == 1 and self.optional and words[0] in ("None", "null"):
            return None
        may_map = any(map(_is_mapping, get_args(self.annotation)))
        is_yaml = len(words) == 1 and words[0][:1] in ("[", "{")
        if is_yaml and (may_map or _holds_several(self.annotation)):
            return parse_yaml(words[0], self.name)
        if _is_mapping(self.annotation) or (may_map and "=" in words[0]):
            pairs = [word.partition("=") for word in words]
            wrong = [name for name, equals, _ in pairs if not equals]
            if wrong:
                raise ConfigError(f"{self.name}: expected NAME=VALUE, got {wrong[0]!r}")
            return {name: value for name, _, value in pairs}
        if _holds_several(self.annotation):
            return list(words)
        if len(words) > 1:
            raise ConfigError(f"{self.name} takes one value, got {' '.join(map(repr, words))}")
        return words[0]

    def _read_flag(self, words: Sequence[str]) -> bool:
        """Read true, false, or true from no word at all."""
        try:
            return TypeAdapter(bool).validate_python(" ".join(words) or True)
        except ValidationError:
            raise ConfigError(
                f"{self.name}: expected true, false or nothing after it, got {' '.join(words)!r}"
            ) from None


def list_options(model: BaseModel, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """List every setting of `model` and of the models in its fields; a union counts as the model
    that it holds."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from list_options(value, (*path, name))
        elif not (len(list_models(field.annotation)) == 1 and isinstance(field.annotation, type)):
            annotation, optional = unwrap_annotation(field.annotation)
            about = " ".join((field.description or "").split())
            yield Option((*path, name), annotation, optional, value, about)


def _holds_several(annotation: Any) -> bool:
    return (
        _is_mapping(annotation)
        or get_origin(annotation) in (tuple, list)
        or bool(list_models(annotation))
    )


def _is_mapping(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def describe_shape(option: Option) -> str:
    """Describe an option's value: `N`, `{a,b}`, `YYYY-MM-DD ...`; nothing for a flag."""
    return "" if option.is_flag else _describe_type(option.annotation)


def _describe_type(annotation: Any) -> str:
    annotation, _ = unwrap_annotation(annotation)
    origin = get_origin(annotation)
    inside = get_args(annotation)
    if origin is Literal:
        return "{" + ",".join(map(str, inside)) + "}"
    if _is_mapping(annotation):
        return "NAME=VALUE ..."
    if origin is tuple:
        shapes = [_describe_type(kind) for kind in inside if kind is not Ellipsis]
        return f"{shapes[0]} ..." if Ellipsis in inside else " ".join(shapes)
    if origin in (Union, UnionType) and not list_models(annotation):
        return "|".join(dict.fromkeys(map(_describe_type, inside)))
    names = {
        "int": "N",
        "float": "X",
        "str": "TEXT",
        "date": "YYYY-MM-DD",
        "Path": "PATH",
        "bool": "true|false",
    }
    return names.get(getattr(annotation, "__name__", ""), "YAML")


# --- words to settings ----------------------------------------------------------------------------


def parse(default: T, argv: Sequence[str], command: str, extra: Sequence[str] = ()) -> T:
    """Return `default`, changed by the options of `argv`. An option of several values may be given
    several times. `extra` are names of options that other parts of the command read.

    Raises ConfigError, one line that names the typed option.
    """
    known = {option.name: option for option in list_options(default)}
    values = default.model_dump(mode="json")
    typed = {}
    words = list(argv)
    while words:
        word, equals, value = words.pop(0).partition("=")
        if not word.startswith("--"):
            raise ConfigError(
                f"{word!r}: `fintrader {command}` takes settings from here on, like --name VALUE"
            )
        option = known.get(word.replace("_", "-"))
        if option is None:
            raise ConfigError(_explain_unknown(word, default, extra))
        behind = [value] if equals else []
        while not equals and words and not words[0].startswith("--"):
            behind.append(words.pop(0))
        below = values
        *path, last = option.path
        for name in path:
            below = below[name]
        read = option.read(behind)
        dotted = ".".join(option.path)
        is_more = dotted in typed and isinstance(read, list)
        below[last] = [*below[last], *read] if is_more else read
        typed[dotted] = word
    if not typed:
        return default
    try:
        return type(default).model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            _name_as_typed(describe_problem(type(default), error, prefer=typed), typed)
        ) from None


def _name_as_typed(problem: str, typed: Mapping[str, str]) -> str:
    """Name the typed option in a problem: `env.num_envs: ...` becomes `--env.num-envs: ...`."""
    field, colon, rest = problem.partition(": ")
    found = max(
        (path for path in typed if f"{field}.".startswith(f"{path}.")), key=len, default=None
    )
    return f"{typed[found]}{colon}{rest}" if found else problem


def _explain_unknown(word: str, default: BaseModel, extra: Sequence[str]) -> str:
    name = word.removeprefix("--").replace("_", "-")
    anywhere = {other.replace("_", "-") for other in list_settings(type(default))}
    place = name.rpartition(".")[0]
    if name in anywhere and place:  # --from has another name in a file, from_run
        section: Any = default
        for part in place.replace("-", "_").split("."):
            section = getattr(section, part, ...)
        if section is None:
            last = name.rpartition(".")[2].replace("-", "_")
            return f"{word}: {place} is not set; write it into the file: {place}: {{{last}: ...}}"
        kind = {"agent": "agent.algo", "env": "env.kind"}.get(
            place.split(".")[0], "data.source.kind"
        )
        return f"{word}: no setting of the present {place}; choose another --{kind} first"
    known = [*(option.name[2:] for option in list_options(default)), *extra]
    sections = {known_name.rpartition(".")[0] for known_name in known}
    if name in sections:
        first = next(f"--{below}" for below in known if below.startswith(f"{name}."))
        return f"{word}: a section of settings; give one of them, e.g. {first}"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    ends = [other for other in known if other.rpartition(".")[2] == name]
    if ends or close:
        return f"{word}: unknown setting; did you mean --{(ends or close)[0]}?"
    return f"{word}: unknown setting; `--help-all` lists the settings"


# --- configurations -------------------------------------------------------------------------------


def take_argument(command: str, name: str, argv: list[str]) -> tuple[str, list[str]]:
    """Split off the first argument, which must be no option. Raises ConfigError."""
    if not argv or argv[0].startswith("-") or not argv[0]:
        raise ConfigError(f"`fintrader {command}` needs {name} as its first argument")
    return argv[0], argv[1:]


def parse_config(command: str, argv: list[str]) -> RunConfig:
    """Read CONFIG and its overrides as a run's settings. Raises ConfigError."""
    from fintrader.pipeline.config import CHOICES, load_config

    return _parse_file(command, argv, load_config, CHOICES)


def parse_data_config(command: str, argv: list[str]) -> DataConfig:
    """Read CONFIG and its overrides, as far as they concern bars. Raises ConfigError."""
    from fintrader.market.data_config import DATA_CHOICES, load_data_config

    return _parse_file(command, argv, load_data_config, DATA_CHOICES)


def _parse_file(
    command: str,
    argv: list[str],
    load: Callable[[str, Mapping[str, str]], T],
    choices: Choices,
) -> T:
    path, rest = take_argument(command, "CONFIG", argv)
    rest, chosen = take_choices(rest, choices)
    return parse(load(path, chosen), _without_dates(rest), command, list(choices))


def take_choices(argv: list[str], choices: Choices) -> tuple[list[str], dict[str, str]]:
    """Take out the options that choose a settings model; return the other words and the choices.

    The chosen model decides which further options exist. Raises ConfigError for a choice without a
    value.
    """
    rest = []
    chosen = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and key in choices:
            value = value if equals else next(words, "")
            if not value or value.startswith("--"):
                raise ConfigError(f"{name} needs a value: {', '.join(choices[key])}")
            chosen[key] = value
        else:
            rest.append(word)
    return rest, chosen


def _without_dates(argv: list[str]) -> list[str]:
    """Drop a file's dates where fractions are typed, which the dates would overrule."""
    given = {word.partition("=")[0] for word in argv}
    windows = [f"--data.windows.{name}" for name in ("train", "validation", "test")]
    if "--data.windows.fractions" not in given or given & set(windows):
        return argv
    return [*argv, *(word for window in windows for word in (window, "None"))]


def take_options(defaults: SettingsT, argv: list[str], command: str) -> tuple[SettingsT, list[str]]:
    """Split off the options of `defaults` from those of a configuration. A flag takes no value
    here."""
    own = []
    rest = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        field = type(defaults).model_fields.get(name.removeprefix("--").replace("-", "_"))
        if field is None or not name.startswith("--"):
            rest.append(word)
            continue
        own.append(word)
        if not equals and field.annotation is not bool and words:
            own.append(words.pop(0))
    return parse(defaults, own, command), rest


def parse_argument(
    command: str, defaults: SettingsT, argv: list[str], name: str = "RUN_DIR"
) -> tuple[str, SettingsT]:
    """Read the argument called `name`, and the options after it."""
    argument, rest = take_argument(command, name, argv)
    return argument, parse(defaults, rest, command)


def open_folder(name: str) -> RunFolder:
    """Open the folder of a run given by its path or URL. Raises TournamentError when there is
    none."""
    if is_url(name):
        from fintrader.pipeline.session import open_run

        return RunFolder(open_run(name))
    path = Path(name)
    if not path.is_dir():
        problem = "a file" if path.is_file() else "no such folder"
        raise TournamentError(f"{name}: {problem}; give the folder of a run")
    return RunFolder(path)
