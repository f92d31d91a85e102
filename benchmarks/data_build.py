"""Data: how fast bars become a market, how much memory that takes, and FinRL's way beside it.

    python -m benchmarks.data_build [--symbols 152] [--sessions 1359] [--rounds 3] [--bars
    FOLDER] [--save]

1. clean and align: rows a second from bars in memory to the exchange's grid.
2. the size of the paper: 152 tickers, 2016-01-01 to 2021-05-26 (1,359 sessions, 528,030 minutes),
   its eight features, from local Parquet files of made-up bars, in a process of its own (the better
   of two): time, peak memory, second build, time to load.
3. the way of FinRL (stockstats, ticker by ticker, in pandas, as
   `FeatureEngineer.add_technical_indicator` does) on a subset, in turn with ours on the same bars.
4. polars on the same work as a first build, on one core each, in turn: bars of sixteen tickers to
   arrays of a file.
5. a day added to 500 symbols, a CSV each, and all in one Parquet file: seconds and chunks of the
   next build.

`--bars` keeps the made-up bars (4 GB) for the next time.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks._bench import Values, finish, make_environment, read_arguments, run_child
from fintrader.bars.calendar import SessionGrid, session_grid
from fintrader.bars.clean import SymbolBars, aggregate_to_grid, clean, fill_silent_bars
from fintrader.bars.sources.bar_files import read_files
from fintrader.bars.sources.feeds import FilesFeed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.market.features import symbol_features
from fintrader.market.tensors import MarketTensors
from fintrader.storage.objects import ObjectStore
from tests.factories import PAPER_FEATURES

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

def peak():  # ru_maxrss counts the peak of the parent process, too
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


def make_grid(sessions: int) -> SessionGrid:
    """The first sessions of the paper's years."""
    whole = session_grid("XNAS", date(2016, 1, 1), date(2021, 5, 26))
    last = min(sessions, whole.num_sessions) - 1
    return session_grid("XNAS", whole.dates[0].item(), whole.dates[last].item())


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
                writer.write_table(make_symbol(stamp, number, seed))
        file.with_suffix(".part").rename(file)
        print(f"made {file.name}")


SCHEMA = pa.schema(
    [("ts", pa.timestamp("ns", tz="UTC")), ("ticker", pa.dictionary(pa.int16(), pa.string()))]
    + [(name, pa.float32()) for name in ("open", "high", "low", "close")]
    + [("volume", pa.int32())]
)


def make_symbol(stamp: pa.Array, number: int, seed: int) -> pa.Table:
    """Made-up minutes of one ticker."""
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


def read_eight(folder: Path) -> list[Any]:
    """Bars of each ticker of the first file."""
    file = sorted(folder.glob("*.parquet"))[0]
    bars = read_files(FilesSettings(timezone="UTC"), str(file))
    return [bars.take(bars.symbol == code) for code in range(len(bars.symbols))]


def time_best(work: Callable[[], Any]) -> float:
    """CPU seconds, the best of three."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def align(parts: list[Any], grid: SessionGrid) -> list[SymbolBars]:
    """Clean bars and put them on the exchange's grid."""
    merged = (aggregate_to_grid(clean(part)[0], grid)[0] for part in parts)
    return [fill_silent_bars(one, grid, grid.num_sessions) for one in merged]


def clean_and_align(folder: Path, grid: SessionGrid) -> Values:
    """Rows a second of `clean`, `aggregate_to_grid` and `fill_silent_bars`."""
    parts = read_eight(folder)
    rows = sum(len(part) for part in parts)
    return {"rows": rows, "rows_per_second": rows / time_best(lambda: align(parts, grid))}


def time_fresh_gib(home: Path, size: int = 4) -> float:
    """System seconds to write a GiB to a file's cache where the memory is not in use yet: the
    machine's price of pages. A virtual machine may have to fetch each from its host."""
    piece = np.ones(1 << 20, dtype=np.uint8)
    with tempfile.TemporaryFile(dir=home, buffering=0) as file:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
        for _ in range(size << 10):
            file.write(piece.data)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_stime - before) / size


def build(bars: Path, cache: Path) -> Values:
    """Build a market of these bars in a process; what it took."""
    config = cache.with_suffix(".yaml")
    config.write_text(CONFIG.format(path=bars))
    return run_child(["-c", BUILD, str(config), str(cache)])


def build_paper(folder: Path, home: Path) -> Values:
    """Build twice from nothing, since the price of new memory differs by as much as the build, and
    once more."""
    runs = {"fresh_gib_seconds": time_fresh_gib(home)}
    for name in ("first", "first", "second"):
        if name == "first":
            shutil.rmtree(home / "cache", ignore_errors=True)
        found = build(folder, home / "cache")
        print(name, found)
        runs[name] = min(runs.get(name, found), found, key=lambda one: one["cpu_seconds"])
    return runs


