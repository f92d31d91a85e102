"""Warm start: pods of an earlier run as the first parents of a new one.

    inherited.json   the earlier run, its pods by score, and their contents; written once

A pod takes over its parent's networks, optimiser and statistics of observations. These are restated
for the new market's standardisation (`agents/transfer.py`). Scores are not taken over, since they
were measured on another market.

The earlier run must not have seen, in training or selection, any bar of the new run's test window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fintrader.agents import MarketIdentity, make_agent
from fintrader.agents.checkpoint import read_tensors, select_below
from fintrader.agents.policy import FORMAT
from fintrader.agents.transfer import check_transfer, move_statistics
from fintrader.config import Settings, compare_values
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import lay_out
from fintrader.envs.observation import ObservationLayout, layout_from_json
from fintrader.errors import CheckpointError, TournamentError
from fintrader.files import read_json, write_json
from fintrader.market.tensors import MarketTensors
from fintrader.records import RecordError, from_json, to_json
from fintrader.results.tournament_events import list_dropped_pods, read_events
from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from fintrader.tournament.folds import WHOLE
from fintrader.tournament.generator import select_values, set_value
from fintrader.tournament.leaderboard import FinishedPod, rank_inheritable
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import SettingsValues
from fintrader.tournament.store import RunStore

FILE = "inherited.json"
_STATISTICS = "normaliser."
_NOISE = "modules.noise.log_std"
_MOMENTS = "optimisers.adam."


@dataclass(frozen=True)
class WarmStart:
    """Parents that a run begins with."""

    address: str
    """The earlier run as the user named it: a folder or a URL."""
    run: str
    """Name of the earlier run in lineages."""
    policies: dict[str, str]
    """Earlier pod -> SHA-256 of its policy."""
    trials: int
    """Looks of the earlier run at its validation window, and of the runs from which it
    inherited."""
    seen_until: int
    """Start of the last bar that training or selection used, ns since 1970 UTC."""
    entries: tuple[FinishedPod, ...]
    """The parents, best first: named `run:pod`, with settings of this run, and snapshots in its
    store."""

    @classmethod
    def read(cls, folder: RunFolder) -> WarmStart | None:
        """Read the warm start of a run; None without one."""
        path = folder.root / FILE
        if not path.is_file():
            return None
        try:
            return from_json(cls, read_json(path))
        except RecordError as error:
            raise TournamentError(
                f"{path} is damaged ({error}); delete it and run the same command again, with the"
                " earlier run at hand"
            ) from None

    def write(self, folder: RunFolder) -> None:
        """Store the warm start atomically."""
        write_json(folder.root / FILE, to_json(self))


@dataclass(frozen=True)
class WarmStartTarget:
    """Settings and market of the new run's pods."""

    settings: TournamentSettings
    agents: Sequence[Settings]
    env: EnvSettings
    market: Path


def inherit(
    store: RunStore, address: str, find: Callable[[], RunFolder], target: WarmStartTarget
) -> WarmStart:
    """Copy the best pods of the run at `address` into the store of a new one; `find` fetches its
    folder.

    A second call returns the first result, even if the earlier run is gone.

    Raises TournamentError when that run has no finished pods, none of them can be loaded here, it
    has seen bars of the new test window, or it has changed since this run began; CheckpointError
    when its files are damaged.
    """
    known = WarmStart.read(store.run)
    if known is not None and known.address != address and not store.identity_path.exists():
        known = None  # another run is requested, before any pod began with this one
    if known is not None and all(
        store.has_snapshot(str(entry.result.snapshot)) for entry in known.entries
    ):
        return known
    found = _take_over(store, address, find(), target)
    # Earlier versions counted pods instead of looks.
    if known is not None and replace(found, trials=known.trials) != known:
        raise TournamentError(
            f"{address} has changed since {store.run.root} began with it, and the pods taken"
            " over are damaged; use another run name"
        )
    found.write(store.run)
    return found


