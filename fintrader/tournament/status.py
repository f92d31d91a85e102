"""What can be asked about a run from outside, while it races or afterwards: status, lineage, rebuild, replay."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fintrader.config import Settings
from fintrader.errors import TournamentError
from fintrader.progress import Progress
from fintrader.runs import RunFolder, read_json, read_jsonl
from fintrader.tournament import lease as leases
from fintrader.tournament.events import EventLog
from fintrader.tournament.generational import Replay, scheduler_of
from fintrader.tournament.launchers import Launcher, LauncherFactory
from fintrader.tournament.leaderboard import open_or_replace, read_leaderboard, read_pods
from fintrader.tournament.orchestrator import EnsembleBuilder, TournamentResult, run_tournament
from fintrader.tournament.pod import PodSpec
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import Board, Entry, submit


def status(run: RunFolder) -> dict[str, Any]:
    """Plain JSON on a run: counts by state, the leaderboard, what is at work, losses by reason, time left.

    `eta_seconds` is what remains at the rate of results since the orchestrator last started; None while there is no
    such rate, and for a run that is finished or that nobody races.

    Raises TournamentError when the folder holds no tournament or its database is damaged.
    """
    _require(run)
    pods = read_pods(run.leaderboard)
    rows = read_leaderboard(run.leaderboard)
    events = read_jsonl(run.events)
    states: dict[str, int] = {}
    for pod in pods:
        states[pod["state"]] = states.get(pod["state"], 0) + 1
    losses: dict[str, int] = {}
    for event in events:
        if event.get("event") == "lost":
            losses[event["reason"]] = losses.get(event["reason"], 0) + 1
    at_work = [_at_work(run, pod) for pod in pods if pod["state"] == "running"]
    finished = [event for event in events if event.get("event") == "finished"]
    control = run.root / "control.json"
    active, now = leases.is_held(run), time.time()
    return {
        "run": run.root.name,
        "active": active,
        "finished": bool(finished),
        "pods": len(pods),
        "applied": len({event["pod"] for event in events if event.get("event") == "applied"}),
        "wanted_results": _sitting(events)[0].get("pods"),
        "eta_seconds": _eta(events, now) if active else None,
        "states": states,
        "trials": sum(1 for pod in pods if pod["score"] is not None),
        "env_steps": sum(pod["env_steps"] or 0 for pod in pods),
        "losses": losses,
        "wanted_pods": read_json(control).get("pods") if control.exists() else None,
        "at_work": at_work,
        "leaderboard": rows,
        "ensemble": finished[-1]["members"] if finished else [],
        "last_event": events[-1] if events else None,
        "now": now,
    }


def _sitting(events: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The event by which the orchestrator last started (empty if it never has), and what followed."""
    for place in range(len(events) - 1, -1, -1):
        if events[place].get("event") in ("started", "resumed"):
            return events[place], list(events[place + 1 :])
    return {}, list(events)


def _eta(events: Sequence[dict[str, Any]], now: float) -> float | None:
    """Seconds to the last result: those to come x (seconds so far / results so far), of this sitting."""
    begun, since = _sitting(events)
    wanted = begun.get("pods")  # earlier versions did not say it
    results = sum(event.get("event") == "applied" for event in since)
    if wanted is None or results == 0 or any(event.get("event") == "finished" for event in since):
        return None
    to_come = wanted - len({event["pod"] for event in events if event.get("event") == "applied"})
    return float(max(0.0, to_come * (now - begun["time"]) / results)) if to_come > 0 else None


def _at_work(run: RunFolder, pod: dict[str, Any]) -> dict[str, Any]:
    """How far a pod is, from the log it keeps itself."""
    records = read_jsonl(run.pod(pod["pod"]) / "metrics.jsonl")
    last = records[-1] if records else {}
    wanted = pod["budget"].get("env_steps")
    steps = int(last.get("env_steps", 0))
    return {
        "pod": pod["pod"],
        "attempt": pod["attempts"],
        "env_steps": steps,
        "share": min(1.0, steps / wanted) if wanted else None,
        "steps_per_second": last.get("steps_per_second"),
    }


def lineage(run: RunFolder, pod: str) -> list[dict[str, Any]]:
    """A pod and its ancestors, youngest first, down to the founder: origin, score, hyper-parameters and their change.

    Raises TournamentError when there is no such pod.
    """
    _require(run)
    store = RunStore(run)
    specs, results = store.specs(), store.results()
    if pod not in specs:
        raise TournamentError(f"{run.root} has no pod {pod!r}; it has {', '.join(list(specs)[:5]) or 'none'} ...")
    steps = []
    at: str | None = pod
    while at is not None:
        spec, result = specs[at], results.get(at)
        parent = specs.get(spec.parent) if spec.parent else None
        steps.append(
            {
                "pod": at,
                "origin": spec.origin,
                "parent": spec.parent,
                "generation": spec.generation,
                "algo": spec.agent.get("algo"),
                "score": result.score if result else None,
                "status": result.status if result else "unfinished",
                "env_steps": result.env_steps if result else 0,
                "hyper": spec.hyper,
                "changed": {
                    name: [parent.hyper.get(name), value]
                    for name, value in spec.hyper.items()
                    if parent is not None and parent.hyper.get(name) != value
                },
                "inherited": spec.snapshot,
                "snapshot": result.snapshot if result else None,
            }
        )
        at = spec.parent
    return steps


