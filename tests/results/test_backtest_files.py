import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fintrader.backtesting import (
    StoredBacktest,
    read_backtest,
    simulate,
    simulate_baselines,
    write_backtest,
)
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError, RunError
from fintrader.report import html as report
from fintrader.results.catalogue import CATALOGUE
from fintrader.results.context import BacktestContext, FoldReturns, LimitedOutcome
from fintrader.results.folders import ChangedFileError, DamagedFileError, NotThereError
from fintrader.results.strategy_metrics import StrategyMetrics
from tests.engines.policies import idle_policy, noisy_policy
from tests.factories import make_market

CONTEXT = BacktestContext(
    trials=80,
    run="a </script> run",
    seed=3,
    command="fintrader run configs/quickstart.yaml",
    trading=EnvSettings(participation="none", half_spread_bps={"A": 0.5}).terms(),
    null_model=StrategyMetrics.of({"sharpe": 1.0}),
    folds=(FoldReturns("2020-01-02", "2020-02-03", {"best": None}),),
    within_limits=LimitedOutcome(0.1, {"order": 2}, "", {"order": 0.1}),
)


@pytest.fixture(scope="module")
def results():
    market = replace(make_market(100, 4), cut_from=("test",))
    settings = EnvSettings(cost_bps=5)
    best = simulate(noisy_policy(4), market, settings, name="best")
    return {
        "best": best,
        "idle": simulate(idle_policy, market, settings),
        **simulate_baselines(market, settings),
    }


def test_equal_results_give_equal_bytes(results, tmp_path):
    for folder in ("a", "b"):
        stored = write_backtest(tmp_path / folder, results, context=CONTEXT)
        report.write_report(tmp_path / folder / "report.html", stored)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == [
        *("analysis.json", "context.json", "equity.parquet", "explanation.json", "metrics.json"),
        *("positions.parquet", "prices.parquet", "report.html", "seal.json"),
        *("sensitivity.json", "trades.parquet", "verdict.json"),
    ]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_what_is_read_is_what_was_simulated(results, tmp_path):
    write_backtest(tmp_path, results, context=CONTEXT)
    stored = read_backtest(tmp_path)
    assert stored.strategies == list(results)
    notes = {name: result.note for name, result in results.items()}
    assert stored.context == replace(CONTEXT, strategies=notes)
    assert stored.verdict.selection.trials == 80
    for name, result in results.items():
        assert stored.metrics[name] == result.metrics
        assert (stored.curve()[name].to_numpy() == result.equity).all()
        assert stored.daily_returns()[name].to_numpy() == pytest.approx(
            result.daily_returns, abs=1e-15
        )
        ours = stored.trades[stored.trades["strategy"] == name]
        assert len(ours) == len(result.trades)
    weights = stored.weights("best")
    assert weights.shape[0] == 5
    expected = results["best"].weights()[[19, 39, 59, 79, 99]]
    for symbol in weights.columns:
        assert weights[symbol].to_numpy() == pytest.approx(
            expected[:, results["best"].symbols.index(symbol)]
        )
    # Position values and cash make up the equity, in the stored tables alone.
    value = (
        stored.positions.eval("value = shares * price_usd")
        .groupby(["strategy", "minute"])["value"]
        .sum()
    )
    rows = stored.equity.set_index(["strategy", "minute"])
    for key, usd in value.items():
        assert rows.loc[key, "equity_usd"] - rows.loc[key, "cash_usd"] == pytest.approx(usd)


