"""A Ray cluster of several nodes on loopback, in a process of its own: `python -m
tests.engines.ray_cluster`.

It reads commands as JSON lines and answers each with one, so that nothing of Ray stays in the
process that asks. When its standard input closes, or it dies, everything it started goes too.
`Nodes` is the asking half.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any

import psutil

from tests import ROOT
from tests.engines.waiting import PATIENCE_SECONDS

MEMORY = 80 * 2**20
"""Object store of a node, in bytes: next to nothing is put there."""
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 2000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 4,
}
"""How soon the head notices that a node is silent."""


def start_module(
    *words: str, env: dict[str, str] | None = None, **how: Any
) -> subprocess.Popen[str]:
    """`python -m WORDS`, which sees what is importable here, and of Ray's variables those of `env`
    alone."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]), **(env or {})}
    return subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=own, text=True, **how)


class Nodes:
    """A cluster with a head that takes no pods, and `cpus` for each worker node."""

    def __init__(self, *cpus: int, quick: bool = False, **variables: str) -> None:
        """`quick`: a node that is silent for ten seconds or so is given up."""
        # else every address becomes the machine's outward one
        env = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled", **variables}
        words = ["tests.engines.ray_cluster", *(["quick"] if quick else [])]
        # Ray's reaper kills the whole group when this process dies.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = start_module(*words, env=env, start_new_session=True, **pipes)
        try:
            self.address: str = self.ask("start")["address"]
            for count in cpus:
                self.add(count)
        except BaseException:
            self.stop()
            raise

    def ask(self, command: str, **more: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps({"command": command, **more}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the cluster's process died at {command}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def add(self, cpus: int, gpus: int = 0) -> str:
        """A new node; its id."""
        return str(self.ask("add", cpus=cpus, gpus=gpus)["node"])

    def kill(self, node: str) -> None:
        """SIGKILL its raylet and all that lives below it, as if the machine had lost power."""
        self.ask("kill", node=node)

    def kill_raylet(self, node: str) -> None:
        """SIGKILL the raylet alone; what it leaves behind has to find out by itself."""
        self.ask("kill_raylet", node=node)

    def drain(self, node: str, seconds: float) -> None:
        """Give notice that a node goes, as a preemption does."""
        self.ask("drain", node=node, seconds=seconds)

    def kill_head(self) -> None:
        """SIGKILL the head's processes: GCS, raylet, and the rest."""
        self.ask("kill_head")

    def stop(self) -> None:
        """Everything, whatever state it is in."""
        below = []
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(below, timeout=60)
        self.process.stdout.close()


# --- the process ----------------------------------------------------------------------------------


def _tree(node: Any) -> list[psutil.Process]:
    """Every process of a Ray node, roots first."""
    found = []
    for kind in node.all_processes.values():
        for info in kind:
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(info.process.pid)
                found += [root, *root.children(recursive=True)]
    return found


def _kill(node: Any) -> None:
    victims = _tree(node)
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    for kind in node.all_processes.values():
        for info in kind:
            info.process.wait(timeout=PATIENCE_SECONDS)


def _drain(address: str, node: str, seconds: float) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = GcsClient(address=address).drain_node(
        node, reason, "test", int((time.time() + seconds) * 1000)
    )
    assert accepted, why


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    plain = {
        "include_dashboard": False,
        "object_store_memory": MEMORY,
        "node_ip_address": "127.0.0.1",
    }
    cluster = Cluster()
    nodes: dict[str, Any] = {}

    def act(task: dict[str, Any]) -> dict[str, Any]:
        match task["command"]:
            case "start":
                cluster.add_node(
                    num_cpus=0, _system_config=QUICK if "quick" in sys.argv else {}, **plain
                )
                return {"address": cluster.address}
            case "add":
                node = cluster.add_node(num_cpus=task["cpus"], num_gpus=task["gpus"], **plain)
                nodes[node.node_id] = node
                return {"node": node.node_id}
            case "kill":
                node = nodes.pop(task["node"])
                cluster.worker_nodes.discard(node)
                _kill(node)
            case "kill_raylet":
                node = nodes[task["node"]]
                raylet = node.all_processes["raylet"][0].process
                raylet.kill()
                raylet.wait(timeout=PATIENCE_SECONDS)
            case "drain":
                _drain(cluster.address, task["node"], task["seconds"])
            case "kill_head":
                _kill(cluster.head_node)
        return {}

    for line in sys.stdin:
        try:
            answer = act(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for node in [*nodes.values(), *([cluster.head_node] if cluster.head_node else [])]:
        with contextlib.suppress(Exception):
            _kill(node)
    os._exit(0)


if __name__ == "__main__":
    main()
