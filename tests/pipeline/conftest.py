from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.runs import pods_in_a_thread


@pytest.fixture(scope="module")
def in_this_process() -> Iterator[None]:
    with pods_in_a_thread():
        yield
