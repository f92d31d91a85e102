"""`fintrader plan`: describe a run before it starts, with the estimates that the app shows.
Nothing is started, built or downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fintrader.config import read_yaml
from fintrader.market.data_config import resolve_data
from fintrader.market.inspect import dry_run
from fintrader.market.tensors import MarketTensors
from fintrader.numerals import format_count
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.estimates import estimate, list_records
from fintrader.results.folders import FileCache, RunsFolder
from fintrader.results.run import summaries
from fintrader.results.table import Table, list_facts


def plan_run(config: RunConfig, prices: Mapping[str, float | None]) -> Table:
    """List bars, symbols, pods, memory, time and cost of a run, at prices in USD an hour."""
    runs = RunsFolder.at(config.runs_dir)
    newest = summaries(runs, FileCache(summaries=4096))
    forecast = estimate(
        config, list_records(runs, newest, lambda run: read_yaml(run.path("config.yaml")))
    )
    hours = forecast.seconds / 3600
    costs = [f"${hours * usd:,.2f} {name}" for name, usd in prices.items() if usd is not None]
    budget = config.tournament.budget
    unit, amount = next((name, value) for name, value in budget if value is not None)
    size = f"{amount:,g} {unit.replace('_', '-')}"
    size += " on average" if config.tournament.order == "halving" else ""
    return list_facts(
        dict(_describe_data(config))
        | {
            "pods": f"{config.tournament.pods}, each of {size}, in"
            f" {format_count(forecast.at_once, 'slot')}",
            "time and memory": forecast.describe(),
            "cost": ", ".join(costs) or "needs a price: --on-demand-usd X, --spot-usd X an hour",
        }
    )


def _describe_data(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.is_classic:
        return
    data = dry_run(resolve_data(config), cache=config.cache)
    yield "data", data.describe()
    if data.market is None or not data.is_built:
        return
    market = MarketTensors.load(data.market)
    yield "bars", f"{market.num_bars:,} of {market.num_assets} symbols"
    starts = market.session_starts
    listed = np.logical_or.reduceat((market.tradable & market.member).numpy(), starts)
    days = market.minutes.numpy()[starts].astype("datetime64[ns]").astype("datetime64[D]")
    for day in np.flatnonzero((listed[1:] != listed[:-1]).any(1)) + 1:
        lost = np.array(market.symbols)[listed[day - 1] & ~listed[day]]
        yield str(days[day]), f"{listed[day].sum()} symbols; lost: {', '.join(lost) or 'none'}"
