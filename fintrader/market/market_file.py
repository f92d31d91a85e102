"""The market file, written piece by piece: one safetensors file, laid out before its values are
known.

    8 bytes length | JSON header (names, kinds, shapes, offsets, metadata) | arrays, those of the
    longest values first

It is written by hand (https://github.com/huggingface/safetensors#format), because the library would
hold the whole file in memory. Needs no torch; `MarketTensors.load` reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from fintrader.bars.bars import PRICES, Array
from fintrader.errors import MarketError
from fintrader.files import atomic_file
from fintrader.records import RecordError, from_json, to_json
from fintrader.results.market_description import MarketDescription
from fintrader.system import read_at, write_at

FORMAT = "fintrader-market-4"
ARRAYS = {
    "open": "float32",
    "high": "float32",
    "low": "float32",
    "close": "float32",
    "volume": "float32",
    "features": "float32",
    "context": "float32",
    "tradable": "bool",
    "member": "bool",
    "session": "int64",
    "minutes": "int64",
    "benchmark": "float64",
    "shares_outstanding": "float32",
}
"""Kind of each array with a row for each bar, in the order of the content hash."""
EVENTS = {"bar": "int64", "asset": "int64", "split": "float64", "dividend_usd": "float64"}
EVENT = "event_"
"""Prefix of the names of events in a market file."""
_SAFETENSORS = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
_PIECE = 4 << 20
_LONGEST_HEADER = 100_000_000
"""Longest header that safetensors reads."""


class StoredArray(NamedTuple):
    """One array of a safetensors file."""

    name: str
    kind: str
    """Name of the type in numpy and torch: float32, bool, ..."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return _SAFETENSORS[self.kind][1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return math.prod(self.shape) * self.size


def stored_order(entries: Iterable[StoredArray]) -> list[StoredArray]:
    """Sort arrays into the order of a safetensors file: longest values first, then by name."""
    return sorted(entries, key=lambda entry: (-entry.size, entry.name))


def preamble(order: Sequence[StoredArray], metadata: Mapping[str, str]) -> bytes:
    """All bytes of a safetensors file before its arrays, which follow in `order`."""
    arrays = {}
    offset = 0
    for entry in order:
        stop = offset + entry.nbytes
        kind = _SAFETENSORS[entry.kind][0]
        arrays[entry.name] = {
            "dtype": kind,
            "shape": entry.shape,
            "data_offsets": (offset, stop),
        }
        offset = stop
    text = json.dumps({"__metadata__": metadata, **arrays}, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def header_text(description: MarketDescription) -> str:
    """Write a description as the JSON text that the market's file and content hash hold."""
    return json.dumps({**to_json(description), "format": FORMAT}, sort_keys=True, allow_nan=False)


def parse_header(text: str) -> MarketDescription:
    """Read what `header_text` wrote. Raises ValueError or RecordError for anything else."""
    header = json.loads(text)
    if header.pop("format", None) != FORMAT:
        raise MarketError(
            "is no market file of this version; build it again, or go on with the"
            " version of fintrader that wrote it"
        )
    return from_json(MarketDescription, header)


def write_market(
    path: Path | str,
    header: str,
    entries: Sequence[StoredArray],
    whole: Mapping[str, Array | memoryview],
    blocks: Iterable[tuple[int, Mapping[str, Array]]] = (),
) -> str:
    """Write a market file atomically; returns its content hash.

    `entries` are all arrays in the order of the content hash. Each is given at once (`whole`, by
    name) or in `blocks` of rows (the first row's number and, by name, the rows from there on).
    Raises MarketError when it cannot be written.
    """
    order = stored_order(entries)
    at = {}
    offset = len(preamble(order, {"header": header, "content_hash": "0" * 64}))
    for entry in order:
        at[entry.name] = offset
        offset += entry.nbytes
    row_bytes = {entry.name: math.prod(entry.shape[1:]) * entry.size for entry in entries}
    try:
        with atomic_file(Path(path)) as file:
            handle = file.fileno()
            for name, values in whole.items():
                write_at(handle, values, at[name])
            for first, rows in blocks:
                for name, values in rows.items():
                    write_at(
                        handle, np.ascontiguousarray(values), at[name] + first * row_bytes[name]
                    )
            digest = hashlib.sha256(header.encode())
            for entry in entries:
                digest.update(entry.name.encode())
                for piece in _pieces(handle, at[entry.name], entry.nbytes):
                    digest.update(piece)
            content = digest.hexdigest()
            write_at(handle, preamble(order, {"header": header, "content_hash": content}), 0)
    except OSError as error:
        raise MarketError(
            f"{path} cannot be written ({error.strerror or error}); free some space, or choose"
            " another cache"
        ) from None
    return content


def read_description(path: Path | str) -> tuple[MarketDescription, str]:
    """Read a market's description and content hash from its file, without its arrays.

    Raises MarketError when the file is missing, damaged, or of another format.
    """
    try:
        with Path(path).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_LONGEST_HEADER, Path(path).stat().st_size):
                raise ValueError("its header is cut short")
            metadata = json.loads(file.read(length))["__metadata__"]
        content = str(metadata["content_hash"])
        if not content:
            raise ValueError("it holds no content hash")
        return parse_header(metadata["header"]), content
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise MarketError(
            f"{path} does not exist; build it with fintrader.load_market(CONFIG) or `fintrader data"
            " build CONFIG`"
        ) from None
    except PermissionError as error:
        raise MarketError(
            f"{path} cannot be read ({error.strerror}); check its folder's rights"
        ) from None
    except MarketError as error:
        raise MarketError(f"{path} {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecordError) as error:
        raise MarketError(f"{path} is damaged ({error}); delete it and build it again") from None


def stored_minutes(path: Path | str) -> Array:
    """`[T]` int64: starts of a market file's bars, nanoseconds since 1970 UTC. Reads no other
    array. Raises MarketError."""
    try:
        with safe_open(str(path), framework="np") as file:
            return np.asarray(file.get_tensor("minutes"))
    except (OSError, SafetensorError) as error:
        raise MarketError(f"{path} is damaged ({error}); delete it and build it again") from None


def _pieces(handle: int, offset: int, size: int) -> Iterator[bytes]:
    """Read written bytes back for the hash, which takes the arrays in another order than the
    file."""
    while size:
        piece = read_at(handle, min(size, _PIECE), offset)
        if not piece:
            raise OSError("the file is shorter than what was written to it")
        yield piece
        offset = offset + len(piece)
        size = size - len(piece)


def refuse_bad_cells(rows: Mapping[str, Array]) -> None:
    """Raise MarketError for a block of rows that no market may hold."""
    open_, high, low, close = (rows[name] for name in PRICES)
    volume = rows["volume"]
    checks = {
        "features must be finite": np.isfinite(rows["features"]).all(),
        "prices must be positive, or NaN where not listed": all(
            ((prices > 0) | np.isnan(prices)).all() and not np.isinf(prices).any()
            for prices in (open_, high, low, close)
        ),
        "a bar's open and close must be between its low and its high": not (
            (low > np.fmin(open_, close)) | (high < np.fmax(open_, close))
        ).any(),
        "volume must be finite and not negative": ((volume >= 0) & np.isfinite(volume)).all(),
        "a tradable cell needs an open, a high, a low and a close": all(
            (~rows["tradable"] | np.isfinite(prices)).all() for prices in (open_, high, low, close)
        ),
    }
    for message, holds in checks.items():
        if not holds:
            raise MarketError(message)
