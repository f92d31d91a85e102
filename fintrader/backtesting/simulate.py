"""Any policy over any window, one account, float64, by the environment's own ledger.

result = simulate(load_policy(path), market.split().test, settings, name="ensemble")
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.backtesting.account import Action, BacktestAccount, Holdings
from fintrader.backtesting.result import BacktestResult
from fintrader.envs import EnvSettings, Policy
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress

Decide = Callable[[BacktestAccount], "Action | Holdings | None"]
"""What a strategy does at a decision: an action `[1, N]` or `[N]`, the holdings it wants, or None
to order nothing."""
Watch = Callable[[BacktestAccount], None]
"""Looks at an account that stands at a decision; changes nothing."""
Due = Callable[[int], int]
"""The first bar after a bar at which a strategy wants to be asked (again)."""
REPORT_BARS = 100
"""Bars between two words of progress."""
Bound = Callable[[int, "NDArray[np.float32]"], "NDArray[np.float32]"]
"""`bound(bar, private [A + N]) -> action [N]`: a policy laid out for one window's market rows."""
_DIVERGED = "{}: the policy's action holds NaN or infinity; its networks have diverged"


@runtime_checkable
class Bindable(Protocol):
    """A policy that can be laid out for one window's market rows, such as those that `load_policy`
    returns."""

    def bind(self, rows: NDArray[np.float32], /) -> Bound | None:
        """The policy over the rows `[T, W]`; None where it cannot be done."""


def simulate(
    policy: Policy,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str = "policy",
    progress: Progress | None = None,
    note: str = "",
    watch: Watch | None = None,
) -> BacktestResult:
    """Trade the whole of `market` (a window of it, usually) with `policy`, decisions, fills and
    costs as `settings`.

    The account is to the last bit the one that `TradingEnv` would step; the policy is bound to the
    window's rows where it can be, and its actions agree to float32 rounding. `note` is kept beside
    the result; without one, a policy on other symbols than it was trained on says so there. `watch`
    is shown the account at each decision. Raises BacktestError for a window of fewer than two bars
    and for an output that cannot be traded.
    """
    account = open_account(market, settings, name)
    decide = ask(policy, account, name)
    if watch is not None:
        decide = _watched(decide, watch)
    return trade(decide, account, name=name, progress=progress, note=note or origin(policy))


def _watched(decide: Decide, watch: Watch) -> Decide:
    def seen(account: BacktestAccount) -> Action | Holdings | None:
        watch(account)
        return decide(account)

    return seen


def origin(policy: object) -> str:
    """What a policy on other symbols than its own says of that; empty for any other."""
    travels = getattr(policy, "meta", {}).get("travels")
    if not travels:
        return ""

    def some(symbols: list[str]) -> str:
        return (
            f"{len(symbols)} symbols"
            f" ({', '.join(symbols[:4])}{', ...' if len(symbols) > 4 else ''})"
        )

    return f"trained on {some(travels['trained_on'])}, traded on {some(travels['traded_on'])}"


def ask(policy: Policy, account: BacktestAccount, name: str) -> Decide:
    """How this policy is asked for this account: bound to the window where both can, through
    observations elsewhere."""
    rows = account.rows if isinstance(policy, Bindable) else None
    bound = policy.bind(rows) if isinstance(policy, Bindable) and rows is not None else None
    if bound is not None:
        return _ask_bound(bound, account, name)

    def decide(account: BacktestAccount) -> Tensor:
        action = policy(account.observe())
        if not isinstance(action, Tensor) or action.shape != (1, account.layout.num_assets):
            shape = tuple(action.shape) if isinstance(action, Tensor) else type(action).__name__
            raise BacktestError(
                f"{name}: the policy gave {shape} for an account of {account.layout.num_assets}"
                " assets"
            )
        if not bool(action.isfinite().all()):
            raise BacktestError(_DIVERGED.format(name))
        return action.detach()

    return decide


def _ask_bound(bound: Bound, account: BacktestAccount, name: str) -> Decide:
    def decide(_: BacktestAccount) -> NDArray[np.float32]:
        action = bound(account.bar, account.private())
        if not math.isfinite(
            action.sum()
        ):  # actions lie in [-1, 1]: their sum is finite where all of them are
            raise BacktestError(_DIVERGED.format(name))
        return action

    return decide


def open_account(market: MarketTensors, settings: EnvSettings, name: str) -> BacktestAccount:
    """An account at the window's first bar. Raises BacktestError for a window of fewer than two
    bars."""
    if market.num_bars < 2:
        raise BacktestError(
            f"{name}: the window holds {market.num_bars} bar(s); a backtest needs at least two"
        )
    return BacktestAccount(market, settings)


def trade(
    decide: Decide,
    account: BacktestAccount,
    *,
    name: str,
    due: Due | None = None,
    progress: Progress | None = None,
    note: str = "",
) -> BacktestResult:
    """Run an account to the end of its window, asking `decide` at every decision (`due`: at bar 0
    and then)."""
    last = account.market.num_bars - 1
    with (
        torch.no_grad(),
        (progress or SILENT).task(f"backtest {name}", total=last, unit="bars") as task,
    ):
        over = False
        reported = 0
        while not over:
            action = decide(account)
            over = account.act(action, None if due is None else due(account.bar) - account.bar)
            if account.bar - reported >= REPORT_BARS or over:
                reported = account.bar
                task.update(float(reported))
    return account.trade_log.result(name, note)
