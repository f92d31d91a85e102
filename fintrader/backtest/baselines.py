"""What anybody could have done in the same window: the lines a result has to beat.

Baselines that trade do so through the ledger and at the costs of the policy they stand beside. They size whole
orders themselves (shares, not weights), so that holding means holding: no order is made by rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fintrader import metrics as m
from fintrader.backtest.result import BacktestResult, empty_trades
from fintrader.backtest.simulate import simulate_rule
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.ledger import MAX_WHOLE_SHARES
from fintrader.progress import Progress

Weights = Callable[[TradingEnv, int], Tensor | None]
"""Environment and bar -> target weights `[N]` float64 (sum at most 1), or None to leave everything as it is."""


def baseline_settings(settings: EnvSettings) -> EnvSettings:
    """The policy's costs, fills and capital, with orders in shares, a decision a bar, long-only, no turbulence rule."""
    return settings.model_copy(
        update={
            "action": "trade",
            "max_shares": MAX_WHOLE_SHARES,
            "dead_band": 0.0,
            "rebalance_band": 0.0,
            "decision_interval": 1,
            "short": False,
            "max_leverage": 1.0,
            "maintenance_margin": 0.0,
            "turbulence_column": None,
            "reward": "log_return",
        }
    )


def simulate_weights(
    weights: Weights,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str,
    note: str = "",
    progress: Progress | None = None,
) -> BacktestResult:
    """Trade towards target weights, in shares sized at the close of the decision bar.

    Raises BacktestError for a window of fewer than two bars.
    """
    settings = baseline_settings(settings)
    mark = torch.nan_to_num(market.close, nan=0.0).to(torch.float64)

    def decide(env: TradingEnv, obs: Tensor) -> Tensor:
        bar = int(env.account.bar[0])
        target = weights(env, bar)
        held = env.account.shares[0].to(torch.float64)
        if target is None:
            return torch.zeros(1, held.shape[0], dtype=torch.float64)
        price = mark[bar]
        want = torch.where(price > 0, target * env.equity[0] / price.clamp(min=1e-12), torch.zeros_like(price))
        order = want - held
        return (order if settings.fractional else torch.trunc(order)).unsqueeze(0) / MAX_WHOLE_SHARES

    return simulate_rule(decide, market, settings, name=name, note=note, progress=progress)


def equal_weights(market: MarketTensors, bar: int) -> Tensor:
    """`[N]`: 1/n for the n symbols that are members and trade at this bar, 0 for the others."""
    chosen = (market.member[bar] & market.tradable[bar]).to(torch.float64)
    return chosen / chosen.sum().clamp(min=1.0)


def buy_and_hold(market: MarketTensors, settings: EnvSettings, *, progress: Progress | None = None) -> BacktestResult:
    """Equal dollars in every member that trades at the window's first bar, then nothing more."""

    def weights(env: TradingEnv, bar: int) -> Tensor | None:
        return equal_weights(market, bar) if bar == 0 else None

    note = "equal dollars at the window's first bar, then held"
    return simulate_weights(weights, market, settings, name="buy_and_hold", note=note, progress=progress)


def equal_weight(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    every_sessions: int = 1,
    progress: Progress | None = None,
) -> BacktestResult:
    """1/n in every member, rebalanced at the first bar of every `every_sessions`-th session, net of costs."""
    due = rebalance_bars(market, every_sessions)

    def weights(env: TradingEnv, bar: int) -> Tensor | None:
        return equal_weights(market, bar) if bar in due else None

    often = "every session" if every_sessions == 1 else f"every {every_sessions} sessions"
    note = f"1/n, rebalanced {often}, net of costs"
    return simulate_weights(weights, market, settings, name="equal_weight", note=note, progress=progress)


def rebalance_bars(market: MarketTensors, every_sessions: int) -> frozenset[int]:
    """The first bar of every k-th session."""
    ends = m.session_ends(market.session.cpu().numpy())
    starts = np.concatenate([[0], ends[:-1] + 1])
    return frozenset(starts[::every_sessions].tolist())


def benchmark(market: MarketTensors, settings: EnvSettings) -> BacktestResult:
    """The index itself, scaled to the starting capital. It is a level, not a trade: no costs, no positions."""
    level = market.benchmark.cpu().to(torch.float64).numpy()
    bars, assets = market.num_bars, market.num_assets
    nothing = np.zeros(bars)
    return BacktestResult(
        name="benchmark",
        symbols=market.symbols,
        minutes=market.minutes.cpu().numpy(),
        session=market.session.cpu().numpy(),
        equity=settings.initial_cash_usd * level / level[0],
        shares=np.broadcast_to(0.0, (bars, assets)),
        mark=np.broadcast_to(0.0, (bars, assets)),
        costs_usd=nothing,
        turnover_usd=nothing,
        trades=empty_trades(),
        benchmark=level,
        benchmark_name=market.benchmark_name,
        bar_minutes=market.bar_minutes,
        has_positions=False,
        note=f"level of {market.benchmark_name}, no costs",
    )


def simulate_baselines(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress | None = None
) -> dict[str, BacktestResult]:
    """buy_and_hold, equal_weight and benchmark over the whole of `market`, at the policy's costs."""
    return {
        "buy_and_hold": buy_and_hold(market, settings, progress=progress),
        "equal_weight": equal_weight(market, settings, progress=progress),
        "benchmark": benchmark(market, settings),
    }
