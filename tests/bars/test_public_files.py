"""Layouts of files that people publish: names of columns, marks of empty cells, calendars and
clocks that `init` once missed."""

import datetime as dt
import itertools
import json
import zipfile

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.detect import detect
from fintrader.bars.sniff import name_pattern
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.errors import BarError
from fintrader.market.build import make_market
from fintrader.market.load import load_market
from fintrader.market.starter import write_config
from tests.bars.tables import COLUMNS, PRICES, minute_table, write_csv
from tests.bars.test_detect import built, findings, walk_on
from tests.quick import slow_but


@pytest.fixture(scope="module")
def days():
    """Daily bars of 80 sessions of XNAS, with four different prices and dates as text."""
    table = walk_on("XNAS", dt.date(2024, 1, 2), 120, 390)[:80]
    table["ts"] = table.ts.dt.strftime("%Y-%m-%d")
    return table.assign(
        open=table.close.shift(fill_value=80.0), high=table.close + 3, low=table.close - 3
    )


@pytest.fixture
def write(tmp_path):
    """Write a table the way a user would; returns the path of its file."""

    def written(table, name="AAA.csv", **how):
        return str(write_csv(tmp_path, table, name, **how))

    return written


@pytest.fixture
def assert_market(days, tmp_path):
    """The market of a file has the opens, closes and volumes of the days."""

    def check(path, days=days):
        market = make_market(built(detect(str(path)), tmp_path))
        assert market.num_bars == len(days)
        for name in ("open", "close", "volume"):
            assert np.allclose(getattr(market, name)[:, 0], days[name], rtol=1e-6), name

    return check


LAYOUTS = {
    "spaces before times": lambda days: days.assign(ts="  " + days.ts),
    "spaces behind times": lambda days: days.assign(ts=days.ts + "\u00a0"),
    "times without their zeros": lambda days: days.assign(
        ts=[f"{day.year}-{day.month}-{day.day} 0:0:0" for day in pd.to_datetime(days.ts)]
    ),
    "midnights on some days": lambda days: days.assign(
        ts=days.ts.where(days.index < 70, days.ts + " 00:00:00")
    ),
    "years of Taiwan": lambda days: days.assign(
        ts=days.ts.str.replace("2024", "113").str.replace("-", "/")
    ),
    "a Persian date beside the Gregorian": lambda days: days.set_axis(
        ["Gregorian Date", *COLUMNS], axis=1
    ).assign(**{"Persian Date": days.ts.str.replace("2024-", "1402/").str.replace("-", "/")}),
    "times that Excel rounded": lambda days: days.assign(Unix="1.68705E+12", Date=days.ts)[
        ["Unix", "Date", *COLUMNS]
    ],
    "stars behind names": lambda days: days.rename(columns={"open": "Open*", "close": "Close**"}),
    "the last price": lambda days: days.rename(columns={"close": "LAST_PRICE"}),
    "adjusted closes in brackets": lambda days: days.assign(**{"Close (adj.)": days.close * 0.9})[
        ["ts", *PRICES[:3], "Close (adj.)", "close", "volume"]
    ],
    "prices of the day before": lambda days: days.join(
        days[COLUMNS].shift(1).bfill(), rsuffix="_yes"
    ),
    "prices of one day": lambda days: days.join(days[COLUMNS].shift(1).bfill(), rsuffix="_1d"),
    "shares traded": lambda days: days.rename(columns={"volume": "Shares Traded "}).assign(
        Turnover=days.volume * days.close
    ),
    "pieces and their value": lambda days: days.set_axis(
        ["Datum", "Erster", "Hoch", "Tief", "Schlusskurs", "Volumen"], axis=1
    ).assign(Stuecke=days.volume, Volumen=days.volume * days.close),
    "tweets and bitcoins": lambda days: days.assign(
        Tweet_vol=np.arange(len(days)) % 7 + 900.0, Volume_BTC=days.volume
    )[["ts", "Tweet_vol", *PRICES, "Volume_BTC"]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_layouts_of_tables_are_read(layout, days, write, assert_market):
    assert_market(write(LAYOUTS[layout](days)))


@pytest.mark.parametrize(
    "names",
    slow_but(
        0,
        2,
        4,
        every=[
            [
                "<DTYYYYMMDD>",
                "<OpenFixed>",
                "<HighFixed>",
                "<LowFixed>",
                "<CloseFixed>",
                "<Volume>",
            ],
            ["Data", "Otwarcie", "Najwyzszy", "Najnizszy", "Zamkniecie", "Wolumen"],
            ["Data", "Otwarcie", "Max.", "Min.", "Ostatnio", "Wol."],
            ["Tanggal", "Pembukaan", "Tertinggi", "Terendah", "Terakhir", "Vol."],
            ["date", "$open", "$high", "$low", "$close", "$volume"],
            ["Start Date", "open", "highest", "lowest", "close", "No.of Shares"],
            ["candle_date_time_utc", "open", "high", "low", "trade_price", "volume"],
            ["date", "open", "high", "low", "close", "volumn"],
            ["날짜", "오픈", "고가", "저가", "종가", "거래량"],
            ["Date", "OPEN_PRC", "HIGH_1", "LOW_1", "TRDPRC_1", "ACVOL_UNS"],
            ["일자", "시가", "고가", "저가", "현재가", "거래량"],
            ["Dato", "Åben", "Højeste", "Laveste", "Seneste", "Vol."],
            ["วันเดือนปี", "เปิด", "สูงสุด", "ต่ำสุด", "ล่าสุด", "ปริมาณ"],
        ],
    ),
)
def test_more_names_of_columns_are_known(names, days, write, assert_market):
    assert_market(write(days.set_axis(names, axis=1)))


def test_adjusted_closes_are_no_volume(days, write, assert_market):
    factor = np.where(np.arange(len(days)) < 40, 0.97, 1.0)
    table = days.assign(adjusted=days.close * factor)[["ts", *PRICES, "adjusted", "volume"]]
    assert_market(write(table, header=False))


@pytest.mark.parametrize(
    ("name", "is_volume"),
    slow_but(
        0,
        2,
        3,
        6,
        every=[("Trade Vol.", True), ("volume_btc", True), ("total_traded_volumn", True)]
        + [
            (name, False)
            for name in ("Tweet_vol", "vol_change", "Volume MA20", "volatility", "avg_vol")
        ],
    ),
)
def test_a_volume_is_that_of_the_bar(name, is_volume, days, tmp_path):
    path = write_csv(
        tmp_path,
        days[["ts", *PRICES, "volume"]]
        .set_axis([*"a", *PRICES, name], axis=1)
        .rename(columns={"a": "date"}),
        "AAA.csv",
    )
    assert detect(str(path)).has_volume is is_volume


def test_a_column_of_ok_is_no_symbol(days, tmp_path, assert_market):
    path = write_csv(
        tmp_path, days.drop(columns="ticker", errors="ignore").assign(s="ok"), "XU.csv"
    )
    found = detect(str(path))
    assert found.symbols == ("XU",)
    assert_market(path)


def test_blank_lines_between_rows_are_left_out(days, tmp_path, assert_market):
    path = write_csv(tmp_path, days)
    path.write_text(path.read_text().replace("\n", "\n \n"))
    assert_market(path)


def test_a_day_of_zeros_without_volume_is_a_day_without_trade(days, tmp_path, write):
    table = days.copy()
    table.loc[[7, 40], ["open", "high", "low", "volume"]] = 0.0
    market = make_market(built(detect(write(table)), tmp_path))
    assert (~market.tradable[:, 0]).nonzero().flatten().tolist() == [7, 40]
    table.loc[7, "volume"] = 9.0  # something traded, at no price
    with pytest.raises(BarError, match=r"0\.0 is no price"):
        detect(write(table))


def test_a_point_is_an_empty_cell(days, tmp_path, write):
    table = days[["ts", "close"]].astype(str)
    table.loc[30, "close"] = "."
    known = detect(write(table))
    assert make_market(built(known, tmp_path)).tradable.sum() == len(days) - 1


def test_rows_by_date_stand_beside_what_they_are(days, tmp_path, assert_market):
    rows = {row["ts"]: {name: row[name] for name in COLUMNS} for row in days.to_dict("records")}
    path = tmp_path / "AAA.json"
    path.write_text(json.dumps({"Meta Data": {"1. Information": "Daily Prices"}, **rows}))
    assert_market(path)


def test_names_of_another_width_are_no_names(days, tmp_path, assert_market):
    path = write_csv(tmp_path, days)
    first, rest = path.read_text().split("\n", 1)
    path.write_text(f"{first}\nall prices, in USD\n{rest}")
    assert_market(path)


def test_rows_of_several_symbols_ask_for_their_column(days, write):
    parts = [days.assign(which=name, close=days.close + add) for add, name in enumerate("abc")]
    path = write(pd.concat(parts)[["ts", "which", *COLUMNS]])
    with pytest.raises(BarError, match="--symbol COLUMN"):
        detect(path)
    assert len(detect(path, known={"symbol": "which"}).symbols) == 3


def test_a_given_close_is_taken_alone_among_prices_of_other_kinds(days, write):
    averages = {f"average_{count}": days.close + count / 10 for count in range(4)}
    path = write(days[["ts", "close"]].assign(**averages))
    with pytest.raises(BarError, match="--close alone"):
        detect(path)
    assert detect(path, known={"columns": {"close": "close"}}).settings().columns["high"] == (
        "close"
    )


def test_always_open_calendars_are_not_sure_where_days_are_missing(write):
    table = walk_on("24/5", dt.date(2023, 1, 2), 500, 1440)
    table["ts"] = table.ts.dt.date
    kept = table[(np.arange(len(table)) + 7) % 16 > 0]
    noted = findings(write(kept))["calendar"]
    assert (noted.value, noted.sure) == ("24/5", "assumed")
    assert findings(write(table, "BBB.csv"))["calendar"].sure == "sure"


def test_a_market_of_some_hours_is_no_market_of_all_hours(write):
    table = walk_on("XEUR", dt.date(2018, 2, 14), 50, 15, "Europe/Berlin")
    table = table[table.ts.dt.hour >= 8]
    noted = findings(write(table, "GER30.csv"))
    assert (noted["calendar"].value, noted["calendar"].sure) == ("XEUR", "assumed")
    assert noted["timezone"].value == "Europe/Berlin"


def test_times_of_metatrader_count_by_its_servers_clock(tmp_path, write):
    table = walk_on("CMES", dt.date(2024, 2, 5), 60, 15, "Europe/Athens")
    times = (table.ts - pd.Timestamp(0)) // pd.Timedelta("1s")
    table = table.assign(time=times, tick_volume=table.volume, spread=5, real_volume=0)
    names = ["time", *PRICES, "tick_volume", "spread", "real_volume"]
    found = detect(write(table[names], "XAUUSD_M15.csv"))
    assert found.source["time_format"] == "epoch_local"
    assert found.source["timezone"] == "Europe/Athens"
    market = make_market(built(found, tmp_path))
    first = table.ts.iloc[0].tz_localize("Europe/Athens").tz_convert("UTC")
    assert market.timestamps()[0] == first.tz_localize(None)


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("EURUSD60", "EURUSD"),
        ("EURUSD1440", "EURUSD"),
        ("DAT_MT_EURUSD_M1_201710", "EURUSD"),
        ("NIFTY50", "NIFTY50"),
        ("AAPL.scid_BarData", "AAPL"),
        ("AAPL_INTRA_DAY", "AAPL"),
        ("0050_TW_daily", "0050_TW"),
        ("AAPL历史数据", "AAPL"),
        ("AAPL Datos históricos", "AAPL"),
        ("downloaded_data_ETH-USD", "ETH-USD"),
        ("D05.SI_5Y_history", "D05.SI"),
        ("AAPL_6mo_1d", "AAPL"),
        ("AAPL.dly", "AAPL"),
        ("Quote-Equity-INFY-EQ-05-03-2023-to-05-03-2024", "INFY"),
        ("wkn_716460_historic", "716460"),
        ("NASDAQ_DLY_AAPL, 1D", "AAPL"),
        ("huobi_btcusdt_15min", "btcusdt"),
        ("Binance-ETH-USD-PT5M-20230313_20230315", "ETH-USD"),
    ],
)
def test_lengths_of_bars_are_no_part_of_symbols(name, symbol):
    pattern = name_pattern([BarFile(f"{name}.csv", "csv", f"{name}.csv")], False)
    assert FilesSettings(name_pattern=pattern).read_name(f"{name}.csv") == (symbol, None)


