"""Real money is refused at every door; and what is asked, once it is open."""

import datetime as dt
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fintrader.backtesting.limits import LimitSettings
from fintrader.cli import main
from fintrader.deploy import broker, control, real_money, status
from fintrader.deploy.alpaca import AlpacaBroker
from fintrader.deploy.broker import Order
from fintrader.deploy.clock import ReplayClock
from fintrader.deploy.control import JOURNAL, REPORT
from fintrader.deploy.deployment import describe_alarm
from fintrader.deploy.drift_report import (
    Band,
    DailyDrift,
    DriftReport,
    EquityDrift,
    LimitCuts,
    Shortfall,
    Surprise,
    read_report,
)
from fintrader.deploy.entries import DeploymentStart, Flattening
from fintrader.deploy.feed import ReplayFeed
from fintrader.deploy.journal import Journal
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import LiveSettings, PaperSettings
from fintrader.deploy.simulated import SimulatedBroker
from fintrader.errors import DeployError
from fintrader.files import seal, write_json
from fintrader.records import to_json
from tests.engines.deployments import frozen

NUMBER = "PA1LOOPBACK"
BAND = Band((9e5,), (1e6,), (1.1e6,))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle with the days of a backtest."""
    made, _ = frozen(
        tmp_path_factory.mktemp("live"), daily_returns=np.linspace(-0.02, 0.025, 60).tolist()
    )
    return made


def started(kind):
    return DeploymentStart(0, "0a1b2c3d", "alpaca", kind, LimitSettings(), 1e6)


@pytest.fixture
def home(tmp_path, bundle):
    """A deployment that has proved itself on paper."""
    with Journal(tmp_path / JOURNAL) as journal:
        journal.write(started("alpaca"), at=1)
    report(tmp_path, bundle)
    return tmp_path


def report(home, made, *, band=BAND, account=1e6, **changes):
    found = DriftReport(
        deployment="mine",
        bundle=made.id,
        run="none",
        verdict=None,
        first_day="2016-01-04",
        last_day="2016-02-08",
        sessions=25,
        decisions=100,
        held_back=0,
        equity=EquityDrift(1e6, account, 1e6, 0.01, 0.01, 0.0, 0.0),
        daily=DailyDrift(
            ("2016-02-08",), (account,), (1e6,), (0.01, -0.02), (0.0,), "cash", (0.0,), band
        ),
        surprise=Surprise((1.0,)),
        shortfall=Shortfall(0, 0, 0.0, {}),
        features=(),
        limits=LimitCuts({}, {}, ""),
        halts=(),
        alerts=(),
        late_bars=0,
    )
    write_json(home / REPORT, to_json(replace(found, **changes)))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sessions": 19}, "needs 20"),
        ({"surprise": Surprise((1.0, 30.0, 2.0))}, "are worse on paper"),
        ({"account": 8e5}, "outside the backtest's band"),
        ({"band": None}, "too few sessions for a band"),
        ({"bundle": "00000000"}, "another bundle"),
    ],
)
def test_what_has_not_proved_itself_is_refused(home, bundle, changes, match):
    assert real_money.require_proof(home, bundle).sessions == 25
    report(home, bundle, **changes)
    with pytest.raises(DeployError, match=match):
        real_money.require_proof(home, bundle)


def test_a_drift_alarm_is_worth_an_alert(home, bundle):
    assert describe_alarm(read_report(home / REPORT)) is None
    report(home, bundle, surprise=None)
    assert describe_alarm(read_report(home / REPORT)) is None
    report(home, bundle, surprise=Surprise((1.0, 30.0, 2.0)))
    assert "after 25 sessions the account's days are worse" in describe_alarm(
        read_report(home / REPORT)
    )


def test_a_replay_proves_nothing(tmp_path, bundle):
    with Journal(tmp_path / JOURNAL) as journal:
        journal.write(started("simulated"), at=1)
    report(tmp_path, bundle)
    with pytest.raises(DeployError, match="has not traded a paper account"):
        real_money.require_proof(tmp_path, bundle)


def typed(*answers):
    left = list(answers)
    return lambda question: left.pop(0)


def consent(home, bundle, ask, cap=5000.0, **chosen):
    settings = LiveSettings(cap_usd=cap, **chosen)
    proof = real_money.require_proof(home, bundle)
    return real_money.require_consent(home, bundle, NUMBER, settings, proof, ask)


def never(question):
    raise AssertionError(f"asked {question!r}")


def test_consent_is_typed_once_and_names_what_it_is_for(home, bundle, capsys):
    given = consent(home, bundle, typed(NUMBER, "5000"))
    said = capsys.readouterr().out
    assert "worst day -2.00%" in said
    assert "deepest loss" in said
    assert (given.bundle, given.account, given.cap_usd) == (bundle.id, NUMBER, 5000.0)
    assert consent(home, bundle, never) == given
    with pytest.raises(DeployError, match="not the amount"):  # another amount is another consent
        consent(home, bundle, typed(NUMBER, "5000"), cap=6000.0)


def test_the_amount_is_typed_as_it_is_stored(home, bundle):
    assert consent(home, bundle, typed(NUMBER, "1000.5"), cap=1000.5).cap_usd == 1000.5
    with pytest.raises(DeployError, match="not the amount"):
        consent(home, bundle, typed(NUMBER, "1001"), cap=1000.6)


@pytest.mark.parametrize(
    "chosen",
    [{"limits": LimitSettings(drawdown=0.5)}, {"endpoint": "http://127.0.0.1:1"}, {"cap": 6000.0}],
)
def test_a_change_of_what_was_consented_to_asks_again(home, bundle, chosen):
    given = consent(home, bundle, typed(NUMBER, "5000"))
    with pytest.raises(DeployError, match="not the account's number"):
        consent(home, bundle, typed("no"), **chosen)
    assert consent(home, bundle, never) == given
    amount = f"{chosen.get('cap', 5000.0):.0f}"
    assert consent(home, bundle, typed(NUMBER, amount), **chosen) != given
    with pytest.raises(DeployError, match="not the account's number"):
        consent(home, bundle, typed("no"))


def test_every_limit_is_shown_before_consent(home, bundle, capsys):
    consent(home, bundle, typed(NUMBER, "5000"), limits=LimitSettings(weight=25.0))
    said = capsys.readouterr().out
    assert "weight 25, gross 1, order 0.1, turnover 2, day_loss 0.03, drawdown 0.1" in said
    assert "https://api.alpaca.markets" in said


def test_only_a_record_of_this_very_code_opens_it(tmp_path, monkeypatch):
    path = tmp_path / "market_life.json"
    monkeypatch.setattr(broker, "RECORD", path)
    record = {"passed": True, "sources": broker.hash_sources(), "sessions": 40_000}
    write_json(path, record)
    broker.refuse_real_money(True)
    for change in ({"passed": False}, {"passed": 1}, {"sources": "0" * 64}, {"sessions": 39_999}):
        write_json(path, record | change)
        with pytest.raises(DeployError, match="closed until a market-life simulator has passed"):
            broker.refuse_real_money(True)
    for text in ("", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(DeployError, match="closed until a market-life simulator has passed"):
            broker.refuse_real_money(True)


def test_a_byte_of_the_code_closes_it(tmp_path, monkeypatch):
    before = broker.hash_sources()
    for room in broker.TRADING_ROOMS:
        shutil.copytree(broker.ROOT / room, tmp_path / room)
    monkeypatch.setattr(broker, "ROOT", tmp_path)
    assert broker.hash_sources() == before
    for name in ("deploy/alerts.py", "backtesting/limits.py", "market/recent_bars.py"):
        with (tmp_path / name).open("a") as file:
            file.write("#")
        assert broker.hash_sources() != before
        before = broker.hash_sources()


@pytest.mark.parametrize(
    ("answers", "match"),
    [(("PA2OTHER", "5000"), "not the account"), ((NUMBER, "50000"), "not the amount")],
)
def test_whoever_mistypes_trades_nothing(home, bundle, answers, match):
    with pytest.raises(DeployError, match=match):
        consent(home, bundle, typed(*answers))
    assert not (home / real_money.CONSENT).exists()


def test_consent_lapses_and_cannot_be_changed(home, bundle):
    consent(home, bundle, typed(NUMBER, "5000"))
    path = home / real_money.CONSENT
    body = json.loads(path.read_text())
    path.write_text(path.read_text().replace("5000.0", "9000.0"))
    with pytest.raises(DeployError, match="was changed"):
        consent(home, bundle, never, cap=9000.0)
    body.pop("sha256")
    path.write_bytes(
        seal(body | {"until": (dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)).isoformat()})
    )
    with pytest.raises(DeployError, match="not the account"):
        consent(home, bundle, typed("no", "5000"))


@pytest.mark.parametrize("kind", ["order", "flatten", "stop", "nothing"])
def test_a_restart_after_the_consent_ends_what_is_open(home, bundle, kind):
    consent(home, bundle, typed(NUMBER, "5000"))
    path = home / real_money.CONSENT
    body = json.loads(path.read_text())
    body.pop("sha256")
    ended = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    path.write_bytes(seal(body | {"until": ended.isoformat()}))
    place = home.with_name(f"{home.name}-live")
    place.mkdir()
    with Journal(place / JOURNAL) as journal:
        if kind == "flatten":
            journal.write(Flattening(), at=1)
        elif kind != "nothing":
            price = 90.0 if kind == "stop" else None
            order = Order("one", "AAA", -1.0, 1, stop_usd=price)
            journal.write(order.report("accepted"), at=1)
    if kind in ("order", "flatten"):
        assert consent(home, bundle, never).end == ended
    else:
        with pytest.raises(DeployError, match="not the account"):
            consent(home, bundle, typed("no", "5000"))


def test_an_amount_must_be_named(home, bundle):
    with pytest.raises(DeployError, match="--cap-usd"):
        consent(home, bundle, never, cap=0.0)


@pytest.fixture
def ready(home, bundle, monkeypatch):
    """A deployment that meets every other condition: proven, with keys, with a consent."""
    shutil.copytree(bundle.folder, home / "bundle")
    consent(home, bundle, typed(NUMBER, "5000"))
    for variable in AlpacaBroker.variables[True]:
        monkeypatch.setenv(variable, "key")
    return home


def test_the_command_refuses_real_money_says_why_and_does_nothing(ready, capsys):
    before = sorted(ready.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(["live", ready.name, "--deployments-dir", str(ready.parent), "--cap-usd", "5000"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "real-money trading is closed until a market-life simulator has passed" in told
    assert sorted(ready.rglob("*")) == before
    assert "`fintrader paper RUN --feed alpaca --broker alpaca`" in told


class RealBroker(SimulatedBroker):
    """A broker that says that it spends real money; the runner must not ask it anything."""

    real_money = True


def test_the_runner_refuses_real_money(tmp_path):
    made, market = frozen(tmp_path)
    clock = ReplayClock(int(market.minutes[0]))
    feed = ReplayFeed(made.data, made.symbols)
    with Journal(tmp_path / JOURNAL) as journal:
        real = RealBroker(market, made.env, clock.now)
        paper = SimulatedBroker(market, made.env, clock.now)
        window = (int(market.minutes[0]), int(market.minutes[-1]))
        for one, cap in ((real, None), (paper, 5000.0)):
            with pytest.raises(
                DeployError, match="closed until a market-life simulator has passed"
            ):
                Runner(
                    made,
                    PaperSettings(),
                    Connections(clock, feed, one, journal),
                    window=window,
                    cap_usd=cap,
                )
        assert journal.tail(1) == []


def test_the_real_account_is_a_deployment_like_any_other(tmp_path, bundle):
    place = real_money.find_real_deployment(tmp_path / "mine", bundle)
    assert place.name == "mine-live"
    assert real_money.find_real_deployment(tmp_path / "mine", bundle) == place
    control.ask(place, "halt")  # what steers a deployment reaches it by its name
    assert [kind for _, kind in control.list_requests(place)] == ["halt"]
    assert status.list_names(tmp_path) == ["mine-live"]
    other, _ = frozen(tmp_path / "other", seed=1)
    with pytest.raises(DeployError, match="another bundle"):
        real_money.find_real_deployment(tmp_path / "mine", other)