def rebuild(run: RunFolder) -> int:
    """Make the leaderboard again from specs, results and the event log; returns the number of results.

    Raises TournamentError when the folder holds no tournament, or one that is running.
    """
    _require(run)
    with leases.acquire(run, patience_seconds=0.0):
        return make_index(run)


def make_index(run: RunFolder) -> int:
    """The same for a copy that nobody else writes to; pods that were launched and have not ended count as running."""
    store = RunStore(run)
    log = EventLog(run.events)
    specs, results = store.specs(), store.results()
    known = [str(event["pod"]) for event in log.of("applied")]
    order = [pod for pod in dict.fromkeys(known) if pod in results]
    order += sorted(set(results) - set(order), key=lambda pod: (results[pod].finished, pod))
    size = int(read_json(store.identity_path)["settings"]["leaderboard_size"])
    board = Board(size)
    for pod in order:
        submit(board, Entry(specs[pod], results[pod]))
    index, _ = open_or_replace(run.leaderboard)
    try:
        index.rebuild(size, specs.values(), board.applied)
        index.write_turn([], [], 0, list(_states(log, results)))
    finally:
        index.close()
    return len(board.applied)


def _states(log: EventLog, results: Mapping[str, Any]) -> Iterable[tuple[str, str, int, str, str]]:
    """(pod, state, attempts, reason, device) of pods without a result, as the log has them."""
    at: dict[str, tuple[str, str, int, str, str]] = {}
    for event in log.of("launched", "lost", "drained"):
        pod = str(event["pod"])
        state = "running" if event["event"] == "launched" else "waiting"
        attempt = int(event.get("attempt", at[pod][2] if pod in at else 0))
        at[pod] = (pod, state, attempt, str(event.get("reason", "")), "")
    return [state for pod, state in at.items() if pod not in results]


def replay(
    source: RunFolder,
    target: RunFolder,
    settings: TournamentSettings,
    *,
    market: Path,
    env: Settings | None = None,
    agent: Settings | Sequence[Settings] = (),
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
    launcher: Launcher | LauncherFactory | None = None,
    body: str | None = None,
    ensemble: EnsembleBuilder | None = None,
    data_hash: str | None = None,
) -> TournamentResult:
    """Race `source` again into `target`, each pod seeing what it saw then. Byte-equal on the CPU with step budgets.

    Raises TournamentError when the source is unfinished or lost a pod for good (what killed it cannot be replayed),
    and what `run_tournament` raises. `compare` tells whether the two agree.
    """
    _require(source)
    store = RunStore(source)
    specs = list(store.specs().values())
    results = store.results()
    applied = [int(str(event["pod"])[1:]) for event in read_jsonl(source.events) if event.get("event") == "applied"]
    applied = list(dict.fromkeys(applied))
    if sorted(applied) != list(range(len(specs))) or len(results) != len(specs):
        raise TournamentError(f"{source.root} is not finished; run its own command again first")
    lost = [pod for pod, result in results.items() if result.status == "failed"]
    if lost:
        raise TournamentError(f"{source.root} lost {', '.join(lost)}; a run with failed pods cannot be replayed")
    more: dict[str, Any] = {} if body is None else {"body": body}
    return run_tournament(
        settings.model_copy(update={"pods": len(specs)}),
        folder=target,
        market=market,
        env=env,
        agent=agent,
        seed=seed,
        device=device,
        progress=progress,
        launcher=launcher,
        scheduler=Replay([spec.seen for spec in specs], applied, scheduler_of(settings)),
        ensemble=ensemble,
        data_hash=data_hash,
        **more,
    )


def compare(one: RunFolder, other: RunFolder) -> list[str]:
    """In what two runs differ, leaving times and places out: specs, results, snapshots, board; empty if in nothing."""
    from fintrader.tournament.leaderboard import canonical

    a, b = RunStore(one), RunStore(other)
    differences = []
    specs_a, specs_b = a.specs(), b.specs()
    if set(specs_a) != set(specs_b):
        differences.append(f"pods: {sorted(set(specs_a) ^ set(specs_b))} are in one only")
    results_a, results_b = a.results(), b.results()
    for pod in sorted(set(specs_a) & set(specs_b)):
        if specs_a[pod] != specs_b[pod]:
            differences.append(f"{pod}: spec ({', '.join(_differing(specs_a[pod], specs_b[pod]))})")
        left, right = results_a.get(pod), results_b.get(pod)
        if (left and left.reproducible()) != (right and right.reproducible()):
            differences.append(f"{pod}: result")
    if canonical(one.leaderboard) != canonical(other.leaderboard):
        differences.append("leaderboard")
    return differences


def _differing(a: PodSpec, b: PodSpec) -> list[str]:
    return [name for name in PodSpec.model_fields if getattr(a, name) != getattr(b, name)]


def _require(run: RunFolder) -> None:
    if not (run.root / "tournament.json").exists():
        raise TournamentError(f"{run.root} holds no tournament; start one with `fintrader tournament CONFIG`")
