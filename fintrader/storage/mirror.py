"""The working copy: a run's folder on this disk, and the same run in a store, which is the one that
counts.

    <store>/<run>/
      lease/<token>.json                    who drives the run (see `lease`)
      objects/<sha256>                      files by content: snapshots, policies, artifacts
      pods/<id>/spec.json, result.json      written once; a result also names its pod's files
      pods/<id>/state.json, state/<sha256>  a pod in the middle (`tournament.state_sync`)
      events/<token>-<number>.json          the event log, piece by piece
      index/<token>-<number>.json           every other file of the run: name -> hash
      null_model/…, folds/<nn>/…               the pods and events of tournaments inside the run
    <store>/.markets/<hash>.json, objects/<sha256>   built markets, by content and by what they were built from

An object is either named by its hash or carries it, so what is half there or was changed is
noticed. The newest index is the state of the run's files as one: a kill between two files leaves
the state before. Pieces and indices carry the token of the lease they were written under, and
readers take the highest, so a holder that lost the run changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fintrader.config import check_url
from fintrader.errors import RunError, StorageDamagedError, StorageError
from fintrader.files import (
    dump_json,
    file_sha256,
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
from fintrader.storage.objects import Objects

MARKER = ".store.json"
"""In a run's folder: says of which run in a store it is the working copy."""
FULL_EVERY = 256
"""Of so many pieces of an event log one holds all before it, so that nobody reads more than
that."""
_POD_FILE = re.compile(r"(?P<prefix>(?:[^/]+/)*?)pods/(?P<pod>p\d+)/(?P<name>spec|result)\.json")
_RECORD = re.compile(r"(?P<token>\d+)-(?P<number>\d+)(?P<full>\.all)?\.json")
_OWN = re.compile(
    r"(^|/)(pods|snapshots|logs|tensorboard|events\.jsonl|leaderboard\.sqlite[^/]*|lease(\.json)?|scale\.json|progress\.json)(/|$)"
    r"|(^|/)(market|information_free\w*)\.safetensors$|(^|/)\.[^/]+|\.tmp$"
)
"""What the index leaves out: files stored under names of their own, of this machine alone, or made
again."""


class Piece(NamedTuple):
    """One record of the event log or one index."""

    token: int
    number: int
    full: bool
    name: str


