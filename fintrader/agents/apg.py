"""Analytic policy gradient: back-propagation through the account (SHAC,
https://arxiv.org/abs/2204.07137).

Prices do not react to a small account, so its wealth is a differentiable function of its actions:
the environment's fills, costs and rewards are torch operations, and the gradient of a policy's
earnings over `num_steps` decisions is exact, without a likelihood ratio or a critic's estimate. One
update: play `num_steps` steps with the graph kept, then climb

    J = E[Σ_{k<H} γ^k r_{t+k} + γ^H V(s_{t+H})]

by one Adam step of the actor. A step k that truncates an episode adds γ^(k+1) V(final observation),
one that terminates it adds nothing; either starts the discount anew. The value V, fitted to TD(λ)
targets, estimates the rewards beyond the horizon. `bootstrap: false` leaves V out; `running` leaves
it out at the end of an episode, which `training` then marks as terminated.

Whole shares have no gradient: training runs with fractions of a share, whatever the environment's
settings are. Differences from the paper: the simulator is a trading account instead of a robot,
latents carry a little noise that spreads the accounts over the states, and there is no target
network for the value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fintrader.agents.base import BaseAgent, Metrics, explained_variance, to_metrics
from fintrader.agents.buffers import Transition, gae
from fintrader.agents.fast.graphs import Scalars
from fintrader.agents.settings import APG
from fintrader.envs.account import may_hold
from fintrader.envs.joined import JoinedEnv
from fintrader.envs.observation import FlatLayout, Tensors
from fintrader.envs.trading import TradingEnv
from fintrader.errors import ConfigError
from fintrader.memory import require_memory

VALUE_LEARNING_RATE = 3e-3
"""Learning rate of the critic."""
VALUE_EPOCHS = 4
"""Gradient steps of the critic on each rollout."""


class APGAgent(BaseAgent):
    """An actor that climbs the exact gradient of its earnings over `num_steps` decisions."""

    differentiable = True

    settings: APG

    def add_parts(self) -> None:
        """Add the optimisers. Raises ConfigError for a classic environment, which cannot be
        differentiated."""
        if isinstance(self.layout, FlatLayout):
            raise ConfigError(
                "agent.algo apg needs the trading environment, which can be differentiated;"
                " choose ppo"
            )
        self.add_optimiser("actor", self.actor.parameters(), self.settings.learning_rate)
        self.add_optimiser("critic", self.critic.parameters(), VALUE_LEARNING_RATE)
        self.steps: list[Transition] = []
        self.accounts = 0
        """B of the stored steps."""

    def prepare_env(self, env: Any) -> Any:
        """Prepare `env` as every agent does. Raises ConfigError when `env` cannot be
        differentiated."""
        is_market = isinstance(env, TradingEnv | JoinedEnv)
        if not is_market and not getattr(env, "differentiable", False):
            raise ConfigError(
                f"agent.algo apg cannot differentiate {type(env).__name__}; choose another"
                " algorithm"
            )
        return super().prepare_env(env)

    def act(self, obs: Tensor) -> Tensor:
        """Choose actions `[B, N]`, connected to the actor's weights and to `obs`."""
        self.begin_statistics(obs.detach())
        (latent,) = self.actor(self.normalise(obs, acting=True))
        if self.settings.noise > 0:
            latent = latent + self.settings.noise * self.draw_normal(latent.shape)
        return self.head.decode(obs, latent, self.table)

    def observe(self, transition: Transition) -> None:
        """Keep one step with its graph. Raises ConfigError when a horizon of steps needs more
        memory than there is."""
        accounts, width = transition.obs.shape
        if accounts != self.accounts:
            # Two observations a step, and a copy of both in the stacked rollout. The memory of the
            # graph is known only afterwards.
            numbers = 4 * width + transition.action.shape[1]
            needed = 4 * self.settings.num_steps * accounts * numbers
            subject = f"a horizon of {self.settings.num_steps:,} steps of {accounts:,} accounts"
            require_memory(needed, self.device, subject, "lower agent.num_steps or env.num_envs")
            self.accounts = accounts
        self.steps.append(transition)

    def update(self) -> Metrics | None:
        """Learn from `num_steps` steps; None before."""
        if len(self.steps) < self.settings.num_steps:
            return None
        settings = self.settings
        columns = zip(*self.steps, strict=True)
        rollout = Transition(
            *(torch.stack([part.detach() for part in column]) for column in columns)
        )
        reward = torch.stack([step.reward for step in self.steps])
        if "rewards" in settings.normalise:
            self.rewards.update(rollout.reward, rollout.terminated | rollout.truncated)
            reward = self.rewards(reward)

        objective = self._estimate_objective(reward, rollout.terminated, rollout.truncated)
        metrics = self.descend("actor", [(1.0, -objective, {"objective": objective})])
        metrics["reward_mean"] = rollout.reward.mean()
        if settings.bootstrap:
            metrics |= self._fit_value(rollout._replace(reward=reward.detach()))
        if "observations" in settings.normalise:
            self.normaliser.update(rollout.obs, self.table)
        self.steps = []
        self.redraw_perturbation()
        return to_metrics(metrics)

    def _estimate_objective(self, reward: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
        """Compute J per decision; rewards and flags are `[H, B]`."""
        settings = self.settings
        total = torch.zeros_like(reward[0])
        weight = torch.ones_like(reward[0])
        last = len(self.steps) - 1
        for t, step in enumerate(self.steps):
            total = total + weight * reward[t]
            weight = weight * settings.gamma
            done = terminated[t] | truncated[t]
            # Only truncated steps and the last one add a value.
            if settings.bootstrap and (t == last or may_hold(truncated[t])):
                has_future = truncated[t] | (~done if t == last else torch.zeros_like(done))
                value = self.critic(self.normalise(step.next_obs, acting=True))
                total = total + torch.where(has_future & ~terminated[t], weight * value, 0.0)
            weight = torch.where(done, 1.0, weight)
        return total.mean() / len(self.steps)

    def _fit_value(self, rollout: Transition) -> Scalars:
        """Take gradient steps of the critic towards its targets; `rollout` is `[H, B, ...]`, its
        rewards scaled."""
        settings = self.settings
        reward = rollout.reward
        with torch.no_grad():
            batch = self.normalise(rollout.obs.flatten(0, 1))
            value = self.critic(batch).view_as(reward)
            next_batch = self.normalise(rollout.next_obs.flatten(0, 1))
            next_value = self.critic(next_batch).view_as(reward)
            ends = (rollout.terminated, rollout.truncated)
            _, target = gae(reward, value, next_value, *ends, settings.gamma, settings.gae_lambda)
        for _ in range(VALUE_EPOCHS):
            loss = (self.critic(batch) - target.flatten()).pow(2).mean()
            self.descend("critic", [(1.0, loss, {})])
        return {
            "value_loss": loss.detach(),
            "explained_variance": explained_variance(value, target),
        }

    def load_extra_state(self, state: Tensors) -> None:
        super().load_extra_state(state)
        self.steps = []
