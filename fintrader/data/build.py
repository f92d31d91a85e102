"""Bars to a market file: sources → cleaning → the exchange's grid → features → windows → `MarketTensors`.

A market file is addressed by what goes into it: settings, the content of the input files and the version of this code.
An equal request finds the finished file; a build that was killed left nothing under that name, so the same call builds
it again and arrives at the same bytes.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from fintrader.config import Settings
from fintrader.data import features as ft
from fintrader.data.bars import Array, Bars
from fintrader.data.benchmark import EQUAL_WEIGHT, BenchmarkSettings, equal_weight, file_benchmark
from fintrader.data.clean import SymbolBars, clean, log_repairs, symbol_bars, to_grid
from fintrader.data.sessions import SessionGrid, session_date, session_grid
from fintrader.data.sources.files import FilesSettings, fingerprint, read_files
from fintrader.data.sources.synthetic import SyntheticSettings, generate, synthetic_grid
from fintrader.data.tensors import MarketTensors
from fintrader.data.universe import UniverseSettings, choose
from fintrader.data.windows import WindowSettings, make_windows
from fintrader.errors import DataError
from fintrader.progress import SILENT, Progress
from fintrader.runs import file_sha256, write_json

BUILD_VERSION = 1
"""Goes into every address; raised when the same settings would give other numbers."""

SourceSettings = Annotated[FilesSettings | SyntheticSettings, Field(discriminator="kind")]


class DataSettings(Settings):
    """Where bars come from and what a market is made of."""

    source: SourceSettings = SyntheticSettings()
    path: Path | None = None
    """Shortcut: read these files instead of what `source` names (settings of a `files` source stay in force)."""
    start: dt.date | None = None
    """First day; the first one with bars by default."""
    end: dt.date | None = None
    """Last day, included; the last one with bars by default."""
    calendar: str = "XNAS"
    """The exchange's calendar, as exchange_calendars calls it (XNAS, XNYS, ...)."""
    bar_minutes: int = Field(1, ge=1, le=1440)
    """Length of the market's bars; minute bars are put together inside each session."""
    universe: UniverseSettings = UniverseSettings()
    benchmark: BenchmarkSettings = BenchmarkSettings()
    features: ft.FeatureSettings = ft.FeatureSettings()
    windows: WindowSettings = WindowSettings()

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ValueError("end lies before start; swap the two dates")
        return self

    def effective(self) -> DataSettings:
        """The same settings with `path` put into the source, and extra columns that features need requested there."""
        source = self.source
        if self.path is not None:
            keep = source if isinstance(source, FilesSettings) else FilesSettings()
            source = keep.model_copy(update={"path": self.path})
        if isinstance(source, FilesSettings):
            needed = [name for name in (*self.features.extra, *self.features.extra_raw) if name not in source.extra]
            source = source.model_copy(update={"extra": (*source.extra, *needed)})
        return self.model_copy(update={"source": source, "path": None})


class HasData(Protocol):
    """Anything with data settings, such as a run's configuration."""

    @property
    def data(self) -> DataSettings:
        """The data settings."""
        ...


@dataclass(frozen=True, eq=False)
class RawMarket:
    """What a source delivered: bars as they came, and the index if the source has one."""

    bars: Bars
    grid: SessionGrid | None
    index: Array | None


def build_market(settings: DataSettings, *, cache: Path, progress: Progress | None = None) -> Path:
    """The market file of these settings, built unless it is there already.

    Lies at `cache/<address>/market.safetensors`, beside `build.json`, which says what it was made from and what was
    repaired. Raises DataError or a subclass of it; nothing is half-written then.
    """
    settings = settings.effective()
    inputs = _inputs(settings)
    address = _address(settings, inputs)
    path = Path(cache) / address / "market.safetensors"
    if path.is_file():
        return path
    market, report = make_market(settings, progress=progress)
    content = market.save(path)
    write_json(
        path.with_name("build.json"),
        {"settings": _plain(settings), "inputs": inputs, "version": BUILD_VERSION, "content_hash": content, **report},
    )
    return path


def load_market(what: DataSettings | HasData | Path | str, *, cache: Path | str = "data/tensors") -> MarketTensors:
    """A market from its file (`.safetensors`), a YAML configuration, or settings; built first where needed.

    A YAML file may be a whole run's configuration or only its `data` part.
    """
    if isinstance(what, str | Path):
        if Path(what).suffix not in (".yaml", ".yml"):
            return MarketTensors.load(what)
        what = read_settings(Path(what))
    settings = what if isinstance(what, DataSettings) else what.data
    return MarketTensors.load(build_market(settings, cache=Path(cache)))


