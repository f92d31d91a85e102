"""How near the algorithms come to an optimum that is known in closed form.

    python -m benchmarks.known_optimum [--algo ppo ...] [--seeds 5] [--seconds 60] [--fresh] [--save]

The market of Gârleanu and Pedersen, "Dynamic trading with predictable returns and transaction
costs" (Journal of Finance, 2013). Each of N assets has a factor f (mean reversion φ, variance 1)
and

    return r = 0.1 σ f + σ u,   utility per step = x r − γ/2 σ² x² − λ/2 σ² Δx²

Without discounting the best policy trades x ← x + (a/λ)(aim − x) with a = (√(γ² + 4γλ) − γ)/2 and
aim = 0.1 f / (γ σ) / (1 + φ a/γ) (their equations 8 to 15 with ρ → 0). The reward is either the
utility as realised, whose noise is about 6 times its mean, or its expectation. Agents discount:
with γ = 0.95 the best rate is 8 % below the undiscounted one (16 % with 0.9), which is why the
slope of their trades stays somewhat below 1 times the true rate.

Seconds are CPU seconds of this process with one thread, evaluations left out. Finished trainings
are in `runs/benchmarks`; `--fresh` measures them again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks._bench import FinishedRuns, Values, list_seeds, read_arguments, summarise
from benchmarks._learning import AGENTS, FormulaMarket, Step, train_by_clock
from fintrader.agents import make_agent
from tests.engines.tiny import agent_settings

REVERSION = 0.02
SIGMA = 0.001
RISK_AVERSION = 5.0
COST = 50.0
STRENGTH = 0.1
A = ((RISK_AVERSION**2 + 4 * RISK_AVERSION * COST) ** 0.5 - RISK_AVERSION) / 2
TRUE_RATE = A / COST
UNIT = STRENGTH / (RISK_AVERSION * SIGMA)
"""Position that one deviation of the factor asks for without costs; the unit of holdings in
observations."""


class QuadraticMarket(FormulaMarket):
    """A market for each account; `x ← x + action · UNIT / 2`."""

    parts = ("factor", "position")
    factor: Tensor
    position: Tensor

    def __init__(
        self,
        num_envs: int,
        num_assets: int = 10,
        *,
        realised: bool = True,
        episode_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        """`episode_steps`: accounts are cut off and drawn anew after so many steps on average;
        None: they never are."""
        super().__init__(num_envs, num_assets, seed)
        self.realised = realised
        self.episode_steps = episode_steps

    def observe(self) -> Tensor:
        return torch.cat([self.position / UNIT, self.factor, torch.ones_like(self.factor)], dim=1)

    def begin(self) -> None:
        """Factors from their stationary law, positions near their aims, so that no one starts far
        out."""
        self.factor, self.position = self._draw_start()

    def _draw_start(self) -> tuple[Tensor, Tensor]:
        factor = self.draw()
        return factor, optimal_aim(factor) + 0.3 * UNIT * self.draw()

    def utility(self, position: Tensor, trade: Tensor) -> Tensor:
        """`[B]`: expected utility of one step."""
        gain = STRENGTH * SIGMA * self.factor * position
        return (gain - SIGMA**2 * (RISK_AVERSION * position**2 + COST * trade**2) / 2).sum(dim=1)

    def step(self, action: Tensor) -> Step:
        """Trade, earn, and let the factors move. Episodes are cut off or go on for ever."""
        trade = action.clamp(-1, 1) * UNIT / 2
        self.position = self.position + trade
        reward = self.utility(self.position, trade)
        shock = self.draw()
        if self.realised:
            reward = reward + (self.position * SIGMA * shock).sum(dim=1)
        kept = 1 - REVERSION
        self.factor = kept * self.factor + (1 - kept**2) ** 0.5 * self.draw()
        if self.episode_steps is None:
            return self.observe(), reward, self.never, self.never, {}
        final = self.observe()
        truncated = torch.rand(self.num_envs, generator=self.generator) < 1 / self.episode_steps
        factor, position = self._draw_start()
        self.factor = torch.where(truncated.unsqueeze(1), factor, self.factor)
        self.position = torch.where(truncated.unsqueeze(1), position, self.position)
        info = {"final_obs": final, "_final_obs": truncated}
        return self.observe(), reward, self.never, truncated, info


def optimal_aim(factor: Tensor) -> Tensor:
    """The portfolio that the optimal policy moves towards."""
    return UNIT * factor / (1 + REVERSION * A / RISK_AVERSION)


def optimal_policy(obs: Tensor, rate: float = TRUE_RATE) -> Tensor:
    """The closed form as a policy."""
    held, factor, _ = obs.chunk(3, dim=1)
    return rate * (optimal_aim(factor) - held * UNIT) / (UNIT / 2)


@torch.no_grad()
def evaluate(
    policy: Any, *, steps: int = 600, num_envs: int = 64, seed: int = 12345
) -> tuple[float, float]:
    """Mean expected utility per step, and the regression slope of trades on (aim − x), on fixed
    factor paths."""
    env = QuadraticMarket(num_envs, realised=False, seed=seed)
    obs, _ = env.reset(seed=seed)
    total = 0.0
    cross = 0.0
    square = 0.0
    for t in range(steps):
        held, factor, _ = obs.chunk(3, dim=1)
        gap = optimal_aim(factor) - held * UNIT
        action = policy(obs).clamp(-1, 1)
        obs, reward, *_ = env.step(action)
        if t >= 100:  # what is left of the start would favour those who trade it away fastest
            cross += float((action * UNIT / 2 * gap).sum())
            square += float((gap * gap).sum())
            total += float(reward.mean())
    return total / (steps - 100), cross / square


SETTINGS = AGENTS["known_optimum"]
ENGINE_PPO = AGENTS["engine"]["ppo"]
"""Settings for `communication.py` and `search.py`, which measure the engine, not the algorithm."""
JUDGE = {"steps": 300, "num_envs": 32}
"""Paths on which these two evaluate."""
ENVS_AND_EPISODES: dict[str, tuple[int, int | None]] = {
    "ppo": (128, 64),
    "a2c": (128, 64),
    "apg": (256, None),
    "ddpg": (1024, 32),
    "td3": (1024, 32),
    "sac": (1024, 64),
    "redq": (1024, 64),
}
"""Accounts, and mean steps of an episode: accounts of an untaught policy run away from anything an
optimal one would hold; a clock brings them back."""
SECONDS = {"apg": 20.0}
"""CPU seconds where they are not the command's: step sizes fall to zero over them."""


