"""Run folders for tests, made by the very writers that make real ones, so that formats cannot drift
apart."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fintrader.agents.settings import Budget
from fintrader.backtesting import simulate, simulate_all_baselines, write_backtest
from fintrader.backtesting.baselines import benchmark
from fintrader.backtesting.explain import OWN
from fintrader.backtesting.sensitivity import Choices, sensitivity
from fintrader.envs import EnvSettings
from fintrader.files import append_jsonl, write_json, write_text
from fintrader.market.market_file import read_description
from fintrader.market.tensors import MarketTensors
from fintrader.results.context import BacktestContext
from fintrader.results.explanation import ExplainedDecision, Explanation
from fintrader.results.market_description import MarketSource, Provenance
from fintrader.results.strategy_metrics import StrategyMetrics
from fintrader.results.tournament_events import LaunchEvent, LossEvent, ProposalEvent, StartEvent
from fintrader.runs import Manifest, RunFolder
from fintrader.tournament.events import EventLog
from fintrader.tournament.leaderboard import FinishedPod, LeaderboardIndex
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import Placement, build_result_event
from fintrader.verdict.selection import SearchRecord
from fintrader.verdict.verdict import NullSearch
from tests.engines import stubs
from tests.factories import make_market

START = 1_790_000_000.0
"""Moment at which a fake tournament starts, seconds since 1970."""
PODS = 8
"""Of the tournament of a run."""


def save_market(
    cache: Path,
    *,
    bars: int = 900,
    seed: int = 0,
    timezone: str = "America/New_York",
    hours: float = 0,
    kind: str = "",
) -> Path:
    """A market file with gaps, a late listing and a delisting, of New York or elsewhere: so many
    `hours` later. `kind` of its source: none by default."""
    market = make_market(bars, 5, 3, seed=seed, session_bars=30, volatility=0.002)
    market = replace(
        market,
        minutes=market.minutes + int(hours * 3600 * 10**9),
        provenance=Provenance(MarketSource(kind) if kind else None, timezone=timezone),
    )
    path = cache / f"market-{seed}.safetensors"
    market.save(path)
    return path


def make_run(
    runs: Path,
    name: str = "demo",
    *,
    market: Path,
    seed: int = 0,
    stage: str = "finished",
    checked: bool = False,
) -> RunFolder:
    """A run as it looks when `stage` has been reached: `started`, `racing`, `raced` or `finished`.

    `checked`: with everything that tells skill from luck, which is left out where a run did not ask
    for it.
    """
    folder = RunFolder.named(name, runs)
    config = f"name: {name}\nseed: {seed}\n"
    write_text(folder.config, config)
    manifest = Manifest.create(
        folder.manifest,
        name=name,
        seed=seed,
        device="cpu",
        config_hash=hashlib.sha256(config.encode()).hexdigest(),
        command=f"fintrader run {folder.config}",
    )
    with manifest.stage("data"):
        description, content = read_description(market)
    notice = description.provenance.notice
    manifest.update(market=str(market), data_hash=content, notice=notice)
    if stage == "started":
        return folder
    race = {"pods": PODS, "seed": seed, "data_hash": content}
    if stage == "racing":
        manifest.values["stages"]["tournament"] = {"seconds": 0.0, "done": False}
        manifest.update()
        make_tournament(folder, **race, racing=True)
        return folder
    with manifest.stage("tournament"):
        make_tournament(folder, **race)
        manifest.update(trials=PODS - 1)
    if stage == "raced":
        return folder
    with manifest.stage("backtest"):
        window = MarketTensors.load(market).split().test
        make_backtest(folder, window, seed=seed, checked=checked)
    manifest.finish()
    return folder


def make_backtest(folder: RunFolder, market: MarketTensors, *, seed: int, checked: bool) -> None:
    """Random but fixed policies and all baselines over `market`, at 2 bps, written as a real
    backtest."""
    settings = EnvSettings(cost_bps=2.0, initial_cash_usd=1e6)
    results = {}
    for k, name in enumerate(("ensemble", "best")):
        weights = torch.randn(
            market.num_assets, generator=torch.Generator().manual_seed(seed * 2 + k)
        )
        results[name] = simulate(
            lambda obs, w=weights: w.repeat(len(obs), 1), market, settings, name=name
        )
    results = simulate_all_baselines(market, settings).join(results)
    context = BacktestContext(
        run=folder.root.name,
        window="test",
        trials=PODS - 1,
        seed=seed,
        command="fintrader run",
        look=2,
        trading=settings.terms(),
    )
    checks: dict[str, Any] = {}
    if checked:
        rng = np.random.default_rng(seed)
        half = {
            name: value / 2
            for name, value in results["best"].metrics.by_key().items()
            if isinstance(value, float)
        }
        context = replace(context, null_model=StrategyMetrics.of(half))
        checks = {
            "market": market,
            "settings": settings,
            "search": SearchRecord(
                rng.normal(0, 0.01, (16, PODS - 1)), null_model=NullSearch(0.1, 0.7, "sharpe")
            ),
            "sensitivity": sensitivity(
                lambda obs: torch.full((len(obs), market.num_assets), 0.3),
                market,
                settings,
                choices=Choices(costs_bps=(0.0, 10.0, 20.0), stocks=False),
            ),
        }
        write_json(folder.root / "lookahead.json", {"leaks": [], "unproved": ["3 of 9 other bars"]})
    moved = explanation_of(market, np.random.default_rng(seed))
    write_backtest(folder.backtest, results, context=context, explanation=moved, **checks)


def explanation_of(market: MarketTensors, rng: np.random.Generator) -> Explanation:
    """What might have moved some decisions."""
    inputs = (*market.feature_names, OWN)
    symbols = market.symbols[:3]
    times = np.datetime_as_string(market.minutes.numpy().astype("M8[ns]"), unit="s")
    decisions = [
        ExplainedDecision(
            time=f"{times[bar]}Z",
            moved=tuple(rng.random(len(inputs)).round(6).tolist()),
            symbols=symbols,
            weights=tuple(rng.random(len(symbols)).round(6).tolist()),
            raised=tuple(
                map(tuple, rng.normal(0, 0.1, (len(symbols), len(inputs))).round(6).tolist())
            ),
        )
        for bar in range(0, market.num_bars - 1, 40)
    ]
    return Explanation("ensemble", market.num_bars - 1, inputs, tuple(decisions))


def make_tournament(
    folder: RunFolder, *, pods: int, seed: int, data_hash: str = "", racing: bool = False
) -> None:
    """Specs, results, learning curves, events and leaderboard of `pods` pods; the fourth one dies
    of NaN.

    While `racing`, the last two pods have not ended: one is at work, one waits.
    """
    rng = np.random.default_rng(seed)
    store = RunStore(folder)
    log = EventLog(folder.events)
    board = LeaderboardIndex(folder.leaderboard)
    log.append(StartEvent(token=1, of="", pods=pods, seed=seed))
    entries: list[FinishedPod] = []
    specs: list[PodSpec] = []
    for index in range(pods):
        parents = [entry for entry in entries if entry.result.score is not None]
        parent = (
            parents[int(rng.integers(len(parents)))] if len(parents) > 2 and index % 4 else None
        )
        inherited = {"snapshot": parent.result.snapshot} if parent else {}
        rate = float(10 ** rng.uniform(-4, -3))
        spec = _spec(
            index, rate, parent and parent.spec, seen=len(entries), data_hash=data_hash, **inherited
        )
        store.write_spec(spec)
        specs.append(spec)
        pod = spec.pod
        log.append(ProposalEvent(pod=pod, origin=spec.origin, parent=spec.parent, seen=spec.seen))
        if racing and index == pods - 1:
            continue
        running = racing and index == pods - 2
        failed = index == 3
        begin = START + 12.0 * (index // 2)
        log.append(LaunchEvent(pod=pod, attempt=1, time=0.0 if running else begin))
        for update in range(5 if running else 20):
            record = {
                "update": update + 1,
                "env_steps": (update + 1) * 1000,
                "seconds": (update + 1) * 0.5,
                "policy_loss": float(rng.normal() / 10),
                "value_loss": float(np.exp(-update / 8) + rng.random() / 10),
                "entropy": 1.4 - 0.01 * update,
                "steps_per_second": 20_000.0 + float(rng.normal() * 500),
            }
            append_jsonl(folder.pod(spec.pod) / "metrics.jsonl", record)
        if running:
            continue
        score = None if failed else float(rng.normal() + index / 10)
        outcome: dict[str, Any]
        if failed:
            outcome = {"detail": "loss is not finite"}
            log.append(LossEvent(pod=pod, attempt=1, reason="nan", time=begin + 10.0, **outcome))
        else:
            outcome = {
                "benchmark_score": 0.4,
                "window_scores": (0.5,),
                "metrics": {"sharpe": 0.5, "cumulative_return": 0.01},
                "snapshot": store.put(pod.encode()),
            }
        returns = tuple(rng.normal(0, 0.01, 12).tolist())
        result = store.write_result(_result(spec, score, begin, returns=returns, **outcome))
        entries.append(FinishedPod(spec, result))
        log.append(build_result_event(entries[-1], len(entries) - 1, Placement(True, position=1)))
    board.rebuild(16, specs, entries)
    if racing:
        with board.connection as connection:
            connection.execute(
                "UPDATE pods SET state = 'running', device = 'cpu' WHERE idx = ?", (pods - 2,)
            )
    board.close()


def _spec(index: int, rate: float, parent: PodSpec | None, **more: Any) -> PodSpec:
    """A pod of that learning rate, with its parent's generation behind it."""
    if parent:
        more |= {"origin": "exploit", "parent": parent.pod, "generation": parent.generation + 1}
    agent = {"algo": "ppo", "learning_rate": rate, "gamma": 0.99, "hidden": [64, 64]}
    budget = Budget(env_steps=20_000)
    return stubs.spec(index, agent=agent, hyper={"learning_rate": rate}, budget=budget, **more)


