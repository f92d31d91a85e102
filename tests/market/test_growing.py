"""Files that grow: what is new is stored, what is known is kept, and every byte is as if it were
built afresh."""

from functools import partial

import pandas as pd
import pytest

from fintrader.bars.chunks import verify_store
from fintrader.bars.sources import bar_files
from fintrader.config import dump_yaml
from fintrader.errors import BarError
from fintrader.market.build import build_market
from fintrader.market.settings import read_settings
from fintrader.market.tensors import MarketTensors
from fintrader.storage.objects import ObjectStore
from tests.bars.tables import file_settings, minute_table, write_csv
from tests.engines.killing import FORK, killed_at, writes_of
from tests.quick import mostly_slow, slow_but

TABLE = minute_table(3, 24, missing=0.02)  # 4 January to 5 February
DAYS = TABLE.ts.dt.strftime("%Y-%m-%d")
LAST = DAYS.max()
FEW = TABLE[(TABLE.ticker != "CCC") & (TABLE.ts > "2016-01-27")]
LAYOUTS = {
    "by symbol": lambda table: table.sort_values(["ticker", "ts"]),
    "by time": lambda table: table.sort_values(["ts", "ticker"]),
}


def stored(store):
    """Chunk -> when it was written."""
    return {
        str(file.relative_to(store)): file.stat().st_mtime_ns for file in store.rglob("*.parquet")
    }


def put(folder, table, kind):
    if kind == "csv":
        return write_csv(folder, table)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / "bars.parquet", index=False)
    return folder / "bars.parquet"


@pytest.mark.parametrize("kind", mostly_slow("csv", every=["csv", "parquet"]))
@pytest.mark.parametrize("layout", slow_but(0, every=LAYOUTS))
def test_a_grown_file_adds_the_chunks_of_its_new_day(tmp_path, kind, layout):
    table = LAYOUTS[layout](TABLE)
    store = tmp_path / "store"
    cache = tmp_path / "cache"
    path = put(tmp_path, table[table.ts < LAST], kind)
    build_market(file_settings(path, store=str(store)), cache=cache)
    before = stored(store)
    put(tmp_path, table, kind)
    grown = build_market(file_settings(path, store=str(store)), cache=cache)
    after = stored(store)
    assert {name: after.get(name) for name in before} == before
    new = sorted(after.keys() - before.keys())
    assert [name.split("/")[-2] for name in new] == ["AAA", "BBB", "CCC"]
    assert sum(len(pd.read_parquet(store / name)) for name in new) == (DAYS == LAST).sum()
    assert verify_store(ObjectStore(store)) == []
    assert len(list(store.rglob("manifest-*.json"))) == 1  # nothing refers to what the file was
    fresh = build_market(file_settings(path), cache=tmp_path / "afresh")
    assert MarketTensors.stored_hash(grown) == MarketTensors.stored_hash(fresh)


@pytest.mark.slow
def test_what_was_read_of_a_csv_is_not_read_again(tmp_path, monkeypatch):
    table = LAYOUTS["by time"](TABLE)
    rows = []
    real = bar_files.convert_table

    def counted(part, *rest, **named):
        rows.append(part.num_rows)
        return real(part, *rest, **named)

    monkeypatch.setattr(bar_files, "convert_table", counted)
    path = write_csv(tmp_path, table[table.ts < LAST])
    build_market(file_settings(path), cache=tmp_path / "cache")
    rows.clear()
    write_csv(tmp_path, table)
    build_market(file_settings(path), cache=tmp_path / "cache")
    assert sum(rows) == (DAYS == LAST).sum()
    rows.clear()
    path.write_text(path.read_text() + "\n")  # an empty line is no row
    build_market(file_settings(path), cache=tmp_path / "cache")
    assert rows == []
    path.write_text(path.read_text() + "2016-02-08 09:30:00,AAA,1,1,nothing,1,1\n")
    line = len(path.read_text().splitlines())
    with pytest.raises(
        BarError, match=f"row {line - 1}, column 'low'"
    ):  # empty lines are not counted
        build_market(file_settings(path), cache=tmp_path / "cache")


@pytest.mark.parametrize("kind", mostly_slow("parquet", every=["csv", "parquet"]))
def test_a_changed_bar_costs_its_own_month(tmp_path, kind):
    store = tmp_path / "store"
    table = TABLE.copy()
    path = put(tmp_path, table, kind)
    build_market(file_settings(path, store=str(store)), cache=tmp_path / "cache")
    before = stored(store)
    at = table.index[(table.ticker == "BBB") & (table.ts < "2016-02-01")][77]
    table.loc[at, "volume"] += 1
    put(tmp_path, table, kind)
    changed = build_market(file_settings(path, store=str(store)), cache=tmp_path / "cache")
    (new,) = stored(store).keys() - before.keys()
    assert "/BBB/2016-01" in new
    fresh = build_market(file_settings(path), cache=tmp_path / "afresh")
    assert MarketTensors.stored_hash(changed) == MarketTensors.stored_hash(fresh)


