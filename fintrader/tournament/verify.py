"""Whether all that a tournament's folder says follows from the rest of it.

Specs, results, the event log and `tournament.json` carry a seal. Beyond seals, everything that is a
function of something else is computed again and compared: specs from the seed and the results they
had seen, the leaderboard's database from specs, results and log, the ensemble from the leaderboard.
`repair.py` makes those again, and sets aside what is not what was written.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from fintrader.agents.settings import AgentSettings
from fintrader.errors import FintraderError, TournamentError
from fintrader.files import read_bytes, read_json, refuse_unsafe_database
from fintrader.results.audit import Check
from fintrader.results.leaderboard_reader import dropped_pods, read_leaderboard, read_pods
from fintrader.runs import POD_NAME, RunFolder
from fintrader.seeding import derive
from fintrader.storage.mirror import find_mirror
from fintrader.tournament import lease as leases
from fintrader.tournament.at_work import at_work_in
from fintrader.tournament.ensemble import build_ensemble
from fintrader.tournament.events import applied_order, owner_of, read_log
from fintrader.tournament.generator import Generator
from fintrader.tournament.inheritance import Inheritance
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.schedulers import scheduler_of
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.status import make_index, settings_of
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import submit

_MARKS = ("tournament.json", "events.jsonl", "pods")
"""What shows that a folder holds a tournament."""
_CHANGES = ("state", "attempts", "reason", "device", "seconds", "started", "finished")
"""Columns of the database that say how it is going, or how it went."""


@dataclass
class Found:
    """What lies in a folder, as far as it is whole."""

    run: RunFolder
    store: RunStore
    generator: Generator | None
    """None: by the settings in `tournament.json`, where those are of agents that come with the
    package."""
    events: list[dict[str, Any]] = field(default_factory=list)
    broken_lines: list[int] = field(default_factory=list)
    specs: dict[str, PodSpec] = field(default_factory=dict)
    results: dict[str, PodResult] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Pods whose spec is missing or not whole, and what is wrong."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Pods whose result is not whole, or not of their spec and files, and what is wrong."""

    @classmethod
    def of(cls, run: RunFolder, generator: Generator | None) -> Found:
        found = cls(run, open_store(run, find_mirror(run.root)), generator)
        found.events, found.broken_lines = read_log(run.events)
        for pod in found.pods:
            try:
                found.specs[pod] = found.store.read_spec(pod)
                if (found.specs[pod].pod, found.specs[pod].index) != (pod, int(pod[1:])):
                    found.broken[pod] = f"{pod}: its spec is that of {found.specs.pop(pod).pod}"
            except TournamentError as error:
                found.broken[pod] = str(error)
        for pod in found.pods:
            try:
                if found.store.has_result(pod):
                    found.results[pod] = found.store.read_result(pod)
            except TournamentError as error:
                found.unusable[pod] = str(error)
        return found

    @cached_property
    def pods(self) -> list[str]:
        """Every pod up to the last that anything speaks of, in order."""
        numbers = {int(pod[1:]) for pod in self._named} - {int(pod[1:]) for pod in self.strays}
        return [f"p{number:04d}" for number in range(max(numbers, default=-1) + 1)]

    @cached_property
    def strays(self) -> list[str]:
        """Pods' folders of numbers that no tournament of so many pods has come to."""
        numbers = (
            event["pods"]
            for event in self.of_kind("started", "resumed")
            if isinstance(event.get("pods"), int)
        )
        most = max(numbers, default=0) + 2 * len(self._named)
        return sorted(pod for pod in self._named if int(pod[1:]) >= most)

    @cached_property
    def _named(self) -> set[str]:
        """Pods that have a spec or a result, or that the log speaks of."""
        folders = [
            path
            for path in self.run.pods.glob("p[0-9]*")
            if any(map(os.path.lexists, _records_in(path)))
        ]
        named = {path.name for path in folders} | {str(event.get("pod")) for event in self.events}
        return {pod for pod in named if POD_NAME.fullmatch(pod)}

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") in kinds]

    @cached_property
    def order(self) -> list[str]:
        """Pods as they were applied."""
        return applied_order(self.events)

    @property
    def settings(self) -> TournamentSettings:
        return settings_of(self.store)

    @property
    def finished(self) -> bool:
        """Every pod has a result that was counted, and the end was noted."""
        return bool(self.of_kind("finished")) and set(self.order) == set(self.pods)

    @cached_property
    def adopted(self) -> set[str]:
        """Specs that one made whose leaderboard is not on the log."""
        return {str(event["pod"]) for event in self.of_kind("adopted")}

    @property
    def ours(self) -> bool:
        """Whether the agents come with the package, and so does what makes the ensemble."""
        try:
            return self.generator is None and bool(self.made_by())
        except FintraderError:
            return False

    def made_by(self) -> Generator:
        """Raises TournamentError where `tournament.json` is damaged or of agents that nobody knows
        here."""
        if self.generator is not None:
            return self.generator
        known = self.store.identity()
        settings = settings_of(self.store)
        try:
            agents = tuple(
                TypeAdapter[Any](AgentSettings).validate_python(one) for one in known["agents"]
            )
        except ValidationError:
            raise TournamentError("its agents are not ours to make") from None
        inherited = Inheritance.read(self.run)
        entries = () if inherited is None else inherited.entries
        return Generator(settings, agents, known["env"], known["seed"], known["data_hash"], entries)

    @cached_property
    def foreign(self) -> str:
        """Which of log and `tournament.json` is of another tournament, where they are of two; `""`:
        neither."""
        try:
            known = self.store.identity()
        except TournamentError:
            return ""
        owner = owner_of(self.events)
        if owner is None:  # begun before logs said whose they are
            same = all(event.get("seed") == known["seed"] for event in self.of_kind("started"))
        else:
            same = owner == self.store.identity_digest()
        return "" if same else "events.jsonl" if self._of_identity(known) else "tournament.json"

    def _of_identity(self, known: Mapping[str, Any]) -> bool:
        """Whether the specs are of what `tournament.json` says, as far as that shows without the
        log."""
        first = self.specs.get("p0000")
        if first is None:
            return True
        said = derive(known["seed"], "pod", 0), known["data_hash"], known["env"]
        if said != (first.seed, first.data_hash, first.env):
            return False
        derived = derived_or_none(self)
        sure = (
            derived
            if scheduler_of(self.settings).needs(0) is not None
            else {"p0000"} & derived.keys()
        )
        return all(self.specs.get(pod, derived[pod]) == derived[pod] for pod in sure)

    def derived(self) -> dict[str, PodSpec]:
        """Specs as they follow from seed, number and the results seen, by pod; left out where those
        are not known.

        Raises TournamentError as `made_by`.
        """
        generator = self.made_by()
        scheduler = scheduler_of(generator.settings)
        said = {str(event["pod"]): int(event["seen"]) for event in self.of_kind("proposed")}
        board = Leaderboard(generator.settings.leaderboard_size, generator.settings.niche)
        specs = dict[str, PodSpec]()
        order = self.order if scheduler.needs(0) is None else self.pods
        for index, pod in enumerate(self.pods):
            needs = scheduler.needs(index)
            seen = needs if needs is not None else said.get(pod)
            if (
                pod in self.adopted
                or seen is None
                or seen < len(board.applied)
                or seen > len(order)
            ):
                continue
            for before in order[len(board.applied) : seen]:
                spec = self.specs.get(before) or specs.get(before)
                if spec is None or before not in self.results:
                    return specs
                submit(board, FinishedPod(spec, self.results[before]))
            specs[pod] = scheduler.make(index, board, generator)
        return specs


