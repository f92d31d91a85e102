"""Can the algorithms read a future that is put in front of them, and do they gain nothing when it
is taken away?

    python benchmarks/leaked_future.py [--algo ppo apg] [--seeds 5] [--seconds 20] [--save]

Ten assets without drift; each one's feature is its own return of the next bar. Trading at the close
costs 2 bps. The *foresight* return is that of the greedy account which puts everything into the
asset with the largest gain after costs (or stays where it is, or in cash); *sign* puts equal
weights into all assets about to rise. With the features one bar late there is nothing to find: the
share must not be above zero.

Shares are of log growth on a window not trained on. CPU seconds, one thread, evaluations left out.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import finish
from fintrader.agents import AgentSettings, Budget, TrainProgress, make_agent, train
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

ASSETS = 10
VOLATILITY = 1e-3
COST = 2e-4
MINUTE_NS = 60_000_000_000
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"gamma": 0.5, "head": {"scale": 8.0}, "noise": 0.3, "network": {"hidden": [32, 32]}},
    "apg": {
        "gamma": 0.5,
        "head": {"scale": 8.0},
        "noise": 0.0,
        "num_steps": 8,
        "bootstrap": False,
        "learning_rate": 1e-2,
    },
}


def leaked_market(num_bars: int, *, late: int = 0, seed: int = 0) -> MarketTensors:
    """Row t's feature is the return of bar t + 1 - 2·late, in deviations: the next bar's, or with
    `late` a past one."""
    rng = np.random.default_rng(seed)
    steps = VOLATILITY * rng.standard_normal((num_bars, ASSETS)) - VOLATILITY**2 / 2
    close = 100 * np.exp(np.cumsum(steps, axis=0))
    shown = np.roll(steps, -1 + 2 * late, axis=0) / VOLATILITY
    ones = torch.ones(num_bars, ASSETS, dtype=torch.bool)
    prices = torch.tensor(close, dtype=torch.float32)
    return MarketTensors(
        open=prices,
        close=prices,
        volume=torch.full_like(prices, 1e9),
        features=torch.tensor(shown[:, :, None], dtype=torch.float32),
        context=torch.zeros(num_bars, 0),
        tradable=ones,
        member=ones,
        session=torch.arange(num_bars) // 390,
        minutes=torch.arange(num_bars) * MINUTE_NS,
        benchmark=torch.tensor(close.mean(axis=1)),
        symbols=tuple(f"L{n}" for n in range(ASSETS)),
        feature_names=("leak",),
        context_names=(),
    )


def greedy(obs: Tensor, env: TradingEnv) -> Tensor:
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


def sign(obs: Tensor, env: TradingEnv) -> Tensor:
    """Equal weights in whatever is about to rise."""
    rising = (env.layout.split(obs)["features"][..., 0] > 0).float()
    return rising / rising.sum(1, keepdim=True).clamp_min(1)


@torch.no_grad()
def log_growth(policy: Any, env: TradingEnv) -> float:
    """Of one account over the whole window of an evaluation environment."""
    obs, _ = env.reset()
    over = False
    while not over:
        obs, _, terminated, truncated, _ = env.step(policy(obs))
        over = bool((terminated | truncated).all())
    return float(torch.log(env.equity / env.settings.initial_cash_usd))


class OutOfTime(Exception):
    """The CPU seconds are used up."""


def share(
    algo: str, *, seed: int, seconds: float, late: int, num_envs: int
) -> tuple[float, float, int]:
    """Share of the foresight growth after `seconds`; the sign policy's share; env-steps taken."""
    settings = EnvSettings(
        num_envs=num_envs,
        episode_bars=64,
        fill="close",
        cost_bps=COST * 1e4,
        fractional=True,
        reward="log_return",
    )
    market = leaked_market(20_000, late=late, seed=seed)
    unseen = leaked_market(800, late=late, seed=1000 + seed)
    env = TradingEnv(market, settings, seed=seed)
    test = TradingEnv.evaluation(unseen, settings, record=False)
    truth = TradingEnv.evaluation(leaked_market(800, seed=1000 + seed), settings, record=False)
    best = log_growth(lambda obs: greedy(obs, truth), truth)
    learned = TypeAdapter(AgentSettings).validate_python({"algo": algo, **SETTINGS[algo]})
    train(
        make_agent(learned, env.layout, seed=seed), env, Budget(env_steps=1)
    )  # compiles; the clock starts after it
    agent = make_agent(learned, env.layout, seed=seed)
    begun = time.process_time()
    steps = 0

    def on_progress(progress: TrainProgress) -> None:
        nonlocal steps
        steps = progress.env_steps
        if time.process_time() - begun >= seconds:
            raise OutOfTime

    with contextlib.suppress(OutOfTime):
        train(agent, env, Budget(seconds=100 * seconds), on_progress=on_progress)
    by_sign = log_growth(lambda obs: sign(obs, truth), truth)
    return log_growth(agent.policy, test) / best, by_sign / best, steps


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algo", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="CPU seconds of PPO; APG gets half"
    )
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for algo in options.algo:
        seconds = options.seconds / 2 if algo == "apg" else options.seconds
        for late in (0, 1):
            shares = []
            for seed in range(options.seeds):
                reached, by_sign, steps = share(
                    algo, seed=seed, seconds=seconds, late=late, num_envs=options.num_envs
                )
                shares.append(round(reached, 4))
                what = "late" if late else "leaked"
                print(
                    f"{algo} {what} seed {seed}: share {reached:.3f}, sign {by_sign:.3f}, {steps:,}"
                    " steps",
                    flush=True,
                )
            figures[f"{algo}_{'shifted' if late else 'share'}"] = shares
            figures["sign_share"] = round(by_sign, 4)
    finish("leaked_future", {"figures": figures}, seed=0, save=options.save)


if __name__ == "__main__":
    main()
