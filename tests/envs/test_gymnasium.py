"""The registered environment through gymnasium's own doors and checkers."""

import warnings
from itertools import product

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv
from fintrader.errors import ConfigError, EnvError
from tests.factories import make_market
from tests.quick import slow_but

ENV_ID = "fintrader/Trading-v0"


@pytest.mark.parametrize("observation", ["flat", "factored"])
def test_env_checker_passes(observation):
    env = gymnasium.make(
        ENV_ID,
        market=make_market(60, 4),
        settings=EnvSettings(observation=observation, episode_bars=9),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(infinity|spec).*")
        check_env(env.unwrapped, skip_render_check=True)


def test_make_vec_builds_the_tensor_environment():
    env = gymnasium.make_vec(
        ENV_ID,
        num_envs=7,
        vectorization_mode="vector_entry_point",
        market=make_market(60, 4),
        device="cpu",
    )
    assert isinstance(env.unwrapped, TradingEnv)
    assert env.num_envs == 7
    obs, _ = env.reset(seed=3)
    assert isinstance(obs, torch.Tensor)
    assert env.observation_space.shape == tuple(obs.shape)
    obs, reward, *_ = env.step(env.action_space.sample())
    assert obs.shape == (7, env.unwrapped.layout.width)
    assert reward.shape == (7,)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_settings_are_given_as_keywords():
    market = make_market(60, 4)
    many = gymnasium.make_vec(ENV_ID, num_envs=2, market=market, cost_bps=5)
    assert (many.unwrapped.settings.cost_bps, many.unwrapped.settings.num_envs) == (5.0, 2)
    single = gymnasium.make(ENV_ID, market=market, cost_bps=5).unwrapped
    assert single.vector_env.settings.cost_bps == 5.0
    with pytest.raises(ConfigError, match=r"costs: unknown argument; did you mean 'cost_bps'\?"):
        gymnasium.make_vec(ENV_ID, num_envs=2, market=market, costs=5)
    with pytest.raises(EnvError, match="num_envs is fixed for one account"):
        gymnasium.make(ENV_ID, market=market, num_envs=2)


def test_a_single_account_says_what_it_cannot_do():
    env = gymnasium.make(ENV_ID, market=make_market(60, 4), settings=EnvSettings(episode_bars=1))
    env.reset(seed=11)
    action = np.zeros(4, dtype=np.float32)
    assert env.step(action)[3]
    with pytest.raises(EnvError, match="over"):
        env.unwrapped.step(action)
    with pytest.raises(EnvError, match="shape"):
        env.unwrapped.step(action[:2])


WRAPPERS = {
    "nothing": lambda env: env,
    "observations": wrappers.NormalizeObservation,
    "rewards": wrappers.NormalizeReward,
    "statistics": wrappers.RecordEpisodeStatistics,
}


@pytest.mark.parametrize(
    ("wrapper", "mode"),
    slow_but(
        0,
        1,
        4,
        every=[
            ("observations", AutoresetMode.NEXT_STEP),  # it takes no other
            *product(("nothing", "rewards", "statistics"), list(AutoresetMode)[:2]),
        ],
    ),
)
def test_it_agrees_with_gymnasiums_own_vectorisation_key_by_key(wrapper, mode):
    """Of single accounts with the same seeds, which keep counting their episodes as ours do; also
    in gymnasium's wrappers."""
    market = make_market(40, 3)
    settings = EnvSettings(episode_bars=5, ruin_fraction=0.98, initial_cash_usd=10_000.0)
    makers = [lambda: gymnasium.make(ENV_ID, market=market, settings=settings)] * 3
    theirs = WRAPPERS[wrapper](gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode))
    ours = WRAPPERS[wrapper](
        NumpyVectorEnv(TradingEnv(market, settings, num_envs=3, autoreset_mode=mode))
    )
    near = {"rtol": 0.0, "atol": 0.0} if wrapper == "nothing" else {"rtol": 1e-5, "atol": 1e-5}
    expected, _ = theirs.reset(seed=[5, 6, 7])
    obs, _ = ours.reset(seed=[5, 6, 7])
    np.testing.assert_allclose(obs, expected, **near)
    rng = np.random.default_rng(1)
    ends = 0
    for _ in range(40):
        action = rng.uniform(-1, 1, (3, 3)).astype(np.float32)
        *their_out, their_info = theirs.step(action)
        *our_out, our_info = ours.step(action)
        for x, y in zip(their_out, our_out, strict=True):
            np.testing.assert_allclose(y, np.asarray(x, dtype=y.dtype), **near)
        ends += int((our_out[2] | our_out[3]).sum())
        assert set(their_info) <= set(our_info) | {"final_info", "_final_info"}
        if "final_obs" in their_info:
            done = their_info["_final_obs"]
            assert done.tolist() == our_info["_final_obs"].tolist()
            assert done.tolist() == our_info["_final_info"].tolist()
            np.testing.assert_array_equal(
                np.stack(their_info["final_obs"][done]), our_info["final_obs"][done]
            )
        if wrapper == "statistics" and "episode" in their_info:
            np.testing.assert_array_equal(our_info["_episode"], their_info["_episode"])
            np.testing.assert_array_equal(our_info["episode"]["l"], their_info["episode"]["l"])
            np.testing.assert_allclose(
                our_info["episode"]["r"], their_info["episode"]["r"], rtol=1e-5, atol=1e-9
            )
    assert ends > 3


@pytest.mark.parametrize("observation", ["flat", "factored"])
def test_the_space_tells_bfloat16_from_what_numpy_gets_of_it(observation):
    settings = EnvSettings(observation=observation, observation_dtype="bfloat16", episode_bars=5)
    env = TradingEnv(make_market(60, 3), settings, num_envs=4)
    obs, _ = env.reset(seed=1)
    part = obs
    space = env.observation_space
    single = env.single_observation_space
    assert env.observation_space.contains(
        obs if observation == "flat" else {**obs, "clock": obs["clock"].numpy()}
    )
    if observation == "factored":
        part = obs["private"]
        space = space["private"]
        single = single["private"]
    assert part.dtype == space.tensor_dtype == single.tensor_dtype == torch.bfloat16
    assert space.shape == tuple(part.shape)
    assert single.contains(part[0])
    assert not space.contains(part.float())
    assert not space.contains(part[:2])

    numpy = NumpyVectorEnv(env)
    shown, _ = numpy.reset(seed=1)
    assert numpy.observation_space.contains(shown)
    shown = shown if observation == "flat" else shown["private"]
    assert shown.dtype == space.dtype == np.float32
    np.testing.assert_array_equal(shown, part.float().numpy())
    assert space.contains(space.sample())
