"""Traffic between the learners of one pod: rare fusion of their states against gradients at every
minibatch.

    python -m benchmarks.communication [--ranks 2] [--seeds 3] [--env-steps 65536] [--save]

R processes, joined by `torch.distributed` (gloo on loopback), train one
PPO agent together, each with accounts of its own, for the same number of env-steps. Five ways to
stay one agent:

    gradients     every minibatch's gradient is all-reduced in one bucket before it is clipped,
                  as DistributedDataParallel does (without its broadcast of buffers, which would
                  come on top)
    every_update  networks, moments and normalisers are averaged after each update by an all-reduce
    fusions_8     ... eight times in the whole training, as the learners of a pod are
                  (`tournament.replicas`)
    fusions_1     ... once, at the end
    alone         never: one learner with its own share of the data

An *epoch* lies between two of eight fusions. Bytes are counted where they are handed to a
collective, on each rank. The small problem is the market of Gârleanu and Pedersen, whose optimum is
known (`known_optimum.py`); quality is the share of the optimal utility that the agent reaches at
the end. Env-steps are those of each rank.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load, save

from benchmarks._bench import Values, finish, read_arguments
from benchmarks.known_optimum import ENGINE_PPO, JUDGE, QuadraticMarket, evaluate, optimal_policy
from fintrader.agents import Budget, make_agent, train
from fintrader.agents.base import BaseAgent
from fintrader.agents.parallel import average
from fintrader.seeding import derive
from fintrader.tournament.fusion.worker import Exchange, select_inherited
from tests.engines.tiny import agent_settings

ARMS = ("gradients", "every_update", "fusions_8", "fusions_1", "alone")
EPOCHS = 8


class Meter:
    """Counts bytes handed to collectives on this rank, and seconds until they return (waiting
    included)."""

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds = 0.0

    def count(self) -> Any:
        """Count all collectives of a block."""
        return patch.multiple(
            dist,
            all_reduce=self._count(dist.all_reduce, 0),
            all_gather=self._count(dist.all_gather, 1),
            broadcast=self._count(dist.broadcast, 0),
        )

    def _count(self, call: Callable[..., Any], place: int) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            tensor = arguments[place]
            begun = time.perf_counter()
            result = call(*arguments, **named)
            self.seconds += time.perf_counter() - begun
            self.bytes += tensor.numel() * tensor.element_size()
            return result

        return counted


class GradientAllReduce:
    """Averages all gradients over the ranks, in one bucket, when the last of them is there."""

    def __init__(self, agent: BaseAgent) -> None:
        self.parameters = list_parameters(agent)
        self.due = len(self.parameters)
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, parameter: torch.Tensor) -> None:
        self.due -= 1
        if self.due:
            return
        self.due = len(self.parameters)
        gradients = [one.grad for one in self.parameters if one.grad is not None]
        bucket = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(bucket)
        bucket /= dist.get_world_size()
        parts = torch.split(bucket, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def fuse_by_all_reduce(agent: BaseAgent) -> None:
    """Average the learners of all ranks in place: one all-reduce of one flat tensor per data
    type."""
    state = agent.collect_inheritable_state()
    variances = [name for name in state if name.endswith(".var")]
    for name in variances:  # merged as second moments
        state[name] = state[name] + state[name.removesuffix("var") + "mean"] ** 2
    fused = {}
    for dtype in sorted({tensor.dtype for tensor in state.values()}, key=str):
        names = [name for name, tensor in state.items() if tensor.dtype == dtype]
        flat = torch.cat([state[name].reshape(-1) for name in names])
        dist.all_reduce(flat)
        flat = flat / dist.get_world_size()
        for name, part in zip(
            names, torch.split(flat, [state[name].numel() for name in names]), strict=True
        ):
            fused[name] = part.view_as(state[name])
    for name in variances:
        fused[name] = (fused[name] - fused[name.removesuffix("var") + "mean"] ** 2).clamp_min(0.0)
    BaseAgent.inherit(
        agent, fused
    )  # not a child's `inherit`: a learner goes on with its own experience


class FusedAfterEveryUpdate:
    """A learner that is averaged with those of the other ranks after each of its updates."""

    def __init__(self, agent: BaseAgent) -> None:
        self.agent: Any = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)

    def update(self) -> dict[str, float] | None:
        """The agent's update, then the average over all ranks."""
        metrics = self.agent.update()
        if metrics is not None:
            fuse_by_all_reduce(self.agent)
        return metrics


def fuse_states(agent: BaseAgent, exchange: Exchange) -> None:
    """As the ranks of a pod do: exchange the states, average them in the order of the ranks."""
    states = [
        load(data)
        for data in exchange.gather(save(select_inherited(agent.collect_inheritable_state())))
    ]
    BaseAgent.inherit(agent, average(states))


