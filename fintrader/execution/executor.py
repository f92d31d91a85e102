"""A trained executor: the sizes and prices of an order's parts, from the features of its symbol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.agents.policy import PolicyModule, load_policy
from fintrader.envs.observation import ObservationLayout
from fintrader.errors import BacktestError

Array = NDArray[np.float64]
Form = Literal["market", "limit"]
QUANTITY = 1.5
"""An action of 1 adds this to the logarithm of a part's size."""
PRICES = {"market": (-20.0, 0.0), "limit": (1.0, 10.0)}
"""Form of an executor -> price for an action of 0, and change of the price for an action of 1, basis
points beyond the close; -20 fills at the next open."""
FARTHEST_BPS = 20.0
"""Largest distance of a price from the close."""
META = "executor"
"""Key in a policy's meta, of its form, bars and features."""


def size_part(action: Tensor, left: Tensor, bars_left: Tensor | int, bars: Tensor | int) -> Tensor:
    """Size the next part `[K]` of orders of which the share `left` `[K]` is left: an equal part
    times a factor, whose logarithm is proportional to the action `[K]`."""
    even = torch.maximum(left - (bars_left - 1) / bars, left / bars_left)
    return torch.minimum(even * torch.exp(QUANTITY * action), left)


class TrainedExecutor:
    """A policy of `train_executor`, as `backtesting.order_worker.Executor`."""

    def __init__(self, policy: PolicyModule) -> None:
        """Raises BacktestError for a policy that was not trained to work orders."""
        layout = policy.layout
        known = policy.meta.get(META)
        if known is None or not isinstance(layout, ObservationLayout):
            raise BacktestError(
                "this policy chooses holdings; env.execution.policy takes an executor from"
                " fintrader.execution.train_executor"
            )
        self.meta = policy.meta
        self.bars = int(known["bars"])
        self.features = tuple(known["features"])
        self._first, self._step = PRICES[known["form"]]
        self._policy = policy
        self._layout = layout

    def place(
        self,
        features: NDArray[np.float32],
        sign: Array,
        left: Array,
        price: Array,
        bars_left: int,
    ) -> tuple[Array, Array]:
        """See `backtesting.order_worker.Executor`."""
        count = len(left)
        obs = torch.zeros(count, self._layout.width)
        parts = self._layout.split(obs)
        # A purchase is a sale at mirrored prices.
        worth = np.where(sign < 0, price, 2.0 - price)
        parts["holdings"][:, 0] = torch.from_numpy(left * worth)
        ahead = np.full(count, bars_left / self.bars)
        shown = np.column_stack((features, sign, ahead)).astype(np.float32)
        parts["features"][:, 0] = torch.from_numpy(shown)
        parts["tradable"][:] = 1.0
        with torch.no_grad():
            action = self._policy(obs).double()
        size = size_part(action[:, 0], torch.from_numpy(left), bars_left, self.bars)
        beyond = (self._first + self._step * action[:, 1]).clamp(-FARTHEST_BPS, FARTHEST_BPS)
        return size.numpy(), beyond.numpy()


def open_executor(
    path: Path | str, features: Sequence[str] | None = None, bars: int | None = None
) -> TrainedExecutor:
    """Read an executor's file. Raises CheckpointError for a file that holds no policy,
    BacktestError for another kind of policy, and unless the executor was trained on these features
    and bars of an order."""
    executor = TrainedExecutor(load_policy(path))
    if features is not None and tuple(features) != executor.features:
        raise BacktestError(
            f"{path} was trained on the features {', '.join(executor.features)}, and this market"
            f" has {', '.join(features)}; train an executor on this market"
        )
    if bars is not None and bars != executor.bars:
        raise BacktestError(
            f"{path} was trained on orders of {executor.bars} bars; set env.execution.bars to it"
        )
    return executor
