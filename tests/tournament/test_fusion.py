"""Learner fusion in one process and over several: the same bytes, and a lost rank is a lost pod,
tried again."""

import os
import re
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load

from fintrader.agents import Budget, load_policy, read_agent_state
from fintrader.agents.parallel import INHERITED_PREFIXES
from fintrader.runs import RunFolder
from fintrader.storage.lease import hold
from fintrader.storage.mirror import attach, locate_cache, locate_working_copy
from fintrader.storage.objects import ObjectStore
from fintrader.system import find_interface
from fintrader.tournament.fusion import coordinator as ranks
from fintrader.tournament.fusion import learners as fusion
from fintrader.tournament.fusion.coordinator import (
    LOOPBACK,
    LocalHost,
    RankAddress,
    RankGroup,
    assign_ranks,
)
from fintrader.tournament.fusion.learners import average, build_maker, locate_replica, read_round
from fintrader.tournament.messages import EndMessage, PodTask
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.pod import find_reason, run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.pod_training import train_and_evaluate
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.spec import RankLost
from fintrader.tournament.store import RunStore
from tests.engines.chaos import events_of
from tests.engines.killing import dies_at
from tests.engines.races import SETTINGS, first_spec, market_file, real_race, train_pod
from tests.engines.waiting import until


def fused_spec(**changes):
    return first_spec(**{"replicas": 2, "fusions": 3, "budget": Budget(env_steps=384), **changes})


def test_variances_are_merged_with_what_lies_between_their_means():
    torch.manual_seed(0)
    halves = [torch.randn(500, 3, dtype=torch.float64) * (1 + k) + 4 * k for k in range(2)]
    states = [
        {
            "modules.n.mean": half.mean(0),
            "modules.n.var": half.var(0, correction=0),
            "modules.w.var": torch.ones(1) * k,
        }
        for k, half in enumerate(halves)
    ]
    fused = average(states)
    whole = torch.cat(halves)
    torch.testing.assert_close(fused["modules.n.mean"], whole.mean(0))
    torch.testing.assert_close(fused["modules.n.var"], whole.var(0, correction=0))
    assert fused["modules.w.var"].item() == 0.5  # a running variance without a mean of its own


def test_a_damaged_round_is_fused_again(tmp_path):
    spec = fused_spec()
    whole, context = train_pod(tmp_path, spec)
    path = context.folder / "fused-1.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    again, _ = train_pod(tmp_path, spec)
    assert again.snapshot == whole.snapshot
    assert fusion.read_round(context.folder, 1) is not None


def test_replicas_learn_apart_and_go_on_from_their_average(tmp_path):
    spec = fused_spec()
    output, context = train_pod(tmp_path, spec)
    assert output.env_steps == 384
    states = [
        fusion.read_agent_state(context.folder / "round-2" / f"replica-{k}") for k in range(2)
    ]
    final = load(RunStore(context.run).get(str(output.snapshot)))
    # a matrix of weights: the counts of the normalisers are equal, and a loaded file has no order
    # of its own
    weight = min(
        name for name in final if name.startswith("modules.policy") and final[name].ndim == 2
    )
    assert not torch.equal(states[0][weight], states[1][weight])
    torch.testing.assert_close(final[weight], (states[0][weight] + states[1][weight]) / 2)
    stored = load_policy(context.folder / "policy.safetensors").state_dict()
    assert any(
        torch.equal(tensor, final[weight])
        for tensor in stored.values()
        if tensor.shape == final[weight].shape
    )


def test_threads_and_turns_agree_and_kills_change_nothing(tmp_path, monkeypatch):
    spec = fused_spec()
    whole, _ = train_pod(tmp_path / "a", spec)
    beside, _ = train_pod(tmp_path / "b", spec, device="cpu+cpu")
    assert beside.snapshot == whole.snapshot
    monkeypatch.setattr(fusion, "train", dies_at(4, fusion.train))
    with pytest.raises(KeyboardInterrupt):
        train_pod(tmp_path / "c", spec)
    again, _ = train_pod(tmp_path / "c", spec)
    assert again.snapshot == whole.snapshot
    assert (again.score, again.returns, again.env_steps) == (
        whole.score,
        whole.returns,
        whole.env_steps,
    )