def test_damage_is_a_typed_error(results, tmp_path):
    with pytest.raises(RunError, match=r"metrics\.json"):
        read_backtest(tmp_path)
    write_backtest(tmp_path, results)
    whole = (tmp_path / "equity.parquet").read_bytes()
    (tmp_path / "equity.parquet").write_bytes(whole[: len(whole) // 2])
    stored = read_backtest(tmp_path)
    with pytest.raises(DamagedFileError, match=r"equity\.parquet is damaged"):
        stored.curve()
    (tmp_path / "equity.parquet").unlink()
    with pytest.raises(NotThereError, match=r"equity\.parquet does not exist"):
        stored.curve()
    (tmp_path / "equity.parquet").write_bytes((tmp_path / "trades.parquet").read_bytes())
    with pytest.raises(DamagedFileError, match="column"):
        stored.curve()
    (tmp_path / "equity.parquet").write_bytes(whole)
    assert stored.curve().notna().all(axis=None)  # read again, once it can be
    (tmp_path / "sensitivity.json").write_text('{"kind": 1}')
    with pytest.raises(DamagedFileError, match=r"sensitivity\.json: is \{'kind': 1\}, not a list"):
        assert stored.sensitivity
    context = tmp_path / "context.json"
    context.write_text(context.read_text().replace('"trials": null', '"trials": "80"'))
    with pytest.raises(DamagedFileError, match=r"context\.json: trials is '80', not a whole"):
        assert stored.context
    (tmp_path / "metrics.json").write_text("[1, 2]")
    with pytest.raises(RunError):
        read_backtest(tmp_path)


def test_a_change_is_seen_when_it_is_opened(results, tmp_path):
    assert write_backtest(tmp_path, results, context=CONTEXT).changed == ""
    whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(whole) == 11
    for path, data in whole.items():
        assert read_backtest(tmp_path).changed == ""
        path.write_bytes(data.replace(b"8", b"1") + b" ")
        said = read_backtest(tmp_path).changed
        assert said.startswith("This result was changed after it was written: "), path
        assert path.name in said
        assert read_backtest(tmp_path).opening.why == said
        path.write_bytes(data)
    (tmp_path / "seal.json").unlink()
    assert read_backtest(tmp_path).changed.startswith(
        "This result cannot be checked: it has no seal.json"
    )


def test_one_that_was_opened_never_mixes_two_writings(results, tmp_path):
    write_backtest(tmp_path, results, context=CONTEXT)
    held = read_backtest(tmp_path)
    curve = held.curve()
    write_backtest(tmp_path, {"best": results["best"]}, context=replace(CONTEXT, seed=4))
    assert held.curve().equals(curve), "what was read before stays"
    with pytest.raises(ChangedFileError, match="open it again"):
        assert held.context
    assert read_backtest(tmp_path).context.seed == 4
    opened = read_backtest(tmp_path)
    (tmp_path / "metrics.json").unlink()  # what a writing does first
    with pytest.raises(ChangedFileError, match="open it again"):
        opened.curve()


def test_results_of_different_windows_are_refused(results, tmp_path):
    other = simulate(idle_policy, make_market(60, 4), EnvSettings())
    with pytest.raises(BacktestError, match="different bars"):
        write_backtest(tmp_path, {**results, "other": other})
    with pytest.raises(BacktestError, match="no result"):
        write_backtest(tmp_path, {})
    assert list(tmp_path.iterdir()) == []


def test_a_split_is_no_fill(results, tmp_path):
    stored = write_backtest(tmp_path, results, context=CONTEXT)
    trades = stored.select_trades("best")
    halves = pd.concat([trades, trades.head(3).assign(kind="split")])
    split = StoredBacktest(stored.metrics, {**stored.parts, "trades": halves})
    assert len(split.select_trades("best")) == len(trades) + 3
    assert split.select_fills("best").equals(stored.select_fills("best"))


def test_report_says_the_trials_first_and_needs_no_network(results, tmp_path):
    stored = write_backtest(tmp_path, results, context=CONTEXT)
    assert not (tmp_path / "report.html").exists()
    page = report.write_report(tmp_path / "report.html", stored).read_text()
    assert len(page) < 3 * 2**20
    assert "It was chosen from 80 trials." in page[page.index("<h1") : page.index("<h2")]
    told = stored.opening
    assert f"{told.headline}: {told.why[0].lower()}{told.why[1:]}" == stored.verdict.text
    assert told.headline in page
    assert (
        StoredBacktest(stored.metrics, {**stored.parts, "verdict": None}).opening.headline
        == "Not assessed"
    )
    assert "Best returned" in page
    assert 'src="http' not in page
    assert all(target.startswith("#") for target in re.findall('href="([^"]*)"', page))
    assert "a &lt;/script&gt; run" in page
    assert page.count("</script>") == 5


def test_no_metric_is_silently_nan():
    for bars in (2, 21, 60):
        numbers = simulate(
            noisy_policy(4), make_market(60, 4).window(0, bars), EnvSettings()
        ).metrics.by_key()
        assert list(numbers) == [metric.key for metric in CATALOGUE]
        assert all(value is None or math.isfinite(value) for value in numbers.values())


def test_trading_numbers_by_hand():
    result = simulate(noisy_policy(4), make_market(60, 4), EnvSettings(cost_bps=20))
    numbers = result.metrics
    traded = result.trades["notional_usd"].sum()
    profit = result.equity[-1] - result.equity[0]
    assert numbers["cost_usd"] == pytest.approx(0.002 * traded)
    assert numbers["break_even_cost_bps"] == pytest.approx(1e4 * (profit + 0.002 * traded) / traded)
    assert numbers["turnover"] is None, "three sessions have no annual rate"
    assert numbers["trades"] == len(result.trades)
    weights = result.weights()[[19, 39, 59]]
    assert numbers["largest_weight"] == pytest.approx(weights.max())
    share = weights / weights.sum(axis=1, keepdims=True)
    assert numbers["concentration"] == pytest.approx(np.square(share).sum(axis=1).mean())
