"""A run as TensorBoard event files: the learning curves and scores of its pods, and the race.

`<out>/<pod>/` holds one pod: its `metrics.jsonl` over env-steps, its scores during and after
training, and its searched hyper-parameters (the HParams page). `<out>/tournament/` holds the race
over the number of results.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from fintrader.files import refuse_foreign, replace_folder
from fintrader.results.tournament_events import read_events
from fintrader.runs import RunFolder
from fintrader.tournament.scalars import (
    ExportSummary,
    Scalar,
    flatten_hyper,
    list_pod_scalars,
    list_race_scalars,
)
from fintrader.tournament.status import require_tournament
from fintrader.tournament.store import RunStore

MARK = ".fintrader-export"
"""File that marks a folder as an export, which may be replaced."""


def export(run: RunFolder, out: Path | None = None) -> ExportSummary:
    """Write the event files of `run` to `out` (`<run>/tensorboard` unless given); an earlier export
    is replaced whole.

    Works while the tournament runs. Raises TournamentError when the folder holds no tournament,
    UnsafePathError when `out` holds something else.
    """
    require_tournament(run)
    out = run.root / "tensorboard" if out is None else out
    refuse_foreign(out, MARK)
    with replace_folder(out) as new:
        (new / MARK).touch()
        store = RunStore(run)
        specs = store.read_specs()
        results = store.read_results()
        written = 0
        for name, spec in specs.items():
            with SummaryWriter(str(new / name)) as writer:
                result = results.get(name)
                written += _write(writer, list_pod_scalars(run, spec, result))
                if result is not None and result.score is not None:
                    writer.add_hparams(
                        flatten_hyper(spec), {"hparam/score": result.score}, run_name="."
                    )
                    written += 1
        with SummaryWriter(str(new / "tournament")) as writer:
            written += _write(writer, list_race_scalars(read_events(run.events), results))
    return ExportSummary(out, len(specs), written, f"tensorboard --logdir {out}")


def _write(writer: Any, scalars: Iterable[Scalar]) -> int:
    """Write the scalars; return their number."""
    written = 0
    for name, value, step, wall in scalars:
        writer.add_scalar(name, value, step, walltime=wall)
        written += 1
    return written
