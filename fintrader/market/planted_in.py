"""A signal of known strength in real bars: the positive control of any claim to have learnt from
them.

The bars stay as they are. One more feature, `signal`, has a given information coefficient: its
correlation over the members at a bar with their return over the next `horizon` bars, averaged over
bars. An agent or rule that cannot use it cannot use any weaker signal. With a
coefficient of 0 it is noise, the negative control.

With any other coefficient the signal looks ahead on purpose, but never past its window: from the
open after bar t (where a decision at t fills) over `horizon` bars, or to the last bar of the window
where that is nearer. The provenance of such a market has a `PlantedSignal`.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from fintrader.bars.bars import Array
from fintrader.bars.calendar import Windows
from fintrader.bars.sources.layout import FilesSettings
from fintrader.config import BelowOne, Count
from fintrader.errors import DataError
from fintrader.market.moving import carry_forward
from fintrader.market.scaling import FEWEST, relative
from fintrader.market.synthetic import SIGNAL
from fintrader.results.market_description import PlantedSignal
from fintrader.seeding import create_numpy_generator

CLIP = 3.0


class PlantedInSettings(FilesSettings):
    """Settings of bars from files with a planted feature that foretells returns."""

    kind: Literal["planted_in"] = "planted_in"  # type: ignore[assignment]
    ic: BelowOne = 0.1
    """Information coefficient: correlation over members between the signal and their return ahead,
    averaged over bars. 0: noise alone, the negative control."""
    horizon: Count = 20
    """Bars over which the return ahead is taken."""
    seed: int = 0

    @property
    def persistence(self) -> float:
        """Lag-one autocorrelation of the noise, equal to that of overlapping returns."""
        return 1.0 - 1.0 / self.horizon

    def files(self) -> FilesSettings:
        """Settings that read the bars, without those of the planted feature."""
        return FilesSettings.model_validate(
            self.model_dump(include=set(FilesSettings.model_fields) - {"kind"})
        )


def plant(
    settings: PlantedInSettings,
    open_: Array,
    member: Array,
    windows: Windows,
    symbols: tuple[str, ...],
) -> tuple[Array, PlantedSignal]:
    """Make the signal `[T, N]` float32 (within ±3, 0 for non-members) and its description.

    open_ `[T, N]`: opens adjusted forward, NaN where unlisted; member `[T, N]` bool. With f the
    return ahead and e an AR(1) noise of each symbol, both standardised over the members of the bar,
    the signal is the following, standardised again:

        a √h f[t] + √(1 - a² h) e[t],    h = (bars that f[t] spans) / horizon,

    where each window's weight a makes its mean correlation over the bars with h = 1 equal to `ic`;
    with an `ic` of 0, a is 0 and the signal is noise. Bars between windows count as one more
    window. Raises DataError if the horizon does not fit into a window, or no bar has three
    members.
    """
    bars = len(open_)
    horizon = settings.horizon
    for name, (start, stop) in windows._asdict().items():
        if stop - start < horizon + 2:
            raise DataError(
                f"data.source.horizon: {horizon} bars ahead do not fit into the {name} window of"
                f" {stop - start} bars; shorten the horizon or widen data.windows"
            )
    noise = _noise(settings, bars, symbols)
    signal = np.zeros(open_.shape, dtype=np.float32)
    measured = {}
    names = {window: name for name, window in windows._asdict().items()}
    edges = sorted({0, bars, *itertools.chain.from_iterable(windows)})
    for start, stop in itertools.pairwise(edges):
        rows = slice(start, stop)
        ahead, share, known = return_ahead(open_[rows], member[rows], horizon)
        own = relative(noise[rows], known, "zscore")
        window = names.get((start, stop))
        full_horizon = (share == 1) & (known.sum(axis=1) >= FEWEST)
        weight = _weight(settings.ic, _correlation(own, ahead, known)[full_horizon])
        part = (weight * np.sqrt(share))[:, None]
        mixed = relative(part * ahead + np.sqrt(1 - part**2) * own, known, "zscore")
        signal[rows] = np.clip(mixed, -CLIP, CLIP)
        if window and full_horizon.any():
            measured[window] = float(_correlation(signal[rows], ahead, known)[full_horizon].mean())
    if not measured:
        raise DataError(
            f"data.source: no bar has {FEWEST} members with a price {horizon} bars ahead; widen"
            " data.universe"
        )
    return signal, PlantedSignal(
        feature=SIGNAL,
        ic=settings.ic,
        measured_ic=measured,
        horizon=horizon,
        persistence=settings.persistence,
        seed=settings.seed,
    )


def return_ahead(open_: Array, member: Array, horizon: int) -> tuple[Array, Array, Array]:
    """Compute members' returns from the next open over `horizon` bars, or to the last row.

    Returns them standardised over the members of each bar, `[T, N]`; the share of the horizon
    that they span, `[T]`; and where they exist, `[T, N]` bool. Ended prices are carried forward.
    """
    rows = np.arange(len(open_))
    begin = np.minimum(rows + 1, len(open_) - 1)
    end = np.minimum(rows + 1 + horizon, len(open_) - 1)
    price = np.log(carry_forward(open_.astype(np.float64)))
    returns = price[end] - price[begin]
    known = member & np.isfinite(open_) & np.isfinite(open_[begin]) & (end > begin)[:, None]
    return relative(returns, known, "zscore"), (end - begin) / horizon, known


def _noise(settings: PlantedInSettings, bars: int, symbols: tuple[str, ...]) -> Array:
    """`[T, N]`: an AR(1) of deviation 1 for each symbol, independent of the choice of other
    symbols."""
    from scipy.signal import lfilter  # slow to load

    noise = np.empty((bars, len(symbols)))
    for column, symbol in enumerate(symbols):
        steps = create_numpy_generator(settings.seed, "planted-in", symbol).standard_normal(bars)
        steps[1:] *= np.sqrt(1 - settings.persistence**2)
        noise[:, column] = lfilter([1.0], [1.0, -settings.persistence], steps)
    return noise


def _correlation(a: Array, b: Array, known: Array) -> Array:
    """Correlate a and b `[T, N]` over the `known` cells of each row, `[T]`; 0 where either is
    constant."""
    a, b = (relative(values, known, "zscore") for values in (a, b))
    return np.asarray((a * b).sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def _weight(ic: float, correlation: Array) -> float:
    """Find the weight a with mean corr(a f + √(1 - a²) e, f) = ic over bars, given their
    corr(e, f); without bars, or for an ic of 0, return ic."""
    from scipy.optimize import brentq

    if not len(correlation) or ic == 0:
        return ic

    def excess(a: float) -> float:
        b = np.sqrt(1 - a * a)
        return float(((a + b * correlation) / np.sqrt(1 + 2 * a * b * correlation)).mean()) - ic

    return float(brentq(excess, -1.0, 1.0))
