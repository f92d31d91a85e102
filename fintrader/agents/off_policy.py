"""What DDPG, TD3, SAC and REDQ share: exploring, the replay buffer, and when to learn.

These agents know latents in [-1, 1] only: the actor's output goes through tanh, exploration is
clipped to the same range, and critics judge latents, not the actions a head makes of them (the head
is a fixed function of both).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fintrader.agents.base import BaseAgent, BaseSettings, Metrics, to_metrics
from fintrader.agents.buffers import ReplayBuffer, Transition, n_step
from fintrader.agents.checkpoint import below, prefixed
from fintrader.agents.trunks import NetworkSettings, Seen
from fintrader.envs.observation import Layout


class OffPolicySettings(BaseSettings):
    """Settings of every agent that learns from replayed steps."""

    replays: ClassVar[bool] = True

    network: NetworkSettings = NetworkSettings(layer_norm=True)
    """LayerNorm keeps the critics' values from running away (https://arxiv.org/abs/2302.02948)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size of Adam, of the actor and of the critics."""
    normalise_observations: bool = True
    """Standardise observations with running statistics, which freeze when learning begins."""
    n_steps: int = Field(default=1, ge=1)
    """Steps summed before a critic's value is used."""
    tau: float = Field(default=0.01, gt=0, le=1)
    """Part of the way that target networks follow at each update."""
    batch_size: int = Field(default=512, ge=1)
    """Replayed transitions per update."""
    buffer_size: int = Field(default=200_000, ge=1)
    """Steps kept, summed over all accounts."""
    learning_starts: int = Field(default=5_000, ge=0)
    """Steps with uniformly random latents before learning begins, summed over all accounts."""
    updates_per_step: float = Field(default=1.0, gt=0)
    """Updates for each step of the vector environment; 0.5 is one every second step."""
    critic_lead: int = Field(default=0, ge=0)
    """Updates of the critics before the actor first moves: an actor that climbs untaught critics
    saturates its tanh."""
    noise: float = Field(default=0.5, ge=0)
    """Standard deviation of the exploration noise on the latents."""
    noise_persistence: float | None = Field(default=None, ge=0, lt=1)
    """Correlation of the noise from one decision to the next, also while warming up: under trading
    costs a deviation that lasts is cheaper and tells more. None: 0.9 with the heads `aim` and
    `tilt`, else 0."""
    max_grad_norm: float = Field(default=10.0, gt=0)
    """Gradients longer than this are shortened to it."""
    saturation_coef: float = Field(default=5e-3, ge=0)
    """Weight of the mean square of what goes into the tanh: without it actors drift to ±1 and stop
    learning."""
    report_every: int = Field(default=50, ge=1)
    """Steps of the vector environment between two lines of metrics."""


class Sample(NamedTuple):
    """A batch ready to be learned from: standardised observations, scaled n-step rewards."""

    obs: Seen
    latent: Tensor
    """`[R, L]`"""
    reward: Tensor
    """`[R]`: Σ γ^k r_k up to the first end."""
    discount: Tensor
    """`[R]`: factor of the value at `next_obs`; 0 after a termination."""
    next_obs: Seen


