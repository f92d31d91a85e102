"""Notes of a run and its deletion: stored apart, nothing outside the runs folder touched, no look
forgotten."""

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from fintrader.errors import RunError, UnsafePathError
from fintrader.results import deletion
from fintrader.results.deletion import TOMBSTONE, delete_run, describe_loss
from fintrader.results.folders import (
    DamagedFileError,
    FileCache,
    Folder,
    NotThereError,
    RunsFolder,
)
from fintrader.results.notes import FILE, Notes, read_notes, write_notes
from fintrader.results.run import Run, summaries
from fintrader.runs import RunFolder
from fintrader.system import try_lock
from fintrader.verdict.looks import Ledger
from tests.cli.test_mistakes import complaint
from tests.engines.runs import fintrader
from tests.results.test_looks import look


@pytest.fixture
def runs(site):
    return RunsFolder.at(site / "runs")


def names(runs):
    return [run.name for run in summaries(runs, FileCache(summaries=100))]


# --- notes ----------------------------------------------------------------------------------------


def test_notes_come_back_and_change_no_other_file(runs):
    demo = runs.run("demo")
    before = {path: path.read_bytes() for path in demo.root.rglob("*") if path.is_file()}
    assert read_notes(demo) == Notes()
    stored = write_notes(
        demo, Notes(" costs are wrong \n", (" old ", "old", "a,  b", "", "x" * 90), True)
    )
    assert stored == Notes("costs are wrong", ("old", "a b", "x" * 30), True)
    assert read_notes(demo) == Run(demo.root).summary.notes == stored
    after = {path: path.read_bytes() for path in demo.root.rglob("*") if path.is_file()}
    assert after.pop(demo.root / FILE)
    assert after == before
    write_notes(demo, Notes())
    assert Run(demo.root).summary.notes == Notes()


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"note": 3}', '{"tags": "a"}', '{"archived": "yes"}', "x" * 100_000]
)
def test_damaged_notes_are_named_and_break_no_run(runs, text):
    demo = runs.run("demo")
    (demo.root / FILE).write_text(text)
    with pytest.raises(DamagedFileError, match=FILE):
        read_notes(demo)
    found = Run(demo.root).summary
    assert (found.status, found.notes) == ("finished", Notes())
    write_notes(demo, Notes("mended"))
    assert read_notes(demo).note == "mended"


def test_notes_are_written_through_no_link_and_into_no_copy(runs, tmp_path):
    demo = runs.run("demo")
    (tmp_path / "secret").write_text("{}")
    (demo.root / FILE).symlink_to(tmp_path / "secret")
    for use in (lambda: read_notes(demo), lambda: write_notes(demo, Notes("x"))):
        with pytest.raises(UnsafePathError):
            use()
    assert (tmp_path / "secret").read_text() == "{}"
    (demo.root / FILE).unlink()
    (demo.root / ".store.json").write_text('{"url": "s3://bucket/runs/demo"}')
    for refused in (lambda: write_notes(demo, Notes("x")), lambda: delete_run(runs, "demo")):
        with pytest.raises(RunError, match="copy of a run in a store"):
            refused()
    assert "demo" in names(runs)


def test_a_folder_that_may_only_be_read_says_so(runs, monkeypatch):
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # whoever tests may write everywhere
    for refused in (
        lambda: write_notes(runs.run("demo"), Notes("x")),
        lambda: delete_run(runs, "demo"),
    ):
        with pytest.raises(RunError, match="is read-only"):
            refused()


def test_too_much_is_refused(runs):
    for notes in (Notes("x" * 5_000), Notes(tags=tuple(f"t{k}" for k in range(20)))):
        with pytest.raises(RunError, match="shorten"):
            write_notes(runs.run("demo"), notes)
    assert not (runs.root / "demo" / FILE).exists()


# --- deletion -------------------------------------------------------------------------------------


def test_a_deleted_run_is_gone_and_its_looks_are_not(runs):
    ledger = Ledger()
    created = json.loads((runs.root / "demo" / "manifest.json").read_bytes())["created"]
    ledger.record(replace(look("a", run="demo"), created=created))
    assert ledger.record(look("b", run="second"))[0] == 2
    ledger.record(look("c", run="demo"))  # of an earlier run of this name
    lost = describe_loss(runs, "demo")
    whole = [path for path in (runs.root / "demo").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in whole)
    assert lost.startswith(f"{len(whole)} files ({size / 1e6:,.1f} MB) go for good")
    assert "results of 8 pods among them" in lost
    assert "1 look on the ledger" in lost
    delete_run(runs, "demo")
    assert "demo" not in names(runs)
    assert not any(entry.name.startswith(TOMBSTONE) for entry in os.scandir(runs.root))
    assert [line.look.result for line in ledger.looks()] == ["a", "b", "c"]
    assert ledger.record(look("d", run="third"))[0] == 4, "the look of the deleted run counts"
    with pytest.raises(NotThereError):
        delete_run(runs, "demo")


def test_a_running_run_is_not_deleted(runs):
    with RunFolder(runs.root / "racing").lock():
        for refused in (describe_loss, delete_run):
            with pytest.raises(RunError, match="at work"):
                refused(runs, "racing")
    assert (runs.root / "racing" / "manifest.json").is_file()
    delete_run(runs, "racing")


