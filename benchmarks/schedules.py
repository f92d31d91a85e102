"""Halving against other ways to spend a budget of training when the settings are unknown. A plan,
made before it was carried out.

    python -m benchmarks.schedules [--questions wide_noisy ...] [--markets 48] [--first 201]
                                   [--jobs 2] [--save]

**Why.** In a first experiment on markets 1 to 200 (`results/schedules.json`; its plan is this file at
the commit that the record names) successive halving with one long annealed run at the end, an arm
that was to test stages, was ahead of the tournament of that time in 154 of 200 markets. It was the
best of fifteen ways, so its lead may be luck in part. It has become `order: halving` of the engine,
which this plan tests on markets that no one has seen.

**Markets.** One asset with two signals, a fast and a slow one, whose half-lives and strengths are
drawn for each market like its cost and its risk aversion (`configs/tasks/signals.yaml` otherwise).
The optimum is that of a dynamic programme on the environment's own rules (tests/oracles). Training,
validation and test share no random number with each other or with another market.

**Budget.** Sixty slices of four PPO updates (256 accounts, 8 steps) in the real environment, the
same for every way; CPU seconds are measured as well.

**Questions.** `wide_noisy` is the primary one: step size, discount and noise come from the ranges of
`fintrader run --search`, and a score is the mean realised reward of 8 episodes. `wide_sharp`: of
256. `tuned_noisy`: the task's own settings, ranges of a factor of three around them, 8 episodes.

**Ways.** All begin with the same settings, a random draw (the task's own if tuned).

    halving              the engine's `order: halving`: 25 pods; the last one: OURS
    halving_ensemble     the engine's choice of members among its rows
    tournament           the engine's pods that descend from each other (24, a quarter fresh); the
                         best one
    tournament_ensemble  its ensemble
    random               six whole trainings, five with settings drawn; the best look of all
    random_ensemble      mean action of the four best of them
    pbt                  population-based training with Ray Tune's rules and its function that moves
                         settings; best look
    seeds                `tuned_noisy` alone: six whole trainings with the task's own settings; the
                         best look of all
    seeds_ensemble       mean action of the four best of them: the default of `fintrader run`

Step sizes fall to zero within a training or a pod, but for `pbt` and for all rungs of `halving`
before the last.

**Figure.** The share of the optimum that the chosen agent earns on the test market, at least -1. It
is tested once.

**Tests.** Paired by market, Wilcoxon's signed ranks, two-sided, 5 %. The family for Holm's correction
is OURS against random, pbt and tournament. The bar: ahead of all three. The plan had left out
`seeds`, which were added after the other ways of `tuned_noisy` had been measured and seen; the p
against them stands outside of the family.

**Power.** In the first experiment paired differences had a standard deviation of 0.2 to 0.5. At 0.4,
48 markets show a mean difference of 0.16 with 80 % power (2.8 x 0.4 / sqrt(48)); there it was 0.18
to 0.23.

Markets 9001 to 9148 were used to write this; the sample begins at 201. Finished runs are in
`runs/benchmarks/schedules` and in the record, and are not measured again; a stopped run goes on, also
on another machine. The record has no figures before a question's sample is complete.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context

from benchmarks._bench import ROOT, FinishedRuns, Values, finish, read_arguments
from benchmarks._comparison import Row, compare
from benchmarks._schedules import ACCOUNTS, CHEAP, SLICE, SLICES, WAYS, WHOLE, Problem, measure

QUESTIONS: dict[str, Values] = {
    "wide_noisy": {"episodes": 8},
    "wide_sharp": {"episodes": 256},
    "tuned_noisy": {"episodes": 8, "tuned": True},
}
MARKETS = 48
"""The sample of a question; there are no figures before it is complete."""
OURS = "halving"
RIVALS = ("random", "pbt", "tournament")
"""The family for Holm's correction."""
PLAN = {"slices": SLICES, "slice": SLICE, "whole": WHOLE, "agent": CHEAP}


def list_ways(question: str) -> list[str]:
    """List the ways of a question."""
    return [way for way in WAYS if way != "seeds" or "tuned" in QUESTIONS[question]]


def measure_market(number: int, question: str) -> Row:
    """Spend the budget every way on one market."""
    finished = FinishedRuns("schedules")
    problem = Problem(number, **QUESTIONS[question])
    shares = {}
    seconds = {}
    settings = {**PLAN, **QUESTIONS[question], "number": number}
    optimum = finished.get(
        f"{question}-{number}-optimum",
        settings,
        lambda: {"optimum_bps": round(1e4 * problem.optimum, 2)},
    )
    for way in list_ways(question):
        work = partial(measure, problem, way)
        run = finished.get(f"{question}-{number}-{way}", settings, work)
        shares |= run["shares"]
        seconds[way] = run["cpu_seconds"]
    return {
        "market": number,
        "optimum_bps": optimum["optimum_bps"],
        "shares": shares,
        "cpu_seconds": seconds,
    }


def is_whole(row: Row | None, question: str) -> bool:
    """Report whether a row has all ways of its question."""
    return row is not None and set(row["cpu_seconds"]) == set(list_ways(question))


def read_known() -> dict[str, list[Row]]:
    """Read the rows of the record, by question."""
    path = ROOT / "benchmarks" / "results" / "halving.json"
    record = json.loads(path.read_text()) if path.is_file() else {}
    rows = record.get("rows", {})
    return rows if record.get("plan") == json.loads(json.dumps(PLAN)) else {}


def main() -> None:
    """Every market with every way, one question after another."""
    options = read_arguments(__doc__, questions=list(QUESTIONS), markets=MARKETS, first=201, jobs=2)
    rows = {
        question: {row["market"]: row for row in known} for question, known in read_known().items()
    }
    last = options.first + options.markets
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(measure_market, number, question): question
            for question in options.questions
            for number in range(options.first, last)
            if not is_whole(rows.get(question, {}).get(number), question)
        }
        for done in as_completed(waiting):
            row = done.result()
            rows.setdefault(waiting[done], {})[row["market"]] = row
    ordered = {
        question: [table[number] for number in sorted(table)] for question, table in rows.items()
    }
    figures = {
        "plan": PLAN,
        "env_steps": SLICES * SLICE * ACCOUNTS * CHEAP["num_steps"],
        # A look at a part of the sample would invite to stop where it suits.
        "questions": {
            question: compare(table, OURS, RIVALS)
            for question, table in ordered.items()
            if len(table) >= MARKETS
        },
        "rows": ordered,
    }
    finish("halving", figures, options)


if __name__ == "__main__":
    main()
