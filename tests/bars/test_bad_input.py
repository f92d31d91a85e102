"""Files as they should not be: each is refused in one line that says what to do, and nothing is
built."""

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fintrader import cli
from fintrader.bars.chunks import verify_store
from fintrader.bars.sources.bar_files import read_files
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import list_files
from fintrader.config import read_yaml, validate
from fintrader.errors import BarError, ConfigError, DataError
from fintrader.market.build import build_market, make_market
from fintrader.market.load import load_market
from fintrader.market.settings import DataSettings
from fintrader.storage.objects import ObjectStore
from tests.bars.tables import COLUMNS, file_settings, minute_table, write_csv
from tests.bars.test_files import read


def mixed(table):
    zoned = table.ts.dt.tz_localize("America/New_York").astype(str)
    return table.assign(ts=table.ts.astype(str).where(table.index < 40, zoned))


@pytest.mark.slow
def test_a_zone_that_comes_and_goes_between_blocks_and_in_pandas_is_refused(tmp_path):
    table = mixed(minute_table(1, 5)).assign(note="x" * 20_000)  # more than a block of 32 MiB
    with pytest.raises(BarError, match=r"row 42, column 'ts'"):
        read(write_csv(tmp_path, table))
    late = minute_table(1, 5)
    late["ts"] = late.ts.astype(str).where(
        late.index < 1900, late.ts.dt.tz_localize("America/New_York").astype(str)
    )
    with pytest.raises(
        BarError,
        match=r"row 1902, column 'ts': .* carries a time zone, and the rows before it do not",
    ):
        read(write_csv(tmp_path, late.assign(note="x" * 20_000)))
    with pytest.raises(BarError, match="carries a time zone"):
        load_market(mixed(minute_table(1, 5)), timezone="America/New_York")


def test_a_line_without_an_end_may_be_cut_off(tmp_path, caplog):
    path = write_csv(tmp_path, minute_table(1, 1))
    whole = read(path)
    text = path.read_bytes()
    path.write_bytes(text[:-1])
    np.testing.assert_array_equal(read(path).volume, whole.volume)
    assert f"check that its last number {whole.volume[-1]:.0f} is complete" in caplog.text
    for lost in (3, 4):  # fewer digits than any other volume
        path.write_bytes(text[:-lost])
        with pytest.raises(
            BarError, match=r"bars.csv: the last line has no newline.*fetch the file again"
        ):
            read(path)
    path.write_bytes(text.replace(b"\n", b"\r\n"))
    np.testing.assert_array_equal(read(path).volume, whole.volume)
    with zipfile.ZipFile(tmp_path / "bars.zip", "w") as archive:  # which knows its own length
        archive.writestr("bars.csv", text[:-1])
    np.testing.assert_array_equal(read(tmp_path / "bars.zip").volume, whole.volume)


def decimals(table):
    """With a price of four decimals as the last column."""
    columns = ["ts", "ticker", "volume", "open", "high", "low", "close"]
    return table[columns].assign(**{name: table[name].map("{:.4f}".format) for name in columns[3:]})


WHOLE = {
    "prices of four decimals": decimals,
    "volumes with a decimal": lambda table: table.assign(volume=table.volume.astype(float)),
    "a text of a few": lambda table: table[["ts", *COLUMNS, "ticker"]],
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_last_line_that_can_only_be_whole_needs_no_end(name, tmp_path):
    path = write_csv(tmp_path, WHOLE[name](minute_table(1, 1)))
    whole = read(path)
    text = path.read_bytes().rstrip(b"\n")
    path.write_bytes(text)
    for column in ("ts", "close", "volume"):
        np.testing.assert_array_equal(getattr(read(path), column), getattr(whole, column))
    for lost in (1, 2, 3):
        path.write_bytes(text[:-lost])
        with pytest.raises(
            BarError, match=r"the last line has no newline.*add a newline if the number is complete"
        ):
            read(path)


NO_TABLES = {
    "bytes": (np.random.default_rng(0).bytes(50_000), "is not a text file; unpack it"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "is not a text file"),
}


@pytest.mark.parametrize("name", NO_TABLES)
@pytest.mark.parametrize("command", ["init", "data build"])
def test_what_is_no_table_is_told_without_its_bytes(name, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = minute_table(2, 5)
    for ticker, rows in table.groupby("ticker"):
        write_csv(tmp_path / "bars", rows.drop(columns="ticker"), f"{ticker}.csv")
    content, said = NO_TABLES[name]
    (tmp_path / "bars" / "ZZZ.csv").write_bytes(content)
    (tmp_path / "own.yaml").write_text(
        'data:\n  path: bars\n  source: {kind: files, name_pattern: "{symbol}"}\n'
    )
    with pytest.raises(SystemExit) as caught:
        cli.main([*command.split(), "own.yaml" if "build" in command else "bars"])
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert re.search(rf"ZZZ\.csv.*{said}", printed.err.splitlines()[-1])
    assert printed.err.isprintable() or all(line.isprintable() for line in printed.err.splitlines())
    assert "secret" not in printed.err
    assert not (tmp_path / "bars.yaml").exists()


def test_a_file_that_kept_its_size_and_time_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fintrader.bars.sources.listing._RACY_NS", -1
    )  # as if the file had been there for long
    table = minute_table(1, 5)
    path = write_csv(tmp_path, table)
    stamp = path.stat()
    before = build_market(file_settings(path), cache=tmp_path / "cache")
    assert build_market(file_settings(path), cache=tmp_path / "cache") == before
    text = path.read_text()
    last = text.rindex(",") + 1
    path.write_text(text[:last] + ("7" if text[last] != "7" else "8") + text[last + 1 :])
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stamp.st_size, stamp.st_mtime_ns)
    assert build_market(file_settings(path), cache=tmp_path / "cache") != before


