"""The `fintrader` command: the same settings models that a YAML configuration fills, as options.

    fintrader run configs/quickstart.yaml --env.num-envs 64

Values come from three places, later ones win: the models' defaults, the YAML file, the command
line. A mistake prints one line on standard error, with exit status 2. Ctrl-C exits with 130,
SIGTERM with 143.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from fintrader import logs, reproducible
from fintrader.cli import help
from fintrader.cli.options import HELP
from fintrader.cli.registry import COMMANDS
from fintrader.errors import ConfigError, FintraderError, install_command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script; exit with a status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    # Set before torch is imported: threads slow small networks down.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with logs.use_format():
        _main(argv)


class Terminated(KeyboardInterrupt):
    """SIGTERM, for example from a cluster that drains a node."""


_stops: list[KeyboardInterrupt] = []
"""Interruptions of this command."""
_timers: list[threading.Timer] = []


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _stops.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
    raise _stops[-1]


def _interrupt_again(ignored: Any) -> None:
    """Interrupt again a moment after a callback of a C library swallowed an interruption, as
    numba's compiler does, in case nothing failed through it."""
    stop = ignored.exc_value
    if isinstance(stop, KeyboardInterrupt):
        number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        _timers.append(threading.Timer(0.1, os.kill, [os.getpid(), number]))
        _timers[-1].daemon = True
        _timers[-1].start()
    else:
        sys.__unraisablehook__(ignored)


def _run(argv: list[str]) -> None:
    """Run the command. An error that follows an interruption counts as that one: a library that is
    interrupted while it is imported seems to be missing."""
    try:
        dispatch(argv)
    except Exception:
        if not _stops:
            raise
        raise _stops[-1] from None
    finally:
        for timer in _timers:
            timer.cancel()


def _main(argv: list[str]) -> None:
    if threading.current_thread() is threading.main_thread():
        # Without a handler the first process of a container ignores the signal.
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _interrupt_again
        _stops.clear()
    try:
        _run(argv)
    except reproducible.RestartNeeded as error:
        if argv == sys.argv[1:]:  # this process is the command
            reproducible.restart()
        _complain(str(error))
        sys.exit(2)
    except FintraderError as error:
        _complain(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in _LEFT_OUT:
            raise
        _complain(f"this needs {error.name}, which is not installed: {install_command()}")
        sys.exit(2)
    except KeyboardInterrupt as stop:
        _complain("interrupted; run the same command again to resume")
        sys.exit(143 if isinstance(stop, Terminated) else 130)
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        from fintrader.runs import explain_failure

        _complain(explain_failure(error))
        sys.exit(2)


_LEFT_OUT = {"exchange_calendars", "numba", "safetensors", "torch", "yfinance"}
"""Libraries of fintrader that `requirements-judge.txt` leaves out."""
_DISK_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
}
"""Errors of a disk or its permissions: the user can mend them, so no traceback is shown."""


def _complain(text: str) -> None:
    """Report a mistake on one line."""
    text = " ".join(text.split())
    if logs.is_structured():
        logging.getLogger("fintrader").error(text)
    else:
        print(f"fintrader: {text}", file=sys.stderr)


def dispatch(argv: list[str]) -> None:
    """Find the command at the beginning of `argv`, and run it on the rest."""
    if not argv or argv[0] in {*HELP, "help"}:
        print(help.describe_commands())
        return
    if argv[0] == "--version":
        from fintrader import __version__

        print(f"fintrader {__version__}")
        return
    if argv[0] == "--completion":
        print(help.write_completion(argv[1] if argv[1:] else ""))
        return
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in COMMANDS:
            rest = argv[words:]
            if HELP & set(rest):
                print(help.describe_command(name, rest))
            else:
                COMMANDS[name].run(rest)
            return
    name = argv[0]
    subcommands = [command for command in COMMANDS if command.startswith(name + " ")]
    if subcommands:
        raise ConfigError(f"{name!r} needs one of: {', '.join(c.split()[1] for c in subcommands)}")
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`fintrader --help` lists the commands"
    raise ConfigError(f"{name!r} is no command; {hint}")
