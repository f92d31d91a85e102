"""Pods on a Ray cluster of several nodes, all on loopback."""

import json
import signal
import threading

import psutil
import pytest

from fintrader.config import validate
from fintrader.errors import ConfigError, TournamentError
from fintrader.runs import RunFolder
from fintrader.tournament.launchers.ray import cluster as module
from fintrader.tournament.launchers.ray.cluster import (
    connect,
    count_fits,
    count_groups,
    probe_authentication,
)
from fintrader.tournament.launchers.ray.launcher import run_on_ray
from fintrader.tournament.launchers.ray.settings import RaySettings
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.pod_training import train_and_evaluate
from fintrader.tournament.status import compare
from fintrader.tournament.store import RunStore
from tests.engines import chaos, stubs
from tests.engines.races import market_file, settings
from tests.engines.ray_cluster import Nodes
from tests.engines.ray_race import REFUSED, Racer, generational
from tests.engines.thread_launcher import ThreadLauncher
from tests.engines.waiting import PATIENCE_SECONDS, gone, until
from tests.tournament.test_fusion import MANY_ROUNDS, count_rounds, stop_rank
from tests.tournament.test_state_sync import stored

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_a_generational_run_equals_the_local_launchers_byte_for_byte(nodes, tmp_path, started):
    """Real pods, each trained in one task and evaluated in another."""
    local = RunFolder(tmp_path / "local")
    there = RunFolder(tmp_path / "ray")
    racer = started(Racer(there, nodes.address, "real", pods=6, pool_size=3))
    threads = ThreadLauncher(local, tmp_path / "market.safetensors", train_and_evaluate, workers=1)
    generational(local, threads, "real", pods=6, pool_size=3)
    assert racer.wait() == (0, "")
    assert compare(local, there) == []
    assert _files(local) == _files(there)
    assert not any((there.root / "logs").glob("*"))


def _files(run):
    """Snapshots, policies and the ensemble: everything that holds networks."""
    paths = [*run.root.rglob("policy.safetensors"), *(run.root / "snapshots").iterdir()]
    return {str(path.relative_to(run.root)): path.read_bytes() for path in paths}


@pytest.mark.slow
def test_a_killed_evaluator_costs_one_attempt(nodes, tmp_path, started):
    undisturbed = RunFolder(tmp_path / "undisturbed")
    run = RunFolder(tmp_path / "run")
    generational(
        undisturbed, ThreadLauncher(undisturbed, tmp_path, stubs.body, workers=4), "stub", pods=4
    )
    stubs.plant(run, "p0001-evaluation", "kill")
    assert started(Racer(run, nodes.address, "leaving", pods=4)).wait() == (0, "")
    assert [(event["pod"], event["reason"]) for event in chaos.events_of(run, "lost")] == [
        ("p0001", "killed")
    ]
    assert chaos.check(run, {}, chaos.everything(undisturbed)) == []


def wish(nodes):
    """What the cluster's autoscaler has been asked for."""
    from ray._raylet import GcsClient

    stored = GcsClient(address=nodes.address).internal_kv_get(
        b"autoscaler_resource_request", None, timeout=PATIENCE_SECONDS
    )
    return [one.get("resources", one) for one in json.loads(stored or b"[]")]


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_at_work_and_faults_have_their_reasons(nodes, tmp_path, started):
    run = RunFolder(tmp_path / "run")
    stubs.plant(run, "p0001", "hang", times=2)  # it would work for an hour
    stubs.plant(run, "p0002", "nan", times=999)
    racer = started(Racer(run, nodes.address, "stub", pods=4))
    until(lambda: stubs.struck(run, "p0001") == 1, "the pod that hangs")
    until(lambda: "p0001" in racer.note()["pods"], "word of it")
    pid = racer.note()["pods"]["p0001"][1]
    until(lambda: {"CPU": 1.0} in wish(nodes), "the autoscaler to be told")
    racer.process.send_signal(signal.SIGINT)
    status, said = racer.wait()
    assert status != 0
    assert "KeyboardInterrupt" in said
    until(lambda: not psutil.pid_exists(pid), "its process to be gone")
    assert wish(nodes) == []
    assert "Unhandled" not in said

    again = started(Racer(run, nodes.address, "stub", pods=4, patience_seconds=30.0, retries=1))
    assert again.wait() == (0, "")
    lost = sorted((event["pod"], event["reason"]) for event in chaos.events_of(run, "lost"))
    assert ("p0001", "hung") in lost
    assert {("p0002", "nan")} == set(lost) - {("p0001", "hung")}
    assert RunStore(run).read_result("p0001").attempts == 2
    assert RunStore(run).read_result("p0002").status == "failed"
    assert "no longer finite" in (run.root / "logs" / "ray-p0002.log").read_text()


