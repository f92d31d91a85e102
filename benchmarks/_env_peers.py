"""The environments of FinRL and ElegantRL for `benchmarks/env.py`: how they are had, repaired and
run.

They are downloaded into an environment of their own (`.venv-bench`), without their dependencies.
One source file of each is executed; no line of it is kept here but those that a repair replaces.

FinRL's numpy environment is one account. ElegantRL's vector environment has two faults that decide
what it computes:

- `step` replaces the actions by ones, so that no agent trades anything but "buy 100 of everything";
- for each asset it looks through all accounts and all assets for those that sell, and sells this
  asset there, as often as the account sells any, whatever it wishes of this one.

`ELEGANTRL_REPAIRS` replaces these two lines and nothing else; the environment then does what the
loop over single accounts in its comments says. It also gets faster: the second fault costs a pass
over all accounts and assets an asset.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.common import ROOT
from fintrader.market.tensors import MarketTensors

Run = Callable[[int], int]
"""Takes a number of steps, returns how many account steps that were."""
ELEGANTRL_REPAIRS = {
    "action = torch.ones_like(action)": "action = action.clone()",
    "torch.where((action_int < 0) & (self.shares > 0))[0]": (
        "torch.where((action_int[:, i] < 0) & (self.shares[:, i] > 0))[0]"
    ),
}


def source_of(package: str, version: str, path: str) -> Path:
    """One file of a peer's release.

    Raises OSError, CalledProcessError or StopIteration where it cannot be had.
    """
    folder = ROOT / ".venv-bench"
    python = folder / "bin" / "python"
    target = folder / f"{package}-{version}"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    if not target.exists():
        pip = [str(python), "-m", "pip"]
        options = [
            "-q",
            "--no-deps",
            "--no-binary",
            package,
            f"{package}=={version}",
            "-d",
            str(target),
        ]
        try:
            subprocess.run([*pip, "download", *options], check=True, capture_output=True)
            with tarfile.open(next(target.glob("*.tar.gz"))) as archive:
                archive.extractall(target, filter="data")
        except (subprocess.CalledProcessError, StopIteration):
            options = ["-q", "--no-deps", "--target", str(target), f"{package}=={version}"]
            subprocess.run([*pip, "install", *options], check=True, capture_output=True)
    return next(target.rglob(path))


def peer(
    package: str, version: str, path: str, repairs: Mapping[str, str] | None = None
) -> ModuleType | None:
    """One source file of a peer, with lines replaced by `repairs`; None where it cannot be had.

    Raises ValueError if a line to repair is not there exactly once.
    """
    try:
        source = source_of(package, version, path)
        text = source.read_text()
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        print(f"{package} {version} cannot be had here: {error}", file=sys.stderr)
        return None
    for published, repaired in (repairs or {}).items():
        if text.count(published) != 1:
            raise ValueError(
                f"{package} {version} does not hold {published!r} exactly once; its repair must be"
                " renewed"
            )
        text = text.replace(published, repaired)
    module = ModuleType(f"peer_{package}")
    try:
        exec(compile(text, str(source), "exec"), vars(module))
    except ImportError as error:
        print(f"{package} {version} cannot be imported here: {error}", file=sys.stderr)
        return None
    return module


def stepping(env: Any, actions: Sequence[Any], accounts: int) -> Run:
    """A vector environment under these actions in turn."""

    def run(steps: int) -> int:
        for step in range(steps):
            env.step(actions[step % len(actions)])
        return steps * accounts

    return run


def finrl_env(module: ModuleType, market: MarketTensors) -> Run:
    """FinRL's numpy environment (meta/env_stock_trading/env_stocktrading_np.py), one account."""
    config = {
        "price_array": market.close.numpy(),
        "tech_array": market.features.flatten(1).numpy(),
        "turbulence_array": np.zeros(market.num_bars),
        "if_train": True,
    }
    env = module.StockTradingEnv(config)
    actions = np.random.default_rng(0).uniform(-1, 1, (8, market.num_assets)).astype(np.float32)
    env.reset()

    def run(steps: int) -> int:
        for step in range(steps):
            *_, done, _, _ = env.step(actions[step % 8])
            if done:
                env.reset()
        return steps

    return run


def elegantrl_env(module: ModuleType, market: MarketTensors, accounts: int) -> Run:
    """ElegantRL's vector environment (elegantrl/envs/StockTradingEnv.py) on CPU."""
    close = market.close.numpy()
    tech = market.features.flatten(1).numpy()

    class Env(module.StockTradingVecEnv):  # type: ignore[name-defined, misc]
        def load_data_from_disk(self, tech_id_list: object = None) -> tuple[Any, Any]:
            return close, tech

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # where `vmap` is imported from
        env = Env(num_envs=accounts, gpu_id=-1, end_idx=market.num_bars)
    env.reset()
    actions = [torch.rand(accounts, market.num_assets) * 2 - 1 for _ in range(4)]
    return stepping(env, actions, accounts)


def peer_runs(market: MarketTensors, accounts: int) -> dict[str, Run]:
    """FinRL's, ElegantRL's as shipped and ElegantRL's repaired; those that can be had."""
    finrl = peer("finrl", "0.3.7", "env_stocktrading_np.py")
    shipped = peer("elegantrl", "0.3.6", "StockTradingEnv.py")
    runs: dict[str, Run] = {}
    if finrl is not None:
        runs["finrl"] = finrl_env(finrl, market)
    if shipped is not None:
        runs["elegantrl_shipped"] = elegantrl_env(shipped, market, accounts)
        repaired = peer("elegantrl", "0.3.6", "StockTradingEnv.py", ELEGANTRL_REPAIRS)
        assert repaired is not None  # its file lies here by now
        runs["elegantrl_repaired"] = elegantrl_env(repaired, market, accounts)
    return runs
