"""Episodes: the start of accounts, the draw of their bars, and their observations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fintrader.envs.account import ORDER_ROWS, Account, find_gap, find_owed
from fintrader.envs.market_view import PER_DEVIATION, MarketView
from fintrader.envs.money import EQUITY_FLOOR, in_usd
from fintrader.envs.settings import SHARPE_PRIOR_VOLATILITY, EnvSettings
from fintrader.seeding import derive

# SplitMix64's constants as signed 64-bit numbers. A draw is a function of key and episode alone, so
# that an account's episodes do not depend on the other accounts, or on the engine.
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 to the right, filling with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """Scramble int64 by SplitMix64's output function (Steele, Lea and Flood, 2014), wrapping."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def account_keys(seed: int | Sequence[int], count: int, device: torch.device) -> Tensor:
    """Make the keys `[B]` int64 of the accounts' random streams; account i's key does not depend on
    B.

    A list gives account i the stream of account 0 in an environment seeded with `seed[i]`.
    """
    if isinstance(seed, int):
        first = torch.tensor(derive(seed, "env"), device=device)
        return mix(first + _GOLDEN * torch.arange(count, device=device))
    return mix(torch.tensor([derive(value, "env") for value in seed], device=device))


def draw(key: Tensor, episode: Tensor, span: Tensor) -> Tensor:
    """Draw `[B]` int64 uniform in [0, span): a function of the account's key and its episode's
    number alone."""
    return _shift_right(mix(key + episode * _GOLDEN), 1) % torch.clamp(span, min=1)


def is_listed(view: MarketView, bar: Tensor) -> Tensor:
    """Find the symbols `[B, N]` bool that an account may own at the start `bar` `[B]`: those with a
    price, and bars still to come."""
    return (view.mark_at(bar) > 0) & (view.last_bar > bar.unsqueeze(1))


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
    """Begin an episode with each account.

    `key`, `episode`, `episode_bars` `[B]` int64, `cash` `[B]` float64, `shares` `[B, N]`; `start`
    `[B]` overrides the random start where it is not negative. Shares of symbols that are not listed
    at the start are left out.
    """
    last = len(view.quotes) - 1
    # A start leaves room for the fixed length, or for one step if episodes run to the window's end.
    length = torch.where(episode_bars > 0, torch.clamp(episode_bars, max=last), 1)
    if settings.start == "bar":
        bar = draw(key, episode, last - length + 1)
    else:
        bar = view.starts[draw(key, episode, torch.full_like(key, len(view.starts)))]
    if start is not None:
        bar = torch.where(start >= 0, start, bar)
    stop = view.stops[bar]
    end = torch.where(episode_bars > 0, torch.minimum(bar + length, stop), stop)
    shares = torch.where(is_listed(view, bar), shares, 0.0)
    equity = cash + in_usd(shares, view.mark_at(bar)).sum(1)
    variance = torch.full_like(equity, SHARPE_PRIOR_VOLATILITY**2)
    memory = torch.stack((torch.zeros_like(equity), variance), dim=1)
    finished = torch.zeros_like(bar, dtype=torch.bool)
    account = Account(
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
        resting=shares.new_zeros(len(shares), settings.resting_rows, shares.shape[1]),
    )
    # The premium received equals the value owed at the start.
    return account._replace(cash=cash + find_owed(view, account, bar))


def select(mask: Tensor, chosen: Account, other: Account) -> Account:
    """Take `chosen` where mask `[B]`, else `other`."""
    return Account(
        *(
            torch.where(mask.view(-1, *[1] * (a.ndim - 1)), a, b)
            for a, b in zip(chosen, other, strict=True)
        )
    )


def observe_private(view: MarketView, account: Account, dtype: torch.dtype) -> Tensor:
    """Observe the part `[B, P]` that differs between accounts at the same bar: the account's
    features, the weights held, and the orders that rest."""
    left = (account.end_bar - account.bar).double()
    length = torch.clamp(account.end_bar - account.start_bar, min=1)
    clock = view.clock[account.bar]
    safe = torch.maximum(account.equity, EQUITY_FLOOR * account.first_equity)
    features = [
        account.cash / safe,
        safe / account.first_equity - 1.0,
        account.equity / account.peak_equity - 1.0,
        torch.where(clock < 0, left / length, clock),
    ]
    if len(view.option_value):
        gap, alive = find_gap(view, account.start_bar, account.bar)
        away = gap * (view.option_scale[-1] * (1.0 / PER_DEVIATION))
        features.append(torch.where(alive > 0, away, 0.0))
    mark = view.mark_at(account.bar).double()
    share = (1.0 / safe).unsqueeze(1)
    parts = [torch.stack(features, dim=1), account.shares * mark * share]
    parts += observe_resting(account.resting, mark, share, view.per_bar)
    return torch.cat([part.to(dtype) for part in parts], dim=1)


def observe_resting(resting: Tensor, mark: Tensor, share: Tensor, per_bar: float) -> list[Tensor]:
    """Observe weight, distance from the close and age of the orders that rest `[B, R, N]`, then the
    distance of the stop: `[B, N]` each."""

    def distance(placed: Tensor, price: Tensor) -> Tensor:
        away = (price / torch.where(mark > 0, mark, 1.0) - 1.0).clamp(-1.0, 1.0)
        return torch.where(placed != 0, away, 0.0)

    parts = []
    rows = resting.unbind(1)
    for first in range(0, len(rows) - 1, ORDER_ROWS):
        left, price, age = rows[first : first + ORDER_ROWS]
        parts += [left * mark * share, distance(left, price), age * per_bar]
    if len(rows) % ORDER_ROWS:
        parts.append(distance(rows[-1], rows[-1].abs()))
    return parts


def observe(view: MarketView, account: Account, dtype: torch.dtype) -> Tensor:
    """Make flat observations `[B, D]`."""
    rows = view.table[account.bar]
    return torch.cat((observe_private(view, account, dtype), rows.to(dtype)), dim=1)
