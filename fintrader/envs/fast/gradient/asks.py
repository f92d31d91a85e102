"""What an action asks for, and the way back to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.fast.buffers import MARK, Prices, Rules
from fintrader.envs.fast.ledger import plus
from fintrader.envs.money import USD_GRID

compiled = njit(error_model="numpy", nogil=True, cache=True, _nrt=False)
"""Without counts of who holds an array: they are atomic, and to pass `Prices` on costs more than
its sums."""
inlined = njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
_UNIT = 1.0 / USD_GRID


@inlined
def above(a: float, b: float) -> float:
    """The slope of max(a, b) in a, and of min(a, b) in b."""
    return 1.0 if a > b else (0.5 if a == b else 0.0)


@inlined
def sign(x: float) -> float:
    return 1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0)


@inlined
def _target_gap(
    weight: float, unit: float, band: float, price: float, held: float
) -> tuple[float, bool]:
    """Shares between what is held and what a weight asks for, and whether that is too little for an
    order."""
    target = weight * unit / (price if price > 0.0 else 1.0)
    target = target if price > 0.0 else 0.0
    gap = target - held
    return gap, (abs(gap) * price <= band) & (target != 0.0)


@inlined
def _step_towards(gap: float, pace: float, whole: bool) -> float:
    """`envs.account.step_towards`."""
    step = pace * gap
    if whole:
        step = np.trunc(step)
        step = step if step != 0.0 else min(max(np.trunc(gap), -1.0), 1.0)
    return step


@inlined
def _ask_targets(
    action: Any,
    b: int,
    unit: float,
    band: float,
    bar: int,
    shares: Any,
    prices: Prices,
    rules: Rules,
    want: Any,
) -> None:
    lowest = -1.0 if rules.short else 0.0
    floor = -np.inf if rules.short else 0.0
    pace = rules.pace
    whole = rules.whole
    for n in range(action.shape[1]):
        price = np.float64(prices.quotes[bar, MARK, n]) * _UNIT
        held = shares[b, n]
        gap, still = _target_gap(min(max(action[b, n], lowest), 1.0), unit, band, price, held)
        step = _step_towards(gap, pace, whole)
        want[n] = max(held + (0.0 if still else step), floor)


@inlined
def _ask_targets_back(
    action: Any,
    b: int,
    value: float,
    unit: float,
    gross: float,
    bar: int,
    shares: Any,
    prices: Prices,
    rules: Rules,
    g_want: Any,
    g_shares: Any,
    g_action: Any,
) -> float:
    lowest = -1.0 if rules.short else 0.0
    short = rules.short
    pace = rules.pace
    whole = rules.whole
    band = rules.band * value
    g_unit = 0.0
    for n in range(action.shape[1]):
        weight = min(max(action[b, n], lowest), 1.0)
        held = shares[b, n]
        price = np.float64(prices.quotes[bar, MARK, n]) * _UNIT
        gap, still = _target_gap(weight, unit, band, price, held)
        asks = (not (still | whole)) & (price > 0.0) & (short | (held + pace * gap > 0.0))
        g_values = (g_want[n] * pace if asks else 0.0) / (price if price > 0.0 else 1.0)
        g_unit = plus(g_unit, g_values * weight)
        g_action[b, n] = g_values * unit
    for n in range(action.shape[1]):
        weight = min(max(action[b, n], lowest), 1.0)
        held = shares[b, n]
        price = np.float64(prices.quotes[bar, MARK, n]) * _UNIT
        gap, still = _target_gap(weight, unit, band, price, held)
        step = _step_towards(gap, pace, whole)
        lives = short | (held + (0.0 if still else step) > 0.0)
        g_stays = g_want[n] if still | whole else g_want[n] * (1.0 - pace)
        g_shares[n] += g_stays if lives else 0.0
    over = max(gross, 1.0)
    g_gross = -g_unit * value / (over * over) / rules.leverage if gross >= 1.0 else 0.0
    for n in range(action.shape[1]):
        a = action[b, n]
        inside = (a <= 1.0) & ((a >= -1.0) if short else (a > 0.0))
        slope = g_action[b, n] + sign(a) * g_gross
        g_action[b, n] = slope if inside else 0.0
    return g_unit / over if value > 0.0 else 0.0


@inlined
def _ordered(a: float, dead_band: float, most: float, single: bool, whole: bool) -> float:
    """Shares that an action orders; `single`: in float32, as the action is."""
    a = min(max(a, -1.0), 1.0)
    size = a * most
    size = np.float64(np.float32(size)) if single else size
    size = np.trunc(size) if whole else size
    return size if abs(a) > dead_band else 0.0


@inlined
def _exactly(value: float, single: bool) -> float:
    """A setting as it meets actions: in float32 with float32 ones."""
    return np.float64(np.float32(value)) if single else value


@inlined
def _ask_trades(action: Any, b: int, single: bool, shares: Any, rules: Rules, want: Any) -> None:
    dead_band = _exactly(rules.dead_band, single)
    most = _exactly(rules.max_shares, single)
    floor = -np.inf if rules.short else 0.0
    whole = rules.whole
    for n in range(action.shape[1]):
        want[n] = max(shares[b, n] + _ordered(action[b, n], dead_band, most, single, whole), floor)


@inlined
def _ask_trades_back(
    action: Any,
    b: int,
    single: bool,
    shares: Any,
    rules: Rules,
    g_want: Any,
    g_shares: Any,
    g_action: Any,
) -> None:
    dead_band = _exactly(rules.dead_band, single)
    most = _exactly(rules.max_shares, single)
    short = rules.short
    whole = rules.whole
    for n in range(action.shape[1]):
        lives = short | (
            shares[b, n] + _ordered(action[b, n], dead_band, most, single, whole) > 0.0
        )
        g_want[n] = g_want[n] if lives else 0.0
    for n in range(action.shape[1]):
        size = abs(action[b, n])
        asks = (size > dead_band) & (size <= 1.0) & (not whole)
        g_action[b, n] = g_want[n] * most if asks else 0.0
    for n in range(action.shape[1]):
        g_shares[n] += g_want[n]


@inlined
def ask(
    action: Any,
    b: int,
    single: bool,
    bar: int,
    value: float,
    shares: Any,
    prices: Prices,
    rules: Rules,
    want: Any,
) -> tuple[float, float]:
    """Write to `want [N]` what the action asks for; returns USD that a weight of 1 asks for, and
    the sum of the weights over the leverage."""
    lowest = -1.0 if rules.short else 0.0
    gross = 0.0
    for n in range(action.shape[1]):
        gross = plus(gross, abs(min(max(action[b, n], lowest), 1.0)))
    gross = gross / rules.leverage
    unit = value / max(gross, 1.0)
    if prices.risk_off[bar]:
        for n in range(action.shape[1]):
            want[n] = 0.0
    elif rules.target:
        _ask_targets(action, b, unit, rules.band * value, bar, shares, prices, rules, want)
    else:
        _ask_trades(action, b, single, shares, rules, want)
    return unit, gross


@inlined
def ask_back(
    action: Any,
    b: int,
    single: bool,
    bar: int,
    value: float,
    unit: float,
    gross: float,
    shares: Any,
    prices: Prices,
    rules: Rules,
    g_want: Any,
    g_shares: Any,
    g_action: Any,
) -> float:
    """Write `g_action[b]`, add to `g_shares [N]`; returns the slope in the account's equity."""
    if prices.risk_off[bar]:
        for n in range(action.shape[1]):
            g_action[b, n] = 0.0
        return 0.0
    if rules.target:
        g_equity: float = _ask_targets_back(
            action, b, value, unit, gross, bar, shares, prices, rules, g_want, g_shares, g_action
        )
        return g_equity
    _ask_trades_back(action, b, single, shares, rules, g_want, g_shares, g_action)
    return 0.0
