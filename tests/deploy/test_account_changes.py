"""Splits, dividends, fees, deposits and new names through the real runner, alpaca-py and a loopback
server: none of them is a difference, a loss or an order in old shares."""

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install 'fintrader[alpaca]'")

from fintrader.backtesting.limits import Limits, LimitSettings
from fintrader.bars.corporate_actions import Action
from fintrader.deploy import control, runner, status
from fintrader.deploy.accounts import Accounts
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.deployment import report_drift
from fintrader.deploy.entries import Adoption, Alert, BarDecision, CapitalMove, Halt, Resumption
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expect_holdings
from fintrader.errors import DataError, DeployError, EnvError
from tests.engines.alpaca_paper import ConstantPolicy, Killed, account, trade
from tests.engines.deployments import MINUTE, OddFeed, frozen
from tests.quick import mostly_slow, slow_but

HELD = {"S000": 585.0, "S001": 374.0, "S002": 673.0, "S003": 438.0}
HOLDS = LimitSettings(turnover=1e-9, day_loss=0.06, drawdown=0.06)
"""Limits that let nothing be ordered."""
OPEN = 26
"""Bar of the window with which its second session opens."""


class SplitFeed(OddFeed):
    """Bars of which some symbols split, or pay, at the open of the second session."""

    def __init__(self, inner, opened, events, announced):
        super().__init__(inner)
        self.opened = opened
        self.events = events
        self.announced = announced
        self.errors = []
        self.day = dt.datetime.fromtimestamp(opened / 1e9, dt.UTC).date()

    def poll(self, since, now):
        return self.change(super().poll(since, now))

    def history(self, first, stop):
        return self.change(super().history(first, stop))

    def change(self, bars):
        factor = np.ones(len(bars))
        paid = np.zeros(len(bars))
        for symbol, (split, dividend) in self.events.items():
            if symbol in bars.symbols:
                is_new = (bars.symbol == bars.symbols.index(symbol)) & (bars.ts >= self.opened)
                factor[is_new] = 1.0 / split
                paid[is_new] = dividend
        prices = {name: getattr(bars, name) - paid for name in ("open", "high", "low", "close")}
        prices = {name: price * factor for name, price in prices.items()}
        return replace(bars, volume=bars.volume / factor, **prices)

    def actions(self, first, last):
        if self.errors and last >= self.day:
            raise self.errors.pop()
        made = [
            Action(symbol=symbol, day=self.day, split=split, dividend_usd=dividend)
            for symbol, (split, dividend) in self.events.items()
        ]
        return [one for one in made if self.announced and first <= one.day <= last]


class Desk:
    """A deployment that decides at each bar of a quarter of an hour, and its account."""

    def __init__(self, home, held):
        self.home = home
        self.bundle, self.market = frozen(home, trade_rate=1.0, decision_interval=1)
        self.server = account(self.market, positions=held)
        self.opened = int(self.market.minutes[OPEN])
        assert self.market.session[OPEN - 1] != self.market.session[OPEN]
        self.action = lambda now: 1.0
        self.at = {}
        """Time -> what happens then, once."""
        self.events = {}
        self.announced = True
        self.feed_errors = []
        """Errors of the feed's next answers about splits from the second session on."""
        self.dropped = set()

    def live(self, bars, **chosen):
        """One life up to a bar of the window."""

        def change(runner):
            self.runner = runner
            runner.policy = ConstantPolicy(runner.policy, 1.0)
            runner.feed = SplitFeed(runner.feed.inner, self.opened, self.events, self.announced)
            runner.feed.dropped = self.dropped
            runner.feed.errors = self.feed_errors
            runner.clock.at_minute = minute

        def minute(now):
            self.runner.policy.action = self.action(now)
            for moment in [one for one in self.at if now >= one]:
                self.at.pop(moment)()
            row = int(np.searchsorted(self.market.minutes.numpy(), now - 15 * MINUTE))
            for number, symbol in enumerate(self.market.symbols):
                split, dividend = self.events.get(symbol, (1.0, 0.0))
                price = float(self.market.close[row, number])
                is_new = now >= self.opened
                self.server.prices[symbol] = (price - dividend) / split if is_new else price

        trade(
            self.home,
            self.bundle,
            self.market,
            self.server,
            bars,
            change=change,
            **({"adopt": True} | chosen),
        ).close()

    def overnight(self, *actions):
        """Do something before the second session opens."""
        self.at[self.opened - 60 * MINUTE] = lambda: [action() for action in actions]

    def journal(self):
        return Journal(self.home / "journal.sqlite", reading=True)

    def halts(self):
        with self.journal() as journal:
            return [entry.body.why for entry in journal.entries(Halt)]

    def news(self, kind):
        with self.journal() as journal:
            return [entry.body.text for entry in journal.entries(Alert, key=kind)]

    def equity(self):
        with self.journal() as journal:
            return [entry.body.equity for entry in journal.entries(BarDecision)]

    def largest_step(self):
        """The largest change of the equity from one decision to the next, as a share."""
        return np.abs(np.diff(np.log(self.equity()))).max()

    def check(self):
        """No halt, and the account to the cent."""
        assert self.halts() == []
        with self.journal() as journal:
            known = expect_holdings(journal)
        assert known.shares == pytest.approx(self.server.positions)
        assert known.cash_usd == pytest.approx(self.server.cash, abs=0.01)


