import io
import json
import os
import random
import zipfile
from collections import Counter
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from fintrader.bars import chunks
from fintrader.bars.chunks import verify_store
from fintrader.bars.sources import feeds as feed_module
from fintrader.config import dump_yaml
from fintrader.errors import DataError, StorageFullError
from fintrader.market import columns, reading
from fintrader.market.bar_source import open_bar_store
from fintrader.market.build import build_market, make_market
from fintrader.market.garbage import find_garbage
from fintrader.market.inspect import check_stored_files
from fintrader.market.settings import read_settings
from fintrader.market.tensors import MarketTensors
from fintrader.results.verify import list_problems
from fintrader.storage.objects import ObjectStore
from tests.bars.tables import assert_same_market, minute_table, write_csv
from tests.bars.tables import file_settings as settings
from tests.engines.killing import FORK, killed_at, writes_of
from tests.quick import mostly_slow, slow_but


def chunk_times(store):
    return {
        str(file.relative_to(store)): file.stat().st_mtime_ns for file in store.rglob("*.parquet")
    }


@pytest.mark.parametrize("order", mostly_slow("shuffled", every=["symbol", "time", "shuffled"]))
def test_the_order_of_a_file_does_not_change_the_market(tmp_path, order, monkeypatch):
    table = minute_table(3, 30)
    expected = make_market(settings(write_csv(tmp_path / "a", table)))
    if order == "time":
        table = table.sort_values(["ts", "ticker"])
    elif order == "shuffled":
        table = table.sample(frac=1, random_state=0)
    monkeypatch.setattr("fintrader.bars.sources.feeds._BUFFER_ROWS", 5_000)
    monkeypatch.setattr("fintrader.bars.sources.bar_files.BATCH_ROWS", 2_000)
    table.to_parquet(tmp_path / "bars.parquet", index=False)
    built = MarketTensors.load(
        build_market(settings(tmp_path / "bars.parquet"), cache=tmp_path / "cache")
    )
    assert_same_market(expected, built)
    assert (built.provenance.repairs["shuffled_rows"] > 0) == (order == "shuffled")


def test_nothing_is_read_twice_and_a_new_month_adds_only_itself(tmp_path, monkeypatch):
    table = minute_table(2, 60)  # January to March
    month = table.ts.dt.strftime("%Y-%m")
    folder = tmp_path / "months"
    store = tmp_path / "store"
    for name in ("2016-01", "2016-02"):
        write_csv(folder, table[month == name], f"{name}.csv")
    wanted = settings(folder, store=str(store))
    build_market(wanted, cache=tmp_path / "cache")
    before = chunk_times(store)
    assert len(before) == 2 * 2
    read = []
    real = feed_module.ingest

    def counted(batches, collection, progress, name, **more):
        read.append(name)
        real(batches, collection, progress, name, **more)

    monkeypatch.setattr(feed_module, "ingest", counted)
    build_market(wanted, cache=tmp_path / "cache")
    build_market(wanted.model_copy(update={"bar_minutes": 5}), cache=tmp_path / "cache")
    assert read == []
    write_csv(folder, table[month == "2016-03"], "2016-03.csv")
    path = build_market(wanted, cache=tmp_path / "cache")
    assert read == ["2016-03.csv"]
    after = chunk_times(store)
    assert len(after) == 3 * 2
    assert {name: after[name] for name in before} == before
    whole = make_market(settings(write_csv(tmp_path, table)))
    assert_same_market(whole, MarketTensors.load(path))


def test_the_manifest_says_where_every_chunk_came_from(tmp_path):
    path = write_csv(tmp_path, minute_table(2, 5))
    build_market(settings(path), cache=tmp_path / "cache")
    (manifest,) = (tmp_path / "cache" / "bars").rglob("manifest*.json")
    body = json.loads(manifest.read_text())
    (piece,) = body["chunks"]["BBB"]["2016-01"]
    assert piece["rows"] == 5 * 390
    assert piece["request"] == {"file": "bars.csv"}
    assert piece["file"].startswith("BBB/2016-01-" + piece["sha256"][:12])
    assert piece["time"].endswith("+00:00")
    assert body["identity"]["timezone"] == "America/New_York"
    assert str(tmp_path) not in manifest.read_text()


