"""A run's folder, and its manifest: origin, stages, outcome."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fintrader import stages
from fintrader.errors import FintraderError, RunError
from fintrader.files import (
    make_folder,
    open_file,
    read_json,
    refuse_irregular,
    refuse_link,
    write_json,
)
from fintrader.system import wait_for_lock

MANIFEST_FORMAT = "fintrader-run-1"
PACKAGES = (
    "torch",
    "numpy",
    "pandas",
    "pyarrow",
    "gymnasium",
    "safetensors",
    "pydantic",
    "exchange-calendars",
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
POD_NAME = re.compile(r"p[0-9]{4,9}", re.ASCII)
_DATABASE = tuple(f"leaderboard.sqlite{ending}" for ending in ("", "-wal", "-shm", "-journal"))
_FILES = ("tournament.json", "events.jsonl", "inherited.json", "scale.json", "progress.json")
_FOLDERS = ("pods", "snapshots", "ensemble", "lease", "logs")
_OTHERS = (
    ".lock",
    ".tournament.lock",
    ".store.json",
    "manifest.json",
    "config.yaml",
    "notes.json",
    "environment.json",
)
_OTHER_FOLDERS = ("backtest", "null_model", "folds", "train", "tensorboard", "evaluation")
"""With the tuples above: all names in a run's folder that fintrader writes to."""
_MARKS = ("tournament.json", "events.jsonl", "pods")
"""Files and folders that show that a folder holds a tournament."""
_IN_ENSEMBLE = ("ensemble.json", "policy.safetensors")
_POD_FILES = ("spec.json", "result.json", "policy.safetensors", "metrics.jsonl", "validation.jsonl")


