"""Files into chunks by symbol and month, with bounded memory; chunks of a file's earlier content
are kept.

Each file has a collection, so that a file which grows is read from its former end on. Files of
days, each with its date in its name, are one collection together: as one long file to which days
are added at the end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fintrader.bars.bars import DAY_MINUTES, MINUTE_NS, Bars, concat
from fintrader.bars.chunks import Chunk, Collection, encode
from fintrader.bars.clean import refuse_bad_rows
from fintrader.bars.sources.bar_files import BATCH_ROWS, iterate
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.files import hash_bytes
from fintrader.progress import SILENT, Progress

_BUFFER_ROWS = 4_000_000
_DATE = re.compile(r"(?:19|20)\d\d(-?)[01]\d\1[0-3]\d")
_FEWEST_DAYS = 8
"""Fewer different dates in the names of files make no files of days."""


def days_together(files: Sequence[BarFile]) -> tuple[list[int], list[int]]:
    """Numbers of the files of days, in order of their dates, and of all others."""
    dates = {}
    for number, file in enumerate(files):
        found = list(_DATE.finditer(file.place))
        if found:
            dates[number] = found[-1][0].replace("-", "")
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
    """Cut rows into chunks by symbol and month, which count once the collection is saved.

    `before` holds the chunks of the file's earlier content: they are kept where their rows stand
    unchanged, be it elsewhere in the file. Memory stays bounded whatever the rows' order.

    Rows wait until a batch passes that holds none of their symbol and month: sorted by symbol or by
    time they are then complete. When too many wait, all are stored, and a month consists of several
    chunks.
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
        left = _keep(collection, *key, bars, earlier.get(key, []))
        if len(left):
            collection.add(*key, left, {"file": bars.origin})
        return len(bars)

    with (progress or SILENT).task(f"read {name}", unit="rows") as task:
        for batch in batches:
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


def iterate_checked(
    file: BarFile, settings: FilesSettings, after: tuple[int, int] | None = None, **how: bool
) -> Iterator[Bars]:
    """Iterate over a file's rows, like `iterate`. Raises BarError for a bad one."""
    for batch in iterate(file, settings, after, **how):
        refuse_bad_rows(batch)
        yield batch


def iterate_days(
    files: Sequence[BarFile],
    named: Sequence[tuple[str, str]],
    read: Callable[[BarFile], Iterator[Bars]],
    collection: Collection,
) -> Iterator[Bars]:
    """The rows of the files of days that the collection does not hold yet, numbered on from file to
    file; adds each file to it. Raises BarError for a bad one.

    `named`: each one's name and the SHA-256 of its content; `read` iterates over one.
    """
    waiting: list[Bars] = []
    base = collection.next_row or 0
    done = len(collection.files)
    for file, (name, sha256) in zip(files[done:], named[done:], strict=True):
        collection.files = (*collection.files, (name, sha256, base))
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
    """Find the collection of the files of days as they were; True where those are the first of the
    files `named` now."""
    best: Collection | None = None
    for before in collection.open_others():
        if before.complete and before.files:
            if [one[:2] for one in before.files] == list(named[: len(before.files)]):
                return before, True
            best = before
    return best, False


def continue_from(collection: Collection, before: Collection) -> None:
    """Begin with the content of another collection."""
    collection.chunks = {symbol: {**months} for symbol, months in before.chunks.items()}
    collection.files = before.files
    collection.next_row = before.next_row


def _keep(
    collection: Collection, symbol: str, month: str, bars: Bars, earlier: list[Chunk]
) -> Bars:
    """Count the `earlier` chunks with which these rows begin as chunks of the month, each once;
    returns the rows after them.

    Rows are compared by the hash of their encoded form, so that no chunk has to be fetched.
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


def _by_symbol_and_month(batch: Bars) -> dict[tuple[str, str], Bars]:
    """(symbol, month like 2016-01, in UTC) -> its rows, in the order in which they came."""
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
