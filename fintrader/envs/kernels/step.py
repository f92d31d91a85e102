"""`FusedStep`: the environment's step by the fused kernel, where its options allow it.

The kernel covers what training uses: float32 on CPU, whole shares, long-only, proportional costs, one bar a decision.
Everything else goes through the torch core, with the same results where both apply.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs.dynamics import MarketView
from fintrader.envs.kernels.buffers import (
    DONE,
    SAME_STEP,
    Buffers,
    KernelStep,
    StepResult,
    copy_account,
    pack_quotes,
    why_not_any_kernel,
)
from fintrader.envs.ledger import Account
from fintrader.envs.reward import Reward
from fintrader.envs.settings import EnvSettings
from fintrader.envs.state import Endowment
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
        "it runs on CPU": device.type != "cpu",
        "it makes float32 observations": settings.observation_dtype != "float32",
        "it shows one bar at a time": settings.lookback > 1,
    }
    return why_not_any_kernel(settings, dtype, record=record, own=reasons)


class FusedStep(KernelStep):
    """The CPU kernel."""

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
        from fintrader.envs.kernels import batch

        super().__init__(view, settings, reward, mode, num_envs, reuse=reuse)
        self._kernel = batch
        self._stream = self._flat and num_envs * self._width * 4 > STREAM_ABOVE_BYTES
        quotes = pack_quotes(view)
        self._market = (
            quotes.numpy(),
            quotes.amin(2).clamp(min=0.0).double().T.contiguous().numpy(),  # 0: not everything has a price
            view.rows.numpy(),
            view.last_bar.numpy(),
            np.isin(np.arange(len(view.mark)), view.last_bar.numpy()),  # bars at which any symbol ends
            view.risk_off.numpy(),
        )
        self._rules = (
            settings.action == "target", settings.fill == "close", settings.random_start,
            settings.fee_rate + settings.spread_rate, settings.ruin_fraction, settings.max_shares, settings.dead_band,
            settings.rebalance_band, settings.turbulence_column is not None,
        )  # fmt: skip
        self._threads = torch.get_num_threads() if num_envs >= SERIAL_BELOW else 1
        self._pool: ThreadPoolExecutor | None = None
        self._known: tuple[Account | None, _Arrays] = (None, ())
        self._given: tuple[Endowment | None, Tensor | None, _Arrays] = (None, None, ())
        self._obs = torch.empty(num_envs, self._width)
        # Only the rows of accounts that finish are written.
        self._final = torch.zeros(num_envs if self._mode == SAME_STEP else 1, self._width)
        self._obs_array, self._final_array = self._obs.numpy(), self._final.numpy()
        # Making the arrays and tensors of a generation anew would be most of a single account's step.
        self._generations = [self._generation(), self._generation()] if reuse else []

    def _generation(self) -> tuple[Buffers, _Arrays, Account]:
        """Fresh buffers, their arrays, and the account in them (its memory is replaced in every step)."""
        buffers = self._new_buffers()
        return buffers, tuple(value.numpy() for value in buffers), buffers.account(buffers.floats)

    def _pack(self, account: Account) -> _Arrays:
        """The arrays of an account that comes from elsewhere."""
        _, arrays, views = self._generation()
        copy_account(account, views)
        return arrays

    def __call__(self, account: Account, endow: Endowment, key: Tensor, action: Tensor) -> StepResult:
        """One decision of every account.

        Without `reuse` the final observation's other rows hold the observation. Observations are `[B, D]`, or
        `[B, A + N]` where they are factored. Raises EnvError for an action that is not finite; the account that was
        passed in is unharmed, but with `reuse` the last observation is not (see `restore`).
        """
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
        reward, memory = self._finish(account, new)
        after = views._replace(memory=memory)
        self._known = (after, arrays)
        final = obs
        if ended and self._mode == SAME_STEP:
            final = self._final if self._reuse else torch.where(new.flags[DONE].unsqueeze(1), self._final, obs)
        return self._result(after, reward, new, obs, final)

    def restore(self, obs: Any) -> None:
        """Put the last observation back where it was given out, after a step that failed."""
        if self._reuse:
            self._obs.copy_(obs if self._flat else obs["private"])

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
