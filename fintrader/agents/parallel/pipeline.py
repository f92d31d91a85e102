"""Pipeline parallelism: the accounts trade on while the agent learns (`agent.pipeline`; ElegantRL-Podracer, section 4).

For agents with a replay buffer. Updates that fall due after a step run in a thread; the training loop goes on with a
copy of the actor, which takes over the learner's weights when the next updates fall due. Accounts therefore act with
networks that are one round of updates old. PyTorch's operations release the interpreter's lock, so both sides run at
once; on a GPU the learner's kernels run in a CUDA stream of their own.

What either side sees does not depend on how fast the other is: batches are drawn before the next step is stored, and
weights are handed over at fixed steps. A pipelined training is therefore reproducible and resumes bit-exactly.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from fintrader.agents.base import Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.checkpoint import load_generator
from fintrader.agents.off_policy import OffPolicyAgent
from fintrader.errors import CheckpointError
from fintrader.seeding import generator


class PipelinedAgent:
    """An agent whose `update` hands work to a thread and returns. The thread ends with the agent."""

    differentiable = False

    def __init__(self, agent: OffPolicyAgent) -> None:
        self.agent = agent
        self.settings, self.layout, self.device, self.seed = agent.settings, agent.layout, agent.device, agent.seed
        self.head, self.policy = agent.head, agent.policy
        self._front = copy.copy(agent)
        """Acts: it shares all but the actor and the random stream with the agent."""
        self._front.actor = copy.deepcopy(agent.actor)
        # Two threads must not draw from one stream.
        self._front.generator = generator(agent.seed, "pipeline", device=agent.device)
        self._scheduled = agent.learned
        """Updates made or handed to the thread."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        self._updates: Future[None] | None = None
        self._drawn = threading.Event()
        """Set while the thread needs nothing more of the replay buffer."""
        self._drawn.set()
        on_gpu = agent.device.type == "cuda"
        self._home = torch.cuda.current_stream(agent.device) if on_gpu else None
        """The training loop's stream: the current one."""
        self._stream = torch.cuda.Stream(agent.device) if on_gpu else None  # type: ignore[no-untyped-call]

    def training_env(self, env: Any) -> Any:
        """As the agent's own."""
        return self.agent.training_env(env)

    def anneal(self, fraction: float) -> None:
        """As the agent's own."""
        self._take_over()
        self.agent.anneal(fraction)

    def act(self, obs: Tensor) -> Tensor:
        """Exploring actions `[B, N]` of the networks last taken over."""
        self._front.replay = self.agent.replay
        return self._front.act(obs)

    def observe(self, transition: Transition) -> None:
        """Store one step, after the batches that must not see it were drawn."""
        self._drawn.wait()
        self.agent.latent = self._front.latent
        self.agent.observe(transition)

    def update(self) -> Metrics | None:
        """Hand over updates that fall due; metrics as the agent's own, once no update runs.

        Raises what went wrong in the thread.
        """
        due = self.agent.updates_due()
        if due > self._scheduled:
            self._take_over()
            self._drawn.clear()
            self._updates = self._thread.submit(self._learn, due - self._scheduled)
            self._scheduled = due
        if not self.agent.report_due:
            return None
        self._take_over()
        return self.agent.report()

    def _take_over(self) -> None:
        """Wait until no update runs, and act with its weights from now on. Raises what went wrong in the thread."""
        if self._updates is not None:
            updates, self._updates = self._updates, None
            updates.result()
            self._refresh()

    def _refresh(self) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self._front.actor.parameters(), self.agent.actor.parameters(), strict=True):
                mine.copy_(theirs)

    def _learn(self, count: int) -> None:
        agent = self.agent
        assert agent.replay is not None
        try:
            for remaining in range(count, 0, -1):
                with _on(self._home):  # drawing queues up behind the kernels that write what is drawn
                    sample = agent.draw(agent.replay)
                if remaining == 1:
                    self._drawn.set()
                if self._stream is not None and self._home is not None:
                    # The sample must be there, and the actor copied, before this update writes.
                    self._stream.wait_stream(self._home)
                with _on(self._stream):
                    agent.count(agent.learn(sample))
                if self._stream is not None:
                    self._stream.synchronize()  # whoever reads the weights comes after, and the sample is free again
        finally:
            self._drawn.set()

    def state_dict(self) -> dict[str, Tensor]:
        """The agent's state, with the random stream of the side that acts."""
        self._take_over()
        self.agent.noise_state = self._front.noise_state
        return {**self.agent.state_dict(), "pipeline.generator": self._front.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict()`. Raises CheckpointError."""
        self._take_over()
        self.agent.load_state_dict(state)
        if "pipeline.generator" not in state:
            raise CheckpointError("the stored agent learned without a pipeline; resume it with agent.pipeline: false")
        load_generator(self._front.generator, state["pipeline.generator"], "agent state")
        self._front.noise_state, self._front.has_parent = self.agent.noise_state, self.agent.has_parent
        self._scheduled = self.agent.learned
        self._refresh()

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Networks, optimiser moments and normalisers of a parent, pipelined or not. Raises CheckpointError."""
        self._take_over()
        self.agent.inherit(state)
        self._front.has_parent = True
        self._refresh()


def _on(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Kernels launched below go to `stream`, where there is one."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
