"""What stays of pods that have ended, and that nothing which is asked for later is missing."""

import os
import shutil
from dataclasses import replace
from functools import partial

import pytest

from fintrader.errors import RunError
from fintrader.results.leaderboard_reader import read_leaderboard
from fintrader.results.run import Run
from fintrader.results.tournament_events import DropEvent, list_dropped_pods, read_events
from fintrader.runs import RunFolder
from fintrader.storage.lease import hold
from fintrader.storage.mirror import attach, find_mirror, open_working_copy
from fintrader.tournament import retention
from fintrader.tournament.events import EventLog
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.recount import check_tournament
from fintrader.tournament.repair import repair
from fintrader.tournament.store import RunStore
from tests.engines import chaos, stubs
from tests.engines.chaos import DONE, Faults, events_of
from tests.engines.races import settings
from tests.quick import mostly_slow, slow_but

MANY = {"pods": 40, "leaderboard_size": 4, "ensemble_size": 2, "fresh": 0.2}


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(retention, "EVERY", 3)


def kept(run):
    """Pods whose policy is there; it is so with the snapshot, too."""
    store = RunStore(run)
    found = {
        pod for pod, result in store.read_results().items() if store.locate_policy(pod).is_file()
    }
    assert found == {
        pod
        for pod, result in store.read_results().items()
        if store.locate_snapshot(str(result.snapshot)).is_file()
    }
    return found


def board(ended):
    """The leaderboard without times and machines."""
    return [
        tuple(getattr(row, name) for name in ("pod", "score", "snapshot", "policy", "parent"))
        for row in ended.leaderboard
    ]


def ancestors(run, pods):
    """These and all that they descend from, found the long way."""
    specs = RunStore(run).read_specs()
    found = set(pods)
    for _ in specs:
        found |= {str(specs[pod].parent) for pod in found if specs[pod].parent}
    return found


@pytest.mark.parametrize("order", mostly_slow("submission", every=["submission", "arrival"]))
def test_leaders_or_their_lineage_stay_and_the_outcome_is_the_same(race, order):
    runs = {
        keep: race(keep, keep=keep, order=order, **MANY) for keep in ("all", "lineage", "leaders")
    }
    for keep, ended in runs.items():
        rows = {row.pod for row in ended.leaderboard}
        wanted = {
            "all": set(RunStore(ended.folder).read_specs()),
            "lineage": ancestors(ended.folder, rows),
            "leaders": rows,
        }
        assert kept(ended.folder) == wanted[keep]
        checks = check_tournament(ended.folder).checks
        assert [check.problems for check in checks if check.name != "specs"] == [()] * 6
        assert len(RunStore(ended.folder).read_results()) == 40
    if order == "submission":
        assert board(runs["all"]) == board(runs["lineage"]) == board(runs["leaders"])
        assert (
            runs["all"].ensemble_policy.read_bytes() == runs["leaders"].ensemble_policy.read_bytes()
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", slow_but(0, every=[{}, {"order": "generations", "pool_size": 6, "survivors": 2}])
)
def test_it_goes_on_where_much_was_dropped(race, how):
    whole = race("b", keep="all", **{**MANY, **how, "pods": 60})
    for pods in (36, 60, 60):
        went_on = race("a", keep="leaders", **{**MANY, **how, "pods": pods})
    assert board(went_on) == board(whole)
    assert not events_of(went_on.folder, "damaged")


def test_what_a_kill_left_undeleted_goes_with_the_next_start(race, tmp_path):
    run = race("a", keep="leaders", **MANY).folder
    before = kept(run)
    gone = events_of(run, "dropped")[0]["pods"][0]
    RunStore(run).locate_policy(gone).write_bytes(b"left over")
    leftover = run.pod(gone) / "state.safetensors"
    leftover.write_bytes(b"left over, too")
    race("a", keep="leaders", **MANY)
    assert not leftover.exists()
    assert kept(run) == before


def test_a_dropped_parent_is_trained_again_where_somebody_needs_it(race):
    """As one who had lost the run may have made a child that its heir knew nothing of."""
    run = race("a", keep="all", **MANY).folder
    store = RunStore(run)
    child = next(spec for spec in reversed(store.read_specs().values()) if spec.sources)
    (parent,) = child.sources
    grown = store.read_result(child.pod)
    store.locate_result(child.pod).unlink()
    EventLog(run.events).append(DropEvent(pods=(parent,)))
    store.drop(store.read_result(parent))

    def dies(spec, context):
        if spec.pod == child.pod:
            raise KeyboardInterrupt
        return stubs.body(spec, context)

    with pytest.raises(KeyboardInterrupt):
        race("a", keep="leaders", body=dies, **MANY)
    assert store.has_result(parent)
    ended = race(
        "a", keep="leaders", **MANY
    ).folder  # the next start leaves alone what is needed again
    assert store.read_result(child.pod).snapshot == grown.snapshot
    assert [event["pod"] for event in events_of(ended, "damaged")] == [parent]
    race("a", keep="leaders", **MANY)
    assert store.has_leftovers(store.read_result(parent)) == (parent in kept(ended))


