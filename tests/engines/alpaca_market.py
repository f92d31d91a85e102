"""Alpaca's two services on this machine: the bars of a made-up market that never closes, as they
are made, and trading at their prices.

As a program it serves until it is ended: `python -m tests.engines.alpaca_market [SECONDS]` prints
its address.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.engines.alpaca_loopback import LoopbackAlpaca, Refusal

MINUTE_S = 60
PAGE = 10_000


class MadeUpBars:
    """A random walk for each symbol over the minutes from `days` days before now to two days
    after."""

    def __init__(
        self, symbols: Sequence[str], *, now: Callable[[], float], days: int = 60, seed: int = 18
    ) -> None:
        today = int(now()) // 86_400 * 86_400
        self.symbols = tuple(symbols)
        self.now = now
        self.minutes = np.arange(today - days * 86_400, today + 2 * 86_400, MINUTE_S)
        draws = np.random.default_rng(seed)
        steps = draws.normal(0.0, 2e-4, (len(symbols), len(self.minutes)))
        self.close = np.round(100.0 * np.exp(steps.cumsum(axis=1)), 4)
        self.volume = draws.integers(20_000, 60_000, self.close.shape).astype(float)

    def rows(self, symbol: str, start: float, end: float, minutes: int) -> Iterator[dict[str, Any]]:
        """Bars of so many minutes that begin in `[start, end]`; the newest as far as it has come,
        as Alpaca does."""
        number = self.symbols.index(symbol)
        step = minutes * MINUTE_S
        begins = self.minutes[::minutes]
        known = int(np.searchsorted(self.minutes, self.now() - MINUTE_S, side="right"))
        for moment in begins[(begins >= start) & (begins <= end)]:
            first = int(moment - self.minutes[0]) // MINUTE_S
            closes = self.close[number, max(first - 1, 0) : min(first + step // MINUTE_S, known)]
            if first >= known:
                return
            volume = float(self.volume[number, first : min(first + step // MINUTE_S, known)].sum())
            stamp = dt.datetime.fromtimestamp(int(moment), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            yield {
                "t": stamp,
                "o": float(closes[0]),
                "h": float(closes.max()),
                "l": float(closes.min()),
                "c": float(closes[-1]),
                "v": volume,
                "n": 1,
                "vw": float(closes[-1]),
            }

    def price(self, symbol: str) -> float:
        newest = int(np.searchsorted(self.minutes, self.now() - MINUTE_S, side="right")) - 1
        return float(self.close[self.symbols.index(symbol), newest])


class Prices(Mapping[str, float]):
    """What a symbol costs now."""

    def __init__(self, bars: MadeUpBars) -> None:
        self._bars = bars

    def __getitem__(self, symbol: str) -> float:
        if symbol not in self._bars.symbols:
            raise KeyError(symbol)
        return self._bars.price(symbol)

    def __iter__(self) -> Iterator[str]:
        return iter(self._bars.symbols)

    def __len__(self) -> int:
        return len(self._bars.symbols)


class LoopbackMarket(LoopbackAlpaca):
    """Data and trading at one address; `now` is the exchange's clock, seconds since 1970 UTC."""

    def __init__(
        self,
        symbols: Sequence[str] = ("AAA", "BBB", "CCC", "DDD"),
        *,
        now: Callable[[], float] = time.time,
        cash: float = 1e6,
        **options: Any,
    ) -> None:
        super().__init__(cash=cash, prices={}, **options)
        self.bars = MadeUpBars(symbols, now=now)
        self.prices = Prices(self.bars)  # type: ignore[assignment]

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any
    ) -> tuple[int, Any]:
        if path == "/v2/stocks/bars":
            return 200, self._page(query)
        if path == "/v1/corporate-actions":
            return 200, {"corporate_actions": {}, "next_page_token": None}
        if path == "/v2/clock":
            stamp = dt.datetime.fromtimestamp(self.bars.now(), dt.UTC).isoformat()
            return 200, {"timestamp": stamp, "is_open": True}
        return super().answer(method, path, query, body)

    def _page(self, query: Mapping[str, str]) -> dict[str, Any]:
        start, end = (_seconds(query[name]) for name in ("start", "end"))
        length = {"1Min": 1, "5Min": 5}[query["timeframe"]]
        names = query["symbols"].split(",")
        if unknown := set(names) - set(self.bars.symbols):
            raise Refusal(400, 40010001, f"invalid symbol: {min(unknown)}")
        rows = [
            (name, row)
            for name in sorted(names)
            for row in self.bars.rows(name, start, end, length)
        ]
        first = int(query.get("page_token") or 0)
        told: dict[str, list[dict[str, Any]]] = {}
        for name, row in rows[first : first + PAGE]:
            told.setdefault(name, []).append(row)
        return {
            "bars": told,
            "next_page_token": str(first + PAGE) if first + PAGE < len(rows) else None,
        }


def _seconds(stamp: str) -> float:
    moment = dt.datetime.fromisoformat(stamp)
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


if __name__ == "__main__":
    with LoopbackMarket() as served:
        print(served.endpoint, flush=True)
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 1e9)
