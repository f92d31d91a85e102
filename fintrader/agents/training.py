"""The training loop of every agent, and its stored state: killed anywhere, a training resumes
bit-exactly."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.agents.agent import Agent
from fintrader.agents.base import Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.checkpoint import Json, add_prefix, read_tensors, select_below, write_tensors
from fintrader.agents.description import MarketIdentity
from fintrader.agents.policy import ActorPolicy, add_seen
from fintrader.agents.settings import Budget
from fintrader.config import Settings, compare_values, describe_differences
from fintrader.envs.account import may_hold
from fintrader.envs.market_view import build_once
from fintrader.envs.observation import (
    ResetReturn,
    StateDict,
    StepReturn,
    Tensors,
    layout_to_json,
)
from fintrader.errors import CheckpointError, ConfigError, TrainingError
from fintrader.files import append_jsonl, read_jsonl, write_text
from fintrader.market.tensors import MarketTensors
from fintrader.system import keep_freed_memory, measure_peak_memory

FORMAT = "fintrader-training-1"

SAVING_SHARE = 10
"""Saving takes at most 1 / SAVING_SHARE of the time."""


@dataclass(frozen=True)
class TrainProgress:
    """Progress of a training after an update."""

    fraction: float
    env_steps: int
    updates: int
    seconds: float
    steps_per_second: float
    metrics: Metrics


@dataclass(frozen=True)
class TrainResult:
    """Result of `train`."""

    env_steps: int
    updates: int
    seconds: float
    """Wall-clock, resumed parts included."""
    metrics: Metrics = field(default_factory=dict)
    """Metrics of the last update."""
    policy: ActorPolicy | None = field(default=None, repr=False, compare=False)
    """The learned policy, deterministic; shares its weights with the agent. None if the totals were
    read from a file."""

    def __repr__(self) -> str:
        reward = self.metrics.get("reward_mean")
        last = "" if reward is None else f", mean reward {reward:.3g}"
        return (
            f"<{type(self).__name__}: {self.env_steps:,} env-steps in {self.updates:,} updates,"
            f" {self.seconds:.1f} s{last}; .policy, .metrics>"
        )

    def to_json(self) -> Json:
        """Return the totals as plain JSON, without the policy: `TrainResult(**totals)` reads
        them."""
        return {name: value for name, value in vars(self).items() if name != "policy"}


class TrainingEnvironment(Protocol):
    """Vector environment that `train` can use: torch tensors on the agent's device, autoreset
    `SAME_STEP`."""

    num_envs: int

    def reset(self, *, seed: int | None = None) -> ResetReturn:
        """Start all episodes; return first observations `[B, D]`."""

    def step(self, actions: Tensor) -> StepReturn:
        """Step all accounts; return obs `[B, D]`, reward, terminated, truncated `[B]`, and
        `info["final_obs"]` where an episode ended."""

    def state_dict(self) -> StateDict:
        """Collect everything needed to continue bit-exactly."""

    def load_state_dict(self, state: Tensors) -> None:
        """Continue from a `state_dict()`."""


def train(
    agent: Agent,
    env: Any,
    budget: Budget,
    *,
    folder: Path | None = None,
    on_progress: Callable[[TrainProgress], None] | None = None,
    checkpoint_seconds: float = 10.0,
    share: float = 1.0,
) -> TrainResult:
    """Train `agent` in `env` (see `TrainingEnvironment`) until `budget` is used up, or `share` of
    it: the same call with a larger share then goes on as if it had never stopped.

    Raises TrainingError when a loss, an action or a weight is no longer finite (the state is then
    in `folder/failed.safetensors`), CheckpointError when `folder` holds the state of another
    training, ConfigError when the environment does not suit the agent.

    The state is stored every `checkpoint_seconds`, or every ten times as long as storing it takes,
    whichever is longer; after every update if 0.
    """
    check_environment(agent, env)
    keep_freed_memory()
    home = None if folder is None else Path(folder)
    run = TrainingRun(
        agent, agent.prepare_env(env), budget, home, on_progress, checkpoint_seconds, share
    )
    run.begin()
    record_bars(agent, run.env)
    with multiply_at(getattr(getattr(agent, "settings", None), "matmul", "highest")):
        while not run.is_over:
            action = agent.act(run.obs)
            run.check_action(action)
            run.clock.lap("inference")
            transition = run.step(action)
            run.clock.lap("env")
            agent.observe(transition)
            run.clock.lap("inference")
            metrics = agent.update()
            is_regular = metrics is not None
            if metrics is None and run.measure_fraction() >= share:
                metrics = agent.pause()
            run.clock.lap("learning")
            if metrics is not None:
                run.record(metrics, is_regular=is_regular)
    metrics = run.metrics or run.read_last_logged()
    return TrainResult(run.env_steps, run.updates, run.seconds, metrics, agent.policy)


@contextmanager
def multiply_at(precision: str) -> Iterator[None]:
    """Set the precision of matrix products within the block, for this process."""
    before = torch.get_float32_matmul_precision()
    if before == precision:  # within the block of other threads, which restores it
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def record_bars(agent: Agent, env: Any) -> None:
    """Record in the policy's meta which bars of a market it learns from."""
    markets = [getattr(part, "market", None) for part in getattr(env, "envs", (env,))]
    spans = [market.span.to_json() for market in markets if isinstance(market, MarketTensors)]
    add_seen(agent.policy.meta, spans)


