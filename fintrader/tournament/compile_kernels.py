"""Compilation of the kernels that pods need, once for all processes of a machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fintrader.agents import Budget, train
from fintrader.backtesting import simulate
from fintrader.envs.trading import name_engine
from fintrader.files import open_file
from fintrader.system import try_lock
from fintrader.tournament.fusion.learners import CPU, build_maker, load_windows, read_env_settings
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodSpec


def compile_kernels(spec: PodSpec, context: PodContext) -> None:
    """Compile the kernels of a pod that trains on the CPU, and of its score, unless numba's cache
    has them.

    Each process compiles a part that no other one is compiling, waits for the others' parts, and
    loads those from the cache. Raises TournamentError, ConfigError for a foreign spec.
    """
    if spec.is_classic or context.device != "cpu":
        return
    if name_engine(read_env_settings(spec), "cpu") != "fused":
        return
    from fintrader.envs.fast.batch import step_range

    cache = Path(step_range.stats.cache_path)
    if any(cache.glob("batch.step_range*.nbi")):
        return
    agent, env = build_maker(spec, context)(0, 0, CPU)
    window = load_windows(context.market).validation
    take_turns(
        cache,
        {
            "training": lambda: train(agent, env, Budget(env_steps=1)),
            "scoring": lambda: simulate(
                agent.policy,
                window.window(0, min(32, window.num_bars)),
                read_env_settings(spec),
            ),
        },
        lambda: context.report(0.0, 0, "compiling"),
    )


def take_turns(
    folder: Path, parts: Mapping[str, Callable[[], object]], report: Callable[[], None]
) -> None:
    """Do each part, in any order, while no other process of this machine does it; report before
    each part, and while other processes do all that are left."""
    left = dict(parts)
    with contextlib.ExitStack() as stack:
        locks = {
            name: stack.enter_context(open_file(folder / f"{name}.lock", "ab")) for name in parts
        }
        while left:
            report()
            free = next((name for name in left if try_lock(locks[name])), None)
            if free is None:
                time.sleep(0.1)
            else:
                left.pop(free)()
                locks[free].close()
