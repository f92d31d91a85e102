"""A backtest's account on the environment's readable core: the same numbers, by other code."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.backtesting.account import Action
from fintrader.backtesting.policy_strategy import PolicyStrategy
from fintrader.backtesting.result import BacktestResult
from fintrader.backtesting.simulation import trade
from fintrader.backtesting.trade_log import TradeLog
from fintrader.envs import EnvSettings, Policy, TradingEnv
from fintrader.envs.account import split_shares
from fintrader.market.tensors import MarketTensors
from fintrader.results.backtest_files import TradeRows

Array = NDArray[np.float64]


def simulate_in_environment(
    policy: Policy, market: MarketTensors, settings: EnvSettings
) -> BacktestResult:
    """As `simulate`, step by step through `TradingEnv`."""
    account = EnvAccount(market, settings)
    return trade(PolicyStrategy(policy, account, "environment"), account, name="environment")  # type: ignore[arg-type]


class EnvAccount:
    """The environment's own step, written down."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        self.env = TradingEnv.evaluation(market, settings)
        self.market = market
        self.settings = settings
        self.layout = self.env.layout
        self.trade_log = TradeLog(market, settings, self.env.view)
        self._obs: Tensor = self.env.reset()[0]

    rows = None
    """Policies are asked through observations."""

    @property
    def bar(self) -> int:
        return int(self.env.account.bar[0])

    @property
    def equity(self) -> float:
        return float(self.env.equity[0])

    @property
    def held(self) -> Array:
        return self.env.account.shares[0].to(torch.float64).cpu().numpy()

    def observe(self) -> Tensor:
        return self._obs

    def act(self, action: Action | None, bars: int | None = None) -> bool:
        """`bars` is not offered here: the environment's interval is fixed."""
        if action is None:
            action = torch.zeros(1, self.layout.num_assets)
        given = torch.as_tensor(action).reshape(1, -1).to(self.env.device)
        self._obs, _, terminated, truncated, info = self.env.step(given)
        self._write({name: value[0].cpu().numpy() for name, value in info.items()})
        if bool(terminated[0]):
            self.trade_log.ruin(self.bar)
        return bool(terminated[0] | truncated[0])

    def _write(self, info: dict[str, NDArray[np.float64]]) -> None:
        """One decision: its fills, then each bar it lasted, with what happened to the shares
        there."""
        log = self.trade_log
        view = self.env.view
        bars = info["bars"].astype(np.int64)
        first = int(bars[0])
        held = log.shares[int(info["decision_bar"])].copy()
        decided = int(info["decision_bar"])
        filled = int(info["fill_bar"])
        traded, price, cost = (
            info[name].astype(np.float64) for name in ("fill_shares", "fill_price", "fill_cost")
        )
        closed = info["closed_shares"]
        costs = info["closed_cost"]
        at_once = filled == decided
        if at_once:
            self._log("order", decided, filled, first, traded, price, cost)
            held += traded
        for k, bar in enumerate(np.unique(bars).tolist()):
            split = view.splits[view.event_row[bar]].cpu()
            change = split_shares(torch.from_numpy(held), split, self.settings).numpy() - held
            self._log("split", bar, bar, bar, change, np.zeros_like(held), np.zeros_like(held))
            held += change
            if k == 0 and not at_once:
                self._log("order", decided, filled, first, traded, price, cost)
                held += traded
            held[np.abs(held) < 1e-9] = 0.0  # what adding up leaves of a position that was sold
            self._log("forced", bar, bar, bar, closed[k], log.mark[bar], costs[k])
            held[closed[k] != 0] = 0.0  # what is closed is closed in whole
            log.shares[bar] = held
        log.shares[bars[-1]] = self.held
        log.equity[bars] = info["bar_equity"]
        np.add.at(log.costs, bars, info["interest"])
        np.add.at(log.income, bars, info["income"])

    def _log(
        self,
        kind: str,
        decided: int,
        filled: int,
        shown: int,
        traded: Array,
        price: Array,
        cost: Array,
    ) -> None:
        """Log trades `[N]` that the equity of bar `shown` is the first to show."""
        log = self.trade_log
        rows = TradeRows.of(kind, decided, filled, traded, price, cost)
        log.fills.append(rows)
        log.turnover[shown] += np.abs(rows.shares * rows.price).sum()
        log.costs[shown] += rows.cost.sum()
