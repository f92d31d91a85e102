from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.bars.bars import COLUMNS
from fintrader.bars.clean import SymbolBars
from fintrader.config import validate
from fintrader.errors import ConfigError, DataError
from fintrader.market.features import (
    FeatureSettings,
    context_features,
    last_features,
    market_feature,
    member_return,
    symbol_features,
    turbulence,
)
from fintrader.market.moving import moving_sum
from tests.factories import PAPER_FEATURES, examples

ALL = (*PAPER_FEATURES, "return_1", "return_5", "volatility_30", "volume_30", "age_10")
BY_SESSION = ("gap", "gap_3", "intraday", "intraday_2", "relative_volume_4")


def one_symbol(length=400, *, seed=0, silent=0.1):
    random = np.random.default_rng(seed)
    close = 80 * np.exp(np.cumsum(random.normal(0, 0.002, length)))
    tradable = random.random(length) >= silent
    tradable[0] = True
    known = np.maximum.accumulate(np.where(tradable, np.arange(length), 0))
    close = close[known]
    open_ = np.where(tradable, close * np.exp(random.normal(0, 0.001, length)), close)
    reach = np.where(tradable, np.abs(random.normal(0, 0.001, (2, length))), 0.0)
    return SymbolBars(
        symbol="AAA",
        first=0,
        ended=False,
        open=open_,
        high=np.maximum(open_, close) * (1 + reach[0]),
        low=np.minimum(open_, close) * (1 - reach[1]),
        close=close,
        volume=np.where(tradable, random.integers(1, 9_999, length), 0).astype(float),
        tradable=tradable,
        session=np.arange(length) // 390,
        extras={},
        time=pd.date_range("2024-01-02 09:30", periods=length, freq="min", tz="America/New_York"),
    )


def frame(bars):
    return pd.DataFrame(
        {name: getattr(bars, name) for name in ("open", "high", "low", "close", "volume")}
    )


def test_values_agree_with_stockstats_and_pandas():
    stockstats = pytest.importorskip("stockstats")
    bars = one_symbol()
    table = frame(bars)
    close = table.close
    volume = table.volume
    theirs = stockstats.wrap(
        table.assign(date=pd.date_range("2016-01-04", periods=len(bars), freq="min"))
    )
    expected = {
        "macd": theirs["macd"].to_numpy() / close,
        "bollinger_upper": theirs["boll_ub"].to_numpy() / close - 1,
        "bollinger_lower": theirs["boll_lb"].to_numpy() / close - 1,
        "rsi_30": theirs["rsi_30"],
        "cci_30": theirs["cci_30"],
        "dx_30": theirs["dx_30"],
        "sma_30": theirs["close_30_sma"].to_numpy() / close - 1,
        "sma_60": theirs["close_60_sma"].to_numpy() / close - 1,
        "return_1": np.log(close / close.shift(1)),
        "return_5": np.log(close / close.shift(5)),
        "volatility_30": np.sqrt((np.log(close).diff() ** 2).rolling(30).mean()),
        "volume_30": np.log((1 + volume) / (1 + volume.rolling(30).mean())),
    }
    assert {*expected, "age_10"} == set(ALL)
    got = symbol_features(bars, list(expected))
    for column, (name, values) in enumerate(expected.items()):
        np.testing.assert_allclose(
            got[60:, column], np.asarray(values)[60:], rtol=1e-6, atol=1e-7, err_msg=name
        )


def prefix(bars, length):
    columns = {name: getattr(bars, name)[:length] for name in (*COLUMNS, "tradable", "session")}
    return replace(
        bars, **columns, extras={name: values[:length] for name, values in bars.extras.items()}
    )


