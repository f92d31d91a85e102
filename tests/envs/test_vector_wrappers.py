"""gymnasium's vector wrappers on arrays (`NumpyVectorEnv`), and on tensors."""

import gymnasium.wrappers as single
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv
from fintrader.envs.state import ARRAY_WRAPPERS
from fintrader.errors import EnvError
from tests.factories import make_market

SAME_STEP, NEXT_STEP, DISABLED = (
    AutoresetMode[name] for name in ("SAME_STEP", "NEXT_STEP", "DISABLED")
)
SETTINGS = EnvSettings(episode_bars=7, decision_interval=2)
WIDTH = 18
ALL_MODES = {
    "ClipAction": {},
    "ClipReward": {"min_reward": -0.001, "max_reward": 0.001},
    "DictInfoToList": {},
    "NormalizeReward": {},
    "RecordEpisodeStatistics": {},
    "RescaleAction": {"min_action": -1.0, "max_action": 1.0},
    "TransformAction": {"func": lambda action: 0.5 * action},
    "TransformReward": {"func": lambda reward: 2 * reward},
    "VectorizeTransformAction": {
        "wrapper": single.TransformAction,
        "func": lambda action: 0.5 * action,
        "action_space": None,
    },
    "VectorizeTransformReward": {"wrapper": single.TransformReward, "func": lambda reward: reward},
}
OF_OBSERVATIONS = {
    "DtypeObservation": {"dtype": np.float64},
    "FilterObservation": {"filter_keys": ["private"]},
    "FlattenObservation": {},
    "NormalizeObservation": {},
    "RescaleObservation": {
        "min_obs": np.full(WIDTH, -np.inf, np.float32),
        "max_obs": np.full(WIDTH, np.inf, np.float32),
    },
    "ReshapeObservation": {"shape": (1, WIDTH)},
    "TransformObservation": {"func": lambda obs: obs},
    "VectorizeTransformObservation": {
        "wrapper": single.TransformObservation,
        "func": lambda obs: obs,
        "observation_space": None,
    },
}
OPTIONS = ALL_MODES | OF_OBSERVATIONS
PICTURES = {"GrayscaleObservation", "HumanRendering", "RecordVideo", "ResizeObservation"}
OTHER_ARRAYS = {"ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"}
"""These need array-api-compat, or JAX."""


def act(step):
    return np.random.default_rng(step).uniform(-1, 1, (5, 3)).astype(np.float32)


def wrap(name, mode, *, on_arrays=True):
    observation = "factored" if name == "FilterObservation" else "flat"
    rules = SETTINGS.model_copy(update={"observation": observation})
    inner = TradingEnv(make_market(90, 3), rules, num_envs=5, seed=3, autoreset_mode=mode)
    return getattr(wrappers, name)(NumpyVectorEnv(inner) if on_arrays else inner, **OPTIONS[name])


def go_on(env, steps):
    env.reset(seed=1)
    for step in range(steps):
        _, reward, *_ = env.step(act(step))
        assert np.isfinite(np.asarray(reward)).all()


def test_every_wrapper_is_known_here():
    assert set(wrappers.__all__) == {*OPTIONS, *PICTURES, *OTHER_ARRAYS}


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrapper_works_on_arrays(name, mode):
    if (name, mode) == ("NormalizeObservation", DISABLED):
        with pytest.raises(ValueError, match=r"to be AutoresetMode\.NEXT_STEP"):
            wrap(name, mode)
        return
    go_on(wrap(name, mode), 3 if mode is DISABLED else 12)


@pytest.mark.parametrize("name", ALL_MODES)
def test_a_wrapper_works_on_arrays_in_the_default_mode(name):
    go_on(wrap(name, SAME_STEP), 12)


@pytest.mark.parametrize("name", OF_OBSERVATIONS)
def test_wrappers_of_observations_refuse_the_default_mode(name):
    """The last observations, in `info`, would be left as they are."""
    with pytest.raises(ValueError, match="NEXT_STEP"):
        wrap(name, SAME_STEP)


@pytest.mark.parametrize("name", OPTIONS)
def test_on_tensors_a_wrapper_works_or_asks_for_arrays(name):
    env = wrap(name, NEXT_STEP, on_arrays=False)
    if name not in ARRAY_WRAPPERS:
        go_on(env, 12)
        return
    with pytest.raises(EnvError, match=rf"{name}\(NumpyVectorEnv\(TradingEnv.*NEXT_STEP"):
        env.reset(seed=1)
    with pytest.raises(EnvError, match=name):  # also below another wrapper
        wrappers.ClipAction(env).reset(seed=1)


def test_code_without_a_module_resets():
    env = TradingEnv(make_market(90, 3), SETTINGS, num_envs=5)
    exec("env.reset()", {"env": env})


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
def test_episode_statistics_are_those_of_the_rewards(mode):
    """The sums of gymnasium's wrapper against sums by hand, over the ends of episodes."""
    inner = TradingEnv(make_market(90, 3), SETTINGS, num_envs=5, seed=3, autoreset_mode=mode)
    env = wrappers.RecordEpisodeStatistics(NumpyVectorEnv(inner))
    env.reset(seed=1)
    total = np.zeros(5)
    ends = 0
    for step in range(20):
        _, reward, terminated, truncated, info = env.step(act(step))
        total += reward
        done = terminated | truncated
        if done.any():
            np.testing.assert_allclose(info["episode"]["r"][done], total[done], atol=1e-6)
            ends += int(done.sum())
        total[done] = 0.0
    assert ends > 10
