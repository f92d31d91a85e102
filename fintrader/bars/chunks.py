"""Content-addressed chunks of bars: one Parquet file per source, symbol and month, and a manifest
that vouches for it.

    <root>/<kind>/<identity>/manifest[-<first 16 of the file's SHA-256>].json
    <root>/<kind>/<identity>/<SYMBOL>/<YYYY-MM>-<first 12 of its SHA-256>.parquet

The identity is a hash of what decides the bars: a file's name and how it is read, of files of days
how they are read, or a vendor's request. A file has a manifest for each content that it had; all
share the chunks, so that one which has grown adds only its new rows.

The manifest names every chunk with its SHA-256, its rows, the request it answers and when; it
carries a hash of itself, and is written after the chunks that it names. Whatever is killed leaves a
manifest that is true, and the next build adds what it lacks.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fintrader.bars.bars import COLUMNS, Array, Bars, concat, wrap_columns
from fintrader.errors import DataError
from fintrader.files import seal, unseal
from fintrader.storage.objects import ObjectStore

FORMAT = "fintrader-bars-3"
MANIFEST = "manifest.json"
_MANIFEST = re.compile(r"(?:(?P<folder>.*)/)?(?P<name>manifest(-[0-9a-f]{16})?\.json)")


@dataclass
class Collection:
    """The chunks of one identity."""

    objects: ObjectStore
    identity: Mapping[str, Any]
    chunks: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    """symbol -> month -> pieces (several when a month came in more than one go)."""
    through: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """symbol -> month -> [first, last] day that a vendor was asked for."""
    unconfirmed: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """symbol -> month -> [day on which, last session for which] a vendor had no bars of a
    session."""
    complete: bool = False
    """Whether everything the identity names has been stored (a file's whole content)."""
    next_row: int | None = None
    """The number that a further row of the file would have, once it is complete."""
    files: list[list[Any]] = field(default_factory=list)
    """Of several files as one: what each is called, the SHA-256 of its content, and what its rows
    are numbered from."""
    manifest: str = MANIFEST

    @classmethod
    def open(
        cls, root: ObjectStore, kind: str, identity: Mapping[str, Any], sha256: str | None = None
    ) -> Collection:
        """What the store holds of an identity; empty when nothing. Of a file, `sha256` is that of
        its content.

        Raises DataError when the manifest is damaged.
        """
        text = json.dumps([FORMAT, identity], sort_keys=True)
        home = root.open_below(f"{kind}/{hashlib.sha256(text.encode()).hexdigest()[:16]}")
        if sha256 is None:
            collection = cls(home, identity)
        else:
            collection = cls(
                home, {**identity, "sha256": sha256}, manifest=f"manifest-{sha256[:16]}.json"
            )
        stored = collection.objects.get(collection.manifest)
        if stored is not None:
            manifest = _manifest(stored, home, collection.manifest)
            collection.chunks = manifest["chunks"]
            collection.complete = manifest["complete"]
            collection.through = manifest["through"]
            collection.unconfirmed = manifest["unconfirmed"]
            collection.next_row = manifest["next_row"]
            collection.files = manifest.get("files", [])
        return collection

    def others(self) -> Iterator[Collection]:
        """What the store holds of the same files with another content. Raises DataError when a
        manifest is damaged."""
        for name in self.objects.list_names():
            match = _MANIFEST.fullmatch(name)
            if match is not None and not match["folder"] and name != self.manifest:
                body = _manifest(self.objects.get(name) or b"", self.objects, name)
                yield Collection(
                    self.objects,
                    body["identity"],
                    body["chunks"],
                    complete=body["complete"],
                    next_row=body["next_row"],
                    files=body.get("files", []),
                    manifest=name,
                )

    @property
    def symbols(self) -> list[str]:
        """Symbols that have bars, sorted."""
        return sorted(name for name, months in self.chunks.items() if any(months.values()))

    def span(self) -> tuple[int, int]:
        """First and last time of all bars (int64 nanoseconds)."""
        pieces = self.pieces()
        return min(piece["first"] for piece in pieces), max(piece["last"] for piece in pieces)

    def add(self, symbol: str, month: str, bars: Bars, request: Mapping[str, Any]) -> None:
        """Store one more piece of a month. It counts once `save` has written the manifest."""
        base = None if bars.row is None else int(bars.row[0])
        data = encode(bars)
        digest = hashlib.sha256(data).hexdigest()
        name = f"{_folder(symbol)}/{month}-{digest[:12]}.parquet"
        self.objects.put(name, data, sync=False)
        piece = {
            "file": name,
            "sha256": digest,
            "rows": len(bars),
            "row": base,
            "first": int(bars.ts.min()),
            "last": int(bars.ts.max()),
            "request": dict(request),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        pieces = self.chunks.setdefault(symbol, {}).setdefault(month, [])
        if base is not None or all(other["sha256"] != digest for other in pieces):
            pieces.append(piece)

    def keep(self, symbol: str, month: str, piece: Mapping[str, Any], row: int | None) -> None:
        """Count a chunk that is there already as a piece of a month; its first row is now number
        `row`."""
        self.chunks.setdefault(symbol, {}).setdefault(month, []).append({**piece, "row": row})

    def save(self) -> None:
        """Write the manifest: what was added up to here now counts."""
        body = {"format": FORMAT, "identity": dict(self.identity), "complete": self.complete}
        body |= {"chunks": self.chunks, "through": self.through, "unconfirmed": self.unconfirmed}
        body |= {"next_row": self.next_row} | ({"files": self.files} if self.files else {})
        self.objects.put(self.manifest, seal(body))

    def forget(self) -> None:
        """Remove the manifest; chunks that no other one names go with `tidy`."""
        self.objects.remove(self.manifest)

    def tidy(self) -> None:
        """Remove what no manifest names. Call it while holding the lock. Raises DataError for a
        damaged manifest."""
        self.objects.remove_temporaries()
        self.objects.remove(*unnamed(self.objects))
        if not self.objects.list_names():
            self.objects.clear()

    def pieces(
        self, symbol: str | None = None, months: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """The chunks of a symbol (all by default) in these months (all by default), in order of
        symbol and month."""
        return [
            piece
            for name in (sorted(self.chunks) if symbol is None else [symbol])
            for month, pieces in sorted(self.chunks.get(name, {}).items())
            if months is None or month in months
            for piece in pieces
        ]

    def bars(self, symbol: str, months: Sequence[str] | None = None) -> Bars:
        """All bars of a symbol in the order in which they came. Raises DataError when a chunk is
        missing or damaged."""
        pieces = self.pieces(symbol, months)
        if not pieces:
            raise DataError(
                f"no bars of {symbol} in {self.objects}; check the symbol and the range"
            )
        origin = str(self.identity.get("name", self.objects))
        parts = [decode(self.piece(piece), symbol, origin, piece["row"]) for piece in pieces]
        bars = concat(parts)
        if self.files:
            bars = replace(
                bars,
                origin=f"{len(self.files)} files",
                files=tuple((one[2], one[0]) for one in self.files),
            )
        if bars.row is None or bool((bars.row[1:] >= bars.row[:-1]).all()):
            return bars
        return bars.take(
            np.argsort(bars.row, kind="stable")
        )  # as the source had them: disorder is seen and counted

    def piece(self, piece: Mapping[str, Any]) -> bytes:
        """The bytes of one chunk, checked."""
        data = self.objects.get(piece["file"])
        if data is None or hashlib.sha256(data).hexdigest() != piece["sha256"]:
            state = "is missing" if data is None else "is damaged"
            raise DataError(
                f"{self.objects}/{piece['file']} {state}; delete {self.objects} and build again"
            )
        return data

    def problems(self) -> list[str]:
        """One line for each chunk that is missing or differs from what was stored."""
        found = []
        for piece in self.pieces():
            try:
                self.piece(piece)
            except DataError as error:
                found.append(str(error))
        return found


def _manifest(data: bytes, where: ObjectStore, name: str) -> dict[str, Any]:
    """What `Collection.save` wrote. Raises DataError when it is not that, to the bit."""
    damaged = DataError(f"{where}/{name} is damaged; delete {where} and build again")
    body = unseal(data, damaged)
    if body.get("format") != FORMAT:
        raise damaged
    return body


def verify_store(root: ObjectStore) -> list[str]:
    """One line for everything in a store that is not what was stored; empty when all is well."""
    found: dict[str, None] = {}  # each once: manifests share chunks
    for name in root.list_names():
        match = _MANIFEST.fullmatch(name)
        if match is None:
            continue
        objects = root.open_below(match["folder"]) if match["folder"] else root
        try:
            body = _manifest(root.get(name) or b"", objects, match["name"])
        except DataError as error:
            found[str(error)] = None
            continue
        found |= dict.fromkeys(Collection(objects, body["identity"], body["chunks"]).problems())
    return list(found)


def unnamed(home: ObjectStore, manifests: Container[str] | None = None) -> list[str]:
    """The objects of a collection's folder that none of these manifests (all by default) names,
    other manifests too.

    Raises DataError for a damaged one.
    """
    names = home.list_names()
    named = {
        name
        for name in names
        if _MANIFEST.fullmatch(name) and (manifests is None or name in manifests)
    }
    for name in sorted(named):
        chunks = _manifest(home.get(name) or b"", home, name)["chunks"]
        named |= {
            piece["file"]
            for months in chunks.values()
            for pieces in months.values()
            for piece in pieces
        }
    return [name for name in names if name not in named]


def _relative_rows(bars: Bars) -> Array | None:
    """Rows counted from the first; None where each follows the one before, and where they are not
    known."""
    if bars.row is None or bool((np.diff(bars.row) == 1).all()):
        return None
    return np.asarray(bars.row - bars.row[0])


def encode(bars: Bars) -> bytes:
    """Bars of one symbol as a Parquet file, without the number of the first row; equal bars give
    equal bytes."""
    columns = {"ts": pa.array(bars.ts, pa.timestamp("ns", tz="UTC"))}
    columns |= {name: pa.array(_short(getattr(bars, name))) for name in COLUMNS}
    columns |= {
        f"extra.{name}": pa.array(_short(values)) for name, values in sorted(bars.extras.items())
    }
    encoding = dict.fromkeys(columns, "BYTE_STREAM_SPLIT") | {"ts": "DELTA_BINARY_PACKED"}
    rows = _relative_rows(bars)
    if rows is not None:
        columns["row"] = pa.array(rows)
        encoding["row"] = "DELTA_BINARY_PACKED"
    sink = pa.BufferOutputStream()
    plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    pq.write_table(pa.table(columns), sink, compression="lz4", column_encoding=encoding, **plain)
    return bytes(sink.getvalue().to_pybytes())


def _short(values: Array) -> Array:
    """As float32 where that says the same."""
    short = values.astype(np.float32)
    return short if bool((short == values).all()) else values


def decode(data: bytes, symbol: str, origin: str, row: int | None = None) -> Bars:
    """What `encode` wrote of bars whose first row is number `row` (None: they are not known)."""
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


def _folder(symbol: str) -> str:
    name = urllib.parse.quote(symbol, safe="")
    # no folder up, no hidden one beside the locks, and no name that is a file of the collection's
    # own
    return (
        "%2E" + name[1:]
        if name.startswith(".")
        else name.replace(MANIFEST, MANIFEST.replace(".", "%2E"))
    )
