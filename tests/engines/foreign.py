"""Plays a list of orders through backtesting.py and zipline-reloaded: `python foreign.py JOB.json
RESULT.json`.

It runs in an environment of its own, where fintrader is not: zipline wants an older pandas than it.
The job holds daily bars `open`, `close` `[T][N]`, `orders` (the bar at whose close each was given,
asset, signed shares), `fee` and `cash`, and `fill` as in `EnvSettings`; `cents` rounds every
commission (zipline alone). `engine` names the engine.

Both engines keep their own books: cash, positions, commissions and equity are theirs, and so is the
moment of a fill.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

IDLE = 1
"""Bars put before the first for backtesting.py, which asks a strategy from the second bar on."""
AMPLE = 100.0
"""backtesting.py trades one symbol at a time: each has an account of its own, with so many times
the job's cash, so that no order of one waits for the proceeds of another. What is added up is what
the accounts gained."""


def with_backtesting(job: dict[str, Any]) -> dict[str, Any]:
    """Equity, fills and commissions summed over an account for each symbol."""
    from backtesting import Backtest, Strategy, __version__

    cash = AMPLE * job["cash"]
    fee = job["fee"]
    orders: dict[int, dict[int, int]] = defaultdict(dict)
    for bar, asset, shares in job["orders"]:
        orders[asset][bar + IDLE] = shares
    equity = np.full(len(job["dates"]), job["cash"])
    paid = 0.0
    fills = []
    for asset, name in enumerate(job["symbols"]):
        mine = orders[asset]

        class Plan(Strategy):  # type: ignore[misc]
            def init(self) -> None:
                pass

            def next(self, mine: dict[int, int] = mine) -> None:
                shares = mine.get(len(self.data) - 1, 0)
                if shares:
                    (self.buy if shares > 0 else self.sell)(size=abs(shares))

        prices = pd.DataFrame(
            {word.title(): [row[asset] for row in job[word]] for word in ("open", "close")}
        )
        prices = pd.concat([prices.iloc[[0] * IDLE], prices], ignore_index=True)
        prices["High"], prices["Low"] = prices.max(axis=1), prices.min(axis=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an order that the broker cancels is a warning
            warnings.filterwarnings(
                "ignore", message=".*(finalize_trades|Data index is not datetime|remain open).*"
            )
            at_close = job["fill"] == "close"
            found = Backtest(
                prices, Plan, cash=cash, commission=(0.0, fee), trade_on_close=at_close
            ).run()
        equity += found["_equity_curve"]["Equity"].to_numpy()[IDLE:] - cash
        traded: dict[int, list[float]] = {}
        closed = found["_trades"]
        still = found["_strategy"].trades
        paid += closed["Commission"].sum() + sum(
            fee * trade.size * trade.entry_price for trade in still
        )
        rows = [(t.EntryBar, t.EntryPrice, t.Size) for t in closed.itertuples()]
        rows += [(t.ExitBar, t.ExitPrice, -t.Size) for t in closed.itertuples()]
        rows += [(t.entry_bar, t.entry_price, t.size) for t in still]
        for bar, price, size in rows:
            held = traded.setdefault(int(bar) - IDLE, [0.0, float(price)])
            held[0] += float(size)
            if held[1] != price:
                raise SystemExit(f"{name} was traded at two prices in bar {bar - IDLE}")
        fills += [[bar, asset, size, price] for bar, (size, price) in traded.items()]
    return {
        "version": __version__,
        "equity": equity.tolist(),
        "fills": sorted(fills),
        "commission_usd": float(paid),
    }


def with_zipline(job: dict[str, Any]) -> dict[str, Any]:
    """One account over all symbols, bars in memory, on NYSE's calendar."""
    from sqlalchemy import create_engine
    from zipline import TradingAlgorithm, __version__
    from zipline.api import order, set_commission, set_slippage, sid
    from zipline.assets import AssetDBWriter, AssetFinder
    from zipline.data.data_portal import DataPortal
    from zipline.data.in_memory_daily_bars import InMemoryDailyBarReader
    from zipline.finance import commission, slippage
    from zipline.finance.trading import SimulationParameters
    from zipline.utils.calendar_utils import get_calendar

    calendar = get_calendar("XNYS")
    dates = pd.DatetimeIndex(job["dates"])
    place = {date: bar for bar, date in enumerate(dates)}
    columns = range(len(job["symbols"]))
    frames = {
        word: pd.DataFrame(job[word], index=dates, columns=columns) for word in ("open", "close")
    }
    frames["high"], frames["low"] = (
        getattr(np, word)(frames["open"], frames["close"]) for word in ("maximum", "minimum")
    )
    frames["volume"] = pd.DataFrame(1e9, index=dates, columns=columns)

    class Reader(InMemoryDailyBarReader):  # type: ignore[misc]
        """zipline's own, without three slips: names of attributes, and an index into a calendar."""

        last_available_dt = dates[-1]

        def get_value(self, sid: int, dt: pd.Timestamp, field: str) -> float:
            return float(self._frames[field].loc[dt, int(sid)])

        def get_last_traded_dt(self, asset: Any, dt: pd.Timestamp) -> pd.Timestamp:
            return dt

    class NextOpen(slippage.SlippageModel):  # type: ignore[misc]
        """zipline's slippage models fill a market order at the next session's close; this one at
        its open."""

        def process_order(self, data: Any, order: Any) -> tuple[float, int]:
            return data.current(order.asset, "open"), order.open_amount

    class Cents(commission.EquityCommissionModel):  # type: ignore[misc]
        def calculate(self, order: Any, transaction: Any) -> float:
            return round(job["fee"] * abs(transaction.amount) * transaction.price, 2)

    database = create_engine("sqlite://")
    listed = {
        "symbol": job["symbols"],
        "start_date": dates[0],
        "end_date": dates[-1],
        "exchange": "NYSE",
    }
    AssetDBWriter(database).write(
        equities=pd.DataFrame(listed, index=columns),
        exchanges=pd.DataFrame({"exchange": ["NYSE"], "country_code": ["US"]}),
    )
    portal = DataPortal(
        AssetFinder(database),
        trading_calendar=calendar,
        first_trading_day=dates[0],
        equity_daily_reader=Reader(frames, calendar, pd.Series("USD", index=columns)),
    )
    orders: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for bar, asset, shares in job["orders"]:
        orders[bar].append((asset, shares))

    def initialize(context: Any) -> None:
        set_slippage(slippage.NoSlippage() if job["fill"] == "next_close" else NextOpen())
        set_commission(Cents() if job["cents"] else commission.PerDollar(cost=job["fee"]))

    def handle_data(context: Any, data: Any) -> None:
        for asset, shares in orders[place[data.current_session]]:
            order(sid(asset), shares)

    found = TradingAlgorithm(
        sim_params=SimulationParameters(
            dates[0], dates[-1], calendar, job["cash"], "daily", "daily"
        ),
        data_portal=portal,
        initialize=initialize,
        handle_data=handle_data,
        benchmark_returns=pd.Series(0.0, index=dates),
    ).run()
    fills = [
        [bar, one["sid"].sid, float(one["amount"]), float(one["price"])]
        for bar, day in enumerate(found["transactions"])
        for one in day
    ]
    done = {one["id"]: one["commission"] for day in found["orders"] for one in day}
    return {
        "version": __version__,
        "equity": found["portfolio_value"].tolist(),
        "fills": sorted(fills),
        "commission_usd": float(sum(done.values())),
    }


ENGINES = {"backtesting": with_backtesting, "zipline-reloaded": with_zipline}


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(ENGINES[job["engine"]](job)))
