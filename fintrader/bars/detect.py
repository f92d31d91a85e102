"""Detection of the settings that read unknown files of bars, with the evidence for each setting.

The first lines of a file show its layout. A part of the rows is read with this layout. The sessions
of an exchange then show the zone of the times, whether a time is the start or the end of its bar,
and other settings.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from fintrader.bars.bars import DAY_MINUTES, MINUTE_NS, PRICES, Array, Bars, bar_length, concat
from fintrader.bars.calendar import (
    Hours,
    SessionGrid,
    day_starts,
    find_exchange_timezone,
    session_date,
    session_grid,
    since_midnight,
    to_wall,
)
from fintrader.bars.checks.bad_rows import mask_outside
from fintrader.bars.checks.gates import Gate, name_faults, suggest_waivers
from fintrader.bars.checks.kinds import STOPPING
from fintrader.bars.clean import clean, refuse_bad_values
from fintrader.bars.evidence import (
    BarsByDay,
    has_opening_prints,
    label_votes,
    merge_opening_prints,
    split_by_day,
    sum_votes,
)
from fintrader.bars.propose_calendar import (
    OPEN,
    RARER,
    USUAL,
    ZONES,
    Hypothesis,
    Proposal,
    find_calendar,
    find_ends,
    list_near,
    measure_starts,
    move,
    propose,
)
from fintrader.bars.sniff import Known, Layout, name_pattern, sniff
from fintrader.bars.sources.bar_files import (
    csv_line,
    iterate_batches,
    present_columns,
    split_by_layout,
)
from fintrader.bars.sources.cells import UNITS, round_ends
from fintrader.bars.sources.layout import COLUMN_NAMES, PACKINGS, FilesSettings
from fintrader.bars.sources.listing import BarFile, list_bar_files, list_files
from fintrader.bars.sources.presets import BAR_LENGTHS, PRESETS, Preset
from fintrader.config import validate
from fintrader.errors import BarError
from fintrader.numerals import format_count
from fintrader.progress import shorten_list
from fintrader.results.market_description import MOST_OUTSIDE, Fault

Sure = Literal["given", "sure", "likely", "assumed"]
_HOUR = 60 * MINUTE_NS
_DAY = 24 * _HOUR
_SURE_DAYS = 5
"""Least number of days that show that times are the ends of bars, for that to be sure."""
_FILES = 24
"""Largest number of files in the first sample, spread evenly, to keep the detection fast."""
_ROWS = 1_500_000
"""Number of rows after which no more are kept, to limit time and memory."""
_SYMBOLS = 12
"""Number of symbols, those with the most rows, whose bars are examined one by one."""
_DAY_FILES = 2000
"""Largest number of additional files to read if each file has bars of a single time."""
_MORNING = 6 * _HOUR
"""Local time of day, in nanoseconds, before which no market closes."""
_EVENING = 17 * _HOUR
"""Local time of day, in nanoseconds, before which no market opens the next day's session."""
_NEVER_CLOSED = 0.9
"""Share (0 to 1) of a calendar's time slots that contain rows. Above it, bars of the calendar 24/7
prove a market without closing hours, and bars in UTC are not compared with local clocks."""
_OPEN_HOURS = 20
"""Number of hours of the day that must have bars to confirm a calendar in `OPEN`, for bars of up to
an hour. Fewer hours show closing hours that these calendars do not have."""
_NEXT = 10 * _DAY
"""Gap in nanoseconds from which on two parts of the data count as separate. Shorter gaps may be
holidays."""


@dataclass(frozen=True)
class InferredSetting:
    """One detected setting, its certainty, and the reason for it."""

    setting: str
    value: str
    sure: Sure
    why: str


@dataclass
class Detection:
    """Settings that were detected for files of bars, and the findings that explain them."""

    path: str
    calendar: str
    known: Known = field(default_factory=dict)
    """Settings of the source that the user gave. They are not guessed."""
    source: dict[str, Any] = field(default_factory=dict)
    """Settings of the `files` source that read the files, without those at their defaults."""
    findings: list[InferredSetting] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    first: dt.date = dt.date.max
    last: dt.date = dt.date.min
    sessions: tuple[dt.date, ...] = ()
    """Dates of the calendar's sessions from `first` to `last`, both included."""
    bar_minutes: int = 1
    """Length of the bars in minutes. Daily bars have the length of a whole session."""
    session_minutes: int = 390
    ends: int | None = None
    """Length in minutes of long bars whose times are ends (`find_ends`)."""
    hours: Hours = "regular"
    extended: bool = False
    spans: list[tuple[int, int]] = field(default_factory=list)
    """First and last time of each part of the data that was read, nanoseconds since 1970. They are
    read as if they were UTC, until `detect` moves them together with the bars."""
    whole: bool = True
    """True if all rows of all files were read."""
    has_volume: bool = False
    """True if any bar has a volume other than 0."""
    waivers: list[str] = field(default_factory=list)
    """Entries of `data.waive` with which a build accepts the faults of these bars."""

    def note(self, setting: str, value: object, sure: Sure, why: str) -> None:
        """Add a finding: a setting, its value, its certainty, and the reason `why`."""
        if isinstance(value, dict):
            value = ", ".join(f"{name}: {column}" for name, column in value.items())
        told = " ".join(str(value).splitlines())  # a name may have several lines
        self.findings.append(InferredSetting(setting, told, sure, why))

    def decide(self, setting: str, value: object, sure: Sure, why: str) -> None:
        """Set a setting of the source, and add the finding about it."""
        self.source[setting] = value
        self.note(setting, value, sure, why)

    def note_faults(self, faults: Sequence[Fault]) -> None:
        """Add a finding on the faults at which a build stops, and set `waivers`."""
        if faults:
            self.waivers = suggest_waivers(faults)
            said = f"a build stops at {name_faults(faults)} (data.waive, data.actions)"
            self.note("faults", len(faults), "sure", said)

    def settings(self) -> FilesSettings:
        """Return `source` as settings. Raises ConfigError if they are not valid."""
        return validate(FilesSettings, self.source, "detected")


