"""Ways to spend a budget of training, compared market by market."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

MARGIN = 0.03
LEAST = -1.0
"""Shares below it count as it."""
Row = dict[str, Any]


def find_p(differences: np.ndarray[Any, Any], side: str = "two-sided") -> float:
    """Wilcoxon's p; 1 where all differences are 0."""
    from scipy.stats import wilcoxon

    if not np.any(differences):
        return 1.0
    return float(wilcoxon(differences, alternative=side).pvalue)


def correct(ps: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values as Holm does."""
    adjusted = dict[str, float]()
    least = 0.0
    for place, (name, p) in enumerate(sorted(ps.items(), key=lambda one: one[1])):
        least = max(least, min(1.0, (len(ps) - place) * p))
        adjusted[name] = least
    return adjusted


def compare(rows: Sequence[Row], ours: str, rivals: Collection[str]) -> Row:
    """Summarise each way, and `ours` against it; `rivals` are the family for Holm's correction."""
    shares = {
        name: np.maximum([row["shares"][name] for row in rows], LEAST) for name in rows[0]["shares"]
    }
    ways = {
        name: {
            "median": round(float(np.median(values)), 4),
            "mean": round(float(values.mean()), 4),
            "below_half": round(float(np.mean(values < 0.5)), 4),
        }
        for name, values in shares.items()
    }
    for name in rows[0]["cpu_seconds"]:
        seconds = [row["cpu_seconds"][name] for row in rows]
        ways[name]["cpu_seconds"] = round(statistics.median(seconds), 1)
    against = {}
    ps = {}
    for name, values in shares.items():
        if name == ours:
            continue
        differences = shares[ours] - values
        ps[name] = find_p(differences)
        against[name] = {
            "median_difference": round(float(np.median(differences)), 4),
            "wins": int(np.sum(differences > 0)),
            "p": round(ps[name], 5),
            "p_not_worse": round(find_p(differences + MARGIN, "greater"), 5),
        }
    for name, p in correct({name: ps[name] for name in rivals}).items():
        against[name]["p_holm"] = round(p, 5)
    return {"markets": len(rows), "ways": ways, "against": against}
