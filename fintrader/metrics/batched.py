"""The metrics of many equity curves at once, in torch: `[T, B]` -> `[B]`, on any device, without a loop over B.

Used where thousands of accounts are scored together. Undefined values are NaN here (a tensor holds no None);
the caller decides what an account without a score means. Same conventions as `performance.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fintrader.metrics.resample import TRADING_DAYS


def session_equity(equity: Tensor, session: Tensor) -> Tensor:
    """`[T, B]`, `[T]` -> `[S, B]`: the last value of each session."""
    last = torch.ones_like(session, dtype=torch.bool)
    last[:-1] = session[1:] != session[:-1]
    return equity[last]


def session_returns(equity: Tensor, session: Tensor, start: Tensor | None = None) -> Tensor:
    """`[T, B]`, `[T]` -> `[S, B]`; the first session against `start` `[B]` (USD), default the first equity."""
    first = (equity[0] if start is None else start).expand_as(equity[0]).unsqueeze(0)
    values = torch.cat([first, session_equity(equity, session)])
    before, after = values[:-1], values[1:]
    safe = torch.where(before != 0, before, torch.ones_like(before))
    return torch.where(before != 0, after / safe - 1, torch.zeros_like(before))


def cumulative_returns(returns: Tensor) -> Tensor:
    """`[S, B]` -> `[B]`."""
    return (1 + returns).prod(dim=0) - 1


def annual_returns(returns: Tensor, periods: float = TRADING_DAYS) -> Tensor:
    """`[S, B]` -> `[B]`."""
    return torch.pow((1 + returns).prod(dim=0), periods / returns.shape[0]) - 1


def annual_volatilities(returns: Tensor, periods: float = TRADING_DAYS) -> Tensor:
    """`[S, B]` -> `[B]`; NaN below two sessions."""
    return _deviation(returns) * math.sqrt(periods)


def sharpes(returns: Tensor, periods: float = TRADING_DAYS) -> Tensor:
    """`[S, B]` -> `[B]`; NaN without dispersion."""
    return _divide(returns.mean(dim=0) * math.sqrt(periods), _deviation(returns))


def sortinos(returns: Tensor, periods: float = TRADING_DAYS) -> Tensor:
    """`[S, B]` -> `[B]`; NaN without a loss."""
    risk = returns.clamp(max=0).square().mean(dim=0).sqrt() * math.sqrt(periods)
    if returns.shape[0] < 2:
        return torch.full_like(risk, math.nan)
    return _divide(returns.mean(dim=0) * periods, risk)


def max_drawdowns(returns: Tensor) -> Tensor:
    """`[S, B]` -> `[B]`, <= 0."""
    wealth = torch.cat([torch.ones_like(returns[:1]), (1 + returns).cumprod(dim=0)])
    peak = wealth.cummax(dim=0).values
    return ((wealth - peak) / peak).amin(dim=0)


def calmars(returns: Tensor, periods: float = TRADING_DAYS) -> Tensor:
    """`[S, B]` -> `[B]`; NaN without a drawdown."""
    return _divide(annual_returns(returns, periods), -max_drawdowns(returns))


def _deviation(returns: Tensor) -> Tensor:
    if returns.shape[0] < 2:
        return torch.full_like(returns[0], math.nan)
    constant = returns.amax(dim=0) == returns.amin(dim=0)
    return torch.where(constant, torch.zeros_like(returns[0]), returns.std(dim=0))


def _divide(above: Tensor, below: Tensor) -> Tensor:
    safe = torch.where(below != 0, below, torch.ones_like(below))
    return torch.where(below != 0, above / safe, torch.full_like(above, math.nan))
