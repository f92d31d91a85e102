"""Kelly's weights, which the benchmarks judge by, are the optimum of their market."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kelly import ASSETS, COVARIANCE, WEIGHTS, expected_growth


def test_the_growth_of_kellys_weights_is_that_of_the_closed_form() -> None:
    # g = μ'w − w'Σw / 2, which is w'Σw / 2 at w = Σ⁻¹ μ; a bar is not an instant, hence the tolerance
    closed = float(WEIGHTS @ COVARIANCE @ WEIGHTS / 2)
    assert float(expected_growth(WEIGHTS.unsqueeze(0))) == pytest.approx(closed, rel=0.02)


def test_no_weights_near_kellys_grow_faster() -> None:
    best = expected_growth(WEIGHTS.unsqueeze(0))
    moved = WEIGHTS + 0.04 * torch.cat([torch.eye(ASSETS), -torch.eye(ASSETS)]).double()
    assert bool((expected_growth(moved) < best).all())
    assert float(expected_growth(2 * WEIGHTS.unsqueeze(0)) / best) == pytest.approx(0, abs=0.1)  # twice Kelly: nothing