def test_verify_finds_any_flipped_bit(tmp_path):
    wanted = settings(write_csv(tmp_path, minute_table(2, 3)))
    market = build_market(wanted, cache=tmp_path / "cache")
    assert list_problems(check_stored_files(wanted, cache=tmp_path / "cache")) == []
    files = [
        market,
        market.with_name("build.json"),
        *sorted((tmp_path / "cache" / "bars").rglob("*.parquet")),
    ]
    files += sorted((tmp_path / "cache" / "bars").rglob("manifest*.json"))
    chance = random.Random(0)
    for file in files:
        data = file.read_bytes()
        for _ in range(25):
            position = chance.randrange(len(data))
            flipped = bytearray(data)
            flipped[position] ^= 1 << chance.randrange(8)
            file.write_bytes(bytes(flipped))
            problems = list_problems(check_stored_files(wanted, cache=tmp_path / "cache"))
            assert problems, f"{file.name}, byte {position}"
            assert any(str(file.parent) in line or file.name in line for line in problems)
        file.write_bytes(data)
    assert list_problems(check_stored_files(wanted, cache=tmp_path / "cache")) == []
    for lost in files[1:3]:  # what the market was made from, and a chunk
        data = lost.read_bytes()
        lost.unlink()
        assert any(
            "is missing" in line
            for line in list_problems(check_stored_files(wanted, cache=tmp_path / "cache"))
        )
        lost.write_bytes(data)


def test_a_damaged_chunk_is_not_built_from(tmp_path):
    wanted = settings(write_csv(tmp_path, minute_table(2, 3)))
    build_market(wanted, cache=tmp_path / "cache")
    file = next((tmp_path / "cache" / "bars").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged; delete"):
        build_market(wanted.model_copy(update={"bar_minutes": 5}), cache=tmp_path / "cache")


@pytest.mark.parametrize("stage", range(4))
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch, stage):
    wanted = settings(write_csv(tmp_path, minute_table(1, 3)))
    os.utime(tmp_path / "bars.csv", (1e9, 1e9))
    real = os.replace

    def full(source, target):
        if Path(target).match(
            ("market.safetensors", "build.json", "fingerprints.json", "manifest-*.json")[stage]
        ):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        (DataError, StorageFullError), match=r"(No space left on device|full).*free (some )?space"
    ):
        build_market(wanted, cache=tmp_path / "cache")
    assert not [file for file in (tmp_path / "cache").rglob("*safetensors*") if file.is_file()]
    monkeypatch.setattr(os, "replace", real)
    build_market(wanted, cache=tmp_path / "cache")


def build_from(config, cache):
    return build_market(read_settings(config), cache=cache)


@pytest.mark.parametrize(
    "share", [0.5, *(pytest.param(k / 40, marks=pytest.mark.slow) for k in range(41))]
)
def test_a_killed_build_is_finished_by_the_same_call(tmp_path, share):
    """Killed when so large a share of its files is written: the same call must arrive at the
    undisturbed hash."""
    config = tmp_path / "data.yaml"
    config.write_text(dump_yaml(settings(write_csv(tmp_path, minute_table(2, 25, missing=0.02)))))
    writes = writes_of(partial(build_from, config, tmp_path / "undisturbed"), FORK)
    assert writes > 5
    cache = tmp_path / "killed"
    assert killed_at(partial(build_from, config, cache), round(share * (writes - 1)), FORK)
    finished = build_from(config, cache)
    undisturbed = build_from(config, tmp_path / "undisturbed")
    assert MarketTensors.load(finished, verify=True).content_hash() == MarketTensors.stored_hash(
        undisturbed
    )
    assert list_problems(check_stored_files(read_settings(config), cache=cache)) == []
    assert list(cache.rglob("*.tmp")) == []