def _records_in(pod: Path) -> list[Path]:
    return [pod / "spec.json", pod / "result.json"]


def tournaments(home: RunFolder) -> list[RunFolder]:
    """The tournaments of a run: its own, those of its folds, their null models. Raises
    TournamentError without any."""
    places = [home.root, *sorted((home.root / "folds").glob("*"))]
    folders = [folder for place in places for folder in (place, place / "null_model")]
    found = [
        RunFolder(folder) for folder in folders if any((folder / name).exists() for name in _MARKS)
    ]
    if not found:
        raise TournamentError(
            f"{home.root} holds no tournament; start one with `fintrader tournament CONFIG`"
        )
    return found


def follows(run: RunFolder, generator: Generator) -> bool:
    """Whether the specs that are in a folder are those that `generator` makes."""
    found = Found.of(run, generator)
    derived = found.derived()
    return bool(derived) and all(
        found.specs.get(pod, spec) == spec for pod, spec in derived.items()
    )


def verify(
    run: RunFolder, settings: TournamentSettings | None = None, generator: Generator | None = None
) -> list[Check]:
    """Every check of a finished or stopped tournament. `settings`: today's, by which the ensemble
    is made.

    Raises TournamentError when it is running, or the folder holds none.
    """
    if leases.is_held(run, find_mirror(run.root)) or at_work_in(run):
        raise TournamentError(f"{run.root} is running; verify it when it has ended")
    if wrong := run.misplaced():
        return [
            Check("files", tuple(f"{path} stands where something else belongs" for path in wrong))
        ]
    found = Found.of(run, generator)
    find_foreign(found)
    checks = [identity_check(found), _log(found), _specs(found), _results(found)]
    if all(check.ok for check in checks):
        checks += [index_check(found), ensemble_check(found, settings)]
    return checks


