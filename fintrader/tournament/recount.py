"""Checks of a tournament's folder: recompute everything that can be derived, and compare.

Specs, results, the event log and `tournament.json` carry seals. Other parts are derived: specs from
the seed and the results before them, the leaderboard's database from specs, results and log, and
the ensemble from the leaderboard. `repair.py` makes derived files again and sets changed files
aside.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fintrader.agents.settings import AgentSettings
from fintrader.errors import FintraderError, TournamentError
from fintrader.files import hash_file, read_bytes
from fintrader.progress import shorten_list
from fintrader.results.leaderboard_reader import StoredPod, read_cells, read_leaderboard, read_pods
from fintrader.results.tournament_events import (
    AdoptionEvent,
    DamageEvent,
    DrainEvent,
    FinishEvent,
    LossEvent,
    ProposalEvent,
    ResultEvent,
    ResumptionEvent,
    StartEvent,
    find_last_start,
    list_dropped_pods,
    select_events,
)
from fintrader.results.verify import Check, list_problems
from fintrader.runs import POD_NAME, RunFolder
from fintrader.seeding import derive
from fintrader.storage.mirror import find_mirror
from fintrader.tournament import lease as leases
from fintrader.tournament.at_work import list_at_work
from fintrader.tournament.ensemble import build_ensemble, read_ensemble
from fintrader.tournament.events import list_applied, read_log
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.schedulers import make_scheduler
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec, TournamentIdentity
from fintrader.tournament.status import make_index, read_settings
from fintrader.tournament.updater import submit
from fintrader.tournament.warm_start import WarmStart

_PROGRESS = ("state", "attempts", "reason", "device", "seconds", "started", "finished")
"""Columns of the database that record a pod's progress; they are not compared."""
_EVENTS_BEFORE_RETRY = (LossEvent, DrainEvent, DamageEvent, ResumptionEvent)
"""Events after which a snapshot may belong to no result: a killed pod had stored it, and its next
attempt learned something else."""


