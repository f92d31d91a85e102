"""Remedies that error messages name must work from a checkout."""

import re
import sys
import tomllib

import pytest

from fintrader.errors import install_command
from tests import ROOT
from tests.test_system import SOURCES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"].keys() - {"dev"}))
def test_an_install_command_names_the_packages_of_its_extra(extra):
    command = install_command(extra)
    for requirement in PROJECT["optional-dependencies"][extra]:
        name = re.split(r"[\[>=<]", requirement)[0]
        assert f"'{name}" in command
    assert "fintrader" not in command.partition(" -m pip install ")[2]


def test_an_install_command_is_for_the_running_python(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert install_command("ray").startswith(".venv/bin/python -m pip install 'ray>=")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert install_command("ray").startswith(f"{tmp_path}/.venv/bin/python -m pip install")


@pytest.mark.parametrize("pip", [None, "pip"])
@pytest.mark.parametrize("uv", [None, "uv"])
def test_an_environment_without_pip_is_installed_into_by_uv(tmp_path, monkeypatch, pip, uv):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr("importlib.util.find_spec", {"pip": pip}.get)
    monkeypatch.setattr("shutil.which", {"uv": uv}.get)
    python = f"{tmp_path}/bin/python"
    begin = f"{python} -m pip install 'ray>="
    if pip is None and uv is not None:
        begin = f"uv pip install --python {python} 'ray>="
    assert install_command("ray").startswith(begin)


def test_an_unknown_extra_falls_back_to_the_checkout():
    assert install_command("nothing").endswith("-m pip install -e '.[nothing]'")


def test_no_page_or_message_installs_fintrader_from_a_registry():
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "notebooks").glob("*.ipynb"),
    ]
    for page in [*pages, *SOURCES]:
        if page.name != "errors.py":
            assert not re.search(r"pip install '?fintrader", page.read_text()), page.name
