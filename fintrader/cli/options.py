"""Command-line words to settings: tyro parses, and what it complains about becomes one line that names the field."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fintrader.config import SettingsT, models_in
from fintrader.errors import ConfigError

if TYPE_CHECKING:
    from fintrader.data.data_config import Choices, DataConfig
    from fintrader.pipeline.config import RunConfig


T = TypeVar("T")
_VALIDATION = re.compile(r"Error parsing (?:--)?(\S+): [A-Z]\w*: (?:([\w.]+): )?(.*)")
"""What tyro makes of a `Settings` error: the option's group, the model, and the field and its problem."""


def positional(
    command: str, what: str, argv: list[str], show_help: Callable[[], object] | None = None
) -> tuple[str, list[str]]:
    """The first argument, which must be no option. Where help was asked for in its place: that, and exit status 0."""
    if argv and argv[0] in {"-h", "--help"}:
        show_help() if show_help else print(f"usage: fintrader {command} {what}")
        sys.exit(0)
    if not argv or argv[0].startswith("-"):
        raise ConfigError(f"`fintrader {command}` needs {what} as its first argument")
    return argv[0], argv[1:]


def parse_config(command: str, argv: list[str]) -> RunConfig:
    """CONFIG and its overrides as a run's settings. Raises ConfigError."""
    from fintrader.pipeline.config import CHOICES, RunConfig, load_config

    return _parse_config(command, argv, RunConfig, load_config, CHOICES)


def parse_data_config(command: str, argv: list[str]) -> DataConfig:
    """CONFIG and its overrides, as far as they concern bars. Raises ConfigError."""
    from fintrader.data.data_config import DATA_CHOICES, DataConfig, load_data_config

    return _parse_config(command, argv, DataConfig, load_data_config, DATA_CHOICES)


def _parse_config(
    command: str, argv: list[str], model: type[T], load: Callable[[Path, dict[str, str]], T], choices: Choices
) -> T:
    usage = f"{command} CONFIG"
    path, rest = positional(command, "CONFIG", argv, lambda: _tyro(model, model(), ["--help"], usage, choices))
    rest, chosen = _take_choices(rest, choices)
    rest = _without_dates(rest)
    return parse(model, load(Path(path), chosen), rest, usage, choices)


def _take_choices(argv: list[str], choices: Choices) -> tuple[list[str], dict[str, str]]:
    """Split off options that choose *which* settings model stands in a place (they decide the other options)."""
    rest: list[str] = []
    chosen: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and key in choices:
            value = value if equals else next(words, "")
            if not value:
                raise ConfigError(f"{name} needs a value: {', '.join(choices[key])}")
            chosen[key] = value
        else:
            rest.append(word)
    return rest, chosen


def _without_dates(argv: list[str]) -> list[str]:
    """Fractions that are asked for here stand in place of a file's dates, which would overrule them."""
    given = {word.partition("=")[0] for word in argv}
    windows = [f"--data.windows.{name}" for name in ("train", "validation", "test")]
    if "--data.windows.fractions" not in given or given & set(windows):
        return argv
    return [*argv, *(word for window in windows for word in (window, "None"))]


def help_config(usage: str) -> None:
    """Print what a command that takes a run's settings knows."""
    from fintrader.pipeline.config import CHOICES, RunConfig

    _tyro(RunConfig, RunConfig(), ["--help"], usage, CHOICES)


def _tyro(model: type[T], default: T, argv: Sequence[str], command: str, choices: Choices | None = None) -> T:
    import tyro

    about = (model.__doc__ or "").strip()
    if choices:
        said = "; ".join(f"--{name} {'|'.join(values)}" for name, values in choices.items())
        about = f"{about}\n\nChoosing another one of these changes which further settings there are: {said}"
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
    return tyro.cli(
        model, default=default, args=list(argv), prog=f"fintrader {command}", config=config, description=about
    )


def parse(model: type[T], default: T, argv: Sequence[str], command: str, choices: Choices | None = None) -> T:
    """`default` with the options of `argv` over it. Raises ConfigError, one line, for anything wrong."""
    if any(word in {"-h", "--help"} for word in argv):
        return _tyro(model, default, ["--help"], command, choices)
    said = io.StringIO()
    try:
        with _wide(), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return _tyro(model, default, argv, command)
    except SystemExit:
        raise ConfigError(_reduce(said.getvalue(), model)) from None


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """Keep tyro from wrapping its messages, so that they can be read back as one line."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "4000"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _reduce(message: str, model: type[Any]) -> str:
    """tyro's boxed message as one line that names the option and what to do."""
    lines = [re.sub(r"^[|│╭╰+\s]+|[|│╮╯+\s]+$|[-─]{5,}", "", line).strip() for line in message.splitlines()]
    lines = [line for line in lines if line]
    text = " ".join(lines[1:] if len(lines) > 1 else lines)  # the first line is the box's title
    if unknown := re.search(r"Unrecognized options: (--\S+?)[,\s]", text + " "):
        option = unknown.group(1).split("=")[0]
        known = list(_options(model))
        if option.removeprefix("--") in known:
            other = " (or choose another --data.source.kind first)" if option.startswith("--data.source.") else ""
            return f"{option}: cannot be set on the command line; set it in the configuration file{other}"
        close = difflib.get_close_matches(option.removeprefix("--"), known, n=1, cutoff=0.5)
        hint = f"did you mean --{close[0]}?" if close else "`--help` lists the settings"
        return f"{option}: unknown setting; {hint}"
    text = re.sub(r"\s*(Argument helptext:|For full helptext).*", "", text)
    if broken := _VALIDATION.search(text):
        group, field, problem = broken.groups()
        return f"{'.'.join(part for part in (group, field) if part and part != 'root')}: {problem}"
    return text.removeprefix("Error parsing ")


def _options(model: Any, prefix: str = "") -> Iterator[str]:
    """Dotted, dashed names of all options below a settings model."""
    for name, field in model.model_fields.items():
        dashed = f"{prefix}{name.replace('_', '-')}"
        yield dashed
        for below in models_in(field.annotation):
            yield from _options(below, dashed + ".")


def with_options(command: str, defaults: SettingsT, argv: list[str], of: str = "RUN_DIR") -> tuple[str, SettingsT]:
    """The argument (`of`) and the options after it."""

    def options(words: list[str]) -> SettingsT:
        return parse(type(defaults), defaults, words, f"{command} {of}")

    folder, rest = positional(command, of, argv, lambda: options(["--help"]))
    return folder, options(rest)