def test_one_space_may_part_columns_but_not_several(days, tmp_path, write, assert_market):
    assert_market(write(days, "AAA.txt", sep=" "))
    (tmp_path / "BBB.txt").write_text(days.to_string(index=False))
    with pytest.raises(BarError, match="separated by several spaces"):
        detect(str(tmp_path / "BBB.txt"))


def test_spaces_around_symbols_and_lines_of_commas_are_nothing(days, tmp_path, assert_market):
    path = write_csv(tmp_path, days.assign(symbol="AAA   ")[["symbol", "ts", *COLUMNS]], "all.csv")
    path.write_text(path.read_text() + ",,,,,,\n,,,,,,\n")
    assert findings(str(path))["symbols"].why == "AAA"
    assert_market(path)


def test_the_first_of_two_equal_names_in_a_workbook_counts(days, tmp_path, assert_market):
    pytest.importorskip("openpyxl")
    table = days.assign(again=days.close * 0.98)[["ts", *COLUMNS, "again"]]
    path = tmp_path / "AAA.xlsx"
    table.set_axis([*table.columns[:-1], "close"], axis=1).to_excel(path, index=False)
    assert_market(path)


def test_json_columns_of_several_lengths_are_named(days, tmp_path):
    columns = {name: days[name].tolist() for name in ("ts", *COLUMNS)}
    (tmp_path / "AAA.json").write_text(json.dumps({**columns, "volume": [1, 2]}))
    with pytest.raises(BarError, match="its columns have several lengths"):
        detect(str(tmp_path / "AAA.json"))


def test_hours_of_which_some_begin_late_are_hours(write):
    hours = pd.date_range("2024-01-07 22:00", "2024-03-29 20:00", freq="h")
    hours = hours[(hours.day_of_week < 4) | ((hours.day_of_week == 4) & (hours.hour < 22))]
    late = hours.hour.isin([22, 23]).astype("int64") * pd.Timedelta(minutes=5)
    close = 1.1 + 0.01 * np.sin(np.arange(len(hours)))
    table = pd.DataFrame({"ts": (hours + late).strftime("%Y-%m-%d %H:%M"), "volume": 100.0})
    table = table.assign(**dict.fromkeys(PRICES, close))
    length = findings(write(table, "EURUSD60.csv"))["bar_minutes"]
    assert (length.value, length.sure) == ("60", "likely")


@pytest.mark.parametrize("zone", slow_but(0, 2, every=["Asia/Tokyo", "Asia/Kolkata", "Etc/GMT-2"]))
def test_hours_that_do_not_begin_with_those_of_utc_ask_for_a_zone(zone, tmp_path, write):
    step = 60 if zone == "Asia/Kolkata" else 240
    ts = pd.date_range("2024-01-01", periods=408, freq=f"{step}min", tz="UTC").tz_convert(zone)
    table = pd.DataFrame({"ts": ts.strftime("%Y-%m-%d %H:%M:%S"), "volume": 1.0})
    table = table.assign(**dict.fromkeys(PRICES, np.arange(100.0, 508.0)))
    path = write(table, "BTCUSDT.csv")
    with pytest.raises(BarError, match=rf"multiples of their length in UTC; .*--zone.*{zone}"):
        detect(path)
    market = make_market(built(detect(path, known={"timezone": zone}), tmp_path))
    assert np.array_equal(market.close[:, 0], table.close)


def test_the_calendar_and_zone_that_a_refusal_names_leave_rows_out(write):
    table = walk_on("XBOM", dt.date(2024, 1, 1), 60, 5, "Asia/Kolkata")
    after = table.groupby(table.ts.dt.date).tail(2)
    after = after.assign(ts=after.ts + pd.Timedelta(minutes=10))
    table = pd.concat([table, after], ignore_index=True).sort_values("ts")
    path = write(table, "NIFTY.csv")
    with pytest.raises(BarError, match="or --calendar XBOM --zone Asia/Kolkata to leave"):
        detect(path)
    known = {"timezone": "Asia/Kolkata"}
    assert detect(path, calendar="XBOM", known=known).calendar == "XBOM"


def test_times_of_day_called_timestamp_stand_beside_dates(write):
    table = walk_on("XNAS", dt.date(2024, 1, 2), 8, 390)
    clock = table.ts.dt.strftime("%H:%M:%S")
    table = table.assign(ts=table.ts.dt.strftime("%Y%m%d"), Timestamp=clock)
    table = table.rename(columns={"ts": "Date"})[["Date", "Timestamp", *COLUMNS]]
    found = detect(write(table, "AAPL.csv"))
    assert found.source["columns"] == {"date": "Date", "ts": "Timestamp"}


def test_pieces_of_which_most_are_0_are_the_volume(days, write, assert_market):
    traded = days.assign(volume=days.volume.where(days.index % 4 == 0, 0))
    table = traded.assign(quoteVolume=traded.volume, volume=traded.volume * traded.close)
    names = ["ts", *COLUMNS, "quoteVolume"]
    assert_market(write(table[names]), traded)


@pytest.mark.parametrize("sums", ["days", "times"])
def test_volumes_that_rise_from_bar_to_bar_are_refused(sums, write):
    table = walk_on("XNAS", dt.date(2024, 1, 16), 20, 15).assign(volume=100)
    by = table.ts.dt.date if sums == "days" else table.ts.dt.year
    table["volume"] = table.volume.groupby(by).cumsum()
    path = write(table)
    with pytest.raises(BarError, match=r"rise from bar to bar.*--volume none"):
        detect(path)
    assert not detect(path, known={"columns": {"volume": "none"}}).has_volume


def test_names_of_cells_that_no_row_has_are_cut_off(days, tmp_path, assert_market):
    table = days.assign(split="", dividend="")
    table.loc[40, "dividend"] = "0.5"
    path = write_csv(tmp_path, table)
    path.write_text(path.read_text().replace("dividend", "dividend,change,percent", 1))
    assert_market(path)


def test_marks_of_finished_bars_are_no_symbols(days, tmp_path):
    rows = days.assign(last="true").to_numpy().tolist()
    (tmp_path / "AAA.json").write_text(json.dumps(rows))
    assert detect(str(tmp_path / "AAA.json")).symbols == ("AAA",)


def test_spaces_may_part_thousands_before_a_decimal_comma(days, write, assert_market):
    text = days.copy()
    for name in PRICES:
        cells = (days[name] + 4000).map("{:,.2f}".format)
        text[name] = cells.str.translate(str.maketrans(",.", "\u202f,"))
    shifted = days.assign(open=days.open + 4000, close=days.close + 4000)
    assert_market(write(text, sep=";"), shifted.round(2))


def test_a_decimal_comma_may_show_late(days, write, assert_market):
    """Prices like 1,234 for sixty rows, and then one like 1,2."""
    small = days.copy()
    for name in PRICES:
        small[name] = (1 + days[name] / 1000).round(3)
        small.loc[small.index < 60, name] += 0.001 * (small[name] * 100 % 1 < 1e-6)
    text = small.astype(str)
    assert (text.close[:60].str.len() == 5).all()
    text[PRICES] = text[PRICES].apply(lambda column: column.str.replace(".", ","))
    text.loc[70, "close"] = "1,1"
    small.loc[70, "close"] = 1.1
    assert_market(write(text, sep=";"), small)


def test_midnight_in_a_zone_prefers_its_calendar(write):
    table = walk_on("BVMF", dt.date(2025, 6, 23), 22, 390, "America/Sao_Paulo")
    table["ts"] = table.ts.dt.normalize().dt.tz_localize("America/Sao_Paulo")
    noted = findings(write(table.drop_duplicates("ts"), "IBOV.csv"))["calendar"]
    assert (noted.value, noted.sure) == ("BVMF", "assumed")


def test_years_of_closes_without_volume_are_days_without_trade(days, tmp_path, write):
    cells = days.astype(str)
    cells.loc[:29, ["open", "high", "low"]] = ""
    cells.loc[:29, "volume"] = "0"
    cells.loc[50, ["open", "high", "low"]] = ""
    found = detect(write(cells, "SAP.csv"))
    assert found.first == dt.date.fromisoformat(days.ts[30])
    write_config(found, tmp_path / "sap.yaml")


def test_parted_dates_are_refused_with_a_remedy(days, write):
    parts = days.ts.str.split("-", expand=True).set_axis(["Year", "Month", "Day"], axis=1)
    path = write(pd.concat([parts, days[COLUMNS]], axis=1), "EURGBP.csv")
    with pytest.raises(BarError, match=r"\(Year, Month, Day\); join them into one column"):
        detect(path)


def test_of_names_in_two_languages_the_last_count(days, tmp_path, assert_market):
    lines = [",CSI 300,,,,", ",000300.SH,,,,", "日期,开盘价,最高价,最低价,收盘价,成交量"]
    text = days.to_csv(index=False)
    path = tmp_path / "000300.csv"
    path.write_text("\n".join([*lines, text]), encoding="utf-8")
    assert_market(path)


def test_a_blank_file_is_left_out_of_a_folder(days, tmp_path):
    folder = tmp_path / "bars"
    folder.mkdir()
    for name in ("AAA", "BBB"):
        write_csv(folder, days, f"{name}.csv")
    (folder / "ABX.csv").touch()
    found = findings(str(folder))
    assert found["symbols"].why == "AAA, BBB"
    assert "ABX.csv: holds no row" in found["left out"].why
    market = make_market(built(detect(str(folder)), tmp_path))
    assert market.symbols == ("AAA", "BBB")
    with pytest.raises(BarError, match="holds no row; check the file"):
        detect(str(folder / "ABX.csv"))


