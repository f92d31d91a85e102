"""The whole loop against a crypto account: ccxt, a server on this machine that speaks Binance's
REST, hourly bars round the clock."""

import contextlib
import itertools
from decimal import Decimal
from types import SimpleNamespace

import pandas as pd
import pytest

pytest.importorskip("ccxt", reason="ccxt is missing: pip install '.[crypto]'")

from fintrader.bars.bars import Bars
from fintrader.bars.sources.vendor_settings import CcxtSettings
from fintrader.deploy import control, deployment, status
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.entries import Alert, BarDecision, DeploymentStart, FlattenEnd, Halt
from fintrader.deploy.feed import open_live_feed
from fintrader.deploy.reconcile import expect_holdings
from fintrader.deploy.settings import PaperSettings
from fintrader.errors import BrokerUnsureError, DataError, DeployError
from tests.engines.alpaca_paper import Killed
from tests.engines.crypto_life import CryptoLife, RestingCryptoLife
from tests.engines.crypto_paper import LENGTH, PAIRS, CryptoMarket
from tests.engines.deployments import MINUTE
from tests.quick import mostly_slow, slow_but

HOUR = LENGTH * MINUTE


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A deployment that has not begun, and its exchange."""

    def make(**how):
        market = CryptoMarket(tmp_path / "deployments" / "mine", **how)
        market.server.__enter__()
        monkeypatch.setenv("FINTRADER_CCXT_DATA_URL", market.server.endpoint)
        opened.append(market)
        return market

    opened = []
    yield make
    for market in opened:
        market.server.__exit__()


def assert_agreed(journal, market):
    """The journal expects what the exchange holds, fees included."""
    known = expect_holdings(journal)
    server = market.server
    held = {pair: server.held(pair.split("/")[0]) for pair in PAIRS}
    assert dict(known.shares) == pytest.approx({k: v for k, v in held.items() if v}, abs=1e-7)
    assert known.cash_usd == pytest.approx(server.held("USDT"), abs=1e-6)
    names = [row["clientOrderId"] for row in server.rows]
    assert len(names) == len(set(names))
    assert journal.find_halt() is None, journal.find_halt()


def assert_no_unfinished_bar(journal, market):
    """Every bar that was kept is the table's, whole."""
    whole = market.table.set_index(["symbol", "ts"]).close
    bars = journal.bars()
    assert bars
    for row in bars[len(PAIRS) :]:  # the first are carried closes
        ts, symbol, close = row[0], row[1], row[5]
        if (symbol, pd.Timestamp(ts, tz="UTC")) in whole.index:
            assert close == pytest.approx(whole[symbol, pd.Timestamp(ts, tz="UTC")], rel=1e-6)


def test_a_deployment_trades_pairs_round_the_clock_and_ends_flat(made):
    market = made(balances={"USDT": 100_000.0, "BNB": 3.0, "DOGE": 100.0})
    journal = market.trade(30)  # over midnight, into a Saturday
    assert market.market.minutes[24].item() % (24 * HOUR) == 0
    assert len(journal.entries(BarDecision)) == 16
    assert journal.last(DeploymentStart).body.broker == "binance"
    assert {report.state for report in journal.orders().values()} <= {"filled", "rejected"}
    assert any(report.fee_shares for report in journal.orders().values())
    assert_agreed(journal, market)
    assert_no_unfinished_bar(journal, market)
    journal.close()

    for bars in (31, 40):  # other processes go on
        journal = market.trade(bars)
        assert_agreed(journal, market)
        journal.close()
    told = status.read_status(market.home)
    assert told.held
    assert_no_unfinished_bar(market.trade(41), market)

    control.ask(market.home, "flatten")
    journal = market.trade(50)
    assert not journal.is_flattening()
    end = journal.last(FlattenEnd).body
    left = {pair: market.server.held(pair.split("/")[0]) for pair in PAIRS}
    assert left == pytest.approx({**dict.fromkeys(PAIRS, 0.0), **end.others}, abs=1e-9)
    worth = {pair: count * market.server.prices[pair] for pair, count in left.items()}
    assert max(worth.values()) < 6.0
    assert end.others  # what fees have left below a step
    text = journal.last(Alert, "flat").body.text
    assert "too few for an order" in text
    assert all(pair in text for pair in end.others)
    assert market.server.held("DOGE") == 100.0
    journal.close()


