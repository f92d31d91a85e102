import datetime as dt
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fintrader.bars.calendar import WindowSettings, session_grid
from fintrader.bars.checks import STOPPING
from fintrader.bars.sources.feed import MemoryFeed
from fintrader.config import validate
from fintrader.errors import ConfigError, DataError
from fintrader.market.build import assemble, build_market, make_market
from fintrader.market.index_level import file_benchmark
from fintrader.market.inspect import quality_report
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from fintrader.results.market_description import ColumnScale
from tests.bars.tables import (
    PLAIN,
    SHORT_WINDOWS,
    as_bars,
    assert_same_market,
    merged,
    minute_table,
    stamps_of,
    write_csv,
)
from tests.bars.tables import file_settings as settings
from tests.factories import PAPER_FEATURES, examples


def test_a_silent_minute_carries_the_last_past_close(tmp_path):
    table = minute_table(symbols=2, sessions=5)
    gone = (table.ticker == "AAA") & (
        table.ts.dt.strftime("%Y-%m-%d %H:%M").isin(["2016-01-05 10:00", "2016-01-05 10:01"])
    )
    assert gone.sum() == 2
    market = make_market(settings(write_csv(tmp_path, table[~gone])))
    column = market.symbols.index("AAA")
    row = 390 + 30  # second session, 10:00
    assert market.tradable[row - 1, column]
    assert not market.tradable[row : row + 2, column].any()
    assert market.tradable[row + 2, column]
    past = market.close[row - 1, column]
    assert (market.close[row : row + 2, column] == past).all()
    for name in ("open", "high", "low"):
        assert (getattr(market, name)[row : row + 2, column] == past).all()
    assert market.tradable[:, 1 - column].all()


def test_the_prices_of_a_longer_bar_are_those_of_its_minutes(tmp_path):
    table = minute_table(symbols=2, sessions=5, missing=0.3)
    market = make_market(settings(write_csv(tmp_path, table), bar_minutes=15))
    for symbol, own in merged(table, "15min").groupby("ticker"):
        one = market[symbol]
        one = one[one["tradable"]]
        assert len(one) == len(own)
        for name in ("open", "high", "low", "close", "volume"):
            assert one[name].to_numpy() == pytest.approx(own[name].to_numpy(), rel=1e-6), name


@pytest.mark.parametrize(
    ("end", "quiet_from"),
    [("2016-01-09", "2016-01-08 12:00"), ("2016-01-08 10:05", "2016-01-08")],
    ids=["over", "on"],
)
def test_no_price_before_the_first_bar_nor_after_a_symbol_has_ended(tmp_path, end, quiet_from):
    """Silence in the last session, be that over or still on, proves no end."""
    table = minute_table(symbols=3, sessions=5)
    day = table.ts.dt.strftime("%Y-%m-%d")
    late = (table.ticker == "AAA") & (day < "2016-01-06")
    ended = (table.ticker == "BBB") & (day >= "2016-01-07")
    quiet = (table.ticker == "CCC") & (table.ts >= quiet_from)
    market = make_market(
        settings(write_csv(tmp_path, table[~(late | ended | quiet | (table.ts >= end))]))
    )
    assert market.provenance.ended == ("BBB",)
    nan = torch.isnan(market.close)
    assert nan[: 2 * 390, 0].all()
    assert not nan[2 * 390 :, 0].any()
    assert nan[3 * 390 :, 1].all()
    assert not nan[: 3 * 390, 1].any()
    assert not nan[:, 2].any()
    assert not market.tradable[4 * 390 + 150 :, 2].any()
    assert market.last_bar.tolist() == [5 * 390 - 1, 3 * 390 - 1, 5 * 390 - 1]
    assert (market.features[nan] == 0).all()


