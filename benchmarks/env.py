"""How fast the trading environment steps, beside FinRL's and ElegantRL's, and how close to the memory's bandwidth.

100 stocks, 8 features, float32 observations (ours 1,004 wide, FinRL's 1,103, ElegantRL's 1,001). Ours and theirs
alternate within one run; times are process CPU time (other people use the cores), the best round of several counts.
FinRL and ElegantRL are downloaded into an environment of their own (`.venv-bench`), without their dependencies.

    python benchmarks/env.py [--quick] [--save]
    python benchmarks/env.py --only factored_policy     # policies on the factored observation; see _env_factored.py
    python benchmarks/env.py --device cuda [--save]     # the GPU alone, without peers; see _env_cuda.py

The last line is one JSON object. Rates are account steps a second.

The roofline counts what a step must move at least, each byte once: it reads the market's row of the observation, three
rows of prices, the shares and the action, and writes the observation and the shares (`traffic_bytes`), at the speed at
which torch copies a block of observations in the same run. That is a harder limit than copying observations alone:
market rows are read at random places, and the prices, shares and actions come on top.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _env_cuda, _env_factored
from benchmarks.common import ROOT, finish
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, TradingEnv

BARS, ASSETS, FEATURES, ACCOUNTS = 4096, 100, 8, 4096
Run = Callable[[int], int]
"""Takes a number of steps, returns how many account steps that were."""


def make_market(seed: int) -> MarketTensors:
    """Random walks of 100 stocks over 4,096 minutes, 8 features, no context."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randn(BARS, ASSETS, generator=generator, dtype=torch.float64) * 1e-3
    close = (50.0 * torch.exp(moves.cumsum(0))).float()
    return MarketTensors(
        open=close.roll(1, 0).index_copy(0, torch.tensor([0]), close[:1]),
        close=close,
        features=torch.randn(BARS, ASSETS, FEATURES, generator=generator),
        context=torch.zeros(BARS, 0),
        tradable=torch.ones(BARS, ASSETS, dtype=torch.bool),
        member=torch.ones(BARS, ASSETS, dtype=torch.bool),
        session=torch.arange(BARS) // 390,
        minutes=torch.arange(BARS) * 60_000_000_000,
        benchmark=close.double().mean(1),
        symbols=tuple(f"S{n}" for n in range(ASSETS)),
        feature_names=tuple(f"f{f}" for f in range(FEATURES)),
    )


# --- ours --------------------------------------------------------------------------------------------------


def our_env(market: MarketTensors, accounts: int, **options: Any) -> Run:
    """Random actions through `TradingEnv`."""
    changes = {"observation": options.pop("observation", "flat")}
    env = TradingEnv(market, EnvSettings(episode_bars=1000, **changes), num_envs=accounts, copy=False, **options)
    env.reset(seed=0)
    actions = [torch.rand(accounts, ASSETS) * 2 - 1 for _ in range(4)]

    def run(steps: int) -> int:
        for step in range(steps):
            env.step(actions[step % 4])
        return steps * accounts

    return run


def our_env_and_policy(market: MarketTensors, accounts: int) -> Run:
    """A 128-128 tanh network decides."""
    env = TradingEnv(market, EnvSettings(episode_bars=1000), num_envs=accounts, copy=False)
    obs, _ = env.reset(seed=0)
    policy = torch.nn.Sequential(
        torch.nn.Linear(env.layout.width, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.Tanh(),
        torch.nn.Linear(128, ASSETS), torch.nn.Tanh(),
    )  # fmt: skip
    state = {"obs": obs}

    @torch.no_grad()
    def run(steps: int) -> int:
        for _ in range(steps):
            state["obs"], *_ = env.step(policy(state["obs"]))
        return steps * accounts

    return run


def our_training(market: MarketTensors) -> float:
    """Environment steps a second (CPU time) of PPO with its defaults and 256 accounts, updates included."""
    from fintrader.agents import PPO, Budget, make_agent, train

    env = TradingEnv(market, EnvSettings(episode_bars=1000), num_envs=256)
    agent = make_agent(PPO(), env.layout, seed=0)
    start = time.process_time()
    result = train(agent, env, Budget(env_steps=30_000), folder=None, on_progress=None)
    return result.env_steps / (time.process_time() - start)


def our_single(market: MarketTensors) -> Run:
    """One account through `gymnasium.make`."""
    env = gymnasium.make("fintrader/Trading-v0", market=market, settings=EnvSettings(random_start=False))
    actions = np.random.default_rng(0).uniform(-1, 1, (8, ASSETS)).astype(np.float32)
    env.reset(seed=0)

    def run(steps: int) -> int:
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[step % 8])
            if terminated or truncated:
                env.reset()
        return steps

    return run


