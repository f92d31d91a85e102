"""The ranks of a pod, as processes of one machine or of several, and their rendezvous.

A *host* starts the ranks of one machine and forwards their messages; `LocalHost` is this machine,
and a launcher for other machines brings its own hosts (`PodContext.hosts`). Orders go through the
rendezvous, a TCP store that the pod's process keeps. When that process dies, the store dies too,
and ranks that wait for orders end.

Messages between ranks are neither authenticated nor encrypted. On one machine the store and the
ranks therefore listen on loopback only; on several, on the address at which the nodes of the
cluster reach each other.
"""

from __future__ import annotations

import itertools
import os
import queue
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from fintrader.agents import Budget, TrainProgress
from fintrader.system import KILL, SENT_BY_OTHERS, count_oom_kills, find_interface, start_thread
from fintrader.tournament.fusion.learners import Maker, Report, State, ThreadFusion
from fintrader.tournament.messages import (
    EndMessage,
    FailureMessage,
    Host,
    Message,
    OnMessage,
    RankMessage,
    RankProgressMessage,
    RankTask,
    RoundMessage,
)
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.process import read_messages, send_task, spawn
from fintrader.tournament.spec import PodSpec, RankLost, Reason

GRACE_SECONDS = 2.0
"""Seconds to collect further messages after the first failure, since the first rank that reports
one may only have lost its partner."""
PATIENCE_SECONDS = 1800.0
"""Seconds that a rank waits for the others; `operations.patience_seconds` usually ends the pod
before."""
END = -1
"""The last order."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class RankAddress:
    """Place of a rank: number of its host, and device on it."""

    host: int
    device: str


def assign_ranks(devices: Sequence[str], hosts: int) -> list[RankAddress]:
    """Assign the ranks in order: hosts take turns. devices: those of all hosts, host by host."""
    each = len(devices) // hosts
    return [
        RankAddress(host, devices[host * each + number])
        for number in range(each)
        for host in range(hosts)
    ]


class LocalHost:
    """This machine, as a host of ranks."""

    def __init__(self, address: str = LOOPBACK) -> None:
        self.address = address
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, tasks: Sequence[RankTask], on_message: OnMessage) -> None:
        interface = find_interface(self.address)
        names = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - os.environ.keys()
        variables = {} if interface is None else dict.fromkeys(names, interface)
        for task in tasks:
            log = Path(task.folder) / f"rank-{task.rank}.log"
            process = spawn("fintrader.tournament.fusion.worker", log=log, variables=variables)
            self._processes.append(process)
            send_task(process, task)
            start_thread(self._read, process, task.rank, str(log), on_message)

    def _read(
        self, process: subprocess.Popen[str], rank: int, log: str, on_message: OnMessage
    ) -> None:
        for message in read_messages(process):
            on_message(rank, message)
        on_message(rank, EndMessage(process.wait(), log))

    def stop(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self._processes:
            process.wait()


class RankGroup:
    """The ranks of one attempt at a pod."""

    def __init__(
        self,
        spec: PodSpec,
        context: PodContext,
        ranks: Sequence[RankAddress],
        backend: str,
        hosts: Sequence[Host],
    ) -> None:
        """`ranks`: their addresses, in order; `hosts`: by number, the first of them this
        machine."""
        import torch.distributed as dist

        self.ranks = list(ranks)
        self.hosts = hosts
        self.inbox: queue.SimpleQueue[RankMessage] = queue.SimpleQueue()
        # torch itself would listen on all addresses
        listener = socket.create_server((hosts[0].address, 0), backlog=128)
        port = listener.getsockname()[1]
        self.store = dist.TCPStore(  # type: ignore[attr-defined]
            hosts[0].address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self._orders = 0
        self._oom_kills = count_oom_kills()
        tasks = [
            RankTask(
                pod=context.build_task(spec, device=at.device),
                folder=str(context.folder),
                rank=rank,
                world=len(ranks),
                rendezvous=f"{hosts[0].address}:{port}",
                backend=backend,
                patience_seconds=PATIENCE_SECONDS,
            )
            for rank, at in enumerate(ranks)
        ]
        for number, host in enumerate(hosts):
            mine = [task for task, at in zip(tasks, ranks, strict=True) if at.host == number]
            if mine:
                host.start(mine, lambda rank, message: self.inbox.put((rank, message)))

    def order(self, rounds: int) -> None:
        """Order all ranks to train until `rounds` rounds are done."""
        self.store.set(f"order-{self._orders}", str(rounds))
        self._orders += 1

    def receive(self) -> RankMessage:
        """Return the next message of a rank. Raises RankLost for the first that fails or ends."""
        rank, message = self.inbox.get()
        if not isinstance(message, FailureMessage | EndMessage):
            return rank, message
        raise self._find_first_failure(rank, message)

    def _find_first_failure(self, rank: int, first: Message) -> RankLost:
        """Find the rank that failed first: others that lost it may report before it."""
        failed: dict[int, FailureMessage] = {}
        ended: dict[int, EndMessage] = {}
        deadline = time.monotonic() + GRACE_SECONDS
        for other, message in itertools.chain([(rank, first)], self._list_until(deadline)):
            if isinstance(message, FailureMessage):
                failed.setdefault(other, message)
            elif isinstance(message, EndMessage):
                ended.setdefault(other, message)
            if len(ended) == len(self.ranks):
                break
        self.stop()
        codes = {number: ended[number].code for number in sorted(ended)}
        killed = [
            (number, -code) for number, code in codes.items() if code is not None and code < 0
        ]
        if killed:
            # A rank that failed by itself took the others with it.
            number, by = min(killed, key=lambda one: one[1] in SENT_BY_OTHERS)
            return self._build_loss(number, self._explain_signal(by), f"killed by signal {by}")
        for number, code in codes.items():
            if code is None:  # lost with its machine, or with the process above it
                reason = ended[number].reason
                lost = "node" if reason == "rank" else reason
                return self._build_loss(number, lost, ended[number].detail)
        if failed:  # ranks that only lost other ranks come last
            number = min(sorted(failed), key=lambda one: failed[one].reason == "rank")
            return self._build_loss(number, failed[number].reason, failed[number].detail)
        number = min(ended)
        detail = f"exited with status {codes[number]}; see {ended[number].log}"
        return self._build_loss(number, "rank", detail)

    def _list_until(self, deadline: float) -> Iterator[RankMessage]:
        """List the messages that arrive until then (monotonic seconds)."""
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                yield self.inbox.get(timeout=0.05)

    def _explain_signal(self, by: int) -> Reason:
        """Translate a signal to a reason: a rank that was ended from outside is retried without
        limit."""
        if by == KILL and count_oom_kills() > self._oom_kills:
            return "oom"
        return "killed" if by in SENT_BY_OTHERS else "rank"

    def _build_loss(self, rank: int, reason: Reason, detail: str) -> RankLost:
        return RankLost(
            reason, f"rank {rank} of {len(self.ranks)} on {self.ranks[rank].device}: {detail}"
        )

    def stop(self) -> None:
        """End all ranks."""
        self.order(END)
        for host in self.hosts:
            host.stop()


def choose_backend(ranks: Sequence[RankAddress]) -> str:
    """Choose NCCL if every rank has a GPU to itself, else gloo."""
    if len(set(ranks)) == len(ranks) and all(
        torch.device(at.device).type == "cuda" for at in ranks
    ):
        return "nccl"
    return "gloo"


class ProcessFusion(ThreadFusion):
    """`ThreadFusion` with one process for each device."""

    def __init__(
        self,
        spec: PodSpec,
        context: PodContext,
        devices: Sequence[torch.device],
        make: Maker,
        *,
        parent: State | None = None,
    ) -> None:
        cpu = torch.device("cpu")  # this process only holds the networks and evaluates
        super().__init__(
            context.folder,
            [cpu] * len(devices),
            lambda replica, number, _: make(replica, number, cpu),
            replicas=spec.replicas,
            rounds=spec.fusions,
            parent=parent,
        )
        self.spec = spec
        self.context = context
        self.hosts = context.hosts or [LocalHost()]
        self.ranks = assign_ranks([str(device) for device in devices], len(self.hosts))[
            : spec.replicas
        ]
        self._group: RankGroup | None = None

    def learn(self, due: int, budget: Budget, report: Report) -> None:
        """Train round after round until `due` are done. Raises RankLost when a rank fails."""
        if self._group is None:
            self._group = RankGroup(
                self.spec, self.context, self.ranks, choose_backend(self.ranks), self.hosts
            )
        self._group.order(due)
        at = [(0.0, 0)] * len(self.ranks)
        while self.done < due:
            rank, message = self._group.receive()
            if isinstance(message, RoundMessage) and rank == 0:
                self.take_finished_rounds()
            elif isinstance(message, RankProgressMessage):
                at[rank] = message.share, message.env_steps
                slowest = min(share for share, _ in at)
                steps = sum(one.env_steps for one in self.totals) + sum(steps for _, steps in at)
                rate = message.steps_per_second * len(self.ranks)
                report(
                    TrainProgress(
                        max(slowest, self.done / self.rounds), steps, self.done, 0.0, rate, {}
                    )
                )

    def close(self) -> None:
        """Stop the ranks."""
        if self._group is not None:
            self._group.stop()