class OffPolicyAgent(BaseAgent):
    """`act` explores, `observe` stores, `update` learns from the replay buffer. Subclasses write
    `learn`."""

    settings: OffPolicySettings
    squashes = True
    members: int = 1

    def __init__(
        self, settings: OffPolicySettings, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        super().__init__(settings, layout, device=device, seed=seed)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.modules.update(
            {"critic_target": self.critic_target, "actor_target": self.actor_target}
        )
        self.add_optimiser("actor", self.actor.parameters(), settings.learning_rate)
        self.add_optimiser("critic", self.critic.parameters(), settings.learning_rate)
        self.replay: ReplayBuffer | None = None
        self.latent: Tensor | None = None
        self.has_parent = False
        self.learned = 0
        """Updates so far."""
        self.since_report: dict[str, list[Tensor]] = {}

    @property
    def warming_up(self) -> bool:
        """True while latents are drawn at random."""
        replay = self.replay
        return replay is None or replay.written * replay.num_envs < self.settings.learning_starts

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Exploring actions `[B, N]`."""
        if self.warming_up and not self.has_parent:
            # erf turns a normal draw into a uniform one
            self.latent = torch.erf(
                self.exploration_noise(torch.Size((obs.shape[0], self.head.latents))) / 2**0.5
            )
        else:
            self.latent = self.explore(self.see(obs, acting=True))
        return self.head.decode(obs, self.latent, self.table)

    def explore(self, obs: Seen) -> Tensor:
        """Latents `[B, L]` for standardised observations: the actor's, plus Gaussian noise."""
        latent = torch.tanh(self.actor(obs)[0])
        noise = self.exploration_noise(latent.shape)
        return (latent + self.settings.noise * noise).clamp(-1.0, 1.0)

    @torch.no_grad()
    def observe(self, transition: Transition) -> None:
        """Store one step and, while warming up, its statistics."""
        if self.replay is None:
            self.replay = self._memory(*transition.obs.shape)
        assert self.latent is not None
        if self.warming_up and self.settings.normalise_observations:
            self.normaliser.update(transition.obs)
        if self.settings.normalise_rewards:
            done = transition.terminated | transition.truncated
            self.rewards.update(transition.reward.unsqueeze(0), done.unsqueeze(0))
        self.replay.add(transition, self.latent)

    def update(self) -> Metrics | None:
        """Learn as often as `updates_per_step` says; metrics every `report_every` steps, else
        None."""
        while self.learned < self.updates_due():
            self.learn_once()
        return self.report()

    def learn_once(self) -> None:
        """One update from one batch."""
        assert self.replay is not None
        self.count(self.learn(self.draw(self.replay)))
        self.perturbation.redraw()

    def updates_due(self) -> int:
        """Updates that should have been made by now, ever since the first step; 0 while warming
        up."""
        replay = self.replay
        settings = self.settings
        if replay is None or self.warming_up or replay.filled < settings.n_steps:
            return 0
        warm = -(-settings.learning_starts // replay.num_envs)
        return int((replay.written - warm + 1) * settings.updates_per_step)

    def count(self, step: dict[str, Tensor]) -> None:
        """Count an update and keep its metrics for the next report."""
        self.learned += 1
        for name, value in step.items():
            self.since_report.setdefault(name, []).append(value)

    @property
    def report_due(self) -> bool:
        """Whether this step is one of those after which metrics are given."""
        return self.replay is not None and self.replay.written % self.settings.report_every == 0

    def report(self) -> Metrics | None:
        """Means of the metrics since the last report when one is due, else None."""
        if not self.report_due:
            return None
        metrics = {name: torch.stack(values).mean() for name, values in self.since_report.items()}
        self.since_report = {}
        return to_metrics(metrics) if metrics else {}

    @torch.no_grad()
    def draw(self, replay: ReplayBuffer) -> Sample:
        """A batch from the replay buffer."""
        settings = self.settings
        batch = replay.sample(settings.batch_size, settings.n_steps, self.generator)
        rewards = self.rewards(batch.reward) if settings.normalise_rewards else batch.reward
        reward, discount, last = n_step(rewards, batch.terminated, batch.truncated, settings.gamma)
        rows = torch.arange(settings.batch_size, device=self.device)
        next_obs = batch.next_obs[last, rows]
        return Sample(self.see(batch.obs), batch.latent, reward, discount, self.see(next_obs))

    def learn(self, sample: Sample) -> dict[str, Tensor]:
        """One update; scalar metrics on the device."""
        raise TypeError(f"{type(self).__name__} does not say how it learns")

    def actor_moves(self, delay: int = 1) -> bool:
        """Whether this update is one of the actor's: every `delay`-th, once the critics had their
        lead."""
        return self.learned >= self.settings.critic_lead and (self.learned + 1) % delay == 0

    def fit_critics(self, sample: Sample, target: Tensor) -> dict[str, Tensor]:
        """One step of all critics towards `target [R]`: the sum over K of mean squared errors."""
        values = self.critic(sample.obs, sample.latent)
        loss = (values - target).pow(2).mean(dim=-1).sum()
        self.descend("critic", loss)
        return {"critic_loss": loss.detach() / self.members, "value_mean": values.detach().mean()}

    def climb(self, sample: Sample) -> dict[str, Tensor]:
        """One step of a deterministic actor up the first critic."""
        (raw,) = self.actor(sample.obs)
        policy_loss = -self.critic(sample.obs, torch.tanh(raw))[0].mean()
        norm = self.descend(
            "actor", policy_loss + self.settings.saturation_coef * raw.pow(2).mean()
        )
        return {"policy_loss": policy_loss.detach(), "grad_norm": norm}

    @torch.no_grad()
    def follow(self, target: nn.Module, source: nn.Module) -> None:
        """target ← target + τ (source − target)."""
        torch._foreach_lerp_(
            list(target.parameters()), list(source.parameters()), self.settings.tau
        )

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """As `BaseAgent.inherit`; the child explores with what it inherited instead of at
        random."""
        super().inherit(state)
        self.has_parent = True

    def extra_state(self) -> dict[str, Tensor]:
        own = {"learned": torch.tensor(self.learned), "has_parent": torch.tensor(self.has_parent)}
        replay = {} if self.replay is None else prefixed("replay", self.replay.state_dict())
        return super().extra_state() | own | replay

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_extra_state(state)
        self.learned = int(state["learned"])
        self.has_parent = bool(state["has_parent"])
        rows = below("replay", state)
        self.replay = self._memory(*rows["obs"].shape[1:]) if rows else None
        if self.replay is not None:
            self.replay.load_state_dict(rows)

    def _memory(self, accounts: int, width: int) -> ReplayBuffer:
        steps = max(self.settings.buffer_size // accounts, self.settings.n_steps + 1)
        return ReplayBuffer(steps, accounts, width, self.head.latents, self.device)


def combine(values: Tensor, how: Literal["mean", "min"]) -> Tensor:
    """`[K, R]` to `[R]`: one value from K critics."""
    return values.mean(dim=0) if how == "mean" else values.min(dim=0).values
