"""A pod's training state in the store: a machine is lost in the middle, another one with an empty
disk goes on."""

import shutil
from functools import partial

import pytest

from fintrader.agents import Budget
from fintrader.files import hash_file, read_jsonl
from fintrader.runs import RunFolder
from fintrader.storage.mirror import attach, find_mirror, open_working_copy
from fintrader.storage.objects import ObjectStore
from fintrader.tournament.fusion import learners
from fintrader.tournament.launchers import PodFailure
from fintrader.tournament.launchers.local import LocalLauncher, Slot
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.pod import run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.state_sync import TrainingState
from tests.engines import object_stores, stubs
from tests.engines.races import market_file
from tests.engines.runs import Struck
from tests.engines.waiting import PATIENCE_SECONDS, until
from tests.tournament.test_fusion import fused_spec

STEPS = 1280  # forty updates of one learner


def stored(url, pod):
    """The files of a pod's state in the store."""
    state = ObjectStore(url).read_sealed(f"pods/{pod}/state.json")
    return {} if state is None else dict(state["files"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "state"),
    [
        pytest.param("s3", {"replicas": 1}, "state.safetensors", marks=pytest.mark.slow),
        ("file", {"replicas": 2, "fusions": 4}, "round-2/replica-0/state.safetensors"),
    ],
)
def test_another_machine_goes_on_in_the_middle(tmp_path, kind, changes, state, monkeypatch):
    monkeypatch.setattr(
        learners, "train", partial(learners.train, checkpoint_seconds=0.0)
    )  # after every update
    spec = fused_spec(budget=Budget(env_steps=STEPS), **changes)
    market = market_file(tmp_path)
    told = []

    def report(share, env_steps, note):
        told.append((share, env_steps))

    def train(folder, **how):
        return run_pod(spec, PodContext(folder, market, find_mirror(folder.root), **how))

    undisturbed = train(RunFolder(tmp_path / "undisturbed"), report=report)
    begin = told[0][0]
    with object_stores.place(kind, tmp_path, monkeypatch) as url:
        first = RunFolder(open_working_copy(url, tmp_path / "first"))
        open_store(first, find_mirror(first.root)).write_spec(spec)

        def strike(share, env_steps, note):
            if share > 0.5:
                here = hash_file(first.pod(spec.pod) / state)
                until(lambda: stored(url, spec.pod).get(state) == here)
                raise Struck

        with pytest.raises(Struck):
            train(first, report=strike, operations=OperationsSettings(store_seconds=0.02))
        shutil.rmtree(tmp_path / "first")

        second = RunFolder(open_working_copy(url, tmp_path / "second"))
        told.clear()
        result = train(second, attempt=2, report=report, operations=OperationsSettings())
        assert begin < 0.1
        assert told[0][0] > 0.5  # it did not start over
        assert result.reproducible == undisturbed.reproducible
        assert open_store(second, find_mirror(second.root)).get(str(result.snapshot))
        records = read_jsonl(
            second.pod(spec.pod) / state.replace("state.safetensors", "metrics.jsonl")
        )
        assert [record["update"] for record in records] == list(range(1, len(records) + 1))
        left = [name for name in ObjectStore(url).list_names("pods") if "/state" in name]
        assert left == []


def test_what_a_killed_writer_left_behind_is_cleared_away_at_the_next_start(stored_run, url, race):
    race("run", pods=2)
    store = ObjectStore(url)
    for name in ("pods/p0000/state.json", "pods/p0001/state/0123", "pods/p0007/state/0123"):
        store.put(name, b"left behind")
    race("run", pods=2)
    assert [name for name in store.list_names("pods") if "/state" in name] == [
        "pods/p0007/state/0123"
    ]  # it may yet run


def checkpoint(folder, url):
    pod = folder / "run" / "pods" / "p0000"
    pod.mkdir(parents=True, exist_ok=True)
    return TrainingState(attach(folder / "run", url), "p0000", "digest", pod), pod


def test_which_state_counts_and_what_is_left_aside(tmp_path, url):
    (one, here), (two, there) = (checkpoint(tmp_path / name, url) for name in ("one", "two"))
    assert not one.restore()
    assert not one.save()  # there is nothing yet
    (here / "state.safetensors").write_text("half way")
    (here / "fused-0.safetensors").write_text("first round")
    for name in (
        "round-0/replica-0/state.safetensors",
        "round-1/replica-0/state.safetensors",
        "rank-1.log",
        ".lock",
    ):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    assert one.save()
    assert not one.save()
    assert sorted(stored(url, "p0000")) == [
        "fused-0.safetensors",
        "round-1/replica-0/state.safetensors",  # round 0 is over
        "state.safetensors",
    ]
    (here / "state.safetensors").write_text("a little further")
    assert not checkpoint(tmp_path / "one", url)[
        0
    ].restore()  # after a kill, this disk knows better
    (there / "state.safetensors").write_text("older than what is stored")
    assert two.restore()
    assert (there / "state.safetensors").read_text() == "half way"
    (there / "state.safetensors").write_text("further")
    assert two.save()
    assert (
        len(ObjectStore(url).list_names("pods/p0000/state")) == 3
    )  # what nobody asks for any more is gone
    assert checkpoint(tmp_path / "one", url)[0].restore()
    assert (here / "state.safetensors").read_text() == "further"
    assert (here / "rank-1.log").is_file()

    store = ObjectStore(url)
    stranger = TrainingState(attach(tmp_path / "two" / "run", url), "p0000", "another spec", there)
    (there / ".stored.json").unlink()
    assert not stranger.restore()
    store.put(f"pods/p0000/state/{stored(url, 'p0000')['state.safetensors']}", b"damaged")
    assert not two.restore()
    assert (there / "state.safetensors").read_text() == "further"
    assert stored(url, "p0000") == {}


def test_a_worker_that_is_drained_stores_its_state_first(stored_run, url):
    run = stored_run
    mirror = find_mirror(run.root)
    stubs.plant(run, "p0000", "wait")
    local = LocalLauncher(
        PodContext(
            run, run.root / "market", mirror, operations=OperationsSettings(store_seconds=3600.0)
        ),
        body="tests.engines.stubs:body",
        slots=lambda: [Slot("a")],
    )
    try:
        open_store(run, mirror).keep_market("", stubs.market(run.root))
        future = local.submit(stubs.spec(0))
        until(lambda: bool(local.report_progress()["p0000"].note))
        until(lambda: (run.pod("p0000") / "state.safetensors").exists())
        assert stored(url, "p0000") == {}
        local.resize(0)
        local.check_pods()
        with pytest.raises(PodFailure, match="drained"):
            future.result(timeout=PATIENCE_SECONDS)
        assert list(stored(url, "p0000")) == ["state.safetensors"]
    finally:
        local.close()
