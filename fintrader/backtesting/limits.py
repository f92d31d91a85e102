"""Limits on positions, orders and losses that no policy may exceed.

A deployment and its shadow backtest pass the policy's orders through the same object, so that they
differ only by the market.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat

from fintrader.config import Fraction, Settings
from fintrader.metrics import Array, Flags

Share = Annotated[float, Field(gt=0.0, le=100.0)]


class LimitSettings(Settings):
    """Limits of an account; each may be widened, but only `enforced` switches them off, all
    together."""

    enforced: bool = True
    """False: the policy trades as in its backtest without limits. Accepted with the simulated
    broker only."""
    weight: Share = 0.25
    """Largest weight that an order may lead to, as a share of equity, or the benchmark's weight of
    the symbol if that is larger."""
    gross: Share = 1.0
    """Largest sum of all positions, as a multiple of equity."""
    order: Share = 0.1
    """Largest order, as a share of equity."""
    turnover: Share = 2.0
    """Largest sum of a session's orders, as a multiple of equity."""
    day_loss: Share = 0.03
    """Loss since the session before, as a share of its equity, that halts the deployment."""
    drawdown: Share = 0.10
    """Loss since the highest equity, as a share of it, that halts the deployment."""
    symbols_with_bars: Fraction = 0.8
    """Least share of the members with a bar in the last three minutes; below it nothing is
    ordered."""
    clock_seconds: PositiveFloat = 2.0
    """Largest difference between the machine's clock and the broker's; above it nothing is
    ordered."""


@dataclass(frozen=True)
class Clipped:
    """Orders that may be given, and the limits that cut them."""

    orders: Array
    """`[N]` shares."""
    by: tuple[str, ...]
    """Names of the limits that were binding, in the order of `LimitSettings`."""


@dataclass
class Limits:
    """Limits of one account, with the state that they need."""

    settings: LimitSettings
    whole: bool = True
    """True if only whole shares are traded."""
    halted: str = ""
    """Reason for the halt; empty without one."""
    peak_usd: float = 0.0
    session: int = -1
    opening_usd: float = 0.0
    """Last equity of the session before; in the first session its first equity."""
    last_usd: float = 0.0
    traded_usd: float = 0.0
    """Sum of this session's orders, less the amounts that ended unfilled."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of decisions at which each limit bound."""

    def resume(self) -> None:
        """End a halt; losses count from the present equity on."""
        self.halted = ""
        self.peak_usd = self.opening_usd = self.last_usd

    def scale(self, factor: float) -> None:
        """Change all amounts in step with a deposit or a withdrawal."""
        self.peak_usd *= factor
        self.opening_usd *= factor
        self.last_usd *= factor

    def watch(self, session: int, equity: float) -> str:
        """Record the equity, and return the reason for a halt; empty without one. session: a number
        that identifies the exchange's session, such as its open in ns."""
        if session != self.session:
            self.opening_usd = self.last_usd if self.last_usd > 0.0 else equity
            self.session = session
            self.traded_usd = 0.0
        self.opening_usd = self.opening_usd if self.opening_usd > 0.0 else equity
        self.last_usd = equity
        self.peak_usd = max(self.peak_usd, equity)
        if not self.settings.enforced or self.halted:
            return self.halted
        if equity <= 0.0:
            self.halted = "nothing is left in the account"
            return self.halted
        day = equity / self.opening_usd - 1.0
        peak = equity / self.peak_usd - 1.0
        if day <= -self.settings.day_loss:
            self.halted = (
                f"lost {-day:.1%} since the session before; the limit is"
                f" {self.settings.day_loss:.1%}"
            )
        elif peak <= -self.settings.drawdown:
            self.halted = (
                f"lost {-peak:.1%} since its peak; the limit is {self.settings.drawdown:.1%}"
            )
        return self.halted

    def discount(self, unfilled_usd: float) -> None:
        """Subtract orders that ended unfilled from the session's sum."""
        self.traded_usd = max(self.traded_usd - unfilled_usd, 0.0)

    def has_enough_bars(self, tradable: Flags, member: Flags) -> bool:
        """Check whether enough members traded in the newest bars, `tradable` `[k, N]`."""
        if not self.settings.enforced or not member.any():
            return True
        seen: Flags = np.logical_or.reduce(tradable, axis=0)
        return float(np.mean(seen[member])) >= self.settings.symbols_with_bars

    def clip(
        self, orders: Array, held: Array, price: Array, equity: float, benchmark: Array
    ) -> Clipped:
        """Cut orders `[N]` of shares to the limits; a sale is cut only by the limits on orders.

        `held`: shares `[N]`; `price`: USD `[N]`, 0 or NaN if unknown; `benchmark`: weights `[N]`.
        """
        if not self.settings.enforced:
            return Clipped(orders, ())
        limits = self.settings
        by = []
        price = np.where(np.isfinite(price), price, 0.0)
        unit = np.where(price > 0, price, 1.0)

        def shrink(bound: Array, name: str) -> Array:
            """Cut the orders to `bound` `[N]` shares; whole ones stay whole."""
            small = np.minimum(np.abs(orders), np.maximum(bound, 0.0))
            if self.whole:
                small = np.trunc(small)
            if (small < np.abs(orders)).any():
                by.append(name)
            return np.asarray(np.sign(orders) * small)

        most = np.maximum(limits.weight, benchmark) * equity / unit
        room = np.where(orders > 0, np.maximum(most - held, 0.0), np.abs(orders))
        if (orders > room).any():
            orders = shrink(room, "weight")
        if (np.abs(orders) * price > limits.order * equity * (1 + 1e-9)).any():
            orders = shrink(limits.order * equity / unit, "order")
        traded = float((np.abs(orders) * price).sum())
        left = max(limits.turnover * equity - self.traded_usd, 0.0)
        if traded > left:
            orders = shrink(np.abs(orders) * (left / traded), "turnover")
        # Last, because the other limits may have cut a sale that was to pay for a purchase.
        goal = np.abs(held + orders)
        gross = float((goal * price).sum())
        if gross > limits.gross * equity * (1 + 1e-9):
            kept = float((np.minimum(goal, np.abs(held)) * price).sum())
            share = max(limits.gross * equity - kept, 0.0) / max(gross - kept, 1e-9)
            size = np.abs(orders)
            orders = shrink(np.where(goal > np.abs(held), share * size, size), "gross")
        self.traded_usd += float((np.abs(orders) * price).sum())
        return Clipped(orders, tuple(dict.fromkeys(by)))

    def count(self, names: Iterable[str]) -> None:
        """Count the limits that bound at one decision."""
        for name in names:
            self.counts[name] = self.counts.get(name, 0) + 1