def detect(
    path: str,
    *,
    preset: Preset | None = None,
    calendar: str | None = None,
    known: Known | None = None,
) -> Detection:
    """Detect the settings that read the files at a path or URL.

    `preset`: vendor whose settings are used; only the other settings are detected. `calendar`: name
    of the calendar; None to detect it. `known`: settings of the source that the user gave, which
    are not guessed. In `known`, `symbol` is a symbol or the name of a column, and `columns` are
    numbers from 1 on if the files have no header.

    Raises DataError if there is no file. Raises BarError if settings cannot be detected or
    contradict the files, or if too many rows lie outside of the calendar's sessions.
    """
    known = known or {}
    found = Detection(path, calendar or "", known)
    layout, files = _layout(found, preset)
    try:
        bars = _sample(found, files, layout.zoned)
    except BarError as error:
        other = "" if len(files) == 1 else "; or give fewer files (a pattern, or --name-pattern)"
        raise BarError(f"{error}{other}") from None
    if found.source.get("price_divisor") is None and "preset" not in found.source:
        bars = _price_unit(found, bars, layout.vendor)
    bars, midnight = _recognise_days(found, layout, bars)
    _refuse_idle(found, layout)
    bars = _drop_stale(bars) if layout.whole_days else _round_late_ends(bars, layout)
    zone = known.get("timezone", layout.zone)
    is_naive = not (layout.zoned or layout.whole_days)
    step = known.get("bar_minutes", bar_length(bars, DAY_MINUTES))
    tried = ((zone,) if zone else ZONES) if is_naive else ("UTC",)
    if calendar is None:
        proposal = find_calendar(bars, tried, step, found.spans)
        proposal = _prefer(midnight, proposal, found, bars, step)
    else:
        proposal = propose(bars, (calendar,), tried, step, found.spans)
    proposal, step = _seek_ends(found, bars, calendar, tried, step, proposal)
    if layout.zoned and calendar is None:
        _refuse_local(found, bars, step, proposal.best, layout.example)
    found.calendar = proposal.best.calendar
    if is_naive:
        if zone is None:
            _refuse_unplaced(found, bars, step, proposal.best)
        bars = _zone(found, bars, proposal, zone)
    else:
        _note_zone(found, layout, midnight)
    grid = _grid(found, bars, step)
    fits_late = proposal.best.rank[-1] and found.calendar in OPEN
    _sessions_and_label(found, bars, grid, layout, fits_late)
    _calendar(found, bars, grid, proposal, calendar, layout)
    faults = _faults(found, bars, grid)
    _adjustment(found, bars, [fault for fault in faults if fault.kind == "split"])
    _refuse_outside_range(found, bars)
    _refuse_sums(found, bars)
    if layout.actions:
        said = "these columns are not read; if prices are as traded, write them to a file for"
        found.note("actions", ", ".join(layout.actions), "assumed", f"{said} data.actions")
    if found.whole:
        found.note_faults(faults)
    return found


def _seek_ends(
    found: Detection,
    bars: Bars,
    calendar: str | None,
    zones: Sequence[str],
    step: int,
    proposal: Proposal,
) -> tuple[Proposal, int]:
    """Set `found.ends` if the times are the ends of long bars in some market, and more rows fit
    them than lie in the sessions of the proposal. Return the proposal and length that then hold."""
    minutes = found.known.get("bar_minutes")
    if found.known.get("label") == "start" or step >= DAY_MINUTES - 60:
        return proposal, step
    best = proposal.best
    fitting = find_ends(bars, (calendar,) if calendar else USUAL, zones)
    if not calendar and (fitting or best.outside > MOST_OUTSIDE or best.calendar in RARER):
        fitting += find_ends(bars, list_near(fitting[0].calendar) if fitting else RARER, zones)
    fitting = [one for one in fitting if minutes in (None, one.minutes)]
    if not fitting:
        return proposal, step
    ends = max(fitting, key=lambda one: one.share)  # the first of equal ones
    if best.calendar not in OPEN and ends.share <= measure_starts(
        bars, best.calendar, best.zone, step
    ):
        return proposal, step
    found.ends = ends.minutes
    own = propose(bars, (ends.calendar,), (ends.zone,), ends.minutes, found.spans)
    alike = [one for one in fitting if one.share > ends.share - 0.002]
    others = dict.fromkeys(one.calendar for one in alike if one.calendar != ends.calendar)
    clocks = dict.fromkeys(one.zone for one in alike if one.zone != ends.zone)
    may_be_sure = own.may_be_sure and ends.share > 0.999
    own = replace(own, calendars=tuple(others), zones=tuple(clocks), may_be_sure=may_be_sure)
    return own, ends.minutes


def _round_late_ends(bars: Bars, layout: Layout) -> Bars:
    """Round times up to the next minute if all lie in the last second of a minute. Then also set
    `has_late_ends` of the layout."""
    ends = round_ends(bars.ts)
    layout.has_late_ends = bool((ends != bars.ts).all())
    return replace(bars, ts=ends) if layout.has_late_ends else bars


def _drop_stale(bars: Bars) -> Bars:
    """Drop daily bars without volume that repeat the last close: some vendors add them on
    holidays, when no calendar has a session. Keep all bars of a symbol if at most half of them have
    a volume."""
    is_flat = (bars.volume == 0) & (bars.high == bars.low) & (bars.open == bars.close)
    same = np.zeros(len(bars), dtype=bool)
    same[1:] = (np.diff(bars.symbol) == 0) & (np.diff(bars.close) == 0)
    traded = np.bincount(bars.symbol, bars.volume > 0) > np.bincount(bars.symbol) / 2
    return bars.take(~(is_flat & same & traded[bars.symbol]))


def _note_zone(found: Detection, layout: Layout, zone: str) -> None:
    """Add a finding on the zone of times that are dates, carry their zone, or count from 1970.
    `zone`: zone in which daily bars are stamped at one time of day."""
    if layout.whole_days and not layout.zoned:
        if "label" in found.source or found.calendar == "24/7":
            found.source["timezone"] = zone
        found.note("timezone", "the calendar's", "sure", "times are dates")
        return
    is_needed = layout.whole_days or found.source.get("time_format")
    if is_needed and zone != FilesSettings().timezone:
        found.source["timezone"] = zone
    said = "bars are stamped at one time of day there"
    found.note("timezone", zone, "sure", said if layout.whole_days else "times say it themselves")


def _layout(found: Detection, preset: Preset | None) -> tuple[Layout, list[BarFile]]:
    """Return the layout of the files, and the files that have it. Add the settings and findings to
    `found`."""
    known = found.known
    pattern = known.get("name_pattern")
    if preset is not None:
        found.source = {"preset": preset}
        if pattern:
            found.decide("name_pattern", pattern, "given", "files are called so")
        layout, files, left_out = choose_layout(list_bar_files(found.settings(), found.path), known)
        _by_preset(found, layout, preset)
    else:
        named = FilesSettings(name_pattern=pattern)
        files = list_bar_files(named, found.path) if pattern else list_files(found.path, text=True)
        chosen = choose_kind(files)
        layout, own, left_out = choose_layout(chosen, known)
        _by_layout(found, layout, own)
        if len(chosen) < len(files) and "name_pattern" not in found.source:
            pattern = name_pattern(own, False).partition("{symbol=")[0]
            found.source["name_pattern"] = pattern.replace("{symbol}", "*")
        files = own
    if "price_divisor" in known:
        found.decide("price_divisor", known["price_divisor"], "given", "divides prices")
    if left_out:
        found.note("left out", len(left_out), "sure", "; ".join(left_out))
    return layout, files