def _result(spec: PodSpec, score: float | None, begin: float, **more: Any) -> PodResult:
    """What a pod came to in ten seconds from `begin` on; without a score it died of NaN."""
    return PodResult(
        pod=spec.pod,
        status="failed" if score is None else "done",
        reason="nan" if score is None else "",
        spec=spec.digest,
        score=score,
        env_steps=20_000,
        updates=20,
        started=begin,
        finished=begin + 10.0,
        seconds=10.0,
        device="cpu",
        **more,
    )


def many_runs(template: RunFolder, runs: Path, count: int) -> None:
    """`count` runs: copies of what the list reads, the rest hard-linked."""
    for k in range(count):
        folder = RunFolder.named(f"run-{k:04d}", runs)
        folder.backtest.mkdir(parents=True)
        manifest = Manifest.load(template.manifest)
        manifest.path = folder.manifest
        manifest.update(
            name=folder.root.name,
            seed=k,
            created=f"2026-01-01T{k // 60 % 24:02d}:{k % 60:02d}:00+00:00",
        )
        for path in template.backtest.iterdir():
            if path.is_file():
                os.link(path, folder.backtest / path.name)
        for part in ("config.yaml", "leaderboard.sqlite", "events.jsonl"):
            os.link(template.root / part, folder.root / part)


