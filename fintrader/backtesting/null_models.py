"""Null models, which show results of luck alone: a market with uninformative features, and random
portfolios."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.market.moving import carry_forward
from fintrader.market.tensors import Markets, MarketTensors
from fintrader.metrics import Array
from fintrader.seeding import create_numpy_generator
from fintrader.verdict.verdict import Histogram, RandomDraws, ShareAbove


def information_free(market: MarketTensors, seed: int) -> MarketTensors:
    """Replace features and context by those of other days, so that anything learnt from them is
    coincidence.

    Every session takes the features of the session k later (wrapping around), bar by bar, for one k
    drawn between a quarter and three quarters of the sessions. The features keep their
    distribution, their dependence on each other and in time, and the time of day; only their
    relation to these prices is cut. A search that does as well here as on the true features found
    nothing. Each window is shifted within itself, so that no window sees another. Raises
    BacktestError below four sessions.
    """
    windows = market.windows or ((0, market.num_bars),)
    rows = np.arange(market.num_bars)
    for k, (start, stop) in enumerate(windows):
        session = market.session[start:stop].cpu().numpy()
        rows[start:stop] = start + _shift_rows(
            session, create_numpy_generator(seed, "information-free", k)
        )
    order = torch.from_numpy(rows).to(market.device)
    change = f"features of other sessions, seed {seed}"
    return replace(
        market,
        features=market.features[order],
        context=market.context[order],
        provenance=market.provenance.add_change(change),
    )


def _shift_rows(session: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose for each bar the row of the same bar in the session k later; a shorter session repeats
    its last bar."""
    starts = m.find_session_starts(session)
    ends = m.find_session_ends(session)
    count = len(ends)
    if count < 4:
        raise BacktestError(
            f"{count} sessions are too few to shift features between them; give at least four"
        )
    shift = int(rng.integers(count // 4, count - count // 4)) or 1
    number = np.repeat(np.arange(count), ends - starts + 1)
    within = np.arange(len(session)) - starts[number]
    source = (number + shift) % count
    return np.minimum(starts[source] + within, ends[source])


@dataclass(frozen=True)
class RandomPortfolios:
    """Outcomes of static portfolios drawn by chance."""

    cumulative_return: Array
    sharpe: Array
    """Annualised; NaN without dispersion."""

    def compare(self, returned: float | None, sharpe: float | None) -> RandomDraws:
        """Summarise the outcomes in quantiles, and compute the share that beats a strategy."""
        levels = (5.0, 25.0, 50.0, 75.0, 95.0)
        drawn = self.sharpe[np.isfinite(self.sharpe)]
        higher = None if returned is None else float((self.cumulative_return > returned).mean())
        better = None if sharpe is None or not drawn.size else float((drawn > sharpe).mean())
        counts, edges = np.histogram(self.cumulative_return, bins=40)
        return RandomDraws(
            count=len(self.cumulative_return),
            quantiles=levels,
            cumulative_return=tuple(np.percentile(self.cumulative_return, levels).tolist()),
            sharpe=tuple(np.percentile(drawn, levels).tolist()) if drawn.size else None,
            share_above=ShareAbove(higher, better),
            histogram=Histogram(tuple(counts.tolist()), tuple(edges.tolist())),
        )


def random_portfolios(
    market: MarketTensors | Markets,
    settings: EnvSettings,
    *,
    seed: int,
    count: int = 10_000,
) -> RandomPortfolios:
    """Buy a random set of members in random proportions at the window's second bar, with costs, and
    hold it.

    The number of names is uniform from 1 to all that can be bought; their weights are uniform on
    the simplex. Fractions of shares trade; commission and spread are paid, impact is not. A symbol
    that ends becomes cash at its last price. Several windows form a walk-forward: each portfolio is
    sold at its window's end, with costs, and a new one is drawn for the next window. Raises
    BacktestError if nothing can be bought.
    """
    windows = [market] if isinstance(market, MarketTensors) else list(market)
    rng = create_numpy_generator(seed, "random-portfolios")
    returns = np.concatenate(
        [
            _simulate_static(window, settings, rng, count, sold=len(windows) > 1)
            for window in windows
        ]
    )
    spread = returns.std(axis=0, ddof=1) if len(returns) > 1 else np.zeros(count)
    safe = np.where(spread > 0, spread, np.nan)
    sharpe = returns.mean(axis=0) / safe * np.sqrt(windows[0].sessions_a_year)
    return RandomPortfolios((1 + returns).prod(axis=0) - 1, sharpe)


def _simulate_static(
    market: MarketTensors,
    settings: EnvSettings,
    rng: np.random.Generator,
    count: int,
    *,
    sold: bool,
) -> Array:
    """Draw `count` portfolios and compute their daily returns `[S, count]` over one window, the
    last return net of the sale if `sold`."""
    if market.num_bars < 2:
        raise BacktestError("the window holds one bar; random portfolios need at least two")
    fill = market.open if settings.fill == "next_open" else market.close
    entry = market.adjust(fill)[1].cpu().numpy()
    can = (
        (market.member[0] & market.tradable[0] & market.member[1] & market.tradable[1])
        .cpu()
        .numpy()
    )
    names = np.flatnonzero(can & (np.nan_to_num(entry) > 0))
    if not names.size:
        raise BacktestError(
            "no member trades in both of the first two bars; start the window elsewhere"
        )
    ends = market.session_ends
    closes = np.nan_to_num(carry_forward(market.to_numpy("adjusted_close")))
    filled = closes[np.ix_(ends, names)] / entry[names]
    filled[ends == 0] = 1.0 + settings.cost_rate  # nothing is held before the second bar
    weights = rng.exponential(size=(count, names.size))
    size = rng.integers(1, names.size + 1, size=(count, 1))
    rank = rng.random((count, names.size)).argsort(axis=1).argsort(axis=1)
    weights = np.where(rank < size, weights, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    rate = settings.cost_rate
    wealth = np.concatenate([np.ones((1, count)), filled @ weights.T / (1 + rate)])
    if sold:
        wealth[-1] *= 1 - rate
    returns: Array = wealth[1:] / wealth[:-1] - 1
    return returns
