"""The environment as pure functions: `begin` an episode, `advance` by one decision, `observe`.

No function here changes its arguments, draws from a generator or synchronises with the host, so
that the same code runs eagerly, compiled, on CPU and on CUDA. `TradingEnv` is the stateful shell
around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fintrader.envs.benchmark import benchmark_kind, benchmark_level, held_weights
from fintrader.envs.ledger import (
    Account,
    Bar,
    apply_events,
    closing_cost,
    desired_shares,
    fill_costs,
    fill_orders,
    in_usd,
    round_to_zero,
    split_shares,
    total_cost,
)
from fintrader.envs.observation import market_rows, private_part, session_clock
from fintrader.envs.reward import REMEMBERING, Outcome, Reward, update_memory
from fintrader.envs.settings import EnvSettings
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import derive

_YEAR_NS = 365 * 86_400 * 1_000_000_000
LARGEST = torch.finfo(torch.float32).max
"""In place of infinity, which times 0 is no number."""
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
MovePrices = Callable[[Tensor, Tensor], Tensor]
"""Orders wanted `[B, N]` (signed shares) and fill prices `[B, N]` -> the prices they fill at; 0
stays 0."""


class MarketView(NamedTuple):
    """A market made safe for arithmetic: no NaN, and 0 as the price of what cannot trade."""

    mark: Tensor
    """`[T, N]`: close, carried forward past a symbol's end; 0 before its first bar."""
    fill: Tensor
    """`[T, N]`: the price orders fill at in that bar, 0 where the symbol does not trade."""
    buyable: Tensor
    """`[T, N]` bool: positions may grow (tradable, a member, and not the symbol's last bar)."""
    most: Tensor
    """`[T, N]` float32: shares that an order takes at most; infinite without a limit."""
    thinness: Tensor
    """`[T, N]` float32: 1 / sqrt(volume in shares), the largest number where nothing was traded."""
    spread: Tensor
    """`[N]` float64: half-spread as a share of the notional."""
    rows: Tensor
    """`[T, L*W]`: the market's part of the observation."""
    benchmark: Tensor
    """`[T]` float64: logarithm of what the benchmark portfolio has grown to."""
    last_bar: Tensor
    """`[N]` int64: the bar at whose close the symbol is sold because it ends; T when it does
    not."""
    years: Tensor
    """`[T]` float64: calendar time since the bar before, in years of 365 days."""
    risk_off: Tensor
    """`[T]` bool: turbulence above its threshold."""
    ends: bool
    """Whether any symbol ends inside the window."""
    event_row: Tensor
    """`[T]` int64: the row of `splits` and `dividends` that a bar has; 0, which changes nothing,
    for most."""
    splits: Tensor
    """`[R, N]` float64: new shares for an old one."""
    dividends: Tensor
    """`[R, N]` float64: USD for an old share."""
    eventful: bool
    """Whether the window holds a split or a dividend."""
    clock: Tensor
    """`[T]` float64: what `time_left` shows at a bar's close; below 0 where that is for the episode
    to say."""

    def quote(self, bar: Tensor) -> Bar:
        """What the bars `[B]` mean to orders."""
        return Bar(
            self.fill[bar], self.buyable[bar], self.most[bar], self.thinness[bar], self.spread
        )


