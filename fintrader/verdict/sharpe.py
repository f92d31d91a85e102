"""Luck in a Sharpe ratio: probabilistic and deflated Sharpe ratios, track record length,
overfitting.

Sharpe ratios here are per period (not annualised) unless a name says otherwise: the formulas hold
for any period, and annualising is one multiplication by √252 at the end.

Sources: Bailey and López de Prado, "The Sharpe Ratio Efficient Frontier" (2012) [PSR, minimum track
record]; Bailey and López de Prado, "The Deflated Sharpe Ratio" (2014) [expected maximum, DSR,
effective trials]; Lo, "The Statistics of Sharpe Ratios" (2002); Bailey, Borwein, López de Prado and
Zhu, "The Probability of Backtest Overfitting" (2017) [CSCV].

An example. ElegantRL-Podracer (arXiv 2112.05923) reports a Sharpe ratio of 2.20 over one year of
trading. Suppose that it is the best of a tournament of 80 agents:

    >>> year = SharpeSample(2.20 / 252**0.5, periods=252)
    >>> low, high = (round(bound * 252**0.5, 2) for bound in year.interval(0.95))
    >>> print(f"95 % interval: {low} to {high}")
    95 % interval: 0.23 to 4.17
    >>> round(probabilistic_sharpe(year), 3)  # P(true Sharpe ratio > 0), if it were the only trial
    0.986
    >>> luck = 1 / 252  # variance of a daily Sharpe ratio over a year without skill
    >>> round(expected_best_sharpe(80, luck) * 252**0.5, 2)  # the best of 80 by luck alone
    2.45
    >>> round(deflated_sharpe(year, 80, luck), 2)  # P(true Sharpe ratio > that)
    0.4

The best of 80 agents without any skill is expected to look better than the published result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fintrader.errors import BacktestError
from fintrader.metrics import Array, divide, drop_missing, kurtosis, skew, standard_deviation

EULER = 0.5772156649015329
"""The Euler-Mascheroni constant γ."""


@dataclass(frozen=True)
class SharpeSample:
    """A Sharpe ratio per period, and the moments that its sampling error depends on."""

    sharpe: float
    periods: int
    """T."""
    skew: float = 0.0
    """γ₃."""
    kurtosis: float = 3.0
    """γ₄, 3 for a normal distribution (not the excess)."""

    @classmethod
    def of(cls, returns: ArrayLike) -> SharpeSample | None:
        """Measure a return series; None below three values or without dispersion."""
        values = drop_missing(returns)
        spread = standard_deviation(values)
        third = skew(values)
        fourth = kurtosis(values)
        if values.size < 3 or not spread > 0 or third is None or fourth is None:
            return None
        return cls(float(values.mean()) / spread, int(values.size), third, fourth + 3)

    @property
    def standard_error(self) -> float:
        """`√((1 − γ₃ SR + (γ₄ − 1)/4 · SR²) / (T − 1))` (Mertens 2002; with a normal sample, Lo
        2002)."""
        variance = 1 - self.skew * self.sharpe + (self.kurtosis - 1) / 4 * self.sharpe**2
        return math.sqrt(max(variance, 1e-12) / (self.periods - 1))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Compute the two-sided interval of the Sharpe ratio per period, by normal
        approximation."""
        reach = float(stats.norm.ppf(0.5 + level / 2)) * self.standard_error
        return self.sharpe - reach, self.sharpe + reach


def probabilistic_sharpe(sample: SharpeSample, threshold: float = 0.0) -> float:
    """PSR: probability that the true Sharpe ratio exceeds `threshold` (both per period).

    PSR(SR*) = Φ((SR − SR*) √(T − 1) / √(1 − γ₃ SR + (γ₄ − 1)/4 · SR²))        (2012, eq. 11)
    """
    return float(stats.norm.cdf((sample.sharpe - threshold) / sample.standard_error))


def sampling_variance(periods: int) -> float:
    """1/(T − 1): variance of a Sharpe ratio per period over T periods when there is no skill (Lo
    2002, at SR = 0).

    The least V that a verdict uses. Correlated trials share some of their luck, so the variance
    among them is too small for the expected maximum, which assumes independent trials.
    """
    return 1 / (periods - 1)


def expected_best_sharpe(trials: float, variance: float) -> float:
    """SR₀: the Sharpe ratio that the best of N trials without skill is expected to show.

        SR₀ = √V ((1 − γ) Φ⁻¹(1 − 1/N) + γ Φ⁻¹(1 − 1/(N e)))        (2014, eq. 1)

    `variance` V is that of the trials' Sharpe ratios, in the same period as the answer. 0 for a
    single trial.
    """
    if trials <= 1:
        return 0.0
    first, second = (float(stats.norm.ppf(1 - 1 / count)) for count in (trials, trials * math.e))
    best: float = math.sqrt(variance) * ((1 - EULER) * first + EULER * second)
    return max(0.0, best)


def deflated_sharpe(sample: SharpeSample, trials: float, variance: float) -> float:
    """DSR: the PSR against SR₀, the best that `trials` trials without skill would have shown (2014,
    eq. 2)."""
    return probabilistic_sharpe(sample, expected_best_sharpe(trials, variance))


def minimum_track_record(sample: SharpeSample, threshold: float = 0.0) -> float | None:
    """Count the periods needed for PSR(threshold) to reach 95 %; None unless SR exceeds the
    threshold.

    MinTRL = 1 + (1 − γ₃ SR + (γ₄ − 1)/4 · SR²) (Φ⁻¹(1 − α) / (SR − SR*))²        (2012, eq. 13)
    """
    if sample.sharpe <= threshold:
        return None
    variance = sample.standard_error**2 * (sample.periods - 1)
    return 1 + variance * (float(stats.norm.ppf(0.95)) / (sample.sharpe - threshold)) ** 2