def has_date(file: BarFile) -> bool:
    """Report whether the name of a file contains a date, such as 2024-01-31 or 20240131."""
    return re.search(r"(19|20)\d\d-?[01]\d-?[0-3]\d", file.stem) is not None


_PRICE_KINDS = "ask|bid|last|mid|quote|trade"
"""Pattern of the kinds of prices in the names of files."""


def choose_kind(files: Sequence[BarFile]) -> list[BarFile]:
    """Return the files of trades if all names of files state a kind of prices and the kinds differ;
    otherwise return all files.

    Raises BarError if the kinds differ and none is of trades, or if all names state the length of
    the bars and the lengths differ.
    """
    for said, words in (("kinds of prices", _PRICE_KINDS), ("lengths of bars", BAR_LENGTHS)):
        kinds: dict[str, list[BarFile]] = {}
        for file in files:
            found = re.findall(rf"[._\s-]({words})(?![^._\s-])", file.stem, re.I)
            kinds.setdefault(found[-1].lower() if found else "", []).append(file)
        if len(kinds) < 2 or "" in kinds:
            continue
        chosen = kinds.get("trade") or kinds.get("last")
        if chosen is None:
            kind, chosen = next(iter(kinds.items()))
            raise BarError(
                f"{chosen[0].name}: by their names the files hold several {said}"
                f" ({', '.join(kinds)}); choose one, such as {kind}:"
                f" --name-pattern '{name_pattern(chosen, needs_date=False)}'"
            )
        files = chosen
    return list(files)


def choose_layout(
    files: Sequence[BarFile], known: Known
) -> tuple[Layout, list[BarFile], list[str]]:
    """Choose the layout of bars that most files have. Return the layout, the files that have it,
    and for each other file a text that says why it is left out. `known`: settings that the user
    gave.

    Raises BarError if no file has a layout of bars.
    """
    alike: dict[str, list[BarFile]] = {}
    for file in files:
        alike.setdefault(_describe_columns(file) if len(files) > 1 else "", []).append(file)
    faults = []
    for first, *_ in sorted(alike.values(), key=len, reverse=True):
        try:
            layout = sniff(first, has_date(first), known, is_alone=len(files) == 1)
        except BarError as error:
            faults.append(error)
            continue
        values = {name: value for name, value in layout.values.items() if value}
        values.pop("symbol", None)
        pattern = {"name_pattern": "{symbol}"} if layout.single else {}
        settings = validate(FilesSettings, values | pattern, "detected")
        return layout, *split_by_layout(files, settings)
    raise faults[0]


def _describe_columns(file: BarFile) -> str:
    """Return the names of a file's columns as one text; for a CSV its first line, with every number
    replaced by 0. Return an empty text if the file cannot be read."""
    try:
        if file.kind != "csv":
            return ",".join(present_columns(file, FilesSettings()))
        return re.sub(r"\d+(\.\d+)?", "0", csv_line(file))
    except BarError:
        return ""


def _refuse_idle(found: Detection, layout: Layout) -> None:
    """Raise BarError if the user gave a setting that has no effect: a zone for times that
    contain one or count from 1970, or a zone, label or length of bars for dates."""
    options = {"timezone": "--zone", "label": "--label", "bar_minutes": "--bar-minutes"}
    idle = [*options] if layout.whole_days else ["timezone"] if layout.zoned else []
    for setting in idle:
        if setting in found.known:
            times = "are dates" if layout.whole_days else "carry their zone, or count from 1970"
            raise BarError(f"{layout.name}: its times {times}; omit {options[setting]}")


def _by_preset(found: Detection, layout: Layout, preset: Preset) -> None:
    found.note("preset", preset, "given", "its settings")
    if "header" in PRESETS[preset] and "columns" in found.known:
        raise BarError(
            f"{layout.name}: the preset {preset} names the columns itself; leave"
            f" --{next(iter(found.known['columns']))} or the preset out"
        )
    if "symbol" in layout.values:
        pattern = found.settings().name_pattern or "*"
        found.decide("name_pattern", _fix_symbol(pattern, layout), "given", "of all files")
    for setting in sorted(found.known.keys() & layout.values.keys() - {"columns"}):
        found.decide(setting, layout.values[setting], "given", "")
    wanted = found.settings().columns
    if "header" not in PRESETS[preset] and "header" not in layout.values:
        named = layout.values["columns"].items()
        other = {role: name for role, name in named if wanted.get(role) != name}
        if other:
            found.decide("columns", other, "likely", "other names here")
    written = layout.values.get("time_format")
    if written != PRESETS[preset].get("time_format"):
        found.source["time_format"] = written


def _fix_symbol(pattern: str, layout: Layout) -> str:
    """Return the pattern of names with the given symbol at its end, and `*` for `{symbol}`. Remove
    the symbol from `layout.values`."""
    return f"{pattern.replace('{symbol}', '*')}{{symbol={layout.values.pop('symbol')}}}"


def _by_layout(found: Detection, layout: Layout, files: list[BarFile]) -> None:
    """Add the columns, the format of times, and the pattern of names to `found`. Raises BarError if
    neither a column nor the user's pattern gives the symbols."""
    dated = has_date(files[0])
    values = layout.values
    columns = {
        role: name for role, name in values.pop("columns").items() if COLUMN_NAMES.get(role) != name
    }
    found.source = {name: one for name, one in values.items() if one and name != "symbol"}
    if columns:
        found.source["columns"] = columns
    needs_date = dated and found.source.get("time_format") in UNITS and not layout.zoned
    asked = found.known.get("name_pattern")
    if "symbol" in values:
        pattern = asked or (name_pattern(files, True) if needs_date else "*")
        found.decide("name_pattern", _fix_symbol(pattern, layout), "given", "of all files")
    elif asked:
        if layout.single and "{symbol" not in asked:
            raise BarError(
                f"{layout.name}: neither a column nor --name-pattern gives the symbol; put"
                " {symbol} into the pattern, or give the one symbol of all bars: --symbol"
            )
        found.decide("name_pattern", asked, "given", f"{len(files)} files match")
    elif layout.single:
        said = f"no column holds symbols, files are called like {files[0].stem}"
        found.decide("name_pattern", name_pattern(files, needs_date), "likely", said)
    elif re.search(rf"\.(txt|dat|asc)(\.({PACKINGS}))?$", files[0].place, re.IGNORECASE):
        found.source["name_pattern"] = "*"  # without it, .txt files are ignored
    for setting, why in layout.notes.items():
        value = columns or "as usual" if setting == "columns" else values.get(setting)
        sure: Sure = "given" if setting in found.known else "sure"
        sure = "assumed" if why.startswith("guess: ") else sure
        found.note(setting, value, sure, why.removeprefix("guess: "))


