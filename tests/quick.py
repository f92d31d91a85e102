"""Which cases of a test `make test` takes; `make test-all` takes all of them."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(*quick: str, every: Iterable[str]) -> list[Any]:
    """Parameters of a test: the `quick` ones, and the others for `make test-all`."""
    slow = pytest.mark.slow
    return [name if name in quick else pytest.param(name, marks=slow) for name in every]


def slow_but(*quick: int, every: Iterable[Any]) -> list[Any]:
    """The same for cases without names: those at these places are quick. A tuple holds the values
    of several parameters."""
    found = []
    for number, case in enumerate(every):
        values = case if type(case) is tuple else (case,)
        marked = number in quick or hasattr(case, "marks")
        found.append(case if marked else pytest.param(*values, marks=pytest.mark.slow))
    return found
