"""Differences between fintrader's account and those of backtesting.py and zipline-reloaded after
the same orders.

    python -m benchmarks.cross_engine [--save]

A rule trades several stocks at daily bars, in whole shares at 20 bps, through fintrader; the fills
it got are given to the other engines as orders (tests/engines/foreign.py), in
`.venv-engines`, made at the first run. `agreement` has each convention of filling that
an engine can be set to: equity at every bar, fills, and commissions. `otherwise` has zipline's
account where it, or a broker, follows another convention: the part of a difference between two
engines that each convention makes.

Synthetic bars, and real ones where they lie beside the checkout. A difference is the engine's
figure less fintrader's.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks._bench import Values, finish, read_arguments
from fintrader.market.tensors import MarketTensors
from tests.engines.cross_engine import (
    CENT,
    FILLS,
    REAL_DAILY,
    apart,
    backtest,
    fills_of,
    play,
    real_market,
)
from tests.engines.cross_engine import synthetic_market as synthetic

ZIPLINE = "zipline-reloaded"


def compare(name: str, market: MarketTensors, quoted: dict[str, np.ndarray] | None) -> Values:
    """Both tables of one market. Exits where an engine that follows the same convention is a cent
    apart."""
    results = {fill: backtest(market, fill) for fill in ("next_open", "next_close", "close")}
    agreement = []
    versions = {}
    for engine, fills in FILLS.items():
        for fill in fills:
            result, settings = results[fill]
            found = play(engine, market, result, settings)
            versions[engine] = found["version"]
            row = {"engine": engine, "fill": fill, **apart(result, found)}
            row["same_fills"] = found["fills"] == fills_of(market, result)
            if not row["same_fills"] or row["largest_equity_difference_usd"] >= CENT / 2:
                raise SystemExit(f"{engine} disagrees with fintrader over the {name} bars: {row}")
            agreement.append(row)
    result, settings = results["next_open"]
    stored = {
        word: np.round(getattr(market, word).double().numpy(), 3) for word in ("open", "close")
    }
    ways = {
        "commission_in_cents": {"cents": True},
        "prices_in_tenths_of_a_cent": {"prices": stored},
        "fills_at_next_close": {"fill": "next_close"},
    }
    if quoted is not None:
        ways["prices_in_float64"] = {"prices": quoted}
    otherwise = []
    for what, options in ways.items():
        row = {"what": what, **apart(result, play(ZIPLINE, market, result, settings, **options))}
        otherwise.append(row)
    return {
        "symbols": market.num_assets,
        "sessions": market.num_bars,
        "fills": len(result.trades),
        "initial_cash_usd": settings.initial_cash_usd,
        "final_equity_usd": result.equity[-1],
        "commission_usd": result.costs_usd.sum(),
        "versions": versions,
        "agreement": agreement,
        "otherwise": otherwise,
    }


def main() -> None:
    """Compare over synthetic bars, and over real ones where they lie beside the checkout."""
    options = read_arguments(__doc__, seed=0)
    markets = {"synthetic": compare("synthetic", synthetic(seed=options.seed), None)}
    if REAL_DAILY.exists():
        markets["real"] = compare("real", *real_market())
    else:
        print("real bars: not beside the checkout, left out", file=sys.stderr)
    rows = [row for one in markets.values() for row in one["agreement"]]
    largest = max(row["largest_equity_difference_usd"] for row in rows)
    figures = {"markets": markets, "largest_equity_difference_usd": largest}
    finish("cross_engine", figures, options)


if __name__ == "__main__":
    main()
