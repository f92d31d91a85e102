"""How fast the trading environment steps, beside FinRL's, ElegantRL's and TorchTrade's, and beside
the memory.

Everything alternates within one run on one thread and is timed in process CPU time (other people
use the cores). Rates are account decisions a second, of the best round. Ratios ("times") are the
median of the rounds' own ratios, because the two sides of a round meet the same machine; `ranges`
holds the lowest and the highest.

Unless it says otherwise, ours has default settings and default options (`copy=True`, random starts,
autoreset in the same step) with episodes of 1,000 bars and random target weights, on 100 stocks and
8 features: float32 observations of 1,004 numbers, FinRL's has 1,103, ElegantRL's 1,001.

    python benchmarks/env.py [--quick] [--save]
    python benchmarks/env.py --only factored_policy     # policies on the factored observation; see _env_factored.py
    python benchmarks/env.py --device cuda [--save]     # the GPU alone, without peers; see _env_cuda.py

The last line is one JSON object; `table` in it holds the figures that have a target, null where a
peer cannot be had.

- FinRL and ElegantRL, the latter as shipped and with its actions and its sales repaired: see
  _env_peers.py. They order shares, not weights; `trade` is ours under the same contract (orders of
  up to 100 shares, dead band, next close).
- TorchTrade's portfolio environment, rebuilt from its contract as it is written (`torchtrade`) and
  tuned (`torchtrade_tuned`): see _env_torchtrade.py. Ours trades fractions at the close at the same
  costs, and observes the same windows.
- `costs` is an impact by order, a least commission and a half-spread beside the proportional costs
  of `plain`. Every side of ours takes at most a tenth of a bar's volume, as by default; the peers
  know no volume.
- Accounts begin in 16 groups, each on one bar, as by default: what they read of the market is then
  often in a cache. `single_starts` begins each by itself.
- The roofline counts what a step must move at least, each byte once: it reads the market's row of
  the observation, three rows of prices, the shares and the action, and writes the observation and
  the shares (`traffic_bytes`), at the speed at which torch copies a block of observations in the
  same run. That is a harder limit than copying observations alone: market rows are read at random
  places, and the prices, shares and actions come on top.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _env_cuda, _env_factored, _env_torchtrade
from benchmarks._env_peers import Run, peer_runs, stepping
from benchmarks.common import finish
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.trading import engine_for
from fintrader.market.tensors import MarketTensors

BARS = 4096
ASSETS = 100
FEATURES = 8
ACCOUNTS = 4096
SMALL_ASSETS = 80
SMALL_ACCOUNTS = 64
SIZES = (1, 64, 1024, 4096, 16384)
INTERVALS = (1, 5, 30)
FEE = 2e-3
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "costs": {"impact_bps": 10.0, "min_commission_usd": 1.0, "half_spread_bps": 1.0},
    "fractional": {"fractional": True},
    "trade": {"action": "trade", "fill": "next_close", "cost_bps": 10.0},
    "short": {
        "short": True,
        "max_leverage": 2.0,
        "borrow_bps_per_year": 50.0,
        "maintenance_margin": 0.25,
    },
    "lookback_4": {"lookback": 4},
    "factored": {"observation": "factored"},
}
TARGETS: dict[str, float | None] = {
    "decisions_per_second_64_accounts_80_stocks_interval_30": 300_000,
    "interval_30_times_interval_1": 0.4,
    "times_finrl": 250,
    "times_elegantrl_repaired": 25,
    "times_torchtrade_fractional_64": 8,
    "times_torchtrade_fractional_4096": 8,
    "times_torchtrade_tuned_fractional_64": None,
    "times_torchtrade_tuned_fractional_4096": None,
    "costs_times_plain": 0.7,
    "share_of_copy_roofline": 0.6,
}
"""The least that each figure of `table` should be; none: it stands beside the one it qualifies."""


def make_market(seed: int, assets: int = ASSETS) -> MarketTensors:
    """Random walks of stocks over 4,096 minutes, 8 features, no context."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randn(BARS, assets, generator=generator, dtype=torch.float64) * 1e-3
    close = (50.0 * torch.exp(moves.cumsum(0))).float()
    return MarketTensors(
        open=close.roll(1, 0).index_copy(0, torch.tensor([0]), close[:1]),
        close=close,
        volume=torch.full_like(close, 1e9),
        features=torch.randn(BARS, assets, FEATURES, generator=generator),
        context=torch.zeros(BARS, 0),
        tradable=torch.ones(BARS, assets, dtype=torch.bool),
        member=torch.ones(BARS, assets, dtype=torch.bool),
        session=torch.arange(BARS) // 390,
        minutes=torch.arange(BARS) * 60_000_000_000,
        benchmark=close.double().mean(1),
        symbols=tuple(f"S{n}" for n in range(assets)),
        feature_names=tuple(f"f{f}" for f in range(FEATURES)),
    )


