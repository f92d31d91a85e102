"""The whole way in one place: bars → market → tournament → backtest, each stage resumable.

Every stage leaves a finished artifact behind and begins by looking for it, so starting and resuming are one code
path: whatever is killed is picked up again by the same command.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fintrader import runs
from fintrader.agents.policy import load_policy
from fintrader.backtest import BacktestResult, metrics_table, simulate, simulate_baselines, write_backtest
from fintrader.config import dump_yaml
from fintrader.data.build import build_market
from fintrader.data.quality import quality_report
from fintrader.data.sources.planted import oracle_policy, planted_optimum
from fintrader.data.tensors import MarketTensors
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.errors import RunError
from fintrader.pipeline.configuration import RunConfig, load_config
from fintrader.progress import Progress, reporter
from fintrader.runs import Manifest
from fintrader.tournament.orchestrator import CHANGEABLE
from fintrader.tournament.orchestrator import run_tournament as race


@dataclass(frozen=True)
class RunOutcome:
    """What a run left behind."""

    folder: Path
    metrics: dict[str, dict[str, Any]]
    """Strategy -> metric -> value; the content of `backtest/metrics.json`."""
    trials: int
    """Pods that were trained: what the winner was chosen from."""


def run(config: RunConfig) -> RunOutcome:
    """All stages; prints the table and the paths of what it wrote.

    Raises RunError when the run's folder is in use, or was made with other settings.
    """
    with config.folder.lock():
        manifest = claim(config)
        market = make_market(config, manifest)
        _tournament_stage(config, manifest, market)
        return _backtest_stage(config, manifest, market)


def run_tournament(config: RunConfig | Path | str) -> Path:
    """Data and tournament; returns the run's folder. Takes settings or the path of a YAML configuration."""
    if not isinstance(config, RunConfig):
        config = load_config(Path(config))
    with config.folder.lock():
        manifest = claim(config)
        _tournament_stage(config, manifest, make_market(config, manifest))
    return config.folder.root


def backtest_run(folder: Path, config: RunConfig) -> RunOutcome:
    """Backtest a run's stored policies again, with the settings of `config` where they concern the backtest."""
    config = config.model_copy(update={"name": folder.resolve().name, "runs_dir": folder.resolve().parent})
    with config.folder.lock():
        manifest = Manifest.load(config.folder.manifest)
        if not manifest.done("tournament"):
            raise RunError(f"{folder}: its tournament has not finished; run `fintrader run {folder}/config.yaml` first")
        return _backtest_stage(config, manifest, make_market(config, manifest), again=True)


def build_data(config: RunConfig) -> Path:
    """The market file of a configuration, built unless it is there already; prints what it holds."""
    path = _build(config)
    market = MarketTensors.load(path)
    first, last = (str(stamp)[:16] for stamp in market.timestamps()[[0, -1]])
    print(
        f"{path}: {market.num_assets} symbols x {market.num_bars} bars x {market.num_features} features, "
        f"{first} to {last} UTC, content {MarketTensors.stored_hash(path)[:12]}"
    )
    return path


def report_quality(config: RunConfig) -> dict[str, Any]:
    """Print what is missing or was repaired in a configuration's bars, as JSON; also returned."""
    report = quality_report(config.data)
    print(runs.dump_json(report), end="")
    return report


def claim(config: RunConfig) -> Manifest:
    """The run's manifest, new or as it stands. Raises RunError when the folder was made with other settings.

    Settings that alter no pod that exists (how many pods, say) may change: the tournament then goes on with them, and
    what followed from it is made again.
    """
    folder = config.folder
    text = dump_yaml(config)
    extended = False
    if folder.config.is_file():
        # Through the model, so that a setting which this version added counts with its default.
        before, now = _flat(load_config(folder.config).model_dump(mode="json")), _flat(config.model_dump(mode="json"))
        for field in sorted(set(before) | set(now)):
            if field in _PLACES or before.get(field) == now.get(field):
                continue
            if field.removeprefix("tournament.").split(".")[0] not in CHANGEABLE:
                raise RunError(
                    f"{folder.root} was made with other settings ({field}: {before.get(field)} there, "
                    f"{now.get(field)} here); choose another --name, or remove the folder"
                )
            extended = True
    if folder.manifest.is_file():
        manifest = Manifest.load(folder.manifest)
        if extended:
            manifest.reopen("tournament", "backtest")
    else:
        manifest = Manifest.create(
            folder.manifest,
            name=config.name,
            seed=config.seed,
            device=config.resolved_device(),
            config_hash=hashlib.sha256(text.encode()).hexdigest(),
            command=f"fintrader run {folder.config}",
        )
    if extended or not folder.config.is_file():
        runs.write_text(folder.config, text)
    return manifest


_PLACES = ("runs_dir", "cache", "name")
"""Settings that say where things lie and change no result."""


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict) or not values:
        return {prefix.removesuffix("."): values}
    return {key: value for name, below in values.items() for key, value in _flat(below, f"{prefix}{name}.").items()}


def _build(config: RunConfig) -> Path:
    with reporter() as progress:
        return build_market(config.data, cache=config.cache, progress=progress)


