"""Can the algorithms read a future that is put in front of them, and do they gain nothing when it
is taken away?

    python -m benchmarks.leaked_future [--algo ppo apg] [--seeds 5] [--seconds 20] [--save]

Ten assets without drift; each one's feature is its own return of the next bar. Trading at the close
costs 2 bps. The *foresight* return is that of the greedy account which puts everything into the
asset with the largest gain after costs (or stays where it is, or in cash); *sign* puts equal
weights into all assets about to rise. With the features one bar late there is nothing to find: the
share must not be above zero.

Shares are of log growth on a window not trained on. CPU seconds (APG gets half), one thread,
evaluations left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._bench import finish, list_seeds, read_arguments
from benchmarks._learning import AGENTS, make_plain_market, train_by_clock
from fintrader.agents import Budget, make_agent, train
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors
from tests.engines.tiny import agent_settings

ASSETS = 10
VOLATILITY = 1e-3
COST = 2e-4
RULES = EnvSettings(
    episode_bars=64, fill="close", cost_bps=COST * 1e4, fractional=True, reward="log_return"
)
SETTINGS = AGENTS["leaked_future"]


def make_leaked_market(num_bars: int, *, late: int = 0, seed: int = 0) -> MarketTensors:
    """Row t's feature is the return of bar t + 1 - 2·late, in deviations: the next bar's, or with
    `late` a past one."""
    rng = np.random.default_rng(seed)
    steps = VOLATILITY * rng.standard_normal((num_bars, ASSETS)) - VOLATILITY**2 / 2
    close = 100 * np.exp(np.cumsum(steps, axis=0))
    shown = np.roll(steps, -1 + 2 * late, axis=0) / VOLATILITY
    return make_plain_market(close, shown[:, :, None])


def act_greedily(obs: Tensor, env: TradingEnv) -> Tensor:
    """All into the asset with the largest gain of the next bar, after the cost of going there."""
    parts = env.layout.split(obs)
    gain = torch.expm1(parts["features"][..., 0] * VOLATILITY)
    held = parts["holdings"]
    # Going all into asset n costs c on what is sold and on what is bought.
    move = COST * (held.sum(1, keepdim=True) - held) + COST * (1 - held)
    stay = (held * gain).sum(1, keepdim=True)
    cash = -COST * held.sum(1, keepdim=True)
    value = torch.cat([gain - move, cash, stay], dim=1)
    best = value.argmax(dim=1)
    action = torch.nn.functional.one_hot(best.clamp(max=ASSETS), ASSETS + 1)[:, :ASSETS].float()
    return torch.where((best == ASSETS + 1).unsqueeze(1), held, action)


def follow_sign(obs: Tensor, env: TradingEnv) -> Tensor:
    """Equal weights in whatever is about to rise."""
    rising = (env.layout.split(obs)["features"][..., 0] > 0).float()
    return rising / rising.sum(1, keepdim=True).clamp_min(1)


@torch.no_grad()
def log_growth(policy: Any, env: TradingEnv) -> float:
    """Log growth of one account over the whole window of an evaluation environment."""
    obs, _ = env.reset()
    over = False
    while not over:
        obs, _, terminated, truncated, _ = env.step(policy(obs))
        over = bool((terminated | truncated).all())
    return float(torch.log(env.equity / env.settings.initial_cash_usd))


def measure_share(
    algo: str, *, seed: int, seconds: float, late: int, num_envs: int
) -> tuple[float, float, int]:
    """Share of the foresight growth after `seconds`; the sign policy's share; env-steps taken."""
    rules = RULES.model_copy(update={"num_envs": num_envs})
    unseen, truth = (
        TradingEnv.evaluation(
            make_leaked_market(800, late=shift, seed=1000 + seed), rules, record=False
        )
        for shift in (late, 0)
    )
    env = TradingEnv(make_leaked_market(20_000, late=late, seed=seed), rules, seed=seed)
    settings = agent_settings(algo, SETTINGS[algo])
    train(make_agent(settings, env.layout, seed=seed), env, Budget(env_steps=1))  # compiles
    agent = make_agent(settings, env.layout, seed=seed)
    steps = []
    train_by_clock(agent, env, [seconds], lambda *seen: steps.append(seen[2]), anneal=False)
    best = log_growth(lambda obs: act_greedily(obs, truth), truth)
    by_sign = log_growth(lambda obs: follow_sign(obs, truth), truth)
    return log_growth(agent.policy, unseen) / best, by_sign / best, steps[0]


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    options = read_arguments(
        __doc__, seed=0, algo=list(SETTINGS), seeds=5, seconds=20.0, num_envs=128
    )
    torch.set_num_threads(1)
    figures = {"seeds": options.seeds}
    signs = []
    for algo in options.algo:
        seconds = options.seconds / 2 if algo == "apg" else options.seconds
        for late, word in enumerate(("share", "shifted")):
            shares = figures[f"{algo}_{word}"] = []
            for seed in list_seeds(options):
                reached, by_sign, steps = measure_share(
                    algo, seed=seed, seconds=seconds, late=late, num_envs=options.num_envs
                )
                shares.append(reached)
                signs.append(by_sign)
                print(
                    f"{algo} {word} seed {seed}: {reached:.3f}, sign {by_sign:.3f}, {steps:,} steps"
                )
    figures["sign_share"] = sum(signs) / len(signs)
    finish("leaked_future", {"figures": figures}, options)


if __name__ == "__main__":
    main()
