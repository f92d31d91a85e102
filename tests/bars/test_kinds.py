"""The kinds of files that hold bars, and the files of a folder that hold something else."""

import bz2
import gzip
import json
import lzma
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fintrader.bars.detect import detect
from fintrader.bars.sources.bar_files import read_files
from fintrader.errors import BarError, DataError
from fintrader.market.build import build_market, make_market
from fintrader.market.config_path import choose_config_path
from fintrader.market.tensors import MarketTensors
from tests.bars.tables import (
    COLUMNS,
    PRICES,
    SHORT_WINDOWS,
    file_settings,
    minute_table,
    stamps_of,
    write_csv,
)
from tests.bars.test_files import read
from tests.quick import mostly_slow, slow_but

TABLE = minute_table(2, 3)
ISO = TABLE.assign(ts=TABLE.ts.astype(str))


def check(bars, table):
    """Every cell of the table, and nothing else, is in the bars."""
    bars = bars.sorted()
    table = table.sort_values(["ticker", "ts"], kind="stable")
    np.testing.assert_array_equal(bars.ts, stamps_of(table))
    assert [bars.symbols[code] for code in bars.symbol] == table.ticker.tolist()
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(bars, name), table[name].to_numpy(float))


def check_detected(path, table):
    settings = detect(str(path)).settings()
    check(read_files(settings, str(path)), table)
    return settings


def to_json(orient, **options):
    return lambda path: ISO.to_json(path, orient=orient, double_precision=15, **options)


def to_stream(path):
    table = pa.Table.from_pandas(TABLE)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


def as_polars(table):
    """With the types that polars writes."""
    table = pa.Table.from_pandas(table, preserve_index=False)
    tickers = table["ticker"].cast(pa.string()).dictionary_encode().combine_chunks()
    tickers = pa.DictionaryArray.from_arrays(
        tickers.indices.cast(pa.uint32()), tickers.dictionary.cast(pa.string_view())
    )
    return table.set_column(table.schema.get_field_index("ticker"), "ticker", tickers)


def to_polars(path):
    table = as_polars(TABLE)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=700)


def to_views(path):
    table = pa.Table.from_pandas(TABLE)
    place = table.schema.get_field_index("ticker")
    table = table.set_column(place, "ticker", table["ticker"].cast(pa.string_view()))
    pa.parquet.write_table(table, path)


def packed(pack, encoding="utf-8"):
    return lambda path: path.write_bytes(pack(TABLE.to_csv(index=False).encode(encoding)))


def pack_twice(pack):
    """In two pieces, as programs that pack on many cores do."""
    return lambda text: pack(text[:999]) + pack(text[999:])


def zstd(text):
    return pa.compress(text, codec="zstd", asbytes=True)


WRITERS = {
    "bars.feather": TABLE.to_feather,
    "bars.arrow": to_polars,
    "stream.arrow": to_stream,
    "views.parquet": to_views,
    "records.json": to_json("records"),
    "columns.json": to_json("columns"),
    "split.json": to_json("split"),
    "index.json": to_json("index"),
    "lines.jsonl": to_json("records", lines=True),
    "lines.ndjson.gz": to_json("records", lines=True),
    "bars.xlsx": lambda path: TABLE.to_excel(path, index=False),
    "bars.tsv": lambda path: TABLE.to_csv(path, index=False, sep="\t"),
    "bars.csv.zip": lambda path: TABLE.to_csv(path, index=False),
    "bars.csv.bz2": packed(pack_twice(bz2.compress)),
    "bars.csv.gz": packed(pack_twice(gzip.compress)),
    "bars.csv.zst": packed(pack_twice(zstd)),
    "bars.csv.xz": packed(pack_twice(lzma.compress)),
    "utf16.csv.xz": packed(lzma.compress, "utf-16"),
    "utf16.csv": packed(bytes, "utf-16"),
    "utf16be.csv": packed(lambda text: b"\xfe\xff" + text, "utf-16-be"),
}


@pytest.mark.parametrize(
    "name",
    mostly_slow("bars.feather", "lines.jsonl", "bars.xlsx", every=WRITERS),
)
def test_every_cell_of_each_kind_is_read(name, tmp_path):
    WRITERS[name](tmp_path / name)
    check_detected(tmp_path / name, TABLE)
    assert str(choose_config_path(name)) == f"{name.partition('.')[0]}.yaml"


