"""Several traders in one market: their orders meet in one temporary price impact, and those that
rest match each other.

In every game K traders are at the same bar. Their wanted orders are added up per symbol; the net
flow q (USD, bought less sold) moves the price that all of them fill at,

    p' = p (1 + clamp(kappa q, -limit, +limit))

and the move is gone by the close, where accounts are marked at the market's price. Traders on the
side of the flow pay for it, traders on the other side are paid.

Orders that rest (`action: limit` and `quote`) meet in a call auction at each bar's open. The market
sells (p' / p - 1) / (kappa p) shares at the price p', at most +-limit away from p, and buys
likewise. All orders fill at the price at which demand meets supply. Orders with exactly that limit
share the quantity that the better orders leave, in proportion to their sizes. An order whose price
is not met waits in the bar for the market's own prices.

The accounts of an environment are its traders, game by game. A ruined trader is out: it orders
nothing and is rewarded 0, `terminated` at each step, until its game ends for all, at the time limit
or when all are ruined.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fintrader.envs.account import Account, Advanced, advance
from fintrader.envs.episodes import select
from fintrader.envs.market_view import MarketView
from fintrader.envs.money import round_to_zero
from fintrader.envs.resting import Auction, advance_resting
from fintrader.envs.reward import Reward
from fintrader.envs.settings import MOST_IMPACT, EnvSettings, TraderSettings


def advance_games(
    view: MarketView,
    account: Account,
    action: Tensor,
    settings: EnvSettings,
    reward: Reward,
    *,
    record: bool,
) -> Advanced:
    """Advance the traders of every game to the next decision, as `account.advance` does."""
    traders = settings.traders
    assert traders is not None
    out = account.finished
    # The common price includes the impact of the orders: costs must not charge it again.
    alone = settings.model_copy(update={"traders": None})

    def move_prices(orders: Tensor, price: Tensor) -> Tensor:
        wanted = torch.where(out.unsqueeze(1), 0.0, orders)
        return move_by_flow(wanted, price.double(), settings)

    def open_bar(orders: Tensor, worst: Tensor, price: Tensor) -> Auction:
        wanted = torch.where(out.view(-1, 1, 1), 0.0, orders)
        return hold_auction(wanted, worst, price, settings)

    if settings.orders_rest:
        step = advance_resting(
            view, account, action, alone, reward, record=record, open_bar=open_bar
        )
    else:
        step = advance(view, account, action, alone, reward, record=record, move_prices=move_prices)
    acted, own, ruined, truncated, entry = step
    # A trader that is out keeps its books; only its clock runs on with the game's.
    after = select(out, account._replace(bar=acted.bar), acted)
    gone = out | ruined
    after = after._replace(finished=gone | truncated)
    shared = share_rewards(torch.where(out, 0.0, own), traders)
    return (
        after,
        torch.where(out, 0.0, shared),
        gone,
        truncated & ~gone,
        entry and entry.without(out),
    )


def move_by_flow(orders: Tensor, price: Tensor, settings: EnvSettings) -> Tensor:
    """Move prices `[B, N]` by the net flow of each game's orders `[B, N]` (signed shares)."""
    flow = (orders * price).view(-1, settings.num_traders, price.shape[1])
    kappa = settings.impact_per_usd
    shift = torch.clamp(kappa * flow.sum(1, keepdim=True), -MOST_IMPACT, MOST_IMPACT)
    return price * (1.0 + shift.expand_as(flow).reshape(price.shape))


