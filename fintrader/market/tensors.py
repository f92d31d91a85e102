"""`MarketTensors`: the one form in which a market reaches the environment, the agents and the
backtest."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fintrader.bars.bars import PRICES
from fintrader.bars.calendar import Windows as Windows
from fintrader.bars.corporate_actions import is_possible, refuse_event
from fintrader.errors import MarketError, suggest
from fintrader.market import market_file
from fintrader.market.market_file import (
    EVENT,
    StoredArray,
    header_text,
    preamble,
    read_description,
    refuse_bad_cells,
    stored_order,
    write_market,
)
from fintrader.memory import pickle_by_value
from fintrader.metrics import find_session_ends, find_session_starts
from fintrader.progress import shorten_list
from fintrader.results.market_description import MarketDescription, Normalisation, Provenance

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_KINDS = {name: getattr(torch, kind) for name, kind in market_file.ARRAYS.items()}
_OPTIONAL = frozenset({"shares_outstanding"})
_DESCRIBED = fields(MarketDescription)
WHOLE = "whole"
"""Window name of a market that was never split."""


def list_arrays(tensors: Iterable[tuple[str, Tensor]]) -> list[StoredArray]:
    """List the kinds and shapes of tensors, for a safetensors file."""
    return [
        StoredArray(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors
    ]


def view_bytes(tensor: Tensor) -> memoryview:
    """View a tensor's bytes; copy them only from a device or if they are not contiguous."""
    array: Any = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


class Events(NamedTuple):
    """`E` splits and cash dividends, sorted by bar and then asset; at most one per asset and
    bar."""

    bar: Tensor
    """`[E]` int64: the first bar of the ex-date. It applies to accounts that held the share
    at the close before."""
    asset: Tensor
    """`[E]` int64."""
    split: Tensor
    """`[E]` float64: new shares for an old one; 1 where there is a dividend only."""
    dividend_usd: Tensor
    """`[E]` float64: cash paid for an old share."""

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, float, float]] = ()) -> Events:
        """Make events from rows (bar, asset, split, dividend) in any order, on CPU."""
        bar, asset, split, dividend = list(zip(*sorted(rows), strict=True)) or ((), (), (), ())
        whole = (torch.tensor(values, dtype=torch.int64) for values in (bar, asset))
        return cls(
            *whole, *(torch.tensor(values, dtype=torch.float64) for values in (split, dividend))
        )

    def within(self, start: int, stop: int) -> Events:
        """Select the events of bars `[start, stop)`; their bars count from `start`."""
        here = (self.bar >= start) & (self.bar < stop)
        return Events(self.bar[here] - start, *(value[here] for value in self[1:]))

    def growth(self, close: Tensor) -> Tensor | None:
        """`[T, N]` float64: number of shares at each bar that one share of the first bar has
        become, dividends reinvested at the close before their ex-date; None without events.
        `close [T, N]` are prices as traded."""
        if not len(self.bar):
            return None
        inner = self.bar > 0  # an event at the first bar changes no later return
        bar, asset, split, dividend = (value[inner] for value in self)
        share = torch.nan_to_num(dividend / close[bar - 1, asset].double(), nan=0.0)
        steps = torch.ones(close.shape, dtype=torch.float64, device=close.device)
        steps[bar, asset] = split / (1.0 - share)
        return steps.cumprod(0)


