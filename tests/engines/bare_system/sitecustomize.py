"""A Python without what only some operating systems have: for a process that finds this folder on
`PYTHONPATH`, and for all that it starts.

It stands for Windows as far as Linux can. Only filelock keeps `fcntl`, as it has locks of its own
there, and `os.register_at_fork` stays for torch, whose build for Linux asks for it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

import filelock  # noqa: F401 - loaded while fcntl is there

HIDDEN = ("/proc", "/sys")
MODULES = ("fcntl", "resource")
CALLS = (
    *("fork", "killpg", "nice", "pidfd_open", "sched_getaffinity", "sysconf"),
    *("pread", "preadv", "pwrite", "pwritev"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
)
SIGNALS = ("SIGHUP", "SIGKILL", "pidfd_send_signal")


def is_hidden(path: Any) -> bool:
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(HIDDEN)


def refuse_hidden(event: str, arguments: tuple[Any, ...]) -> None:
    """Hide files of the kernel from `open` and listings."""
    if event in ("open", "os.listdir", "os.scandir") and is_hidden(arguments[0]):
        raise FileNotFoundError(2, "hidden by the test", str(arguments[0]))


def hide(name: str) -> None:
    """Hide files of the kernel from a call that asks about a path; `os.open` takes no folder."""
    call = getattr(os, name)

    def looked_up(path: Any, *arguments: Any, **options: Any) -> Any:
        if is_hidden(path):
            raise FileNotFoundError(2, "hidden by the test", str(path))
        if name == "open" and os.path.isdir(path):
            raise PermissionError(13, "a folder cannot be opened", str(path))
        return call(path, *arguments, **options)

    setattr(os, name, looked_up)


def kill(process: "subprocess.Popen[Any]") -> None:
    process.send_signal(9)  # type: ignore[arg-type]


subprocess.Popen.kill = kill  # type: ignore[method-assign]
tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
shutil._use_fd_functions = False  # type: ignore[attr-defined]
for module in MODULES:
    sys.modules[module] = None  # type: ignore[assignment]
for call in CALLS:
    if hasattr(os, call):
        delattr(os, call)
for number in SIGNALS:
    if hasattr(signal, number):
        delattr(signal, number)
for lookup in ("open", "stat", "lstat", "readlink"):
    hide(lookup)
sys.addaudithook(refuse_hidden)
