"""Help of `fintrader`: all commands on one screen, a command's usual settings on another, all of
them on request, and completion scripts for shells.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fintrader.cli.options import Option, describe_shape, list_options, take_choices
from fintrader.cli.registry import COMMANDS, DATA, GROUPS, RUN
from fintrader.errors import ConfigError

if TYPE_CHECKING:
    from fintrader.market.data_config import Choices

USUAL = (
    "name",
    "seed",
    "device",
    "runs_dir",
    "from_run",
    "search",
    "data.path",
    "data.start",
    "data.end",
    "data.windows.fractions",
    "env.cost_bps",
    "env.benchmark",
    "env.reward",
    "env.decision_interval",
    "env.num_envs",
    "agent.learning_rate",
    "tournament.pods",
    "tournament.workers",
    "tournament.budget.env_steps",
    "backtest.null_model",
    "launcher.kind",
    "store",
    "cache",
    "budget_minutes",
    "dry_run",
    "prune",
    "yes",
    "data.bar_minutes",
    "data.hours",
    "data.waive",
)
"""Settings in the short help of a command that has more than SCREEN of them."""
SCREEN = 28
"""Most settings of a command whose short help has all of them."""


def describe_commands() -> str:
    """Describe all commands on one screen."""
    lines = [
        "usage: fintrader COMMAND ...",
        "",
        "Train trading agents in a tournament, and believe the result.",
    ]
    for title, names in GROUPS.items():
        lines.append(f"{title}:")
        for name in names:
            argument = COMMANDS[name].takes.partition(" [")[0]
            left = name if argument.startswith("[") else f"{name} {argument.partition(',')[0]}"
            lines.append(f"  {left:<27} {COMMANDS[name].about.partition(';')[0]}")
    lines += [
        "",
        "`fintrader COMMAND --help` shows the usual settings, `--help-all` every one. `--version`.",
        "`fintrader --completion SHELL` prints a script that completes words on Tab.",
    ]
    return "\n".join(lines)


def describe_command(name: str, argv: Sequence[str]) -> str:
    """Describe a command for `--help`, or for `--help-all [SECTION]` with every setting.

    It shows the values of the configuration in `argv`, if there is one, else the defaults.
    """
    command = COMMANDS[name]
    about = f"{command.about[:1].upper()}{command.about[1:]}."
    head = [f"usage: fintrader {name} {command.takes}", "", *textwrap.wrap(about, _width()), ""]
    options = [option for model in _load_models(name, argv) for option in list_options(model)]
    if not options:
        return "\n".join(head[:-1])
    if "--help-all" in argv:
        return "\n".join(head + _describe_all(options, argv[argv.index("--help-all") + 1 :]))
    usual = options
    if len(options) > SCREEN:
        usual = [option for option in options if ".".join(option.path) in USUAL]
        if len(usual) < 5:
            usual = [option for option in options if len(option.path) == 1]
    lines = [*head, *map(_describe_shortly, usual)]
    if usual is not options:
        lines += [
            "",
            f"{len(options)} settings in all; `--help-all` explains every one, `--help-all SECTION`"
            " those of",
            *textwrap.wrap(_name_sections(options), _width()),
        ]
    choices = [
        f"  --{key} {'|'.join(models)}"
        for key, models in _list_choices(name).items()
        if "preset" not in key
    ]
    if choices:
        lines += ["These options decide which other settings there are", *choices]
    return "\n".join(lines)


def _describe_all(options: Sequence[Option], words: Sequence[str]) -> list[str]:
    """Describe every setting, or those of the section that the words name."""
    section = next((word for word in words if not word.startswith("-")), "")
    chosen = [option for option in options if option.name[2:].startswith(section)]
    if not chosen:
        raise ConfigError(
            f"--help-all {section}: no setting begins with that; the sections are"
            f" {_name_sections(options)}"
        )
    lines = []
    for option in chosen:
        lines.append(f"{option.name} {describe_shape(option)}".rstrip())
        default = _format_value(option.default)
        about = f"{option.about} (default: {default})" if default else option.about
        lines += textwrap.wrap(about, _width(), initial_indent="    ", subsequent_indent="    ")
    return lines


def _load_models(name: str, argv: Sequence[str] = ()) -> Iterator[BaseModel]:
    """Make the models whose fields are a command's options, with the values of the configuration
    that the words name."""
    place = argv[0] if argv and not argv[0].startswith("-") else ""
    if place and name == "backtest":  # it takes a run's folder
        stored = Path(place, "config.yaml")
        place = str(stored) if stored.is_file() else ""
    for reference in COMMANDS[name].settings:
        home, _, model = reference.partition(":")
        module = import_module(home)
        if place and reference in (RUN, DATA):
            load = module.load_config if reference == RUN else module.load_data_config
            yield load(place, take_choices(list(argv[1:]), _list_choices(name))[1])
        else:
            yield getattr(module, model)()


def _list_choices(name: str) -> Choices:
    if RUN in COMMANDS[name].settings:
        from fintrader.pipeline.config import CHOICES

        return CHOICES
    if DATA in COMMANDS[name].settings:
        from fintrader.market.data_config import DATA_CHOICES

        return DATA_CHOICES
    return {}


def _width() -> int:
    return max(80, min(120, shutil.get_terminal_size((80, 24)).columns))


def _name_sections(options: Sequence[Option]) -> str:
    return ", ".join(
        dict.fromkeys(
            option.path[0].replace("_", "-") for option in options if len(option.path) > 1
        )
    )


def _format_value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_format_value, value))
    return str(value).lower() if isinstance(value, bool) else "–" if value is None else str(value)


def _describe_shortly(option: Option) -> str:
    """Describe a setting by its first clause, to the right of its name, below a long one."""
    left = f"  {option.name} {describe_shape(option)}".rstrip()
    default = _format_value(option.default)
    clause = re.split(r"[.;] (?![^(]*\))", option.about, maxsplit=1)[0].removesuffix(".")
    about = f"[{default}] {clause}" if default else clause
    begin = f"{left:<36} " if len(left) <= 36 else " " * 37
    text = textwrap.fill(about, _width(), initial_indent=begin, subsequent_indent=" " * 37)
    return text if len(left) <= 36 else f"{left}\n{text}"


# --- completion -----------------------------------------------------------------------------------

SHELLS = ("bash", "zsh", "fish")
_BASH = """_fintrader() {
  local word="${COMP_WORDS[COMP_CWORD]}" name="${COMP_WORDS[1]}" words=""
  case "$name" in %(groups)s)
    if [ "$COMP_CWORD" -eq 2 ]; then name="$name "; else name="$name ${COMP_WORDS[2]}"; fi;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words="%(first)s"; else case "$name" in
