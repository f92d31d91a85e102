"""The order in which bars are tried: first the whole market with other futures, then bar by bar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from fintrader.backtesting.lookahead.views import Cut, View
from fintrader.bars.calendar import exchange_days
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import create_numpy_generator

WHOLE = "other futures of the whole market"


class Trial(NamedTuple):
    """A bar from which the future is changed."""

    bar: int
    stage: str


class TrialPlan:
    """The trials of a market in their order; the same market and seed give the same plan."""

    def __init__(self, market: MarketTensors, calendar: str, seed: int) -> None:
        # A signal that is planted into real bars depends on the windows.
        self._can_end = market.provenance.planted_signal is None
        session = market.session.numpy()
        self._minutes = market.minutes.numpy()
        self._session = session - session[0]
        self._first = np.searchsorted(self._session, np.arange(int(self._session[-1]) + 2))
        self._days = exchange_days(calendar, self._minutes[self._first[:-1]]).tolist()
        random = create_numpy_generator(seed, "lookahead")
        self.trials = self._draw_whole(market, random)
        self.num_whole = len(self.trials)
        """Trials of the first stage."""
        events = market.events.bar.numpy()
        stages = {
            "first bars of sessions": self._first[1:-1],
            "bars with a split or a dividend": np.unique(events[events >= self._first[1]]),
            "other bars": np.arange(self._first[1], market.num_bars),
        }
        known: set[int] = set()
        one_by_one: list[list[Trial]] = []
        for stage, bars in stages.items():
            fresh = [bar for bar in random.permutation(bars).tolist() if bar not in known]
            known.update(fresh)
            one_by_one.append([Trial(bar, stage) for bar in fresh])
        # Alternate between the stages, so that each has its share of the time.
        self.trials += filter(None, chain.from_iterable(zip_longest(*one_by_one)))

    def view(self, trial: Trial, symbols: tuple[str, ...], statistics: str | None) -> View:
        """Describe the market of a trial. After the first stage it ends one session after the bar,
        and keeps the symbols and statistics of the whole market, which a cut inside the training
        window would change."""
        bar = trial.bar
        seen, session = self._session[bar - 1 : bar + 1].tolist()
        minutes = self._minutes
        cut = Cut(int(minutes[bar]), self._days[seen], session != seen)
        if trial.stage == WHOLE:
            return View(cut)
        last = min(session + 1, len(self._days) - 1)
        if last < 2 or not self._can_end:
            return View(cut, symbols, statistics)
        before, middle, end = self._days[last - 2 : last + 1]
        last_ts = int(minutes[self._first[last + 1] - 1])
        return View(cut, symbols, statistics, (before, middle, end), last_ts)

    def count(self, done: int, untried: Collection[int] = ()) -> dict[str, tuple[int, int]]:
        """Count each stage's trials among the first `done`, and all its trials; in both without
        those at the bars `untried`."""
        stages = [None if trial.bar in untried else trial.stage for trial in self.trials]
        total = Counter(filter(None, stages))
        before = Counter(stages[:done])
        return {stage: (before[stage], number) for stage, number in total.items()}

    def _draw_whole(self, market: MarketTensors, random: np.random.Generator) -> list[Trial]:
        """Draw four bars after the training window, whose statistics scale the columns: two that
        open a session and two inside one.

        Raises BacktestError if there is no such bar.
        """
        begin = market.windows.train[1] if market.windows else market.num_bars // 3
        bars = random.permutation(np.arange(begin + 2, market.num_bars - 2))
        if not len(bars):
            raise BacktestError(
                "there is no bar after the training window to cut at; give a longer market"
            )
        is_border = np.isin(bars, self._first)
        chosen = [*bars[is_border][:2].tolist(), *bars[~is_border][:2].tolist()]
        return [Trial(bar, WHOLE) for bar in chosen]
