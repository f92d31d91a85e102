"""Learner and pipeline parallelism of one agent (ElegantRL-Podracer, section 4).

`agent.learners`, for on-policy agents: K learners on one device, in one batch. Each learns from the
experience of its own share of the accounts, and after every update networks and optimiser moments
are averaged. The K copies of each weight are one tensor, and every gradient step is taken for all
of them at once (`torch.func`, batched matmuls), so K learners cost hardly more on one device than
one learner on K times the data. Between updates all learners have equal weights, so one network
acts for all accounts, and the statistics of observations and rewards are those of all accounts
together.

`agent.pipeline`, for agents with a replay buffer: the accounts trade on while the agent learns.
Updates that fall due after a step run in a thread; the training loop goes on with a copy of the
actor, which takes over the learner's weights when the next updates fall due. Accounts therefore act
with networks that are at most one round of updates old. PyTorch's operations release the
interpreter's lock, so both sides run at once; on a GPU the learner's kernels run in a CUDA stream
of their own.
Neither side depends on the speed of the other: batches are drawn before the next step is stored,
and weights are handed over at fixed steps. A pipelined training is therefore reproducible and
resumes bit-exactly.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fintrader.agents.base import Loss, Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.checkpoint import load_generator
from fintrader.agents.fast.graphs import Scalars
from fintrader.agents.normalisation import Batch
from fintrader.agents.off_policy import OffPolicyAgent
from fintrader.agents.on_policy import OnPolicyAgent, Rollout, standardise
from fintrader.agents.optimisers import make_adam
from fintrader.envs.observation import StateDict, Tensors
from fintrader.errors import CheckpointError
from fintrader.seeding import create_generator

INHERITED_PREFIXES = ("modules.", "optimisers.")
"""Prefixes of the tensors that an agent's `inherit` takes and `average` averages; random streams
and counters are not among them."""


class LossModule(nn.Module):
    """The agent's loss as a module, so that its weights can be given from outside."""

    def __init__(self, agent: OnPolicyAgent) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {"actor": agent.actor, "critic": agent.critic, "noise": agent.noise}
        )
        self._agent = agent

    def forward(self, rollout: Rollout) -> Loss:
        return self._agent.loss(rollout)


