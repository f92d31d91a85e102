"""A feed hands out bars symbol by symbol, so that no more than one symbol needs to be in memory.

Files go through the store (`fintrader.data.chunks`): the first build cuts each file into chunks by symbol and month,
later ones read the chunks. A vendor's bars (`vendor`) are asked for month by month and kept the same way.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from fintrader.data.bars import Array, Bars, concat
from fintrader.data.calendar import SessionGrid, day_starts
from fintrader.data.chunks import Collection, content_of
from fintrader.data.clean import refuse_bad_rows
from fintrader.data.corporate_actions import Action
from fintrader.data.sources.files import BarFile, files_of, iterate
from fintrader.data.sources.layout import FilesSettings
from fintrader.errors import DataError
from fintrader.progress import SILENT, Progress
from fintrader.storage.objects import Objects

_BUFFER_ROWS = 4_000_000


class Feed(Protocol):
    """Bars by symbol. Only `inputs` may be read before `prepare` has run, and not where `inputs_need_bars`."""

    inputs: Mapping[str, Any]
    """What identifies the bars, as plain JSON without any path."""
    inputs_need_bars: bool = False
    actions: tuple[Action, ...] = ()
    """Splits and dividends that the source itself announces."""
    symbols: list[str]
    """Symbols that have bars, sorted."""
    missing: Sequence[str] = ()
    """Tickers that were asked for and have no bars."""
    tickers_as_of: dt.date | None = None
    """The day of which the source's tickers are, for bars of all years; None: each bar has the ticker of its day."""
    companies: Mapping[str, str] = MappingProxyType({})
    """Symbol -> key of the company whose share it is (`data.companies`), "" for one of none that is known, where bars
    are put together by company."""

    def holder(self, ticker: str, day: dt.date) -> str | None:
        """The symbol whose share traded under a ticker on a day; None where the source has no bars of it."""
        return ticker if ticker in self.symbols else None

    def prepare(self, progress: Progress | None = None) -> None:
        """Do what takes long: read files, ask vendors. Raises DataError."""
        return

    def stored(self) -> list[Collection]:
        """What the store holds of it so far; may be asked before `prepare`."""
        return []

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
        self.files = files_of(settings)
        self._contents = _contents(self.files, store)
        self.inputs = file_inputs(self.files, [content.sha256 for content in self._contents])

    def prepare(self, progress: Progress | None = None) -> None:
        """Cut the files that the store does not know yet into chunks. Raises BarError for a bad row."""
        pairs = zip(self.files, self._contents, strict=True)
        self._collections = [self._chunks_of(file, content, progress) for file, content in pairs]
        self.symbols = sorted({symbol for collection in self._collections for symbol in collection.symbols})

    def stored(self) -> list[Collection]:
        pairs = zip(self.files, self._contents, strict=True)
        return [self._opened(file, content.sha256) for file, content in pairs]

    def _opened(self, file: BarFile, sha256: str) -> Collection:
        how = self.settings.model_dump(mode="json", exclude={"kind", "path"})
        said = self.settings.read_name(file.place) if self.settings.name_pattern else None  # folders may say something
        name = file.name if said is None else ":".join(filter(None, (*said, file.name)))
        return Collection.open(self.store, "files", {"name": name, **how}, sha256)

    def _chunks_of(self, file: BarFile, content: _Content, progress: Progress | None) -> Collection:
        collection = self._opened(file, content.sha256)
        if collection.complete:
            return collection
        with collection.objects.lock():
            collection = self._opened(file, content.sha256)
            if not collection.complete:
                before = None if content.before is None else self._opened(file, content.before)
                try:
                    ingest(file, self.settings, collection, progress, before=before, grown_from=content.grown_from)
                except DataError:  # chunks of a file that is refused are of no use to anybody
                    collection.tidy()
                    raise
                if before is not None and content.superseded:
                    before.forget()
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


