"""Skill or luck: the tests of the held-out window, and the diagnosis of the search."""

from __future__ import annotations

from functools import partial

from fintrader.numerals import (
    DASH,
    chance,
    count,
    format_count,
    percent,
    period_name,
    probability,
    ratio,
    score,
    significance,
    span,
)
from fintrader.results import figures
from fintrader.results.catalogue import BY_KEY
from fintrader.results.formatting import INTERVAL, format_title, look_words, statistic
from fintrader.results.sections.section import BacktestView, Chart, Section
from fintrader.results.table import Table, paper_table
from fintrader.verdict.verdict import FOREIGN, Selection, Verdict

_WINDOWS = {
    "train": "training window",
    "validation": "validation window",
    "whole": "a window that was never split off",
    "foreign": "returns as given",
}
_COLUMNS = ("Question", "Answer", "Meaning")
_NO_OVERFITTING = (
    "Probability of backtest overfitting: not computed. It needs the validation returns of at least"
    " two trials over eight sessions or more; a walk-forward has them for each fold."
)
_NO_NULL_MODEL = (
    "The same search on features without information was not run"
    " (`--backtest.null-model True` runs it)."
)


def present_evidence(view: BacktestView) -> Section | None:
    """Present the tests of the window; None for a backtest that was not assessed."""
    stored = view.stored
    verdict = stored.verdict
    if verdict is None:
        return None
    evidence = verdict.evidence
    drawn = {}
    if evidence.alpha is not None:
        drawn["alpha"] = partial(figures.alpha_figure, evidence.alpha, evidence.against)
        days = stored.on_clock(stored.market_timezone).minutes[stored.ends]
        if len(evidence.betting.by_session) == len(days):
            drawn["betting"] = partial(figures.betting_figure, evidence.betting.by_session, days)
    if verdict.random_portfolios is not None:
        returned = stored.find_metrics(verdict.strategy).cumulative_return
        random = verdict.random_portfolios
        drawn["random"] = partial(figures.random_portfolios_figure, random, returned)
    window = _WINDOWS.get(verdict.window, "held-out window")
    tables = (
        evidence_table(verdict, is_rolling=bool(stored.context.folds)),
        _intervals_table(verdict),
        _rivals_table(verdict),
    )
    return Section(
        key="luck",
        title=f"Can this be luck? The {window}",
        figures=[Chart(key, draw, is_half=True) for key, draw in drawn.items()],
        tables=[table for table in tables if table.rows],
    )


def present_search(view: BacktestView) -> Section | None:
    """Present the diagnosis of the search; None for a backtest that was not assessed."""
    stored = view.stored
    verdict = stored.verdict
    if verdict is None:
        return None
    selection = verdict.selection
    drawn = {}
    notes = []
    if selection.sharpe is not None:
        drawn["sharpe"] = partial(figures.sharpe_figure, selection.sharpe)
    if selection.overfitting is not None:
        drawn["overfitting"] = partial(figures.overfitting_figure, selection.overfitting)
    else:
        notes.append(_NO_OVERFITTING)
    tables = [search_table(selection)]
    free = stored.context.null_model
    if free is not None:
        title = "The same search on features of other days, at the same prices and costs"
        both = {verdict.strategy: stored.find_metrics(verdict.strategy), "null_model": free}
        tables.append(paper_table(both, title=title, main=verdict.strategy))
    else:
        notes.append(_NO_NULL_MODEL)
    alike = [ratio(known) for known in sorted(stored.context.correlations)]
    if alike:
        notes.append(
            "Validation excess returns of the members correlate pairwise by"
            f" {alike[0]} to {alike[-1]}."
        )
    return Section(
        key="search",
        title="Diagnosis of the search",
        headline=f"{selection.sentence} No verdict rests on this diagnosis.",
        figures=[Chart(key, draw, is_half=True) for key, draw in drawn.items()],
        tables=tables,
        notes=notes,
    )