def test_bars_are_put_together_inside_sessions(tmp_path):
    table = minute_table(symbols=2, sessions=5)
    path = write_csv(tmp_path, table)
    market = make_market(
        settings(path, bar_minutes=60, features={"names": ["return_1"], "context": []})
    )
    assert market.num_bars == 5 * 7  # six hours and a half
    one = table[table.ticker == "BBB"].sort_values("ts")
    hours = one.groupby([one.ts.dt.date, (one.ts.dt.hour * 60 + one.ts.dt.minute - 570) // 60])
    np.testing.assert_allclose(market.open[:, 1].numpy(), hours.open.first().to_numpy(), rtol=1e-6)
    np.testing.assert_allclose(market.close[:, 1].numpy(), hours.close.last().to_numpy(), rtol=1e-6)
    assert market.session.tolist() == np.repeat(np.arange(5), 7).tolist()


EVERY_FEATURE = (
    *PAPER_FEATURES,
    *(
        "return_1",
        "return_5",
        "volatility_30",
        "volume_30",
        "age_30",
        "rsi_7",
        "cci_10",
        "dx_9",
        "sma_120",
    ),
    *("gap", "gap_2", "intraday", "intraday_3", "relative_volume_30", "beta_60"),
)
EVERY_CONTEXT = (
    "time_of_day",
    "time_to_close",
    "turbulence_5",
    "index_return_5",
    "index_volatility_30",
)


@pytest.fixture(scope="module")
def eventful():
    """Ten sessions of five symbols, one listed late and one delisted."""
    table = minute_table(symbols=5, sessions=10, missing=0.05)
    late = (table.ticker == "BBB") & (table.ts < "2016-01-06 11:00")
    ended = (table.ticker == "CCC") & (table.ts >= "2016-01-14 13:00")
    return table[~late & ~ended].assign(
        mood=np.random.default_rng(1).normal(0, 1, (~late & ~ended).sum())
    )


@hypothesis_settings(max_examples=examples(12))
@given(
    cut=st.integers(0, 10 * 390 - 30),
    scaling=st.sampled_from(["window", "zscore", "rank", "none"]),
    seed=st.integers(0, 9),
)
@example(
    cut=8 * 390 - 1, scaling="none", seed=0
)  # a session's last minute: turbulence, daily, index
@example(cut=8 * 390, scaling="rank", seed=0)
@example(cut=7, scaling="none", seed=1)
def test_changing_every_bar_after_any_minute_changes_nothing_up_to_it(eventful, cut, scaling, seed):
    """Prices, volumes, extras, the index and the daily series; inside the training window the scale
    itself moves."""
    grid = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 1, 15))
    is_over = cut >= 4 * 390  # the training window
    how = {"scaling": scaling if is_over else "none"}
    with tempfile.TemporaryDirectory() as name:
        before = eventful_market(Path(name) / "a", eventful, grid, None, how, seed)
        later = eventful_market(Path(name) / "b", eventful, grid, cut, how, seed)
    assert set(before.feature_names) == {*EVERY_FEATURE, "mood"}
    assert before.context_names == (*EVERY_CONTEXT, "vix")
    for name, old in before.arrays():
        new = getattr(later, name)
        assert torch.equal(old[: cut + 1].nan_to_num(-7.0), new[: cut + 1].nan_to_num(-7.0)), name
    assert before.symbols == later.symbols
    for name in ("open", "high", "low", "close", "features", "benchmark", "tradable"):
        old = getattr(before, name)[cut + 1 :]
        new = getattr(later, name)[cut + 1 :]
        assert not torch.equal(old.nan_to_num(-7.0), new.nan_to_num(-7.0)), name


