"""A bundle: a policy frozen with everything its decisions depend on, as plain files under one seal.

    deployments/NAME/bundle/
      bundle.json           its record, with the SHA-256 of every other file; sealed
      policy.safetensors    the policy
      normalisation.json    the statistics by which its rows are scaled
      parity.safetensors    observations and the policy's actions when it was frozen
      executor.safetensors  the executor of its orders, where `env.execution` names one
      policy.onnx           the same policy for programs without PyTorch, where onnx is installed
      files/                membership, splits and the other files that the data settings name

Nothing in it is a pickle. A changed byte changes its id (`Bundle.id`), a hash.
"""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fintrader.agents.policy import PolicyModule, export_onnx, load_policy
from fintrader.config import name_code, validate
from fintrader.deploy.bundle_record import (
    FORMAT,
    BundleOrigin,
    BundleRecord,
    OnnxExport,
    check_files,
    read_record,
)
from fintrader.deploy.control import BUNDLE
from fintrader.envs.observation import ACCOUNT_FEATURES, ObservationLayout
from fintrader.envs.settings import EnvSettings
from fintrader.errors import BacktestError, CheckpointError, ConfigError, DeployError
from fintrader.execution.executor import open_executor
from fintrader.files import hash_bytes, hash_file, seal, write_bytes
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from fintrader.records import to_json
from fintrader.storage.objects import ObjectStore, read_whole

POLICY = "policy.safetensors"
NORMALISATION = "normalisation.json"
PARITY = "parity.safetensors"
EXECUTOR = "executor.safetensors"
ONNX = "policy.onnx"
PARITY_VECTORS = 256
TOLERANCE = 1e-5
"""Largest difference of an action on another processor."""
TIME_LEFT = ACCOUNT_FEATURES.index("time_left")


@dataclass(frozen=True)
class Bundle:
    """An opened bundle; `Bundle.open` checks it."""

    folder: Path
    record: BundleRecord

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        """Open a bundle, and log the code that it imports. Raises DeployError for a folder
        without a bundle, and for a bundle with a changed byte."""
        record = read_record(Path(folder))
        check_files(Path(folder), record)
        name_code(f"the bundle in {folder}", [record.data, record.env])
        return cls(Path(folder), record)

    @property
    def name(self) -> str:
        """Name of the deployment."""
        return self.record.name

    @cached_property
    def id(self) -> str:
        """Eight hexadecimal digits of its content (`BundleRecord.id`)."""
        return self.record.id

    @property
    def benchmark(self) -> str:
        """Kind of the benchmark portfolio; `auto` depends on the source of the training's bars."""
        if self.env.benchmark != "auto":
            return self.env.benchmark
        return "cash" if self.data.source.kind == "synthetic" else "equal_weight"

    @cached_property
    def data(self) -> DataSettings:
        """Settings of the market, with paths of files in the bundle."""
        values: Any = copy.deepcopy(self.record.data)
        for setting, name in self.record.own_files.items():
            *path, last = setting.split(".")
            part = values
            for key in path:
                part = part[key]
            part[last] = str(self.folder / name)
        return validate(DataSettings, values, BUNDLE).effective()

    @cached_property
    def env(self) -> EnvSettings:
        """Settings of orders and observations. Raises DeployError if they cannot be live."""
        env = validate(EnvSettings, self.record.env, BUNDLE)
        if env.execution is not None and env.execution.policy == EXECUTOR:
            env = _with_executor(env, str(self.folder / EXECUTOR))
        _refuse_unless_live(self.data, env)
        return env

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.record.symbols

    @property
    def normalisation(self) -> Path:
        return self.folder / NORMALISATION

    @cached_property
    def policy(self) -> PolicyModule:
        """The policy. Raises DeployError if its actions differ from those it was frozen with."""
        policy = load_policy(self.folder / POLICY)
        obs, action, _ = self.parity
        with torch.no_grad():
            worst = float((policy(obs) - action).abs().max())
        if not worst <= TOLERANCE:
            raise DeployError(
                f"the policy's actions differ by {worst:.1e} from those it was frozen with; use the"
                f" versions of torch and numpy that the bundle names ({self.record.versions})"
            )
        return policy

    @cached_property
    def parity(self) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """Observations `[K, D]`, actions `[K, N]`, and the starts of their bars `[K]`, ns."""
        try:
            stored = load_tensors((self.folder / PARITY).read_bytes())
        except (OSError, SafetensorError):
            raise DeployError(
                f"{self.folder / PARITY} cannot be read; freeze the run again"
            ) from None
        return stored["obs"], stored["action"], stored["minutes"].numpy()


