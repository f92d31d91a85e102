"""How long until a policy earns a given return where it was not trained: ours beside SB3's and RLlib's PPO.

    python benchmarks/time_to_return.py [--side ppo apg sb3 rllib] [--seeds 3] [--seconds 180] [--save]

ElegantRL-Podracer's own measure, on a minute market with a planted signal: ten stocks whose drift has a sign that
lasts 200 minutes on average and is shown among noise. Fills are at the next close and cost 10 bps for everyone.
`ppo` and `apg` train in `TradingEnv`; `sb3` is Stable-Baselines3's PPO with FinRL's parameters in FinRL's numpy
environment (`finrl==0.3.7`), `rllib` RLlib's PPO in the same, from an environment of its own (`make test-adapters`
builds `.venv-rllib`; `--rllib-python` names another). All may use the machine's cores as they please.

Every policy is judged by the same code: one account of a million dollars in `fintrader.backtesting.simulate` over
five sessions that nobody trained on. The clock (wall) starts with training and stops while a policy is judged.
Thresholds are 10, 25, 50 and 75 % of the log return of a rule that is told the signal and holds equal weights of
whatever it says will rise. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import finish  # noqa: E402
from benchmarks.resume import Records  # noqa: E402
from fintrader.backtesting.account import BacktestAccount  # noqa: E402
from fintrader.backtesting.simulate import open_account, trade  # noqa: E402
from fintrader.data.tensors import MarketTensors  # noqa: E402
from fintrader.envs import EnvSettings, TradingEnv  # noqa: E402

ASSETS, SESSION, TRAIN, VALIDATION = 10, 390, 30, 5
DRIFT, VOLATILITY, REGIME, NOISE_FEATURES = 2e-4, 8e-4, 200, 2
MINUTE_NS = 60_000_000_000
SHARES_OF_RULE = (0.10, 0.25, 0.50, 0.75)
MARKS = [round(0.5 * 1.3**k, 2) for k in range(30)]
"""Seconds of training at which a policy is judged."""
OURS = EnvSettings(num_envs=64, episode_bars=390, fill="next_close", cost_bps=10)
THEIRS = EnvSettings(action="trade", max_shares=100, dead_band=0.1, fill="next_close", cost_bps=10)
"""FinRL's orders: up to 100 shares a stock and minute, none below 10 %."""
AGENTS: dict[str, dict[str, Any]] = {"ppo": {}, "apg": {}}
FINRL_PPO = {"n_steps": 2048, "ent_coef": 0.01, "learning_rate": 0.00025, "batch_size": 64}
"""finrl/agents/stablebaselines3/models.py and config.py."""


def planted_market(seed: int) -> MarketTensors:
    """Row t's first feature is the sign of the drift from bar t to bar t + 1; the others are noise."""
    rng = np.random.default_rng(seed)
    bars = SESSION * (TRAIN + VALIDATION)
    flips = rng.random((bars + 1, ASSETS)) < 1.0 / REGIME
    sign = rng.choice([-1.0, 1.0], size=ASSETS) * np.where(np.cumsum(flips, axis=0) % 2 == 0, 1.0, -1.0)
    own, common = rng.normal(0, 0.8, (bars, ASSETS)), rng.normal(0, 0.6, (bars, 1))
    close = 100 * np.exp(np.cumsum(DRIFT * sign[:-1] + VOLATILITY * (own + common), axis=0))
    features = np.concatenate([sign[1:, :, None], rng.normal(size=(bars, ASSETS, NOISE_FEATURES))], axis=2)
    ones = torch.ones(bars, ASSETS, dtype=torch.bool)
    session = torch.arange(bars) // SESSION
    prices = torch.tensor(close, dtype=torch.float32)
    return MarketTensors(
        open=prices,
        close=prices,
        volume=torch.full_like(prices, 1e9),
        features=torch.tensor(features, dtype=torch.float32),
        context=torch.zeros(bars, 0),
        tradable=ones,
        member=ones,
        session=session,
        minutes=MINUTE_NS * (session * 1440 + torch.arange(bars) % SESSION),
        benchmark=torch.tensor(close.mean(axis=1)),
        symbols=tuple(f"P{n}" for n in range(ASSETS)),
        feature_names=("signal", *(f"noise{k}" for k in range(NOISE_FEATURES))),
        context_names=(),
    )


def windows(seed: int) -> tuple[MarketTensors, MarketTensors]:
    """Training and validation."""
    market, cut = planted_market(seed), SESSION * TRAIN
    return market.window(0, cut), market.window(cut, market.num_bars)


def log_return(decide: Callable[[BacktestAccount], Tensor], market: MarketTensors, settings: EnvSettings) -> float:
    """Of one account over the whole window."""
    equity = np.asarray(trade(decide, open_account(market, settings, "judged"), name="judged").equity)
    return math.log(equity[-1] / equity[0])


