"""Market years of a deployment in an independent world: the real runner, a broker and a calendar
with independent books, and every kind of event close to every other (`tests/engines/market_life*`).

    python -m benchmarks.market_life [--years 160] [--months 400] [--quarters 30] [--first 1000]
                                     [--record market_life] [--save]

Years are lived one after the other, a seed each from `--first` on, then months in which one stock
is delisted and another gets a new name, then quarters of a deployment whose bids, asks and stops
rest at the broker; a stopped run goes on where it was (`--fresh` lives them again). The record
counts sessions, decisions (of years and months), orders, restarts, events by kind and pairs of
kinds within three sessions of each other, and lists each problem: an order that policy and limits
do not explain, one lost or doubled, a false halt or one without an alert, a cent or a share that
broker and journal count differently, a flatten that ends neither flat nor aloud. The last line has
status 1 where there is one. Real money opens on a record of 40,000 sessions without a problem in
which each pair was seen ten times, of the code that trades (`sources`). `--record market_years`
saves another record, which real money does not ask for.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks._bench import FinishedRuns, Values, finish, read_arguments
from fintrader.deploy.broker import hash_sources
from fintrader.deploy.bundle import Bundle
from tests.engines.market_life import MONTH
from tests.engines.market_life_events import (
    KINDS,
    OF_THE_CALENDAR,
    Years,
    draw_events,
    draw_month,
)
from tests.engines.market_life_run import Life, freeze_life
from tests.engines.resting_life import RestingLife, freeze_resting_life

SPANS: dict[str, Callable[[int], Values]] = {
    "year": lambda seed: {"events": draw_events(seed, KINDS)},
    "month": lambda seed: {"events": draw_month(seed), "sessions": MONTH, "most_gone": 2},
    "quarter": lambda seed: {"events": draw_events(seed, KINDS, 0.4), "sessions": 60},
}


def live(seed: int, bundle: Bundle, span: str) -> Values:
    """Live one seed's span; its counts and its problems."""
    began = time.process_time()
    kind = RestingLife if span == "quarter" else Life
    with tempfile.TemporaryDirectory() as place:
        life = kind(seed, Path(place), bundle, **SPANS[span](seed)).run()
    year = Years()
    year.add(life)
    return {
        "sessions": year.sessions,
        "decisions": year.decisions,
        "orders": year.orders,
        "restarts": year.restarts,
        "events": dict(year.events),
        "pairs": {" + ".join(pair): count for pair, count in year.pairs.items()},
        "alerts": len(life.heard),
        "problems": life.problems,
        "cpu_seconds": time.process_time() - began,
        "memory_mib": year.memory_mib[-1],
    }


def summarise(years: list[Values]) -> Values:
    """Add the years and months up."""
    found = {}
    for name in ("sessions", "decisions", "orders", "restarts", "alerts"):
        found[name] = sum(year[name] for year in years)
    events, pairs = (
        sum((Counter(year[name]) for year in years), Counter()) for name in ("events", "pairs")
    )
    kinds = sorted([*KINDS, *OF_THE_CALENDAR])
    names = map(" + ".join, itertools.combinations(kinds, 2))
    counts = {name: pairs[name] for name in names}
    rarest = min(counts, key=counts.__getitem__)
    found["kinds"] = len(kinds)
    found["events"] = dict(sorted(events.items()))
    found["pairs_of_kinds"] = len(counts)
    found["pairs_seen_ten_times"] = sum(count >= 10 for count in counts.values())
    found["rarest_pair"] = {"kinds": rarest, "times": counts[rarest]}
    found["cpu_seconds"] = sum(year["cpu_seconds"] for year in years)
    memory = [year["memory_mib"] for year in years]
    found["memory_mib"] = {"least": min(memory), "most": max(memory)}
    problems = [problem for year in years for problem in year["problems"]]
    found["problems"] = len(problems)
    found["passed"] = not problems and found["pairs_seen_ten_times"] == len(counts)
    found["sources"] = hash_sources()
    found["first_problems"] = problems[:20]
    return found


def main() -> int:
    """Live the years, and write the record."""
    options = read_arguments(
        __doc__, years=160, months=400, quarters=30, first=1000, fresh=False, record="market_life"
    )
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    finished = FinishedRuns("market_life", options)
    years = []
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_STATE_HOME"] = place
        bundle = freeze_life(Path(place) / "bundle")
        resting = freeze_resting_life(Path(place) / "resting")
        lives = {
            "year": (options.years, bundle),
            "month": (options.months, bundle),
            "quarter": (options.quarters, resting),
        }
        for span, (count, frozen) in lives.items():
            for seed in range(options.first, options.first + count):
                settings = {span: seed, "kinds": sorted(KINDS), "sources": hash_sources()}
                work = partial(live, seed, frozen, span)
                years.append(finished.get(f"{span} {seed}", settings, work))
    asked = {f"{span}s": count for span, (count, _) in lives.items()}
    found = {**asked, **summarise(years)}
    finish(options.record, {**found, "commits": sorted(finished.commits)}, options)
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
