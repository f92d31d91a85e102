"""`RandomisedEnv`: accounts in V variants of one market, so that an agent learns from all of them.

Variants differ in costs, in the delay of observations, and in the order of sessions. The order is a
block bootstrap (Künsch 1989, https://doi.org/10.1214/aos/1176347265): sessions are drawn with
replacement, `block_sessions` at a time, and prices are chained. A block's first session follows the
one played before it with the overnight gap, splits and dividends of the data, so that no new price
jumps arise. The window's first session is never drawn, because its overnight gap is unknown.

A variant refers to rows of the original market by number: features, the benchmark's weights and
volumes in dollars are unchanged, and the benchmark grows over every bar as over the original one.

In sessions from before a symbol's listing or after its end, the symbol keeps its price and cannot
be traded. When a session of its life is drawn again, it resumes at its last price; after the last
such session, accounts sell their holdings of it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fintrader.envs.joined import SeveralEnvs
from fintrader.envs.market_view import (
    LARGEST,
    MarketView,
    bound_episodes,
    count_changes,
    find_ends,
    follow_underlying,
    half_spreads,
    pack_quotes,
)
from fintrader.envs.money import round_to_zero
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import create_generator, derive, draw_seed


def draw_bars(session: Tensor, block: int, draws: torch.Generator) -> Tensor:
    """Draw the bars `[T]` int64 that a variant plays, from the window's `session` `[T]`: blocks of
    `block` sessions with replacement, the last one cut off.

    Raises EnvError for fewer sessions after the first than `block`.
    """
    bounds = [*torch.nonzero(session.diff()).flatten().add(1).tolist(), len(session)]
    count = len(bounds) - 1
    if block > count:
        raise EnvError(
            f"env.randomise.block_sessions is {block}, but the window has only {count} sessions"
            " after its first; "
            + (f"set it to at most {count}" if count else "train on more sessions, or leave it out")
        )
    pieces: list[Tensor] = []
    while sum(map(len, pieces)) < len(session):
        first = int(torch.randint(count - block + 1, (1,), generator=draws))
        pieces.append(torch.arange(bounds[first], bounds[first + block]))
    return torch.cat(pieces)[: len(session)].to(session.device)


def chain_prices(mark: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Chain the prices of the bars `source` `[T]`; return them and their ratio to the original
    ones, `[T, N]` float64 each.

    `mark` `[T, N]` are closes, carried forward, 0 before the first; `source` never begins a block
    at bar 0.
    """
    closes = mark.double()
    price = torch.empty_like(closes)
    ratio = torch.empty_like(closes)
    newest = torch.zeros_like(closes[0])
    seams = torch.nonzero(source.diff() != 1).flatten().add(1).tolist()
    for start, stop in pairwise([0, *seams, len(source)]):
        first = int(source[start])
        block = closes[first : first + stop - start]
        # A block is chained by the close before it, or the first close of a symbol listed in it.
        listing = block.gather(0, (block > 0).long().argmax(0, keepdim=True))[0]
        before = torch.where(closes[first - 1] > 0, closes[first - 1], listing)
        known = (newest > 0) & (before > 0)
        times = torch.where(known, newest / torch.where(known, before, 1.0), 1.0)
        ratio[start:stop], price[start:stop] = times, torch.where(block > 0, block * times, newest)
        newest = price[stop - 1]
    return price, ratio