@dataclass
class Mirror:
    """One tournament's (or the whole run's) side of the store."""

    home: Path
    """The run's folder, which holds the marker."""
    objects: Objects
    prefix: str = ""
    """`null_model/` and the like for a tournament inside the run."""
    _hashes: dict[Path, tuple[tuple[int, int, int], str]] = field(default_factory=dict)
    _sent: set[str] = field(default_factory=set)

    @property
    def address(self) -> dict[str, str]:
        """What another process needs to open the same (`mirror_at`), as plain JSON."""
        return {"url": self.objects.url, "inside": self.prefix}

    @property
    def lease(self) -> StoreLease:
        """What this process holds. Raises StorageError when it holds nothing: only the holder may
        write here."""
        held = leases.held_here(self.objects)
        if held is None:
            raise StorageError(
                f"{self.objects}: this process does not hold the run, so it may not write to it"
            )
        return held

    def put_bytes(self, data: bytes) -> str:
        """Store data under its hash; returns that."""
        digest = hashlib.sha256(data).hexdigest()
        self.objects.put(f"objects/{digest}", data)
        self._sent.add(digest)
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file under its hash; returns that."""
        digest = file_sha256(path)
        self.objects.put_file(f"objects/{digest}", path)
        self._sent.add(digest)
        return digest

    def fetch(self, digest: str, path: Path) -> bool:
        """Bring content to `path`; False if the store has none. Raises StorageDamagedError for a
        damaged object."""
        return self.objects.get_file(f"objects/{digest}", path, digest)

    def has(self, digest: str) -> bool:
        """Whether the store held it when this process looked last, or holds it now."""
        held = leases.held_here(self.objects)
        name = f"objects/{digest}"
        if digest in self._sent or (
            held is not None and held.listing is not None and name in held.listing
        ):
            return True
        return self.objects.exists(name)

    def discard(self, digest: str) -> None:
        """Take a damaged object away, so that its maker is asked again."""
        self.objects.remove(f"objects/{digest}")
        self._sent.discard(digest)
        held = leases.held_here(self.objects)
        if held is not None and held.listing is not None:
            held.listing -= {f"objects/{digest}"}

    def create_pod_file(
        self, pod: str, name: str, text: str, files: Mapping[str, str] | None = None
    ) -> str:
        """Write `spec.json` or `result.json` of a pod, once and for all; returns the text that
        stands."""
        where = f"{self.prefix}pods/{pod}/{name}"
        more = {} if files is None else {"files": dict(sorted(files.items()))}
        if self.objects.create(where, seal({"text": text, **more})):
            return text
        standing = self.pod_file(pod, name)
        return text if standing is None else standing

    def pod_file(self, pod: str, name: str) -> str | None:
        """What stands there, None if nothing. Raises StorageDamagedError."""
        body = self.objects.get_sealed(f"{self.prefix}pods/{pod}/{name}")
        return None if body is None else str(body["text"])

    def set_pod_file_aside(self, pod: str, name: str) -> None:
        """So that it can be written again: what was found damaged lies beside it, by its hash."""
        where = f"{self.prefix}pods/{pod}/{name}"
        data = self.objects.get(where)
        if data is not None:
            digest = hashlib.sha256(data).hexdigest()
            self.objects.put(f"{where.removesuffix('.json')}.damaged-{digest[:16]}.json", data)
            self.objects.remove(where)

    def append_events(self, lines: str, everything: Callable[[], str]) -> None:
        """Store a piece of the event log; now and then, and first of all, one that holds
        `everything` so far."""
        kind = f"{self.prefix}events"
        number = self.lease.number(kind)
        full = number % FULL_EVERY == 0
        self._record(kind, number, everything() if full else lines, full=full)

    def publish(self) -> None:
        """Store all files of the run that have changed, and then the index that names them."""
        held = self.lease
        files = {}
        new = []
        known = set((held.index or {}).values())
        for path in self._files():
            digest = self._hash(path)
            files[str(path.relative_to(self.home))] = digest
            if digest not in known:
                new.append(path)
        if files == held.index:
            return
        self.objects.gather(self.put_file, new)
        self._record("index", held.number("index"), dump_json(files), full=True)
        held.index = files

    def _record(self, kind: str, number: int, text: str, *, full: bool) -> None:
        token = self.lease.token
        name = f"{kind}/{token:06d}-{number:06d}{'.all' if full else ''}.json"
        if not self.objects.create(name, seal({"text": text})):
            self.lease.check(
                sure=True
            )  # a successor may have cleared it away before its answer arrived
            raise RunError(
                f"{self.objects}/{name} was written by another process; run the same command again"
            )
        if full and number % FULL_EVERY == 0:
            old = [
                piece.name
                for piece in self._pieces(kind)
                if (piece.token, piece.number) < (token, number - 1)
            ]
            self.objects.gather(self.objects.remove, old)

    def _pieces(self, kind: str, names: Iterable[str] | None = None) -> list[Piece]:
        """The records of a kind, oldest first."""
        pieces = []
        for name in self.objects.names(kind) if names is None else names:
            folder, _, last = name.rpartition("/")
            match = _RECORD.fullmatch(last)
            if folder == kind and match:
                pieces.append(
                    Piece(int(match["token"]), int(match["number"]), bool(match["full"]), name)
                )
        return sorted(pieces)

    def _current(self, kind: str, names: Iterable[str]) -> list[Piece]:
        """The records that count: from the newest holder's last full one on."""
        pieces = self._pieces(kind, names)
        last = next(
            (number for number in reversed(range(len(pieces))) if pieces[number].full), None
        )
        if last is None:
            return []
        return [piece for piece in pieces[last:] if piece.token == pieces[last].token]

    def _texts(self, pieces: Sequence[Piece]) -> list[str] | None:
        """Their texts; None when one of them has been cleared away meanwhile."""
        found = self.objects.gather(lambda piece: self.objects.get_sealed(piece.name), pieces)
        texts = [str(body["text"]) for body in found if body is not None]
        return texts if len(texts) == len(pieces) else None

    @property
    def store(self) -> str:
        """URL of the store, which holds this run and others."""
        return self.objects.url.rpartition("/")[0]

    def pull(self, *, curves: bool = False) -> None:
        """Bring everything light of the run here: files, specs, results, logs. With `curves` also
        learning curves.

        Where the store has a file, the store's counts. Snapshots and policies stay until somebody
        needs them. Raises StorageDamagedError for a damaged index, file or spec; a damaged result
        is brought as it is, for whoever drives the run to set aside.
        """
        for _ in range(5):  # the holder may clear away what it has just replaced
            names = [name for name in self.objects.names() if ".." not in name.split("/")]
            if self._pull_index(names) and self._pull_events(names):
                break
        else:
            raise StorageError(f"{self.objects} changes faster than it can be read; try again")
        self.objects.gather(
            lambda name: self._pull_pod_file(name, curves), filter(_POD_FILE.fullmatch, names)
        )
        held = leases.held_here(self.objects)
        if held is not None:
            held.listing = frozenset(names)

    def _pull_index(self, names: Sequence[str]) -> bool:
        pieces = self._current("index", names)
        if not pieces:
            return True
        texts = self._texts(pieces[-1:])
        if texts is None:
            return False
        index: dict[str, str] = json.loads(texts[0])
        missing = {
            name: digest for name, digest in index.items() if self._hash(self.home / name) != digest
        }

        def bring(name: str) -> None:
            if _OWN.search(name) or ".." in Path(name).parts or Path(name).is_absolute():
                raise StorageDamagedError(
                    f"{self.objects}/{pieces[-1].name} names {name!r}, which is no file of a run"
                )
            if not self.fetch(missing[name], self.home / name):
                raise StorageDamagedError(
                    f"{self.objects}/objects/{missing[name]} ({name}) is missing"
                )

        self.objects.gather(bring, missing)
        held = leases.held_here(self.objects)
        if held is not None:
            held.index = index
        return True

    def _pull_events(self, names: Sequence[str]) -> bool:
        kinds = sorted(
            {name.rpartition("/")[0] for name in names if re.search(r"(^|/)events/[^/]+$", name)}
        )
        for kind in kinds:
            pieces = self._current(kind, names)
            texts = self._texts(pieces)
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
            body = unseal(data, self.objects.damaged(name))
        except StorageDamagedError:
            if path.name == "spec.json":
                raise
            publish(path, data, sync=False)
            return
        if curves and (digest := body.get("files", {}).get("metrics.jsonl")):
            self.fetch(str(digest), path.with_name("metrics.jsonl"))
        publish(path, str(body["text"]).encode(), sync=False)

    def _files(self) -> list[Path]:
        """The files that the index names, sorted."""
        found = self.home.rglob("*")
        return sorted(
            path
            for path in found
            if not _OWN.search(str(path.relative_to(self.home))) and path.is_file()
        )

    def _hash(self, path: Path) -> str:
        """SHA-256 of a file, empty where there is none."""
        if not path.is_file():
            return ""
        state = path.stat()
        stamp = (state.st_ino, state.st_size, state.st_mtime_ns)
        if self._hashes.get(path, (None, ""))[0] != stamp:
            self._hashes[path] = (stamp, file_sha256(path))
        return self._hashes[path][1]


