"""The parent orders of `executor.py`: minutes as a market of one symbol, each of whose sessions is
the life of one order; the agent's environment, and the rules that it is compared with."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.execution.executor import size_part
from fintrader.market.tensors import MarketTensors

Array = np.ndarray[Any, Any]
DAY = 390
"""Minutes of a session."""
HORIZON = 60
"""Minutes in which an order is worked: H."""
WARM = 30
"""First minutes of a day in which no order arrives."""
MEMORY = 5
"""Days before, from which volume and volatility are expected."""
COMMISSION_BPS, IMPACT_BPS = 0.3, 15.0
SHARES = 10_000.0
"""Shares of a parent order, in units of its own (see `Orders.market`)."""
SIZE = 0.05
"""Size of an order as a share of the volume that is expected in its horizon."""
TICK_USD = 0.01
"""As traded, before later splits."""
CROSSING_BPS = -20.0
"""An order so far beyond the close takes the next open; no order lies farther on the other side."""
FEATURES = (
    *("return_1", "return_5", "since_arrival", "place_in_bar", "signed_volume"),
    *("volume", "range", "expected_volume", "minute", "volatility", "tick"),
)
SIGNED = 5
"""The first features change sign for a purchase."""


@dataclass(frozen=True, eq=False)
class Orders:
    """K parent orders, with the minutes of their lives and the 15 before."""

    name: Array
    """`[K]` str."""
    day: Array
    """`[K]` datetime64."""
    prices: Array
    """`[K, H + 1, 4]` open, high, low, close, USD; row 0 is the minute at whose close the order
    arrives."""
    volume: Array
    """`[K, H + 1]` shares."""
    expected: Array
    """`[K, H + 1]` shares that traded in these minutes in the days before, a mean."""
    tick: Array
    """`[K]` smallest step of a price, USD."""
    features: Array
    """`[K, H + 1, F]` float32, of a sale."""

    def __len__(self) -> int:
        return len(self.name)

    def select(self, chosen: Array) -> Orders:
        """Select orders by a mask `[K]`."""
        return Orders(**{name: values[chosen] for name, values in vars(self).items()})

    @property
    def days(self) -> Array:
        return np.unique(self.day)

    def market(self, *, purchases: bool, sales: bool = True, ticks: float) -> MarketTensors:
        """Lay the orders out one after another as sessions of one symbol: as sales, as purchases,
        or all of them as both.

        The price at arrival is 100, and volumes are counted so that an order has `SHARES`. A
        purchase is a sale at mirrored prices, 200 - p: the same shortfall. Highs and lows are
        `ticks` nearer, so that a limit order fills only where the market trades so far
        beyond its price.
        """
        arrival = self.prices[:, :1, 3:]
        margin = ticks * self.tick[:, None] * 100.0 / arrival[..., 0]
        opened, high, low, close = np.moveaxis(self.prices * (100.0 / arrival), 2, 0)
        unit = SHARES / (SIZE * self.expected[:, 1:].sum(1, keepdims=True))
        sign = np.where(np.arange(len(FEATURES)) < SIGNED, -1, 1).astype(np.float32)
        sides = [(opened, high - margin, low + margin, close, self.features)] * sales
        if purchases:
            mirrored = (200 - opened, 200 - low - margin, 200 - high + margin, 200 - close)
            sides.append((*mirrored, self.features * sign))
        *bars, features = (np.concatenate(parts) for parts in zip(*sides, strict=True))
        count = bars[0].size
        number = torch.arange(count)

        def column(values: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).reshape(-1, 1)

        volume = column(np.tile(self.volume * unit, (len(sides), 1)))
        names = ("open", "high", "low", "close")
        return MarketTensors(
            **dict(zip(names, map(column, bars), strict=True)),
            volume=volume,
            features=torch.from_numpy(features).reshape(count, 1, -1),
            context=torch.zeros(count, 0),
            tradable=volume > 0,
            member=torch.ones(count, 1, dtype=torch.bool),
            session=number // (HORIZON + 1),
            minutes=number * 60_000_000_000,
            benchmark=torch.ones(count, dtype=torch.float64),
            symbols=("ORDER",),
            feature_names=FEATURES,
            trusted=True,  # a high less its margin may lie below the close
        )


def read_orders(path: Path) -> Orders:
    """Read a file of minutes and draw its orders; see `draw_orders`."""
    return draw_orders(pd.read_parquet(path))


def draw_orders(table: pd.DataFrame) -> Orders:
    """Draw an order for each name and whole day that has whole minutes before it. `table` has
    `ts` (New York), `ticker`, prices and `volume`, and `split_factor` where prices are adjusted."""
    moment = table["ts"].dt
    table = table.assign(
        day=moment.tz_localize(None).dt.normalize(),
        minute=moment.hour * 60 + moment.minute - 570,
        tick=TICK_USD / table["split_factor"] if "split_factor" in table else TICK_USD,
    )
    last = table.groupby("day")["minute"].max()
    whole = last.index[last == DAY - 1]
    parts = [
        part
        for name, rows in table.groupby("ticker", sort=True)
        for part in _draw(str(name), rows, whole.to_numpy())
    ]
    return Orders(
        **{name: np.stack([part[name] for part in parts]) for name in Orders.__annotations__}
    )


def _draw(name: str, rows: pd.DataFrame, whole: Array) -> Iterator[Mapping[str, Any]]:
    """Draw the orders of one name."""
    days, number = np.unique(rows["day"].to_numpy(), return_inverse=True)
    grid = np.full((len(days), DAY, 5), np.nan)
    columns = ["open", "high", "low", "close", "volume"]
    grid[number, rows["minute"].to_numpy()] = rows[columns].to_numpy(np.float64)
    traded = ~np.isnan(grid[..., 3])
    tick = rows.groupby(number)["tick"].first().to_numpy()
    close = pd.DataFrame(grid[..., 3].T).ffill().bfill().to_numpy().T
    bars = np.where(traded[..., None], grid[..., :4], close[..., None])
    volume = np.where(traded, grid[..., 4], 0.0)
    steps = np.diff(np.log(close), axis=1)
    for k in range(MEMORY, len(days)):
        before = slice(k - MEMORY, k)
        random = np.random.default_rng([zlib.crc32(name.encode()), k])
        first = int(random.integers(WARM, DAY - 1 - HORIZON))
        known = (*traded[before].ravel(), *traded[k, : first + 1])
        # Half days have no order, nor have thin names and those that were halted before.
        if days[k] not in whole or np.mean(known) < 0.95:
            continue
        life = slice(first, first + HORIZON + 1)
        expected = volume[before].mean(0)
        smooth = np.convolve(np.pad(expected, 15, mode="edge"), np.ones(31) / 31, mode="valid")
        deviation = max(float(np.sqrt(np.mean(steps[before] ** 2))), 1e-6)
        yield {
            "name": name,
            "day": days[k],
            "prices": bars[k, life],
            "volume": volume[k, life],
            "expected": smooth[life],
            "tick": tick[k],
            "features": describe(bars[k], volume[k], smooth, deviation, first, tick[k]),
        }


def describe(
    bars: Array, volume: Array, expected: Array, deviation: float, first: int, tick: float
) -> Array:
    """Describe each minute `[H + 1, F]` of an order's life from `bars [390, 4]` and `volume [390]`
    up to it, the volume expected and a minute's deviation."""
    high, low, close = bars.T[1:]
    log = np.log(close)
    flow = np.sign(np.diff(log, prepend=log[:1])) * volume
    spread = np.maximum(high - low, 1e-9)

    def total(values: Array) -> Array:
        return np.convolve(values, np.ones(5))[:DAY]

    past = np.arange(DAY) - first
    minute = np.arange(DAY) / DAY
    columns = (
        np.diff(log, prepend=log[:1]) / deviation,
        (log - np.concatenate([np.repeat(log[:1], 5), log[:-5]])) / (deviation * math.sqrt(5)),
        (log - log[first]) / (deviation * np.sqrt(np.maximum(past, 1))),
        (2 * close - high - low) / spread,
        total(flow) / np.maximum(total(volume), 1.0),
        np.log((volume + 1.0) / (expected + 1.0)),
        np.log(spread / close / deviation),
        np.log((np.roll(expected, -1) + 1.0) / (expected.mean() + 1.0)),
        2 * minute - 1,
        np.full(DAY, math.log(deviation / 5e-4)),
        np.log(tick / close / 1e-4) / 2,
    )
    life = slice(first, first + HORIZON + 1)
    return np.stack([np.clip(one[life], -4, 4) for one in columns], axis=1).astype(np.float32)


