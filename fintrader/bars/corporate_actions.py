"""Splits and dividends: prices stay as traded, and what happened to a share reaches the account
that holds it.

On the morning of a 4-for-1 split everybody holds four times the shares at a quarter of the price;
on the ex-date of a cash dividend D everybody who held at the close before has D more, and the price
opens lower by as much. A market holds both as events (`market.tensors.Events`), which the ledger
applies to shares and cash.

Features read a series adjusted forward: prices from an ex-date on are multiplied by split / (1 - D
/ last close), so that the night shows no gain or loss, and nothing before an ex-date depends on
anything at or after it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from pydantic import Field

from fintrader.bars.bars import PRICES, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.clean import SymbolBars
from fintrader.config import PathText, Settings, Ticker, strip_folders
from fintrader.errors import DataError, MarketError
from fintrader.storage.objects import read_csv


class Action(Settings):
    """What happened to a share before the open of a day."""

    symbol: Ticker
    day: dt.date
    """First day on which it trades after the action (the ex-date)."""
    split: float = Field(1.0, gt=0)
    """New shares for one old one: 4 for a 4-for-1 split, 0.1 for a 1-for-10 reverse split."""
    dividend_usd: float = Field(0.0, ge=0)
    """Cash paid per old share."""


class AdjustSettings(Settings):
    """Corporate actions; without any, a split looks like a loss and dividends are never paid."""

    actions: tuple[Action, ...] = ()
    path: PathText | None = None
    """CSV file or fsspec URL of further actions: symbol, day, split, dividend_usd (the last two may
    be empty), or ticker, ex_date, kind (split, dividend), value."""
    as_of: dt.date | None = None
    """Only actions up to this day are known; all by default."""
    factor_column: str | None = None
    """Extra column by which prices must be multiplied first (volumes divided), to have them as they
    were traded."""


Actions = tuple[Action, ...]
Events = Mapping[int, tuple[float, float]]
"""Bar -> split and dividend of one symbol."""
_NOTHING = {"split": 1.0, "dividend_usd": 0.0}
_NAMES = {"ticker": "symbol", "ex_date": "day", "date": "day", "dividend": "dividend_usd"}
_KINDS = {"split": "split", "dividend": "dividend_usd"}


def load_actions(
    settings: AdjustSettings, symbol_of: Callable[[str, dt.date], str | None] | None = None
) -> Actions:
    """All declared actions, by symbol and day.

    `symbol_of` says which symbol of the bars a ticker was on a day, None for one that has no bars.
    Raises DataError naming the file and line (or the entry) that cannot be used: no action, a
    second split or dividend of one symbol and day, a symbol without bars.
    """
    rows = [
        (f"data.adjust.actions[{number}]", action) for number, action in enumerate(settings.actions)
    ]
    if settings.path is not None:
        for line, row in read_csv(settings.path, "data.adjust.path"):
            where = f"{strip_folders(settings.path)}, line {line}"
            try:
                rows.append((where, Action.model_validate(_fields(row))))
            except (ValueError, KeyError):
                raise DataError(
                    f"{where}: expected symbol, day (2020-08-31), split, dividend_usd; or ticker,"
                    " ex_date, kind (split or dividend), value"
                ) from None
    known = []
    seen = dict[tuple[str, dt.date, str], str]()
    for where, action in rows:
        symbol = action.symbol if symbol_of is None else symbol_of(action.symbol, action.day)
        if symbol is None:
            raise DataError(
                f"{where}: there are no bars of {action.symbol}; correct the symbol, or delete"
                " the row"
            )
        for kind, there in (("split", action.split != 1), ("dividend", action.dividend_usd > 0)):
            if (
                there
                and (before := seen.setdefault((symbol, action.day, kind), where)) is not where
            ):
                raise DataError(
                    f"{where}: a second {kind} of {action.symbol} on {action.day} ({before} has"
                    " one); keep one, or put both into one row"
                )
        if settings.as_of is None or action.day <= settings.as_of:
            known.append(action.model_copy(update={"symbol": symbol}))
    return tuple(sorted(known, key=lambda action: (action.symbol, action.day)))


def with_announced(declared: Actions, announced: Iterable[Action]) -> tuple[Actions, list[str]]:
    """Declared actions and those that only the source announces; also one line for each on which
    they differ.

    What is declared counts: a source's split or dividend of the same symbol and day is left out.
    """
    mine = {
        (action.symbol, action.day, kind): getattr(action, kind)
        for action in declared
        for kind, nothing in _NOTHING.items()
        if getattr(action, kind) != nothing
    }
    more = []
    differ = []
    for action in announced:
        changes: dict[str, float] = {}
        for kind, nothing in _NOTHING.items():
            theirs = getattr(action, kind)
            own = mine.get((action.symbol, action.day, kind))
            if theirs == nothing or own is None:
                continue
            changes[kind] = nothing
            if abs(own - theirs) > 1e-4 * theirs:
                differ.append(
                    f"{action.symbol} {action.day}: {kind} {own:g} is declared, the source says"
                    f" {theirs:g}"
                )
        rest = action.model_copy(update=changes)
        if any(getattr(rest, kind) != nothing for kind, nothing in _NOTHING.items()):
            more.append(rest)
    return (*declared, *more), differ


def _fields(row: Mapping[str, str]) -> dict[str, str]:
    values = {_NAMES.get(name, name): value for name, value in row.items() if value}
    if "kind" in values:
        values[_KINDS[values.pop("kind")]] = values.pop("value")
    return values


def as_traded(bars: Bars, factor_column: str | None) -> Bars:
    """Bars whose vendor adjusted them, as they were traded."""
    if factor_column is None:
        return bars
    factor = bars.extras[factor_column]
    prices = {name: getattr(bars, name) * factor for name in PRICES}
    return replace(bars, **prices, volume=bars.volume / factor)


def bars_of_actions(
    actions: Sequence[Action], symbol: str, grid: SessionGrid
) -> dict[int, tuple[float, float]]:
    """Bar of the grid -> split and dividend of one symbol, in order; what lies outside the grid is
    left out.

    Raises DataError for a day inside the grid's range on which the exchange is closed.
    """
    found: dict[int, tuple[float, float]] = {}
    for action in actions:
        day = np.datetime64(action.day)
        if action.symbol != symbol or not grid.dates[0] <= day <= grid.dates[-1]:
            continue
        session = int(np.searchsorted(grid.dates, day))
        if grid.dates[session] != day:
            raise DataError(
                f"{symbol}: {action.day} is no session of {grid.calendar}; give the ex-date of the"
                " action"
            )
        split, dividend = found.get(bar := int(grid.first_bar[session]), (1.0, 0.0))
        found[bar] = split * action.split, dividend + action.dividend_usd
    return dict(sorted(found.items()))


MOST_PAID = 1.0 - 1e-6
"""A dividend may be so much of the close before it: a market holds prices with seven digits."""


def is_possible(split: Any, dividend_usd: Any, close: Any) -> Any:
    """True of an event by which prices can be adjusted: split / (1 - D / close) is positive and
    finite.

    Takes numpy or torch values, one or many. `close` is that of the bar before, as a market holds
    it, and infinite where there is none.
    """
    paid = dividend_usd / close
    factor = split / (1.0 - paid)
    usable = (factor > 0) & (factor < math.inf) & (1.0 / factor < math.inf)
    return (split > 0) & (dividend_usd >= 0) & (paid < MOST_PAID) & usable


def refuse_event(
    symbol: str, day: object, split: float, dividend_usd: float, close: float
) -> NoReturn:
    """Raise the MarketError that says what is wrong with an event that is not `is_possible`."""
    if not 0 < split < math.inf:
        wrong = f"a split into {split:g} shares is no positive number"
    elif not 0 <= dividend_usd < math.inf:
        wrong = f"a dividend of {dividend_usd:g} USD is no amount"
    elif dividend_usd >= MOST_PAID * close:
        wrong = (
            f"a dividend of {dividend_usd:g} USD is no less than the close of {close:g} USD"
            " before it"
        )
    else:
        wrong = (
            f"a split into {split:g} shares and a dividend of {dividend_usd:g} USD after a close of"
            f" {close:g} USD change prices beyond what a number can hold"
        )
    raise MarketError(
        f"{symbol}, {day}: {wrong}; correct the event in data.adjust (a dividend is paid for a"
        " share of before the split of that day) or the prices before it (as they were traded), or"
        " leave the event out"
    )


def hold_through(
    bars: SymbolBars, happened: Events, grid: SessionGrid
) -> tuple[SymbolBars, SymbolBars, list[tuple[int, float, float]]]:
    """The symbol as traded, the same adjusted forward, and its events (bar, split, dividend), those
    it was listed for.

    A price that is carried over an ex-date is carried at what the share is then worth: (close - D)
    / split. Raises MarketError for an event that is not `is_possible`.
    """
    inside = {
        bar - bars.first: event for bar, event in happened.items() if bars.first < bar < bars.stop
    }
    if not inside:
        return bars, bars, []
    columns = {name: getattr(bars, name).copy() for name in PRICES}
    price = np.ones(len(bars))
    shares = np.ones(len(bars))
    traded = np.append(np.flatnonzero(bars.tradable), len(bars))
    for row, (split, dividend) in inside.items():
        close = float(columns["close"][row - 1])
        stored = float(np.float32(close))  # as a market holds it
        with np.errstate(all="ignore"):
            if not is_possible(*np.array([split, dividend, stored])):
                day = grid.dates[grid.session[bars.first + row]]
                refuse_event(bars.symbol, day, split, dividend, stored)
        silent = slice(row, int(traded[np.searchsorted(traded, row)]))
        for values in columns.values():
            values[silent] = (close - dividend) / split
        price[row:] *= split / (1.0 - dividend / close)
        shares[row:] *= split
    whole: dict[str, Any] = columns
    adjusted: dict[str, Any] = {name: values * price for name, values in columns.items()}
    events = [(bars.first + row, *event) for row, event in inside.items()]
    return replace(bars, **whole), replace(bars, **adjusted, volume=bars.volume / shares), events
