"""`fintrader verify` and `fintrader looks`: a run as it was made passes, and every change of it
shows."""

import contextlib
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fintrader.backtesting import read_backtest
from fintrader.errors import FintraderError
from fintrader.files import read_json, seal, unseal, write_json
from fintrader.pipeline.config import load_config
from fintrader.pipeline.run_stages import run as run_stages
from fintrader.pipeline.run_stages import walk_forward
from fintrader.pipeline.verification import check_replay
from fintrader.results.tournament_events import FinishEvent, read_events
from fintrader.tournament.events import EventLog
from fintrader.verdict.looks import HOME, Ledger
from tests.cli.test_commands import complaint
from tests.engines.runs import TINY, fintrader, write_config
from tests.quick import slow_but

pytestmark = pytest.mark.usefixtures("in_this_process")
SMALL = TINY["tournament"] | {
    "pods": 2,
    "budget": {"env_steps": 256},
    "leaderboard_size": 2,
    "ensemble_size": 2,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a finished run, not to be changed; the ledger is in the same runs folder."""
    config = load_config(write_config(tmp_path_factory.mktemp("made"), tournament=SMALL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME, str(config.runs_dir))
        return run_stages(config)


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """The same, to be changed."""
    copy = Path(shutil.copytree(made.parent, tmp_path / "runs")) / made.name
    monkeypatch.setenv(HOME, str(copy.parent))
    return copy


def verify(run, *words):
    return fintrader("verify", str(run), *words)


def test_a_run_as_it_was_made_passes(run):
    done = verify(run)
    assert done.status == 0, done.out
    assert "ok     trials: 2, as the manifest says" in done.out
    assert "2 trials, look 1 at these bars (line 1)" in done.out
    assert "all 15 checks passed" in done.out
    told = fintrader("looks", "--runs-dir", str(run.parent))
    assert told.status == 0, told.out
    assert "4: " in told.out
    assert read_backtest(run / "backtest").changed == ""
    before = Ledger(run.parent).path.read_bytes()
    fintrader("run", str(run / "config.yaml"), "--runs-dir", str(run.parent))
    assert Ledger(run.parent).path.read_bytes() == before, "shown again, a result is no look"


def values(name, **changes):
    def edit(run):
        write_json(run / name, read_json(run / name) | changes)

    return edit


def sealed(name, **changes):
    """The same, sealed anew."""

    def edit(run):
        data = (run / name).read_bytes()
        (run / name).write_bytes(seal(unseal(data, AssertionError(name)) | changes, indent=2))

    return edit


def without(name):
    def edit(run):
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return edit


def lines_without(event):
    def edit(run):
        path = run / "events.jsonl"
        kept = [
            line
            for line in path.read_text().splitlines(keepends=True)
            if f'"event": "{event}"' not in line
        ]
        path.write_text("".join(kept))

    return edit


def a_pod_from_everywhere(run):
    """The last pod, its events and its share of every sum, as somebody does who knows the files."""
    shutil.rmtree(run / "pods" / "p0001")
    events = [
        replace(event, trials=1) if isinstance(event, FinishEvent) else event
        for event in read_events(run / "events.jsonl")
        if getattr(event, "pod", "") != "p0001"
    ]
    (run / "events.jsonl").unlink()
    EventLog(run / "events.jsonl").append(*events)
    for name in ("manifest.json", "ensemble/ensemble.json", "backtest/context.json"):
        write_json(run / name, read_json(run / name) | {"trials": 1})


def a_table(run):
    path = run / "backtest" / "equity.parquet"
    table = pd.read_parquet(path)
    table["equity_usd"] *= 1.01
    table.to_parquet(path, index=False)


def a_snapshot(run):
    next((run / "snapshots").iterdir()).write_bytes(b"another")


def a_line_of_the_ledger(run):
    path = run.parent / "looks.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[1])


def the_ledgers_end(run):
    path = run.parent / "looks.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def the_result_and_its_seal(run):
    """Edited, and sealed anew as fintrader itself seals."""
    from fintrader.results.backtest_files import hash_files, make_seal, read_seal
    from fintrader.results.folders import Folder

    home = run / "backtest"
    look = read_seal(Folder(home.resolve()))["look"]
    values("backtest/metrics.json", ensemble={"sharpe": 9.0})(run)
    (home / "seal.json").write_bytes(make_seal(hash_files(home), look))


def the_whole_ledger(run):
    """Written anew, its chain whole, with fewer trials."""
    path = run.parent / "looks.jsonl"
    lines = []
    before = json.loads(path.read_bytes().splitlines()[0])["before"]
    for raw in path.read_bytes().splitlines():
        body = json.loads(raw)
        del body["sha256"]
        body |= {"before": before} | ({"trials": 1} if "trials" in body else {})
        lines.append(seal(body))
        before = json.loads(lines[-1])["sha256"]
    path.write_bytes(b"".join(lines))


CHEATS = [
    (
        values("manifest.json", trials=1),
        "manifest.json says 1 trials, and the run's files hold 2",
    ),
    (values("manifest.json", data_hash="0" * 64), "name different bars"),
    (sealed("pods/p0001/result.json", score=None), "in events.jsonl"),
    (without("pods/p0001"), "pods/p0001/spec.json does not exist"),
    (
        without("pods/p0001/result.json"),
        "p0001 were applied and have no result.json: it was deleted",
    ),
    (without("events.jsonl"), "events.jsonl is missing"),
    (lines_without("finished"), "does not say that the tournament finished"),
    (lines_without("applied"), "p0000, p0001 have a result that events.jsonl never counted"),
    (a_pod_from_everywhere, "1 snapshots belong to no result: pods were deleted"),
    (a_snapshot, "was changed"),
    (without("snapshots"), "is missing or damaged"),
    (without("config.yaml"), "config.yaml is missing"),
    (
        lambda run: (run / "config.yaml").write_text("seed: 3\n") and None,
        "config.yaml does not have the hash in manifest.json",
    ),
    (values("backtest/context.json", trials=1), "context.json differs from its seal"),
    (values("backtest/verdict.json", verdict="Skill."), "verdict.json differs from its seal"),
    (
        values("backtest/metrics.json", ensemble={"sharpe": 9.0}),
        "metrics.json differs from its seal",
    ),
    (a_table, "equity.parquet differs from its seal"),
    (without("backtest/sensitivity.json"), "sensitivity.json is missing"),
    (without("backtest/seal.json"), "it has no seal.json"),
    (without("backtest/report.html"), "report.html is missing"),
    (without("backtest"), "it was deleted"),
    (the_result_and_its_seal, "the ledger of looks does not have the hash of seal.json"),
    (a_line_of_the_ledger, "line 1 does not follow the line before it"),
    (the_ledgers_end, "the ledger of looks does not have the hash of seal.json"),
    (
        lambda run: (run.parent / "looks.jsonl").unlink(),
        "its look is on a ledger, and there is no ledger here",
    ),
    (the_whole_ledger, "its look is on another ledger"),
]


@pytest.mark.parametrize(("cheat", "said"), slow_but(*range(0, 80, 2), every=CHEATS))
def test_every_cheat_is_named(cheat, said, run):
    cheat(run)
    done = verify(run)
    assert done.status == 1, done.out
    assert said in done.out
    assert "WRONG" in done.out


def test_a_run_is_verified_and_mended(run):
    """Specs made again by real agents' settings, the ensemble from real policies."""
    done = verify(run)
    assert done.status == 0, done.out
    assert "2 made again from the seed and the results before them, and equal" in done.out, done.out
    assert "made again from the leaderboard, and equal" in done.out
    policy = run / "ensemble" / "policy.safetensors"
    whole = policy.read_bytes()
    spec = (run / "pods" / "p0001" / "spec.json").read_bytes()
    policy.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    sealed("pods/p0001/spec.json", seed=77)(run)
    done = verify(run)
    assert done.status == 1
    assert "p0001: its spec does not follow from the seed" in done.out
    done = verify(run, "--repair")
    assert done.status == 0, done.out
    assert (run / "pods" / "p0001" / "spec.json").read_bytes() == spec
    assert policy.read_bytes() == whole
    assert list((run / "ensemble").glob("policy.damaged-1.safetensors"))

    values("pods/p0000/result.json", score=99.0)(run)  # what cannot be derived is trained again
    assert verify(run, "--repair").status == 1
    stages = read_json(run / "manifest.json")["stages"]
    assert not any(stages[name]["done"] for name in ("tournament", "backtest"))
    again = fintrader("run", str(run / "config.yaml"), "--runs-dir", str(run.parent))
    assert again.status == 0, again.err
    assert policy.read_bytes() == whole
    done = verify(run)
    assert done.status == 0, done.out


def test_a_changed_result_is_seen_wherever_it_is_opened(run, tmp_path):
    values("backtest/context.json", trials=1)(run)
    sentence = "This result was changed after it was written: context.json differs from its seal"
    assert read_backtest(run / "backtest").changed.startswith(sentence)
    other = shutil.copytree(run, run.parent / "other")
    shown = fintrader("compare", str(run), str(other), "--out", str(tmp_path / "page.html"))
    assert shown.status == 0, shown.err
    assert sentence in shown.out
    assert sentence in (tmp_path / "page.html").read_text()
    assert sentence in fintrader("run", str(run / "config.yaml"), "--runs-dir", str(run.parent)).out


def test_a_result_from_elsewhere_is_noted_when_it_is_compared(run, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv(HOME, str(elsewhere))
    for name in ("one", "two"):
        shutil.copytree(run, elsewhere / name)
    words = (
        "compare",
        str(elsewhere / "one"),
        str(elsewhere / "two"),
        "--out",
        str(tmp_path / "page.html"),
    )
    for _ in range(2):
        assert fintrader(*words).status == 0
    (line,) = Ledger(elsewhere).looks()
    assert (line.look.kind, line.look.folder) == ("compare", "one")
    original = Ledger(run.parent).looks()[0].look
    assert (line.look.result, line.look.bars.key) == (original.result, original.bars.key)
    assert line.look.bars == original.bars
    told = fintrader("looks", "--runs-dir", str(elsewhere))
    assert (told.status, told.out.count("is on another ledger")) == (0, 2)


def test_notes_are_no_part_of_a_run_and_deletion_forgets_no_look(run, tmp_path):
    assert fintrader("runs", str(run), "--note", "mine", "--tags", "a", "--archived").status == 0
    assert verify(run).status == 0, verify(run).out
    before = Ledger(run.parent).path.read_bytes()
    assert fintrader("run", str(run / "config.yaml"), "--runs-dir", str(run.parent)).status == 0
    assert fintrader("runs", str(run), "--delete", "--yes").status == 0
    assert Ledger(run.parent).path.read_bytes() == before
    assert fintrader("looks", "--runs-dir", str(run.parent)).status == 0


def test_the_look_of_a_run_from_elsewhere_is_noted_before_it_is_deleted(run, tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path / "elsewhere"))
    shutil.copytree(run, tmp_path / "elsewhere" / "one")
    assert fintrader("runs", str(tmp_path / "elsewhere" / "one"), "--delete", "--yes").status == 0
    (line,) = Ledger(tmp_path / "elsewhere").looks()
    original = Ledger(run.parent).looks()[0].look
    assert (line.look.result, line.look.bars.key) == (original.result, original.bars.key)


@pytest.mark.slow
def test_the_looks_of_all_runs_are_counted(run):
    def again(cost):
        assert fintrader("backtest", str(run), "--env.cost-bps", cost).status == 0
        return int(read_backtest(run / "backtest").context.look)

    assert [again("1"), again("2"), again("1")] == [2, 3, 2]
    shutil.copytree(run, run.parent / "renamed")
    assert fintrader("backtest", str(run.parent / "renamed"), "--env.cost-bps", "3").status == 0
    assert read_backtest(run.parent / "renamed" / "backtest").context.look == 4
    told = fintrader("looks", "--runs-dir", str(run.parent))
    assert told.status == 0, told.out
    assert "renamed, tiny" in told.out
    assert verify(run).status == 0, verify(run).out


def test_a_broken_ledger_is_told_before_anything_is_counted_by_it(run):
    the_ledgers_end(run)
    Ledger(run.parent).record(Ledger(run.parent).looks()[0].look)
    assert fintrader("looks", "--runs-dir", str(run.parent)).status == 0, "the look itself is there"
    path = run.parent / "looks.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[1])
    told = fintrader("looks", "--runs-dir", str(run.parent))
    assert (told.status, "line 1 does not follow the line before it" in told.out) == (1, True)
    assert "line 1 does not follow the line before it" in complaint("backtest", str(run))
    path.unlink()
    told = fintrader("looks", "--runs-dir", str(run.parent))
    assert (told.status, "there is no ledger here: it was deleted" in told.out) == (1, True)


def test_a_run_that_has_not_finished_has_no_results_to_check(run, tmp_path):
    values("manifest.json", stages={})(run)
    done = verify(run)  # before its tournament has finished
    assert (done.status, "trials: 2" in done.out, "all 7 checks" in done.out) == (0, False, True)
    assert "no such file or folder" in complaint("verify", str(tmp_path / "nothing"))
    assert "no such folder" in complaint("looks", "--runs-dir", str(tmp_path / "nothing"))
    assert fintrader("looks", "--runs-dir", str(tmp_path)).status == 0


@pytest.mark.slow
def test_folds_null_models_kfold_and_inheritance_are_counted(made, tmp_path):
    one = SMALL | {"pods": 1, "ensemble_size": 1}
    controlled = {"null_model": True, "sensitivity": False, "tear_sheet": "none"}
    lengths = {
        "sessions": [8, 4, 6],
    }
    sizes = {
        "data": {"source": TINY["data"]["source"] | {"num_sessions": 26}},
        "walkforward": lengths,
    }
    heirs = write_config(
        tmp_path / "heirs", from_run=str(made), tournament=one, backtest=controlled, **sizes
    )
    inherited = run_stages(load_config(heirs))
    done = verify(inherited)
    assert done.status == 0, done.out
    assert "trials: 3, as the manifest says" in done.out
    (inherited / "inherited.json").write_text("{}")
    done = verify(inherited)
    assert done.status == 2
    assert "inherited.json is damaged" in done.err
    blocks = one | {"validation_folds": 2}
    folder = walk_forward(
        load_config(
            write_config(tmp_path / "rolling", tournament=blocks, backtest=controlled, **sizes)
        )
    )
    done = verify(folder)
    assert done.status == 0, done.out
    assert "results of folds/01" in done.out
    assert "trials: 2, as the manifest says" in done.out
    done = verify(folder)
    assert done.status == 0, done.out
    assert "specs of folds/01/null_model: 1, each as it was written; 1 made again" in done.out
    sealed("folds/01/null_model/pods/p0000/result.json", score=99.0)(folder)
    assert verify(folder, "--repair").status == 1
    walk_forward(load_config(folder / "config.yaml"))
    done = verify(folder)
    assert done.status == 0, done.out
    shutil.rmtree(folder / "folds" / "00")
    assert "the folder of an earlier fold is missing" in verify(folder).out


# --- what no command waits for, reads through or writes through -----------------------------------

# Those of a tournament alone are struck in tests/tournament/test_recount.py.
PLACES = (
    "config.yaml",
    "progress.json",
    "manifest.json",
    ".lock",
    "events.jsonl",
    "leaderboard.sqlite",
    "ensemble/ensemble.json",
    "pods/p0000/policy.safetensors",
    "backtest/metrics.json",
    "backtest/equity.parquet",
)
FOLDERS = ("pods/p0000", "snapshots", "ensemble", "backtest", "null_model", "folds", "logs")


def cleared(place):
    """Make room for something else."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    return place


def answers(run):
    """Every command's answer on a run; each ends, in at most one line on standard error."""
    changed = ("--runs-dir", str(run.parent), "--tournament.pods", "3")
    commands = {
        "status": ("status", str(run)),
        "verify": ("verify", str(run)),
        "backtest": ("backtest", str(run)),
        "run": ("run", str(run / "config.yaml"), *changed),
        "verify --repair": ("verify", str(run), "--repair"),
    }
    found = {name: fintrader(*words) for name, words in commands.items()}
    for name, done in found.items():
        assert done.status in (0, 1, 2), name
        assert done.status != 2 or (
            done.err.count("\n") == 1 and done.err.startswith("fintrader: ")
        ), done.err
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", slow_but(0, 4, 7, every=PLACES))
def test_a_pipe_in_the_place_of_a_file_holds_up_no_command(run, name):
    os.mkfifo(cleared(run / name))
    found = answers(run)
    assert f"{name} is a pipe" in found["run"].err
    assert found["backtest"].status == 2


@pytest.mark.parametrize("name", slow_but(0, 3, 5, 8, every=[*PLACES[::2], *FOLDERS]))
def test_no_command_writes_through_a_link_into_another_run(run, name):
    other = Path(shutil.copytree(run, run.parent / "other"))
    if not (other / name).exists():
        (other / name).mkdir() if name in FOLDERS else (other / name).touch()
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    cleared(run / name).symlink_to(other / name)
    found = answers(run)
    for command in ("run", "backtest"):
        assert f"{run / name} is a symbolic link inside a run's folder" in found[command].err
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_the_folder_of_runs_and_that_of_a_run_may_be_links(run, tmp_path):
    (tmp_path / "linked").symlink_to(run.parent)
    (run.parent / "also").symlink_to(run)
    for place in (tmp_path / "linked" / run.name, run.parent / "also"):
        for command in ("status", "verify"):
            done = fintrader(command, str(place))
            assert done.status == 0, (command, done.out, done.err)
    assert fintrader("backtest", str(run.parent / "also")).status == 0


# --- what a run's folder runs ---------------------------------------------------------------------

READING = (
    ("status", "{run}"),
    ("verify", "{run}"),
    ("compare", "{run}", "{run}/../other"),
    ("export", "{run}", "--out", "{run}/../made.onnx"),
    ("runs", "{run}"),
    ("looks", "--runs-dir", "{run}/.."),
)


class Trap:
    """As a pickle: opening it makes a folder."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


@pytest.mark.slow
def test_no_file_of_a_run_runs_code(run, tmp_path, monkeypatch):
    """Pickles in the place of all files of a kind, one kind after the other."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, run.parent / "other")
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    pickle.loads(trap)  # noqa: S301  it works
    sprung.rmdir()
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    kinds = {path.suffix or path.name for path in files}
    assert len(kinds) > 6
    for kind in sorted(kinds):
        for path in files:
            if (path.suffix or path.name) == kind:
                path.write_bytes(trap)
        for words in READING[:4]:
            found = fintrader(*(word.format(run=run) for word in words))
            assert found.status in (0, 1, 2), (kind, words)
            assert not sprung.exists(), (kind, words)
        for path, data in files.items():
            path.write_bytes(data)


@pytest.mark.slow
def test_what_reads_a_run_imports_nothing_and_what_acts_on_it_names_the_code(
    run, tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, run.parent / "other")
    (tmp_path / "trap_of_a_run.py").write_text(
        "import logging\nlogging.getLogger('fintrader').warning('sprung')\nraise KeyError('sprung')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = run / "config.yaml"
    values = yaml.safe_load(config.read_text())
    values["env"]["reward"] = "trap_of_a_run:reward"
    values["launcher"]["kind"] = "trap_of_a_run:launcher"
    values["data"]["features"]["names"] = ["return_1", "trap_of_a_run:feature"]
    config.write_text(yaml.safe_dump(values))
    for words in READING:
        fintrader(*(word.format(run=run) for word in words))
        assert "sprung" not in caplog.text, words
    named = "trap_of_a_run:feature, trap_of_a_run:launcher, trap_of_a_run:reward"
    for act in ("backtest", "paper", check_replay):
        caplog.clear()
        with contextlib.suppress(KeyError, FintraderError):
            act(run, None) if callable(act) else fintrader(act, str(run))
        before, sprung, _ = caplog.text.partition("sprung")
        assert f"importing {named}, as {config} asks" in before, act
        assert sprung or act is check_replay, act  # which has found that the settings are others
