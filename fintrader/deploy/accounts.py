"""The account that a deployment decides for: the embedded broker's, or the one on which broker and
journal agree."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.limits import Limits
from fintrader.bars.bars import Array
from fintrader.bars.corporate_actions import Action
from fintrader.deploy.broker import Activity, Broker, Order
from fintrader.deploy.entries import (
    Adjustment,
    Adoption,
    BarDecision,
    CapitalMove,
    Checkpoint,
    Mismatch,
)
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.orders import order_id
from fintrader.deploy.reconcile import (
    Tolerance,
    expect_holdings,
    format_day,
    reconcile,
)
from fintrader.deploy.recorder import Recorder
from fintrader.deploy.simulated import AccountState, SimulatedBroker
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError, RunError, StorageError
from fintrader.market.tensors import MarketTensors
from fintrader.progress import shorten_list
from fintrader.storage.lease import StoreLease, find_lease, hold
from fintrader.storage.objects import ObjectStore

_DAY_NS = 86_400_000_000_000
_PAID_AFTER_DAYS = 60
"""Most days between a dividend's ex-date and its payment."""
_BOOKED_EARLY_NS = 4 * _DAY_NS
"""Time before the open of a split's day in which a broker may book it: a long weekend, ns."""
_SPLIT_DAYS = 10
_SPLIT_NS = _SPLIT_DAYS * _DAY_NS
"""Time after a split in which it may be booked or its fraction of a share paid, ns."""


