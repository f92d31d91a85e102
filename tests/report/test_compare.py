from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fintrader.backtesting import StoredBacktest, read_backtest, simulate, simulate_baselines, write_backtest
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.report.compare import labels, render_comparison, write_comparison
from fintrader.report.tearsheet import tear_sheet_inputs, write_tear_sheet
from fintrader.results import figures
from tests.engines.policies import noisy_policy
from tests.factories import make_market


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredBacktest]:
    market, settings = make_market(20 * 30, 4, session_bars=20), EnvSettings(cost_bps=2)
    found = {}
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"run{seed}")
        ensemble = simulate(noisy_policy(4, seed), market, settings, name="ensemble")
        write_backtest(folder, {"ensemble": ensemble, **simulate_baselines(market, settings)}, context={"trials": 7})
        found[f"run <{seed}>"] = read_backtest(folder)
    return found


def test_comparison_has_every_run_and_its_verdict(runs: dict[str, StoredBacktest], tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "comparison.html", runs)
    page = path.read_text()
    assert page == render_comparison(runs)
    assert "14 trials in all of them together" in page
    assert "the same window" in page
    for name, stored in runs.items():
        assert name not in page  # escaped
        assert name.replace("<", "&lt;").replace(">", "&gt;") in page
        assert stored.honesty["verdict"].split(":")[0] in page
    with pytest.raises(BacktestError, match="at least two"):
        render_comparison(dict(list(runs.items())[:1]))


def test_names_tell_folders_apart() -> None:
    assert labels(["runs/tiny", "runs/ov", "other/tiny"]) == ["runs/tiny", "ov", "other/tiny"]
    assert labels(["a/x/run/", "b/x/run"]) == ["a/x/run", "b/x/run"]
    assert labels(["s3://bucket/runs/one", "one"])[0] == "runs/one"
    assert labels(["runs/one", "runs/one/backtest/validation"]) == ["one", "one/backtest/validation"]
    with pytest.raises(BacktestError, match="twice"):
        labels(["runs/one", "runs/../runs/one"])


def test_growth_starts_at_one_and_ends_at_the_return(runs: dict[str, StoredBacktest]) -> None:
    daily = {name: stored.daily_returns()["ensemble"] for name, stored in runs.items()}
    for trace, stored in zip(figures.growth_figure(daily).data, runs.values(), strict=True):
        assert trace.y[0] == 1
        assert trace.y[-1] - 1 == pytest.approx(stored.metrics["ensemble"]["cumulative_return"])


@pytest.mark.slow
def test_tear_sheet(runs: dict[str, StoredBacktest], tmp_path: Path) -> None:
    pytest.importorskip("pyfolio")
    stored = next(iter(runs.values()))
    path = write_tear_sheet(tmp_path / "tear.png", stored)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    inputs = tear_sheet_inputs(stored, "ensemble")
    total = inputs["positions"].sum(axis=1).to_numpy()
    assert total == pytest.approx(stored.daily()["ensemble"].to_numpy(), rel=1e-9)
    assert np.prod(1 + inputs["returns"].to_numpy()) - 1 == pytest.approx(
        stored.metrics["ensemble"]["cumulative_return"]
    )
    with pytest.raises(BacktestError, match=r"\.png or a \.pdf"):
        write_tear_sheet(tmp_path / "tear.txt", stored)
    with pytest.raises(BacktestError, match="no strategy"):
        write_tear_sheet(tmp_path / "tear.png", stored, strategy="nobody")
    short = StoredBacktest(stored.metrics, {**stored.parts, "equity": stored.equity[stored.equity["session"] < 5]})
    with pytest.raises(BacktestError, match="5 sessions are too few"):
        write_tear_sheet(tmp_path / "tear.png", short)
    assert write_tear_sheet(tmp_path / "tear.pdf", stored).read_bytes().startswith(b"%PDF")