def evidence_table(verdict: Verdict, is_rolling: bool = False) -> Table:
    """Tabulate the tests of the window: a question, the number, and its meaning."""
    evidence = verdict.evidence
    trials = verdict.selection.trials or 1
    is_divided = verdict.window == FOREIGN and trials > 1 and not verdict.is_stated_held_out
    divided = f", divided by {count(trials)} trials" if is_divided else ""
    rows = [
        (
            "Look at this window",
            look_words(verdict),
            f"number of results of this window that were looked at, with this one; its level is"
            f" {significance(evidence.level)}, of 5 % for all looks together{divided}",
        )
    ]
    alpha = evidence.alpha
    scale, over = span(verdict.sessions, verdict.sessions_a_year)
    if alpha is not None:
        low = percent(scale * alpha.low, signed=True)
        high = percent(scale * alpha.high, signed=True)
        against = evidence.against.replace("_", " ")
        unit = period_name(verdict.sessions_a_year)
        sessions = format_count(alpha.sessions, unit)
        hedged = f"a beta of {ratio(alpha.beta)} to " if alpha.beta else ""
        needed = DASH if alpha.sessions_needed is None else count(alpha.sessions_needed)
        late = ""
        if alpha.past_sessions:
            past = format_count(alpha.past_sessions, "past session")
            late = f" and its {past}, which the returns lag"
        rows += [
            (
                "Alpha over the benchmark portfolio",
                percent(scale * alpha.alpha, signed=True),
                f"{over} beyond {hedged}{against}{late}; 95 %: {low} to {high}",
            ),
            (
                "p-value",
                chance(alpha.p_value),
                f"probability of as much alpha without skill: {alpha.method}",
            ),
            (
                "Power",
                f"{ratio(alpha.visible)} or more",
                f"least information ratio that {sessions} detect with 80 % power; measured"
                f" {ratio(alpha.ratio)}",
            ),
            (
                f"{unit.capitalize()}s needed",
                needed,
                "in all, if the measured ratio is the true one",
            ),
        ]
    shift = evidence.shift
    if shift is not None:
        meaning = (
            f"share of {count(shift.shifts)} shifts in time with which the same holdings earned as"
            " much: small where timing mattered"
        )
        rows.append(("Timing, p-value", chance(shift.p_value), meaning))
    betting = evidence.betting
    rows.append(
        (
            "E-value",
            f"{ratio(betting.last)}, most {ratio(betting.most)}",
            "wealth of a bettor on alpha, from 1: valid at any look, and 20 is evidence at 5 %",
        )
    )
    if verdict.sharpe is not None:
        skill = f"P(true Sharpe > 0) of one trial; Sharpe ratio {ratio(verdict.sharpe.sharpe)}"
        probable = probability(verdict.sharpe.probabilistic)
        rows.append(("Probabilistic Sharpe ratio", probable, skill))
    rows += _list_tail(verdict)
    drawn = verdict.random_portfolios
    if drawn is not None and drawn.share_above.cumulative_return is not None:
        held = "sold at each fold's end" if is_rolling else "bought once"
        better = percent(drawn.share_above.cumulative_return)
        meaning = f"{count(drawn.count)} random sets of members, {held}"
        rows.append(("Random static portfolios", f"{better} did better", meaning))
    if verdict.trusted_columns:
        meaning = "computed elsewhere; data.features.known_at does not say when they were known"
        rows.append(("Columns on trust", ", ".join(verdict.trusted_columns), meaning))
    if verdict.survivors_bound is not None:
        meaning = f"{over}, at most; alpha must exceed it"
        added = percent(scale * verdict.survivors_bound)
        rows.append(("Survivors may have added", added, meaning))
    rows += [
        ("Taken for granted", caveat, "rules out a good verdict") for caveat in verdict.caveats
    ]
    return Table.of(_COLUMNS, rows, words=_COLUMNS)


