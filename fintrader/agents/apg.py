"""Analytic policy gradient: back-propagation through the account (SHAC,
https://arxiv.org/abs/2204.07137).

Prices do not react to a small account, so its wealth is a differentiable function of its actions:
the environment's fills, costs and rewards are torch operations (on a CPU one compiled operation,
`envs.fast.gradient`), and the gradient of what a policy earns over `num_steps` decisions is
exact, without a likelihood ratio or a critic's opinion. One update: play `num_steps` steps with the
graph kept, then climb

    J = E[Σ_{k<H} γ^k r_{t+k} + γ^H V(s_{t+H})]

by one Adam step of the actor. A step that ends an episode adds γ^k V(final observation) when it was
truncated and nothing when it was terminated, and starts the discount anew. The value V, fitted to
TD(λ) targets, tells what lies beyond the horizon; `bootstrap: false` leaves it out.

Whole shares have no gradient: training runs with fractions of a share, whatever the environment's
settings say. What differs from the paper: the simulator is a trading account instead of a robot,
latents carry a little noise that spreads the accounts over the states, and there is no target
network for the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fintrader.agents.base import BaseAgent, BaseSettings, Metrics, explained_variance, to_metrics
from fintrader.agents.buffers import Transition, gae
from fintrader.envs.joined import JoinedEnv
from fintrader.envs.observation import FlatLayout, Layout
from fintrader.envs.trading import TradingEnv
from fintrader.errors import ConfigError
from fintrader.memory import require_memory


class APG(BaseSettings):
    """Settings of analytic policy gradient."""

    algo: Literal["apg"] = "apg"
    learning_rate: float = Field(default=3e-3, gt=0)
    """Step size of the actor's Adam. At 1e-2 some markets are learned twice as fast and others
    never."""
    value_learning_rate: float = Field(default=3e-3, gt=0)
    """Step size of the value's Adam."""
    num_steps: int = Field(default=16, ge=1)
    """H: decisions differentiated through."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """λ of the value's targets."""
    bootstrap: bool = True
    """Add a learned value at the horizon."""
    value_epochs: int = Field(default=4, ge=1)
    """Steps of the value on each rollout."""
    noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise on the latents: spreads the accounts over the states."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients longer than this are shortened to it."""


class APGAgent(BaseAgent):
    """An actor that climbs the exact gradient of what it earns over `num_steps` decisions."""

    differentiable = True

    def __init__(
        self, settings: APG, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        """Raises ConfigError for a layout without assets: other environments cannot be
        differentiated."""
        if isinstance(layout, FlatLayout):
            raise ConfigError(
                "agent.algo apg needs the trading environment, which can be differentiated;"
                " choose ppo"
            )
        super().__init__(settings, layout, device=device, seed=seed)
        self.add_optimiser("actor", self.actor.parameters(), settings.learning_rate)
        self.add_optimiser("critic", self.critic.parameters(), settings.value_learning_rate)
        self.steps: list[Transition] = []
        self.accounts = 0
        """B of the steps so far."""

    def training_env(self, env: Any) -> Any:
        """`env`, or its twin with fractions of a share. Raises ConfigError when `env` cannot be
        differentiated."""
        if getattr(env, "differentiable", False):
            return super().training_env(env)
        if not isinstance(env, TradingEnv | JoinedEnv):
            raise ConfigError(
                f"agent.algo apg cannot differentiate {type(env).__name__}; choose another"
                " algorithm"
            )
        return super().training_env(
            env if env.settings.fractional else env.with_settings(fractional=True)
        )

    def act(self, obs: Tensor) -> Tensor:
        """Actions `[B, N]`, connected to the actor's weights and to `obs`."""
        if (
            self.settings.normalise_observations
            and not self.steps
            and not bool(self.normaliser.count[0])
        ):
            self.normaliser.update(obs.detach())
        (latent,) = self.actor(self.see(obs, acting=True))
        if self.settings.noise > 0:
            latent = latent + self.settings.noise * self.randn(latent.shape)
        return self.head.decode(obs, latent, self.table)

    def observe(self, transition: Transition) -> None:
        """Keep one step with its graph. Raises ConfigError when a horizon of them is more than
        memory holds."""
        accounts, width = transition.obs.shape
        if accounts != self.accounts:
            # Two observations a step, and both once more in one piece; the graph's own share is
            # known afterwards only.
            needed = (
                4 * self.settings.num_steps * accounts * (4 * width + transition.action.shape[1])
            )
            what = f"a horizon of {self.settings.num_steps:,} steps of {accounts:,} accounts"
            require_memory(needed, self.device, what, "lower agent.num_steps or env.num_envs")
            self.accounts = accounts
        self.steps.append(transition)

    def update(self) -> Metrics | None:
        """Learn from `num_steps` steps; None before."""
        if len(self.steps) < self.settings.num_steps:
            return None
        settings = self.settings
        steps = self.steps
        seen = Transition(
            *(
                torch.stack([part.detach() for part in column])
                for column in zip(*steps, strict=True)
            )
        )
        reward = torch.stack([step.reward for step in steps])
        if settings.normalise_rewards:
            self.rewards.update(seen.reward, seen.terminated | seen.truncated)
            reward = self.rewards(reward)

        objective = self._objective(reward, seen.terminated, seen.truncated)
        norm = self.descend("actor", -objective)

        metrics = {
            "objective": objective.detach(),
            "grad_norm": norm,
            "reward_mean": seen.reward.mean(),
        }
        if settings.bootstrap:
            metrics |= self._fit_value(seen._replace(reward=reward.detach()))
        if settings.normalise_observations:
            self.normaliser.update(seen.obs)
        self.steps = []
        self.perturbation.redraw()
        return to_metrics(metrics)

    def _objective(self, reward: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
        """J per decision; rewards and flags `[H, B]`."""
        settings = self.settings
        total = torch.zeros_like(reward[0])
        weight = torch.ones_like(reward[0])
        last = len(self.steps) - 1
        for t, step in enumerate(self.steps):
            total = total + weight * reward[t]
            weight = weight * settings.gamma
            done = terminated[t] | truncated[t]
            # Only a truncated step or the horizon has a value to add; asking is free on a CPU.
            if settings.bootstrap and (
                t == last or self.device.type != "cpu" or bool(truncated[t].any())
            ):
                cut = truncated[t] | (~done if t == last else torch.zeros_like(done))
                value = self.critic(self.see(step.next_obs))
                total = total + torch.where(
                    cut & ~terminated[t], weight * value, torch.zeros_like(value)
                )
            weight = torch.where(done, torch.ones_like(weight), weight)
        return total.mean() / len(self.steps)

    def _fit_value(self, seen: Transition) -> dict[str, Tensor]:
        """Steps of the value towards its targets, on `[H, B, ...]` steps with scaled rewards."""
        settings = self.settings
        with torch.no_grad():
            rows = self.see(seen.obs.flatten(0, 1))
            value = self.critic(rows).view_as(seen.reward)
            next_value = self.critic(self.see(seen.next_obs.flatten(0, 1))).view_as(seen.reward)
            ends = seen.terminated, seen.truncated
            _, target = gae(
                seen.reward, value, next_value, *ends, settings.gamma, settings.gae_lambda
            )
        for _ in range(settings.value_epochs):
            loss = (self.critic(rows) - target.flatten()).pow(2).mean()
            self.descend("critic", loss)
        return {
            "value_loss": loss.detach(),
            "explained_variance": explained_variance(value, target),
        }

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_extra_state(state)
        self.steps = []