@settings(max_examples=examples(30))
@given(cut=st.integers(1, 400), seed=st.integers(0, 50))
def test_a_prefix_has_the_same_features(cut, seed):
    bars = replace(one_symbol(seed=seed), session=np.arange(400) // 60)
    whole, part = (symbol_features(one, (*ALL, *BY_SESSION)) for one in (bars, prefix(bars, cut)))
    np.testing.assert_array_equal(whole[:cut], part)  # bit for bit, NaN where NaN


@settings(max_examples=examples(60))
@given(st.integers(0, 99), st.integers(1, 60), st.integers(1, 40), st.data())
def test_the_last_sums_of_the_end_of_several_series_are_those_of_each(seed, length, window, draw):
    random = np.random.default_rng(seed)
    values, times = random.normal(size=(2, draw.draw(st.integers(1, 17)), length))
    skipped = draw.draw(st.integers(0, max(0, length - window)))
    wanted = draw.draw(st.integers(1, max(1, length - skipped - window)))
    each = np.stack([moving_sum(own, window) for own in values * times])[:, -wanted:]
    got = moving_sum(values[:, skipped:], window, skipped, wanted, times[:, skipped:])
    np.testing.assert_array_equal(got, each)


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 50), length=st.integers(2, 400), rows=st.integers(1, 40), per=st.data())
def test_the_last_rows_of_several_symbols_are_those_of_each(seed, length, rows, per):
    """What a live loop computes of the newest bars has the bits that a build computes of all."""
    count = per.draw(st.integers(1, 11))
    windows = [per.draw(st.integers(2, 30)) for _ in range(4)]
    names = [f"{kind}_{n}" for kind, n in zip(("beta", "volatility", "sma"), windows, strict=False)]
    names += [*ALL, *BY_SESSION, f"gap_{windows[3] % 4 + 1}"]
    each = [
        replace(one_symbol(length, seed=seed + n, silent=0.3), session=np.arange(length) // 23)
        for n in range(count)
    ]
    close = np.stack([one.close for one in each], axis=1).astype(np.float32)
    market = member_return(close, np.ones(close.shape, bool))
    own = np.zeros(close.shape)
    own[1:] = np.diff(np.log(close.astype(np.float64)), axis=0)
    rows = min(rows, length - 1)  # a live loop has bars of earlier sessions
    stacked = {
        name: np.stack([getattr(one, name) for one in each]) for name in (*COLUMNS, "tradable")
    }
    together = replace(each[0], **stacked, wanted=rows)
    got = last_features(together, names, rows, own.T, market)
    for n, one in enumerate(each):
        expected = symbol_features(one, names, later=names[:1], dtype=np.float32)
        expected[:, 0] = market_feature(names[0], close[:, n], market)
        np.testing.assert_array_equal(got[:, n], expected[-rows:])


def test_nights_and_days_add_up_over_sessions():
    """Against loops; the first minutes of some sessions are silent."""
    bars = replace(one_symbol(360, silent=0.3), session=np.arange(360) // 60)
    night = np.full(360, np.nan)
    day = np.zeros(360)
    for t in range(360):
        begin = t // 60 * 60
        traded = [k for k in range(begin, t + 1) if bars.tradable[k]]
        opened = bars.open[traded[0]] if traded else bars.close[t]
        day[t] = np.log(bars.close[t] / opened)
        if begin:
            night[t] = np.log(opened / bars.close[begin - 1])
    got = symbol_features(bars, BY_SESSION)
    assert not bars.tradable[::60].all()
    np.testing.assert_allclose(got[:, 0], night, atol=1e-14)
    np.testing.assert_allclose(got[:, 2], day, atol=1e-14)
    for t in range(360):
        ends = [
            t // 60 * 60 - 1 - 60 * k for k in range(2)
        ]  # the last bars of the two sessions before
        three = night[t] + sum(night[end] if end >= 0 else np.nan for end in ends)
        np.testing.assert_allclose(got[t, 1], three, atol=1e-14)
        np.testing.assert_allclose(
            got[t, 3], day[t] + (day[ends[0]] if ends[0] >= 0 else np.nan), atol=1e-14
        )
    volume = pd.Series(bars.volume)
    expected = np.log((1 + volume.rolling(4).mean()) / (1 + volume.rolling(80).mean()))
    np.testing.assert_allclose(got[:, 4], expected, rtol=1e-9, atol=1e-12)


def test_beta_is_the_slope_on_the_members_mean():
    random = np.random.default_rng(3)
    steps = random.normal(0, 0.01, (200, 1)) * [0.5, 1.0, 2.0, 1.0] + random.normal(
        0, 0.004, (200, 4)
    )
    close = (30 * np.exp(np.cumsum(steps, axis=0))).astype(np.float32)
    close[:50, 1] = np.nan
    close[150:, 2] = np.nan
    member = np.ones(close.shape, dtype=bool)
    member[:, 3] = False  # it has a beta, and is no part of the mean
    market = member_return(close, member)
    got = np.column_stack([market_feature("beta_20", column, market) for column in close.T])
    own = np.diff(np.log(close.astype(float)), axis=0, prepend=np.nan)
    mean = np.nanmean(np.where(member, own, np.nan)[1:], axis=1)
    for t, n in ((60, 0), (140, 0), (90, 1), (149, 2), (199, 3)):
        x = mean[t - 20 : t]
        y = own[t - 19 : t + 1, n]
        assert got[t, n] == pytest.approx(np.cov(x, y)[0, 1] / np.var(x, ddof=1), rel=1e-5)
    assert [int(np.isfinite(column).argmax()) for column in got.T] == [20, 70, 20, 20]
    assert np.isnan(got[150:, 2]).all()


def test_age_counts_the_bars_since_the_last_trade():
    bars = one_symbol(12, silent=0.0)
    tradable = np.array([1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0], dtype=bool)
    table = symbol_features(replace(bars, tradable=tradable), ["age_2", "age_60"])
    assert table[:, 1].tolist() == [0, 0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 3]
    assert table[:, 0].tolist() == [0, 0, 1, 2, 2, 0, 1, 0, 0, 1, 2, 2]


def test_silence_gives_finite_features():
    bars = one_symbol(200, silent=0.0)
    prices = {name: np.full(200, 33.33) for name in ("open", "high", "low", "close")}
    flat = replace(bars, **prices, volume=np.zeros(200))
    table = symbol_features(flat, PAPER_FEATURES)[100:]
    assert np.isfinite(table).all()
    assert np.abs(table[:, [0, 1, 2, 4, 5]]).max() < 1e-6
    assert (table[:, PAPER_FEATURES.index("rsi_30")] == 50).all()


def range_over_close(bars):
    """A feature of one's own."""
    return (bars.high - bars.low) / bars.close


def too_short(bars):
    return bars.close[1:]


def test_features_of_ones_own():
    bars = one_symbol()
    table = symbol_features(bars, ["tests.market.test_features:range_over_close"])
    np.testing.assert_array_equal(table[:, 0], (bars.high - bars.low) / bars.close)
    with pytest.raises(DataError, match=r"must return \(400,\)"):
        symbol_features(bars, ["tests.market.test_features:too_short"])
    with pytest.raises(ConfigError, match="cannot be imported"):
        symbol_features(bars, ["tests.market.test_features:nothing"])


@pytest.mark.parametrize("name", ["rsi_0", "rsii_30", "RSI_30", "", "rsi_-3"])
def test_an_unknown_feature_is_refused(name):
    with pytest.raises(ConfigError, match="is no feature"):
        validate(FeatureSettings, {"names": [name]}, "test")


def context_of(names, benchmark, session, day_close):
    known = {"day_close": day_close, "member": np.ones(day_close.shape, dtype=bool)}
    return context_features(names, session, benchmark=benchmark, **known)


def test_turbulence_sees_finished_days_only():
    random = np.random.default_rng(0)
    close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, (40, 4)), axis=0))
    close[30] *= [1.2, 0.8, 1.2, 0.8]  # a wild day
    level = turbulence(close, np.ones(close.shape, dtype=bool), 10)
    assert np.isnan(level[:11]).all()
    assert level[30] > 20 * np.nanmedian(level)
    session = np.repeat(np.arange(40), 5)
    table = context_of(["turbulence_10"], np.ones(200), session, close)
    # the day after, from its first bar
    assert (table[session == 31, 0] == np.log1p(level[30])).all()
    assert (table[session == 30, 0] == np.log1p(level[29])).all()


