"""Objects of a store that nothing names are pruned: after kills, beside a run, and killed itself."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from fintrader.errors import RunError
from fintrader.files import hash_bytes
from fintrader.market.garbage import find_garbage, open_runs
from fintrader.storage import lease
from fintrader.storage.lease import hold
from fintrader.storage.mirror import Markets, attach
from fintrader.storage.objects import ObjectStore
from tests.engines import chaos, emptied, object_stores
from tests.engines.chaos import DONE, Faults, everything, forked
from tests.engines.waiting import until
from tests.quick import mostly_slow
from tests.tournament.conftest import PODS


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "looked-at"))
    monkeypatch.setattr(lease, "LAPSE_SECONDS", 0.0)  # a killed head is known to be dead at once


def find(store):
    stored = {store: open_runs(store)}
    for run in stored[store]:
        run.pull()
    return find_garbage((), (), cache=Path("no such cache"), stored=stored)


def litter(url, count=3):
    """Objects as a killed process leaves them; returns their names."""
    names = []
    for number in range(count):
        data = f"left behind {number}".encode()
        names.append(f"objects/{hash_bytes(data)}")
        ObjectStore(url).put(names[-1], data)
    return names


@pytest.mark.slow
@pytest.mark.parametrize(
    "stride", [601, pytest.param(chaos.amount(101, 7), marks=pytest.mark.slow)]
)
def test_a_run_that_was_struck_anywhere_is_pruned_and_goes_on(tmp_path, undisturbed, stride):
    expected = everything(undisturbed)
    counted, url = emptied.place(tmp_path, "count")
    attach(counted.root, url)
    points = forked(counted, PODS, faults=Faults("count", 0, tmp_path / "count.mark")).points
    store = url.rpartition("/")[0]
    left = 0
    for at in range(50, points, stride):
        run, url = emptied.place(tmp_path, f"kill-{at}")
        attach(run.root, url)
        forked(run, pods=PODS, faults=Faults("kill", at, tmp_path / f"{at}.mark"))
        before = emptied.results_in(url)
        litter(url)
        garbage = find(store)
        left += len(garbage.runs[url][1])
        garbage.remove()
        assert not find(store)
        shutil.rmtree(run.root)
        attach(run.root, url)
        assert forked(run, PODS).status == DONE
        assert emptied.check(run, url, before, expected) == [], at
        find(store).remove()
        shutil.rmtree(run.root)
        attach(run.root, url)
        assert forked(run, PODS).status == DONE
        assert emptied.check(run, url, emptied.results_in(url), expected) == [], at
        assert chaos.events_of(run, "damaged") == []
    assert left > 3 * len(range(50, points, stride))  # kills alone leave objects, too


@pytest.mark.parametrize("kind", mostly_slow("file", every=["memory", "file", "s3", "gs"]))
def test_every_kind_of_store_is_pruned(tmp_path, kind, monkeypatch):
    with object_stores.place(kind, tmp_path, monkeypatch) as store:
        mirror = attach(tmp_path / "run", f"{store}/run")
        (tmp_path / "run" / "inherited.json").write_text(f'{{"of": "{hash_bytes(b"parent")}"}}')
        with hold(mirror.objects):
            kept = [mirror.put_bytes(data) for data in (b"parent", b"curve")]
            mirror.create_pod_file("p0000", "result.json", "{}", {"metrics.jsonl": kept[1]})
            mirror.publish()
            (tmp_path / "run" / "report.html").write_text("of an earlier backtest")
            mirror.publish()
        with hold(mirror.objects):
            (tmp_path / "run" / "report.html").write_text("of a later backtest")
            mirror.publish()
            earlier = f"objects/{hash_bytes(b'of an earlier backtest')}"
            wanted = {*mirror.objects.list_names("objects")} - {earlier}
        litter(mirror.objects.url)
        market = tmp_path / "market.safetensors"
        for name in ("needed", "gone"):
            market.write_text(name)
            Markets(store).keep([hash_bytes(name.encode()), name], {market.name: market})
        with hold(mirror.objects):
            mirror.create_pod_file("p0000", "spec.json", hash_bytes(b"needed"))
        garbage = find(store)
        assert len(garbage.objects[f"{store}/.markets"][1]) == 3
        garbage.remove()
        assert not find(store)
        assert {*mirror.objects.list_names("objects")} == wanted
        assert {f"objects/{digest}" for digest in kept} < wanted
        assert Markets(store).fetch("needed", tmp_path / "fetched")
        assert not Markets(store).fetch("gone", tmp_path / "fetched")


@pytest.mark.slow
def test_a_killed_prune_leaves_garbage_and_nothing_else(tmp_path, undisturbed, monkeypatch):
    run, url = emptied.place(tmp_path, "run")
    store = url.rpartition("/")[0]
    attach(run.root, url)
    assert forked(run, PODS).status == DONE
    before = emptied.results_in(url)
    names = litter(url, 5)
    real = ObjectStore.remove
    for kill_at in range(3):
        child = os.fork()
        if child == 0:
            removed = []

            def remove(objects, *names, kill_at=kill_at, removed=removed):
                if names and names[0].startswith("objects/"):
                    if len(removed) == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    removed.append(names)
                real(objects, *names)

            monkeypatch.setattr(ObjectStore, "remove", remove)
            find(store).remove()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(set(names) & {*ObjectStore(url).list_names("objects")}) == 2  # 0, 1 and 2 went
    find(store).remove()
    assert not find(store)
    shutil.rmtree(run.root)
    attach(run.root, url)
    assert forked(run, PODS).status == DONE
    assert emptied.check(run, url, before, everything(undisturbed)) == []


@pytest.mark.slow
def test_a_run_at_work_is_not_pruned_and_loses_nothing(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setenv("STUB_SECONDS", "5")  # longer than a beat of the lease
    monkeypatch.setattr(lease, "LAPSE_SECONDS", 30.0)
    run, url = emptied.place(tmp_path, "run")
    store = url.rpartition("/")[0]
    attach(run.root, url)
    assert forked(run, 2).status == DONE
    names = litter(url)
    garbage = find(store)  # nobody is at work yet
    before = lease.find_newest_token(ObjectStore(url))
    head = emptied.start(run, url, PODS)
    until(lambda: lease.find_newest_token(ObjectStore(url)) > before, "the head")
    with pytest.raises(RunError, match="is in use by process"):
        garbage.remove()
    refused = 0
    while head.poll() is None:
        try:
            find(store)
        except RunError as error:
            assert "at work" in str(error)  # noqa: PT017
            refused += 1
    assert refused > 1
    assert head.wait() == DONE
    assert set(names) <= {*ObjectStore(url).list_names("objects")}
    assert emptied.check(run, url, {}, everything(undisturbed)) == []
