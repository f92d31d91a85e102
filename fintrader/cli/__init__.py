"""The `fintrader` command: the same settings models that a YAML configuration fills, as options.

    fintrader run configs/quickstart.yaml --env.num-envs 64

Values come from three places, later ones win: the models' defaults, the YAML file, the command
line. A mistake in any of them is one line on standard error and exit status 2; an interruption
(Ctrl-C) is 130, SIGTERM 143.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

from fintrader import logs, reproducible
from fintrader.cli import (
    checks,
    commands,
    deployments,
    detect_bars,
    help,
    run_folders,
    start,
    tournaments,
)
from fintrader.cli.options import HELP
from fintrader.errors import ConfigError, FintraderError


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; exits with a status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # torch, not imported yet: threads of small networks wait for others
    with logs.use_format():
        _main(argv)


class Terminated(KeyboardInterrupt):
    """SIGTERM: somebody wants this machine back, e.g. a cluster that drains a node."""


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _main(argv: list[str]) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGTERM, _terminated
        )  # as the first process of a container it would do nothing
    try:
        dispatch(argv)
    except reproducible.RestartNeeded as error:
        if argv == sys.argv[1:]:  # this process is the command
            reproducible.restart()
        _complain(one_line(str(error)))
        sys.exit(2)
    except FintraderError as error:
        _complain(one_line(str(error)))
        sys.exit(2)
    except KeyboardInterrupt as stop:
        _complain("interrupted; the same command goes on from here")
        sys.exit(143 if isinstance(stop, Terminated) else 130)
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in _PLACES:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _complain(
            one_line(
                f"{where}{error.strerror}; free space or rights there, or choose another folder"
            )
        )
        sys.exit(2)


_PLACES = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
}
"""What is wrong with a disk or its rights, wherever it shows: a user can mend it, so it is no
bug."""


def _complain(text: str) -> None:
    if logs.is_structured():
        logging.getLogger("fintrader").error(text)
    else:
        print(f"fintrader: {text}", file=sys.stderr)


def dispatch(argv: list[str]) -> None:
    """Find the command that `argv` begins with and run it on the rest."""
    if not argv or argv[0] in {*HELP, "help"}:
        print(help.overview())
        return
    if argv[0] == "--version":
        from fintrader import __version__

        print(f"fintrader {__version__}")
        return
    if argv[0] == "--completion":
        print(help.completion(_COMMANDS, argv[1] if argv[1:] else ""))
        return
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in _COMMANDS:
            rest = argv[words:]
            if HELP & set(rest):
                print(help.of_command(name, _COMMANDS[name], rest))
            else:
                _COMMANDS[name](rest)
            return
    name = argv[0]
    subcommands = [command for command in _COMMANDS if command.startswith(name + " ")]
    if subcommands:
        raise ConfigError(f"{name!r} needs one of: {', '.join(c.split()[1] for c in subcommands)}")
    close = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`fintrader --help` lists the commands"
    raise ConfigError(f"{name!r} is no command; {hint}")


_VERBS: tuple[tuple[str, str, str], ...] = (
    ("run", "run", "bars to backtest, all stages; again after a kill, it goes on where it was."),
    (
        "train",
        "train_one",
        "one agent, no tournament, for the budget of a pod; scored on the validation window.",
    ),
    ("tournament", "run_tournament", "data and tournament, without the look at the test window."),
    (
        "walkforward",
        "walk_forward",
        "train, choose, test, roll on; each fold a tournament, all test windows one backtest.",
    ),
)
"""Commands that are one verb of the pipeline: name, verb, what it does."""


def _compare_data(argv: list[str]) -> None:
    """A B [--json] [--out DIR]: two sources of bars, cell by cell; minutes against days too. A page
    with a heat map."""
    from fintrader.cli.data_compare import compare_data

    compare_data(argv)


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "init": detect_bars.init,
    **{name: commands.verb(name, verb, about) for name, verb, about in _VERBS},
    "backtest": commands.backtest,
    "data build": commands.build_data,
    "data quality": commands.report_quality,
    "data compare": _compare_data,
    "lookahead": commands.lookahead,
    "looks": commands.looks,
    "verify": checks.verify,
    "compare": commands.compare,
    "status": tournaments.status,
    "runs": run_folders.edit_run,
    "export": tournaments.export,
    "paper": deployments.paper,
    "live": deployments.live,
    "halt": deployments.halt,
    "resume": deployments.resume,
    "flatten": deployments.flatten,
    "app": start.app,
}


def one_line(text: str) -> str:
    return " ".join(text.split())
