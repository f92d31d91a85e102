"""The entries of a deployment's journal: one frozen type for each kind, and how it is stored.

An entry is stored as its fields in JSON. One field of some kinds is stored in the journal's
column `key`, by which entries are found (`KEYS`). Times are nanoseconds since 1970 UTC; `shares`,
`orders` and the like map a symbol to a signed number of shares.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fintrader.backtesting.limits import LimitSettings
from fintrader.bars.corporate_actions import Action
from fintrader.deploy.broker import Activity, Order, OrderReport
from fintrader.records import JsonValue, RecordError, from_json, to_json, to_plain

Shares = Mapping[str, float]


@dataclass(frozen=True)
class DeploymentStart:
    """The terms on which a deployment began."""

    first_bar: int
    """Start of the first bar with a decision."""
    bundle: str
    feed: str
    broker: str
    limits: LimitSettings
    initial_cash_usd: float
    sender: str = ""
    """The deployment's name in its orders' ids (`orders.find_sender`): `<bundle>-<random>`, so that
    no other deployment takes them for its own; `<bundle>` or empty where the account is private
    to the folder."""
    warm_up_sessions: int | None = None
    """`PaperSettings.warm_up_sessions`; the drift report builds the same market."""


@dataclass(frozen=True)
class BarDecision:
    """A decision at a bar's close, and the account that it was taken for (USD, shares)."""

    bar: int
    """Start of the bar."""
    cash: float
    equity: float
    peak: float
    """Highest equity so far."""
    first: float
    """Equity at the first decision."""
    shares: Shares
    orders: Shares
    prices: Mapping[str, float]
    """Symbol -> close, USD."""
    why: str = ""
    """Reason of a decision that orders nothing."""
    clipped: tuple[str, ...] = ()
    """Limits that cut the orders."""
    traded: float = 0.0
    """Turnover of the day, USD."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Target weights, without zeros."""
    rounded: Shares = field(default_factory=dict)
    """Parts of shares that rounding left unordered."""
    outside_usd: float = 0.0
    """Part of the account that is beyond the cap: it is not traded, and no amount here includes
    it."""
    resting: tuple[Order, ...] = ()
    """Orders that rest from this decision to the next; `orders` is then empty."""
    goal: Shares = field(default_factory=dict)
    """Shares to hold where they change, if orders are worked at the bars that follow."""
    limits_from: tuple[float, float] | None = None
    """Equities from which the limits on losses count: the highest one since a `resume`, and that of
    the session before; None in journals of an earlier version."""

    @property
    def ordered(self) -> dict[str, float]:
        """Shares ordered by symbol: purchases less sales, without stops."""
        sums = dict(self.orders)
        for order in self.resting:
            if order.limit_usd is not None:
                sums[order.symbol] = sums.get(order.symbol, 0.0) + order.shares
        return sums


@dataclass(frozen=True)
class Mark:
    """The account's worth at a session's last close."""

    bar: int
    """Start of the bar."""
    equity: float


@dataclass(frozen=True)
class OrderTerms:
    """Terms on which the orders of a decision are carried out."""

    stamp: str
    """The decision's time in its orders' ids."""
    decision: int
    not_before: int
    until: int
    """Orders may be sent from `not_before` on and are open until `until`; stops stay longer."""
    prices: Mapping[str, float]
    stops: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> price of its stop at a venue, USD; 0 once it was reached. `venue_orders` sizes the
    stops' orders by the held shares."""


@dataclass(frozen=True)
class PurchaseFit:
    """The factor by which a decision's purchases were scaled to the cash."""

    stamp: str
    factor: float
    cash_usd: float


@dataclass(frozen=True)
class Cancellation:
    """A request to cancel an order, about to be sent."""

    order: str


@dataclass(frozen=True)
class Checkpoint:
    """An account on which broker and journal agree."""

    account: str
    """The account's number at the broker."""
    cash_usd: float
    shares: Shares
    standing: tuple[str, ...]
    """Ids of the orders that were sent and may still fill."""
    owed: Shares = field(default_factory=dict)
    """Shares of announced splits that the broker has not booked yet; `shares` is without them."""
    traded_usd: Mapping[str, float] = field(default_factory=dict)
    """Day (ISO 8601, UTC) -> notional of its fills, of the last days."""
    open_usd: Mapping[str, float] = field(default_factory=dict)
    """Day -> cash that came or went without an explanation, of the last days."""