@pytest.mark.slow
def test_a_pod_on_a_node_that_goes_stores_its_state_first(nodes, tmp_path, started):
    run = RunFolder(tmp_path / "run")
    url = f"file://{tmp_path}/store/run"
    stubs.plant(run, "p0000", "wait")
    racer = started(
        Racer(
            run,
            nodes.address,
            "stub",
            {"drain_seconds": 5},
            store=url,
            pods=1,
            store_seconds=3600.0,
        )
    )
    state = tmp_path / "run" / "pods" / "p0000" / "state.safetensors"
    until(lambda: "p0000" in racer.note()["pods"] and state.exists(), "the pod that waits")
    assert stored(url, "p0000") == {}
    nodes.add(1)
    nodes.drain(racer.note()["pods"]["p0000"][0], seconds=500)
    until(lambda: list(stored(url, "p0000")) == ["state.safetensors"], "its state in the store")
    stubs.release(run, ["p0000"])
    assert racer.wait() == (0, "")
    assert RunStore(run).read_result("p0000").attempts == 1
    assert stored(url, "p0000") == {}


@pytest.mark.slow
def test_a_pod_of_several_gpus_sees_its_own_ones_and_no_node_holds_nine(nodes, tmp_path, started):
    nodes.add(4, gpus=4)  # Ray takes our word for it
    run = RunFolder(tmp_path / "run")
    stubs.plant(run, "p0001", "linger")  # its task is still returning when its last word is heard
    two = started(
        Racer(run, nodes.address, "stub", {"gpus": 2}, evaluators=False, pods=2, replicas=2)
    )
    asked = {"gpus": 9, "wait_seconds": 1}
    nine = started(
        Racer(RunFolder(tmp_path / "nine"), nodes.address, "stub", asked, pods=2, replicas=9)
    )
    assert two.wait() == (0, "")
    assert {result.device for result in RunStore(run).read_results().values()} == {"cuda:0/cuda:1"}
    status, said = nine.wait()
    assert status == REFUSED
    assert "no node of the Ray cluster can hold a pod: it takes 1 CPU, 9 GPU" in said
    assert "at most 4 CPU, 4 GPU" in said


@pytest.mark.slow
def test_a_pod_with_a_gpu_has_a_process_of_its_own(nodes, tmp_path, started):
    """The next pod in the same process would stay on the GPU of the first."""
    nodes.add(1, gpus=1)
    run = RunFolder(tmp_path / "run")
    pods = [f"p{number:04d}" for number in range(3)]
    for pod in pods:
        stubs.plant(run, pod, "wait")
    racer = started(
        Racer(run, nodes.address, "stub", {"gpus": 1}, evaluators=False, pods=len(pods))
    )
    processes = {}
    until(
        lambda: _release_new(racer, run, processes) == len(pods), "every pod to have been at work"
    )
    assert racer.wait() == (0, "")
    assert len(set(processes.values())) == len(pods)


def _release_new(racer, run, processes):
    """Let pods that are seen for the first time end; how many have been seen."""
    new = {pod: pid for pod, (_, pid) in racer.note()["pods"].items() if pod not in processes}
    processes |= new
    stubs.release(run, list(new))
    return len(processes)


