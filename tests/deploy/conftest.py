"""Leases of accounts lie in a folder of the test, not in the user's own; keys are made up."""

from functools import partial

import pytest

from fintrader.deploy import accounts, broker
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import reconcile
from tests.engines import binance_loopback
from tests.engines.alpaca_loopback import KEY, SECRET


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("APCA_API_KEY_ID", KEY)
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)
    monkeypatch.setenv("FINTRADER_CCXT_KEY", binance_loopback.KEY)
    monkeypatch.setenv("FINTRADER_CCXT_SECRET", binance_loopback.SECRET)


@pytest.fixture(autouse=True)
def _no_record(tmp_path, monkeypatch):
    """Real money is closed here, whether or not this checkout's record has passed."""
    monkeypatch.setattr(broker, "RECORD", tmp_path / "no_record.json")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    """A second look at an account that differs follows at once."""
    monkeypatch.setattr(accounts, "reconcile", partial(reconcile, pause=lambda seconds: None))


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "journal.sqlite") as journal:
        yield journal
