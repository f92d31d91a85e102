"""The ensemble: the best pods that do not all do the same, stored as one policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fintrader.agents import EnsemblePolicy, load_policy, save_policy
from fintrader.errors import CheckpointError
from fintrader.files import write_json
from fintrader.runs import RunFolder
from fintrader.tournament.leaderboard import Entry, Leaderboard
from fintrader.tournament.settings import TournamentSettings


def choose(rows: Sequence[Entry], size: int, diversity: float) -> list[Entry]:
    """Up to `size` rows, greedily: the best first, then by `z(score) - diversity x mean correlation with the chosen`.

    `z` standardises the scores over `rows`; correlations are those of the daily validation returns. Deterministic:
    ties go to the higher rank.
    """
    left = list(rows)
    chosen: list[Entry] = []
    scores = np.array([row.score for row in left])
    spread = float(scores.std()) if len(left) else 0.0
    standard = {row.key: (row.score - float(scores.mean())) / spread if spread > 0 else 0.0 for row in left}
    while left and len(chosen) < size:
        merits = [standard[row.key] - diversity * _mean_correlation(row, chosen) for row in left]
        chosen.append(left.pop(int(np.argmax(merits))))
    return chosen


def weights_of(members: Sequence[Entry], how: str) -> list[float]:
    """Weights summing to 1: equal, or softmax of the scores standardised over the members."""
    if how == "equal" or len(members) == 1:
        return [1.0 / len(members)] * len(members)
    scores = np.array([member.score for member in members])
    spread = float(scores.std())
    raised = np.exp((scores - scores.max()) / spread) if spread > 0 else np.ones_like(scores)
    return [float(weight) for weight in raised / raised.sum()]


def build_ensemble(run: RunFolder, leaderboard: Leaderboard, settings: TournamentSettings) -> dict[str, Any]:
    """Write `ensemble/policy.safetensors` and `ensemble/ensemble.json`; equal leaderboards give equal bytes.

    Only the best pods that fit together (one observation layout) are taken. Raises CheckpointError when a member's
    policy is damaged.
    """
    ready = [row for row in leaderboard.rows if row.result.policy is not None]
    if not ready:
        raise CheckpointError(f"{run.root}: no pod on the leaderboard has stored a policy")
    members = choose(ready, settings.ensemble_size, settings.diversity)
    weights = weights_of(members, settings.ensemble_weights)
    policies = [load_policy(run.pod(member.spec.pod) / "policy.safetensors") for member in members]
    mode = _mode(settings)
    names = [member.spec.pod for member in members]
    meta = {"members": names, "weights": weights, "trials": leaderboard.trials}
    market = policies[0].meta.get("market")
    save_policy(
        run.ensemble / "policy.safetensors",
        EnsemblePolicy(policies, weights, mode),
        {**meta, **({"market": market} if market else {})},
    )
    description = {
        **meta,
        "mode": mode,
        "scores": [member.score for member in members],
        "correlations": correlations(members),
    }
    write_json(run.ensemble / "ensemble.json", description)
    return description


def _mode(settings: TournamentSettings) -> Literal["mean", "weighted", "vote"]:
    if settings.ensemble_mode == "vote":
        return "vote"
    return "weighted" if settings.ensemble_weights == "score" else "mean"


def correlations(members: Sequence[Entry]) -> list[list[float | None]]:
    """`[K, K]` correlation of the members' daily validation returns; None where one of them is constant."""
    return [[_correlation(a, b) for b in members] for a in members]


def _mean_correlation(row: Entry, chosen: Sequence[Entry]) -> float:
    known = [value for other in chosen if (value := _correlation(row, other)) is not None]
    return sum(known) / len(known) if known else 0.0


def _correlation(a: Entry, b: Entry) -> float | None:
    x, y = np.asarray(a.result.returns), np.asarray(b.result.returns)
    if x.size != y.size or x.size < 2 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.clip(np.corrcoef(x, y)[0, 1], -1.0, 1.0))
