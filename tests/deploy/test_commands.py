"""`fintrader paper` and `fintrader live` as a user types them: processes, a terminal, this
machine's clock, and both of Alpaca's services on the loopback interface, for a market that never
closes."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from unittest.mock import patch

import psutil
import pytest

pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install '.[alpaca]'")

import fintrader
from fintrader.bars.sources.vendor import RateLimit
from fintrader.config import validate
from fintrader.deploy import real_money, status
from fintrader.deploy.alpaca import AlpacaBroker
from fintrader.deploy.broker import RECORD, hash_sources
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.deployment import freeze_run, locate_home, report_drift
from fintrader.deploy.drift_report import read_account
from fintrader.deploy.entries import Alert, BarDecision, DeploymentStart
from fintrader.deploy.feed import open_live_feed
from fintrader.deploy.journal import Journal
from fintrader.deploy.remote import RequestLimits
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import LiveSettings, PaperSettings
from fintrader.errors import DeployError
from fintrader.files import read_json, write_json
from fintrader.pipeline.config import RunConfig
from fintrader.verdict.claims import list_registrations
from tests.engines.alpaca_loopback import KEY, SECRET
from tests.engines.alpaca_market import LoopbackMarket
from tests.engines.deployments import MINUTE, LiveClock

pytestmark = pytest.mark.slow

DAY = 86_400_000_000_000
LIVE_KEYS = {"APCA_LIVE_API_KEY_ID": KEY, "APCA_LIVE_API_SECRET_KEY": SECRET}


class Travelling:
    """The exchange's time: that of a test's clock, and later this machine's."""

    def __init__(self):
        self.moment = None

    def __call__(self):
        return time.time() if self.moment is None else self.moment


