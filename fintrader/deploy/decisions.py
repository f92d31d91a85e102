"""The policy's action at the newest bar of a deployment's account."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fintrader.agents.policy import PolicyModule
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.simulation import PolicyStrategy
from fintrader.errors import BacktestError, DeployError


class Decider:
    """Runs a policy bar by bar."""

    def __init__(self) -> None:
        self._policy: PolicyModule | None = None
        self._strategy: PolicyStrategy | None = None

    def __call__(self, policy: PolicyModule, account: BacktestAccount) -> NDArray[np.float32]:
        """`[N]`: the action at the account's bar, bit-identical to a backtest's."""
        with torch.inference_mode():
            try:
                if self._strategy is None or policy is not self._policy:
                    self._strategy = PolicyStrategy(policy, account, "policy")
                    self._policy = policy
                else:
                    self._strategy.move(account)
                return self._strategy(account)
            except BacktestError as error:
                raise DeployError(f"{error}: freeze another policy") from None