@pytest.fixture
def desk(tmp_path):
    one = Desk(tmp_path, HELD)
    with one.server:
        yield one


SPLITS = [
    (ratio, fraction, announced, listed)
    for ratio, fraction in ((2.0, True), (1.5, False), (0.1, False))
    for announced, listed in ((True, True), (True, False), (False, True))
]


@pytest.mark.parametrize(
    ("ratio", "fraction", "announced", "listed"),
    [
        pytest.param(*how, marks=() if number == 8 else pytest.mark.slow)
        for number, how in enumerate(SPLITS)
    ],
)
def test_a_split_overnight_is_no_difference_and_no_loss(desk, ratio, fraction, announced, listed):
    desk.events = {"S000": (ratio, 0.0)}
    desk.announced = announced
    desk.overnight(lambda: desk.server.split("S000", ratio, fraction=fraction, listed=listed))
    desk.live(OPEN + 4)
    desk.check()
    assert desk.largest_step() < 0.01


@pytest.mark.slow
def test_a_split_that_is_booked_late_is_neither_a_loss_nor_traded(desk):
    desk.events = {"S000": (0.1, 0.0)}
    desk.action = lambda now: -30.0 if now > desk.opened else 1.0
    desk.at[desk.opened + 70 * MINUTE] = lambda: desk.server.split("S000", 0.1, fraction=False)
    desk.live(OPEN + 3)
    with desk.journal() as journal:
        known = expect_holdings(journal)
    assert desk.server.positions["S000"] == pytest.approx(10.0 * known.shares["S000"])
    desk.live(OPEN + 6)
    desk.check()
    assert desk.largest_step() < 0.01
    assert desk.server.positions["S000"] < 5.0
    assert "has not booked the split of S000 yet" in desk.news("held")[0]


