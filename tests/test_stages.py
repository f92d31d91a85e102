"""The stages of a run: what its files say, told the same to everybody."""

import io
import json
import time
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from fintrader import runs, stages
from fintrader.errors import DataError
from fintrader.files import read_json
from fintrader.progress import LineProgress
from fintrader.results.folders import FileCache, Folder
from fintrader.results.run import stages_now, summary
from fintrader.runs import Manifest, RunFolder
from fintrader.stages import LIVE, WHOLE, read_stages, strip
from fintrader.terminal_progress import TerminalProgress


@pytest.fixture
def manifest(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "r")
    made = Manifest.create(
        folder.manifest, name="r", seed=0, device="cpu", config_hash="0", command="fintrader run r"
    )
    made.update(plan=list(WHOLE))
    return made


@pytest.fixture
def often(monkeypatch):
    """Every move is written down."""
    monkeypatch.setattr(stages, "SECONDS", 0.0)


def states(values, live, *, alive):
    return {stage.name: stage.state for stage in read_stages(values, live, alive=alive)}


def test_a_null_model_at_work_is_a_stage_of_its_own_beside_a_tournament_that_is_done():
    done = {"done": True, "seconds": 40.0}
    values = {
        "plan": list(WHOLE),
        "stages": {"data": done, "tournament": done, "null_model": {"done": False}},
    }
    live = {
        "stage": "null_model",
        "doing": "null model",
        "done": 2,
        "total": 8,
        "seconds": 9.0,
        "seconds_left": 27.0,
    }
    found = {stage.name: stage for stage in read_stages(values, live, alive=True)}
    assert [stage.state for stage in found.values()] == [
        "done",
        "done",
        "running",
        "waiting",
        "waiting",
    ]
    assert found["null_model"].share == 0.25
    assert "luck alone" in found["null_model"].about
    assert "null_model: false" in found["null_model"].about
    line = strip(list(found.values()))
    assert line == "data (40 s) → tournament (40 s) → null model 25%, 27 s left → backtest → report"


def test_a_waiting_null_model_takes_as_long_as_the_tournament():
    values = {
        "plan": list(WHOLE),
        "stages": {"data": {"done": True}, "tournament": {"done": False}},
    }
    live = {"stage": "tournament", "done": 1, "total": 4, "seconds": 10.0, "seconds_left": 30.0}
    assert read_stages(values, live, alive=True)[2].seconds_left == pytest.approx(40.0)
    assert read_stages(values, {}, alive=True)[2].seconds_left is None


def test_the_report_of_an_earlier_window_waits_while_the_next_is_traded():
    values = {
        "stages": {"backtest": {"done": False}, "report": {"done": True}},
        "plan": list(WHOLE),
    }
    assert states(values, {"stage": "backtest"}, alive=True)["report"] == "waiting"
    assert states(values, {}, alive=False)["report"] == "done"


def test_a_run_of_an_earlier_version_has_the_stages_that_it_has():
    done = {name: {"done": True, "seconds": 1.0} for name in ("data", "tournament", "backtest")}
    assert states({"stages": done, "finished": "2026-01-01"}, {}, alive=False) == dict.fromkeys(
        done, "done"
    )
    assert list(states({"stages": {"data": {"done": True}}}, {}, alive=True)) == list(WHOLE)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = (
    "plan",
    "stages",
    "failure",
    "finished",
    "stage",
    "done",
    "total",
    "seconds",
    "seconds_left",
    "updated",
)


@given(
    st.dictionaries(st.sampled_from(fields), anything),
    st.dictionaries(st.sampled_from(fields), anything),
    st.booleans(),
)
@example({"plan": [""]}, {}, False)
def test_files_may_say_anything(values, live, alive):
    values.setdefault("plan", list(WHOLE))
    for stage in read_stages(values, live | {"stage": "tournament"}, alive=alive):
        assert stage.share is None or 0 <= stage.share <= 1
        assert stage.describe()


def test_tasks_are_told_whoever_shows_them(manifest, often):
    folder = Folder(manifest.path.parent)
    with (
        manifest.stage("data"),
        LineProgress(io.StringIO()).task("read bars", total=10, unit="rows") as task,
    ):
        task.advance(4, note="AAPL")
        live = read_json(folder.root / LIVE)
        assert (live["stage"], live["doing"], live["done"], live["total"]) == (
            "data",
            "read bars",
            4,
            10,
        )
        with RunFolder(folder.root).lock():
            now = stages_now(folder, summary(folder, FileCache(summaries=1)))
        assert (now[0].state, now[0].share, now[0].note) == ("running", 0.4, "AAPL")
    assert not (folder.root / LIVE).exists(), "nothing is at work any more"


