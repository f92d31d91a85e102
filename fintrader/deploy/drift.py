"""The drift of a deployment from its backtest, with its causes, by a twin that traded the recorded
bars.

The twin is the same policy under the same limits in the environment's ledger, over the bars as they
were received. Trading makes the difference between account and twin: delay, spread, impact, fees,
orders that did not fill. The market makes the difference between the twin and the backtest.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from fintrader.backtesting.baselines import simulate_benchmark_portfolio
from fintrader.backtesting.limits import LimitSettings
from fintrader.backtesting.shadow import shadow_backtest
from fintrader.bars.bars import MINUTE_NS
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.drift_report import (
    Band,
    DailyDrift,
    DriftReport,
    EquityDrift,
    FeatureDrift,
    LimitCuts,
    News,
    Shortfall,
    Surprise,
)
from fintrader.deploy.entries import Alert, BarDecision, CapitalMove, Halt, LateBars, Mark
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import order_id, read_sender
from fintrader.errors import DeployError
from fintrader.market.tensors import MarketTensors
from fintrader.metrics import daily_returns, find_session_ends
from fintrader.seeding import create_numpy_generator
from fintrader.verdict.bootstrap import block_length, bootstrap_indices

Array = NDArray[np.float64]
BAND = (0.05, 0.5, 0.95)
PATHS = 2_000
STAKES = (0.2, 0.5, 0.9)
"""Parts of the wealth that three bettors stake on bad days; the mean of their wealths counts."""
_BINS = 10
_FEWEST = 8
"""Fewest sessions of a backtest to compare days with."""


def _read_equity(journal: Journal) -> tuple[NDArray[np.int64], Array, bool]:
    """Read the bars and the equity, USD, of an account's curve without the jumps of deposits and
    withdrawals; True if the account was emptied and began anew with a later deposit."""
    curve = journal.read_curve()
    bars = np.array([bar for bar, _ in curve], dtype=np.int64)
    equity = np.array([usd for _, usd in curve])
    begin = 0
    for move in journal.entries(CapitalMove):
        kinds: tuple[type[BarDecision | Mark], ...] = (BarDecision, Mark)
        later = [one.body.bar for kind in kinds for one in journal.entries(kind, after=move.seq)]
        first = min(later, default=1 << 62)
        if move.body.factor > 0.0:
            equity[bars >= first] /= move.body.factor
        else:
            begin = min((bar for bar, usd in curve if bar >= first and usd > 0.0), default=1 << 62)
    return bars[bars >= begin], equity[bars >= begin], begin > 0


def measure(
    journal: Journal, bundle: Bundle, market: MarketTensors, limits: LimitSettings
) -> DriftReport:
    """Measure the drift; `market`: the recorded bars from the first decision on.

    Raises DeployError while fewer than two bars of the account are known.
    """
    bars, equity, is_anew = _read_equity(journal)
    minutes = market.minutes.numpy()
    inside = np.isin(bars, minutes)
    bars = bars[inside]
    equity = equity[inside]
    at = np.searchsorted(minutes, bars)
    if len(bars) < 2:
        raise DeployError(
            "nothing can be compared yet: fewer than two bars of the account are recorded"
        )
    env = bundle.env
    if is_anew:
        start = int(at[0] - at[0] % env.decision_interval)  # the twin decides at the first bar
        market = market.window(start, market.num_bars)
        at -= start
    if equity[0] > 0.0 and not env.initial_shares:  # the twin begins with the account's capital
        env = env.model_copy(update={"initial_cash_usd": float(equity[0])})
    result, noted = shadow_backtest(bundle.policy, market, env, limits)
    terms = env.model_copy(update={"benchmark": bundle.benchmark})
    portfolio = simulate_benchmark_portfolio(market, terms)
    theirs = result.equity[at]
    session = market.session.numpy()[at]
    ends = find_session_ends(session)
    ours_daily, twin_daily = (daily_returns(values, session) for values in (equity, theirs))
    expected = np.array(bundle.record.daily_returns, dtype=np.float64)
    decisions = [entry.body for entry in journal.entries(BarDecision)]
    days = np.datetime_as_string(bars.astype("datetime64[ns]"), unit="D").tolist()
    account_growth = equity[-1] / equity[0]
    twin_growth = theirs[-1] / theirs[0]
    return DriftReport(
        deployment=bundle.name,
        bundle=bundle.id,
        run=bundle.record.run,
        verdict=bundle.record.verdict,
        notice=bundle.record.notice,
        first_day=days[0],
        last_day=days[-1],
        sessions=len(ends),
        decisions=len(decisions),
        held_back=sum(bool(decision.why) for decision in decisions),
        equity=EquityDrift(
            first_usd=float(equity[0]),
            account_usd=float(equity[-1]),
            twin_usd=float(theirs[-1]),
            account_return=float(account_growth - 1),
            twin_return=float(twin_growth - 1),
            difference_bps=float((account_growth - twin_growth) * 1e4),
            largest_difference_usd=float(np.abs(equity - theirs).max()),
        ),
        daily=DailyDrift(
            days=tuple(days[end] for end in ends),
            account_usd=tuple(equity[ends].tolist()),
            twin_usd=tuple(theirs[ends].tolist()),
            account_return=tuple(ours_daily.tolist()),
            twin_return=tuple(twin_daily.tolist()),
            portfolio=portfolio.name,
            portfolio_return=tuple(daily_returns(portfolio.equity[at], session).tolist()),
            band=simulate_fan(expected, len(ends), float(equity[0]), seed=0),
        ),
        surprise=measure_surprise(ours_daily, expected),
        shortfall=measure_shortfall(journal, market, bundle),
        features=measure_feature_drift(bundle, market, at),
        limits=LimitCuts(
            Counter(name for decision in decisions for name in decision.clipped),
            noted.counts,
            noted.halted,
        ),
        halts=tuple(News(_format_time(e.time), e.kind, e.body.why) for e in journal.entries(Halt)),
        alerts=tuple(
            News(_format_time(e.time), e.key, e.body.text) for e in journal.entries(Alert)
        ),
        late_bars=sum(entry.body.bars for entry in journal.entries(LateBars)),
    )


def simulate_fan(expected: Array, sessions: int, start: float, *, seed: int) -> Band | None:
    """Simulate accounts that draw their days from the backtest's, in blocks; None for a backtest
    with too few sessions."""
    if len(expected) < _FEWEST:
        return None
    rng = create_numpy_generator(seed, "drift")
    repeats = -(-sessions // len(expected))
    paths = [
        expected[
            np.concatenate([*bootstrap_indices(len(expected), block_length(expected), PATHS, rng)])
        ]
        for _ in range(repeats)
    ]
    growth = np.cumprod(1 + np.concatenate(paths, axis=1)[:, :sessions], axis=1)
    low, middle, high = start * np.quantile(growth, BAND, axis=0)
    return Band(tuple(low.tolist()), tuple(middle.tolist()), tuple(high.tolist()))


def measure_surprise(ours: Array, expected: Array) -> Surprise | None:
    """Bet that the account's days are worse than the backtest's; None for a backtest with too few
    sessions.

    Each day has a rank p in (0, 1) among the backtest's days and the account's days before it.
    While days of both come from one distribution, ranks are uniform and independent (Vovk,
    Nouretdinov & Gammerman, 2003, Testing exchangeability on-line), however short the backtest is,
    and no bet 1 + stake · (1 - 2p) gains on average.
    """
    if len(expected) < _FEWEST:
        return None
    days = np.concatenate([expected, ours])
    wealth = np.ones((len(ours) + 1, len(STAKES)))
    for number, day in enumerate(ours):
        before = days[: len(expected) + number]
        rank = (before < day).sum() + 0.5 * ((before == day).sum() + 1)
        bets = 1 + np.array(STAKES) * (1 - 2 * rank / (len(before) + 1))
        wealth[number + 1] = wealth[number] * bets
    return Surprise(tuple(wealth[1:].mean(axis=1).tolist()))


def measure_shortfall(journal: Journal, market: MarketTensors, bundle: Bundle) -> Shortfall:
    """Measure the cost of orders against the prices they were decided at (Perold, 1988), USD and
    bps of the ordered amount.

    Delay is the market's move until the next bar's open, spread and impact the difference between
    that open and the fill. Unfilled is the gain that the rest of the orders would have made by the
    close of their bar; rounding is the same gain of parts of shares that were never ordered.
    """
    minutes = market.minutes.numpy()
    length = market.bar_minutes * MINUTE_NS
    column = {symbol: number for number, symbol in enumerate(market.symbols)}
    opens = market.open.numpy().astype(np.float64)
    closes = market.close.numpy().astype(np.float64)
    ordered = 0.0
    total = dict.fromkeys(("delay", "spread_and_impact", "fees", "unfilled", "rounding"), 0.0)
    orders = journal.orders()
    sender = read_sender(journal, bundle.id)
    sent = fills = 0
    for entry in journal.entries(BarDecision):
        decision = entry.body
        bar = int(np.searchsorted(minutes, decision.bar))
        if bar + 1 >= len(minutes):
            continue
        closed = dict(zip(market.symbols, closes[bar + 1].tolist(), strict=True))
        gain = {
            symbol: closed[symbol] - price if math.isfinite(closed[symbol]) else 0.0
            for symbol, price in decision.prices.items()
        }
        for symbol, rest in decision.rounded.items():
            total["rounding"] += rest * gain[symbol]
        listed = [
            (symbol, shares, orders.get(order_id(sender, decision.bar + length, symbol)))
            for symbol, shares in decision.orders.items()
        ]
        # A stop counts by the shares that it sold: no others had to be sold. At a venue only the
        # first stop of a decision has this id, and a symbol that was not held has no stop.
        rested = [orders[order.id] for order in decision.resting if order.id in orders]
        listed += [(o.symbol, o.shares if o.stop_usd is None else o.filled, o) for o in rested]
        for symbol, shares, report in listed:
            price = decision.prices.get(symbol, 0.0)
            sent += shares != 0.0
            ordered += abs(shares) * price
            filled = 0.0 if report is None else report.filled
            arrival = opens[bar + 1, column[symbol]]
            if report is not None and filled and np.isfinite(arrival):
                fills += 1
                total["delay"] += filled * (arrival - price)
                slip = filled * (report.price_usd - arrival)
                fee = min(bundle.env.fee_rate * abs(filled) * report.price_usd, report.cost_usd)
                total["spread_and_impact"] += slip + report.cost_usd - fee
                total["fees"] += fee
            total["unfilled"] += (shares - filled) * gain.get(symbol, 0.0)
    usd = {name: float(cost) for name, cost in total.items()}
    ends = Counter(
        "filled in part" if report.filled and report.state != "filled" else report.state
        for report in orders.values()
        if report.limit_usd is not None
    )
    return Shortfall(sent, fills, float(ordered), usd, ends)


def measure_feature_drift(
    bundle: Bundle, market: MarketTensors, at: NDArray[np.int64]
) -> tuple[FeatureDrift, ...]:
    """Measure each feature's population stability index between the rows of the backtest and those
    of the decisions.

    Σ (p - q) ln(p / q) over the deciles of the backtest's values; the largest index comes first.
    """
    obs, _, _ = bundle.parity
    layout = bundle.policy.layout
    shape = market.features.shape[1:]
    start = layout.width - getattr(layout, "market_width", 0)
    before = obs[:, start : start + shape.numel()].reshape(-1, *shape).numpy()
    now = market.features[at].numpy()
    drifts = []
    for number, name in enumerate(market.feature_names):
        old, new = (rows[..., number].ravel() for rows in (before, now))
        edges = np.unique(np.quantile(old, np.linspace(0, 1, _BINS + 1)[1:-1]))
        p, q = (
            np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1) / len(values)
            for values in (old, new)
        )
        p = np.maximum(p, 1e-4)
        q = np.maximum(q, 1e-4)
        drifts.append(FeatureDrift(name, float(((p - q) * np.log(p / q)).sum())))
    return tuple(sorted(drifts, key=lambda row: -row.psi))


def _format_time(time: int) -> str:
    return f"{np.datetime_as_string(np.datetime64(time, 'ns'), unit='s')}Z"
