"""How far a result can be believed: what the search says of itself, what the held-out window says,
and three sentences.

The two are never mixed. `selection` is about the window the search chose by, and corrects for how
many it chose from. `evidence` is about the held-out window alone, against the benchmark portfolio;
the verdict is its, by one test whose errors are known (docs/evidence.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.backtesting.null_models import random_portfolios
from fintrader.backtesting.result import BacktestResult
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.market.tensors import WHOLE, MarketTensors
from fintrader.metrics import finite
from fintrader.results.formatting import (
    count,
    is_baseline,
    main_strategy,
    p_equals,
    percent,
    probability,
    ratio,
    span,
)
from fintrader.results.history import rounding_apart
from fintrader.verdict import LEVEL
from fintrader.verdict import alpha as ev
from fintrader.verdict import sharpe as sig
from fintrader.verdict.bootstrap import intervals, paired_excess
from fintrader.verdict.selection import TrialReturns, diagnose, has_equal_null_model

Array = NDArray[np.float64]
HELD_OUT = "test"
NO_VERDICT = {"train": ("training", "learn from"), "validation": ("validation", "are chosen by")}
"""Windows that nothing is concluded from: what each is called, and what policies do with its
bars."""
NEVER_SPLIT = "bars that were never split off as a test window"
IMPLAUSIBLE = 10.0
"""An annual information ratio above which an error is the likelier explanation."""
INDEX = "index"
UNVARIED = 1e-6
"""A year's active return that is more than rounding."""


