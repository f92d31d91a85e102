"""The one command, end to end on a tiny market: files, determinism, and continuation after SIGKILL
at every stage."""

import json
import shutil
import subprocess
import sys
import time

import pytest
import yaml

from fintrader.backtesting import read_backtest
from fintrader.errors import RunError
from fintrader.market import build
from fintrader.pipeline.config import load_config
from fintrader.pipeline.data import make_market
from fintrader.pipeline.run_stages import claim, run, walk_forward
from fintrader.report.site import write_site
from fintrader.results.run import Run
from fintrader.runs import Manifest
from fintrader.verdict.looks import HOME
from tests.bars.tables import minute_table, write_csv
from tests.engines.runs import TINY, Struck, fintrader, struck_when, write_config

pytestmark = pytest.mark.usefixtures("in_this_process")
STRATEGIES = {
    "ensemble",
    "best",
    "ridge",
    "vol_targeted",
    "buy_and_hold",
    "equal_weight",
    "benchmark",
}


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path)


def metrics_bytes(config):
    return (config.parent / "runs" / "tiny" / "backtest" / "metrics.json").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The configuration of a finished run. Nobody may change what lies beside it."""
    path = write_config(tmp_path_factory.mktemp("undisturbed"))
    done = fintrader("run", str(path))
    assert done.status == 0, done.err
    for column in ("Cumulative return", "Sharpe", "Calmar", "ensemble", "buy and hold"):
        assert column.lower() in done.out.lower()
    assert "report.html" in done.out
    return path


def test_a_run_leaves_everything_behind(undisturbed):
    folder = undisturbed.parent / "runs" / "tiny"
    metrics = json.loads(metrics_bytes(undisturbed))
    assert set(metrics) >= STRATEGIES
    for name in ("equity.parquet", "positions.parquet", "trades.parquet", "report.html"):
        assert (folder / "backtest" / name).stat().st_size > 0, name
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["trials"] == 3
    assert manifest["engine"] == "fused"
    assert manifest["finished"]
    assert all(manifest["stages"][stage]["done"] for stage in ("data", "tournament", "backtest"))
    assert load_config(folder / "config.yaml").seed == 1
    results = [json.loads(path.read_text()) for path in folder.glob("pods/*/result.json")]
    assert len(results) == 3


@pytest.mark.parametrize(
    ("option", "match"),
    [
        (["--agent.algo", "apg"], "gradients, and resting orders have none"),
        (["--agent.network.kind", "market_once"], "does not read resting orders"),
    ],
)
def test_agents_that_cannot_name_prices_are_refused_before_any_pod(config, option, match):
    done = fintrader("run", str(config), "--env.action", "limit", *option)
    assert done.status == 2
    assert match in done.err
    assert not list((config.parent / "runs" / "tiny").glob("pods/*"))


@pytest.mark.slow
def test_a_run_of_orders_that_rest_goes_to_its_verdict(config):
    done = fintrader("run", str(config), "--env.action", "limit", "--env.clock", "session")
    assert done.status == 0, done.err
    assert "limit orders fill in bars that trade through their price" in " ".join(done.out.split())
    where = ["--deployments_dir", str(config.parent / "deployments")]
    frozen = fintrader("paper", str(config.parent / "runs" / "tiny"), "--freeze", *where)
    assert frozen.status == 0, frozen.err
    assert (config.parent / "deployments" / "tiny" / "bundle" / "bundle.json").is_file()


@pytest.mark.slow
def test_another_seed_gives_other_bytes(undisturbed, tmp_path, blank_reports):
    """That the same seed gives the same is what the next test finds."""
    other = write_config(tmp_path, seed=2)
    run(load_config(other))
    assert metrics_bytes(other) != metrics_bytes(undisturbed)


MOMENTS = (
    "tensors/*/*",  # data building
    "runs/tiny/manifest.json",
    "pods/*/result.json",  # training
    "backtest/metrics.json",  # backtesting
)


def test_ended_at_any_stage_the_same_call_completes_with_the_same_result(
    undisturbed, tmp_path, blank_reports
):
    config = write_config(tmp_path)
    for moment in MOMENTS:
        with pytest.raises(Struck), struck_when(moment):
            run(load_config(config))
    run(load_config(config))
    assert metrics_bytes(config) == metrics_bytes(undisturbed)
    assert not list(config.parent.rglob("*.tmp"))


EARLIER = [f"runs/tiny/{name}" for name in ("pods/*/spec.json", "pods/*/result.json", "backtest/*")]


def kill_when(command, config, appears):
    """Start a command and SIGKILL it (pods at work train on) once a file that matches the pattern
    has appeared."""
    words = [sys.executable, "-m", "fintrader", command, str(config)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed = False
    while process.poll() is None and not killed:
        if any(config.parent.glob(appears)):
            process.kill()
            killed = True
        time.sleep(0.002)
    process.wait()
    return killed


@pytest.mark.parametrize(
    "moments",
    [["runs/tiny/pods/*/metrics.jsonl"], ["runs/tiny/manifest.json", "tensors/**/*", *EARLIER]],
    ids=["in training", "everywhere else"],
)
@pytest.mark.slow
def test_a_killed_process_is_completed_with_the_same_result(undisturbed, tmp_path, moments):
    """Pods are processes of their own here, as they are for a user, and the command is a real
    one."""
    config = write_config(tmp_path)
    killed = [kill_when("run", config, moment) for moment in moments]
    assert sum(killed) >= max(1, len(moments) // 2), (
        killed
    )  # on a busy machine a look may come too late
    run(load_config(config))
    assert metrics_bytes(config) == metrics_bytes(undisturbed)
    assert len(list(config.parent.rglob("*.tmp"))) <= len(moments)


def test_a_finished_run_is_printed_again_without_new_work(undisturbed):
    folder = undisturbed.parent / "runs" / "tiny"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    assert set(read_backtest(run(load_config(undisturbed)) / "backtest").metrics) >= STRATEGIES
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before


def test_a_run_folder_belongs_to_its_settings(undisturbed):
    config = load_config(undisturbed)
    with pytest.raises(RunError, match=r"seed.*1 stored, 5 requested.*--name"):
        run(config.model_copy(update={"seed": 5}))


@pytest.mark.slow
def test_more_pods_extend_a_finished_run(undisturbed, tmp_path, blank_reports):
    shutil.copytree(undisturbed.parent / "runs", tmp_path / "runs")
    config = write_config(
        tmp_path,
        tournament=TINY["tournament"] | {"pods": 4},
        cache=str(undisturbed.parent / "tensors"),
    )
    folder = run(load_config(config))
    assert json.loads((folder / "manifest.json").read_text())["trials"] == 4
    assert (
        yaml.safe_load((tmp_path / "runs" / "tiny" / "config.yaml").read_text())["tournament"][
            "pods"
        ]
        == 4
    )


@pytest.mark.slow
def test_windows_too_short_for_the_control_are_judged_without_it(
    undisturbed, tmp_path, capsys, blank_reports
):
    shutil.copytree(undisturbed.parent / "runs", tmp_path / "runs")
    tensors = str(undisturbed.parent / "tensors")
    run(
        load_config(
            write_config(
                tmp_path, backtest={"null_model": True, "sensitivity": False}, cache=tensors
            )
        )
    )
    assert "no null model: 2 sessions are too few" in capsys.readouterr().out
    honesty = json.loads((tmp_path / "runs" / "tiny" / "backtest" / "verdict.json").read_text())
    assert honesty["selection"]["null_model"] is None


@pytest.mark.slow
def test_walking_forward_tests_every_session_once_and_goes_on_where_it_was(tmp_path):
    source = TINY["data"]["source"] | {"num_sessions": 17}
    lengths = {
        "sessions": [6, 3, 3],
    }
    judged = {"null_model": False, "sensitivity": True}
    config = write_config(tmp_path, data={"source": source}, walkforward=lengths, backtest=judged)
    with pytest.raises(Struck), struck_when("folds/00/pods/*/result.json"):
        walk_forward(load_config(config))
    walk_forward(load_config(config))
    folder = tmp_path / "runs" / "tiny"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["trials"] == 6
    assert manifest["command"] == f"fintrader walkforward {folder / 'config.yaml'}"
    stored = read_backtest(folder / "backtest")
    assert set(stored.strategies) >= STRATEGIES
    assert stored.equity.groupby("strategy")["session"].nunique().unique().tolist() == [6]
    folds = [fold.cumulative_return for fold in stored.context.folds]
    whole = stored.metrics["buy_and_hold"]["cumulative_return"]
    # what the folds leave behind, one after another, less what it costs to leave the first one's
    # positions
    chained = (1 + folds[0]["buy_and_hold"]) * (1 + folds[1]["buy_and_hold"]) - 1
    assert chained - 0.0021 * 1.5 < whole < chained
    drawn = stored.verdict.random_portfolios
    assert drawn.count == 10_000
    assert 0 <= drawn.share_above.cumulative_return <= 1
    assert stored.verdict.selection.trials == 6
    swept = {row.setting: row for row in stored.sensitivity if row.kind == "cost_bps"}
    assert swept["20"].is_chosen
    assert swept["20"].cumulative_return == stored.metrics["ensemble"]["cumulative_return"]
    assert {row.kind for row in stored.sensitivity} == {
        "cost_bps",
        "fill",
        "delay_bars",
        "capital_usd",
    }
    assert "Sensitivity to single choices" in (folder / "backtest" / "report.html").read_text()
    pages = write_site(Run(folder), tmp_path / "site").read_text()
    assert pages.count("The race of tiny/folds/") == 2
    again = fintrader(
        "backtest", str(folder), "--env.cost-bps", "0", "--backtest.sensitivity", "False"
    )
    assert again.status == 0, again.err
    cheaper = read_backtest(folder / "backtest")
    assert cheaper.context.look == 2
    assert cheaper.metrics["ensemble"]["cost_usd"] == 0
    assert len(cheaper.context.folds) == 2


def test_runs_are_compared_on_one_page(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path / "home"))  # other tests looked at these bars, too
    folder = undisturbed.parent / "runs" / "tiny"
    shutil.copytree(folder / "backtest", tmp_path / "other" / "backtest")
    out = tmp_path / "comparison.html"
    shutil.copytree(folder / "backtest", tmp_path / "elsewhere" / "tiny" / "backtest")
    places = (folder, tmp_path / "other", tmp_path / "elsewhere" / "tiny")
    done = fintrader("compare", *map(str, places), "--out", str(out))
    assert done.status == 0, done.err
    together = "3 trials in all of these runs together; 1 different result looked at on these bars"
    assert together in out.read_text(), "three copies of one search are one search"
    assert "elsewhere/tiny" in out.read_text()
    assert fintrader("compare", str(folder), str(tmp_path / "nowhere")).status == 2


def test_a_run_answers_questions(undisturbed):
    folder = str(undisturbed.parent / "runs" / "tiny")
    status = json.loads(fintrader("status", folder, "--json").out)
    assert status["finished"]
    assert status["trials"] == 3
    assert "p0000" in fintrader("status", folder).out
    youngest = fintrader("status", folder, "--lineage", "p0002")
    assert youngest.status == 0, youngest.err
    assert "p0002" in youngest.out
    checked = fintrader("verify", folder)
    assert checked.status == 0, checked.out + checked.err
    assert fintrader("status", folder, "--lineage", "p9999").status == 2
    assert fintrader("status", folder, "--workers", "0").status == 2
    assert fintrader("status", str(undisturbed)).status == 2


def test_a_refused_build_gives_the_name_back_and_a_market_keeps_it(tmp_path):
    table = minute_table(2, 12)
    data = {"path": str(tmp_path / "bars.csv"), "features": {"names": ["return_1"], "context": []}}
    write_csv(tmp_path, table.assign(low=-1.0))
    folder = tmp_path / "runs" / "tiny"
    refused = fintrader("run", str(write_config(tmp_path, data=data)))
    assert refused.status == 2
    assert "is no price" in refused.err
    write_csv(tmp_path, table)
    config = load_config(write_config(tmp_path, data=data | {"bar_minutes": 5}, seed=4))
    claim(config)  # other settings than those that were refused
    assert load_config(folder / "config.yaml").seed == 4
    make_market(config, Manifest.load(folder / "manifest.json"))
    with pytest.raises(RunError, match="was made with other settings"):
        claim(load_config(write_config(tmp_path, data=data, seed=4)))


def test_a_market_of_another_version_names_the_commit_that_made_it(tmp_path, monkeypatch):
    config = load_config(write_config(tmp_path))
    claim(config)
    manifest = Manifest.load(config.folder.root / "manifest.json")
    make_market(config, manifest)
    monkeypatch.setattr(build, "BUILD_VERSION", build.BUILD_VERSION + 1)
    made_by = str(manifest.values["commit"])[:12]
    with pytest.raises(RunError, match=rf"another version of fintrader \(commit {made_by}\)"):
        make_market(config, manifest)
