"""Splits and dividends as a vendor announces them, and what they do to prices that a vendor
adjusts.

A vendor adjusts its prices as of the day on which it is asked. What was asked before a split and
what was asked after it are on two scales; so bars of before are put on the later one when they are
read (`scale`), and where dividends are in the prices too, they are asked for again (`outdated`).
Actions that a vendor's prices hold already reach no account (`for_accounts`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from fintrader.bars.corporate_actions import Action
from fintrader.errors import DataError
from fintrader.files import seal, unseal
from fintrader.storage.objects import ObjectStore

Adjustment = Literal["raw", "split", "dividend", "all"]
_FILE = "actions.json"


class Announced:
    """What a vendor announced of each ticker, beside the bars in the store: as of the day on which
    it was asked."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        stored = objects.get(_FILE)
        damaged = DataError(f"{objects}/{_FILE} is damaged; delete it and build again")
        self._found: dict[str, Any] = {} if stored is None else unseal(stored, damaged)["tickers"]

    def lacking(self, tickers: Iterable[str], first: dt.date, last: dt.date) -> list[str]:
        """Tickers of which it is not known what happened on the days `first` to `last`."""
        unknown: dict[str, Any] = {"first": str(dt.date.max), "asked": ""}
        known = {name: self._found.get(name, unknown) for name in tickers}
        return [
            name
            for name, one in known.items()
            if one["first"] > str(first) or one["asked"] <= str(last)
        ]

    def put(
        self, tickers: Iterable[str], first: dt.date, asked: dt.date, actions: Iterable[Action]
    ) -> None:
        """Everything from `first` on, as answered on the day `asked`."""
        rows: dict[str, list[list[Any]]] = {name: [] for name in tickers}
        for action in sorted(actions, key=lambda one: (one.symbol, one.day)):
            if action.symbol in rows:
                rows[action.symbol].append([str(action.day), action.split, action.dividend_usd])
        for name, found in rows.items():
            self._found[name] = {"first": str(first), "asked": str(asked), "actions": found}
        self._objects.put(_FILE, seal({"tickers": self._found}))

    def of(self, ticker: str) -> list[Action]:
        """In order of time; dividends as paid for a share of the day."""
        return [
            Action(
                symbol=ticker, day=dt.date.fromisoformat(day), split=split, dividend_usd=dividend
            )
            for day, split, dividend in self._found.get(ticker, {"actions": []})["actions"]
        ]


def asked_on(piece: Mapping[str, Any]) -> dt.date:
    """The day as of which a stored chunk's prices are adjusted."""
    return dt.date.fromisoformat(piece["request"].get("asked", piece["time"][:10]))


def scale(actions: Sequence[Action], asked: dt.date, basis: dt.date) -> float:
    """Shares of the day `basis` for one of the day `asked`: prices are divided by it, volumes
    multiplied."""
    ratio = 1.0
    for action in actions:
        if asked < action.day <= basis:
            ratio *= action.split
    return ratio


def outdated(
    actions: Sequence[Action], adjustment: Adjustment, asked: dt.date, basis: dt.date
) -> bool:
    """Whether prices with dividends in them would be others by now, in a way that only the vendor
    can tell."""
    if adjustment not in ("dividend", "all"):
        return False
    return any(
        asked < one.day <= basis
        and (one.dividend_usd > 0 or (adjustment == "all" and one.split != 1))
        for one in actions
    )


def for_accounts(actions: Sequence[Action], adjustment: Adjustment, basis: dt.date) -> list[Action]:
    """What is not in the prices already, for shares of the day `basis` where splits are."""
    found = []
    for action in actions:
        split = action.split if adjustment in ("raw", "dividend") else 1.0
        dividend = action.dividend_usd if adjustment in ("raw", "split") else 0.0
        if adjustment == "split":
            # whoever holds one share of before the split has `split` of those that the prices are
            # of
            dividend /= scale(actions, action.day, basis) * (
                action.split if action.day <= basis else 1.0
            )
        if split != 1 or dividend > 0:
            found.append(
                Action(symbol=action.symbol, day=action.day, split=split, dividend_usd=dividend)
            )
    return found
