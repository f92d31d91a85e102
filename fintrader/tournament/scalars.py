"""Learning curves, scores and settings of a run's pods, and its race, as plain values for programs
that show them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.files import read_jsonl
from fintrader.results.tournament_events import LossEvent, ResultEvent, TournamentEvent
from fintrader.runs import RunFolder
from fintrader.tournament.spec import PodResult, PodSpec

COUNTERS = ("update", "env_steps", "seconds")
Scalar = tuple[str, float, int, float | None]
"""Name, value, step, Unix time."""


@dataclass(frozen=True)
class ExportSummary:
    """Place and size of an export."""

    out: Path | str
    """Folder or address."""
    pods: int
    scalars: int
    view: str
    """Command that shows the export."""


def list_pod_scalars(run: RunFolder, spec: PodSpec, result: PodResult | None) -> Iterator[Scalar]:
    """List one pod's curves over its env-steps; with times if its start is known."""
    began = result.started if result is not None and result.started else None
    for record in read_jsonl(run.pod(spec.pod) / "metrics.jsonl"):
        wall = None if began is None else began + float(record.get("seconds", 0.0))
        for name, value in record.items():
            if name not in COUNTERS and isinstance(value, int | float):
                yield f"training/{name}", value, int(record.get("env_steps", 0)), wall
    if result is None:
        return
    budget = float(spec.budget.env_steps or result.env_steps)
    for share, score in sorted(result.rung_scores.items()):
        if score is not None:
            yield "validation/score", score, int(budget * float(share)), result.finished
    final = {
        "validation/score": result.score,
        **{f"validation/{k}": v for k, v in result.metrics.items()},
    }
    for name, metric in final.items():
        if metric is not None and math.isfinite(metric):
            yield name, metric, result.env_steps, result.finished


def flatten_hyper(spec: PodSpec) -> dict[str, Any]:
    """Return the searched settings and the origin of a pod, as plain values."""
    values = {"algo": str(spec.agent.get("algo", "")), "origin": spec.origin, **spec.hyper}
    return {
        name: value if isinstance(value, bool | int | float) else str(value)
        for name, value in values.items()
    }


def list_race_scalars(
    events: Sequence[TournamentEvent], results: Mapping[str, PodResult]
) -> Iterator[Scalar]:
    """List the race over the number of results: each score, and the best score, env-steps and
    losses so far."""
    best = -math.inf
    steps = 0
    lost = 0
    counted: set[str] = set()
    for event in events:
        lost += isinstance(event, LossEvent)
        if not isinstance(event, ResultEvent) or event.pod in counted:
            continue
        counted.add(event.pod)
        result = results.get(event.pod)
        steps += result.env_steps if result is not None else 0
        values: dict[str, float] = {"tournament/env_steps": steps, "tournament/lost_attempts": lost}
        if event.score is not None:
            best = max(best, event.score)
            values |= {"tournament/score": event.score, "tournament/best_score": best}
        for name, value in values.items():
            yield name, value, len(counted), event.time
