"""Does a tournament find better agents than the same budget spent otherwise? A plan, made before it
was carried out.

    python benchmarks/tournament.py --bars FOLDER [--markets 21] [--first 1] [--arms tournament
    ...] [--jobs 2] [--home FOLDER] [--save]

Markets: a signal planted into the daily bars of a random 40 symbols of the NASDAQ-100 (2015-10 to
2018-02, in FOLDER as for `real.py`), of information coefficient 0.05, 0.10 and 0.15 by turns,
twenty sessions ahead, beside the features of `configs/walkforward_daily.yaml`. Three windows of 60,
20 and 20 % of the sessions, twenty between them. Agent (APG, tilts away from equal weights),
environment and costs (20 bps) are that file's, but for a risk aversion of 20 and episodes of 32
sessions.

Every arm spends the same env-steps: those of six whole trainings of 40 updates. CPU seconds are
measured beside.

    tournament           24 pods of a quarter: six founders, then children of each lineage's best
                         (`OURS`); ensemble
    tournament_best      its best pod
    tournament_plain     24 pods of a quarter with the default settings: rank alone picks
                         parents; ensemble
    seeds                six whole pods as configured, each the best of ten looks; the best of them
    seeds_ensemble       the ensemble of these
    random               as `seeds`, but each drawn from the search space (the first is as
                         configured)
    asha                 Optuna: random search, asynchronous successive halving; the best look of
                         all
    tpe                  Optuna: tree-structured Parzen estimator, median pruning; the best look
                         of all
    ray_pbt              Ray Tune: population-based training, six for eight rounds; the best look
                         of all (in an environment of its own; CPU seconds without what Ray
                         itself takes)

All choose by what they train for, on the validation window (`active_utility`), and are tested once.
Figure: the same on the test window, a year: the mean of the daily returns beyond equal weights at
costs, less half the environment's risk aversion times their variance. Differences are paired by
market; `tournament` against each other arm by Wilcoxon's signed-rank test, two-sided, with Holm's
correction over the five that are not ours (seeds, random, asha, tpe, ray_pbt). Beside it utility on
the validation window per CPU second, and the information ratio.

Settings were chosen on markets 100 to 105. Figures are kept in `--home`, runs/tournament by
default, and not measured again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._bench import ROOT, finish, read_arguments
from benchmarks._search_arms import ARMS, PEERS, WHOLE, Market
from fintrader.files import write_json

COEFFICIENTS = (0.05, 0.10, 0.15)
SYMBOLS = 40
OWN = "tournament"


def measure_market(home: Path, bars: Path, number: int, arms: tuple[str, ...]) -> dict[str, Any]:
    """Every arm once; figures that are there are only read."""
    market = Market.planted(home, bars, number, COEFFICIENTS[number % len(COEFFICIENTS)], SYMBOLS)
    done = home / f"market-{number}.json"
    known = json.loads(done.read_text()) if done.exists() else {}
    for name in arms:
        if name in known:
            continue
        began = time.monotonic()
        known |= ARMS[name](market, name, number)
        write_json(done, known)
        print(f"market {number}: {name} in {time.monotonic() - began:.0f} s")
    return {"market": number, "ic": market.ic, **known}


def correct(ps: dict[str, float]) -> dict[str, float]:
    """Correct p-values as Holm does."""
    adjusted = dict[str, float]()
    least = 0.0
    for place, (name, p) in enumerate(sorted(ps.items(), key=lambda one: one[1])):
        least = max(least, min(1.0, (len(ps) - place) * p))
        adjusted[name] = round(least, 4)
    return adjusted


def compare(table: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and means of each arm, and the tournament against each other: wins, median difference
    and p."""
    from scipy.stats import wilcoxon

    arms = [name for name in table[0] if isinstance(table[0][name], dict)]
    rows: dict[str, Any] = {}
    for name in arms:
        of = {what: [row[name][what] for row in table] for what in table[0][name]}
        rows[name] = {
            f"{what}_median": round(statistics.median(values), 5) for what, values in of.items()
        }
        rows[name]["utility_mean"] = round(statistics.fmean(of["utility"]), 5)
        per = [
            value / seconds
            for value, seconds in zip(of["validation_utility"], of["cpu_seconds"], strict=True)
        ]
        rows[name]["validation_utility_per_cpu_second"] = round(statistics.median(per), 6)
    against: dict[str, Any] = {}
    for name in arms:
        if name != OWN and OWN in arms:
            differences = [row[OWN]["utility"] - row[name]["utility"] for row in table]
            against[name] = {
                "median_difference": round(statistics.median(differences), 5),
                "wins": sum(value > 0 for value in differences),
                "p": round(float(wilcoxon(differences).pvalue), 5) if len(table) > 5 else None,
            }
    rivals = {
        name: one["p"] for name, one in against.items() if name in PEERS and one["p"] is not None
    }
    for name, p in correct(rivals).items():
        against[name]["p_holm"] = p
    return {"arms": rows, "against": against}


def main() -> None:
    """Every market with every arm."""
    home = ROOT / "runs" / "tournament"
    options = read_arguments(
        __doc__, bars=Path, markets=21, first=1, arms=list(ARMS), jobs=2, home=home
    )
    home = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(measure_market, home, options.bars.resolve(), number, tuple(options.arms))
            for number in range(options.first, options.first + options.markets)
        ]
        table = [one.result() for one in waiting]
    figures = {"markets": options.markets, "env_steps": WHOLE * 6, "symbols": SYMBOLS}
    finish("tournament", {**figures, **compare(table), "table": table}, options)


if __name__ == "__main__":
    main()
