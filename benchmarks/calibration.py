"""Size and power of the verdict's tests: how often they are wrong without skill, and right with it.

    python -m benchmarks.calibration [--repeats 600] [--save]

A market of 20 stocks with a common factor of changing volatility, fat tails and returns that depend
on those before. A strategy holds the equal-weight portfolio at some beta and tilts away
from it; its tilts last for days. Without skill they know nothing; with it they lean towards the
next day's returns, as far as gives the information ratio named (of a whole portfolio against cash:
the Sharpe ratio). The best of M such strategies in a window of the same length is frozen, and
tested on the next one by the functions that the product calls.

size: share of strategies without skill that are called skilled at 5 %. power: the same share with
skill. *Sees* is the median of the ratio that a window shows four times in five by the verdict;
*at it* the share of strategies of that ratio that are seen. 600 repeats know a share of 5 % to
within 1.8 points, of 80 % to within 3.3 (two standard errors).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks._bench import Values, finish, read_arguments
from fintrader.backtesting.data_caveats import EXITS, bound_absence
from fintrader.verdict import alpha as ev

Array = NDArray[np.float64]
STOCKS = 20
TILT = 0.02
OWN = 0.015
COMMON = 0.01
LAST = 0.8
"""Part of a tilt that is left a day later."""
DEPENDENCE = 0.1
"""Of a stock's own return on the one before."""
SESSIONS = (12, 20, 40, 63, 125, 250, 1000)
DRAWS = 499
LEVEL = 0.05


class Case(NamedTuple):
    """One simulated case."""

    sessions: int
    trials: int = 1
    ratio: float = 0.0
    """Information ratio of every trial; of a whole portfolio where `cash` is the benchmark."""
    beta: float = 1.0
    cash: bool = False


def cluster_volatility(shocks: Array) -> Array:
    """Shocks whose variance follows GARCH(1, 1), of mean 1."""
    scaled = np.empty_like(shocks)
    variance = np.ones(shocks.shape[1:])
    for t, shock in enumerate(shocks):
        scaled[t] = shock * np.sqrt(variance)
        variance = 0.05 + 0.10 * scaled[t] ** 2 + 0.85 * variance
    return scaled


def make_persistent(shocks: Array, left: float) -> Array:
    """AR(1) of variance 1 along the first axis."""
    values = np.empty_like(shocks)
    values[0] = shocks[0]
    for t in range(1, len(shocks)):
        values[t] = left * values[t - 1] + np.sqrt(1 - left**2) * shocks[t]
    return values


class Drawn(NamedTuple):
    """The chosen strategy in its held-out window."""

    ours: Array
    theirs: Array
    active: Array
    """`[S, N]`: weights beyond the benchmark's."""
    returns: Array
    """`[S, N]`."""


def draw(case: Case, seed: int) -> Drawn:
    """A market, the best of the trials in its first window, and what that one does in the
    second."""
    rng = np.random.default_rng([seed, case.sessions, case.trials])
    days = 2 * case.sessions + 1

    def fat(*shape: int) -> Array:
        return rng.standard_t(5, shape) / np.sqrt(5 / 3)

    common = 0.0004 + COMMON * cluster_volatility(fat(days))
    own = OWN * make_persistent(cluster_volatility(fat(days, STOCKS)), DEPENDENCE)
    returns = common[:, None] + own
    theirs = np.zeros(days) if case.cash else returns.mean(axis=1)
    tilts = TILT * make_persistent(rng.standard_normal((days, case.trials, STOCKS)), LAST)
    tilts -= tilts.mean(axis=2, keepdims=True)
    lean = case.ratio / np.sqrt(252) * TILT / (np.sqrt(STOCKS - 1) * OWN)
    tilts += lean * (own - own.mean(axis=1, keepdims=True))[:, None, :]
    ours = case.beta * theirs[:, None] + np.einsum("tmn,tn->tm", tilts, returns)
    window = case.sessions
    chosen = int((ours[:window] - theirs[:window, None]).mean(axis=0).argmax())
    held = slice(window + 1, None)
    return Drawn(ours[held, chosen], theirs[held], tilts[held, chosen], returns[held])


