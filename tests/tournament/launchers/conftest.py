"""Ray clusters on loopback for the tests of its launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.engines.ray_cluster import Nodes

Started = Callable[[Any], Any]


@pytest.fixture(scope="session")
def with_ray() -> None:
    pytest.importorskip("ray", reason="Ray is missing: pip install '.[ray]'")


@pytest.fixture
def started() -> Iterator[Started]:
    """Remember what was started, and stop it whatever happens."""
    with ExitStack() as running:

        def remember(one: Any) -> Any:
            running.callback(one.stop)
            return one

        yield remember


@pytest.fixture(scope="module")
def nodes(with_ray: None) -> Iterator[Nodes]:
    cluster = Nodes(1, 1)
    yield cluster
    cluster.stop()
