"""Can this be luck? What the held-out window says, and what the search says of itself, as rows,
tables and charts."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

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
    year_of,
)

Row = tuple[str, str, str]
"""A question, the number, and what it means in words."""


def luck_section(page: Page, stored: StoredBacktest, main: str) -> None:
    """Everything `assessment.assess` found, the window's own evidence first."""
    found = stored.honesty
    if not found:
        return
    evidence = found["evidence"]
    selection = found["selection"]
    returned = stored.metrics[main].get("cumulative_return")
    charts = []
    if evidence["alpha"] is not None:
        charts.append(page.chart("alpha", figures.alpha_figure(evidence)))
        days = stored.minutes[stored.ends]
        charts.append(
            page.chart("betting", figures.betting_figure(evidence["e_value"]["by_session"], days))
        )
    if found["excess"]:
        scale, over = span(found["sessions"], year_of(found))
        charts.append(page.chart("excess", figures.excess_figure(found["excess"], scale, over)))
    if found["random_portfolios"]:
        charts.append(
            page.chart(
                "random", figures.random_portfolios_figure(found["random_portfolios"], returned)
            )
        )
    page.section(
        f"Can this be luck? {window_title(found)}",
        _rows_table(evidence_rows(found, rolling=bool(stored.context.get("folds")))),
        _rivals_table(found),
        side_by_side(*charts),
        link="Luck",
    )
    drawn = []
    if selection["sharpe"]:
        drawn.append(page.chart("sharpe", figures.sharpe_figure(selection["sharpe"])))
    if selection["overfitting"]:
        drawn.append(
            page.chart("overfitting", figures.overfitting_figure(selection["overfitting"]))
        )
    said = note(
        f"{html.escape(selection['sentence'])} A diagnosis of the search, which no verdict"
        " rests on."
    )
    page.section(
        "What the search says of itself",
        said,
        _rows_table(selection_rows(selection)),
        side_by_side(*drawn),
        link="Search",
    )


def window_title(found: Mapping[str, Any]) -> str:
    """The window that an assessment is of, as a heading."""
    titles = {
        "train": "The training window",
        "validation": "The validation window",
        "whole": "A window that was never split off",
    }
    return titles.get(str(found.get("window")), "The held-out window")


def _rows_table(rows: list[Row]) -> str:
    cells = [
        ("", [html.escape(name), f"<b>{html.escape(value)}</b>", html.escape(said)])
        for name, value, said in rows
    ]
    return table(["Question", "Answer", "Meaning"], cells, css="left words")


def luck_rows(found: Mapping[str, Any], rolling: bool = False) -> list[Row]:
    """All of both windows."""
    return evidence_rows(found, rolling) + selection_rows(found["selection"])


def evidence_rows(found: Mapping[str, Any], rolling: bool = False) -> list[Row]:
    """What the held-out window says, from `assessment.assess`."""
    rows: list[Row] = []

    def add(question: str, answer: str, meaning: str) -> None:
        rows.append((question, answer, meaning))

    evidence = found["evidence"]
    against = evidence["against"].replace("_", " ")
    spends = f"of all looks' 5 % this one may spend {evidence['level']:.3g}"
    add("Look at this window", look_words(evidence), spends)
    if (alpha := evidence["alpha"]) is not None:
        scale, over = span(found["sessions"], year_of(found))
        band = (
            f"{percent(scale * alpha['low'], signed=True)} to"
            f" {percent(scale * alpha['high'], signed=True)}"
        )
        hedged = f"{over} beyond a beta of {ratio(alpha['beta'])} to {against}; 95 %: {band}"
        add(
            "Alpha over the benchmark portfolio",
            percent(scale * alpha["alpha"], signed=True),
            hedged,
        )
        add("p-value", chance(alpha["p_value"]), f"that alpha is not above 0: {alpha['method']}")
        seen = f"information ratio that {count(alpha['sessions'])} sessions show four times in five"
        add(
            "Power",
            f"{ratio(alpha['visible'])} or more",
            f"{seen}; measured {ratio(alpha['ratio'])}",
        )
        needed = alpha["sessions_needed"]
        add(
            "Sessions that would tell",
            count(needed) if needed else DASH,
            "in all, if the measured ratio is the true one",
        )
    if (shift := evidence["shift"]) is not None:
        said = (
            f"{count(shift['shifts'])} shifts of the same holdings in time: does it matter when"
            " they were held?"
        )
        add("Timing, p-value", chance(shift["p_value"]), said)
    betting = evidence["e_value"]
    add(
        "E-value",
        f"{ratio(betting['last'])}, most {ratio(betting['most'])}",
        "valid whenever one looks; 20 is evidence at 5 %",
    )
    if (ratios := found["sharpe"]) is not None:
        skill = f"P(true Sharpe > 0), alone; Sharpe ratio {ratio(ratios['sharpe'])}"
        add("Probabilistic Sharpe ratio", probability(ratios["probabilistic"]), skill)
    for key, resampled in found["intervals"].items():
        if resampled["low"] is not None:
            text = f"{statistic(key, resampled['low'])} to {statistic(key, resampled['high'])}"
            blocks = f"blocks of {ratio(found['block_sessions'], 1)} sessions on average"
            add(f"{BY_KEY[key].title}, 95 % interval", text, f"stationary bootstrap, {blocks}")
    drawn = found["random_portfolios"]
    if drawn and drawn["share_above"]["cumulative_return"] is not None:
        text = f"{percent(drawn['share_above']['cumulative_return'])} did better"
        how = "sold at each fold's end" if rolling else "bought once"
        add(
            "Random static portfolios",
            text,
            f"{count(drawn['count'])} random sets of members, {how}",
        )
    for caveat in found["caveats"]:
        add("Taken for granted", caveat, "no verdict is good with it")
    return rows