def read_settings(path: Path) -> DataSettings:
    """The data settings of a YAML configuration. Raises ConfigError naming the field that is wrong."""
    from fintrader.config import read_yaml, validate

    values = read_yaml(path)
    return validate(DataSettings, values.get("data", values), str(path))


def read_source(settings: DataSettings) -> RawMarket:
    """The bars that the source has, as they are. Raises DataError."""
    source = settings.source
    if isinstance(source, SyntheticSettings):
        grid = synthetic_grid(source, settings.calendar, settings.bar_minutes)
        bars, index = generate(source, grid)
        return RawMarket(bars, grid, index)
    return RawMarket(read_files(source, settings.universe.symbols), None, None)


def make_market(settings: DataSettings, *, progress: Progress | None = None) -> tuple[MarketTensors, dict[str, Any]]:
    """Build in memory; also what was repaired and left out. Deterministic: equal inputs give equal tensors."""
    settings = settings.effective()
    with (progress or SILENT).task("bars", unit="symbols") as task:
        raw = read_source(settings)
        bars, repairs = clean(raw.bars)
        grid = _grid(settings, raw, bars)
        merged, repairs["outside_session"] = to_grid(_in_range(bars, settings, grid), grid)
        log_repairs(bars.origin, repairs)
        windows = make_windows(settings.windows, grid)
        codes, left_out = choose(settings.universe, merged, windows.train)
        task.update(len(codes))
    names = (*settings.features.names, *settings.features.extra, *_raw_features(settings))
    cells = _Cells.empty(grid.num_bars, len(codes), len(names))
    with (progress or SILENT).task("features", total=len(codes), unit="symbols") as task:
        ended = []
        for column, code in enumerate(codes):
            one = symbol_bars(merged, grid, code)
            cells.fill(column, one, ft.symbol_features(one, names))
            ended += [one.symbol] if one.ended else []
            task.advance(note=one.symbol)
    benchmark, benchmark_name = _benchmark(settings, raw, cells.close, grid)
    context = _context(settings, cells.close, benchmark, grid)
    scales = _standardise(cells.features, context, names, settings, windows.train)
    symbols = tuple(merged.symbols[code] for code in codes)
    report = {"repairs": repairs, "left_out": left_out, "ended": ended}
    market = MarketTensors(
        open=torch.from_numpy(cells.open),
        close=torch.from_numpy(cells.close),
        features=torch.from_numpy(cells.features),
        context=torch.from_numpy(context.astype(np.float32)),
        tradable=torch.from_numpy(cells.tradable),
        member=torch.ones(cells.tradable.shape, dtype=torch.bool),
        session=torch.from_numpy(grid.session),
        minutes=torch.from_numpy(grid.minutes),
        benchmark=torch.from_numpy(benchmark),
        symbols=symbols,
        feature_names=names,
        context_names=settings.features.context,
        benchmark_name=benchmark_name,
        bar_minutes=settings.bar_minutes,
        windows=windows,
        meta={
            "source": _inputs(settings),
            "calendar": settings.calendar,
            "normalisation": scales,
            "planted": _planted(settings, len(symbols)),
            **report,
        },
    )
    return market, report


# --- parts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Cells:
    """The market's big arrays, filled symbol by symbol."""

    open: Array
    close: Array
    tradable: Array
    features: Array

    @classmethod
    def empty(cls, bars: int, assets: int, features: int) -> _Cells:
        return cls(
            open=np.full((bars, assets), np.nan, dtype=np.float32),
            close=np.full((bars, assets), np.nan, dtype=np.float32),
            tradable=np.zeros((bars, assets), dtype=bool),
            features=np.full((bars, assets, features), np.nan, dtype=np.float32),
        )

    def fill(self, column: int, one: SymbolBars, features: Array) -> None:
        rows = slice(one.first, one.stop)
        self.open[rows, column] = one.open
        self.close[rows, column] = one.close
        self.tradable[rows, column] = one.tradable
        self.features[rows, column] = features


def _grid(settings: DataSettings, raw: RawMarket, bars: Bars) -> SessionGrid:
    if raw.grid is not None and settings.start is None and settings.end is None:
        return raw.grid
    first = settings.start or session_date(settings.calendar, int(bars.ts.min()))
    last = settings.end or session_date(settings.calendar, int(bars.ts.max()))
    return session_grid(settings.calendar, first, last, settings.bar_minutes)


