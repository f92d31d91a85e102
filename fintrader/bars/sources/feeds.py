"""Bars of files as a feed: the first build cuts them into chunks by symbol and month (`ingest`),
later builds read the chunks."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fintrader.bars.bars import Bars, concat
from fintrader.bars.calendar import day_starts
from fintrader.bars.chunks import Collection
from fintrader.bars.sources.bar_files import iterate, own_files
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.ingest import (
    continue_from,
    days_together,
    find_earlier_days,
    ingest,
    iterate_checked,
    iterate_days,
)
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.errors import BarError, DataError
from fintrader.files import hash_bytes
from fintrader.progress import Progress
from fintrader.storage.objects import ObjectStore

_AT_ONCE = 4
"""Manifests that are saved at the same time."""
_Save = Callable[[Collection, Collection | None, contextlib.ExitStack], None]
"""Saves a collection in the background, then forgets the one that it replaces and releases the
locks that are held for it."""


class _Part(NamedTuple):
    """The files of one collection: a single file, or all files of days."""

    name: str
    sha256: str
    cut: Callable[[Collection, Progress | None], Collection | None]
    """Fills a collection that lacks its chunks, and returns the one that it replaces."""


class FilesFeed(Feed):
    """Bars of files, by way of the store. `prepare` reads the files.

    Bars whose times are dates stand at the first minute of their session.
    """

    _collections: list[Collection]

    def __init__(
        self,
        settings: FilesSettings,
        path: str,
        store: ObjectStore,
        calendar: str,
        *,
        is_raw: bool = False,
    ) -> None:
        """`is_raw`: keep bad rows, too."""
        self._iterate = iterate if is_raw else iterate_checked
        self.settings = settings
        self.calendar = calendar
        self.store = store
        self.files, self._contents = _read_contents(settings, path, store)
        self.inputs = file_inputs(self.files, [content.sha256 for content in self._contents])

    def prepare(self, progress: Progress | None = None) -> None:
        """Cut the files that the store lacks into chunks. Raises BarError for a bad row."""
        with _saving() as save:
            every = [self._complete(part, save, progress) for part in self._plan_parts()]
        self._collections = [collection for collection in every if collection.symbols]
        if not self._collections:
            raise BarError(f"{self.files[0].name} and all other files hold no row; check the files")
        self.symbols = sorted(
            {symbol for collection in self._collections for symbol in collection.symbols}
        )

    def stored(self) -> list[Collection]:
        return [self._open(part.name, part.sha256) for part in self._plan_parts()]

    def _plan_parts(self) -> Iterator[_Part]:
        days, alone = days_together(self.files)
        for one in alone:
            file = self.files[one]
            content = self._contents[one]
            cut = partial(self._cut_file, file, content)
            yield _Part(self._label(file), content.sha256, cut)
        if days:
            files = [self.files[one] for one in days]
            named = [(self._label(self.files[one]), self._contents[one].sha256) for one in days]
            digest = hash_bytes(json.dumps(named).encode())
            yield _Part("files of days", digest, partial(self._cut_days, files, named))

    def _label(self, file: BarFile) -> str:
        """A file's name, and the symbol and date in the names of its folders."""
        parts = self.settings.read_name(file.place) if self.settings.name_pattern else None
        return file.name if parts is None else ":".join(filter(None, (*parts, file.name)))

    def _open(self, name: str, sha256: str) -> Collection:
        reading = self.settings.model_dump(mode="json", exclude={"kind"})
        return Collection.open(self.store, "files", {"name": name, **reading}, sha256)

    def _cut_file(
        self, file: BarFile, content: _Content, collection: Collection, progress: Progress | None
    ) -> Collection | None:
        before = None if content.before is None else self._open(self._label(file), content.before)
        after = None
        if before and before.complete and content.grown_from and file.appendable:
            assert before.next_row is not None
            continue_from(collection, before)
            after = (content.grown_from, before.next_row)
        batches = self._iterate(file, self.settings, after, is_alone=len(self.files) == 1)
        ingest(batches, collection, progress, file.name, before=None if after else before)
        return before if content.superseded else None

    def _cut_days(
        self,
        files: list[BarFile],
        named: list[tuple[str, str]],
        collection: Collection,
        progress: Progress | None,
    ) -> Collection | None:
        before, grown = find_earlier_days(collection, named)
        if before and grown:
            continue_from(collection, before)
        name = f"{len(named) - len(collection.files)} files of days"
        read = partial(self._iterate, settings=self.settings)
        batches = iterate_days(files, named, read, collection)
        ingest(batches, collection, progress, name, before=None if grown else before)
        return before if grown else None

    def _complete(self, part: _Part, save: _Save, progress: Progress | None) -> Collection:
        """Open a collection and complete its chunks."""
        collection = self._open(part.name, part.sha256)
        if collection.complete:
            return collection
        with contextlib.ExitStack() as held:
            held.enter_context(collection.objects.lock())
            # another process may have cut it meanwhile
            collection = self._open(part.name, part.sha256)
            if not collection.complete:
                try:
                    replaced = part.cut(collection, progress)
                except DataError:  # the chunks of a refused file are useless
                    collection.tidy()
                    raise
                save(collection, replaced, held.pop_all())
        return collection

    def span(self) -> tuple[int, int]:
        spans = [collection.span() for collection in self._collections]
        edges = np.array([min(first for first, _ in spans), max(last for _, last in spans)])
        first, last = day_starts(self.calendar, self.settings.timezone, edges).tolist()
        return first, last

    def bars(self, symbol: str) -> Bars:
        bars = concat([part.bars(symbol) for part in self._collections if symbol in part.chunks])
        return replace(bars, ts=day_starts(self.calendar, self.settings.timezone, bars.ts))


