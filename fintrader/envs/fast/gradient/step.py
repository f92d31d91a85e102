"""`GradientStep`: the environment's step as one differentiable function, where the fused kernel
applies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fintrader.envs.account import Account
from fintrader.envs.fast.buffers import (
    DONE,
    FINAL_BAR,
    SAME_STEP,
    TERMINATED,
    TRUNCATED,
    Buffers,
    Generation,
    StepResult,
    finish_reward,
)
from fintrader.envs.fast.step import FusedStep
from fintrader.envs.market_view import MarketView
from fintrader.envs.state import Endowment
from fintrader.errors import EnvError

FLAGS = Buffers._fields.index("flags")
_Arrays = tuple[np.ndarray[Any, Any], ...]


class _Plan(NamedTuple):
    """What a step needs beside what it has a gradient in."""

    step: GradientStep
    old: _Arrays
    """ints, floats, flags and shares before the step, as arrays."""
    new: Buffers
    """Room for them after it."""
    made: _Arrays
    """`new`, as arrays."""
    given: _Arrays


class _Advance(torch.autograd.Function):
    """Action `[B, N]`, floats `[9, B]` and shares `[B, N]` to floats, shares, observation `[B, D]`
    and, where episodes ended in SAME_STEP, the observation before their reset."""

    @staticmethod
    def forward(
        ctx: Any, action: Tensor, floats: Tensor, shares: Tensor, plan: _Plan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        step = plan.step
        fused = plan.step.fused
        wish = action.to(torch.float64).contiguous()
        obs = torch.empty(len(shares), fused.width)
        final = None
        shown = obs.numpy()
        single = action.dtype != torch.float64
        options = (
            fused.mode,
            fused.flat,
            fused.stream,
            fused.worth,
            *step.sizes,
            fused.row_width,
            single,
        )
        market = (fused.prices, fused.rules, fused.rows)
        books = (plan.old, plan.made)
        restarts = fused.run(step.kernel.step_range, *options, *market, wish.numpy(), *books, shown)
        if min(restarts) < 0:
            raise EnvError("actions contain NaN or infinity; check the policy's output")
        if any(restarts):
            final = obs.clone() if fused.mode == SAME_STEP else None
            given = (None, None, *plan.given)
            random_start = fused.settings.random_start
            episodes = (
                fused.mode,
                fused.flat,
                fused.row_width,
                random_start,
                fused.prices,
                fused.rows,
                given,
            )
            step.kernel.restart(*episodes, *books, shown)
        ctx.save_for_backward(wish, floats, shares)
        # Not the plan: its room is what is returned here, and would keep itself alive.
        ctx.step = step
        ctx.old = plan.old
        ctx.flags = plan.made[FLAGS]
        ctx.dtype = action.dtype
        ctx.set_materialize_grads(False)
        return plan.new.floats, plan.new.shares, obs, final

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        g_floats: Tensor | None,
        g_shares: Tensor | None,
        g_obs: Tensor | None,
        g_final: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        wish, floats, shares = ctx.saved_tensors
        step: GradientStep = ctx.step
        fused = step.fused
        given = (
            torch.zeros_like(floats) if g_floats is None else g_floats,
            torch.zeros_like(shares) if g_shares is None else g_shares,
            torch.empty(0, fused.width) if g_obs is None else g_obs,
            torch.empty(0, fused.width) if g_final is None else g_final,
        )
        wanted = tuple(torch.empty_like(value) for value in (wish, floats, shares))
        fused.run(
            step.kernel.step_range_back,
            fused.mode,
            fused.worth,
            *step.sizes,
            ctx.dtype != torch.float64,
            fused.prices,
            fused.rules,
            wish.numpy(),
            ctx.old,
            ctx.flags,
            tuple(part.contiguous().numpy() for part in given),
            tuple(part.numpy() for part in wanted),
        )
        return wanted[0].to(ctx.dtype), wanted[1], wanted[2], None


class GradientStep:
    """The CPU kernel whose results know their gradients, beside a `FusedStep` of the same market
    and settings.

    Amounts of money are not rounded, as nowhere where a gradient is wanted. Actions, accounts and
    the results are connected; custom rewards are differentiated by torch.
    """

    def __init__(self, fused: FusedStep, view: MarketView) -> None:
        from fintrader.envs.fast.gradient import batch

        self.fused = fused
        self.kernel = batch
        interval = fused.settings.decision_interval
        changes = view.has_events + view.has_ends + (fused.settings.maintenance_margin > 0.0)
        self.sizes = (interval, 1 + interval * changes)

    def pack(self, account: Account) -> Generation:
        """Accounts that come from elsewhere, with their graph."""
        nothing = torch.zeros_like(account.equity)
        books = (account.cash, account.equity, account.peak_equity, account.first_equity)
        bars = (account.bar, account.start_bar, account.end_bar, account.episode, account.bar)
        buffers = Buffers(
            torch.stack(bars),
            torch.stack((*books, *[nothing] * 5)),
            torch.stack([account.finished] * 4),
            account.shares.contiguous(),
        )
        return Generation(buffers, account.memory, _arrays(buffers))

    def __call__(
        self, old: Generation, endow: Endowment, key: Tensor, action: Tensor
    ) -> StepResult:
        """One decision of every account.

        Raises EnvError for an action that is not finite, harming nothing.
        """
        room = Buffers(*map(torch.empty_like, old.buffers))
        plan = _Plan(self, old.arrays, room, _arrays(room), self.fused.given(endow, key))
        before = old.buffers
        floats, shares, obs, final = _Advance.apply(action, before.floats, before.shares, plan)  # type: ignore[no-untyped-call]
        new = Generation(room._replace(floats=floats, shares=shares), old.memory, plan.made)
        fused = self.fused
        reward, new.memory = finish_reward(old, new.buffers, *fused.rewarding)
        flags = room.flags
        seen_last = obs if final is None else final
        return StepResult(
            new,
            reward.to(torch.float32),
            flags[TERMINATED],
            flags[TRUNCATED],
            flags[DONE],
            obs,
            seen_last,
            room.ints[FINAL_BAR],
        )


def _arrays(buffers: Buffers) -> _Arrays:
    return tuple(part.detach().numpy() for part in buffers)
