"""How far agents go from the best rule with one parameter to the optimum, in tasks that have one.

    python -m benchmarks.tasks [--task liquidation ...] [--algo ppo ...] [--seeds 5]
                               [--env-steps 1000000] [--fresh] [--save]

The tasks are `configs/tasks/*.yaml`. PPO has the settings of their `agent`, which are the same in
all; other agents share its head, discount, annealing and end of an episode, and have further
settings (`FURTHER`) that are the same in all tasks, and defaults for the rest. APG plays whole
episodes, so that it needs no value of what follows. `sb3` is
Stable-Baselines3's PPO with PPO's settings, head and network, in the same environment. `ridge`,
where there are signals, is a ridge regression of the next bar's return on them, fitted on the
training market and traded at the best rule's rate. The optimum J* and the worth of the rule J_rule
are those of a dynamic programme on the environment's own rules (tests/oracles/task_optima.py). An
agent's worth J is the mean reward of episodes on a market of another seed, less what the bars'
surprises made of its weights, whose mean is 0. *Closed* is (J - J_rule) / (J* - J_rule): 0 for the
rule, 1 for the optimum. One thread each; finished trainings are in `runs/benchmarks`.
"""

from __future__ import annotations

import math
import time
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

import fintrader
from benchmarks._bench import FinishedRuns, Values, list_seeds, read_arguments
from fintrader.agents import PPO
from fintrader.agents.agent import choose_agent
from fintrader.agents.heads import ActionHead
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import FintraderError
from tests.oracles.task_optima import evaluate
from tests.oracles.task_runs import (
    FOLDER,
    TASKS,
    Policy,
    find_worths,
    list_rules,
    load_task,
    open_task,
    play,
    read_task,
    start_value,
)

EPISODES = 20_000
OTHER_SEED = 1001
"""Of the market that worths are measured on."""
SHARED = ("head", "gamma", "bootstrap", "anneal")
"""Settings that other agents take from the tasks' `agent`."""
FURTHER: dict[str, Values] = {"apg": {"learning_rate": 0.02, "bootstrap": False, "gamma": 1.0}}
"""Further settings of other agents, the same in all tasks."""
APG_ACCOUNTS = 64
"""Of APG, which takes one Adam step an update: with more accounts, a million decisions are too few
updates."""
RIDGE_PENALTY = 1.0
"""On coefficients of standardised features: small next to the number of bars."""


def learn(name: str, algo: str, *, seed: int, env_steps: int) -> Values:
    """Train one agent and measure its worth, in basis points an episode."""
    config = load_task(name)
    market = fintrader.load_market(FOLDER / f"{name}.yaml")
    rules = EnvSettings(**dict(config.env))
    further = FURTHER.get(algo, {})
    if algo == "apg":
        rules = rules.model_copy(update={"start_groups": APG_ACCOUNTS})
        further = {**further, "num_steps": rules.episode_bars}
    accounts = APG_ACCOUNTS if algo == "apg" else None
    env = TradingEnv(market, rules, num_envs=accounts, seed=seed)
    agent = config.agents[0]
    began = time.process_time()
    try:
        if algo == "sb3":
            policy = train_sb3(env, agent, env_steps, seed)
        else:
            if algo != "ppo":
                shared = {name: getattr(agent, name) for name in SHARED}
                agent = choose_agent(algo).model_copy(update=shared | further)
            policy = fintrader.train(agent, env, env_steps=env_steps, seed=seed).policy
    except FintraderError as error:
        return {"task": name, "algo": algo, "seed": seed, "refused": str(error)}
    seconds = time.process_time() - began
    earned = play(policy, open_task(name, 512, OTHER_SEED), config, EPISODES)
    return {
        "task": name,
        "algo": algo,
        "seed": seed,
        "worth_bps": 1e4 * float(earned.mean()),
        "cpu_seconds": seconds,
    }