def rule(account: BacktestAccount) -> Tensor:
    """Equal weights of what will rise, for one who knows which column tells."""
    rising = (account.market.features[account.bar, :, 0] > 0).float()
    return (rising / rising.sum().clamp_min(1)).unsqueeze(0)


class OutOfTime(Exception):
    """The seconds are used up."""


class Referee:
    """Judges a policy at each mark; its own time does not count."""

    def __init__(self, market: MarketTensors, settings: EnvSettings, seconds: float) -> None:
        self.market, self.settings = market, settings
        self.marks = [mark for mark in MARKS if mark < seconds] + [seconds]
        self.curve: list[dict[str, float]] = []
        self.begun = time.perf_counter()

    def look(self, env_steps: int, decide: Callable[[], Callable[[BacktestAccount], Tensor]]) -> None:
        """Raises OutOfTime after the last mark. `decide` makes a fresh policy: some have a memory."""
        now = time.perf_counter()
        if now - self.begun < self.marks[0]:
            return
        used = now - self.begun
        self.marks = [mark for mark in self.marks if mark > used]
        earned = log_return(decide(), self.market, self.settings)
        self.curve.append({"seconds": round(used, 2), "env_steps": env_steps, "log_return": round(earned, 5)})
        self.begun += time.perf_counter() - now
        if not self.marks:
            raise OutOfTime


# --- ours --------------------------------------------------------------------------------------------------


def train_ours(algo: str, seed: int, seconds: float) -> list[dict[str, float]]:
    """With the defaults of its settings."""
    from pydantic import TypeAdapter

    from fintrader.agents import AgentSettings, Budget, TrainProgress, make_agent, train

    training, validation = windows(seed)
    env = TradingEnv(training, OURS, seed=seed)
    agent = make_agent(
        TypeAdapter(AgentSettings).validate_python({"algo": algo, **AGENTS[algo]}), env.layout, seed=seed
    )

    def decide() -> Callable[[BacktestAccount], Tensor]:
        return lambda account: agent.policy(account.observe())

    def on_progress(progress: TrainProgress) -> None:
        referee.look(progress.env_steps, decide)

    referee = Referee(validation, OURS, seconds)
    with contextlib.suppress(OutOfTime):
        train(agent, env, Budget(seconds=100 * seconds), on_progress=on_progress)
    return referee.curve


# --- theirs ------------------------------------------------------------------------------------------------


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
    """A policy for FinRL's states in our account: writes the state as `StockTradingEnv.get_state` does."""

    def __init__(self, act: Callable[[np.ndarray], np.ndarray]) -> None:
        self.act, self.idle = act, np.zeros(ASSETS)

    def __call__(self, account: BacktestAccount) -> Tensor:
        """Action `[1, N]`."""
        price, held = account.market.close[account.bar].numpy(), account.held
        cash = account.equity - float((held * price).sum())
        technical = account.market.features[account.bar].flatten().numpy() * 2**-7
        state = np.hstack((cash * 2**-12, 0.0, 0.0, price * 2**-6, held * 2**-6, self.idle, technical))
        action = np.clip(self.act(state.astype(np.float32)), -1, 1)
        self.idle = np.where(np.abs(action * THEIRS.max_shares).astype(int) > 10, 0.0, self.idle + 1)
        return torch.as_tensor(action, dtype=torch.float32).unsqueeze(0)