def freeze(
    folder: Path,
    *,
    name: str,
    policy: Path,
    data: DataSettings,
    env: EnvSettings,
    market: MarketTensors,
    origin: BundleOrigin,
    onnx: bool = True,
) -> Bundle:
    """Write the bundle of a policy; an equal bundle that exists is left as it is.

    market: the window it was tested on, whose bars a replay plays again. onnx: also for programs
    without PyTorch, where the extra `onnx` is installed.

    Raises DeployError for a policy that cannot trade live: one that reads how much of a window is
    left, rows that hold facts from after their bar, a benchmark that live rows cannot show.
    """
    module = _load(policy, market)
    data = data.effective()
    _refuse_unless_live(data, env)
    normalisation = market.normalisation
    if normalisation is None:
        raise DeployError(
            "the market lacks the statistics that its rows were scaled by; build it again with this"
            " version"
        )
    parity = sample_parity_vectors(module, market, env)
    if env.clock == "episode" and _is_clock_read(module, parity["obs"]):
        raise DeployError(
            "the policy reads how much of its window is left (time_left), which is unknown live;"
            " train it with env.clock: none or session, or without account in agent.network.private"
        )
    home = ObjectStore(folder)
    parts: dict[str, bytes] = {
        POLICY: Path(policy).read_bytes(),
        NORMALISATION: (json.dumps(to_json(normalisation), sort_keys=True) + "\n").encode(),
        PARITY: save_tensors(parity),
    }
    if env.execution is not None and env.execution.policy != "twap":
        try:
            open_executor(env.execution.policy, market.feature_names, env.execution.bars)
        except (BacktestError, CheckpointError) as error:
            raise DeployError(f"env.execution.policy: {error}") from None
        parts[EXECUTOR] = Path(env.execution.policy).read_bytes()
        env = _with_executor(env, EXECUTOR)
    own_files = {}
    for setting, path in _list_files(data):
        name_inside = f"files/{setting}{''.join(Path(path).suffixes[-2:])}"
        parts[name_inside] = read_whole(path, f"data.{setting}")
        own_files[setting] = name_inside
    record = BundleRecord(
        **vars(origin),
        format=FORMAT,
        name=name,
        files={part: hash_bytes(content) for part, content in sorted(parts.items())},
        own_files=own_files,
        data=data.model_dump(mode="json"),
        env=env.model_dump(mode="json"),
        symbols=tuple(market.symbols),
        normalisation_hash=normalisation.digest,
        calendar=market.provenance.calendar,
        notice=market.provenance.notice,
        window=(int(market.minutes[0]), int(market.minutes[-1])),
        last_close=dict(zip(market.symbols, map(_find_first_close, market.close.T), strict=True)),
    )
    if _is_same(folder, record):
        return Bundle.open(folder)
    for part, content in parts.items():
        home.put(part, content)
    exported = _export_onnx(module, folder / ONNX, record) if onnx else None
    # The record is written last: where it exists, the bundle is complete.
    home.put(BUNDLE, seal(to_json(replace(record, onnx=exported)), indent=2))
    return Bundle.open(folder)


def _find_first_close(close: Tensor) -> float:
    """Find the first of a symbol's closes `[T]`, USD; 1 without one, which no decision reads."""
    listed = close[close.isfinite()]
    return float(listed[0]) if len(listed) else 1.0


def _is_same(folder: Path, record: BundleRecord) -> bool:
    """Check for an existing bundle that trades alike. Raises DeployError for a different bundle,
    to which the folder's account belongs."""
    if not (folder / BUNDLE).is_file():
        return False
    there = Bundle.open(folder)
    # Compared as models: a setting that a version added, at its default, changes no trade.
    models = validate(EnvSettings, there.record.env, BUNDLE) == validate(
        EnvSettings, record.env, BUNDLE
    )
    models &= validate(DataSettings, there.record.data, BUNDLE) == validate(
        DataSettings, record.data, BUNDLE
    )
    names = ("files", "own_files", "symbols")
    if models and all(getattr(there.record, name) == getattr(record, name) for name in names):
        return True
    raise DeployError(
        f"{folder.parent} deploys another bundle ({there.id}); choose another --name, or remove"
        " that folder"
    )


