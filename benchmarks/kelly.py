"""How near the algorithms come to the portfolio of greatest growth, which is known in closed form.

    python benchmarks/kelly.py [--algo ppo ...] [--seeds 5] [--seconds 30] [--save]

Five assets follow a correlated geometric Brownian motion, trading is free, and the utility is
logarithmic. The fraction of wealth to hold in each is then Kelly's, w = Σ⁻¹ μ, whatever the wealth
and the horizon (Merton, "Lifetime portfolio selection under uncertainty", Review of Economics and
Statistics, 1969). μ and Σ are chosen so that w is long and leaves cash. The growth of a bar is
about 12 times smaller than its deviation.

Each account lives on a path of its own. The agents never see μ and Σ, only the log returns that
they earn. *Share* is the expected growth rate of the weights they decide on, over that of w: both
are integrals over the true law with the same draws, not what a path happened to pay. Seconds are
CPU seconds of this process with one thread, evaluations left out. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
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

WEIGHTS = torch.tensor([0.02, 0.04, 0.08, 0.16, 0.50], dtype=torch.float64)
"""Kelly's w; a fifth stays in cash."""
VOLATILITY = torch.tensor([0.30, 0.28, 0.26, 0.24, 0.22], dtype=torch.float64)
"""Deviation of a bar's log return, per asset: long bars, so that the growth can be found in
minutes."""
CORRELATION = 0.3
ASSETS = len(WEIGHTS)
COVARIANCE = torch.outer(VOLATILITY, VOLATILITY) * (
    CORRELATION + (1 - CORRELATION) * torch.eye(ASSETS, dtype=torch.float64)
)
DRIFT = COVARIANCE @ WEIGHTS
"""μ: so that Σ⁻¹ μ is `WEIGHTS`."""


def log_returns(normal: Tensor) -> Tensor:
    """Standard normal `[..., N]` to a bar's log returns: N(μ − diag Σ / 2, Σ)."""
    root = torch.linalg.cholesky(COVARIANCE).to(normal.dtype)
    return (DRIFT - COVARIANCE.diagonal() / 2).to(normal.dtype) + normal @ root.T


def growth(weights: Tensor, gross: Tensor) -> Tensor:
    """Log growth `[...]` of holding `weights [..., N]` (the rest in cash) through gross returns
    `[..., N]`."""
    return torch.log1p((weights * (gross - 1)).sum(dim=-1))


def affordable(action: Tensor) -> Tensor:
    """Weights `[B, N]` that an account ends up with: none negative, no more than its wealth."""
    weights = action.clamp_min(0)
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(1)


