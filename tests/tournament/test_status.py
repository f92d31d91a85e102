import io
import itertools
import json
import re
import shutil
import sqlite3
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from fintrader import cli
from fintrader.config import Settings
from fintrader.errors import RunError, TournamentError
from fintrader.progress import LineProgress
from fintrader.records import to_json
from fintrader.results.folders import DamagedFileError, NotThereError
from fintrader.results.leaderboard_reader import dump_canonical, lineage, read_pods
from fintrader.results.run import Run
from fintrader.results.tournament_events import (
    ResultEvent,
    ResumptionEvent,
    find_last_start,
    parse_event,
    select_events,
)
from fintrader.runs import RunFolder
from fintrader.terminal_progress import TerminalProgress
from fintrader.tournament import lease
from fintrader.tournament import status as status_module
from fintrader.tournament.events import EventLog
from fintrader.tournament.orchestrator import Orchestrator
from fintrader.tournament.repair import repair
from fintrader.tournament.run_tournament import replay
from fintrader.tournament.status import (
    compare,
    describe_effect,
    make_index,
    read_requested_pods,
    read_status,
    scale,
)
from fintrader.tournament.store import RunStore
from fintrader.tournament.terminal import describe
from tests.engines import stubs
from tests.engines.chaos import events_of
from tests.engines.races import OPERATIONS, ORDER, settings
from tests.engines.stubs import plant
from tests.engines.thread_launcher import ThreadLauncher
from tests.engines.waiting import PATIENCE_SECONDS
from tests.quick import slow_but


def test_status_counts_and_is_json(race, tmp_path):
    plant(RunFolder(tmp_path / "run"), "p0001", "nan")
    run = race(pods=6).folder
    report = read_status(run)
    json.dumps(to_json(report), allow_nan=False)
    assert report.states == {"done": 6}
    assert (report.trials, report.env_steps, report.losses) == (6, 600, {"nan": 1})
    assert (report.active, report.finished, report.at_work) == (False, True, ())
    assert report.leaderboard[0].rank == 1
    with pytest.raises(TournamentError, match="no tournament"):
        read_status(RunFolder(tmp_path / "nothing"))


def test_lineage_leads_to_a_founder(race):
    run = race(pods=30, fresh=0.0, seed=2).folder
    store = RunStore(run)
    specs = store.read_specs()
    eldest = max(specs.values(), key=lambda spec: spec.generation)
    pods = read_pods(run.leaderboard)
    steps = lineage(pods, eldest.pod)
    assert len(steps) == eldest.generation + 1 > 3
    assert steps[-1].origin == "fresh"
    for child, parent in itertools.pairwise(steps):
        assert child.parent == parent.pod
        assert child.inherited == parent.snapshot
        old, new = child.changed["learning_rate"]
        assert (old, new) == (parent.hyper["learning_rate"], child.hyper["learning_rate"])
    rows = {row.pod: row for row in read_status(run).leaderboard}
    assert all(row.lineage_env_steps == 100 * len(lineage(pods, pod)) for pod, row in rows.items())
    with pytest.raises(RunError, match="no pod"):
        lineage(pods, "p9999")
    assert Run(run).lineage(eldest.pod)["pod"].tolist() == [step.pod for step in steps]


@pytest.mark.parametrize("order", slow_but(0, every=["submission", "arrival"]))
def test_the_database_is_only_an_index(race, order):
    run = race(pods=7, order=order, workers=3).folder
    before = dump_canonical(run.leaderboard)
    for path in run.root.glob("leaderboard.sqlite*"):
        path.unlink()
    with pytest.raises(NotThereError, match=r"verify .* --repair"):
        read_status(run)
    assert repair(run) == ["leaderboard.sqlite: rebuilt from 7 results"]
    assert dump_canonical(run.leaderboard) == before
    with sqlite3.connect(run.leaderboard) as other:  # a version that counted no looks
        other.execute("DROP VIEW leaderboard")
        other.execute("ALTER TABLE entries DROP COLUMN looks")
    other.close()
    assert repair(run) == ["leaderboard.sqlite: rebuilt from 7 results"]
    assert dump_canonical(run.leaderboard) == before
    run.leaderboard.write_bytes(b"x" * 9000)
    with pytest.raises(DamagedFileError, match="damaged"):
        read_status(run)
    with lease.acquire(run, None), pytest.raises(TournamentError, match="another process"):
        repair(run)