def eventful_market(folder, table, grid, cut, how, seed):
    """The market of the table; with a `cut`, everything that is known only after that bar is
    another."""
    random = np.random.default_rng(seed)
    table = table.astype({"volume": float})
    daily = 20.0 + np.arange(grid.num_sessions)
    if cut is not None:
        after = stamps_of(table) > grid.minutes[cut]
        noise = np.exp(random.normal(0, 0.1, after.sum()))
        prices = ["open", "high", "low", "close"]
        table.loc[after, prices] = table.loc[after, prices].to_numpy() * noise[:, None]
        table.loc[after, "volume"] = table.loc[after, "volume"] * 7 + 1
        table.loc[after, "mood"] += 3
        gone = after & (random.random(len(after)) < 0.1)
        gone[np.flatnonzero(table.ticker == "AAA")[-1]] = False  # the data still reach as far
        table = table[~gone]
        over = (
            grid.minutes[grid.first_bar[1:] - 1] > grid.minutes[cut]
        )  # days whose close is not yet known
        daily[over] *= 2
    bars = as_bars(table, mood="mood")
    folder.mkdir()
    dates = [str(day) for day in grid.dates]
    pd.DataFrame({"date": ["2016-01-01", *dates], "close": [20.0, *daily]}).to_csv(
        folder / "vix.csv", index=False
    )
    (folder / "members.csv").write_text(
        "ticker,member_from,member_to\nAAA,2015-01-01,\nBBB,2015-01-01,2016-01-07\nCCC,2016-01-06,\n"
        "DDD,2015-01-01,\nEEE,2015-01-01,\n"
    )
    features = {
        "names": EVERY_FEATURE,
        "extra": ["mood"],
        "context": EVERY_CONTEXT,
        "daily": {"vix": str(folder / "vix.csv")},
        **how,
    }
    values = {
        "universe": {"members": str(folder / "members.csv")},
        "benchmark": str(folder / "vix.csv"),
    }
    values["waive"] = STOPPING  # of what comes after a cut, anything may be true here
    wanted = validate(
        DataSettings, {**PLAIN, **values, "features": features, "source": {"kind": "files"}}, "test"
    )
    if seed % 2:  # the universe's own index
        wanted = wanted.model_copy(update={"benchmark": None})
    market = assemble(wanted, MemoryFeed(bars, {"kind": "files"}))
    return market


def test_training_window_alone_sets_the_scale(tmp_path):
    market = make_market(settings(write_csv(tmp_path, minute_table(symbols=2, sessions=10))))
    start, stop = market.windows.train
    stats = market.normalisation.features["return_1"]
    raw = torch.log(market.close[1:] / market.close[:-1])
    assert stats.std == pytest.approx(float(raw[start : stop - 1].std()), rel=1e-2)
    torch.testing.assert_close(
        market.features[1:, :, 0],
        ((raw - stats.mean) / stats.std).clamp(-10, 10),
        rtol=1e-3,
        atol=1e-3,
    )


def test_a_cross_section_needs_no_scale(tmp_path):
    table = minute_table(symbols=4, sessions=5)
    names = ["return_1", "return_5"]
    features = {"names": names, "scaling": "rank"}
    market = make_market(settings(write_csv(tmp_path, table), features=features))
    assert market.normalisation.cross_sectional == "rank"
    assert set(market.normalisation.features.values()) == {ColumnScale(mean=0.0, std=1.0)}
    steps = torch.log(market.close[1:] / market.close[:-1])
    ranks = steps.argsort(1).argsort(1).double()
    agree = (market.features[1:, :, 0] - (ranks - 1.5) / (15 / 12) ** 0.5).abs() < 1e-5
    assert agree.double().mean() > 0.999  # float32 makes a tie or two of these prices


def test_bars_whose_times_are_dates_stand_at_their_sessions(tmp_path):
    """Text without a zone and midnights of New York; in memory and through the store; as of minutes
    put together."""
    table = minute_table(symbols=2, sessions=6)
    names = {"features": {"names": ["return_1", "gap"], "context": []}, "bar_minutes": 390}
    minutes = make_market(settings(write_csv(tmp_path, table), **names))
    days = merged(table)
    dates = days.assign(ts=days.ts.dt.strftime("%Y-%m-%d"))
    market = make_market(settings(write_csv(tmp_path, dates, "dates.csv"), **names))
    assert_same_market(market, minutes)
    zoned = days.assign(ts=days.ts.dt.normalize().dt.tz_localize("America/New_York"))
    zoned.to_parquet(tmp_path / "days.parquet")
    path = build_market(settings(tmp_path / "days.parquet", **names), cache=tmp_path / "cache")
    assert_same_market(MarketTensors.load(path), minutes)
    report = quality_report(settings(tmp_path / "dates.csv", **names))
    assert "outside_session" not in report.kinds


