"""`MultiTraderEnv`: games of several traders in one market (`envs.games`), with an axis for the
traders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fintrader.envs.account import Account
from fintrader.envs.observation import ResetReturn, StepReturn
from fintrader.envs.settings import EnvSettings, TraderSettings
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors


class MultiTraderEnv:
    """G games of K traders, vectorised: observations `[G, K, D]`, actions `[G, K, A]`, rewards `[G,
    K]`.

    A ruined trader is out (`terminated` once): it orders nothing and is rewarded 0 until the game
    ends for all, at the time limit (`truncated`) or when all traders are ruined. An ended game is
    reset in the same step; its true last observation is `info["final_obs"]` `[G, K, D]` where
    `info["_final_obs"]` `[G]`.
    """

    def __init__(
        self,
        market: MarketTensors,
        settings: EnvSettings | None = None,
        traders: TraderSettings | None = None,
        *,
        num_games: int = 1,
        device: torch.device | str | None = None,
        seed: int | None = None,
    ) -> None:
        """Make the games; `traders` replaces that of the settings. Without a `seed` one is drawn
        from the system's entropy (`np_random_seed`).

        Raises EnvError for a window of one bar or no game at all, ConfigError for an option.
        """
        if num_games < 1:
            raise EnvError(f"num_games must be at least 1, got {num_games}")
        self.traders = traders or (settings and settings.traders) or TraderSettings()
        self.num_games = num_games
        self.num_traders = sum(self.traders.teams)
        self.env = TradingEnv(
            market,
            settings,
            num_envs=num_games * self.num_traders,
            device=device,
            seed=seed,
            traders=self.traders,
            start_groups=num_games,
            observation="flat",
            observation_dtype="float32",
        )
        """All traders as plain accounts, game by game."""
        self.layout = self.env.layout
        self.settings = self.env.settings

    @property
    def np_random_seed(self) -> Any:
        """The seed that the games' random streams began with."""
        return self.env.np_random_seed

    @property
    def account(self) -> Account:
        """The `G * K` accounts, game by game. Raises EnvError before the first reset."""
        return self.env.account

    def reset(self, *, seed: int | None = None) -> ResetReturn:
        """Begin all games: obs `[G, K, D]`.

        A seed restarts their random streams; without one the streams go on.
        """
        obs, info = self.env.reset(seed=seed)
        return self._games(obs), info

    def step(self, actions: Tensor) -> StepReturn:
        """Carry out one decision of every trader: obs `[G, K, D]`, reward, terminated, truncated
        `[G, K]`, info.

        Raises EnvError, changing nothing, for actions of the wrong shape or with NaN. On CUDA,
        where a check would wait for the device, a NaN counts as 0.
        """
        out = self.account.finished
        shape = (self.num_games, self.num_traders, self.layout.num_actions)
        if not isinstance(actions, Tensor) or tuple(actions.shape) != shape:
            raise EnvError(f"actions must be a floating-point tensor of shape {shape}")
        obs, reward, gone, truncated, info = self.env.step(actions.flatten(0, 1))
        over = self._games(gone | truncated).all(1)
        info = {"final_obs": self._games(info["final_obs"]), "_final_obs": over}
        flat = (obs, reward, gone & ~out, truncated)
        obs, reward, ruined, truncated = map(self._games, flat)
        return obs, reward, ruined, truncated, info

    def _games(self, value: Tensor) -> Tensor:
        """Take `[G * K, ...]` apart into `[G, K, ...]`."""
        return value.view(self.num_games, self.num_traders, *value.shape[1:])
