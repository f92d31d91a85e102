"""Columns that are easily taken for others: the close, the volume, symbols and times."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fintrader.bars.detect import detect
from fintrader.bars.sniff import name_pattern
from fintrader.bars.sources.bar_files import read_files
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.errors import BarError
from tests.bars.tables import COLUMNS, PRICES
from tests.quick import slow_but

DAYS = pd.date_range("2024-01-02", periods=60)
"""Of a market that never closes, whose calendar is quickly found."""


def walk(seed=0, price=100.0):
    """Daily bars, `[60]` rows."""
    random = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(random.normal(0, 0.01, len(DAYS))))
    start = np.append(price, close[:-1]) * np.exp(random.normal(0, 0.003, len(DAYS)))
    table = pd.DataFrame({"open": start, "high": 0.0, "low": 0.0, "close": close}, index=DAYS)
    table["high"] = table[["open", "close"]].max(axis=1) + price * 0.003
    table["low"] = table[["open", "close"]].min(axis=1) - price * 0.004
    table = table.round(2).rename_axis("Date")
    return table.assign(volume=random.integers(1000, 90_000, len(DAYS)))


BARS = walk()
CLOSE, VOLUME = BARS["close"], BARS["volume"]
HEAD = BARS[PRICES]


def read_bars(path, **known):
    found = detect(str(path), calendar="24/7", known=known)
    bars = read_files(found.settings(), str(path)).without_empty().sorted()
    sure = {finding.setting: finding.sure for finding in found.findings}
    return bars, sure.get("columns")


def assert_cells(bars, tables):
    """Every cell of the tables (symbol -> bars) is read, and nothing else."""
    assert [bars.symbols[code] for code in bars.symbol] == [
        symbol for symbol in sorted(tables) for _ in tables[symbol].index
    ]
    whole = pd.concat([tables[symbol] for symbol in sorted(tables)])
    np.testing.assert_array_equal(
        bars.ts.astype("datetime64[ns]").astype("datetime64[D]"),
        whole.index.to_numpy().astype("datetime64[D]"),
    )
    for name in COLUMNS:
        np.testing.assert_allclose(getattr(bars, name), whole[name].to_numpy(float), rtol=1e-9)


NAMED = {
    "last_price": ("sure", BARS.rename(columns={"close": "Close Price"}).assign(**{
        "Last Price": CLOSE + 0.02
    })),
    "settle": ("sure", BARS.rename(columns={"close": "Settle"}).assign(Last=CLOSE - 0.25)),
    "closing": ("sure", BARS.rename(columns={"close": "Closing Price"}).assign(
        Last=CLOSE + 0.02, Price=CLOSE + 0.03
    )),
    "bid_ask": ("assumed", HEAD.assign(
        BidVolume=VOLUME // 3, AskVolume=VOLUME // 2, TotalVolume=VOLUME
    )),
    "buy": ("assumed", HEAD.assign(buy_volume=VOLUME // 3, total_vol=VOLUME)),
    "short": ("assumed", HEAD.assign(**{"Short Volume": 55, "Trade Volume (all)": VOLUME})),
    "cumulative": ("assumed", HEAD.assign(CumVolume=VOLUME.cumsum(), BarVolume=VOLUME)),
    "money": ("assumed", HEAD.assign(**{"Volume USD": VOLUME * CLOSE, "Volume BTC": VOLUME})),
    "constant": ("sure", BARS.assign(change=round((VOLUME / CLOSE).median(), 4))),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(*range(0, len(NAMED), 2), every=NAMED))
def test_the_close_and_the_whole_volume_are_read(name, tmp_path):
    sure, table = NAMED[name]
    table.to_csv(tmp_path / "AAPL.csv")
    bars, said = read_bars(tmp_path / "AAPL.csv")
    assert_cells(bars, {"AAPL": BARS})
    assert said == sure


@pytest.mark.parametrize(
    "others",
    slow_but(
        0,
        every=[
            {"premarket_volume": 170 + VOLUME % 7, "shares": VOLUME},
            {"buy_volume": VOLUME / 9, "sell_volume": VOLUME / 7},
            {"pieces": VOLUME},
        ],
    ),
    ids=["premarket", "parts", "unnamed"],
)
def test_a_volume_without_a_clear_name_is_asked_for(others, tmp_path):
    HEAD.assign(**others).to_csv(tmp_path / "AAPL.csv")
    with pytest.raises(BarError, match=r"which column is the volume\? .*--volume none"):
        detect(str(tmp_path / "AAPL.csv"), calendar="24/7")
    for name, volume in {**others, "none": 0}.items():
        bars, _ = read_bars(tmp_path / "AAPL.csv", columns={"volume": name})
        assert_cells(bars, {"AAPL": BARS.assign(volume=volume)})


def test_counts_of_other_things_are_no_volume(tmp_path):
    others = {"market_cap": VOLUME * 100, "trades": VOLUME, "avg_vol": VOLUME}
    HEAD.assign(**others).to_csv(tmp_path / "AAPL.csv")
    assert_cells(read_bars(tmp_path / "AAPL.csv")[0], {"AAPL": BARS.assign(volume=0)})


@pytest.mark.parametrize("symbols", [("AAPL", "C", "MSFT", "V"), ("LOW", "COST", "HIGH", "OPEN")])
def test_tickers_called_like_fields_are_tickers(symbols, tmp_path):
    closes = {one: walk(at, 100.0 * (1 + at))["close"] for at, one in enumerate(symbols)}
    pd.DataFrame(closes).to_csv(tmp_path / "closes.csv")
    bars, _ = read_bars(tmp_path / "closes.csv")
    assert_cells(
        bars,
        {
            one: pd.DataFrame(dict.fromkeys(PRICES, close)).assign(volume=0)
            for one, close in closes.items()
        },
    )


@pytest.mark.parametrize(
    "table",
    [
        HEAD.set_axis(["O", "H", "L", "C"], axis=1)[["C"]].assign(V=VOLUME, N=VOLUME // 9),
        HEAD.set_axis(["O", "H", "L", "C"], axis=1)[["C"]].assign(VW=(CLOSE + 0.01).round(2)),
    ],
    ids=["counts", "average"],
)
def test_fields_of_one_symbol_are_no_tickers(table, tmp_path):
    table.to_csv(tmp_path / "AAPL.csv")
    bars, _ = read_bars(tmp_path / "AAPL.csv")
    assert bars.symbols == ("AAPL",)
    np.testing.assert_array_equal(bars.close, CLOSE)


FIELDS = ["PX_OPEN", "PX_HIGH", "PX_LOW", "PX_LAST", "PX_VOLUME"]
TWO = {"AAPL US Equity": BARS, "SAP GR Equity": walk(1, 150.0)}


def test_fields_of_two_words_are_read_in_blocks(tmp_path):
    text = pd.concat(TWO.values(), axis=1).to_csv(header=False)
    for dates, corner in (("Date", ""), ("Dates", "AAPL US Equity")):
        first = "" if corner else "AAPL US Equity"
        names = f"{corner},{first},,,,,SAP GR Equity,,,,\n{dates},{','.join(FIELDS * 2)}\n"
        (tmp_path / "blocks.csv").write_text(names + text)
        assert_cells(read_bars(tmp_path / "blocks.csv")[0], TWO)


def test_blocks_with_their_own_times_are_refused(tmp_path):
    blocks = [table.iloc[skip:].reset_index() for skip, table in enumerate(TWO.values())]
    names = ",,,,,,".join(TWO) + ",,,,,\n" + ",".join(["Dates", *FIELDS] * 2) + "\n"
    text = pd.concat(blocks, axis=1).to_csv(header=False, index=False)
    (tmp_path / "blocks.csv").write_text(names + text)
    with pytest.raises(BarError, match="each symbol has its own column of times"):
        detect(str(tmp_path / "blocks.csv"), calendar="24/7")


def test_prices_in_32nds_are_refused_and_thousands_are_not(tmp_path):
    ticks = HEAD.map(lambda price: f"{int(price)}'{int(price * 32) % 32:02d}5")
    ticks.assign(volume=VOLUME).to_csv(tmp_path / "ZN.csv")
    with pytest.raises(BarError, match="has prices in 32nds, like 99'275; write decimals"):
        detect(str(tmp_path / "ZN.csv"), calendar="24/7")
    index = (HEAD * 100).round().assign(volume=VOLUME)
    index.map(lambda cell: f"{cell:,.0f}".replace(",", "'")).to_csv(tmp_path / "SMI.csv")
    assert_cells(read_bars(tmp_path / "SMI.csv")[0], {"SMI": index})


BARE = {
    "average": ("sure", HEAD.assign(vwap=(HEAD.high + HEAD.low) / 2, volume=VOLUME)),
    "trades": ("assumed", HEAD.assign(trades=5 + VOLUME % 40, volume=VOLUME)),
    "interest": ("sure", BARS.assign(interest=200_000 + VOLUME % 100)),
    "fraction": ("assumed", BARS.assign(volume=VOLUME / 64, trades=9000 + VOLUME)),
    "adjusted": ("sure", BARS.assign(adjusted=CLOSE.mask(DAYS[40] > DAYS, CLOSE * 0.97))[
        ["adjusted", *COLUMNS]
    ]),
    "asks": ("sure", pd.concat([HEAD, HEAD + 0.02], axis=1)),
    "value_of_lots": ("sure", HEAD.assign(value=VOLUME * CLOSE / 10, volume=VOLUME)),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(*range(0, len(BARE), 2), every=BARE))
def test_the_volume_without_names_is_no_price(name, tmp_path):
    sure, table = BARE[name]
    table.to_csv(tmp_path / "AAPL.csv", header=False)
    bars, said = read_bars(tmp_path / "AAPL.csv")
    volume = table.get("volume", 0)
    assert_cells(bars, {"AAPL": BARS.assign(volume=volume)})
    assert said == sure


def as_influx():
    rows = BARS.reset_index().assign(Date=DAYS.strftime("%Y-%m-%dT%H:%M:%SZ"), symbol="AAPL")
    text = rows.assign(a="", result="", table=0)[["a", "result", "table", *rows]]
    remarks = [
        "#group" + ",false" * 9,
        f"#datatype,string,long,time{',double' * 5},string",
        "#default",
    ]
    names = f",result,table,_time,{','.join(COLUMNS)},symbol"
    return "\n".join([*remarks, names, text.to_csv(header=False, index=False)])


def with_row_names():
    """As R's `write.table` does: the names lack that of the rows."""
    table = BARS.reset_index()
    table.index += 1
    return ",".join(table.columns) + "\n" + table.to_csv(header=False)


