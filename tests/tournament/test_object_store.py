"""Tournaments whose run lies in a store: killed, moved to an empty disk, damaged, looked at."""

import random
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from uuid import uuid4

import psutil
import pytest

from fintrader.errors import CheckpointError, ConfigError, RunError, StorageDamagedError
from fintrader.files import dump_json, hash_bytes, read_jsonl, seal
from fintrader.results.leaderboard_reader import lineage, read_pods
from fintrader.runs import RunFolder
from fintrader.storage import lease as leases
from fintrader.storage.lease import hold
from fintrader.storage.mirror import Markets, attach, find_mirror, open_working_copy
from fintrader.storage.objects import ObjectStore
from fintrader.tournament.messages import FailureMessage, PodTask, ResultMessage
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.pod import run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.repair import repair
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.spec import Fenced
from fintrader.tournament.state_sync import TrainingState
from fintrader.tournament.status import compare, make_index, read_status
from fintrader.tournament.store import RunStore
from tests.engines import chaos, emptied, object_stores, stubs
from tests.engines.chaos import DONE, Faults, everything, forked
from tests.engines.object_stores import BUCKET
from tests.engines.thread_launcher import ThreadLauncher
from tests.engines.waiting import gone, until
from tests.quick import mostly_slow, slow_but
from tests.tournament.conftest import PODS


@pytest.fixture
def run(stored_run):
    return stored_run


def empty(run, url):
    """A new disk in the place of the head's."""
    shutil.rmtree(run.root)
    attach(run.root, url)


@pytest.mark.parametrize("hours", slow_but(0, every=[1, -1]))
def test_a_clock_that_jumps_an_hour_costs_nothing(race, run, monkeypatch, hours):
    """Whoever holds the run keeps it, no pod is taken for hung, and nothing is done twice."""
    plain = race("plain", order="submission")
    real = time.time

    def jump(orchestrator):
        if len(orchestrator.leaderboard.applied) >= 3:
            monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)

    stored = race("run", order="submission", how={"watch": jump})
    assert abs(time.time() - real()) > 3000
    assert compare(plain.folder, run) == []
    assert not [event for event in read_jsonl(run.events) if event["event"] == "lost"]
    assert (
        race("run", order="submission", body="tests.nowhere:body").leaderboard == stored.leaderboard
    )


@pytest.mark.parametrize("kind", mostly_slow("file", every=["memory", "file", "s3", "gs"]))
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(
            {"order": "generations", "pool_size": 4, "survivors": 2, "pods": 12},
            marks=pytest.mark.slow,
        ),
        {"order": "submission"},
    ],
    ids=str,
)
def test_the_outcome_is_the_same_with_and_without_a_store(tmp_path, race, kind, how, monkeypatch):
    plain = race("plain", **how)
    with object_stores.place(kind, tmp_path, monkeypatch) as url:
        run = RunFolder(tmp_path / "stored")
        attach(run.root, f"{url}/stored")
        stored = race("stored", **how)
        assert compare(plain.folder, run) == []
        assert (
            run.ensemble / "policy.safetensors"
        ).read_bytes() == plain.ensemble_policy.read_bytes()
        assert stored.members == plain.members

        shutil.rmtree(run.root)  # a finished one is finished elsewhere, too, and costs no pod
        attach(run.root, f"{url}/stored")
        again = race("stored", **how, body="tests.nowhere:body")
        assert again.leaderboard == stored.leaderboard
        assert compare(plain.folder, run) == []

        copy = open_working_copy(
            f"{url}/stored", tmp_path / "copies"
        )  # somebody looks on, without writing
        mirror = find_mirror(copy)
        before = mirror.objects.list_names()
        mirror.pull(curves=True)
        assert make_index(RunFolder(copy)) == len(stored.leaderboard)
        assert compare(RunFolder(copy), plain.folder) == []
        assert not read_status(RunFolder(copy)).active
        best = lineage(read_pods(RunFolder(copy).leaderboard), stored.best)[0]
        assert best.score == stored.leaderboard[0].score
        assert mirror.objects.list_names() == before


