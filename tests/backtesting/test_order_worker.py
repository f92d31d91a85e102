"""Worked orders (`env.execution`) in a backtest, against plain Python and rules worked out by
hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.backtesting import simulate
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import lay_out
from fintrader.errors import BacktestError, ConfigError
from fintrader.execution import open_executor, train_executor
from fintrader.execution.training import draw_orders
from fintrader.market.tensors import Events
from tests.factories import make_market

FREE = {"cost_bps": 0.0, "participation": None, "benchmark": "cash"}


def worked(bars=10, policy="twap", **how):
    execution = {"bars": bars, "policy": policy}
    return EnvSettings(**{"decision_interval": 20, "execution": execution, **FREE, **how})


def by_features(market, settings):
    """Weights by the first feature, changed at each decision."""
    layout = lay_out(market, settings)
    return lambda obs: torch.softmax(layout.split(obs)["features"][..., 0] * 2.0, -1) * 0.8


def test_equal_parts_are_what_plain_python_trades():
    market = make_market(81, 3, volatility=0.002)
    settings = worked(fractional=True)
    result = simulate(by_features(market, settings), market, settings)
    cash, held, goal, equity = 1e6, np.zeros(3), np.zeros(3), []
    opened, close = (getattr(market, name).double().numpy() for name in ("open", "close"))
    features = market.features[:, :, 0]
    for bar in range(81):
        if bar:
            wanted = goal - held
            left = 10 - (bar - 1) % 20
            part = np.where(wanted < 0, wanted / max(left - 1, 1), wanted / max(left, 1))
            if left > 0:
                part = np.where(market.tradable[bar].numpy(), part, 0.0)
                held = held + part
                cash -= (part * opened[bar]).sum()
        equity.append(cash + (held * close[bar]).sum())
        if bar % 20 == 0:
            weights = 0.8 * torch.softmax(features[bar] * 2.0, -1).double().numpy()
            goal = weights * equity[-1] / close[bar]
    np.testing.assert_allclose(result.equity, equity, rtol=2e-6)
    orders = result.trades[result.trades["kind"] == "order"]
    assert set(orders["decision_bar"] % 20) == {0}, "a fill belongs to its decision"
    assert set((orders["fill_bar"] - orders["decision_bar"]).unique()) <= set(range(1, 11))


def test_whole_shares_reach_the_goal_in_time():
    market = make_market(81, 3, volatility=0.002)
    settings = worked()
    result = simulate(by_features(market, settings), market, settings)
    at_once = settings.model_copy(update={"execution": None})
    target = simulate(by_features(market, at_once), market, at_once)
    assert (result.shares == np.trunc(result.shares)).all()
    # The first decision is the same, before any difference between the two accounts.
    assert result.shares[10].tolist() == target.shares[1].tolist()
    assert (result.shares[11:21] == result.shares[10]).all()


def test_a_split_scales_what_is_left():
    market = make_market(41, 1, volatility=0.002)
    plain = simulate(lambda obs: torch.ones(1, 1), market, worked(fractional=True))
    prices = {
        name: torch.cat([getattr(market, name)[:5], getattr(market, name)[5:] / 4])
        for name in ("open", "high", "low", "close")
    }
    events = Events.of([(5, 0, 4.0, 0.0)])
    split = replace(market, **prices, events=events)
    found = simulate(lambda obs: torch.ones(1, 1), split, worked(fractional=True))
    np.testing.assert_allclose(found.equity, plain.equity, rtol=1e-6)
    np.testing.assert_allclose(found.shares[5:], 4 * plain.shares[5:], rtol=1e-6)


def test_settings_that_cannot_be_worked_are_refused():
    with pytest.raises(ConfigError, match="lower it, or raise decision_interval"):
        worked(bars=21)
    with pytest.raises(ConfigError, match="action: target or trade"):
        worked(action="limit")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    market = make_market(400, 3, session_bars=40)
    settings = worked(half_spread_bps=5.0)
    policy = train_executor(market, settings, env_steps=20_000, num_envs=64)
    path = tmp_path_factory.mktemp("executor") / "executor.safetensors"
    policy.save(path)
    return market, path


def test_a_trained_executor_works_orders(trained):
    market, path = trained
    settings = worked(policy=str(path), half_spread_bps=5.0)
    result = simulate(by_features(market, settings), market, settings)
    assert result.orders.given > 100
    even = worked(half_spread_bps=5.0)
    other = simulate(by_features(market, even), market, even)
    assert (result.equity != other.equity).any()
    assert result.is_seen, "the executor learned on these bars"
    assert not other.is_seen


@pytest.mark.slow
def test_an_executor_learns_the_same_whatever_else_the_environment_does():
    market = make_market(200, 3, session_bars=40)
    plain = worked(half_spread_bps=5.0)
    names = dict(zip(market.symbols, (3.0, 5.0, 7.0), strict=True))
    odd = worked(
        half_spread_bps=names,
        lookback=3,
        dead_band=0.5,
        trade_rate=0.1,
        randomise={"variants": 2, "delay_bars": 1},
    )
    first, second = (
        train_executor(market, settings, env_steps=640, num_envs=count).state_dict()
        for settings, count in ((plain, 8), (odd, 7))
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_executor_knows_its_features_and_bars(trained):
    market, path = trained
    executor = open_executor(path, market.feature_names, 10)
    assert executor.features == market.feature_names
    with pytest.raises(BacktestError, match=r"set env\.execution\.bars to it"):
        open_executor(path, market.feature_names, 11)
    with pytest.raises(BacktestError, match="train an executor on this market"):
        open_executor(path, ("other",))
    with pytest.raises(ConfigError, match=r"set env\.execution\.bars"):
        train_executor(market, EnvSettings())


def test_orders_are_the_markets_own_bars():
    market = make_market(200, 2, session_bars=50)
    orders = draw_orders(market, 12, seed=3)
    lives = orders.close.reshape(2, -1, 13)
    close = market.close.double().numpy()
    for number, life in enumerate(lives[0].double().numpy()):
        places = [
            (bar, asset)
            for asset in range(2)
            for bar in range(200 - 12)
            if np.allclose(close[bar : bar + 13, asset] / close[bar, asset] * 100, life, rtol=1e-6)
        ]
        assert places, "each life is a stretch of one symbol"
        bar, asset = places[0]
        assert market.session[bar] == market.session[bar + 12]
        shown = orders.features.reshape(2, -1, 13, orders.num_features)[0, number]
        assert torch.equal(shown[:, :-2], market.features[bar : bar + 13, asset])
    torch.testing.assert_close(lives[1], 200.0 - lives[0])
    with pytest.raises(ConfigError, match=r"lower env\.execution\.bars"):
        draw_orders(market, 50)
