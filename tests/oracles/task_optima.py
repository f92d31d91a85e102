"""The best results of the tasks in `configs/tasks/`, by backward induction on the environment's own
rules: slow, obvious, and sharing no code with it.

Growth of an account's equity is followed exactly; only an order's share of the volume is taken at
the first price and equity (`Market.shares_of_volume`), which moves little in a task's horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.ndimage import map_coordinates
from scipy.special import ndtr

Array = np.ndarray[Any, np.dtype[np.float64]]
Utility = Callable[[Array], Array]
"""Log growth of equity in one decision -> its reward."""
Rule = Callable[..., Array]
"""Number of the decision, weights held and each signal, which broadcast against each other ->
weights to hold."""


def mean_variance(risk_aversion: float) -> Utility:
    """The environment's reward of this name."""
    return lambda r: r - 0.5 * risk_aversion * r * r


def log_return(r: Array) -> Array:
    return r


@dataclass(frozen=True)
class Signal:
    """A normal AR(1) process of variance 1 that adds `bps` a unit to the next bar's return."""

    half_life: float
    bps: float

    @property
    def decay(self) -> float:
        return float(0.5 ** (1.0 / self.half_life))


@dataclass(frozen=True)
class Market:
    """One asset, whose bars are independent and lognormal, and the costs of trading it."""

    volatility_bps: float
    drift_bps: float = 0.0
    cost_bps: float = 0.0
    impact_bps: float = 0.0
    shares_of_volume: float = 0.0
    """Order for all of the equity, as a share of a bar's volume, at the first price."""
    quadratic: float = 0.0
    """Cost in units of equity of a change of the weight by 1, which grows with its square: for
    closed forms only; the environment has no such cost."""
    signals: Sequence[Signal] = ()

    def cost(self, change: Array) -> Array:
        """Cost of changes of the weight, as a share of equity."""
        size = np.abs(change)
        impact = 1e-4 * self.impact_bps * np.sqrt(np.minimum(size * self.shares_of_volume, 1.0))
        return (1e-4 * self.cost_bps + impact) * size + self.quadratic * size**2


@dataclass(frozen=True)
class Task:
    """Decisions on the weight of one asset, `horizon` times."""

    market: Market
    horizon: int
    utility: Utility
    weights: Array
    """Grid of the weights held and of those to hold."""
    levels: Array = field(default_factory=lambda: np.linspace(-3.0, 3.0, 15))
    """Grid of each signal."""
    close_at_end: bool = False
    nodes: int = 9
    """Number of points that stand for a bar's return."""

    def normal(self, count: int) -> tuple[Array, Array]:
        """Points and probabilities of a standard normal variable (Gauss and Hermite)."""
        points, weights = np.polynomial.hermite_e.hermegauss(count)
        return points, weights / weights.sum()


@dataclass(frozen=True)
class Plan:
    """The values of a task and the weights to hold, both `[H, W, S, ...]`: by decision, by the weight
    held and by the signals."""

    value: Array
    goal: Array


def solve(task: Task) -> Plan:
    """Find the best weights by backward induction."""
    return _induce(task, None)


def evaluate(task: Task, rule: Rule) -> Plan:
    """Value a rule."""
    return _induce(task, rule)


def _induce(task: Task, rule: Rule | None) -> Plan:
    market = task.market
    count = len(market.signals)
    shape = (len(task.weights), *[len(task.levels)] * count)
    # Axes: the weight held, the weight to hold, the signals.
    start = task.weights.reshape(-1, *[1] * (1 + count))
    options = task.weights.reshape(1, -1, *[1] * count)
    levels = [
        task.levels.reshape([-1 if k == axis else 1 for k in range(count)]) for axis in range(count)
    ]
    expected = 1e-4 * market.drift_bps + sum(
        (1e-4 * signal.bps * level for signal, level in zip(market.signals, levels, strict=True)),
        np.zeros(shape[1:]),
    )
    scale = 1e-4 * market.volatility_bps
    value = np.zeros(shape)
    values = []
    goals = []
    for step in reversed(range(task.horizon)):
        later = _expect_signals(task, value)
        goal = options
        if rule is not None:
            goal = np.broadcast_to(rule(step, start[:, 0], *levels), shape)[:, None]
        paid = market.cost(goal - start)
        worth = np.zeros(np.broadcast_shapes(paid.shape, (1, 1, *shape[1:])))
        for point, weight in zip(*task.normal(task.nodes), strict=True):
            grown = goal * np.exp(expected + scale * point - scale**2 / 2)
            equity = 1.0 - paid - goal + grown
            if task.close_at_end and step == task.horizon - 1:
                equity = equity - market.cost(grown)
            reached = np.broadcast_to(grown / equity, worth.shape)
            worth += weight * (task.utility(np.log(equity)) + _look_up(task, later, reached))
        best = worth.argmax(axis=1)
        value = worth.max(axis=1)
        values.append(value)
        goals.append(task.weights[best] if rule is None else goal[:, 0])
    return Plan(np.array(values[::-1]), np.array(goals[::-1]))