@pytest.mark.parametrize(
    ("ratio", "late", "errors"),
    [
        (10.0, False, []),
        (0.1, True, []),
        (0.1, True, [DataError("busy"), DataError("busy")]),
        (2.0, True, []),
        (2.0, True, [DataError("busy"), KeyError("new_rate")]),
    ],
)
def test_a_flatten_at_the_open_sells_the_shares_that_are_there(desk, ratio, late, errors):
    """The feed may name the split once the shares have been counted."""
    desk.feed_errors = errors
    desk.events = {"S000": (ratio, 0.0)}
    desk.server.positions = {"S000": 585.0, "S001": 374.0}
    sold = []

    def book():
        sold.extend(row for row in desk.server.orders.values() if row["symbol"] == "S000")
        day = str(dt.datetime.fromtimestamp(desk.opened / 1e9, dt.UTC).date())
        # A split is of the shares of the night, whatever was sold since; fractions are paid.
        more = 585.0 * (ratio - 1.0)
        held = desk.server.positions.get("S000", 0.0)
        lieu = (held + more) % 1.0
        desk.server.book("SPLIT", symbol="S000", shares=more - lieu, day=day)
        if lieu:
            desk.server.book("CIL", lieu * desk.server.prices["S000"], "S000", day=day)
        if not late:
            desk.server.prices["S000"] /= ratio

    if late:
        desk.at[desk.opened + 70 * MINUTE] = book
        desk.overnight(lambda: control.ask(desk.home, "flatten"))
    else:
        desk.overnight(book, lambda: control.ask(desk.home, "flatten"))
    desk.live(OPEN + 8, limits=HOLDS)
    assert desk.server.refusals == []
    assert desk.server.positions == {}
    assert desk.news("flat")
    orders = [row for row in desk.server.orders.values() if row["symbol"] == "S000"]
    counts = [float(row["qty"]) for row in orders]
    assert counts == {10.0: [5850.0], 0.1: [58.0], 2.0: [585.0, 585.0]}[ratio]
    assert [row["qty"] for row in orders[: len(sold)]] == [row["qty"] for row in sold]
    waits = any("has not booked its split yet" in text for text in desk.news("flatten"))
    assert waits == late


def buy_in_the_evening(desk):
    """Decide to buy at the first session's last bar, for the first time."""
    evening = int(desk.market.minutes[OPEN - 1]) + 15 * MINUTE
    desk.server.positions.clear()
    desk.action = lambda now: 1.0 if now > evening else -30.0


def first_reports(desk):
    """The reports of the orders of the evening, by symbol."""
    with desk.journal() as journal:
        entries = journal.entries(OrderReport)
        decided = next(entry.body for entry in journal.entries(BarDecision) if entry.body.orders)
    stamp = entries[0].key.rsplit("-", 1)[0]
    mine = [entry.body for entry in entries if entry.key.startswith(stamp)]
    return decided, {
        symbol: [one for one in mine if one.symbol == symbol] for symbol in decided.orders
    }


@pytest.mark.parametrize("ratio", slow_but(1, every=[2.0, 0.1]))
def test_an_order_of_the_evening_leaves_in_new_shares(desk, ratio):
    buy_in_the_evening(desk)
    desk.events = {"S000": (ratio, 0.0)}
    desk.live(OPEN + 1)
    desk.check()
    decided, reports = first_reports(desk)
    asked = decided.orders["S000"]
    assert any(
        f"{asked:g} before the split {ratio:g} for 1" in one.reason for one in reports["S000"]
    )
    filled = reports["S000"][-1]
    assert filled.filled == filled.shares == int(asked * ratio)
    worth = filled.filled * filled.price_usd
    assert worth == pytest.approx(asked * decided.prices["S000"], rel=0.02)
    assert reports["S001"][-1].filled == decided.orders["S001"]


@pytest.mark.slow
def test_an_order_of_less_than_a_new_share_is_dropped_with_its_reason(desk):
    buy_in_the_evening(desk)
    desk.events = {"S000": (0.0001, 0.0)}
    desk.live(OPEN)
    decided, reports = first_reports(desk)
    last = reports["S000"][-1]
    assert last.state == "expired"
    assert f"{decided.orders['S000']:g} before the split 0.0001 for 1" in last.reason
    assert "S000" not in desk.server.positions


@pytest.mark.parametrize(
    "killed_at", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (-200, 1, 2))]
)
def test_a_kill_does_not_rescale_an_order_twice(desk, killed_at):
    buy_in_the_evening(desk)
    desk.events = {"S000": (2.0, 0.0)}

    def die():
        raise Killed

    desk.at[desk.opened + killed_at * MINUTE] = die
    with pytest.raises(Killed):
        desk.live(OPEN + 1)
    desk.live(OPEN + 1)
    desk.check()
    decided, reports = first_reports(desk)
    assert sum("before the split" in one.reason for one in reports["S000"]) in (1, 2)
    assert reports["S000"][-1].filled == 2.0 * decided.orders["S000"]


