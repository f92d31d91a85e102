"""The ledger of looks: the results that a user saw on held-out windows, in a file that only grows.

    ~/.fintrader/looks.jsonl   one JSON object a line, each with its own hash and the hash of the
                               line before

A look is identified by the returns in its window (`sketch`) and by its question, not by a run, a
folder or a name. Changing, deleting or moving a line breaks the chain (`Ledger.lines` says where);
lines cut off its end are still named by the seals of their backtests
(`results.stored_looks.find_missing_looks`). The environment variable FINTRADER_HOME moves the
folder. Looks under another home, on another machine or in a paper are not recorded.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import product, starmap
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fintrader.errors import RunError, UnsafePathError
from fintrader.files import (
    find_seal,
    hash_bytes,
    make_folder,
    open_file,
    refuse_irregular,
    seal,
    unseal,
)
from fintrader.records import JsonValue, RecordError, T, from_json, to_json
from fintrader.system import sync, wait_for_lock
from fintrader.verdict.sketch import Curve, Sketch, session_returns
from fintrader.verdict.verdict import ACTIVE_RETURN

log = logging.getLogger("fintrader.verdict")
FILE = "looks.jsonl"
LOCK = ".looks.lock"
HOME = "FINTRADER_HOME"
"""Environment variable with the folder of the user's ledger."""
FORMAT = "fintrader-looks-3"
FIRST = hash_bytes(FORMAT.encode())
"""`before` of the first line."""
HELD_OUT = ("test", "validation", "whole", "foreign")
"""Windows that the policy was not fitted to: each result on one counts as a look."""
_OF_LINE = ("format", "n", "before", "time", "sha256")
DAY = 86_400_000_000_000
"""Nanoseconds of a day."""


class LedgerError(RunError):
    """The ledger of looks is broken, of another version, or cannot be written."""


class UnwritableLedgerError(LedgerError):
    """The ledger of looks cannot be written."""


