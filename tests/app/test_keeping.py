"""Notes, tags, archive and deletion on the Runs page."""

import json
import os
import subprocess
import sys
import time

import pytest

from fintrader.files import write_json
from fintrader.results.folders import RunsFolder
from fintrader.results.notes import FILE, Notes, read_notes, write_notes
from fintrader.runs import RunFolder
from fintrader.system import read_process_start
from fintrader_app import jobs
from tests.app.conftest import healthy, one, said


def listed(test):
    return list(test.dataframe[0].value["name"])


def test_a_note_is_saved_shown_and_searched_for(open_page, site):
    test = open_page(site, "runs", run="demo")
    assert "note" not in test.dataframe[0].value
    one(test.text_area, "Note").set_value("**costs** too low")
    one(test.button, "Save").click().run()
    healthy(test)
    assert read_notes(RunsFolder.at(site / "runs").run("demo")) == Notes("**costs** too low")
    assert "Saved: demo" in said(test)
    assert r"\*\*costs\*\* too low" in said(test)
    assert "Saved" not in said(test.run())
    test.text_input(key="runs_filter").set_value("COSTS").run()
    assert listed(test) == ["demo"]


@pytest.mark.slow
def test_runs_are_filtered_by_tag_and_archived_ones_are_hidden(open_page, site):
    runs = RunsFolder.at(site / "runs")
    write_notes(runs.run("second"), Notes(tags=("keep", "<b>x")))
    write_notes(runs.run("raced"), Notes(tags=("keep",), archived=True))
    test = open_page(site, "runs", run="demo")
    healthy(test)
    assert "raced" not in listed(test)
    test.button_group(key="runs_tags").set_value(["keep"]).run()
    assert listed(test) == ["second"]
    test.toggle(key="runs_archived").set_value(True).run()
    assert listed(test) == ["second", "raced"], "archived ones last"
    assert "raced" in listed(open_page(site, "runs", run="raced")), "a link to it shows it"
    test = open_page(site, "runs", run="second")
    one(test.toggle, "Archived").set_value(True)
    one(test.button, "Save").click().run()
    healthy(test)
    assert "second" not in listed(test)


def test_a_run_is_deleted_only_when_its_name_was_typed(open_page, site):
    home = site / "runs" / "demo"
    test = open_page(site, "runs", run="demo")
    assert not any(button.label == "Delete for good" for button in test.button)
    test.toggle(key="delete:demo").set_value(True).run()
    assert "go for good" in said(test)
    assert one(test.button, "Delete for good").disabled
    test.text_input(key="confirm:demo").set_value("dem").run()
    assert one(test.button, "Delete for good").disabled
    test.text_input(key="confirm:demo").set_value("demo").run()
    assert home.exists()
    one(test.button, "Delete for good").click().run()
    healthy(test)
    assert not home.exists()
    assert "demo" not in listed(test)
    assert "Deleted: demo" in said(test)
    assert "which is not here" not in said(test)


def test_a_run_at_work_and_a_copy_are_not_deleted(open_page, site):
    with RunFolder(site / "runs" / "racing").lock():
        test = open_page(site, "runs", run="racing")
        test.toggle(key="delete:racing").set_value(True).run()
        assert "at work" in said(test)
        assert not any(button.label == "Delete for good" for button in test.button)
    (site / "runs" / "demo" / ".store.json").write_text(
        json.dumps({"url": "s3://bucket/runs/demo"})
    )
    test = open_page(site, "runs", run="demo")
    healthy(test)
    assert "copy of a run in a store" in said(test)
    assert not test.text_area


def test_a_process_that_has_only_begun_is_not_forgotten(site):
    runs = RunsFolder.at(site / "runs")
    place = site / "runs" / jobs.PLACE
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        record = {
            "name": "demo",
            "pid": child.pid,
            "born": read_process_start(child.pid),
            "started": time.time(),
        }
        write_json(place / "demo.json", record)
        (place / "demo.log").write_text("x")
        with pytest.raises(jobs.RunError, match="stop it"):
            jobs.forget(runs, "demo")
    finally:
        child.communicate(b"\n")
    jobs.forget(runs, "demo")
    assert not os.listdir(place)
    jobs.forget(runs, "demo")


@pytest.mark.slow
def test_damaged_notes_are_named_where_they_are_edited(open_page, site):
    (site / "runs" / "demo" / FILE).write_text("{")
    test = open_page(site, "runs", run="demo")
    healthy(test)
    assert FILE in said(test).replace("\\", "")
    one(test.text_area, "Note").set_value("anew")
    one(test.button, "Save").click().run()
    assert read_notes(RunsFolder.at(site / "runs").run("demo")).note == "anew"
