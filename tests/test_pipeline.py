"""The one command, end to end on a tiny market: files, determinism, and continuation after SIGKILL at every stage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fintrader import load_policy
from fintrader.backtesting import read_backtest
from fintrader.errors import ConfigError, RunError
from fintrader.pipeline import load_config, run, train_one

TINY = {
    "seed": 1,
    "device": "cpu",
    "data": {"source": {"kind": "synthetic", "num_symbols": 4, "num_sessions": 12}},
    "env": {"num_envs": 8, "episode_bars": 120, "decision_interval": 5},
    "agent": {"algo": "ppo", "num_steps": 16},
    "tournament": {
        "pods": 3,
        "pool_size": 2,
        "workers": 2,
        "order": "submission",  # the same bytes whatever finishes first
        "budget": {"env_steps": 1024},
        "leaderboard_size": 3,
    },
    "backtest": {"control": False, "sensitivity": False},
}
STRATEGIES = {"ensemble", "best", "buy_and_hold", "equal_weight", "benchmark"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = TINY | {"runs_dir": str(folder / "runs"), "cache": str(folder / "tensors")} | changes
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def command(config: Path) -> list[str]:
    return [sys.executable, "-m", "fintrader", "run", str(config)]


def metrics_bytes(config: Path) -> bytes:
    return (config.parent / "runs" / "tiny" / "backtest" / "metrics.json").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_config(tmp_path_factory.mktemp("undisturbed"))
    done = subprocess.run(command(path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for column in ("Cumulative return", "Sharpe", "Calmar", "ensemble", "buy and hold"):
        assert column.lower() in done.stdout.lower()
    assert "report.html" in done.stdout
    return path


def test_a_run_leaves_everything_behind(undisturbed: Path):
    folder = undisturbed.parent / "runs" / "tiny"
    metrics = json.loads(metrics_bytes(undisturbed))
    assert set(metrics) >= STRATEGIES
    for name in ("equity.parquet", "positions.parquet", "trades.parquet", "report.html"):
        assert (folder / "backtest" / name).stat().st_size > 0, name
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["trials"] == 3
    assert manifest["finished"]
    assert all(manifest["stages"][stage]["done"] for stage in ("data", "tournament", "backtest"))
    assert load_config(folder / "config.yaml").seed == 1
    results = [json.loads(path.read_text()) for path in folder.glob("pods/*/result.json")]
    assert len(results) == 3


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(undisturbed: Path, tmp_path: Path):
    again = write_config(tmp_path / "again")
    other = write_config(tmp_path / "other", seed=2)
    for path in (again, other):
        subprocess.run(command(path), capture_output=True, check=True)
    assert metrics_bytes(again) == metrics_bytes(undisturbed)
    assert metrics_bytes(other) != metrics_bytes(undisturbed)


def kill_when(config: Path, appears: str) -> bool:
    """Start a run and SIGKILL it (its workers die with it) once a file that matches the pattern has appeared."""
    process = subprocess.Popen(command(config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if any(config.parent.glob(appears)):
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    process.kill()
    process.wait()
    return False


@pytest.mark.slow
def test_killed_at_any_stage_the_same_command_completes_with_the_same_result(undisturbed: Path, tmp_path: Path):
    config = write_config(tmp_path)
    moments = [
        "runs/tiny/manifest.json",  # data building
        "tensors/**/*",
        "runs/tiny/pods/*/spec.json",  # training
        "runs/tiny/pods/*/metrics.jsonl",
        "runs/tiny/pods/*/result.json",
        "runs/tiny/backtest/*",  # backtesting
    ]
    killed = [kill_when(config, moment) for moment in moments]
    assert sum(killed) >= 5, killed
    done = subprocess.run(command(config), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert metrics_bytes(config) == metrics_bytes(undisturbed)
    leftovers = [path.name for path in config.parent.rglob("*.tmp")]
    assert len(leftovers) <= len(moments)


def test_a_finished_run_is_printed_again_without_new_work(undisturbed: Path):
    folder = undisturbed.parent / "runs" / "tiny"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    outcome = run(load_config(undisturbed))
    assert set(outcome.metrics) >= STRATEGIES
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before


def test_a_run_folder_belongs_to_its_settings(undisturbed: Path):
    config = load_config(undisturbed)
    with pytest.raises(RunError, match=r"seed.*1 there, 5 here.*--name"):
        run(config.model_copy(update={"seed": 5}))


def test_more_pods_extend_a_finished_run(undisturbed: Path, tmp_path: Path):
    shutil.copytree(undisturbed.parent / "runs", tmp_path / "runs")
    config = write_config(
        tmp_path, tournament=TINY["tournament"] | {"pods": 4}, cache=str(undisturbed.parent / "tensors")
    )
    assert run(load_config(config)).trials == 4
    assert yaml.safe_load((tmp_path / "runs" / "tiny" / "config.yaml").read_text())["tournament"]["pods"] == 4


def test_the_search_is_repeated_without_information(tmp_path: Path):
    source = TINY["data"]["source"] | {"num_sessions": 24}  # type: ignore[index]
    config = write_config(tmp_path, data={"source": source}, backtest={"control": True, "sensitivity": True})
    run(load_config(config))
    folder = tmp_path / "runs" / "tiny"
    honesty = json.loads((folder / "backtest" / "honesty.json").read_text())
    assert honesty["trials"] == 3
    assert honesty["control"]["metrics"]["cumulative_return"] is not None
    assert json.loads((folder / "backtest" / "sensitivity.json").read_text())
    assert len(list(folder.glob("control/pods/*/result.json"))) == 3


def test_windows_too_short_for_the_control_are_judged_without_it(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(undisturbed.parent / "runs", tmp_path / "runs")
    tensors = str(undisturbed.parent / "tensors")
    run(load_config(write_config(tmp_path, backtest={"control": True, "sensitivity": False}, cache=tensors)))
    assert "no control: 2 sessions are too few" in capsys.readouterr().out
    honesty = json.loads((tmp_path / "runs" / "tiny" / "backtest" / "honesty.json").read_text())
    assert honesty["control"] is None


def test_walking_forward_tests_every_session_once_and_goes_on_after_a_kill(tmp_path: Path):
    source = TINY["data"]["source"] | {"num_sessions": 17}  # type: ignore[index]
    lengths = {"train_sessions": 6, "validation_sessions": 3, "test_sessions": 3, "embargo_sessions": 1}
    judged = {"control": False, "sensitivity": True}
    config = write_config(tmp_path, data={"source": source}, walkforward=lengths, backtest=judged)
    words = [sys.executable, "-m", "fintrader", "walkforward", str(config)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not any(config.parent.glob("runs/tiny/folds/00/pods/*/result.json")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "tiny"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["trials"] == 6
    assert manifest["command"] == f"fintrader walkforward {folder / 'config.yaml'}"
    stored = read_backtest(folder / "backtest")
    assert set(stored.strategies) >= STRATEGIES
    assert stored.equity.groupby("strategy")["session"].nunique().unique().tolist() == [6]
    folds = stored.context["folds"]
    whole = stored.metrics["buy_and_hold"]["cumulative_return"]
    assert whole is not None
    # what the folds leave behind, one after another, less what it costs to leave the first one's positions
    chained = (1 + folds[0]["buy_and_hold"]) * (1 + folds[1]["buy_and_hold"]) - 1
    assert chained - 0.0021 * 1.5 < whole < chained
    drawn = stored.honesty["random_portfolios"]
    assert drawn["count"] == 10_000
    assert 0 <= drawn["share_above"]["cumulative_return"] <= 1
    assert stored.honesty["sharpe"]["trial_variance_source"].count("6 trials on 2 selection windows") == 1
    swept = {row["setting"]: row for row in stored.sensitivity if row["kind"] == "cost_bps"}
    assert swept["20"]["chosen"]
    assert swept["20"]["cumulative_return"] == stored.metrics["ensemble"]["cumulative_return"]
    assert {row["kind"] for row in stored.sensitivity} == {"cost_bps", "fill", "delay_bars"}
    assert "What if one choice had been another?" in (folder / "backtest" / "report.html").read_text()
    again = fintrader("backtest", str(folder), "--backtest.cost-bps", "0")
    assert again.returncode == 0, again.stderr
    cheaper = read_backtest(folder / "backtest")
    assert cheaper.context["looks"] == 2
    assert cheaper.metrics["ensemble"]["cost_usd"] == 0
    assert len(cheaper.context["folds"]) == 2


def test_a_second_look_at_other_costs_is_counted_and_named(undisturbed: Path, tmp_path: Path):
    shutil.copytree(undisturbed.parent / "runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "tiny"
    before = read_backtest(folder / "backtest")
    words = ["--backtest.cost-bps", "0", "--cache", str(undisturbed.parent / "tensors")]
    done = fintrader("backtest", str(folder), *words)
    assert done.returncode == 0, done.stderr
    assert "net of 0 bps a trade" in done.stdout
    after = read_backtest(folder / "backtest")
    assert (before.context["looks"], after.context["looks"], after.context["cost_bps"]) == (1, 2, 0.0)
    assert after.metrics["ensemble"]["cost_usd"] == 0
    assert before.metrics["ensemble"]["cost_usd"] != 0


def test_runs_are_compared_on_one_page(undisturbed: Path, tmp_path: Path):
    folder = undisturbed.parent / "runs" / "tiny"
    shutil.copytree(folder / "backtest", tmp_path / "other" / "backtest")
    out = tmp_path / "comparison.html"
    done = fintrader("compare", str(folder), str(tmp_path / "other"), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "6 trials in all" in out.read_text()
    shutil.copytree(folder / "backtest", tmp_path / "elsewhere" / "tiny" / "backtest")
    places = (folder, tmp_path / "other", tmp_path / "elsewhere" / "tiny")
    done = fintrader("compare", *map(str, places), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "9 trials in all" in out.read_text()
    assert "elsewhere/tiny" in out.read_text()
    assert fintrader("compare", str(folder), str(tmp_path / "nowhere")).returncode == 2


def test_choosing_another_union_member_keeps_what_both_share(config: Path):
    assert load_config(config, {"data.source.kind": "synthetic"}).data.source.kind == "synthetic"
    with pytest.raises(ConfigError, match="choose one of"):
        load_config(config, {"agent.algo": "nonsense"})


def fintrader(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fintrader", *words], capture_output=True, text=True, check=False)


def test_a_run_answers_questions(undisturbed: Path):
    folder = str(undisturbed.parent / "runs" / "tiny")
    status = json.loads(fintrader("status", folder, "--json").stdout)
    assert status["finished"]
    assert status["trials"] == 3
    assert "p0000" in fintrader("status", folder).stdout
    youngest = fintrader("lineage", folder, "p0002")
    assert youngest.returncode == 0, youngest.stderr
    assert "p0002" in youngest.stdout
    rebuilt = fintrader("tournament", "rebuild", folder)
    assert "made again from 3 results" in rebuilt.stdout, rebuilt.stderr
    assert fintrader("lineage", folder, "p9999").returncode == 2
    assert fintrader("scale", folder, "--pods", "0").returncode == 2
    assert fintrader("status", str(undisturbed)).returncode == 2


def test_a_finished_run_can_be_replayed_byte_for_byte(undisturbed: Path):
    done = fintrader("replay", str(undisturbed.parent / "runs" / "tiny"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal, byte for byte" in done.stdout


def test_one_agent_trains_without_a_tournament(tmp_path: Path):
    path = train_one(load_config(write_config(tmp_path)))
    first = path.read_bytes()
    assert load_policy(path) is not None
    metrics = json.loads((path.parent / "validation.json").read_text())["metrics"]
    assert set(metrics) == {"policy", "buy_and_hold", "equal_weight", "benchmark"}
    assert train_one(load_config(tmp_path / "tiny.yaml")).read_bytes() == first
