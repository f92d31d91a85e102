"""Influence of each input on a strategy's decisions, as a backtest stores it.

`backtesting/explain.py` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader.numerals import count, percent

METHOD = (
    "One input at a time is removed (a feature or context column shows its mean over the window,"
    " cash and holdings those of a new account), and the policy is asked again. The input moved the"
    " share of the account that is then held elsewhere. Inputs with the same information share"
    " their influence or hide each other's. No figure here shows that an input earns money."
)


@dataclass(frozen=True)
class ExplainedDecision:
    """Influence of I inputs on one decision. Raises ValueError where the lengths differ."""

    time: str
    """Start of the bar at whose close it was taken, ISO 8601, UTC."""
    moved: tuple[float, ...]
    """`[I]`: share of the account that would have been held elsewhere without the input."""
    symbols: tuple[str, ...]
    """Symbols that the inputs moved most."""
    weights: tuple[float, ...]
    """By symbol: the weight aimed at."""
    raised: tuple[tuple[float, ...], ...]
    """By symbol, `[I]` each: by how much the input raised the weight."""

    def __post_init__(self) -> None:
        inputs = {len(row) for row in self.raised} | {len(self.moved)}
        if not len(self.symbols) == len(self.weights) == len(self.raised) or len(inputs) > 1:
            raise ValueError("has rows of different lengths")


@dataclass(frozen=True)
class Explanation:
    """Influence of I inputs on K decisions. Raises ValueError where there is none, or one that is
    not finite."""

    strategy: str
    num_decisions: int
    """All decisions of the backtest, of which K were examined."""
    inputs: tuple[str, ...]
    decisions: tuple[ExplainedDecision, ...]

    def __post_init__(self) -> None:
        sizes = {len(decision.moved) for decision in self.decisions}
        if sizes != {len(self.inputs)} or not np.isfinite(self.moved).all():
            raise ValueError(f"does not have a finite number for each of {len(self.inputs)} inputs")
        if self.times.hasnans:
            raise ValueError("has a decision without a time")

    @cached_property
    def moved(self) -> NDArray[np.float64]:
        """`[K, I]`: share of the account that would have been held elsewhere without the input."""
        return np.array([decision.moved for decision in self.decisions], dtype=np.float64)

    @cached_property
    def times(self) -> pd.DatetimeIndex:
        """`[K]`: start of the bar at whose close each decision was taken, UTC."""
        times = [decision.time for decision in self.decisions]
        return pd.DatetimeIndex(pd.to_datetime(times, utc=True), name="time")

    def importance(self) -> pd.Series:
        """Mean of `moved` by input, the largest first."""
        inputs = pd.Index(self.inputs, name="input")
        mean = pd.Series(self.moved.mean(axis=0), index=inputs, name="moved")
        return mean.sort_values(ascending=False, kind="stable")

    def sentence(self) -> str:
        """Name the inputs that moved the decisions most, and how many decisions were examined."""
        ranked = self.importance()
        looked = f"{count(len(self.times))} of {count(self.num_decisions)} decisions examined"
        if not ranked.iloc[0] > 0:
            return (
                f"No input moved a decision ({looked}): the policy does the same whatever it sees."
            )
        most = [f"{name} {percent(share)}" for name, share in ranked[ranked > 0].head(3).items()]
        return f"Mean share of the account moved: {', '.join(most)} ({looked})."