def train_sb3(env: TradingEnv, settings: PPO, env_steps: int, seed: int) -> Policy:
    """Train Stable-Baselines3's PPO with our settings on the latents of our head."""
    from stable_baselines3 import PPO as Sb3PPO
    from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

    from fintrader.envs.adapters.sb3 import Sb3VecEnv

    head = ActionHead(env.layout, settings.head)

    def decode(obs: Any, latent: Any) -> torch.Tensor:
        return head.decode(torch.as_tensor(obs), torch.as_tensor(latent))

    class Decoded(VecEnvWrapper):
        """Takes latents for actions."""

        def __init__(self) -> None:
            space = gymnasium.spaces.Box(-10.0, 10.0, (head.latents,), np.float32)
            super().__init__(Sb3VecEnv(env), action_space=space)

        def reset(self) -> Any:
            self.obs = self.venv.reset()
            return self.obs

        def step_async(self, actions: Any) -> None:
            self.venv.step_async(decode(self.obs, actions).numpy())

        def step_wait(self) -> Any:
            self.obs, rewards, done, infos = self.venv.step_wait()
            if settings.bootstrap is not True:
                infos = [info | {"TimeLimit.truncated": False} for info in infos]
            return self.obs, rewards, done, infos

    accounts = VecNormalize(Decoded(), gamma=settings.gamma)
    model = Sb3PPO(
        "MlpPolicy",
        accounts,
        learning_rate=lambda left: settings.learning_rate * (left if settings.anneal else 1.0),
        n_steps=settings.num_steps,
        batch_size=settings.num_steps * env.num_envs // settings.num_minibatches,
        n_epochs=settings.update_epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        policy_kwargs={
            "net_arch": list(settings.network.hidden),
            "activation_fn": torch.nn.ReLU,
            "log_std_init": math.log(settings.noise),
        },
        seed=seed,
        device="cpu",
    )
    model.learn(env_steps)

    def act(obs: torch.Tensor) -> torch.Tensor:
        latent, _ = model.predict(accounts.normalize_obs(obs.numpy()), deterministic=True)
        return decode(obs, latent)

    return act


def measure_ridge(name: str) -> float:
    """Worth of a ridge forecast of the next return that is traded at the best rule's rate."""
    config = load_task(name)
    task = read_task(name)
    rate, _, _ = max(
        list_rules(task), key=lambda rule: start_value(task, evaluate(task, rule[2]).value)
    )
    train_env, env = open_task(name, 1), open_task(name, 512, OTHER_SEED)
    features = train_env.market.features[:-1, 0].double()
    growth = train_env.market.adjusted_close[:, 0].double().log().diff()
    columns = torch.cat([torch.ones_like(features[:, :1]), features], dim=1)
    penalty = RIDGE_PENALTY * torch.eye(columns.shape[1], dtype=torch.float64)
    coefficients = torch.linalg.solve(columns.T @ columns + penalty, columns.T @ growth)
    variance = (growth - columns @ coefficients).var()
    aversion = config.env.risk_aversion + 1.0  # of which 1 is the logarithm's

    def act(obs: torch.Tensor) -> torch.Tensor:
        parts = env.layout.split(obs)
        forecast = coefficients[0] + parts["features"][:, 0].double() @ coefficients[1:]
        held = parts["holdings"].double()
        # The best weight without costs: log returns lie half a variance below simple ones.
        aim = ((forecast + variance / 2) / (aversion * variance)).clamp(-1.0, 1.0).unsqueeze(1)
        return (held + rate * (aim - held)).float()

    return float(play(act, env, config, EPISODES).mean())


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    options = read_arguments(
        __doc__,
        seed=0,
        task=list(TASKS),
        algo=["ppo", "apg", "sac", "sb3"],
        seeds=5,
        env_steps=1_000_000,
        fresh=False,
    )
    torch.set_num_threads(1)
    finished = FinishedRuns("tasks", options)
    figures = {"env_steps": options.env_steps}
    runs = []
    for name in options.task:
        best, rule, words = find_worths(name)
        found = figures[name] = {"optimum_bps": 1e4 * best, "rule_bps": 1e4 * rule, "rule": words}

        def close(worth: float, best: float = best, rule: float = rule) -> float:
            return round((worth - rule) / (best - rule), 3)

        if load_task(name).data.source.signals:
            found["ridge_closed"] = {"median": close(measure_ridge(name))}
        text = (FOLDER / f"{name}.yaml").read_text()
        for algo in options.algo:
            how = {"env_steps": options.env_steps}
            settings = {"task": text, "further": FURTHER.get(algo, {}), **how}
            own = [
                finished.get(
                    f"{name}-{algo}-{seed}",
                    settings,
                    partial(learn, name, algo, seed=seed, **how),
                )
                for seed in list_seeds(options)
            ]
            runs += own
            closed = [close(1e-4 * run["worth_bps"]) for run in own if "worth_bps" in run]
            if closed:
                summary = {"median": median(closed), "least": min(closed), "seeds": len(closed)}
                found[f"{algo}_closed"] = summary
            else:
                found[f"{algo}_refused"] = own[0]["refused"]
    finished.finish({"figures": figures, "runs": runs})


if __name__ == "__main__":
    main()
