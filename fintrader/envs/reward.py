"""Rewards of one decision, from the equity before and after the interval, absolute or relative to
the benchmark's return over the same bars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fintrader.config import load_object
from fintrader.envs.money import EQUITY_FLOOR
from fintrader.envs.settings import SHARPE_DECAY, SHARPE_PRIOR_VOLATILITY, EnvSettings
from fintrader.errors import OWN_FAILURES, ConfigError, EnvError


class Outcome(NamedTuple):
    """The inputs of a reward; every tensor is `[B]` float64 in USD unless noted."""

    equity_before: Tensor
    """V[t], at the decision."""
    equity: Tensor
    """V[t + k], at the end of the interval."""
    peak_before: Tensor
    """Highest equity of the episode up to the decision."""
    peak: Tensor
    """Highest equity of the episode up to now."""
    first_equity: Tensor
    """Equity at the episode's start."""
    cost: Tensor
    """Paid in the interval: fees, spread, impact and interest."""
    turnover: Tensor
    """Notional traded in the interval."""
    memory: Tensor
    """`[B, 2]`: moving first and second moment of the step returns, or of active ones."""
    benchmark: Tensor
    """r_b: the log return of the benchmark portfolio (`env.benchmark`) from the decision to the end
    of the interval, before costs; 0 for cash."""


Reward = Callable[[Outcome], Tensor]


def step_return(outcome: Outcome) -> Tensor:
    """r = ln(V[t+k] / V[t]), the loss of a ruined account bounded by `EQUITY_FLOOR`."""
    floor = EQUITY_FLOOR * outcome.first_equity
    return torch.log(
        torch.maximum(outcome.equity, floor) / torch.maximum(outcome.equity_before, floor)
    )


def profit(outcome: Outcome) -> Tensor:
    """(V[t+k] - V[t]) / V[0]: USD won, in units of the episode's first equity."""
    return (outcome.equity - outcome.equity_before) / outcome.first_equity


def active_return(outcome: Outcome) -> Tensor:
    """r - r_b: the return beyond the benchmark's."""
    return step_return(outcome) - outcome.benchmark


def mean_variance(r: Tensor, risk_aversion: float) -> Tensor:
    """r - lambda/2 r^2: the step's share of mean - lambda/2 * variance (steps' squared means are
    negligible)."""
    return r - 0.5 * risk_aversion * r * r


def drawdown(outcome: Outcome, penalty: float) -> Tensor:
    """r - lambda * max(0, d[t+k] - d[t]) with the drawdown's depth d = 1 - V / peak."""
    depth_before = 1.0 - outcome.equity_before / outcome.peak_before
    depth = 1.0 - outcome.equity / outcome.peak
    return step_return(outcome) - penalty * torch.relu(depth - depth_before)


def differential_sharpe(r: Tensor, memory: Tensor) -> Tensor:
    """D = (B dA - A dB / 2) / (B - A^2)^(3/2), Moody and Saffell (2001), "Learning to trade via
    direct reinforcement", eq. 14, with dA = r - A, dB = r^2 - B. The variance has a floor of 1 % of
    the prior's."""
    a, b = memory.unbind(1)
    variance = torch.clamp(b - a * a, min=(0.1 * SHARPE_PRIOR_VOLATILITY) ** 2)
    return (b * (r - a) - 0.5 * a * (r * r - b)) / variance.pow(1.5)


REMEMBERING = ("differential_sharpe", "differential_information_ratio")
"""Rewards that need the moments of the returns so far."""


def update_memory(outcome: Outcome, settings: EnvSettings) -> Tensor:
    """Update the moments `[B, 2]` of the reward's returns: A += eta (r - A), B += eta (r^2 - B)."""
    r = step_return(outcome) if settings.reward == "differential_sharpe" else active_return(outcome)
    return outcome.memory + SHARPE_DECAY * (torch.stack((r, r * r), dim=1) - outcome.memory)


def make_reward(settings: EnvSettings) -> Reward:
    """Make the reward that the settings name, without its scale. Raises ConfigError for a callable
    that cannot be imported."""
    aversion = settings.risk_aversion
    built_in: dict[str, Reward] = {
        "profit": profit,
        "log_return": step_return,
        "mean_variance": lambda outcome: mean_variance(step_return(outcome), aversion),
        "drawdown": lambda outcome: drawdown(outcome, aversion),
        "differential_sharpe": lambda outcome: differential_sharpe(
            step_return(outcome), outcome.memory
        ),
        "active_return": active_return,
        "active_mean_variance": lambda outcome: mean_variance(active_return(outcome), aversion),
        "differential_information_ratio": lambda outcome: differential_sharpe(
            active_return(outcome), outcome.memory
        ),
    }
    if settings.reward in built_in:
        return built_in[settings.reward]
    custom = load_object(settings.reward)
    if not callable(custom):
        raise ConfigError(
            f"env.reward: {settings.reward!r} is no callable; name a function Outcome -> Tensor [B]"
        )
    return lambda outcome: _ask_own(custom, settings.reward, outcome)


def _ask_own(custom: Callable[[Outcome], Any], name: str, outcome: Outcome) -> Tensor:
    """Ask a user's own reward for `[B]` float64; a single number counts for all accounts. Raises
    EnvError for anything else."""
    like = outcome.equity
    cause: Exception | None = None
    try:
        result = custom(Outcome(*(value.clone() for value in outcome)))  # it may write to them
        value = (
            result
            if isinstance(result, Tensor)
            else torch.as_tensor(np.array(result).astype(float))
        )
        problem = f"it gave {type(result).__name__} of shape {[*value.shape]}"
        if like.requires_grad > value.requires_grad:
            problem += " without a gradient (use torch for all of it)"
        elif result is not None and value.shape in (like.shape, torch.Size()):
            return value.to(like).expand(like.shape)
    except OWN_FAILURES as error:
        cause = error
        problem = f"{type(error).__name__}: {error}"
    raise EnvError(
        f"reward {name}: {problem}; it gets an Outcome of tensors [B]"
        f" ({', '.join(Outcome._fields)}) and returns one number an account, {[*like.shape]}"
    ) from cause
