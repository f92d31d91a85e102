from __future__ import annotations

import numpy as np
import pytest

from fintrader.backtesting import simulate, simulate_baselines, write_backtest
from fintrader.backtesting.folds import WalkForwardSettings, fold_market, make_folds, stitch
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.report.html import write_report
from tests.engines.policies import noisy_policy
from tests.factories import make_market

SHORT = WalkForwardSettings(train_sessions=6, validation_sessions=3, test_sessions=4, embargo_sessions=1)


def test_folds_roll_on_and_keep_their_distance() -> None:
    market = make_market(20 * 31, 3, session_bars=20)
    folds = make_folds(market, SHORT)
    assert len(folds) == 5
    session = market.session.numpy()
    tested: set[int] = set()
    for fold in folds:
        for window in (fold.train, fold.validation, fold.test):
            assert window[0] % 20 == 0
            assert window[1] % 20 == 0
        assert session[fold.validation[0]] - session[fold.train[1] - 1] == 2  # one session of embargo between
        assert session[fold.test[0]] - session[fold.validation[1] - 1] == 2
        days = set(session[slice(*fold.test)].tolist())
        assert not days & tested
        tested |= days
    assert tested == set(range(11, 31))
    anchored = make_folds(market, SHORT.model_copy(update={"anchored": True}))
    assert all(fold.train[0] == 0 for fold in anchored)
    assert [fold.test for fold in anchored] == [fold.test for fold in folds]
    with pytest.raises(BacktestError, match="hold no fold"):
        make_folds(market.window(0, 200), SHORT)


@pytest.mark.parametrize("commission", [0.0, 5.0])
def test_stitched_windows_compound_and_their_trades_add_up(commission: float, tmp_path) -> None:
    market = make_market(20 * 31, 4, session_bars=20)
    settings = EnvSettings(cost_bps=10, min_commission_usd=commission)
    parts = [
        simulate(noisy_policy(4), fold_market(market, fold).split().test, settings)
        for fold in make_folds(market, SHORT)
    ]
    whole = stitch(parts, name="walk-forward")
    assert len(whole.equity) == sum(len(part.equity) for part in parts)
    assert (np.diff(whole.minutes) > 0).all()
    growth = 1.0
    for part in parts[:-1]:
        notional = np.abs(part.shares[-1] * part.mark[-1])
        fee = np.minimum(np.maximum(commission * (notional > 0), 0.001 * notional), notional)
        growth *= (part.equity[-1] - fee.sum()) / part.equity[0]
    growth *= parts[-1].equity[-1] / parts[-1].equity[0]
    assert whole.equity[-1] / whole.equity[0] == pytest.approx(growth, rel=1e-10)
    assert whole.trade_list_profit() == pytest.approx(whole.equity[-1] - whole.equity[0], rel=1e-9)
    # What is carried over is what was left: no return appears between two windows.
    for edge in np.cumsum([len(part.equity) for part in parts])[:-1]:
        assert whole.equity[edge] == pytest.approx(whole.equity[edge - 1], rel=1e-12)
    assert len(np.unique(whole.session)) == 20
    assert whole.metrics["sharpe"] is not None
    baselines = [simulate_baselines(fold_market(market, f).split().test, settings) for f in make_folds(market, SHORT)]
    rivals = {name: stitch([fold[name] for fold in baselines]) for name in baselines[0]}
    assert rivals["benchmark"].equity == pytest.approx(
        1e6 * rivals["benchmark"].benchmark / rivals["benchmark"].benchmark[0]
    )
    stored = write_backtest(tmp_path, {"ensemble": whole, **rivals}, context={"trials": 5 * 8})
    assert write_report(tmp_path / "report.html", stored).exists()


def test_overlapping_windows_are_refused() -> None:
    market = make_market(100, 3)
    result = simulate(noisy_policy(3), market, EnvSettings())
    with pytest.raises(BacktestError, match="overlaps"):
        stitch([result, result])
    with pytest.raises(BacktestError, match="no test window"):
        stitch([])
