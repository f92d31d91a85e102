"""Statistics of trials on the window they were chosen on, against the best score by luck alone.

They diagnose the search. The verdict on its result comes from the held-out window, which the
search did not see (`verdict.alpha`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fintrader.metrics import TRADING_DAYS, Array
from fintrader.verdict import sharpe as sig
from fintrader.verdict.bootstrap import romano_wolf
from fintrader.verdict.verdict import (
    Histogram,
    NullSearch,
    OverfittingEstimate,
    SelectedSharpe,
    Selection,
    StepdownCount,
    WindowOverfitting,
)

TrialReturns: TypeAlias = "Array | Sequence[Array]"
"""`[S, M]` of one selection window, or a list of them."""
FEW_SESSIONS = 8
"""Sessions below which nothing can be resampled."""
AHEAD_LEVEL = 0.05
"""Level at which a trial counts as ahead of the benchmark."""


class SearchRecord(NamedTuple):
    """Trials on the window that the search chose on; a walk-forward has a list with one matrix for
    each fold, because each fold selects among its own trials."""

    returns: TrialReturns | None = None
    """Daily returns of the trials that were scored."""
    active: TrialReturns | None = None
    """Their returns less the benchmark portfolio's."""
    null_model: NullSearch | None = None
    """Best scores of the same search on information-free and on true features."""


UNKNOWN_SEARCH = SearchRecord()


def diagnose(
    trials: int | None, search: SearchRecord, seed: int, sessions_a_year: int = TRADING_DAYS
) -> Selection:
    """Measure a search, whose number of `trials` may be unknown."""
    windows = _list_windows(search.returns)
    return Selection(
        trials=trials,
        sharpe=_deflate(trials, windows, sessions_a_year),
        overfitting=_estimate_overfitting(windows),
        romano_wolf=_count_ahead(_list_windows(search.active), seed),
        null_model=search.null_model,
    )


def _list_windows(returns: TrialReturns | None) -> list[Array]:
    """Return the matrices of every selection window that has enough rows."""
    matrices = [returns] if isinstance(returns, np.ndarray) else returns or []
    return [
        matrix
        for matrix in matrices
        if matrix.ndim == 2 and matrix.shape[0] > 2 and matrix.shape[1]
    ]


def _deflate(
    trials: int | None, windows: Sequence[Array], sessions_a_year: int
) -> SelectedSharpe | None:
    """Compare the chosen trial's Sharpe ratio over its selection window with the best by luck.

    With several windows the chosen trials' returns are joined, and the hurdle is the mean of the
    windows' hurdles. Sharpe ratios are annualised here, probabilities are not.
    """
    chosen = [matrix[:, int(sig.trial_sharpes(matrix).argmax())] for matrix in windows]
    sample = sig.SharpeSample.of(np.concatenate(chosen)) if chosen else None
    if sample is None or not trials:
        return None
    year = math.sqrt(sessions_a_year)
    each = max(trials / len(windows), 1.0)
    # Correlated trials share luck, which lifts the best of them but not their variance. So the
    # variance is at least that of the sampling error.
    least = np.array([sig.sampling_variance(len(matrix)) for matrix in windows])
    measured = np.array([sig.sharpe_variance(matrix) for matrix in windows])
    variances = np.maximum(least, measured).tolist()
    alike = [sig.mean_correlation(matrix) for matrix in windows]
    effective = [sig.effective_trials(each, correlation) for correlation in alike]
    hurdle = float(np.mean([sig.expected_best_sharpe(each, variance) for variance in variances]))
    easier = float(np.mean(list(map(sig.expected_best_sharpe, effective, variances))))
    return SelectedSharpe(
        sharpe=sample.sharpe * year,
        probabilistic=sig.probabilistic_sharpe(sample),
        deflated=sig.probabilistic_sharpe(sample, hurdle),
        expected_best=hurdle * year,
        trial_variance=float(np.mean(variances)) * sessions_a_year,
        trial_variance_source=(
            "among the trials"
            if (measured >= least).all()
            else f"raised to 1/(S - 1) in {(measured < least).sum()} of {len(windows)} windows"
        ),
        trial_correlation=float(np.mean(alike)),
        effective_trials=float(np.sum(effective)),
        deflated_effective=sig.probabilistic_sharpe(sample, easier),
        expected_best_effective=easier * year,
    )


def _estimate_overfitting(windows: Sequence[Array]) -> OverfittingEstimate | None:
    """Estimate the probability of backtest overfitting (PBO), with at most 16 blocks.

    Each of several windows has its own cross-validation; the numbers are means over the windows,
    the logits are pooled.
    """
    cut = [
        (values, min(16, values.shape[0] // 2 // 2 * 2))
        for values in windows
        if values.shape[1] > 1
    ]
    measured = [sig.backtest_overfitting(values, blocks) for values, blocks in cut if blocks >= 4]
    if not measured:
        return None
    slopes = [window.slope for window in measured if window.slope is not None]
    counts, edges = np.histogram(np.concatenate([window.logits for window in measured]), bins=20)
    return OverfittingEstimate(
        probability=float(np.mean([window.probability for window in measured])),
        loss_probability=float(np.mean([window.loss_probability for window in measured])),
        slope=float(np.mean(slopes)) if slopes else None,
        blocks=min(window.blocks for window in measured),
        splits=sum(len(window.logits) for window in measured),
        trials=sum(window.trials for window in measured),
        windows=tuple(WindowOverfitting(window.probability, window.trials) for window in measured),
        logits=Histogram(tuple(counts.tolist()), tuple(edges.tolist())),
    )


def _count_ahead(windows: Sequence[Array], seed: int) -> StepdownCount | None:
    """Count the trials ahead of the benchmark on their selection window, all tested together."""
    tested = [romano_wolf(matrix, seed=seed) for matrix in windows if len(matrix) >= FEW_SESSIONS]
    if not tested:
        return None
    every = np.concatenate(tested)
    return StepdownCount(
        ahead=int((every <= AHEAD_LEVEL).sum()),
        trials=int(every.size),
        best_p_value=float(every.min()),
    )
