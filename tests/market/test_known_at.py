"""Columns and tables of others are seen when they were known, and named where nobody says when."""

import numpy as np
import pandas as pd
import pytest

import fintrader
from fintrader.backtesting.lookahead import lookahead
from fintrader.errors import ConfigError, DataError
from fintrader.market.settings import DataSettings
from tests.backtesting import leak_lab as lab
from tests.quick import mostly_slow

DAYS = pd.bdate_range("2024-01-02", "2024-06-28")
DAYS = DAYS[~DAYS.isin(pd.to_datetime(["2024-01-15", "2024-02-19", "2024-03-29", "2024-05-27"]))]
DAYS = DAYS[pd.Timestamp("2024-06-19") != DAYS]
QUARTER = pd.Timestamp("2024-03-31")
REPORTED = pd.Timestamp("2024-05-02")


def bars():
    """Daily bars with earnings as a careless join by date has them: from the quarter's end on."""
    close = 50 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.01, len(DAYS))))
    prices = dict.fromkeys(("open", "high", "low", "close"), close)
    after = pd.Series(DAYS) >= QUARTER
    frame = pd.DataFrame({"date": DAYS, **prices, "volume": 1e6, "eps": np.where(after, 2.0, 1.0)})
    return frame.assign(reported=np.where(after, REPORTED, pd.Timestamp("2023-10-30")))


def market(table=None, **features):
    chosen = {"names": ["return_1"], "context": [], "scaling": "none", **features}
    tables = {"AAA": bars() if table is None else table}
    windows = {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0}
    return fintrader.load_market(tables, features=chosen, windows=windows)


def first_day(built, column, value):
    """The session in which a column first has a value."""
    values = dict(built.columns())[column][:, 0].numpy()
    return DAYS[int(np.flatnonzero(np.isclose(values, value))[0])]


@pytest.mark.slow
def test_a_join_by_period_end_is_seen_at_once_and_named():
    built = market(extra=["eps"])
    assert first_day(built, "eps", 2.0) == pd.Timestamp("2024-04-01")
    assert built.provenance.trusted_columns == ("eps",)
    trusted = market(extra=["eps"], known_at={"eps": "trusted"})
    assert trusted.provenance.trusted_columns == ("eps",)


@pytest.mark.parametrize(
    ("known_at", "day"),
    [
        # a date is over after the session's close
        ("reported", "2024-05-03"),
        ("45d", "2024-05-16"),
        ("45 D", "2024-05-16"),
        ("6w", "2024-05-13"),
        ("1d", "2024-04-02"),
        ("30min", "2024-04-02"),
    ],
)
def test_values_are_seen_when_they_were_known(known_at, day):
    built = market(extra=["eps"], known_at={"eps": known_at})
    assert first_day(built, "eps", 2.0) == pd.Timestamp(day)
    assert first_day(built, "eps", 1.0) <= pd.Timestamp("2024-02-20")
    assert built.provenance.trusted_columns == ()


def test_a_time_of_day_is_exact(tmp_path):
    """An announcement before the close is seen by that day's bar, one after it by the next day's;
    so are files."""
    for clock, day in (("15:30", "2024-05-02"), ("16:30", "2024-05-03")):
        moment = pd.Timestamp(f"2024-05-02 {clock}", tz="America/New_York")
        table = bars()
        told = table.reported.dt.tz_localize("America/New_York")
        table["reported"] = told.where(table.eps == 1.0, moment)
        known = {"extra": ["eps"], "known_at": {"eps": "reported"}}
        assert first_day(market(table, **known), "eps", 2.0) == pd.Timestamp(day)
        table.assign(ticker="AAA").to_csv(tmp_path / "bars.csv", index=False)
        values = {"path": str(tmp_path / "bars.csv"), "bar_minutes": 1440}
        source = {"kind": "files", "bar_minutes": 1440, "columns": {"ts": "date"}}
        features = {"names": ["return_1"], "context": [], "scaling": "none", **known}
        windows = {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0}
        stored = fintrader.load_market(
            {**values, "source": source, "features": features, "windows": windows},
            cache=tmp_path / "cache",
        )
        assert first_day(stored, "eps", 2.0) == pd.Timestamp(day)


