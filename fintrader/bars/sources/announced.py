"""Splits and dividends that a vendor announces, and their effect on prices that it adjusts.

A vendor adjusts its prices as of the day of the request, so bars that were requested before and
after a split have different scales. Stored bars are put on the scale of the last request when they
are read (`scale`). If the prices are also adjusted for dividends, the bars are requested again
(`is_outdated`). Actions that a vendor's prices are adjusted for are not applied to accounts
(`select_for_accounts`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fintrader.bars.corporate_actions import Action
from fintrader.errors import DataError
from fintrader.files import seal, unseal
from fintrader.records import RecordError, from_json, to_json
from fintrader.storage.objects import ObjectStore

Adjustment = Literal["raw", "split", "dividend", "all"]
_FILE = "actions.json"


@dataclass(frozen=True)
class TickerActions:
    """A vendor's answer on one ticker: its actions from the day `first` on, as known on the day
    `asked` of the request."""

    first: str
    asked: str
    actions: tuple[tuple[str, float, float], ...]
    """(day, split, dividend), in order of time; dividends in USD per share as paid on that day."""


_NEVER_ASKED = TickerActions(str(dt.date.max), "", ())


@dataclass(frozen=True)
class StoredActions:
    """Content of the file of announced actions: ticker -> the vendor's answer."""

    tickers: dict[str, TickerActions]


class Announced:
    """The actions that a vendor announced, stored next to its bars.

    Raises DataError when the stored file is damaged.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._tickers: dict[str, TickerActions] = {}
        stored = objects.get(_FILE)
        if stored is not None:
            damaged = DataError(f"{objects}/{_FILE} is damaged; delete it and build again")
            try:
                self._tickers = from_json(StoredActions, unseal(stored, damaged)).tickers
            except RecordError:
                raise damaged from None

    def list_unknown(self, tickers: Iterable[str], first: dt.date, last: dt.date) -> list[str]:
        """List the tickers whose actions of the days `first` to `last` are not all stored."""
        known = {name: self._tickers.get(name, _NEVER_ASKED) for name in tickers}
        return [
            name
            for name, answer in known.items()
            if answer.first > str(first) or answer.asked <= str(last)
        ]

    def put(
        self, tickers: Iterable[str], first: dt.date, asked: dt.date, actions: Iterable[Action]
    ) -> None:
        """Store the vendor's answer of the day `asked`: all actions of these tickers from the day
        `first` on."""
        rows: dict[str, list[tuple[str, float, float]]] = {name: [] for name in tickers}
        for action in sorted(actions, key=lambda action: (action.symbol, action.day)):
            if action.symbol in rows:
                rows[action.symbol].append((str(action.day), action.split, action.dividend_usd))
        for name, ticker_rows in rows.items():
            self._tickers[name] = TickerActions(str(first), str(asked), tuple(ticker_rows))
        self._objects.put(_FILE, seal(to_json(StoredActions(self._tickers))))

    def list_actions(self, ticker: str) -> list[Action]:
        """List a ticker's stored actions in order of time; dividends in USD per share as paid on
        that day."""
        return [
            Action(
                symbol=ticker, day=dt.date.fromisoformat(day), split=split, dividend_usd=dividend
            )
            for day, split, dividend in self._tickers.get(ticker, _NEVER_ASKED).actions
        ]


def scale(actions: Sequence[Action], asked: dt.date, basis: dt.date) -> float:
    """Return the number of shares on the day `basis` into which the splits turn one share of the
    day `asked`. Prices as of `asked` are divided by it, and volumes multiplied."""
    ratio = 1.0
    for action in actions:
        if asked < action.day <= basis:
            ratio *= action.split
    return ratio


def is_outdated(
    actions: Sequence[Action], adjustment: Adjustment, asked: dt.date, basis: dt.date
) -> bool:
    """Report whether, between the days `asked` and `basis`, the vendor has adjusted its prices in a
    way that stored bars cannot follow: by a dividend, or by a split if both are adjusted for."""
    if adjustment not in ("dividend", "all"):
        return False
    return any(
        asked < action.day <= basis
        and (action.dividend_usd > 0 or (adjustment == "all" and action.split != 1))
        for action in actions
    )


def select_for_accounts(
    actions: Sequence[Action], adjustment: Adjustment, basis: dt.date
) -> list[Action]:
    """Select the actions that the prices are not adjusted for. If prices are adjusted for splits,
    dividends are converted to USD per share of the day `basis`."""
    selected = []
    for action in actions:
        split = action.split if adjustment in ("raw", "dividend") else 1.0
        dividend = action.dividend_usd if adjustment in ("raw", "split") else 0.0
        if adjustment == "split":
            # a share from before that day's split is as many shares of the adjusted prices
            own = action.split if action.day <= basis else 1.0
            dividend /= scale(actions, action.day, basis) * own
        rest = action.model_copy(update={"split": split, "dividend_usd": dividend})
        if rest.effects():
            selected.append(rest)
    return selected