def from_config(config, cache):
    return build_market(read_settings(config), cache=cache)


@pytest.mark.parametrize(
    "share", [0.3, *(pytest.param(k / 10, marks=pytest.mark.slow) for k in range(11))]
)
def test_a_killed_append_is_finished_by_the_same_call(tmp_path, share):
    table = LAYOUTS["by time"](FEW)
    config = tmp_path / "data.yaml"
    path = tmp_path / "bars.csv"
    config.write_text(dump_yaml(file_settings(path)))
    hashes = []
    for home in ("counted", "killed"):
        write_csv(tmp_path, table[table.ts < LAST])
        from_config(config, tmp_path / home)
        write_csv(tmp_path, table)
        append = partial(from_config, config, tmp_path / home)
        if home == "counted":
            writes = writes_of(append, FORK)
        else:
            assert killed_at(append, round(share * (writes - 1)), FORK)
        hashes.append(MarketTensors.load(append(), verify=True).content_hash())
        assert verify_store(ObjectStore(tmp_path / home / "bars")) == []
    assert hashes[0] == hashes[1]
    assert list(tmp_path.rglob("*.tmp")) == []


def write_days(folder, table):
    return [
        write_csv(folder, rows, f"bars_{day:%Y-%m-%d}.csv")
        for day, rows in table.groupby(table.ts.dt.normalize())
    ]


@pytest.mark.slow
def test_files_of_days_are_one_collection_to_which_days_are_added(tmp_path):
    """A day after the last costs its chunks, one that comes late its month."""
    table = LAYOUTS["by time"](TABLE)
    bars = tmp_path / "bars"
    store = tmp_path / "store"
    days = write_days(bars, table[table.ts < LAST])
    third = days[2].read_bytes()
    days[2].unlink()
    settings = file_settings(bars, store=str(store))
    build_market(settings, cache=tmp_path / "cache")
    before = stored(store)
    months = set(table[table.ts < LAST].ts.dt.strftime("%Y-%m"))
    assert len(before) == 3 * len(months)  # of each symbol and month one, however many files
    write_days(bars, table[table.ts >= LAST])
    lacking = build_market(settings, cache=tmp_path / "cache")
    grown = stored(store)
    assert {name: grown.get(name) for name in before} == before
    assert len(grown) == len(before) + 3
    assert len(list(store.rglob("manifest-*.json"))) == 1
    days[2].write_bytes(third)
    late = build_market(settings, cache=tmp_path / "cache")
    assert late != lacking
    new = stored(store).keys() - grown.keys()
    assert {name.rsplit("/", 1)[1][:7] for name in new} == {"2016-01"}
    assert verify_store(ObjectStore(store)) == []
    whole = build_market(file_settings(write_csv(tmp_path, TABLE)), cache=tmp_path / "afresh")
    assert market_of(late) == market_of(whole)


def market_of(path):
    """Everything of a market but where its bars came from."""
    market = MarketTensors.load(path)
    return {name: tensor.numpy().tobytes() for name, tensor in market.arrays()} | {
        "symbols": market.symbols
    }


def test_a_row_of_a_file_of_days_is_named_by_its_file(tmp_path):
    table = LAYOUTS["by time"](TABLE)
    bars = tmp_path / "bars"
    days = write_days(bars, table)
    lines = days[4].read_text().splitlines()
    other = lines[7].rsplit(",", 1)[0] + ",123456"
    days[4].write_text("\n".join([*lines[:8], other, *lines[8:]]) + "\n")
    with pytest.raises(BarError, match=rf"{days[4].name}, row 9 .*a second, different row"):
        build_market(file_settings(bars), cache=tmp_path / "cache")
    days[4].write_text("\n".join([*lines[:8], lines[8].replace(",", ",x", 3), *lines[9:]]) + "\n")
    with pytest.raises(BarError, match=rf"{days[4].name}, row 9, column"):
        build_market(file_settings(bars), cache=tmp_path / "cache")


def test_a_file_of_names_alone_may_grow(tmp_path):
    settings = file_settings(tmp_path / "bars", store=str(tmp_path / "store"))
    write_csv(tmp_path / "bars", FEW[FEW.ticker == "AAA"], "AAA.csv")
    path = write_csv(tmp_path / "bars", FEW[:0], "BBB.csv")
    build_market(settings, cache=tmp_path / "cache")
    FEW[FEW.ticker == "BBB"].to_csv(path, mode="a", header=False, index=False)
    grown = MarketTensors.load(build_market(settings, cache=tmp_path / "cache"))
    assert grown.symbols == ("AAA", "BBB")
