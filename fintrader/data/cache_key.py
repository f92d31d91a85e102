"""Where a market lies: an address made of all that decides it, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fintrader.data.settings import DataSettings
from fintrader.data.sources.base import Feed
from fintrader.errors import DataError
from fintrader.files import seal, unseal
from fintrader.storage.objects import Objects, read_whole

BUILD_VERSION = 5
"""Goes into every address; raised when the same settings would give other numbers, or files of another form."""


def market_path(settings: DataSettings, feed: Feed, cache: Path) -> Path:
    """Where the market of these (effective) settings and bars lies, built or not."""
    return Path(cache) / _address(settings, inputs_of(settings, feed)) / "market.safetensors"


def inputs_of(settings: DataSettings, feed: Feed) -> dict[str, Any]:
    """What the market is made from, without any path: kind, and the content of every file."""
    inputs = dict(feed.inputs)
    daily = [(f"features.daily.{name}", path) for name, path in settings.features.daily.items()]
    for name, path, setting in (
        ("benchmark", settings.benchmark.path, "data.benchmark.path"),
        ("actions", settings.adjust.path, "data.adjust.path"),
        ("membership", settings.universe.membership, "data.universe.membership"),
        *((name, path, f"data.{name}") for name, path in daily),
    ):
        if path is not None:
            inputs[name] = hashlib.sha256(read_whole(path, setting)).hexdigest()
    return inputs


def portable(settings: DataSettings) -> dict[str, Any]:
    """Settings as JSON with file names instead of paths: where a file lies changes nothing."""
    values: dict[str, Any] = json.loads(settings.model_dump_json())
    del values["store"]
    for part, name in ((values["source"], "path"), (values["benchmark"], "path"), (values["adjust"], "path")):
        if part.get(name):
            part[name] = None  # its content counts, see `inputs_of`
    values["universe"]["membership"] = None
    values["features"]["daily"] = sorted(values["features"]["daily"])
    return values


def _address(settings: DataSettings, inputs: dict[str, Any]) -> str:
    text = json.dumps([BUILD_VERSION, portable(settings), inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


RECORD = "build.json"


def write_record(market: Path, record: Mapping[str, Any]) -> None:
    """Write down beside a market what it was made from and what was repaired. Raises StorageError."""
    Objects(market.parent).put(RECORD, seal(record, indent=2))


def check_record(market: Path) -> None:
    """Raise DataError when the record of a market is missing, or is not what `write_record` wrote, to the bit."""
    record, again = market.with_name(RECORD), f"delete {market.parent} and build it again"
    data = Objects(market.parent).get(RECORD)
    if data is None:
        raise DataError(f"{record} is missing; {again}")
    unseal(data, DataError(f"{record} is damaged; {again}"))