def test_shares_outstanding_count_from_their_date(tmp_path):
    path = write_csv(tmp_path, minute_table(symbols=3, sessions=5))
    shares = tmp_path / "shares.csv"
    shares.write_text(
        "symbol,from,shares\nAAA,2016-01-06,400\nAAA,2015-03-01,100\nBBB,2016-01-07,7e9\n"
    )
    wanted = settings(path, universe={"shares_outstanding": str(shares)})
    market = MarketTensors.load(build_market(wanted, cache=tmp_path / "cache"), verify=True)
    expected = [[100, np.nan, np.nan]] * 2 + [[400, np.nan, np.nan]] + [[400, 7e9, np.nan]] * 2
    np.testing.assert_array_equal(
        market.shares_outstanding, np.repeat(np.float32(expected), 390, axis=0)
    )
    test = market.split().test
    assert test.shares_outstanding.shape == test.close.shape
    before = build_market(wanted, cache=tmp_path / "cache")
    shares.write_text("symbol,from,shares\nAAA,2016-01-06,500\n")
    assert build_market(wanted, cache=tmp_path / "cache") != before
    assert make_market(settings(path)).shares_outstanding is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("symbol,from\nAAA,2016-01-04\n", "line 2: expected symbol, from"),
        ("symbol,from,shares\nAAA,soon,5\n", "line 2: expected symbol, from"),
        (
            "symbol,from,shares\nAAA,2016-01-04,5\nAAA,2016-01-05,-5\n",
            "line 3: expected symbol, from",
        ),
        (
            "symbol,from,shares\nAAA,2016-01-04,5\nAAA,2016-01-04,6\n",
            "line 3: a second, different number",
        ),
        ("symbol,from,shares\nZZZ,2016-01-04,5\n", "has no number for AAA, BBB up to"),
    ],
)
def test_a_bad_file_of_shares_is_refused(tmp_path, text, said):
    path = write_csv(tmp_path, minute_table(symbols=2, sessions=5))
    (tmp_path / "shares.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        make_market(settings(path, universe={"shares_outstanding": str(tmp_path / "shares.csv")}))


def test_windows_are_whole_sessions_with_an_embargo(tmp_path):
    path = write_csv(tmp_path, minute_table(symbols=1, sessions=10))
    market = make_market(settings(path, windows={"fractions": [0.5, 0.3, 0.2]}))
    assert market.windows == ((0, 4 * 390), (5 * 390, 7 * 390), (8 * 390, 10 * 390))
    dated = {
        "train": ["2016-01-04", "2016-01-06"],
        "validation": ["2016-01-07", "2016-01-11"],
        "test": ["2016-01-13", "2016-01-15"],
        "embargo_sessions": 1,
    }
    market = make_market(settings(path, windows=dated))
    assert market.windows == ((0, 2 * 390), (3 * 390, 6 * 390), (7 * 390, 10 * 390))
    with pytest.raises(
        DataError, match=r"train window \(2016-01-04 to 2016-01-06\) holds no session"
    ):
        make_market(settings(path, windows=dated | {"embargo_sessions": 3}))
    with pytest.raises(ConfigError, match="not overlap"):
        validate(WindowSettings, dated | {"validation": ["2016-01-06", "2016-01-11"]}, "test")


@pytest.mark.parametrize(("name", "day"), [("start", "2027-01-01"), ("end", "2014-12-31")])
def test_a_range_outside_of_the_bars_names_theirs(tmp_path, name, day):
    path = write_csv(tmp_path, minute_table(2, 5))
    outside = f"{day}.* holds none of the bars, which are from 2016-01-04 to 2016-01-08"
    with pytest.raises(DataError, match=outside):
        make_market(settings(path, **{name: day}))


def test_coverage_counts_the_days_between_the_first_bar_and_the_last_in_training(tmp_path, caplog):
    """Training ends on 2016-01-07, the fourth of ten sessions."""
    table = minute_table(symbols=6, sessions=10)
    day = table.ts.dt.strftime("%Y-%m-%d")
    lost = {
        "AAA": table.index % 7 > 2,  # an expensive share: four minutes in seven without a trade
        "BBB": day == "2016-01-06",
        "CCC": day < "2016-01-07",  # listed in training
        "DDD": day < "2016-01-14",  # listed after it
        "EEE": day > "2016-01-05",  # ended in training
        "FFF": day == "2016-01-13",
    }
    gone = [(table.ticker == symbol) & rows for symbol, rows in lost.items()]
    table = table[~np.logical_or.reduce(gone)]
    (tmp_path / "list.csv").write_text(
        "ticker,member_from,member_to\n" + "".join(f"{one},2015-01-01,\n" for one in lost)
    )
    universe = {"min_coverage": 0.9, "members": str(tmp_path / "list.csv")}
    market = make_market(settings(write_csv(tmp_path, table), universe=universe))
    assert market.symbols == ("AAA", "CCC", "DDD", "EEE", "FFF")
    assert "BBB traded on 75.0% of its days in the training window" in caplog.text
    assert list(market.provenance.left_out) == ["BBB"]
    absent = market.provenance.survivorship.members_without_bars
    assert "BBB" in absent  # a member with bars that was left out is as missing as one without
    late = market.symbols.index("DDD")
    buyable = (market.tradable & market.member)[:, late]
    # from its first day on at whose open the windows of its features are full
    assert int(buyable.nonzero()[0]) == 9 * 390
    with pytest.raises(DataError, match="ZZZ"):
        make_market(settings(tmp_path / "bars.csv", universe={"symbols": ["AAA", "ZZZ"]}))


def test_coverage_counts_member_days_only(tmp_path):
    table = minute_table(symbols=2, sessions=10)
    days_off = table.ts.dt.strftime("%Y-%m-%d").isin(["2016-01-05", "2016-01-06"])
    path = write_csv(tmp_path, table[~((table.ticker == "BBB") & days_off)])
    (tmp_path / "list.csv").write_text(
        "ticker,member_from,member_to\nAAA,2015-01-01,\nBBB,2016-01-07,\n"
    )
    for members, kept in ((None, ("AAA",)), (str(tmp_path / "list.csv"), ("AAA", "BBB"))):
        market = make_market(settings(path, universe={"min_coverage": 0.9, "members": members}))
        assert market.symbols == kept


def test_equal_weight_benchmark_is_the_mean_return(tmp_path):
    market = make_market(
        settings(write_csv(tmp_path, minute_table(symbols=3, sessions=3)), **SHORT_WINDOWS)
    )
    close = market.close.double().numpy()
    base = 100.0
    for number in range(3):
        rows = slice(390 * number, 390 * (number + 1))
        reference = close[0] if number == 0 else close[390 * number - 1]
        expected = base * (close[rows] / reference).mean(axis=1)
        np.testing.assert_allclose(market.benchmark[rows].numpy(), expected, rtol=1e-12)
        base = expected[-1]


def test_a_daily_close_is_known_at_the_last_bar_only(tmp_path):
    days = pd.date_range("2016-01-01", "2016-01-08")
    index = pd.DataFrame({"date": days.strftime("%Y-%m-%d"), "close": np.arange(100.0, 108.0)})
    index[~index.date.isin(["2016-01-02", "2016-01-03"])].to_csv(tmp_path / "idx.csv", index=False)
    path = write_csv(tmp_path, minute_table(symbols=1, sessions=5))
    market = make_market(settings(path, benchmark=str(tmp_path / "idx.csv")))
    assert market.benchmark_name == "idx"
    level = market.benchmark.reshape(5, 390)
    assert (level[:, :-1] == torch.tensor([100.0, 103, 104, 105, 106]).double()[:, None]).all()
    assert level[:, -1].tolist() == [103.0, 104, 105, 106, 107]
    index[index.date >= "2016-01-04"].to_csv(tmp_path / "short.csv", index=False)
    with pytest.raises(DataError, match="begins after"):
        make_market(settings(path, benchmark=str(tmp_path / "short.csv")))


def test_a_day_in_utc_is_that_day_in_new_york(tmp_path):
    days = pd.date_range("2016-01-01", "2016-01-08", tz="UTC")
    index = pd.DataFrame({"ts": days.map(pd.Timestamp.isoformat), "close": np.arange(100.0, 108.0)})
    index.to_csv(tmp_path / "idx.csv", index=False)
    grid = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 1, 8))
    level = file_benchmark(str(tmp_path / "idx.csv"), grid)[0].reshape(5, 390)
    assert level[1].tolist() == [103.0] * 389 + [104.0]
    index.assign(ts=index.ts.str.replace("T00", "T21")).to_csv(tmp_path / "close.csv", index=False)
    assert (file_benchmark(str(tmp_path / "close.csv"), grid)[0] == level.flatten()).all()
    index.assign(ts=index.ts.str.replace("T00", "T01")).to_csv(tmp_path / "late.csv", index=False)
    with pytest.raises(DataError, match="one close a day, late in the evening"):
        file_benchmark(str(tmp_path / "late.csv"), grid)