class Record(NamedTuple):
    """What happened between two decisions, in k = decision_interval bars; the bars after an early
    end repeat it."""

    decision_bar: Tensor
    """`[B]`: orders were decided at its close."""
    fill_bar: Tensor
    """`[B]`: and filled in it."""
    ordered: Tensor
    """`[B, N]`, signed: what was asked for, in shares of the fill bar. What did not fill of it was
    cancelled: nothing traded, the order exceeded its share of the volume, or there was not the
    money."""
    fill_shares: Tensor
    """`[B, N]`, signed: bought > 0."""
    fill_price: Tensor
    """`[B, N]`, 0 where the symbol did not trade."""
    fill_cost: Tensor
    """`[B, N]` USD: fees, spread and impact of the fills."""
    bars: Tensor
    """`[B, k]`: the bars passed; an account whose episode ends early stays at its last one."""
    bar_equity: Tensor
    """`[B, k]` USD at each bar's close."""
    closed_shares: Tensor
    """`[B, k, N]`, signed as `fill_shares`: forced at the close of that bar (symbol ended, margin
    call)."""
    closed_cost: Tensor
    """`[B, k, N]` USD: cost of the forced trades."""
    interest: Tensor
    """`[B, k]` USD: paid for borrowed stock and cash."""
    income: Tensor
    """`[B, k]` USD: dividends, and cash for what splits left of a share; negative where shares were
    owed."""
    cost: Tensor
    """`[B]` USD: everything paid."""
    turnover: Tensor
    """`[B]` USD: all notionals traded."""

    def without(self, mask: Tensor) -> Record:
        """Nothing traded and nothing paid in the rows of `mask` `[B]`."""
        names = (
            *(
                "ordered",
                "fill_shares",
                "fill_cost",
                "closed_shares",
                "closed_cost",
                "interest",
                "income",
            ),
            *("cost", "turnover"),
        )
        values = {name: getattr(self, name) for name in names}
        rows = {name: mask.view(-1, *[1] * (value.ndim - 1)) for name, value in values.items()}
        return self._replace(
            **{n: torch.where(rows[n], torch.zeros_like(v), v) for n, v in values.items()}
        )


