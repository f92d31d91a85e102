"""Simulation of a policy over a window: one account in float64, by the environment's rules.

result = simulate(load_policy(path), market.split().test, settings, name="ensemble")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from fintrader.backtesting.account import Action, BacktestAccount, Holdings, RestingOrders
from fintrader.backtesting.desk import Desk, OrderRule
from fintrader.backtesting.order_worker import OrderWorker
from fintrader.backtesting.policy_strategy import (
    REPORT_BARS,
    Bindable,
    PolicyStrategy,
    Predictor,
    Watch,
    ask_env,
    find_normaliser,
    is_predictor,
    list_caveats,
)
from fintrader.backtesting.result import BacktestResult
from fintrader.envs import EnvSettings, Policy
from fintrader.errors import BacktestError
from fintrader.market.tensors import BarSpan, MarketTensors
from fintrader.progress import SILENT, Progress, shorten_list

Decide = Callable[[BacktestAccount], "Action | Holdings | RestingOrders | None"]
"""A strategy: account -> action `[1, N]` or `[N]`, holdings to reach, orders that rest, or None to
order nothing."""
Due = Callable[[int], int]
"""The bar of a decision -> the bar of the next one."""
VARYING = "a policy that gave two actions for one observation (it samples, or keeps a state)"


def simulate(
    policy: Policy | Predictor | OrderRule,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str = "policy",
    progress: Progress = SILENT,
    note: str = "",
    watch: Watch | None = None,
) -> BacktestResult:
    """Trade the whole of `market`, usually a window, with `policy` under `settings`.

    The account equals `TradingEnv`'s to the last bit. The policy is bound to the window's rows if
    possible; its actions then equal unbound ones to float32 rounding. A model of Stable-Baselines3
    is asked deterministically, on observations normalised by its VecNormalize if it holds one.
    The result's `caveats` name a policy that gives two actions for one observation, and parts of a
    model's training that are missing here. Without a `note` the result describes its policy
    (`describe_origin`). `watch` sees the account at every decision. Raises BacktestError for a
    window of fewer than two bars and for an output that cannot be traded.
    """
    if isinstance(policy, OrderRule):
        account = open_account(market, policy.adapt(settings), name)
        give_orders = partial(policy, Desk(account))
        return trade(lambda _: give_orders(), account, name=name, progress=progress, note=note)
    note = note or describe_origin(policy)
    learned: list[object] = [policy]
    account = open_account(market, settings.for_working(), name)
    if settings.execution is None:
        strategy = PolicyStrategy(policy, account, name, watch=watch)
        result = trade(strategy, account, name=name, progress=progress, note=note)
    else:
        worker = OrderWorker(policy, account, settings, name, watch=watch)
        strategy = worker.strategy
        learned.append(worker.executor)
        due = worker.find_due
        result = trade(worker, account, name=name, due=due, progress=progress, note=note)
    is_seen = any(span.overlaps(market.span) for one in learned for span in list_seen_spans(one))
    caveats = list_caveats(policy)
    if not strategy.gives_same():
        caveats.append(VARYING)
    note = "; ".join(filter(None, [result.note, *(f"with {caveat}" for caveat in caveats)]))
    return replace(result, is_seen=is_seen, caveats=tuple(caveats), note=note)


def list_seen_spans(policy: object) -> list[BarSpan]:
    """List the bars that a policy states it was trained or chosen on.

    A trained policy has them in its meta, a predictor in the environment that it still holds.
    """
    if is_predictor(policy):
        # Check first: a missing attribute would end a vectorised env's worker.
        known = ask_env(policy, "has_attr", "market_span")
        return list(dict.fromkeys(ask_env(policy, "get_attr", "market_span"))) if known else []
    meta = getattr(policy, "meta", None)
    stored = meta.get("seen", ()) if isinstance(meta, Mapping) else ()
    return [BarSpan.from_json(span) for span in stored]


def describe_origin(policy: object) -> str:
    """Describe a predictor, or a policy that trades other symbols than it learned; else empty."""
    if is_predictor(policy):
        form = "unnormalised (it holds no VecNormalize)"
        if not hasattr(policy, "get_vec_normalize_env"):
            form = "unnormalised (a bare policy knows no VecNormalize; pass its model)"
        if find_normaliser(policy) is not None:
            form = "normalised by its VecNormalize"
        return f"deterministic actions; observations {form}"
    symbols = policy.meta.get("transfer") if isinstance(policy, Bindable) else None
    if not symbols:
        return ""

    def describe(symbols: list[str]) -> str:
        return f"{len(symbols)} symbols ({shorten_list(symbols)})"

    return (
        f"trained on {describe(symbols['trained_on'])}, traded on {describe(symbols['traded_on'])}"
    )


def open_account(market: MarketTensors, settings: EnvSettings, name: str) -> BacktestAccount:
    """Open an account at the window's first bar. Raises BacktestError for a window of fewer than
    two bars."""
    if market.num_bars < 2:
        raise BacktestError(f"{name}: the window has one bar; lengthen it to at least two")
    return BacktestAccount(market, settings)


def trade(
    decide: Decide,
    account: BacktestAccount,
    *,
    name: str,
    due: Due | None = None,
    progress: Progress = SILENT,
    note: str = "",
) -> BacktestResult:
    """Run an account to the end of its window, asking `decide` at every decision interval or, given
    `due`, at bar 0 and the bars that `due` returns."""
    last = account.market.num_bars - 1
    with (
        torch.no_grad(),
        progress.task(f"backtest {name}", total=last, unit="bars") as task,
    ):
        over = False
        reported = 0
        while not over:
            if due is None and isinstance(decide, PolicyStrategy) and decide.can_follow:
                over = decide.follow()
            else:
                action = decide(account)
                over = account.act(action, None if due is None else due(account.bar) - account.bar)
            if account.bar - reported >= REPORT_BARS or over:
                reported = account.bar
                task.update(float(reported))
    return account.trade_log.result(name, note)
