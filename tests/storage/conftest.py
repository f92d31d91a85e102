import pytest

from fintrader.storage import lease
from tests.engines import object_stores


@pytest.fixture(params=["file", "memory", "s3", "gs"])
def url(request, tmp_path, monkeypatch):
    """An empty place in each kind of store."""
    with object_stores.place(request.param, tmp_path, monkeypatch) as place:
        yield place


@pytest.fixture
def hasty(monkeypatch):
    """Leases that beat and lapse at once. Whoever relies on a living holder's beats raises
    `LAPSE_SECONDS`."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(lease, "LAPSE_SECONDS", 0.6)
