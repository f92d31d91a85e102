"""Learner fusion over processes: a pod with one *rank* a device, joined by `torch.distributed`.

Threads of one process share an interpreter and cannot leave their machine; ranks do neither. The averages are those of
`fusion.py`, bit by bit where the devices are CPUs: the ranks exchange their replicas' states and each computes the mean
in the order of the replicas. NCCL carries them between GPUs, gloo elsewhere. Communication is rare, so the cost is too:
one exchange of the agent's state a round instead of one of its gradient a minibatch (`benchmarks/communication.py`).

The pod's own process trains nothing. It keeps the rendezvous, watches over the ranks, and evaluates what they fused.
When one of them is lost, the others are stopped and the pod fails with the reason `rank`; the next attempt goes on with
the round that was under way.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fintrader.agents import Budget, TrainProgress
from fintrader.tournament.fusion import Fused, Make, State
from fintrader.tournament.pod import PodContext, PodSpec, RankLost, Reason, worker_environment

GRACE_SECONDS = 2.0
"""The rank that is heard of first may only have lost its partner: so long the others are listened to as well."""
PATIENCE_SECONDS = 1800.0
"""A rank waits so long for the others before it gives up; the orchestrator's `hang_seconds` usually comes first."""


def backend_of(devices: Sequence[torch.device]) -> str:
    """NCCL where every rank has a GPU of its own, else gloo."""
    apart = len({str(device) for device in devices}) == len(devices)
    return "nccl" if apart and all(device.type == "cuda" for device in devices) else "gloo"


class Ranked(Fused):
    """As `Fused`, with the replicas in a process a device."""

    def __init__(
        self,
        spec: PodSpec,
        context: PodContext,
        devices: Sequence[torch.device],
        make: Make,
        *,
        parent: State | None = None,
    ) -> None:
        cpu = torch.device("cpu")  # this process only carries and evaluates
        super().__init__(
            context.folder,
            [cpu] * len(devices),
            lambda replica, number, _: make(replica, number, cpu),
            replicas=spec.replicas,
            rounds=spec.fusions,
            parent=parent,
        )
        self.spec, self.context = spec, context
        self.places = list(devices)[: spec.replicas]
        self._crew: _Crew | None = None

    def learn(self, due: int, budget: Budget, report: Callable[[TrainProgress], None]) -> None:
        """Round after round until `due` are done. Raises RankLost when a rank came to nothing."""
        if self._crew is None:
            self._crew = _Crew(self.spec, self.context, self.places)
        self._crew.ask(due)
        at = [(0.0, 0)] * len(self.places)
        while self.done < due:
            rank, message = self._crew.hear()
            if message["kind"] == "round" and rank == 0:
                self.catch_up()
            elif message["kind"] == "progress":
                at[rank] = message["fraction"], message["env_steps"]
                slowest = min(fraction for fraction, _ in at)
                steps = sum(one.env_steps for one in self.totals) + sum(steps for _, steps in at)
                rate = message["rate"] * len(self.places)
                report(TrainProgress(max(slowest, self.done / self.rounds), steps, self.done, 0.0, rate, {}))

    def close(self) -> None:
        """Stop the ranks."""
        if self._crew is not None:
            self._crew.stop()


class _Crew:
    """The ranks of one attempt, as processes of this machine. The rendezvous listens on loopback."""

    def __init__(self, spec: PodSpec, context: PodContext, devices: Sequence[torch.device]) -> None:
        import torch.distributed as dist

        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self.inbox: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self.devices = list(devices)
        self.processes: list[subprocess.Popen[str]] = []
        self.logs: list[Path] = []
        task = {
            "spec": spec.model_dump(mode="json"),
            "run": str(context.run.root),
            "market": str(context.market),
            "folder": str(context.folder),
            "store": f"127.0.0.1:{self.store.port}",
            "backend": backend_of(devices),
            "world": len(devices),
            "patience": PATIENCE_SECONDS,
        }
        for rank, device in enumerate(devices):
            self._start(rank, {**task, "rank": rank, "device": str(device)})

    def _start(self, rank: int, task: dict[str, Any]) -> None:
        log = Path(task["folder"]) / f"rank-{rank}.log"
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "fintrader.tournament.rank", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**loopback, **worker_environment(), "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)},
            )
        self.logs.append(log)
        self.processes.append(process)
        self._send(rank, task)
        threading.Thread(target=self._read, args=(rank,), daemon=True, name=f"rank {rank}").start()

    def _send(self, rank: int, message: dict[str, Any]) -> None:
        stdin = self.processes[rank].stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it has just died: its reader will say so
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()

    def _read(self, rank: int) -> None:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        for line in stdout:
            with suppress(ValueError):  # the last words of a process that was killed in the middle of one
                self.inbox.put((rank, json.loads(line)))
        self.processes[rank].wait()
        self.inbox.put((rank, None))

    def ask(self, rounds: int) -> None:
        """Have all ranks learn until so many rounds are done."""
        for rank in range(len(self.processes)):
            self._send(rank, {"until": rounds})

    def hear(self) -> tuple[int, dict[str, Any]]:
        """The next word of a rank. Raises RankLost for the first that fails or falls silent for good."""
        rank, message = self.inbox.get()
        if message is not None and message["kind"] != "failed":
            return rank, message
        raise self._inquest(rank, message)

    def _inquest(self, rank: int, message: dict[str, Any] | None) -> RankLost:
        """Who failed first: a rank that was killed takes the others with it, and they complain before it is buried."""
        said: dict[int, dict[str, Any]] = {} if message is None else {rank: message}
        gone = {rank} if message is None else set()
        deadline = time.monotonic() + GRACE_SECONDS
        while len(gone) < len(self.processes) and time.monotonic() < deadline:
            with suppress(queue.Empty):
                other, word = self.inbox.get(timeout=0.05)
                if word is None:
                    gone.add(other)
                elif word["kind"] == "failed":
                    said.setdefault(other, word)
        codes = {number: self.processes[number].poll() or 0 for number in sorted(gone)}
        self.stop()
        killed = [number for number, code in codes.items() if code < 0]
        if killed:
            return self._lost(killed[0], "rank", f"killed by signal {-codes[killed[0]]}")
        words = sorted(said.items(), key=lambda item: item[1]["reason"] == "error")
        if words:
            return self._lost(words[0][0], words[0][1]["reason"], words[0][1]["detail"])
        return self._lost(rank, "rank", f"exited with status {codes.get(rank, 0)}; see {self.logs[rank]}")

    def _lost(self, rank: int, reason: Reason, detail: str) -> RankLost:
        return RankLost(reason, f"rank {rank} of {len(self.processes)} on {self.devices[rank]}: {detail}")

    def stop(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self.processes:
            process.wait()