def _list_tail(verdict: Verdict) -> list[tuple[str, str, str]]:
    """List the worst loss, and the loss that the window could have missed."""
    tail = verdict.tail
    if tail is None or verdict.sharpe is None:
        return []
    unit = period_name(verdict.sessions_a_year)
    skew = f"skewness of the returns {ratio(verdict.sharpe.skew)}"
    share = percent(tail.unseen_share)
    sessions = format_count(verdict.sessions, unit)
    unseen = f"a loss absent from {sessions} may still occur in {share} of them"
    if tail.undoing is not None:
        unseen += "; at that rate, a loss of this size would cancel the alpha"
    return [
        (f"Worst {unit}", percent(tail.worst), skew),
        ("Losses that it could miss", percent(tail.undoing and -tail.undoing), unseen),
    ]


def search_table(selection: Selection) -> Table:
    """Tabulate the diagnosis of the search: a question, the number, and its meaning."""
    trials = count(selection.trials or None)
    rows = [("Trials this result was selected from", trials, "the more, the luckier the best")]
    sharpe = selection.sharpe
    if sharpe is not None:
        spread = f"from {trials} trials; variance {ratio(sharpe.trial_variance)} a year"
        spread += f" ({sharpe.trial_variance_source})"
        effective = f"{ratio(sharpe.effective_trials, 1)}: {probability(sharpe.deflated_effective)}"
        rows += [
            (
                "Sharpe ratio of the chosen trial",
                ratio(sharpe.sharpe),
                "on the selection window",
            ),
            ("Best Sharpe ratio expected without skill", ratio(sharpe.expected_best), spread),
            (
                "Deflated Sharpe ratio",
                probability(sharpe.deflated),
                "P(true Sharpe > that best), Bailey and López de Prado 2014",
            ),
            (
                "The same for the effective trials",
                effective,
                "correlated trials count as fewer",
            ),
        ]
    overfit = selection.overfitting
    if overfit is not None:
        folds = overfit.windows
        each = ", ".join(probability(fold.probability) for fold in folds)
        mean = f"mean of {len(folds)} folds ({each}): " if len(folds) > 1 else ""
        meaning = (
            f"{mean}the selection window's best trial falls into the lower half,"
            f" {count(overfit.splits)} splits"
        )
        rows.append(
            ("Probability of backtest overfitting", probability(overfit.probability), meaning)
        )
    tested = selection.romano_wolf
    if tested is not None:
        ahead = f"{count(tested.ahead)} of {count(tested.trials)} trials"
        least = "all tested together (Romano and Wolf 2016); least p-value"
        rows.append(
            ("Ahead of the benchmark there", ahead, f"{least} {chance(tested.best_p_value)}")
        )
    null_model = selection.null_model
    if null_model is not None and null_model.free is not None and null_model.real is not None:
        scores = f"{score(null_model.free)}, with information {score(null_model.real)}"
        luck = f"best selection score ({null_model.metric}); it can only be luck"
        rows.append(("The same search without information", scores, luck))
    return Table.of(_COLUMNS, rows, words=_COLUMNS)


def _intervals_table(verdict: Verdict) -> Table:
    """Tabulate the bootstrap intervals."""
    rows = [
        (
            BY_KEY[key].title,
            statistic(key, band.estimate),
            " to ".join(statistic(key, end) for end in (band.low, band.high)),
        )
        for key, band in verdict.intervals.by_metric().items()
        if band.low is not None
    ]
    blocks = ratio(verdict.intervals.block_sessions, 1)
    note = f"Stationary bootstrap of daily returns, blocks of {blocks} sessions on average."
    return Table.of(("Metric", "Estimate", INTERVAL), rows, notes=[note])


def _rivals_table(verdict: Verdict) -> Table:
    """Tabulate the excess over each baseline."""
    scale, over = span(verdict.sessions, verdict.sessions_a_year)
    rows = [
        (
            format_title(name),
            percent(scale * row.excess, signed=True),
            " to ".join(percent(scale * end, signed=True) for end in (row.low, row.high)),
            chance(row.p_value),
        )
        for name, row in verdict.excess.items()
    ]
    note = (
        "p-values: how often chance alone would show as large an excess, by resampling blocks of"
        " the same days of both."
    )
    columns = ("Excess over", over.capitalize(), INTERVAL, "p, paired bootstrap")
    return Table.of(columns, rows, notes=[note])
