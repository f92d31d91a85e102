"""All baselines of one window: simple rules, a ridge regression, and the benchmark portfolio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fintrader.backtesting.baselines import simulate_baselines, simulate_benchmark_portfolio
from fintrader.backtesting.result import BacktestResult, Results, measured_against
from fintrader.backtesting.ridge import fit_ridge, ridge
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import benchmark_kind
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress


@dataclass(frozen=True)
class Baselines:
    """Results over one window that a strategy is compared with."""

    results: Results
    """By name, with the benchmark portfolio unless it is cash."""
    portfolio: BacktestResult
    """The benchmark portfolio, which `env.benchmark` names."""
    left_out: Mapping[str, str]
    """Baselines that could not be simulated, each with the reason."""

    def join(self, own: Results) -> dict[str, BacktestResult]:
        """Return `own` and the baselines, all of them measured against the portfolio."""
        return measured_against({**own, **self.results}, self.portfolio)


def simulate_all_baselines(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    train: MarketTensors | None = None,
    validation: MarketTensors | None = None,
    every: bool = False,
    progress: Progress = SILENT,
) -> Baselines:
    """Simulate every baseline over the whole of `market`, at the policy's costs.

    `train`: the window that ridge is fitted on and the usual volatility is taken from;
    `validation`: the window that ridge's horizon, penalty and rate are chosen on. Neither may
    overlap `market`. `every`: as in `simulate_baselines`.

    Raises BacktestError for a window of fewer than two bars, EnvError for a benchmark that this
    market cannot make.
    """
    results = simulate_baselines(market, settings, train=train, progress=progress, every=every)
    kind = benchmark_kind(market, settings.benchmark)
    portfolio = results.get(kind) or simulate_benchmark_portfolio(
        market, settings, progress=progress
    )
    if kind != "cash":
        results[kind] = portfolio
    left_out: dict[str, str] = {}
    if train is None:
        left_out["ridge"] = "there is no training window to fit it on"
    else:
        try:
            fitted = fit_ridge(train, settings, validation=validation)
            results = {"ridge": ridge(market, settings, fitted, progress=progress), **results}
        except BacktestError as error:
            left_out["ridge"] = str(error)
    return Baselines(results, portfolio, left_out)