def test_bars_side_files_and_the_store_may_lie_at_a_url(tmp_path):
    """Everything that is a path in the settings may be a URL just the same."""
    import fsspec

    table = minute_table(2, 5)
    days = pd.DataFrame({"date": pd.date_range("2016-01-01", "2016-01-08").strftime("%Y-%m-%d")})
    days["close"] = np.arange(100.0, 108.0)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("inner/bars.csv", table.to_csv(index=False))
    contents = {
        "index.csv": days.to_csv(index=False).encode(),
        "members.csv": (
            b"ticker,member_from,member_to\nAAA,2015-01-01,2016-01-06\nBBB,2015-01-01,\n"
        ),
        "actions.csv": b"symbol,day,split,dividend_usd\nAAA,2016-01-06,2,\n",
        "bars.zip": archive.getvalue(),
    }
    fs = fsspec.filesystem("memory")
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        fs.pipe_file(f"/side/{name}", data)
    built = []
    for home in (str(tmp_path), "memory://side"):
        cache = tmp_path / f"cache{len(built)}"
        values = {
            "waive": ["split"],  # the prices show none
            "benchmark": f"{home}/index.csv",
            "universe": {"members": f"{home}/members.csv"},
            "actions": f"{home}/actions.csv",
            "features": {
                "names": ["return_1"],
                "context": [],
                "daily": {"vix": f"{home}/index.csv"},
            },
        }
        wanted = settings(f"{home}/bars.zip", store=f"{home}/store", **values)
        built.append(build_market(wanted, cache=cache))
        assert build_market(wanted, cache=cache) == built[-1]
    assert built[0].parent.name == built[1].parent.name  # the address holds contents and no path
    assert_same_market(*map(MarketTensors.load, built))
    assert MarketTensors.load(built[0]).benchmark_name == "index"
    store = open_bar_store(wanted, cache)
    parquet = [name for name in store.list_names() if name.endswith(".parquet")]
    assert len(parquet) == 2
    assert verify_store(store) == []
    store.put(parquet[0], b"x")
    assert "is damaged" in verify_store(store)[0]
    assert not list(tmp_path.glob("memory*"))
    with pytest.raises(
        DataError, match=r"memory://side/none.csv does not exist; see data.benchmark"
    ):
        build_market(
            settings("memory://side/bars.zip", benchmark="memory://side/none.csv"),
            cache=tmp_path,
        )
    fs.rm("/side", recursive=True)


CHOICES = [
    {},
    {"universe": {"min_coverage": 0.7}},
    {"universe": {"max_symbols": 2}},
    {"universe": {"max_symbols": 3, "min_coverage": 0.6}, "bar_minutes": 5},
    {"universe": {"symbols": ["BBB", "DDD"], "min_coverage": 0.1}, "start": "2016-01-06"},
]


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    """Five symbols over two months: later ones trade in fewer minutes of fewer days, but not with
    less volume."""
    table = minute_table(5, 24)
    chance = np.random.default_rng(1)
    number, _ = pd.factorize(table.ticker)
    table["volume"] *= np.array([1.0, 5.0, 2.0, 9.0, 4.0])[number]
    traded = chance.random((24, 5)) > 0.18 * np.arange(5)
    traded[[0, -1]] = True  # each is listed on all days
    day, _ = pd.factorize(table.ts.dt.normalize())
    there = traded[day, number] & (chance.random(len(table)) > 0.18 * number)
    return write_csv(tmp_path_factory.mktemp("bars"), table[there])


def choosing(bars, values):
    features = {"names": ["return_1", "sma_5", "rsi_30"], "context": ["time_of_day"]}
    return settings(bars, features=features, **values)


