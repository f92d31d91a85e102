"""`FusedStep`: the environment's step by the fused kernel, for all settings with float32
observations on CPU."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fintrader.envs.account import Account
from fintrader.envs.fast.buffers import (
    FLAGS,
    FLOATS,
    INTS,
    Buffers,
    Generation,
    Inputs,
    Outputs,
    Prices,
    Rules,
    StepResult,
    finish_reward,
)
from fintrader.envs.market_view import MarketView
from fintrader.envs.reward import Reward
from fintrader.envs.settings import EnvSettings
from fintrader.envs.state import Endowment
from fintrader.errors import EnvError

SERIAL_BELOW = 1024
"""Number of accounts below which threads cost more time than they save."""
STREAM_ABOVE_BYTES = 8 << 20
"""Observations larger than this are written directly to memory, because the caches cannot hold
them."""
_Array = np.ndarray[Any, Any]
_Arrays = tuple[_Array, ...]


def _references(arrays: list[_Array]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


_FREE = _references([np.zeros(0)])[0]
"""Count of references to an array that only a list holds; it depends on the version of Python."""


class ArrayPool:
    """Arrays of one shape, each reused only when neither the caller nor a tensor refers to it.

    No array in use is overwritten, and a loop that drops its observations needs no new memory from
    the system (16 MB of page faults a step, at 4,096 accounts and 100 stocks).
    """

    MAX_ARRAYS = 4
    """Largest number of arrays kept for reuse."""

    def __init__(self, shape: tuple[int, ...], dtype: type) -> None:
        self._shape = shape
        self._dtype = dtype
        self._arrays: list[_Array] = []

    def take(self) -> _Array:
        """Return a free array; its contents are finite but arbitrary."""
        for place, references in enumerate(_references(self._arrays)):
            if references == _FREE:
                return self._arrays[place]
        fresh: _Array = np.zeros(self._shape, self._dtype)
        if len(self._arrays) < self.MAX_ARRAYS:
            self._arrays.append(fresh)
        return fresh


class FusedStep:
    """The CPU kernel, bound to one market and one set of settings."""

    @staticmethod
    def find_obstacle(settings: EnvSettings, device: torch.device, *, record: bool) -> str | None:
        """Explain why the kernel cannot step this environment; None if it can."""
        if device.type != "cpu":
            return "it runs only on CPU"
        if settings.observation_dtype != "float32":
            return "it makes only float32 observations"
        return "it keeps no record" if record else None

    def __init__(
        self,
        view: MarketView,
        settings: EnvSettings,
        reward: Reward,
        num_envs: int,
        *,
        resets: bool,
    ) -> None:
        """`resets`: an account whose episode ends begins the next one in the same step."""
        from fintrader.envs.fast import batch

        self._kernel = batch.step_range
        self._resets = resets
        self._rewarding = (settings, reward, resets, view.benchmark)
        is_flat = settings.observation == "flat"
        self._count = num_envs
        assets = view.quotes.shape[2]
        shown = view.rows if is_flat else torch.zeros(1, 1)
        row_width = shown.shape[1]
        bar_width = shown.stride(0)
        # With a lookback the rows overlap; these are the rows of single bars behind them.
        bars = len(shown) + row_width // bar_width - 1
        rows = torch.as_strided(shown, (bars, bar_width), (bar_width, 1)).numpy()
        own = 4 + (settings.option is not None) + assets * (1 + settings.resting_rows)
        width = own + (row_width if is_flat else 0)
        is_streamed = is_flat and num_envs * width * 4 > STREAM_ABOVE_BYTES
        self._market = (Prices.from_view(view), Rules.from_settings(settings))
        self._fixed = (rows, row_width * 4, is_flat, is_streamed, resets)
        self._threads = torch.get_num_threads() if num_envs >= SERIAL_BELOW else 1
        self._pool: ThreadPoolExecutor | None = None
        self._cache: tuple[Endowment | None, Tensor | None, _Arrays] = (None, None, ())
        self._books = [
            ArrayPool((len(INTS), num_envs), np.int64),
            ArrayPool((len(FLOATS), num_envs), np.float64),
            ArrayPool((len(FLAGS), num_envs), np.bool_),
            ArrayPool((num_envs, assets), np.float64),
            ArrayPool((num_envs, settings.resting_rows, assets), np.float64),
        ]
        self._obs, self._final = (ArrayPool((num_envs, width), np.float32) for _ in range(2))

    def pack(self, account: Account) -> Generation:
        """Copy accounts of a reset or a checkpoint."""
        packed = self._fresh(account.memory.detach())
        packed.copy_from(account)
        return packed

    def _fresh(self, memory: Tensor) -> Generation:
        arrays = tuple(pool.take() for pool in self._books)
        return Generation(Buffers(*map(torch.from_numpy, arrays)), memory, arrays)

    def __call__(
        self, old: Generation, endow: Endowment, key: Tensor, action: Tensor
    ) -> StepResult:
        """Carry out one decision of every account. Raises EnvError, changing nothing, for an action
        that is not finite."""
        values = action.detach().float().contiguous().numpy()
        inputs = Inputs(values, *self.convert_inputs(endow, key))
        new = self._fresh(old.memory)
        obs = self._obs.take()
        final = self._final.take() if self._resets else obs
        out = Outputs(obs, final, *self._fixed)
        counts = self.run(inputs, old.arrays, new.arrays, *self._market, out)
        if min(counts) < 0:
            raise EnvError("actions contain NaN or infinity; check the policy's output")
        reward, new.memory = finish_reward(old, new.buffers, *self._rewarding)
        shown = torch.from_numpy(obs)
        last = torch.from_numpy(final) if self._resets and any(counts) else shown
        return new.make_result(reward, shown, last)

    def convert_inputs(self, endow: Endowment, key: Tensor) -> _Arrays:
        """Convert the accounts' random streams and endowment to arrays, once."""
        if endow is not self._cache[0] or key is not self._cache[1]:
            self._cache = (endow, key, tuple(value.contiguous().numpy() for value in (key, *endow)))
        return self._cache[2]

    def run(self, *arguments: Any) -> list[int]:
        """Call the kernel, without the GIL, for as many equal parts of the accounts as torch has
        threads; return the parts' results."""
        kernel = self._kernel
        threads = self._threads
        if threads == 1:
            return [kernel(0, self._count, *arguments)]
        # Plain threads, because OpenMP's spin while they wait and block the cores.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads - 1)
        edges = [self._count * part // threads for part in range(threads + 1)]
        futures = [
            self._pool.submit(kernel, low, high, *arguments) for low, high in pairwise(edges[1:])
        ]
        return [kernel(edges[0], edges[1], *arguments), *(future.result() for future in futures)]
