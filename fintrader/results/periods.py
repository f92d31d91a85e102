"""Results by calendar, by the state of the market, and on its worst days. All take wide daily
returns.

`daily`: one column a strategy (index: the session's last bar, UTC), as
`StoredBacktest.daily_returns` gives them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fintrader import metrics as m

LOOKBACK = 20
"""Number of preceding sessions that determine a session's regime."""
FEWEST_SESSIONS = 3 * LOOKBACK
STRESS_DAYS = 10


def find_months(times: pd.Index, timezone: str) -> pd.Index:
    """The calendar month of each time, as `2020-03`."""
    return pd.DatetimeIndex(times).tz_convert(timezone).strftime("%Y-%m")


def compound(daily: pd.DataFrame, periods: pd.Index) -> pd.DataFrame:
    """Compute each strategy's compound return by period, and `sessions`, the number of rows.

    `periods`: period of each row of `daily`.
    """
    table = (1 + daily).groupby(periods).prod() - 1
    return table.assign(sessions=daily.groupby(periods).size())


def stress_days(daily: pd.DataFrame, index: str) -> pd.DataFrame:
    """The STRESS_DAYS on which `index` lost most, the worst first, with every strategy's
    returns."""
    return daily[daily[index] < 0].nsmallest(STRESS_DAYS, index)


def regimes(daily: pd.DataFrame, index: str) -> dict[str, pd.Series[bool]]:
    """Name of a state of `index` -> mask `[S]` of its sessions; empty below FEWEST_SESSIONS.

    Volatility: thirds of the standard deviation of the last LOOKBACK sessions. Trend: whether the
    index is above its level LOOKBACK sessions ago. Both values are known before the session begins,
    but the limits of the thirds come from the whole window. The first LOOKBACK sessions belong to
    no state.
    """
    if len(daily) < FEWEST_SESSIONS:
        return {}
    moved = daily[index]
    spread = moved.rolling(LOOKBACK).std().shift(1)
    grown = np.log1p(moved).rolling(LOOKBACK).sum().shift(1)
    low, high = spread.quantile([1 / 3, 2 / 3])
    return {
        "calm third": spread <= low,
        "middle third": (spread > low) & (spread <= high),
        "volatile third": spread > high,
        "index has risen": grown > 0,
        "index has fallen": grown <= 0,
    }


def regime_table(
    daily: pd.DataFrame, index: str, strategy: str, sessions_a_year: int = m.TRADING_DAYS
) -> pd.DataFrame:
    """Table with a row for each regime: `sessions`, the mean return of a session of `strategy` and
    of `index` in it, and the strategy's `sharpe` and `beta`."""
    rows = {}
    for name, which in regimes(daily, index).items():
        ours = daily.loc[which, strategy].to_numpy()
        theirs = daily.loc[which, index].to_numpy()
        rows[name] = {
            "sessions": int(which.sum()),
            "strategy": m.mean_return(ours),
            "index": m.mean_return(theirs),
            "sharpe": m.sharpe(ours, sessions_a_year),
            "beta": m.beta(ours, theirs),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