def hold_auction(orders: Tensor, worst: Tensor, price: Tensor, settings: EnvSettings) -> Auction:
    """Open a bar quoted at `price` `[B, N]` USD, 0 where nothing trades: match each game's orders
    `[B, S, N]` (signed shares, with the worst prices that they accept) with each other and with the
    market."""
    together = (-1, settings.num_traders * orders.shape[1], price.shape[1])
    orders_of = orders.reshape(together)
    limit = worst.reshape(together)
    base = price[:: settings.num_traders].unsqueeze(1)
    kappa = settings.impact_per_usd

    def respond(demand: Tensor) -> Tensor:
        """Return the price at which the market sells as many shares as are demanded."""
        return base * (1.0 + torch.clamp(kappa * base * demand, -MOST_IMPACT, MOST_IMPACT))

    # Net demand falls with the price, and the response with it. The two meet at the largest price
    # that the response to the demand just below it still reaches: at one of the limits, or between.
    buys = orders_of > 0
    at = limit.unsqueeze(2)
    mine = limit.unsqueeze(1)
    joins = torch.where(buys.unsqueeze(1), mine >= at, mine < at)
    demand = (orders_of.unsqueeze(1) * joins).sum(2)
    lowest = respond(torch.where(buys, 0.0, orders_of).sum(1, keepdim=True))
    opened = torch.minimum(limit, respond(demand)).amax(1, keepdim=True).maximum(lowest)

    trades = (orders_of != 0) & (base > 0)
    better = torch.where(buys, limit > opened, limit < opened) & trades
    equal = (limit == opened) & trades & (kappa > 0.0)
    filled = torch.where(better, orders_of, 0.0)
    marginal = torch.where(equal, orders_of, 0.0)
    bought = torch.relu(marginal).sum(1, keepdim=True)
    sold = torch.relu(-marginal).sum(1, keepdim=True)
    move = divide(opened - base, base)
    supply = divide(move, kappa * base)
    # Once the price has moved as far as it may, the market sells (or buys) any number of shares, but
    # never trades on the other side. The quotient `move` may round to just below the bound.
    left = supply - filled.sum(1, keepdim=True)
    free = bought - sold
    edge = MOST_IMPACT * (1 - 1e-9)
    need = torch.where(move >= edge, torch.maximum(left, free), left)
    need = torch.where(move <= -edge, torch.minimum(left, free), need)
    sales = torch.minimum(sold, bought - need).clamp(min=0.0)
    purchases = torch.minimum(bought, sales + need).clamp(min=0.0)
    share = torch.where(buys, divide(purchases, bought), divide(sales, sold))
    filled = filled + round_to_zero(marginal * share, settings)

    purchases = torch.relu(filled).sum(1, keepdim=True)
    sales = torch.relu(-filled).sum(1, keepdim=True)
    matched = torch.minimum(purchases, sales)
    outside = 1.0 - torch.where(buys, divide(matched, purchases), divide(matched, sales))
    return Auction(
        price=opened.expand(-1, settings.num_traders, -1).reshape(price.shape),
        is_met=(better | equal).view_as(orders),
        shares=filled.view_as(orders),
        outside=outside.view_as(orders),
    )


def divide(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, 0 where there is no whole."""
    return part / torch.where(whole > 0, whole, 1.0)


def share_rewards(own: Tensor, traders: TraderSettings) -> Tensor:
    """Share rewards `[B]` by teams and cooperation c: (1 - c) team + c mean of all for c >= 0, team
    + c mean of the others for c < 0, with the mean of a trader's team, and of all outside it."""
    sizes, team = lay_out_teams(traders.teams, own.device)
    games = own.view(-1, len(team))
    sums = torch.zeros(len(games), len(sizes), dtype=own.dtype, device=own.device)
    sums = sums.index_add(1, team, games)
    mean = sums / sizes
    c = traders.cooperation
    if c >= 0.0:
        shared = (1.0 - c) * mean + c * games.mean(1, keepdim=True)
    else:
        outside = (len(team) - sizes).clamp(min=1)
        shared = mean + c * (sums.sum(1, keepdim=True) - sums) / outside
    return shared[:, team].flatten()


@lru_cache
def lay_out_teams(teams: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sizes of the teams, and each trader's team `[K]`; cached, because a GPU waits for new
    tensors."""
    sizes = torch.tensor(teams, device=device)
    return sizes, torch.repeat_interleave(sizes)


def find_ended(over: Tensor, num_traders: int) -> Tensor:
    """Find the accounts `[B]` whose games have ended, because all of its traders are `over`
    `[B]`."""
    return over.view(-1, num_traders).all(1).repeat_interleave(num_traders)