@contextlib.contextmanager
def hold_account(broker: Broker, journal: Journal) -> Iterator[StoreLease | None]:
    """Hold a lease on the broker's account, so that no other deployment of this user trades it on
    this machine.

    The embedded broker's account is private to its folder and needs no lease. Raises DeployError if
    another deployment holds the account; a killed deployment no longer holds it.
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
                f"{folder} cannot be written ({error}), but the account's lease must be there; "
                "free space or grant rights there, or set XDG_STATE_HOME to another folder"
            ) from None
        yield lease


def _read_number(broker: Broker, journal: Journal) -> str:
    """Read the account's number; from the journal, if the broker does not answer while a flatten is
    under way."""
    try:
        return broker.account().number
    except (BrokerError, BrokerUnsureError):
        known = expect_holdings(journal).number
        if not known or not journal.is_flattening():
            raise
        return known


class Accounts:
    """Cash, shares and equity at a bar. If broker and journal differ, `halt` is called with the
    reason and the time.

    Equity does not include the part of the account beyond the cap, which is not traded. Deposits
    and withdrawals change the highest and the first equity by the same factor, so that they count
    neither as a gain nor as a loss.
    """

    def __init__(
        self,
        broker: Broker,
        recorder: Recorder,
        limits: Limits,
        halt: Callable[[str, int], None],
        alert: Callable[[str, str, int], None],
        *,
        replays: bool,
        cap_usd: float | None,
    ) -> None:
        """alert: called with the kind of news, a text and the time; replays: True if later bars are
        known already; cap_usd: most USD of the account that are traded."""
        self.bundle = recorder.bundle
        self.broker = broker
        self.journal = recorder.journal
        self.recorder = recorder
        self.env = self.bundle.env.for_working()
        self.limits = limits
        self._halt = halt
        self._alert = alert
        self.replays = replays
        self.cap_usd = cap_usd
        self.simulated = broker if isinstance(broker, SimulatedBroker) else None
        self.outside_usd = 0.0
        """Part of the account that is beyond the cap."""
        self._first_usd = self._peak_usd = self._equity_usd = 0.0
        self._account: BacktestAccount | None = None
        self._seen = 0
        """Number of the newest journal entry that has been applied."""
        self._split: dict[str, int] = {}
        """Symbol -> time of the journal entry of its newest split, ns."""
        self._due: list[tuple[str, int, float]] = []
        """Symbol, time (ns) and USD of each dividend that is not paid yet."""
        self.unbooked: frozenset[str] = frozenset()
        """Symbols with a split that the broker has not booked yet."""

    @property
    def since(self) -> int:
        """Start (ns) of the present bar of an embedded account in live trading, where newer markets
        continue it; 0 for any other account."""
        return 0 if self.simulated is None or self.replays else self.simulated.since

    def at(self, market: MarketTensors, row: int, now: int) -> BacktestAccount:
        """Return the account at the close of bar `row`, with this market's prices, until the next
        call."""
        if self.simulated is not None:
            if not self.replays:
                self.simulated.grow(market, row + 1)
            state = self.simulated.state
            held = self.simulated.account().shares
        else:
            cash, held = self.agreed(now)
            # A symbol without bars for a session has no close; equity and limits count its shares
            # at their last price.
            shares = _align(held, market.symbols)
            close = market.close[row].numpy().astype(np.float64)
            last = _align(self._price(held, now), market.symbols)
            silent = (shares != 0.0) & ~np.isfinite(close)
            if silent.any():
                close[silent] = last[silent]
                filled = market.close.clone()
                filled[row] = torch.from_numpy(close)
                market = replace(market, close=filled, trusted=True)
            equity = self._measure(cash, float(shares @ np.nan_to_num(close)))
            cash -= self.outside_usd
            state = AccountState(cash, equity, self._peak_usd, self._first_usd)
        if self._account is None:
            self._account = BacktestAccount(market, self.env)
        state.enter(self._account, market, row, _align(held, market.symbols))
        return self._account

    def between(self, now: int) -> float:
        """Return the account's equity between two decisions, by the newest prices, USD."""
        if self.simulated is not None:
            return self.simulated.equity
        cash, held = self.agreed(now)
        prices = self._price(held, now)
        return self._measure(cash, sum(n * prices[name] for name, n in held.items()))

    def agreed(
        self, now: int, *, start: bool = False, adopt: bool | Mismatch = False
    ) -> tuple[float, Mapping[str, float]]:
        """Return the cash (USD) and shares on which broker and journal agree. The shares of a split
        count from its morning on, even if the broker has not booked them yet.

        `start` and `adopt`: as in `reconcile`, which raises DeployError for a difference at the
        start.
        """
        self._take_in(now)
        before = self.journal.last(Adoption)
        split = frozenset(name for name, at in self._split.items() if now < at + _SPLIT_NS)
        due = sum(usd for _, _, usd in self._due) + sum(self._price(split, now).values())
        wrong = reconcile(
            self.journal,
            self.broker,
            at=now,
            start=start,
            adopt=adopt,
            tolerance=Tolerance(due_usd=due, split=split),
        )
        if wrong:
            text = shorten_list((finding.text for finding in wrong), "; ")
            command = f"`fintrader accept {self.journal.path.parent.name}`"
            self._halt(f"{text}; mend the account, or run {command}", now)
        taken = self.journal.last(Adoption)
        if taken is not None and taken != before and taken.body.findings:
            self._alert("accept", f"accepted: {shorten_list(taken.body.findings, '; ')}", now)
        self._take_in(now)
        known = expect_holdings(self.journal)
        self.unbooked = frozenset(name for name, count in known.owed.items() if count)
        return known.cash_usd or 0.0, known.shares

    def accept(self, now: int) -> None:
        """Accept the differences that the last mismatch names, at a person's request."""
        named = self.journal.last(Mismatch)
        agreed = self.journal.last(Checkpoint)
        if named is not None and (agreed is None or agreed.seq < named.seq):
            self.agreed(now, adopt=named.body)
            taken = self.journal.last(Adoption)
            if taken is not None and taken.seq > named.seq:
                return
        text = "nothing was accepted: the account does not differ as the last mismatch says"
        self._alert("accept", text, now)

    def expect(self, action: Action, opened: int, now: int) -> float:
        """Journal, once, the shares and cash that a split or dividend will bring to the account.
        Return the ratio of a split that is new to the journal, else 1. opened: the open of the
        ex-date, ns."""
        reason = f"{action.symbol} split {action.split:g} for 1 on {action.day}"
        if action.split == 1.0:
            reason = f"{action.symbol} pays {action.dividend_usd:g} USD a share of {action.day}"
        known = {entry.body.reason for entry in self.journal.entries(Adjustment)}
        if self.simulated is not None or reason in known:
            return 1.0
        held = expect_holdings(self.journal).shares.get(action.symbol, 0.0)
        agreed = self.journal.last(Checkpoint)
        if agreed is not None and agreed.time >= opened:
            # Shares agreed on after the open may have been bought since, or already be split.
            day = format_day(opened)
            if format_day(agreed.time) != day or agreed.body.traded_usd.get(day):
                held = 0.0
        if self._has_accepted(action, opened):
            held = 0.0
        booked = {
            entry.body.kind
            for entry in self.journal.entries(Activity)
            if entry.body.symbol == action.symbol
            and abs((dt.date.fromisoformat(entry.body.day) - action.day).days) <= _SPLIT_DAYS
        }
        shares = {action.symbol: held * (action.split - 1.0)}
        due = {action.symbol: held * action.dividend_usd}
        record = Adjustment(
            reason,
            shares if shares[action.symbol] and "split" not in booked else {},
            due_usd=due if due[action.symbol] and "dividend" not in booked else {},
        )
        self.journal.write(record, at=now)
        return action.split

    def _has_accepted(self, action: Action, opened: int) -> bool:
        """Check whether a person has accepted a count of the broker's that contains the split: of
        before the open, if the split explains most of the difference; of later, if the difference
        is at least half of the split's."""
        for taken in self.journal.entries(Adoption):
            more = taken.body.shares.get(action.symbol, 0.0)
            if not more or taken.time <= opened - _BOOKED_EARLY_NS:
                continue
            agreed = self.journal.entries(Checkpoint, after=taken.seq)
            count = agreed[0].body.shares.get(action.symbol, 0.0) if agreed else 0.0
            by_split = (count - more) * (action.split - 1.0)
            is_later = taken.time >= opened and action.split != 1.0
            if is_later and abs(more) >= abs(by_split) / 2.0:
                return True
            if abs(more - by_split) < abs(more):
                return True
        return False

    def remember(self, decision: BarDecision) -> None:
        """Restore first and highest equity from an earlier decision."""
        self._first_usd = decision.first
        self._peak_usd = decision.peak
        self._equity_usd = decision.equity
        self.outside_usd = decision.outside_usd

    def move(self, change: CapitalMove) -> None:
        """Change highest and first equity in step with a deposit or a withdrawal."""
        self._first_usd *= change.factor
        self._peak_usd *= change.factor
        self._equity_usd *= change.factor
        self.outside_usd = max(self.outside_usd + change.outside_usd, 0.0)
        self.limits.scale(change.factor)

    def restore(self, simulated: SimulatedBroker) -> None:
        """Restart the embedded account at the first decision with an order that the journal does
        not call finished (at the last decision without one), and repeat all orders since."""
        decisions = [entry.body for entry in self.journal.entries(BarDecision)]
        if not decisions:
            return
        standing = {name for name, report in self.journal.orders().items() if not report.is_over}
        past = [(decision, self._list_orders(decision)) for decision in decisions]
        while len(past) > 1 and standing.isdisjoint(order.id for order in past[0][1]):
            del past[0]
        begin = past[0][0]
        if not self.replays:
            newest = int(np.searchsorted(self.recorder.grid.minutes, decisions[-1].bar))
            simulated.market = self.recorder.rows.at(self.recorder.grid, newest, begin.bar)[0]
        # The decision's own orders replace the ones that rested before it.
        state = AccountState(begin.cash, begin.equity, begin.peak, begin.first)
        later = [order for _, own in past for order in own]
        simulated.restore(begin.bar, state, _align(begin.shares, self.bundle.symbols), later)

    def _list_orders(self, decision: BarDecision) -> list[Order]:
        closed = decision.bar + self.recorder.length
        market = (
            Order(order_id(self.bundle.id, closed, symbol), symbol, shares, closed)
            for symbol, shares in decision.orders.items()
        )
        return [*decision.resting, *market]

    def _measure(self, cash: float, shares_usd: float) -> float:
        """Return the equity, USD, with dividends due and without the part beyond the cap; update
        first and highest equity."""
        equity = cash + shares_usd + sum(usd for _, _, usd in self._due)
        if self.cap_usd is not None:
            self.outside_usd = max(self.outside_usd, equity - self.cap_usd)
        equity -= self.outside_usd
        self._equity_usd = equity
        self._first_usd = self._first_usd or equity
        self._peak_usd = max(self._peak_usd, equity)
        return equity

    def _price(self, symbols: Iterable[str], now: int) -> dict[str, float]:
        """Return the symbols' last prices, USD, adjusted for later splits and dividends."""
        rows = self.recorder.rows
        today = dt.datetime.fromtimestamp(now / 1e9, dt.UTC).date()
        prices = {symbol: rows.history.last_close(symbol) for symbol in symbols}
        for action in rows.actions:
            price = prices.get(action.symbol, 0.0)
            newest = rows.history.newest(action.symbol) if price else None
            if newest is not None and action.day <= today and format_day(newest) < str(action.day):
                prices[action.symbol] = max(price - action.dividend_usd, 0.0) / action.split
        return prices

    def _take_in(self, now: int) -> None:
        """Apply the splits, dividends, deposits and accepted differences that were journalled since
        the last call."""
        news = self.journal.entries(Adjustment, after=self._seen)
        booked = self.journal.entries(Activity, after=self._seen)
        accepted = self.journal.entries(Adoption, after=self._seen)
        seqs = [part[-1].seq for part in (news, booked, accepted) if part]
        self._seen = max([self._seen, *seqs])
        for change in news:
            self._split |= dict.fromkeys(change.body.shares, change.time)
            self._due += [(name, change.time, usd) for name, usd in change.body.due_usd.items()]
        # Bookings of shares of an untraded symbol, which was received in exchange for held shares.
        untraded = [
            (entry.time, entry.body.symbol)
            for entry in booked
            if entry.body.is_exchange
            and entry.body.shares > 0.0
            and entry.body.symbol not in self.bundle.symbols
        ]
        for entry in booked:
            self._note_booking(entry, {at for at, _ in untraded}, now)
        oldest = now - _PAID_AFTER_DAYS * _DAY_NS
        self._due = [due for due in self._due if due[1] > oldest]
        moved = self.journal.last(CapitalMove)
        done = 0 if moved is None else moved.seq
        bookings = [entry.body for entry in booked if entry.seq > done]
        adoptions = [entry.body for entry in accepted if entry.seq > done]
        self._move_capital(bookings, adoptions, [name for _, name in untraded], now)

    def _note_booking(self, entry: Entry[Activity], untraded: Container[int], now: int) -> None:
        """Apply a booking: a split, shares given up in a merger whose cash comes later, or cash
        that was due.

        untraded: times of the bookings that brought shares of symbols that are not traded here.
        """
        body = entry.body
        if body.kind == "split":
            self._split[body.symbol] = entry.time
        elif body.kind == "other" and body.shares:
            if body.shares < 0.0 and not body.cash_usd and entry.time not in untraded:
                price = self._price([body.symbol], now)[body.symbol]
                self._due.append((body.symbol, entry.time, -body.shares * price))
        elif body.symbol and body.cash_usd > 0.0:
            mine = [due for due in self._due if due[0] == body.symbol]
            if mine:
                self._due.remove(min(mine, key=lambda due: abs(due[2] - body.cash_usd)))

    def _move_capital(
        self,
        booked: Sequence[Activity],
        accepted: Sequence[Adoption],
        untraded: Sequence[str],
        now: int,
    ) -> None:
        """Journal and apply the changes of the account that are neither gain nor loss: deposits,
        withdrawals, accepted differences, and shares that were exchanged for those of `untraded`
        symbols."""
        notable = [one for one in booked if one.kind == "transfer" or one.is_exchange]
        if not notable and not accepted:
            return
        moves = [(one.cash_usd, one.shares) for one in accepted]
        moves += [
            (one.cash_usd, {one.symbol: one.shares})
            for one in notable
            if untraded or one.kind == "transfer"
        ]
        prices = self._price({name for _, shares in moves for name in shares}, now)
        usd = sum(cash for cash, _ in moves)
        usd += sum(count * prices[name] for _, shares in moves for name, count in shares.items())
        texts = [_describe_booking(one) for one in notable]
        texts += [f"{name} is not traded here: sell it by hand" for name in untraded if notable]
        if texts:
            self._alert("account", "; ".join(texts), now)
        before = self._equity_usd
        outside = self._move_outside(usd)
        factor = max(before + usd - outside, 0.0) / before if before > 0.0 else 1.0
        change = CapitalMove("; ".join(texts) or "accepted", factor, outside)
        self.journal.write(change, at=now)
        self.move(change)

    def _move_outside(self, usd: float) -> float:
        """Return the part of a deposit or withdrawal, USD, that moves the part beyond the cap: once
        there is such a part, deposits enlarge it, and withdrawals reduce it first."""
        if self.outside_usd:
            return max(usd, -self.outside_usd)
        if self.cap_usd is None:
            return 0.0
        return max(usd - max(self.cap_usd - self._equity_usd, 0.0), 0.0)


def _describe_booking(booking: Activity) -> str:
    parts = [f"{booking.shares:+.9g} {booking.symbol}"] if booking.shares else []
    parts += [f"{booking.cash_usd:+,.2f} USD"] if booking.cash_usd else []
    return f"{' and '.join(parts)} on {booking.day} ({booking.text or booking.kind})"


def _align(held: Mapping[str, float], symbols: Sequence[str]) -> Array:
    """Return shares by symbol as an array `[N]`."""
    return np.array([held.get(symbol, 0.0) for symbol in symbols])
