"""What a deployment says of itself: read from its folder, damaged or not, without torch, and over
HTTP."""

import json
import shutil
import urllib.request
from collections import Counter
from dataclasses import replace

import pytest

from fintrader.cli import deployments
from fintrader.config import split_address
from fintrader.deploy import control, status
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.gauges import Gauges
from fintrader.deploy.journal import Journal
from fintrader.deploy.settings import PaperSettings
from fintrader.errors import ConfigError, DeployError
from fintrader.storage.lease import hold
from fintrader.storage.objects import ObjectStore
from tests.engines.deployments import frozen, replayed, run_live, settings

DATA = settings(features={"names": ["return_1", "sma_26"]}, windows={"fractions": [0.6, 0.3, 0.1]})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A replay that has ended, in a folder of deployments."""
    folder = tmp_path_factory.mktemp("deployments") / "mine"
    bundle, market = frozen(folder, DATA)
    replayed(folder, bundle, market).close()
    return folder


def bought(folder):
    """Shares by symbol: all that its orders ever filled."""
    total = Counter()
    with Journal(folder / JOURNAL, reading=True) as journal:
        for order in journal.orders().values():
            total[order.symbol] += order.filled
    return {name: shares for name, shares in total.items() if abs(shares) > 1e-9}


def test_it_says_what_it_did(home):
    found = status.read_status(home)
    assert (found.state, found.name, found.bundle.run) == ("finished", "mine", "none")
    assert found.decision is not None
    assert found.equity == found.curve[-1][1]
    assert sum(found.counts.values()) > 20
    assert found.orders[0].id > found.orders[-1].id
    headroom = found.headroom()
    assert len(headroom) == 5
    used, limit = headroom["All positions"]
    assert 0 < used <= limit == 1.0
    assert found.growth == found.decision.equity / 1e6 - 1
    # Losses count from a resume on, and from the session before.
    decision = replace(found.decision, equity=90.0, peak=200.0, limits_from=(100.0, 96.0))
    headroom = replace(found, decision=decision).headroom()
    assert headroom["Loss from the peak"][0] == pytest.approx(0.1)
    assert headroom["Loss of the day"][0] == pytest.approx(1 - 90 / 96)
    assert status.as_json(found)["orders"] == dict(found.counts)
    held = found.decision
    worth = sum(n * held.prices[name] for name, n in held.shares.items())
    assert worth + held.cash == pytest.approx(held.equity)
    assert any(held.orders.values())
    assert found.held == pytest.approx(bought(home))
    assert "finished" in status.describe(found)
    assert status.list_names(home.parent) == ["mine"]


def test_damage_is_a_sentence(tmp_path):
    with pytest.raises(DeployError, match="holds no deployment"):
        status.read_status(tmp_path)
    frozen(tmp_path / "x", DATA)
    assert status.read_status(tmp_path / "x").state == "not begun"
    (tmp_path / "x" / "journal.sqlite").write_bytes(b"nonsense" * 100)
    with pytest.raises(DeployError, match="cannot be read as a journal"):
        status.read_status(tmp_path / "x")
    (tmp_path / "x" / "journal.sqlite").write_bytes(b"")
    with pytest.raises(DeployError, match="holds nothing yet"):
        status.read_status(tmp_path / "x")
    (tmp_path / "x" / "journal.sqlite").unlink()
    for name, text in (
        ("heartbeat.json", '{"time": 1, "next_decision": "soon"}'),
        ("drift.json", "123"),
    ):
        (tmp_path / "x" / name).write_text(text)
        with pytest.raises(DeployError, match="damaged"):
            status.read_status(tmp_path / "x")
        (tmp_path / "x" / name).unlink()
    (tmp_path / "aliases.json").write_text("123")
    with pytest.raises(DeployError, match="damaged"):
        status.read_status(tmp_path / "x")
    path = tmp_path / "x" / "bundle" / "bundle.json"
    path.write_bytes(path.read_bytes().replace(b"none", b"nine"))
    with pytest.raises(DeployError, match="was changed"):
        status.read_status(tmp_path / "x")


def test_a_loop_that_stands_still_is_not_running(home, tmp_path):
    bundle, market = frozen(tmp_path / "x", DATA)
    run_live(tmp_path / "x", bundle, market, bars=12).close()
    found = status.read_status(tmp_path / "x")  # its newest orders are under way
    assert found.held == pytest.approx(found.decision.shares)
    assert found.cash_usd == pytest.approx(found.decision.cash)
    with hold(ObjectStore(tmp_path / "x")):
        beat = json.loads((tmp_path / "x" / "heartbeat.json").read_text())
        assert status.read_status(tmp_path / "x").state == "running"
        beat["time"] -= 10 * 60 * 10**9
        (tmp_path / "x" / "heartbeat.json").write_text(json.dumps(beat))
        assert status.read_status(tmp_path / "x").state == "silent"
    control.ask(tmp_path / "x", "halt")
    assert status.read_status(tmp_path / "x").requests == ("halt",)
    (tmp_path / "x" / "bundle" / "bundle.json").unlink()
    assert status.list_names(tmp_path) == ["x"]
    with pytest.raises(DeployError, match="is missing and its journal is there"):
        status.read_status(tmp_path / "x")


def test_a_replay_that_has_ended_is_asked_for_nothing(home, capsys):
    place = ["--deployments-dir", str(home.parent)]
    with pytest.raises(DeployError, match="mine has ended, so no process would carry this out"):
        deployments.flatten(["mine", *place])
    (home.parent / "torn" / "bundle").mkdir(parents=True)
    (home.parent / "torn" / "bundle" / "bundle.json").write_text("{}")
    (home.parent / "torn" / JOURNAL).write_bytes(b"no database")
    deployments.flatten(["--all", *place])
    assert capsys.readouterr().out.startswith("torn: asked to flatten")
    assert control.list_requests(home) == []
    shutil.rmtree(home.parent / "torn")


def test_the_champion_and_the_one_before(tmp_path):
    for name in ("a", "b"):
        frozen(tmp_path / name, DATA)
    assert control.promote(tmp_path / "a") == ""
    assert control.promote(tmp_path / "b") == "a"
    assert control.list_aliases(tmp_path) == {"champion": "b", "challenger": "a"}
    assert control.promote(tmp_path / "b") == "a"  # nothing changes
    assert status.read_status(tmp_path / "a").role == "challenger"


def test_gauges_are_served_on_this_machine_by_default():
    pytest.importorskip("prometheus_client")
    gauges = Gauges(
        "mine", "127.0.0.1", 0, lambda: ({"equity_usd": 5.0, "halted": 1.0}, {"filled": 7})
    )
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{gauges.port}/metrics", timeout=20
        ) as answer:
            text = answer.read().decode()
        assert 'fintrader_deployment_equity_usd{deployment="mine"} 5.0' in text
        assert 'fintrader_deployment_orders{deployment="mine",state="filled"} 7.0' in text
        assert gauges._server.server_address[0] == "127.0.0.1"
        assert split_address(PaperSettings(metrics=9109).metrics) == ("127.0.0.1", 9109)
        with pytest.raises(ConfigError, match="metrics: 127"):
            Gauges("other", "127.0.0.1", gauges.port, dict)
    finally:
        gauges.close()
