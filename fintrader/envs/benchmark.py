"""The portfolio that accounts are judged against: its weights at every bar, and its growth.

It trades at no cost here; `backtesting.baselines.benchmark_portfolio` trades it at a strategy's
costs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from fintrader.envs.observation import ObservationLayout
from fintrader.envs.settings import EnvSettings
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors

CELLS_AT_ONCE = 1 << 20
"""Bars times assets of a market that are worked on together: a bound on the memory of copies."""
BenchmarkKind = Literal["equal_weight", "cap_weight", "buy_and_hold", "cash"]


def benchmark_kind(market: MarketTensors, asked: BenchmarkKind | Literal["auto"]) -> BenchmarkKind:
    """Resolve `env.benchmark` for a market: `auto` is equal weights of real bars, and cash of
    synthetic bars (where leaving the market may pay) and of tensors without provenance."""
    if asked != "auto":
        return asked
    provenance = market.provenance
    is_real = provenance.source is not None and not provenance.is_synthetic
    return "equal_weight" if is_real else "cash"


def held_weights(market: MarketTensors, kind: BenchmarkKind) -> Tensor:
    """Compute `benchmark_weights`. Raises EnvError also for a benchmark other than cash that never
    holds anything (a market without members)."""
    weights = benchmark_weights(market, kind)
    if kind != "cash" and not bool((weights > 0).any()):
        raise EnvError(
            f"env.benchmark {kind} needs members with prices, and this window has none; set"
            " env.benchmark to cash"
        )
    return weights


def lay_out(market: MarketTensors, settings: EnvSettings) -> ObservationLayout:
    """Lay out the observations of a market; with a benchmark other than cash they contain
    membership and the benchmark's weights."""
    is_shown = benchmark_kind(market, settings.benchmark) != "cash"
    return ObservationLayout.of(market, settings.lookback, benchmark=is_shown)


def benchmark_weights(market: MarketTensors, kind: BenchmarkKind) -> Tensor:
    """Compute weights `[T, N]` float64 at the close of each bar, of sum 1; all 0 for cash and
    before anything has a price.

    equal_weight: the members that have a price and bars to come, brought to equal weights at a
    session's first bar and drifting with their prices to its last. cap_weight: the same members in
    proportion to their capitalisation. buy_and_hold: equal dollars in every member with a price in
    the first session, at its first one, then left alone.

    Raises EnvError for capitalisations that are not known.
    """
    shape = market.close.shape
    if kind == "cash":
        return torch.zeros(1, dtype=torch.float64, device=market.device).expand(shape)
    weights = torch.empty(shape, dtype=torch.float64, device=market.device)
    last = market.last_bar
    paid = _price_first_session(market) if kind == "buy_and_hold" else None
    for start, stop in split_bars(market):  # their copies would take several times the market
        rows = slice(start, stop)
        bars = torch.arange(start, stop, device=market.device).unsqueeze(1)
        to_come = (bars < last) | (last == market.num_bars - 1)
        if kind == "cap_weight":
            worth = _capitalise(market, rows, to_come)
        else:
            price = market.adjust_closes(start, stop)
            if paid is None:
                chosen = market.member[rows] & ~price.isnan() & to_come
                worth = _grow_from_session_start(price, chosen, market.session[rows])
            else:
                worth = torch.nan_to_num(price / paid, nan=0.0) * to_come
        total = worth.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        torch.div(worth, total, out=weights[rows])
    return weights


def split_bars(market: MarketTensors) -> list[tuple[int, int]]:
    """Split the bars into blocks `[start, stop)` of whole sessions, of a million cells or one
    session each."""
    starts = find_session_starts(market.session).nonzero().flatten()
    block = starts * market.num_assets // CELLS_AT_ONCE
    first = starts[block.diff(prepend=block[:1] - 1) != 0].tolist()
    return list(pairwise([*first, market.num_bars]))


def find_session_starts(session: Tensor) -> Tensor:
    """Find the first bars of sessions, `[T]` bool, from their numbers `[T]`."""
    return session.diff(prepend=session[:1] - 1) != 0


def _grow_from_session_start(price: Tensor, chosen: Tensor, session: Tensor) -> Tensor:
    """Compute the value `[t, N]` of a dollar put into each of the `chosen` `[t, N]` at its first
    bar of the session; `price` `[t, N]` and `session` `[t]` begin with a session.

    An account that holds these weights need not trade during the day.
    """
    bars = torch.arange(len(price), device=price.device).unsqueeze(1)
    begins = find_session_starts(session).unsqueeze(1)
    before = torch.cat([torch.zeros_like(chosen[:1]), chosen[:-1]])
    entered = chosen & (begins | ~before)
    paid = price.gather(0, torch.where(entered, bars, 0).cummax(0).values)
    return torch.where(chosen, price / paid, 0.0)


def _price_first_session(market: MarketTensors) -> Tensor:
    """Find the first adjusted close `[N]` of each first-session member; NaN for other symbols."""
    stop = int((market.session == market.session[0]).sum())
    price = market.adjust_closes(0, stop)
    priced = ~price.isnan()
    paid = price.gather(0, priced.to(torch.int64).argmax(0, keepdim=True))[0]
    return torch.where((market.member[:stop] & priced).any(0), paid, torch.nan)


def _capitalise(market: MarketTensors, rows: slice, to_come: Tensor) -> Tensor:
    """Compute the capitalisation `[t, N]` of the members in the bars `rows` that have a price and
    bars `to_come` `[t, N]`."""
    shares = market.shares_outstanding
    if shares is None:
        raise EnvError(
            "env.benchmark cap_weight needs the shares outstanding: name their file in "
            "data.universe.shares_outstanding, or set env.benchmark to equal_weight"
        )
    close = market.close[rows].to(torch.float64)
    chosen = market.member[rows] & ~close.isnan() & to_come
    worth = torch.where(chosen, close * shares[rows].to(torch.float64), 0.0)
    unknown = (chosen & worth.isnan()).any(0)
    if bool(unknown.any()):
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

    It is brought back to its weights at the close of each session's first bar and drifts with
    prices in between; dividends stay in the symbol that pays them.
    """
    level = torch.ones(market.num_bars, dtype=torch.float64, device=market.device)
    starts = find_session_starts(market.session).nonzero().flatten()
    bounds = [*starts.tolist(), market.num_bars - 1]
    for start, stop in pairwise(bounds):
        paid, now = market.adjust_closes(start, stop + 1).tensor_split((1,))
        held = weights[start]
        # A symbol without a price keeps its last one: prices do not come back after an end.
        relative = carry_forward(now, paid[0]) / paid
        grown = torch.where(held > 0, held * relative, 0.0).sum(1) + (1 - held.sum())
        level[start + 1 : stop + 1] = level[start] * grown
    return level


def carry_forward(price: Tensor, before: Tensor) -> Tensor:
    """Carry prices `[t, N]` forward over NaN, from `before` `[N]` on."""
    unknown = price.isnan()
    if not bool(unknown.any()):
        return price
    rows = torch.arange(len(price), device=price.device).unsqueeze(1)
    newest = torch.where(unknown, -1, rows).cummax(0).values
    return torch.where(newest < 0, before, price.gather(0, newest.clamp_min(0)))
