"""What learners of one pod have to tell each other: rare fusion of their states against gradients
at every minibatch.

    python benchmarks/communication.py [--ranks 2] [--seeds 3] [--device cpu] [--save]

R processes, joined by `torch.distributed` (gloo on loopback, NCCL with --device cuda), train one
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

An *epoch* is what lies between two of eight fusions. Bytes are counted where they are handed to a
collective, on each rank. The small problem is the market of Gârleanu and Pedersen, whose optimum is
known (`known_optimum.py`); quality is the share of the optimal utility that the agent reaches at
the end. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pydantic import TypeAdapter
from safetensors.torch import load, save

from benchmarks.common import finish
from benchmarks.known_optimum import ENGINE_PPO, QuadraticMarket, evaluate, optimal_policy
from fintrader.agents import AgentSettings, Budget, make_agent, train
from fintrader.agents.base import BaseAgent
from fintrader.agents.parallel import average
from fintrader.seeding import derive
from fintrader.tournament.fusion.worker import Exchange, inherited

ARMS = ("gradients", "every_update", "fusions_8", "fusions_1", "alone")
EPOCHS = 8


class Meter:
    """Counts what is handed to collectives on this rank, and the seconds until they return (waiting
    included)."""

    def __init__(self) -> None:
        self.bytes = self.calls = 0
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count everything that happens meanwhile."""
        plain = {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "broadcast")}
        dist.all_reduce = self._counted(plain["all_reduce"], 0)
        dist.all_gather = self._counted(plain["all_gather"], 1)
        dist.broadcast = self._counted(plain["broadcast"], 0)
        try:
            yield
        finally:
            for name, call in plain.items():
                setattr(dist, name, call)

    def _counted(self, call: Callable[..., Any], place: int) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            tensor = arguments[place]
            begun = time.perf_counter()
            result = call(*arguments, **named)
            if tensor.is_cuda:
                torch.cuda.synchronize()
            self.seconds += time.perf_counter() - begun
            self.bytes += tensor.numel() * tensor.element_size()
            self.calls += 1
            return result

        return counted


class GradientAllReduce:
    """When the last parameter's gradient is there, average all of them over the ranks, in one
    bucket."""

    def __init__(self, agent: BaseAgent) -> None:
        self.parameters = [
            one for optimiser in agent.optimisers.values() for one in _parameters(optimiser)
        ]
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
    fused: dict[str, torch.Tensor] = {}
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
        metrics: dict[str, float] | None = self.agent.update()
        if metrics is not None:
            fuse_by_all_reduce(self.agent)
        return metrics


def fuse_states(agent: BaseAgent, exchange: Exchange) -> None:
    """As the ranks of a pod do: exchange the states, average them in the order of the ranks."""
    states = [
        load(data) for data in exchange.gather(save(inherited(agent.collect_inheritable_state())))
    ]
    BaseAgent.inherit(agent, average(states))