class LoopClock:
    """Seconds by part of the loop; on a GPU measured between CUDA events, and read when all work
    is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.parts = {"env": 0.0, "inference": 0.0, "learning": 0.0}
        self.mark = self._mark()
        self.laps: list[tuple[str, Any]] = []

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def lap(self, part: str) -> None:
        """Count the time since the last lap to `part`."""
        now = self._mark()
        if self.device.type == "cuda":
            self.laps.append((part, now))
        else:
            self.parts[part] += now - self.mark
            self.mark = now

    def measure_rates(self, steps: int) -> Metrics:
        """Compute env-steps per second of each part."""
        if self.laps:
            self.laps[-1][1].synchronize()
        for part, event in self.laps:
            self.parts[part] += self.mark.elapsed_time(event) / 1000
            self.mark = event
        self.laps = []
        rates = {
            f"steps_per_second_{part}": steps / max(seconds, 1e-9)
            for part, seconds in self.parts.items()
        }
        return {**rates, "steps_per_second": steps / max(sum(self.parts.values()), 1e-9)}


@dataclass
class TrainingRun:
    """One training: its progress, its log, its checks for numbers that are not finite, and its
    state on disk."""

    agent: Agent
    env: Any
    budget: Budget
    folder: Path | None
    on_progress: Callable[[TrainProgress], None] | None = None
    checkpoint_seconds: float = 10.0
    share: float = 1.0
    env_steps: int = 0
    updates: int = 0
    steps_logged: int = 0
    steps_annealed: int = 0
    """Env-steps by which the step sizes were last annealed."""
    seconds: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    is_over: bool = False
    """True once `share` of the budget is used up, after an update: between updates on-policy agents
    hold an incomplete rollout, which is not stored."""
    saving_seconds: float = 0.0
    """Duration of the last save."""
    is_finite: Tensor | None = None
    """On a GPU: whether all actions since the last update were finite."""

    def begin(self) -> None:
        """Continue from the folder's state, or start."""
        if self.folder is not None and self.path.exists():
            self._resume()
        else:
            self.obs = as_tensor(self.env.reset(seed=self.agent.seed)[0])
        self._trim_log()
        self.agent.anneal(self.budget.fraction(self.steps_annealed, self.seconds))
        self.is_over = self.budget.fraction(self.env_steps, self.seconds) >= self.share
        self.steps_logged = self.env_steps
        self.clock = LoopClock(self.agent.device)
        self.started = time.perf_counter() - self.seconds
        self.saved = time.perf_counter()

    def check_action(self, action: Tensor) -> None:
        """Raise TrainingError unless `action [B, N]` is finite. On a GPU the result is read in
        `record`."""
        # One pass: a sum is finite only if all its terms are.
        total = action.detach().sum()
        # Reading the answer from a GPU would wait for it, unless the environment needs the actions
        # on the host anyway.
        if self.agent.device.type != "cpu" and not getattr(self.env, "on_host", False):
            is_finite = total.isfinite()
            self.is_finite = is_finite if self.is_finite is None else self.is_finite & is_finite
        elif not math.isfinite(total):
            raise self.fail(["actions"])

    def step(self, action: Tensor) -> Transition:
        """Step every account."""
        obs = self.obs
        shown, reward, terminated, truncated, info = self.env.step(action)
        self.obs = as_tensor(shown)
        self.env_steps += self.env.num_envs
        after = select_true_next_obs(self.obs, info, terminated, truncated)
        settings = getattr(self.agent, "settings", None)
        if getattr(settings, "bootstrap", True) is not True:
            terminated = terminated | truncated
            truncated = torch.zeros_like(truncated)
        return Transition(obs, action, reward.float(), terminated, truncated, after)

    def measure_fraction(self) -> float:
        """Measure the share of the budget that is used up."""
        return self.budget.fraction(self.env_steps, time.perf_counter() - self.started)

    def record(self, metrics: Metrics, *, is_regular: bool = True) -> None:
        """Check an update, log it, report progress, and store the state when that is due. Step
        sizes change at regular updates only, so that a pause changes nothing.

        Raises TrainingError when a metric, an action since the last update or a weight is not
        finite.
        """
        if self.agent.differentiable:
            # Forget the accounts' past: the next update differentiates from here.
            self.obs = self.obs.detach()
            self.env.load_state_dict(
                {name: tensor.detach() for name, tensor in self.env.state_dict().items()}
            )
        self.updates += 1
        self.seconds = time.perf_counter() - self.started
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if self.is_finite is not None and not self.is_finite:
            broken.insert(0, "actions")
        self.is_finite = None
        if broken:
            raise self.fail(broken)
        self.metrics = {**metrics, **self.clock.measure_rates(self.env_steps - self.steps_logged)}
        self.steps_logged = self.env_steps
        self._log()
        fraction = self.budget.fraction(self.env_steps, self.seconds)
        self.is_over = fraction >= self.share
        if is_regular or fraction >= 1.0:
            self.steps_annealed = self.env_steps
            self.agent.anneal(fraction)
        pause = self.checkpoint_seconds
        if pause:
            pause = max(pause, SAVING_SHARE * self.saving_seconds)
        if self.is_over or time.perf_counter() - self.saved >= pause:
            self._save_if_finite()
        if self.on_progress is not None:
            self._report(self.on_progress, fraction)
        self.clock = LoopClock(self.agent.device)  # excludes the time since the update

    def _report(self, on_progress: Callable[[TrainProgress], None], fraction: float) -> None:
        """Report progress. The time for this, e.g. of a validation, does not count towards the
        budget."""
        rate = self.metrics["steps_per_second"]
        progress = TrainProgress(
            fraction, self.env_steps, self.updates, self.seconds, rate, self.metrics
        )
        before = time.perf_counter()
        on_progress(progress)
        self.started += time.perf_counter() - before

    def _log(self) -> None:
        """Append the last update's metrics."""
        if self.folder is not None:
            counters = {
                "update": self.updates,
                "env_steps": self.env_steps,
                "seconds": round(self.seconds, 3),
            }
            record = {**counters, **self.metrics, **_measure_memory(self.agent.device)}
            append_jsonl(self.folder / "metrics.jsonl", record)

    def _trim_log(self) -> None:
        """Drop the records logged after the stored state: those updates are repeated."""
        if self.folder is None:
            return
        records = [
            record
            for record in read_jsonl(self.folder / "metrics.jsonl")
            if record["update"] <= self.updates
        ]
        lines = "".join(
            json.dumps(record, sort_keys=True, allow_nan=False) + "\n" for record in records
        )
        write_text(self.folder / "metrics.jsonl", lines)

    def read_last_logged(self) -> Metrics:
        """Read the last metrics of a training that had already ended."""
        records = read_jsonl(self.folder / "metrics.jsonl") if self.folder is not None else []
        last = records[-1] if records else {}
        return {
            name: value
            for name, value in last.items()
            if name not in ("update", "env_steps", "seconds")
        }

    @property
    def path(self) -> Path:
        assert self.folder is not None
        return self.folder / "state.safetensors"

    @cached_property
    def identity(self) -> Json:
        """Describe the training as plain JSON: the agent's seed, settings and layout, the number of
        accounts, the market (every bar) and its rules."""
        agent = self.agent
        env = self.env
        market = getattr(env, "market", None)
        settings = getattr(env, "settings", None)
        return {
            "seed": agent.seed,
            "agent": agent.settings.model_dump(mode="json"),
            "layout": layout_to_json(agent.layout),
            "num_envs": env.num_envs,
            "market": None if market is None else _describe_market(market),
            "env": (
                settings.model_dump(mode="json", exclude=_NOT_COMPARED)
                if isinstance(settings, Settings)
                else None
            ),
        }

    def _resume(self) -> None:
        tensors, header = read_tensors(self.path, FORMAT)
        odd = compare_values(header["identity"], self.identity)
        if odd:
            raise CheckpointError(
                f"{self.path} belongs to another training ({describe_differences(odd)}); go on with"
                " its seed and settings (only the budget may differ), use another folder, or"
                f" delete {self.path.name} to start over"
            )
        device = self.agent.device
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.agent.load_state_dict(select_below("agent", tensors))
        fresh = as_tensor(self.env.reset(seed=self.agent.seed)[0])
        self.env.load_state_dict(select_below("env", tensors))
        # A classic environment cannot be stored: its episodes begin anew.
        self.obs = tensors["obs"] if getattr(self.env, "resumable", True) else fresh
        self.env_steps = int(header["env_steps"])
        self.steps_annealed = int(header.get("steps_annealed", self.env_steps))
        self.updates = int(header["updates"])
        self.seconds = float(header["seconds"])

    def _save_if_finite(self) -> None:
        """Save. Raises TrainingError if a weight is not finite, so that the last good state
        remains."""
        weights = self.agent.policy.parameters()
        if not torch.stack([weight.isfinite().all() for weight in weights]).all():
            raise self.fail(["weights"])
        before = time.perf_counter()
        self.save()
        self.saved = time.perf_counter()
        self.saving_seconds = self.saved - before

    def save(self, name: str = "state.safetensors") -> None:
        """Write the state atomically."""
        if self.folder is None:
            return
        tensors = {
            **add_prefix("agent", self.agent.state_dict()),
            **add_prefix("env", self.env.state_dict()),
            "obs": self.obs,
        }
        header = {
            name: getattr(self, name)
            for name in ("identity", "env_steps", "steps_annealed", "updates", "seconds")
        }
        write_tensors(self.folder / name, tensors, header | {"format": FORMAT})

    def fail(self, broken: Sequence[str]) -> TrainingError:
        """Make the error for numbers that are no longer finite. Stores the state next to the last
        good one."""
        where = ""
        if self.folder is not None:
            self.save("failed.safetensors")
            where = f"; the state is in {self.folder / 'failed.safetensors'}"
        return TrainingError(
            f"update {self.updates}: no longer finite: {', '.join(broken)}; "
            f"lower agent.learning_rate or check the features{where}"
        )


