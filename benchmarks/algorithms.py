"""Our PPO, SAC, TD3 and DDPG beside Stable-Baselines3's, on two classic environments, with equal
budgets of env-steps.

    python -m benchmarks.algorithms [--algo sac ...] [--env Pendulum-v1 ...] [--seeds 5] [--fresh]
    [--save]

Every training is a process with one thread; ours and theirs alternate. Stable-Baselines3
2.9.2 is put into `.venv-bench` and runs with the same torch, gymnasium and
MuJoCo. It has the settings of its zoo (https://github.com/DLR-RM/rl-baselines3-zoo) but for
`learning_starts`, which is its default of 100 since the zoo's 10,000 would outlast these budgets;
ours were chosen on seeds from 100 on, which are not reported. All stand in algorithms.yaml. Each
side has its own networks, batches and replay.

Policies are compared by the mean return of ten deterministic episodes, the same for both, at twenty
points of the budget; the clock stops meanwhile. *Return* is the mean over the last four points.
*Time to the same return* is the first point from which on the mean of three points in a row is at
least the level: 95 % of the way from the first point of Stable-Baselines3 to its final return, both
means over its seeds. Finished trainings are in `runs/benchmarks`; `--fresh` measures them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._bench import (
    FinishedRuns,
    Values,
    call_in_child,
    install_peer,
    list_seeds,
    read_arguments,
)
from benchmarks._train_peers import SB3
from fintrader.config import read_yaml
from tests.engines.tiny import agent_settings

ALGOS = ["ppo", "sac", "td3", "ddpg"]
POINTS = 20
EPISODES = 10
Act = Callable[[np.ndarray], np.ndarray]
"""Raw observations `[B, D]` to actions within the environment's bounds, deterministic."""
Curve = list[dict[str, float]]

SETTINGS = read_yaml(Path(__file__).with_suffix(".yaml"))
"""Side, environment and algorithm -> settings; and `budgets`, env-steps."""


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


def train_ours(env_id: str, algo: str, seed: int) -> Values:
    """The curve of one training with `fintrader.agents`."""
    from fintrader.agents import Budget, make_agent, train
    from fintrader.envs.classic import WorkerEnv
    from fintrader.envs.settings import GymnasiumSettings

    given = dict(SETTINGS["ours"][env_id][algo])
    worker = GymnasiumSettings(id=env_id, num_envs=given.pop("num_envs"), workers="sync")
    env = WorkerEnv.make(worker, seed=seed)
    agent = make_agent(agent_settings(algo, given), env.layout, seed=seed)
    budget = SETTINGS["budgets"][env_id][algo]
    referee = Referee(env_id, budget)
    space = env.env.single_action_space
    low, high = space.low, space.high  # type: ignore[attr-defined]

    @torch.no_grad()
    def act(obs: np.ndarray) -> np.ndarray:
        unit = agent.policy(torch.as_tensor(obs, dtype=torch.float32)).numpy()
        return low + (unit + 1) / 2 * (high - low)

    referee.start()
    train(
        agent,
        env,
        Budget(env_steps=budget),
        on_progress=lambda progress: referee.look(progress.env_steps, act),
    )
    return {"curve": referee.curve}


def train_theirs(env_id: str, algo: str, seed: int) -> Values:
    """The curve of one training with Stable-Baselines3."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    given = dict(SETTINGS["theirs"][env_id][algo])
    budget = SETTINGS["budgets"][env_id][algo]
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
    return {"curve": referee.curve}


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


def compare(sides: dict[str, list[Curve]]) -> Values:
    """The figures of one algorithm in one environment; the lists of `ours` and `theirs` run over
    the seeds."""
    figures = {}
    means = {}
    for side, curves in sides.items():
        returns = [final_return(curve) for curve in curves]
        means[side] = float(np.mean(returns))
        figures[f"return_{side}"] = returns
        figures[f"return_{side}_mean"] = means[side]
    first = float(np.mean([curve[0]["return"] for curve in sides["theirs"]]))
    level = first + 0.95 * (means["theirs"] - first)
    figures |= {"not_below": means["ours"] >= means["theirs"], "level": level}
    medians = {}
    arrived = {}
    for side, curves in sides.items():
        seconds = [seconds_to(level, curve) for curve in curves]
        known = [value for value in seconds if value is not None]
        figures[f"cpu_s_to_level_{side}"] = seconds
        arrived[side] = len(known)
        # A seed that never got there counts with infinity: the median stays honest while most did.
        medians[side] = np.median(known + [np.inf] * (len(seconds) - len(known)))
    figures["seeds_that_got_there"] = arrived
    is_known = np.isfinite([*medians.values()]).all()
    ratio = medians["ours"] / medians["theirs"] if is_known else None
    return {**figures, "cpu_s_ratio": ratio}


def main() -> None:
    """Run, print a line for each pair of trainings, end with one JSON object."""
    budgets = SETTINGS["budgets"]
    options = read_arguments(__doc__, seed=0, algo=ALGOS, env=list(budgets), seeds=5, fresh=False)
    sides = {"theirs": (train_theirs, [install_peer(*SB3)]), "ours": (train_ours, [])}
    finished = FinishedRuns("algorithms", options)
    curves = {}
    for seed, env_id, algo in product(list_seeds(options), options.env, options.algo):
        for side, (train_side, paths) in sides.items():
            own = {**SETTINGS[side][env_id][algo], "budget": budgets[env_id][algo], "peer": SB3}
            work = partial(call_in_child, train_side, env_id, algo, seed, paths=paths)
            curve = finished.get(f"{side}-{algo}-{env_id}-{seed}", own, work)["curve"]
            curves.setdefault(f"{algo}_{env_id}", {}).setdefault(side, []).append(curve)
    record = {"figures": {name: compare(found) for name, found in curves.items()}}
    record |= {"peer": "==".join(SB3), "budgets": budgets, "seeds": options.seeds}
    finished.finish(record)


if __name__ == "__main__":
    main()
