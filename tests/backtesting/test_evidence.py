import numpy as np
import pytest
from scipy import stats

from fintrader.errors import BacktestError
from fintrader.verdict import alpha as ev
from fintrader.verdict.bootstrap import romano_wolf


def days(count, *, ratio=0.0, beta=1.0, seed=0):
    """A strategy of a known information ratio a year once its beta is hedged, and its benchmark."""
    rng = np.random.default_rng(seed)
    theirs = 0.0006 + 0.01 * rng.standard_t(5, count)
    own = 0.004 * (rng.standard_normal(count) + ratio / np.sqrt(252))
    return beta * theirs + own, theirs


def test_the_levels_of_all_looks_are_the_level_together():
    levels = [ev.level_of_look(look) for look in range(1, 10_001)]
    assert levels[:3] == pytest.approx([0.0304, 0.0076, 0.00338], rel=1e-3)
    assert 0.9999 * ev.LEVEL < sum(levels) < ev.LEVEL


def test_returns_that_follow_the_benchmark_late_are_hedged_against_its_past():
    """Stale prices give a strategy without skill the alpha of its lagged beta."""

    def smooth(values):
        for t in range(1, len(values)):
            values[t] = 0.6 * values[t - 1] + 0.4 * values[t]
        return values

    betas = []
    passed = {"late": 0, "at once": 0}
    for seed in range(60):
        ours, theirs = days(250, beta=0.8, seed=seed)
        late = ev.alpha_test(smooth(ours.copy()), theirs, seed=0, repeats=199)
        at_once = ev.alpha_test(ours, theirs, seed=0, repeats=199)
        passed["late"] += late.p_value < 0.04
        passed["at once"] += at_once.past_sessions > 0
        assert late.past_sessions == ev.PAST[0]
        betas.append(late.beta)
    assert np.mean(betas) == pytest.approx(0.8, abs=0.05)
    assert passed["late"] <= 5
    assert passed["at once"] <= 12


def test_past_sessions_are_fitted_by_least_squares():
    ours, theirs = days(90, beta=1.4, ratio=2)
    found = ev.hedge(ours, theirs, past=2)
    padded = np.append([theirs.mean()] * 2, theirs)
    design = np.column_stack([np.ones(90)] + [padded[2 - k : 92 - k] for k in range(3)])
    fitted = np.linalg.lstsq(design, ours)[0]
    assert found.beta == pytest.approx(fitted[1:].sum())
    assert found.alpha == pytest.approx(fitted[0])
    assert found.residual == pytest.approx(ours - design @ fitted)
    weights = np.ones(90)
    weights[17] += 1e-4
    rows = design * np.sqrt(weights)[:, None]
    moved = np.linalg.lstsq(rows, ours * np.sqrt(weights))[0][0]
    assert (moved - fitted[0]) / 1e-4 * 90 == pytest.approx(
        found.influence[17] / np.sqrt(90 / 86), rel=1e-2
    )


def test_a_long_ledger_has_a_level_that_a_strategy_can_pass():
    ours, theirs = days(1000, ratio=5)
    level = ev.level_of_look(40)
    found = ev.alpha_test(ours, theirs, level=level, seed=0)
    assert found.p_value < level < 1 / (1 + ev.REPEATS)


@pytest.mark.slow
def test_small_p_values_are_those_of_a_larger_sample():
    """The tail of 9,999 samples against 500,000 samples of the same bootstrap."""
    ours, theirs = days(250)
    found = ev.hedge(ours, theirs)
    waves = ev._make_cosines(250, 1.0)
    means, errors = ev._resample(found.influence, 1, waves, 500_000, 1)
    drawn = np.sort(means / errors)
    student = stats.t(waves.shape[1])
    for share in (3e-3, 3e-4, 3e-5):
        reached = drawn[-round(share * drawn.size)]
        parts = [ev._share_above(part, reached, student) for part in np.split(means / errors, 50)]
        assert np.mean(parts) == pytest.approx(share, rel=0.5)


