import datetime as dt
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fintrader.backtesting.account import BacktestAccount, Holdings
from fintrader.backtesting.simulation import trade
from fintrader.bars.corporate_actions import load_actions
from fintrader.envs import EnvSettings
from fintrader.errors import BarError, DataError, MarketError
from fintrader.market.build import build_market, make_market
from fintrader.market.load import load_market
from fintrader.market.tensors import Events, MarketTensors
from tests.bars.tables import (
    PRICES,
    REAL_2019,
    REAL_FOLDER,
    SHORT_WINDOWS,
    file_settings,
    minute_table,
    write_actions,
    write_csv,
)
from tests.oracles.trade_list import trade_list_profit
from tests.quick import slow_but

EX_DAY = dt.date(2016, 1, 7)
EX_BAR = 3 * 390


def event(symbol="AAA", day=EX_DAY, **what):
    return {"symbol": symbol, "day": day, **what}


def market_of(path, columns=(), actions=None):
    features = {
        "names": ["return_1", "volume_30", "sma_60"],
        "context": ["index_return_1", "turbulence"],
    }
    settings = file_settings(
        path,
        source={"kind": "files", "columns": dict(columns)},
        features=features,
        actions=actions and write_actions(path.parent / "declared", actions),
        waive=["split"],  # declared at will here
    )
    return make_market(settings)


def split_table(ratio):
    """A table without a split, and the same market with AAA split on EX_DAY: shares of before cost
    `ratio` times as much."""
    table = minute_table(2, 6)
    raw = table.copy()
    before = (raw.ticker == "AAA") & (raw.ts < pd.Timestamp(EX_DAY))
    raw.loc[before, PRICES] *= ratio
    raw["volume"] = raw.volume.astype(float)
    raw.loc[before, "volume"] /= ratio
    return table, raw


@pytest.mark.parametrize("ratio", [4.0, 0.1])
def test_prices_stay_as_traded_and_features_see_no_gain_or_loss_of_a_split(tmp_path, ratio):
    table, raw = split_table(ratio)
    plain = market_of(write_csv(tmp_path / "plain", table))
    market = market_of(write_csv(tmp_path / "raw", raw), actions=[event(split=ratio)])
    assert torch.equal(market.close, market_of(tmp_path / "raw" / "bars.csv").close)
    assert [value.tolist() for value in market.events] == [[EX_BAR], [0], [ratio], [0.0]]
    assert float(market.close[EX_BAR, 0] / market.close[EX_BAR - 1, 0]) == pytest.approx(
        1 / ratio, rel=0.01
    )
    growth = market.adjusted_close / plain.close.to(torch.float64)
    assert growth[:, 0].numpy() == pytest.approx(np.full(len(market), ratio), rel=1e-6)
    torch.testing.assert_close(
        market.features, plain.features, rtol=1e-3, atol=0.05
    )  # volumes count from 1
    torch.testing.assert_close(market.benchmark, plain.benchmark, rtol=1e-6, atol=0)
    torch.testing.assert_close(market.context, plain.context, rtol=1e-3, atol=1e-3)


def test_nothing_before_an_ex_date_depends_on_it(tmp_path):
    path = write_csv(tmp_path, minute_table(2, 6))
    actions = [
        event(day=dt.date(2016, 1, 5), split=2.0),
        event(split=3.0, dividend_usd=1.5),
    ]
    one, both = (market_of(path, actions=actions[:count]) for count in (1, 2))
    for name in ("open", "close", "features", "context"):
        assert torch.equal(getattr(one, name)[:EX_BAR], getattr(both, name)[:EX_BAR]), name
    assert torch.equal(one.adjusted_close[:EX_BAR], both.adjusted_close[:EX_BAR])
    assert not torch.equal(one.features[EX_BAR:], both.features[EX_BAR:])