def test_no_order_of_the_evening_leaves_while_splits_cannot_be_read(desk):
    buy_in_the_evening(desk)

    def break_feed():
        def refuse(first, last):
            raise DataError("no answer")

        desk.runner.feed.actions = refuse

    def mend_feed():
        assert not desk.server.orders
        del desk.runner.feed.actions

    desk.at[desk.opened - 60 * MINUTE] = break_feed
    desk.at[desk.opened + 8 * MINUTE] = mend_feed
    desk.live(OPEN + 1)
    assert "no order leaves before the account is read: no answer" in desk.news("skipped")
    assert desk.server.positions
    desk.check()


@pytest.mark.slow
def test_a_stock_without_bars_keeps_its_last_price(desk):
    desk.server.positions = {"S001": 10_000.0, "S002": 2_000.0}
    minutes = desk.market.minutes.numpy()[OPEN : OPEN + 8]
    desk.dropped = {("S001", int(minute)) for minute in minutes}
    desk.live(OPEN + 12, limits=HOLDS)
    desk.check()
    assert desk.largest_step() < 0.02


@pytest.mark.slow
def test_bars_without_volume_are_decided_upon_later(desk):
    def refuse(*_):
        raise EnvError("the bars hold no volume, of which an order may take a share")

    rows = {}

    def break_rows():
        rows["at"] = desk.runner.recorder.rows.at
        desk.runner.recorder.rows.at = refuse

    def mend_rows():
        desk.runner.recorder.rows.at = rows["at"]

    desk.at = {
        int(desk.market.minutes[3]) + MINUTE: break_rows,
        int(desk.market.minutes[5]) + MINUTE: mend_rows,
    }
    desk.live(8)
    desk.check()
    assert "hold no volume" in desk.news("skipped")[0]
    assert len(desk.equity()) == 7


@pytest.mark.parametrize("how", mostly_slow("listed", every=["listed", "not listed"]))
def test_fees_halt_no_quiet_minute(desk, how):
    desk.server.positions.clear()  # it buys, and has traded enough for 28 USD of fees
    desk.at[int(desk.market.minutes[8])] = lambda: desk.server.book(
        "FEE", -28.0, listed=how == "listed"
    )
    desk.live(14)
    desk.check()


def test_dividends_count_from_their_day_on_and_once(desk):
    desk.events = {"S001": (1.0, 5.0)}
    desk.at[desk.opened + 100 * MINUTE] = lambda: desk.server.book(
        "DIV", 5.0 * desk.server.positions["S001"], "S001", desk.server.positions["S001"]
    )
    desk.server.positions = {"S001": 30_000.0}
    desk.live(OPEN - 1, limits=HOLDS)
    desk.live(OPEN + 12, limits=HOLDS)
    desk.check()
    assert 0.05 * desk.equity()[0] < 30_000.0 * 5.0
    assert desk.largest_step() < 0.02


@pytest.mark.parametrize("usd", slow_but(0, every=[-4e5, 1e6]))
def test_a_deposit_and_a_withdrawal_are_no_gain_and_no_loss(desk, usd):
    desk.at[int(desk.market.minutes[6])] = lambda: desk.server.book(
        "CSD" if usd > 0 else "CSW", usd
    )
    desk.live(8)
    desk.live(12)
    desk.check()
    with desk.journal() as journal:
        first, last = (journal.entries(BarDecision)[at].body for at in (0, -1))
    assert last.equity == pytest.approx(first.equity + usd, rel=0.02)
    assert last.equity / last.peak == pytest.approx(1.0, abs=0.02)
    assert last.equity / last.first == pytest.approx(1.0, abs=0.02)
    assert desk.runner.limits.peak_usd == pytest.approx(last.equity, rel=0.02)
    (told,) = desk.news("account")
    assert f"{usd:+,.2f} USD" in told
    drift = report_drift(desk.home)
    assert drift.equity.account_return == pytest.approx(0.0, abs=0.02)


