"""The whole loop against a paper account: alpaca-py, a server on this machine, bars that come bar
by bar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install '.[alpaca]'")

from fintrader.deploy import control, status
from fintrader.deploy.alpaca import AlpacaBroker
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.feed import ReplayFeed
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expected
from fintrader.deploy.runner import JOURNAL, Runner
from fintrader.deploy.settings import PaperSettings
from fintrader.errors import DeployError
from fintrader.market.tensors import MarketTensors
from tests.engines.alpaca_loopback import KEY, SECRET, LoopbackAlpaca
from tests.engines.deployments import MINUTE, LiveClock, frozen


class SteppedClock(LiveClock):
    """Looks up every minute on its way."""

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        while self._now < moment and not look():
            self._now = min(self._now + MINUTE, moment)


class Timeless(AlpacaBroker):
    """Whose server lives in another year than the bars."""

    def time(self) -> int | None:
        return None


def trade(
    home: Path,
    bundle: Bundle,
    market: MarketTensors,
    server: LoopbackAlpaca,
    bars: int,
    **chosen: Any,
) -> Journal:
    """Run the deployment over the window's first bars."""
    journal = Journal(home / JOURNAL, durable=False)
    last = journal.last("decision")
    clock = SteppedClock(last.time if last else int(market.minutes[0]))
    feed = ReplayFeed(bundle.data, bundle.symbols)
    broker = Timeless(server.endpoint, fractional=bundle.env.fractional)
    runner = Runner(
        home,
        bundle,
        PaperSettings(**chosen),
        clock=clock,
        feed=feed,
        broker=broker,
        journal=journal,
        window=None,
        level=feed.level,
        until=int(market.minutes[bars]) + feed.bar_ns,
    )
    runner.run()
    return journal


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APCA_API_KEY_ID", KEY)
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)


def whole(server: LoopbackAlpaca) -> dict[str, float]:
    return {symbol: shares for symbol, shares in server.positions.items() if shares}


def test_a_deployment_trades_a_paper_account(tmp_path: Path) -> None:
    bundle, market = frozen(tmp_path, trade_rate=1.0)
    prices = dict(zip(market.symbols, market.close[0].tolist(), strict=True))
    with LoopbackAlpaca(cash=1e6, prices=prices) as server:
        journal = trade(tmp_path, bundle, market, server, 22)
        assert [entry.body["why"] for entry in journal.entries("halt")] == []
        decided = journal.entries("decision")
        assert len(decided) == 5
        assert whole(server)
        assert dict(expected(journal).shares) == pytest.approx(whole(server))
        told = status.read(tmp_path)
        assert dict(told.held) == pytest.approx(whole(server))
        assert told.cash_usd == pytest.approx(server.cash)
        assert server.least_cash >= 0
        known = journal.orders()
        assert {order["client_order_id"] for order in server.orders.values()} <= set(known)
        largest = max(
            abs(shares) * prices[name] for e in decided for name, shares in e.body["orders"].items()
        )
        assert largest <= 0.1 * 1e6 * 1.1  # the limits stand between
        journal.close()

        journal = trade(tmp_path, bundle, market, server, 42)  # another process goes on
        assert len(journal.entries("decision")) == 9
        assert len(journal.entries("start")) == 1
        assert dict(expected(journal).shares) == pytest.approx(whole(server))
        journal.close()

        control.ask(tmp_path, "flatten")
        journal = trade(tmp_path, bundle, market, server, 50)
        assert whole(server) == {}
        assert status.read(tmp_path).held == {}
        assert [entry.kind for entry in journal.entries() if entry.kind == "halt"] == ["halt"]
        assert not any(e.body["orders"] for e in journal.entries("decision")[9:])
        journal.close()


def test_positions_that_nobody_can_explain_halt_it(tmp_path: Path) -> None:
    bundle, market = frozen(tmp_path, trade_rate=1.0)
    prices = dict(zip(market.symbols, market.close[0].tolist(), strict=True))
    with LoopbackAlpaca(cash=1e6, prices=prices) as server:
        trade(tmp_path, bundle, market, server, 12).close()
        server.positions[market.symbols[0]] = server.positions.get(market.symbols[0], 0.0) + 7
        with pytest.raises(DeployError, match="--adopt"):  # at the start it does not begin
            trade(tmp_path, bundle, market, server, 22)
        journal = trade(tmp_path, bundle, market, server, 22, adopt=True)
        assert dict(expected(journal).shares) == pytest.approx(whole(server))
        assert journal.last("halt") is None
        journal.close()
