"""Can this be luck? What the held-out window says, and what the search says of itself, as rows,
tables and charts."""

from __future__ import annotations

import html

from fintrader.report.page import Page, note, number, side_by_side, table
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.catalogue import BY_KEY
from fintrader.results.formatting import (
    DASH,
    chance,
    count,
    look_words,
    percent,
    probability,
    ratio,
    score,
    span,
    statistic,
)
from fintrader.results.strategy_metrics import StrategyMetrics
from fintrader.verdict.verdict import Selection, Verdict

Row = tuple[str, str, str]
"""A question, the number, and what it means in words."""


def luck_section(page: Page, stored: StoredBacktest, main: str) -> None:
    """The whole verdict, the window's own evidence first."""
    verdict = stored.verdict
    if verdict is None:
        return
    evidence = verdict.evidence
    selection = verdict.selection
    charts = []
    if evidence.alpha is not None:
        figure = figures.alpha_figure(evidence.alpha, evidence.against)
        charts.append(page.chart("alpha", figure))
        days = stored.minutes[stored.ends]
        figure = figures.betting_figure(evidence.betting.by_session, days)
        charts.append(page.chart("betting", figure))
    if verdict.excess:
        scale, over = span(verdict.sessions, verdict.sessions_a_year)
        figure = figures.excess_figure(verdict.excess, scale, over)
        charts.append(page.chart("excess", figure))
    if verdict.random_portfolios is not None:
        returned = stored.metrics[main].cumulative_return
        figure = figures.random_portfolios_figure(verdict.random_portfolios, returned)
        charts.append(page.chart("random", figure))
    page.section(
        f"Can this be luck? {window_title(verdict)}",
        _rows_table(evidence_rows(verdict, rolling=bool(stored.context.folds))),
        _rivals_table(verdict),
        side_by_side(*charts),
        link="Luck",
    )
    drawn = []
    if selection.sharpe is not None:
        drawn.append(page.chart("sharpe", figures.sharpe_figure(selection.sharpe)))
    if selection.overfitting is not None:
        drawn.append(page.chart("overfitting", figures.overfitting_figure(selection.overfitting)))
    said = note(
        f"{html.escape(selection.sentence)} A diagnosis of the search, which no verdict rests on."
    )
    page.section(
        "What the search says of itself",
        said,
        _rows_table(selection_rows(selection) + null_model_rows(stored.context.null_model)),
        side_by_side(*drawn),
        link="Search",
    )


def window_title(verdict: Verdict) -> str:
    """The window that a verdict is of, as a heading."""
    titles = {
        "train": "The training window",
        "validation": "The validation window",
        "whole": "A window that was never split off",
    }
    return titles.get(verdict.window, "The held-out window")


def _rows_table(rows: list[Row]) -> str:
    cells = [
        ("", [html.escape(name), f"<b>{html.escape(value)}</b>", html.escape(said)])
        for name, value, said in rows
    ]
    return table(["Question", "Answer", "Meaning"], cells, css="left words")


def luck_rows(verdict: Verdict) -> list[Row]:
    """All of both windows."""
    return evidence_rows(verdict) + selection_rows(verdict.selection)


def evidence_rows(verdict: Verdict, rolling: bool = False) -> list[Row]:
    """What the held-out window says."""
    rows: list[Row] = []

    def add(question: str, answer: str, meaning: str) -> None:
        rows.append((question, answer, meaning))

    evidence = verdict.evidence
    against = evidence.against.replace("_", " ")
    spends = f"of all looks' 5 % this one may spend {evidence.level:.3g}"
    add("Look at this window", look_words(verdict), spends)
    if (alpha := evidence.alpha) is not None:
        scale, over = span(verdict.sessions, verdict.sessions_a_year)
        band = (
            f"{percent(scale * alpha.low, signed=True)} to"
            f" {percent(scale * alpha.high, signed=True)}"
        )
        hedged = f"{over} beyond a beta of {ratio(alpha.beta)} to {against}; 95 %: {band}"
        rate = percent(scale * alpha.alpha, signed=True)
        add("Alpha over the benchmark portfolio", rate, hedged)
        add("p-value", chance(alpha.p_value), f"that alpha is not above 0: {alpha.method}")
        seen = f"information ratio that {count(alpha.sessions)} sessions show four times in five"
        add("Power", f"{ratio(alpha.visible)} or more", f"{seen}; measured {ratio(alpha.ratio)}")
        needed = alpha.sessions_needed
        add(
            "Sessions that would tell",
            count(needed) if needed else DASH,
            "in all, if the measured ratio is the true one",
        )
    if (shift := evidence.shift) is not None:
        said = (
            f"{count(shift.shifts)} shifts of the same holdings in time: does it matter when they"
            " were held?"
        )
        add("Timing, p-value", chance(shift.p_value), said)
    add(
        "E-value",
        f"{ratio(evidence.betting.last)}, most {ratio(evidence.betting.most)}",
        "valid whenever one looks; 20 is evidence at 5 %",
    )
    if (sharpe := verdict.sharpe) is not None:
        skill = f"P(true Sharpe > 0), alone; Sharpe ratio {ratio(sharpe.sharpe)}"
        add("Probabilistic Sharpe ratio", probability(sharpe.probabilistic), skill)
    for key, one in verdict.intervals.by_metric().items():
        if one.low is not None:
            text = f"{statistic(key, one.low)} to {statistic(key, one.high)}"
            blocks = f"blocks of {ratio(verdict.intervals.block_sessions, 1)} sessions on average"
            add(f"{BY_KEY[key].title}, 95 % interval", text, f"stationary bootstrap, {blocks}")
    drawn = verdict.random_portfolios
    if drawn is not None and drawn.share_above.cumulative_return is not None:
        text = f"{percent(drawn.share_above.cumulative_return)} did better"
        how = "sold at each fold's end" if rolling else "bought once"
        sets = f"{count(drawn.count)} random sets of members, {how}"
        add("Random static portfolios", text, sets)
    for caveat in verdict.caveats:
        add("Taken for granted", caveat, "no verdict is good with it")
    return rows


