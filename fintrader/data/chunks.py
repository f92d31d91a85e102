"""Content-addressed chunks of bars: one Parquet file per source, symbol and month, and a manifest that vouches for it.

    <root>/<kind>/<identity>/manifest.json
    <root>/<kind>/<identity>/<SYMBOL>/<YYYY-MM>-<first 12 of its SHA-256>.parquet

The identity is a hash of what decides the bars: a file's content and how it is read, or a vendor's request. The
manifest names every chunk with its SHA-256, its rows, the request it answers and when; it carries a hash of itself, and
is written after the chunks that it names. Whatever is killed leaves a manifest that is true, and the next build adds
what it lacks.
"""

from __future__ import annotations

import hashlib
import io
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fintrader.data.bars import COLUMNS, Bars, concat
from fintrader.errors import DataError
from fintrader.files import seal, unseal
from fintrader.storage.objects import Objects

FORMAT = "fintrader-bars-2"
MANIFEST = "manifest.json"


@dataclass
class Collection:
    """The chunks of one identity."""

    objects: Objects
    identity: Mapping[str, Any]
    chunks: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    """symbol -> month -> pieces (several when a month came in more than one go)."""
    through: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """symbol -> month -> [first, last] day that a vendor was asked for."""
    unconfirmed: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """symbol -> month -> [day on which, last session for which] a vendor had no bars of a session."""
    complete: bool = False
    """Whether everything the identity names has been stored (a file's whole content)."""

    @classmethod
    def open(cls, root: Objects, kind: str, identity: Mapping[str, Any]) -> Collection:
        """What the store holds of an identity; empty when nothing. Raises DataError when the manifest is damaged."""
        text = json.dumps(identity, sort_keys=True)
        name = f"{kind}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        collection = cls(root.below(name), identity)
        stored = collection.objects.get(MANIFEST)
        if stored is not None:
            manifest = _manifest(stored, collection.objects)
            collection.chunks, collection.complete = manifest["chunks"], manifest["complete"]
            collection.through, collection.unconfirmed = manifest["through"], manifest["unconfirmed"]
        return collection

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
        data = encode(bars)
        digest = hashlib.sha256(data).hexdigest()
        name = f"{_folder(symbol)}/{month}-{digest[:12]}.parquet"
        self.objects.put(name, data, sync=False)
        piece = {
            "file": name,
            "sha256": digest,
            "rows": len(bars),
            "first": int(bars.ts.min()),
            "last": int(bars.ts.max()),
            "request": dict(request),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        pieces = self.chunks.setdefault(symbol, {}).setdefault(month, [])
        if all(other["sha256"] != digest for other in pieces):
            pieces.append(piece)

    def save(self) -> None:
        """Write the manifest: what was added up to here now counts."""
        body = {"format": FORMAT, "identity": dict(self.identity), "complete": self.complete}
        body |= {"chunks": self.chunks, "through": self.through, "unconfirmed": self.unconfirmed}
        self.objects.put(MANIFEST, seal(body))

    def pieces(self, symbol: str | None = None, months: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The chunks of a symbol (all by default) in these months (all by default), in order of symbol and month."""
        return [
            piece
            for name in (sorted(self.chunks) if symbol is None else [symbol])
            for month, pieces in sorted(self.chunks.get(name, {}).items())
            if months is None or month in months
            for piece in pieces
        ]

    def bars(self, symbol: str, months: Sequence[str] | None = None) -> Bars:
        """All bars of a symbol in the order in which they came. Raises DataError when a chunk is missing or damaged."""
        pieces = self.pieces(symbol, months)
        if not pieces:
            raise DataError(f"no bars of {symbol} in {self.objects}; check the symbol and the range")
        parts = [decode(self.piece(piece), symbol, str(self.identity.get("name", self.objects))) for piece in pieces]
        bars = concat(parts)
        # row by row as the source had them, so that disorder is seen and counted
        return bars.take(np.argsort(bars.row, kind="stable")) if bars.row is not None else bars

    def piece(self, piece: Mapping[str, Any]) -> bytes:
        """The bytes of one chunk, checked."""
        data = self.objects.get(piece["file"])
        if data is None or hashlib.sha256(data).hexdigest() != piece["sha256"]:
            state = "is missing" if data is None else "is damaged"
            raise DataError(f"{self.objects}/{piece['file']} {state}; delete {self.objects} and build again")
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


def _manifest(data: bytes, where: Objects) -> dict[str, Any]:
    """What `Collection.save` wrote. Raises DataError when it is not that, to the bit."""
    damaged = DataError(f"{where}/{MANIFEST} is damaged; delete {where} and build again")
    body = unseal(data, damaged)
    if body.get("format") != FORMAT:
        raise damaged
    return body


def verify_store(root: Objects) -> list[str]:
    """One line for everything in a store that is not what was stored; empty when all is well."""
    found = []
    for name in root.names():
        if not name.endswith(f"/{MANIFEST}"):
            continue
        objects = root.below(name.removesuffix(f"/{MANIFEST}"))
        try:
            body = _manifest(root.get(name) or b"", objects)
        except DataError as error:
            found.append(str(error))
            continue
        found += Collection(objects, body["identity"], body["chunks"]).problems()
    return found


def encode(bars: Bars) -> bytes:
    """Bars of one symbol as a Parquet file in memory; equal bars give equal bytes."""
    columns = {"ts": pa.array(bars.ts, pa.timestamp("ns", tz="UTC"))}
    columns |= {name: pa.array(getattr(bars, name)) for name in COLUMNS}
    columns |= {f"extra.{name}": pa.array(values) for name, values in sorted(bars.extras.items())}
    if bars.row is not None:
        columns["row"] = pa.array(bars.row)
    sink = io.BytesIO()
    delta = {name: "DELTA_BINARY_PACKED" for name in ("ts", "row") if name in columns}
    plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    pq.write_table(pa.table(columns), sink, compression="lz4", column_encoding=delta, **plain)
    return sink.getvalue()


def decode(data: bytes, symbol: str, origin: str) -> Bars:
    """What `encode` wrote."""
    table = pq.read_table(pa.BufferReader(data), use_threads=False)
    columns = {name: np.asarray(table[name].to_numpy()) for name in table.column_names if name != "ts"}
    return Bars(
        ts=np.asarray(table["ts"].cast(pa.int64()).to_numpy()),
        symbol=np.zeros(table.num_rows, dtype=np.int32),
        symbols=(symbol,),
        extras={name[6:]: values for name, values in columns.items() if name.startswith("extra.")},
        row=columns.get("row"),
        origin=origin,
        **{name: columns[name] for name in COLUMNS},
    )


def _folder(symbol: str) -> str:
    name = urllib.parse.quote(symbol, safe="")
    return name.replace(".", "%2E") if set(name) <= {"."} else name
