"""Learner fusion: one pod on several devices.

Each replica learns by itself for a while, on its own device and with its own accounts; then networks, optimiser
moments and normalisers are averaged and every replica goes on from the average, as in local SGD
(https://arxiv.org/abs/1805.09767). The number of replicas belongs to the pod's spec, not to the machine: with fewer
devices, replicas take turns on them and the result stays the same (bit by bit where the devices are CPUs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fintrader.agents import Agent, Budget, TrainProgress, TrainResult, read_agent_state, train
from fintrader.runs import write_bytes

INHERITED = ("modules.", "optimisers.")
"""What an agent's `inherit` takes, hence what is averaged; random streams stay each replica's own."""
Make = Callable[[int, int, torch.device], tuple[Agent, Any]]
"""(replica, round, device) -> a new agent and its environment, seeded by replica and round."""


def average(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of every floating tensor that is inherited; counters and the rest are the first replica's."""
    fused = {}
    for name, first in states[0].items():
        if name.startswith(INHERITED) and first.is_floating_point():
            mean = torch.stack([state[name].cpu().to(torch.float64) for state in states]).mean(dim=0)
            fused[name] = mean.to(first.dtype).contiguous()
        else:
            fused[name] = first.cpu().contiguous()
    return fused


class Fused:
    """`replicas` learners fused `rounds` times. Killed anywhere, it continues with the round it was in."""

    def __init__(
        self,
        folder: Path,
        devices: Sequence[torch.device],
        make: Make,
        *,
        replicas: int,
        rounds: int,
        parent: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.folder, self.devices, self.make = folder, devices, make
        self.replicas, self.rounds = replicas, rounds
        self.done = 0
        self.totals: list[TrainResult] = []
        self.fused: Mapping[str, Tensor] | None = parent
        self.agent, _ = make(0, 0, devices[0])
        """Carries the fused networks."""
        if parent is not None:
            self.agent.inherit(parent)

    def advance(self, budget: Budget, share: float, report: Callable[[TrainProgress], None]) -> TrainResult:
        """Learn until `share` of the whole `budget` is used up (to the nearest round above)."""
        while self.done < math.ceil(share * self.rounds - 1e-9):
            self._round(self.done, budget, report)
            self.done += 1
        last = self.totals[-self.replicas :]
        return TrainResult(
            env_steps=sum(one.env_steps for one in self.totals),
            updates=sum(one.updates for one in self.totals),
            seconds=sum(one.seconds for one in self.totals) / min(self.replicas, len(self.devices)),
            metrics=last[0].metrics,
        )

    def _round(self, number: int, budget: Budget, report: Callable[[TrainProgress], None]) -> None:
        """All replicas once, then their average; every replica resumes by itself after a kill."""
        learners = []
        for replica in range(self.replicas):  # made one after another: layers draw from the global stream
            agent, env = self.make(replica, number, self.devices[replica % len(self.devices)])
            if self.fused is not None:
                agent.inherit(self.fused)
            learners.append((replica, agent, env))

        def learn(learner: tuple[int, Agent, Any]) -> TrainResult:
            replica, agent, env = learner
            return train(agent, env, self._part(budget), folder=self._home(number, replica), on_progress=told)

        def told(progress: TrainProgress) -> None:
            fraction = (number + progress.fraction) / self.rounds
            report(TrainProgress(**{**vars(progress), "fraction": fraction}))

        with ThreadPoolExecutor(max_workers=min(self.replicas, len(self.devices))) as pool:
            self.totals += list(pool.map(learn, learners))
        path = self.folder / f"fused-{number}.safetensors"
        if not path.exists():
            states = [read_agent_state(self._home(number, replica)) for replica in range(self.replicas)]
            write_bytes(path, save(dict(sorted(average(states).items()))))
        try:
            self.fused = load(path.read_bytes())
        except SafetensorError:
            path.unlink()
            raise
        self.agent.inherit(self.fused)

    def _part(self, budget: Budget) -> Budget:
        """One replica's part of one round."""
        if budget.env_steps is not None:
            return Budget(env_steps=max(1, budget.env_steps // (self.rounds * self.replicas)))
        turns = -(-self.replicas // len(self.devices))
        return Budget(seconds=float(budget.seconds or 0.0) / (self.rounds * turns))

    def _home(self, number: int, replica: int) -> Path:
        return self.folder / f"round-{number}" / f"replica-{replica}"

    def state(self) -> dict[str, Tensor]:
        """The fused state: what a child inherits."""
        assert self.fused is not None
        return dict(self.fused)
