"""How the app is started, how far it listens, and what it needs to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fintrader.errors import ConfigError
from fintrader_app import launch


def test_binds_to_loopback_and_sends_nothing() -> None:
    command = launch.command(8600)
    assert "--server.address=127.0.0.1" in command
    assert "--server.port=8600" in command
    assert "--browser.gatherUsageStats=false" in command
    assert "--client.showErrorDetails=none" in command
    assert Path(command[5]).is_file()
    assert "--server.address=0.0.0.0" in launch.command(8600, host="0.0.0.0")


def test_another_folder_called_app_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('the wrong app')")
    python = launch.command()[: launch.command().index("-m")]
    found = "import runpy; runpy.run_module('fintrader_app.launch')"
    subprocess.run([*python, "-c", found], check=True, cwd=tmp_path)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_port_is_checked(port: int) -> None:
    with pytest.raises(ConfigError, match="port"):
        launch.command(port)


def test_tells_the_app_where_runs_lie(tmp_path: Path) -> None:
    variables = launch.environment(tmp_path / "runs", base={})
    assert variables[launch.RUNS_DIR_VARIABLE] == str(tmp_path / "runs")
    assert launch.CACHE_VARIABLE not in variables


def test_reading_pages_load_no_torch() -> None:
    program = (
        "import sys, fintrader_app.shell, fintrader_app.artifacts, fintrader_app.charts, "
        "fintrader_app.markets, fintrader_app.race, "
        "fintrader_app.metric_table, fintrader_app.jobs, fintrader_app.board; "
        "assert 'torch' not in sys.modules and 'fintrader.backtesting' not in sys.modules; "
        "import fintrader.backtesting; from fintrader.backtesting import simulate; "
        "from fintrader.results import figures; "
        "assert callable(simulate) and figures is fintrader_app.charts.figures"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_no_page_draws_random_numbers() -> None:
    """Every number comes from a file; nothing in the app draws any."""
    folder = Path(launch.__file__).parent
    for path in folder.rglob("*.py"):
        for source in ("np.random", "import random", "default_rng"):
            assert source not in path.read_text(), (path, source)
