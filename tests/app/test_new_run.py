import json
import os
import signal
import subprocess
import sys
from datetime import date

import pytest
import yaml

from fintrader.config import list_models, validate
from fintrader.errors import ConfigError, FintraderError
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.wide_search import widen
from fintrader.results.folders import Folder, RunsFolder
from fintrader.runs import RunFolder
from fintrader_app import forms, jobs, launch, own_bars
from fintrader_app.artifacts import load_summary
from tests import ROOT
from tests.app.conftest import box, healthy, one, said
from tests.bars.tables import minute_table, write_csv
from tests.engines.runs import write_config
from tests.engines.waiting import answers, free_port, until


def test_defaults_are_valid_for_every_model_of_a_run():
    def walk(model):
        for field in model.model_fields.values():
            for below in list_models(field.annotation):
                if not any(inner.is_required() for inner in below.model_fields.values()):
                    try:
                        expected = below()
                    except ValueError:  # a model whose defaults need a companion
                        continue
                    assert (
                        validate(
                            below, forms.collect_defaults(forms.read_schema(below)), "defaults"
                        )
                        == expected
                    )
                walk(below)

    walk(RunConfig)


def widgets(test):
    kinds = ("text_input", "number_input", "selectbox", "toggle", "date_input")
    found = (one for kind in kinds for one in test.get(kind))
    return {str(one.key): one for one in found if str(one.key).startswith("new:")}


def widget(test, ending):
    return next(found for key, found in widgets(test).items() if key.endswith(ending))


@pytest.mark.parametrize("section", ["run", "data", "env", "agent", "tournament", "backtest"])
def test_every_field_has_a_widget(open_page, tmp_path, section):
    test = open_page(tmp_path, "new_run", section=section)
    healthy(test)
    assert not test.error, said(test)
    keys = list(widgets(test))
    if section == "run":
        assert any(key.endswith(".name") for key in keys)
        return
    model = list_models(RunConfig.model_fields[section].annotation)[0]
    for name in model.model_fields:
        assert any(key.endswith(f".{name}") or f".{name}." in key for key in keys), name


def test_a_form_shows_the_basic_settings_and_folds_the_others(open_page, tmp_path):
    for section, basic, rest in (
        ("env", "cost_bps", "borrow_bps_per_year"),
        ("tournament", "pods", "temperature"),
        ("run", "seed", "cache"),
    ):
        test = open_page(tmp_path, "new_run", section=section)
        (fold,) = [one for one in test.expander if one.label.endswith(" more settings")][:1]
        keys = [str(one.key) for one in fold if getattr(one, "key", None)]
        assert any(key.endswith(f".{rest}") for key in keys), section
        assert not any(key.endswith(f".{basic}") for key in keys), section
        assert widget(test, f".{basic}")


def test_an_untouched_form_changes_nothing(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="run")
    before = yaml.safe_dump(test.session_state["new_draft"])
    for section in ("env", "agent", "tournament", "data", "backtest", "run"):
        test.query_params["section"] = section
        test.run()
        assert not test.error, (section, said(test))
    assert yaml.safe_dump(test.session_state["new_draft"]) == before


def test_changes_reach_the_yaml_and_the_models(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="env")
    widget(test, ".cost_bps").set_value(3.5).run()
    test.query_params["section"] = "yaml"
    test.run()
    shown = yaml.safe_load(test.code[0].value)
    assert shown["env"]["cost_bps"] == 3.5
    assert validate(RunConfig, shown, "shown").env.cost_bps == 3.5


def test_a_mistake_is_named_and_cannot_be_started(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="run")
    widget(test, ".name").set_value("../evil").run()
    assert "name" in said(test)
    assert test.error
    assert one(test.button, "Start").disabled


def test_runs_made_here_get_an_unused_name(open_page, site):
    (site / "runs" / "quickstart").mkdir()
    test = open_page(site, "new_run", section="run")
    assert test.session_state["new_draft"]["name"] == "quickstart-2"


