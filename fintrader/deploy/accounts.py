"""The account that a deployment decides for: the embedded broker's own, or what broker and journal
agree upon."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.backtesting.account import BacktestAccount
from fintrader.bars.corporate_actions import Action
from fintrader.deploy.broker import Broker, Order
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.orders import order_id
from fintrader.deploy.reconcile import adjust, expect_holdings, reconcile
from fintrader.deploy.recorder import Recorder
from fintrader.deploy.simulated import SimulatedBroker
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError, RunError, StorageError
from fintrader.market.tensors import MarketTensors
from fintrader.storage.lease import StoreLease, find_lease, hold
from fintrader.storage.objects import ObjectStore

_PAID_AFTER_DAYS = 60
"""A dividend reaches the account at most so long after its ex-date."""


@contextlib.contextmanager
def hold_account(broker: Broker, journal: Journal) -> Iterator[StoreLease | None]:
    """Hold the broker's account: no other deployment of this user trades it on this machine.

    The embedded broker's account is private to its folder and needs none. Raises DeployError where
    another deployment holds it; a killed one holds nothing any more.
    """
    if isinstance(broker, SimulatedBroker):
        yield None
        return
    number = _read_number(broker, journal)
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    folder = state / "fintrader" / "accounts" / re.sub(r"\W", "_", f"{broker.kind}-{number}")
    objects = ObjectStore(folder)
    with contextlib.ExitStack() as stack:
        try:
            if find_lease(objects) is not None:
                raise RunError(f"{folder} is in use by this process")
            folder.mkdir(parents=True, exist_ok=True)
            lease = stack.enter_context(hold(objects))
        except RunError as error:
            raise DeployError(
                f"another deployment trades the account {number} on this machine ({error}); "
                "stop that one, or give this one the keys of another account"
            ) from None
        except (StorageError, OSError) as error:
            raise DeployError(
                f"{folder} cannot be written ({error}), and the account's lease lies there; "
                "free space or rights there, or set XDG_STATE_HOME to another folder"
            ) from None
        yield lease


def _read_number(broker: Broker, journal: Journal) -> str:
    """The account's name; by the journal where a flatten goes on and the broker does not answer."""
    try:
        return broker.account().number
    except (BrokerError, BrokerUnsureError):
        known = expect_holdings(journal).number
        if not known or not journal.is_flattening():
            raise
        return known


