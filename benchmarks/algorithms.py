"""Our PPO, SAC, TD3 and DDPG beside Stable-Baselines3's, on two classic environments, with equal
budgets of env-steps.

    python benchmarks/algorithms.py [--algo sac ...] [--env Pendulum-v1 ...] [--seeds 5] [--fresh]
    [--save]

Every training is a process with one thread; ours and theirs alternate. Stable-Baselines3
2.9.2 is put into `.venv-bench` and runs with the same torch, gymnasium and
MuJoCo. It has the settings of its zoo (https://github.com/DLR-RM/rl-baselines3-zoo) but for
`learning_starts`, which is its default of 100 since the zoo's 10,000 would outlast these budgets;
ours stand below, chosen on seeds from 100 on, which are not reported. Each side has its own
networks, batches and replay.

Policies are compared by the mean return of ten deterministic episodes, the same for both, at twenty
points of the budget; the clock stops meanwhile. *Return* is the mean over the last four points.
*Time to the same return* is the first point from which on the mean of three points in a row is at
least the level: 95 % of the way from the first point of Stable-Baselines3 to its final return, both
means over its seeds. Finished trainings are in `runs/benchmarks`; `--fresh` measures them again.
`--one SIDE,ENV,ALGO,SEED`: the curve of one training.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._bench import FinishedRuns, finish, install_peer, read_arguments, run_child
from benchmarks._train_peers import SB3
from tests.engines.tiny import agent_settings

ALGOS = ["ppo", "sac", "td3", "ddpg"]
POINTS = 20
EPISODES = 10
Act = Callable[[np.ndarray], np.ndarray]
"""Raw observations `[B, D]` to actions within the environment's bounds, deterministic."""
Curve = list[dict[str, float]]

BUDGETS = {
    "Pendulum-v1": {"ppo": 100_000, "sac": 5_000, "td3": 5_000, "ddpg": 5_000},
    "InvertedDoublePendulum-v5": {"ppo": 100_000, "sac": 10_000, "td3": 10_000, "ddpg": 10_000},
}
"""Env-steps."""