def test_a_killed_run_whose_pods_train_on_is_not_deleted(runs):
    with (runs.root / "demo" / "pods" / "p0001" / ".lock").open("a") as file:
        assert try_lock(file)
        with pytest.raises(
            RunError, match="pods still train: p0001; run its command again and stop it"
        ):
            delete_run(runs, "demo")
    assert (runs.root / "demo" / "manifest.json").is_file()
    delete_run(runs, "demo")


def killed_between(root):
    def dies(_, **how):
        os.kill(os.getpid(), signal.SIGKILL)

    deletion.shutil.rmtree = dies
    delete_run(RunsFolder.at(root), "demo")


def test_killed_between_rename_and_removal_it_is_in_no_list_and_the_next_deletion_finishes_it(runs):
    child = multiprocessing.get_context("fork").Process(target=killed_between, args=(runs.root,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    graves = list(runs.root.glob(f"{TOMBSTONE}*"))
    assert len(graves) == 1
    assert (graves[0] / "manifest.json").is_file()
    assert set(names(runs)) == {"raced", "racing", "second", "started"}
    with pytest.raises(RunError):
        runs.run(graves[0].name)
    delete_run(runs, "second")
    assert not list(runs.root.glob(f"{TOMBSTONE}*"))


def test_what_cannot_be_removed_holds_up_no_other_deletion(runs, monkeypatch):
    grave = runs.root / f"{TOMBSTONE}demo-1"
    grave.mkdir()
    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **how: path == grave or remove(path, **how))
    delete_run(runs, "second")
    assert "second" not in names(runs)


ODD = (
    "..",
    ".",
    "",
    "../demo",
    "demo/../../keep",
    "/etc",
    ".launched",
    "demo/pods",
    "a\0b",
    "ﬁle",
    "-rf",
    "no such",
)


@pytest.mark.parametrize("name", [*ODD, "linked", "keep"])
def test_nothing_but_a_run_of_the_folder_is_deleted(runs, site, name):
    (site / "keep").mkdir()
    shutil.copy(runs.root / "demo" / "manifest.json", site / "keep")
    (runs.root / "linked").symlink_to(site / "keep")
    (runs.root / "keep").mkdir()
    (runs.root / "keep" / "config.yaml").write_text("somebody's own")
    before = sorted(site.rglob("*"))
    for refused in (describe_loss, delete_run):
        with pytest.raises(RunError):
            refused(runs, name)
    assert sorted(site.rglob("*")) == before


def test_a_part_of_a_run_is_not_deleted(runs):
    fold = runs.root / "demo" / "folds" / "00"
    fold.mkdir(parents=True)
    for name in (".lock", "tournament.json"):
        (fold / name).write_text("{}")
    with pytest.raises(RunError, match="part of a run"):
        delete_run(RunsFolder.at(fold.parent), "00")
    assert fold.is_dir()


def test_a_link_inside_a_run_is_removed_and_not_followed(runs, site):
    (site / "keep").mkdir()
    (site / "keep" / "file").write_text("x")
    (runs.root / "demo" / "out").symlink_to(site / "keep")
    delete_run(runs, "demo")
    assert (site / "keep" / "file").read_text() == "x"


def test_a_damaged_run_can_be_deleted_and_a_broken_ledger_forbids_it(runs):
    (runs.root / "demo" / "manifest.json").write_text("{")
    with pytest.raises(RunError, match="does not look like a run"):
        delete_run(runs, "demo")
    (runs.root / "demo" / ".lock").touch()
    (runs.root / "demo" / "backtest" / "equity.parquet").write_bytes(b"no")
    ledger = Ledger().path
    ledger.write_text("{}\n")
    with pytest.raises(RunError, match=r"looks\.jsonl"):
        delete_run(runs, "second")
    ledger.unlink()
    delete_run(runs, "demo")
    assert "demo" not in names(runs)


# --- command line ---------------------------------------------------------------------------------


def test_notes_and_deletion_on_the_command_line(runs):
    demo = str(runs.root / "demo")
    assert fintrader("runs", demo).out.splitlines() == ["demo: no tags", "no note"]
    fintrader("runs", demo, "--note", "costs too low", "--tags", "a", "b")
    done = fintrader("runs", demo, "--archived")
    assert done.out.splitlines() == ["demo (archived): a, b", "costs too low"]
    asked = fintrader("runs", demo, "--delete")
    assert "Nothing was deleted" in asked.out
    assert "8 pods" in asked.out
    assert json.loads((Path(demo) / FILE).read_text())["tags"] == ["a", "b"]
    assert fintrader("runs", demo, "--delete", "--yes").out.endswith("Deleted.\n")
    assert not Path(demo).exists()
    assert "there is no run called 'demo'" in complaint("runs", demo, "--delete", "--yes")
    assert "--force: unknown setting" in complaint("runs", demo, "--force")
    assert "does not look like a run" in complaint("runs", str(runs.root), "--delete", "--yes")
    assert "in a store" in complaint("runs", "s3://bucket/runs/demo", "--delete", "--yes")
    assert Folder(runs.root).exists("second")
