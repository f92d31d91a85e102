"""Leases of accounts lie in a folder of the test, not in the user's own; keys are made up."""

import pytest

from fintrader.deploy.journal import Journal
from tests.engines.alpaca_loopback import KEY, SECRET


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("APCA_API_KEY_ID", KEY)
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "journal.sqlite") as journal:
        yield journal
