"""Recount and repair of a tournament, with random faults in any file: the run ends equal, or in one
line that says what to do."""

import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from fintrader.errors import FintraderError, RunError, TournamentError, UnsafePathError
from fintrader.files import seal, unseal
from fintrader.runs import RunFolder
from fintrader.tournament import lease
from fintrader.tournament.events import EventLog
from fintrader.tournament.recount import check_tournament
from fintrader.tournament.repair import repair
from fintrader.tournament.store import RunStore
from tests.engines import chaos, faults
from tests.engines.chaos import everything
from tests.engines.races import settings
from tests.quick import mostly_slow, slow_but
from tests.tournament.conftest import PODS

WANTED = settings(pods=PODS, workers=2, order="submission", fresh=0.2)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """As a kill in the middle of a pod left it. Nobody may change it."""
    run = RunFolder(tmp_path_factory.mktemp("stopped") / "run")
    assert chaos.kill_at_work(run, PODS).hits == 1
    return run


@pytest.fixture
def run(tmp_path, undisturbed):
    """A finished tournament, to be changed."""
    return RunFolder(Path(shutil.copytree(undisturbed.root, tmp_path / "run")))


def problems(run):
    return check_tournament(run).problems


def again(run):
    """The same command once more: nothing, or the one line that it ended with."""
    line = ""
    try:
        chaos.race(run, PODS)
    except FintraderError as error:
        line = str(error)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("seeds", "whole"),
    [
        (range(5), True),
        pytest.param(range(24, 28), False, marks=pytest.mark.slow),
        pytest.param(range(5, 20), True, marks=pytest.mark.slow),
        pytest.param(range(28, 40), False, marks=pytest.mark.slow),
        pytest.param(range(100, 600), True, marks=pytest.mark.slow),
        pytest.param(range(600, 1100), False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_fault_in_any_file(tmp_path, undisturbed, stopped, seeds, whole):
    expected = everything(undisturbed)
    refused = 0
    for seed in seeds:
        run = RunFolder(tmp_path / str(seed))
        shutil.copytree((undisturbed if whole else stopped).root, run.root)
        what = f"seed {seed}, {faults.strike(run.root, seed)}"
        try:
            said = problems(run)
        except FintraderError as error:
            said = [str(error)]
        if whole and not said and "ensemble" not in what:
            assert everything(run) == expected, f"{what}: nobody noticed"
        line = again(run)
        refused += bool(line)
        if line:
            repair(run)
            assert again(run) == "", f"{what}: {line}"
        assert everything(run) == expected, what
        assert not problems(run), what
        shutil.rmtree(run.root)
    assert 0 < refused < len(seeds)


def test_a_pods_record_in_place_of_the_tournaments_is_damage_and_no_other_version(
    tmp_path, stopped
):
    """Both have `env`, `seed` and `data_hash`: half of the tournament's fields."""
    run = RunFolder(shutil.copytree(stopped.root, tmp_path / "run"))
    spec = next(run.root.glob("pods/*/spec.json"))
    RunStore(run).identity_path.write_bytes(spec.read_bytes())
    assert again(run) == ""  # it is made anew
    assert not problems(run)


def test_a_whole_run_passes_and_a_running_one_is_left_alone(run, stopped):
    assert problems(run) == []
    assert problems(stopped) == []
    with lease.acquire(run, None), pytest.raises(TournamentError, match="is running"):
        check_tournament(run)


def edit(path, **changes):
    """Change a record and leave its seal."""
    values = json.loads(path.read_bytes())
    path.write_text(json.dumps(values | changes, indent=2, sort_keys=True))


def forge(path, **changes):
    """Change a record and seal it anew."""
    path.write_bytes(seal(unseal(path.read_bytes(), AssertionError()) | changes, indent=2))


def add_field(body):
    return body | {"colour": "red"}


def drop_field(body):
    return {name: body[name] for name in sorted(body)[:-1]}


@pytest.mark.parametrize("change", [add_field, drop_field])
@pytest.mark.parametrize(
    "name", ["pods/p0001/result.json", "pods/p0002/spec.json", "tournament.json", "events.jsonl"]
)
def test_a_file_of_another_version_is_refused_and_left_as_it_is(run, name, change):
    """Newer or older: nothing takes it for damaged, and trains again."""
    path = run.root / name
    data = path.read_bytes()
    first = data[: data.index(b"\n") + 1] if name == "events.jsonl" else data
    record = seal(change(unseal(first, AssertionError())))
    path.write_bytes(record + data.removeprefix(first))

    def read():
        files = (path, *run.root.glob("*.json"), *run.pods.rglob("*.json"))
        return {file: file.read_bytes() for file in files}

    before = read()
    refusal = rf"{name} is of another version .*go on with the version of fintrader that the run's"
    assert re.search(refusal, again(run))
    for act in (problems, repair):
        with pytest.raises(RunError, match=refusal):
            act(run)
    assert read() == before


@pytest.mark.parametrize("change", [edit, forge])
def test_another_score_or_seed_is_found_out_and_mended(run, undisturbed, change):
    store = RunStore(run)
    score = store.read_result("p0001").score
    change(store.locate_result("p0001"), score=score + 100)
    change(store.locate_spec("p0002"), seed=7)
    said = " ".join(problems(run))
    assert "p0001" in said
    assert "p0002" in said
    done = repair(run)
    assert any("p0001" in line and "trained again" in line for line in done)
    assert any("p0002" in line for line in done)
    assert again(run) == ""
    assert problems(run) == []
    assert everything(run) == everything(undisturbed)
    assert list(run.pod("p0001").glob("result.damaged-1.json"))  # renamed, not deleted


def test_another_record_in_the_place_of_a_result_is_moved_away(run, undisturbed):
    """It is no result of another version."""
    store = RunStore(run)
    shutil.copyfile(store.locate_spec("p0002"), store.locate_result("p0001"))
    assert any("p0001" in problem for problem in problems(run))
    repair(run)
    assert again(run) == ""
    assert everything(run) == everything(undisturbed)


def test_a_pod_folder_that_is_gone_is_made_again(run, undisturbed):
    shutil.rmtree(run.pod("p0002"))
    assert "verify" in again(run)
    assert any("p0002" in problem for problem in problems(run))
    assert any("p0002: its spec is rebuilt" in line for line in repair(run))
    assert again(run) == ""
    assert everything(run) == everything(undisturbed)


@pytest.mark.parametrize("what", mostly_slow("nowhere", every=faults.PLACED))
def test_what_stands_in_the_place_of_a_file_or_a_folder_is_moved_away(tmp_path, undisturbed, what):
    files = ["spec.json", "result.json", "policy.safetensors"]
    names = [
        "pods",
        "pods/p0001",
        "snapshots",
        "tournament.json",
        "events.jsonl",
        "leaderboard.sqlite",
        "ensemble",
    ]
    names += [f"pods/p0001/{name}" for name in files]
    for name in names:
        run = RunFolder(Path(shutil.copytree(undisturbed.root, tmp_path / name.replace("/", "-"))))
        faults.misplace(run.root / name, what)
        if name == "ensemble" and what == "folder":
            continue  # an empty one: see below
        try:
            said = problems(run)
        except TournamentError as error:
            said = [str(error)]
        assert said, f"{name}: a {what} was not noticed"
        repair(run)
        assert again(run) == "", f"{name}: {what}"
        assert everything(run) == everything(undisturbed), f"{name}: {what}"
        assert problems(run) == []


LINKS = (
    "pods",
    "pods/p0001",
    "snapshots",
    "ensemble",
    "lease",
    "events.jsonl",
    "tournament.json",
    ".tournament.lock",
    "leaderboard.sqlite",
    "leaderboard.sqlite-wal",
    "leaderboard.sqlite-shm",
    "leaderboard.sqlite-journal",
    "pods/p0001/result.json",
    "pods/p0001/.lock",
    f"pods/p{PODS:04d}",
)
HELD = ("lease", ".tournament.lock")
"""Nothing can be set aside without these."""


@pytest.mark.parametrize("name", slow_but(0, 5, 8, every=LINKS))
def test_nothing_is_written_through_a_link_into_another_run(run, undisturbed, tmp_path, name):
    other = Path(shutil.copytree(run.root, tmp_path / "other"))
    place = run.root / name
    target = other / name
    if not target.exists():
        target.mkdir() if target.parent.name == "pods" else target.touch()
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}

    def unharmed():
        return {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before

    with pytest.raises(UnsafePathError, match=rf"{name} is a symbolic link inside a run's folder"):
        chaos.race(run, PODS + 1)
    assert unharmed()
    if name in HELD:
        with pytest.raises(UnsafePathError, match="symbolic link"):
            repair(run)
        place.unlink()  # as the message says
    else:
        repair(run)
        assert not place.is_symlink()
    assert again(run) == ""
    assert everything(run) == everything(undisturbed)
    assert unharmed()
    RunStore(run).sweep()
    assert unharmed()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    slow_but(0, 5, 12, every=[*LINKS, "lease/000001.json", "pods/p0001/metrics.jsonl", "logs"]),
)
def test_a_pipe_is_set_aside_or_refused_and_not_waited_for(run, undisturbed, name):
    place = run.root / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    try:
        problems(run)
        repair(run)
    except UnsafePathError as error:
        assert f"{name} is a pipe" in str(error) or "lease is not a folder" in str(error)  # noqa: PT017
        place.unlink()
    assert again(run) == ""
    assert everything(run) == everything(undisturbed)


def test_a_pod_is_trained_although_a_folder_stands_where_its_policy_goes(run, undisturbed):
    faults.misplace(run.pod("p0001") / "policy.safetensors", "folder")
    assert again(run) == ""  # without `verify`
    assert everything(run) == everything(undisturbed)


@pytest.mark.parametrize("name", ["", "-wal", "-shm"])
def test_a_database_that_nobody_can_write_to_is_made_again(run, undisturbed, name):
    place = Path(f"{run.leaderboard}{name}")
    place.touch()
    faults.misplace(place, "folder")
    assert again(run) == ""
    assert everything(run) == everything(undisturbed)


def test_folders_of_no_pod_are_passed_over(run, undisturbed):
    for name in ("p9999", "p999999999", "p1²", "p0001.old"):
        run.pod(name).mkdir()
    assert problems(run) == []
    shutil.copy(run.pod("p0001") / "spec.json", run.pod("p999999999"))
    assert any("p999999999 belongs to no pod of this run" in problem for problem in problems(run))
    repair(run)
    assert problems(run) == []
    assert again(run) == ""
    assert everything(run) == everything(undisturbed)


@pytest.mark.parametrize("name", ["events.jsonl", "tournament.json"])
def test_a_file_of_another_run_is_found_out_and_costs_no_result(run, undisturbed, tmp_path, name):
    other = RunFolder(tmp_path / "other")
    chaos.race(other, PODS, seed=6)
    shutil.copy(other.root / name, run.root / name)
    before = chaos.acknowledged(run)
    assert any(
        f"{name} " in problem and "another tournament" in problem for problem in problems(run)
    )
    assert "another tournament" in again(run)
    repair(run)
    assert again(run) == ""
    assert problems(run) == []
    assert everything(run) == everything(undisturbed)
    assert chaos.acknowledged(run) == before


def test_specs_of_a_run_by_arrival_are_made_again_from_what_they_had_seen(tmp_path):
    run = RunFolder(tmp_path / "run")
    wanted = settings(pods=12, workers=3, order="arrival", fresh=0.2)
    race = partial(chaos.stub_race_of, run, wanted)
    race()
    assert problems(run) == []
    store = RunStore(run)
    spec = store.read_spec("p0008")
    whole = everything(run)
    assert spec.seen > 2
    store.locate_spec("p0008").write_bytes(b"half")
    repair(run)
    assert store.read_spec("p0008") == spec
    race()
    assert everything(run) == whole


def test_other_settings_are_not_taken_for_those_of_a_lost_note(run, undisturbed):
    RunStore(run).identity_path.unlink()
    with pytest.raises(TournamentError, match="these settings make other pods"):
        chaos.stub_race_of(run, WANTED.model_copy(update={"resample": 0.5}))
    assert again(run) == ""
    assert everything(run) == everything(undisturbed)


def test_what_is_foreign_in_the_database_does_not_survive(run, undisturbed):
    for statement in faults.SQL[4:6]:
        with closing(sqlite3.connect(run.leaderboard)) as connection:
            connection.executescript(statement)
    assert any("not ours" in problem for problem in problems(run))
    repair(run)
    assert problems(run) == []
    with closing(sqlite3.connect(run.leaderboard)) as connection:
        assert (
            connection.execute(
                "SELECT name FROM sqlite_master WHERE name LIKE 'foreign%'"
            ).fetchall()
            == []
        )
    assert everything(run) == everything(undisturbed)


def test_lines_of_the_log_are_numbered(run):
    lines = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    with pytest.raises(
        TournamentError, match=r"line 4 is not as it was written, or not in its place"
    ):
        EventLog(run.events)
