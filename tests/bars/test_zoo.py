"""Files of bars in the layouts that people have, of five markets: each is read as `init` reads it
and built from the configuration it renders, and no cell may differ from the frame it was written
from."""

import json
import zipfile
from functools import partial, wraps

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.calendar import find_exchange_timezone
from fintrader.bars.detect import choose_kind, detect
from fintrader.bars.sources.listing import list_files
from fintrader.errors import BarError
from fintrader.market.build import make_market
from tests.bars.tables import COLUMNS, PRICES
from tests.bars.test_detect import built

MARKETS = {
    "us": ("XNAS", "2024-03-05", 8, 5, 100.0),  # over a change of clocks
    "crypto": ("24/7", "2024-03-02", 8, 15, 3000.0),
    "fx": ("24/5", "2024-03-04", 8, 15, 1.1),
    "korea": ("XKRX", "2024-03-04", 8, 5, 24000.0),
    "india": ("XBOM", "2024-03-12", 8, 5, 1500.0),
}
DAYS = 130


def walk(stamps, price, seed):
    """Bars of a random walk at these times, in numbers of at most six significant digits."""
    draws = np.random.default_rng(seed)
    places = 5 - int(np.floor(np.log10(price)))
    close = price * np.exp(np.cumsum(draws.normal(0, 0.001, len(stamps))))
    opened = np.r_[price, close[:-1]] * np.exp(draws.normal(0, 2e-4, len(stamps)))
    frame = pd.DataFrame({"open": opened, "high": 0.0, "low": 0.0, "close": close}, index=stamps)
    frame = frame.round(places)
    tick = 10.0**-places
    frame["high"] = (frame[["open", "close"]].max(axis=1) + 2 * tick).round(places)
    frame["low"] = (frame[["open", "close"]].min(axis=1) - 3 * tick).round(places)
    frame["volume"] = draws.integers(100, 5000, len(stamps))
    return frame


def stamps_of(market, daily):
    """Starts of the market's bars in UTC; of daily ones midnight of each session, without a
    zone."""
    import exchange_calendars as xc

    name, first, sessions, minutes, _ = MARKETS[market]
    calendar = xc.get_calendar(name)
    count = DAYS if daily else sessions
    days = calendar.sessions_window(calendar.date_to_session(first, "next"), count)
    if daily:
        return days
    parts = [calendar.session_minutes(day)[::minutes] for day in days]
    return parts[0].append(parts[1:])


class Zoo:
    """Two symbols' frames of a market, and a folder for them."""

    def __init__(self, folder, market, daily):
        self.folder = folder
        self.market = market
        self.zone = {"us": "America/New_York", "korea": "Asia/Seoul", "india": "Asia/Kolkata"}.get(
            market, "UTC"
        )
        self.minutes = MARKETS[market][3]
        self.daily = daily
        stamps = stamps_of(market, daily)
        names = ("BTCUSDT", "ETHUSDT") if market == "crypto" else ("EURUSD", "USDJPY")
        self.symbols = names if market in ("crypto", "fx") else ("ABCD", "EFGH")
        price = MARKETS[market][4]
        self.frames = {
            symbol: walk(stamps, price * (1 + seed), seed)
            for seed, symbol in enumerate(self.symbols)
        }

    def local(self, frame):
        """The frame with the exchange's clock."""
        return frame if self.daily else frame.tz_convert(self.zone).tz_localize(None)

    def each(self, write, ext="csv", name="{}"):
        """A file a symbol."""
        for symbol, frame in self.frames.items():
            write(frame, self.folder / f"{name.format(symbol)}.{ext}")
        return self.folder

    def long(self, frames=None):
        """One table with a column of symbols, by time."""
        parts = {s: self.local(f) for s, f in (frames or self.frames).items()}
        table = pd.concat(parts, names=["symbol", "ts"]).reset_index()
        return table.sort_values(["ts", "symbol"], kind="stable", ignore_index=True)


def each_symbol(ext="csv", name="{}"):
    """The layout of a file a symbol, from what writes a symbol's frame to its path."""

    def layout(write):
        @wraps(write)
        def files(zoo):
            return zoo.each(partial(write, zoo), ext, name)

        return files

    return layout


@each_symbol()
def unnamed_index(zoo, frame, path):
    zoo.local(frame).rename_axis(None).to_csv(path)


@each_symbol("parquet")
def unnamed_index_parquet(zoo, frame, path):
    frame.rename_axis(None).to_parquet(path)


@each_symbol("parquet")
def named_index_parquet(zoo, frame, path):
    frame.rename_axis("Date").to_parquet(path)


def long_parquet(zoo):
    zoo.long().to_parquet(zoo.folder / "all.parquet", index=False)
    return zoo.folder / "all.parquet"


def dictionary_symbols(zoo):
    table = zoo.long().astype({"symbol": "category"})
    table.to_parquet(zoo.folder / "all.parquet", index=False)
    return zoo.folder / "all.parquet"


@each_symbol("parquet")
def float32_parquet(zoo, frame, path):
    narrow = dict.fromkeys(PRICES, "float32")
    frame.astype(narrow).rename_axis("ts").to_parquet(path)


@each_symbol()
def offsets(zoo, frame, path):
    frame.tz_convert(zoo.zone).rename_axis("date").to_csv(path)


@each_symbol()
def utc_letters(zoo, frame, path):
    frame.set_axis(frame.index.strftime("%Y-%m-%dT%H:%M:%SZ")).rename_axis("timestamp").to_csv(path)


