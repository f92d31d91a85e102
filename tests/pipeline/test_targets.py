"""`fintrader targets`: the leaders of a race over time, each a look at the test window."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fintrader.backtesting import read_backtest
from fintrader.cli import main
from fintrader.errors import RunError
from fintrader.pipeline.config import load_config
from fintrader.pipeline.run_stages import run_tournament
from fintrader.pipeline.targets import play_leaders
from fintrader.results.run import Run
from fintrader.results.tournament_events import ResultEvent, read_events
from fintrader.runs import RunFolder
from fintrader.tournament.events import EventLog, list_applied
from fintrader.tournament.store import RunStore
from fintrader.verdict.looks import Ledger
from tests.engines.runs import TINY, fintrader, write_config
from tests.pipeline.test_classic_run import write as write_classic

pytestmark = pytest.mark.usefixtures("in_this_process", "blank_reports")


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """The folder of a run whose tournament is over."""
    changes = {
        "data": {"source": TINY["data"]["source"] | {"num_sessions": 30}},
        "tournament": TINY["tournament"] | {"pods": 4},
        "backtest": {"null_model": False, "sensitivity": False, "tear_sheet": "none"},
    }
    return run_tournament(load_config(write_config(tmp_path_factory.mktemp("raced"), **changes)))


def test_a_tournament_without_a_backtest_is_finished(raced):
    assert Run(raced).summary.status == "finished"


def test_leaders_are_those_of_the_race_and_each_is_one_look(raced):
    results = RunStore(RunFolder(raced)).read_results().values()
    log = [json.loads(line) for line in RunFolder(raced).events.read_text().splitlines()]
    began = next(line["time"] for line in log if line["event"] == "launched")
    ended = {line["pod"]: line["time"] for line in log if line["event"] == "applied"}
    race = play_leaders(raced)
    for leader in race.leaders:
        assert leader.seconds == ended[leader.pod] - began
        earlier = [one.score for one in results if ended[one.pod] < ended[leader.pod]]
        assert leader.score > max(earlier, default=float("-inf"))
    assert race.leaders[-1].score == max(result.score for result in results)
    looks = [line.look for line in Ledger().looks() if line.look.kind == "targets"]
    assert [look.strategies for look in looks] == [(leader.pod,) for leader in race.leaders]
    assert race.looks == len(race.leaders)
    assert play_leaders(raced).looks == race.looks  # nothing new was seen


def test_a_later_rung_leads_whatever_its_score(raced, tmp_path):
    run = RunFolder(Path(shutil.copytree(raced, tmp_path / raced.name)))
    events = [
        replace(event, position=0) if isinstance(event, ResultEvent) else event
        for event in read_events(run.events)
    ]
    run.events.unlink()
    EventLog(run.events).append(*events)
    assert [leader.pod for leader in play_leaders(run.root).leaders] == list_applied(events)


def test_growth_is_that_of_the_backtest(raced):
    best = play_leaders(raced).leaders[-1]
    main(["run", str(raced / "config.yaml"), "--runs-dir", str(raced.parent)])
    metrics = read_backtest(raced / "backtest").metrics["best"]
    assert best.growth == pytest.approx(1.0 + metrics.cumulative_return, rel=1e-12)


def test_a_target_is_reached_by_the_first_leader_above_it(raced):
    race = play_leaders(raced)
    growths = [leader.growth for leader in race.leaders]
    assert race.find_first(growths[0]) == race.leaders[0]
    assert race.find_first(max(growths) + 1e-9) is None
    done = fintrader("targets", str(raced), "--at", "0.01", "99", "--json")
    assert done.status == 0, done.err
    times = json.loads(done.out[done.out.index("{") :])["seconds_to"]
    assert times == {"0.01": race.leaders[0].seconds, "99.0": None}
    shown = fintrader("targets", str(raced), "--at", "99").out
    assert "99 times the capital: not reached" in shown


def test_what_has_no_test_window_is_refused(raced, tmp_path):
    assert "--at 1.7 1.8" in fintrader("targets", str(raced)).err
    started = load_config(raced / "config.yaml").model_copy(update={"runs_dir": tmp_path})
    started.folder.root.mkdir()
    for name in ("config.yaml", "manifest.json"):
        (started.folder.root / name).write_text((raced / name).read_text())
    values = json.loads(started.folder.manifest.read_text())
    values["stages"].pop("tournament")
    started.folder.manifest.write_text(json.dumps(values))
    with pytest.raises(RunError, match="its tournament has not finished"):
        play_leaders(started.folder.root)
    classic = run_tournament(load_config(write_classic(tmp_path)))
    with pytest.raises(RunError, match="no test window of a market"):
        play_leaders(classic)
