"""Several traders in one market: their orders meet in one temporary price impact.

In every game K traders stand at the same bar. Their wanted orders are added up per symbol; the net
flow q (USD, bought less sold) moves the price that all of them fill at,

    p' = p (1 + clamp(kappa q, -limit, +limit))

and the move is gone by the close, where accounts are marked at the market's price. Traders on the
side of the flow pay for it, traders on the other side are paid.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.envs.account import Account, advance
from fintrader.envs.benchmark import shows_benchmark
from fintrader.envs.episodes import account_keys, begin, observe, select
from fintrader.envs.market_view import build_market_view
from fintrader.envs.observation import ObservationLayout, ResetReturn, StepReturn
from fintrader.envs.reward import make_reward
from fintrader.envs.settings import EnvSettings, TraderSettings
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import draw_seed


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

        Raises EnvError for a window of one bar or no game at all.
        """
        if num_games < 1:
            raise EnvError(f"num_games must be at least 1, got {num_games}")
        self.settings = settings or EnvSettings()
        self.traders = traders or TraderSettings()
        self.num_games = num_games
        self.num_traders = self.traders.num_traders
        self.market = market if device is None else market.to(device)
        self.device = self.market.device
        self._on_host = self.device.type == "cpu"
        shown = shows_benchmark(market, self.settings)
        self.layout = ObservationLayout.of(market, self.settings.lookback, benchmark=shown)
        self._view = build_market_view(self.market, self.settings)
        self._reward = make_reward(self.settings)
        self.np_random_seed = draw_seed() if seed is None else seed
        self._key = self._keys(self.np_random_seed)
        self._account: Account | None = None

    @property
    def account(self) -> Account:
        """The `G * K` accounts, game by game. Raises EnvError before the first reset."""
        if self._account is None:
            raise EnvError("call reset() first: there are no accounts yet")
        return self._account

    def reset(self, *, seed: int | None = None) -> ResetReturn:
        """Begin all games: obs `[G, K, D]`.

        A seed restarts their random streams; without one the streams go on.
        """
        if seed is not None:
            self.np_random_seed = seed
            self._key = self._keys(seed)
        episode = (
            torch.zeros_like(self._key)
            if self._account is None or seed is not None
            else self._account.episode
        )
        self._account = self._begin(episode)
        return self._observe(self._account), {}

    def step(self, actions: Tensor) -> StepReturn:
        """Carry out one decision of every trader: obs `[G, K, D]`, reward, terminated, truncated
        `[G, K]`, info.

        Raises EnvError, changing nothing, for actions of the wrong shape or with NaN. On CUDA,
        where a check would wait for the device, a NaN counts as 0.
        """
        account = self.account
        action = self._check_action(actions)
        out = account.finished
        acted, reward, ruined, truncated, _ = advance(
            self._view,
            account,
            action,
            self.settings,
            self._reward,
            record=False,
            move_prices=lambda orders, price: self._move(orders, price, out),
        )
        # A trader that is out keeps its books; only its clock runs on with the game's.
        after = select(out, account._replace(bar=acted.bar), acted)
        ruined = ruined & ~out
        reward = torch.where(out, torch.zeros_like(reward), reward)
        gone = (out | ruined).view(self.num_games, -1)
        limit = (acted.bar >= acted.end_bar).view(self.num_games, -1).all(1)
        over = limit | gone.all(1)
        truncated = (limit.unsqueeze(1) & ~gone).flatten()
        after = after._replace(finished=gone.flatten())
        obs = self._observe(after)
        ended = over.repeat_interleave(self.num_traders)
        after = select(ended, self._begin(after.episode), after)
        self._account = after
        ends = (self._games(ruined), self._games(truncated))
        info = {"final_obs": obs, "_final_obs": over}
        return self._observe(after), self._share(reward), *ends, info

    def _check_action(self, actions: Tensor) -> Tensor:
        """Move actions to the device, `[G * K, N]`, without NaN, which would stay in the books."""
        shape = (self.num_games, self.num_traders, self.layout.num_assets)
        if (
            not isinstance(actions, Tensor)
            or tuple(actions.shape) != shape
            or not actions.is_floating_point()
        ):
            raise EnvError(f"actions must be a floating-point tensor of shape {shape}")
        action = actions.flatten(0, 1).to(self.device)
        if not self._on_host:
            return torch.nan_to_num(action, nan=0.0)
        if not bool(action.isfinite().all()):
            raise EnvError("actions contain NaN or infinity; check the policy's output")
        return action

    def _keys(self, seed: int) -> Tensor:
        """Make one random stream for each game, whose traders start at the same bar."""
        return account_keys(seed, self.num_games, self.device).repeat_interleave(self.num_traders)

    def _begin(self, episode: Tensor) -> Account:
        count = self.num_games * self.num_traders
        cash = torch.full(
            (count,), self.settings.initial_cash_usd, dtype=torch.float64, device=self.device
        )
        shares = torch.zeros(
            (count, self.layout.num_assets), dtype=torch.float64, device=self.device
        )
        length = torch.full_like(self._key, self.settings.episode_bars or 0)
        return begin(self._view, self._key, episode, cash, shares, length, self.settings)

    def _move(self, orders: Tensor, price: Tensor, out: Tensor) -> Tensor:
        """Move fill prices `[G * K, N]` by the net flow of each game's remaining traders."""
        price = price.to(torch.float64)
        flow = torch.where(out.unsqueeze(1), torch.zeros_like(price), orders * price)
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
        return shared.to(torch.float32)

    def _games(self, value: Tensor) -> Tensor:
        return value.view(self.num_games, self.num_traders)

    def _observe(self, account: Account) -> Tensor:
        return observe(self._view, account, torch.float32).view(
            self.num_games, self.num_traders, -1
        )
