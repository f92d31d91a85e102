"""What PPO and A2C share: drawing latents, storing a rollout, and turning it into advantages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fintrader.agents.base import BaseAgent, BaseSettings, Metrics, explained_variance, to_metrics
from fintrader.agents.buffers import RolloutBuffer, Transition, gae
from fintrader.agents.trunks import Seen
from fintrader.envs.observation import Layout
from fintrader.errors import ConfigError


class OnPolicySettings(BaseSettings):
    """Settings of every agent that learns from its latest rollout only."""

    batches_learners: ClassVar[bool] = True

    num_steps: int = Field(default=16, ge=1)
    """Steps of every account between updates."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Bias (0) against variance (1) of the advantages."""
    ent_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; without effect on a fixed noise."""
    vf_coef: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Gradients longer than this are shortened to it."""
    noise: float = Field(default=0.5, gt=0)
    """Standard deviation of the exploration noise on the latents (at the start, if learned)."""
    noise_persistence: float | None = Field(default=None, ge=0, lt=1)
    """Correlation of the noise from one decision to the next (https://arxiv.org/abs/2312.11091).
    Under trading costs a deviation that lasts is cheaper and tells more than one that is taken back
    at the next decision; without it the first thing learned is not to trade. None: 0.9 with the
    heads `aim` and `tilt`, else 0."""
    noise_decay: float = Field(default=0.0, ge=0, lt=1)
    """Share of the noise's deviation that goes with every update, down to `noise_least`; without
    effect on a learned one. Much noise finds soon what pays. But it costs, whoever has it holds
    cash to pay less, and the more assets there are the longer he does."""
    noise_least: float = Field(default=0.2, gt=0)
    """Deviation that `noise_decay` leaves; what is below it from the start stays."""
    group_baseline: bool = True
    """Judge an action by how it did against the other accounts at the same bar (see
    `env.start_groups`), not only against the critic: prices move all of them alike, and no critic
    foresees them."""
    learn_noise: bool = False
    """Adapt the noise by gradient. Under market noise a fixed one learns better; classic
    environments gain from it."""


ROWS_AT_ONCE = 4096
"""Rows of a minibatch that go through the networks together."""


class Rollout(NamedTuple):
    """`R = T · B` rows of experience, ready to be learned from."""

    seen: Seen
    latent: Tensor
    """`[R, L]`"""
    log_prob: Tensor
    """`[R, L]`: of each latent, under the policy that drew it."""
    advantage: Tensor
    """`[R]`"""
    target: Tensor
    """`[R]`: what the value should be."""

    def take(self, rows: Tensor) -> Rollout:
        """The rows with these numbers."""
        seen, *columns = self
        return Rollout(seen.take(rows), *(column.index_select(0, rows) for column in columns))


class Ahead(NamedTuple):
    """What the policy decodes at bars of the rollout at hand."""

    place: Tensor
    """`[T]` int64: each bar's row of `mean`; -1: it has none yet."""
    mean: Tensor
    """`[K, L]`"""