def test_a_close_within_the_day_is_known_at_its_end(tmp_path):
    grid = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 1, 5), 30)
    hours = pd.date_range("2016-01-01 09:30", "2016-01-06", freq="1h", tz="America/New_York")
    number = np.arange(float(len(hours))) + 1
    table = pd.DataFrame({"ts": hours.map(pd.Timestamp.isoformat), "close": number})
    table.to_csv(tmp_path / "idx.csv", index=False)
    level = file_benchmark(str(tmp_path / "idx.csv"), grid)[0].reshape(2, 13)
    known = number[hours == pd.Timestamp("2016-01-05 08:30", tz="America/New_York")].item()
    assert level[1].tolist() == [known + half // 2 for half in range(1, 13)] + [known + 7]


@pytest.mark.parametrize("clock", ["00:00:00", "16:00:00"])
def test_a_series_may_cross_a_clock_change(clock, tmp_path):
    days = pd.date_range("2016-03-01", "2016-03-31", freq="B").strftime(f"%Y-%m-%d {clock}")
    offsets = ["-05:00" if day < "2016-03-13" else "-04:00" for day in days]
    close = np.arange(float(len(days))) + 100
    table = pd.DataFrame({"date": days.str.cat(offsets), "close": close})
    table.to_csv(tmp_path / "idx.csv", index=False)
    grid = session_grid("XNAS", dt.date(2016, 3, 2), dt.date(2016, 3, 31), 390)
    level = file_benchmark(str(tmp_path / "idx.csv"), grid)[0]
    assert level.tolist() == close[[day[:10] != "2016-03-25" for day in days]][1:].tolist()
    table[:0].to_csv(tmp_path / "empty.csv", index=False)
    with pytest.raises(DataError, match="holds no row"):
        file_benchmark(str(tmp_path / "empty.csv"), grid)


def test_a_day_with_its_year_last_has_no_offset(tmp_path):
    days = pd.date_range("2015-11-02", "2016-03-31", freq="B")
    close = np.arange(float(len(days))) + 100
    table = pd.DataFrame({"date": days.strftime("%m-%d-%Y"), "close": close})
    table.to_csv(tmp_path / "idx.csv", index=False)
    grid = session_grid("XNAS", dt.date(2016, 2, 26), dt.date(2016, 3, 2), 390)
    level = file_benchmark(str(tmp_path / "idx.csv"), grid)[0]
    assert level.tolist() == close[days.isin(grid.dates)].tolist()


@pytest.mark.parametrize("minutes", [60, 120, 240])
def test_a_level_at_lunch_is_known_in_the_afternoon(minutes, tmp_path):
    grid = session_grid("XTKS", dt.date(2019, 7, 2), dt.date(2019, 7, 3), minutes)
    times = pd.date_range("2019-07-01 09:00", "2019-07-03 15:00", freq="15min", tz="Asia/Tokyo")
    level = np.arange(float(len(times))) + 100
    table = pd.DataFrame({"ts": times.map(pd.Timestamp.isoformat), "close": level})
    table.to_csv(tmp_path / "idx.csv", index=False)
    shown = file_benchmark(str(tmp_path / "idx.csv"), grid)[0]
    ends = pd.DatetimeIndex(grid.ends, tz="UTC")
    known = times.tz_convert("UTC") + pd.Timedelta("15min")
    assert shown.tolist() == [level[known <= end].max() for end in ends]


def test_a_series_whose_times_are_numbers_is_refused(tmp_path, caplog):
    days = pd.DataFrame({"ts": [1451606400, 1451865600], "close": [100.0, 101.0]})
    days.to_csv(tmp_path / "idx.csv", index=False)
    grid = session_grid("XNAS", dt.date(2016, 1, 4), dt.date(2016, 1, 8))
    with pytest.raises(DataError, match="numbers; write days like"):
        file_benchmark(str(tmp_path / "idx.csv"), grid)
    days.assign(ts=["2014-01-02", "2014-01-03"]).to_csv(tmp_path / "old.csv", index=False)
    file_benchmark(str(tmp_path / "old.csv"), grid)
    assert "old.csv: ends before the market begins, on 2014-01-03" in caplog.text


def test_a_daily_series_is_seen_the_day_after(tmp_path):
    days = pd.date_range("2016-01-05", "2016-01-08")
    pd.DataFrame({"date": days.strftime("%Y-%m-%d"), "close": [20.0, 25.0, 30.0, 18.0]}).to_csv(
        tmp_path / "vix.csv", index=False
    )
    path = write_csv(tmp_path, minute_table(symbols=1, sessions=5))
    features = {
        "names": ["return_1"],
        "context": [],
        "daily": {"vix": str(tmp_path / "vix.csv")},
        "scaling": "none",
    }
    market = make_market(settings(path, features=features))
    assert market.context_names == ("vix",)
    level = market.context[:, 0].reshape(5, 390)
    assert (level == level[:, :1]).all()
    np.testing.assert_allclose(
        level[:, 0], [0.0, 0.0, np.log(20), np.log(25), np.log(30)], rtol=1e-6
    )
    with pytest.raises(DataError, match=r"features.daily.vix"):
        make_market(settings(path, features={"daily": {"vix": str(tmp_path / "nothing.csv")}}))


def test_equal_settings_reuse_the_file_and_others_do_not(tmp_path):
    path = write_csv(tmp_path, minute_table(symbols=2, sessions=5))
    cache = tmp_path / "cache"
    first = build_market(settings(path), cache=cache)
    stamp = first.stat().st_mtime_ns
    assert build_market(settings(path), cache=cache) == first
    assert first.stat().st_mtime_ns == stamp
    assert build_market(settings(path, bar_minutes=5), cache=cache) != first
    moved = tmp_path / "elsewhere" / "bars.csv"
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    assert build_market(settings(moved), cache=cache) == first
    table = minute_table(symbols=2, sessions=5)
    table.loc[0, "close"] = table.loc[0, "high"]
    assert build_market(settings(write_csv(tmp_path, table)), cache=cache) != first
    assert sorted(file.name for file in first.parent.iterdir()) == [
        ".lock",
        "build.json",
        "market.safetensors",
    ]
    market = MarketTensors.load(first, verify=True)
    again = make_market(settings(moved))
    assert market.content_hash() == again.content_hash()


def test_range_limits_the_days(tmp_path):
    path = write_csv(tmp_path, minute_table(symbols=1, sessions=10))
    market = make_market(settings(path, start="2016-01-06", end="2016-01-13"))
    stamps = market.timestamps()
    assert str(stamps[0])[:16] == "2016-01-06T14:30"
    assert str(stamps[-1])[:16] == "2016-01-13T20:59"
    assert market.provenance.repairs["outside_session"] == 0
    with pytest.raises(DataError, match="no session"):
        make_market(settings(path, start="2016-01-09", end="2016-01-10"))
    with pytest.raises(DataError, match="choose other dates"):
        make_market(settings(path, start=dt.date(2017, 1, 3), end=dt.date(2017, 2, 3)))
