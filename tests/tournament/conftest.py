import pytest

from fintrader.agents.settings import AgentSettings
from fintrader.files import append_jsonl
from fintrader.runs import RunFolder
from fintrader.storage.mirror import attach
from fintrader.tournament.settings import OperationsSettings
from tests.engines import stubs
from tests.engines.chaos import DONE, forked
from tests.engines.races import OPERATIONS, settings, stub_race
from tests.engines.thread_launcher import ThreadLauncher

PODS = 5
"""Of the small tournament that faults strike."""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What must come out of that tournament whatever struck it. Nobody may change it."""
    run = RunFolder(tmp_path_factory.mktemp("undisturbed") / "run")
    assert forked(run, PODS).status == DONE
    return run


@pytest.fixture(autouse=True)
def stub_agents(monkeypatch):
    """Specs of stub pods can be derived as those of our own agents are."""
    known = AgentSettings | stubs.StubAgent | stubs.OtherAgent
    monkeypatch.setattr("fintrader.tournament.recount.AgentSettings", known)


@pytest.fixture
def url(tmp_path):
    """Where the run `run` lies in a store."""
    return f"file://{tmp_path}/store/run"


@pytest.fixture
def stored_run(tmp_path, url):
    """The run's folder on a disk that has seen none of it yet; it lies in a store."""
    attach(tmp_path / "run", url)
    return RunFolder(tmp_path / "run")


@pytest.fixture
def run(race, tmp_path):
    """A tournament of five stub pods in the folder `run`; p0002 has a curve of three updates."""
    race("run", pods=5)
    folder = RunFolder(tmp_path / "run")
    path = folder.pod("p0002") / "metrics.jsonl"
    path.unlink()
    for k in (1, 2, 3):
        append_jsonl(
            path, {"update": k, "env_steps": k * 10, "seconds": k, "loss": 1 / k, "memory_mib": 7}
        )
    return folder


@pytest.fixture
def race(tmp_path):
    """A tournament of stub pods: in threads of this process, or (`processes=True`) in spawned
    ones."""

    def run(
        name="run",
        *,
        seed=1,
        processes=False,
        workers=2,
        body=stubs.body,
        how=None,
        **changes,
    ):
        folder = RunFolder(tmp_path / name)
        how = dict(how or {})
        own = {
            name: changes.pop(name) for name in OperationsSettings.model_fields if name in changes
        }
        operations = OPERATIONS.model_copy(update=own)
        launcher = None if processes else ThreadLauncher(folder, tmp_path, body, workers=workers)
        launcher = how.pop("launcher", launcher)
        usual = {"beside": tmp_path, "body": "tests.engines.stubs:body", "operations": operations}
        return stub_race(
            folder,
            settings(workers=workers, **changes),
            seed=seed,
            launcher=launcher,
            **{**usual, **how},
        )

    return run
