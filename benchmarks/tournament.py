"""Does the tournament help? Test-window Sharpe ratios at equal training budgets, on markets with a planted signal.

    python benchmarks/tournament.py [--seeds 10] [--ray] [--save]

For every seed (a market and a root seed of its own) the same number of env-steps is spent four ways:

    tournament     16 pods one after another, asynchronous selection; its ensemble
    generational   4 generations of 4 pods, the best 2 copied over the rest; its ensemble
    independent    4 pods of four times the length that never meet; the best on the validation window
    ray_pbt        Ray Tune's population-based training, population 4; the best on the validation window (with --ray)

Choices are made on the validation window; the figure is the Sharpe ratio on the test window. Differences are paired
by seed and tested one-sided (Wilcoxon signed-rank, exact). Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.common import ROOT, finish

POPULATION = 4
ROUNDS = 4
SEARCH = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "noise": {"low": 0.1, "high": 0.6, "log": True}}
COST_BPS = 2.0
"""Low enough for the planted signal to be worth trading on; at the quickstart's 20 most policies learn to stay out."""


def configuration(seed: int, cache: Path) -> Any:
    """The quickstart's market and environment with seeds of their own."""
    from fintrader.config import read_yaml, validate
    from fintrader.pipeline.configuration import RunConfig

    values = read_yaml(ROOT / "configs" / "quickstart.yaml")
    values["seed"] = seed
    values["cache"] = str(cache)
    values["data"]["source"]["seed"] = 1000 + seed
    values["env"]["cost_bps"] = COST_BPS
    return validate(RunConfig, values, "configs/quickstart.yaml")


def arm(name: str, steps: int) -> Any:
    """The tournament settings of one way to spend `POPULATION x ROUNDS x steps` env-steps."""
    from fintrader.agents import Budget
    from fintrader.tournament.settings import TournamentSettings

    common: dict[str, Any] = {"devices": ("cpu",), "workers": 2, "ensemble_size": 3, "search": SEARCH}
    pods = POPULATION * ROUNDS
    if name == "independent":
        budget = Budget(env_steps=steps * ROUNDS)
        return TournamentSettings(
            **{**common, "ensemble_size": 1}, pods=POPULATION, fresh=1.0, pool_size=POPULATION, budget=budget
        )
    budget = Budget(env_steps=steps)
    if name == "generational":
        return TournamentSettings(
            **common, pods=pods, scheduler=name, population=POPULATION, survivors=POPULATION // 2, budget=budget
        )
    return TournamentSettings(
        **common, pods=pods, pool_size=2, founders=POPULATION, fresh=0.1, temperature=1.0, budget=budget
    )


def test_sharpe(policy: Path, market: Path, env: Any) -> float:
    """The policy's Sharpe ratio on the test window, net of costs."""
    from fintrader.agents import load_policy
    from fintrader.backtest import simulate
    from fintrader.data.tensors import MarketTensors

    sharpe = simulate(load_policy(policy), MarketTensors.load(market).split().test, env).metrics["sharpe"]
    return 0.0 if sharpe is None else sharpe


def one_seed(home: Path, seed: int, steps: int, ray: Path | None) -> dict[str, float]:
    """Every arm once."""
    from fintrader.data.build import build_market
    from fintrader.runs import RunFolder
    from fintrader.tournament.orchestrator import run_tournament

    config = configuration(seed, home / "cache")
    market = build_market(config.data, cache=config.cache)
    figures: dict[str, float] = {}
    for name in ("tournament", "generational", "independent"):
        result = run_tournament(
            arm(name, steps),
            folder=RunFolder(home / f"{name}-{seed}"),
            market=market,
            env=config.trading,
            agent=config.agent,
            seed=seed,
        )
        figures[name] = test_sharpe(result.ensemble_policy, market, config.trading)
        if name != "independent":
            figures[f"{name}_best"] = test_sharpe(result.best_policy, market, config.trading)
    if ray is not None:
        policy = home / f"ray-{seed}.safetensors"
        job = {"seed": seed, "steps": steps, "market": str(market), "cache": str(config.cache), "policy": str(policy)}
        subprocess.run([str(ray), __file__, "--ray-job", json.dumps(job)], check=True, cwd=ROOT)
        figures["ray_pbt"] = test_sharpe(policy, market, config.trading)
    print(f"seed {seed}: " + ", ".join(f"{name} {value:.3f}" for name, value in figures.items()), flush=True)
    return figures


