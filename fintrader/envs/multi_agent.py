"""Several traders in one market: their orders meet in one temporary price impact.

In every game K traders stand at the same bar. Their wanted orders are added up per symbol; the net
flow q (USD, bought less sold) moves the price that all of them fill at,

    p' = p (1 + clamp(kappa q, -limit, +limit))

and the move is gone by the close, where accounts are marked at the market's price. Traders on the
side of the flow pay for it, traders on the other side are paid.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs.account import Account, advance
from fintrader.envs.episodes import select
from fintrader.envs.observation import ResetReturn, StepReturn
from fintrader.envs.settings import EnvSettings, TraderSettings
from fintrader.envs.state import check_finite
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors


class MultiTraderEnv:
    """G games of K traders, vectorised: observations `[G, K, D]`, actions `[G, K, N]`, rewards `[G,
    K]`.

    A ruined trader is out (`terminated`): it orders nothing and is rewarded 0 until the game ends
    for all, at the time limit (`truncated`) or when all traders are ruined. An ended game is reset
    in the same step; its true last observation is `info["final_obs"]` `[G, K, D]` where
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
        """Make the games; without a `seed` one is drawn from the system's entropy
        (`np_random_seed`).

        Raises EnvError for a window of one bar, no game at all, orders that rest, or an
        option.
        """
        if num_games < 1:
            raise EnvError(f"num_games must be at least 1, got {num_games}")
        if settings is not None and settings.orders_rest:
            raise EnvError(
                "traders that share a market move its price, at which no order can rest; set"
                " env.action to target or trade"
            )
        if settings is not None and settings.option is not None:
            raise EnvError(
                "traders that share a market sell no options, whose value another's orders would"
                " move; leave out env.option"
            )
        self.traders = traders or TraderSettings()
        self.num_games = num_games
        self.num_traders = self.traders.num_traders
        # The traders of a game are a group of accounts, which start at the same bar.
        form = {
            "start_groups": num_games,
            "observation": "flat",
            "observation_dtype": "float32",
        }
        self.env = TradingEnv(
            market,
            (settings or EnvSettings()).model_copy(update=form),
            num_envs=num_games * self.num_traders,
            device=device,
            seed=seed,
            autoreset_mode=AutoresetMode.DISABLED,
            engine="torch",
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
        account = self.account
        action = self._check_action(actions)
        out = account.finished
        env = self.env
        acted, reward, ruined, truncated, _ = advance(
            env.view,
            account,
            action,
            env.settings,
            env.reward,
            record=False,
            move_prices=lambda orders, price: self._move(orders, price, out),
        )
        # A trader that is out keeps its books; only its clock runs on with the game's.
        after = select(out, account._replace(bar=acted.bar), acted)
        ruined = ruined & ~out
        reward = torch.where(out, 0.0, reward)
        gone = (out | ruined).view(self.num_games, -1)
        limit = (acted.bar >= acted.end_bar).view(self.num_games, -1).all(1)
        over = limit | gone.all(1)
        truncated = (limit.unsqueeze(1) & ~gone).flatten()
        after = after._replace(finished=gone.flatten())
        info = {"final_obs": self._games(env.observe_accounts(after)), "_final_obs": over}
        ended = over.repeat_interleave(self.num_traders)
        env.account = select(ended, env.begin_next(after), after)
        obs = self._games(env.observe_accounts(env.account))
        return obs, self._share(reward), self._games(ruined), self._games(truncated), info

    def _check_action(self, actions: Tensor) -> Tensor:
        """Move actions to the device, `[G * K, N]`, without NaN, which would stay in the books."""
        shape = (self.num_games, self.num_traders, self.layout.num_assets)
        if (
            not isinstance(actions, Tensor)
            or tuple(actions.shape) != shape
            or not actions.is_floating_point()
        ):
            raise EnvError(f"actions must be a floating-point tensor of shape {shape}")
        return check_finite(actions.flatten(0, 1).to(self.env.device))

    def _move(self, orders: Tensor, price: Tensor, out: Tensor) -> Tensor:
        """Move fill prices `[G * K, N]` by the net flow of each game's remaining traders."""
        price = price.double()
        flow = torch.where(out.unsqueeze(1), 0.0, orders * price)
        net = flow.view(self.num_games, self.num_traders, -1).sum(1)
        kappa = self.traders.impact_bps_per_million_usd / 1e4 / 1e6
        shift = torch.clamp(kappa * net, -self.traders.impact_limit, self.traders.impact_limit)
        return price * (1.0 + shift.repeat_interleave(self.num_traders, dim=0))

    def _share(self, reward: Tensor) -> Tensor:
        """Share rewards `[G, K]` float32 by cooperation c: (1 - c) own + c mean for c >= 0, own + c
        others for c < 0."""
        own = self._games(reward)
        c = self.traders.cooperation
        if c >= 0.0:
            shared = (1.0 - c) * own + c * own.mean(1, keepdim=True)
        else:
            others = (own.sum(1, keepdim=True) - own) / max(self.num_traders - 1, 1)
            shared = own + c * others
        return shared.float()

    def _games(self, value: Tensor) -> Tensor:
        """Take `[G * K, ...]` apart into `[G, K, ...]`."""
        return value.view(self.num_games, self.num_traders, *value.shape[1:])
