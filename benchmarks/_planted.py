"""The planted market of `time_to_return.py`, the rule that is told its signal, and who judges
policies on it.

Stocks whose drift has a sign that lasts 200 minutes on average and is shown among noise: 30
sessions to train on, five that nobody trained on. Every policy is judged by the same code: one
account of a million dollars over these five.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.simulation import open_account, trade
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors

ASSETS = 10
SESSION = 390
TRAIN = 30
VALIDATION = 5
DRIFT = 2e-4
VOLATILITY = 8e-4
REGIME = 200
NOISE_FEATURES = 2
MINUTE_NS = 60_000_000_000
SHARES_OF_RULE = (0.10, 0.25, 0.50, 0.75)
MARKS = [round(0.02 * 1.3**k, 3) for k in range(38)]
"""Seconds of training at which a policy is judged."""
OURS = EnvSettings(episode_bars=390, fill="next_close", cost_bps=10, trade_rate=0.2)
"""The rules for everyone but FinRL's: fills at the next close, 10 bps."""
Decide = Callable[[BacktestAccount], Tensor]


def planted_market(seed: int, assets: int = ASSETS) -> MarketTensors:
    """Row t's first feature is the sign of the drift from bar t to bar t + 1; the others are
    noise."""
    rng = np.random.default_rng(seed)
    bars = SESSION * (TRAIN + VALIDATION)
    flips = rng.random((bars + 1, assets)) < 1.0 / REGIME
    sign = rng.choice([-1.0, 1.0], size=assets) * np.where(
        np.cumsum(flips, axis=0) % 2 == 0, 1.0, -1.0
    )
    own = rng.normal(0, 0.8, (bars, assets))
    common = rng.normal(0, 0.6, (bars, 1))
    close = 100 * np.exp(np.cumsum(DRIFT * sign[:-1] + VOLATILITY * (own + common), axis=0))
    features = np.concatenate(
        [sign[1:, :, None], rng.normal(size=(bars, assets, NOISE_FEATURES))], axis=2
    )
    ones = torch.ones(bars, assets, dtype=torch.bool)
    session = torch.arange(bars) // SESSION
    prices = torch.tensor(close, dtype=torch.float32)
    return MarketTensors(
        open=prices,
        close=prices,
        volume=torch.full_like(prices, 1e9),
        features=torch.tensor(features, dtype=torch.float32),
        context=torch.zeros(bars, 0),
        tradable=ones,
        member=ones,
        session=session,
        minutes=MINUTE_NS * (session * 1440 + torch.arange(bars) % SESSION),
        benchmark=torch.tensor(close.mean(axis=1)),
        symbols=tuple(f"P{n}" for n in range(assets)),
        feature_names=("signal", *(f"noise{k}" for k in range(NOISE_FEATURES))),
        context_names=(),
    )


def windows(seed: int, assets: int = ASSETS) -> tuple[MarketTensors, MarketTensors]:
    """Training and validation."""
    market = planted_market(seed, assets)
    cut = SESSION * TRAIN
    return market.window(0, cut), market.window(cut, market.num_bars)


def log_return(decide: Decide, market: MarketTensors, settings: EnvSettings) -> float:
    """Of one account over the whole window."""
    equity = np.asarray(
        trade(decide, open_account(market, settings, "judged"), name="judged").equity
    )
    return math.log(equity[-1] / equity[0])


def rule(account: BacktestAccount) -> Tensor:
    """Equal weights of what will rise, for one who knows which column tells."""
    rising = (account.market.features[account.bar, :, 0] > 0).float()
    return (rising / rising.sum().clamp_min(1)).unsqueeze(0)


class OutOfTime(Exception):
    """The seconds are used up, or the last threshold is passed."""


class Referee:
    """Judges a policy at each mark of its clock; its own time does not count."""

    def __init__(
        self,
        market: MarketTensors,
        settings: EnvSettings,
        seconds: float,
        *,
        clock: Callable[[], float] = time.process_time,
        marks: list[float] | None = None,
        stop_at: float = SHARES_OF_RULE[-1],
    ) -> None:
        """`stop_at`: share of the rule's log return at which a training may end."""
        self.market = market
        self.settings = settings
        self.clock = clock
        self.marks = [mark for mark in (MARKS if marks is None else marks) if mark < seconds] + [
            seconds
        ]
        self.enough = stop_at * log_return(rule, market, settings)
        self.curve: list[dict[str, float]] = []
        self.begun = clock()

    def start(self) -> None:
        """Set the clock to zero."""
        self.begun = self.clock()

    def look(self, env_steps: int, decide: Callable[[], Decide]) -> None:
        """Raises OutOfTime after the last mark or threshold. `decide` makes a fresh policy: some
        have a memory."""
        now = self.clock()
        used = now - self.begun
        if used < self.marks[0]:
            return
        self.marks = [mark for mark in self.marks if mark > used]
        earned = log_return(decide(), self.market, self.settings)
        self.curve.append(
            {"seconds": round(used, 3), "env_steps": env_steps, "log_return": round(earned, 5)}
        )
        self.begun += self.clock() - now
        if not self.marks or earned >= self.enough:
            raise OutOfTime


def seconds_to(level: float, curve: list[dict[str, float]]) -> float | None:
    """When the log return first passed; None: never."""
    return next((point["seconds"] for point in curve if point["log_return"] >= level), None)
