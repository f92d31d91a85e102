"""Bars to a market file: sources → cleaning → the exchange's grid → features → windows →
`MarketTensors`.

A market file's address is a hash of its inputs: settings, the content of the input files and the
version of this code. An equal request finds the finished file. A killed build leaves nothing under
that name, so the same call builds the file again, with the same bytes.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import logging
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fintrader.bars.bars import PRICES, Array
from fintrader.bars.calendar import (
    SessionGrid,
    exchange_days,
    find_exchange_timezone,
    make_windows,
    session_grid,
    sessions_a_year,
)
from fintrader.bars.clean import REPAIRS
from fintrader.bars.companies import hash_index
from fintrader.bars.sources.feed import Feed
from fintrader.config import OwnFunction, refuse_url
from fintrader.errors import ConfigError, DataError, StorageError
from fintrader.files import hash_bytes, seal
from fintrader.market import features as ft
from fintrader.market.bar_source import open_feed
from fintrader.market.columns import CELLS, ColumnStore, Sheet
from fintrader.market.index_level import EQUAL_WEIGHT, daily_level, equal_weight, file_benchmark
from fintrader.market.market_file import (
    ARRAYS,
    EVENT,
    EVENTS,
    StoredArray,
    header_text,
    read_description,
    refuse_bad_cells,
    write_market,
)
from fintrader.market.planted_in import PlantedInSettings, plant
from fintrader.market.reading import Reader, list_candidates, read_all
from fintrader.market.scaling import (
    apply_scale,
    cross_section,
    fit_scales,
    name_scales,
    read_statistics,
)
from fintrader.market.settings import (
    DataSettings,
    describe_drift,
    list_trusted_columns,
    raw_features,
)
from fintrader.market.synthetic import SIGNAL
from fintrader.market.universe import (
    load_membership,
    load_shares,
    member_days,
    missing_members,
    share_days,
    survivorship,
)
from fintrader.progress import SILENT, Progress, shorten_list
from fintrader.records import JsonValue, to_json
from fintrader.results.market_description import (
    BuildRecord,
    MarketDescription,
    MarketSource,
    Normalisation,
    Provenance,
    SourceFile,
)
from fintrader.storage.mirror import Markets
from fintrader.storage.objects import ObjectStore, read_whole

if TYPE_CHECKING:
    from fintrader.market.tensors import MarketTensors

log = logging.getLogger("fintrader.market")

RECORD = "build.json"
"""Sealed file next to each market: its sources and the repairs of its bars."""
BUILD_VERSION = 19
"""Part of every address; increase it when the same settings would give other numbers, or files of
another form."""


def build_market(
    settings: DataSettings,
    *,
    cache: Path,
    progress: Progress = SILENT,
    markets: Markets | None = None,
) -> Path:
    """Return the market file of these settings; build it unless the cache or the shared `markets`
    have it.

    The file is `cache/<address>/market.safetensors`, next to `build.json`, which lists its sources
    and repairs. Bars pass through a store of chunks (`settings.store`), so that a later build reads
    only what is new.

    Raises DataError or a subclass of it, or StorageError when bars or markets cannot be stored or
    fetched; no half-written file is left.
    """
    refuse_url(cache, "cache")
    refuse_functions(settings)
    settings = settings.effective()
    feed = open_feed(settings, cache)
    if feed.inputs_need_bars:
        feed.prepare(progress)  # a vendor's inputs are known only after its answers
    path = market_path(settings, feed, cache)
    folder = ObjectStore(path.parent)
    try:
        built = path.is_file()
    except OSError as error:
        raise StorageError(
            f"{cache}: {error.strerror or error}; choose another cache, or mend its rights"
        ) from None
    if built:
        return _share(path, markets)
    with folder.lock():
        if path.is_file():  # another process built it meanwhile
            return _share(path, markets)
        folder.remove_temporaries()
        if markets is not None and markets.fetch(path.parent.name, path.parent):
            return path
        with _draft(settings, feed, path.parent, progress) as draft:
            record = BuildRecord(
                portable(settings), draft.description.provenance, draft.description.normalisation
            )
            folder.put(RECORD, seal(to_json(record), indent=2))
            draft.write(path)  # last, so that a market always has its record
        return _share(path, markets)


def _share(path: Path, markets: Markets | None) -> Path:
    """Make sure that a built market is among the shared ones."""
    if markets is not None:
        files = {file.name: file for file in (path.with_name(RECORD), path) if file.is_file()}
        markets.keep([path.parent.name, read_description(path)[1]], files)
    return path


def market_path(settings: DataSettings, feed: Feed, cache: Path) -> Path:
    """Return the path of the market of these (effective) settings and bars, built or not."""
    source = to_json(identify_source(settings, feed))
    text = json.dumps([BUILD_VERSION, portable(settings), source], sort_keys=True)
    return cache / hash_bytes(text.encode())[:16] / "market.safetensors"


def identify_source(settings: DataSettings, feed: Feed) -> MarketSource:
    """Identify what the market is made from: the kind of source and the content of every file."""
    identity = {**feed.inputs}
    kind = identity.pop("kind")
    files = identity.pop("files", ())
    daily = [(f"features.daily.{name}", path) for name, path in settings.features.daily.items()]
    for name, path, setting in (
        ("benchmark", settings.benchmark, "data.benchmark"),
        ("actions", settings.actions, "data.actions"),
        ("membership", settings.universe.membership, "data.universe.members"),
        (
            "shares_outstanding",
            settings.universe.shares_outstanding,
            "data.universe.shares_outstanding",
        ),
        *((name, path, f"data.{name}") for name, path in daily),
    ):
        if path is not None:
            identity[name] = hash_bytes(read_whole(path, setting))
    if settings.universe.index is not None:
        identity["members"] = hash_index(settings.universe.index)
    if feed.daily is not None:
        identity["daily"] = hash_bytes(json.dumps(feed.daily.inputs).encode())
    own = hash_own_modules(settings.features.names)
    identity |= {f"features.{module}": digest for module, digest in own.items()}
    if settings.features.normalisation is not None:
        identity["normalisation"] = read_statistics(settings.features.normalisation).digest
    return MarketSource(kind, tuple(SourceFile(**file) for file in files), identity)


_READ: dict[str, str] = {}
"""Module of own features -> digest of its files when this process last read it."""
_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
"""Folders whose modules are no part of an own feature."""


def refuse_functions(settings: DataSettings) -> None:
    """Raise ConfigError for features given as functions, which no file and no other process
    knows."""
    given = [name for name in settings.features.names if isinstance(name, OwnFunction)]
    if given:
        raise ConfigError(
            f"data.features.names: {given[0]} was given as a function; put it into a module on"
            " PYTHONPATH and give its name, 'module:name' (load_market takes functions as they are)"
        )


def hash_own_modules(names: Sequence[str]) -> dict[str, str]:
    """Hash the modules that features name, and the user's own modules that these import. A module
    that was edited since this process read it is reloaded. No module is imported for the first
    time, because the look-ahead check watches the imports of features."""
    texts = [name for name in names if ":" in name and not isinstance(name, OwnFunction)]
    found: dict[str, str] = {}
    for module in sorted({name.partition(":")[0] for name in texts}):
        _hash_module(module, found)
    for module, digest in found.items():  # a module comes after those that it imports
        if module in sys.modules and _READ.get(module, digest) != digest:
            importlib.reload(sys.modules[module])
    _READ.update(found)
    return found


def _hash_module(module: str, found: dict[str, str], *, helper: bool = False) -> None:
    """Add the hashes of a module and of its imports. A `helper`, which another module imports, is
    skipped if it is installed or in the standard library."""
    try:
        root = importlib.util.find_spec(module.partition(".")[0])
        installed = root is not None and str(root.origin).startswith(_INSTALLED)
        if module in found or (helper and installed):
            return
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.has_location:
            return
        source = Path(str(spec.origin)).read_bytes()
        imports = _list_imports(ast.parse(source), str(spec.parent))
    except (ImportError, ValueError, SyntaxError):  # its feature says what is wrong
        return
    found[module] = ""  # a circle of imports ends here
    for name in imports:
        _hash_module(name, found, helper=True)
    below = b"".join(found[name].encode() for name in imports if name in found)
    del found[module]
    found[module] = hash_bytes(source + below)


def _list_imports(tree: ast.Module, package: str) -> list[str]:
    """List the modules that a module may import."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [*dict.fromkeys(names)]