@pytest.mark.parametrize(
    ("mode", "stride"),
    [
        ("kill", 301),
        pytest.param("kill", chaos.amount(61, 3), marks=pytest.mark.slow),
        pytest.param("torn", chaos.amount(151, 3), marks=pytest.mark.slow),
    ],
)
def test_struck_anywhere_then_the_disk_is_emptied(tmp_path, undisturbed, mode, stride):
    expected = everything(undisturbed)
    struck = 0
    counted, url = emptied.place(tmp_path, "count")
    attach(counted.root, url)
    points = forked(counted, PODS, faults=Faults("count", 0, tmp_path / "count.mark")).points
    for at in range(7, points, stride):
        run, url = emptied.place(tmp_path, f"{mode}-{at}")
        faults = Faults(mode, at, tmp_path / f"{mode}-{at}.mark")
        strike = partial(forked, pods=PODS, faults=faults)
        struck += emptied.strike_and_empty(run, url, PODS, expected, strike)
    assert struck > 1


@pytest.mark.slow
def test_struck_in_the_middle_of_a_pod_then_the_disk_is_emptied(tmp_path, undisturbed):
    """Head, and with it its pods in their own processes."""
    run, url = emptied.place(tmp_path, "run")
    strike = partial(chaos.kill_at_work, pods=PODS)
    assert emptied.strike_and_empty(run, url, PODS, everything(undisturbed), strike)


@pytest.mark.slow
def test_struck_at_random_moments_before_s3_then_the_disk_is_emptied(
    tmp_path, undisturbed, s3, monkeypatch
):
    """A head in a process, and its pods in theirs, are killed after a share of what a whole run
    takes."""
    monkeypatch.setenv("STUB_SECONDS", "0.2")
    expected = everything(undisturbed)
    chance = random.Random(5)
    began = time.perf_counter()
    assert emptied.start(RunFolder(tmp_path / "first"), f"s3://{BUCKET}/first", PODS).wait() == DONE
    whole = time.perf_counter() - began
    struck = 0
    for number in range(chaos.amount(2, 40)):
        run = RunFolder(tmp_path / "machine" / f"run-{number}")
        url = f"s3://{BUCKET}/run-{number}"
        head = emptied.start(run, url, PODS)
        with suppress(subprocess.TimeoutExpired):
            head.wait(timeout=chance.uniform(0.25, 1.0) * whole)
        struck += head.poll() is None
        head.kill()
        head.wait()
        before = emptied.results_in(url)
        problems = emptied.lost_before(run, url)
        shutil.rmtree(run.root, ignore_errors=True)
        assert emptied.start(run, url, PODS).wait() == DONE
        assert problems + emptied.check(run, url, before, expected) == []
    assert struck > 0


@pytest.mark.slow
def test_another_machine_takes_over_from_a_head_that_was_struck(tmp_path, undisturbed, monkeypatch):
    """With the leases of a real run, and with pods that outlive their head."""
    for number in range(chaos.amount(1, 3)):
        url = f"file://{tmp_path}/store/{number}"
        one, two = (RunFolder(tmp_path / machine / f"{number}") for machine in ("one", "two"))
        monkeypatch.setenv("STUB_SECONDS", "60")
        first = emptied.start(one, url, PODS, "one")
        until(lambda run=one: bool(chaos.events_of(run, "launched")), "the first pod")
        assert emptied.start(two, url, PODS, "two").wait() == chaos.REFUSED
        pods = psutil.Process(first.pid).children()
        first.kill()
        first.wait()
        before = emptied.results_in(url)
        monkeypatch.setenv("STUB_SECONDS", "0")
        second = emptied.start(two, url, PODS, "two")
        while second.wait() == chaos.REFUSED:  # a supervisor starts it again, until the lease ends
            second = emptied.start(two, url, PODS, "two")
        assert second.returncode == DONE
        assert chaos.events_of(two, "resumed")
        until(lambda pods=pods: all(gone(pod.pid) for pod in pods), "the first machine's pods")
        assert emptied.check(two, url, before, everything(undisturbed)) == []


