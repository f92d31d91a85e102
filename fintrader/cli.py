"""The `fintrader` command: tyro over the same settings models that a YAML configuration fills.

    fintrader run configs/quickstart.yaml --env.num-envs 64

Values come from three places, later ones win: the models' defaults, the YAML file, the command line. A mistake in
any of them is one line on standard error and exit status 2; an interruption (Ctrl-C) is 130.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from fintrader.config import Settings, models_in
from fintrader.errors import ConfigError, FintraderError

if TYPE_CHECKING:
    from fintrader.pipeline import RunConfig

T = TypeVar("T")
_VALIDATION = re.compile(
    r"Error parsing (\S+): \d+ validation errors? for \S+ (?:(\S+) )?(.*?) \[type=\w+, input_value=(.*?), input_type"
)


class AppSettings(Settings):
    """Where the app looks and listens."""

    runs_dir: Path = Path("runs")
    """Folder that holds the runs."""
    port: int = Field(8501, ge=1, le=65535)
    """Port on the loopback interface."""
    headless: bool = False
    """Do not open a browser."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; exits with a status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        dispatch(argv)
    except FintraderError as error:
        print(f"fintrader: {_one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("fintrader: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def dispatch(argv: list[str]) -> None:
    """Find the command that `argv` begins with and run it on the rest."""
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(_overview())
        return
    if argv[0] == "--version":
        from fintrader import __version__

        print(f"fintrader {__version__}")
        return
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in _COMMANDS:
            _COMMANDS[name](argv[words:])
            return
    name = argv[0]
    subcommands = [command for command in _COMMANDS if command.startswith(name + " ")]
    if subcommands:
        raise ConfigError(f"{name!r} needs one of: {', '.join(c.split()[1] for c in subcommands)}")
    close = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`fintrader --help` lists the commands"
    raise ConfigError(f"{name!r} is no command; {hint}")


# --- commands --------------------------------------------------------------------------------------------------


def _run(argv: list[str]) -> None:
    """CONFIG [--overrides]: bars to backtest, all stages; again after a kill, it goes on where it was."""
    from fintrader import pipeline

    pipeline.run(_parse_config("run", argv))


def _tournament(argv: list[str]) -> None:
    """CONFIG [--overrides]: data and tournament, without the look at the test window."""
    from fintrader import pipeline

    pipeline.run_tournament(_parse_config("tournament", argv))


def _data_build(argv: list[str]) -> None:
    """CONFIG [--overrides]: build the market file, or say that it is there already."""
    from fintrader import pipeline

    pipeline.build_data(_parse_config("data build", argv))


def _data_quality(argv: list[str]) -> None:
    """CONFIG [--overrides]: report every hole and fault of the bars, by symbol and day."""
    from fintrader import pipeline

    pipeline.report_quality(_parse_config("data quality", argv))


def _backtest(argv: list[str]) -> None:
    """RUN_DIR [--overrides]: backtest a run's ensemble and best pod again, from the stored policies."""
    from fintrader import pipeline

    folder, rest = _positional("backtest", "RUN_DIR", argv)
    if folder is None:
        _help_config("backtest RUN_DIR")
        return
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder}: no run lies here (it would hold config.yaml); give the folder of a run")
    pipeline.backtest_run(
        Path(folder), _parse(pipeline.RunConfig, pipeline.load_config(path), rest, "backtest RUN_DIR")
    )


def _app(argv: list[str]) -> None:
    """[--runs-dir DIR] [--port N]: open the Streamlit app, on loopback."""
    settings = _parse(AppSettings, AppSettings(), argv, "app")
    try:
        from app.launch import serve
    except ImportError:
        raise ConfigError("the app is not part of this installation; install fintrader from its source tree") from None
    serve(settings.runs_dir, settings.port, headless=settings.headless or None)


def _bench(argv: list[str]) -> None:
    """NAME [arguments]: run benchmarks/NAME.py; its last line of output is one JSON object."""
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    if not names:
        raise ConfigError(
            "benchmarks come with the source tree: clone the repository and install it with `make install`"
        )
    name, rest = _positional("bench", f"NAME ({', '.join(names)})", argv)
    if name is None:
        print("usage: fintrader bench NAME [arguments]\n\nbenchmarks: " + ", ".join(names))
        return
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
        raise ConfigError(f"{name!r} is no benchmark; {hint}")
    sys.exit(subprocess.call([sys.executable, str(folder / f"{name}.py"), *rest]))


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "run": _run,
    "data build": _data_build,
    "data quality": _data_quality,
    "tournament": _tournament,
    "backtest": _backtest,
    "app": _app,
    "bench": _bench,
}


