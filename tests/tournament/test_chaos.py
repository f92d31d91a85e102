"""The short form of `benchmarks/chaos.py`."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from fintrader.errors import RunError, TournamentError
from fintrader.results.leaderboard_reader import read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament import lease
from fintrader.tournament.store import RunStore
from tests.engines import chaos, stubs
from tests.engines.chaos import DONE, REFUSED, Faults, Tally, everything, forked
from tests.tournament.conftest import PODS


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> int:
    return chaos.count_points(tmp_path_factory.mktemp("points"), PODS)


@pytest.mark.parametrize(
    ("mode", "stride"),
    [
        ("kill", 61),
        pytest.param("kill", 23, marks=pytest.mark.slow),
        pytest.param("torn", 41, marks=pytest.mark.slow),
        ("full", 41),
        pytest.param("full", 19, marks=pytest.mark.slow),
    ],
)
def test_struck_at_many_operations(
    tmp_path: Path, undisturbed: RunFolder, points: int, mode: str, stride: int
) -> None:
    tally = Tally()
    expected = everything(undisturbed)
    for at in range(
        1, points // 2 if mode == "full" else points, stride
    ):  # `full` strikes before, never after
        faults = Faults(mode, at, tmp_path / f"{mode}-{at}.mark")
        strike = partial(forked, pods=PODS, faults=faults)
        tally.strike_and_recover(tmp_path, f"{mode}-{at}", PODS, expected, strike)
    assert tally.problems == []
    assert tally.hits >= 0.5 * tally.scenarios > 2


def test_pods_struck_in_their_own_process(
    tmp_path: Path, undisturbed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in (3, 14):
        run = RunFolder(tmp_path / f"pod-{at}")
        plan = {"mode": "kill", "at": at, "mark": str(tmp_path / f"{at}.mark")}
        monkeypatch.setenv("CHAOS_POD", json.dumps(plan))
        assert forked(run, PODS, processes=True).status == DONE
        assert (tmp_path / f"{at}.mark").exists()
        assert {event["reason"] for event in chaos.events_of(run, "lost")} <= {
            "killed"
        }  # it may have published before it died
        assert everything(run) == everything(undisturbed)


def test_killed_in_the_middle_of_a_pod(tmp_path: Path, undisturbed: RunFolder) -> None:
    tally = Tally()
    strike = partial(chaos.kill_at_work, pods=PODS)
    tally.strike_and_recover(tmp_path, "run", PODS, everything(undisturbed), strike)
    assert tally.problems == []
    assert tally.hits == 1


def test_two_orchestrators_never_act_at_once(tmp_path: Path, undisturbed: RunFolder) -> None:
    run = RunFolder(tmp_path / "run")
    with lease.acquire(run, None) as held:
        assert lease.is_held(run, None)
        assert forked(run, PODS).status == REFUSED
        held.check()
    assert not lease.is_held(run, None)
    assert lease.current_token(run) == 1
    assert not (run.root / "tournament.json").exists()


def test_a_superseded_orchestrator_stops_and_its_pods_count_once(tmp_path: Path) -> None:
    """A pod that an earlier orchestrator started is one of the next one's: the first to come to
    something stands."""
    from fintrader.tournament.pod import run_pod
    from fintrader.tournament.spec import PodContext

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
        assert RunStore(run).results() == {"p0000": by_old, "p0001": by_new}


@pytest.mark.parametrize("harm", ["garbage", "truncated", "deleted", "schema", "torn log"])
def test_a_damaged_database_is_made_again_and_a_torn_log_mended(
    tmp_path: Path, undisturbed: RunFolder, harm: str
) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed.root, run.root)
    database = run.leaderboard
    match harm:
        case "garbage":
            database.write_bytes(b"no database" * 1000)
        case "truncated":
            database.write_bytes(database.read_bytes()[:5000])
        case "deleted":
            database.unlink()
        case "schema":
            with closing(sqlite3.connect(database)) as connection:
                connection.executescript("DROP VIEW leaderboard; DROP TABLE entries")
        case "torn log":
            run.events.write_bytes(run.events.read_bytes()[:-20])
    assert forked(run, PODS).status == DONE
    assert everything(run) == everything(undisturbed)
    assert all(
        line.startswith("{") and line.endswith("}") for line in run.events.read_text().splitlines()
    )


def test_a_foreign_database_that_never_ends_is_damaged(
    tmp_path: Path, undisturbed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed.root, run.root)
    with closing(sqlite3.connect(run.leaderboard)) as connection:
        (columns,) = connection.execute(
            "SELECT group_concat(name) FROM pragma_table_info('leaderboard')"
        ).fetchone()
        same = ", ".join(f"1 AS {name}" for name in columns.split(","))
        again = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n)"
        connection.executescript(
            f"DROP VIEW leaderboard; CREATE VIEW leaderboard AS {again} SELECT {same} FROM n"
        )
    monkeypatch.setattr("fintrader.results.leaderboard_reader.READ_SECONDS", 0.2)
    with pytest.raises(RunError, match=r"took more than 0.2 s.*fintrader tournament rebuild"):
        read_leaderboard(run.leaderboard)
    assert forked(run, PODS).status == DONE
    assert everything(run) == everything(undisturbed)


def test_a_foreign_database_takes_no_memory(
    tmp_path: Path, undisturbed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its view is as long as a line, and asks for gigabytes."""
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed.root, run.root)
    monkeypatch.setattr("fintrader.results.leaderboard_reader.CELL_BYTES", 100_000)
    assert len(read_leaderboard(run.leaderboard)) > 0
    with closing(sqlite3.connect(run.leaderboard)) as connection:
        (columns,) = connection.execute(
            "SELECT group_concat(name) FROM pragma_table_info('leaderboard')"
        ).fetchone()
        large = ", ".join(f"zeroblob(200000) AS {name}" for name in columns.split(","))
        connection.executescript(
            f"DROP VIEW leaderboard; CREATE VIEW leaderboard AS SELECT {large}"
        )
    with pytest.raises(RunError, match=r"too big.*fintrader tournament rebuild"):
        read_leaderboard(run.leaderboard)


@pytest.mark.parametrize(
    "victim", ["snapshot", "half snapshot", "policy", "result", "foreign result"]
)
def test_a_damaged_artifact_is_set_aside_and_made_again(
    tmp_path: Path, undisturbed: RunFolder, victim: str
) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(undisturbed.root, run.root)
    store = RunStore(run)
    result = store.read_result("p0001")
    match victim:
        case "snapshot":
            store.snapshot_path(result.snapshot).unlink()
        case "half snapshot":
            path = store.snapshot_path(result.snapshot)
            path.write_bytes(path.read_bytes()[:7])
        case "policy":
            (run.pod("p0001") / "policy.safetensors").write_bytes(b"another")
        case "result":
            store.result_path("p0001").write_text('{"pod": ')
        case "foreign result":
            shutil.copy(store.result_path("p0002"), store.result_path("p0001"))
    assert forked(run, PODS).status == DONE
    assert everything(run) == everything(undisturbed)
    assert "p0001" in {event["pod"] for event in chaos.events_of(run, "damaged")}
    applied = [event["pod"] for event in chaos.events_of(run, "applied")]
    assert len(applied) == len(set(applied)) == PODS
