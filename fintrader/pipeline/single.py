"""Beside the pipeline: one agent without a tournament, and a finished tournament raced again."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fintrader.agents import Budget, TrainProgress, load_policy, make_agent, save_policy, train
from fintrader.backtest import metrics_table, simulate, simulate_baselines
from fintrader.data.tensors import MarketTensors
from fintrader.envs.trading import TradingEnv
from fintrader.errors import RunError
from fintrader.pipeline.configuration import RunConfig, load_config
from fintrader.pipeline.stages import claim, make_market
from fintrader.progress import reporter
from fintrader.runs import Manifest, RunFolder, write_json
from fintrader.seeding import derive, seed_everything


def train_one(config: RunConfig) -> Path:
    """Train the configured agent for one pod's budget; returns the policy's path in `runs/<name>/train/`.

    Killed anywhere, the same call goes on. Prints its validation figures beside the baselines'; the test window stays
    unseen.
    """
    folder = config.folder
    home = folder.root / "train"
    with folder.lock():
        market = MarketTensors.load(make_market(config, claim(config, "train"))).split()
        seed = derive(config.seed, "train")
        seed_everything(seed)
        device = config.resolved_device()
        env = TradingEnv(market.train.to(device), config.env, device=device, seed=derive(seed, "env"))
        agent = make_agent(config.agent, env.layout, device=device, seed=seed)
        budget = Budget(**config.tournament.budget.model_dump())
        with reporter() as progress, progress.task(f"train {config.agent.algo}", total=1.0) as task:

            def show(state: TrainProgress) -> None:
                steps = f"{state.env_steps:,} env-steps"
                task.update(state.fraction, note=f"{steps}, {state.steps_per_second:,.0f}/s")

            result = train(agent, env, budget, folder=home, on_progress=show)
            save_policy(home / "policy.safetensors", agent.policy, {"seed": config.seed}, market=market.train)
        results = {"policy": simulate(load_policy(home / "policy.safetensors"), market.validation, config.env)}
        results |= simulate_baselines(market.validation, config.env)
        metrics = {name: dict(one.metrics) for name, one in results.items()}
        write_json(home / "validation.json", {"metrics": metrics, "env_steps": result.env_steps, "trials": 1})
    console = Console()
    title = f"{config.name}: {config.agent.algo}, validation window, net of {config.env.cost_bps:g} bps a trade"
    (console if console.is_terminal else Console(width=120)).print(metrics_table(metrics, title=title))
    print(f"  {home / 'policy.safetensors'}")
    return home / "policy.safetensors"


def replay_run(folder: Path, name: str | None = None) -> list[str]:
    """Race a finished run again, each pod seeing what it saw then; returns the differences (none: byte-equal).

    Raises TournamentError when the run is unfinished or lost a pod for good, RunError when the market has changed.
    """
    from fintrader.tournament.status import compare, replay

    source = RunFolder(folder.resolve())
    config = load_config(source.config)
    manifest = Manifest.load(source.manifest)
    market = Path(manifest.values["market"])
    if not market.is_file() or MarketTensors.stored_hash(market) != manifest.values["data_hash"]:
        raise RunError(f"{market} is not the market this run was made from; run `fintrader data build {source.config}`")
    target = RunFolder.named(name or f"{source.root.name}-replay", source.root.parent)
    with target.lock(), reporter() as progress:
        replay(
            source,
            target,
            config.tournament,
            market=market,
            env=config.env,
            agent=config.agents or config.agent,
            seed=config.seed,
            device=config.resolved_device(),
            progress=progress,
            data_hash=manifest.values["data_hash"],
        )
    return compare(source, target)
