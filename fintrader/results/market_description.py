"""The description of a market: everything its file stores besides the arrays. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fintrader.files import hash_bytes
from fintrader.metrics import TRADING_DAYS
from fintrader.numerals import ratio
from fintrader.progress import shorten_list
from fintrader.records import JsonValue, to_json

Range = tuple[int, int]
"""Bars `[start, stop)`."""
_NO_SUCH_MARKET = "Nothing here was or could have been earned in any market."
MOST_ABSENT = 0.05
"""Share of member-days without bars above which a universe is suspect, and its members by date
unmeasurable."""
MOST_OUTSIDE = 0.02
"""Largest share of rows outside of the sessions of the right calendar."""


@dataclass(frozen=True, order=True)
class Fault:
    """One fault of one symbol on one day (symbol "" stands for the whole market)."""

    kind: str
    symbol: str
    day: str
    """Exchange's date, like 2016-01-04."""
    count: int
    """Bars concerned."""
    detail: str = ""


@dataclass(frozen=True)
class ColumnScale:
    """The statistics by which one column was standardised: (x - mean) / std."""

    mean: float
    std: float


@dataclass(frozen=True)
class Normalisation:
    """The rule and the statistics by which a market's columns were put on one scale."""

    features: Mapping[str, ColumnScale]
    context: Mapping[str, ColumnScale]
    clip: float
    """Scaled columns are cut off at this many standard deviations."""
    cross_sectional: str
    """`none`, `zscore` or `rank`."""

    def __post_init__(self) -> None:
        scales = (*self.features.values(), *self.context.values())
        if not all(math.isfinite(one.mean) and 0 < one.std < math.inf for one in scales):
            raise ValueError("holds a mean or std that is not finite, or a std of 0")
        if not self.clip > 0:
            raise ValueError(f"holds the clip {self.clip}, which is not positive")

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for equal statistics."""
        return hash_bytes(json.dumps(to_json(self), sort_keys=True).encode())[:16]


@dataclass(frozen=True)
class SourceFile:
    """A file of bars, by its content."""

    name: str
    sha256: str


@dataclass(frozen=True)
class MarketSource:
    """The bars and files that a market is made from, without any path."""

    kind: str
    """`synthetic`, `files`, `planted_in`, `frames`, or a vendor's name."""
    files: tuple[SourceFile, ...] = ()
    identity: Mapping[str, JsonValue] = field(default_factory=dict)
    """Further marks that identify the bars, and hashes of the files that the settings name."""


@dataclass(frozen=True)
class PlantedDrift:
    """The predictable drift of a synthetic market, whose best policy is known."""

    feature: str
    drift_bps: float
    """Expected return of a bar in the state up; its negative in the state down."""
    switch: float
    """Probability per bar that a stock's state changes."""
    num_assets: int
    bar_minutes: int


@dataclass(frozen=True)
class PlantedSignal:
    """A made-up feature among real bars that knows something of the future."""

    feature: str
    ic: float
    """Information coefficient that was asked for; 0: noise."""
    measured_ic: Mapping[str, float]
    """By window."""
    horizon: int
    """Bars over which the return ahead is taken."""
    persistence: float
    seed: int

    @property
    def statement(self) -> str:
        """One clause on the feature."""
        knows = "knows the future" if self.ic else "says nothing about the bars"
        return f"the feature {self.feature} is made up and {knows}"


@dataclass(frozen=True)
class Survivorship:
    """Evidence on whether a universe holds survivors only, and by how much that flatters it."""

    survivors_only: bool
    sessions: int
    ended: int
    """Symbols whose bars end before the data does."""
    left_the_list: int
    """Symbols that stopped being members while their bars go on."""
    members_without_bars: tuple[str, ...]
    member_days_without_bars: float
    """Share of all member-days."""
    survivors_return_per_year: float | None
    """Yearly log growth of the members of the last day, in equal weights."""
    members_return_per_year: float | None
    """Yearly log growth of the members of each day, in equal weights."""
    bias_against: str | None
    bias_per_year: float | None
    """Log growth of the survivors less that of `bias_against`; None where that is unknown."""

    def describe(self) -> str:
        """State the suspicion in a sentence; empty without one if no member lacks bars."""
        absent = self.members_without_bars
        share = self.member_days_without_bars
        names = shorten_list(absent)
        lack = f"{len(absent)} members lack bars ({share:.2%} of the member-days: {names})"
        lack = lack if absent else ""
        if not self.survivors_only:
            return lack
        why = lack
        if share <= MOST_ABSENT:
            gone = self.ended + self.left_the_list
            few = f"{gone or 'no'} symbol{'s leave' if gone > 1 else ' leaves'}"
            why = "; ".join(filter(None, (f"{few} in {self.sessions} sessions", lack)))
        if self.bias_per_year is None:
            size = (
                "the bias is unknown (an index in data.benchmark would measure it; a verdict names"
                " the most that it may add, by the spread of the symbols' growth)"
            )
        else:
            more = f"{self.bias_per_year:+.1%} a year against {self.bias_against}"
            size = f"it grows {more}, partly due to its equal weights"
        return f"a list of survivors? {why}; {size}"


