"""The markets of `schedules.py`, and the ways to spend a budget on one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fintrader
from fintrader.agents import Budget, make_agent
from fintrader.agents.training import TrainingRun
from fintrader.config import merge_values, read_yaml
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import TrainingError
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.wide_search import SPACE
from fintrader.seeding import derive
from fintrader.tournament.ensemble import choose
from fintrader.tournament.generator import Generator, draw
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.schedulers import make_scheduler
from fintrader.tournament.settings import Range, TournamentSettings
from fintrader.tournament.spec import PodResult
from fintrader.tournament.updater import submit
from tests.oracles.task_runs import FOLDER, Policy, describe_task, follow_plan, play

ACCOUNTS = 256
CHEAP = {"num_steps": 8, "num_minibatches": 2}
"""PPO's default rollout in place of the task's, which takes three times as long a step."""
SLICE = 4
"""Updates, of 8 steps of each account: the least piece of training that is scored."""
SLICES = 60
"""Slices that each way spends on one market."""
WHOLE = 10
"""Slices of a whole training."""
TEST_EPISODES = 2_048
DEAD = -1e9
"""Score of a training that diverged."""
State = dict[str, Tensor]
Values = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """One market: two signals and the costs of trading on them, all drawn by its number.

    Training, validation and test have the same law and share no random number.
    """

    number: int
    episodes: int
    """Episodes on the validation market that make a score."""
    tuned: bool = False
    """Narrow ranges around good settings in place of the wide ones."""

    @cached_property
    def config(self) -> RunConfig:
        """The task, from `configs/tasks/signals.yaml` with its numbers drawn."""
        random = np.random.default_rng([self.number, 1])

        def between(low: float, high: float) -> float:
            return float(np.exp(random.uniform(np.log(low), np.log(high))))

        signals = {
            "fast": {"half_life": between(1, 6), "bps": between(1.5, 5)},
            "slow": {"half_life": between(10, 60), "bps": between(1.5, 5)},
        }
        source = {"num_sessions": 365, "signals": signals, "seed": 3 * self.number}
        env = {"cost_bps": between(2, 10), "risk_aversion": between(30, 150)}
        values = read_yaml(FOLDER / "signals.yaml")
        return RunConfig.model_validate(
            merge_values(values, {"data": {"source": source}, "env": env})
        )

    @cached_property
    def optimum(self) -> float:
        """Earnings of the dynamic programme's plan in the test episodes."""
        plan, _ = follow_plan(describe_task(self.config), self.test)
        return float(play(plan, self.test, self.config, TEST_EPISODES).mean())

    @cached_property
    def space(self) -> dict[str, Any]:
        """Ranges of the searched settings."""
        agent = self.config.agents[0]
        if not self.tuned:
            return dict(SPACE)
        factor = 3.0
        return {
            "learning_rate": Range(
                low=agent.learning_rate / factor, high=agent.learning_rate * factor, log=True
            ),
            "gamma": (0.95, 0.98, 0.99),
            "noise": Range(low=agent.noise / factor, high=agent.noise * factor, log=True),
        }

    def draw_values(self, random: np.random.Generator) -> Values:
        """Draw settings from the ranges."""
        return {name: draw(space, 0.5, random) for name, space in sorted(self.space.items())}

    @cached_property
    def base(self) -> Values:
        """The settings at which every way begins: drawn, or the task's own where `tuned`."""
        if self.tuned:
            agent = self.config.agents[0]
            return {name: getattr(agent, name) for name in self.space}
        return self.draw_values(np.random.default_rng([self.number, 2]))

    def open(self, accounts: int, seed: int, groups: int) -> TradingEnv:
        """Open the task on a market of this seed."""
        source = self.config.data.source.model_copy(update={"seed": seed})
        market = fintrader.load_market(self.config.data.model_copy(update={"source": source}))
        settings = EnvSettings(**dict(self.config.env)).model_copy(update={"start_groups": groups})
        return TradingEnv(market, settings, num_envs=accounts, seed=1)

    @cached_property
    def training(self) -> Any:
        """The training market, shared by all trainings."""
        return self.open(ACCOUNTS, 3 * self.number, ACCOUNTS).market

    @cached_property
    def validation(self) -> TradingEnv:
        """The accounts whose realised rewards are a score; they begin at the same bars each
        time."""
        return self.open(self.episodes, 3 * self.number + 1, self.episodes)

    @cached_property
    def test(self) -> TradingEnv:
        return self.open(TEST_EPISODES, 3 * self.number + 2, TEST_EPISODES)

    @cached_property
    def scratch(self) -> Any:
        """An agent whose policy takes up stored weights to act."""
        return make_agent(self.config.agents[0], self.validation.layout, seed=0)

    @torch.no_grad()
    def look(self, policy: Policy) -> tuple[float, np.ndarray[Any, Any]]:
        """The mean realised reward of the validation episodes, and the returns of their bars."""
        env = self.validation
        obs, _ = env.reset(seed=1)
        total = torch.zeros(self.episodes, dtype=torch.float64)
        growth = [torch.ones(self.episodes, dtype=torch.float64)]
        for _ in range(self.config.env.episode_bars):
            obs, reward, _, _, info = env.step(policy(obs))
            total += reward.double()
            ended = info.get("_final_obs", torch.zeros(1, dtype=torch.bool))
            seen = info["final_obs"] if ended.any() else obs
            growth.append(1.0 + env.layout.split(seen)["account"][:, 1].double())
        path = torch.stack(growth)
        return float(total.mean()), (path[1:] / path[:-1] - 1.0).flatten().numpy()

    def test_share(self, *states: State) -> float:
        """The share of the optimum that these weights earn on the test market; of several, the mean
        of their actions."""

        @torch.no_grad()
        def act(obs: Tensor) -> Tensor:
            actions = []
            for state in states:
                self.scratch.policy.load_state_dict(state)
                actions.append(self.scratch.policy(obs))
            return torch.stack(actions).mean(0)

        worth = float(play(act, self.test, self.config, TEST_EPISODES).mean())
        return round(worth / self.optimum, 4)