def test_a_new_name_and_a_merger_are_one_sentence_each_and_no_loss(desk):
    def rename():
        count = desk.server.positions["S002"]
        desk.server.book("NC", 0.0, "S002", -count, description="name change")
        desk.server.book("NC", 0.0, "NEW", count, description="name change")

    def merge():
        count = desk.server.positions["S003"]
        usd = count * desk.server.prices["S003"]
        desk.server.book("MA", 0.0, "S003", -count, description="cash merger")
        desk.at[int(desk.market.minutes[6])] = lambda: desk.server.book("MA", usd, "S003")

    desk.server.positions = {"S002": 2000.0, "S003": 1500.0}
    desk.at[int(desk.market.minutes[2]) - MINUTE] = rename
    desk.at[int(desk.market.minutes[4]) - MINUTE] = merge
    desk.live(5, limits=HOLDS)
    desk.live(8, limits=HOLDS)
    assert desk.halts() == []
    renamed, merged = desk.news("account")
    assert "NEW is not traded here: sell it by hand" in renamed
    assert "S002" in renamed
    assert "S003" in merged
    assert "cash merger" in merged
    with desk.journal() as journal:
        last = journal.last(BarDecision).body
    assert last.equity == pytest.approx(last.peak, rel=0.02)
    assert last.equity == pytest.approx(desk.server.cash, rel=0.001)


def test_accepted_differences_are_agreed_and_resumed(desk):
    def by_hand():
        desk.server.positions["S000"] -= 100.0
        desk.server.cash += 2_000.0

    desk.at[int(desk.market.minutes[4]) + MINUTE] = by_hand
    desk.live(6)
    (why,) = desk.halts()
    assert "485 shares of S000 are held, 585 expected" in why or "S000 are held" in why
    assert f"`fintrader accept {desk.home.name}`" in why
    with pytest.raises(DeployError, match="`fintrader accept`"):
        desk.live(8, adopt=False)
    control.ask(desk.home, "accept")
    desk.live(8, adopt=False)
    assert desk.news("accept")[-1].startswith("accepted: 1017 shares of S000")
    control.ask(desk.home, "resume")
    desk.live(10, adopt=False)
    desk.live(12, adopt=False)
    assert len(desk.halts()) == 1
    with desk.journal() as journal:
        assert len(journal.entries(Adoption)) == 2  # of the first start, and this one
        assert journal.last(Adoption).seq < journal.last(Resumption).seq
    assert status.read_status(desk.home).state == "stopped"


def test_a_running_deployment_accepts_and_goes_on(desk):
    minutes = desk.market.minutes.numpy()
    desk.at = {
        int(minutes[4]) + MINUTE: lambda: desk.server.positions.pop("S000"),
        int(minutes[6]) + MINUTE: lambda: control.ask(desk.home, "accept"),
        int(minutes[6]) + 3 * MINUTE: lambda: control.ask(desk.home, "resume"),
        int(minutes[8]) + MINUTE: lambda: control.ask(desk.home, "accept"),
    }
    desk.live(10)
    assert len(desk.halts()) == 1
    assert desk.news("accept")[1].startswith("accepted: 0 shares of S000 are held")
    assert "nothing was accepted" in desk.news("accept")[2]
    with desk.journal() as journal:
        assert journal.find_halt() is None
        last = journal.last(BarDecision).body
    assert last.equity == pytest.approx(last.peak, rel=0.02)  # what was accepted is no loss


def test_what_was_not_named_is_not_accepted(desk):
    desk.at[int(desk.market.minutes[4]) + MINUTE] = lambda: desk.server.positions.pop("S000")
    desk.live(6)
    control.ask(desk.home, "accept")
    desk.server.positions.pop("S001")
    with pytest.raises(DeployError, match="S001"):
        desk.live(8, adopt=False)
    assert "nothing was accepted" in desk.news("accept")[1]
    control.ask(desk.home, "accept")
    desk.live(8, adopt=False)
    assert desk.news("accept")[2].startswith("accepted: ")