def select_true_next_obs(
    obs: Tensor, info: Mapping[str, Any], terminated: Tensor, truncated: Tensor
) -> Tensor:
    """Select the observation `[B, D]` that each account's step led to: under `SAME_STEP` autoreset
    `final_obs` where its episode ended."""
    final = info.get("final_obs")
    done = terminated | truncated
    if final is None or not may_hold(done):
        return obs
    return torch.where(done.unsqueeze(-1), as_tensor(final), obs)


def as_tensor(obs: Any) -> Tensor:
    """Turn factored observations into `[B, P + 1]`, the clock (exact up to 2**24) last; leave
    `[B, D]` as they are."""
    if isinstance(obs, Tensor):
        return obs
    private: Tensor = obs["private"]
    return torch.cat([private.float(), obs["clock"].unsqueeze(-1).float()], dim=-1)


_NOT_COMPARED = {"num_envs", "workers"}
"""Settings of environments that do not change the problem; the number of accounts is compared
separately."""


def _describe_market(market: MarketTensors) -> Json:
    """Describe a market; replicas and rounds of one pod share it, so its bytes are read once."""
    return {
        **MarketIdentity.of(market).to_json(),
        "num_bars": market.num_bars,
        "content_hash": build_once(MarketTensors.content_hash, market),
    }