@dataclass(frozen=True)
class Adjustment:
    """An announced change of cash or shares without an order."""

    reason: str
    shares: Shares = field(default_factory=dict)
    cash_usd: float = 0.0
    due_usd: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> dividends that are paid later."""


@dataclass(frozen=True)
class Finding:
    """A difference between broker and journal."""

    kind: str
    """order, position, cash or account."""
    name: str
    """The order's id, the symbol, the account's number."""
    text: str
    """The broker's state and the journal's."""


@dataclass(frozen=True)
class Mismatch:
    """Differences that lasted over several checks."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Adoption:
    """Differences that a person took over (`fintrader accept`, `--adopt`)."""

    findings: tuple[str, ...]
    cash_usd: float = 0.0
    shares: Shares = field(default_factory=dict)
    """Shares of the account less the expected ones."""


@dataclass(frozen=True)
class CapitalMove:
    """Money that came to the deployment or left it, which is neither gain nor loss."""

    reason: str
    factor: float
    """Equity after it divided by the equity before; peak and first equity change alike."""
    outside_usd: float = 0.0
    """Change of the part that is beyond the cap."""


@dataclass(frozen=True)
class Halt:
    """The beginning of a halt, in which nothing is ordered."""

    why: str


@dataclass(frozen=True)
class Resumption:
    """The end of a halt."""


@dataclass(frozen=True)
class Flattening:
    """The beginning of a flatten."""


@dataclass(frozen=True)
class FlattenEnd:
    """The end of a flatten: no shares of the bundle's symbols are left that an order could sell."""

    others: Shares
    """Shares that stay: of other symbols, or too few for an order (dust)."""


@dataclass(frozen=True)
class Alert:
    """News for a person."""

    kind: str
    text: str


@dataclass(frozen=True)
class LateBars:
    """Bars that came after the decision at their close."""

    bars: int
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class DeploymentEnd:
    """The end of a replay, or of a deployment with a last day."""


KINDS: Mapping[str, type] = {
    "start": DeploymentStart,
    "decision": BarDecision,
    "mark": Mark,
    "order": OrderReport,
    "execution": OrderTerms,
    "purchases": PurchaseFit,
    "cancel": Cancellation,
    "checkpoint": Checkpoint,
    "adjust": Adjustment,
    "mismatch": Mismatch,
    "activity": Activity,
    "adopted": Adoption,
    "capital": CapitalMove,
    "halt": Halt,
    "resume": Resumption,
    "flatten": Flattening,
    "flat": FlattenEnd,
    "alert": Alert,
    "action": Action,
    "late": LateBars,
    "end": DeploymentEnd,
}
"""Name in the journal -> type."""
NAMES: Mapping[type, str] = {record: name for name, record in KINDS.items()}
KEYS = {
    "order": "id",
    "execution": "stamp",
    "purchases": "stamp",
    "cancel": "order",
    "activity": "id",
    "alert": "kind",
    "action": "symbol",
}
"""Kind -> the field that is stored in the column `key`."""

_JSON = json.JSONEncoder(sort_keys=True, allow_nan=False)


def encode(record: object) -> tuple[str, str, str]:
    """Return a record as the journal stores it: kind, key and JSON."""
    kind = NAMES[type(record)]
    fields = record.model_dump(mode="json") if isinstance(record, Action) else to_json(record)
    key = str(fields.pop(KEYS[kind])) if kind in KEYS else ""
    return kind, key, _JSON.encode(fields)


@functools.lru_cache(maxsize=4096)  # the newest entries are read again at every step
def decode(kind: str, key: str, text: str) -> Any:
    """Read a record back; fields that a later version added get their defaults. Raises RecordError
    for a record of another version."""
    if kind not in KINDS:
        raise RecordError("is a kind that this version does not know", kind)
    fields = json.loads(text)
    if kind in KEYS:
        fields[KEYS[kind]] = key
    return from_json(KINDS[kind], {**_read_defaults(KINDS[kind]), **fields})


@functools.cache
def _read_defaults(kind: type) -> Mapping[str, JsonValue]:
    """Read the fields of a kind that have defaults, as they are stored."""
    if not dataclasses.is_dataclass(kind):
        return {}
    defaults = {}
    for item in dataclasses.fields(kind):
        if item.default_factory is not dataclasses.MISSING:
            defaults[item.name] = to_plain(item.default_factory())
        elif item.default is not dataclasses.MISSING:
            defaults[item.name] = to_plain(item.default)
    return defaults
