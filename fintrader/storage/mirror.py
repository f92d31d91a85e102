"""The working copy of a run: a folder on the local disk that mirrors the original in a store.

    <store>/<run>/
      lease/<token>.json                    who drives the run (see `lease`)
      objects/<sha256>                      files by content: snapshots, policies, artifacts
      pods/<id>/spec.json, result.json      written once; a result also names its pod's files
      pods/<id>/state.json, state/<sha256>  a pod's unfinished training (`tournament.state_sync`)
      events/<token>-<number>.json          pieces of the event log
      index/<token>-<number>.json           all other files of the run: name -> hash
      null_model/…, folds/<nn>/…               the pods and events of tournaments inside the run
    <store>/.markets/<hash>.json, objects/<sha256>   built markets, by content and by inputs

Each object is named by its hash or contains it, so that truncation and changes are detected. The
newest index describes all files of the run together: after a kill midway, the previous index
counts. Pieces and indices carry the token of the lease under which they were written, and readers
take the highest, so that a holder that lost the run changes nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fintrader.config import check_url
from fintrader.errors import RunError, StorageDamagedError, StorageError
from fintrader.files import (
    dump_json,
    hash_bytes,
    hash_file,
    publish,
    read_bytes,
    read_json,
    seal,
    unseal,
    write_bytes,
    write_json,
)
from fintrader.storage import lease as leases
from fintrader.storage.lease import StoreLease
from fintrader.storage.objects import ObjectStore

MARKER = ".store.json"
"""File in a working copy that holds the URL of its run."""
FULL_EVERY = 256
"""Interval, in pieces of the event log, at which a piece repeats the whole log; it bounds a
reader's requests."""
_POD_FILE = re.compile(r"(?P<prefix>(?:[^/]+/)*?)pods/(?P<pod>p\d+)/(?P<name>spec|result)\.json")
_RECORD = re.compile(r"(?P<token>\d+)-(?P<number>\d+)(?P<full>\.all)?\.json")
_NOT_INDEXED = re.compile(
    r"(^|/)(pods|snapshots|logs|tensorboard|events\.jsonl|leaderboard\.[^/]*|lease(\.json)?"
    r"|scale\.json|progress\.json)(/|$)"
    r"|(^|/)(market|information_free\w*)\.safetensors$|(^|/)\.[^/]+|\.tmp$"
)
"""Files that the index leaves out: stored otherwise, local to a machine, or derived from others."""
_CONTENT = re.compile(r"(^|/)(objects|state)/")
_HASH = re.compile(rb"[0-9a-f]{64}")


class Piece(NamedTuple):
    """One record of the event log or one index."""

    token: int
    number: int
    is_full: bool
    name: str