def identity_check(found: Found) -> Check:
    """Whether `tournament.json` is whole, and of these pods."""
    try:
        found.store.identity()
    except TournamentError as error:
        return Check("settings", (str(error),))
    if found.foreign == "tournament.json":
        return Check("settings", ("tournament.json is of another tournament",))
    return Check("settings", (), "tournament.json is as it was written")


def _log(found: Found) -> Check:
    problems = []
    if found.broken_lines:
        shown = ", ".join(map(str, found.broken_lines[:5]))
        problems.append(
            f"events.jsonl: lines {shown} are not as they were written, or not in their place"
        )
    if found.pods and not found.events:
        problems.append("events.jsonl is missing or empty")
    if found.foreign == "events.jsonl":
        problems.append("events.jsonl is the log of another tournament")
    applied = [str(event["pod"]) for event in found.of_kind("applied")]
    problems += [
        f"{pod} was applied {applied.count(pod)} times"
        for pod in found.order
        if applied.count(pod) > 1
    ]
    return Check(
        "events",
        tuple(problems),
        f"{len(found.events)} lines, each as it was written, in their order",
    )


def _specs(found: Found) -> Check:
    problems = [
        *found.broken.values(),
        *(f"{pod} is of no pod of this run" for pod in found.strays),
    ]
    said = f"{len(found.specs)}, each as it was written"
    try:
        derived = found.derived()
    except FintraderError as error:
        return Check("specs", tuple(problems), f"{said}; not made again: {error}")
    other = [pod for pod, spec in derived.items() if found.specs.get(pod, spec) != spec]
    if other:
        problems.append(
            f"{', '.join(other[:5])} do not follow from the seed and the results that they had seen"
        )
    same = sum(pod in found.specs for pod in derived)
    return Check(
        "specs",
        tuple(problems),
        f"{said}; {same} made again from the seed and what they had seen, and equal",
    )


def find_foreign(found: Found) -> None:
    """Specs and results that are whole but belong to something else."""
    if found.foreign:
        return  # first the one that is
    scored = {str(event["pod"]): event.get("score") for event in found.of_kind("applied")}
    dropped = dropped_pods(found.events)
    for pod, result in list(found.results.items()):
        if pod in scored and scored[pod] != result.score:
            _refuse(
                found,
                pod,
                f"scored {result.score} in result.json and {scored[pod]} in events.jsonl",
            )
        elif pod in dropped:
            continue
        elif result.snapshot is not None and not found.store.intact(result.snapshot):
            _refuse(found, pod, f"its snapshot {result.snapshot[:12]} is missing or damaged")
        elif not found.store.has_policy(result):
            _refuse(found, pod, "its policy is missing or damaged")
    for pod, spec in derived_or_none(found).items():
        own = found.results.get(pod)
        known = found.specs.get(pod)
        if known not in (None, spec) and (own is None or own.spec == spec.digest):
            found.broken[pod] = (
                f"{pod}: its spec does not follow from the seed and the results that it had seen"
            )
            del found.specs[pod]
    for pod, spec in found.specs.items():
        own = found.results.get(pod)
        if own is not None and (own.pod, own.spec) != (pod, spec.digest):
            _refuse(found, pod, "its result belongs to another spec")


def _refuse(found: Found, pod: str, why: str) -> None:
    found.unusable[pod] = f"{pod}: {why}"
    del found.results[pod]


