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


# The longest windows take most of the time; `benchmarks.calibration` has them.
def list_short(cases):
    return [case for case in cases if case.sessions <= 250]


def test_luck_is_called_skill_as_often_as_the_level_says():
    """Over all cases: one alone has too few repeats to notice a test that never rejects."""
    found = [measure(case, REPEATS) for case in list_short(SIZE)]
    assert len(found) >= 5
    share = np.mean([one["alpha"] for one in found])
    assert abs(share - LEVEL) <= 4 * np.sqrt(LEVEL * (1 - LEVEL) / REPEATS / len(found))
    for one in found:
        assert max(one["shift"], one["betting"]) <= LEVEL + 4 * np.sqrt(
            LEVEL * (1 - LEVEL) / REPEATS
        )


def test_skill_is_found_and_more_of_it_in_longer_windows():
    cases = [case for case in list_short(POWER) if case.trials == 1]
    by_length = [measure(case, REPEATS)["alpha"] for case in cases]
    assert by_length == sorted(by_length)
    assert within(by_length[-1], 0.6), "an information ratio of 2 over 250 sessions"
