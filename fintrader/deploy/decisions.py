"""The policy's action at the newest bar of a deployment's account."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fintrader.agents.policy import PolicyModule
from fintrader.backtesting.account import BacktestAccount
from fintrader.errors import DeployError


def decide_row(policy: PolicyModule, account: BacktestAccount) -> NDArray[np.float32]:
    """`[N]`: the policy's action at the account's bar, with the bits that a bound backtest has."""
    rows = account.rows
    bound = None if rows is None else policy.bind(rows[account.bar : account.bar + 1])
    with torch.no_grad():
        if bound is not None:
            action = bound(0, account.private())
        else:
            action = policy(account.observe())[0].numpy().astype(np.float32)
    if not np.isfinite(action).all():
        raise DeployError(
            "the policy's action holds NaN or infinity; its networks have diverged: freeze"
            " another one"
        )
    return action