SLEEPER = """
import sys, time, signal, fintrader.cli
def run(arguments):
    try:
        print("at work on", arguments[-1], flush=True)
        time.sleep(3600)
    except KeyboardInterrupt:
        print("stored what there is", flush=True)
        sys.exit(130)
fintrader.cli.main = run
from fintrader_app import jobs
sys.argv = sys.argv[:1] + sys.argv[2:]
jobs.main()
"""


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Jobs that run a stand-in for the command line: it prints a line, sleeps, and answers an
    interrupt."""
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    real = subprocess.Popen

    def popen(arguments, **kwargs):
        assert arguments[:4] == [sys.executable, "-P", "-m", "fintrader_app.jobs"]
        return real([sys.executable, str(script), *arguments[3:]], **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(jobs.subprocess, "Popen", popen)
    (tmp_path / "runs" / ".launched").mkdir(parents=True)
    return RunsFolder.at(tmp_path / "runs")


def test_a_job_is_started_found_again_stopped_and_killed(quick):
    job = jobs.start(quick, "one", "name: one\n")
    try:
        assert job.alive
        until(lambda: "at work on" in jobs.read_log_end(quick, "one"))
        assert (quick.root / ".launched" / "one.yaml").read_text() == "name: one\n"
        found = jobs.read_job(quick, "one")  # as another app would, from the record alone
        assert found == job
        assert os.getsid(job.pid) == job.pid, "it must not die with the app's terminal"
        assert jobs.stop(found)
        until(lambda: not jobs.read_job(quick, "one").alive)
        assert "stored what there is" in jobs.read_log_end(quick, "one")
        assert not jobs.stop(found)
        again = jobs.start(quick, "two", "name: two\n")
        assert jobs.kill(again)
        until(lambda: not again.alive)
        assert not jobs.kill(again)
    finally:
        jobs.kill(job)


STARTS_AND_SERVES = """
import os, sys
from pathlib import Path
from fintrader_app import jobs, launch
from fintrader.cli.start import AppSettings
from fintrader.results.folders import Folder, RunsFolder
runs, config, port = RunsFolder.at(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
jobs.start(runs, "tiny", config.read_text())
served = launch.build_command(AppSettings(port=port, headless=True))
os.execve(served[0], served, launch.build_environment(runs.root))
"""


@pytest.mark.slow
def test_a_real_run_survives_the_server_that_started_it(tmp_path):
    """The very process that started a run becomes the server; both its group and it are told to end
    at once."""
    config = write_config(tmp_path)
    port = free_port()
    health = f"http://127.0.0.1:{port}/_stcore/health"
    arguments = [
        sys.executable,
        "-c",
        STARTS_AND_SERVES,
        str(tmp_path / "runs"),
        str(config),
        str(port),
    ]
    server = subprocess.Popen(
        arguments, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL
    )
    runs = RunsFolder.at(tmp_path / "runs")

    try:
        until(lambda: answers(health))
        job = jobs.read_job(runs, "tiny")
        assert job.alive
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=300)
        assert not answers(health)
        assert job.alive, jobs.read_log_end(runs, "tiny")
        until(lambda: not jobs.read_job(runs, "tiny").alive)
        assert load_summary(runs, "tiny").status == "finished", jobs.read_log_end(runs, "tiny")
        assert load_summary(runs, "tiny").metrics
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        jobs.kill(jobs.read_job(runs, "tiny"))


def test_a_reused_pid_is_not_touched(quick):
    record = {"name": "old", "pid": os.getpid(), "born": 1, "started": 0.0}
    (quick.root / ".launched" / "old.json").write_text(json.dumps(record))
    job = jobs.read_job(quick, "old")
    assert not job.alive
    assert not jobs.stop(job)
    assert not jobs.kill(job)


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"name": "x", "pid": 1, "born": 1, "started": 1}', '{"pid": "a"}']
)
def test_a_damaged_record_is_passed_over(quick, record):
    (quick.root / ".launched" / "x.json").write_text(record)
    assert jobs.list_jobs(quick) == []
    with pytest.raises(FintraderError):
        jobs.read_job(quick, "x")


@pytest.mark.parametrize("name", ["../x", "", ".launched", "a/b", "x\0", "-", "a b"])
def test_names_are_checked(quick, name):
    with pytest.raises(FintraderError):
        jobs.start(quick, name, "name: x\n")
    assert not list(quick.root.rglob("*.yaml"))


def test_a_run_at_work_is_not_started_twice(quick):
    with RunFolder.named("busy", quick.root).lock(), pytest.raises(FintraderError, match="at work"):
        jobs.start(quick, "busy", "name: busy\n")
    job = jobs.start(quick, "fresh", "name: fresh\n")  # without a lock yet
    try:
        with pytest.raises(FintraderError, match="at work"):
            jobs.start(quick, "fresh", "name: fresh\n")
        assert jobs.read_job(quick, "fresh") == job
    finally:
        jobs.kill(job)


def test_last_words_hold_no_control_characters(quick):
    (quick.root / ".launched" / "x.log").write_bytes(b"a\x1b[31mb\r50 %\x00\nlast\xff")
    words = jobs.read_log_end(quick, "x")
    assert "\x1b" not in words
    assert "\x00" not in words
    assert words.endswith("last\ufffd")


@pytest.mark.slow
def test_continuing_keeps_the_earlier_output(quick):
    for attempt in (1, 2):
        job = jobs.start(quick, "one", "name: one\n")
        until(lambda n=attempt: jobs.read_log_end(quick, "one").count("at work on") == n)
        jobs.kill(job)
        until(lambda one=job: not one.alive)


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("--- started a\nfintrader: x.csv: no such file\n", "x.csv: no such file"),
        ("--- started a\nfintrader: x.csv: no such file\n--- started b\nat work\n", None),
        ("--- started a\nfintrader: interrupted; run the same command again to resume\n", None),
        ("", None),
    ],
)
def test_a_job_that_gave_up_says_why(quick, printed, why):
    (quick.root / ".launched" / "one.log").write_text(printed)
    assert jobs.explain_end(quick, "one") == why


def test_what_is_not_there_is_named_before_the_start(open_page, tmp_path, monkeypatch):
    test = open_page(tmp_path, "new_run", section="data")
    widget(test, "data.path").set_value("nowhere/bars.csv").run()
    assert any("bar file" in str(error.value) for error in test.error), said(test)
    assert one(test.button, "Start").disabled


def test_time_is_estimated_before_the_start(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="run")
    assert "A guess" in said(test)
    assert "GiB of memory" in said(test)
    assert "of it for the null model" in said(test)


def test_the_search_space_has_a_row_a_setting(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="tournament")
    adder = box(test, "Add a setting")
    assert "learning_rate" not in adder.options
    adder.set_value("gamma").run()
    one(test.button, "Add").click().run()
    assert list(test.session_state["new_draft"]["tournament"]["search"]) == [
        "learning_rate",
        "gamma",
    ]
    assert "expected a number" in said(test)
    for end, value in (("low", 0.9), ("high", 0.99)):
        widget(test, f"search.gamma.{end}").set_value(value).run()
    assert not test.error, said(test)
    next(
        button for button in test.button if str(button.key).endswith("learning_rate.remove")
    ).click().run()
    assert list(test.session_state["new_draft"]["tournament"]["search"]) == ["gamma"]


def test_one_button_searches_algorithms_and_settings(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="yaml")
    before = yaml.safe_load(test.code[0].value)
    test.button(key="new_search").click().run()
    healthy(test)
    assert not test.error, said(test)
    after = yaml.safe_load(test.code[0].value)
    expected = widen(RunConfig.model_validate(before)).model_dump(mode="json")
    assert after == expected
    assert len(after["agent"]) > 5


def test_a_search_reaches_the_widgets_that_are_shown(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="tournament")
    before = yaml.safe_load(yaml.safe_dump(test.session_state["new_draft"]))
    expected = widen(RunConfig.model_validate(before)).model_dump(mode="json")
    test.button(key="new_search").click().run().run()
    assert test.session_state["new_draft"]["tournament"] == expected["tournament"]


def test_own_configurations_go_before_shipped_ones(open_page, tmp_path, monkeypatch):
    (tmp_path / "quickstart.yaml").write_text("env: {cost_bps: 7.5}\n")
    places = [tmp_path, ROOT / "configs"]
    monkeypatch.setattr("fintrader_app.shell.list_config_folders", lambda: places)
    test = open_page(tmp_path, "new_run")
    assert test.session_state["new_draft"]["env"]["cost_bps"] == 7.5


def test_dates_are_picked_and_rewards_chosen(open_page, tmp_path):
    test = open_page(tmp_path, "new_run", section="data")
    widget(test, "data.start").set_value(date(2024, 5, 3)).run()
    assert test.session_state["new_draft"]["data"]["start"] == "2024-05-03"
    test.query_params["section"] = "env"
    test.run()
    reward = box(test, "Reward")
    assert "differential_sharpe" in reward.options
    reward.set_value("drawdown").run()
    assert test.session_state["new_draft"]["env"]["reward"] == "drawdown"


@pytest.mark.slow
def test_own_bars_become_a_configuration_to_start_from(open_page, tmp_path, monkeypatch):
    bars = write_csv(tmp_path, minute_table(3, 12))
    test = open_page(tmp_path, "new_run", section="run")
    monkeypatch.setenv(launch.CONFIGS_VARIABLE, str(tmp_path / "configs"))
    test.text_input(key="own_path").set_value(str(tmp_path / "nothing.csv")).run()
    test.button(key="own_detect").click().run()
    assert any("no bar file there" in str(error.value) for error in test.error)
    test.text_input(key="own_path").set_value(str(bars)).run()
    test.button(key="own_detect").click().run()
    assert "3 symbols" in said(test)
    assert "How sure" in next(frame.value for frame in test.dataframe if "Found" in frame.value)
    test.button(key="own_write").click().run()
    (written,) = (tmp_path / "configs").glob("*.yaml")
    assert validate(RunConfig, yaml.safe_load(written.read_text()), "written").data.path == str(
        bars
    )
    assert own_bars.find_unused(written).name == f"{written.stem}-2.yaml"


@pytest.mark.slow
def test_uploaded_bars_are_read_by_answers(open_page, tmp_path, monkeypatch):
    """What no guess can tell is answered as for `init`."""
    monkeypatch.chdir(tmp_path)
    names = {"open": "A", "high": "B", "low": "C", "close": "D"}
    named = minute_table(3, 12).rename(columns=names)
    test = open_page(tmp_path, "new_run", section="run")
    monkeypatch.setenv(launch.CONFIGS_VARIABLE, str(tmp_path / "configs"))
    bars = named.to_csv(index=False).encode()
    for _ in range(2):  # a second upload does not replace the first
        test.file_uploader(key="own_uploads").upload("../bars.csv", bars).run()
        for _ in range(2):  # written once
            test.button(key="own_detect").click().run()
    kept = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.csv")}
    assert kept == {"uploads/bars/bars.csv", "uploads/bars-2/bars.csv"}
    assert any("which columns are the open" in str(error.value) for error in test.error)
    for role, column in names.items():
        test.text_input(key=f"own.{role}").set_value(column).run()
    test.button(key="own_detect").click().run()
    assert "3 symbols" in said(test)
    test.button(key="own_write").click().run()
    (written,) = (tmp_path / "configs").glob("*.yaml")
    columns = yaml.safe_load(written.read_text())["data"]["source"]["columns"]
    assert columns.items() >= names.items()


@pytest.mark.parametrize(
    "name",
    ["NASDAQ_AAPL, 5.csv", "AAPL (1).csv", "^GSPC.csv", "EUR=X.csv", "BRK B.csv", "深圳1.csv"],
)
def test_an_uploaded_file_keeps_the_name_that_holds_its_symbol(name):
    assert own_bars.clean_name(name) == name
    assert own_bars.clean_name(f"../a/.\n{name}") == name


@pytest.mark.parametrize("name", ["", "..", "...", "\n", "é" * 150 + ".csv"])
def test_a_name_that_is_no_files_is_refused(name):
    with pytest.raises(ConfigError, match="give the file a name"):
        own_bars.clean_name(name)


def test_browsing_shows_no_links_and_nothing_hidden(tmp_path):
    for name in ("b.csv", "a.parquet", "notes.md", ".secret.csv"):
        (tmp_path / name).touch()
    (tmp_path / "inside").mkdir()
    (tmp_path / "out").symlink_to("/")
    assert own_bars.list_entries(Folder(tmp_path.resolve())) == ["inside/", "a.parquet", "b.csv"]