def test_a_price_carried_over_an_ex_date_is_what_the_share_is_then_worth(tmp_path):
    table = minute_table(2, 6)
    silent = (
        (table.ticker == "AAA")
        & (table.ts >= pd.Timestamp(EX_DAY))
        & (table.ts < pd.Timestamp("2016-01-07 10:00"))
    )
    close = float(table[(table.ticker == "AAA") & (table.ts < pd.Timestamp(EX_DAY))].close.iloc[-1])
    action = event(split=2.0, dividend_usd=1.0)
    market = market_of(write_csv(tmp_path, table[~silent]), actions=[action])
    expected = np.full(30, np.float32((close - 1.0) / 2.0))
    np.testing.assert_array_equal(market.close[EX_BAR : EX_BAR + 30, 0].numpy(), expected)
    assert not market.tradable[EX_BAR : EX_BAR + 30, 0].any()
    assert float(market.volume[EX_BAR : EX_BAR + 30, 0].sum()) == 0.0


def test_a_vendors_adjustment_is_undone(tmp_path):
    table, raw = split_table(4.0)
    later = (table.ticker != "AAA") | (table.ts >= pd.Timestamp(EX_DAY))
    path = write_csv(tmp_path / "vendor", table.assign(factor=np.where(later, 1.0, 4.0)))
    traded = market_of(path, columns={"factor": "factor"})
    plain = market_of(write_csv(tmp_path / "raw", raw))
    torch.testing.assert_close(traded.close, plain.close, rtol=1e-6, atol=0)
    torch.testing.assert_close(traded.volume, plain.volume, rtol=1e-6, atol=0)
    path = write_csv(tmp_path / "zero", table.assign(factor=np.where(later, 1.0, 0.0)))
    with pytest.raises(BarError, match=r"row 2 \(AAA at .*'factor': 0.0 is no factor"):
        market_of(path, columns={"factor": "factor"})


def test_actions_are_read_in_two_forms(tmp_path):
    path = tmp_path / "actions.csv"
    path.write_text("symbol,day,split,dividend_usd\nAAA,2016-01-05,,0.5\nBBB,2016-01-06,2,\n")

    def found(path):
        return [
            (one.symbol, one.day.day, one.split, one.dividend_usd)
            for one in load_actions(str(path))
        ]

    assert found(path) == [("AAA", 5, 1.0, 0.5), ("BBB", 6, 2.0, 0.0)]
    path.write_text(
        "ticker,ex_date,kind,value\nBBB,2016-01-06,split,2.0\nAAA,2016-01-05,dividend,0.5\n"
    )
    assert found(path) == [("AAA", 5, 1.0, 0.5), ("BBB", 6, 2.0, 0.0)]
    for wrong in (
        "symbol,day,split\nAAA,soon,4\n",
        "ticker,ex_date,kind,value\nAAA,2016-01-05,merger,4\n",
    ):
        path.write_text(wrong)
        with pytest.raises(DataError, match=r"actions.csv, line 2"):
            load_actions(str(path))
    with pytest.raises(DataError, match=r"does not exist; see data.actions"):
        load_actions(str(tmp_path / "nothing.csv"))


def test_what_cannot_have_happened_is_refused(tmp_path):
    path = write_csv(tmp_path, minute_table(1, 6))
    with pytest.raises(DataError, match="2016-01-09 is no session of XNAS"):
        market_of(path, actions=[event(day=dt.date(2016, 1, 9), split=2.0)])
    market = market_of(path, actions=[event(day=dt.date(2020, 1, 9), split=2.0)])
    assert not len(market.events.bar)
    for rows, message in (
        ([(len(market), 0, 2.0, 0.0)], "is outside the market's"),
        ([(5, 1, 2.0, 0.0)], "is outside the market's"),
        ([(5, 0, 2.0, 0.0), (5, 0, 1.0, 0.1)], "one per asset and bar"),
    ):
        with pytest.raises(MarketError, match=message):
            replace(market, events=Events.of(rows))
    with pytest.raises(MarketError, match="volume must be finite and not negative"):
        replace(market, volume=-market.volume)