@pytest.mark.parametrize(
    "changes",
    slow_but(
        1,
        every=[
            {"order": "arrival", "workers": 3},
            {"order": "generations", "pool_size": 4, "survivors": 2},
        ],
    ),
)
def test_replay_is_byte_equal(race, tmp_path, changes):
    first = race("a", pods=12, **changes)
    target = RunFolder(tmp_path / "b")
    replay(
        first.folder,
        settings(pods=12, **changes),
        folder=target,
        market=tmp_path / "market.safetensors",
        operations=OPERATIONS,
        data_hash="data",
        env=Settings(),
        agents=(stubs.StubAgent(),),
        seed=1,
        launcher=ThreadLauncher(target, tmp_path, stubs.body, workers=1),
        ensemble=stubs.ensemble,
    )
    assert compare(first.folder, target) == []
    assert {p.name for p in (first.folder.root / "snapshots").iterdir()} == {
        p.name for p in (target.root / "snapshots").iterdir()
    }
    assert (
        first.ensemble_policy.read_bytes() == (target.ensemble / "policy.safetensors").read_bytes()
    )
    other = race("c", pods=12, seed=9, **changes)
    assert compare(first.folder, other.folder) != []


def test_what_cannot_be_replayed_says_so(race, tmp_path):
    plant(RunFolder(tmp_path / "a"), "p0000", "boom", times=9)
    run = race("a", pods=4, retries=0).folder
    with pytest.raises(TournamentError, match="p0000 failed"):
        replay(run, settings(pods=4), folder=RunFolder(tmp_path / "b"), market=tmp_path)
    shutil.rmtree(run.pod("p0003"))
    with pytest.raises(TournamentError, match="not finished"):
        replay(run, settings(pods=4), folder=RunFolder(tmp_path / "b"), market=tmp_path)


@pytest.mark.slow
def test_scale_is_honoured_while_it_runs(race, tmp_path):
    """4 -> 64 -> 3 pods, each within two reconciles of the wish. Pods wait until both were looked
    at."""
    run = RunFolder(tmp_path / "run")
    trace = {}
    release = threading.Event()

    def control(orchestrator):
        turn = orchestrator.reconciles
        trace[turn] = len(orchestrator.running), orchestrator.launcher.measure_capacity()
        if turn == 2:
            scale(run, 64)
        if turn == 4:
            scale(run, 3)
        if turn == 6:
            release.set()

    def waiting(spec, context):
        assert release.wait(PATIENCE_SECONDS)
        return stubs.body(spec, context)

    race(pods=90, workers=4, order=ORDER, body=waiting, how={"watch": control})
    assert trace[2] == (4, 4)
    assert trace[4] == (64, 64)
    assert trace[6] == (64, 3)  # threads cannot be stopped; processes are, see below
    assert all(at_work <= 3 for turn, (at_work, _) in trace.items() if turn > max(trace) - 5)
    assert [event["pods"] for event in events_of(run, "capacity")] == [64, 3]


def test_what_a_scheduler_does_not_let_work_is_said(race, tmp_path):
    """Capacity that finds no work is no promise: neither in the answer to the wish nor in the event
    log."""
    run = RunFolder(tmp_path / "run")
    told = []
    most = 0

    def control(orchestrator):
        nonlocal most
        most = max(most, len(orchestrator.running))
        if not told:
            scale(run, 6)
            told.append(describe_effect(run, 6))

    race(pods=12, how={"watch": control})
    assert most <= 2
    assert told == [
        "at work from the next reconcile on: 6 pods, but at most 2: `order: submission` lets no"
        " more work at once"
    ]
    (event,) = events_of(run, "capacity")
    assert (event["pods"], event["at_once"]) == (6, 2)
    assert (
        describe(parse_event(event))
        == "capacity is now 6 pods, of which the scheduler lets 2 work at once"
    )


def test_scaling_what_nobody_races_promises_nothing(race, capsys):
    generations = {"order": "generations", "pool_size": 4, "survivors": 2}
    finished = race("a", pods=2, order=ORDER).folder
    bred = race("b", pods=4, **generations).folder
    cli.main(["status", str(finished.root), "--workers", "6"])
    cli.main(["status", str(finished.root), "--workers", "settings"])
    assert read_requested_pods(finished) is None
    cli.main(["status", str(finished.root), "--workers", "6"])
    assert "finished, so nothing is at work" in capsys.readouterr().out
    assert read_requested_pods(finished) == 6
    assert describe_effect(finished, 6).endswith(": 6 pods")
    assert "as many pods as its settings say" in describe_effect(finished, None)
    assert "6 pods, but at most 4: `order: generations`" in describe_effect(bred, 6)
    assert describe_effect(bred, 1).endswith(": 1 pod")
    lines = finished.events.read_text().splitlines(keepends=True)
    finished.events.write_text("".join(line for line in lines if '"finished"' not in line))
    assert (
        describe_effect(finished, 6)
        == "nothing is at work now; once the run is resumed by its own command: 6 pods"
    )


