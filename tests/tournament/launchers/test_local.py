import itertools
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import psutil
import pytest

from fintrader.errors import ConfigError, TournamentError
from fintrader.runs import RunFolder
from fintrader.tournament.launchers import PodFailure
from fintrader.tournament.launchers.local import (
    LocalLauncher,
    Slot,
    count_cards,
    find_slots,
    keep_workers,
    list_cuda_devices,
)
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.store import RunStore
from tests import ROOT
from tests.engines import stubs
from tests.engines.stubs import spec
from tests.engines.waiting import PATIENCE_SECONDS, gone, until

LOCAL = "fintrader.tournament.launchers.local"


def which(spec, context):
    """A body that tells where it ran."""
    if spec.hyper.get("print"):
        print(
            '{"kind": "done", "pod": "' + spec.pod + '"}', flush=True
        )  # must not be taken for the worker's own words
    result = stubs.body(spec, context)
    threads = os.environ["OMP_NUM_THREADS"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    (context.folder / "where.txt").write_text(f"{threads} {visible} {context.device}")
    return replace(result, metrics={"pid": float(os.getpid())})


def launcher(run, slots=None, **more):
    own = [Slot("cpu-0"), Slot("cpu-1")] if slots is None else slots
    body = "tests.tournament.launchers.test_local:which"
    return LocalLauncher(PodContext(run, run.root / "market"), body=body, slots=lambda: own, **more)


@pytest.mark.parametrize(
    ("devices", "found", "names"),
    [
        (("auto",), ["0", "1"], ["cuda-0-0", "cuda-1-0", "cuda-0-1", "cuda-1-1"]),
        (("cuda",), [], []),
        (("cuda:1",), ["0", "1"], ["cuda-1-0", "cuda-1-1"]),
        (("cuda:0+1",), ["0", "1"], ["cuda-0+1-0", "cuda-0+1-1"]),
        (("cuda:2/3",), ["2", "3"], ["cuda-2+3-0", "cuda-2+3-1"]),
        (("cuda:2/9",), ["2"], []),
        (("cuda:0", "cuda:7"), ["0"], ["cuda-0-0", "cuda-0-1"]),
    ],
)
def test_slots_follow_the_devices_that_are_there(devices, found, names, monkeypatch):
    monkeypatch.setattr(f"{LOCAL}.list_cuda_devices", lambda: found)
    slots = find_slots(devices * 2)
    assert [slot.name for slot in slots] == names
    for slot in slots:
        wanted = slot.name.split("-")[1].replace("+", ",")
        join = "/" if "/" in devices[0] else "+"
        inside = f"cuda:0{join}cuda:1" if "," in wanted else "cuda"
        assert (slot.device, slot.cards) == (inside, wanted)


@pytest.mark.parametrize(
    ("count", "visible", "found"),
    [
        (2, None, ["0", "1"]),
        (0, None, []),
        (1, "0,1", ["0"]),
        (2, "2, 0", ["2", "0"]),
        (1, "GPU-a1,GPU-b2", ["GPU-a1"]),
        (0, "", []),
    ],
)
def test_devices_are_those_that_torch_counts(monkeypatch, count, visible, found):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr(f"{LOCAL}.count_cards", lambda visible, period: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert list_cuda_devices() == found
    assert len(find_slots(("cuda",) * 2)) == 2 * len(found)


@pytest.mark.parametrize(
    ("answer", "found"),
    [("print(1)", ["0"]), ("print(0)", []), ("print(3)", ["0", "1"]), ("exit(3)", ["0", "1"])],
)
def test_a_card_that_a_new_process_does_not_find_is_lost(monkeypatch, answer, found):
    """torch counts once; the driver counts again, and only a number is accepted."""
    now = [1000.0]
    monkeypatch.setattr(f"{LOCAL}.time.monotonic", lambda: now[0])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("fintrader.system.COUNT_CARDS", answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    count_cards.cache_clear()
    assert list_cuda_devices() == found
    monkeypatch.setattr("fintrader.system.COUNT_CARDS", "print(2)")
    assert list_cuda_devices() == found  # until the period is over
    now[0] += 60
    assert list_cuda_devices() == ["0", "1"]
    count_cards.cache_clear()


@pytest.mark.gpu
def test_the_driver_counts_the_cards_that_torch_counts(monkeypatch):
    assert count_cards(os.environ.get("CUDA_VISIBLE_DEVICES"), -1) == len(list_cuda_devices())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert count_cards("", -1) == 0


def test_the_cpu_has_a_slot_a_core(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cores = len(os.sched_getaffinity(0))
    assert len(find_slots(("cpu",))) == len(find_slots(("auto",))) == cores
    twice = find_slots(("cpu", "auto"))
    assert len({slot.name for slot in twice}) == 2 * cores
    first, second = find_slots(("cpu/cpu", "cpu/cpu/cpu"))
    assert (first.device, second.device) == ("cpu/cpu", "cpu/cpu/cpu")
    for unknown in ("gpu", "cpu/gpu"):
        with pytest.raises(ConfigError, match="is none of"):
            find_slots((unknown,))


@pytest.mark.slow
def test_workers_are_reused_with_one_thread_and_their_own_device(tmp_path):
    run = RunFolder(tmp_path)
    slots = [Slot("a", cards="3")]
    with closing(launcher(run, slots)) as local:
        first = local.submit(spec(0)).result(timeout=PATIENCE_SECONDS)
        second = local.submit(spec(1, hyper={"print": True})).result(timeout=PATIENCE_SECONDS)
    assert first.metrics["pid"] == second.metrics["pid"] != os.getpid()
    assert (run.pod("p0001") / "where.txt").read_text() == "1 3 cpu"
    assert '"kind": "done"' in (run.root / "logs" / "worker-a.log").read_text()
    assert RunStore(run).read_result("p0001") == second


def waiting(run, slots=None):
    """Two pods can be at work at once, and both wait to be released."""
    for pod in ("p0000", "p0001"):
        stubs.plant(run, pod, "wait")
    return launcher(run, slots)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starved", "reason", "detail"),
    [
        (False, "killed", "killed by signal 9"),
        pytest.param(
            *(True, "oom", "out of memory; lower env.num_envs or tournament.workers"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_killed_worker_loses_only_its_own_pod(tmp_path, monkeypatch, starved, reason, detail):
    """`starved`: the kernel says that it has killed because memory ran out."""
    kills = itertools.count() if starved else itertools.repeat(7)
    monkeypatch.setattr(f"{LOCAL}.count_oom_kills", lambda: next(kills))
    run = RunFolder(tmp_path)
    with closing(waiting(run)) as local:
        lost = local.submit(spec(0))
        kept = local.submit(spec(1))
        until(lambda: bool(local.report_progress()["p0000"].note))
        (at_work,) = [
            one for one in local._workers.values() if one.spec and one.spec.pod == "p0000"
        ]
        at_work.process.kill()
        with pytest.raises(PodFailure, match=detail) as caught:
            lost.result(timeout=PATIENCE_SECONDS)
        assert caught.value.reason == reason
        stubs.release(run, ["p0000", "p0001"])
        again = local.submit(spec(0), attempt=2)
        assert kept.result(timeout=PATIENCE_SECONDS).status == "done"
        assert again.result(timeout=PATIENCE_SECONDS).attempts == 2


@pytest.mark.slow
def test_a_vanished_device_drains_its_pod_and_frees_nothing_else(tmp_path):
    run = RunFolder(tmp_path)
    places = [Slot("x"), Slot("y")]
    with closing(waiting(run, places)) as local:
        futures = [local.submit(spec(0)), local.submit(spec(1))]
        until(lambda: all(at.note for at in local.report_progress().values()))
        places.pop()
        assert local.measure_capacity() == 1
        local.check_pods()
        with pytest.raises(PodFailure, match="drained"):
            futures[1].result(timeout=PATIENCE_SECONDS)
        with pytest.raises(TournamentError, match="no free slot"):
            local.submit(spec(2))
        stubs.release(run, ["p0000"])
        assert futures[0].result(timeout=PATIENCE_SECONDS).status == "done"


@pytest.mark.slow
def test_idle_workers_are_kept_for_the_next_launcher(tmp_path):
    other = [Slot("z")]
    with keep_workers():
        pids = []
        for run, slots in (("one", None), ("two", None), ("three", other)):
            with closing(launcher(RunFolder(tmp_path / run), slots)) as local:
                futures = [local.submit(spec(number)) for number in range(local.measure_capacity())]
                done = [future.result(timeout=PATIENCE_SECONDS) for future in futures]
                pids.append({int(result.metrics["pid"]) for result in done})
        assert not any(map(gone, pids[0]))
    assert pids[0] == pids[1]
    assert len(pids[0]) == 2
    assert not pids[0] & pids[2]
    assert all(map(gone, pids[0] | pids[2]))


@pytest.mark.slow
def test_a_lost_worker_is_not_kept(tmp_path):
    with keep_workers():
        pids = []
        for run in ("one", "two"):
            with closing(launcher(RunFolder(tmp_path / run), [Slot("a")])) as local:
                result = local.submit(spec(0)).result(timeout=PATIENCE_SECONDS)
                process = local._workers["a"].process
            os.kill(process.pid, signal.SIGKILL)
            # A dead process that has not been waited for still counts as alive.
            until(lambda process=process: process.poll() is not None)
            pids.append(int(result.metrics["pid"]))
    assert pids[0] != pids[1]


def apart(run, slots, **operations):
    """A launcher whose pods may be scored by evaluators."""
    access = PodContext(run, run.root / "market", operations=OperationsSettings(**operations))
    body = "tests.engines.stubs:leaving_body"
    return LocalLauncher(access, body=body, slots=lambda: slots)


def test_an_evaluator_scores_what_slots_have_trained(tmp_path):
    """Slot and evaluator are two processes, and the result is that of one."""
    run = RunFolder(tmp_path / "apart")
    stubs.plant(run, "p0000-evaluation", "wait")
    with closing(apart(run, [Slot("a")], evaluators=True)) as local:
        first = local.submit(spec(0))
        until(lambda: local.measure_capacity() == 2)
        assert local.report_progress()["p0000"].device == "evaluator-0"
        second = local.submit(spec(1))
        # The evaluator is busy, so the second waits and leaves no room for a third.
        until(lambda: local.report_progress()["p0001"].note == "waiting for an evaluator")
        assert local.measure_capacity() == 2
        stubs.release(run, ["p0000-evaluation"])
        found = [future.result(timeout=PATIENCE_SECONDS) for future in (first, second)]
        assert local.measure_capacity() == 1
    together = RunFolder(tmp_path / "together")
    with closing(apart(together, [Slot("a")], evaluators=False)) as local:
        for one in found:
            alone = local.submit(spec(int(one.pod[1:]))).result(timeout=PATIENCE_SECONDS)
            assert (alone.score, alone.snapshot, alone.policy) == (
                one.score,
                one.snapshot,
                one.policy,
            )
        assert not (together.root / "logs" / "worker-evaluator-0.log").exists()
    assert (run.root / "logs" / "worker-evaluator-0.log").exists()


@pytest.mark.slow
def test_a_killed_evaluator_costs_an_attempt_and_no_result(tmp_path):
    run = RunFolder(tmp_path)
    stubs.plant(run, "p0000-evaluation", "kill")
    with closing(apart(run, [Slot("a")], evaluators=True)) as local:
        lost, kept = local.submit(spec(0)), None
        with pytest.raises(PodFailure, match="killed by signal 9"):
            lost.result(timeout=PATIENCE_SECONDS)
        kept = local.submit(spec(0), attempt=2)
        assert kept.result(timeout=PATIENCE_SECONDS).attempts == 2


@pytest.mark.slow
def test_a_closing_launcher_gives_up_pods_that_wait_for_an_evaluator(tmp_path):
    run = RunFolder(tmp_path)
    stubs.plant(run, "p0000-evaluation", "wait")
    local = apart(run, [Slot("a")], evaluators=True)
    futures = [local.submit(spec(0))]
    until(lambda: local.measure_capacity() == 2)
    futures.append(local.submit(spec(1)))
    until(lambda: local.report_progress()["p0001"].note == "waiting for an evaluator")
    local.close()
    for future in futures:
        with pytest.raises(PodFailure, match="drained"):
            future.result(timeout=PATIENCE_SECONDS)


def test_more_than_two_slots_have_an_evaluator_by_default(tmp_path):
    run = RunFolder(tmp_path)
    for count, expected in ((2, False), (3, True)):
        with closing(apart(run, [Slot(f"s{k}") for k in range(count)])) as local:
            assert local._evaluates_apart() is expected


def test_workers_beyond_the_devices_share_them(tmp_path):
    local = launcher(RunFolder(tmp_path), [Slot("x"), Slot("y")], workers=5)
    assert [slot.name for slot in local.list_slots()] == ["x", "y", "x.1", "y.1", "x.2"]
    local.resize(1)
    assert local.measure_capacity() == 1
    assert launcher(RunFolder(tmp_path), []).measure_capacity() == 0
    local.close()


def test_workers_die_with_their_launcher_however_it_dies(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from fintrader.runs import RunFolder;from"
        " tests.tournament.launchers.test_local import launcher;local ="
        " launcher(RunFolder(Path(sys.argv[1]))); local._spawn(local.list_slots()[0]);"
        "print('warm', flush=True); time.sleep(3600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    parent.stdout.readline()
    children = psutil.Process(parent.pid).children()
    assert len(children) == 1
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: all(gone(child.pid) for child in children))
