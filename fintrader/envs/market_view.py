"""A market as accounts read it: prices made safe for arithmetic, limits of orders, events by
bar."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fintrader.envs.benchmark import (
    CELLS_AT_ONCE,
    BenchmarkKind,
    benchmark_kind,
    benchmark_level,
    benchmark_weights,
    carry_forward,
)
from fintrader.envs.money import USD_GRID
from fintrader.envs.observation import MarketTable, session_clock
from fintrader.envs.settings import OTHERS, EnvSettings, OptionSettings
from fintrader.errors import EnvError, suggest
from fintrader.market.tensors import MarketTensors

_YEAR_NS = 365 * 86_400 * 1_000_000_000
"""Nanoseconds of a year of 365 days."""
# Rows of a bar's quotes.
MOST, FILL, MARK = range(3)
LARGEST = torch.finfo(torch.float32).max
"""Stands in for infinity, because infinity times 0 is NaN."""
PER_DEVIATION = 128
"""Points of an option's table per standard deviation of the price. Straight lines between them
leave an error below 2e-6 of the option's notional at the largest deviation that is allowed."""
STRIKE_POINT = 6 * PER_DEVIATION
"""The table's column where the price is the strike: a payoff has its kink there."""
COLUMNS = STRIKE_POINT + 14 * PER_DEVIATION
"""Columns of the table; beyond them values are straight lines. Lognormal prices reach farther up
than down."""


class Quote(NamedTuple):
    """Prices and limits for orders that fill in one bar."""

    price: Tensor
    """`[B, N]` USD, 0 where nothing trades."""
    buyable: Tensor
    """`[B, N]` bool: positions may grow."""
    order_limit: Tensor
    """`[B, N]`: most shares of one order."""
    inverse_root_volume: Tensor
    """`[B, N]`: 1 / sqrt(volume in shares), very large without volume."""
    spread: Tensor
    """`[N]` or `[B, N]` float64: half-spread as a share of the notional."""


class MarketView(NamedTuple):
    """A market made safe for arithmetic: no NaN, and 0 as the price of a symbol that cannot
    trade."""

    quotes: Tensor
    """`[T, 3, N]` float32: largest order in shares; fill price in units of money, negative where
    the symbol may only be sold, 0 where it does not trade; close in units of money. They are stored
    side by side, so that a step reads one stretch of memory, and nowhere else."""
    inverse_root_volume: Tensor
    """`[T, N]` float32: 1 / sqrt(volume in shares), the largest number where nothing was traded."""
    ranges: Tensor
    """`[T, 2, N]` float32: lows and highs in units of money, 0 where nothing trades; `[T, 0, N]`
    where no order rests."""
    spread: Tensor
    """`[N]` float64: half-spread as a share of the notional."""
    table: MarketTable
    """`[T, L*W]`: the market's part of the observation."""
    benchmark: Tensor
    """`[T]` float64: logarithm of the benchmark portfolio's growth since the first bar."""
    last_bar: Tensor
    """`[N]` int64: the bar at whose close the symbol is sold because it ends; T when it does
    not."""
    years: Tensor
    """`[T]` float64: calendar time since the bar before, in years of 365 days."""
    risk_off: Tensor
    """`[T]` bool: turbulence above its threshold."""
    ends: Tensor
    """`[T]` bool: bars that are a symbol's last one before the window ends."""
    has_ends: bool
    """True where there is such a bar."""
    event_row: Tensor
    """`[T]` int64: a bar's row of `splits` and `dividends`; row 0, for most bars, changes
    nothing."""
    splits: Tensor
    """`[R, N]` float64: new shares for an old one."""
    dividends: Tensor
    """`[R, N]` float64: USD for an old share."""
    has_events: bool
    """True where the window holds a split or a dividend."""
    max_changes: int
    """Most bars of one decision interval at which holdings change without an order (see
    `count_changes`)."""
    clock: Tensor
    """`[T]` float64: `time_left` at a bar's close; negative where the episode's own share
    counts."""
    starts: Tensor
    """`[S]` int64: first bars of the sessions of two bars or more, with `start: session`; else the
    window's."""
    stops: Tensor
    """`[T]` int64: the last bar of an episode that begins here: that of the session in which its
    first order fills, else the window's."""
    per_bar: float
    """A bar's share of the time that an order may rest."""
    underlying: Tensor
    """`[2, T]` float64: price of the option's symbol at each close, for a share as counted in the
    first bar, and the strike of an option sold there; `[2, 0]` without an option."""
    option_value: Tensor
    """`[L + 1, K]` float64: the option's value as a share of the first equity, by the bars left and
    by the price, in evenly spaced columns; `[0, 0]` without an option."""
    option_scale: Tensor
    """`[L + 1]` float64: columns of `option_value` for a price change of one whole strike."""

    @property
    def mark(self) -> Tensor:
        """`[T, N]`: close, carried forward past a symbol's end; 0 before its first bar. A copy."""
        return self.quotes[:, MARK] / USD_GRID

    @property
    def fill(self) -> Tensor:
        """`[T, N]`: the price orders fill at in that bar, 0 where the symbol does not trade. A
        copy."""
        return self.quotes[:, FILL].abs() / USD_GRID

    @property
    def buyable(self) -> Tensor:
        """`[T, N]` bool: positions may grow (tradable, a member, and not the symbol's last bar)."""
        return self.quotes[:, FILL] > 0

    @property
    def order_limit(self) -> Tensor:
        """`[T, N]` float32: most shares of one order; infinite without a limit."""
        return self.quotes[:, MOST]

    @property
    def rows(self) -> Tensor:
        """`[T, L*W]`: the whole table, a copy of the features."""
        return self.table.whole

    def mark_at(self, bar: Tensor) -> Tensor:
        """Look up `mark` of the bars `[B]`."""
        return self.quotes[:, MARK].index_select(0, bar) / USD_GRID

    def quote(self, bar: Tensor) -> Quote:
        """Look up prices and limits for orders that fill in the bars `[B]`."""
        limit, fill, _ = self.quotes.index_select(0, bar).unbind(1)
        root = self.inverse_root_volume.index_select(0, bar)
        price = fill.abs().double() / USD_GRID
        return Quote(price, fill > 0, limit, root, self.spread)