def test_hedging_is_least_squares_and_cash_hedges_nothing():
    ours, theirs = days(90, beta=1.4, ratio=2)
    found = ev.hedge(ours, theirs)
    (alpha, beta), *_ = np.linalg.lstsq(np.column_stack([np.ones(90), theirs]), ours)
    assert (found.alpha, found.beta) == pytest.approx((alpha, beta))
    assert found.residual == pytest.approx(ours - alpha - beta * theirs)
    # The influence is what moves alpha when one day is weighted a little more.
    weights = np.ones(90)
    weights[17] += 1e-4
    rows = np.column_stack([np.ones(90), theirs]) * np.sqrt(weights)[:, None]
    moved = np.linalg.lstsq(rows, ours * np.sqrt(weights))[0][0]
    assert (moved - alpha) / 1e-4 * 90 == pytest.approx(
        found.influence[17] / np.sqrt(90 / 88), rel=1e-2
    )
    cash = ev.hedge(ours, np.zeros(90))
    assert cash.beta == 0
    assert cash.alpha == pytest.approx(ours.mean())


def test_small_samples_are_tested_as_a_slow_reading_of_the_paper_tests_them():
    ours, theirs = days(40, ratio=3)
    found = ev.alpha_test(ours, theirs, seed=0)
    assert found is not None
    hedged = ev.hedge(ours, theirs)
    count = int(40 ** (2 / 3))
    projections = []
    for j in range(1, count + 1):
        total = 0.0
        for t, value in enumerate(hedged.influence):
            total += value * np.cos(np.pi * j * (t + 0.5) / 40)
        projections.append(np.sqrt(2 / 40) * total)
    error = np.sqrt(np.mean(np.square(projections)) / 40)
    assert found.p_value == pytest.approx(stats.t.sf(hedged.alpha / error, count))
    assert found.alpha == pytest.approx(252 * hedged.alpha)
    assert found.ratio == pytest.approx(hedged.alpha / hedged.residual.std(ddof=1) * np.sqrt(252))


def test_beta_is_no_alpha_and_the_benchmark_is_nothing_to_test():
    ours, theirs = days(250, beta=1.6)
    rising = theirs + 0.001
    pure = ev.alpha_test(ours + 0.0016, rising, seed=0)  # beta times the same rise
    assert pure.beta == pytest.approx(1.6, abs=0.1)
    assert pure.p_value > 0.1
    assert ev.alpha_test(theirs, theirs, seed=0) is None
    assert ev.alpha_test(1.5 * theirs, theirs, seed=0) is None
    assert ev.alpha_test(ours[:11], theirs[:11], seed=0) is None


@pytest.mark.slow
def test_it_is_wrong_as_often_as_it_says_and_right_as_often_as_it_says():
    """A sketch of `benchmarks/calibration.py`: 4 standard errors either side."""
    tested = [ev.alpha_test(*days(125, beta=1.3, seed=k), seed=k, repeats=199) for k in range(300)]
    wrong = np.mean([one.p_value <= 0.05 for one in tested if one is not None])
    assert wrong == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / 300))
    seen = float(np.median([one.visible for one in tested if one is not None]))
    skilled = [
        ev.alpha_test(*days(125, ratio=seen, seed=k), seed=k, repeats=199) for k in range(200)
    ]
    right = np.mean([one.p_value <= 0.05 for one in skilled if one is not None])
    assert right == pytest.approx(ev.POWER, abs=4 * np.sqrt(0.8 * 0.2 / 200))


def test_more_sessions_are_asked_for_where_there_is_something_to_see():
    better = ev.alpha_test(*days(250, ratio=1.5, seed=4), seed=0)
    assert better.sessions_needed is not None
    assert better.sessions_needed == int(np.ceil(250 * (better.visible / better.ratio) ** 2))
    worse = ev.alpha_test(*days(250, ratio=-3, seed=4), seed=0)
    assert worse.sessions_needed is None
    assert worse.p_value > worse.level
    strict = ev.alpha_test(*days(250, ratio=1.5, seed=4), seed=0, level=0.001)
    assert strict.visible > better.visible


