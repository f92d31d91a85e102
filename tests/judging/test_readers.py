"""Returns, equity, weights and results of other programs, in their formats."""

import io
import json
import pickle
import zipfile

import numpy as np
import pandas as pd
import pytest

from fintrader.errors import ReturnsError
from fintrader.verdict.returns_files import read_record, read_weights
from fintrader.verdict.track_record import make_record

RNG = np.random.default_rng(5)
DAYS = pd.bdate_range("2021-01-04", periods=300)
RETURNS = pd.Series(0.0003 + 0.01 * RNG.standard_normal(300), DAYS, name="mine")
INDEX = pd.Series(0.0002 + 0.01 * RNG.standard_normal(300), DAYS, name="SPY")


def to_equity(returns, start=100_000.0):
    before = returns.index[0] - pd.Timedelta(days=1)
    wealth = start * (1 + returns).cumprod()
    return pd.concat([pd.Series([start], pd.DatetimeIndex([before])), wealth]).rename("equity")


def same(record, returns=RETURNS):
    assert pd.DatetimeIndex(record.dates).equals(pd.DatetimeIndex(returns.index))
    np.testing.assert_allclose(record.returns, returns, atol=1e-9)
    return True


# --- values in Python -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        RETURNS,
        RETURNS[::-1],
        RETURNS.rename(None),
        RETURNS.tz_localize("UTC"),
        RETURNS.to_frame(),
        RETURNS.rename_axis("date").reset_index(),
        (DAYS.to_numpy(), RETURNS.to_numpy()),
        ([str(day)[:10] for day in DAYS], RETURNS.tolist()),
        to_equity(RETURNS),
        to_equity(RETURNS, 1.0),
        pd.concat([pd.Series([np.nan], DAYS[:1] - pd.Timedelta(days=1)), RETURNS]),
        pd.DataFrame({"returns": RETURNS, "exposure": 0.5, "signal": 1.0}),
    ],
)
def test_returns_and_equity_in_every_shape_are_the_same_record(values):
    record = make_record(values)
    assert same(record)
    assert (record.sessions_a_year, record.benchmark) == (252, None)


def test_stats_of_backtesting_py_hold_their_equity_curve():
    """`Backtest.run()` returns a Series of objects."""
    curve = to_equity(RETURNS, 10_000.0).rename("Equity").to_frame()
    curve["DrawdownPct"] = 1 - curve["Equity"] / curve["Equity"].cummax()
    stats = pd.Series(
        {"Start": DAYS[0], "Sharpe Ratio": 1.2, "_equity_curve": curve, "_trades": pd.DataFrame()},
        dtype=object,
    )
    assert same(make_record(stats))


def test_a_vectorbt_portfolio_gives_its_returns_and_many_columns_ask_for_one():
    class Portfolio:
        """vectorbt's returns for a grid of parameters."""

        def returns(self):
            return pd.DataFrame({10: RETURNS, 20: RETURNS * 2})

    with pytest.raises(ReturnsError, match=r"2 columns \(10, 20\).*trials=2"):
        make_record(Portfolio())
    assert same(make_record(Portfolio(), column="10"))


def test_polars_needs_no_index():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"date": DAYS.date, "returns": RETURNS.to_numpy()})
    assert same(make_record(frame))


def test_per_cent_logs_and_bars_of_minutes_are_returns_of_days():
    assert same(make_record(RETURNS * 100, kind="percent"))
    assert same(make_record(np.log1p(RETURNS), kind="log"))
    half = np.sqrt(1 + RETURNS) - 1
    times = [day + pd.Timedelta(hours=hour) for day in DAYS for hour in (10, 15)]
    record = make_record(pd.Series(np.repeat(half.to_numpy(), 2), pd.DatetimeIndex(times)))
    assert same(record)
    read_as = "Column mine: values read as returns, where 0.01 is 1 %."
    assert record.notes == (
        read_as.replace("mine", "returns"),
        "Returns within a day were compounded to one a day.",
    )


@pytest.mark.parametrize(
    ("dates", "year"),
    [
        (pd.bdate_range("2021-01-01", periods=200), 252),
        (pd.date_range("2021-01-01", periods=200), 365),
        (pd.date_range("2021-01-01", periods=100, freq="W-FRI"), 52),
        (pd.date_range("2021-01-01", periods=40, freq="ME"), 12),
        (pd.date_range("2021-01-01", periods=40, freq="MS"), 12),
        (pd.period_range("2021-01", periods=40, freq="M"), 12),
    ],
)
def test_periods_a_year_come_from_the_dates(dates, year):
    record = make_record(pd.Series(RETURNS.to_numpy()[: len(dates)], dates))
    assert record.sessions_a_year == year
    if year == 12:
        assert str(record.dates[0]) == "2021-01-31"


