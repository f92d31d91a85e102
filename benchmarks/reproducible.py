"""What `reproducible: across_machines` gives, and what it costs.

    python benchmarks/reproducible.py [--quick] [--save]

`bytes`: hashes of what small trainings (PPO, SAC), and a backtest of the first, end with, under
either setting: `here`, as libraries choose on this processor, and `there`, in an environment that
has them choose as on another one (AVX2 instead of AVX-512, a C library without fused
multiply-adds). Across machines the two are equal, and equal to those of the same versions on any
x86-64 processor: compare the last lines of two machines.

Rates are account steps a second of process CPU time on one thread, the best of the rounds, in which
the settings alternate: the environment alone (4,096 accounts, random weights), and trainings with
default agents (256 accounts); 100 stocks with 8 features. `times` is how much slower across
machines is, the median of the rounds' own ratios.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fintrader import reproducible

SETTINGS = ("same_machine", "across_machines")
THERE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "haswell",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA",
}


def results() -> dict[str, str]:
    """Hashes of what small trainings and a backtest end with."""
    from benchmarks.env import make_market
    from fintrader import TradingEnv, backtest, train
    from fintrader.agents import PPO, SAC

    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:12]

    market = make_market(0, 10).window(0, 1000)
    found = {}
    for name, agent in (("ppo", PPO(num_steps=32)), ("sac", SAC(learning_starts=500))):
        trained = train(agent, TradingEnv(market, num_envs=32, seed=1), env_steps=4096, seed=2)
        weights = trained.policy.state_dict()
        found[name] = digest(b"".join(weights[key].numpy().tobytes() for key in sorted(weights)))
        if name == "ppo":
            found["backtest"] = digest(repr(backtest(trained.policy, market).metrics).encode())
    return found


def rates(seconds: float) -> dict[str, float]:
    """Account steps a second of CPU time: the environment alone, and trainings."""
    import torch

    from benchmarks.env import make_market
    from fintrader import TradingEnv, train
    from fintrader.agents import PPO, SAC

    market = make_market(0)
    found = {}

    def per_second(step: Callable[[], int]) -> float:
        step()  # compiles, and finds its memory
        start = time.process_time()
        done = 0
        while time.process_time() - start < seconds:
            done += step()
        return done / (time.process_time() - start)

    env = TradingEnv(market, num_envs=4096)
    env.reset(seed=0)
    action = torch.rand(4096, market.num_assets) / 50

    def steps() -> int:
        for _ in range(16):
            env.step(action)
        return 16 * 4096

    found["environment"] = per_second(steps)
    for name, agent in (("ppo", PPO()), ("sac", SAC(learning_starts=256))):
        env_steps = 256 * agent.num_steps if name == "ppo" else 256 * 4
        accounts = TradingEnv(market, num_envs=256, seed=1)
        found[name] = per_second(
            lambda a=agent, e=accounts, n=env_steps: train(a, e, env_steps=n, seed=0).env_steps
        )
    return found


def child(setting: str, what: str, seconds: float, outer: dict[str, str]) -> dict[str, Any]:
    """The figures of a process under `setting`."""
    before = ["-m", "fintrader.reproducible"] if setting == "across_machines" else []
    words = [sys.executable, *before, __file__, "--child", what, "--seconds", str(seconds)]
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **outer,
    }
    done = subprocess.run(words, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/reproducible.json"
    )
    parser.add_argument("--child", choices=("results", "rates"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        import torch  # noqa: F401  (what is settled below)

        reproducible.settle()
        print(json.dumps(results() if options.child == "results" else rates(options.seconds)))
        return
    rounds, seconds = (1, 1.0) if options.quick else (3, 10.0)
    found: dict[str, Any] = {"bytes": {}, "equal": {}}
    for setting in SETTINGS:
        both = {
            place: child(setting, "results", 0, outer)
            for place, outer in (("here", {}), ("there", THERE))
        }
        found["bytes"][setting], found["equal"][setting] = both, both["here"] == both["there"]
        print(
            f"{setting}: {'equal' if found['equal'][setting] else 'other'} bytes here and there:"
            f" {both}",
            flush=True,
        )
    timed: dict[str, list[dict[str, float]]] = {setting: [] for setting in SETTINGS}
    for _ in range(rounds):
        for setting in SETTINGS:
            timed[setting].append(child(setting, "rates", seconds, {}))
            print(f"{setting}: {timed[setting][-1]}", flush=True)
    for name in timed["same_machine"][0]:
        of = {setting: [rate[name] for rate in timed[setting]] for setting in SETTINGS}
        times = median(same / across for same, across in zip(*of.values(), strict=True))
        best = {f"{setting}_steps_per_second": round(max(values)) for setting, values in of.items()}
        found[name] = {**best, "times": round(times, 2)}
    from benchmarks.common import finish

    finish("reproducible", found, seed=0, save=options.save)


if __name__ == "__main__":
    main()