def test_shifts_are_what_moving_the_holdings_bar_by_bar_would_earn():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(60, 3))
    returns = rng.normal(size=(60, 3))
    found = ev.shift_test(zip(weights.T, returns.T, strict=True), seed=0)
    slow = [sum(float(weights[(t - k) % 60] @ returns[t]) for t in range(60)) for k in range(60)]
    assert found.earned == pytest.approx(slow[0])
    assert found.expected == pytest.approx(np.mean(slow[1:]))
    assert found.shifts == 59
    assert found.p_value == pytest.approx((1 + sum(value >= slow[0] for value in slow[1:])) / 60)


def test_shifts_see_timing_and_not_choice():
    rng = np.random.default_rng(1)
    returns = rng.normal(size=(400, 2)) + [0.5, -0.5]
    chosen = np.tile([1.0, -1.0], (400, 1))
    assert (
        ev.shift_test(zip(chosen.T, returns.T, strict=True), seed=0).p_value == 1
    )  # as much, whenever it is held
    timed = np.sign(returns) + rng.normal(size=(400, 2))
    assert ev.shift_test(zip(timed.T, returns.T, strict=True), seed=0).p_value == 1 / 400
    assert ev.shift_test([(np.zeros(80), rng.normal(size=80))], seed=0) is None


@pytest.mark.slow
def test_a_bettor_wins_where_there_is_alpha_and_hardly_ever_elsewhere():
    ours, theirs = days(60, ratio=4, beta=1.2)
    wealth = ev.e_process(ours, theirs)
    stakes = [1 / len(ev.BETS)] * len(ev.BETS)
    for t in range(ev.FIRST_BET, 60):
        (alpha, beta), *_ = np.linalg.lstsq(np.column_stack([np.ones(t), theirs[:t]]), ours[:t])
        left = ours[:t] - alpha - beta * theirs[:t]
        gain = (ours[t] - beta * theirs[t]) / np.sqrt((left**2).sum() / (t - 2))
        stakes = [
            stake * max(0.0, 1 + bet / np.sqrt(252) * gain)
            for stake, bet in zip(stakes, ev.BETS, strict=True)
        ]
        assert wealth[t] == pytest.approx(sum(stakes))
    assert (wealth[: ev.FIRST_BET] == 1).all()
    lucky = [ev.e_process(*days(250, seed=k)).max() >= 1 / ev.LEVEL for k in range(150)]
    assert np.mean(lucky) <= ev.LEVEL
    assert ev.e_process(*days(600, ratio=3, seed=2)).max() > 1 / ev.LEVEL


@pytest.mark.slow
def test_many_trials_together_are_called_skilled_as_rarely_as_one():
    rng = np.random.default_rng(0)
    false = [
        romano_wolf(rng.normal(size=(60, 6)), seed=k, repeats=300).min() <= 0.05 for k in range(200)
    ]
    assert np.mean(false) == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / 200))
    mixed = rng.normal(size=(250, 5))
    mixed[:, [1, 3]] += [0.4, 0.3]
    found = romano_wolf(mixed, seed=0)
    assert (found[[1, 3]] < 0.01).all()
    assert (found[[0, 2, 4]] > 0.05).all()
    # Stepping down: without the two that stand out, the others meet a lower bar than the largest of
    # all.
    assert romano_wolf(mixed[:, [0, 2, 4]], seed=0) == pytest.approx(found[[0, 2, 4]], abs=0.1)
    flat = np.column_stack([np.zeros(50), rng.normal(size=50)])
    assert romano_wolf(flat, seed=0)[0] == 1
    with pytest.raises(BacktestError, match="at least 8"):
        romano_wolf(np.zeros((5, 2)), seed=0)
