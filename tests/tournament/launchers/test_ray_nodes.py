from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from fintrader.errors import ConfigError
from fintrader.runs import RunFolder
from fintrader.tournament.launchers import RaySettings, on_ray
from fintrader.tournament.launchers.ray.cluster import groups
from fintrader.tournament.pod_training import train_and_evaluate
from fintrader.tournament.spec import PodContext
from fintrader.tournament.status import compare
from fintrader.tournament.store import RunStore
from tests.engines.chaos import events_of
from tests.engines.races import market_file, settings
from tests.engines.ray_cluster import Nodes
from tests.engines.ray_race import REFUSED, Racer, generational
from tests.engines.thread_launcher import ThreadLauncher
from tests.engines.waiting import gone, until
from tests.tournament.fusion.test_coordinator import barrier_in, rank_process
from tests.tournament.launchers.conftest import Started
from tests.tournament.launchers.test_ray import _files

FUSED = {"pods": 1, "scheduler": "tournament", "replicas": 2, "fusions": 3}


@pytest.mark.ray
@pytest.mark.slow
def test_a_pod_on_two_nodes_equals_one_process_whatever_is_killed(
    nodes: Nodes, tmp_path: Path, started: Started
) -> None:
    """In the middle of a round the other node's raylet is killed, and then the pod's own process."""
    alone, there = RunFolder(tmp_path / "alone"), RunFolder(tmp_path / "there")
    market = market_file(tmp_path)
    pod = there.pod("p0000")
    barrier = barrier_in(pod)
    racer = started(Racer(there, nodes.address, "real", {"nodes": 2}, **FUSED))
    other = RunFolder(tmp_path / "other" / "many")
    many = started(Racer(other, nodes.address, "stub", {"nodes": 9, "wait_seconds": 1}, replicas=9))
    generational(alone, ThreadLauncher(alone, market, train_and_evaluate, workers=1), "real", **FUSED)
    status, said = many.wait()
    assert status == REFUSED
    assert "a pod spans 9 nodes" in said
    assert "only 2 of 3 node(s) can hold that; lower --ray.nodes, or add nodes" in said

    def at_barrier() -> list[Any]:
        """The pod's nodes, the process of its own task, and that of its other rank."""
        found: list[Any] = []

        def there() -> bool:
            note, rank = racer.note(), rank_process(pod, 1)
            held = note["nodes"].get("p0000", [])
            found[:] = [held, note["pods"].get("p0000", ["", 0])[1], rank]
            return len(held) == 2 and rank is not None and (pod / "fused-0.safetensors").exists()

        until(there, "both ranks in round 1")
        return found

    (own, second), _, rank = at_barrier()
    assert own != second
    nodes.add(1)
    nodes.kill_raylet(second)
    until(lambda: gone(rank), "the other node's rank to be gone")
    until(lambda: len(events_of(there, "lost")) == 1, "the loss to be noticed")

    held, process, rank = at_barrier()
    assert second not in held
    psutil.Process(process).kill()
    until(lambda: gone(rank), "a rank without a pod to be gone")
    until(lambda: len(events_of(there, "lost")) == 2, "the second loss to be noticed")
    barrier.unlink()
    assert racer.wait() == (0, "")
    assert [(event["pod"], event["reason"]) for event in events_of(there, "lost")] in (
        [("p0000", "rank"), ("p0000", "killed")],
        [("p0000", "node"), ("p0000", "killed")],
    )
    assert RunStore(there).read_result("p0000").attempts == 3
    assert compare(alone, there) == []
    assert _files(alone) == _files(there)


def test_groups_of_nodes() -> None:
    assert groups([2, 0, 1], 1) == 3
    assert groups([4], 2) == 0  # a node counts once
    assert groups([4, 1], 2) == 1
    assert groups([2, 2], 2) == 2
    assert groups([3, 1, 1, 1], 2) == 3
    assert groups([5, 1, 1, 1], 3) == 1
    assert groups([], 2) == 0


def test_a_pod_with_fewer_learners_than_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set tournament\.replicas to 3 or more"):
        on_ray(RaySettings(nodes=3))(settings(replicas=2), PodContext(RunFolder(tmp_path), tmp_path))
    with pytest.raises(ConfigError, match=r"2 GPUs.*set tournament\.replicas to 2 or more, or lower ray\.gpus"):
        on_ray(RaySettings(gpus=2))(settings(), PodContext(RunFolder(tmp_path), tmp_path))
