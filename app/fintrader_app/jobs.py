"""Runs started from the app: separate processes, recorded so that any later app finds them again.

    runs/.launched/<name>.yaml   settings of the run
    runs/.launched/<name>.json   its process
    runs/.launched/<name>.log    its output, of every start and continuation

A folder that begins with a dot is no run, so the run list does not show it. The process is `python
-m fintrader_app.jobs run CONFIG`, which outlives the app. It does the work of `fintrader run`, but
reacts to SIGINT even if the app was started with SIGINT ignored, and lowers its priority, so that
the app stays quick on the same cores.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from fintrader.errors import FintraderError, RunError
from fintrader.files import write_json, write_text
from fintrader.results.folders import NotThereError, RunsFolder, component, is_locked
from fintrader.runs import RunFolder
from fintrader.system import kill_group, lower_priority, read_process_start

PLACE = ".launched"
NICENESS = 5
_BEGUN = "--- started "
_ERROR = "fintrader: "
_STOPPED = "interrupted; "
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Job:
    """A process that was started from the app."""

    name: str
    """Name of its run."""
    pid: int
    born: int
    """Start of the process, in the kernel's ticks since boot; another process may have its pid
    later."""
    started: float
    """Seconds since 1970."""

    @property
    def alive(self) -> bool:
        """True while the started process runs; another process with its number does not count."""
        child = _CHILDREN.get(self.pid)
        if child is not None and child.poll() is not None:
            return False
        if self.born == 0:  # unknown on this system: this app knows its own children only
            return child is not None
        return read_process_start(self.pid) == self.born


def start(runs: RunsFolder, name: str, text: str) -> Job:
    """Start `fintrader run` on the settings `text` (YAML) as a process of its own session.

    Raises RunError when the name is no run's name, or when that run is at work already.
    """
    RunFolder.named(component(name), runs.root)  # raises for a name that no run can have
    # a run that has just begun may have no lock yet
    begun = any(job.name == name and job.alive for job in list_jobs(runs))
    if begun or (runs.path(name).is_dir() and is_locked(runs.run(name))):
        raise RunError(
            f"{name} is at work already; open it on the Tournament page, or choose another name"
        )
    config = runs.path(PLACE, f"{name}.yaml")
    write_text(config, text)
    with runs.path(PLACE, f"{name}.log").open("ab") as output:
        output.write(f"{_BEGUN}{datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n".encode())
        output.flush()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "fintrader_app.jobs", "run", str(config)],
            env={
                "OMP_NUM_THREADS": "1",
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "FINTRADER_LOG_FORMAT": "text",  # `explain_end` reads it
            },
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    _CHILDREN[child.pid] = child
    job = Job(name, child.pid, read_process_start(child.pid), time.time())
    write_json(runs.path(PLACE, f"{name}.json"), asdict(job))
    return job


def list_jobs(runs: RunsFolder) -> list[Job]:
    """List the processes of all runs that an app started here, the newest first."""
    found = []
    for path in (runs.root / PLACE).glob("*.json"):
        with contextlib.suppress(FintraderError):
            found.append(read_job(runs, path.stem))
    return sorted(found, key=lambda one: one.started, reverse=True)


def read_job(runs: RunsFolder, name: str) -> Job:
    """Read the process of a run. Raises NotThereError for a run that no app started."""
    job = runs.record(Job, PLACE, f"{component(name)}.json")
    if job.pid < 2 or job.name != name:
        raise NotThereError(f"the record of {name} names no process of this run")
    return job


def stop(job: Job) -> bool:
    """Stop a job and its pods as Ctrl-C would: the job stores its state, and the same command
    continues it.

    Returns True if it was alive.
    """
    is_alive = job.alive
    if is_alive:
        os.kill(job.pid, signal.SIGINT)
    return is_alive


def kill(job: Job) -> bool:
    """End a job and its pods at once. Written files stay; training since the last stored state is
    lost."""
    is_alive = job.alive
    if is_alive:
        kill_group(job.pid)
    return is_alive


def forget(runs: RunsFolder, name: str) -> None:
    """Remove the record of a run's process, its settings and its output. Raises RunError while it
    is alive."""
    with contextlib.suppress(NotThereError):
        if read_job(runs, name).alive:
            raise RunError(f"{name} is at work; stop it on the New run page first")
    for ending in ("json", "yaml", "log"):
        runs.path(PLACE, f"{name}.{ending}").unlink(missing_ok=True)


def explain_end(runs: RunsFolder, name: str) -> str | None:
    """Find the error message that ended a job's last attempt; None if there is none, or the job was
    interrupted."""
    try:
        output = read_log_end(runs, name)
    except FintraderError:
        return None
    errors = [line for line in output.rpartition(_BEGUN)[2].splitlines() if line.startswith(_ERROR)]
    return errors[-1].removeprefix(_ERROR) if errors and _STOPPED not in errors[-1] else None


def read_log_end(runs: RunsFolder, name: str) -> str:
    """Read the last lines that a job printed."""
    text = runs.tail(PLACE, f"{component(name)}.log", limit=6000).decode(errors="replace")
    return "".join(
        char if char.isprintable() or char == "\n" else " " for char in text.replace("\r", "\n")
    ).strip()


def main() -> None:
    """Set this process's signals and priority, and run a command of `fintrader`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lower_priority(NICENESS)
    from fintrader.cli import main as command

    command(sys.argv[1:])


if __name__ == "__main__":
    main()
