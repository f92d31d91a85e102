"""The ledger of looks: every result that runs of one folder made on a window, in a file that only
grows.

    runs/looks.jsonl   one JSON object a line, each sealed by its own hash and holding that of
                       the line before

A look is counted by the bars it was at, not by the run: a key made of symbols, minutes and closing
prices survives another name, seed, feature or training window. Changing, deleting or moving a
line breaks the chain (`Ledger.lines` says where); lines cut off its end are missed by the backtests
whose seals name them (`find_missing_looks`). It sees the runs of one folder, and no other.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fintrader.errors import RunError, UnsafePathError
from fintrader.files import (
    hash_bytes,
    make_folder,
    open_file,
    read_bytes,
    refuse_irregular,
    seal,
    unseal,
)
from fintrader.records import RecordError, from_json, to_json
from fintrader.results.backtest_files import StoredBacktest, read_seal
from fintrader.results.folders import Folder, RunsFolder
from fintrader.system import sync, wait_for_lock

FILE = "looks.jsonl"
LOCK = ".looks.lock"
FORMAT = "fintrader-looks-1"
FIRST = hash_bytes(FORMAT.encode())
"""Hash that stands in the first line, which has no line before it."""
HELD_OUT = ("test", "validation", "whole")
"""Windows with bars that the policy was not fitted to: each result on one counts as a look."""
_OF_LINE = ("format", "n", "before", "time", "sha256")
CHOSEN = ("ensemble", "best")
"""Strategies that the search chose; a look is at their results. The others are baselines."""


class LedgerError(RunError):
    """The ledger of looks is broken, of another version, or cannot be written."""


@dataclass(frozen=True)
class Window:
    """Identity of a window: its symbols, its dates and a hash of its bars."""

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

    @classmethod
    def of(
        cls,
        symbols: Sequence[str],
        minutes: NDArray[np.int64],
        close: NDArray[np.floating[Any]],
        made_up: bool = False,
    ) -> Window:
        """`minutes` `[T]`: ns since 1970 UTC; `close` `[T, N]`: USD, NaN where there is no
        price."""
        order = np.argsort(np.array(symbols))
        names = tuple(str(symbols[k]) for k in order)
        prices = np.ascontiguousarray(close[:, order], dtype="<f4")
        prices[np.isnan(prices)] = np.nan  # one NaN of the many
        digest = hashlib.sha256(json.dumps(names).encode())
        digest.update(np.ascontiguousarray(minutes, dtype="<i8").tobytes())
        digest.update(prices.tobytes())
        first, last = (str(minutes[at].astype("datetime64[ns]"))[:10] for at in (0, -1))
        return cls(digest.hexdigest(), names, first, last, made_up)

    def overlaps(self, other: Window) -> bool:
        """Tell whether a look at one window counts for the other: equal bars, or overlapping dates
        and at least as many symbols in both windows as in only one, so that leaving a symbol out
        makes no new window."""
        if self.key == other.key:
            return True
        if self.made_up or other.made_up or self.first > other.last or other.first > self.last:
            return False
        ours = set(self.symbols)
        theirs = set(other.symbols)
        return 2 * len(ours & theirs) >= len(ours | theirs)


@dataclass(frozen=True)
class Look:
    """A result as the ledger records it."""

    kind: str
    """`backtest`, `re-backtest`, `walkforward`, `compare` or `policy`: what made or showed it."""
    run: str
    created: str | None
    """When the run was begun: tells two runs of one name apart."""
    folder: str
    seed: int | None
    window: str
    """`test`, `validation` or `train`; `whole` for bars that were never split."""
    bars: Window
    strategies: tuple[str, ...]
    result: str
    """`result_hash` of these."""
    trials: int | None
    command: str | None
    commit: str | None = None
    version: str | None = None


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
    1e-12 of each other are one."""
    digest = hashlib.sha256()
    for name in sorted(daily_returns):
        digest.update(name.encode() + b"\0")
        digest.update((np.round(np.asarray(daily_returns[name], dtype="<f8"), 12) + 0.0).tobytes())
    return digest.hexdigest()


def stored_result(stored: StoredBacktest) -> str:
    """Compute `result_hash` of a stored backtest's chosen strategies (without any, of its first
    strategy)."""
    daily = stored.daily_returns()
    names = [name for name in CHOSEN if name in daily] or stored.strategies[:1]
    return result_hash({name: daily[name].to_numpy() for name in names})


def look_number(before: Sequence[Line], window: Window, result: str) -> int:
    """Count the different results on a window up to this one: 1 for the first.

    Made again, a result keeps its number: nothing new was seen.
    """
    seen: list[str] = []
    for line in before:
        if line.held_out and line.look.bars.overlaps(window):
            if line.look.result == result:
                break
            seen.append(line.look.result)
    return 1 + len(set(seen))