def _sample(found: Detection, files: list[BarFile], zoned: bool) -> Bars:
    """Read a sample of the rows and return them sorted, with times without a zone read as UTC. Add
    the symbols and the first and last time of each part to `found`.

    `zoned`: True if times contain a zone. Raises BarError if no row has a price, a value is
    impossible, or more than 30 % of the rows contradict another row of their symbol and time.
    """
    reading = found.settings().model_copy(update={"timezone": "UTC", "label": "start"})
    places = np.unique(np.linspace(0, len(files) - 1, _FILES).round().astype(int)).tolist()
    parts: list[Bars] = []
    symbols: set[str] = set()
    rows = 0
    spans: dict[int, list[tuple[int, int]]] = {}
    is_single = True  # each file has a single time, so many files are needed to see steps
    others = [place for place in range(len(files)) if place not in places][:_DAY_FILES]
    for place in itertools.chain(places, others):
        if place in others and not (is_single and rows < _ROWS):
            break
        spans[place] = []
        for batch in iterate_batches(files[place], reading):
            batch = batch.without_empty()
            if len(batch) == 0:
                continue
            refuse_bad_values(batch, zoned=zoned)
            found.has_volume |= bool(batch.volume.any())
            symbols.update(batch.symbols)
            spans[place].append((int(batch.ts.min()), int(batch.ts.max())))
            is_single = is_single and len({*spans[place][-1]}) == len(spans[place]) == 1
            found.whole &= rows < _ROWS
            if rows < _ROWS:
                parts.append(batch)
                rows += len(batch)
    found.whole &= len(spans) == len(files)
    if not parts:
        raise BarError(f"{found.path}: no row has a price; check the files")
    bars = concat(parts)
    _refuse_evenings(found, bars)
    bars = bars.sorted()
    if bars.contradictions().mean() > 0.3:
        raise BarError(
            f"{found.path}: most rows have the time of another, different row; if a column"
            " holds symbols, name it: --symbol COLUMN; if another one holds the times: --ts COLUMN;"
            " if names of folders or files hold symbols, say where: --name-pattern '{symbol}/*' or"
            " '{symbol}_*'; if rows repeat a bar, keep the last of each"
        )
    _refuse_periods(found, symbols, spans, len(files))
    is_given = not found.known.keys().isdisjoint({"symbol", "name_pattern"})
    is_fixed = is_given and "{symbol=" in found.source.get("name_pattern", "")
    if "".join(symbols).islower() and not is_fixed:
        found.decide("uppercase", True, "likely", "symbols are written small")
        symbols = {name.upper() for name in symbols}
        bars = replace(bars, symbols=tuple(name.upper() for name in bars.symbols))
    found.symbols = tuple(sorted(symbols))
    if len(spans) < len(files):
        found.note("files", len(files), "sure", f"{len(spans)} of them were looked at")
    found.note("symbols", len(symbols), "sure", shorten_list(found.symbols))
    found.spans = _join_spans(spans, found.whole)
    return bars


def _refuse_evenings(found: Detection, bars: Bars) -> None:
    """Raise BarError if on at least half of a symbol's days the rows begin in the evening and go on
    with earlier times of the same date: such evenings have the date of the next trading day."""
    ordered = bars.take(np.argsort(bars.symbol, kind="stable"))
    for name, one in ordered.by_symbol().items():
        date = one.ts // _DAY
        first = np.append(True, np.diff(date) != 0)
        begin = np.maximum.accumulate(np.where(first, np.arange(len(one)), 0))
        is_back = (np.diff(one.ts) < 0) & ~first[1:] & (one.ts[begin[1:]] % _DAY >= _EVENING)
        days = len(np.unique(date))
        is_rising = (np.diff(one.ts) < 0).mean() < 0.5 if len(one) > 1 else False
        if days >= 5 and is_rising and days / 2 <= is_back.sum():
            row = one.describe_row(int(is_back.argmax()) + 1, zoned=False)
            raise BarError(
                f"{row}: the times of {name} go back {is_back.sum()} times in {days} days, as where"
                " bars of the evening have the date of the next trading day; write the date on"
                " which each bar began"
            )


def _refuse_periods(
    found: Detection, symbols: set[str], spans: dict[int, list[tuple[int, int]]], files: int
) -> None:
    """Raise BarError if a guessed pattern gives several symbols, but the periods of all files are
    separate: the files may be parts of one series.

    `spans`: number of each file that was read -> first and last times of its parts, in nanoseconds;
    `files`: number of all files.
    """
    pattern = found.source.get("name_pattern", "")
    is_guess = "{symbol}" in pattern and "name_pattern" not in found.known
    # if a symbol has several files and some were not read, the unread ones may overlap
    if not is_guess or len(symbols) < 2 or len(spans) not in (files, len(symbols)):
        return
    periods = sorted((min(parts)[0], max(parts)[1]) for parts in spans.values() if parts)
    if all(high < low for (_, high), (low, _) in itertools.pairwise(periods)):
        raise BarError(
            f"{found.path}: by the names of the files the symbols are"
            f" {shorten_list(sorted(symbols))}, but no two files have bars in the same period, as"
            " parts of one series; if they are, give its symbol: --symbol SYMBOL; if not:"
            f" --name-pattern '{pattern}'"
        )


def _join_spans(spans: dict[int, list[tuple[int, int]]], is_whole: bool) -> list[tuple[int, int]]:
    """Join parts of the data that are less than `_NEXT` apart; return their first and last times,
    in nanoseconds.

    `spans`: number of a file -> first and last times of its parts. Parts of different files are
    joined only if the files are neighbours, or if all files were read completely (`is_whole`).
    """
    if is_whole:
        ordered = sorted(itertools.chain.from_iterable(spans.values()))
        spans = {0: ordered}
    joined: list[tuple[int, int]] = []
    before = -2
    for place in sorted(spans):
        for low, high in spans[place]:
            near = joined and (is_whole or low >= joined[-1][1]) and low - joined[-1][1] < _NEXT
            if place <= before + 1 and near:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
            before = place
    return joined


