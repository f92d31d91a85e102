"""How far a result can be believed, given everything that was tried to get it: one dictionary and one sentence.

The test window was looked at once, but the strategy shown is the survivor of a search. Its Sharpe ratio is
therefore held against SR₀, the best that the same number of trials without skill would have shown, and its return
against what needed no search at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fintrader.backtesting import significance as sig
from fintrader.backtesting.bootstrap import intervals, paired_excess, superiority
from fintrader.backtesting.null_models import random_portfolios
from fintrader.backtesting.result import BacktestResult
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.metrics import TRADING_DAYS, finite
from fintrader.results.formatting import chance, count, is_baseline, is_result, main_strategy, probability

Array = NDArray[np.float64]
YEAR = math.sqrt(TRADING_DAYS)
TrialReturns: TypeAlias = "Array | Sequence[Array]"
"""`[S, M]` of one selection window, or a list of them."""
ENOUGH = 0.95
FEW_SESSIONS = 8


def assess(
    results: Mapping[str, BacktestResult],
    *,
    trials: int | None = None,
    trial_returns: TrialReturns | None = None,
    market: MarketTensors | Sequence[MarketTensors] | None = None,
    settings: EnvSettings | None = None,
    null_model: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything about luck that can be said of `results`, as plain JSON; what is not known is None.

    `trials`: how many strategies were tried to get this one. `trial_returns`: `[S, M]`, their daily returns on the
    window they were selected on. `market`, `settings`: the window, for random portfolios. Of a walk-forward both are
    lists with one entry for each fold, because each fold selects among trials of its own. `null_model`: what the same
    search found on information-free features, as the caller ran it: `metrics` of its winner on the window,
    `best_selection_score`, `real_best_selection_score` (the true search's) and `selection_metric`.
    """
    names = list(results)
    name = main_strategy(names)
    result = results[name]
    daily = result.daily_returns
    selections = _selections(trial_returns)
    bands, block = intervals(daily, seed=seed)
    report: dict[str, Any] = {
        "strategy": name,
        "sessions": len(daily),
        "trials": trials,
        "intervals": {key: asdict(band) for key, band in bands.items()},
        "block_sessions": block,
        "ruined": result.ruined,
        "traded": bool(len(result.trades)),
        "sharpe": _sharpe(daily, trials, selections),
        "overfitting": _overfitting(selections),
        "excess": _excess(results, name, seed),
        "superiority": _superiority(results, seed),
        "random_portfolios": _random(result, market, settings, seed),
        "null_model": None if null_model is None else dict(null_model),
    }
    report["verdict"] = sentence(report)
    report["likely_skill"] = _likely(report)
    return report


def _selections(trial_returns: TrialReturns | None) -> list[Array]:
    """The return matrices of every selection window that had something to choose from."""
    given = [trial_returns] if isinstance(trial_returns, np.ndarray) else trial_returns or []
    return [matrix for matrix in given if matrix.shape[1] > 1]


def _sharpe(daily: Array, trials: int | None, selections: Sequence[Array]) -> dict[str, Any] | None:
    """Probabilistic and deflated Sharpe ratios; Sharpe ratios are annualised here, probabilities are not."""
    sample = sig.SharpeSample.of(daily)
    if sample is None:
        return None
    low, high = sample.interval()
    record: dict[str, Any] = {
        "sharpe": sample.sharpe * YEAR,
        "low": low * YEAR,
        "high": high * YEAR,
        "level": 0.95,
        "skew": sample.skew,
        "kurtosis": sample.kurtosis,
        "probabilistic": sig.probabilistic_sharpe(sample),
        "minimum_track_record_sessions": finite(sig.minimum_track_record(sample) or math.nan),
        "deflated": None,
    }
    if not trials:
        return record
    variance, source, correlation = sig.sampling_variance(sample.periods), "assumed: 1/(T - 1)", None
    if selections:
        # Sampling variance falls with the number of periods: the trials' is scaled to this window's length. Over
        # several windows it is the variance among the trials of one window, which is what each selection saw.
        scaled = [sig.sharpe_variance(values) * max(len(values) - 1, 1) / (sample.periods - 1) for values in selections]
        freedom = [values.shape[1] - 1 for values in selections]
        measured = float(np.average(scaled, weights=freedom))
        correlation = float(np.average([sig.mean_correlation(values) for values in selections], weights=freedom))
        several = f"{len(selections)} selection windows" if len(selections) > 1 else "their selection window"
        source = f"{sum(freedom) + len(freedom)} trials on {several}"
        # Trials that are alike share their luck: it does not show in their variance, yet it lifts the best of them.
        # Knowing the trials therefore never lowers the hurdle below that of a search of which nothing is known.
        if measured < variance:
            source = f"1/(T - 1); {source} differ by less"
        variance = max(measured, variance)
    effective = sig.effective_trials(trials, correlation) if correlation is not None else float(trials)
    record |= {
        "deflated": sig.deflated_sharpe(sample, trials, variance),
        "expected_best": sig.expected_best_sharpe(trials, variance) * YEAR,
        "trial_variance": variance * TRADING_DAYS,
        "trial_variance_source": source,
        "trial_correlation": correlation,
        "effective_trials": effective,
        "deflated_effective": sig.deflated_sharpe(sample, effective, variance),
        "expected_best_effective": sig.expected_best_sharpe(effective, variance) * YEAR,
    }
    return record


