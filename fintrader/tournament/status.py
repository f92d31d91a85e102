"""Questions to a tournament from outside, while it races or afterwards: status, scale, compare."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fintrader.config import validate
from fintrader.errors import RunError, TournamentError
from fintrader.files import read_json, read_jsonl, write_json
from fintrader.results.leaderboard_reader import canonical, read_leaderboard, read_pods
from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from fintrader.tournament import lease as leases
from fintrader.tournament.events import EventLog
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard, PodState, open_or_replace
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import submit


def read_status(run: RunFolder) -> dict[str, Any]:
    """Plain JSON on a run: counts by state, the leaderboard, what is at work, losses by reason,
    time left.

    `eta_seconds` is what remains at the rate of results since the orchestrator last started; None
    while there is no such rate, and for a run that is finished or that nobody races.

    Raises TournamentError when the folder holds no tournament, RunError when its database is
    missing or damaged.
    """
    require_tournament(run)
    pods = read_pods(run.leaderboard)
    rows = read_leaderboard(run.leaderboard, benchmark=True)
    events = read_jsonl(run.events)
    states = Counter(pod["state"] for pod in pods)
    losses = Counter(event["reason"] for event in events if event.get("event") == "lost")
    at_work = [_read_progress(run, pod) for pod in pods if pod["state"] == "running"]
    finished = [event for event in events if event.get("event") == "finished"]
    active = leases.is_held(run, find_mirror(run.root))
    now = time.time()
    return {
        "run": run.root.name,
        "active": active,
        "finished": bool(finished),
        "pods": len(pods),
        "applied": len({event["pod"] for event in events if event.get("event") == "applied"}),
        "requested_results": _find_last_start(events)[0].get("pods"),
        "eta_seconds": _estimate_seconds(events, now) if active else None,
        "states": dict(states),
        "trials": sum(pod["looks"] for pod in pods if pod["score"] is not None),
        "env_steps": sum(pod["env_steps"] or 0 for pod in pods),
        "losses": dict(losses),
        "requested_pods": read_requested_pods(run),
        "at_work": at_work,
        "leaderboard": rows,
        "ensemble": finished[-1]["members"] if finished else [],
        "last_event": events[-1] if events else None,
        "now": now,
    }


def _find_last_start(
    events: Sequence[dict[str, Any]],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The event by which the orchestrator last started (empty if it never has), and what
    followed."""
    for number in range(len(events) - 1, -1, -1):
        if events[number].get("event") in ("started", "resumed"):
            return events[number], list(events[number + 1 :])
    return {}, list(events)


def _estimate_seconds(events: Sequence[dict[str, Any]], now: float) -> float | None:
    """Seconds to the last result: those to come x (seconds so far / results so far), of this
    sitting."""
    begun, since = _find_last_start(events)
    requested = begun.get("pods")
    results = sum(event.get("event") == "applied" for event in since)
    if (
        requested is None
        or results == 0
        or any(event.get("event") == "finished" for event in since)
    ):
        return None
    to_come = requested - len({event["pod"] for event in events if event.get("event") == "applied"})
    return float(max(0.0, to_come * (now - begun["time"]) / results)) if to_come > 0 else None


def _read_progress(run: RunFolder, pod: dict[str, Any]) -> dict[str, Any]:
    """How far a pod is, from the log it keeps itself."""
    records = read_jsonl(run.pod(pod["pod"]) / "metrics.jsonl")
    last = records[-1] if records else {}
    budget = pod["budget"].get("env_steps")
    steps = int(last.get("env_steps", 0))
    return {
        "pod": pod["pod"],
        "attempt": pod["attempts"],
        "env_steps": steps,
        "share": min(1.0, steps / budget) if budget else None,
        "steps_per_second": last.get("steps_per_second"),
    }


def read_requested_pods(run: RunFolder) -> int | None:
    """How many pods the run was asked to keep at work; None: what its settings say. A damaged
    request is as none."""
    try:
        pods = int(read_json(_scale_file(run))["pods"])
        return pods if pods >= 1 else None
    except (RunError, KeyError, TypeError, ValueError):
        return None


