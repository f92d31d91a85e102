"""A Dockerfile as instructions by stage, what `docker build` would copy, and what a linter would say.

The checks are those of hadolint that concern us (https://github.com/hadolint/hadolint#rules), named in brackets, and
our own: no root, no secrets, no cache, everything pinned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

SECRETS = re.compile(r"(?i)(secret|token|passw|credential|api[-_]?key|access[-_]?key)")


@dataclass
class Stage:
    """What lies between two FROMs."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instruction and its arguments, continuation lines joined."""

    def all(self, instruction: str) -> list[str]:
        """The arguments of every such instruction."""
        return [text for word, text in self.steps if word == instruction]


@dataclass
class Dockerfile:
    """Global ARGs and the stages in order."""

    arguments: dict[str, str]
    stages: list[Stage]

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
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
        word, rest = word.upper(), re.sub(r"\s+", " ", rest).strip()
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
    """Files below `root` that a build sees, by .dockerignore: the last pattern that matches decides."""
    rules = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]

    def excluded(path: PurePosixPath) -> bool:
        verdict = False
        for rule in rules:
            pattern = rule.removeprefix("!").rstrip("/")
            if any(_matches(part, pattern) for part in [path, *path.parents][:-1]):
                verdict = not rule.startswith("!")
        return verdict

    found = set()
    for path in root.rglob("*"):
        relative = PurePosixPath(path.relative_to(root).as_posix())
        if relative.parts[0].startswith((".git", ".venv")) or not path.is_file() or excluded(relative):
            continue
        found.add(str(relative))
    return found


def _matches(path: PurePosixPath, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch(path.name, pattern[3:])
    return len(path.parts) == pattern.count("/") + 1 and fnmatch(str(path), pattern)


def complaints(file: Dockerfile, context: set[str]) -> Iterator[str]:
    """What is wrong with a Dockerfile; nothing means well."""
    names = [stage.name for stage in file.stages]
    for stage in file.stages:
        yield from (f"{stage.name}: {problem}" for problem in _stage(file, stage, names, context))
    finals = [name for name in names if not any(name in (s.base, *_sources(s)) for s in file.stages)]
    for name in finals:
        chain = file.chain(name)
        users = [user for stage in chain for user in stage.all("USER")]
        if not users or users[-1].split(":")[0] in ("root", "0"):
            yield f"{name}: runs as root [DL3002]"
        elif not re.fullmatch(r"[1-9]\d+:[1-9]\d+", users[-1]):
            yield f"{name}: USER {users[-1]} is no number, so Kubernetes cannot see that it is not root"
        entries = [entry for stage in chain for entry in stage.all("ENTRYPOINT")]
        if not entries or json.loads(entries[-1]) != ["fintrader"]:
            yield f"{name}: the entry point is not fintrader"


def _sources(stage: Stage) -> list[str]:
    return re.findall(r"--from=(\S+)", " ".join(stage.all("COPY")))


def _stage(file: Dockerfile, stage: Stage, names: list[str], context: set[str]) -> Iterator[str]:
    base = re.sub(r"\$\{?(\w+)\}?", lambda match: file.arguments.get(match[1], ""), stage.base)
    if base not in names:
        tag = base.partition(":")[2]
        if not tag or tag == "latest":
            yield f"base image {base} names no version [DL3006, DL3007]"
        elif not re.search(r"\d+\.\d+\.\d+", tag):
            yield f"base image {base} names no exact version"
    before: list[str] = names[: names.index(stage.name)]
    quiet = "PIP_NO_CACHE_DIR=1" in " ".join(env for one in file.chain(stage.name) for env in one.all("ENV"))
    for word, text in stage.steps:
        match word:
            case "ADD":
                yield "ADD where COPY would do [DL3020]"
            case "MAINTAINER":
                yield "MAINTAINER is deprecated [DL4000]"
            case "WORKDIR" if not text.startswith("/"):
                yield f"WORKDIR {text} is relative [DL3000]"
            case "ENTRYPOINT" | "CMD" if not text.startswith("["):
                yield f"{word} goes through a shell [DL3025]"
            case "ENV" | "ARG" if SECRETS.search(text):
                yield f"{word} {text}: a secret would stay in the image"
            case "EXPOSE" if not all(0 < int(port.split("/")[0]) < 65536 for port in text.split()):
                yield f"EXPOSE {text} is no port [DL3011]"
            case "COPY":
                yield from _copy(text, before, context)
            case "RUN":
                yield from _run(text, quiet)


def _copy(text: str, before: list[str], context: set[str]) -> Iterator[str]:
    words = text.split()
    flags = [word for word in words if word.startswith("--")]
    *sources, _target = [word for word in words if not word.startswith("--")]
    origin = next((flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")), None)
    if origin is not None:
        if origin not in before:
            yield f"COPY --from={origin}: no earlier stage has that name [DL3022]"
        return
    for source in sources:
        if source in (".", "./", "/"):
            yield "COPY . takes whatever lies around"
        elif not any(path == source or path.startswith(f"{source}/") for path in context):
            yield f"COPY {source}: not there, or left out by .dockerignore"


def _run(text: str, quiet: bool) -> Iterator[str]:
    if re.search(r"\bsudo\b", text):
        yield "sudo [DL3004]"
    if re.search(r"\b(curl|wget)\b.*\|\s*(ba)?sh\b", text):
        yield "runs what it downloads [DL4006]"
    if re.search(r"(^|&& )cd ", text):
        yield "cd where WORKDIR would do [DL3003]"
    for install in re.findall(r"apt-get install[^&|;]*", text):
        if "--no-install-recommends" not in install:
            yield "apt-get without --no-install-recommends [DL3015]"
        if " -y" not in install:
            yield "apt-get asks a question [DL3014]"
        if "rm -rf /var/lib/apt/lists" not in text:
            yield "apt-get leaves its lists behind [DL3009]"
    for install in re.findall(r"pip install[^&|;]*", text):
        if not (quiet or "--no-cache-dir" in install):
            yield "pip keeps its cache [DL3042]"
        if "-c constraints.txt" not in install and "--no-deps" not in install:
            yield f"{install.strip()}: versions are not pinned [DL3013]"
