"""Gradient steps on a GPU by CUDA graphs: one call repeats all launches of a step.

Networks of this size keep a GPU busy for less time than Python takes to launch their operations one
by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

StepFunction: TypeAlias = Callable[..., dict[str, Tensor]]

logger = logging.getLogger(__name__)


class Recording(NamedTuple):
    """A graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    names: list[str]
    results: Tensor
    """The scalar results, in one tensor."""


class ReplayedStep:
    """A function of tensors that takes one gradient step, on a GPU.

    For each form of its inputs the first call runs as it is, the second records a graph, and all
    others replay it. The function must not wait for the device, and all that it changes must stay
    at its place in memory: `forget` follows every replacement of an optimiser's state.
    """

    def __init__(
        self,
        function: StepFunction,
        generator: torch.Generator,
        find_branch: Callable[[], Hashable],
    ) -> None:
        """`generator`: the stream that the function draws from. `find_branch` tells apart the
        ways that the function takes for inputs of one form."""
        self.function = function
        self.find_branch = find_branch
        self.generator = generator
        self.stream = torch.cuda.Stream(generator.device)  # type: ignore[no-untyped-call, unused-ignore]
        self.can_record = True
        self.forget()

    def forget(self) -> None:
        """Drop all graphs."""
        self.pool = torch.cuda.graph_pool_handle()
        self.recordings: dict[Hashable, Recording | None] = {}
        self.copied: dict[int, Tensor] = {}
        """The tensor that each place of an input was last copied from."""

    def __call__(self, *inputs: Any) -> dict[str, Tensor]:
        """Take a step; return its scalar results."""
        given = list(flatten(inputs))
        form = (self.find_branch(), *((tensor.shape, tensor.dtype) for tensor in given))
        if form not in self.recordings or not self.can_record:
            self.recordings[form] = None
            return self._run(inputs)
        recording = self.recordings[form]
        if recording is None:
            try:
                recording = self._record(inputs)
            except RuntimeError as error:
                logger.warning("training goes on without CUDA graphs, more slowly: %s", error)
                self.can_record = False
                return self._run(inputs)
            self.recordings[form] = recording
        for place, tensor in zip(recording.inputs, given, strict=True):
            # A rollout is copied once, for all its minibatches.
            if place.data_ptr() != tensor.data_ptr() and self.copied.get(id(place)) is not tensor:
                place.copy_(tensor)
                self.copied[id(place)] = tensor
        recording.graph.replay()
        # The next step overwrites them.
        results = recording.results.clone()
        return dict(zip(recording.names, results.unbind(), strict=True))

    def _run(self, inputs: tuple[Any, ...]) -> dict[str, Tensor]:
        # In the stream of the graphs, because a gradient is added up in the stream that it was first
        # added up in.
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            outputs = self.function(*inputs)
        here.wait_stream(self.stream)
        return outputs

    def _record(self, inputs: tuple[Any, ...]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        # Another thread may use the GPU meanwhile, so only this one is held to the rules.
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            outputs = self.function(*inputs)
            results = torch.stack([value.detach().float() for value in outputs.values()])
        return Recording(graph, list(flatten(inputs)), list(outputs), results)


def flatten(value: Any) -> Iterator[Tensor]:
    """Find the tensors in nested tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from flatten(part)