def test_a_benchmark_is_compounded_to_longer_periods_and_cut_to_common_dates():
    record = make_record(pd.DataFrame({"mine": RETURNS, "SPY": INDEX}), benchmark="SPY")
    np.testing.assert_allclose(record.benchmark, INDEX)
    weekly = (1 + RETURNS).resample("W-FRI").prod() - 1
    for rival in (INDEX, to_equity(INDEX)):
        record = make_record(weekly, benchmark=rival)
        expected = (1 + INDEX).resample("W-FRI").prod() - 1
        np.testing.assert_allclose(record.benchmark, expected, atol=1e-12)
        assert record.sessions_a_year == 52
    with pytest.raises(ReturnsError, match="give the benchmark as returns"):
        make_record(RETURNS, benchmark=100 * INDEX)
    both = pd.DataFrame({"mine": 100 * RETURNS, "SPY": 100 * INDEX})
    np.testing.assert_allclose(make_record(both, benchmark="SPY", kind="percent").benchmark, INDEX)
    shorter = make_record(RETURNS, benchmark=INDEX[50:])
    assert same(shorter, RETURNS[50:])
    assert shorter.notes[-1] == "50 of 300 dates lack a value and are left out."


def test_a_month_counts_only_where_the_benchmark_covers_it():
    days = pd.bdate_range("2022-12-31", "2024-02-29")
    rival = pd.Series(0.01 * RNG.standard_normal(len(days)), days, name="SPY")
    monthly = (1 + rival).resample("ME").prod() - 1

    def months(**cut):
        return make_record(
            monthly["2023"], benchmark=rival.drop(rival.loc[slice(*cut["out"])].index)
        )

    for first in ("2023-12-01", "2023-12-04"):  # without December, or its first session alone
        assert str(months(out=(first, None)).dates[-1]) == "2023-11-30"
    hole = months(out=("2023-03-01", "2023-03-31"))
    assert np.datetime64("2023-03-31") not in hole.dates
    assert hole.caveats
    np.testing.assert_allclose(
        make_record(monthly["2023"], benchmark=rival).benchmark, monthly["2023"]
    )
    # The first month begins at the end of the month before, however many rows follow.
    for last in ("2023-05", "2024-01"):
        late = make_record(monthly["2023-02":last], benchmark=rival)
        np.testing.assert_allclose(late.benchmark, monthly["2023-02":last])


@pytest.mark.parametrize(
    ("values", "options", "message", "remedy"),
    [
        (RETURNS * 100, {}, "returns or per cent; say which: kind=", {"kind": "percent"}),
        (RETURNS.abs() + 1e-4, {}, "equity, returns or per cent; say which", {"kind": "returns"}),
        (1 + RETURNS, {}, "equity, returns or per cent; say which", {"kind": "equity"}),
        (RETURNS, {"kind": "equity"}, "say so: kind=returns", {"kind": "returns"}),
        (RETURNS, {"kind": "profit"}, "choose one of returns, percent, log, equity", {}),
        (RETURNS, {"column": "other"}, "there are mine", {"column": "mine"}),
        (RETURNS, {"benchmark": "QQQ"}, "'QQQ' is no column; there are mine", {"benchmark": None}),
        (RETURNS[::3], {}, "sessions_a_year=", {"sessions_a_year": 84}),
        (RETURNS[::60], {"sessions_a_year": None}, "sessions_a_year=", {"sessions_a_year": 4}),
        (RETURNS[:1], {}, "give at least two returns", None),
        (RETURNS.to_numpy(), {}, "with dates, or as a pair of arrays", None),
        (
            pd.concat([RETURNS, RETURNS[:2] + 0.01]),
            {},
            r"2021-01-04 occurs twice, with different values \(2 such dates\)",
            None,
        ),
        (RETURNS * 2e5, {}, "returns or per cent.*add profits in money to the capital", None),
        (RETURNS.rename("PnL"), {}, "PnL may hold money.*kind=returns", {"kind": "returns"}),
        ((RETURNS * 2e5).rename("pnl"), {}, "add profits in money.*kind=equity", None),
        (pd.concat([RETURNS, RETURNS], axis=1), {}, "two columns have one name", None),
        (RETURNS[:0], {}, "the table is empty", None),
        ((DAYS, RETURNS[:9]), {}, "a pair of arrays .dates, values. of one length", None),
        ((DAYS, RETURNS, INDEX), {}, "a pair of arrays .dates, values. of one length", None),
        ((), {}, "a pair of arrays .dates, values. of one length", None),
        (RETURNS.mask(RETURNS > 0, np.inf), {}, "a value is infinite", None),
        (RETURNS, {"benchmark": INDEX.to_frame("a").join(INDEX)}, "has 2 columns", None),
        (pd.concat({"mine": RETURNS}), {}, "with dates, or as a pair of arrays", None),
        (
            RETURNS.astype(str).replace(str(RETURNS.iloc[3]), "n.v."),
            {},
            "'n.v.'.*is no number",
            None,
        ),
        (pd.DataFrame({"a": ["x", "y"], "b": [0.1, 0.2]}), {}, "'x' is no date|no column of", None),
        (RETURNS.set_axis(DAYS + pd.Timedelta(days=4000)), {"benchmark": INDEX}, "not those", None),
    ],
)
def test_unreadable_values_are_explained_and_the_remedy_works(values, options, message, remedy):
    with pytest.raises(ReturnsError, match=message):
        make_record(values, **options)
    if remedy is not None:
        make_record(values, **({**options, **remedy} if remedy else {}))


