"""The evaluator: scores a policy on the validation window or on held-out blocks, and on no other
bars.

It uses the backtest's `simulate`, so selection and final report share one function. The daily
returns are cut into equal parts; the score is

    mean over parts of metric(part)  -  standard error of this mean

so that a pod ranks by a lower bound. The score of one part has no error.

In a classic environment the score is the mean undiscounted return of the validation episodes.

The benchmark portfolio (`env.benchmark`) trades the same sessions at the same costs, once per
process. The difference is the policy's active return; the benchmark's own score is on the
leaderboard.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.agents.policy import ActorPolicy
from fintrader.backtesting import BacktestResult, simulate
from fintrader.backtesting.baselines import simulate_benchmark_portfolio
from fintrader.backtesting.walk_forward import stitch
from fintrader.envs import EnvSettings, Policy
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import ConfigError
from fintrader.files import append_jsonl, read_jsonl
from fintrader.market.tensors import MarketTensors
from fintrader.numerals import format_count
from fintrader.progress import SILENT, Progress
from fintrader.results.episode_scores import standard_error
from fintrader.tournament.episodes import play_episodes
from fintrader.tournament.settings import Metric
from fintrader.tournament.spec import EvaluationTerms

Array = NDArray[np.float64]
Part = tuple[Policy, Any]
"""A policy and its validation sessions (`MarketTensors`), or in a classic environment the seeds of
its validation episodes."""
LEAST_DRAWDOWN = 1e-4
"""Smallest drawdown that `calmar` divides by: one basis point."""
LEAST_TRACKING_ERROR = 1e-3
"""Smallest annual tracking error (10 bps) that `information_ratio` divides by. Without it, rounding
would rank policies that hardly leave the benchmark."""
_benchmarks: WeakKeyDictionary[MarketTensors, dict[str, BacktestResult]] = WeakKeyDictionary()
"""Benchmark results by market and settings of the environment, shared by the pods of a process."""


@dataclass(frozen=True)
class Evaluation:
    """A policy's performance on the validation window. Fields as in `PodResult`."""

    score: float | None
    window_scores: tuple[float | None, ...]
    metrics: dict[str, float | None]
    returns: tuple[float, ...]
    active_returns: tuple[float, ...]
    benchmark_score: float | None


def evaluate(
    parts: Sequence[Part],
    env: EnvSettings | GymnasiumSettings,
    terms: EvaluationTerms = EvaluationTerms(),  # noqa: B008 (frozen)
    *,
    progress: Progress = SILENT,
    measures: bool = True,
) -> Evaluation:
    """Trade each part once, in one float64 account, and score the days of all parts together;
    `measures`: compute all other metrics, too. In a classic environment, play the episodes of the
    only part.

    Raises ConfigError when the parts are too short, EnvError for a benchmark that the market cannot
    make.
    """
    if isinstance(env, GymnasiumSettings):
        played = play_episodes(*parts[0], env, progress)
        mean = float(np.mean(played))
        # The returns of episodes take the place of daily returns.
        error = standard_error(played)
        return Evaluation(mean, (mean,), {"standard_error": error}, played, (), None)
    result = _join_blocks(
        [
            simulate(policy, window, env, name="validation", progress=progress)
            for policy, window in parts
        ]
    )
    reference = _join_blocks([_trade_benchmark(window, env, progress) for _, window in parts])
    returns, benchmark = (
        np.asarray(one.daily_returns, dtype=np.float64) for one in (result, reference)
    )
    year = result.sessions_a_year
    check_windows(len(returns), terms.metric, terms.windows, year)
    own, by_part = score_windows(returns, benchmark, terms, year, env.risk_aversion)
    measured = {
        name: None if value is None else float(value)
        for name, value in (result.metrics.by_key() if measures else {}).items()
    }
    if own is not None and terms.windows > 1:
        measured["standard_error"] = standard_error([one for one in by_part if one is not None])
    return Evaluation(
        own,
        by_part,
        measured,
        tuple(returns.tolist()),
        tuple((returns - benchmark).tolist()),
        score_windows(benchmark, benchmark, terms, year, env.risk_aversion)[0],
    )


def copy_to_cpu(policy: ActorPolicy) -> ActorPolicy:
    """Copy the policy to the CPU, unless it is there."""
    elsewhere = any(parameter.device.type != "cpu" for parameter in policy.parameters())
    return copy.deepcopy(policy).to("cpu") if elsewhere else policy


