"""Estimates of a run's time and memory before it starts, from earlier runs on this machine or from
constants.

An estimate names its evidence and a range that probably holds the truth.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from fintrader.agents.settings import OffPolicySettings
from fintrader.config import validate
from fintrader.errors import ConfigError, FintraderError
from fintrader.market.synthetic import SyntheticSettings
from fintrader.memory import HOST, measure_free_memory
from fintrader.numerals import format_count
from fintrader.pipeline.config import RunConfig, changed_results
from fintrader.results.folders import Folder, RunsFolder
from fintrader.results.formatting import duration
from fintrader.results.run import Summary
from fintrader.system import count_usable_cores
from fintrader.tournament.launchers.local import find_slots
from fintrader.tournament.schedulers import Halving
from fintrader.tournament.settings import TournamentSettings

Sure = Literal["likely", "rough", "a guess"]
FACTOR: Mapping[Sure, float] = {"likely": 1.4, "rough": 2.5, "a guess": 5.0}
"""Factor by which the true value may exceed or fall short of an estimate."""
STEPS_PER_SECOND = 100_000.0
"""Env-steps of one pod on one core of a server of 2024, PPO on 8 symbols, its code compiled."""
DECISION_SECONDS = {"apg": 0.02}
"""A decision of all accounts together, with its part of the updates: the calls cost as much for few
accounts as for some hundred. 0.006 for others that learn from their own steps."""
UPDATE_SECONDS = 0.01
"""An update of SAC from 512 replayed steps, on the same core."""
SYMBOLS = 8
MOST_RECORDS = 20
"""Most earlier runs to compare with."""
COMPILING_SECONDS = 25.0
"""The first run on a machine compiles the environment's code."""
MAIN_BYTES = 470 << 20
POD_BYTES = 374 << 20
"""Memory of the command itself and of a pod, without their market: mostly torch. Memory
that processes share counts once."""
COMPILING_BYTES = 100 << 20
"""Further memory of each process that compiles."""
DECISION_BYTES = 160
"""Memory of a pod for each symbol at each decision of its backtests: holdings, orders, fills."""
GPU_POD_BYTES = 160 << 20
GPU_REPLAY_BYTES = 600 << 20
GPU_STEP_BYTES = {"ppo": 90, "a2c": 145, "apg": 1020, "mlp": 720}
"""Memory on a GPU: of a pod without its market and experience, further memory if it replays, and
of an env-step for each symbol. From torch's peaks in benchmarks/results/gpu.json."""
_ONLY_LENGTH = frozenset(
    {"seed", "tournament.pods", "tournament.budget.env_steps", "tournament.workers"}
)
_ONLY_LENGTH_GROUPS = ("backtest.", "walkforward.", "tournament.search.")


@dataclass(frozen=True)
class EarlierRun:
    """Seconds of an earlier run on this machine."""

    name: str
    config: RunConfig
    race_seconds: float
    """Seconds of one search of all its pods: the shorter of tournament and null model, because the
    first one may include compiling."""
    other_seconds: float
    """Seconds of all other stages."""
    market_bytes: int | None = None