class StoredTournament:
    """A tournament's folder: its intact parts, and the problems of damaged parts."""

    def __init__(self, run: RunFolder, generator: Generator | None = None) -> None:
        """Read every record. `generator` None: it is made from `tournament.json`, if the agents
        named there come with the package."""
        self.run = run
        self.generator = generator
        self.store = open_store(run, find_mirror(run.root))
        self.events, self.broken_lines = read_log(run.events)
        self.specs: dict[str, PodSpec] = {}
        self.results: dict[str, PodResult] = {}
        self.bad_specs: dict[str, str] = {}
        """Pods whose spec is missing, damaged or not theirs, with the reason."""
        self.bad_results: dict[str, str] = {}
        """Pods whose result is damaged, or not of their spec and files, with the reason."""
        for pod in self.pods:
            try:
                spec = self.store.read_spec(pod)
                if (spec.pod, spec.index) == (pod, int(pod[1:])):
                    self.specs[pod] = spec
                else:
                    self.bad_specs[pod] = f"{pod}: its spec is that of {spec.pod}"
            except TournamentError as error:
                self.bad_specs[pod] = str(error)
            try:
                if self.store.has_result(pod):
                    self.results[pod] = self.store.read_result(pod)
            except TournamentError as error:
                self.bad_results[pod] = str(error)

    def reject_foreign_records(self) -> None:
        """Move intact specs and results of other pods or runs to `bad_specs` and `bad_results`."""
        if self.foreign_file:
            return  # it explains all other problems, and is repaired first
        scores = {event.pod: event.score for event in select_events(self.events, ResultEvent)}
        dropped = list_dropped_pods(self.events)
        for pod, result in list(self.results.items()):
            if pod in scores and scores[pod] != result.score:
                reason = f"scored {result.score} in result.json and {scores[pod]} in events.jsonl"
                self._reject_result(pod, reason)
            elif pod not in dropped:
                damage = self.store.find_damage(result)
                if damage:
                    self._reject_result(pod, damage)
        for pod, spec in self.derive_specs_if_possible().items():
            result_of_pod = self.results.get(pod)
            is_own = result_of_pod is None or result_of_pod.spec == spec.digest
            if self.specs.get(pod, spec) != spec and is_own:
                self.bad_specs[pod] = (
                    f"{pod}: its spec does not follow from the seed and the results before it"
                )
                del self.specs[pod]
        for pod, spec in self.specs.items():
            result_of_pod = self.results.get(pod)
            if result_of_pod and (result_of_pod.pod, result_of_pod.spec) != (pod, spec.digest):
                self._reject_result(pod, "its result belongs to another spec.json")

    def _reject_result(self, pod: str, reason: str) -> None:
        self.bad_results[pod] = f"{pod}: {reason}"
        del self.results[pod]

    @cached_property
    def pods(self) -> list[str]:
        """Every pod up to the last one that is mentioned anywhere, in order."""
        numbers = (int(pod[1:]) for pod in self._mentioned - set(self.strays))
        return [f"p{number:04d}" for number in range(max(numbers, default=-1) + 1)]

    @cached_property
    def strays(self) -> list[str]:
        """Folders of pods whose number this tournament cannot have reached."""
        requested = (
            event.pods for event in self.events if isinstance(event, StartEvent | ResumptionEvent)
        )
        most = max(requested, default=0) + 2 * len(self._mentioned)
        return sorted(pod for pod in self._mentioned if int(pod[1:]) >= most)

    @cached_property
    def _mentioned(self) -> set[str]:
        """Pods that have a spec or a result, or an event on the log."""
        stored = [*self.run.pods.glob("p[0-9]*/spec.json"), *self.run.pods.glob("*/result.json")]
        pods = {path.parent.name for path in stored}
        pods |= {getattr(event, "pod", "") for event in self.events}
        return set(filter(POD_NAME.fullmatch, pods))

    @cached_property
    def order(self) -> list[str]:
        """Pods in the order in which their results were applied."""
        return list_applied(self.events)

    @property
    def trials(self) -> int:
        """Number of looks at the validation window, over all results that have a score."""
        return sum(result.looks for result in self.results.values() if result.score is not None)

    @property
    def is_finished(self) -> bool:
        """True when every pod has a result that was applied, and the end is on the log."""
        return bool(select_events(self.events, FinishEvent)) and set(self.order) == set(self.pods)

    def make_generator(self) -> Generator:
        """Make the generator of the specs.

        Raises TournamentError where `tournament.json` is damaged, or its agents are not known here.
        """
        if self.generator is not None:
            return self.generator
        known = self.store.read_identity()
        settings = read_settings(self.store)
        try:
            agents = tuple(
                TypeAdapter[Any](AgentSettings).validate_python(agent) for agent in known.agents
            )
        except ValidationError:
            raise TournamentError("its agents do not come with this package") from None
        inherited = WarmStart.read(self.run)
        entries = () if inherited is None else inherited.entries
        return Generator(settings, agents, known.env, known.seed, known.data_hash, entries)

    @cached_property
    def foreign_file(self) -> str:
        """Name of the file, log or `tournament.json`, that belongs to another tournament; else
        `""`."""
        try:
            known = self.store.read_identity()
        except TournamentError:
            return ""
        start = find_last_start(self.events)
        if start is None or start.of == self.store.read_identity_digest():
            return ""
        return "events.jsonl" if self._has_specs_from(known) else "tournament.json"

    def _has_specs_from(self, known: TournamentIdentity) -> bool:
        """Compare the specs with `tournament.json`, as far as that is possible without the log."""
        first = self.specs.get("p0000")
        if first is None:
            return True
        expected = derive(known.seed, "pod", 0), known.data_hash, known.env
        if expected != (first.seed, first.data_hash, first.env):
            return False
        derived = self.derive_specs_if_possible()
        certain = set(derived)
        if make_scheduler(read_settings(self.store)).count_needed(0) is None:
            certain &= {"p0000"}
        return all(self.specs.get(pod, derived[pod]) == derived[pod] for pod in certain)

    def derive_specs(self) -> dict[str, PodSpec]:
        """Make the specs again from seed, number and the results before them, by pod.

        Pods whose earlier results are not known are left out. Raises TournamentError as
        `make_generator`.
        """
        generator = self.make_generator()
        scheduler = make_scheduler(generator.settings)
        recorded = {event.pod: event.seen for event in select_events(self.events, ProposalEvent)}
        # Specs of an orchestrator whose leaderboard is not on the log.
        adopted = {event.pod for event in select_events(self.events, AdoptionEvent)}
        board = Leaderboard(generator.settings.leaderboard_size)
        specs = dict[str, PodSpec]()
        order = self.order if scheduler.count_needed(0) is None else self.pods
        for index, pod in enumerate(self.pods):
            needs = scheduler.count_needed(index)
            seen = needs if needs is not None else recorded.get(pod)
            if pod in adopted or seen is None or not len(board.applied) <= seen <= len(order):
                continue
            for earlier in order[len(board.applied) : seen]:
                spec = self.specs.get(earlier) or specs.get(earlier)
                if spec is None or earlier not in self.results:
                    return specs
                submit(board, FinishedPod(spec, self.results[earlier]))
            specs[pod] = scheduler.make(index, board, generator)
        return specs

    def derive_specs_if_possible(self) -> Mapping[str, PodSpec]:
        """Make the specs again; none where they cannot be derived."""
        try:
            return self.derive_specs()
        except FintraderError:
            return {}

    def rank(self, size: int) -> Leaderboard:
        """Make the leaderboard again."""
        board = Leaderboard(size)
        for pod in self.order:
            submit(board, FinishedPod(self.specs[pod], self.results[pod]))
        return board


