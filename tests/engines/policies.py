"""Small strategies and markets for the backtest's tests."""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.envs import Policy
from fintrader.market.tensors import MarketTensors
from tests.factories import make_market, reprice


def noisy_policy(num_assets: int, seed: int = 0) -> Policy:
    """A fixed random function of the whole observation: trades a lot, in both directions."""
    cache: dict[int, Tensor] = {}

    def policy(obs: Tensor) -> Tensor:
        width = obs.shape[1]
        if width not in cache:
            generator = torch.Generator().manual_seed(seed)
            cache[width] = torch.randn(width, num_assets, generator=generator)
        return torch.tanh(obs @ cache[width])

    return policy


def idle_policy(obs: Tensor) -> Tensor:
    """Never trades: all weights zero."""
    return torch.zeros(obs.shape[0], (obs.shape[1] - 6) // 4)


def crashing_market(num_bars: int = 40, num_assets: int = 2) -> MarketTensors:
    """Every price falls to a hundredth half-way."""
    market = make_market(num_bars, num_assets, gaps=False)
    fall = torch.ones(num_bars, 1)
    fall[num_bars // 2 :] = 0.01
    return reprice(market, open=market.open * fall, close=market.close * fall)
