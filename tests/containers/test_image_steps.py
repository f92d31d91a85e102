"""The image's own RUN lines, in a clean environment: what can be exercised where no container
engine is.

It installs some two gigabytes, so it runs only when asked for: `make test-image`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.engines.dockerfile import copied, parse

USER = 10001

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.environ.get("FINTRADER_TEST_IMAGE") != "1",
        reason="installs 2 GB: make test-image runs it",
    ),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """`/opt/fintrader` as the CPU image has it, below a temporary folder, made by the recipe's
    commands."""
    home = tmp_path_factory.mktemp("image")
    home.chmod(0o755)
    source = home / "src"
    prefix = home / "opt"
    file = parse((ROOT / "Dockerfile").read_text())
    context = copied(ROOT, (ROOT / ".dockerignore").read_text())
    variables = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
    variables |= {
        "PATH": f"{prefix}/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(home),
    }
    for stage in file.chain("build-cpu"):
        for word, text in stage.steps:
            text = text.replace("/opt/fintrader", str(prefix)).replace("$PATH", variables["PATH"])
            if word in ("ENV", "ARG"):
                for key, value in re.findall(r"(\w+)=(\S+)", text):
                    variables[key] = value
                if "TORCH_INDEX" in text:  # whatever this machine's pip is set up for
                    variables["TORCH_INDEX"] = ""
            elif word == "COPY":
                *names, target = text.split()
                for path in context:
                    if any(path == name or path.startswith(f"{name}/") for name in names):
                        place = (
                            source / path
                            if target == "./"
                            else source / target / path.split("/", 1)[1]
                        )
                        place.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(ROOT / path, place)
            elif word == "RUN":
                source.mkdir(exist_ok=True)
                subprocess.run(["/bin/sh", "-ec", text], cwd=source, env=variables, check=True)
    return home


def run(image, *words, work, timeout=600):
    """A command as the image runs it: its environment, its user where we may change ours, nothing
    else writable."""
    variables = {"PATH": f"{image}/opt/bin:/usr/bin:/bin", "HOME": str(work)}
    for stage in parse((ROOT / "Dockerfile").read_text()).chain("cpu"):
        for text in stage.all("ENV"):
            variables |= {
                k: v.replace("/tmp", str(work))
                for k, v in re.findall(r"(\w+)=(\S+)", text)
                if k != "PATH"
            }
    how = {
        "cwd": work,
        "env": variables,
        "capture_output": True,
        "text": True,
        "timeout": timeout,
    }
    user = {"user": USER, "group": USER, "extra_groups": []} if others_may_run_python() else {}
    return subprocess.run(words, check=False, **how, **user)


def others_may_run_python():
    """Are we root, and does our interpreter lie where the image's user can reach it?"""
    home = Path(sys.base_prefix)
    return os.getuid() == 0 and all(
        folder.stat().st_mode & 0o005 == 0o005 for folder in (home, *home.parents)
    )


@pytest.fixture
def work(tmp_path, image):
    """`/srv` of a container."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    place = tmp_path / "work"
    place.mkdir()
    shutil.copytree(ROOT / "configs", place / "configs")
    if others_may_run_python():
        os.chown(place, USER, USER)
    return place


def test_a_small_run_goes_from_bars_to_backtest(image, work):
    options = (
        "tournament.pods=2 tournament.workers=1 tournament.budget.env-steps=1000"
        " tournament.ensemble-size=2"
    )
    options += (
        " data.source.num-sessions=25 env.num-envs=16 env.decision-interval=10 env.episode-bars=200"
    )
    words = [
        f"--{option}"
        for option in f"{options} backtest.null_model=False operations.metrics=0".split()
    ]
    done = run(image, "fintrader", "run", "configs/quickstart.yaml", *words, work=work)
    assert done.returncode == 0, done.stderr
    assert (work / "runs" / "quickstart" / "backtest" / "metrics.json").is_file()


def test_everything_the_manifests_need_is_in_it(image, work):
    needed = (
        "ray.dashboard.http_server_head, streamlit, prometheus_client, s3fs, tensorboard,"
        " fintrader_app.launch"
    )
    done = run(image, "python", "-c", f"import {needed}, numba", work=work)
    assert done.returncode == 0, done.stderr
    assert run(image, "ray", "kuberay-autoscaler", "--help", work=work).returncode == 0
    assert run(image, "pip", "check", work=work).returncode == 0


def test_every_package_has_the_version_that_is_written_down(image, work):
    from tests.containers.test_dockerfile import pins

    known = {**pins("constraints.txt"), **pins("constraints-image.txt")}
    frozen = run(image, "pip", "list", "--format=freeze", work=work).stdout.split()
    loose = []
    for line in frozen:
        name, _, version = line.partition("==")
        name = re.sub(r"[-_.]+", "-", name).lower()
        if (
            name not in ("fintrader", "pip", "setuptools")
            and known.get(name) != version.split("+")[0]
        ):
            loose.append(line)
    assert not loose, "not pinned in constraints-image.txt"