class BarSpan(NamedTuple):
    """The bars of some symbols between two times."""

    symbols: tuple[str, ...]
    first: int
    """`first` and `last`: starts of the first and the last bar, nanoseconds since 1970 UTC."""
    last: int

    def overlaps(self, other: BarSpan) -> bool:
        """True if the two have a symbol in common and their times overlap."""
        has_common_time = self.first <= other.last and other.first <= self.last
        return has_common_time and not set(self.symbols).isdisjoint(other.symbols)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, which `from_json` reads."""
        return {**self._asdict(), "symbols": list(self.symbols)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> BarSpan:
        """The span that `to_json` wrote."""
        return cls(tuple(stored["symbols"]), int(stored["first"]), int(stored["last"]))


class Split(NamedTuple):
    """The three windows as markets of their own."""

    train: MarketTensors
    validation: MarketTensors
    test: MarketTensors

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else tuple.__getitem__(self, key)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {market!r}" for name, market in self._asdict().items())


@dataclass(frozen=True, eq=False, repr=False)
class MarketTensors:
    """A market of `N` assets over `T` bars, on one device.

    Bar `t` covers the minute(s) that begin at `minutes[t]`; everything in row `t` is known once
    that bar has closed. Prices are as traded. A row without a trade holds the last close (adjusted
    on an ex-date), with `tradable` False; before a symbol's first bar and after its last bar its
    prices are NaN. A symbol whose last price comes before the end of the data has ended: the
    environment sells it at that bar (`last_bar`).
    """

    open: Tensor
    """`[T, N]` float32, USD."""
    high: Tensor
    """`[T, N]` float32, USD: the highest price of the bar, or the last close if there was no
    trade."""
    low: Tensor
    """`[T, N]` float32, USD: the lowest price of the bar, or the last close if there was no
    trade."""
    close: Tensor
    """`[T, N]` float32, USD; NaN where the symbol is not listed."""
    volume: Tensor
    """`[T, N]` float32, shares traded in the bar; 0 where there was no trade."""
    features: Tensor
    """`[T, N, F]` float32, finite, standardised with training-window statistics; 0 where
    undefined."""
    context: Tensor
    """`[T, M]` float32, finite: columns common to all assets (time of day, turbulence, ...)."""
    tradable: Tensor
    """`[T, N]` bool: a trade happened in this bar, so an order can fill."""
    member: Tensor
    """`[T, N]` bool: in the universe on this day; needed for buys only."""
    session: Tensor
    """`[T]` int64: number of the trading session, never decreasing."""
    minutes: Tensor
    """`[T]` int64: start of the bar, nanoseconds since 1970 UTC, strictly increasing."""
    benchmark: Tensor
    """`[T]` float64: level of the index as known at the close of bar t; positive."""
    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    context_names: tuple[str, ...] = ()
    benchmark_name: str = "index"
    bar_minutes: int = 1
    windows: Windows | None = None
    events: Events = field(default_factory=Events.of)
    """Splits and dividends; prices before and after them are as traded."""
    shares_outstanding: Tensor | None = None
    """`[T, N]` float32: shares outstanding as known on the bar's day, NaN where unknown; None
    without such data."""
    normalisation: Normalisation | None = None
    """Statistics by which features and context were scaled; None where unknown."""
    provenance: Provenance = field(default_factory=Provenance)
    """The market's source, time zone, sessions a year, and the effects of its build."""
    cut_from: tuple[str, ...] = ()
    """Windows of the split that the market's bars are in, such as `("train",)`; further cuts keep
    them. Empty for a market that was never split, and for bars between windows."""

    guesses: tuple[str, ...] = ()
    """Settings that were detected in the file or table of bars, in words; not stored."""

    trusted: InitVar[bool] = False
    """Skip the check of every value, for arrays that were checked before. Shapes, kinds and events
    are always checked."""

    def __post_init__(self, trusted: bool) -> None:
        self._validate_arrays()
        self._validate_windows()
        self._validate_events()
        if not trusted:
            self._validate_values()

    def __getstate__(self) -> Any:
        return pickle_by_value(vars(self))

    def __copy__(self) -> MarketTensors:
        return replace(self, trusted=True)

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)

    def __len__(self) -> int:
        return self.close.shape[0]

    def __repr__(self) -> str:
        """Five lines: symbols, bars and their span, features, windows, warnings."""
        days = f"{self._day(0)} to {self._day(self.num_bars - 1)}"
        sessions = int(self.session[-1] - self.session[0]) + 1
        each = "a session" if sessions == self.num_bars else f"{self.bar_minutes} min"
        context = f"; context {shorten_list(self.context_names)}" if self.context_names else ""
        parts = "/".join(f"{stop - start:,}" for start, stop in self.windows or ())
        windows = f"train/validation/test {parts} bars" if parts else self.window_name
        found = [*self.guesses, *self.provenance.list_warnings()]
        return "\n".join(
            (
                f"Market of {self.num_assets} symbols: {shorten_list(self.symbols)}",
                f"  bars      {self.num_bars:,} of {each}, {days} ({self.timezone}),"
                f" {sessions:,} sessions",
                f"  features  {self.num_features}: {shorten_list(self.feature_names)}{context}",
                f"  windows   {windows}",
                f"  warnings  {shorten_list(found, '; ') or 'none'}",
            )
        )

    def __getattr__(self, name: str) -> Any:
        hint = f"it is market.split().{name}" if name in Windows._fields else ""
        if not (hint or name.startswith("_")):
            known = {*dir(type(self)), *vars(self)}
            hint = suggest(name, [one for one in known if not one.startswith("_")])
        raise AttributeError(f"a market has no {name!r}; {hint}")

    def __getitem__(self, symbol: str) -> pd.DataFrame:
        """Return one symbol as a table: open, high, low, close (USD, as traded), volume (shares),
        tradable, member, and features and context as agents see them; index: starts of the bars in
        the exchange's time zone. Raises MarketError for an unknown symbol."""
        import pandas as pd  # slow to load

        if symbol not in self.symbols:
            hint = f"give one of {shorten_list(self.symbols)}; market.window(start, stop) cuts bars"
            raise MarketError(f"{symbol!r} is no symbol of this market; {hint}")
        asset = self.symbols.index(symbol)
        cells = (*PRICES, "volume", "tradable", "member")
        whole = {name: getattr(self, name) for name in cells} | dict(self.columns())
        times = pd.DatetimeIndex(self.timestamps(), name="time").tz_localize("UTC")
        return pd.DataFrame(
            # A context column `[T, 1]` is the same for all symbols.
            {name: cell[:, asset % cell.shape[1]].cpu().numpy() for name, cell in whole.items()},
            index=times.tz_convert(self.timezone),
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return all symbols as one long table with the columns of `market["AAPL"]`; index: time
        and symbol."""
        import pandas as pd

        frames = {symbol: self[symbol] for symbol in self.symbols}
        return pd.concat(frames, names=["symbol"]).swaplevel().sort_index()

    def plot(self) -> go.Figure:
        """Draw the growth of 1 USD in each symbol, splits and dividends included, by session."""
        import pandas as pd

        from fintrader.results.figures import growth_figure

        last = np.flatnonzero(np.diff(self.to_numpy("session"), append=-1))
        closes = pd.DataFrame(
            self.to_numpy("adjusted_close")[last],
            index=pd.DatetimeIndex(self.timestamps()[last]),
            columns=list(self.symbols),
        )
        steps = closes.pct_change(fill_method=None).fillna(0.0).iloc[1:]
        return growth_figure({symbol: steps[symbol] for symbol in self.symbols})

    @property
    def num_bars(self) -> int:
        """T."""
        return self.close.shape[0]

    @property
    def num_assets(self) -> int:
        """N."""
        return self.close.shape[1]

    @property
    def num_features(self) -> int:
        """F."""
        return self.features.shape[2]

    @property
    def num_context(self) -> int:
        """M."""
        return self.context.shape[1]

    @property
    def device(self) -> torch.device:
        return self.close.device

    @property
    def timezone(self) -> str:
        """The exchange's own time zone, an IANA name; UTC where the market does not say."""
        return self.provenance.timezone

    @property
    def sessions_a_year(self) -> int:
        """Number by which rates are annualised: 252, or 365 for a calendar without days off
        (`calendar.sessions_a_year`)."""
        return self.provenance.sessions_a_year

    @property
    def window_name(self) -> str:
        """The first of `train`, `validation`, `test` that the market has bars of; else `whole`."""
        return self.cut_from[0] if self.cut_from else WHOLE

    @property
    def span(self) -> BarSpan:
        """The symbols, and the times of the first bar and the last."""
        return BarSpan(self.symbols, int(self.minutes[0]), int(self.minutes[-1]))

    @cached_property
    def last_bar(self) -> Tensor:
        """`[N]` int64: the last bar at which the symbol has a price (T - 1 unless it ended
        earlier), -1 if never."""
        last = torch.full((self.num_assets,), self.num_bars - 1, device=self.device)
        ended = self.close[-1].isnan().nonzero().flatten()  # the other symbols end with the data
        if len(ended):
            steps = torch.arange(1, self.num_bars + 1, device=self.device).unsqueeze(1)
            last[ended] = (~self.close[:, ended].isnan() * steps).amax(dim=0) - 1
        return last

    @property
    def adjusted_close(self) -> Tensor:
        """`[T, N]` float64: closes whose changes are returns, splits and dividends included; equal
        to `close` at the first bar, so that no value before an ex-date depends on the event."""
        return self.adjust(self.close)

    @property
    def session_starts(self) -> NDArray[np.int64]:
        """`[S]`: the first bar of each session."""
        return find_session_starts(self.to_numpy("session"))

    @property
    def session_ends(self) -> NDArray[np.int64]:
        """`[S]`: the last bar of each session."""
        return find_session_ends(self.to_numpy("session"))

    def adjust(self, price: Tensor) -> Tensor:
        """Adjust prices `[T, N]` for splits and dividends, as `adjusted_close`."""
        growth = self.events.growth(self.close)
        return price.double() if growth is None else price.double() * growth

    def to(self, device: torch.device | str) -> MarketTensors:
        """Copy the market to another device; return this market if it is there already."""
        try:
            moved: Any = {name: tensor.to(device) for name, tensor in self.arrays()}
        except RuntimeError as error:
            raise MarketError(f"{device!r}: {error}; use 'cpu' or 'cuda'") from None
        if all(moved[name] is tensor for name, tensor in self.arrays()):
            return self
        events = Events(*(value.to(device) for value in self.events))
        return replace(self, **moved, events=events, trusted=True)

    def window(self, start: int, stop: int) -> MarketTensors:
        """Cut out bars `[start, stop)` as a view, which knows the windows it was cut from.

        Raises MarketError for a range that is empty or outside the market.
        """
        if isinstance(start, str) or not 0 <= start < stop <= self.num_bars:
            raise MarketError(
                f"window [{start}, {stop}) is empty or outside the market's {self.num_bars} bars,"
                " which are counted from 0 (market.timestamps() has their times)"
            )
        rows: Any = {name: tensor[start:stop] for name, tensor in self.arrays()}
        events = self.events.within(start, stop)
        known = self.provenance
        if self.windows is not None:
            is_adjacent = any(
                self.session[after[0]] <= self.session[one[1] - 1] + 1
                for one, after in pairwise(self.windows)
            )
            known = replace(known, is_adjacent=is_adjacent)
        return replace(
            self,
            **rows,
            events=events,
            windows=None,
            cut_from=self._windows_within(start, stop),
            provenance=known,
            trusted=True,
        )

    def _windows_within(self, start: int, stop: int) -> tuple[str, ...]:
        """List the windows that contain bars `[start, stop)`: those the market was cut from, else
        its own."""
        if self.cut_from or self.windows is None:
            return self.cut_from
        edges = self.windows._asdict().items()
        return tuple(name for name, (first, end) in edges if start < end and first < stop)

    def split(self, *given: object, **named: object) -> Split:
        """Return train, validation and test. Raises MarketError for a market built without windows,
        and for any argument, because windows are set in the build."""
        if given or named:
            raise MarketError(
                "windows are set where a market is built, so that its features are scaled by"
                " training bars alone: load_market(..., windows={'fractions': [0.6, 0.2, 0.2]})"
            )
        if self.windows is None:
            raise MarketError(
                "this market has no train/validation/test windows; build it with `windows` set"
            )
        return Split(*(self.window(start, stop) for start, stop in self.windows))

    def arrays(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each array with a row for each bar; absent optional arrays are
        left out."""
        for name in _KINDS:
            if name not in _OPTIONAL or getattr(self, name) is not None:
                yield name, getattr(self, name)

    def _stored(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.arrays()
        for name, tensor in self.events._asdict().items():
            yield EVENT + name, tensor

    def columns(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and values of each feature `[T, N]` and each context column `[T, 1]`."""
        for k, name in enumerate(self.feature_names):
            yield name, self.features[..., k]
        for k, name in enumerate(self.context_names):
            yield name, self.context[:, k : k + 1]

    def to_numpy(self, name: str) -> np.ndarray[Any, Any]:
        """Return an array, `adjusted_close` or `last_bar` on the host."""
        array: np.ndarray[Any, Any] = getattr(self, name).cpu().numpy()
        return array

    def timestamps(self) -> np.ndarray[Any, np.dtype[np.datetime64]]:
        """`[T]` datetime64[ns], UTC, start of each bar."""
        return self.to_numpy("minutes").astype("datetime64[ns]")

    def content_hash(self) -> str:
        """SHA-256 over every array's bytes and all names: equal if and only if the markets are
        equal."""
        digest = hashlib.sha256(header_text(self.description).encode())
        for name, tensor in self._stored():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    @property
    def description(self) -> MarketDescription:
        """All fields but the arrays and events."""
        return MarketDescription(**{one.name: getattr(self, one.name) for one in _DESCRIBED})

    @classmethod
    def of(
        cls,
        description: MarketDescription,
        rows: Mapping[str, Tensor],
        events: Events,
        *,
        trusted: bool = False,
    ) -> MarketTensors:
        """Make a market from its description, its arrays by name and its events."""
        values: Any = {one.name: getattr(description, one.name) for one in _DESCRIBED}
        windows = description.windows
        values["windows"] = None if windows is None else Windows(*windows)
        values |= rows
        return cls(**values, events=events, trusted=trusted)

    def save(self, path: Path | str) -> str:
        """Write one safetensors file atomically; returns the content hash, which the file holds
        too."""
        whole = {name: view_bytes(tensor) for name, tensor in self._stored()}
        header = header_text(self.description)
        return write_market(path, header, list_arrays(self._stored()), whole)

    @classmethod
    def load(
        cls, path: Path | str, device: torch.device | str = "cpu", *, verify: bool = False
    ) -> MarketTensors:
        """Read a market that `save` wrote, memory-mapped and thus at once. `verify` recomputes the
        content hash over all arrays, and compares the file's header to the bit.

        Raises MarketError when the file is missing, truncated, of another format, or fails
        verification.
        """
        description, _ = read_description(path)
        try:
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                lacking = _OPTIONAL - set(file.keys())
                rows = {name: file.get_tensor(name) for name in _KINDS if name not in lacking}
                events = Events(*(file.get_tensor(EVENT + name) for name in Events._fields))
            market = cls.of(description, rows, events, trusted=True)
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise MarketError(
                f"{path} is damaged ({error}); delete it and build it again"
            ) from None
        if verify:
            header = header_text(description)
            metadata = {"header": header, "content_hash": market.content_hash()}
            expected = preamble(stored_order(list_arrays(market._stored())), metadata)
            with Path(path).open("rb") as stored:
                if stored.read(len(expected)) != expected:
                    raise MarketError(
                        f"{path} does not match its content hash; delete it and build it again"
                    )
        return market

    @staticmethod
    def stored_hash(path: Path | str) -> str:
        """Return the content hash in a market file's header, without reading its arrays. Raises
        MarketError."""
        return read_description(path)[1]

    def _validate_arrays(self) -> None:
        bars, assets = self.close.shape if self.close.ndim == 2 else (0, 0)
        if bars == 0 or assets == 0:
            raise MarketError(
                "a market needs at least one bar and one asset, got close"
                f" {tuple(self.close.shape)}"
            )
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            (*PRICES, "volume", "tradable", "member", "shares_outstanding"), (bars, assets)
        )
        shapes |= dict.fromkeys(("session", "minutes", "benchmark"), (bars,))
        shapes["features"] = bars, assets, len(self.feature_names)
        shapes["context"] = bars, len(self.context_names)
        for name, tensor in self.arrays():
            if tuple(tensor.shape) != shapes[name]:
                raise MarketError(
                    f"{name} has shape {tuple(tensor.shape)}, expected {shapes[name]}"
                )
            if tensor.dtype != _KINDS[name]:
                raise MarketError(f"{name} is {tensor.dtype}, expected {_KINDS[name]}")
            if tensor.device != self.close.device:
                raise MarketError(f"{name} is on {tensor.device}, close on {self.close.device}")
        if len(self.symbols) != assets or len(set(self.symbols)) != assets:
            raise MarketError(f"{len(set(self.symbols))} distinct symbols for {assets} assets")

    def _validate_windows(self) -> None:
        if self.windows is not None:
            bars = self.num_bars
            edges = [edge for window in self.windows for edge in window]
            is_ordered = edges == sorted(edges) and all(a < b for a, b in self.windows)
            if not is_ordered or edges[0] < 0 or edges[-1] > bars:
                raise MarketError(
                    f"windows {self.windows} must be non-empty, in order and inside {bars} bars"
                )
        if self.cut_from != tuple(name for name in Windows._fields if name in self.cut_from):
            raise MarketError(
                f"cut_from is {self.cut_from}; it names windows of a split in their order: "
                + ", ".join(Windows._fields)
            )

    def _validate_events(self) -> None:
        bar, asset, split, dividend = self.events
        kinds = zip(self.events, market_file.EVENTS.values(), strict=True)
        if bar.ndim != 1 or any(
            value.shape != bar.shape
            or value.device != self.close.device
            or value.dtype != getattr(torch, kind)
            for value, kind in kinds
        ):
            raise MarketError(
                "events need bar and asset as int64, split and dividend as float64, of equal"
                " length and on the device of the prices"
            )
        if not len(bar):
            return
        if not (_inside(bar, self.num_bars) & _inside(asset, self.num_assets)):
            raise MarketError(
                f"an event is outside the market's {self.num_bars} bars and {self.num_assets}"
                " assets"
            )
        if not ((bar * self.num_assets + asset).diff() > 0).all():
            raise MarketError("events must be sorted by bar and then asset, one per asset and bar")
        before = self.close[(bar - 1).clamp(min=0), asset].double()
        # any dividend is possible before the first price
        before[(bar == 0) | before.isnan()] = math.inf
        wrong = ~is_possible(split, dividend, before)
        if wrong.any():
            first = int(wrong.nonzero()[0])
            event = [float(values[first]) for values in (split, dividend, before)]
            refuse_event(self.symbols[int(asset[first])], self._day(int(bar[first])), *event)

    def _day(self, bar: int) -> str:
        """Find the day of a bar in the exchange's time zone, or in UTC if that zone is unknown."""
        start = int(self.minutes[bar])
        try:
            zone = ZoneInfo(self.timezone)
            return dt.datetime.fromtimestamp(start / 1e9, zone).date().isoformat()
        except (ZoneInfoNotFoundError, ValueError, OverflowError, OSError):
            return str(np.datetime64(start, "ns"))[:10]

    def _validate_values(self) -> None:
        checks = {
            "minutes must increase strictly": (self.minutes.diff() > 0).all(),
            "session must not decrease": (self.session.diff() >= 0).all(),
            "benchmark must be finite and positive": (
                (self.benchmark > 0).all() & self.benchmark.isfinite().all()
            ),
            "context must be finite": self.context.isfinite().all(),
            "shares outstanding must be finite and positive, or NaN where unknown": (
                self.shares_outstanding is None
                or ((self.shares_outstanding > 0) | self.shares_outstanding.isnan()).all()
                & ~self.shares_outstanding.isinf().any()
            ),
        }
        for message, holds in checks.items():
            if not holds:
                raise MarketError(message)
        cells = (*PRICES, "volume", "features", "tradable")
        rows = {name: self.to_numpy(name) for name in cells}
        for at in range(0, self.num_bars, 8192):  # in blocks: the checks copy the cells
            refuse_bad_cells({name: values[at : at + 8192] for name, values in rows.items()})


Markets: TypeAlias = Sequence[MarketTensors]
"""Windows of a market, one after another."""


def _inside(numbers: Tensor, count: int) -> Tensor:
    return ((numbers >= 0) & (numbers < count)).all()