def begin_halted(market, bars=4):
    """Take the account as it is, and trade nothing."""
    control.ask(market.home, "halt")
    market.trade(bars, adopt=True).close()
    assert market.server.rows == []


def test_a_worth_near_the_least_is_dust(made):
    """The exchange counts the worth at a price of its own, which may be lower than the last one:
    it would refuse such a sale for ever."""
    market = made(balances={"USDT": 100_000.0})
    amount = 5.3 / market.server.prices["BTC/USDT"]
    market.server.balances["BTC"] = Decimal(f"{amount:.8f}")
    begin_halted(market)
    control.ask(market.home, "flatten")
    market.server.least_usd = 5.6
    journal = market.trade(10)
    assert not journal.is_flattening()
    assert set(journal.last(FlattenEnd).body.others) == {"BTC/USDT"}
    assert market.server.refusals == []
    journal.close()


def test_a_flatten_sells_all_of_a_coin_in_as_few_orders_as_the_exchange_takes(made):
    market = made(balances={"USDT": 1_000.0, "ETH": 1.00001, "XRP": 20_000.7})
    begin_halted(market)
    control.ask(market.home, "flatten")
    journal = market.trade(8)
    sold = [(row["symbol"], float(row["origQty"])) for row in market.server.rows]
    assert sorted(sold) == [
        ("ETHUSDT", 1.00001),
        ("XRPUSDT", 2_000.7),
        ("XRPUSDT", 9_000.0),
        ("XRPUSDT", 9_000.0),
    ]
    assert journal.last(FlattenEnd).body.others == {}
    assert market.server.refusals == []
    journal.close()


@pytest.mark.parametrize(
    "fault",
    mostly_slow(
        "504_after", every=["hang_after", "504_after", "reset", "503", "429", "html_after"]
    ),
)
def test_faults_of_the_exchange_are_no_difference_and_no_second_order(made, fault):
    market = made()
    server = market.server
    server.hang_s = 2.5
    server.faults = dict.fromkeys(range(40, 4000, 9), fault)
    for _ in range(5):  # a service starts it again
        with contextlib.suppress(BrokerUnsureError):
            market.trade(20).close()
            break
    server.faults = {}
    journal = market.trade(21)
    assert fault in server.fired
    assert_agreed(journal, market)
    assert journal.orders()
    journal.close()


def test_hours_of_maintenance_cost_decisions_and_nothing_else(made):
    market = made()

    def close(now):
        hour = (now - int(market.market.minutes[0])) // HOUR
        market.server.outage = "503" if 4 <= hour < 8 else ""

    market.at_minute = close
    journal = market.trade(12)
    texts = [entry.body.text for entry in journal.entries(Alert)]
    assert any("nothing was decided" in text for text in texts)
    assert_agreed(journal, market)
    assert_no_unfinished_bar(journal, market)
    journal.close()


def test_a_process_that_is_killed_anywhere_goes_on(made):
    """Killed before or after each order, and between."""
    market = made(balances={"USDT": 100_000.0})
    kills = itertools.cycle([1, 2, 3])

    def fragile(runner):
        submit = runner.broker.submit
        left = next(kills)
        is_early = left % 2 == 0

        def mortal(order):
            nonlocal left
            left -= 1
            if left == 0 and is_early:
                raise Killed
            report = submit(order)
            if left == 0:
                raise Killed
            return report

        runner.broker.submit = mortal

    deaths = 0
    for bars in range(3, 15, 3):
        try:
            market.trade(bars, change=fragile).close()
        except Killed:
            deaths += 1
            market.trade(bars).close()
    assert deaths >= 3
    journal = market.trade(14)
    assert_agreed(journal, market)
    assert len(journal.entries(DeploymentStart)) == 1
    assert sum(report.state == "filled" for report in journal.orders().values()) > 5
    journal.close()


