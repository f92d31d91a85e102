"""The page of deployments: finished, halted, damaged, absent."""

import shutil

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from fintrader.deploy import control, status
from fintrader.deploy.deployment import report_drift
from fintrader_app.guard import GUARD_VARIABLE
from fintrader_app.launch import DEPLOYMENTS_DIR_VARIABLE, RUNS_DIR_VARIABLE
from tests import ROOT
from tests.engines.deployments import frozen, replayed, run_live, settings

SCRIPT = ROOT / "app" / "fintrader_app" / "views" / "live.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with one deployment that has ended, and its drift report."""
    folder = tmp_path_factory.mktemp("deployments")
    data = settings(
        features={"names": ["return_1", "sma_26"]}, windows={"fractions": [0.6, 0.3, 0.1]}
    )
    bundle, market = frozen(folder / "mine", data)
    replayed(folder / "mine", bundle, market).close()
    report_drift(folder / "mine")
    return folder


def drawn(folder, monkeypatch):
    monkeypatch.setenv(DEPLOYMENTS_DIR_VARIABLE, str(folder))
    monkeypatch.setenv(RUNS_DIR_VARIABLE, str(folder / "runs"))
    page = AppTest.from_file(str(SCRIPT), default_timeout=60).run()
    assert not page.exception
    return page


def test_a_deployment_is_shown(made, monkeypatch):
    monkeypatch.delenv(GUARD_VARIABLE, raising=False)
    page = drawn(made, monkeypatch)
    assert {metric.label for metric in page.metric} >= {
        "Bars",
        "Broker",
        "Account",
        "Newest decision",
    }
    assert [heading.value for heading in page.header][:3] == [
        "Account and twin",
        "Cost of the orders",
        "Targets and holdings",
    ]
    assert len(page.get("plotly_chart")) == 3
    assert page.dataframe[0].value["Return"].nunique() == 1, "the account is its twin's"
    assert len(page.dataframe) == 5
    assert not page.button  # nothing here trades


def test_a_deployment_is_on_one_clock(made, monkeypatch):
    page = drawn(made, monkeypatch)
    decided = {metric.label: metric.value for metric in page.metric}["Newest decision"]
    assert decided.endswith(("EST", "EDT"))
    (switch,) = [one for one in page.get("button_group") if one.label == "Clock"]
    switch.set_value("utc").run()
    assert not page.exception
    then = {metric.label: metric.value for metric in page.metric}["Newest decision"]
    assert then.endswith("UTC")
    zoned = pd.Timestamp(decided[:16], tz="America/New_York")
    assert pd.Timestamp(then[:16], tz="UTC") == zoned
    assert all(when.endswith("UTC") for when in page.dataframe[-1].value["When"])


def test_a_halt_says_why_and_what_goes_on(tmp_path, monkeypatch):
    bundle, market = frozen(
        tmp_path / "mine-paper", settings(features={"names": ["return_1", "sma_26"]})
    )
    run_live(tmp_path / "mine-paper", bundle, market, bars=12).close()
    control.ask(tmp_path / "mine-paper", "halt")
    run_live(tmp_path / "mine-paper", bundle, market, bars=22).close()
    page = drawn(tmp_path, monkeypatch)
    assert "halted" in page.markdown[0].value
    banner, halted = (error.value for error in page.error)
    assert banner.startswith("Synthetic market with a planted signal")
    assert "`fintrader resume mine-paper`" in halted  # to be copied as it stands


def press(page, label):
    (found,) = [one for one in page.button if one.label == label]
    assert not found.disabled, label
    return found.click().run()


def test_behind_the_token_it_halts_resumes_and_flattens(tmp_path, monkeypatch):
    home = tmp_path / "mine-paper"
    bundle, market = frozen(home, settings(features={"names": ["return_1", "sma_26"]}))
    run_live(home, bundle, market, bars=12).close()
    monkeypatch.delenv(GUARD_VARIABLE, raising=False)  # a server's page may have set it here
    assert not drawn(tmp_path, monkeypatch).button
    monkeypatch.setenv(GUARD_VARIABLE, "token")
    page = drawn(tmp_path, monkeypatch)
    disabled = [one.label for one in page.button if one.disabled]
    assert disabled == ["Resume", "Sell everything", "Sell all holdings"]
    page = press(page, "Halt")
    assert status.read_status(home).requests == ("halt",)
    assert "Asked to halt" in drawn(tmp_path, monkeypatch).warning[0].value
    run_live(home, bundle, market, bars=17).close()
    page = drawn(tmp_path, monkeypatch)
    press(page, "Resume")
    assert status.read_status(home).requests == ("resume",)
    page = drawn(tmp_path, monkeypatch)
    page.text_input[0].set_value("mine").run()
    assert [one.disabled for one in page.button if one.label == "Sell everything"] == [True]
    page.text_input[0].set_value("mine-paper").run()
    press(page, "Sell everything")
    assert status.read_status(home).requests == ("resume", "flatten")
    run_live(home, bundle, market, bars=18).close()
    page = drawn(tmp_path, monkeypatch)
    (_, left) = (error.value for error in page.error)
    assert left.startswith("Not flat yet: asked to flatten; not flat yet")
    assert {one.label for one in page.button if not one.disabled} == set()


def test_all_deployments_are_flattened_behind_the_token(made, tmp_path, monkeypatch):
    shutil.copytree(made / "mine", tmp_path / "ended")
    for name in ("one", "two"):
        frozen(tmp_path / name, settings(features={"names": ["return_1", "sma_26"]}))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "journal.sqlite").touch()
    monkeypatch.delenv(GUARD_VARIABLE, raising=False)
    page = drawn(tmp_path, monkeypatch)
    assert not page.button
    assert not page.text_input
    monkeypatch.setenv(GUARD_VARIABLE, "token")
    page = drawn(tmp_path, monkeypatch)
    assert {one.label for one in page.button if not one.disabled} == set()
    label = "Type all to confirm"
    (typed,) = [one for one in page.text_input if one.label == label]
    page = press(typed.set_value("all").run(), "Sell all holdings")
    assert any("torn" in error.value for error in page.error)
    for name, asked in {"ended": [], "one": ["flatten"], "two": ["flatten"]}.items():
        assert [kind for _, kind in control.list_requests(tmp_path / name)] == asked
    shutil.rmtree(tmp_path / "torn")
    page = drawn(tmp_path, monkeypatch)
    (typed,) = [one for one in page.text_input if one.label == label]
    page = press(typed.set_value("all").run(), "Sell all holdings")
    assert page.toast[0].value == "Asked to flatten: one, two."


def test_damage_and_absence_are_sentences(made, tmp_path, monkeypatch):
    assert "fintrader paper" in drawn(tmp_path, monkeypatch).info[0].value.replace("\\", "")
    shutil.copytree(made / "mine", tmp_path / "mine")
    (tmp_path / "mine" / "journal.sqlite").write_bytes(b"123")
    page = drawn(tmp_path, monkeypatch)
    assert "journal" in page.error[0].value