# --- files ----------------------------------------------------------------------------------------


def test_tables_of_text_in_the_ways_of_several_countries(tmp_path):
    path = tmp_path / "own.csv"
    texts = {
        "index": RETURNS.to_csv(),
        "percent": "Date,Return\n"
        + "".join(f"{day:%Y-%m-%d},{100 * value:.9f} %\n" for day, value in RETURNS.items()),
        "german": "Datum;Rendite\n"
        + "".join(
            f"{day:%d.%m.%Y};" + f"{value:.12f}\n".replace(".", ",")
            for day, value in RETURNS.items()
        ),
        "comma": "date;r\n"
        + "".join(
            f"{day:%Y-%m-%d};{value:.12f}\n".replace(".", ",") for day, value in RETURNS.items()
        ),
        "american": "date,r\n"
        + "".join(f"{day:%m/%d/%Y},{value:.12f}\n" for day, value in RETURNS.items()),
        "numbers": "time\tr\n"
        + "".join(f"{day:%Y%m%d}\t{value:.12f}\n" for day, value in RETURNS.items()),
        "no header": RETURNS.to_csv(header=False),
        "byte order mark": "\ufeff" + RETURNS.to_csv(),
        "summer time": RETURNS.set_axis(DAYS.tz_localize("America/New_York")).to_csv(),
        "seconds": "time,r\n"
        + "".join(f"{day.timestamp():.0f},{value:.12f}\n" for day, value in RETURNS.items()),
        "equity": "time,nav\n"
        + "".join(f'{day},"{value:,.9f}"\n' for day, value in to_equity(RETURNS).items()),
    }
    for text in texts.values():
        path.write_text(text)
        assert same(read_record(path))
    RETURNS.to_frame().to_parquet(tmp_path / "own.parquet")
    assert same(read_record(tmp_path / "own.parquet"))


def test_a_benchmark_is_a_column_before_it_is_a_file(tmp_path):
    pd.DataFrame({"mine": RETURNS, "SPY": INDEX}).to_csv(tmp_path / "own.csv")
    INDEX.to_csv(tmp_path / "spx.csv")
    record = read_record(tmp_path / "own.csv", benchmark="SPY")
    assert record.benchmark_name == "SPY"
    (tmp_path / "spaced.csv").write_text(
        pd.DataFrame({"mine": RETURNS, " SPY": INDEX}).to_csv(index_label="date")
    )
    assert read_record(tmp_path / "spaced.csv", benchmark="SPY").benchmark_name == "SPY"
    RETURNS.to_csv(tmp_path / "alone.csv")
    record = read_record(tmp_path / "alone.csv", benchmark=str(tmp_path / "spx.csv"))
    np.testing.assert_allclose(record.benchmark, INDEX)
    assert record.benchmark_name == "spx"
    assert read_record(tmp_path / "alone.csv", benchmark="cash").benchmark is None
    with pytest.raises(ReturnsError, match="'other' is not there; there are mine"):
        read_record(tmp_path / "alone.csv", column="other")
    with pytest.raises(ReturnsError, match="neither a column of alone"):
        read_record(tmp_path / "alone.csv", benchmark="QQQ")


def test_a_pickle_is_opened_only_where_it_is_trusted(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "trap.pkl").write_bytes(pickle.dumps(Trap()))
    RETURNS.to_pickle(tmp_path / "own.pkl")
    for name in ("trap.pkl", "own.pkl"):
        with pytest.raises(ReturnsError, match=r"can run any code.*--trust"):
            read_record(tmp_path / name)
    assert not (tmp_path / "ran").exists()
    assert same(read_record(tmp_path / "own.pkl", trust=True))


def test_a_model_is_not_its_returns(tmp_path):
    with zipfile.ZipFile(tmp_path / "ppo.zip", "w") as archive:  # Stable-Baselines3's own layout
        for name in ("data", "policy.pth", "pytorch_variables.pth", "_stable_baselines3_version"):
            archive.writestr(name, b"")
    with pytest.raises(ReturnsError, match="is a model, not returns; backtest it first"):
        read_record(tmp_path / "ppo.zip")


# --- freqtrade ------------------------------------------------------------------------------------


