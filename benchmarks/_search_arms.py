"""The ways to spend a budget in `tournament.py`, ours and others', over the same agent and
environment."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._bench import ROOT, make_environment, run_child
from fintrader import metrics as m
from fintrader.agents import Budget, load_policy, make_agent, save_policy, train
from fintrader.config import merge_values, read_yaml
from fintrader.envs import TradingEnv
from fintrader.market.build import build_market
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig
from fintrader.runs import RunFolder
from fintrader.seeding import derive
from fintrader.tournament.evaluator import evaluate
from fintrader.tournament.run_tournament import run_tournament
from fintrader.tournament.settings import OperationsSettings, TournamentSettings
from fintrader.tournament.spec import EvaluationTerms

BARS = "daily_n100_20151001_20180215.parquet"
MEMBERS = "n100_membership_20151012_20210601.csv"
HORIZON = 20
WHOLE = 40_960
COUNT = 6
LOOKS = 10
"""Env-steps of a whole training, how many of them an arm may spend, and looks at each."""
TOTAL = WHOLE * COUNT
METRIC = "active_utility"
SEARCH = {
    "learning_rate": {"low": 2e-3, "high": 6e-2, "log": True},
    "weight_decay": {"low": 1e-3, "high": 1e-1, "log": True},
    "feature_dropout": {"low": 0.0, "high": 0.6},
    "feature_noise": {"low": 0.1, "high": 3.0, "log": True},
}
COMMON = {
    "metric": METRIC,
    "search": SEARCH,
    "devices": ("cpu",),
    "workers": 1,
    "pool_size": 1,
    "order": "submission",  # same seed, same figures
    "leaderboard_size": 16,
    "ensemble_size": 4,
}
OURS = {
    "niche": "lineage",
    "founders": 6,
    "fresh": 0.0,
    "temperature": 0.7,
    "unchanged": 0.3,
    "resample": 0.1,
}
PLAIN = {"founders": 2, "fresh": 0.25, "temperature": 1.0}
LOOKING = {"fresh": 1.0, "early_stopping": "best_validation"}


@dataclass(frozen=True)
class Market:
    """A market with its windows, and where its arms keep their runs."""

    home: Path
    path: Path
    ic: float
    config: RunConfig

    @classmethod
    def planted(cls, home: Path, bars: Path, number: int, ic: float, symbols: int) -> Market:
        """A signal of that information coefficient in the bars of so many symbols, both by the
        market's number."""
        import pandas as pd

        known = sorted(pd.read_parquet(bars / BARS, columns=["ticker"])["ticker"].unique())
        chosen = sorted(np.random.default_rng(number).choice(known, symbols, replace=False))
        values = read_yaml(ROOT / "configs" / "walkforward_daily.yaml")
        values["data"]["universe"] = {"members": str(bars / MEMBERS), "symbols": chosen}
        planted = {"kind": "planted_in", "ic": ic, "horizon": HORIZON, "seed": number}
        values["data"]["path"] = str(bars / BARS)
        values["data"]["source"] |= planted
        data = {
            "waive": [
                "excursion_day:LILA:2018-01-03",
                "excursion_day:STX:2016-07-06",
            ],  # faults of the file, left in
            "windows": {"fractions": [0.6, 0.2, 0.2], "embargo_sessions": HORIZON},
        }
        values.pop("walkforward")
        values["env"] |= {"risk_aversion": 20, "episode_bars": 32}
        values["agent"] |= {"num_steps": 32}
        config = RunConfig.model_validate(
            merge_values(values, {"data": data, "seed": number, "cache": str(home / "cache")})
        )
        return cls(home, build_market(config.data, cache=config.cache), ic, config)

    def measure(self, policy: Path) -> dict[str, float]:
        """A year's figures of the daily returns beyond the benchmark's: on the test window, and on
        the validation window."""
        split = MarketTensors.load(self.path).split()
        tested, chosen = (
            evaluate([(load_policy(policy), window)], self.config.trading, EvaluationTerms(METRIC))
            for window in (split.test, split.validation)
        )
        assert tested.score is not None
        assert chosen.score is not None
        days = np.asarray(tested.active_returns)
        deviation = float(days.std(ddof=1))
        ratio = m.TRADING_DAYS**0.5 * float(days.mean()) / deviation if deviation else 0.0
        return {
            "utility": tested.score,
            "validation_utility": chosen.score,
            "information_ratio": ratio,
        }


def read_cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in spent)


# --- ours -----------------------------------------------------------------------------------------


