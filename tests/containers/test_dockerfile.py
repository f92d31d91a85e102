import re
import subprocess
import sys
import tomllib

import pytest

from tests import ROOT
from tests.engines.dockerfile import copied, parse

TEXT = (ROOT / "Dockerfile").read_text()
IGNORE = (ROOT / ".dockerignore").read_text()


@pytest.fixture(scope="module")
def context():
    return copied(ROOT, IGNORE)


def test_every_image_runs_the_command_as_a_numbered_user():
    """A number, so that Kubernetes can see that it is not root; JSON, so that the program receives
    signals."""
    file = parse(TEXT)
    for name in ("cpu", "cuda"):
        chain = file.chain(name)
        assert [user for stage in chain for user in stage.all("USER")] == ["10001:10001"]
        assert [entry for stage in chain for entry in stage.all("ENTRYPOINT")] == ['["fintrader"]']
        assert {folder for stage in chain for folder in stage.all("WORKDIR")} == {"/srv"}


def test_nothing_is_taken_that_is_not_named_or_pinned_and_no_secret_stays(context):
    file = parse(TEXT)
    assert re.fullmatch(r"\d+\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", file.arguments["PYTHON"])
    for stage in file.stages:
        assert stage.base == "python:${PYTHON}" or stage.base in {one.name for one in file.stages}
        assert not stage.all("ADD")
        for text in [*stage.all("ENV"), *stage.all("ARG")]:
            assert not re.search(
                r"(?i)(secret|token|passw|credential|api[-_]?key|access[-_]?key)", text
            ), text
        for text in stage.all("COPY"):
            *sources, _target = [word for word in text.split() if not word.startswith("--")]
            for source in sources if "--from=" not in text else []:
                assert any(path == source or path.startswith(f"{source}/") for path in context), (
                    f"COPY {source}"
                )
        for text in stage.all("RUN"):
            assert not re.search(r"\b(curl|wget|sudo)\b", text)
            for install in re.findall(r"pip install[^&|;]*", text):
                assert "-c constraints.txt" in install or "--no-deps" in install, install
    assert "PIP_NO_CACHE_DIR=1" in " ".join(file.stage("build").all("ENV"))


def test_the_context_holds_what_is_named_and_nothing_else(context, tmp_path):
    tops = {path.split("/")[0] for path in context}
    texts = {"constraints.txt", "constraints-image.txt", "pyproject.toml", "README.md", "LICENSE"}
    assert tops == {*texts, "configs", "fintrader", "app"}
    assert not [path for path in context if "__pycache__" in path or path.endswith(".pyc")]
    for name in (
        "runs/quickstart/config.yaml",
        "data/bars/x.parquet",
        ".env",
        "fintrader/.env",
        "id_rsa",
        "app/a.pyc",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "fintrader" / "x.py").touch()
    assert copied(tmp_path, IGNORE) == {"fintrader/x.py"}


def test_the_two_images_differ_only_in_torch_and_the_driver():
    file = parse(TEXT)
    cpu = file.stage("build-cpu").steps
    cuda = file.stage("build-cuda").steps
    without = [step for step in cpu if step[0] != "ARG" and " torch" not in step[1]]
    assert without == [step for step in cuda if " torch" not in step[1]]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in " ".join(file.stage("cuda").all("ENV"))
    assert file.stages[-1].name == "cpu", "what a plain `docker build .` makes"


def pins(name):
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1]
        for line in lines
        if line
    }


def test_every_package_of_the_image_has_a_version():
    ours = pins("constraints.txt")
    image = pins("constraints-image.txt")
    assert not set(ours) & set(image), "each package is pinned in one place"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"ARG EXTRAS=(\S+)", TEXT)
    wanted = list(project["dependencies"])
    for extra in extras[1].split(","):
        wanted += project["optional-dependencies"][extra]
    for requirement in wanted:
        match = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert re.sub(r"[-_.]+", "-", match[0]).lower() in {*ours, *image}, f"pin {match[0]}"


def test_the_layer_before_the_source_holds_a_folder_for_each_package(tmp_path):
    """pip refuses a package without its folder."""
    text = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text)
    for stage in ("build-cpu", "build-cuda"):
        (step,) = [text for text in parse(TEXT).stage(stage).all("RUN") if "mkdir" in text]
        command = step.partition("&&")[0].replace("python", sys.executable, 1)
        subprocess.run(["/bin/sh", "-ec", command], cwd=tmp_path, check=True)
    tool = tomllib.loads(text)["tool"]["setuptools"]
    for name in tool["packages"]:
        parent, _, last = name.rpartition(".")
        place = tool["package-dir"].get(parent, parent.replace(".", "/"))
        assert (tmp_path / tool["package-dir"].get(name, f"{place}/{last}".lstrip("/"))).is_dir()
