"""Judge a result: a diagnosis of the search, tests on the held-out window, and three sentences.

The first two never mix. `selection` describes the window that the search chose by, and corrects
for the number of trials. `evidence` comes from the held-out window alone, against the benchmark
portfolio; the verdict rests on it, by one test whose error rates are measured (docs/evidence.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fintrader import metrics as m
from fintrader.backtesting.attribution import symbol_returns
from fintrader.backtesting.null_models import random_portfolios
from fintrader.backtesting.result import Array, BacktestResult
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.market.tensors import WHOLE, MarketTensors
from fintrader.metrics import finite_or_none
from fintrader.numerals import count, p_equals, percent, probability, ratio, span
from fintrader.results.formatting import is_baseline, main_strategy
from fintrader.results.history import drop_rounding_differences
from fintrader.verdict import LEVEL
from fintrader.verdict import alpha as ev
from fintrader.verdict import sharpe as sig
from fintrader.verdict.bootstrap import intervals, paired_excess
from fintrader.verdict.selection import UNKNOWN_SEARCH, SearchRecord, diagnose
from fintrader.verdict.verdict import (
    AlphaTest,
    Evidence,
    Excess,
    RandomDraws,
    Selection,
    SharpeEstimate,
    State,
    Verdict,
)

HELD_OUT = "test"
NO_VERDICT = {"train": ("training", "learn from"), "validation": ("validation", "are chosen by")}
"""Windows that allow no conclusion: the name of each, and the use that policies make of its
bars."""
NEVER_SPLIT = "bars that were never split off as a test window"
IMPLAUSIBLE = 10.0
"""Annual information ratio above which an error is the likelier explanation."""
INDEX = "index"
NOT_JUDGED = "Not judged."
UNVARIED = 1e-6
"""Annual active return up to which a difference is rounding."""


def assess(
    results: Mapping[str, BacktestResult],
    *,
    trials: int | None = None,
    search: SearchRecord = UNKNOWN_SEARCH,
    market: MarketTensors | Sequence[MarketTensors] | None = None,
    settings: EnvSettings | None = None,
    look: int | None = None,
    caveats: Sequence[str] = (),
    seed: int = 0,
) -> Verdict:
    """Judge whether `results` can be distinguished from luck; None stands for unknown arguments.

    `trials`: number of strategies that were tried. `search`: their returns where they were chosen.
    `market`, `settings`: the window, for random portfolios and for shifts in time; for a
    walk-forward a list with the window of each fold. `look`: number of this look at the window,
    from 1; None if the looks were not counted. `caveats`: reasons why the result could not have
    been traded as well as this; with any of them there is no likely skill.

    The result knows its window (`BacktestResult.cut_from`). Training and validation windows get no
    verdict, and neither do bars that the policy was trained or chosen on.
    """
    name = main_strategy(list(results))
    result = results[name]
    daily = result.daily_returns
    year = result.sessions_a_year
    windows = [market] if isinstance(market, MarketTensors) else market
    selection = diagnose(trials, search, seed, year)
    window = result.cut_from[0] if result.cut_from else WHOLE
    evidence = _test_window(results, name, windows, look, seed)
    taken = [*caveats, *([] if settings is None else _list_optimism(settings))]
    taken += _flag_implausible(evidence.alpha, windows)
    if window == WHOLE:
        taken.append(NEVER_SPLIT)
    judged = Verdict(
        state="no_verdict",
        sentences=(NOT_JUDGED,),
        strategy=name,
        window=window,
        windows=tuple(result.cut_from),
        is_seen=result.is_seen,
        is_ruined=result.ruined,
        has_traded=bool(len(result.trades)),
        sessions=len(daily),
        sessions_a_year=year,
        caveats=tuple(taken),
        evidence=evidence,
        sharpe=_measure_sharpe(daily, year),
        # Same seed as the metrics' intervals, so that all tables agree.
        intervals=intervals(daily, seed=0, sessions_a_year=year),
        excess=_bootstrap_excess(results, name, seed),
        random_portfolios=_draw_portfolios(result, windows, settings, seed),
        selection=replace(selection, sentence=describe_search(selection)),
    )
    state, sentences = _conclude(judged)
    return replace(judged, state=state, sentences=tuple(sentences))


# --- tests ----------------------------------------------------------------------------------------


def _measure_sharpe(daily: Array, sessions_a_year: int) -> SharpeEstimate | None:
    """Measure the window's own Sharpe ratio, annualised; `intervals` has its interval."""
    sample = sig.SharpeSample.of(daily)
    if sample is None:
        return None
    return SharpeEstimate(
        sharpe=sample.sharpe * math.sqrt(sessions_a_year),
        skew=sample.skew,
        kurtosis=sample.kurtosis,
        probabilistic=sig.probabilistic_sharpe(sample),
        minimum_track_record_sessions=finite_or_none(sig.minimum_track_record(sample) or math.nan),
    )


