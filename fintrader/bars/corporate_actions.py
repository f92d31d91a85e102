"""Splits and dividends: prices stay as traded, and accounts receive the splits and dividends of the
shares that they hold.

On the morning of a 4-for-1 split an account holds four times as many shares at a quarter of the
price. On the ex-date of a cash dividend D an account receives D for each share that it held at the
close before, and the price opens lower by about D. A market stores both as events
(`market.tensors.Events`), which the ledger applies to shares and cash.

Features read prices that are adjusted forward: from an ex-date on, prices are multiplied by split /
(1 - D / last close). So the event itself causes no return overnight, and no value before an ex-date
depends on anything at or after it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from pydantic import Field

from fintrader.bars.bars import PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.clean import SymbolBars
from fintrader.config import Settings, Ticker, strip_folders
from fintrader.errors import BarError, DataError, MarketError
from fintrader.storage.objects import read_csv

_NOTHING = {"split": 1.0, "dividend_usd": 0.0}


class Action(Settings):
    """A split, a cash dividend, or both, of one symbol, effective before the open of a day."""

    symbol: Ticker
    day: dt.date
    """Ex-date: the first day on which the share trades after the action."""
    split: float = Field(1.0, gt=0)
    """New shares for one old share: 4 for a 4-for-1 split, 0.1 for a 1-for-10 reverse split."""
    dividend_usd: float = Field(0.0, ge=0)
    """Cash paid per share held before a split of the same day."""

    def effects(self) -> dict[str, float]:
        """Return `split` and `dividend_usd`, without a split of 1 or a dividend of 0."""
        values = {kind: float(getattr(self, kind)) for kind in _NOTHING}
        return {kind: value for kind, value in values.items() if value != _NOTHING[kind]}


Actions = tuple[Action, ...]
Events = Mapping[int, tuple[float, float]]
"""Number of the session -> split and dividend (USD) of one symbol."""
_NAMES = {"ticker": "symbol", "ex_date": "day", "date": "day", "dividend": "dividend_usd"}
_KINDS = {"split": "split", "dividend": "dividend_usd"}


def load_actions(
    path: str | None, symbol_of: Callable[[str, dt.date], str | None] | None = None
) -> Actions:
    """Load the actions that a CSV file declares, sorted by symbol and day.

    symbol_of: returns the symbol in the bars for a ticker on a day, None for a ticker without bars.
    Raises DataError, which names file and line, for a line that is no action, a second split or
    dividend of one symbol and day, or a symbol without bars.
    """
    if path is None:
        return ()
    known = []
    seen = dict[tuple[str, dt.date, str], str]()
    for line, row in read_csv(path, "data.actions"):
        where = f"{strip_folders(path)}, line {line}"
        try:
            action = Action.model_validate(_read_fields(row))
        except (ValueError, KeyError):
            raise DataError(
                f"{where}: expected symbol, day (2020-08-31), split, dividend_usd; or ticker,"
                " ex_date, kind (split or dividend), value"
            ) from None
        symbol = action.symbol if symbol_of is None else symbol_of(action.symbol, action.day)
        if symbol is None:
            raise DataError(
                f"{where}: there are no bars of {action.symbol}; correct the symbol, or delete"
                " the row"
            )
        for kind in action.effects():
            before = seen.setdefault((symbol, action.day, kind), where)
            if before != where:
                raise DataError(
                    f"{where}: a second {kind.removesuffix('_usd')} of {action.symbol} on"
                    f" {action.day} ({before} has one); keep one, or put both into one row"
                )
        known.append(action.model_copy(update={"symbol": symbol}))
    return tuple(sorted(known, key=lambda action: (action.symbol, action.day)))


def add_announced(declared: Actions, announced: Iterable[Action]) -> tuple[Actions, list[str]]:
    """Join the declared actions with those that the source announces; return them, and one line for
    each contradiction.

    Declared actions have precedence: an announced split or dividend of the same symbol and day is
    left out. A declared split of 1, or dividend of 0, cancels an announced one.
    """
    mine = {
        (action.symbol, action.day, kind): float(getattr(action, kind))
        for action in declared
        for kind in _NOTHING
        if kind in action.model_fields_set
    }
    more = []
    differ = []
    for action in announced:
        theirs = action.effects()
        known = [kind for kind in theirs if (action.symbol, action.day, kind) in mine]
        for kind in known:
            own = mine[action.symbol, action.day, kind]
            if abs(own - theirs[kind]) > 1e-4 * theirs[kind]:
                differ.append(
                    f"{action.symbol} {action.day}: {kind} {own:g} is declared, the source says"
                    f" {theirs[kind]:g}"
                )
        rest = action.model_copy(update={kind: _NOTHING[kind] for kind in known})
        if rest.effects():
            more.append(rest)
    return (*(action for action in declared if action.effects()), *more), differ


def _read_fields(row: Mapping[str, str]) -> dict[str, str]:
    values = {_NAMES.get(name, name): value for name, value in row.items() if value}
    if "kind" in values:
        values[_KINDS[values.pop("kind")]] = values.pop("value")
    return values


def undo_adjustment(bars: Bars, factor_column: str | None) -> Bars:
    """Turn adjusted prices and volumes into those traded, by the factors in an extra column;
    without a column, return the bars unchanged. Raises BarError for a factor that is not
    positive."""
    if factor_column is None:
        return bars
    factor = bars.extras[factor_column]
    usable = (factor > 0) & (factor < math.inf)
    if not usable.all():
        row = int(usable.argmin())
        raise BarError(
            f"{bars.describe_row(row)}, column {factor_column!r}: {factor[row]} is no factor;"
            " correct the rows or remove them"
        )
    prices = {name: getattr(bars, name) * factor for name in PRICES}
    return replace(bars, **prices, volume=bars.volume / factor)


def place_actions(
    actions: Iterable[Action], symbols: Iterable[str], grid: SessionGrid
) -> dict[str, dict[int, tuple[float, float]]]:
    """Place the actions of these symbols on the grid; actions outside of its range are left out.
    Returns symbol -> number of the session -> split and dividend (USD), in order of time.

    Raises DataError for a day within the grid's range on which the exchange is closed.
    """
    placed: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in symbols}
    for action in sorted(actions, key=lambda action: action.day):
        day = np.datetime64(action.day)
        if action.symbol not in placed or not grid.dates[0] <= day <= grid.dates[-1]:
            continue
        session = int(np.searchsorted(grid.dates, day))
        if grid.dates[session] != day:
            raise DataError(
                f"{action.symbol}: {action.day} is no session of {grid.calendar}; give the ex-date"
                " of the action"
            )
        events = placed[action.symbol]
        split, dividend = events.get(session, (1.0, 0.0))
        events[session] = split * action.split, dividend + action.dividend_usd
    return placed


MOST_PAID = 1.0 - 1e-6
"""Largest dividend as a fraction of the close before it; above, the price left over is lost in the
seven digits with which a market stores prices."""


def is_possible(split: Any, dividend_usd: Any, close: Any) -> Any:
    """Report whether prices can be adjusted by an event: split / (1 - D / close) must be positive
    and finite.

    Takes numbers, or arrays of numpy or torch. close: the close of the bar before (USD), as a
    market stores it; infinite without one.
    """
    paid = dividend_usd / close
    factor = split / (1.0 - paid)
    usable = (factor > 0) & (factor < math.inf) & (1.0 / factor < math.inf)
    return (split > 0) & (dividend_usd >= 0) & (paid < MOST_PAID) & usable


def refuse_event(
    symbol: str, day: object, split: float, dividend_usd: float, close: float
) -> NoReturn:
    """Raise the MarketError that explains why an event is not `is_possible`."""
    if not 0 < split < math.inf:
        wrong = f"a split into {split:g} shares is impossible"
    elif not 0 <= dividend_usd < math.inf:
        wrong = f"a dividend of {dividend_usd:g} USD is impossible"
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
        f"{symbol}, {day}: {wrong}; correct the event in data.actions (a dividend is paid for a"
        " share from before that day's split) or the prices before it (as they were traded), or"
        " leave the event out"
    )


def accumulate_growth(
    events: Sequence[tuple[int, float, float]], close: Array
) -> tuple[Array, Array]:
    """Return the growth of one share held from the first bar on: the bars `[E]` at which it
    changes, and its values `[E + 1]`, of which the first is 1. events: (bar, split, dividend in
    USD) each; close: `[L]` USD."""
    bars = np.array([bar for bar, _, _ in events], dtype=np.int64)
    steps = [split / (1.0 - dividend / float(close[bar - 1])) for bar, split, dividend in events]
    return bars, np.cumprod([1.0, *steps])


def adjust_for_events(
    bars: SymbolBars, happened: Events, grid: SessionGrid
) -> tuple[SymbolBars, SymbolBars, list[tuple[int, float, float]]]:
    """Apply a symbol's events to its bars. Returns the bars with prices as traded, the bars with
    prices and volumes adjusted forward, and the events while it was listed: (bar of the grid,
    split, dividend in USD).

    Bars without a trade after an ex-date get the price (close - D) / split instead of the last
    close. Raises MarketError for an event that is not `is_possible`.
    """
    rows = {int(grid.first_bar[one]) - bars.first: event for one, event in happened.items()}
    inside = {row: event for row, event in rows.items() if 0 < row < len(bars)}
    if not inside:
        return bars, bars, []
    columns = {name: getattr(bars, name).copy() for name in PRICES}
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
        shares[row:] *= split
    as_held = replace(bars, **columns)
    changes = [(row, *event) for row, event in inside.items()]
    at, growth = accumulate_growth(changes, columns["close"])
    price = growth[np.searchsorted(at, np.arange(len(bars)), side="right")]
    adjusted = {name: values * price for name, values in columns.items()}
    events = [(bars.first + row, *event) for row, event in inside.items()]
    return as_held, replace(bars, **adjusted, volume=bars.volume / shares), events
