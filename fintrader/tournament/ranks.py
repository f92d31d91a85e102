"""Learner fusion over processes: a pod with one *rank* a device, joined by `torch.distributed`.

Threads of one process share an interpreter and cannot leave their machine; ranks (`crew.py`) do neither. The averages
are those of `fusion.py`, bit by bit where the devices are CPUs: the ranks exchange their replicas' states and each
computes the mean in the order of the replicas. NCCL carries them between GPUs, gloo elsewhere. Communication is rare,
so the cost is too: one exchange of the agent's state a round instead of one of its gradient a minibatch
(`benchmarks/communication.py`).

The pod's own process trains nothing. It keeps the rendezvous, watches over the ranks, and evaluates what they fused.
When one of them is lost, the others are stopped and the pod fails with the reason `rank`; the next attempt goes on with
the round that was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fintrader.agents import Budget, TrainProgress
from fintrader.tournament.crew import Crew, Here, Place, places_of
from fintrader.tournament.fusion import Fused, Make, State
from fintrader.tournament.pod import PodContext, PodSpec


def backend_of(places: Sequence[Place]) -> str:
    """NCCL where every rank has a GPU of its own, else gloo."""
    apart = len(set(places)) == len(places)
    return "nccl" if apart and all(torch.device(place.device).type == "cuda" for place in places) else "gloo"


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
        self.hosts = context.hosts or [Here()]
        self.places = places_of([str(device) for device in devices], len(self.hosts))[: spec.replicas]
        self._crew: Crew | None = None

    def learn(self, due: int, budget: Budget, report: Callable[[TrainProgress], None]) -> None:
        """Round after round until `due` are done. Raises RankLost when a rank came to nothing."""
        if self._crew is None:
            self._crew = Crew(self.spec, self.context, self.places, backend_of(self.places), self.hosts)
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
