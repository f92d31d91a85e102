"""A built market file, read without torch: only the rows and columns that are shown."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fintrader.bars.bars import PRICES
from fintrader.errors import MarketError, UnsafePathError
from fintrader.market.market_file import EVENT, EVENTS, parse_header
from fintrader.metrics import find_session_ends, find_session_starts
from fintrader.records import RecordError
from fintrader.results.folders import DamagedFileError, Folder, NotThereError, Signature
from fintrader.results.formatting import find_timezone
from fintrader.results.market_description import MarketDescription

MAX_HEADER_BYTES = 64 << 20
_KINDS = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "BOOL": np.bool_}
_ARRAYS = (
    *PRICES,
    "features",
    "context",
    "tradable",
    "member",
    "session",
    "minutes",
    "benchmark",
    *(EVENT + name for name in EVENTS),
)


@dataclass(frozen=True)
class Market:
    """A market file, memory-mapped. Arrays as in `MarketTensors`."""

    path: Path
    content_hash: str
    description: MarketDescription
    arrays: dict[str, np.ndarray[Any, Any]] = field(repr=False)

    @property
    def symbols(self) -> list[str]:
        return list(self.description.symbols)

    @property
    def times(self) -> pd.DatetimeIndex:
        """`[T]` start of each bar, UTC."""
        return pd.DatetimeIndex(self.arrays["minutes"].astype("datetime64[ns]")).tz_localize("UTC")

    @property
    def timezone(self) -> str:
        """The market's own time zone, an IANA name; UTC where its file names none."""
        return find_timezone(self.description.provenance.timezone)

    def days(self) -> pd.Series[int]:
        """List the first bar of each session, by its day in the market's time zone."""
        session = self.arrays["session"]
        days = name_days(self.times, session, self.timezone)
        return pd.Series(find_session_starts(session), index=days)

    def rows(self, day: str) -> slice:
        """Find the bars of one session."""
        session = self.arrays["session"]
        number = session[self.days()[day]]
        start, stop = np.searchsorted(session, [number, number + 1])
        return slice(int(start), int(stop))

    def daily_closes(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """`[S, N]`: last close of each session, adjusted for splits and dividends as
        `MarketTensors.adjusted_close`."""
        ends = find_session_ends(self.arrays["session"])
        growth = np.ones((len(ends), len(self.symbols)))
        for bar, asset, split, dividend in zip(
            *(self.arrays[EVENT + n] for n in EVENTS), strict=True
        ):
            if bar > 0:
                share = np.nan_to_num(dividend / float(self.arrays["close"][bar - 1, asset]))
                growth[np.searchsorted(ends, bar), asset] *= split / (1.0 - share)
        return np.asarray(self.arrays["close"][ends] * growth.cumprod(axis=0), dtype=float)

    def candles(self, symbol: str, rows: slice, every: int) -> pd.DataFrame:
        """Make candles of `every` bars with a trade: open, high, low, close."""
        column = self.symbols.index(symbol)
        traded = self.arrays["tradable"][rows, column]
        prices = {name: self.arrays[name][rows, column] for name in PRICES}
        frame = pd.DataFrame(
            {**prices, "session": self.arrays["session"][rows]}, index=self.times[rows]
        )
        frame = frame[traded].astype(dict.fromkeys(PRICES, float))
        # A candle never spans sessions.
        candle = frame.groupby("session").cumcount() // every
        frame = frame.assign(begins=frame.index)
        columns = {"begins": "first", "open": "first", "high": "max", "low": "min", "close": "last"}
        return frame.groupby([frame["session"], candle]).agg(columns).set_index("begins")


def name_days(
    times: pd.DatetimeIndex, session: np.ndarray[Any, Any], timezone: str
) -> pd.Index[str]:
    """Name each session by the day of its first bar in `timezone`."""
    return times[find_session_starts(session)].tz_convert(timezone).strftime("%Y-%m-%d")


def find(market: str | None, data_hash: str | None, roots: Sequence[Path]) -> Market:
    """Find the market file that a manifest names, by its file name in the folders that the app may
    read.

    Raises NotThereError when it is in none of them, DamagedFileError when its content is not that
    of the run.
    """
    if not market:
        raise NotThereError("this run has no market yet: it is built first")
    parts = Path(market).parts
    name = "/".join(parts[-2:])
    for root, tail in itertools.product(roots, (parts[-2:], parts[-1:])):
        place = Folder(root.resolve())
        try:
            signature = place.signature(*tail)
        except (NotThereError, UnsafePathError):
            continue
        found = _open(place.root, tail, signature)
        if data_hash is not None and found.content_hash != data_hash:
            raise DamagedFileError(
                f"the market file {name} is no longer the one this run was made from (data hash"
                f" {data_hash[:12]}, now {found.content_hash[:12]})"
            )
        return found
    raise NotThereError(
        f"the market file {name} is neither in data/tensors where the app was started, nor in"
        " data/tensors next to the runs; start the app where the run was made, or run its command"
        " again without --cache"
    )


@lru_cache(maxsize=8)
def _open(root: Path, parts: tuple[str, ...], signature: Signature) -> Market:
    """Map the file's arrays. The safetensors layout: header length, JSON header, then the arrays
    one by one."""
    name = "/".join(parts)
    with Folder(root).open(*parts) as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            table = json.loads(file.read(length))
            metadata = table.get("__metadata__", {})
            description = parse_header(metadata.get("header", "{}"))
            size = signature[1]
            arrays = {}
            for key in _ARRAYS:
                kind = np.dtype(_KINDS[table[key]["dtype"]])
                shape = tuple(map(int, table[key]["shape"]))
                begin, end = (8 + length + int(offset) for offset in table[key]["data_offsets"])
                if not 8 + length <= begin <= end <= size or end - begin != kind.itemsize * int(
                    np.prod(shape)
                ):
                    raise ValueError(f"{key} lies outside the file")
                arrays[key] = (
                    np.memmap(file, dtype=kind, mode="r", offset=begin, shape=shape)
                    if end > begin
                    else np.zeros(shape, kind)
                )
            bars, assets = arrays["close"].shape
            if (len(description.symbols), *arrays["minutes"].shape) != (assets, bars) or not bars:
                raise ValueError("its parts do not fit together")
        except (
            ValueError,
            KeyError,
            TypeError,
            struct.error,
            RecursionError,
            AttributeError,
            MarketError,
            RecordError,
        ) as error:
            raise DamagedFileError(
                f"the market file {name} is damaged ({error}); delete it and build it again"
            ) from None
    return Market(root.joinpath(*parts), str(metadata.get("content_hash", "")), description, arrays)
