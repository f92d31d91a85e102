"""The environments of FinRL and ElegantRL for `benchmarks/env.py`: installed, repaired and run.

They are installed into `.venv-bench`, without their dependencies. One source file of each is
executed; no line of it is kept here but those that a repair replaces.

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

import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks._bench import NoPeer, Run, install_peer, skip_absent_peer
from fintrader.market.tensors import MarketTensors

ELEGANTRL_REPAIRS = {
    "action = torch.ones_like(action)": "action = action.clone()",
    "torch.where((action_int < 0) & (self.shares > 0))[0]": (
        "torch.where((action_int[:, i] < 0) & (self.shares[:, i] > 0))[0]"
    ),
}


def load_peer(package: str, version: str, path: str, repairs: Mapping[str, str]) -> ModuleType:
    """Execute one source file of a peer, with lines replaced by `repairs`. Raises NoPeer.

    Raises ValueError if a line to repair is not there exactly once.
    """
    source = next(install_peer(package, version).rglob(path))
    text = source.read_text()
    for published, repaired in repairs.items():
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
        raise NoPeer(f"{package} {version} cannot be imported here: {error}") from None
    return module


def make_run(env: Any, actions: Sequence[Any], accounts: int) -> Run:
    """A vector environment under these actions in turn."""

    def run(steps: int) -> int:
        for step in range(steps):
            env.step(actions[step % len(actions)])
        return steps * accounts

    return run


def make_single_run(env: Any, assets: int) -> Run:
    """One account of gymnasium's interface under random actions."""
    actions = np.random.default_rng(0).uniform(-1, 1, (8, assets)).astype(np.float32)
    env.reset()

    def run(steps: int) -> int:
        for step in range(steps):
            *_, terminated, truncated, _ = env.step(actions[step % 8])
            if terminated or truncated:
                env.reset()
        return steps

    return run


def run_finrl(module: ModuleType, market: MarketTensors) -> Run:
    """FinRL's numpy environment (meta/env_stock_trading/env_stocktrading_np.py), one account."""
    config = {
        "price_array": market.close.numpy(),
        "tech_array": market.features.flatten(1).numpy(),
        "turbulence_array": np.zeros(market.num_bars),
        "if_train": True,
    }
    return make_single_run(module.StockTradingEnv(config), market.num_assets)


def run_elegantrl(module: ModuleType, market: MarketTensors, accounts: int) -> Run:
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
    return make_run(env, actions, accounts)


def make_peer_runs(market: MarketTensors, accounts: int) -> dict[str, Run]:
    """FinRL's, ElegantRL's as shipped and ElegantRL's repaired; those that can be had."""
    runs = {}
    with skip_absent_peer():
        module = load_peer("finrl", "0.3.7", "env_stocktrading_np.py", {})
        runs["finrl"] = run_finrl(module, market)
    with skip_absent_peer():
        for name, repairs in (("shipped", {}), ("repaired", ELEGANTRL_REPAIRS)):
            module = load_peer("elegantrl", "0.3.6", "StockTradingEnv.py", repairs)
            runs[f"elegantrl_{name}"] = run_elegantrl(module, market, accounts)
    return runs
