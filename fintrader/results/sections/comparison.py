"""The finding of a comparison: several results, each held to its part of the error rate."""

from __future__ import annotations

from collections.abc import Mapping

from fintrader.numerals import chance, count, format_count
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.sections.section import Section
from fintrader.results.stored_looks import count_looks
from fintrader.verdict import LEVEL


def present_comparison(runs: Mapping[str, StoredBacktest]) -> Section:
    """Present which of several results are likely skill as one of all the results looked at."""
    trials, looks = count_looks(runs)
    skilled = [name for name, stored in runs.items() if is_skill_among(stored, looks)]
    among = f"among {format_count(looks, 'result')} looked at"
    if skilled:
        title = (
            f"{len(skilled)} of {format_count(len(runs), 'run')} unlikely to be luck {among}:"
            f" {', '.join(skilled)}."
        )
    else:
        title = f"No likely skill in {format_count(len(runs), 'run')} {among}."
    windows = {tuple(stored.minutes[[0, -1]]) for stored in runs.values()}
    is_same = len(windows) == 1
    bars = "these bars" if is_same else "the bars of these windows"
    results = f"{format_count(looks, 'different result')} looked at on {bars}"
    notes = [
        "The runs cover the same window."
        if is_same
        else f"The runs cover {len(windows)} different windows: compare with care."
    ]
    if looks > 1:
        notes.append(
            f"One picked from {count(looks)} results must have p {chance(LEVEL / looks)}"
            " or less (Bonferroni)."
        )
    return Section(
        key="comparison",
        title=title,
        headline=f"{format_count(trials, 'trial')} in all of these runs together; {results}.",
        notes=notes,
        warning=" ".join(
            f"{', '.join(name for name, one in runs.items() if one.notice == notice)}: {notice}"
            for notice in dict.fromkeys(one.notice for one in runs.values())
            if notice
        ),
        tone="good" if skilled else "doubt",
    )


def is_skill_among(stored: StoredBacktest, looks: int) -> bool:
    """Check that a backtest is likely skill by itself, and still is as one of `looks` results
    (Bonferroni)."""
    alpha = None if stored.verdict is None else stored.verdict.evidence.alpha
    return stored.opening.is_skill and alpha is not None and alpha.p_value <= LEVEL / max(looks, 1)
