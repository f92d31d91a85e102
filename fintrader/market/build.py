"""Bars to a market file: sources → cleaning → the exchange's grid → features → windows →
`MarketTensors`.

A market file is addressed by what goes into it: settings, the content of the input files and the
version of this code. An equal request finds the finished file; a build that was killed left nothing
under that name, so the same call builds it again and arrives at the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fintrader.bars.bars import Array
from fintrader.bars.calendar import (
    SessionGrid,
    exchange_days,
    make_windows,
    session_grid,
    sessions_a_year,
    timezone_of,
)
from fintrader.bars.clean import REPAIRS
from fintrader.bars.companies import index_digest
from fintrader.bars.sources.feed import Feed
from fintrader.config import refuse_url
from fintrader.errors import StorageError
from fintrader.files import seal
from fintrader.market import features as ft
from fintrader.market.bar_source import open_feed
from fintrader.market.columns import ColumnStore, Sheet
from fintrader.market.draft import Draft, Scaling
from fintrader.market.index_level import EQUAL_WEIGHT, daily_level, equal_weight, file_benchmark
from fintrader.market.market_file import stored_hash
from fintrader.market.planted_in import PlantedInSettings, plant
from fintrader.market.reading import Reader, candidates_of, read_all
from fintrader.market.scaling import (
    known_columns,
    read_statistics,
    standardise,
    statistics,
    statistics_hash,
)
from fintrader.market.settings import DataSettings, planted_description, raw_features
from fintrader.market.universe import (
    describe,
    load_membership,
    load_shares,
    member_days,
    missing_members,
    share_days,
    survivorship,
)
from fintrader.progress import Progress
from fintrader.storage.mirror import Markets
from fintrader.storage.objects import ObjectStore, read_whole

if TYPE_CHECKING:
    from fintrader.market.tensors import MarketTensors

log = logging.getLogger("fintrader.market")

RECORD = "build.json"
"""Beside every market: what it was made from and what was repaired, sealed."""
BUILD_VERSION = 8
"""Goes into every address; raised when the same settings would give other numbers, or files of
another form."""


def build_market(
    settings: DataSettings,
    *,
    cache: Path,
    progress: Progress | None = None,
    markets: Markets | None = None,
    normalisation: Path | str | None = None,
) -> Path:
    """The market file of these settings, built unless it is there already, in the cache or among
    shared `markets`.

    Lies at `cache/<address>/market.safetensors`, beside `build.json`, which says what it was made
    from and what was repaired. Bars pass through a store of chunks (`settings.store`), so that a
    later build reads only what is new. `normalisation` is short for the setting
    `features.normalisation`: an earlier market, by whose statistics this one is scaled.

    Raises DataError or a subclass of it, or StorageError when bars or markets cannot be stored or
    fetched; nothing is half-written then.
    """
    refuse_url(cache, "cache")
    settings = settings.effective()
    if normalisation is not None:
        features = settings.features.model_copy(update={"normalisation": str(normalisation)})
        settings = settings.model_copy(update={"features": features})
    feed = open_feed(settings, cache)
    if feed.inputs_need_bars:
        feed.prepare(progress)  # what a vendor has is only known once it was asked
    path = market_path(settings, feed, cache)
    folder = ObjectStore(path.parent)
    try:
        built = path.is_file()
    except OSError as error:
        raise StorageError(
            f"{cache}: {error.strerror or error}; choose another cache, or mend its rights"
        ) from None
    if built:
        return _shared(path, markets)
    with folder.lock():
        if path.is_file():  # somebody else built it while this process waited
            return _shared(path, markets)
        folder.remove_temporaries()
        if markets is not None and markets.fetch(path.parent.name, path.parent):
            return path
        with _drafted(settings, feed, path.parent, progress) as (draft, report):
            record = {
                "settings": portable(settings),
                "inputs": inputs_of(settings, feed),
                "version": BUILD_VERSION,
            }
            folder.put(RECORD, seal(record | report, indent=2))
            draft.write(path)  # last: once it is there, everything is
        return _shared(path, markets)


def _shared(path: Path, markets: Markets | None) -> Path:
    """Make sure that a built market is among the shared ones."""
    if markets is not None:
        files = {file.name: file for file in (path.with_name(RECORD), path) if file.is_file()}
        markets.keep([path.parent.name, stored_hash(path)], files)
    return path


def market_path(settings: DataSettings, feed: Feed, cache: Path) -> Path:
    """Where the market of these (effective) settings and bars lies, built or not."""
    text = json.dumps(
        [BUILD_VERSION, portable(settings), inputs_of(settings, feed)], sort_keys=True
    )
    return Path(cache) / hashlib.sha256(text.encode()).hexdigest()[:16] / "market.safetensors"


def inputs_of(settings: DataSettings, feed: Feed) -> dict[str, Any]:
    """What the market is made from, without any path: kind, and the content of every file."""
    inputs = dict(feed.inputs)
    daily = [(f"features.daily.{name}", path) for name, path in settings.features.daily.items()]
    for name, path, setting in (
        ("benchmark", settings.benchmark.path, "data.benchmark.path"),
        ("actions", settings.adjust.path, "data.adjust.path"),
        ("membership", settings.universe.membership, "data.universe.membership"),
        (
            "shares_outstanding",
            settings.universe.shares_outstanding,
            "data.universe.shares_outstanding",
        ),
        *((name, path, f"data.{name}") for name, path in daily),
    ):
        if path is not None:
            inputs[name] = hashlib.sha256(read_whole(path, setting)).hexdigest()
    if settings.universe.membership is None and settings.universe.index is not None:
        inputs["members"] = index_digest(settings.universe.index)
    if settings.features.normalisation is not None:
        inputs["normalisation"] = statistics_hash(read_statistics(settings.features.normalisation))
    return inputs


def portable(settings: DataSettings) -> dict[str, Any]:
    """Settings as JSON with file names instead of paths: where a file lies changes nothing."""
    values: dict[str, Any] = json.loads(settings.model_dump_json())
    del values["store"]
    for part in (values["source"], values["benchmark"], values["adjust"]):
        if part.get("path"):
            part["path"] = None  # its content counts, see `inputs_of`
    values["universe"]["membership"] = values["universe"]["shares_outstanding"] = None
    values["features"]["normalisation"] = None
    values["features"]["daily"] = sorted(values["features"]["daily"])
    return values


def make_market(
    settings: DataSettings, *, progress: Progress | None = None
) -> tuple[MarketTensors, dict[str, Any]]:
    """Build in memory, without store or cache; also what was repaired and left out."""
    settings = settings.effective()
    return assemble(settings, open_feed(settings, None), progress=progress)


def assemble(
    settings: DataSettings, feed: Feed, *, progress: Progress | None = None
) -> tuple[MarketTensors, dict[str, Any]]:
    """Bars to a market in memory; each symbol is read once. Equal inputs give equal tensors, to the
    bit."""
    with _drafted(settings, feed, None, progress) as (draft, report):
        return draft.tensors(), report


@contextlib.contextmanager
def _drafted(
    settings: DataSettings, feed: Feed, scratch: Path | None, progress: Progress | None
) -> Iterator[tuple[Draft, dict[str, Any]]]:
    """The market, and what was repaired and left out; its symbols' columns lie in a file of the
    `scratch` folder."""
    feed.prepare(progress)
    inputs = inputs_of(settings, feed)
    begin, end = (
        exchange_days(settings.calendar, np.array(feed.span())).astype("datetime64[D]").tolist()
    )
    span = settings.start or begin, settings.end or end
    grid = session_grid(settings.calendar, *span, settings.bar_minutes, settings.hours)
    reader = Reader(settings, feed, grid)
    windows = make_windows(settings.windows, grid)
    membership = load_membership(settings.universe)
    raw = raw_features(settings)
    names = (*settings.features.names, *settings.features.extra, *raw)
    aliases = {**settings.universe.aliases, **feed.companies}
    candidates, left_out = candidates_of(settings, feed, membership, grid)
    left_out |= dict.fromkeys(feed.missing, f"no bars from {feed.inputs['kind']}")
    with ColumnStore(scratch, grid.num_bars, len(names)) as columns:
        symbols, dropped = read_all(
            settings, reader, candidates, windows.train, names, columns, progress
        )
        reader.evidence.judge()
        passed = reader.gate.verdict(symbols)
        left_out |= dropped
        for line in reader.contradictions:
            log.warning("%s", line)
        repairs = {
            kind: sum(reader.repairs[symbol][kind] for symbol in symbols) for kind in REPAIRS
        }
        for kind, count in repairs.items():
            if count:
                log.warning("%s: %d %s", feed.inputs["kind"], count, REPAIRS[kind])
        ended = [symbol for symbol in symbols if symbol in reader.ended]
        events = sorted(
            (bar, column, split, dividend)
            for column, name in enumerate(symbols)
            for bar, split, dividend in reader.events[name]
        )
        close = columns.adjusted("close")
        first = grid.first_bar
        day_close = np.column_stack(
            [columns.adjusted_close(slot)[first[1:] - 1] for slot in columns.slots]
        )
        day_close = day_close.astype(np.float64)
        days = member_days(symbols, membership, grid.dates, aliases)
        benchmark, benchmark_name, foreign = _benchmark(settings, feed, close, grid, days)
        survivors = survivorship(
            ended,
            day_close,
            days,
            missing=missing_members(
                *(feed.symbols, membership, grid.dates, aliases),
                dict(zip(symbols, np.isfinite(day_close).T, strict=True)),
            ),
            index=benchmark[first[1:] - 1] if foreign else None,
            index_name=benchmark_name,
            sessions_a_year=sessions_a_year(settings.calendar),
        )
        report: dict[str, Any] = {
            "repairs": repairs,
            "left_out": left_out,
            "ended": ended,
            "survivorship": survivors,
        }
        report |= passed
        if reader.contradictions:
            report["actions"] = reader.contradictions
        if words := describe(survivors):
            log.log(logging.WARNING if survivors["survivors_only"] else logging.INFO, "%s", words)
        chosen = settings.features
        member = Sheet(
            close.shape, lambda start, stop: days[grid.session[start:stop]], columns.block(1)
        )
        _market_features(columns, names, close, member)
        planted = planted_description(settings, len(symbols))
        if isinstance(
            settings.source, PlantedInSettings
        ):  # it correlates whole windows, so it needs them in memory
            opens = columns.adjusted("open")[:]
            signal, planted = plant(settings.source, opens, member[:], windows, tuple(symbols))
            for slot, values in zip(columns.slots, signal.T, strict=True):
                columns.put_feature(slot, names.index(settings.source.column), values)
        shares = load_shares(settings.universe)
        context_names = (*chosen.context, *chosen.daily)
        table = ft.context_features(
            chosen.context,
            benchmark=benchmark,
            session=grid.session,
            day_close=day_close,
            day_member=days,
            turbulence_days=chosen.turbulence_days,
        )
        context = np.column_stack(
            [table, *(daily_level(name, path, grid) for name, path in chosen.daily.items())]
        )
        stored = None if chosen.normalisation is None else read_statistics(chosen.normalisation)
        scaling = Scaling.of(
            chosen, columns.table(), names, np.isin(names, raw), windows.train, stored
        )
        common = np.full(len(context_names), chosen.standardise)
        known = known_columns(
            stored, "context", context_names, common, (chosen.clip, chosen.cross_sectional)
        )
        scales = {
            "features": statistics(names, scaling.mean, scaling.spread),
            "context": standardise(
                context[:, None, :], context_names, windows.train, common, chosen.clip, known
            ),
            "clip": chosen.clip,
            "cross_sectional": chosen.cross_sectional,
        }
        header = {
            "symbols": tuple(symbols),
            "feature_names": names,
            "context_names": context_names,
            "benchmark_name": benchmark_name,
            "bar_minutes": settings.bar_minutes,
            "windows": windows,
            "meta": {
                "source": inputs,
                "calendar": settings.calendar,
                "timezone": timezone_of(settings.calendar),
                "sessions_a_year": sessions_a_year(settings.calendar),
                "hours": settings.hours,
                "normalisation": scales,
                "normalisation_hash": statistics_hash(scales),
                "planted": planted,
                **report,
            },
        }
        whole = {
            "context": context.astype(np.float32),
            "session": grid.session,
            "minutes": grid.minutes,
        }
        whole["benchmark"] = benchmark
        by_day = None if shares is None else share_days(symbols, shares, grid.dates)
        yield (
            Draft(header, whole, events, columns, days, by_day, scaling),
            report | {"normalisation": scales},
        )


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
    """Level, name, and whether it is an index of its own and not made of the universe."""
    if settings.benchmark.path is not None:
        return *file_benchmark(settings.benchmark, grid), True
    index = feed.index(grid)
    if index is not None:
        return index, settings.benchmark.name or "synthetic index", True
    return equal_weight(close, grid, member), settings.benchmark.name or EQUAL_WEIGHT, False