def _test_window(
    results: Mapping[str, BacktestResult],
    name: str,
    windows: Sequence[MarketTensors] | None,
    look: int | None,
    seed: int,
) -> Evidence:
    """Test the window against the benchmark portfolio, or against the index without one.

    An uncounted look is tested at the level of a first look.
    """
    result = results[name]
    benchmark = result.benchmark if result.portfolio is None else result.portfolio
    year = result.sessions_a_year
    ours = result.daily_returns
    theirs = m.daily_returns(benchmark, result.session)
    theirs = drop_rounding_differences(ours, theirs)
    level = ev.level_of_look(1 if look is None else look)
    tested = ev.alpha_test(ours, theirs, level=level, seed=seed, sessions_a_year=year)
    shifted = None
    if tested is not None and windows is not None:
        rival = results.get(result.portfolio_name)
        pairs = _pair_active_weights(result, rival, tested.beta, windows)
        shifted = None if pairs is None else ev.shift_test(pairs, seed=seed)
    return Evidence(
        against=INDEX if result.portfolio is None else result.portfolio_name,
        look=look,
        level=level,
        active_return=float((ours - theirs).mean() * year),
        alpha=tested,
        shift=shifted,
        betting=ev.bet(ours, theirs, year),
    )


def _pair_active_weights(
    result: BacktestResult,
    rival: BacktestResult | None,
    beta: float,
    windows: Sequence[MarketTensors],
) -> Iterator[tuple[Array, Array]] | None:
    """Yield for each asset its weight at each close less beta times the benchmark portfolio's, and
    its next return; None if the windows are not those of the result."""
    if (
        sum(window.num_bars for window in windows) != len(result.minutes)
        or not result.has_positions
    ):
        return None

    def weigh(of: BacktestResult, asset: int) -> Array:
        value = of.shares[:, asset] * of.mark[:, asset]
        return np.divide(value, of.equity, out=np.zeros_like(value), where=of.equity > 0)

    def pairs() -> Iterator[tuple[Array, Array]]:
        ahead = symbol_returns(windows)[1:]
        for asset in range(len(result.symbols)):  # one at a time: weights of all would be large
            active = weigh(result, asset)
            if rival is not None and rival.has_positions:
                active = active - beta * weigh(rival, asset)
            yield active, np.append(ahead[:, asset], 0.0)

    return pairs()


def _bootstrap_excess(
    results: Mapping[str, BacktestResult], name: str, seed: int
) -> dict[str, Excess]:
    """Bootstrap the main strategy's excess over every baseline, in paired blocks."""
    result = results[name]
    found = {
        other: paired_excess(
            result.daily_returns,
            rival.daily_returns,
            seed=seed,
            sessions_a_year=result.sessions_a_year,
        )
        for other, rival in results.items()
        if is_baseline(other) and other != name
    }
    return {other: excess for other, excess in found.items() if excess is not None}


