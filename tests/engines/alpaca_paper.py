"""A deployment on a paper account of this machine: alpaca-py, a loopback server, bars bar by bar.

Each call of `trade` is a life of its own, which goes on from the journal as another process would.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fintrader.agents.policy import PolicyModule
from fintrader.deploy.alpaca import AlpacaBroker, RequestLimits
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.journal import Journal
from fintrader.deploy.runner import Runner
from fintrader.market.tensors import MarketTensors
from tests.engines.alpaca_loopback import LoopbackAlpaca
from tests.engines.deployments import MINUTE, LiveClock, live_runner


class Killed(BaseException):
    """Stands for SIGKILL inside a process: nothing below catches it."""


class SteppedClock(LiveClock):
    """Looks up every minute on its way, and calls `at_minute` with the moment before each look."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.at_minute: Callable[[int], object] = lambda now: None

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        while self._now < moment and not look():
            self._now = min(self._now + MINUTE, moment)
            self.at_minute(self._now)


class Timeless(AlpacaBroker):
    """A broker whose server lives in another year than the bars, and whose minutes pass faster."""

    def time(self) -> int | None:
        return None


class ConstantPolicy(PolicyModule):
    """The same action for every symbol at every bar."""

    def __init__(self, like: PolicyModule, action: float) -> None:
        super().__init__()
        self.layout = like.layout
        self.meta = like.meta
        self.action = action

    def forward(self, obs: Tensor) -> Tensor:
        return torch.full((len(obs), self.layout.num_assets), self.action)


def account(market: MarketTensors, **how: Any) -> LoopbackAlpaca:
    """A server with a million dollars, at the prices of the window's first bar."""
    prices = dict(zip(market.symbols, market.close[0].tolist(), strict=True))
    return LoopbackAlpaca(cash=1e6, prices=prices, **how)


def trade(
    home: Path,
    bundle: Bundle,
    market: MarketTensors,
    server: LoopbackAlpaca,
    bars: int,
    *,
    begin: int = 0,
    change: Callable[[Runner], object] = lambda runner: None,
    **chosen: Any,
) -> Journal:
    """Run the deployment up to a bar of the window, its first life from `begin` on; `change` gets
    the runner before it begins."""
    journal = Journal(home / JOURNAL, durable=False)
    tail = journal.tail(1)
    clock = SteppedClock(tail[0].time if tail else int(market.minutes[begin]))
    broker = Timeless(
        server.endpoint,
        fractional=bundle.env.fractional,
        limits=RequestLimits(per_minute=1_000_000, sleep=lambda seconds: None),
    )
    runner = live_runner(bundle, market, bars, clock, broker, journal, **chosen)
    change(runner)
    try:
        runner.run()
    except BaseException:
        journal.close()
        raise
    return journal
