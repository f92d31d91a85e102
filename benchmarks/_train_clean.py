"""PPO in one file, as CleanRL writes it, straight on `TradingEnv`: a peer of `training.py` and
`time_to_return.py`.

CleanRL's `ppo_continuous_action.py` with what makes it faster here: torch tensors from the
environment to the gradient, every number stored once in memory allocated at the start, fused Adam,
observations copied only into the rollout (`copy=False`), and an episode that was cut short
bootstrapped from its last observation, as ours is. `shared` and `advantages_each_epoch` make it the
loop of TorchTrade's PPO example (see `_train_peers.TORCHTRADE`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of a peer's PPO; those that are not ours by default are set where it is
    run."""

    accounts: int = 64
    num_steps: int = 16
    update_epochs: int = 2
    num_minibatches: int = 2
    learning_rate: float = 3e-3
    adam_eps: float = 1e-5
    gamma: float = 0.95
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.25
    """Of the squared error (ours counts half of it, with 0.5)."""
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    noise: float = 0.5
    """Standard deviation of the exploration noise on the latents (at the start, if learned)."""
    learn_noise: bool = True
    persistence: float = 0.0
    """Correlation of the noise from one decision to the next."""
    gsde: int | None = None
    """Stable-Baselines3 only: decisions between two draws of its state-dependent noise."""
    reward_scale: float = 1000.0
    """On log returns of minutes; advantages are standardised, so that it matters to the value
    alone."""
    normalise: bool = False
    """Standardise observations with running statistics."""
    shared: bool = False
    """One torso for policy and value."""
    advantages_each_epoch: bool = False
    """Values and advantages anew in every pass."""


def peer_env(
    market: MarketTensors, settings: EnvSettings, recipe: Recipe, *, seed: int, copy: bool
) -> TradingEnv:
    """The environment that a peer trains in: ours, with flat observations."""
    changes = {
        "observation": "flat",
        "reward_scale": recipe.reward_scale,
        "num_envs": recipe.accounts,
    }
    return TradingEnv(market, settings.model_copy(update=changes), seed=seed, copy=copy)


def aim(latent: Tensor, scale: float = 4.0, cash_logit: float = -1.0) -> Tensor:
    """Latents `[B, N + 1]` to target weights `[B, N]`, as our `aim` head with its defaults: the
    last one is cash."""
    logits = scale * latent
    logits[:, -1] += math.log(latent.shape[1] - 1) + cash_logit
    return logits.softmax(1)[:, :-1]


