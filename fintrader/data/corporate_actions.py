"""Splits and dividends: raw bars stay as they came, factors are applied when a market is built, as of a date.

On the morning of a 4-for-1 split everybody holds four times the shares at a quarter of the price. All prices before it
are divided by 4 and volumes multiplied, so that the night shows no gain or loss. A cash dividend D lowers the price by
D at the open of its ex-date; all prices before are multiplied by 1 - D / (last close before), which keeps returns those
of somebody who reinvests. Such factors scale a symbol's whole past alike: no return, and no feature relative to price,
learns anything of the future from them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field

from fintrader.config import PathText, Settings, base_name
from fintrader.data.bars import PRICES, Bars
from fintrader.data.calendar import exchange_days
from fintrader.errors import DataError
from fintrader.storage.objects import read_csv


class Action(Settings):
    """What happened to a share before the open of a day."""

    symbol: str
    day: dt.date
    """First day on which it trades after the action (the ex-date)."""
    split: float = Field(1.0, gt=0)
    """New shares for one old one: 4 for a 4-for-1 split, 0.1 for a 1-for-10 reverse split."""
    dividend_usd: float = Field(0.0, ge=0)
    """Cash paid per old share."""


class AdjustSettings(Settings):
    """Corporate actions to apply; without any, prices stay as the source has them."""

    actions: tuple[Action, ...] = ()
    path: PathText | None = None
    """CSV file or fsspec URL of further actions: symbol, day, split, dividend_usd (the last two may be empty)."""
    as_of: dt.date | None = None
    """Only actions up to this day are known; all by default."""
    factor_column: str | None = None
    """Extra column by which prices must be multiplied first (volumes divided), to have them as they were traded."""


def load_actions(settings: AdjustSettings) -> tuple[Action, ...]:
    """All actions, by symbol and day. Raises DataError naming the file and line that cannot be used."""
    actions = list(settings.actions)
    if settings.path is not None:
        for line, row in read_csv(settings.path, "data.adjust.path"):
            try:
                actions.append(Action.model_validate({key: value for key, value in row.items() if value}))
            except ValueError:
                raise DataError(
                    f"{base_name(settings.path)}, line {line}: expected symbol, day (2020-08-31), split, dividend_usd"
                ) from None
    known = [action for action in actions if settings.as_of is None or action.day <= settings.as_of]
    return tuple(sorted(known, key=lambda action: (action.symbol, action.day)))


def adjust(bars: Bars, actions: Sequence[Action], calendar: str, factor_column: str | None = None) -> Bars:
    """One symbol's sorted bars, with its actions applied to everything before them."""
    if factor_column is not None:
        traded = bars.extras[factor_column]
        prices = {name: getattr(bars, name) * traded for name in PRICES}
        bars = replace(bars, **prices, volume=bars.volume / traded)
    mine = [action for action in actions if action.symbol in bars.symbols]
    if not mine or len(bars) == 0:
        return bars
    days = exchange_days(calendar, bars.ts)
    price, volume = np.ones(len(bars)), np.ones(len(bars))
    for action in mine:
        before = days < np.datetime64(action.day).astype(np.int64)
        if not before.any():
            continue
        close = float(bars.close[before][-1])
        if action.dividend_usd >= close:
            raise DataError(
                f"{action.symbol}: a dividend of {action.dividend_usd} USD on {action.day} exceeds the close of {close}"
            )
        price[before] *= (1.0 - action.dividend_usd / close) / action.split
        volume[before] *= action.split
    scaled = {name: getattr(bars, name) * price for name in PRICES}
    return replace(bars, **scaled, volume=bars.volume * volume)