def list_parameters(agent: BaseAgent) -> list[torch.Tensor]:
    """All that the agent's optimisers move."""
    groups = [group for one in agent.optimisers.values() for group in one.param_groups]
    return [one for group in groups for one in group["params"] if one.requires_grad]


def train_arm(name: str, seed: int, job: Values) -> Values:
    """Train together in one of the five ways; this rank's figures."""
    settings = agent_settings("ppo", {**ENGINE_PPO, **job["agent"]})
    own = derive(seed, "rank", dist.get_rank())
    env = QuadraticMarket(job["num_envs"], seed=own)
    agent = make_agent(settings, env.layout, seed=own)
    first = make_agent(settings, env.layout, seed=seed)
    BaseAgent.inherit(agent, first.collect_inheritable_state())
    meter = Meter()
    exchange = Exchange(torch.device("cpu"))
    learner = agent
    if name == "every_update":
        learner = FusedAfterEveryUpdate(agent)
    elif name == "gradients":
        GradientAllReduce(agent)
    dist.barrier()
    begun = time.perf_counter()
    cpu = time.process_time()
    with meter.count():
        for epoch in range(EPOCHS):
            train(learner, env, Budget(env_steps=job["env_steps"] // EPOCHS))
            if name == "fusions_8" or (name == "fusions_1" and epoch == EPOCHS - 1):
                fuse_states(agent, exchange)
    seconds = time.perf_counter() - begun
    cpu = time.process_time() - cpu
    if name == "gradients":  # one network by now, but each rank has its own statistics
        fuse_by_all_reduce(agent)
    utility, _ = evaluate(agent.policy, **JUDGE)
    return {
        "bytes_per_epoch": meter.bytes // EPOCHS,
        "communication_seconds_per_epoch": meter.seconds / EPOCHS,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "share": utility / evaluate(optimal_policy, **JUDGE)[0],
        "parameters": sum(one.numel() for one in list_parameters(agent)),
    }


def work(rank: int, job: Values) -> None:
    """One process: all arms and seeds in step with the others."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.FileStore(job["store"], job["ranks"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job["ranks"])
    rows = []
    for seed in range(job["seeds"]):
        for name in ARMS:
            rows.append({"arm": name, "seed": seed, **train_arm(name, seed, job)})
            if rank == 0:
                print(rows[-1])
    Path(f"{job['store']}-{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def compare(job: Values, *, quality: bool) -> Values:
    """All arms on fresh processes: means over seeds and ranks, and ratios of traffic."""
    with tempfile.TemporaryDirectory(prefix="communication-") as home:
        job = {**job, "store": str(Path(home) / "store")}
        mp.spawn(work, args=(job,), nprocs=job["ranks"])
        ranks = [
            json.loads(Path(f"{job['store']}-{rank}.json").read_text())
            for rank in range(job["ranks"])
        ]
    figures = {
        "parameters": ranks[0][0]["parameters"],
        "env_steps_per_rank": job["env_steps"],
        "updates_per_epoch": job["env_steps"] // EPOCHS // (16 * job["num_envs"]),
    }
    for name in ARMS:
        rows = [row for rank in ranks for row in rank if row["arm"] == name]
        found = {"bytes_per_epoch": rows[0]["bytes_per_epoch"]}
        for key in ("communication_seconds_per_epoch", "seconds", "cpu_seconds"):
            found[key] = statistics.fmean(row[key] for row in rows)
        if quality:
            shares = [row["share"] for row in ranks[0] if row["arm"] == name]
            found |= {"share_of_optimum": shares}
            found["share_of_optimum_mean"] = statistics.fmean(shares)
        figures[name] = found
    for other in ("gradients", "every_update"):
        times = figures[other]["bytes_per_epoch"] / figures["fusions_8"]["bytes_per_epoch"]
        figures[f"bytes_{other}_over_fusions_8"] = times
    return figures


def main() -> None:
    """The small problem with its quality, then a wider network for its traffic alone."""
    options = read_arguments(__doc__, ranks=2, seeds=3, env_steps=65_536)
    small = {
        "ranks": options.ranks,
        "seeds": options.seeds,
        "env_steps": options.env_steps,
        "num_envs": 32,
        "agent": {},
    }
    hidden = {"network": {"hidden": [256, 256]}}
    wide = {**small, "seeds": 1, "env_steps": 16 * 32 * EPOCHS * 2, "agent": hidden}
    record = {
        "ranks": options.ranks,
        "epochs": EPOCHS,
        "small": compare(small, quality=True),
        "wide": compare(wide, quality=False),  # two updates an epoch say nothing about quality
    }
    finish("communication", record, options)


if __name__ == "__main__":
    main()
