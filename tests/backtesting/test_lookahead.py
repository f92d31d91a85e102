from dataclasses import replace

import pytest
import torch

from fintrader.backtesting.account import BacktestAccount
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from tests.backtesting.leak_lab import find_leaks
from tests.factories import joined, make_market


def future(cut):
    """The test market, with another market's bars from `cut` on."""
    return joined(make_market(90, 4, seed=1), make_market(90, 4, seed=2), cut)


def leaking(market, where):
    """Put the next three bars' return into feature f1, the last price into context c0, or a later
    index level."""
    if where == "feature f1":
        ahead = torch.zeros_like(market.close)
        ahead[:-3] = (market.close[3:] / market.close[:-3] - 1).nan_to_num()
        features = market.features.clone()
        features[..., 1] = ahead
        return replace(market, features=features)
    if where == "context c0":
        context = market.context.clone()
        context[:, 0] = market.close[-1].nan_to_num().sum()
        return replace(market, context=context)
    benchmark = market.benchmark.clone()
    benchmark[:] = (
        benchmark.reshape(-1, 3)[:, 2:].repeat(1, 3).flatten()
    )  # the last of every three, filled back
    return replace(market, benchmark=benchmark)


@pytest.mark.parametrize("action", ["target", "limit", "quote"])
def test_a_clean_market_is_clean(action):
    market = make_market(90, 4, seed=1)
    report = find_leaks(market, future, EnvSettings(action=action), cuts=4)
    assert report.clean
    assert str(report).startswith("No look-ahead found: 4 markets")


def test_an_action_of_another_width_is_refused():
    account = BacktestAccount(make_market(90, 4, seed=1), EnvSettings(action="limit"))
    for door in (account.act, account.holdings, account.set_resting_orders):
        with pytest.raises(BacktestError, match="an action has 8 numbers here, not 4"):
            door(torch.zeros(4))


@pytest.mark.parametrize("where", ["feature f1", "context c0", "benchmark"])
def test_a_planted_leak_is_named(where):
    market = leaking(make_market(90, 4, seed=1), where)
    report = find_leaks(market, lambda cut: leaking(future(cut), where), EnvSettings(), cuts=4)
    names = {leak.name for leak in report.leaks}
    assert where in names
    assert names <= {where, "observation", "equity", "fill"}
    assert all(leak.bar < leak.cut for leak in report.leaks)
    if where.startswith("feature"):
        assert "observation" in names
        assert "fill" in names or "equity" in names
        assert any(
            ", features," in leak.detail for leak in report.leaks if leak.name == "observation"
        )
    assert where in str(report)
