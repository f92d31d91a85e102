"""Content-addressed chunks of bars: Parquet files by source, symbol and month, and a manifest with
their hashes.

    <root>/<kind>/<identity>/manifest[-<first 16 of the file's SHA-256>].json
    <root>/<kind>/<identity>/<SYMBOL>/<YYYY-MM>-<first 12 of its SHA-256>.parquet

The identity is a hash of everything that decides the bars: the name and reading settings of a file,
the reading settings of a set of files of one day each, or a vendor's settings. A file's
former manifest is removed once the new one is saved; both share chunks, so only the new rows of a
file that has grown are added.

For every chunk the manifest holds its SHA-256, its number of rows, the request that it answers and
the time of storage. It also holds a hash of itself, and is written after the chunks that it names.
So the manifest is valid even if the process is killed, and the next build adds the missing chunks.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import urllib.parse
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fintrader.bars.bars import COLUMNS, Array, Bars, concat, wrap_columns
from fintrader.errors import DataError
from fintrader.files import hash_bytes, seal, unseal
from fintrader.records import JsonValue, RecordError, from_json
from fintrader.storage.objects import ObjectStore

FORMAT = "fintrader-bars-3"
MANIFEST = "manifest.json"
_MANIFEST = re.compile(r"(?:(?P<folder>.*)/)?(?P<name>manifest(-[0-9a-f]{16})?\.json)")


@dataclass(frozen=True)
class Chunk:
    """A stored part of one symbol's bars of a month."""

    file: str
    """Name of the chunk's file within the collection's folder."""
    sha256: str
    rows: int
    row: int | None
    """Number of its first row in the source's file; None for bars that come from no file."""
    first: int
    """Time of its earliest bar, nanoseconds since 1970 UTC; `last`: of its latest."""
    last: int
    request: Mapping[str, JsonValue]
    """The file or the vendor's request that it answers."""
    time: str
    """Time at which it was stored, ISO 8601, UTC."""

    @property
    def asked(self) -> dt.date:
        """Day of the request to the vendor, as of which the prices are adjusted."""
        return dt.date.fromisoformat(str(self.request["asked"]))


Chunks = dict[str, dict[str, tuple[Chunk, ...]]]
"""Symbol -> month -> its chunks: several if the month was stored in parts."""
Spans = dict[str, dict[str, tuple[str, str]]]
"""Symbol -> month -> two days."""


@dataclass(kw_only=True)
class ChunkManifest:
    """Content of a manifest file."""

    identity: Mapping[str, JsonValue]
    chunks: Chunks = field(default_factory=dict)
    through: Spans = field(default_factory=dict)
    """The first and the last day of each month that a vendor was asked for."""
    unconfirmed: Spans = field(default_factory=dict)
    """Requests that a vendor answered without bars of some session: the day of the request, and the
    last session that it asked for."""
    twice: dict[str, dict[str, str]] = field(default_factory=dict)
    """Symbol -> month -> day on which a vendor answered twice without bars of some session."""
    complete: bool = False
    """True once all bars of the identity are stored: a file's whole content."""
    next_row: int | None = None
    """Number that the next row added to the file will have."""
    files: tuple[tuple[str, str, int], ...] = ()
    """Name, SHA-256 of the content and number of the first row of each file; only where several
    files form one collection."""


