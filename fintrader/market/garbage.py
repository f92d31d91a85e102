"""Garbage: kept bars, markets and objects of a store that nothing refers to any more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fintrader.bars.chunks import list_unnamed
from fintrader.errors import DataError, RunError
from fintrader.files import unseal
from fintrader.market.bar_source import open_bar_store, open_feed
from fintrader.market.build import RECORD, market_path, portable
from fintrader.market.settings import DataSettings
from fintrader.storage.lease import find_newest_token, hold, is_held
from fintrader.storage.mirror import Markets, Mirror, attach, locate_cache, locate_working_copy
from fintrader.storage.objects import ObjectStore

_ADDRESS = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")


@dataclass
class Garbage:
    """Files that may be removed; falsy if there are none."""

    markets: dict[Path, int] = field(default_factory=dict)
    """Folders of built markets, and their bytes."""
    objects: dict[str, tuple[ObjectStore, list[str]]] = field(default_factory=dict)
    """URL of a collection of bars, or of a store's markets -> its objects without a reference."""
    runs: dict[str, tuple[Mirror, list[str]]] = field(default_factory=dict)
    """URL of a stored run -> its objects that none of its records names."""
    stores: Collection[str] = ()
    """URLs of the stores that were searched."""

    def __bool__(self) -> bool:
        return bool(self.markets or self.objects or self.runs)

    @property
    def size(self) -> int:
        """Bytes that a removal frees; objects that are not local files have no known size and are
        not counted."""
        homes = [
            *self.objects.values(),
            *((run.objects, names) for run, names in self.runs.values()),
        ]
        local = sum(_size(home.local, names) for home, names in homes if home.local)
        return sum(self.markets.values()) + local

    def search_store(self, url: str, runs: Sequence[Mirror], markets: Collection[str]) -> None:
        """Add the objects of a store that none of its runs names, except `markets`."""
        named = set(markets)
        for run in runs:
            hashes, names = run.find_unnamed()
            named |= hashes
            if names:
                self.runs[run.objects.url] = run, names
        shared = Markets(url)
        names = shared.list_unnamed(named)
        if names:
            self.objects[shared.objects.url] = shared.objects, names

    def lines(self) -> Iterator[str]:
        """One line for each folder."""
        for path, size in self.markets.items():
            yield f"market {path} ({size / 1e9:.2f} GB)"
        for url, (_, names) in (*self.objects.items(), *self.runs.items()):
            yield f"{url} ({len(names)} objects)"

    def remove(self) -> None:
        """Remove the garbage; after a kill the rest of it remains. Raises StorageError, and
        RunError where a run of a store has begun since."""
        for run, _ in self.runs.values():
            with hold(run.objects) as lease:
                run.pull()
                for name in run.find_unnamed()[1]:
                    lease.check()
                    run.objects.remove(name)
        for store in self.stores:
            open_runs(store)
        for path in self.markets:
            with ObjectStore(path).lock():
                shutil.rmtree(path, ignore_errors=True)
        for home, names in self.objects.values():
            with home.lock():
                # a build may have named some of them meanwhile
                unnamed = {*list_unnamed(home, {*home.list_names()} - {*names})}
                home.remove(*(name for name in names if name in unnamed))
                if not home.list_names():
                    home.clear()


def open_runs(store: str) -> list[Mirror]:
    """Open copies of the runs in a store; nothing is pulled yet. Raises RunError while one is at
    work: its references are not known yet."""
    root = ObjectStore(store)
    runs = filter(find_newest_token, map(root.open_below, root.list_folders()))
    mirrors = []
    for run in runs:
        if is_held(run):
            raise RunError(
                f"{run} is at work, or was killed within a minute; prune its store when none of its"
                " runs is at work"
            )
        mirrors.append(attach(locate_working_copy(run.url, locate_cache("runs")), run.url))
    return mirrors


def find_garbage(
    settings: Iterable[DataSettings],
    markets: Iterable[str],
    *,
    cache: Path,
    stored: Mapping[str, Sequence[Mirror]],
) -> Garbage:
    """Find objects that nothing refers to. In the cache and the settings' stores these are bars
    that no settings need, and markets that neither the settings nor `markets` (addresses) name; in
    the stores of runs, `stored` (URL -> its runs, pulled), objects that no run names.

    Raises DataError when the bars of one of the settings cannot be found, StorageError when a store
    cannot be reached.
    """
    live_markets = set(markets)
    live_bars = dict[str, set[str]]()
    stores: dict[str, ObjectStore] = {}
    for chosen in map(DataSettings.effective, settings):
        feed = open_feed(chosen, cache)
        store = open_bar_store(chosen, cache)
        stores[store.url] = store
        for collection in feed.stored():
            live_bars.setdefault(collection.objects.url, set()).add(collection.manifest)
        if not feed.inputs_need_bars:
            live_markets.add(market_path(chosen, feed, cache).parent.name)
        else:  # a vendor's bars are unknown before a request: keep all markets of these settings
            live_markets |= {path.name for path in cache.glob("*") if _is_made_from(path, chosen)}
    garbage = Garbage(stores=stored)
    for path in sorted(cache.glob("*")):
        if path.is_dir() and _ADDRESS.fullmatch(path.name) and path.name not in live_markets:
            garbage.markets[path] = _size(
                path, [file.relative_to(path).as_posix() for file in path.rglob("*")]
            )
    for store in stores.values():
        for name in sorted(
            {"/".join(name.split("/")[:2]) for name in store.list_names() if name.count("/") >= 2}
        ):
            home = store.open_below(name)
            keep = live_bars.get(home.url, set())
            names = list_unnamed(home, keep) if keep else home.list_names()
            if names:
                garbage.objects[home.url] = home, names
    for url, runs in stored.items():
        garbage.search_store(url, runs, live_markets)
    return garbage


def _is_made_from(path: Path, settings: DataSettings) -> bool:
    """True where a market was built with these settings, from any bars."""
    data = ObjectStore(path).get(RECORD)
    return data is not None and unseal(data, DataError(f"{path / RECORD} is damaged"))[
        "settings"
    ] == portable(settings)


def _size(folder: Path, names: Iterable[str]) -> int:
    return sum((folder / name).stat().st_size for name in names if (folder / name).is_file())
