"""Layouts of vendors' files, as settings of `data.source`, and the usual names of columns.

Lean: github.com/QuantConnect/Lean, Data/equity/readme.md. Polygon: flat files
`us_stocks_sip/minute_aggs_v1`. Databento: databento.com/docs/schemas/ohlcv, as `to_csv` writes it.
FirstRate: firstratedata.com, `readme` of a bundle. Kibot: kibot.com/Data_Format.aspx. Alpaca:
`get_stock_bars(...).df.to_csv()`. Yahoo: `to_csv()` of what yfinance has of one symbol
(`Ticker.history`, or `download` with `multi_level_index=False`).
"""

from __future__ import annotations

from typing import Any, Literal

Preset = Literal["lean", "polygon", "databento", "firstrate", "kibot", "alpaca", "yahoo"]

_TITLE = {"open": "Open", "high": "High", "low": "Low", "close": "Close", "volume": "Volume"}

PRESETS: dict[Preset, dict[str, Any]] = {
    "lean": {
        "header": ("ts", "open", "high", "low", "close", "volume"),
        "name_pattern": "{date}_{symbol}_minute_trade",
        "uppercase": True,
        "time_format": "ms",
        "price_divisor": 10_000,
        "timezone": "America/New_York",
    },
    "polygon": {
        "columns": {"ts": "window_start", "symbol": "ticker"},
        "time_format": "ns",
        "timezone": "UTC",
    },
    "databento": {"columns": {"ts": "ts_event", "symbol": "symbol"}, "timezone": "UTC"},
    "firstrate": {
        "header": ("ts", "open", "high", "low", "close", "volume"),
        "name_pattern": "{symbol}_full_1min*",
        "timezone": "America/New_York",
    },
    "kibot": {
        "header": ("date", "ts", "open", "high", "low", "close", "volume"),
        "columns": {"date": "date"},
        "name_pattern": "{symbol}",
        "time_format": "%m/%d/%Y %H:%M",
        "timezone": "America/New_York",
    },
    "alpaca": {"columns": {"ts": "timestamp", "symbol": "symbol"}, "timezone": "UTC"},
    "yahoo": {
        "columns": {"ts": "Datetime", **_TITLE},
        "name_pattern": "{symbol}",
        "timezone": "America/New_York",
    },
}
"""Name -> settings of a `files` source that read the vendor's files; a configuration's settings
have precedence."""

SPELLINGS = {
    "ts": (
        "ts",
        "time",
        "timestamp",
        "datetime",
        "date_time",
        "date",
        "window_start",
        "ts_event",
        "t",
        "datum_zeit",
        "zeitpunkt",
        "zeit",
    ),
    "symbol": (
        "symbol",
        "ticker",
        "tic",
        "sym",
        "instrument",
        "asset",
        "s",
        "kürzel",
        "wertpapier",
    ),
    "open": ("open", "o", "eröffnung", "erster"),
    "high": ("high", "h", "hoch", "höchst"),
    "low": ("low", "l", "tief", "tiefst"),
    "close": ("close", "c", "last", "schluss", "schlusskurs"),
    "volume": ("volume", "vol", "v", "volumen", "stück"),
}
"""Usual names of columns, in any case, spaces for underscores; `source.columns` names others."""
DATE_SPELLINGS = ("date", "datum", "day", "tag")
CLOCK_SPELLINGS = ("time", "zeit", "clock", "uhrzeit")


def plain(column: object) -> str:
    """A column's name as it stands in the lists above."""
    return str(column).strip().strip("<>[]\"'").lower().replace(" ", "_")
