"""Round trips share by share: every share is a lot of its own."""

from __future__ import annotations

from collections import Counter

import pandas as pd


def list_round_trips(trades: pd.DataFrame) -> list[tuple[str, int, int, float, float]]:
    """Symbol, opening fill, closing fill, shares (signed) and profit of each closed lot, in the
    order of closing. Fills and splits are of whole shares; splits double, end or leave a
    position."""
    lots: dict[str, list[tuple[int, float, float, float]]] = {}
    profit: Counter[tuple[str, int, int]] = Counter()
    shares: Counter[tuple[str, int, int]] = Counter()
    names = ("symbol", "shares", "price_usd", "cost_usd", "kind")
    rows = zip(*(trades[name] for name in names), strict=True)
    for number, (symbol, traded, price, cost, kind) in enumerate(rows):
        own = lots.setdefault(symbol, [])
        if kind == "split":
            held = sum(side for _, side, _, _ in own)
            if traded == held:
                own[:] = [
                    (at, side, paid / 2, fee / 2) for at, side, paid, fee in own for _ in "12"
                ]
            elif traded == -held:
                own.clear()
            continue
        side = 1.0 if traded > 0 else -1.0
        fee = cost / abs(traded)
        for _ in range(int(abs(traded))):
            if own and own[0][1] == -side:
                at, _, paid, opening_fee = own.pop(0)
                key = (symbol, at, number)
                profit[key] += -side * (price - paid) - fee - opening_fee
                shares[key] += -side
            else:
                own.append((number, side, price, fee))
    return [(*key, shares[key], profit[key]) for key in shares]
