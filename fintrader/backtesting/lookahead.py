"""Does anything up to bar t depend on what comes after it? Change the future and compare.

The bars behind a market are cut off, or scrambled, from a random bar on; the market is built again from them, a
policy that reacts to every column trades both, and everything before that bar must be equal to the last bit:
prices, flags, features, context, index, observations, fills and equity. What differs is a leak, and has a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from fintrader.backtesting.account import BacktestAccount
from fintrader.data.bars import PRICES, Bars
from fintrader.data.build import assemble
from fintrader.data.calendar import SessionGrid, session_date
from fintrader.data.settings import DataSettings, open_feed
from fintrader.data.sources.base import Feed
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, ObservationLayout, Policy
from fintrader.envs.benchmark import shows_benchmark
from fintrader.errors import BacktestError
from fintrader.progress import SILENT, Progress
from fintrader.seeding import generator, numpy_generator

Mode = Literal["cut", "scrambled"]
MODES: tuple[Mode, ...] = ("cut", "scrambled")
_SYMBOL_ARRAYS = ("open", "close", "volume", "tradable", "member")
Rebuild: TypeAlias = Callable[[int, Mode], MarketTensors]
"""Builds the market again from bars that were changed from a bar number on, and how."""


@dataclass(frozen=True)
class Leak:
    """One thing that changed with the future."""

    what: str
    """The name: `feature return_5`, `context turbulence`, `close`, `observation`, `fill`, `equity`, ..."""
    cut: int
    """From this bar on the future was changed."""
    bar: int
    """The first bar that differs; it lies before `cut`."""
    mode: Mode
    detail: str = ""

    def __str__(self) -> str:
        where = f"bar {self.bar} changes when bars from {self.cut} on are {self.mode}"
        return f"{self.what}: {where}{f' ({self.detail})' if self.detail else ''}"


@dataclass(frozen=True)
class LookaheadReport:
    """What was tried and what was found."""

    cuts: tuple[int, ...]
    leaks: tuple[Leak, ...]

    @property
    def clean(self) -> bool:
        return not self.leaks

    def __str__(self) -> str:
        tried = f"{len(self.cuts)} cuts, bars {', '.join(map(str, self.cuts))}, future {' and '.join(MODES)}"
        if self.clean:
            return f"No look-ahead found: {tried}."
        return "\n".join([f"Look-ahead found: {tried}.", *(f"  {leak}" for leak in self.leaks)])


def lookahead(
    data: DataSettings,
    env: EnvSettings,
    *,
    cuts: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> LookaheadReport:
    """The whole way from bars to equity, for a configuration. Raises DataError where the market cannot be built.

    Cuts lie after the training window: inside it, the statistics that features are standardised with change with
    the bars, as they should. A benchmark, actions or membership read from files of their own are not changed.
    """
    settings = data.effective()
    feed = open_feed(settings, None)
    feed.prepare()
    first, last = feed.span()
    pinned = {
        "start": settings.start or session_date(settings.calendar, first),
        "end": settings.end or session_date(settings.calendar, last),
    }
    settings = settings.model_copy(update=pinned)
    market, _ = assemble(settings, feed)

    def rebuild(cut: int, mode: Mode) -> MarketTensors:
        start = int(market.minutes[cut])
        return assemble(settings, cast(Feed, _ChangedFeed(feed, start, mode, seed)), progress=None)[0]

    return find_leaks(market, rebuild, env, cuts=cuts, seed=seed, progress=progress)


def find_leaks(
    market: MarketTensors,
    rebuild: Rebuild,
    env: EnvSettings,
    *,
    policy: Policy | None = None,
    cuts: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> LookaheadReport:
    """Compare `market` with what `rebuild` makes of changed futures, at `cuts` random bars.

    Raises BacktestError when there is no bar to cut at.
    """
    begin = market.windows.train[1] if market.windows else market.num_bars // 3
    candidates = np.arange(begin + 2, market.num_bars - 2)
    if not candidates.size or cuts < 1:
        raise BacktestError("there is no bar after the training window to cut at; give a longer market or more cuts")
    rng = numpy_generator(seed, "lookahead")
    chosen = np.sort(rng.choice(candidates, size=min(cuts, candidates.size), replace=False))
    policy = policy or reacting_policy(market, seed, env)
    leaks: list[Leak] = []
    with (progress or SILENT).task("look-ahead", total=len(chosen) * len(MODES), unit="builds") as task:
        for cut in chosen.tolist():
            for mode in MODES:
                changed = rebuild(cut, mode)
                found = compare_markets(market, changed, cut, mode)
                # A symbol whose bars are cut off ends there and is sold: fills are compared where nothing ends.
                if mode == "scrambled":
                    found += compare_trading(market, changed, cut, mode, env, policy)
                leaks += found
                task.advance()
    return LookaheadReport(tuple(chosen.tolist()), tuple(leaks))


def compare_markets(market: MarketTensors, changed: MarketTensors, cut: int, mode: Mode) -> list[Leak]:
    """Every array before `cut`, for the symbols that both have; one leak a column, at its first differing bar."""
    common = [name for name in market.symbols if name in changed.symbols]
    ours, theirs = (torch.tensor([m.symbols.index(name) for name in common]) for m in (market, changed))
    leaks = []

    def check(what: str, one: Tensor, other: Tensor) -> None:
        same = (one == other) | (one.isnan() & other.isnan()) if one.is_floating_point() else one == other
        rows = same.flatten(1).all(1) if same.ndim > 1 else same
        if not bool(rows.all()):
            bar = int((~rows).nonzero()[0])
            where = ""
            if same.ndim > 1:
                where = common[int((~same[bar].reshape(len(common), -1).all(1)).nonzero()[0])]
            leaks.append(Leak(what, cut, bar, mode, where))

    for name in _SYMBOL_ARRAYS:
        check(name, getattr(market, name)[:cut, ours], getattr(changed, name)[:cut, theirs])
    for k, name in enumerate(market.feature_names):
        check(f"feature {name}", market.features[:cut, ours, k], changed.features[:cut, theirs, k])
    for k, name in enumerate(market.context_names):
        check(f"context {name}", market.context[:cut, k], changed.context[:cut, k])
    for name in ("benchmark", "session", "minutes"):
        check(name, getattr(market, name)[:cut], getattr(changed, name)[:cut])
    return leaks


def compare_trading(
    market: MarketTensors, changed: MarketTensors, cut: int, mode: Mode, env: EnvSettings, policy: Policy
) -> list[Leak]:
    """Observations, fills and equity before `cut`, traded by the same policy in both markets."""
    if market.symbols != changed.symbols:
        return [Leak("symbols", cut, 0, mode, "the future decides which symbols are in the market")]
    (one, seen), (other, theirs) = (_trade(m, env, policy, cut) for m in (market, changed))
    leaks = []
    for (bar, obs), (_, their_obs) in zip(seen, theirs, strict=True):
        if not torch.equal(obs, their_obs):
            column = int((obs != their_obs).flatten().nonzero()[0])
            leaks.append(Leak("observation", cut, bar, mode, column_name(one.layout, market, column)))
            break
    ours_usd, theirs_usd = one.trade_log.equity[:cut], other.trade_log.equity[:cut]
    if (apart := np.flatnonzero(ours_usd != theirs_usd)).size:
        bar = int(apart[0])
        leaks.append(Leak("equity", cut, bar, mode, f"{ours_usd[bar]:,.2f} and {theirs_usd[bar]:,.2f} USD"))
    if (moved := np.argwhere(one.trade_log.shares[:cut] != other.trade_log.shares[:cut])).size:
        leaks.append(Leak("fill", cut, int(moved[0, 0]), mode, market.symbols[int(moved[0, 1])]))
    return leaks


def column_name(layout: ObservationLayout, market: MarketTensors, column: int) -> str:
    """What stands in a column of the flat observation."""
    for part, columns in layout.slices.items():
        if columns.start <= column < columns.stop:
            at = column - columns.start
            if part == "features":
                asset, feature = divmod(at, layout.num_features)
                return f"feature {market.feature_names[feature]} of {market.symbols[asset]}"
            if part == "history":
                back, below = divmod(at, layout.row_width)
                bare = replace(layout, lookback=1)
                name = column_name(bare, market, below + bare.private_width)
                return f"{name}, {layout.lookback - 1 - back} bars before"
            if part in ("holdings", "tradable", "member", "benchmark"):
                return f"{part} of {market.symbols[at]}"
            return f"{part} {market.context_names[at]}" if part == "context" else f"{part} {at}"
    raise IndexError(column)


def reacting_policy(market: MarketTensors, seed: int, env: EnvSettings) -> Policy:
    """A fixed random function of every column: if anything it sees changes, so do its trades."""
    layout = ObservationLayout.of(market, env.lookback, benchmark=shows_benchmark(market, env))
    draw = generator(seed, "lookahead-policy")
    weight = torch.randn(layout.width, layout.num_assets, generator=draw) / layout.width**0.5

    def policy(obs: Tensor) -> Tensor:
        return torch.tanh(obs @ weight)

    return policy


def _trade(
    market: MarketTensors, env: EnvSettings, policy: Policy, cut: int
) -> tuple[BacktestAccount, list[tuple[int, Tensor]]]:
    """Decide at every bar before `cut` (the decision at cut - 1 fills later): the account, and what it saw when."""
    account = BacktestAccount(market, env)
    seen: list[tuple[int, Tensor]] = []
    over = False
    with torch.no_grad():
        while not over and account.bar < cut:
            obs = account.observe()
            seen.append((account.bar, obs))
            over = account.act(policy(obs))
    return account, seen


class _ChangedFeed:
    """Another feed's bars, cut off or scrambled from a time on; its span, and so the grid, stays."""

    def __init__(self, feed: Feed, start: int, mode: Mode, seed: int) -> None:
        self._feed, self._start, self._mode, self._seed = feed, start, mode, seed

    def __getattr__(self, name: str) -> Any:
        """Everything but the bars is the other feed's: symbols, span, actions, identity."""
        return getattr(self._feed, name)

    def bars(self, symbol: str) -> Bars:
        bars = self._feed.bars(symbol)
        if self._mode == "cut":
            return bars.take(bars.ts < self._start)
        return scrambled(bars, bars.ts >= self._start, numpy_generator(self._seed, "scramble", symbol))

    def index(self, grid: SessionGrid) -> Any:
        level = self._feed.index(grid)
        if level is None:
            return None
        changed, later = np.array(level), grid.minutes >= self._start
        changed[later] *= numpy_generator(self._seed, "scramble", "index").uniform(0.8, 1.25, int(later.sum()))
        return changed


def scrambled(bars: Bars, rows: Any, rng: np.random.Generator) -> Bars:
    """The same times with other prices, volumes and extra columns in `rows`: shuffled among them, prices moved."""
    where = np.flatnonzero(rows)
    order = rng.permutation(where)
    move = rng.uniform(0.8, 1.25)

    def change(values: Any, factor: float = 1.0) -> Any:
        changed = np.array(values)
        changed[where] = values[order] * factor
        return changed

    prices = {name: change(getattr(bars, name), move) for name in PRICES}
    extras = {name: change(values) for name, values in bars.extras.items()}
    return replace(bars, volume=change(bars.volume), extras=extras, **prices)
