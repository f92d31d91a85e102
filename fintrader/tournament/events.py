"""The event log: what happened, in order, one JSON line each, durable before anyone acts on it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fintrader.files import read_jsonl
from fintrader.tournament.spec import PodResult


class EventLog:
    """Appends to `events.jsonl`. A torn last line (the writer was killed) is cut off before anything is added."""

    def __init__(
        self, path: Path, keep: Callable[[str, Callable[[], str]], None] = lambda lines, everything: None
    ) -> None:
        """`keep` stores new lines elsewhere before they are written here; it may ask for the whole log instead."""
        self.path, self._keep = path, keep
        self.records = read_jsonl(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        with path.open("rb+") as file:  # mend it
            data = file.read()
            if data and not data.endswith(b"\n"):
                file.truncate(data.rfind(b"\n") + 1)
                os.fsync(file.fileno())

    def append(self, *events: dict[str, Any]) -> None:
        """Write the events with one sync. Each has an `event` and gets a `time`."""
        if not events:
            return
        now = round(time.time(), 3)
        stamped = [{"time": now, **event} for event in events]
        text = "".join(json.dumps(event, sort_keys=True, allow_nan=False) + "\n" for event in stamped)
        self._keep(text, lambda: (self.path.read_text() if self.path.exists() else "") + text)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            before = os.fstat(handle).st_size
            data = text.encode()
            written = os.write(handle, data)
            if written != len(data):  # a full disk can take part of a write
                os.ftruncate(handle, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(handle)
        finally:
            os.close(handle)
        self.records += stamped

    def order(self, results: Mapping[str, PodResult]) -> list[str]:
        """Pods that have a result as they were applied; then those that never were, as they finished."""
        known = [pod for pod in dict.fromkeys(str(event["pod"]) for event in self.of("applied")) if pod in results]
        return known + sorted(set(results) - set(known), key=lambda pod: (results[pod].finished, pod))

    def of(self, *kinds: str) -> Iterable[dict[str, Any]]:
        """The events of these kinds, oldest first."""
        return (record for record in self.records if record.get("event") in kinds)
