"""Claims: strategies that are sealed before the window that will judge them begins.

A claim is a line of the user's ledger. Its digest is the hash of that line, which contains the hash
of the line before; so a published digest fixes the claim, its time, and all looks up to then. The
returns of its window are a first look, whatever was tried before it. Several claims on one window
share the level, because only the best may be shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np

from fintrader.errors import ReturnsError
from fintrader.files import hash_bytes, hash_file
from fintrader.verdict.looks import Ledger, read_entry, result_hash
from fintrader.verdict.track_record import TrackRecord

EAST = timedelta(hours=14)
"""Time zone in which a day begins first."""
LATE = timedelta(days=7)
"""Longest time between the last session of a window and its last day, for holidays."""
DAY = np.timedelta64(1, "D")
UNSEALED = (".", "__pycache__")
"""Prefixes of names that are not sealed: hidden files, and traces of running a strategy."""
KIND = "claim"
SHOWN = 12
"""Digits of a digest that are shown; any 8 identify a claim."""


@dataclass(frozen=True)
class Claim:
    """A strategy, its benchmark, and the window that will judge it; ISO forms of a day are kept as
    2027-01-31. Raises ReturnsError for a malformed day, and for a window that does not end after
    its first day."""

    source: str
    """Name of the strategy, or of its file of returns."""
    content: str
    """Hash of the strategy's files, of a deployment's bundle, or of the strategy's and the
    benchmark's returns up to `until`."""
    until: str | None
    """Last day of the returns that `content` hashes; None for a strategy's files."""
    benchmark: str
    """Name of the benchmark, or `cash`."""
    first: str
    """First day of the window, like 2027-01-04."""
    last: str | None
    """Last day of the window; None for an open window, where judging at a later end is another
    look."""
    kind: str = KIND

    def __post_init__(self) -> None:
        for name, day in (("first", self.first), ("last", self.last)):
            if day is None:
                continue
            try:
                object.__setattr__(self, name, str(date.fromisoformat(day)))
            except ValueError:
                raise ReturnsError(f"{day!r} is no day; write it as 2027-01-31") from None
        if self.last is not None and self.last <= self.first:
            raise ReturnsError(f"the window ends on {self.last}, before or at its first day")

    def describe(self) -> str:
        """Describe the claim in a sentence without a full stop."""
        window = f"from {self.first} on" if self.last is None else f"{self.first} to {self.last}"
        return f"{self.source} is ahead of {self.benchmark}, {window}"

    def overlaps(self, other: Claim) -> bool:
        """Report whether the windows share a day."""
        return self.first <= (other.last or "9999") and other.first <= (self.last or "9999")


@dataclass(frozen=True)
class Registration:
    """A claim on the ledger."""

    claim: Claim
    digest: str
    """64 hexadecimal digits."""
    time: str
    """UTC."""
    sharing: int
    """Number of claims on the ledger whose windows overlap, this one included."""

    def describe(self) -> str:
        """Name the claim in a clause of a verdict."""
        shared = f", one of {self.sharing} claims on its window" if self.sharing > 1 else ""
        return f"registered on {self.time[:10]} as claim {self.digest[:SHOWN]}{shared}"


def find_first_day(now: datetime | None = None) -> str:
    """Find the first day that has not begun anywhere."""
    return str(((now or datetime.now(UTC)) + EAST).date() + timedelta(days=1))


def register(claim: Claim) -> Registration:
    """Write a claim to the user's ledger, unless it is there. Raises ReturnsError for a window that
    has begun, LedgerError for a ledger that is changed or cannot be written."""
    known = [one for one in list_registrations() if one.claim == claim]
    if known:
        return known[0]
    if claim.first < find_first_day():
        raise ReturnsError(
            f"a window from {claim.first} on has begun, or begins within a day; choose"
            f" {find_first_day()} or later"
        )
    return find_registration(Ledger().note_claim(claim))


def list_registrations() -> list[Registration]:
    """List the claims on the user's ledger, oldest first, without those written after their window
    began. Raises LedgerError."""
    found = [
        Registration(read_entry(Claim, line), line["sha256"], line["time"], 1)
        for line in Ledger().lines()
        if line.get("kind") == KIND
    ]
    valid = [
        one for one in found if one.claim.first >= find_first_day(datetime.fromisoformat(one.time))
    ]
    claims = {one.claim for one in valid}
    return [replace(one, sharing=sum(map(one.claim.overlaps, claims))) for one in valid]


def find_registration(digest: str) -> Registration:
    """Find a claim by 8 digits of its digest or more. Raises ReturnsError."""
    known = list_registrations()
    found = [one for one in known if len(digest) >= 8 and one.digest.startswith(digest)]
    if len(found) != 1:
        names = ", ".join(one.digest[:SHOWN] for one in known) or "none"
        raise ReturnsError(f"no claim {digest} on the ledger of looks; there are: {names}")
    return found[0]


def hash_source(path: Path | str) -> str:
    """Hash a file, or the files of a folder with their names. Raises ReturnsError."""
    path = Path(path)
    if path.is_file():
        return hash_file(path)
    inside = {file.relative_to(path): file for file in sorted(path.rglob("*")) if file.is_file()}
    lines = [
        f"{name.as_posix()} {hash_file(file)}"
        for name, file in inside.items()
        if not any(part.startswith(UNSEALED) for part in name.parts)
    ]
    if not lines:
        raise ReturnsError(f"{path}: no such file, and no folder with files")
    return hash_bytes("\n".join(lines).encode())


def hash_history(record: TrackRecord, until: str) -> str:
    """Hash a strategy's returns and its benchmark's up to a day."""
    known = record.dates <= np.datetime64(until)
    return result_hash({"": record.returns[known], "benchmark": record.benchmark_returns[known]})


def restrict(
    record: TrackRecord, registration: Registration, strategy: Path | str | None
) -> TrackRecord:
    """Cut a track record to the window of its claim. A period that began before the window (a
    month, the days since a Friday) is left out.

    `strategy`: the files that the claim has sealed. Raises ReturnsError if they, the returns before
    the window or the benchmark are not the claim's, and if the window is not over.
    """
    claim = registration.claim
    if record.benchmark_name != claim.benchmark:
        raise ReturnsError(
            f"the claim names the benchmark {claim.benchmark}, and this is {record.benchmark_name};"
            " give the claim's (benchmark=)"
        )
    if claim.until is not None:
        if hash_history(record, claim.until) != claim.content:
            raise ReturnsError(
                f"{record.name}: its returns up to {claim.until} are not those of the claim; judge"
                " the file that was registered, with its new rows"
            )
    elif claim.content != (record.strategy or (strategy and hash_source(strategy))):
        given = "these are not" if strategy or record.strategy else "give"
        raise ReturnsError(f"{given} the files that the claim sealed as {claim.source} (strategy=)")
    usual = record.dates[0] - np.median(np.diff(record.dates))
    begins = np.append(usual, record.dates[:-1]) + DAY
    inside = np.asarray(begins >= np.datetime64(claim.first))
    if claim.last is not None:
        if record.dates[-1] + np.timedelta64(LATE) < np.datetime64(claim.last):
            raise ReturnsError(
                f"the claim's window ends on {claim.last}, and the returns on"
                f" {np.datetime_as_string(record.dates[-1], unit='D')}; judge it when it is over"
            )
        inside &= record.dates <= np.datetime64(claim.last)
    return replace(
        record,
        dates=record.dates[inside],
        returns=record.returns[inside],
        benchmark=None if record.benchmark is None else record.benchmark[inside],
        holdings=None,
    )
