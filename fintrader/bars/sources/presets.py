"""Layouts of vendors' files, as settings of `data.source`, and usual names of columns.

Each layout comes from this source:
- Lean: github.com/QuantConnect/Lean, Data/equity/readme.md;
- Polygon: flat files `us_stocks_sip/minute_aggs_v1`;
- Databento: databento.com/docs/schemas/ohlcv, as `to_csv` writes it;
- FirstRate: firstratedata.com, the `readme` of a bundle;
- Kibot: kibot.com/Data_Format.aspx;
- Alpaca: `get_stock_bars(...).df.to_csv()`;
- Yahoo: `to_csv()` of yfinance's table of one symbol (`Ticker.history`, or `download` with
  `multi_level_index=False`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from fintrader.bars.bars import COLUMNS

Preset = Literal["lean", "polygon", "databento", "firstrate", "kibot", "alpaca", "yahoo"]

PRESETS: dict[Preset, dict[str, Any]] = {
    "lean": {
        "header": ("ts", *COLUMNS),
        "name_pattern": "{date}_{symbol}_minute_trade",
        "uppercase": True,
        "time_format": "ms",
        "price_divisor": 10_000,
    },
    "polygon": {
        "columns": {"ts": "window_start", "symbol": "ticker"},
        "time_format": "ns",
        "timezone": "UTC",
    },
    "databento": {"columns": {"ts": "ts_event", "symbol": "symbol"}, "timezone": "UTC"},
    "firstrate": {
        "header": ("ts", *COLUMNS),
        "name_pattern": "{symbol}_full_1min*",
    },
    "kibot": {
        "header": ("date", "ts", *COLUMNS),
        "columns": {"date": "date"},
        "name_pattern": "{symbol}",
        "time_format": "%m/%d/%Y %H:%M",
    },
    "alpaca": {"columns": {"ts": "timestamp", "symbol": "symbol"}, "timezone": "UTC"},
    "yahoo": {
        "columns": {"ts": "Datetime", **{name: name.title() for name in COLUMNS}},
        "name_pattern": "{symbol}",
    },
}
"""Name of a preset -> settings of a `files` source that read the vendor's files. A setting in the
user's configuration replaces that of the preset."""


def split_words(words: str) -> tuple[str, ...]:
    """Split a text into its words at spaces and line breaks."""
    return tuple(words.split())