def _draw_portfolios(
    result: BacktestResult,
    windows: Sequence[MarketTensors] | None,
    settings: EnvSettings | None,
    seed: int,
) -> RandomDraws | None:
    if windows is None or settings is None:
        return None
    try:
        drawn = random_portfolios(windows, settings, seed=seed)
    except BacktestError:
        # Nothing can be bought at the window's beginning; the other tests still hold.
        return None
    return drawn.compare(result.metrics.cumulative_return, result.metrics.sharpe)


def _list_optimism(settings: EnvSettings) -> list[str]:
    """List the optimistic assumptions of the settings, in words that complete "with ..."."""
    assumptions = []
    if settings.fill == "close":
        assumptions.append("orders filled at the close that they were decided on")
    if settings.cost_bps == 0 and not any(settings.half_spreads.values()):
        assumptions.append("trading free of costs")
    if settings.participation == "none":
        assumptions.append("orders of any size filled whatever the volume")
    return assumptions


def _flag_implausible(
    alpha: AlphaTest | None, windows: Sequence[MarketTensors] | None
) -> list[str]:
    """Flag a ratio too high for a real market, unless the market has a planted signal."""
    made_up = windows is not None and any(
        window.provenance.planted_drift or window.provenance.planted_signal for window in windows
    )
    if made_up or alpha is None or alpha.ratio < IMPLAUSIBLE:
        return []
    return [
        f"an information ratio of {ratio(alpha.ratio)}, for which a leak is the likelier reason"
        " (see `lookahead`)"
    ]


# --- sentences ------------------------------------------------------------------------------------


def _conclude(judged: Verdict) -> tuple[State, list[str]]:
    """Conclude from the tests, and say it: the finding, the power of this window, and the evidence
    still needed. Only the held-out window can show likely skill."""
    why_not = _explain_no_verdict(judged)
    if why_not is not None:
        return "no_verdict", [why_not]
    if judged.is_ruined:
        closed = "Went bankrupt: the account was closed inside the window."
        return "not_told_from_luck", [closed]
    if not judged.has_traded:
        return "no_verdict", ["Never traded: there is nothing to judge."]
    evidence = judged.evidence
    alpha = evidence.alpha
    rival = evidence.against.replace("_", " ")
    if alpha is None:
        said = f"Holds its benchmark: it does nothing that {rival} does not do."
        if judged.sessions < ev.SHORTEST:
            least = f"a test needs {ev.SHORTEST} and says little before {ev.FEW}"
            said = f"Too short to tell: {count(judged.sessions)} sessions; {least}."
        elif abs(evidence.active_return) > UNVARIED:
            said = f"Nothing to judge: beyond its beta to {rival} its returns never varied."
        return "no_verdict", [said]
    is_ahead = alpha.p_value <= evidence.level and evidence.active_return > 0
    is_skill = is_ahead and judged.window == HELD_OUT and not judged.caveats
    return "likely_skill" if is_skill else "not_told_from_luck", [
        _describe_finding(judged, alpha, rival),
        f"With {count(alpha.sessions)} sessions the test has {percent(ev.POWER, 0)} power only"
        f" above an information ratio of {ratio(alpha.visible, 1)}; this strategy's is"
        f" {ratio(alpha.ratio, 1)}.",
        *_suggest_evidence(judged, alpha),
    ]


def _explain_no_verdict(judged: Verdict) -> str | None:
    """Explain why a window shows nothing about skill; None for any other window."""
    nothing = "nothing about skill can be concluded from"
    if judged.window in NO_VERDICT:
        name, use = NO_VERDICT[judged.window]
        reason = f"this is the {name} window"
        if len(judged.windows) > 1:
            reason = f"some of these bars are the {name} window's"
        return f"No verdict: {reason}, and {nothing} bars that policies {use}."
    if judged.is_seen:
        reason = "the policy was trained or chosen on some of these bars"
        return f"No verdict: {reason}, and {nothing} them."
    return None