def selection_rows(selection: Selection) -> list[Row]:
    """What the search says of itself."""
    trials = selection.trials
    rows: list[Row] = []

    def add(question: str, answer: str, meaning: str) -> None:
        rows.append((question, answer, meaning))

    add(
        "Trials this result was selected from",
        count(trials or None),
        "the more, the luckier the best",
    )
    if (sharpe := selection.sharpe) is not None:
        where = "on the window it was chosen by"
        add("Sharpe ratio of the chosen, there", ratio(sharpe.sharpe), where)
        spread = f"from {count(trials)} trials; variance {ratio(sharpe.trial_variance)} a year"
        spread += f" ({sharpe.trial_variance_source})"
        add("Best Sharpe ratio expected without skill", ratio(sharpe.expected_best), spread)
        add("Deflated Sharpe ratio", probability(sharpe.deflated), "P(true Sharpe > that best)")
        effective = f"{ratio(sharpe.effective_trials, 1)}: {probability(sharpe.deflated_effective)}"
        alike = "trials alike count less than trials that differ"
        add("The same for the effective trials", effective, alike)
    if (overfit := selection.overfitting) is not None:
        folds = len(overfit.windows)
        mean = f"mean of {folds} folds: " if folds > 1 else ""
        where = (
            f"{mean}the selection window's best trial falls into the lower half,"
            f" {count(overfit.splits)} splits"
        )
        add("Probability of backtest overfitting", probability(overfit.probability), where)
    if (tested := selection.romano_wolf) is not None:
        text = f"{count(tested.ahead)} of {count(tested.trials)} trials"
        least = (
            "all tested together (Romano and Wolf 2016); least p-value"
            f" {chance(tested.best_p_value)}"
        )
        add("Ahead of the benchmark there", text, least)
    null_model = selection.null_model
    if null_model is not None and null_model.free is not None and null_model.real is not None:
        text = f"{score(null_model.free)}, with information {score(null_model.real)}"
        luck = f"best selection score ({null_model.metric}); it can only be luck"
        add("The same search without information", text, luck)
    return rows


def null_model_rows(metrics: StrategyMetrics | None) -> list[Row]:
    """Describe the result on this window of the search on features of other days."""
    if metrics is None:
        return []
    text = f"{percent(metrics.cumulative_return)}, Sharpe {ratio(metrics.sharpe)}"
    how = "features of other days, same prices, same costs"
    return [("Its ensemble on this window", text, how)]


def _rivals_table(verdict: Verdict) -> str:
    """Every baseline: the excess over it and its p-value."""
    rows = []
    scale, over = span(verdict.sessions, verdict.sessions_a_year)
    for name, row in verdict.excess.items():
        low, excess, high = (
            number(percent(scale * value, signed=True)) for value in (row.low, row.excess, row.high)
        )
        cells = [excess, f"{low} to {high}", chance(row.p_value)]
        rows.append(("", [html.escape(figures.title_of(name)), *cells]))
    if not rows:
        return ""
    head = ["Excess over", over.capitalize(), "95 % interval", "p, paired bootstrap"]
    text = (
        "p-values: how often chance alone would show as large an excess, by resampling blocks of"
        " the same days of both."
    )
    return table(head, rows, css="dense") + note(text)
