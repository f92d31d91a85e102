"""`RandomisedEnv`: accounts in V variants of one market, for agents that shall learn what holds in
all of them.

A variant differs in its costs, in how late it shows the market, and in the order of its sessions.
The last is a block bootstrap (Künsch 1989, https://doi.org/10.1214/aos/1176347265): sessions are
drawn with replacement, `block_sessions` at a time, and prices are chained. A block's first session
follows the one played before it as it followed the session before it in the data, overnight gap,
splits and dividends included, so that no price jumps but those that did. The window's first session
is not drawn: how it opened against the day before is not known.

What a variant shows of the market is a row of the original, whose number its clock says: features,
and the benchmark's weights, are those that were. Volumes stand in dollars as they did. The
benchmark grows over every bar as it did over the original one.

A symbol that has ended, or is not listed yet, stands still and cannot be traded in sessions of that
time. It goes on at its last price when sessions of its life are played again; after the last of
these accounts are sold out of it.
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
    count_changes,
    find_ends,
    half_spreads,
)
from fintrader.envs.money import round_to_zero
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError
from fintrader.seeding import create_generator, derive, draw_seed


def drawn_bars(session: Tensor, block: int, draws: torch.Generator) -> Tensor:
    """`[T]` int64: the bars that a variant of a window plays, from the window's `session` `[T]`:
    blocks of so many sessions, drawn with replacement, the last one cut off.

    Raises EnvError where there are not so many sessions after the first.
    """
    bounds = [*torch.nonzero(session.diff()).flatten().add(1).tolist(), len(session)]
    count = len(bounds) - 1
    if block > count:
        raise EnvError(
            f"env.randomise.block_sessions is {block}, but only {count} sessions of the window have"
            " one before them; "
            + (f"set it to at most {count}" if count else "train on more sessions, or leave it out")
        )
    pieces: list[Tensor] = []
    while sum(map(len, pieces)) < len(session):
        first = int(torch.randint(count - block + 1, (1,), generator=draws))
        pieces.append(torch.arange(bounds[first], bounds[first + block]))
    return torch.cat(pieces)[: len(session)].to(session.device)


def chained(mark: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """`[T, N]` float64: prices of the bars `source` `[T]`, one after the other, and their ratio to
    the original ones.

    `mark` `[T, N]` are closes, carried forward, 0 before the first; `source` never begins a block
    at bar 0.
    """
    closes = mark.to(torch.float64)
    price = torch.empty_like(closes)
    ratio = torch.empty_like(closes)
    newest = torch.zeros_like(closes[0])
    seams = torch.nonzero(source.diff() != 1).flatten().add(1).tolist()
    for start, stop in pairwise([0, *seams, len(source)]):
        first = int(source[start])
        block = closes[first : first + stop - start]
        # What a block is chained by: the close before it, or the first one of a symbol that is
        # listed in it.
        listing = block.gather(0, (block > 0).to(torch.int64).argmax(0, keepdim=True))[0]
        before = torch.where(closes[first - 1] > 0, closes[first - 1], listing)
        known = (newest > 0) & (before > 0)
        times = torch.where(known, newest / torch.where(known, before, 1.0), 1.0)
        ratio[start:stop], price[start:stop] = times, torch.where(block > 0, block * times, newest)
        newest = price[stop - 1]
    return price, ratio


def resampled(view: MarketView, source: Tensor, settings: EnvSettings) -> MarketView:
    """The market that plays the bars `source` `[T]`; its `rows` stay in the order of the
    original."""
    bars = len(source)
    price, ratio = chained(view.mark, source)
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
    event_row = happens.cumsum(0) * happens
    ends = find_ends(last_bar, bars)
    return view._replace(
        mark=price.to(torch.float32),
        fill=(view.fill[source] * ratio).to(torch.float32),
        buyable=view.buyable[source] & (steps <= last_bar),
        order_limit=round_to_zero(view.order_limit[source] / ratio, settings).to(torch.float32),
        inverse_root_volume=inverse_root_volume.clamp(max=LARGEST).to(torch.float32),
        benchmark=grown.cumsum(0),
        last_bar=last_bar,
        years=view.years[source],
        risk_off=view.risk_off[source],
        clock=view.clock[source],
        ends=ends,
        has_ends=bool(ends.any()),
        event_row=event_row,
        splits=torch.cat([view.splits[:1], view.splits[row[happens]]]),
        dividends=torch.cat([view.dividends[:1], dividends]),
        has_events=bool(happens.any()),
        max_changes=count_changes(ends, event_row, settings),
    )


class _Variant(TradingEnv):
    """Some accounts in one variant. It shows a clock of its own bars."""

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
        """`[T]`: the original's bar that each bar is; None: the same."""
        # Groups as large as without variants: a bar is embedded once for all of a group.
        groups = math.gcd(max(1, env.start_groups // asked.variants), count)
        changes = {**settings.costs_times(times), "observation": "factored", "start_groups": groups}
        settings = settings.model_copy(update=changes)
        view = env.view._replace(spread=half_spreads(env.market, settings))
        if asked.block_sessions is not None:
            self.source = drawn_bars(env.market.session.cpu(), asked.block_sessions, draws).to(
                env.device
            )
            view = resampled(view, self.source, settings)
        self.view = view  # in place of what `TradingEnv.view` would make of the market as it was
        common: dict[str, Any] = {
            "autoreset_mode": env.autoreset_mode,
            "engine": env._asked["engine"],
        }
        common["seed"] = derive(seed, "accounts", number)
        super().__init__(env.market, settings, num_envs=count, **common)

    def shown_bar(self, clock: Tensor) -> Tensor:
        """The original's bar that is shown at bars `clock` `[B]` of this variant."""
        bar = clock if self.source is None else self.source[clock]
        return (bar - self.delay).clamp(min=0)


class RandomisedEnv(SeveralEnvs):
    """B accounts, B / V in each of V variants of `env`'s market: to an agent one environment of
    that market.

    Observations `[B, D]`, or factored with the original's bar as the clock; actions `[B, N]`. It
    has what `train` needs, gradients included, and records nothing. With `block_sessions` each
    variant holds prices and limits of its own, 17 bytes for each asset and bar (what kernels make
    of them comes on top), but no features.
    """

    def __init__(self, env: TradingEnv, *, seed: int | None = None) -> None:
        """The variants are those of `env.settings.randomise` and the seed.

        Without a seed the system's entropy gives one.

        Raises EnvError where variants do not share the accounts evenly, or sessions are too few for
        their blocks.
        """
        count, rest = divmod(env.num_envs, env.settings.randomise.variants)
        if rest or not count:
            raise EnvError(
                f"env.num_envs is {env.num_envs}; make it a multiple of env.randomise.variants, "
                f"{env.settings.randomise.variants}"
            )
        self.settings = env.settings
        self.market = env.market
        self.layout = env.layout
        self.market_rows = env.market_rows
        self.differentiable = env.settings.fractional
        self.np_random_seed = draw_seed() if seed is None else seed
        variants = range(env.settings.randomise.variants)
        self.envs = self.variants = [_Variant(env, count, k, self.np_random_seed) for k in variants]

    def shown_row(self, number: int, clock: Tensor) -> Tensor:
        return self.variants[number].shown_bar(clock)
