"""Does any kill, torn write or full disk lose, double or change a tournament's result?

After each, the same command must complete, and all that a seed fixes must equal an undisturbed run.
"""

import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from functools import partial

import pytest

from fintrader.errors import RunError, TournamentError
from fintrader.results.leaderboard_reader import read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament import lease
from fintrader.tournament.store import RunStore
from tests.engines import chaos, stubs
from tests.engines.chaos import DONE, REFUSED, Faults, amount, everything, forked
from tests.engines.waiting import gone, until
from tests.tournament.conftest import PODS

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    return chaos.count_points(tmp_path_factory.mktemp("points"), PODS)


@pytest.mark.parametrize(
    ("mode", "stride"),
    [
        ("kill", 101),
        pytest.param("kill", amount(23, 1), marks=SLOW),
        pytest.param("torn", amount(41, 1), marks=SLOW),
        pytest.param("full", 41, marks=SLOW),
        pytest.param("full", amount(19, 1), marks=SLOW),
    ],
)
def test_struck_at_many_operations(tmp_path, undisturbed, points, mode, stride):
    hits = []
    expected = everything(undisturbed)
    for at in range(
        1, points // 2 if mode == "full" else points, stride
    ):  # `full` strikes before, never after
        faults = Faults(mode, at, tmp_path / f"{mode}-{at}.mark")
        strike = partial(forked, pods=PODS, faults=faults)
        run = RunFolder(tmp_path / f"{mode}-{at}")
        hits.append(chaos.strike_and_recover(run, PODS, expected, strike))
    assert sum(hits) >= 0.5 * len(hits) > 2


@pytest.mark.slow
@pytest.mark.parametrize("moments", [(3, 14), pytest.param((), marks=SLOW, id="all along")])
def test_pods_struck_in_their_own_process(
    tmp_path,
    undisturbed,
    monkeypatch,
    moments,
):
    """The orchestrator lives on and tries again."""

    def mark(at):
        return tmp_path / f"{at}.mark"

    expected = everything(undisturbed)
    for at in moments or chaos.count_up(mark, amount(31, 1)):
        run = RunFolder(tmp_path / f"pod-{at}")
        plan = {"mode": "kill", "at": at, "mark": str(mark(at))}
        monkeypatch.setenv("CHAOS_POD", json.dumps(plan))
        assert forked(run, PODS, processes=True).status == DONE
        reasons = {event["reason"] for event in chaos.events_of(run, "lost")}
        assert reasons <= {"killed"}  # it may have published before it died
        problems = chaos.check(run, {}, expected)
        assert all(problem.startswith("left behind") for problem in problems), problems
    assert all(mark(at).exists() for at in moments or (1,))


@SLOW
def test_a_run_struck_by_a_disk_that_is_full_goes_on_when_there_is_room(tmp_path, undisturbed):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk takes the right to mount one")
    try:
        run = RunFolder(disk / "run")
        stops = 0
        for size in (64, 96, 128, 160, 224, 512, 4096):
            subprocess.run(["mount", "-o", f"remount,size={size}k", str(disk)], check=True)
            status = forked(run, PODS).status
            if status == DONE:
                break
            assert status == REFUSED, f"an untyped error at {size} KiB"
            stops += 1
        assert stops > 0
        assert chaos.check(run, {}, everything(undisturbed)) == []
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_two_orchestrators_never_act_at_once(tmp_path, undisturbed):
    run = RunFolder(tmp_path / "run")
    with lease.acquire(run, None) as held:
        assert lease.is_held(run, None)
        assert forked(run, PODS).status == REFUSED
        held.check()
    assert not lease.is_held(run, None)
    assert lease.read_token(run) == 1
    assert not (run.root / "tournament.json").exists()


@SLOW
def test_of_two_orchestrators_that_race_for_a_folder_one_is_refused(tmp_path, undisturbed):
    for number in range(amount(3, 20)):
        run = RunFolder(tmp_path / f"pair-{number}")
        stubs.plant(run, "p0001", "wait")
        pair = [chaos.fork(partial(chaos.race, run, PODS)) for _ in range(2)]
        until(lambda pair=pair: any(gone(pid) for pid in pair), "one of them to give up")
        stubs.release(run, ["p0001"])
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pair]
        assert sorted(codes) == [DONE, REFUSED]
        assert chaos.check(run, {}, everything(undisturbed)) == []


