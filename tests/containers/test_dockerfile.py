"""The container recipe: linted, its context minimal, its packages pinned, its source enough to install from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.containers.dockerfile import complaints, copied, parse

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text()


@pytest.fixture(scope="module")
def context() -> set[str]:
    return copied(ROOT, IGNORE)


def test_the_recipe_is_well(context: set[str]) -> None:
    assert list(complaints(parse(TEXT), context)) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("USER 10001:10001", "USER root", "runs as root"),
        ("USER 10001:10001", "USER fintrader", "is no number"),
        ("USER 10001:10001\n", "", "runs as root"),
        ("3.11.13-slim-bookworm", "latest", "names no version"),
        ("3.11.13-slim-bookworm", "3.11-slim", "names no exact version"),
        ("COPY configs configs", "COPY . .", "takes whatever lies around"),
        ("COPY configs configs", "ADD configs configs", "ADD"),
        ("COPY configs configs", "COPY data data", "left out by .dockerignore"),
        ("COPY configs configs", "COPY nothing configs", "not there"),
        ("PIP_NO_CACHE_DIR=1", "PIP_NO_CACHE_DIR=0", "keeps its cache"),
        ("pip install -c constraints.txt torch", "pip install torch", "not pinned"),
        ("--from=build-cuda", "--from=built", "no earlier stage"),
        ('ENTRYPOINT ["fintrader"]', "ENTRYPOINT fintrader", "through a shell"),
        ("WORKDIR /srv", "WORKDIR srv", "is relative"),
        ("OMP_NUM_THREADS=1", "AWS_SECRET_ACCESS_KEY=x", "a secret would stay"),
        ("RUN groupadd", "RUN curl https://example.com/x | sh && groupadd", "runs what it downloads"),
        ("RUN groupadd", "RUN apt-get update && apt-get install wget && groupadd", "--no-install-recommends"),
        ("RUN groupadd", "RUN sudo groupadd", "sudo"),
    ],
)  # fmt: skip
def test_a_worse_recipe_is_caught(before: str, after: str, expected: str, context: set[str]) -> None:
    assert before in TEXT
    changed = TEXT.replace(before, after)
    if expected == "through a shell":
        with pytest.raises(ValueError, match="Expecting value"):  # JSON form is what makes it receive signals
            list(complaints(parse(changed), context))
        return
    found = list(complaints(parse(changed), context))
    assert any(expected in problem for problem in found), found


def test_the_context_holds_what_is_named_and_nothing_else(context: set[str], tmp_path: Path) -> None:
    tops = {path.split("/")[0] for path in context}
    texts = {"constraints.txt", "constraints-image.txt", "pyproject.toml", "README.md", "LICENSE"}
    assert tops == {*texts, "configs", "fintrader", "app"}
    assert not [path for path in context if "__pycache__" in path or path.endswith(".pyc")]
    for name in ("runs/quickstart/config.yaml", "data/bars/x.parquet", ".env", "fintrader/.env", "id_rsa", "app/a.pyc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "fintrader" / "x.py").touch()
    assert copied(tmp_path, IGNORE) == {"fintrader/x.py"}


def test_the_two_images_differ_only_in_torch_and_the_driver() -> None:
    file = parse(TEXT)
    cpu, cuda = file.stage("build-cpu").steps, file.stage("build-cuda").steps
    without = [step for step in cpu if step[0] != "ARG" and " torch" not in step[1]]
    assert without == [step for step in cuda if " torch" not in step[1]]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in " ".join(file.stage("cuda").all("ENV"))
    assert file.stages[-1].name == "cpu", "what a plain `docker build .` makes"


def pins(name: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines if line}


def test_every_package_of_the_image_has_a_version() -> None:
    ours, image = pins("constraints.txt"), pins("constraints-image.txt")
    assert not set(ours) & set(image), "each package is pinned in one place"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"ARG EXTRAS=(\S+)", TEXT)
    assert extras is not None
    wanted = list(project["dependencies"])
    for extra in extras[1].split(","):
        wanted += project["optional-dependencies"][extra]
    for requirement in wanted:
        match = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert match is not None
        assert re.sub(r"[-_.]+", "-", match[0]).lower() in {*ours, *image}, f"pin {match[0]}"


@pytest.mark.slow
def test_the_context_is_enough_to_install_from(context: set[str], tmp_path: Path) -> None:
    """The last RUN of the recipe on the files that a build would see, and the command it leaves behind."""
    pytest.importorskip("setuptools", reason="setuptools is missing, so the package was not built")
    source, target = tmp_path / "src", tmp_path / "installed"
    for path in context:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    last = parse(TEXT).stage("build-cpu").all("RUN")[-1]
    assert last.startswith("pip install --no-deps .")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*words, "--target", str(target), "."], cwd=source, check=True, capture_output=True)
    program = (
        "import fintrader, fintrader_app.launch, fintrader.cli as c; print(fintrader.__file__); c.main(['--version'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True,
        env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout.startswith(str(target))
    assert "fintrader 0" in done.stdout
    assert (target / "fintrader" / "py.typed").is_file()
    assert (target / "app" / "views" / "tournament.py").is_file()
