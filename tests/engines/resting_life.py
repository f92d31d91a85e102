"""Lives of a deployment of bids, asks and stops in a `World`.

Its policy draws targets, limit prices and stops from the seed and the moment alone. Beyond the
checks of `Life`, no two sales may be for the same share, no order may be refused for another that
rests, and after each quiet session every whole share of a protected symbol lies in an open sale.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fintrader.agents.policy import PolicyModule
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.entries import OrderTerms
from fintrader.deploy.journal import Journal
from tests.engines.deployments import frozen, settings
from tests.engines.market_life import CALENDAR, HOUR, MINUTE, NANO, SECOND, Session, Ticket
from tests.engines.market_life_run import SYMBOLS, Life

ENV = {
    "action": "limit",
    "limit_offset_bps": 40.0,
    "stop_offset_bps": 150.0,
    "clock": "session",
    "trade_rate": 1.0,
}


def freeze_resting_life(folder: Path, *, bar_minutes: int = 130, interval: int = 1) -> Bundle:
    """Freeze the bundle that these lives share; its own policy is never asked."""
    data = settings(
        bar_minutes=bar_minutes,
        calendar=CALENDAR,
        source={"num_symbols": SYMBOLS, "num_sessions": 40},
        features={"names": ["return_1"], "context": []},
    )
    return frozen(folder, data, decision_interval=interval, cost_bps=0.0, **ENV)[0]


class DrawnPolicy(PolicyModule):
    """Draws its action anew at each moment, of which a life makes the key."""

    def __init__(self, like: PolicyModule, life: Any) -> None:
        super().__init__()
        self.layout = like.layout
        self.meta = like.meta
        self.life = life

    def forward(self, obs: Tensor) -> Tensor:
        draw = random.Random(self.life.draw_key())
        row = [draw.uniform(-1.0, 1.0) for _ in range(self.layout.num_actions)]
        return torch.tensor([row] * len(obs))


class RestingLife(Life):
    """A life whose orders rest."""

    def __init__(self, seed: int, home: Path, bundle: Bundle, **how: Any) -> None:
        super().__init__(seed, home, bundle, **how)
        self.bundle.__dict__["policy"] = DrawnPolicy(bundle.policy, self)
        self.covered: Counter[str] = Counter()
        self.decided = 0

    def draw_key(self) -> str:
        self.decided = self.world.now
        return f"{self.seed} {self.world.now // MINUTE}"

    def next_look(self) -> int:
        """The loop looks also after the close, when a decision has replaced the stops; on a half day
        that is later."""
        now = self.world.now
        ends = [one.close for one in self.world.sessions if one.close <= now]
        last = max([self.decided, *ends])
        usual = super().next_look()
        return min(usual, now + 10 * SECOND) if now < last + 2 * MINUTE else usual

    def _explain(self, ticket: Ticket) -> None:
        """Check an order that has just arrived."""
        self._end_flatten()
        self.covered[f"{'stop' if ticket.is_stop else 'limit'} {ticket.state}"] += 1
        is_doubtful = self.is_disturbed(self.world.now - HOUR, self.world.now)
        if ticket.symbol in self.odd or self.causes or is_doubtful or self._was_planned(ticket):
            return
        if "wash" in ticket.reason or "qty" in ticket.reason:
            self._note(f"{ticket.id} of {ticket.shares / NANO:g}: {ticket.reason}")

    def _was_planned(self, ticket: Ticket) -> bool:
        """Whether the world was asked to refuse an order that it could have taken."""
        if "qty" not in ticket.reason:
            return False
        free = self.world.ledger.shares.get(ticket.symbol, 0)
        others = [one for one in self.world.open_tickets() if one.symbol == ticket.symbol]
        bound = sum(-one.left for one in others if one.left < 0 and one is not ticket)
        return -ticket.shares <= free - bound

    def _check_lost(self, session: Session, journal: Journal) -> None:
        """Check the stops after a session in which nothing was amiss."""
        begun = session.open - 12 * HOUR
        terms = journal.last(OrderTerms)
        if terms is None or self.causes or self.is_disturbed(begun, self.world.now):
            return
        for symbol, price in terms.body.stops.items():
            held = self.world.ledger.shares.get(symbol, 0)
            if symbol in self.odd or not price:
                continue
            open_sales = [one for one in self.world.open_tickets() if one.symbol == symbol]
            offered = sum(-one.left for one in open_sales if one.left < 0)
            if not 0 <= held - offered < NANO:
                self._note(f"of {held / NANO:g} {symbol} {offered / NANO:g} are offered")
            self.covered["whole" if held else "none"] += 1