def test_a_split_that_was_accepted_is_not_due_again(desk):
    desk.events = {"S000": (2.0, 0.0)}
    desk.announced = False
    desk.overnight(lambda: desk.server.split("S000", 2.0, listed=False))
    desk.at[desk.opened + 20 * MINUTE] = lambda: control.ask(desk.home, "accept")
    desk.live(OPEN + 4)
    assert "S000" in desk.news("accept")[-1]
    desk.announced = True
    desk.live(OPEN + 6)
    with desk.journal() as journal:
        known = expect_holdings(journal)
    assert known.owed == {}
    assert known.shares == pytest.approx(desk.server.positions)


@pytest.mark.parametrize("again", [False, True])
def test_a_split_that_a_start_took_over_is_not_due_again(desk, again):
    """The broker books it in the night, and says so in no activity."""
    limits = LimitSettings(turnover=1e-9, day_loss=0.5, drawdown=0.5)
    desk.events = {"S000": (2.0, 0.0)}
    desk.announced = False
    desk.live(OPEN - 1, limits=limits)
    desk.server.split("S000", 2.0, listed=False)
    desk.live(OPEN - 1, limits=limits)  # with --adopt
    if again:
        desk.server.positions["S001"] += 1.0
        desk.live(OPEN - 1, limits=limits)
    desk.announced = True
    desk.live(OPEN + 3, limits=limits)
    desk.check()


def test_a_split_is_due_although_a_share_was_accepted(desk):
    desk.events = {"S000": (2.0, 0.0)}
    desk.announced = False
    desk.live(OPEN - 1, limits=HOLDS)
    desk.server.positions["S000"] += 1.0
    desk.live(OPEN - 1, limits=HOLDS)
    desk.announced = True
    desk.live(OPEN + 2, limits=HOLDS)
    with desk.journal() as journal:
        known = expect_holdings(journal)
    assert known.shares["S000"] == 2.0 * desk.server.positions["S000"]
    assert desk.halts() == []


def test_a_start_that_adopts_says_what_it_took(desk):
    desk.live(4)
    (said,) = desk.news("accept")
    assert said.startswith("accepted: ")
    assert "585 shares of S000" in said
    desk.live(6)
    assert desk.news("accept") == [said]


def lose(desk, share):
    """From a moment on, all prices are lower."""
    desk.events = dict.fromkeys(desk.market.symbols, (1.0 / (1.0 - share), 0.0))
    desk.announced = False


def test_a_resumption_after_a_drawdown_outlives_the_process(desk):
    lose(desk, 0.3)
    desk.live(OPEN + 3, limits=LimitSettings(day_loss=1.0, drawdown=0.03))
    assert ["since its peak" in why for why in desk.halts()] == [True]
    control.ask(desk.home, "resume")
    limits = LimitSettings(day_loss=1.0, drawdown=0.03)
    desk.live(OPEN + 5, limits=limits)
    desk.live(OPEN + 7, limits=limits)
    assert len(desk.halts()) == 1
    assert status.read_status(desk.home).state == "stopped"
    with desk.journal() as journal:
        assert not journal.last(BarDecision).body.why


def test_a_cap_counts_from_the_first_bar_on(desk, monkeypatch):
    monkeypatch.setattr(runner, "refuse_real_money", lambda is_wanted: None)
    desk.server.positions.clear()
    desk.live(10, adopt=False, cap_usd=10_000.0)
    desk.check()
    equity = desk.equity()
    assert max(equity) <= 10_000.0 + 1e-6
    assert min(equity) > 9_900.0
    worth = sum(n * desk.server.prices[name] for name, n in desk.server.positions.items())
    assert 2_000.0 < worth < 10_100.0


def test_a_capped_account_halts_at_a_loss_of_its_own(desk, monkeypatch):
    monkeypatch.setattr(runner, "refuse_real_money", lambda is_wanted: None)
    desk.server.positions.clear()
    lose(desk, 0.5)
    limits = LimitSettings(day_loss=1.0, drawdown=0.1)
    desk.live(OPEN + 4, adopt=False, cap_usd=10_000.0, limits=limits)
    (why,) = desk.halts()
    assert "since its peak; the limit is 10.0%" in why
    assert desk.news("consent")[0].startswith("the consent lapses on 2019-03-06")  # days before


