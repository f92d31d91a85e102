"""The experiment on schedules: its statistics, its optimum, and the moves of its settings."""

import numpy as np
import pytest

from benchmarks._comparison import compare, correct
from benchmarks._schedules import WAYS, Problem, explore
from benchmarks.schedules import OURS, RIVALS
from tests.oracles.task_runs import describe_task, follow_plan


def test_holms_correction_is_the_textbooks():
    """Holm 1979: the least p times the number of tests, and so on, never falling."""
    found = correct({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert correct({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_a_comparison_counts_wins_by_market_and_cuts_disasters():
    names = [OURS, *WAYS]
    random = np.random.default_rng(2)
    rows = []
    for number in range(40):
        shares = {name: float(random.normal(0.5, 0.1)) for name in names}
        shares["random"] = shares[OURS] - 0.2 if number else -50.0
        shares["pbt"] = shares[OURS] + (0.02 if number % 2 else -0.02)
        cpu = dict.fromkeys(WAYS, 1.0)
        rows.append({"market": number, "shares": shares, "cpu_seconds": cpu})
    found = compare(rows, OURS, RIVALS)
    assert found["against"]["random"]["wins"] == 40
    assert found["against"]["random"]["p_holm"] < 1e-5
    assert found["ways"]["random"]["mean"] > -0.1, "a share counts as -1 at least"
    assert found["against"]["pbt"]["p"] > 0.5
    assert found["against"]["pbt"]["p_not_worse"] < 0.01
    assert found["against"]["tournament"]["p_holm"] > 0.05


@pytest.mark.slow
def test_the_optimum_of_a_drawn_market_is_that_of_the_dynamic_programme():
    problem = Problem(9002, 8)
    _, worth = follow_plan(describe_task(problem.config), problem.test)
    # Of 2,048 episodes the mean is uncertain by 3 % here.
    assert problem.optimum == pytest.approx(worth, rel=0.12)
    other = Problem(9003, 8)
    assert (problem.config.env.cost_bps, problem.base) != (other.config.env.cost_bps, other.base)


@pytest.mark.slow
def test_moved_settings_stay_in_their_ranges():
    pytest.importorskip("ray.tune", reason="Ray Tune is not installed here")
    problem = Problem(9002, 8)
    random = np.random.default_rng(0)
    values = problem.base
    for _ in range(200):
        values = explore(problem, values, random)
        assert values["gamma"] in problem.space["gamma"]
        for name in ("learning_rate", "noise"):
            assert problem.space[name].low <= values[name] <= problem.space[name].high
