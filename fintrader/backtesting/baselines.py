"""What anybody could have done in the same window: the lines a result has to beat.

Baselines that trade do so through the ledger and at the costs of the policy they stand beside. They
ask for shares, not weights, and ask again until they have traded: a target stays a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from fintrader import metrics as m
from fintrader.backtesting.account import BacktestAccount, Holdings
from fintrader.backtesting.result import BacktestResult, of_market
from fintrader.backtesting.simulation import open_account, trade
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import benchmark_kind, benchmark_weights
from fintrader.market.tensors import MarketTensors
from fintrader.progress import Progress
from fintrader.results.backtest_files import empty_trades

Array = NDArray[np.float64]
Weights = Callable[[int], Tensor]
"""Bar -> target weights `[N]` float64 (sum at most 1)."""
LOOKBACK = 20
FAST = 5
REBALANCED = 5
"""Sessions that the rules look back over, those of the fast average, and those from one rebalancing
to the next."""
USUAL_VOLATILITY = 0.15
"""A year's, aimed at where the training window's is not known."""


def baseline_settings(settings: EnvSettings) -> EnvSettings:
    """The policy's costs, fills and capital; a decision a bar, long-only, no turbulence rule."""
    account = {
        "short": False,
        "max_leverage": 1.0,
        "maintenance_margin": 0.0,
        "turbulence_column": None,
    }
    sight = {"observation": "flat", "observation_dtype": "float32", "reward": "log_return"}
    return settings.model_copy(update=account | sight | {"decision_interval": 1})


