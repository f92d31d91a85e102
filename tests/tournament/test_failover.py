"""An orchestrator is killed and its pods live on: the next one takes them over, and nothing is
trained twice."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fintrader.errors import TournamentError
from fintrader.results.tournament_events import LaunchEvent, select_events
from fintrader.runs import RunFolder
from fintrader.system import read_process_start, try_lock
from fintrader.tournament import at_work
from fintrader.tournament import lease as leases
from fintrader.tournament.launchers import PodFailure
from fintrader.tournament.launchers.local import LocalLauncher, Slot
from fintrader.tournament.pod import run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.recount import check_tournament
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.spec import Fenced
from fintrader.tournament.store import RunStore
from tests.engines import chaos, stubs
from tests.engines.chaos import DONE, everything, fork
from tests.engines.orphans import trainings
from tests.engines.races import settings, stub_race
from tests.engines.waiting import PATIENCE_SECONDS, gone, until
from tests.quick import mostly_slow, slow_but
from tests.tournament.conftest import PODS

BODY = "tests.engines.orphans:body"
PATIENT = OperationsSettings(patience_seconds=PATIENCE_SECONDS, retries=50)


@pytest.fixture
def run(tmp_path):
    """A run's folder; whatever is at work in it at the end of the test is ended."""
    folder = RunFolder(tmp_path / "run")
    yield folder
    for _, pid in trainings(folder):
        if f"{tmp_path}" in _command_or_folder(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _command_or_folder(pid):
    """What tells that a process is a worker of this test: the files it has open."""
    with suppress(OSError):
        return " ".join(
            os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.exists()
        )
    return ""


def race(run, *, apart=False, **how):
    """The small tournament of `undisturbed`, its pods in processes; `apart`: scored in others."""
    wanted = settings(pods=PODS, workers=2, fresh=0.2)
    operations = PATIENT.model_copy(update={"evaluators": apart})
    return stub_race(run, wanted, body=BODY, operations=operations, **how)


def killed_with_pods_at_work(run, pods, **how):
    """Start the tournament, and SIGKILL its orchestrator when these pods are in the middle."""
    for pod in pods:
        stubs.plant(run, pod, "wait")
    pid = fork(lambda: race(run, **how))
    until(
        lambda: all(stubs.waiting(run.root / "faults" / pod) for pod in pods), "the pods that wait"
    )
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("at_work_still", "apart"),
    slow_but(0, every=[(True, False), (False, False), (True, True), (False, True)]),
    ids=["at work still", "ended meanwhile", "scored apart, still", "scored apart, ended"],
)
def test_the_same_command_takes_over_what_a_killed_one_left(run, undisturbed, at_work_still, apart):
    killed_with_pods_at_work(run, ["p0001", "p0002"], apart=apart)
    left = dict(trainings(run))
    assert set(at_work.list_at_work(run)) == {"p0001", "p0002"}
    with pytest.raises(TournamentError, match="is running"):
        check_tournament(run)
    if not at_work_still:
        stubs.release(run, ["p0001", "p0002"])
        until(
            lambda: {"p0001", "p0002"} <= set(chaos.acknowledged(run)),
            "their results without an orchestrator",
        )
        until(lambda: gone(left["p0001"]) and gone(left["p0002"]), "their processes to end")
    before = chaos.acknowledged(run)

    def watch(orchestrator):
        if any(event.orphan for event in select_events(orchestrator.log.records, LaunchEvent)):
            stubs.release(run, ["p0001", "p0002"])

    assert os.waitpid(fork(lambda: race(run, watch=watch, apart=apart)), 0)[1] == DONE
    assert sorted(pod for pod, _ in trainings(run)) == [f"p{number:04d}" for number in range(PODS)]
    launched = [event["pod"] for event in chaos.events_of(run, "launched") if event.get("orphan")]
    assert sorted(launched) == (["p0001", "p0002"] if at_work_still else [])
    assert chaos.check(run, before, everything(undisturbed)) == []
    assert chaos.events_of(run, "lost") == []
    assert at_work.list_at_work(run) == {}
    until(lambda: all(gone(pid) for _, pid in trainings(run)), "every process to be gone")


# --- one launcher after another -------------------------------------------------------------------


def launcher(run, *names, operations=PATIENT):
    access = PodContext(run, run.root / "market", operations=operations)
    return LocalLauncher(access, body=BODY, slots=lambda: [Slot(name) for name in names or ("a",)])


def left_behind(run, spec, operations=PATIENT):
    """Start a pod, and SIGKILL its launcher when the pod is at work; the pod's process."""

    def work():
        launcher(run, "b", operations=operations).submit(spec)
        time.sleep(PATIENCE_SECONDS)

    pid = fork(work)
    known = len(trainings(run))
    until(
        lambda: len(trainings(run)) > known and at_work.read_holder(run.pod(spec.pod)) is not None,
        "the pod at work",
    )
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return trainings(run)[-1][1]


def test_an_orphan_is_heard_and_keeps_its_slot_and_its_failure_counts(run):
    stubs.plant(run, "p0000", "wait")
    spec = stubs.spec(0, hyper={"breaks": True})
    orphan = left_behind(run, spec)
    with closing(launcher(run, "a", "b")) as local:
        assert local.list_orphans() == {"p0000"}
        future = local.submit(spec)
        until(lambda: local.report_progress()["p0000"].note == "working", "what the orphan says")
        assert local.report_progress()["p0000"].device == "b"
        assert local.list_orphans() == frozenset()
        stubs.release(run, ["p0000"])
        with pytest.raises(PodFailure, match="TrainingError: loss is no longer finite") as lost:
            future.result(timeout=PATIENCE_SECONDS)
        assert lost.value.reason == "nan"
        assert len(trainings(run)) == 1
        until(lambda: gone(orphan), "its process to be gone")
        again = local.submit(spec, attempt=2)  # what was lost is said once
        with pytest.raises(PodFailure, match="no longer finite"):
            again.result(timeout=PATIENCE_SECONDS)
        assert len(trainings(run)) == 2