%(cases)s
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ "${#COMPREPLY[@]}" -eq 0 ] && COMPREPLY=($(compgen -f -- "$word"))
}
complete -o filenames -F _fintrader fintrader
"""


def write_completion(shell: str) -> str:
    """Write a script that completes commands, settings and files. Raises ConfigError for an unknown
    shell."""
    if shell not in SHELLS:
        raise ConfigError(f"--completion: {shell!r} is unknown; choose one of {', '.join(SHELLS)}")
    words = {name: _list_words(name) for name in COMMANDS}
    first = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    groups: dict[str, list[str]] = {}
    for group, _, rest in (name.partition(" ") for name in COMMANDS):
        if rest:
            groups.setdefault(group, []).append(rest)
    if shell == "fish":
        lines = [f"complete -c fintrader -n __fish_use_subcommand -a '{' '.join(first)}'"]
        seen = "__fish_seen_subcommand_from"
        lines += [
            f"complete -c fintrader -n '{seen} {group}' -a '{' '.join(rest)}'"
            for group, rest in groups.items()
        ]
        for name, options in words.items():
            when = "; and ".join(f"{seen} {part}" for part in name.split())
            lines += [f"complete -c fintrader -n '{when}' -l {option[2:]}" for option in options]
        return "\n".join(lines) + "\n"
    patterns = {f'"{name}"': options for name, options in words.items()}
    patterns |= {f'"{group} "*': [*rest, *words.get(group, ())] for group, rest in groups.items()}
    cases = "\n".join(f'  {key}) words="{" ".join(found)}";;' for key, found in patterns.items())
    script = _BASH % {"groups": "|".join(groups), "first": " ".join(first), "cases": cases}
    return script if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def _list_words(name: str) -> list[str]:
    options = [option.name for model in _load_models(name) for option in list_options(model)]
    chosen = [f"--{key.replace('_', '-')}" for key in _list_choices(name)]
    own = re.findall(r"--[a-z-]+", COMMANDS[name].takes)
    return sorted({*options, *chosen, *own, "--help", "--help-all"} - {"--overrides"})
