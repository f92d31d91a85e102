"""What moved a strategy's decisions, as a backtest stored it (`backtesting/explain.py`): importance
and single ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader.results.folders import DamagedFileError
from fintrader.results.formatting import count, percent

METHOD = (
    "Each input alone is taken away (a feature or column of context shows its mean over the window,"
    " cash and holdings those of an account just opened) and the policy is asked again: the share"
    " of the account that would have stood elsewhere is what it moved. Inputs that say the same"
    " share what they move or hide one another, and nothing here says that an input pays."
)


@dataclass(frozen=True)
class Explanation:
    """K decisions that were looked at, of I inputs."""

    strategy: str
    decisions: int
    """How many there were, of which K were looked at."""
    inputs: tuple[str, ...]
    times: pd.DatetimeIndex
    """`[K]`: start of the bar at whose close each was taken, UTC."""
    moved: NDArray[np.float64]
    """`[K, I]`: share of the account that would have stood elsewhere without the input."""
    raised: tuple[pd.DataFrame, ...]
    """`[K]` tables, a row a symbol, a column an input: by how much it raised the symbol's
    weight."""
    weights: tuple[pd.Series, ...]
    """`[K]`: the weights aimed at, of the symbols of `raised`."""

    def importance(self) -> pd.Series:
        """Mean of what each input moved, the most first."""
        mean = pd.Series(
            self.moved.mean(axis=0), index=pd.Index(self.inputs, name="input"), name="moved"
        )
        return mean.sort_values(ascending=False, kind="stable")

    def sentence(self) -> str:
        """What moved the decisions most, and how much was looked at."""
        ranked = self.importance()
        looked = f"{count(len(self.times))} of {count(self.decisions)} decisions looked at"
        if not ranked.iloc[0] > 0:
            return (
                f"No input moved a decision ({looked}): the policy does the same whatever it sees."
            )
        told = [f"{name} {percent(share)}" for name, share in ranked[ranked > 0].head(3).items()]
        return f"What moved most of the account, at the mean: {', '.join(told)} ({looked})."


def read_explanation(stored: Mapping[str, Any]) -> Explanation | None:
    """A backtest's `explanation`; None where nobody looked. Raises DamagedFileError for what is
    none."""
    if not stored:
        return None
    try:
        inputs = tuple(map(str, stored["inputs"]))
        looks = list(stored["looks"])
        moved = np.array([look["moved"] for look in looks], dtype=np.float64)
        symbols = [list(map(str, look["symbols"])) for look in looks]
        raised = [
            pd.DataFrame(look["raised"], index=names, columns=inputs, dtype=np.float64)
            for look, names in zip(looks, symbols, strict=True)
        ]
        weights = [
            pd.Series(look["weights"], index=names, dtype=np.float64)
            for look, names in zip(looks, symbols, strict=True)
        ]
        times = pd.DatetimeIndex(
            pd.to_datetime([look["time"] for look in looks], utc=True), name="time"
        )
        found = Explanation(
            str(stored["strategy"]),
            int(stored["decisions"]),
            inputs,
            times,
            moved,
            tuple(raised),
            tuple(weights),
        )
        if (
            moved.shape != (len(looks), len(inputs))
            or not len(looks)
            or not np.isfinite(moved).all()
        ):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise DamagedFileError(
            "explanation.json is damaged; `fintrader backtest` on the run makes it again"
        ) from None
    return found
