"""What the search says of itself, on the window it chose by: how good the best of so many looks
when none is good.

A diagnosis of the search and no verdict on what it found: that comes from the window it did not see
(`evidence`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fintrader.metrics import TRADING_DAYS
from fintrader.results.formatting import count, probability, ratio
from fintrader.verdict import sharpe as sig
from fintrader.verdict.bootstrap import romano_wolf

Array = NDArray[np.float64]
TrialReturns: TypeAlias = "Array | Sequence[Array]"
"""`[S, M]` of one selection window, or a list of them."""
FEW_SESSIONS = 8
DECIDES = 0.05


def diagnose(
    trials: int | None,
    returns: TrialReturns | None,
    active: TrialReturns | None,
    null_model: Mapping[str, Any] | None,
    seed: int,
    sessions_a_year: int = TRADING_DAYS,
) -> dict[str, Any]:
    """Plain JSON; what is not known is None.

    `trials`: how many strategies were tried. `returns`, `active`: `[S, M]`, daily returns of those
    that were scored, and the same less the benchmark portfolio's, on the window they were chosen
    by; of a walk-forward one a fold. `null_model`: what the same search found without information.
    """
    windows = _windows(returns)
    found: dict[str, Any] = {
        "trials": trials,
        "sharpe": _deflated(trials, windows, sessions_a_year),
        "overfitting": _overfitting(windows),
        "romano_wolf": _romano_wolf(_windows(active), seed),
        "null_model": None if null_model is None else dict(null_model),
    }
    return found | {"sentence": _sentence(found)}


def _windows(given: TrialReturns | None) -> list[Array]:
    """The return matrices of every selection window."""
    matrices = [given] if isinstance(given, np.ndarray) else given or []
    return [
        matrix
        for matrix in matrices
        if matrix.ndim == 2 and matrix.shape[0] > 2 and matrix.shape[1]
    ]


def _deflated(
    trials: int | None, windows: Sequence[Array], sessions_a_year: int
) -> dict[str, Any] | None:
    """The chosen trial's Sharpe ratio over its selection window, held against the best that luck
    shows there.

    Over several windows the chosen trials' returns stand one after another, and so do the hurdles:
    their mean. Sharpe ratios are annualised here, probabilities are not.
    """
    chosen = [matrix[:, int(sig.trial_sharpes(matrix).argmax())] for matrix in windows]
    sample = sig.SharpeSample.of(np.concatenate(chosen)) if chosen else None
    if sample is None or not trials:
        return None
    year = math.sqrt(sessions_a_year)
    each = max(trials / len(windows), 1.0)
    hurdles = []
    effective = []
    spreads = []
    known = []
    alike = []
    for matrix in windows:
        # Trials that are alike share their luck: it does not show in their variance, yet it lifts
        # the best of them. Knowing the trials therefore never lowers the hurdle below that of a
        # search of which nothing is known.
        least = sig.sampling_variance(len(matrix))
        measured = sig.sharpe_variance(matrix)
        correlation = sig.mean_correlation(matrix)
        variance = max(least, measured)
        hurdles.append(sig.expected_best_sharpe(each, variance))
        effective.append(sig.effective_trials(each, correlation))
        spreads.append(variance)
        known.append(measured >= least)
        alike.append(correlation)
    fewer = [
        sig.expected_best_sharpe(count, variance)
        for count, variance in zip(effective, spreads, strict=True)
    ]
    hurdle = float(np.mean(hurdles))
    easier = float(np.mean(fewer))
    return {
        "sharpe": sample.sharpe * year,
        "probabilistic": sig.probabilistic_sharpe(sample),
        "deflated": sig.probabilistic_sharpe(sample, hurdle),
        "expected_best": hurdle * year,
        "trial_variance": float(np.mean(spreads)) * sessions_a_year,
        "trial_variance_source": (
            "among the trials" if all(known) else "1/(S - 1): the trials differ by less"
        ),
        "trial_correlation": float(np.mean(alike)),
        "effective_trials": float(np.sum(effective)),
        "deflated_effective": sig.probabilistic_sharpe(sample, easier),
        "expected_best_effective": easier * year,
    }


def _overfitting(windows: Sequence[Array]) -> dict[str, Any] | None:
    """PBO over the selection window, with as many blocks as it has room for (at most 16).

    Of several windows each has its own cross-validation; the numbers are their means, the logits
    stand together.
    """
    cut = [
        (values, min(16, values.shape[0] // 2 // 2 * 2))
        for values in windows
        if values.shape[1] > 1
    ]
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


def _romano_wolf(windows: Sequence[Array], seed: int) -> dict[str, Any] | None:
    """How many trials are ahead of the benchmark where they were chosen, once all of them are
    tested together."""
    tested = [romano_wolf(matrix, seed=seed) for matrix in windows if len(matrix) >= FEW_SESSIONS]
    if not tested:
        return None
    every = np.concatenate(tested)
    return {
        "ahead": int((every <= DECIDES).sum()),
        "trials": int(every.size),
        "best_p_value": float(every.min()),
    }


def null_model_did_as_well(null_model: Mapping[str, Any] | None) -> bool:
    """Whether the search without information selected something that looked as good as the true
    search's best."""
    if null_model is None:
        return False
    free = null_model.get("best_selection_score")
    real = null_model.get("real_best_selection_score")
    return free is not None and real is not None and bool(free >= real)


def _sentence(found: Mapping[str, Any]) -> str:
    """The search in one or two sentences, its number of trials always in them."""
    trials = found["trials"]
    if not trials:
        return "Chosen from an unknown number of trials."
    said = [f"Chosen from {count(trials)} trial{'' if trials == 1 else 's'}"]
    if (sharpe := found["sharpe"]) is not None and trials > 1:
        hurdle = (
            "where the luckiest of as many without skill is expected to show"
            f" {ratio(sharpe['expected_best'])}"
        )
        said[0] += f" with a Sharpe ratio of {ratio(sharpe['sharpe'])} there, {hurdle}"
        said[0] += f" (deflated Sharpe {probability(sharpe['deflated'])})"
    if (overfit := found["overfitting"]) is not None:
        said.append(f"Probability of overfitting {probability(overfit['probability'])}")
    if (tested := found["romano_wolf"]) is not None and trials > 1:
        ahead = f"{count(tested['ahead'])} of {count(tested['trials'])}"
        said.append(f"Ahead of the benchmark there, all tested together: {ahead}")
    if null_model_did_as_well(found["null_model"]):
        said.append("The same search found as much without information")
    return ". ".join(said) + "."
