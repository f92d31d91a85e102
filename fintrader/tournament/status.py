"""Tournaments seen from outside, while they race or afterwards: status, scaling, comparison."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fintrader.config import validate
from fintrader.errors import RunError, TournamentError
from fintrader.files import read_json, read_jsonl, write_json
from fintrader.results.leaderboard_reader import (
    LeaderboardRow,
    StoredPod,
    dump_canonical,
    read_leaderboard,
    read_pods,
)
from fintrader.results.tournament_events import (
    DrainEvent,
    FinishEvent,
    LaunchEvent,
    LossEvent,
    ResultEvent,
    TournamentEvent,
    find_last_start,
    read_events,
    select_events,
)
from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from fintrader.tournament import lease as leases
from fintrader.tournament.events import EventLog, list_applied
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard, PodState, open_or_replace
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodResult
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import submit


@dataclass(frozen=True)
class WorkingPod:
    """A pod at work, as its own log shows it."""

    pod: str
    attempt: int
    env_steps: int
    share: float | None
    """Share of the budget; None for a budget in seconds."""
    steps_per_second: float | None


@dataclass(frozen=True)
class TournamentStatus:
    """State of a tournament at one moment."""

    run: str
    active: bool
    """True while an orchestrator drives the tournament."""
    finished: bool
    pods: int
    """Number of specs that were made."""
    applied: int
    requested_results: int | None
    eta_seconds: float | None
    """Seconds to the last result, at the rate since the orchestrator last started; None while there
    is no such rate, and for a run that is finished or not at work."""
    states: dict[str, int]
    trials: int
    env_steps: int
    losses: dict[str, int]
    """Lost attempts by reason."""
    requested_pods: int | None
    """Number of pods that was requested to be at work; None: the settings decide."""
    at_work: tuple[WorkingPod, ...]
    leaderboard: tuple[LeaderboardRow, ...]
    ensemble: tuple[str, ...]
    last_event: TournamentEvent | None
    now: float
    """Unix time."""


def read_status(run: RunFolder) -> TournamentStatus:
    """Read the state of a tournament: counts by state, the leaderboard, pods at work, losses by
    reason, time left.

    Raises TournamentError when the folder holds no tournament, RunError when its database is
    missing or damaged.
    """
    require_tournament(run)
    pods = read_pods(run.leaderboard)
    rows = read_leaderboard(run.leaderboard, benchmark=True)
    events = read_events(run.events)
    active = leases.is_held(run, find_mirror(run.root))
    now = time.time()
    start = find_last_start(events)
    ends = select_events(events, FinishEvent)
    return TournamentStatus(
        run=run.root.name,
        active=active,
        finished=_is_finished(events),
        pods=len(pods),
        applied=len(list_applied(events)),
        requested_results=None if start is None else start.pods,
        eta_seconds=_estimate_seconds(events, now) if active else None,
        states=dict(Counter(pod.state for pod in pods)),
        trials=sum(pod.looks or 0 for pod in pods if pod.score is not None),
        env_steps=sum(pod.env_steps or 0 for pod in pods),
        losses=dict(Counter(event.reason for event in select_events(events, LossEvent))),
        requested_pods=read_requested_pods(run),
        at_work=tuple(_read_progress(run, pod) for pod in pods if pod.state == "running"),
        leaderboard=tuple(rows),
        ensemble=ends[-1].members if ends else (),
        last_event=events[-1] if events else None,
        now=now,
    )


def _is_finished(events: Sequence[TournamentEvent]) -> bool:
    """Check that a tournament has ended, and was not extended since."""
    start = find_last_start(events)
    requested = 0 if start is None else start.pods
    return bool(select_events(events, FinishEvent)) and len(list_applied(events)) >= requested


def _estimate_seconds(events: Sequence[TournamentEvent], now: float) -> float | None:
    """Estimate the seconds to the last result: results to come x seconds per result since the
    orchestrator last started."""
    start = find_last_start(events)
    if start is None:
        return None
    since = events[events.index(start) + 1 :]
    results = len(select_events(since, ResultEvent))
    to_come = start.pods - len(list_applied(events))
    if results == 0 or to_come <= 0 or select_events(since, FinishEvent):
        return None
    return max(0.0, to_come * (now - start.time) / results)


def _read_progress(run: RunFolder, pod: StoredPod) -> WorkingPod:
    """Read how far a pod is, from the log it keeps itself."""
    records = read_jsonl(run.pod(pod.pod) / "metrics.jsonl")
    last = records[-1] if records else {}
    budget = pod.budget.get("env_steps")
    steps = int(last.get("env_steps", 0))
    return WorkingPod(
        pod.pod,
        pod.attempts,
        steps,
        min(1.0, steps / budget) if budget else None,
        last.get("steps_per_second"),
    )


def read_requested_pods(run: RunFolder) -> int | None:
    """Read the number of pods that was requested to be at work; None: the settings decide. A
    damaged request is ignored."""
    try:
        pods = int(read_json(run.root / "scale.json")["pods"])
        return pods if pods >= 1 else None
    except (RunError, KeyError, TypeError, ValueError):
        return None


def scale(run: RunFolder, pods: int | None) -> None:
    """Ask a tournament, running or to be resumed, to keep `pods` at work; None: the number in its
    settings.

    Raises TournamentError for fewer than one pod and for a folder without a tournament.
    """
    if pods is not None and pods < 1:
        raise TournamentError(
            f"cannot keep {pods} pods at work; give at least 1, or stop the process to pause"
        )
    require_tournament(run)
    write_json(run.root / "scale.json", {"pods": pods})


def describe_effect(run: RunFolder, pods: int | None) -> str:
    """Describe the effect of `scale(run, pods)` in a sentence for the terminal."""
    settings = read_settings(RunStore(run))
    requested = (
        "as many pods as its settings say"
        if pods is None
        else f"{pods} pod{'s' if pods > 1 else ''}"
    )
    bound = settings.at_once
    if bound is not None and (pods is None or pods > bound):
        requested += f", but at most {bound}: `order: {settings.order}` lets no more work at once"
    if leases.is_held(run, find_mirror(run.root)):
        return f"at work from the next reconcile on: {requested}"
    if _is_finished(read_events(run.events)):
        return (
            "finished, so nothing is at work; once it is extended by a higher tournament.pods:"
            f" {requested}"
        )
    return f"nothing is at work now; once the run is resumed by its own command: {requested}"


def read_settings(store: RunStore) -> TournamentSettings:
    """Read the settings that are fixed for a tournament; those that a resumed run may change get
    their defaults. Raises TournamentError."""
    known = store.read_identity().settings
    return validate(TournamentSettings, {**known, "ensemble_size": 1}, str(store.identity_path))


def make_index(run: RunFolder, path: Path | None = None) -> int:
    """Rebuild the leaderboard's database, at `path` or else in its own place, while no orchestrator
    writes.

    Pods that were launched and have not ended count as running; damaged results are left out.
    Returns the number of results.
    """
    store = RunStore(run)
    log = EventLog(run.events)
    specs = store.read_specs()
    results = {}
    for pod in filter(store.has_result, specs):
        with contextlib.suppress(TournamentError):
            results[pod] = store.read_result(pod)
    size = read_settings(store).leaderboard_size
    leaderboard = Leaderboard(size)
    for pod in log.order(results):
        submit(leaderboard, FinishedPod(specs[pod], results[pod]))
    index, _ = open_or_replace(path or run.leaderboard)
    try:
        index.rebuild(size, specs.values(), leaderboard.applied)
        index.write_turn([], [], 0, _find_states(log, results))
    finally:
        index.close()
    return len(leaderboard.applied)


def _find_states(log: EventLog, results: Mapping[str, PodResult]) -> list[PodState]:
    """List the states of pods without a result, as the log has them."""
    at = {}
    for event in log.records:
        match event:
            case LaunchEvent(pod=pod):
                at[pod] = (pod, "running", event.attempt, "")
            case LossEvent(pod=pod):
                at[pod] = (pod, "waiting", event.attempt, event.reason)
            case DrainEvent(pod=pod):
                at[pod] = (pod, "waiting", at[pod][2] if pod in at else 0, "")
    return [state for pod, state in at.items() if pod not in results]


def compare(first: RunFolder, second: RunFolder) -> list[str]:
    """List the differences between two runs in specs, results and leaderboard, without times and
    machines; empty if equal."""
    stores = RunStore(first), RunStore(second)
    specs_a, specs_b = (store.read_specs() for store in stores)
    results_a, results_b = (store.read_results() for store in stores)
    differences = []
    if set(specs_a) != set(specs_b):
        differences.append(f"pods: {sorted(set(specs_a) ^ set(specs_b))} are in one only")
    for pod in sorted(set(specs_a) & set(specs_b)):
        a = vars(specs_a[pod])
        b = vars(specs_b[pod])
        names = [name for name in a if a[name] != b[name]]
        if names:
            differences.append(f"{pod}: spec ({', '.join(names)})")
        left = results_a.get(pod)
        right = results_b.get(pod)
        if (left and left.reproducible) != (right and right.reproducible):
            differences.append(f"{pod}: result")
    if dump_canonical(first.leaderboard) != dump_canonical(second.leaderboard):
        differences.append("leaderboard")
    return differences


def require_tournament(run: RunFolder) -> None:
    """Raise TournamentError when the folder holds no tournament."""
    if not (run.root / "tournament.json").exists():
        raise TournamentError(
            f"{run.root} holds no tournament; start one with `fintrader tournament CONFIG`"
        )