@pytest.mark.parametrize("name", ["bars.csv.bz2", "bars.csv.xz", "bars.xlsx", "records.json"])
def test_what_was_cut_off_is_refused(name, tmp_path):
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BarError, match=rf"{name}: cannot be read \(.*\); it may be truncated"):
        read(path)


def alpaca(table):
    stamps = table.ts.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    rows = table.rename(columns={name: name[0] for name in COLUMNS})
    return rows.assign(t=stamps.dt.strftime("%Y-%m-%dT%H:%M:%SZ"), n=3, vw=rows.c).drop(
        columns=["ts"]
    )


def test_json_as_vendors_write_it(tmp_path):
    by_ticker = {
        ticker: rows.drop(columns="ticker").to_dict("records")
        for ticker, rows in alpaca(TABLE).groupby("ticker")
    }
    many = tmp_path / "many.json"
    many.write_text(json.dumps({"bars": by_ticker, "next_page_token": None}))
    check_detected(many, TABLE)
    # tickers that are called like columns
    many.write_text(json.dumps({"bars": {"C": by_ticker["AAA"], "O": by_ticker["BBB"]}}))
    check_detected(many, TABLE.assign(ticker=TABLE.ticker.map({"AAA": "C", "BBB": "O"})))
    first = TABLE[TABLE.ticker == "AAA"]
    one = tmp_path / "one.json"
    one.write_text(json.dumps({"bars": by_ticker["AAA"], "symbol": "AAA", "next_page_token": "x"}))
    check_detected(one, first)
    columns = alpaca(first).drop(columns="ticker").to_dict("list")
    one.write_text(json.dumps({**columns, "s": "ok", "symbol": "AAA"}))
    check_detected(one, first)
    klines = [
        [int(stamp) // 10**6, *map(str, row), 0]
        for stamp, row in zip(stamps_of(first), first[COLUMNS].to_numpy(), strict=True)
    ]
    (tmp_path / "AAA.json").write_text(json.dumps(klines))
    settings = check_detected(tmp_path / "AAA.json", first)
    assert settings.header[:6] == ("ts", *COLUMNS)


def test_the_earliest_of_several_counted_times_is_the_start(tmp_path):
    """Poloniex's lists: low, high, open, close, volumes, publication, interval, start and end."""
    first = TABLE[TABLE.ticker == "AAA"]
    lists = []
    for stamp, row in zip(stamps_of(first), first[COLUMNS].to_numpy(), strict=True):
        opened, high, low, close, volume = map(float, row)
        start = int(stamp) // 10**6
        times = [start + 60_000, close, "MINUTE_1", start, start + 59_999]
        lists.append([low, high, opened, close, close * volume, volume, *times])
    (tmp_path / "AAA.json").write_text(json.dumps(lists))
    check_detected(tmp_path / "AAA.json", first)


def of_days(rows):
    """Rows below their day, then below their symbol, with the minute alone in each."""
    minute = rows.ts.dt.strftime("%H:%M")
    parts = rows.assign(time=minute, symbol=rows.ticker).groupby(rows.ts.dt.strftime("%Y-%m-%d"))
    fields = ["time", "symbol", *COLUMNS]
    return {day: part[fields].to_dict("records") for day, part in parts}


def of_symbols(rows):
    tables = {name: part.astype({"ts": str}) for name, part in rows.groupby("ticker")}
    fields = ["ts", *COLUMNS]
    return {
        "stocks": [
            {"symbol": name, "candlesticks": part[fields].to_dict("records")}
            for name, part in tables.items()
        ]
    }


def of_one_letter(rows):
    short = rows.rename(columns={name: name[0] for name in COLUMNS} | {"ticker": "T"})
    return {
        "results": short.assign(t=stamps_of(rows) // 10**6).drop(columns="ts").to_dict("records")
    }


def of_charts(rows):
    """Columns in two depths, as in Yahoo's charts, one chart for each symbol."""
    return {
        "chart": {
            "error": None,
            "result": [
                {
                    "meta": {"symbol": name, "currency": "USD", "validRanges": ["1d", "5d"]},
                    "timestamp": (stamps_of(part) // 10**9).tolist(),
                    "indicators": {"quote": [part[COLUMNS].to_dict("list")]},
                }
                for name, part in rows.groupby("ticker")
            ],
        }
    }


def of_events(rows):
    inner = rows.rename(columns={name: name[0] for name in COLUMNS} | {"ticker": "s"})
    inner = inner.assign(t=stamps_of(rows) // 10**6, T=stamps_of(rows) // 10**6 + 59_999, V=1, L=7)
    records = inner.drop(columns="ts").to_dict("records")
    return [{"e": "kline", "s": record["s"], "k": record} for record in records]


def of_tagged(rows):
    return [row | {"tags": ["a", "b"]} for row in rows.astype({"ts": str}).to_dict("records")]


@pytest.mark.parametrize(
    "write",
    slow_but(0, 2, 4, every=[of_tagged, of_days, of_symbols, of_one_letter, of_charts, of_events]),
)
def test_json_of_rows_below_days_symbols_and_charts(write, tmp_path):
    path = tmp_path / "bars.json"
    path.write_text(json.dumps(write(TABLE)))
    check_detected(path, TABLE)


def test_json_of_days_holds_symbols_below_them(tmp_path):
    days = TABLE.groupby([TABLE.ticker, TABLE.ts.dt.normalize()])[COLUMNS].first().reset_index()
    content = {
        f"{day:%Y-%m-%d}": part.set_index("ticker")[COLUMNS].to_dict("index")
        for day, part in days.groupby("ts")
    }
    (tmp_path / "days.json").write_text(json.dumps(content))
    check_detected(tmp_path / "days.json", days)


def test_an_index_of_times_is_a_column(tmp_path):
    first = TABLE[TABLE.ticker == "AAA"]
    for orient in ("index", "columns", "split"):
        frame = first.set_index(first.ts.astype(str))[COLUMNS]
        frame.to_json(tmp_path / "AAA.json", orient=orient, double_precision=15)
        columns = {"ts": "__index_level_0__"}
        check(read(tmp_path / "AAA.json", columns=columns, name_pattern="{symbol}"), first)


@pytest.mark.slow
def test_a_workbook_keeps_its_tickers_and_needs_its_package(tmp_path, monkeypatch):
    table = TABLE.assign(ticker=TABLE.ticker.map({"AAA": "NA", "BBB": "TRUE"}))
    path = tmp_path / "bars.xlsx"
    with pd.ExcelWriter(path) as book:
        table.to_excel(book, sheet_name="bars", index=False)
        pd.DataFrame({"note": ["made", "by hand"]}).to_excel(book, sheet_name="notes", index=False)
    check_detected(path, table)
    with pd.ExcelWriter(tmp_path / "two.xlsx") as book:
        for name in ("Sheet1", "Sheet2"):
            TABLE.to_excel(book, sheet_name=name, index=False)
    with pytest.raises(BarError, match=r"tables in several sheets \(Sheet1, Sheet2\); save each"):
        read(tmp_path / "two.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(BarError, match=r"bars.xlsx: a workbook needs openpyxl: .*pip install"):
        read(path)


def test_a_western_text_is_read_by_its_first_lines(tmp_path):
    table = TABLE.assign(ticker=TABLE.ticker.map({"AAA": "MÜV", "BBB": "BBB"}))
    text = table.rename(columns={"volume": "Stück"}).to_csv(index=False)
    (tmp_path / "bars.csv").write_bytes(text.encode("cp1252"))
    check_detected(tmp_path / "bars.csv", table)


@pytest.mark.parametrize("encoding", slow_but(0, every=["utf-16-le", "utf-16-be", "cp1252"]))
def test_text_of_any_encoding_grows_and_may_be_cut_off(encoding, tmp_path, caplog):
    table = TABLE.rename(columns={"volume": "Stück"})
    lines = table.to_csv(index=False).splitlines(keepends=True)
    bom = "" if encoding == "cp1252" else "\ufeff"
    path = tmp_path / "bars.csv"
    path.write_bytes((bom + "".join(lines[:900])).encode(encoding))
    source = {"kind": "files", "columns": {"volume": "Stück"}}
    settings = file_settings(path, source=source, **SHORT_WINDOWS)
    build_market(settings, cache=tmp_path / "cache")
    with path.open("ab") as file:
        file.write("".join(lines[900:]).encode(encoding))
    grown, anew = (build_market(settings, cache=tmp_path / name) for name in ("cache", "other"))
    assert grown.read_bytes() == anew.read_bytes()
    whole = path.read_bytes()
    path.write_bytes(whole[: -len("\n0".encode(encoding))])
    read(path, columns={"volume": "Stück"})
    assert "the last line has no newline; check that its last number" in caplog.text


@pytest.mark.parametrize(
    ("swap", "how"),
    slow_but(
        0,
        every=[(str.maketrans("", ""), {}), (str.maketrans("", ""), {"sep": ";"})]
        + [(str.maketrans(",.", ".,"), {"sep": ";"}), (str.maketrans(",", "'"), {})],
    ),
)
def test_digits_in_threes(swap, how, tmp_path):
    dear = TABLE.assign(**{name: (TABLE[name] * 100).round(2) for name in COLUMNS})
    text = dear.assign(
        **{name: dear[name].map("{:,.2f}".format).str.translate(swap) for name in COLUMNS}
    )
    check_detected(write_csv(tmp_path, text, **how), dear)


@pytest.mark.parametrize("title", ["Desk Export;generated 2023-06-30;;;;;", "Desk Export;;;;;;"])
def test_a_title_above_the_names_is_no_symbol(tmp_path, title):
    path = write_csv(tmp_path, TABLE, sep=";")
    path.write_text(f"{title}\n{path.read_text()}")
    check_detected(path, TABLE)


def test_a_comma_that_may_part_thousands_or_decimals_is_refused_and_the_remedy_works(tmp_path):
    dear = TABLE.assign(**{name: (TABLE[name] * 25).round() for name in PRICES}, volume=1500)
    text = dear.assign(**{name: dear[name].map("{:,.0f}".format) for name in COLUMNS})
    path = write_csv(tmp_path, text)
    said = "only numbers like 1,2.*name the sign"
    with pytest.raises(BarError, match=f"column 'open' has {said}"):
        detect(str(path))
    scaled = dear.assign(**{name: dear[name] / 1000 for name in COLUMNS})
    check(read(path, decimal=","), scaled)
    check(read(path, decimal="."), dear)
    # a volume of millions says that commas part thousands
    million = text.assign(volume="1,234,567")
    check_detected(write_csv(tmp_path, million), dear.assign(volume=1234567))


@pytest.mark.parametrize("word", mostly_slow("null", every=["null", "NaN", "N/A", "-", ""]))
def test_a_row_without_a_price_is_left_out_and_counted(word, tmp_path):
    table = minute_table(2, 5)
    table["ticker"] = table.ticker.map({"AAA": "NA", "BBB": "null"})
    holes = table.astype(dict.fromkeys(COLUMNS, object))
    holes.loc[[7, 500, len(table) - 1], COLUMNS] = word
    path = write_csv(tmp_path, holes)
    detect(str(path))
    kept = table.drop(index=[7, 500, len(table) - 1])
    check(read(path).without_empty(), kept)
    stored = MarketTensors.load(build_market(file_settings(path), cache=tmp_path / "cache"))
    for market in (stored, make_market(file_settings(path))):
        assert market.provenance.repairs["empty_rows"] == 3
        assert market.symbols == ("NA", "null")
    holes.loc[9, "close"] = word
    with pytest.raises(BarError, match=r"row 11, column 'close': the cell is empty"):
        read(write_csv(tmp_path, holes))
    with pytest.raises(BarError, match="no row has a price"):
        read(write_csv(tmp_path, holes.assign(**dict.fromkeys(COLUMNS, word))))


def test_a_last_day_without_a_price_is_no_session(tmp_path):
    table = minute_table(2, 6).astype(dict.fromkeys(COLUMNS, object))
    table.loc[table.ts >= "2016-01-11", COLUMNS] = "null"
    settings = file_settings(write_csv(tmp_path, table))
    stored = MarketTensors.load(build_market(settings, cache=tmp_path / "cache"))
    for market in (stored, make_market(settings)):
        assert market.num_bars == 5 * 390


def write_folder(folder):
    """One file for each symbol, and files of other things."""
    table = minute_table(2, 5)
    for ticker, rows in table.groupby("ticker"):
        write_csv(folder, rows.drop(columns="ticker"), f"{ticker}.csv")
    other = pd.DataFrame({"name": ["AAA"], "sector": ["secret"]})
    for name in ("1.csv", "README.csv", "more/notes.csv"):
        write_csv((folder / name).parent, other, (folder / name).name)
    other.to_parquet(folder / "other.parquet")
    other.to_excel(folder / "notes.xlsx")
    (folder / "settings.json").write_text('{"a": 1, "b": [1, 2]}')
    (folder / "broken.json").write_text('{"a": 1, // secret')
    for name in (".DS_Store", "._AAA.csv"):
        (folder / name).write_bytes(b"\0\1")
    return table


FOREIGN = {"1.csv", "README.csv", "notes.csv", "other.parquet", "notes.xlsx"}


def test_a_folder_is_read_without_its_foreign_files(tmp_path, caplog):
    table = write_folder(tmp_path)
    found = detect(str(tmp_path))
    (note,) = [one for one in found.findings if one.setting == "left out"]
    for name in FOREIGN:
        assert f"{name} (other columns)" in note.why
    assert "settings.json: its JSON holds no table" in note.why
    assert note.value == "7"
    assert "secret" not in note.why
    assert found.symbols == ("AAA", "BBB")
    check(read_files(found.settings(), str(tmp_path)), table)
    caplog.clear()
    stored = build_market(file_settings(tmp_path, source=found.settings()), cache=tmp_path / "x")
    assert "left out: 1.csv (other columns)" in caplog.text
    assert "AAA" in stored.with_name("build.json").read_text()
    assert "notes" not in stored.with_name("build.json").read_text()
    for name in (*FOREIGN - {"notes.csv"}, "settings.json"):  # by itself each is refused
        with pytest.raises(BarError, match=rf"{name}: .*(column|JSON)"):
            detect(str(tmp_path / name))
        with pytest.raises(BarError, match=rf"{name}: (no column|its JSON)"):
            read(tmp_path / name)
    with pytest.raises(DataError, match="another kind of table"):
        detect(str(tmp_path / ".DS_Store"))


def test_a_faulty_file_of_the_folders_layout_still_stops(tmp_path, caplog):
    table = write_folder(tmp_path)
    rows = table[table.ticker == "AAA"].drop(columns="ticker")
    settings = {"name_pattern": "{symbol}"}
    write_csv(tmp_path, rows.rename(columns={"close": "Clsoe"}), "CCC.csv")
    with pytest.raises(BarError, match=r"CCC.csv: no column 'close'"):
        read(tmp_path, **settings)
    for empty, said in (
        (rows.head(0), "holds no row"),
        (rows.assign(open="", high="", low="", close="", volume=""), "no row has a price"),
    ):
        write_csv(tmp_path, empty, "CCC.csv")
        read(tmp_path, **settings)
        assert f"CCC.csv: {said}" in caplog.text  # it adds nothing, and stops nothing
    (tmp_path / "CCC.csv").write_bytes(b"\x89PNG\0")
    with pytest.raises(BarError, match=r"CCC.csv: is not a text file"):
        read(tmp_path, **settings)


@pytest.mark.slow
def test_texts_are_read_beside_a_foreign_table(tmp_path):
    table = minute_table(2, 5)
    for ticker, rows in table.groupby("ticker"):
        write_csv(tmp_path, rows.drop(columns="ticker"), f"{ticker}.txt")
    write_csv(tmp_path, pd.DataFrame({"name": ["AAA"]}), "README.csv")
    check_detected(tmp_path, table)
    # beside a table of bars they are notes, or copies
    write_csv(tmp_path, table[table.ticker == "AAA"].drop(columns="ticker"), "AAA.csv")
    check_detected(tmp_path, table[table.ticker == "AAA"])


def test_what_was_built_in_a_folder_is_no_bar_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = minute_table(2, 5)
    write_csv(tmp_path, table)
    build_market(file_settings("bars.csv"), cache=tmp_path / "data" / "tensors")
    assert list(tmp_path.rglob("data/bars/files/*/AAA/*.parquet"))
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    for name in ("manifest.json", "config.yaml"):
        (run / name).write_text("{}")
    write_csv(run / "backtest", table, "trades.csv")
    found = detect(".")
    assert not [one for one in found.findings if one.setting == "left out"]
    check(read_files(found.settings(), "."), table)
    with pytest.raises(DataError, match="no bar file there"):
        read(tmp_path / "data" / "**" / "*.parquet")
    write_csv(tmp_path / "of", table, "manifest.csv")
    check(read(tmp_path / "of"), table)
