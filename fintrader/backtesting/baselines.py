"""Simple strategies that a result has to beat: buy and hold, equal weights, rules on past returns.

Baselines trade through the same account as the policy, at its costs. They order numbers of shares,
and repeat an order until it is filled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fintrader import metrics as m
from fintrader.backtesting.account import BacktestAccount, Holdings
from fintrader.backtesting.result import Array, BacktestResult, collect_market_fields
from fintrader.backtesting.simulation import open_account, trade
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import benchmark_kind, benchmark_weights
from fintrader.envs.money import SPLIT_NUDGE
from fintrader.envs.state import initial_shares
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress

Weights = Callable[[int], Tensor]
"""Bar -> target weights `[N]` float64 (sum at most 1)."""
LOOKBACK = 20
"""Sessions that the rules look back over."""
FAST = 5
"""Sessions of the fast average."""
REBALANCE_SESSIONS = 5
"""Sessions from one rebalancing to the next."""
USUAL_VOLATILITY = 0.15
"""Annual volatility to aim at if the training window's is unknown."""


def starting_capital(market: MarketTensors, settings: EnvSettings) -> float:
    """Compute the value of the cash and shares that an account begins a window with, USD."""
    price = market.close[0].cpu().double().nan_to_num()
    return settings.initial_cash_usd + float(initial_shares(settings, market.symbols) @ price)


def baseline_settings(settings: EnvSettings, market: MarketTensors) -> EnvSettings:
    """Keep the policy's costs, fills and capital, all in cash; decide at every bar, long-only,
    without the turbulence rule."""
    account = {
        "initial_cash_usd": starting_capital(market, settings),
        "initial_shares": 0.0,
        "close_at_end": False,
        "short": False,
        "max_leverage": 1.0,
        "maintenance_margin": 0.0,
        "turbulence": {},
    }
    sight = {"observation": "flat", "observation_dtype": "float32", "reward": "log_return"}
    others = {"decision_interval": 1, "option": None}
    return settings.model_copy(update=account | sight | others)


def truncate_shares(shares: Array) -> Array:
    """Truncate to whole shares; a nudge of 2^-20 makes up for rounding, so that 2.9999999 is 3."""
    return np.trunc(shares + np.sign(shares) * SPLIT_NUDGE)


