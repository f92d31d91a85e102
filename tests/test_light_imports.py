"""Settings, verdicts and readers load no torch, settings no pandas either: help and refusals take no
second."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = [
    "fintrader.bars.sources.layout",
    "fintrader.bars.sources.vendor_settings",
    "fintrader.backtesting.limits",
    "fintrader.backtesting.settings",
    "fintrader.deploy.settings",
    "fintrader.envs.settings",
    "fintrader.market.data_config",
    "fintrader.market.settings",
    "fintrader.pipeline.config",
    "fintrader.tournament.launchers.ray.settings",
]


def find_modules(package):
    """Every module below a package of fintrader."""
    paths = sorted((ROOT / "fintrader" / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (find_modules("verdict"), ("torch", "numba")),
        (find_modules("bars"), ("torch",)),
        (find_modules("results"), ("torch",)),
        (SETTINGS, ("torch", "numba", "pandas", "pyarrow")),
    ],
    ids=["verdict", "bars", "results", "settings"],
)
def test_importing_these_loads_none_of_those(modules, heavy):
    program = (
        f"import sys, {', '.join(modules)}\n"
        f"loaded = [name for name in {heavy} if name in sys.modules]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
