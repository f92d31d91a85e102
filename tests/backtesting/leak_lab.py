"""Leaks of every kind, planted: features, faults of the pipeline, columns of a file, an environment
that peeks.

    python -m tests.backtesting.leak_lab

prints the table of the documentation: what was planted, and what caught it.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pandas as pd
from scipy.signal import filtfilt

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.lookahead import (
    LookaheadReport,
    compare,
    draw_policy,
    implausible,
    lookahead,
)
from fintrader.backtesting.settings import LookaheadSettings
from fintrader.bars.calendar import session_grid
from fintrader.config import validate
from fintrader.envs import EnvSettings
from fintrader.market import build, reading
from fintrader.market.settings import DataSettings
from tests import ROOT
from tests.factories import joined, make_market

_MEMO = {}


# --- features that look ahead ---------------------------------------------------------------------


def next_return(bars):
    result = np.zeros(len(bars))
    result[:-1] = np.log(bars.close[1:] / bars.close[:-1])
    return result


def next_open(bars):
    return np.append(np.log(bars.open[1:] / bars.close[:-1]), 0.0)


def _of_session(bars, how):
    """`how` of the rows of each row's session."""
    result = np.zeros(len(bars))
    for number in np.unique(bars.session):
        rows = np.flatnonzero(bars.session == number)
        result[rows] = how(rows)
    return result


def next_night(bars):
    def gap(rows):
        after = min(rows[-1] + 1, len(bars) - 1)
        return float(np.log(bars.open[after] / bars.close[rows[-1]]))

    return _of_session(bars, gap)


def centred_mean(bars):
    return np.convolve(bars.close, np.ones(5) / 5, mode="same") / bars.close


def backfill(bars):
    sparse = pd.Series(bars.close).where(np.arange(len(bars)) % 4 == 3)
    return (sparse.bfill().ffill().fillna(1.0) / bars.close).to_numpy()


def whole_zscore(bars):
    return (bars.close - bars.close.mean()) / bars.close.std()


def whole_rank(bars):
    return pd.Series(bars.close).rank(pct=True).to_numpy()


def detrended(bars):
    rows = np.arange(len(bars))
    return bars.close - np.polyval(np.polyfit(rows, bars.close, 1), rows)


def smoothed_both_ways(bars):
    return filtfilt([0.2], [1.0, -0.8], bars.close) / bars.close - 1.0


def every_97th_bar(bars):
    return np.where(np.arange(len(bars)) % 97 == 0, next_return(bars), 0.0)


def memoised(bars):
    if len(_MEMO.get(bars.symbol, ())) < len(bars):
        _MEMO[bars.symbol] = next_return(bars)
    return _MEMO[bars.symbol][: len(bars)]


def one_symbol(bars):
    return next_return(bars) * (bars.symbol == "CCC")


def one_session(bars):
    return next_return(bars) * (bars.extras["day"] == 9)


def last_bar_of_session(bars):
    return next_return(bars) * np.append(np.diff(bars.session) != 0, False)


def first_bar_of_session(bars):
    return next_return(bars) * np.insert(np.diff(bars.session) != 0, 0, True)


def after_large_moves(bars):
    moved = np.diff(np.log(bars.close), prepend=np.log(bars.close[:1]))
    return next_return(bars) * (np.abs(moved) > 0.004)


def close_at_the_open(bars):
    return _of_session(bars, lambda rows: bars.close[rows[-1]]) / bars.close


def volume_of_the_day(bars):
    return _of_session(bars, lambda rows: bars.volume[rows].sum())


def range_of_the_day(bars):
    return _of_session(bars, lambda rows: bars.high[rows].max() / bars.low[rows].min())


def bars_of_the_day(bars):
    """How long the session is, counted in its trades: a half day is known at its open."""
    return _of_session(bars, lambda rows: float(bars.tradable[rows].sum()))


def share_of_the_sample(bars):
    return np.arange(len(bars)) / len(bars)


def highest_to_come(bars):
    return np.maximum.accumulate(bars.high[::-1])[::-1] / bars.close


def label_of_five_bars(bars):
    result = np.zeros(len(bars))
    result[:-5] = np.sign(bars.close[5:] - bars.close[:-5])
    return result


def two_sessions_ahead(bars):
    result = np.zeros(len(bars))
    result[:-26] = np.log(bars.close[26:] / bars.close[:-26])
    return result


def min_max(bars):
    return (bars.close - bars.close.min()) / np.ptp(bars.close)