@dataclass(frozen=True)
class Estimate:
    """Time and memory that a run will probably take."""

    tournament_seconds: float
    null_seconds: float
    """Seconds of the null model, which repeats the tournament; 0 if it is left out."""
    other_seconds: float
    memory_bytes: int | None
    """Peak memory on this machine; None while the size of the market is unknown."""
    sure: Sure
    why: str
    """Evidence for the estimate."""
    shortage: str = ""
    """Free memory and the slots that fit, where the run needs more; empty otherwise."""
    at_once: int = 1
    """Pods at work at the same time."""
    gpu_bytes: int | None = None
    """Peak memory of a pod on a GPU; None without GPUs, or while the market's size is unknown."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.tournament_seconds + self.null_seconds + self.other_seconds

    def describe(self) -> str:
        """Describe time and memory, and how certain they are."""
        null = (
            f", {duration(self.null_seconds)} of it for the null model" if self.null_seconds else ""
        )
        room = "memory unknown until the bars are read"
        if self.memory_bytes is not None:
            room = f"about {self.memory_bytes / 2**30:.1f} GiB of memory{self.shortage}"
        if self.gpu_bytes is not None:
            room += f"; a pod needs about {self.gpu_bytes / 2**30:.1f} GiB of its GPU (a guess)"
        factor = FACTOR[self.sure]
        least = duration(self.seconds / factor)
        return (
            f"About {duration(self.seconds)} ({least} to {duration(self.seconds * factor)}"
            f" if nothing else runs here){null}; {room}. {self.sure.capitalize()}: {self.why}."
        )


def record_of(
    name: str, config: Mapping[str, Any], stages: Mapping[str, Any], market: int | None
) -> EarlierRun | None:
    """Describe an earlier run; None if its results are not finished, or if this version cannot read
    its configuration."""
    took = {
        stage: float(entry["seconds"])
        for stage, entry in stages.items()
        if isinstance(entry, Mapping)
        and entry.get("done")
        and isinstance(entry.get("seconds"), int | float)
    }
    races = [took[stage] for stage in ("tournament", "null_model") if took.get(stage, 0.0) > 0]
    if "tournament" not in took or not races or took.keys().isdisjoint(("backtest", "evaluation")):
        return None
    try:
        settings = validate(RunConfig, dict(config), name)
    except ConfigError:
        return None
    return EarlierRun(name, settings, min(races), sum(took.values()) - sum(races), market)


def list_records(
    runs: RunsFolder, newest: Iterable[Summary], read: Callable[[Folder], Any]
) -> list[EarlierRun]:
    """List records of the newest finished runs, without walk-forwards, whose stages hold many
    searches; `read` reads the settings of one."""
    found = []
    whole = [
        one
        for one in newest
        if one.status == "finished" and not (one.command or "").startswith("fintrader walkforward")
    ]
    for run in whole[:MOST_RECORDS]:
        with contextlib.suppress(FintraderError):
            market = Path(run.market or "")
            size = market.stat().st_size if market.is_file() else None
            found.append(record_of(run.name, read(runs.run(run.name)), run.stages, size))
    return [*filter(None, found)]


def estimate(config: RunConfig, records: Sequence[EarlierRun]) -> Estimate:
    """Estimate a run of these settings from the most similar earlier run."""
    likely = next((one for one in records if _differs_in_length_only(one.config, config)), None)
    like = likely or next((one for one in records if _comparable(one.config, config)), None)
    settings = config.tournament
    compiling = 0.0
    if settings.budget.seconds is not None:
        race = _count_rounds(settings) * settings.budget.seconds
    elif like:
        race = like.race_seconds * _work(settings) / _work(like.config.tournament)
    else:
        race = _work(settings) * fmean(_guess_seconds(config, agent) for agent in config.agents)
        compiling = 0.0 if config.is_classic else COMPILING_SECONDS
    other = like.other_seconds if like else 30.0
    stored = like.market_bytes if like and like.config.data == config.data else None
    market = stored or _market_bytes(config)
    pods = _at_once(settings)
    needed, shortage = _find_room(config, market, pods, compiling > 0)
    sure: Sure = "likely" if likely else "rough" if like else "a guess"
    why = "no such run has finished here; assumes another machine's speed"
    if like:
        trained = f"trained {' and '.join(_algorithms(like.config))} on other settings"
        why = f"scaled from the run {like.name}, which"
        why += f" {'differs in length only' if likely else trained}"
    return Estimate(
        race + compiling,
        race if config.backtest.null_model and not config.is_classic else 0.0,
        other,
        needed,
        sure,
        why,
        shortage,
        pods,
        _gpu_bytes(config, market),
    )


def _find_room(
    config: RunConfig, market: int | None, pods: int, is_compiling: bool
) -> tuple[int | None, str]:
    """Find the bytes that a run needs, and describe the room here if it is less."""
    if market is None:
        return None, ""
    # Prices as accounts read them, and rows of the windows that are scored, are a pod's own;
    # the pages of the market's file are shared. Later the null
    # model's file takes the place of the market's.
    interval = getattr(config.env, "decision_interval", 1)
    decisions = market // (_cell_bytes(config) * interval)
    compiler = is_compiling * COMPILING_BYTES
    own = POD_BYTES + market // 3 + _experience_bytes(config, {}) + DECISION_BYTES * decisions
    own += compiler
    shared = MAIN_BYTES + market + compiler
    needed = shared + pods * own
    free = measure_free_memory(HOST)
    if free is None or free >= needed:
        return needed, ""
    fit = format_count(min(count_usable_cores(), max(0, free - shared) // own), "slot")
    return (
        needed,
        f", and only {free / 2**30:.1f} GiB are free here, enough for {fit} (tournament.workers)",
    )


def _guess_seconds(config: RunConfig, agent: Any) -> float:
    """Guess the seconds of one env-step, with its part of the agent's updates."""
    seconds = max(1.0, (_shape(config)[1] or SYMBOLS) / SYMBOLS) / STEPS_PER_SECOND
    of_all = DECISION_SECONDS.get(agent.algo, 0.006)
    if isinstance(agent, OffPolicySettings):
        of_all = agent.updates_per_step * UPDATE_SECONDS
    return seconds + of_all / config.env.num_envs


