"""The interface of all brokers: their calls, orders and reports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from fintrader.errors import DeployError, FintraderError
from fintrader.files import hash_bytes, hash_file, read_json

ROOT = Path(__file__).parents[1]

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
"""States of an order. `intended`: only in the journal; `sent`: about to be sent; `unknown`: sent,
and the broker's answer is missing."""
TERMINAL: frozenset[State] = frozenset({"filled", "cancelled", "rejected", "expired"})
"""Final states of an order."""


@dataclass(frozen=True)
class Order:
    """An order of one decision: a market order, or one that rests at a price."""

    id: str
    """`client_order_id`: see `orders.order_id`."""
    symbol: str
    shares: float
    """To buy; negative to sell."""
    decision: int
    """Close of the bar that was decided upon, nanoseconds since 1970 UTC."""
    limit_usd: float | None = None
    """Limit price, 0 for a sale at any price; None without one."""
    stop_usd: float | None = None
    """Price at which a position is sold at the market, 0 once a bar has reached it; None without
    one."""

    def report(self, state: State, broker_id: str = "") -> OrderReport:
        """Make the report of this order in a state, without fills."""
        return OrderReport(
            self.id,
            self.symbol,
            state,
            self.shares,
            broker_id=broker_id,
            limit_usd=self.limit_usd,
            stop_usd=self.stop_usd,
        )


@dataclass(frozen=True)
class OrderReport:
    """A broker's last report of an order."""

    id: str
    """`client_order_id`; for a foreign order its sender's choice."""
    symbol: str
    state: State
    shares: float
    """Shares ordered; negative to sell."""
    filled: float = 0.0
    """Shares filled so far, signed as `shares`."""
    price_usd: float = 0.0
    """Mean price of the filled shares; 0 without any."""
    cost_usd: float = 0.0
    """Fees as far as the broker reports them."""
    broker_id: str = ""
    reason: str = ""
    """Reason of a rejection, an expiry or a cancellation."""
    limit_usd: float | None = None
    """As in `Order`."""
    stop_usd: float | None = None
    fee_shares: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> shares that were taken as fees, as crypto exchanges do; `filled` includes them."""

    @property
    def is_standing_stop(self) -> bool:
        """True for a stop that the venue has, and whose price was not reached."""
        return bool(self.stop_usd) and self.state == "accepted"

    @property
    def is_over(self) -> bool:
        """True in a final state."""
        return self.state in TERMINAL

    @property
    def rests(self) -> bool:
        """True of an order that waits for its price."""
        return not self.is_over and (self.limit_usd, self.stop_usd) != (None, None)

    def keep_prices(self, known: OrderReport) -> OrderReport:
        """Return this report with the prices in `known`, since brokers round or drop them."""
        if (self.limit_usd, self.stop_usd) == (known.limit_usd, known.stop_usd):
            return self
        return replace(self, limit_usd=known.limit_usd, stop_usd=known.stop_usd)


ActivityKind = Literal["transfer", "split", "dividend", "rename", "other"]


@dataclass(frozen=True)
class Activity:
    """A change of the account without an order, as the broker books it."""

    id: str
    kind: ActivityKind
    """`transfer`: a deposit or a withdrawal, of cash or shares; `split`: also a stock dividend;
    `other`: fees, interest, cash in lieu, mergers and the rest."""
    day: str
    """Day of the booking, ISO 8601."""
    symbol: str = ""
    """Empty for a change of cash alone."""
    shares: float = 0.0
    cash_usd: float = 0.0
    text: str = ""
    """The broker's words."""

    @property
    def is_exchange(self) -> bool:
        """True if shares changed by a merger, a new name or the like."""
        return self.kind in ("rename", "other") and self.shares != 0.0