def test_the_time_left_counts_this_sitting_only(race, capsys, monkeypatch):
    """A night between two sittings is no part of the rate, and neither are results that were there
    before."""
    run = race(pods=4).folder
    assert read_status(run).eta_seconds is None, "finished"
    began = time.time()
    now = time.time() + 10.0
    monkeypatch.setattr(status_module, "time", SimpleNamespace(time=lambda: now))
    log = EventLog(run.events)
    log.append(
        ResumptionEvent(token=2, of=find_last_start(log.records).of, pods=9, results=4, time=began)
    )
    with lease.acquire(run, None):
        assert read_status(run).eta_seconds is None, "no result yet"
        assert not read_status(run).finished, "extended"
        log.append(
            replace(select_events(log.records, ResultEvent)[-1], pod="p0004", time=began + 5)
        )
        assert read_status(run).eta_seconds == pytest.approx(40.0)  # four to come, ten seconds each
        cli.main(["status", str(run.root)])
    assert re.search(r"5 of 9 results; about 40 s left", capsys.readouterr().out)
    assert read_status(run).eta_seconds is None, "nobody races it"
    assert describe_effect(run, 6).startswith("nothing is at work now")


def test_a_damaged_result_is_left_out_of_a_database_made_again(run):
    RunStore(run).locate_result("p0001").write_bytes(b"?")
    assert make_index(run) == 4


@pytest.mark.slow
def test_scaling_down_processes_drains_without_orphans_or_losses(race, tmp_path):
    run = RunFolder(tmp_path / "b")
    pods = [f"p{number:04d}" for number in range(3)]
    for pod in pods:
        plant(run, pod, "wait")
    wished = []

    def control(orchestrator):
        if len(orchestrator.running) == 3 and not wished:
            scale(run, 1)
            wished.append(orchestrator.reconciles)
        if wished and len(orchestrator.running) == 1:
            stubs.release(run, pods)

    result = race("b", pods=6, processes=True, workers=3, pool_size=3, how={"watch": control})
    assert wished
    assert [event["pods"] for event in events_of(run, "capacity")] == [1]
    assert not events_of(run, "lost")
    assert events_of(run, "drained")
    commands = [
        one.as_dict(["cmdline"], [])["cmdline"] for one in psutil.Process().children(recursive=True)
    ]
    assert not [command for command in commands if "fintrader.tournament.pod" in command]
    undisturbed = race("a", pods=6, pool_size=3)
    assert dump_canonical(result.folder.leaderboard) == dump_canonical(
        undisturbed.folder.leaderboard
    )


def test_scale_refuses_nonsense_and_control_survives_damage(race, tmp_path):
    run = race(pods=2).folder
    with pytest.raises(TournamentError, match="at least 1"):
        scale(run, 0)
    with pytest.raises(TournamentError, match="no tournament"):
        scale(RunFolder(tmp_path / "none"), 3)
    assert read_requested_pods(run) is None
    scale(run, 5)
    assert read_requested_pods(run) == 5
    (run.root / "scale.json").write_text("{")
    assert read_requested_pods(run) is None


def test_a_terminal_shows_board_pods_and_events_below_the_bar(race):
    stream = io.StringIO()
    pictures = []

    def look(orchestrator):
        console = Console(file=io.StringIO(), width=150)
        console.print(orchestrator._render())
        pictures.append(console.file.getvalue())

    with TerminalProgress(Console(file=stream, force_terminal=True, width=150)) as progress:
        result = race(pods=5, how={"watch": look, "progress": progress})
    best = result.leaderboard[0]
    assert {best.pod, f"{best.score:.3f}"} <= set(pictures[-1].split())
    assert "learning_rate" in pictures[-1]
    assert any("rank 1" in picture for picture in pictures)
    assert any("p0000" in picture.split("at work")[1] for picture in pictures)
    assert "leaderboard: validation sharpe" in stream.getvalue()


def test_pipes_get_a_line_a_result_and_a_line_a_mishap(race, tmp_path):
    stream = io.StringIO()
    plant(RunFolder(tmp_path / "run"), "p0001", "oom")
    result = race(pods=3, how={"progress": LineProgress(stream)})
    lines = stream.getvalue().splitlines()
    assert sum("rank" in line for line in lines) == 3
    assert any("p0001: lost at attempt 1 (oom" in line for line in lines)
    assert lines[-1].startswith("tournament: 3/3 pods (100 %)")
    assert result.best in lines[-1]


def test_progress_counts_results_that_wait_and_no_pod_that_is_still_scored():
    """Of two pods the second has ended, and its result waits for the first one's."""
    pods = SimpleNamespace(settings=SimpleNamespace(pods=2), pending=[])
    pods.leaderboard = SimpleNamespace(applied=[])
    shares = [1.0, 0.9]
    pods.launcher = SimpleNamespace(
        report_progress=lambda: {share: SimpleNamespace(share=share) for share in shares}
    )
    both = Orchestrator._measure_done(pods)
    assert both == pytest.approx(1.85)
    pods.pending = [object()]
    del shares[1]
    assert both < Orchestrator._measure_done(pods) < 2
