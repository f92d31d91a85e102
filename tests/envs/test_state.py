"""What `load_state_dict` refuses, leaving the environment as it was, and what it must take."""

import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError
from tests.engines.strategies import env_settings, random_actions
from tests.engines.twins import assert_same, refused
from tests.factories import examples, make_market

BARS = 60
COUNT = 4
ASSETS = 4


def walked(config, mode, steps=9, seed=1):
    """An environment some steps on; in DISABLED mode up to the first account that finishes."""
    env = TradingEnv(
        make_market(BARS, ASSETS), config, num_envs=COUNT, seed=seed, autoreset_mode=mode
    )
    env.reset()
    for action in random_actions(seed, steps, COUNT, ASSETS):
        _, _, terminated, truncated, _ = env.step(action)
        if mode is AutoresetMode.DISABLED and bool((terminated | truncated).any()):
            break
    return env


def change(name, value):
    return lambda state: {**state, name: value(state[name])}


def first(number):
    """The first account's entry becomes `number`."""

    def put(value):
        value[0] = number
        return value

    return put


FLOATS = ("cash", "shares", "equity", "peak_equity", "first_equity", "memory")
BAD = {
    "beyond the market": (change("account.end_bar", lambda end: end + BARS), "longer market"),
    "over, yet not finished": (
        lambda state: {**state, "account.bar": state["account.end_bar"]},
        "not finished",
    ),
    "finished": (change("account.finished", torch.ones_like), "SAME_STEP"),
    **{f"NaN {name}": (change(f"account.{name}", first(float("nan"))), name) for name in FLOATS},
    "infinite cash": (change("account.cash", first(float("inf"))), "cash"),
    "NaN endowment": (change("endowment.cash", first(float("nan"))), "endowment.cash"),
    "debts": (change("account.cash", first(-1.0)), "env.short"),
    "short": (change("account.shares", first(-1.0)), "env.short"),
    "fractions": (change("account.shares", first(0.5)), "env.fractional"),
    "endowed debts": (change("endowment.cash", first(-1.0)), "endowment"),
    "negative length": (change("endowment.episode_bars", first(-1)), "endowment"),
    "float bars": (change("account.bar", lambda bar: bar.double()), "int64"),
    "float32 cash": (change("account.cash", lambda cash: cash.float()), "float64"),
    "integer flags": (change("account.finished", lambda flag: flag.long()), "bool"),
    "another width": (change("account.shares", lambda shares: shares[:, 1:]), "shape"),
    "no values": (change("account.cash", lambda cash: cash.to("meta")), "meta"),
    "no tensor": (lambda state: {**state, "key": None}, "no tensor"),
    "nothing": (lambda state: {}, "missing"),
    "too much": (lambda state: {**state, "x": state["key"]}, "unknown"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_broken_state_is_refused_and_changes_nothing(kind):
    spoil, message = BAD[kind]
    env = walked(
        EnvSettings(episode_bars=30, reward="differential_sharpe"), AutoresetMode.SAME_STEP
    )
    with refused(env, message, CheckpointError):
        env.load_state_dict(spoil(env.state_dict()))
    env.step(torch.zeros(COUNT, ASSETS))


@settings(max_examples=examples(60))
@given(
    config=env_settings(),
    mode=st.sampled_from(list(AutoresetMode)),
    steps=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_whatever_an_environment_says_of_itself_is_taken_and_goes_on_alike(
    config, mode, steps, seed
):
    env = walked(config, mode, steps, seed)
    other = walked(config, mode, 0, seed + 1)
    other.load_state_dict(env.state_dict())
    assert_same(other.state_dict(), env.state_dict())
    for action in random_actions(seed, 9, COUNT, ASSETS):
        if mode is AutoresetMode.DISABLED and bool(env.account.finished.any()):
            break
        one, two = env.step(action), other.step(action)
        assert all(torch.equal(x, y) for x, y in zip(one[:4], two[:4], strict=True))


@settings(max_examples=examples(60))
@given(
    field=st.sampled_from(["bar", "start_bar", "end_bar"]),
    move=st.integers(-(2**62), 2**62) | st.integers(-2 * BARS, 2 * BARS),
    mode=st.sampled_from(list(AutoresetMode)),
)
def test_no_clock_leads_out_of_the_window(field, move, mode):
    """A state that is taken steps on inside the window; any other leaves the environment alone."""
    env = walked(EnvSettings(episode_bars=20), mode)
    before = env.state_dict()
    spoilt = env.state_dict()
    spoilt[f"account.{field}"] += move
    try:
        env.load_state_dict(spoilt)
    except CheckpointError:
        assert_same(before, env.state_dict())
        return
    account = env.account
    assert bool((account.start_bar >= 0).all())
    assert bool((account.start_bar <= account.bar).all())
    assert bool((account.bar <= account.end_bar).all())
    assert bool((account.end_bar < BARS).all())
    if not bool(account.finished.any()):
        env.step(torch.zeros(COUNT, ASSETS))
