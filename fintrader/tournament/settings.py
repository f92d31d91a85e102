"""The settings of a tournament: how many pods, how they are generated, and how they are
evaluated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    field_serializer,
    field_validator,
    model_validator,
)

from fintrader.agents.settings import Budget
from fintrader.config import Address, Count, Fraction, PositiveFraction, Settings
from fintrader.seams import LAUNCHERS

Metric = Literal["sharpe", "return", "calmar", "utility", "information_ratio", "active_utility"]
LOOKS = 10
"""Looks of `early_stopping: best_validation` at the validation window, the last one included."""


def count_spanned(device: str) -> int:
    """Count the devices that one pod spans: 2 for `cuda:0+1`, `cuda:0/1` and `cpu/cpu`."""
    return len(device.replace("/", "+").split("+"))


class Range(Settings):
    """Range of one hyper-parameter."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Draw uniformly in the logarithm."""

    @model_validator(mode="after")
    def _possible(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"impossible range: low {self.low} must be below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"impossible range: a logarithmic range needs low > 0, got {self.low}")
        return self


Space = Range | Annotated[tuple[Any, ...], Field(min_length=1)]
"""Range of a hyper-parameter, or the values to choose from."""


class LauncherSettings(Settings):
    """Place where pods run. A launcher may bring settings of another model."""

    kind: str = Field("local", json_schema_extra={"examples": ["local", *LAUNCHERS]})
    """`local` (processes of this machine), `ray` (a Ray cluster; extra `ray`), or
    `package.module:name` of a function of your own (a `tournament.launchers.LauncherFactory`)."""


class OperationsSettings(Settings):
    """Waits, retries and metrics of a run. They change no result, and a resumed run may change
    them."""

    patience_seconds: PositiveFloat = 300.0
    """Seconds to wait for a process that is silent. A pod that gives no sign of life for this long
    is killed and started again. Pods whose orchestrator was killed train on for this long
    (`takeover`)."""
    takeover: bool = True
    """When the orchestrator is killed, its pods train on, and the same command, run again, takes
    them over. Those that are not taken over within `patience_seconds` end at their next checkpoint.
    False: pods end with their orchestrator."""
    retries: NonNegativeInt = 2
    """Times a lost pod (hung, out of memory, NaN, an error) is started again before it counts as
    failed. A pod whose process or node was ended from outside is always started again."""
    store_seconds: NonNegativeFloat = 120.0
    """Only with `store`: seconds between copies of a pod's training state in the store. Another
    copy is made when its node is drained. 0: never."""
    outage_seconds: NonNegativeFloat = 3600.0
    """Only with `store`: seconds to wait for a store that does not answer. Pods train on meanwhile
    and keep their results on their disk."""
    evaluators: bool | None = None
    """Score trained pods in processes of their own, so that no device waits for the validation
    window. None: on Ray, and on a machine where more than two pods train at once."""
    metrics: Address = None
    """Address at which Prometheus metrics of the tournament are served: `PORT` (on 127.0.0.1; 0:
    any free port) or `HOST:PORT`. `0.0.0.0:PORT` lets other machines read them, without a password.
    None: not served."""

    @property
    def orphan_seconds(self) -> float:
        """Seconds that pods train on without an orchestrator."""
        return self.patience_seconds if self.takeover else 0.0


class TournamentSettings(Settings):
    """Defaults suit a small machine; `configs/` holds settings for larger ones."""

    pods: Count = 8
    """Number of pods to train, which is the number of trials that the winner is chosen from."""
    budget: Budget = Budget(env_steps=100_000)
    """Training of each pod."""
    workers: Count | None = None
    """Pods at work at once; None: one per core, or one for each device named.
    `fintrader status --workers` changes it."""
    devices: tuple[str, ...] = ("auto",)
    """`auto` (CUDA if there is any, else cpu), `cpu` (one pod per core), `cuda`, `cuda:0`,
    `cuda:0+1` (both at once, as threads of one process), `cuda:0/1` (one process each, fused by
    NCCL), `cpu/cpu` (two processes, fused by gloo). A device that is named twice takes two pods."""

    replicas: Count | None = None
    """Learners of one pod, averaged `fusions` times; None: one for each device that a pod spans.
    Learners take turns if there are fewer devices."""
    fusions: Count = 8
    """Times the learners of a pod are averaged."""

    order: Literal["arrival", "submission", "generations", "halving"] = "arrival"
    """`arrival`: results count as they arrive, and no pod waits for another; `submission`: pod k
    waits for the results of pods <= k - pool_size and sees no others, so that one seed always gives
    one leaderboard; `generations`: the best of each generation are copied over the rest of it;
    `halving`: of 25 `pods`, 16 start fresh and train briefly; the best 6 continue unchanged, then
    the best 2 of these, then the best one, for a third of all training and with falling step sizes
    (it sets `anneal`). In total they train as much as
    in the other orders."""
    pool_size: Count = 2
    """With `order: submission` and `generations`: pods at work at once, which is also the size of a
    generation. Further workers stay idle."""
    survivors: Count = 1
    """Only with `order: generations`: pods of a generation that continue and are copied over the
    others."""

    leaderboard_size: Count = 16
    """Rows of the leaderboard, hence the number of possible parents."""
    fresh: Fraction = 1.0
    """Share of pods that start from scratch once parents exist. 1: a race of seeds. Below 1, pods
    descend from each other, e.g. 0.25 with a `search`."""
    founders: Count = 2
    """Results on the leaderboard before a pod becomes a parent."""
    temperature: PositiveFloat = 1.0
    """Temperature of the softmax over ranks that picks a parent: small favours the best, large
    favours none."""
    resample: Fraction = 0.25
    """Probability that a child's hyper-parameter is drawn anew instead of perturbed."""
    search: dict[str, Space] = Field(default_factory=dict)
    """Dotted field of the agent's settings -> its range (low, high, log), or a list of the values
    to choose from, in their natural order. Algorithms without the field ignore it. Fields of
    `network` shape the weights: they are drawn for fresh pods, and children keep them."""

    metric: Metric = "sharpe"
    """Metric of the validation window's daily returns; `utility`: annual mean-variance utility with
    risk aversion 1; `information_ratio`: against the benchmark portfolio (`env.benchmark`) at
    costs, which scores 0; the size of bets does not count; `active_utility`: the objective of
    `env.reward: active_mean_variance`, for which it counts. A classic environment has only
    `return`, the mean undiscounted return of validation episodes."""
    validation_folds: int | None = Field(None, ge=2)
    """None: score pods on the validation window. K: cut training and validation window into K
    blocks of sessions. A pod then has K learners, each trained on the other blocks and scored on
    its own, and one learner trained on all blocks, which is published. The learners share the
    budget evenly; each block has the windows' embargo on both sides."""
    validation_windows: Count = 1
    """Equal parts of the validation window that are scored separately. The score of several parts
    is their mean less its standard error."""
    early_stopping: Literal["none", "best_validation"] = "none"
    """`best_validation`: a pod is scored after every tenth of its budget, and publishes its state
    at the best score. Each of these scores counts as a trial."""

    ensemble_size: Count | None = None
    """Members of the final ensemble: the best pod, then each time the one that adds most to the
    score of the members' pooled validation returns. None: 4, or 1 with `order: halving`, whose
    earlier pods make it worse (docs/results.md)."""
    ensemble_shrinkage: Literal["none", "james_stein"] = "none"
    """`james_stein`: members keep max(0, 1 - 1/t^2) of their distance to the benchmark (`tilt`
    heads), where t is the t-statistic of their pooled validation returns in excess of the
    benchmark's; 0 if t is not positive."""
    ensemble_tracking_error: PositiveFraction | None = None
    """Annual tracking error to which the members' tilts are scaled before the shrinkage, measured
    on their pooled validation returns (factor at most 4). None: tilts keep their learned size.
    Needs `ensemble_shrinkage`."""
    keep: Literal["all", "lineage", "leaders"] = "all"
    """Ended pods whose snapshot, policy and learning curve are kept (spec and result always are).
    `all`: every pod; `lineage`: pods on the leaderboard and their ancestors; `leaders`: only pods
    on the leaderboard, which include the ensemble's members. Parents of pods at work are always
    kept."""

    @field_validator("search")
    @classmethod
    def _in_order(cls, search: dict[str, Space]) -> dict[str, Space]:
        """Sort the ranges: they are drawn from one random stream, and files keep no order."""
        return dict(sorted(search.items()))

    @field_validator("devices")
    @classmethod
    def _check_devices(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        if not devices:
            raise ValueError("name at least one device, or 'auto'")
        return devices

    @property
    def num_members(self) -> int:
        """Members of the final ensemble."""
        return self.ensemble_size or (1 if self.order == "halving" else 4)

    @property
    def at_once(self) -> int | None:
        """Pods that the scheduler lets work at once, whatever the capacity; None: as many as there
        is room for."""
        return None if self.order in ("arrival", "halving") else self.pool_size

    @property
    def looks(self) -> tuple[float, ...]:
        """Shares of the budget after which a pod is scored to find its best state; empty without
        `early_stopping`."""
        return (
            tuple(k / LOOKS for k in range(1, LOOKS))
            if self.early_stopping == "best_validation"
            else ()
        )

    @property
    def learners(self) -> int:
        """Learners of one pod."""
        return self.replicas or max(map(count_spanned, self.devices))

    @field_serializer("replicas")
    def _learners(self, _: int | None) -> int:
        """Store the number of learners, so that a resumed run keeps it on other devices."""
        return self.learners

    @model_validator(mode="after")
    def _check_together(self) -> TournamentSettings:
        """Refuse settings that contradict each other, or leave a device without a learner."""
        spans = sorted({count_spanned(device) for device in self.devices})
        if self.replicas is None and len(spans) > 1:
            raise ValueError(
                f"devices join {' and '.join(map(str, spans))} devices to a pod; join the same"
                f" number in each, or set replicas to {spans[-1]} or more"
            )
        if self.replicas is not None and self.replicas < spans[-1]:
            raise ValueError(
                f"a pod that spans {spans[-1]} devices needs a learner for each; set replicas to"
                f" {spans[-1]} or more (or leave it out), or join fewer devices"
            )
        if self.validation_folds is not None and self.learners > 1:
            raise ValueError(
                "validation_folds makes a learner for each block, which cannot be fused of"
                f" {self.learners} replicas; set replicas to 1 and one device a pod, or leave"
                " validation_folds out"
            )
        if self.ensemble_tracking_error is not None and self.ensemble_shrinkage == "none":
            raise ValueError(
                "ensemble_tracking_error needs ensemble_shrinkage; set that to james_stein, or"
                " leave ensemble_tracking_error out"
            )
        if self.order == "generations" and self.survivors >= self.pool_size:
            raise ValueError(
                f"survivors ({self.survivors}) must be fewer than pool_size ({self.pool_size})"
            )
        if (
            self.fresh < 1.0
            and self.order in ("arrival", "submission")
            and (self.founders > self.leaderboard_size)
        ):
            raise ValueError(
                f"founders ({self.founders}) exceeds leaderboard_size ({self.leaderboard_size}), so"
                " that no pod would ever become a parent; raise leaderboard_size"
            )
        if self.num_members > self.leaderboard_size:
            raise ValueError(
                f"ensemble_size ({self.num_members}) exceeds leaderboard_size"
                f" ({self.leaderboard_size})"
            )
        return self