def portable(settings: DataSettings) -> Mapping[str, JsonValue]:
    """Write settings as JSON without any path, since a market does not depend on where its files
    are."""
    values: dict[str, Any] = json.loads(settings.model_dump_json())
    del values["store"], values["daily"]
    # The content of files counts, see `identify_source`.
    values["path"] = values["actions"] = values["benchmark"] = None
    values["universe"]["members"] = settings.universe.index
    values["universe"]["shares_outstanding"] = None
    values["features"]["normalisation"] = None
    values["features"]["daily"] = sorted(values["features"]["daily"])
    return values


def make_market(settings: DataSettings) -> MarketTensors:
    """Build a market in memory, without store or cache."""
    settings = settings.effective()
    return assemble(settings, open_feed(settings, None))


def assemble(settings: DataSettings, feed: Feed) -> MarketTensors:
    """Build a market in memory from a feed, reading each symbol once. Equal inputs give equal
    tensors, to the bit."""
    with _draft(settings, feed, None, SILENT) as draft:
        return draft.tensors()


def try_build(settings: DataSettings, feed: Feed) -> None:
    """Build a market in a temporary folder, and remove it. Raises as `build_market` does."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _draft(settings.effective(), feed, Path(folder), SILENT) as draft,
    ):
        draft.write(Path(folder) / "market.safetensors")


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling of the features."""

    settings: ft.FeatureSettings
    relative: int
    """Number of the first features, which are scaled across the members of each bar."""
    scaled: Array
    """`[F]` bool: the features that are standardised; `mean` and `spread` `[F]` are 0 and 1 for all
    other features."""
    mean: Array
    spread: Array

    def apply(self, block: Array, member: Array) -> None:
        """Put `[B, N, F]` on the scale, in place."""
        how = self.settings.cross_sectional
        clip = self.settings.clip
        if how != "none":
            cross_section(block, member, range(self.relative), how, clip)
        apply_scale(block, self.mean, self.spread, self.scaled, clip)