def scale(run: RunFolder, pods: int | None) -> None:
    """Ask a tournament, running or to be resumed, to keep `pods` at work; None: what its settings
    say.

    Raises TournamentError for fewer than one pod and for a folder without a tournament.
    """
    if pods is not None and pods < 1:
        raise TournamentError(
            f"cannot keep {pods} pods at work; give at least 1, or stop the process to pause"
        )
    require_tournament(run)
    write_json(_scale_file(run), {"pods": pods})


def _scale_file(run: RunFolder) -> Path:
    return run.root / "scale.json"


def describe_effect(run: RunFolder, pods: int | None) -> str:
    """What `scale(run, pods)` will do: a sentence for the terminal."""
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
    if any(event.get("event") == "finished" for event in read_jsonl(run.events)):
        return (
            "finished, so nothing is at work; once it is extended by a higher tournament.pods:"
            f" {requested}"
        )
    return f"nothing is at work now; once the run is resumed by its own command: {requested}"


def read_settings(store: RunStore) -> TournamentSettings:
    """Those that no resumption may change; the others as they are by default. Raises
    TournamentError."""
    known = store.read_identity()["settings"]
    return validate(TournamentSettings, {**known, "ensemble_size": 1}, str(store.identity_path))


def make_index(run: RunFolder, path: Path | None = None) -> int:
    """Make the leaderboard again, at `path` unless in its own place; nobody else writes meanwhile.

    Pods that were launched and have not ended count as running. Returns the number of results.
    """
    store = RunStore(run)
    log = EventLog(run.events)
    specs = store.read_specs()
    results = store.read_results()
    size = int(store.read_identity()["settings"]["leaderboard_size"])
    leaderboard = Leaderboard(size)
    for pod in log.order(results):
        submit(leaderboard, FinishedPod(specs[pod], results[pod]))
    index, _ = open_or_replace(run.leaderboard if path is None else path)
    try:
        index.rebuild(size, specs.values(), leaderboard.applied)
        index.write_turn([], [], 0, _find_states(log, results))
    finally:
        index.close()
    return len(leaderboard.applied)


def _find_states(log: EventLog, results: Mapping[str, Any]) -> list[PodState]:
    """The states of pods without a result, as the log has them."""
    at: dict[str, PodState] = {}
    for event in log.select("launched", "lost", "drained"):
        pod = str(event["pod"])
        state = "running" if event["event"] == "launched" else "waiting"
        attempt = int(event.get("attempt", at[pod][2] if pod in at else 0))
        at[pod] = (pod, state, attempt, str(event.get("reason", "")))
    return [state for pod, state in at.items() if pod not in results]


def compare(one: RunFolder, other: RunFolder) -> list[str]:
    """In what two runs differ, leaving times and machines out: specs, results, leaderboard; empty
    if in nothing."""
    stores = RunStore(one), RunStore(other)
    specs_a, specs_b = (store.read_specs() for store in stores)
    results_a, results_b = (store.read_results() for store in stores)
    differences = []
    if set(specs_a) != set(specs_b):
        differences.append(f"pods: {sorted(set(specs_a) ^ set(specs_b))} are in one only")
    for pod in sorted(set(specs_a) & set(specs_b)):
        a = specs_a[pod]
        b = specs_b[pod]
        if a != b:
            names = [one.name for one in fields(a) if getattr(a, one.name) != getattr(b, one.name)]
            differences.append(f"{pod}: spec ({', '.join(names)})")
        left = results_a.get(pod)
        right = results_b.get(pod)
        if (left and left.reproducible) != (right and right.reproducible):
            differences.append(f"{pod}: result")
    if canonical(one.leaderboard) != canonical(other.leaderboard):
        differences.append("leaderboard")
    return differences


def require_tournament(run: RunFolder) -> None:
    """Raises TournamentError when the folder holds none."""
    if not (run.root / "tournament.json").exists():
        raise TournamentError(
            f"{run.root} holds no tournament; start one with `fintrader tournament CONFIG`"
        )
