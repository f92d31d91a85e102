"""SECURITY.md: each promise names the test that holds it, and no door unpickles or evaluates."""

import ast
import re

import pytest

from tests import ROOT

HOMES = (ROOT / "fintrader", ROOT / "app" / "fintrader_app")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
RUNS_CODE = re.compile(
    r"eval|exec|(.*\.)?(read_pickle|unsafe_load|full_load|load_all|Unpickler)"
    r"|(pickle|cloudpickle|dill|marshal|joblib|shelve|torch|yaml)\.(load|loads|open)"
    r"|os\.(system|popen)"
)
"""Calls that run the code which a file or a text holds."""
TRUSTED = {"fintrader/verdict/returns_files.py": ["pd.read_pickle"]}
"""Behind `judge --trust`."""


def rows():
    """The cells of each row of the table of promises, and its line."""
    text = (ROOT / "SECURITY.md").read_text()
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and set(line) - set("|- "):
            yield number, cells


def test_every_promise_names_a_test_that_exists():
    (_, head), *promises = rows()
    assert head == ["Threat", "Promise", "Held by"]
    assert len(promises) > 30
    for number, cells in promises:
        assert len(cells) == 3, f"line {number}"
        named = TEST.findall(cells[2])
        assert named, f"line {number}: {cells[1]!r} is held by no test"
        assert TEST.sub("", cells[2]).strip(", ") == "", f"line {number}: {cells[2]}"
        for file, name in named:
            path = ROOT / file
            assert path.is_file(), f"line {number}: {file}"
            functions = {
                node.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.FunctionDef)
            }
            assert name in functions, f"line {number}: {file} has no {name}"


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.name)
def test_no_module_unpickles_evaluates_or_asks_a_shell(home):
    for path in sorted(home.rglob("*.py")):
        found = []
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if RUNS_CODE.fullmatch(name):
                found.append(name)
            assert words.get("allow_pickle", "False") == "False", path
            assert words.get("shell", "False") == "False", path
        place = path.relative_to(ROOT).as_posix()
        assert found == TRUSTED.get(place, []), place
