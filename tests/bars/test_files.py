import logging
import zipfile

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.clean import clean
from fintrader.bars.detect import detect
from fintrader.bars.sources import bar_files, listing, typed
from fintrader.bars.sources.bar_files import read_files
from fintrader.bars.sources.layout import FilesSettings
from fintrader.config import validate
from fintrader.errors import BarError, DataError
from fintrader.market.bar_source import open_feed
from fintrader.market.build import build_market, make_market, try_build
from fintrader.market.inspect import dry_run
from fintrader.market.settings import DataSettings
from tests.bars.tables import COLUMNS, file_settings, minute_table, write_csv
from tests.quick import mostly_slow


def read(path, **values):
    return read_files(validate(FilesSettings, values, "test"), str(path))


def spoil(folder, row, column, value):
    table = minute_table(2, 3).astype({column: object})
    table.loc[row, column] = value
    return write_csv(folder, table)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("close", "n/a!", r"bars.csv, row 19, column 'close': 'n/a!' is no number"),
        ("volume", "many", r"row 19, column 'volume': 'many' is no number"),
        ("close", None, r"row 19, column 'close': the cell is empty"),
        ("ts", "yesterday", r"row 19, column 'ts': 'yesterday' is no time"),
        ("low", -3.0, r"row 19 \(AAA at 2016-01-04T14:47:00 UTC\), column 'low': -3.0 is no price"),
        ("close", 0.0, r"row 19 .* column 'close': 0.0 is no price"),
        ("high", "inf", r"column 'high': inf is no price"),
        ("close", 1e300, r"row 19 .*column 'close': 1e\+300 is no price"),
        ("ticker", " ", r"row 19, column 'ticker': an empty text is no ticker"),
        ("ticker", "", r"row 19, column 'ticker': the cell is empty"),
        ("volume", -1, r"column 'volume': -1.0 is no volume"),
        ("ts", "2199-01-04 09:47:00", r"row 19 .*lies in the future"),
        ("ts", "2300-01-04 09:47:00", "outside of the years 1678 to 2261; correct them"),
    ],
)
def test_a_bad_cell_is_named(tmp_path, column, value, message):
    path = spoil(tmp_path, 17, column, value)  # line 19: a header, and lines count from 1
    with pytest.raises(BarError, match=message):
        build_market(file_settings(path), cache=tmp_path / "cache")
    left = {file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()}
    assert left <= {"fingerprints.json", ".lock"}


def test_a_missing_column_is_named(tmp_path):
    path = write_csv(tmp_path, minute_table(1, 1).drop(columns="close"))
    with pytest.raises(
        BarError, match=r"no column 'close'; it has ts, ticker, open, high, low, volume.*columns"
    ):
        read(path)


def test_order_and_repetition_are_repaired_and_counted(tmp_path, caplog):
    table = minute_table(2, 3)
    straight, _ = clean(read(write_csv(tmp_path, table)))
    mixed = pd.concat([table, table.iloc[[5, 100]]]).sample(frac=1, random_state=1)
    repaired, counts = clean(read(write_csv(tmp_path, mixed)))
    assert counts["exact_duplicates"] == 2
    assert counts["shuffled_rows"] > 100
    for name in ("ts", "symbol", *COLUMNS):
        np.testing.assert_array_equal(getattr(straight, name), getattr(repaired, name))
    market = make_market(file_settings(tmp_path / "bars.csv"))
    assert market.provenance.repairs["exact_duplicates"] == 2
    assert "2 rows that repeat another exactly were dropped" in caplog.text


def test_conflicting_rows_are_refused(tmp_path):
    table = minute_table(1, 1)
    other = table.iloc[[7]].assign(close=lambda rows: rows.close + 0.01)
    with pytest.raises(
        BarError, match=r"row 392 \(AAA at 2016-01-04T14:37:00 UTC\): a second, different row"
    ):
        clean(read(write_csv(tmp_path, pd.concat([table, other]))))