class Ledger:
    """The ledger of a runs folder. Any use may raise LedgerError, which says what to do."""

    def __init__(self, runs_dir: Path | str) -> None:
        self.path = Path(runs_dir) / FILE

    @classmethod
    def of_run(cls, folder: Path | None) -> Ledger | None:
        """The ledger that a run's folder, or a folder inside it, belongs to; None where no run lies
        there."""
        inside = [] if folder is None else [folder.resolve(), *folder.resolve().parents[:3]]
        for above in inside:
            if (above / "manifest.json").is_file():
                return cls(above.parent)
        return None

    def record(self, look: Look) -> tuple[int, dict[str, Any]]:
        """Record a look before its result is shown; return its number (see `look_number`) and the
        values of its line that a seal holds."""
        *before, own = self._append(to_json(look))
        number = look_number(_select_looks(before), look.bars, look.result)
        ledger = before[0] if before else own
        return number, {"ledger": ledger["sha256"], "line": own["n"], "sha256": own["sha256"]}

    def note_seal(self, run: str, window: str, line: int, digest: str) -> None:
        """Note the hash of the seal of a backtest, whose look is that line."""
        self._append({"kind": "seal", "run": run, "window": window, "line": line, "seal": digest})

    def lines(self) -> list[dict[str, Any]]:
        """Read and check all lines; empty without a ledger. A last line that a kill cut short is
        ignored."""
        try:
            data = read_bytes(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be read ({error.strerror})") from None
        except UnsafePathError as error:
            raise LedgerError(str(error)) from None
        return _checked(self.path, data)

    def looks(self) -> list[Line]:
        """List the lines that record a look, oldest first."""
        return _select_looks(self.lines())

    def _append(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Lock the ledger and append a line; return all lines, the new one last."""
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
                with self.path.open("ab+", buffering=0) as file:
                    file.seek(0)
                    data = file.read()
                    whole = data.rfind(b"\n") + 1
                    lines = _checked(self.path, data[:whole])
                    _select_looks(lines)  # raises before a line is written
                    if whole < len(data):  # its writer was killed before the number was shown
                        file.truncate(whole)
                    head = {
                        "format": FORMAT,
                        "n": len(lines) + 1,
                        "before": lines[-1]["sha256"] if lines else FIRST,
                        "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    }
                    line = seal({**head, **values})
                    if file.write(line) != len(line):  # a full disk can take part of a write
                        file.truncate(whole)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                if is_new:
                    sync(self.path.parent)
            except OSError as error:
                raise self._unwritable(error) from None
        return [*lines, json.loads(line)]

    def _unwritable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{self.path}: {error.strerror or error}; every look at a held-out window is noted"
            " there: choose a folder that can be written to (--runs-dir), or free some space"
        )


def _checked(path: Path, data: bytes) -> list[dict[str, Any]]:
    """Read the whole lines in `data`, each with its `sha256`. Raises LedgerError at the first one that
    was changed."""
    mend = (
        f"restore {path.name}, or move it away to begin a new one; `fintrader verify` then reports"
        " that the new one lacks the looks of every earlier run"
    )
    lines: list[dict[str, Any]] = []
    before = FIRST
    for number, raw in enumerate(data[: data.rfind(b"\n") + 1].splitlines(keepends=True), 1):
        broken = LedgerError(f"{path}: line {number} was changed after it was written; {mend}")
        body = unseal(raw, broken)
        if body.get("format") != FORMAT:
            raise LedgerError(
                f"{path}: line {number} was written by another version of fintrader; {mend}"
            )
        if (body.get("before"), body.get("n")) != (before, number):
            raise LedgerError(
                f"{path}: line {number} does not follow the line before it: a line was deleted"
                f" there, changed, or put in another place; {mend}"
            )
        before = json.loads(raw)["sha256"]
        lines.append(body | {"sha256": before})
    return lines


def _select_looks(lines: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Select the lines that record a look; the others record seals."""
    found = []
    for line in lines:
        if "result" in line:
            said = {name: value for name, value in line.items() if name not in _OF_LINE}
            try:
                look = from_json(Look, said)
            except RecordError as error:
                raise LedgerError(
                    f"line {line['n']} of the ledger of looks was written by another version"
                    f" ({error}); read it with that version, or move the ledger away"
                ) from None
            found.append(Line(line["n"], line["sha256"], line["time"], look))
    return found


# --- what a ledger amounts to ---------------------------------------------------------------------


@dataclass(frozen=True)
class WindowLooks:
    """All that was looked at on one window's bars."""

    bars: Window
    looks: int
    """Different results on these bars or on any that overlap them."""
    results: int
    """Different results on exactly these."""
    runs: tuple[str, ...]
    names: tuple[str, ...]
    """Names that the runs gave it."""
    first: str
    last: str
    """Times (UTC) of the first line and the last."""


def by_window(lines: Sequence[Line]) -> list[WindowLooks]:
    """One entry a window, in the order in which they were first looked at."""
    found = []
    for key in dict.fromkeys(line.look.bars.key for line in lines):
        own = [line for line in lines if line.look.bars.key == key]
        bars = own[0].look.bars
        near = {
            line.look.result for line in lines if line.held_out and line.look.bars.overlaps(bars)
        }
        results = {line.look.result for line in own}
        runs, names = (
            tuple(sorted({getattr(line.look, part) for line in own})) for part in ("run", "window")
        )
        found.append(
            WindowLooks(bars, len(near), len(results), runs, names, own[0].time, own[-1].time)
        )
    return found


def find_missing_looks(runs_dir: Path | str) -> tuple[list[str], list[str]]:
    """List the backtests of a runs folder whose looks its ledger lacks, a sentence each.

    Returns two lists: backtests whose lines were deleted here, and backtests on another ledger,
    such as runs made in another folder. Raises LedgerError for a broken ledger.
    """
    runs = RunsFolder.at(runs_dir)
    lines = Ledger(runs.root).lines()
    deleted = list[str]()
    foreign = list[str]()
    for name in runs.names():
        for window in ("test", "validation", "train"):
            inside = ["backtest"] if window == "test" else ["backtest", window]
            try:
                look = read_seal(Folder(runs.run(name).path(*inside))).get("look")
            except RunError:
                continue  # no backtest, or one that `verify` says more of
            if isinstance(look, dict) and (problem := missing(lines, look)):
                begun_here = not lines or lines[0]["sha256"] == look.get("ledger")
                (deleted if begun_here else foreign).append(f"{name}, {window} window: {problem}")
    return deleted, foreign


def missing(lines: Sequence[Mapping[str, Any]], look: Mapping[str, Any]) -> str | None:
    """Why the look that a seal names is not on a ledger; None if it is."""
    at = look.get("line")
    if not lines:
        return (
            "its look stands on a ledger, and there is none here: it was deleted, or the run was"
            " made elsewhere"
        )
    if lines[0]["sha256"] != look.get("ledger"):
        return (
            "its look stands on another ledger than this one, which was begun anew, or the run was"
            " made elsewhere"
        )
    if (at, look.get("sha256")) not in [(line["n"], line["sha256"]) for line in lines]:
        return (
            f"its look, line {at} of the ledger, is not there: lines were deleted or written anew"
        )
    return None


@dataclass(frozen=True)
class Together:
    """Trials and looks from which results shown together were chosen."""

    trials: int
    """Trials of all searches, each counted once."""
    looks: int
    """Different results on their windows: theirs, and all that the ledgers of their runs have."""


def union_of_looks(runs: Mapping[str, StoredBacktest]) -> Together:
    """Trials and looks of several stored backtests together. Raises LedgerError for a broken
    ledger."""
    searches: dict[Any, int] = {}
    results: set[str] = set()
    for name, stored in runs.items():
        context = stored.context
        known = (context.config_hash, context.data_hash, context.seed)
        search = known if context.config_hash else name
        searches[search] = max(searches.get(search, 0), context.trials or 0)
        results.add(stored_result(stored))
        ledger = Ledger.of_run(stored.folder)
        lines = [] if ledger is None else [line for line in ledger.looks() if line.held_out]
        key = context.window_key
        own = next((line.look.bars for line in lines if line.look.bars.key == key), None)
        if own is not None:
            results |= {line.look.result for line in lines if line.look.bars.overlaps(own)}
    return Together(sum(searches.values()), len(results))


def note_shown(stored: StoredBacktest, command: str) -> None:
    """Record a look at a stored backtest that is shown with others, unless its ledger has the
    result. The ledger lacks it if the run was made in another runs folder. Raises LedgerError."""
    ledger = Ledger.of_run(stored.folder)
    known = stored.context
    result = stored_result(stored)
    key = known.window_key
    if stored.folder is None or ledger is None or key is None:
        return
    if any(line.look.result == result and line.look.bars.key == key for line in ledger.looks()):
        return
    symbols = tuple(sorted(map(str, stored.prices["symbol"].unique())))
    first, last = stored.minutes[[0, -1]].strftime("%Y-%m-%d")
    look = Look(
        kind="compare",
        run=str(known.run),
        created=None,
        folder=stored.folder.relative_to(ledger.path.parent).parts[0],
        seed=known.seed,
        window=known.window if known.window in ("train", "validation") else "test",
        bars=Window(key, symbols, first, last, made_up=known.market.is_synthetic),
        strategies=tuple(name for name in CHOSEN if name in stored.strategies),
        result=result,
        trials=known.trials,
        command=command,
    )
    ledger.record(look)