IMPOSSIBLE = {
    (1.0, 0.37): "a dividend of 0.37 USD is no less than the close of 0.05 USD before it",
    (2.0, 0.05): "a dividend of 0.05 USD is no less than the close of 0.05 USD before it",
    (0.0, 0.0): "a split into 0 shares is impossible",
    (-4.0, 0.0): "a split into -4 shares",
    (np.inf, 0.0): "a split into inf shares",
    (np.nan, 0.0): "a split into nan shares",
    (1.0, -0.01): "a dividend of -0.01 USD is impossible",
    (1.0, np.nan): "a dividend of nan USD",
    (1.0, np.inf): "a dividend of inf USD",
    (1e-320, 0.0): "beyond what a number can hold",
}
"""Split and dividend after a close of 0.05 USD, and what is wrong with them."""


def penny_table():
    """Bars of a share that costs 0.05 USD all day."""
    table = minute_table(2, 6)
    table.loc[table.ticker == "AAA", PRICES] = 0.05
    return table


@pytest.fixture(scope="module")
def penny(tmp_path_factory):
    return market_of(write_csv(tmp_path_factory.mktemp("penny"), penny_table()))


@pytest.mark.parametrize("event", IMPOSSIBLE)
def test_no_market_holds_an_event_by_which_no_price_can_be_adjusted(penny, tmp_path, event):
    wrong = re.escape(IMPOSSIBLE[event])
    said = (
        rf"^AAA, {EX_DAY}: .*{wrong}.*; correct the event in data\.actions .* or leave the event"
        r" out$"
    )
    rows = [(EX_BAR, 1, 2.0, 1.0)]
    with pytest.raises(MarketError, match=said):
        replace(penny, events=Events.of([(EX_BAR, 0, *event), *rows]))
    with pytest.raises(MarketError, match=said):
        replace(penny, events=Events.of([(EX_BAR, 0, *event), *rows]), trusted=True)
    # a file that somebody else has made
    path = tmp_path / "market.safetensors"
    replace(penny, events=Events.of([(EX_BAR, 0, 1.0, 0.01)])).save(path)
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
    tensors = load_file(path)
    tensors["event_split"][0], tensors["event_dividend_usd"][0] = event
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(MarketError, match=said):
        MarketTensors.load(path)


@pytest.mark.parametrize("dividend", [0.37, 0.05])
def test_a_dividend_that_the_share_was_not_worth_is_refused_by_every_door(tmp_path, dividend):
    table = penny_table()
    path = write_csv(tmp_path, table)
    said = (
        rf"^AAA, {EX_DAY}: a dividend of {dividend} USD is no less than the close of 0\.05 USD"
        r" before it; correct"
    )
    action = event(split=0.1, dividend_usd=dividend)  # no help: it is paid before
    features = {"names": ["return_1"], "context": []}
    values = {
        "features": features,
        "actions": write_actions(tmp_path / "declared", [action]),
        "waive": ["split"],
        **SHORT_WINDOWS,
    }
    settings = file_settings(path, **values)
    doors = [
        lambda: make_market(settings),
        lambda: build_market(settings, cache=tmp_path / "cache"),
        lambda: load_market(table, timezone="America/New_York", **values),
    ]
    for door in doors:
        with pytest.raises(MarketError, match=said):
            door()
    assert not list((tmp_path / "cache").rglob("market.safetensors"))


def test_a_dividend_below_the_close_gives_finite_adjusted_prices(penny):
    market = replace(penny, events=Events.of([(EX_BAR, 0, 1.0, 0.0499)]))
    assert bool((market.adjusted_close > 0).all())
    assert bool(market.adjusted_close.isfinite().all())


