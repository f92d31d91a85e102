"""The log of one account: holdings, equity and costs at every bar, and the list of trades."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from fintrader.backtesting.result import Array, BacktestResult, collect_market_fields
from fintrader.envs import EnvSettings
from fintrader.envs.account import closing_cost
from fintrader.envs.market_view import MarketView
from fintrader.envs.money import in_usd
from fintrader.market.tensors import MarketTensors
from fintrader.results.backtest_files import TradeRows, trade_frame
from fintrader.results.history import OrderCounts

MINUTE_NS = 60_000_000_000


class TradeLog:
    """Arrays over T bars and N assets, which the account writes."""

    def __init__(self, market: MarketTensors, settings: EnvSettings, view: MarketView) -> None:
        bars = market.num_bars
        assets = market.num_assets
        self.market = market
        self.settings = settings
        self._view = view
        self.mark: Array = view.mark.double().numpy()
        self.equity = np.full(bars, float(settings.initial_cash_usd))
        self.shares = np.zeros((bars, assets))
        self.costs = np.zeros(bars)
        self.turnover = np.zeros(bars)
        self.income = np.zeros(bars)
        self.orders = OrderCounts()
        self.ruined = False
        self.fills: list[TradeRows] = []
        """The trade list; its costs and turnover are in the log already."""

    def ruin(self, bar: int) -> None:
        """Close a ruined account at its last mark, with costs; its equity is then constant."""
        cost = self.closing_costs(bar)
        sold = TradeRows.of("ruin", bar, bar, -self.shares[bar], self.mark[bar], cost)
        self.fills.append(sold)
        self.turnover[bar] += np.abs(sold.shares * sold.price).sum()
        self.costs[bar] += sold.cost.sum()
        self.ruined = True
        self.shares[bar:] = 0.0
        self.equity[bar:] = self.equity[bar] - cost.sum()

    def closing_costs(self, bar: int) -> Array:
        """Compute the cost `[N]`, USD, of closing every position, whatever its size, at its mark at
        `bar`."""
        held = torch.from_numpy(self.shares[[bar]])
        quote = self._view.quote(torch.tensor([bar]))._replace(price=self._view.mark[[bar]])
        return closing_cost(held, in_usd(held, quote.price).abs(), quote, self.settings)[0].numpy()

    def result(self, name: str, note: str) -> BacktestResult:
        """Make a result of the log."""
        trades = self._join_fills()
        return BacktestResult(
            name=name,
            equity=self.equity,
            shares=self.shares,
            mark=self.mark,
            costs_usd=self.costs,
            turnover_usd=self.turnover,
            income_usd=self.income,
            trades=self._list_trades(trades),
            orders=self.orders._replace(improved_usd=self._measure_improvement(trades)),
            closing_cost_usd=self.closing_costs(len(self.equity) - 1),
            ruined=self.ruined,
            last_bar=self.market.to_numpy("last_bar"),
            note=note,
            **collect_market_fields(self.market),
        )

    def _join_fills(self) -> TradeRows:
        """Join the trade list."""
        nothing = TradeRows.of("order", 0, 0, np.zeros(0), np.zeros(0), np.zeros(0))
        columns = zip(*(self.fills or [nothing]), strict=True)
        return TradeRows(*(np.concatenate(parts) for parts in columns))

    def _list_trades(self, whole: TradeRows) -> pd.DataFrame:
        start = self.market.to_numpy("minutes")
        length = self.market.bar_minutes * MINUTE_NS
        is_next = self.settings.fill == "next_open" and not self.settings.orders_rest
        at_open = (whole.kind == "split") | (whole.kind == "order") & is_next
        filled = start[whole.filled] + np.where(at_open, 0, length)
        return trade_frame(whole, self.market.symbols, start[whole.decided] + length, filled)

    def _measure_improvement(self, trades: TradeRows) -> float:
        """Measure `OrderCounts.improved_usd`; a split between order and fill divides the close."""
        arrival = self.mark[trades.decided, trades.asset]
        columns = (column.tolist() for column in self.market.events[:3])
        for bar, asset, split in zip(*columns, strict=True):
            if split != 1.0:
                is_between = (trades.decided < bar) & (bar <= trades.filled)
                arrival[is_between & (trades.asset == asset)] /= split
        better = trades.shares * (arrival - trades.price)
        return float(better[trades.kind == "order"].sum())
