"""A run in MLflow: a parent run with the race, and a child run for each pod with its settings,
learning curve and scores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME
from sqlalchemy.exc import SQLAlchemyError

from fintrader.errors import TournamentError
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

ADDRESS = "MLFLOW_TRACKING_URI"
"""Environment variable with the address of a tracking server, as MLflow's own programs read it."""
RUN_TAG = "fintrader.run"
"""Tag of every run that an export wrote: the seal of its tournament."""
BATCH = 1000
"""Most metrics that MLflow takes at once."""


def export(run: RunFolder, out: Path | None = None) -> ExportSummary:
    """Write `run` as an experiment named after it to the server at `MLFLOW_TRACKING_URI`, or to the
    SQLite file `out` (mlflow.db in the run unless given); an earlier export of the same tournament
    is replaced.

    Works while the tournament runs. Raises TournamentError when the folder holds no tournament, or
    the server or the file cannot be written.
    """
    require_tournament(run)
    place = run.root / "mlflow.db" if out is None else out
    address = f"sqlite:///{place.resolve()}"
    if out is None and os.environ.get(ADDRESS):
        address = os.environ[ADDRESS]
    elif place.is_dir():
        raise TournamentError(f"{place} is a folder; --out names the SQLite file to write")
    # MLflow waits for minutes by default.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    try:
        return _write(run, address)
    except (MlflowException, SQLAlchemyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TournamentError(f"{address}: MLflow cannot write there: {reason}") from None


def _write(run: RunFolder, address: str) -> ExportSummary:
    client = MlflowClient(tracking_uri=address)
    known = client.get_experiment_by_name(run.root.name)
    experiment = client.create_experiment(run.root.name) if known is None else known.experiment_id
    store = RunStore(run)
    seal = store.read_identity_digest()
    earlier = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{seal}'", max_results=50_000)
    specs = store.read_specs()
    results = store.read_results()

    written = 0

    def write(name: str, tags: dict[str, str], scalars: Iterable[Scalar], **params: Any) -> str:
        nonlocal written
        values = list(scalars)
        times = [int(1000 * wall) for *_, wall in values if wall]
        now = int(1000 * time.time())
        begun = min(times, default=now)
        tags = {MLFLOW_RUN_NAME: name, RUN_TAG: seal, **tags}
        own: str = client.create_run(experiment, start_time=begun, tags=tags).info.run_id
        metrics = [
            Metric(key, value, int(1000 * wall) if wall else begun, step)
            for key, value, step, wall in values
        ]
        client.log_batch(own, params=[Param(key, str(value)) for key, value in params.items()])
        for first in range(0, len(metrics), BATCH):
            client.log_batch(own, metrics=metrics[first : first + BATCH])
        client.set_terminated(own, end_time=max(times, default=now))
        written += len(values)
        return own

    parent = write(run.root.name, {}, list_race_scalars(read_events(run.events), results))
    for name, spec in specs.items():
        scalars = list_pod_scalars(run, spec, results.get(name))
        write(name, {MLFLOW_PARENT_RUN_ID: parent}, scalars, **flatten_hyper(spec))
    # Only now: a kill in between leaves both exports, and the next one removes them.
    for export_before in earlier:
        client.delete_run(export_before.info.run_id)
    return ExportSummary(address, len(specs), written, f"mlflow ui --backend-store-uri {address}")
