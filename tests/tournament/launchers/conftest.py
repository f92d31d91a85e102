"""Ray clusters on loopback for the tests of its launcher."""

from contextlib import ExitStack

import pytest

from tests.engines.ray_cluster import Nodes


@pytest.fixture(scope="session")
def with_ray():
    pytest.importorskip("ray", reason="Ray is missing: pip install '.[ray]'")


@pytest.fixture
def started():
    """Remember what was started, and stop it whatever happens."""
    with ExitStack() as running:

        def remember(one):
            running.callback(one.stop)
            return one

        yield remember


@pytest.fixture(scope="module")
def nodes(with_ray):
    cluster = Nodes(1, 1)
    yield cluster
    cluster.stop()
