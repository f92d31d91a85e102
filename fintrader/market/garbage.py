"""Garbage: kept bars and markets that nothing refers to any more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fintrader.bars.chunks import list_unnamed
from fintrader.errors import DataError
from fintrader.files import unseal
from fintrader.market.bar_source import bar_store, open_feed
from fintrader.market.build import RECORD, market_path, portable
from fintrader.market.settings import DataSettings
from fintrader.storage.objects import ObjectStore

_ADDRESS = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")


@dataclass
class Garbage:
    """Files that may be removed; false without any."""

    markets: dict[Path, int] = field(default_factory=dict)
    """Folders of built markets, and their bytes."""
    objects: dict[str, tuple[ObjectStore, list[str]]] = field(default_factory=dict)
    """By the URL of a collection of bars: its objects that nothing refers to."""
    bytes_of_objects: int = 0

    def __bool__(self) -> bool:
        return bool(self.markets or self.objects)

    @property
    def size(self) -> int:
        """Bytes that a removal frees; objects that are not local files have no known size and are
        not counted."""
        return sum(self.markets.values()) + self.bytes_of_objects

    def lines(self) -> Iterator[str]:
        """One line for each folder."""
        for path, size in self.markets.items():
            yield f"market {path} ({size / 1e9:.2f} GB)"
        for url, (_, names) in self.objects.items():
            yield f"bars {url} ({len(names)} objects)"

    def remove(self) -> None:
        """Remove it all. Raises StorageError."""
        for path in self.markets:
            with ObjectStore(path).lock():
                shutil.rmtree(path, ignore_errors=True)
        for home, names in self.objects.values():
            with home.lock():
                home.remove(*names)
                if not home.list_names():
                    home.clear()


def find_garbage(
    settings: Iterable[DataSettings], markets: Iterable[str], *, cache: Path
) -> Garbage:
    """Find objects in the cache and in the settings' stores to which neither these settings nor, of
    markets, these addresses refer.

    Raises DataError when the bars of one of the settings cannot be found, StorageError when a store
    cannot be reached.
    """
    live_markets = set(markets)
    live_bars = dict[str, set[str]]()
    stores: dict[str, ObjectStore] = {}
    for one in settings:
        chosen = one.effective()
        feed = open_feed(chosen, cache)
        store = bar_store(chosen, cache)
        stores[store.url] = store
        for collection in feed.stored():
            live_bars.setdefault(collection.objects.url, set()).add(collection.manifest)
        if not feed.inputs_need_bars:
            live_markets.add(market_path(chosen, feed, cache).parent.name)
        else:  # a vendor's bars are unknown before a request: keep all markets of these settings
            live_markets |= {path.name for path in cache.glob("*") if _made_from(path, chosen)}
    garbage = Garbage()
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
                garbage.bytes_of_objects += 0 if home.local is None else _size(home.local, names)
    return garbage


def _made_from(path: Path, settings: DataSettings) -> bool:
    """True where a market was built with these settings, from any bars."""
    data = ObjectStore(path).get(RECORD)
    return data is not None and unseal(data, DataError(f"{path / RECORD} is damaged"))[
        "settings"
    ] == portable(settings)


def _size(folder: Path, names: Iterable[str]) -> int:
    return sum((folder / name).stat().st_size for name in names if (folder / name).is_file())
