"""Checks of a build: faults that no real market produces stop it, unless `data.waive` names them.

`Gate` checks each symbol while the build reads it, keeps a summary of the symbol's days and one
byte for each of its returns, and judges when all symbols are read. `find_faults` lists all faults,
also those that stop nothing, for the report on the bars' quality.

A price that jumps and comes back is reported, and no build drops it: only later bars show that it
comes back, so dropping it would leak the future.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fintrader.bars.bars import Array, Bars
from fintrader.bars.calendar import SessionGrid, exchange_days
from fintrader.bars.checks.against_daily import compare_with_daily
from fintrader.bars.checks.alignment import find_misaligned, find_missing_edges
from fintrader.bars.checks.bad_rows import (
    find_broken_ranges,
    find_placement_faults,
    find_price_faults,
    find_row_faults,
    mask_valid_rows,
)
from fintrader.bars.checks.coverage import find_coverage_faults
from fintrader.bars.checks.days import Days, check_days
from fintrader.bars.checks.kinds import DOUBTFUL, KINDS, STOPPING
from fintrader.bars.checks.nights import compare_days
from fintrader.bars.corporate_actions import Action, place_actions
from fintrader.errors import BarError, suggest
from fintrader.progress import shorten_list
from fintrader.results.market_description import Fault

log = logging.getLogger("fintrader.bars")

_NAMED = 3
"""Number of faults that a message names; it counts the others."""


@dataclass(frozen=True)
class Waiver:
    """A kind of fault that may pass: everywhere, for one symbol, or for one symbol on one day."""

    kind: str
    symbol: str = ""
    day: str = ""


def read_waiver(text: str) -> Waiver:
    """Read `kind`, `kind:SYMBOL` or `kind:SYMBOL:2016-01-04`. Raises ValueError unless the kind is
    one of `STOPPING`."""
    kind, _, rest = text.partition(":")
    if kind not in STOPPING:
        raise ValueError(f"{kind!r} is not a fault that stops a build; {suggest(kind, STOPPING)}")
    symbol, _, day = rest.rpartition(":")
    if not symbol or not re.fullmatch(r"\d+-\d+-\d+", day):  # a symbol may have a colon in it
        return Waiver(kind, rest)
    try:
        return Waiver(kind, symbol, str(dt.date.fromisoformat(day)))
    except ValueError:
        raise ValueError(f"{day!r} is no date; write it like 2016-01-04") from None


class Gate:
    """Checks the bars of a build symbol by symbol, and decides at the end whether the build may go
    on."""

    def __init__(
        self,
        grid: SessionGrid,
        waive: Sequence[str],
        actions: Sequence[Action] = (),
        *,
        is_active: bool = True,
        daily: Mapping[str, Bars] | None = None,
    ) -> None:
        """actions: declared splits and dividends; is_active: False lets all bars pass unchecked, as
        for a synthetic market; daily: symbol -> daily bars of another source, to compare with."""
        self.grid = grid
        self.actions = actions
        self.is_active = is_active
        self.waivers = [read_waiver(text) for text in waive]
        self.daily = daily or {}
        self._days: dict[str, Days] = {}
        self._faults: dict[str, list[Fault]] = {}

    def drop_waived_duplicates(self, raw: Bars) -> Bars:
        """Record one symbol's broken ranges (`find_broken_ranges`); drop waived rows that
        contradict an earlier row of the same time, and return the others."""
        if self.is_active and len(raw):
            days = exchange_days(self.grid.calendar, raw.ts)
            self._faults.setdefault(raw.symbols[0], []).extend(find_broken_ranges(raw, days))
        kind = "conflicting_duplicate"
        if not any(waiver.kind == kind for waiver in self.waivers) or len(raw) == 0:
            return raw
        (symbol,) = raw.symbols
        order = np.argsort(raw.ts, kind="stable")
        order = order[~raw.empty()[order]]  # a row without a price contradicts no other
        keep = np.ones(len(raw), dtype=bool)
        counts = Counter[str]()
        for row in order[raw.take(order).contradictions()].tolist():
            day = self._name_day(int(raw.ts[row]))
            if self._may_pass(Fault(kind, symbol, day, 1)):
                counts[day] += 1
                keep[row] = False
        self._faults.setdefault(symbol, []).extend(
            Fault(kind, symbol, day, count) for day, count in sorted(counts.items())
        )
        return raw if keep.all() else raw.take(keep)

    def check_symbol(self, bars: Bars) -> None:
        """Check one symbol's bars: prices as traded, valid and sorted, including bars outside of
        the sessions."""
        if not self.is_active or len(bars) == 0:
            return
        days, faults = check_days(bars, self.grid)
        self._faults.setdefault(bars.symbols[0], []).extend(faults)
        if days is not None and days.symbol in self.daily:
            days, differences = compare_with_daily(days, self.daily[days.symbol], self.grid)
            self._faults[days.symbol].extend(differences)
        if days is not None:
            self._days[days.symbol] = days

    def list_faults(self, symbols: Sequence[str]) -> list[Fault]:
        """List all faults of the bars of these symbols, sorted by kind, symbol and day."""
        days = [self._days[name] for name in symbols if name in self._days]
        declared = place_actions(self.actions, [day.symbol for day in days], self.grid)
        faults = [fault for name in symbols for fault in self._faults.get(name, [])]
        faults += compare_days(days, self.grid.num_sessions, declared)
        faults += find_misaligned(days)
        faults += find_missing_edges(days, self.grid.num_sessions)
        return sorted(_rename_shifted_days(faults, days, self.grid))

    def judge(self, symbols: Sequence[str]) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
        """Return the waived and the doubtful faults (`DOUBTFUL`) of a market of these symbols.

        Raises BarError if other faults stop the build; its message names them, their symbols and
        days, and the waivers that would let them pass.
        """
        faults = self.list_faults(symbols)
        stopping = [fault for fault in faults if fault.kind in STOPPING]
        waived = [fault for fault in stopping if self._may_pass(fault)]
        standing = [fault for fault in stopping if not self._may_pass(fault)]
        if standing:
            raise BarError(_explain_refusal(standing))
        doubtful = [fault for fault in faults if fault.kind in DOUBTFUL]
        if doubtful:
            log.warning(
                "doubtful bars were kept: %s; see `fintrader data quality`", name_faults(doubtful)
            )
        if waived:
            log.warning("waived: %s", name_faults(waived))
        return tuple(waived), tuple(doubtful)

    def _may_pass(self, fault: Fault) -> bool:
        return any(
            waiver.kind == fault.kind
            and waiver.symbol in ("", fault.symbol)
            and waiver.day in ("", fault.day)
            for waiver in self.waivers
        )

    def _name_day(self, ts: int) -> str:
        """Return the date of the session at a moment (nanoseconds since 1970 UTC), or of the
        nearest session, as text."""
        at = int(np.searchsorted(self.grid.borders, ts, side="right")) - 1
        return str(self.grid.dates[min(max(at, 0), self.grid.num_sessions - 1)])


def _rename_shifted_days(
    faults: Sequence[Fault], days: Sequence[Days], grid: SessionGrid
) -> Iterator[Fault]:
    """Yield the faults; `between_bars` becomes `shifted_day` on a day when only some of its symbols
    have it."""
    symbols_by_day = Counter(fault.day for fault in faults if fault.kind == "between_bars")
    for fault in faults:
        if fault.kind == "between_bars":
            session = np.searchsorted(grid.dates, np.datetime64(fault.day))
            if symbols_by_day[fault.day] < sum(session in day.session for day in days):
                fault = replace(fault, kind="shifted_day")
        yield fault


def name_faults(faults: Sequence[Fault]) -> str:
    """Describe the first faults in a phrase, with the number of the others."""
    return shorten_list(
        f"{fault.kind} of {fault.symbol} on {fault.day}"
        + (f" ({fault.detail})" if fault.detail else "")
        for fault in faults
    )


def suggest_waivers(faults: Sequence[Fault]) -> list[str]:
    """List entries of `data.waive` for these faults: one for each if they are few, else one for
    each kind."""
    exact = [f"{fault.kind}:{fault.symbol}:{fault.day}" for fault in faults]
    return exact if len(exact) <= _NAMED else sorted({fault.kind for fault in faults})


def _explain_refusal(faults: Sequence[Fault]) -> str:
    meaning = KINDS[faults[0].kind].partition(": stops")[0]
    action = ", declare the action under data.actions (with split: 1 if no split happened)"
    has_split = any(fault.kind == "split" for fault in faults)
    return (
        f"bars that cannot be right: {name_faults(faults)}; {faults[0].kind} means: {meaning}."
        f" Correct the bars{action if has_split else ''}, or let them pass: data.waive:"
        f" [{', '.join(suggest_waivers(faults))}]"
    )


def find_faults(
    parts: Iterable[Bars],
    grid: SessionGrid,
    *,
    actions: Sequence[Action] = (),
    daily: Mapping[str, Bars] | None = None,
    now: float | None = None,
) -> list[Fault]:
    """Find all faults of raw bars, sorted by kind, symbol and day; the bars stay unchanged.

    parts: the bars of one symbol each, in the order of their files; grid: contains the bars and has
    their length; actions: known splits and dividends; daily: symbol -> daily bars of another
    source; now: seconds since 1970, by default the present.
    """
    faults: list[Fault] = []
    traded: dict[str, Array] = {}
    gate = Gate(grid, (), actions, daily=daily)
    for raw in parts:
        faults += find_row_faults(raw, exchange_days(grid.calendar, raw.ts), now)
        bars = raw.take(mask_valid_rows(raw, now)).sorted()
        bars = bars.take(~bars.repeats())
        gate.check_symbol(bars)
        faults += find_placement_faults(bars, grid, exchange_days(grid.calendar, bars.ts))
        at = grid.locate(bars.ts)
        faults += find_price_faults(bars.take(at >= 0), grid)
        traded[bars.symbols[0]] = mask = np.zeros(grid.num_bars, dtype=bool)
        mask[at[at >= 0]] = True
    gate_faults = gate.list_faults([*traded])
    shifted = {(fault.symbol, fault.day) for fault in gate_faults if fault.kind == "shifted_day"}
    faults = [
        fault
        for fault in faults
        if fault.kind != "outside_session" or (fault.symbol, fault.day) not in shifted
    ]
    return sorted([*faults, *gate_faults, *find_coverage_faults(traded, grid)])