def ingest(
    file: BarFile,
    settings: FilesSettings,
    collection: Collection,
    progress: Progress | None = None,
    *,
    before: Collection | None = None,
    grown_from: int | None = None,
) -> None:
    """Cut one file into chunks by symbol and month; memory stays bounded whatever the file's order.

    Rows wait until a batch passes that holds none of their symbol and month: in a file sorted by symbol or by time
    they are then complete. When too many wait, all are stored, and a month consists of several pieces.

    `before` is what the store holds of the file as it was: its chunks are kept where their rows stand unchanged, be it
    elsewhere in the file. With `grown_from` the first so many bytes of a CSV are known to be the same, and are not
    read again.
    """
    collection.objects.sweep()
    known = _Known(before.chunks if before is not None and before.complete else {})
    after = None
    if before is not None and before.complete and grown_from is not None and file.appendable:
        assert before.next_row is not None
        collection.chunks = {symbol: {**months} for symbol, months in before.chunks.items()}
        for months in collection.chunks.values():
            months.update({month: [*pieces] for month, pieces in months.items()})
        known, after, collection.next_row = _Known({}), (grown_from, before.next_row), before.next_row
    waiting: dict[tuple[str, str], list[Bars]] = {}
    held = 0

    def store(key: tuple[str, str]) -> int:
        bars = concat(waiting.pop(key))
        left = known.keep(collection, *key, bars)
        if len(left):
            collection.add(*key, left, {"file": bars.origin})
        return len(bars)

    with (progress or SILENT).task(f"read {file.name}", unit="rows") as task:
        for batch in iterate(file, settings, after):
            refuse_bad_rows(batch)
            parts = _by_symbol_and_month(batch)
            for key, part in parts.items():
                waiting.setdefault(key, []).append(part)
                held += len(part)
            for key in sorted(waiting):
                if key not in parts or held > _BUFFER_ROWS:
                    held -= store(key)
            assert batch.row is not None
            collection.next_row = int(batch.row[-1]) + 1
            task.advance(len(batch))
        for key in sorted(waiting):
            store(key)
    collection.complete = True
    collection.save()


class _Known:
    """The chunks of a file as it was, month by month, of which each can be kept once."""

    def __init__(self, chunks: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> None:
        self._left = {(name, month): [*pieces] for name, months in chunks.items() for month, pieces in months.items()}

    def keep(self, collection: Collection, symbol: str, month: str, bars: Bars) -> Bars:
        """Count the chunks with which these rows begin as pieces of the month; returns the rows after them."""
        pieces, done = self._left.get((symbol, month), []), 0
        while pieces and done + pieces[0]["rows"] <= len(bars):
            stop = done + pieces[0]["rows"]
            part = bars.take(slice(done, stop))
            if content_of(part) != pieces[0]["content"]:
                pieces.clear()
                break
            collection.keep(symbol, month, pieces.pop(0), None if part.row is None else int(part.row[0]))
            done = stop
        return bars.take(slice(done, len(bars)))


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
        part = batch.take(slice(start, stop))
        name = batch.symbols[part.symbol[0]]
        groups[name, str(month[start])] = replace(part, symbol=np.zeros(len(part), dtype=np.int32), symbols=(name,))
    return groups


@dataclass(frozen=True)
class _Content:
    """What stands in a file, and what stood there when it was looked at last."""

    sha256: str
    before: str | None = None
    """The SHA-256 of what it held before, if that was something else."""
    grown_from: int | None = None
    """So many bytes were all it held before, and it still begins with them."""
    superseded: bool = False
    """Whether no other file holds now what this one held before."""


def _contents(files: list[BarFile], store: Objects) -> list[_Content]:
    """What each file holds. The hashes of those that did not change since are remembered in the store."""
    with store.lock():
        store.sweep(deep=False)
        stored = store.get("fingerprints.json")
        try:
            before: dict[str, list[Any]] = json.loads(stored) if stored else {}
        except ValueError:
            before = {}
        known, contents = dict(before), []
        for file in files:
            version, key = file.version(), f"{file.path}:{file.member or ''}"
            token, digest, size = before.get(key, [None, None, 0])
            if version is not None and version == token:
                contents.append(_Content(digest))
                continue
            sha256, length, prefix = file.digest(size)
            known[key] = [version, sha256, length]
            changed = digest is not None and digest != sha256
            contents.append(
                _Content(sha256, digest if changed else None, size if changed and prefix == digest else None)
            )
        if known != before:
            store.put("fingerprints.json", json.dumps(known, sort_keys=True).encode())
    now = {digest for _, digest, _ in known.values()}
    return [replace(content, superseded=content.before not in now) for content in contents]
