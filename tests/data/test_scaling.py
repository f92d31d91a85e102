from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from fintrader.data.scaling import cross_section


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values `[T, N, 2]` with holes and ties, and who is a member."""
    random = np.random.default_rng(seed)
    values = random.normal(3, 2, (40, 6, 2)).astype(np.float32)
    values[:, :, 0] = np.round(values[:, :, 0])
    values[random.random(values.shape) < 0.2] = np.nan
    return values, random.random((40, 6)) < 0.8


@pytest.mark.parametrize("how", ["zscore", "rank"])
def test_a_cross_section_is_that_of_the_members_with_a_value(how: str) -> None:
    values, member = table()
    got = values.copy()
    cross_section(got, member, [0], how, 10.0)
    np.testing.assert_array_equal(got[:, :, 1], values[:, :, 1])  # no other column is touched
    sizes = set()
    for t in range(len(values)):
        known = member[t] & np.isfinite(values[t, :, 0])
        sizes.add(min(int(known.sum()), 3))
        x = values[t, known, 0].astype(float)
        expected = np.zeros(6)
        if len(x) >= 3 and x.std() > 0:
            ranks = (rankdata(x) - (len(x) + 1) / 2) / np.std(np.arange(len(x)))
            expected[known] = (x - x.mean()) / x.std() if how == "zscore" else ranks
        np.testing.assert_allclose(got[t, :, 0], expected, rtol=1e-5, atol=1e-6)
    assert {2, 3} <= sizes


def test_ranks_have_unit_scale_and_outliers_are_cut_off() -> None:
    values = np.zeros((2, 200, 1), dtype=np.float32)
    values[0, :, 0] = np.random.default_rng(0).standard_cauchy(200)
    member = np.ones((2, 200), dtype=bool)
    ranks, scores = values.copy(), values.copy()
    cross_section(ranks, member, [0], "rank", 10.0)
    cross_section(scores, member, [0], "zscore", 2.0)
    assert ranks[0].mean() == pytest.approx(0, abs=1e-6)
    assert ranks[0].std() == pytest.approx(1, abs=1e-6)
    assert np.abs(scores).max() == 2.0
    assert not ranks[1].any()  # all equal
    assert not scores[1].any()
