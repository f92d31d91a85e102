"""Leases of accounts lie in a folder of the test, not in the user's own."""

import pytest


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
