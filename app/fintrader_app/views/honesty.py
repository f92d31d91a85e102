"""Honesty: how far the result can be believed, given everything that was tried to get it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from fintrader.results import figures
from fintrader.results.allocation import at_other_capital
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.folders import Folder, NotThereError, RunsFolder
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
    standing,
    statistic,
)
from fintrader.results.run import Summary
from fintrader.results.strategy_metrics import NO_METRICS
from fintrader.verdict.verdict import Evidence, Intervals, Selection, Verdict
from fintrader_app import artifacts, charts, tables
from fintrader_app.shell import guarded, hide_secrets, human, label, page, pick_run, plain
from fintrader_app.tables import table

NOTES = {
    "look": "How many different results of this window had been looked at, this one included",
    "p_value": "Probability of as much alpha without skill, on the held-out window",
    "level": "What this look may spend of the 5 % that all looks at the window have together",
    "ratio": "Alpha over the deviation of what the benchmark does not explain, annualised",
    "visible": (
        "Least information ratio that a window of this length shows at its level four times in five"
    ),
    "shift": (
        "Share of shifts in time with which the same holdings earned as much: small where timing"
        " mattered"
    ),
    "e_value": "Valid whenever one looks: 20 is evidence at 5 %",
    "expected_best": (
        "Sharpe ratio that the best of so many trials without any skill is expected to show"
    ),
    "deflated": (
        "Probability that the true Sharpe ratio exceeds what luck alone would show there "
        "(Bailey and López de Prado 2014)"
    ),
    "overfitting": (
        "Probability of backtest overfitting, by combinatorially symmetric cross-validation of the"
        " trials"
    ),
}
KINDS = {
    "fill": "Where orders fill",
    "delay_bars": "Orders delayed, bars",
    "start_sessions": "Start shifted, sessions",
    "without": "Without a symbol",
}


def render(runs: RunsFolder) -> None:
    run, folder = pick_run(runs)
    stored = artifacts.backtest(folder)
    tables.show_verdict(stored)
    verdict = stored.verdict
    version = artifacts.backtest_version(folder)
    if stands := standing(stored.metrics, stored.context):
        st.markdown(plain(stands, 600))
    if verdict is not None:
        numbers(verdict)
        left, right = st.columns(2)
        with left, guarded():
            alpha(verdict.evidence, version)
        with right, guarded():
            betting(verdict.evidence, stored, version)
        with guarded():
            rivals(verdict)
        left, right = st.columns(2)
        with left, guarded():
            intervals(verdict.intervals)
        with right, guarded():
            random_portfolios(verdict, stored, version)
        st.header("What the search says of itself", anchor=False)
        st.caption(
            "On the window it chose by: a diagnosis of the search, which no verdict rests on."
        )
        left, right = st.columns(2)
        with left, guarded():
            luck(verdict.selection, version)
        with right, guarded():
            overfitting(verdict.selection, version)
        with guarded():
            null_model(verdict, stored)
    with guarded():
        sensitivity(stored, version)
    with guarded():
        lookahead(folder)
    with guarded():
        selection(folder, version)
    provenance(run, stored)


def numbers(verdict: Verdict) -> None:
    """The figures behind the sentence."""
    evidence = verdict.evidence
    test = evidence.alpha
    cells = [
        ("Look", look_words(verdict), NOTES["look"]),
        ("p-value", DASH if test is None else chance(test.p_value), NOTES["p_value"]),
        ("Level", ratio(evidence.level, 4), NOTES["level"]),
        ("Information ratio", DASH if test is None else ratio(test.ratio), NOTES["ratio"]),
        ("Seen here", DASH if test is None else f"from {ratio(test.visible)}", NOTES["visible"]),
        (
            "Timing, p",
            DASH if evidence.shift is None else chance(evidence.shift.p_value),
            NOTES["shift"],
        ),
        ("E-value", ratio(evidence.betting.last), NOTES["e_value"]),
        ("Sessions", count(verdict.sessions), "Of the held-out window"),
    ]
    tables.numbers(cells)


def alpha(evidence: Evidence, version: Hashable) -> None:
    """The information ratio beside what the window can see."""
    test = evidence.alpha
    if test is None:
        st.info(
            "Too short, or too close to the benchmark, to be tested.",
            icon=":material/hourglass_empty:",
        )
        return
    st.subheader("Beyond the benchmark, beta hedged", anchor=False)
    charts.show(
        lambda: figures.alpha_figure(test, evidence.against), "honesty_alpha", version=version
    )
    st.caption(f"{plain(test.method)}.")


def betting(evidence: Evidence, stored: StoredBacktest, version: Hashable) -> None:
    """The e-process."""
    values = evidence.betting.by_session
    if len(values) != len(stored.ends):
        return
    st.subheader("Evidence as it comes in", anchor=False)
    closes = stored.on_clock(figures.known_timezone(stored.context.timezone)).minutes[stored.ends]
    charts.show(lambda: figures.betting_figure(values, closes), "honesty_betting", version=version)
    st.caption("A bettor on alpha, from 1: the value counts whenever one looks, however often.")


def intervals(found: Intervals) -> None:
    """Bootstrap intervals."""
    st.subheader("Bootstrap intervals", anchor=False)
    rows = [
        {
            "Metric": tables.find_title(key),
            "Low": statistic(key, band.low),
            "Estimate": statistic(key, band.estimate),
            "High": statistic(key, band.high),
            "Level": percent(band.level, 0),
        }
        for key, band in found.by_metric().items()
    ]
    table(rows, "honesty_bands", right=("Low", "Estimate", "High", "Level"))
    block = ratio(found.block_sessions, 1)
    st.caption(
        f"Stationary bootstrap of daily returns, mean block {block} sessions (Politis and White)."
    )


def luck(selection: Selection, version: Hashable) -> None:
    """The chosen trial's Sharpe ratio where it was chosen beside what luck would show there."""
    st.markdown(plain(selection.sentence, 600))
    sharpe = selection.sharpe
    if sharpe is None:
        return
    st.subheader("The chosen trial, and what luck shows", anchor=False)
    charts.show(lambda: figures.sharpe_figure(sharpe), "honesty_luck", version=version)
    effective = ratio(sharpe.effective_trials, 1)
    st.caption(
        f"Spread of the trials: {plain(sharpe.trial_variance_source)}; effective number of trials"
        f" {effective}."
    )


