"""The leaderboard in memory: entries sorted by score."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fintrader.tournament.spec import PodResult, PodSpec


@dataclass(frozen=True)
class Entry:
    """A pod's spec and result, together."""

    spec: PodSpec
    result: PodResult

    @property
    def key(self) -> tuple[str, int]:
        """What the updater knows a submission by."""
        return self.spec.pod, self.result.epoch

    @property
    def score(self) -> float:
        """The score, -inf where there is none."""
        return -math.inf if self.result.score is None else self.result.score

    @property
    def order(self) -> tuple[float, int, int]:
        """Sorts the better entry first."""
        return -self.score, self.spec.index, self.result.epoch

    @property
    def inheritable(self) -> bool:
        """Whether another pod can start from it."""
        return self.result.snapshot is not None and self.result.score is not None


@dataclass
class Leaderboard:
    """The leaderboard as the generator sees it: the best `size` entries, and all that was ever applied."""

    size: int
    rows: list[Entry] = field(default_factory=list)
    """Best first, at most `size`."""
    applied: list[Entry] = field(default_factory=list)
    """Every result, in the order in which they were applied."""
    keys: set[tuple[str, int]] = field(default_factory=set)
    failed: int = 0
    """How many of the applied have come to nothing."""
    rungs: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Scores that pods had on their way: (generation, share of the budget) -> one a pod, in order of application."""

    @property
    def parents(self) -> list[Entry]:
        """Rows that others can start from, best first."""
        return [entry for entry in self.rows if entry.inheritable]
