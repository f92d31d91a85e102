"""Ray clusters on loopback for the tests of its launcher."""

from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from tests.engines.ray_cluster import Nodes

# The launcher's modules import Ray.
collect_ignore_glob = [] if find_spec("ray") else ["test_ray*.py"]


@pytest.fixture
def started():
    """Remember what was started, and stop it whatever happens."""
    with ExitStack() as running:

        def remember(one):
            running.callback(one.stop)
            return one

        yield remember


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes(1, 1)
    yield cluster
    cluster.stop()