def _each(bars: Bars) -> list[Bars]:
    """Return the bars of each of the `_SYMBOLS` symbols with the most rows, the most rows first."""
    return sorted(bars.by_symbol().values(), key=len, reverse=True)[:_SYMBOLS]


def _price_unit(found: Detection, bars: Bars, vendor: str | None) -> Bars:
    """Return the bars, with prices divided if the `vendor` (`lean` or `databento`) writes them as
    whole numbers. For other vendors, only add a finding on large whole prices."""
    close = bars.close
    whole = np.allclose(close, np.round(close), rtol=1e-9, atol=0.0)
    like = f"prices are whole numbers like {close[0]:.0f}"
    divisor = {"lean": 10_000, "databento": 1_000_000_000}.get(vendor or "", 1)
    if whole and divisor > 1:
        found.decide("price_divisor", divisor, "sure", f"{like}, as {vendor} writes them")
        prices = {name: getattr(bars, name) / divisor for name in PRICES}
        return replace(bars, **prices)
    if whole and float(np.median(close)) > 1000:
        found.note("price_divisor", 1, "assumed", f"{like}; --price-divisor divides them")
    return bars


def _recognise_days(found: Detection, layout: Layout, bars: Bars) -> tuple[Bars, str]:
    """Recognise daily bars by the steps between them, whatever their time of day. Return the bars,
    with the times of daily bars moved to midnight, and the zone of the stamps of daily bars.

    Raises BarError if bars are longer than a day, if only some symbols have daily bars, or if the
    stamps fit no zone.
    """
    steps = np.concatenate([np.diff(np.unique(one.ts)) for one in _each(bars)])
    usual = float(np.median(steps)) / _DAY if len(steps) else 0.0
    if usual > 5:
        raise BarError(
            f"{found.path}: bars stand {usual:.0f} days apart, and bars longer than a day cannot be"
            " built; get bars of days or shorter ones"
        )
    if not layout.whole_days:
        if not len(steps) or np.quantile(steps, 0.05) < _DAY - 4 * _HOUR:
            return bars, "UTC"
        layout.whole_days = True
    for one in _each(bars):
        if len(one) > 1 and 0 < np.median(np.diff(one.ts)) < _DAY - 4 * _HOUR:
            raise BarError(
                f"{found.path}: bars of {one.symbols[0]} are shorter than a day, those of others"
                " are not; give files of one length (a pattern, or --name-pattern)"
            )
    zone, label = _find_day_zone(found, bars, layout.zoned)
    if label:
        clock = to_wall(bars.ts[:1], zone)[0]
        evening = " of the evening before" if label == "eve" else ""
        found.decide("label", label, "likely", f"daily bars, stamped at {clock:%H:%M:%S}{evening}")

    def to_day(ts: Array) -> Array:
        wall = to_wall(ts, zone) + pd.Timedelta(hours=12 if label == "eve" else 0)
        return np.asarray(wall.normalize().asi8)

    found.spans = [tuple(to_day(np.array(part)).tolist()) for part in found.spans]
    return replace(bars, ts=to_day(bars.ts)), zone