class KellyMarket:
    """B accounts on a path each; actions are target weights, reached at once and free.
    Differentiable."""

    differentiable = True

    def __init__(self, num_envs: int, *, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.layout = ObservationLayout(ASSETS, 1, 0, account_width=0)
        self.generator = torch.Generator().manual_seed(seed)
        self.held = torch.zeros(num_envs, ASSETS)
        self.never = torch.zeros(num_envs, dtype=torch.bool)
        self.names = torch.linspace(-1, 1, ASSETS).expand(num_envs, -1)
        """`[B, N]`: the one feature, by which assets are told apart."""

    def _observe(self) -> Tensor:
        return torch.cat([self.held, self.names, torch.ones_like(self.held)], dim=1)

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """All in cash."""
        if seed is not None:
            self.generator.manual_seed(seed % (1 << 62))
        self.held = torch.zeros(self.num_envs, ASSETS)
        return self._observe(), {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Hold the weights through a bar; the reward is the log growth; episodes never end."""
        weights = affordable(action)
        gross = log_returns(torch.randn(self.num_envs, ASSETS, generator=self.generator)).exp()
        reward = growth(weights, gross)
        self.held = weights * gross / reward.exp().unsqueeze(1)
        return self._observe(), reward, self.never, self.never, {}

    def state_dict(self) -> dict[str, Tensor]:
        """For the training loop."""
        return {"held": self.held, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """For the training loop."""
        self.held = state["held"]
        self.generator.set_state(state["generator"])


def expected_growth(weights: Tensor, draws: int = 1 << 16) -> Tensor:
    """`[R, N]` to `[R]`: E log growth a bar; every draw is used with its mirror image, so that the
    mean is exact."""
    normal = torch.randn(
        draws, ASSETS, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    gross = log_returns(torch.cat([normal, -normal])).exp()
    return torch.stack([growth(row, gross).mean() for row in weights.double()])


@torch.no_grad()
def evaluate(policy: Any, *, steps: int = 16, num_envs: int = 4) -> tuple[float, Tensor]:
    """Share of the growth of Kelly's weights, and the mean weights decided on, on fixed paths."""
    env = KellyMarket(num_envs, seed=12345)
    obs, _ = env.reset(seed=12345)
    decided = []
    for _ in range(steps):
        weights = affordable(policy(obs))
        decided.append(weights)
        obs, *_ = env.step(weights)
    rows = torch.cat(decided[1:])
    best = expected_growth(WEIGHTS.unsqueeze(0))
    return float(expected_growth(rows[:: max(len(rows) // 16, 1)]).mean() / best), rows.mean(dim=0)


COMMON: dict[str, Any] = {"head": {"scale": 2.0}, "gamma": 0.0, "anneal": True}
ON: dict[str, Any] = {
    **COMMON,
    "noise": 0.3,
    "noise_persistence": 0.0,
    "network": {"hidden": [32], "activation": "tanh"},
    "num_steps": 16,
}
OFF: dict[str, Any] = {
    **COMMON,
    "noise_persistence": 0.0,
    "network": {"hidden": [32], "activation": "silu"},
    "batch_size": 8192,
    "buffer_size": 1_000_000,
    "learning_starts": 20_000,
    "updates_per_step": 0.5,
    "learning_rate": 3e-3,
    "saturation_coef": 5e-3,
}
SOFT: dict[str, Any] = {**OFF, "initial_noise": 0.5, "alpha": 0.001, "tune_alpha": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {**ON, "update_epochs": 2, "num_minibatches": 2, "learning_rate": 4e-3},
    "a2c": {**ON, "learning_rate": 5e-3},
    "apg": {**COMMON, "noise": 0.0, "bootstrap": False, "learning_rate": 1e-2},
    "ddpg": {**OFF, "noise": 0.5},
    "td3": {**OFF, "noise": 0.5},
    "sac": SOFT,
    "redq": SOFT,
}
NUM_ENVS = {
    "ppo": 2048,
    "a2c": 2048,
    "apg": 256,
    "ddpg": 1024,
    "td3": 1024,
    "sac": 1024,
    "redq": 1024,
}
"""A bar's growth drowns in its deviation: only many bars at once show a gradient the way."""


class OutOfTime(Exception):
    """The CPU seconds are used up."""


def learn(algo: str, *, seed: int, seconds: float, num_envs: int) -> dict[str, Any]:
    """Train one agent; its share of the optimal growth at half time and at the end, and its
    weights."""
    env = KellyMarket(num_envs, seed=seed)
    settings = TypeAdapter(AgentSettings).validate_python({"algo": algo, **SETTINGS[algo]})
    agent = make_agent(settings, env.layout, seed=seed)
    begun = time.process_time()
    outside = 0.0
    left = [seconds / 2, seconds]
    record: dict[str, Any] = {"algo": algo, "seed": seed}

    def on_progress(progress: TrainProgress) -> None:
        nonlocal outside
        used = time.process_time() - begun - outside
        agent.anneal(min(used / seconds, 1.0))  # type: ignore[attr-defined]
        if used < left[0]:
            return
        before = time.process_time()
        share, weights = evaluate(agent.policy)
        left.pop(0)
        record["share" if not left else "share_half_time"] = round(share, 4)
        record["weights"] = [round(weight, 3) for weight in weights.tolist()]
        record["env_steps"] = progress.env_steps
        outside += time.process_time() - before
        if not left:
            raise OutOfTime

    with contextlib.suppress(OutOfTime):
        train(agent, env, Budget(seconds=100 * seconds), on_progress=on_progress)
    return record


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algo", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--fresh", action="store_true", help="measure again what is already in runs/benchmarks"
    )
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = Records("kelly", fresh=options.fresh)
    runs: list[dict[str, Any]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for algo in options.algo:
            num_envs = NUM_ENVS[algo]
            run = records.get(
                f"{algo}-{seed}",
                {**SETTINGS[algo], "seconds": options.seconds, "num_envs": num_envs},
                lambda algo=algo, seed=seed, num_envs=num_envs: learn(  # type: ignore[misc]
                    algo, seed=seed, seconds=options.seconds, num_envs=num_envs
                ),
            )
            runs.append(run)
            print(
                f"{algo:5} seed {seed}: share {run['share_half_time']:.4f} half way,"
                f" {run['share']:.4f} at the end, weights {run['weights']}, {run['env_steps']:,}"
                " steps",
                flush=True,
            )
    figures: dict[str, Any] = {"kelly_weights": WEIGHTS.tolist(), "target_share": 0.98}
    for algo in options.algo:
        shares = [run["share"] for run in runs if run["algo"] == algo]
        mean = round(sum(shares) / len(shares), 4)
        figures[f"{algo}_share"] = {"mean": mean, "min": min(shares), "max": max(shares)}
    finish(
        "kelly",
        {
            "figures": figures,
            "runs": runs,
            "seconds": options.seconds,
            "commits": sorted(records.commits),
        },
        seed=options.first_seed,
        save=options.save,
    )


if __name__ == "__main__":
    main()
