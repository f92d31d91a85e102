"""Conversion of a market environment to the form that agents train in."""

from __future__ import annotations

from typing import TypeAlias

from fintrader.envs.joined import JoinedEnv
from fintrader.envs.randomised import RandomisedEnv
from fintrader.envs.rivals import RivalsEnv
from fintrader.envs.trading import TradingEnv
from fintrader.errors import ConfigError

MarketEnv: TypeAlias = TradingEnv | JoinedEnv | RandomisedEnv | RivalsEnv

NO_GRADIENT = (
    "agent.algo apg follows gradients, and resting orders have none: set agent.algo to ppo or sac,"
    " or env.action to target"
)
NO_OWN_GRADIENT = (
    "agent.algo apg follows the gradient of all traders' rewards, not of each trader's own: set"
    " agent.algo to ppo or sac, or leave out env.traders"
)
MAX_CLOCK_BARS = 1 << 24
"""Largest number of bars whose numbers float32 holds exactly."""


def to_training_env(env: MarketEnv, seed: int, *, differentiable: bool) -> MarketEnv:
    """Give `env` the costs of training, the variants of `env.randomise`, and, where possible,
    observations with the bar's number instead of its market data. If `differentiable`, allow
    fractions of a share, because whole shares have no gradient.

    With the number, all accounts at a bar share one pass through the networks. Raises ConfigError
    when `env.randomise` is set for several windows, or a gradient is wanted with resting orders or
    several traders; EnvError if the variants cannot share the accounts evenly.
    """
    if differentiable and env.settings.orders_rest:
        raise ConfigError(NO_GRADIENT)
    if differentiable and env.settings.num_traders > 1:
        raise ConfigError(NO_OWN_GRADIENT)
    if isinstance(env, RandomisedEnv):
        return env
    # The bar's number must be exact in float32, and no longer than the row that it replaces.
    has_clock = len(env.table) <= MAX_CLOCK_BARS and env.layout.market_width > 0
    observation = "factored" if has_clock else "flat"
    settings = env.settings.for_training().model_copy(update={"observation": observation})
    if differentiable:
        settings = settings.model_copy(update={"fractional": True})
    has_variants = settings.randomise.active
    steps_by_graph = (
        env.device.type == "cuda" and has_clock and not (differentiable or has_variants)
    )
    if steps_by_graph and isinstance(env, TradingEnv) and env.copies:
        # A step that writes to the same memory every time can be one CUDA graph. The training loop
        # copies observations that hold a bar's number.
        env = env.with_settings(settings, copy=False)
    elif settings != env.settings:
        env = env.with_settings(settings)
    if not has_variants:
        return env
    if not isinstance(env, TradingEnv):
        raise ConfigError(
            "env.randomise draws sessions of one window, but tournament.validation_folds trains"
            " on several; unset one of the two"
        )
    return RandomisedEnv(env, seed=seed)
