"""Judge a result of a market: a diagnosis of the search, tests on the held-out window, and three
sentences.

The first two never mix. `selection` describes the window that the search chose on, and corrects for
the number of trials. `evidence` comes from the held-out window alone, against the benchmark
portfolio; the verdict rests on it, by one test whose error rates are measured (docs/evidence.md).
`verdict.conclusion` writes the sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fintrader import metrics as m
from fintrader.backtesting.attribution import symbol_returns
from fintrader.backtesting.data_caveats import bound_survivorship, describe_idle, list_data_caveats
from fintrader.backtesting.null_models import random_portfolios
from fintrader.backtesting.result import Array, BacktestResult, Results
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.market.tensors import WHOLE, Markets, MarketTensors
from fintrader.numerals import percent, span
from fintrader.results.formatting import BASELINES, main_strategy
from fintrader.verdict import alpha as ev
from fintrader.verdict.bootstrap import intervals, paired_excess
from fintrader.verdict.conclusion import (
    NEVER_SPLIT,
    NOT_JUDGED,
    conclude,
    flag_implausible,
    make_evidence,
    measure_sharpe,
    measure_tail,
)
from fintrader.verdict.selection import UNKNOWN_SEARCH, SearchRecord, diagnose
from fintrader.verdict.verdict import Evidence, Excess, RandomDraws, Verdict

INDEX = "index"


def assess(
    results: Results,
    *,
    trials: int | None = None,
    search: SearchRecord = UNKNOWN_SEARCH,
    market: MarketTensors | Markets | None = None,
    settings: EnvSettings | None = None,
    look: int | None = None,
    caveats: Sequence[str] = (),
    seed: int = 0,
) -> Verdict:
    """Judge whether `results` can be distinguished from luck; None means unknown.

    `trials`: number of strategies that were tried. `search`: their returns on the window they were
    chosen on. `market`, `settings`: the window, for random portfolios and for shifts in time; for a
    walk-forward a list with the window of each fold. `look`: number of this look at the window,
    from 1; None if the looks were not counted. `caveats`: reasons why real trading could not have
    reached this result; any one of them excludes `likely_skill`.

    The result knows its window (`BacktestResult.cut_from`). Training and validation windows get no
    verdict, and neither do bars that the policy was trained or chosen on.
    """
    name = main_strategy(list(results))
    result = results[name]
    daily = result.daily_returns
    year = result.sessions_a_year
    windows = [market] if isinstance(market, MarketTensors) else market
    selection = diagnose(trials, search, seed, year)
    window = result.cut_from[0] if result.cut_from else WHOLE
    evidence = _test_window(results, name, windows, look, seed)
    known = result.provenance
    taken = [*caveats, *result.caveats, *list_data_caveats(known), *_list_optimism(settings)]
    participation = None if settings is None else settings.participation
    if windows is not None and (idle := describe_idle(windows, results, participation)):
        taken.append(idle)
    bound = None if windows is None else bound_survivorship(windows)
    if known.survivorship is not None and known.survivorship.survivors_only:
        taken += _flag_survivors(result, evidence, bound, seed)
    if not known.planted_drift and not known.planted_signal:  # with them no ratio is implausible
        taken += flag_implausible(evidence.alpha)
    if window == WHOLE:
        taken.append(NEVER_SPLIT)
    judged = Verdict(
        state="no_verdict",
        sentences=(NOT_JUDGED,),
        strategy=name,
        window=window,
        windows=result.cut_from,
        is_seen=result.is_seen,
        is_ruined=result.ruined,
        has_traded=bool(len(result.trades)),
        sessions=len(daily),
        sessions_a_year=year,
        caveats=tuple(taken),
        evidence=evidence,
        sharpe=measure_sharpe(daily, year),
        intervals=intervals(daily, sessions_a_year=year),
        excess=_bootstrap_excess(results, name, seed),
        random_portfolios=_draw_portfolios(result, windows, settings, seed),
        selection=selection,
        tail=measure_tail(daily, evidence.alpha, year),
        notice=known.notice,
        trusted_columns=known.trusted_columns,
        survivors_bound=bound,
    )
    return conclude(judged)


# --- tests ----------------------------------------------------------------------------------------


def _test_window(
    results: Results,
    name: str,
    windows: Markets | None,
    look: int | None,
    seed: int,
) -> Evidence:
    """Test the window against the benchmark portfolio, or against the index without one."""
    result = results[name]
    against = INDEX if result.portfolio is None else result.portfolio_name
    theirs = _benchmark_returns(result)
    year = result.sessions_a_year
    evidence = make_evidence(result.daily_returns, theirs, against, look, seed, year)
    if evidence.alpha is None or windows is None:
        return evidence
    rival = results.get(result.portfolio_name)
    pairs = _pair_active_weights(result, rival, evidence.alpha.beta, windows)
    return replace(evidence, shift=None if pairs is None else ev.shift_test(pairs, seed=seed))


def _benchmark_returns(result: BacktestResult) -> Array:
    benchmark = result.benchmark if result.portfolio is None else result.portfolio
    return m.daily_returns(benchmark, result.session)


def _flag_survivors(
    result: BacktestResult, evidence: Evidence, bound: float | None, seed: int
) -> list[str]:
    """Flag a universe of survivors, unless alpha passes the test after the `bound` on their effect
    is subtracted; `bound` is None for an unknown window."""
    if bound is None:
        return ["a universe of survivors"]
    year = result.sessions_a_year
    cut = result.daily_returns - bound / year
    tested = ev.alpha_test(cut, _benchmark_returns(result), level=evidence.level, seed=seed)
    if tested is not None and tested.p_value <= evidence.level:
        return []
    scale, over = span(len(cut), year)
    most = percent(scale * bound)
    return [
        f"a universe of survivors, whose unknown bias may add at most {most} {over} (by the spread"
        " of the symbols' growth)"
    ]


def _pair_active_weights(
    result: BacktestResult,
    rival: BacktestResult | None,
    beta: float,
    windows: Markets,
) -> Iterator[tuple[Array, Array]] | None:
    """Yield for each asset its weight at each close less beta times the benchmark portfolio's, and
    its next return; None if the windows are not the result's, or it has no positions."""
    if (
        sum(window.num_bars for window in windows) != len(result.minutes)
        or not result.has_positions
    ):
        return None

    def weigh(of: BacktestResult, asset: int) -> Array:
        return m.divide(of.shares[:, asset] * of.mark[:, asset], of.equity)

    def pairs() -> Iterator[tuple[Array, Array]]:
        ahead = symbol_returns(windows)[1:]
        for asset in range(len(result.symbols)):  # one at a time: weights of all would be large
            active = weigh(result, asset)
            if rival is not None and rival.has_positions:
                active = active - beta * weigh(rival, asset)
            yield active, np.append(ahead[:, asset], 0.0)

    return pairs()