class BatchedLearners:
    """K copies of an agent's weights and moments, for as long as one update takes."""

    def __init__(self, agent: OnPolicyAgent) -> None:
        self.agent = agent
        self.count = agent.settings.learners
        self.loss = LossModule(agent)

    def learn(self, rollout: Rollout) -> Scalars:
        """Take all learners' gradient steps on their accounts' rows of one rollout, then average.

        Rows are ordered by time, then account; learner k has the k-th block of accounts. Metrics
        are means over the learners.
        """

        def split_rows(rows: Tensor) -> Tensor:
            """Cut `[R, ...]` into `[K, R / K, ...]`."""
            shares = rows.reshape(self.agent.settings.num_steps, self.count, -1, *rows.shape[1:])
            return shares.transpose(0, 1).flatten(1, 2)

        batch, *columns = rollout
        row_index = batch.row_index
        if row_index is None:
            row_index = torch.arange(len(batch.rows), device=batch.rows.device)
        occurring = [torch.unique(share, return_inverse=True) for share in split_rows(row_index)]
        # Pad every learner's bars to the same number; no row looks up the padding.
        most = max(len(bars) for bars, _ in occurring)
        padded = [nn.functional.pad(bars, (0, most - len(bars))) for bars, _ in occurring]
        rows = torch.stack([batch.rows[bars] for bars in padded])
        places = torch.stack([place for _, place in occurring])
        shares = Batch(split_rows(batch.private), rows, places)
        metrics = self._descend(Rollout(shares, *map(split_rows, columns)))
        self._average_copies()
        return metrics

    def _evaluate_loss(self, weights: StateDict, rollout: Rollout) -> Loss:
        rollout = rollout._replace(advantage=standardise(rollout.advantage))
        result: Loss = functional_call(self.loss, weights, (rollout,))
        return result

    def _descend(self, shares: Rollout) -> Scalars:
        """Take gradient steps on `[K, R / K, ...]` rows; leave the K results in `self.weights`."""
        agent = self.agent
        row_index = shares.batch.row_index
        assert row_index is not None
        own = agent.optimisers["adam"]
        single = {
            name: weight for name, weight in self.loss.named_parameters() if weight.requires_grad
        }
        self.weights = {
            name: nn.Parameter(self._repeat(weight.detach())) for name, weight in single.items()
        }
        group = own.param_groups[0]
        self.adam = make_adam(
            self.weights.values(), group["lr"], group["weight_decay"], group["eps"]
        )
        for name, weight in single.items():
            moments = own.state.get(weight)
            if moments:
                self.adam.state[self.weights[name]] = {
                    key: self._repeat(value) if value.ndim else value.clone()
                    for key, value in moments.items()
                }
        drawn = [
            list(agent.draw_passes(share.numel(), share, int(share.max()) + 1))
            for share in row_index
        ]
        together = (
            [torch.stack(rows) for rows in zip(*passes, strict=True)]
            for passes in zip(*drawn, strict=True)
        )
        return agent.take_steps(together, lambda rows: self._take_step(shares, rows))

    def _repeat(self, value: Tensor) -> Tensor:
        return value.expand(self.count, *value.shape).clone()

    def _take_step(self, shares: Rollout, rows: Tensor) -> Scalars:
        """Take one gradient step of every learner; `rows [K, S]`: their minibatches."""
        learner = torch.arange(self.count, device=rows.device).unsqueeze(1)
        (private, market, row_index), *columns = shares
        assert row_index is not None
        batch = Batch(private[learner, rows], market, row_index[learner, rows])
        minibatch = Rollout(batch, *(column[learner, rows] for column in columns))
        weights = {name: parameter.detach() for name, parameter in self.weights.items()}
        differentiate = vmap(grad_and_value(self._evaluate_loss, has_aux=True), in_dims=(0, 0))
        grads, (_, step) = differentiate(weights, minibatch)
        squares = [grad.flatten(1).pow(2).sum(1) for grad in grads.values()]
        norm = torch.stack(squares).sum(0).sqrt()
        # As nn.utils.clip_grad_norm_, each learner by its own norm.
        factor = (self.agent.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for name, parameter in self.weights.items():
            parameter.grad = grads[name] * factor.view(-1, *[1] * (parameter.ndim - 1))
        self.adam.step()
        return {name: value.detach().mean() for name, value in {**step, "grad_norm": norm}.items()}

    @torch.no_grad()
    def _average_copies(self) -> None:
        """Give the agent the mean of the K copies."""
        own = self.agent.optimisers["adam"]
        for name, weight in self.loss.named_parameters():
            if name in self.weights:
                copies = self.weights[name]
                weight.copy_(copies.double().mean(0))
                own.state[weight] = {
                    key: value if value.ndim == 0 else value.double().mean(0).to(value.dtype)
                    for key, value in self.adam.state[copies].items()
                }


def average(states: Sequence[Tensors]) -> StateDict:
    """Average every inherited floating-point tensor that all states have, on the first state's
    device; take all others from the first state.

    Sums run in float64 in the order of the states, so equal states give equal bytes wherever they
    come from. Merged variances of normalisers include the spread of the learners' means.
    """
    fused = {}
    for name, first in states[0].items():
        is_inherited = name.startswith(INHERITED_PREFIXES)
        if is_inherited and any(name not in state for state in states):
            continue  # moments of an optimiser that not every learner has used yet
        if not (is_inherited and first.is_floating_point()):
            fused[name] = first.contiguous()
            continue
        rows = _stack(states, name, first.device)
        centre = name.removesuffix("var") + "mean"
        if name.endswith(".var") and centre in states[0]:
            means = _stack(states, centre, first.device)
            rows = rows + (means - means.mean(dim=0)) ** 2
        fused[name] = rows.mean(dim=0).to(first.dtype).contiguous()
    return fused


def _stack(states: Sequence[Tensors], name: str, device: torch.device) -> Tensor:
    return torch.stack([state[name].to(device, torch.float64) for state in states])


class PipelinedAgent:
    """An agent whose `update` hands work to a thread and returns. The thread stops when the agent
    is deleted."""

    differentiable = False

    def __init__(self, agent: OffPolicyAgent) -> None:
        self.agent = agent
        self.settings = agent.settings
        self.layout = agent.layout
        self.device = agent.device
        self.seed = agent.seed
        self.head = agent.head
        self.policy = agent.policy
        self._front = copy.copy(agent)
        """The side that acts, a shallow copy of the agent with its own actor and random stream;
        later changes of attributes must be copied to it."""
        self._front.actor = copy.deepcopy(agent.actor)
        # Two threads must not draw from one stream.
        self._front.generator = create_generator(agent.seed, "pipeline", device=agent.device)
        self._scheduled = agent.learned
        """Updates made or handed to the thread."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        self._updates: Future[None] | None = None
        self._drawn = threading.Event()
        """Set while the thread needs nothing more from the replay buffer."""
        self._drawn.set()
        on_gpu = agent.device.type == "cuda"
        self._home = torch.cuda.current_stream(agent.device) if on_gpu else None
        """CUDA stream of the training loop."""
        self._stream = None
        if on_gpu:
            self._stream = torch.cuda.Stream(agent.device)  # type: ignore[no-untyped-call]

    def prepare_env(self, env: Any) -> Any:
        """Prepare `env` as the agent itself does."""
        env = self.agent.prepare_env(env)
        self._front.table = self.agent.table
        return env

    def anneal(self, fraction: float) -> None:
        """Anneal as the agent itself does."""
        self._take_over()
        self.agent.anneal(fraction)

    def act(self, obs: Tensor) -> Tensor:
        """Choose exploring actions `[B, N]` with the networks last taken over."""
        self._front.replay = self.agent.replay
        return self._front.act(obs)

    def observe(self, transition: Transition) -> None:
        """Wait until the thread has drawn its batches, then store one step."""
        self._drawn.wait()
        self.agent.latent = self._front.latent
        self.agent.observe(transition)

    def update(self) -> Metrics | None:
        """Hand over due updates; if a report is due, wait for them and return the agent's metrics.

        Raises the thread's error, if it had one.
        """
        due = self.agent.count_due_updates()
        if due > self._scheduled:
            self._take_over()
            self._drawn.clear()
            self._updates = self._thread.submit(self._learn, due - self._scheduled)
            self._scheduled = due
        return self.pause() if self.agent.is_report_due else None

    def pause(self) -> Metrics:
        """Wait for running updates, act with their weights from now on, and return the agent's
        metrics."""
        self._take_over()
        return self.agent.pause()

    def _take_over(self) -> None:
        """Wait for running updates, and act with their weights from now on. Raises the thread's
        error, if it had one."""
        if self._updates is not None:
            updates = self._updates
            self._updates = None
            updates.result()
            self.agent.redraw_perturbation()  # here, where neither thread reads it
            self._refresh()

    @torch.no_grad()
    def _refresh(self) -> None:
        """Copy the learner's weights to the actor that acts."""
        weights = zip(self._front.actor.parameters(), self.agent.actor.parameters(), strict=True)
        for acting, learned in weights:
            acting.copy_(learned)

    def _learn(self, count: int) -> None:
        agent = self.agent
        assert agent.replay is not None
        try:
            for remaining in range(count, 0, -1):
                # Draws wait in the stream for the kernels that write the rows.
                with _use_stream(self._home):
                    sample = agent.draw_sample(agent.replay)
                if remaining == 1:
                    self._drawn.set()
                if self._stream is not None and self._home is not None:
                    # The sample must be there, and the actor copied, before this update writes.
                    self._stream.wait_stream(self._home)
                with _use_stream(self._stream):
                    agent.record(agent.learn(sample))
                if self._stream is not None:
                    # Afterwards the weights may be read, and the sample's memory reused.
                    self._stream.synchronize()
        finally:
            self._drawn.set()

    def state_dict(self) -> StateDict:
        """Collect the agent's state, with the random stream of the side that acts."""
        self._take_over()
        self.agent.last_noise = self._front.last_noise
        return {**self.agent.state_dict(), "pipeline.generator": self._front.generator.get_state()}

    def load_state_dict(self, state: Tensors) -> None:
        """Continue from a `state_dict()`. Raises CheckpointError."""
        self._take_over()
        if "pipeline.generator" not in state:
            raise CheckpointError(
                "the stored agent learned without a pipeline; resume it with agent.pipeline: false"
            )
        self.agent.load_state_dict(state)
        load_generator(self._front.generator, state["pipeline.generator"])
        self._front.last_noise = self.agent.last_noise
        self._front.has_parent = self.agent.has_parent
        self._scheduled = self.agent.learned
        self._refresh()

    def inherit(self, state: Tensors) -> None:
        """Take networks, optimiser moments and normalisers of a parent, pipelined or not. Raises
        CheckpointError."""
        self._take_over()
        self.agent.inherit(state)
        self._front.has_parent = True
        self._refresh()


def _use_stream(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Launch the kernels of a block in `stream`, where there is one."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