@dataclass
class Mirror:
    """A run's folder and its store, or those of one tournament inside the run."""

    home: Path
    """Folder of the run, which holds the marker."""
    objects: ObjectStore
    prefix: str = ""
    """Path of the tournament inside the run, such as `null_model/`; empty for the run itself."""
    _hashes: dict[Path, tuple[tuple[int, int, int], str]] = field(default_factory=dict)
    _sent: set[str] = field(default_factory=set)

    @property
    def address(self) -> dict[str, str]:
        """JSON from which another process opens the same mirror with `open_mirror`."""
        return {"url": self.objects.url, "inside": self.prefix}

    @property
    def lease(self) -> StoreLease:
        """Lease that this process holds. Raises StorageError without one: only the holder may write
        here."""
        held = leases.find_lease(self.objects)
        if held is None:
            raise StorageError(
                f"{self.objects}: this process does not hold the run, so it may not write to it"
            )
        return held

    def put_bytes(self, data: bytes) -> str:
        """Store data under its hash; returns the hash."""
        digest = hash_bytes(data)
        self.objects.put(f"objects/{digest}", data)
        self._sent.add(digest)
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file under its hash; returns the hash."""
        digest = hash_file(path)
        self.objects.put_file(f"objects/{digest}", path)
        self._sent.add(digest)
        return digest

    def fetch(self, digest: str, path: Path) -> bool:
        """Copy the content with this hash to `path`; False if the store lacks it. Raises
        StorageDamagedError for a damaged object."""
        return self.objects.get_file(f"objects/{digest}", path, digest)

    def has(self, digest: str) -> bool:
        """Check the last listing, then the store, for content."""
        held = leases.find_lease(self.objects)
        name = f"objects/{digest}"
        if digest in self._sent or (
            held is not None and held.listing is not None and name in held.listing
        ):
            return True
        return self.objects.exists(name)

    def discard(self, digest: str) -> None:
        """Remove a damaged object, so that it is made again."""
        self.objects.remove(f"objects/{digest}")
        self._sent.discard(digest)
        held = leases.find_lease(self.objects)
        if held is not None and held.listing is not None:
            held.listing -= {f"objects/{digest}"}

    def find_unnamed(self) -> tuple[set[str], list[str]]:
        """Find the hashes that a pulled run names, and its objects that it does not name.

        Unless this process holds the run, such an object may be named a moment later.
        """
        # listed first, because a record comes after its objects
        objects = self.objects.list_names("objects")
        records = (name for name in self.objects.list_names() if not _CONTENT.search(name))
        texts = [
            *filter(None, self.objects.map(self.objects.get, records)),
            *(read_bytes(path) for path in self._list_files() if path.suffix == ".json"),
        ]
        named = {digest.decode() for text in texts for digest in _HASH.findall(text)}
        return named, [name for name in objects if name.removeprefix("objects/") not in named]

    def create_pod_file(
        self, pod: str, name: str, text: str, files: Mapping[str, str] | None = None
    ) -> str:
        """Write `spec.json` or `result.json` of a pod unless it exists; returns the stored text."""
        where = f"{self.prefix}pods/{pod}/{name}"
        more = {} if files is None else {"files": dict(sorted(files.items()))}
        if self.objects.create(where, seal({"text": text, **more})):
            return text
        standing = self.read_pod_file(pod, name)
        return text if standing is None else standing

    def read_pod_file(self, pod: str, name: str) -> str | None:
        """Read a pod's stored file; None if there is none. Raises StorageDamagedError."""
        body = self.objects.read_sealed(f"{self.prefix}pods/{pod}/{name}")
        return None if body is None else str(body["text"])

    def list_hashes_of_files(self, pod: str) -> list[str]:
        """List the hashes of the files that a pod's stored result names. Raises
        StorageDamagedError."""
        body = self.objects.read_sealed(f"{self.prefix}pods/{pod}/result.json") or {}
        return [str(digest) for digest in body.get("files", {}).values()]

    def set_pod_file_aside(self, pod: str, name: str) -> None:
        """Rename a damaged file of a pod after its hash, so that it can be written again."""
        where = f"{self.prefix}pods/{pod}/{name}"
        data = self.objects.get(where)
        if data is not None:
            digest = hash_bytes(data)
            self.objects.put(f"{where.removesuffix('.json')}.damaged-{digest[:16]}.json", data)
            self.objects.remove(where)

    def append_events(self, lines: str, everything: Callable[[], str]) -> None:
        """Store a piece of the event log; the first and every `FULL_EVERY`th piece hold the whole
        log, `everything`."""
        kind = f"{self.prefix}events"
        number = self.lease.take_number(kind)
        is_full = number % FULL_EVERY == 0
        self._write_record(kind, number, everything() if is_full else lines, is_full=is_full)

    def publish(self) -> None:
        """Store all changed files of the run, and then the index that names them."""
        held = self.lease
        files = {}
        new = []
        known = set((held.index or {}).values())
        for path in self._list_files():
            digest = self._hash(path)
            files[path.relative_to(self.home).as_posix()] = digest
            if digest not in known:
                new.append(path)
        if files == held.index:
            return
        self.objects.map(self.put_file, new)
        self._write_record("index", held.take_number("index"), dump_json(files), is_full=True)
        held.index = files

    def _write_record(self, kind: str, number: int, text: str, *, is_full: bool) -> None:
        token = self.lease.token
        name = f"{kind}/{token:06d}-{number:06d}{'.all' if is_full else ''}.json"
        if not self.objects.create(name, seal({"text": text})):
            # A successor may have removed the record before the answer arrived.
            self.lease.check(ask_store=True)
            raise RunError(
                f"{self.objects}/{name} was written by another process; run the same command again"
            )
        if is_full and number % FULL_EVERY == 0:
            old = [
                piece.name
                for piece in self._list_pieces(kind)
                if (piece.token, piece.number) < (token, number - 1)
            ]
            self.objects.map(self.objects.remove, old)

    def _list_pieces(self, kind: str, names: Iterable[str] | None = None) -> list[Piece]:
        """List the records of a kind, oldest first."""
        pieces = []
        for name in self.objects.list_names(kind) if names is None else names:
            folder, _, last = name.rpartition("/")
            match = _RECORD.fullmatch(last)
            if folder == kind and match:
                pieces.append(
                    Piece(int(match["token"]), int(match["number"]), bool(match["full"]), name)
                )
        return sorted(pieces)

    def _select_current(self, kind: str, names: Iterable[str]) -> list[Piece]:
        """Select the records that count: from the newest holder's last full one on."""
        current: list[Piece] = []
        for piece in self._list_pieces(kind, names):
            if piece.is_full:
                current = []
            if piece.is_full or (current and piece.token == current[0].token):
                current.append(piece)
        return current

    def _read_texts(self, pieces: Sequence[Piece]) -> list[str] | None:
        """Read the texts of records; None when one of them has been removed meanwhile."""
        bodies = self.objects.map(lambda piece: self.objects.read_sealed(piece.name), pieces)
        texts = [str(body["text"]) for body in bodies if body is not None]
        return texts if len(texts) == len(pieces) else None

    @property
    def store_url(self) -> str:
        """URL of the store that holds this run and others."""
        return self.objects.url.rpartition("/")[0]

    def pull(self, *, curves: bool = False) -> None:
        """Bring the run's light files here: files of the index, specs, results and logs; with
        `curves` also learning curves.

        The store's files replace local ones. Snapshots and policies are fetched on demand. Raises
        StorageDamagedError for a damaged index, file or spec. A damaged result is copied as it is;
        the driver of the run sets it aside.
        """
        for _ in range(5):  # the holder may remove records that it has just replaced
            names = [name for name in self.objects.list_names() if ".." not in name.split("/")]
            if self._pull_index(names) and self._pull_events(names):
                break
        else:
            raise StorageError(f"{self.objects} changes faster than it can be read; try again")
        self.objects.map(
            lambda name: self._pull_pod_file(name, curves), filter(_POD_FILE.fullmatch, names)
        )
        held = leases.find_lease(self.objects)
        if held is not None:
            held.listing = frozenset(names)

    def _pull_index(self, names: Sequence[str]) -> bool:
        pieces = self._select_current("index", names)
        if not pieces:
            return True
        texts = self._read_texts(pieces[-1:])
        if texts is None:
            return False
        index: dict[str, str] = json.loads(texts[0])
        missing = {
            name: digest for name, digest in index.items() if self._hash(self.home / name) != digest
        }

        def bring(name: str) -> None:
            if _NOT_INDEXED.search(name) or ".." in Path(name).parts or Path(name).is_absolute():
                raise StorageDamagedError(
                    f"{self.objects}/{pieces[-1].name} names {name!r}, which is no file of a run"
                )
            if not self.fetch(missing[name], self.home / name):
                raise StorageDamagedError(
                    f"{self.objects}/objects/{missing[name]} ({name}) is missing"
                )

        self.objects.map(bring, missing)
        held = leases.find_lease(self.objects)
        if held is not None:
            held.index = index
        return True

    def _pull_events(self, names: Sequence[str]) -> bool:
        kinds = sorted(
            {name.rpartition("/")[0] for name in names if re.search(r"(^|/)events/[^/]+$", name)}
        )
        for kind in kinds:
            pieces = self._select_current(kind, names)
            texts = self._read_texts(pieces)
            if texts is None:
                return False
            path = self.home / kind.removesuffix("events") / "events.jsonl"
            data = "".join(texts).encode()
            if pieces and (not path.is_file() or read_bytes(path) != data):
                write_bytes(path, data)
        return True

    def _pull_pod_file(self, name: str, curves: bool) -> None:
        path = self.home / name
        if path.exists():
            return
        data = self.objects.get(name)
        if data is None:
            return
        try:
            body = unseal(data, self.objects.build_damage_error(name))
        except StorageDamagedError:
            if path.name == "spec.json":
                raise
            publish(path, data, sync=False)
            return
        digest = body.get("files", {}).get("metrics.jsonl")
        if curves and digest:
            self.fetch(str(digest), path.with_name("metrics.jsonl"))
        publish(path, str(body["text"]).encode(), sync=False)

    def _list_files(self) -> list[Path]:
        """List the files that belong in the index, sorted."""
        return sorted(
            path
            for path in self.home.rglob("*")
            if not _NOT_INDEXED.search(path.relative_to(self.home).as_posix()) and path.is_file()
        )

    def _hash(self, path: Path) -> str:
        """SHA-256 of a file, cached by its inode, size and time; empty for a missing file."""
        if not path.is_file():
            return ""
        stat = path.stat()
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._hashes.get(path, (None, ""))[0] != stamp:
            self._hashes[path] = (stamp, hash_file(path))
        return self._hashes[path][1]


