"""A market as accounts read it: prices made safe for arithmetic, limits of orders, events by
bar."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.envs.benchmark import benchmark_kind, benchmark_level, held_weights
from fintrader.envs.money import round_to_zero
from fintrader.envs.observation import market_rows, session_clock
from fintrader.envs.settings import OTHERS, EnvSettings
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors

_YEAR_NS = 365 * 86_400 * 1_000_000_000
"""Nanoseconds of a year of 365 days."""
LARGEST = torch.finfo(torch.float32).max
"""Stands in for infinity, because infinity times 0 is NaN."""


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
    """`[N]` float64: half-spread as a share of the notional."""


class MarketView(NamedTuple):
    """A market made safe for arithmetic: no NaN, and 0 as the price of a symbol that cannot
    trade."""

    mark: Tensor
    """`[T, N]`: close, carried forward past a symbol's end; 0 before its first bar."""
    fill: Tensor
    """`[T, N]`: the price orders fill at in that bar, 0 where the symbol does not trade."""
    buyable: Tensor
    """`[T, N]` bool: positions may grow (tradable, a member, and not the symbol's last bar)."""
    order_limit: Tensor
    """`[T, N]` float32: most shares of one order; infinite without a limit."""
    inverse_root_volume: Tensor
    """`[T, N]` float32: 1 / sqrt(volume in shares), the largest number where nothing was traded."""
    spread: Tensor
    """`[N]` float64: half-spread as a share of the notional."""
    rows: Tensor
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

    def quote(self, bar: Tensor) -> Quote:
        """Look up prices and limits for orders that fill in the bars `[B]`."""
        return Quote(
            self.fill.index_select(0, bar).to(torch.float64),
            self.buyable.index_select(0, bar),
            self.order_limit.index_select(0, bar),
            self.inverse_root_volume.index_select(0, bar),
            self.spread,
        )


def build_market_view(
    market: MarketTensors, settings: EnvSettings, obs_dtype: torch.dtype = torch.float32
) -> MarketView:
    """Sanitise a market once. Raises EnvError for a window of one bar, an unknown turbulence column
    or symbol, and bars without volume where orders take a share of it."""
    bars = market.num_bars
    if bars < 2:
        raise EnvError(f"the window holds {bars} bar(s); trading needs at least two")
    close = market.close
    priced = ~close.isnan()
    steps = torch.arange(bars, device=close.device).unsqueeze(1)
    # The newest bar with a price at or before t; the first row stands in where there is none (price
    # 0 below).
    newest = torch.where(priced, steps, 0).cummax(0).values
    carried = torch.nan_to_num(close, nan=0.0).gather(0, newest)
    final = market.last_bar
    is_cut = (final >= 0) & (final < bars - 1)
    last_bar = torch.where(is_cut, final, bars)
    price = market.open if settings.fill == "next_open" else close
    fill = torch.where(market.tradable, torch.nan_to_num(price, nan=0.0), 0.0)
    volume = torch.where(market.tradable, market.volume, 0.0)
    inverse_root_volume = torch.where(volume > 0, volume.rsqrt(), LARGEST)
    event_row, splits, dividends = _index_events(market)
    ends = find_ends(last_bar, bars)
    kind = benchmark_kind(market, settings.benchmark)
    weights = held_weights(market, kind)
    shown = () if kind == "cash" else (market.member, weights)
    nanoseconds = market.minutes.diff(prepend=market.minutes[:1]).to(torch.float64)
    return MarketView(
        mark=carried.to(torch.float32).contiguous(),
        fill=fill.to(torch.float32).contiguous(),
        buyable=(market.tradable & market.member & (steps < last_bar)).contiguous(),
        order_limit=_limit_orders(volume, settings),
        inverse_root_volume=inverse_root_volume.contiguous(),
        spread=half_spreads(market, settings),
        rows=market_rows(
            (market.features, market.tradable, *shown, market.context), obs_dtype, settings.lookback
        ),
        benchmark=benchmark_level(market, weights).log(),
        last_bar=last_bar,
        years=nanoseconds / _YEAR_NS,
        risk_off=_mark_turbulence(market, settings),
        ends=ends,
        has_ends=bool(is_cut.any()),
        event_row=event_row,
        splits=splits,
        dividends=dividends,
        has_events=len(splits) > 1,
        max_changes=count_changes(ends, event_row, settings),
        clock=session_clock(market.session, settings.clock),
    )


def find_ends(last_bar: Tensor, num_bars: int) -> Tensor:
    """Find the bars `[T]` bool at whose close any symbol ends, from their last bars `[N]`."""
    return torch.isin(torch.arange(num_bars, device=last_bar.device), last_bar)


def count_changes(ends: Tensor, event_row: Tensor, settings: EnvSettings) -> int:
    """Count the bars of one decision interval, at most, at which holdings or cash change without an
    order: `ends` `[T]`, or an event `[T]` in a bar that is not the fill's.

    With interest or a maintenance margin every bar counts.
    """
    interval = settings.decision_interval
    if settings.charges_interest or settings.maintenance_margin > 0.0:
        return interval
    last = len(event_row) - 1
    start = torch.arange(last, device=event_row.device)
    happens = ends | (event_row > 0)
    before = happens.cumsum(0)
    count = before[torch.clamp(start + interval, max=last)] - before[start]
    if settings.fill != "close":
        # Events of the fill's bar come before its orders.
        count = count - (happens & ~ends)[start + 1].to(torch.int64)
    return int(count.max())


def _limit_orders(volume: Tensor, settings: EnvSettings) -> Tensor:
    """Compute the most shares of one order from volumes `[T, N]`."""
    if settings.participation == "none":
        return torch.full_like(volume, torch.inf)
    if not bool((volume > 0).any()):
        raise EnvError(
            "the bars hold no volume, of which an order may take a share; set env.participation to"
            " none to fill orders of any size"
        )
    limit = round_to_zero(volume.to(torch.float64) * settings.participation, settings)
    return limit.to(torch.float32).contiguous()


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
    row = torch.zeros(market.num_bars, dtype=torch.int64, device=market.device)
    row[bars] = torch.arange(1, len(bars) + 1, device=market.device)
    splits = torch.ones(len(bars) + 1, market.num_assets, dtype=torch.float64, device=market.device)
    dividends = torch.zeros_like(splits)
    splits[place + 1, events.asset] = events.split
    dividends[place + 1, events.asset] = events.dividend_usd
    return row, splits, dividends


def _mark_turbulence(market: MarketTensors, settings: EnvSettings) -> Tensor:
    """Mark bars `[T]` at which a watched context column is above its number."""
    marked = torch.zeros(market.num_bars, dtype=torch.bool, device=market.device)
    for name, most in settings.turbulence.items():
        if name not in market.context_names:
            known = ", ".join(market.context_names) or "none"
            raise EnvError(f"env.turbulence: no context column {name!r}; known: {known}")
        marked |= market.context[:, market.context_names.index(name)] > most
    return marked