def _expect_signals(task: Task, value: Array) -> Array:
    """The expectation `[W, S, ...]` of the next value over the signals' next levels."""
    for axis, signal in enumerate(task.market.signals, 1):
        # Values curve in the signals, and straight lines between levels would add up to far more.
        curve = CubicSpline(task.levels, value, axis)
        total = np.zeros_like(value)
        for point, weight in zip(*task.normal(7), strict=True):
            after = signal.decay * task.levels + np.sqrt(1.0 - signal.decay**2) * point
            total += weight * curve(np.clip(after, task.levels[0], task.levels[-1]))
        value = total
    return value


def _look_up(task: Task, value: Array, weight: Array) -> Array:
    """Interpolate `value` `[W, S, ...]` at weights `[..., S, ...]`."""
    step = task.weights[1] - task.weights[0]
    place = np.clip((weight - task.weights[0]) / step, 0, len(task.weights) - 1)
    signals = np.indices(value.shape[1:])
    others = [np.broadcast_to(index, place.shape) for index in signals]
    return map_coordinates(value, [place, *others], order=1, mode="nearest")


# --- quotes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quoting:
    """A market maker's task: a bid and an ask of one size at each bar's close."""

    bars: Array
    """`[M, 3]`: low, high and close of sample bars over their open, less 1."""
    size: float
    """Notional of an order as a share of the first equity."""
    horizon: int
    risk_aversion: float
    distances: Array
    """Grid of both distances from the close, as shares of it."""
    most: int
    """Largest inventory that is followed, in orders."""
    cost_bps: float = 0.0
    at_open_bps: float = 0.0
    """Half-spread of an order that fills at the bar's open: one at distance 0."""


@dataclass(frozen=True)
class QuotePlan:
    """Values `[H, 2 Q + 1]`, and distances of bid and ask `[H, 2 Q + 1, 2]`, by decision and
    inventory."""

    value: Array
    distance: Array


