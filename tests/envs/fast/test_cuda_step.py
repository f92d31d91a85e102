"""The CUDA kernel against the torch core: equal to the last bit, in every mode, with resets.

Without a GPU it runs in Triton's interpreter: `TRITON_INTERPRET=1 pytest
tests/envs/fast/test_cuda_step.py`, or `make test-triton`, which makes an environment that has
triton.
"""

import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.fast.triton_step import is_interpreted
from fintrader.errors import EnvError
from tests.engines.strategies import env_settings, random_actions
from tests.engines.twins import assert_bit_equal, assert_same
from tests.factories import examples, make_market

pytest.importorskip("triton", reason="triton is not installed: make test-triton")

CUDA = torch.cuda.is_available() and not is_interpreted()
DEVICE = "cuda" if CUDA else "cpu"
if not CUDA and not is_interpreted():
    pytest.skip(
        "no GPU, and TRITON_INTERPRET=1 is not set: make test-triton", allow_module_level=True
    )

gpu = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]


def equal(a, b):
    """Bit by bit; but the interpreter cuts bfloat16 off where devices round, which is one unit in
    the last place."""
    if a.dtype == torch.bfloat16 and not CUDA:
        return bool(((a.view(torch.int16).int() - b.view(torch.int16).int()).abs() <= 1).all())
    return torch.equal(a, b)


# Shrinking takes minutes in the interpreter.
@settings(
    max_examples=60 if CUDA else examples(25),
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    config=env_settings(short=False),
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(list(AutoresetMode)),
    factored=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    lookback=st.sampled_from([1, 3]),
    copy=st.booleans(),
    endowed=st.booleans(),
)
def test_every_output_and_the_whole_state_are_bit_equal(
    config, seed, mode, factored, dtype, lookback, copy, endowed
):
    changes = {
        "observation": "factored" if factored else "flat",
        "observation_dtype": dtype,
        "lookback": lookback,
        "clock": "episode",  # the kernel's only one
    }
    config = config.model_copy(update=changes)
    volume = (1e9, 400.0)[seed % 2]
    count = 4
    steps = 40 if CUDA else 14
    market = make_market(60, 5, seed=seed % 5, volatility=0.04, volume=volume, events=seed % 3 > 0)
    slow, fast = (
        TradingEnv(
            market,
            config,
            num_envs=count,
            seed=seed,
            autoreset_mode=mode,
            engine=engine,
            copy=copy,
            device=DEVICE,
        )
        for engine in ("torch", "triton")
    )
    actions = random_actions(seed, steps, count, 5).to(DEVICE)
    assert_bit_equal(slow, fast, actions, endowed=endowed, equal=equal)


def test_a_reward_of_ones_own_and_a_market_wider_than_a_block():
    market = make_market(60, 3, 600)  # rows of 1,805 numbers
    config = EnvSettings(episode_bars=4, reward="tests.engines.oracle_mdp:bellman_reward")
    for copy in (True, False):
        slow, fast = (
            TradingEnv(market, config, num_envs=3, engine=engine, copy=copy, device=DEVICE)
            for engine in ("torch", "triton")
        )
        assert torch.equal(slow.reset(seed=0)[0], fast.reset(seed=0)[0])
        for action in random_actions(1, 9, 3, 3):
            a = slow.step(action.to(DEVICE))
            b = fast.step(action.to(DEVICE))
            assert all(torch.equal(x, y) for x, y in zip(a[:4], b[:4], strict=True))


def test_it_says_why_not():
    market = make_market(60, 4)
    with pytest.raises(EnvError, match="triton engine does not apply here: it is long-only"):
        TradingEnv(market, EnvSettings(short=True), engine="triton", device=DEVICE)


class TestOnCuda:
    """What only a device shows."""

    pytestmark = gpu

    @pytest.mark.parametrize("mode", list(AutoresetMode))
    def test_a_replayed_graph_equals_eager_launches(self, mode):
        market = make_market(200, 20)
        config = EnvSettings(episode_bars=9, reward="differential_sharpe")
        eager, graph = (
            TradingEnv(market, config, num_envs=512, autoreset_mode=mode, device="cuda", copy=copy)
            for copy in (True, False)
        )
        eager.reset(seed=0)
        graph.reset(seed=0)
        for action in random_actions(0, 30, 512, 20):
            a = eager.step(action.cuda())
            b = graph.step(action.cuda())
            assert all(torch.equal(x, y) for x, y in zip(a[:4], b[:4], strict=True))
            finished = eager.account.finished.clone()
            if mode is AutoresetMode.DISABLED and bool(finished.any()):
                for env in (eager, graph):
                    env.reset(options={"reset_mask": finished})
        assert_same(eager.state_dict(), graph.state_dict())

    @pytest.mark.parametrize("engine", ["torch", "triton"])
    @pytest.mark.parametrize("copy", [True, False])
    @pytest.mark.parametrize("mode", list(AutoresetMode))
    def test_a_step_never_waits_for_the_device(self, engine, copy, mode):
        env = TradingEnv(
            make_market(60, 6),
            EnvSettings(episode_bars=9),
            num_envs=64,
            device="cuda",
            engine=engine,
            copy=copy,
            autoreset_mode=mode,
        )
        env.reset(seed=0)
        action = torch.rand(64, 6, device="cuda")
        env.step(action)  # compiles
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                env.step(action)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_finished_accounts_stand_still_and_say_so(self):
        for engine in ("torch", "triton"):
            env = TradingEnv(
                make_market(60, 3),
                EnvSettings(),
                num_envs=4,
                device="cuda",
                engine=engine,
                autoreset_mode=AutoresetMode.DISABLED,
            )
            env.reset(options={"episode_bars": torch.tensor([1, 5, 5, 5])})
            action = torch.rand(4, 3, device="cuda")
            first = env.step(action)
            equity = env.equity.clone()
            second = env.step(torch.rand(4, 3, device="cuda"))
            assert first[3].tolist() == second[3].tolist() == [True, False, False, False]
            assert not bool(second[2].any())
            assert float(second[1][0]) == 0.0
            assert float(env.equity[0]) == float(equity[0])
