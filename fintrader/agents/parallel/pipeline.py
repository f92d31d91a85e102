"""Pipeline parallelism: the accounts go on trading while the agent learns (ElegantRL-Podracer, section 4).

For agents with a replay ring. A learner thread takes updates as they fall due; the worker (the training loop) acts
with a copy of the actor that is refreshed after each update. The worker may be at most `max_lag` updates ahead; the
mean and the largest lag are reported as `pipeline_lag_mean` and `pipeline_lag_max`. PyTorch's operations release the
interpreter's lock, so both sides run at once. Which update a step still sees depends on the machine: results are not
reproducible bit by bit. On a GPU the learner's kernels run in a CUDA stream of their own; streams wait for each other
where one hands over to the other.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fintrader.agents.agent import Agent
from fintrader.agents.base import Metrics, to_metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.off_policy import OffPolicyAgent
from fintrader.errors import ConfigError
from fintrader.seeding import generator


class PipelinedAgent:
    """An agent whose `update` hands work to a thread and returns. Use as a context manager, or call `close`."""

    def __init__(self, agent: Agent, *, max_lag: int = 8) -> None:
        """Raises ConfigError for an agent without a replay ring."""
        if not isinstance(agent, OffPolicyAgent):
            raise ConfigError(f"{type(agent).__name__} has no replay ring; pipeline ddpg, td3, sac or redq")
        if max_lag < 1:
            raise ConfigError(f"max_lag must be at least 1 update, got {max_lag}")
        self.agent, self.max_lag = agent, max_lag
        self._front = copy.copy(agent)
        self._front.actor = copy.deepcopy(agent.actor)
        # Two threads must not draw from one stream.
        self._front.generator = generator(agent.seed, "pipeline", device=agent.device)
        self._due = agent.learned
        self._changed = threading.Condition()
        self._busy = self._stopping = False
        self._error: BaseException | None = None
        self._lags: list[int] = []
        on_gpu = agent.device.type == "cuda"
        self._home = torch.cuda.current_stream(agent.device) if on_gpu else None
        """The worker's stream: the current one."""
        self._stream = torch.cuda.Stream(agent.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._work, name="learner", daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)

    def __enter__(self) -> PipelinedAgent:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- the worker's side -----------------------------------------------------------------------------

    def act(self, obs: Tensor) -> Tensor:
        """Act with the newest finished copy of the actor."""
        with self._changed:
            self._front.ring = self.agent.ring
            return self._front.act(obs)

    def observe(self, transition: Transition) -> None:
        """Store one step; short, and never while the learner draws a batch."""
        with self._changed:
            self.agent.latent = self._front.latent
            self.agent.observe(transition)

    def update(self) -> Metrics | None:
        """Let updates fall due, wait while too many are; metrics as the agent's own."""
        agent, settings = self.agent, self.agent.settings
        ring = agent.ring
        if ring is None:
            return None
        with self._changed:
            self._raise()
            if not agent.warming_up and ring.filled >= settings.n_steps:
                warm = -(-settings.learning_starts // ring.num_envs)
                self._due = int((ring.written - warm + 1) * settings.updates_per_step)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._due - agent.learned <= self.max_lag or self._error is not None)
                self._raise()
                self._lags.append(self._due - agent.learned)
            if ring.written % settings.report_every:
                return None
            self._wait_idle()
            metrics = {name: torch.stack(values).mean() for name, values in agent.since_report.items()}
            agent.since_report = {}
            lags, self._lags = self._lags, []
        if not metrics:
            return {}
        lag = {"pipeline_lag_mean": sum(lags) / len(lags), "pipeline_lag_max": float(max(lags))} if lags else {}
        return {**to_metrics(metrics), **lag}

    def close(self) -> None:
        """End the learner thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def state_dict(self) -> dict[str, Tensor]:
        """The agent's state between two updates."""
        with self._changed:
            self._wait_idle()
            return self.agent.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict()`. Raises CheckpointError."""
        with self._changed:
            self._wait_idle()
            self.agent.load_state_dict(state)
            self._due = self.agent.learned
            self._refresh()

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Take over a parent. Raises CheckpointError."""
        with self._changed:
            self._wait_idle()
            self.agent.inherit(state)
            self._refresh()

    def _wait_idle(self) -> None:
        """Wait, with the lock held, until no update runs. Due ones may remain: they are the lag."""
        self._changed.wait_for(lambda: not self._busy)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # --- the learner's side ----------------------------------------------------------------------------

    def _work(self) -> None:
        # Sampling and handing over queue up behind the worker's own kernels, which write what they read.
        with _on(self._home):
            self._learn_what_falls_due()

    def _learn_what_falls_due(self) -> None:
        agent = self.agent
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or agent.learned < self._due)
                if self._stopping:
                    return
                self._busy = True
                assert agent.ring is not None
                sample = agent.draw(agent.ring)
            try:
                if self._stream is not None and self._home is not None:
                    # The sample must have been drawn, and the actor of the last update copied, before this one writes.
                    self._stream.wait_stream(self._home)
                with _on(self._stream):
                    step = agent.learn(sample)
                if self._stream is not None and self._home is not None:
                    self._home.wait_stream(self._stream)  # whoever reads the weights or the metrics comes after
                    self._stream.synchronize()  # an update counts once it is done: the lag is not one of launches
            except BaseException as error:  # handed to the worker, which raises it
                with self._changed:
                    self._error, self._busy, self._stopping = error, False, True
                    self._changed.notify_all()
                return
            with self._changed:
                agent.note(step)
                self._refresh()
                self._busy = False
                self._changed.notify_all()

    def _refresh(self) -> None:
        self._front.has_parent = self.agent.has_parent
        with torch.no_grad():
            pairs = zip(self._front.actor.parameters(), self.agent.actor.parameters(), strict=True)
            for mine, theirs in pairs:
                mine.copy_(theirs)


def _on(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Kernels launched below go to `stream`, where there is one."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
