"""How long an agent trains, how far it is, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import Field, model_validator

from fintrader.agents.base import Metrics
from fintrader.agents.policy import ActorPolicy
from fintrader.config import Settings


class Budget(Settings):
    """How long to train: exactly one of the two."""

    env_steps: int | None = Field(default=None, ge=1)
    """Steps summed over all accounts; training stops at the first update that reaches it."""
    seconds: float | None = Field(default=None, gt=0)
    """Wall-clock seconds of training, resumed parts included; results then depend on the machine's speed."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.env_steps is None) == (self.seconds is None):
            raise ValueError("set exactly one of env_steps and seconds")
        return self

    def fraction(self, env_steps: int, seconds: float) -> float:
        """Share of the budget that is used up, at most 1."""
        used = env_steps / self.env_steps if self.env_steps is not None else seconds / (self.seconds or 1.0)
        return min(used, 1.0)


@dataclass(frozen=True)
class TrainProgress:
    """Where training stands after an update."""

    fraction: float
    env_steps: int
    updates: int
    seconds: float
    steps_per_second: float
    metrics: Metrics


@dataclass(frozen=True)
class TrainResult:
    """What came out of `train`."""

    env_steps: int
    updates: int
    seconds: float
    """Wall-clock, resumed parts included."""
    metrics: Metrics = field(default_factory=dict)
    """Those of the last update."""
    policy: ActorPolicy | None = field(default=None, repr=False, compare=False)
    """What was learned, deterministic; shares its weights with the agent. `train` always gives one; None where a
    training's totals were read from a file."""

    def to_json(self) -> dict[str, Any]:
        """The totals as plain JSON, without the policy: `TrainResult(**totals)` reads them."""
        return {name: value for name, value in vars(self).items() if name != "policy"}