def market_view(
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
    newest = torch.where(priced, steps, torch.zeros_like(steps)).cummax(0).values
    carried = torch.nan_to_num(close, nan=0.0).gather(0, newest)
    final = market.last_bar
    ends = (final >= 0) & (final < bars - 1)
    last_bar = torch.where(ends, final, torch.full_like(final, bars))
    price = market.open if settings.fill == "next_open" else close
    fill = torch.where(market.tradable, torch.nan_to_num(price, nan=0.0), torch.zeros_like(close))
    volume = torch.where(market.tradable, market.volume, torch.zeros_like(market.volume))
    event_row, splits, dividends = _event_rows(market)
    kind = benchmark_kind(market, settings.benchmark)
    weights = held_weights(market, kind)
    shown = () if kind == "cash" else (market.member, weights)
    nanoseconds = market.minutes.diff(prepend=market.minutes[:1]).to(torch.float64)
    return MarketView(
        mark=carried.to(torch.float32).contiguous(),
        fill=fill.to(torch.float32).contiguous(),
        buyable=(market.tradable & market.member & (steps < last_bar)).contiguous(),
        most=_most(volume, settings),
        thinness=torch.where(
            volume > 0, volume.rsqrt(), torch.full_like(volume, LARGEST)
        ).contiguous(),
        spread=half_spreads(market, settings),
        rows=market_rows(
            (market.features, market.tradable, *shown, market.context), obs_dtype, settings.lookback
        ),
        benchmark=benchmark_level(market, weights).log(),
        last_bar=last_bar,
        years=nanoseconds / _YEAR_NS,
        risk_off=_risk_off(market, settings),
        ends=bool(ends.any()),
        event_row=event_row,
        splits=splits,
        dividends=dividends,
        eventful=len(splits) > 1,
        clock=session_clock(market.session, settings.clock),
    )


def _most(volume: Tensor, settings: EnvSettings) -> Tensor:
    if settings.participation == "none":
        return torch.full_like(volume, torch.inf)
    if not bool((volume > 0).any()):
        raise EnvError(
            "the bars hold no volume, of which an order may take a share; set env.participation to"
            " none to fill orders of any size"
        )
    return (
        round_to_zero(volume.to(torch.float64) * settings.participation, settings)
        .to(torch.float32)
        .contiguous()
    )


def half_spreads(market: MarketTensors, settings: EnvSettings) -> Tensor:
    """`[N]` float64, as a share of the notional. Raises EnvError for the spread of a symbol that is
    not traded."""
    unknown = sorted(set(settings.half_spread_bps_of) - set(market.symbols))
    if unknown:
        raise EnvError(
            f"env.half_spread_bps_of: the market has no {', '.join(unknown)}; remove what it does"
            " not trade"
        )
    rates = [
        settings.half_spread_bps_of.get(name, settings.half_spread_bps) / 1e4
        for name in market.symbols
    ]
    return torch.tensor(rates, dtype=torch.float64, device=market.device)


def _event_rows(market: MarketTensors) -> tuple[Tensor, Tensor, Tensor]:
    """`event_row`, `splits` and `dividends` of a view."""
    events = market.events
    bars, place = torch.unique(events.bar, return_inverse=True)
    row = torch.zeros(market.num_bars, dtype=torch.int64, device=market.device)
    row[bars] = torch.arange(1, len(bars) + 1, device=market.device)
    splits = torch.ones(len(bars) + 1, market.num_assets, dtype=torch.float64, device=market.device)
    dividends = torch.zeros_like(splits)
    splits[place + 1, events.asset] = events.split
    dividends[place + 1, events.asset] = events.dividend_usd
    return row, splits, dividends


def _risk_off(market: MarketTensors, settings: EnvSettings) -> Tensor:
    if settings.turbulence_column is None:
        return torch.zeros(market.num_bars, dtype=torch.bool, device=market.device)
    if settings.turbulence_column not in market.context_names:
        known = ", ".join(market.context_names) or "none"
        raise EnvError(
            f"env.turbulence_column: no context column {settings.turbulence_column!r}; known:"
            f" {known}"
        )
    column = market.context_names.index(settings.turbulence_column)
    return market.context[:, column] > settings.turbulence_threshold


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's output function (Steele, Lea and Flood, 2014) on int64, wrapping."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def account_keys(seed: int | Sequence[int], count: int, device: torch.device) -> Tensor:
    """`[B]` int64: the keys of the accounts' random streams; account i's does not depend on how
    many there are.

    A list gives account i the stream that account 0 of an environment seeded with `seed[i]` has.
    """
    if isinstance(seed, int | np.integer):
        first = torch.tensor(derive(int(seed), "env"), device=device)
        return mix(first + _GOLDEN * torch.arange(count, device=device))
    return mix(torch.tensor([derive(int(value), "env") for value in seed], device=device))


def draw(key: Tensor, episode: Tensor, span: Tensor) -> Tensor:
    """`[B]` int64 uniform in [0, span): a function of the account's key and its episode's number
    alone."""
    return _shift_right(mix(key + episode * _GOLDEN), 1) % torch.clamp(span, min=1)


def listed(view: MarketView, bar: Tensor) -> Tensor:
    """`[B, N]` bool: what an account may own that begins at `bar` `[B]`: it has a price, and bars
    are still to come."""
    return (view.mark[bar] > 0) & (view.last_bar > bar.unsqueeze(1))


def begin(
    view: MarketView,
    key: Tensor,
    episode: Tensor,
    cash: Tensor,
    shares: Tensor,
    episode_bars: Tensor,
    settings: EnvSettings,
    start: Tensor | None = None,
) -> Account:
    """Accounts at the start of an episode.

    `key`, `episode`, `episode_bars` `[B]` int64, `cash` `[B]` float64, `shares` `[B, N]`; `start`
    `[B]` overrides the random start where it is not negative. Shares of what is not listed at the
    start are left out.
    """
    last = view.mark.shape[0] - 1
    # With a fixed length every start leaves room for all of it; to the window's end, room for one
    # step.
    length = torch.where(
        episode_bars > 0, torch.clamp(episode_bars, max=last), torch.ones_like(episode_bars)
    )
    bar = draw(key, episode, last - length + 1) if settings.random_start else torch.zeros_like(key)
    if start is not None:
        bar = torch.where(start >= 0, start, bar)
    end = torch.where(
        episode_bars > 0, torch.clamp(bar + length, max=last), torch.full_like(bar, last)
    )
    shares = torch.where(listed(view, bar), shares, torch.zeros_like(shares))
    equity = cash + in_usd(shares, view.mark[bar]).sum(1)
    variance = torch.full_like(equity, settings.sharpe_prior_volatility**2)
    memory = torch.stack((torch.zeros_like(equity), variance), dim=1)
    finished = torch.zeros_like(bar, dtype=torch.bool)
    return Account(
        bar=bar,
        cash=cash,
        shares=shares,
        equity=equity,
        peak_equity=equity,
        first_equity=equity,
        start_bar=bar,
        end_bar=end,
        episode=episode + 1,
        memory=memory,
        finished=finished,
    )


def select(mask: Tensor, chosen: Account, other: Account) -> Account:
    """`chosen` where mask `[B]`, else `other`."""
    rows = mask.unsqueeze(1)
    return Account(
        *(
            torch.where(rows if a.ndim == 2 else mask, a, b)
            for a, b in zip(chosen, other, strict=True)
        )
    )


def advance(
    view: MarketView,
    account: Account,
    action: Tensor,
    settings: EnvSettings,
    reward: Reward,
    *,
    record: bool,
    move_prices: MovePrices | None = None,
) -> tuple[Account, Tensor, Tensor, Tensor, Record | None]:
    """One decision for each account: orders, fills, then k bars marked at their closes.

    `action` `[B, N]`; `move_prices` lets the orders wanted `[B, N]` (signed shares) change the fill
    prices `[B, N]` before anything fills. Returns account, reward `[B]` float64, terminated `[B]`,
    truncated `[B]`, record.
    """
    bar = account.bar
    same_bar = settings.fill == "close"
    fill_bar = bar if same_bar else torch.minimum(bar + 1, account.end_bar)
    flat = view.risk_off[bar] if settings.turbulence_column is not None else None
    mark = view.mark[bar]
    cash = account.cash
    shares = account.shares
    want = desired_shares(action, shares, account.equity, mark, flat, settings)
    income = torch.zeros_like(cash)
    if (
        view.eventful and not same_bar
    ):  # what was asked for before a split is asked for in new shares
        row = view.event_row[fill_bar]
        split = view.splits[row]
        dividend = view.dividends[row]
        order = split_shares(want - shares, split, settings)
        cash, shares, income = apply_events(cash, shares, mark, split, dividend, settings)
        want, mark = (
            shares + order,
            (mark.to(torch.float64) - dividend) / split,
        )  # what a new share is worth today
    quote = view.quote(fill_bar)
    if move_prices is not None:
        quote = quote._replace(price=move_prices(want - shares, quote.price))
    ordered = want - shares
    fills = fill_orders(cash, shares, want, quote, mark, settings)

    cash = fills.cash
    shares = fills.shares
    peak = account.peak_equity
    cost = fills.cost
    turnover = fills.turnover
    equity = account.equity
    steps = []
    for number in range(settings.decision_interval):
        moving = bar < account.end_bar
        bar = bar + moving
        before = view.mark[torch.clamp(bar - 1, min=0)]
        mark = view.mark[bar]
        closed = None
        closed_cost = None
        interest = torch.zeros_like(cash)
        if view.eventful:
            row = torch.where(moving, view.event_row[bar], torch.zeros_like(bar))
            if number > 0 or same_bar:
                cash, shares, income = apply_events(
                    cash, shares, before, view.splits[row], view.dividends[row], settings
                )
            before = before.to(torch.float64) / view.splits[row]
        if settings.short and settings.borrow_bps_per_year > 0.0:
            interest = _interest(cash, shares, before, view, bar, moving, settings)
            cash = cash - interest
            cost = cost + interest
        if view.ends:
            over = (view.last_bar == bar.unsqueeze(1)) & moving.unsqueeze(1)
            cash, shares, closed, closed_cost, total, notional = _close_positions(
                cash, shares, view.quote(bar)._replace(price=mark), over, settings
            )
            cost = cost + total
            turnover = turnover + notional
        value = in_usd(shares, mark)
        equity = cash + value.sum(1)
        if settings.maintenance_margin > 0.0:
            gross = value.abs().sum(1)
            called = (moving & (equity < settings.maintenance_margin * gross)).unsqueeze(1) & (
                view.fill[bar] > 0
            )
            cash, shares, forced, forced_cost, total, notional = _close_positions(
                cash, shares, view.quote(bar)._replace(price=mark), called, settings
            )
            closed = forced if closed is None else closed + forced
            closed_cost = forced_cost if closed_cost is None else closed_cost + forced_cost
            cost = cost + total
            turnover = turnover + notional
            equity = cash + in_usd(shares, mark).sum(1)
        peak = torch.maximum(peak, equity)
        if record:
            nothing = torch.zeros_like(fills.reduced)
            closed, closed_cost = (nothing, nothing) if closed is None else (closed, closed_cost)
            steps.append((bar, equity, closed, closed_cost, interest, income))
        income = torch.zeros_like(income)

    outcome = Outcome(
        account.equity,
        equity,
        account.peak_equity,
        peak,
        account.first_equity,
        cost,
        turnover,
        account.memory,
        view.benchmark[bar] - view.benchmark[account.bar],
    )
    memory = update_memory(outcome, settings) if settings.reward in REMEMBERING else account.memory
    terminated = equity <= settings.ruin_fraction * account.first_equity
    truncated = (bar >= account.end_bar) & ~terminated
    after = account._replace(
        bar=bar, cash=cash, shares=shares, equity=equity, peak_equity=peak, memory=memory
    )
    after = after._replace(finished=terminated | truncated)
    entry = None
    if record:
        paid = fill_costs(fills, quote, settings)
        traded = fills.added - fills.reduced
        by_bar = [torch.stack(values, dim=1) for values in zip(*steps, strict=True)]
        entry = Record._make(
            (account.bar, fill_bar, ordered, traded, quote.price, paid, *by_bar, cost, turnover)
        )
    return after, settings.reward_scale * reward(outcome), terminated, truncated, entry


def _interest(
    cash: Tensor,
    shares: Tensor,
    before: Tensor,
    view: MarketView,
    bar: Tensor,
    moving: Tensor,
    settings: EnvSettings,
) -> Tensor:
    """`[B]`: a year's rate on the short notional (at the last close) and on borrowed cash, for the
    bar's length."""
    borrowed = torch.relu(-in_usd(shares, before)).sum(1) + torch.relu(-cash)
    return borrowed * (settings.borrow_bps_per_year / 1e4) * view.years[bar] * moving


def _close_positions(
    cash: Tensor, shares: Tensor, quote: Bar, where: Tensor, settings: EnvSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Close positions where `[B, N]` says so: cash, shares, traded, costs `[B, N]`, cost,
    notional."""
    closed = torch.where(where, shares, torch.zeros_like(shares))
    value = in_usd(closed, quote.price)
    notional = value.abs()
    total = total_cost(closed, notional, quote, settings, closing=True)
    kept = torch.where(where, torch.zeros_like(shares), shares)
    costs = closing_cost(closed, notional, quote, settings)
    return cash + (value.sum(1) - total), kept, -closed, costs, total, notional.sum(1)


def observe_private(view: MarketView, account: Account, dtype: torch.dtype) -> Tensor:
    """`[B, A + N]`: the part of the observation that differs between accounts at the same bar."""
    left = (account.end_bar - account.bar).to(torch.float64)
    length = torch.clamp(account.end_bar - account.start_bar, min=1)
    clock = view.clock[account.bar]
    return private_part(
        account.cash,
        account.shares,
        view.mark[account.bar],
        account.equity,
        account.peak_equity,
        account.first_equity,
        torch.where(clock < 0, left / length, clock),
        dtype,
    )


def observe(view: MarketView, account: Account, dtype: torch.dtype) -> Tensor:
    """`[B, D]`: the flat observation."""
    rows = view.rows[account.bar]
    return torch.cat((observe_private(view, account, dtype), rows.to(dtype)), dim=1)
