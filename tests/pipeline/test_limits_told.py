"""What a deployment's limits would have made of a backtest, and what its bars lack, stand beside
its figures."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fintrader.backtesting.data_caveats import describe_idle, list_data_caveats
from fintrader.backtesting.limits import LimitSettings
from fintrader.backtesting.shadow import shadow_backtest
from fintrader.backtesting.writer import NO_CONTEXT
from fintrader.envs import EnvSettings
from fintrader.pipeline import evaluation
from fintrader.pipeline.backtest_context import add_data
from fintrader.progress import SILENT
from fintrader.results.context import LimitedOutcome
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
    times = found.cut["order"]
    assert f"{times} times by the limit on the size of an order" in said
    assert "halted" not in said
    halted = "lost 10.3% since its peak; the limit is 10.0%"
    said = describe_limits(LimitedOutcome(0.1884, {"gross": 21, "order": 1}, halted, {}))
    assert said == (
        "Within a deployment's limits the ensemble made +18.84 %. Its orders were cut 21 times by"
        " the limit on the sum of all positions, 1 time by the limit on the size of an order. Then"
        " trading halted (lost 10.3 % since its peak; the limit is 10.0 %): nothing is ordered and"
        " the positions stay, until a person resumes it."
    )
    assert describe_limits(None) == ""


def test_rows_left_out_and_idle_money_are_caveats(tmp_path):
    market = frozen(tmp_path)[1]
    tradable = market.tradable.clone()
    tradable[market.session > market.session[0]] = False

    def told(outside, invested, volume=1.0, capital=1e3):
        known = replace(market.provenance, outside=outside, calendar="XNAS")
        window = replace(market, tradable=tradable, provenance=known, volume=volume * market.volume)
        metrics = SimpleNamespace(invested_share=invested)
        held = SimpleNamespace(metrics=metrics, equity=[capital])
        results = {"buy_and_hold": held}
        context = replace(NO_CONTEXT, trading=EnvSettings().terms())
        shown = add_data(context, tmp_path / "m", [window], results).data
        idle = describe_idle([window], results, EnvSettings().participation)
        found = [*list_data_caveats(window.provenance), *([idle] if idle else [])]
        assert all(one in shown.values() for one in found)
        return found

    assert told(0.009, 0.9) == []
    sessions = len(market.session.unique())
    left_out, idle = told(0.76, 0.04)
    assert left_out == "76.0% of the rows left out, outside of the sessions of XNAS"
    assert idle.startswith("buy and hold 4% invested on average")
    assert f"{sessions - 1} of {sessions} sessions hold no trade" in idle
    assert told(0.015, 0.9) == ["1.5% of the rows left out, outside of the sessions of XNAS"]
    (thin,) = told(0.0, 0.04, volume=0.0)
    assert "orders take 10% of a bar's volume (env.participation), which is 0 USD" in thin
