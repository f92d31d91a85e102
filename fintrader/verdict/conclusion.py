"""Conclude a verdict from its tests, in sentences, for a run's results and for external returns.

`make_evidence` makes the evidence of one window; `conclude` sets the state and the three sentences
of a verdict whose other fields are filled in (docs/verdict.md).
"""

from __future__ import annotations

import math
from dataclasses import replace

from fintrader.metrics import Array, drop_rounding_differences, finite_or_none
from fintrader.numerals import (
    count,
    format_count,
    p_equals,
    percent,
    period_name,
    probability,
    ratio,
    significance,
    span,
)
from fintrader.verdict import LEVEL
from fintrader.verdict import alpha as ev
from fintrader.verdict import sharpe as sig
from fintrader.verdict.verdict import (
    FOREIGN,
    AlphaTest,
    Evidence,
    Selection,
    SharpeEstimate,
    State,
    Tail,
    Verdict,
)

NO_VERDICT = {"train": ("training", "learn from"), "validation": ("validation", "are chosen by")}
"""Windows that allow no conclusion: name, and the policies' use of its bars."""
NEVER_SPLIT = "bars that were never split off as a test window"
IMPLAUSIBLE = 10.0
"""Annual information ratio above which an error is the likelier explanation."""
NOT_JUDGED = "Not judged."
UNKNOWN_TRIALS = "an unknown number of strategies tried on these returns"
UNSEEN = 3.0
"""Upper 95 % confidence bound on the rate of an event absent from S sessions: 3/S."""
UNVARIED = 1e-6
"""Annual active return that still counts as rounding."""


# --- tests ----------------------------------------------------------------------------------------


def make_evidence(
    ours: Array,
    theirs: Array,
    against: str,
    look: int | None,
    seed: int,
    sessions_a_year: int,
    among: int = 1,
) -> Evidence:
    """Test daily returns `[S]` against those of the benchmark called `against`.

    `look`: number of this look at the window; an uncounted one (None) is tested at the level of a
    first look. `among`: number of strategies from which these returns selected this one; it divides
    the level, which then holds for the best of them.
    """
    theirs = drop_rounding_differences(ours, theirs)
    level = ev.level_of_look(1 if look is None else look) / among
    return Evidence(
        against=against,
        look=look,
        level=level,
        active_return=float((ours - theirs).mean() * sessions_a_year),
        alpha=ev.alpha_test(ours, theirs, level=level, seed=seed, sessions_a_year=sessions_a_year),
        shift=None,
        betting=ev.bet(ours, theirs, sessions_a_year),
    )


def measure_sharpe(daily: Array, sessions_a_year: int) -> SharpeEstimate | None:
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


def measure_tail(returns: Array, alpha: AlphaTest | None, sessions_a_year: int) -> Tail | None:
    """Measure the worst of returns `[S]`, and bound the losses too rare to be among them; None
    without a test."""
    if alpha is None:
        return None
    share = UNSEEN / len(returns)
    gain = alpha.alpha / sessions_a_year
    return Tail(float(returns.min()), share, gain / share if gain > 0 else None)


def flag_implausible(alpha: AlphaTest | None) -> list[str]:
    """Flag a ratio too high for a real market."""
    if alpha is None or alpha.ratio < IMPLAUSIBLE:
        return []
    return [
        f"an information ratio of {ratio(alpha.ratio)}, for which a leak is the likelier reason"
        " (see `lookahead`)"
    ]


# --- sentences ------------------------------------------------------------------------------------


def conclude(judged: Verdict) -> Verdict:
    """Return the verdict with its state, its sentences, and the sentence on its search."""
    state, sentences = _conclude(judged)
    selection = replace(judged.selection, sentence=describe_search(judged.selection))
    return replace(judged, state=state, sentences=tuple(sentences), selection=selection)


