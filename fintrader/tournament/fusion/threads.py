"""Learner fusion: one pod on several devices.

Each replica learns by itself for a while, on its own device and with its own accounts; then networks, optimiser
moments and normalisers are averaged and every replica goes on from the average, as in local SGD
(https://arxiv.org/abs/1805.09767). The number of replicas belongs to the pod's spec, not to the machine: with fewer
devices, replicas take turns on them and the result stays the same (bit by bit where the devices are CPUs).

Here the replicas are threads of the pod's process; `coordinator.py` gives each device a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fintrader.agents import Agent, Budget, TrainProgress, TrainResult, read_agent_state, train
from fintrader.agents.checkpoint import read_tensors, write_tensors
from fintrader.agents.parallel.learners import average
from fintrader.errors import CheckpointError
from fintrader.tournament.pod_building import Make, State

FORMAT = "fintrader-fusion-1"


def part_of_round(budget: Budget, replicas: int, rounds: int, devices: int) -> Budget:
    """One replica's part of one round."""
    if budget.env_steps is not None:
        return Budget(env_steps=max(1, budget.env_steps // (rounds * replicas)))
    turns = -(-replicas // devices)
    return Budget(seconds=float(budget.seconds or 0.0) / (rounds * turns))


def home_of(folder: Path, number: int, replica: int) -> Path:
    """Where a replica trains in a round; it resumes there after a kill."""
    return folder / f"round-{number}" / f"replica-{replica}"


def write_round(folder: Path, number: int, fused: State, totals: Sequence[TrainResult]) -> None:
    """Store a round that is over: what was fused, and what each replica's part of it came to."""
    header = {"format": FORMAT, "totals": [one.to_json() for one in totals]}
    write_tensors(folder / f"fused-{number}.safetensors", fused, header)


def read_round(folder: Path, number: int) -> tuple[dict[str, Tensor], list[TrainResult]] | None:
    """A stored round, None if there is none; a damaged one is removed, and fused again from its replicas."""
    path = folder / f"fused-{number}.safetensors"
    if not path.exists():
        return None
    try:
        fused, header = read_tensors(path, FORMAT)
        return fused, [TrainResult(**one) for one in header["totals"]]
    except (CheckpointError, TypeError, KeyError):
        path.unlink()
        return None


def rounds_due(share: float, rounds: int) -> int:
    """Rounds until `share` of the budget is used up, to the nearest above."""
    return math.ceil(share * rounds - 1e-9)


def summary(totals: Sequence[TrainResult], replicas: int, devices: int) -> TrainResult:
    """All rounds so far as one training."""
    return TrainResult(
        env_steps=sum(one.env_steps for one in totals),
        updates=sum(one.updates for one in totals),
        seconds=sum(one.seconds for one in totals) / min(replicas, devices),
        metrics=totals[-replicas].metrics,
    )


class ThreadFusion:
    """`replicas` learners fused `rounds` times. Killed anywhere, it continues with the round it was in."""

    def __init__(
        self,
        folder: Path,
        devices: Sequence[torch.device],
        make: Make,
        *,
        replicas: int,
        rounds: int,
        parent: State | None = None,
    ) -> None:
        self.folder, self.devices, self.make = folder, devices, make
        self.replicas, self.rounds = replicas, rounds
        self.done = 0
        self.totals: list[TrainResult] = []
        self.fused: State | None = parent
        self.agent, _ = make(0, 0, devices[0])
        """Carries the fused networks."""
        if parent is not None:
            self.agent.inherit(parent)

    def advance(self, budget: Budget, share: float, report: Callable[[TrainProgress], None]) -> TrainResult:
        """Learn until `share` of the whole `budget` is used up (to the nearest round above)."""
        self.catch_up()
        due = rounds_due(share, self.rounds)
        if self.done < due:
            self.learn(due, budget, report)
        return summary(self.totals, self.replicas, len(self.devices))

    def catch_up(self) -> None:
        """Take what earlier attempts, or the ranks, have finished."""
        while self.done < self.rounds and (known := read_round(self.folder, self.done)) is not None:
            self.fused, totals = known
            self.totals += totals
            self.done += 1
        if self.done and self.fused is not None:
            self.agent.inherit(self.fused)

    def learn(self, due: int, budget: Budget, report: Callable[[TrainProgress], None]) -> None:
        """Round after round until `due` are done."""
        part = part_of_round(budget, self.replicas, self.rounds, len(self.devices))
        while self.done < due:
            self._round(self.done, part, report)
            self.catch_up()

    def _round(self, number: int, part: Budget, report: Callable[[TrainProgress], None]) -> None:
        """All replicas once, then their average; every replica resumes by itself after a kill."""
        learners = []
        for replica in range(self.replicas):  # made one after another: layers draw from the global stream
            agent, env = self.make(replica, number, self.devices[replica % len(self.devices)])
            if self.fused is not None:
                agent.inherit(self.fused)
            learners.append((replica, agent, env))

        def on_progress(progress: TrainProgress) -> None:
            fraction = (number + progress.fraction) / self.rounds
            report(TrainProgress(**{**vars(progress), "fraction": fraction}))

        def learn(learner: tuple[int, Agent, Any]) -> TrainResult:
            replica, agent, env = learner
            return train(agent, env, part, folder=home_of(self.folder, number, replica), on_progress=on_progress)

        with ThreadPoolExecutor(max_workers=min(self.replicas, len(self.devices))) as pool:
            totals = list(pool.map(learn, learners))
        states = [read_agent_state(home_of(self.folder, number, replica)) for replica in range(self.replicas)]
        write_round(self.folder, number, dict(sorted(average(states).items())), totals)

    def state(self) -> dict[str, Tensor]:
        """The fused state: what a child inherits."""
        assert self.fused is not None
        return dict(self.fused)

    def close(self) -> None:
        """Threads end with their round."""
