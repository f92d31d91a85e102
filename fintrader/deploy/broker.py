"""What a runner asks of a broker, and what it says of orders: the embedded one and Alpaca's
alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fintrader.errors import DeployError

State = Literal[
    "intended",
    "sent",
    "unknown",
    "accepted",
    "partial",
    "filled",
    "cancelled",
    "rejected",
    "expired",
]
"""An order's life. `intended` stands in the journal and nowhere else; `sent` was about to leave;
`unknown` left, and nobody said what became of it, which is not the same as nothing."""
TERMINAL: frozenset[State] = frozenset({"filled", "cancelled", "rejected", "expired"})
"""States that nothing follows."""


@dataclass(frozen=True)
class Order:
    """A market order of one decision."""

    id: str
    """`client_order_id`: see `orders.order_id`."""
    symbol: str
    shares: float
    """To buy; negative to sell."""
    decision: int
    """Close of the bar that was decided upon, nanoseconds since 1970 UTC."""


@dataclass(frozen=True)
class OrderReport:
    """What is known of an order."""

    id: str
    """`client_order_id`; of a foreign order whatever its sender chose."""
    symbol: str
    state: State
    shares: float
    """Asked for; negative to sell."""
    filled: float = 0.0
    """Shares so far, signed as `shares`."""
    price_usd: float = 0.0
    """Mean price of what filled; 0 while nothing has."""
    cost_usd: float = 0.0
    """Fees as far as the broker says them."""
    broker_id: str = ""
    reason: str = ""
    """Why it was rejected, expired or cancelled."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to it."""
        return self.state in TERMINAL


@dataclass(frozen=True)
class BrokerAccount:
    """Cash and positions as the broker has them."""

    number: str
    """The account's own name at the broker."""
    cash_usd: float
    shares: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> shares held, those of 0 left out."""
    blocked: str = ""
    """Why the broker accepts no orders for this account; empty while it does."""


class Broker(Protocol):
    """Where orders go. Every call may raise BrokerError (refused for good) and BrokerUnsureError
    (nobody knows).

    Calls that only ask may be repeated by the broker itself within its time limit; `submit` and
    `cancel` are sent once.
    """

    kind: str
    """`simulated` or `alpaca`."""
    real_money: bool
    """Whether its orders spend real money; a runner refuses such a broker."""
    takes_baskets: bool
    """Whether the orders of a decision fill together, purchases fitted to the cash by the broker
    itself; otherwise sales go first, and purchases wait for them."""

    def submit(self, order: Order) -> OrderReport:
        """Send one order. Raises BrokerUnsureError when nobody can say whether it arrived: then ask
        `order`; OrderTakenError where one of its id stands already."""

    def cancel(self, report: OrderReport) -> None:
        """Ask for an order's end; what filled before stays filled."""

    def order(self, order_id: str) -> OrderReport | None:
        """What became of an order, by its `client_order_id`; None where the broker never had
        one."""

    def orders(self, since: int) -> Sequence[OrderReport]:
        """All orders since then (nanoseconds), whoever sent them, oldest first; pages are followed
        to the end."""

    def account(self) -> BrokerAccount:
        """Cash and positions now."""

    def time(self) -> int | None:
        """The broker's clock, nanoseconds since 1970 UTC; None where it has none of its own."""


def refuse_real_money(is_wanted: bool) -> None:
    """Raise DeployError where real money is wanted: nothing here has earned it yet."""
    if is_wanted:
        raise DeployError(
            "real-money trading is closed until a market-life simulator has passed on this same "
            "code; paper trading goes on: `fintrader paper RUN --feed alpaca --broker alpaca`"
        )


def as_json(report: OrderReport) -> dict[str, Any]:
    """A report as the journal keeps it."""
    return {
        "symbol": report.symbol,
        "state": report.state,
        "shares": report.shares,
        "filled": report.filled,
        "price_usd": report.price_usd,
        "cost_usd": report.cost_usd,
        "broker_id": report.broker_id,
        "reason": report.reason,
    }
