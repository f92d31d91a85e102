"""How near the algorithms come to an optimum that is known in closed form.

    python benchmarks/known_optimum.py [--algo ppo ...] [--seeds 5] [--seconds 60] [--save]

The market of Gârleanu and Pedersen, "Dynamic trading with predictable returns and transaction
costs" (Journal of Finance, 2013). Each of N assets has a factor f (mean reversion φ, variance 1)
and

    return r = 0.1 σ f + σ u,   utility per step = x r − γ/2 σ² x² − λ/2 σ² Δx²

Without discounting the best policy trades x ← x + (a/λ)(aim − x) with a = (√(γ² + 4γλ) − γ)/2 and
aim = 0.1 f / (γ σ) / (1 + φ a/γ) (their equations 8 to 15 with ρ → 0). The reward is either the
utility as realised, whose noise is about 6 times its mean, or its expectation. Agents discount:
with γ = 0.95 the best rate is 8 % below the undiscounted one (16 % with 0.9), which is why the
slope of their trades stays somewhat below 1 times the true rate.

Seconds are CPU seconds of this process with one thread, evaluations left out. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import finish
from benchmarks.resume import Records
from fintrader.agents import AgentSettings, Budget, TrainProgress, make_agent, train
from fintrader.envs.observation import ObservationLayout

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


class QuadraticMarket:
    """B accounts in a market of their own each; `x ← x + action · UNIT / 2`. Differentiable in the
    action."""

    differentiable = True

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
        self.num_envs = num_envs
        self.num_assets = num_assets
        self.realised = realised
        self.episode_steps = episode_steps
        self.layout = ObservationLayout(num_assets, 1, 0, account_width=0)
        self.generator = torch.Generator().manual_seed(seed)
        self.factor = self.position = torch.zeros(num_envs, num_assets)
        self.never = torch.zeros(num_envs, dtype=torch.bool)

    def _normal(self) -> Tensor:
        return torch.randn(self.num_envs, self.num_assets, generator=self.generator)

    def _observe(self) -> Tensor:
        return torch.cat([self.position / UNIT, self.factor, torch.ones_like(self.factor)], dim=1)

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Factors from their stationary law, positions near their aims, so that no one starts far
        out."""
        if seed is not None:
            self.generator.manual_seed(seed % (1 << 62))
        self.factor, self.position = self._start()
        return self._observe(), {}

    def _start(self) -> tuple[Tensor, Tensor]:
        factor = self._normal()
        return factor, optimal_aim(factor) + 0.3 * UNIT * self._normal()

    def utility(self, position: Tensor, trade: Tensor) -> Tensor:
        """`[B]`: expected utility of one step."""
        gain = STRENGTH * SIGMA * self.factor * position
        return (gain - SIGMA**2 * (RISK_AVERSION * position**2 + COST * trade**2) / 2).sum(dim=1)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Trade, earn, and let the factors move. Episodes are cut off or go on for ever; they never
        end."""
        trade = action.clamp(-1, 1) * UNIT / 2
        self.position = self.position + trade
        reward = self.utility(self.position, trade)
        shock = self._normal()
        if self.realised:
            reward = reward + (self.position * SIGMA * shock).sum(dim=1)
        self.factor = (1 - REVERSION) * self.factor + (
            1 - (1 - REVERSION) ** 2
        ) ** 0.5 * self._normal()
        if self.episode_steps is None:
            return self._observe(), reward, self.never, self.never, {}
        final = self._observe()
        truncated = torch.rand(self.num_envs, generator=self.generator) < 1 / self.episode_steps
        factor, position = self._start()
        self.factor = torch.where(truncated.unsqueeze(1), factor, self.factor)
        self.position = torch.where(truncated.unsqueeze(1), position, self.position)
        return (
            self._observe(),
            reward,
            self.never,
            truncated,
            {"final_obs": final, "_final_obs": truncated},
        )

    def state_dict(self) -> dict[str, Tensor]:
        """For the training loop."""
        return {
            "factor": self.factor,
            "position": self.position,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """For the training loop."""
        self.factor = state["factor"]
        self.position = state["position"]
        self.generator.set_state(state["generator"])


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
        if t >= 100:  # what is left of the start would favour whoever trades it away fastest
            cross += float((action * UNIT / 2 * gap).sum())
            square += float((gap * gap).sum())
        obs, reward, *_ = env.step(action)
        if t >= 100:
            total += float(reward.mean())
    return total / (steps - 100), cross / square


COMMON: dict[str, Any] = {"head": {"kind": "direct"}, "gamma": 0.95, "anneal": True}
ON: dict[str, Any] = {
    **COMMON,
    "noise": 0.2,
    "network": {"hidden": [32], "activation": "tanh"},
    "num_steps": 32,
}
ENGINE_PPO: dict[str, Any] = {
    **COMMON,
    "noise": 0.2,
    "network": {"hidden": [32, 32], "activation": "tanh"},
    "num_steps": 16,
    "update_epochs": 2,
    "num_minibatches": 4,
    "learning_rate": 2.5e-3,
}
"""What `communication.py` and `search.py` train on this market; they measure the engine, not the
algorithm."""
OFF: dict[str, Any] = {
    **COMMON,
    "network": {"hidden": [32], "activation": "silu"},
    "learning_rate": 3e-3,
    "batch_size": 2048,
    "buffer_size": 1_000_000,
    "learning_starts": 20_000,
    "updates_per_step": 1.0,
    "tau": 0.02,
}
HARD: dict[str, Any] = {**OFF, "noise": 0.3, "critic_lead": 300, "saturation_coef": 1e-3}
SOFT: dict[str, Any] = {**OFF, "initial_noise": 0.2, "alpha": 0.01, "tune_alpha": False}
SETTINGS: dict[str, dict[str, Any]] = {
    # A critic that noise keeps flat undervalues what a trade earns later: with λ below 1 the agents
    # trade too little.
    "ppo": {
        **ON,
        "gae_lambda": 1.0,
        "update_epochs": 2,
        "num_minibatches": 1,
        "learning_rate": 2e-3,
    },
    "a2c": {**ON, "gae_lambda": 1.0, "learning_rate": 2.5e-3},
    "apg": {
        **ON,
        "noise": 0.0,
        "network": {"hidden": [32, 32], "activation": "tanh"},
        "num_steps": 16,
        "learning_rate": 5e-3,
    },
    "ddpg": HARD,
    "td3": HARD,
    "sac": SOFT,
    "redq": {**SOFT, "updates_per_step": 2.0},
}
NUM_ENVS = {
    "ppo": 128,
    "a2c": 128,
    "apg": 256,
    "ddpg": 1024,
    "td3": 1024,
    "sac": 1024,
    "redq": 1024,
}
EPISODE_STEPS: dict[str, int | None] = {
    "apg": None,
    "ppo": 64,
    "a2c": 64,
    "ddpg": 32,
    "td3": 32,
    "sac": 64,
    "redq": 64,
}
"""Accounts of an untaught policy run away from anything an optimal one would hold; a clock brings
them back."""
SECONDS = {"apg": 20.0}
"""CPU seconds where they are not the command's: step sizes fall to zero over them."""


