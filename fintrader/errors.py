"""Every error a user can cause has a type here, and a message that names the remedy.

The command line prints such an error as one line and exits with status 2; anything else is a bug
and shows its traceback. `reason` is the one word by which a lost pod's error is counted
(`tournament.spec.Reason`).
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path


class FintraderError(Exception):
    """Base of all errors that a user can mend."""

    reason: str = "error"
    """The cause under which a pod that ended with this error is counted as lost."""


class ConfigError(FintraderError, ValueError):
    """A setting is misspelt, of the wrong type, out of range, or contradicts another."""


class DataError(FintraderError):
    """Bars, a market file or a window of it cannot be used."""


class BarError(DataError):
    """Rows of bars break the schema: a missing column, a bad number, a bar from the future."""


class MarketError(DataError):
    """A `MarketTensors` is inconsistent, truncated, or not the one that was asked for."""


class ReturnsError(DataError):
    """External returns, equity or weights that cannot be read or judged."""


class EnvError(FintraderError):
    """The environment was called in a way that has no meaning (shape, dtype, order of calls)."""


class TrainingError(FintraderError):
    """Training cannot go on: a loss, an action or a weight is no longer finite."""

    reason = "nan"


class CheckpointError(FintraderError):
    """A stored policy or state is truncated, tampered with, or belongs to something else."""

    reason = "snapshot"


class BacktestError(FintraderError):
    """A window is empty, a benchmark is missing, or a policy's output cannot be traded."""


class DeployError(FintraderError):
    """A deployment cannot begin or go on: no bundle, a halted account, positions that no order
    explains."""


class BrokerError(DeployError):
    """The broker refuses a request for good: keys, rights, an order it does not accept."""


class OrderTakenError(BrokerError):
    """An order's id stands at the broker: it arrived before, or another deployment sent it."""


class BrokerUnsureError(DeployError):
    """The fate of a request to the broker is unknown: a time-out, a reset, an unreadable
    answer."""


class TournamentError(FintraderError):
    """The tournament cannot go on: zero capacity, too many failed pods, a foreign leaderboard."""


class RunError(FintraderError):
    """A run's folder is missing, belongs to another configuration, or is in use by another
    process."""


class UnsafePathError(RunError):
    """A path leads out of its folder, or to a link, a pipe or a device in a file's place."""


class ReportError(FintraderError):
    """A report cannot be read back, or its run cannot be made again here."""


class StorageError(FintraderError):
    """An object store cannot be used: its package is not installed, or it answers something
    unexpected."""

    reason = "storage"


class StorageAccessError(StorageError):
    """The bucket does not exist, or the credentials are missing or have no right to it."""


class StorageOfflineError(StorageError):
    """The store does not answer."""


class StorageDamagedError(StorageError):
    """A stored object is truncated or has been changed: it does not match its hash."""


class StorageFullError(StorageError):
    """The store, or the disk that a copy was to be written to, is full."""

    reason = "disk_full"


def install_command(extra: str) -> str:
    """Return the shell command that installs the packages of an extra for the running Python.

    It names the packages themselves: fintrader is in no registry, so `pip install 'fintrader[ray]'`
    would fail from a checkout and from a wheel alike.
    """
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    try:
        requirements = metadata.requires("fintrader") or []
    except metadata.PackageNotFoundError:  # a source tree on PYTHONPATH, never installed
        requirements = []
    marker = re.compile(rf"""extra == ["']{re.escape(extra)}["']""")
    packages = [line.partition(";")[0].strip() for line in requirements if marker.search(line)]
    names = " ".join(f"'{package}'" for package in packages) or f"-e '.[{extra}]'"
    return f"{python} -m pip install {names}"