def test_a_kind_of_prices_behind_a_prefix_is_no_symbol(days, tmp_path, assert_market):
    names = {name: f"etl:adj_{name}" for name in PRICES} | {"volume": "price:成交股數"}
    table = days.rename(columns=names)
    folder = tmp_path / "bars"
    for name in ("1101", "2330"):
        path = write_csv(folder, table, f"{name}.csv")
    assert detect(str(folder)).symbols == ("1101", "2330")
    assert_market(path)


def test_an_empty_first_row_is_no_line_of_names(days, write):
    cells = days.astype(str)
    cells.loc[0, COLUMNS] = "null"
    found = detect(write(cells, "2330.csv"))
    assert found.symbols == ("2330",)
    assert found.first == dt.date.fromisoformat(days.ts[1])


def test_dates_of_two_marks_are_refused_with_a_remedy(days, write):
    ts = pd.to_datetime(days.ts)
    written = ts.dt.strftime("%m-%d-%Y").where(ts.dt.day < 13, ts.dt.strftime("%m/%d/%Y"))
    path = write(days.assign(ts=written), "WAAREE.csv")
    with pytest.raises(BarError, match="'01-02-2024' and '01/16/2024' are written in two ways"):
        detect(path)


def test_no_bar_at_the_open_and_a_print_after_the_close_tell_ends(write):
    table = walk_on("XMOS", dt.date(2018, 1, 3), 20, 5, "Europe/Moscow")
    table["ts"] += pd.Timedelta(minutes=5)
    last = table.groupby(table.ts.dt.date).tail(1)
    after = last.assign(ts=last.ts + pd.Timedelta(minutes=5), high=last.close, low=last.close)
    table = pd.concat([table, after.assign(open=last.close)], ignore_index=True).sort_values("ts")
    label = findings(write(table, "SBER.csv"))["label"]
    assert (label.value, label.sure) == ("end", "sure")


def test_hours_of_which_a_day_s_first_begins_at_the_open_are_hours_of_the_clock(tmp_path, write):
    table = walk_on("XNAS", dt.date(2024, 1, 2), 40, 30)
    hour = table.ts.dt.floor("h")
    how = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    table = table.groupby(hour).agg({"ts": "first", **how})
    found = detect(write(table, "AAPL.csv"))
    assert (found.bar_minutes, found.hours) == (60, "clock")
    market = make_market(built(found, tmp_path))
    assert np.allclose(market.close[:, 0], table.close, rtol=1e-6)


def test_the_clock_of_brazil_is_none_of_currencies(write):
    hours = pd.date_range("2020-07-26 19:00", "2020-08-21 17:00", freq="h")
    day, hour = hours.day_of_week, hours.hour
    hours = hours[(day < 4) | ((day == 4) & (hour <= 17)) | ((day == 6) & (hour >= 19))]
    close = 1.1 + 0.01 * np.sin(np.arange(len(hours)))
    table = pd.DataFrame({"ts": hours.strftime("%Y-%m-%d %H:%M:%S"), "volume": 0.0})
    table = table.assign(**dict.fromkeys(PRICES, close))
    zone = findings(write(table, "EURUSD.csv"))["timezone"]
    assert (zone.value, zone.sure) == ("America/New_York", "assumed")


def test_hours_that_begin_at_no_zone_s_hours_name_no_zone(write):
    ts = pd.date_range("2024-01-01 00:16", periods=400, freq="h").strftime("%Y-%m-%d %H:%M:%S")
    table = pd.DataFrame({"ts": ts, "volume": 1.0})
    table = table.assign(**dict.fromkeys(PRICES, np.arange(100.0, 500.0)))
    with pytest.raises(
        BarError, match="in UTC; name another column of times with --ts, or get bars"
    ):
        detect(write(table, "BTCUSDT.csv"))


def test_counts_that_may_be_the_volume_are_asked_for(days, write):
    table = days.rename(columns={"volume": "Pieces"})
    table = table.assign(Trend=days.close / 50, Number=np.arange(100, 100 + len(days)))
    for name in ("Pieces", "count"):
        path = write(table.rename(columns={"Pieces": name}))
        with pytest.raises(BarError, match=rf"which column is the volume\? It has .*{name}"):
            findings(path)
    bare = write(table.drop(columns="Pieces"), "BBB.csv")
    assert findings(bare)["columns"].sure == "sure"


def test_clocks_of_six_digits_without_names_are_times(tmp_path, write):
    table = walk_on("XNAS", dt.date(2024, 2, 26), 19, 15, "America/New_York")
    stamps = table.ts.dt.strftime("%Y%m%d"), table.ts.dt.strftime("%H%M%S")
    parts = pd.concat([*stamps, table[COLUMNS]], axis=1)
    found = detect(write(parts, header=False))
    assert (found.bar_minutes, found.source["time_format"]) == (15, "%Y%m%d %H%M%S")
    assert make_market(built(found, tmp_path)).num_bars == len(table)


def test_volumes_of_minus_one_are_none(days, write):
    found = detect(write(days.assign(volume=-1.0)))
    assert found.source["columns"]["volume"] is None


def test_a_row_with_too_few_cells_is_refused_with_a_remedy(days, tmp_path, assert_market):
    path = write_csv(tmp_path, days)
    header, first, *others = path.read_text().splitlines()
    lines = [header, first.rpartition(",")[0], *others]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BarError, match=r"Row #2: Expected 6 .* correct or remove this row"):
        detect(str(path))
    path.write_text("\n".join([header, *others]) + "\n")
    assert_market(path, days[1:])


def test_files_of_several_kinds_are_refused_until_some_are_chosen(days, tmp_path):
    plain = days
    first = tmp_path / "times"
    dotted = plain.assign(ts=days.ts.str.replace("-", "."))
    for name in ("AAA_x", "BBB_x"):
        write_csv(first, dotted, f"{name}.csv")
    write_csv(first, dotted.assign(ts=dotted.ts + " 13:00"), "CCC_y.csv")
    second = tmp_path / "lengths"
    for name in ("AAA_x", "BBB_x"):
        write_csv(second, plain, f"{name}.csv")
    minutes = walk_on("XNAS", dt.date(2024, 1, 2), 1, 30, "America/New_York")
    write_csv(second, minutes, "CCC_y.csv")
    for folder in (first, second):
        with pytest.raises(BarError, match="--name-pattern"):
            detect(str(folder))
        found = detect(str(folder), known={"name_pattern": "{symbol}_x"})
        assert found.symbols == ("AAA", "BBB")


def test_buddhist_years_are_refused_with_a_remedy(days, write):
    table = days.assign(ts=days.ts.str.replace("2024", "2567", regex=False))
    with pytest.raises(BarError, match="like '2567-01-02' are unknown; its years are Buddhist"):
        detect(write(table))


def test_a_first_file_without_volumes_takes_none_from_the_others(days, tmp_path):
    table = days
    write_csv(tmp_path / "files", table.assign(volume=np.nan), "AAA.csv")
    folder = write_csv(tmp_path / "files", table, "BBB.csv").parent
    market = make_market(built(detect(str(folder)), tmp_path))
    assert market.volume.sum(0).tolist() == [0, table.volume.sum()]


@pytest.mark.parametrize(
    "written",
    slow_but(
        *range(7),
        *range(7, 14, 2),
        every=[
            *(
                "%d-%m-%y",
                "%m-%d-%y",
                "%d/%b/%Y",
                "%Y년 %m월 %d일",
                "%Y%m%d.0",
                "%Y_%m_%d",
                "%d %b %y",
            ),
            "%Y%j",
            "%y.%m.%d",
            "%y/%m/%d",
            "%y-%m-%d",
            "%a %m/%d/%Y",
            "%A, %B %d, %Y",
            "%Y.%m.%dD%H:%M:%S.000000000",
        ],
    ),
)
def test_more_ways_to_write_a_day_are_known(written, days, write, assert_market):
    table = days.assign(ts=pd.to_datetime(days.ts).dt.strftime(written))
    assert_market(write(table))


@pytest.mark.parametrize(
    "written",
    slow_but(
        0,
        3,
        5,
        7,
        every=[
            *("%m/%d/%Y %I:%M%p", "%m/%d/%Y, %I:%M:%S %p", "%d/%m/%Y, %H:%M", "%Y-%m-%d_%H:%M"),
            *("%Y/%m/%d-%H:%M:%S", "%Y%m%d%H%M%S000", "%Y%m%dT%H%M%S-0500"),
            "%a, %d %b %Y %H:%M:%S EST",
        ],
    ),
)
def test_more_ways_to_write_times_are_known(written, tmp_path, write):
    table = walk_on("XNAS", dt.date(2024, 1, 16), 20, 15, "America/New_York")
    times = table.assign(ts=table.ts.dt.strftime(written))
    market = make_market(built(detect(write(times)), tmp_path))
    stamps = table.ts.dt.tz_localize("America/New_York").dt.tz_convert("UTC").dt.tz_localize(None)
    assert list(pd.DatetimeIndex(market.timestamps())) == list(stamps)
    assert np.allclose(market.close[:, 0], table.close, rtol=1e-6)


@pytest.mark.parametrize(
    "names",
    slow_but(
        0,
        1,
        2,
        4,
        every=[
            "Date (UTC),Open (USD),High (USD),Low (USD),Close (USD),Volume (shares)",
            "Date,Open,High,Low,Close,Volume\nYYYY-MM-DD,USD,USD,USD,USD,shares",
            "Date [UTC],Open [USD],High [USD],Low [USD],Close [USD],Volume [shares]",
            "DATES,PX_OPEN,PX_HIGH,PX_LOW,PX_LAST,PX_VOLUME",
            "日期,开盘价(元),最高价(元),最低价(元),收盘价(元),成交量(股)",
            "Date/Time,Open,High,Low,Latest,Number of Shares",
            "#date,ouv,haut,bas,clot,vol",
        ],
    ),
)
def test_units_and_marks_are_no_part_of_names(names, days, tmp_path, assert_market):
    path = tmp_path / "AAA.csv"
    path.write_text(f"{names}\n{days[['ts', *COLUMNS]].to_csv(index=False, header=False)}")
    found = detect(str(path))
    assert (found.symbols, found.has_volume) == (("AAA",), True)
    assert_market(path)


def test_names_that_end_with_symbols_in_brackets_are_those_of_several(days, tmp_path):
    parts = {name: days.set_index("ts")[COLUMNS] for name in ("AAA", "BBB")}
    table = pd.concat(parts, axis=1)
    table.columns = [f"{field} ({symbol})" for symbol, field in table.columns]
    table.to_csv(tmp_path / "both.csv")
    assert len(detect(str(tmp_path / "both.csv")).symbols) == 2


