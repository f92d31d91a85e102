"""`FusedStep`: the environment's step by the fused kernel, where its options allow it.

The kernel covers what training uses: float32 on CPU, whole shares, long-only, proportional costs, one bar a decision.
Everything else goes through the torch core, with the same results where both apply.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

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

STREAM_ABOVE_BYTES = 8 << 20
"""Observations larger than this are written past the caches: nobody would find them there anyway."""

_Array = np.ndarray[Any, Any]
_Arrays = tuple[_Array, ...]


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


class Buffers(NamedTuple):
    """One generation of accounts as the kernel writes it; the names of the rows are the kernel's."""

    ints: Tensor
    """`[5, B]` int64."""
    floats: Tensor
    """`[9, B]` float64."""
    flags: Tensor
    """`[4, B]` bool."""
    shares: Tensor
    """`[B, N]`."""


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
        self._worth = {"log_return": kernel.LOG_RETURN, "profit": kernel.PROFIT}.get(settings.reward, kernel.OTHER)
        self._flat = settings.observation == "flat"
        self._num_assets = view.mark.shape[1]
        self._width = 4 + self._num_assets + (view.rows.shape[1] if self._flat else 0)
        self._stream = self._flat and num_envs * self._width * 4 > STREAM_ABOVE_BYTES
        fill = torch.where(view.buyable, view.fill, -view.fill)  # negative: may be sold only
        quotes = torch.stack((fill, view.mark), dim=1)
        self._market = (
            quotes.numpy(),
            quotes.amin(2).clamp(min=0.0).double().T.contiguous().numpy(),  # 0: not everything has a price
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
        # Making the arrays and tensors of a generation anew would be most of a single account's step.
        self._generations = [self._generation(), self._generation()] if reuse else []
        self._known: tuple[Account | None, _Arrays] = (None, ())
        self._given: tuple[Endowment | None, Tensor | None, _Arrays] = (None, None, ())
        self._obs = torch.empty(num_envs, self._width)
        # Only the rows of accounts that finish are written.
        self._final = torch.zeros(num_envs if self._mode == kernel.SAME_STEP else 1, self._width)
        self._obs_array, self._final_array = self._obs.numpy(), self._final.numpy()

    def _generation(self) -> tuple[Buffers, _Arrays, Account]:
        """Fresh buffers, their arrays, and the account in them (without its memory)."""
        count, k = self._count, self._kernel
        new = Buffers(
            torch.empty(5, count, dtype=torch.int64),
            torch.empty(9, count, dtype=torch.float64),
            torch.empty(4, count, dtype=torch.bool),
            torch.empty(count, self._num_assets),
        )
        account = Account(
            bar=new.ints[k.BAR],
            cash=new.floats[k.CASH],
            shares=new.shares,
            equity=new.floats[k.EQUITY],
            peak_equity=new.floats[k.PEAK],
            first_equity=new.floats[k.FIRST],
            start_bar=new.ints[k.START],
            end_bar=new.ints[k.END],
            episode=new.ints[k.EPISODE],
            memory=new.floats,  # replaced in every step
            finished=new.flags[k.FINISHED],
        )
        return new, tuple(value.numpy() for value in new), account

    def _pack(self, account: Account) -> _Arrays:
        """The arrays of an account that comes from elsewhere (a reset, a checkpoint)."""
        _, arrays, views = self._generation()
        for name in Account._fields:
            if name != "memory":
                getattr(views, name).copy_(getattr(account, name))
        return arrays

    def __call__(
        self, account: Account, endow: Endowment, key: Tensor, action: Tensor
    ) -> tuple[Account, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Account, reward `[B]` float32, terminated, truncated, either, observation, final observation.

        Without `reuse` the final observation's other rows hold the observation. Observations are `[B, D]`, or
        `[B, A + N]` where they are factored. Raises EnvError for an action that is not finite; the account that was
        passed in is unharmed, but with `reuse` the last observation is not (see `restore`).
        """
        k = self._kernel
        self._generations.reverse()
        new, arrays, views = self._generations[0] if self._reuse else self._generation()
        obs, obs_array = (self._obs, self._obs_array)
        if not self._reuse:
            obs = torch.empty_like(obs)
            obs_array = obs.numpy()
        wish = action.detach().to(torch.float32).contiguous().numpy()
        known, old = self._known
        if account is not known:
            old = self._pack(account)
        if endow is not self._given[0] or key is not self._given[1]:
            self._given = (endow, key, tuple(value.contiguous().numpy() for value in (key, *endow)))
        given = (wish, wish.view(np.int32), *self._given[2])
        ended = self._run(given, old, arrays, obs_array)
        if ended < 0:
            self._generations.reverse()
            raise EnvError("actions contain NaN or infinity; check the policy's output")
        ints, floats, flags, _ = new
        self.final_bar = ints[k.FINAL_BAR]
        after = views._replace(memory=account.memory)
        if self._worth == k.OTHER:
            reward, after = self._rewarded(account, after, floats, flags)
        else:
            reward = floats[k.WORTH].log() if self._worth == k.LOG_RETURN else floats[k.WORTH]
        if self._settings.reward_scale != 1.0:
            reward = self._settings.reward_scale * reward
        self._known = (after, arrays)
        done = flags[k.DONE]
        final = obs
        if ended and self._mode == k.SAME_STEP:
            final = self._final if self._reuse else torch.where(done.unsqueeze(1), self._final, obs)
        return after, reward.to(torch.float32), flags[k.TERMINATED], flags[k.TRUNCATED], done, obs, final

    def restore(self, obs: Any) -> None:
        """Put the last observation back where it was given out, after a step that failed."""
        if self._reuse:
            self._obs.copy_(obs if self._flat else obs["private"])

    def _rewarded(self, account: Account, after: Account, floats: Tensor, flags: Tensor) -> tuple[Tensor, Account]:
        """Reward `[B]` by torch, and the account with the memory it needs."""
        k = self._kernel
        outcome = Outcome(
            account.equity, floats[k.STEP_EQUITY], account.peak_equity, floats[k.STEP_PEAK], account.first_equity,
            floats[k.COST], floats[k.TURNOVER], account.memory,
        )  # fmt: skip
        reward = self._reward(outcome)
        began = account.finished if self._mode == k.NEXT_STEP else None
        if began is not None:
            reward = torch.where(began, torch.zeros_like(reward), reward)
        if self._settings.reward == "differential_sharpe":
            memory = update_memory(outcome, self._settings.sharpe_decay)
            if self._mode != k.DISABLED:
                fresh = began if began is not None else flags[k.DONE]
                start = torch.tensor([0.0, self._settings.sharpe_prior_volatility**2], dtype=torch.float64)
                memory = torch.where(fresh.unsqueeze(1), start, memory)
            after = after._replace(memory=memory)
        return reward, after

    def _run(self, given: _Arrays, old: _Arrays, new: _Arrays, obs: _Array) -> int:
        """All accounts, in as many equal parts as torch had threads at the start; the kernel runs without the GIL.

        Returns how many episodes ended, negative if an action was not finite.
        """
        threads = self._threads
        step: Callable[..., int] = self._kernel.step_range
        common = (
            self._mode, self._flat, self._stream, self._worth, self._market, self._rules, given, old, new, obs,
            self._final_array,
        )  # fmt: skip
        if threads == 1:
            return step(0, self._count, *common)
        # Plain threads: OpenMP's spin while they wait, and take the cores from whoever computes next.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads - 1)
        edges = [self._count * part // threads for part in range(threads + 1)]
        others = [self._pool.submit(step, low, high, *common) for low, high in pairwise(edges[1:])]
        ended = [step(edges[0], edges[1], *common), *(other.result() for other in others)]
        return -1 if min(ended) < 0 else sum(ended)