@dataclass(frozen=True)
class Recount:
    """The checks of a tournament, and the trials that its results add up to."""

    checks: tuple[Check, ...]
    trials: int = 0

    @property
    def problems(self) -> list[str]:
        return list_problems(self.checks)


def find_tournaments(home: RunFolder) -> list[RunFolder]:
    """List the tournaments of a run: its own, those of its folds, their null models. Raises
    TournamentError without any."""
    folders = [folder for place in (home, *home.folds) for folder in (place, place.null_model)]
    runs = [folder for folder in folders if folder.holds_tournament]
    if not runs:
        raise TournamentError(
            f"{home.root} holds no tournament; start one with `fintrader tournament CONFIG`"
        )
    return runs


def has_specs_of(run: RunFolder, generator: Generator) -> bool:
    """Check that the specs in a folder are those that `generator` makes."""
    stored = StoredTournament(run, generator)
    derived = stored.derive_specs()
    return bool(derived) and all(
        stored.specs.get(pod, spec) == spec for pod, spec in derived.items()
    )


def check_tournament(
    run: RunFolder,
    settings: TournamentSettings | None = None,
    *,
    must_be_finished: bool = False,
) -> Recount:
    """Make every check of a finished or stopped tournament.

    `settings`: current settings, used to check the ensemble; None skips that check.
    `must_be_finished`: the log has to say that the tournament has ended.

    Raises TournamentError when it is running, or the folder holds none.
    """
    if leases.is_held(run, find_mirror(run.root)) or list_at_work(run):
        raise TournamentError(f"{run.root} is running; verify it when it has ended")
    wrong = run.list_misplaced()
    if wrong:
        problems = tuple(f"{path} is not the kind of file that belongs there" for path in wrong)
        return Recount(
            (_describe("files", "every path with the kind of file that belongs there", problems),)
        )
    stored = StoredTournament(run)
    stored.reject_foreign_records()
    checks = [
        check_identity(stored),
        _check_log(stored, must_be_finished),
        _check_specs(stored),
        _check_results(stored),
        _check_snapshots(stored, must_be_finished),
    ]
    if all(check.is_ok for check in checks):
        checks += [check_index(stored), check_ensemble(stored, settings)]
    return Recount(tuple(checks), stored.trials)


def _describe(name: str, compares: str, problems: Iterable[str], result: str = "") -> Check:
    return Check(
        name,
        compares,
        tuple(problems),
        result,
        "`fintrader verify RUN --repair` makes derived files again and sets changed files aside;"
        " then the run's own command trains the missing pods",
    )


