"""The workflow names only what is there: make targets, files, and versions that can be read."""

import re
import shlex
import tomllib

import pytest
import yaml

from tests import ROOT
from tools.lowest import lowest_versions

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.M))
JOBS = {
    name: job
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}
COMMANDS = {
    name: [step["run"] for step in job["steps"] if "run" in step] for name, job in JOBS.items()
}


def test_ci_checks_what_it_should():
    assert COMMANDS["test"] == [".ci/run"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert COMMANDS["wheel"] == ["make test-wheel"]
    assert COMMANDS["docs"] == ["make docs", "make notebooks", "make tutorials"]
    assert COMMANDS["lowest"] == ["make test-lowest"]
    assert COMMANDS["portable"][-1] == "python -m pytest tests/test_portable.py"
    systems = {"macos-latest", "windows-latest"}
    assert set(JOBS["portable"]["strategy"]["matrix"]["system"]) == systems


@pytest.mark.parametrize("job", JOBS)
def test_a_job_names_targets_and_files_that_are_there(job):
    assert any(
        str(step.get("uses", "")).startswith("actions/checkout@") for step in JOBS[job]["steps"]
    )
    for command in COMMANDS[job]:
        first, *rest = shlex.split(command)
        if first == "make":
            assert set(rest) <= TARGETS
        elif "/" in first:
            assert (ROOT / first).is_file()
        for word in rest:
            if re.search(r"[/.]", word) and not word.startswith((".[", "-")):
                assert (ROOT / word).exists(), word


def test_make_names_files_that_are_there():
    named = set(re.findall(r"\b(?:tests|tools|configs|docs)/[\w/.-]+", MAKEFILE))
    assert len(named) > 8
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert set(phony[1].split()) == TARGETS


def test_every_dependency_has_a_lowest_version():
    """Also those of extras, other than what checks and types alone need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for name in project["optional-dependencies"] if name != "dev"]
    pins = lowest_versions(*extras)
    assert "filelock==3.30" in pins
    assert len(pins) == len(set(pins)) > len(project["dependencies"])
