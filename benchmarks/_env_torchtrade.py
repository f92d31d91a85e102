"""TorchTrade's `VectorizedPortfolioTradingEnv` for `benchmarks/env.py`, rebuilt from its published
contract.

The class is in TorchTrade's repository and in no release: the wheel of the only one on PyPI, 0.1.0,
has environments of single assets alone. Its contract:

- an action is target weights, cash first, normalised to a sum of 1; an asset that does not trade
  keeps its holding;
- orders fill at the close of bar n, and the portfolio is valued at the close of bar n + 1;
- a trade costs `fee` of its notional: the value after it is the mu that solves mu = 1 - fee * sum
  |w' - mu w|, found by as many rounds of the fixed point as double precision has digits;
- an observation is the drifted weights, which assets trade, a window of close, high and low over
  the newest close, and the bar; the reward is the log return; money is float64.

`PortfolioEnv` computes that as it is written: windows are cut and normalised in each step, the
fixed point goes over weights, every step takes fresh memory. It does less than the original, and is
faster: no torchrl and no TensorDict around it, no shorts, funding or delisting, and the accounts
that finished begin again in the same step, as ours do, where torchrl observes all accounts once
more. `TunedPortfolioEnv` is as fast as we could make it in eager torch: windows normalised once, a
fixed point of two operations on matrices a round, two observations written in turn.

`tests/envs/test_benchmark_peers.py` holds both to the contract, `equity_difference` the first to
ours.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

WINDOW = 3
"""Bars of a window: 9 numbers an asset."""
MOST_ROUNDS = 20
Observation = dict[str, Tensor]


def identify_bars(market: MarketTensors) -> Tensor:
    """`[T, N, 4]` float32: close, high and low, and 1 where the asset is listed."""
    high = torch.maximum(market.open, market.close)
    low = torch.minimum(market.open, market.close)
    return torch.stack((market.close, high, low, torch.ones_like(high)), 2)


def cut(bars: Tensor, bar: Tensor) -> Tensor:
    """`[B, N, WINDOW, 3]`: close, high, low of the newest bars over the newest close, oldest
    first."""
    window = bars[(bar.unsqueeze(1) + torch.arange(1 - WINDOW, 1)).clamp(min=0)]  # [B, W, N, 4]
    scaled = window[..., :3] / window[:, -1:, :, :1] * window[..., 3:]
    return scaled.transpose(1, 2).contiguous()


def windowed(market: MarketTensors) -> MarketTensors:
    """The market with these windows as its features, so that ours observes the same numbers."""
    features = cut(identify_bars(market), torch.arange(market.num_bars)).flatten(2)
    names = tuple(f"w{n}" for n in range(features.shape[2]))
    return replace(market, features=features, feature_names=names)


class PortfolioEnv:
    """B accounts that rebalance to target weights."""

    def __init__(
        self,
        market: MarketTensors,
        accounts: int,
        *,
        fee: float,
        episode: int | None,
        random_start: bool = True,
    ) -> None:
        """`episode` bars end an account's episode, none: the market's end."""
        self._close = market.close.double()
        self._last = market.num_bars - 1
        self._tradable = market.tradable
        self._bars = identify_bars(market)
        self._accounts = accounts
        self._fee = fee
        self._episode = episode
        self._random_start = random_start
        self._rounds = (
            0 if fee == 0 else min(MOST_ROUNDS, math.ceil(math.log(1e-15) / math.log(fee)))
        )
        self.value, self._first = (torch.empty(accounts, dtype=torch.float64) for _ in range(2))
        self.weights = torch.zeros(accounts, 1 + market.num_assets, dtype=torch.float64)
        self._bar, self._start, self._end = (
            torch.zeros(accounts, dtype=torch.int64) for _ in range(3)
        )

    def reset(self, seed: int = 0) -> Observation:
        """Every account begins with cash."""
        torch.manual_seed(seed)
        self._begin(torch.arange(self._accounts))
        return self._observe()

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, Observation]:
        """Action `[B, 1 + N]`; observation, reward, terminated, truncated `[B]`, and what the
        finished saw last.

        Raises ValueError for an action that is not finite.
        """
        if not bool(action.isfinite().all()):
            raise ValueError("the action contains NaN or infinity")
        before = self.value
        bar = self._bar
        self._rebalance(action.double().clamp_(min=0.0))
        self._bar = bar + 1
        terminated = (self.value < 0.1 * self._first) | (self.value <= 0)
        truncated = self._bar >= self._end
        reward = (self.value / before).log().float()
        seen = self._observe()
        last = {}
        done = (terminated | truncated).nonzero().squeeze(1)
        if len(done):
            last = {name: part[done] for name, part in seen.items()}
            self._begin(done)
            bars = self._bar[done]
            seen["weights"][done] = self.weights[done].float()
            seen["start"][done] = seen["bar"][done] = bars
            seen["tradable"][done], seen["window"][done] = self._read_rows(bars)
        return seen, reward, terminated, truncated, last

    def _begin(self, who: Tensor, cash: float = 1e6) -> None:
        length = self._last if self._episode is None else min(self._episode, self._last)
        starts = self._last if self._episode is None else self._last - length + 1
        self._start[who] = torch.randint(starts, (len(who),)) if self._random_start else 0
        self._bar[who] = self._start[who]
        self._end[who] = (self._start[who] + length).clamp(max=self._last)
        self.value[who] = self._first[who] = cash
        self.weights[who] = 0.0
        self.weights[who, 0] = 1.0

    def _rebalance(self, wish: Tensor) -> None:
        """Trade at the close of the bar, mark at the next one's."""
        bar = self._bar
        held = self.weights[:, 1:]
        total = wish.sum(1, keepdim=True)
        wish = wish / torch.where(total > 0, total, 1.0)
        trades = self._tradable[bar]
        share = torch.where(trades, wish[:, 1:], 0.0)
        mass = (1.0 - wish[:, 1:].sum(1)) + share.sum(1)
        share = share / torch.where(mass > 0, mass, 1.0).unsqueeze(1)

        def target(left: Tensor) -> Tensor:
            frozen = torch.where(trades, 0.0, held / left)
            return frozen + share * (1.0 - frozen.sum(1, keepdim=True)).clamp(min=0.0)

        left = torch.ones(len(bar), 1, dtype=torch.float64)
        for _ in range(self._rounds):
            left = 1.0 - self._fee * (target(left) * left - held).abs().sum(1, keepdim=True)
        weights = target(left)
        move = self._close[bar + 1] / self._close[bar]
        growth = 1.0 + (weights * (move - 1.0)).sum(1, keepdim=True)
        drifted = weights * move / growth
        self.value = self.value * (left * growth).squeeze(1)
        self.weights = torch.cat((1.0 - drifted.sum(1, keepdim=True), drifted), 1)

    def _read_rows(self, bar: Tensor) -> tuple[Tensor, Tensor]:
        """What is tradable at these bars, and the windows that end there."""
        return self._tradable[bar].float(), cut(self._bars, bar)

    def _read_all(self) -> tuple[Tensor, Tensor]:
        return self._read_rows(self._bar)

    def _observe(self) -> Observation:
        tradable, window = self._read_all()
        return {
            "weights": self.weights.float(),
            "tradable": tradable,
            "window": window,
            "start": self._start.clone(),
            "bar": self._bar.clone(),
        }


