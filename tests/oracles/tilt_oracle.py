"""What the head `tilt` makes of one account, symbol by symbol: slow, obvious, in plain Python
floats."""

from __future__ import annotations

import math
from collections.abc import Sequence


def shares_of(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [w / total if total > 0 else 0.0 for w in weights]


def tilted(
    benchmark: Sequence[float],
    held: Sequence[float],
    latents: Sequence[float],
    *,
    max_log_tilt: float,
    most: float,
    start_rate: float,
    tilt_scale: float,
    fully_invested: bool,
) -> list[float]:
    """The action; `latents` are the symbols', the trade rate's and, where cash may be held,
    cash's."""
    count = len(benchmark)
    wanted = latents[:count]
    rate_latent = latents[count]
    middle = sum(b * z for b, z in zip(benchmark, wanted, strict=True))
    raised = [
        b * math.exp(max_log_tilt * math.tanh((z - middle) / max_log_tilt))
        for b, z in zip(benchmark, wanted, strict=True)
    ]
    bets = [tilt_scale * (w - b) for w, b in zip(shares_of(raised), benchmark, strict=True)]
    if any(b + bet < 0 for b, bet in zip(benchmark, bets, strict=True)):
        long = shares_of([max(b + bet, 0.0) for b, bet in zip(benchmark, bets, strict=True)])
        bets = [w - b for w, b in zip(long, benchmark, strict=True)]
    elsewhere = sum(abs(bet) for bet in bets) / 2
    if elsewhere > most:
        bets = [bet * most / elsewhere for bet in bets]
    aim = [b + bet for b, bet in zip(benchmark, bets, strict=True)]
    if not fully_invested:
        cash = min(max(latents[count + 1], 0.0), 1.0)
        aim = [w * (1 - cash) for w in aim]
    odds = start_rate / (1 - start_rate) * math.exp(2 * rate_latent)
    rate = odds / (1 + odds)
    rate += (1 - rate) * math.exp(
        -elsewhere / 0.005
    )  # an aim that is the benchmark is followed at once
    kept = [h if b > 0 else 0.0 for h, b in zip(held, benchmark, strict=True)]
    idle = sum(aim) - sum(kept)
    kept = [k + idle * share for k, share in zip(kept, shares_of(aim), strict=True)]
    return [min(max(k + rate * (a - k), 0.0), 1.0) for k, a in zip(kept, aim, strict=True)]
