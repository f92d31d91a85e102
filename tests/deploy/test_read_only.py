"""Commands that read need no right to write where they read."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import Mark
from fintrader.deploy.journal import Journal
from fintrader.errors import DeployError
from tests.engines.deployments import frozen, run_live, settings
from tests.engines.runs import fintrader, write_config

ROOTLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"]
"""Root without the right to pass over permissions."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere"
    ),
]


def read(*words):
    """A command of a user who may not write what was made read-only."""
    words = [sys.executable, "-m", "fintrader", *words]
    words[:0] = ROOTLESS if os.geteuid() == 0 else []
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def close(folder):
    """Take the right to write away from everybody."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)


def open_again(folder):
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def test_a_deployment_is_read_without_a_right_to_write(tmp_path):
    home = tmp_path / "mine"
    bundle, market = frozen(home, settings(features={"names": ["return_1", "sma_26"]}))
    run_live(home, bundle, market, bars=12).close()
    for left in (False, True):
        if left:  # a killed writer leaves its log behind
            open_again(home)
            child = os.fork()
            if child == 0:
                Journal(home / JOURNAL).write(Mark(7, 5.0), at=1)
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
        close(home)
        assert (home / f"{JOURNAL}-wal").exists() == left
        before = sorted(home.iterdir())
        found = read("status", "mine", "--deployments-dir", str(tmp_path))
        assert "mine: stopped" in found.stdout, found.stderr
        assert sorted(home.iterdir()) == before
    open_again(home)
    (home / f"{JOURNAL}-shm").unlink()
    close(home)
    found = read("status", "mine", "--deployments-dir", str(tmp_path))
    assert "cannot be read as a journal" in found.stderr  # rather than without the log's end
    open_again(home)
    with Journal(home / JOURNAL, reading=True) as journal:
        assert journal.last(Mark).body == Mark(7, 5.0)
        with pytest.raises(DeployError, match="readonly"):
            journal.write(Mark(8, 5.0), at=1)


def test_a_run_is_verified_and_frozen_without_a_right_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = fintrader("run", str(write_config(tmp_path)))
    assert made.status == 0, made.err
    close(tmp_path / "runs")
    for words in (
        ("status", "runs/tiny"),
        ("verify", "runs/tiny"),
        ("paper", "runs/tiny", "--freeze"),
    ):
        found = read(*words)
        assert found.returncode == 0, (words, found.stdout[-1000:], found.stderr)
    open_again(tmp_path / "runs")
