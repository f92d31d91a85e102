"""`build.json`: what a market was made from and what was repaired, with a hash of itself.

The hash does not go into the market file: a market is the same, to the bit, whether it was built in memory or on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fintrader.errors import DataError
from fintrader.runs import dump_json

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