@pytest.mark.slow
def test_two_ranks_give_the_bytes_of_one_process(tmp_path):
    """Three replicas on two ranks: the second turn is not full."""
    spec = fused_spec(replicas=3, fusions=2)
    alone, there = train_pod(tmp_path / "alone", spec)
    ranked, here = train_pod(tmp_path / "ranked", spec, device="cpu/cpu")
    assert ranked.snapshot == alone.snapshot
    assert (ranked.score, ranked.returns, ranked.env_steps) == (
        alone.score,
        alone.returns,
        alone.env_steps,
    )
    for number in range(2):
        one = read_round(there.folder, number)
        other = read_round(here.folder, number)
        assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])
        assert [total.env_steps for total in one[1]] == [total.env_steps for total in other[1]]
    again, _ = train_pod(tmp_path / "ranked", spec)  # finished: no process is needed to say so
    assert again.snapshot == alone.snapshot


@pytest.mark.parametrize(
    ("codes", "reason", "said"),
    [
        ([-9, None], "killed", "rank 0 of 2 on cpu: killed by signal 9"),
        ([-15, -9], "killed", "rank 0 of 2 on cpu: killed by signal 15"),
        ([-9, -11], "rank", "rank 1 of 2 on cpu: killed by signal 11"),  # it took the other
        ([None, 3], "node", "rank 0 of 2 on cpu: its node died"),
        ([1, 0], "rank", "rank 0 of 2 on cpu: exited with status 1"),
    ],
)
def test_who_ended_a_rank_is_told_apart(tmp_path, codes, reason, said):
    """What counts against `retries`, and what does not."""

    class Ended:
        address = "127.0.0.1"

        def start(self, tasks, on_message):
            for task, code in zip(tasks, codes, strict=True):
                lost = {"reason": "rank", "detail": "its node died"} if code is None else {}
                on_message(task.rank, EndMessage(code, "log", **lost))

        def stop(self): ...

    two = [RankAddress(0, "cpu"), RankAddress(0, "cpu")]
    context = PodContext(RunFolder(tmp_path), tmp_path)
    group = RankGroup(first_spec(), context, two, "gloo", [Ended()])
    with pytest.raises(RankLost, match=re.escape(said)) as lost:
        group.receive()
    assert lost.value.reason == reason


@pytest.mark.slow
def test_a_killed_rank_is_a_lost_pod_that_goes_on_where_it_was(tmp_path):
    spec_settings = SETTINGS.model_copy(
        update={
            "pods": 1,
            "replicas": 2,
            "fusions": MANY_ROUNDS,
            "budget": Budget(env_steps=MANY_ROUNDS * 256),
            "devices": ("cpu/cpu",),
        }
    )

    pod = tmp_path / "run" / "pods" / "p0000"

    def kill():
        os.kill(stop_rank(pod, 1, rounds=1), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    result = real_race(RunFolder(tmp_path / "run"), spec_settings)
    lost = events_of(result.folder, "lost")
    assert [(event["pod"], event["reason"]) for event in lost] == [("p0000", "killed")]
    assert "rank 1 of 2 on cpu: killed by signal 9" in lost[0]["detail"]
    stored = RunStore(result.folder)
    found = stored.read_result("p0000")
    spec = stored.read_spec("p0000")
    assert found.attempts == 2
    alone = run_pod(spec, PodContext(RunFolder(tmp_path / "alone"), market_file(tmp_path)))
    assert found.reproducible == alone.reproducible


MANY_ROUNDS = 24
"""Rounds of a pod that is to be stopped in the middle: after the first there are others to come."""


def count_rounds(pod):
    """Count the rounds that a pod has stored."""
    return len(list(pod.glob("fused-*.safetensors")))


def stop_rank(pod, rank, rounds):
    """Stop the process of a rank once the pod has stored so many rounds, so that it stays where it
    is; return the process."""
    until(lambda: count_rounds(pod) >= rounds and rank_process(pod, rank), "a round to be stored")
    process = rank_process(pod, rank)
    os.kill(process, signal.SIGSTOP)
    assert count_rounds(pod) < MANY_ROUNDS, "the pod ended before its rank could be stopped"
    return process


def rank_process(pod, rank):
    """The process that writes that rank's log."""
    log = str((pod / f"rank-{rank}.log").resolve())
    for pid in psutil.pids():
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/2") == log:
                return pid
    return None


@pytest.mark.slow
def test_the_rank_that_failed_is_named_not_the_one_that_waited_for_it(tmp_path):
    with pytest.raises(RankLost, match=r"rank 1 of 2 on cuda:63") as raised:
        train_pod(tmp_path, fused_spec(), device="cpu/cuda:63")
    assert find_reason(raised.value) == "error"


@pytest.mark.slow
def test_a_rank_elsewhere_needs_nothing_but_the_store(tmp_path, monkeypatch):
    """The second host is a thread that does what the task on another node does, on an empty
    disk."""
    ray = pytest.importorskip("ray", reason="Ray is missing: pip install '.[ray]'")
    from fintrader.tournament.launchers.ray import tasks as nodes

    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node")
    )
    monkeypatch.setattr(nodes, "find_address", lambda: LOOPBACK)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/store/run"
    spec = replace(fused_spec(), data_hash="digest")
    here = RunFolder(tmp_path / "run")
    mirror = attach(here.root, url)
    alone, _ = train_pod(tmp_path / "alone", spec)

    class Elsewhere:
        address = ""

        def start(self, ranks, on_message):
            def carry():
                for news in nodes.serve_ranks(task, ranks):
                    if isinstance(news, tuple):
                        on_message(*news)

            self.thread = threading.Thread(target=carry, daemon=True)
            self.thread.start()

        def stop(self):
            self.thread.join()

    with hold(ObjectStore(url)) as lease:
        open_store(here, mirror).keep_market("digest", market_file(tmp_path))
        task = PodTask(
            spec=spec,
            run="/nowhere/run",
            market="/nowhere/market.safetensors",
            mirror=mirror.address,
            token=lease.token,
            operations=OperationsSettings(),
            body="",
        )
        context = PodContext(here, market_file(tmp_path), mirror=mirror, device="cpu/cpu")
        context.hosts = [LocalHost(), Elsewhere()]
        context.folder = here.pod(spec.pod)
        context.folder.mkdir(parents=True)
        spread = train_and_evaluate(spec, context)
    assert spread.snapshot == alone.snapshot
    there = locate_working_copy(url, locate_cache("pods")) / "pods" / spec.pod
    assert (locate_replica(there, 2, 1) / "state.safetensors").is_file()
    assert not locate_replica(context.folder, 2, 1).exists()