def test_a_zone_behind_the_name_of_times_is_theirs(write):
    table = walk_on("24/5", dt.date(2024, 3, 4), 10, 15, "Europe/Athens")
    names = ["Time (EET)", *PRICES, "Volume "]
    path = write(table.set_axis(names, axis=1), "EURUSD.csv")
    zone = findings(path)["timezone"]
    assert (zone.value, zone.sure) == ("EET", "sure")
    bare = write(table, "EURUSD.csv")
    assert findings(bare)["timezone"].sure == "assumed"  # markets of all hours fit any zone


@pytest.mark.parametrize(
    ("change", "said"),
    slow_but(
        *range(0, 20, 2),
        every=[
            (
                lambda t: t.assign(day=t.ts.dt.date, half=t.ts.dt.strftime("%p")),
                r"columns \(half\)",
            ),
            (lambda t: t.assign(ts=t.ts.dt.date, Hour=t.ts.dt.hour), r"columns \(Hour\)"),
            (lambda t: t.assign(ts=t.ts.dt.strftime("%y%j"))[::26], "like 24016 are neither"),
            (lambda t: t.assign(ts=range(20151, 20151 + len(t))), "like 20151 are neither"),
            (
                lambda t: t.assign(ts=[638_410_000_000_000_000 + i for i in range(len(t))]),
                "have the time of another",
            ),
            (lambda t: t.assign(ts=t.ts.dt.strftime("1403/%m/%d"))[::26], "years are Persian"),
            (lambda t: t.assign(ts=t.ts.dt.strftime("%d février %Y"))[::26], "write numbers"),
            (lambda t: t.assign(ts=[*t.ts[:-1], "Average"]), "'Average' stands among times"),
            (lambda t: t.assign(ts=[*t.ts.dt.date[:-1], "Total"])[25::26], "'Total' stands among"),
            (lambda t: t.assign(open=t.open * 0.9), "the open lies outside .*--open COLUMN"),
            (lambda t: t[::26].melt("ts", var_name="field"), r"several rows, .*\(open\)"),
            (
                lambda t: pd.concat([t[::26].assign(firm=firm, volume=firm) for firm in (1, 2)]),
                "--symbol COLUMN",
            ),
        ],
    ),
)
def test_what_would_be_read_wrong_is_refused(change, said, write):
    table = walk_on("XNAS", dt.date(2024, 1, 16), 20, 15, "America/New_York")
    table = table.assign(high=table.close + 1, low=table.close - 1)
    table = change(table).drop(columns="ticker", errors="ignore")
    with pytest.raises(BarError, match=said):
        detect(write(table))


def test_a_named_open_may_lie_outside_of_low_and_high(days, write):
    path = write(days.assign(open=days.low * 0.9))
    assert detect(path, known={"columns": {"open": "open"}}).symbols == ("AAA",)


def json_of_vendors(days):
    """Symbol -> JSON of a vendor that names it, or does not (AAA, as the file)."""
    rows = days.to_dict("records")
    lists = [list(row.values()) for row in rows]
    prices = {row["ts"]: {name: row[name] for name in COLUMNS} for row in rows}
    page = {"columns": ["INDEX", "TOTAL"], "data": [[0, 90]]}
    mid = [{"time": row["ts"], "mid": {one[0]: row[one] for one in PRICES}} for row in rows]
    return {
        "IBM": {"Meta Data": {"2. Symbol": "IBM"}, "Time Series (5min)": prices},
        "XBT": {"error": [], "result": {"XBT": lists, "last": 1}},
        "BTC": {"code": 0, "result": {"symbol": "BTC", "list": lists}},
        "CL1": {"dataset": {"dataset_code": "CL1", "column_names": [*rows[0]], "data": lists}},
        "ABC": {"symbol": "ABC", "span": "week", "historicals": rows},
        "AAA": {"history": {"metadata": {}, "columns": [*rows[0]], "data": lists}, "page": page},
        "EUR": {"instrument": "EUR", "candles": mid},
        "DEF": {"DEF": lists},
        "BTC/USD": {"data": {"ohlc": rows, "pair": "BTC/USD"}},
        "GHI": {
            "datatable": {
                "data": [["GHI", *row] for row in lists],
                "columns": [{"name": name} for name in ("ticker", *rows[0])],
            }
        },
        "AAA_day": {"history": {"day": rows}},
        "AAA_fields": {"stat": "OK", "fields": [*rows[0]], "data": lists, "notes": ["a"]},
    }


KEYS = ["IBM", "XBT", "BTC", "CL1", "ABC", "AAA", "EUR", "DEF"]
KEYS += ["BTC/USD", "GHI", "AAA_day", "AAA_fields"]


@pytest.mark.parametrize("name", slow_but(0, 1, 3, 5, 8, 9, 10, 11, every=KEYS))
def test_keys_of_json_are_symbols_only_where_they_name_some(name, days, tmp_path):
    (tmp_path / "AAA.json").write_text(json.dumps(json_of_vendors(days)[name]))
    found = detect(str(tmp_path / "AAA.json"))
    assert found.symbols == (name.partition("_")[0],)
    market = make_market(built(found, tmp_path))
    assert np.allclose(market.close[:, 0], days.close, rtol=1e-6)


def test_the_sheet_with_the_bars_is_read_from_its_names_on(days, tmp_path, assert_market):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["Read", "me"])
    book.active.append(["All", "prices in USD"])
    sheet = book.create_sheet("bars")
    for row in (["Prices of AAA"], [], ["Currency", "USD"], ["Date", *COLUMNS]):
        sheet.append(row)
    for row in days.astype(str).to_numpy().tolist():
        sheet.append([row[0], *(cell.replace(".", ",") for cell in row[1:])])
    book.save(tmp_path / "AAA.xlsx")
    assert_market(tmp_path / "AAA.xlsx")
    other = book.create_sheet("BBB")
    for row in (["Date", *COLUMNS], *days.to_numpy().tolist()):
        other.append(row)
    book.save(tmp_path / "AAA.xlsx")
    with pytest.raises(BarError, match=r"several sheets \(bars, BBB\); save each as a file"):
        detect(str(tmp_path / "AAA.xlsx"))
    sheet.title = "AAA"
    book.save(tmp_path / "AAA.xlsx")
    market = make_market(built(detect(str(tmp_path / "AAA.xlsx")), tmp_path))
    assert market.symbols == ("AAA", "BBB")
    assert np.allclose(market.close, days[["close", "close"]], rtol=1e-6)


def test_dates_in_names_and_columns_are_dates(days, tmp_path):
    table = days.assign(ts=days.ts.str.replace("-", ""))
    for _, row in table.iterrows():
        lines = [f"{name},{','.join(map(str, row[['ts', *COLUMNS]]))}\n" for name in ("AAA", "BBB")]
        (tmp_path / f"{row.ts}.csv").write_text("".join(lines))
    found = detect(str(tmp_path))
    assert found.symbols == ("AAA", "BBB")
    assert found.first == dt.date.fromisoformat(days.ts[0])


def test_files_whose_names_are_not_in_the_order_of_time_show_the_calendar(tmp_path):
    table = walk_on("XBOM", dt.date(2024, 3, 12), 90, 375)
    for ts, rows in table.groupby("ts"):
        for name in ("AAA", "BBB"):
            path = tmp_path / f"cm{ts:%d%b%Y}bhav.csv"
            line = rows.assign(ticker=name, ts=f"{ts:%d-%b-%Y}").to_csv(
                index=False, header=not path.exists()
            )
            path.write_text((path.read_text() if path.exists() else "") + line)
    assert detect(str(tmp_path)).calendar == "XBOM"


def test_folders_below_that_of_the_symbol_may_be_several(days, tmp_path):
    for name in ("AAA", "BBB"):
        folder = tmp_path / "bars" / f"symbol={name}" / "year=2024" / "month=1"
        folder.mkdir(parents=True)
        days.to_parquet(folder / "data_0.parquet", index=False)
    found = detect(str(tmp_path / "bars"))
    assert found.symbols == ("AAA", "BBB")
    write_config(found, tmp_path / "x.yaml")


def test_an_archive_of_archives_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bars.zip", "w") as archive:
        archive.writestr("inner.zip", b"")
    with pytest.raises(BarError, match="contains no file of bars; unpack it"):
        detect(str(tmp_path / "bars.zip"))


def test_an_export_with_a_line_of_words_and_padded_names_is_read(days, tmp_path, assert_market):
    """The Chinese client TongDaXin's: tabs, padded names, GBK, a source at the end."""
    lines = [
        "600062 华润双鹤 日线 不复权",
        "      日期\t    开盘\t    最高\t    最低\t    收盘\t    成交量",
    ]
    text = days.to_csv(index=False, header=False, sep="\t").replace("-", "/")
    path = tmp_path / "SH#600062.txt"
    path.write_bytes("\n".join([*lines, f"{text}数据来源:通达信\n"]).encode("gbk"))
    assert_market(path)


def test_prices_with_the_name_of_a_currency_are_numbers(days, write, assert_market):
    table = days.astype(str)
    table[PRICES] += " USD"
    assert_market(write(table))
    table[PRICES] += "?"
    path = write(table)
    numbers = {role: str(place) for place, role in enumerate(PRICES, 2)}
    with pytest.raises(BarError, match=r"no numbers in the column of --open, but .* USD\?'"):
        detect(path, known={"columns": numbers})


def test_symbols_in_brackets_are_the_words_inside(days, tmp_path, write):
    table = days[["ts"]].copy()
    for symbol, factor in (("AAPL", 1.0), ("MSFT", 2.0)):
        for name in PRICES:
            table[f"{name.title()} ({symbol})"] = factor * days[name]
    path = write(table, "both.csv")
    market = make_market(built(detect(path), tmp_path))
    assert market.symbols == ("AAPL", "MSFT")
    for name in ("open", "high", "low", "close"):
        assert np.allclose(getattr(market, name)[:, 1], 2.0 * days[name], rtol=1e-6), name


@pytest.mark.parametrize(
    ("name", "values"),
    slow_but(
        0,
        3,
        4,
        every=[
            ("high (52w)", lambda days: days.high.cummax()),
            ("low (52w)", lambda days: days.low.cummin()),
            ("close (prev)", lambda days: days.close.shift(fill_value=80.0)),
            ("volume (ma 20)", lambda days: days.volume.rolling(20, 1).mean()),
            ("volume (usd)", lambda days: days.volume * days.close),
        ],
    ),
)
def test_a_column_with_another_meaning_in_brackets_plays_no_part(
    name, values, days, write, assert_market
):
    table = days[["ts"]].assign(**{name: values(days)}, **days[list(COLUMNS)])
    assert_market(write(table))
    market = load_market({"AAA": table.assign(ts=pd.to_datetime(days.ts))}, calendar="XNAS")
    assert np.allclose(market.high[:, 0], days.high)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("CNY", "USD"), r"prices in several units, \(CNY\), \(USD\)"),
        (("Bid", "Ask"), "which columns"),
    ],
)
def test_prices_in_several_units_are_no_symbols(words, message, days, tmp_path, write):
    table = days[["ts"]].copy()
    for factor, word in enumerate(words, 1):
        for name in PRICES:
            table[f"{name} ({word})"] = factor * days[name]
    table["volume"] = days.volume
    path = write(table)
    with pytest.raises(BarError, match=message):
        detect(path)
    named = {name: f"{name} ({words[0]})" for name in PRICES}
    market = make_market(built(detect(path, known={"columns": named}), tmp_path))
    assert np.allclose(market.close[:, 0], days.close)