def _overfitting(selections: Sequence[Array]) -> dict[str, Any] | None:
    """PBO over the selection window, with as many blocks as it has room for (at most 16).

    Of several windows each has its own cross-validation; the numbers are their means, the logits stand together.
    """
    cut = [(values, min(16, values.shape[0] // 2 // 2 * 2)) for values in selections]
    found = [sig.backtest_overfitting(values, blocks) for values, blocks in cut if blocks >= 4]
    if not found:
        return None
    slopes = [one.slope for one in found if one.slope is not None]
    counts, edges = np.histogram(np.concatenate([one.logits for one in found]), bins=20)
    return {
        "probability": float(np.mean([one.probability for one in found])),
        "loss_probability": float(np.mean([one.loss_probability for one in found])),
        "slope": float(np.mean(slopes)) if slopes else None,
        "blocks": min(one.blocks for one in found),
        "splits": sum(len(one.logits) for one in found),
        "trials": sum(one.trials for one in found),
        "windows": [{"probability": one.probability, "trials": one.trials} for one in found],
        "logit_counts": counts.tolist(),
        "logit_edges": edges.tolist(),
    }


def _baselines(results: Mapping[str, BacktestResult]) -> dict[str, Array]:
    """Daily returns of what needed no search."""
    return {name: result.daily_returns for name, result in results.items() if is_baseline(name)}


def _excess(results: Mapping[str, BacktestResult], name: str, seed: int) -> dict[str, Any]:
    """Paired block bootstrap of the main strategy's excess over every baseline."""
    daily = results[name].daily_returns
    rivals = {other: rival for other, rival in _baselines(results).items() if other != name}
    found = {other: paired_excess(daily, rival, seed=seed) for other, rival in rivals.items()}
    return {other: asdict(excess) for other, excess in found.items() if excess is not None}


def _superiority(results: Mapping[str, BacktestResult], seed: int) -> dict[str, Any]:
    """Reality check and SPA of all results together, against every baseline."""
    ours = [name for name in results if is_result(name)]
    if not ours or len(results[ours[0]].daily_returns) < FEW_SESSIONS:
        return {}
    matrix = np.column_stack([results[name].daily_returns for name in ours])
    tests = {other: superiority(matrix, rival, seed=seed) for other, rival in _baselines(results).items()}
    return {other: {**asdict(test), "strategies": ours} for other, test in tests.items()}


def _random(
    result: BacktestResult,
    market: MarketTensors | Sequence[MarketTensors] | None,
    settings: EnvSettings | None,
    seed: int,
) -> dict[str, Any] | None:
    if market is None or settings is None:
        return None
    try:
        drawn = random_portfolios(market, settings, seed=seed)
    except BacktestError:  # nothing can be bought at the window's beginning: a statement less, not a backtest less
        return None
    counts, edges = np.histogram(drawn.cumulative_return, bins=40)
    return drawn.to_json() | {
        "share_above": drawn.share_above(result.metrics["cumulative_return"], result.metrics["sharpe"]),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


def _likely(report: Mapping[str, Any]) -> bool:
    """Whether the deflated Sharpe ratio passes, overfitting is not the likelier story, and nothing voids the result."""
    ratios, overfit = report["sharpe"], report["overfitting"]
    passes = ratios is not None and ratios["deflated"] is not None and ratios["deflated"] >= ENOUGH
    voided = report["ruined"] or _null_model_did_as_well(report["null_model"])
    return bool(passes and not voided and (overfit is None or overfit["probability"] < 0.5))


def _null_model_did_as_well(null_model: Mapping[str, Any] | None) -> bool:
    """Whether the search without information selected something that looked as good as the true search's best."""
    if null_model is None:
        return False
    free, real = null_model.get("best_selection_score"), null_model.get("real_best_selection_score")
    return free is not None and real is not None and bool(free >= real)


def sentence(report: Mapping[str, Any]) -> str:
    """The verdict: one plain sentence, the number of trials always in it."""
    trials = report["trials"]
    tried = f"{count(trials)} trial{'' if trials == 1 else 's'}" if trials else "an unknown number of trials"
    ratios = report["sharpe"]
    if report["ruined"]:
        return f"Went bankrupt: the account was closed inside the window, after {tried}."
    if not report["traded"]:
        return f"Never traded: there is nothing to judge, after {tried}."
    if report["sessions"] < FEW_SESSIONS or ratios is None:
        return f"Too short to judge: {report['sessions']} sessions, {tried}."
    if ratios["deflated"] is None:
        return f"Cannot be judged: selected from {tried}; probabilistic Sharpe {probability(ratios['probabilistic'])}."
    evidence = f"deflated Sharpe {probability(ratios['deflated'])}, {tried}"
    overfit, rival = report["overfitting"], report["excess"].get("equal_weight")
    if not _likely(report):
        if ratios["sharpe"] <= 0:
            return f"Lost money, and no evidence of skill: {evidence}."
        if ratios["deflated"] >= ENOUGH and _null_model_did_as_well(report["null_model"]):
            return f"Not to be trusted: the same search found as much without information; {evidence}."
        if ratios["deflated"] >= ENOUGH and overfit is not None:
            return (
                f"Likely overfitted: probability {probability(overfit['probability'])} by cross-validation; {evidence}."
            )
        return f"Not distinguishable from luck: {evidence}."
    if rival is not None and rival["p_value"] > 1 - ENOUGH:
        return f"Unlikely to be luck, but not ahead of equal weight (p = {chance(rival['p_value'])}): {evidence}."
    return f"Unlikely to be luck: {evidence}."
