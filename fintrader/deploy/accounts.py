"""The account that a deployment decides for: the embedded broker's, or the one on which broker and
journal agree."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fintrader.backtesting.account import BacktestAccount
from fintrader.bars.bars import Array
from fintrader.bars.corporate_actions import Action
from fintrader.deploy.broker import Broker, Order
from fintrader.deploy.entries import Adjustment, BarDecision
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import order_id
from fintrader.deploy.reconcile import Tolerance, expect_holdings, reconcile
from fintrader.deploy.recorder import Recorder
from fintrader.deploy.simulated import AccountState, SimulatedBroker
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError, RunError, StorageError
from fintrader.market.tensors import MarketTensors
from fintrader.storage.lease import StoreLease, find_lease, hold
from fintrader.storage.objects import ObjectStore

_PAID_AFTER_DAYS = 60
"""Latest arrival of a dividend after its ex-date."""


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
    """Read the account's number, from the journal where a flatten goes on and the broker is
    silent."""
    try:
        return broker.account().number
    except (BrokerError, BrokerUnsureError):
        known = expect_holdings(journal).number
        if not known or not journal.is_flattening():
            raise
        return known


class Accounts:
    """Cash, shares and equity at a bar. Where broker and journal differ, `halt` gets the reason."""

    def __init__(
        self,
        broker: Broker,
        recorder: Recorder,
        halt: Callable[[str, int], None],
        *,
        replays: bool,
        adopt: bool,
        cap_usd: float | None,
    ) -> None:
        """cap_usd: most that is traded with, of a larger account; replays: the later bars are known
        already."""
        self.bundle = recorder.bundle
        self.broker = broker
        self.journal = recorder.journal
        self.recorder = recorder
        self.env = self.bundle.env
        self._halt = halt
        self.replays = replays
        self.adopt = adopt
        self.cap_usd = cap_usd
        self.simulated = broker if isinstance(broker, SimulatedBroker) else None
        self._first_usd = self._peak_usd = 0.0

    @property
    def since(self) -> int:
        """Start of the bar at which an embedded account stands that goes on with newer markets; 0
        of any other."""
        return 0 if self.simulated is None or self.replays else self.simulated.since

    def at(self, market: MarketTensors, row: int, now: int) -> BacktestAccount:
        """Build the account as it stands at a bar's close, with this market's prices."""
        if self.simulated is not None:
            if not self.replays:
                self.simulated.grow(market, row + 1)
            state = self.simulated.state
            held = self.simulated.account().shares
        else:
            cash, held = self.agreed(now)
            if self.cap_usd is not None:
                cash = min(cash, max(self.cap_usd - self._value_shares(held), 0.0))
            prices = np.nan_to_num(market.close[row].numpy().astype(np.float64))
            equity = cash + float(_align(held, market.symbols) @ prices)
            self._first_usd = self._first_usd or equity
            self._peak_usd = max(self._peak_usd, equity)
            state = AccountState(cash, equity, self._peak_usd, self._first_usd)
        return state.stand(market, self.env, row, _align(held, market.symbols))

    def between(self, now: int) -> float:
        """Value the account between two decisions by the newest prices, USD."""
        if self.simulated is not None:
            return self.simulated.equity
        cash, held = self.agreed(now)
        return cash + self._value_shares(held)

    def agreed(self, now: int, *, start: bool = False) -> tuple[float, Mapping[str, float]]:
        """Return the cash and shares on which broker and journal agree.

        Dividends reach an account weeks after they are announced, so cash may be off by as much. At
        the `start` a difference raises DeployError.
        """
        held = expect_holdings(self.journal).shares
        newest = dt.datetime.fromtimestamp(now / 1e9, dt.UTC).date()
        due = sum(
            action.dividend_usd * held.get(action.symbol, 0.0)
            for action in self.recorder.rows.actions
            if (newest - action.day).days <= _PAID_AFTER_DAYS
        )
        wrong = reconcile(
            self.journal,
            self.broker,
            bundle=self.bundle.id,
            at=now,
            start=start,
            adopt=self.adopt,
            tolerance=Tolerance(5.0 + due),
        )
        if wrong:
            self._halt("; ".join(finding.text for finding in wrong), now)
        known = expect_holdings(self.journal)
        return known.cash_usd or 0.0, known.shares

    def split(self, action: Action, now: int) -> None:
        """Expect the shares that a split makes of those held, once."""
        if action.split == 1 or self.simulated is not None:
            return
        held = expect_holdings(self.journal).shares.get(action.symbol, 0.0)
        reason = f"{action.symbol} split {action.split:g} for 1 on {action.day}"
        known = {entry.body.reason for entry in self.journal.entries(Adjustment)}
        if held and reason not in known:
            more = {action.symbol: held * (action.split - 1)}
            self.journal.write(Adjustment(reason, more), at=now)

    def remember(self, decision: BarDecision) -> None:
        """Restore first and highest equity from an earlier decision."""
        self._first_usd = decision.first
        self._peak_usd = decision.peak

    def restore(self, simulated: SimulatedBroker) -> None:
        """Put the embedded account to its first decision with orders whose end is not in the
        journal, and give it all orders since."""
        decisions = [entry.body for entry in self.journal.entries(BarDecision)]
        if not decisions:
            return
        standing = {name for name, report in self.journal.orders().items() if not report.is_over}
        made = [(decision, self._list_orders(decision)) for decision in decisions]
        while len(made) > 1 and standing.isdisjoint(order.id for order in made[0][1]):
            del made[0]
        begin = made[0][0]
        if not self.replays:
            newest = int(np.searchsorted(self.recorder.grid.minutes, decisions[-1].bar))
            simulated.market = self.recorder.rows.at(self.recorder.grid, newest, begin.bar)[0]
        state = AccountState(begin.cash, begin.equity, begin.peak, begin.first)
        later = [order for _, own in made for order in own]
        simulated.restore(begin.bar, state, _align(begin.shares, self.bundle.symbols), later)

    def _list_orders(self, decision: BarDecision) -> list[Order]:
        closed = decision.bar + self.recorder.length
        return [
            Order(order_id(self.bundle.id, closed, symbol), symbol, shares, closed)
            for symbol, shares in decision.orders.items()
        ]

    def _value_shares(self, held: Mapping[str, float]) -> float:
        return sum(n * self.recorder.rows.history.last_close(symbol) for symbol, n in held.items())


def _align(held: Mapping[str, float], symbols: Sequence[str]) -> Array:
    """Shares by symbol as an array `[N]`."""
    return np.array([held.get(symbol, 0.0) for symbol in symbols])
