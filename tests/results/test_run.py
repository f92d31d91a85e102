import json
import sqlite3
from contextlib import closing

import pytest

from fintrader.errors import RunError, UnsafePathError
from fintrader.results.folders import NotThereError
from fintrader.results.leaderboard_reader import BENCHMARK, read_leaderboard
from fintrader.results.run import Run
from fintrader.results.verify import find_searches
from fintrader.runs import RunFolder
from fintrader.tournament.recount import find_tournaments


@pytest.fixture
def demo(site):
    """A run that a test may damage."""
    return site / "runs" / "demo"


def test_a_run_shows_what_it_is(template):
    run = Run(template / "runs" / "demo")
    assert run.config == {"name": "demo", "seed": 0}
    assert run.manifest["trials"] == 7
    assert run.leaderboard["rank"].dropna().tolist() == list(range(1, 8))
    assert run.leaderboard[run.leaderboard["rank"].isna()]["pod"].tolist() == ["benchmark"]
    assert len(run.pods) == 8
    assert run.events[0].event == "started"
    assert list(run.backtests) == ["test"]
    assert run.verdict.text in repr(run)
    assert repr(run).startswith("Run demo: finished")
    assert run._repr_html_().startswith("<p>Run demo: finished")
    assert run.plot().data[0].name == "Ensemble"


def test_a_run_without_a_backtest_says_how_to_make_one(template):
    run = Run(template / "runs" / "raced")
    with pytest.raises(NotThereError, match="fintrader backtest"):
        run.backtest()
    with pytest.raises(RunError, match="is no window"):
        Run(template / "runs" / "demo").backtest("yesterday")
    with pytest.raises(NotThereError, match="validation window"):
        Run(template / "runs" / "demo").backtest("validation")
    assert "interrupted" in repr(run)
    with pytest.raises(RunError, match="there is no run here"):
        Run(template / "runs" / "nothing")


def test_policies_are_loaded_by_whoever_can(demo):
    with pytest.raises(RunError, match=r"fintrader\.open_run"):
        Run(demo).policy()
    run = Run(demo, load_policy=lambda path: path)
    with pytest.raises(RunError, match="does not exist"):
        run.policy()
    with pytest.raises(RunError, match="no best pod"):
        run.policy("best")
    with pytest.raises(UnsafePathError):
        run.policy("../demo")
    (demo / "ensemble").mkdir()
    for home in (demo / "ensemble", demo / "pods" / "p0001"):
        (home / "policy.safetensors").write_bytes(b"")
    assert run.policy() == demo / "ensemble" / "policy.safetensors"
    assert run.policy("p0001") == demo / "pods" / "p0001" / "policy.safetensors"


def test_folds_are_runs_with_leaderboards_of_their_own(demo):
    fold = demo / "folds" / "00"
    fold.mkdir(parents=True)
    (demo / "leaderboard.sqlite").rename(fold / "leaderboard.sqlite")
    (fold / "tournament.json").write_text("{}")
    run = Run(demo)
    with pytest.raises(NotThereError, match=r"\.folds"):
        assert run.leaderboard is None
    assert len(run.folds[0].leaderboard) == 8  # seven pods and the benchmark
    assert "demo/folds/00" in repr(run.folds[0])


def test_folds_are_in_order_and_other_folders_are_none(tmp_path):
    for name in ("100", "99", "old", ".ipynb_checkpoints"):
        (tmp_path / "folds" / name).mkdir(parents=True)
        (tmp_path / "folds" / name / "tournament.json").write_text("{}")
    home = RunFolder(tmp_path)
    folds = [RunFolder(tmp_path / "folds" / name) for name in ("99", "100")]
    assert find_searches(home) == find_tournaments(home) == folds


def test_the_benchmark_is_above_all_that_do_not_beat_it(demo):
    path = demo / "leaderboard.sqlite"
    last = read_leaderboard(path)[-1].pod
    with closing(sqlite3.connect(path)) as board, board:
        board.execute("UPDATE pods SET rung = 1 WHERE pod = ?", (last,))
        board.execute("UPDATE entries SET score = 0.1 WHERE pod = ?", (last,))
    rows = read_leaderboard(path, benchmark=True)
    assert [row.pod for row in rows[:2]] == [BENCHMARK, last]


def test_a_damaged_manifest_makes_no_more_than_its_own_run_broken(demo):
    path = demo / "manifest.json"
    values = json.loads(path.read_text()) | {"finished": None}
    path.write_text(json.dumps(values | {"failure": {"stage": "data"}}))
    assert Run(demo).summary.status == "interrupted"
    path.write_text(json.dumps(values | {"seed": "one"}))
    assert Run(demo).summary.problem.endswith("; restore it, or delete the run")
