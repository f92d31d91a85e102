"""Data: how fast bars become a market, how much memory that takes, and FinRL's way beside it.

    python benchmarks/data_build.py [--symbols 152] [--sessions 1359] [--bars FOLDER] [--save]

1. clean and align: rows a second from bars in memory to the exchange's grid.
2. the size of the paper: 152 tickers, 2016-01-01 to 2021-05-26 (1,359 sessions, 528,030 minutes),
   its eight features, from local Parquet files of made-up bars, in a process of its own (the better
   of two): time, peak memory, second build, time to load.
3. the way of FinRL (stockstats, ticker by ticker, in pandas, as
   `FeatureEngineer.add_technical_indicator` does) on a subset, in turn with ours on the same bars.
4. polars on the same work as a first build, on one core each, in turn: bars of sixteen tickers to
   arrays of a file.
5. the paper's eight features of eight tickers: computed, and read back as they would be if chunks
   by symbol and month kept them; why none do.
6. a day added to 500 symbols, each a CSV of its own, and all in one Parquet file: what a build then
   reads and writes.

Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.common import ROOT, finish
from fintrader.bars.calendar import SessionGrid, session_grid
from fintrader.bars.clean import SymbolBars, clean, symbol_bars, to_grid
from fintrader.bars.sources.bar_files import read_files
from fintrader.bars.sources.feeds import FilesFeed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.market.features import PAPER_FEATURES, symbol_features
from fintrader.market.tensors import MarketTensors
from fintrader.storage.objects import Objects

CONFIG = """
path: {path}
source: {{kind: files, timezone: UTC}}
features:
  names: [macd, bollinger_upper, bollinger_lower, rsi_30, cci_30, dx_30, sma_30, sma_60]
  context: [time_of_day, turbulence]
"""

BUILD = """
import json, resource, sys, time
from pathlib import Path

def peak():  # not ru_maxrss: that of whoever started this process counts in it
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 2**20

start = time.perf_counter()
from fintrader.market.build import build_market
from fintrader.market.settings import read_settings
imported = time.perf_counter()
settings = read_settings(Path(sys.argv[1]))
path = build_market(settings, cache=Path(sys.argv[2]))
built, used, reached = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), peak()
from fintrader.market.tensors import MarketTensors
ready = time.perf_counter()
market = MarketTensors.load(path)
last = float(market.close[-1, -1])
loaded = time.perf_counter()
print(json.dumps({
    "seconds": built - imported, "import_seconds": imported - start, "load_seconds": loaded - ready,
    "cpu_seconds": used.ru_utime + used.ru_stime, "system_seconds": used.ru_stime, "peak_gib": reached,
    "bars": market.num_bars, "symbols": market.num_assets, "features": market.num_features,
    "file_gib": path.stat().st_size / 2**30,
}))
"""

THEIRS = """
import json, sys, time
import pandas as pd
from stockstats import StockDataFrame
bars = pd.read_parquet(sys.argv[1])
names = ["macd", "boll_ub", "boll_lb", "rsi_30", "cci_30", "dx_30", "close_30_sma", "close_60_sma"]
start = time.perf_counter()
df = bars.sort_values(by=["tic", "date"])
stock = StockDataFrame.retype(df.copy())
for indicator in names:
    indicator_df = pd.DataFrame()
    for ticker in stock.tic.unique():
        temp = pd.DataFrame(stock[stock.tic == ticker][indicator])
        temp["tic"] = ticker
        temp["date"] = df[df.tic == ticker]["date"].to_list()
        indicator_df = pd.concat([indicator_df, temp], axis=0, ignore_index=True)
    df = df.merge(indicator_df[["tic", "date", indicator]], on=["tic", "date"], how="left")
print(json.dumps({"seconds": time.perf_counter() - start, "rows": len(df)}))
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--symbols", type=int, default=152)
    arguments.add_argument("--sessions", type=int, default=1359, help="sessions from 2016-01-04 on")
    arguments.add_argument("--rounds", type=int, default=3, help="alternations with FinRL's way")
    arguments.add_argument(
        "--bars", type=Path, help="folder for the made-up bars (4 GB); kept for the next time"
    )
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="data-build-"))
    bars = options.bars or home / "bars"
    try:
        grid = paper_grid(options.sessions)
        make_bars(bars, grid, options.symbols, options.seed)
        figures = {
            "clean_and_align": clean_and_align(bars, grid),
            "paper": paper(bars, home),
            "finrl_way": against_finrl(bars, home, options.rounds),
            "polars": against_polars(bars, grid, home, options.rounds),
            "features": features_kept(bars, grid),
            "appended": {kind: appended(home / kind, kind) for kind in ("csv", "parquet")},
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)
    figures["clean_align_rows_per_second"] = figures["clean_and_align"]["rows_per_second"]
    figures["paper_build_seconds"] = figures["paper"]["first"]["seconds"]
    figures["paper_peak_gib"] = figures["paper"]["first"]["peak_gib"]
    figures["paper_cpu_seconds"] = figures["paper"]["first"]["cpu_seconds"]
    figures["second_build_seconds"] = figures["paper"]["second"]["seconds"]
    figures["load_seconds"] = figures["paper"]["second"]["load_seconds"]
    finish("data_build", figures, seed=options.seed, save=options.save)


