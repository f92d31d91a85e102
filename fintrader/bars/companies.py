"""Companies and their tickers by date, since tickers change hands and companies change tickers.

FB became META on 2022-06-09, while until January 2022 an index fund traded as META. The ticker WTW
belonged to Weight Watchers, and later to Willis Towers Watson. So the members of an index are
companies (one share class each) with tickers by date, and the bars of a source are first of all
joined by company (`bars.sources.by_company`).

The folder `tables` has two tables: `nasdaq100.csv`, the members of the NASDAQ-100 by date since
2007-02-01, and `tickers.csv`, the tickers by date of companies that had more than one (docs: Data).
Members of the other indices come from the package index-constitution (extra `indices`).
"""

from __future__ import annotations

import csv
import datetime as dt
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

from fintrader.errors import DataError, install_command
from fintrader.files import hash_bytes

Interval = tuple[dt.date, dt.date | None]
"""First day of a membership, and the first day after it (None if it lasts)."""


def overlaps(interval: Interval, first: dt.date, last: dt.date) -> bool:
    """Report whether an interval contains a day from `first` to `last`."""
    start, stop = interval
    return start <= last and (stop is None or stop > first)


EVER = dt.date.min
NEVER = dt.date.max


class Name(NamedTuple):
    """A ticker of a company, from `start` until before `stop`."""

    ticker: str
    start: dt.date
    stop: dt.date


@dataclass(frozen=True)
class Company:
    """One share class of a company. Companies that used one ticker in different years are different
    objects."""

    key: str
    """The company's last ticker, with the year of its end if another company took over the ticker
    (SNDK.2016)."""
    names: tuple[Name, ...]
    """The company's tickers, in order of time."""
    member: tuple[Interval, ...]
    """Intervals of membership in the index, in order of time."""

    def ticker(self, day: dt.date) -> str:
        """Return the company's ticker on a day: before its first day the first one, after its last
        day the last."""
        return next((name.ticker for name in self.names if day < name.stop), self.names[-1].ticker)

    def holds(self, ticker: str, day: dt.date) -> bool:
        """Report whether the company had the ticker on a day."""
        return any(name.ticker == ticker and name.start <= day < name.stop for name in self.names)


@functools.cache
def list_index_companies(index: str) -> tuple[Company, ...]:
    """Return the companies that ever belonged to an index (nasdaq100, sp500, dow30), sorted by key.

    Raises DataError if the index needs a package that is not installed.
    """
    names = _read_names()
    member = _read_nasdaq100() if index == "nasdaq100" else _read_constitution(index, names)
    return tuple(
        Company(
            key,
            tuple(names.get(key, [Name(key, EVER, NEVER)])),
            tuple(sorted(spans, key=lambda span: span[0])),
        )
        for key, spans in sorted(member.items())
    )


@functools.cache
def hash_index(index: str) -> str:
    """Return the SHA-256 of an index's members and tickers, which is part of the identity of
    markets built with them."""
    return hash_bytes(repr(list_index_companies(index)).encode())


def _read_table(name: str) -> csv.DictReader[str]:
    text = (files("fintrader.bars") / "tables" / name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def _next_day(last: str) -> dt.date:
    """Return the day after `last`, a date as text; NEVER for an empty text."""
    return dt.date.fromisoformat(last) + dt.timedelta(days=1) if last else NEVER


def _read_names() -> dict[str, list[Name]]:
    names: dict[str, list[Name]] = {}
    for row in _read_table("tickers.csv"):
        start = dt.date.fromisoformat(row["from"]) if row["from"] else EVER
        names.setdefault(row["company"], []).append(
            Name(row["ticker"], start, _next_day(row["to"]))
        )
    return names


def read_interval(row: Mapping[str, str]) -> Interval:
    """Read `member_from` and `member_to` (the last day, empty if membership lasts) of a table's
    row. Raises KeyError, TypeError or ValueError if they are missing or no dates."""
    stop = _next_day(row["member_to"]) if row["member_to"] else None
    return dt.date.fromisoformat(row["member_from"]), stop


def _read_nasdaq100() -> dict[str, list[Interval]]:
    members: dict[str, list[Interval]] = {}
    for row in _read_table("nasdaq100.csv"):
        members.setdefault(row["company"], []).append(read_interval(row))
    return members


def _read_constitution(index: str, names: dict[str, list[Name]]) -> dict[str, list[Interval]]:
    """Read an index's members from index-constitution; add to `names`, in place, the changes of
    tickers that only this package knows.

    The package names a company by its last ticker in all years.
    """
    try:
        import index_constitution
    except ImportError:
        raise DataError(
            f"data.universe.members: {index} needs index-constitution: {install_command('indices')}"
        ) from None

    events = index_constitution.events(index)
    changed = events[events["event_type"] == "ticker_change"].sort_values("event_date")
    added: dict[str, list[Name]] = {}
    for moment, old, new in zip(
        changed["event_date"], changed["old_symbol"], changed["new_symbol"], strict=True
    ):
        day = moment.date()
        if old in added:  # a further change of the same company
            *earlier, last = added.pop(old)
            added[new] = [*earlier, last._replace(stop=day), Name(new, day, NEVER)]
        elif not any(
            name.ticker in (old, new) for spans in (names | added).values() for name in spans
        ):
            added[new] = [Name(old, EVER, day), Name(new, day, NEVER)]
    names |= added
    history = index_constitution.history(index)
    members: dict[str, list[Interval]] = {}
    for symbol, first, last in zip(
        history["symbol"], history["opt-in"], history["opt-out"], strict=True
    ):
        stop = None if last != last else last.date()
        then = (stop or dt.date.today()) - dt.timedelta(days=1)
        held = [
            (key, name) for key, spans in names.items() for name in spans if name.ticker == symbol
        ]
        now = [key for key, name in held if name.start <= then < name.stop]
        last_of = [key for key, name in held if name == names[key][-1]]
        key = (now or last_of or [str(symbol)])[0]
        members.setdefault(key, []).append((first.date(), stop))
    return members