@dataclass(kw_only=True)
class Collection(ChunkManifest):
    """The chunks of one identity, and its manifest."""

    objects: ObjectStore
    manifest: str = MANIFEST

    @classmethod
    def open(
        cls,
        root: ObjectStore,
        kind: str,
        identity: Mapping[str, JsonValue],
        sha256: str | None = None,
    ) -> Collection:
        """Open the collection of an identity; it is empty if nothing is stored yet. sha256: hash of
        the content, for the identity of a file.

        Raises DataError when the manifest is damaged.
        """
        text = json.dumps([FORMAT, identity], sort_keys=True)
        home = root.open_below(f"{kind}/{hash_bytes(text.encode())[:16]}")
        name = MANIFEST
        if sha256 is not None:
            identity = {**identity, "sha256": sha256}
            name = f"manifest-{sha256[:16]}.json"
        stored = home.get(name)
        if stored is None:
            return cls(objects=home, identity=identity, manifest=name)
        return cls.load(home, name)

    @classmethod
    def load(cls, home: ObjectStore, name: str) -> Collection:
        """Open a collection by the name of its manifest. Raises DataError when the manifest is
        damaged."""
        return cls(objects=home, manifest=name, **vars(_read_manifest(home, name)))

    def open_others(self) -> Iterator[Collection]:
        """Open the collections of the same identity with another content. Raises DataError when a
        manifest is damaged."""
        for name in self.objects.list_names():
            match = _MANIFEST.fullmatch(name)
            if match is not None and not match["folder"] and name != self.manifest:
                yield Collection.load(self.objects, name)

    @property
    def symbols(self) -> list[str]:
        """Symbols that have bars, sorted."""
        return sorted(name for name, months in self.chunks.items() if any(months.values()))

    def span(self) -> tuple[int, int]:
        """Return the first and the last time of all bars, nanoseconds since 1970 UTC."""
        chunks = self.list_chunks()
        return min(chunk.first for chunk in chunks), max(chunk.last for chunk in chunks)

    def add(self, symbol: str, month: str, bars: Bars, request: Mapping[str, JsonValue]) -> None:
        """Store a further chunk of a month. It becomes part of the collection once `save` has
        written the manifest."""
        data = encode(bars)
        digest = hash_bytes(data)
        times = (bars.without_empty() or bars).ts
        chunk = Chunk(
            file=f"{_name_folder(symbol)}/{month}-{digest[:12]}.parquet",
            sha256=digest,
            rows=len(bars),
            row=None if bars.row is None else int(bars.row[0]),
            first=int(times.min()),
            last=int(times.max()),
            request=request,
            time=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        )
        self.objects.put(chunk.file, data, sync=False)
        known = self.chunks.get(symbol, {}).get(month, ())
        if chunk.row is not None or all(other.sha256 != digest for other in known):
            self.keep(symbol, month, chunk)

    def keep(self, symbol: str, month: str, chunk: Chunk) -> None:
        """Add a stored chunk to a month in the manifest."""
        months = self.chunks.setdefault(symbol, {})
        months[month] = (*months.get(month, ()), chunk)

    def save(self) -> None:
        """Write the manifest, so that all added chunks become part of the collection."""
        body = {one.name: getattr(self, one.name) for one in fields(ChunkManifest)}
        body["format"] = FORMAT
        # plain `vars`: a manifest may hold ten thousand chunks, and is saved after each request
        body["chunks"] = {
            symbol: {month: [vars(chunk) for chunk in chunks] for month, chunks in months.items()}
            for symbol, months in self.chunks.items()
        }
        self.objects.put(self.manifest, seal(body))

    def forget(self) -> None:
        """Remove the manifest; `tidy` removes the chunks that no other manifest names."""
        self.objects.remove(self.manifest)

    def tidy(self) -> None:
        """Remove all objects that no manifest names. Call it while holding the lock. Raises
        DataError for a damaged manifest."""
        self.objects.remove_temporaries()
        self.objects.remove(*list_unnamed(self.objects))
        if not self.objects.list_names():
            self.objects.clear()

    def list_chunks(
        self, symbol: str | None = None, months: Sequence[str] | None = None
    ) -> list[Chunk]:
        """List the chunks of a symbol (all by default) in these months (all by default), in order
        of symbol and month."""
        return [
            chunk
            for name in (sorted(self.chunks) if symbol is None else [symbol])
            for month, chunks in sorted(self.chunks.get(name, {}).items())
            if months is None or month in months
            for chunk in chunks
        ]

    def bars(self, symbol: str, months: Sequence[str] | None = None) -> Bars:
        """Return all bars of a symbol in the source's order. Raises DataError when a chunk is
        missing or damaged, and BarError when there is none."""
        chunks = self.list_chunks(symbol, months)
        origin = str(self.identity.get("name", self.objects))
        bars = concat([decode(self.read(chunk), symbol, origin, chunk.row) for chunk in chunks])
        if self.files:
            files = tuple((first, name) for name, _, first in self.files)
            bars = replace(bars, origin=f"{len(self.files)} files", files=files)
        if bars.row is None or bool((bars.row[1:] >= bars.row[:-1]).all()):
            return bars
        # restore the source's order, so that rows out of order are found and counted
        return bars.take(np.argsort(bars.row, kind="stable"))

    def read(self, chunk: Chunk) -> bytes:
        """Read a chunk's bytes. Raises DataError when they are missing or damaged."""
        data = self.objects.get(chunk.file)
        if data is None or hash_bytes(data) != chunk.sha256:
            state = "is missing" if data is None else "is damaged"
            raise DataError(
                f"{self.objects}/{chunk.file} {state}; delete {self.objects} and build again"
            )
        return data