def test_two_trainings_of_one_pod_at_once_are_impossible(run):
    """The second begins when the first process is gone, and not before."""
    stubs.plant(run, "p0000", "wait")
    spec = stubs.spec(0)
    orphan = left_behind(run, spec)
    with closing(launcher(run)) as one, closing(launcher(run)) as two:
        futures = [one.submit(spec), two.submit(spec)]
        until(
            lambda: all(local.report_progress()["p0000"].note for local in (one, two)),
            "both to hear of the orphan",
        )
        assert trainings(run) == [("p0000", orphan)]
        os.kill(orphan, signal.SIGKILL)
        until(lambda: len(trainings(run)) == 2, "one of them to go on")
        assert gone(orphan)
        stubs.release(run, ["p0000"])
        assert [future.result(timeout=PATIENCE_SECONDS).status for future in futures] == [
            "done",
            "done",
        ]
        assert len(trainings(run)) == 2
        assert futures[0].result() == futures[1].result() == RunStore(run).read_result("p0000")


@pytest.mark.parametrize(
    "how", mostly_slow("close", every=["close", "hung", "before it was taken over"])
)
def test_whoever_ends_pods_ends_those_it_took_over(run, how):
    stubs.plant(run, "p0000", "wait")
    orphan = left_behind(run, stubs.spec(0))
    local = launcher(run, operations=OperationsSettings(patience_seconds=0.01))
    if how != "before it was taken over":
        local.submit(stubs.spec(0))
        until(lambda: local.report_progress()["p0000"].note == "working", "what the orphan says")
    if how == "hung":
        until(lambda: bool(local.check_pods() or gone(orphan)), "it to be taken for hung")
    local.close()
    until(lambda: gone(orphan), "it to be gone")
    assert at_work.list_at_work(run) == {}
    assert len(trainings(run)) == 1


@pytest.mark.slow
def test_an_orphan_that_nobody_takes_over_ends_at_a_checkpoint(run):
    spec = stubs.spec(0, hyper={"counts": True})
    orphan = left_behind(run, spec, OperationsSettings(patience_seconds=0.2))
    until(lambda: gone(orphan), "it to end by itself")
    counted = [int(line) for line in (run.root / "counted").read_text().split()]
    assert counted == list(range(1, len(counted) + 1))
    assert int((run.pod("p0000") / "state.safetensors").read_bytes()) >= len(counted) - 1
    (run.root / "enough").touch()
    with closing(launcher(run)) as local:
        assert local.submit(spec).result(timeout=PATIENCE_SECONDS).status == "done"


@pytest.mark.slow
def test_an_orphan_waits_as_long_as_somebody_drives_the_run(run):
    """One slot for two orphans: the second is not abandoned."""
    spec = stubs.spec(0, hyper={"counts": True})
    run.root.mkdir()
    with leases.acquire(run, None):
        orphan = left_behind(run, spec, OperationsSettings(patience_seconds=0.1))
        number = len((run.root / "counted").read_text().split())
        until(
            lambda: len((run.root / "counted").read_text().split()) > number + 200, "it to count on"
        )
        assert not gone(orphan)
    until(lambda: gone(orphan), "it to end by itself")


def test_an_orphan_of_a_run_that_is_gone_leaves_nothing_in_the_one_that_lies_there_now(
    run,
):
    store = RunStore(run)
    other = stubs.spec(0, seed=7)
    store.write_spec(other)
    with pytest.raises(Fenced, match="now contains another run"):
        run_pod(stubs.spec(0), PodContext(run, run.root), stubs.body)
    assert not store.has_result("p0000")
    assert run_pod(other, PodContext(run, run.root), stubs.body).spec == other.digest


def test_without_takeover_pods_end_with_their_launcher(run):
    stubs.plant(run, "p0000", "wait")
    orphan = left_behind(run, stubs.spec(0), OperationsSettings(takeover=False))
    until(lambda: gone(orphan), "it to follow")


def test_nobody_is_signalled_by_a_number_alone(run):
    """Between the death of a pod's process and now its number may have become somebody else's."""
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    folder = run.pod("p0000")
    folder.mkdir(parents=True)
    with (folder / at_work.LOCK).open("wb") as lock, (folder / at_work.SIGN).open("wb") as file:
        assert try_lock(lock)
        here = at_work.describe_process()
        for wrong in ({"born": 1}, {"kernel": "another boot"}):
            born = {"pid": bystander.pid, "born": read_process_start(bystander.pid)}
            process = replace(here, **(born | wrong))
            at_work._write(file, at_work.Sign(process))
            sign = at_work.read_holder(folder)
            assert sign is not None
            at_work.end(folder, signal.SIGKILL)
            assert bystander.poll() is None
        at_work._write(file, replace(sign, process=replace(process, kernel=here.kernel)))
        at_work.end(folder, signal.SIGKILL)
        assert bystander.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    assert at_work.read_holder(folder) is None
    bystander.stdin.close()
