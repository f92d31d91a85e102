"""The fused kernel against the torch core: equal to the last bit, in every mode, with resets."""

from __future__ import annotations

import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.kernels import step as fused
from fintrader.errors import EnvError
from tests.engines.strategies import env_settings, random_actions
from tests.engines.twins import PLAIN, assert_bit_equal
from tests.factories import examples, make_market


@settings(max_examples=examples(60))
@given(
    config=env_settings(short=False, fractional=False),
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(list(AutoresetMode)),
    factored=st.booleans(),
    copy=st.booleans(),
    endowed=st.booleans(),
)
def test_every_output_and_the_whole_state_are_bit_equal(
    config: EnvSettings, seed: int, mode: AutoresetMode, factored: bool, copy: bool, endowed: bool
) -> None:
    config = config.model_copy(update=PLAIN | {"observation": "factored" if factored else "flat"})
    market = make_market(60, 13, seed=seed % 5, volatility=0.04)
    count = 9
    slow, fast = (
        TradingEnv(market, config, num_envs=count, seed=seed, autoreset_mode=mode, engine=engine, copy=copy)
        for engine in ("torch", "fused")
    )
    assert_bit_equal(slow, fast, random_actions(seed, 40, count, 13), endowed=endowed, copy=copy)


def test_threads_change_nothing() -> None:
    market, config = make_market(80, 20), EnvSettings(episode_bars=9)
    count, before = 1500, torch.get_num_threads()
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
def test_stores_past_the_caches_change_nothing(num_assets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    market, outputs = make_market(60, num_assets, 3), []
    for above in (1 << 40, 0):
        monkeypatch.setattr(fused, "STREAM_ABOVE_BYTES", above)
        env = TradingEnv(market, EnvSettings(episode_bars=7), num_envs=21, engine="fused", copy=False)
        env.reset()
        assert env._fused is not None
        assert env._fused._stream == (above == 0)
        outputs.append([env.step(a)[0].clone() for a in random_actions(2, 12, 21, num_assets)])
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def test_copies_last_and_reused_buffers_do_not() -> None:
    market, action = make_market(60, 4), torch.full((3, 4), 0.3)
    for copy in (True, False):
        env = TradingEnv(market, EnvSettings(), num_envs=3, engine="fused", copy=copy)
        env.reset(options={"start": 0})
        first, *_ = env.step(action)
        kept = first.clone()
        env.step(action)
        assert torch.equal(first, kept) == copy


def test_auto_falls_back_and_fused_says_why_not() -> None:
    market = make_market(60, 4)
    assert TradingEnv(market, num_envs=2)._fused is not None
    assert TradingEnv(market, num_envs=2, dtype=torch.float64)._fused is None
    with pytest.raises(EnvError, match="whole shares"):
        TradingEnv(market, EnvSettings(fractional=True), engine="fused")
    with pytest.raises(EnvError, match="engine"):
        TradingEnv(market, engine="warp")  # type: ignore[arg-type]