def _results(found: Found) -> Check:
    problems = list(found.unusable.values())
    gone = [pod for pod in found.order if pod not in found.results and pod not in found.unusable]
    if gone:
        problems.append(f"{', '.join(gone[:5])} were applied and have no result.json")
    ends = found.of_kind("finished")
    trials = sum(one.looks for one in found.results.values() if one.score is not None)
    if (
        ends
        and set(found.order) == set(found.results)
        and found.events[-1] == ends[-1]
        and ends[-1]["trials"] != trials
    ):
        problems.append(
            f"events.jsonl finished with {ends[-1]['trials']} trials, and the results make {trials}"
        )
    return Check(
        "results", tuple(problems), f"{len(found.results)}, each of its spec, snapshot and policy"
    )


def index_check(found: Found) -> Check:
    """The database against one that is made from everything else."""
    path = found.run.leaderboard
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / path.name
        make_index(found.run, other)
        try:
            problems = _differences(path, other, whole=found.finished)
        except (FintraderError, sqlite3.Error) as error:
            problems = [str(error)]
    return Check("leaderboard", tuple(problems), "every row follows from specs, results and events")


def _differences(here: Path, there: Path, *, whole: bool) -> list[str]:
    """What a database says that another does not; unless it has to be `whole`, it may know less."""
    schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    if _rows(here, schema) != _rows(there, schema):
        return [f"{here.name} holds tables, views or triggers that are not ours"]
    ours, theirs = ({str(row["pod"]): row for row in read_pods(path)} for path in (here, there))
    wrong = []
    for pod, row in ours.items():
        said = {name: value for name, value in row.items() if name not in _CHANGES}
        again = theirs.get(pod, {})
        told = row["epoch"] is not None
        if any(
            again.get(name) != value for name, value in said.items() if told or value is not None
        ):
            wrong.append(pod)
    if wrong:
        return [f"{here.name}: {', '.join(wrong[:5])} are not what specs, results and events say"]
    behind = [
        pod
        for pod, row in theirs.items()
        if row["epoch"] is not None and ours.get(pod, {}).get("epoch") is None
    ]
    if behind or ours.keys() < theirs.keys():
        return (
            [] if not whole else [f"{here.name} is behind the results: {', '.join(behind[:5])} ..."]
        )
    boards = [[row["pod"] for row in read_leaderboard(path)] for path in (here, there)]
    return [] if boards[0] == boards[1] else [f"{here.name} has another order"]


def _rows(path: Path, query: str) -> list[Any]:
    refuse_unsafe_database(path, writes=False)
    with closing(
        sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=10)
    ) as connection:
        return connection.execute(query).fetchall()


def board_of(found: Found, size: int) -> Leaderboard:
    board = Leaderboard(size)
    for pod in found.order:
        submit(board, FinishedPod(found.specs[pod], found.results[pod]))
    return board


def ensemble_check(found: Found, settings: TournamentSettings | None) -> Check:
    """The members and the policy against those that the leaderboard makes."""
    described = found.run.ensemble / "ensemble.json"
    if not found.finished or set(found.order) != set(found.results):
        return Check("ensemble", (), "none yet")
    if not described.is_file():
        if found.ours:
            return Check("ensemble", (f"{described} is missing",))
        return Check("ensemble", (), "not made by us, so not made again")
    wanted = settings or found.settings
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder)
        board = board_of(found, wanted.leaderboard_size)
        try:
            for row in board.rows:
                found.store.ensure_policy(row.result)
            build_ensemble(found.run, board, wanted, other)
            said = read_json(described)
        except FintraderError as error:
            return Check("ensemble", (str(error),))
        problems = []
        if said != read_json(other / described.name):
            problems.append("ensemble.json does not follow from the leaderboard")
        paths = [one / "policy.safetensors" for one in (found.run.ensemble, other)]
        if not paths[0].is_file() or read_bytes(paths[0]) != read_bytes(paths[1]):
            problems.append("ensemble/policy.safetensors is not what its members make")
    return Check(
        "ensemble",
        tuple(problems),
        f"{', '.join(said['members'])}, made again from the leaderboard, and equal",
    )


def derived_or_none(found: Found) -> Mapping[str, PodSpec]:
    """The same, and none where nobody can tell."""
    try:
        return found.derived()
    except FintraderError:
        return {}