@pytest.mark.slow
def test_without_its_head_a_tournament_stops_and_goes_on_elsewhere(nodes, tmp_path, started):
    """The head alone is killed; the orchestrator has to notice, say so, and leave."""
    run = RunFolder(tmp_path / "run")
    stubs.plant(run, "p0002", "wait")
    cluster = started(Nodes(1, quick=True))
    racer = started(Racer(run, cluster.address, "stub", order="arrival", pods=4))
    until(
        lambda: racer.note()["applied"] >= 2 and "p0002" in racer.note()["pods"],
        "two results and a pod at work",
    )
    cluster.kill_head()
    status, said = racer.wait()
    assert status == REFUSED
    assert "head" in said
    acknowledged = chaos.acknowledged(run)
    assert len(acknowledged) >= 2
    cluster.stop()
    stubs.release(run, ["p0002"])
    assert started(Racer(run, nodes.address, "stub", order="arrival", pods=4)).wait() == (0, "")
    assert chaos.acknowledged(run).items() >= acknowledged.items()
    assert len(chaos.acknowledged(run)) == 4


@pytest.mark.slow
def test_a_cluster_that_lets_anybody_in_is_refused_unless_on_loopback(nodes, monkeypatch):
    from fintrader.tournament.launchers.ray import cluster

    assert probe_authentication(nodes.address) == "open"
    assert cluster._list_addresses(nodes.address) == ["127.0.0.1"] * len(
        cluster._list_addresses(nodes.address)
    )
    joined = []
    monkeypatch.setattr(
        cluster, "_init", lambda address, settings: bool(joined.append(address)) or True
    )
    monkeypatch.setattr(cluster, "_keep_on_loopback", lambda: None)
    connect(RaySettings(address=nodes.address))
    assert joined == [nodes.address]
    monkeypatch.setattr(cluster, "_list_addresses", lambda address: ["127.0.0.1", "192.0.2.7"])
    with pytest.raises(TournamentError, match="RAY_AUTH_MODE=token"):
        connect(RaySettings(address=nodes.address))
    connect(RaySettings(address=nodes.address, allow_insecure=True))
    assert len(joined) == 2