# --- theirs ------------------------------------------------------------------------------------------------


def peer(package: str, version: str, path: str) -> ModuleType | None:
    """One source file of a peer, from an environment of its own; None where it cannot be had."""
    folder = ROOT / ".venv-bench"
    python = folder / "bin" / "python"
    target = folder / f"{package}-{version}"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
        if not target.exists():
            command = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", package]
            try:
                subprocess.run([*command, f"{package}=={version}", "-d", str(target)], check=True, capture_output=True)
                with tarfile.open(next(target.glob("*.tar.gz"))) as archive:
                    archive.extractall(target, filter="data")
            except (subprocess.CalledProcessError, StopIteration):
                command = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
                subprocess.run([*command, f"{package}=={version}"], check=True, capture_output=True)
        source = next(target.rglob(path))
        spec = importlib.util.spec_from_file_location(f"peer_{package}", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except (OSError, subprocess.CalledProcessError, StopIteration, ImportError) as error:
        print(f"{package} {version} cannot be had here: {error}", file=sys.stderr)
        return None


def finrl_env(module: ModuleType, market: MarketTensors) -> Run:
    """FinRL's numpy environment (meta/env_stock_trading/env_stocktrading_np.py), one account."""
    config = {
        "price_array": market.close.numpy(),
        "tech_array": market.features.flatten(1).numpy(),
        "turbulence_array": np.zeros(BARS),
        "if_train": True,
    }
    env = module.StockTradingEnv(config)
    actions = np.random.default_rng(0).uniform(-1, 1, (8, ASSETS)).astype(np.float32)
    env.reset()

    def run(steps: int) -> int:
        for step in range(steps):
            *_, done, _, _ = env.step(actions[step % 8])
            if done:
                env.reset()
        return steps

    return run


def elegantrl_env(module: ModuleType, market: MarketTensors, accounts: int) -> Run:
    """ElegantRL's vector environment; as published it replaces every action by ones."""
    close, tech = market.close.numpy(), market.features.flatten(1).numpy()

    class Env(module.StockTradingVecEnv):  # type: ignore[name-defined, misc]
        def load_data_from_disk(self, tech_id_list: object = None) -> tuple[Any, Any]:
            return close, tech

    env = Env(num_envs=accounts, gpu_id=-1, end_idx=BARS)
    env.reset()
    action = torch.rand(accounts, ASSETS) * 2 - 1

    def run(steps: int) -> int:
        for _ in range(steps):
            env.step(action)
        return steps * accounts

    return run


# --- measuring ---------------------------------------------------------------------------------------------


def alternate(
    runs: dict[str, tuple[Run, int]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Account steps a second of each run, best of `rounds`, one after the other in every round."""
    best = dict.fromkeys(runs, 0.0)
    for run, _ in runs.values():
        run(2)
    for _ in range(rounds):
        for name, (run, steps) in runs.items():
            start = clock()
            done = run(steps)
            best[name] = max(best[name], done / (clock() - start))
    return best


def copying(width: int, threads: int = 1) -> Run:
    """Copy a block of observations; one 'account step' is one row."""
    source, target = torch.rand(ACCOUNTS, width), torch.rand(ACCOUNTS, width)

    def run(steps: int) -> int:
        torch.set_num_threads(threads)
        for _ in range(steps):
            target.copy_(source)
        torch.set_num_threads(1)
        return steps * ACCOUNTS

    return run


def traffic_bytes() -> tuple[int, int]:
    """Bytes an account step must move, and those a copied row moves.

    It reads the market's row, three price rows, shares and action, and writes the observation and the shares.
    """
    row, observation = 4 * ASSETS * (FEATURES + 1), 4 * (4 + ASSETS + ASSETS * (FEATURES + 1))
    return row + 3 * 4 * ASSETS + 3 * 4 * ASSETS + observation, 2 * observation


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no training")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/env.json")
    parser.add_argument("--json", action="store_true", help="the last line is JSON in any case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the GPU's figures alone")
    parser.add_argument("--only", choices=("factored_policy",), help="this section alone, saved under its own name")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else 12
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    market = make_market(arguments.seed)
    if arguments.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("there is no CUDA device here, or torch was built without CUDA")
        finish("env_cuda", _env_cuda.measure(market, torch.device("cuda")), seed=arguments.seed, save=arguments.save)
        return
    if arguments.only == "factored_policy":
        figures = _env_factored.measure(market, alternate, rounds)
        finish(arguments.only, figures, seed=arguments.seed, save=arguments.save)
        return
    width = 4 + ASSETS + ASSETS * (FEATURES + 1)

    runs: dict[str, tuple[Run, int]] = {
        "flat": (our_env(market, ACCOUNTS), 20),
        "factored": (our_env(market, ACCOUNTS, observation="factored"), 20),
        "torch_core": (our_env(market, ACCOUNTS, engine="torch"), 3),
        "copy": (copying(width), 40),
        "single": (our_single(market), 300),
    }
    finrl = peer("finrl", "0.3.7", "env_stocktrading_np.py")
    elegantrl = peer("elegantrl", "0.3.6", "StockTradingEnv.py")
    if finrl is not None:
        runs["finrl"] = (finrl_env(finrl, market), 300)
    if elegantrl is not None:
        runs["elegantrl"] = (elegantrl_env(elegantrl, market, ACCOUNTS), 1)
    rate = alternate(runs, rounds)
    ours, copied = traffic_bytes()
    roofline = rate["copy"] * copied / ours

    curve = {str(n): alternate({"x": (our_env(market, n), max(8, 20_000 // n))}, 3)["x"] for n in curve_sizes()}
    figures = {
        "engine": "fused" if TradingEnv(market, num_envs=2)._fused is not None else "torch",
        "accounts": ACCOUNTS,
        "observation_width": width,
        "env_only_steps_per_second": rate["flat"],
        "factored_steps_per_second": rate["factored"],
        "torch_core_steps_per_second": rate["torch_core"],
        "finrl_steps_per_second": rate.get("finrl"),
        "elegantrl_steps_per_second": rate.get("elegantrl"),
        "copy_gb_per_second": rate["copy"] * copied / 1e9,
        "roofline_steps_per_second": roofline,
        "share_of_roofline": rate["flat"] / roofline,
        "times_finrl": ratio(rate["flat"], rate.get("finrl")),
        "times_elegantrl": ratio(rate["flat"], rate.get("elegantrl")),
        "factored_times_flat": rate["factored"] / rate["flat"],
        "single_steps_per_second": rate["single"],
        "single_times_finrl": ratio(rate["single"], rate.get("finrl")),
        "curve_steps_per_second": curve,
        "env_and_policy_steps_per_second": alternate({"x": (our_env_and_policy(market, ACCOUNTS), 3)}, 3)["x"],
    }
    figures["factored_policy"] = _env_factored.measure(market, alternate, rounds)
    if not arguments.quick:
        figures["training_steps_per_second"] = our_training(market)
    torch.set_num_threads(2)
    two_threads = our_env(market, ACCOUNTS)
    torch.set_num_threads(1)
    pair = {"one": (our_env(market, ACCOUNTS), 20), "two": (two_threads, 20)}
    pair |= {f"copy_{name}": (copying(width, threads), 40) for name, threads in (("one", 1), ("two", 2))}
    wall, cpu = alternate(pair, rounds, time.perf_counter), alternate(pair, rounds)
    figures["two_threads_times_one_wall"] = wall["two"] / wall["one"]
    figures["two_threads_copy_times_one_wall"] = wall["copy_two"] / wall["copy_one"]  # what the memory has left
    figures["two_threads_cpu_time_times_one"] = cpu["one"] / cpu["two"]
    finish("env", figures, seed=arguments.seed, save=arguments.save)


def curve_sizes() -> list[int]:
    """1 to 16,384 accounts."""
    return [4**k for k in range(8)]


def ratio(ours: float, theirs: float | None) -> float | None:
    """None where the peer could not be had."""
    return None if theirs is None else ours / theirs


if __name__ == "__main__":
    main()
