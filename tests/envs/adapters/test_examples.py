"""The scripts in `examples/`: each trains a library's own agent and has its policy judged."""

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("train_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short(script):
    lines = script.read_text().splitlines()
    assert sum(bool(line.strip()) and not line.startswith("#") for line in lines) <= 25


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_trains_and_its_policy_is_judged(script, tmp_path):
    needs = re.match(r"# needs: ([\w.]+)\n", script.read_text())[1]
    pytest.importorskip(needs, reason=f"{needs} is not installed, so {script.name} was not run")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Random static portfolios" in done.stdout
    # A policy that samples would be named among the reservations.
    assert "two actions" not in done.stdout