def _load(policy: Path, market: MarketTensors) -> PolicyModule:
    try:
        return load_policy(policy, market=market)
    except CheckpointError as error:
        place = "" if str(policy) in str(error) else f"{policy}: "
        raise DeployError(f"{place}{error}") from None


def _with_executor(env: EnvSettings, policy: str) -> EnvSettings:
    """Change the executor's file."""
    assert env.execution is not None
    execution = env.execution.model_copy(update={"policy": policy})
    return env.model_copy(update={"execution": execution})


def _refuse_unless_live(data: DataSettings, env: EnvSettings) -> None:
    if isinstance(data.source, PlantedInSettings):
        raise DeployError(
            "the policy reads a planted signal, which no live bar has; train it on bars without one"
        )
    if env.fill == "close":
        raise DeployError(
            "env.fill close trades at prices that are past when they are known; train with"
            " next_open"
        )
    if env.option is not None:
        raise DeployError("a paper account sells no options; train without env.option")
    if env.benchmark == "buy_and_hold":
        raise DeployError(
            "the weights of buy_and_hold depend on when it began; train against equal_weight"
            " instead"
        )
    if env.short:
        raise DeployError(
            "short positions are not deployed: a paper account does not know which shares can be"
            " borrowed; train with env.short: false"
        )
    if data.benchmark is not None and any(
        name.startswith("index_") for name in data.features.context
    ):
        raise DeployError(
            f"the context reads the index of {data.benchmark}, which no feed delivers; leave"
            " index_* out of data.features.context, or the benchmark's file"
        )


def _list_files(data: DataSettings) -> list[tuple[str, str]]:
    """List the data settings whose files later rows need, too, with their paths."""
    named = {
        "universe.members": data.universe.membership,
        "universe.shares_outstanding": data.universe.shares_outstanding,
        "actions": data.actions,
        **{f"features.daily.{name}": path for name, path in data.features.daily.items()},
    }
    return [(setting, str(path)) for setting, path in named.items() if path is not None]


def sample_parity_vectors(
    policy: PolicyModule, market: MarketTensors, env: EnvSettings
) -> dict[str, Tensor]:
    """Sample, evenly over a window, observations of an account that the policy trades, and its
    actions."""
    from fintrader.backtesting.account import BacktestAccount

    plain = {"observation": "flat", "observation_dtype": "float32", "execution": None}
    account = BacktestAccount(market, env.model_copy(update=plain))
    count = -(-(market.num_bars - 1) // env.decision_interval)
    chosen = set(np.linspace(0, count - 1, min(PARITY_VECTORS, count)).astype(int).tolist())
    samples = []
    with torch.no_grad():
        for number in itertools.count():
            obs = account.observe()
            action = policy(obs)
            if number in chosen:
                samples.append((obs[0].clone(), action[0].clone(), market.minutes[account.bar]))
            if account.act(action):
                break
    columns = zip(*samples, strict=True)
    return dict(zip(("obs", "action", "minutes"), map(torch.stack, columns), strict=True))


def _is_clock_read(policy: PolicyModule, obs: Tensor) -> bool:
    """Check whether any action depends on how much of the window is left."""
    layout = policy.layout
    if not isinstance(layout, ObservationLayout):
        raise DeployError("this policy trades no market")
    other = obs.clone()
    other[:, TIME_LEFT] = 1.0 - other[:, TIME_LEFT]
    with torch.no_grad():
        return not torch.equal(policy(obs), policy(other))


def _export_onnx(policy: PolicyModule, path: Path, record: BundleRecord) -> OnnxExport | None:
    """Export the policy for programs without PyTorch, with the bundle's description in it; None
    without the libraries."""
    try:
        worst = export_onnx(policy, path)
        import onnx
    except ConfigError:
        return None
    model = onnx.load(path)
    for name in ("name", "symbols", "normalisation_hash", "env"):
        model.metadata_props.add(key=name, value=json.dumps(getattr(record, name)))
    write_bytes(path, model.SerializeToString())
    return OnnxExport(hash_file(path), worst)
