"""The vectorised environment against the one-account Python loop, over every option drawn at random."""

from __future__ import annotations

import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from tests.envs.strategies import env_settings, random_actions
from tests.factories import make_market
from tests.oracles.ledger_oracle import LedgerOracle

NUM_ENVS, NUM_ASSETS = 4, 5


def compare(config: EnvSettings, seed: int, steps: int, dtype: torch.dtype, count: int = NUM_ENVS) -> int:
    """Step environment and oracles side by side; returns the number of account steps compared."""
    market = make_market(70, NUM_ASSETS, seed=seed % 7, volatility=0.03)
    env = TradingEnv(market, config, num_envs=count, dtype=dtype, seed=seed, record=True)
    env.reset()

    def oracle(i: int) -> LedgerOracle:
        return LedgerOracle(market, config, start=int(env.account.bar[i]), end=int(env.account.end_bar[i]))

    oracles = [oracle(i) for i in range(count)]
    compared = 0
    for action in random_actions(seed, steps, count, NUM_ASSETS):
        _, reward, terminated, truncated, info = env.step(action)
        for i, slow in enumerate(oracles):
            expected = slow.step(action[i].double().tolist())
            compared += 1
            tolerance = 1e-6 * slow.first
            if abs(expected.bar_equity[-1] - config.ruin_fraction * slow.first) < tolerance:
                return compared  # ruin to the last bit is decided by rounding
            if abs(expected.bar_equity[-1]) < 1e-3 * slow.first:
                return compared  # what a penniless account still does is all rounding
            assert bool(terminated[i]) == expected.terminated
            assert bool(truncated[i]) == expected.truncated
            assert info["bar_equity"][i].tolist() == pytest.approx(expected.bar_equity, abs=tolerance)
            assert float(info["cost"][i]) == pytest.approx(expected.cost, abs=tolerance)
            assert float(info["turnover"][i]) == pytest.approx(expected.turnover, abs=tolerance)
            assert float(reward[i]) == pytest.approx(expected.reward, rel=1e-4, abs=1e-5 * config.reward_scale)
            traded = info["fill_shares"][i].tolist()
            if config.fractional:
                assert traded == pytest.approx(expected.traded, rel=1e-6, abs=1e-6)
            else:
                assert traded == expected.traded
            if expected.terminated or expected.truncated:
                oracles[i] = oracle(i)
            else:
                shares = env.account.shares[i].tolist()
                assert float(env.account.cash[i]) == pytest.approx(slow.cash, abs=tolerance)
                assert shares == (pytest.approx(slow.shares, rel=1e-6, abs=1e-6) if config.fractional else slow.shares)
    return compared


@settings(max_examples=60, deadline=None)
@given(config=env_settings(), seed=st.integers(0, 10_000))
def test_float64_environment_agrees_with_the_oracle(config: EnvSettings, seed: int) -> None:
    assert compare(config, seed, 40, torch.float64) > 0


@settings(max_examples=25, deadline=None)
@given(config=env_settings(fractional=False), seed=st.integers(0, 10_000))
def test_float32_environment_holds_the_same_whole_shares(config: EnvSettings, seed: int) -> None:
    assert compare(config, seed, 30, torch.float32) > 0


@settings(max_examples=30, deadline=None)
@given(config=env_settings(), seed=st.integers(0, 10_000))
def test_change_of_equity_is_price_pnl_less_costs(config: EnvSettings, seed: int) -> None:
    market = make_market(70, NUM_ASSETS, seed=seed % 7, volatility=0.03)
    env = TradingEnv(
        market, config, num_envs=1, dtype=torch.float64, seed=seed, record=True, autoreset_mode=AutoresetMode.DISABLED
    )
    env.reset()
    slow = LedgerOracle(market, config, start=int(env.account.bar[0]), end=int(env.account.end_bar[0]))
    for action in random_actions(seed, 30, 1, NUM_ASSETS):
        before = float(env.equity[0])
        _, _, terminated, truncated, info = env.step(action)
        pnl = slow.step(action[0].double().tolist()).pnl
        change = float(env.equity[0]) - before
        assert change == pytest.approx(pnl - float(info["cost"][0]), abs=1e-8 * slow.first)
        if bool(terminated | truncated):
            break


@pytest.mark.slow
def test_a_hundred_thousand_steps_agree() -> None:
    """Positions exactly (whole shares), cash to 1e-6 of the first equity, every option drawn at random."""
    total = 0

    @settings(max_examples=170, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(config=env_settings(), seed=st.integers(0, 10**9))
    def agree(config: EnvSettings, seed: int) -> None:
        nonlocal total
        total += compare(config, seed, 60, torch.float64, count=16)

    agree()
    assert total >= 100_000