def test_newey_west(ours: Array, theirs: Array) -> float:
    """One-sided p-value of alpha, the best known test for one look: Newey and West (1987), with
    their lags of 1994 and the normal distribution."""
    u = ev.hedge(ours, theirs).influence
    lags = int(4 * (u.size / 100) ** (2 / 9))
    products = [(1 - k / (lags + 1)) * float(u[k:] @ u[: u.size - k]) for k in range(lags + 1)]
    error = np.sqrt(max(2 * sum(products) - products[0], 1e-30)) / u.size
    return stats.norm.sf(ev.hedge(ours, theirs).alpha / error)


def judge(drawn: Drawn, seed: int) -> tuple[float, ...]:
    """p-value, visible ratio, p-value of shifts in time and e-value of one draw, by the functions
    that `assessment.assess` calls, and the p-value after Newey and West."""
    tested = ev.alpha_test(drawn.ours, drawn.theirs, seed=seed, repeats=DRAWS)
    shifted = ev.shift_test(zip(drawn.active.T, drawn.returns.T, strict=True), seed=seed)
    bets = ev.e_process(drawn.ours, drawn.theirs).max()
    rival = test_newey_west(drawn.ours, drawn.theirs)
    return tested.p_value, tested.visible, shifted.p_value, bets, rival


def measure(case: Case, repeats: int) -> Values:
    """Shares of the draws that each test calls skill."""
    judged = np.array([judge(draw(case, seed), seed) for seed in range(repeats)])
    p_values, visible, shifts, bets, rivals = judged.T
    return {
        **case._asdict(),
        "alpha": (p_values <= LEVEL).mean(),
        "shift": (shifts <= LEVEL).mean(),
        "newey_west": (rivals <= LEVEL).mean(),
        "betting": (bets >= 1 / LEVEL).mean(),
        "sees": np.median(visible),
    }


SIZE = [Case(sessions, beta=1.3) for sessions in SESSIONS] + [
    Case(250, trials, beta=0.7) for trials in (8, 80)
]
POWER = [
    *(Case(sessions, ratio=2.0, beta=1.3) for sessions in SESSIONS),
    *(Case(250, trials, ratio=2.0) for trials in (8, 80)),
    *(Case(250, trials, ratio=2.0, cash=True, beta=0.0) for trials in (8, 80)),
    Case(1000, 8, ratio=3.0, cash=True, beta=0.0),
]


def passes(ours: Array, theirs: Array, level: float, seed: int, repeats: int = DRAWS) -> bool:
    """Check whether the verdict's test calls a strategy skilled."""
    tested = ev.alpha_test(ours, theirs, level=level, seed=seed, repeats=repeats)
    return tested is not None and tested.p_value <= level


