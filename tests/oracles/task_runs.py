"""The tasks in `configs/tasks/` as the oracle reads them, and what a policy earns in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import map_coordinates

import fintrader
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.pipeline.config import RunConfig, load_config
from tests.oracles.task_optima import (
    Array,
    HedgeRule,
    Hedging,
    Market,
    Quoting,
    Signal,
    Task,
    evaluate,
    log_return,
    mean_variance,
    solve,
    solve_hedge,
    solve_quotes,
    walk_bars,
)

FOLDER = Path(__file__).parents[2] / "configs" / "tasks"
TASKS = ("liquidation", "signals", "market_making", "growth", "hedging")
Policy = Callable[[torch.Tensor], torch.Tensor]


def load_task(name: str) -> RunConfig:
    """Read a task's configuration."""
    return load_config(FOLDER / f"{name}.yaml")


def open_task(name: str, accounts: int, seed: int | None = None) -> TradingEnv:
    """Open a task over all bars of its market, or of one with another seed; accounts begin each at
    a bar of its own."""
    return open_env(load_task(name), accounts, seed)


def open_env(config: RunConfig, accounts: int, seed: int | None = None) -> TradingEnv:
    """Open the environment of a task's configuration, as `open_task` does."""
    source = config.data.source
    given = source if seed is None else source.model_copy(update={"seed": seed})
    market = fintrader.load_market(config.data.model_copy(update={"source": given}))
    settings = EnvSettings(**dict(config.env)).model_copy(update={"start_groups": accounts})
    return TradingEnv(market, settings, num_envs=accounts, seed=1)


def read_task(name: str) -> Task:
    """Describe a task of weights to the oracle."""
    return describe_task(load_task(name))


def describe_task(config: RunConfig) -> Task:
    """Describe the task of weights in this configuration to the oracle."""
    env = config.env
    source = config.data.source
    market = Market(
        volatility_bps=source.volatility_bps,
        drift_bps=source.walk["drift_bps"],
        cost_bps=env.cost_bps,
        impact_bps=env.impact_bps,
        shares_of_volume=env.initial_shares / source.walk["volume"],
        signals=[Signal(s["half_life"], s["bps"]) for s in source.signals.values()],
    )
    utility = log_return if env.reward == "log_return" else mean_variance(env.risk_aversion)
    return Task(
        market,
        env.episode_bars,
        utility,
        np.linspace(-1.0 if env.short else 0.0, 1.0, 41 if source.signals else 101),
        levels=np.linspace(-3.0, 3.0, 11),
        close_at_end=env.close_at_end,
        nodes=5 if source.signals else 9,
    )


def read_quoting(name: str = "market_making") -> Quoting:
    """Describe a task of quotes to the oracle."""
    config = load_task(name)
    env = config.env
    source = config.data.source
    steps = int(source.walk["path_steps"])
    return Quoting(
        walk_bars(40_000, source.volatility_bps, steps, source.walk["wick_bps"]),
        size=env.quote_weight,
        horizon=env.episode_bars,
        risk_aversion=env.risk_aversion + 1.0,  # of which 1 is the logarithm's
        distances=np.linspace(0.0, 1e-4 * env.limit_offset_bps, 21),
        most=15,
        cost_bps=env.cost_bps,
    )


def read_hedging(name: str = "hedging") -> Hedging:
    """Describe a task of hedging to the oracle."""
    config = load_task(name)
    env = config.env
    option = env.option
    assert option.volatility_bps == config.data.source.volatility_bps
    most = 1.1 * option.weight
    return Hedging(
        kind=option.kind,
        strike=option.strike,
        weight=option.weight,
        bars=option.bars,
        horizon=env.episode_bars,
        volatility_bps=option.volatility_bps,
        cost_bps=env.cost_bps,
        risk_aversion=env.risk_aversion,
        shares=np.linspace(-most, most, 111),
    )