def long_backtest(folder: RunFolder, *, bars: int) -> int:
    """Put a backtest of two strategies over `bars` minute bars in the place of the run's; returns
    its rows."""
    settings = EnvSettings()
    results = {}
    for seed, name in enumerate(("ensemble", "benchmark")):
        market = make_market(bars, 1, seed=seed, gaps=False, session_bars=390, volatility=1e-4)
        results[name] = replace(
            benchmark(market, settings), name=name, has_positions=name != "benchmark"
        )
    return len(write_backtest(folder.backtest, results, context=BacktestContext(trials=7)).equity)


def long_race(folder: RunFolder, *, pods: int) -> None:
    """Put a leaderboard of so many pods in the place of the run's, as the real one writes it."""
    rng = np.random.default_rng(5)
    for path in folder.root.glob("leaderboard.sqlite*"):
        path.unlink()
    specs = []
    entries = []
    for index in range(pods):
        parent = (
            specs[int(rng.integers(max(0, index - 200), index))]
            if index > 20 and index % 4
            else None
        )
        spec = _spec(index, float(10 ** rng.uniform(-4, -3)), parent, seen=index, data_hash="")
        score = None if index % 17 == 3 else float(rng.normal())
        specs.append(spec)
        entries.append(FinishedPod(spec, _result(spec, score, START + 12.0 * (index // 4))))
    board = LeaderboardIndex(folder.leaderboard)
    board.rebuild(16, specs, entries)
    board.close()
