"""The planted market of `time_to_return.py`, a rule that knows its signal, and a judge of policies.

Stocks whose drift has a sign that lasts 200 minutes on average and is shown among noise: 30
sessions to train on, five that nobody trained on. Every policy is judged by the same code: one
account of a million dollars over these five.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

import numpy as np
from torch import Tensor

from benchmarks._learning import SESSION, OutOfTime
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.simulation import open_account, trade
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors
from tests.factories import planted_market

ASSETS = 10
TRAIN = 30
VALIDATION = 5
SHARES_OF_RULE = (0.10, 0.25, 0.50, 0.75)
MARKS = [round(0.02 * 1.3**k, 3) for k in range(38)]
"""Seconds of training at which a policy is judged."""
OURS = EnvSettings(episode_bars=390, fill="next_close", cost_bps=10, trade_rate=0.2)
"""Fills at the next close, 10 bps."""
Decide = Callable[[BacktestAccount], Tensor]


def windows(seed: int, assets: int = ASSETS) -> tuple[MarketTensors, MarketTensors]:
    """Training and validation."""
    cut = SESSION * TRAIN
    market = planted_market(cut + SESSION * VALIDATION, assets, seed=seed)
    return market.window(0, cut), market.window(cut, market.num_bars)


def log_return(decide: Decide, market: MarketTensors, settings: EnvSettings) -> float:
    """Log return of one account over the whole window."""
    equity = np.asarray(
        trade(decide, open_account(market, settings, "judged"), name="judged").equity
    )
    return math.log(equity[-1] / equity[0])


def rule(account: BacktestAccount) -> Tensor:
    """Equal weights of all that will rise, by the column that shows it."""
    rising = (account.market.features[account.bar, :, 0] > 0).float()
    return (rising / rising.sum().clamp_min(1)).unsqueeze(0)


def observe_with(policy: Callable[[Tensor], Tensor]) -> Decide:
    """Let a policy of observations decide for an account."""
    return lambda account: policy(account.observe())


class Referee:
    """Judges a policy at each mark of its clock; its own time does not count."""

    def __init__(
        self,
        market: MarketTensors,
        settings: EnvSettings,
        seconds: float,
        *,
        marks: list[float] | None = None,
        stop_at: float = SHARES_OF_RULE[-1],
    ) -> None:
        """`stop_at`: share of the rule's log return at which a training may end."""
        self.market = market
        self.settings = settings
        self.marks = [mark for mark in (MARKS if marks is None else marks) if mark < seconds] + [
            seconds
        ]
        self.enough = stop_at * log_return(rule, market, settings)
        self.curve: list[dict[str, float]] = []
        self.created = self.begun = time.process_time()

    @property
    def start_seconds(self) -> float:
        """Seconds before the clock started: loading or compiling code, and a throw-away update."""
        return round(self._started - self.created, 3)

    def start(self) -> None:
        """Set the clock to zero."""
        self._started = self.begun = time.process_time()

    def follow(self, update: Callable[[], int], decide: Callable[[], Decide]) -> None:
        """Start, and look after each update, which returns its env-steps, until time is up."""
        self.start()
        env_steps = 0
        with contextlib.suppress(OutOfTime):
            while True:
                env_steps += update()
                self.look(env_steps, decide)

    def look(self, env_steps: int, decide: Callable[[], Decide]) -> None:
        """Raises OutOfTime after the last mark or threshold. `decide` makes a fresh policy: some
        have a memory."""
        now = time.process_time()
        used = now - self.begun
        if used < self.marks[0]:
            return
        self.marks = [mark for mark in self.marks if mark > used]
        earned = log_return(decide(), self.market, self.settings)
        self.curve.append(
            {"seconds": round(used, 3), "env_steps": env_steps, "log_return": round(earned, 5)}
        )
        self.begun += time.process_time() - now
        if not self.marks or earned >= self.enough:
            raise OutOfTime


def seconds_to(level: float, curve: list[dict[str, float]]) -> float | None:
    """Seconds until the log return first passed; None: never."""
    return next((point["seconds"] for point in curve if point["log_return"] >= level), None)
