"""The training of an executor on the orders of a market.

The orders of a window become the sessions of a market of one symbol: an account begins a session
with the shares of an order, and has all its bars to sell them. Prices are multiples of the price at
the order's arrival, and a purchase is a sale at mirrored prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.agents import PPO, Budget, NetworkSettings, make_agent, train
from fintrader.agents.policy import ActorPolicy, add_seen
from fintrader.agents.settings import ActionHeadSettings
from fintrader.envs.observation import ResetReturn, StepReturn
from fintrader.envs.settings import EnvSettings, RandomiseSettings
from fintrader.envs.trading import TradingEnv
from fintrader.errors import ConfigError
from fintrader.execution.executor import FARTHEST_BPS, META, PRICES, Array, Form, size_part
from fintrader.market.tensors import MarketTensors

SHARES = 10_000.0
"""Shares of an order, in units of its own."""
PRICE = 100.0
"""Price at arrival."""
SIZE = 0.02
"""Size of an order as a share of its bars' volume."""
MOST_ORDERS = 20_000
TRADED = 0.9
"""Least share of bars with trades in an order's life."""


def train_executor(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    form: Form = "limit",
    env_steps: int = 6_000_000,
    num_envs: int = 2048,
    seed: int = 0,
) -> ActorPolicy:
    """Train an executor by PPO on the orders of a window of bars, from `draw_orders`.

    settings: costs, `participation` and `limit_margin_bps` of orders, and their bars
    (`env.execution.bars`); spreads of several symbols are averaged, and all else is set here. form: `market` decides the sizes of parts that fill at the next open,
    `limit` also their prices. Returns a policy to be stored by `save_policy`, for
    `env.execution.policy`.

    Raises ConfigError without `settings.execution`, and for a window without orders.
    """
    if settings.execution is None:
        raise ConfigError("set env.execution.bars: the bars in which an order is worked")
    bars = settings.execution.bars
    num_envs += num_envs % 2  # two accounts work each order
    spread = settings.half_spread_bps
    if isinstance(spread, Mapping):
        spread = float(np.mean([*spread.values()]))
    kind = LimitExecutorEnv if form == "limit" else ExecutorEnv
    env = kind(
        draw_orders(market, bars, seed=seed),
        settings.model_copy(
            update={
                "action": "limit",
                "fractional": True,
                "decision_interval": 1,
                "execution": None,
                "turbulence": {},
                "initial_cash_usd": 1.0,
                "initial_shares": SHARES,
                "close_at_end": True,
                "start": "session",
                "start_groups": num_envs // 2,
                "randomise": RandomiseSettings(),
                "lookback": 1,
                "dead_band": None,
                "trade_rate": 1.0,
                "half_spread_bps": spread,
                "traders": None,
                "limit_offset_bps": FARTHEST_BPS,
                "benchmark": "cash",
                "reward": "profit",
                "reward_scale": 1e3,
                "min_commission_usd": 0.0,
            }
        ),
        num_envs=num_envs,
        seed=seed,
    )
    agent = make_agent(
        PPO(
            head=ActionHeadSettings(kind="direct"),
            network=NetworkSettings(kind="mlp"),
            num_steps=bars,  # an order's life, so that each update has whole lives
            num_minibatches=4,
            learning_rate=1e-2,
            anneal=True,
            gamma=1.0,
            gae_lambda=1.0,
            bootstrap="running",
            noise=0.3,
        ),
        env.layout,
        seed=seed,
    )
    train(agent, env, Budget(env_steps=env_steps))
    policy = agent.policy
    policy.meta[META] = {"form": form, "bars": bars, "features": list(market.feature_names)}
    add_seen(policy.meta, [market.span.to_json()])
    return policy


class ExecutorEnv(TradingEnv):
    """`TradingEnv` with an executor's actions `[B, 2]`: the size of the next part, and its price.

    Observations show the share of the order that is left (`holdings`) and the features; all other
    columns of the account are 0. The price changes of the shares that equal parts would hold are
    taken off the rewards: no action changes them, and they are most of the rewards' variance.
    """

    form: Form = "market"

    def reset(self, *arguments: Any, **named: Any) -> ResetReturn:
        obs, info = super().reset(*arguments, **named)
        return self._hide(obs), info

    def step(self, actions: Any) -> StepReturn:
        account = self.account
        close = self.market.close[:, 0].double()
        after = (account.bar + 1).clamp(max=len(close) - 1)
        ahead = (account.end_bar - account.bar - 1).clamp_min(0)
        even = ahead / (account.end_bar - account.start_bar)
        common = even * (close[after] - close[account.bar]) / PRICE
        obs, reward, *ends, info = super().step(self._place(actions))
        reward = reward - (common * self.settings.reward_scale).to(reward.dtype)
        info["final_obs"] = self._hide(info["final_obs"])
        return self._hide(obs), reward, *ends, info

    def _hide(self, obs: Any) -> Any:
        """Set the columns of the account to 0, but for the holdings."""
        private = (
            obs["private"] if isinstance(obs, Mapping) else obs[:, : self.layout.private_width]
        )
        private[:, : self.layout.account_width] = 0.0
        private[:, self.layout.account_width + 1 :] = 0.0
        return obs

    def _place(self, actions: Tensor) -> Tensor:
        """Turn actions into target weights and limit prices."""
        account = self.account
        held = account.shares[:, 0]
        bars_left = (account.end_bar - account.bar).clamp_min(1)
        bars = account.end_bar - account.start_bar
        sold = SHARES * size_part(actions[:, 0].double(), held / SHARES, bars_left, bars)
        worth = (held - sold).clamp_min(0.0) * self.market.close[account.bar, 0].double()
        first, step = PRICES[self.form]
        price = (first + step * actions[:, 1]) / FARTHEST_BPS
        return torch.stack([(worth / account.equity).float(), price], dim=1)


