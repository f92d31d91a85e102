"""The fused kernel against the torch core: equal to the last bit, in every mode, with resets."""

import math

import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.fast import step as fused
from fintrader.errors import EnvError
from tests.engines.strategies import env_settings, random_actions
from tests.engines.twins import assert_bit_equal
from tests.factories import examples, make_market, reprice


@settings(max_examples=examples(100, quick=12))
@given(
    config=env_settings(),
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(list(AutoresetMode)),
    factored=st.booleans(),
    lookback=st.sampled_from([1, 3]),
    endowed=st.booleans(),
    cash=st.sampled_from([2e6, 3e8]),
    cheapest=st.sampled_from([1e-4, 0.3, 200.0]),
)
def test_every_output_and_the_whole_state_are_bit_equal(
    config, seed, mode, factored, lookback, endowed, cash, cheapest
):
    """With any amount of money, at any price, up to orders of 8.6 billion USD in a step."""
    most = 3e3 if cheapest == 200.0 else 3e5
    config = config.model_copy(
        update={
            "observation": "factored" if factored else "flat",
            "lookback": lookback,
            "max_shares": most if seed % 2 else 57.5,
        }
    )
    market = make_market(
        60, 13, seed=seed % 5, volatility=0.04, volume=(1e9, 400.0)[seed % 2], events=seed % 3 > 0
    )
    scale = torch.logspace(math.log10(cheapest / 20.0), 1.0, 13)
    paid = market.events.dividend_usd * scale.double()[market.events.asset]
    happened = market.events._replace(dividend_usd=paid)
    market = reprice(market, open=market.open * scale, close=market.close * scale, events=happened)
    assert_engines_agree(market, config, seed, mode, endowed=endowed, cash=cash)


def assert_engines_agree(market, config, seed, mode, **how):
    slow, fast = (
        TradingEnv(market, config, num_envs=9, seed=seed, autoreset_mode=mode, engine=engine)
        for engine in ("torch", "fused")
    )
    assert_bit_equal(slow, fast, random_actions(seed, 40, 9, 13), **how)


@pytest.mark.parametrize("owed", [{"borrow_bps_per_year": 900.0}, {"maintenance_margin": 0.6}])
def test_what_is_owed_in_a_long_interval_that_ends_early_is_bit_equal(owed):
    """The kernel goes bar by bar, the torch core from change to change."""
    config = EnvSettings(
        decision_interval=9,
        episode_bars=31,
        ruin_fraction=0.9,
        short=True,
        max_leverage=2.0,
        **owed,
    )
    market = make_market(90, 13, volatility=0.04, events=True)
    assert_engines_agree(market, config, 1, AutoresetMode.SAME_STEP, endowed=True)


def test_threads_change_nothing():
    market = make_market(80, 20)
    config = EnvSettings(episode_bars=9)
    count = 1500
    before = torch.get_num_threads()
    outputs = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            env = TradingEnv(market, config, num_envs=count, seed=1, engine="fused")
            env.reset()
            for action in random_actions(5, 12, count, 20):
                last = env.step(action)
            outputs.append((*last[:4], env.account.cash))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.parametrize("num_assets", [1, 13, 20])
def test_stores_past_the_caches_change_nothing(num_assets, monkeypatch):
    market = make_market(60, num_assets, 3)
    outputs = []
    for above in (1 << 40, 0):
        monkeypatch.setattr(fused, "STREAM_ABOVE_BYTES", above)
        env = TradingEnv(market, EnvSettings(episode_bars=7), num_envs=21, engine="fused")
        env.reset(seed=0)
        assert env.engine == "fused"
        outputs.append([env.step(a)[0].clone() for a in random_actions(2, 12, 21, num_assets)])
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def test_what_was_handed_out_is_never_overwritten_and_what_was_dropped_is_used_again():
    env = TradingEnv(make_market(60, 4), EnvSettings(), num_envs=3, engine="fused")
    env.reset(options={"start": 0})
    action = torch.full((3, 4), 0.3)
    held = [(env.step(action)[0][:, 1], env.account.cash) for _ in range(12)]  # views hold, too
    kept = [(obs.clone(), cash.clone()) for obs, cash in held]
    for _ in range(5):
        env.step(action)
    for (obs, cash), (obs_then, cash_then) in zip(held, kept, strict=True):
        assert torch.equal(obs, obs_then)
        assert torch.equal(cash, cash_then)
    del held, obs, cash
    addresses = {env.step(action)[0].data_ptr() for _ in range(20)}
    assert len(addresses) <= 2


def test_auto_falls_back_and_fused_says_why_not():
    market = make_market(60, 4)
    assert TradingEnv(market, num_envs=2).engine == "fused"
    assert TradingEnv(market, num_envs=2, record=True).engine == "torch (it keeps no record)"
    with pytest.raises(EnvError, match="float32 observations"):
        TradingEnv(market, EnvSettings(observation_dtype="bfloat16"), engine="fused")
    with pytest.raises(EnvError, match="engine"):
        TradingEnv(market, engine="warp")
