"""The policy's action at the newest bar of a deployment's account."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fintrader.agents.policy import PolicyModule
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.simulation import PolicyStrategy
from fintrader.errors import BacktestError, DeployError


def decide_row(policy: PolicyModule, account: BacktestAccount) -> NDArray[np.float32]:
    """`[N]`: the policy's action at the account's bar, with the bits that a backtest has."""
    with torch.no_grad():
        try:
            return PolicyStrategy(policy, account, "policy")(account)
        except BacktestError as error:
            raise DeployError(f"{error}: freeze another one") from None
