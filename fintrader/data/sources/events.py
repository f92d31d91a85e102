"""What happens to shares besides trading, for the synthetic market: jumps, halts, splits, dividends, listings.

Each happens to stocks of its own, chosen by the seed, so that every one can be told apart in the bars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from fintrader.config import Settings
from fintrader.data.adjust import Action
from fintrader.data.bars import Array
from fintrader.data.sessions import SessionGrid
from fintrader.errors import DataError
from fintrader.seeding import numpy_generator


class EventSettings(Settings):
    """How often what happens; nothing by default."""

    jumps: float = Field(0.0, ge=0, le=1)
    """Chance per stock and session that its price jumps with the first bar; up and down balance in expectation."""
    jump_size: float = Field(0.08, ge=0)
    """Standard deviation of a jump's logarithm."""
    halts: int = Field(0, ge=0)
    """Market-wide halts of `halt_bars` bars, each in a session of its own."""
    halt_bars: int = Field(15, ge=1)
    splits: int = Field(0, ge=0)
    """Stocks that split 2, 3 or 4 for 1."""
    dividends: int = Field(0, ge=0)
    """Stocks that pay 1 % of their price once."""
    delistings: int = Field(0, ge=0)
    """Stocks whose bars end for good."""
    late_listings: int = Field(0, ge=0)
    """Stocks whose bars begin later."""


@dataclass(frozen=True, eq=False)
class Events:
    """What happens, drawn from the seed."""

    jumps: Array
    """`[T, N]` added to the log return of a bar."""
    listed: Array
    """`[T, N]` bool."""
    halted: Array
    """`[T]` bool."""
    actions: tuple[tuple[int, int, float, float], ...]
    """(stock, session, split ratio, dividend as a share of the price)."""

    def apply(
        self, prices: dict[str, Array], volume: Array, grid: SessionGrid, symbols: tuple[str, ...]
    ) -> list[Action]:
        """Turn prices and volumes `[T, N]` into those as traded, in place; returns what a vendor would announce."""
        announced = []
        for stock, session, ratio, share in self.actions:
            row = int(grid.first_bar[session])
            dividend = round(float(prices["close"][row - 1, stock]) * share, 4)
            drop = 1.0 - dividend / float(prices["close"][row - 1, stock])
            for values in prices.values():
                values[row:, stock] *= drop / ratio
            volume[row:, stock] = np.floor(volume[row:, stock] * ratio)
            day = grid.dates[session].item()
            announced.append(Action(symbol=symbols[stock], day=day, split=ratio, dividend_usd=dividend))
        return announced


def draw(settings: EventSettings, seed: int, grid: SessionGrid, num_symbols: int) -> Events:
    """Events of a market. Raises DataError when there are fewer stocks or sessions than events need."""
    happens = settings.splits + settings.dividends + settings.delistings + settings.late_listings
    if happens > num_symbols or (happens and grid.num_sessions < 4) or settings.halts > grid.num_sessions:
        raise DataError(
            f"{happens} splits, dividends, delistings and late listings need as many stocks (there are {num_symbols}), "
            "and halts a session each"
        )
    random = numpy_generator(seed, "synthetic", "events")
    stocks = iter(random.permutation(num_symbols).tolist())
    inner = (grid.num_sessions // 4, 3 * grid.num_sessions // 4)

    def take(number: int) -> list[tuple[int, int]]:
        return [(next(stocks), int(random.integers(*inner))) for _ in range(number)] if number else []

    actions = [(stock, session, float(random.integers(2, 5)), 0.0) for stock, session in take(settings.splits)]
    actions += [(stock, session, 1.0, 0.01) for stock, session in take(settings.dividends)]
    listed = np.ones((grid.num_bars, num_symbols), dtype=bool)
    for stock, session in take(settings.delistings):
        listed[grid.first_bar[session] :, stock] = False
    for stock, session in take(settings.late_listings):
        listed[: grid.first_bar[session], stock] = False
    halted = np.zeros(grid.num_bars, dtype=bool)
    for session in random.permutation(grid.num_sessions)[: settings.halts]:
        first, stop = int(grid.first_bar[session]), int(grid.first_bar[session + 1])
        length = min(settings.halt_bars, stop - first - 2)
        begin = first + 1 + int(random.integers(0, max(1, stop - first - 1 - length)))
        halted[begin : begin + max(length, 0)] = True
    jumps = np.zeros((grid.num_bars, num_symbols))
    if settings.jumps > 0:
        hit = random.random((grid.num_sessions, num_symbols)) < settings.jumps
        size = settings.jump_size * random.standard_normal(hit.shape) - settings.jump_size**2 / 2
        jumps[grid.first_bar[:-1]] = np.where(hit, size, 0.0)  # mean one: nothing to be gained by holding over nights
    return Events(jumps, listed, halted, tuple(actions))