def start_hedge(task: Hedging, value: Array) -> float:
    """Worth of a hedging task at its first decision, without shares."""
    return float(value[0][task.count // 2, np.argmin(np.abs(task.shares))])


def start_value(task: Task, value: Array) -> float:
    """Worth of a task at its first decision, on average over the signals."""
    start = float(task.close_at_end)  # what is to be sold, or nothing
    worth = value[0][np.argmin(np.abs(task.weights - start))]
    chance = np.exp(-0.5 * task.levels**2)
    for _ in task.market.signals:
        worth = chance @ worth / chance.sum()
    return float(worth)


def find_worths(name: str) -> tuple[float, float, str]:
    """Worth of the best plan and of the best rule with one parameter, and that rule."""
    if name == "hedging":
        hedging = read_hedging()
        rules = {
            text: start_hedge(hedging, solve_hedge(hedging, rule).value)
            for text, rule in list_hedges(hedging).items()
        }
        best = start_hedge(hedging, solve_hedge(hedging).value)
    elif name == "market_making":
        quoting = read_quoting()
        fixed = {
            f"quotes {1e4 * away:g} bps from the close": np.full((2 * quoting.most + 1, 2), place)
            for place, away in enumerate(quoting.distances)
        }
        rules = {
            text: float(solve_quotes(quoting, rule).value[0][quoting.most])
            for text, rule in fixed.items()
        }
        best = float(solve_quotes(quoting).value[0][quoting.most])
    else:
        task = read_task(name)
        rules = {
            f"trades {rate:.0%} of the way to {words} at each bar": start_value(
                task, evaluate(task, rule).value
            )
            for rate, words, rule in list_rules(task)
        }
        best = start_value(task, solve(task).value)
    text = max(rules, key=rules.__getitem__)
    return best, rules[text], text


def follow_plan(task: Task, env: TradingEnv) -> tuple[Policy, float]:
    """Follow the best plan of a task of weights, which sees the signals themselves; its worth."""
    plan = solve(task)
    levels = raw_signals(env.market)
    grids = [task.weights, *[task.levels] * levels.shape[1]]

    def hold(obs: torch.Tensor) -> torch.Tensor:
        parts = env.layout.split(obs)
        passed = np.rint(task.horizon * (1.0 - parts["account"][:, 3].double().numpy()))
        step = np.clip(passed.astype(int), 0, task.horizon - 1)
        known = [parts["holdings"][:, 0].double().numpy(), *levels[env.account.bar.numpy()].T]
        places = [
            np.interp(value, grid, np.arange(len(grid)))
            for value, grid in zip(known, grids, strict=True)
        ]
        goal = map_coordinates(plan.goal, [step, *places], order=1, mode="nearest")
        return torch.tensor(goal, dtype=torch.float32)[:, None]

    return hold, start_value(task, plan.value)


def list_rules(task: Task) -> list[tuple[float, str, Callable[..., Array]]]:
    """List rules that trade a constant part of the way to what would be best without costs."""
    market = task.market
    variance = (1e-4 * market.volatility_bps) ** 2
    words = "nothing" if task.close_at_end else "the best weight without costs"
    # Of mean_variance on log returns: mean - (aversion + 1) / 2 variance.
    aversion = -2.0 * float(task.utility(np.array(1.0)) - 1.0) + 1.0

    def move(rate: float, held: Array, *signals: Array) -> Array:
        mean = 1e-4 * market.drift_bps + sum(
            1e-4 * signal.bps * level for signal, level in zip(market.signals, signals, strict=True)
        )
        aim = mean / (aversion * variance)
        return held + rate * (np.clip(aim, task.weights[0], task.weights[-1]) - held)

    return [
        (rate, words, lambda step, held, *signals, rate=rate: move(rate, held, *signals))
        for rate in np.linspace(0.02, 0.5, 25)
    ]


def list_hedges(task: Hedging) -> dict[str, HedgeRule]:
    """List rules that trade a constant part of the way to the option's delta, and rules that hold
    its distance from the delta below a constant."""

    def move(rate: float, left: int, price: Array, shares: Array) -> Array:
        return shares + rate * (task.delta(price, left) - shares)

    def clip(width: float, left: int, price: Array, shares: Array) -> Array:
        delta = task.delta(price, left)
        return np.clip(shares, delta - width, delta + width)

    widths = task.weight * np.linspace(0.1, 0.6, 26)
    rules: dict[str, HedgeRule] = {
        f"trades {rate:.0%} of the way to the delta at each bar": partial(move, rate)
        for rate in np.linspace(0.02, 0.5, 25)
    }
    return rules | {
        f"trades when {width:.2f} shares from the delta, to there": partial(clip, width)
        for width in widths
    }


def raw_signals(market: Any) -> Array:
    """The signals `[T, S]` of a market of one asset, as they were before they were scaled."""
    scales = [market.normalisation.features[name] for name in market.feature_names]
    columns = [
        market.features[:, 0, place].double().numpy() * scale.std + scale.mean
        for place, scale in enumerate(scales)
    ]
    return np.stack(columns, 1) if columns else np.zeros((market.num_bars, 0))


@torch.no_grad()
def play(policy: Policy, env: TradingEnv, config: RunConfig, episodes: int) -> Array:
    """Play whole episodes; return the sum of rewards of each, less what the bars' surprises made of
    the weights held through them and of an option, whose mean is 0."""
    source = config.data.source
    bps = np.array([signal["bps"] for signal in source.signals.values()])
    expected = 1e-4 * (source.walk["drift_bps"] + raw_signals(env.market) @ bps)
    mean = torch.as_tensor(np.exp(expected))
    close = env.market.adjusted_close[:, 0]
    gross = close[1:] / close[:-1]
    hedging = None if config.env.option is None else read_hedging()
    earned: list[float] = []
    total = torch.zeros(env.num_envs, dtype=torch.float64)
    obs, _ = env.reset(seed=1)
    while len(earned) < episodes:
        action = policy(obs)
        account = env.account
        bar = account.bar
        weight = action[:, 0].double()
        if env.settings.action == "quote":
            weight = env.layout.split(obs)["holdings"][:, 0].double()
        elif not env.settings.short:
            weight = weight.clamp(0.0, 1.0)
        surprise = weight * (gross[bar] - mean[bar])
        if hedging is not None:
            surprise -= owe_more(hedging, env.market, account)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += reward.double() - surprise
        done = terminated | truncated
        earned += total[done].tolist()
        total[done] = 0.0
    return np.array(earned)


def owe_more(task: Hedging, market: Any, account: Any) -> torch.Tensor:
    """Growth of the options' value in the next bar as a share of the equity, `[B]`: a martingale at
    the market's volatility."""
    passed = (account.bar - account.start_bar).numpy()
    close = market.adjusted_close[:, 0].numpy()
    price, grown = (close[account.bar + k] / close[account.start_bar] for k in (0, 1))
    more = np.zeros(len(passed))
    for step in np.unique(passed[passed < task.bars]):
        there = passed == step
        left = task.bars - int(step)
        more[there] = task.value(grown[there], left - 1) - task.value(price[there], left)
    return torch.as_tensor(more) * account.first_equity / account.equity
