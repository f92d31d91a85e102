"""Where a market lies: an address made of all that decides it, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fintrader.data.place import read_whole
from fintrader.data.settings import DataSettings
from fintrader.data.sources.base import Feed
from fintrader.errors import DataError
from fintrader.files import dump_json

BUILD_VERSION = 5
"""Goes into every address; raised when the same settings would give other numbers."""


_SETTINGS = {
    "benchmark": "data.benchmark.path",
    "actions": "data.adjust.path",
    "membership": "data.universe.membership",
}


def market_path(settings: DataSettings, feed: Feed, cache: Path) -> Path:
    """Where the market of these (effective) settings and bars lies, built or not."""
    return Path(cache) / _address(settings, inputs_of(settings, feed)) / "market.safetensors"


def inputs_of(settings: DataSettings, feed: Feed) -> dict[str, Any]:
    """What the market is made from, without any path: kind, and the content of every file."""
    inputs = dict(feed.inputs)
    sides: dict[str, str | None] = {
        "benchmark": settings.benchmark.path,
        "actions": settings.adjust.path,
        "membership": settings.universe.membership,
    }
    sides |= {f"features.daily.{name}": path for name, path in settings.features.daily.items()}
    for name, path in sides.items():
        if path is not None:
            inputs[name] = hashlib.sha256(read_whole(path, _SETTINGS.get(name, f"data.{name}"))).hexdigest()
    return inputs


def portable(settings: DataSettings) -> dict[str, Any]:
    """Settings as JSON with file names in place of paths: where a file lies changes nothing."""
    values: dict[str, Any] = json.loads(settings.model_dump_json())
    del values["store"]
    for part, name in ((values["source"], "path"), (values["benchmark"], "path"), (values["adjust"], "path")):
        if part.get(name):
            part[name] = None  # its content counts, see `_inputs`
    values["universe"]["membership"] = None
    values["features"]["daily"] = sorted(values["features"]["daily"])
    return values


def _address(settings: DataSettings, inputs: dict[str, Any]) -> str:
    text = json.dumps([BUILD_VERSION, portable(settings), inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


NAME = "build.json"


_SEALED_SINCE = 4  # the build version whose records carry a hash


def seal_record(record: Mapping[str, Any]) -> bytes:
    """The file's bytes: the record as JSON, and the SHA-256 of that text beside it."""
    digest = hashlib.sha256(dump_json(dict(record)).encode()).hexdigest()
    return dump_json({**record, "sha256": digest}).encode()


def check_record(path: Path) -> None:
    """Raise DataError when a record is missing, or is not what `seal_record` wrote, to the bit."""
    again = f"delete {path.parent} and build it again"
    try:
        data = path.read_bytes()
        record = json.loads(data)
        claimed = record.pop("sha256", None)
        version = record["version"]
        good = data == seal_record(record) if claimed or version >= _SEALED_SINCE else True
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {again}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); mend its rights, or {again}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise DataError(f"{path} is damaged; {again}")