@contextlib.contextmanager
def _saving() -> Iterator[_Save]:
    """Save collections while the next file is read: a disk flushes several in the time of one.

    Raises the error of a save at a later one, or at the end.
    """
    pending: deque[Future[None]] = deque()

    def submit(
        collection: Collection, replaced: Collection | None, held: contextlib.ExitStack
    ) -> None:
        def save() -> None:
            with held:
                collection.save()
                if replaced is not None:
                    replaced.forget()

        pending.append(pool.submit(save))
        if len(pending) > 4 * _AT_ONCE:  # each holds a file open
            pending.popleft().result()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield submit
    for saved in pending:
        saved.result()


def file_inputs(files: list[BarFile], hashes: list[str]) -> dict[str, Any]:
    """Identity of the bars of files."""
    return {
        "kind": "files",
        "files": [
            {"name": file.name, "sha256": digest}
            for file, digest in zip(files, hashes, strict=True)
        ],
    }


@dataclass(frozen=True)
class _Content:
    """Content of a file, and the change since the last build."""

    sha256: str
    before: str | None = None
    """The SHA-256 of its earlier content, if that was another."""
    grown_from: int | None = None
    """Bytes of its earlier content, if it still begins with them."""
    superseded: bool = False
    """No other file holds the earlier content now."""


def _read_contents(
    settings: FilesSettings, path: str, store: ObjectStore
) -> tuple[list[BarFile], list[_Content]]:
    """List the files that have the settings' columns, and their content hashes. The store remembers
    both for unchanged files."""
    layout = hash_bytes(settings.model_dump_json().encode())[:16]
    with store.lock():
        store.remove_temporaries(deep=False)
        stored = store.get("fingerprints.json")
        try:
            before: dict[str, list[Any]] = json.loads(stored) if stored else {}
        except ValueError:
            before = {}
        known = dict(before)

        def is_known(file: BarFile) -> bool:
            version = file.version()
            return version is not None and before.get(_key(file), [])[::3] == [version, layout]

        files = own_files(settings, path, is_known)
        contents = []
        for file in files:
            version = file.version()
            token, digest, size, *_ = before.get(_key(file), [None, None, 0])
            if version is not None and version == token:
                known[_key(file)] = [version, digest, size, layout]
                contents.append(_Content(digest))
                continue
            sha256, length, prefix = file.digest(size)
            known[_key(file)] = [version, sha256, length, layout]
            changed = digest is not None and digest != sha256
            contents.append(
                _Content(
                    sha256,
                    digest if changed else None,
                    size if changed and prefix == digest else None,
                )
            )
        if known != before:
            store.put("fingerprints.json", json.dumps(known, sort_keys=True).encode())
    now = {digest for _, digest, *_ in known.values()}
    return files, [replace(content, superseded=content.before not in now) for content in contents]


def _key(file: BarFile) -> str:
    return f"{file.path}:{file.member or ''}"
