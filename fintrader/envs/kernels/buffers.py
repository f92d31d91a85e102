"""Accounts packed for the fused kernels: few arrays with many rows, because handing over an array has a price."""

from __future__ import annotations

from typing import NamedTuple

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs.dynamics import MarketView
from fintrader.envs.ledger import Account
from fintrader.envs.reward import Outcome, Reward, update_memory
from fintrader.envs.settings import EnvSettings

SAME_STEP, NEXT_STEP, DISABLED = 0, 1, 2
MODES = {
    AutoresetMode.SAME_STEP: SAME_STEP,
    AutoresetMode.NEXT_STEP: NEXT_STEP,
    AutoresetMode.DISABLED: DISABLED,
}
OTHER, LOG_RETURN, PROFIT = 0, 1, 2  # rewards: what a kernel prepares for torch to finish
WORTHS = {"log_return": LOG_RETURN, "profit": PROFIT}
BAR, START, END, EPISODE, FINAL_BAR = 0, 1, 2, 3, 4  # rows of `ints`
CASH, EQUITY, PEAK, FIRST = 0, 1, 2, 3  # rows of `floats`; those below describe the step, before any reset
STEP_EQUITY, STEP_PEAK, COST, TURNOVER, WORTH = 4, 5, 6, 7, 8
TERMINATED, TRUNCATED, FINISHED, DONE = 0, 1, 2, 3  # rows of `flags`
FILL, MARK = 0, 1  # the two prices of a bar in `quotes`


class Buffers(NamedTuple):
    """One generation of accounts as a kernel writes it."""

    ints: Tensor
    """`[5, B]` int64."""
    floats: Tensor
    """`[9, B]` float64."""
    flags: Tensor
    """`[4, B]` bool."""
    shares: Tensor
    """`[B, N]` float32."""

    @classmethod
    def empty(cls, count: int, num_assets: int, device: torch.device) -> Buffers:
        """Room for `count` accounts."""
        return cls(
            torch.empty(5, count, dtype=torch.int64, device=device),
            torch.empty(9, count, dtype=torch.float64, device=device),
            torch.empty(4, count, dtype=torch.bool, device=device),
            torch.empty(count, num_assets, device=device),
        )

    def account(self, memory: Tensor) -> Account:
        """The accounts in these buffers, which share their memory."""
        return Account(
            bar=self.ints[BAR],
            cash=self.floats[CASH],
            shares=self.shares,
            equity=self.floats[EQUITY],
            peak_equity=self.floats[PEAK],
            first_equity=self.floats[FIRST],
            start_bar=self.ints[START],
            end_bar=self.ints[END],
            episode=self.ints[EPISODE],
            memory=memory,
            finished=self.flags[FINISHED],
        )


def copy_account(source: Account, target: Account) -> None:
    """Copy accounts that come from elsewhere (a reset, a checkpoint) into those of buffers, all but their memory."""
    for name in Account._fields:
        if name != "memory":
            getattr(target, name).copy_(getattr(source, name))


def pack_quotes(view: MarketView) -> Tensor:
    """`[T, 2, N]`: fill prices and closes side by side, so that a step reads one stretch of memory. Fill prices are
    negative where a symbol may be sold only, and 0 where it does not trade."""
    return torch.stack((torch.where(view.buyable, view.fill, -view.fill), view.mark), dim=1)


def finish_reward(
    account: Account, buffers: Buffers, settings: EnvSettings, reward: Reward, mode: int
) -> tuple[Tensor, Tensor]:
    """Reward `[B]` float64 and memory `[B, 2]` after the step that led from `account` to `buffers`."""
    floats = buffers.floats
    memory = account.memory
    worth = WORTHS.get(settings.reward, OTHER)
    if worth == LOG_RETURN:
        value = floats[WORTH].log()
    elif worth == PROFIT:
        value = floats[WORTH]
    else:
        outcome = Outcome(
            account.equity, floats[STEP_EQUITY], account.peak_equity, floats[STEP_PEAK], account.first_equity,
            floats[COST], floats[TURNOVER], account.memory,
        )  # fmt: skip
        value = reward(outcome)
        began = account.finished if mode == NEXT_STEP else None
        if began is not None:
            value = torch.where(began, torch.zeros_like(value), value)
        if settings.reward == "differential_sharpe":
            memory = update_memory(outcome, settings.sharpe_decay)
            if mode != DISABLED:
                fresh = began if began is not None else buffers.flags[DONE]
                prior = torch.zeros_like(memory)
                prior[:, 1] = settings.sharpe_prior_volatility**2
                memory = torch.where(fresh.unsqueeze(1), prior, memory)
    return value if settings.reward_scale == 1.0 else settings.reward_scale * value, memory