def draw_null(name: str, sessions: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Returns without skill that a test of means takes for skill, and their benchmark's: sold tails
    of mean zero, alone or beside beta, and a beta whose prices are smoothed by a part a day."""
    theirs = 0.0006 + 0.0075 * rng.standard_t(5, sessions)
    if name.startswith("smoothed"):
        ours = 0.8 * theirs + rng.normal(0, 0.004, sessions)
        part = float(name.removeprefix("smoothed "))
        for t in range(1, sessions):
            ours[t] = part * ours[t - 1] + (1 - part) * ours[t]
        return ours, theirs
    every, loss, beta = (125, 0.05, 0.0) if name == "tails" else (63, 0.03, 0.8)
    ours = np.where(rng.random(sessions) < 1 / every, -loss, loss / (every - 1))
    return ours + beta * theirs + rng.normal(0, 0.0001 + 0.0025 * beta, sessions), theirs


def measure_null(name: str, sessions: int, repeats: int) -> Values:
    """Share of the draws that pass at the level of a first look."""
    level = ev.level_of_look(1)
    passed = sum(
        passes(*draw_null(name, sessions, np.random.default_rng([seed, sessions])), level, seed)
        for seed in range(repeats)
    )
    return {"null": name, "sessions": sessions, "level": level, "passed": passed / repeats}


def measure_choice(
    trials: int, skilled: float, common: float, repeats: int, sessions: int = 500
) -> Values:
    """Choose the best of some trials by the returns that judge it, as `judge --trials` does.

    `skilled`: share of them with an information ratio of 2; `common`: correlation of all, as of
    variants of one strategy, or of a search inside of a search.
    """
    level = ev.level_of_look(1) / trials
    passed = lucky = 0
    for seed in range(repeats):
        rng = np.random.default_rng([seed, trials, sessions])
        noise = rng.standard_t(5, (sessions, trials + 1)) / np.sqrt(5 / 3)
        returns = np.sqrt(common) * noise[:, :1] + np.sqrt(1 - common) * noise[:, 1:]
        number = round(skilled * trials)
        returns[:, :number] += 2 / np.sqrt(252)
        best = int((returns.mean(axis=0) / returns.std(axis=0)).argmax())
        is_called = passes(0.01 * returns[:, best], np.zeros(sessions), level, seed, 2_999)
        passed += is_called
        lucky += is_called and best >= number
    shares = {"passed": passed / repeats, "lucky": lucky / repeats}
    case = {"trials": trials, "skilled": skilled, "common": common, "sessions": sessions}
    return {**case, "level": level, **shares}


def measure_survivors(years: float, repeats: int) -> Values:
    """Shares without skill that pass on a universe of survivors, as it is and less the bound.

    A seller of winners, who buys back what fell, on the names that are left after those with the
    worst growth have gone, as many as leave the NASDAQ-100. The gone held their part of its
    losses.
    """
    level = ev.level_of_look(1)
    sessions = round(252 * years)
    passed = cleared = 0
    bounds = []
    for seed in range(repeats):
        rng = np.random.default_rng([seed, sessions])
        own = 0.02 * rng.standard_t(5, (sessions, 100)) / np.sqrt(5 / 3)
        returns = own + 0.0004 + 0.01 * rng.standard_normal((sessions, 1))
        growth = np.log1p(np.maximum(returns, -0.9)).sum(axis=0)
        left = growth >= np.quantile(growth, 1 - (1 - EXITS) ** years)
        past = np.cumsum(own[:, left], axis=0)
        tilt = np.vstack(
            [np.zeros(past.shape[1]), past[:-1].mean(axis=1, keepdims=True) - past[:-1]]
        )
        tilt /= np.maximum(np.abs(tilt).sum(axis=1, keepdims=True), 1e-12)
        theirs = returns[:, left].mean(axis=1)
        ours = theirs + 0.5 * (tilt * returns[:, left]).sum(axis=1)
        bounds.append(bound_absence(growth[left], years))
        passed += passes(ours, theirs, level, seed)
        cleared += passes(ours - bounds[-1] / 252, theirs, level, seed)
    shares = {"passed": passed / repeats, "cleared": cleared / repeats}
    return {"years": years, **shares, "bound": np.median(bounds), "level": level}


NULLS = ("tails", "tails beside beta", "smoothed 0.3", "smoothed 0.6", "smoothed 0.8")


def main() -> None:
    """Measure every case."""
    options = read_arguments(__doc__, repeats=600)
    figures = {"repeats": options.repeats, "level": LEVEL}
    for name, cases in (("size", SIZE), ("power", POWER), ("at_it", None)):
        if cases is None:
            cases = [
                Case(row["sessions"], ratio=row["sees"], beta=1.3)
                for row in figures["size"][: len(SESSIONS)]
            ]
        figures[name] = []
        for case in cases:
            figures[name].append(measure(case, options.repeats))
            print(name, figures[name][-1])
    figures["nulls"] = [
        measure_null(name, sessions, options.repeats)
        for name in NULLS
        for sessions in (63, 250, 1000)
    ]
    figures["chosen"] = [
        measure_choice(trials, skilled, common, options.repeats)
        for trials in (8, 80)
        for skilled in (0.0, 0.25)
        for common in (0.0, 0.8)
    ]
    figures["survivors"] = [measure_survivors(years, options.repeats) for years in (0.25, 1, 4)]
    finish("calibration", figures, options)


if __name__ == "__main__":
    main()
