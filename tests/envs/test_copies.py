"""Copies of an environment in the middle of an episode: pickled, deep, and in another process."""

import copy
import multiprocessing
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv, SingleTradingEnv
from tests.factories import make_market

SETTINGS = EnvSettings(episode_bars=7, decision_interval=2)
COPIES = {
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),  # noqa: S301 - our own bytes
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def act(step):
    return np.random.default_rng(step).uniform(-1, 1, (5, 3)).astype(np.float32)


def go_on(env, steps, first=0):
    """All that comes back from some steps, as arrays."""
    history = []
    for step in range(first, first + steps):
        *values, info = env.step(act(step))
        history += [np.array(value) for value in values]
        if "final_obs" in info:  # the other rows mean nothing
            history.append(np.array(info["final_obs"])[np.array(info["_final_obs"])])
    return history


def continues_alike(first, second):
    assert len(first) == len(second)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("engine", ["torch", "fused"])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_copy_goes_on_as_its_original(how, engine, mode):
    options = {"num_envs": 5, "seed": 3, "autoreset_mode": mode, "engine": engine}
    env = TradingEnv(make_market(90, 3), SETTINGS, **options)
    env.reset()
    go_on(env, 5)
    twin = COPIES[how](env)
    expected = go_on(env, 12, first=5)
    # The original went on first: nothing of it may have moved the copy.
    continues_alike(go_on(twin, 12, first=5), expected)
    continues_alike([twin.reset()[0].numpy()], [env.reset()[0].numpy()])


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_copy_holds_a_market_of_its_own(how):
    """A view is built once for a market; what is written into one market is not in its copy."""
    env = TradingEnv(make_market(90, 3), SETTINGS, num_envs=5, seed=3)
    twin = COPIES[how](env)
    env.market.features.fill_(7.0)
    again = TradingEnv(twin.market, SETTINGS, num_envs=5, seed=3)
    env.reset(), twin.reset(), again.reset()
    continues_alike(go_on(again, 9), go_on(twin, 9))
    assert (TradingEnv(env.market, SETTINGS, num_envs=1, seed=3).reset()[0] == 7.0).any()


def run_in_process(env, pipe):
    torch.set_num_threads(1)
    pipe.send(go_on(env, 9, first=5))


@pytest.mark.slow
def test_a_numpy_environment_goes_on_in_another_process():
    env = NumpyVectorEnv(TradingEnv(make_market(90, 3), SETTINGS, num_envs=5, seed=3))
    env.reset()
    go_on(env, 5)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_in_process, args=(env, there))
    process.start()
    assert here.poll(120)
    history = here.recv()
    process.join()
    continues_alike(history, go_on(env, 9, first=5))


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_single_account_goes_on_as_its_original(how):
    env = gymnasium.make("fintrader/Trading-v0", market=make_market(90, 3), settings=SETTINGS)
    env.reset(seed=2)
    env.step(act(0)[0])
    twin = COPIES[how](env)
    for step in range(1, 3):
        first, second = (one.step(act(step)[0])[:4] for one in (env, twin))
        continues_alike([*map(np.array, first)], [*map(np.array, second)])


@pytest.mark.slow
def test_single_accounts_step_in_processes_as_they_do_here():
    def make():
        return SingleTradingEnv(make_market(90, 3), SETTINGS, seed=4)

    here = gymnasium.vector.SyncVectorEnv([make] * 5)
    there = gymnasium.vector.AsyncVectorEnv([make] * 5)
    try:
        observations = [env.reset(seed=9)[0] for env in (here, there)]
        continues_alike([observations[0]], [observations[1]])
        continues_alike(go_on(here, 8), go_on(there, 8))
    finally:
        there.close()


def test_an_environment_with_an_own_reward_copies_and_pickles():
    market = make_market(40, 3)
    for own in (lambda outcome: 0 * outcome.equity + 7.0, seven):
        env = TradingEnv(market, num_envs=2, reward=own, seed=1)
        env.reset()
        for copied in (copy.deepcopy(env), unpickle(env)):
            assert copied.step(torch.zeros(2, 3))[1].tolist() == [7.0, 7.0]
    text = f"{__name__}:seven"
    env = TradingEnv(market, EnvSettings(reward=text), num_envs=2)
    env.reset()
    assert unpickle(env).step(torch.zeros(2, 3))[1].tolist() == [7.0, 7.0]


def unpickle(env):
    return pickle.loads(pickle.dumps(env))  # noqa: S301


def seven(outcome):
    return 7.0


def test_sending_a_market_leaves_its_tensors_where_they_are():
    """Compiled kernels read the memory that they were given."""
    market = make_market(40, 3)
    places = [tensor.data_ptr() for _, tensor in market.arrays()]
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(market)
    received = queue.get()
    assert [tensor.data_ptr() for _, tensor in market.arrays()] == places
    assert received.content_hash() == market.content_hash()
    assert copy.copy(market).content_hash() == market.content_hash()