def compare_with_polars(folder: Path, grid: SessionGrid, home: Path, rounds: int) -> Values:
    """CPU seconds of a first build of sixteen tickers, ours (chunks, checks and hashes included)
    and theirs in turn."""
    some = home / "some"
    some.mkdir()
    for file in sorted(folder.glob("*.parquet"))[:2]:
        (some / file.name).symlink_to(file.resolve())
    np.save(home / "minutes.npy", grid.minutes)
    script = Path(__file__).with_name("_polars_build.py")
    sides = {"ours": [], "theirs": []}
    for number in range(rounds):
        cache = home / f"some-{number}"
        sides["ours"].append(build(some, cache))
        market = MarketTensors.load(next(cache.glob("*/market.safetensors")))
        last = market.windows.train[1]
        words = map(str, [script, some, home / "minutes.npy", last, home / "theirs.npz"])
        theirs = run_child([*words], python=make_peers(), POLARS_MAX_THREADS="1")
        sample = market.features[market.num_bars // 2 :: market.num_bars // 7, 0].double().numpy()
        np.testing.assert_allclose(sample, theirs.pop("sample"), atol=1e-3)
        sides["theirs"].append(theirs)
        shutil.rmtree(cache)
    found = {"symbols": market.num_assets, "bars": market.num_bars}
    for name, side in sides.items():
        found[f"{name}_cpu_seconds"] = min(one["cpu_seconds"] for one in side)
        found[f"{name}_peak_gib"] = max(one["peak_gib"] for one in side)
    found["times_faster"] = found["theirs_cpu_seconds"] / found["ours_cpu_seconds"]
    return found


def append_a_day(home: Path, kind: str, symbols: int = 500, sessions: int = 60) -> Values:
    """Seconds until the bars of one more day are in the store, and the chunks written for it."""
    grid = make_grid(sessions + 1)
    stamp = pa.array(grid.minutes, pa.timestamp("ns", tz="UTC"))
    tables = [make_symbol(stamp, number, 1) for number in range(symbols)]
    last = pa.scalar(int(grid.minutes[grid.first_bar[sessions]]), pa.timestamp("ns", tz="UTC"))
    bars = home / "bars"
    store = ObjectStore(home / "store")
    bars.mkdir(parents=True)
    found = {"symbols": symbols, "sessions": sessions}
    for name in ("first", "appended"):
        parts = tables
        if name == "first":
            parts = [table.filter(pc.less(table["ts"], last)) for table in tables]
        if kind == "parquet":
            pq.write_table(pa.concat_tables(parts), bars / "bars.parquet")
        for part in parts if kind == "csv" else ():
            part.to_pandas().to_csv(bars / f"{part['ticker'][0]}.csv", index=False)
        before = set((home / "store").rglob("*.parquet"))
        start = time.perf_counter()
        cpu = time.process_time()
        feed = FilesFeed(FilesSettings(timezone="UTC"), str(bars), store, "XNAS")
        feed.prepare()
        found[f"{name}_seconds"] = time.perf_counter() - start
        found[f"{name}_cpu_seconds"] = time.process_time() - cpu
        found[f"{name}_chunks"] = len(set((home / "store").rglob("*.parquet")) - before)
    shutil.rmtree(home)
    return found


def compare_with_finrl(folder: Path, home: Path, rounds: int) -> Values:
    """Seconds for the paper's eight features on four tickers and a hundred sessions, ours and
    theirs in turn."""
    grid = make_grid(100)
    four = read_eight(folder)[:4]
    parts = align([bars.take(bars.ts <= grid.minutes[-1]) for bars in four], grid)
    make_frame(parts, grid).to_parquet(home / "subset.parquet")
    ours = []
    theirs = []
    for _ in range(rounds):
        start = time.perf_counter()
        for part in parts:
            symbol_features(part, PAPER_FEATURES)
        ours.append(time.perf_counter() - start)
        words = ["-c", THEIRS, str(home / "subset.parquet")]
        theirs.append(run_child(words, python=make_peers())["seconds"])
    cells = sum(len(part) for part in parts)
    return {
        "rows": cells,
        "ours_seconds": min(ours),
        "theirs_seconds": min(theirs),
        "times_faster": min(theirs) / min(ours),
    }


def make_frame(parts: list[SymbolBars], grid: SessionGrid) -> pd.DataFrame:
    """The bars as FinRL takes them."""
    stamps = pd.DatetimeIndex(grid.minutes.astype("datetime64[ns]"))
    tables = [
        pd.DataFrame(
            {name: getattr(part, name) for name in ("open", "high", "low", "close", "volume")}
        ).assign(date=stamps[part.first : part.stop], tic=f"S{number}")
        for number, part in enumerate(parts)
    ]
    return pd.concat(tables, ignore_index=True)


def make_peers() -> str:
    """The interpreter of an environment with stockstats and polars."""
    return str(make_environment("data", "stockstats", "polars", "pyarrow", "pandas<3"))


def main() -> None:
    """Measure each part."""
    options = read_arguments(__doc__, seed=0, symbols=152, sessions=1359, rounds=3, bars=Path)
    with tempfile.TemporaryDirectory(prefix="data-build-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        bars = options.bars or home / "bars"
        grid = make_grid(options.sessions)
        make_bars(bars, grid, options.symbols, options.seed)
        figures = {
            "clean_and_align": clean_and_align(bars, grid),
            "paper": build_paper(bars, home),
            "finrl_way": compare_with_finrl(bars, home, options.rounds),
            "polars": compare_with_polars(bars, grid, home, options.rounds),
            "appended": {kind: append_a_day(home / kind, kind) for kind in ("csv", "parquet")},
        }
    finish("data_build", figures, options)


if __name__ == "__main__":
    main()