@dataclass(frozen=True, eq=False)
class Draft:
    """A built market before its arrays are laid out by bar; `columns` holds its symbols."""

    description: MarketDescription
    whole: Mapping[str, Array]
    """The arrays common to all symbols (context, session, minutes, benchmark)."""
    events: list[tuple[int, int, float, float]]
    """Bar, asset, split and dividend, in order."""
    columns: ColumnStore
    days: Array
    """`[S, N]` bool: members of each day."""
    shares: Array | None
    """`[S, N]` float32: shares outstanding, None without a file of them."""
    scaling: Scaling

    def write(self, path: Path) -> str:
        """Write the market file, atomically; returns its content hash. Raises MarketError."""
        values = list(zip(*self.events, strict=True)) or [()] * len(EVENTS)
        events = {
            EVENT + name: np.array(column, dtype=kind)
            for column, (name, kind) in zip(values, EVENTS.items(), strict=True)
        }
        bars = len(self.columns)
        assets = len(self.columns.slots)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            (*PRICES, "volume", "tradable", "member"), (bars, assets)
        )
        shapes["features"] = bars, assets, self.columns.features
        if self.shares is not None:
            shapes["shares_outstanding"] = bars, assets
        shapes |= {name: one.shape for name, one in (*self.whole.items(), *events.items())}
        kinds = {**ARRAYS, **{EVENT + name: kind for name, kind in EVENTS.items()}}
        entries = [
            StoredArray(name, kind, shapes[name]) for name, kind in kinds.items() if name in shapes
        ]
        return write_market(
            path, header_text(self.description), entries, {**self.whole, **events}, self.blocks()
        )

    def tensors(self) -> MarketTensors:
        """Lay the market out in memory. Raises MarketError."""
        import torch  # not needed for a market file

        from fintrader.market.tensors import Events, MarketTensors

        bars = len(self.columns)
        arrays: dict[str, Array] = dict(self.whole)
        for first, rows in self.blocks():
            for name, values in rows.items():
                if name not in arrays:
                    arrays[name] = np.empty((bars, *values.shape[1:]), dtype=values.dtype)
                arrays[name][first : first + len(values)] = values
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return MarketTensors.of(self.description, tensors, Events.of(self.events))

    def blocks(self) -> Iterator[tuple[int, dict[str, Array]]]:
        """The arrays `[T, N]` and `[T, N, F]` in blocks of bars: the first bar and, by name, the
        rows from there on.

        Call it once: blocks are freed after they are yielded.
        """
        columns = self.columns
        session = self.whole["session"]
        size = self.columns.block()
        for first in range(0, len(columns), size):
            stop = min(first + size, len(columns))
            today = session[first:stop]
            rows = {name: columns.rows(name, first, stop) for name in CELLS}
            rows["member"] = self.days[today]
            self.scaling.apply(rows["features"], rows["member"])
            refuse_bad_cells(rows)
            if self.shares is not None:
                rows["shares_outstanding"] = self.shares[today]
            yield first, rows
            columns.forget(stop)


