"""What only some systems have stands in one module, and every part of it has an answer
elsewhere."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from fintrader import system
from tests import ROOT
from tests.engines.waiting import PATIENCE_SECONDS, gone, until

BARE = ROOT / "tests" / "engines" / "bare_system"
SOURCES = sorted([*(ROOT / "fintrader").rglob("*.py"), *(ROOT / "app").rglob("*.py")])
POSIX = re.compile(
    r"import (fcntl|resource|ctypes|pwd|grp|termios)\b|[\"'/]proc/|/sys/fs"
    r"|os\.(fork|killpg|nice|preadv?|pwritev?|pidfd_open|register_at_fork|sched_\w+|sysconf"
    r"|wait\w*|get\w?[ug]id|uname|mkfifo|O_(NOFOLLOW|NONBLOCK|CLOEXEC|DIRECTORY))\b"
    r"|signal\.(SIGKILL|SIGHUP|SIGUSR\d|SIGALRM|pidfd_send_signal)\b"
)


def test_one_module_names_what_only_some_systems_have():
    naming = [path for path in SOURCES if POSIX.search(path.read_text())]
    assert naming == [ROOT / "fintrader" / "system.py"]


def test_asking_for_a_lock_does_not_take_it_where_locks_are_exclusive(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    path = tmp_path / "lock"
    with path.open("wb") as holder, path.open("rb") as asked, path.open("rb") as other:
        assert not system.is_locked(asked)
        assert not system.is_locked(other)
        assert system.try_lock(holder)
        assert system.is_locked(asked)


@pytest.mark.parametrize("missing", [(), ("preadv",), ("pread", "preadv", "pwrite")])
def test_reading_and_writing_at_an_offset(tmp_path, monkeypatch, missing):
    for name in missing:
        monkeypatch.delattr(os, name)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    with (tmp_path / "file").open("wb+", buffering=0) as file:
        handle = file.fileno()
        system.write_at(handle, values, 8)
        system.write_at(handle, np.empty((0, 3), dtype=np.float32), 8)
        system.write_at(handle, b"12345678", 0)
        assert system.read_at(handle, 100, 0) == b"12345678" + values.tobytes()
        read = np.zeros((2, 3), dtype=np.float32)
        assert system.read_into(handle, read.data, 8 + 12) == read.nbytes
        assert np.array_equal(read, values[1:3])
        assert system.read_into(handle, read.data, 8 + 36) == 12


@pytest.mark.parametrize("has_handles", [True, False])
def test_files_and_folders_are_brought_to_disk(tmp_path, monkeypatch, has_handles):
    monkeypatch.setattr(system, "_HAS_FOLDER_HANDLES", has_handles)
    synced = []
    (tmp_path / "file").write_text("kept")
    names = {path.stat().st_ino: path.name for path in (tmp_path, tmp_path / "file")}
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(names[os.fstat(handle).st_ino]))
    system.sync(tmp_path / "file")
    system.sync(tmp_path)
    assert synced == ["file", tmp_path.name][: 1 + has_handles]
    with pytest.raises(FileNotFoundError):
        system.sync(tmp_path / "absent")


def test_a_process_is_known_by_its_start(monkeypatch, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = system.read_process_start(child.pid)
    assert start > 1
    assert start == system.read_process_start(child.pid)
    system.signal_process(child.pid, start + 1, signal.SIGKILL)
    assert child.poll() is None
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(system, "PROC", tmp_path)
        assert system.name_process_space() == ""
        assert system.read_process_start(child.pid) == 1
        elsewhere.setattr(system, "_HAS_SIGNAL_0", False)
        assert system.read_process_start(child.pid) == 0  # there, signal 0 would end it
        elsewhere.delattr(os, "pidfd_open")
        system.signal_process(child.pid, 0, signal.SIGKILL)
    assert child.poll() is None
    system.signal_process(child.pid, start, signal.SIGKILL)
    assert child.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    assert system.read_process_start(child.pid) == 0
    monkeypatch.setattr(system, "PROC", tmp_path)
    assert system.read_process_start(child.pid) == 0
    child.stdin.close()


@pytest.mark.parametrize("has_groups", [True, False])
def test_a_group_ends_with_the_process_that_leads_it(monkeypatch, has_groups):
    if not has_groups:
        monkeypatch.delattr(os, "killpg")
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\ninput()\n"
    )
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True) as leader:
        member = int(leader.stdout.readline())
        system.kill_group(leader.pid)
        assert leader.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    until(lambda: gone(member), "the member to end, by the signal or by its closed pipe")


def test_work_in_a_fork_changes_nothing_here(tmp_path, monkeypatch):
    done = []

    def work():
        done.append(os.getpid())
        (tmp_path / "pid").write_text(str(os.getpid()))

    system.start_fork(work)()
    assert done == []
    assert (tmp_path / "pid").read_text() != str(os.getpid())
    monkeypatch.setattr(system, "HAS_FORK", False)
    system.start_fork(work)()
    assert done == [os.getpid()]


def test_a_system_that_says_nothing_limits_nothing(tmp_path, monkeypatch):
    assert system.measure_peak_memory() > 2**20
    assert system.count_usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(system, "PROC", tmp_path)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "resource", None)
    for name in ("sched_getaffinity", "sysconf", "nice", "register_at_fork"):
        monkeypatch.delattr(os, name)
    assert system.measure_host_memory() is None
    assert system.measure_peak_memory() is None
    assert system.count_usable_cores() == os.cpu_count()
    assert system.count_oom_kills() == 0
    assert system.find_interface("127.0.0.1") is None
    assert system.name_processor()
    system.lower_priority(5)
    system.call_after_fork(lambda: None)


@pytest.mark.slow
def test_the_quickstart_needs_nothing_that_only_some_systems_have(tmp_path):
    """The same bytes with and without, and lock files that stay empty, as Windows needs them."""
    made = []
    for name, extra in (("full", []), ("bare", [str(BARE)])):
        runs = tmp_path / name / "runs"
        path = os.pathsep.join([*extra, str(ROOT), os.environ.get("PYTHONPATH", "")])
        where = {"PYTHONPATH": path, "FINTRADER_HOME": str(tmp_path / name)}
        words = ["run", str(ROOT / "configs" / "quickstart.yaml"), "--runs-dir", str(runs)]
        done = subprocess.run(
            [sys.executable, "-m", "fintrader", *words],
            env={**os.environ, **where},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        made.append((runs / "quickstart" / "backtest" / "metrics.json").read_bytes())
        locks = sorted((tmp_path / name).rglob("*.lock"))
        assert {".lock", ".tournament.lock", ".looks.lock"} == {lock.name for lock in locks}
        assert [lock for lock in locks if lock.stat().st_size] == []
    assert made[0] == made[1]


def test_the_bare_python_has_none_of_it():
    program = (
        "import os, sys, signal, fintrader.system as system\n"
        "assert 'tests' in sys.modules['sitecustomize'].__file__\n"
        "assert not hasattr(os, 'fork') and not hasattr(signal, 'SIGKILL')\n"
        "assert sys.modules['fcntl'] is None and system.name_process_space() == ''\n"
        "assert not os.path.exists('/proc/self/stat') and system.measure_host_memory() is None\n"
        "try:\n    os.open('.', os.O_RDONLY)\n    raise AssertionError\n"
        "except PermissionError:\n    pass\n"
    )
    subprocess.run([sys.executable, "-c", program], env=bare(), check=True)


@pytest.mark.slow
def test_what_every_system_has_to_do_works_there():
    """But for the import of every module: libraries of extras are built for this system."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_portable.py"]
    done = subprocess.run(
        [sys.executable, *words, "-k", "not every_module"],
        cwd=ROOT,
        env=bare(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def bare():
    """The environment of a Python that has none of it."""
    path = [str(BARE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
