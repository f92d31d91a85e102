"""Check that everything stored is what was stored: chunks of bars against manifests, markets against their hashes."""

from __future__ import annotations

from pathlib import Path

from fintrader.data.build import DataSettings, store_place
from fintrader.data.place import Place
from fintrader.data.record import NAME, check_record
from fintrader.data.store import verify_store
from fintrader.data.tensors import MarketTensors
from fintrader.errors import DataError
from fintrader.progress import SILENT, Progress


def verify(settings: DataSettings, *, cache: Path, progress: Progress | None = None) -> list[str]:
    """One line for each stored file of the store and the cache that is missing or differs by as little as a bit.

    An empty list means that all is well. Raises DataError when the store cannot be reached.
    """
    markets = _markets(cache)
    with (progress or SILENT).task("verify", total=1 + len(markets), unit="files") as task:
        problems = verify_store(store_place(settings, cache))
        task.advance(note="chunks of bars")
        for path in markets:
            for check in (_check_market, _check_record):
                try:
                    check(path)
                except DataError as error:
                    problems.append(str(error))
            task.advance(note=path.parent.name)
    return problems


def _check_market(path: Path) -> None:
    MarketTensors.load(path, verify=True)


def _check_record(path: Path) -> None:
    check_record(path.with_name(NAME))


def _markets(cache: Path) -> list[Path]:
    return [Path(cache) / name for name in Place(cache).names("market.safetensors")]