class OutOfTime(Exception):
    """The CPU seconds are used up."""


def learn(
    algo: str, *, realised: bool, seed: int, seconds: float, num_envs: int, marks: list[float]
) -> dict[str, Any]:
    """Train one agent; share of the optimal utility and relative trade rate at each mark of CPU
    seconds."""
    best, _ = evaluate(optimal_policy)
    env = QuadraticMarket(num_envs, realised=realised, episode_steps=EPISODE_STEPS[algo], seed=seed)
    settings = TypeAdapter(AgentSettings).validate_python({"algo": algo, **SETTINGS[algo]})
    agent = make_agent(settings, env.layout, seed=seed)
    curve: list[dict[str, float]] = []
    spent_outside = 0.0
    begun = time.process_time()
    left = list(marks)

    def on_progress(progress: TrainProgress) -> None:
        nonlocal spent_outside
        used = time.process_time() - begun - spent_outside
        agent.anneal(min(used / seconds, 1.0))  # type: ignore[attr-defined]
        if used >= left[0]:
            before = time.process_time()
            utility, slope = evaluate(agent.policy)
            mark = left.pop(0)
            curve.append(
                {
                    "mark": mark,
                    "cpu_seconds": round(used, 1),
                    "env_steps": progress.env_steps,
                    "share": round(utility / best, 4),
                    "rate_ratio": round(slope / TRUE_RATE, 3),
                }
            )
            spent_outside += time.process_time() - before
        if not left:
            raise OutOfTime

    with contextlib.suppress(OutOfTime):
        train(agent, env, Budget(seconds=100 * seconds), on_progress=on_progress)
    return {
        "algo": algo,
        "reward": "realised" if realised else "expected",
        "seed": seed,
        "curve": curve,
    }


