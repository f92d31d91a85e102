"""An MDP in the trading environment whose value function is known in closed form, for any policy.

Choose V(s) = 10 + 5 growth(s), with growth = equity / first equity - 1 (an account feature of the
observation), and pay r = V(s) - gamma V(s') for every step, r = V(s) where the account is ruined.
Then V solves Bellman's equation: every temporal difference is zero, and every lambda-return equals
V(s), provided that whoever computes it

* bootstraps from the true last observation where an episode was cut by its time limit, and
* does not bootstrap where it ended in ruin.

Each mistake shows: the next episode's first observation has growth 0, and a cut treated as an end
loses gamma V(s').
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fintrader.envs import EnvSettings
from fintrader.envs.reward import Outcome
from fintrader.market.tensors import MarketTensors
from tests.factories import make_market

GAMMA = 0.9
RUIN = 0.7
GROWTH = 1
"""Column of the observation."""


def value(obs: Tensor) -> Tensor:
    """V `[...]` of observations `[..., D]`."""
    return 10.0 + 5.0 * obs[..., GROWTH]


def bellman_reward(outcome: Outcome) -> Tensor:
    """r = V(s) - gamma V(s'), or V(s) at ruin."""
    before, after = (
        10.0 + 5.0 * (v / outcome.first_equity - 1.0)
        for v in (outcome.equity_before, outcome.equity)
    )
    ruined = outcome.equity <= RUIN * outcome.first_equity
    return before - GAMMA * torch.where(ruined, torch.zeros_like(after), after)


def oracle_settings(episode_bars: int = 5) -> EnvSettings:
    """Episodes of a few bars, many of them cut, some ruined."""
    return EnvSettings(
        reward="tests.engines.oracle_mdp:bellman_reward",
        episode_bars=episode_bars,
        ruin_fraction=RUIN,
        cost_bps=0.0,
    )


def oracle_market(num_assets: int = 2) -> MarketTensors:
    """So volatile that ruin happens."""
    market = make_market(120, num_assets, gaps=False, volatility=0.15)
    return replace(market, features=torch.zeros_like(market.features))
