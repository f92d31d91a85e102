"""What every agent here shares: its modules, optimisers and random stream, and how they are stored
and inherited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fintrader.agents.action_head import ActionHead, ActionHeadSettings
from fintrader.agents.checkpoint import (
    below,
    load_generator,
    load_module,
    load_optimiser,
    optimiser_state,
    prefixed,
)
from fintrader.agents.fast.onednn import tanh
from fintrader.agents.networks import Actor, Critic
from fintrader.agents.normalisation import RewardScaler
from fintrader.agents.policy import ActorPolicy
from fintrader.agents.regularisation import Perturbation
from fintrader.agents.trunks import NetworkSettings, Seen
from fintrader.config import Settings
from fintrader.envs.joined import JoinedEnv
from fintrader.envs.observation import Layout
from fintrader.envs.randomised import RandomisedEnv
from fintrader.envs.trading import TradingEnv
from fintrader.errors import CheckpointError, ConfigError
from fintrader.seeding import derive, generator

Metrics: TypeAlias = dict[str, float]

MOST_BARS = 1 << 24
"""Bars whose numbers float32 tells apart."""


class BaseSettings(Settings):
    """Settings of every agent."""

    batches_learners: ClassVar[bool] = False
    """Whether `learners` may be more than 1."""
    replays: ClassVar[bool] = False
    """Whether it learns from a replay buffer, which `pipeline` needs."""

    network: NetworkSettings = NetworkSettings()
    head: ActionHeadSettings = ActionHeadSettings()
    learning_rate: float = Field(default=3e-3, gt=0)
    """Step size of Adam."""
    anneal: bool = False
    """Lower the step size linearly to zero over the budget: late updates then average more of the
    market's noise."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per decision."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Shrinks weights by this share of the step size at every step (AdamW,
    https://arxiv.org/abs/1711.05101)."""
    feature_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Chance of each feature to be hidden until the next update (`regularisation.py`)."""
    feature_noise: float = Field(default=0.0, ge=0)
    """Deviation of the noise on features while learning, in units of their own."""
    normalise_observations: bool = True
    """Standardise observations with running statistics."""
    normalise_rewards: bool = True
    """Divide rewards by the deviation of the discounted return."""
    learners: int = Field(default=1, ge=1)
    """K learners on one device, each learning from its own share of the accounts; after every
    update their networks and optimiser moments are averaged. For ppo and a2c; `env.num_envs` must
    be a multiple of K."""
    pipeline: bool = False
    """Learn in a thread while the accounts trade on, with networks that are one round of updates
    old. For ddpg, td3, sac and redq."""

    @model_validator(mode="after")
    def _parallelism_fits(self) -> Self:
        if self.learners > 1 and not self.batches_learners:
            raise ValueError(
                "learners above 1 need ppo or a2c; tournament.replicas averages agents of every"
                " kind"
            )
        if self.pipeline and not self.replays:
            raise ValueError(
                "pipeline needs an agent with a replay buffer; choose ddpg, td3, sac or redq"
            )
        return self


class BaseAgent:
    """The networks of an agent, their gradient steps, and their state. Subclasses add `optimisers`
    in `__init__`.

    Names below `modules.` and `optimisers.` are inherited from a parent; names below `extra.`
    (running returns, replay buffers, counters) and the random stream belong to one training and are
    only resumed.
    """

    settings: Any
    differentiable: bool = False
    """Whether the training loop keeps the environment's graph between updates."""
    outputs: int = 1
    """Numbers the actor gives for each latent."""
    bounds: bool = False
    """Whether the means of latents that become weights end in tanh. Noise pays costs, and the first
    thing learned is to hold cash: without a bound its logit runs away until no stock is bought any
    more, and nothing is learned again."""
    squashes: bool = False
    """Whether latents end in tanh, and critics judge them beside the observation."""
    members: int | None = None
    """K critics as one network; None: a single one."""

    def __init__(
        self, settings: Any, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        """Head, actor, critic, policy and reward scaler, weights drawn from the agent's seed."""
        self.settings = settings
        self.layout = layout
        self.device = torch.device(device)
        self.seed = seed
        self.head = ActionHead(layout, settings.head)
        latents = self.head.latents if self.squashes else 0
        network = settings.network.resolved(layout, orders=not self.head.targets_weights)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "weights"))
            common = self.head.common
            gain = self.head.out_gain
            self.actor = Actor(layout, network, common=common, outputs=self.outputs, out_gain=gain)
            self.critic = Critic(layout, network, latents=latents, members=self.members)
        self.rewards = RewardScaler(settings.gamma)
        self.policy = ActorPolicy(
            layout,
            network,
            settings.head,
            outputs=self.outputs,
            squash=self.squashes or (self.bounds and self.head.targets_weights),
            actor=self.actor,
            rewards=self.rewards,
        )
        self.normaliser = self.policy.normaliser
        self.modules = nn.ModuleDict(
            {"policy": self.policy, "critic": self.critic, "rewards": self.rewards}
        )
        self.modules.to(self.device)
        self.optimisers: dict[str, torch.optim.Optimizer] = {}
        self.generator = generator(seed, "agent", device=self.device)
        given = settings.feature_dropout, settings.feature_noise
        self.perturbation = Perturbation(
            layout, *given, generator(seed, "regularisation", device=self.device)
        )
        self.noise_state: Tensor | None = None
        """`[B, L]`: the last draw of persistent noise."""
        self.table: Tensor | None = None
        """`[T, L*W]`: the rows of the market that clocks of observations point to."""
        self.decision_interval = 1
        """Bars from one decision to the next."""

    def training_env(self, env: Any) -> Any:
        """The environment it trains in when it is given `env`. Raises ConfigError when it cannot
        learn there.

        A trading environment becomes one that shows the bar's number in place of the bar: all
        accounts at it share what networks make of it. It has the costs of training, and the
        variants of `env.randomise`.
        """
        if isinstance(env, RandomisedEnv):
            self.see_market(env)
        if not isinstance(env, TradingEnv | JoinedEnv):
            return env
        # A clock must be exact, and tell itself from a row of the market by its width.
        shown = (
            "factored"
            if len(env.market_rows) <= MOST_BARS and env.layout.market_width > 1
            else "flat"
        )
        changes = {"observation": shown, **env.settings.training_costs}
        if any(getattr(env.settings, name) != value for name, value in changes.items()):
            env = env.with_settings(**changes)
        self.see_market(env)
        if not env.settings.randomise.active:
            return env
        if isinstance(env, JoinedEnv):
            raise ConfigError(
                "env.randomise draws the sessions of one window, and tournament.validation kfold"
                " trains on pieces of one; leave out one of the two"
            )
        return RandomisedEnv(env, seed=self.seed)

    def see_market(self, env: TradingEnv | JoinedEnv | RandomisedEnv) -> None:
        """Take the rows that the clocks of this environment's observations point to."""
        self.table = env.market_rows
        self.decision_interval = env.settings.decision_interval
        if self.settings.normalise_observations and not self.normaliser.knows_market:
            self.normaliser.update_market(self.table)

    def mean_latent(self, seen: Seen) -> Tensor:
        """`[R, L]`: what the policy decodes where nothing is explored."""
        mean, place = self.shared_mean(seen)
        return mean if place is None else mean.index_select(0, place)

    def shared_mean(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """The same; where all accounts at a bar share theirs, `[U, L]` and each one's place among
        them."""
        mean, place = self.actor.first(seen)
        return tanh(mean) if self.policy.squash else mean, place

    def see(self, obs: Tensor, *, acting: bool = False) -> Seen:
        """Raw observations `[R, D]` or `[R, A + N + 1]` as what the networks read. Acting never
        waits for a GPU."""
        wait = not acting or self.device.type == "cpu"
        return self.normaliser.see(obs, self.table, wait=wait, perturb=self.perturbation)

    def randn(self, shape: torch.Size) -> Tensor:
        """Standard normal noise of the agent's own stream."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def exploration_noise(self, shape: torch.Size) -> Tensor:
        """Standard normal noise, correlated with the last draw (an AR(1) process) as
        `noise_persistence` says."""
        persistence = self.settings.noise_persistence
        if persistence is None:
            persistence = 0.9 if self.head.targets_weights else 0.0
        noise = self.randn(shape)
        if persistence > 0:
            if self.noise_state is not None and self.noise_state.shape == noise.shape:
                noise = noise.mul_((1 - persistence**2) ** 0.5).add_(
                    self.noise_state, alpha=persistence
                )
            self.noise_state = noise
        return noise

    def add_optimiser(
        self, name: str, parameters: Iterable[nn.Parameter], rate: float, eps: float = 1e-8
    ) -> None:
        """Adam over `parameters`."""
        decay = self.settings.weight_decay
        kind = torch.optim.AdamW if decay else torch.optim.Adam
        self.optimisers[name] = kind(
            list(parameters), lr=rate, eps=eps, weight_decay=decay, fused=True
        )

    def descend(self, name: str, loss: Tensor | Iterable[Tensor]) -> Tensor:
        """One step of an optimiser down `loss`, or down the sum of several, made one at a time;
        returns the gradient's norm."""
        optimiser = self.optimisers[name]
        parameters = [
            parameter for group in optimiser.param_groups for parameter in group["params"]
        ]
        for parameter in parameters:
            parameter.grad = None
        # Only this optimiser's parameters get a gradient: what the loss passes through on its way
        # is left alone.
        inputs = [parameter for parameter in parameters if parameter.requires_grad]
        for part in (loss,) if isinstance(loss, Tensor) else loss:
            torch.autograd.backward(part, inputs=inputs)
        slopes = [parameter.grad for parameter in inputs if parameter.grad is not None]
        # As nn.utils.clip_grad_norm_, which sorts them by device first; here all are on one.
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))
        torch._foreach_mul_(slopes, (self.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        optimiser.step()
        return norm

    def anneal(self, fraction: float) -> None:
        """Move step sizes to where they stand once `fraction` of the budget is used, for settings
        with `anneal`."""
        if not self.settings.anneal:
            return
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = group.setdefault("first_lr", group["lr"]) * (1 - fraction)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue bit-exactly, as flat names and tensors. Call it between
        updates.

        All are copies but the rows of a replay buffer, which may be most of the memory: store them
        before the next step.
        """
        extra = prefixed("extra", self.extra_state())
        return {**self.inheritable_state(), **extra, "generator": self.generator.get_state()}

    def inheritable_state(self) -> dict[str, Tensor]:
        """The part of `state_dict()` that a child takes over: networks, normalisers, optimiser
        moments."""
        state = prefixed("modules", self.modules.state_dict())
        for name, optimiser in self.optimisers.items():
            state |= prefixed(f"optimisers.{name}", optimiser_state(optimiser))
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()`. Raises CheckpointError when it belongs to another
        architecture or market."""
        self.inherit(state)
        self.load_extra_state(below("extra", state))
        if "generator" not in state:
            raise CheckpointError("the stored agent state is incomplete: it has no random state")
        load_generator(self.generator, state["generator"], "agent state")

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Take networks, optimiser moments and normalisers from a parent's `state_dict()`.

        Hyper-parameters and the random stream stay this agent's own. Raises CheckpointError when
        the parent has another architecture or was trained on another layout.
        """
        load_module(self.modules, below("modules", state), "agent state")
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, below(f"optimisers.{name}", state), "agent state")

    def extra_state(self) -> dict[str, Tensor]:
        """What belongs to one training only; subclasses add to it."""
        state = {"running_return": self.rewards.running, "noise_state": self.noise_state}
        if self.perturbation.active:
            drawn = self.perturbation
            state |= {
                "perturbation": drawn.drawn,
                "perturbation_generator": drawn.generator.get_state(),
            }
        return {name: tensor for name, tensor in state.items() if tensor is not None}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Take back `extra_state()`."""
        own = {
            name: tensor.to(self.device).clone()
            for name, tensor in state.items()
            if "." not in name
        }
        self.rewards.running = own.get("running_return")
        self.noise_state = own.get("noise_state")
        if self.perturbation.active and "perturbation" in own:
            self.perturbation.drawn = own["perturbation"]
            load_generator(
                self.perturbation.generator, own["perturbation_generator"].cpu(), "agent state"
            )


def explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """1 - var(target - predicted) / var(target): 1 is perfect, 0 no better than a constant, below 0
    worse."""
    spread = target.var(correction=0)
    return torch.where(
        spread > 0, 1 - (target - predicted).var(correction=0) / spread.clamp_min(1e-12), 0.0
    )


def to_metrics(values: Mapping[str, Tensor]) -> Metrics:
    """Scalars on the device as floats on the host, in one transfer."""
    names = list(values)
    flat = torch.stack([values[name].detach().float().reshape(()) for name in names]).tolist()
    return dict(zip(names, flat, strict=True))
