"""The size and the power of the verdict's test, as docs/evidence.md tells them, from fewer
repeats."""

import numpy as np
import pytest

from benchmarks.calibration import LEVEL, POWER, SIZE, measure

pytestmark = pytest.mark.slow
REPEATS = 200


def within(share, expected):
    """Four standard errors of a share of so many repeats."""
    return abs(share - expected) <= 4 * np.sqrt(expected * (1 - expected) / REPEATS)


@pytest.mark.parametrize("case", SIZE, ids=lambda case: f"{case.sessions}-{case.trials}")
def test_luck_is_called_skill_as_often_as_the_level_says(case):
    found = measure(case, REPEATS)
    assert within(found["alpha"], LEVEL)
    assert found["shift"] <= LEVEL + 4 * np.sqrt(LEVEL * (1 - LEVEL) / REPEATS)
    assert found["betting"] <= LEVEL + 4 * np.sqrt(LEVEL * (1 - LEVEL) / REPEATS)


def test_skill_is_found_and_more_of_it_in_longer_windows():
    by_length = [measure(case, REPEATS)["alpha"] for case in POWER if case.trials == 1]
    assert by_length == sorted(by_length)
    assert within(by_length[-2], 0.6), "an information ratio of 2 over 250 sessions"
    assert by_length[-1] > 0.9
