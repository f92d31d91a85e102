"""The server for assistants, through the protocol's own client."""

import asyncio
import json
import re
import sys
import time

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("mcp", reason="mcp is missing: pip install '.[mcp]'")
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver.exceptions import ToolError

from fintrader.cli.mcp_server import SPENT_FILE, LookBudget, make_server
from fintrader.errors import RunError
from fintrader.pipeline.config import load_config
from fintrader.pipeline.run_stages import run as run_pipeline
from fintrader.verdict.looks import Ledger
from tests import ROOT
from tests.engines.runs import TINY, fintrader, write_config

pytestmark = pytest.mark.usefixtures("in_this_process", "no_reports")
READING = ["list_runs", "show_run", "show_looks"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, no_reports):
    """A folder with a configuration and a finished run."""
    folder = tmp_path_factory.mktemp("work")
    changes = {
        "data": {"source": TINY["data"]["source"] | {"num_sessions": 30}, "bar_minutes": 5},
        "tournament": TINY["tournament"] | {"pods": 2},
        "backtest": {"null_model": False, "sensitivity": False, "tear_sheet": "none"},
    }
    run_pipeline(load_config(write_config(folder, **changes)))
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """The folder, where the server works, with an empty ledger."""
    monkeypatch.setenv("FINTRADER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(finished)
    return finished


def ask(server, *calls):
    """The answers to calls (name, arguments); a refusal is `Refused`."""

    async def talk():
        async with Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    found = []
    for answer in asyncio.run(talk()):
        text = "\n".join(part.text for part in answer.content)
        found.append(Refused(text) if answer.is_error else text)
    return found


class Refused(str):
    """The sentence of a refusal."""


def list_tools(server):
    async def talk():
        async with Client(server) as client:
            return (await client.list_tools()).tools

    return asyncio.run(talk())


def write_returns(path):
    days = pd.bdate_range("2023-01-02", periods=300)
    returns = np.random.default_rng(0).normal(0.0004, 0.01, 300)
    pd.DataFrame({"date": days, "returns": returns}).to_csv(path, index=False)


def test_it_only_reads_unless_a_person_allows_more(folder):
    tools = list_tools(make_server(folder))
    assert [tool.name for tool in tools] == READING
    assert all(tool.annotations.read_only_hint for tool in tools)
    before = sorted(folder.rglob("*"))
    runs, shown, looks = ask(
        make_server(folder), ("list_runs", {}), ("show_run", {"name": "tiny"}), ("show_looks", {})
    )
    assert json.loads(runs)["name"] == "tiny"
    assert "Ensemble" in shown
    assert json.loads(looks) == {"windows": [], "left": 0}
    assert sorted(folder.rglob("*")) == before
    more = [tool.name for tool in list_tools(make_server(folder, looks=1, train=True))]
    assert more == [*READING, "judge", "backtest", "train_agents"]


def test_looks_are_counted_and_refused_when_the_budget_is_spent(folder, tmp_path):
    write_returns(folder / "mine.csv")
    server = make_server(folder, looks=2)
    wrong, judged, tested = ask(
        server,
        ("judge", {"file": "absent.csv"}),
        ("judge", {"file": "mine.csv", "benchmark": "cash", "trials": 3}),
        ("backtest", {"run": "tiny", "overrides": {"env.cost_bps": 30}}),
    )
    assert isinstance(wrong, Refused)
    assert "no such file" in wrong
    assert "look" in judged
    assert "Ensemble" in tested
    assert [line.look.kind for line in Ledger().looks()] == ["judge", "re-backtest"]
    # Neither the same server nor a new one has a look left; one with more has.
    refused = [*ask(server, ("judge", {"file": "mine.csv"}))]
    refused += ask(make_server(folder, looks=2), ("backtest", {"run": "tiny"}))
    assert all(isinstance(answer, Refused) and "fewer are left" in answer for answer in refused)
    assert len(Ledger().looks()) == 2
    assert json.loads(ask(make_server(folder, looks=5), ("show_looks", {}))[0])["left"] == 3
    assert len((tmp_path / "home" / SPENT_FILE).read_text().splitlines()) == 2


def test_looks_come_back_after_any_failure_before_the_result(folder):
    budget = LookBudget(folder / "a", 2)
    for error in (OSError("disk"), KeyError("a"), RunError("no run")):
        with pytest.raises(type(error)), budget.spend("judge", "mine.csv"):
            raise error
        assert budget.count_spent() == 0
    refusal = "needs 3 looks, and fewer are left of the 2"
    with pytest.raises(ToolError, match=refusal), budget.spend("backtest", "tiny", 3):
        pass


@pytest.mark.parametrize("name", ["../secret.csv", "/etc/passwd", "~/secret.csv", "link.csv"])
def test_files_outside_the_folder_are_refused(folder, name):
    write_returns(folder.parent / "secret.csv")
    (folder / "link.csv").unlink(missing_ok=True)
    (folder / "link.csv").symlink_to(folder.parent / "secret.csv")
    write_returns(folder / "mine.csv")
    server = make_server(folder, looks=5, train=True)
    answers = ask(
        server,
        ("judge", {"file": name}),
        ("judge", {"file": "mine.csv", "benchmark": name}),
        ("train_agents", {"config": name, "name": "x"}),
        ("show_run", {"name": f"../{name}"}),
    )
    assert all(isinstance(answer, Refused) for answer in answers)
    is_there = (folder / name).exists()
    assert ["outside" in answer for answer in answers[:3]] == [True, is_there, True], answers
    assert is_there or name.startswith("~")
    assert not Ledger().looks()


OUTSIDE = [
    ({"data.path": "/etc/bars"}, "outside"),
    ({"data.path": "../bars"}, "outside"),
    ({"data.features.daily": "vix=/etc/series.csv"}, "outside"),
    ({"store": "s3://bucket/runs"}, "no URL"),
    ({"env.reward": "my.module:reward"}, "import my.module:reward"),
    ({"data.features.names": '["my.module:feature"]'}, "import my.module:feature"),
    ({"operations.metrics": "0.0.0.0:9100"}, "other machines"),
    ({"env.no_such": 1}, "unknown setting"),
]
CLASSIC = "env: {{kind: gymnasium, id: '{}'}}\ntournament: {{metric: return}}\n"


@pytest.mark.parametrize(("overrides", "words"), OUTSIDE)
def test_settings_that_leave_the_folder_or_name_code_are_refused(folder, overrides, words):
    server = make_server(folder, looks=5, train=True)
    answers = ask(
        server,
        ("train_agents", {"config": "tiny.yaml", "name": "x", "overrides": overrides}),
        ("backtest", {"run": "tiny", "overrides": overrides}),
        ("show_looks", {}),
    )
    for answer in answers[:2]:
        assert isinstance(answer, Refused)
        assert words in answer
    assert json.loads(answers[2]) == {"windows": [], "left": 5}
    assert sorted(path.name for path in (folder / "runs").iterdir() if path.is_dir()) == ["tiny"]


@pytest.mark.parametrize("name", ["mine:MyEnv-v0", "mine:ns/MyEnv-v0", " mine.deep:My.Env-v0"])
def test_environments_that_import_a_package_are_refused(folder, name):
    (folder / "classic.yaml").write_text(CLASSIC.format(name))
    server = make_server(folder, train=True)
    (answer,) = ask(server, ("train_agents", {"config": "classic.yaml", "name": "x"}))
    assert isinstance(answer, Refused)
    assert "this server runs no such code" in answer


@pytest.mark.slow
def test_no_look_is_spent_where_nothing_was_seen(folder):
    write_returns(folder / "mine.csv")
    server = make_server(folder, looks=2)
    wrong = ask(
        server,
        ("judge", {"file": "mine.csv", "trials": 0}),
        ("backtest", {"run": "tiny", "overrides": {"seed": 3}}),
        ("judge", {"file": "a\0b"}),
    )
    assert all(isinstance(answer, Refused) and len(answer) > 40 for answer in wrong)
    window = {"backtest.window": "[test, validation, train]"}
    tested, looks = ask(
        server, ("backtest", {"run": "tiny", "overrides": window}), ("show_looks", {})
    )
    assert not isinstance(tested, Refused), tested
    assert json.loads(looks)["left"] == 0, "two of the three windows are held out"
    assert len([line for line in Ledger().looks() if line.held_out]) == 2


@pytest.mark.slow
def test_training_goes_on_in_the_background_without_a_look(folder):
    server = make_server(folder, train=True)
    call = {"config": "tiny.yaml", "name": "more", "overrides": {"tournament.pods": 2}}
    (started,) = ask(server, ("train_agents", call))
    assert "is started" in started
    end = time.monotonic() + 120
    while "2 trials" not in ask(server, ("show_run", {"name": "more"}))[0]:
        assert time.monotonic() < end, (folder / "runs" / "more.log").read_text()
        time.sleep(1)
    assert not Ledger().looks()
    for name in ("../x", "x.log", "-x"):
        assert isinstance(ask(server, ("train_agents", {**call, "name": name}))[0], Refused)


def test_runs_outside_the_folder_are_refused_in_one_line(folder, tmp_path):
    done = fintrader("mcp", "--runs-dir", str(tmp_path))
    assert done.status == 2
    assert re.fullmatch(r"fintrader: --runs-dir: .* lies outside .*\n", done.err)


def test_it_speaks_over_standard_input_and_output(folder, tmp_path):
    write_returns(folder / "mine.csv")
    words = ["-m", "fintrader", "mcp", "--folder", str(folder), "--looks", "1"]
    environment = {"PYTHONPATH": str(ROOT), "FINTRADER_HOME": str(tmp_path / "home")}
    server = StdioServerParameters(command=sys.executable, args=words, env=environment)
    call = ("judge", {"file": "mine.csv", "benchmark": "cash"})
    listed, answer = ask(stdio_client(server), ("list_runs", {}), call)
    assert '"name": "tiny"' in listed
    assert "look" in answer