class TowardsWeights:
    """A rule that holds target weights: sized in shares at the bars `due`, and ordered until they
    have traded.

    What does not trade at the bar of its fill, or is more than a bar's volume takes, is ordered
    again for the next bar in which it can trade, at the size it was given, and a symbol without a
    price is sized at its first; the money for them is not spent on others.
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
        """What to hold: the weights' shares where they are due, what is still wanted where it has
        not traded."""
        bar = account.bar
        held = account.held
        for row in np.unique(self._event_row[self._bar + 1 : bar + 1]):
            self._wanted = self._whole(self._wanted * self._splits[row])
        # What could trade and did not change lacks the money, and will not have it later.
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
        """Whole shares unless fractions trade; 2^-20 makes good what rounding took."""
        return (
            shares if self._settings.fractional else np.trunc(shares + np.sign(shares) * 2.0**-20)
        )

    def next_due(self, bar: int) -> int:
        """The next rebalancing, or before it the bar ahead of one in which something still wanted
        can trade."""
        later = self._due[self._due > bar]
        coming = int(later[0]) if later.size else len(self._mark)
        ahead = slice(bar + 1, coming)
        can: NDArray[np.bool_] = np.asarray(self._mark[ahead][:, self._unpriced].any(axis=1))
        if self._pending.any():
            trades = self._buys[bar + 1 + self._delay : coming + self._delay, self._pending].any(
                axis=1
            )
            can[: len(trades)] |= trades
        return bar + 1 + int(can.argmax()) if can.any() else coming


def simulate_weights(
    weights: Weights,
    due: frozenset[int],
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str,
    note: str = "",
    progress: Progress | None = None,
) -> BacktestResult:
    """Trade towards target weights at the bars `due`, in shares sized at that bar's close; hold in
    between.

    `due` contains bar 0.

    Raises BacktestError for a window of fewer than two bars.
    """
    account = open_account(market, baseline_settings(settings), name)
    rule = TowardsWeights(weights, due, account)
    return trade(rule.decide, account, name=name, due=rule.next_due, note=note, progress=progress)


def equal_weights(market: MarketTensors, bar: int) -> Tensor:
    """`[N]`: 1/n for the n members at this bar that have traded by then, or do so in the window's
    first session."""
    first_session = int((market.session == market.session[0]).sum())
    traded = market.tradable[: max(bar + 1, first_session)].any(0)
    chosen = (market.member[bar] & traded).to(torch.float64)
    return chosen / chosen.sum().clamp(min=1.0)


def buy_and_hold(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress | None = None
) -> BacktestResult:
    """Equal dollars in every member that trades in the window's first session, as soon as it does,
    then held."""
    note = "equal dollars at the window's first bar, then held"
    hold = partial(equal_weights, market)
    return simulate_weights(
        hold, frozenset({0}), market, settings, name="buy_and_hold", note=note, progress=progress
    )


def equal_weight(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    every_sessions: int = 1,
    progress: Progress | None = None,
) -> BacktestResult:
    """1/n in every member, rebalanced at the first bar of every `every_sessions`-th session, net of
    costs."""
    often = "every session" if every_sessions == 1 else f"every {every_sessions} sessions"
    weights = benchmark_weights(market, "equal_weight")
    due = rebalance_bars(market, every_sessions)
    note = f"1/n, rebalanced {often}, net of costs"
    return simulate_weights(
        lambda bar: weights[bar],
        due,
        market,
        settings,
        name="equal_weight",
        note=note,
        progress=progress,
    )


def rebalance_bars(market: MarketTensors, every_sessions: int) -> frozenset[int]:
    """The first bar of every k-th session."""
    return frozenset(m.find_session_starts(market.session.cpu().numpy())[::every_sessions].tolist())


def inverse_volatility(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress | None = None
) -> BacktestResult:
    """Weights in proportion to 1/σ of each symbol's daily returns over the sessions that ended
    before the bar."""

    def weigh(returns: Array) -> Array:
        raw: Array = 1 / np.maximum(returns.std(axis=0, ddof=1), 1e-6)
        return raw

    note = f"1/volatility of {LOOKBACK} sessions, rebalanced every {REBALANCED}"
    return _from_past(weigh, market, settings, "inverse_volatility", note, REBALANCED, progress)


def minimum_variance(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress | None = None
) -> BacktestResult:
    """Long-only minimum-variance weights, covariance of past daily returns shrunk towards its
    diagonal by half.

    The shrinkage is fixed (Ledoit and Wolf 2004 estimate it): with fewer sessions than symbols the
    sample covariance is singular, and a baseline should have nothing to tune.
    """

    def weigh(returns: Array) -> Array:
        covariance = np.cov(returns.T).reshape(returns.shape[1], -1)
        target = np.diag(np.maximum(np.diag(covariance), 1e-12))
        return long_only_minimum_variance(0.5 * covariance + 0.5 * target)

    note = f"minimum variance of {LOOKBACK} sessions, long only, rebalanced every {REBALANCED}"
    return _from_past(weigh, market, settings, "minimum_variance", note, REBALANCED, progress)


def long_only_minimum_variance(covariance: Array) -> Array:
    """`[N]`: argmin wᵀΣw with w >= 0, Σw = 1.

    Non-negative least squares on `|Lᵀw|² + (1ᵀw − 1)²`, Σ = LLᵀ: both terms are homogeneous along a
    ray, so its minimiser is the constrained one up to scale. Σ is scaled first, to weigh the two
    terms alike.
    """
    scaled = covariance / np.trace(covariance)
    rows = np.vstack([np.linalg.cholesky(scaled).T, np.ones(len(scaled))])
    raw, _ = nnls(rows, np.append(np.zeros(len(scaled)), 1.0))
    weights: Array = raw / raw.sum()
    return weights


def momentum(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress | None = None
) -> BacktestResult:
    """Equal weights in the symbols whose fast moving average of daily closes lies above the slow
    one; else cash."""

    def weigh(returns: Array) -> Array:
        closes = np.cumprod(np.vstack([np.ones(returns.shape[1]), 1 + returns]), axis=0)
        above = closes[-FAST:].mean(axis=0) > closes[-LOOKBACK:].mean(axis=0)
        return np.where(above, 1.0, 0.0)

    note = f"equal weights where the {FAST}-session average is above the {LOOKBACK}-session one"
    return _from_past(weigh, market, settings, "momentum", note, 1, progress, spread=True)


def vol_targeted(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    target: float | None = None,
    progress: Progress | None = None,
) -> BacktestResult:
    """Equal weights times min(1, target/σ), σ that of their own past daily returns, a year; the
    rest in cash.

    `target`: `usual_volatility` of the training window, where it is known.
    """
    aimed = USUAL_VOLATILITY if target is None else target

    def weigh(returns: Array) -> Array:
        found = float(returns.mean(axis=1).std(ddof=1)) * math.sqrt(market.sessions_a_year)
        return np.full(returns.shape[1], min(1.0, aimed / max(found, 1e-6)))

    said = "a fixed choice" if target is None else "the training window's median"
    note = (
        f"1/n times min(1, {aimed:.1%}/volatility of {LOOKBACK} sessions), every {REBALANCED};"
        f" {said}"
    )
    return _from_past(
        weigh, market, settings, "vol_targeted", note, REBALANCED, progress, spread=True
    )


def usual_volatility(market: MarketTensors) -> float | None:
    """Median over a window's sessions of the volatility, a year, of equal weights in the members
    over `LOOKBACK` sessions; None for a window that is not longer."""
    ends = m.find_session_ends(market.session.cpu().numpy())
    if len(ends) < LOOKBACK + 2:
        return None
    close = market.adjusted_close.cpu().numpy()[ends]
    member = market.member.cpu().numpy()[ends]
    change = close[1:] / close[:-1] - 1
    known = member[:-1] & np.isfinite(change)
    daily = np.where(known, change, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    rolling = np.lib.stride_tricks.sliding_window_view(daily, LOOKBACK).std(axis=1, ddof=1)
    return m.finite_or_none(float(np.median(rolling)) * math.sqrt(market.sessions_a_year))


def _from_past(
    weigh: Callable[[Array], Array],
    market: MarketTensors,
    settings: EnvSettings,
    name: str,
    note: str,
    every_sessions: int,
    progress: Progress | None,
    *,
    spread: bool = False,
) -> BacktestResult:
    """A rule over the daily returns `[L, n]` of the sessions that ended before the decision's bar.

    Until two sessions have ended, and for symbols without a full history, it holds equal weights.
    With `spread` the rule's weights are a choice: each chosen symbol gets 1/n of all n symbols, the
    rest stays in cash.
    """
    ends = m.find_session_ends(market.session.cpu().numpy())
    close = market.adjusted_close.cpu().numpy()[ends]

    def weights(bar: int) -> Tensor:
        allowed = (market.member[bar] & market.tradable[bar]).cpu().numpy()
        past = close[: int(np.searchsorted(ends, bar))][-(LOOKBACK + 1) :]
        known = allowed & np.isfinite(past).all(axis=0)
        if len(past) < 3 or not known.any():
            return equal_weights(market, bar)
        returns = past[1:, known] / past[:-1, known] - 1
        target = np.zeros(len(allowed))
        raw = weigh(returns)
        target[known] = raw / (len(raw) if spread else raw.sum())
        return torch.from_numpy(target)

    due = rebalance_bars(market, every_sessions)
    return simulate_weights(weights, due, market, settings, name=name, note=note, progress=progress)


def cash(market: MarketTensors, settings: EnvSettings) -> BacktestResult:
    """The starting capital, untouched: no interest is paid on it here, nor to any other
    strategy."""
    return _level(market, settings, np.ones(market.num_bars), "cash", "no interest")


def benchmark(market: MarketTensors, settings: EnvSettings) -> BacktestResult:
    """The index itself, scaled to the starting capital. It is a level, not a trade: no costs, no
    positions."""
    level = market.benchmark.cpu().to(torch.float64).numpy()
    return _level(
        market, settings, level, "benchmark", f"level of {market.benchmark_name}, no costs"
    )


def _level(
    market: MarketTensors, settings: EnvSettings, level: Array, name: str, note: str
) -> BacktestResult:
    bars = market.num_bars
    assets = market.num_assets
    nothing = np.zeros(bars)
    return BacktestResult(
        name=name,
        equity=settings.initial_cash_usd * level / level[0],
        shares=np.broadcast_to(0.0, (bars, assets)),
        mark=np.broadcast_to(0.0, (bars, assets)),
        costs_usd=nothing,
        turnover_usd=nothing,
        income_usd=nothing,
        trades=empty_trades(),
        has_positions=False,
        **of_market(market),
        note=note,
    )


def benchmark_portfolio(
    market: MarketTensors, settings: EnvSettings, *, progress: Progress | None = None
) -> BacktestResult:
    """What `env.benchmark` names, traded as a strategy is, at the same costs.

    Raises EnvError for a benchmark that this market cannot make.
    """
    kind = benchmark_kind(market, settings.benchmark)
    if kind == "cash":
        return cash(market, settings)
    if kind == "equal_weight":
        return equal_weight(market, settings, progress=progress)
    if kind == "buy_and_hold":
        return buy_and_hold(market, settings, progress=progress)
    weights = benchmark_weights(market, kind)
    due = rebalance_bars(market, 1)
    note = "in proportion to capitalisation, rebalanced every session, net of costs"
    return simulate_weights(
        lambda bar: weights[bar],
        due,
        market,
        settings,
        name="cap_weight",
        note=note,
        progress=progress,
    )


def simulate_baselines(
    market: MarketTensors,
    settings: EnvSettings,
    *,
    train: MarketTensors | None = None,
    progress: Progress | None = None,
    every: bool = False,
) -> dict[str, BacktestResult]:
    """buy_and_hold, equal_weight and benchmark over the whole of `market`, at the policy's costs.

    With `every` also inverse_volatility, minimum_variance, momentum, vol_targeted (at the usual
    volatility of `train`) and cash.
    """
    rules = [
        buy_and_hold,
        equal_weight,
        *((inverse_volatility, minimum_variance, momentum) if every else ()),
    ]
    results = [rule(market, settings, progress=progress) for rule in rules]
    if every:
        target = None if train is None else usual_volatility(train)
        results.append(vol_targeted(market, settings, target=target, progress=progress))
    results += [benchmark(market, settings), *([cash(market, settings)] if every else [])]
    return {result.name: result for result in results}