@contextlib.contextmanager
def _draft(
    settings: DataSettings, feed: Feed, scratch: Path | None, progress: Progress
) -> Iterator[Draft]:
    """Build all of a market but its big arrays; its symbols' columns stay in scratch files in the
    folder `scratch` until the context ends."""
    feed.prepare(progress)
    source = identify_source(settings, feed)
    grid = lay_grid(settings, feed.span(), settings.bar_minutes)
    reader = Reader(settings, feed, grid)
    windows = make_windows(settings.windows, grid)
    membership = load_membership(settings.universe)
    raw = raw_features(settings)
    names = (*settings.features.names, *settings.features.extra, *raw)
    aliases = {**settings.universe.aliases, **feed.companies}
    candidates, left_out = list_candidates(settings, feed, membership, grid)
    left_out |= dict.fromkeys(feed.missing, f"no bars from {feed.inputs['kind']}")
    with ColumnStore(scratch, grid.num_bars, len(names)) as columns:
        symbols, sparse, dropped = read_all(
            settings, reader, candidates, windows.train, names, columns, progress
        )
        reader.evidence.judge()
        waived, doubtful = reader.gate.judge(symbols)
        close = columns.adjusted("close")
        day_close = _stack_day_closes(columns, grid)
        members = member_days(symbols, membership, grid.dates, aliases)
        days = members & _has_history([reader.history[name] for name in symbols], grid)
        _log_late(symbols, members, days, grid)
        benchmark, benchmark_name, is_foreign = _benchmark(settings, feed, close, grid, days)
        ended = tuple(symbol for symbol in symbols if symbol in reader.ended)
        survivors = survivorship(
            ended,
            day_close,
            members,
            missing=missing_members(
                *(sorted({*feed.symbols} - {*sparse}), membership, grid.dates, aliases),
                dict(zip(symbols, np.isfinite(day_close).T, strict=True)),
            ),
            index=benchmark[grid.first_bar[1:] - 1] if is_foreign else None,
            index_name=benchmark_name,
            sessions_a_year=sessions_a_year(settings.calendar),
        )
        if source.kind == "synthetic":  # made-up names were not chosen by their returns
            survivors = replace(survivors, survivors_only=False)
        member = Sheet(
            close.shape, lambda start, stop: days[grid.session[start:stop]], columns.block(1)
        )
        _market_features(columns, names, close, member)
        signal = None
        if isinstance(settings.source, PlantedInSettings):
            # `plant` correlates whole windows, so they must be in memory
            opens = columns.adjusted("open")[:]
            planted, signal = plant(settings.source, opens, member[:], windows, tuple(symbols))
            for slot, values in zip(columns.slots, planted.T, strict=True):
                columns.put_feature(slot, names.index(SIGNAL), values)
        repairs = {
            kind: sum(reader.repairs[symbol][kind] for symbol in symbols) for kind in REPAIRS
        }
        provenance = Provenance(
            source=source,
            calendar=settings.calendar,
            timezone=find_exchange_timezone(settings.calendar),
            sessions_a_year=sessions_a_year(settings.calendar),
            hours=settings.hours,
            build_version=BUILD_VERSION,
            planted_drift=describe_drift(settings, len(symbols)),
            planted_signal=signal,
            repairs=repairs,
            outside=repairs["outside_session"] / sum(reader.rows[symbol] for symbol in symbols),
            left_out=left_out | dropped | sparse,
            ended=ended,
            survivorship=survivors,
            waived=waived,
            doubtful=doubtful,
            contradictions=tuple(reader.contradictions),
            trusted_columns=list_trusted_columns(settings),
        )
        if sparse:
            log.warning("left out: %s", "; ".join(f"{one} {why}" for one, why in sparse.items()))
        _log_provenance(provenance)
        context_names = (*settings.features.context, *settings.features.daily)
        known_at = settings.features.known_at
        levels = (
            daily_level(name, path, grid, known_at.get(name, ft.TRUSTED))
            for name, path in settings.features.daily.items()
        )
        table = ft.context_features(
            settings.features.context,
            grid.session,
            benchmark=benchmark,
            day_close=day_close,
            member=days,
        )
        context = np.column_stack([table, *levels])
        scaling = fit_features(settings, columns.table(), names, windows.train)
        context_scales = scale_context(settings, context, context_names, windows.train)
        normalisation = Normalisation(
            features=name_scales(names, scaling.mean, scaling.spread),
            context=name_scales(context_names, *context_scales),
            clip=settings.features.clip,
            cross_sectional=settings.features.cross_sectional,
        )
        description = MarketDescription(
            symbols=tuple(symbols),
            feature_names=names,
            context_names=context_names,
            benchmark_name=benchmark_name,
            bar_minutes=settings.bar_minutes,
            windows=windows,
            normalisation=normalisation,
            provenance=provenance,
        )
        common = {
            "context": context.astype(np.float32),
            "session": grid.session,
            "minutes": grid.minutes,
            "benchmark": benchmark,
        }
        events = sorted(
            (bar, column, split, dividend)
            for column, name in enumerate(symbols)
            for bar, split, dividend in reader.events[name]
        )
        shares = load_shares(settings.universe)
        by_day = None if shares is None else share_days(symbols, shares, grid.dates)
        yield Draft(description, common, events, columns, days, by_day, scaling)


