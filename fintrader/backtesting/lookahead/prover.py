"""The look-ahead check: build views of a market in a plan's order, compare and store them."""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader import files
from fintrader.backtesting.lookahead.alarms import implausible
from fintrader.backtesting.lookahead.differences import Leak, compare, draw_policy, find_unmoved
from fintrader.backtesting.lookahead.fresh import FreshBuilds
from fintrader.backtesting.lookahead.plan import WHOLE, TrialPlan
from fintrader.backtesting.lookahead.report import LookaheadReport, gather, list_trusted
from fintrader.backtesting.lookahead.views import View
from fintrader.backtesting.settings import LookaheadSettings
from fintrader.config import Settings
from fintrader.envs import EnvSettings, Policy
from fintrader.errors import FintraderError, RunError
from fintrader.market.build import BUILD_VERSION, hash_own_modules, portable, refuse_functions
from fintrader.market.index_level import EQUAL_WEIGHT
from fintrader.market.load import Values, find_settings
from fintrader.market.settings import DataSettings, list_trusted_columns, planted_column
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress
from fintrader.records import from_json, to_json


@dataclass(frozen=True)
class TrialResults:
    """Results of a plan's first trials, stored so that the same command can continue."""

    done: int = 0
    leaks: tuple[Leak, ...] = ()
    unmoved: tuple[str, ...] | None = None
    """Columns that no future changed."""
    untried: tuple[str, ...] = ()
    untried_bars: tuple[int, ...] = ()

    def save(self, path: Path | None) -> None:
        """Write the results to a file atomically, if that is possible."""
        with contextlib.suppress(OSError, RunError):
            if path is not None:
                files.write_bytes(path, files.seal(to_json(self)))


def lookahead(
    data: Settings | Values | Path | str,
    env: EnvSettings | None = None,
    settings: LookaheadSettings | None = None,
    *,
    seed: int = 0,
    cache: Path | None = None,
    setup: str | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> LookaheadReport:
    """Check every step from bars to equity for look-ahead.

    `data` and `changes`: those of `load_market`, a configuration or a file or folder of bars. Every
    view is built in a fresh process. The first stage builds the whole market a few times with other
    futures after the training window, and always finishes. The second stage tries bar after bar
    while the budget lasts, scaled by the statistics of the unchanged market. `progress` prints each
    new leak. The results are stored below `cache` (which also holds a vendor's bars) after each
    step, and the same call continues from them. `setup` names a function
    (`package.module:function`) that the process calls first. Raises ConfigError for a table,
    DataError where the market cannot be built, BacktestError where there is no bar to cut at or
    where code of your own fails on a part of the rows.
    """
    settings = settings or LookaheadSettings()
    # Observations as one row of numbers, which the drawn policy and the comparison read.
    flat = {"observation": "flat", "observation_dtype": "float32"}
    env = (env or EnvSettings()).model_copy(update=flat)
    chosen = find_settings(data, changes)
    begin = math.inf  # of the second stage
    budget_seconds = 60 * settings.budget_minutes
    refuse_functions(chosen)
    chosen = chosen.effective()
    with FreshBuilds(chosen, seed=seed, cache=cache, setup=setup) as build:
        market = build(View())
        plan = TrialPlan(market, chosen.calendar, seed)
        results_file = None
        if cache is not None:
            name = _address(market, chosen, repr((env, seed, setup)))
            results_file = cache / "lookahead" / f"{name}.json"
        results = _read(results_file)
        own = market.normalisation if chosen.features.normalisation is None else None
        search = _Search(
            market=market,
            build=build,
            plan=plan,
            env=env,
            policy=draw_policy(market, seed, env),
            progress=progress,
            statistics=None if own is None else json.dumps(to_json(own)),
        )
        with progress.task("look-ahead", unit="builds") as task:
            task.resume_at(results.done)
            while results.done < len(plan.trials):
                if results.done >= plan.num_whole:
                    begin = min(begin, time.monotonic())
                passed = max(time.monotonic() - begin, 0.0)
                if results.done >= plan.num_whole and passed >= budget_seconds:
                    break
                results = search.advance(results)
                results.save(results_file)
                task.update(results.done, note=f"{passed:.0f} s of {budget_seconds:.0f}")
        doubtful = (*list_trusted_columns(chosen), *build.opened)
        alarms = implausible(market, planted_column(chosen), doubtful)
        own_index = market.benchmark_name != EQUAL_WEIGHT
        return LookaheadReport(
            results.leaks,
            plan.count(results.done, results.untried_bars),
            alarms=tuple(map(str, alarms)),
            trusted=list_trusted(
                chosen, market.benchmark_name, own_index, results.unmoved or (), build.opened
            ),
            untried=results.untried,
            is_kept=results_file is not None and results_file.is_file(),
        )


@dataclass(frozen=True)
class _Search:
    """Builds the views of a plan and compares them with the market."""

    market: MarketTensors
    build: FreshBuilds
    plan: TrialPlan
    env: EnvSettings
    policy: Policy
    progress: Progress
    statistics: str | None
    """JSON of the statistics that scale the market's columns; None: as configured."""

    def advance(self, results: TrialResults) -> TrialResults:
        """Try the next bars, as many as are built at once."""
        trials = self.plan.trials[results.done : results.done + self.build.at_once]
        views = [self.plan.view(trial, self.market.symbols, self.statistics) for trial in trials]
        leaks: list[Leak] = []
        still: set[str] | None = None if results.unmoved is None else {*results.unmoved}
        untried: dict[int, str] = {}
        for trial, changed in zip(trials, self.build.each(views), strict=True):
            if isinstance(changed, FintraderError):
                if trial.stage == WHOLE:
                    raise changed
                untried[trial.bar] = f"bar {trial.bar}: {changed}"
                continue
            leaks += compare(self.market, changed, trial.bar, self.env, self.policy)
            if trial.stage == WHOLE:
                same = find_unmoved(self.market, changed, trial.bar)
                if same is not None:
                    still = same if still is None else still & same
        known = {leak.name for leak in results.leaks}
        for leak in gather(leaks):
            if leak.name not in known:
                self.progress.print_line(f"leak: {leak}")
        return TrialResults(
            results.done + len(trials),
            gather((*results.leaks, *leaks)),
            None if still is None else tuple(sorted(still)),
            (*results.untried, *untried.values()),
            (*results.untried_bars, *untried),
        )


def _address(market: MarketTensors, data: DataSettings, rest: str) -> str:
    """Hash a check's inputs: the market's content, the code of own features, settings and
    `rest`."""
    sources = hash_own_modules(data.features.names)
    parts = [BUILD_VERSION, market.content_hash(), portable(data), sources, rest]
    return files.hash_bytes(json.dumps(parts, sort_keys=True).encode())[:16]


def _read(path: Path | None) -> TrialResults:
    """Read the results of an earlier call; none where they are absent or damaged."""
    if path is None or not path.is_file():
        return TrialResults()
    try:
        return from_json(TrialResults, files.unseal(files.read_bytes(path), RunError("damaged")))
    except RunError:
        return TrialResults()
