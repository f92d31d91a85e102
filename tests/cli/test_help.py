"""Help is short and leaves nothing out; completion scripts are scripts of their shells."""

import re
import shutil
import subprocess

import pytest

from fintrader.cli.help import SHELLS
from fintrader.cli.registry import COMMANDS
from tests.engines.runs import fintrader

LINES = 40
COLUMNS = 100


@pytest.fixture(autouse=True)
def a_usual_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def helped(*words):
    done = fintrader(*words)
    assert (done.status, done.err) == (0, "")
    return done.out.splitlines()


@pytest.mark.parametrize("words", [(), ("--help",), ("help",)])
def test_the_overview_fits_a_screen_and_names_every_command_once(words):
    lines = helped(*words)
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    for name in COMMANDS:
        assert sum(bool(re.match(rf"  {name}( +[A-Z]|  |$)", line)) for line in lines) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_is_short_and_cuts_no_words(command):
    lines = helped(*command.split(), "--help")
    assert lines[0].startswith(f"usage: fintrader {command}")
    assert len(lines) <= 2 * LINES
    assert max(map(len, lines)) <= COLUMNS
    assert "…" not in "".join(lines)


def test_help_all_explains_every_setting_and_those_of_a_section():
    lines = helped("run", "--help-all")
    for setting in (
        "--env.cost-bps X",
        "--agent.network.hidden N ...",
        "--agent.head.scale X",
    ):
        assert any(line.startswith(setting) for line in lines), setting
    below = helped("run", "--help-all", "agent.network")
    named = [line for line in below if line.startswith("--")]
    assert named
    assert all(line.startswith("--agent.network.") for line in named)
    (said,) = fintrader("run", "--help-all", "nosuch").err.splitlines()
    assert "--help-all nosuch: no setting begins with that; the sections are data, env" in said


def test_help_behind_a_configuration_shows_its_values():
    assert any(
        re.search(r"--tournament.pods N +\[80\]", line)
        for line in helped("run", "podracer", "--help")
    )
    behind = helped("run", "quickstart", "--agent.algo", "sac", "--help-all", "agent")
    assert any(
        line.startswith("--agent.target-entropy") or "--agent.tau" in line for line in behind
    )
    assert not any("--agent.clip-coef" in line for line in behind)


def test_help_behind_a_run_shows_its_values(tmp_path):
    (tmp_path / "config.yaml").write_text("env: {cost_bps: 7.5}\n")
    assert any(
        re.search(r"cost-bps X +\[7\.5\]", line)
        for line in helped("backtest", str(tmp_path), "--help")
    )
    assert any("--env.cost-bps" in line for line in helped("backtest", "nothing", "--help"))


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_one(shell, tmp_path):
    script = tmp_path / "script"
    script.write_text("\n".join(helped("--completion", shell)) + "\n")
    assert "backtest.null-model" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(script)], check=True)


def test_bash_completes_commands_and_settings(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = tmp_path / "script"
    script.write_text("\n".join(helped("--completion", "bash")) + "\n")

    def offered(*words):
        line = " ".join(f"'{word}'" for word in ("fintrader", *words))
        program = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _fintrader; echo"
            " ${COMPREPLY[@]}"
        )
        return subprocess.run(
            ["bash", "-c", program], check=True, capture_output=True, text=True
        ).stdout.split()

    assert offered("walk") == ["walkforward"]
    assert offered("data", "qu") == ["quality"]
    assert offered("run", "quickstart", "--backtest.nu") == ["--backtest.null-model"]
    assert offered("data", "compare", "a", "b", "--tol") == ["--tolerance-bps"]
    assert offered("tournament", "quickstart", "--env.num-e") == ["--env.num-envs"]