def lay_grid(settings: DataSettings, span: tuple[int, int], bar_minutes: int) -> SessionGrid:
    """Lay the grid over the days that the settings name, or else over the days of the bars. span:
    first and last time of the bars."""
    begin, end = exchange_days(settings.calendar, np.array(span)).tolist()
    first = settings.start or begin
    last = settings.end or end
    if last < first:
        raise DataError(
            f"the range of {first} to {last} holds none of the bars, which are from {begin} to"
            f" {end}; correct data.start or data.end"
        )
    return session_grid(settings.calendar, first, last, bar_minutes, settings.hours)


def _stack_day_closes(columns: ColumnStore, grid: SessionGrid) -> Array:
    """`[S, N]` float64: each symbol's adjusted close at the end of each session."""
    last = grid.first_bar[1:] - 1
    closes = np.column_stack([columns.adjusted_close(slot)[last] for slot in columns.slots])
    return closes.astype(np.float64)


def _has_history(history: Sequence[tuple[int, int]], grid: SessionGrid) -> Array:
    """`[S, N]` bool: False on the first sessions of a symbol that joins after the others, until its
    features' windows are full. history: see `Reader.history`."""
    first, full = np.array(history).T
    joined = grid.session[first]
    return np.asarray((grid.first_bar[:-1, None] >= full) | (joined == joined.min()))