class Normaliser:
    """Standardises columns by running statistics, which move once a rollout."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = torch.zeros(width)
        self.var = torch.ones(width)

    def update(self, rows: Tensor) -> None:
        """Merge `[R, D]` (Chan, Golub and LeVeque)."""
        var, mean = torch.var_mean(rows, 0, correction=0)
        share = len(rows) / (self.count + len(rows))
        self.count += len(rows)
        self.var += share * (var - self.var + (1 - share) * (mean - self.mean).square())
        self.mean += share * (mean - self.mean)

    def __call__(self, obs: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sub(obs, self.mean, out=out).mul_((self.var + 1e-8).rsqrt()).clamp_(-10, 10)


def mlp(sizes: list[int], activation: str, out_gain: float | None) -> nn.Sequential:
    """Orthogonal weights; the last layer's times `out_gain` and without a non-linearity after it,
    if given."""
    layers = []
    for number, (a, b) in enumerate(pairwise(sizes)):
        last = out_gain is not None and number == len(sizes) - 2
        layer = nn.Linear(a, b)
        nn.init.orthogonal_(
            layer.weight, out_gain if last and out_gain is not None else math.sqrt(2)
        )
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class CleanPPO:
    """The loop: `update()` collects one rollout and learns from it."""

    def __init__(self, env: TradingEnv, recipe: Recipe, seed: int) -> None:
        torch.manual_seed(seed)
        self.env = env
        self.recipe = recipe
        steps = recipe.num_steps
        accounts = env.num_envs
        width = env.layout.width
        latents = env.layout.num_assets + 1
        sizes = [width, *recipe.hidden]
        kind = recipe.activation
        self.torso = mlp(sizes, kind, None) if recipe.shared else nn.Identity()
        inner = sizes[-1:] if recipe.shared else sizes
        self.actor = mlp([*inner, latents], kind, 0.01)
        self.critic = mlp([*inner, 1], kind, 1.0)
        self.log_std = nn.Parameter(
            torch.full((latents,), math.log(recipe.noise)), recipe.learn_noise
        )
        modules = (self.torso, self.actor, self.critic)
        self.parameters = [p for module in modules for p in module.parameters()] + [self.log_std]
        self.adam = torch.optim.Adam(
            self.parameters, lr=recipe.learning_rate, eps=recipe.adam_eps, fused=True
        )
        self.obs = torch.empty(steps, accounts, width)
        self.latent = torch.empty(steps, accounts, latents)
        self.log_prob, self.value, self.reward, self.ended = (
            torch.empty(steps, accounts) for _ in range(4)
        )
        self.noise = torch.randn(accounts, latents)
        self.next_obs, _ = env.reset(seed=seed)
        self.normaliser = Normaliser(width) if recipe.normalise else None
        if self.normaliser is not None:
            self.normaliser.update(self.next_obs)

    def density(self, latent: Tensor, mean: Tensor) -> Tensor:
        """Log density `[B]` of latents under the Gaussian policy."""
        standard = (latent - mean) * torch.exp(-self.log_std)
        return (
            -0.5 * standard.square().sum(1)
            - self.log_std.sum()
            - 0.5 * math.log(2 * math.pi) * latent.shape[1]
        )

    def seen(self, obs: Tensor, out: Tensor | None = None) -> Tensor:
        """What the networks see of observations, written to `out` if given."""
        if self.normaliser is not None:
            return self.normaliser(obs, out)
        return obs if out is None else out.copy_(obs)

    def values(self, obs: Tensor) -> Tensor:
        """`[B]`."""
        return self.critic(self.torso(obs)).squeeze(1)

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """Actions `[B, N]` without noise."""
        return aim(self.actor(self.torso(self.seen(obs))))

    @torch.no_grad()
    def collect(self) -> None:
        """One rollout."""
        recipe = self.recipe
        std = self.log_std.exp()
        keep = self.recipe.persistence
        for t in range(recipe.num_steps):
            inner = self.torso(self.seen(self.next_obs, self.obs[t]))
            mean = self.actor(inner)
            self.value[t] = self.critic(inner).squeeze(1)
            self.noise = (
                torch.randn_like(mean).mul_((1 - keep**2) ** 0.5).add_(self.noise, alpha=keep)
            )
            torch.addcmul(mean, self.noise, std, out=self.latent[t])
            self.log_prob[t] = self.density(self.latent[t], mean)
            self.next_obs, self.reward[t], terminated, truncated, info = self.env.step(
                aim(self.latent[t])
            )
            self.ended[t] = terminated | truncated
            if bool(truncated.any()):
                rows = truncated.nonzero().squeeze(1)
                self.reward[t, rows] += recipe.gamma * self.values(
                    self.seen(info["final_obs"][rows])
                )

    @torch.no_grad()
    def advantages(self) -> tuple[Tensor, Tensor]:
        """Of the rollout, and the values' targets: each `[T * B]`."""
        gamma = self.recipe.gamma
        decay = self.recipe.gamma * self.recipe.gae_lambda
        advantage = torch.empty_like(self.reward)
        after = self.values(self.seen(self.next_obs))
        tail = torch.zeros(())
        for t in reversed(range(len(self.reward))):
            goes_on = 1 - self.ended[t]
            tail = self.reward[t] + gamma * goes_on * after - self.value[t] + decay * goes_on * tail
            advantage[t], after = tail, self.value[t]
        return advantage.flatten(), (advantage + self.value).flatten()

    def update(self) -> int:
        """A rollout and its passes; steps taken."""
        recipe = self.recipe
        self.collect()
        obs = self.obs.flatten(0, 1)
        latent = self.latent.flatten(0, 1)
        old = self.log_prob.flatten()
        for epoch in range(recipe.update_epochs):
            if epoch and recipe.advantages_each_epoch:
                with torch.no_grad():
                    self.value.copy_(self.values(obs).view_as(self.value))
            if not epoch or recipe.advantages_each_epoch:
                advantage, target = self.advantages()
            for rows in torch.randperm(len(old)).chunk(recipe.num_minibatches):
                inner = self.torso(obs[rows])
                ratio = (self.density(latent[rows], self.actor(inner)) - old[rows]).exp()
                gain = advantage[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = ratio.clamp(1 - recipe.clip_coef, 1 + recipe.clip_coef)
                loss = -torch.min(ratio * gain, clipped * gain).mean()
                loss = (
                    loss
                    + recipe.vf_coef
                    * (self.critic(inner).squeeze(1) - target[rows]).square().mean()
                )
                if recipe.ent_coef:
                    loss = loss - recipe.ent_coef * self.log_std.sum()
                self.adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, recipe.max_grad_norm)
                self.adam.step()
        if self.normaliser is not None:
            self.normaliser.update(obs * (self.normaliser.var + 1e-8).sqrt() + self.normaliser.mean)
        return len(old)
