"""The ensemble: the best pod and those that add most to it, stored as one policy.

With `ensemble_shrinkage: james_stein` the members keep only a part kappa of their distance to the
benchmark portfolio:

    kappa = max(0, 1 - 1 / t^2)   where t = mean(r) / std(r) * sqrt(S) > 0, else 0

Here r are the S daily validation returns of the members in excess of the benchmark's, averaged with
the members' weights: the positive-part James-Stein estimate of a mean
(https://doi.org/10.1214/aos/1176344075). The members were chosen on the same sessions, so t errs
upwards. With `ensemble_tracking_error` they are first scaled to that risk budget: the evidence says
whether to bet, the budget how much to depart from the index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.agents import EnsemblePolicy, load_policy, save_policy
from fintrader.agents.heads import ActionHead
from fintrader.agents.policy import ActorPolicy, PolicyModule
from fintrader.agents.settings import MAX_TILT_SCALE
from fintrader.errors import CheckpointError, ConfigError
from fintrader.files import read_json, write_json
from fintrader.records import RecordError, from_json, to_json
from fintrader.runs import RunFolder
from fintrader.tournament.evaluator import score_windows
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.settings import TournamentSettings

FILE = "ensemble.json"


@dataclass(frozen=True)
class Shrinkage:
    """Part of their tilts that an ensemble's members keep, and the evidence for it."""

    how: str
    kappa: float
    t: float | None
    """t-statistic of the pooled returns in excess of the benchmark's."""
    sessions: int
    tracking_error: float | None
    """Annual tracking error of the members before their tilts are scaled."""
    tilt_scale: float
    """Factor of the tilts: kappa, times the scale to the wanted tracking error."""


@dataclass(frozen=True)
class StoredEnsemble:
    """Members of an ensemble and the reasons for them: `ensemble.json`."""

    members: tuple[str, ...]
    weights: tuple[float, ...] = ()
    trials: int = 0
    shrinkage: Shrinkage | None = None
    founders: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    correlations: tuple[tuple[float | None, ...], ...] = ()
    """`[K, K]`: correlations of the members' daily validation returns in excess of the
    benchmark's."""


def read_ensemble(run: RunFolder) -> StoredEnsemble:
    """Read the description of a tournament's ensemble. Raises CheckpointError when it is of another
    version, RunError when it is missing or damaged."""
    path = run.ensemble / FILE
    try:
        return from_json(StoredEnsemble, read_json(path))
    except RecordError as error:
        raise CheckpointError(
            f"{path} is of another version ({error}); `fintrader verify {run.root} --repair` makes"
            " it again"
        ) from None


def choose(rows: Sequence[FinishedPod], size: int) -> list[FinishedPod]:
    """Choose `size` of the rows, or all if there are fewer: first the best, then each time the row
    that adds most to the members' pooled score (`score_pooled`).

    Ties go to the higher rank. In a classic environment episodes cannot be pooled, so the best rows
    are chosen.
    """
    left = list(rows)
    chosen: list[FinishedPod] = []
    while left and len(chosen) < size:
        place = 0
        if chosen and chosen[0].spec.env.get("kind") != "gymnasium":
            place = int(np.argmax([score_pooled([*chosen, row]) for row in left]))
        chosen.append(left.pop(place))
    return chosen


def score_pooled(members: Sequence[FinishedPod]) -> float:
    """Score the mean of the members' daily validation returns as a pod's own; -inf where the metric
    is undefined, or the members were scored on different sessions."""
    own, active = (
        [np.asarray(getattr(member.result, name)) for member in members]
        for name in ("returns", "active_returns")
    )
    if len({len(series) for series in [*own, *active]}) > 1 or own[0].size < 2:
        return -math.inf
    first = members[0]
    aversion = first.spec.env.get("risk_aversion")
    returns = np.mean(own, axis=0)
    found, _ = score_windows(
        returns,
        returns - np.mean(active, axis=0),
        first.spec.evaluation,
        int(first.result.metrics.get("sessions_a_year") or m.TRADING_DAYS),
        float(aversion) if isinstance(aversion, int | float) else 1.0,
    )
    return -math.inf if found is None else found


