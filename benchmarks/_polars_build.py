"""The work of a market build in polars: bars in Parquet to the exchange's grid, eight features, one
scale, one file.

    python _polars_build.py BARS MINUTES.npy TRAIN_BARS OUT

Run by `data_build` in an environment with polars. For each symbol: its bars joined to the grid's
minutes, closes carried forward, the paper's eight features; then all of it standardised on the
training window and written as arrays `[T, N]` and `[T, N, F]`. Nothing is checked, kept in chunks
or hashed. Prints seconds and a few cells.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl

NAMES = [
    "macd",
    "bollinger_upper",
    "bollinger_lower",
    "rsi_30",
    "cci_30",
    "dx_30",
    "sma_30",
    "sma_60",
]


def list_features() -> list[pl.Expr]:
    close = pl.col("close")
    high = pl.col("high")
    low = pl.col("low")
    change = close.diff().fill_null(0.0)
    rise = high.diff().fill_null(0.0)
    fall = -low.diff().fill_null(0.0)
    mean = close.rolling_mean(20)
    deviation = close.rolling_std(20)
    up, down = (pl.when(sign * change > 0).then(sign * change).otherwise(0.0) for sign in (1, -1))
    up, down = (one.ewm_mean(alpha=1 / 30) for one in (up, down))
    plus = pl.when((rise > fall) & (rise > 0)).then(rise).otherwise(0.0).ewm_mean(alpha=1 / 30)
    minus = pl.when((fall > rise) & (fall > 0)).then(fall).otherwise(0.0).ewm_mean(alpha=1 / 30)
    typical = (high + low + close) / 3.0
    centre = typical.rolling_mean(30)
    spread = pl.sum_horizontal([(typical.shift(lag) - centre).abs() for lag in range(30)]) / 30
    return [
        ((close.ewm_mean(span=12) - close.ewm_mean(span=26)) / close).alias("macd"),
        ((mean + 2.0 * deviation) / close - 1.0).alias("bollinger_upper"),
        ((mean - 2.0 * deviation) / close - 1.0).alias("bollinger_lower"),
        (100.0 * up / (up + down)).alias("rsi_30"),
        ((typical - centre) / (0.015 * spread)).alias("cci_30"),
        (100.0 * (plus - minus).abs() / (plus + minus)).alias("dx_30"),
        (close.rolling_mean(30) / close - 1.0).alias("sma_30"),
        (close.rolling_mean(60) / close - 1.0).alias("sma_60"),
    ]


def build_symbol(bars: pl.DataFrame, grid: pl.DataFrame) -> pl.DataFrame:
    first = bars["ts"].min()
    known = grid.filter(pl.col("ts") >= first).join(
        bars, on="ts", how="left", maintain_order="left"
    )
    known = known.with_columns(
        pl.col("volume").is_not_null().alias("tradable"), pl.col("close").forward_fill()
    )
    return known.with_columns(
        *(pl.col(name).fill_null(pl.col("close")) for name in ("open", "high", "low")),
        pl.col("volume").fill_null(0.0),
    ).with_columns(*list_features())


def read_peak_gib() -> float:
    """Peak memory of this process alone; ru_maxrss counts its parent's, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def main() -> None:
    folder, minutes, train, out = sys.argv[1:]
    start = time.perf_counter()
    stamps = np.load(minutes)
    grid = pl.DataFrame({"ts": pl.Series(stamps).cast(pl.Datetime("ns", "UTC"))})
    files = sorted(Path(folder).glob("*.parquet"))
    symbols = {
        file: pl.read_parquet(file, columns=["ticker"])["ticker"].unique().sort() for file in files
    }
    count = sum(len(names) for names in symbols.values())
    cells = {
        name: np.full((len(stamps), count), np.nan, dtype=np.float32)
        for name in ("open", "close", "volume")
    }
    tradable = np.zeros((len(stamps), count), dtype=bool)
    features = np.full((len(stamps), count, len(NAMES)), np.nan, dtype=np.float32)
    column = 0
    for file, names in symbols.items():
        table = pl.read_parquet(file).with_columns(
            pl.col("open", "high", "low", "close", "volume").cast(pl.Float64)
        )
        for name in names:
            known = build_symbol(table.filter(pl.col("ticker") == name), grid)
            rows = slice(len(stamps) - len(known), None)
            for key, values in cells.items():
                values[rows, column] = known[key].to_numpy()
            tradable[rows, column] = known["tradable"].to_numpy()
            features[rows, column] = known.select(NAMES).to_numpy()
            column += 1
    window = features[: int(train)]
    mean = np.nanmean(window, axis=(0, 1), dtype=np.float64)
    spread = np.nanstd(window, axis=(0, 1), dtype=np.float64)
    for first in range(0, len(features), 4096):
        block = features[first : first + 4096]
        block[...] = np.nan_to_num(np.clip((block - mean) / spread, -10, 10))
    np.savez(out, features=features, tradable=tradable, **cells)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - start,
                "cpu_seconds": used.ru_utime + used.ru_stime,
                "peak_gib": read_peak_gib(),
                "sample": features[len(features) // 2 :: len(features) // 7, 0]
                .astype(float)
                .round(6)
                .tolist(),
            }
        )
    )


if __name__ == "__main__":
    main()
