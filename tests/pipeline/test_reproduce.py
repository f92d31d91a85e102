import json
import re
import shutil
from pathlib import Path

import pytest

from fintrader.cli import main
from fintrader.errors import ConfigError, FintraderError, ReportError
from fintrader.pipeline.backtest_context import select_portable
from fintrader.pipeline.config import load_config
from fintrader.pipeline.reproduction import (
    check_report,
    compare_metrics,
    compare_origin,
    read_stored_config,
)
from fintrader.pipeline.run_stages import run
from fintrader.report.recipe import describe_software, element, read_record
from fintrader.results.backtest_files import read_backtest
from fintrader.results.verify import list_problems
from tests.engines.runs import TINY, fintrader, write_config

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a tiny finished run."""
    small = TINY["tournament"] | {"pods": 2}
    quick = {"null_model": False, "sensitivity": False, "tear_sheet": "none"}
    path = write_config(tmp_path_factory.mktemp("finished"), tournament=small, backtest=quick)
    return run(load_config(path))


@pytest.fixture
def report(finished, tmp_path):
    """Its report alone, elsewhere, as a colleague gets it."""
    return Path(shutil.copy(finished / "backtest" / "report.html", tmp_path / "report.html"))


def changed(report, **values):
    """The same report with other values in its record."""
    record = read_record(report) | values
    text = report.read_text()
    new = element(record)
    return _written(
        report,
        re.sub(r'<script type="application/json" id="record".*?</script>', lambda _: new, text),
    )


def reproduce(report, **how):
    """The metrics that come out otherwise."""
    return list_problems(check_report(report, **how))


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.slow
def test_a_report_carries_everything_it_was_made_from(finished, report):
    record = read_record(report)
    stored = read_backtest(finished / "backtest")
    plain = {name: values.by_key() for name, values in stored.metrics.items()}
    assert record["metrics"] == plain  # unrounded
    recipe = record["recipe"]
    assert recipe["config"] == select_portable(load_config(finished / "config.yaml"))
    assert "runs_dir" not in recipe["config"]
    assert str(finished.parent) not in element(record)
    assert {name: recipe[name] for name in describe_software()} == describe_software()
    assert record["market"]["source"]["kind"] == "synthetic"
    assert record["market"]["calendar"] == "XNAS"
    assert record["market"]["build_version"] >= 7
    assert len(record["data_hash"]) == 64
    page = report.read_text()
    assert (
        page.index("Synthetic market with a planted signal")
        < page.index(stored.opening.headline)
        < page.index(stored.opening.why)
    )


def test_the_command_runs_it_again_and_finds_every_metric_equal(report, tmp_path):
    done = fintrader("verify", str(report), "--keep", str(tmp_path / "again"))
    assert done.status == 0, done.err
    total = sum(len(row) for row in read_record(report)["metrics"].values())
    assert f"{total} of {total} metrics equal: the report is reproduced" in done.out
    again = read_backtest(tmp_path / "again" / "tiny" / "backtest").metrics
    plain = {name: values.by_key() for name, values in again.items()}
    assert plain == read_record(report)["metrics"]
    done = fintrader("verify", str(report), "--keep", str(tmp_path / "again"))
    assert done.status == 2
    assert "is there already; choose another folder for --keep" in done.err


@pytest.mark.slow
def test_a_backtest_made_again_is_reproduced_with_its_own_settings_and_a_touched_number_found(
    finished, tmp_path
):
    folder = Path(shutil.copytree(finished, tmp_path / "runs" / finished.name))
    main(["backtest", str(folder), "--env.cost-bps", "5"])
    record = read_record(folder / "backtest" / "report.html")
    assert record["recipe"]["backtest"]["env"]["cost_bps"] == 5
    assert record["recipe"]["config"]["env"]["cost_bps"] != 5
    metrics = record["metrics"]
    metrics["ensemble"]["sharpe"] *= 1.01
    (problem,) = reproduce(changed(folder / "backtest" / "report.html", metrics=metrics))
    assert problem.startswith("ensemble sharpe: ")
    assert "%" in problem


def test_other_bars_are_told_before_anything_is_trained(report, tmp_path):
    with pytest.raises(ReportError, match=r"other bars: .*--data PATH"):
        reproduce(changed(report, data_hash="0" * 64), keep=tmp_path / "kept")
    assert not list((tmp_path / "kept").glob("*/leaderboard.sqlite"))
    record = read_record(report)
    config = record["recipe"]["config"]
    config["data"] = {**config["data"], "path": str(tmp_path / "gone.parquet")}
    changed(report, recipe={**record["recipe"], "config": config})
    with pytest.raises(ReportError, match=r"are not available here .*gone\.parquet.*--data PATH"):
        reproduce(report)
    with pytest.raises(ReportError, match="are not available here"):
        reproduce(report, data=str(tmp_path / "elsewhere.parquet"))


def test_what_a_stranger_wrote_is_checked(report, tmp_path, monkeypatch):
    record = read_record(report)
    config = record["recipe"]["config"]
    foreign = {**config, "env": {**config["env"], "reward": "os:abort"}}
    with pytest.raises(ReportError, match=r"imports os:abort; .*--allow-code True"):
        reproduce(changed(report, recipe={**record["recipe"], "config": foreign}))
    (tmp_path / "odd-name.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for odd in ("odd-name:f", "odd-name:<f>"):  # no reference that the list of code leaves out
        features = {**config["data"]["features"], "names": ["return_1", odd]}
        foreign = {**config, "data": {**config["data"], "features": features}}
        with pytest.raises(FintraderError, match=odd):
            reproduce(changed(report, recipe={**record["recipe"], "config": foreign}))
    with pytest.raises(ConfigError, match="colour: unknown setting"):
        reproduce(
            changed(report, recipe={**record["recipe"], "config": {**config, "colour": "red"}})
        )
    with pytest.raises(ReportError, match="must not set runs_dir"):
        read_stored_config({**config, "runs_dir": "/etc"}, "it", allow_code=False)
    with pytest.raises(ReportError, match="made in Python"):
        reproduce(changed(report, recipe=describe_software()))
    with pytest.raises(ReportError, match="record is damaged"):
        reproduce(changed(report, recipe={**record["recipe"], "verb": "rm"}))
    with pytest.raises(ReportError, match="another version"):
        reproduce(changed(report, format="fintrader-report-0"))
    with pytest.raises(ReportError, match="no record"):
        reproduce(_written(tmp_path / "page.html", "<html></html>"))
    with pytest.raises(ReportError, match="No such file"):
        reproduce(tmp_path / "nowhere.html")
    with pytest.raises(ReportError, match="record is damaged"):
        reproduce(_written(tmp_path / "torn.html", element({"format": "x"}).replace("}", "")))


def test_no_text_leaves_the_record():
    hostile = "</script><script>alert(1)</script><!-- & \u2028"
    text = element({"run": hostile})
    inside = text.removeprefix('<script type="application/json" id="record">').removesuffix(
        "</script>"
    )
    assert not {"<", ">", "&", "\u2028"} & set(inside)
    assert json.loads(inside) == {"run": hostile}


def test_numbers_are_compared_as_closely_as_code_and_machine_allow():
    told = {"a": {"x": 1.0, "y": None, "z": 0.0}, "b": {"x": 2.0}}
    found = {"a": {"x": 1.0 + 1e-9, "y": None, "z": 1e-9}, "b": {"x": 2.0, "new": 3.0}}
    small = ({"a": {"p": 3e-7}}, {"a": {"p": 1e-8}})
    assert compare_metrics(*small, 1e-6)[1]
    count, differences = compare_metrics(told, found, 0.0)
    assert (count, [line.partition(":")[0] for line in differences]) == (5, ["a x", "a z", "b new"])
    assert compare_metrics(told, found, 1e-6)[1] == ["b new: None in the report, 3.0 here"]
    assert compare_metrics(told, told, 0.0) == (4, [])


def test_another_machine_or_version_is_named():
    here = describe_software()
    clean = {**here, "dirty": False}
    assert [said for said in compare_origin(clean) if "uncommitted" not in said] == []
    old = {**clean, "commit": "f" * 40, "versions": {**here["versions"], "torch": "1.0"}}
    said = " ".join(
        compare_origin(
            {**old, "processors": [{"processor": "Another 3000", "torch": "AVX", "numba": "x"}]}
        )
    )
    assert "commit ffffffffffff in the report" in said
    assert "torch 1.0 in the report" in said
    assert "processor Another 3000 in the report" in said
    fixed = {
        **clean,
        "processors": [{"processor": "Another 3000"}],
        "config": {"reproducible": "across_machines"},
    }
    assert "processor" not in " ".join(compare_origin(fixed))  # which promises the same bytes there
