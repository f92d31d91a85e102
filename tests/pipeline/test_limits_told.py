"""What a deployment's limits would have made of a backtest stands beside its figures."""

import pytest

from fintrader.backtesting.limits import LimitSettings
from fintrader.backtesting.shadow import shadow_backtest
from fintrader.pipeline import evaluation
from fintrader.progress import SILENT
from fintrader.results.formatting import describe_limits
from tests.engines.deployments import frozen


def test_folds_are_chained_and_what_bound_is_counted(tmp_path_factory, monkeypatch):
    bundle, market = frozen(tmp_path_factory.mktemp("limits"))
    halves = [market.window(0, 200), market.window(200, market.num_bars)]
    limits = LimitSettings(order=0.02)
    monkeypatch.setattr(evaluation, "LimitSettings", lambda: limits)
    env = bundle.env
    found = evaluation._within_limits([bundle.policy] * 2, halves, env, SILENT)
    apart = [shadow_backtest(bundle.policy, half, env, limits) for half in halves]
    grown = [result.equity[-1] / result.equity[0] for result, _ in apart]
    assert found.cumulative_return == pytest.approx(grown[0] * grown[1] - 1)
    assert found.cut["order"] == sum(noted.counts["order"] for _, noted in apart) > 0
    said = describe_limits(found)
    assert "order" in said
    assert "halted" not in said
    assert describe_limits(None) == ""