class TunedPortfolioEnv(PortfolioEnv):
    """The same with less work; an observation is overwritten by the step after the next."""

    def __init__(self, market: MarketTensors, accounts: int, **options: Any) -> None:
        """As `PortfolioEnv`."""
        super().__init__(market, accounts, **options)
        move = self._close[1:] / self._close[:-1]
        self._move = torch.cat((move, torch.ones_like(move[:1])))
        self._open = market.tradable.double()
        self._shown = market.tradable.float()
        self._table = cut(self._bars, torch.arange(market.num_bars))
        shapes = (accounts, market.num_assets), (accounts, *self._table.shape[1:])
        self._buffers = [tuple(torch.empty(shape) for shape in shapes) for _ in range(2)]

    def _rebalance(self, wish: Tensor) -> None:
        bar = self._bar
        held = self.weights[:, 1:]
        wish /= wish.sum(1, keepdim=True).clamp_(min=1e-300)
        trades = self._open.index_select(0, bar)
        cash = 1.0 - wish[:, 1:].sum(1)
        share = wish[:, 1:].mul_(trades)
        mass = cash + share.sum(1)
        share /= torch.where(mass > 0, mass, 1.0).unsqueeze(1)
        movable = held * trades
        frozen = held - movable
        kept = frozen.sum(
            1
        )  # keeps its notional, so that only what is left of the value less this is handed out
        left = torch.ones_like(mass)
        for _ in range(self._rounds):
            budget = (left - kept).clamp_(min=0.0).neg_().unsqueeze(1)
            left = 1.0 - self._fee * torch.linalg.vector_norm(
                torch.addcmul(movable, share, budget), ord=1, dim=1
            )
        notional = torch.addcmul(frozen, share, (left - kept).clamp_(min=0.0).unsqueeze(1))
        cash = left - notional.sum(1)
        notional *= self._move.index_select(0, bar)
        growth = cash + notional.sum(1)
        self.value = self.value * growth
        self.weights = torch.empty_like(self.weights)
        torch.div(notional, growth.unsqueeze(1), out=self.weights[:, 1:])
        torch.div(cash, growth, out=self.weights[:, 0])

    def _read_rows(self, bar: Tensor) -> tuple[Tensor, Tensor]:
        return self._shown[bar], self._table[bar]

    def _read_all(self) -> tuple[Tensor, Tensor]:
        self._buffers.reverse()
        tradable, window = self._buffers[0]
        torch.index_select(self._shown, 0, self._bar, out=tradable)
        torch.index_select(self._table, 0, self._bar, out=window)
        return tradable, window


def settings_like_torchtrade(fee: float, **changes: Any) -> EnvSettings:
    """Ours under the same contract."""
    return EnvSettings(fractional=True, fill="close", cost_bps=fee * 1e4, **changes)


def equity_difference(market: MarketTensors, accounts: int = 8, decisions: int = 200) -> float:
    """Largest relative difference between our equity and that of the rebuilt environment, same
    actions and no costs.

    With costs the two differ by contract: ours pays them from the cash that buys, theirs scales
    every target.
    """
    settings = settings_like_torchtrade(0.0, start="first")
    ours = TradingEnv(market, settings, num_envs=accounts)
    theirs = PortfolioEnv(market, accounts, fee=0.0, episode=None, random_start=False)
    ours.reset(seed=0)
    theirs.reset()
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(decisions):
        action = torch.rand(accounts, market.num_assets, generator=generator) * 2 - 1
        ours.step(action)
        theirs.step(cash_first(action))
        worst = max(worst, float((ours.equity / theirs.value - 1.0).abs().max()))
    return worst


def cash_first(action: Tensor) -> Tensor:
    """Our action `[B, N]` as theirs: weights of at most 1 in all, the rest in cash."""
    weights = action.clamp(min=0.0)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
    return torch.cat((1.0 - weights.sum(1, keepdim=True), weights), 1)
