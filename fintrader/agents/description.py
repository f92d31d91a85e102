"""Descriptions of policies and of the markets they depend on: the plain JSON of policy files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, TypedDict

from fintrader.agents.checkpoint import Json
from fintrader.errors import CheckpointError
from fintrader.market.tensors import MarketTensors
from fintrader.records import to_json

EnsembleMode = Literal["mean", "weighted", "vote"]


@dataclass(frozen=True)
class MarketIdentity:
    """The properties of a market that a policy depends on."""

    symbols: list[str]
    feature_names: list[str]
    context_names: list[str]
    bar_minutes: int
    normalisation: Json | None
    """Statistics that the rows were standardised by; None if unknown."""
    normalisation_hash: str | None

    @classmethod
    def of(cls, market: MarketTensors) -> MarketIdentity:
        """Identify a market."""
        scales = market.normalisation
        return cls(
            symbols=list(market.symbols),
            feature_names=list(market.feature_names),
            context_names=list(market.context_names),
            bar_minutes=market.bar_minutes,
            normalisation=None if scales is None else to_json(scales),
            normalisation_hash=None if scales is None else scales.digest,
        )

    def to_json(self) -> Json:
        """Return the identity as plain JSON that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> MarketIdentity:
        """Read an identity. Raises CheckpointError when `value` is not one."""
        try:
            return cls(**value)
        except TypeError as error:
            raise CheckpointError(
                f"the stored description of the policy's market cannot be read ({error}); store the"
                " policy again with save_policy(..., market=market)"
            ) from None


class ActorDescription(TypedDict):
    """An `ActorPolicy` without its weights."""

    kind: Literal["actor"]
    layout: Json
    """Result of `layout_to_json`."""
    network: Json
    """`NetworkSettings`."""
    head: Json
    """`ActionHeadSettings`."""
    outputs: int
    squash: bool


class EnsembleDescription(TypedDict):
    """An `EnsemblePolicy` without its members' weights."""

    kind: Literal["ensemble"]
    mode: EnsembleMode
    members: list[PolicyDescription]


PolicyDescription: TypeAlias = "ActorDescription | EnsembleDescription"