class TowardsWeights:
    """A rule that holds target weights: it sizes them in shares at the bars `due`, and repeats the
    orders until they have traded.

    An order that did not trade in the bar of its fill, or exceeded the bar's volume, is repeated
    with the same target for the next bar in which it can trade. A symbol without a price is sized
    at its first price. Cash for both is reserved.
    """

    def __init__(self, weights: Weights, due: frozenset[int], account: BacktestAccount) -> None:
        view = account.view
        assets = account.market.num_assets
        self._weights = weights
        self._due = np.array(sorted(due))
        self._settings = account.settings
        self._mark, self._most = (
            value.to(torch.float64).numpy() for value in (view.mark, view.order_limit)
        )
        self._sells = (view.fill > 0).numpy() & (self._most > 0)
        self._buys = self._sells & view.buyable.numpy()
        self._event_row = view.event_row.numpy()
        self._splits = view.splits.numpy()
        self._delay = 0 if self._settings.fill == "close" else 1
        self._wanted = np.zeros(assets)
        self._usd = np.zeros(assets)
        self._held = np.zeros(assets)
        self._pending, self._unpriced, self._could = (
            np.zeros(assets, dtype=bool) for _ in range(3)
        )
        self._bar = 0

    def decide(self, account: BacktestAccount) -> Holdings:
        """Return the holdings to order: at a due bar those of the new weights, otherwise the
        targets not yet reached."""
        bar = account.bar
        held = account.held
        for row in np.unique(self._event_row[self._bar + 1 : bar + 1]):
            self._wanted = self._whole(self._wanted * self._splits[row])
        # Drop orders that could trade but did not: there was no cash for them.
        self._pending &= ~(self._could & (held == self._held))
        if bar in self._due:
            self._usd = self._weights(bar).cpu().numpy() * account.equity
            self._wanted = held.copy()
            self._pending = np.zeros_like(self._pending)
            self._unpriced = np.ones_like(self._pending)
        price = self._mark[bar]
        sized = self._unpriced & (price > 0)
        change = np.where(sized, self._usd / np.where(sized, price, 1.0) - held, 0.0)
        self._wanted += self._whole(change)
        self._unpriced &= ~sized & (self._usd > 0) & (held == 0)
        self._pending |= sized & (self._wanted != held)
        wanted = np.where(self._pending, self._wanted, held)
        filled = min(bar + self._delay, len(self._mark) - 1)
        can = np.where(wanted > held, self._buys[filled], self._sells[filled])
        self._could = self._pending & can
        self._held = held.copy()
        self._bar = bar
        self._pending &= ~(can & (np.abs(wanted - held) <= self._most[filled]))
        return Holdings(wanted)

    def _whole(self, shares: Array) -> Array:
        """Truncate to whole shares unless fractions trade."""
        return shares if self._settings.fractional else truncate_shares(shares)

    def next_due(self, bar: int) -> int:
        """Find the bar of the next decision: the next rebalancing, or the bar before one in which a
        pending order can trade."""
        later = self._due[self._due > bar]
        coming = int(later[0]) if later.size else len(self._mark)
        ahead = slice(bar + 1, coming)
        can: m.Flags = np.asarray(self._mark[ahead][:, self._unpriced].any(axis=1))
        pending = self._pending
        if pending.any():
            rows = slice(bar + 1 + self._delay, coming + self._delay)
            buys = (self._wanted > self._held)[pending]
            trades = np.where(buys, self._buys[rows, pending], self._sells[rows, pending])
            can[: len(trades)] |= trades.any(axis=1)
        return bar + 1 + int(can.argmax()) if can.any() else coming


def simulate_weights(
    weights: Weights,
    due: frozenset[int],
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str,
    note: str = "",
    progress: Progress = SILENT,
) -> BacktestResult:
    """Trade towards target weights at the bars `due` (bar 0 among them), in shares sized at that
    bar's close; hold in between.

    Raises BacktestError for a window of fewer than two bars.
    """
    account = open_account(market, baseline_settings(settings, market), name)
    rule = TowardsWeights(weights, due, account)
    return trade(rule.decide, account, name=name, due=rule.next_due, note=note, progress=progress)


def equal_weights(market: MarketTensors, bar: int) -> Tensor:
    """Give weight 1/n, `[N]`, to each of the n members at this bar that have traded by then or
    trade in the window's first session."""
    first_session = int((market.session == market.session[0]).sum())
    traded = market.tradable[: max(bar + 1, first_session)].any(0)
    chosen = (market.member[bar] & traded).to(torch.float64)
    return chosen / chosen.sum().clamp(min=1.0)


def buy_and_hold(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress = SILENT
) -> BacktestResult:
    """Buy equal dollars of every member that trades in the first session, at its first bar, and
    hold."""
    note = "equal dollars at the window's first bar, then held"
    hold = partial(equal_weights, market)
    return simulate_weights(
        hold, frozenset({0}), market, settings, name="buy_and_hold", note=note, progress=progress
    )


_SIZES = {"equal_weight": "1/n", "cap_weight": "in proportion to capitalisation"}


def hold_benchmark(
    kind: Literal["equal_weight", "cap_weight"],
    market: MarketTensors,
    settings: EnvSettings,
    *,
    progress: Progress = SILENT,
) -> BacktestResult:
    """Hold every member, with 1/n or in proportion to its capitalisation, rebalanced at the first
    bar of every session, net of costs."""
    note = f"{_SIZES[kind]}, rebalanced every session, net of costs"
    weights = benchmark_weights(market, kind)
    due = find_rebalance_bars(market, 1)
    return simulate_weights(
        weights.__getitem__, due, market, settings, name=kind, note=note, progress=progress
    )


def find_rebalance_bars(market: MarketTensors, every_sessions: int) -> frozenset[int]:
    """Find the first bar of every k-th session."""
    return frozenset(market.session_starts[::every_sessions].tolist())


