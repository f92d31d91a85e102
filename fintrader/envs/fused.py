"""`FusedStep`: the environment's step by the fused kernel, where its options allow it.

The kernel covers what training uses: float32 on CPU, whole shares, long-only, proportional costs, one bar a decision.
Everything else goes through the torch core, with the same results where both apply.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs.core import MarketView
from fintrader.envs.ledger import Account
from fintrader.envs.options import Endowment
from fintrader.envs.reward import Outcome, Reward, update_memory
from fintrader.envs.settings import EnvSettings
from fintrader.errors import EnvError

SERIAL_BELOW = 1024
"""Accounts under which threads cost more than they bring."""


def why_not_fused(settings: EnvSettings, device: torch.device, dtype: torch.dtype, *, record: bool) -> str | None:
    """Why the kernel cannot take this environment, or None if it can."""
    reasons = {
        "numba is not installed (the extra `fast`)": importlib.util.find_spec("numba") is None,
        "it runs on CPU": device.type != "cpu",
        "it computes in float32": dtype != torch.float32,
        "it trades whole shares": settings.fractional,
        "it is long-only": settings.short,
        "it has no impact": settings.impact_bps_per_million_usd > 0.0,
        "it has no least commission": settings.min_commission_usd > 0.0,
        "it decides at every bar": settings.decision_interval > 1,
        "it makes float32 observations": settings.observation_dtype != "float32",
        "it shows one bar at a time": settings.lookback > 1,
        "it keeps no record": record,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class FusedStep:
    """The kernel, bound to one market and one set of settings. Raises ImportError without numba."""

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
        """With `reuse`, each step overwrites the observation of the step before, and the account two steps back.

        Fresh outputs of 16 MB cost page faults, and a second buffer for observations drives the first out of the
        cache.
        """
        from fintrader.envs import kernel

        self._kernel = kernel
        self._mode = {
            AutoresetMode.SAME_STEP: kernel.SAME_STEP,
            AutoresetMode.NEXT_STEP: kernel.NEXT_STEP,
            AutoresetMode.DISABLED: kernel.DISABLED,
        }[mode]
        self._settings = settings
        self._reward = reward
        self._flat = settings.observation == "flat"
        self._num_assets = view.mark.shape[1]
        self._width = 4 + self._num_assets + (view.rows.shape[1] if self._flat else 0)
        self._market = (
            view.mark.numpy(),
            torch.where(view.buyable, view.fill, -view.fill).numpy(),  # negative: may be sold only
            view.rows.numpy(),
            view.last_bar.numpy(),
            np.isin(np.arange(len(view.mark)), view.last_bar.numpy()),  # bars at which any symbol ends
            view.risk_off.numpy(),
        )
        self._rules = (
            settings.action == "target",
            settings.fill == "close",
            settings.random_start,
            settings.fee_rate + settings.spread_rate,
            settings.ruin_fraction,
            settings.max_shares,
            settings.dead_band,
            settings.rebalance_band,
            settings.turbulence_column is not None,
        )
        self._count = num_envs
        self.final_bar = torch.zeros(num_envs, dtype=torch.int64)
        """`[B]`: the bar each account stood at before it was reset."""
        self._reuse = reuse
        self._threads = torch.get_num_threads() if num_envs >= SERIAL_BELOW else 1
        self._pool: ThreadPoolExecutor | None = None
        self._accounts = [self._new_account(), self._new_account()] if reuse else []
        # The arrays behind the tensors of the step before: making them anew would be most of a single account's step.
        self._known: tuple[Account | None, tuple[Any, ...]] = (None, ())
        self._given: tuple[Endowment | None, Tensor | None, tuple[Any, ...]] = (None, None, ())
        self._obs = torch.empty(num_envs, self._width)
        # Only the rows of accounts that finish are written.
        self._final = torch.zeros(num_envs if self._mode == kernel.SAME_STEP else 1, self._width)

    def _new_account(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Integers, floats and flags of the accounts, and their shares."""
        count = self._count
        return (
            torch.empty(5, count, dtype=torch.int64),
            torch.empty(8, count, dtype=torch.float64),
            torch.empty(3, count, dtype=torch.bool),
            torch.empty(count, self._num_assets),
        )

    def __call__(
        self, account: Account, endow: Endowment, key: Tensor, action: Tensor
    ) -> tuple[Account, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Account, reward `[B]` float64, terminated, truncated, observation, final observation.

        Without `reuse` the final observation's other rows hold the observation. Observations are `[B, D]`, or
        `[B, A + N]` where they are factored. Raises EnvError for an action that is not finite; the account that was
        passed in is unharmed, but with `reuse` the last observation is not (see `restore`).
        """
        self._accounts.reverse()
        ints, floats, flags, shares = self._accounts[0] if self._reuse else self._new_account()
        obs = self._obs if self._reuse else torch.empty_like(self._obs)
        i, f, g = ints.numpy(), floats.numpy(), flags.numpy()
        action = action.detach().to(torch.float32).contiguous()
        known, arrays = self._known
        if account is not known:
            arrays = tuple(
                _array(value)
                for value in (
                    account.bar, account.cash, account.shares, account.equity, account.peak_equity,
                    account.first_equity, account.start_bar, account.end_bar, account.episode, account.finished,
                )
            )  # fmt: skip
        if endow is not self._given[0] or key is not self._given[1]:
            self._given = (endow, key, (_array(key), *(_array(value) for value in endow)))
        old = (_array(action), *self._given[2], *arrays)
        new = (i[0], f[0], shares.numpy(), f[1], f[2], f[3], i[1], i[2], i[3], g[2])
        out = (f[4], f[5], f[6], f[7], g[0], g[1], i[4], obs.numpy(), self._final.numpy())
        if not self._run(old, new, out):
            self._accounts.reverse()
            raise EnvError("actions contain NaN or infinity; check the policy's output")
        self.final_bar = ints[4]
        outcome = Outcome(
            account.equity, floats[4], account.peak_equity, floats[5], account.first_equity, floats[6], floats[7],
            account.memory,
        )  # fmt: skip
        reward = self._settings.reward_scale * self._reward(outcome)
        began = account.finished if self._mode == self._kernel.NEXT_STEP else None
        if began is not None:
            reward = torch.where(began, torch.zeros_like(reward), reward)
        memory = account.memory
        if self._settings.reward == "differential_sharpe":
            memory = update_memory(outcome, self._settings.sharpe_decay)
            fresh = began if began is not None else flags[0] | flags[1]
            if self._mode != self._kernel.DISABLED:
                start = torch.tensor([0.0, self._settings.sharpe_prior_volatility**2], dtype=torch.float64)
                memory = torch.where(fresh.unsqueeze(1), start, memory)
        after = Account(
            bar=ints[0],
            cash=floats[0],
            shares=shares,
            equity=floats[1],
            peak_equity=floats[2],
            first_equity=floats[3],
            start_bar=ints[1],
            end_bar=ints[2],
            episode=ints[3],
            memory=memory,
            finished=flags[2],
        )
        self._known = (after, new)
        return after, reward, flags[0], flags[1], obs, self._final_obs(flags[0] | flags[1], obs)

    def restore(self, obs: Any) -> None:
        """Put the last observation back where it was given out, after a step that failed."""
        if self._reuse:
            self._obs.copy_(obs if self._flat else obs["private"])

    def _final_obs(self, done: Tensor, obs: Tensor) -> Tensor:
        if self._mode != self._kernel.SAME_STEP or not bool(done.any()):
            return obs
        return self._final if self._reuse else torch.where(done.unsqueeze(1), self._final, obs)

    def _run(self, old: tuple[Any, ...], new: tuple[Any, ...], out: tuple[Any, ...]) -> bool:
        """All accounts, in as many equal parts as torch had threads at the start; the kernel runs without the GIL.

        Returns whether all actions were finite.
        """
        threads = self._threads
        step: Callable[..., bool] = self._kernel.step_range
        common = (self._mode, self._flat, self._market, self._rules, old, new, out)
        if threads == 1:
            return bool(step(0, self._count, *common))
        # Plain threads: OpenMP's spin while they wait, and take the cores from whoever computes next.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads - 1)
        edges = [self._count * part // threads for part in range(threads + 1)]
        others = [self._pool.submit(step, low, high, *common) for low, high in pairwise(edges[1:])]
        finite = step(edges[0], edges[1], *common)
        return all([finite, *(other.result() for other in others)])


def _array(value: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = value.contiguous().numpy()
    return array
