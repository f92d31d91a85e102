"""Optional parts are loaded by name, and what is absent is said in one line."""

import sys

import pytest

from fintrader.errors import ConfigError
from fintrader.pipeline.config import RunConfig
from fintrader.seams import (
    KERNELS,
    LAUNCHERS,
    OBSERVERS,
    SERVERS,
    Part,
    explain_absence,
    load_part,
)

PARTS = {**LAUNCHERS, **OBSERVERS, **KERNELS, **SERVERS}


def make_my_launcher(settings, access):
    """What a user's module holds."""


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_where_its_reference_says(name):
    if name == "mlflow":
        pytest.importorskip("mlflow", reason="mlflow is missing: pip install '.[mlflow]'")
    assert callable(load_part(PARTS, name))


@pytest.mark.parametrize(
    ("name", "package"),
    [("ray", "ray>="), ("prometheus", "prometheus-client"), ("triton", "triton")],
)
def test_an_absent_part_is_named_with_the_command_that_installs_it(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, PARTS[name].reference.partition(":")[0], None)
    with pytest.raises(
        ConfigError, match=rf"{name} cannot be used here: .*pip install .*{package}"
    ):
        load_part(PARTS, name)


def test_an_absent_package_is_known_without_loading_the_part():
    parts = {"slurm": Part("nowhere:launcher", "no_such_package")}
    assert "slurm is not installed here; `" in str(explain_absence(parts, "slurm"))
    assert explain_absence({"json": Part("json:loads", "json")}, "json") is None


def test_a_launcher_of_ones_own_is_named_by_its_module():
    mine = RunConfig(launcher=f"{__name__}:make_my_launcher").make_launcher()
    assert mine is make_my_launcher
    assert RunConfig().make_launcher() is None
    assert callable(RunConfig(launcher="ray").make_launcher())
    with pytest.raises(
        ConfigError, match=r"launcher: expected local, ray or 'package\.module:name'"
    ):
        RunConfig(launcher="slurm")
    with pytest.raises(ConfigError, match="'nowhere:launcher' cannot be imported"):
        RunConfig(launcher="nowhere:launcher").make_launcher()
