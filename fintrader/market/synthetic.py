"""The synthetic market, and its events: jumps, halts, splits, dividends, delistings, late listings.

A stock has at most one split, dividend, delisting or late listing, so that the bars show each of
them separately. The seed decides which stock has which.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, field_validator, model_validator

from fintrader.bars.bars import Array, Bars
from fintrader.bars.calendar import SessionGrid, session_grid
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.feed import MemoryFeed
from fintrader.config import Count, Settings, fill_mapping
from fintrader.errors import DataError
from fintrader.progress import SILENT, Progress
from fintrader.seeding import create_numpy_generator

EventKind = Literal[
    "jumps",
    "jump_size",
    "halts",
    "halt_bars",
    "splits",
    "dividends",
    "delistings",
    "late_listings",
]
EVENTS: Mapping[EventKind, float] = {
    "jumps": 0.0,
    "jump_size": 0.08,
    "halts": 0,
    "halt_bars": 15,
    "splits": 0,
    "dividends": 0,
    "delistings": 0,
    "late_listings": 0,
}
"""Default of `SyntheticSettings.events`, which describes the keys."""
SIGNAL = "signal"
"""Name of the extra column with the planted signal."""
PLANTED: Mapping[Literal["drift_bps", "switch"], float] = {"drift_bps": 8.0, "switch": 0.02}
"""Default of `SyntheticSettings.planted`."""
WalkKey = Literal["drift_bps", "path_steps", "wick_bps", "volume"]
WALK: Mapping[WalkKey, float] = {
    "drift_bps": 0.0,
    "path_steps": 16,
    "wick_bps": 0.0,
    "volume": 1e6,
}
"""Values of `SyntheticSettings.walk` that are not set."""
SignalKey = Literal["half_life", "bps"]
DECAY: Mapping[SignalKey, float] = {"half_life": 10.0, "bps": 1.0}
"""Values of a signal in `SyntheticSettings.signals` that are not set."""
VOLUME_USD = 20e6
"""Approximate USD traded per stock and bar, averaged over the day, as for a large company."""
START = dt.date(2019, 1, 2)
"""First day of a market without `data.start`."""
INDEX_RATIO = 5 / 8
"""Volatility of the index over that of a stock's own return: about that of large companies."""
REGIME_RATIO = 2.0
"""Volatility of the wild regime over that of the calm one."""
REGIME_SWITCH = 0.002
"""Probability per bar that the volatility regime changes: about once per session of minute bars."""


@dataclass(frozen=True, eq=False)
class RandomEvents:
    """Events of a synthetic market, drawn from the seed."""

    jumps: Array
    """`[T, N]`: added to the log return of each bar."""
    listed: Array
    """`[T, N]` bool: the stock is listed."""
    halted: Array
    """`[T]` bool: a halt, without trading in any stock."""
    actions: tuple[tuple[int, int, float, float], ...]
    """(number of the stock, number of the session, split ratio, dividend as a fraction of the last
    close)."""

    def apply(
        self, prices: dict[str, Array], volume: Array, grid: SessionGrid, symbols: tuple[str, ...]
    ) -> list[Action]:
        """Apply splits and dividends to prices and volumes `[T, N]`, in place; return the actions
        that a vendor would announce."""
        announced = []
        for stock, session, ratio, share in self.actions:
            row = int(grid.first_bar[session])
            dividend = round(float(prices["close"][row - 1, stock]) * share, 4)
            drop = 1.0 - dividend / float(prices["close"][row - 1, stock])
            for values in prices.values():
                values[row:, stock] *= drop / ratio
            volume[row:, stock] = np.floor(volume[row:, stock] * ratio)
            day = grid.dates[session].item()
            announced.append(
                Action(symbol=symbols[stock], day=day, split=ratio, dividend_usd=dividend)
            )
        return announced