# --- measuring ------------------------------------------------------------------------------------


class Clock:
    """How long and how often each side of a comparison runs."""

    def __init__(self, rounds: int, seconds: float) -> None:
        self.rounds = rounds
        self.seconds = seconds

    def alternate(
        self, runs: dict[str, Run], clock: Callable[[], float] = time.process_time
    ) -> dict[str, list[float]]:
        """Account steps a second of each run in each round, one after the other in every round."""
        steps = {}
        for name, run in runs.items():
            run(2)  # compiles, and finds its memory
            start = clock()
            run(2)
            steps[name] = max(1, round(2 * self.seconds / max(clock() - start, 1e-6)))
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.rounds):
            for name, run in runs.items():
                start = clock()
                done = run(steps[name])
                rates[name].append(done / (clock() - start))
        return rates

    def best(self, runs: dict[str, Run]) -> dict[str, float]:
        """Account steps a second of each run, best of the rounds."""
        return {name: max(rates) for name, rates in self.alternate(runs).items()}


class Figures(dict[str, Any]):
    """What was measured, by name."""

    def rates(self, rates: dict[str, list[float]], **names: str) -> None:
        """Note the best round of the runs, each under `names` or `<run>_steps_per_second`."""
        for run, values in rates.items():
            self[names.get(run, f"{run}_steps_per_second")] = max(values)

    def times(
        self, name: str, ours: list[float], theirs: list[float] | None, factor: float = 1.0
    ) -> float | None:
        """Note and return how many times as fast ours is; None where the peer could not be had."""
        self[name] = None
        if theirs is not None:
            rounds = [factor * our / their for our, their in zip(ours, theirs, strict=True)]
            self[name] = median(rounds)
            self.setdefault("ranges", {})[name] = [min(rounds), max(rounds)]
        found: float | None = self[name]
        return found


# --- ours -----------------------------------------------------------------------------------------


def our_env(
    market: MarketTensors,
    accounts: int,
    settings: dict[str, Any] | EnvSettings | None = None,
    engine: Any = "auto",
) -> Run:
    """Random actions through `TradingEnv`."""
    if not isinstance(settings, EnvSettings):
        settings = EnvSettings(episode_bars=1000, **(settings or {}))
    env = TradingEnv(market, settings, num_envs=accounts, engine=engine)
    env.reset(seed=0)
    actions = [torch.rand(accounts, market.num_assets) * 2 - 1 for _ in range(4)]
    return stepping(env, actions, accounts)


def our_env_and_policy(market: MarketTensors, accounts: int) -> Run:
    """A 128-128 tanh network decides."""
    env = TradingEnv(market, EnvSettings(episode_bars=1000), num_envs=accounts)
    obs, _ = env.reset(seed=0)
    policy = torch.nn.Sequential(
        torch.nn.Linear(env.layout.width, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, ASSETS),
        torch.nn.Tanh(),
    )
    state = {"obs": obs}
    del obs

    @torch.no_grad()
    def run(steps: int) -> int:
        for _ in range(steps):
            state["obs"], *_ = env.step(policy(state["obs"]))
        return steps * accounts

    return run


def our_training(market: MarketTensors) -> float:
    """Environment steps a second (CPU time) of PPO with its defaults and 256 accounts, updates
    included."""
    from fintrader.agents import PPO, Budget, make_agent, train

    env = TradingEnv(market, EnvSettings(episode_bars=1000), num_envs=256)
    agent = make_agent(PPO(), env.layout, seed=0)
    start = time.process_time()
    result = train(agent, env, Budget(env_steps=30_000), folder=None, on_progress=None)
    return result.env_steps / (time.process_time() - start)


def our_single(market: MarketTensors) -> Run:
    """One account through `gymnasium.make`."""
    env = gymnasium.make(
        "fintrader/Trading-v0", market=market, settings=EnvSettings(random_start=False)
    )
    actions = np.random.default_rng(0).uniform(-1, 1, (8, ASSETS)).astype(np.float32)
    env.reset(seed=0)

    def run(steps: int) -> int:
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[step % 8])
            if terminated or truncated:
                env.reset()
        return steps

    return run


# --- theirs, and the memory's ---------------------------------------------------------------------


def torchtrade_env(market: MarketTensors, accounts: int, *, tuned: bool) -> Run:
    """TorchTrade's, rebuilt, with our actions."""
    kind = _env_torchtrade.TunedPortfolioEnv if tuned else _env_torchtrade.PortfolioEnv
    env = kind(market, accounts, fee=FEE, episode=1000)
    env.reset()
    actions = [
        _env_torchtrade.cash_first(torch.rand(accounts, market.num_assets) * 2 - 1)
        for _ in range(4)
    ]
    return stepping(env, actions, accounts)