_RESULTS: WeakKeyDictionary[MarketTensors, dict[Callable[..., Any], tuple[Any, Any]]]
_RESULTS = WeakKeyDictionary()
"""The last result of each function of a market. Environments, strategies and variations with the
same rules share the result."""


def build_once(build: Callable[..., Any], market: MarketTensors, *rules: Hashable) -> Any:
    """Return `build(market, *rules)`, rebuilt only if the rules differ from the last call's, or a
    tensor of the market was written to."""
    results = _RESULTS.setdefault(market, {})
    # torch counts the writes to a tensor, unless it was made in inference mode.
    state = rules, [part.is_inference() or part._version for _, part in market.arrays()]
    entry = results.get(build)
    if entry is None or entry[0] != state:
        # Not read from `results` again: another thread may have put its own there.
        entry = results[build] = state, build(market, *rules)
    return entry[1]


def build_market_view(
    market: MarketTensors, settings: EnvSettings, obs_dtype: torch.dtype = torch.float32
) -> MarketView:
    """Sanitise a market once. Raises EnvError for a window of one bar, an unknown turbulence column
    or symbol, and bars without volume where orders take a share of it."""
    bars = market.num_bars
    if bars < 2:
        raise EnvError("the window holds too few bars; trading needs at least two")
    last_bar = build_once(_find_cuts, market)
    event_row, splits, dividends = _index_events(market)
    ends = find_ends(last_bar, bars)
    kind = benchmark_kind(market, settings.benchmark)
    option_value, option_scale = tabulate_option(settings.option, market.device)
    starts, stops = bound_episodes(market.session, settings)
    if not len(starts):
        raise EnvError(
            "no session of the window has two bars, so none can hold an episode; set env.start to"
            " bar"
        )
    nanoseconds = market.minutes.diff(prepend=market.minutes[:1]).double()
    quotes, roots = build_once(
        _quote_bars, market, settings.fill, settings.participation, settings.fractional
    )
    return MarketView(
        quotes=quotes,
        inverse_root_volume=roots,
        ranges=lay_ranges(market, settings),
        spread=half_spreads(market, settings),
        table=build_once(_lay_table, market, kind, obs_dtype, settings.lookback),
        benchmark=build_once(_hold_benchmark, market, kind)[1],
        last_bar=last_bar,
        years=nanoseconds / _YEAR_NS,
        risk_off=_mark_turbulence(market, settings),
        ends=ends,
        has_ends=bool(ends.any()),
        event_row=event_row,
        splits=splits,
        dividends=dividends,
        has_events=len(splits) > 1,
        max_changes=count_changes(ends, event_row, settings),
        clock=session_clock(market.session, settings.clock),
        starts=starts,
        stops=stops,
        per_bar=1.0 / settings.order_bars,
        underlying=follow_underlying(market, quotes, event_row, splits, settings.option),
        option_value=option_value,
        option_scale=option_scale,
    )