def ray_environment() -> Path:
    """Ray Tune in an environment of its own that also sees this one's packages; returns its Python."""
    home = Path.home() / ".cache" / "fintrader" / "bench-ray"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "ray[tune]>=2.30"], check=True)
    site = next((home / "lib").glob("python*/site-packages"))
    mine = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "fintrader.pth").write_text(f"{mine}\n{ROOT}\n")
    return python


def ray_job(job: dict[str, Any]) -> None:
    """Population-based training with Ray Tune over our environment and agent."""
    from ray import init, tune
    from ray.tune.schedulers import PopulationBasedTraining
    from safetensors.torch import load_file, save_file

    from fintrader.agents import Budget, make_agent, save_policy, train
    from fintrader.data.tensors import MarketTensors
    from fintrader.envs import TradingEnv
    from fintrader.tournament.evaluator import evaluate

    config = configuration(job["seed"], Path(job["cache"]))

    class Pod(tune.Trainable):
        def setup(self, values: dict[str, Any]) -> None:
            self.split = MarketTensors.load(job["market"]).split()
            self.env = TradingEnv(self.split.train, config.trading, seed=values["number"])
            settings = config.agent.model_copy(
                update={"learning_rate": values["learning_rate"], "noise": values["noise"]}
            )
            self.agent = make_agent(settings, self.env.layout, seed=values["number"])

        def step(self) -> dict[str, Any]:
            train(self.agent, self.env, Budget(env_steps=job["steps"]))
            score = evaluate(self.agent.policy, self.split.validation, config.trading).score
            return {"score": -1e9 if score is None else score}

        def save_checkpoint(self, folder: str) -> None:
            state = {name: tensor.contiguous().clone() for name, tensor in self.agent.state_dict().items()}
            save_file(state, str(Path(folder) / "state.safetensors"))
            save_policy(Path(folder) / "policy.safetensors", self.agent.policy, market=self.split.train)

        def load_checkpoint(self, folder: str) -> None:
            self.agent.inherit(load_file(str(Path(folder) / "state.safetensors")))

    init(num_cpus=2, include_dashboard=False, logging_level="error")
    mutations = {name: tune.loguniform(space["low"], space["high"]) for name, space in SEARCH.items()}
    tuner = tune.Tuner(
        tune.with_resources(Pod, {"cpu": 1}),
        param_space={**mutations, "number": tune.grid_search([job["seed"] * 100 + k for k in range(POPULATION)])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=1,
                hyperparam_mutations=mutations,
                quantile_fraction=0.5,
                synch=True,
            ),
        ),
        run_config=tune.RunConfig(
            stop={"training_iteration": ROUNDS},
            storage_path=tempfile.mkdtemp(),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    )
    best = tuner.fit().get_best_result()
    with best.checkpoint.as_directory() as folder:
        shutil.copy(Path(folder) / "policy.safetensors", job["policy"])


def compare(table: list[dict[str, float]]) -> dict[str, Any]:
    """Means, and the tournament against each other arm: mean paired difference and one-sided p."""
    from scipy.stats import wilcoxon

    arms = sorted(table[0])
    figures: dict[str, Any] = {
        "sharpe_mean": {name: round(statistics.fmean(row[name] for row in table), 4) for name in arms},
        "against": {},
    }
    for name in arms:
        if name.startswith("tournament"):
            continue
        differences = [row["tournament"] - row[name] for row in table]
        known = [value for value in differences if value != 0]
        figures["against"][name] = {
            "mean_difference": round(statistics.fmean(differences), 4),
            "wins": sum(value > 0 for value in differences),
            "p_one_sided": round(float(wilcoxon(known, alternative="greater").pvalue), 5) if len(known) > 4 else None,
        }
    return figures


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=125_000, help="env-steps of a tournament pod")
    arguments.add_argument("--ray", action="store_true", help="also Ray Tune's PBT, in an environment of its own")
    arguments.add_argument("--ray-job", help=argparse.SUPPRESS)
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    if options.ray_job:
        ray_job(json.loads(options.ray_job))
        return
    ray = ray_environment() if options.ray else None
    home = Path(tempfile.mkdtemp(prefix="tournament-"))
    try:
        table = [one_seed(home, seed, options.steps, ray) for seed in range(options.seeds)]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    figures = {"seeds": options.seeds, "pods": POPULATION * ROUNDS, "env_steps_per_pod": options.steps}
    finish("tournament", {**figures, **compare(table), "table": table}, seed=0, save=options.save)


if __name__ == "__main__":
    main()