class PastRule(NamedTuple):
    """A strategy that weighs symbols by their past daily returns."""

    name: str
    note: str
    weigh: Callable[[Array], Array]
    """Daily returns `[L, n]` of the sessions that ended before the decision's bar -> weights
    `[n]`."""
    every_sessions: int = REBALANCE_SESSIONS
    is_share: bool = False
    """Each weight is a share of 1/n, and the rest stays in cash; otherwise weights are scaled to a
    sum of 1."""


def weigh_by_minimum_variance(returns: Array) -> Array:
    """Compute long-only minimum-variance weights, the covariance shrunk halfway towards its
    diagonal.

    The shrinkage is fixed (Ledoit and Wolf 2004 estimate it): with fewer sessions than symbols the
    sample covariance is singular, and a baseline should have nothing to tune.
    """
    covariance = np.cov(returns.T).reshape(returns.shape[1], -1)
    target = np.diag(np.maximum(np.diag(covariance), 1e-12))
    return long_only_minimum_variance(0.5 * covariance + 0.5 * target)


def weigh_by_momentum(returns: Array) -> Array:
    """Choose the symbols whose fast moving average of daily closes is above the slow one."""
    closes = np.cumprod(np.vstack([np.ones(returns.shape[1]), 1 + returns]), axis=0)
    above = closes[-FAST:].mean(axis=0) > closes[-LOOKBACK:].mean(axis=0)
    return np.where(above, 1.0, 0.0)


def make_volatility_rule(target: float | None, sessions_a_year: int) -> PastRule:
    """Hold equal weights times min(1, target/σ), σ that portfolio's past annual volatility; the
    rest in cash.

    `target`: `usual_volatility` of the training window, if known.
    """
    aim = USUAL_VOLATILITY if target is None else target

    def weigh(returns: Array) -> Array:
        volatility = float(returns.mean(axis=1).std(ddof=1)) * math.sqrt(sessions_a_year)
        return np.full(returns.shape[1], min(1.0, aim / max(volatility, 1e-6)))

    source = "a fixed choice" if target is None else "the training window's median"
    note = (
        f"1/n times min(1, {aim:.1%}/volatility of {LOOKBACK} sessions), every"
        f" {REBALANCE_SESSIONS}; {source}"
    )
    return PastRule("vol_targeted", note, weigh, is_share=True)


def long_only_minimum_variance(covariance: Array) -> Array:
    """Minimise wᵀΣw over weights `[N]` with w >= 0, Σw = 1.

    Non-negative least squares on `|Lᵀw|² + (1ᵀw − 1)²`, Σ = LLᵀ: both terms are homogeneous along a
    ray, so its minimiser is the constrained one up to scale. Σ is scaled first, to give both terms
    the same weight.
    """
    scaled = covariance / np.trace(covariance)
    rows = np.vstack([np.linalg.cholesky(scaled).T, np.ones(len(scaled))])
    from scipy.optimize import nnls  # slow to load

    raw, _ = nnls(rows, np.append(np.zeros(len(scaled)), 1.0))
    weights: Array = raw / raw.sum()
    return weights


