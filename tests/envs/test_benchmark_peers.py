"""What `benchmarks/env.py` compares with computes what it is said to compute."""

from dataclasses import replace

import pytest
import torch

from benchmarks._env_torchtrade import (
    PortfolioEnv,
    TunedPortfolioEnv,
    cash_first,
    equity_difference,
    windowed,
)
from benchmarks.env import make_market

FEE = 2e-3


@pytest.fixture(scope="module")
def market():
    """Six assets, of which each trades in four bars of five."""
    market = windowed(make_market(6, seed=0).window(0, 300))
    traded = torch.rand(market.tradable.shape, generator=torch.Generator().manual_seed(1)) < 0.8
    return replace(market, tradable=traded)


@pytest.mark.parametrize("kind", [PortfolioEnv, TunedPortfolioEnv])
def test_the_rebuilt_torchtrade_trades_as_its_contract_says(kind, market):
    env = kind(market, 4, fee=FEE, episode=None, random_start=False)
    env.reset()
    generator = torch.Generator().manual_seed(2)
    for bar in range(100):
        value = env.value.clone()
        held = env.weights.clone()
        trades = market.tradable[bar]
        action = torch.rand(4, 7, generator=generator)
        seen, reward, *_ = env.step(action)
        move = market.close[bar + 1].double() / market.close[bar].double()
        # What was held after the trade, as shares of the value before it.
        after = env.weights[:, 1:] * (env.value / value).unsqueeze(1) / move
        moved = (after - held[:, 1:]).abs()
        assert float(moved[:, ~trades].sum()) < 1e-12
        left = 1.0 - FEE * moved.sum(1)
        torch.testing.assert_close(
            env.value, value * (left + (after * (move - 1.0)).sum(1)), rtol=1e-12, atol=0.0
        )
        ratio = (
            after[:, trades] / action[:, 1:][:, trades].double()
        )  # the rest follows the proportions asked for
        torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(env.weights.sum(1), torch.ones(4, dtype=torch.float64))
        torch.testing.assert_close(
            seen["window"].flatten(2), market.features[bar + 1].expand(4, -1, -1)
        )
        assert torch.equal(seen["tradable"], market.tradable[bar + 1].float().expand(4, -1))
        torch.testing.assert_close(reward, (env.value / value).log().float())


@pytest.mark.parametrize("kind", [PortfolioEnv, TunedPortfolioEnv])
def test_finished_accounts_begin_again_in_the_same_step(kind, market):
    env = kind(market, 3, fee=FEE, episode=5)
    start = env.reset()["start"].clone()
    for step in range(5):
        seen, _, terminated, truncated, last = env.step(torch.rand(3, 7))
        assert bool(truncated.all()) == (step == 4)
        assert not bool(terminated.any())
    assert torch.equal(last["bar"], start + 5)
    assert torch.equal(seen["bar"], seen["start"])
    assert torch.equal(seen["weights"][:, 0], torch.ones(3))
    assert torch.equal(seen["window"].flatten(2), market.features[seen["bar"]])


def test_without_costs_ours_and_the_rebuilt_torchtrade_end_with_the_same_equity(market):
    assert (
        equity_difference(replace(market, tradable=torch.ones_like(market.tradable)), decisions=150)
        < 1e-7
    )


def test_our_actions_as_theirs_are_weights_of_one_with_the_rest_in_cash():
    weights = cash_first(torch.tensor([[0.5, -1.0, 0.25], [1.0, 1.0, -0.5], [-1.0, 0.0, -0.1]]))
    expected = [[0.25, 0.5, 0.0, 0.25], [0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]]
    torch.testing.assert_close(weights, torch.tensor(expected))
