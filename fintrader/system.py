"""Calls that only some operating systems have, each with a fallback for the others.

Locks work everywhere (filelock). All else was written for Linux; the fallbacks for macOS and
Windows keep results right: no signal to a process that cannot be identified, no parallel steps
without a fork, no memory limit where the system has no figure.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import math
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor, unlock_descriptor

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
NO_DATA = ("/proc/", "/sys/", "/dev/")
"""Folders of the kernel's own files, which hold no user's data."""
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Signal that ends a process at once."""
SENT_BY_OTHERS = tuple(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
    if hasattr(signal, name)
)
"""Signals that other processes send; a failing process of ours ends by others, like SIGSEGV."""
BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag of `os.open`, without which Windows changes line ends."""
HAS_FORK = hasattr(os, "fork")
_HAS_FOLDER_HANDLES = hasattr(os, "O_DIRECTORY")
_HAS_SIGNAL_0 = hasattr(os, "killpg")
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_PROBES = 3
_PROBE_SECONDS = 0.01
_POLL_SECONDS = 0.02
_seeking = threading.Lock()

# --- threads --------------------------------------------------------------------------------------


def start_thread(
    work: Callable[..., object], *arguments: object, name: str | None = None
) -> threading.Thread:
    """Start a thread that calls `work` with these arguments. It does not keep the process alive."""
    thread = threading.Thread(target=work, args=arguments, daemon=True, name=name)
    thread.start()
    return thread


# --- locks ----------------------------------------------------------------------------------------


def try_lock(file: IO[Any]) -> bool:
    """Take a file's lock unless another process has it; True also where locks are unknown.

    The kernel frees the lock when the file is closed or the process dies. Under Windows no
    other process can read the first byte of a locked file, so lock files are empty.
    """
    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return True


def wait_for_lock(file: IO[Any], patience_seconds: float = math.inf) -> bool:
    """Take a file's lock as soon as no other process has it; False after `patience_seconds`."""
    deadline = time.monotonic() + patience_seconds
    while not try_lock(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def is_locked(file: IO[Any]) -> bool:
    """Check that a process holds a file's lock; needs no right to write."""
    try:
        import fcntl
    except ImportError:
        return _is_locked_after_probes(file)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _is_locked_after_probes(file: IO[Any]) -> bool:
    """Check for a lock several times: without shared locks each probe takes the lock for a moment,
    and another process's probe must not count as a holder."""
    for _ in range(_PROBES):
        if try_lock(file):
            with contextlib.suppress(OSError):  # locks are unknown here
                unlock_descriptor(file.fileno())
            return False
        time.sleep(_PROBE_SECONDS)
    return True


# --- files ----------------------------------------------------------------------------------------


def open_plain(path: str) -> int:
    """Open a file for reading and return its handle, without following a link or waiting for a
    pipe. Raises OSError."""
    flags = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
    return os.open(path, os.O_RDONLY | BINARY | sum(getattr(os, flag, 0) for flag in flags))


def sync(path: Path) -> None:
    """Bring a file's bytes or a folder's entries to disk; Windows does so for folders by itself."""
    if not _HAS_FOLDER_HANDLES and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if _HAS_FOLDER_HANDLES else os.O_RDWR | BINARY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at(handle: int, values: Any, offset: int) -> None:
    """Write all bytes of a buffer at an offset of an open file."""
    rest = memoryview(values)
    if rest.nbytes:
        rest = rest.cast("B")
    while rest.nbytes:
        if hasattr(os, "pwrite"):
            done = os.pwrite(handle, rest, offset)
        else:
            with _seeking:
                os.lseek(handle, offset, os.SEEK_SET)
                done = os.write(handle, rest)
        rest = rest[done:]
        offset += done


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes at an offset of an open file; fewer at its end."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, offset)
    with _seeking:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)


def read_into(handle: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from an offset of an open file; returns the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [buffer], offset)
    data = read_at(handle, buffer.nbytes, offset)
    buffer.cast("B")[: len(data)] = data
    return len(data)


# --- processes ------------------------------------------------------------------------------------


def count_usable_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def name_process_space() -> str:
    """Name the boot of this machine and the process namespace, within which process numbers are
    unique; empty where unknown."""
    with contextlib.suppress(OSError):
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return boot + os.readlink(PROC / "self/ns/pid")
    return ""


