import ast
import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fintrader import cli
from fintrader.cli.start import AppSettings
from fintrader.errors import ConfigError, StorageError
from fintrader.pipeline.session import copy_store
from fintrader.results.folders import RunsFolder, is_locked
from fintrader.runs import RunFolder
from fintrader.storage.lease import hold
from fintrader.storage.mirror import attach
from fintrader.storage.objects import ObjectStore
from fintrader_app import launch
from tests import ROOT
from tests.engines.chaos import race


def test_binds_to_loopback_and_sends_nothing():
    command = launch.build_command(AppSettings(port=8600))
    assert "--server.address=127.0.0.1" in command
    assert "--server.port=8600" in command
    assert "--browser.gatherUsageStats=false" in command
    assert "--client.showErrorDetails=none" in command
    assert Path(command[5]).is_file()
    # Else streamlit asks a server elsewhere for this machine's address.
    assert "--logger.hideWelcomeMessage=true" in command
    assert "--server.address=0.0.0.0" in launch.build_command(AppSettings(host="0.0.0.0"))
    assert "--server.address=::1" in launch.build_command(AppSettings(host="[::1]"))
    assert "--" not in command
    names = ("a.example", "b.example")
    asked = launch.build_command(AppSettings(allow_host=names, no_token=True))
    assert asked[-4:] == ["--", "--allow-host=a.example", "--allow-host=b.example", "--no-token"]


@pytest.mark.parametrize("host", ["", "http://127.0.0.1", "127.0.0.1:80", "unix:///tmp/x"])
def test_host_is_checked(host):
    with pytest.raises(ConfigError, match="--host"):
        launch.build_command(AppSettings(host=host))


def test_the_command_starts_a_process_and_imports_nothing_of_the_app():
    program = (
        "import os, sys; from fintrader import cli; os.execve = lambda path, words, variables:"
        " print(words); cli.main(['app', '--allow-host', 'a', 'b', '--runs-dir', 'here', '--port',"
        " '8600', '--headless', '--allow-host=c', '--no-token']); assert not"
        " any(name.startswith(('fintrader_app', 'streamlit', 'torch')) for name in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True, text=True
    )
    asked = ["--allow-host", "a", "b", "--runs-dir", "here", "--port", "8600", "--headless"]
    asked += ["--allow-host=c", "--no-token"]
    assert ast.literal_eval(done.stdout)[1:] == ["-P", "-m", "fintrader_app.launch", *asked]


def test_what_the_command_asked_for_is_served(monkeypatch):
    served = []
    monkeypatch.setattr(launch, "serve", served.append)
    words = ["--runs-dir", "here", "--allow-host=a", "--allow-host", "b", "--no-token"]
    monkeypatch.setattr(sys, "argv", ["launch", *words])
    launch.main()
    assert served == [AppSettings(runs_dir="here", allow_host=("a", "b"), no_token=True)]

    def refused(settings):
        raise ConfigError("no streamlit")

    monkeypatch.setattr(launch, "serve", refused)
    with pytest.raises(SystemExit) as stopped:
        launch.main()
    assert stopped.value.code == 2


def test_a_weak_token_is_found_before_the_server_starts(monkeypatch):
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it was started"))
    monkeypatch.setenv(launch.TOKEN_VARIABLE, "weak")
    with pytest.raises(ConfigError, match=launch.TOKEN_VARIABLE):
        launch.serve(AppSettings())


def test_allow_host_without_a_name_is_a_mistake():
    with pytest.raises(ConfigError, match="--allow-host needs a value"):
        cli.dispatch(["app", "--allow-host", "--no-token"])


def test_no_page_draws_random_numbers_unpickles_or_writes_markup_of_its_own():
    for path in Path(launch.__file__).parent.rglob("*.py"):
        for source in (
            "np.random",
            "import random",
            "default_rng",
            "pickle",
            "unsafe_allow_html",
            "yaml.load(",
        ):
            assert source not in path.read_text(), (path, source)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with one finished tournament."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/store"
    attach(tmp_path / "runs" / "one", f"{url}/one")
    race(RunFolder(tmp_path / "runs" / "one"), 2, processes=False)
    return url


def test_the_server_is_told_of_copies(tmp_path, store, monkeypatch):
    started = []
    inherited = []
    served = []

    def start(words, *, env, **_):
        started.append(words)
        inherited.append(env)

    monkeypatch.setenv(launch.TOKEN_VARIABLE, "a-token-of-the-tests")
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(os, "execve", lambda path, words, variables: served.append(variables))
    launch.serve(AppSettings(runs_dir=store))
    home = Path(served[0][launch.RUNS_DIR_VARIABLE])
    assert served[0][launch.STORE_VARIABLE] == store
    assert launch.TOKEN_VARIABLE in served[0]
    assert launch.TOKEN_VARIABLE not in inherited[0], "copying needs no token"
    runs = RunsFolder.at(home)
    assert runs.names() == ["one"]
    assert runs.run("one").exists("leaderboard.sqlite")
    assert started == [
        [sys.executable, "-P", "-m", "fintrader_app.launch", "--follow", store, str(os.getpid())]
    ]


def test_copies_follow_until_the_app_has_gone(tmp_path, store, monkeypatch, capsys):
    home = copy_store(store)
    turns = [
        lambda: race(RunFolder(tmp_path / "runs" / "one"), 3, processes=False),
        lambda: monkeypatch.setattr(ObjectStore, "check_access", away),
        lambda: None,
    ]

    def away(_):
        raise StorageError("no answer")

    def sleep(_):
        turns.pop(0)()

    monkeypatch.setattr(launch, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(os, "getppid", lambda: 77 if turns else 1)
    monkeypatch.setattr(sys, "argv", ["launch", "--follow", store, "77"])
    launch.main()
    assert len(list((home / "one" / "pods").glob("*/result.json"))) == 3
    assert capsys.readouterr().err.count("no answer") == 1


def test_a_run_at_work_elsewhere_is_shown_as_such(store):
    with hold(ObjectStore(f"{store}/one")):
        runs = RunsFolder.at(copy_store(store))
        assert is_locked(runs.run("one"))
    copy_store(store)
    assert not is_locked(runs.run("one"))
    (runs.root / "one" / ".held").touch()
    os.utime(runs.root / "one" / ".held", (0, 0))  # nobody has looked for a long time
    assert not is_locked(runs.run("one"))


def test_every_answer_keeps_other_sites_from_framing_it():
    from fintrader_app.served import SecurityHeaders

    sent = []

    async def answers(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"etag", b"1")]})
        await send({"type": "http.response.body", "body": b"page"})

    async def send(message):
        sent.append(message)

    asyncio.run(SecurityHeaders(answers)({"type": "http"}, None, send))
    headers = dict(sent[0]["headers"])
    assert headers[b"x-frame-options"] == b"SAMEORIGIN"
    assert headers[b"content-security-policy"] == b"frame-ancestors 'self'"
    assert headers[b"etag"] == b"1"
    assert sent[1]["body"] == b"page"
    assert launch.build_command(AppSettings())[5].endswith("served.py")