def resample_view(
    view: MarketView, market: MarketTensors, source: Tensor, settings: EnvSettings
) -> MarketView:
    """Make the view of a market that plays the bars `source` `[T]`; its `table` keeps the order of
    the original."""
    bars = len(source)
    price, ratio = chain_prices(view.mark, source)
    end = view.last_bar
    steps = torch.arange(1, bars + 1, device=end.device).unsqueeze(1)
    final = ((source.unsqueeze(1) <= end) * steps).amax(0) - 1
    last_bar = torch.where((end < bars) & (final < bars - 1), final, bars)
    row = view.event_row[source]
    happens = row > 0
    dividends = view.dividends[row[happens]] * ratio[happens]
    grown = view.benchmark.diff(prepend=view.benchmark[:1])[source]
    grown[0] = 0.0
    inverse_root_volume = view.inverse_root_volume[source] * ratio.sqrt()
    limit = round_to_zero(view.order_limit[source] / ratio, settings)
    buyable = view.buyable[source] & (steps <= last_bar)
    event_row = happens.cumsum(0) * happens
    ends = find_ends(last_bar, bars)
    quotes = pack_quotes(limit, view.fill[source] * ratio, buyable, price)
    splits = torch.cat([view.splits[:1], view.splits[row[happens]]])
    # A session that is drawn twice in a row is two sessions.
    begins = (market.session[source].diff() != 0) | (source.diff() != 1)
    starts, stops = bound_episodes(torch.cat([begins[:1] * 0, begins]).cumsum(0), settings)
    return view._replace(
        quotes=quotes,
        inverse_root_volume=inverse_root_volume.clamp(max=LARGEST).float(),
        ranges=(view.ranges[source] * ratio.unsqueeze(1)).float(),
        benchmark=grown.cumsum(0),
        last_bar=last_bar,
        years=view.years[source],
        risk_off=view.risk_off[source],
        clock=view.clock[source],
        starts=starts,
        stops=stops,
        ends=ends,
        has_ends=bool(ends.any()),
        event_row=event_row,
        splits=splits,
        dividends=torch.cat([view.dividends[:1], dividends]),
        has_events=bool(happens.any()),
        max_changes=count_changes(ends, event_row, settings),
        underlying=follow_underlying(market, quotes, event_row, splits, settings.option),
    )


class _Variant(TradingEnv):
    """Some accounts in one variant, with a clock of the variant's bars."""

    def __init__(self, env: TradingEnv, count: int, number: int, seed: int) -> None:
        settings = env.settings
        asked = env.settings.randomise
        draws = create_generator(seed, "randomise", number)
        low, high = (math.log(bound) for bound in asked.costs)
        times = math.exp(
            low + (high - low) * torch.rand(1, generator=draws, dtype=torch.float64).item()
        )
        self.delay = int(torch.randint(asked.delay_bars + 1, (1,), generator=draws))
        self.source: Tensor | None = None
        """`[T]`: the original bar that each bar plays; None: the same."""
        # Groups as large as without variants: a bar is embedded once for all of a group.
        groups = math.gcd(max(1, env.start_groups // asked.variants), count)
        settings = settings.scale_costs(times).model_copy(
            update={"observation": "factored", "start_groups": groups}
        )
        view = env.view._replace(spread=half_spreads(env.market, settings))
        if asked.block_sessions is not None:
            session = env.market.session.cpu()
            self.source = draw_bars(session, asked.block_sessions, draws).to(env.device)
            view = resample_view(view, env.market, self.source, settings)
        super().__init__(
            env.market,
            settings,
            num_envs=count,
            seed=derive(seed, "accounts", number),
            autoreset_mode=env.autoreset_mode,
            engine=env.wanted_engine,
        )
        self.view = view  # in place of the unchanged market's view

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        if self.source is not None:
            self.view = resample_view(self.view, self.market, self.source, self.settings)

    def shown_bar(self, clock: Tensor) -> Tensor:
        """Find the original bars shown at bars `clock` `[B]` of this variant."""
        bar = clock if self.source is None else self.source[clock]
        return (bar - self.delay).clamp(min=0)


class RandomisedEnv(SeveralEnvs):
    """B accounts, B / V in each of V variants of `env`'s market, as one environment of that market.

    Observations `[B, D]`, or factored with the original's bar as the clock; actions `[B, N]`. It is
    a `TrainingEnvironment`, gradients included, and records nothing. With `block_sessions` each
    variant has its own prices and limits, 16 bytes for each asset and bar, but shares the features.
    """

    def __init__(self, env: TradingEnv, *, seed: int | None = None) -> None:
        """Make the variants of `env.settings.randomise`; without a seed the system's entropy gives
        one.

        Raises EnvError unless the variants share the accounts evenly and have enough sessions for
        their blocks.
        """
        variants = env.settings.randomise.variants
        count, rest = divmod(env.num_envs, variants)
        if rest or not count:
            raise EnvError(
                f"env.num_envs is {env.num_envs}; make it a multiple of env.randomise.variants, "
                f"{variants}"
            )
        self.market = env.market
        self.table = env.table
        self.differentiable = env.settings.fractional
        seed = draw_seed() if seed is None else seed
        self.variants = [_Variant(env, count, number, seed) for number in range(variants)]
        super().__init__(self.variants, env.settings, seed)

    def shown_row(self, number: int, clock: Tensor) -> Tensor:
        return self.variants[number].shown_bar(clock)