def freqtrade_result(minutes=90, names=("Own",)):
    """Make the fields of freqtrade's `generate_backtest_stats` that a reader needs."""
    days = pd.date_range("2023-03-01", periods=40)
    profits = np.random.default_rng(2).normal(2.0, 20.0, 30)
    trades = [
        {
            "pair": "BTC/USDT",
            "stake_amount": 100.0,
            "open_date": str(days[k] + pd.Timedelta(hours=6) - pd.Timedelta(minutes=minutes)),
            "close_date": f"{days[k]:%Y-%m-%d} 06:00:00+00:00",
            "trade_duration": minutes,
            "profit_ratio": profit / 100,
            "profit_abs": profit,
            "is_short": False,
        }
        for k, profit in enumerate(profits)
    ]
    strategy = {
        "trades": trades,
        "daily_profit": [[f"{days[k]:%Y-%m-%d}", profit] for k, profit in enumerate(profits)],
        "starting_balance": 1000,
        "final_balance": 1000 + profits.sum(),
        "backtest_start": "2023-03-01 00:00:00",
        "backtest_end": "2023-04-09 00:00:00",
        "timeframe": "5m",
        "stake_currency": "USDT",
    }
    content = {
        "strategy": dict.fromkeys(names, strategy),
        "strategy_comparison": [{"key": name} for name in names],
        "metadata": {},
    }
    wealth = 1000 + np.cumsum(np.append(profits, np.zeros(10)))
    return content, pd.Series(wealth, days)


def test_freqtrades_json_books_profits_when_trades_close(tmp_path):
    content, wealth = freqtrade_result()
    (tmp_path / "backtest-result-2023.json").write_text(json.dumps(content))
    record = read_record(tmp_path / "backtest-result-2023.json")
    assert (record.name, record.sessions_a_year, len(record.returns)) == ("Own", 365, 40)
    np.testing.assert_allclose(1000 * np.cumprod(1 + record.returns), wealth)
    assert record.caveats == ()
    content, _ = freqtrade_result(minutes=3 * 1440)
    (tmp_path / "slow.json").write_text(json.dumps(content))
    assert (
        "when trades close, 3.0 days after they open"
        in read_record(tmp_path / "slow.json").caveats[0]
    )


def test_freqtrades_zip_has_the_wallet_bar_by_bar_and_the_market(tmp_path):
    content, wealth = freqtrade_result(minutes=3 * 1440, names=("Own", "My_Own"))
    hours = pd.date_range("2023-03-01", periods=40 * 24, freq="h", tz="UTC")
    marked = np.interp(np.arange(960), np.arange(23, 960, 24), wealth)
    wallet = pd.DataFrame({"date": hours, "currency": "USDT", "total_quote": marked})
    steps = np.random.default_rng(3).normal(0, 0.002, 960)
    market = pd.DataFrame({"date": hours, "mean": 1.0, "rel_mean": np.cumsum(steps), "count": 2})
    path = tmp_path / "backtest-result-2023-04-10_10-00-00.zip"
    with zipfile.ZipFile(path, "w") as archive:
        stem = path.stem
        archive.writestr(f"{stem}.json", json.dumps(content))
        archive.writestr(f"{stem}_config.json", "{}")
        archive.writestr(f"{stem}_Own.py", "raise SystemExit")
        archive.writestr(f"{stem}_signals.pkl", b"never opened")
        tables = {
            "My_Own_wallet": wallet.assign(total_quote=1.0),
            "Own_wallet": wallet,
            "market_change": market,
        }
        for name, table in tables.items():
            buffer = io.BytesIO()
            table.to_feather(buffer)
            archive.writestr(f"{stem}_{name}.feather", buffer.getvalue())
    with pytest.raises(ReturnsError, match=r"2 strategies: Own, My_Own; choose one \(--column"):
        read_record(path)
    record = read_record(path, column="Own")
    assert (record.benchmark_name, record.caveats) == ("its pairs", ())
    np.testing.assert_allclose(np.prod(1 + record.returns), wealth.iloc[-1] / marked[0])
    np.testing.assert_allclose(record.benchmark[1], np.prod(1 + steps[24:48]) - 1)
    assert read_record(path, column="Own", benchmark="cash").benchmark is None


# --- Lean -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["objects", "candles"])
def test_lean_results_of_both_versions(tmp_path, version):
    """Points are stamped at the next midnight in New York; older versions write `{x, y}` under
    capitalised names."""
    equity, index = to_equity(RETURNS), to_equity(INDEX)

    def points(series):
        midnight = (series.index + pd.Timedelta(days=1)).tz_localize("America/New_York")
        seconds = midnight.as_unit("s").asi8
        if version == "objects":
            return [{"x": int(x), "y": float(y)} for x, y in zip(seconds, series, strict=True)]
        return [[int(x), *[float(y)] * 4] for x, y in zip(seconds, series, strict=True)]

    charts = {
        "Strategy Equity": {"Series": {"Equity": {"Values": points(equity)}}},
        "Benchmark": {"Series": {"Benchmark": {"Values": points(index)}}},
    }
    content = {"Charts": charts, "Statistics": {}}
    if version == "candles":
        content = json.loads(
            json.dumps(content)
            .replace('"Charts"', '"charts"')
            .replace('"Series"', '"series"')
            .replace('"Values"', '"values"')
        )
    (tmp_path / "123.json").write_text(json.dumps(content))
    record = read_record(tmp_path / "123.json")
    assert same(record)
    np.testing.assert_allclose(record.benchmark, INDEX, atol=1e-9)
    assert record.sessions_a_year == 252


