"""Agents that learn from replayed steps (DDPG, TD3, SAC, REDQ): exploring, the replay buffer, and
the schedule of updates.

These agents know latents in [-1, 1] only: the actor's output goes through tanh, exploration is
clipped to the same range, and critics judge latents, not the actions that a head makes of them (a
fixed function of observation and latent).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fintrader.agents.base import BaseAgent, Metrics, Parts, to_metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.checkpoint import add_prefix, select_below
from fintrader.agents.fast.graphs import Scalars, take_step
from fintrader.agents.normalisation import Batch
from fintrader.agents.replay import ReplayBuffer, sum_n_steps
from fintrader.agents.settings import OffPolicySettings
from fintrader.envs.observation import StateDict, Tensors

REPORT_STEPS = 50
"""Steps of the environment between two lines of metrics: reading metrics waits for the device."""

CELLS_AT_ONCE = 1 << 15
"""Samples times assets whose gradients are computed together on a CPU: a bound on memory."""


class ReplaySample(NamedTuple):
    """A batch ready to be learned from: standardised observations, scaled n-step rewards."""

    obs: Batch
    latent: Tensor
    """`[R, L]`"""
    reward: Tensor
    """`[R]`: Σ γ^k r_k up to the first end."""
    discount: Tensor
    """`[R]`: factor of the value at `next_obs`; 0 after a termination."""
    next_obs: Batch


class OffPolicyAgent(BaseAgent):
    """`act` explores, `observe` stores, `update` learns from the replay buffer. Subclasses write
    `learn`."""

    settings: OffPolicySettings
    is_squashed = True
    members: int = 1

    def add_parts(self) -> None:
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.modules.update(
            {"critic_target": self.critic_target, "actor_target": self.actor_target}
        )
        rate = self.settings.learning_rate
        self.add_optimiser("actor", self.actor.parameters(), rate)
        self.add_optimiser("critic", self.critic.parameters(), rate)
        self.replay: ReplayBuffer | None = None
        self.latent: Tensor | None = None
        self.has_parent = False
        self.learned = 0
        """Updates so far."""
        self.since_report: dict[str, list[Tensor]] = {}

    @property
    def is_warming_up(self) -> bool:
        """True while latents are drawn at random."""
        replay = self.replay
        if replay is None or not replay.written:
            return True
        return replay.written * replay.num_envs < self.settings.learning_starts

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Choose exploring actions `[B, N]`."""
        if self.is_warming_up and not self.has_parent:
            shape = torch.Size((obs.shape[0], self.head.latents))
            # erf turns a normal draw into a uniform one
            self.latent = torch.erf(self.draw_exploration_noise(shape) / 2**0.5)
        else:
            self.latent = self.explore(self.normalise(obs, acting=True))
        return self.head.decode(obs, self.latent, self.table)

    def explore(self, batch: Batch) -> Tensor:
        """Choose exploring latents `[B, L]`: the actor's, plus Gaussian noise."""
        latent = torch.tanh(self.actor(batch)[0])
        noise = self.draw_exploration_noise(latent.shape)
        return (latent + self.settings.noise * noise).clamp(-1.0, 1.0)

    @torch.no_grad()
    def observe(self, transition: Transition) -> None:
        """Store one step and, while warming up, its statistics."""
        if self.replay is None:
            self.replay = self._make_replay(*transition.obs.shape)
        assert self.latent is not None
        if self.is_warming_up and "observations" in self.settings.normalise:
            self.normaliser.update(transition.obs, self.table)
        if "rewards" in self.settings.normalise:
            done = transition.terminated | transition.truncated
            self.rewards.update(transition.reward.unsqueeze(0), done.unsqueeze(0))
        self.replay.add(transition, self.latent)

    def update(self) -> Metrics | None:
        """Learn as often as `updates_per_step` asks; metrics every `REPORT_STEPS` steps, else
        None."""
        while self.learned < self.count_due_updates():
            assert self.replay is not None
            sample = self.draw_sample(self.replay)
            self.record(take_step(self, self.learn, sample, branch=self.is_actor_due))
            self.redraw_perturbation()
        return self.pause() if self.is_report_due else None

    def count_due_updates(self) -> int:
        """Count the updates due so far; none is due while warming up."""
        replay = self.replay
        settings = self.settings
        if replay is None or self.is_warming_up or replay.filled < settings.n_steps:
            return 0
        warm = max(-(-settings.learning_starts // replay.num_envs), 1)
        return int((replay.written - warm + 1) * settings.updates_per_step)

    def record(self, step: Scalars) -> None:
        """Count an update and keep its metrics for the next report."""
        self.learned += 1
        for name, value in step.items():
            self.since_report.setdefault(name, []).append(value)

    @property
    def is_report_due(self) -> bool:
        """True after every `REPORT_STEPS`-th step, when metrics are due."""
        return self.replay is not None and self.replay.written % REPORT_STEPS == 0

    def pause(self) -> Metrics:
        """Average the metrics since the last report, also before one is due."""
        metrics = {name: torch.stack(values).mean() for name, values in self.since_report.items()}
        self.since_report = {}
        return to_metrics(metrics) if metrics else {}

    @torch.no_grad()
    def draw_sample(self, replay: ReplayBuffer) -> ReplaySample:
        """Draw a batch from the replay buffer."""
        settings = self.settings
        batch = replay.sample(settings.batch_size, settings.n_steps, self.generator)
        rewards = self.rewards(batch.reward) if "rewards" in settings.normalise else batch.reward
        reward, discount, last = sum_n_steps(
            rewards, batch.terminated, batch.truncated, settings.gamma
        )
        rows = torch.arange(settings.batch_size, device=self.device)
        obs = self.normalise(batch.obs, acting=True)
        next_obs = self.normalise(batch.next_obs[last, rows], acting=True)
        return ReplaySample(obs, batch.latent, reward, discount, next_obs)

    def learn(self, sample: ReplaySample) -> Scalars:
        """Make one update; return scalar metrics on the device."""
        raise TypeError(f"{type(self).__name__} does not define `learn`")

    @property
    def is_actor_due(self) -> bool:
        """True if this update is one of the actor's, too: every `policy_delay`-th."""
        delay: int = getattr(self.settings, "policy_delay", 1)
        return (self.learned + 1) % delay == 0

    def fit_critics(self, sample: ReplaySample, target: Tensor) -> Scalars:
        """Take one step of all critics towards `target [R]`; the loss is the sum over K of mean
        squared errors."""

        def iterate_parts() -> Parts:
            for share, obs, latent, goal in self.split_batch(sample.obs, sample.latent, target):
                values = self.critic(obs, latent)
                loss = (values - goal).pow(2).mean(dim=-1).sum()
                means = {"critic_loss": loss / self.members, "value_mean": values.mean()}
                yield share, loss, means

        metrics = self.descend("critic", iterate_parts())
        del metrics["grad_norm"]  # the actor's is reported
        return metrics

    def judge_following(self, batch: Batch, latent: Tensor) -> Tensor:
        """Judge latents `[R, L]` by the target critics, `[K, R]`, in parts."""
        numbers = torch.arange(len(latent), device=self.device)
        parts = [
            (self.critic_target(obs, part), rows)
            for _, obs, part, rows in self.split_batch(batch, latent, numbers)
        ]
        values, places = zip(*parts, strict=True)
        return torch.cat(values, dim=-1)[..., torch.cat(places).argsort()]

    def split_batch(self, batch: Batch, *columns: Tensor) -> Iterator[tuple[Any, ...]]:
        """Split samples, and the rows of `columns`, into parts with their share of the whole: one
        part, or several on a CPU where a wide market's activations would take much memory. Samples
        of one bar stay together, so that few parts embed the same bar again."""
        count = len(batch.private)
        on_cpu = self.device.type == "cpu"
        at_once = max(1, CELLS_AT_ONCE // self.layout.num_actions) if on_cpu else count
        order = torch.arange(count, device=self.device)
        if count > at_once and batch.row_index is not None:
            order = batch.row_index.argsort(stable=True)
        for rows in torch.split(order, at_once):
            share = len(rows) / count
            part = batch if share == 1.0 else batch.select(rows)
            yield share, part, *(column[rows] for column in columns)

    @torch.no_grad()
    def update_target(self, target: nn.Module, source: nn.Module) -> None:
        """Set target ← target + τ (source − target)."""
        torch._foreach_lerp_(
            list(target.parameters()), list(source.parameters()), self.settings.tau
        )

    def inherit(self, state: Tensors) -> None:
        """Inherit as `BaseAgent` does; the child explores with its inherited networks instead of at
        random."""
        super().inherit(state)
        self.has_parent = True

    def collect_extra_state(self) -> StateDict:
        own = {"learned": torch.tensor(self.learned), "has_parent": torch.tensor(self.has_parent)}
        replay = {} if self.replay is None else add_prefix("replay", self.replay.state_dict())
        return super().collect_extra_state() | own | replay

    def load_extra_state(self, state: Tensors) -> None:
        super().load_extra_state(state)
        self.learned = int(state["learned"])
        self.has_parent = bool(state["has_parent"])
        rows = select_below("replay", state)
        self.replay = self._make_replay(*rows["obs"].shape[1:]) if rows else None
        if self.replay is not None:
            self.replay.load_state_dict(rows)

    def _make_replay(self, accounts: int, width: int) -> ReplayBuffer:
        steps = max(self.settings.buffer_size // accounts, self.settings.n_steps + 1)
        return ReplayBuffer(steps, accounts, width, self.head.latents, self.device)
