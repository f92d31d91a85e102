"""Accounts packed for the fused kernels: few arrays with many rows, because handing over an array has a price."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs.dynamics import MarketView
from fintrader.envs.ledger import Account
from fintrader.envs.reward import Outcome, Reward, update_memory
from fintrader.envs.settings import EnvSettings
from fintrader.envs.state import Endowment

SAME_STEP, NEXT_STEP, DISABLED = 0, 1, 2
MODES = {
    AutoresetMode.SAME_STEP: SAME_STEP, AutoresetMode.NEXT_STEP: NEXT_STEP, AutoresetMode.DISABLED: DISABLED,
}  # fmt: skip
OTHER, LOG_RETURN, PROFIT = 0, 1, 2  # rewards: what a kernel prepares for torch to finish
WORTHS = {"log_return": LOG_RETURN, "profit": PROFIT}
BAR, START, END, EPISODE, FINAL_BAR = 0, 1, 2, 3, 4  # rows of `ints`
CASH, EQUITY, PEAK, FIRST = 0, 1, 2, 3  # rows of `floats`; those below describe the step, before any reset
STEP_EQUITY, STEP_PEAK, COST, TURNOVER, WORTH = 4, 5, 6, 7, 8
TERMINATED, TRUNCATED, FINISHED, DONE = 0, 1, 2, 3  # rows of `flags`
FILL, MARK = 0, 1  # the two prices of a bar in `quotes`
StepResult = tuple[Account, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Account, reward `[B]` float32, terminated, truncated, either, observation, final observation."""


def why_not_any_kernel(settings: EnvSettings, dtype: torch.dtype, *, record: bool, own: dict[str, bool]) -> str | None:
    """Why a fused kernel cannot take this environment, or None; `own` are the reasons of one kernel, true or not."""
    reasons = own | {
        "it computes in float32": dtype != torch.float32,
        "it trades whole shares": settings.fractional,
        "it is long-only": settings.short,
        "it has no impact": settings.impact_bps_per_million_usd > 0.0,
        "it has no least commission": settings.min_commission_usd > 0.0,
        "it decides at every bar": settings.decision_interval > 1,
        "it keeps no record": record,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


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
        ints, floats = self.ints, self.floats
        return Account(
            bar=ints[BAR], cash=floats[CASH], shares=self.shares, equity=floats[EQUITY], peak_equity=floats[PEAK],
            first_equity=floats[FIRST], start_bar=ints[START], end_bar=ints[END], episode=ints[EPISODE], memory=memory,
            finished=self.flags[FINISHED],
        )  # fmt: skip


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


class KernelStep:
    """What the fused steps share: a kernel bound to one market and one set of settings."""

    def __init__(
        self,
        view: MarketView,
        settings: EnvSettings,
        reward: Reward,
        mode: AutoresetMode,
        num_envs: int,
        *,
        reuse: bool,
    ) -> None:
        self._settings, self._reward, self._mode, self._reuse = settings, reward, MODES[mode], reuse
        self._worth = WORTHS.get(settings.reward, OTHER)
        self._flat = settings.observation == "flat"
        self._device, self._count, self._num_assets = view.mark.device, num_envs, view.mark.shape[1]
        self._width = 4 + self._num_assets + (view.rows.shape[1] if self._flat else 0)
        self.final_bar = torch.zeros(num_envs, dtype=torch.int64, device=self._device)
        """`[B]`: the bar each account stood at before it was reset."""

    def __call__(self, account: Account, endow: Endowment, key: Tensor, action: Tensor) -> StepResult:
        """One decision of every account."""
        raise NotImplementedError

    def restore(self, obs: Any) -> None:
        """Put the last observation back where it was given out, after a step that failed."""

    def _new_buffers(self) -> Buffers:
        return Buffers.empty(self._count, self._num_assets, self._device)

    def _finish(self, account: Account, new: Buffers) -> tuple[Tensor, Tensor]:
        """Reward `[B]` float64 and memory `[B, 2]` after the step that led from `account` to `new`."""
        return finish_reward(account, new, self._settings, self._reward, self._mode)

    def _result(self, after: Account, reward: Tensor, new: Buffers, obs: Tensor, final: Tensor) -> StepResult:
        self.final_bar = new.ints[FINAL_BAR]
        flags = new.flags
        return after, reward.to(torch.float32), flags[TERMINATED], flags[TRUNCATED], flags[DONE], obs, final
