"""Rewards of a user's own: what they may give, how they are named, stored and refused."""

import functools
import pickle

import numpy as np
import pytest
import torch

import fintrader
from fintrader import EnvSettings, TradingEnv, config
from fintrader.config import validate
from fintrader.envs.reward import step_return
from fintrader.errors import ConfigError, EnvError
from fintrader.pipeline.config import RunConfig
from tests.factories import make_market

MARKET = make_market(60, 3, gaps=False)
NAME = f"{__name__}:growth"


def growth(outcome):
    return torch.log(outcome.equity / outcome.equity_before)


def scaled(factor, outcome):
    return factor * growth(outcome)


def spoil(outcome):
    """It writes to what it was given."""
    value = growth(outcome)
    outcome.equity.zero_()
    outcome.memory.fill_(1.0)
    return value


def rewards(reward, **options):
    env = TradingEnv(MARKET, num_envs=4, reward=reward, seed=1, **options)
    env.reset(seed=1)
    action = torch.linspace(0.1, 1, 12).reshape(4, 3)
    env.step(action)
    return env.step(action)[1]


@pytest.mark.parametrize("engine", ["torch", "fused"])
@pytest.mark.parametrize(
    "reward",
    [
        growth,
        NAME,
        lambda outcome: growth(outcome),
        lambda outcome: growth(outcome).numpy(),
        lambda outcome: growth(outcome).float(),
        lambda outcome: growth(outcome).tolist(),
        lambda outcome: np.log(outcome.equity / outcome.equity_before),
        functools.partial(scaled, 1.0),
        spoil,
    ],
)
def test_an_own_reward_may_be_of_torch_numpy_or_python(reward, engine):
    expected = rewards("log_return", engine=engine)
    assert expected.abs().min() > 0
    torch.testing.assert_close(rewards(reward, engine=engine), expected)


def test_one_number_is_that_of_every_account():
    assert rewards(lambda outcome: 0.5).tolist() == [0.5] * 4
    assert rewards(lambda outcome: outcome.equity.mean() * 0 + 2).tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda outcome: outcome.equity[:2], r"it gave Tensor of shape \[2\]; .*account, \[4\]"),
        (lambda outcome: outcome.equity[:, None], r"shape \[4, 1\]"),
        (lambda outcome: None, "it gave NoneType"),
        (lambda outcome: "high", "ValueError: could not convert"),
        (
            lambda outcome: outcome.cash,
            "AttributeError: .* no attribute 'cash'; it gets an Outcome",
        ),
        (lambda outcome, more: 0.0, "missing 1 required positional argument"),
    ],
)
def test_anything_else_is_an_error_that_says_what_is_expected(reward, message):
    with pytest.raises(EnvError, match=f"reward {__name__}:<lambda>.*{message}"):
        rewards(reward)


def test_apg_refuses_a_reward_without_a_gradient():
    rules = {"num_envs": 4, "fractional": True}
    with pytest.raises(EnvError, match="without a gradient"):
        own = TradingEnv(MARKET, reward=lambda o: step_return(o).detach().numpy(), **rules)
        fintrader.train("apg", own, env_steps=16)
    fintrader.train("apg", TradingEnv(MARKET, reward=growth, **rules), env_steps=16)


def test_only_the_name_of_a_reward_is_stored(monkeypatch):
    monkeypatch.setattr(config, "_GIVEN", {})  # as in another process
    named = EnvSettings(reward=growth)
    assert named.reward == NAME
    assert named == EnvSettings(reward=NAME)
    pickled = pickle.dumps(named)
    config._GIVEN.clear()
    for stored in (
        EnvSettings.model_validate_json(named.model_dump_json()),
        pickle.loads(pickled),  # noqa: S301
    ):
        assert type(stored.reward) is str
        torch.testing.assert_close(
            rewards("log_return"), rewards(stored.reward)
        )  # imported by its name

    def inner(outcome):
        return growth(outcome)

    own = EnvSettings(reward=inner, num_envs=4)
    for alike in (own.model_copy(deep=True), TradingEnv(MARKET, own, cost_bps=1).settings):
        assert alike.reward.call is inner
    assert pickle.loads(pickle.dumps(own)).reward.call is inner  # noqa: S301
    stored = EnvSettings.model_validate_json(own.model_dump_json())
    assert stored.reward.startswith(f"{__name__}:test_only")
    with pytest.raises(ConfigError, match=r"inner' was a function .* pass the function again"):
        TradingEnv(MARKET, stored)
    TradingEnv(MARKET, stored, reward=inner).reset()  # the remedy
    policy = fintrader.train("ppo", TradingEnv(MARKET, own), env_steps=32).policy
    fintrader.backtest(policy, MARKET.split().validation, stored)


def test_a_run_refuses_a_reward_that_its_workers_cannot_import():
    assert validate(RunConfig, {"env": {"reward": growth}}, "run").env.reward == NAME
    with pytest.raises(ConfigError, match=r"env.reward: the workers .* put it into a module"):
        validate(RunConfig, {"env": {"reward": lambda outcome: 0.0}}, "run")