WITH_SYMBOLS = BARS.reset_index().assign(e="NASDAQ", s="AAPL", p=15)
TEXTS = {
    "remarks": as_influx(),
    "row_names": with_row_names(),
    "row_dates": BARS.to_csv().removeprefix("Date,"),
    "empty_cell": BARS.to_csv().replace("\n", ",\n").replace("volume,", "volume"),
    "empty_name": BARS.to_csv().replace("volume\n", "volume,\n"),
    "exchange": WITH_SYMBOLS[["e", "s", "Date", *COLUMNS]].to_csv(header=False, index=False),
    "length": WITH_SYMBOLS[["s", "p", "Date", *COLUMNS]]
    .assign(Date=DAYS.strftime("%Y%m%d"))
    .to_csv(header=False, index=False),
    "short_dates": WITH_SYMBOLS[["s", "Date", "p", *COLUMNS]]
    .assign(Date=DAYS.strftime("%y%m%d"), p="000000")
    .to_csv(header=False, index=False),
    "months": BARS.set_axis(DAYS.strftime("%d-%b-%Y")).to_csv(header=False, sep="|"),
    "currency": BARS.map("${:,.2f}".format).assign(volume=VOLUME.map("{:,}".format)).to_csv(),
    "milliseconds": BARS.rename_axis("timestamp_ms").set_axis(
        (DAYS - pd.Timestamp(0)) // pd.Timedelta("1ms")
    ).to_csv(),
    "number_for_name": BARS.assign(name="2781").to_csv(),
    "words_for_name": BARS.assign(name="Close of day").to_csv(),
    "two_shares": BARS.add_prefix("quote.USD.").assign(time_open=1.0, time_close=2.0).to_csv(),
    "offset_and_name": BARS.set_axis(DAYS.strftime("%Y-%m-%d %H:%M:%S +0000 UTC")).to_csv(),
    "javascript": BARS.set_axis(
        DAYS.strftime("%a %b %d %Y 00:00:00 GMT+0000 (Coordinated Universal Time)")
    ).to_csv(),
    "dotnet": BARS.set_axis([f"/Date({one.value // 10**6}+0000)/" for one in DAYS]).to_csv(),
    "ticks": BARS.set_axis(DAYS.as_unit("ns").asi8 // 100 + 621_355_968 * 10**9).to_csv(),
    "stata": BARS.set_axis(DAYS.strftime("%d%b%Y").str.lower()).to_csv(),
    "sas": BARS.set_axis(DAYS.strftime("%d%b%y:00:00:00").str.upper()).to_csv(),
    "huobi": HEAD.assign(vol=VOLUME * CLOSE, amount=VOLUME, count=9)
    .set_axis(DAYS.as_unit("s").asi8)
    .rename_axis("id")
    .to_csv(),
    "date_for_both": BARS.assign(Time="00:00:00")[["Time", *COLUMNS]]
    .to_csv()
    .replace("Time,", "", 1),
    "korean": BARS.set_axis(DAYS.strftime("%Y%m%d")).rename_axis("일자").assign(
        시간="000000"
    ).to_csv(),
    "weekdays": BARS.assign(Day=DAYS.strftime("%A"), Time="00:00").to_csv(),
    "bids": HEAD.add_suffix("Bid").assign(**HEAD.add_suffix("Ask") + 0.02, volume=VOLUME).to_csv(),
    "units_of_china": BARS.assign(volume=(VOLUME / 1e4).map("{:.4f}万".format)).to_csv(),
    "thousands": BARS.to_csv(sep=";", decimal=",").replace("\n", " Tsd.\n").replace(
        "volume Tsd.", "volume"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(*range(0, len(TEXTS), 3), every=TEXTS))
def test_lines_of_names_symbols_and_times(name, tmp_path):
    (tmp_path / "AAPL.csv").write_text(TEXTS[name])
    volume = VOLUME * (1000 if name == "thousands" else 1)
    assert_cells(read_bars(tmp_path / "AAPL.csv")[0], {"AAPL": BARS.assign(volume=volume)})


def test_names_beyond_the_columns_are_no_header(tmp_path):
    text = BARS.to_csv().replace("Date,", "note,Date,")
    (tmp_path / "AAPL.csv").write_text(text)
    assert_cells(read_bars(tmp_path / "AAPL.csv")[0], {"AAPL": BARS})


def test_symbols_without_a_header_may_be_numbers(tmp_path):
    tables = {"000001": BARS, "600000": walk(1), "14D": walk(2)}
    for symbols in (("000001", "600000"), ("14D", "600000")):
        rows = pd.concat({one: tables[one] for one in symbols}).reset_index(names=["s", "Date"])
        rows.sort_values("Date").to_csv(tmp_path / "all.csv", header=False, index=False)
        assert_cells(read_bars(tmp_path / "all.csv")[0], {one: tables[one] for one in symbols})


@pytest.mark.parametrize("codes", [("1301", "1305", "1332"), ("1301", "1302", "1303")])
def test_numbers_that_could_be_clock_times_may_be_symbols(codes, tmp_path):
    tables = {one: walk(at) for at, one in enumerate(codes)}
    rows = pd.concat(tables).reset_index(names=["s", "Date"])[["Date", "s", *COLUMNS]]
    rows["Date"] = rows.Date.dt.strftime("%Y%m%d")
    rows.to_csv(tmp_path / "all.csv", header=False, index=False)
    assert_cells(read_bars(tmp_path / "all.csv")[0], tables)


CLOSES = {one: walk(at, 100.0 * (1 + at)) for at, one in enumerate(("Apple", "Nvidia"))}
WIDE = {
    "closes": ("{}_close", ["close"]),
    "volumes": ("{} Volume", ["close", "volume"]),
    "names": ("{}", ["close"]),
}


@pytest.mark.parametrize("name", WIDE)
def test_closes_of_each_symbol_are_all_prices(name, tmp_path):
    called, columns = WIDE[name]
    table = pd.concat({one: part[columns] for one, part in CLOSES.items()}, axis=1)
    table.columns = [
        called.format(symbol).replace("Volume" if field == "close" else "-", field)
        for symbol, field in table.columns
    ]
    path = tmp_path / "closes.csv"
    table.reset_index().to_csv(path)
    known = {}
    if name == "names":
        with pytest.raises(BarError, match=r"each column holds the closes .* --close '{symbol}'"):
            detect(str(path), calendar="24/7")
        known = {"columns": {"close": "{symbol}"}}
    expected = {
        one: part.assign(**dict.fromkeys(PRICES, part.close)).assign(
            volume=part.volume if "volume" in columns else 0
        )
        for one, part in CLOSES.items()
    }
    assert_cells(read_bars(path, **known)[0], expected)


def test_a_given_time_holds_where_names_share_a_word(tmp_path):
    table = BARS.add_prefix("price_").rename(columns={"price_volume": "volume_traded"})
    table = table.assign(until=DAYS + pd.Timedelta("1D")).rename_axis("from")
    table.to_csv(tmp_path / "BTC.csv")
    assert_cells(read_bars(tmp_path / "BTC.csv", columns={"ts": "from"})[0], {"BTC": BARS})


COUNTS = {
    "excel": (25_569, "sure"),
    "days since 1904-01-01": (24_107, "sure"),
    "days since 1960-01-01": (3653, "sure"),
    "days since 1970-01-01": (0, "sure"),
    "days since -0001-12-31": (719_529, "sure"),
    "days since 0000-12-31": (719_163, "sure"),
}


@pytest.mark.parametrize("name", slow_but(*range(0, 12, 2), every=COUNTS))
def test_counts_of_days_are_told_apart_by_their_weekends(name, tmp_path):
    first, sure = COUNTS[name]
    table = BARS[DAYS.dayofweek < 5]
    count = (table.index - pd.Timestamp(0)).days + first
    table.set_axis(count).rename_axis("date").to_csv(tmp_path / "AAPL.csv")
    found = detect(str(tmp_path / "AAPL.csv"), calendar="24/5")
    noted = {finding.setting: finding for finding in found.findings}["time_format"]
    assert (noted.value, noted.sure) == (name, sure)
    bars = read_files(found.settings(), str(tmp_path / "AAPL.csv"))
    assert_cells(bars, {"AAPL": table})


def test_counts_that_the_data_cannot_place_are_asked_for(tmp_path):
    path = tmp_path / "AAPL.csv"
    count = (DAYS - pd.Timestamp(0)).days  # of a market that never closes
    BARS.set_axis(count).rename_axis("date").to_csv(path)
    with pytest.raises(BarError, match=r"--time-format 'days since 1970-01-01'"):
        detect(str(path), calendar="24/7")
    bars, _ = read_bars(path, time_format="days since 1970-01-01")
    assert_cells(bars, {"AAPL": BARS})
    seconds = (count + 3653) * 86_400
    BARS.set_axis(seconds).rename_axis("date").to_csv(path)
    bars, _ = read_bars(path, time_format="seconds since 1960-01-01")
    assert_cells(bars, {"AAPL": BARS})


@pytest.mark.parametrize("written", ["%Y-%m-%d %z %z", "%Q"])
def test_a_format_that_cannot_be_is_refused(written, tmp_path):
    BARS.to_csv(tmp_path / "AAPL.csv")
    with pytest.raises(BarError, match=r"has no times in .*; correct data.source.time_format"):
        read_bars(tmp_path / "AAPL.csv", time_format=written)


CALLED = {
    "Download Data - STOCK_US_XNAS_AAPL": "AAPL",
    "aapl_us_d": "aapl",
    "EUREX_FGBLH2024": "FGBLH2024",
    "Bitcoin_1_1_2024-3_20_2024_historical_data_coinmarketcap": "Bitcoin",
    "data": "data",
}
"""Name of a file -> its symbol."""


@pytest.mark.parametrize("name", CALLED)
def test_the_symbol_of_a_single_file_is_no_usual_word(name):
    path = f"{name}.csv"
    pattern = name_pattern([BarFile(path, "csv", path)], needs_date=False)
    assert FilesSettings(name_pattern=pattern).read_name(path) == (CALLED[name], None)


@pytest.mark.parametrize("name", ["HistoricalData_1709654321000", "download"])
def test_the_name_of_a_download_is_no_symbol(name, tmp_path):
    path = tmp_path / f"{name}.csv"
    BARS.to_csv(path)
    with pytest.raises(BarError, match=r"neither a column nor the file's name .* --symbol"):
        detect(str(path), calendar="24/7")
    assert_cells(read_bars(path, symbol="AAPL")[0], {"AAPL": BARS})


@pytest.mark.parametrize("ending", ["dat", "asc"])
def test_text_is_read_by_any_usual_ending(ending, tmp_path):
    BARS.to_csv(tmp_path / f"AAPL.{ending}")
    assert_cells(read_bars(tmp_path / f"AAPL.{ending}")[0], {"AAPL": BARS})


def test_another_column_of_times_is_offered(tmp_path):
    path = tmp_path / "x.csv"
    two = pd.concat({"A": BARS, "B": walk(1)}, names=["symbol"]).reset_index()
    fetched = DAYS[np.arange(len(DAYS)) // 20]
    two.assign(timestamp=np.tile(fetched.astype(str), 2)).to_csv(path, index=False)
    with pytest.raises(BarError, match="if another one holds the times: --ts COLUMN"):
        detect(str(path), calendar="24/7")
    assert_cells(read_bars(path, columns={"ts": "Date"})[0], {"A": BARS, "B": walk(1)})


def test_numbers_of_rows_are_no_symbol_next_to_closes(tmp_path):
    table = pd.DataFrame({one: part.close for one, part in zip("XY", CLOSES.values(), strict=True)})
    table.reset_index().rename_axis("id").to_csv(tmp_path / "closes.csv")
    with pytest.raises(BarError, match=r"column 'id' counts rows.*; remove it"):
        detect(str(tmp_path / "closes.csv"))
    table = table.reset_index(names="date")
    table.index = table.index.astype("int64")  # stored as the last column, without a name
    table.to_parquet(tmp_path / "closes.parquet", index=True)
    assert "__index_level_0__" in pq.read_schema(tmp_path / "closes.parquet").names
    assert detect(str(tmp_path / "closes.parquet")).symbols == ("X", "Y")
