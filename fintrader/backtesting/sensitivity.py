"""Sensitivity of a result to one choice: costs, fills, a bar's delay, capital, the first day, a
single stock.

Every row is a whole simulation with one choice changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, cast

import torch

from fintrader import metrics as m
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.desk import OrderRule
from fintrader.backtesting.policy_strategy import PolicyStrategy, Predictor
from fintrader.backtesting.result import Array, BacktestResult
from fintrader.backtesting.simulation import open_account, simulate
from fintrader.backtesting.walk_forward import stitch
from fintrader.envs import EnvSettings, Policy
from fintrader.envs.settings import MOST_CASH_USD
from fintrader.errors import BacktestError
from fintrader.market.tensors import Markets, MarketTensors
from fintrader.progress import SILENT, Progress
from fintrader.results.analysis import Variation, VariedChoice


class Choices(NamedTuple):
    """The choices to vary, each by itself."""

    costs_bps: Sequence[float] = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    fills: Sequence[str] = ("next_open", "next_close", "close")
    capitals: Sequence[float] = (1, 10, 100)
    """Multiples of the capital: returns fall where the market's volume limits the orders."""
    start_shifts: Sequence[int] = (1, 2, 3, 4, 5)
    """Delays of the first day, in sessions."""
    stocks: bool = True
    """Leave out each symbol."""


ALL_CHOICES = Choices()


def sensitivity(
    policy: Policy | Predictor | Sequence[Policy | Predictor],
    market: MarketTensors | Markets,
    settings: EnvSettings,
    *,
    choices: Choices = ALL_CHOICES,
    progress: Progress = SILENT,
) -> list[Variation]:
    """Simulate all variations; orders fill at once. Raises BacktestError if a simulation does.

    For a walk-forward `policy` and `market` are lists with one entry for each fold, joined by
    `stitch`. Only its costs, fills, delay and capital are varied, because the folds decide the
    first day and each policy its symbols.
    """
    if isinstance(policy, OrderRule):
        raise BacktestError("sensitivity varies the settings of a policy, not of an OrderRule")
    settings = settings.at_once()
    if not isinstance(market, MarketTensors):
        policies = cast(Sequence[Any], policy)
        windows = list(market)
        shifts = []
        stocks = False
    else:
        policies = [policy]
        windows = [market]
        starts = market.session_starts
        shifts = [
            shift
            for shift in choices.start_shifts
            if shift < len(starts) and market.num_bars - starts[shift] >= 2
        ]
        # Quotes have no weight that could be kept at 0.
        stocks = choices.stocks and settings.action != "quote"
    costs = sorted({*choices.costs_bps, settings.cost_bps})
    money = [
        multiple
        for multiple in choices.capitals
        if multiple * settings.initial_cash_usd <= MOST_CASH_USD
    ]
    rows: list[Variation] = []
    year = windows[0].sessions_a_year

    def trade(
        kind: VariedChoice,
        setting: str,
        changed: EnvSettings,
        is_chosen: bool,
        run: Callable[..., BacktestResult] = simulate,
    ) -> None:
        parts = [
            run(policy, window, changed) for policy, window in zip(policies, windows, strict=True)
        ]
        task.advance(note=f"{kind} {setting}")
        daily = None
        # If one fold leaves no capital, this row has no figures; the other rows remain.
        with contextlib.suppress(BacktestError):
            daily = (parts[0] if len(parts) == 1 else stitch(parts)).daily_returns
        rows.append(_make_variation(kind, setting, daily, year, is_chosen))

    # Resting orders have one kind of fill only.
    fills = () if settings.orders_rest else choices.fills
    total = len(costs) + len(fills) + 2 + len(money) + len(shifts) + stocks
    with progress.task("sensitivity", total=total, unit="runs") as task:
        for cost in costs:
            changed = settings.model_copy(update={"cost_bps": cost})
            trade("cost_bps", f"{cost:g}", changed, cost == settings.cost_bps)
        for fill in fills:
            trade("fill", fill, settings.model_copy(update={"fill": fill}), fill == settings.fill)
        trade("delay_bars", "0", settings, True)
        trade("delay_bars", "1", settings, False, simulate_delayed)
        for multiple in money:
            usd = multiple * settings.initial_cash_usd
            held = settings.initial_shares
            # A policy that orders shares orders more of them in the same proportion.
            more = {
                "initial_cash_usd": usd,
                "initial_shares": {name: multiple * count for name, count in held.items()}
                if isinstance(held, Mapping)
                else multiple * held,
                "max_shares": multiple * settings.max_shares,
            }
            trade("capital_usd", f"{usd:.0f}", settings.model_copy(update=more), multiple == 1)
        for shift in shifts:
            window = windows[0].window(int(starts[shift]), windows[0].num_bars)
            daily = simulate(policies[0], window, settings).daily_returns
            rows.append(_make_variation("start_sessions", str(shift), daily, year))
            task.advance(note=f"start {shift} sessions later")
        if stocks:
            rows += simulate_without_each(policies[0], windows[0], settings)
            task.advance(note="each symbol removed")
    return rows


def simulate_delayed(
    policy: Policy | Predictor,
    market: MarketTensors,
    settings: EnvSettings,
) -> BacktestResult:
    """Carry out every decision one bar late: seen at t, ordered at t + 1."""
    account = BacktestAccount(market, settings)
    interval = settings.decision_interval
    strategy = PolicyStrategy(policy, account, "delayed")
    with torch.no_grad():
        # Copied: the next decision may be written into the same array.
        action = copy(strategy(account))
        over = account.act(None, 1)
        while not over:
            # At an interval of one bar, the next decision is made at the bar where this one is
            # ordered.
            coming = copy(strategy(account)) if interval == 1 else None
            over = account.act(action, max(1, interval - 1))
            if not over and interval > 1:
                coming = copy(strategy(account))
                over = account.act(None, 1)
            action = action if coming is None else coming
    return account.trade_log.result("delayed", "one bar late")


def simulate_without_each(
    policy: Policy | Predictor,
    market: MarketTensors,
    settings: EnvSettings,
) -> list[Variation]:
    """Simulate an account for each symbol that never buys the symbol, all of them together."""
    name = "without a symbol"
    account = open_account(market, settings, name)
    with torch.no_grad():
        equity = account.leave_out_each(PolicyStrategy(policy, account, name).act)
    daily = [m.daily_returns(curve, market.to_numpy("session")) for curve in equity]
    return [
        _make_variation("without", symbol, returns, market.sessions_a_year)
        for symbol, returns in zip(market.symbols, daily, strict=True)
    ]


def _make_variation(
    kind: VariedChoice,
    setting: str,
    daily: Array | None,
    sessions_a_year: int,
    is_chosen: bool = False,
) -> Variation:
    """Summarise a simulation's daily returns; without any, all figures are None."""
    if daily is None:
        return Variation(kind, setting, is_chosen, None, None, None)
    return Variation(
        kind,
        setting,
        is_chosen,
        cumulative_return=m.cumulative_return(daily),
        sharpe=m.sharpe(daily, sessions_a_year),
        max_drawdown=m.max_drawdown(daily),
    )
