"""Companies and their tickers by date: tickers change hands, and companies change tickers.

FB became META on 2022-06-09, and until January 2022 an index fund traded as META. Weight Watchers
was WTW before Willis Towers Watson was. So members of an index are companies (one share class each)
with tickers by date, and the bars of a source are joined by company first of all
(`bars.sources.by_company`).

The folder `tables` holds two tables: `nasdaq100.csv`, the members of the NASDAQ-100 by date since
2007-02-01, and `tickers.csv`, the tickers by date of companies with more than one (docs: Data).
Other indices come unchanged from the package index-constitution (extra `indices`).
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
"""First day of membership, and the first day after it (None while it lasts)."""


def overlaps(interval: Interval, first: dt.date, last: dt.date) -> bool:
    """True of an interval with a day from `first` to `last`."""
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
    """One share class of one company. Two with the same ticker in different years are two
    companies."""

    key: str
    """Its last ticker; with the year of its end where another company took over the ticker
    (SNDK.2016)."""
    names: tuple[Name, ...]
    """In order of time."""
    member: tuple[Interval, ...]
    """Intervals of membership in the index, in order of time."""

    def ticker(self, day: dt.date) -> str:
        """Its ticker on a day; the first one before all, the last one after all."""
        return next((name.ticker for name in self.names if day < name.stop), self.names[-1].ticker)

    def holds(self, ticker: str, day: dt.date) -> bool:
        """True where the ticker was the company's on a day."""
        return any(name.ticker == ticker and name.start <= day < name.stop for name in self.names)


@functools.cache
def index_companies(index: str) -> tuple[Company, ...]:
    """Companies that ever belonged to an index (nasdaq100, sp500, dow30), by key.

    Raises DataError where the index needs a package that is not installed.
    """
    names = _names()
    member = _nasdaq100() if index == "nasdaq100" else _constitution(index, names)
    return tuple(
        Company(
            key,
            tuple(names.get(key, [Name(key, EVER, NEVER)])),
            tuple(sorted(spans, key=lambda span: span[0])),
        )
        for key, spans in sorted(member.items())
    )


@functools.cache
def index_digest(index: str) -> str:
    """SHA-256 of an index's members and tickers, for the addresses of markets made with them."""
    text = repr(index_companies(index))
    return hash_bytes(text.encode())


def _table(name: str) -> csv.DictReader[str]:
    text = (files("fintrader.bars") / "tables" / name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def _after(last: str) -> dt.date:
    """The day after `last`, a date as text; NEVER for an empty one."""
    return dt.date.fromisoformat(last) + dt.timedelta(days=1) if last else NEVER


def _names() -> dict[str, list[Name]]:
    found: dict[str, list[Name]] = {}
    for row in _table("tickers.csv"):
        start = dt.date.fromisoformat(row["from"]) if row["from"] else EVER
        found.setdefault(row["company"], []).append(Name(row["ticker"], start, _after(row["to"])))
    return found


def read_interval(row: Mapping[str, str]) -> Interval:
    """Read `member_from` and `member_to` (included, or empty) of a table's row. Raises KeyError,
    TypeError or ValueError for anything but dates."""
    stop = _after(row["member_to"]) if row["member_to"] else None
    return dt.date.fromisoformat(row["member_from"]), stop


def _nasdaq100() -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {}
    for row in _table("nasdaq100.csv"):
        found.setdefault(row["company"], []).append(read_interval(row))
    return found


def _constitution(index: str, names: dict[str, list[Name]]) -> dict[str, list[Interval]]:
    """Read the members from index-constitution, and add to `names` the changes of tickers that only
    it knows.

    It calls a company by its last ticker throughout.
    """
    try:
        import index_constitution
    except ImportError:
        raise DataError(
            f"data.universe.members: {index} needs index-constitution: {install_command('indices')}"
        ) from None

    events = index_constitution.events(index)
    changed = events[events["event_type"] == "ticker_change"]
    for day, old, new in zip(
        changed["event_date"], changed["old_symbol"], changed["new_symbol"], strict=True
    ):
        if not any(name.ticker in (old, new) for spans in names.values() for name in spans):
            names[new] = [Name(old, EVER, day.date()), Name(new, day.date(), NEVER)]
    history = index_constitution.history(index)
    found: dict[str, list[Interval]] = {}
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
        found.setdefault(key, []).append((first.date(), stop))
    return found