def epoch(unit, *, is_float=False):
    @each_symbol()
    def layout(zoo, frame, path):
        counts = frame.index.as_unit("ns").asi8 // unit
        index = pd.Index(counts / 1000 if is_float else counts, name="t")
        short = frame.rename(columns={name: name[0] for name in COLUMNS})
        short.set_axis(index).assign(vw=1.5, n=3).to_csv(path)

    return layout


def units_that_change(zoo):
    """Binance's dumps: milliseconds in the older files, microseconds in the newer ones."""
    for symbol, frame in zoo.frames.items():
        for day, rows in frame.groupby(frame.index.normalize()):
            late = day >= frame.index[len(frame) // 2]
            counts = rows.index.as_unit("ns").asi8 // (10**3 if late else 10**6)
            table = rows.reset_index(drop=True)
            table.insert(0, "t", counts)
            table = table.assign(end=counts + 1, quote=1.0, count=5, base=1.0, bought=1.0, none=0)
            name = f"{symbol}-{zoo.minutes}m-{day.date()}.csv"
            table.to_csv(zoo.folder / name, header=False, index=False)
    return zoo.folder


@each_symbol()
def us_dates(zoo, frame, path):
    local = zoo.local(frame)
    days, clocks = local.index.strftime("%m/%d/%Y"), local.index.strftime("%H:%M")
    local.reset_index(drop=True).assign(Date=days, Time=clocks).to_csv(path, index=False)


@each_symbol()
def am_pm(zoo, frame, path):
    local = zoo.local(frame)
    local.set_axis(local.index.strftime("%m/%d/%Y %I:%M %p")).rename_axis("Date").to_csv(path)


@each_symbol()
def day_first(zoo, frame, path):
    local = zoo.local(frame)
    local.set_axis(local.index.strftime("%d/%m/%Y %H:%M")).rename_axis("timestamp").to_csv(path)


@each_symbol()
def german(zoo, frame, path):
    words = dict(zip(COLUMNS, ("Eröffnung", "Hoch", "Tief", "Schlusskurs", "Volumen"), strict=True))
    local = zoo.local(frame).rename(columns=words)
    stamps = local.index.strftime("%d.%m.%Y" if zoo.daily else "%d.%m.%Y %H:%M")
    local.set_axis(stamps).rename_axis("Datum").to_csv(path, sep=";", decimal=",")


@each_symbol()
def dukascopy(zoo, frame, path):
    stamps = frame.index.strftime("%d.%m.%Y %H:%M:%S.000")
    frame.rename(columns=str.title).set_axis(stamps).rename_axis("Gmt time").to_csv(path)


@each_symbol(name="{}_M5_202403")
def metatrader(zoo, frame, path):
    local = zoo.local(frame)
    table = pd.DataFrame(
        {
            "<DATE>": local.index.strftime("%Y.%m.%d"),
            "<TIME>": local.index.strftime("%H:%M:%S"),
            **{f"<{name.upper()}>": local[name].to_numpy() for name in PRICES},
            "<TICKVOL>": local.volume.to_numpy(),
            "<VOL>": 0,
            "<SPREAD>": 3,
        }
    )
    table.to_csv(path, sep="\t", index=False)


@each_symbol(name="DAT_ASCII_{}_M1_202403")
def histdata(zoo, frame, path):
    local = frame.tz_convert("Etc/GMT+5").tz_localize(None)  # all year
    local.set_axis(local.index.strftime("%Y%m%d %H%M%S")).to_csv(path, sep=";", header=False)


@each_symbol("txt")
def stooq(zoo, frame, path):
    local = zoo.local(frame)
    table = pd.DataFrame(
        {
            "<TICKER>": path.stem,
            "<PER>": "D" if zoo.daily else zoo.minutes,
            "<DATE>": local.index.strftime("%Y%m%d"),
            "<TIME>": local.index.strftime("%H%M%S"),
            **{f"<{name.upper()}>": local[name].to_numpy() for name in PRICES},
            "<VOL>": local.volume.to_numpy(),
            "<OPENINT>": 0,
        }
    )
    table.to_csv(path, index=False)


def alpha_vantage(zoo):
    titles = {name: f"{number}. {name}" for number, name in enumerate(COLUMNS, 1)}

    def write(frame, path):
        local = zoo.local(frame).rename(columns=titles).rename_axis("date")
        local.iloc[::-1].to_csv(path)

    return zoo.each(write, name="daily_{}" if zoo.daily else "intraday_5min_{}")


def comment_and_newest_first(zoo):
    parts = []
    for symbol, frame in zoo.frames.items():
        stamps = frame.index.tz_localize("UTC") if zoo.daily else frame.index
        table = frame.reset_index(drop=True)
        table.insert(0, "unix", stamps.as_unit("ms").asi8)
        table.insert(1, "date", stamps.strftime("%Y-%m-%d %H:%M:%S"))
        table.insert(2, "symbol", symbol)
        parts.append(table.rename(columns={"volume": "Volume BTC"}).assign(**{"Volume USD": 1.0}))
    table = pd.concat(parts).sort_values("unix", ascending=False, kind="stable")
    path = zoo.folder / "export.csv"
    path.write_text("https://www.example.com/data\n" + table.to_csv(index=False))
    return path


def worth_called_volume(zoo):
    table = zoo.long()
    table.insert(0, "volume_btc", table["volume"])
    path = zoo.folder / "export.csv"
    table.assign(volume=table["volume"] * table["close"]).to_csv(path, index=False)
    return path


def lines_above(zoo):
    path = zoo.folder / "report.csv"
    path.write_text("Bars\n\nof two symbols\n\n" + zoo.long().to_csv(index=False))
    return path


def trading_view(zoo):
    def write(frame, path):
        index = pd.Index(frame.index.as_unit("s").asi8, name="time")
        frame.rename(columns={"volume": "Volume"}).set_axis(index).to_csv(path)

    return zoo.each(write, name=f"NASDAQ_{{}}, {zoo.minutes}")


@each_symbol(name="STOCKS_{}")
def vendor_in_the_name(zoo, frame, path):
    zoo.local(frame).rename_axis("Date").to_csv(path)


def file_a_month(zoo):
    for symbol, frame in zoo.frames.items():
        local = zoo.local(frame)
        for number, rows in local.groupby(local.index.to_period("M" if zoo.daily else "W")):
            month = (number.start_time + pd.Timedelta("6D")).strftime("%Y-%m")
            name = f"{symbol.lower()}-1m-{month}.csv"
            if not zoo.daily:
                name = f"{symbol.lower()}-1m-{number.start_time.date()}.csv"
            rows.rename_axis("Date").to_csv(zoo.folder / name)
    zoo.frames = dict(zoo.frames.items())
    return zoo.folder


def wide(zoo):
    parts = {s: zoo.local(f) for s, f in zoo.frames.items()}
    table = pd.concat(parts, axis=1)
    table.columns = [f"{field}_{symbol}" for symbol, field in table.columns]
    table.rename_axis("Date").to_csv(zoo.folder / "wide.csv")
    return zoo.folder / "wide.csv"


def levels(order):
    def layout(zoo):
        parts = {s: zoo.local(f).rename(columns=str.title) for s, f in zoo.frames.items()}
        table = pd.concat(parts, axis=1, names=["Ticker", "Price"])
        table.columns = table.columns.reorder_levels(order)
        index = "Date" if zoo.daily else "Datetime"
        table.sort_index(axis=1).rename_axis(index).to_csv(zoo.folder / "yf.csv")
        return zoo.folder / "yf.csv"

    return layout


def wide_closes(zoo):
    table = pd.DataFrame({s: zoo.local(f).close for s, f in zoo.frames.items()})
    table.rename_axis("Date").to_csv(zoo.folder / "closes.csv")
    zoo.frames = {
        symbol: frame.assign(volume=0, **dict.fromkeys(("open", "high", "low"), frame.close))
        for symbol, frame in zoo.frames.items()
    }
    return zoo.folder / "closes.csv"


@each_symbol()
def no_volume(zoo, frame, path):
    zoo.local(frame).drop(columns="volume").rename_axis("time").to_csv(path)
    frame["volume"] = 0


def further_columns(zoo):
    table = (
        zoo.long().rename(columns=str.title).assign(**{"Adj Close": 1.0, "VWAP": 2.0, "Trades": 3})
    )
    path = zoo.folder / "all.csv"
    table.to_csv(path, index=False, quoting=1)
    return path


def pipes(zoo):
    zoo.long().to_csv(zoo.folder / "all.csv", sep="|", index=False)
    return zoo.folder / "all.csv"


def hive(zoo):
    for symbol, frame in zoo.frames.items():
        home = zoo.folder / f"symbol={symbol}"
        home.mkdir()
        zoo.local(frame).rename_axis("ts").to_parquet(home / "part-0.parquet")
    return zoo.folder


@each_symbol()
def ends(zoo, frame, path):
    step = pd.Timedelta(minutes=zoo.minutes)
    zoo.local(frame).shift(freq=step).rename_axis("time").to_csv(path)


def lean_zips(zoo):
    """Lean's bars of hours and days: prices in 1/10,000 USD."""
    for symbol, frame in zoo.frames.items():
        local = zoo.local(frame)
        table = local.set_axis(local.index.strftime("%Y%m%d %H:%M"))
        table[PRICES] = (table[PRICES] * 10_000).round().astype(int)
        with zipfile.ZipFile(zoo.folder / f"{symbol.lower()}.zip", "w") as archive:
            archive.writestr(f"{symbol.lower()}.csv", table.to_csv(header=False))
            archive.writestr("__MACOSX/._abcd.csv", "not bars")
    return zoo.folder


@each_symbol()
def zoned_days(zoo, frame, path):
    frame.tz_localize(zoo.zone).rename(columns=str.title).rename_axis("Date").to_csv(path)


@each_symbol()
def epoch_days(zoo, frame, path):
    stamps = frame.tz_localize(zoo.zone).index.as_unit("ms").asi8
    frame.set_axis(pd.Index(stamps, name="t")).to_csv(path)


def tushare(zoo):
    table = zoo.long().rename(columns={"symbol": "ts_code", "ts": "trade_date", "volume": "vol"})
    table["trade_date"] = table.trade_date.dt.strftime("%Y%m%d")
    table.iloc[::-1].assign(pre_close=1.0, amount=2.0).to_csv(zoo.folder / "daily.csv", index=False)
    return zoo.folder / "daily.csv"


@each_symbol()
def akshare(zoo, frame, path):
    words = dict(zip(COLUMNS, ("开盘", "最高", "最低", "收盘", "成交量"), strict=True))
    frame.rename(columns=words).rename_axis("日期").assign(成交额=1.0).to_csv(path)


@each_symbol()
def months_in_words(zoo, frame, path):
    words = frame.index.strftime("%b %d, %Y")
    frame.rename(columns={"close": "Price", "volume": "Vol."}).set_axis(words).rename_axis(
        "Date"
    ).iloc[::-1].to_csv(path)


@each_symbol()
def last_price(zoo, frame, path):
    columns = ["close", "volume", "open", "high", "low"]
    titles = dict(zip(columns, ("Close/Last", "Volume", "Open", "High", "Low"), strict=True))
    days = frame.index.strftime("%m/%d/%Y")
    frame[columns].rename(columns=titles).set_axis(days).rename_axis("Date").iloc[::-1].to_csv(path)


def dashes_and_years(zoo):
    for symbol, frame in zoo.frames.items():
        for year, rows in frame.groupby(frame.index.year):
            rows.rename_axis("Date").to_csv(zoo.folder / f"{symbol}-{year}-yahoofinance.csv")
    return zoo.folder


@each_symbol(name="{} Historical Data")
def investing(zoo, frame, path):
    """Formatted numbers: separators, volumes in K or M, changes in per cent."""
    places = 5 - int(np.floor(np.log10(MARKETS[zoo.market][4])))
    frame.volume = frame.volume * 10
    frame.iloc[::7, frame.columns.get_loc("volume")] = 3_250_000
    words = [f"{v / 1e6:.2f}M" if v > 1e6 else f"{v / 1e3:.2f}K" for v in frame.volume]
    text = pd.DataFrame({"Date": frame.index.strftime("%b %d, %Y")})
    for title, name in (("Price", "close"), ("Open", "open"), ("High", "high"), ("Low", "low")):
        text[title] = [f"{value:,.{places}f}" for value in frame[name]]
    text["Vol."] = words
    text.assign(**{"Change %": "-0.42%"}).iloc[::-1].to_csv(path, index=False, quoting=1)


@each_symbol()
def in_dollars(zoo, frame, path):
    places = 5 - int(np.floor(np.log10(MARKETS[zoo.market][4])))
    text = frame.astype({"volume": str})
    for name in PRICES:
        text[name] = [f"${value:.{places}f}" for value in frame[name]]
    text.set_axis(frame.index.strftime("%m/%d/%Y")).rename_axis("Date").to_csv(path)


def file_a_day(zoo):
    """One daily bar of many symbols per file, with the day in words in its name."""
    table = zoo.long().rename(columns={"symbol": "SYMBOL", "volume": "TOTTRDQTY"})
    table["TIMESTAMP"] = table.pop("ts").dt.strftime("%d-%b-%Y").str.upper()
    table.insert(1, "SERIES", "EQ")
    for day, rows in table.groupby("TIMESTAMP"):
        rows.assign(ISIN="X").to_csv(zoo.folder / f"cm{day.replace('-', '')}bhav.csv", index=False)
    return zoo.folder


def folder_a_day(zoo):
    for symbol, frame in zoo.frames.items():
        for day in frame.index:
            home = zoo.folder / day.strftime("%Y%m%d")
            home.mkdir(exist_ok=True)
            frame.loc[[day]].rename_axis("Date").to_csv(home / f"{symbol}.csv")
    return zoo.folder


@each_symbol()
def excel_days(zoo, frame, path):
    local = zoo.local(frame)
    days = (local.index - pd.Timestamp("1899-12-30")) / pd.Timedelta("1D")
    days = days.astype(int) if zoo.daily else days
    local.set_axis(days).rename_axis("Date").to_csv(path)


@each_symbol("xlsx")
def workbook_of_numbers(zoo, frame, path):
    local = zoo.local(frame)
    days = (local.index - pd.Timestamp("1899-12-30")) / pd.Timedelta("1D")
    local.set_axis(days).rename_axis("Date").reset_index().to_excel(path, index=False)


def zone_names(shown, word=None):
    """Times that end with the name of their zone; `word` instead of its abbreviation."""

    @each_symbol()
    def layout(zoo, frame, path):
        local = frame.tz_convert(shown or zoo.zone)
        name = (word or "%Z").format(zone=zoo.zone)
        text = local.index.strftime(f"%Y-%m-%d %H:%M:%S {name}")
        local.set_axis(text).rename_axis("time").to_csv(path)

    return layout


@each_symbol()
def at_the_close(zoo, frame, path):
    """Daily bars stamped at their session's end, local time."""
    clock = {"us": "16h", "korea": "15h30min", "india": "15h30min"}.get(zoo.market, "23h59min59s")
    frame.set_axis(frame.index + pd.Timedelta(clock)).rename_axis("Date").to_csv(path)


@each_symbol()
def at_the_close_zoned(zoo, frame, path):
    clock = {"us": "16h", "korea": "15h30min", "india": "15h30min"}.get(zoo.market, "23h59min59s")
    stamps = (frame.index + pd.Timedelta(clock)).tz_localize(zoo.zone).tz_convert("UTC")
    frame.set_axis(stamps).rename_axis("Date").to_csv(path)


@each_symbol()
def last_bid_and_ask(zoo, frame, path):
    stamps = frame.index.strftime("%Y%m%d %H%M%S")
    for kind, factor in (("Last", 1), ("Bid", 0.99), ("Ask", 1.01)):
        priced = frame.assign(**{name: frame[name] * factor for name in PRICES})
        priced.set_axis(stamps).to_csv(path.with_suffix(f".{kind}.txt"), sep=";", header=False)


@each_symbol("txt")
def up_and_down(zoo, frame, path):
    """TradeStation's times are the ends of bars, its volume has two parts."""
    local = zoo.local(frame)
    table = local.reset_index(drop=True).rename(columns=str.title)
    up = table.pop("Volume") // 3
    table.insert(0, "Date", local.index.strftime("%m/%d/%Y"))
    table.insert(1, "Time", local.index.strftime("%H:%M"))
    table.assign(Up=up, Down=local.volume.to_numpy() - up).to_csv(path, index=False, quoting=2)


def xts(has_numbers, index):
    """R's `write.zoo`, or `write.csv` of a frame with an index and numbers of rows."""

    def layout(zoo):
        parts = []
        for symbol, frame in zoo.frames.items():
            named = {name: f"{symbol}.{name.title()}" for name in COLUMNS}
            parts.append(zoo.local(frame).rename(columns=named))
            parts.append(zoo.local(frame)[["close"]].set_axis([f"{symbol}.Adjusted"], axis=1))
        table = pd.concat(parts, axis=1).rename_axis(index)
        if has_numbers:
            table = table.reset_index()
            table.index += 1
        table.to_csv(zoo.folder / "xts.csv", index_label=None if has_numbers else index)
        return zoo.folder / "xts.csv"

    return layout


def names_again(zoo):
    """Concatenated files with their headers, and a remark at the end."""
    for symbol, frame in zoo.frames.items():
        table, half = zoo.local(frame).rename_axis("Date"), len(frame) // 2
        text = table[:half].to_csv() + table[half:].to_csv()
        remark = "Date range 2024 downloaded from a vendor\n"
        (zoo.folder / f"{symbol}.csv").write_text(text + remark)
    return zoo.folder


@each_symbol()
def raw_and_adjusted(zoo, frame, path):
    adjusted = frame.mul(0.5).rename(columns=lambda name: f"adj{name.title()}")
    table = frame[["close", "high", "low", "open", "volume"]].join(adjusted)
    table = table.assign(divCash=0.0, splitFactor=1.0)
    table.set_axis(frame.index.tz_localize("UTC")).rename_axis("date").to_csv(path)


@each_symbol()
def old_chinese(zoo, frame, path):
    words = dict(zip(COLUMNS, ("开盘", "最高", "最低", "收盘", "成交量"), strict=True))
    frame.rename(columns=words).rename_axis("日期").to_csv(path, encoding="gbk")


@each_symbol()
def wide_characters(zoo, frame, path):
    zoo.local(frame).rename_axis("Date").to_csv(path, encoding="utf-16-le")


@each_symbol()
def levels_each(zoo, frame, path):
    """yfinance's three header lines, which name the symbol, one file per symbol."""
    local = zoo.local(frame).rename(columns=str.title)
    local.columns = pd.MultiIndex.from_product([local.columns, [path.stem]])
    local.rename_axis("Date").rename_axis(["Price", "Ticker"], axis=1).to_csv(path)


def digits(written):
    """Days without separators, prices, turnover, then volume, and no header."""

    @each_symbol()
    def layout(zoo, frame, path):
        table = frame.set_axis(frame.index.strftime(written))
        table.insert(4, "turnover", table.volume * table.close)
        table.assign(trades=7).to_csv(path, header=False, quoting=1)

    return layout


@each_symbol()
def shared_ending(zoo, frame, path):
    local = zoo.local(frame)
    table = local.rename_axis("Date").reset_index()
    table = table.rename(columns={"volume": "vol"}).rename(columns="{}_1h".format)
    table.assign(Date=local.index.strftime("%Y-%m-%d"), Hour=4).to_csv(path, index=False)


@each_symbol()
def russian(zoo, frame, path):
    words = dict(zip(COLUMNS, ("Откр.", "Макс.", "Мин.", "Цена", "Объём"), strict=True))
    frame.volume = frame.volume * 1000
    text = frame.rename(columns=words)
    text["Объём"] = [f"{value / 1e6:.3f}M".replace(".", ",") for value in frame.volume]
    days = frame.index.strftime("%d.%m.%Y")
    text.set_axis(days).rename_axis("Дата").to_csv(path, decimal=",", quoting=1)


@each_symbol("parquet")
def tuples(zoo, frame, path):
    """yfinance's columns of two levels in pandas' Parquet, one ticker per file."""
    names = pd.MultiIndex.from_product([[path.stem], map(str.title, COLUMNS)])
    frame.set_axis(names, axis=1).rename_axis("Date").to_parquet(path)


def tuples_field_first(zoo):
    both = pd.concat(zoo.frames, axis=1).swaplevel(axis=1)
    both.rename_axis("Date").to_parquet(zoo.folder / "all.parquet")
    return zoo.folder / "all.parquet"


def price_over_times(zoo):
    """yfinance's level `Price` over the times, and other words for prices and volume."""
    words = {"open": "open_", "high": "max", "low": "min", "close": "Settle", "volume": "Capacity"}
    return zoo.each(
        lambda f, p: zoo.local(f).rename(columns=words).rename_axis("Price").to_csv(p),
        name="{}_H1" if zoo.market == "us" else "{}",
    )


@each_symbol()
def epoch_and_text(zoo, frame, path):
    seconds = frame.index.as_unit("s").asi8
    table = frame.set_axis(pd.Index(seconds, name="time"))
    table.assign(date=frame.index.strftime("%Y-%m-%d %H:%M:%S")).to_csv(path)


@each_symbol()
def clock_of_digits(zoo, frame, path):
    """Times of day like 93100000, and one of 1:05 as 10500000."""
    local = zoo.local(frame)
    clock = [int(one) for one in local.index.strftime("%H%M%S000")]
    days = local.index.strftime("%Y%m%d")
    local.reset_index(drop=True).assign(CalendarDate=days, MDEntryTime=clock).to_csv(
        path, index=False
    )


def closes_on_holidays(zoo):
    """JSON rows with a close alone."""

    def write(frame, path):
        rows = frame.astype(object)
        rows.iloc[50::60, :3] = None
        rows.iloc[50::60, 4] = 0
        stamps = frame.index.as_unit("ms").asi8.tolist()
        lists = [[stamp, *row] for stamp, row in zip(stamps, rows.values.tolist(), strict=True)]
        path.write_text(json.dumps(lists))

    zoo.each(write, "json")
    zoo.frames = {
        symbol: frame[~np.isin(np.arange(len(frame)), np.arange(50, len(frame), 60))]
        for symbol, frame in zoo.frames.items()
    }
    return zoo.folder


@each_symbol()
def evening_before(zoo, frame, path):
    """Days stamped at 22:00 of the evening before."""
    early = pd.Timedelta("2h")
    frame.set_axis(frame.index - early).rename_axis("Date").to_csv(path)


@each_symbol()
def late_ends(zoo, frame, path):
    """Binance's closing times: the last millisecond of each bar."""
    ends = frame.index.as_unit("ms").asi8 + zoo.minutes * 60_000 - 1
    names = {name: f"{name}Price" for name in PRICES}
    frame.set_axis(ends).rename(columns=names).rename_axis("endTime").to_csv(path)


def zeros_without_trade(zoo):
    """Zeros, and the last close, on every seventh bar."""

    def write(frame, path):
        table = zoo.local(frame).rename_axis("Date")
        table.iloc[4::7, table.columns.get_indexer(["open", "high", "low", "volume"])] = 0
        table.to_csv(path)

    zoo.each(write)
    zoo.frames = {
        symbol: frame[np.arange(len(frame)) % 7 != 4] for symbol, frame in zoo.frames.items()
    }
    return zoo.folder


def no_last_newline(zoo):
    zoo.each(lambda f, p: zoo.local(f).rename_axis("Date").to_csv(p))
    for path in zoo.folder.iterdir():
        path.write_text(path.read_text().rstrip("\n"))
    return zoo.folder


INTRADAY = {
    "epoch_s": epoch(10**9),
    "epoch_ms": epoch(10**6),
    "epoch_us": epoch(10**3),
    "epoch_ns": epoch(1),
    "epoch_fraction": epoch(10**6, is_float=True),
    **{
        one.__name__: one
        for one in (
            *(named_index_parquet, float32_parquet, offsets, utc_letters, units_that_change),
            *(us_dates, am_pm, dukascopy, metatrader, histdata, trading_view, ends),
            *(last_bid_and_ask, up_and_down, late_ends, clock_of_digits),
        )
    },
    "zone_abbreviations": zone_names("America/New_York"),
    "zone_names": zone_names(None, "{zone}"),
    "zone_utc": zone_names("UTC"),
    "zone_offset": zone_names("Etc/GMT-2", "GMT+2"),
}
DAILY = {
    "digits_day_first": digits("%d%m%y"),
    "digits_month_first": digits("%m%d%Y"),
    **{
        one.__name__: one
        for one in (
            *(zoned_days, epoch_days, tushare, akshare, months_in_words, last_price),
            *(dashes_and_years, investing, in_dollars, file_a_day, folder_a_day, at_the_close),
            *(at_the_close_zoned, raw_and_adjusted, old_chinese, russian, zeros_without_trade),
            *(closes_on_holidays, evening_before),
        )
    },
}
BOTH = {
    "levels_price_first": levels(["Price", "Ticker"]),
    "levels_ticker_first": levels(["Ticker", "Price"]),
    "xts_numbered": xts(True, "Index"),
    "xts_named": xts(False, "Index"),
    **{
        one.__name__: one
        for one in (
            *(unnamed_index, unnamed_index_parquet, long_parquet, dictionary_symbols, day_first),
            *(
                lean_zips,
                german,
                stooq,
                alpha_vantage,
                comment_and_newest_first,
                lines_above,
                worth_called_volume,
                hive,
                pipes,
            ),
            *(vendor_in_the_name, file_a_month, wide, wide_closes, no_volume, further_columns),
            *(excel_days, workbook_of_numbers, names_again, wide_characters),
            *(levels_each, shared_ending, no_last_newline),
            *(tuples, tuples_field_first, price_over_times, epoch_and_text),
        )
    },
}
CASES = [
    pytest.param(
        market, name, layout, daily, id=f"{market}-{'days' if daily else 'minutes'}-{name}"
    )
    for market in MARKETS
    for layouts, kinds in ((INTRADAY, [False]), (DAILY, [True]), (BOTH, [False, True]))
    for name, layout in layouts.items()
    for daily in kinds
    if not (layout is lean_zips and market != "us")
    if not (layout is evening_before and market != "fx")
    # Where trading never stops, nothing tells a bar's end from its start.
    if not (layout is ends and market in ("crypto", "fx"))
]
QUICK = (
    "us-days-levels_price_first",
    "fx-days-evening_before",
    "crypto-minutes-units_that_change",
    "korea-days-zoned_days",
)


@pytest.mark.parametrize(
    ("market", "name", "layout", "daily"),
    [
        case if case.id in QUICK else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_every_cell_is_the_frames(market, name, layout, daily, tmp_path):
    zoo = Zoo(tmp_path / "bars", market, daily)
    zoo.folder.mkdir()
    assert_cells(zoo, layout(zoo), tmp_path, name)


def assert_cells(zoo, path, tmp_path, layout):
    """Build the market that `init` proposes; its cells must be those of the zoo's frames."""
    found = detect(str(path))
    settings = built(found, tmp_path).model_copy(update={"bar_minutes": found.bar_minutes})
    market = make_market(settings)
    assert tuple(market.symbols) == tuple(sorted(zoo.symbols)), layout
    stamps = pd.DatetimeIndex(market.timestamps())
    stamps = stamps.tz_localize("UTC") if stamps.tz is None else stamps.tz_convert("UTC")
    for column, symbol in enumerate(market.symbols):
        frame = zoo.frames[symbol]
        traded = market.tradable.numpy()[:, column]
        got = stamps[traded]
        if zoo.daily:
            got = got.tz_convert(zoo.zone).tz_localize(None).normalize()
        assert list(got) == list(frame.index), layout
        for field in ("open", "close", "volume"):
            values = getattr(market, field).numpy()[traded, column]
            np.testing.assert_allclose(values, frame[field].to_numpy("float32"), rtol=1e-6)


@pytest.mark.parametrize("rule", ["W-FRI", "ME"])
def test_bars_longer_than_a_day_are_refused(rule, tmp_path):
    zoo = Zoo(tmp_path, "us", daily=True)
    parts = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    zoo.each(lambda f, p: f.resample(rule).agg(parts).rename_axis("Date").to_csv(p))
    with pytest.raises(BarError, match="longer than a day"):
        detect(str(tmp_path))


def build_alone(frame, path, tmp_path):
    """Write one symbol's frame and build the market that `init` proposes, cell by cell the frame;
    `frame.index`: starts of bars as written, or days."""
    found = detect(str(path))
    settings = built(found, tmp_path).model_copy(update={"bar_minutes": found.bar_minutes})
    market = make_market(settings)
    traded = market.tradable.numpy()[:, 0]
    for field in ("open", "close", "volume"):
        values = getattr(market, field).numpy()[traded, 0]
        np.testing.assert_allclose(values, frame[field].to_numpy("float32"), rtol=1e-6)
    stamps = pd.DatetimeIndex(market.timestamps())[traded]
    return found, stamps.tz_convert("UTC") if stamps.tz else stamps.tz_localize("UTC")


def hours_of(calendar, zone):
    """A walk over the full hours of a zone's clock that touch sessions, at their starts in UTC."""
    import exchange_calendars as xc

    exchange = xc.get_calendar(calendar)
    days = exchange.sessions_window(exchange.date_to_session("2024-02-20", "next"), 40)
    minutes = exchange.sessions_minutes(days[0], days[-1])
    hours = minutes.tz_convert(zone).tz_localize(None).floor("h").unique()
    return walk(hours.tz_localize(zone).tz_convert("UTC"), 100.0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calendar", "zone", "label"),
    [
        ("XNAS", "America/New_York", "start"),
        ("XNAS", "Europe/Warsaw", "end"),
        pytest.param("XNAS", "UTC", "start", marks=pytest.mark.slow),
        pytest.param("XBOM", "Asia/Kolkata", "start", marks=pytest.mark.slow),
        pytest.param("XHKG", "Asia/Hong_Kong", "end", marks=pytest.mark.slow),
        pytest.param("XTKS", "Asia/Tokyo", "start", marks=pytest.mark.slow),
    ],
)
def test_bars_of_full_hours_may_begin_before_the_open(calendar, zone, label, tmp_path):
    """Stooq's and most brokers' hours, of sessions that open at half past nine: 9:00 is the first
    bar."""
    frame = hours_of(calendar, find_exchange_timezone(calendar))
    written = frame.tz_convert(zone).tz_localize(None)
    written.index += pd.Timedelta(hours=int(label == "end"))
    written.rename_axis("Date").to_csv(tmp_path / "ABCD.csv")
    found, stamps = build_alone(frame, tmp_path / "ABCD.csv", tmp_path)
    assert found.calendar == calendar
    assert list(stamps) == list(frame.index)


def test_bars_around_the_session_by_the_hour_are_those_of_the_session(tmp_path):
    """04:00 to 20:00 in New York: once taken for futures."""
    days = stamps_of("us", daily=True)[:40]
    stamps = pd.DatetimeIndex(
        [day + pd.Timedelta(hours=hour) for day in days for hour in range(4, 20)]
    )
    frame = walk(stamps.tz_localize("America/New_York").tz_convert("UTC"), 100.0, 3)
    inside = frame.index.tz_convert("America/New_York").hour.isin(range(9, 16))
    frame.loc[inside, "volume"] *= 40
    frame.tz_convert("America/New_York").tz_localize(None).rename_axis("Date").to_csv(
        tmp_path / "ABCD.csv"
    )
    found, stamps = build_alone(frame[inside], tmp_path / "ABCD.csv", tmp_path)
    assert (found.calendar, found.extended) == ("XNAS", True)
    assert list(stamps) == list(frame.index[inside])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calendar", "zone", "first", "last", "step", "label"),
    [
        ("XEUR", "Europe/Berlin", "09:00", "22:00", 1, "end"),
        ("XMOS", "Europe/Moscow", "10:00", "18:45", 5, "start"),
    ],
)
def test_a_rarer_calendar_is_found(calendar, zone, first, last, step, label, tmp_path):
    import exchange_calendars as xc

    exchange = xc.get_calendar(calendar)
    parts = [
        pd.date_range(
            f"{day:%Y-%m-%d} {first}",
            f"{day:%Y-%m-%d} {last}",
            freq=f"{step}min",
            tz=zone,
            inclusive="left",
        )
        for day in exchange.sessions_in_range("2024-03-04", "2024-04-19")
    ]
    frame = walk(parts[0].append(parts[1:]).tz_convert("UTC"), 100.0, 3)
    written = frame.tz_convert(zone).tz_localize(None)
    written.index += pd.Timedelta(minutes=step * (label == "end"))
    written.rename_axis("Date").to_csv(tmp_path / "ABCD.csv")
    found, stamps = build_alone(frame, tmp_path / "ABCD.csv", tmp_path)
    noted = {one.setting: one for one in found.findings}
    assert (noted["calendar"].value, noted["calendar"].sure) == (calendar, "assumed")
    assert list(stamps) == list(frame.index)


WORKED_SATURDAYS = ["2024-02-17", "2024-04-27", "2024-06-08", "2024-08-31", "2024-11-02"]


@pytest.mark.slow
def test_days_of_worked_saturdays_count_on_a_calendar_of_all_days(tmp_path):
    days = pd.bdate_range("2024-02-01", "2024-11-29").union(pd.DatetimeIndex(WORKED_SATURDAYS))
    frame = walk(days, 100.0, 3)
    frame.rename_axis("Date").to_csv(tmp_path / "ABCD.csv")
    found, stamps = build_alone(frame, tmp_path / "ABCD.csv", tmp_path)
    noted = {one.setting: one for one in found.findings}
    assert (noted["calendar"].value, noted["calendar"].sure) == ("24/7", "assumed")
    assert "24/5 fits worse: 2.3% lie outside" in noted["calendar"].why
    assert list(stamps.tz_localize(None)) == list(days)


@pytest.mark.slow
def test_days_that_are_a_day_off_stay_refused(tmp_path):
    """Fridays of some weeks as Sundays before, as a wrong zone writes them: no trading on
    weekends."""
    days = pd.bdate_range("2024-02-01", "2024-11-29")
    early = days - pd.to_timedelta((days.isocalendar().week % 4 == 0).to_numpy().astype(int), "D")
    walk(early, 100.0, 3).rename_axis("Date").to_csv(tmp_path / "ABCD.csv")
    with pytest.raises(BarError, match="outside of the sessions"):
        detect(str(tmp_path / "ABCD.csv"))


@pytest.mark.slow
def test_four_hours_of_currencies_in_utc_count_on_a_calendar_of_all_days(tmp_path):
    """The first bar of a week begins before the market opens, at 21:00 or 22:00."""
    stamps = pd.date_range("2024-01-07 20:00", "2024-12-13 20:00", freq="4h", tz="UTC")
    hour_of_week = stamps.day_of_week * 24 + stamps.hour
    frame = walk(stamps[(hour_of_week < 5 * 24) | (hour_of_week >= 6 * 24 + 20)], 1.1, 3)
    frame.tz_localize(None).to_csv(tmp_path / "EURUSD_H4.csv", header=False)
    found, got = build_alone(frame, tmp_path / "EURUSD_H4.csv", tmp_path)
    noted = {one.setting: one for one in found.findings}
    assert (noted["calendar"].sure, noted["timezone"].sure) == ("assumed", "assumed")
    assert list(got) == list(frame.index)


def test_files_of_several_lengths_of_bars_are_refused_with_a_pattern_that_works(tmp_path):
    zoo = Zoo(tmp_path / "bars", "us", daily=False)
    zoo.folder.mkdir()
    zoo.each(lambda f, p: zoo.local(f).rename_axis("Date").to_csv(p), name="{}_5min")
    parts = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    for symbol, frame in zoo.frames.items():
        longer = zoo.local(frame.resample("15min").agg(parts).dropna())
        longer.rename_axis("Date").to_csv(zoo.folder / f"{symbol}_15min.csv")
    with pytest.raises(BarError, match=r"lengths of bars \(15min, 5min\)") as caught:
        detect(str(zoo.folder))
    assert str(caught.value).endswith("--name-pattern '{symbol}_15min'")
    found = detect(str(zoo.folder), known={"name_pattern": "{symbol}_5min"})
    assert (found.bar_minutes, found.symbols) == (5, zoo.symbols)


def test_months_of_futures_are_no_lengths_of_bars(tmp_path):
    """ES_H24 is March 2024, EURUSD_H1 hours."""
    for name in ("ES_H24", "ES_M24"):
        (tmp_path / f"{name}.csv").touch()
    files = list_files(str(tmp_path), text=True)
    assert [file.stem for file in choose_kind(files)] == ["ES_H24", "ES_M24"]


def test_a_last_volume_of_0_without_a_newline_is_whole(tmp_path):
    zoo = Zoo(tmp_path, "us", daily=False)
    for symbol, frame in zoo.frames.items():
        frame.iloc[-1, 4] = 0
        text = zoo.local(frame).rename_axis("Date").to_csv()
        (tmp_path / f"{symbol}.csv").write_text(text.rstrip("\n"))
    assert detect(str(tmp_path)).symbols == zoo.symbols