def test_the_volume_of_a_market_is_not_that_of_what_is_written_of_it(days, write, assert_market):
    table = days.assign(Tweet_vol=np.arange(len(days)) % 7 + 900.0, Volume_BTC=days.volume)
    table = table[["ts", "Tweet_vol", *PRICES, "Volume_BTC"]]
    assert_market(write(table, "BTC.csv"))


@pytest.mark.parametrize(
    "written",
    [
        *("%d-%m-%y", "%m-%d-%y", "%d/%b/%Y", "%Y년 %m월 %d일", "%Y%m%d.0", "%Y_%m_%d", "%d %b %y"),
        "%d-%B-%Y",
    ],
)
def test_more_ways_to_write_a_day_are_known(written, days, write, assert_market):
    table = days.assign(ts=pd.to_datetime(days.ts).dt.strftime(written))
    assert_market(write(table[["ts", *COLUMNS]], "AAA.csv"))


def test_times_may_lack_their_zeros(days, write, assert_market):
    ts = pd.to_datetime(days.ts)
    cells = [f"{one.year}-{one.month}-{one.day} 0:0:0" for one in ts]
    assert_market(write(days.assign(ts=cells), "AAA.csv"))


def test_some_of_the_days_may_carry_a_midnight(days, write, assert_market):
    cells = days.ts.where(days.index < 70, days.ts + " 00:00:00")
    assert_market(write(days.assign(ts=cells), "AAA.csv"))


@pytest.mark.parametrize("has_symbol", [True, False])
def test_times_of_korea_and_markets_of_upbit_are_known(has_symbol, tmp_path):
    table = walk_on("24/7", dt.date(2024, 3, 4), 4, 15, "Asia/Seoul")
    times = table.ts.dt.strftime("%Y-%m-%dT%H:%M:%S")
    table = table.assign(candle_date_time_kst=times, market="KRW-BTC").drop(columns="ts")
    table = table.rename(columns={"volume": "candle_acc_trade_volume", "close": "trade_price"})
    table = table.drop(columns=["market"] * (not has_symbol))
    path = write_csv(tmp_path, table[::-1], "upbit.csv" if has_symbol else "KRW-BTC_15m.csv")
    found = detect(str(path))
    assert found.symbols == ("KRW-BTC",)
    market = make_market(built(found, tmp_path))
    assert market.timestamps()[0] == np.datetime64("2024-03-04T00:00")
    assert np.allclose(market.close[:, 0], table.trade_price, rtol=1e-6)


@pytest.mark.parametrize("days", [40, 84])
def test_hours_of_india_by_the_clock_of_utc_are_refused(days, tmp_path):
    """By the clock of New York they would fit Istanbul or, but for some days, Frankfurt."""
    table = longer(walk_on("XBOM", dt.date(2024, 2, 20), days, 15, "UTC"), 1)
    with pytest.raises(BarError, match=r"show neither their market nor its zone; .*--zone"):
        detect(str(write_csv(tmp_path, table, "INFY.csv")))


def test_an_index_of_two_levels_without_names_has_symbols_and_times(days, tmp_path, assert_market):
    table = days.set_index("ts")[COLUMNS]
    pd.concat({"AAA": table, "BBB": table}).rename_axis([None, None]).to_parquet(
        tmp_path / "all.parquet"
    )
    assert detect(str(tmp_path / "all.parquet")).symbols == ("AAA", "BBB")
    assert_market(tmp_path / "all.parquet")


def test_a_remark_below_a_sheet_is_no_row(days, tmp_path, assert_market):
    pytest.importorskip("openpyxl")
    table = pd.concat([days[["ts", *COLUMNS]], pd.DataFrame({"ts": [None, "Source: a vendor"]})])
    table.to_excel(tmp_path / "AAA.xlsx", index=False)
    assert_market(tmp_path / "AAA.xlsx")


WITHOUT_NAMES = [
    *itertools.product(
        ["%Y%m%d", "%d%m%y", "%y%m%d", "%m/%d/%Y"],
        ["%H%M", "%-H%M", "%H%M%S", "%H:%M"],
        ["open high low close volume", "volume open high low close", "open high low close"],
    ),
    *itertools.product(
        ["%Y%m%d", "%d%m%y", "%y%m%d", "%m%d%y", "%d%m%Y", "%Y%j"],
        [""],
        [
            *("open high low close volume", "volume open high low close", "open high low close"),
            *("open high low close turnover volume", "turnover volume open high low close"),
        ],
    ),
]
"""Dates, clock times and orders of the columns of a file without names."""


@pytest.mark.parametrize(
    ("date", "clock", "order"), slow_but(0, 13, 16, 30, 47, 51, 57, 76, every=WITHOUT_NAMES)
)
def test_digits_without_names_are_dates_and_times(
    date, clock, order, days, tmp_path, assert_market
):
    table = minute_table(1, 4) if clock else days.assign(ts=pd.to_datetime(days.ts))
    written = table.assign(turnover=(table.volume * table.close).round(2))[order.split()]
    written.insert(0, "date", table.ts.dt.strftime(date))
    if clock:
        written.insert(1, "clock", table.ts.dt.strftime(clock))
    written.to_csv(tmp_path / "AAA.csv", header=False, index=False)
    assert_market(tmp_path / "AAA.csv", table if "volume" in order else table.assign(volume=0.0))


def test_rows_may_end_in_a_comma(tmp_path, assert_market):
    table = minute_table(1, 4)
    cells = table[COLUMNS].astype(str).agg(",".join, axis=1)
    lines = table.ts.dt.strftime("%Y-%m-%d,%H:%M,") + cells + ","
    head = "Date,Time,Open,High,Low,Close,Volume\n"
    (tmp_path / "AAA.csv").write_text(head + "\n".join(lines) + "\n")
    assert_market(tmp_path / "AAA.csv", table)


def test_tickers_may_be_words_of_files(days, tmp_path):
    for name in ("AAPL", "DLY", "EQ"):
        write_csv(tmp_path, days[["ts", *COLUMNS]], f"{name}_daily.csv")
    assert detect(str(tmp_path)).symbols == ("AAPL", "DLY", "EQ")
    rows = days[["ts", *COLUMNS]].to_dict("records")
    (tmp_path / "all.json").write_text(json.dumps({"AAPL": rows, "DAY": rows}))
    assert detect(str(tmp_path / "all.json")).symbols == ("AAPL", "DAY")


def test_a_column_of_exchanges_holds_no_symbols(days, write, assert_market):
    path = write(days.assign(market="NYSE-ARCA")[["ts", "market", *COLUMNS]])
    assert detect(path).symbols == ("AAA",)
    assert_market(path)


def test_two_closes_in_one_unit_are_one_close(days, write, assert_market):
    table = days.rename(columns={name: f"{name} (USD)" for name in PRICES})
    assert_market(write(table.assign(**{"Last (USD)": days.close})))


def test_sections_of_a_sheet_are_refused(days, tmp_path):
    pytest.importorskip("openpyxl")
    section = pd.DataFrame({"ts": ["MSFT"]})
    table = days[["ts", *COLUMNS]]
    pd.concat([table[:40], section, table[40:]]).to_excel(tmp_path / "two.xlsx", index=False)
    with pytest.raises(BarError, match="'MSFT' stands among times"):
        detect(str(tmp_path / "two.xlsx"))


def test_of_two_dates_the_gregorian_one_counts(days, write, assert_market):
    table = days[["ts", *COLUMNS]].rename(columns={"ts": "Gregorian Date"})
    table["Persian Date"] = days.ts.str.replace("2024-", "1402/").str.replace("-", "/")
    assert_market(write(table, "USD.csv"))


def test_millions_with_a_comma_show_that_points_part_thousands(days, tmp_path, write):
    table = pd.DataFrame({"Data": days.ts})
    for name, column in (("Último", "close"), ("Abertura", "open"), ("Máxima", "high")):
        table[name] = [f"{108 + value / 1e3:.3f}" for value in days[column]]
    table["Mínima"] = [f"{108 + value / 1e3:.3f}" for value in days.low]
    table["Vol."] = [f"{value / 1e3:.2f}M".replace(".", ",") for value in days.volume]
    table["Var%"] = "0,19%"
    market = make_market(built(detect(write(table, "IBOV.csv")), tmp_path))
    assert np.allclose(market.close[:, 0], np.round(108_000 + days.close), atol=1.0)


def test_other_prices_next_to_a_close_ask_for_the_prices(days, tmp_path):
    table = (days[COLUMNS] / 4).add_prefix("Adj ").assign(Close=days.close, Date=days.ts)
    path = str(write_csv(tmp_path, table, "AAA.csv"))
    with pytest.raises(BarError, match=r"--open COLUMN .*--close alone"):
        detect(path)
    known = {name: f"Adj {name}" for name in COLUMNS}
    market = make_market(built(detect(path, known={"columns": known}), tmp_path))
    assert np.allclose(market.open[:, 0], days.open / 4, rtol=1e-6)


def test_an_adjusted_close_that_stands_alone_is_the_close(days, tmp_path, write):
    table = days[["ts", "close", "volume"]].rename(columns={"close": "adj_close"})
    found = detect(write(table))
    assert found.settings().columns["high"] == "adj_close"
    market = make_market(built(found, tmp_path))
    assert np.allclose(market.close[:, 0], days.close, rtol=1e-6)


def test_a_row_that_lacks_a_price_is_left_out_and_named(days, tmp_path, caplog, write):
    cells = days.astype(str)
    cells.loc[30, "open"] = ""
    cells.loc[40, ["open", "volume"]] = "0.0"  # as Yahoo begins a day
    market = make_market(built(detect(write(cells)), tmp_path))
    assert (~market.tradable[:, 0]).nonzero().flatten().tolist() == [30, 40]
    assert "row 32 and 1 others have a close, but not all prices" in caplog.text
    cells.loc[::4, "open"] = ""
    with pytest.raises(BarError, match="row 2, column 'open': the cell is empty"):
        detect(write(cells))


def test_empty_cells_in_a_table_with_types_are_no_numbers(days, tmp_path):
    days.assign(volume=np.nan).to_parquet(tmp_path / "AAA.parquet", index=False)
    assert not detect(str(tmp_path / "AAA.parquet")).has_volume


