"""Several traders in one market: their orders meet in one temporary price impact.

In every game K traders are at the same bar. Their wanted orders are added up per symbol; the net
flow q (USD, bought less sold) moves the price that all of them fill at,

    p' = p (1 + clamp(kappa q, -limit, +limit))

and the move is gone by the close, where accounts are marked at the market's price. Traders on the
side of the flow pay for it, traders on the other side are paid.

The accounts of an environment are its traders, game by game. A ruined trader is out: it orders
nothing and is rewarded 0, `terminated` at each step, until its game ends for all, at the time limit
or when all are ruined.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fintrader.envs.account import Account, Record, advance
from fintrader.envs.episodes import select
from fintrader.envs.market_view import MarketView
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
) -> tuple[Account, Tensor, Tensor, Tensor, Record | None]:
    """Advance the traders of every game to the next decision, as `account.advance` does."""
    traders = settings.traders
    assert traders is not None
    out = account.finished
    # The common price includes the impact of the orders: costs must not charge it again.
    alone = settings.model_copy(update={"traders": None})

    def move_prices(orders: Tensor, price: Tensor) -> Tensor:
        wanted = torch.where(out.unsqueeze(1), 0.0, orders)
        return move_by_flow(wanted, price.double(), settings)

    acted, own, ruined, truncated, entry = advance(
        view, account, action, alone, reward, record=record, move_prices=move_prices
    )
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