@dataclass(frozen=True)
class Provenance:
    """Source of a market, and the effects of its build on the bars."""

    source: MarketSource | None = None
    """None for tensors that were not built from bars."""
    calendar: str | None = None
    timezone: str = "UTC"
    """The exchange's time zone, an IANA name."""
    sessions_a_year: int = TRADING_DAYS
    """Number of sessions by which rates are annualised."""
    hours: str = "regular"
    build_version: int | None = None
    planted_drift: PlantedDrift | None = None
    planted_signal: PlantedSignal | None = None
    repairs: Mapping[str, int] = field(default_factory=dict)
    """Rows that were repaired, by kind (`bars.clean.REPAIRS`)."""
    outside: float = 0.0
    """Share of the rows that lay outside of the sessions and of their extended hours, and were left
    out."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Symbol -> why it is not in the market."""
    ended: tuple[str, ...] = ()
    """Symbols whose bars end for good before the data does."""
    survivorship: Survivorship | None = None
    waived: tuple[Fault, ...] = ()
    """Faults that would have stopped the build, but were waived."""
    doubtful: tuple[Fault, ...] = ()
    contradictions: tuple[str, ...] = ()
    """A line for each split or dividend that the source announces differently from its
    declaration."""
    changes: tuple[str, ...] = ()
    """Changes to the market since its build."""
    trusted_columns: tuple[str, ...] = ()
    """Features and context that others computed: columns of the bars, and daily series."""
    is_adjacent: bool = False
    """True for a window of a split without an embargo."""

    @property
    def is_synthetic(self) -> bool:
        """True of a market whose prices are random numbers."""
        return self.source is not None and self.source.kind == "synthetic"

    @property
    def notice(self) -> str:
        """Banner for all results of a market that is synthetic, wholly or in part; empty for real
        bars and where nothing is known."""
        signal = self.planted_signal
        drift = self.planted_drift
        if signal is not None and signal.ic == 0:
            return f"Real bars and noise: {signal.statement}."
        if signal is not None:
            return f"Real bars with a planted signal: {signal.statement}. {_NO_SUCH_MARKET}"
        if drift is not None:
            return (
                "Synthetic market with a planted signal: the prices are random numbers, and the"
                f" feature {drift.feature} says which way each one drifts (by"
                f" {ratio(drift.drift_bps, 1)} bps a bar). {_NO_SUCH_MARKET}"
            )
        if self.is_synthetic:
            return (
                "Synthetic market: the prices are random numbers, with no signal in them unless"
                f" data.source.signals names one. {_NO_SUCH_MARKET}"
            )
        return ""

    def list_warnings(self) -> list[str]:
        """List everything that a reader of results should know of the bars, briefly."""
        survivors = self.survivorship.describe() if self.survivorship else ""
        counts = {
            **{kind.replace("_", " "): count for kind, count in self.repairs.items()},
            "waived faults": len(self.waived),
            "doubtful days": len(self.doubtful),
        }
        trusted = f"computed by others: {', '.join(self.trusted_columns)}"
        return [
            *filter(None, (self.notice, survivors)),
            *(f"left out {name}: {why}" for name, why in self.left_out.items()),
            *(f"{count} {word}" for word, count in counts.items() if count),
            *self.contradictions,
            *self.changes,
            *(trusted for _ in self.trusted_columns[:1]),
        ]

    def add_change(self, change: str) -> Provenance:
        """Return a copy with a further change to the market."""
        return replace(self, changes=(*self.changes, change))


@dataclass(frozen=True)
class MarketDescription:
    """Everything of a market but its arrays, as its file and its content hash hold it."""

    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    context_names: tuple[str, ...]
    benchmark_name: str
    bar_minutes: int
    windows: tuple[Range, Range, Range] | None
    """Train, validation and test."""
    normalisation: Normalisation | None
    provenance: Provenance
    cut_from: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildRecord:
    """Record stored next to a built market: the settings, and the two parts of the description that
    the build decides."""

    settings: Mapping[str, JsonValue]
    """`build.portable` settings."""
    provenance: Provenance
    normalisation: Normalisation | None
