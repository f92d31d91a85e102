"""Training of one agent without a tournament."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.agents import TrainProgress, TrainResult, load_policy, make_agent, save_policy, train
from fintrader.backtesting import simulate, simulate_all_baselines
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.classic import WorkerEnv, episode_returns
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import ConfigError
from fintrader.files import write_json
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.data import make_market
from fintrader.pipeline.run_stages import claim
from fintrader.pipeline.session import hold_run
from fintrader.results.context import BacktestContext
from fintrader.results.formatting import describe_standing
from fintrader.results.table import active_table, paper_table
from fintrader.seeding import derive, seed_everything
from fintrader.terminal_progress import reporter

EVALUATION_EPISODES = 20
"""Episodes that a policy of a classic environment plays without noise when it is judged."""


def train_one(config: RunConfig) -> Path:
    """Train the configured agent for one pod's budget; returns the policy's path in
    `runs/<name>/train/`.

    After a kill, the same call resumes the training. In a market, prints the agent's and the
    baselines' validation figures, and does not use the test window; in a classic environment,
    prints the mean return of its episodes.
    """
    if config.from_run is not None:
        raise ConfigError(
            "from_run: `fintrader train` starts no tournament; use `fintrader run` or `tournament`"
        )
    with hold_run(config) as mirror:
        plan = ("train",) if config.is_classic else ("data", "train")
        manifest = claim(config, "train", mirror=mirror, plan=plan)
        home = config.folder.root / "train"
        if isinstance(config.env, GymnasiumSettings):
            with manifest.stage("train"):
                _train_classic(config, config.env, home)
        else:
            path = make_market(config, manifest)
            with manifest.stage("train"):
                _train_trader(config, config.trading, path, home)
        manifest.saved()
    print(f"  {home / 'policy.safetensors'}")
    return home / "policy.safetensors"


def _train_trader(config: RunConfig, settings: EnvSettings, path: Path, home: Path) -> None:
    market = MarketTensors.load(path).split()
    seed = derive(config.seed, "train")
    device = config.resolved_device()
    seed_everything(seed)
    env = TradingEnv(market.train.to(device), settings, device=device, seed=derive(seed, "env"))
    trained = _learn(config, env, home, {}, market.train)
    policy = load_policy(home / "policy.safetensors")
    baselines = simulate_all_baselines(market.validation, settings, train=market.train)
    results = baselines.join({"policy": simulate(policy, market.validation, settings)})
    metrics = {name: one.metrics for name, one in results.items()}
    numbers = {name: one.metrics.by_key() for name, one in results.items()}
    write_json(
        home / "validation.json", {"metrics": numbers, "env_steps": trained.env_steps, "trials": 1}
    )
    algo = config.only_agent.algo
    portfolio = baselines.portfolio.name
    title = f"{config.name}: {algo}, validation window, net of {settings.cost_bps:g} bps a trade"
    tables = paper_table(metrics, title=title), active_table(metrics, portfolio)
    print(*filter(None, [market.validation.provenance.notice]), *tables, sep="\n")
    context = BacktestContext(portfolio=portfolio, left_out=dict(baselines.left_out))
    print(describe_standing(metrics, context))


def _train_classic(config: RunConfig, settings: GymnasiumSettings, home: Path) -> None:
    seed = derive(config.seed, "train")
    device = config.resolved_device()
    seed_everything(seed)
    with contextlib.closing(
        WorkerEnv.make(settings, seed=derive(seed, "env"), device=device)
    ) as env:
        trained = _learn(config, env, home, {"environment": settings.id})
        policy = load_policy(home / "policy.safetensors", device=device)
        returns = episode_returns(env, policy, EVALUATION_EPISODES, seed=derive(seed, "evaluation"))
    mean = float(np.mean(returns))
    deviation = float(np.std(returns))
    write_json(
        home / "evaluation.json",
        {
            "environment": settings.id,
            "mean_return": mean,
            "deviation": deviation,
            "returns": returns,
            "env_steps": trained.env_steps,
            "seconds": trained.seconds,
        },
    )
    print(
        f"{config.name}: {config.only_agent.algo} in {settings.id}: mean return {mean:,.1f}"
        f" (deviation {deviation:,.1f}) over {len(returns)} episodes, after"
        f" {trained.env_steps:,} env-steps in {trained.seconds:,.0f} s"
    )


def _learn(
    config: RunConfig,
    env: Any,
    home: Path,
    meta: dict[str, Any],
    market: MarketTensors | None = None,
) -> TrainResult:
    """`train` the configured agent for one pod's budget, with a progress bar; store its policy in
    `home`."""
    agent = make_agent(
        config.only_agent,
        env.layout,
        device=config.resolved_device(),
        seed=derive(config.seed, "train"),
    )
    with (
        reporter() as progress,
        progress.task(f"train {config.only_agent.algo}", total=1.0) as task,
    ):

        def show(state: TrainProgress) -> None:
            steps = f"{state.env_steps:,} env-steps"
            task.update(state.fraction, note=f"{steps}, {state.steps_per_second:,.0f}/s")

        trained = train(
            agent,
            env,
            config.tournament.budget,
            folder=home,
            on_progress=show,
        )
    save_policy(
        agent.policy, home / "policy.safetensors", {"seed": config.seed, **meta}, market=market
    )
    return trained
