"""Bars of files as a feed. The first build cuts the files into chunks by symbol and month, with
bounded memory; later builds read the chunks, and use those of a file's earlier content again.

Each file has a collection of its own, so that a file that grows is read from its former end on.
Files of one day each, with the date in the name, form one collection together, like a long file to
which days are added at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fintrader.bars.bars import DAY_MINUTES, MINUTE_NS, Bars, concat
from fintrader.bars.calendar import day_starts
from fintrader.bars.chunks import Chunk, Collection, encode
from fintrader.bars.clean import refuse_bad_rows
from fintrader.bars.sources.bar_files import BATCH_ROWS, iterate_batches, select_files
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.errors import BarError, DataError
from fintrader.files import hash_bytes
from fintrader.progress import SILENT, Progress
from fintrader.storage.objects import ObjectStore

_BUFFER_ROWS = 4_000_000
"""Most rows that wait in memory for the end of their month."""
_DATE = re.compile(r"(?:19|20)\d\d(-?)[01]\d\1[0-3]\d")
_FEWEST_DAYS = 8
"""Fewest different dates in the names of files that make them files of days."""
_AT_ONCE = 4
"""Number of manifests that are saved at the same time."""
_Save = Callable[[Collection, Collection | None, contextlib.ExitStack], None]
"""Saves a collection in the background, then removes the manifest of the one that it replaces, and
releases the locks that are held for it."""


class _Part(NamedTuple):
    """The files of one collection: a single file, or all files of days."""

    name: str
    sha256: str
    cut: Callable[[Collection, Progress | None], Collection | None]
    """Fills a collection without chunks, and returns the collection that it replaces, if any."""


class FilesFeed(Feed):
    """Bars of files, kept in a store. `prepare` reads the files.

    Daily bars, whose times are dates, are moved to the open of their session.
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
        """is_raw: keep bad rows instead of raising BarError for them."""
        self._iterate = iterate_batches if is_raw else iterate_checked
        self.settings = settings
        self.calendar = calendar
        self.store = store
        self.files, self._contents = _read_contents(settings, path, store)
        self.inputs = identify_files(self.files, [content.sha256 for content in self._contents])

    def prepare(self, progress: Progress | None = None) -> None:
        """Cut the files that are not in the store yet into chunks. Raises BarError for a bad row
        (unless `is_raw`), and if no file holds a row."""
        with _save_in_background() as save:
            every = [self._complete(part, save, progress) for part in self._plan_parts()]
        self._collections = [collection for collection in every if collection.symbols]
        if not self._collections:
            raise BarError(f"{self.files[0].name} and all other files hold no row; check data.path")
        self.symbols = sorted(
            {symbol for collection in self._collections for symbol in collection.symbols}
        )

    def stored(self) -> list[Collection]:
        return [self._open(part.name, part.sha256) for part in self._plan_parts()]

    def _plan_parts(self) -> Iterator[_Part]:
        days, alone = separate_daily_files(self.files)
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
        """Return a file's name, preceded by the symbol and date that `name_pattern` finds in its
        path."""
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
        start = content.grown_from if file.appendable else None
        if before and before.complete and start and before.next_row is not None:
            continue_from(collection, before)
            after = (start, before.next_row)
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
        """Open a collection, and fill it unless it is complete."""
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
def _save_in_background() -> Iterator[_Save]:
    """Save collections in the background while the next file is read, several at once, since a disk
    flushes several in the time of one.

    An error of a save is raised by a later save, or at the end.
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


def identify_files(files: list[BarFile], hashes: list[str]) -> dict[str, Any]:
    """Return the identity of the bars of files: their names and SHA-256 hashes."""
    return {
        "kind": "files",
        "files": [
            {"name": file.name, "sha256": digest}
            for file, digest in zip(files, hashes, strict=True)
        ],
    }


@dataclass(frozen=True)
class _Content:
    """Content of a file, and its change since the last build."""

    sha256: str
    before: str | None = None
    """SHA-256 of its earlier content, if it has changed."""
    grown_from: int | None = None
    """Size in bytes of its earlier content, if the file still begins with that content."""
    superseded: bool = False
    """True if no file has the earlier content any more."""


def _read_contents(
    settings: FilesSettings, path: str, store: ObjectStore
) -> tuple[list[BarFile], list[_Content]]:
    """List the files that have the settings' columns, and their contents. For unchanged files both
    are taken from the store."""
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

        files = select_files(settings, path, is_known)
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


def separate_daily_files(files: Sequence[BarFile]) -> tuple[list[int], list[int]]:
    """Return the numbers of the files of one day each, in order of their dates, and the numbers of
    all other files."""
    dates = {}
    for number, file in enumerate(files):
        matches = list(_DATE.finditer(file.place))
        if matches:
            dates[number] = matches[-1][0].replace("-", "")
    if len(set(dates.values())) < _FEWEST_DAYS:
        return [], list(range(len(files)))
    days = sorted(dates, key=lambda number: (dates[number], files[number].place))
    return days, [number for number in range(len(files)) if number not in dates]


def ingest(
    batches: Iterator[Bars],
    collection: Collection,
    progress: Progress | None,
    name: str,
    *,
    before: Collection | None = None,
) -> None:
    """Cut rows into chunks by symbol and month, and add them to a collection that is yet to be
    saved.

    before: the collection of the file's earlier content, whose chunks are used again where their
    rows are unchanged, even if they moved within the file.

    Rows of a symbol and month wait in memory until a batch contains none of them: they are then
    complete if the file is sorted by symbol or by time. When `_BUFFER_ROWS` wait, all are stored,
    and a month consists of several chunks. So memory is bounded whatever the order of the rows.
    """
    known = before.chunks if before is not None and before.complete else {}
    earlier = {
        (symbol, month): [*chunks]
        for symbol, months in known.items()
        for month, chunks in months.items()
    }
    collection.objects.remove_temporaries()
    waiting: dict[tuple[str, str], list[Bars]] = {}
    held = 0

    def store(key: tuple[str, str]) -> int:
        bars = concat(waiting.pop(key))
        left = _reuse_chunks(collection, *key, bars, earlier.get(key, []))
        if len(left):
            collection.add(*key, left, {"file": bars.origin})
        return len(bars)

    with (progress or SILENT).task(f"read {name}", unit="rows") as task:
        for batch in batches:
            parts = _split_by_symbol_and_month(batch)
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


def iterate_checked(
    file: BarFile, settings: FilesSettings, after: tuple[int, int] | None = None, **how: bool
) -> Iterator[Bars]:
    """Iterate over a file's rows, like `iterate_batches`. Raises BarError for the first bad row."""
    for batch in iterate_batches(file, settings, after, **how):
        refuse_bad_rows(batch)
        yield batch


