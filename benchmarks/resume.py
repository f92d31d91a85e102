"""Long benchmarks keep each finished run in a file, so that a stopped one goes on where it was."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.common import ROOT, commit
from fintrader.files import write_text


class Records:
    """Finished runs of one benchmark, in `runs/benchmarks/<name>/`, one JSON file each."""

    def __init__(self, name: str, *, fresh: bool = False) -> None:
        """`fresh` measures everything again."""
        self.folder = ROOT / "runs" / "benchmarks" / name
        self.fresh = fresh
        self.commits: set[str] = set()
        """Of all records handed out."""

    def get(
        self, key: str, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The record of `key` if it was made with equal `settings`; else `make()`, kept with the
        commit it is of."""
        path = self.folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', key)}.json"
        wanted = json.loads(json.dumps(settings))
        if path.is_file() and not self.fresh:
            stored = json.loads(path.read_text())
            if stored["settings"] == wanted:
                found: dict[str, Any] = stored["record"]
                self.commits.add(found["commit"])
                return found
        record = {**make(), "commit": commit()}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"settings": wanted, "record": record}))
        self.commits.add(record["commit"])
        return record
