"""Benefit and cost of `reproducible: across_machines`.

    python -m benchmarks.reproducible [--quick] [--save]

`bytes`: hashes of the results of small trainings (PPO, SAC), and of a backtest of the first, under
either setting: `here`, as libraries choose on this processor, and `there`, in an environment that
has them choose as on another one (AVX2 instead of AVX-512, a C library without fused
multiply-adds). Across machines the two are equal, and equal to those of the same versions on any
x86-64 processor: compare the last lines of two machines.

Rates are account steps a second of process CPU time on one thread, the best of the rounds, in which
the settings alternate: the environment alone (4,096 accounts, random weights), and trainings with
default agents (256 accounts); 100 stocks with 8 features. `times` is how much slower across
machines is, the median of the rounds' own ratios.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks._bench import alternate, call_in_child, finish, read_arguments
from benchmarks._env_peers import make_run
from benchmarks.env import make_market
from fintrader import TradingEnv, backtest, reproducible, train
from fintrader.agents import PPO, SAC

SETTINGS = ("same_machine", "across_machines")
THERE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "haswell",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA",
}


def hash_results() -> dict[str, str]:
    """Hashes of the results of small trainings and a backtest."""
    reproducible.settle()

    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:12]

    market = make_market(10, seed=0).window(0, 1000)
    found = {}
    for name, agent in (("ppo", PPO(num_steps=32)), ("sac", SAC(learning_starts=500))):
        trained = train(agent, TradingEnv(market, num_envs=32, seed=1), env_steps=4096, seed=2)
        weights = trained.policy.state_dict()
        found[name] = digest(b"".join(weights[key].numpy().tobytes() for key in sorted(weights)))
        if name == "ppo":
            found["backtest"] = digest(repr(backtest(trained.policy, market).metrics).encode())
    return found


def measure_rates(seconds: float) -> dict[str, float]:
    """Account steps a second of CPU time: the environment alone, and trainings."""
    reproducible.settle()
    market = make_market(100, seed=0)
    env = TradingEnv(market, num_envs=4096)
    env.reset(seed=0)
    actions = [torch.rand(4096, market.num_assets) / 50]
    runs = {"environment": make_run(env, actions, 4096)}
    for name, agent in (("ppo", PPO()), ("sac", SAC(learning_starts=256))):
        env_steps = 256 * agent.num_steps if name == "ppo" else 256 * 4
        accounts = TradingEnv(market, num_envs=256, seed=1)
        runs[name] = lambda times, a=agent, e=accounts, n=env_steps: (
            train(a, e, env_steps=times * n, seed=0).env_steps
        )
    return {name: rate for name, (rate,) in alternate(runs, 1, seconds).items()}


def ask(setting: str, function: Callable[..., Any], *arguments: float, **outer: str) -> Any:
    """Call a function in a process under `setting`."""
    before = ["-m", "fintrader.reproducible"] if setting == "across_machines" else []
    return call_in_child(function, *arguments, before=before, **outer)


def main() -> None:
    """Compare the bytes, then alternate the rates. `--quick`: one short round."""
    options = read_arguments(__doc__, quick=False)
    rounds, seconds = (1, 1.0) if options.quick else (3, 10.0)
    found = {"bytes": {}, "equal": {}}
    for setting in SETTINGS:
        both = {
            "here": ask(setting, hash_results),
            "there": ask(setting, hash_results, **THERE),
        }
        found["bytes"][setting] = both
        found["equal"][setting] = both["here"] == both["there"]
        print(f"{setting}: {both}")
    timed = {setting: [] for setting in SETTINGS}
    for _ in range(rounds):
        for setting in SETTINGS:
            timed[setting].append(ask(setting, measure_rates, seconds))
            print(f"{setting}: {timed[setting][-1]}")
    for name in timed["same_machine"][0]:
        of = {setting: [rate[name] for rate in timed[setting]] for setting in SETTINGS}
        times = median(same / across for same, across in zip(*of.values(), strict=True))
        best = {f"{setting}_steps_per_second": round(max(values)) for setting, values in of.items()}
        found[name] = {**best, "times": times}
    finish("reproducible", found, options)


if __name__ == "__main__":
    main()