def test_a_flatten_outlives_the_consent_and_orders_do_not(desk, monkeypatch):
    monkeypatch.setattr(runner, "refuse_real_money", lambda is_wanted: None)
    desk.server.positions = {"S000": 20.0, "S001": 10.0}
    desk.server.pace["S000"] = (0.0,)
    opened = int(desk.market.minutes[3])
    desk.at[opened + MINUTE] = lambda: control.ask(desk.home, "flatten")
    desk.at[opened + 60 * MINUTE] = lambda: desk.server.pace.pop("S000")
    desk.live(3, cap_usd=10_000.0)  # the stock trades after the end
    assert desk.server.positions == {}
    assert desk.news("flat")


def test_orders_end_after_the_consent_also_when_the_broker_is_away(desk, monkeypatch):
    monkeypatch.setattr(runner, "refuse_real_money", lambda is_wanted: None)
    desk.server.positions.clear()
    desk.server.pace = dict.fromkeys(desk.server.prices, (0.0,))
    until = int(desk.market.minutes[3]) + 15 * MINUTE
    desk.at[until - 2 * MINUTE] = lambda: setattr(desk.server, "outage", "503")
    desk.at[until + 10 * MINUTE] = lambda: setattr(desk.server, "outage", "")
    desk.live(3, adopt=False, cap_usd=10_000.0)
    assert desk.server.orders
    assert {order["status"] for order in desk.server.orders.values()} == {"canceled"}


def test_no_order_is_sent_after_the_consent(desk, monkeypatch):
    """The feed's last answer takes two minutes, and its decision would sell."""
    monkeypatch.setattr(runner, "refuse_real_money", lambda is_wanted: None)
    desk.server.positions.clear()
    until = int(desk.market.minutes[3]) + 15 * MINUTE
    desk.action = lambda now: -1.0 if now >= until else 1.0
    sent = []
    desk.server.witness = lambda order: sent.append(desk.runner.clock.now())

    def slow_down():
        poll = desk.runner.feed.poll

        def answer(since, now):
            desk.runner.clock._now = until + 2 * MINUTE
            return poll(since, now)

        desk.runner.feed.poll = answer

    desk.at[until] = slow_down
    desk.live(3, adopt=False, cap_usd=10_000.0)
    with desk.journal() as journal:
        decisions = [entry.body for entry in journal.entries(BarDecision)]
    assert decisions[-1].bar == int(desk.market.minutes[2])
    assert desk.server.positions
    assert sent
    assert max(sent) <= until


def test_cash_beyond_the_cap_is_never_negative():
    """Withdrawn twice, as where a restart reads a booking of the last decision again."""
    accounts = Accounts.__new__(Accounts)
    accounts._first_usd = accounts._peak_usd = accounts._equity_usd = 5e3
    accounts.limits = Limits(LimitSettings())
    accounts.outside_usd = 1e3
    accounts.move(CapitalMove("a withdrawal", 1.0, -2e3))
    assert accounts.outside_usd == 0.0


def test_a_deposit_above_the_cap_is_no_loss(desk, monkeypatch):
    monkeypatch.setattr(runner, "refuse_real_money", lambda is_wanted: None)
    desk.server.positions.clear()
    cap = desk.server.cash * 1.2
    deposit = desk.server.cash * 5.0
    desk.at[int(desk.market.minutes[6])] = lambda: desk.server.book("CSD", deposit)
    desk.live(12, adopt=False, cap_usd=cap)
    desk.check()
    equity = desk.equity()
    assert max(equity) == pytest.approx(cap, rel=0.02)
    assert min(equity) < cap / 1.1


@pytest.mark.slow
def test_a_withdrawal_from_beyond_the_cap_changes_nothing_inside(desk, monkeypatch):
    monkeypatch.setattr(runner, "refuse_real_money", lambda is_wanted: None)
    desk.server.positions.clear()
    desk.at[int(desk.market.minutes[6])] = lambda: desk.server.book("CSW", -900_000.0)
    desk.live(8, adopt=False, cap_usd=10_000.0)
    desk.live(12, adopt=False, cap_usd=10_000.0)
    desk.check()
    assert max(desk.equity()) - min(desk.equity()) < 100.0
