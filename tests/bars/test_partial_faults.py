"""Faults in a part of the bars: refused or named as docs/data.md says, and none in clean
markets."""

import re

import pandas as pd
import pytest

from fintrader.bars.corporate_actions import Action
from fintrader.errors import BarError
from fintrader.market.inspect import examine
from fintrader.market.load import load_market
from fintrader.market.settings import DataSettings
from tests import ROOT
from tests.bars.tables import REAL_2019, WINDOWS, RawFeed, as_bars
from tests.engines import partial_faults as engine
from tests.engines.partial_faults import (
    FAULTS,
    MARKETS,
    answer,
    clean_markets,
    make_clean,
    shown_future,
)
from tests.quick import slow_but


def documented():
    """Fault -> (`yes` where it shows the next return, answer), as the table of docs/data.md has them."""
    _, *rows = (ROOT / "docs" / "assets" / "partial_faults.tsv").read_text().splitlines()
    return {name: (future, said) for name, future, said in (row.split("\t") for row in rows)}


@pytest.fixture(scope="module")
def clean():
    return clean_markets()


@pytest.mark.parametrize("name", slow_but(*range(0, len(FAULTS), 16), every=FAULTS))
def test_a_fault_is_answered_as_documented(name, clean):
    market = clean[FAULTS[name].kind]
    table = FAULTS[name].apply(market)
    future = shown_future(market, table) > 0.2
    said = answer(market, table)
    assert documented()[name] == ("yes" if future else "no", said)
    if FAULTS[name].kind in MARKETS:
        assert said.startswith("refused: " if future else ("refused: ", "named: "))


def test_the_documented_faults_are_all():
    assert list(documented()) == list(FAULTS)
    assert len(FAULTS) >= 66


@pytest.mark.parametrize("kind", MARKETS)
@pytest.mark.parametrize(
    "how",
    slow_but(
        0,
        every=[
            {},
            {"thin": 4, "common": 0.3},
            {"thin": 2, "common": 0.05, "names": 3},
            {"common": 0.98, "names": 2},
            {"names": 1},
            {"common": 0.0},
        ],
    ),
)
def test_clean_markets_raise_no_alarm(kind, how):
    for seed in (1, 2):
        market = make_clean(kind, seed, **how)
        assert answer(market, market.table) == "silent"


def long_table(table):
    """As a user has it, with times in UTC."""
    parts = [one.assign(symbol=name) for name, one in table.items()]
    joined = pd.concat(parts, ignore_index=True)
    return joined.assign(ts=pd.to_datetime(joined.ts, utc=True))


def test_the_message_lets_it_pass_and_the_market_remembers(clean):
    market = clean["us"]
    early = long_table(FAULTS["a week of two names one bar early"].apply(market))
    with pytest.raises(BarError, match="1 minute early, to 2019-03-15") as caught:
        load_market(early, **WINDOWS)
    waive = re.search(r"data\.waive: \[(.*)\]", str(caught.value))[1].split(", ")
    built = load_market(early, **WINDOWS, waive=waive)
    assert [(one.kind, one.symbol) for one in built.provenance.waived] == [
        ("misaligned", "N01"),
        ("misaligned", "N04"),
    ]
    named = long_table(FAULTS["6 % up for 45 bars"].apply(market))
    doubtful = load_market(named, **WINDOWS).provenance.doubtful
    assert [(one.kind, one.symbol, one.count) for one in doubtful] == [("price_spike", "N02", 45)]


def test_dividends_that_are_in_the_prices_already_are_named(clean):
    market = clean["us"]
    bars = engine.as_bars(market.table)
    first = market.grid.begin
    actions = []
    adjusted = {name: one.copy() for name, one in market.table.items()}
    for number, (name, one) in enumerate(adjusted.items()):
        for day in range(3 + number, 40, 8):
            close = one.close[one.ts < first[day]].iloc[-1]
            paid = round(0.01 * close, 2)
            actions.append(
                Action(symbol=name, day=market.grid.dates[day].item(), dividend_usd=paid)
            )
            # as traded, the price falls by the dividend
            one.loc[one.ts >= first[day], engine.PRICES] *= 1 - paid / close
        one[engine.PRICES] = one[engine.PRICES].round(2)
    for table, kinds in ((bars, {"paid_twice": 1}), (engine.as_bars(adjusted), {})):
        assert examine(RawFeed(table, actions), DataSettings(calendar="XNAS")).kinds == kinds


@pytest.mark.slow
@pytest.mark.real_data(REAL_2019)
def test_early_bars_of_real_days_are_found():
    """One of fourteen names, a minute early on six of forty days."""
    table = pd.read_parquet(REAL_2019)
    table["ts"] = table.ts.dt.tz_localize(None)
    days = table.ts.dt.normalize().drop_duplicates().sort_values().iloc[:40].to_list()
    table = table[table.ts < days[-1] + pd.Timedelta("1D")]
    hit = (table.ticker == "V") & table.ts.dt.normalize().isin(
        [days[number] for number in (5, 12, 13, 21, 30, 34)]
    )
    moved = table.assign(ts=table.ts.where(~hit, table.ts - pd.Timedelta("1min")))
    for bars, symbols in ((table, set()), (moved, {"V"})):
        faults = examine(RawFeed(as_bars(bars)), DataSettings()).faults
        found = {fault.symbol for fault in faults if fault.kind in ("misaligned", "shifted_day")}
        assert found == symbols