def test_the_error_lists_the_content_of_an_unknown_file(tmp_path):
    (tmp_path / "other.json").write_text('{"results": [1, 2]}')
    with pytest.raises(ReturnsError, match=r"it holds results.*save dates and returns as CSV"):
        read_record(tmp_path / "other.json")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ReturnsError, match="empty"):
        read_record(tmp_path / "empty.csv")
    with pytest.raises(ReturnsError, match="no such file"):
        read_record(tmp_path / "absent.csv")


# --- weights --------------------------------------------------------------------------------------


def test_weights_are_traded_at_the_next_price_net_of_costs(tmp_path):
    prices = pd.DataFrame({"A": to_equity(RETURNS, 50.0), "B": to_equity(INDEX, 20.0)})
    weights = pd.DataFrame({"A": 1.0, "B": 0.0}, prices.index[:1])
    weights.loc[prices.index[100]] = [0.0, 0.5]
    weights.to_csv(tmp_path / "weights.csv")
    prices.to_csv(tmp_path / "prices.csv")
    files = (tmp_path / "weights.csv", tmp_path / "prices.csv")
    record = read_weights(*files, cost_bps=10)
    a, b = RETURNS.to_numpy(), INDEX.to_numpy()
    np.testing.assert_allclose(record.returns[0], -0.001)  # bought at the second price
    np.testing.assert_allclose(record.returns[1:100], a[1:100])
    np.testing.assert_allclose(record.returns[100], a[100] - 0.0015 * (1 + a[100]), rtol=1e-9)
    np.testing.assert_allclose(record.returns[101], 0.5 * b[101], rtol=1e-9)
    np.testing.assert_allclose(record.benchmark, (a + b) / 2)
    assert record.benchmark_name == "equal weight"
    assert record.caveats == ()
    assert read_weights(*files).caveats == ("trading free of costs",)
    assert read_weights(*files, benchmark="A").benchmark_name == "A"
    weights.rename(columns={"B": "C"}).to_csv(tmp_path / "weights.csv")
    with pytest.raises(ReturnsError, match="no prices of C; add columns for them"):
        read_weights(*files)


def test_the_first_weights_are_traded_whatever_their_hour(tmp_path):
    prices = pd.DataFrame({"A": to_equity(RETURNS, 50.0)})
    files = (tmp_path / "weights.csv", tmp_path / "prices.csv")
    prices.to_csv(files[1])
    # Before all prices, on a Saturday, and in the evening.
    for first, row in (("2020-12-20", 1), ("2021-01-09", 6), ("2021-01-08 16:00", 6)):
        pd.DataFrame({"A": 1.0}, pd.DatetimeIndex([first])).to_csv(files[0])
        held = read_weights(*files).holdings
        (bought,) = np.flatnonzero(held.changes)
        assert held.dates[bought] == prices.index[row].to_numpy()


def test_a_halted_symbol_is_sold_at_its_next_price(tmp_path):
    """A sells at 40 after the halt, not at the 100 before it, and only then can B be bought."""
    days = pd.bdate_range("2021-01-04", periods=40)
    prices = pd.DataFrame({"A": 100.0, "B": 20.0}, days)
    prices.iloc[21:, 0] = 40.0
    prices.iloc[18:21, 0] = np.nan
    weights = pd.DataFrame({"A": [1.0, 0.0], "B": [0.0, 0.5]}, days[[0, 18]])
    weights.to_csv(tmp_path / "weights.csv")
    prices.to_csv(tmp_path / "prices.csv")
    record = read_weights(tmp_path / "weights.csv", tmp_path / "prices.csv")
    held = record.holdings
    assert list(np.flatnonzero(held.changes[:, 0])) == [1, 21]
    assert list(np.flatnonzero(held.changes[:, 1])) == [21]
    np.testing.assert_allclose(np.prod(1 + record.returns), 0.4)
    # The benchmark's half of A falls once, too, at the first price after the halt.
    np.testing.assert_allclose(record.benchmark[20], -0.3)
    assert np.count_nonzero(record.benchmark) == 1


def test_halts_and_delistings_add_no_leverage(tmp_path):
    """Sales of A wait, so that B is bought for what is left; C is sold at its last price when 20
    dates have none, because until then it could be a halt."""
    days = pd.bdate_range("2021-01-04", periods=70)
    prices = pd.DataFrame({"A": 100.0, "B": 20.0, "C": 10.0}, days)
    prices.iloc[8:15, 0] = np.nan
    prices.iloc[15:, 0] = 200.0
    prices.iloc[12:, 1] = 40.0
    prices.iloc[30:, 2] = np.nan
    weights = pd.DataFrame(0.0, days[[0, 8, 20, 32]], list("ABC"))
    weights.loc[days[0], "A"] = weights.loc[days[20], "C"] = 1.0
    weights.loc[days[8], ["A", "B"]] = 0.25, 0.75
    weights.loc[days[32], "B"] = 1.0
    weights.to_csv(tmp_path / "weights.csv")
    prices.to_csv(tmp_path / "prices.csv")
    held = read_weights(tmp_path / "weights.csv", tmp_path / "prices.csv").holdings
    prices.iloc[:40].to_csv(tmp_path / "prices.csv")
    earlier = read_weights(tmp_path / "weights.csv", tmp_path / "prices.csv").holdings
    np.testing.assert_array_equal(earlier.shares, held.shares[:40])
    worth = np.abs(held.shares * held.prices).sum(1)
    assert (worth[1:] <= held.equity[1:] * (1 + 1e-9)).all()
    assert held.equity[14] == 1e6  # B was not bought with money that A holds
    assert (held.equity[15:] == 2e6).all()
    assert list(np.flatnonzero(held.changes[:, 2])) == [21, 49]