def test_closes_of_tickers_of_which_some_begin_late(days, write):
    table = pd.DataFrame({"AAPL": days.close, ".SPX": days.close * 9.0, "M&M": days.close * 4.0})
    table = table.assign(META=np.nan, Date=days.ts)
    path = write(table, "prices.csv")
    assert detect(path).symbols == (".SPX", "AAPL", "M&M")


def test_closes_under_other_names_are_taken_as_asked(days, write):
    table = pd.DataFrame({"date": days.ts, "size": days.close, "oil": days.close * 2.0})
    table = table.assign(gold=days.close * 5.0, beans=days.close * 7.0, wheat=days.close * 8.0)
    path = write(table, "prices.csv")
    with pytest.raises(BarError, match=r"--close '\{symbol\}'"):
        detect(path)
    found = detect(path, known={"columns": {"close": "{symbol}"}})
    assert found.symbols == ("BEANS", "GOLD", "OIL", "SIZE", "WHEAT")


def test_hours_of_no_known_market_ask_for_their_zone(tmp_path, write):
    days = pd.bdate_range("2024-01-02", periods=30)
    clocks = [*range(545, 620, 5), *range(635, 695, 5), *range(815, 905, 5), *range(1265, 1595, 5)]
    ts = (days.to_numpy()[:, None] + np.array(clocks, dtype="timedelta64[m]")).ravel()
    table = pd.DataFrame({"datetime": ts, "volume": np.arange(len(ts)) * 7 % 50 + 1.0})
    walk = 4000.0 + np.random.default_rng(0).integers(-3, 4, len(ts)).cumsum()
    table = table.assign(**dict.fromkeys(PRICES, walk))
    path = write(table, "rb2405.csv")
    with pytest.raises(BarError, match=r"name the zone of the times with --zone.*--calendar"):
        detect(path)
    found = detect(path, calendar="24/5", known={"timezone": "Asia/Shanghai"})
    market = make_market(built(found, tmp_path))
    first = market.timestamps()[market.tradable[:, 0].numpy()][0]
    assert first == ts[0] - np.timedelta64(8 * 60 + 5, "m")  # times are ends: 9:05 and 10:15


@pytest.mark.parametrize(
    ("change", "text"),
    slow_but(
        0,
        1,
        2,
        every=[
            (lambda t: t.assign(open=t.open.where(t.index != 7, 0.0)), ""),
            (lambda t: t.assign(at="NASDAQ")[["at", "ts", *COLUMNS]], "no header"),
            (
                lambda t: t[["close", "high", "low", "open", "volume"]].set_axis(
                    (pd.to_datetime(t.ts) - pd.Timestamp(0)) // pd.Timedelta("1s")
                ),
                "no header",
            ),
            (lambda t: t.assign(ts=pd.to_datetime(t.ts).map(lambda day: f"{day.value:.7e}")), ""),
            (lambda t: t.assign(table=0).rename(columns={"ts": "_time"}), "#group,false\n"),
        ],
    ),
)
def test_files_of_more_programs_are_read(change, text, days, tmp_path):
    table = change(days).dropna(axis=1)
    path = write_csv(tmp_path, table if "ts" in table or "_time" in table else table.reset_index())
    lines = path.read_text()
    lines = lines.split("\n", 1)[1] if text == "no header" else text + lines
    (tmp_path / "AAA.csv").write_text(lines)
    found = detect(str(tmp_path / "AAA.csv"))
    assert found.symbols == ("AAA",)
    market = make_market(built(found, tmp_path))
    has_open = (table.open > 0).to_numpy()
    traded = market.tradable[:, 0].numpy()
    assert traded.tolist() == has_open.tolist()
    for name in ("open", "close", "volume"):
        assert np.allclose(getattr(market, name)[traded, 0], days[has_open][name], rtol=1e-6), name


def test_few_rows_show_no_turnover(days, tmp_path):
    for _, row in days[:5].iterrows():
        lines = [
            f"{number},{name},{row.ts},{row.open},{row.high},{row.low},{close},{row.volume * number}"
            for number, (name, close) in enumerate({"AAA": row.close, "BBB": row.low}.items(), 1)
        ]
        (tmp_path / f"x{row.ts}.csv").write_text(
            "\n".join(["id,symbol,date,open,high,low,close,TtlTradgVol", *lines, ""])
        )
    assert detect(str(tmp_path)).source["columns"]["volume"] == "TtlTradgVol"


def test_a_file_of_some_hours_asks_for_more_days_and_no_zone(tmp_path, write):
    table = walk_on("24/5", dt.date(2024, 3, 5), 3, 1, "UTC")
    found = detect(write(table[500:1200], "EURUSD.csv"))
    with pytest.raises(BarError, match="get bars of more days"):
        write_config(found, tmp_path / "x.yaml")


def test_five_days_are_too_few_and_six_are_enough(tmp_path, write):
    table = walk_on("XNYS", dt.date(2024, 3, 4), 8, 390, "America/New_York")
    with pytest.raises(BarError, match=r"5 sessions.* need 6 or more"):
        write_config(detect(write(table[:5], "AAPL.csv")), tmp_path / "x.yaml")
    write_config(detect(write(table, "MSFT.csv")), tmp_path / "y.yaml")


def longer(table, hours):
    """Bars of some hours by the clock of the times."""
    how = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    return table.groupby(table.ts.dt.floor(f"{hours}h")).agg(how).reset_index()


@pytest.mark.parametrize(
    ("hours", "is_zoned", "said"),
    [(4, False, "--calendar"), (2, True, "within those of XNAS")],
)
def test_long_bars_that_fit_no_market_are_refused_with_a_remedy(
    hours, is_zoned, said, tmp_path, write
):
    table = longer(walk_on("XNAS", dt.date(2024, 2, 26), 60, 15, "UTC"), hours)
    if is_zoned:
        table["ts"] = table.ts.dt.tz_localize("UTC")
    path = write(table, "XLU.csv")
    with pytest.raises(BarError, match=rf"{said}.*24/5"):
        detect(path)
    if not is_zoned:
        found = detect(path, calendar="24/5", known={"timezone": "UTC"})
        market = make_market(built(found, tmp_path))
        traded = market.tradable[:, 0].numpy()
        assert np.array_equal(market.timestamps()[traded], table.ts)


@pytest.mark.parametrize("written", ["%Y-%m-%d %H:%M:%S+00:00", "epoch_local"])
def test_local_times_that_are_written_as_utc_are_refused_with_a_remedy(written, tmp_path, write):
    table = walk_on("XBOM", dt.date(2024, 3, 12), 15, 5, "Asia/Kolkata")
    times = (table.ts - pd.Timestamp(0)) // pd.Timedelta("1s")
    if written != "epoch_local":
        times = table.ts.dt.strftime(written)
    path = write(table.assign(ts=times), "INFY.csv")
    with pytest.raises(BarError, match="--zone Asia/Kolkata --time-format"):
        detect(path)
    found = detect(path, known={"timezone": "Asia/Kolkata", "time_format": written})
    assert found.calendar == "XBOM"
    assert make_market(built(found, tmp_path)).tradable.sum() == len(table)


def test_ends_of_bars_are_told_at_the_rest_of_a_market_of_nearly_all_hours(tmp_path):
    table = walk_on("CMES", dt.date(2024, 3, 5), 12, 1, "UTC")
    times = (table.ts + pd.Timedelta("1min")).dt.strftime("%Y%m%d %H%M%S")
    path = write_csv(
        tmp_path,
        table.assign(ts=times),
        "ES 03-24.Last.txt",
        sep=";",
        header=False,
    )
    found = detect(str(path))
    assert (found.calendar, found.source["label"]) == ("CMES", "end")
    market = make_market(built(found, tmp_path))
    assert np.array_equal(market.timestamps()[market.tradable[:, 0].numpy()], table.ts)


def only_closes(days):
    return days.assign(**dict.fromkeys(PRICES, days.close), volume=0.0)


@pytest.mark.parametrize(
    ("name", "how"),
    [("strike price", {}), ("SAND", {"sep": ";", "decimal": ","}), ("SAND", {"header": False})],
)
def test_the_only_column_of_numbers_has_the_closes(name, how, days, write, assert_market):
    table = days[["ts"]].assign(**{name: days.close})
    assert_market(write(table, **how), only_closes(days))
    assert findings(write(table, **how))["columns"].sure == "assumed"


def test_row_names_and_one_name_are_a_table(days, tmp_path, assert_market):
    """As R writes a data frame with one column."""
    lines = [f'"{day}";{close}' for day, close in zip(days.ts, days.close, strict=True)]
    (tmp_path / "DAX.csv").write_text("\n".join(['"DAX"', *lines]))
    assert_market(tmp_path / "DAX.csv", only_closes(days))


def test_changes_are_no_volumes_and_empty_rows_stay_numbers(days, tmp_path, assert_market):
    """Taiwan's exchange without names: volume, turnover, prices, change and trades."""
    change = days.close.diff().round(2).astype(str).replace("nan", "X0.00")
    written = days[["ts", "volume"]].assign(turnover=days.volume * days.close)
    written = written.assign(**days[PRICES], change=change, trades=17 + days.index % 5)
    path = tmp_path / "0050.csv"
    written.to_csv(path, header=False, index=False)
    assert_market(path)
    written = written.astype(dict.fromkeys(PRICES, object))
    written.loc[3:78:4, PRICES] = "--"
    written.to_csv(path, header=False, index=False)
    market = make_market(built(detect(str(path)), tmp_path))
    assert int(market.tradable.sum()) == 80 - 19


def test_a_given_column_has_no_other_role(days, write, assert_market):
    table = days[["ts"]].assign(Index=days.close, cap=days.volume).rename(columns={"ts": "Code"})
    path = write(table)
    with pytest.raises(BarError, match="which column is the close"):
        detect(path)
    found = detect(path, known={"columns": {"close": "Index", "volume": "cap"}})
    assert found.source["columns"] == {
        "ts": "Code",
        "volume": "cap",
        **dict.fromkeys(PRICES, "Index"),
    }


def test_without_opens_the_closes_may_stand_for_all_prices(days, write, tmp_path):
    path = write(days.drop(columns="open"))
    with pytest.raises(BarError, match="--close alone"):
        detect(path)
    market = make_market(built(detect(path, known={"columns": {"close": "close"}}), tmp_path))
    assert np.allclose(market.open[:, 0], days.close)


def test_months_in_names_are_no_symbols(days, tmp_path):
    for symbol in ("2330", "3008"):
        folder = tmp_path / symbol / "2024"
        folder.mkdir(parents=True)
        for month, part in days.groupby(days.ts.str[5:7]):
            write_csv(folder, part, f"Stock_{symbol}_2024_{month}.csv")
    assert detect(str(tmp_path)).symbols == ("2330", "3008")