def iterate_days(
    files: Sequence[BarFile],
    named: Sequence[tuple[str, str]],
    read: Callable[[BarFile], Iterator[Bars]],
    collection: Collection,
) -> Iterator[Bars]:
    """Yield the rows of the files of days that the collection lacks, with numbers that run on from
    file to file; add each file to `collection.files`.

    named: name and SHA-256 of the content of each file; read: iterates over the rows of one, and
    its errors are passed on.
    """
    waiting: list[Bars] = []
    base = collection.next_row or 0
    done = len(collection.files)
    for file, (name, sha256) in zip(files[done:], named[done:], strict=True):
        collection.files = (*collection.files, (name, sha256, base))
        rows = 0
        for batch in read(file):
            assert batch.row is not None
            waiting.append(replace(batch, row=batch.row + base))
            rows = int(batch.row[-1]) + 1
            if sum(map(len, waiting)) >= BATCH_ROWS:
                yield concat(waiting)
                waiting = []
        base += rows
    if waiting:
        yield concat(waiting)


def find_earlier_days(
    collection: Collection, named: Sequence[tuple[str, str]]
) -> tuple[Collection | None, bool]:
    """Find an earlier collection of the files of days; True if its files are the first of those
    `named` now, so that the others can be added to it."""
    best: Collection | None = None
    for before in collection.open_others():
        if before.complete and before.files:
            if [one[:2] for one in before.files] == list(named[: len(before.files)]):
                return before, True
            best = before
    return best, False


def continue_from(collection: Collection, before: Collection) -> None:
    """Copy the content of another collection into `collection`, in place."""
    collection.chunks = {symbol: {**months} for symbol, months in before.chunks.items()}
    collection.files = before.files
    collection.next_row = before.next_row


def _reuse_chunks(
    collection: Collection, symbol: str, month: str, bars: Bars, earlier: list[Chunk]
) -> Bars:
    """Reuse the `earlier` chunks with which these rows begin as chunks of the month; return the
    rows after them. Used chunks are removed from `earlier`, in place.

    Rows are compared by the hash of their encoded form, so that no chunk has to be read.
    """
    done = 0
    while earlier and done + earlier[0].rows <= len(bars):
        stop = done + earlier[0].rows
        part = bars.take(slice(done, stop))
        if hash_bytes(encode(part)) != earlier[0].sha256:
            earlier.clear()
            break
        row = None if part.row is None else int(part.row[0])
        collection.keep(symbol, month, replace(earlier.pop(0), row=row))
        done = stop
    return bars.take(slice(done, len(bars)))


def _split_by_symbol_and_month(batch: Bars) -> dict[tuple[str, str], Bars]:
    """Split rows by (symbol, month of the UTC date like 2016-01); each part keeps its order."""
    day = batch.ts // (DAY_MINUTES * MINUTE_NS)
    first = int(day.min())
    months = (
        np.arange(first, int(day.max()) + 1).astype("datetime64[D]").astype("datetime64[M]")
    )  # of each day
    number = (months - months[0]).astype(np.int64)
    key = batch.symbol * (number[-1] + 1) + number[day - first]
    if np.any(key[1:] < key[:-1]):
        order = np.argsort(key, kind="stable")
        batch = batch.take(order)
        key = key[order]
    groups = {}
    edges = [0, *(np.flatnonzero(key[1:] != key[:-1]) + 1).tolist(), len(key)]
    for start, stop in itertools.pairwise(edges):
        part = batch.take(slice(start, stop))
        name = batch.symbols[part.symbol[0]]
        month = months[0] + key[start] % (number[-1] + 1)
        groups[name, str(month)] = replace(
            part, symbol=np.zeros(len(part), dtype=np.int32), symbols=(name,)
        )
    return groups
