"""What makes a tournament's folder whole again: what follows from the rest is made again, what is
not what was written is renamed, never deleted, and the run's own command then trains what is
missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from fintrader.tournament import lease as leases
from fintrader.tournament.ensemble import build_ensemble
from fintrader.tournament.events import EventLog
from fintrader.tournament.generator import Generator
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.status import make_index
from fintrader.tournament.store import RunStore, aside
from fintrader.tournament.verify import (
    Found,
    board_of,
    derived_or_none,
    ensemble_check,
    find_foreign,
    identity_check,
    index_check,
)


def repair(
    run: RunFolder, settings: TournamentSettings | None = None, generator: Generator | None = None
) -> list[str]:
    """Make again what follows from the rest, set aside what is not what was written; what was done,
    a sentence each.

    Raises TournamentError when the tournament is running.
    """
    done: list[str] = []
    with leases.acquire(run, find_mirror(run.root), patience_seconds=0.0):
        done += [
            f"{path.relative_to(run.root)}: stood where something else belongs; now"
            f" {aside(path).name}"
            for path in run.misplaced()
        ]
        found = Found.of(run, generator)
        done += [
            f"{pod}: of no pod of this run; its folder is now {aside(run.pod(pod)).name}"
            for pod in found.strays
        ]
        if found.foreign == run.events.name:
            kept = aside(run.events).name
            done.append(
                f"events.jsonl: of another tournament; now {kept}, and the run's command begins a"
                " new one"
            )
            found = Found.of(run, generator)
        find_foreign(found)
        if found.broken_lines:
            _mend_log(found)
            done.append(
                f"events.jsonl: set aside; a new one holds its {len(found.events)} whole lines"
            )
        if found.store.identity_path.exists() and not identity_check(found).ok:
            aside(found.store.identity_path)
            done.append(
                "tournament.json: set aside; the run's command makes it anew where the pods follow"
                " from its settings"
            )
        done += _mend_pods(found)
        if not identity_check(found).ok:
            return done
        found = Found.of(run, generator)
        find_foreign(found)
        if not found.broken and not index_check(found).ok:
            make_index(run)
            done.append(f"{run.leaderboard.name}: made again from {len(found.results)} results")
        if not (found.broken or found.unusable) and not ensemble_check(found, settings).ok:
            for path in sorted(run.ensemble.glob("*.*")):
                if ".damaged-" not in path.name:
                    aside(path)
            build_ensemble(
                run, board_of(found, found.settings.leaderboard_size), settings or found.settings
            )
            done.append("ensemble: set aside, and made again from the leaderboard")
    return done


def _mend_log(found: Found) -> None:
    aside(found.run.events)
    log = EventLog(found.run.events, found.store.keep_events)
    log.append(*found.events, {"event": "repaired", "lines": found.broken_lines})


def _mend_pods(found: Found) -> list[str]:
    """Specs are made again where they can be; what cannot be, and results that are no good, are set
    aside."""
    done = []
    for pod, why in found.unusable.items():
        found.store.set_aside(pod)
        done.append(f"{why}; set aside, to be trained again")
    derived = derived_or_none(found) if found.broken else {}
    for number, pod in enumerate(found.pods):
        if pod not in found.broken:
            continue
        spec = derived.get(pod)
        result = found.results.get(pod)
        if spec is None or (result is not None and result.spec != spec.digest):
            later = [one for one in found.pods[number:] if _set_pod_aside(found.store, one)]
            said = (
                f"{', '.join(later)}: set aside, because {found.broken[pod]}, and it follows from"
                " nothing"
            )
            return [*done, said] if later else done
        found.store.restore_spec(spec)
        done.append(f"{pod}: its spec is made again from the seed and the results it had seen")
    return done


def _set_pod_aside(store: RunStore, pod: str) -> bool:
    """Rename what a pod came to, so that it is made anew; whether there was anything."""
    paths: Sequence[Path] = [
        path for path in (store.spec_path(pod), store.result_path(pod)) if path.exists()
    ]
    if store.result_path(pod).exists():
        store.set_aside(pod)
    if store.spec_path(pod).exists():
        store.set_spec_aside(pod)
    return bool(paths)
