"""`TritonStep`: the environment's step by one launch on CUDA, where its options allow it.

It covers what `FusedStep` covers, and bfloat16 observations and lookbacks too. With reused buffers the step, its
reward included, is a CUDA graph; nothing ever waits for the device.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs.dynamics import MarketView
from fintrader.envs.kernels.buffers import (
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
from fintrader.envs.settings import REWARDS, EnvSettings
from fintrader.envs.state import Endowment


def interpreted() -> bool:
    """Whether Triton was asked to run its kernels on CPU (`TRITON_INTERPRET=1`), which is for tests."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def why_not_triton(settings: EnvSettings, device: torch.device, dtype: torch.dtype, *, record: bool) -> str | None:
    """Why the kernel cannot take this environment, or None if it can."""
    reasons = {
        "triton is not installed": importlib.util.find_spec("triton") is None,
        "it runs on CUDA": device.type != "cuda" and not interpreted(),
    }
    return why_not_any_kernel(settings, dtype, record=record, own=reasons)


class TritonStep(KernelStep):
    """The CUDA kernel. Raises ImportError without triton."""

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
        """With `reuse`, each step overwrites the outputs of the step before, and the account two steps back: buffers
        that stay where they are can be captured in a CUDA graph."""
        from fintrader.envs.kernels import cuda

        super().__init__(view, settings, reward, mode, num_envs, reuse=reuse)
        self._kernel = cuda.step_kernel
        market_width = view.rows.shape[1]
        self._dtype = view.rows.dtype
        rules = torch.zeros(6, dtype=torch.float64)
        rules[cuda.RATE] = settings.fee_rate + settings.spread_rate
        rules[cuda.RUIN] = settings.ruin_fraction
        rules[cuda.MAX_SHARES] = settings.max_shares
        rules[cuda.DEAD_BAND] = settings.dead_band
        rules[cuda.BAND] = settings.rebalance_band
        rules[cuda.LEAST] = 1e-6
        self._market = (
            pack_quotes(view), view.rows, view.rows.stride(0), view.last_bar, view.risk_off.view(torch.uint8),
            rules.to(self._device),
        )  # fmt: skip
        self._options: dict[str, Any] = {
            "N": self._num_assets,
            "WIDTH": market_width,
            "BLOCK_N": _power_of_two(self._num_assets),
            "BLOCK_W": min(_power_of_two(market_width), 1024),
            "MODE": self._mode,
            "FLAT": self._flat,
            "TARGET": settings.action == "target",
            "SAME_BAR": settings.fill == "close",
            "RANDOM_START": settings.random_start,
            "TURBULENT": settings.turbulence_column is not None,
            "BANDED": settings.rebalance_band > 0.0,
            "ENDS": view.ends,
            "WORTH": self._worth,
            "EVERY_FINAL": not reuse,
            "num_warps": 4,
            "enable_fp_fusion": False,  # as torch rounds: a product, then a sum
        }
        self._num_bars = view.mark.shape[0]
        self._current = 0
        self._known: tuple[Account | None, Buffers | None] = (None, None)
        self._given: tuple[Endowment | None, Tensor | None] = (None, None)
        if reuse:
            self._buffers = [self._new_buffers(), self._new_buffers()]
            self._outputs = (self._new_obs(), self._new_obs() if self._mode == SAME_STEP else self._new_obs(1))
            self._inputs = (
                torch.zeros(num_envs, self._num_assets, device=self._device),
                torch.zeros(num_envs, dtype=torch.int64, device=self._device),
                torch.ones(num_envs, dtype=torch.float64, device=self._device),
                torch.zeros(num_envs, self._num_assets, device=self._device),
                torch.zeros(num_envs, dtype=torch.int64, device=self._device),
            )
            self._memory = [torch.ones(num_envs, 2, dtype=torch.float64, device=self._device) for _ in range(2)]
            self._rewards = torch.zeros(num_envs, device=self._device)
            self._graphs = self._capture() if self._device.type == "cuda" else None

    def __call__(self, account: Account, endow: Endowment, key: Tensor, action: Tensor) -> StepResult:
        """One decision of every account.

        With `reuse` only the final observation's rows of accounts that finished are written. Observations are
        `[B, D]`, or `[B, A + N]` where they are factored.
        """
        return self._replay(account, endow, key, action) if self._reuse else self._afresh(account, endow, key, action)

    def restore(self, obs: Any) -> None:
        """Nothing was harmed: actions are looked at before the launch, or not at all."""

    def _afresh(self, account: Account, endow: Endowment, key: Tensor, action: Tensor) -> StepResult:
        """Into new buffers."""
        known, old = self._known
        if account is not known or old is None:
            old = self._new_buffers()
            copy_account(account, old.account(account.memory))
        new, obs = self._new_buffers(), self._new_obs()
        final = self._new_obs() if self._mode == SAME_STEP else obs
        self._launch((action.detach().contiguous(), key, *endow), old, new, obs, final)
        reward, memory = self._finish(account, new)
        after = new.account(memory)
        self._known = (after, new)
        return self._result(after, reward, new, obs, final)

    def _replay(self, account: Account, endow: Endowment, key: Tensor, action: Tensor) -> StepResult:
        """Into the buffers of this environment, by a graph where there is one."""
        current = self._current
        old, new = self._buffers[current], self._buffers[1 - current]
        if account is not self._known[0]:
            copy_account(account, old.account(account.memory))
            self._memory[current].copy_(account.memory)
        if endow is not self._given[0] or key is not self._given[1]:
            for target, value in zip(self._inputs[1:], (key, *endow), strict=True):
                target.copy_(value)
            self._given = (endow, key)
        self._inputs[0].copy_(action.detach())
        obs, final = self._outputs
        if self._graphs is None:
            self._compute(current)
        else:
            self._graphs[current].replay()
        after = new.account(self._memory[1 - current])
        reward = self._rewards
        if not self._reward_inside:
            reward, memory = self._finish(old.account(self._memory[current]), new)
            after = after._replace(memory=memory)
        self._known, self._current = (after, new), 1 - current
        return self._result(after, reward, new, obs, final)

    @property
    def _reward_inside(self) -> bool:
        """A reward of the user's own may do what no graph can hold."""
        return self._settings.reward in REWARDS

    def _compute(self, current: int) -> None:
        """What a graph holds: the launch from one generation into the other, and the reward."""
        old, new = self._buffers[current], self._buffers[1 - current]
        self._launch(self._inputs, old, new, *self._outputs)
        if self._reward_inside:
            reward, memory = self._finish(old.account(self._memory[current]), new)
            self._rewards.copy_(reward)
            self._memory[1 - current].copy_(memory)

    def _capture(self) -> list[torch.cuda.CUDAGraph]:
        """A graph for each direction between the two generations, after a run that compiles everything."""
        for buffers in self._buffers:
            for value in buffers:
                value.zero_()
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call, unused-ignore]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            self._compute(0)
            self._compute(1)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graphs = []
        for current in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.device(self._device), torch.cuda.graph(graph):
                self._compute(current)
            graphs.append(graph)
        return graphs

    def _launch(self, given: tuple[Tensor, ...], old: Buffers, new: Buffers, obs: Tensor, final: Tensor) -> None:
        """One program an account. `given`: action, key, cash, shares and bars of an episode."""
        arguments = (
            *self._market, *given, *_plain(old), *_plain(new), obs, final, self._count, self._num_bars,
        )  # fmt: skip
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            self._kernel[(self._count,)](*arguments, **self._options)

    def _new_obs(self, count: int | None = None) -> Tensor:
        return torch.empty(count or self._count, self._width, dtype=self._dtype, device=self._device)


def _plain(buffers: Buffers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Booleans as bytes, which is how they are stored."""
    return buffers.ints, buffers.floats, buffers.flags.view(torch.uint8), buffers.shares


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
