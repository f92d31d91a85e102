"""A pod's learners: their factory, a single learner, and several that are fused.

Each replica trains on its own device and accounts for a while; then networks, optimiser moments and
normalisers are averaged, and every replica continues from the average, as in local SGD
(https://arxiv.org/abs/1805.09767). The number of replicas belongs to the pod's spec, not to the
machine: with fewer devices, replicas take turns on them and the result stays the same (bit by bit
on CPUs).

Here the replicas are threads of the pod's process; `coordinator.py` gives each device a process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fintrader.agents import (
    Agent,
    AgentSettings,
    Budget,
    TrainProgress,
    TrainResult,
    make_agent,
    read_agent_state,
    train,
)
from fintrader.agents.checkpoint import read_tensors, write_tensors
from fintrader.agents.parallel import average
from fintrader.agents.policy import ActorPolicy
from fintrader.agents.training import multiply_at
from fintrader.config import validate
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.classic import WorkerEnv
from fintrader.envs.rivals import RivalsEnv
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import CheckpointError, TournamentError
from fintrader.files import remove
from fintrader.market.tensors import MarketTensors, Split
from fintrader.seeding import derive
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodSpec, Rival

CPU = torch.device("cpu")
FORMAT = "fintrader-fusion-1"
State = Mapping[str, Tensor]
"""An agent's networks, optimisers and normalisers, by name."""
Maker = Callable[[int, int, torch.device], tuple[Agent, Any]]
"""Function (replica, round, device) -> a new agent and its environment, seeded by replica and
round."""
Report = Callable[[TrainProgress], None]

# --- read from the pod's spec ---------------------------------------------------------------------


def build_maker(spec: PodSpec, context: PodContext) -> Maker:
    """Build the function that makes the pod's agents and environments. Raises TournamentError,
    ConfigError for a foreign spec."""
    settings = read_agent_settings(spec)
    env_settings = read_env_settings(spec)
    split = read_windows(spec, context)

    def make(replica: int, number: int, device: torch.device) -> tuple[Agent, Any]:
        seed = derive(spec.seed, "replica", replica, number) if spec.replicas > 1 else spec.seed
        env: Any
        if split is None:
            env = WorkerEnv.make(env_settings, seed=derive(seed, "env"), device=device)
        else:
            market = split.train if device == CPU else split.train.to(device)
            env = TradingEnv(market, env_settings, device=device, seed=derive(seed, "env"))
            if spec.rivals:
                env = RivalsEnv(env, [_load_rival(one, env, context) for one in spec.rivals])
        return make_agent(settings, env.layout, device=device, seed=seed), env

    return make


def _load_rival(rival: Rival, env: TradingEnv, context: PodContext) -> ActorPolicy:
    """Load the policy of a rival's snapshot. Raises CheckpointError."""
    agent = make_agent(read_agent_settings(rival), env.layout, device=env.device, seed=0)
    agent.inherit(read_snapshot(context, rival.snapshot))
    return agent.policy


def read_agent_settings(spec: PodSpec | Rival) -> Any:
    """Read the agent's settings. Raises TournamentError for a spec of another version."""
    try:
        return TypeAdapter(AgentSettings).validate_python(spec.agent)
    except ValidationError as error:
        raise TournamentError(
            f"{spec.pod}: its agent's settings are of another version ({error})"
        ) from None


def read_env_settings(spec: PodSpec) -> Any:
    """Read the environment's settings: `EnvSettings`, without the working of orders, or
    `GymnasiumSettings`. Raises ConfigError for a spec of another version."""
    if spec.is_classic:
        return validate(GymnasiumSettings, spec.env, f"{spec.pod}: env")
    return validate(EnvSettings, spec.env, f"{spec.pod}: env").at_once()


def read_windows(spec: PodSpec, context: PodContext) -> Split | None:
    """Load the windows of the pod's market; None in a classic environment."""
    return None if spec.is_classic else load_windows(context.market)


@lru_cache(maxsize=1)
def load_windows(path: Path) -> Split:
    """Load the windows, kept between the pods of one process."""
    return MarketTensors.load(path).split()


def read_parent_state(spec: PodSpec, context: PodContext) -> dict[str, Tensor] | None:
    """Read the parent's state; None without a parent. Raises CheckpointError."""
    return None if spec.snapshot is None else read_snapshot(context, spec.snapshot)


def read_snapshot(context: PodContext, digest: str) -> dict[str, Tensor]:
    """Read a stored state, verified against its name. Raises CheckpointError."""
    try:
        return load(context.open_store().get(digest))
    except SafetensorError as error:
        raise CheckpointError(f"snapshot {digest[:12]} holds no tensors ({error})") from None


# --- one learner ----------------------------------------------------------------------------------


class _Learner:
    """Base of learners with one agent that holds the pod's networks."""

    agent: Agent

    @property
    def policy(self) -> ActorPolicy:
        """The trained policy."""
        return self.agent.policy

    def take(self, state: State) -> None:
        """Load another policy, which is not trained further. Raises CheckpointError when it does
        not fit."""
        self.agent.inherit(state)

    def close(self) -> None:
        """Do nothing: there are no processes, and threads end with their round."""


