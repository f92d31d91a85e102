"""The environment that an agent trains in, made from the one that it is given."""

from __future__ import annotations

from typing import TypeAlias

from fintrader.envs.joined import JoinedEnv
from fintrader.envs.randomised import RandomisedEnv
from fintrader.envs.trading import TradingEnv
from fintrader.errors import ConfigError

MarketEnv: TypeAlias = TradingEnv | JoinedEnv | RandomisedEnv

MAX_CLOCK_BARS = 1 << 24
"""Largest number of bars whose numbers float32 tells apart."""


def to_training_env(env: MarketEnv, seed: int) -> MarketEnv:
    """Turn `env` into one that shows the bar's number in place of the bar, with the costs of
    training and the variants of `env.randomise`.

    All accounts at a bar then share one pass through the networks. Raises ConfigError where
    variants of several windows are asked for.
    """
    if isinstance(env, RandomisedEnv):
        return env
    # A clock must be exact, and differ in width from a row of the market.
    has_clock = len(env.market_rows) <= MAX_CLOCK_BARS and env.layout.market_width > 1
    observation = "factored" if has_clock else "flat"
    settings = env.settings.for_training().model_copy(update={"observation": observation})
    if settings != env.settings:
        env = env.with_settings(settings)
    if not env.settings.randomise.active:
        return env
    if isinstance(env, JoinedEnv):
        raise ConfigError(
            "env.randomise draws the sessions of one window, and tournament.validation_folds"
            " trains on pieces of one; leave out one of the two"
        )
    return RandomisedEnv(env, seed=seed)
