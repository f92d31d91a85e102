"""The old comparison of `time_to_return.py`: Stable-Baselines3's and RLlib's PPO in FinRL's own
environment.

Stable-Baselines3 has FinRL's parameters, RLlib its own defaults, both FinRL's numpy environment
(`finrl==0.3.7`) with its observations and its orders of up to 100 shares: what one gets who follows
FinRL's tutorials. It says how far apart the packages are as they come, and nothing about their
algorithms; the clock is the wall's, RLlib has two processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._planted import ASSETS, OutOfTime, Referee, windows
from fintrader.backtesting.account import BacktestAccount
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors

THEIRS = EnvSettings(action="trade", max_shares=100, dead_band=0.1, fill="next_close", cost_bps=10)
"""FinRL's orders: up to 100 shares a stock and minute, none below 10 %."""
FINRL_PPO = {"n_steps": 2048, "ent_coef": 0.01, "learning_rate": 0.00025, "batch_size": 64}
"""finrl/agents/stablebaselines3/models.py and config.py."""


def finrl_env(market: MarketTensors) -> Any:
    """FinRL's environment over the window, with the costs of everyone."""
    from benchmarks._env_peers import peer

    module = peer("finrl", "0.3.7", "env_stocktrading_np.py")
    if module is None:
        raise SystemExit("finrl 0.3.7 is needed: run where `pip` reaches a package index")
    config = {
        "price_array": market.close.numpy(),
        "tech_array": market.features.flatten(1).numpy(),
        "turbulence_array": np.zeros(market.num_bars),
        "if_train": True,
    }
    return module.StockTradingEnv(config, buy_cost_pct=1e-3, sell_cost_pct=1e-3)


class FinrlPolicy:
    """A policy for FinRL's states in our account: writes the state as `StockTradingEnv.get_state`
    does."""

    def __init__(self, act: Callable[[np.ndarray], np.ndarray]) -> None:
        self.act = act
        self.idle = np.zeros(ASSETS)

    def __call__(self, account: BacktestAccount) -> Tensor:
        """Action `[1, N]`."""
        price = account.market.close[account.bar].numpy()
        held = account.held
        cash = account.equity - float((held * price).sum())
        technical = account.market.features[account.bar].flatten().numpy() * 2**-7
        state = np.hstack(
            (cash * 2**-12, 0.0, 0.0, price * 2**-6, held * 2**-6, self.idle, technical)
        )
        action = np.clip(self.act(state.astype(np.float32)), -1, 1)
        self.idle = np.where(
            np.abs(action * THEIRS.max_shares).astype(int) > 10, 0.0, self.idle + 1
        )
        return torch.as_tensor(action, dtype=torch.float32).unsqueeze(0)


def train_sb3(seed: int, seconds: float) -> list[dict[str, float]]:
    """Stable-Baselines3's PPO as FinRL runs it."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    training, validation = windows(seed)
    model = PPO("MlpPolicy", finrl_env(training), seed=seed, device="cpu", **FINRL_PPO)
    referee = Referee(validation, THEIRS, seconds, clock=time.perf_counter)

    def decide() -> FinrlPolicy:
        return FinrlPolicy(lambda state: np.asarray(model.predict(state, deterministic=True)[0]))

    class Look(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            referee.look(self.num_timesteps, decide)
            return True

    referee.start()
    with contextlib.suppress(OutOfTime):
        model.learn(1 << 40, callback=Look())
    return referee.curve


def train_rllib(seed: int, seconds: float) -> list[dict[str, float]]:
    """RLlib's PPO with its defaults, one process that samples and one that learns."""
    import logging

    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.tune.registry import register_env

    training, validation = windows(seed)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    register_env("finrl", lambda _: finrl_env(training))
    config = (
        PPOConfig()
        .environment("finrl")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=4, rollout_fragment_length="auto")
        .debugging(seed=seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    referee = Referee(validation, THEIRS, seconds, clock=time.perf_counter)

    def act(state: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            module = algorithm.get_module()
            out = module.forward_inference({"obs": torch.as_tensor(state).unsqueeze(0)})[
                "action_dist_inputs"
            ]
        mean: np.ndarray = out[0, :ASSETS].numpy()
        return mean

    referee.start()
    steps = 0
    with contextlib.suppress(OutOfTime):
        while True:
            found = algorithm.train()
            steps = int(found.get("num_env_steps_sampled_lifetime") or steps)
            referee.look(steps, lambda: FinrlPolicy(act))
    algorithm.stop()
    ray.shutdown()
    return referee.curve