def rivals(verdict: Verdict) -> None:
    """Against what needed no search."""
    scale, over = span(verdict.sessions, verdict.sessions_a_year)
    rows = [
        {
            "Against": human(name),
            f"Excess {over}": percent(scale * one.excess, signed=True),
            "Low": percent(scale * one.low, signed=True),
            "High": percent(scale * one.high, signed=True),
            "p, paired bootstrap": chance(one.p_value),
        }
        for name, one in verdict.excess.items()
    ]
    if not rows:
        return
    st.subheader("Against what needed no search", anchor=False)
    table(rows, "honesty_rivals", right=list(rows[0])[1:])
    st.caption("Paired block bootstrap of daily returns.")


def overfitting(selection: Selection, version: Hashable) -> None:
    """Where the in-sample winners ended out of sample."""
    found = selection.overfitting
    st.subheader("Probability of backtest overfitting", anchor=False)
    if found is None:
        st.info(
            "Not computed: it needs the validation returns of at least two trials, over eight"
            " sessions or more; a walk-forward has them for each fold. `fintrader backtest` on the"
            " run computes it where they are stored.",
            icon=":material/hourglass_empty:",
        )
        return
    charts.show(lambda: figures.overfitting_figure(found), "honesty_pbo", version=version)
    folds = found.windows
    is_rolling = len(folds) > 1
    span = f"Mean of {count(len(folds))} folds, each with trials of its own: " if is_rolling else ""
    trials = folds[0].trials if folds else found.trials
    st.caption(
        f"{span}{probability(found.probability)} of {count(found.splits)} splits lie left of zero:"
        f" there the best of {count(trials)} trials in-sample was below the median out of sample."
    )
    if is_rolling:
        each = ", ".join(probability(one.probability) for one in folds)
        st.caption(f"Fold by fold: {each}.")


def random_portfolios(verdict: Verdict, stored: StoredBacktest, version: Hashable) -> None:
    """What darts would have earned."""
    drawn = verdict.random_portfolios
    st.subheader("Random static portfolios over the same window", anchor=False)
    if drawn is None:
        st.info("Not computed for this backtest.", icon=":material/hourglass_empty:")
        return
    returned = stored.metrics.get(verdict.strategy, NO_METRICS).cumulative_return
    charts.show(
        lambda: figures.random_portfolios_figure(drawn, returned), "honesty_random", version=version
    )
    above = drawn.share_above
    st.caption(
        "Share of random portfolios that did better: cumulative return"
        f" {percent(above.cumulative_return)}, sharpe {percent(above.sharpe)}."
    )


def null_model(verdict: Verdict, stored: StoredBacktest) -> None:
    """What the same search finds where there is nothing to find."""
    st.subheader("The same search on features without information", anchor=False)
    metrics = stored.context.null_model
    if metrics is None:
        st.info(
            "This null model was not run: the same tournament on time-shifted features.",
            icon=":material/science:",
        )
        return
    name = verdict.strategy
    shown = {name: stored.metrics.get(name, NO_METRICS), "null_model": metrics}
    tables.show_paper_table(shown, "honesty_null_model", stored.portfolio)