def usual_volatility(market: MarketTensors) -> float | None:
    """Compute the median annual volatility of equal weights in the members over `LOOKBACK` sessions
    of a window; None for a window of fewer than LOOKBACK + 2 sessions."""
    ends = market.session_ends
    if len(ends) < LOOKBACK + 2:
        return None
    close = market.to_numpy("adjusted_close")[ends]
    member = market.to_numpy("member")[ends]
    change = close[1:] / close[:-1] - 1
    known = member[:-1] & np.isfinite(change)
    daily = np.where(known, change, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    rolling = np.lib.stride_tricks.sliding_window_view(daily, LOOKBACK).std(axis=1, ddof=1)
    return m.finite_or_none(float(np.median(rolling)) * math.sqrt(market.sessions_a_year))


RULES = (
    PastRule(
        "inverse_volatility",
        f"1/volatility of {LOOKBACK} sessions, rebalanced every {REBALANCE_SESSIONS}",
        lambda returns: 1 / np.maximum(returns.std(axis=0, ddof=1), 1e-6),
    ),
    PastRule(
        "minimum_variance",
        f"minimum variance of {LOOKBACK} sessions, long only, every {REBALANCE_SESSIONS}",
        weigh_by_minimum_variance,
    ),
    PastRule(
        "momentum",
        f"equal weights where the {FAST}-session average is above the {LOOKBACK}-session one",
        weigh_by_momentum,
        every_sessions=1,
        is_share=True,
    ),
)


def simulate_rule(
    rule: PastRule,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    progress: Progress = SILENT,
) -> BacktestResult:
    """Trade by a rule. It holds equal weights until three sessions have ended, and while no symbol
    has a full history."""
    ends = market.session_ends
    close = market.to_numpy("adjusted_close")[ends]

    def weights(bar: int) -> Tensor:
        allowed = (market.member[bar] & market.tradable[bar]).cpu().numpy()
        past = close[: int(np.searchsorted(ends, bar))][-(LOOKBACK + 1) :]
        known = allowed & np.isfinite(past).all(axis=0)
        if len(past) < 3 or not known.any():
            return equal_weights(market, bar)
        returns = past[1:, known] / past[:-1, known] - 1
        target = np.zeros(len(allowed))
        raw = rule.weigh(returns)
        target[known] = raw / (len(raw) if rule.is_share else raw.sum())
        return torch.from_numpy(target)

    due = find_rebalance_bars(market, rule.every_sessions)
    return simulate_weights(
        weights, due, market, settings, name=rule.name, note=rule.note, progress=progress
    )


def cash(market: MarketTensors, settings: EnvSettings) -> BacktestResult:
    """Hold the starting capital in cash; no strategy receives interest."""
    return _follow_level(market, settings, np.ones(market.num_bars), "cash", "no interest")


def benchmark(market: MarketTensors, settings: EnvSettings) -> BacktestResult:
    """Follow the level of the index, scaled to the starting capital, without costs or
    positions."""
    level = market.benchmark.cpu().to(torch.float64).numpy()
    return _follow_level(
        market, settings, level, "benchmark", f"level of {market.benchmark_name}, no costs"
    )


def _follow_level(
    market: MarketTensors, settings: EnvSettings, level: Array, name: str, note: str
) -> BacktestResult:
    """Make a result that follows a level `[T]` and holds nothing."""
    equity = starting_capital(market, settings) * level / level[0]
    return BacktestResult.of_curve(name, equity, note=note, **collect_market_fields(market))


def simulate_benchmark_portfolio(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress = SILENT
) -> BacktestResult:
    """Trade the portfolio that `env.benchmark` names, at a strategy's costs.

    Raises EnvError for a benchmark that this market cannot provide.
    """
    kind = benchmark_kind(market, settings.benchmark)
    if kind == "cash":
        return cash(market, settings)
    if kind == "buy_and_hold":
        return buy_and_hold(market, settings, progress=progress)
    return hold_benchmark(kind, market, settings, progress=progress)


def simulate_baselines(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    train: MarketTensors | None = None,
    progress: Progress = SILENT,
    every: bool = False,
) -> dict[str, BacktestResult]:
    """Simulate buy_and_hold, equal_weight and benchmark over the whole of `market`, at the policy's
    costs.

    With `every` also inverse_volatility, minimum_variance, momentum, vol_targeted (at the usual
    volatility of `train`) and cash.
    """
    results = [
        buy_and_hold(market, settings, progress=progress),
        hold_benchmark("equal_weight", market, settings, progress=progress),
    ]
    if every:
        target = None if train is None else usual_volatility(train)
        rules = (*RULES, make_volatility_rule(target, market.sessions_a_year))
        results += [simulate_rule(rule, market, settings, progress=progress) for rule in rules]
    results.append(benchmark(market, settings))
    if every:
        results.append(cash(market, settings))
    return {result.name: result for result in results}