@dataclass(frozen=True)
class Window:
    """Identity of a window: symbols, dates, a hash of its bars and a sketch of its returns."""

    key: str
    """SHA-256 of symbols, minutes and closing prices."""
    symbols: tuple[str, ...]
    """Sorted."""
    first: str
    """Date (UTC) of the first bar; `last`: of the last."""
    last: str
    made_up: bool = False
    """True for a synthetic market: another seed gives the same dates and symbols, but other
    prices."""
    sketch: Sketch = Sketch()  # noqa: RUF009
    curves: tuple[Curve, ...] = ()
    """The curve of equal weights of all symbols; or, of external returns, their benchmark's curve
    and their own."""

    @classmethod
    def of(
        cls,
        symbols: Sequence[str],
        minutes: NDArray[np.int64],
        close: NDArray[np.floating[Any]],
        made_up: bool = False,
        session: NDArray[np.integer[Any]] | None = None,
    ) -> Window:
        """Identify a window by its bars. `minutes` `[T]`: ns since 1970 UTC; `close` `[T, N]`: USD,
        NaN where there is no price; `session` `[T]`: number of each bar's session, None where each
        bar is one."""
        order = np.argsort(np.array(symbols))
        names = tuple(str(symbols[k]) for k in order)
        prices = np.ascontiguousarray(close[:, order], dtype="<f4")
        prices[np.isnan(prices)] = np.nan  # one bit pattern for all NaNs
        digest = hashlib.sha256(json.dumps(names).encode())
        digest.update(np.ascontiguousarray(minutes, dtype="<i8").tobytes())
        digest.update(prices.tobytes())
        first, last = (str(minutes[at].astype("datetime64[ns]"))[:10] for at in (0, -1))
        sessions = np.arange(len(minutes)) if session is None else session
        returns = session_returns(close, sessions)
        ends = np.flatnonzero(np.diff(sessions, append=-1))
        common = Curve.of(minutes[ends] // DAY, np.append(0.0, np.nansum(returns, axis=1)))
        return cls(digest.hexdigest(), names, first, last, made_up, Sketch.of(returns), (common,))

    def __hash__(self) -> int:
        return hash(self.key)

    def overlaps(self, other: Window) -> bool:
        """Report whether a look at one window counts for the other: if their sketches match, if
        external returns or their benchmark follow a curve of the other window, or if their dates
        overlap and they share at least half of all symbols (for short windows and other price
        adjustments)."""
        if self.key == other.key or self.sketch.overlaps(other.sketch):
            return True
        if self.made_up or other.made_up or self.first > other.last or other.first > self.last:
            return False
        # Two markets have a curve each: their symbols' returns are enough to tell them apart.
        pairs = list(product(self.curves, other.curves))
        if len(pairs) > 1 and any(starmap(Curve.follows, pairs)):
            return True
        ours = set(self.symbols)
        theirs = set(other.symbols)
        return 2 * len(ours & theirs) >= len(ours | theirs)


@dataclass(frozen=True)
class Look:
    """A result as the ledger records it."""

    kind: str
    """`backtest`, `re-backtest`, `walkforward`, `targets`, `compare`, `policy` or `judge`."""
    run: str
    created: str | None
    """Start of the run: distinguishes two runs of one name."""
    folder: str
    seed: int | None
    window: str
    """`test`, `validation` or `train`; `whole` for bars that were never split; `foreign` for
    external returns."""
    bars: Window
    strategies: tuple[str, ...]
    result: str
    """`result_hash` of the strategies' daily returns."""
    trials: int | None
    command: str | None
    commit: str | None = None
    version: str | None = None
    question: str = ACTIVE_RETURN
    """Question asked of the window; looks with other questions are counted separately."""


@dataclass(frozen=True)
class Line:
    """A look on the ledger."""

    number: int
    """Number of the line, from 1."""
    sha256: str
    time: str
    """UTC."""
    look: Look

    @property
    def held_out(self) -> bool:
        return self.look.window in HELD_OUT


def result_hash(daily_returns: Mapping[str, NDArray[np.float64]]) -> str:
    """Compute the SHA-256 of daily returns (`[S]` each) by strategy, rounded so that results within
    1e-12 of each other count as one."""
    digest = hashlib.sha256()
    for name in sorted(daily_returns):
        digest.update(name.encode() + b"\0")
        digest.update((np.round(np.asarray(daily_returns[name], dtype="<f8"), 12) + 0.0).tobytes())
    return digest.hexdigest()


def look_number(before: Sequence[Line], window: Window, result: str, question: str) -> int:
    """Count the different results on a window up to this one, of one question: 1 for the first.

    A reproduced result keeps its number: it shows nothing new.
    """
    return _WindowResults(window, question).number(before, result)


class _WindowResults:
    """Different results on held-out bars that count for one window and one question."""

    def __init__(self, window: Window, question: str) -> None:
        self.window = window
        self.question = question
        self.overlaps = cache(window.overlaps)
        self.results: dict[str, int] = {}
        """Result -> its place in the order of first lines."""
        self.lines_read = 0

    def number(self, lines: Sequence[Line], result: str) -> int:
        """Look up the number of a result among `lines`; lines read by earlier calls are not read
        again."""
        for line in lines[self.lines_read :]:
            look = line.look
            is_like = look.bars.key == self.window.key or self.overlaps(look.bars)
            if is_like and line.held_out and look.question == self.question:
                self.results.setdefault(look.result, len(self.results))
        self.lines_read = len(lines)
        return 1 + self.results.get(result, len(self.results))


def count_look(look: Look) -> tuple[int | None, dict[str, Any] | None]:
    """Record a look on the user's ledger, as `Ledger.record`; if the ledger cannot be written, warn
    and return two Nones. Raises LedgerError for a changed ledger."""
    try:
        return Ledger().record(look)
    except UnwritableLedgerError as error:
        log.warning("looks are not counted: %s", error)
        return None, None


class Ledger:
    """The ledger of a user. Any use may raise LedgerError, which names the remedy."""

    def __init__(self, home: Path | str | None = None) -> None:
        """`home`: the ledger's folder; None for `FINTRADER_HOME` or ~/.fintrader."""
        self.path = Path(home or os.environ.get(HOME) or Path.home() / ".fintrader") / FILE

    def record(self, look: Look) -> tuple[int, dict[str, Any]]:
        """Record a look before its result is shown; return its number (see `look_number`) and the
        values of its line that a seal holds."""
        chain, line = self._append(to_json(look))
        key = (look.bars, look.question)
        with _GUARD:
            counted = chain.window_results.setdefault(key, _WindowResults(*key))
            number = counted.number(chain.looks, look.result)
        first, own = (chain.lines[place]["sha256"] for place in (0, line - 1))
        return number, {"ledger": first, "line": line, "sha256": own}

    def note_seal(self, run: str, window: str, line: int, digest: str) -> None:
        """Record the hash of a backtest's seal; `line` has its look."""
        self._append({"kind": "seal", "run": run, "window": window, "line": line, "seal": digest})

    def note_claim(self, claim: object) -> str:
        """Record a claim (`verdict.claims`); return the hash of its line."""
        chain, line = self._append(vars(claim))
        return str(chain.lines[line - 1]["sha256"])

    def lines(self) -> Sequence[Mapping[str, Any]]:
        """Read and check all lines; empty without a ledger. A last line that a kill cut short is
        ignored."""
        return self._read()[0]

    def looks(self) -> Sequence[Line]:
        """List the lines that record a look, oldest first."""
        return self._read()[1]

    def _read(self) -> tuple[Sequence[Mapping[str, Any]], Sequence[Line]]:
        try:
            with open_file(self.path) as file, _GUARD:
                chain = _read_chain(self.path, file)
                return tuple(chain.lines), tuple(chain.looks)
        except FileNotFoundError:
            return (), ()
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be read ({error.strerror})") from None
        except UnsafePathError as error:
            raise LedgerError(str(error)) from None

    def _append(self, values: Mapping[str, Any]) -> tuple[_Chain, int]:
        """Lock the ledger and append a line; return the chain with it, and the line's number."""
        try:
            refuse_irregular(self.path)
            make_folder(self.path.parent)
            lock = open_file(self.path.with_name(LOCK), "ab")
        except OSError as error:
            raise self._unwritable(error) from None
        except UnsafePathError as error:
            raise LedgerError(str(error)) from None
        with lock:
            wait_for_lock(lock)
            try:
                is_new = not self.path.exists()
                with self.path.open("ab+", buffering=0) as file, _GUARD:
                    chain = _read_chain(self.path, file)
                    whole = len(chain.data)
                    if whole < file.seek(0, os.SEEK_END):
                        file.truncate(whole)  # a writer was killed before it showed the number
                    head = {
                        "format": FORMAT,
                        "n": len(chain.lines) + 1,
                        "before": chain.last,
                        "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    }
                    line = seal({**head, **values})
                    if file.write(line) != len(line):  # a full disk can take part of a write
                        file.truncate(whole)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                    # A file system's clock may tick only every few milliseconds. An exact time
                    # between two ticks reveals a later change within the same tick.
                    with contextlib.suppress(OSError):
                        os.utime(self.path, ns=(time.time_ns(), time.time_ns()))
                    chain.add(self.path, line)
                    number = len(chain.lines)
                    chain.state = _find_state(file)
                if is_new:
                    sync(self.path.parent)
            except OSError as error:
                raise self._unwritable(error) from None
        return chain, number

    def _unwritable(self, error: OSError) -> UnwritableLedgerError:
        return UnwritableLedgerError(
            f"{self.path}: {error.strerror or error}; set {HOME} to a folder that can be written"
            " to, or free some space"
        )


class _Chain:
    """Complete lines of a ledger that this process has checked; it only grows."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lines: list[Mapping[str, Any]] = []
        """Content of each line, with its `sha256`."""
        self.looks: list[Line] = []
        """The lines that record a look; other lines record seals and claims."""
        self.window_results: dict[tuple[Window, str], _WindowResults] = {}
        self.state: tuple[int, ...] = ()
        """`_find_state` after this process's last line; other processes' lines change it."""

    @property
    def last(self) -> str:
        return str(self.lines[-1]["sha256"]) if self.lines else FIRST

    def add(self, path: Path, raw: bytes) -> None:
        """Check a line and append it. Raises LedgerError for a changed line."""
        mend = (
            f"restore {path.name}, or move it away to begin a new one; `fintrader verify` then"
            " reports that the new one lacks the looks of every earlier run"
        )
        number = len(self.lines) + 1
        broken = LedgerError(f"{path}: line {number} was changed after it was written; {mend}")
        body = unseal(raw, broken)
        if body.get("format") != FORMAT:
            raise LedgerError(
                f"{path}: line {number} was written by another version of fintrader; {mend}"
            )
        if (body.get("before"), body.get("n")) != (self.last, number):
            raise LedgerError(
                f"{path}: line {number} does not follow the line before it: a line was deleted"
                f" there, changed, or put in another place; {mend}"
            )
        body["sha256"] = find_seal(raw)
        if "result" in body:
            self.looks.append(Line(number, body["sha256"], body["time"], read_entry(Look, body)))
        self.lines.append(body)
        self.data += raw


_GUARD = threading.Lock()
"""Held while a thread reads or extends a chain."""
_CHECKED: dict[Path, _Chain] = {}
"""Content of each ledger as this process last checked it."""


def _read_chain(path: Path, file: BinaryIO) -> _Chain:
    """Read the complete lines of a ledger's open file. Raises LedgerError at the first changed one.

    Each line is parsed and hashed once. A file that has not changed since this process wrote to it
    is not even read. So the time of a look does not grow with the ledger.
    """
    chain = _CHECKED.setdefault(path, _Chain())
    if chain.state == _find_state(file):
        return chain
    file.seek(0)
    data = file.read()
    if not data.startswith(bytes(chain.data)):
        chain = _CHECKED[path] = _Chain()
    for raw in data[len(chain.data) : data.rfind(b"\n") + 1].splitlines(keepends=True):
        chain.add(path, raw)
    return chain


def _find_state(file: BinaryIO) -> tuple[int, ...]:
    """Find attributes of a file; every change of the file alters at least one of them."""
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def read_entry(kind: type[T], line: Mapping[str, JsonValue]) -> T:
    """Read the record of a line. Raises LedgerError."""
    try:
        return from_json(kind, {key: line[key] for key in line if key not in _OF_LINE})
    except RecordError as error:
        raise LedgerError(
            f"line {line['n']} of the ledger of looks was written by another version ({error});"
            " read it with that version, or move the ledger away"
        ) from None


# --- summary --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowLooks:
    """All looks at one window's bars."""

    bars: Window
    question: str
    looks: int
    """Different results on these and overlapping bars."""
    runs: tuple[str, ...]
    names: tuple[str, ...]
    """Names of the window in those runs."""
    first: str
    last: str
    """Times (UTC) of the first line and the last."""


def summarise_windows(lines: Sequence[Line]) -> list[WindowLooks]:
    """Summarise each window's looks, in order of the first look."""
    places: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        places.setdefault((line.look.bars.key, line.look.question), []).append(line)
    summaries = []
    for (_, question), own in places.items():
        bars = own[0].look.bars
        counted = _WindowResults(bars, question)
        counted.number(lines, "")
        runs, names = (
            tuple(sorted({getattr(line.look, part) for line in own})) for part in ("run", "window")
        )
        looks = len(counted.results)
        summaries.append(WindowLooks(bars, question, looks, runs, names, own[0].time, own[-1].time))
    return summaries


def explain_missing(lines: Sequence[Mapping[str, Any]], look: Mapping[str, Any]) -> str | None:
    """Explain why a seal's look is not on a ledger; None if it is."""
    at = look.get("line")
    if not lines:
        return (
            "its look is on a ledger, and there is no ledger here: it was deleted, or the run"
            " was made elsewhere"
        )
    if lines[0]["sha256"] != look.get("ledger"):
        return (
            "its look is on another ledger: this one was started again, or the run was made"
            " elsewhere"
        )
    own = lines[at - 1 : at] if isinstance(at, int) else ()
    if not own or own[0]["sha256"] != look.get("sha256"):
        return f"its look, line {at} of the ledger, is not there: lines were deleted or rewritten"
    return None
