"""Detection of the settings that read unknown files of bars, with the evidence for each.

A part of the rows is read with the layout that their first lines show; the exchange's sessions then
tell the zone of their times, whether a time is a bar's start or its end, and the rest.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from fintrader.bars.bars import MINUTE_NS, PRICES, Array, Bars, concat
from fintrader.bars.calendar import SessionGrid, day_starts, session_date, session_grid, timezone_of
from fintrader.bars.checks.gates import Gate, name_faults, suggest_waivers
from fintrader.bars.checks.kinds import STOPPING
from fintrader.bars.clean import clean, refuse_bad_values
from fintrader.bars.evidence import (
    BarsByDay,
    Votes,
    days_of,
    has_opening_prints,
    label_votes,
    merge_opening_prints,
)
from fintrader.bars.sniff import name_pattern, sniff
from fintrader.bars.sources.bar_files import iterate
from fintrader.bars.sources.layout import COLUMN_NAMES, FilesSettings
from fintrader.bars.sources.listing import BarFile, files_of, list_files
from fintrader.bars.sources.presets import PRESETS, Preset
from fintrader.config import validate

Sure = Literal["sure", "likely", "assumed"]
_FILES = 24
_ROWS = 1_500_000
_SYMBOLS = 12
_ZONES = (
    *(
        "UTC",
        "Etc/GMT+5",
        "America/Chicago",
        "America/Denver",
        "America/Los_Angeles",
        "Europe/London",
    ),
    *("Europe/Berlin", "Asia/Kolkata", "Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney"),
)
_SPLITS = (2, 3, 4, 5, 7, 8, 10, 15, 20)


@dataclass(frozen=True)
class InferredSetting:
    """One detected setting."""

    setting: str
    value: str
    sure: Sure
    why: str


@dataclass
class Detection:
    """Detected description of files of bars."""

    path: str
    calendar: str
    source: dict[str, Any] = field(default_factory=dict)
    """Settings of the `files` source that read them, defaults left out."""
    findings: list[InferredSetting] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    first: dt.date = dt.date.max
    last: dt.date = dt.date.min
    sessions: tuple[dt.date, ...] = ()
    """Those between the first and the last bar."""
    bar_minutes: int = 1
    """Length of the bars; that of a whole session for daily ones."""
    session_minutes: int = 390
    extended: bool = False
    whole: bool = True
    """All rows of all files were read."""
    waivers: list[str] = field(default_factory=list)
    """Entries of `data.waive` with which these bars would pass."""

    def note(self, setting: str, value: object, sure: Sure, why: str) -> None:
        """Add a finding."""
        self.findings.append(InferredSetting(setting, str(value), sure, why))

    def settings(self) -> FilesSettings:
        """The source as settings."""
        return validate(FilesSettings, self.source, "detected")


def detect(path: str, *, preset: Preset | None = None, calendar: str = "XNAS") -> Detection:
    """Detect the settings of the files at a path or URL; with a `preset` only those it leaves open.

    Raises DataError when there is no file, BarError when they cannot be detected.
    """
    found = Detection(path, calendar)
    if preset is not None:
        found.source = {"preset": preset}
        files = files_of(found.settings(), path)
        _by_preset(found, files[0], preset)
    else:
        files = list_files(path, text=True)
        _by_layout(found, files)
    bars = _sample(found, files)
    if found.source.get("price_divisor") is None and "preset" not in found.source:
        bars = _price_unit(found, bars)
    bars = _zone(found, bars)
    _sessions_and_label(found, bars)
    if found.whole:
        _faults(found, bars)
    return found


def _by_preset(found: Detection, file: BarFile, preset: Preset) -> None:
    found.note("preset", preset, "sure", "asked for")
    layout = sniff(file, True)
    wanted = validate(FilesSettings, found.source, "detected").columns
    named = {**layout.values.get("columns", {})}
    if "header" not in PRESETS[preset] and "header" not in layout.values:
        other = {role: name for role, name in named.items() if wanted.get(role) != name}
        if other:
            found.source["columns"] = other
            found.note("columns", other, "likely", "these are called otherwise here")
    written = layout.values.get("time_format")
    if written != PRESETS[preset].get("time_format"):
        found.source["time_format"] = written
    found.source["timezone"] = "UTC" if layout.zoned else PRESETS[preset].get("timezone", "UTC")
    found.source["_zoned"], found.source["_days"] = layout.zoned, layout.whole_days


def _by_layout(found: Detection, files: list[BarFile]) -> None:
    """Columns, how times are written, and symbols from names."""
    dated = bool(re.search(r"(19|20)\d\d-?[01]\d-?[0-3]\d", files[0].stem))
    layout = sniff(files[0], dated)
    values = layout.values
    columns = {
        role: name for role, name in values.pop("columns").items() if COLUMN_NAMES.get(role) != name
    }
    found.source = {name: value for name, value in values.items() if value}
    if columns:
        found.source["columns"] = columns
    if layout.single:
        pattern = name_pattern(
            files, dated and found.source.get("time_format") in ("s", "ms") and not layout.zoned
        )
        found.source["name_pattern"] = pattern or "{symbol}"
        found.note(
            "name_pattern",
            found.source["name_pattern"],
            "likely",
            f"no column holds symbols, files are called like {files[0].stem}",
        )
    found.source["_zoned"], found.source["_days"] = layout.zoned, layout.whole_days
    for setting, why in layout.notes.items():
        value = columns or "as usual" if setting == "columns" else values.get(setting)
        found.note(
            setting,
            value,
            "assumed" if why.startswith("guess: ") else "sure",
            why.removeprefix("guess: "),
        )


def _spread(files: list[BarFile]) -> list[BarFile]:
    if len(files) <= _FILES:
        return files
    return [
        files[at] for at in np.unique(np.linspace(0, len(files) - 1, _FILES).round().astype(int))
    ]


def _plain(found: Detection) -> dict[str, Any]:
    return {name: value for name, value in found.source.items() if not name.startswith("_")}


def _sample(found: Detection, files: list[BarFile]) -> Bars:
    """Read rows unchanged, times without a zone taken for UTC; note their span and symbols."""
    found.source = {**found.source}
    reading = validate(
        FilesSettings,
        {**_plain(found), "timezone": "UTC", "label": "start"},
        "detected",
    )
    chosen = _spread(files)
    parts: list[Bars] = []
    symbols: set[str] = set()
    rows = 0
    edges: list[int] = []
    found.whole = len(chosen) == len(files)
    for batch in _batches(chosen, reading):
        refuse_bad_values(batch, zoned=found.source["_zoned"])
        symbols.update(batch.symbols)
        edges += [int(batch.ts.min()), int(batch.ts.max())]
        if rows < _ROWS:
            parts.append(batch)
            rows += len(batch)
        else:
            found.whole = False
    if any(name.islower() for name in symbols) and not any(
        name != name.lower() for name in symbols
    ):
        found.source["uppercase"] = True
        symbols = {name.upper() for name in symbols}
        parts = [
            replace(part, symbols=tuple(name.upper() for name in part.symbols)) for part in parts
        ]
        found.note("uppercase", True, "likely", "symbols are written small")
    found.symbols = tuple(sorted(symbols))
    found.source["_span"] = (min(edges), max(edges))
    if len(chosen) < len(files):
        found.note("files", f"{len(files)}", "sure", f"{len(chosen)} of them were looked at")
    named = ", ".join(found.symbols[:5]) + (", ..." if len(symbols) > 5 else "")
    found.note("symbols", f"{len(symbols)}", "sure", named)
    return concat(parts).sorted()


def _batches(files: list[BarFile], reading: FilesSettings) -> Iterator[Bars]:
    for file in files:
        yield from iterate(file, reading)


def _each(bars: Bars) -> Iterator[Bars]:
    """The symbols with most rows, one by one."""
    counts = np.bincount(bars.symbol, minlength=len(bars.symbols))
    for code in np.argsort(-counts, kind="stable")[:_SYMBOLS]:
        yield bars.take(bars.symbol == code).without_unused()


def _price_unit(found: Detection, bars: Bars) -> Bars:
    """Whole numbers of 1/10,000 USD or of a billionth: too large for dollars, and most of them full
    cents."""
    close = bars.close
    whole = bool((close == np.round(close)).all())
    for divisor, tick in ((1_000_000_000, 10_000_000), (10_000, 100)):
        if whole and float(np.median(close)) > divisor / 2:
            cents = float(np.mean(close % tick == 0)) > 0.4
            found.source["price_divisor"] = divisor
            said = (
                "prices are whole numbers like"
                f" {close[0]:.0f}{', most full cents' if cents else ''}"
            )
            found.note(
                "price_divisor", divisor, "sure" if cents or divisor > 10_000 else "likely", said
            )
            prices = {name: getattr(bars, name) / divisor for name in PRICES}
            return replace(bars, **prices)
    if whole and float(np.median(close)) > 1000:
        found.note(
            "price_divisor",
            1,
            "assumed",
            f"prices are whole numbers like {close[0]:.0f}: cents, perhaps",
        )
    exact = np.float32(close[:5000]).astype(np.float64) == close[:5000]
    if not whole and exact.all():
        found.source["decimals"] = 4
        found.note("decimals", 4, "likely", "prices are stored as float32")
        return replace(bars, **{name: np.round(getattr(bars, name), 4) for name in PRICES})
    return bars


def _moved(ts: Array, zone: str) -> Array:
    """Times that were read as UTC, as those of a zone; what does not exist there or twice stays
    where it was."""
    wall = pd.DatetimeIndex(ts.astype("datetime64[ns]"))
    placed = wall.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
    utc = placed.tz_convert("UTC").tz_localize(None)
    moved = utc.to_numpy().astype("datetime64[ns]").astype(np.int64)
    return np.where(np.asarray(placed.isna()), ts, moved)


def _grid(found: Detection, bars: Bars) -> SessionGrid:
    day = dt.timedelta(days=1)
    ends = (session_date(found.calendar, int(ts)) for ts in (bars.ts.min(), bars.ts.max()))
    first, last = ends
    return session_grid(found.calendar, first - day, last + day)


def _share_inside(bars: Bars, grid: SessionGrid) -> float:
    """Share of the volume (of the rows, where there is none) inside of the sessions, mean over the
    symbols."""
    shares = []
    for one in _each(bars):
        weight = one.volume if one.volume.sum() > 0 else np.ones(len(one))
        total = np.concatenate([[0.0], np.cumsum(weight)])
        slack = 5 * MINUTE_NS
        edges = np.searchsorted(one.ts, np.stack([grid.open - slack // 5, grid.close + slack]))
        shares.append(float((total[edges[1]] - total[edges[0]]).sum() / total[-1]))
    return float(np.mean(shares))


def _zone(found: Detection, bars: Bars) -> Bars:
    """The bars in UTC, and `timezone`: in which zone does most volume lie inside the sessions?"""
    zoned = found.source.pop("_zoned")
    daily = found.source.pop("_days")
    home = timezone_of(found.calendar)
    found.source["_daily"] = daily
    if daily:
        found.source.pop("timezone", None)
        found.note("timezone", home, "sure", "times are dates")
        return bars
    if zoned:
        share = _share_inside(bars, _grid(found, bars))
        sure: Sure = "sure" if share > 0.7 else "assumed"
        found.note(
            "timezone",
            "UTC",
            sure,
            f"times say it themselves; {share:.0%} of the volume lies in the sessions",
        )
        if found.source.get("time_format"):
            found.source["timezone"] = "UTC"
        else:
            found.source.pop("timezone", None)
        return bars
    scores: dict[str, float] = {}
    seen: dict[bytes, str] = {}
    days = np.unique(bars.ts // (15 * MINUTE_NS), return_inverse=True)
    same: dict[str, list[str]] = {}
    for zone in dict.fromkeys((home, *_ZONES)):
        quarters = days[0] * 15 * MINUTE_NS
        shift = _moved(quarters, zone) - quarters
        key = shift.tobytes()
        if key in seen:
            same[seen[key]].append(zone)
            continue
        seen[key] = zone
        same[zone] = []
        moved = replace(bars, ts=bars.ts + shift[days[1]])
        scores[zone] = _share_inside(moved.sorted(), _grid(found, moved))
    zone = max(scores, key=lambda name: scores[name])
    next_best = max((score for name, score in scores.items() if name != zone), default=0.0)
    clear = scores[zone] - next_best
    certain: Sure = (
        "assumed" if scores[zone] < 0.5 or clear < 0.005 else "likely" if same[zone] else "sure"
    )
    why = (
        f"{scores[zone]:.0%} of the volume lies in the sessions, {next_best:.0%} in the next best"
        " zone"
    )
    if same[zone]:
        why += f"; no change of clocks tells it from {', '.join(same[zone][:3])}"
    if zone != home:
        found.source["timezone"] = zone
    else:
        found.source.pop("timezone", None)
        if zone != FilesSettings().timezone:
            found.source["timezone"] = zone
    found.note("timezone", zone, certain, why)
    shift = _moved(days[0] * 15 * MINUTE_NS, zone) - days[0] * 15 * MINUTE_NS
    low, high = found.source["_span"]
    found.source["_span"] = tuple(int(ts) for ts in _moved(np.array([low, high]), zone))
    return replace(bars, ts=bars.ts + shift[days[1]]).sorted()


def _sessions_and_label(found: Detection, bars: Bars) -> None:
    """Label, length, opening prints, extended hours, adjustment; the range and its sessions."""
    grid = _grid(found, bars)
    daily = bool(found.source.pop("_daily"))
    votes = Votes()
    lengths = Counter[int]()
    wide = 0.0
    looked: list[BarsByDay] = []
    for one in _each(bars):
        days = days_of(one, grid)
        looked.append(days)
        if days.minutes:
            lengths[days.minutes] += 1
        votes += label_votes(days)
        wide += float(days.wide.mean()) if len(days.session) else 0.0
    found.session_minutes = int(grid.session_minutes.max())
    low, high = found.source.pop("_span")
    if daily:
        found.bar_minutes = found.session_minutes
        found.note("bar_minutes", "a day", "sure", "times are dates")
        first, last = (np.datetime64(ts, "ns").astype("datetime64[D]").item() for ts in (low, high))
    else:
        _length(found, looked, lengths)
        _label(found, votes, looked)
        first, last = (session_date(found.calendar, ts) for ts in (low, high))
        found.extended = wide > len(looked) / 2
        held = "are there; data.hours: extended keeps them" if found.extended else "are not there"
        found.note(
            "extended hours",
            found.extended,
            "sure",
            f"bars before the open and after the close {held}",
        )
    found.first = first
    found.last = last
    dates = session_grid(found.calendar, first, last).dates
    found.sessions = tuple(day.item() for day in dates)
    found.note("range", f"{first} to {last}", "sure", f"{len(dates)} sessions of {found.calendar}")
    _adjustment(found, bars, grid)


def _length(found: Detection, looked: list[BarsByDay], lengths: Counter[int]) -> None:
    usual = (
        lengths.most_common(1)[0][0]
        if lengths
        else max((days.step // MINUTE_NS for days in looked), default=1) or 1
    )
    found.bar_minutes = int(usual)
    if usual > 1:
        found.source["bar_minutes"] = int(usual)
    elif "preset" not in found.source:
        found.source.pop("bar_minutes", None)
    sure: Sure = "sure" if len(lengths) == 1 else "likely"
    found.note("bar_minutes", usual, sure, "rows stand so far apart")


def _label(found: Detection, votes: Votes, looked: list[BarsByDay]) -> None:
    displaced = votes.displaced()
    if displaced == "end":
        found.source["label"] = "end"
        found.note(
            "label", "end", "sure", f"{votes.end} of {votes.days} days begin and end one bar late"
        )
        step = found.bar_minutes * MINUTE_NS
        moved = [
            replace(days, ts=days.ts - step, first=days.first - step, last=days.last - step)
            for days in looked
        ]
        if sum(map(has_opening_prints, moved)) * 2 > len(moved):
            found.note(
                "opening_print",
                "auto",
                "sure",
                "a print at the open; it becomes part of the first bar",
            )
    else:
        sure: Sure = "sure" if votes.start and votes.start >= 0.8 * votes.days else "assumed"
        found.note("label", "start", sure, f"{votes.start} of {votes.days} days begin and end so")


def _adjustment(found: Detection, bars: Bars, grid: SessionGrid) -> None:
    """Nights in which a price falls to a half, a third, a quarter ...: splits that are not in the
    prices."""
    jumps = []
    for one in _each(bars):
        at = grid.locate(one.ts)
        one = one.take(at >= 0)
        at = at[at >= 0]
        edge = np.flatnonzero(np.diff(grid.session[at])) + 1
        ratio = one.close[edge - 1] / one.open[edge]
        for row, value in zip(edge.tolist(), ratio.tolist(), strict=True):
            near = next((split for split in _SPLITS if abs(value / split - 1) < 0.05), None)
            if near:
                day = grid.dates[grid.session[at[row]]]
                jumps.append(f"{one.symbols[one.symbol[row]]} {near} to 1 on {day}")
    if jumps:
        found.note(
            "adjustment",
            "none",
            "likely",
            f"splits stand in the prices: {', '.join(jumps[:3])} (data.actions)",
        )
        return
    sample = bars.close[:20000]
    cents = float(np.mean(np.isclose(sample * 100, np.round(sample * 100), atol=1e-6)))
    said = "as traded" if cents > 0.9 else "unknown"
    found.note(
        "adjustment",
        said,
        "likely" if cents > 0.9 else "assumed",
        f"no split; {cents:.0%} of prices are full cents",
    )


def _faults(found: Detection, bars: Bars) -> None:
    """Note the faults that would stop a build of these bars."""
    grid = _grid(found, bars)
    gate = Gate(grid, ["conflicting_duplicate"])
    late = found.bar_minutes * MINUTE_NS if found.source.get("label") == "end" else 0
    for code in range(len(bars.symbols)):
        one = bars.take(bars.symbol == code).without_unused()
        one = clean(gate.settle(replace(one, ts=day_starts(found.calendar, "UTC", one.ts - late))))[
            0
        ]
        days = days_of(one, grid)
        if late and has_opening_prints(days):
            one, _ = merge_opening_prints(one, days)
        gate.see(one.take(grid.locate(one.ts) >= 0) if found.extended else one)
    stopping = [fault for fault in gate.faults(bars.symbols) if fault.kind in STOPPING]
    if stopping:
        found.waivers = suggest_waivers(stopping)
        found.note(
            "faults",
            len(stopping),
            "sure",
            f"a build stops at {name_faults(stopping)} (data.waive, data.actions)",
        )


def describe_detection(found: Detection) -> str:
    """Format the findings as lines for a terminal."""
    width = max(len(one.setting) for one in found.findings)
    broad = min(40, max(len(one.value) for one in found.findings))
    return "\n".join(
        f"{one.setting:<{width}}  {one.value:<{broad}}  {one.sure:<7}  {one.why}"
        for one in found.findings
    )