def _differs_in_length_only(before: RunConfig, now: RunConfig) -> bool:
    return all(
        field in _ONLY_LENGTH or field.startswith(_ONLY_LENGTH_GROUPS)
        for field in changed_results(before, now)
    ) and (before.tournament.budget.env_steps is None) == (now.tournament.budget.env_steps is None)


def _comparable(before: RunConfig, now: RunConfig) -> bool:
    steps = before.tournament.budget.env_steps, now.tournament.budget.env_steps
    alike = before.env.kind == now.env.kind and None not in steps
    return alike and _algorithms(before) == _algorithms(now)


def _algorithms(config: RunConfig) -> list[str]:
    """List the names of the algorithms that take part."""
    return [agent.algo for agent in config.agents]


def _at_once(settings: TournamentSettings) -> int:
    """Pods that are at work at the same time."""
    workers = settings.workers or len(find_slots(settings.devices))
    return max(1, min(workers, settings.at_once or settings.pods, settings.pods))


def _count_rounds(settings: TournamentSettings) -> float:
    """Budgets in sequence: rounds of pods at work at once; of halving those of each rung."""
    rungs = [(0, 1.0)] if settings.order != "halving" else Halving(settings.pods).rungs
    return sum(
        math.ceil((end - first) / _at_once(settings)) * times
        for (first, times), (end, _) in pairwise([*rungs, (settings.pods, 0.0)])
    )


def _work(settings: TournamentSettings) -> float:
    """Env-steps in sequence: those of a pod, times the rounds of pods, times the pods that share a
    core."""
    crowded = max(1.0, _at_once(settings) / count_usable_cores())
    return _count_rounds(settings) * crowded * float(settings.budget.env_steps or 1.0)


def _shape(config: RunConfig) -> tuple[int | None, int | None]:
    """Bars and symbols, None where the settings do not determine them."""
    source = config.data.effective().source
    if config.is_classic:  # no market
        return 0, 0
    if isinstance(source, SyntheticSettings):
        return source.num_sessions * max(1, 390 // config.data.bar_minutes), source.num_symbols
    return None, len(config.data.universe.symbols) or None


def _market_bytes(config: RunConfig) -> int | None:
    """Bytes of the market's tensors."""
    bars, symbols = _shape(config)
    return None if bars is None or symbols is None else bars * symbols * _cell_bytes(config)


def _cell_bytes(config: RunConfig) -> int:
    """Bytes of a symbol's bar: four prices and a volume, the features, two flags."""
    features = len(config.data.features.names) + len(config.data.features.extra)
    return 5 * 4 + 4 * features + 2


def _experience_bytes(config: RunConfig, step_bytes: Mapping[str, int]) -> int:
    """Bytes of the steps that an agent stores to learn from, 24 for each symbol unless
    `step_bytes` has its algorithm or network."""
    symbols = _shape(config)[1] or SYMBOLS
    return symbols * max(
        agent.buffer_size * 12
        if isinstance(agent, OffPolicySettings)
        else agent.num_steps
        * config.env.num_envs
        * step_bytes.get("mlp" if agent.network.kind == "mlp" else agent.algo, 24)
        for agent in config.agents
    )


def _gpu_bytes(config: RunConfig, market: int | None) -> int | None:
    """Bytes of a pod on a GPU; None if pods run on the CPU."""
    devices = config.tournament.devices
    names = (*devices, *(slot.name for slot in find_slots(devices)))
    if market is None or not any("cuda" in name for name in names):
        return None
    replays = any(isinstance(agent, OffPolicySettings) for agent in config.agents)
    own = GPU_POD_BYTES + replays * GPU_REPLAY_BYTES + _experience_bytes(config, GPU_STEP_BYTES)
    return own + market * 4 // 3