def copying(width: int, threads: int = 1) -> Run:
    """Copy a block of observations; one 'account step' is one row."""
    source = torch.rand(ACCOUNTS, width)
    target = torch.rand(ACCOUNTS, width)

    def run(steps: int) -> int:
        torch.set_num_threads(threads)
        for _ in range(steps):
            target.copy_(source)
        torch.set_num_threads(1)
        return steps * ACCOUNTS

    return run


def traffic_bytes() -> tuple[int, int]:
    """Bytes an account step must move, and those a copied row moves.

    It reads the market's row, four rows of prices and volume, shares (float64) and action, and
    writes the observation and the shares.
    """
    row = 4 * ASSETS * (FEATURES + 1)
    observation = 4 * (4 + ASSETS + ASSETS * (FEATURES + 1))
    return row + 4 * 4 * ASSETS + (8 + 4 + 8) * ASSETS + observation, 2 * observation


# --- sections -------------------------------------------------------------------------------------


def measure_peers(market: MarketTensors, clock: Clock) -> Figures:
    """4,096 accounts beside FinRL's one and ElegantRL's 4,096, and beside the memory."""
    width = 4 + ASSETS + ASSETS * (FEATURES + 1)
    runs = {
        "env_only": our_env(market, ACCOUNTS),
        "trade": our_env(market, ACCOUNTS, VARIANTS["trade"]),
        "single_starts": our_env(market, ACCOUNTS, {"start_groups": ACCOUNTS}),
        "torch_core": our_env(market, ACCOUNTS, engine="torch"),
        "copy": copying(width),
        "single": our_single(market),
        **peer_runs(market, ACCOUNTS),
    }
    rates = clock.alternate(runs)
    figures = Figures()
    figures.rates(rates)
    moved, copied = traffic_bytes()
    figures["observation_width"] = width
    figures["copy_gb_per_second"] = figures.pop("copy_steps_per_second") * copied / 1e9
    figures["roofline_steps_per_second"] = figures["copy_gb_per_second"] * 1e9 / moved
    figures.times("share_of_copy_roofline", rates["env_only"], rates["copy"], moved / copied)
    figures.times(
        "single_starts_share_of_copy_roofline",
        rates["single_starts"],
        rates["copy"],
        moved / copied,
    )
    for name in ("finrl", "elegantrl_shipped", "elegantrl_repaired"):
        figures.setdefault(f"{name}_steps_per_second", None)
        figures.times(f"times_{name}", rates["env_only"], rates.get(name))
        figures.times(f"trade_times_{name}", rates["trade"], rates.get(name))
        figures.times(f"single_starts_times_{name}", rates["single_starts"], rates.get(name))
    figures.times("single_times_finrl", rates["single"], rates.get("finrl"))
    return figures


def measure_torchtrade(market: MarketTensors, clock: Clock) -> Figures:
    """Fractions of shares, like for like, 64 and 4,096 accounts."""
    figures = Figures()
    windowed = _env_torchtrade.windowed(market)
    figures["torchtrade_equity_difference"] = _env_torchtrade.equity_difference(windowed)
    for accounts in (SMALL_ACCOUNTS, ACCOUNTS):
        settings = _env_torchtrade.settings_like_torchtrade(FEE, episode_bars=1000)
        runs = {"fractional": our_env(windowed, accounts, settings)}
        runs |= {
            f"torchtrade{name}": torchtrade_env(windowed, accounts, tuned=bool(name))
            for name in ("", "_tuned")
        }
        rates = clock.alternate(runs)
        figures.rates(rates, **{name: f"{name}_{accounts}_steps_per_second" for name in runs})
        for name in ("torchtrade", "torchtrade_tuned"):
            figures.times(f"times_{name}_fractional_{accounts}", rates["fractional"], rates[name])
    return figures


def measure_sizes(markets: dict[int, MarketTensors], clock: Clock) -> Figures:
    """Accounts by decision intervals: `decisions_per_second[stocks][accounts][interval]`."""
    figures = Figures(decisions_per_second={}, interval_times_interval_1={})
    for assets, market in markets.items():
        for accounts in SIZES if assets == ASSETS else (SMALL_ACCOUNTS, ACCOUNTS):
            runs = {f"{k}": our_env(market, accounts, {"decision_interval": k}) for k in INTERVALS}
            rates = clock.alternate(runs)
            place = figures["decisions_per_second"].setdefault(f"{assets}", {})
            place[f"{accounts}"] = {interval: max(values) for interval, values in rates.items()}
            for k in INTERVALS[1:]:
                name = f"interval_{k}_times_interval_1_{assets}_stocks_{accounts}_accounts"
                figures.times(name, rates[f"{k}"], rates["1"])
                figures["interval_times_interval_1"][name] = figures.pop(name)
    return figures


