"""Acting on the CPU: the bars until a rollout's end are embedded together, once.

Where latents depend on the bar alone, the numbers of the following bars are known and the weights
stay until the next update, so one wide pass replaces a narrow one at every step. Not on a GPU: to
ask which bars are missing would wait for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fintrader.agents.normalisation import Batch


class EmbeddingCache:
    """Mean latents of bars of the current rollout."""

    def __init__(self, num_bars: int, latents: int) -> None:
        self.row_index = torch.full((num_bars,), -1)
        """`[T]` int64: each bar's row of `mean`; -1: it has none yet."""
        self.mean = torch.zeros(0, latents)
        """`[K, L]`"""

    def add(self, bars: Tensor, mean: Tensor) -> None:
        """Store the mean latents `[U, L]` of the bars with these numbers `[U]`."""
        self.row_index[bars] = torch.arange(len(bars)) + len(self.mean)
        self.mean = torch.cat([self.mean, mean])


def predict_acting_mean(obs: Tensor, agent: Any) -> Any:
    """Compute `on_policy.predict_acting_mean` if accounts at a bar share their latents."""
    table = agent.table
    if table is None or obs.shape[-1] == agent.layout.width or not agent.actor.shares_bars:
        return NotImplemented
    step = 0 if agent.buffer is None else agent.buffer.step
    cache = agent.embedding_cache
    if cache is None or step == 0 or len(cache.row_index) != len(table):
        cache = EmbeddingCache(len(table), agent.head.latents)
        agent.embedding_cache = cache
    bars = obs[:, -1].long()
    rows = cache.row_index.index_select(0, bars)
    if int(rows.min()) < 0:
        steps_left = min(agent.settings.num_steps - step, len(table))  # later ones clamp below
        ahead = torch.arange(steps_left) * agent.decision_interval
        due = (bars[rows < 0].unsqueeze(1) + ahead).clamp_max(len(table) - 1)
        due = torch.unique(due)
        due = due[cache.row_index[due] < 0]
        market = agent.normaliser.normalise_bars(due, table, obs.dtype, agent.perturbation)
        mean, _ = agent.mean_by_bar(Batch(market[:, :0], market, None))
        cache.add(due, mean)
        rows = cache.row_index.index_select(0, bars)
    return cache.mean.index_select(0, rows)
