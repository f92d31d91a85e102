#!/usr/bin/env python3
"""Print the lowest versions that pyproject.toml declares, as constraints for pip.

python tools/lowest.py [EXTRA ...]      # the dependencies, and those of extras
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_REQUIREMENT = re.compile(r"([\w-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def lowest_versions(*extras: str) -> list[str]:
    """Return `name==version` of each dependency, and of each in the extras. Raises ValueError for
    one without a lower bound."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    found = {}
    for requirement in wanted:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement!r} has no lower bound; write NAME>=VERSION")
        found[match[1]] = match[2]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


if __name__ == "__main__":
    print("\n".join(lowest_versions(*sys.argv[1:])))