def test_a_superseded_head_and_its_pods_change_nothing(tmp_path, run, url, race):
    store = ObjectStore(url)
    late = leases.StoreLease(store, leases._acquire_token(store, 0))  # a head that sleeps
    leases._held.clear()
    store.put(
        f"lease/{late.token:06d}.json", leases.LeaseRecord(late.token, released=True).encode()
    )
    race("run", pods=2)
    told = [event["event"] for event in read_jsonl(run.events)]
    spec = replace(RunStore(run).read_spec("p0000"), pod="p0002", index=2)
    elsewhere = RunFolder(tmp_path / "elsewhere" / "run")
    attach(elsewhere.root, url)
    with pytest.raises(Fenced):  # its machine is not the one that drives the run now
        run_pod(
            spec,
            PodContext(elsewhere, tmp_path, find_mirror(elsewhere.root), token=late.token),
            stubs.body,
        )
    assert "pods/p0002/result.json" not in store.list_names("pods")
    leases._held[url] = late  # it wakes, and writes on for a moment
    mirror = find_mirror(run.root)
    mirror.append_events('{"event": "nonsense"}\n', lambda: '{"event": "nonsense"}\n')
    mirror.publish()
    with pytest.raises(RunError, match="taken"):
        late.renew()
        late.check()
    leases._held.clear()
    empty(run, url)
    race("run", pods=2)
    assert [event["event"] for event in read_jsonl(run.events)][: len(told)] == told


@pytest.mark.parametrize(
    "victim",
    mostly_slow("snapshot", every=["snapshot", "snapshot gone", "policy", "result", "half result"]),
)
def test_a_damaged_object_is_made_again(run, url, undisturbed, victim):
    assert forked(run, PODS - 1).status == DONE
    store = ObjectStore(url)
    last = RunStore(undisturbed).read_spec(f"p{PODS - 1:04d}")
    pod = last.parent or "p0000"  # the next pod will ask for its parent's snapshot
    result = RunStore(run).read_result(pod)
    name = f"pods/{pod}/result.json"
    whole = store.get(name) or b""
    match victim:
        case "snapshot":
            store.put(f"objects/{result.snapshot}", b"something else")
        case "snapshot gone":
            store.remove(f"objects/{result.snapshot}")
        case "policy":
            store.put(f"objects/{result.policy}", b"something else")
        case "result":
            store.put(name, whole.replace(b"score", b"sCore", 1))
        case "half result":
            store.put(name, whole[:100])
    empty(run, url)
    status = forked(run, PODS).status
    if status != DONE:  # noticed only when it was asked for: the same command mends it
        assert victim in ("snapshot", "policy")
        status = forked(run, PODS).status
    assert status == DONE
    assert everything(run) == everything(undisturbed)
    assert emptied.check(run, url, {}, everything(undisturbed)) == []


def test_damaged_state_that_cannot_be_made_again_is_told(tmp_path, run, url, race):
    race("run", pods=3)
    store = ObjectStore(url)
    kept = {name: store.get(name) or b"" for name in store.list_names()}
    index = max(name for name in kept if name.startswith("index/"))
    events = max(name for name in kept if name.startswith("events/"))
    for name in (index, events, "pods/p0001/spec.json"):
        store.put(name, kept[name][:-20])
        empty(run, url)
        with pytest.raises(StorageDamagedError, match=name):
            race("run", pods=3)
        store.put(name, kept[name])
    store.put(index, seal({"text": '{"../outside": "0000"}\n'}))
    with pytest.raises(StorageDamagedError, match="outside"):
        race("run", pods=3)
    assert not (tmp_path / "outside").exists()
    store.put(index, kept[index])
    race("run", pods=3)


def test_a_run_may_get_a_store_later_and_lose_its_database(tmp_path, race, url):
    plain = race("run", pods=4)
    board = plain.leaderboard
    run = plain.folder
    attach(run.root, url)
    race("run", pods=4)
    empty(run, url)
    again = race("run", pods=4, body="tests.nowhere:body")
    assert again.leaderboard == board
    run.leaderboard.unlink()
    assert repair(run) == ["leaderboard.sqlite: rebuilt from 4 results"]
    with pytest.raises(RunError, match="copy of"):
        attach(run.root, f"file://{tmp_path}/store/other")


def test_a_tournament_inside_a_run(tmp_path, race, run, url):
    """Like the null model: its pods lie below its own name, its files in the index of the run,
    under one lease."""
    home = run
    plain = race("plain", pods=4)
    with hold(ObjectStore(url)) as held:
        for name in ("run", "run/null_model", "run/folds/00/null_model"):
            race(name, pods=4)
        assert held.token == 1
    shutil.rmtree(home.root)
    mirror = attach(home.root, url)
    with hold(mirror.objects):
        mirror.pull()
        for name in ("run", "run/null_model", "run/folds/00/null_model"):
            folder = RunFolder(tmp_path / name)
            assert make_index(folder) == 4
            assert compare(folder, plain.folder) == []
            assert (folder.ensemble / "policy.safetensors").is_file()
            race(name, pods=4, body="tests.nowhere:body")


