"""What is said of a run before it starts: what is missing, how long it will take."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fintrader.config import list_models, refuse_secret, validate
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.estimates import FACTOR, estimate, record_of
from fintrader.pipeline.inputs import find_missing_inputs, list_named_files
from fintrader.pipeline.run_stages import search
from fintrader.runs import Manifest
from tests.engines.runs import TINY, fintrader, write_config


def config(tmp_path, **changes):
    places = {"runs_dir": str(tmp_path / "runs"), "cache": str(tmp_path / "tensors")}
    return validate(RunConfig, {**TINY, **places, **changes}, "settings")


def test_nothing_is_missing_of_a_synthetic_market(tmp_path):
    assert find_missing_inputs(config(tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": {"path": "none.csv"}}, "data.path: none.csv"),
        ({"data": {"benchmark": "ndx.csv"}}, "data.benchmark: ndx.csv"),
        ({"data": {"features": {"daily": {"vix": "vix.csv"}}}}, "data.features.daily.vix: vix.csv"),
        ({"from_run": "elsewhere/run"}, "from_run: elsewhere/run"),
        (
            {
                "data": {
                    "source": {"kind": "alpaca"},
                    "start": "2024-01-02",
                    "universe": {"symbols": ["A"]},
                }
            },
            "APCA_API_KEY_ID",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, changes, named):
    for key in ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY"):
        monkeypatch.delenv(key, raising=False)
    assert any(named in sentence for sentence in find_missing_inputs(config(tmp_path, **changes)))


def test_the_package_of_an_index_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "index_constitution", None)
    ours, theirs = (
        find_missing_inputs(config(tmp_path, data={**TINY["data"], "universe": {"members": index}}))
        for index in ("nasdaq100", "dow30")
    )
    assert ours == []
    assert [sentence.partition(";")[0] for sentence in theirs] == [
        "data.universe.members: dow30 needs index-constitution"
    ]
    assert "pip install" in theirs[0]


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    said = find_missing_inputs(config(tmp_path, cache=str(tmp_path / "file" / "tensors")))
    assert any(sentence.startswith("cache: ") for sentence in said)


def test_another_run_of_that_name_is_told_before_it_starts(tmp_path):
    (tmp_path / "runs" / "run").mkdir(parents=True)
    before = config(tmp_path)
    before.folder.config.write_text("seed: 1\n")
    assert any("made with other settings" in sentence for sentence in find_missing_inputs(before))


def test_every_file_that_data_settings_name_is_looked_for():
    def paths(model, before=""):
        found = set()
        for name, field in model.model_fields.items():
            if refuse_secret.__name__ in repr(
                (field.annotation, field.metadata)
            ):  # what makes it a `PathText`
                found.add(before + name)
            for below in list_models(field.annotation):
                if before + name != "source":
                    found |= paths(below, f"{before}{name}.")
        return found

    known = {
        name.removesuffix(".x")
        for name in list_named_files(DataSettings(features={"daily": {"x": "y"}}))
    }
    assert paths(DataSettings) - {"path", "daily", "store"} == known  # folders, too


STAGES = {"tournament": 40.0, "null_model": 16.0, "data": 1.0, "backtest": 8.0}


def record(config):
    found = record_of(
        "earlier",
        config.model_dump(mode="json"),
        {name: {"done": True, "seconds": seconds} for name, seconds in STAGES.items()},
        None,
    )
    assert found is not None
    return found


@pytest.mark.slow
def test_a_head_that_cannot_act_is_refused_and_the_remedy_runs(tmp_path):
    """One symbol, fully invested: every agent would hold it."""
    alone = {"source": {"kind": "synthetic", "num_symbols": 1, "num_sessions": 12}}
    env = {**TINY["env"], "benchmark": "equal_weight"}
    path = write_config(tmp_path, data=alone, env=env)
    for verb in ("run", "train"):
        refused = fintrader(verb, str(path), "--name", verb)
        assert refused.status == 2
        assert "set agent.head.kind to aim" in refused.err
    done = fintrader("tournament", str(path), "--agent.head.kind", "aim", "--name", "aim")
    assert done.status == 0, done.err
    told = fintrader("status", str(tmp_path / "runs" / "aim"), "--json").out
    rows = json.loads(told)["leaderboard"]
    assert len({row["score"] for row in rows}) == len(rows) == 4  # the benchmark's is one of them


def race(**changes):
    return {"tournament": {**TINY["tournament"], **changes}}


def test_twice_the_steps_take_twice_the_time_and_the_null_model_is_counted(tmp_path):
    before = config(tmp_path)
    longer = config(tmp_path, **race(budget={"env_steps": 2048}), backtest={"null_model": True})
    found = estimate(longer, [record(before)])
    assert (found.tournament_seconds, found.null_seconds, found.other_seconds) == (32.0, 32.0, 9.0)
    assert found.sure == "likely"
    assert found.seconds / FACTOR["likely"] < 73.0 < found.seconds * FACTOR["likely"]
    assert estimate(before, [record(before)]).null_seconds == 0.0


def test_it_says_how_sure_it_is(tmp_path):
    here = config(tmp_path)
    other = record(config(tmp_path, env={**TINY["env"], "num_envs": 64}))
    another = record(config(tmp_path, agent={"algo": "sac"}))
    assert estimate(here, [another, other]).sure == "rough"
    assert "earlier" in estimate(here, [other]).why
    assert estimate(here, [another]).sure == "a guess"
    timed = config(tmp_path, **race(budget={"seconds": 60.0}, pods=6, pool_size=2, workers=2))
    assert estimate(timed, []).tournament_seconds == 180.0


def test_a_run_that_has_not_raced_is_no_record(tmp_path):
    values = config(tmp_path).model_dump(mode="json")
    assert record_of("r", values, {"tournament": {"done": False, "seconds": 3.0}}, None) is None
    assert (
        record_of("r", {"nothing": 1}, {"tournament": {"done": True, "seconds": 3.0}}, None) is None
    )


def test_a_run_without_its_bars_fails_by_name_and_status_says_so(tmp_path):
    path = write_config(tmp_path, data={"path": str(tmp_path / "none.csv")})
    done = fintrader("run", str(path))
    assert done.status == 2
    told = fintrader("status", str(tmp_path / "runs" / "tiny"))
    assert told.status == 0, told.err
    assert "tiny: failed; data failed → tournament" in told.out
    assert "no bar file there" in told.out
    path.write_text(path.read_text().replace("none.csv", "still-none.csv"))
    again = fintrader("run", str(path))
    assert "made with other settings" not in again.err
    manifest = Manifest.load(tmp_path / "runs" / "tiny" / "manifest.json")
    assert "still-none.csv" in manifest.values["failure"]["sentence"]


def test_pods_wait_and_retry_as_the_configuration_says(tmp_path, monkeypatch):
    monkeypatch.setattr(MarketTensors, "stored_hash", lambda path: "hash")
    asked = config(tmp_path, operations={"retries": 7})

    def race(_, **how):
        return how["operations"]

    found = search(asked, asked.folder, tmp_path / "market.safetensors", race=race)
    assert found == asked.operations


def list_tree(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [pid, *(below for child in children for below in list_tree(child))]


def measure_memory(pid):
    """Bytes of a process and all below it; pages that several share count once."""
    total = 0
    for one in list_tree(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            total += int(line.split()[1]) * 1024 if line.startswith("Pss:") else 0
    return total


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_what_a_run_takes(tmp_path):
    """A market of 160 MB; all stages, two pods at once."""
    source = {"kind": "synthetic", "num_symbols": 60, "num_sessions": 120}
    race = {"pods": 2, "workers": 2, "pool_size": 2, "ensemble_size": 1}
    changes = {
        "data": {"source": source},
        "env": {"num_envs": 64, "episode_bars": 390},
        "agent": {"algo": "ppo", "num_steps": 16},
        "tournament": {**race, "budget": {"env_steps": 2048}},
        "backtest": {"null_model": True},
    }
    path = write_config(tmp_path, **changes)
    command = [sys.executable, "-m", "fintrader", "run", str(path)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None:
            with contextlib.suppress(OSError):  # a process ended meanwhile
                peak = max(peak, measure_memory(run.pid))
            time.sleep(0.2)
    assert run.returncode == 0
    settings = validate(RunConfig, yaml.safe_load(path.read_text()), "settings")
    # With compiled code, which this machine may have or not, it takes less by an eighth.
    assert peak <= 1.02 * estimate(settings, []).memory_bytes < 1.3 * peak