def _describe_finding(judged: Verdict, alpha: AlphaTest, rival: str) -> str:
    evidence = judged.evidence
    is_ahead = evidence.active_return > 0
    scale, over = span(alpha.sessions, judged.sessions_a_year)
    active, excess = (
        percent(abs(value) * scale) for value in (evidence.active_return, alpha.alpha)
    )
    where = f"{'ahead of' if is_ahead else 'behind'} {rival} by {active} {over}"
    sign = "+" if alpha.alpha > 0 else "-"
    hedged = f"{sign}{excess} once its beta of {ratio(alpha.beta)} is hedged"
    trials = judged.selection.trials
    chosen = (
        f"the choice of {count(trials)} trial{'s' if trials > 1 else ''}"
        if trials
        else "the choice of an unknown number of trials"
    )
    look = evidence.look
    nth = "looks not counted" if look is None else f"{_spell_ordinal(look)} look at this window"
    tested = f"{p_equals(alpha.p_value)} at a level of {evidence.level:.3g}, {nth}, {chosen}"
    if alpha.p_value > evidence.level:
        return f"Not distinguishable from luck: {where}, {hedged} ({tested})."
    if not is_ahead:
        return f"Less risk, and not ahead: {where}, {hedged} ({tested})."
    if judged.caveats:
        named = " and with ".join(judged.caveats)
        return f"Cannot be believed as it stands, with {named}: {where}, {hedged} ({tested})."
    return f"Unlikely to be luck: {where}, {hedged} ({tested})."


def _suggest_evidence(judged: Verdict, alpha: AlphaTest) -> list[str]:
    """Say how much more data would decide, and name the reservations."""
    evidence = judged.evidence
    lines = []
    if alpha.p_value > evidence.level:
        if alpha.sessions_needed is None:
            lines.append("Its alpha is negative: more data will not change that.")
        else:
            more = max(alpha.sessions_needed - alpha.sessions, 1)
            lines.append(f"If that is its true ratio, {count(more)} more sessions would tell.")
        if judged.caveats:
            lines.append(f"And it was traded with {' and with '.join(judged.caveats)}.")
        return lines
    condition = "any earlier look at these bars would have lowered its level"
    if evidence.look is not None:
        stricter = f"{ev.level_of_look(evidence.look + 1):.3g}"
        condition = f"another look at this window has a level of {stricter}"
    lines.append(f"New sessions would confirm it; {condition}.")
    shift = evidence.shift
    if shift is not None and shift.p_value > LEVEL:
        lines.append(
            "Its choice of symbols paid, not its timing: shifted in time it earned as much"
            f" ({p_equals(shift.p_value)})."
        )
    null_model = judged.selection.null_model
    if null_model is not None and null_model.is_as_good:
        lines.append("The same search without information reached as good a score.")
    return lines


def describe_search(selection: Selection) -> str:
    """Describe the search in one or two sentences, with its number of trials."""
    trials = selection.trials
    if not trials:
        return "Chosen from an unknown number of trials."
    sentences = [f"Chosen from {count(trials)} trial{'' if trials == 1 else 's'}"]
    sharpe = selection.sharpe
    overfit = selection.overfitting
    tested = selection.romano_wolf
    if sharpe is not None and trials > 1:
        hurdle = (
            "where the luckiest of as many without skill is expected to show"
            f" {ratio(sharpe.expected_best)}"
        )
        sentences[0] += f" with a Sharpe ratio of {ratio(sharpe.sharpe)} there, {hurdle}"
        sentences[0] += f" (deflated Sharpe {probability(sharpe.deflated)})"
    if overfit is not None:
        sentences.append(f"Probability of overfitting {probability(overfit.probability)}")
    if tested is not None and trials > 1:
        ahead = f"{count(tested.ahead)} of {count(tested.trials)}"
        sentences.append(f"Ahead of the benchmark there, all tested together: {ahead}")
    if selection.null_model is not None and selection.null_model.is_as_good:
        sentences.append("The same search found as much without information")
    return ". ".join(sentences) + "."


def _spell_ordinal(number: int) -> str:
    words = ("", "first", "second", "third")
    if number < len(words):
        return words[number]
    ending = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
