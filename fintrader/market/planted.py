"""The best achievable result of the planted market, and the policy that reaches it.

Every stock has a drift state, up or down, that changes with probability p per bar, independently of
the others. The state seen at the close of bar t governs bar t + 1, whose open is the close of t and
whose noise has mean one. Over a bar a dollar grows in expectation by the factor e^mu in an up
stock, e^-mu in a down stock, and 1 in cash. A dollar spent on shares buys 1 / (1 + c) dollars'
worth; shares worth a dollar sell for 1 - c.

Expected wealth is a sum over dollars, so it suffices to follow one dollar of a long-only account.
This is a Markov decision problem over the dollar's place (cash, an up stock, a down stock) and the
number of other stocks that are up, solved here exactly by backward induction over the number of
bars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fintrader.bars.bars import Array
from fintrader.errors import DataError
from fintrader.market.tensors import MarketTensors
from fintrader.results.market_description import PlantedDrift

NONE = 0
UP = 1
DOWN = 2
_STAY = 0
_CASH = 1
_SWITCH = 2


class SplittingLayout(Protocol):
    """The part of an `ObservationLayout` that the oracle policy reads."""

    def split(self, obs: Tensor) -> Mapping[str, Tensor]:
        """Parts named account, holdings `[B, N]`, features `[B, N, F]`, tradable, context."""


@dataclass(frozen=True)
class PlantedOptimum:
    """The largest expected final wealth over a number of bars."""

    num_bars: int
    cost_bps: float
    expected_multiple: float
    """E[final wealth / initial wealth] of the optimal policy, in cash at the start, marked to
    market at the end."""
    growth_per_bar: float
    """ln(expected_multiple) / num_bars."""


def _find_kernel(others: int, switch: float) -> Array:
    """`[others + 1, others + 1]`: P[m, m'] of m' stocks up in the next bar when m of `others` are
    up now."""
    from scipy.stats import binom  # slow to load

    table = np.zeros((others + 1, others + 1))
    for up in range(others + 1):
        stay = binom.pmf(np.arange(up + 1), up, 1 - switch)
        come = binom.pmf(np.arange(others - up + 1), others - up, switch)
        table[up] = np.convolve(stay, come)
    return table


def _step(
    planted: PlantedDrift, c: float, value: Array, kernel_all: Array, kernel_others: Array
) -> tuple[Array, Array]:
    """One step of backward induction at a cost of `c`: value `[3, N + 1]` of the next bar ->
    (value, best action) at this close.

    value[NONE, m] has m of all N stocks up; value[UP or DOWN, m] has m of the other N - 1 up.
    """
    n = planted.num_assets
    p = planted.switch
    gain = np.exp(1e-4 * planted.drift_bps)
    # worth of a dollar that stays in its stock while m others are up
    after_up = np.full(n + 1, -np.inf)
    after_down = np.full(n + 1, -np.inf)
    after_up[:n] = gain * (kernel_others @ ((1 - p) * value[UP, :n] + p * value[DOWN, :n]))
    after_down[:n] = (kernel_others @ ((1 - p) * value[DOWN, :n] + p * value[UP, :n])) / gain
    after_none = kernel_all @ value[NONE]
    # m of all are up and one of them is bought: m - 1 of the others are up
    buy = np.full(n + 1, -np.inf)
    buy[1:] = after_up[:n] / (1 + c)

    options = np.full((3, 3, n + 1), -np.inf)  # [action, kind, m]
    options[_STAY, NONE] = after_none
    options[_SWITCH, NONE] = buy
    options[_STAY, UP, :n], options[_CASH, UP, :n] = after_up[:n], (1 - c) * after_none[1:]
    options[_STAY, DOWN, :n], options[_CASH, DOWN, :n] = after_down[:n], (1 - c) * after_none[:n]
    options[_SWITCH, DOWN, :n] = (1 - c) * buy[:n]
    action = options.argmax(axis=0)
    best = options.max(axis=0)
    return np.where(np.isfinite(best), best, 0.0), action


def _solve(planted: PlantedDrift, cost_bps: float, num_bars: int) -> tuple[Array, Array]:
    """Compute (value, action) with `num_bars` bars to go."""
    n = planted.num_assets
    value = np.ones((3, n + 1))
    action = np.zeros(value.shape, dtype=np.int64)
    kernels = _find_kernel(n, planted.switch), _find_kernel(n - 1, planted.switch)
    for _ in range(num_bars):
        value, action = _step(planted, 1e-4 * cost_bps, value, *kernels)
    return value, action


def planted_optimum(planted: PlantedDrift | None, cost_bps: float, num_bars: int) -> PlantedOptimum:
    """Compute the largest expected final wealth over `num_bars` bars at a proportional cost per
    trade of `cost_bps`.

    `planted` is the `planted_drift` of a market's provenance. An environment over a window of T
    bars trades T - 1 of them (an order fills one bar after it is decided), so `num_bars` is T - 1
    for a whole window. States start as often up as down. Raises DataError without a planted drift.
    """
    from scipy.stats import binom  # slow to load

    if planted is None:
        raise DataError(
            "only a drift planted in a synthetic market has a known optimum; build one with"
            " data.source.planted"
        )
    if num_bars < 1:
        raise DataError(f"the optimum over {num_bars} bars has no meaning; give at least one")
    value, _ = _solve(planted, cost_bps, num_bars)
    start = binom.pmf(np.arange(planted.num_assets + 1), planted.num_assets, 0.5)
    multiple = float(start @ value[NONE])
    return PlantedOptimum(num_bars, cost_bps, multiple, float(np.log(multiple)) / num_bars)


def oracle_policy(
    market: MarketTensors, layout: SplittingLayout, cost_bps: float, *, horizon: int = 2000
) -> Callable[[Tensor], Tensor]:
    """Build the optimal policy, a function from obs `[B, D]` to target weights `[B, N]` (action
    mode "target").

    The policy reads the planted signal and its holdings from the observation. It keeps up stocks,
    and leaves a stock that turned down for another up stock or for cash if that pays. It decides as
    with `horizon` bars to go; the decision is stationary long before that. Raises DataError when
    the market has no planted signal among its features.
    """
    planted = market.provenance.planted_drift
    if planted is None or planted.feature not in market.feature_names:
        raise DataError(
            "this market has no planted signal; build a synthetic one with data.source.planted"
        )
    column = market.feature_names.index(planted.feature)
    _, action = _solve(planted, cost_bps, horizon)
    table = torch.as_tensor(action)

    def policy(obs: Tensor) -> Tensor:
        parts = layout.split(obs)
        holdings = parts["holdings"]
        up = parts["features"][..., column] > 0
        n = up.shape[1]
        lookup = table.to(obs.device)
        number_up = up.sum(dim=1)
        # a position worth less than a thousandth of the account is what rounding to whole shares
        # left behind
        held = holdings > 1e-3
        others_up = number_up.unsqueeze(1) - up.long()
        kind = torch.where(up, UP, DOWN)
        choice = lookup[kind, others_up]
        keep = torch.where(held & (choice == _STAY), holdings, 0.0)
        # freed money goes into the first up stock that is kept, else into the first up stock
        wants = (held & (choice == _SWITCH)).any(dim=1)
        from_cash = lookup[torch.full_like(number_up, NONE), number_up] == _SWITCH
        order = torch.arange(n, 0, -1, device=obs.device, dtype=holdings.dtype)
        best = torch.where(up, order + n * (keep > 0), -1.0).argmax(dim=1)
        free = (1.0 - keep.sum(dim=1)).clamp(min=0.0)
        buys = (wants | from_cash) & (number_up > 0)
        extra = torch.where(buys, free, 0.0)
        return keep.scatter_add(1, best.unsqueeze(1), extra.unsqueeze(1))

    return policy
