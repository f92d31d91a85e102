"""One rank of a pod that spans devices: `python -m fintrader.tournament.fusion.worker PARENT`,
started by `coordinator.py`.

Its task is a line of JSON on its standard input; the number of rounds comes from the rendezvous.
Its replicas train as those of `learners.py`. At the end of a round all ranks exchange their
replicas' states through `torch.distributed`, each computes the same average in the same order, and
rank 0 stores it. Only rank 0 needs the run's store; the others receive the first state by
broadcast.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from fintrader import reproducible
from fintrader.agents import TrainProgress, TrainResult, read_agent_state, train
from fintrader.agents.parallel import INHERITED_PREFIXES, average
from fintrader.records import from_json
from fintrader.tournament.fusion.coordinator import END
from fintrader.tournament.fusion.learners import (
    Maker,
    Report,
    State,
    build_maker,
    locate_replica,
    read_parent_state,
    read_rounds,
    split_budget,
    write_round,
)
from fintrader.tournament.messages import RankProgressMessage, RankTask, ReadyMessage, RoundMessage
from fintrader.tournament.pod import describe_failure
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.process import Channel
from fintrader.tournament.spec import PodSpec, RankLost

REPORT_SECONDS = 0.2
"""Least seconds between two reports."""

FOR_EVER = timedelta(days=20)


class Exchange:
    """Transfer of bytes between the ranks: on the device with NCCL, in memory with gloo."""

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")

    def gather(self, data: bytes) -> list[bytes]:
        """Gather every rank's `data`, in the order of the ranks, on every rank; at least one rank's
        is not empty."""
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.world)]
        with translate_errors():
            dist.all_gather(sizes, torch.tensor([len(data)], device=self._device))
        longest = max(int(size) for size in sizes)
        own = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8).to(
            self._device
        )
        parts = [torch.empty_like(own) for _ in range(self.world)]
        with translate_errors():
            dist.all_gather(parts, own)
        return [
            part[: int(size)].cpu().numpy().tobytes()
            for part, size in zip(parts, sizes, strict=True)
        ]


def select_inherited(state: State) -> dict[str, Tensor]:
    """Select the part of an agent's state that other ranks need."""
    return {
        name: tensor.cpu().contiguous()
        for name, tensor in sorted(state.items())
        if name.startswith(INHERITED_PREFIXES)
    }


@dataclass
class Rank:
    """This process's replicas: their numbers equal the rank modulo the number of ranks."""

    spec: PodSpec
    folder: Path
    device: torch.device
    make: Maker
    exchange: Exchange
    number: int = 0
    """Number of the next round."""
    fused: State | None = None

    def begin(self, parent: State | None) -> None:
        """Agree on the first round and on the state to begin from: rank 0's."""
        known = b""
        if self.exchange.rank == 0:
            self.fused = parent
            for fused, _ in read_rounds(self.folder):
                self.fused = fused
                self.number += 1
            known = self.number.to_bytes(8, "big")
            known += save(select_inherited(self.fused)) if self.fused is not None else b""
        known = self.exchange.gather(known)[0]
        self.number = int.from_bytes(known[:8], "big")
        self.fused = load(known[8:]) if known[8:] else None

    def run_round(self, on_progress: Report) -> None:
        """Train one round and fuse it."""
        spec = self.spec
        part = split_budget(spec.budget, spec.replicas, spec.fusions, self.exchange.world)
        totals = []
        states = []
        for replica in range(self.exchange.rank, spec.replicas, self.exchange.world):
            agent, env = self.make(replica, self.number, self.device)
            if self.fused is not None:
                agent.inherit(self.fused)
            home = locate_replica(self.folder, self.number, replica)
            totals.append(train(agent, env, part, folder=home, on_progress=on_progress))
            states.append(read_agent_state(home))
        fused, all_totals = self.average_replicas(states, totals)
        if self.exchange.rank == 0:
            write_round(self.folder, self.number, fused, all_totals)
        self.fused = fused
        self.number += 1

    def average_replicas(
        self, states: Sequence[State], totals: Sequence[TrainResult]
    ) -> tuple[dict[str, Tensor], list[TrainResult]]:
        """Average all replicas of all ranks; rank 0 adds the tensors that only its first replica
        has."""
        replicas = {}
        world = self.exchange.world
        for turn in range(-(-self.spec.replicas // world)):
            own = save(select_inherited(states[turn])) if turn < len(states) else b""
            for rank, data in enumerate(self.exchange.gather(own)):
                if data:
                    replicas[turn * world + rank] = load(data)
        fused = average([replicas[replica] for replica in range(self.spec.replicas)])
        if self.exchange.rank == 0:
            fused = {name: tensor.cpu().contiguous() for name, tensor in states[0].items()} | fused
        own_totals = json.dumps([one.to_json() for one in totals]).encode()
        by_rank = [json.loads(data) for data in self.exchange.gather(own_totals)]
        return dict(sorted(fused.items())), [
            TrainResult(**by_rank[replica % world][replica // world])
            for replica in range(self.spec.replicas)
        ]


def main() -> None:
    channel = Channel()
    task = from_json(RankTask, json.loads(channel.inbox.readline()))
    try:
        run_rank(task, channel)
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        with suppress(BrokenPipeError):
            channel.send(describe_failure(error))
        # Other ranks may wait in a collective that will never complete, so this one exits at once.
        os._exit(1)
    os._exit(0)


def run_rank(task: RankTask, channel: Channel) -> None:
    """Join the group and train as many rounds as ordered, until the last order.

    Raises RankLost when the pod's process is gone.
    """
    reproducible.settle()
    spec = task.pod.spec
    context = PodContext.from_task(task.pod, folder=Path(task.folder))
    device = torch.device(context.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = timedelta(seconds=task.patience_seconds)
    with translate_errors():
        dist.init_process_group(
            task.backend,
            store=connect(task.rendezvous, patience),
            rank=task.rank,
            world_size=task.world,
            timeout=patience,
        )
        # A connection for the orders alone, so that no other request waits for them.
        orders = connect(task.rendezvous, FOR_EVER)
    rank = Rank(spec, context.folder, device, build_maker(spec, context), Exchange(device))
    rank.begin(read_parent_state(spec, context) if task.rank == 0 else None)
    channel.send(ReadyMessage())
    last = 0.0

    def on_progress(progress: TrainProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            share = (rank.number + progress.fraction) / spec.fusions
            channel.send(RankProgressMessage(share, progress.env_steps, progress.steps_per_second))

    for number in itertools.count():
        # The next order comes after the pod's evaluation.
        with translate_errors():
            due = int(orders.get(f"order-{number}"))
        if due == END:
            return
        while rank.number < due:
            rank.run_round(on_progress)
            channel.send(RoundMessage(rank.number))


def connect(address: str, patience: timedelta) -> Any:
    """Connect to the store that the pod's process keeps."""
    host, _, port = address.rpartition(":")
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), is_master=False, timeout=patience
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn an error of the exchange into RankLost with the reason `rank`: another rank caused
    it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankLost(
            "rank", f"the connection to the other ranks was lost ({str(error).splitlines()[0]})"
        ) from error


if __name__ == "__main__":
    main()