def make_settings(half_spread_bps: float) -> EnvSettings:
    """Settings of an account that begins with the order's shares and has an hour to sell them."""
    return EnvSettings(
        action="limit",
        fractional=True,
        initial_cash_usd=1.0,
        initial_shares=SHARES,
        close_at_end=True,
        start="session",
        limit_offset_bps=-CROSSING_BPS,
        participation=0.1,
        cost_bps=COMMISSION_BPS,
        half_spread_bps=half_spread_bps,
        impact_bps=IMPACT_BPS,
        benchmark="cash",
        reward="profit",
        reward_scale=1000.0,
    )


FORMS = {"market": (CROSSING_BPS, 1.0), "limit": (1.0, 10.0)}
"""Form of an agent -> its price where an action is 0, and what an action of 1 adds, bps beyond the
close."""


def place(actions: Tensor, env: TradingEnv, form: str) -> Tensor:
    """Turn an agent's actions `[B, 2]` into the environment's: deviations from TWAP into a target
    weight and a price. The first is the logarithm of a factor on TWAP's quantity."""
    account = env.account
    held = account.shares[:, 0]
    left = (account.end_bar - account.bar).clamp_min(1)
    sold = SHARES * size_part(actions[:, 0].double(), held / SHARES, left, HORIZON)
    worth = (held - sold).clamp_min(0.0) * env.market.close[account.bar, 0].double()
    first, step = FORMS[form]
    price = (first + step * actions[:, 1]) / -CROSSING_BPS
    return torch.stack([(worth / account.equity).float(), price], dim=1)