def attach(home: Path, url: str) -> Mirror:
    """Make `home` the working copy of the run `url`. Raises RunError for another run's copy,
    StorageError without access."""
    url = check_url(url)
    marker = home / MARKER
    if marker.exists():
        known = _read_url(marker)
        if known != url:
            raise RunError(
                f"{home} is a copy of {known}, not of {url}; choose another name, or remove the"
                " folder"
            )
    objects = ObjectStore(url)
    objects.check_access()
    if not marker.exists():
        write_json(marker, {"url": url})
    return Mirror(home, objects)


def locate_cache(kind: str) -> Path:
    """Locate the cache for disposable copies of a kind: `runs` that are only read, `pods` that run
    far from the head."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fintrader" / kind


def locate_working_copy(url: str, below: Path) -> Path:
    """Locate the working copy of the run at `url` below a folder; runs of one store are
    siblings."""
    store, _, name = check_url(url).rpartition("/")
    return below / hash_bytes(store.encode())[:16] / name


def open_working_copy(url: str, below: Path) -> Path:
    """Attach the working copy of the run at `url` below a folder; no files are pulled yet."""
    home = locate_working_copy(url, below)
    attach(home, url)
    return home


def find_mirror(folder: Path) -> Mirror | None:
    """Find the mirror of a run's folder, or of a tournament inside it, by its marker; None for a
    run without a store."""
    folder = folder.absolute()
    for above in (folder, *folder.parents[:4]):
        if (above / MARKER).is_file():
            inside = folder.relative_to(above).as_posix()
            return Mirror(
                above,
                ObjectStore(_read_url(above / MARKER)),
                "" if inside == "." else f"{inside}/",
            )
    return None


def open_mirror(folder: Path, address: Mapping[str, str] | None) -> Mirror | None:
    """Open the mirror with this `address` for a tournament's folder; None without an address."""
    if address is None:
        return None
    depth = len(Path(address["inside"]).parts)
    home = folder.parents[depth - 1] if depth else folder
    objects = ObjectStore(address["url"])
    objects.expect_folder()  # the sender of the address holds a lease there
    return Mirror(home, objects, address["inside"])


