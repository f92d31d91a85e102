"""Repair of a tournament's folder.

Records that follow from others are rebuilt. Records that changed after they were written are
renamed, never deleted, and the run's own command then trains the missing pods.
"""

from __future__ import annotations

from fintrader.results.tournament_events import RepairEvent
from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from fintrader.tournament import lease as leases
from fintrader.tournament.ensemble import build_ensemble
from fintrader.tournament.events import EventLog
from fintrader.tournament.recount import (
    StoredTournament,
    check_ensemble,
    check_identity,
    check_index,
    find_changed_files,
)
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.status import make_index
from fintrader.tournament.store import RunStore, move_aside


def repair(run: RunFolder, settings: TournamentSettings | None = None) -> list[str]:
    """Rebuild derived files, and set changed ones aside.

    Returns a sentence on each repair. Raises TournamentError when the tournament is
    running.
    """
    with leases.acquire(run, find_mirror(run.root), patience_seconds=0.0):
        done = [
            f"{path.relative_to(run.root)}: another kind of file belongs there; it is now"
            f" {move_aside(path).name}"
            for path in run.list_misplaced()
        ]
        stored = StoredTournament(run)
        for pod in stored.strays:
            renamed = move_aside(run.pod(pod)).name
            done.append(f"{pod}: belongs to no pod of this run; its folder is now {renamed}")
        if stored.foreign_file == run.events.name:
            renamed = move_aside(run.events).name
            done.append(
                f"events.jsonl: of another tournament; now {renamed}, and the run's command begins"
                " a new one"
            )
            stored = StoredTournament(run)
        stored.reject_foreign_records()
        done += _repair_log(stored)
        if stored.store.identity_path.exists() and not check_identity(stored).is_ok:
            move_aside(stored.store.identity_path)
            done.append(
                "tournament.json: set aside; the run's command makes it anew where the pods follow"
                " from its settings"
            )
        done += _repair_pods(stored)
        if check_identity(stored).is_ok:
            done += _repair_derived(run, settings)
    return done


def _repair_log(stored: StoredTournament) -> list[str]:
    """Begin a new log with the whole lines of a damaged one."""
    if not stored.broken_lines:
        return []
    move_aside(stored.run.events)
    log = EventLog(stored.run.events, stored.store.keep_events)
    log.append(*stored.events, RepairEvent(lines=tuple(stored.broken_lines)))
    return [f"events.jsonl: set aside; a new one holds its {len(stored.events)} whole lines"]


def _repair_pods(stored: StoredTournament) -> list[str]:
    """Set changed files and bad results aside, and rebuild bad specs.

    A spec that cannot be derived again is set aside with every pod after it, which may depend on
    it.
    """
    done = [
        f"{path.relative_to(stored.run.root)}: changed; now {move_aside(path).name}"
        for path in find_changed_files(stored)
    ]
    for pod, reason in stored.bad_results.items():
        stored.store.set_aside(pod)
        done.append(f"{reason}; set aside, to be trained again")
    derived = stored.derive_specs_if_possible() if stored.bad_specs else {}
    for number, pod in enumerate(stored.pods):
        if pod not in stored.bad_specs:
            continue
        spec = derived.get(pod)
        result = stored.results.get(pod)
        if spec is None or (result is not None and result.spec != spec.digest):
            later = [pod for pod in stored.pods[number:] if _set_pod_aside(stored.store, pod)]
            reason = f"because {stored.bad_specs[pod]}, and it cannot be derived again"
            return [*done, f"{', '.join(later)}: set aside, {reason}"] if later else done
        stored.store.set_aside(pod, "spec.json")
        stored.store.write_spec(spec)
        done.append(f"{pod}: its spec is rebuilt from the seed and the results before it")
    return done


def _set_pod_aside(store: RunStore, pod: str) -> bool:
    """Rename spec and result of a pod, so that it is made anew; False where it has neither."""
    had_result = store.set_aside(pod)
    return store.set_aside(pod, "spec.json") or had_result


def _repair_derived(run: RunFolder, settings: TournamentSettings | None) -> list[str]:
    """Rebuild the database and the ensemble where they do not follow from the pods."""
    stored = StoredTournament(run)
    stored.reject_foreign_records()
    done = []
    if not stored.bad_specs and not check_index(stored).is_ok:
        make_index(run)
        done.append(f"{run.leaderboard.name}: rebuilt from {len(stored.results)} results")
    is_whole = not (stored.bad_specs or stored.bad_results)
    if settings is not None and is_whole and not check_ensemble(stored, settings).is_ok:
        for path in sorted(run.ensemble.glob("*.*")):
            if ".damaged-" not in path.name:
                move_aside(path)
        build_ensemble(run, stored.rank(settings.leaderboard_size), settings)
        done.append("ensemble: set aside, and rebuilt from the leaderboard")
    return done
