"""What a tournament costs that has had many pods: to resume it, to make the next pod, a pod's
share, and its disk.

    python benchmarks/rows.py [--rows 100 10000] [--more 400] [--save]

Runs of so many finished pods are written as a tournament writes them (specs from the generator,
results with two months of daily returns, snapshots and policies of 20 kB and 5 kB), once with a
leaderboard as large as the run. Each is resumed, and raced on with `--more` stub pods, 256 at once,
in farm processes apart from the orchestrator's. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.common import finish
from benchmarks.orchestrator import FarmLauncher
from fintrader.runs import RunFolder
from fintrader.tournament.events import EventLog
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.run_tournament import market_hash, run_tournament
from fintrader.tournament.settings import Range, TournamentSettings
from fintrader.tournament.spec import PodResult
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import applied_event, submit
from tests.engines import stubs

SESSIONS = 42
LAST = 1000
"""Proposals that are timed: the last ones."""


def settings_of(pods: int, size: int, keep: str) -> TournamentSettings:
    search = {"learning_rate": Range(low=1e-5, high=1e-1, log=True)}
    return TournamentSettings(
        pods=pods,
        order="arrival",
        search=search,
        fresh=0.25,
        leaderboard_size=size,
        halving=0.5,
        keep=keep,
    )  # type: ignore[arg-type]


def fill(run: RunFolder, settings: TournamentSettings, market: Path) -> dict[str, float]:
    """A tournament that has ended after `settings.pods` pods; what the last proposals took."""
    store = RunStore(run)
    log = EventLog(run.events)
    board = Leaderboard(settings.leaderboard_size)
    generator = Generator(settings, (stubs.StubAgent(),), {}, 0, market_hash(market))
    random = np.random.default_rng(0)
    proposals = list[float]()
    events = list[dict[str, Any]]()
    store.claim(
        {
            "settings": settings.model_dump(mode="json", exclude=set(_changeable())),
            "agents": [stubs.StubAgent().model_dump(mode="json")],
            "env": {},
            "seed": 0,
            "data_hash": generator.data_hash,
        }
    )
    for number in range(settings.pods):
        began = time.perf_counter()
        spec = generator.propose(number, board)
        proposals.append(time.perf_counter() - began)
        store.write_spec(spec)
        policy = random.bytes(5_000)
        store.policy_path(spec.pod).write_bytes(policy)
        result = PodResult(
            pod=spec.pod,
            status="done",
            spec=spec.digest,
            score=float(random.random()),
            snapshot=_put(store, random.bytes(20_000)),
            policy=hashlib.sha256(policy).hexdigest(),
            rung_scores={"0.25": float(random.random()), "0.5": float(random.random())},
            returns=tuple(random.normal(size=SESSIONS).tolist()),
            active_returns=tuple(random.normal(size=SESSIONS).tolist()),
            metrics={
                name: float(random.random())
                for name in ("sharpe", "calmar", "return", "volatility")
            },
            env_steps=1,
            updates=1,
            started=time.time(),
            finished=time.time(),
            seconds=1.0,
            device="cpu",
        )
        store.result_path(spec.pod).write_text(result.to_json())
        entry = FinishedPod(spec, result)
        events.append(
            {"event": "proposed", "pod": spec.pod, "origin": spec.origin, "seen": spec.seen}
        )
        events.append(applied_event(entry, number, submit(board, entry)))
    log.append(*events)
    last = proposals[-LAST:]
    return {
        "propose_ms_p50": round(1e3 * median(last), 3),
        "propose_ms_p99": round(1e3 * float(np.quantile(last, 0.99)), 3),
    }


def _put(store: RunStore, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    store.snapshots.mkdir(exist_ok=True)
    store.snapshot_path(digest).write_bytes(data)  # as `put`, without its sync
    return digest


def _changeable() -> frozenset[str]:
    from fintrader.tournament.run_tournament import CHANGEABLE

    return CHANGEABLE


def race(
    run: RunFolder, settings: TournamentSettings, market: Path, launcher: Any, watch: Any = None
) -> None:
    run_tournament(
        settings,
        folder=run,
        market=market,
        agent=stubs.StubAgent(),
        seed=0,
        launcher=launcher,
        ensemble=stubs.ensemble,
        watch=watch,
    )


def resume(run: RunFolder, settings: TournamentSettings, market: Path) -> float:
    """Seconds until a finished tournament says that it has finished."""
    launcher = FarmLauncher(run, 1, 0.0, farms=0)
    began = time.perf_counter()
    race(run, settings, market, launcher)
    return time.perf_counter() - began


def go_on(
    run: RunFolder, settings: TournamentSettings, market: Path, more: int
) -> dict[str, float]:
    """CPU of the orchestrator for each further pod, in ms, and once at the end: choosing, and
    reading the rows."""
    turns: list[float] = []

    def watch(_: Any) -> None:
        turns.append(time.process_time())

    launcher = FarmLauncher(run, 256, 2.0)
    race(run, settings.model_copy(update={"pods": settings.pods + more}), market, launcher, watch)
    end = time.process_time() - turns[-1]
    return {
        "cpu_ms_per_pod": round(1e3 * (turns[-1] - turns[0]) / more, 2),
        "cpu_seconds_at_the_end": round(end, 2),
    }


def disk_mb(folder: Path) -> float:
    """What the folder takes on the disk, in blocks, MB."""
    return round(
        sum(path.lstat().st_blocks * 512 for path in [folder, *folder.rglob("*")]) / 1e6, 1
    )


def measure(home: Path, rows: int, size: int, more: int, repeats: int) -> dict[str, Any]:
    """One run of `rows` pods with a leaderboard of `size` rows."""
    run = RunFolder(home / f"{rows}-{size}")
    market = stubs.market(home)
    settings = settings_of(rows, size, "all")
    figures: dict[str, Any] = {
        "rows": rows,
        "leaderboard_size": size,
        **fill(run, settings, market),
    }
    times = [resume(run, settings, market) for _ in range(repeats)]
    figures |= {
        "resume_seconds_median": round(median(times), 2),
        "resume_seconds_worst": round(max(times), 2),
    }
    figures["disk_mb_keep_all"] = disk_mb(run.root)
    figures |= go_on(run, settings, market, more)
    if size < rows:
        kept = settings_of(rows + more, size, "lineage")
        race(run, kept, market, FarmLauncher(run, 1, 0.0, farms=0))
        figures["disk_mb_keep_lineage"] = disk_mb(run.root)
    shutil.rmtree(run.root)
    return figures


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, nargs="+", default=[100, 10_000])
    arguments.add_argument("--more", type=int, default=400)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="rows-"))
    try:
        cases = [(rows, size) for rows in options.rows for size in sorted({min(rows, 64), rows})]
        figures = [measure(home, rows, size, options.more, options.repeats) for rows, size in cases]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    finish("rows", {"more": options.more, "cases": figures}, seed=0, save=options.save)


if __name__ == "__main__":
    main()
