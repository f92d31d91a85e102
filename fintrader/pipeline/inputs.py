"""Check of the files, runs, devices, packages and permissions that a run's settings need, before
it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import list_bar_files
from fintrader.bars.sources.vendor_settings import AlpacaSettings, CcxtSettings
from fintrader.config import is_url
from fintrader.errors import ConfigError, DataError, RunError, install_command
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import DataSettings
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.run_stages import find_stages_to_repeat
from fintrader.seams import LAUNCHERS, explain_absence
from fintrader.verdict.looks import Ledger, LedgerError

_PACKAGES = {
    AlpacaSettings: ("alpaca", "alpaca"),
    CcxtSettings: ("ccxt", "crypto"),
}
_PACKAGED_INDICES = ("sp500", "dow30")
_KEYS = ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY")


def find_missing_inputs(config: RunConfig) -> list[str]:
    """List the missing files, packages and secrets at which `fintrader run` would stop, one
    sentence each.

    Checks only names on this machine: a URL counts as present.
    """
    return [
        *_check_environment(config),
        *(() if config.is_classic else _check_data(config.data.effective())),
        *_check_earlier(config),
        *_check_places(config),
    ]


def _check_environment(config: RunConfig) -> Iterator[str]:
    try:
        config.resolved_device()
    except ConfigError as error:
        yield str(error)
    kind = config.launcher.kind
    absence = explain_absence(LAUNCHERS, kind) if kind in LAUNCHERS else None
    if absence is not None:
        yield f"launcher: {absence}, or choose local"


def _check_data(data: DataSettings) -> Iterator[str]:
    source = data.source
    if isinstance(source, FilesSettings) and not is_url(data.bar_path):
        files = source.files() if isinstance(source, PlantedInSettings) else source
        try:
            list_bar_files(files, data.bar_path)
        except DataError as error:
            yield f"data.path: {error}"
    for kind, (package, extra) in _PACKAGES.items():
        if isinstance(source, kind) and find_spec(package) is None:
            yield f"data.source: {source.kind} needs {package}; `{install_command(extra)}`"
    if data.universe.index in _PACKAGED_INDICES and find_spec("index_constitution") is None:
        yield (
            f"data.universe.members: {data.universe.index} needs index-constitution;"
            f" `{install_command('indices')}`"
        )
    if isinstance(source, AlpacaSettings) and not all(map(os.environ.get, _KEYS)):
        yield (
            f"data.source: alpaca needs keys; set {' and '.join(_KEYS)} in the environment of"
            " this app"
        )
    for field, path in list_named_files(data).items():
        if path is not None and not is_url(path) and not Path(path).is_file():
            yield f"data.{field}: {path}: no such file; give another path, or leave the setting out"


def list_named_files(data: DataSettings) -> dict[str, str | None]:
    """Map the settings that name a file, other than the bars, to its path."""
    return {
        "universe.members": data.universe.membership,
        "universe.shares_outstanding": data.universe.shares_outstanding,
        "benchmark": data.benchmark,
        "actions": data.actions,
        "features.normalisation": data.features.normalisation,
        **{f"features.daily.{name}": path for name, path in data.features.daily.items()},
    }


def _check_earlier(config: RunConfig) -> Iterator[str]:
    """Check the run to start from, and an existing run of this name."""
    address = config.from_run
    if (
        address is not None
        and not is_url(address)
        and not (Path(address) / "tournament.json").is_file()
    ):
        yield (
            f"from_run: {address}: no tournament is there; give the folder of a run that has raced"
        )
    try:
        find_stages_to_repeat(config)
    except RunError as error:
        yield str(error)


def _check_places(config: RunConfig) -> Iterator[str]:
    for field, folder in (("runs_dir", config.runs_dir), ("cache", config.cache)):
        there = next(
            (one for one in (folder.absolute(), *folder.absolute().parents) if one.exists()), None
        )
        if there is None or not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            yield f"{field}: {folder} cannot be written to; choose another folder"
    try:
        Ledger().lines()
    except LedgerError as error:
        yield str(error)
