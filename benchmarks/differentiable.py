"""How fast the differentiable step is: the fused one with its backward written by hand, beside the
readable core that torch's autograd goes back through.

    python benchmarks/differentiable.py [--quick] [--save]

Both alternate within one run on one thread and are timed in process CPU time. A horizon is 16
decisions forward and the gradient of a random sum of all rewards and observations in all actions;
rates are account decisions a second, forward and backward together, of the best round, and
`times_core` is the median of the rounds' own ratios. Shares are fractional, weights random,
episodes 900 bars, on 80 stocks with 8 features. `costs` adds impact, a least commission and spreads
to the proportional costs of `plain`. `apg` is training by analytic policy gradients with its
default network and 256 accounts, the networks' own time included.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._env_peers import Run
from benchmarks.common import finish
from benchmarks.env import Clock, Figures, make_market
from fintrader.agents import APG, Budget, make_agent, train
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

ASSETS = 80
HORIZON = 16
SIZES = (64, 1024)
INTERVALS = (1, 30)
COSTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "costs": {"impact_bps": 10.0, "min_commission_usd": 1.0, "half_spread_bps": 1.0},
}
ENGINES: dict[str, Any] = {"fused": "fused", "core": "torch"}


def horizons(market: MarketTensors, accounts: int, settings: dict[str, Any], engine: Any) -> Run:
    """Forward and back over horizons; each begins where the one before ended."""
    settings = {"fractional": True, "episode_bars": 900, **settings}
    env = TradingEnv(market, EnvSettings(**settings), num_envs=accounts, engine=engine)
    obs, _ = env.reset(seed=0)
    actions = [(torch.rand(accounts, ASSETS) / 40).requires_grad_() for _ in range(HORIZON)]
    slopes = [torch.ones(accounts)] * HORIZON + [torch.randn(obs.shape)] * HORIZON

    def run(steps: int) -> int:
        for _ in range(steps):
            rewards = []
            seen = []
            for action in actions:
                obs, reward, *_ = env.step(action)
                rewards.append(reward)
                seen.append(obs)
            torch.autograd.grad([*rewards, *seen], actions, slopes)
            env.load_state_dict({name: value.detach() for name, value in env.state_dict().items()})
        return steps * HORIZON * accounts

    return run


def training(market: MarketTensors, engine: Any) -> Run:
    """APG for so many updates."""

    def run(steps: int) -> int:
        settings = EnvSettings(fractional=True, episode_bars=900)
        env = TradingEnv(market, settings, num_envs=256, engine=engine)
        agent = make_agent(APG(), env.layout, seed=0)
        budget = Budget(env_steps=steps * agent.settings.num_steps * env.num_envs)
        return train(agent, env, budget, folder=None, on_progress=None).env_steps

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/differentiable.json"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    clock = Clock(2, 0.3) if options.quick else Clock(5, 2.0)
    market = make_market(0, ASSETS)
    figures = Figures(assets=ASSETS, horizon=HORIZON)
    for accounts in SIZES:
        for interval in INTERVALS:
            for costs, settings in COSTS.items():
                settings = {"decision_interval": interval, **settings}
                runs = {
                    name: horizons(market, accounts, settings, engine)
                    for name, engine in ENGINES.items()
                }
                rates = clock.alternate(runs)
                place = f"{accounts}_accounts_interval_{interval}_{costs}"
                figures.rates(
                    rates, **{name: f"{name}_{place}_decisions_per_second" for name in runs}
                )
                times = figures.times(f"times_core_{place}", rates["fused"], rates["core"])
                print(
                    f"{place}: {max(rates['fused']):,.0f} decisions a second, {times:.1f} times the"
                    " core",
                    flush=True,
                )
    rates = clock.alternate({name: training(market, engine) for name, engine in ENGINES.items()})
    figures.rates(rates, **{name: f"apg_{name}_steps_per_second" for name in ENGINES})
    figures.times("apg_times_core", rates["fused"], rates["core"])
    finish("differentiable", figures, seed=0, save=options.save)


if __name__ == "__main__":
    main()
