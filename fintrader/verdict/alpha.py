"""Tests on the held-out window: is a strategy ahead of its benchmark, beyond its beta and luck?

    test = alpha_test(ours, theirs, level=level_of_look(1), seed=0)
    test.p_value <= test.level             # evidence at the level of this look

The null hypothesis is that alpha, the mean return less beta times the benchmark's, is not above
zero. `benchmarks/calibration.py` measures how often the test errs without skill and how often it
finds skill; docs/evidence.md has the numbers. This module corrects for no selection, because the
search did not see the held-out window.

Sources: Lazarus, Lewis, Stock and Watson, "HAR Inference: Recommendations for Practice" (2018)
[cosine series, fixed-b critical values]; Dimson, "Risk Measurement When Shares Are Subject to
Infrequent Trading" (1979) [past sessions of the benchmark]; Götze and Künsch, "Second-Order
Correctness of the Blockwise Bootstrap" (1996) [studentised blocks]; Harvey and Liu, "False (and
Missed) Discoveries in Financial Economics" (2020) [the power of a test on given data]; Shafer,
"Testing by Betting" (2021), and Waudby-Smith and Ramdas, "Estimating Means of Bounded Random
Variables by Betting" (2024) [e-processes]; Foster and Stine, "Alpha-Investing" (2008) [a level that
is spent].
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import fft, stats

from fintrader.errors import BacktestError
from fintrader.metrics import FEWEST_SESSIONS, TRADING_DAYS, Array
from fintrader.seeding import create_numpy_generator
from fintrader.verdict import LEVEL
from fintrader.verdict.bootstrap import AT_ONCE, block_length
from fintrader.verdict.verdict import AlphaTest, Betting, ShiftTest

POWER = 0.8
"""Usual power of a test, on which `visible` and `sessions_needed` are based."""
SHORTEST = 12
"""Sessions below which there is nothing to test."""
FEW = FEWEST_SESSIONS
"""Sessions below which the bootstrap of a few blocks takes luck for skill too often; Student's t
does not."""
REPEATS = 9_999
"""Bootstrap samples."""
TAIL = 100
"""Tail samples from which to extrapolate smaller p-values, by Student's t."""
SHIFTS = 999
"""Shifts in time: p-values down to 0.001."""
BETS = (0.5, 1.0, 2.0, 3.0)
"""Annual information ratios that the e-process bets on, an equal share of its stake each."""
PAST = (10, 20)
"""Numbers of the benchmark's past sessions in the regression of stale returns: the first up to 250
sessions, the second from 500 on."""
STALE = 0.1
"""Level of the test for stale returns; lenient, because hedging fresh returns too costs little."""
SMOOTH = 0.4
"""Share of the usual frequencies (the rule of Lazarus et al.) for stale returns: smoothing leaves
the spectrum of their noise flat only near 0."""
FIRST_BET = 20
"""Sessions that beta and volatility are estimated from before the first bet."""


def level_of_look(look: int) -> float:
    """Compute the level of the `look`-th look at a window: 6 / (π k)² of `LEVEL`, that is 3 %, 0.8
    %, 0.3 %, 0.2 %, ... The levels sum to `LEVEL`.

    Raises BacktestError below 1.
    """
    if look < 1:
        raise BacktestError(f"look {look}: looks at a window are counted from 1")
    return LEVEL * 6 / (math.pi * look) ** 2


class Hedged(NamedTuple):
    """A strategy's returns less beta times its benchmark's."""

    beta: float
    alpha: float
    """Mean per session."""
    residual: Array
    """`[S]`: returns without alpha and without the benchmark's part; their mean is zero."""
    influence: Array
    """`[S]`: contribution of each session to the error of alpha, the error of beta included; their
    mean is zero."""


def hedge(ours: Array, theirs: Array, past: int = 0) -> Hedged:
    """Regress returns `[S]` on the benchmark's in the same and in the `past` earlier sessions;
    against cash, which does not vary, beta is 0."""
    size = theirs.size
    level = theirs.mean()
    centred = theirs - level
    columns = [np.ones(size)]
    if float(centred @ centred) / size > 1e-20:  # before the first session: 0, the mean
        columns += [np.append(np.zeros(k), centred[: size - k]) for k in range(past + 1)]
    design = np.column_stack(columns)
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ (design.T @ ours)
    residual = ours - design @ fitted
    beta = float(fitted[1:].sum())
    pull = size * (design @ (inverse[0] - level * inverse[1:].sum(axis=0)))
    freedom = math.sqrt(size / max(size - len(columns), 1))
    return Hedged(beta, float(fitted[0] - beta * level), residual, residual * pull * freedom)