@dataclass(frozen=True)
class BrokerAccount:
    """Cash and positions as the broker has them."""

    number: str
    """The account's own name at the broker."""
    cash_usd: float
    shares: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> shares held, without zeros."""
    blocked: str = ""
    """Reason for which the broker accepts no orders for this account; empty while it does."""


class Broker(Protocol):
    """A place that carries out orders. Every call may raise BrokerError (refused for good) and
    BrokerUnsureError (fate unknown).

    Calls that only read may be repeated by the broker itself within its time limit; `submit` and
    `cancel` are sent once.
    """

    kind: str
    """`simulated`, `alpaca`, or the name of an exchange in ccxt."""
    real_money: bool
    """True where orders spend real money; a runner refuses such a broker while real-money trading
    is closed (`refuse_real_money`)."""
    takes_baskets: bool
    """True where the orders of a decision fill together, and the broker itself fits purchases to
    the cash; otherwise sales go first, and purchases wait for them."""
    takes_ids_once: bool = True
    """True where an order with the id of an earlier one is always refused, so that an order of
    unknown fate may be sent again; otherwise it is written off once the broker does not have it."""

    takes_bids_over_stops: bool = True
    """True where a purchase may rest in a symbol that has a stop, which sells below it."""

    def submit(self, order: Order) -> OrderReport:
        """Send one order. Raises BrokerUnsureError when its arrival is uncertain (then ask
        `order`), OrderTakenError if an order with this id exists already."""

    def cancel(self, report: OrderReport) -> None:
        """Ask for an order's end; shares that filled before stay filled."""

    def order(self, order_id: str) -> OrderReport | None:
        """Report an order by its `client_order_id`; None where the broker never had one."""

    def orders(self, since: int) -> Sequence[OrderReport]:
        """Report all orders sent since then (ns), also foreign ones, oldest first."""

    def account(self) -> BrokerAccount:
        """Read cash and positions."""

    def size_sale(self, symbol: str, shares: float, price_usd: float) -> float:
        """Return the shares of a position that one order may sell; 0 where they are too few for
        any order (dust). price_usd: the last price, 0 if unknown."""
        return shares

    def activities(self, since: int) -> Sequence[Activity]:
        """Report the changes without an order that were booked since then (nanoseconds)."""

    def time(self) -> int | None:
        """Read the broker's clock, nanoseconds since 1970 UTC; None where it has none."""


RECORD = ROOT.parent / "benchmarks" / "results" / "market_life.json"
"""The record of the market-life simulator, in a checkout."""
FEWEST_SESSIONS = 40_000
TRADING_ROOMS = ("deploy", "backtesting", "bars", "market")
"""Packages that trade an account: the loop, its limits and accounts, and the rows and prices that
are made of bars."""


def hash_sources() -> str:
    """Return the SHA-256 of the code of `TRADING_ROOMS`."""
    files = sorted(path for room in TRADING_ROOMS for path in (ROOT / room).rglob("*.py"))
    parts = [f"{path.relative_to(ROOT).as_posix()} {hash_file(path)}" for path in files]
    return hash_bytes("\n".join(parts).encode())


def refuse_real_money(is_wanted: bool) -> None:
    """Raise DeployError if real money is wanted while real-money trading is closed. It is open only
    if the record of the market-life simulator says that this same code has passed in at least
    `FEWEST_SESSIONS` sessions: a changed byte of `TRADING_ROOMS` or a missing record closes it."""
    if not is_wanted:
        return
    content = None
    with contextlib.suppress(FintraderError, OSError):
        content = read_json(RECORD)
    record = content if isinstance(content, dict) else {}
    has_passed = record.get("passed") is True and record.get("sources") == hash_sources()
    if not has_passed or record.get("sessions", 0) < FEWEST_SESSIONS:
        raise DeployError(
            "real-money trading is closed until a market-life simulator has passed on this same "
            "code; paper trading goes on: `fintrader paper RUN --feed alpaca --broker alpaca`. "
            "Positions of a deployment are sold at the broker, or by the version that traded them"
        )
