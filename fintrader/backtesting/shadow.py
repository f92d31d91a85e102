"""Decisions under limits: a policy's orders cut to the limits, and a backtest of them.

A deployment and its shadow backtest decide by the same function, so that they differ only by the
market.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fintrader.backtesting.account import BacktestAccount, Float32, Holdings
from fintrader.backtesting.limits import Limits, LimitSettings
from fintrader.backtesting.result import Array, BacktestResult
from fintrader.backtesting.simulation import PolicyStrategy, open_account, trade
from fintrader.envs.benchmark import benchmark_kind, benchmark_weights
from fintrader.envs.money import SPLIT_NUDGE
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import Policy
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress

RECENT_MINUTES = 3
"""Minutes in which members must have had a bar (`LimitSettings.symbols_with_bars`)."""
_DAY_NS = 86_400_000_000_000
"""Nanoseconds of a UTC day, whose number identifies a session."""


@dataclass(frozen=True)
class Decision:
    """A policy's decision at a bar, cut to the limits."""

    orders: Array | None
    """`[N]` signed shares; None if no order is due, or none allowed (`why`)."""
    weights: Array | None = None
    """`[N]`: target weights, after the limits."""
    why: str = ""
    halted: bool = False
    """True if the halt lasts until the deployment is resumed."""
    clipped_by: tuple[str, ...] = ()
    rounded: Array | None = None
    """`[N]`: fractions of shares lost by rounding to whole ones."""


def decide(account: BacktestAccount, action: Float32 | None, limits: Limits) -> Decision:
    """Decide on an account's orders; `action` None: no decision is due, only watch for losses.

    Raises BacktestError for limit orders, which the limits do not know.
    """
    if account.settings.orders_rest:
        raise BacktestError("limits cut market orders; set env.action to target or trade")
    market = account.market
    bar = account.bar
    held = account.held
    price = account.prices
    equity = account.equity
    why = limits.watch(int(market.minutes[bar]) // _DAY_NS, equity)
    if why:
        return Decision(None, why=why, halted=True)
    if action is None:
        return Decision(None)
    session = market.session[: bar + 1]
    opened = int((session != session[bar]).sum())
    recent = max(opened, bar + 1 - -(-RECENT_MINUTES // market.bar_minutes))
    member = market.member[bar].numpy()
    if not limits.has_enough_bars(market.tradable[recent : bar + 1].numpy(), member & (price > 0)):
        return Decision(
            None, why=f"fewer than {limits.settings.symbols_with_bars:.0%} of the members have bars"
        )
    kind = benchmark_kind(market, account.settings.benchmark)
    benchmark = benchmark_weights(market.window(opened, bar + 1), kind)[-1].numpy()
    wanted = account.holdings(action)
    orders = wanted - held
    if limits.whole:
        # A split may leave fractions at a broker, and their difference a rounding error.
        whole = np.rint(orders)
        orders = np.where(np.abs(orders - whole) < SPLIT_NUDGE, whole, orders)
    clipped = limits.clip(orders, held, price, equity, benchmark)
    weights = (held + clipped.orders) * price / max(equity, 1e-9)
    rounded = account.holdings(action, exact=True) - wanted
    return Decision(clipped.orders, weights, clipped_by=clipped.by, rounded=rounded)


def shadow_backtest(
    policy: Policy,
    market: MarketTensors,
    env: EnvSettings,
    settings: LimitSettings,
    *,
    name: str = "twin",
    progress: Progress = SILENT,
) -> tuple[BacktestResult, Limits]:
    """Backtest a policy under a deployment's limits, over recorded bars; return the limits' counts
    too.

    Raises BacktestError for a window of fewer than two bars.
    """
    account = open_account(market, env, name)
    limits = Limits(settings, whole=not env.fractional)
    asked = PolicyStrategy(policy, account, name)

    def step(account: BacktestAccount) -> Holdings | None:
        decision = decide(account, np.asarray(asked(account), np.float32).reshape(-1), limits)
        return None if decision.orders is None else Holdings(account.held + decision.orders)

    return trade(step, account, name=name, progress=progress), limits