def train_sb3(seed: int, seconds: float) -> list[dict[str, float]]:
    """Stable-Baselines3's PPO as FinRL runs it."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    training, validation = windows(seed)
    model = PPO("MlpPolicy", finrl_env(training), seed=seed, device="cpu", **FINRL_PPO)
    referee = Referee(validation, THEIRS, seconds)

    def decide() -> FinrlPolicy:
        return FinrlPolicy(lambda state: np.asarray(model.predict(state, deterministic=True)[0]))

    class Look(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            referee.look(self.num_timesteps, decide)
            return True

    referee.begun = time.perf_counter()
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
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    register_env("finrl", lambda _: finrl_env(training))
    config = (
        PPOConfig()
        .environment("finrl")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=4, rollout_fragment_length="auto")
        .debugging(seed=seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    referee = Referee(validation, THEIRS, seconds)

    def act(state: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            module = algorithm.get_module()
            out = module.forward_inference({"obs": torch.as_tensor(state).unsqueeze(0)})["action_dist_inputs"]
        mean: np.ndarray = out[0, :ASSETS].numpy()
        return mean

    referee.begun = time.perf_counter()
    steps = 0
    with contextlib.suppress(OutOfTime):
        while True:
            found = algorithm.train()
            steps = int(found.get("num_env_steps_sampled_lifetime") or steps)
            referee.look(steps, lambda: FinrlPolicy(act))
    algorithm.stop()
    ray.shutdown()
    return referee.curve


# --- comparing ---------------------------------------------------------------------------------------------


def in_process(side: str, seed: int, seconds: float, python: str) -> dict[str, Any]:
    """One training in a process of its own; RLlib's in an interpreter of its own."""
    from benchmarks.algorithms import peer_folder

    paths = [str(ROOT)]
    if side == "sb3":
        peer = peer_folder()
        if peer is None:
            raise SystemExit("stable-baselines3 is needed: run where `pip` reaches a package index")
        paths.append(str(peer))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    command = [python, __file__, "--one", side, str(seed), str(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} seed {seed} failed:\n{done.stderr[-2000:]}")
    return {"curve": json.loads(done.stdout.strip().splitlines()[-1])}


def seconds_to(level: float, curve: list[dict[str, float]]) -> float | None:
    """When the log return first passed; None: never."""
    return next((point["seconds"] for point in curve if point["log_return"] >= level), None)


def compare(curves: dict[str, list[list[dict[str, float]]]], goals: list[float], seconds: float) -> dict[str, Any]:
    """Median seconds of each side to each threshold; a side that never passed counts with the whole time."""
    figures: dict[str, Any] = {}
    medians: dict[str, dict[float, float]] = {}
    for side, runs in curves.items():
        for part in SHARES_OF_RULE:
            found = [seconds_to(part * goal, curve) for curve, goal in zip(runs, goals, strict=True)]
            median = float(np.median([seconds if value is None else value for value in found]))
            medians.setdefault(side, {})[part] = median
            figures[f"{side}_seconds_to_{part:.0%}"] = {"seeds": found, "median": round(median, 2)}
        pairs = list(zip(runs, goals, strict=True))
        figures[f"{side}_best_share"] = [round(max(p["log_return"] for p in curve) / goal, 3) for curve, goal in pairs]
        figures[f"{side}_last_share"] = [round(curve[-1]["log_return"] / goal, 3) for curve, goal in pairs]
    for ours in ("ppo", "apg"):
        for theirs in ("sb3", "rllib"):
            if ours in medians and theirs in medians:
                figures[f"{ours}_times_faster_than_{theirs}"] = {
                    f"{part:.0%}": round(medians[theirs][part] / medians[ours][part], 1) for part in SHARES_OF_RULE
                }
    return figures


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides = ["ppo", "apg", "sb3", "rllib"]
    parser.add_argument("--side", nargs="+", default=sides, choices=sides)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=180.0, help="of the peers; ours get a sixth")
    parser.add_argument("--rllib-python", default=str(ROOT / ".venv-rllib" / "bin" / "python"))
    parser.add_argument("--fresh", action="store_true", help="measure again what is already in runs/benchmarks")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "SEED", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, seed, seconds = options.one[0], int(options.one[1]), float(options.one[2])
        trainers = {"sb3": train_sb3, "rllib": train_rllib}
        curve = trainers[side](seed, seconds) if side in trainers else train_ours(side, seed, seconds)
        print(json.dumps(curve))
        return
    if "rllib" in options.side and not Path(options.rllib_python).exists():
        print(f"no RLlib at {options.rllib_python}: left out (`make test-adapters` builds it)", file=sys.stderr)
        options.side.remove("rllib")
    records = Records("time_to_return", fresh=options.fresh)
    curves: dict[str, list[list[dict[str, float]]]] = {side: [] for side in options.side}
    goals = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        goals.append(log_return(rule, windows(seed)[1], OURS))
        for side in options.side:
            seconds = options.seconds if side in ("sb3", "rllib") else options.seconds / 6
            python = options.rllib_python if side == "rllib" else sys.executable
            record = records.get(
                f"{side}-{seed}",
                {
                    "seconds": seconds,
                    "marks": MARKS,
                    "finrl_ppo": FINRL_PPO,
                    "agents": AGENTS,
                    "ours": OURS.model_dump(mode="json"),
                    "theirs": THEIRS.model_dump(mode="json"),
                    "market": (ASSETS, SESSION, TRAIN, VALIDATION, DRIFT, VOLATILITY, REGIME, NOISE_FEATURES),
                },
                lambda side=side, seed=seed, seconds=seconds, python=python: in_process(  # type: ignore[misc]
                    side, seed, seconds, python
                ),
            )
            curves[side].append(record["curve"])
            best = max(point["log_return"] for point in record["curve"])
            times = [seconds_to(part * goals[-1], record["curve"]) for part in SHARES_OF_RULE]
            print(
                f"{side:5} seed {seed}: best {best / goals[-1]:6.1%} of the rule, thresholds at {times} s", flush=True
            )
    finish(
        "time_to_return",
        {
            "figures": compare(curves, goals, options.seconds),
            "rule_log_return": [round(goal, 4) for goal in goals],
            "seconds": options.seconds,
            "curves": curves,
            "commits": sorted(records.commits),
        },
        seed=options.first_seed,
        save=options.save,
    )


if __name__ == "__main__":
    main()