@pytest.mark.slow
def test_a_cluster_with_a_token_wants_it(tmp_path, started, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where a token might lie
    token = "a-token-of-the-test-and-of-nothing-else"
    cluster = started(Nodes(1, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token))
    assert probe_authentication(cluster.address) == "closed"
    with pytest.raises(TournamentError, match=r"wants a token.*RAY_AUTH_TOKEN"):
        connect(RaySettings(address=cluster.address))
    folder = tmp_path / ".ray"
    folder.mkdir()
    (folder / "auth_token").write_text(token)
    friend = started(Racer(RunFolder(tmp_path / "friend"), cluster.address, "stub", pods=1))
    assert friend.wait()[0] == 0


@pytest.mark.parametrize("fails", [True, False])
def test_a_head_that_refuses_at_once_is_gone_like_one_that_is_silent(monkeypatch, fails):
    """Ray ends the process after a minute; the sentence comes before, however the head fails."""
    ended = threading.Event()

    def ask():
        if fails:
            raise RuntimeError("failed to connect to GCS")
        ended.wait()

    answers = iter([lambda: "nodes"])
    monkeypatch.setattr(module, "connect", lambda settings: False)
    monkeypatch.setattr(module, "read_nodes", lambda: next(answers, ask)())
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.3)
    cluster = module.Cluster(RaySettings())

    def gone():
        try:
            cluster.refresh()
        except TournamentError as error:
            return "run the same command again on a new cluster" in str(error)

    until(gone, "the head counts as gone")
    assert cluster.is_silent
    ended.set()
    cluster.close()


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(
        TournamentError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start --head"
    ):
        connect(RaySettings(address="127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"address: give HOST:PORT.*ray job submit"):
        validate(RaySettings, {"address": "ray://head:10001"}, "x")
    with pytest.raises(ConfigError, match="gpus: a pod takes a part of one GPU or a whole number"):
        validate(RaySettings, {"gpus": 1.5}, "x")
    for secret in (
        {"env_vars": {"AWS_SECRET_ACCESS_KEY": "abc"}},
        {"pip": ["--index-url", "https://me:abc@x/simple"]},
    ):
        with pytest.raises(ConfigError, match="are stored and shown, so") as caught:
            validate(RaySettings, {"runtime_env": secret}, "x")
        assert "abc" not in str(caught.value)
    assert validate(
        RaySettings, {"runtime_env": {"env_vars": {"GLOO_SOCKET_IFNAME": "eth0"}}}, "x"
    ).runtime_env


def test_how_often_a_pod_fits_into_a_node():
    node = {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}
    assert count_fits({"CPU": 1.0, "GPU": 0.0}, node) == 4
    assert count_fits({"CPU": 1.0, "GPU": 0.3}, node) == 3
    assert count_fits({"CPU": 0.5, "GPU": 0.1}, node) == 8
    assert (
        count_fits({"CPU": 1.0, "GPU": 2.0}, node)
        == count_fits({"CPU": 1.0, "TPU": 1.0}, node)
        == 0
    )


FUSED = {"pods": 1, "order": "arrival", "replicas": 2, "fusions": MANY_ROUNDS}


@pytest.mark.slow
def test_a_pod_on_two_nodes_equals_one_process_whatever_is_killed(tmp_path, started):
    """Between two rounds the other node's raylet is killed, and then the pod's own process."""
    alone = RunFolder(tmp_path / "alone")
    there = RunFolder(tmp_path / "there")
    cluster = started(Nodes(1, 1))
    market = market_file(tmp_path)
    other = RunFolder(tmp_path / "other" / "many")
    many = started(
        Racer(other, cluster.address, "stub", {"nodes": 9, "wait_seconds": 1}, replicas=9)
    )
    generational(
        alone, ThreadLauncher(alone, market, train_and_evaluate, workers=1), "real", **FUSED
    )
    status, said = many.wait()
    assert status == REFUSED
    assert "a pod spans 9 nodes" in said
    assert "only 2 of 3 can hold that; lower --launcher.nodes, or add nodes" in said

    pod = there.pod("p0000")
    patient = {"patience_seconds": PATIENCE_SECONDS, **FUSED}
    racer = started(Racer(there, cluster.address, "real", {"nodes": 2}, **patient))

    def stop_in_the_middle(rounds):
        """Stop the rank of the other node; return the pod's nodes, its process and that rank."""
        rank = stop_rank(pod, 1, rounds)
        until(lambda: len(racer.note()["nodes"].get("p0000", [])) == 2, "word of both nodes")
        note = racer.note()
        return note["nodes"]["p0000"], note["pods"]["p0000"][1], rank

    (own, second), _, rank = stop_in_the_middle(rounds=1)
    assert own != second
    done = count_rounds(pod)
    cluster.add(1)
    cluster.kill_raylet(second)
    until(lambda: gone(rank), "the other node's rank to be gone")
    until(lambda: len(chaos.events_of(there, "lost")) == 1, "the loss to be noticed")

    held, process, rank = stop_in_the_middle(rounds=done + 2)
    assert second not in held
    psutil.Process(process).kill()
    until(lambda: gone(rank), "a rank without a pod to be gone")
    until(lambda: len(chaos.events_of(there, "lost")) == 2, "the second loss to be noticed")
    assert racer.wait() == (0, "")
    assert [(event["pod"], event["reason"]) for event in chaos.events_of(there, "lost")] in (
        [("p0000", "rank"), ("p0000", "killed")],
        [("p0000", "node"), ("p0000", "killed")],
    )
    assert RunStore(there).read_result("p0000").attempts == 3
    assert compare(alone, there) == []
    assert _files(alone) == _files(there)


def test_groups_of_nodes():
    assert count_groups([2, 0, 1], 1) == 3
    assert count_groups([4], 2) == 0  # a node counts once
    assert count_groups([4, 1], 2) == 1
    assert count_groups([2, 2], 2) == 2
    assert count_groups([3, 1, 1, 1], 2) == 3
    assert count_groups([5, 1, 1, 1], 3) == 1
    assert count_groups([], 2) == 0


def test_a_pod_with_fewer_learners_than_nodes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"set tournament\.replicas to 3 or more"):
        run_on_ray(RaySettings(nodes=3))(
            settings(replicas=2), PodContext(RunFolder(tmp_path), tmp_path)
        )
    with pytest.raises(
        ConfigError, match=r"2 GPUs.*set tournament\.replicas to 2 or more, or lower launcher\.gpus"
    ):
        run_on_ray(RaySettings(gpus=2))(settings(), PodContext(RunFolder(tmp_path), tmp_path))