def test_turbulence_counts_the_members_of_the_day():
    random = np.random.default_rng(1)
    close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, (40, 5)), axis=0))
    member = np.ones(close.shape, dtype=bool)
    member[:25, 4] = False  # joins on day 25
    member[33:, 0] = False  # leaves
    level = turbulence(close, member, 10)
    returns = np.vstack([np.full(5, np.nan), np.diff(np.log(close), axis=0)])
    for day in range(11, 40):
        names = [n for n in range(5) if member[day, n]]
        past = returns[day - 10 : day, names]
        covariance = np.cov(past, rowvar=False)
        gap = returns[day, names] - past.mean(axis=0)
        shrunk = 0.5 * covariance + 0.5 * np.diag(np.diag(covariance))
        assert level[day] == pytest.approx(gap @ np.linalg.inv(shrunk) @ gap / len(names)), day
    wild = close.copy()
    wild[:25, 4] *= np.exp(random.normal(0, 0.5, 25))  # what it did before it joined
    np.testing.assert_array_equal(turbulence(wild, member, 10)[:25], level[:25])


def test_context_of_the_clock_and_the_index():
    level = np.array([100.0, 101, 99, 104, 104, 90])
    table = context_of(
        ["time_of_day", "time_to_close", "index_return_2", "index_volatility_2"],
        level,
        session=np.array([0, 0, 0, 0, 1, 1]),
        day_close=np.ones((2, 1)),
    )
    assert table[:, 0].tolist() == [-0.75, -0.25, 0.25, 0.75, -0.75, -0.25]
    assert table[:, 1].tolist() == [0.75, 0.25, -0.25, -0.75, -0.25, -0.75]
    np.testing.assert_allclose(table[2:, 2], np.log(level[2:] / level[:-2]))
    steps = np.diff(np.log(level), prepend=np.log(100.0))
    squares = (steps[1:] ** 2 + steps[:-1] ** 2) / 2
    np.testing.assert_allclose(table[1:, 3], np.sqrt(squares), rtol=1e-12)
