"""Parts that are imported on first use, by name: optional ones, which the core never imports
(launchers, observers, kernels), and the names of packages.

An optional part needs a package that most runs do not use. If the package is missing, the error is
one line with the command that installs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from fintrader.errors import ConfigError, install_command, suggest


class Part(NamedTuple):
    """Location and needs of a part."""

    reference: str
    """`package.module:name`."""
    package: str
    """The package it needs, by its import name."""
    extra: str | None = None
    """The extra of fintrader that has the package; None: install it by its own name."""
    settings: str = ""
    """`package.module:name` of the model of its settings, which needs no package."""

    @property
    def remedy(self) -> str:
        """The command that installs the package."""
        if self.extra is None:
            return f"{sys.executable} -m pip install {self.package}"
        return install_command(self.extra)


_RAY = "fintrader.tournament.launchers.ray"
LAUNCHERS = {
    "ray": Part(f"{_RAY}.launcher:run_on_ray", "ray", "ray", f"{_RAY}.settings:RaySettings")
}
"""Name -> function of the launcher's settings that returns a `LauncherFactory`. Local processes
need no part."""
OBSERVERS = {
    "prometheus": Part("fintrader.tournament.prometheus:Endpoint", "prometheus_client", "observe"),
    "mlflow": Part("fintrader.tournament.mlflow:export", "mlflow", "mlflow"),
    "tensorboard": Part("fintrader.tournament.tensorboard:export", "tensorboard", "observe"),
}
SERVERS = {"mcp": Part("fintrader.cli.mcp_server:serve", "mcp", "mcp")}
EXECUTORS = {"trained": Part("fintrader.execution.executor:open_executor", "torch")}
KERNELS = {"triton": Part("fintrader.envs.fast.triton_step:TritonStep", "triton")}


def load_part(parts: Mapping[str, Part], name: str) -> Any:
    """Import the part called `name`. Raises ConfigError if a package is missing."""
    part = parts[name]
    module, _, attribute = part.reference.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"{name} cannot be used here: {error}; `{part.remedy}`") from None


def explain_absence(parts: Mapping[str, Part], name: str) -> str | None:
    """Explain how to install the package of the part called `name`; None where it is there."""
    part = parts[name]
    if find_spec(part.package) is not None:
        return None
    return f"{name} is not installed here; `{part.remedy}`"


def import_on_use(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package that imports its names on first use from their
    `homes`, modules below `fintrader`. Its settings alone then load no torch."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; {suggest(name, homes)}"
            )
        return getattr(import_module(f"fintrader.{homes[name]}"), name)

    def show() -> list[str]:
        return sorted([*vars(sys.modules[package]), *homes])

    return load, show
