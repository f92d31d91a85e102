"""Any policy over any window, one account, float64, through the environment's own ledger.

Nothing of the trading is written twice: `TradingEnv.evaluation` decides what fills, at what price and cost, and
this module writes down what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fintrader.backtest.result import TRADE_COLUMNS, BacktestResult, empty_trades
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, Policy, TradingEnv
from fintrader.envs.ledger import closing_cost
from fintrader.errors import BacktestError
from fintrader.progress import SILENT, Progress

MINUTE_NS = 60_000_000_000
Decide = Callable[[TradingEnv, Tensor], Tensor]
"""Environment and observation `[1, D]` -> action `[1, N]`: a strategy that may look at the account itself."""


def simulate(
    policy: Policy,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str = "policy",
    progress: Progress | None = None,
    note: str = "",
) -> BacktestResult:
    """Trade the whole of `market` (a window of it, usually) with `policy`, decisions, fills and costs as `settings`.

    Raises BacktestError for a window of fewer than two bars and for an output that cannot be traded.
    """

    def decide(env: TradingEnv, obs: Tensor) -> Tensor:
        action = policy(obs)
        if not isinstance(action, Tensor) or action.shape != (1, env.layout.num_assets):
            shape = tuple(action.shape) if isinstance(action, Tensor) else type(action).__name__
            raise BacktestError(f"{name}: the policy gave {shape} for one account of {env.layout.num_assets} assets")
        if not bool(action.isfinite().all()):
            raise BacktestError(f"{name}: the policy's action holds NaN or infinity; its networks have diverged")
        return action.detach().to(env.device)

    return simulate_rule(decide, market, settings, name=name, progress=progress, note=note)


def simulate_rule(
    decide: Decide,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str,
    progress: Progress | None = None,
    note: str = "",
) -> BacktestResult:
    """As `simulate`, for a strategy that needs the environment (its account, its prices) to decide."""
    if market.num_bars < 2:
        raise BacktestError(f"{name}: the window holds {market.num_bars} bar(s); a backtest needs at least two")
    env = TradingEnv.evaluation(market, settings)
    book = _Book(env, market)
    with torch.no_grad(), (progress or SILENT).task(f"backtest {name}", total=market.num_bars - 1, unit="bars") as task:
        obs, _ = env.reset()
        over = False
        while not over:
            action = decide(env, obs)
            obs, _, terminated, truncated, info = env.step(action)
            book.write(info)
            over = bool(terminated[0] | truncated[0])
            task.update(float(env.account.bar[0]))
        if bool(terminated[0]):
            book.ruin()
    return book.result(name, note)


class _Book:
    """Collects one account's records into arrays over bars and a list of trades."""

    def __init__(self, env: TradingEnv, market: MarketTensors) -> None:
        bars, assets = market.num_bars, market.num_assets
        self.env, self.market = env, market
        self.mark = _carried(market)
        self.equity = np.full(bars, settings_cash(env.settings))
        self.shares = np.zeros((bars, assets))
        self.costs, self.turnover = np.zeros(bars), np.zeros(bars)
        self.rows: list[tuple[Any, ...]] = []
        self.ruined = False
        self.last = 0

    def write(self, info: dict[str, Tensor]) -> None:
        """One decision: its fills, then each bar it lasted."""
        decided, filled = int(info["decision_bar"][0]), int(info["fill_bar"][0])
        bars = info["bars"][0].numpy()
        first, last = int(bars[0]), int(bars[-1])
        traded = info["fill_shares"][0].numpy()
        which = np.flatnonzero(traded)
        if which.size:
            price, cost = info["fill_price"][0].numpy(), info["fill_cost"][0].numpy()
            self._trade(decided, filled, which, traded, price, cost, "order")
            self.turnover[first] += np.abs(traded[which] * price[which]).sum()
        self.costs[first] += float(info["fill_cost"][0].sum())
        held = self.env.account.shares[0].to(torch.float64).numpy()
        self.shares[first : last + 1] = held
        self.equity[bars] = info["bar_equity"][0].numpy()
        closed = info["closed_shares"][0].numpy()
        if closed.any():
            costs = info["closed_cost"][0].numpy()
            for k in np.flatnonzero(closed.any(axis=1)):
                bar, which = int(bars[k]), np.flatnonzero(closed[k])
                self.shares[first:bar] -= closed[k]
                self._trade(bar, bar, which, closed[k], self.mark[bar], costs[k], "forced")
                self.costs[bar] += costs[k].sum()
                self.turnover[bar] += np.abs(closed[k] * self.mark[bar]).sum()
        np.add.at(self.costs, bars, info["interest"][0].numpy())
        self.last = last

    def ruin(self) -> None:
        """Close a ruined account at its last mark, with costs; its equity then stays what is left."""
        bar, held = self.last, self.shares[self.last].copy()
        which = np.flatnonzero(held)
        self.ruined = True
        if which.size:
            notional = np.abs(held * self.mark[bar])
            # A column of single orders: the least commission counts for every one of them.
            cost = closing_cost(torch.from_numpy(notional[which, None]), self.env.settings)
            costs = np.zeros_like(notional)
            costs[which] = cost.reshape(len(which), -1).sum(1).numpy()
            self._trade(bar, bar, which, -held, self.mark[bar], costs, "ruin")
            self.costs[bar] += costs.sum()
            self.turnover[bar] += notional.sum()
            self.equity[bar] -= costs.sum()
            self.shares[bar] = 0.0
        self.equity[bar:] = self.equity[bar]

    def _trade(self, decided: int, filled: int, which: Any, traded: Any, price: Any, cost: Any, kind: str) -> None:
        for n in which:
            self.rows.append((decided, filled, int(n), float(traded[n]), float(price[n]), float(cost[n]), kind))

    def result(self, name: str, note: str) -> BacktestResult:
        market = self.market
        return BacktestResult(
            name=name,
            symbols=market.symbols,
            minutes=market.minutes.cpu().numpy(),
            session=market.session.cpu().numpy(),
            equity=self.equity,
            shares=self.shares,
            mark=self.mark,
            costs_usd=self.costs,
            turnover_usd=self.turnover,
            trades=self._trades(),
            benchmark=market.benchmark.cpu().numpy(),
            benchmark_name=market.benchmark_name,
            bar_minutes=market.bar_minutes,
            ruined=self.ruined,
            note=note,
        )

    def _trades(self) -> pd.DataFrame:
        if not self.rows:
            return empty_trades()
        decided, filled, asset, shares, price, cost, kind = (
            np.array(column) for column in zip(*self.rows, strict=True)
        )
        start = self.market.minutes.cpu().numpy()
        length = self.market.bar_minutes * MINUTE_NS
        at_open = (kind == "order") & (self.env.settings.fill == "next_open")
        frame = {
            "decision_bar": decided,
            "fill_bar": filled,
            "decision_time": pd.to_datetime(start[decided] + length, utc=True),
            "fill_time": pd.to_datetime(start[filled] + np.where(at_open, 0, length), utc=True),
            "symbol": np.array(self.market.symbols, dtype=object)[asset],
            "shares": shares,
            "price_usd": price,
            "notional_usd": np.abs(shares * price),
            "cost_usd": cost,
            "kind": kind.astype(object),
        }
        return pd.DataFrame(frame).astype(TRADE_COLUMNS)


def settings_cash(settings: EnvSettings) -> float:
    """Starting capital, USD."""
    return float(settings.initial_cash_usd)


def _carried(market: MarketTensors) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`[T, N]` float64: the newest close at or before each bar, 0 before the first."""
    close = market.close.cpu().to(torch.float64).numpy()
    carried: np.ndarray[Any, np.dtype[np.float64]] = np.nan_to_num(pd.DataFrame(close).ffill().to_numpy(), nan=0.0)
    return carried