def test_a_file_is_written_once_a_second_at_most(manifest, monkeypatch):
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(stages, "time", clock)
    with manifest.stage("data"), LineProgress(io.StringIO()).task("read", total=10) as task:
        for done, at, stored in (
            (1, 0.4, None),
            (2, 0.9, None),
            (3, 1.1, 3),
            (4, 1.9, 3),
            (5, 2.2, 5),
        ):
            now = at
            task.update(done)
            assert read_json(manifest.path.with_name(LIVE)).get("done") == stored


def test_a_stage_inside_another_is_counted_once_and_hands_back(manifest, often, monkeypatch):
    clock = SimpleNamespace(monotonic=iter([0.0, 1.0, 11.0, 12.0]).__next__)
    monkeypatch.setattr(runs, "time", clock)
    live = manifest.path.with_name(LIVE)
    with manifest.stage("backtest"):
        with manifest.stage("report"):
            assert read_json(live)["stage"] == "report"
        assert read_json(live)["stage"] == "backtest"
    taken = {name: stage["seconds"] for name, stage in manifest.values["stages"].items()}
    assert taken == {"report": 10.0, "backtest": 2.0}


def test_what_a_stage_fails_of_stays_as_a_sentence(manifest):
    folder = Folder(manifest.path.parent)
    with pytest.raises(DataError), manifest.stage("backtest"), manifest.stage("report"):
        raise DataError("bars.csv: no such file;\n  give another")
    found = summary(folder, FileCache(summaries=1))
    assert (found.status, found.problem, (found.failure or {}).get("stage")) == (
        "failed",
        "bars.csv: no such file; give another",
        "report",
    )
    assert {stage.name: stage.state for stage in stages_now(folder, found)}["report"] == "failed"
    with RunFolder(folder.root).lock():
        again = summary(folder, FileCache(summaries=1))
    assert (again.status, again.problem) == ("running", None)


def test_an_interruption_is_no_failure(manifest):
    with pytest.raises(KeyboardInterrupt), manifest.stage("data"):
        raise KeyboardInterrupt
    found = summary(Folder(manifest.path.parent), FileCache(summaries=1))
    assert (found.status, found.problem) == ("interrupted", None)
    assert stages_now(Folder(manifest.path.parent), found)[0].state == "stopped"


def test_a_run_that_has_its_result_does_not_fail_any_more(manifest):
    manifest.finish()
    with pytest.raises(DataError), manifest.stage("backtest"):
        raise DataError("a look too many")
    assert summary(Folder(manifest.path.parent), FileCache(summaries=1)).status == "finished"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ZeroDivisionError("division by zero"),
            "ZeroDivisionError: division by zero; this is a fault of the program",
        ),
        (
            OSError(28, "No space left on device", "/runs/x"),
            "/runs/x: No space left on device; free space, fix permissions",
        ),
        (DataError(""), "DataError"),
    ],
)
def test_any_error_is_one_sentence(manifest, error, sentence):
    with pytest.raises(type(error)), manifest.stage("data"):
        raise error
    assert read_json(manifest.path)["failure"]["sentence"].startswith(sentence)


def test_the_beginning_of_a_stage_is_a_line_and_the_strip_stands_above_the_bars(
    manifest, often, capsys
):
    text = io.StringIO()
    with manifest.stage("data"):
        pass
    with manifest.stage("null_model"):
        shown = TerminalProgress(Console(file=text, force_terminal=True, width=200))
        with shown, shown.task("null model", total=4, unit="pods") as task:
            task.update(1)
            shown._bars.refresh()
    assert "stage 3 of 5, null model: the same search on bars" in capsys.readouterr().err
    assert "null model 25%" in text.getvalue()
    assert "→ backtest → report" in text.getvalue()


def test_nobody_can_end_a_run_by_making_its_progress_unwritable(manifest, often):
    manifest.path.with_name(LIVE).mkdir()
    with manifest.stage("data"):
        pass
    assert json.loads(manifest.path.read_text())["stages"]["data"]["done"]
