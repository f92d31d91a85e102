"""A flatten through the real runner, alpaca-py and a loopback server: it ends when nothing is
held."""

import contextlib
import datetime as dt
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install 'fintrader[alpaca]'")

from fintrader.cli import main
from fintrader.deploy import alerts, control, status
from fintrader.deploy.entries import Alert, FlattenEnd, Halt, Resumption
from fintrader.deploy.journal import Journal
from fintrader.deploy.settings import AlertSettings
from fintrader.errors import DeployError
from tests.engines.alpaca_paper import ConstantPolicy, Killed, account, trade
from tests.engines.deployments import MINUTE, frozen, run_live, settings
from tests.quick import mostly_slow

HELD = {"S000": 64.0, "S001": 374.0, "S002": 673.0, "S003": 438.0}


class Deployed:
    """A deployment that has taken over four positions, and the account that it trades."""

    def __init__(self, home):
        self.home = home
        self.bundle, self.market = frozen(home, trade_rate=1.0)
        self.server = account(self.market, positions=HELD)
        self.told = home / "told.jsonl"

    def live(self, bars, hook=lambda runner, now: None, *, action=1.0, **chosen):
        """One life up to a bar of the window; `hook` is called every minute."""

        def change(runner):
            runner.policy = ConstantPolicy(runner.policy, action)
            runner.clock.at_minute = lambda now: hook(runner, now)

        # One write a line: alerts are delivered at once.
        command = ("sh", "-c", 'printf "%s\\n" "$(cat)" >> "$0"', str(self.told))
        chosen = {"adopt": True, "alerts": AlertSettings(command=command)} | chosen
        trade(
            self.home, self.bundle, self.market, self.server, bars, change=change, **chosen
        ).close()

    def hold(self):
        """Begin, and hold what is held."""
        control.ask(self.home, "halt")
        self.live(1)

    def minute(self, bar, minutes):
        """So many minutes after a bar of the window has begun."""
        return int(self.market.minutes[bar]) + minutes * MINUTE

    def alerts(self):
        """What the alert's program was given."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        return [json.loads(line) for line in lines]

    def journal(self):
        return Journal(self.home / "journal.sqlite", reading=True)

    def is_flat(self):
        with self.journal() as journal:
            is_ended = journal.last(FlattenEnd) is not None and not journal.is_flattening()
        stands = [
            row
            for row in self.server.orders.values()
            if row["status"] not in ("filled", "canceled")
        ]
        return is_ended and not stands and not set(self.server.positions) & set(self.market.symbols)


@pytest.fixture
def deployed(tmp_path):
    one = Deployed(tmp_path)
    with one.server:
        yield one


def once(moment, action):
    """Do something at the first look from a moment on."""
    left = [action]

    def hook(runner, now):
        if left and now >= moment:
            left.pop()()

    return hook


def stop_filling(server):
    """No order is filled, and none is refused, until the pace is another."""
    server.pace = dict.fromkeys(server.prices, (0.0,))


def test_four_open_sales_and_a_flatten_end_flat(deployed):
    server = deployed.server
    server.cancel_ticks = 3
    stop_filling(server)

    sales = []

    def flatten():
        sales.extend(server.orders.values())
        assert [row["status"] for row in sales] == [
            "new"
        ] * 4  # each binds the shares of its symbol
        control.ask(deployed.home, "flatten")

    ask = once(deployed.minute(1, 4), flatten)

    def hook(runner, now):
        ask(runner, now)
        if sales and all(row["status"] in ("pending_cancel", "canceled") for row in sales):
            server.pace.clear()  # what comes now is filled

    deployed.live(3, hook, action=-1.0)
    assert server.refusals == []
    assert deployed.is_flat()
    with deployed.journal() as journal:
        assert [entry.body.why for entry in journal.entries(Halt)] == ["asked to flatten"]
        assert [report.state for report in journal.orders().values()] == ["cancelled"] * 4 + [
            "filled"
        ] * 4
    told = status.read_status(deployed.home)
    assert (told.state, told.held, told.flattening) == ("halted", {}, False)
    assert [one["kind"] for one in deployed.alerts()].count("flat") == 1


def test_one_order_that_cannot_be_cancelled_keeps_no_other_position(deployed):
    server = deployed.server
    server.cancel_ticks = 3
    stop_filling(server)
    rows = []

    def stuck(runner, now):
        rows[:] = [row for row in server.orders.values() if row["symbol"] == "S002"]
        if rows and rows[0]["status"] == "pending_cancel":
            server._cancel_left[rows[0]["id"]] = 10
            server.pace.clear()

    flatten = once(deployed.minute(1, 4), lambda: control.ask(deployed.home, "flatten"))

    def hook(runner, now):
        flatten(runner, now)
        stuck(runner, now)

    deployed.live(3, hook, action=-1.0)
    assert set(server.positions) == {"S002"}
    told = status.read_status(deployed.home)
    assert told.flattening
    assert "not flat yet: 673 S002 left to sell; S002: an order is open" in told.why
    assert "no process runs it: start it again" in told.why
    deployed.live(5)
    assert deployed.is_flat()


@pytest.mark.slow
def test_a_stock_without_bars_and_fills_is_tried_with_every_bar(deployed, monkeypatch):
    monkeypatch.setattr(
        alerts, "PAUSE_SECONDS", 0.0
    )  # the test's clock runs faster than this machine's
    server = deployed.server
    server.pace["S001"] = (0.0,)

    def halted(runner, now):
        feed = runner.feed
        feed.dropped = {("S001", deployed.minute(bar, 0)) for bar in range(1, 6)}
        if now >= deployed.minute(6, 2):
            server.pace["S001"] = (1.0,)

    deployed.hold()
    control.ask(deployed.home, "flatten")
    deployed.live(5, halted)
    assert set(server.positions) == {"S001"}
    sales = [row for row in server.orders.values() if row["symbol"] == "S001"]
    assert len(sales) >= 3  # one a bar
    shouted = [one["text"] for one in deployed.alerts() if one["kind"] == "flatten"]
    assert sum("374 S001 left to sell" in text for text in shouted) >= 4  # as long as it is left
    deployed.live(8, halted)
    assert deployed.is_flat()


def test_fractions_are_sold_too(deployed):
    server = deployed.server
    server.positions |= {"S001": 358.5, "S004": 0.25, "S003": 1.0}
    deployed.hold()
    control.ask(deployed.home, "flatten")
    deployed.live(3)
    assert deployed.is_flat()
    assert server.refusals == []
    sold = sorted(
        (row["symbol"], row["qty"]) for row in server.orders.values() if row["side"] == "sell"
    )
    assert [row for row in sold if row[0] in ("S001", "S004")] == [
        ("S001", "0.5"),
        ("S001", "358"),
        ("S004", "0.25"),
    ]
    assert status.read_status(deployed.home).held == {}


@pytest.mark.slow
def test_a_fraction_that_the_broker_refuses_keeps_no_whole_share(deployed):
    server = deployed.server
    server.whole_only = {"S001"}
    server.positions["S001"] = 358.5
    deployed.hold()
    control.ask(deployed.home, "flatten")
    deployed.live(3)
    assert server.positions == {"S001": 0.5}
    told = status.read_status(deployed.home)
    assert told.flattening
    assert "not flat yet: 0.5 S001 left to sell" in told.why
    assert 'S001: asset "S001" is not fractionable' in told.why
    assert len(server.refusals) <= 45  # once a minute, no oftener
    server.whole_only = set()
    deployed.live(5)
    assert deployed.is_flat()


@pytest.mark.parametrize(
    "fault", mostly_slow("504_after", every=["503", "403", "reset", "504_after"])
)
def test_errors_of_the_broker_end_no_flatten(deployed, fault):
    server = deployed.server
    deployed.hold()
    flatten = once(deployed.minute(2, 2), lambda: control.ask(deployed.home, "flatten"))

    def hook(runner, now):
        is_away = deployed.minute(2, 1) <= now < deployed.minute(4, 1)
        server.outage = fault if is_away else ""
        flatten(runner, now)

    deployed.live(3, hook)  # ends while the broker is away, with the flatten begun
    assert server.positions == HELD or fault == "504_after"
    assert status.read_status(deployed.home).flattening
    deployed.live(3, hook)  # begins while it is away
    deployed.live(6, hook)
    assert deployed.is_flat()
    assert {row["status"] for row in server.orders.values()} <= {"filled", "canceled"}


def break_feed(runner):
    class Feed:
        kind = "replay"

        def __getattr__(self, name):
            raise ZeroDivisionError("a bug")

    runner.feed = Feed()


def fill_disk(runner):
    runner.journal._base.execute("PRAGMA max_page_count = 1")


def break_policy(runner):
    runner.policy = ConstantPolicy(runner.policy, float("nan"))


@pytest.mark.parametrize("fault", [break_feed, break_policy, fill_disk])
def test_a_flatten_goes_on_while_everything_else_is_broken(deployed, fault, monkeypatch):
    monkeypatch.setattr(alerts, "PAUSE_SECONDS", 0.0)
    deployed.hold()
    flatten = once(deployed.minute(2, 2), lambda: control.ask(deployed.home, "flatten"))
    faulty = []

    def hook(runner, now):
        if now >= deployed.minute(2, 1) and not faulty:
            faulty.append(fault(runner))
        if now >= deployed.minute(4, 1):  # somebody makes room
            runner.journal._base.execute("PRAGMA max_page_count = 1000000")
        flatten(runner, now)

    with contextlib.suppress(ZeroDivisionError):  # which ends it, once it is flat
        deployed.live(6, hook)
    assert deployed.is_flat()
    if fault is fill_disk:
        texts = [one["text"] for one in deployed.alerts() if one["kind"] == "flatten"]
        assert sum("free space" in text for text in texts) > 20  # a minute each


def test_a_flatten_between_two_bars_shouts_every_minute(deployed, monkeypatch):
    monkeypatch.setattr(alerts, "PAUSE_SECONDS", 0.0)
    stop_filling(deployed.server)
    deployed.hold()
    control.ask(deployed.home, "flatten")
    deployed.live(2)
    texts = [one["text"] for one in deployed.alerts() if one["kind"] == "flatten"]
    assert len(texts) >= 25


def test_all_deployments_are_flattened_by_one_command(deployed, tmp_path, capsys):
    folder = tmp_path / "deployments"
    for name in ("one", "two"):
        shutil.copytree(deployed.bundle.folder, folder / name / "bundle")
    (folder / "three").mkdir()
    (folder / "three" / "journal.sqlite").touch()  # a damaged one keeps no other from it
    with pytest.raises(SystemExit):
        main(["flatten", "--all", "--deployments-dir", str(folder)])
    assert "three" in capsys.readouterr().err
    for name in ("one", "two"):
        assert [kind for _, kind in control.list_requests(folder / name)] == ["flatten"]


@pytest.mark.slow
def test_no_sale_leaves_after_the_close_of_a_half_day(tmp_path):
    data = settings(
        start=dt.date(2019, 10, 14),
        source={"kind": "synthetic", "seed": 3, "num_symbols": 4, "num_sessions": 60},
        bar_minutes=130,
    )
    data = data.model_copy(update={"bar_minutes": 130})
    bundle, market = frozen(tmp_path, data, trade_rate=1.0)
    minutes = market.minutes.numpy()
    half = next(
        at
        for at in range(len(minutes) - 1)
        if np.bincount(market.session.numpy())[market.session[at]] == 2
    )
    server = account(market, positions=dict.fromkeys(market.symbols, 10.0))
    closes = int(minutes[half]) + 210 * MINUTE
    left = []
    with server:

        def change(runner):
            ask = once(closes + 10 * MINUTE, lambda: control.ask(tmp_path, "flatten"))

            def hook(now):
                ask(runner, now)
                left.extend(now for _ in range(len(server.orders) - len(left)))

            runner.clock.at_minute = hook

        trade(
            tmp_path, bundle, market, server, half + 3, begin=half, change=change, adopt=True
        ).close()
    assert left
    assert all(now >= int(minutes[half + 2]) for now in left if now >= closes)


def test_shares_are_not_sold_twice_where_the_broker_counts_late(deployed):
    server = deployed.server
    deployed.hold()
    server.stale = 2
    control.ask(deployed.home, "flatten")
    deployed.live(4)
    assert server.refusals == []
    assert len(server.orders) == 4
    assert deployed.is_flat()


def test_a_kill_at_any_minute_of_a_flatten_leaves_it_going(deployed):
    server = deployed.server
    server.pace = dict.fromkeys(HELD, (0.0, 0.0, 0.0, 0.1, 0.1, 0.3, 0.3, 0.5, 0.5, 1.0))
    server.cancel_ticks = 2
    deployed.hold()
    control.ask(deployed.home, "flatten")
    lives = 0

    def kill(runner, now):
        begun.append(now)
        if len(begun) == 1 + lives % 4:
            raise Killed

    while not deployed.is_flat():
        lives += 1
        assert lives < 60
        begun = []
        with pytest.raises(Killed):
            deployed.live(60, kill)
    assert lives > 2
    assert server.refusals == []


def test_what_is_not_its_own_stays_and_is_named(deployed):
    server = deployed.server
    server.prices["MINE"] = 5.0
    server.positions["MINE"] = 7.0
    deployed.hold()
    control.ask(deployed.home, "flatten")
    deployed.live(3)
    assert server.positions == {"MINE": 7.0}
    assert deployed.is_flat()
    with deployed.journal() as journal:
        flat = journal.last(Alert, "flat")
    assert "7 MINE stay: of other symbols" in flat.body.text


@pytest.mark.slow
def test_shares_bound_by_an_order_of_others_are_named_until_they_are_free(deployed):
    server = deployed.server
    deployed.hold()
    server.pace["S003"] = (0.0,)
    row = server.accept("S003", -400.0, "by hand")
    control.ask(deployed.home, "flatten")
    deployed.live(3)
    assert set(server.positions) == {"S003"}
    assert row["status"] == "new"  # it is not this deployment's
    refusal = "insufficient qty available for order (requested: 438, available: 38)"
    assert refusal in status.read_status(deployed.home).why
    row["status"] = "canceled"
    server.pace.clear()
    deployed.live(5)
    assert deployed.is_flat()


def test_a_flatten_sells_nothing_of_another_account(deployed):
    server = deployed.server
    deployed.hold()
    control.ask(deployed.home, "flatten")
    server.number = "PA2OTHER"
    deployed.live(2, adopt=False)
    assert server.positions == HELD
    why = "the keys are of account PA2OTHER, and the flatten is of PA1LOOPBACK"
    assert why in status.read_status(deployed.home).why
    server.number = "PA1LOOPBACK"
    deployed.live(4)
    assert deployed.is_flat()


def test_a_flatten_before_the_first_agreement_sells_nothing(deployed):
    control.ask(deployed.home, "flatten")
    with pytest.raises(DeployError, match="64 shares of S000 are held, 0 expected"):
        deployed.live(2, adopt=False)
    assert deployed.server.positions == HELD


def test_nothing_is_resumed_before_it_is_flat(deployed):
    server = deployed.server
    stop_filling(server)
    deployed.hold()
    control.ask(deployed.home, "flatten")
    control.ask(deployed.home, "resume")
    deployed.live(3)
    with deployed.journal() as journal:
        assert journal.last(Resumption) is None
        assert journal.is_flattening()
    server.pace.clear()
    deployed.live(5)
    assert deployed.is_flat()
    control.ask(deployed.home, "resume")
    deployed.live(11)
    assert server.positions  # it trades again


def test_the_embedded_broker_is_flattened_by_its_decisions(tmp_path):
    deployed = tmp_path, *frozen(tmp_path, trade_rate=1.0)
    run_live(*deployed, bars=22).close()
    held = status.read_status(tmp_path).held
    assert len(held) > 2
    control.ask(tmp_path, "flatten")
    run_live(*deployed, bars=41).close()
    told = status.read_status(tmp_path)
    assert (told.held, told.flattening, told.state) == ({}, False, "halted")
