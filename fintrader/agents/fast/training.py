"""Acting on the CPU: the bars until a rollout's end are embedded together, once.

Where latents depend on the bar alone, the numbers of the following bars are known and the weights
stay until the next update, so one wide pass replaces a narrow one at every step. A GPU does not do
this: asking which bars are missing would wait for the device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fintrader.agents.fast.loops import HALF, njit_pass, to_arrays
from fintrader.agents.fast.surrogate import CONSTANT, exp
from fintrader.agents.normalisation import Batch


class EmbeddingCache:
    """Mean latents of bars of the current rollout."""

    def __init__(self, num_bars: int, latents: int) -> None:
        self.row_index = torch.full((num_bars,), -1)
        """`[T]` int64: each bar's row of `mean`; -1: not computed yet."""
        self.mean = torch.zeros(0, latents)
        """`[K, L]`"""

    def add(self, bars: Tensor, mean: Tensor) -> None:
        """Store the mean latents `[U, L]` of the bars with these numbers `[U]`."""
        self.row_index[bars] = torch.arange(len(bars)) + len(self.mean)
        self.mean = torch.cat([self.mean, mean])


# One call for a decision: a dozen operations on small tensors take longer to start than to run.
@njit_pass(_nrt=True)
def _draw(
    obs: Any, row_index: Any, mean: Any, noise: Any, log_std: Any, aim: Any, out: Any
) -> bool:
    """Write latents and their log densities, and the actions of the head `aim` where `out` has
    room for them; return False, and write nothing, if a bar has no mean yet.

    `row_index` and `mean` are those of `EmbeddingCache`; `aim`: the head's scale, and its logit of
    cash.
    """
    for b in range(len(obs)):
        bar = obs[b, -1]
        if not 0 <= bar < len(row_index) or row_index[int(bar)] < 0:
            return False
    latent, log_prob, action = out
    latents = latent.shape[1]
    assets = action.shape[1]
    std = np.exp(log_std)
    constant = log_std.dtype.type(CONSTANT)
    for b in range(len(obs)):
        own = mean[row_index[int(obs[b, -1])]]
        drawn = latent[b]
        for i in range(latents):
            drawn[i] = own[i] + noise[b, i] * std[i]
            log_prob[b, i] = -HALF * noise[b, i] * noise[b, i] - log_std[i] - constant
        if assets > 0:
            weights = action[b]
            logit = aim[0] * drawn[assets] + aim[1]
            highest = logit
            for n in range(assets):
                highest = max(highest, aim[0] * drawn[n])
            total = exp(logit - highest)
            for n in range(assets):
                weights[n] = exp(aim[0] * drawn[n] - highest)
                total += weights[n]
            for n in range(assets):
                weights[n] /= total
    return True


def draw_actions(obs: Tensor, agent: Any) -> Any:
    """Compute `on_policy.draw_actions` if accounts at a bar share their latents."""
    table = agent.table
    if table is None or obs.shape[-1] == agent.layout.width or not agent.actor.shares_bars:
        return NotImplemented
    step = 0 if agent.buffer is None else agent.buffer.step
    cache = agent.embedding_cache
    if cache is None or step == 0 or len(cache.row_index) != len(table):
        cache = EmbeddingCache(len(table), agent.head.latents)
        agent.embedding_cache = cache
    head = agent.head
    has_aim = head.kind == "aim" and not head.layout.resting
    noise = agent.draw_exploration_noise((len(obs), head.latents)).numpy()
    raw = obs.numpy()
    log_std = agent.log_std.detach().numpy()
    assets = head.latents - 1 if has_aim else 0
    logit = math.log(max(assets, 1)) + head.settings.cash_logit
    aim = np.array([head.settings.scale, logit], noise.dtype)
    out = (np.empty_like(noise), np.empty_like(noise), np.empty_like(noise[:, :assets]))
    while not _draw(raw, *to_arrays(cache.row_index, cache.mean), noise, log_std, aim, out):
        bars = obs[:, -1].long()
        steps_left = min(agent.settings.num_steps - step, len(table))  # later bars are clamped
        ahead = torch.arange(steps_left) * agent.decision_interval
        due = bars[cache.row_index.index_select(0, bars) < 0].unsqueeze(1) + ahead
        due = torch.unique(due.clamp_max(len(table) - 1))
        due = due[cache.row_index[due] < 0]
        market = agent.normaliser.normalise_bars(due, table, obs.dtype, agent.perturbation)
        mean, _ = agent.mean_by_bar(Batch(market[:, :0], market, None))
        cache.add(due, mean)
    latent, log_prob, action = map(torch.from_numpy, out)
    return action if has_aim else head.decode(obs, latent, table), latent, log_prob
