"""Every error a user can cause has a type here, and a message that names the remedy.

The command line prints such an error as one line and exits with status 2; any other error is a bug
and shows its traceback. If an error ends a pod, the lost pod is counted under the error's `reason`
(`tournament.spec.Reason`).
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Collection
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


OWN_FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""Errors that a user's own function may raise."""


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
    """External returns, equity or weights cannot be read or judged."""


class EnvError(FintraderError):
    """The environment was called wrongly: shape, dtype or order of calls."""


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
    """The broker refuses a request for good: wrong keys, missing rights, an invalid order."""


class OrderTakenError(BrokerError):
    """The broker knows an order's id: the order arrived before, or another deployment sent it."""


class BrokerUnsureError(DeployError):
    """The fate of a request to the broker is unknown: a time-out, a reset, an unreadable
    answer."""


class TournamentError(FintraderError):
    """The tournament cannot go on: zero capacity, too many failed pods, a foreign leaderboard."""


class RunError(FintraderError):
    """A run's folder is missing, belongs to another configuration, or is in use by another
    process."""


class UnsafePathError(RunError):
    """A path leads out of its folder, or to a link, a pipe or a device instead of a file."""


class ReportError(FintraderError):
    """A report cannot be read back, or its run cannot be reproduced here."""


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


def install_command(extra: str = "") -> str:
    """Return the shell command that installs the packages of an extra for the running Python, or
    those that every part of fintrader needs.

    It names the packages themselves: fintrader is in no registry, so `pip install 'fintrader[ray]'`
    would fail from a checkout and from a wheel alike. Where Python has no pip, as in the
    environments of uv, it names uv.
    """
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    try:
        requirements = metadata.requires("fintrader") or []
    except metadata.PackageNotFoundError:  # a source tree on PYTHONPATH, never installed
        requirements = []
    marker = re.compile(rf"""extra == ["']{re.escape(extra)}["']""" if extra else "^[^;]*$")
    packages = [line.partition(";")[0].strip() for line in requirements if marker.search(line)]
    names = " ".join(f"'{package}'" for package in packages) or f"-e '.[{extra}]'".replace("[]", "")
    if importlib.util.find_spec("pip") is None and shutil.which("uv") is not None:
        return f"uv pip install --python {python} {names}"
    return f"{python} -m pip install {names}"


_SYNONYMS = {
    "cost_bps": "commission fee fees transaction_cost transaction_cost_pct",
    "half_spread_bps": "slippage",
    "short": "allow_short shorting",
    "lookback": "window window_size",
    "env_steps": "timesteps total_timesteps steps",
    "update_epochs": "n_epochs epochs",
    "clip_coef": "clip_range",
    "network": "policy_kwargs net_arch",
    "universe": "tickers assets",
    "bar_minutes": "interval freq frequency timeframe",
    "windows": "split splits",
    "load_market": "read_csv load_data load Market",
    "TradingEnv": "make_env make Env",
    "num_bars": "T n_bars",
    "num_assets": "N n_assets shape",
    "timestamps": "index dates times",
    "span": "start end first last",
    "to_pandas": "df frame to_frame dataframe head tail describe info",
    "close": "closes price prices",
    "folds": "n_splits n_folds splits cv",
    "trials": "n_trials",
    "episode_bars": "max_steps episode_length max_episode_steps horizon",
    "market": "df data",
    "equity": "equity_curve portfolio_value account_value",
    "returns": "daily pct_change",
}
"""Name in fintrader -> names of the same thing in other libraries."""
_PLACES = {
    "seed": "it is an argument of TradingEnv and of train",
    "device": "it is an argument of TradingEnv",
    "cost_bps": "it is a field of EnvSettings: settings=EnvSettings(cost_bps=5)",
}
"""Name that users look for in the wrong place -> its right place."""


def find_meant(name: str, known: Collection[str]) -> str | None:
    """Find the known name that a misspelt name probably means: a synonym, a similar spelling, a
    name that contains its words (`initial_cash_usd` for `cash`), or a name with its initials
    (`learning_rate` for `lr`). None without one."""
    for meant, synonyms in _SYNONYMS.items():
        if meant in known and name in synonyms.split():
            return meant
    lower = {one.lower(): one for one in sorted(known)}
    alike = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.65)
    if alike:
        return lower[alike[0]]
    words = {word.rstrip("s") for word in name.lower().split("_")}
    for low in sorted(lower, key=len):
        own = [word.rstrip("s") for word in low.split("_")]
        initials = "".join(word[:1] for word in own)
        if words.issubset(own) or name.lower() == initials != low[:1]:
            return lower[low]
    return None


def suggest(name: str, known: Collection[str]) -> str:
    """Return a hint for a misspelt name: the probable name, the place where it belongs, or a list
    of all `known` names."""
    meant = find_meant(name, known)
    if meant is None:
        return _PLACES.get(name) or f"known: {', '.join(sorted(known)) or 'none'}"
    return f"did you mean {meant!r}?"


def check_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: a call with wrong arguments raises ConfigError, which names the
    argument that was probably meant, instead of TypeError."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")
    known = [one for one in signature.parameters if one != "self"]
    bare = [signature.parameters[one].replace(annotation=inspect.Parameter.empty) for one in known]

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        try:
            return function(*args, **keywords)
        except TypeError:
            try:
                signature.bind(*args, **keywords)
            except TypeError as error:
                odd = [keyword for keyword in keywords if keyword not in known]
                problem = f"{error}; it is {name}{inspect.Signature(bare)}"
                if odd and "unexpected" in str(error):
                    problem = f"{odd[0]}: unknown argument; {suggest(odd[0], known)}"
            else:
                raise
        raise ConfigError(f"{name}: {problem}")

    return call