def test_a_halt_does_not_sell_other_symbols(tmp_path):
    """A is halted at the first weights and afterwards, when less of it is wanted."""
    days = pd.bdate_range("2021-01-04", periods=40)
    prices = pd.DataFrame({"A": 100.0, "B": 20.0}, days)
    prices.iloc[[5, 20, 21], 0] = np.nan
    weights = pd.DataFrame({"A": [0.5, 0.25], "B": [0.5, 0.5]}, days[[5, 19]])
    weights.to_csv(tmp_path / "weights.csv")
    prices.to_csv(tmp_path / "prices.csv")
    held = read_weights(tmp_path / "weights.csv", tmp_path / "prices.csv").holdings
    assert list(np.flatnonzero(held.changes[:, 0])) == [1, 17]
    assert list(np.flatnonzero(held.changes[:, 1])) == [1]


def test_hourly_prices_are_refused_by_name(tmp_path):
    hours = pd.date_range("2021-01-04 15:00", periods=200, freq="h")
    pd.DataFrame({"A": np.linspace(50, 60, 200)}, hours).to_csv(tmp_path / "prices.csv")
    pd.DataFrame({"A": 1.0}, hours[:1]).to_csv(tmp_path / "weights.csv")
    with pytest.raises(ReturnsError, match="prices have several rows on 2021-01-05"):
        read_weights(tmp_path / "weights.csv", tmp_path / "prices.csv")


# --- odd files and values -------------------------------------------------------------------------


def to_text(values, form="{:.12f}", header="date,r"):
    rows = (f"{day:%Y-%m-%d},{form.format(value)}\n" for day, value in values.items())
    return f"{header}\n{''.join(rows)}"


def to_zip(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.json", json.dumps(content))
    return buffer.getvalue()


LATE = pd.concat([RETURNS[:150], RETURNS[150:].shift(freq="365D")])
LOSING = to_equity(RETURNS) - np.linspace(0, 200_000, 301)
IDLE = {"strategy": {"Own": {"trades": [], "starting_balance": 1000}}}
AS_CSV = "save dates and returns as CSV"
ODD = {
    "empty.csv": ("", "No columns.*" + AS_CSV),
    "blank.csv": ("\n\n", "No columns.*" + AS_CSV),
    "header.csv": ("date,r\n", "^header.csv is empty"),
    "one.csv": (to_text(RETURNS[:1]), "give at least two returns"),
    "words.csv": (to_text(RETURNS, "much"), "'much'.*is no number"),
    "formula.csv": (to_text(RETURNS, "=1+1"), "'=1[+]1'.*is no number"),
    "blanks.csv": (to_text(RETURNS, ""), "there is no value"),
    "infinite.csv": (to_text(RETURNS.replace(RETURNS.iloc[3], np.inf)), "a value is infinite"),
    "minus.csv": (to_text(RETURNS.replace(RETURNS.iloc[3], -np.inf)), "a value is infinite"),
    "overflow.csv": (to_text(1e305 * to_equity(RETURNS)), "a value is infinite"),
    "twice.csv": (
        to_text(RETURNS) + to_text(RETURNS[:1] + 0.1, header="")[1:],
        r"^twice.csv: 2021-01-04 occurs twice, with different values \(1 such date\)",
    ),
    "total.csv": (to_text(RETURNS) + "Total,0.2\n", "no column of dates among date, r"),
    "footer.csv": (to_text(RETURNS) + "\n,\n", "1 rows have no date; remove them"),
    "numbered.csv": (RETURNS.reset_index(drop=True).to_csv(), "no column of dates"),
    "alone.csv": (
        RETURNS.to_csv(index=False),
        "has one column; give dates and values, in two columns",
    ),
    "page.csv": ("<!DOCTYPE html><html><body>Sign in</body></html>", "has one column"),
    "gap.csv": (
        to_text(LATE),
        r"^gap.csv: .*longest gap: 368 days from 2021-07-30.*0 where nothing was held",
    ),
    "quarters.csv": (to_text(RETURNS.resample("QE").mean()), "sessions_a_year="),
    "percent.csv": (to_text(RETURNS * 20), "kind=returns or kind=percent"),
    "ruined.csv": (
        to_text(LOSING),
        "leave out the rows before or after it or, if these are returns",
    ),
    "wide.csv": (
        to_text(RETURNS.to_frame("a").join(INDEX).iloc[:, 0], "{0},{0}", "date,a,b"),
        "or keep one",
    ),
    "utf16.csv": (to_text(RETURNS).encode("utf-16"), AS_CSV + " in UTF-8"),
    "latin.csv": (to_text(RETURNS, header="date,Rendité").encode("latin-1"), AS_CSV + " in UTF-8"),
    "noise.csv": (RNG.bytes(5000), AS_CSV),
    "noise.parquet": (RNG.bytes(5000), AS_CSV),
    "noise.feather": (b"", AS_CSV),
    "noise.zip": (b"PK", AS_CSV),
    "noise.csv.gz": (b"\x1f\x8bnoise", AS_CSV),
    "sheet.xlsx": (to_zip(sheet={}), AS_CSV),
    "table.zip": (to_zip(table=[1]), AS_CSV),
    "list.json": ("[[1, 2]]", AS_CSV),
    "number.json": ("3", AS_CSV),
    "broken.json": ("{", AS_CSV),
    "charts.json": ('{"charts": {}}', "no chart `Strategy Equity`.*" + AS_CSV),
    "idle.zip": (to_zip(idle=IDLE), "Own made no trade"),
    "none.json": ('{"strategy": {}}', AS_CSV),
    "part.json": ('{"strategy": {"A": {"trades": [{"profit_abs": 1}]}}}', AS_CSV),
}


def test_equal_rows_are_dropped_with_a_line_and_the_reading_is_named(tmp_path):
    path = tmp_path / "own.csv"
    cases = {
        "returns": (RETURNS, "returns, where 0.01 is 1 %"),
        "nav": (to_equity(RETURNS), "equity, where the first row is the starting capital"),
    }
    for column, (values, meaning) in cases.items():
        twice = pd.concat([values, values[5:6], values[9:10]]).rename(column)
        twice.to_csv(path, index_label="date")
        record = read_record(path)
        assert same(record)
        assert record.notes[0] == f"Column {column}: values read as {meaning}."
        assert record.notes[1] == "2 rows left out, equal to an earlier one."
    path.write_text(
        "date,r\n" + "".join(f"{day},{100 * value:.9f} %\n" for day, value in RETURNS.items())
    )
    assert read_record(path).notes == ("Column r: values read as per cent, where 1 is 1 %.",)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_refused_in_one_line(name, tmp_path):
    content, message = ODD[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ReturnsError, match=message) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ReturnsError, match="no such file"):
        read_record(tmp_path)