TARGETS = {
    "apg_realised": ("share_20s", 0.97),
    "ppo_realised": ("share_60s", 0.93),
    "a2c_realised": ("share_60s", 0.85),
    "sac_realised": ("share_60s", 0.85),
    "ppo_expected": ("share_60s", 0.97),
    "sac_expected": ("share_60s", 0.95),
    "td3_expected": ("share_60s", 0.93),
}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and range over the seeds at each mark."""
    figures: dict[str, Any] = {}
    for run in runs:
        entry = figures.setdefault(f"{run['algo']}_{run['reward']}", {})
        for point in run["curve"]:
            entry.setdefault(f"share_{point['mark']:g}s", []).append(point["share"])
        entry.setdefault("rate_ratio", []).append(run["curve"][-1]["rate_ratio"])
        entry.setdefault("env_steps", []).append(run["curve"][-1]["env_steps"])
    for entry in figures.values():
        for name, values in list(entry.items()):
            entry[name] = {
                "mean": round(sum(values) / len(values), 4),
                "min": min(values),
                "max": max(values),
            }
    return figures


def met(figures: dict[str, Any]) -> dict[str, Any]:
    """Each target beside the mean of what came out; trade rates must lie within a fifth of the true
    one."""
    found: dict[str, Any] = {}
    for name, entry in figures.items():
        mark, level = TARGETS.get(name, ("", 0.0))
        rate = entry["rate_ratio"]["mean"]
        found[name] = {"rate_within_a_fifth": 0.8 <= rate <= 1.2}
        if mark in entry:
            found[name] |= {
                mark: entry[mark]["mean"],
                "at_least": level,
                "met": entry[mark]["mean"] >= level,
            }
    return found


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algo", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument(
        "--reward", nargs="+", default=["realised", "expected"], choices=["realised", "expected"]
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--set", default="{}", help="JSON laid over the algorithms' settings")
    parser.add_argument(
        "--fresh", action="store_true", help="measure again what is already in runs/benchmarks"
    )
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for algo in options.algo:
        SETTINGS[algo] = {**SETTINGS[algo], **json.loads(options.set)}
    records = Records("known_optimum", fresh=options.fresh)
    pairs = [(algo, reward) for reward in options.reward for algo in options.algo]
    runs: list[dict[str, Any]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for algo, reward in pairs:
            seconds = min(SECONDS.get(algo, options.seconds), options.seconds)
            marks = [mark for mark in (5.0, 10.0, 20.0, 40.0) if mark < seconds] + [seconds]
            given = {
                "num_envs": NUM_ENVS[algo],
                "episode_steps": EPISODE_STEPS[algo],
                "seconds": seconds,
            }
            run = records.get(
                f"{algo}-{reward}-{seed}",
                {**SETTINGS[algo], **given},
                lambda algo=algo, reward=reward, seed=seed, seconds=seconds, marks=marks: learn(  # type: ignore[misc]
                    algo,
                    realised=reward == "realised",
                    seed=seed,
                    seconds=seconds,
                    num_envs=NUM_ENVS[algo],
                    marks=marks,
                ),
            )
            runs.append(run)
            points = "  ".join(f"{p['cpu_seconds']:g}s {p['share']:.3f}" for p in run["curve"])
            last = run["curve"][-1]
            print(
                f"{algo:5} {reward:8} seed {seed}: {points}  rate x{last['rate_ratio']:.2f} "
                f"{last['env_steps']:,} steps",
                flush=True,
            )
    figures = summary(runs)
    finish(
        "known_optimum",
        {
            "problem": "quadratic",
            "figures": figures,
            "targets": met(figures),
            "runs": runs,
            "seeds": options.seeds,
            "commits": sorted(records.commits),
        },
        seed=options.first_seed,
        save=options.save,
    )


if __name__ == "__main__":
    main()
