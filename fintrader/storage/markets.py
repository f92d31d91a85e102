"""Built markets in a store, shared by all runs there: found by their content, or by what they are built from.

    <store>/.markets/<key>.json          file name -> hash, sealed
    <store>/.markets/objects/<sha256>    the files

A market has two keys: its content hash, which every pod's spec names, and the address of its settings and inputs,
which a later build looks for before it builds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fintrader.errors import StorageDamagedError
from fintrader.files import file_sha256, seal
from fintrader.storage.objects import Objects

FOLDER = ".markets"


class Markets:
    """The markets of one store."""

    def __init__(self, store: str) -> None:
        self.objects = Objects(f"{store.rstrip('/')}/{FOLDER}")

    def files(self, key: str) -> dict[str, str] | None:
        """File name -> hash of a market, None when it is not there. Raises StorageDamagedError."""
        return self.objects.get_sealed(f"{key}.json")

    def keep(self, keys: Sequence[str], files: Mapping[str, Path]) -> None:
        """Store a market's files under all `keys`, unless they are there. The record comes last."""
        missing = [key for key in keys if not self.objects.exists(f"{key}.json")]
        if not missing:
            return
        hashes = {name: file_sha256(path) for name, path in files.items()}
        for name, path in files.items():
            if not self.objects.exists(f"objects/{hashes[name]}"):
                self.objects.put_file(f"objects/{hashes[name]}", path)
        for key in missing:
            self.objects.put(f"{key}.json", seal(hashes))

    def fetch(self, key: str, folder: Path) -> bool:
        """Bring a market's files into `folder`, the market itself last; False when the store has none of that key.

        A damaged or missing file takes the record with it, so that whoever has the bars stores the market anew.
        """
        files = self.files(key)
        if files is None:
            return False
        for name in sorted(files, key=lambda name: (name.startswith("market"), name)):
            if name != Path(name).name or name.startswith("."):
                raise StorageDamagedError(f"{self.objects}/{key}.json names {name!r}, which is no file of a market")
            try:
                there = self.objects.get_file(f"objects/{files[name]}", folder / name, files[name])
            except StorageDamagedError:
                self.objects.remove(f"objects/{files[name]}")
                there = False
            if not there:
                self.objects.remove(f"{key}.json")
                return False
        return True