def _name_pods(pods: Iterable[str], problem: str) -> list[str]:
    """Build a message on a problem of pods, the first five by name; empty without pods."""
    names = shorten_list(sorted(pods))
    return [f"{names} {problem}"] if names else []


def check_identity(stored: StoredTournament) -> Check:
    """Compare `tournament.json` with its seal and with the pods."""
    problems = []
    try:
        stored.store.read_identity()
        if stored.foreign_file == "tournament.json":
            problems.append("tournament.json belongs to another tournament")
    except TournamentError as error:
        problems.append(str(error))
    return _describe(
        "settings",
        "tournament.json with its seal, the log and the pods",
        problems,
        "tournament.json is as it was written",
    )


def _check_log(stored: StoredTournament, must_be_finished: bool) -> Check:
    problems = []
    if stored.broken_lines:
        problems.append(
            f"events.jsonl: lines {shorten_list(stored.broken_lines)} are not as they were written,"
            " or not in their place"
        )
    if stored.pods and not stored.events:
        problems.append("events.jsonl is missing or empty")
    if stored.foreign_file == "events.jsonl":
        problems.append("events.jsonl is the log of another tournament")
    applied = Counter(event.pod for event in select_events(stored.events, ResultEvent))
    problems += [f"{pod} was applied {times} times" for pod, times in applied.items() if times > 1]
    ends = select_events(stored.events, FinishEvent)
    if must_be_finished and not ends:
        problems.append("events.jsonl does not say that the tournament finished")
    if must_be_finished or stored.is_finished:
        problems += _name_pods(
            stored.results.keys() - applied.keys(),
            "have a result that events.jsonl never counted: lines were deleted",
        )
    is_whole = bool(ends) and applied.keys() == stored.results.keys()
    if is_whole and stored.events[-1] == ends[-1] and ends[-1].trials != stored.trials:
        problems.append(
            f"events.jsonl finished with {ends[-1].trials} trials, but the results make"
            f" {stored.trials}"
        )
    return _describe(
        "events",
        "each line of events.jsonl with its seal and number, and the log with the results",
        problems,
        f"{len(stored.events)} lines, each as it was written, in their order",
    )


def _check_specs(stored: StoredTournament) -> Check:
    problems = [
        *stored.bad_specs.values(),
        *(f"{pod} belongs to no pod of this run" for pod in stored.strays),
    ]
    result = f"{len(stored.specs)}, each as it was written"
    try:
        derived = stored.derive_specs()
    except FintraderError as error:
        result += f"; not made again: {error}"
    else:
        problems += _name_pods(
            (pod for pod, spec in derived.items() if stored.specs.get(pod, spec) != spec),
            "do not follow from the seed and the results before them",
        )
        same = sum(pod in stored.specs for pod in derived)
        result += f"; {same} made again from the seed and the results before them, and equal"
    return _describe(
        "specs",
        "each spec.json with its seal, and with the one that the seed and the results before it"
        " make",
        problems,
        result,
    )


def _check_results(stored: StoredTournament) -> Check:
    gone = set(stored.order) - stored.results.keys() - stored.bad_results.keys()
    return _describe(
        "results",
        "each result.json with its seal, spec, score on the log, snapshot and policy",
        [
            *stored.bad_results.values(),
            *_name_pods(gone, "were applied and have no result.json: it was deleted"),
        ],
        f"{len(stored.results)} of {len(stored.specs)} pods, which make {stored.trials} trials",
    )


def find_changed_files(stored: StoredTournament) -> list[Path]:
    """List snapshots whose hash is not their name, and dropped pods' policies whose hash is not
    that in their result."""
    hashes = {path: path.stem for path in stored.run.list_snapshots()}
    for pod in list_dropped_pods(stored.events) & stored.results.keys():
        hashes[stored.store.locate_policy(pod)] = str(stored.results[pod].policy)
    return [path for path, digest in hashes.items() if path.is_file() and hash_file(path) != digest]