def test_a_trade_by_hand_halts_and_is_accepted(made):
    market = made()
    opened = int(market.market.minutes[10])

    def trade(now):
        if now > opened and not any("web" in row["clientOrderId"] for row in market.server.rows):
            market.server.trade_by_hand("BTC/USDT", -0.01)

    market.at_minute = trade
    journal = market.trade(12)
    halt = journal.last(Halt).body.why
    assert "BTC/USDT" in halt
    journal.close()
    control.ask(market.home, "accept")
    market.trade(13).close()
    control.ask(market.home, "resume")
    journal = market.trade(16)
    assert_agreed(journal, market)
    journal.close()


# --- bars -----------------------------------------------------------------------------------------


def poll(market, *, ahead_s=0.0):
    feed = open_live_feed("binance", market.bundle.data, market.bundle.symbols)
    feed._vendor._client.enableRateLimit = False
    now = int(market.now + ahead_s * 1e9)
    return feed.poll(market.now - 10 * HOUR, now)


@pytest.mark.parametrize(
    ("seconds", "ahead_s"),
    slow_but(2, 6, every=itertools.product([5.0, 600.0, 3599.0], [0.0, 300.0, 7200.0])),
)
def test_a_bar_that_has_not_closed_is_none_whatever_the_clock_here(made, seconds, ahead_s):
    market = made()
    market.now = int(market.market.minutes[5]) + int(seconds * 1e9)
    bars = poll(market, ahead_s=ahead_s)
    assert isinstance(bars, Bars)
    assert set(bars.symbols) == set(PAIRS)
    assert int(bars.ts.max()) == int(market.market.minutes[4])
    whole = market.table.set_index(["symbol", "ts"]).close
    for row in range(len(bars)):
        key = bars.symbols[bars.symbol[row]], pd.Timestamp(bars.ts[row], tz="UTC")
        assert bars.close[row] == pytest.approx(whole[key], rel=1e-6)


def test_a_busy_exchange_is_asked_again_and_a_refusal_is_no_silence(made):
    market = made()
    market.now = int(market.market.minutes[5]) + 5_000_000_000
    market.server.outage = "429"
    assert len(poll(market)) == 0
    market.server.outage = ""
    assert len(poll(market)) == 27  # of the nine that began in these hours
    market.server.prices = {"BTC/USDT": 50_000.0}
    with pytest.raises(DataError, match="no pair 'ETH/USDT'"):
        poll(market)


# --- the door -------------------------------------------------------------------------------------


@pytest.fixture
def frozen_run(made, monkeypatch):
    market = made()
    monkeypatch.setattr(
        deployment, "freeze_run", lambda where, settings: (market.bundle, market.market, None)
    )
    return market


def test_a_deployment_of_other_terms_is_refused(frozen_run):
    for chosen, match in (
        ({"broker": "binance"}, "add --feed binance"),
        ({"broker": "binance", "feed": "kraken"}, "add --feed binance"),
        ({"broker": "alpaca", "feed": "binance"}, "add --feed alpaca"),
        ({"feed": "binance"}, "trained on bars of files, not of binance"),
        ({"feed": "binance", "broker": "binance", "limits": {"enforced": False}}, "needs limits"),
    ):
        with pytest.raises(DeployError, match=match):
            deployment.run_paper("run", PaperSettings(**chosen))
        assert frozen_run.server.seen == []