READABLE = {
    "descending": to_text(RETURNS[::-1]),
    "shuffled": to_text(RETURNS.sample(frac=1, random_state=1)),
    "spaces": to_text(RETURNS, " {:.12f}", " date , r "),
    "zones": "date,r\n"
    + "".join(
        f"{day:%Y-%m-%d} 16:00:00{('+00:00', '-05:00')[k % 2]},{value}\n"
        for k, (day, value) in enumerate(RETURNS.items())
    ),
    "seconds": "date,r\n"
    + "".join(
        f"{day:%Y-%m-%d}T16:00:{second}+00:00,{part}\n"
        for day, value in RETURNS.items()
        for second, part in (("05", value), ("35", 0.0))
    ),
    "thousands": to_text(100 * to_equity(RETURNS), '"{:,.0f}"', "date,nav"),
    "German thousands": "date;nav\n"
    + "".join(
        f"{day:%Y-%m-%d};{value:,.9f}\n".replace(",", "_").replace(".", ",").replace("_", ".")
        for day, value in to_equity(RETURNS, 1000.0).items()
    ),
    "prices": "Date,Open,Close,Volume\n"
    + "".join(f"{day:%Y-%m-%d},1,{value:.9f},9\n" for day, value in to_equity(RETURNS).items()),
}


@pytest.mark.parametrize("name", READABLE)
def test_an_unusual_file_is_read_as_it_was_meant(name, tmp_path):
    (tmp_path / "own.csv").write_text(READABLE[name])
    record = read_record(tmp_path / "own.csv")
    np.testing.assert_allclose(record.returns, RETURNS, atol=2e-7)


def test_an_equity_that_ends_at_zero_is_a_ruin():
    wealth = to_equity(RETURNS)
    for last in (0.0, -20.0):
        wealth.iloc[-1] = last
        assert make_record(wealth, kind="equity").returns[-1] == -1


def test_sessions_that_were_left_out_are_a_caveat():
    assert make_record(RETURNS.drop(DAYS[50:52]), benchmark=INDEX).caveats == ()
    assert make_record(RETURNS[10:], benchmark=INDEX).caveats == ()
    for values, rival in (
        (RETURNS.drop(DAYS[50:56]), INDEX),
        (RETURNS.mask(DAYS.isin(DAYS[50:56])), None),
        (RETURNS, INDEX.drop(DAYS[50:56])),
    ):
        (caveat,) = make_record(values, benchmark=rival).caveats or ("none",)
        assert caveat == "6 periods left out (write 0 for those without a position)"
    ends = pd.date_range("2014-01-31", periods=120, freq="ME")
    months = pd.Series(RETURNS[:120].to_numpy(), ends)
    assert make_record(months).caveats == ()
    (caveat,) = make_record(months.drop(months.index[20:23])).caveats
    assert caveat.startswith("3 periods left out")
    stated = make_record(RETURNS, sessions_a_year=12)
    assert stated.caveats == ("12 periods a year as stated, which its dates do not confirm",)
    assert make_record(RETURNS, sessions_a_year=260).caveats == ()
    assert make_record(RETURNS[::3], sessions_a_year=84).caveats


