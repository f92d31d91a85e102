"""`ridge`: a linear model of the policy's features, a baseline for every learned policy.

A ridge regression of forward returns (less their mean over the members) on the features is fitted
on the training window alone. Its scores tilt the benchmark's weights `b`:

    w ∝ b · exp(clip(STRENGTH · score, ±TRUST))
    score = x·β / its deviation in training, centred over the members

The account moves part of the way to w at each decision; idle cash moves at once. It decides as
often as the policy, and trades through the same account, at the same costs and limits. Horizon,
penalty and rate are chosen by their utility on the validation window (without one, on the last
fifth of training): the mean return beyond the benchmark, less half of `RISK_AVERSION` times its
variance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from fintrader import metrics as m
from fintrader.backtesting.account import BacktestAccount, Holdings
from fintrader.backtesting.baselines import baseline_settings, truncate_shares
from fintrader.backtesting.result import Array, BacktestResult
from fintrader.backtesting.simulation import open_account, trade
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import benchmark_kind, benchmark_weights
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress

STRENGTH = 0.5
"""Logarithm of the tilt for a score one deviation above the mean."""
TRUST = 1.0
"""Largest logarithm of a tilt, so that an outlier cannot take the whole portfolio."""
HORIZONS = (1, 5, 21)
"""Lengths of the forward return, in decisions and in sessions."""
PENALTIES = (0.01, 0.1, 1.0)
"""Penalties of the regression, in units of each feature's variance."""
RATES = (0.1, 0.3, 1.0)
"""Parts of the way to the tilt that the account moves in a session, and in a decision."""
RISK_AVERSION = 20.0
"""Weight of the variance of daily active returns in the utility that settings are chosen by."""
FEWEST = 20
"""Least number of decisions for a fit; a horizon may span at most a quarter of them."""
BLOCK = 4_000_000
"""Numbers held at once in the regression: a bound on memory."""
MOST_DECISIONS = 20_000
"""Largest number of decisions to choose on, the newest ones."""


@dataclass(frozen=True)
class Ridge:
    """A fitted linear model."""

    coefficients: Array
    """`[F]`, scaled so that `x @ coefficients` has a standard deviation of 1 over the members in
    training; 0 for features that are equal for all members there."""
    horizon: int
    """Length of the fitted forward return, in decisions."""
    penalty: float
    trade_rate: float
    """Part of the way to its target that a decision trades."""

    @property
    def note(self) -> str:
        """Describe the model in one line, for tables."""
        ahead = "decision" if self.horizon == 1 else f"{self.horizon} decisions"
        return (
            f"linear in {np.count_nonzero(self.coefficients)} features, fitted on the training"
            f" window to the next {ahead}; moves {self.trade_rate:.2g} of the way at each"
            " decision"
        )


def _base_weights(market: MarketTensors, settings: EnvSettings) -> Array:
    """Compute the weights `[T, N]` that are tilted: the benchmark's, or equal ones if it is
    cash."""
    kind = benchmark_kind(market, settings.benchmark)
    weights: Array = benchmark_weights(market, "equal_weight" if kind == "cash" else kind).numpy()
    return weights


