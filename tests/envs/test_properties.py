"""Invariants of the trading contract, over random settings, markets and actions."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from tests.engines.strategies import env_settings, random_actions
from tests.factories import examples, joined, make_market, reprice

SEEDS = st.integers(0, 10_000)


def rollout(env, actions):
    """Every step's outputs, stacked time first."""
    obs, _ = env.reset(seed=0)
    rows = {"obs": [obs], "reward": [], "done": [], "equity": [env.equity]}
    rows |= {"cash": [env.account.cash], "shares": [env.account.shares]}
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        account = env.account
        values = (obs, reward, terminated | truncated, account.equity, account.cash, account.shares)
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value)
    return {name: torch.stack(values) for name, values in rows.items()}


@settings(max_examples=examples(40))
@given(config=env_settings(short=False) | env_settings(short=False, limit=True), seed=SEEDS)
def test_long_only_accounts_never_owe(config, seed):
    env = TradingEnv(make_market(60, 5, seed=seed % 5), config, num_envs=6, seed=seed)
    rows = rollout(env, random_actions(seed, 40, 6, env.layout.num_actions))
    assert bool((rows["cash"] >= 0).all())
    assert bool((rows["shares"] >= 0).all())
    assert all(
        bool(rows[name].isfinite().all()) for name in ("obs", "reward", "equity", "cash", "shares")
    )
    if not config.fractional:
        assert torch.equal(rows["shares"], rows["shares"].trunc())


@settings(max_examples=examples(30))
@given(config=env_settings() | env_settings(limit=True), seed=SEEDS)
def test_batch_size_and_neighbours_change_nothing(config, seed):
    market = make_market(60, 4, seed=seed % 5)
    env = TradingEnv(market, config, num_envs=7, seed=seed)
    actions = random_actions(seed, 30, 7, env.layout.num_actions)
    many = rollout(env, actions)
    few = rollout(TradingEnv(market, config, num_envs=3, seed=seed), actions[:, :3])
    for name, value in few.items():
        assert torch.equal(many[name][:, :3], value), name


@settings(max_examples=examples(30))
@given(config=env_settings() | env_settings(limit=True), seed=SEEDS, cut=st.integers(5, 45))
def test_values_after_t_change_nothing_up_to_t(config, seed, cut):
    market = make_market(60, 5, seed=seed % 5)
    changed = joined(market, make_market(60, 5, seed=5 + seed % 5, volatility=0.1), cut + 1)
    config = config.model_copy(update={"start": "first"})
    env = TradingEnv(market, config, num_envs=3, seed=seed)
    steps = cut // config.decision_interval
    actions = random_actions(seed, steps, 3, env.layout.num_actions)
    plain = rollout(env, actions)
    other = rollout(TradingEnv(changed, config, num_envs=3, seed=seed), actions)
    for name, value in plain.items():
        assert torch.equal(value, other[name]), name


def test_a_value_after_t_does_change_what_follows():
    """The test above would pass for an environment that ignores its market."""
    market = make_market(60, 3, gaps=False)
    close = market.close.clone()
    close[11:] *= 1.5
    actions = torch.ones(15, 2, 3)
    plain = rollout(TradingEnv(market, EnvSettings(start="first"), num_envs=2), actions)
    other = rollout(
        TradingEnv(reprice(market, close=close), EnvSettings(start="first"), num_envs=2),
        actions,
    )
    assert torch.equal(plain["equity"][:11], other["equity"][:11])
    assert not torch.equal(plain["equity"][11], other["equity"][11])