def test_backends():
    def backend(*devices, hosts=1):
        return ranks.choose_backend(assign_ranks(devices, hosts))

    assert backend("cuda:0", "cuda:1") == "nccl"
    assert backend("cuda:0", "cuda:0") == "gloo"  # NCCL refuses two ranks on one GPU
    assert backend("cuda:0", "cuda:0", hosts=2) == "nccl"  # of two machines, which are two
    assert backend("cpu", "cpu") == backend("cpu", "cpu", hosts=2) == "gloo"
    assert backend("cuda:0", "cpu") == "gloo"


def test_the_meeting_point_is_bound_to_its_address_alone():
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("192.0.2.1") is None
    group = RankGroup(
        fused_spec(), PodContext(RunFolder(Path()), Path()), [], "gloo", [LocalHost()]
    )
    port = group.store.port
    bound = [
        entry.laddr.ip for entry in psutil.Process().net_connections() if entry.laddr.port == port
    ]
    assert set(bound) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert "127.0.0.1" in bound


@pytest.mark.gpu
def test_nccl_fuses_what_the_replicas_hold(tmp_path):
    """On as many GPUs as there are (one rank of NCCL where there is one): the average of the stored
    replicas."""
    count = max(1, min(2, torch.cuda.device_count()))
    spec = fused_spec(fusions=2)
    devices = [torch.device(f"cuda:{number}") for number in range(count)]
    assert ranks.choose_backend(assign_ranks([str(device) for device in devices], 1)) == "nccl"
    context = PodContext(
        RunFolder(tmp_path), market_file(tmp_path), folder=tmp_path / "pods" / "p0000"
    )
    context.folder.mkdir(parents=True)
    learner = ranks.ProcessFusion(spec, context, devices, build_maker(spec, context))
    try:
        learner.advance(spec.budget, 1.0, lambda progress: None)
    finally:
        learner.close()
    fused = learner.state()
    expected = average(
        [read_agent_state(locate_replica(context.folder, 1, replica)) for replica in range(2)]
    )
    for name, tensor in expected.items():
        if name.startswith(INHERITED_PREFIXES):
            assert torch.equal(fused[name], tensor), name


@pytest.mark.gpu
def test_two_ranks_share_one_gpu_over_gloo(tmp_path):
    output, context = train_pod(tmp_path, fused_spec(), device="cuda:0/cuda:0")
    assert output.env_steps == 384
    assert load(RunStore(context.run).get(str(output.snapshot)))
