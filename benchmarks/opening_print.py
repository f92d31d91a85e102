"""Opening prints: what becomes of the session's open where a file's times are the ends of bars.

    python benchmarks/opening_print.py --minutes MINUTES.parquet --daily DAILY.parquet [--save]

MINUTES holds one-minute bars by their start (ts in New York, ticker, open, high, low, close,
volume) whose first bar of a day opens at the auction's price; DAILY holds date, ticker, open, close
of the same symbols. The minutes are written once more as a vendor writes ends: every time a minute
later, and the auction as a row of its own at 09:30, so that the first minute opens at a price of
its own (unknown, so half-way to its close). A market of whole sessions is then built with
`opening_print: auto` and with `leave`, and its opens are compared with the daily ones, of symbols
whose daily prices are not adjusted for a later split.

Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pandas as pd

from benchmarks.common import finish
from fintrader.config import validate
from fintrader.market.build import make_market
from fintrader.market.settings import DataSettings


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=Path, required=True)
    arguments.add_argument("--daily", type=Path, required=True)
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    daily = pd.read_parquet(options.daily)
    with tempfile.TemporaryDirectory(prefix="opening-print-") as home:
        path = Path(home) / "ends.parquet"
        as_ends(pd.read_parquet(options.minutes)).to_parquet(path, index=False)
        figures: dict[str, Any] = {
            how: against_daily(path, how, daily) for how in ("auto", "leave")
        }
    figures["median_open_error_bps"] = figures["auto"]["median_bps"]
    figures["median_open_error_unmerged_bps"] = figures["leave"]["median_bps"]
    finish("opening_print", figures, seed=0, save=options.save)


def as_ends(bars: pd.DataFrame) -> pd.DataFrame:
    """The bars as a vendor writes ends, with a row for each day's opening print."""
    bars = bars.sort_values(["ticker", "ts"], kind="stable", ignore_index=True)
    prices = ["open", "high", "low", "close"]
    bars[prices] = bars[prices].astype(np.float64).round(4)
    first = bars.ts.dt.strftime("%H:%M") == "09:30"
    prints = bars[first].copy()
    for name in ("high", "low", "close"):
        prints[name] = prints["open"]
    prints["volume"] = (prints.volume * 0.1).round()
    bars["ts"] += pd.Timedelta("1min")
    bars.loc[first, "open"] = bars[first][["open", "close"]].mean(axis=1).round(4)
    bars.loc[first, "volume"] -= prints.volume
    return pd.concat([bars, prints]).sort_values(["ticker", "ts"], kind="stable", ignore_index=True)


def against_daily(path: Path, how: str, daily: pd.DataFrame) -> dict[str, Any]:
    """How far the opens of sessions lie from the daily ones."""
    values = {
        "source": {"kind": "files", "path": str(path), "label": "end", "opening_print": how},
        "bar_minutes": 390,
        "features": {"names": ["return_1"], "context": []},
    }
    market, report = make_market(validate(DataSettings, values, "opening_print"))
    days = (
        pd.DatetimeIndex(market.timestamps())
        .tz_localize("UTC")
        .tz_convert("America/New_York")
        .normalize()
    )
    days = days.tz_localize(None)
    names = list(market.symbols)
    theirs = {
        name: daily.pivot_table(index="date", columns="ticker", values=name).reindex(
            index=days, columns=names
        )
        for name in ("open", "close")
    }
    ours = {name: getattr(market, name).double().numpy() for name in ("open", "close")}
    scale = np.nanmedian(theirs["close"].to_numpy() / ours["close"], axis=0)
    plain = np.abs(scale - 1) < 0.01
    bps = np.abs(1e4 * (ours["open"][:, plain] / theirs["open"].to_numpy()[:, plain] - 1))
    bps = bps[np.isfinite(bps)]
    return {
        "symbols": int(plain.sum()),
        "symbol_days": len(bps),
        "merged": report["repairs"]["opening_print"],
        "median_bps": float(np.median(bps)),
        "mean_bps": float(bps.mean()),
        "exact": float((bps < 0.1).mean()),
    }


if __name__ == "__main__":
    main()