def _read_url(path: Path) -> str:
    """Read the URL of a working copy's run from its marker."""
    values = read_json(path)
    url = values.get("url") if isinstance(values, dict) else None
    if not isinstance(url, str):
        raise RunError(f"{path} is damaged; remove its folder, and give the store's URL again")
    return url


class Markets:
    """Built markets of one store, shared by its runs: `<key>.json`, sealed, names the hashes of a
    market's files.

    A market has two keys: its content hash, which the pods' specs name, and the hash of its
    settings and inputs, under which a later build finds it.
    """

    def __init__(self, store: str) -> None:
        self.objects = ObjectStore(f"{store.rstrip('/')}/.markets")

    def keep(self, keys: Sequence[str], files: Mapping[str, Path]) -> None:
        """Store a market's files, and then a record under each of the `keys` that lacks one."""
        missing = [key for key in keys if not self.objects.exists(f"{key}.json")]
        if not missing:
            return
        hashes = {name: hash_file(path) for name, path in files.items()}
        for name, path in files.items():
            if not self.objects.exists(f"objects/{hashes[name]}"):
                self.objects.put_file(f"objects/{hashes[name]}", path)
        for key in missing:
            self.objects.put(f"{key}.json", seal(hashes))

    def list_unnamed(self, keys: Collection[str]) -> list[str]:
        """List the records of the markets that none of these keys names, and then their files."""
        names = self.objects.list_names()
        records = [name for name in names if name.endswith(".json")]
        files = {name: {*(self.objects.read_sealed(name) or {}).values()} for name in records}
        named = set().union(*(files[f"{key}.json"] for key in keys if f"{key}.json" in files))
        unnamed = [name for name in records if not files[name] & named]
        needed = set().union(*(files[name] for name in records if name not in unnamed))
        objects = [name for name in names if name.startswith("objects/")]
        return unnamed + [name for name in objects if name.removeprefix("objects/") not in needed]

    def fetch(self, key: str, folder: Path) -> bool:
        """Copy a market's files into `folder`, the market itself last; False when the store lacks
        the key.

        Removes the record if a file is damaged or missing, so that a process with the bars stores
        it anew.
        """
        files = self.objects.read_sealed(f"{key}.json")
        if files is None:
            return False
        for name in sorted(files, key=lambda name: (name.startswith("market"), name)):
            if name != Path(name).name or name.startswith("."):
                raise StorageDamagedError(
                    f"{self.objects}/{key}.json names {name!r}, which is no file of a market"
                )
            try:
                exists = self.objects.get_file(f"objects/{files[name]}", folder / name, files[name])
            except StorageDamagedError:
                self.objects.remove(f"objects/{files[name]}")
                exists = False
            if not exists:
                self.objects.remove(f"{key}.json")
                return False
        return True