@pytest.mark.parametrize("choice", slow_but(0, 3, every=CHOICES))
def test_every_symbol_is_decoded_cleaned_and_gridded_once(bars, tmp_path, monkeypatch, choice):
    build_market(choosing(bars, {"bar_minutes": 30}), cache=tmp_path)  # cuts the file into chunks
    spies = {}
    for module, name in ((chunks, "decode"), (reading, "clean"), (reading, "aggregate_to_grid")):
        spies[name] = Mock(wraps=getattr(module, name))
        monkeypatch.setattr(module, name, spies[name])
    build_market(choosing(bars, choice), cache=tmp_path)
    listed = choice.get("universe", {}).get("symbols", [])
    symbols = {
        ("AAA",),
        *((name,) for name in listed or ("BBB", "CCC", "DDD", "EEE")),
    }  # AAA is the source's first
    for name in ("clean", "aggregate_to_grid"):
        assert Counter(
            call.args[0].symbols for call in spies[name].call_args_list
        ) == dict.fromkeys(symbols, 1)
    decoded = [call.args[0] for call in spies["decode"].call_args_list]
    assert len(decoded) == len(set(decoded)) == 2 * len(symbols)  # a chunk a month


@pytest.mark.parametrize("block", [7_000, 1 << 20])
@pytest.mark.parametrize("choice", slow_but(0, 3, every=CHOICES[1:4]))
def test_a_market_of_chosen_symbols_is_the_market_of_a_list_of_them(
    bars, monkeypatch, choice, block
):
    monkeypatch.setattr(columns, "BLOCK_BYTES", block)
    chosen = make_market(choosing(bars, choice))
    assert 0 < chosen.num_assets < 5
    assert len(chosen.provenance.left_out) == 5 - chosen.num_assets
    listed = make_market(choosing(bars, {**choice, "universe": {"symbols": list(chosen.symbols)}}))
    assert chosen.symbols == listed.symbols
    assert chosen.provenance.repairs == listed.provenance.repairs
    assert_same_market(listed, chosen)


def test_the_highest_turnover_of_the_training_window_is_kept(bars, tmp_path):
    every = make_market(choosing(bars, {}))
    first, last = every.windows.train
    table = pd.read_csv(bars)
    days = np.unique(every.timestamps()[first:last].astype("datetime64[D]"))
    table = table[np.isin(pd.to_datetime(table.ts).dt.floor("D"), days)]
    turnover_usd = (table.close * table.volume).groupby(table.ticker).sum()
    market = MarketTensors.load(build_market(choosing(bars, CHOICES[2]), cache=tmp_path))
    assert set(market.symbols) == set(turnover_usd.nlargest(2).index)


@pytest.mark.parametrize("empty", ["", ",,,,,,\n"])
def test_files_of_days_may_hold_no_row(tmp_path, empty):
    table = minute_table(1, 10)
    folder = tmp_path / "days"
    for day, rows in table.groupby(table.ts.dt.strftime("%Y-%m-%d")):
        write_csv(folder, rows, f"{day}.csv")
    header = ",".join(table.columns) + "\n" + empty
    for day in ("2015-12-31", "2016-01-09"):
        (folder / f"{day}.csv").write_text(header)
    built = build_market(settings(folder), cache=tmp_path / "cache")
    expected = make_market(settings(write_csv(tmp_path / "a", table)))
    assert_same_market(expected, MarketTensors.load(built))


def test_a_build_after_the_search_for_garbage_keeps_its_chunks(tmp_path):
    table = minute_table(1, 60)
    store = str(tmp_path / "store")
    other = settings(write_csv(tmp_path / "b", table), store=store)
    mine = settings(write_csv(tmp_path / "a", table[table.ts < "2016-03-01"]), store=store)
    build_market(mine, cache=tmp_path / "cache")
    garbage = find_garbage([other], (), cache=tmp_path / "cache", stored={})
    assert garbage.objects
    write_csv(tmp_path / "a", table)
    build_market(mine, cache=tmp_path / "cache")
    garbage.remove()
    assert verify_store(ObjectStore(store)) == []
