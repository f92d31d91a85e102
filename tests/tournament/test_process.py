"""New processes import the package and a user's modules from where their parent does."""

import re
import sys

from fintrader.tournament.process import spawn
from tests import ROOT

PROBE = """
import fintrader, mine
print(fintrader.__file__, mine.__file__)
"""


def test_a_folder_called_fintrader_hides_nothing_and_own_modules_stay(tmp_path, monkeypatch):
    """The working directory is the folder that holds the clone; rules are on PYTHONPATH."""
    own = tmp_path / "own"
    (tmp_path / "fintrader").mkdir()
    (tmp_path / "fintrader" / "__init__.py").write_text("raise ImportError('not the package')")
    own.mkdir()
    (own / "mine.py").write_text("")
    (own / "probe.py").write_text(PROBE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), str(own)])
    process = spawn("probe", log=tmp_path / "log", variables={})
    found, _ = process.communicate("")
    assert found.split() == [sys.modules["fintrader"].__file__, str(own / "mine.py")]


def test_no_process_imports_from_the_working_directory():
    for folder in ("fintrader", "app/fintrader_app"):
        for path in (ROOT / folder).rglob("*.py"):
            for words in re.findall(r"\[\s*sys\.executable,\s*(\S+)", path.read_text()):
                repeats = words.startswith("*")  # words of this process itself
                assert repeats or words == '"-P",', f"{path}: {words}"
