"""What stays of pods that have ended, and that nothing which is asked for later is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fintrader.results.audit import _pods
from fintrader.runs import RunFolder
from fintrader.storage.mirror import attach, working_copy
from fintrader.tournament import retention
from fintrader.tournament.run import TournamentResult
from fintrader.tournament.store import EventLog, RunStore
from fintrader.tournament.verify import verify
from tests.engines import stubs
from tests.engines.chaos import events_of
from tests.tournament.conftest import Race

MANY = {"pods": 40, "leaderboard_size": 4, "ensemble_size": 2, "fresh": 0.2}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "EVERY", 3)


def kept(run: RunFolder) -> set[str]:
    """Pods whose policy is there; it is so with the snapshot, too."""
    store = RunStore(run)
    found = {pod for pod, result in store.results().items() if store.policy_path(pod).is_file()}
    assert found == {
        pod for pod, result in store.results().items() if store.snapshot_path(str(result.snapshot)).is_file()
    }
    return found


def board(ended: TournamentResult) -> list[tuple[object, ...]]:
    """The leaderboard without times and machines."""
    return [tuple(row[name] for name in ("pod", "score", "snapshot", "policy", "parent")) for row in ended.leaderboard]


def ancestors(run: RunFolder, pods: set[str]) -> set[str]:
    """These and all that they descend from, found the long way."""
    specs, found = RunStore(run).specs(), set(pods)
    for _ in specs:
        found |= {str(specs[pod].parent) for pod in found if specs[pod].parent}
    return found


@pytest.mark.parametrize("order", ["submission", "arrival"])
def test_leaders_or_their_lineage_stay_and_the_outcome_is_the_same(race: Race, order: str) -> None:
    runs = {keep: race(keep, keep=keep, order=order, **MANY) for keep in ("all", "lineage", "leaders")}
    for keep, ended in runs.items():
        rows = {str(row["pod"]) for row in ended.leaderboard}
        wanted = {
            "all": set(RunStore(ended.folder).specs()),
            "lineage": ancestors(ended.folder, rows),
            "leaders": rows,
        }
        assert kept(ended.folder) == wanted[keep]
        assert [check.problems for check in verify(ended.folder) if check.what != "specs"] == [()] * 5
        assert len(RunStore(ended.folder).results()) == 40
    if order == "submission":
        assert board(runs["all"]) == board(runs["lineage"]) == board(runs["leaders"])
        assert runs["all"].ensemble_policy.read_bytes() == runs["leaders"].ensemble_policy.read_bytes()


def test_it_goes_on_where_much_was_dropped(race: Race) -> None:
    race("a", keep="leaders", **MANY)
    whole = race("b", keep="all", **{**MANY, "pods": 60})
    went_on = race("a", keep="leaders", **{**MANY, "pods": 60})
    assert board(went_on) == board(whole)
    assert not events_of(went_on.folder, "damaged")
    assert board(race("a", keep="leaders", **{**MANY, "pods": 60})) == board(whole)


def test_generations_keep_whom_the_next_one_starts_from(race: Race) -> None:
    how = {"scheduler": "generational", "population": 6, "survivors": 2, **MANY, "pods": 36}
    assert board(race("a", keep="leaders", **how)) == board(race("b", keep="all", **how))


def test_what_a_kill_left_undeleted_goes_with_the_next_start(race: Race, tmp_path: Path) -> None:
    run = race("a", keep="leaders", **MANY).folder
    before = kept(run)
    gone = events_of(run, "dropped")[0]["pods"][0]
    RunStore(run).policy_path(gone).write_bytes(b"left over")
    leftover = run.pod(gone) / "state.safetensors"
    leftover.write_bytes(b"left over, too")
    race("a", keep="leaders", **MANY)
    assert not leftover.exists()
    assert kept(run) == before


def test_a_dropped_parent_is_trained_again_where_somebody_needs_it(race: Race) -> None:
    """As one who had lost the run may have made a child that its heir knew nothing of."""
    run = race("a", keep="all", **MANY).folder
    store = RunStore(run)
    specs = store.specs()
    child = next(spec for spec in reversed(specs.values()) if spec.parent_here)
    parent, grown = str(child.parent_here), store.read_result(child.pod)
    store.result_path(child.pod).unlink()
    EventLog(run.events).append({"event": "dropped", "pods": [parent]})
    store.drop(store.read_result(parent), snapshot=True)
    ended = race("a", keep="all", **MANY).folder
    assert store.read_result(child.pod).snapshot == grown.snapshot
    assert store.intact(str(store.read_result(parent).snapshot))
    assert [event["pod"] for event in events_of(ended, "damaged")] == [parent]


def test_the_state_of_a_training_goes_with_its_result(race: Race) -> None:
    def body(spec: stubs.PodSpec, context: stubs.PodContext) -> stubs.PodResult:
        (context.folder / "state.safetensors").write_bytes(b"a replay buffer")
        (context.folder / "round-1" / "replica-0").mkdir(parents=True, exist_ok=True)
        (context.folder / "round-1" / "replica-0" / "state.safetensors").write_bytes(b"another")
        if spec.pod == "p0001":
            raise ValueError("it fails, and may be tried again")
        return stubs.body(spec, context)

    run = race(pods=3, body=body, retries=0).folder
    for pod in ("p0000", "p0002"):
        names = {path.name for path in run.pod(pod).iterdir()}
        assert names == {".lock", "metrics.jsonl", "policy.safetensors", "result.json", "spec.json"}
    assert (run.pod("p0001") / "round-1" / "replica-0" / "state.safetensors").exists()


def test_a_store_forgets_what_is_dropped_and_a_new_disk_goes_on(race: Race, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/run"
    attach(tmp_path / "run", url)
    first = race("run", keep="leaders", order="submission", **MANY)
    objects = {path.name for path in (tmp_path / "store" / "run" / "objects").iterdir()}
    results = RunStore(RunFolder(tmp_path / "run")).results()
    rows = {str(row["pod"]) for row in first.leaderboard}
    assert {result.snapshot for result in results.values()} & objects == {results[pod].snapshot for pod in rows}
    assert {result.policy for result in results.values()} & objects == {results[pod].policy for pod in rows}
    shutil.rmtree(tmp_path / "run")
    attach(tmp_path / "run", url)
    ended = race("run", keep="leaders", order="submission", **{**MANY, "pods": 44})
    undisturbed = race("other", keep="all", order="submission", **{**MANY, "pods": 44})
    assert board(ended) == board(undisturbed)
    assert working_copy(url, tmp_path / "copy").is_dir()


def test_an_audit_misses_nothing_that_was_dropped(race: Race) -> None:
    run = race("a", keep="leaders", **MANY).folder
    assert not _pods(run).problems
    shutil.rmtree(run.root / "snapshots")
    assert len(_pods(run).problems) == 4  # those of the leaderboard are missed