def _log_late(symbols: Sequence[str], members: Array, days: Array, grid: SessionGrid) -> None:
    """Warn of symbols that join late, with the first day on which each can be bought."""
    late = [
        f"{symbols[column]} {f'from {grid.dates[own.argmax()]}' if own.any() else 'never'}"
        for column, own in enumerate(days.T)
        if (members[:, column] & ~own).any()
    ]
    if late:
        log.warning("bought once features have enough history: %s", shorten_list(late))


def fit_features(
    settings: DataSettings, table: Array | Sheet, names: Sequence[str], train: tuple[int, int]
) -> Scaling:
    """Fit the scales of the features `[T, N, F]` on the training window, or take stored ones."""
    chosen = settings.features
    raw = np.isin(names, raw_features(settings))
    relative = 0 if chosen.cross_sectional == "none" else int(np.count_nonzero(~raw))
    scaled = ~raw & chosen.standardise & (relative == 0)
    own = fit_scales("features", table, names, scaled, train, chosen)
    silent = [
        name for name, is_silent in zip(names, scaled & (own[1] == 1), strict=True) if is_silent
    ]
    if silent and chosen.normalisation is None:
        log.warning("features without any variation before validation: %s", ", ".join(silent))
    return Scaling(chosen, relative, scaled, *own)


def scale_context(
    settings: DataSettings, context: Array, names: Sequence[str], train: tuple[int, int]
) -> tuple[Array, Array]:
    """Scale the context `[T, M]` in place by the training window or stored statistics; return means
    and deviations `[M]`."""
    chosen = settings.features
    table = context[:, None, :]
    every = np.full(len(names), chosen.standardise)
    scales = fit_scales("context", table, names, every, train, chosen)
    apply_scale(table, *scales, every, chosen.clip)
    return scales


def _log_provenance(provenance: Provenance) -> None:
    """Log what the user should know of the bars before any result."""
    for line in provenance.contradictions:
        log.warning("%s", line)
    for kind, count in provenance.repairs.items():
        if count and provenance.source is not None:
            log.warning("%s: %d %s", provenance.source.kind, count, REPAIRS[kind])
    survivors = provenance.survivorship
    if survivors is not None and survivors.describe():
        level = logging.WARNING if survivors.survivors_only else logging.INFO
        log.log(level, "%s", survivors.describe())


def _market_features(
    columns: ColumnStore, names: Sequence[str], close: Sheet, member: Sheet
) -> None:
    """Write the features that need all symbols."""
    wanted = ft.market_wide(names)
    if not wanted:
        return
    market = ft.member_return(close, member)
    for slot in columns.slots:
        own = columns.adjusted_close(slot)
        for name in wanted:
            columns.put_feature(slot, names.index(name), ft.market_feature(name, own, market))


def _benchmark(
    settings: DataSettings, feed: Feed, close: Sheet, grid: SessionGrid, member: Array
) -> tuple[Array, str, bool]:
    """Return the benchmark's level `[T]`, its name, and whether it is an index rather than made of
    the universe."""
    if settings.benchmark is not None:
        return *file_benchmark(settings.benchmark, grid), True
    index = feed.index(grid)
    if index is not None:
        return index, "synthetic index", True
    return equal_weight(close, grid.first_bar, member), EQUAL_WEIGHT, False
