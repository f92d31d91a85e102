"""Comparison of a symbol's days with daily bars of another source.

Daily bars may be adjusted for splits and dividends, so the ratio of the two sources' prices on a
day is compared with the ratio on the days around it. The daily open shows displacements of minutes:
in clean bars it equals the open of the session's first bar, to the tick, on nearly all days.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fintrader.bars.bars import PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.days import LAGS, Days
from fintrader.bars.checks.kinds import list_runs
from fintrader.results.market_description import Fault

_TICK = 2e-4
"""Prices whose log ratio is smaller are equal but for rounding and float32."""
_AROUND = 21
"""Days in the rolling median of the ratio, the scale of the middle day."""
_FEWEST = 3
"""Fewest days in a row with a misplaced opening print that are reported; in clean bars one day in a
hundred has one by chance. As many days with other prices, or more, are one fault if
their share exceeds _RARE."""
_RARE = 0.01


def compare_with_daily(days: Days, daily: Bars, grid: SessionGrid) -> tuple[Days, list[Fault]]:
    """Find the days whose prices differ from daily bars. Returns `days` with `unopened` filled in,
    and the faults.

    daily: sorted daily bars of the same symbol; those outside of the sessions of `grid` are
    ignored.
    """
    import pandas as pd  # settings import this module and must not load pandas

    at = grid.locate(daily.ts)
    table = np.full((grid.num_sessions + 2, 4), np.nan)
    table[grid.session[at[at >= 0]]] = np.log([getattr(daily, name) for name in PRICES]).T[at >= 0]
    own = np.log(np.column_stack([days.open, days.high, days.low, days.close]))

    def ratio(lag: int) -> Array:
        return np.asarray(
            own - table[days.session + lag]
        )  # a row of NaN stands after the last session

    centre = pd.Series(np.median(ratio(0), axis=1))
    scale = centre.rolling(_AROUND, center=True, min_periods=1).median().to_numpy()[:, None]
    far = max(10 * _TICK, float(np.median(own[:, 1] - own[:, 2])) / 2)
    in_place = np.abs(ratio(0) - scale)
    away = in_place > far
    is_unlike = away.sum(axis=1) >= 3
    prints = np.log(days.openings) - table[days.session, :1] - scale
    is_print = np.abs(prints) < _TICK
    known = np.isfinite(prints[:, len(LAGS) // 2])
    faults = []
    for way, lag in (("later", 1), ("earlier", -1)):
        same = np.abs(ratio(lag) - scale)
        moved = (same[:, :3] < _TICK).all(axis=1) & (same[:, 3] < far)
        moved &= (in_place > 5 * _TICK).sum(axis=1) >= 2
        is_unlike &= ~moved
        detail = f"its prices are those of the daily bar one session {way}"
        faults += [
            days.report_fault("misaligned", day, detail) for day in np.flatnonzero(moved).tolist()
        ]
    for column, lag in enumerate(LAGS):
        elsewhere = known & is_print[:, column] & ~is_print[:, len(LAGS) // 2]
        for start, stop in list_runs(elsewhere) if lag else []:
            if stop - start >= _FEWEST:
                minutes = abs(lag) * days.length
                detail = f"{minutes} minute{'s' * (minutes > 1)} {'early' if lag < 0 else 'late'}"
                until = f" until {days.dates[stop - 1]}, by the opening prints of daily bars"
                count = days.bars[start:stop].sum()
                faults.append(days.report_fault("misaligned", start, detail + until, count))
    differs = np.flatnonzero(away.any(axis=1))
    if len(differs) >= _FEWEST and len(differs) > _RARE * len(own):
        detail = f"on {len(differs)} of {np.isfinite(centre).sum()} days"
        faults.append(
            days.report_fault("unlike_daily", differs[0], detail, days.bars[differs].sum())
        )
    else:
        faults += [
            days.report_fault("unlike_daily", day, f"{np.expm1(centre[day] - scale[day, 0]):+.1%}")
            for day in np.flatnonzero(is_unlike).tolist()
        ]
    opened = np.where(known, ~is_print[:, len(LAGS) // 2], np.nan)
    return replace(days, unopened=opened), faults
