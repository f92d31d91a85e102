"""DLPack: step the environment from JAX, CuPy or numpy without copying arrays.

import jax
env = DlpackEnv(TradingEnv(market, settings), jax.dlpack.from_dlpack)
obs, _ = env.reset(seed=1)
obs, reward, terminated, truncated, info = env.step(policy(obs))   # jax arrays both ways
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError


class DlpackEnv:
    """A `TradingEnv` with the arrays of another library, whose `from_dlpack` is `convert`.

    Arrays share memory with the environment's tensors, which are never written to again. With
    `copy=False`, however, the next step overwrites them (see `TradingEnv`), which libraries with
    immutable arrays, such as JAX, do not notice.
    """

    def __init__(self, env: TradingEnv, convert: Callable[[Any], Any]) -> None:
        self.env = env
        self._from_dlpack = convert

    def reset(self, **kwargs: Any) -> tuple[Any, ...]:
        """Reset, see `TradingEnv.reset`."""
        return tuple(map(self.convert, self.env.reset(**kwargs)))

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Step, see `TradingEnv.step`; `actions` `[B, N]` is any array with `__dlpack__`. Raises
        EnvError otherwise."""
        if not hasattr(actions, "__dlpack__"):
            raise EnvError(f"actions must offer __dlpack__, got {type(actions).__name__}")
        return tuple(map(self.convert, self.env.step(from_dlpack(actions))))

    def convert(self, value: Any) -> Any:
        """Convert a tensor, or a dict of tensors, to the other library's arrays."""
        if isinstance(value, dict):
            return {name: self.convert(item) for name, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        return self._from_dlpack(value.detach().contiguous())