@pytest.mark.parametrize(
    ("known_at", "day"),
    [(None, "2024-04-01"), ("released", "2024-04-26"), ("20d", "2024-04-22")],
)
def test_a_daily_series_is_seen_when_it_was_known(tmp_path, known_at, day):
    path = tmp_path / "gdp.csv"
    path.write_text("date,close,released\n2023-12-31,1,2024-01-25\n2024-03-31,2,2024-04-25\n")
    known = {} if known_at is None else {"known_at": {"gdp": known_at}}
    built = market(daily={"gdp": str(path)}, **known)
    assert first_day(built, "gdp", np.log(2.0)) == pd.Timestamp(day)
    assert built.provenance.trusted_columns == (("gdp",) if known_at is None else ())


def test_a_date_among_times_is_known_when_it_is_over():
    table = bars()
    days = table.reported.dt.strftime("%Y-%m-%d")
    table["reported"] = days.where(table.eps == 2.0, "2023-10-30 16:30:00")
    built = market(table, extra=["eps"], known_at={"eps": "reported"})
    assert first_day(built, "eps", 2.0) == pd.Timestamp("2024-05-03")


@pytest.mark.slow
def test_days_pass_by_the_clock_where_summer_time_ends(tmp_path):
    path = tmp_path / "gdp.csv"
    path.write_text("date,close\n2023-06-30,1\n2023-10-02,2\n")
    days = pd.bdate_range("2023-07-03", "2023-12-29")
    days = days[
        ~days.isin(pd.to_datetime(["2023-07-04", "2023-09-04", "2023-11-23", "2023-12-25"]))
    ]
    table = pd.concat([bars(), bars()]).head(len(days)).assign(date=days)
    built = market(table, daily={"gdp": str(path)}, known_at={"gdp": "45d"})
    level = dict(built.columns())["gdp"][:, 0].numpy()
    assert days[np.isclose(level, np.log(2.0))][0] == pd.Timestamp("2023-11-17")


@pytest.mark.slow
def test_a_value_known_at_a_bars_close_is_no_leak(tmp_path):
    """Days that never rest end when the next bar begins."""
    days = pd.date_range("2024-01-01", "2024-02-10")
    close = 50 * np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.01, len(days))))
    prices = dict.fromkeys(("open", "high", "low", "close"), close)
    frame = pd.DataFrame({"date": days, "ticker": "AAA", **prices, "volume": 1e6})
    frame = frame.assign(given=np.random.default_rng(2).normal(size=len(days)), known=days)
    frame.to_csv(tmp_path / "bars.csv", index=False)
    source = {"kind": "files", "bar_minutes": 1440, "timezone": "UTC", "columns": {"ts": "date"}}
    features = {"names": ["return_1"], "context": [], "extra": ["given"]}
    data = DataSettings(
        path=str(tmp_path / "bars.csv"),
        source=source,
        calendar="24/7",
        bar_minutes=1440,
        features={**features, "known_at": {"given": "known"}},
        windows={"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0},
    )
    report = lookahead(data, lab.ENV, lab.QUICK)
    assert report.clean, str(report)


@pytest.mark.slow
def test_the_check_takes_a_file_of_bars_and_names_the_remedy_for_a_table(tmp_path):
    """A table is written to a file, as the refusal says; the options are those of load_market."""
    options = {"features": {"names": ["return_1"], "extra": ["eps"], "context": []}}
    options |= {"windows": {"fractions": [0.4, 0.3, 0.3], "embargo_sessions": 0}}
    table = bars().assign(ticker="AAA")
    with pytest.raises(ConfigError, match=r"to_parquet\('bars\.parquet'\), and give its path"):
        fintrader.lookahead(table, settings=lab.QUICK, **options)
    path = tmp_path / "bars.parquet"
    table.to_parquet(path)
    report = fintrader.lookahead(path, settings=lab.QUICK, **options)
    assert report.clean, str(report)
    assert any("eps" in line and "trusted" in line for line in report.trusted)
    with pytest.raises(ConfigError, match="did you mean 'features'"):
        fintrader.lookahead(path, feature=["return_1"])


def test_mistakes_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="neither in extra nor in daily"):
        market(known_at={"eps": "reported"})
    with pytest.raises(DataError, match=r"'volume' of data\.features\.known_at holds no times"):
        market(extra=["eps"], known_at={"eps": "volume"})
    path = tmp_path / "gdp.csv"
    path.write_text("date,close\n2023-12-31,1\n")
    with pytest.raises(DataError, match="a column close and released"):
        market(daily={"gdp": str(path)}, known_at={"gdp": "released"})