def tabulate_option(option: OptionSettings | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Compute `option_value` and `option_scale` of a view, by Black and Scholes (1973) without
    interest.

    They form a table because engines differ in the last bit of logarithms and normal distributions,
    but agree on straight lines.
    """
    if option is None:
        return torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    left = torch.arange(option.bars + 1, dtype=torch.float64)
    deviation = 1e-4 * option.volatility_bps * left.clamp(min=1.0).sqrt().unsqueeze(1)
    scale = PER_DEVIATION / deviation
    # Price over strike, less 1; below -1 the lines simply continue.
    gap = (torch.arange(COLUMNS, dtype=torch.float64) - STRIKE_POINT) / scale
    price = (1.0 + gap).clamp(min=0.0)
    far = price.log() / deviation
    normal = torch.special.ndtr
    call = price * normal(far + deviation / 2) - normal(far - deviation / 2)
    call[0] = gap[0].clamp(min=0.0)
    value = {"call": call, "put": call - gap, "straddle": 2.0 * call - gap}[option.kind]
    value = option.weight * option.strike * value
    return value.to(device), scale.squeeze(1).to(device)


def follow_underlying(
    market: MarketTensors,
    quotes: Tensor,
    event_row: Tensor,
    splits: Tensor,
    option: OptionSettings | None,
) -> Tensor:
    """Compute `underlying` of a view from its quotes and splits. Raises EnvError for a symbol that
    is unknown, or has no price in the first bar."""
    if option is None:
        return torch.zeros(2, 0, dtype=torch.float64)
    symbol = market.symbols[0] if option.symbol is None else option.symbol
    if symbol not in market.symbols:
        raise EnvError(f"env.option: no symbol {symbol!r}; {suggest(symbol, market.symbols)}")
    asset = market.symbols.index(symbol)
    price = quotes[:, MARK, asset].double() * splits[event_row, asset].cumprod(0)
    if price[0] == 0:
        raise EnvError(
            f"env.option: {symbol} has no price in the window's first bar; choose another symbol,"
            " or a later start"
        )
    return torch.stack((price, option.strike * price))


def find_ends(last_bar: Tensor, num_bars: int) -> Tensor:
    """Find the bars `[T]` bool at whose close any symbol ends, from their last bars `[N]`."""
    return torch.isin(torch.arange(num_bars, device=last_bar.device), last_bar)


def count_changes(ends: Tensor, event_row: Tensor, settings: EnvSettings) -> int:
    """Count the most bars of one decision interval at which holdings or cash change without an
    order: `ends` `[T]`, or an event `[T]` in a bar that is not the fill's.

    With interest or a maintenance margin every bar counts.
    """
    interval = settings.decision_interval
    if settings.charges_interest or settings.maintenance_margin > 0.0:
        return interval
    last = len(event_row) - 1
    start = torch.arange(last, device=event_row.device)
    happens = ends | (event_row > 0)
    if not happens.any():
        return 0
    before = happens.cumsum(0)
    count = before[torch.clamp(start + interval, max=last)] - before[start]
    if settings.fill != "close":
        # Events of the fill's bar come before its orders.
        count = count - (happens & ~ends)[start + 1].long()
    return int(count.max())


def _find_cuts(market: MarketTensors) -> Tensor:
    """Find `MarketView.last_bar`."""
    final = market.last_bar
    bars = market.num_bars
    return torch.where((final >= 0) & (final < bars - 1), final, bars)


def bound_episodes(session: Tensor, settings: EnvSettings) -> tuple[Tensor, Tensor]:
    """Find `MarketView.starts` and `MarketView.stops`; neighbouring sessions have different numbers
    in `session` `[T]`."""
    if settings.start != "session":
        last_bar = len(session) - 1
        return session.new_zeros(min(last_bar, 1)), torch.full_like(session, last_bar)
    length = torch.unique_consecutive(session, return_counts=True)[1]
    last = length.cumsum(0) - 1
    stop = torch.repeat_interleave(last, length)
    return (last - length + 1)[length > 1], torch.cat((stop[1:], stop[-1:]))


def _quote_bars(
    market: MarketTensors, fill: str, participation: float | Literal["none"], fractional: bool
) -> tuple[Tensor, Tensor]:
    """Compute `quotes` and `inverse_root_volume` of a view, some bars at a time: intermediate
    copies would take several times the result's memory."""
    shape = market.close.shape
    quotes = torch.empty(shape[0], 3, shape[1], dtype=torch.float32, device=market.device)
    roots = torch.empty(shape, dtype=torch.float32, device=market.device)
    last_bar = build_once(_find_cuts, market)
    known = torch.zeros(shape[1], device=market.device)
    still = torch.arange(shape[0], device=market.device).unsqueeze(1) < last_bar
    step = -(-CELLS_AT_ONCE // shape[1])
    for start in range(0, shape[0], step):
        rows = slice(start, start + step)
        tradable = market.tradable[rows]
        mark = carry_forward(market.close[rows], known)
        known = mark[-1]
        price = (market.open if fill == "next_open" else market.close)[rows]
        price = torch.where(tradable, torch.nan_to_num(price, nan=0.0), 0.0)
        volume = torch.where(tradable, market.volume[rows], 0.0)
        if participation == "none":
            limit = torch.full_like(volume, torch.inf)
        else:
            limit = volume.double() * participation
        buyable = tradable & market.member[rows] & still[rows]
        quotes[rows] = pack_quotes(limit if fractional else limit.trunc(), price, buyable, mark)
        roots[rows] = torch.where(volume > 0, volume.rsqrt(), LARGEST)
    if participation != "none" and not (roots < LARGEST).any():
        raise EnvError(
            "the bars hold no volume, but orders may take only a share of it; set env.participation"
            " to none to fill orders of any size"
        )
    return quotes, roots


def lay_ranges(market: MarketTensors, settings: EnvSettings) -> Tensor:
    """Lay out `MarketView.ranges`."""
    if not settings.orders_rest:
        return market.close.new_empty(market.num_bars, 0, market.num_assets)
    ranges = torch.stack((market.low, market.high), 1)
    return torch.where(market.tradable.unsqueeze(1), ranges * USD_GRID, 0.0).nan_to_num()


def pack_quotes(limit: Tensor, price: Tensor, buyable: Tensor, mark: Tensor) -> Tensor:
    """Pack `MarketView.quotes` `[t, 3, N]` from limits, fill prices in USD, flags and closes in
    USD, `[t, N]` each."""
    signed = torch.where(buyable, price, -price) * USD_GRID
    parts = limit, signed, mark * USD_GRID
    return torch.stack([part.float() for part in parts], dim=1)


def _hold_benchmark(market: MarketTensors, kind: BenchmarkKind) -> tuple[Tensor, Tensor]:
    """Compute the benchmark's weights `[T, N]` float32 and the logarithm of its growth `[T]`.
    Raises EnvError for a benchmark other than cash that never holds anything (a market without
    members)."""
    weights = benchmark_weights(market, kind)
    if kind == "cash":
        return weights, torch.zeros(market.num_bars, dtype=torch.float64, device=market.device)
    if not (weights > 0).any():
        raise EnvError(
            f"env.benchmark {kind} needs members with prices, and this window has none; set"
            " env.benchmark to cash"
        )
    return weights.float(), benchmark_level(market, weights).log()


def _lay_table(
    market: MarketTensors, kind: BenchmarkKind, dtype: torch.dtype, lookback: int
) -> MarketTable:
    shown: tuple[Tensor, ...] = ()
    if kind != "cash":
        shown = market.member, build_once(_hold_benchmark, market, kind)[0]
    parts = market.features, market.tradable, *shown, market.context
    return MarketTable(parts, dtype, lookback)


def half_spreads(market: MarketTensors, settings: EnvSettings) -> Tensor:
    """Half-spreads `[N]` float64 as shares of the notional. Raises EnvError for a symbol that is
    not traded."""
    spreads = settings.half_spreads
    unknown = sorted(set(spreads) - {OTHERS, *market.symbols})
    if unknown:
        raise EnvError(
            f"env.half_spread_bps: the market has no {', '.join(unknown)}; remove the spreads"
            " of symbols it does not trade"
        )
    rates = [spreads.get(name, spreads[OTHERS]) / 1e4 for name in market.symbols]
    return torch.tensor(rates, dtype=torch.float64, device=market.device)


def _index_events(market: MarketTensors) -> tuple[Tensor, Tensor, Tensor]:
    """Lay out `event_row`, `splits` and `dividends` of a view."""
    events = market.events
    bars, place = torch.unique(events.bar, return_inverse=True)
    row = torch.zeros_like(market.session)
    splits = torch.ones(len(bars) + 1, market.num_assets, dtype=torch.float64, device=market.device)
    dividends = torch.zeros_like(splits)
    row[bars] = torch.arange(1, len(bars) + 1, device=market.device)
    splits[place + 1, events.asset] = events.split
    dividends[place + 1, events.asset] = events.dividend_usd
    return row, splits, dividends


def _mark_turbulence(market: MarketTensors, settings: EnvSettings) -> Tensor:
    """Mark bars `[T]` at which a watched context column is above its threshold."""
    marked = torch.zeros(market.num_bars, dtype=torch.bool, device=market.device)
    for name, most in settings.turbulence.items():
        if name not in market.context_names:
            known = ", ".join(market.context_names) or "none"
            raise EnvError(f"env.turbulence: no context column {name!r}; known: {known}")
        marked |= market.context[:, market.context_names.index(name)] > most
    return marked