class _Inside:
    """A path inside a run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, _: type[RunFolder]) -> Path:
        return run.root / self.name


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run. Nothing is created until something is written."""

    root: Path

    @classmethod
    def named(cls, name: str, runs_dir: Path) -> RunFolder:
        """Locate the run `name` in `runs_dir`. Raises RunError for a name with other characters
        than letters, digits and `. _ -`."""
        if not _NAME.fullmatch(name) or ".." in name:
            raise RunError(
                f"run name {name!r} must be 1 to 100 letters, digits, '.', '_' or '-' and hold no"
                " '..'"
            )
        return cls(Path(runs_dir) / name)

    @property
    def label(self) -> str:
        """Name in logs and metrics: the run's name; for a search inside a run its path, like
        `name/null_model`."""
        for above in (self.root, *list(self.root.parents)[:3]):
            if (above / "manifest.json").is_file():
                return self.root.relative_to(above.parent).as_posix()
        return self.root.name

    config = _Inside("config.yaml")
    manifest = _Inside("manifest.json")
    events = _Inside("events.jsonl")
    leaderboard = _Inside("leaderboard.sqlite")
    pods = _Inside("pods")
    backtest = _Inside("backtest")
    ensemble = _Inside("ensemble")
    snapshots = _Inside("snapshots")

    @property
    def null_model(self) -> RunFolder:
        """The search on information-free features."""
        return RunFolder(self.root / "null_model")

    @property
    def folds(self) -> list[RunFolder]:
        """The tournaments of a walk-forward, in the order of its folds."""
        found = [path for path in (self.root / "folds").glob("*") if path.name.isdecimal()]
        folds = map(RunFolder, sorted(found, key=lambda path: int(path.name)))
        return [fold for fold in folds if fold.holds_tournament]

    @property
    def holds_tournament(self) -> bool:
        return any((self.root / name).exists() for name in _MARKS)

    def backtest_of(self, window: str) -> Path:
        """The folder of a window's backtest: `backtest/` for the test window, `backtest/WINDOW` for
        another."""
        return self.backtest if window == "test" else self.backtest / window

    def pod(self, pod_id: str) -> Path:
        """The folder of one pod: `spec.json`, `metrics.jsonl`, `policy.safetensors`, `state*`,
        `result.json`."""
        return self.pods / pod_id

    def list_snapshots(self) -> list[Path]:
        """List the published states of pods, without those set aside as damaged."""
        paths = sorted(self.snapshots.glob("*.safetensors"))
        return [path for path in paths if ".damaged-" not in path.name]

    def list_misplaced(self) -> list[Path]:
        """List the entries that block a file or folder of a tournament.

        These are a folder or a pipe in a file's place, a file in a folder's place, and any symbolic
        link. They must be renamed before anything can be written there.
        """
        folders = [self.root / name for name in _FOLDERS]
        misplaced = [path for path in folders if os.path.lexists(path) and not _is_folder(path)]
        files = [self.root / name for name in (*_FILES, *_DATABASE)]
        if _is_folder(self.pods):
            for pod in sorted(
                path for path in self.pods.iterdir() if POD_NAME.fullmatch(path.name)
            ):
                if _is_folder(pod):
                    files += [pod / name for name in _POD_FILES]
                    misplaced += _list_irregular(pod)
                else:
                    misplaced.append(pod)
        if _is_folder(self.ensemble):
            files += [self.ensemble / name for name in _IN_ENSEMBLE]
        if _is_folder(self.snapshots):
            files += self.list_snapshots()
        for folder in (self.ensemble, self.snapshots, self.root / "lease", self.root / "logs"):
            misplaced += _list_irregular(folder)
        misplaced += [
            path
            for path in files
            if os.path.lexists(path) and (not path.is_file() or path.is_symlink())
        ]
        return list(dict.fromkeys(misplaced))

    def refuse_unsafe(self) -> None:
        """Raise UnsafePathError for the first link, pipe or device where fintrader keeps something.

        For commands that would otherwise fail there only after much work.
        """
        for name in (*_FILES, *_DATABASE, *_OTHERS):
            refuse_irregular(self.root / name)
        for name in (*_FOLDERS, *_OTHER_FOLDERS):
            refuse_link(self.root / name)
            for odd in _list_irregular(self.root / name, deep=True):
                refuse_irregular(odd)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for this process; the kernel frees the lock when the process dies.

        Raises RunError when another process holds it, or the folder cannot be made or written to.
        """
        try:
            make_folder(self.root)
            file = open_file(self.root / ".lock", "ab")
        except OSError as error:
            raise RunError(
                f"{self.root}: {error.strerror or error}; choose a folder that can be written to"
                " (--runs-dir)"
            ) from None
        with file:
            # A process that checks whether the run is locked holds the lock for microseconds.
            if not wait_for_lock(file, 0.2):
                raise RunError(
                    f"{self.root} is in use by another process; wait for it or stop it first"
                )
            yield


def _is_folder(path: Path) -> bool:
    """Check for a folder that is no link to one."""
    return path.is_dir() and not path.is_symlink()


def _list_irregular(folder: Path, *, deep: bool = False) -> list[Path]:
    """List the links, pipes and devices in a folder (`deep`: and below) that were not set aside as
    damaged."""
    irregular: list[Path] = []
    if not _is_folder(folder):
        return irregular
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if "damaged-" in entry.name or entry.is_file(follow_symlinks=False):
                continue
            if not entry.is_dir(follow_symlinks=False):
                irregular.append(Path(entry.path))
            elif deep:
                irregular += _list_irregular(Path(entry.path), deep=True)
    return irregular


class Manifest:
    """`manifest.json`: origin, stages and outcome of a run. Every change is written at once,
    atomically."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values
        self.saved: Callable[[], None] = lambda: None
        """Called after every change."""
        self._inside: list[float] = []
        """Seconds that inner stages took, for each stage at work, outermost first."""

    @classmethod
    def create(
        cls, path: Path, *, name: str, seed: int, device: str, config_hash: str, command: str
    ) -> Manifest:
        """Write a new manifest: no stage done, no data, no trials."""
        still_open = dict.fromkeys(("finished", "market", "data_hash", "trials", "best"))
        manifest = cls(
            path,
            {
                "format": MANIFEST_FORMAT,
                "created": _format_now(),
                "stages": {},
                **still_open,
                "versions": versions(),
                "commit": commit(),
                "platform": platform.platform(),
                "command": command,
            },
        )
        manifest.update(name=name, seed=seed, device=device, config_hash=config_hash)
        return manifest

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest. Raises RunError when it is missing, damaged or of another format."""
        values = read_json(path)
        if not isinstance(values, dict) or values.get("format") != MANIFEST_FORMAT:
            raise RunError(
                f"{path} is damaged or of another version; go on with the version of fintrader that"
                " wrote it, or choose another --name"
            )
        return cls(path, values)

    def update(self, **changes: Any) -> None:
        """Set values and write the file, unless all have these values already."""
        is_news = any(
            name not in self.values or self.values[name] != changes[name] for name in changes
        )
        if is_news or not changes:
            self.values.update(changes)
            write_json(self.path, self.values)
            self.saved()

    def done(self, stage: str) -> bool:
        """Check that a stage is finished."""
        return bool(self.values["stages"].get(stage, {}).get("done"))

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Mark a stage as begun and, when the body ends well, as done, with the seconds all its
        attempts took.

        Its progress can be read meanwhile (`stages`). The seconds of an inner stage are not counted
        for the outer one. A failure leaves its reason in the manifest; an interruption or a kill
        leaves none.
        """
        before = float(self.values["stages"].get(name, {}).get("seconds", 0.0))
        was_done = self.done(name)
        if not was_done:
            self.values["stages"][name] = {"seconds": before, "done": False}
            self.update()
            self._announce(name)
        started = time.monotonic()
        self._inside.append(0.0)
        try:
            with stages.track_stage(self.path.parent, self.values, name):
                yield
        except Exception as error:
            self._record_failure(name, error)
            raise
        finally:
            took = time.monotonic() - started
            inside = self._inside.pop()
            if self._inside:
                self._inside[-1] += took
        if not was_done:
            self.values["stages"][name] = {
                "seconds": round(before + took - inside, 3),
                "done": True,
            }
            self.update()

    def _announce(self, name: str) -> None:
        """Print which stage begins, and its purpose."""
        plan = self.values.get("plan") or []
        if name in plan:
            from fintrader.terminal_progress import reporter  # slow to load

            title = stages.TITLES.get(name, name)
            number = plan.index(name) + 1
            text = f"stage {number} of {len(plan)}, {title}: {stages.ABOUT.get(name, '')}"
            reporter().event(
                {"event": "stage", "stage": name, "number": number, "of": len(plan)}, text
            )

    def _record_failure(self, stage: str, error: Exception) -> None:
        """Store the reason of a failure, unless the run has a result or a reason already: the
        innermost stage, which knows the cause, reports first."""
        if self.values.get("finished") is None and self.values.get("failure") is None:
            failure = {"stage": stage, "sentence": explain_failure(error), "time": _format_now()}
            # A full disk shows on the terminal all the same.
            with contextlib.suppress(OSError, FintraderError):
                self.update(failure=failure)

    def reopen(self, *stages: str) -> None:
        """Mark stages as unfinished again, because something they depend on has changed."""
        for name in stages:
            if name in self.values["stages"]:
                self.values["stages"][name]["done"] = False
        if stages:
            self.update(finished=None)

    def finish(self) -> None:
        """Note the time of the first successful end; later repeats keep it."""
        if self.values["finished"] is None:
            self.update(finished=_format_now())


def explain_failure(error: Exception) -> str:
    """Describe an error on one line: a FintraderError by its message, a disk error with its file,
    any other with its type."""
    text = " ".join(str(error).split())
    if isinstance(error, FintraderError):
        return text or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; free space, fix permissions, or choose another folder"
    return (
        f"{type(error).__name__}: {text}; this is a fault of the program, and its output says where"
    )


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of Python, fintrader and the packages that results depend on."""
    numbers = {"python": platform.python_version()}
    for package in ("fintrader", *PACKAGES):
        with contextlib.suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


def commit() -> str | None:
    """Git commit of the source tree, with `+` when it has uncommitted changes; None outside a
    checkout."""
    source = Path(__file__).parent

    def run_git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(source), *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout.strip()

    try:
        return run_git("rev-parse", "HEAD") + (
            "+" if run_git("status", "--porcelain", "--", str(source)) else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None
