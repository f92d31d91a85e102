"""On a Ray cluster an orchestrator is killed and its pods live on: the next one finds them by
name."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fintrader.runs import RunFolder
from fintrader.storage.lease import claim
from fintrader.storage.mirror import attach
from fintrader.tournament.launchers.ray.actors import PodActor
from fintrader.tournament.messages import ProgressMessage
from fintrader.tournament.pod_context import PodContext
from tests.engines import chaos, stubs
from tests.engines.orphans import trainings
from tests.engines.ray_race import Racer, generational
from tests.engines.thread_launcher import ThreadLauncher
from tests.engines.waiting import PATIENCE_SECONDS, gone, until

pytestmark = pytest.mark.ray


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", ["they train", "they end"])
def test_pods_outlive_a_killed_orchestrator_and_are_taken_over(nodes, tmp_path, started, meanwhile):
    undisturbed = RunFolder(tmp_path / "undisturbed")
    run = RunFolder(tmp_path / "run")
    generational(
        undisturbed, ThreadLauncher(undisturbed, tmp_path, stubs.body, workers=4), "stub", pods=8
    )
    left = ["p0000", "p0001"]
    changes = {"pods": 8, "patience_seconds": PATIENCE_SECONDS}
    for pod in left:
        stubs.plant(run, pod, "wait")
    racer = started(Racer(run, nodes.address, "leaving", **changes))
    until(lambda: _waiting(run, left) and len(racer.note()["pods"]) == 2, "two pods that wait")
    processes = {pod: pid for pod, (_, pid) in racer.note()["pods"].items()}
    racer.process.kill()
    racer.process.wait()
    if meanwhile == "they end":
        stubs.release(run, left)
        until(
            lambda: sorted(chaos.acknowledged(run)) == left, "their results without an orchestrator"
        )
    before = chaos.acknowledged(run)
    again = started(Racer(run, nodes.address, "leaving", **changes))
    if meanwhile == "they train":
        until(lambda: len(again.note()["pods"]) == 2, "them to be taken over")
        assert {pod: pid for pod, (_, pid) in again.note()["pods"].items()} == processes
        stubs.release(run, left)
    assert again.wait() == (0, "")
    assert chaos.events_of(run, "lost") == []
    orphans = [event["pod"] for event in chaos.events_of(run, "launched") if event.get("orphan")]
    assert sorted(orphans) == (left if meanwhile == "they train" else [])
    assert chaos.check(run, before, chaos.everything(undisturbed)) == []
    until(lambda: all(gone(pid) for pid in processes.values()), "their processes to be gone")


def test_a_pod_that_ends_between_two_orchestrators_waits_for_the_token_of_the_second(
    tmp_path,
):
    """On a node with a copy of its own, where nothing but whoever listens tells who drives the
    run."""
    copy = RunFolder(tmp_path / "copy")
    url = f"file://{tmp_path}/store/run"
    spec = stubs.spec(0)
    mirror = attach(copy.root, url)
    tokens = [claim(mirror.objects), claim(mirror.objects)]
    context = PodContext(copy, stubs.market(tmp_path), mirror)
    task = replace(context.build_task(spec, "tests.engines.orphans:body"), token=tokens[0])
    actor = object.__new__(PodActor)  # what Ray has to do with it is of no interest
    actor.task = task
    actor.token = tokens[0]
    actor.patience = PATIENCE_SECONDS
    actor._change = threading.Condition()
    actor._messages = []
    actor._number = 0
    actor._taken = 0
    with ThreadPoolExecutor() as pool:
        outcome = pool.submit(actor._train_or_evaluate, context)
        until(
            lambda: len(trainings(copy)) == 1 and bool(list(copy.pods.glob("*/.unpublished.json"))),
            "it to be trained",
        )
        assert not mirror.objects.exists("pods/p0000/result.json")
        progress = ProgressMessage(spec.pod, 0.5, 1, "")
        actor._send(progress)
        assert [message for _, message in actor.listen(0, tokens[1])] == [progress]
        result = outcome.result(timeout=PATIENCE_SECONDS)
    assert mirror.objects.exists("pods/p0000/result.json")
    assert result.spec == spec.digest
    assert len(trainings(copy)) == 1


def _waiting(run, pods):
    return all(stubs.waiting(run.root / "faults" / pod) for pod in pods)


@pytest.mark.slow
def test_pods_that_nobody_takes_over_end_and_those_of_a_stopped_command_at_once(
    nodes, tmp_path, started
):
    run = RunFolder(tmp_path / "run")
    stubs.plant(run, "p0000", "hang", times=3)  # it would work for an hour
    ended = []
    for patience, number in (
        (1.0, signal.SIGKILL),
        (PATIENCE_SECONDS, signal.SIGKILL),
        (PATIENCE_SECONDS, signal.SIGINT),
    ):
        racer = started(Racer(run, nodes.address, "stub", pods=1, patience_seconds=patience))
        until(lambda racer=racer: "p0000" in racer.note()["pods"], "the pod that hangs")
        ended.append(racer.note()["pods"]["p0000"][1])
        racer.process.send_signal(number)
        racer.wait()
        if patience == 1.0:
            until(lambda: gone(ended[0]), "it to end by itself")
    assert ended[1] == ended[2] != ended[0]  # taken over, and then ended with the command
    until(lambda: gone(ended[1]), "it to be gone")