@pytest.mark.slow
def test_the_check_changes_what_was_not_known(tmp_path):
    path = lab.write_bars(tmp_path, sessions=10)
    features = {"names": ["return_1"], "extra": ["given_noise"], "context": []}
    data = lab.settings_of(path, features={**features, "known_at": {"given_noise": "2d"}})
    report = lookahead(data, lab.ENV, lab.QUICK)
    assert report.clean, str(report)
    assert any("given_noise" in line and "known at: 2d" in line for line in report.trusted)
    setup = lab.column(lab.shown_before_it_was_known)
    found = lookahead(data, lab.ENV, lab.QUICK, setup=setup).leaks
    assert "feature given_noise" in {leak.name for leak in found}
    without = lookahead(lab.settings_of(path, features=features), lab.ENV, lab.QUICK)
    assert any("given_noise" in line and "trusted" in line for line in without.trusted)


@pytest.mark.parametrize("form", ["stamps", "words"])
@pytest.mark.parametrize(
    "place", mostly_slow("table", "bars.csv", every=["table", "bars.csv", "bars.parquet"])
)
def test_empty_cells_keep_the_last_value_and_its_time(form, place, tmp_path):
    """Joined tables hold nothing before the first report, and often nothing between reports."""
    sparse = bars()
    is_report = sparse["date"].isin([pd.Timestamp("2024-02-20"), pd.Timestamp("2024-04-01")])
    for column in ("eps", "reported"):
        sparse[column] = sparse[column].where(is_report)
    # A value without its time is no value.
    sparse.loc[sparse["date"] == pd.Timestamp("2024-06-03"), "eps"] = 9.0
    if form == "words":
        sparse["reported"] = sparse["reported"].dt.strftime("%Y-%m-%d")
    known = {"extra": ["eps"], "known_at": {"eps": "reported"}}
    if place == "table":
        built = market(sparse, **known)
    else:
        path = tmp_path / place
        sparse = sparse.assign(ticker="AAA")
        sparse.to_parquet(path) if place.endswith("parquet") else sparse.to_csv(path, index=False)
        features = {"names": ["return_1"], "context": [], "scaling": "none", **known}
        built = fintrader.load_market(path, cache=tmp_path / "cache", features=features)
    eps = dict(built.columns())["eps"][:, 0].numpy()
    days = pd.DatetimeIndex(built.timestamps()).normalize()
    assert (eps[days < "2024-02-20"] == 0).all()
    assert (eps[(days >= "2024-02-20") & (days <= REPORTED)] == 1).all()
    assert (eps[days > REPORTED] == 2).all()


def test_a_factor_of_prices_may_not_be_empty(tmp_path):
    table = bars().assign(ticker="AAA", factor=1.0)
    table.loc[3, "factor"] = np.nan
    table.to_csv(tmp_path / "bars.csv", index=False)
    source = {"columns": {"factor": "factor"}}
    with pytest.raises(DataError, match="column 'factor': the cell is empty"):
        fintrader.load_market(tmp_path / "bars.csv", cache=tmp_path, source=source)