class Single(_Learner):
    """One agent on one device."""

    def __init__(
        self, folder: Path, device: torch.device, make: Maker, *, parent: State | None = None
    ) -> None:
        self.folder = folder
        self.agent, self.env = make(0, 0, device)
        if parent is not None:
            self.agent.inherit(parent)

    def advance(self, budget: Budget, share: float, report: Report) -> TrainResult:
        """Train until `share` of the whole `budget` is used up."""
        return train(
            self.agent, self.env, budget, folder=self.folder, on_progress=report, share=share
        )

    def state(self) -> dict[str, Tensor]:
        """Return the state for a child."""
        return read_agent_state(self.folder)


# --- several --------------------------------------------------------------------------------------


def split_budget(budget: Budget, replicas: int, rounds: int, devices: int) -> Budget:
    """Split off one replica's part of one round."""
    if budget.env_steps is not None:
        return Budget(env_steps=max(1, budget.env_steps // (rounds * replicas)))
    turns = -(-replicas // devices)
    return Budget(seconds=float(budget.seconds or 0.0) / (rounds * turns))


def locate_replica(folder: Path, number: int, replica: int) -> Path:
    """Name a replica's folder in a round; it resumes there after a kill."""
    return folder / f"round-{number}" / f"replica-{replica}"


def write_round(folder: Path, number: int, fused: State, totals: Sequence[TrainResult]) -> None:
    """Store a finished round: the fused state and each replica's training totals."""
    header = {"format": FORMAT, "totals": [one.to_json() for one in totals]}
    write_tensors(folder / f"fused-{number}.safetensors", fused, header)


def read_round(folder: Path, number: int) -> tuple[dict[str, Tensor], list[TrainResult]] | None:
    """Read a stored round; None without one. A damaged round is removed, so that it is fused again
    from its replicas."""
    path = folder / f"fused-{number}.safetensors"
    if not path.exists():
        return None
    try:
        fused, header = read_tensors(path, FORMAT)
        return fused, [TrainResult(**one) for one in header["totals"]]
    except (CheckpointError, TypeError, KeyError):
        remove(path)
        return None


def read_rounds(
    folder: Path, first: int = 0
) -> Iterator[tuple[dict[str, Tensor], list[TrainResult]]]:
    """Read the stored rounds from number `first` on, up to the first that is missing."""
    for number in itertools.count(first):
        stored = read_round(folder, number)
        if stored is None:
            return
        yield stored


class ThreadFusion(_Learner):
    """`replicas` learners fused `rounds` times. After a kill, training continues in the same
    round."""

    def __init__(
        self,
        folder: Path,
        devices: Sequence[torch.device],
        make: Maker,
        *,
        replicas: int,
        rounds: int,
        parent: State | None = None,
    ) -> None:
        self.folder = folder
        self.devices = devices
        self.make = make
        self.replicas = replicas
        self.rounds = rounds
        self.done = 0
        self.totals: list[TrainResult] = []
        self.fused: State | None = parent
        self.agent, _ = make(0, 0, devices[0])
        """Holds the fused networks."""
        if parent is not None:
            self.agent.inherit(parent)

    def advance(self, budget: Budget, share: float, report: Report) -> TrainResult:
        """Train until `share` of the whole `budget` is used up (to the nearest round above)."""
        self.take_finished_rounds()
        due = math.ceil(share * self.rounds - 1e-9)
        if self.done < due:
            self.learn(due, budget, report)
        return TrainResult(
            env_steps=sum(one.env_steps for one in self.totals),
            updates=sum(one.updates for one in self.totals),
            seconds=sum(one.seconds for one in self.totals) / min(self.replicas, len(self.devices)),
            metrics=self.totals[-self.replicas].metrics,
        )

    def take_finished_rounds(self) -> None:
        """Take over rounds that earlier attempts, or the ranks, have finished."""
        for fused, totals in read_rounds(self.folder, self.done):
            self.fused = fused
            self.totals += totals
            self.done += 1
        if self.done and self.fused is not None:
            self.agent.inherit(self.fused)

    def learn(self, due: int, budget: Budget, report: Report) -> None:
        """Train round after round until `due` are done."""
        part = split_budget(budget, self.replicas, self.rounds, len(self.devices))
        while self.done < due:
            self._round(self.done, part, report)
            self.take_finished_rounds()

    def _round(self, number: int, part: Budget, report: Report) -> None:
        """Train all replicas for one round and average them; each resumes by itself after a
        kill."""
        learners = []
        # made one after another: layers draw from the global random stream
        for replica in range(self.replicas):
            agent, env = self.make(replica, number, self.devices[replica % len(self.devices)])
            if self.fused is not None:
                agent.inherit(self.fused)
            learners.append((replica, agent, env))

        def on_progress(progress: TrainProgress) -> None:
            report(replace(progress, fraction=(number + progress.fraction) / self.rounds))

        def learn(learner: tuple[int, Agent, Any]) -> TrainResult:
            replica, agent, env = learner
            return train(
                agent,
                env,
                part,
                folder=locate_replica(self.folder, number, replica),
                on_progress=on_progress,
            )

        precision = getattr(getattr(learners[0][1], "settings", None), "matmul", "highest")
        workers = min(self.replicas, len(self.devices))
        with multiply_at(precision), ThreadPoolExecutor(max_workers=workers) as pool:
            totals = list(pool.map(learn, learners))
        states = [
            read_agent_state(locate_replica(self.folder, number, replica))
            for replica in range(self.replicas)
        ]
        write_round(self.folder, number, dict(sorted(average(states).items())), totals)

    def state(self) -> dict[str, Tensor]:
        """Return the fused state, for a child."""
        assert self.fused is not None
        return dict(self.fused)