def measure_variants(market: MarketTensors, clock: Clock) -> Figures:
    """What each setting costs, against plain."""
    figures = Figures(
        engines={
            name: engine_for(EnvSettings(**changes), "cpu") for name, changes in VARIANTS.items()
        }
    )
    for accounts in (SMALL_ACCOUNTS, ACCOUNTS):
        for interval in (1, INTERVALS[-1]):
            runs = {
                name: our_env(market, accounts, {**changes, "decision_interval": interval})
                for name, changes in VARIANTS.items()
            }
            rates = clock.alternate(runs)
            place = f"{accounts}_accounts_interval_{interval}"
            figures.rates(rates, **{name: f"{name}_{place}_steps_per_second" for name in runs})
            for name in tuple(VARIANTS)[1:]:
                figures.times(f"{name}_times_plain_{place}", rates[name], rates["plain"])
    return figures


def measure_threads(market: MarketTensors, clock: Clock) -> Figures:
    """What a second thread brings, beside what it brings to copying."""
    torch.set_num_threads(2)
    two_threads = our_env(market, ACCOUNTS)
    torch.set_num_threads(1)
    width = 4 + ASSETS + ASSETS * (FEATURES + 1)
    pair = {"one": our_env(market, ACCOUNTS), "two": two_threads}
    pair |= {f"copy_{name}": copying(width, threads) for name, threads in (("one", 1), ("two", 2))}
    wall = clock.alternate(pair, time.perf_counter)
    cpu = clock.alternate(pair)
    figures = Figures()
    figures.times("two_threads_times_one_wall", wall["two"], wall["one"])
    figures.times(
        "two_threads_copy_times_one_wall", wall["copy_two"], wall["copy_one"]
    )  # what the memory has left
    figures.times("two_threads_cpu_time_times_one", cpu["one"], cpu["two"])
    return figures


def table(figures: dict[str, Any]) -> dict[str, float | None]:
    """The figures that have a target."""
    small = figures["decisions_per_second"][f"{SMALL_ASSETS}"][f"{SMALL_ACCOUNTS}"]
    intervals = figures["interval_times_interval_1"]
    found = {
        "decisions_per_second_64_accounts_80_stocks_interval_30": small["30"],
        "interval_30_times_interval_1": intervals[
            "interval_30_times_interval_1_80_stocks_64_accounts"
        ],
        "costs_times_plain": figures[f"costs_times_plain_{ACCOUNTS}_accounts_interval_1"],
    }
    return {name: found.get(name, figures.get(name)) for name in TARGETS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few and short rounds, no policies and no training"
    )
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/env.json")
    parser.add_argument("--json", action="store_true", help="the last line is JSON in any case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the GPU's figures alone"
    )
    parser.add_argument(
        "--only", choices=("factored_policy",), help="this section alone, saved under its own name"
    )
    arguments = parser.parse_args()
    clock = Clock(3, 0.05) if arguments.quick else Clock(12, 0.2)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    market = make_market(arguments.seed)
    if arguments.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("there is no CUDA device here, or torch was built without CUDA")
        finish(
            "env_cuda",
            _env_cuda.measure(market, torch.device("cuda")),
            seed=arguments.seed,
            save=arguments.save,
        )
        return
    if arguments.only == "factored_policy":
        figures = _env_factored.measure(market, clock.best)
        finish(arguments.only, figures, seed=arguments.seed, save=arguments.save)
        return
    markets = {SMALL_ASSETS: make_market(arguments.seed, SMALL_ASSETS), ASSETS: market}
    figures = Figures(engine=engine_for(EnvSettings(), "cpu"), accounts=ACCOUNTS, ranges={})
    for part in (
        measure_peers(market, clock),
        measure_torchtrade(market, clock),
        measure_sizes(markets, clock),
        measure_variants(market, clock),
        measure_threads(market, clock),
    ):
        figures["ranges"] |= part.pop("ranges", {})
        figures |= part
    figures |= Figures(
        clock.best({"env_and_policy_steps_per_second": our_env_and_policy(market, ACCOUNTS)})
    )
    if not arguments.quick:
        figures["factored_policy"] = _env_factored.measure(market, clock.best)
        figures["training_steps_per_second"] = our_training(market)
    figures["table"] = table(figures)
    for name, found in figures["table"].items():
        least = TARGETS[name]
        shown = "no peer" if found is None else f"{found:,.2f}"
        print(f"{name:56} {shown:>12}" + ("" if least is None else f"   at least {least:,}"))
    finish("env", figures, seed=arguments.seed, save=arguments.save)


if __name__ == "__main__":
    main()
