"""How near the algorithms come to the portfolio of greatest growth, which is known in closed form.

    python -m benchmarks.kelly [--algo ppo ...] [--seeds 5] [--seconds 30] [--fresh] [--save]

Five assets follow a correlated geometric Brownian motion, trading is free, and the utility is
logarithmic. The fraction of wealth to hold in each is then Kelly's, w = Σ⁻¹ μ, whatever the wealth
and the horizon (Merton, "Lifetime portfolio selection under uncertainty", Review of Economics and
Statistics, 1969). μ and Σ are chosen so that w is long and leaves cash. The growth of a bar is
about 12 times smaller than its deviation.

Each account lives on a path of its own. The agents never see μ and Σ, only the log returns that
they earn. *Share* is the expected growth rate of the weights they decide on, over that of w: both
are integrals over the true law with the same draws, not what a path happened to pay. Seconds are
CPU seconds of this process with one thread, evaluations left out. Finished trainings are in
`runs/benchmarks`; `--fresh` measures them again.
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


def afford(action: Tensor) -> Tensor:
    """Weights `[B, N]` that an account ends up with: none negative, no more than its wealth."""
    weights = action.clamp_min(0)
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(1)


class KellyMarket(FormulaMarket):
    """Actions are target weights, reached at once and free."""

    parts = ("held",)
    held: Tensor

    def __init__(self, num_envs: int, *, seed: int = 0) -> None:
        super().__init__(num_envs, ASSETS, seed)
        self.names = torch.linspace(-1, 1, ASSETS).expand(num_envs, -1)
        """`[B, N]`: the one feature, by which assets are told apart."""

    def observe(self) -> Tensor:
        return torch.cat([self.held, self.names, torch.ones_like(self.held)], dim=1)

    def begin(self) -> None:
        """All in cash."""
        self.held = torch.zeros(self.num_envs, ASSETS)

    def step(self, action: Tensor) -> Step:
        """Hold the weights through a bar; the reward is the log growth."""
        weights = afford(action)
        gross = log_returns(self.draw()).exp()
        reward = growth(weights, gross)
        self.held = weights * gross / reward.exp().unsqueeze(1)
        return self.observe(), reward, self.never, self.never, {}


def expected_growth(weights: Tensor, draws: int = 1 << 16) -> Tensor:
    """`[R, N]` to `[R]`: E log growth a bar; every draw is used with its mirror image, so that the
    mean is exact."""
    seven = torch.Generator().manual_seed(7)
    normal = torch.randn(draws, ASSETS, generator=seven, dtype=torch.float64)
    gross = log_returns(torch.cat([normal, -normal])).exp()
    return torch.stack([growth(row, gross).mean() for row in weights.double()])


@torch.no_grad()
def evaluate(policy: Any, *, steps: int = 16, num_envs: int = 4) -> tuple[float, Tensor]:
    """Share of the growth of Kelly's weights, and the mean weights decided on, on fixed paths."""
    env = KellyMarket(num_envs, seed=12345)
    obs, _ = env.reset(seed=12345)
    decided = []
    for _ in range(steps):
        decided.append(afford(policy(obs)))
        obs, *_ = env.step(decided[-1])
    rows = torch.cat(decided[1:])
    best = expected_growth(WEIGHTS.unsqueeze(0))
    return float(expected_growth(rows[:: max(len(rows) // 16, 1)]).mean() / best), rows.mean(dim=0)


SETTINGS = AGENTS["kelly"]
NUM_ENVS = {"ppo": 2048, "a2c": 2048, "apg": 256}
USUAL_ENVS = 1024
"""A bar's growth drowns in its deviation: only many bars at once show a gradient the way."""


def learn(algo: str, *, seed: int, seconds: float, num_envs: int) -> Values:
    """Train one agent; its share of the optimal growth at half time and at the end, and its
    weights."""
    env = KellyMarket(num_envs, seed=seed)
    agent = make_agent(agent_settings(algo, SETTINGS[algo]), env.layout, seed=seed)
    record = {"algo": algo, "seed": seed}

    def judge(mark: float, _: float, env_steps: int) -> None:
        share, weights = evaluate(agent.policy)
        record["share" if mark == seconds else "share_half_time"] = round(share, 4)
        record["weights"] = weights.tolist()
        record["env_steps"] = env_steps

    train_by_clock(agent, env, [seconds / 2, seconds], judge)
    return record


def main() -> None:
    """Run, print a line for each training, end with one JSON object."""
    options = read_arguments(
        __doc__, seed=0, algo=list(SETTINGS), seeds=5, seconds=30.0, fresh=False
    )
    torch.set_num_threads(1)
    finished = FinishedRuns("kelly", options)
    runs = []
    for seed in list_seeds(options):
        for algo in options.algo:
            how = {"seconds": options.seconds, "num_envs": NUM_ENVS.get(algo, USUAL_ENVS)}
            settings = {**SETTINGS[algo], **how}
            work = partial(learn, algo, seed=seed, **how)
            runs.append(finished.get(f"{algo}-{seed}", settings, work))
    figures = {"kelly_weights": WEIGHTS.tolist(), "target_share": 0.98}
    for algo in options.algo:
        shares = [run["share"] for run in runs if run["algo"] == algo]
        figures[f"{algo}_share"] = summarise(shares)
    finished.finish({"figures": figures, "runs": runs, "seconds": options.seconds})


if __name__ == "__main__":
    main()
