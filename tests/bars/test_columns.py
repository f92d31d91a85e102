"""Columns that are easily taken for others: the close, the volume, symbols and times."""

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.detect import detect
from fintrader.bars.sources.bar_files import read_files
from fintrader.errors import BarError
from tests.bars.tables import COLUMNS, PRICES

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


@pytest.mark.parametrize("name", NAMED)
def test_the_close_and_the_whole_volume_are_read(name, tmp_path):
    sure, table = NAMED[name]
    table.to_csv(tmp_path / "AAPL.csv")
    bars, said = read_bars(tmp_path / "AAPL.csv")
    assert_cells(bars, {"AAPL": BARS})
    assert said == sure


def test_parts_of_a_volume_are_no_volume(tmp_path):
    HEAD.assign(premarket_volume=170 + VOLUME % 7, shares=VOLUME).to_csv(tmp_path / "AAPL.csv")
    bars, said = read_bars(tmp_path / "AAPL.csv")
    assert_cells(bars, {"AAPL": BARS.assign(volume=0)})
    assert said == "assumed"


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
}  # fmt: skip


@pytest.mark.parametrize("name", BARE)
def test_the_volume_without_names_is_no_price(name, tmp_path):
    sure, table = BARE[name]
    table.to_csv(tmp_path / "AAPL.csv", header=False)
    bars, said = read_bars(tmp_path / "AAPL.csv")
    volume = table.get("volume", 0)
    assert_cells(bars, {"AAPL": BARS.assign(volume=volume)})
    assert said == sure
