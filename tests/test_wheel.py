"""What `pip install fintrader` leaves behind, seen from outside the source tree."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas
import pytest

from fintrader import cli
from tests import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what git would check out, so that nothing lying about gets in."""
    # Not imported: setuptools refuses where another test has imported distutils.
    if int(metadata.version("setuptools").partition(".")[0]) < 77:
        pytest.skip("an older setuptools cannot build the package")
    source = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("fintrader", "app", "configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip(
        sys.executable,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(out),
        str(source),
    )
    return next(out.glob("fintrader-*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A fresh environment with the wheel, which borrows the libraries (not the editable fintrader)
    of this one."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip(sys.executable, "install", "--no-deps", "--quiet", "--target", str(site), str(wheel))
    return str(home / "bin" / "python")


def pip(executable, *words):
    done = subprocess.run([executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(python, folder, *words):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [python, *words],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1", "FINTRADER_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_two_packages_and_the_configurations(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"fintrader", "fintrader_app"}
    files = {
        "fintrader/configs/kubernetes/job/job.yaml",
        "fintrader/configs/quickstart.yaml",
        "fintrader/py.typed",
        "fintrader/report/page.css",
        "fintrader/report/page.js",
        "fintrader/results/defaults.json",
        "fintrader_app/style.css",
    }
    assert {*files, "fintrader_app/views/backtest.py"} <= set(names)
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fintrader").rglob("*.py")}
    assert sources <= set(names), "a package is missing"


def test_the_command_runs_a_shipped_configuration(python, tmp_path):
    options = [
        "--tournament.pods",
        "1",
        "--tournament.workers",
        "1",
        "--tournament.budget.env-steps",
        "640",
    ]
    options += [
        "--tournament.pool-size",
        "1",
        "--data.source.num-sessions",
        "20",
        "--name",
        "small",
    ]
    run(python, tmp_path, "-m", "fintrader", "tournament", "quickstart", *options)
    assert (tmp_path / "runs" / "small" / "ensemble" / "policy.safetensors").is_file()
    assert "quickstart" in run(
        python, tmp_path, "-c", "import fintrader.config as c; print(c.list_shipped_configs())"
    )


WITHOUT = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Finder())
"""


def test_returns_are_judged_without_torch(python, tmp_path):
    """With the libraries of requirements-judge.txt alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    few = (ROOT / "requirements-judge.txt").read_text().splitlines()[1:]
    assert set(few) < set(project["dependencies"])
    left = {line.partition(">")[0] for line in set(project["dependencies"]) - set(few)}
    assert {name.replace("-", "_") for name in left} == cli._LEFT_OUT
    home = tmp_path / "environment"
    shutil.copytree(Path(python).parents[1], home, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "sitecustomize.py").write_text(WITHOUT.format(names=cli._LEFT_OUT))
    days = pandas.bdate_range("2024-01-01", periods=300)
    returns = pandas.Series(np.random.default_rng(0).normal(5e-4, 0.01, 300), days, name="return")
    returns.to_csv(tmp_path / "returns.csv", index_label="date")
    alone = str(home / "bin" / "python")
    said = run(alone, tmp_path, "-m", "fintrader", "judge", "returns.csv", "--trials", "5")
    assert "the choice of 5 trials" in said
    assert "1 looks" in run(alone, tmp_path, "-m", "fintrader", "looks")
    done = subprocess.run(
        [alone, "-m", "fintrader", "run", "quickstart"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"fintrader: this needs \w+, which is not installed: .* install .*torch.*\n", done.stderr
    )


def test_gymnasium_makes_the_environment_from_its_name_alone(python, tmp_path):
    program = """
import gymnasium, torch
env = gymnasium.make_vec("fintrader:fintrader/Trading-v0", num_envs=64)
obs, _ = env.reset(seed=0)
obs, reward, *_ = env.step(torch.zeros(env.action_space.shape))
print(type(env.unwrapped).__name__, tuple(reward.shape))
obs, _ = gymnasium.make("fintrader/Trading-v0").reset(seed=0)
print(type(obs).__name__)
"""
    assert run(python, tmp_path, "-c", program).split("\n")[:2] == ["TradingEnv (64,)", "ndarray"]
