"""A Dockerfile as instructions by stage, and what `docker build` would copy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from docker.utils.build import exclude_paths


@dataclass
class Stage:
    """What lies between two FROMs."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instruction and its arguments, continuation lines joined."""

    def all(self, instruction: str) -> list[str]:
        return [text for word, text in self.steps if word == instruction]


@dataclass
class Dockerfile:
    """Global ARGs and the stages in order."""

    arguments: dict[str, str]
    stages: list[Stage]

    def stage(self, name: str) -> Stage:
        (found,) = [stage for stage in self.stages if stage.name == name]
        return found

    def chain(self, name: str) -> list[Stage]:
        """A stage and those it is made from, the first one first."""
        stage = self.stage(name)
        names = {one.name for one in self.stages}
        return [*(self.chain(stage.base) if stage.base in names else []), stage]


def parse(text: str) -> Dockerfile:
    """Raises ValueError for an instruction before the first FROM that is no ARG."""
    joined = re.sub(r"\\\n(?:\s*#.*\n)*", " ", text)
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in joined.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        word = word.upper()
        rest = re.sub(r"\s+", " ", rest).strip()
        if word == "FROM":
            base, _, name = re.sub(r"(?i) as ", " as ", rest).partition(" as ")
            stages.append(Stage(base, name or str(len(stages))))
        elif stages:
            stages[-1].steps.append((word, rest))
        elif word == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        else:
            raise ValueError(f"{word} before the first FROM")
    return Dockerfile(arguments, stages)


def copied(root: Path, ignore: str) -> set[str]:
    """Files below `root` that a build sees, by .dockerignore."""
    patterns = [line for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
    always = {"Dockerfile", ".dockerignore"}
    return {name for name in exclude_paths(str(root), patterns) - always if (root / name).is_file()}
