"""Several runs beside each other on one page: what each one's main strategy did, and what it is
worth."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from fintrader.errors import BacktestError
from fintrader.files import write_text
from fintrader.report.notices import market_notice
from fintrader.report.page import Page, facts, metric, note, number, table
from fintrader.report.provenance import known_facts
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import (
    ACTIVE_COLUMNS,
    DASH,
    INTERVAL,
    PAPER_COLUMNS,
    active_cells,
    chance,
    count,
    look_words,
    main_strategy,
    percent,
    short_window,
)
from fintrader.results.looks import union_of_looks
from fintrader.results.strategy_metrics import NO_METRICS
from fintrader.verdict import LEVEL

_LEFT_OUT = ("strategies", "quality", "market", "recipe")


def labels(places: Sequence[str]) -> list[str]:
    """A name for each path or URL: its last part, with as many parts above it as tell it from the
    others.

    A window's folder (`RUN/backtest/WINDOW`) always says its run. Raises BacktestError for a place
    named twice.
    """
    parts = [
        tuple(place.rstrip("/").split("/")) if "://" in place else Path(place).resolve().parts
        for place in places
    ]
    found = []
    for own, place in zip(parts, places, strict=True):
        others = [other for other in parts if other != own]
        if len(others) < len(parts) - 1:
            raise BacktestError(f"{place} is named twice; a comparison needs different backtests")
        depth = 3 if own[-2:-1] == ("backtest",) else 1
        while any(other[-depth:] == own[-depth:] for other in others):
            depth += 1
        found.append("/".join(own[-depth:]))
    return found


def render_comparison(runs: Mapping[str, StoredBacktest]) -> str:
    """The page as text; `runs` maps a run's name to its stored backtest. Raises BacktestError below
    two runs."""
    if len(runs) < 2:
        raise BacktestError("a comparison needs at least two backtests")
    page = Page("Comparison of runs")
    windows = {tuple(stored.minutes[[0, -1]]) for stored in runs.values()}
    about = (
        "the same window"
        if len(windows) == 1
        else f"{len(windows)} different windows: compare with care"
    )
    made_up = [
        f"{name}: {notice}"
        for name, stored in runs.items()
        if (notice := market_notice(stored.context.market))
    ]
    if made_up:
        page.notice(" ".join(made_up))
    both = union_of_looks(runs)
    bars = "these bars" if len(windows) == 1 else "the bars of these windows"
    looks = f"{both.looks:,} different result{'s' * (both.looks != 1)} looked at on {bars}"
    chosen = f"{both.trials:,} trials in all of them together; {looks}."
    page.header("Comparison", _heading(runs, both.looks), chosen, about)
    page.contents()
    caption = (
        "Equal weight and Index: cumulative returns of these baselines in the run's own window."
        " Active figures are against what env.benchmark names there, net of costs."
    )
    page.section("What each is worth", _verdicts(runs), link="Verdicts")
    shorter = short_window(
        stored.metrics[main_strategy(stored.strategies)] for stored in runs.values()
    )
    page.section("Runs", _runs_table(runs), note(f"{caption} {shorter}".strip()), link="Runs")
    daily = {
        name: stored.daily_returns()[main_strategy(stored.strategies)]
        for name, stored in runs.items()
    }
    page.section("", page.chart("growth", figures.growth_figure(daily)), link="Growth")
    page.section("", page.chart("drawdown", figures.growth_figure(daily, drawdown=True)))
    for name, stored in runs.items():
        known = {
            key: value
            for key, value in sorted(known_facts(stored.context).items())
            if key not in _LEFT_OUT
        }
        page.section(
            name, facts({str(key).replace("_", " "): value for key, value in known.items()})
        )
    return page.render()


def write_comparison(path: Path, runs: Mapping[str, StoredBacktest]) -> Path:
    """Write the comparison as one self-contained HTML file, atomically."""
    write_text(Path(path), render_comparison(runs))
    return Path(path)


def _heading(runs: Mapping[str, StoredBacktest], looks: int) -> str:
    """Whoever picks one of several results is held to the part of 5 % that each of all their looks
    has."""
    skilled = [name for name, stored in runs.items() if stands_among(stored, looks)]
    among = f"among {looks:,} results looked at"
    if not skilled:
        return f"None of {len(runs)} runs can be told from luck {among}."
    return f"{len(skilled)} of {len(runs)} runs unlikely to be luck {among}: {', '.join(skilled)}."


def stands_among(stored: StoredBacktest, looks: int) -> bool:
    """Whether a backtest is likely skill by itself, and still is as one of `looks` results
    (Bonferroni)."""
    alpha = None if stored.verdict is None else stored.verdict.evidence.alpha
    return stored.opening.is_skill and alpha is not None and alpha.p_value <= LEVEL / max(looks, 1)


def _verdicts(runs: Mapping[str, StoredBacktest]) -> str:
    rows = []
    for name, stored in runs.items():
        verdict = stored.opening
        cells = [name, verdict.headline, verdict.why, f"{verdict.sees} {verdict.change}".strip()]
        rows.append(("main" if verdict.is_skill else "", [html.escape(cell) for cell in cells]))
    return table(
        ["Run", "Verdict", "Why", "What the window can see, and what would change it"],
        rows,
        css="left",
    )


def _runs_table(runs: Mapping[str, StoredBacktest]) -> str:
    rows = []
    for name, stored in runs.items():
        main = main_strategy(stored.strategies)
        alpha = None if stored.verdict is None else stored.verdict.evidence.alpha
        first, last = stored.minutes[[0, -1]].strftime("%d %b %Y")
        label = (
            f'{html.escape(name)}<span class="note">{html.escape(figures.title_of(main))}, {first}'
            f" to {last}</span>"
        )
        cells = [metric(key, stored.metrics[main]) for key, _ in PAPER_COLUMNS]
        *active, band = active_cells(stored.metrics[main])
        cells += [*map(number, active), html.escape(band)]
        cells += [count(stored.context.trials), look_words(stored.verdict)]
        cells += [DASH if alpha is None else chance(alpha.p_value)]
        rivals = (stored.metrics.get(rival, NO_METRICS) for rival in ("equal_weight", "benchmark"))
        cells += [number(percent(rival.cumulative_return)) for rival in rivals]
        rows.append(("", [label, *cells]))
    head = ["Run", *(heading for _, heading in (*PAPER_COLUMNS, *ACTIVE_COLUMNS)), INTERVAL]
    return table([*head, "Trials", "Look", "p", "Equal weight", "Index"], rows)