def draw(
    events: Mapping[EventKind, float], seed: int, grid: SessionGrid, num_symbols: int
) -> RandomEvents:
    """Draw the events of a market of `num_symbols` stocks. Splits, dividends, delistings and late
    listings fall into the middle half of the sessions, halts inside a session, and jumps on the
    first bar of a session.

    Raises DataError if there are fewer stocks or sessions than the events need.
    """
    counts = {name: int(value) for name, value in events.items()}
    num_events = sum(
        counts[name] for name in ("splits", "dividends", "delistings", "late_listings")
    )
    if (
        num_events > num_symbols
        or (num_events and grid.num_sessions < 4)
        or counts["halts"] > grid.num_sessions
    ):
        raise DataError(
            f"{num_events} splits, dividends, delistings and late listings need as many stocks"
            f" (there are {num_symbols}) and 4 sessions, and each halt needs a session; raise"
            " data.source.num_symbols or num_sessions, or lower data.source.events"
        )
    random = create_numpy_generator(seed, "synthetic", "events")
    stocks = iter(random.permutation(num_symbols).tolist())
    inner = (grid.num_sessions // 4, 3 * grid.num_sessions // 4)

    def draw_stocks(kind: EventKind) -> list[tuple[int, int]]:
        return [(next(stocks), int(random.integers(*inner))) for _ in range(counts[kind])]

    actions = [
        (stock, session, float(random.integers(2, 5)), 0.0)
        for stock, session in draw_stocks("splits")
    ]
    actions += [(stock, session, 1.0, 0.01) for stock, session in draw_stocks("dividends")]
    listed = np.ones((grid.num_bars, num_symbols), dtype=bool)
    for stock, session in draw_stocks("delistings"):
        listed[grid.first_bar[session] :, stock] = False
    for stock, session in draw_stocks("late_listings"):
        listed[: grid.first_bar[session], stock] = False
    halted = np.zeros(grid.num_bars, dtype=bool)
    for session in random.permutation(grid.num_sessions)[: counts["halts"]]:
        first = int(grid.first_bar[session])
        stop = int(grid.first_bar[session + 1])
        length = min(counts["halt_bars"], stop - first - 2)
        begin = first + 1 + int(random.integers(0, max(1, stop - first - 1 - length)))
        halted[begin : begin + max(length, 0)] = True
    jumps = np.zeros((grid.num_bars, num_symbols))
    if events["jumps"] > 0:
        is_jump = random.random((grid.num_sessions, num_symbols)) < events["jumps"]
        deviation = events["jump_size"]
        # E[exp(size)] = 1, so that holding a stock overnight earns nothing on average
        size = deviation * random.standard_normal(is_jump.shape) - deviation**2 / 2
        jumps[grid.first_bar[:-1]] = np.where(is_jump, size, 0.0)
    return RandomEvents(jumps, listed, halted, tuple(actions))


class SyntheticSettings(Settings):
    """A synthetic market, drawn from a seed."""

    kind: Literal["synthetic"] = "synthetic"
    seed: int = 0
    num_symbols: Count = 10
    num_sessions: Count = 40
    volatility_bps: PositiveFloat = 8.0
    """Standard deviation of a stock's own return per bar, in basis points, averaged over the day;
    the index's is 5/8 of it."""
    missing: float = Field(0.0, ge=0, lt=0.9)
    """Probability that a stock does not trade in a bar, which is then missing."""
    planted: (
        Annotated[Mapping[Literal["drift_bps", "switch"], float], fill_mapping(PLANTED)] | None
    ) = PLANTED
    """The predictable part: every stock has a drift that switches between two states, independently
    of the other stocks. `drift_bps`: expected return per bar, in basis points, in the state up, and
    its negative in the state down; `switch`: probability per bar that the state changes (nights do
    not count). The extra column `signal` is the state at the bar's close, +1 or -1. None: nothing
    is predictable."""
    walk: Annotated[Mapping[WalkKey, float], fill_mapping(WALK)] | None = None
    """If set, each stock is an independent geometric random walk with a known law: constant
    volatility, and no index, regimes or daily pattern. The first price is 100 USD; a stock below 25
    or above 400 USD is split to about 100 before the next session. `drift_bps`: expected return of
    a bar, in basis points; `path_steps`: number of normal steps within a bar, whose extremes are
    its high and low; `wick_bps`: mean distance by which high and low lie beyond these extremes,
    exponentially distributed, without effect on the close; `volume`: shares per bar."""
    signals: Mapping[str, Annotated[Mapping[SignalKey, float], fill_mapping(DECAY)]] = Field(
        default_factory=dict
    )
    """Extra columns of a `walk` that predict returns: independent AR(1) processes with variance 1
    and a half-life of `half_life` bars. Each unit adds `bps` basis points to the next bar's
    expected return."""
    events: Annotated[Mapping[EventKind, float], fill_mapping(EVENTS)] = EVENTS
    """Frequency of events; 0 by default. `jumps`: probability per stock and session that its price
    jumps with the first bar, by `jump_size` (standard deviation of the logarithm); `halts`:
    market-wide halts of `halt_bars` bars; `splits`, `dividends` (1 % of the price, once),
    `delistings`, `late_listings`: the number of stocks that have one. Half days come from the
    calendar."""

    @field_validator("planted")
    @classmethod
    def _check_planted(cls, planted: Mapping[str, float] | None) -> Mapping[str, float] | None:
        if planted is not None and not (planted["drift_bps"] >= 0 and 0 < planted["switch"] <= 0.5):
            raise ValueError("expected drift_bps of at least 0, and switch above 0, at most 0.5")
        return planted

    @field_validator("walk")
    @classmethod
    def _check_walk(cls, walk: Mapping[str, float] | None) -> Mapping[str, float] | None:
        if walk is not None and not (
            walk["path_steps"] >= 1
            and walk["path_steps"] == int(walk["path_steps"])
            and 0 <= walk["wick_bps"] < 500
            and walk["volume"] >= 0
        ):
            raise ValueError(
                "expected path_steps of 1 or more, wick_bps from 0 to 500, and volume of at least 0"
            )
        return walk

    @model_validator(mode="after")
    def _check_signals(self) -> Self:
        if self.signals and self.walk is None:
            raise ValueError("signals need walk; set data.source.walk, or remove the signals")
        if any(signal["half_life"] <= 0 for signal in self.signals.values()):
            raise ValueError("signals: a half_life is a number of bars above 0")
        return self

    @field_validator("events")
    @classmethod
    def _check_events(cls, events: Mapping[EventKind, float]) -> Mapping[EventKind, float]:
        for name, value in events.items():
            if value < 0 or (name == "jumps" and value > 1):
                raise ValueError(f"{name}: expected 0 or more, and at most 1 for jumps")
            if not name.startswith("jump") and value != int(value):
                raise ValueError(f"{name}: expected a whole number")
        return events


def synthetic_grid(
    settings: SyntheticSettings, calendar: str, bar_minutes: int, start: dt.date = START
) -> SessionGrid:
    """Return the grid of the first `num_sessions` sessions on or after `start`. Raises DataError if
    the calendar has fewer."""
    days = settings.num_sessions * 3 // 2 + 15  # enough, with 252 sessions in 365 days
    try:
        whole = session_grid(calendar, start, start + dt.timedelta(days=days), bar_minutes)
        last = whole.dates[settings.num_sessions - 1].item()
    except (OverflowError, IndexError) as error:
        raise DataError(
            f"{calendar} has fewer than {settings.num_sessions} sessions from {start} on; lower"
            " data.source.num_sessions or set an earlier data.start"
        ) from error
    return session_grid(calendar, start, last, bar_minutes)


@dataclass(frozen=True, eq=False)
class SyntheticMarket:
    """A generated market."""

    bars: Bars
    """Bars with prices as traded, not adjusted for splits and dividends."""
    index: Array
    """`[T]`: level of the index at each bar's close."""
    actions: tuple[Action, ...]
    """Splits and dividends, as a vendor would announce them."""


def generate(settings: SyntheticSettings, grid: SessionGrid) -> SyntheticMarket:
    """Generate the bars of all stocks on `grid`, except missing ones, and the index. Raises
    DataError if the events need more stocks or sessions."""
    if settings.walk is not None:
        return generate_walk(settings, settings.walk, grid)
    num_bars = grid.num_bars
    num_symbols = settings.num_symbols
    volatility = _volatility(settings, grid)

    random = partial(create_numpy_generator, settings.seed, "synthetic")

    def noise(name: str, *shape: int) -> Array:
        return random(name).standard_normal(shape)

    # index: ln I[t] = ln I[t-1] + s_I e - s_I² / 2, so that E[I[t] / I[t-1]] = 1
    index_scale = 1e-4 * (INDEX_RATIO * settings.volatility_bps) * volatility
    index_steps = index_scale * noise("index", num_bars)
    index = 1000.0 * np.exp(np.cumsum(index_steps - index_scale**2 / 2))

    # stock: ln P[t] = ln P[t-1] + mu state[t-1] + (beta s_I e_I + s e) - variance / 2
    beta = random("beta").uniform(0.6, 1.4, num_symbols)
    own_scale = 1e-4 * settings.volatility_bps * volatility[:, None]
    steps = index_steps[:, None] * beta + own_scale * noise("stocks", num_bars, num_symbols)
    steps -= ((index_scale[:, None] * beta) ** 2 + own_scale**2) / 2
    events = draw(settings.events, settings.seed, grid, num_symbols)
    steps += events.jumps
    extras: dict[str, Array] = {}
    if settings.planted is not None:
        state = drift_states(settings, num_bars)
        steps[1:] += 1e-4 * settings.planted["drift_bps"] * state[:-1]
        extras[SIGNAL] = state
    first = random("price").uniform(20.0, 200.0, num_symbols)
    close = first * np.exp(np.cumsum(steps, axis=0))
    open_ = np.vstack([first[None, :], close[:-1]])
    reach = np.abs(noise("reach", 2, num_bars, num_symbols)) * own_scale * 0.5
    high = np.maximum(open_, close) * (1 + reach[0])
    low = np.minimum(open_, close) * (1 - np.minimum(reach[1], 0.5))
    surge = volatility[:, None] * np.exp(0.5 * noise("volume", num_bars, num_symbols))
    volume = np.floor(VOLUME_USD / first * surge) + 1

    prices = {"open": open_, "high": high, "low": low, "close": close}
    return _assemble(settings, grid, prices, volume, extras, index, events)


def generate_walk(
    settings: SyntheticSettings, walk: Mapping[Any, float], grid: SessionGrid
) -> SyntheticMarket:
    """Generate independent geometric random walks, as `SyntheticSettings.walk` describes them.
    Raises like `generate`."""
    random = partial(create_numpy_generator, settings.seed, "walk")
    shape = (grid.num_bars, settings.num_symbols)
    extras: dict[str, Array] = {}
    expected = np.full(shape, 1e-4 * walk["drift_bps"])
    for name, signal in settings.signals.items():
        column = _make_ar1(random(name).standard_normal(shape), signal["half_life"])
        expected[1:] += 1e-4 * signal["bps"] * column[:-1]
        extras[name] = column
    if settings.planted is not None:
        extras[SIGNAL] = drift_states(settings, grid.num_bars)
        expected[1:] += 1e-4 * settings.planted["drift_bps"] * extras[SIGNAL][:-1]
    events = draw(settings.events, settings.seed, grid, settings.num_symbols)
    scale = 1e-4 * settings.volatility_bps
    drift = expected + events.jumps - scale**2 / 2

    # Simulate the steps within all bars at once; only their extremes and the last one are kept.
    count = int(walk["path_steps"])
    noise = random("path")
    now = np.zeros(shape)
    high = np.zeros(shape)
    low = np.zeros(shape)
    for _ in range(count):
        now += drift / count + scale / np.sqrt(count) * noise.standard_normal(shape)
        high = np.maximum(high, now)
        low = np.minimum(low, now)
    close = 100.0 * np.exp(np.cumsum(now, axis=0))
    open_ = np.vstack([np.full((1, shape[1]), 100.0), close[:-1]])
    wick = 1e-4 * walk["wick_bps"] * random("wick").standard_exponential((2, *shape))
    high = np.maximum(open_ * np.exp(high), close) * (1.0 + wick[0])
    low = np.minimum(open_ * np.exp(low), close) / (1.0 + wick[1])
    prices = {"open": open_, "high": high, "low": low, "close": close}
    index = 1000.0 * np.exp(np.cumsum(now.mean(axis=1)))
    volume = np.full(shape, walk["volume"])
    splits = _split_far_prices(prices, grid)
    return _assemble(settings, grid, prices, volume, extras, index, events, splits)


def _split_far_prices(
    prices: Mapping[str, Array], grid: SessionGrid
) -> list[tuple[int, int, float]]:
    """Split stocks that close a session below 25 or above 400 USD to about 100 USD from the next
    session on: change prices `[T, N]` in place, and return stock, session and ratio of each
    split."""
    splits = []
    for session in range(1, grid.num_sessions):
        first = grid.first_bar[session]
        for stock, price in enumerate(prices["close"][first - 1].tolist()):
            if 25.0 <= price <= 400.0:
                continue
            ratio = float(round(price / 100.0)) if price > 100.0 else 1.0 / round(100.0 / price)
            for values in prices.values():
                values[first:, stock] /= ratio
            splits.append((stock, session, ratio))
    return splits


def _make_ar1(noise: Array, half_life: float) -> Array:
    """Turn standard normal noise `[T, N]` into AR(1) processes `[T, N]` with variance 1, whose
    autocorrelation halves every `half_life` bars."""
    decay = 0.5 ** (1.0 / half_life)
    values = noise.copy()
    for row in range(1, len(values)):
        values[row] = decay * values[row - 1] + np.sqrt(1.0 - decay**2) * noise[row]
    return values


def _assemble(
    settings: SyntheticSettings,
    grid: SessionGrid,
    prices: dict[str, Array],
    volume: Array,
    extras: Mapping[str, Array],
    index: Array,
    events: RandomEvents,
    splits: Sequence[tuple[int, int, float]] = (),
) -> SyntheticMarket:
    """Apply events and missing bars to prices and volumes `[T, N]`, in place, and put the market
    together.

    extras: name -> `[T, N]`; index: `[T]`; splits: (stock, session, ratio) that the prices already
    contain.
    """
    num_bars, num_symbols = volume.shape
    random = create_numpy_generator(settings.seed, "synthetic", "missing")
    present = random.random((num_bars, num_symbols)) >= settings.missing
    present[0] = True
    present &= events.listed & ~events.halted[:, None]
    symbols = tuple(f"S{number:03d}" for number in range(num_symbols))
    actions = events.apply(prices, volume, grid, symbols)
    for stock, session, ratio in splits:
        day = grid.dates[session].item()
        actions.append(Action(symbol=symbols[stock], day=day, split=ratio, dividend_usd=0.0))
    keep = present.T.ravel()  # rows by symbol, then time

    def column(values: Array) -> Array:
        return np.ascontiguousarray(values.T).ravel()[keep]

    bars = Bars(
        np.tile(grid.minutes, num_symbols)[keep],
        np.repeat(np.arange(num_symbols, dtype=np.int32), num_bars)[keep],
        symbols,
        column(prices["open"]),
        column(prices["high"]),
        column(prices["low"]),
        column(prices["close"]),
        column(volume),
        extras={name: column(values) for name, values in extras.items()},
        origin="synthetic market",
    )
    return SyntheticMarket(bars, index, tuple(actions))


class SyntheticFeed(MemoryFeed):
    """Feed of a synthetic market. Its bars are generated by `prepare`, since a market from the
    cache needs none."""

    def __init__(
        self,
        settings: SyntheticSettings,
        calendar: str,
        bar_minutes: int,
        start: dt.date | None = None,
    ) -> None:
        self.inputs = {"kind": "synthetic"}
        self._settings = settings
        self._lay_grid = partial(synthetic_grid, settings, calendar, bar_minutes, start or START)
        self._is_made = False

    def prepare(self, progress: Progress | None = None) -> None:
        """Generate the bars, once. Raises DataError."""
        if not self._is_made:
            with (progress or SILENT).task("make the synthetic market", total=1) as task:
                grid = self._lay_grid()
                market = generate(self._settings, grid)
                super().__init__(market.bars, self.inputs)
                self.actions = market.actions
                self._index = grid, market.index
                self._is_made = True
                task.advance()

    def index(self, grid: SessionGrid) -> Array | None:
        laid, level = self._index
        at = np.searchsorted(laid.minutes, grid.minutes, side="right") - 1
        if at.min() < 0:
            raise DataError(
                f"the range begins before the synthetic market; set data.start to {laid.dates[0]}"
            )
        return np.asarray(level[at])


def drift_states(settings: SyntheticSettings, num_bars: int) -> Array:
    """Draw `[T, N]`: state of each stock at each bar's close, +1.0 or -1.0; it decides the drift of
    the next bar."""
    planted = settings.planted or PLANTED
    random = create_numpy_generator(settings.seed, "synthetic", "state")
    start = random.integers(0, 2, settings.num_symbols)
    flips = random.random((num_bars, settings.num_symbols)) < planted["switch"]
    return 1.0 - 2.0 * ((start + np.cumsum(flips, axis=0)) % 2)


def _volatility(settings: SyntheticSettings, grid: SessionGrid) -> Array:
    """Return `[T]`: factor on the volatility of each bar, which is U-shaped over the day (mean
    about 1) times that of the bar's regime."""
    random = create_numpy_generator(settings.seed, "synthetic", "regime")
    wild = np.cumsum(random.random(grid.num_bars) < REGIME_SWITCH) % 2
    level = np.where(wild == 1, np.sqrt(REGIME_RATIO), 1 / np.sqrt(REGIME_RATIO))
    first = grid.first_bar
    inside = np.arange(grid.num_bars) - first[grid.session]
    length = np.diff(first)[grid.session]
    middle = 2.0 * (inside + 0.5) / length - 1.0  # -1 at the open, +1 at the close
    return np.asarray(level * (0.7 + 0.9 * middle**2))
