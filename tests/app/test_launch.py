from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fintrader.errors import ConfigError
from fintrader_app import launch


def test_binds_to_loopback_and_sends_nothing() -> None:
    command = launch.command(8600)
    assert "--server.address=127.0.0.1" in command
    assert "--server.port=8600" in command
    assert "--browser.gatherUsageStats=false" in command
    assert "--client.showErrorDetails=none" in command
    assert Path(command[5]).is_file()
    assert "--server.address=0.0.0.0" in launch.command(8600, host="0.0.0.0")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_port_is_checked(port: int) -> None:
    with pytest.raises(ConfigError, match="port"):
        launch.command(port)


def test_the_command_starts_a_process_and_imports_nothing_of_the_app() -> None:
    program = (
        "import os, sys; from fintrader import cli; os.execve = lambda path, words, variables: print(words); "
        "cli.main(['app', '--runs-dir', 'here', '--port', '8600', '--headless', 'True']); "
        "assert not any(name.startswith(('fintrader_app', 'streamlit', 'torch')) for name in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], check=True, cwd=root, capture_output=True, text=True)
    asked = ["--runs-dir", "here", "--port", "8600", "--host", "127.0.0.1", "--headless"]
    assert ast.literal_eval(done.stdout)[1:] == ["-P", "-m", "fintrader_app.launch", *asked]


def test_what_the_command_asked_for_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[object, ...]] = []
    monkeypatch.setattr(launch, "serve", lambda *args, **named: served.append((*args, named)))
    monkeypatch.setattr(sys, "argv", ["launch", "--runs-dir", "here", "--port", "8600"])
    launch.main()
    assert served == [("here", 8600, {"host": "127.0.0.1", "headless": None})]

    def refused(*args: object, **named: object) -> None:
        raise ConfigError("no streamlit")

    monkeypatch.setattr(launch, "serve", refused)
    with pytest.raises(SystemExit) as stopped:
        launch.main()
    assert stopped.value.code == 2


def test_no_page_draws_random_numbers_unpickles_or_writes_markup_of_its_own() -> None:
    for path in Path(launch.__file__).parent.rglob("*.py"):
        for source in ("np.random", "import random", "default_rng", "pickle", "unsafe_allow_html", "yaml.load("):
            assert source not in path.read_text(), (path, source)