class Accounts:
    """Cash, shares and equity at a bar. `halt` is told why where broker and journal differ."""

    def __init__(
        self,
        bundle: Bundle,
        broker: Broker,
        journal: Journal,
        recorder: Recorder,
        halt: Callable[[str, int], None],
        *,
        replays: bool,
        adopt: bool,
        cap_usd: float | None,
    ) -> None:
        """cap_usd: what the account holds beyond it is left alone; replays: whether the later bars
        are known."""
        self.bundle = bundle
        self.broker = broker
        self.journal = journal
        self.recorder = recorder
        self.env = bundle.env
        self._halt = halt
        self.replays = replays
        self.adopt = adopt
        self.cap_usd = cap_usd
        self.simulated = broker if isinstance(broker, SimulatedBroker) else None
        self._first_usd = self._peak_usd = 0.0

    def at(self, market: MarketTensors, row: int, now: int) -> BacktestAccount:
        """The account as it stands at a bar's close, with this market's prices."""
        if self.simulated is not None:
            if not self.replays:
                self.simulated.grow(market, row + 1)
            cash, equity, peak, first = self.simulated.state
            held = self.simulated.account().shares
        else:
            cash, held = self.agreed(now)
            if self.cap_usd is not None:
                cash = min(cash, max(self.cap_usd - self._value_shares(held), 0.0))
            shares = np.array([held.get(symbol, 0.0) for symbol in market.symbols])
            equity = cash + float(
                shares @ np.nan_to_num(market.close[row].numpy().astype(np.float64))
            )
            first = self._first_usd or equity
            peak = max(self._peak_usd, equity)
            self._first_usd = first
            self._peak_usd = peak
        shares = np.array([held.get(symbol, 0.0) for symbol in market.symbols])
        return BacktestAccount.resume(
            market,
            self.env,
            bar=row,
            cash=cash,
            equity=equity,
            capital=(peak, first),
            shares=shares,
        )

    def between(self, now: int) -> float:
        """Equity between two decisions, USD, by the newest prices."""
        if self.simulated is not None:
            return self.simulated.equity
        cash, held = self.agreed(now)
        return cash + self._value_shares(held)

    def agreed(self, now: int, *, start: bool = False) -> tuple[float, Mapping[str, float]]:
        """Cash and shares on which broker and journal agree.

        Dividends reach an account weeks after the day that they are known of, so cash may be off by
        as much. At the `start` a difference raises DeployError.
        """
        held = expect_holdings(self.journal).shares
        newest = dt.datetime.fromtimestamp(now / 1e9, dt.UTC).date()
        recent = (
            action
            for action in self.recorder.rows.actions
            if (newest - action.day).days <= _PAID_AFTER_DAYS
        )
        due = sum(action.dividend_usd * held.get(action.symbol, 0.0) for action in recent)
        wrong = reconcile(
            self.journal,
            self.broker,
            bundle=self.bundle.id,
            at=now,
            start=start,
            adopt=self.adopt,
            tolerance_usd=5.0 + due,
        )
        if wrong:
            self._halt("; ".join(finding.text for finding in wrong), now)
        known = expect_holdings(self.journal)
        return known.cash_usd or 0.0, known.shares

    def split(self, action: Action, now: int) -> None:
        """What a split makes of the shares is expected of the broker, too."""
        held = (
            0.0
            if self.simulated is not None
            else expect_holdings(self.journal).shares.get(action.symbol, 0.0)
        )
        reason = f"{action.symbol} split {action.split:g} for 1 on {action.day}"
        told = any(entry.body["reason"] == reason for entry in self.journal.entries("adjust"))
        if action.split != 1 and held and not told:
            adjust(
                self.journal,
                at=now,
                reason=reason,
                shares={action.symbol: held * (action.split - 1)},
            )

    def remember(self, decision: Mapping[str, Any]) -> None:
        """Take up what an earlier decision says of the account."""
        self._first_usd = float(decision["first"])
        self._peak_usd = float(decision["peak"])

    def restore(self, simulated: SimulatedBroker) -> None:
        """Stand where the first decision was taken whose orders' end nobody wrote down, and give it
        all since."""
        decisions = self.journal.entries("decision")
        if not decisions:
            return
        standing = {name for name, report in self.journal.orders().items() if not report.is_over}
        orders = [self._list_orders(entry) for entry in decisions]
        begun = (
            number
            for number, own in enumerate(orders)
            if any(order.id in standing for order in own)
        )
        number = next(begun, len(decisions) - 1)
        body = decisions[number].body
        symbols = self.bundle.symbols
        if not self.replays:
            newest = int(np.searchsorted(self.recorder.grid.minutes, decisions[-1].body["bar"]))
            simulated.market = self.recorder.rows.at(self.recorder.grid, newest)[0]
        shares = np.array([body["shares"].get(symbol, 0.0) for symbol in symbols])
        cash, equity, peak, first = (
            float(body[name]) for name in ("cash", "equity", "peak", "first")
        )
        later = [order for own in orders[number:] for order in own]
        simulated.restore(int(body["bar"]), cash, equity, peak, first, shares, later)

    def _list_orders(self, entry: Entry) -> list[Order]:
        closed = int(entry.body["bar"]) + self.recorder.length
        wanted = entry.body["orders"].items()
        return [
            Order(order_id(self.bundle.id, closed, symbol), symbol, shares, closed)
            for symbol, shares in wanted
        ]

    def _value_shares(self, held: Mapping[str, float]) -> float:
        return sum(n * self.recorder.rows.history.last_close(symbol) for symbol, n in held.items())
