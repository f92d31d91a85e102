"""Settings of agents: networks, action heads, algorithms and training budgets.

Needs no torch, so that help texts, refusals and configurations stay light.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    model_validator,
)

from fintrader.config import (
    BelowOne,
    Count,
    Fraction,
    PositiveFraction,
    Settings,
)

MAX_TILT_SCALE = 4.0
"""Largest multiple of a learned tilt: beyond it a portfolio no longer resembles the learned one."""

NoiseDecay = Annotated[float, Field(ge=0, lt=1)] | Literal["learned"]
ENCODER_WIDTH = 16
"""Width of an encoder's summary of the last bars: half of a hidden layer's, so that earlier bars do
not outweigh the newest."""


class NetworkSettings(Settings):
    """Shape of actor and critic."""

    kind: Literal["auto", "market_once", "per_asset", "mlp"] = "auto"
    """`market_once` embeds the market once a bar, `per_asset` once for every account, `mlp` reads a
    row of numbers; `auto`: `market_once` with the heads `aim` and `tilt`, `per_asset` for `trade`
    actions, whose size depends on the holdings; `mlp` elsewhere."""
    hidden: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        default=(32, 32), min_length=1
    )
    """Widths of the hidden layers, at least one."""
    activation: Literal["tanh", "relu", "silu", "elu"] = "relu"
    """Non-linearity between layers."""
    private: Annotated[
        tuple[Literal["account", "holdings"], ...],
        AfterValidator(lambda parts: tuple(sorted(set(parts)))),  # equal sets are written alike
    ] = ()
    """Parts of the account's own observation that the network reads; `mlp` always reads both.
    `account`: cash, growth, drawdown and time left, needed by rewards that depend on them, such as
    a drawdown penalty; otherwise they only invite overfitting the training window. To be deployed,
    such a network needs `env.clock` session or none. `holdings`: the actor of `market_once` reads
    holdings, too, as its critic always does. Holdings show the recent exploration noise; since
    noise costs money, an actor of target weights learns to undo it."""
    layer_norm: bool = False
    """Normalise each hidden layer (https://arxiv.org/abs/1607.06450); stabilises off-policy
    critics."""
    encoder: Literal["none", "gru", "attention"] = "none"
    """Summary of the bars that `env.lookback` shows: a gated recurrent unit, attention, or none
    (earlier bars are then plain inputs)."""

    @property
    def reads_account(self) -> bool:
        return "account" in self.private

    @property
    def reads_holdings(self) -> bool:
        return "holdings" in self.private


class ActionHeadSettings(Settings):
    """Map from latents to actions."""

    kind: Literal["auto", "direct", "weights", "aim", "tilt"] = "auto"
    """`tilt`, `aim` and `weights` suit the environment's `target` actions, `direct` everything;
    `weights` may be negative, for few assets (`agent.network.kind` mlp); `auto`: on markets `tilt`
    where there is a benchmark (`env.benchmark`), else `aim`."""
    scale: PositiveFloat = 4.0
    """Logits per unit of latent (`aim`): at 4, latents of ±1 concentrate almost all weight."""
    cash_logit: float = -1.0
    """Cash's logit at the start relative to all assets together (`aim`): -1 leaves about a quarter
    in cash."""
    max_log_tilt: PositiveFloat = 1.0
    """Largest distance of a weight's logarithm from its benchmark's (`tilt`), before weights are
    made to sum to 1."""
    max_active_tilt: PositiveFraction = 1.0
    """Largest active share, ½ Σ|w − b|, with weights w and the benchmark's b (`tilt`)."""
    fully_invested: bool = True
    """Hold no cash (`tilt`); otherwise the share of cash is learned, starting at 0."""
    trade_rate: float = Field(default=0.2, gt=0, lt=1)
    """Part of the distance to the aim that a decision trades at the start of learning (`tilt`;
    `weights`: for each asset)."""
    tilt_scale: float = Field(default=1.0, ge=0, le=MAX_TILT_SCALE)
    """Factor on the aim's distance to the benchmark (`tilt`), as far as no weight becomes negative:
    below 1 it shrinks the bets, above 1 it enlarges them."""


class BaseSettings(Settings):
    """Settings of every agent."""

    has_learners: ClassVar[bool] = False
    """True if `learners` may be more than 1."""
    has_replay: ClassVar[bool] = False
    """True if the agent learns from a replay buffer, which `pipeline` needs."""

    network: NetworkSettings = NetworkSettings()
    head: ActionHeadSettings = ActionHeadSettings()
    learning_rate: PositiveFloat = 3e-3
    """Step size of Adam."""
    anneal: bool = False
    """Lower the step size linearly to zero over the budget: late updates then average more of the
    market's noise."""
    gamma: Fraction = 0.95
    """Discount per decision."""
    bootstrap: bool | Literal["running"] = True
    """Add a learned value where experience is cut off. `running`: not at the end of an episode,
    whose length (`env.episode_bars`) is then part of the task. `false`: the same, and with apg not
    at its horizon either."""
    weight_decay: NonNegativeFloat = 0.0
    """Shrinks weights by this share of the step size at every step (AdamW,
    https://arxiv.org/abs/1711.05101)."""
    feature_dropout: BelowOne = 0.0
    """Chance of each feature to be hidden until the next update (`regularisation.py`)."""
    feature_noise: NonNegativeFloat = 0.0
    """Standard deviation of the noise on standardised features while learning."""
    normalise: tuple[Literal["observations", "rewards"], ...] = ("observations", "rewards")
    """Standardise observations with running statistics (of a replay buffer, they freeze when
    learning begins); divide rewards by the deviation of the discounted return."""
    learners: Count = 1
    """K learners on one device, each learning from its own share of the accounts; after every
    update their networks and optimiser moments are averaged. For ppo and a2c; `env.num_envs` must
    be a multiple of K."""
    matmul: Literal["highest", "high", "medium"] = "highest"
    """Precision of float32 matrix products in training, as in `torch.set_float32_matmul_precision`:
    `high` takes a GPU's TF32, `medium` bfloat16 where the device has it. Sums, statistics,
    backtests and the compiled CPU passes keep float32."""
    pipeline: bool = False
    """Learn in a thread while the accounts trade on, with networks that are one round of updates
    old. For ddpg, td3, sac and redq."""

    @model_validator(mode="after")
    def _check_parallelism(self) -> Self:
        if self.learners > 1 and not self.has_learners:
            raise ValueError(
                "learners above 1 need ppo or a2c; tournament.replicas averages agents of every"
                " kind"
            )
        if self.pipeline and not self.has_replay:
            raise ValueError(
                "pipeline needs an agent with a replay buffer; choose ddpg, td3, sac or redq"
            )
        return self


class OnPolicySettings(BaseSettings):
    """Settings of every agent that learns from its latest rollout only."""

    has_learners: ClassVar[bool] = True

    num_steps: Count = 16
    """Steps of every account between updates."""
    gae_lambda: Fraction = 0.95
    """λ of the advantages: bias at 0, variance at 1."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus; without effect on a fixed noise."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    max_grad_norm: PositiveFloat = 0.5
    """Gradients longer than this are shortened to it."""
    noise: PositiveFloat = 0.5
    """Standard deviation of the exploration noise on the latents (at the start, if learned)."""
    noise_persistence: BelowOne | None = None
    """Correlation of the noise from one decision to the next (https://arxiv.org/abs/2312.11091).
    Under trading costs a lasting deviation is cheaper and more informative than one reversed at the
    next decision; without persistence agents first learn not to trade. None: 0.9 with the heads
    `aim` and `tilt`, else 0."""
    noise_decay: NoiseDecay = 0.0
    """Share by which the noise's deviation falls at every update, down to 0.2. Much noise finds
    profitable actions soon, but it costs: agents hold cash to pay less, and for longer with more
    assets. `learned`: the deviation is learned by gradient. Under market noise a fixed rule learns
    better; classic environments gain from a learned deviation."""
    group_baseline: bool = True
    """Judge an action by how it did against the other accounts at the same bar (see
    `env.start_groups`), not only against the critic: prices move all of them alike, and no critic
    foresees them."""


class PPO(OnPolicySettings):
    """Settings of proximal policy optimisation."""

    algo: Literal["ppo"] = "ppo"
    num_steps: Count = 8
    """Steps of every account between updates."""
    noise: PositiveFloat = 1.0
    """Standard deviation of the exploration noise on the latents (at the start, if learned)."""
    noise_decay: NoiseDecay = 0.02
    """Share by which the noise's deviation falls at every update, down to 0.2; `learned`: the
    deviation is learned by gradient."""
    update_epochs: Count = 3
    """Passes over each rollout."""
    num_minibatches: Count = 2
    """Minibatches of each pass."""
    clip_coef: PositiveFloat = 0.2
    """Distance of the ratio from 1 at which its gradient is cut."""
    target_kl: PositiveFloat | None = None
    """Stop an update's passes once the policy moved this far from the one that collected the
    data."""


class A2C(OnPolicySettings):
    """Settings of synchronous advantage actor-critic."""

    algo: Literal["a2c"] = "a2c"


class APG(BaseSettings):
    """Settings of analytic policy gradient."""

    algo: Literal["apg"] = "apg"
    learning_rate: PositiveFloat = 3e-3
    """Step size of the actor's Adam. At 1e-2 some markets are learned twice as fast and others
    never."""
    num_steps: Count = 16
    """H: decisions differentiated through."""
    gae_lambda: Fraction = 0.95
    """λ of the value's targets."""
    noise: NonNegativeFloat = 0.1
    """Standard deviation of the noise on the latents: spreads the accounts over the states."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients longer than this are shortened to it."""


class OffPolicySettings(BaseSettings):
    """Settings of every agent that learns from replayed steps."""

    has_replay: ClassVar[bool] = True

    network: NetworkSettings = NetworkSettings(layer_norm=True)
    """LayerNorm keeps the critics' values from running away (https://arxiv.org/abs/2302.02948)."""
    learning_rate: PositiveFloat = 1e-3
    """Step size of Adam, of the actor and of the critics."""
    n_steps: Count = 1
    """Rewards summed before a critic's value is used."""
    tau: PositiveFraction = 0.01
    """Part of the distance that target networks move towards the learned ones at each update."""
    batch_size: Count = 512
    """Replayed transitions per update."""
    buffer_size: Count = 200_000
    """Steps kept, summed over all accounts."""
    learning_starts: NonNegativeInt = 5_000
    """Steps with uniformly random latents before learning begins, summed over all accounts."""
    updates_per_step: PositiveFloat = 1.0
    """Updates for each step of the vector environment; 0.5 is one every second step."""
    noise: NonNegativeFloat = 0.5
    """Standard deviation of the exploration noise on the latents."""
    noise_persistence: BelowOne | None = None
    """Correlation of the noise from one decision to the next, also while warming up: under trading
    costs a lasting deviation is cheaper and more informative. None: 0.9 with the heads `aim` and
    `tilt`, else 0."""
    max_grad_norm: PositiveFloat = 10.0
    """Gradients longer than this are shortened to it."""
    saturation_coef: NonNegativeFloat = 5e-3
    """Weight of the mean square of the tanh's argument: without it actors drift to ±1 and stop
    learning."""


class DDPG(OffPolicySettings):
    """Settings of deep deterministic policy gradient."""

    algo: Literal["ddpg"] = "ddpg"


class TD3(OffPolicySettings):
    """Settings of twin delayed deep deterministic policy gradient."""

    algo: Literal["td3"] = "td3"
    policy_delay: Count = 2
    """Critic updates for each actor update."""


class SACBase(OffPolicySettings):
    """Settings that SAC and REDQ share."""

    noise: PositiveFloat = 0.3
    """Standard deviation of the policy at the start, at least 0.007 and at most 2.7."""
    alpha: PositiveFloat | Literal["auto"] = "auto"
    """Temperature: the price of a nat of entropy, in scaled rewards. `auto`: 0.1 at the start, then
    moved so that the entropy meets its target."""
    target_entropy: float = -1.5
    """Entropy aimed at, per latent, in nats; -1.5 is a deviation of about 0.05 around the middle of
    [-1, 1]."""


class SAC(SACBase):
    """Settings of soft actor-critic."""

    algo: Literal["sac"] = "sac"


class REDQ(SACBase):
    """Settings of randomised ensembled double Q-learning."""

    algo: Literal["redq"] = "redq"
    num_critics: Count = 5
    """K: number of critics."""
    target: Count | Literal["min", "mean"] = 2
    """The target's value: the minimum over M critics, drawn anew for each update, or the minimum or
    mean over all of them."""
    updates_per_step: PositiveFloat = 2.0
    """Updates for each step of the vector environment."""
    policy_delay: Count = 2
    """Critic updates for each actor update."""

    @model_validator(mode="after")
    def _check_subset(self) -> Self:
        if isinstance(self.target, int) and self.target > self.num_critics:
            raise ValueError("a target drawn from more critics than num_critics; lower target")
        return self


AgentSettings: TypeAlias = Annotated[
    PPO | A2C | DDPG | TD3 | SAC | REDQ | APG, Field(discriminator="algo")
]


class Budget(Settings):
    """Length of a training: exactly one of `env_steps` and `seconds`."""

    env_steps: Count | None = None
    """Steps summed over all accounts; training stops at the first update (of off-policy agents, the
    first step) that reaches it."""
    seconds: PositiveFloat | None = None
    """Wall-clock seconds of training, resumed parts included; results then depend on the machine's
    speed."""

    @model_validator(mode="after")
    def _check_one_is_set(self) -> Self:
        if (self.env_steps is None) == (self.seconds is None):
            raise ValueError("set exactly one of env_steps and seconds")
        return self

    def scale(self, times: float) -> Self:
        """Return a budget `times` as long."""
        if self.env_steps is not None:
            return type(self)(env_steps=max(1, round(self.env_steps * times)))
        return type(self)(seconds=(self.seconds or 1.0) * times)

    def fraction(self, env_steps: int, seconds: float) -> float:
        """Share of the budget that is used up, at most 1."""
        used = (
            env_steps / self.env_steps
            if self.env_steps is not None
            else seconds / (self.seconds or 1.0)
        )
        return min(used, 1.0)