class ValidationCurve:
    """Scores of a pod while it trains, for display only: `validation.jsonl` in its folder.

    Each line has the `share` of the budget, `env_steps`, `fold` (of K-fold validation, None for the
    whole), `score` and `return` of the validation window. Scoring takes at most `TIME_SHARE` of the
    time, so there may be fewer than `POINTS`.
    """

    POINTS = 8
    TIME_SHARE = 0.15
    FILE = "validation.jsonl"

    def __init__(
        self,
        folder: Path,
        env: EnvSettings | GymnasiumSettings,
        terms: EvaluationTerms,
        make_progress: Callable[[float, int], Progress],
    ) -> None:
        """`terms`: terms of the pod's score; `make_progress(share, env_steps)` makes a `Progress`
        that sends heartbeats.

        Scores of earlier attempts at the pod are kept.
        """
        self.path = folder / self.FILE
        self.env = env
        self.terms = terms
        self.make_progress = make_progress
        self.seen = {
            (str(record.get("fold")), str(record.get("share"))) for record in read_jsonl(self.path)
        }
        self.next = -math.inf

    def offer(
        self,
        part: tuple[ActorPolicy, Any],
        share: float,
        env_steps: int,
        fold: int | None = None,
    ) -> None:
        """Score the policy if a further part of the budget is used up and time allows it."""
        mark = math.floor(share * self.POINTS) / self.POINTS
        if not 0 < mark < 1 or (str(fold), str(mark)) in self.seen or time.monotonic() < self.next:
            return
        began = time.monotonic()
        try:
            point = evaluate(
                [(copy_to_cpu(part[0]), part[1])],
                self.env,
                self.terms,
                progress=self.make_progress(share, env_steps),
                measures=False,  # all metrics would take longer than the simulation
            )
        except ConfigError:  # one fold is too short for the metric; all folds together are not
            self.next = math.inf
            return
        self.add(point, mark, env_steps, fold)
        ended = time.monotonic()
        self.next = ended + (ended - began) * (1 / self.TIME_SHARE - 1)

    def add(self, point: Evaluation, share: float, env_steps: int, fold: int | None = None) -> None:
        """Append a score, and the cumulative return of sessions."""
        if (str(fold), str(share)) in self.seen:
            return
        self.seen.add((str(fold), str(share)))
        record = {
            "share": share,
            "env_steps": env_steps,
            "fold": fold,
            "score": point.score,
            "return": m.cumulative_return(point.returns) if point.active_returns else None,
        }
        append_jsonl(self.path, record)


def _join_blocks(results: Sequence[BacktestResult]) -> BacktestResult:
    """Join the results of consecutive blocks. All positions are sold between them."""
    return results[0] if len(results) == 1 else stitch(results)


def _trade_benchmark(market: MarketTensors, env: EnvSettings, progress: Progress) -> BacktestResult:
    """Trade the benchmark portfolio over this window, at costs."""
    known = _benchmarks.setdefault(market, {})
    key = env.model_dump_json()
    if key not in known:
        known[key] = simulate_benchmark_portfolio(market, env, progress=progress)
    return known[key]


def check_windows(
    sessions: int, metric: str, windows: int, sessions_a_year: int = m.TRADING_DAYS
) -> None:
    """Raise ConfigError unless each part holds enough sessions for the metric."""
    least = (
        m.min_sessions(sessions_a_year)
        if m.is_too_short(metric, 0)
        else 1
        if metric == "return"
        else 2
    )
    if sessions < least * windows:
        weaker = "sharpe" if least > 2 else "return"
        other = f", or set tournament.metric to {weaker}" if least > 1 else ""
        raise ConfigError(
            f"tournament.validation_windows: {format_count(sessions, 'session')} of the validation"
            f" window do not hold {format_count(windows, 'part')} of {least} (tournament.metric"
            f" {metric}); lower it or lengthen the window{other}"
        )


def score_windows(
    returns: Array,
    benchmark: Array,
    terms: EvaluationTerms,
    sessions_a_year: int = m.TRADING_DAYS,
    risk_aversion: float = 1.0,
) -> tuple[float | None, tuple[float | None, ...]]:
    """Score daily returns `[S]`, and each of the windows that they are cut into; None where the
    metric is undefined in one of them."""
    cut = zip(
        np.array_split(returns, terms.windows),
        np.array_split(benchmark, terms.windows),
        strict=True,
    )
    scores = tuple(
        score(own, terms.metric, other, sessions_a_year, risk_aversion) for own, other in cut
    )
    known = [value for value in scores if value is not None]
    if len(known) < len(scores):
        return None, scores
    # The error of a single score is unknown.
    error = standard_error(known) if len(known) > 1 else 0.0
    return float(np.mean(known)) - error, scores


def score(
    returns: Array,
    metric: Metric,
    benchmark: Array,
    sessions_a_year: int = m.TRADING_DAYS,
    risk_aversion: float = 1.0,
) -> float | None:
    """Score one part, from daily returns `[S]` and the benchmark's; None if the metric is
    undefined.

    A policy that never trades scores 0, except under two metrics by which the benchmark scores 0:
    `information_ratio` (`mean / max(std, LEAST_TRACKING_ERROR)` of the active returns, annualised)
    and `active_utility` (their `mean - risk_aversion x variance / 2`, annualised). `utility` is
    `mean - variance / 2` of the returns themselves, annualised.
    """
    active = returns - benchmark
    if metric == "active_utility":
        return float(sessions_a_year * (active.mean() - 0.5 * risk_aversion * active.var(ddof=1)))
    if metric == "information_ratio":
        spread = m.standard_deviation(active) * math.sqrt(sessions_a_year)
        return float(active.mean()) * sessions_a_year / max(spread, LEAST_TRACKING_ERROR)
    if not returns.any():
        return 0.0
    if metric == "sharpe":
        return m.sharpe(returns, sessions_a_year)
    if metric == "return":
        return m.cumulative_return(returns)
    if metric == "calmar":
        growth = m.annual_return(returns, sessions_a_year)
        depth = m.max_drawdown(returns)
        return None if growth is None or depth is None else growth / max(-depth, LEAST_DRAWDOWN)
    return float(sessions_a_year * (returns.mean() - 0.5 * returns.var(ddof=1)))