class Stepping(LiveClock):
    """Looks up every 20 seconds while orders stand, and takes the exchange's clock along."""

    def __init__(self, start, exchange, server):
        super().__init__(start)
        self.exchange = exchange
        self.server = server
        exchange.moment = start / 1e9

    def sleep_until(self, moment, look):
        while self._now < moment and not look():
            stands = any(
                row["status"] not in ("filled", "canceled") for row in self.server.orders.values()
            )
            self._now = min(self._now + MINUTE // 3, moment) if stands else moment
            self.exchange.moment = self._now / 1e9


@pytest.fixture
def market(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with LoopbackMarket(now=Travelling()) as server:
        monkeypatch.setenv("APCA_API_DATA_URL", server.endpoint)
        yield server


def trained(server, bar_minutes, decision_interval):
    """A finished run on bars of Alpaca's, 22 days ago and before."""
    first, last = (dt.datetime.now(dt.UTC).date() - dt.timedelta(days=days) for days in (50, 22))
    values = {
        "name": "mine",
        "seed": 3,
        "device": "cpu",
        "data": {
            "bar_minutes": bar_minutes,
            "calendar": "24/7",
            "source": {"kind": "alpaca", "bar_minutes": min(bar_minutes, 5)},
            "start": str(first),
            "end": str(last),
            "universe": {"symbols": list(server.bars.symbols)},
            "features": {"names": ["return_1", "return_30", "volatility_30"], "context": []},
            "windows": {"fractions": [0.4, 0.2, 0.4], "embargo_sessions": 1},
        },
        "env": {
            "num_envs": 16,
            "episode_bars": 96,
            "decision_interval": decision_interval,
            "clock": "none",
        },
        "tournament": {
            "pods": 1,
            "pool_size": 1,
            "workers": 1,
            "budget": {"env_steps": 800},
            "ensemble_size": 1,
        },
    }
    fintrader.run(validate(RunConfig, values, "mine"))


def command(*words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "fintrader", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


def done(*words):
    """What a command says that ends well."""
    process = command(*words)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    return said


def wait_for(true, seconds):
    until = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.5)
    return found


def decisions(home):
    if not (home / JOURNAL).is_file():
        return 0
    try:
        with Journal(home / JOURNAL, reading=True) as journal:
            return len(journal.entries(BarDecision))
    except DeployError as error:
        if "holds nothing yet" not in str(error):
            raise
        return 0


def nothing_leaked(folder, *said):
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_bytes()
            assert KEY.encode() not in text
            assert SECRET.encode() not in text
    assert not any(KEY in text or SECRET in text for text in said)


def test_a_shadow_and_a_paper_account_trade_on_side_by_side(market, tmp_path):
    trained(market, 1, 1)
    homes = [tmp_path / "deployments" / name for name in ("mine-shadow", "mine-paper")]
    words = ["paper", "runs/mine", "--feed", "alpaca"]
    told = tmp_path / "told"
    told.mkdir()
    tell = json.dumps(["sh", "-c", f"cat > {told}/$$"])
    account = [
        *words,
        "--broker",
        "alpaca",
        "--endpoint",
        market.endpoint,
        "--alerts.command",
        tell,
    ]
    shadow = command(*words)
    paper = command(*account)
    try:
        for home in homes:
            wait_for(lambda home=home: decisions(home) >= 2, 300)
        assert "running" in done("status", "mine-shadow")
        done("halt", "mine-paper")
        wait_for(lambda: status.read_status(homes[1]).state == "halted", 5)
        done("resume", "mine-paper")
        wait_for(lambda: status.read_status(homes[1]).state == "running", 5)
        paper.kill()  # the supervisor: its loop ends, too
        first = paper.communicate(timeout=60)[0]
        for number in (signal.SIGKILL, None):
            paper = command(*account)  # another process goes on
            before = decisions(homes[1])
            wait_for(lambda before=before: decisions(homes[1]) > before, 200)
            if number is not None:
                (loop,) = psutil.Process(paper.pid).children()
                loop.send_signal(number)
                first += paper.communicate(timeout=60)[0]
                assert paper.returncode == 128 + number
        ends = [alert for alert in map(read_json, told.iterdir()) if alert["kind"] == "ended"]
        reasons = ["the process that supervised it was killed", "was ended by SIGKILL"]
        assert len(ends) == 2
        for why in reasons:
            (text,) = (alert["text"] for alert in ends if why in alert["text"])
            assert "open positions that no process manages now: " in text
        done("flatten", "mine-paper")
        wait_for(lambda: not market.positions, 60)
        wait_for(lambda: not status.read_status(homes[1]).held, 10)
    finally:
        for process in (shadow, paper):
            process.send_signal(signal.SIGINT)
    said = [process.communicate(timeout=60)[0] for process in (shadow, paper)]
    assert all("run the same command again" in text.lower() for text in said)
    for home in homes:
        report = report_drift(home)
        assert report.decisions >= 2
        with Journal(home / JOURNAL, reading=True) as journal:
            assert len(journal.entries(DeploymentStart)) == 1
            known = set(journal.orders())
    assert {
        order["client_order_id"] for order in market.orders.values()
    } == known  # the paper account's, none twice
    (claim,) = list_registrations()  # of the bundle that both trade
    for text in (first, *said):
        assert f"Claim {claim.digest[:12]}: {claim.claim.source} is ahead of " in text
    assert market.least_cash >= 0
    nothing_leaked(tmp_path, first, *said)


def twenty_days_on_paper(server):
    """A deployment that has traded a paper account for twenty-one days, up to now."""
    settings = PaperSettings(feed="alpaca", broker="alpaca", endpoint=server.endpoint)
    bundle, *_ = freeze_run("runs/mine", settings)
    exchange = server.bars.now
    home = locate_home(bundle.name, settings.deployments_dir)
    until = time.time_ns() - 5 * MINUTE
    clock = Stepping(until - 21 * DAY, exchange, server)
    feed = open_live_feed("alpaca", bundle.data, bundle.symbols)
    broker = AlpacaBroker(
        server.endpoint, limits=RequestLimits(monotonic=exchange, sleep=lambda seconds: None)
    )
    # The vendor's limit counts by this machine's clock: hundreds of requests would wait.
    pace = patch.object(RateLimit, "wait")
    with pace, Journal(home / JOURNAL, durable=False) as journal:
        Runner(
            bundle,
            settings,
            Connections(clock, feed, broker, journal),
            window=None,
            until=until,
        ).run()
    exchange.moment = None
    return home


def test_real_money_after_twenty_sessions_on_paper(market, tmp_path, monkeypatch):
    """It is refused while the simulator's record is of other code; then it trades until its consent
    ends."""
    trained(market, 60, 1)
    home = twenty_days_on_paper(market)
    report = report_drift(home)
    assert report.sessions >= 20
    record = read_account(home)
    assert record.strategy == report.bundle
    assert record.returns.tolist() == [*report.daily.account_return]
    assert record.benchmark_returns.tolist() == pytest.approx([*report.daily.portfolio_return])
    assert record.benchmark_name == "equal_weight"
    assert report.decisions >= 20 * 24 - 2
    requests = len(market.seen)
    record = read_json(RECORD)
    is_closed = not record["passed"] or record["sources"] != hash_sources()
    refused = command(
        "live", home.name, "--cap-usd", "250000", "--endpoint", market.endpoint, **LIVE_KEYS
    )
    said = refused.communicate(timeout=120)[0]
    assert refused.returncode == 2
    if is_closed:
        assert "real-money trading is closed until a market-life simulator has passed" in said
        assert len(market.seen) == requests
    place = home.with_name(f"{home.name}-live")
    assert not place.exists()
    nothing_leaked(tmp_path, said)

    write_json(tmp_path / "record.json", {**record, "passed": True, "sources": hash_sources()})
    monkeypatch.setattr("fintrader.deploy.broker.RECORD", tmp_path / "record.json")
    monkeypatch.setattr(real_money, "DAYS", 20 / 86_400)
    for name, value in LIVE_KEYS.items():
        monkeypatch.setenv(name, value)
    settings = LiveSettings(cap_usd=250_000.0, adopt=True, endpoint=market.endpoint)
    answers = [market.number, "250000"]
    assert real_money.run_live(home.name, settings, ask=lambda _: answers.pop(0)) == place
    with Journal(place / JOURNAL, reading=True) as journal:
        assert journal.last(DeploymentStart).body.broker == "alpaca"
        assert "the consent of" in journal.last(Alert).body.text
        (taken,) = [one.body.text for one in journal.entries(Alert) if one.body.kind == "accept"]
        assert taken.endswith(" more")
        assert len(taken) < 1_000
        assert [report for report in journal.orders().values() if not report.is_over] == []
    nothing_leaked(tmp_path)
