"""Agents that draw a rollout, estimate its advantages and learn from it alone: PPO, A2C."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from fintrader.agents.base import BaseAgent, Loss, Metrics, Parts, explained_variance, to_metrics
from fintrader.agents.buffers import RolloutBuffer, Transition, gae
from fintrader.agents.fast import fast_on_cpu
from fintrader.agents.fast.graphs import Scalars, look_up_mean, take_step
from fintrader.agents.normalisation import Batch
from fintrader.agents.settings import OnPolicySettings
from fintrader.envs.account import may_hold

if TYPE_CHECKING:
    from fintrader.agents.fast.training import EmbeddingCache

ROWS_AT_ONCE = {"cpu": 4096, "cuda": 1 << 16}
"""Rows of a minibatch that go through the networks together: all numbers between inputs and loss
then stay in a processor's caches, or fit a GPU's memory."""

NOISE_FLOOR = 0.2
"""Deviation down to which `noise_decay` lowers the noise; a noise that starts below it stays."""


class Rollout(NamedTuple):
    """`R = T · B` rows of experience, ready to be learned from."""

    batch: Batch
    latent: Tensor
    """`[R, L]`"""
    log_prob: Tensor
    """`[R, L]`: of each latent, under the policy that drew it."""
    advantage: Tensor
    """`[R]`"""
    target: Tensor
    """`[R]`: target of the value."""

    def select(self, rows: Tensor) -> Rollout:
        """Select the rows with these numbers."""
        batch, *columns = self
        return Rollout(batch.select(rows), *(column.index_select(0, rows) for column in columns))


@fast_on_cpu("training")
def draw_actions(obs: Tensor, agent: OnPolicyAgent) -> tuple[Tensor, Tensor, Tensor]:
    """Draw actions `[B, N]` for `obs [B, D]`; also return the latents that they were decoded from,
    and the log density of each, `[B, L]`."""
    mean = look_up_mean(agent, obs)
    if mean is None:
        mean = agent.mean_latent(agent.normalise(obs, acting=True))
    # Noise is correlated in time, but each draw is N(0, 1): losses use the density of decisions.
    noise = agent.draw_exploration_noise(mean.shape)
    latent = torch.addcmul(mean, noise, agent.log_std.exp())
    action = agent.head.decode(obs, latent, agent.table)
    return action, latent, log_prob_per_latent(noise, agent.log_std)


@fast_on_cpu("descent")
def take_passes(
    latent: Tensor, agent: OnPolicyAgent, rollout: Rollout, passes: Iterable[list[Tensor]]
) -> Scalars:
    """Take a gradient step on each minibatch of `passes` over a rollout with latents
    `latent [R, L]`; return means of their metrics."""
    step = agent.descend_rows
    return agent.take_steps(passes, lambda rows: take_step(agent, step, rollout, rows))


def standardise(advantage: Tensor) -> Tensor:
    """Shift and scale `[R]` to mean 0 and deviation 1; a single advantage stays as it is."""
    if advantage.numel() < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def log_prob_per_latent(noise: Tensor, log_std: Tensor) -> Tensor:
    """Log density of each latent, `[..., L]`, that is `noise` deviations from its mean."""
    return torch.add(-log_std - 0.5 * math.log(2 * math.pi), noise.square(), alpha=-0.5)


def subtract_group_baseline(advantage: Tensor, row_index: Tensor, bars: int) -> Tensor:
    """Subtract from `[R]` advantages the mean of the other accounts at the same bar
    (`row_index [R]`, below `bars`); an account alone at its bar keeps its own.

    Accounts at a bar meet the same prices. Gains and losses that they share say nothing about their
    actions. The others' actions do not depend on an account's own, so the gradient keeps its mean
    (https://arxiv.org/abs/1803.07246).
    """
    zeros = advantage.new_zeros(bars)
    count = zeros.index_add(0, row_index, torch.ones_like(advantage))[row_index]
    mean = zeros.index_add(0, row_index, advantage)[row_index] / count
    # x_i − mean of the others = (x_i − mean of all) · n / (n − 1)
    relative = (advantage - mean) * count / (count - 1).clamp_min(1)
    return torch.where(count > 1, relative, advantage)


class OnPolicyAgent(BaseAgent):
    """`act` draws, `observe` stores, `update` learns once the rollout is full. Subclasses write
    `loss`."""

    settings: OnPolicySettings
    is_bounded = True
    make_learners: Callable[[OnPolicyAgent], Any] | None = None
    """Makes several learners of the agent, for one update (`parallel.py`)."""

    def add_parts(self) -> None:
        settings = self.settings
        log_std = torch.full((self.head.latents,), math.log(settings.noise))
        self.noise = nn.ParameterDict({"log_std": log_std})
        self.noise.requires_grad_(settings.noise_decay == "learned")
        self.modules["noise"] = self.noise.to(self.device)
        parameters = itertools.chain(
            self.actor.parameters(), self.critic.parameters(), self.noise.parameters()
        )
        self.add_optimiser("adam", parameters, settings.learning_rate, eps=1e-5)
        self.buffer: RolloutBuffer | None = None
        self.latent: Tensor | None = None
        self.embedding_cache: EmbeddingCache | Tensor | None = None

    @property
    def log_std(self) -> Tensor:
        """`[L]`: logarithm of the exploration noise's deviation."""
        log_std: Tensor = self.noise["log_std"]
        return log_std

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Draw actions `[B, N]` for `obs [B, D]`."""
        self.begin_statistics(obs)
        action, self.latent, self.log_prob = draw_actions(obs, self)
        return action

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
        if self.buffer.overlaps and may_hold(transition.terminated | transition.truncated):
            final_value = self.critic(self.normalise(transition.next_obs, acting=True))
            self.buffer.final_value[self.buffer.step] = final_value
        self.buffer.add(transition, self.latent, self.log_prob)

    def update(self) -> Metrics | None:
        """Learn from a full rollout; None while it is not full."""
        buffer = self.buffer
        if buffer is None or not buffer.is_full:
            return None
        rollout, value = self._make_rollout(buffer)
        learner: Any = self.make_learners(self) if self.make_learners else self
        metrics = learner.learn(rollout)
        metrics["explained_variance"] = explained_variance(value, rollout.target)
        metrics["reward_mean"] = buffer.reward.mean()
        # Statistics move only between rollouts, so that both policies of a ratio read the same
        # inputs.
        if "observations" in self.settings.normalise:
            self.normaliser.update(buffer.obs, self.table)
        buffer.clear()
        self.decay_noise()
        self.redraw_perturbation()
        return to_metrics(metrics)

    @torch.no_grad()
    def _make_rollout(self, buffer: RolloutBuffer) -> tuple[Rollout, Tensor]:
        """Estimate the advantages of a full buffer; also returns the values `[R]`."""
        settings = self.settings
        done = buffer.terminated | buffer.truncated
        reward = buffer.reward
        if "rewards" in settings.normalise:
            self.rewards.update(reward, done)
            reward = self.rewards(reward)
        batch = self.normalise(buffer.shown.flatten(0, 1))
        values = self.critic(batch).view(-1, *reward.shape[1:])
        batch = batch.take_first(reward.numel())
        value = values[: len(reward)]
        next_value = values[-len(reward) :]
        if buffer.overlaps:
            # Where an episode ended, the buffer holds the next one's first observation.
            next_value = torch.where(done, buffer.final_value, next_value)
        ends = (buffer.terminated, buffer.truncated)
        discounts = (settings.gamma, settings.gae_lambda)
        advantage, target = gae(reward, value, next_value, *ends, *discounts)
        if settings.group_baseline and batch.row_index is not None:
            games = advantage.view(-1, self.num_traders)  # only games are compared
            mean = games.mean(1, keepdim=True)
            bar = batch.row_index[:: self.num_traders]
            relative_mean = subtract_group_baseline(mean.flatten(), bar, len(batch.rows))
            advantage = games - mean + relative_mean.unsqueeze(1)
        latent = buffer.latent.flatten(0, 1)
        log_prob = buffer.log_prob.flatten(0, 1)
        learned = Rollout(batch, latent, log_prob, advantage.flatten(), target.flatten())
        return learned, value.flatten()

    def learn(self, rollout: Rollout) -> Scalars:
        """Take gradient steps on one rollout; return means of their metrics on the device."""
        batch = rollout.batch
        passes = self.draw_passes(len(rollout.latent), batch.row_index, len(batch.rows))
        return take_passes(rollout.latent, self, rollout, passes)

    def take_steps(
        self, passes: Iterable[list[Tensor]], step_on: Callable[[Tensor], Scalars]
    ) -> Scalars:
        """Call `step_on` on every minibatch of each pass; stop after a pass that moved the policy
        enough. Return means of its metrics."""
        sums: Scalars = {}
        taken = 0
        for minibatches in passes:
            for rows in minibatches:
                step = step_on(rows)
                sums = {name: sums.get(name, 0.0) + value.detach() for name, value in step.items()}
                taken += 1
            if self.has_moved_enough(step):
                break
        return {name: total / taken for name, total in sums.items()}

    def descend_rows(self, rollout: Rollout, rows: Tensor) -> Scalars:
        """Take one gradient step on these rows, `ROWS_AT_ONCE` at a time."""
        advantage = standardise(rollout.advantage[rows])

        def iterate_parts() -> Parts:
            at_once = ROWS_AT_ONCE[self.device.type]
            pieces = (torch.split(column, at_once) for column in (rows, advantage))
            for part, part_advantage in zip(*pieces, strict=True):
                piece = rollout.select(part)._replace(advantage=part_advantage)
                yield len(part) / len(rows), *self.loss(piece)

        return self.descend("adam", iterate_parts())

    def check_rollout(self, num_envs: int) -> None:
        """Raises ConfigError when the `num_envs` accounts of one learner make no usable rollout."""

    def draw_passes(self, rows: int, row_index: Tensor | None, bars: int) -> Iterator[list[Tensor]]:
        """Draw passes over a rollout of `rows` rows, each a list of minibatches (row numbers); here
        one pass with one minibatch.

        Row i sees bar `row_index[i]`, below `bars`; None: each row has its own bar.
        """
        yield [torch.arange(rows, device=self.device)]

    def has_moved_enough(self, step: Scalars) -> bool:
        """Report whether to stop after a pass whose last step had these metrics."""
        return False

    def loss(self, rollout: Rollout) -> Loss:
        """Compute the loss of one gradient step, a mean over rows whose advantages are
        standardised, and its parts as scalar metrics on the device."""
        raise TypeError(f"{type(self).__name__} does not define `loss`")

    def add_value_loss(self, rollout: Rollout, policy_loss: Tensor) -> Loss:
        """Add value loss and entropy bonus to the policy loss; also return the three as metrics."""
        settings = self.settings
        value_loss = 0.5 * nn.functional.mse_loss(self.critic(rollout.batch), rollout.target)
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()  # of the noise
        loss = torch.add(policy_loss, value_loss, alpha=settings.vf_coef)
        if settings.ent_coef:
            loss = loss - settings.ent_coef * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    @torch.no_grad()
    def decay_noise(self) -> None:
        """Lower a fixed noise by `noise_decay`, down to NOISE_FLOOR."""
        decay = self.settings.noise_decay
        if decay != "learned" and decay > 0:
            floor = self.log_std.clamp_max(math.log(NOISE_FLOOR))
            lowered = self.log_std + math.log1p(-decay)
            self.log_std.copy_(torch.maximum(lowered, floor))