class LimitExecutorEnv(ExecutorEnv):
    """`ExecutorEnv` whose orders may rest."""

    form = "limit"


def draw_orders(market: MarketTensors, bars: int, *, seed: int = 0) -> MarketTensors:
    """Lay out orders of a window as sessions of a market of one symbol, each once as a sale and
    once as a purchase: as many as fit one after the other in the window's sessions, at most
    `MOST_ORDERS`.

    Each row has the symbol's features, then the order's sign and the share of its bars still ahead.
    Raises ConfigError for a window without such orders.
    """
    session = market.session.numpy()
    first = market.session_starts
    length = np.diff(np.append(first, len(session)))
    random = np.random.default_rng(seed)
    starts = [
        start + random.integers(0, (count - 1) % bars + 1) + bars * np.arange((count - 1) // bars)
        for start, count in zip(first, length, strict=True)
    ]
    at = np.concatenate(starts)
    at = at[at + bars < len(session)]
    at = at[session[at] == session[at + bars]]
    lives = at[:, None] + np.arange(bars + 1)
    close = market.close.numpy()
    traded = market.tradable.numpy()
    good = np.stack(
        [
            np.isfinite(close[lives, n]).all(1) & (traded[lives, n].mean(1) >= TRADED)
            for n in range(market.num_assets)
        ],
        axis=1,
    )
    which, asset = np.nonzero(good)
    if len(which) == 0:
        raise ConfigError(
            f"no order of {bars} bars fits into a session with a price at each bar and trades in"
            f" {TRADED:.0%} of them; lower env.execution.bars, or take a more liquid window"
        )
    if len(which) > MOST_ORDERS:
        chosen = np.sort(random.choice(len(which), MOST_ORDERS, replace=False))
        which = which[chosen]
        asset = asset[chosen]
    rows = lives[which]
    return _lay_out(market, rows, np.broadcast_to(asset[:, None], rows.shape))


def _lay_out(
    market: MarketTensors, rows: NDArray[np.int64], assets: NDArray[np.int64]
) -> MarketTensors:
    """Lay out the bars `[K, H + 1]` of symbols as sales, then as purchases."""

    def take(name: str) -> Array:
        taken: Array = getattr(market, name).numpy()[rows, assets].astype(np.float64)
        return taken

    unit = PRICE / take("close")[:, :1]
    opened, high, low, close = (take(name) * unit for name in ("open", "high", "low", "close"))
    mirrored = (2 * PRICE - opened, 2 * PRICE - low, 2 * PRICE - high, 2 * PRICE - close)
    bars = rows.shape[1] - 1
    volume = take("volume")
    volume *= SHARES / (SIZE * np.maximum(volume[:, 1:].sum(1, keepdims=True), 1.0))
    ahead = np.broadcast_to(1.0 - np.arange(bars + 1) / bars, rows.shape)
    features = market.features.numpy()[rows, assets]
    sides = []
    for sign, side in ((-1.0, (opened, high, low, close)), (1.0, mirrored)):
        own = np.stack((np.full(rows.shape, sign), ahead), axis=-1)
        sides.append((*side, np.concatenate((features, own), axis=-1)))
    *whole, shown = (np.concatenate(parts) for parts in zip(*sides, strict=True))
    count = whole[0].size
    number = torch.arange(count)

    def column(values: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).reshape(-1, 1)

    volumes = column(np.tile(volume, (2, 1)))
    first, highest, lowest, last = map(column, whole)
    return MarketTensors(
        open=first,
        high=highest,
        low=lowest,
        close=last,
        volume=volumes,
        features=torch.from_numpy(shown.astype(np.float32)).reshape(count, 1, -1),
        context=torch.zeros(count, 0),
        tradable=volumes > 0,
        member=torch.ones(count, 1, dtype=torch.bool),
        session=number // (bars + 1),
        minutes=number * 60_000_000_000,
        benchmark=torch.ones(count, dtype=torch.float64),
        symbols=("ORDER",),
        feature_names=(*market.feature_names, "sign", "ahead"),
        trusted=True,
    )