class Trial:
    """One training, a slice at a time; keeps the weights of its best look."""

    def __init__(
        self,
        problem: Problem,
        values: Values,
        seed: int,
        slices: float,
        *,
        anneal: bool = True,
        parent: State | None = None,
    ) -> None:
        """With `anneal` step sizes fall to zero over so many `slices`."""
        self.problem = problem
        self.slices = slices
        self.anneal = anneal
        settings = EnvSettings(**dict(problem.config.env))
        seed_of_env = derive(seed, "env")
        self.env = TradingEnv(problem.training, settings, num_envs=ACCOUNTS, seed=seed_of_env)
        self.start(values, seed, parent)
        self.score = self.best = DEAD
        self.returns = np.zeros(0)
        self.best_weights = self.weights

    def start(self, values: Values, seed: int, parent: State | None) -> None:
        """Begin with these settings, from new weights or a parent's networks and moments."""
        self.values = values
        settings = self.problem.config.agents[0].model_copy(
            update={**CHEAP, **values, "anneal": self.anneal}
        )
        self.agent = make_agent(settings, self.env.layout, seed=seed)
        if parent is not None:
            self.agent.inherit(parent)
        steps = round(self.slices * SLICE) * settings.num_steps * ACCOUNTS
        self.run = TrainingRun(
            self.agent, self.agent.prepare_env(self.env), Budget(env_steps=steps), None, None, 0, 1
        )
        self.run.begin()
        self.is_dead = False

    def go_on(self, values: Values, seed: int, parent: State) -> None:
        """Go on from a parent with other settings, at the same point of the budget."""
        done = self.run.env_steps
        self.start(values, seed, parent)
        self.run.env_steps = self.run.steps_logged = done
        self.agent.anneal(self.run.measure_fraction())

    @property
    def weights(self) -> State:
        return {name: part.clone() for name, part in self.agent.policy.state_dict().items()}

    @property
    def state(self) -> State:
        return {name: part.clone() for name, part in self.agent.state_dict().items()}

    def advance(self, slices: float) -> float:
        """Train so much longer; return the score then."""
        updates = self.run.updates + round(slices * SLICE)
        try:
            while self.run.updates < updates and not self.is_dead:
                action = self.agent.act(self.run.obs)
                self.run.check_action(action)
                self.agent.observe(self.run.step(action))
                metrics = self.agent.update()
                if metrics is not None:
                    self.run.record(metrics)
        except TrainingError:
            self.is_dead = True
        if self.is_dead:
            self.score = DEAD
            return DEAD
        self.score, self.returns = self.problem.look(self.agent.policy)
        if self.score > self.best:
            self.best = self.score
            self.best_weights = self.weights
        return self.score


# --- the ways -------------------------------------------------------------------------------------