def learn(algo: str, reward: str, *, seed: int, seconds: float) -> Values:
    """Train one agent; share of the optimal utility and relative trade rate at each mark of CPU
    seconds."""
    best, _ = evaluate(optimal_policy)
    num_envs, episode = ENVS_AND_EPISODES[algo]
    realised = reward == "realised"
    env = QuadraticMarket(num_envs, realised=realised, episode_steps=episode, seed=seed)
    agent = make_agent(agent_settings(algo, SETTINGS[algo]), env.layout, seed=seed)
    curve = []

    def judge(mark: float, used: float, env_steps: int) -> None:
        utility, slope = evaluate(agent.policy)
        curve.append(
            {
                "mark": mark,
                "cpu_seconds": round(used, 1),
                "env_steps": env_steps,
                "share": round(utility / best, 4),
                "rate_ratio": round(slope / TRUE_RATE, 3),
            }
        )

    marks = [mark for mark in (5.0, 10.0, 20.0, 40.0) if mark < seconds] + [seconds]
    train_by_clock(agent, env, marks, judge)
    return {"algo": algo, "reward": reward, "seed": seed, "curve": curve}


def summarise_runs(runs: list[Values]) -> Values:
    """Mean and range over the seeds at each mark, by algorithm and reward."""
    figures = {}
    for run in runs:
        entry = figures.setdefault(f"{run['algo']}_{run['reward']}", {})
        for point in run["curve"]:
            entry.setdefault(f"share_{point['mark']:g}s", []).append(point["share"])
        for name in ("rate_ratio", "env_steps"):
            entry.setdefault(name, []).append(run["curve"][-1][name])
    return {
        key: {name: summarise(values) for name, values in entry.items()}
        for key, entry in figures.items()
    }


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    rewards = ["realised", "expected"]
    options = read_arguments(
        __doc__, seed=0, algo=list(SETTINGS), reward=rewards, seeds=5, seconds=60.0, fresh=False
    )
    torch.set_num_threads(1)
    finished = FinishedRuns("known_optimum", options)
    pairs = [(algo, reward) for reward in options.reward for algo in options.algo]
    runs = []
    for seed in list_seeds(options):
        for algo, reward in pairs:
            seconds = min(SECONDS.get(algo, options.seconds), options.seconds)
            num_envs, episode = ENVS_AND_EPISODES[algo]
            how = {"num_envs": num_envs, "episode_steps": episode, "seconds": seconds}
            settings = {**SETTINGS[algo], **how}
            work = partial(learn, algo, reward, seed=seed, seconds=seconds)
            runs.append(finished.get(f"{algo}-{reward}-{seed}", settings, work))
    record = {"problem": "quadratic", "figures": summarise_runs(runs), "runs": runs}
    finished.finish({**record, "seeds": options.seeds})


if __name__ == "__main__":
    main()
