"""torchrl: its spec checker, a collector, and exact bootstrapping at time limits."""

from importlib.util import find_spec

import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import EnvError
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value
from tests.factories import make_market

# Imported by the tests alone: it takes seconds, which each process of `pytest` would pay.
pytestmark = pytest.mark.skipif(find_spec("torchrl") is None, reason="torchrl is missing")


def make_env(*, oracle=False, num_envs=4, **changes):
    from fintrader.envs.adapters.torchrl import TorchRLEnv

    market = oracle_market() if oracle else make_market(80, 3)
    settings = oracle_settings() if oracle else EnvSettings(episode_bars=5, **changes)
    return TorchRLEnv(
        TradingEnv(market, settings, num_envs=num_envs, autoreset_mode=AutoresetMode.DISABLED)
    )


@pytest.mark.parametrize("action", ["target", "limit", "quote"])
def test_check_env_specs(action):
    from torchrl.envs.utils import check_env_specs

    env = make_env(action=action)
    assert env.action_spec.shape == env.env.action_space.shape
    check_env_specs(env, seed=1)


def test_other_modes_are_refused():
    from fintrader.envs.adapters.torchrl import TorchRLEnv

    with pytest.raises(EnvError, match="Disabled"):
        TorchRLEnv(TradingEnv(make_market(80, 3)))


def test_collector_and_gae_find_the_known_value():
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.objectives.value import GAE

    torch.manual_seed(0)
    env = make_env(oracle=True, num_envs=8)
    env.set_seed(0)
    policy = TensorDictModule(
        lambda obs: torch.rand(obs.shape[0], 2), in_keys=["observation"], out_keys=["action"]
    )
    critic = TensorDictModule(
        lambda obs: value(obs).unsqueeze(-1), in_keys=["observation"], out_keys=["state_value"]
    )
    collector = Collector(
        env,
        policy,
        frames_per_batch=8 * 50,
        total_frames=8 * 100,
        auto_register_policy_transforms=False,
    )
    gae = GAE(gamma=GAMMA, lmbda=0.95, value_network=critic, average_gae=False)
    frames = 0
    cuts = 0
    ruins = 0
    for batch in collector:
        frames += batch.numel()
        cuts += int(batch["next", "truncated"].sum())
        ruins += int(batch["next", "terminated"].sum())
        gae(batch)
        torch.testing.assert_close(batch["value_target"], batch["state_value"], atol=2e-3, rtol=0)
    collector.shutdown()
    assert frames == 800
    assert cuts > 50
    assert ruins > 5
