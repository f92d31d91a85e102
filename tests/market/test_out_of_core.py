"""A build holds one symbol and one block in memory."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fintrader.market import scaling
from fintrader.market.build import build_market, make_market
from fintrader.market.columns import Sheet
from fintrader.market.tensors import MarketTensors
from tests.bars.tables import file_settings, minute_table, write_csv


def test_statistics_of_blocks_are_those_of_the_whole():
    """To the bit what numpy makes of whole blocks, for any width."""
    random = np.random.default_rng(0)
    for width in (1, 2, 5):
        table = random.normal(3, 50, (5_000, 3, width)).astype(np.float32)
        table[random.random(table.shape) < 0.1] = np.nan
        expected = whole_statistics(table.astype(np.float64), (100, 4_900))
        sheet = Sheet(table.shape, lambda start, stop, table=table: table[start:stop], 37)
        for values in (table, sheet):
            got = scaling.scale(values, (100, 4_900), np.ones(width, dtype=bool))
            np.testing.assert_array_equal(got, expected)


def whole_statistics(table, train):
    blocks = [
        table[start : min(start + 4096, train[1])] for start in range(train[0], train[1], 4096)
    ]
    count = sum(np.isfinite(block).sum(axis=(0, 1)) for block in blocks)
    mean = (
        sum(np.where(np.isfinite(block), block, 0.0).sum(axis=(0, 1)) for block in blocks) / count
    )
    square = sum(
        (np.where(np.isfinite(block), block - mean, 0.0) ** 2).sum(axis=(0, 1)) for block in blocks
    )
    return mean, np.sqrt(square / count)


def test_a_file_holds_what_memory_does(tmp_path, monkeypatch):
    """Events, members, market-wide features, ranks: written in blocks of sixteen bars, and as one
    array each."""
    table = minute_table(4, 6, missing=0.05)
    (tmp_path / "members.csv").write_text(
        "ticker,member_from,member_to\nAAA,2015-01-01,\nBBB,2015-01-01,2016-01-06\nCCC,2016-01-06,\nDDD,2015-01-01,\n"
    )
    (tmp_path / "actions.csv").write_text(
        "symbol,day,split,dividend_usd\nAAA,2016-01-06,2,\nDDD,2016-01-08,3,0.7\n"
    )
    values = {
        "actions": str(tmp_path / "actions.csv"),
        "waive": ["split"],  # the prices show none
        "universe": {"members": str(tmp_path / "members.csv")},
        "features": {
            "names": ["return_1", "beta_30", "gap"],
            "context": ["turbulence_5"],
        },
    }
    path = write_csv(tmp_path, table)
    for scale in ("window", "rank"):
        values["features"]["scaling"] = scale
        wanted = file_settings(path, **values)
        market = make_market(wanted)
        with monkeypatch.context() as patch:
            patch.setattr("fintrader.market.columns.BLOCK_BYTES", 1)
            built = build_market(wanted, cache=tmp_path / "cache")
        assert MarketTensors.load(built, verify=True).content_hash() == market.content_hash()
        assert market.save(tmp_path / "saved.safetensors") == market.content_hash()
        assert (tmp_path / "saved.safetensors").read_bytes() == built.read_bytes()


MEMORY = """
import json, sys
import numpy as np
from fintrader.bars.bars import Bars
from fintrader.market.build import build_market
from fintrader.market import build
from fintrader.bars.calendar import session_grid
from fintrader.market.settings import read_settings
from fintrader.bars.sources.feeds import Feed
import datetime as dt
from pathlib import Path
def peak():  # not ru_maxrss: that of whoever started this process counts in it
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
grid = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 6, 30))

class Made(Feed):
    symbols = [f"S{number:03d}" for number in range(int(sys.argv[2]))]
    inputs = {"kind": "files", "symbols": symbols}
    def span(self): return int(grid.minutes[0]), int(grid.minutes[-1])
    def bars(self, symbol):
        steps = np.random.default_rng(int(symbol[1:])).normal(0, 1e-3, grid.num_bars)
        price = 50 * np.exp(np.cumsum(steps))
        zero = np.zeros(grid.num_bars, dtype=np.int32)
        return Bars(grid.minutes, zero, (symbol,), price, price, price, price, price)

build.open_feed = lambda settings, cache: Made()
names = [f"return_{1 + number}" for number in range(10)]
settings = read_settings({"source": {"kind": "files"}, "features": {"names": names, "context": []}})
path = build_market(settings, cache=Path(sys.argv[1]))
print(json.dumps({"peak_mib": peak(), "file_mib": path.stat().st_size / 2**20}))
"""


@pytest.mark.slow
def test_more_symbols_take_no_more_memory(tmp_path):
    """Ten and a hundred: the second market is larger than what building it takes beyond building
    the first."""
    peaks = []
    for symbols in (10, 100):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(tmp_path / str(symbols)), str(symbols)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(json.loads(done.stdout.splitlines()[-1]))
    few, many = peaks
    assert many["file_mib"] > few["file_mib"] + 200
    assert many["peak_mib"] < few["peak_mib"] + 64, peaks
    assert many["peak_mib"] < 1024
