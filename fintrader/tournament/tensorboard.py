"""A run as TensorBoard event files: the learning curves and scores of its pods, and the race.

`<out>/<pod>/` holds one pod: its `metrics.jsonl` over env-steps, its scores during and after
training, and its searched hyper-parameters (the HParams page). `<out>/tournament/` holds the race
over the number of results.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from fintrader.errors import TournamentError
from fintrader.files import make_folder, move, read_jsonl, remove_tree
from fintrader.results.tournament_events import (
    LossEvent,
    ResultEvent,
    TournamentEvent,
    read_events,
)
from fintrader.runs import RunFolder
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.status import require_tournament
from fintrader.tournament.store import RunStore

MARK = ".fintrader-export"
"""File that marks a folder as an export, which may be replaced."""
COUNTERS = ("update", "env_steps", "seconds")
Scalar = tuple[str, float, int, float | None]
"""Name, value, step, Unix time."""


@dataclass(frozen=True)
class ExportSummary:
    """Folder and size of an export."""

    out: Path
    pods: int
    scalars: int


def export(run: RunFolder, out: Path | None = None) -> ExportSummary:
    """Write the event files of `run` to `out` (`<run>/tensorboard` unless given); an earlier export
    is replaced whole.

    Works while the tournament runs. Raises TournamentError when the folder holds no tournament, or
    `out` holds something else.
    """
    require_tournament(run)
    out = run.root / "tensorboard" if out is None else out
    if out.exists() and not (out / MARK).is_file():
        raise TournamentError(f"{out} exists and is no export of a run; choose another --out")
    make_folder(out.parent)
    new = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        (new / MARK).touch()
        store = RunStore(run)
        specs = store.read_specs()
        results = store.read_results()
        written = 0
        for name, spec in specs.items():
            with SummaryWriter(str(new / name)) as writer:
                result = results.get(name)
                written += _write(
                    writer,
                    _list_pod_scalars(spec, result, read_jsonl(run.pod(name) / "metrics.jsonl")),
                )
                if result is not None and result.score is not None:
                    writer.add_hparams(
                        _flatten_hyper(spec), {"hparam/score": result.score}, run_name="."
                    )
                    written += 1
        with SummaryWriter(str(new / "tournament")) as writer:
            written += _write(writer, _list_race_scalars(read_events(run.events), results))
        new.chmod(0o755)
        old = new.with_name(new.name + ".old")
        if out.exists():
            move(out, old)
        move(new, out)
        remove_tree(old)
    finally:
        remove_tree(new)
    return ExportSummary(out, len(specs), written)


def _write(writer: Any, scalars: Iterable[Scalar]) -> int:
    """Write the scalars; return their number."""
    written = 0
    for name, value, step, wall in scalars:
        writer.add_scalar(name, value, step, walltime=wall)
        written += 1
    return written


def _list_pod_scalars(
    spec: PodSpec, result: PodResult | None, records: list[dict[str, Any]]
) -> Iterator[Scalar]:
    """List one pod's curves over its env-steps; with times if its start is known."""
    began = result.started if result is not None and result.started else None
    for record in records:
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


def _flatten_hyper(spec: PodSpec) -> dict[str, Any]:
    """The searched settings and where the pod came from, as the HParams page can show them."""
    values = {"algo": str(spec.agent.get("algo", "")), "origin": spec.origin, **spec.hyper}
    return {
        name: value if isinstance(value, bool | int | float) else str(value)
        for name, value in values.items()
    }


def _list_race_scalars(
    events: Sequence[TournamentEvent], results: Mapping[str, PodResult]
) -> Iterator[Scalar]:
    """The race over the number of results: each score, the best so far, the env-steps and losses
    until then."""
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
