"""Test episodes of a run in a classic environment, and the section that shows them.

evaluation/   episodes.json, report.html
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fintrader.numerals import ratio
from fintrader.results.formatting import format_title, in_order
from fintrader.results.sections.section import Section
from fintrader.results.table import Table

FOLDER = "evaluation"
FILE = "episodes.json"


@dataclass(frozen=True)
class EpisodeScores:
    """Undiscounted returns of the test episodes."""

    environment: str
    best: str
    """Pod with the best mean return in validation."""
    trials: int
    returns: Mapping[str, tuple[float, ...]]
    """Policy -> its return in each test episode; all policies play the same episodes."""


def standard_error(returns: Sequence[float]) -> float:
    """Standard error of the mean of E returns: `std(returns) / sqrt(E)`."""
    return stdev(returns) / math.sqrt(len(returns))


def present_episodes(scores: EpisodeScores) -> Section:
    """Present the mean return of each policy with its standard error, and the choice of the best
    pod."""
    means = {
        name: f"{ratio(fmean(own), 1)} ± {ratio(standard_error(own), 1)}"
        for name, own in scores.returns.items()
    }
    rows = [(format_title(name), means[name]) for name in in_order(means)]
    return Section(
        "episodes",
        f"{scores.environment}: mean return {means['ensemble']}",
        f"Each policy played the same {len(scores.returns['ensemble'])} test episodes without"
        " noise, from seeds that neither training nor selection used. Returns are undiscounted.",
        tables=(Table.of(("Policy", "Mean return ± standard error"), rows),),
        notes=(
            f"Best pod: {scores.best}, chosen from {scores.trials} trials by its mean return in"
            " validation. The choice biases that return upwards, but not the test return.",
        ),
    )