@pytest.mark.parametrize(("label", "opening"), [("end", 5000), ("start", 5000), ("start", 300)])
def test_few_days_with_trading_around_the_session_may_show_ends(label, opening, tmp_path):
    """A small first bar alone, as of a feed without the auction's trade, is no bar before the
    open."""
    table = minute_table(1, 4).assign(volume=5000)
    clock = table.ts.dt.strftime("%H:%M")
    table.loc[clock == "09:30", "volume"] = opening
    early = table[clock < "11:00"].assign(volume=30, ts=table.ts - pd.Timedelta("90min"))
    late = table[clock >= "15:00"].assign(volume=30, ts=table.ts + pd.Timedelta("1h"))
    whole = pd.concat([table, early, late]).sort_values("ts")
    whole["ts"] += pd.Timedelta(f"{int(label == 'end')}min")
    path = str(write_csv(tmp_path, whole, "AAA.csv"))
    made = detect(path, calendar="XNAS", known={"timezone": "America/New_York"})
    found = next(one for one in made.findings if one.setting == "label")
    assert (found.value, found.sure == "assumed") == (label, opening == 300 or label == "end")


OTHER_COLUMNS = {
    "publication": ("ts", lambda days: {"published_date": pd.to_datetime(days.ts).shift(-1)}),
    "dividend": ("index", lambda days: {"d": -0.04}),
    "temperature": ("date", lambda days: {"T": 20.1}),
    "trades": ("date", lambda days: {"t": 6070 + days.index}),
    "ticker and epoch": (
        "date",
        lambda days: {"T": "AAA", "t": pd.to_datetime(days.ts).astype("int64") // 10**6},
    ),
    "zeros": ("datetime", lambda days: {"d": 0, "t": 0}),
    "the weekday and midnight": ("date", lambda days: {"D": days.index % 5, "time": "00:00"}),
}


@pytest.mark.parametrize("name", OTHER_COLUMNS)
def test_columns_next_to_dates_are_no_times(name, days, write, assert_market):
    called, other = OTHER_COLUMNS[name]
    table = days.rename(columns={"ts": called}).assign(**other(days))
    assert_market(write(table.dropna()), days[: len(table.dropna())])


@pytest.mark.parametrize("by_date", [False, True])
def test_codes_that_count_up_are_no_row_numbers(by_date, days, tmp_path):
    table = pd.concat([days[:65].assign(code=code) for code in range(1, 26)])
    table = table.sort_values("ts", kind="stable") if by_date else table
    path = write_csv(tmp_path, table[["code", "ts", *COLUMNS]], "bars.csv", header=False)
    assert len(detect(str(path)).symbols) == 25


def test_one_wrong_volume_does_not_hide_the_volume(days, write, tmp_path):
    days = days.assign(volume=days.volume.where(days.index != 3, -5))
    with pytest.raises(BarError, match="is no volume"):
        detect(write(days[["ts", *COLUMNS]], header=False))


def test_a_day_in_digits_next_to_a_clock_is_a_date(tmp_path):
    table = minute_table(1, 1)
    table.insert(0, "date", table.ts.dt.strftime("%y%m%d"))
    table["ts"] = table.ts.dt.strftime("%H:%M")
    path = write_csv(tmp_path, table[["date", "ts", *COLUMNS]], "AAA.csv", header=False)
    with pytest.raises(BarError, match="span 1 sessions"):
        make_market(built(detect(str(path)), tmp_path))


def test_a_low_with_another_name_is_asked_for(days, write):
    path = write(days.rename(columns={"low": "minimum", "close": "settle at"}))
    with pytest.raises(BarError, match="which column is the low"):
        detect(path, known={"columns": {"close": "settle at"}})


def test_daily_stocks_with_few_holidays_are_no_currencies(tmp_path):
    days = walk_on("XPAR", dt.date(2017, 1, 2), 364, 510)
    days["ts"] = days.ts.dt.strftime("%Y-%m-%d")
    assert detect(str(write_csv(tmp_path, days, "CAC.csv"))).calendar in ("XPAR", "XEUR", "XAMS")


def test_blank_rows_in_front_do_not_hide_the_volume(days, write, tmp_path):
    blank = days.assign(ts=pd.to_datetime(days.ts) - pd.Timedelta("1000D")).head(60)
    blank = pd.concat([blank.assign(ts=blank.ts - pd.Timedelta(f"{at}h")) for at in range(40)])
    blank = blank.assign(**dict.fromkeys(COLUMNS, np.nan)).sort_values("ts")
    whole = pd.concat([blank, days.assign(ts=pd.to_datetime(days.ts))])
    assert detect(write(whole)).source.get("columns", {}).get("volume", "volume") == "volume"


def test_tables_next_to_each_other_are_refused(days, tmp_path):
    body = days[["ts", *PRICES]].astype(str).agg(",".join, axis=1)
    names = "日付,始値,高値,安値,終値"
    lines = [f"{names},,{names}", *(body + ",," + body)]
    (tmp_path / "historical.csv").write_text("\n".join(lines))
    with pytest.raises(BarError, match="its own column of times"):
        detect(str(tmp_path / "historical.csv"))


def test_days_from_five_in_new_york_end_on_the_next_day(tmp_path):
    """Dukascopy's days begin at 21:00 or 22:00 in UTC, also on weekends, without a change."""
    stamps = pd.date_range("2024-01-01 17:00", periods=200, tz="America/New_York").tz_convert("UTC")
    close = 1.1 + np.random.default_rng(0).normal(0, 1e-3, 200).cumsum()
    table = pd.DataFrame({"Gmt time": stamps, **dict.fromkeys(PRICES, close), "volume": 7.5})
    table["high"] += 0.001
    rest = np.flatnonzero(stamps.day_of_week.isin([4, 5]))
    for row in rest:
        table.loc[row, PRICES] = table.close[max(0, row - 1)]
        table.loc[row, "volume"] = 0.0
    table["Gmt time"] = stamps.strftime("%d.%m.%Y %H:%M:%S.000")
    found = detect(str(write_csv(tmp_path, table, "EURUSD.csv")))
    assert (found.source["label"], found.calendar) == ("eve", "24/5")


def test_a_clock_of_0_is_midnight(days, write, assert_market):
    table = days[COLUMNS].assign(DATE=days.ts.str.replace("-", ""), TIME="0")
    assert_market(write(table.rename(columns=str.upper)))


def test_codes_and_clocks_do_not_make_a_comma_a_decimal_sign(days, write):
    """As files of Korea and Japan: 71,400 for the code 005930."""
    text = days.assign(code="005930", volume=[f"{one:,}" for one in days.volume * 1500])
    for name in PRICES:
        text[name] = [f"{round(one * 500):,}" for one in days[name]]
    assert "decimal" not in detect(write(text)).source
    with pytest.raises(BarError, match="name the sign"):
        detect(write(text.assign(volume=7)))


def test_titles_with_as_many_cells_as_the_table_stand_above_an_empty_row(
    days, tmp_path, assert_market
):
    """As Bloomberg's sheets, written to CSV."""
    body = days[["ts", "close", "volume"]].to_csv(index=False, header=False)
    head = "Start Date,2015/1/1,\nEnd Date,2017/12/31,\n,,\n,,\nDates,PX_LAST,PX_VOLUME\n"
    path = tmp_path / "AAA.csv"
    path.write_text(head + body)
    closes = days.assign(open=days.close)
    assert_market(path, closes)


def test_a_clock_behind_a_hyphen_is_no_offset(tmp_path, assert_market):
    table = walk_on("XSHG", dt.date(2024, 1, 8), 20, 15, "Asia/Shanghai")
    times = table.ts.dt.strftime("%Y/%m/%d-%H:%M")
    path = write_csv(tmp_path, table.assign(ts=times), "AAA.csv")
    found = detect(str(path))
    assert (found.calendar, found.bar_minutes) == ("XSHG", 15)
    assert_market(path, table)


def test_evenings_with_the_date_of_the_next_day_are_refused(tmp_path):
    """As China's futures: 21:00 stands before 09:00 and has its date."""
    table = walk_on("XSHG", dt.date(2024, 1, 8), 20, 15, "Asia/Shanghai")
    evening = table[table.ts.dt.hour >= 14].copy()
    evening["ts"] += pd.Timedelta(hours=7)
    both = pd.concat([evening, table]).assign(day=lambda rows: rows.ts.dt.date)
    both = both.sort_values("day", kind="stable").drop(columns="day")
    with pytest.raises(BarError, match=r"go back \d+ times in \d+ days"):
        detect(str(write_csv(tmp_path, both, "RB.csv")))


def test_hours_that_run_past_the_close_of_currencies_are_starts(tmp_path):
    """A feed whose weeks go from 22:00 to 22:00 in UTC, an hour late in summer."""
    ts = pd.date_range("2024-01-07 22:00", "2024-10-25", freq="1h")
    late = ts + pd.Timedelta(hours=2)
    ts = ts[(late.dayofweek < 5)]
    close = 1.1 + np.random.default_rng(0).normal(0, 1e-3, len(ts)).cumsum()
    prices = dict.fromkeys(PRICES, close.round(5))
    table = pd.DataFrame({"time": ts.strftime("%Y-%m-%dT%H:%M:%SZ"), **prices, "volume": 0.0})
    found = detect(str(write_csv(tmp_path, table, "GBPUSD.csv")))
    assert (found.calendar, found.source.get("label")) == ("FX", None)


def test_a_split_of_fifty_is_one_however_many_shares_trade(days, tmp_path):
    """As Samsung's, which changed hands ten times as often on its first day."""
    table = days.assign(volume=1e6 * np.random.default_rng(0).uniform(0.8, 1.2, len(days)))
    table.loc[40:, PRICES] /= 50
    table.loc[40, "volume"] *= 250
    found = detect(str(write_csv(tmp_path, table, "AAA.csv")))
    assert any("50 to 1" in one.value or "50 to 1" in one.why for one in found.findings)


def test_the_remedy_for_local_times_written_as_utc_is_one(tmp_path):
    table = walk_on("XNAS", dt.date(2024, 1, 8), 60, 60, "America/New_York")
    table["ts"] = table.ts.dt.strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    path = str(write_csv(tmp_path, table, "AAA.csv"))
    with pytest.raises(BarError, match="written as UTC") as refused:
        detect(path)
    pattern = str(refused.value).partition("--time-format '")[2].partition("'")[0]
    known = {"timezone": "America/New_York", "time_format": pattern}
    assert detect(path, known=known).calendar == "XNAS"


def test_volumes_that_are_none_may_be_left_out(days, write):
    path = write(days.assign(volume=1e100))
    with pytest.raises(BarError, match="--volume none"):
        detect(path)
    assert not detect(path, known={"columns": {"volume": None}}).has_volume


def test_days_of_currencies_are_none_of_futures(write):
    """Dukascopy's days, which begin at 22:00 in UTC, also on Good Friday and Christmas."""
    ts = pd.date_range("2023-02-03 22:00", "2024-01-30 22:00")
    is_rest = ts.dayofweek.isin([4, 5]) | ts.strftime("%m-%d").isin(["12-24", "12-31", "07-03"])
    close = 1.1 + np.where(is_rest, 0, np.random.default_rng(0).normal(0, 1e-3, len(ts))).cumsum()
    table = pd.DataFrame({"Gmt time": ts.strftime("%d.%m.%Y %H:%M:%S.000")})
    table = table.assign(**dict.fromkeys(PRICES, close.round(5)), Volume=~is_rest * 5e4)
    table["high"] += 0.001 * ~is_rest
    assert detect(write(table, "EURUSD.csv")).calendar == "24/5"


@pytest.mark.parametrize("calendar", ["FX", "24/5"])
def test_hours_of_currencies_that_are_stamped_with_ends_are_ends(calendar, tmp_path):
    table = walk_on(calendar, dt.date(2024, 1, 8), 120, 60, "UTC")
    table["ts"] = (table.ts + pd.Timedelta(hours=1)).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    found = detect(str(write_csv(tmp_path, table, "EURUSD.csv")))
    assert found.source.get("label") == "end"


@pytest.mark.parametrize("order", ["by day", "twice", "as text", "extended last"])
def test_rows_in_odd_orders_are_no_evenings(order, tmp_path):
    table = walk_on("XNAS", dt.date(2024, 1, 8), 12, 15, "America/New_York")
    table = table.assign(day=table.ts.dt.date, symbol="AAA")
    if order == "by day":
        both = pd.concat([table, table.assign(symbol="BBB")])
        table = both.sort_values(["day", "symbol", "ts"])
    elif order == "twice":
        table = pd.concat([table, table]).sort_values("day", kind="stable")
    elif order == "as text":
        table = table.assign(
            ts=[f"{ts.month}/{ts.day}/{ts.year} {ts.hour}:{ts:%M}" for ts in table.ts]
        )
        table = table.sort_values("ts")
    else:
        early = table[table.ts.dt.hour < 12]
        early = early.assign(ts=early.ts - pd.Timedelta(hours=4), volume=1.0)
        table = pd.concat([table, early]).sort_values("day", kind="stable")
    path = str(write_csv(tmp_path, table.drop(columns="day"), "bars.csv"))
    assert detect(
        path, known={} if order != "as text" else {"timezone": "America/New_York"}
    ).symbols


@pytest.mark.parametrize("below", [",USD,USD,USD,USD,shares", "source: x,,,,,", ",,,,,"])
def test_names_above_an_empty_row_are_names(below, days, tmp_path, assert_market):
    body = days[["ts", *COLUMNS]].to_csv(index=False, header=False)
    path = tmp_path / "AAA.csv"
    path.write_text(f"Date,Open,High,Low,Close,Volume\n,,,,,\n{below}\n{body}")
    assert_market(path)


def test_two_tables_that_pandas_merged_are_refused(days, write):
    """_x and _y are no symbols, and would mix the columns of two instruments."""
    table = days[["ts", *PRICES]]
    with pytest.raises(BarError, match=r"call them by their symbols \(suffixes="):
        detect(write(table.merge(table, on="ts")))
    merged = table.merge(table, on="ts", suffixes=("_AAA", "_BBB"))
    assert detect(write(merged)).symbols == ("AAA", "BBB")


def test_lengths_of_bars_in_json_are_no_symbols(days, tmp_path):
    rows = days[["ts", *COLUMNS]].to_dict("records")
    path = tmp_path / "BTCUSDT.json"
    path.write_text(json.dumps({"candles_1d": rows, "candles_4h": rows}))
    with pytest.raises(BarError, match=r"several lengths \(candles_1d, candles_4h\)"):
        detect(str(path))
    path.write_text(json.dumps({"candles_1d": rows}))
    assert detect(str(path)).symbols == ("BTCUSDT",)


@pytest.mark.parametrize("form", ["iso", "epoch"])
@pytest.mark.parametrize("names", [["Close"], ["AAA", "BBB"]])
def test_closes_as_pandas_writes_them_to_json(form, names, days, tmp_path):
    closes = days.set_index(pd.DatetimeIndex(days.ts)).close
    table = pd.DataFrame({name: closes * (1 + number) for number, name in enumerate(names)})
    table.to_json(tmp_path / "AAA.json", date_format=form, orient="columns")
    market = make_market(built(detect(str(tmp_path / "AAA.json")), tmp_path))
    assert np.allclose(market.close, table, rtol=1e-6)


def test_a_last_line_without_newline_may_end_with_an_empty_cell(days, tmp_path, assert_market):
    text = days[["ts", *COLUMNS]].assign(volume="").to_csv(index=False).rstrip("\n")
    (tmp_path / "AAA.csv").write_text(text)
    assert_market(tmp_path / "AAA.csv", days.assign(volume=0.0))
    whole = days[["ts", *COLUMNS]].to_csv(index=False).rstrip("\n")
    (tmp_path / "AAA.csv").write_text(whole.rpartition(",")[0] + ",")
    with pytest.raises(BarError, match="may be cut off"):
        detect(str(tmp_path / "AAA.csv"))


def test_whole_days_after_a_bar_before_the_open_are_not_displaced(tmp_path):
    table = walk_on("XNAS", dt.date(2024, 1, 8), 60, 60, "America/New_York")
    table["ts"] = table.ts.dt.floor("60min").dt.tz_localize("America/New_York")
    first = table.groupby(table.ts.dt.date).head(1)
    early = first.iloc[::3].assign(ts=lambda rows: rows.ts - pd.Timedelta(hours=1), volume=8.0)
    table = pd.concat([table, early]).sort_values("ts")
    found = detect(str(write_csv(tmp_path, table, "AAA.csv")))
    assert (found.hours, found.waivers) == ("clock", [])
    assert "few or no bars" in {row.setting: row.why for row in found.findings}["extended hours"]


def test_prices_by_date_are_rows_of_closes(days, tmp_path):
    content = {
        day: {"market_cap": 1e9, "price": close}
        for day, close in zip(days.ts, days.close, strict=True)
    }
    (tmp_path / "AAA.json").write_text(json.dumps(content))
    market = make_market(built(detect(str(tmp_path / "AAA.json")), tmp_path))
    assert np.allclose(market.close[:, 0], days.close, rtol=1e-6)


@pytest.mark.parametrize(
    "content",
    [
        {"columns": [{"field": "date"}, {"field": "open"}], "data": [["2024-01-02", 1.0]]},
        {"columns": [], "data": 7},
    ],
)
def test_json_of_an_unknown_form_is_one_typed_error(content, tmp_path):
    (tmp_path / "AAA.json").write_text(json.dumps(content))
    with pytest.raises(BarError, match=r"JSON holds no table|no column"):
        detect(str(tmp_path / "AAA.json"))


@pytest.mark.parametrize("clock", ["%H:%M:%S", "%H:%M:%S.000"])
def test_json_by_day_whose_rows_have_times_of_day(clock, tmp_path):
    table = minute_table(1, sessions=6)
    rows = table.assign(time=table.ts.dt.strftime(clock))[["time", *COLUMNS]]
    by_day = rows.groupby(table.ts.dt.strftime("%Y-%m-%d"))
    content = {day: part.to_dict("records") for day, part in by_day}
    (tmp_path / "AAA.json").write_text(json.dumps(content))
    market = make_market(built(detect(str(tmp_path / "AAA.json")), tmp_path))
    assert np.allclose(market.close[:, 0], table.close, rtol=1e-6)


def test_a_sheet_for_each_symbol_may_name_it_in_a_column_too(days, tmp_path):
    pytest.importorskip("openpyxl")
    with pd.ExcelWriter(tmp_path / "book.xlsx") as book:
        for symbol in ("AAA", "BBB"):
            days[["ts", *COLUMNS]].assign(tic=symbol).to_excel(book, sheet_name=symbol, index=False)
    assert findings(str(tmp_path / "book.xlsx"))["symbols"].why == "AAA, BBB"


def test_the_error_words_of_a_spreadsheet_are_empty_cells(days, write, tmp_path):
    table = days[["ts", *COLUMNS]].astype(object)
    table.loc[40, PRICES] = "#VALUE!"
    market = make_market(built(detect(write(table)), tmp_path))
    traded = market.tradable[:, 0].numpy()
    assert np.flatnonzero(~traded).tolist() == [40]
    assert np.allclose(market.close[traded, 0], days.close[traded], rtol=1e-6)


def test_a_few_stamps_beside_midnight_move_no_date(tmp_path):
    ts = pd.date_range("2023-01-01", periods=300, tz="UTC")
    close = 100 * np.exp(np.random.default_rng(0).normal(0, 0.02, len(ts)).cumsum())
    stamps = ts.strftime("%Y-%m-%d %H:%M:%S UTC").to_numpy(dtype=object)
    stamps[[100, 200]] = "2023-04-11 23:29:55 UTC", "2023-07-20 23:39:21 UTC"
    table = pd.DataFrame({"snapped_at": stamps, "price": close, "total_volume": 1e6 + close})
    path = write_csv(tmp_path, table, "btc-usd-max.csv")
    found = detect(str(path))
    market = make_market(built(found, tmp_path))
    assert market.num_bars == len(ts)
    assert np.allclose(market.close[:, 0], close, rtol=1e-6)
    assert pd.Timestamp(int(market.minutes[0])) == pd.Timestamp("2023-01-01")


def test_a_saturday_among_daily_bars_is_outside_of_the_sessions(days, write):
    extra = days.iloc[[30]].assign(ts="2024-02-10")
    calendar = findings(write(pd.concat([days, extra]).sort_values("ts")))["calendar"]
    assert calendar.sure == "assumed"
    assert calendar.why.startswith("98.8% of the rows")


def test_hours_of_warsaw_are_not_those_of_a_market_with_other_days(tmp_path):
    table = walk_on("XWAR", dt.date(2024, 4, 11), 400, 60)
    ends = table.ts.dt.tz_convert("Europe/Warsaw").dt.tz_localize(None) + pd.Timedelta(hours=1)
    path = write_csv(tmp_path, table.assign(ts=ends.dt.strftime("%Y%m%d %H%M%S")), "WIG20.csv")
    found = detect(str(path))
    assert found.calendar == "XWAR"
    market = make_market(built(found, tmp_path))
    assert pd.Timestamp(int(market.minutes[0]), tz="UTC") == table.ts.iloc[0]


def test_a_broker_that_changes_its_clock_is_not_sure(tmp_path):
    table = walk_on("FX", dt.date(2023, 8, 14), 120, 60)
    late = (table.ts >= pd.Timestamp("2023-11-13", tz="UTC")).to_numpy(dtype=int)
    ts = table.ts.dt.tz_localize(None) + pd.to_timedelta(2 * late, unit="h")
    path = write_csv(tmp_path, table.assign(ts=ts), "EURUSD60.csv")
    assert findings(str(path))["timezone"].sure == "assumed"
