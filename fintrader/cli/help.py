"""What `fintrader` says of itself: its commands on one screen, a command's usual settings on one
more, all of them on request, and completion scripts for shells.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from fintrader.cli.options import Option, options_of, shape
from fintrader.errors import ConfigError

Command = Callable[[list[str]], None]

GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "run",
        (
            ("init", "FILE: find out how bars of your own are read, write a configuration"),
            ("run", "CONFIG: from bars to a verdict; killed, the same command goes on"),
            ("walkforward", "CONFIG: train, choose, test, roll on; each fold a tournament"),
            ("train, tournament", "CONFIG: one agent; all but the look at the test window"),
            ("backtest", "RUN: backtest what a run found again, e.g. at other costs"),
        ),
    ),
    (
        "look",
        (
            ("app", "the app on your runs, in a browser"),
            ("status", "RUN|NAME: how far it is, who leads; a pod's lineage; drift"),
            ("compare", "RUN RUN ...: several backtests on one page"),
            ("runs", "RUN: its note and tags; put it aside; delete it"),
            ("export", "RUN: a policy for programs without PyTorch; curves for TensorBoard"),
        ),
    ),
    (
        "doubt",
        (
            ("verify", "PATH: recount a run; make a report again; check bars and markets"),
            ("lookahead", "CONFIG: change the future, see whether the past notices"),
            ("looks", "how often each window was looked at, by all runs"),
        ),
    ),
    (
        "data",
        (
            ("data build", "CONFIG: make the market file, or print what it would read; prune"),
            ("data quality", "CONFIG: every hole and fault of the bars"),
            ("data compare", "A B: two sources of bars, cell by cell"),
        ),
    ),
    (
        "trade",
        (
            ("paper", "RUN: trade it on, as a replay or on paper; or seal its policy"),
            ("live", "NAME: real money (closed)"),
            ("halt, resume, flatten", "NAME: order nothing more; go on; sell everything"),
        ),
    ),
)
"""What the overview says, group by group: commands and what they take and do."""

_RUN = "fintrader.pipeline.config:RunConfig"
_DATA = "fintrader.market.data_config:DataConfig"
SETTINGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("run", "train", "tournament", "walkforward", "backtest"), (_RUN,)),
    "data build": ("fintrader.cli.commands:BuildOptions", _DATA),
    "data quality": (_DATA,),
    "lookahead": ("fintrader.backtesting.settings:LookaheadSettings", _RUN),
    "data compare": ("fintrader.cli.data_compare:CompareOptions",),
    "init": ("fintrader.cli.detect_bars:InitOptions",),
    "paper": ("fintrader.cli.deployments:PaperOptions", "fintrader.deploy.settings:PaperSettings"),
    "live": ("fintrader.deploy.settings:LiveSettings",),
    **dict.fromkeys(("halt", "resume", "flatten"), ("fintrader.cli.deployments:PlaceOptions",)),
    "app": ("fintrader.cli.start:AppSettings",),
    "status": ("fintrader.cli.tournaments:StatusOptions",),
    "looks": ("fintrader.cli.commands:LooksOptions",),
    "runs": ("fintrader.cli.run_folders:RunsOptions",),
    "verify": ("fintrader.cli.checks:VerifyOptions",),
    "export": ("fintrader.cli.tournaments:ExportOptions",),
}
"""Command -> the models whose settings it takes."""
USUAL = (
    "name",
    "seed",
    "device",
    "runs_dir",
    "from_run",
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
    "cuts",
    "prefixes",
    "dry_run",
    "prune",
    "yes",
    "data.bar_minutes",
    "data.hours",
    "data.waive",
)
"""Settings that short help names, of models with more than a screen of them."""
SCREEN = 28


def overview() -> str:
    """All commands on one screen."""
    lines = [
        "usage: fintrader COMMAND ...",
        "",
        "Train trading agents in a tournament, and believe the result.",
    ]
    for title, rows in GROUPS:
        lines.append(f"{title}:")
        lines += [f"  {names:<27} {about}" for names, about in rows]
    lines += [
        "",
        "`fintrader COMMAND --help` shows the usual settings, `--help-all` every one. `--version`.",
        "`fintrader --completion SHELL` prints a script that completes words on Tab.",
    ]
    return "\n".join(lines)


def of_command(name: str, command: Command, argv: Sequence[str]) -> str:
    """What `fintrader NAME --help` prints, or `--help-all [SECTION]`: of CONFIG, if one stands
    before it."""
    takes, about = _said(command)
    head = [f"usage: fintrader {name} {takes}", "", *textwrap.wrap(about, _width())]
    options = [option for model in defaults(name, argv) for option in options_of(model)]
    if not options:
        return "\n".join(head)
    if "--help-all" in argv:
        below = [word for word in argv[argv.index("--help-all") + 1 :] if not word.startswith("-")]
        chosen = [
            one
            for one in options
            if not below or one.name[2:].startswith(below[0].removeprefix("--"))
        ]
        if not chosen:
            raise ConfigError(
                f"--help-all {below[0]}: no setting begins so; the sections are"
                f" {_sections(options)}"
            )
        return "\n".join([*head, "", *_in_full(chosen)])
    usual = (
        options
        if len(options) <= SCREEN
        else [one for one in options if ".".join(one.path) in USUAL]
    )
    if len(options) > SCREEN and len(usual) < 5:
        usual = [one for one in options if len(one.path) == 1]
    lines = [*head, "", *(_in_short(one) for one in usual)]
    if usual is not options:
        lines += [
            "",
            (
                f"{len(options)} settings in all; `--help-all` explains every one, `--help-all"
                " SECTION` those of"
            ),
        ]
        lines += textwrap.wrap(_sections(options), _width())
    if choices := [
        f"--{key} {'|'.join(models)}"
        for key, models in _choices(name).items()
        if "preset" not in key
    ]:
        lines += ["Which settings there are depends on", *(f"  {one}" for one in choices)]
    return "\n".join(lines)


def defaults(name: str, argv: Sequence[str] = ()) -> Iterator[BaseModel]:
    """The models whose settings a command takes, as they are before anything is typed."""
    for reference in SETTINGS.get(name, ()):
        module, _, model = reference.partition(":")
        made: BaseModel = getattr(import_module(module), model)()
        yield _loaded(reference, argv) or made


def _loaded(reference: str, argv: Sequence[str]) -> BaseModel | None:
    """What the configuration that was named, and the choices behind it, make of a run's
    settings."""
    from fintrader.cli.options import take_choices

    if reference not in (_RUN, _DATA) or not argv or argv[0].startswith("-"):
        return None
    home = import_module(reference.partition(":")[0])
    load, choices = (
        (home.load_config, home.CHOICES)
        if reference == _RUN
        else (home.load_data_config, home.DATA_CHOICES)
    )
    loaded: BaseModel = load(argv[0], take_choices(list(argv[1:]), choices)[1])
    return loaded


def _choices(name: str) -> Mapping[str, Any]:
    if _RUN in SETTINGS.get(name, ()):
        from fintrader.pipeline.config import CHOICES

        return CHOICES
    if _DATA in SETTINGS.get(name, ()):
        from fintrader.market.data_config import DATA_CHOICES

        return DATA_CHOICES
    return {}


def _said(command: Command) -> tuple[str, str]:
    """What a command takes, and what it does, from its docstring `TAKES: about`."""
    takes, _, about = " ".join((command.__doc__ or "").split()).partition(": ")
    return takes, f"{about[:1].upper()}{about[1:]}"


def _width() -> int:
    return max(80, min(120, shutil.get_terminal_size((80, 24)).columns))


def _sections(options: Sequence[Option]) -> str:
    return ", ".join(
        dict.fromkeys(
            option.path[0].replace("_", "-") for option in options if len(option.path) > 1
        )
    )


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_plain, value))
    return str(value).lower() if isinstance(value, bool) else "–" if value is None else str(value)


def _in_short(option: Option) -> str:
    left = f"  {option.name} {shape(option)}".rstrip()
    left = left if len(left) <= 36 else f"{left[:35]}…"
    default = _plain(option.default)
    about = f"[{default}] {option.about}" if default else option.about
    return f"{left:<36} {textwrap.shorten(about, _width() - 37, placeholder=' …')}"


def _in_full(options: Sequence[Option]) -> Iterator[str]:
    for option in options:
        yield f"{option.name} {shape(option)}".rstrip()
        default = _plain(option.default)
        said = f"{option.about} (default: {default})" if default else option.about
        yield from textwrap.wrap(said, _width(), initial_indent="    ", subsequent_indent="    ")


# --- completion -----------------------------------------------------------------------------------

SHELLS = {
    "bash": 'eval "$(fintrader --completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(fintrader --completion zsh)" in ~/.zshrc, after compinit',
    "fish": "fintrader --completion fish > ~/.config/fish/completions/fintrader.fish",
}
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


def completion(commands: Mapping[str, Command], shell: str) -> str:
    """A script that completes commands, settings and files. Raises ConfigError for a shell that is
    not known."""
    if shell not in SHELLS:
        raise ConfigError(f"--completion: {shell!r} is unknown; choose one of {', '.join(SHELLS)}")
    words = {name: _words(name, command) for name, command in commands.items()}
    first = list(dict.fromkeys(name.split()[0] for name in commands))
    groups: dict[str, list[str]] = {}
    for group, _, rest in (name.partition(" ") for name in commands):
        if rest:
            groups.setdefault(group, []).append(rest)
    if shell == "fish":
        lines = [f"complete -c fintrader -n __fish_use_subcommand -a '{' '.join(first)}'"]
        seen = "__fish_seen_subcommand_from"
        lines += [
            f"complete -c fintrader -n '{seen} {one}' -a '{' '.join(rest)}'"
            for one, rest in groups.items()
        ]
        for name, options in words.items():
            when = "; and ".join(f"{seen} {part}" for part in name.split())
            lines += [f"complete -c fintrader -n '{when}' -l {option[2:]}" for option in options]
        return "\n".join(lines) + "\n"
    cases = {f'"{name}"': options for name, options in words.items()}
    cases |= {f'"{group} "*': [*rest, *words.get(group, ())] for group, rest in groups.items()}
    said = "\n".join(f'  {pattern}) words="{" ".join(one)}";;' for pattern, one in cases.items())
    script = _BASH % {"groups": "|".join(groups), "first": " ".join(first), "cases": said}
    return script if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def _words(name: str, command: Command) -> list[str]:
    options = [option.name for model in defaults(name) for option in options_of(model)]
    chosen = [f"--{key.replace('_', '-')}" for key in _choices(name)]
    own = re.findall(r"--[a-z-]+", _said(command)[0])
    return sorted({*options, *chosen, *own, "--help", "--help-all"} - {"--overrides"})
