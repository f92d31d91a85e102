"""Any policy over any window, one account, float64, by the environment's own ledger.

result = simulate(load_policy(path), market.split().test, settings, name="ensemble")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fintrader.backtest.desk import Desk, make_desk
from fintrader.backtest.result import BacktestResult
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, Policy
from fintrader.errors import BacktestError
from fintrader.progress import SILENT, Progress

Decide = Callable[[Desk], Tensor | None]
"""What a strategy does at a decision: an action `[1, N]`, or None to order nothing."""


def simulate(
    policy: Policy,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str = "policy",
    progress: Progress | None = None,
    note: str = "",
    exact: bool = False,
) -> BacktestResult:
    """Trade the whole of `market` (a window of it, usually) with `policy`, decisions, fills and costs as `settings`.

    `exact` steps through `TradingEnv` itself; without it the same arithmetic runs in numpy where that is possible
    (see `desk`). Raises BacktestError for a window of fewer than two bars and for an output that cannot be traded.
    """

    def decide(desk: Desk) -> Tensor:
        action = policy(desk.observe())
        if not isinstance(action, Tensor) or action.shape != (1, desk.layout.num_assets):
            shape = tuple(action.shape) if isinstance(action, Tensor) else type(action).__name__
            raise BacktestError(f"{name}: the policy gave {shape} for one account of {desk.layout.num_assets} assets")
        if not bool(action.isfinite().all()):
            raise BacktestError(f"{name}: the policy's action holds NaN or infinity; its networks have diverged")
        return action.detach()

    return simulate_rule(decide, market, settings, name=name, progress=progress, note=note, exact=exact)


def simulate_windows(
    policy: Policy,
    windows: Mapping[str, MarketTensors],
    settings: EnvSettings,
    *,
    progress: Progress | None = None,
) -> dict[str, BacktestResult]:
    """`simulate` over several windows, each with an account of its own; name of the window -> result."""
    return {name: simulate(policy, market, settings, name=name, progress=progress) for name, market in windows.items()}


def simulate_rule(
    decide: Decide,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str,
    due: frozenset[int] | None = None,
    progress: Progress | None = None,
    note: str = "",
    exact: bool = False,
) -> BacktestResult:
    """As `simulate`, for a strategy that looks at the account itself; with `due` it is only asked at those bars.

    Raises BacktestError for a window of fewer than two bars.
    """
    if market.num_bars < 2:
        raise BacktestError(f"{name}: the window holds {market.num_bars} bar(s); a backtest needs at least two")
    desk = make_desk(market, settings, exact=exact)
    coming = sorted(due) if due is not None else []
    with torch.no_grad(), (progress or SILENT).task(f"backtest {name}", total=market.num_bars - 1, unit="bars") as task:
        over = False
        while not over:
            action = decide(desk) if due is None or desk.bar in due else None
            while coming and coming[0] <= desk.bar:
                coming.pop(0)
            wait = None if due is None else (coming[0] if coming else market.num_bars) - desk.bar
            over = desk.act(action, wait)
            task.update(float(desk.bar))
    return desk.book.result(name, note)