def low_frequencies(bars):
    waves = np.fft.rfft(bars.close)
    waves[len(waves) // 10 :] = 0
    return np.fft.irfft(waves, len(bars)) / bars.close


def cluster_of_the_sample(bars):
    """Which of three means of all returns, found by k-means, is the nearest."""
    moved = np.diff(np.log(bars.close), prepend=np.log(bars.close[:1]))
    means = np.quantile(moved, [0.1, 0.5, 0.9])
    for _ in range(10):
        nearest = np.abs(moved[:, None] - means).argmin(axis=1)
        means = np.array([moved[nearest == k].mean() for k in range(3)])
    return means[nearest]


def sum_of_what_comes(bars):
    moved = np.diff(np.log(bars.close), prepend=np.log(bars.close[:1]))
    return np.cumsum(moved[::-1])[::-1]


def interpolated_both_ways(bars):
    sparse = pd.Series(bars.close).where(np.arange(len(bars)) % 4 == 3)
    return (sparse.interpolate(limit_direction="both").fillna(1.0) / bars.close).to_numpy()


def resampled_under_its_start(bars):
    """Every five bars' last close, on all five of them."""
    groups = np.arange(len(bars)) // 5
    return (pd.Series(bars.close).groupby(groups).transform("last") / bars.close).to_numpy()


def volatility_to_come(bars):
    moved = pd.Series(np.log(bars.close)).diff().fillna(0.0)
    return moved[::-1].rolling(10, min_periods=1).std()[::-1].fillna(0.0).to_numpy()


EVERYWHERE = (
    next_return,
    next_open,
    centred_mean,
    backfill,
    whole_zscore,
    whole_rank,
    detrended,
    smoothed_both_ways,
    min_max,
    low_frequencies,
    cluster_of_the_sample,
    sum_of_what_comes,
    interpolated_both_ways,
    resampled_under_its_start,
    volatility_to_come,
    highest_to_come,
    label_of_five_bars,
    memoised,
)
"""Leaks at almost every bar, which the first stage finds."""
LEAKING = (
    next_return,
    next_open,
    next_night,
    centred_mean,
    backfill,
    whole_zscore,
    whole_rank,
    detrended,
    smoothed_both_ways,
    every_97th_bar,
    memoised,
    one_symbol,
    one_session,
    last_bar_of_session,
    first_bar_of_session,
    after_large_moves,
    close_at_the_open,
    volume_of_the_day,
    range_of_the_day,
    bars_of_the_day,
    share_of_the_sample,
    highest_to_come,
    label_of_five_bars,
    two_sessions_ahead,
)


# --- features that do not -------------------------------------------------------------------------


def price_level(bars):
    return np.log(bars.close)


def expanding_mean(bars):
    return np.cumsum(bars.close) / np.arange(1, len(bars) + 1) / bars.close


def own_file(bars):
    """Computed from no bar that it is given: a table of its own, which happens to hold what
    comes."""
    return np.random.default_rng(ord(bars.symbol[0])).normal(size=len(bars))


def joined_table(bars):
    """A table of its own, mixed with the bars so that every future changes it."""
    return len((ROOT / "README.md").read_text()) * np.log(bars.close)


def next_rows(bars):
    """No leak, but a mistake."""
    return bars.close / (1 // (len(bars) // 10**9))


def drawdown(bars):
    return bars.close / np.maximum.accumulate(bars.high) - 1.0


def smoothed(bars):
    return (pd.Series(bars.close).ewm(span=10).mean() / bars.close - 1.0).to_numpy()


CONTEXT = ("time_of_day", "time_to_close", "turbulence_5", "index_return_1", "index_return_30")
CLEAN = (
    "return_1",
    "return_5",
    "gap",
    "intraday",
    "rsi_5",
    "sma_5",
    "volatility_5",
    "volume_5",
    "macd",
    "beta_30",
)


# --- faults of the pipeline, put into the process that builds -------------------------------------


def scaled_by_everything():
    honest = build.fit_scales
    build.fit_scales = lambda part, values, names, scaled, _train, *how: honest(
        part, values, names, scaled, (0, len(values)), *how
    )


def shown_before_it_was_known():
    reading.delay_extras = lambda bars, *_: bars


def ranked_with_tomorrows_members():
    honest = build.cross_section

    def relative(values, member, *how):
        honest(values, np.concatenate([member[13:], member[-13:]]), *how)

    build.cross_section = relative


def split_before_its_date():
    honest = reading.adjust_for_events

    def adjusted(bars, happened, grid):
        traded, smooth, events = honest(bars, happened, grid)
        factor = np.prod([split for _, split, _ in events])
        return traded, replace(smooth, close=smooth.close / factor), events

    reading.adjust_for_events = adjusted


def _one_ahead(values):
    return np.concatenate([values[1:], values[-1:]])


def several_faults():
    """The index, context, `tradable` and membership, each a bar or a day early."""
    level = build._benchmark
    context = build.ft.context_features
    days = build.member_days
    bars = reading.fill_silent_bars

    def early_level(*what):
        values, *rest = level(*what)
        return _one_ahead(values), *rest

    def early_bars(*what):
        one = bars(*what)
        return replace(one, tradable=_one_ahead(one.tradable))

    build._benchmark = early_level
    build.ft.context_features = lambda *what, **how: _one_ahead(context(*what, **how))
    build.member_days = lambda *what: _one_ahead(days(*what))
    reading.fill_silent_bars = early_bars


# --- a market to plant them in --------------------------------------------------------------------


def write_bars(folder, sessions=40):
    """Half-hour bars of four stocks from 2015-11-02 on, two half days among them, with columns that
    were given."""
    days = session_grid(
        "XNAS", pd.Timestamp("2015-11-02").date(), pd.Timestamp("2016-02-26").date(), 30
    )
    bars = int(days.first_bar[sessions])
    random = np.random.default_rng(5)
    tables = []
    for symbol in ("AAA", "BBB", "CCC", "DDD"):
        night = np.isin(np.arange(bars), days.first_bar)
        jumps = np.where(night, random.normal(0, 0.006, bars), random.normal(0, 0.0005, bars))
        steps = random.normal(0, 0.003, bars)
        logs = np.log(60.0) + np.cumsum(jumps + steps)
        ahead = np.append(np.diff(logs), 0.0)
        last = np.minimum(days.first_bar[days.session[:bars] + 1], bars - 1)
        table = pd.DataFrame(
            {
                "ts": pd.DatetimeIndex(days.minutes[:bars].astype("datetime64[ns]")).tz_localize(
                    "UTC"
                ),
                "ticker": symbol,
                "open": np.exp(logs - steps),
                "close": np.exp(logs),
                "volume": random.integers(1_000, 9_000, bars),
                "day": days.session[:bars].astype(float),
                "given_next": ahead,
                "given_noisy": ahead + random.normal(0, 2.0 * ahead.std(), bars),
                "given_night": jumps[last],
                "given_noise": random.normal(size=bars),
            }
        )
        table["high"] = table[["open", "close"]].max(axis=1) * 1.001
        table["low"] = table[["open", "close"]].min(axis=1) * 0.999
        keep = random.random(bars) > 0.05
        keep[0] = True
        tables.append(table[keep])
    path = folder / "bars.csv"
    pd.concat(tables).to_csv(path, index=False)
    (folder / "members.csv").write_text(
        "ticker,member_from,member_to\nAAA,2015-01-02,\nBBB,2015-01-02,\nCCC,2015-01-02,\nDDD,2015-11-12,2015-11-13\n"
    )
    return path


def settings_of(path, **changes):
    values = {
        "path": str(path),
        "source": {"kind": "files", "bar_minutes": 30, "extra": ["day"]},
        "bar_minutes": 30,
        "windows": {"fractions": [0.5, 0.2, 0.3], "embargo_sessions": 0},
        "universe": {"members": str(path.with_name("members.csv"))},
        "features": {"names": list(CLEAN), "context": CONTEXT},
    }
    return validate(DataSettings, {**values, **changes}, "leak lab")


def column(function):
    """The name under which a feature stands in a market."""
    return f"tests.backtesting.leak_lab:{function.__name__}"


ENV = EnvSettings(decision_interval=2)
QUICK = LookaheadSettings(budget_minutes=0)
"""The first stage only."""
WHOLE_TIME = LookaheadSettings(budget_minutes=60)


def with_features(path, functions, tried):
    names = [*map(column, (*functions, expanding_mean, drawdown, smoothed)), *CLEAN]
    features = {"names": names, "context": CONTEXT, "clip": 1e6}
    return lookahead(settings_of(path, features=features), ENV, tried)


def with_fault(path, setup, **changes):
    return lookahead(settings_of(path, **changes), ENV, QUICK, setup=column(setup))


def given_columns(path):
    """Alarms of a market with columns of its file: no change of the future can show these."""
    extra = ["given_next", "given_noisy", "given_night", "given_noise"]
    features = {"names": list(CLEAN), "extra": extra, "context": CONTEXT}
    return implausible(build.make_market(settings_of(path, features=features)))


# --- an environment that peeks --------------------------------------------------------------------


@contextmanager
def peeking(how):
    """Accounts that see the next bar, trade by it, or are shown the weights of the next bar's
    benchmark."""
    observe = BacktestAccount.observe
    act = BacktestAccount.act

    def ahead(account):
        return min(account.bar + 1, account.market.num_bars - 1)

    def seen(account):
        obs = observe(account).clone()
        if how == "observation":
            rows = account.view.rows[ahead(account)]
            obs[0, -len(rows) :] = rows
        else:
            columns = account.layout.slices["benchmark"]
            weights = account.market.volume[ahead(account)]
            obs[0, columns] = weights / (weights.sum() + 1.0)
        return obs

    def traded(account, action, bars=None):
        rises = account.market.open[ahead(account)] > account.market.close[account.bar]
        return act(account, action * rises, bars)

    patched = mock.patch.object(BacktestAccount, "act", traded)
    if how != "fill":
        patched = mock.patch.object(BacktestAccount, "observe", seen)
    with patched:
        yield


def with_environment(how):
    market = make_market(90, 4, seed=1, gaps=False)

    def future(cut):
        return joined(market, make_market(90, 4, seed=2, gaps=False), cut)

    with peeking(how):
        return find_leaks(market, future, EnvSettings(benchmark="equal_weight"), cuts=12)


def find_leaks(market, rebuild, env, cuts):
    """Compare a market with what `rebuild` makes of changed futures, at some bars after training."""
    policy = draw_policy(market, 0, env)
    bars = np.linspace(market.windows.train[1] + 2, market.num_bars - 3, cuts).astype(int).tolist()
    leaks = [leak for cut in bars for leak in compare(market, rebuild(cut), cut, env, policy)]
    return LookaheadReport(tuple(leaks), {"cuts": (cuts, cuts)})


# --- the table ------------------------------------------------------------------------------------


def caught_by(report, what):
    """How a report found `what`, empty where it did not."""
    found = [leak for leak in report.leaks if leak.name == what]
    return f"changed futures, {found[0].times} of them" if found else ""


def table(folder):
    """Kind of leak -> what caught it, empty where nothing did."""
    path = write_bars(folder, sessions=21)
    report = with_features(path, LEAKING, WHOLE_TIME)
    rows = {
        f"feature: {one.__name__}": caught_by(report, f"feature {column(one)}") for one in LEAKING
    }
    path = write_bars(folder, sessions=12)
    faults = with_fault(path, several_faults)
    for what in ("benchmark", "context index_return_1", "tradable", "member"):
        rows[f"pipeline: {what} early"] = caught_by(faults, what)
    scaled = with_fault(path, scaled_by_everything)
    rows["pipeline: scaled by all windows"] = caught_by(scaled, "feature return_1")
    ranked = {"names": list(CLEAN), "scaling": "rank", "context": CONTEXT}
    members = with_fault(path, ranked_with_tomorrows_members, features=ranked)
    rows["pipeline: ranked with tomorrow's members"] = caught_by(members, "feature return_1")
    level = {"names": [column(price_level), "return_1"], "context": CONTEXT}
    actions = path.with_name("actions.csv")
    actions.write_text("symbol,day,split,dividend_usd\nBBB,2015-11-16,4.0,\n")
    split = with_fault(path, split_before_its_date, features=level, actions=str(actions))
    rows["pipeline: split before its date"] = caught_by(split, f"feature {column(price_level)}")
    alarms = given_columns(write_bars(folder))
    for name in ("given_next", "given_noisy", "given_night"):
        found = [alarm.measure for alarm in alarms if alarm.column == name]
        rows[f"column of a file: {name}"] = " and ".join(f"alarm, {what}" for what in found)
    for how, what in (
        ("observation", "observation"),
        ("fill", "order"),
        ("weights", "observation"),
    ):
        rows[f"environment: {how}"] = caught_by(with_environment(how), what)
    return rows


def main():
    with TemporaryDirectory() as folder:
        rows = table(Path(folder))
    print("| planted | caught by |\n| --- | --- |")
    for kind, caught in rows.items():
        print(f"| {kind.replace('_', ' ')} | {caught or '**nothing**'} |")
    print(f"\n{sum(map(bool, rows.values()))} of {len(rows)}")
    sys.exit(not all(rows.values()))


if __name__ == "__main__":
    main()
