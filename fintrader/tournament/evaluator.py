"""The evaluator: a policy's score on the validation window, and on nothing else.

It is the backtest's own `simulate`, so what the tournament selects by and what the final report shows are one function.
The window's daily returns are cut into equal parts; the score is

    mean over parts of metric(part)  -  spread_penalty x standard deviation over parts
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.backtesting import simulate
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, Policy
from fintrader.errors import ConfigError
from fintrader.progress import Progress
from fintrader.tournament.settings import Metric

Array = NDArray[np.float64]
LEAST_DRAWDOWN = 1e-4
"""A part without a drawdown counts as one with a drawdown of a basis point (`calmar`)."""


@dataclass(frozen=True)
class Evaluation:
    """What the validation window says about a policy."""

    score: float | None
    window_scores: tuple[float | None, ...]
    metrics: dict[str, float | None]
    returns: tuple[float, ...]
    """Daily returns."""


def evaluate(
    policy: Policy,
    validation: MarketTensors,
    env: EnvSettings,
    *,
    metric: Metric = "sharpe",
    windows: int = 1,
    spread_penalty: float = 0.0,
    progress: Progress | None = None,
) -> Evaluation:
    """Trade the validation window once, one account in float64. Raises ConfigError when it is too short."""
    result = simulate(policy, validation, env, name="validation", progress=progress)
    returns = np.asarray(result.daily_returns, dtype=np.float64)
    check_windows(len(returns), metric, windows)
    scores = tuple(score(part, metric) for part in np.array_split(returns, windows))
    known = [value for value in scores if value is not None]
    whole = len(known) == windows  # a part without a score leaves none for the whole
    combined = float(np.mean(known) - spread_penalty * np.std(known)) if whole else None
    return Evaluation(combined, scores, dict(result.metrics), tuple(returns.tolist()))


def check_windows(sessions: int, metric: str, windows: int) -> None:
    """Raises ConfigError unless each part holds enough sessions for the metric."""
    least = 1 if metric == "return" else 2
    if sessions < least * windows:
        raise ConfigError(
            f"tournament.validation_windows: {windows} part(s) of {least} sessions do not fit the validation window's "
            f"{sessions} session(s); lower it, lengthen the window, or set tournament.metric to return"
        )


def score(returns: Array, metric: str) -> float | None:
    """One part's metric, from daily returns `[S]`. Doing nothing scores 0; None where it is undefined.

    `utility` is `mean - variance / 2`, annualised: what an investor of risk aversion 1 would pay for the returns.
    """
    if not returns.any():
        return 0.0
    if metric == "sharpe":
        return m.sharpe(returns)
    if metric == "return":
        return m.cumulative_return(returns)
    if metric == "calmar":
        growth, depth = m.annual_return(returns), m.max_drawdown(returns)
        return None if growth is None or depth is None else growth / max(-depth, LEAST_DRAWDOWN)
    if metric == "utility":
        return float(m.TRADING_DAYS * (returns.mean() - 0.5 * returns.var(ddof=1)))
    raise ConfigError(f"tournament.metric: unknown metric {metric!r}; choose sharpe, return, calmar or utility")