def run_race(
    market: Market, name: str, changes: dict[str, Any], pods: int, steps: int
) -> dict[str, dict[str, float]]:
    """A tournament of so many pods; the figures of its ensemble (`name`) and of its best pod."""
    how = {**COMMON, **changes, "pods": pods, "budget": Budget(env_steps=steps)}
    folder = RunFolder(market.home / f"{name}-{market.config.seed}")
    began = read_cpu_seconds()
    result = run_tournament(
        TournamentSettings(**how),
        folder=folder,
        market=market.path,
        env=market.config.trading,
        operations=OperationsSettings(),
        data_hash=MarketTensors.stored_hash(market.path),
        agents=market.config.agents,
        seed=market.config.seed,
    )
    used = sum(
        json.loads(path.read_text())["env_steps"] for path in folder.root.glob("pods/*/result.json")
    )
    spent = {"cpu_seconds": read_cpu_seconds() - began, "env_steps": used, "trials": result.trials}
    homes = {"": folder.ensemble, "_best": folder.pod(result.best)}
    return {
        f"{name}{what}": {**market.measure(home / "policy.safetensors"), **spent}
        for what, home in homes.items()
    }


def run_ours(market: Market, name: str, _: int) -> dict[str, dict[str, float]]:
    """Our tournaments, and our trainings without one."""
    match name:
        case "tournament":
            return run_race(market, name, OURS, 4 * COUNT, WHOLE // 4)
        case "tournament_plain":
            return run_race(market, name, PLAIN, 4 * COUNT, WHOLE // 4)
    searched = SEARCH if name == "random" else {}
    found = run_race(market, name, {**LOOKING, "search": searched}, COUNT, WHOLE)
    return {name: found[f"{name}_best"], f"{name}_ensemble": found[name]}


# --- others' --------------------------------------------------------------------------------------


class Trial:
    """One training of the market's agent with these hyper-parameters, a tenth at a time."""

    def __init__(self, market: Market, values: dict[str, Any], seed: int) -> None:
        self.market = market
        self.split = MarketTensors.load(market.path).split()
        self.env = TradingEnv(self.split.train, market.config.trading, seed=derive(seed, "env"))
        self.agent = make_agent(
            market.config.only_agent.model_copy(update=values), self.env.layout, seed=seed
        )
        self.folder = tempfile.TemporaryDirectory(prefix="trial-")  # goes with the trial

    def advance(self, tenths: int) -> float:
        """Train to so many tenths of a whole training; the score on the validation window."""
        train(
            self.agent,
            self.env,
            Budget(env_steps=WHOLE),
            folder=Path(self.folder.name),
            share=tenths / LOOKS,
        )
        return self.judge()

    def judge(self) -> float:
        """The score on the validation window."""
        pair = (self.agent.policy, self.split.validation)
        score = evaluate([pair], self.market.config.trading, EvaluationTerms(METRIC)).score
        return -1e9 if score is None else score

    def keep(self, path: Path) -> None:
        save_policy(self.agent.policy, path, market=self.split.train)


def run_optuna(market: Market, name: str, seed: int) -> dict[str, dict[str, float]]:
    """Trials one after another until the steps are spent; the best look of all is published."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=seed)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if name == "tpe":
        sampler = optuna.samplers.TPESampler(seed=seed)
        pruner = optuna.pruners.MedianPruner(n_warmup_steps=2)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    policy = market.home / f"{name}-{market.config.seed}.safetensors"
    left = TOTAL
    best = -np.inf
    tenth = WHOLE // LOOKS
    began = read_cpu_seconds()
    while left >= tenth:
        asked = study.ask()
        values = {
            key: asked.suggest_float(key, space["low"], space["high"], log=space.get("log", False))
            for key, space in SEARCH.items()
        }
        trial = Trial(market, values, derive(seed, name, asked.number))
        found = -np.inf
        reached = 0
        while reached < LOOKS and left >= tenth:
            reached = reached + 1
            left = left - tenth
            score = trial.advance(reached)
            asked.report(score, reached)
            found = max(found, score)
            if score > best:
                best = score
                trial.keep(policy)
            if asked.should_prune():
                break
        if reached < LOOKS:
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(asked, found)
    spent = {
        "cpu_seconds": read_cpu_seconds() - began,
        "env_steps": TOTAL - left,
        "trials": len(study.trials),
    }
    return {name: {**market.measure(policy), **spent}}


def run_ray_apart(market: Market, name: str, seed: int) -> dict[str, dict[str, float]]:
    """Ray Tune in an environment that also sees this one's packages, which its own would move."""
    policy = market.home / f"{name}-{market.config.seed}.safetensors"
    job = {
        "home": str(market.home),
        "path": str(market.path),
        "ic": market.ic,
        "seed": seed,
        "policy": str(policy),
        "config": market.config.model_dump(mode="json"),
    }
    python = make_environment("ray", "ray[tune]>=2.30")
    mine = [Path(path) for path in sys.path if path.endswith("site-packages")]
    spent = run_child([__file__, json.dumps(job)], paths=mine, python=str(python))
    return {name: {**market.measure(policy), **spent}}


def run_ray(job: dict[str, Any]) -> None:
    """Population-based training: every round the worse quarter goes on from the better,
    hyper-parameters moved.

    CPU seconds are those of the trials' own steps; what Ray takes beside them is not counted.
    """
    from ray import init, tune
    from ray.tune.schedulers import PopulationBasedTraining

    market = Market(
        Path(job["home"]), Path(job["path"]), job["ic"], RunConfig.model_validate(job["config"])
    )
    rounds = LOOKS - 2
    clock = Path(job["policy"]).with_suffix(".seconds")
    clock.write_text("")

    class Pod(tune.Trainable):  # type: ignore[misc]
        def setup(self, values: dict[str, Any]) -> None:
            own = {key: values[key] for key in SEARCH}
            self.trial = Trial(market, own, derive(job["seed"], f"pbt-{values['number']}"))

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

        def step(self) -> dict[str, Any]:
            began = read_cpu_seconds()
            train(self.trial.agent, self.trial.env, Budget(env_steps=WHOLE // rounds))
            score = self.trial.judge()
            with clock.open("a") as file:  # actors are used again and forget their counts
                file.write(f"{read_cpu_seconds() - began}\n")
            return {"score": score}

        def save_checkpoint(self, folder: str) -> None:
            from safetensors.torch import save_file

            state = {
                key: tensor.contiguous().clone()
                for key, tensor in self.trial.agent.state_dict().items()
            }
            save_file(state, str(Path(folder) / "state.safetensors"))
            self.trial.keep(Path(folder) / "policy.safetensors")

        def load_checkpoint(self, folder: str) -> None:
            from safetensors.torch import load_file

            self.trial.agent.inherit(load_file(str(Path(folder) / "state.safetensors")))

    def space(key: str) -> Any:
        low = SEARCH[key]["low"]
        high = SEARCH[key]["high"]
        return tune.loguniform(low, high) if SEARCH[key].get("log") else tune.uniform(low, high)

    init("local", num_cpus=1, include_dashboard=False, logging_level="error")
    kept = tempfile.mkdtemp(prefix="pbt-")
    tuner = tune.Tuner(
        tune.with_resources(Pod, {"cpu": 1}),
        param_space={
            **{key: space(key) for key in SEARCH},
            "number": tune.grid_search(list(range(COUNT))),
        },
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            reuse_actors=True,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=1,
                hyperparam_mutations={key: space(key) for key in SEARCH},
                synch=True,
            ),
        ),
        run_config=tune.RunConfig(
            stop={"training_iteration": rounds},
            storage_path=kept,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=1, checkpoint_score_attribute="score"
            ),
        ),
    )
    results = tuner.fit()
    looks = [
        (at["score"], number, checkpoint)
        for number, one in enumerate(results)
        for checkpoint, at in one.best_checkpoints
    ]
    _, _, checkpoint = max(looks, key=lambda look: look[:2])
    with checkpoint.as_directory() as folder:
        shutil.copy(Path(folder) / "policy.safetensors", job["policy"])
    laps = [float(line) for line in clock.read_text().splitlines()]
    shutil.rmtree(kept, ignore_errors=True)
    spent = {"cpu_seconds": sum(laps), "env_steps": len(laps) * (WHOLE // rounds), "trials": COUNT}
    print(json.dumps(spent))


ARMS: dict[str, Callable[[Market, str, int], dict[str, dict[str, float]]]] = {
    "tournament": run_ours,
    "tournament_plain": run_ours,
    "seeds": run_ours,
    "random": run_ours,
    "asha": run_optuna,
    "tpe": run_optuna,
    "ray_pbt": run_ray_apart,
}
PEERS = ("seeds", "random", "asha", "tpe", "ray_pbt")
"""The arms that are not ours."""


if __name__ == "__main__":
    run_ray(json.loads(sys.argv[1]))
