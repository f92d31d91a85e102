"""All that stands beside a result: the baselines, the ridge yardstick, and the portfolio that it is
active against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fintrader.backtesting.baselines import benchmark_portfolio, simulate_baselines
from fintrader.backtesting.result import BacktestResult, measured_against
from fintrader.backtesting.ridge import fit_ridge, ridge
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import benchmark_kind
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors
from fintrader.progress import Progress


@dataclass(frozen=True)
class Yardsticks:
    """What a result over one window is held against."""

    baselines: Mapping[str, BacktestResult]
    """By name; the benchmark portfolio among them, but for cash, which nobody needs to see
    drawn."""
    portfolio: BacktestResult
    """What `env.benchmark` names."""
    left_out: Mapping[str, str]
    """Yardsticks that could not be made, and why."""

    def beside(self, own: Mapping[str, BacktestResult]) -> dict[str, BacktestResult]:
        """`own` and the baselines, all of them measured against the portfolio."""
        return measured_against({**own, **self.baselines}, self.portfolio)


def yardsticks(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    train: MarketTensors | None = None,
    validation: MarketTensors | None = None,
    every: bool = False,
    progress: Progress | None = None,
) -> Yardsticks:
    """Simulate them over the whole of `market`, at the policy's costs.

    `train`: the window that ridge is fitted on and the usual volatility is taken from;
    `validation`: the one that ridge's horizon, penalty and rate are chosen on. Neither may overlap
    `market`. `every`: all baselines.

    Raises BacktestError for a window of fewer than two bars, EnvError for a benchmark that this
    market cannot make.
    """
    found = simulate_baselines(market, settings, train=train, progress=progress, every=every)
    kind = benchmark_kind(market, settings.benchmark)
    portfolio = found.get(kind) or benchmark_portfolio(market, settings, progress=progress)
    if kind != "cash":
        found[kind] = portfolio
    left_out: dict[str, str] = {}
    if train is None:
        left_out["ridge"] = "there is no training window beside this one to fit it on"
    else:
        try:
            fitted = fit_ridge(train, settings, validation=validation)
            found = {"ridge": ridge(market, settings, fitted, progress=progress), **found}
        except BacktestError as error:
            left_out["ridge"] = str(error)
    return Yardsticks(found, portfolio, left_out)
