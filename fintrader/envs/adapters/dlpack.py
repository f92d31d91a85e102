"""DLPack: step the environment from JAX, CuPy or numpy without copying arrays.

import jax
env = DlpackEnv(TradingEnv(market, settings), jax.dlpack.from_dlpack)
obs, _ = env.reset(seed=1)
obs, reward, terminated, truncated, info = env.step(policy(obs))   # jax arrays both ways
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError


class DlpackEnv:
    """A `TradingEnv` whose arrays are another library's: `convert` is its `from_dlpack`.

    Arrays share memory with the environment's tensors. Those are never written to again, unless the
    environment was made with `copy=False`: then its next step overwrites them (see `TradingEnv`),
    which libraries that take their arrays for immutable, as JAX does, will not notice. Booleans
    travel as uint8 where the other library asks for it (`bool_as_uint8`).
    """

    def __init__(
        self, env: TradingEnv, convert: Callable[[Any], Any], *, bool_as_uint8: bool = False
    ) -> None:
        self.env = env
        self._from_dlpack = convert
        self._bool_as_uint8 = bool_as_uint8

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As `TradingEnv.reset`."""
        obs, info = self.env.reset(**kwargs)
        return self.convert(obs), self.convert(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As `TradingEnv.step`; `actions` `[B, N]` is any array with `__dlpack__`. Raises EnvError
        otherwise."""
        if not hasattr(actions, "__dlpack__"):
            raise EnvError(f"actions must offer __dlpack__, got {type(actions).__name__}")
        obs, reward, terminated, truncated, info = self.env.step(from_dlpack(actions))
        values = [self.convert(value) for value in (obs, reward, terminated, truncated)]
        return values[0], values[1], values[2], values[3], self.convert(info)

    def convert(self, value: Any) -> Any:
        """A tensor, or a dict of them, as the other library's arrays."""
        if isinstance(value, dict):
            return {name: self.convert(item) for name, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        if value.dtype == torch.bool and self._bool_as_uint8:
            value = value.view(torch.uint8)
        return self._from_dlpack(value.detach().contiguous())