def _measure_memory(device: torch.device) -> Metrics:
    """Measure peak memory: of the device on a GPU, of the process elsewhere, in MiB."""
    if device.type == "cuda":
        return {"memory_mib": torch.cuda.max_memory_allocated(device) / 2**20}
    peak = measure_peak_memory()
    return {} if peak is None else {"memory_mib": peak / 2**20}


def read_agent_state(folder: Path) -> StateDict:
    """Read the agent's part of a training folder's state, for a child's `inherit`. Raises
    CheckpointError."""
    tensors, _ = read_tensors(Path(folder) / "state.safetensors", FORMAT)
    return select_below("agent", tensors)


def check_environment(agent: Agent, env: Any) -> None:
    """Raise ConfigError when `agent` would learn wrongly in `env`, or not at all."""
    settings = getattr(env, "settings", None)
    mode = getattr(env, "autoreset_mode", None) or getattr(env, "metadata", {}).get(
        "autoreset_mode"
    )
    if mode is not None and mode is not AutoresetMode.SAME_STEP:
        # The other modes show a last observation as if the episode went on, or step on after its
        # end.
        raise ConfigError(
            f"the environment resets by {mode}; make it with autoreset_mode=AutoresetMode.SAME_STEP"
        )
    if getattr(settings, "action", None) == "trade" and agent.head.targets_weights:
        raise ConfigError(
            f"agent.head.kind `{agent.head.kind}` makes target weights, but env.action is `trade`; "
            "set env.action to target or agent.head.kind to direct"
        )
    learners = getattr(agent.settings, "learners", 1)
    if env.num_envs % learners:
        raise ConfigError(
            f"env.num_envs is {env.num_envs}; make it a multiple of agent.learners, {learners}"
        )
    layout = getattr(env, "layout", None)
    if layout is not None and layout != agent.layout:
        raise ConfigError(
            "the agent was made for another observation layout; make it with `make_agent(...,"
            " env.layout)`"
        )
