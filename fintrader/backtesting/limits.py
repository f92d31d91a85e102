"""What no policy may do to an account, whatever it thinks: limits on positions, orders and losses.

The same object stands between policy and orders in a deployment and in the twin backtest it is
compared with, so that the two can only differ by what the market did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fintrader.config import Settings

Array = NDArray[np.float64]
Share = Annotated[float, Field(gt=0.0, le=100.0)]


class LimitSettings(Settings):
    """Limits of an account; each may be wider, none is silently off."""

    enforced: bool = True
    """False: the policy trades as in its backtest without limits. For replays; nothing else accepts
    it."""
    weight: Share = 0.25
    """No order takes a symbol above this share of equity, or above what the benchmark holds of it
    if that is more."""
    gross: Share = 1.0
    """Nor all positions together above this multiple of equity."""
    order: Share = 0.1
    """Largest order, as a share of equity."""
    turnover: Share = 2.0
    """Orders of a session together, in multiples of equity."""
    day_loss: Share = 0.03
    """Losing this share of the equity of the session before halts the deployment."""
    drawdown: Share = 0.10
    """So does losing this share of the highest equity seen."""
    symbols_with_bars: Annotated[float, Field(ge=0.0, le=1.0)] = 0.8
    """No new orders while fewer of the members than this share had a bar in the last three
    minutes."""
    clock_seconds: Annotated[float, Field(gt=0.0)] = 2.0
    """Nor while the machine's clock and the broker's are further apart than this."""


@dataclass(frozen=True)
class Clipped:
    """Holdings that may be ordered, and what they were cut by."""

    shares: Array
    """`[N]`."""
    by: tuple[str, ...]
    """Names of the limits that bound, in the order of `LimitSettings`."""


@dataclass
class Limits:
    """Limits of one account, and what they have to remember of it."""

    settings: LimitSettings
    whole: bool = True
    """Whether only whole shares are traded."""
    halted: str = ""
    """Why nothing may be ordered any more; empty while something may."""
    peak_usd: float = 0.0
    session: int = -1
    opening_usd: float = 0.0
    """Equity when the session before was seen last; of the first session its first."""
    last_usd: float = 0.0
    traded_usd: float = 0.0
    """Ordered in this session."""
    counts: dict[str, int] = field(default_factory=dict)
    """How often each limit bound."""

    def watch(self, session: int, equity: float) -> str:
        """Take note of the equity; returns why the account is halted now, empty if it is not."""
        if session != self.session:
            self.opening_usd = self.last_usd or equity
            self.session = session
            self.traded_usd = 0.0
        self.last_usd = equity
        self.peak_usd = max(self.peak_usd, equity)
        if not self.settings.enforced or self.halted:
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

    def enough_bars(self, tradable: NDArray[np.bool_], member: NDArray[np.bool_]) -> bool:
        """Whether enough members had a bar in the newest ones, `tradable` `[k, N]`."""
        if not self.settings.enforced or not member.any():
            return True
        seen: NDArray[np.bool_] = np.logical_or.reduce(tradable, axis=0)
        return float(np.mean(seen[member])) >= self.settings.symbols_with_bars

    def clip(
        self, want: Array, held: Array, price: Array, equity: float, benchmark: Array
    ) -> Clipped:
        """Holdings `[N]` as near to those wanted as the limits let it be; sales are cut by the
        order's size alone.

        held `[N]` shares; price `[N]` USD, 0 or NaN of what has none; benchmark `[N]` weights.
        """
        if not self.settings.enforced:
            return Clipped(want, ())
        limits = self.settings
        by = []
        price = np.where(np.isfinite(price), price, 0.0)
        unit = np.where(price > 0, price, 1.0)

        def shrunk(goal: Array, bound: Array, name: str) -> Array:
            """Orders no larger than `bound` `[N]` shares; whole ones stay whole."""
            order = goal - held
            small = np.sign(order) * np.minimum(np.abs(order), np.maximum(bound, 0.0))
            if self.whole:
                small = np.trunc(small)
            if (np.abs(small) < np.abs(order)).any():
                by.append(name)
            kept: Array = held + small
            return kept

        most = np.maximum(limits.weight, benchmark) * equity / unit
        buys = np.maximum(want - held, 0.0)
        room = np.where(want > held, np.maximum(most - held, 0.0), np.abs(want - held))
        goal = shrunk(want, room, "weight") if (buys > room).any() else want
        largest = limits.order * equity / unit
        if (np.abs(goal - held) * price > limits.order * equity * (1 + 1e-9)).any():
            goal = shrunk(goal, largest, "order")
        traded = float((np.abs(goal - held) * price).sum())
        left = max(limits.turnover * equity - self.traded_usd, 0.0)
        if traded > left:
            goal = shrunk(goal, np.abs(goal - held) * (left / traded), "turnover")
        # Last: a purchase may have counted on a sale that the others cut.
        gross = float((np.abs(goal) * price).sum())
        if gross > limits.gross * equity * (1 + 1e-9):
            kept = float((np.minimum(np.abs(goal), np.abs(held)) * price).sum())
            share = max(limits.gross * equity - kept, 0.0) / max(gross - kept, 1e-9)
            more = np.abs(goal) > np.abs(held)
            goal = shrunk(
                goal, np.where(more, share * np.abs(goal - held), np.abs(goal - held)), "gross"
            )
        self.traded_usd += float((np.abs(goal - held) * price).sum())
        for name in by:
            self.counts[name] = self.counts.get(name, 0) + 1
        return Clipped(goal, tuple(dict.fromkeys(by)))
