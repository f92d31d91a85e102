"""What the benchmark portfolio is worth, bar by bar and symbol by symbol: slow, obvious, in plain
Python floats."""

from __future__ import annotations

import math
from typing import Any


def weights_at(market: Any, kind: str, t: int) -> list[float]:
    """The weights at the close of bar t; shares no code with `envs.benchmark`."""
    price = market.adjusted_close.tolist()
    count = len(market.symbols)
    bars = market.num_bars
    prices = [[price[s][n] for s in range(bars)] for n in range(count)]
    last = [
        max((s for s in range(bars) if not math.isnan(prices[n][s])), default=-1)
        for n in range(count)
    ]
    worth = [0.0] * count
    for n in range(count):
        now = prices[n][t]
        if math.isnan(now) or (t == last[n] and t < bars - 1):
            continue
        if kind == "equal_weight":
            worth[n] = float(market.member[t, n])
        elif kind == "buy_and_hold":
            day = [s for s in range(bars) if market.session[s] == market.session[0]]
            priced = [s for s in day if not math.isnan(prices[n][s])]
            if any(bool(market.member[s, n]) for s in priced):
                worth[n] = now / prices[n][priced[0]]
    total = sum(worth)
    return [w / total if total else 0.0 for w in worth]


def levels(market: Any, kind: str) -> list[float]:
    """What 1 becomes: put into the weights at the close of every session's first bar, and left
    alone in between."""
    price = market.adjusted_close.tolist()
    wealth = 1.0
    units = [0.0] * len(market.symbols)
    cash = 1.0
    known = list(price[0])
    found = []
    for t in range(market.num_bars):
        known = [old if math.isnan(new) else new for old, new in zip(known, price[t], strict=True)]
        wealth = cash + sum(u * p for u, p in zip(units, known, strict=True) if u)
        found.append(wealth)
        if t == 0 or market.session[t] != market.session[t - 1]:
            weights = weights_at(market, kind, t)
            units = [w * wealth / p if w else 0.0 for w, p in zip(weights, price[t], strict=True)]
            cash = wealth * (1 - sum(weights))
    return found