def _overview() -> str:
    lines = ["usage: fintrader COMMAND ...", "", "Train trading agents in a tournament, and believe the result.", ""]
    for name, command in _COMMANDS.items():
        lines.append(f"  {name:<14} {command.__doc__}")
    lines += ["", "`fintrader COMMAND --help` lists every setting, its type and its default."]
    return "\n".join(lines)


# --- parsing ---------------------------------------------------------------------------------------------------


def _positional(command: str, what: str, argv: list[str]) -> tuple[str | None, list[str]]:
    """The first argument, which must be no option; None when help was asked for in its place."""
    if argv and argv[0] in {"-h", "--help"}:
        return None, argv
    if not argv or argv[0].startswith("-"):
        raise ConfigError(f"`fintrader {command}` needs {what} as its first argument")
    return argv[0], argv[1:]


def _parse_config(command: str, argv: list[str]) -> RunConfig:
    from fintrader import pipeline

    path, rest = _positional(command, "CONFIG", argv)
    if path is None:
        _help_config(f"{command} CONFIG")
        sys.exit(0)
    rest, chosen = _take_choices(rest)
    return _parse(pipeline.RunConfig, pipeline.load_config(Path(path), chosen), rest, f"{command} CONFIG")


def _take_choices(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Split off options that choose *which* settings model stands in a place (they decide the other options)."""
    from fintrader import pipeline

    rest: list[str] = []
    chosen: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and key in pipeline.CHOICES:
            value = value if equals else next(words, "")
            if not value:
                raise ConfigError(f"{name} needs a value: {', '.join(pipeline.CHOICES[key])}")
            chosen[key] = value
        else:
            rest.append(word)
    return rest, chosen


def _help_config(usage: str) -> None:
    from fintrader import pipeline

    with contextlib.suppress(SystemExit):
        _tyro(pipeline.RunConfig, pipeline.RunConfig(), ["--help"], usage)


def _tyro(model: type[T], default: T, argv: Sequence[str], command: str) -> T:
    import tyro

    about = (model.__doc__ or "").strip()
    if "RUN" in command or "CONFIG" in command:
        from fintrader import pipeline

        choices = "; ".join(f"--{name} {'|'.join(values)}" for name, values in pipeline.CHOICES.items())
        about = f"{about}\n\nChoosing another one of these changes which further settings there are: {choices}"
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
    return tyro.cli(
        model, default=default, args=list(argv), prog=f"fintrader {command}", config=config, description=about
    )


def _parse(model: type[T], default: T, argv: Sequence[str], command: str) -> T:
    """`default` with the options of `argv` over it. Raises ConfigError, one line, for anything wrong."""
    if any(word in {"-h", "--help"} for word in argv):
        return _tyro(model, default, ["--help"], command)
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
            return f"{option}: cannot be set on the command line; set it in the configuration file"
        close = difflib.get_close_matches(option.removeprefix("--"), known, n=1, cutoff=0.5)
        hint = f"did you mean --{close[0]}?" if close else "`--help` lists the settings"
        return f"{option}: unknown setting; {hint}"
    if broken := _VALIDATION.search(text):
        place, field, what, value = broken.groups()
        name = ".".join(part for part in (place.removeprefix("--"), field) if part and part != "root")
        what = what.removeprefix("Value error, ")
        return f"{name}: {what[:1].lower()}{what[1:]}, got {value}"
    return re.sub(r"\s*(Argument helptext:|For full helptext).*", "", text).removeprefix("Error parsing ")


def _options(model: Any, prefix: str = "") -> Iterator[str]:
    """Dotted, dashed names of all options below a settings model."""
    for name, field in model.model_fields.items():
        dashed = f"{prefix}{name.replace('_', '-')}"
        yield dashed
        for below in models_in(field.annotation):
            yield from _options(below, dashed + ".")


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