def arm(name: str, seed: int, job: dict[str, Any]) -> dict[str, Any]:
    """Train together in one of the five ways; this rank's figures."""
    rank = dist.get_rank()
    device = torch.device(job["device"])
    values = {"algo": "ppo", **ENGINE_PPO, **job["agent"]}
    settings = TypeAdapter(AgentSettings).validate_python(values)
    env = QuadraticMarket(job["num_envs"], seed=derive(seed, "rank", rank))
    agent: Any = make_agent(settings, env.layout, seed=derive(seed, "rank", rank))
    first: Any = make_agent(settings, env.layout, seed=seed)
    BaseAgent.inherit(agent, first.collect_inheritable_state())
    meter = Meter()
    exchange = Exchange(device)
    learner: Any = agent
    if name == "every_update":
        learner = FusedAfterEveryUpdate(agent)
    elif name == "gradients":
        GradientAllReduce(agent)
    dist.barrier()
    begun = time.perf_counter()
    cpu = time.process_time()
    with meter.running():
        for epoch in range(EPOCHS):
            train(learner, env, Budget(env_steps=job["env_steps"] // EPOCHS))
            if name == "fusions_8" or (name == "fusions_1" and epoch == EPOCHS - 1):
                fuse_states(agent, exchange)
    seconds = time.perf_counter() - begun
    cpu = time.process_time() - cpu
    if (
        name == "gradients"
    ):  # the networks are one, the statistics of observations were each rank's own
        fuse_by_all_reduce(agent)
    utility, _ = evaluate(agent.policy, steps=300, num_envs=32)
    return {
        "bytes_per_epoch": meter.bytes // EPOCHS,
        "calls_per_epoch": meter.calls / EPOCHS,
        "communication_seconds_per_epoch": meter.seconds / EPOCHS,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "share": utility / evaluate(optimal_policy, steps=300, num_envs=32)[0],
        "parameters": sum(
            one.numel() for group in agent.optimisers.values() for one in _parameters(group)
        ),
    }


def _parameters(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimiser.param_groups for one in group["params"] if one.requires_grad]


def work(rank: int, job: dict[str, Any]) -> None:
    """One process: all arms and seeds in step with the others."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    backend = "gloo"
    if job["device"] == "cuda":
        torch.cuda.set_device(rank)
        backend = "nccl"
        job = {**job, "device": f"cuda:{rank}"}
    store = dist.FileStore(job["store"], job["ranks"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=job["ranks"])
    rows = []
    for seed in range(job["seeds"]):
        for name in ARMS:
            rows.append({"arm": name, "seed": seed, **arm(name, seed, job)})
            if rank == 0:
                print(
                    {
                        key: round(v, 4) if isinstance(v, float) else v
                        for key, v in rows[-1].items()
                    },
                    flush=True,
                )
    Path(f"{job['store']}-{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """All arms on fresh processes: means over seeds (and ranks), and how much less is said."""
    with tempfile.TemporaryDirectory(prefix="communication-") as home:
        job = {**job, "store": str(Path(home) / "store")}
        mp.spawn(work, args=(job,), nprocs=job["ranks"])
        ranks = [
            json.loads(Path(f"{job['store']}-{rank}.json").read_text())
            for rank in range(job["ranks"])
        ]
    rows = [row for rank in ranks for row in rank]
    figures: dict[str, Any] = {
        "parameters": rows[0]["parameters"],
        "env_steps_per_rank": job["env_steps"],
    }
    for name in ARMS:
        mine = [row for row in rows if row["arm"] == name]
        shares = [row["share"] for row in ranks[0] if row["arm"] == name]
        figures[name] = {
            "bytes_per_epoch": mine[0]["bytes_per_epoch"],
            "calls_per_epoch": mine[0]["calls_per_epoch"],
            "communication_seconds_per_epoch": round(
                statistics.fmean(row["communication_seconds_per_epoch"] for row in mine), 5
            ),
            "seconds": round(statistics.fmean(row["seconds"] for row in mine), 2),
            "cpu_seconds": round(statistics.fmean(row["cpu_seconds"] for row in mine), 2),
            "share_of_optimum": [round(share, 4) for share in shares],
            "share_of_optimum_mean": round(statistics.fmean(shares), 4),
        }
    figures["updates_per_epoch"] = job["env_steps"] // EPOCHS // (16 * job["num_envs"])
    low = figures["fusions_8"]
    for other in ("gradients", "every_update"):
        figures[f"bytes_{other}_over_fusions_8"] = round(
            figures[other]["bytes_per_epoch"] / low["bytes_per_epoch"], 1
        )
    return figures


def main() -> None:
    """The small problem with its quality, then a wider network for its traffic alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=65_536, help="of each rank")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    job = {
        "ranks": options.ranks,
        "seeds": options.seeds,
        "env_steps": options.env_steps,
        "num_envs": 32,
        "device": options.device,
        "agent": {},
    }
    wide = {
        **job,
        "seeds": 1,
        "env_steps": 16 * 32 * EPOCHS * 2,
        "agent": {"network": {"hidden": [256, 256]}},
    }
    record = {
        "ranks": options.ranks,
        "device": options.device,
        "epochs": EPOCHS,
        "small": compare(job),
    }
    record["wide"] = compare(wide)
    for name in ARMS:  # two updates an epoch say nothing about quality
        for key in ("share_of_optimum", "share_of_optimum_mean"):
            record["wide"][name].pop(key)
    finish(
        "communication" if options.device == "cpu" else "communication_cuda",
        record,
        seed=0,
        save=options.save,
    )


if __name__ == "__main__":
    main()
