"""`TritonStep`: the environment's step by one launch on CUDA, where the settings allow it.

It covers long-only accounts, and bfloat16 observations too. With reused buffers the step, its
reward included, is a CUDA graph; nothing ever waits for the device.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext

import torch
from torch import Tensor

from fintrader.envs.account import Account
from fintrader.envs.fast.buffers import (
    Buffers,
    Generation,
    Rules,
    StepResult,
    finish_reward,
)
from fintrader.envs.fast.capture import capture
from fintrader.envs.market_view import MarketView
from fintrader.envs.money import EQUITY_FLOOR, USD_GRID
from fintrader.envs.reward import Reward
from fintrader.envs.settings import REWARDS, EnvSettings
from fintrader.envs.state import Endowment


def is_interpreted() -> bool:
    """Check whether Triton runs its kernels on the CPU (`TRITON_INTERPRET=1`), as in tests."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


class TritonStep:
    """The CUDA kernel, bound to one market and one set of settings. Raises ImportError without
    triton."""

    @staticmethod
    def find_obstacle(settings: EnvSettings, device: torch.device, *, record: bool) -> str | None:
        """Explain why the kernel cannot step this environment; None if it can."""
        reasons = {
            "triton is not installed": importlib.util.find_spec("triton") is None,
            "it runs only on CUDA": device.type != "cuda" and not is_interpreted(),
            "it is long-only": settings.short,
            "no order rests in it": settings.orders_rest,
            "it keeps no record": record,
            "it closes no positions at an episode's end": settings.close_at_end,
            "it sells no option": settings.option is not None,
            "it has no traders": settings.traders is not None,
            "its episodes may begin at any bar": settings.start == "session",
            "its clock is the episode's": settings.clock != "episode",
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def __init__(
        self,
        view: MarketView,
        settings: EnvSettings,
        reward: Reward,
        num_envs: int,
        *,
        resets: bool,
        reuse: bool,
    ) -> None:
        """`resets`: an account whose episode ends begins the next one in the same step. With
        `reuse`, each step overwrites the outputs of the step before, and the account two
        steps back: buffers that stay where they are can be captured in a CUDA graph."""
        from triton import next_power_of_2

        from fintrader.envs.fast import triton_kernel as cuda

        self._resets = resets
        self._reuse = reuse
        self._rewarding = (settings, reward, resets, view.benchmark)
        self._reward_inside = settings.reward in REWARDS
        """False for a user's reward, which may do things that no CUDA graph can capture."""
        is_flat = settings.observation == "flat"
        self._device = view.quotes.device
        self._count = num_envs
        self._num_assets = view.quotes.shape[2]
        market_width = view.rows.shape[1]
        self._width = 4 + self._num_assets + (market_width if is_flat else 0)
        self._kernel = cuda.step_kernel
        self._dtype = view.table.dtype
        rules = Rules.from_settings(settings)
        numbers = [getattr(rules, name) for name in cuda.NUMBERS]
        self._market = (
            view.quotes,
            view.rows,
            view.rows.stride(0),
            view.last_bar,
            view.risk_off.view(torch.uint8),
            torch.tensor([EQUITY_FLOOR, *numbers], dtype=torch.float64, device=self._device),
            view.inverse_root_volume,
            view.spread,
            view.event_row,
            view.splits,
            view.dividends * USD_GRID,
        )
        self._options = {
            "N": self._num_assets,
            "WIDTH": market_width,
            "BLOCK_N": next_power_of_2(self._num_assets),
            "BLOCK_W": min(next_power_of_2(market_width), 1024),
            "RESETS": resets,
            "FLAT": is_flat,
            "TARGET": rules.is_target,
            "SAME_BAR": rules.is_same_bar,
            "RANDOM_START": rules.starts_anywhere,
            "TURBULENT": bool(settings.turbulence),
            "INTERVAL": rules.interval,
            "ENDS": view.has_ends,
            "WORTH": rules.reward,
            "EVERY_FINAL": not reuse,
            "WHOLE": rules.is_whole,
            "EACH": not rules.is_proportional,
            "EVENTS": view.has_events,
            # More warps wait for each other in every sum over the assets: with one, 4,096 accounts
            # of 100 assets take 14 µs on an H200, with four 27.
            "num_warps": min(max(next_power_of_2(self._num_assets) // 512, 1), 16),
            "enable_fp_fusion": False,  # as torch rounds: a product, then a sum
        }
        self._num_bars = len(view.quotes)
        self._current = 0
        self._copied: tuple[Endowment | None, Tensor | None] = (None, None)
        if reuse:
            memory = torch.ones(2, num_envs, 2, dtype=torch.float64, device=self._device)
            self._generations = [Generation(self._new_buffers(), part) for part in memory]
            self._outputs = (
                self._new_obs(),
                self._new_obs() if resets else self._new_obs(1),
            )
            self._inputs = (
                torch.zeros(num_envs, self._num_assets, device=self._device),
                torch.zeros(num_envs, dtype=torch.int64, device=self._device),
                torch.ones(num_envs, dtype=torch.float64, device=self._device),
                torch.zeros(num_envs, self._num_assets, dtype=torch.float64, device=self._device),
                torch.zeros(num_envs, dtype=torch.int64, device=self._device),
            )
            self._rewards = torch.zeros(num_envs, device=self._device)
            self._graphs = self._capture() if self._device.type == "cuda" else None

    def pack(self, account: Account) -> Generation:
        """Copy accounts of a reset or a checkpoint."""
        if self._reuse:
            packed = self._generations[self._current]
            packed.memory.copy_(account.memory.detach())
        else:
            packed = Generation(self._new_buffers(), account.memory.detach())
        packed.copy_from(account)
        return packed

    def __call__(
        self, old: Generation, endow: Endowment, key: Tensor, action: Tensor
    ) -> StepResult:
        """Carry out one decision of every account. With `reuse` the final observation has rows of
        finished accounts only."""
        if self._reuse:
            return self._replay(endow, key, action)
        new = Generation(self._new_buffers(), old.memory)
        obs = self._new_obs()
        final = self._new_obs() if self._resets else obs
        self._launch(
            (action.detach().contiguous(), key, *endow), old.buffers, new.buffers, obs, final
        )
        reward, new.memory = finish_reward(old, new.buffers, *self._rewarding)
        return new.make_result(reward, obs, final)

    def _replay(self, endow: Endowment, key: Tensor, action: Tensor) -> StepResult:
        """Step into the environment's buffers, by a CUDA graph if there is one."""
        current = self._current
        old = self._generations[current]
        new = self._generations[1 - current]
        if endow is not self._copied[0] or key is not self._copied[1]:
            for target, value in zip(self._inputs[1:], (key, *endow), strict=True):
                target.copy_(value)
            self._copied = (endow, key)
        self._inputs[0].copy_(action.detach())
        if self._graphs is None:
            self._compute(current)
        else:
            self._graphs[current].replay()
        reward = self._rewards
        if not self._reward_inside:
            reward, memory = finish_reward(old, new.buffers, *self._rewarding)
            new.memory.copy_(memory)
        self._current = 1 - current
        return new.make_result(reward, *self._outputs)

    def _compute(self, current: int) -> None:
        """Do the work of a graph: the launch from one generation into the other, and the
        reward."""
        old = self._generations[current]
        new = self._generations[1 - current]
        self._launch(self._inputs, old.buffers, new.buffers, *self._outputs)
        if self._reward_inside:
            reward, memory = finish_reward(old, new.buffers, *self._rewarding)
            self._rewards.copy_(reward)
            new.memory.copy_(memory)

    def _capture(self) -> list[torch.cuda.CUDAGraph]:
        """Capture a graph for each direction between the two generations, after a run that compiles
        everything."""
        for generation in self._generations:
            for value in generation.buffers:
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
            with capture(graph, stream):
                self._compute(current)
            graphs.append(graph)
        return graphs

    def _launch(
        self, inputs: tuple[Tensor, ...], old: Buffers, new: Buffers, obs: Tensor, final: Tensor
    ) -> None:
        """Launch one program per account. `inputs`: action, key, cash, shares and bars of an
        episode."""
        arguments = (
            *self._market,
            *inputs,
            *_plain(old),
            *_plain(new),
            obs,
            final,
            self._count,
            self._num_bars,
        )
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            self._kernel[(self._count,)](*arguments, **self._options)

    def _new_buffers(self) -> Buffers:
        return Buffers.empty(self._count, self._num_assets, self._device, rows=0)

    def _new_obs(self, count: int | None = None) -> Tensor:
        return torch.empty(
            count or self._count, self._width, dtype=self._dtype, device=self._device
        )


def _plain(buffers: Buffers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """View booleans as bytes, which Triton stores."""
    return buffers.ints, buffers.floats, buffers.flags.view(torch.uint8), buffers.shares
