"""Adapters to gymnasium: `make` gives one account in numpy, `make_vec` a `TradingEnv`.

    import gymnasium, fintrader
    env = gymnasium.make("fintrader/Trading-v0", market=market)  # or without: a synthetic one
    obs, info = env.reset(seed=1)
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())

Code for vector environments in numpy, gymnasium's wrappers included, needs a `NumpyVectorEnv`:

    env = NumpyVectorEnv(TradingEnv(market, settings, autoreset_mode=AutoresetMode.NEXT_STEP))
    env = gymnasium.wrappers.vector.NormalizeObservation(env)
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorWrapper
from torch import Tensor

from fintrader.bars.calendar import WindowSettings
from fintrader.envs.observation import ResetReturn
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError
from fintrader.market.build import make_market
from fintrader.market.settings import DataSettings
from fintrader.market.synthetic import SyntheticSettings
from fintrader.market.tensors import BarSpan, MarketTensors


def to_numpy(value: Any) -> Any:
    """Convert a tensor, or a dict of tensors, to numpy (bfloat16 to float32)."""
    if isinstance(value, dict):
        return {name: to_numpy(item) for name, item in value.items()}
    if isinstance(value, Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return value


@lru_cache(maxsize=1)
def make_example_market() -> MarketTensors:
    """Make a market to try the environment: four synthetic stocks, five sessions of minutes, with
    nothing to learn."""
    source = SyntheticSettings(num_symbols=4, num_sessions=5)
    return make_market(DataSettings(source=source, windows=WindowSettings(embargo_sessions=0)))


def make_trading_env(
    market: MarketTensors | Path | str | None = None, **options: Any
) -> TradingEnv:
    """Make a `TradingEnv` for `gymnasium.make_vec`; without a market it trades
    `make_example_market()`."""
    return TradingEnv(make_example_market() if market is None else market, **options)


def require_flat(env: TradingEnv, mode: AutoresetMode, library: str) -> None:
    """Check that `env` is a `TradingEnv` with this mode and flat observations. Raises EnvError."""
    if not isinstance(env, TradingEnv):
        raise EnvError(
            f"{library} takes a TradingEnv, fintrader.TradingEnv(market, num_envs=16), not"
            f" {type(env).__name__}"
        )
    if env.autoreset_mode is not mode or env.settings.observation != "flat":
        raise EnvError(
            f"{library} needs TradingEnv(..., autoreset_mode='{mode.value}', observation='flat')"
        )


def to_batch(actions: Any, device: torch.device) -> Tensor:
    """Convert numbers in any form that numpy reads to a float32 tensor. Raises EnvError."""
    try:
        with np.errstate(over="ignore"):  # the environment refuses infinity
            array = np.asarray(actions, dtype=np.float32)
    except (TypeError, ValueError):
        raise EnvError(
            f"actions must be an array of numbers, got {type(actions).__name__}"
        ) from None
    return torch.as_tensor(array, device=device)


class NumpyVectorEnv(VectorWrapper):
    """A `TradingEnv` with numpy arrays, for code written for gymnasium's vector environments."""

    env: TradingEnv

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> ResetReturn:
        """Reset, see `TradingEnv.reset`."""
        obs, info = self.env.reset(seed=seed, options=options)
        return to_numpy(obs), to_numpy(info)

    def step(self, actions: Any) -> Any:
        """Step, see `TradingEnv.step`."""
        return tuple(map(to_numpy, self.env.step(to_batch(actions, self.env.device))))


class SingleTradingEnv(gymnasium.Env[Any, Any]):
    """A `TradingEnv` of one account as a plain gymnasium environment, with the options of
    `TradingEnv.reset`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's name for it

    def __init__(
        self,
        market: MarketTensors | Path | str | None = None,
        settings: EnvSettings | None = None,
        *,
        render_mode: None = None,
        **options: Any,
    ) -> None:
        """Make the environment with the options of `TradingEnv`: device, seed, record,
        `cost_bps=5`. Without a market it trades `make_example_market()`.

        `truncated` reports the episode's end, `terminated` ruin.
        """
        fixed = {"num_envs", "autoreset_mode", "copy"}.intersection(options)
        if fixed:
            raise EnvError(
                f"{min(fixed)} is fixed for one account; for several use"
                " fintrader.TradingEnv(market, num_envs=64), or gymnasium.make_vec"
            )
        self.vector_env = TradingEnv(
            make_example_market() if market is None else market,
            settings,
            num_envs=1,
            autoreset_mode=AutoresetMode.DISABLED,
            copy=False,
            **options,
        )
        self.render_mode = render_mode
        self.action_space = self.vector_env.single_action_space
        self.observation_space = self.vector_env.single_observation_space

    @property
    def market_span(self) -> BarSpan:
        """See `TradingEnv.market_span`."""
        return self.vector_env.market_span

    @property
    def np_random_seed(self) -> int:
        """The seed that the account's random stream began with."""
        seed = self.vector_env.np_random_seed
        return seed if isinstance(seed, int) else seed[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> ResetReturn:
        """Begin an episode: obs `[D]` float32. A seed restarts the account's random stream."""
        super().reset(seed=seed)
        obs, info = self.vector_env.reset(seed=seed, options=options)
        return _first(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out one decision, `action` `[N]`: obs `[D]`, reward, terminated, truncated, info.
        Raises EnvError as `TradingEnv.step`."""
        action = np.asarray(action)
        if action.shape != self.action_space.shape:
            raise EnvError(
                f"the action has shape {action.shape}, expected {self.action_space.shape}"
            )
        if action.dtype.kind != "f":
            raise EnvError(f"the action must be floating point, got {action.dtype}")
        batch = torch.as_tensor(
            action, dtype=torch.float32, device=self.vector_env.device
        ).unsqueeze(0)
        obs, reward, terminated, truncated, info = self.vector_env.step(batch)
        return _first(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(info)


def _first(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _first(item) for name, item in value.items()}
    return to_numpy(value[0].clone())  # the next step overwrites the environment's observation
