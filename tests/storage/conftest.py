from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from fintrader.storage import lease
from tests.engines import object_stores


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with object_stores.gcs(monkeypatch) as address:
        yield address


@pytest.fixture(params=["file", "memory", "s3", "gs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place in each kind of store."""
    if request.param == "s3":
        request.getfixturevalue("s3")
        return f"s3://{object_stores.BUCKET}/place"
    if request.param == "gs":
        request.getfixturevalue("gcs")
        return f"gs://{object_stores.BUCKET}/place"
    return f"memory://{uuid4().hex}/place" if request.param == "memory" else f"file://{tmp_path}/place"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that beat and lapse at once. Whoever relies on a living holder's beats raises `LAPSE_SECONDS`."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(lease, "LAPSE_SECONDS", 0.6)