def attach(home: Path, url: str) -> Mirror:
    """Make `home` the working copy of the run at `url`. Raises RunError when it is that of another,
    StorageError."""
    url = check_url(url)
    marker = home / MARKER
    if marker.exists():
        known = str(_marker(marker)["url"])
        if known != url:
            raise RunError(
                f"{home} is a copy of {known}, not of {url}; choose another name, or remove the"
                " folder"
            )
    objects = Objects(url)
    objects.reach()
    if not marker.exists():
        write_json(marker, {"url": url})
    return Mirror(home, objects)


def copies(kind: str) -> Path:
    """Where copies lie that nobody keeps: of runs that are looked at, and of what a pod needs far
    from the head."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fintrader" / kind


def working_copy(url: str, below: Path, *, attached: bool = True) -> Path:
    """The folder below `below` for the run at `url`, its files still to be pulled; runs of one
    store lie side by side.

    `attached=False` only computes where it is.
    """
    store, _, name = check_url(url).rpartition("/")
    home = below / hashlib.sha256(store.encode()).hexdigest()[:16] / name
    if attached:
        attach(home, url)
    return home


def mirror_of(folder: Path) -> Mirror | None:
    """The store's side of a run's folder, or of a tournament inside it; None where nothing but the
    folder exists.

    For whoever opens a run: a copy says of itself what it is a copy of. Everybody else is given the
    mirror, or opens it by its address.
    """
    folder = folder.absolute()
    for above in (folder, *folder.parents[:4]):
        if (above / MARKER).is_file():
            inside = str(folder.relative_to(above))
            return Mirror(
                above,
                Objects(str(_marker(above / MARKER)["url"])),
                "" if inside == "." else f"{inside}/",
            )
    return None


def mirror_at(folder: Path, address: Mapping[str, str] | None) -> Mirror | None:
    """The mirror with this `address`, for the folder of the tournament it belongs to; None where
    there is none."""
    if address is None:
        return None
    depth = len(Path(address["inside"]).parts)
    home = folder.parents[depth - 1] if depth else folder
    objects = Objects(address["url"])
    objects.expect()  # whoever sent the address holds its lease there
    return Mirror(home, objects, address["inside"])


def _marker(path: Path) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("url"), str):
        raise RunError(f"{path} is damaged; remove the folder, and give the store's URL again")
    return values


class Markets:
    """Built markets of one store, shared by all its runs: `<key>.json` names the hashes of a
    market's files, sealed.

    A market has two keys: its content hash, which every pod's spec names, and the address of its
    settings and inputs, which a later build looks for before it builds.
    """

    def __init__(self, store: str) -> None:
        self.objects = Objects(f"{store.rstrip('/')}/.markets")

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
        """Bring a market's files into `folder`, the market itself last; False when the store has
        none of that key.

        A damaged or missing file takes the record with it, so that whoever has the bars stores the
        market anew.
        """
        files = self.objects.get_sealed(f"{key}.json")
        if files is None:
            return False
        for name in sorted(files, key=lambda name: (name.startswith("market"), name)):
            if name != Path(name).name or name.startswith("."):
                raise StorageDamagedError(
                    f"{self.objects}/{key}.json names {name!r}, which is no file of a market"
                )
            try:
                there = self.objects.get_file(f"objects/{files[name]}", folder / name, files[name])
            except StorageDamagedError:
                self.objects.remove(f"objects/{files[name]}")
                there = False
            if not there:
                self.objects.remove(f"{key}.json")
                return False
        return True