def selection_rows(found: Mapping[str, Any]) -> list[Row]:
    """What the search says of itself, from `assessment.assess`'s `selection`."""
    trials = found["trials"]
    sharpe = found["sharpe"]
    rows = [
        (
            "Trials this result was selected from",
            count(trials or None),
            "the more, the luckier the best",
        )
    ]
    if sharpe is not None:
        rows.append(
            (
                "Sharpe ratio of the chosen, there",
                ratio(sharpe["sharpe"]),
                "on the window it was chosen by",
            )
        )
        spread = f"from {count(trials)} trials; variance {ratio(sharpe['trial_variance'])} a year"
        spread += f" ({sharpe['trial_variance_source']})"
        rows.append(
            ("Best Sharpe ratio expected without skill", ratio(sharpe["expected_best"]), spread)
        )
        rows.append(
            ("Deflated Sharpe ratio", probability(sharpe["deflated"]), "P(true Sharpe > that best)")
        )
        effective = (
            f"{ratio(sharpe['effective_trials'], 1)}: {probability(sharpe['deflated_effective'])}"
        )
        rows.append(
            (
                "The same for the effective trials",
                effective,
                "trials alike count less than trials that differ",
            )
        )
    if (overfit := found["overfitting"]) is not None:
        folds = len(overfit.get("windows", ()))
        mean = f"mean of {folds} folds: " if folds > 1 else ""
        where = (
            "the selection window's best trial falls into the lower half,"
            f" {count(overfit['splits'])} splits"
        )
        rows.append(
            (
                "Probability of backtest overfitting",
                probability(overfit["probability"]),
                mean + where,
            )
        )
    if (tested := found["romano_wolf"]) is not None:
        text = f"{count(tested['ahead'])} of {count(tested['trials'])} trials"
        least = (
            "all tested together (Romano and Wolf 2016); least p-value"
            f" {chance(tested['best_p_value'])}"
        )
        rows.append(("Ahead of the benchmark there", text, least))
    return rows + _null_model_rows(found["null_model"])


def _null_model_rows(null_model: Mapping[str, Any] | None) -> list[Row]:
    """The same search on features of other days: what it found while selecting, and what that was
    worth here."""
    if not null_model:
        return []
    rows = []
    best = null_model.get("best_selection_score")
    real = null_model.get("real_best_selection_score")
    if best is not None and real is not None:
        text = f"{score(best)}, with information {score(real)}"
        said = (
            f"best selection score ({null_model.get('selection_metric', 'score')}); it can only be"
            " luck"
        )
        rows.append(("The same search without information", text, said))
    metrics = null_model.get("metrics") or {}
    if metrics:
        text = f"{percent(metrics.get('cumulative_return'))}, Sharpe {ratio(metrics.get('sharpe'))}"
        rows.append(
            ("Its ensemble on this window", text, "features of other days, same prices, same costs")
        )
    return rows


def _rivals_table(found: Mapping[str, Any]) -> str:
    """Every baseline: the excess over it and its p-value."""
    rows = []
    scale, over = span(found["sessions"], year_of(found))
    for name, row in found["excess"].items():
        low, excess, high = (
            number(percent(scale * row[key], signed=True)) for key in ("low", "excess", "high")
        )
        cells = [excess, f"{low} to {high}", chance(row["p_value"])]
        rows.append(("", [html.escape(figures.title_of(name)), *cells]))
    if not rows:
        return ""
    head = ["Excess over", over.capitalize(), "95 % interval", "p, paired bootstrap"]
    text = (
        "p-values: how often chance alone would show as large an excess, by resampling blocks of"
        " the same days of both."
    )
    return table(head, rows, css="dense") + note(text)