def _read_manifest(home: ObjectStore, name: str) -> ChunkManifest:
    """Read a manifest that `Collection.save` wrote. Raises DataError when its hash or its format is
    wrong."""
    damaged = DataError(f"{home}/{name} is damaged; delete {home} and build again")
    body = unseal(home.get(name) or b"", damaged)
    if body.pop("format", None) != FORMAT:
        raise damaged
    try:
        return from_json(ChunkManifest, {"files": [], "twice": {}, **body})
    except RecordError:
        raise damaged from None


def verify_store(root: ObjectStore) -> list[str]:
    """Check all manifests and chunks of a store. Returns one line for each that is missing or
    damaged; empty if there is none."""
    problems: dict[str, None] = {}  # no line twice: manifests share chunks
    for name in root.list_names():
        match = _MANIFEST.fullmatch(name)
        if match is None:
            continue
        home = root.open_below(match["folder"]) if match["folder"] else root
        try:
            collection = Collection.load(home, match["name"])
        except DataError as error:
            problems[str(error)] = None
            continue
        for chunk in collection.list_chunks():
            try:
                collection.read(chunk)
            except DataError as error:
                problems[str(error)] = None
    return list(problems)


def list_unnamed(home: ObjectStore, manifests: Container[str] | None = None) -> list[str]:
    """List the objects of a collection's folder that are none of these manifests (all by default)
    nor named by one.

    Raises DataError for a damaged manifest.
    """
    names = home.list_names()
    named = {
        name
        for name in names
        if _MANIFEST.fullmatch(name) and (manifests is None or name in manifests)
    }
    for name in sorted(named):
        named |= {chunk.file for chunk in Collection.load(home, name).list_chunks()}
    return [name for name in names if name not in named]


def encode(bars: Bars) -> bytes:
    """Encode bars of one symbol as a Parquet file; equal bars give equal bytes. Numbers of rows are
    stored relative to the first, and only if rows are missing between them."""
    columns = {"ts": pa.array(bars.ts, pa.timestamp("ns", tz="UTC"))}
    columns |= {name: pa.array(_shorten(getattr(bars, name))) for name in COLUMNS}
    columns |= {
        f"extra.{name}": pa.array(_shorten(values)) for name, values in sorted(bars.extras.items())
    }
    encoding = dict.fromkeys(columns, "BYTE_STREAM_SPLIT") | {"ts": "DELTA_BINARY_PACKED"}
    if bars.row is not None and (np.diff(bars.row) != 1).any():
        columns["row"] = pa.array(bars.row - bars.row[0])
        encoding["row"] = "DELTA_BINARY_PACKED"
    sink = pa.BufferOutputStream()
    plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    pq.write_table(pa.table(columns), sink, compression="lz4", column_encoding=encoding, **plain)
    return bytes(sink.getvalue().to_pybytes())


def _shorten(values: Array) -> Array:
    """Convert to float32 where no value changes and none is NaN."""
    short = values.astype(np.float32)
    return short if bool((short == values).all()) else values


def decode(data: bytes, symbol: str, origin: str, row: int | None = None) -> Bars:
    """Decode bars that `encode` wrote. row: number of their first row; None if they come from no
    file."""
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    columns = {
        name: table[name].to_numpy().astype(np.int64 if name == "row" else np.float64, copy=False)
        for name in table.column_names
        if name != "ts"
    }
    return wrap_columns(
        symbol,
        np.asarray(table["ts"].cast(pa.int64()).to_numpy()),
        {name: columns[name] for name in COLUMNS},
        origin,
        extras={name[6:]: values for name, values in columns.items() if name.startswith("extra.")},
        row=None if row is None else row + columns.get("row", np.arange(table.num_rows)),
    )


def _name_folder(symbol: str) -> str:
    name = urllib.parse.quote(symbol, safe="")
    # avoid a hidden folder, the folder above, and the name of a manifest
    if name.startswith("."):
        return "%2E" + name[1:]
    return name.replace(MANIFEST, MANIFEST.replace(".", "%2E"))