def test_a_cluster_node_that_does_not_see_the_folder(tmp_path, race, monkeypatch, stored_run, url):
    """What a Ray task does there: with a store it works from a copy of its own, without one it says
    what is wrong."""
    ray = pytest.importorskip("ray", reason="Ray is missing: pip install '.[ray]'")
    from fintrader.tournament.launchers.ray.tasks import run_task

    here = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "node"))
    run = RunFolder(stored_run.root / "null_model")
    race("run/null_model", pods=3)
    task = PodTask(
        spec=replace(RunStore(run).read_spec("p0002"), pod="p0003", index=3),
        run=str(tmp_path / "another" / "machine"),
        market=str(tmp_path / "another" / "market.safetensors"),
        mirror=None,
        token=leases.find_newest_token(ObjectStore(url)),
        body="tests.engines.stubs:body",
        operations=OperationsSettings(store_seconds=60.0),
    )
    *_, word = run_task(task)
    assert isinstance(word, FailureMessage)
    assert "or the run must be in a store" in word.detail
    *_, word = run_task(replace(task, mirror={"url": url, "inside": "null_model/"}))
    assert isinstance(word, ResultMessage), word
    assert open_store(run, find_mirror(run.root)).has_result("p0003")
    assert RunStore(run).read_result("p0003").score == word.result.score


def test_a_tournament_whose_pods_never_see_the_heads_disk(tmp_path, run, url, race):
    how = {"order": "generations", "pool_size": 4, "survivors": 2, "pods": 12}
    plain = race("plain", **how)
    node = RunFolder(open_working_copy(url, tmp_path / "node"))

    def far(settings, access):
        return ThreadLauncher(node, tmp_path / "nowhere", stubs.body, workers=2, token=access.token)

    race("run", **how, how={"launcher": far})
    assert compare(plain.folder, run) == []
    assert (run.ensemble / "policy.safetensors").read_bytes() == plain.ensemble_policy.read_bytes()
    assert not list(run.pods.glob("*/metrics.jsonl"))  # that is where the pods were
    assert list(node.pods.glob("*/metrics.jsonl"))
    with pytest.raises(CheckpointError, match="no market"):
        open_store(node, find_mirror(node.root)).fetch_market("unknown", tmp_path / "nowhere")


def test_a_store_in_memory_cannot_serve_other_processes(tmp_path, race):
    attach(tmp_path / "run", f"memory://{uuid4().hex}/run")
    with pytest.raises(ConfigError, match="this process only"):
        race("run", processes=True)


def test_nobody_writes_without_the_lease(tmp_path):
    mirror = attach(tmp_path / "run", f"file://{tmp_path}/store/run")
    with pytest.raises(Exception, match="does not hold"):
        mirror.publish()


@pytest.mark.parametrize("name", ["../away", "a/../../away", "/away", ".ssh/key", "snapshots/x"])
def test_a_store_writes_nothing_outside_the_places_of_a_run(tmp_path, run, url, name):
    store = ObjectStore(url)
    name = str(tmp_path / name) if name.startswith("/") else name
    digest = hash_bytes(b"foreign")
    for place in ("objects", "pods/p0000/state"):
        store.put(f"{place}/{digest}", b"foreign")
    store.put("index/000001-000000.all.json", seal({"text": dump_json({name: digest})}))
    mirror = find_mirror(run.root)
    with pytest.raises(StorageDamagedError, match="which is no file of a run"):
        mirror.pull()
    if name != "snapshots/x":
        folder = run.pod("p0000")
        store.put("pods/p0000/state.json", seal({"spec": "x", "files": {name: digest}}))
        assert not TrainingState(mirror, "p0000", "x", folder).restore()
        markets = Markets(store.url)
        markets.objects.put("key.json", seal({name: digest}))
        with pytest.raises(StorageDamagedError, match="which is no file of a market"):
            markets.fetch("key", tmp_path / "market")
    assert not [path for path in tmp_path.rglob("*") if path.name in ("away", "key", "x")]
