"""The costs of a tournament that has had many pods: to resume it, to make the next pod, a pod's
share, and its disk.

    python benchmarks/rows.py [--rows 100 10000] [--more 400] [--repeats 3] [--save]

Runs of so many finished pods are written as a tournament writes them (specs from the generator,
results with two months of daily returns, snapshots and policies of 20 kB and 5 kB), once with a
leaderboard as large as the run. Each is resumed, and raced on with `--more` stub pods, 256 at once,
in farm processes apart from the orchestrator's.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks._bench import finish, milliseconds, read_arguments
from benchmarks.orchestrator import SEARCH, FarmLauncher, stub_result
from fintrader.results.tournament_events import ProposalEvent, TournamentEvent
from fintrader.runs import RunFolder
from fintrader.tournament.events import EventLog
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.run_tournament import describe_identity
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import build_result_event, submit
from tests.engines import stubs
from tests.engines.races import stub_race

SESSIONS = 42
LAST = 1000
"""Proposals that are timed: the last ones."""


def make_settings(pods: int, size: int, keep: Any) -> TournamentSettings:
    return TournamentSettings(
        pods=pods,
        order="arrival",
        search=SEARCH,
        fresh=0.25,
        leaderboard_size=size,
        halving=0.5,
        keep=keep,
    )


def fill(run: RunFolder, settings: TournamentSettings) -> dict[str, float]:
    """Write a tournament that has ended after `settings.pods` pods; what the last proposals
    took."""
    store = RunStore(run)
    log = EventLog(run.events)
    board = Leaderboard(settings.leaderboard_size)
    generator = Generator(settings, (stubs.StubAgent(),), {}, 0, "data")
    random = np.random.default_rng(0)
    proposals = list[float]()
    events: list[TournamentEvent] = []
    store.claim(describe_identity(generator), lambda: True)
    for number in range(settings.pods):
        began = time.perf_counter()
        spec = generator.propose(number, board)
        proposals.append(time.perf_counter() - began)
        store.write_spec(spec)
        policy = random.bytes(5_000)
        store.locate_policy(spec.pod).write_bytes(policy)
        score, first, second = random.random(3).tolist()
        returns, active = (tuple(row) for row in random.normal(size=(2, SESSIONS)).tolist())
        snapshot = write_snapshot(store, random.bytes(20_000))
        result = replace(
            stub_result(spec, snapshot),
            spec=spec.digest,
            score=score,
            policy=hashlib.sha256(policy).hexdigest(),
            rung_scores={"0.25": first, "0.5": second},
            returns=returns,
            active_returns=active,
            metrics=dict.fromkeys(("sharpe", "calmar", "return", "volatility"), score),
        )
        store.locate_result(spec.pod).write_text(result.to_json())
        entry = FinishedPod(spec, result)
        events.append(
            ProposalEvent(pod=spec.pod, origin=spec.origin, parent=spec.parent, seen=spec.seen)
        )
        events.append(build_result_event(entry, number, submit(board, entry)))
    log.append(*events)
    last = proposals[-LAST:]
    return {
        "propose_ms_p50": milliseconds(median(last), 3),
        "propose_ms_p99": milliseconds(float(np.quantile(last, 0.99)), 3),
    }


def write_snapshot(store: RunStore, data: bytes) -> str:
    """Store a snapshot as `RunStore.put` does, without its sync."""
    digest = hashlib.sha256(data).hexdigest()
    store.snapshots.mkdir(exist_ok=True)
    store.locate_snapshot(digest).write_bytes(data)
    return digest


def resume(run: RunFolder, settings: TournamentSettings) -> float:
    """Seconds until a finished tournament reports that it has finished."""
    launcher = FarmLauncher(run, 1, 0.0, farms=0)
    began = time.perf_counter()
    stub_race(run, settings, launcher=launcher, seed=0)
    return time.perf_counter() - began


def go_on(run: RunFolder, settings: TournamentSettings, more: int) -> dict[str, float]:
    """CPU of the orchestrator for each further pod, in ms, and once at the end: choosing, and
    reading the rows."""
    turns: list[float] = []
    longer = settings.model_copy(update={"pods": settings.pods + more})
    launcher = FarmLauncher(run, 256, 2.0)
    stub_race(
        run, longer, launcher=launcher, seed=0, watch=lambda _: turns.append(time.process_time())
    )
    end = time.process_time() - turns[-1]
    return {
        "cpu_ms_per_pod": milliseconds((turns[-1] - turns[0]) / more),
        "cpu_seconds_at_the_end": round(end, 2),
    }


def measure_disk(folder: Path) -> float:
    """MB that the folder takes on the disk, in blocks."""
    blocks = sum(path.lstat().st_blocks for path in [folder, *folder.rglob("*")])
    return round(blocks * 512 / 1e6, 1)


def measure(home: Path, rows: int, size: int, more: int, repeats: int) -> dict[str, Any]:
    """One run of `rows` pods with a leaderboard of `size` rows."""
    run = RunFolder(home / f"{rows}-{size}")
    settings = make_settings(rows, size, "all")
    figures = {"rows": rows, "leaderboard_size": size, **fill(run, settings)}
    times = [resume(run, settings) for _ in range(repeats)]
    figures["resume_seconds_median"] = round(median(times), 2)
    figures["resume_seconds_worst"] = round(max(times), 2)
    figures["disk_mb_keep_all"] = measure_disk(run.root)
    figures |= go_on(run, settings, more)
    if size < rows:
        resume(run, make_settings(rows + more, size, "lineage"))
        figures["disk_mb_keep_lineage"] = measure_disk(run.root)
    shutil.rmtree(run.root)
    return figures


def main() -> None:
    """Measure every number of rows, with a small and with a full leaderboard."""
    options = read_arguments(__doc__, rows=[100, 10_000], more=400, repeats=3)
    cases = [(rows, size) for rows in options.rows for size in sorted({min(rows, 64), rows})]
    with tempfile.TemporaryDirectory(prefix="rows-", ignore_cleanup_errors=True) as home:
        figures = [
            measure(Path(home), rows, size, options.more, options.repeats) for rows, size in cases
        ]
    finish("rows", {"more": options.more, "cases": figures}, options)


if __name__ == "__main__":
    main()