def test_the_benchmark_of_an_equity_with_gaps_is_compounded_over_them():
    wealth = to_equity(INDEX).drop(DAYS[[40, 41, 90]])
    record = make_record(wealth, benchmark=INDEX)
    np.testing.assert_allclose(record.returns, record.benchmark, atol=1e-9)


def test_per_cent_is_read_by_its_signs_and_never_guessed_from_a_name(tmp_path):
    quiet = (RETURNS / 30).rename("Return (%)")
    with pytest.raises(ReturnsError, match="names per cent"):
        make_record(100 * quiet)
    assert same(make_record(100 * quiet, kind="percent"), quiet)
    signed = (100 * quiet).map("{:.9f}%".format)
    assert same(make_record(signed.mask(DAYS[7] == DAYS, "0")), quiet.mask(DAYS[7] == DAYS, 0.0))
    with pytest.raises(ReturnsError, match="only some values have a per cent sign"):
        make_record(signed.mask(DAYS[7] == DAYS, "0.5"))
    for kind in ("equity", None):
        assert same(make_record(to_equity(RETURNS, 100.0).map("{:.9f}%".format), kind=kind))
    prices = pd.DataFrame({"A": to_equity(RETURNS, 50.0), "B": to_equity(INDEX, 20.0)})
    prices.to_csv(tmp_path / "prices.csv")
    records = []
    for weight in ("10%", 0.1):
        weights = pd.DataFrame({"A": weight, "B": weight}, prices.index[:1])
        weights.to_csv(tmp_path / "weights.csv")
        records.append(read_weights(tmp_path / "weights.csv", tmp_path / "prices.csv"))
    np.testing.assert_array_equal(*(record.returns for record in records))


@pytest.mark.parametrize(
    "form",
    [
        "{:%Y-%m-%d %H:%M:%S}{:+03}",
        "{:%Y-%m-%d %H:%M:%S} {:+03}00",
        "{:%d/%m/%Y %H:%M} GMT{:+03}00",
    ],
)
def test_the_offset_of_summer_time_may_be_written_in_any_way(form):
    berlin = DAYS.tz_localize("Europe/Berlin")
    text = [form.format(day, int(day.utcoffset().total_seconds()) // 3600) for day in berlin]
    assert same(make_record((text, RETURNS.to_numpy())))


def test_the_hour_that_occurs_twice_is_two_hours():
    hours = pd.date_range(
        "2024-10-01", "2024-11-10", freq="h", tz="Europe/Berlin", inclusive="left"
    )
    record = make_record(pd.Series(0.0001, hours), kind="returns")
    assert len(record.returns) == 40
    assert record.returns[26] == pytest.approx(1.0001**25 - 1)


def test_a_benchmarks_prices_have_the_name_of_their_file(tmp_path):
    prices = pd.DataFrame({"Close": to_equity(INDEX), "Volume": 9})
    prices.to_csv(tmp_path / "SPY.csv", index_label="Date")
    RETURNS.to_csv(tmp_path / "own.csv", index_label="date")
    record = read_record(tmp_path / "own.csv", benchmark=str(tmp_path / "SPY.csv"))
    assert record.benchmark_name == "SPY"


def test_weights_and_prices_that_no_account_can_have(tmp_path):
    prices = pd.DataFrame({"A": to_equity(RETURNS, 50.0), "B": to_equity(INDEX, 20.0)})
    files = (tmp_path / "weights.csv", tmp_path / "prices.csv")

    def trade(weight, marks=prices, **options):
        pd.DataFrame({"A": weight, "B": 0.0}, prices.index[:1]).to_csv(files[0])
        marks.to_csv(files[1])
        return read_weights(*files, **options)

    for weight in (50.0, np.inf):
        with pytest.raises(ReturnsError, match=r"sum to more than 20; write 0.5 for 50 %"):
            trade(weight)
    for price in (0.0, -5.0):
        with pytest.raises(ReturnsError, match="leave unknown ones empty"):
            trade(0.5, prices.replace(prices.iloc[50, 0], price))
    assert len(trade(0.5, prices.replace(prices.iloc[50, 0], np.nan)).returns) == 300
    ruined = trade(15.0, prices.assign(A=prices["A"] * np.linspace(1, 0.1, 301)))
    assert ruined.returns.min() == -1
    assert ruined.returns[-1] == 0
    assert trade(0.5, cost_bps=1e9).returns[0] == -1