def test_a_superseded_orchestrator_stops_and_its_pods_count_once(tmp_path):
    """A pod that an earlier orchestrator started is one of the next one's: the first to come to
    something stands."""
    from fintrader.tournament.pod import run_pod
    from fintrader.tournament.pod_context import PodContext

    run = RunFolder(tmp_path / "run")
    with lease.acquire(run, None) as old:
        pass
    with lease.acquire(run, None) as new:
        with pytest.raises(TournamentError, match="taken over"):
            old.check()
        specs = [stubs.spec(0), stubs.spec(1)]
        by_old = run_pod(specs[0], PodContext(run, tmp_path, token=old.token), chaos.body)
        assert (
            run_pod(specs[0], PodContext(run, tmp_path, token=new.token, attempt=2), chaos.body)
            == by_old
        )
        by_new = run_pod(specs[1], PodContext(run, tmp_path, token=new.token), chaos.body)
        assert (
            run_pod(specs[1], PodContext(run, tmp_path, token=old.token, attempt=2), chaos.body)
            == by_new
        )
        assert RunStore(run).read_results() == {"p0000": by_old, "p0001": by_new}


@pytest.mark.parametrize("size", [None, 5000], ids=["garbage", "truncated"])
def test_a_damaged_database_is_made_again_and_a_torn_log_mended(tmp_path, undisturbed, size):
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed.root, run.root)
    run.leaderboard.write_bytes(run.leaderboard.read_bytes()[:size] if size else b"x" * 9000)
    run.events.write_bytes(run.events.read_bytes()[:-20])
    assert forked(run, PODS).status == DONE
    assert everything(run) == everything(undisturbed)
    assert all(
        line.startswith("{") and line.endswith("}") for line in run.events.read_text().splitlines()
    )


@pytest.mark.parametrize(
    ("limit", "most", "rows", "cell", "said"),
    [
        ("READ_SECONDS", 0.2, "(SELECT 1 UNION ALL SELECT x FROM n)", "1", "took more than 0.2 s"),
        ("CELL_BYTES", 100_000, "(SELECT 1)", "zeroblob(200000)", "too big"),
    ],
)
def test_a_foreign_database_takes_neither_hours_nor_gigabytes(
    tmp_path, undisturbed, monkeypatch, limit, most, rows, cell, said
):
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed.root, run.root)
    monkeypatch.setattr(f"fintrader.results.leaderboard_reader.{limit}", most)
    assert len(read_leaderboard(run.leaderboard)) > 0
    with closing(sqlite3.connect(run.leaderboard)) as connection:
        names = connection.execute("SELECT name FROM pragma_table_info('leaderboard')").fetchall()
        cells = ", ".join(f"{cell} AS {name}" for (name,) in names)
        view = f"WITH RECURSIVE n(x) AS {rows} SELECT {cells} FROM n"
        connection.executescript(f"DROP VIEW leaderboard; CREATE VIEW leaderboard AS {view}")
    with pytest.raises(RunError, match=rf"{said}.*fintrader verify .* --repair"):
        read_leaderboard(run.leaderboard)
    assert forked(run, PODS).status == DONE
    assert everything(run) == everything(undisturbed)


@pytest.mark.parametrize(
    "victim", ["snapshot", "half snapshot", "policy", "result", "foreign result"]
)
def test_a_damaged_artifact_is_set_aside_and_made_again(tmp_path, undisturbed, victim):
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed.root, run.root)
    store = RunStore(run)
    result = store.read_result("p0001")
    match victim:
        case "snapshot":
            store.locate_snapshot(result.snapshot).unlink()
        case "half snapshot":
            path = store.locate_snapshot(result.snapshot)
            path.write_bytes(path.read_bytes()[:7])
        case "policy":
            (run.pod("p0001") / "policy.safetensors").write_bytes(b"another")
        case "result":
            store.locate_result("p0001").write_text('{"pod": ')
        case "foreign result":
            shutil.copy(store.locate_result("p0002"), store.locate_result("p0001"))
    assert forked(run, PODS).status == DONE
    assert everything(run) == everything(undisturbed)
    assert "p0001" in {event["pod"] for event in chaos.events_of(run, "damaged")}
    applied = [event["pod"] for event in chaos.events_of(run, "applied")]
    assert len(applied) == len(set(applied)) == PODS