def count_past_sessions(ours: Array, theirs: Array) -> int:
    """Count the past sessions of the benchmark to hedge against: none, or up to 20 if the residual
    of returns `[S]` correlates with earlier benchmark returns, as stale prices make it."""
    u = hedge(ours, theirs).residual
    z = theirs - theirs.mean()
    scale = float(u @ u) * float(z @ z)
    past = max(min(PAST[0], u.size // 6), min(PAST[1], u.size // 25))
    if not scale > 1e-30 or past < 1:
        return 0
    products = np.array([u[k:] @ z[: u.size - k] for k in range(1, past + 1)])
    portmanteau = u.size * float(np.square(products).sum()) / scale
    return past if portmanteau > stats.chi2.isf(STALE, past) else 0


def alpha_test(
    ours: Array,
    theirs: Array,
    *,
    level: float = LEVEL,
    seed: int,
    repeats: int = REPEATS,
    sessions_a_year: int = TRADING_DAYS,
) -> AlphaTest | None:
    """Test daily returns `[S]` against the benchmark portfolio's on the same days; None below
    `SHORTEST` sessions, and if the hedged returns do not vary.

    The statistic is alpha over its standard error from the cosine transform's lowest S^(2/3)
    frequencies, which holds for returns that depend on each other in time. Returns that lag the
    benchmark (stale prices, smoothed valuations) are hedged against its past sessions too, with
    `SMOOTH` of the frequencies. The p-value comes from a paired circular block bootstrap of the
    same statistic; below `FEW` sessions from Student's t with as many degrees of freedom as
    frequencies.
    """
    past = count_past_sessions(ours, theirs)
    hedged = hedge(ours, theirs, past)
    size = hedged.residual.size
    deviation = float(np.sqrt((hedged.residual**2).sum() / max(size - 1, 1)))
    if size < SHORTEST or not deviation > 1e-9:
        return None
    waves = _make_cosines(size, SMOOTH if past else 1.0)
    error = float(_estimate_error(hedged.influence[None], waves)[0])
    freedom = waves.shape[1]
    student = stats.t(freedom)
    if size < FEW:
        p_value = float(student.sf(hedged.alpha / error))
        method = f"Student's t, {freedom} degrees of freedom"
        reach = (float(student.isf(level)) + float(student.ppf(POWER))) * error
    else:
        block = max(1, min(round(block_length(hedged.influence)), size // 6))
        means, errors = _resample(hedged.influence, block, waves, repeats, seed)
        drawn = means / errors
        p_value = _share_above(drawn, hedged.alpha / error, student)
        # Harvey and Liu: the smallest true alpha that, added to samples without alpha, lets enough
        # of them pass.
        reach = float(np.quantile(np.quantile(drawn, 1 - level) * errors - means, POWER))
        method = f"studentised block bootstrap, blocks of {block}, {repeats:,} samples"
    margin = float(student.ppf(0.975)) * error
    scale = sessions_a_year / (deviation * math.sqrt(sessions_a_year))
    ratio = hedged.alpha * scale
    visible = reach * scale
    needed = math.ceil(size * (visible / ratio) ** 2) if ratio > 0 else None
    low, high = (sessions_a_year * (hedged.alpha + side * margin) for side in (-1, 1))
    alpha = sessions_a_year * hedged.alpha
    return AlphaTest(
        size, hedged.beta, alpha, low, high, ratio, p_value, level, visible, needed, method, past
    )


def _share_above(drawn: Array, reached: float, student: Any) -> float:
    """Compute the share of the drawn statistics `[R]` at or above `reached`; beyond the `TAIL`
    largest, extrapolated by Student's t, so that p-values below 1/(1 + R) are possible."""
    above = int((drawn >= reached).sum())
    if above >= TAIL or drawn.size <= TAIL:
        return (1 + above) / (1 + drawn.size)
    edge = float(np.partition(drawn, -TAIL)[-TAIL])
    decline = float(np.exp(student.logsf(reached) - student.logsf(edge)))
    return (1 + TAIL) / (1 + drawn.size) * decline


def _make_cosines(size: int, part: float) -> Array:
    """Make the lowest K cosines `[S, K]`, each of mean 0 and length 1, K = part · S^(2/3)."""
    count = max(4, int(part * size ** (2 / 3)))
    steps = (np.arange(size) + 0.5) / size
    return math.sqrt(2 / size) * np.cos(np.pi * np.outer(steps, np.arange(1, count + 1)))


def _estimate_error(samples: Array, waves: Array) -> Array:
    """Estimate standard errors `[R]` of the means of rows `[R, S]`; the rows need no centring,
    because the cosines' mean is 0."""
    error: Array = np.sqrt(np.square(samples @ waves).mean(axis=1) / samples.shape[1])
    return np.maximum(error, 1e-15)


def _resample(
    values: Array, block: int, waves: Array, repeats: int, seed: int
) -> tuple[Array, Array]:
    """Draw samples from circular blocks; return their means and standard errors, `[R]` each."""
    rng = create_numpy_generator(seed, "alpha")
    size = values.size
    pieces = -(-size // block)
    means = []
    errors = []
    at_once = max(1, AT_ONCE // size)
    for first in range(0, repeats, at_once):
        starts = rng.integers(0, size, (min(at_once, repeats - first), pieces, 1))
        samples = values[(starts + np.arange(block)).reshape(len(starts), -1)[:, :size] % size]
        means.append(samples.mean(axis=1))
        errors.append(_estimate_error(samples, waves))
    return np.concatenate(means), np.concatenate(errors)


def shift_test(pairs: Iterable[tuple[Array, Array]], *, seed: int) -> ShiftTest | None:
    """Shift a strategy's active weights in time, against fixed returns, and count how often they
    earn as much.

    `pairs`: for each asset its weight at the close of a bar `[T]` less beta times the benchmark's,
    and its return over the next bar. One correlation per asset gives all circular shifts, of which
    `SHIFTS` are drawn. A constant tilt earns the same in every shift and has a p-value near one:
    the test sees timing, not the choice of symbols. None if no weight differs from the benchmark's,
    and below three bars.
    """
    total: Array | None = None
    size = 0
    for weight, earned in pairs:
        if not np.any(weight):
            continue
        size = weight.size
        part = np.conj(fft.rfft(weight)) * fft.rfft(earned)
        total = part if total is None else total + part
    if total is None or size < 3:
        return None
    by_shift = fft.irfft(total, n=size)
    rng = create_numpy_generator(seed, "shifts")
    drawn = by_shift[1 + rng.permutation(size - 1)[:SHIFTS]]
    # The transform rounds: values that differ in the last digits only count as equal.
    as_much = int((drawn >= by_shift[0] - 1e-12 * float(np.abs(by_shift).max())).sum())
    return ShiftTest(
        (1 + as_much) / (1 + drawn.size), int(drawn.size), float(by_shift[0]), float(drawn.mean())
    )


def bet(ours: Array, theirs: Array, sessions_a_year: int) -> Betting:
    """Bet on alpha session by session; see `e_process`."""
    wealth = e_process(ours, theirs, sessions_a_year)
    return Betting(float(wealth[-1]), float(wealth.max()), tuple(wealth.tolist()))


def e_process(ours: Array, theirs: Array, sessions_a_year: int = TRADING_DAYS) -> Array:
    """Compute the wealth `[S]` after each session of a bettor on alpha who begins with 1. Wealth
    above 1/α is evidence at level α, at any time.

    In each session the bettor stakes a part on the hedged return, sized for an information ratio of
    each of `BETS`, with beta and volatility estimated from earlier sessions. Without alpha no bet
    gains on average, and by Ville's inequality the wealth ever exceeds 1/α with a probability of at
    most α. A bet that loses more than its stake ends at 0.
    """
    wealth = np.ones(ours.size)
    stakes = np.full(len(BETS), 1 / len(BETS))
    for t in range(ours.size):
        if t >= FIRST_BET:
            past = hedge(ours[:t], theirs[:t])
            deviation = float(np.sqrt((past.residual**2).sum() / (t - 2)))
            if deviation > 1e-9:
                gain = (ours[t] - past.beta * theirs[t]) / deviation
                stakes = stakes * np.maximum(
                    0.0, 1 + np.array(BETS) / math.sqrt(sessions_a_year) * gain
                )
        wealth[t] = stakes.sum()
    return wealth
