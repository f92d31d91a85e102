"""A feed hands out bars symbol by symbol, so that no more than one symbol needs to be in memory.

Files go through the store (`fintrader.data.chunks`): the first build cuts each file into chunks by symbol and month,
later ones read the chunks. A vendor's bars (`vendor`) are asked for month by month and kept the same way.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from fintrader.data.bars import Array, Bars, concat
from fintrader.data.calendar import SessionGrid, day_starts
from fintrader.data.chunks import Collection
from fintrader.data.clean import refuse_bad_rows
from fintrader.data.corporate_actions import Action
from fintrader.data.sources.files import BarFile, FilesSettings, iterate, list_files
from fintrader.errors import DataError
from fintrader.progress import SILENT, Progress
from fintrader.storage.objects import Objects

_BUFFER_ROWS = 8_000_000


class Feed(Protocol):
    """Bars by symbol. Only `inputs` may be read before `prepare` has run, and not where `inputs_need_bars`."""

    inputs: Mapping[str, Any]
    """What identifies the bars, as plain JSON without any path."""
    inputs_need_bars: bool = False
    actions: tuple[Action, ...] = ()
    """Splits and dividends that the source itself announces."""
    symbols: list[str]
    """Symbols that have bars, sorted."""

    def prepare(self, progress: Progress | None = None) -> None:
        """Do what takes long: read files, ask vendors. Raises DataError."""
        return

    def span(self) -> tuple[int, int]:
        """First and last time of all bars (int64 nanoseconds)."""

    def bars(self, symbol: str) -> Bars:
        """All bars of one symbol as the source had them."""

    def index(self, grid: SessionGrid) -> Array | None:
        """`[T]` level of the source's own index at each bar's close, None where it has none."""
        return None


class FilesFeed(Feed):
    """Bars of files, by way of the store. Nothing is read before `prepare`.

    Bars whose times are dates stand at the first minute of their session.
    """

    _collections: list[Collection]

    def __init__(self, settings: FilesSettings, store: Objects, calendar: str) -> None:
        self.settings = settings
        self.calendar = calendar
        self.store = store
        self.files = list_files(settings.path)
        self.inputs = file_inputs(self.files, _fingerprints(self.files, store))

    def prepare(self, progress: Progress | None = None) -> None:
        """Cut the files that the store does not know yet into chunks. Raises BarError for a bad row."""
        how = self.settings.model_dump(mode="json", exclude={"kind", "path"})
        entries = zip(self.files, self.inputs["files"], strict=True)
        self._collections = [self._chunks_of(file, {**entry, **how}, progress) for file, entry in entries]
        self.symbols = sorted({symbol for collection in self._collections for symbol in collection.symbols})

    def _chunks_of(self, file: BarFile, identity: dict[str, Any], progress: Progress | None) -> Collection:
        if self.settings.symbol_from == "column":
            identity["name"] = file.name
        collection = Collection.open(self.store, "files", identity)
        if collection.complete:
            return collection
        with collection.objects.lock():
            collection = Collection.open(self.store, "files", identity)
            if not collection.complete:
                collection.objects.sweep()
                try:
                    ingest(file, self.settings, collection, progress)
                except DataError:  # chunks of a file that is refused are of no use to anybody
                    collection.objects.clear()
                    raise
        return collection

    def span(self) -> tuple[int, int]:
        spans = [collection.span() for collection in self._collections]
        edges = np.array([min(first for first, _ in spans), max(last for _, last in spans)])
        first, last = day_starts(self.calendar, self.settings.timezone, edges).tolist()
        return first, last

    def bars(self, symbol: str) -> Bars:
        bars = concat([part.bars(symbol) for part in self._collections if symbol in part.chunks])
        return replace(bars, ts=day_starts(self.calendar, self.settings.timezone, bars.ts))


def file_inputs(files: list[BarFile], hashes: list[str]) -> dict[str, Any]:
    """What identifies the bars of files."""
    return {
        "kind": "files",
        "files": [{"name": file.name, "sha256": digest} for file, digest in zip(files, hashes, strict=True)],
    }


class MemoryFeed(Feed):
    """Bars that are in memory already."""

    def __init__(
        self,
        bars: Bars,
        inputs: Mapping[str, Any],
        level: Array | None = None,
        minutes: Array | None = None,
        actions: tuple[Action, ...] = (),
    ) -> None:
        self.inputs = inputs
        self.actions = actions
        self._bars = bars if bars.is_sorted() else bars.sorted()
        self._level, self._minutes = level, minutes
        self._edges = np.searchsorted(self._bars.symbol, np.arange(len(bars.symbols) + 1))
        self.symbols = sorted(bars.symbols[code] for code in np.flatnonzero(np.diff(self._edges)))

    def span(self) -> tuple[int, int]:
        return int(self._bars.ts.min()), int(self._bars.ts.max())

    def bars(self, symbol: str) -> Bars:
        code = self._bars.symbols.index(symbol)
        return self._bars.take(np.arange(self._edges[code], self._edges[code + 1])).without_unused()

    def index(self, grid: SessionGrid) -> Array | None:
        if self._level is None or self._minutes is None:
            return None
        at = np.searchsorted(self._minutes, grid.minutes, side="right") - 1
        if at.min() < 0:
            raise DataError("the range begins before the synthetic market; move data.start")
        return np.asarray(self._level[at])


def ingest(file: BarFile, settings: FilesSettings, collection: Collection, progress: Progress | None = None) -> None:
    """Cut one file into chunks by symbol and month; memory stays bounded whatever the file's order.

    Rows wait until a batch passes that holds none of their symbol and month: in a file sorted by symbol or by time
    that is soon. In a shuffled one all are stored as soon as too many wait, and a month has several pieces.
    """
    collection.chunks = {}  # what an unfinished attempt left is written over with the same bytes
    waiting: dict[tuple[str, str], list[Bars]] = {}
    held = 0

    def store(key: tuple[str, str]) -> int:
        bars = concat(waiting.pop(key))
        collection.add(*key, bars, {"file": bars.origin})
        return len(bars)

    with (progress or SILENT).task(f"read {file.name}", unit="rows") as task:
        for batch in iterate(file, settings):
            refuse_bad_rows(batch)
            parts = _by_symbol_and_month(batch)
            for key, part in parts.items():
                waiting.setdefault(key, []).append(part)
                held += len(part)
            for key in sorted(waiting):
                if key not in parts or held > _BUFFER_ROWS:
                    held -= store(key)
            task.advance(len(batch))
        for key in sorted(waiting):
            store(key)
    collection.complete = True
    collection.save()


def _by_symbol_and_month(batch: Bars) -> dict[tuple[str, str], Bars]:
    """(symbol, month like 2016-01, in UTC) -> its rows, in the order in which they came."""
    month = batch.ts.astype("datetime64[ns]").astype("datetime64[M]")
    low = month.min()
    key = batch.symbol.astype(np.int64) * ((month.max() - low).astype(np.int64) + 1) + (month - low).astype(np.int64)
    if np.any(np.diff(key) < 0):
        order = np.argsort(key, kind="stable")
        batch, key, month = batch.take(order), key[order], month[order]
    groups = {}
    for start, stop in itertools.pairwise(np.flatnonzero(np.diff(key, prepend=-1, append=-1))):
        part = batch.take(np.arange(start, stop)).without_unused()
        groups[part.symbols[0], str(month[start])] = part
    return groups


def _fingerprints(files: list[BarFile], store: Objects) -> list[str]:
    """SHA-256 of each file. Those of files that did not change since are remembered in the store."""
    with store.lock():
        store.sweep(deep=False)
        stored = store.get("fingerprints.json")
        try:
            before: dict[str, list[str]] = json.loads(stored) if stored else {}
        except ValueError:
            before = {}
        known, hashes = dict(before), []
        for file in files:
            version, key = file.version(), f"{file.path}:{file.member or ''}"
            if version is None or known.get(key, [""])[0] != version:
                known[key] = [version or "", file.sha256()]
            hashes.append(known[key][1])
        known = {key: entry for key, entry in known.items() if entry[0]}
        if known != before:
            store.put("fingerprints.json", json.dumps(known, sort_keys=True).encode())
    return hashes
