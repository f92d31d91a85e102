"""Orders of a rule written in Python: at the market, limits, stops, trailing stops and brackets.

    def buy_dips(desk):
        for symbol in desk.symbols:
            close = desk.bars("close")[symbol].iloc[-1]
            if not desk.shares(symbol):
                desk.bracket(symbol, 100, 0.99 * close, take_profit=1.02 * close, stop=0.97 * close)

    tests = fintrader.backtest(OrderRule(buy_dips), test)

The orders rest in the environment's account and fill by its rules (docs/contract.md).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from fintrader.backtesting.account import BacktestAccount
from fintrader.envs.account import LEFT, ORDER_ROWS, PRICE
from fintrader.envs.market_view import LARGEST
from fintrader.envs.settings import EnvSettings
from fintrader.errors import OWN_FAILURES, BacktestError, suggest

BIDS = 0
ASKS = 1
"""Sides of a desk: an asset has one order to buy and one to sell."""
Bars = Literal["open", "high", "low", "close", "volume"]


@dataclass(frozen=True)
class OrderRule:
    """A rule that gives orders to a `Desk` at the close of every bar: a policy for
    `fintrader.backtest`."""

    rule: Callable[[Desk], object]
    """Called with the account's desk; its return value is ignored."""

    def adapt(self, settings: EnvSettings) -> EnvSettings:
        """Let orders rest until the rule cancels them, and leave turbulence to the rule; costs,
        volume and capital stay."""
        how = {"action": "quote", "fill": "next_open", "stop_offset_bps": 1.0, "turbulence": {}}
        return settings.model_copy(update=how | {"decision_interval": 1, "time_in_force": None})

    def __call__(self, desk: Desk) -> None:
        """Bring the desk to the present bar, and call the rule. Raises BacktestError where it
        fails."""
        desk.keep_up()
        try:
            self.rule(desk)
        except OWN_FAILURES as error:
            name = getattr(self.rule, "__name__", type(self.rule).__name__)
            place = traceback.extract_tb(error.__traceback__)[:2][-1]
            raise BacktestError(
                f"the rule {name} fails at bar {desk.bar} (line {place.lineno} of"
                f" {Path(place.filename).name}): {type(error).__name__}: {error}"
            ) from error


@dataclass
class Exits:
    """Exits of one asset that a desk manages."""

    take_profit: float = 0.0
    """Price of the profit order, USD; 0 if there is none."""
    trail: float = 0.0
    """Distance of a trailing stop from the best price, as a share of that price; 0 if there is
    none."""
    side: float = 1.0
    """1 for a long position, -1 for a short one."""
    is_entered: bool = False


