"""Factor regression: daily returns of a strategy on factors of its own universe.

The factors are built from the symbols of the market, so they are not those of Fama and French:
`market` is the mean return of the members; each other factor is the mean return of the
highest-ranked third of them less that of the lowest-ranked third, ranked at the previous session's
close. No factor pays costs. The first LOOKBACK sessions have no ranking and are left out.
"""

from __future__ import annotations

import numpy as np

from fintrader import metrics as m
from fintrader.market.tensors import Markets, MarketTensors
from fintrader.metrics import Array, Flags
from fintrader.numerals import is_short
from fintrader.results.analysis import FactorBeta, FactorFit

LOOKBACK = 20
"""Sessions that rankings look back over: a month."""
FEWEST_SESSIONS = 30
"""Fewest sessions for a meaningful regression on five factors."""
FEWEST_SYMBOLS = 6
"""Fewest symbols that are ranked, so that a third is at least two."""
FACTORS = {
    "market": "mean return of the members",
    "momentum": f"highest less lowest return of the last {LOOKBACK} sessions",
    "reversal": "lowest less highest return of the last 5 sessions",
    "volatility": f"highest less lowest volatility of the last {LOOKBACK} sessions",
    "size": f"smallest less largest traded value of the last {LOOKBACK} sessions",
}


def factor_returns(markets: Markets) -> Array:
    """Compute daily returns `[S, K]` of FACTORS over the windows, one after another; NaN before the
    first ranking."""
    returns, value, member = (
        np.concatenate(parts) for parts in zip(*map(_aggregate_by_session, markets), strict=True)
    )
    sessions = len(returns)
    table = np.full((sessions, len(FACTORS)), np.nan)
    for s in range(sessions):
        here = member[s] & np.isfinite(returns[s])
        if here.any():
            table[s, 0] = returns[s, here].mean()
        if s < LOOKBACK:
            continue
        past = returns[s - LOOKBACK : s]
        ranked_by = (
            np.log1p(past).sum(axis=0),
            -np.log1p(past[-5:]).sum(axis=0),
            past.std(axis=0),
            -value[s - LOOKBACK : s].mean(axis=0),
        )
        for k, score in enumerate(ranked_by, start=1):
            table[s, k] = _spread(returns[s], score, here)
    return table


def _spread(returns: Array, score: Array, here: Flags) -> float:
    """Subtract the mean return of the lowest third from that of the highest; NaN below
    FEWEST_SYMBOLS."""
    known = np.flatnonzero(here & np.isfinite(score))
    if known.size < FEWEST_SYMBOLS:
        return float("nan")
    ranked = known[np.argsort(score[known], kind="stable")]
    third = ranked.size // 3
    return float(returns[ranked[-third:]].mean() - returns[ranked[:third]].mean())


def _aggregate_by_session(market: MarketTensors) -> tuple[Array, Array, Flags]:
    """Compute returns by session (the first against the window's first bar), traded value in USD
    and membership, `[S, N]` each."""
    starts = market.session_starts
    close = market.to_numpy("adjusted_close")
    levels = close[np.append(0, market.session_ends)]
    with np.errstate(invalid="ignore", divide="ignore"):
        returns = levels[1:] / levels[:-1] - 1
    traded = np.nan_to_num(market.to_numpy("volume") * market.to_numpy("close")).astype(np.float64)
    return returns, np.add.reduceat(traded, starts, axis=0), market.to_numpy("member")[starts]


def fit_factors(
    daily: Array, factors: Array, sessions_a_year: int = m.TRADING_DAYS
) -> FactorFit | None:
    """Regress daily returns `[S]` on the known factors `[S, K]` by least squares, with Newey-West
    errors.

    None if fewer than FEWEST_SESSIONS have all factors, or returns or factors never vary.
    """
    usable = [
        k for k in range(factors.shape[1]) if np.isfinite(factors[:, k]).sum() >= FEWEST_SESSIONS
    ]
    rows = (
        np.isfinite(factors[:, usable]).all(axis=1) if usable else np.zeros(len(daily), dtype=bool)
    )
    y = daily[rows]
    size = len(y)
    if size < FEWEST_SESSIONS or y.max() == y.min():
        return None
    x = factors[rows][:, usable]
    moving = x.std(axis=0) > 0
    if not moving.any():
        return None
    usable = [k for k, moves in zip(usable, moving, strict=True) if moves]
    x = x[:, moving]
    design = np.column_stack([np.ones(size), x])
    bread = np.linalg.pinv(design.T @ design)
    beta = bread @ design.T @ y
    residual = y - design @ beta
    errors = np.sqrt(np.diag(bread @ _estimate_long_run(design * residual[:, None]) @ bread))
    names = list(FACTORS)
    ratios = m.divide(beta, errors)
    return FactorFit(
        sessions=size,
        alpha=None if is_short(size, sessions_a_year) else float(beta[0]) * sessions_a_year,
        alpha_t=float(ratios[0]),
        r_squared=1 - float(residual @ residual / np.square(y - y.mean()).sum()),
        betas=tuple(
            FactorBeta(names[k], float(beta[j]), float(ratios[j]), FACTORS[names[k]])
            for j, k in enumerate(usable, start=1)
        ),
    )


def _estimate_long_run(moments: Array) -> Array:
    """Estimate the long-run covariance (Newey and West, 1987), with ⌊4 (S/100)^(2/9)⌋ lags."""
    lags = int(4 * (len(moments) / 100) ** (2 / 9))
    total: Array = moments.T @ moments
    for lag in range(1, lags + 1):
        cross = moments[lag:].T @ moments[:-lag]
        total = total + (1 - lag / (lags + 1)) * (cross + cross.T)
    return total