def _check_snapshots(stored: StoredTournament, must_be_finished: bool) -> Check:
    """Find changed snapshots and, once all pods have ended, those that no result names."""
    problems = [
        f"{path.relative_to(stored.run.root)} was changed" for path in find_changed_files(stored)
    ]
    paths = stored.run.list_snapshots()
    named = {result.snapshot for result in stored.results.values()}
    try:
        inherited = WarmStart.read(stored.run)
        named |= {entry.result.snapshot for entry in inherited.entries} if inherited else set()
    except FintraderError as error:
        problems.append(str(error))
    strange = {path.stem for path in paths} - named
    has_ended = must_be_finished or stored.is_finished
    if (
        strange
        and has_ended
        and not any(isinstance(event, _EVENTS_BEFORE_RETRY) for event in stored.events)
    ):
        problems.append(f"{len(strange)} snapshots belong to no result: pods were deleted")
    return _describe(
        "snapshots",
        "each snapshot with the hash in its name and with the results",
        problems,
        f"{len(paths)}, each as it was written",
    )


def check_index(stored: StoredTournament) -> Check:
    """Compare the database with one that is made from specs, results and events."""
    path = stored.run.leaderboard
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / path.name
        make_index(stored.run, other)
        try:
            problems = _compare_databases(path, other, must_be_whole=stored.is_finished)
        except FintraderError as error:
            problems = [str(error)]
    return _describe(
        "leaderboard",
        f"{path.name} with a database made again from specs, results and events",
        problems,
        "every row follows from specs, results and events",
    )


def _compare_databases(here: Path, again: Path, *, must_be_whole: bool) -> list[str]:
    """List the differences between a database and the one made again.

    Unless it `must_be_whole`, the database may lack rows.
    """
    schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    if read_cells(here, schema) != read_cells(again, schema):
        return [f"{here.name} holds tables, views or triggers that are not ours"]
    rows, expected = ({row.pod: row for row in read_pods(path)} for path in (here, again))
    wrong = [pod for pod, row in rows.items() if not _is_equal(row, expected.get(pod))]
    if wrong:
        return [f"{here.name}: {shorten_list(wrong)} do not follow from specs, results and events"]
    behind = [
        pod
        for pod, row in expected.items()
        if pod not in rows or (row.epoch is not None and rows[pod].epoch is None)
    ]
    if behind:
        late = f"{here.name} is behind the results: {shorten_list(behind)}"
        return [late] if must_be_whole else []
    boards = [[row.pod for row in read_leaderboard(path)] for path in (here, again)]
    return [] if boards[0] == boards[1] else [f"{here.name} ranks the pods in another order"]


def _is_equal(row: StoredPod, expected: StoredPod | None) -> bool:
    """Compare two rows of a pod, except its progress; a row without a result may be incomplete."""
    return expected is not None and all(
        getattr(expected, name) == value
        for name, value in vars(row).items()
        if name not in _PROGRESS and (row.epoch is not None or value is not None)
    )


def check_ensemble(stored: StoredTournament, settings: TournamentSettings | None) -> Check:
    """Compare members and policy with those that the leaderboard makes."""
    described = stored.run.ensemble / "ensemble.json"
    describe = partial(
        _describe,
        "ensemble",
        "members and policy of the ensemble with those that the leaderboard makes",
    )
    if not stored.is_finished or set(stored.order) != set(stored.results):
        return describe((), "none yet")
    if not described.is_file():
        return describe((f"{described} is missing",))
    if settings is None:  # only the configuration has the number of members
        return describe((), "not made again: no settings were given")
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder)
        board = stored.rank(settings.leaderboard_size)
        try:
            for row in board.rows:
                stored.store.ensure_policy(row.result)
            again = build_ensemble(stored.run, board, settings, other)
            ensemble = read_ensemble(stored.run)
        except FintraderError as error:
            return describe((str(error),))
        if ensemble != again:
            problems.append("ensemble.json does not follow from the leaderboard")
        policy = stored.run.ensemble / "policy.safetensors"
        if not policy.is_file() or read_bytes(policy) != read_bytes(other / policy.name):
            problems.append("ensemble/policy.safetensors is not the one that its members make")
    return describe(
        problems, f"{', '.join(ensemble.members)}, made again from the leaderboard, and equal"
    )
