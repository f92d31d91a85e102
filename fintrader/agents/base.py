"""Base class of all agents: networks and their gradient steps, random streams, and the environment
that the agent trains in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fintrader.agents.checkpoint import Resumable, load_generator
from fintrader.agents.environment import MarketEnv, to_training_env
from fintrader.agents.fast.graphs import ReplayedStep, Scalars
from fintrader.agents.heads import ActionHead
from fintrader.agents.network_kinds import make_critic
from fintrader.agents.networks import tanh
from fintrader.agents.normalisation import Batch, RewardScaler
from fintrader.agents.optimisers import make_adam, scale_rates
from fintrader.agents.policy import ActorPolicy
from fintrader.agents.regularisation import make_perturbation
from fintrader.envs.observation import Layout, MarketTable, StateDict, Tensors
from fintrader.seeding import create_generator, derive

Metrics: TypeAlias = dict[str, float]
Loss: TypeAlias = tuple[Tensor, Scalars]
Parts: TypeAlias = Iterable[tuple[float, Tensor, Scalars]]
"""Parts of a batch: the share of its rows, their loss and metrics."""


class BaseAgent(Resumable):
    """Networks and their gradient steps. Subclasses add `optimisers` in `add_parts`."""

    settings: Any
    differentiable: bool = False
    """True if the agent differentiates through the environment's steps since the last update."""
    outputs: int = 1
    """Numbers that the actor outputs for each latent."""
    is_bounded: bool = False
    """True if means of latents that become weights end in tanh. Noise costs money, so without a
    bound the logit of cash grows until no stock is bought and learning stops."""
    is_squashed: bool = False
    """True if latents end in tanh, and critics read them next to the observation."""
    num_traders = 1  # consecutive accounts that trade in one game
    members: int | None = None
    """K: critics in one network; None: a single critic."""

    def __init__(
        self, settings: Any, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        """Make head, actor, critic, policy and reward scaler, weights drawn from `seed`."""
        self.settings = settings
        self.layout = layout
        self.device = torch.device(device)
        self.seed = seed
        self.head = ActionHead(layout, settings.head)
        inputs = self.head.latents if self.is_squashed else 0
        squash = self.is_squashed or (self.is_bounded and self.head.kind in ("aim", "tilt"))
        self.rewards = RewardScaler(settings.gamma)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "weights"))
            self.policy = ActorPolicy(
                layout,
                settings.network,
                settings.head,
                outputs=self.outputs,
                squash=squash,
            )
            self.critic = make_critic(
                layout, self.policy.network, latents=inputs, members=self.members
            )
        self.actor = self.policy.actor
        self.normaliser = self.policy.normaliser
        self.modules = nn.ModuleDict(
            {"policy": self.policy, "critic": self.critic, "rewards": self.rewards}
        )
        self.modules.to(self.device)
        self.optimisers: dict[str, torch.optim.Optimizer] = {}
        self.generator = create_generator(seed, "agent", device=self.device)
        self.perturbation = make_perturbation(
            layout, settings, create_generator(seed, "regularisation", device=self.device)
        )
        self.last_noise: Tensor | None = None
        """`[B, L]`: the last draw of persistent noise."""
        self.table: MarketTable | None = None
        """`[T, L*W]`: the market rows that the last column of `obs` points to."""
        self.decision_interval = 1
        """Bars from one decision to the next."""
        self.has_statistics = False
        self.replayed = ReplayedStep(self.generator) if self.device.type == "cuda" else None
        self.add_parts()

    def add_parts(self) -> None:
        """Add the algorithm's own parts: optimisers, networks, buffers."""

    def prepare_env(self, env: Any) -> Any:
        """Turn `env` into the environment that the agent trains in. Raises ConfigError when the
        agent cannot learn in it."""
        if not isinstance(env, MarketEnv):
            return env
        env = to_training_env(env, self.seed, differentiable=self.differentiable)
        self.table = env.table
        self.decision_interval = env.settings.decision_interval
        self.num_traders = env.num_traders
        if "observations" in self.settings.normalise and not self.normaliser.has_market_statistics:
            self.normaliser.update_market(self.table)
        return env

    def begin_statistics(self, obs: Tensor) -> None:
        """Start the running statistics with observations `[B, D]`."""
        if not self.has_statistics:
            self.has_statistics = True
            if "observations" in self.settings.normalise and not self.normaliser.count[0]:
                self.normaliser.update(obs, self.table)

    def normalise(self, obs: Tensor, *, acting: bool = False) -> Batch:
        """Standardise raw observations `[R, D]` or `[R, A + N + 1]`; with `acting`, never wait for
        the device."""
        return self.normaliser.normalise(
            obs, self.table, wait=not acting, perturb=self.perturbation
        )

    def mean_latent(self, batch: Batch) -> Tensor:
        """Compute the latents `[R, L]` that the policy decodes, without exploration."""
        mean, row_index = self.mean_by_bar(batch)
        return mean if row_index is None else mean.index_select(0, row_index)

    def mean_by_bar(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute the latents of `mean_latent`: `[U, L]` and each account's row where accounts at a
        bar share them, else `[R, L]` and None."""
        mean, row_index = self.actor.mean_by_bar(batch)
        return tanh(mean) if self.policy.squash else mean, row_index

    def draw_normal(self, shape: torch.Size) -> Tensor:
        """Draw standard normal noise from the agent's stream."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def draw_exploration_noise(self, shape: torch.Size) -> Tensor:
        """Draw standard normal noise that is correlated with the last draw (an AR(1) process) by
        `noise_persistence`."""
        persistence = self.settings.noise_persistence
        if persistence is None:
            persistence = 0.9 if self.head.kind in ("aim", "tilt") else 0.0
        noise = self.draw_normal(shape)
        if persistence > 0:
            last = self.last_noise
            if last is not None and last.shape == noise.shape:
                noise = noise.mul_((1 - persistence**2) ** 0.5).add_(last, alpha=persistence)
            self.last_noise = noise
        return noise

    def redraw_perturbation(self) -> None:
        """Redraw the hidden features and the noise, after an update."""
        if self.perturbation is not None:
            self.perturbation.redraw()

    def add_optimiser(
        self, name: str, parameters: Iterable[nn.Parameter], rate: float, eps: float = 1e-8
    ) -> None:
        """Add Adam over `parameters`."""
        self.optimisers[name] = make_adam(parameters, rate, self.settings.weight_decay, eps)

    def descend(self, name: str, parts: Parts) -> Scalars:
        """Take one optimiser step on the mean loss of a batch, computed part by part; return the
        metrics' means and the gradient's norm."""
        optimiser = self.optimisers[name]
        optimiser.zero_grad()
        # Only this optimiser's parameters get a gradient: other networks that the loss passes
        # through are left alone.
        parameters = (weight for group in optimiser.param_groups for weight in group["params"])
        inputs = [weight for weight in parameters if weight.requires_grad]
        metrics: Scalars = {}
        for share, loss, values in parts:
            for key, value in values.items():
                metrics[key] = metrics.get(key, 0.0) + share * value.detach()
            torch.autograd.backward(share * loss, inputs=inputs)
        grads = [weight.grad for weight in inputs if weight.grad is not None]
        # Like nn.utils.clip_grad_norm_, but all gradients are on one device.
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (self.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        optimiser.step()
        return {**metrics, "grad_norm": norm}

    def anneal(self, fraction: float) -> None:
        """With `anneal`, scale step sizes by 1 - `fraction`, the share of the budget used."""
        if not self.settings.anneal:
            return
        for optimiser in self.optimisers.values():
            scale_rates(optimiser, 1 - fraction)

    def collect_extra_state(self) -> StateDict:
        state = {"running_return": self.rewards.running, "last_noise": self.last_noise}
        if self.perturbation is not None:
            state["perturbation"] = self.perturbation.drawn
            state["perturbation_generator"] = self.perturbation.generator.get_state()
        return {name: tensor for name, tensor in state.items() if tensor is not None}

    def load_extra_state(self, state: Tensors) -> None:
        own = {key: part.to(self.device).clone() for key, part in state.items() if "." not in key}
        self.rewards.running = own.get("running_return")
        self.last_noise = own.get("last_noise")
        self.has_statistics = True
        if self.perturbation is not None and "perturbation" in own:
            self.perturbation.drawn = own["perturbation"]
            load_generator(self.perturbation.generator, own["perturbation_generator"])


def explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """1 - var(target - predicted) / var(target): 1 is perfect, 0 as good as a constant."""
    spread = target.var(correction=0)
    residual = (target - predicted).var(correction=0)
    return torch.where(spread > 0, 1 - residual / spread.clamp_min(1e-12), 0.0)


def to_metrics(values: Scalars) -> Metrics:
    """Move scalars from the device to the host as floats, in one transfer."""
    names = list(values)
    flat = torch.stack([values[name].detach().float().reshape(()) for name in names]).tolist()
    return dict(zip(names, flat, strict=True))