def read_process_start(pid: int) -> int:
    """Read a living process's start, in kernel ticks since boot; 0 for no process and for a zombie.

    Without `/proc` it is 1 for any process of that number, and under Windows always 0.
    """
    if not (PROC / "self/stat").exists():
        return int(_HAS_SIGNAL_0 and _is_number_in_use(pid))
    try:
        fields = (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def _is_number_in_use(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_process(pid: int, start: int, number: signal.Signals) -> None:
    """Signal a process if it began at `start`. Does nothing where the system has no process
    handles: the number might pass to another process in between."""
    with contextlib.suppress(
        OSError, AttributeError
    ):  # the process has just ended, or the call is missing
        handle = os.pidfd_open(pid)
        try:
            if read_process_start(pid) == start:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads; on systems without groups only the process."""
    if hasattr(os, "killpg"):
        os.killpg(pid, KILL)
    else:
        os.kill(pid, KILL)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux). Elsewhere the process ends
    once it finds its pipe closed."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, KILL)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


_PR_SET_PDEATHSIG = 1


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(niceness)


def call_after_fork(action: Callable[[], None]) -> None:
    """Call `action` in every fork of this process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def start_fork(work: Callable[[], None]) -> Callable[[], None]:
    """Do `work` in a fork of this process; returns a function that waits for the fork's end. On
    systems without forks the work is done at once."""
    if not HAS_FORK:
        work()
        return lambda: None
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)

    def wait() -> None:
        os.waitpid(child, 0)

    return wait


def read_starting_environment() -> dict[str, str]:
    """Read the environment with which this process began (Linux). Raises OSError elsewhere."""
    entries = os.fsdecode((PROC / "self/environ").read_bytes()).split("\0")
    return dict(entry.partition("=")[::2] for entry in entries)


# --- machine --------------------------------------------------------------------------------------


def name_processor() -> str:
    """Name this machine's processor, by its model where known."""
    with contextlib.suppress(OSError):
        for line in (PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure_peak_memory() -> int | None:
    """Measure the peak memory of this process in bytes; None where unknown."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure_host_memory() -> int | None:
    """Measure the bytes that this process can still allocate, within the machine and within its
    control groups; None where unknown."""
    rooms = [*_measure_machine(), *_measure_groups()]
    return max(min(rooms), 0) if rooms else None


def _measure_machine() -> Iterator[int]:
    """Measure the machine's available memory; its whole memory where the kernel has no figure."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        lines = (PROC / "meminfo").read_text().splitlines()
        yield next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
        return
    with contextlib.suppress(ValueError, OSError, AttributeError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _measure_groups() -> Iterator[int]:
    """Measure limit minus use of every control group (v1 and v2) of this process."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:  # `0::/path` (v2), `4:memory:/path` (v1)
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            top = CGROUPS
            limit = "memory.max"
            used = "memory.current"
            cache = "inactive_file"
        elif "memory" in controllers.split(","):
            top = CGROUPS / "memory"
            limit = "memory.limit_in_bytes"
            used = "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        # In a container the path may be the host's: skip missing groups; the top group exists.
        here = top / path.lstrip("/")
        for group in (here, *here.parents):
            if group != top and top not in group.parents:
                break
            with contextlib.suppress(OSError, ValueError):  # a group without a limit reads `max`
                left = int((group / limit).read_text()) - int((group / used).read_text())
                rows = dict(
                    line.split() for line in (group / "memory.stat").read_text().splitlines()
                )
                yield left + int(rows.get(cache, 0))  # file caches can be given up


def count_oom_kills() -> int:
    """Count the processes that the kernel has killed for lack of memory; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def keep_freed_memory() -> None:
    """Make this process reuse large freed blocks (GNU C library; elsewhere this does nothing).

    Otherwise the kernel maps each tensor of a few MiB anew, page by page, at every step, which
    takes a third of a training's time with thousands of accounts.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def is_loopback(host: str) -> bool:
    """Tell whether a server that listens on `host` is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def find_interface(address: str) -> str | None:
    """Find this machine's network interface with the IPv4 `address` (Linux); None if unknown."""
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(
                    probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode())
                )
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


_SIOCGIFADDR = 0x8915


CARD_SECONDS = 30
"""Seconds between two counts of the GPUs, and the time limit of a count."""
COUNT_CARDS = """
import ctypes, sys
driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
count = ctypes.c_int()
code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
if code not in (0, 100):  # 100: no card
    sys.exit(code)
print(count.value)
"""


@lru_cache(maxsize=1)
def count_cards(visible: str | None, period: int) -> int | None:
    """Count the GPUs that a new process finds with `visible` as `CUDA_VISIBLE_DEVICES`, once in a
    `period`; None if the driver gives no answer.

    A process that uses CUDA would still count a GPU that was lost meanwhile.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        command = [sys.executable, "-P", "-c", COUNT_CARDS]
        answer = subprocess.run(command, capture_output=True, check=True, timeout=CARD_SECONDS)
        return int(answer.stdout)
    return None