def _in_range(bars: Bars, settings: DataSettings, grid: SessionGrid) -> Bars:
    """Rows of the days asked for; the rest was not asked for, so it counts as nothing wrong."""
    if settings.start is None and settings.end is None:
        return bars
    day = 86_400_000_000_000
    inside = (bars.ts >= grid.exchange_minutes[0] - day // 4) & (bars.ts <= grid.exchange_minutes[-1] + day // 4)
    if not inside.any():
        raise DataError(f"{bars.origin}: no bar from {grid.dates[0]} to {grid.dates[-1]}; choose other dates")
    return bars.take(inside)


def _benchmark(settings: DataSettings, raw: RawMarket, close: Array, grid: SessionGrid) -> tuple[Array, str]:
    if settings.benchmark.path is not None:
        return file_benchmark(settings.benchmark, grid)
    if raw.index is not None and raw.grid is not None:
        at = np.searchsorted(raw.grid.minutes, grid.minutes)
        return raw.index[at], settings.benchmark.name or "synthetic index"
    return equal_weight(close.astype(np.float64), grid), settings.benchmark.name or EQUAL_WEIGHT


def _context(settings: DataSettings, close: Array, benchmark: Array, grid: SessionGrid) -> Array:
    first = grid.first_bar
    return ft.context_features(
        settings.features.context,
        bar_of_session=np.arange(grid.num_bars) - first[grid.session],
        bars_in_session=np.diff(first)[grid.session],
        benchmark=benchmark,
        session=grid.session,
        day_close=close[first[1:] - 1].astype(np.float64),
        turbulence_days=settings.features.turbulence_days,
    )


def _standardise(
    features: Array, context: Array, names: Sequence[str], settings: DataSettings, train: tuple[int, int]
) -> dict[str, Any]:
    """In place: (x − mean) / std with the training window's statistics over all symbols, cut off, 0 where undefined."""
    raw = _raw_features(settings)
    clip = settings.features.clip

    def scale(values: Array, scaled: bool) -> tuple[float, float]:
        mean, spread = ft.scale_of(values[train[0] : train[1]]) if scaled else (0.0, 1.0)
        if scaled:
            values -= mean
            values /= spread
            np.clip(values, -clip, clip, out=values)
        np.nan_to_num(values, copy=False, nan=0.0, posinf=clip, neginf=-clip)
        return mean, spread

    on = settings.features.standardise
    scales = [scale(features[:, :, f], on and name not in raw) for f, name in enumerate(names)]
    context_scales = [scale(context[:, m], on) for m in range(context.shape[1])]
    return {
        "features": ft.describe(names, scales),
        "context": ft.describe(settings.features.context, context_scales),
        "clip": clip,
    }


def _raw_features(settings: DataSettings) -> tuple[str, ...]:
    """Extra columns that become features as they are; the planted signal is always one of them."""
    source, names = settings.source, settings.features.extra_raw
    if isinstance(source, SyntheticSettings) and source.planted.enabled:
        column = source.planted.column
        if column not in (*names, *settings.features.extra):
            return (*names, column)
    return names


def _planted(settings: DataSettings, num_assets: int) -> dict[str, Any] | None:
    source = settings.source
    if not isinstance(source, SyntheticSettings) or not source.planted.enabled:
        return None
    planted = source.planted
    return {
        "kind": "markov-drift",
        "feature": planted.column,
        "drift_bps": planted.drift_bps,
        "switch": planted.switch,
        "num_assets": num_assets,
        "bar_minutes": settings.bar_minutes,
    }


# --- address ---------------------------------------------------------------------------------------------


def _inputs(settings: DataSettings) -> dict[str, Any]:
    """What the market is made from, without any path: kind, and the content of every file."""
    source = settings.source
    inputs: dict[str, Any] = {"kind": source.kind}
    if isinstance(source, FilesSettings):
        inputs |= fingerprint(source)
    if settings.benchmark.path is not None:
        if not settings.benchmark.path.is_file():
            raise DataError(f"{settings.benchmark.path}: no such file; give the benchmark under data.benchmark.path")
        inputs["benchmark"] = file_sha256(settings.benchmark.path)
    return inputs


def _plain(settings: DataSettings) -> dict[str, Any]:
    """Settings as JSON with file names in place of paths: where a file lies changes nothing."""
    values: dict[str, Any] = json.loads(settings.model_dump_json())
    for part in (values["source"], values["benchmark"]):
        if part.get("path"):
            part["path"] = Path(part["path"]).name
    return values


def _address(settings: DataSettings, inputs: dict[str, Any]) -> str:
    text = json.dumps([BUILD_VERSION, _plain(settings), inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