SPELLINGS = {
    role: split_words(words)
    for role, words in {
        "ts": """
            ts candle_date_time_utc timestamp datetime date_time unix unix_timestamp open_time
            opentime starttime window_start ts_event gmt_time utc_time local_time timestamp_utc
            datetime_utc date_utc date_gmt trade_time bar_time begins_at begin time start start_time date trade_date t
            datum_zeit zeitpunkt zeit traddt date1 close_time closetime endtime end_time dtyyyymmdd fecha
            data дата tarih 日期 时间 交易日期 日付 日付け 일자 날짜 dates datadate starttimestamp
            gregorian_date
            datenum timebarstart time_period_start snapped_at datpre timestamp_ms timestamp_us
            timestamp_ns unix_ms epoch _time date_ymd bar_start bar_end candle_begin_time ticks
            start_date tanggal start_at dt 체결시간 published_date
            dato ngày päivämäärä วันเดือนปี תאריך ημερομηνία التاريخ d""",
        "symbol": """
            symbol ticker tic sym instrument instrument_id instrument_name asset ts_code secid
            pair product_id
            contract stock stockid stock_id token token_id coin coin_id asset_id ticker_clean
            ticker_symbol stock_code code name s tckrsymb kürzel wertpapier
            股票代码 代码
            종목코드 銘柄コード ric security security_id
            permno stock_symbol codneg nazwa order_book_id currency_pair scrip_code""",
        "open": """
            open o px_open open_price openprice openingpx opening_price opnpric eröffnung eröffn
            erster abertura apertura ouv otwarcie откр açılış openfixed 开盘 开盘价 開盤價 시가 오픈
            始値
            first_trade_price firsttradeprice openprc openingskoers kurs_otwarcia preabe
            stock_price_open mid.o o_mid mid_o mid_open bidopen openbid open_bid bid_open
            bid.o bid_o pembukaan
            ouverture opening åben öppen avaus mở เปิด פתיחה άνοιγμα الافتتاح 開市
            open_prc priceopen""",
        "high": """
            high h px_high high_price highprice highpx highest_price hghpric hoch höchst máxima
            máximo maxima massimo plus_haut najwyzszy najwyższy highfixed max макс yüksek haut 高
            最高 最高价 最高價 고가 高値
            hightradeprice askhi hoog kurs_max premax tageshoch mid.h h_mid mid_h mid_high
            stock_price_high bidhigh highbid high_bid bid_high bid.h bid_h highest tertinggi højeste
            högsta ylin cao สูงสุด גבוה υψηλό الأعلى high_1 pricehigh""",
        "low": """
            low l px_low low_price lowprice lowpx lowest_price lwpric tief tiefst mínima mínimo
            minima minimo plus_bas najnizszy najniższy lowfixed min мин düşük bas 低
            最低 最低价 最低價 저가 安値
            lowtradeprice bidlo laag kurs_min premin tagestief mid.l l_mid mid_l mid_low
            stock_price_low bidlow lowbid low_bid bid_low bid.l bid_l lowest terendah laveste lägsta
            alin thấp ต่ำสุด נמוך χαμηλό الأدنى low_1 pricelow""",
        "close": """
            close c px_close close_last close_price closeprice closingpx closing_price clspric
            schluss schlusskurs fechamento cierre zamkniecie zamknięcie clot closefixed
            settle settlement_price 收盘 收盘价 收盤價 종가 終値 last latest last_price px_last
            zuletzt último ultimo dernier ostatnio şimdi цена price
            lasttradeprice prc slotkoers kurs_zamknięcia preult mid.c c_mid mid_c mid_close
            stock_price_close bidclose closebid close_bid bid_close bid.c bid_c trade_price
            terakhir 현재가 clôture laatst seneste senaste viimeisin lần_cuối ล่าสุด שער τελευταία
            الأخير 收市 trdprc_1 priceclose""",
        "volume": """
            volume vol v px_volume total_volume totalvolumetraded volume_traded trade_volume
            tickvol tick_volume tickvolume total_trade_quantity total_traded_quantity tottrdqty
            ttl_trd_qnty ttltradgvol shares_traded volumefrom volumen wolumen wol capacity stück
            объём hac number_of_shares size 交易量 成交量 成交股數 거래량 出来高
            traded_quantity total_ticks quatot umsatz_in_stück stock_volume qty quantity no.of_shares kl ปริมาณ כמות
            όγκος الحجم acvol_uns""",
    }.items()
}
"""Role of a column -> its usual names, as `plain` returns them; earlier names have precedence. The
user must give other names in `data.source.columns`."""
DATE_SPELLINGS = split_words(
    "date datum day tag trade_date calendardate dtyyyymmdd gregorian_date data fecha"
    " dato tarih дата 日期 日付 일자 날짜"
)
"""Usual names of a column of dates in a file that also has a column of times of day."""
CLOCK_SPELLINGS = split_words(
    "time zeit clock uhrzeit trade_time mdentrytime hora ora heure saat godzina время 时间 時刻 시간"
)
"""Usual names of a column of times of day."""
ACTIONS = split_words("splitfactor split_factor stock_splits divcash dividends")
"""Usual names of columns that contain splits or dividends."""
WEAK = split_words("name code stock contract start begin price last last_price")
"""Names in `SPELLINGS` that are used only if a table has no other name of the same role."""
BAR_LENGTHS = r"\d+ ?(?:m|mins?|minutes?|h|hours?|d|days?)|m(?:1|5|15|30)|h[14]|d1|daily|hourly"
"""Pattern of the lengths of bars in names of files and keys. After M only MetaTrader's lengths,
such as M30, count: M24 is a future of June 2024."""
MONEY = "usdt?|eur|gbp|jpy|chf|cad|aud|inr|cny|krw|hkd|sgd|brl|[$€£¥₩₹元円원]"
"""Pattern of the code or the sign of a currency."""
_COUNTS = "shares?|lots?|contracts?|units?|股|手|株|주"
"""Pattern of the units in which volumes are counted, in several languages."""
ZONES = dict(
    one.split("=")
    for one in split_words(
        "utc=UTC gmt=UTC eet=EET cet=CET wet=WET et=America/New_York"
        " hkt=Asia/Hong_Kong sgt=Asia/Singapore kst=Asia/Seoul jst=Asia/Tokyo"
    )
)
"""Abbreviation of a zone in the name of a column of times -> its zone."""
IN_BRACKETS = rf"[(（\[]({MONEY}|{_COUNTS}|{'|'.join(ZONES)})[)）\]]"
"""Pattern of a unit or a zone in brackets after a column's name, as in `Volume (shares)`. Other
words in brackets change the meaning of the column, as in `High (52w)`."""
_VOLUME_OF_MONEY = (
    rf"(.*[\s_])?(vol|qty|quantity|成交量|交易量|出来高|거래량|объём).*"
    rf"[(（]({MONEY})[)）]$"
)
"""Pattern of the name of a volume in money, such as `Volume (USD)`. `plain` keeps its unit, because
the column does not count shares."""


def plain(column: object) -> str:
    """Return a column's name in the form of the names in `SPELLINGS`: in lower case, with
    underscores for spaces, slashes and hyphens, and without numbering, quotes and units."""
    return _plain(str(column))


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    name = re.sub(r"(?<=\w)\s*\[([^\[\]]+)\]$", r" (\1)", name.strip())  # as in "Close [USD]"
    name = name.strip("<>[]*#\"'").lower()
    name = re.sub(r"^(\d+[a-z]?\.\s*|\$)", "", name)  # as in "1. open" and "$open"
    if not re.match(_VOLUME_OF_MONEY, name):
        name = re.sub(rf"(?<=\w)\s*{IN_BRACKETS}$", "", name)
    return re.sub(r"[\s_/-]+", "_", name).rstrip("._")


def make_unique(columns: Sequence[str]) -> list[str]:
    """Return unique names of columns: the first of several equal names stays, and each other one is
    followed by the number of its column, from 0 on."""
    return [f"{name} {at}" if name in columns[:at] else name for at, name in enumerate(columns)]