class ExecutorEnv(TradingEnv):
    """`TradingEnv` with the actions of `place`.

    The price changes of the shares that TWAP would hold are taken off the rewards. No action
    changes them, and they are most of the rewards' variance.
    """

    form = "market"

    def step(self, actions: Any) -> Any:
        account = self.account
        close = self.market.close[:, 0].double()
        after = (account.bar + 1).clamp(max=len(close) - 1)
        left = (account.end_bar - account.bar - 1).clamp_min(0)
        common = left / HORIZON * (close[after] - close[account.bar]) / 100.0
        obs, reward, *ends = super().step(place(actions, self, self.form))
        return obs, reward - (common * self.settings.reward_scale).to(reward.dtype), *ends


class LimitExecutorEnv(ExecutorEnv):
    """`ExecutorEnv` whose orders may rest."""

    form = "limit"


Policy = Callable[[Tensor, TradingEnv], Tensor]


@torch.no_grad()
def measure_shortfall(
    orders: Orders, policy: Policy, half_spread_bps: float, ticks: float
) -> Array:
    """Work every order on both sides; its mean implementation shortfall `[K]` in basis points of
    the value at arrival, costs included."""
    both = np.zeros(len(orders))
    for purchases in (False, True):
        market = orders.market(purchases=purchases, sales=not purchases, ticks=ticks)
        settings = make_settings(half_spread_bps)
        env = TradingEnv(market, settings, num_envs=len(orders), seed=1, reward_scale=1.0)
        obs, _ = env.reset(options={"start": torch.arange(len(orders)) * (HORIZON + 1)})
        earned = torch.zeros(len(orders), dtype=torch.float64)
        for _ in range(HORIZON):
            obs, reward, *_ = env.step(policy(obs, env))
            earned += reward.double()
        both -= 0.5e4 * earned.numpy()
    return both


def follow(plan: Array, offset_bps: float | None = None, patience: int = 0) -> Policy:
    """Follow a schedule: `plan` `[H + 1]` or `[K, H + 1]` is the part that is left after each
    minute. Orders take the next open; with `offset_bps` they rest so far beyond the last close,
    and take the next open for what is `patience` minutes behind the schedule."""
    left = torch.from_numpy(np.ascontiguousarray(plan))

    def act(obs: Tensor, env: TradingEnv) -> Tensor:
        account = env.account
        held = account.shares[:, 0]
        step = int(account.bar[0] - account.start_bar[0]) + 1
        goal = SHARES * left[..., step]
        price = torch.full_like(held, -1.0)
        if offset_bps is not None and step < HORIZON:
            late = SHARES * left[..., max(step - patience, 0)]
            is_late = held > late + 1e-6
            goal = torch.where(is_late, late, goal)
            price = torch.where(is_late, -1.0, offset_bps / -CROSSING_BPS)
        worth = torch.minimum(goal, held) * env.market.close[account.bar, 0].double()
        return torch.stack([worth / account.equity, price], dim=1).float()

    return act


def plan_evenly() -> Array:
    """TWAP."""
    return 1.0 - np.arange(HORIZON + 1) / HORIZON


def plan_by_volume(orders: Orders) -> Array:
    """VWAP by the volume of the days before."""
    done = orders.expected.copy()
    done[:, 0] = 0.0
    done = done.cumsum(1)
    return 1.0 - done / done[:, -1:]


def plan_almgren_chriss(urgency: float) -> Array:
    """Almgren and Chriss's schedule; `urgency` is kappa times the horizon, 0 for an even one."""
    if urgency == 0.0:
        return plan_evenly()
    ahead = 1.0 - np.arange(HORIZON + 1) / HORIZON
    return np.sinh(urgency * ahead) / math.sinh(urgency)


OFFSETS = (0.5, 1.0, 2.0, 3.0, 5.0)
PATIENCE = (2, 5, 15, 30, 59)
URGENCIES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def list_rules(orders: Orders) -> dict[str, dict[str, Policy]]:
    """List the rules: name -> parameter -> policy. Those with several are tuned on the training
    orders."""
    by_volume = plan_by_volume(orders)
    at_once = np.zeros(HORIZON + 1)
    return {
        "next open": {"": follow(at_once)},
        "TWAP": {"": follow(plan_evenly())},
        "VWAP": {"": follow(by_volume)},
        "Almgren-Chriss": {
            f"urgency {urgency:g}": follow(plan_almgren_chriss(urgency)) for urgency in URGENCIES
        },
        "limit": {
            f"{offset:g} bps for {patience} min": follow(plan_evenly(), offset, patience)
            for offset in OFFSETS
            for patience in PATIENCE
        },
    }