def assess(
    results: Mapping[str, BacktestResult],
    *,
    trials: int | None = None,
    trial_returns: TrialReturns | None = None,
    trial_active: TrialReturns | None = None,
    market: MarketTensors | Sequence[MarketTensors] | None = None,
    settings: EnvSettings | None = None,
    null_model: Mapping[str, Any] | None = None,
    look: int | None = None,
    caveats: Sequence[str] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Everything about luck that can be said of `results`, as plain JSON; what is not known is
    None.

    `trials`: how many strategies were tried to get this one. `trial_returns`, `trial_active`: `[S,
    M]`, their daily returns, and those less the benchmark portfolio's, on the window they were
    selected by. `market`, `settings`: the window, for random portfolios and for shifts in time. Of
    a walk-forward these are lists with one entry for each fold, because each fold selects among
    trials of its own. `null_model`: what the same search found on information-free features, as the
    caller ran it: `metrics` of its winner on the window, `best_selection_score`,
    `real_best_selection_score` (the true search's) and `selection_metric`. `look`: the how-many-eth
    look at the window this is; None where nothing counted them. `caveats`: what makes the result
    better than it could have been traded; with any, no verdict is good.

    The result says itself which window it is (`BacktestResult.cut_from`), as its market did.
    Training and validation windows get no verdict, and neither do bars that the policy was trained
    or chosen on.
    """
    name = main_strategy(list(results))
    result = results[name]
    daily = result.daily_returns
    year = result.sessions_a_year
    bands, block = intervals(
        daily, seed=0, sessions_a_year=year
    )  # the one that the metrics have: equal wherever it is shown
    windows = [market] if isinstance(market, MarketTensors) else market
    selection = diagnose(trials, trial_returns, trial_active, null_model, seed, year)
    report: dict[str, Any] = {
        "strategy": name,
        "window": result.cut_from[0] if result.cut_from else WHOLE,
        "holds": list(result.cut_from),
        "seen": result.is_seen,
        "sessions": len(daily),
        "sessions_a_year": year,
        "ruined": result.ruined,
        "traded": bool(len(result.trades)),
        "intervals": {key: asdict(band) for key, band in bands.items()},
        "block_sessions": block,
        "sharpe": _sharpe(daily, year),
        "selection": selection | {"sentence": describe_search(selection)},
        "evidence": _evidence(results, name, windows, look, seed),
        "excess": _excess(results, name, seed),
        "random_portfolios": _random(result, windows, settings, seed),
    }
    report["caveats"] = [*caveats, *([] if settings is None else _optimistic(settings))]
    report["caveats"] += _implausible(report, windows)
    if report["window"] == WHOLE:
        report["caveats"].append(NEVER_SPLIT)
    report["likely_skill"] = _likely(report)
    report["sentences"] = sentences(report)
    report["verdict"] = " ".join(report["sentences"])
    return report


# --- what is computed -----------------------------------------------------------------------------


def _sharpe(daily: Array, sessions_a_year: int) -> dict[str, Any] | None:
    """The window's own Sharpe ratio, annualised; its interval stands among the bootstrap's."""
    sample = sig.SharpeSample.of(daily)
    if sample is None:
        return None
    return {
        "sharpe": sample.sharpe * math.sqrt(sessions_a_year),
        "skew": sample.skew,
        "kurtosis": sample.kurtosis,
        "probabilistic": sig.probabilistic_sharpe(sample),
        "minimum_track_record_sessions": finite(sig.minimum_track_record(sample) or math.nan),
    }


def _evidence(
    results: Mapping[str, BacktestResult],
    name: str,
    windows: Sequence[MarketTensors] | None,
    look: int | None,
    seed: int,
) -> dict[str, Any]:
    """The window's tests against the benchmark portfolio, or the index where there is none.

    A look that nobody counted is tested at the level of a first one.
    """
    result = results[name]
    level = result.benchmark if result.portfolio is None else result.portfolio
    year = result.sessions_a_year
    ours = result.daily_returns
    theirs = m.daily_returns(level, result.session)
    theirs = rounding_apart(ours, theirs)
    spent = ev.level_of_look(1 if look is None else look)
    tested = ev.alpha_test(ours, theirs, level=spent, seed=seed, sessions_a_year=year)
    shifted = None
    if tested is not None and windows is not None:
        rival = results.get(result.portfolio_name)
        pairs = _active_weights(result, rival, tested.beta, windows)
        shifted = None if pairs is None else ev.shift_test(pairs, seed=seed)
    betting = ev.e_process(ours, theirs, year)
    return {
        "against": INDEX if result.portfolio is None else result.portfolio_name,
        "look": look,
        "level": spent,
        "active_return": float((ours - theirs).mean() * year),
        "alpha": None if tested is None else asdict(tested),
        "shift": None if shifted is None else asdict(shifted),
        "e_value": {
            "last": float(betting[-1]),
            "most": float(betting.max()),
            "by_session": betting.tolist(),
        },
    }


def _active_weights(
    result: BacktestResult,
    rival: BacktestResult | None,
    beta: float,
    windows: Sequence[MarketTensors],
) -> Iterator[tuple[Array, Array]] | None:
    """For each asset its weight at each bar's close beyond beta times the benchmark portfolio's,
    and its next return.

    None where the windows are not those of the result. One asset at a time: all of them are `[T,
    N]`, often.
    """
    if (
        sum(window.num_bars for window in windows) != len(result.minutes)
        or not result.has_positions
    ):
        return None

    def weight(of: BacktestResult, asset: int) -> Array:
        value = of.shares[:, asset] * of.mark[:, asset]
        share: Array = np.divide(value, of.equity, out=np.zeros_like(value), where=of.equity > 0)
        return share

    def pairs() -> Iterator[tuple[Array, Array]]:
        closes = [window.adjusted_close.cpu().numpy() for window in windows]
        for asset in range(len(result.symbols)):
            active = weight(result, asset)
            if rival is not None and rival.has_positions:
                active = active - beta * weight(rival, asset)
            yield active, np.concatenate([_next_returns(close[:, asset]) for close in closes])

    return pairs()


def _next_returns(close: Array) -> Array:
    """`[T]`: the return from each adjusted close to the next one; 0 where there is none."""
    known = np.isfinite(close) & (close > 0)
    both = known[1:] & known[:-1]
    moved = np.divide(close[1:], close[:-1], out=np.ones(len(close) - 1), where=both)
    return np.append(np.where(both, moved - 1, 0.0), 0.0)


def _excess(results: Mapping[str, BacktestResult], name: str, seed: int) -> dict[str, Any]:
    """Paired block bootstrap of the main strategy's excess over every baseline."""
    daily = results[name].daily_returns
    rivals = {
        other: rival.daily_returns
        for other, rival in results.items()
        if is_baseline(other) and other != name
    }
    year = results[name].sessions_a_year
    found = {
        other: paired_excess(daily, rival, seed=seed, sessions_a_year=year)
        for other, rival in rivals.items()
    }
    return {other: asdict(excess) for other, excess in found.items() if excess is not None}


def _random(
    result: BacktestResult,
    windows: Sequence[MarketTensors] | None,
    settings: EnvSettings | None,
    seed: int,
) -> dict[str, Any] | None:
    if windows is None or settings is None:
        return None
    try:
        drawn = random_portfolios(windows, settings, seed=seed)
    except (
        BacktestError
    ):  # nothing can be bought at the window's beginning: a statement less, not a backtest less
        return None
    counts, edges = np.histogram(drawn.cumulative_return, bins=40)
    return drawn.to_json() | {
        "share_above": drawn.share_above(
            result.metrics["cumulative_return"], result.metrics["sharpe"]
        ),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


def _optimistic(settings: EnvSettings) -> list[str]:
    """What the trading convention takes for granted, in words that complete "with ..."."""
    found = []
    if settings.fill == "close":
        found.append("orders filled at the very close they were decided at")
    if settings.cost_bps == 0 and settings.half_spread_bps == 0 and not settings.half_spread_bps_of:
        found.append("trading free of costs")
    if settings.participation == "none":
        found.append("orders of any size filled whatever the volume")
    return found


def _implausible(report: Mapping[str, Any], windows: Sequence[MarketTensors] | None) -> list[str]:
    """Real markets do not pay this much; a made-up one may."""
    alpha = report["evidence"]["alpha"]
    made_up = windows is not None and any(window.meta.get("planted") for window in windows)
    if made_up or alpha is None or alpha["ratio"] < IMPLAUSIBLE:
        return []
    return [
        f"an information ratio of {ratio(alpha['ratio'])}, for which a leak is the likelier reason"
        " (see `lookahead`)"
    ]


# --- what is said ---------------------------------------------------------------------------------


def _likely(report: Mapping[str, Any]) -> bool:
    """Whether the held-out window shows, at its level, a strategy ahead of its benchmark by more
    than its beta."""
    found = report["evidence"]
    alpha = found["alpha"]
    if report["window"] != HELD_OUT or report["seen"]:
        return False
    if report["ruined"] or not report["traded"] or alpha is None:
        return False
    return bool(
        alpha["p_value"] <= found["level"] and found["active_return"] > 0 and not report["caveats"]
    )


def sentences(report: Mapping[str, Any]) -> list[str]:
    """The verdict: what was found, what this window can see, and what would change it."""
    if (why := _why_no_verdict(report)) is not None:
        return [why]
    if report["ruined"]:
        return ["Went bankrupt: the account was closed inside the window."]
    if not report["traded"]:
        return ["Never traded: there is nothing to judge."]
    found = report["evidence"]
    alpha = report["evidence"]["alpha"]
    rival = found["against"].replace("_", " ")
    if alpha is None and report["sessions"] < ev.SHORTEST:
        least = f"a test needs {ev.SHORTEST} and says little before {ev.FEW}"
        return [f"Too short to tell: {count(report['sessions'])} sessions; {least}."]
    if alpha is None and abs(found["active_return"]) > UNVARIED:
        return [f"Nothing to judge: beyond its beta to {rival}, what it earned never varied."]
    if alpha is None:
        return [f"Holds its benchmark: nothing that {rival} does not do is left to be judged."]
    return [_finding(report, rival), _power(alpha), *_would_change(report)]


def _why_no_verdict(report: Mapping[str, Any]) -> str | None:
    """The one sentence of a window that says nothing about skill; None of any other."""
    nothing = "nothing about skill can be concluded from"
    if report["window"] in NO_VERDICT:
        called, use = NO_VERDICT[report["window"]]
        what = f"this is the {called} window"
        if len(report["holds"]) > 1:
            what = f"some of these bars are the {called} window's"
        return f"No verdict: {what}, and {nothing} bars that policies {use}."
    if report["seen"]:
        what = "the policy was trained or chosen on some of these bars"
        return f"No verdict: {what}, and {nothing} them."
    return None


def _finding(report: Mapping[str, Any], rival: str) -> str:
    found = report["evidence"]
    alpha = report["evidence"]["alpha"]
    passes = alpha["p_value"] <= found["level"]
    ahead = found["active_return"] > 0
    scale, over = span(alpha["sessions"], report["sessions_a_year"])
    active, excess = (
        percent(abs(value) * scale) for value in (found["active_return"], alpha["alpha"])
    )
    where = f"{'ahead of' if ahead else 'behind'} {rival} by {active} {over}"
    hedged = (
        f"{'+' if alpha['alpha'] > 0 else '-'}{excess} once its beta of {ratio(alpha['beta'])} is"
        " hedged"
    )
    trials = report["selection"]["trials"]
    chosen = (
        f"the choice of {count(trials)} trial{'s' if trials > 1 else ''}"
        if trials
        else "of an unknown number of trials"
    )
    look = found["look"]
    nth = "looks not counted" if look is None else f"{_ordinal(look)} look at this window"
    tested = f"{p_equals(alpha['p_value'])} at a level of {found['level']:.3g}, {nth}, {chosen}"
    if not passes:
        return f"Not distinguishable from luck: {where}, {hedged} ({tested})."
    if not ahead:
        return f"Less risk, and not ahead: {where}, {hedged} ({tested})."
    if report["caveats"]:
        named = " and with ".join(report["caveats"])
        return f"Cannot be believed as it stands, with {named}: {where}, {hedged} ({tested})."
    return f"Unlikely to be luck: {where}, {hedged} ({tested})."


def _power(alpha: Mapping[str, Any]) -> str:
    sees = (
        f"sees an information ratio of {ratio(alpha['visible'], 1)} or more {percent(ev.POWER, 0)}"
        " of the time"
    )
    return (
        f"A window of {count(alpha['sessions'])} sessions {sees}; measured is"
        f" {ratio(alpha['ratio'], 1)}."
    )


def _would_change(report: Mapping[str, Any]) -> list[str]:
    """What more would tell, and what softens what was said."""
    found = report["evidence"]
    alpha = report["evidence"]["alpha"]
    said = []
    if alpha["p_value"] > found["level"]:
        if alpha["sessions_needed"] is None:
            said.append(
                "More sessions would not help what is behind its beta; another strategy would."
            )
        else:
            more = max(alpha["sessions_needed"] - alpha["sessions"], 1)
            said.append(f"If that is its true size, {count(more)} more sessions would tell.")
        if report["caveats"]:
            said.append(f"And it was traded with {' and with '.join(report['caveats'])}.")
        return said
    more = "looks at these before this one would have lowered its level"
    if found["look"] is not None:
        stricter = f"{ev.level_of_look(found['look'] + 1):.3g}"
        more = f"another look at these is held to a level of {stricter}"
    said.append(f"New sessions would confirm it; {more}.")
    if (shift := found["shift"]) is not None and shift["p_value"] > LEVEL:
        said.append(
            "What it held paid, not when: shifted in time it earned as much"
            f" ({p_equals(shift['p_value'])})."
        )
    if has_equal_null_model(report["selection"]["null_model"]):
        said.append("The same search without information was chosen with as good a score.")
    return said


def describe_search(selection: Mapping[str, Any]) -> str:
    """Say in one or two sentences what the search was; its number of trials is always in them."""
    trials = selection["trials"]
    if not trials:
        return "Chosen from an unknown number of trials."
    sentences = [f"Chosen from {count(trials)} trial{'' if trials == 1 else 's'}"]
    if (sharpe := selection["sharpe"]) is not None and trials > 1:
        hurdle = (
            "where the luckiest of as many without skill is expected to show"
            f" {ratio(sharpe['expected_best'])}"
        )
        sentences[0] += f" with a Sharpe ratio of {ratio(sharpe['sharpe'])} there, {hurdle}"
        sentences[0] += f" (deflated Sharpe {probability(sharpe['deflated'])})"
    if (overfit := selection["overfitting"]) is not None:
        sentences.append(f"Probability of overfitting {probability(overfit['probability'])}")
    if (tested := selection["romano_wolf"]) is not None and trials > 1:
        ahead = f"{count(tested['ahead'])} of {count(tested['trials'])}"
        sentences.append(f"Ahead of the benchmark there, all tested together: {ahead}")
    if has_equal_null_model(selection["null_model"]):
        sentences.append("The same search found as much without information")
    return ". ".join(sentences) + "."


def _ordinal(number: int) -> str:
    words = ("", "first", "second", "third")
    if number < len(words):
        return words[number]
    ending = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