class Desk:
    """An account at the close of a bar, and the orders that work for it.

    Prices are in USD. Positive shares are bought, negative ones sold. Each asset has one order to
    buy, one to sell, and one stop; a new order replaces the old one. A stop that a bar has reached
    sells the position at the next opens. Until it is sold, and before a symbol's first bar, the
    methods take no order and return False.
    """

    def __init__(self, account: BacktestAccount) -> None:
        self._account = account
        self._exits: dict[int, Exits] = {}
        self.memory: dict[Any, Any] = {}
        """Memory of the rule; empty at the start of each backtest."""

    # --- information for a rule -------------------------------------------------------------------

    @property
    def symbols(self) -> tuple[str, ...]:
        """All symbols of the market."""
        return tuple(self._account.market.symbols)

    @property
    def bar(self) -> int:
        """Number of the present bar; the rule decides at its close."""
        return self._account.bar

    @property
    def cash(self) -> float:
        """Cash in USD."""
        return self._account.cash

    @property
    def equity(self) -> float:
        """Cash and holdings at the last close, USD."""
        return self._account.equity

    def shares(self, symbol: str) -> float:
        """Shares held; negative for a short position."""
        return float(self._account.held[self._find(symbol)])

    def working(self, symbol: str) -> dict[str, float]:
        """Shares and prices of the resting orders: `buy`, `buy_at`, `sell`, `sell_at`, and `stop`,
        the stop's price. 0 means no order, infinity the price of a market purchase or a stop that
        was reached."""
        rows = self._account.resting[:, self._find(symbol)].tolist()
        # A stop that was reached places its order in the bid's rows.
        bid = [max(rows[LEFT], 0.0), rows[PRICE]]
        ask = [rows[ORDER_ROWS + LEFT] + min(rows[LEFT], 0.0), rows[ORDER_ROWS + PRICE]]
        names = ("buy", "buy_at", "sell", "sell_at", "stop")
        shown = (*bid, *ask, abs(rows[-1]))
        return {
            name: value if value < LARGEST else float("inf")
            for name, value in zip(names, shown, strict=True)
        }

    def bars(self, name: Bars = "close", count: int | None = None) -> pd.DataFrame:
        """The last `count` bars up to the present one (None: all), indexed by their starts, with a
        column for each symbol; NaN where a symbol has no bar. Prices are not adjusted for
        splits."""
        market = self._account.market
        if name not in get_args(Bars) or (count is not None and count < 1):
            raise BacktestError(
                f"bars are {', '.join(get_args(Bars))}, and at least one; got {name!r}, {count}"
            )
        first = 0 if count is None else max(0, self.bar + 1 - count)
        values = getattr(market, name)[first : self.bar + 1].numpy().astype(np.float64)
        return pd.DataFrame(values, market.timestamps()[first : self.bar + 1], self.symbols)

    # --- orders -----------------------------------------------------------------------------------

    def market(self, symbol: str, shares: float) -> bool:
        """Buy or sell at the next open."""
        return self.limit(symbol, shares, LARGEST if shares > 0 else 0.0)

    def limit(self, symbol: str, shares: float, price: float) -> bool:
        """Buy or sell at this price or better, once a bar trades through it. Without `env.short` a
        sale is cut to the shares held."""
        asset = self._find(symbol)
        whole = shares == np.trunc(shares) or self._account.settings.fractional
        if not (np.isfinite([shares, price]).all() and shares != 0 and price >= 0 and whole):
            raise BacktestError(
                f"{symbol}: an order needs a nonzero number of shares (whole without"
                f" env.fractional) and a price in USD; got {shares} at {price}"
            )
        if not self._account.settings.short:
            shares = max(shares, -self._account.held[asset])
        if shares == 0:
            return False
        return self._account.place(asset, BIDS if shares > 0 else ASKS, float(shares), float(price))

    def stop(self, symbol: str, price: float) -> bool:
        """Close the position, or the one that a resting order may open, at the opens after a bar
        reaches this price. It replaces a trailing stop."""
        asset = self._find(symbol)
        if not 0 < price < LARGEST:
            raise BacktestError(f"{symbol}: a stop needs a price in USD; got {price}")
        side = self._side(asset)
        if asset in self._exits:
            self._exits[asset].trail = 0.0
        return self._account.protect(asset, side * price)

    def trail(self, symbol: str, bps: float) -> bool:
        """Keep a stop this many basis points from the best price: the highest high of a long
        position since now, the lowest low of a short one. Before a position is entered, the stop
        keeps its distance from the close, or from the limit of the entry if that is worse."""
        asset = self._find(symbol)
        if not 0 < bps < 10_000:
            raise BacktestError(f"{symbol}: a trailing stop needs basis points; got {bps}")
        close = self._account.prices[asset]
        if close == 0:
            return False
        side = self._side(asset)
        limit = self._account.resting[(BIDS if side > 0 else ASKS) * ORDER_ROWS + PRICE, asset]
        if self._account.held[asset] == 0 and 0 < limit < LARGEST:
            close = min(close, limit) if side > 0 else max(close, limit)
        is_placed = self.stop(symbol, close * (1 - side * bps / 1e4))
        if is_placed:
            is_held = bool(self._account.held[asset] * side > 0)
            exits = self._exits.setdefault(asset, Exits(side=side, is_entered=is_held))
            exits.trail = bps / 1e4
        return is_placed

    def bracket(
        self,
        symbol: str,
        shares: float,
        price: float | None = None,
        *,
        take_profit: float,
        stop: float,
    ) -> bool:
        """Enter at a limit price (None: at the next open), with both exits: once shares are held, a
        limit order closes the position at `take_profit`, or a stop at `stop`; each cancels the
        other. The symbol must have no position."""
        asset = self._find(symbol)
        entry = price if price is not None else self._account.prices[asset]
        if price is None and entry == 0:
            return False
        if self._account.held[asset] != 0 or (shares < 0 and not self._account.settings.short):
            raise BacktestError(
                f"{symbol}: a bracket needs a symbol without a position, and env.short to sell"
            )
        levels = np.array([entry, take_profit, stop])
        is_price = bool(((levels > 0) & (levels < LARGEST)).all())
        if not is_price or not (take_profit - entry) * shares > 0 > (stop - entry) * shares:
            raise BacktestError(
                f"{symbol}: a bracket's entry must lie between its exits; got entry {entry}, stop"
                f" {stop} and take_profit {take_profit} for {shares} shares"
            )
        self.cancel(symbol)
        is_placed = (
            self.market(symbol, shares) if price is None else self.limit(symbol, shares, price)
        )
        if is_placed:
            self._account.protect(asset, float(np.copysign(stop, shares)))
            side = float(np.sign(shares))
            self._exits[asset] = Exits(take_profit=float(take_profit), side=side)
        return is_placed

    def cancel(self, symbol: str) -> None:
        """Cancel the orders and the stop of a symbol, except a stop that a bar has reached."""
        asset = self._find(symbol)
        self._exits.pop(asset, None)
        self._account.cancel(asset)

    # --- from bar to bar --------------------------------------------------------------------------

    def keep_up(self) -> None:
        """Move trailing stops and place the profit orders of brackets, as of the present bar."""
        account = self._account
        market = account.market
        for asset, exits in list(self._exits.items()):
            held = float(account.held[asset])
            rows = account.resting[:, asset]
            exits.take_profit /= float(account.splits_at(account.bar)[asset])
            was_entered = exits.is_entered
            exits.is_entered = was_entered or held * exits.side > 0
            waits = any(rows[side + LEFT] for side in (0, ORDER_ROWS))
            if held * exits.side <= 0 and (exits.is_entered or not waits):
                # The position is closed or reversed, or its entry was cancelled.
                del self._exits[asset]
                if exits.take_profit and held == 0:
                    account.cancel(asset)
                account.protect(asset, 0.0)
                continue
            if exits.take_profit and held * exits.side > 0:
                self._take_profit(asset, held, exits.take_profit)
            # Prices before an entry, also in its bar, do not count.
            if exits.trail and rows[-1] != 0 and was_entered:
                best = float((market.high if rows[-1] > 0 else market.low)[self.bar, asset])
                stop = float(np.copysign(best * (1 - np.sign(rows[-1]) * exits.trail), rows[-1]))
                # A long stop rises, and a short one, which is negative, rises towards 0.
                if stop > rows[-1]:
                    account.protect(asset, stop)

    def _take_profit(self, asset: int, held: float, price: float) -> None:
        """Size a bracket's profit order to the whole position, unless the rule has another order on
        that side."""
        account = self._account
        side = ASKS if held > 0 else BIDS
        left, limit, _ = account.resting[side * ORDER_ROWS :][:ORDER_ROWS, asset]
        if left == 0:
            account.place(asset, side, -held, price)
        elif limit == price and account.takes_orders(asset):
            account.resting[side * ORDER_ROWS + LEFT, asset] = -held

    def _side(self, asset: int) -> float:
        """Return 1 for a long position, or a purchase without a position; -1 for a short one.
        Raises BacktestError if there is neither position nor order."""
        rows = self._account.resting[:, asset]
        side = np.sign(self._account.held[asset] or rows[LEFT] or rows[ORDER_ROWS + LEFT])
        if side == 0:
            symbol = self._account.market.symbols[asset]
            raise BacktestError(f"{symbol}: there is no position or order for a stop to protect")
        return float(side)

    def _find(self, symbol: str) -> int:
        symbols = self._account.market.symbols
        if symbol not in symbols:
            raise BacktestError(f"no symbol {symbol!r} in this market; {suggest(symbol, symbols)}")
        return symbols.index(symbol)