def build_ensemble(
    run: RunFolder,
    leaderboard: Leaderboard,
    settings: TournamentSettings,
    folder: Path | None = None,
) -> StoredEnsemble:
    """Write `policy.safetensors` and `ensemble.json`; equal leaderboards give equal bytes.

    They go to `folder`, by default the run's own. Raises CheckpointError when a member's policy is
    damaged.
    """
    folder = folder or run.ensemble
    ready = [row for row in leaderboard.rows if row.result.policy is not None]
    if not ready:
        raise CheckpointError(f"{run.root}: no pod on the leaderboard has stored a policy")
    members = choose(ready, settings.num_members)
    weights = (1.0 / len(members),) * len(members)
    policies = [load_policy(run.pod(member.spec.pod) / "policy.safetensors") for member in members]
    shrinkage = estimate_shrinkage(members, weights, settings)
    description = StoredEnsemble(
        members=tuple(member.spec.pod for member in members),
        weights=weights,
        trials=leaderboard.trials,
        shrinkage=shrinkage,
        founders=tuple(leaderboard.founders[member.spec.pod] for member in members),
        scores=tuple(member.score for member in members),
        correlations=measure_correlations(members),
    )
    stored = to_json(description)
    meta = {name: stored[name] for name in ("members", "weights", "trials", "shrinkage")}
    market = policies[0].meta.get("market")
    if shrinkage is not None:
        policies = [_scale_tilt(policy, shrinkage.tilt_scale) for policy in policies]
    save_policy(
        EnsemblePolicy(policies, weights),
        folder / "policy.safetensors",
        {**meta, **({"market": market} if market else {})},
    )
    write_json(folder / FILE, stored)
    return description


def check_tilts(head: ActionHead) -> None:
    """Raise ConfigError for a head whose distance to a benchmark cannot be shrunk."""
    if head.kind != "tilt":
        raise ConfigError(
            "tournament.ensemble_shrinkage shrinks tilts towards the benchmark: set agent.head.kind"
            " to tilt (and env.benchmark to equal_weight), or the shrinkage to none"
        )


def _scale_tilt(policy: PolicyModule, factor: float) -> PolicyModule:
    """Multiply the policy's distance to the benchmark by `factor`."""
    assert isinstance(policy, ActorPolicy)
    check_tilts(policy.head)
    settings = policy.head.settings
    scale = min(factor * settings.tilt_scale, MAX_TILT_SCALE)
    policy.head = ActionHead(policy.layout, settings.model_copy(update={"tilt_scale": scale}))
    return policy


def estimate_shrinkage(
    members: Sequence[FinishedPod], weights: Sequence[float], settings: TournamentSettings
) -> Shrinkage | None:
    """Estimate how much of their tilts the members keep; None without shrinkage.

    Raises CheckpointError when results lack the returns in excess of the benchmark, or cover
    different sessions.
    """
    if settings.ensemble_shrinkage == "none":
        return None
    series = [np.asarray(member.result.active_returns, dtype=np.float64) for member in members]
    if len({len(one) for one in series}) != 1 or not len(series[0]):
        raise CheckpointError(
            "the members were scored on different sessions, or without a benchmark; race them again"
        )
    pooled = np.average(series, axis=0, weights=weights)
    kappa, t = james_stein(pooled)
    year = members[0].result.metrics.get("sessions_a_year") or m.TRADING_DAYS
    known = m.standard_deviation(pooled) * year**0.5
    wanted = settings.ensemble_tracking_error
    scale = min(wanted / known, MAX_TILT_SCALE) if wanted and known > 0 else 1.0
    return Shrinkage(
        how=settings.ensemble_shrinkage,
        kappa=kappa,
        t=m.finite_or_none(t),
        sessions=len(pooled),
        tracking_error=m.finite_or_none(known),
        tilt_scale=kappa * scale,
    )


def james_stein(active: NDArray[np.float64]) -> tuple[float, float]:
    """kappa in [0, 1], and the t-statistic of the mean of daily active returns `[S]`; 0 and NaN
    below two days.

    Returns without variance allow no estimate: kappa is then 1 or 0, by their sign.
    """
    spread = m.standard_deviation(active)
    if math.isnan(spread):
        return 0.0, math.nan
    mean = float(active.mean())
    t = (
        mean / spread * math.sqrt(active.size)
        if spread > 0
        else math.copysign(math.inf, mean)
        if mean
        else 0.0
    )
    return (max(0.0, 1.0 - 1.0 / t**2) if t > 0 else 0.0), t


def measure_correlations(members: Sequence[FinishedPod]) -> tuple[tuple[float | None, ...], ...]:
    """Correlate the members' daily validation returns in excess of the benchmark's `[K, K]`; None
    for a constant series."""
    series = [one.result.active_returns or one.result.returns for one in members]
    return tuple(
        tuple(m.correlation(a, b) if len(a) == len(b) else None for b in series) for a in series
    )