def trial_sharpes(values: Array) -> Array:
    """Compute the Sharpe ratio per period of each column of returns `[T, N]`; 0 for a constant
    column, which never traded."""
    if values.ndim != 2 or values.shape[0] < 2:
        raise BacktestError(
            f"trial returns have shape {values.shape}; expected (periods >= 2, trials)"
        )
    if not np.isfinite(values).all():
        raise BacktestError(
            "trial returns hold NaN or infinity; give every trial a return for every period"
        )
    spread = values.std(axis=0, ddof=1)
    flat = values.max(axis=0) == values.min(axis=0)
    return np.where(flat, 0.0, values.mean(axis=0) / np.where(flat, 1.0, spread))


def sharpe_variance(returns: Array) -> float:
    """V: sample variance of the trials' Sharpe ratios per period; 0 for a single trial."""
    ratios = trial_sharpes(returns)
    return float(ratios.var(ddof=1)) if ratios.size > 1 else 0.0


def mean_correlation(values: Array) -> float:
    """ρ̂: mean correlation between the returns `[T, N]` of different trials; flat columns count as
    uncorrelated. In [0, 1]."""
    count = values.shape[1]
    if count < 2:
        return 0.0
    centred = values - values.mean(axis=0)
    length = np.sqrt(np.square(centred).sum(axis=0))
    unit = divide(centred, length)
    # Σ_ij u_i·u_j = |Σ_i u_i|², less the diagonal.
    total = float(np.square(unit.sum(axis=1)).sum()) - float((length > 0).sum())
    return float(min(1.0, max(0.0, total / (count * (count - 1)))))


def effective_trials(trials: float, correlation: float) -> float:
    """N̂ = ρ̂ + (1 − ρ̂) M: independent trials worth as much as M trials of mean correlation ρ̂
    (2014, eq. 9)."""
    return correlation + (1 - correlation) * trials


@dataclass(frozen=True)
class Overfitting:
    """The result of combinatorially symmetric cross-validation."""

    probability: float
    """PBO: share of splits in which the best trial in-sample ranks in the lower half
    out-of-sample."""
    logits: Array
    """`[splits]`: ln(ω / (1 − ω)) of the in-sample best's relative rank out-of-sample; PBO is the
    share <= 0."""
    loss_probability: float
    """Share of splits in which the in-sample best loses money (Sharpe below 0) out-of-sample."""
    slope: float | None
    """Slope of the out-of-sample on the in-sample Sharpe ratio of the in-sample best; negative
    where it degrades."""
    blocks: int
    trials: int


def backtest_overfitting(values: Array, blocks: int) -> Overfitting:
    """Estimate the probability of backtest overfitting by CSCV from returns `[T, N]` (2017, section
    3).

    Time is cut into `blocks` equal pieces (the first T mod blocks periods are dropped); every half
    of them selects the best trial by Sharpe ratio, and the other half ranks it. Only the pieces'
    moments are combined, so the cost hardly depends on T. Raises BacktestError below two trials or
    two periods a block.
    """
    if blocks < 2 or blocks % 2:
        raise BacktestError(f"blocks must be even and at least 2, got {blocks}")
    if values.ndim != 2 or values.shape[1] < 2 or values.shape[0] < 2 * blocks:
        raise BacktestError(
            f"returns {values.shape} are too few; give at least 2 trials and {2 * blocks} periods"
        )
    trials = values.shape[1]
    size = values.shape[0] // blocks
    kept = values[-size * blocks :]
    # Sharpe ratios do not change with scale; moments about the mean keep their digits.
    mean = kept.mean(axis=0)
    pieces = (kept - mean).reshape(blocks, size, trials)
    first = pieces.sum(axis=1)
    second = np.einsum("bst,bst->bt", pieces, pieces)
    chosen = np.array(list(combinations(range(blocks), blocks // 2)))
    inside = np.zeros((len(chosen), blocks))
    np.put_along_axis(inside, chosen, 1.0, axis=1)
    count = size * blocks // 2
    in_sample = _sharpe_of_moments(inside @ first, inside @ second, count, mean)
    out_sample = _sharpe_of_moments((1 - inside) @ first, (1 - inside) @ second, count, mean)
    best = in_sample.argmax(axis=1)
    rows = np.arange(len(chosen))
    best_outside = out_sample[rows, best]
    # Relative rank in (0, 1); ties share a rank.
    below = (out_sample < best_outside[:, None]).sum(axis=1)
    equal = (out_sample == best_outside[:, None]).sum(axis=1)
    rank = (below + (equal + 1) / 2) / (trials + 1)
    logits = np.log(rank / (1 - rank))
    best_inside = in_sample[rows, best]
    varies = np.ptp(best_inside) > 0
    return Overfitting(
        probability=float((logits <= 0).mean()),
        logits=logits,
        loss_probability=float((best_outside < 0).mean()),
        slope=float(np.polyfit(best_inside, best_outside, 1)[0]) if varies else None,
        blocks=blocks,
        trials=trials,
    )


def _sharpe_of_moments(first: Array, second: Array, count: int, shift: Array) -> Array:
    """Compute the Sharpe ratio from Σ(r − shift), Σ(r − shift)², n; 0 without dispersion."""
    offset = first / count
    variance = np.maximum(second / count - np.square(offset), 0.0) * count / (count - 1)
    flat = variance <= 1e-30
    return np.where(flat, 0.0, (offset + shift) / np.sqrt(np.where(flat, 1.0, variance)))