@pytest.mark.parametrize(
    ("name", "kind"), [("bar", torch.int32), ("asset", torch.float64), ("split", torch.float32)]
)
def test_events_are_of_their_kinds(penny, name, kind):
    events = Events.of([(EX_BAR, 0, 2.0, 0.01)])
    with pytest.raises(MarketError, match="events need bar and asset as int64"):
        replace(penny, events=events._replace(**{name: getattr(events, name).to(kind)}))


def test_events_are_stored_and_a_window_has_its_own(tmp_path):
    path = write_csv(tmp_path, minute_table(2, 6))
    market = market_of(path, actions=[event(symbol="BBB", split=2.0, dividend_usd=0.5)])
    market.save(tmp_path / "market.safetensors")
    again = MarketTensors.load(tmp_path / "market.safetensors", verify=True)
    assert [value.tolist() for value in again.events] == [[EX_BAR], [1], [2.0], [0.5]]
    assert (
        again.content_hash()
        == market.content_hash()
        != replace(market, events=Events.of()).content_hash()
    )
    assert again.window(1000, 1200).events.bar.tolist() == [EX_BAR - 1000]
    assert not len(again.window(EX_BAR + 1, len(market)).events.bar)


@pytest.mark.parametrize(("held", "left"), [(5.0, 0.0), (25.0, 2.0)])
def test_a_reverse_split_of_few_shares_leaves_cash_and_figures(tmp_path, held, left):
    _, raw = split_table(0.1)
    market = market_of(write_csv(tmp_path, raw), actions=[event(split=0.1)])
    account = BacktestAccount(market, EnvSettings())
    result = trade(
        lambda one: Holdings(np.array([held, 0.0])) if one.bar == 0 else None, account, name="few"
    )
    assert result.shares[-1].tolist() == [left, 0.0]
    assert result.income_usd.sum() > 0
    assert trade_list_profit(result) == pytest.approx(result.equity[-1] - 1e6, abs=1e-3)
    assert result.metrics["round_trips"] == 0.0


@pytest.mark.slow
@pytest.mark.real_data(REAL_2019)
@pytest.mark.parametrize("fractional", slow_but(1, every=[False, True]))
def test_a_million_dollars_of_aapl_earn_its_prices_and_dividends_to_the_cent(fractional):
    """2019 and 2020 as they were: eight dividends and a 4-for-1 split, from the vendor's adjusted
    bars."""
    settings = file_settings(
        REAL_2019,
        source={"kind": "files", "columns": {"factor": "split_factor"}},
        features={"names": ["return_1"], "context": []},
        universe={"symbols": ["AAPL"]},
        actions=str(REAL_FOLDER / "actions_aapl_2019_2020.csv"),
        bar_minutes=30,
    )
    market = make_market(settings)
    events = {
        int(bar): (split, paid)
        for bar, _, split, paid in zip(*(v.tolist() for v in market.events), strict=True)
    }
    assert len(events) == 9
    account = BacktestAccount(
        market, EnvSettings(cost_bps=0.0, participation=None, fractional=fractional)
    )
    price = float(market.open[1, 0])
    bought = 1e6 / price if fractional else float(1e6 // price)
    wanted = Holdings(np.array([bought]))
    result = trade(lambda one: wanted if one.bar == 0 else None, account, name="hold")
    shares = bought
    cash = 1e6 - bought * price
    for split, paid in events.values():
        cash += shares * paid
        shares *= split
    assert result.equity[-1] == pytest.approx(shares * float(market.close[-1, 0]) + cash, abs=0.01)
    assert result.shares[-1, 0] == pytest.approx(4 * bought)
    assert result.income_usd.sum() == pytest.approx(cash - (1e6 - bought * price), abs=0.01)
    assert trade_list_profit(result) == pytest.approx(result.equity[-1] - 1e6, abs=0.01)
    assert result.metrics["max_drawdown"] > -0.5  # no phantom loss of three quarters at the split