def paper_grid(sessions: int) -> SessionGrid:
    whole = session_grid(
        "XNAS", pd.Timestamp("2016-01-01").date(), pd.Timestamp("2021-05-26").date()
    )
    return session_grid(
        "XNAS", whole.dates[0].item(), whole.dates[min(sessions, whole.num_sessions) - 1].item()
    )


def make_bars(folder: Path, grid: SessionGrid, symbols: int, seed: int) -> None:
    """One Parquet file per eight tickers, sorted by ticker and time, 2 % of the minutes missing."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = pa.array(grid.minutes, pa.timestamp("ns", tz="UTC"))
    for start in range(0, symbols, 8):
        file = folder / f"bars-{start:03d}.parquet"
        if file.exists():
            continue
        with pq.ParquetWriter(file.with_suffix(".part"), SCHEMA, compression="zstd") as writer:
            for number in range(start, min(start + 8, symbols)):
                writer.write_table(one_symbol(stamp, number, seed))
        file.with_suffix(".part").rename(file)
        print(f"made {file.name}", flush=True)


SCHEMA = pa.schema(
    [("ts", pa.timestamp("ns", tz="UTC")), ("ticker", pa.dictionary(pa.int16(), pa.string()))]
    + [(name, pa.float32()) for name in ("open", "high", "low", "close")]
    + [("volume", pa.int32())]
)


def one_symbol(stamp: pa.Array, number: int, seed: int) -> pa.Table:
    random = np.random.default_rng((seed, number))
    close = 100 * np.exp(np.cumsum(random.normal(0, 5e-4, len(stamp))))
    open_ = np.concatenate([close[:1], close[:-1]]) * np.exp(random.normal(0, 1e-4, len(stamp)))
    reach = np.abs(random.normal(0, 3e-4, (2, len(stamp))))
    name = pa.DictionaryArray.from_arrays(
        np.zeros(len(stamp), dtype=np.int16), pa.array([f"S{number:03d}"])
    )
    columns = [
        open_,
        np.maximum(open_, close) * (1 + reach[0]),
        np.minimum(open_, close) * (1 - reach[1]),
        close,
    ]
    prices = [pa.array(np.round(values, 4).astype(np.float32)) for values in columns]
    volume = pa.array(random.integers(100, 100_000, len(stamp), dtype=np.int32))
    keep = pa.array(random.random(len(stamp)) >= 0.02)
    return pa.Table.from_arrays([stamp, name, *prices, volume], schema=SCHEMA).filter(keep)


def clean_and_align(folder: Path, grid: SessionGrid) -> dict[str, Any]:
    """Rows a second of `clean`, `to_grid` and `symbol_bars`, best of three, with the rows shuffled
    once more."""
    bars = read_files(FilesSettings(path=str(sorted(folder.glob("*.parquet"))[0]), timezone="UTC"))
    parts = [bars.take(bars.symbol == code) for code in range(len(bars.symbols))]
    best: dict[str, float] = {}
    for name in ("in_order", "shuffled"):
        if name == "shuffled":
            random = np.random.default_rng(0)
            parts = [part.take(random.permutation(len(part))) for part in parts]
        seconds = []
        for _ in range(3):
            start = time.process_time()
            for part in parts:
                symbol_bars(to_grid(clean(part)[0], grid)[0], grid)
            seconds.append(time.process_time() - start)
        best[name] = len(bars) / min(seconds)
    return {
        "rows": len(bars),
        "rows_per_second": best["in_order"],
        "rows_per_second_shuffled": best["shuffled"],
    }


def fresh_gib(home: Path, size: int = 4) -> float:
    """System seconds to write a GiB to a file's cache where the memory is not in use yet: what the
    machine asks for pages, whatever it is that fills them. A virtual machine may have to fetch each
    from its host."""
    piece = np.ones(1 << 20, dtype=np.uint8)
    with tempfile.TemporaryFile(dir=home, buffering=0) as file:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
        for _ in range(size << 10):
            file.write(piece.data)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_stime - before) / size


def features_kept(folder: Path, grid: SessionGrid) -> dict[str, Any]:
    """CPU seconds, best of three, to compute features and to read them as float32 from Parquet
    chunks of a month."""
    bars = read_files(FilesSettings(path=str(sorted(folder.glob("*.parquet"))[0]), timezone="UTC"))
    parts = [clean(bars.take(bars.symbol == code))[0] for code in range(len(bars.symbols))]
    symbols = [symbol_bars(to_grid(part, grid)[0], grid) for part in parts]
    plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    chunks = []
    for one in symbols:
        table = symbol_features(one, PAPER_FEATURES, dtype=np.float32)
        months = grid.minutes[one.first : one.stop].astype("datetime64[ns]").astype("datetime64[M]")
        edges = [0, *(np.flatnonzero(np.diff(months.astype(np.int64))) + 1).tolist(), len(table)]
        for start, stop in itertools.pairwise(edges):
            columns = {
                name: table[start:stop, number] for number, name in enumerate(PAPER_FEATURES)
            }
            sink = pa.BufferOutputStream()
            split = dict.fromkeys(columns, "BYTE_STREAM_SPLIT")
            pq.write_table(
                pa.table(columns), sink, compression="lz4", column_encoding=split, **plain
            )
            chunks.append(sink.getvalue())
    best = {"computed": np.inf, "read": np.inf}
    for _ in range(3):
        start_of = time.process_time()
        for one in symbols:
            symbol_features(one, PAPER_FEATURES, dtype=np.float32)
        computed = time.process_time()
        for chunk in chunks:
            hashlib.sha256(chunk).hexdigest()  # as every chunk is checked
            pq.ParquetFile(pa.BufferReader(chunk)).read(use_threads=False)
        read = time.process_time()
        best = {
            "computed": min(best["computed"], computed - start_of),
            "read": min(best["read"], read - computed),
        }
    kept = sum(chunk.size for chunk in chunks)
    rows = sum(len(one) for one in symbols)
    return {
        "rows": rows,
        **{f"{name}_seconds": value for name, value in best.items()},
        "bytes_a_row": kept / rows,
    }


def paper(folder: Path, home: Path) -> dict[str, Any]:
    config = home / "data.yaml"
    config.write_text(CONFIG.format(path=folder))
    runs: dict[str, Any] = {"fresh_gib_seconds": fresh_gib(home)}
    for name in (
        "first",
        "first",
        "second",
    ):  # what the system takes for new memory differs by as much as the build
        if name == "first":
            shutil.rmtree(home / "cache", ignore_errors=True)
        found = child(
            [sys.executable, "-c", BUILD, str(config), str(home / "cache")], OMP_NUM_THREADS="1"
        )
        print(name, found, flush=True)
        runs[name] = min(runs.get(name, found), found, key=lambda one: one["cpu_seconds"])
    return runs


def against_polars(folder: Path, grid: SessionGrid, home: Path, rounds: int) -> dict[str, Any]:
    """CPU seconds of a first build of sixteen tickers, ours (chunks, checks and hashes included)
    and theirs in turn."""
    some = home / "some"
    some.mkdir()
    for file in sorted(folder.glob("*.parquet"))[:2]:
        (some / file.name).symlink_to(file.resolve())
    config = home / "some.yaml"
    config.write_text(CONFIG.format(path=some))
    np.save(home / "minutes.npy", grid.minutes)
    python = peer_python()
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for number in range(rounds):
        cache = home / f"some-{number}"
        ours.append(
            child([sys.executable, "-c", BUILD, str(config), str(cache)], OMP_NUM_THREADS="1")
        )
        market = MarketTensors.load(next(cache.glob("*/market.safetensors")))
        assert market.windows is not None
        words = [
            str(some),
            str(home / "minutes.npy"),
            str(market.windows.train[1]),
            str(home / "theirs.npz"),
        ]
        script = str(Path(__file__).with_name("_polars_build.py"))
        theirs.append(
            child([str(python), script, *words], POLARS_MAX_THREADS="1", OMP_NUM_THREADS="1")
        )
        sample = market.features[market.num_bars // 2 :: market.num_bars // 7, 0].double().numpy()
        np.testing.assert_allclose(sample, theirs[-1].pop("sample"), atol=1e-3)
        shutil.rmtree(cache)
    cpu = {
        "ours": min(one["cpu_seconds"] for one in ours),
        "theirs": min(one["cpu_seconds"] for one in theirs),
    }
    return {
        "symbols": market.num_assets,
        "bars": market.num_bars,
        "ours_cpu_seconds": cpu["ours"],
        "theirs_cpu_seconds": cpu["theirs"],
        "times_faster": cpu["theirs"] / cpu["ours"],
        "ours_peak_gib": max(one["peak_gib"] for one in ours),
        "theirs_peak_gib": max(one["peak_gib"] for one in theirs),
    }


def appended(home: Path, kind: str, symbols: int = 500, sessions: int = 60) -> dict[str, Any]:
    """Seconds until the bars of one more day are in the store, and the chunks that were written for
    it."""
    grid = paper_grid(sessions + 1)
    stamp = pa.array(grid.minutes, pa.timestamp("ns", tz="UTC"))
    tables = [one_symbol(stamp, number, 1) for number in range(symbols)]
    last = pa.scalar(int(grid.minutes[grid.first_bar[sessions]]), pa.timestamp("ns", tz="UTC"))
    bars = home / "bars"
    store = Objects(home / "store")
    bars.mkdir(parents=True)
    found: dict[str, Any] = {"symbols": symbols, "sessions": sessions}
    for name in ("first", "appended"):
        parts = (
            [table.filter(pc.less(table["ts"], last)) for table in tables]
            if name == "first"
            else tables
        )
        if kind == "parquet":
            pq.write_table(pa.concat_tables(parts), bars / "bars.parquet")
        for part in parts if kind == "csv" else ():
            text = part.set_column(0, "ts", part["ts"].cast(pa.string())).set_column(
                1, "ticker", part["ticker"].cast(pa.string())
            )
            pa_csv.write_csv(text, bars / f"{part['ticker'][0]}.csv")
        before = set((home / "store").rglob("*.parquet"))
        start = time.perf_counter()
        cpu = time.process_time()
        feed = FilesFeed(FilesSettings(path=str(bars), timezone="UTC"), store, "XNAS")
        feed.prepare()
        found[f"{name}_seconds"] = time.perf_counter() - start
        found[f"{name}_cpu_seconds"] = time.process_time() - cpu
        found[f"{name}_chunks"] = len(set((home / "store").rglob("*.parquet")) - before)
    shutil.rmtree(home)
    return found


def against_finrl(folder: Path, home: Path, rounds: int) -> dict[str, Any]:
    """Seconds for the paper's eight features on four tickers and a hundred sessions, ours and
    theirs in turn."""
    bars = read_files(FilesSettings(path=str(sorted(folder.glob("*.parquet"))[0]), timezone="UTC"))
    grid = paper_grid(100)
    parts = []
    for code in range(min(4, len(bars.symbols))):
        part = bars.take((bars.symbol == code) & (bars.ts <= grid.minutes[-1]))
        parts.append(symbol_bars(to_grid(clean(part)[0], grid)[0], grid))
    frame(parts, grid).to_parquet(home / "subset.parquet")
    python = peer_python()
    ours = []
    theirs = []
    for _ in range(rounds):
        start = time.perf_counter()
        for part in parts:
            symbol_features(part, PAPER_FEATURES)
        ours.append(time.perf_counter() - start)
        theirs.append(child([str(python), "-c", THEIRS, str(home / "subset.parquet")])["seconds"])
    cells = sum(len(part) for part in parts)
    return {
        "rows": cells,
        "ours_seconds": min(ours),
        "theirs_seconds": min(theirs),
        "times_faster": min(theirs) / min(ours),
    }


def frame(parts: list[SymbolBars], grid: SessionGrid) -> pd.DataFrame:
    stamps = pd.DatetimeIndex(grid.minutes.astype("datetime64[ns]"))
    tables = [
        pd.DataFrame(
            {name: getattr(part, name) for name in ("open", "high", "low", "close", "volume")}
        ).assign(date=stamps[part.first : part.stop], tic=part.symbol)
        for part in parts
    ]
    return pd.concat(tables, ignore_index=True)


def peer_python() -> Path:
    """The interpreter of an environment that holds stockstats and polars; made when it is not
    there."""
    folder = ROOT / ".venv-bench-data"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "stockstats",
                "polars",
                "pyarrow",
                "pandas<3",
            ],
            check=True,
        )
    return python


def child(command: list[str], **variables: str) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
