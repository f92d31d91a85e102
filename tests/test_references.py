"""Modules that docstrings name are there: `package/module.py`, and `package.module.name`."""

import ast
import io
import pkgutil
import re
import tokenize
import tomllib
from functools import cache

import pytest

from fintrader.bars.sources.layout import FilesSettings
from fintrader.config import flatten_values
from fintrader.pipeline.config import RunConfig
from tests import ROOT

HOMES = (ROOT / "fintrader", ROOT / "app" / "fintrader_app")
SOURCES = sorted(path for home in HOMES for path in home.rglob("*.py"))
FILE = re.compile(r"(?<![\w/.-])(?:[a-z_]\w*/)*[a-z_]\w*\.py\b")
"""`train.py`, `envs/settings.py`, `fintrader/envs/settings.py`."""
NAME = re.compile(r"`((?:[a-z_]\w*\.)+\w+)`")
"""`envs.settings`, `fintrader.envs.settings.EnvSettings`."""
PACKAGES = {
    path.relative_to(HOMES[0]).parts[0].removesuffix(".py")
    for path in SOURCES
    if path.is_relative_to(HOMES[0])
}
PACKAGES -= {"__init__", "__main__"}
"""Top modules and folders with source: a folder that holds bytecode only was left by a move."""
FOREIGN = {"gymnasium", "marker", "plotly", "torch"}
"""Packages and fields of other projects that share a name with a module, or with nothing."""
MODULES = {}
for source in SOURCES:
    MODULES.setdefault(source.stem, []).append(source)
FILES = {"csv", "html", "json", "jsonl", "parquet", "py", "safetensors", "sqlite", "yaml"}


def docstrings(path):
    """Every docstring of a file, those below fields and constants included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield text


@cache
def names_in(path):
    """Every name that the code of a file defines, imports or uses."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return frozenset(token.string for token in tokens if token.type == tokenize.NAME)


def has_file(reference, source):
    """True where `reference` names a file, seen from the repository or from the module's
    folders."""
    homes = [ROOT, *HOMES, *(home for home in source.parents if home.is_relative_to(ROOT))]
    return any((home / reference).is_file() for home in homes)


def has_name(reference, source):
    """True where a dotted name leads to a module, to something in one, or to a variable.

    It may begin at fintrader, or with the name of any module. What begins with no module's name
    must begin with a name of the source itself: a variable, a field, an imported package.
    """
    first, *rest = reference.split(".")
    modules = MODULES.get(first, [])
    if first != "fintrader" and first not in PACKAGES:
        inside = any(all(name in names_in(module) for name in rest) for module in modules)
        return inside or (not modules and first in names_in(source))
    parts = reference.removeprefix("fintrader.").split(".")
    for length in range(len(parts), -1, -1):
        stem = HOMES[0].joinpath(*parts[:length])
        module = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
        if module.is_file():
            return all(name in names_in(module) for name in parts[length:])
    return False


def is_setting(reference):
    """True for a dotted setting of a run, such as `tournament.pods`, or for the end of one."""
    return any(f".{reference}." in f".{name}." for name in settings())


@cache
def settings():
    """Dotted settings of a run, whose bars are synthetic or files."""
    files = {"data": {"source": FilesSettings().model_dump()}}
    return frozenset({*flatten_values(RunConfig().model_dump()), *flatten_values(files)})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_that_docstrings_name_are_there(path):
    text = "\n".join(docstrings(path))
    missing = [name for name in FILE.findall(text) if not has_file(name, path)]
    for name in NAME.findall(text):
        is_elsewhere = name.rpartition(".")[2] in FILES or name.partition(".")[0] in FOREIGN
        if not is_elsewhere and not is_setting(name) and not has_name(name, path):
            missing.append(name)
    assert not missing, f"no such module: {', '.join(sorted(set(missing)))}"


def test_the_page_on_architecture_names_the_floors_that_are_enforced():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    floors = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = " ".join((ROOT / "docs" / "architecture.md").read_text().split())
    assert " → ".join(f"`{floor}`" for floor in floors) in page
    named = {word for floor in floors for word in floor.split(" | ")}
    assert named == PACKAGES


def test_pages_of_the_interface_name_what_there_is():
    """`::: package.module.name`, which mkdocstrings draws from the source."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    named = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert len(named) > 40
    for name in named:
        pkgutil.resolve_name(name)