def _bootstrap_excess(results: Results, name: str, seed: int) -> dict[str, Excess]:
    """Bootstrap the main strategy's excess over every baseline, in paired blocks."""
    result = results[name]
    excesses = {
        other: paired_excess(
            result.daily_returns,
            rival.daily_returns,
            seed=seed,
            sessions_a_year=result.sessions_a_year,
        )
        for other, rival in results.items()
        if other in BASELINES and other != name
    }
    return {other: excess for other, excess in excesses.items() if excess is not None}


def _draw_portfolios(
    result: BacktestResult,
    windows: Markets | None,
    settings: EnvSettings | None,
    seed: int,
) -> RandomDraws | None:
    if windows is None or settings is None:
        return None
    try:
        drawn = random_portfolios(windows, settings, seed=seed)
    except BacktestError:
        # Nothing can be bought at the window's beginning; the other tests still hold.
        return None
    return drawn.compare(result.metrics.cumulative_return, result.metrics.sharpe)


def _list_optimism(settings: EnvSettings | None) -> list[str]:
    """List the optimistic assumptions of the settings, in words that complete "with ..."."""
    if settings is None:
        return []
    assumptions = []
    if settings.fill == "close":
        assumptions.append("orders filled at the close that they were decided on")
    if settings.cost_bps == 0 and not any(settings.half_spreads.values()):
        assumptions.append("trading free of costs")
    if settings.participation == "none":
        assumptions.append("orders of any size filled whatever the volume")
    return assumptions