def run_random(problem: Problem, name: str) -> dict[str, float]:
    """Six trainings that know nothing of each other, five of them with settings drawn, but for
    `seeds`."""
    random = np.random.default_rng([problem.number, 3])
    trials = []
    for number in range(SLICES // WHOLE):
        is_drawn = number > 0 and name != "seeds"
        values = problem.draw_values(random) if is_drawn else problem.base
        trial = Trial(problem, values, derive(problem.number, name, number), WHOLE)
        for _ in range(WHOLE):
            trial.advance(1)
        trials.append(trial)
    trials.sort(key=lambda trial: -trial.best)
    return {
        name: problem.test_share(trials[0].best_weights),
        f"{name}_ensemble": problem.test_share(*(trial.best_weights for trial in trials[:4])),
    }


def explore(problem: Problem, values: Values, random: np.random.Generator) -> Values:
    """Move settings by Ray Tune's own function, with its defaults."""
    import random as python_random

    from ray.tune.schedulers.pbt import _explore

    def draw_again(space: Any) -> Callable[[], Any]:
        return lambda: draw(space, 0.5, random)

    # Ray draws from the two global streams.
    python_random.seed(int(random.integers(1 << 62)))
    np.random.seed(int(random.integers(1 << 32)))
    mutations = {
        name: list(space) if isinstance(space, tuple) else draw_again(space)
        for name, space in problem.space.items()
    }
    moved, _ = _explore(values, mutations, 0.25, (1.2, 0.8), None)
    return {
        name: space[list(space).index(moved[name])]
        if isinstance(space, tuple)
        else min(max(moved[name], space.low), space.high)
        for name, space in problem.space.items()
    }


def exploit(
    problem: Problem, trials: Sequence[Trial], rounds: int, random: np.random.Generator
) -> None:
    """Population-based training with Ray Tune's rules: after each round of a slice the worst
    quarter (rounded up) goes on from members of the best quarter, settings moved."""
    quarter = math.ceil(len(trials) / 4)
    for number in range(rounds):
        for trial in trials:
            trial.advance(1)
        if number == rounds - 1:
            return
        ranked = sorted(trials, key=lambda trial: -trial.score)
        for worse in ranked[-quarter:]:
            better = ranked[int(random.integers(quarter))]
            seed = int(random.integers(1 << 62))
            worse.go_on(explore(problem, better.values, random), seed, better.state)


def draw_trials(
    problem: Problem, name: str, count: int, random: np.random.Generator
) -> list[Trial]:
    """Start trials of constant step sizes: the first with the market's first settings, the others
    with drawn ones."""
    drawn = [problem.base, *(problem.draw_values(random) for _ in range(count - 1))]
    return [
        Trial(problem, values, derive(problem.number, name, number), SLICES, anneal=False)
        for number, values in enumerate(drawn)
    ]


def find_best_look(trials: Sequence[Trial]) -> State:
    return max(trials, key=lambda trial: trial.best).best_weights


def run_pbt(problem: Problem, name: str) -> dict[str, float]:
    """Six members for ten rounds; the best look of all."""
    random = np.random.default_rng([problem.number, 4])
    trials = draw_trials(problem, name, 6, random)
    exploit(problem, trials, SLICES // 6, random)
    return {name: problem.test_share(find_best_look(trials))}


def race(problem: Problem, pods: int, **how: Any) -> tuple[Leaderboard, dict[str, State]]:
    """Race pods one after another by the engine's scheduler, generator and leaderboard; the
    leaderboard, and each pod's weights."""
    settings = TournamentSettings(
        pods=pods,
        pool_size=1,
        budget=Budget(env_steps=round(SLICES / pods * SLICE * CHEAP["num_steps"] * ACCOUNTS)),
        search=problem.space,
        metric="active_utility",  # the task's own: mean and variance
        **how,
    )
    agent = problem.config.agents[0].model_copy(update={"anneal": True, **problem.base})
    env = problem.config.env.model_dump(mode="json")
    generator = Generator(settings, (agent,), env, seed=problem.number, data_hash="")
    board = Leaderboard(settings.leaderboard_size)
    scheduler = make_scheduler(settings)
    states = {}
    weights = {}
    for index in range(settings.pods):
        spec = scheduler.make(index, board, generator)
        share = (spec.budget.env_steps or 0) / (SLICE * CHEAP["num_steps"] * ACCOUNTS)
        trial = Trial(
            problem,
            {key: spec.agent[key] for key in problem.space},
            spec.seed,
            share,
            anneal=bool(spec.agent["anneal"]),
            parent=states.get(spec.parent or ""),
        )
        score = trial.advance(share)
        states[spec.pod] = trial.state
        weights[spec.pod] = trial.weights
        result = PodResult(
            pod=spec.pod,
            status="done",
            spec=spec.digest,
            score=None if trial.is_dead else score,
            snapshot=None if trial.is_dead else spec.pod,
            returns=tuple(trial.returns.tolist()),
            active_returns=tuple(trial.returns.tolist()),
        )
        submit(board, FinishedPod(spec, result))
    return board, weights


def run_tournament(problem: Problem, name: str) -> dict[str, float]:
    """The engine's tournament, whose pods descend from each other, or its halving: the best pod and
    the ensemble."""
    how = {"order": "submission", "fresh": 0.25, "founders": 6}
    if name == "halving":
        how = {"order": "halving"}
    board, weights = race(problem, 25 if name == "halving" else 24, **how)
    chosen = choose(board.rows, TournamentSettings().ensemble_size)
    return {
        name: problem.test_share(weights[board.rows[0].spec.pod]),
        f"{name}_ensemble": problem.test_share(*(weights[row.spec.pod] for row in chosen)),
    }


WAYS: dict[str, Callable[[Problem, str], dict[str, float]]] = {
    "halving": run_tournament,
    "tournament": run_tournament,
    "random": run_random,
    "pbt": run_pbt,
    "seeds": run_random,
}


def measure(problem: Problem, way: str) -> dict[str, Any]:
    """Spend the budget one way: the shares of the optimum, and CPU seconds."""
    torch.set_num_threads(1)
    _ = problem.optimum, problem.training, problem.validation, problem.test, problem.scratch
    began = time.process_time()
    shares = WAYS[way](problem, way)
    return {"shares": shares, "cpu_seconds": round(time.process_time() - began, 1)}