def make_market(config: RunConfig, manifest: Manifest) -> Path:
    with manifest.stage("data"):
        path = _build(config)
        content = MarketTensors.stored_hash(path)
        before = manifest.values["data_hash"]
        if before not in (None, content):
            raise RunError(
                f"{config.folder.root} was made from other bars (data hash {before[:12]} there, {content[:12]} now); "
                "put the old file back, or choose another --name"
            )
        manifest.update(market=str(path), data_hash=content)
    return path


def _tournament_stage(config: RunConfig, manifest: Manifest, market: Path) -> None:
    if manifest.done("tournament"):
        return
    with manifest.stage("tournament"), reporter() as progress:
        result = race(
            config.tournament,
            folder=config.folder,
            market=market,
            env=config.env,
            agent=config.agents or config.agent,
            seed=config.seed,
            device=config.resolved_device(),
            progress=progress,
            data_hash=manifest.values["data_hash"],
        )
        manifest.update(trials=result.trials, best=result.best)


def _backtest_stage(config: RunConfig, manifest: Manifest, market: Path, *, again: bool = False) -> RunOutcome:
    folder = config.folder
    if again or not manifest.done("backtest"):
        with manifest.stage("backtest"):
            _simulate_all(config, manifest, market)
    manifest.finish()
    stored = runs.read_json(folder.backtest / "metrics.json")
    metrics = {name: stored[name] for name in sorted(stored, key=_rank)}
    _print_outcome(config, manifest, metrics)
    return RunOutcome(folder.root, metrics, int(manifest.values["trials"]))


STRATEGIES = ("ensemble", "best", "buy_and_hold", "equal_weight", "benchmark")
"""The order of tables: ours, then what anybody could have had."""


def _rank(strategy: str) -> int:
    return STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES)


def _simulate_all(config: RunConfig, manifest: Manifest, path: Path) -> None:
    """Ensemble, best pod and baselines over the chosen window, written as one backtest."""
    market: MarketTensors = getattr(MarketTensors.load(path).split(), config.backtest.window)
    env = config.env
    if config.backtest.cost_bps is not None:
        env = env.model_copy(update={"cost_bps": config.backtest.cost_bps})
    trials = int(manifest.values["trials"])
    with reporter() as progress:
        chosen = {"ensemble": config.folder.ensemble, "best": config.folder.pod(manifest.values["best"])}
        results = {
            name: simulate(load_policy(home / "policy.safetensors"), market, env, name=name, progress=progress)
            for name, home in chosen.items()
        }
        results |= simulate_baselines(market, env, progress=progress)
        planted = _planted(market, env, results, progress)
    context = {
        "run": config.name,
        "window": config.backtest.window,
        "trials": trials,
        "seed": config.seed,
        "data_hash": manifest.values["data_hash"],
        "config_hash": manifest.values["config_hash"],
        "versions": manifest.values["versions"],
        "command": manifest.values["command"],
    }
    write_backtest(config.folder.backtest, results, context=context | ({"planted": planted} if planted else {}))


def _planted(
    market: MarketTensors, env: EnvSettings, results: dict[str, BacktestResult], progress: Progress
) -> dict[str, Any] | None:
    """What could be earned at best in a synthetic market, and the share of it that was; None in a real one.

    Adds the strategy `oracle`, which knows the planted states and trades them optimally in the same environment.
    """
    planted = market.meta.get("planted")
    if planted is None or env.action != "target" or env.half_spread_bps or env.impact_bps_per_million_usd:
        return None
    optimum = planted_optimum(planted, env.cost_bps, market.num_bars - 1)
    layout = TradingEnv.evaluation(market, env).layout
    results["oracle"] = simulate(
        oracle_policy(market, layout, env.cost_bps), market, env, name="oracle", progress=progress
    )
    reached = {name: 1.0 + float(result.metrics["cumulative_return"] or 0.0) for name, result in results.items()}
    best = math.log(reached["oracle"])
    return {
        "expected_multiple": optimum.expected_multiple,
        "share_of_expected": {name: optimum.share(reached[name]) for name in ("ensemble", "best", "oracle")},
        "share_of_oracle": {name: math.log(reached[name]) / best for name in ("ensemble", "best")} if best > 0 else {},
    }


def _print_outcome(config: RunConfig, manifest: Manifest, metrics: dict[str, dict[str, Any]]) -> None:
    """The paper's table, what it was chosen from, and where everything lies."""
    folder, console = config.folder, Console()
    if not console.is_terminal:
        console = Console(width=120)  # a log file has room; a table cut to 80 columns hides its figures
    context = runs.read_json(folder.backtest / "context.json")
    title = f"{config.name}: {context['window']} window, net of {config.env.cost_bps:g} bps a trade"
    console.print(metrics_table(metrics, title=title))
    console.print(f"Chosen from {manifest.values['trials']} trials by their validation {config.tournament.metric}.")
    if planted := context.get("planted"):
        expected = planted["share_of_expected"]["ensemble"]
        oracle = planted["share_of_oracle"].get("ensemble")
        console.print(
            f"Planted signal: the ensemble reached {expected:.0%} of the best expected log growth"
            + (f", {oracle:.0%} of what the oracle made of this window." if oracle is not None else ".")
        )
    for path in (folder.backtest / "report.html", folder.backtest / "metrics.json", folder.leaderboard, folder.root):
        console.print(f"  {path}", highlight=False)