def sensitivity(stored: StoredBacktest, version: Hashable) -> None:
    """What the result survives: whole simulations with one choice changed, where they were run."""
    rows = stored.sensitivity
    swept = [row for row in rows if row.kind == "cost_bps" and row.cumulative_return is not None]
    if len(swept) < 2:
        costs(stored, version)
    else:
        st.subheader("Return at other costs", anchor=False)
        charts.show(lambda: figures.cost_figure(swept), "honesty_sweep", version=version)
        st.caption("Return of the test window; every point is a whole simulation at that cost.")
    capitals = at_other_capital(rows)
    if len(capitals) > 1:
        st.subheader("Sharpe ratio with more capital", anchor=False)
        charts.show(lambda: figures.capital_figure(capitals), "honesty_capital", version=version)
        st.caption(
            "Every point is a whole simulation: orders take their share of each bar's volume, the"
            " rest is cancelled."
        )
    others = [row for row in rows if row.kind in KINDS]
    if not others:
        return
    st.subheader("One choice changed at a time", anchor=False)
    shown = [
        {
            "Choice": KINDS[row.kind],
            "Setting": row.setting + (" (as run)" if row.is_chosen else ""),
            "Return": percent(row.cumulative_return),
            "Sharpe": ratio(row.sharpe),
        }
        for row in others
    ]
    table(shown, "honesty_choices", right=("Return", "Sharpe"), height=300)


def costs(stored: StoredBacktest, version: Hashable) -> None:
    """How the result falls with costs, from the stored notional and costs."""
    st.subheader("Return at other costs", anchor=False)
    names = [name for name in stored.strategies if (stored.curve("turnover_usd")[name] > 0).any()]
    if not names:
        st.info("Nothing was traded.", icon=":material/inbox:")
        return
    columns = ("equity_usd", "cost_usd", "turnover_usd")
    room = 18 * max(0, len(names) - 3)  # on a narrow screen the legend takes a line for each

    def figure() -> go.Figure:
        return figures.first_order_cost_figure(
            *(stored.curve(column)[names].rename(columns=label) for column in columns)
        )

    charts.show(figure, "honesty_costs", height=300 + room, version=version)
    even = ", ".join(
        f"{human(name)} {ratio(stored.metrics.get(name, NO_METRICS).break_even_cost_bps, 1)} bps"
        for name in names
    )
    st.caption(
        "First-order: the stored trades at another proportional cost, the money saved or lost not"
        f" re-invested. Break-even: {even}."
    )


def lookahead(folder: Folder) -> None:
    """Whether anything up to a bar depends on what comes after it."""
    st.subheader("Look-ahead check", anchor=False)
    try:
        report = folder.json("lookahead.json")
    except NotThereError:
        st.info(
            "Not stored with this run. The check changes the future and compares everything"
            " before it:"
        )
        st.code(
            f"fintrader lookahead {folder.root.parent.name}/{folder.root.name}/config.yaml",
            language="bash",
        )
        return
    leaks, alarms, trusted = (listed(report.get(name)) for name in ("leaks", "alarms", "trusted"))
    if leaks:
        st.error(f"{count(len(leaks))} leak(s) of the future were found.", icon=":material/error:")
        st.dataframe(
            pd.DataFrame([{"Leak": leak} for leak in leaks]), hide_index=True, width="stretch"
        )
    if alarms:
        st.warning(
            "No honest column is this good: look where these come from.",
            icon=":material/notification_important:",
        )
        st.dataframe(
            pd.DataFrame([{"Alarm": alarm} for alarm in alarms]), hide_index=True, width="stretch"
        )
    if isinstance(report.get("leaks"), list) and not leaks and not alarms:
        st.success("No look-ahead was found.", icon=":material/check_circle:")
    if trusted:
        st.caption(
            "Taken on trust, since nothing here makes them again:"
            f" {plain(', '.join(trusted), 400)}."
        )


def listed(values: Any, most: int = 200) -> list[str]:
    """What a file lists, as text."""
    return [str(value) for value in values[:most]] if isinstance(values, list) else []


def selection(folder: Folder, version: Hashable) -> None:
    """All trials by their validation score: where the winner was chosen from."""
    try:
        pods = artifacts.load_pods(folder)
    except NotThereError:
        return
    scores = pd.to_numeric(pods["score"], errors="coerce").dropna().sort_values(ascending=False)
    if scores.empty:
        return
    st.subheader("The trials it was chosen from", anchor=False)
    text = f"{count(len(scores))} trials with a score, of {count(len(pods))} pods."
    named = scores.set_axis([label(pod) for pod in pods.loc[scores.index, "pod"]])
    contents = int(pd.util.hash_pandas_object(named).sum())
    charts.show(lambda: figures.trials_figure(named), "honesty_trials", version=(version, contents))
    if len(scores) > figures.MOST_BARS:
        best = f"{named.index[0]} with {score(scores.iloc[0])}"
        text += f" Put together in {figures.BINS} bins; the line marks the best, {best}."
    st.caption(text)


def provenance(run: Summary, stored: StoredBacktest) -> None:
    """Everything needed to get the numbers again."""
    st.subheader("To get these numbers again", anchor=False)
    command = stored.context.command or run.command  # a backtest made again has one of its own
    if isinstance(command, str) and command:
        st.code(hide_secrets(command), language="bash")
    rows = {
        "Market (data hash)": run.data_hash,
        "Settings (config hash)": run.config_hash,
        "Seed": run.seed,
        "Device": run.device,
        "Window": stored.context.window,
        **{f"Version of {name}": version for name, version in run.versions.items()},
    }
    listed = [
        {"What": key, "Value": DASH if value is None else str(value)} for key, value in rows.items()
    ]
    table(listed, "honesty_provenance", height=220)


page("Honesty", render)
