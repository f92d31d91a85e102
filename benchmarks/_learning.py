"""What the benchmarks of learning share: markets of plain prices, markets of formulas, and training
against a clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fintrader.agents import Budget, TrainProgress, train
from fintrader.config import read_yaml
from fintrader.envs.observation import ObservationLayout
from fintrader.market.tensors import MarketTensors
from tests.factories import market_of

SESSION = 390
AGENTS = {
    benchmark: {name: values for name, values in agents.items() if not name.startswith(".")}
    for benchmark, agents in read_yaml(Path(__file__).with_name("agents.yaml")).items()
}
"""Benchmark -> algorithm -> settings."""
Step = tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]


def make_plain_market(
    close: np.ndarray, features: np.ndarray, *, context: int = 0
) -> MarketTensors:
    """A market of closes `[T, N]` and features `[T, N, F]`: every asset trades in every bar, which
    opens where it closes. `context` columns are zero."""
    nothing = np.zeros((len(close), context))
    return market_of(close, SESSION, features=features, context=nothing)


def make_random_market(
    bars: int, assets: int, features: int, *, seed: int, volatility: float = 1e-3, context: int = 0
) -> MarketTensors:
    """Random walks of stocks from 50 USD, with features of noise."""
    draw = torch.Generator().manual_seed(seed)
    moves = volatility * torch.randn(bars, assets, generator=draw, dtype=torch.float64)
    shown = torch.randn(bars, assets, features, generator=draw).double()
    close = 50.0 * torch.exp(moves.cumsum(0))
    return make_plain_market(close.numpy(), shown.numpy(), context=context)


def make_network(width: int, actions: int) -> nn.Sequential:
    """A 128-128 tanh network that decides."""
    return nn.Sequential(
        nn.Linear(width, 128),
        nn.Tanh(),
        nn.Linear(128, 128),
        nn.Tanh(),
        nn.Linear(128, actions),
        nn.Tanh(),
    )


class FormulaMarket:
    """B accounts in a market of formulas, whose best policy is known. Differentiable in the
    action; episodes do not end by themselves."""

    differentiable = True
    parts: tuple[str, ...] = ()
    """Names of the tensors `[B, N]` that are its state."""

    def __init__(self, num_envs: int, num_assets: int, seed: int) -> None:
        self.num_envs = num_envs
        self.num_assets = num_assets
        self.layout = ObservationLayout(num_assets, 1, 0, account_width=0)
        self.generator = torch.Generator().manual_seed(seed)
        self.never = torch.zeros(num_envs, dtype=torch.bool)
        for name in self.parts:
            setattr(self, name, torch.zeros(num_envs, num_assets))

    def draw(self) -> Tensor:
        """Standard normal `[B, N]`."""
        return torch.randn(self.num_envs, self.num_assets, generator=self.generator)

    def observe(self) -> Tensor:
        raise NotImplementedError

    def begin(self) -> None:
        """Put every account at its start."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Begin anew, with random numbers of that seed if it is given."""
        if seed is not None:
            self.generator.manual_seed(seed % (1 << 62))
        self.begin()
        return self.observe(), {}

    def state_dict(self) -> dict[str, Tensor]:
        """State for the training loop."""
        known = {name: getattr(self, name) for name in self.parts}
        return {**known, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up a stored state."""
        for name in self.parts:
            setattr(self, name, state[name])
        self.generator.set_state(state["generator"])


class OutOfTime(Exception):
    """The seconds are used up, or there is nothing left to learn."""


def train_by_clock(
    agent: Any,
    env: Any,
    marks: Sequence[float],
    judge: Callable[[float, float, int], None],
    *,
    anneal: bool = True,
) -> None:
    """Train until the last mark of this process's CPU seconds, and at each mark call `judge` with
    the mark, the seconds used and the env-steps; the clock stands still meanwhile.

    With `anneal` step sizes fall to zero over these seconds.
    """
    left = list(marks)
    begun = time.process_time()

    def look(progress: TrainProgress) -> None:
        nonlocal begun
        used = time.process_time() - begun
        if anneal:
            agent.anneal(min(used / marks[-1], 1.0))
        if used < left[0]:
            return
        before = time.process_time()
        judge(left.pop(0), used, progress.env_steps)
        begun += time.process_time() - before
        if not left:
            raise OutOfTime

    with contextlib.suppress(OutOfTime):
        train(agent, env, Budget(seconds=100 * marks[-1]), on_progress=look)