def test_what_may_not_be_read_is_told(tmp_path, monkeypatch):
    """Whoever runs the tests may read everything, so the system's refusal is played."""
    folder = tmp_path / "bars"
    path = write_csv(folder, minute_table(1, 5))

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(args[0]))

    with monkeypatch.context() as closed:
        closed.setattr(os, "scandir", refuse)
        with pytest.raises(DataError, match=r"bars.*(may not be read|Permission denied)"):
            list_files(str(folder))
    with monkeypatch.context() as closed:
        closed.setattr("fintrader.bars.sources.listing.BarFile.open", refuse)
        with pytest.raises(DataError, match="Permission denied"):
            build_market(file_settings(path), cache=tmp_path / "cache")
    with monkeypatch.context() as closed:
        closed.setattr(Path, "is_file", refuse)
        with pytest.raises(ConfigError, match="Permission denied"):
            read_yaml(folder / "own.yaml")


NAMES = [
    "BF.B",
    "BRK.A",
    "BRK.B",
    "NA",
    "TRUE",
    "NO",
    "nan",
    "null",
    "N/A",
    "..",
    "../BRK/B",
    "manifest.json",
    ".lock",
    "0700",
]


def test_whatever_is_no_empty_text_is_a_ticker(tmp_path):
    one = minute_table(1, 5)
    table = pd.concat([one.assign(ticker=name) for name in NAMES], ignore_index=True)
    path = write_csv(tmp_path, table)
    market = make_market(file_settings(path))
    assert market.symbols == tuple(sorted(NAMES))
    cache = tmp_path / "cache"
    build_market(file_settings(path), cache=cache)
    assert verify_store(ObjectStore(cache / "bars")) == []
    assert not [
        file
        for file in tmp_path.rglob("*")
        if file.is_file() and cache not in file.parents and file != path
    ]
    for name in ("NA", "TRUE", "BRK.A"):
        assert make_market(file_settings(path, universe={"symbols": [name]})).symbols == (name,)


def test_a_files_name_keeps_its_dots(tmp_path):
    table = minute_table(1, 5).drop(columns="ticker")
    for name in ("BRK.A.csv", "BRK.B.csv.gz", "NA.csv", "TRUE.CSV"):
        write_csv(tmp_path / "own", table, name)
    table.to_parquet(tmp_path / "own" / "BF.B.parquet", index=False)
    bars = read_files(FilesSettings(name_pattern="{symbol}"), str(tmp_path / "own"))
    assert bars.symbols == ("BF.B", "BRK.A", "BRK.B", "NA", "TRUE")


def test_what_yaml_takes_for_something_else_is_told(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("data:\n  universe:\n    symbols: [NA, 'TRUE', BRK.A]\n")
    chosen = validate(DataSettings, read_yaml(path)["data"], "own.yaml")
    assert chosen.universe.symbols == ("NA", "TRUE", "BRK.A")
    for name in ("TRUE", "NO", "700", "2016-01-04", "' '"):
        path.write_text(f"data:\n  universe:\n    symbols: [NA, {name}]\n")
        with pytest.raises(
            ConfigError,
            match=r"own.yaml: universe.symbols.1: .*(quote the ticker|a ticker is empty)",
        ):
            validate(DataSettings, read_yaml(path)["data"], "own.yaml")