def test_policies_of_an_exchanges_bars_are_traded_there_without_asking(frozen_run, monkeypatch):
    asked = []
    monkeypatch.setattr(deployment, "_run", lambda *_: asked.append("run"))
    settings = PaperSettings(feed="binance", deployments_dir=str(frozen_run.home.parent))
    for exchange in ("binance", "kraken"):
        data = SimpleNamespace(source=CcxtSettings(exchange=exchange, bar_minutes=60))
        bundle = SimpleNamespace(name="mine", data=data, env=frozen_run.bundle.env)
        monkeypatch.setattr(
            deployment, "freeze_run", lambda *_, bundle=bundle: (bundle, None, None)
        )
        if exchange == "binance":
            deployment.run_paper("run", settings)
    with pytest.raises(DeployError, match="trained on bars of kraken, not of binance"):
        deployment.run_paper("run", settings)
    assert asked == ["run"]


def test_the_broker_of_a_deployment_is_the_exchanges(frozen_run):
    broker = deployment.open_broker("binance", frozen_run.bundle, frozen_run.server.endpoint)
    assert (broker.kind, broker.endpoint) == ("binance", frozen_run.server.endpoint)
    assert broker.account().cash_usd == 100_000.0
    with pytest.raises(DeployError, match="closed until a market-life simulator has passed"):
        deployment.open_broker("binance", frozen_run.bundle, None, real_money=True)


def test_reports_of_older_journals_have_no_fees_in_shares():
    assert OrderReport("a", "BTC/USDT", "filled", 1.0).fee_shares == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_weeks_of_a_crypto_market_with_everything_that_goes_wrong(tmp_path, seed):
    life = CryptoLife(tmp_path / "deployments" / "mine", seed, days=60)
    life.run()
    assert life.problems == []
    assert life.deaths >= 5
    assert life.audits >= 12
    assert sum(life.happened[name] > 0 for name, _ in life.events) >= 9


# --- orders that rest -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4, 6])
def test_days_of_bids_asks_and_stops_with_everything_that_goes_wrong(tmp_path, seed):
    life = RestingCryptoLife(tmp_path / "deployments" / "mine", seed, days=12)
    life.run()
    assert life.problems == []
    assert life.audits >= 12
    assert life.protected >= 4
    kinds = {(row["type"], row["status"]) for row in life.server.rows}
    assert kinds >= {("LIMIT", "FILLED"), ("LIMIT", "CANCELED"), ("STOP_LOSS", "CANCELED")}
    assert ("MARKET", "FILLED") in kinds  # of stops that were reached


@pytest.mark.slow
def test_bids_asks_and_stops_lie_at_the_exchange_and_a_stop_sells_while_the_process_is_dead(
    tmp_path,
):
    env = {
        "action": "limit",
        "limit_offset_bps": 40.0,
        "stop_offset_bps": 300.0,
        "clock": "session",
    }
    market = CryptoMarket(tmp_path / "mine", env=env)
    server = market.server
    with server:
        for bars in range(8, 60, 4):
            market.trade(bars).close()
            stops = [row for row in server.rows if row["type"] == "STOP_LOSS"]
            standing = [row for row in stops if row["status"] == "NEW"]
            if standing:
                break
        row = standing[0]
        pair = server.pairs[row["symbol"]]
        server.prices[pair] = 0.99 * float(row["stopPrice"])
        server._go_on()
        assert row["status"] == "FILLED"
        journal = market.trade(bars + 4)
        assert [entry.body.why for entry in journal.entries(Halt)] == []
        assert_agreed(journal, market)
        sold = [one for one in journal.orders().values() if one.stop_usd and one.filled]
        assert pair in {one.symbol for one in sold}
        # What a stop leaves as dust keeps no later decision from ordering the pair.
        decided = [entry.body for entry in journal.entries(BarDecision)]
        assert {one.symbol for one in decided[-1].resting if one.limit_usd} == set(PAIRS)
        assert {"LIMIT", "MARKET"} <= {one["type"] for one in server.rows}
        assert [text for text in server.refusals if "insufficient" in text] == []
        journal.close()
        control.ask(market.home, "flatten")
        journal = market.trade(bars + 10)
        assert not journal.is_flattening()
        assert [one for one in server.rows if one["status"] in ("NEW", "PARTIALLY_FILLED")] == []
        journal.close()