def copy_warm_start(store: RunStore, source: RunStore) -> WarmStart | None:
    """Copy the warm start of `source`, for a run that repeats it."""
    known = WarmStart.read(source.run)
    if known is not None:
        for entry in known.entries:
            store.put(source.get(str(entry.result.snapshot)))
        known.write(store.run)
    return known


def has_pods(folder: RunFolder) -> bool:
    """Check that a run has pods that others can start from."""
    return bool(_rank_pods(open_store(folder, find_mirror(folder.root))))


def _rank_pods(source: RunStore) -> list[FinishedPod]:
    """Rank the pods that others can start from, best first."""
    specs = source.read_specs()
    results = source.read_results()
    return rank_inheritable(
        FinishedPod(specs[pod], results[pod]) for pod in results if pod in specs
    )


def _take_over(
    store: RunStore, address: str, folder: RunFolder, target: WarmStartTarget
) -> WarmStart:
    if target.settings.validation_folds is not None:
        raise TournamentError(
            f"{address} cannot start pods of tournament.validation_folds: its own pods have seen"
            " the blocks that would score these; leave validation_folds out here, or start from"
            " new weights (no --from, no walkforward.warm_start)"
        )
    source = open_store(folder, find_mirror(folder.root))
    ranked = _rank_pods(source)
    if not ranked:
        hint = "let its own command finish first" if folder.root.is_dir() else "there is no run"
        if any((folder.root / "folds").glob("*/tournament.json")):
            hint = "it was walked forward: give one of its folds, such as RUN/folds/00"
        raise TournamentError(f"{address} has no finished pods to start from; {hint}")
    before = WarmStart.read(folder)
    split = MarketTensors.load(target.market).split()
    layout = lay_out(split.validation, target.env)
    here = MarketIdentity.of(split.train)
    seen = [] if before is None else [before.seen_until]
    entries = []
    policies = {}
    problems = []
    dropped = list_dropped_pods(read_events(folder.events))
    whole = [entry for entry in ranked if entry.spec.pod not in dropped]
    for entry in whole[: target.settings.leaderboard_size]:
        pod = entry.spec.pod
        source.ensure_policy(entry.result)
        if not source.has_policy(entry.result):
            raise CheckpointError(
                f"{source.locate_policy(pod)} is missing or damaged; run its own command again"
            )
        _, header = read_tensors(source.locate_policy(pod), FORMAT)
        try:
            agent, state = _transfer_pod(header, entry, source, target, layout, here)
        except (CheckpointError, TournamentError) as error:
            problems.append(f"{pod}: {error}")
            continue
        seen.append(int(header["meta"]["seen_until"]))
        policies[pod] = str(entry.result.policy)
        snapshot = store.put(save(dict(sorted(state.items()))))
        spec = replace(entry.spec, pod=f"{folder.label}:{pod}", agent=agent, folds=0)
        entries.append(FinishedPod(spec, replace(entry.result, snapshot=snapshot)))
    if not entries:
        raise TournamentError(f"{address}: none of its pods can start one here; {problems[0]}")
    first = int(split.test.minutes[0])
    if max(seen) >= first:
        last, begins = (str(np.datetime64(ns, "ns"))[:16] for ns in (max(seen), first))
        raise TournamentError(
            f"{address} has seen bars until {last}, and the test window begins at {begins}: the"
            " test would not be held out; test on a later window (data.windows), or"
            " start from a run that ends before"
        )
    trials = sum(entry.result.looks for entry in ranked) + (0 if before is None else before.trials)
    return WarmStart(address, folder.label, policies, trials, max(seen), tuple(entries))