@pytest.mark.slow
@pytest.mark.parametrize("stride", [83, 11])
def test_killed_anywhere_nothing_that_is_kept_is_gone(tmp_path, stride):
    how = {
        "pods": 10,
        "leaderboard_size": 2,
        "ensemble_size": 2,
        "workers": 2,
        "keep": "leaders",
    }
    wanted = settings(**how)
    whole = RunFolder(tmp_path / "whole")
    chaos.stub_race_of(whole, wanted)
    struck = 0
    for at in range(7, 5000, stride):
        run = RunFolder(tmp_path / f"at-{at}")
        faults = Faults("kill", at, tmp_path / f"at-{at}.mark")
        strike = partial(_struck, run, wanted, faults)
        os.waitpid(chaos.fork(strike), 0)
        if not faults.mark.exists():
            break
        struck += 1
        assert (
            os.waitstatus_to_exitcode(
                os.waitpid(chaos.fork(partial(chaos.stub_race_of, run, wanted)), 0)[1]
            )
            == DONE
        )
        assert rows(run) == rows(whole)
        assert kept(run) == kept(whole)
        assert not events_of(run, "damaged")
    assert struck >= 3


def _struck(run, wanted, faults):
    chaos.install(faults)
    chaos.stub_race_of(run, wanted)


def rows(run):
    return [
        (row.pod, row.score, row.snapshot, row.policy) for row in read_leaderboard(run.leaderboard)
    ]


def test_what_others_have_too_stays(race):
    """Snapshots are stored by content, once however many pods have them."""

    def twins(spec, context):
        learned = stubs.body(spec, context)
        same = open_store(context.run, context.mirror).put(b"snapshot of all")
        return replace(learned, snapshot=same)

    run = race("a", keep="leaders", body=twins, **MANY).folder
    store = RunStore(run)
    assert len(events_of(run, "dropped")) > 1
    assert store.has_snapshot(str(store.read_result("p0000").snapshot))


def test_the_state_of_a_training_goes_with_its_result(race):
    def body(spec, context):
        (context.folder / "state.safetensors").write_bytes(b"a replay buffer")
        (context.folder / "round-1" / "replica-0").mkdir(parents=True, exist_ok=True)
        (context.folder / "round-1" / "replica-0" / "state.safetensors").write_bytes(b"another")
        if spec.pod == "p0001":
            for name in ("metrics.jsonl", "failed.safetensors"):
                (context.folder / name).write_bytes(b"what there was")
            raise ValueError("it fails")
        return stubs.body(spec, context)

    run = race(pods=3, body=body, retries=0, keep="leaders").folder
    ended = {".lock", ".sign", "result.json", "spec.json"}
    for pod in ("p0000", "p0002"):
        names = {path.name for path in run.pod(pod).iterdir()}
        assert names == ended | {"metrics.jsonl", "policy.safetensors"}
    failed = {path.name for path in run.pod("p0001").iterdir()}
    assert failed == ended | {"metrics.jsonl", "failed.safetensors"}


@pytest.mark.slow
def test_a_store_forgets_what_is_dropped_and_a_new_disk_goes_on(race, tmp_path, stored_run, url):
    first = race("run", keep="leaders", order="submission", **MANY)
    objects = {path.name for path in (tmp_path / "store" / "run" / "objects").iterdir()}
    results = RunStore(stored_run).read_results()
    rows = {row.pod for row in first.leaderboard}
    assert {result.snapshot for result in results.values()} & objects == {
        results[pod].snapshot for pod in rows
    }
    assert {result.policy for result in results.values()} & objects == {
        results[pod].policy for pod in rows
    }
    shutil.rmtree(tmp_path / "run")
    attach(tmp_path / "run", url)
    ended = race("run", keep="leaders", order="submission", **{**MANY, "pods": 44})
    undisturbed = race("other", keep="all", order="submission", **{**MANY, "pods": 44})
    assert board(ended) == board(undisturbed)
    assert open_working_copy(url, tmp_path / "copy").is_dir()


def test_a_store_forgets_files_that_the_heads_disk_never_had(race, stored_run):
    race("run", pods=3)
    mirror = find_mirror(stored_run.root)
    store = open_store(stored_run, mirror)
    result = store.read_result("p0000")
    RunStore(stored_run).drop(result)
    with hold(mirror.objects):
        mirror.pull()
        assert store.has_leftovers(result)
        store.drop(result)
        assert not store.has_leftovers(result)
    hashes = mirror.list_hashes_of_files("p0000")
    assert len(hashes) == 2
    assert not any(mirror.objects.exists(f"objects/{digest}") for digest in hashes)


def test_a_recount_misses_nothing_that_was_dropped(race):
    run = race("a", keep="leaders", **MANY).folder
    assert not check_tournament(run).problems
    gone = events_of(run, "dropped")[0]["pods"][0]
    RunStore(run).locate_policy(gone).write_bytes(b"another")
    assert check_tournament(run).problems == [f"pods/{gone}/policy.safetensors was changed"]
    repair(run)
    assert not check_tournament(run).problems
    shutil.rmtree(run.root / "snapshots")
    assert len(check_tournament(run).problems) == 4  # those of the leaderboard are missed


def test_who_asks_for_a_policy_that_was_not_kept_is_told(race):
    run = race("a", keep="leaders", **MANY).folder
    gone = next(iter(list_dropped_pods(read_events(run.events))))
    with pytest.raises(RunError, match="was not kept"):
        Run(run).policy_path(gone)
    there = Run(run).policy_path("best", run)
    assert there == run.root.resolve() / "pods" / str(rows(run)[0][0]) / "policy.safetensors"
