"""The event log of a tournament: sealed, numbered lines, synced to disk before the orchestrator
acts on them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fintrader.errors import TournamentError
from fintrader.files import (
    make_folder,
    open_file,
    read_bytes,
    refuse_irregular,
    refuse_second_name,
    seal,
    unseal,
)
from fintrader.records import RecordError, to_json
from fintrader.results.tournament_events import (
    ResultEvent,
    TournamentEvent,
    find_last_start,
    parse_event,
    select_events,
)
from fintrader.system import BINARY
from fintrader.tournament.spec import PodResult, other_version


def list_applied(events: Iterable[TournamentEvent]) -> list[str]:
    """List the pods in the order in which their results were applied; repeated events count
    once."""
    applied = sorted(select_events(events, ResultEvent), key=lambda event: event.applied)
    return list(dict.fromkeys(event.pod for event in applied))


def read_log(path: Path) -> tuple[list[TournamentEvent], list[int]]:
    """Read the events of a log by number, and the numbers (from 1) of lines that are changed or
    misplaced. Raises RunError for a line of another version."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise TournamentError(f"{path} cannot be read ({error.strerror}); move it away") from None
    events = dict[int, TournamentEvent]()
    broken = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(keepends=True), 1):
        try:
            values = unseal(line, TournamentError(str(number)))
            event = parse_event(values)
        except TournamentError:
            broken.append(number)
            continue
        except RecordError as error:
            raise other_version(path, error) from None
        n = values.get("n")
        if n != number:
            broken.append(number)
        if isinstance(n, int):
            events.setdefault(n, event)
    return [events[n] for n in sorted(events)], broken


class EventLog:
    """Writer of `events.jsonl`, whose lines are sealed and numbered.

    A torn last line (the writer was killed) is cut off before anything is added. Raises
    TournamentError for any other line that is changed, missing or misplaced.
    """

    def __init__(
        self,
        path: Path,
        keep: Callable[[str, Callable[[], str]], None] = lambda lines, everything: None,
    ) -> None:
        """`keep` stores new lines elsewhere before they are written here; its second argument reads
        the whole log."""
        self.path = path
        self._keep = keep
        self.records, broken = read_log(path)
        if broken:
            raise TournamentError(
                f"{path}: line {broken[0]} is not as it was written, or not in its place;"
                f" `fintrader verify {path.parent} --repair` sets the log aside and keeps its whole"
                " lines"
            )
        make_folder(path.parent)
        data = read_bytes(path) if path.exists() else b""
        if data and not data.endswith(b"\n"):
            refuse_second_name(path)
            with open_file(path, "rb+") as file:  # cut the torn line off
                file.truncate(data.rfind(b"\n") + 1)
                os.fsync(file.fileno())

    def append(self, *events: TournamentEvent) -> None:
        """Write the events with one sync. An event without a time gets the current time."""
        if not events:
            return
        now = round(time.time(), 3)
        stamped = [event if event.time else replace(event, time=now) for event in events]
        text = "".join(
            seal({**to_json(event), "n": n}).decode()
            for n, event in enumerate(stamped, len(self.records) + 1)
        )
        self._keep(
            text, lambda: (read_bytes(self.path).decode() if self.path.exists() else "") + text
        )
        refuse_irregular(self.path)
        refuse_second_name(self.path)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, 0o644)
        try:
            before = os.fstat(handle).st_size
            data = text.encode()
            if os.write(handle, data) != len(data):  # a full disk can take part of a write
                os.ftruncate(handle, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(handle)
        finally:
            os.close(handle)
        self.records += stamped

    def check_owner(self, tournament: str) -> None:
        """Raise TournamentError unless this log belongs to the tournament with that seal, or to
        none."""
        start = find_last_start(self.records)
        if start is not None and start.of != tournament:
            raise TournamentError(
                f"{self.path} is the log of another tournament; `fintrader verify"
                f" {self.path.parent} --repair` sets it aside, and the run's own command then"
                " continues from its results"
            )

    def order(self, results: Mapping[str, PodResult]) -> list[str]:
        """Order the pods that have a result: first as they were applied, then the others as they
        finished."""
        known = [pod for pod in list_applied(self.records) if pod in results]
        return known + sorted(
            set(results) - set(known), key=lambda pod: (results[pod].finished, pod)
        )