def _find_day_zone(found: Detection, bars: Bars, zoned: bool) -> tuple[str, str | None]:
    """Find the zone in which daily bars are stamped; return it and the label of the bars.

    The label is None for stamps at midnight. It is `day` for stamps on the bar's own day, and `eve`
    for stamps in the evening before. For `day`, a zone is preferred in which at most 10 % of the
    bars lie on weekends. `zoned`: True if times contain a zone; otherwise only UTC is tried. Raises
    BarError if no zone fits.
    """
    moved = bars.high > bars.low  # some vendors add bars on weekends, which repeat the last close
    days = {}
    for zone in ("UTC", *ZONES) if zoned else ("UTC",):
        local = to_wall(bars.ts, zone).asi8
        clocks, counts = np.unique(local % _DAY, return_counts=True)
        if not clocks.any():
            return zone, None
        # not all bars have the same time of day, because short sessions close early
        clock = clocks[counts.argmax()]
        is_usual = counts.max() > 0.9 * len(local) and (clock > _MORNING or clock == 0)
        if not zoned or is_usual:
            weekday = (local[moved | ~moved.any()] // _DAY + 4) % 7  # 0 is Sunday
            days[zone] = np.bincount(weekday, minlength=7)
    best = min(
        days, key=lambda zone: 10 * (days[zone][0] + days[zone][6]) > days[zone].sum(), default=None
    )
    # bars on Sundays but hardly on Fridays belong to the next day, perhaps in another zone
    if best is not None and 20 * days[best][5] >= days[best][0]:
        return best, "day"
    for zone, (sundays, *_, fridays, _saturdays) in days.items():
        evenings = to_wall(bars.ts, zone).asi8 % _DAY >= _EVENING
        is_week = sundays and 20 * fridays < sundays and zone in ("UTC", "America/New_York")
        if is_week and evenings.all():
            return zone, "eve"
    raise BarError(
        f"{found.path}: daily bars are stamped at {pd.Timestamp(bars.ts[0]):%H:%M:%S}, which is"
        " neither a date nor midnight in any zone; write dates"
    )


def _grid(found: Detection, bars: Bars, step: int) -> SessionGrid:
    """Return the grid of the sessions from one day before the first bar to one day after the last.

    `step`: length of the bars in minutes. For bars of 30 to 720 minutes, the grid has hours `clock`
    if the bars begin at multiples of `step` after midnight and some lie outside of the sessions for
    this reason. Raises BarError if more than 10 % of such bars begin within bars of the calendar.
    """
    day = dt.timedelta(days=1)
    first, last = (session_date(found.calendar, int(ts)) for ts in (bars.ts.min(), bars.ts.max()))
    grid = session_grid(found.calendar, first - day, last + day)
    wall = since_midnight(bars.ts, find_exchange_timezone(found.calendar)) % (step * MINUTE_NS)
    wall[np.isin(bars.ts, grid.open)] = 0  # the first bar may be shorter, like 9:30 to 10:00
    if not 30 <= step <= 720:
        return grid
    days = found.calendar, first - day, last + day, step
    if (wall > 0).mean() <= MOST_OUTSIDE:
        on_clock = session_grid(*days, "clock")
        starts = np.concatenate([bars.ts, bars.ts - step * MINUTE_NS])  # starts or ends of bars
        if ((on_clock.locate(starts) >= 0) & (grid.locate(starts) < 0)).mean() >= MOST_OUTSIDE / 2:
            found.hours = "clock"
            found.note("hours", "clock", "sure", f"bars begin at multiples of {step} minutes")
            return on_clock
    whole = session_grid(*days)
    edges = np.concatenate([whole.minutes, whole.ends])
    is_odd = (grid.locate(bars.ts) >= 0) & ~np.isin(bars.ts, edges)
    if is_odd.mean() > 0.1:
        clock = str(bars.ts[is_odd.argmax()].astype("datetime64[ns]"))[11:16]
        raise BarError(
            f"{found.path}: bars of {step} minutes begin within those of {found.calendar}, as at"
            f" {clock} UTC; get shorter ones, or name the calendar with --calendar and the zone of"
            " naive times with --zone; 24/5 and 24/7 begin bars at midnight in UTC, FX at 17:00 in"
            " New York"
        )
    return grid


def _refuse_shifted(found: Detection, bars: Bars, step: int) -> None:
    """Raise BarError for bars of an hour or more that do not begin at multiples of their length in
    UTC. In a market without closing hours all bars begin there, so a build would move such bars to
    earlier times. `step`: length of the bars in minutes."""
    length = step * MINUTE_NS
    if step < 60 or 1440 % step or (bars.ts % length > 0).mean() <= MOST_OUTSIDE:
        return
    ahead = int(np.median(bars.ts % length)) // _HOUR
    zones = [*ZONES, f"Etc/GMT-{ahead}"]  # Etc/GMT-5 is five hours ahead of UTC
    fitting = [zone for zone in zones if (move(bars.ts, zone) % length > 0).mean() <= MOST_OUTSIDE]
    remedy = "name another column of times with --ts, or get bars that do"
    if fitting:
        remedy = f"name the zone of the times with --zone, such as {', '.join(fitting)}"
        remedy += "" if (bars.ts % _HOUR).any() else "; --zone UTC keeps them"
    raise BarError(
        f"{found.path}: bars of {step} minutes begin at {pd.Timestamp(bars.ts[0]):%H:%M}, but in a"
        f" market without closing hours they begin at multiples of their length in UTC; {remedy}"
    )


def _refuse_unplaced(found: Detection, bars: Bars, step: int, best: Hypothesis) -> None:
    """Raise BarError if nothing shows the zone of the times. For a market without closing hours,
    also call `_refuse_shifted`.

    Nothing shows the zone of bars in a few hours of the day that fit no exchange with closing
    hours, nor of bars longer than an hour that fit a calendar only by a foreign clock, nor of bars
    of an hour that do so and do not fill its sessions exactly. `step`: length of the bars in
    minutes; `best`: the best hypothesis.
    """
    if found.ends:
        return
    if found.calendar == "24/7" and best.filled > _NEVER_CLOSED:
        _refuse_shifted(found, bars, step)
    hours = np.bincount(bars.ts // _HOUR % 24, minlength=24) > len(bars) / 1000
    # data of a few hours cannot show closing hours
    least = min(_OPEN_HOURS, np.ptp(bars.ts) // _HOUR)
    is_placed = best.zone in ("UTC", find_exchange_timezone(found.calendar))
    if found.calendar in OPEN and step <= 60:
        is_placed = hours.sum() >= least
    elif step <= 60:
        is_whole = best.filled > 0.95 and not best.outside
        is_placed |= step < 60 or is_whole or best.outside > MOST_OUTSIDE
    if not is_placed:
        raise BarError(
            f"{found.path}: bars of {step} minutes begin in {hours.sum()} hours of the day, which"
            " show neither their market nor its zone; name the zone of the times with --zone, such"
            " as Asia/Shanghai, and --calendar; 24/5 has all hours of weekdays"
        )


def _refuse_local(found: Detection, bars: Bars, step: int, own: Hypothesis, example: str) -> None:
    """Raise BarError for times that are written as UTC, but fit the sessions of an exchange far
    better as its local times. `step`: length of the bars in minutes; `own`: the best hypothesis for
    times in UTC; `example`: a time as it is written, empty for numbers."""
    if own.filled > _NEVER_CLOSED or step >= DAY_MINUTES - 60 or found.ends:
        return
    best = find_calendar(bars, ZONES, step, found.spans).best
    is_home = best.zone == find_exchange_timezone(best.calendar) and best.calendar not in OPEN
    if is_home and best.filled > 0.95 and best.cost < own.cost / 2:
        pattern = "epoch_local"
        if example:
            pattern = re.sub(r"\d{4}-\d\d-\d\d", "%Y-%m-%d", example, count=1)
            pattern = re.sub(r"\d\d:\d\d:\d\d", "%H:%M:%S", pattern, count=1)
            pattern = f"'{re.sub(r'(?<=%S[.])[0-9]+', '%f', pattern)}'"
        raise BarError(
            f"{found.path}: its times are written as UTC, but fit the sessions of {best.calendar}"
            f" by the clock of {best.zone}; if they are local: --zone {best.zone} --time-format"
            f" {pattern}; if not, name the calendar with --calendar"
        )


def _zone(found: Detection, bars: Bars, proposal: Proposal, named: str | None) -> Bars:
    """Return the bars with their times moved to UTC, and add the zone to `found`. `named`: zone
    that the user or the file names; None for the zone of the proposal."""
    zone = named or proposal.best.zone
    is_usual = zone == find_exchange_timezone(found.calendar) == FilesSettings().timezone
    if named or not is_usual:
        found.source["timezone"] = zone
    why = f"{1 - proposal.best.outside:.1%} of the rows lie in the sessions of {found.calendar}"
    sure: Sure = "assumed"
    if "timezone" in found.known:
        sure = "given"
    elif named:
        sure = "sure"
        why = "the file names it, by a column, its times or its vendor"
    elif found.calendar in ("24/7", "24/5"):
        why = "no market hours tell the zone of these times, so they count as UTC (--zone)"
        if found.calendar == "24/5":
            why += "; weeks of currencies look so by MetaTrader's clock: --calendar FX --zone"
            why += " Europe/Athens"
    elif proposal.zones:
        why += f"; {', '.join(proposal.zones[:3])} would fit too: give bars of"
        why += " summer and winter, or --zone"
    elif not {"24/7", "24/5"}.isdisjoint(proposal.calendars):
        why += f"; {', '.join(proposal.calendars[:3])} would fit too, in any zone (--zone)"
    elif not proposal.may_be_sure:
        why += ", and nothing confirms it: no volume, or hours without rows"
    else:
        sure = "sure"
        why += ", and in no other zone as many"
    found.note("timezone", zone, sure, why)
    found.spans = [tuple(move(np.array(part), zone).tolist()) for part in found.spans]
    return replace(bars, ts=move(bars.ts, zone)).sorted()


def _calendar(
    found: Detection,
    bars: Bars,
    grid: SessionGrid,
    proposal: Proposal,
    asked: str | None,
    layout: Layout,
) -> None:
    """Add a finding on the calendar, with the share of the rows inside of its sessions. `asked`:
    calendar that the user gave. Raises BarError if a share above `MOST_OUTSIDE` lies outside,
    unless the user gave the calendar and the zone is known."""
    is_naive = not (layout.zoned or layout.whole_days)
    is_asked = asked and not (is_naive and found.known.get("timezone", layout.zone) is None)
    # a long bar may begin before its session's part: its last minute lies within
    late = (1 if found.ends else found.bar_minutes) * MINUTE_NS
    late *= found.source.get("label") == "end"
    ts = day_starts(found.calendar, "UTC", bars.ts - late)
    # with label `end`, ts is a bar earlier, so the opening print lies before the open
    is_outside = (grid.locate(ts) < 0) & (grid.locate(ts + late) < 0)
    if not layout.whole_days:
        is_outside &= ~grid.early_or_late(ts)
    share = float(is_outside.mean())
    row = int(is_outside.argmax())
    zone = found.source.get("timezone", find_exchange_timezone(found.calendar))
    if share > MOST_OUTSIDE and not is_asked:
        named = f"--calendar {found.calendar}{f' --zone {zone}' * is_naive}"
        raise BarError(
            f"{share:.1%} of the rows lie outside of the sessions of {found.calendar}, as"
            f" {bars.symbols[bars.symbol[row]]} at {str(ts[row].astype('datetime64[ns]'))[:16]} UTC"
            f"{f', with times in {zone}' * is_naive}; name the right calendar with --calendar (24/5"
            f" has all hours of weekdays) and the zone of naive times with --zone"
            f"{f', or {named} to leave these rows out' * (share < 0.1)}; for numbers"
            " that do not count from 1970, say since when they do, like --time-format 'seconds"
            " since 1960-01-01'"
        )
    filled = proposal.best.filled * (_measure_presence(bars) if found.whole else 1.0)
    why = f"{1 - share:.1%} of the rows lie in its sessions, and {filled:.1%} of"
    why += " their bars are there"
    sure: Sure = "assumed"
    if asked is not None:
        sure = "given"
    elif proposal.refuted is not None:
        worse = proposal.refuted
        why += f"; {worse.calendar} fits worse: {worse.outside:.1%} lie outside, {worse.filled:.0%}"
        why += " filled"
    elif proposal.calendars:
        why += f"; {', '.join(proposal.calendars[:3])} would fit too: give bars over a"
        why += " holiday of one"
    elif proposal.may_be_sure and not (layout.whole_days and share):
        sure = "sure"
        why += "; no other calendar fits"
    elif share:
        why += f"; those outside are left out, as of {str(ts[row].astype('datetime64[ns]'))[:10]}"
    found.note(
        "calendar", found.calendar, sure, f"{why} (--calendar)" if sure == "assumed" else why
    )


def _measure_presence(bars: Bars) -> float:
    """Measure the share of all rows' times, from each symbol's first to its last, at which it has a
    row."""
    times = np.unique(bars.ts)
    spans = [(one.ts.min(), one.ts.max()) for one in bars.by_symbol().values() if len(one.ts)]
    first, last = np.searchsorted(times, np.array(spans).T)
    return min(1.0, len(bars.ts) / int((last - first + 1).sum()))


def _sessions_and_label(
    found: Detection, bars: Bars, grid: SessionGrid, layout: Layout, fits_late: bool
) -> None:
    """Add the length of the bars, the label, opening prints, extended hours, the range of dates and
    its sessions to `found`. `fits_late`: True if the calendar fits bars that are read as ends."""
    looked = [split_by_day(one, grid) for one in _each(bars)]
    found.session_minutes = int(grid.session_minutes.max())
    span = np.min(found.spans), np.max(found.spans)
    if layout.whole_days:
        found.bar_minutes = found.session_minutes
        found.note("bar_minutes", "a day", "sure", "times are dates")
        first, last = np.array(span, "datetime64[ns]").astype("datetime64[D]").tolist()
    else:
        _length(found, looked, grid.longest_part)
        _label(found, looked, layout.has_late_ends, fits_late)
        first, last = (session_date(found.calendar, ts) for ts in span)
        wide = sum(float(days.wide.mean()) for days in looked if len(days.session))
        found.extended = wide > len(looked) / 2
        said = f"{'' if found.extended else 'few or no '}bars before the open or after the close"
        said += "; data.hours: extended keeps them" * found.extended
        if grid.extended is not None:
            found.note("extended hours", "yes" if found.extended else "no", "sure", said)
    found.first = first
    found.last = last
    dates = session_grid(found.calendar, first, last).dates
    found.sessions = tuple(dates.tolist())
    found.note("range", f"{first} to {last}", "sure", f"{len(dates)} sessions of {found.calendar}")


def _length(found: Detection, looked: list[BarsByDay], longest: int) -> None:
    """Set the length of the bars, and add the finding about it. `longest`: minutes of a session
    without a pause, the length of bars of which each fills such a part."""
    lengths = Counter(days.minutes for days in looked if days.minutes)
    steps = (days.step // MINUTE_NS for days in looked)
    usual = lengths.most_common(1)[0][0] if lengths else max(steps, default=1) or 1
    if not any(len(days.steps) for days in looked) and any(len(days.session) for days in looked):
        usual = longest
    length = found.known.get("bar_minutes", found.ends or usual)
    found.bar_minutes = length
    if length > 1:
        found.source["bar_minutes"] = length
    elif "preset" not in found.source:
        found.source.pop("bar_minutes", None)
    is_even = all((days.steps % length == 0).mean() > 0.99 for days in looked if len(days.steps))
    sure: Sure = "sure" if len(lengths) == 1 and is_even else "likely"
    said = f"rows are {format_count(usual, 'minute')} apart"
    counts = np.bincount(np.concatenate([days.steps for days in looked]))
    if found.ends:
        sure = "sure"
        said = f"the first row of each part of a session lies {length} minutes after its begin"
    elif counts[length:].any() and counts.argmax() != length:
        sure = "assumed"
        usual = int(counts.argmax())
        said = f"most rows are {usual} minutes apart, but others less (--bar-minutes {usual})"
    found.note("bar_minutes", length, "given" if "bar_minutes" in found.known else sure, said)


def _begins_at_open(days: BarsByDay) -> bool:
    """Report whether, in one season of at least five openings after a pause, half of them have a
    bar at that moment: its time is then no end. Where sessions touch, an end is also an open."""
    _, there = days.find_bars(days.open)
    for clock in np.unique(days.open % _DAY):
        is_seen = days.is_rested & (days.open % _DAY == clock)
        if is_seen.sum() >= 5 and there[is_seen].mean() >= 0.5:
            return True
    return False


def _label(found: Detection, looked: list[BarsByDay], has_late_ends: bool, fits_late: bool) -> None:
    votes = sum_votes(map(label_votes, looked))
    given = found.known.get("label")
    if not given and has_late_ends:
        found.decide("label", "end", "sure", "times lie just before the ends of minutes")
        return
    if not given and found.ends:
        said = "no row lies where trading begins, and one where each part of a session ends"
        found.decide("label", "end", "sure", said)
        return
    if not given and fits_late and not any(map(_begins_at_open, looked)):
        said = f"more rows lie in the sessions of {found.calendar} one bar earlier; --label start"
        found.decide("label", "end", "assumed", said)
        return
    if not given and found.session_minutes >= _DAY // MINUTE_NS:
        said = "nothing tells a bar's start from its end where trading never stops; --label end"
        found.note("label", "start", "assumed", said)
        return
    if (given or votes.displaced()) != "end":
        sure: Sure = "sure" if votes.start and votes.start >= 0.8 * votes.days else "assumed"
        sure = "given" if given else sure
        hint = "; --label end" * (sure == "assumed")
        said = f"{votes.start} of {votes.days} days of a symbol begin and end so{hint}"
        found.note("label", "start", sure, said)
        return
    said = f"{votes.end} of {votes.days} days begin and end one bar late"
    enough: Sure = "sure" if votes.end >= _SURE_DAYS else "assumed"
    found.decide("label", "end", "given" if given else enough, said)
    step = found.bar_minutes * MINUTE_NS
    moved = [
        replace(days, ts=days.ts - step, first=days.first - step, last=days.last - step)
        for days in looked
    ]
    if sum(map(has_opening_prints, moved)) * 2 > len(moved):
        said = "a print at the open; it becomes part of the first bar"
        found.note("opening_print", "auto", "sure", said)


def _adjustment(found: Detection, bars: Bars, splits: list[Fault]) -> None:
    """Add a finding on the adjustment of prices: the `splits` for which they are not adjusted, or
    else the share of closes that are full cents."""
    if splits:
        named = ", ".join(
            f"{split.symbol} {split.detail.partition(',')[0]} on {split.day}"
            for split in splits[:3]
        )
        said = f"splits stand in the prices: {named} (data.actions)"
        found.note("adjustment", "none", "likely", said)
        return
    sample = bars.close[:20000]
    cents = float(np.mean(np.isclose(sample * 100, np.round(sample * 100), atol=1e-6)))
    said = f"no split; {cents:.0%} of prices are full cents"
    if cents > 0.9:
        found.note("adjustment", "as traded", "likely", said)
    else:
        found.note("adjustment", "unknown", "assumed", said)


def _refuse_outside_range(found: Detection, bars: Bars) -> None:
    """Raise BarError if the opens or the closes lie outside of low and high in more than 80 % of
    the rows, unless the user named their column."""
    for role in ("open", "close"):
        share = mask_outside(bars, role).mean()
        if share > 0.8 and role not in found.known.get("columns", {}):
            raise BarError(
                f"{found.path}: in {share:.0%} of the rows the {role} lies outside of low and high,"
                f" so another column holds it, or only some are adjusted; name it: --{role} COLUMN"
            )


def _prefer(midnight: str, proposal: Proposal, found: Detection, bars: Bars, step: int) -> Proposal:
    """Prefer a calendar of the zone whose midnights are the times of daily bars."""
    home = [one for one in proposal.calendars if find_exchange_timezone(one) == midnight != "UTC"]
    if not home or find_exchange_timezone(proposal.best.calendar) == midnight:
        return proposal
    best = propose(bars, home[:1], ("UTC",), step, found.spans).best
    return replace(proposal, best=best, calendars=(proposal.best.calendar,))


def _refuse_sums(found: Detection, bars: Bars) -> None:
    """Raise BarError if volumes rise from bar to bar, except between days, unless the user named
    their column."""
    steps = np.diff(bars.ts)
    is_near = (np.diff(bars.symbol) == 0) & (steps <= np.median(np.append(steps, 0)))
    rises = np.diff(bars.volume)[is_near]
    count = (rises > 0).sum()
    if count > max(20, 20 * (rises < 0).sum()) and "volume" not in found.known.get("columns", {}):
        raise BarError(
            f"{found.path}: volumes rise from bar to bar, as times or the sums of a day do; name"
            " another column: --volume COLUMN, or --volume none, or write the volume of each bar"
        )


def _faults(found: Detection, bars: Bars, grid: SessionGrid) -> list[Fault]:
    """Return the faults at which a build of these bars would stop."""
    dates = grid.dates[0].item(), grid.dates[-1].item()
    grid = session_grid(found.calendar, *dates, found.bar_minutes, found.hours)
    gate = Gate(grid, ["conflicting_duplicate"])
    late = found.bar_minutes * MINUTE_NS if found.source.get("label") == "end" else 0
    for one in bars.by_symbol().values():
        ts = grid.start_short_bars(one.ts - late, found.bar_minutes) if late else one.ts
        one = replace(one, ts=day_starts(found.calendar, "UTC", ts))
        one, _ = clean(gate.drop_waived_duplicates(one))
        days = split_by_day(one, grid)
        if late and has_opening_prints(days):
            one, _ = merge_opening_prints(one, days)
        gate.check_symbol(one.take(grid.locate(one.ts) >= 0) if found.extended else one)
    return [fault for fault in gate.list_faults(bars.symbols) if fault.kind in STOPPING]


def describe_detection(found: Detection) -> str:
    """Return the findings as text for a terminal, one finding on each line."""
    width = max(len(one.setting) for one in found.findings)
    broad = min(40, max(len(one.value) for one in found.findings))
    return "\n".join(
        f"{one.setting:<{width}}  {one.value:<{broad}}  {one.sure:<7}  {one.why}"
        for one in found.findings
    )