def test_a_bar_wider_than_its_range_is_widened(tmp_path):
    table = minute_table(1, 1)
    table.loc[3, "high"] = table.loc[3, ["open", "close"]].min() - 0.01
    repaired, counts = clean(read(write_csv(tmp_path, table)))
    assert counts["ohlc_widened"] == 1
    assert repaired.high[3] == table.loc[3, ["open", "close"]].max()


@pytest.mark.parametrize("zoned", [True, False])
def test_parquet_and_csv_agree(tmp_path, zoned):
    table = minute_table(2, 1)
    text = read(write_csv(tmp_path, table))
    if zoned:
        table["ts"] = table.ts.dt.tz_localize("America/New_York")
    table.astype({"ticker": "category"}).to_parquet(tmp_path / "bars.parquet")
    binary = read(tmp_path / "bars.parquet")
    for name in ("ts", "symbol", *COLUMNS):
        np.testing.assert_array_equal(getattr(text, name), getattr(binary, name))


def test_no_file_wrong_file_and_truncated_file(tmp_path):
    with pytest.raises(DataError, match="no bar file there"):
        read(tmp_path / "nothing.parquet")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match="not that of Parquet, CSV"):
        read(tmp_path / "notes.txt")
    minute_table(2, 1).to_parquet(tmp_path / "bars.parquet")
    whole = (tmp_path / "bars.parquet").read_bytes()
    (tmp_path / "bars.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BarError, match="truncated"):
        read(tmp_path / "bars.parquet")
    (tmp_path / "empty.csv").write_text("ts,ticker,open,high,low,close,volume\n")
    with pytest.raises(BarError, match="holds no row"):
        read(tmp_path / "empty.csv")
    numbers = minute_table(1, 1).assign(ts=lambda table: np.arange(len(table), dtype=float))
    numbers.to_parquet(tmp_path / "numbers.parquet")
    with pytest.raises(BarError, match="not a time"):
        read(tmp_path / "numbers.parquet")
    numbers.assign(ts=9e12).to_parquet(tmp_path / "late.parquet")  # the year 2255
    with pytest.raises(BarError, match=r"is out of range in ms; set"):
        read(tmp_path / "late.parquet", time_format="ms")
    late = numbers.assign(ts=pd.Timestamp("2300-01-04", tz="UTC").as_unit("us"))
    late.to_parquet(tmp_path / "late.parquet")
    with pytest.raises(BarError, match="outside of the years"):
        read(tmp_path / "late.parquet")


def test_folders_patterns_archives_and_one_file_per_symbol(tmp_path):
    table = minute_table(2, 2)
    whole = read(write_csv(tmp_path, table))
    archive = tmp_path / "bars.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, rows in table.groupby("ticker"):
            own = rows.drop(columns="ticker")
            packed.writestr(f"2016/{name}.csv", own.to_csv(index=False))
            write_csv(tmp_path / "packed", own, f"{name}.csv.gz")
            write_csv(tmp_path / "many", own, f"{name}.csv")
        packed.writestr("readme.txt", "not bars")
    for path in ("bars.zip", "packed", "many", "many/*.csv"):
        bars = read(tmp_path / path, name_pattern="{symbol}")
        assert bars.symbols == ("AAA", "BBB")
        for column in ("ts", "symbol", *COLUMNS):
            np.testing.assert_array_equal(getattr(bars, column), getattr(whole, column))
    assert read(tmp_path / "many" / "B*.csv", name_pattern="{symbol}").symbols == ("BBB",)
    with pytest.raises(BarError, match=r"bars.zip:2016/AAA.csv: no column 'ticker'"):
        read(archive)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(BarError, match=r"bars.zip: cannot be read"):
        read(archive, name_pattern="{symbol}")


def test_a_dry_run_reads_no_bars(tmp_path, monkeypatch):
    table = minute_table(2, 3)
    write_csv(tmp_path / "in", table, "a.csv")
    table.to_parquet(tmp_path / "in" / "b.parquet", index=False)
    settings = file_settings(tmp_path / "in")
    plan = dry_run(settings, cache=tmp_path / "cache")
    assert [(file.name, file.kind, file.rows) for file in plan.files] == [
        ("a.csv", "csv", None),
        ("b.parquet", "parquet", len(table)),
    ]
    assert plan.files[0].columns == tuple(table.columns)
    assert [file.problem for file in plan.files] == ["", ""]
    assert not plan.is_built
    assert not list((tmp_path / "cache").rglob("*.parquet"))
    path = build_market(settings, cache=tmp_path / "cache")
    plan = dry_run(settings, cache=tmp_path / "cache")
    assert plan.is_built
    assert plan.market == path
    assert f"b.parquet (parquet, {len(table):,} rows): columns ts, ticker" in plan.describe()
    write_csv(tmp_path / "in", table.drop(columns="close"), "c.csv")
    (tmp_path / "in" / "d.parquet").write_bytes(b"PAR1 but not really")
    plan = dry_run(settings, cache=tmp_path / "cache")
    assert plan.market is None
    problems = {file.name: file.problem for file in plan.files}
    assert problems["c.csv"].startswith("no column 'close'")
    assert problems["d.parquet"].startswith("cannot be read")
    synthetic = dry_run(DataSettings(), cache=tmp_path / "cache")
    assert synthetic.source == "synthetic"
    assert not synthetic.is_built


@pytest.mark.parametrize("cell", ["null", "-", "9999999999"])
def test_a_time_that_is_none_is_refused_wherever_it_is_counted(cell, tmp_path):
    rows = [f"{stamp},1,1,1,1,5" for stamp in ("1700000000", cell)]
    (tmp_path / "AAA.csv").write_text("\n".join(["ts,open,high,low,close,volume", *rows]) + "\n")
    settings = FilesSettings(time_format="epoch", name_pattern="{symbol}")
    with pytest.raises(BarError, match="row 3, column 'ts'"):
        read_files(settings, str(tmp_path / "AAA.csv"))


def test_only_volume_may_have_no_column():
    assert FilesSettings.model_validate({"columns": {"volume": None}}).names.get("volume") is None
    for role in ("ts", "symbol", "close"):
        with pytest.raises(ValueError, match="only volume may be null"):
            FilesSettings.model_validate({"columns": {role: None}})


@pytest.mark.parametrize("volume", [True, False])
def test_only_volume_shows_that_a_row_of_zeros_is_a_bar_without_trade(tmp_path, volume):
    """An extra column is no volume."""
    table = minute_table(2, 3).assign(mood=1.0)
    table.loc[7, ["open", "high", "low", "volume"]] = 0.0
    table = table if volume else table.drop(columns="volume")
    path = write_csv(tmp_path, table)
    columns = {} if volume else {"volume": None}
    bars = read(path, columns=columns, extra=["mood"])
    assert np.isnan(bars.close[7]) == volume
    assert (bars.open[7] == 0.0) != volume


def write_lines(path, *lines):
    path.write_text("\n".join(["ts,ticker,open,high,low,close,volume", *lines, ""]))
    return path


ROW = "2016-01-04 09:{},AAA,1.5,1.5,1.5,1.5,{}"


@pytest.mark.parametrize(
    ("written", "number"),
    [("1.2K", 1200), ("32.48M", 32_480_000), ("3B", 3e9), ("12,34,567", 1_234_567), ("-", 0)],
)
def test_volumes_for_people_are_numbers(written, number, tmp_path):
    rows = [ROW.format(30, f'"{written}"'), ROW.format(31, 5)]
    assert read(write_lines(tmp_path / "x.csv", *rows)).volume.tolist() == [number, 5]


@pytest.mark.parametrize(("written", "price"), [("$131.96", 131.96), ("1,131.96 €", 1131.96)])
def test_prices_for_people_are_numbers(written, price, tmp_path):
    row = f'2016-01-04 09:30,AAA,1,2000,1,"{written}",5'
    assert read(write_lines(tmp_path / "x.csv", row)).close.tolist() == [price]


@pytest.mark.parametrize("written", ["1.2%", "1.2Q", "$", "1,23.5", "K"])
def test_other_texts_are_no_numbers(written, tmp_path):
    row = f'2016-01-04 09:30,AAA,1,2000,1,"{written}",5'
    with pytest.raises(BarError, match=r"row 2, column 'close'.* is no number"):
        read(write_lines(tmp_path / "x.csv", row))


def test_names_again_and_remarks_are_left_out_by_their_lines(tmp_path, caplog):
    path = tmp_path / "x.csv"
    names = "ts,ticker,open,high,low,close,volume"
    rows = [ROW.format(30, 1), "Part two of the export", names, ROW.format(31, 2)]
    remarks = "Source: a vendor", "當日統計、零股"
    assert read(write_lines(path, *rows, *remarks)).volume.tolist() == [1, 2]
    assert "line 3 (Part two of the export), line 4 (a repeated header)" in caplog.text
    assert "line 6 (Source: a vendor)" in caplog.text
    with pytest.raises(BarError, match=r"row 5, column 'volume': 'many' is no number"):
        read(write_lines(path, *rows[:3], ROW.format(31, "many")))
    for cut_off in ("2016-01-04 09:31,AAA,1.5", "AAA", "2016-01-04"):
        with pytest.raises(BarError, match=r"cannot be read .*columns, got"):
            read(write_lines(path, *rows, cut_off))


@pytest.mark.parametrize("kind", mostly_slow("json", every=["json", "xlsx"]))
def test_a_build_parses_a_file_once(kind, tmp_path, monkeypatch):
    table = minute_table(1, 5)[::10]
    path = tmp_path / f"x.{kind}"
    table["ts"] = table.ts.astype(str)
    if kind == "json":
        table.to_json(path, orient="records")
    else:
        table.to_excel(path, index=False)
    parsed = []
    build = typed._build_table
    monkeypatch.setattr(typed, "_build_table", lambda *args: parsed.append(1) or build(*args))
    assert len(read(path)) == len(table)
    assert len(parsed) == 1


def test_unchanged_files_are_not_opened_again(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "_RACY_NS", 0)
    bars = tmp_path / "bars"
    for ticker, rows in minute_table(3, 5).groupby("ticker"):
        write_csv(bars, rows, f"{ticker}.csv")
    opened = []
    head = bar_files.csv_line
    monkeypatch.setattr(
        bar_files, "csv_line", lambda file, *args: opened.append(file.stem) or head(file, *args)
    )
    settings = file_settings(bars)
    one = build_market(settings, cache=tmp_path / "cache")
    assert {*opened} == {"AAA", "BBB", "CCC"}
    opened.clear()
    assert build_market(settings, cache=tmp_path / "cache") == one
    assert opened == []
    write_csv(bars, minute_table(1, 5).assign(ticker="DDD"), "DDD.csv")
    build_market(settings, cache=tmp_path / "cache")
    assert {*opened} == {"DDD"}


def test_old_workbooks_and_wrong_delimiters_are_named(tmp_path):
    (tmp_path / "x.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(DataError, match=r"save it as \.xlsx or as CSV"):
        read(tmp_path / "x.xls")
    path = write_csv(tmp_path, minute_table(1, 5))
    with pytest.raises(BarError, match=r"no line holds ';'.*correct --delimiter"):
        detect(str(path), known={"delimiter": ";"})


def test_a_trial_build_restores_the_logs(tmp_path):
    logs = [logging.getLogger(name) for name in ("fintrader.market", "fintrader.bars")]
    logs[1].disabled = True
    try:
        settings = file_settings(write_csv(tmp_path, minute_table(2, 5)))
        try_build(settings, open_feed(settings, None))
        assert [log.disabled for log in logs] == [False, True]
    finally:
        logs[1].disabled = False


def test_a_wide_batch_without_numbers_has_no_bars(tmp_path):
    for day, closes in (("04", "50,60"), ("05", ",")):
        (tmp_path / f"{day}.csv").write_text(f"Date,AAA,BBB\n2016-01-{day},{closes}\n")
    columns = {"ts": "Date", "volume": None}
    bars = read(tmp_path, wide="{symbol}", columns=columns)
    assert bars.close.tolist() == [50.0, 60.0]


def test_a_name_with_brackets_is_a_file_where_it_exists(tmp_path):
    path = write_csv(tmp_path, minute_table(1, 1), "AAA [1].csv")
    assert [file.name for file in listing.list_files(str(path))] == [path.name]
