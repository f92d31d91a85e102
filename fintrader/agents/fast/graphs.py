"""Training on a GPU: CUDA graphs, which repeat all launches of a gradient step with one call, and
actions looked up among the latents of all bars.

Networks of this size keep a GPU busy for less time than Python takes to launch their operations one
by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fintrader.agents.normalisation import Batch
from fintrader.envs.fast.capture import capture

Scalars: TypeAlias = dict[str, Tensor]
"""Scalar results of a gradient step by name, on the device."""
StepFunction: TypeAlias = Callable[..., Scalars]

BARS_AT_ONCE = 4096
"""Bars whose latents are computed together: a bound on memory."""

logger = logging.getLogger(__name__)


class Recording(NamedTuple):
    """A graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    names: list[str]
    results: Tensor
    """The scalar results, in one tensor."""


class ReplayedStep:
    """A gradient step of one agent on a GPU, replayed from CUDA graphs.

    For each form of its inputs the first call runs eagerly, the second records a graph, and all
    others replay it. The step must not wait for the device, and must write in place: call `forget`
    after replacing an optimiser's state.
    """

    def __init__(self, generator: torch.Generator) -> None:
        """`generator`: source of the random numbers that the step draws."""
        self.generator = generator
        self.can_record = True
        self._open_stream()
        self.forget()

    def _open_stream(self) -> None:
        device = self.generator.device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]

    def forget(self) -> None:
        """Drop all graphs."""
        self.pool = torch.cuda.graph_pool_handle()
        self.recordings: dict[Hashable, Recording | None] = {}
        self.copied: dict[int, Tensor] = {}
        """By id of a graph's input: the tensor that was last copied to it."""

    def __call__(self, step: StepFunction, branch: Hashable, *inputs: Any) -> Scalars:
        """Take `step(*inputs)`; return its scalar results. `branch` names the path that the
        step takes, if its inputs have the same form on several paths."""
        tensors = list(flatten(inputs))
        form = (branch, *((tensor.shape, tensor.dtype) for tensor in tensors))
        if form not in self.recordings or not self.can_record:
            self.recordings[form] = None
            return self._run(step, inputs)
        recording = self.recordings[form]
        if recording is None:
            recording = self._try_to_record(step, inputs)
            if recording is None:
                return self._run(step, inputs)
            self.recordings[form] = recording
        for place, tensor in zip(recording.inputs, tensors, strict=True):
            # A rollout is copied once, for all its minibatches.
            if place.data_ptr() != tensor.data_ptr() and self.copied.get(id(place)) is not tensor:
                place.copy_(tensor)
                self.copied[id(place)] = tensor
        recording.graph.replay()
        # The next replay overwrites the results.
        results = recording.results.clone()
        return dict(zip(recording.names, results.unbind(), strict=True))

    def _run(self, step: StepFunction, inputs: tuple[Any, ...]) -> Scalars:
        # Runs in the stream of the graphs, because gradients accumulate in the stream of their
        # first use.
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            outputs = step(*inputs)
        here.wait_stream(self.stream)
        return outputs

    def _try_to_record(self, step: StepFunction, inputs: tuple[Any, ...]) -> Recording | None:
        """Record a graph; return None if that fails, and run later steps eagerly."""
        before = self.generator.clone_state()
        here = torch.cuda.current_stream(self.stream.device)
        try:
            return self._record(step, inputs)
        except RuntimeError as error:
            logger.warning("training continues without CUDA graphs, more slowly: %s", error)
        # A failed capture leaves its stream current, and the generator in recording state.
        torch.cuda.set_stream(here)
        self.generator.graphsafe_set_state(before)
        self._open_stream()
        self.forget()
        self.can_record = False
        return None

    def _record(self, step: StepFunction, inputs: tuple[Any, ...]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with capture(graph, self.stream, self.pool):
            outputs = step(*inputs)
            results = torch.stack([value.detach().float() for value in outputs.values()])
        return Recording(graph, list(flatten(inputs)), list(outputs), results)


def take_step(agent: Any, step: StepFunction, *inputs: Any, branch: Hashable = None) -> Scalars:
    """Take a gradient step of an agent, `step(*inputs)`; on a GPU, replay its graph."""
    if agent.replayed is None:
        return step(*inputs)
    results: Scalars = agent.replayed(step, branch, *inputs)
    return results


def flatten(value: Any) -> Iterator[Tensor]:
    """Find the tensors in nested tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from flatten(part)


def look_up_mean(agent: Any, obs: Tensor) -> Tensor | None:
    """Look up the mean latents `[B, L]` for `obs [B, D]` among those of all bars, computed once
    per rollout; None where that would not be faster.

    It is faster on a GPU if accounts at a bar share their latents and there are no more bars than
    rows in a rollout: to find only the bars that occur, Python would wait for the device.
    """
    table = agent.table
    if (
        table is None
        or agent.device.type == "cpu"
        or obs.shape[-1] == agent.layout.width
        or not agent.actor.shares_bars
        or len(table) > agent.settings.num_steps * len(obs)
    ):
        return None
    cache = agent.embedding_cache
    is_stale = cache is None or len(cache) != len(table)
    if is_stale or agent.buffer is None or agent.buffer.step == 0:
        means = []
        for bars in torch.split(torch.arange(len(table), device=agent.device), BARS_AT_ONCE):
            rows = agent.normaliser.normalise_bars(bars, table, obs.dtype, agent.perturbation)
            means.append(agent.mean_by_bar(Batch(rows[:, :0], rows, None))[0])
        agent.embedding_cache = torch.cat(means)
    mean: Tensor = agent.embedding_cache.index_select(0, obs[:, -1].long())
    return mean