def _conclude(judged: Verdict) -> tuple[State, list[str]]:
    """State the finding, the power of this window, and the evidence still needed. Only the held-out
    window can show likely skill."""
    why_not = _explain_no_verdict(judged)
    if why_not is not None:
        return "no_verdict", [why_not]
    if judged.is_ruined:
        return "not_told_from_luck", ["Went bankrupt: the account was closed inside the window."]
    if not judged.has_traded:
        reserved = f" Reservations: {'; '.join(judged.caveats)}." if judged.caveats else ""
        return "no_verdict", ["Never traded: there is nothing to judge." + reserved]
    evidence = judged.evidence
    alpha = evidence.alpha
    rival = evidence.against.replace("_", " ")
    if alpha is None:
        sentence = f"Holds its benchmark: it does nothing that {rival} does not do."
        if judged.sessions < ev.SHORTEST:
            least = f"a test needs {ev.SHORTEST} and has little power below {ev.FEW}"
            sessions = format_count(judged.sessions, period_name(judged.sessions_a_year))
            sentence = f"Too short to tell: {sessions}; {least}."
        elif abs(evidence.active_return) > UNVARIED:
            sentence = f"Nothing to judge: its returns, hedged with {rival}, do not vary."
        return "no_verdict", [sentence]
    sessions = format_count(alpha.sessions, period_name(judged.sessions_a_year))
    missed: State = "behind" if _is_behind(evidence, alpha) else "not_told_from_luck"
    return "likely_skill" if judged.shows_skill else missed, [
        _describe_finding(judged, alpha, rival),
        f"With {sessions} the test has {percent(ev.POWER, 0)} power only"
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
    if alpha.beta:
        where += f", {sign}{excess} once its beta of {ratio(alpha.beta)} is hedged"
    look = evidence.look
    nth = "looks not counted" if look is None else f"look {look} at this window"
    side = p_equals(alpha.p_value)
    is_behind = _is_behind(evidence, alpha)
    if is_behind:
        side = f"{p_equals(1 - alpha.p_value)} for a negative alpha"
    tested = (
        f"{side} at a level of {significance(evidence.level)}, {nth}, {_describe_choice(judged)}"
    )
    if is_behind:
        return f"{'Negative alpha' if is_ahead else 'Behind its benchmark'}: {where} ({tested})."
    if alpha.p_value > evidence.level:
        return f"Not distinguishable from luck: {where} ({tested})."
    if not is_ahead:
        return f"Lower risk and lower return: {where} ({tested})."
    if judged.caveats:
        named = " and with ".join(judged.caveats)
        return f"Cannot be believed as it stands, with {named}: {where} ({tested})."
    return f"Unlikely to be luck: {where} ({tested})."


def _is_behind(evidence: Evidence, alpha: AlphaTest) -> bool:
    """Test the opposite side, down to the smallest p-value that the bootstrap resolves."""
    return 1 - alpha.p_value + 1 / (1 + ev.REPEATS) <= evidence.level


def _describe_choice(judged: Verdict) -> str:
    """Describe the number of trials; for external returns, as stated."""
    trials = judged.selection.trials
    if judged.registered:
        return judged.registered
    chosen = "the choice of an unknown number of trials"
    if trials:
        chosen = f"the choice of {count(trials)} trial{'s' if trials > 1 else ''}"
    if judged.window != FOREIGN or (trials is None and not judged.is_stated_held_out):
        return chosen
    if judged.is_stated_held_out:
        return f"stated to be held out{f', {chosen}' if trials else ''}"
    return f"{chosen} on these returns, as stated"


def _suggest_evidence(judged: Verdict, alpha: AlphaTest) -> list[str]:
    """Say how much more data would decide, and name the reservations."""
    evidence = judged.evidence
    unit = period_name(judged.sessions_a_year)
    lines = []
    if alpha.p_value > evidence.level:
        if alpha.sessions_needed is None:
            lines.append("The estimated alpha is not positive, so no longer window would pass.")
        else:
            more = max(alpha.sessions_needed - alpha.sessions, 1)
            lines.append(
                f"If that is its true ratio, {count(more)} more {unit}s give"
                f" {percent(ev.POWER, 0)} power."
            )
        if judged.caveats:
            lines.append(f"Reservations: {'; '.join(judged.caveats)}.")
        return lines + _ask_for_trials(judged)
    condition = "any earlier look at these bars would have lowered its level"
    if evidence.look is not None:
        stricter_by = ev.level_of_look(evidence.look + 1) / ev.level_of_look(evidence.look)
        stricter = significance(evidence.level * stricter_by)
        condition = f"another look at this window has a level of {stricter}"
    lines.append(f"Only new {unit}s can confirm it; {condition}.")
    shift = evidence.shift
    if shift is not None and shift.p_value > LEVEL:
        lines.append(
            "No evidence of timing: shifted in time, the same positions earned about as much"
            f" ({p_equals(shift.p_value)})."
        )
    null_model = judged.selection.null_model
    if null_model is not None and null_model.is_as_good:
        lines.append("The same search without information scored as high.")
    return lines + _ask_for_trials(judged)


def _ask_for_trials(judged: Verdict) -> list[str]:
    if UNKNOWN_TRIALS not in judged.caveats:
        return []
    return [
        "State how many strategies were tried on these returns (--trials N), or that the"
        " strategy was selected without them (--held-out)."
    ]


def describe_search(selection: Selection) -> str:
    """Describe the search in one or two sentences, with its number of trials."""
    trials = selection.trials
    if not trials:
        return "Chosen from an unknown number of trials."
    sentences = [f"Chosen from {format_count(trials, 'trial')}"]
    sharpe = selection.sharpe
    overfit = selection.overfitting
    tested = selection.romano_wolf
    if sharpe is not None and trials > 1:
        hurdle = (
            f"where the best of {count(trials)} without skill is expected to reach"
            f" {ratio(sharpe.expected_best)}"
        )
        sentences[0] += f" with a Sharpe ratio of {ratio(sharpe.sharpe)} in selection, {hurdle}"
        sentences[0] += f" (deflated Sharpe {probability(sharpe.deflated)})"
    if overfit is not None:
        sentences.append(f"Probability of overfitting {probability(overfit.probability)}")
    if tested is not None and trials > 1:
        ahead = f"{count(tested.ahead)} of {count(tested.trials)}"
        sentences.append(f"Ahead of the benchmark in selection, tested together: {ahead}")
    if selection.null_model is not None and selection.null_model.is_as_good:
        sentences.append("The same search without information scored as high")
    return ". ".join(sentences) + "."
