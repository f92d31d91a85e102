"""The policy's action at the newest bar of a deployment's account."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fintrader.agents.policy import PolicyModule
from fintrader.backtesting.account import BacktestAccount, Float32, RestingOrders
from fintrader.backtesting.order_worker import OrderWorker, ParentOrder, make_strategy
from fintrader.backtesting.policy_strategy import PolicyStrategy
from fintrader.deploy.entries import BarDecision
from fintrader.envs.settings import EnvSettings
from fintrader.errors import BacktestError, DeployError


@dataclass(frozen=True)
class Turn:
    """A bar at whose close something is decided."""

    elapsed: int
    """Bars since the decision whose orders are worked; 0 at a decision of the policy."""
    decided: int
    """Start of the bar of that decision, ns."""


class Decider:
    """Runs a policy bar by bar."""

    def __init__(self, env: EnvSettings) -> None:
        """env: the policy's settings."""
        self._env = env
        self._policy: PolicyModule | None = None
        self._strategy: PolicyStrategy | OrderWorker | None = None
        self._decided = 0
        """Start of the bar of the decision whose orders are worked, ns."""
        self._past: BarDecision | None = None

    def restore(self, decision: BarDecision) -> None:
        """Go on with the orders of a decision that another process made."""
        self._past = decision

    def __call__(
        self, policy: PolicyModule, account: BacktestAccount, turn: Turn
    ) -> Float32 | RestingOrders:
        """Return the action `[N]` at the account's bar, or the orders that rest from then on, as a
        backtest would. Orders of a decision that was missed are not worked."""
        with torch.inference_mode():
            try:
                strategy = self._strategy
                if strategy is None or policy is not self._policy:
                    strategy = make_strategy(policy, account, self._env, "policy")
                    self._strategy = strategy
                    self._policy = policy
                if isinstance(strategy, OrderWorker):
                    return self._work(strategy, account, turn)
                strategy.move(account)
                return strategy(account)
            except BacktestError as error:
                raise DeployError(f"{error}: freeze another policy") from None

    def list_goal(self, account: BacktestAccount) -> dict[str, float]:
        """List the shares to hold, by symbol, where orders of a decision are worked towards
        them."""
        order = self._strategy.order if isinstance(self._strategy, OrderWorker) else None
        if order is None:
            return {}
        pairs = zip(account.market.symbols, order.goal.tolist(), order.start.tolist(), strict=True)
        return {name: goal for name, goal, start in pairs if goal != start}

    def _work(self, worker: OrderWorker, account: BacktestAccount, turn: Turn) -> RestingOrders:
        if turn.elapsed and turn.decided != self._decided:
            worker.order = self._lay_out_past(account, turn)
        self._decided = turn.decided
        return worker.work(account, turn.elapsed)

    def _lay_out_past(self, account: BacktestAccount, turn: Turn) -> ParentOrder | None:
        """Lay out the orders of the restored decision, if they are those to be worked."""
        past = self._past
        if past is None or past.bar != turn.decided:
            return None
        start, goal, price = (
            np.array([values.get(name, 0.0) for name in account.market.symbols])
            for values in (past.shares, {**past.shares, **past.goal}, past.prices)
        )
        return ParentOrder(goal, start, price, past.bar)