def solve_quotes(task: Quoting, fixed: Array | None = None) -> QuotePlan:
    """Find the best distances, or value `fixed` ones `[2 Q + 1, 2]` (numbers of the grid)."""
    low, high, close = task.bars.T
    inventory = np.arange(-task.most, task.most + 1)
    count = len(task.distances)
    # Of each pair of distances and each of its four outcomes: probability, and the moments of the
    # close and of what a unit earns by its fills.
    chance = np.zeros((count, count, 2, 2))
    moved = np.zeros((count, count, 2, 2))
    squared = np.zeros((count, count, 2, 2))
    reach = task.distances[:, None]
    for k, takes in enumerate((low >= -reach, low < -reach)):
        for m, gives in enumerate((high <= reach, high > reach)):
            takes = takes.astype(float)
            chance[:, :, k, m] = takes @ gives.T / len(close)
            moved[:, :, k, m] = (takes * close) @ gives.T / len(close)
            squared[:, :, k, m] = (takes * close**2) @ gives.T / len(close)
    fee = 1e-4 * (task.cost_bps + task.at_open_bps * (task.distances == 0.0))
    gain_bid = (task.distances - fee)[:, None]
    gain_ask = (task.distances - fee)[None, :]
    value = np.zeros(len(inventory))
    values = []
    chosen = []
    for _ in range(task.horizon):
        worth = np.zeros((len(inventory), count, count))
        for k in (0, 1):
            for m in (0, 1):
                after = np.clip(inventory + k - m, -task.most, task.most)
                # r = size (held close + k (close + below - fee) + m (above - fee - close))
                slope = (inventory + k - m)[:, None, None]
                earned = (k * gain_bid + m * gain_ask)[None]
                p = chance[None, :, :, k, m]
                first = task.size * (slope * moved[None, :, :, k, m] + earned * p)
                second = task.size**2 * (
                    slope**2 * squared[None, :, :, k, m]
                    + 2.0 * slope * earned * moved[None, :, :, k, m]
                    + earned**2 * p
                )
                worth += first - 0.5 * task.risk_aversion * second
                worth += p * value[after + task.most][:, None, None]
        flat = worth.reshape(len(inventory), -1)
        best = flat.argmax(1) if fixed is None else fixed[:, 0] * count + fixed[:, 1]
        value = flat[np.arange(len(inventory)), best]
        values.append(value)
        chosen.append(np.stack([task.distances[best // count], task.distances[best % count]], 1))
    return QuotePlan(np.array(values[::-1]), np.array(chosen[::-1]))


def walk_bars(
    count: int, volatility_bps: float, steps: int, wick_bps: float = 0.0, seed: int = 0
) -> Array:
    """Sample bars `[M, 3]` of a geometric walk of `steps` normal steps, whose close is worth its
    open on average, with single trades beyond its extremes: low, high and close over the open, less
    1."""
    rng = np.random.default_rng(seed)
    scale = 1e-4 * volatility_bps
    now = np.zeros(count)
    low = np.zeros(count)
    high = np.zeros(count)
    for _ in range(steps):
        now += scale / np.sqrt(steps) * rng.standard_normal(count) - scale**2 / 2 / steps
        low = np.minimum(low, now)
        high = np.maximum(high, now)
    wick = 1e-4 * wick_bps * rng.standard_exponential((2, count))
    return (
        np.stack([np.exp(low) / (1.0 + wick[0]), np.exp(high) * (1.0 + wick[1]), np.exp(now)], 1)
        - 1.0
    )


# --- the hedge of an option -----------------------------------------------------------------------


@dataclass(frozen=True)
class Hedging:
    """Decisions on the shares held against an option that was sold at price 1; money is in units of
    the first equity, from which equity never moves far."""

    kind: str
    """call, put or straddle, struck at `strike`, on `weight` shares."""
    strike: float
    weight: float
    bars: int
    """Life of the option."""
    horizon: int
    """Decisions, the first at its start."""
    volatility_bps: float
    cost_bps: float
    risk_aversion: float
    shares: Array
    """Grid of the shares held and of those to hold."""
    reach: float = 5.0
    """Prices followed, in standard deviations of the horizon's log return, up and down."""
    count: int = 81
    """Number of prices."""

    @property
    def prices(self) -> Array:
        """Grid `[P]`, even in logarithms."""
        farthest = self.reach * 1e-4 * self.volatility_bps * np.sqrt(self.horizon)
        return np.exp(np.linspace(-farthest, farthest, self.count))

    def value(self, price: Array, left: int) -> Array:
        """Black and Scholes (1973) without interest."""
        call = np.maximum(price - self.strike, 0.0)
        if left > 0:
            up, down = self._normal(price, left)
            call = price * up - self.strike * down
        put = call - price + self.strike
        return self.weight * {"call": call, "put": put, "straddle": call + put}[self.kind]

    def delta(self, price: Array, left: int) -> Array:
        """Slope of the value in the price, `left` > 0 bars before the expiry."""
        call, _ = self._normal(price, left)
        slope = {"call": call, "put": call - 1.0, "straddle": 2.0 * call - 1.0}[self.kind]
        return self.weight * slope

    def _normal(self, price: Array, left: int) -> tuple[Array, Array]:
        deviation = 1e-4 * self.volatility_bps * np.sqrt(left)
        far = np.log(price / self.strike) / deviation
        return ndtr(far + deviation / 2), ndtr(far - deviation / 2)


HedgeRule = Callable[[int, Array, Array], Array]
"""Bars left, price and shares held, which broadcast against each other -> shares to hold."""


@dataclass(frozen=True)
class HedgePlan:
    """Values and shares to hold, `[H, P, Q]`: by decision, price and shares held."""

    value: Array
    goal: Array


def solve_hedge(task: Hedging, rule: HedgeRule | None = None) -> HedgePlan:
    """Find the best shares to hold, or value a rule."""
    prices = task.prices[:, None]
    shares = task.shares[None, :]
    scale = 1e-4 * task.volatility_bps
    points, weights = np.polynomial.hermite_e.hermegauss(64)  # many, for the payoff's kink
    weights = weights / weights.sum()
    places = np.log(task.prices)
    spline = CubicSpline(places, np.eye(task.count))
    # The expectation over a bar, as a matrix over the prices.
    after = [
        weight * spline(np.clip(places + scale * point - scale**2 / 2, places[0], places[-1]))
        for point, weight in zip(points, weights, strict=True)
    ]
    expect = np.sum(after, axis=0)
    value = np.zeros((task.count, shares.size))
    values = []
    goals = []
    for step in reversed(range(task.horizon)):
        left = task.bars - step
        goal = np.broadcast_to(shares if rule is None else rule(left, prices, shares), value.shape)
        # Moments of a bar's log return before costs.
        mean = np.zeros_like(value)
        square = np.zeros_like(value)
        for point, weight in zip(points, weights, strict=True):
            grown = prices * np.exp(scale * point - scale**2 / 2)
            owed = task.value(grown, left - 1) - task.value(prices, left)
            earned = np.log1p(goal * (grown - prices) - owed)
            mean += weight * earned
            square += weight * earned**2
        later = expect @ value
        if rule is None:  # axes: price, shares held, shares to hold
            held = shares[..., None]
            mean, square, later, goal = (part[:, None] for part in (mean, square, later, goal))
            paid = 1e-4 * task.cost_bps * prices[..., None] * np.abs(goal - held)
        else:
            held = shares
            paid = 1e-4 * task.cost_bps * prices * np.abs(goal - held)
            rows = np.broadcast_to(np.arange(task.count)[:, None], goal.shape)
            place = (goal - shares[0, 0]) / (shares[0, 1] - shares[0, 0])
            later = map_coordinates(later, [rows, place], order=1, mode="nearest")
        risk = square - 2.0 * paid * mean + paid**2
        worth = mean - paid - 0.5 * task.risk_aversion * risk + later
        if rule is None:
            best = worth.argmax(axis=2)
            worth = worth.max(axis=2)
            goal = task.shares[best]
        value = worth
        values.append(value)
        goals.append(goal)
    return HedgePlan(np.array(values[::-1]), np.array(goals[::-1]))