def standardised(advantage: Tensor) -> Tensor:
    """`[R]` with mean 0 and deviation 1; a single one as it is."""
    return (
        (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        if advantage.numel() > 1
        else advantage
    )


def gaussian_log_prob(latent: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """`[..., L]` to `[...]`: log density of independent normals."""
    return each_log_prob((latent - mean) * torch.exp(-log_std), log_std).sum(dim=-1)


def each_log_prob(noise: Tensor, log_std: Tensor) -> Tensor:
    """`[..., L]`: log density of each latent, `noise` deviations from its mean."""
    return torch.add(-log_std - 0.5 * math.log(2 * math.pi), noise.square(), alpha=-0.5)


def against_others(advantage: Tensor, place: Tensor) -> Tensor:
    """`[R]` advantages less the mean of the others at the same bar (`place [R]`); a single one as
    it is.

    Accounts at a bar meet the same prices: what all of them gained or lost by these says nothing
    about their actions. The others' actions do not depend on an account's own, so the gradient
    keeps its mean (https://arxiv.org/abs/1803.07246).
    """
    zeros = torch.zeros(int(place.max()) + 1, dtype=advantage.dtype, device=advantage.device)
    count = zeros.index_add(0, place, torch.ones_like(advantage))[place]
    mean = (zeros.index_add(0, place, advantage)[place]) / count
    return torch.where(count > 1, (advantage - mean) * count / (count - 1).clamp_min(1), advantage)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of independent normals."""
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()


class OnPolicyAgent(BaseAgent):
    """`act` draws, `observe` stores, `update` learns once the rollout is full. Subclasses write
    `loss`."""

    settings: OnPolicySettings
    bounds = True
    batched = False
    """Whether its loss is taken for several learners at once, which compiled passes do not know."""

    def __init__(
        self, settings: OnPolicySettings, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        super().__init__(settings, layout, device=device, seed=seed)
        self.noise = nn.ParameterDict(
            {"log_std": torch.full((self.head.latents,), math.log(settings.noise))}
        )
        self.noise.requires_grad_(settings.learn_noise)
        self.modules["noise"] = self.noise.to(self.device)
        parameters = itertools.chain(
            self.actor.parameters(), self.critic.parameters(), self.noise.parameters()
        )
        self.add_optimiser("adam", parameters, settings.learning_rate, eps=1e-5)
        self.buffer: RolloutBuffer | None = None
        self.latent: Tensor | None = None
        self.seen_any = False
        self.ahead: Ahead | None = None
        self.learner: Callable[[Rollout], dict[str, Tensor]] = self.learn
        """What learns from a rollout: the agent, or several learners of it side by side
        (`parallel.py`)."""

    def training_env(self, env: Any) -> Any:
        """As any agent's. Raises ConfigError when the accounts cannot be shared out evenly among
        the learners."""
        if env.num_envs % self.settings.learners:
            raise ConfigError(
                f"env.num_envs is {env.num_envs}; make it a multiple of agent.learners,"
                f" {self.settings.learners}"
            )
        return super().training_env(env)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Draw actions `[B, N]` for `obs [B, D]`."""
        if not self.seen_any:
            self.seen_any = True
            if self.settings.normalise_observations and not bool(self.normaliser.count[0]):
                self.normaliser.update(obs)
        mean = self.acting_mean(obs)
        # Each draw is N(0, 1) by itself: what the ratios are made of is the density of one
        # decision.
        noise = self.exploration_noise(mean.shape)
        log_std = self.noise["log_std"]
        self.latent = torch.addcmul(mean, noise, log_std.exp())
        self.log_prob = each_log_prob(noise, log_std)
        return self.head.decode(obs, self.latent, self.table)

    def acting_mean(self, obs: Tensor) -> Tensor:
        """`[B, L]`: what the policy decodes without noise.

        Where it is the bar's alone, the bars until the rollout's end are embedded together: their
        numbers are known, and the weights stay until then. On a GPU to ask which are missing would
        be a wait.
        """
        table = self.table
        clocked = obs.shape[-1] != self.layout.width
        if table is None or not clocked or not self.actor.shares or self.device.type != "cpu":
            return self.mean_latent(self.see(obs, acting=True))
        step = 0 if self.buffer is None else self.buffer.step
        if self.ahead is None or not step or len(self.ahead.place) != len(table):
            self.ahead = Ahead(torch.full((len(table),), -1), torch.zeros(0, self.head.latents))
        bars = obs[:, -1].long()
        place = self.ahead.place.index_select(0, bars)
        if int(place.min()) < 0:
            follow = torch.arange(self.settings.num_steps - step) * self.decision_interval
            due = torch.unique((bars[place < 0].unsqueeze(1) + follow).clamp_max(len(table) - 1))
            due = due[self.ahead.place[due] < 0]
            rows = self.normaliser.see_bars(due, table, obs.dtype, self.perturbation)
            mean, _ = self.shared_mean(Seen(rows[:, :0], rows, None))
            self.ahead.place[due] = torch.arange(len(due)) + len(self.ahead.mean)
            self.ahead = self.ahead._replace(mean=torch.cat([self.ahead.mean, mean]))
            place = self.ahead.place.index_select(0, bars)
        return self.ahead.mean.index_select(0, place)

    @torch.no_grad()
    def observe(self, transition: Transition) -> None:
        """Store one step."""
        if self.buffer is None or self.buffer.num_envs != transition.obs.shape[0]:
            accounts, width = transition.obs.shape
            self.check_rollout(accounts // self.settings.learners)
            self.buffer = RolloutBuffer(
                self.settings.num_steps, accounts, width, self.head.latents, self.device
            )
        assert self.latent is not None
        final_value = None
        # Asking whether any episode ended costs a transfer on a GPU, and a network pass saved on a
        # CPU.
        if self.device.type != "cpu" or bool((transition.terminated | transition.truncated).any()):
            final_value = self.critic(self.see(transition.next_obs, acting=True))
        self.buffer.add(transition, self.latent, self.log_prob, final_value)
        self.last_obs = transition.next_obs

    def check_rollout(self, num_envs: int) -> None:
        """Raises ConfigError when the `num_envs` accounts of one learner make no usable rollout."""

    def passes(self, rows: int, place: Tensor | None) -> Iterator[list[Tensor]]:
        """Passes over a rollout of `rows` rows, each a list of minibatches (row numbers): one pass
        of one.

        Rows see the bars `place`, or each one of its own.
        """
        yield [torch.arange(rows, device=self.device)]

    def moved_enough(self, step: Mapping[str, Tensor]) -> bool:
        """Whether no more passes follow one whose last step gave these metrics."""
        return False

    def learn(self, rollout: Rollout) -> dict[str, Tensor]:
        """Gradient steps on one rollout; means of their scalar metrics, on the device."""

        def descend(rows: Tensor) -> dict[str, Tensor]:
            metrics: dict[str, Tensor] = {}
            advantage = standardised(rollout.advantage[rows])
            if len(rows) <= ROWS_AT_ONCE:
                loss, metrics = self.loss(rollout.take(rows)._replace(advantage=advantage))
                return {**metrics, "grad_norm": self.descend("adam", loss)}

            def losses() -> Iterator[Tensor]:
                # Some rows at a time, so that what is between inputs and loss stays in the
                # processor's caches.
                for part, judged in zip(
                    *(torch.split(of_all, ROWS_AT_ONCE) for of_all in (rows, advantage)),
                    strict=True,
                ):
                    loss, found = self.loss(rollout.take(part)._replace(advantage=judged))
                    share = len(part) / len(rows)
                    for name, value in found.items():
                        metrics[name] = metrics.get(name, 0.0) + share * value.detach()
                    yield share * loss

            norm = self.descend("adam", losses())
            return {**metrics, "grad_norm": norm}

        return self.take_steps(self.passes(len(rollout.latent), rollout.seen.place), descend)

    def take_steps(
        self, passes: Iterable[list[Tensor]], descend: Callable[[Tensor], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """`descend` on every minibatch, until the policy has moved enough; means of what it
        says."""
        sums: dict[str, Tensor] = {}
        taken = 0
        for minibatches in passes:
            for rows in minibatches:
                step = descend(rows)
                sums = {name: sums.get(name, 0.0) + value.detach() for name, value in step.items()}
                taken += 1
            if self.moved_enough(step):
                break
        return {name: total / taken for name, total in sums.items()}

    def whole_loss(self, batch: Rollout, policy_loss: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy's loss with the value's and the entropy's, and the three as metrics."""
        settings = self.settings
        value_loss = 0.5 * nn.functional.mse_loss(self.critic(batch.seen), batch.target)
        entropy = gaussian_entropy(self.noise["log_std"])
        loss = torch.add(policy_loss, value_loss, alpha=settings.vf_coef)
        if settings.ent_coef:
            loss = loss - settings.ent_coef * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def loss(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean of what one gradient step descends over rows whose advantages are standardised,
        and its parts as scalar metrics on the device."""
        raise TypeError(f"{type(self).__name__} does not say what it descends")

    def update(self) -> Metrics | None:
        """Learn from a full rollout; None while it is not full."""
        buffer = self.buffer
        if buffer is None or not buffer.full:
            return None
        settings = self.settings
        done = buffer.terminated | buffer.truncated
        if settings.normalise_rewards:
            self.rewards.update(buffer.reward, done)
            reward = self.rewards(buffer.reward)
        else:
            reward = buffer.reward

        with torch.no_grad():
            seen = self.see(buffer.obs.flatten(0, 1))
            value = self.critic(seen).view_as(reward)
            # The last step's successor is in no row of the buffer; elsewhere it is the next row, or
            # the final value.
            after = self.critic(self.see(self.last_obs))
            following = torch.cat([value[1:], after.unsqueeze(0)])
            next_value = torch.where(done, buffer.final_value, following)
            advantage, target = gae(
                reward,
                value,
                next_value,
                buffer.terminated,
                buffer.truncated,
                settings.gamma,
                settings.gae_lambda,
            )
            advantage = advantage.flatten()
            if settings.group_baseline and seen.place is not None:
                advantage = against_others(advantage, seen.place)

        rows = (
            buffer.latent.flatten(0, 1),
            buffer.log_prob.flatten(0, 1),
            advantage,
            target.flatten(),
        )
        metrics = self.learner(Rollout(seen, *rows))
        metrics["explained_variance"] = explained_variance(value, target)
        metrics["reward_mean"] = buffer.reward.mean()
        # Statistics move only between rollouts, so that the ratios above compare like with like.
        if settings.normalise_observations:
            self.normaliser.update(buffer.obs)
        buffer.clear()
        self.calm()
        self.perturbation.redraw()
        return to_metrics(metrics)

    @torch.no_grad()
    def calm(self) -> None:
        """Take a part of the noise away, as `noise_decay` says."""
        settings = self.settings
        log_std = self.noise["log_std"]
        if settings.noise_decay and not settings.learn_noise:
            least = log_std.clamp_max(math.log(settings.noise_least))
            log_std.copy_(torch.maximum(log_std + math.log1p(-settings.noise_decay), least))

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_extra_state(state)
        self.seen_any = True
