"""The whole loop with bids, asks and stops: on a paper account at Alpaca and on one at Binance, both
servers of this machine, whose prices are those of the bars."""

import numpy as np
import pytest

pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install '.[alpaca]'")

from fintrader.deploy import control
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import BarDecision, Halt
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expect_holdings
from tests.engines.alpaca_loopback import OPEN
from tests.engines.alpaca_paper import account, trade
from tests.engines.deployments import frozen
from tests.quick import slow_but

STOPS = {"clock": "session", "action": "limit", "limit_offset_bps": 30.0, "stop_offset_bps": 60.0}
QUOTES = {**STOPS, "action": "quote", "stop_offset_bps": None}
WORKED = {"clock": "session", "execution": {"bars": 3}}


@pytest.fixture
def paper(tmp_path):
    """Make a deployment that has not begun, its account's server, and a clock that moves prices."""
    opened = []

    def make(**env):
        home = tmp_path / "deployments" / "mine"
        bundle, market = frozen(home, trade_rate=1.0, decision_interval=3, **env)
        server = account(market, pace=dict.fromkeys(market.symbols, (0.0, 0.5, 1.0))).__enter__()
        opened.append(server)
        minutes = market.minutes.numpy()

        def show_prices(now):
            """The price moves on a line from a bar's open to its close."""
            bar = max(int(np.searchsorted(minutes, now, side="right")) - 1, 0)
            share = min((now - minutes[bar]) / (15 * 60e9), 1.0)
            for number, name in enumerate(market.symbols):
                first, last = (float(one[bar, number]) for one in (market.open, market.close))
                if first > 0 and last > 0:
                    server.prices[name] = first + share * (last - first)
            if share >= 1.0:  # the night
                server.end_day()

        def live(bars, change=lambda runner: None, **chosen):
            def arm(runner):
                runner.clock.at_minute = show_prices
                change(runner)

            return trade(home, bundle, market, server, bars, change=arm, **chosen)

        return home, market, server, live

    yield make
    for server in opened:
        server.__exit__()


def find_open(server, kind):
    rows = server.orders.values()
    return [row for row in rows if row["status"] in OPEN and row["type"] == kind]


def check(journal, server):
    assert [entry.body.why for entry in journal.entries(Halt)] == []
    assert dict(expect_holdings(journal).shares) == pytest.approx(server.positions)
    known = journal.orders()
    rows = server.by_client_id()
    assert set(rows) <= set(known)
    for name, row in rows.items():
        report = known[name]
        assert abs(report.filled) == float(row["filled_qty"])
        assert (report.limit_usd, report.stop_usd) != (None, None)
    refused = [text for text in server.refusals if "insufficient" in text or "wash" in text]
    assert refused == []
    assert server.least_cash >= 0.0


@pytest.mark.parametrize("env", slow_but(1, every=[STOPS, QUOTES, WORKED]))
def test_bids_asks_and_stops_trade_a_paper_account(paper, env):
    home, _market, server, live = paper(**env)
    for bars in (11, 26):
        journal = live(bars)
        check(journal, server)
        journal.close()
    sides = {(row["type"], row["side"]) for row in server.orders.values()}
    assert {("limit", "buy"), ("limit", "sell")} <= sides
    filled = [row for row in server.orders.values() if float(row["filled_qty"])]
    assert len(filled) > 10
    for row in filled:
        if row["type"] == "limit":
            side = 1.0 if row["side"] == "buy" else -1.0
            assert side * (float(row["filled_avg_price"]) - float(row["limit_price"])) <= 1e-9
    if env is STOPS:
        stops = [row for row in server.orders.values() if row.get("stop_price")]
        assert {"canceled", "filled"} <= {row["status"] for row in stops}
        assert {row["time_in_force"] for row in stops} == {"gtc"}
    with Journal(home / JOURNAL, reading=True) as journal:
        assert len(journal.entries(BarDecision)) == (27 if env is WORKED else 9)
        assert any(entry.body.resting for entry in journal.entries(BarDecision))


def live_to_a_stop(server, live):
    """Live until a stop rests; the number of bars, and its row at the server."""
    for bars in range(8, 80, 3):
        live(bars).close()
        stops = find_open(server, "stop")
        if stops:
            return bars, stops[0]
    raise AssertionError("no stop ever rests")


def test_a_stop_sells_while_the_process_is_dead(paper):
    home, _market, server, live = paper(**STOPS)
    bars, row = live_to_a_stop(server, live)
    name, symbol = row["client_order_id"], row["symbol"]
    with Journal(home / JOURNAL, reading=True) as journal:
        assert journal.last(OrderReport, name).body.state == "accepted"
    server.prices[symbol] = 0.99 * float(row["stop_price"])
    for _ in range(3):
        server.tick()
    assert row["status"] == "filled"
    journal = live(bars + 3)
    check(journal, server)
    report = journal.last(OrderReport, name).body
    assert (report.state, report.filled) == ("filled", -float(row["filled_qty"]))
    assert report.price_usd == pytest.approx(float(row["filled_avg_price"]))
    assert report.stop_usd == pytest.approx(float(row["stop_price"]), abs=0.01)
    journal.close()


@pytest.mark.slow
def test_a_halt_ends_bids_and_asks_and_keeps_stops_at_the_venue(paper):
    home, _market, server, live = paper(**STOPS)
    bars, row = live_to_a_stop(server, live)
    control.ask(home, "halt")
    journal = live(bars + 2)
    assert [entry.body.why for entry in journal.entries(Halt)] == ["asked to halt"]
    journal.close()
    assert find_open(server, "limit") == []
    limits = [one for one in server.orders.values() if one["type"] == "limit"]
    live(bars + 8).close()  # decisions of a halted deployment, after a restart
    assert [one for one in server.orders.values() if one["type"] == "limit"] == limits
    assert row["status"] == "new" or float(row["filled_qty"])  # not replaced
    symbol = row["symbol"]
    offered = server._left("sell", lambda other: float(other == symbol))
    assert offered == server.positions.get(symbol, 0.0)


def test_a_flatten_cancels_stops_first_and_sells_all(paper):
    home, _market, server, live = paper(**STOPS)
    bars, row = live_to_a_stop(server, live)
    control.ask(home, "flatten")
    journal = live(bars + 6)
    assert row["status"] == "canceled"
    assert server.positions == {}
    assert not journal.is_flattening()
    assert find_open(server, "stop") == find_open(server, "limit") == []
    assert dict(expect_holdings(journal).shares) == {}
    assert [text for text in server.refusals if "insufficient" in text] == []
    journal.close()
    live(bars + 12).close()  # nothing is bought, and no stop comes back
    assert find_open(server, "stop") == []