class _Panel:
    """The decisions of a window: their bars, the benchmark's weights, and the returns to the next
    decision."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        self.market = market = market.to("cpu")
        delay = 0 if settings.fill == "close" else 1
        bars = np.arange(0, market.num_bars - delay, settings.decision_interval)
        self.bars = bars
        self.interval = settings.decision_interval
        self.session = market.session.numpy()[bars]
        self.weights = _base_weights(market, settings)[bars]
        at = bars + delay
        closed = market.adjusted_close[at].numpy()
        paid = market.adjust(market.open)[at].numpy() if settings.fill == "next_open" else closed
        price = np.where(np.isfinite(paid), paid, closed)
        change = price[1:] / price[:-1] - 1
        self.missing = ~np.isfinite(change)
        self.change = np.where(self.missing, 0.0, change)
        """`[D - 1, N]`: return from the fill of a decision to that of the next; 0 without a
        price."""

    @property
    def held(self) -> m.Flags:
        """`[D, N]`: symbols that the benchmark holds."""
        return np.asarray(self.weights > 0)

    @cached_property
    def relative(self) -> Array:
        """`[D - 1, N]`: the changes less their mean over the benchmark's symbols."""
        known = self.held[:-1] & ~self.missing
        mean = (self.change * known).sum(1, keepdims=True) / np.maximum(
            known.sum(1, keepdims=True), 1
        )
        return np.where(known, self.change - mean, 0.0)

    def iterate_features(self, stop: int) -> Iterator[tuple[int, Array]]:
        """Yield the features `[d, N, F]` of the decisions before `stop` in blocks, each with the
        number of its first decision."""
        step = max(1, BLOCK // max(1, self.market.num_assets * self.market.num_features))
        for start in range(0, stop, step):
            end = min(start + step, stop)
            rows = self.market.features[
                start * self.interval : (end - 1) * self.interval + 1 : self.interval
            ]
            yield start, rows.numpy().astype(np.float64)


def fit_ridge(
    train: MarketTensors, settings: EnvSettings, *, validation: MarketTensors | None = None
) -> Ridge:
    """Fit on `train` and choose on `validation`; without one, choose on the last fifth of training
    and fit again on all of it.

    Raises BacktestError without features, without any that differs between members, and for a
    window that is too short.
    """
    if not train.num_features:
        raise BacktestError("the market has no features")
    panel = _Panel(train, settings)
    known = len(panel.change)
    choose = known - known // 5 if validation is None else known
    per = max(1, round(len(panel.bars) / len(np.unique(panel.session))))  # decisions in a session
    steps = sorted({h * length for h in HORIZONS for length in (1, per)})
    steps = [h for h in steps if 4 * h <= choose]
    if choose < FEWEST or not steps:
        raise BacktestError(f"{choose} training decisions are too few; ridge needs {FEWEST}")
    candidates = list(product(steps, PENALTIES))
    # Labels end before the decisions to choose on, so that the fit cannot see them.
    fits = _fit_coefficients(panel, candidates, choose)
    rates = sorted({rate / length for rate in RATES for length in (1, per)})
    ahead, start = (_Panel(validation, settings), 0) if validation is not None else (panel, choose)
    scores = _score_utilities(ahead, start, np.stack(fits, axis=1), rates, settings)
    best, rate = np.unravel_index(int(scores.argmax()), scores.shape)
    horizon, penalty = candidates[best]
    chosen = fits[best]
    if validation is None:
        (chosen,) = _fit_coefficients(panel, [(horizon, penalty)], known)
    return Ridge(chosen, horizon, penalty, rates[rate])


def _fit_coefficients(
    panel: _Panel, candidates: Sequence[tuple[int, float]], known: int
) -> list[Array]:
    """Fit coefficients `[F]` for each (horizon, penalty) to the first `known` changes."""
    steps = sorted({h for h, _ in candidates})
    size = panel.market.num_features
    sums = np.vstack(
        [np.zeros((1, panel.market.num_assets)), np.cumsum(panel.relative[:known], axis=0)]
    )
    square = {h: np.zeros((size, size)) for h in steps}
    moment = {h: np.zeros(size) for h in steps}
    count = dict.fromkeys(steps, 0)
    rows = {h: known - h + 1 for h in steps}
    held = panel.held
    for start, block in panel.iterate_features(max(rows.values())):
        here = held[start : start + len(block)]
        number = np.maximum(here.sum(1), 1)[:, None, None]
        block -= (block * here[:, :, None]).sum(1, keepdims=True) / number
        for h in steps:
            inside = min(len(block), rows[h] - start)
            if inside <= 0:
                continue
            chosen = here[:inside]
            at = slice(start, start + inside)
            x = block[:inside][chosen]
            y = (sums[start + h : start + h + inside] - sums[at])[chosen] / h
            square[h] += x.T @ x
            moment[h] += x.T @ y
            count[h] += len(x)
    return [_solve(square[h], moment[h], penalty, count[h]) for h, penalty in candidates]


def _solve(square: Array, moment: Array, penalty: float, count: int) -> Array:
    """Solve the ridge regression `[F]` from its moments, scaled to scores of deviation 1."""
    spread = np.diag(square)
    varies = spread > 1e-10 * max(count, 1)
    if not varies.any():
        raise BacktestError(
            "no feature tells the members apart: each has one value for all members at a time"
        )
    inner = square[np.ix_(varies, varies)]
    slope = np.linalg.solve(inner + penalty * np.diag(spread[varies]), moment[varies])
    # In units of the deviation of the training window's scores, whose mean is 0.
    deviation = float(np.sqrt(slope @ inner @ slope / count))
    if not deviation > 0:
        raise BacktestError("no feature is related to the following returns in the training window")
    coefficients = np.zeros(len(spread))
    coefficients[varies] = slope / deviation
    return coefficients


def _tilt(scores: Array, weights: Array) -> Array:
    """Tilt the benchmark's `weights [N]` by `scores [..., N]`."""
    held = weights > 0
    centred = scores - (scores * held).sum(-1, keepdims=True) / max(int(held.sum()), 1)
    aim = weights * np.exp(np.clip(STRENGTH * centred, -TRUST, TRUST))
    tilted: Array = aim / np.maximum(aim.sum(-1, keepdims=True), 1e-300)
    return tilted


def _score_utilities(
    panel: _Panel, start: int, coefficients: Array, rates: Sequence[float], settings: EnvSettings
) -> Array:
    """Score the utility `[S, R]` of each of `coefficients [F, S]` at each rate from decision
    `start` on, by accounts with fractional shares, proportional costs and no limits.
    """
    stop = len(panel.change)
    start = max(start, stop - MOST_DECISIONS)
    if stop - start < 2:
        raise BacktestError("the window to choose on holds fewer than two decisions")
    cost = settings.cost_rate
    part = np.asarray(rates)[:, None]
    shape = coefficients.shape[1], len(rates), panel.market.num_assets
    holding = np.zeros(shape)
    plain = np.zeros(shape[2])
    earned = np.zeros((stop - start, *shape[:2]))
    usual = np.zeros(stop - start)
    for k in range(start, stop):
        weights = panel.weights[k]
        change = panel.change[k]
        fresh = k == start
        features = panel.market.features[panel.bars[k]].numpy().astype(np.float64)
        aim = _tilt((features @ coefficients).T, weights)[:, None, :]
        before = holding
        holding = _step_towards(holding, aim, part)
        earned[k - start] = holding @ change - cost * np.abs(holding - before).sum(-1)
        holding *= (1 + change) / (1 + earned[k - start])[..., None]
        due = fresh or panel.session[k] != panel.session[k - 1]
        held = plain
        if due:
            plain = weights
        usual[k - start] = plain @ change - cost * np.abs(plain - held).sum()
        plain = plain * (1 + change) / (1 + usual[k - start])
    first = m.find_session_starts(panel.session[start:stop])
    daily = np.expm1(np.add.reduceat(np.log1p(np.maximum(earned, -0.99)), first, axis=0))
    active = daily - np.expm1(np.add.reduceat(np.log1p(usual), first))[:, None, None]
    worth: Array = active.mean(axis=0) - RISK_AVERSION / 2 * active.var(axis=0)
    return worth


def ridge(
    market: MarketTensors, settings: EnvSettings, fitted: Ridge, *, progress: Progress = SILENT
) -> BacktestResult:
    """Trade a fitted model over `market`, at the policy's decisions, costs and limits.

    Raises BacktestError for a market with other features, and for a window of fewer than two bars.
    """
    if market.num_features != len(fitted.coefficients):
        raise BacktestError(
            f"ridge was fitted to {len(fitted.coefficients)} features, here are"
            f" {market.num_features}"
        )
    interval = {"decision_interval": settings.decision_interval}
    account = open_account(
        market, baseline_settings(settings, market).model_copy(update=interval), "ridge"
    )
    own = account.market
    weights = _base_weights(own, settings)
    mark = account.view.mark.double().numpy()

    carried = np.zeros(own.num_assets)
    """Fractions of shares left untraded, which are carried over so that rounding has no drift."""

    def decide(account: BacktestAccount) -> Holdings:
        bar = account.bar
        held = account.held
        price = mark[bar]
        scores = own.features[bar].numpy().astype(np.float64) @ fitted.coefficients
        share = held * price / account.equity
        target = _step_towards(share, _tilt(scores, weights[bar]), fitted.trade_rate)
        change = np.where(
            price > 0, target * account.equity / np.where(price > 0, price, 1.0) - held, 0.0
        )
        if not settings.fractional:
            change += np.where(target > 0, carried, 0.0)
            whole = truncate_shares(change)
            carried[:] = change - whole
            change = whole
        return Holdings(held + change)

    return trade(decide, account, name="ridge", progress=progress, note=fitted.note)


def _step_towards(shares: Array, aim: Array, rate: Array | float) -> Array:
    """Move shares of equity `[..., N]` part of the way to their aim; idle cash moves at once, and
    symbols without an aim are sold."""
    idle = np.maximum(0.0, 1 - shares.sum(-1, keepdims=True))
    return np.where(aim > 0, (1 - rate) * shares + (rate + (1 - rate) * idle) * aim, 0.0)
