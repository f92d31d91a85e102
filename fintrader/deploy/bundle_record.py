"""`bundle.json`: the sealed record of a bundle. It needs no torch to be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fintrader.deploy.control import BUNDLE
from fintrader.errors import DeployError
from fintrader.files import dump_json, hash_bytes, hash_file, unseal
from fintrader.records import JsonValue, RecordError, from_json

FORMAT = "fintrader-bundle-1"


@dataclass(frozen=True)
class BundleOrigin:
    """The run that a bundle comes from, with the result of its backtest."""

    run: str
    policy: str
    """`ensemble`, `best`, or a pod's name."""
    config_hash: str
    versions: Mapping[str, str]
    """Package -> version with which it was frozen."""
    trials: int
    verdict: str | None
    daily_returns: tuple[float, ...]
    """Returns of the backtest's sessions; empty without a backtest."""
    companies: Mapping[str, str]
    """Symbol -> company, where the source names it."""


@dataclass(frozen=True)
class OnnxExport:
    """A policy for programs without PyTorch."""

    sha256: str
    largest_difference: float
    """Largest difference of an action from the policy's."""


@dataclass(frozen=True)
class BundleRecord(BundleOrigin):
    """The contents of a bundle, and its origin."""

    format: str
    name: str
    """Name of the deployment."""
    files: Mapping[str, str]
    """File -> SHA-256."""
    own_files: Mapping[str, str]
    """Setting of `data` -> the file in the bundle that replaces the one it names."""
    data: Mapping[str, JsonValue]
    """`DataSettings` as they were stored, which the bundle's id depends on."""
    env: Mapping[str, JsonValue]
    """`EnvSettings` as they were stored."""
    symbols: tuple[str, ...]
    normalisation_hash: str
    calendar: str | None
    window: tuple[int, int]
    """Start of the first and the last bar of the tested window, ns since 1970 UTC."""
    last_close: Mapping[str, float]
    """Symbol -> first close in the window, USD; 1 for a symbol that is gone."""
    onnx: OnnxExport | None = None
    notice: str = ""
    """Banner of a wholly or partly synthetic market."""

    @property
    def id(self) -> str:
        """Eight hexadecimal digits of the hash of all that decides how it trades; part of every
        order's id."""
        identity = {name: getattr(self, name) for name in ("files", "data", "env", "symbols")}
        return hash_bytes(dump_json(identity).encode())[:8]


def read_record(folder: Path) -> BundleRecord:
    """Read a bundle's record. Raises DeployError for a folder without one, or a changed one."""
    path = folder / BUNDLE
    try:
        data = path.read_bytes()
    except OSError:
        raise DeployError(
            f"{folder} holds no bundle; make one with `fintrader paper RUN --freeze`"
        ) from None
    body = unseal(data, DeployError(f"{path} was changed or is damaged; freeze the run again"))
    try:
        if body.get("format") == FORMAT:
            return from_json(BundleRecord, body)
        problem = str(body.get("format"))
    except RecordError as error:
        problem = str(error)
    raise DeployError(
        f"{path} is of another version ({problem}); go on with the version of fintrader that froze"
        " it, or freeze the run under another --name"
    )


def check_files(folder: Path, record: BundleRecord) -> None:
    """Raise DeployError where a file of a bundle is missing or was changed."""
    for name, digest in record.files.items():
        file = folder / name
        if not file.is_file() or hash_file(file) != digest:
            raise DeployError(
                f"{file} is missing or was changed since it was frozen; freeze the run again"
            )