def _transfer_pod(
    header: Mapping[str, Any],
    entry: FinishedPod,
    source: RunStore,
    target: WarmStartTarget,
    layout: Any,
    here: MarketIdentity,
) -> tuple[SettingsValues, dict[str, Tensor]]:
    """Transfer a pod's settings, networks, optimiser and statistics to this run's market.

    Settings are this run's, except those that both runs searched. Raises CheckpointError or
    TournamentError when the networks do not fit.
    """
    description = header["policy"]
    if "market" not in header["meta"]:
        raise CheckpointError("it was trained in a classic environment, which has no market")
    trained = MarketIdentity.from_json(header["meta"]["market"])
    stored = check_transfer(
        layout_from_json(description["layout"]), description["network"]["kind"], trained, here
    )
    if {**vars(stored), "num_assets": layout.num_assets} != vars(layout):
        raise CheckpointError(
            "its observations have other columns; use the same env.lookback, env.benchmark,"
            " env.short and order settings here"
        )
    action = entry.spec.env.get("action")
    if action != target.env.action:
        raise CheckpointError(f"env.action: {action} stored, {target.env.action} requested")
    try:
        state = load(source.get(str(entry.result.snapshot)))
        state = select_below(WHOLE, state) if entry.spec.folds else state
    except SafetensorError as error:
        raise CheckpointError(f"its snapshot holds no tensors ({error})") from None
    if trained != here:
        state = _transfer_state(state, stored, trained, here)
    algo = entry.spec.agent.get("algo")
    problem = f"its algorithm ({algo}) is not in this run"
    for base in target.agents:
        if getattr(base, "algo", None) != algo:
            continue
        settings = _merge_settings(base, entry.spec.agent, target.settings)
        agent = make_agent(settings, layout, device="cpu", seed=0)
        odd = compare_values(
            _describe_architecture(description), _describe_architecture(agent.policy.describe())
        )
        if not odd:
            agent.inherit(state)
            return settings.model_dump(mode="json"), state
        other = [f"{name} {there} stored, {own} requested" for name, (there, own) in odd.items()]
        problem = (
            f"another architecture: {', '.join(other[:3])}; use the same agent.network and"
            " agent.head here"
        )
    raise TournamentError(problem)


def _merge_settings(base: Settings, earlier: SettingsValues, settings: TournamentSettings) -> Any:
    """Merge this run's settings with the values that the earlier search found for the same
    names."""
    values = base.model_dump(mode="json")
    for name, value in select_values(earlier, select_values(values, settings.search)).items():
        set_value(values, name, value)
    try:
        return type(base).model_validate(values)
    except ValidationError as error:
        raise TournamentError(
            f"its settings are impossible here ({str(error).splitlines()[0]})"
        ) from None


def _describe_architecture(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Select the parts of a policy's description that must be equal, beyond the shapes of its
    tensors."""
    return {
        **policy["network"],
        "head": policy["head"]["kind"],
        "outputs": policy["outputs"],
        "squash": policy["squash"],
    }


def _transfer_state(
    state: Mapping[str, Tensor],
    layout: ObservationLayout,
    trained: MarketIdentity,
    here: MarketIdentity,
) -> dict[str, Tensor]:
    """Transfer an agent's state to the market `here`: its statistics and each asset's exploration
    noise.

    Only the noise has one number for each asset (PPO and A2C); other assets get the mean.
    """
    moved = dict(state)
    noise = state.get(_NOISE)
    count = layout.num_assets
    if noise is not None and trained.symbols != here.symbols:
        moved[_NOISE] = torch.cat([noise[:count].mean().expand(len(here.symbols)), noise[count:]])
        # The noise is the optimiser's last parameter; its moments belong to the old assets.
        numbers = (int(name.split(".")[2]) for name in state if name.startswith(_MOMENTS))
        last = f"{_MOMENTS}{max(numbers, default=0)}."
        if state.get(f"{last}exp_avg", noise[:0]).shape == noise.shape:
            moved = {name: one for name, one in moved.items() if not name.startswith(last)}
    for name in state:
        if name.endswith(f"{_STATISTICS}mean"):
            var = f"{name.removesuffix('mean')}var"
            moved[name], moved[var] = move_statistics(
                state[name], state[var], layout, trained, here
            )
    return moved