_DETERMINISTIC = {
    "noise": 0.1,
    "policy_kwargs": {"net_arch": [400, 300]},
    "learning_rate": 1e-3,
    "buffer_size": 200_000,
}
THEIRS = {
    "Pendulum-v1": {
        "ppo": {
            "num_envs": 4,
            "n_steps": 1024,
            "gamma": 0.9,
            "learning_rate": 1e-3,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        "sac": {"learning_rate": 1e-3},
        "td3": {**_DETERMINISTIC, "gamma": 0.98},
        "ddpg": {**_DETERMINISTIC, "gamma": 0.98},
    },
    "InvertedDoublePendulum-v5": {
        "ppo": {
            "normalise": True,
            "batch_size": 64,
            "n_steps": 512,
            "gamma": 0.98,
            "learning_rate": 2.0633e-05,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.92,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
            "policy_kwargs": {
                "log_std_init": -2,
                "ortho_init": False,
                "activation_fn": "relu",
                "net_arch": {"pi": [256, 256], "vf": [256, 256]},
            },
        },
        "sac": {},
        "td3": _DETERMINISTIC,
        "ddpg": _DETERMINISTIC,
    },
}
_OFF = {
    "num_envs": 4,
    "network": {"hidden": [64, 64], "layer_norm": False},
    "gamma": 0.98,
    "learning_rate": 1e-3,
    "batch_size": 256,
    "learning_starts": 200,
    "updates_per_step": 4.0,
    "tau": 0.01,
    "noise": 0.1,
    "saturation_coef": 1e-3,
}
_SOFT = {**_OFF, "target_entropy": -1.0, "noise": 0.5}
_SURE = {**_OFF, "anneal": True}
_TWIN = {**_SURE, "noise": 0.3, "updates_per_step": 8.0}
_ON = {
    "num_envs": 16,
    "network": {"hidden": [64, 64], "activation": "tanh"},
    "num_steps": 64,
    "update_epochs": 10,
    "num_minibatches": 8,
    "learning_rate": 1e-3,
    "anneal": True,
}
_LONG = {"gamma": 0.99, "learning_starts": 500, "saturation_coef": 0.0}
OURS = {
    "Pendulum-v1": {
        "ppo": {
            **_ON,
            "gamma": 0.9,
            "num_steps": 128,
            "num_minibatches": 16,
            "noise": 1.0,
            "normalise": ["rewards"],
        },
        "sac": {**_SOFT, "gamma": 0.95},
        "td3": _TWIN,
        "ddpg": _SURE,
    },
    "InvertedDoublePendulum-v5": {
        "ppo": {**_ON, "gamma": 0.98, "noise": 0.4},
        "sac": {**_SOFT, **_LONG},
        "td3": {**_TWIN, **_LONG, "noise": 0.1},
        "ddpg": {**_SURE, **_LONG},
    },
}


class Referee:
    """Judges policies on ten fixed episodes, and keeps the clock of the training that it
    interrupts."""

    def __init__(self, env_id: str, budget: int) -> None:
        import gymnasium
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        def one() -> gymnasium.Env[Any, Any]:
            return gymnasium.make(env_id)

        self.env = SyncVectorEnv([one] * EPISODES, autoreset_mode=AutoresetMode.SAME_STEP)
        self.marks = [budget * (k + 1) // POINTS for k in range(POINTS)]
        self.curve: Curve = []
        self.start()

    def start(self) -> None:
        """Set the clock to zero."""
        self.cpu = time.process_time()

    def look(self, env_steps: int, act: Act) -> None:
        """Evaluate if a point of the budget is reached."""
        if not self.marks or env_steps < self.marks[0]:
            return
        cpu = time.process_time()
        while self.marks and env_steps >= self.marks[0]:
            self.marks.pop(0)
        point = {"env_steps": env_steps, "cpu_s": round(cpu - self.cpu, 3)}
        self.curve.append({**point, "return": round(self.mean_return(act), 2)})
        self.cpu += time.process_time() - cpu

    def mean_return(self, act: Act) -> float:
        """Mean over the first episode of each copy, always the same starts."""
        obs, _ = self.env.reset(seed=90_000)
        total = np.zeros(EPISODES)
        alive = np.ones(EPISODES, dtype=bool)
        while alive.any():
            obs, reward, terminated, truncated, _ = self.env.step(act(np.asarray(obs)))
            total += np.where(alive, reward, 0.0)
            alive &= ~(terminated | truncated)
        return float(total.mean())


def train_ours(env_id: str, algo: str, seed: int) -> Curve:
    """The curve of one training with `fintrader.agents`."""
    from fintrader.agents import Budget, TrainProgress, make_agent, train
    from fintrader.envs.classic import WorkerEnv
    from fintrader.envs.settings import GymnasiumSettings

    given = dict(OURS[env_id][algo])
    worker = GymnasiumSettings(id=env_id, num_envs=given.pop("num_envs"), workers="sync")
    env = WorkerEnv.make(worker, seed=seed)
    agent = make_agent(agent_settings(algo, given), env.layout, seed=seed)
    budget = BUDGETS[env_id][algo]
    referee = Referee(env_id, budget)
    space = env.env.single_action_space
    low, high = space.low, space.high  # type: ignore[attr-defined]

    @torch.no_grad()
    def act(obs: np.ndarray) -> np.ndarray:
        unit = agent.policy(torch.as_tensor(obs, dtype=torch.float32)).numpy()
        return low + (unit + 1) / 2 * (high - low)

    def on_progress(progress: TrainProgress) -> None:
        referee.look(progress.env_steps, act)

    referee.start()
    train(agent, env, Budget(env_steps=budget), on_progress=on_progress)
    return referee.curve


def train_theirs(env_id: str, algo: str, seed: int) -> Curve:
    """The curve of one training with Stable-Baselines3."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    given = dict(THEIRS[env_id][algo])
    budget = BUDGETS[env_id][algo]
    env = make_vec_env(env_id, n_envs=given.pop("num_envs", 1), seed=seed)
    if given.pop("normalise", False):
        env = VecNormalize(env, gamma=given["gamma"])
    if "noise" in given:
        width = env.action_space.shape[0]
        given["action_noise"] = NormalActionNoise(
            np.zeros(width), given.pop("noise") * np.ones(width)
        )
    network = dict(given.pop("policy_kwargs", {}))
    if network.get("activation_fn") == "relu":
        network["activation_fn"] = torch.nn.ReLU
    kind = {"ppo": sb3.PPO, "sac": sb3.SAC, "td3": sb3.TD3, "ddpg": sb3.DDPG}[algo]
    model = kind("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=network or None, **given)
    referee = Referee(env_id, budget)

    def act(obs: np.ndarray) -> np.ndarray:
        rows = env.normalize_obs(obs) if isinstance(env, VecNormalize) else obs
        return model.predict(rows, deterministic=True)[0]

    class Look(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            referee.look(self.num_timesteps, act)
            return True

    referee.start()
    model.learn(budget, callback=Look())
    referee.look(budget, act)
    return referee.curve


def final_return(curve: Curve) -> float:
    """Mean over the last fifth of the points."""
    return float(np.mean([point["return"] for point in curve[-(POINTS // 5) :]]))


def seconds_to(level: float, curve: Curve) -> float | None:
    """CPU seconds to the first point from which on three in a row have at least `level` on average;
    None: never."""
    returns = [point["return"] for point in curve]
    for k in range(len(curve) - 2):
        if returns[k] >= level and np.mean(returns[k : k + 3]) >= level:
            return curve[k]["cpu_s"]
    return None


def compare(ours: list[Curve], theirs: list[Curve]) -> dict[str, Any]:
    """The figures of one algorithm in one environment; lists run over the seeds."""
    mine = [final_return(curve) for curve in ours]
    others = [final_return(curve) for curve in theirs]
    first = float(np.mean([curve[0]["return"] for curve in theirs]))
    level = first + 0.95 * (float(np.mean(others)) - first)
    figures = {
        "return_ours": [round(value, 1) for value in mine],
        "return_theirs": [round(value, 1) for value in others],
        "return_ours_mean": round(float(np.mean(mine)), 1),
        "return_theirs_mean": round(float(np.mean(others)), 1),
        "not_below": bool(np.mean(mine) >= np.mean(others)),
        "level": round(level, 1),
    }
    a, b = ([seconds_to(level, curve) for curve in side] for side in (ours, theirs))
    figures |= {"cpu_s_to_level_ours": a, "cpu_s_to_level_theirs": b}
    figures["seeds_that_got_there"] = {
        side: sum(value is not None for value in seconds)
        for side, seconds in (("ours", a), ("theirs", b))
    }
    # A seed that never got there counts with infinity: the median stays honest while most did.
    mine, others = (
        float(np.median([np.inf if value is None else value for value in side])) for side in (a, b)
    )
    known = np.isfinite((mine, others)).all()
    figures["cpu_s_ratio"] = round(mine / others, 3) if known else None
    return figures


def main() -> None:
    """Run, print a line for each pair of trainings, end with one JSON object."""
    options = read_arguments(__doc__, algo=ALGOS, env=list(BUDGETS), seeds=5, fresh=False, one=str)
    torch.set_num_threads(1)
    if options.one:
        side, env_id, algo, seed = options.one.split(",")
        print(json.dumps((train_ours if side == "ours" else train_theirs)(env_id, algo, int(seed))))
        return
    paths = {"theirs": [install_peer(*SB3)], "ours": []}
    finished = FinishedRuns("algorithms", fresh=options.fresh)
    curves: dict[tuple[str, str, str], list[Curve]] = {}
    trainings = [
        (side, env_id, algo, seed)
        for seed in range(options.seed, options.seed + options.seeds)
        for env_id in options.env
        for algo in options.algo
        for side in paths
    ]
    for side, env_id, algo, seed in trainings:
        settings = (THEIRS if side == "theirs" else OURS)[env_id][algo]
        words = [__file__, "--one", f"{side},{env_id},{algo},{seed}"]
        record = finished.get(
            f"{side}-{algo}-{env_id}-{seed}",
            {**settings, "budget": BUDGETS[env_id][algo], "peer": SB3},
            lambda words=words, side=side: {"curve": run_child(words, paths=paths[side])},  # type: ignore[misc]
        )
        curves.setdefault((side, env_id, algo), []).append(record["curve"])
    figures = {
        f"{algo}_{env_id}": compare(curves["ours", env_id, algo], curves["theirs", env_id, algo])
        for env_id in options.env
        for algo in options.algo
    }
    record = {"figures": figures, "peer": "==".join(SB3), "budgets": BUDGETS}
    record |= {"seeds": options.seeds, "commits": sorted(finished.commits)}
    finish("algorithms", record, options)


if __name__ == "__main__":
    main()
