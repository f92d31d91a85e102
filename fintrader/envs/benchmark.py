"""The portfolio that accounts are judged against: its weights at every bar, and its growth.

It trades at no cost here; `backtesting.baselines.simulate_benchmark_portfolio` trades it at a
strategy's costs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fintrader.envs.observation import ObservationLayout
from fintrader.envs.settings import EnvSettings
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors

CELLS_AT_ONCE = 1 << 20
"""Bars times assets that are processed together: a bound on the memory of copies."""
BenchmarkKind = Literal["equal_weight", "cap_weight", "buy_and_hold", "cash"]


def benchmark_kind(market: MarketTensors, choice: BenchmarkKind | Literal["auto"]) -> BenchmarkKind:
    """Resolve `env.benchmark` for a market: `auto` is equal weights of real bars, and cash of
    synthetic bars (where leaving the market may pay) and of tensors without provenance."""
    if choice != "auto":
        return choice
    provenance = market.provenance
    is_real = provenance.source is not None and not provenance.is_synthetic
    return "equal_weight" if is_real else "cash"


def lay_out(market: MarketTensors, settings: EnvSettings) -> ObservationLayout:
    """Lay out the observations of a market; with a benchmark other than cash they contain
    membership and the benchmark's weights."""
    is_shown = benchmark_kind(market, settings.benchmark) != "cash"
    layout = ObservationLayout.of(market, settings.lookback, benchmark=is_shown)
    width = layout.account_width + (settings.option is not None)
    rows = settings.resting_rows
    return replace(layout, resting=rows, account_width=width, short=int(settings.short))


def benchmark_weights(market: MarketTensors, kind: BenchmarkKind) -> Tensor:
    """Compute weights `[T, N]` float64 at the close of each bar, of sum 1; all 0 for cash and
    before anything has a price.

    equal_weight: the members that have a price and bars to come, brought to equal weights at a
    session's first bar and drifting with their prices to its last. cap_weight: the same members in
    proportion to their capitalisation. buy_and_hold: equal dollars in every member with a price in
    the first session, bought at its first price, then held.

    Raises EnvError for capitalisations that are not known.
    """
    close = market.close.double()
    if kind == "cash":
        return close.new_zeros(1, 1).expand_as(close)
    priced = ~close.isnan()
    bars = torch.arange(market.num_bars, device=market.device).unsqueeze(1)
    last = market.last_bar
    to_come = (bars < last) | (last == market.num_bars - 1)
    chosen = market.member & priced & to_come
    if kind == "buy_and_hold":
        worth = _grow_from_window_start(market, priced) * to_come
    elif kind == "cap_weight":
        worth = _capitalise(market, chosen)
    else:
        # Some sessions at a time: intermediate copies would take as much memory as the market.
        worth = torch.empty_like(close)
        for start, stop in pairwise(split_sessions(market)):
            window = market.window(start, stop)
            worth[start:stop] = _grow_from_session_start(window, chosen[start:stop])
    return worth.div_(worth.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny))


def split_sessions(market: MarketTensors) -> list[int]:
    """Cut the bars into blocks of whole sessions, of about `CELLS_AT_ONCE`: their edges."""
    starts = market.session_starts
    block = starts * market.num_assets // CELLS_AT_ONCE
    return [*starts[np.diff(block, prepend=-1) != 0].tolist(), market.num_bars]


def _grow_from_session_start(market: MarketTensors, chosen: Tensor) -> Tensor:
    """Compute the value `[T, N]` of a dollar put into each of the `chosen` `[T, N]` at its first
    bar of the session.

    An account that holds these weights need not trade during the day.
    """
    price = market.adjusted_close
    bars = torch.arange(market.num_bars, device=market.device).unsqueeze(1)
    begins = torch.zeros_like(chosen[:, :1])
    begins[market.session_starts] = True
    before = torch.cat([torch.zeros_like(chosen[:1]), chosen[:-1]])
    entered = chosen & (begins | ~before)
    paid = price.gather(0, torch.where(entered, bars, 0).cummax(0).values)
    return torch.where(chosen, price / paid, 0.0)


def _grow_from_window_start(market: MarketTensors, priced: Tensor) -> Tensor:
    """Compute the value `[T, N]` of a dollar put into each first-session member at its first price,
    dividends reinvested."""
    price = market.adjusted_close
    session = market.session == market.session[0]
    first = (priced & session.unsqueeze(1)).long().argmax(0)
    chosen = (market.member & priced)[session].any(0)
    paid = price.gather(0, first.unsqueeze(0))
    return torch.where(priced & chosen, price / paid, 0.0)


def _capitalise(market: MarketTensors, chosen: Tensor) -> Tensor:
    """Compute the capitalisation `[T, N]` of the `chosen`."""
    shares = market.shares_outstanding
    if shares is None:
        raise EnvError(
            "env.benchmark cap_weight needs the shares outstanding: name their file in "
            "data.universe.shares_outstanding, or set env.benchmark to equal_weight"
        )
    worth = torch.where(chosen, market.close.double() * shares.double(), 0.0)
    unknown = (chosen & worth.isnan()).any(0)
    if unknown.any():
        names = ", ".join(
            name for name, odd in zip(market.symbols, unknown.tolist(), strict=True) if odd
        )
        raise EnvError(
            f"data.universe.shares_outstanding has no number of shares for {names}; add them, or"
            " set env.benchmark to equal_weight"
        )
    return worth


def benchmark_level(market: MarketTensors, weights: Tensor) -> Tensor:
    """Compute the benchmark's value `[T]` float64 at each close, 1 at the first, before costs.

    The portfolio is rebalanced to its weights at the close of each session's first bar and drifts
    with prices in between; dividends stay in the symbol that pays them.
    """
    price = market.adjusted_close
    level = torch.ones(market.num_bars, dtype=torch.float64, device=market.device)
    bounds = [*market.session_starts.tolist(), market.num_bars - 1]
    for start, stop in pairwise(bounds):
        paid = price[start]
        held = weights[start]
        now = price[start + 1 : stop + 1]
        # A symbol without a price keeps its last one: prices do not come back after an end.
        relative = carry_forward(now, paid) / paid
        grown = torch.where(held > 0, held * relative, 0.0).sum(1) + (1 - held.sum())
        level[start + 1 : stop + 1] = level[start] * grown
    return level


def carry_forward(price: Tensor, before: Tensor) -> Tensor:
    """Carry prices `[t, N]` forward over NaN, from `before` `[N]` on."""
    unknown = price.isnan()
    if not unknown.any():
        return price
    rows = torch.arange(len(price), device=price.device).unsqueeze(1)
    newest = torch.where(unknown, -1, rows).cummax(0).values
    return torch.where(newest < 0, before, price.gather(0, newest.clamp_min(0)))
