"""The training loop of every agent, and the state that it stores: killed anywhere, a training
resumes bit-exactly."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

import torch
from gymnasium.vector import AutoresetMode
from pydantic import Field, model_validator
from torch import Tensor

from fintrader.agents.agent import Agent
from fintrader.agents.base import Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.checkpoint import below, prefixed, read_tensors, write_tensors
from fintrader.agents.policy import ActorPolicy, add_seen, market_identity
from fintrader.config import Settings, differences
from fintrader.envs.observation import layout_to_json
from fintrader.errors import CheckpointError, ConfigError, TrainingError
from fintrader.files import append_jsonl, read_jsonl, write_text
from fintrader.market.tensors import MarketTensors
from fintrader.memory import keep_freed_memory

FORMAT = "fintrader-training-1"

SAVING_SHARE = 10
"""Saving may take one part in this many of the time."""


class Budget(Settings):
    """How long to train: exactly one of the two."""

    env_steps: int | None = Field(default=None, ge=1)
    """Steps summed over all accounts; training stops at the first update that reaches it."""
    seconds: float | None = Field(default=None, gt=0)
    """Wall-clock seconds of training, resumed parts included; results then depend on the machine's
    speed."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.env_steps is None) == (self.seconds is None):
            raise ValueError("set exactly one of env_steps and seconds")
        return self

    def fraction(self, env_steps: int, seconds: float) -> float:
        """Share of the budget that is used up, at most 1."""
        used = (
            env_steps / self.env_steps
            if self.env_steps is not None
            else seconds / (self.seconds or 1.0)
        )
        return min(used, 1.0)


@dataclass(frozen=True)
class TrainProgress:
    """Where training stands after an update."""

    fraction: float
    env_steps: int
    updates: int
    seconds: float
    steps_per_second: float
    metrics: Metrics


@dataclass(frozen=True)
class TrainResult:
    """What came out of `train`."""

    env_steps: int
    updates: int
    seconds: float
    """Wall-clock, resumed parts included."""
    metrics: Metrics = field(default_factory=dict)
    """Those of the last update."""
    policy: ActorPolicy | None = field(default=None, repr=False, compare=False)
    """What was learned, deterministic; shares its weights with the agent. `train` always gives one;
    None where a training's totals were read from a file."""

    def to_json(self) -> dict[str, Any]:
        """The totals as plain JSON, without the policy: `TrainResult(**totals)` reads them."""
        return {name: value for name, value in vars(self).items() if name != "policy"}


class TrainingEnvironment(Protocol):
    """What `train` needs of a vector environment: torch tensors on the agent's device, autoreset
    `SAME_STEP`."""

    num_envs: int

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """First observations `[B, D]`."""

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """obs `[B, D]`, reward, terminated, truncated `[B]`; `info["final_obs"]` where an episode
        ended."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue bit-exactly."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
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
    run = _Training(
        agent, agent.training_env(env), budget, home, on_progress, checkpoint_seconds, share
    )
    run.begin()
    _note_bars(agent, run.env)
    while not run.over:
        action = agent.act(run.obs)
        run.watch(action)
        run.clock.lap("inference")
        transition = run.step(action)
        run.clock.lap("env")
        agent.observe(transition)
        run.clock.lap("inference")
        metrics = agent.update()
        run.clock.lap("learning")
        if metrics is not None:
            run.record(metrics)
    return TrainResult(
        run.env_steps, run.updates, run.seconds, run.metrics or run.last_logged(), agent.policy
    )


def _note_bars(agent: Agent, env: Any) -> None:
    """Note in the policy's meta which bars of a market it learns from."""
    meta = getattr(agent.policy, "meta", None)
    markets = [getattr(one, "market", None) for one in getattr(env, "envs", (env,))]
    if isinstance(meta, dict):
        add_seen(meta, [one.span.to_json() for one in markets if isinstance(one, MarketTensors)])


class _Clock:
    """Seconds by part of the loop; on a GPU they measure launches, since waiting for results would
    slow it down."""

    def __init__(self) -> None:
        self.parts = {"env": 0.0, "inference": 0.0, "learning": 0.0}
        self.mark = time.perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last lap to `part`."""
        now = time.perf_counter()
        self.parts[part] += now - self.mark
        self.mark = now

    def rates(self, steps: int) -> Metrics:
        """Env-steps a second through each part."""
        rates = {
            f"steps_per_second_{part}": steps / max(seconds, 1e-9)
            for part, seconds in self.parts.items()
        }
        return {**rates, "steps_per_second": steps / max(sum(self.parts.values()), 1e-9)}


@dataclass
class _Training:
    """One training: where it stands, its log, its watch for numbers that are not finite, and its
    state on disk."""

    agent: Agent
    env: Any
    budget: Budget
    folder: Path | None
    on_progress: Callable[[TrainProgress], None] | None = None
    checkpoint_seconds: float = 10.0
    share: float = 1.0
    clock: _Clock = field(default_factory=_Clock)
    env_steps: int = 0
    updates: int = 0
    steps_logged: int = 0
    seconds: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    over: bool = False
    """Whether that share of the budget is used up. Only an update can end a training: between two,
    an agent holds half a rollout that belongs to no result."""
    saving: float = 0.0
    """Seconds that the last save took."""
    finite: Tensor | None = None
    """On a GPU: whether all actions since the last update were."""

    def begin(self) -> None:
        """Continue from the folder's state, or start."""
        if self.folder is not None and self.path.exists():
            self._resume()
        else:
            self.obs = as_tensor(self.env.reset(seed=self.agent.seed)[0])
        self._trim_log()
        self._advance()
        self.steps_logged = self.env_steps
        self.clock = _Clock()
        self.started = time.perf_counter() - self.seconds
        self.saved = time.perf_counter()

    def watch(self, action: Tensor) -> None:
        """Raises TrainingError unless `action [B, N]` is finite. On a GPU the answer stays there
        until `record`."""
        finite = (
            action.detach().sum().isfinite()
        )  # one pass: a sum is finite only if everything in it is
        # Actions that the environment takes on the host can be looked at for nothing; elsewhere a
        # look is a wait.
        if self.agent.device.type != "cpu" and not getattr(self.env, "on_host", False):
            self.finite = finite if self.finite is None else self.finite & finite
        elif not bool(finite):
            raise self.failure(["actions"])

    def step(self, action: Tensor) -> Transition:
        """One step of every account."""
        obs = self.obs
        shown, reward, terminated, truncated, info = self.env.step(action)
        self.obs = as_tensor(shown)
        self.env_steps += self.env.num_envs
        after = true_next_obs(self.obs, info, terminated, truncated)
        return Transition(obs, action, reward.float(), terminated, truncated, after)

    def record(self, metrics: Metrics) -> None:
        """An update is done: check it, log it, tell how far training is, and store the state when
        it is time to.

        Raises TrainingError when a metric, an action since the last update or a weight is not
        finite.
        """
        if self.agent.differentiable:
            # Forget how the accounts came to be where they are: the next update differentiates from
            # here.
            self.obs = self.obs.detach()
            self.env.load_state_dict(
                {name: tensor.detach() for name, tensor in self.env.state_dict().items()}
            )
        self.updates += 1
        self.seconds = time.perf_counter() - self.started
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if self.finite is not None and not bool(self.finite):
            broken.insert(0, "actions")
        self.finite = None
        if broken:
            raise self.failure(broken)
        self.metrics = {**metrics, **self.clock.rates(self.env_steps - self.steps_logged)}
        self.steps_logged = self.env_steps
        self._log()
        fraction = self._advance()
        if self.over or time.perf_counter() - self.saved >= pause_between(
            self.checkpoint_seconds, self.saving
        ):
            self._keep()
        if self.on_progress is not None:
            rate = self.metrics["steps_per_second"]
            told = time.perf_counter()
            self.on_progress(
                TrainProgress(
                    fraction, self.env_steps, self.updates, self.seconds, rate, self.metrics
                )
            )
            self.started += (
                time.perf_counter() - told
            )  # a look at validation, say: no second of the budget
        self.clock = _Clock()  # what was done since the update counts to no part

    def _advance(self) -> float:
        """The share of the budget that is used up; step sizes move to where they stand then."""
        fraction = self.budget.fraction(self.env_steps, self.seconds)
        self.agent.anneal(fraction)
        self.over = fraction >= self.share
        return fraction

    def _log(self) -> None:
        """Append the last update's metrics."""
        if self.folder is not None:
            counters = {
                "update": self.updates,
                "env_steps": self.env_steps,
                "seconds": round(self.seconds, 3),
            }
            record = {**counters, **self.metrics, **_memory(self.agent.device)}
            append_jsonl(self.folder / "metrics.jsonl", record)

    def _trim_log(self) -> None:
        """Drop what was logged after the stored state: those updates happen again."""
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

    def last_logged(self) -> Metrics:
        """The last metrics of a training that had already ended."""
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
    def identity(self) -> dict[str, Any]:
        """Plain JSON: the agent's seed and settings, its layout, the accounts, the market (every
        bar) and its rules."""
        agent = self.agent
        env = self.env
        market = getattr(env, "market", None)
        settings = getattr(env, "settings", None)
        return {
            "seed": agent.seed,
            "agent": agent.settings.model_dump(mode="json"),
            "layout": layout_to_json(agent.layout),
            "num_envs": env.num_envs,
            "market": None if market is None else _market(market),
            "env": (
                settings.model_dump(mode="json", exclude=_NOT_COMPARED)
                if isinstance(settings, Settings)
                else None
            ),
        }

    def _resume(self) -> None:
        tensors, header = read_tensors(self.path, FORMAT)
        if odd := differences(header["identity"], self.identity):
            found = [
                f"{name}: {there!s:.40} there, {here!s:.40} here"
                for name, (there, here) in odd.items()
            ]
            raise CheckpointError(
                f"{self.path} belongs to another training ({'; '.join(found[:5])}); go on with its"
                " seed and settings (only the budget may differ), use another folder, or delete"
                " this one to start over"
            )
        device = self.agent.device
        self.agent.load_state_dict(
            {name: tensor.to(device) for name, tensor in below("agent", tensors).items()}
        )
        fresh = as_tensor(self.env.reset(seed=self.agent.seed)[0])
        self.env.load_state_dict(
            {name: tensor.to(device) for name, tensor in below("env", tensors).items()}
        )
        # A classic environment cannot be stored: its episodes begin anew.
        self.obs = tensors["obs"].to(device) if getattr(self.env, "resumable", True) else fresh
        self.env_steps = int(header["env_steps"])
        self.updates = int(header["updates"])
        self.seconds = float(header["seconds"])

    def _keep(self) -> None:
        """Save, unless the last update broke the policy: the last good state is then worth more
        than this one."""
        if not all(bool(weights.isfinite().all()) for weights in self.agent.policy.parameters()):
            raise self.failure(["weights"])
        began = time.perf_counter()
        self.save()
        self.saved = time.perf_counter()
        self.saving = self.saved - began

    def save(self, name: str = "state.safetensors") -> None:
        """Write the state atomically."""
        if self.folder is None:
            return
        tensors = (
            prefixed("agent", self.agent.state_dict())
            | prefixed("env", self.env.state_dict())
            | {"obs": self.obs}
        )
        header = {
            name: getattr(self, name) for name in ("identity", "env_steps", "updates", "seconds")
        }
        write_tensors(self.folder / name, tensors, header | {"format": FORMAT})

    def failure(self, broken: Sequence[str]) -> TrainingError:
        """The error for numbers that are no longer finite; keeps the state, apart from the last
        good one."""
        where = ""
        if self.folder is not None:
            self.save("failed.safetensors")
            where = f"; the state is in {self.folder / 'failed.safetensors'}"
        return TrainingError(
            f"update {self.updates}: no longer finite: {', '.join(broken)}; "
            f"lower agent.learning_rate or check the features{where}"
        )


def pause_between(wanted: float, saving: float) -> float:
    """Seconds between two saves: `wanted`, but so many that a save of `saving` seconds costs a
    tenth of the time."""
    return max(wanted, SAVING_SHARE * saving) if wanted else 0.0


def true_next_obs(
    obs: Tensor, info: Mapping[str, Any], terminated: Tensor, truncated: Tensor
) -> Tensor:
    """`[B, D]`: where each account's step led; under `SAME_STEP` autoreset that is `final_obs`
    where it ended."""
    final = info.get("final_obs")
    done = terminated | truncated
    if final is None or (
        done.device.type == "cpu" and not bool(done.any())
    ):  # to ask a GPU would be to wait
        return obs
    return torch.where(done.unsqueeze(-1), as_tensor(final), obs)


def as_tensor(obs: Any) -> Tensor:
    """Observations `[B, D]` as they are; factored ones as `[B, A + N + 1]`, the clock (exact up to
    2**24) last."""
    if isinstance(obs, Tensor):
        return obs
    private: Tensor = obs["private"]
    return torch.cat([private.float(), obs["clock"].unsqueeze(-1).float()], dim=-1)


_NOT_COMPARED = {"num_envs", "workers", "evaluation_episodes"}
"""Settings of environments that say how a problem is played, not which; the number of accounts
stands by itself."""

_hashes: WeakKeyDictionary[MarketTensors, str] = WeakKeyDictionary()
"""Of markets in use. Replicas and rounds of one pod share a market: its bytes are read once."""


def _market(market: MarketTensors) -> dict[str, Any]:
    if market not in _hashes:
        _hashes[market] = market.content_hash()
    return {**market_identity(market), "num_bars": market.num_bars, "content_hash": _hashes[market]}


def _memory(device: torch.device) -> Metrics:
    """Peak memory: of the device on a GPU, of the process elsewhere, in MiB."""
    if device.type == "cuda":
        return {"memory_mib": torch.cuda.max_memory_allocated(device) / 2**20}
    import resource

    return {"memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10}


def read_agent_state(folder: Path) -> dict[str, Tensor]:
    """The agent's part of a training folder's state: what a child's `inherit` takes. Raises
    CheckpointError."""
    tensors, _ = read_tensors(Path(folder) / "state.safetensors", FORMAT)
    return below("agent", tensors)


def check_environment(agent: Agent, env: Any) -> None:
    """Raises ConfigError when `agent` would learn wrongly in `env`, or not at all."""
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
    layout = getattr(env, "layout", None)
    if layout is not None and layout != agent.layout:
        raise ConfigError(
            "the agent was made for another observation layout; make it with `make_agent(...,"
            " env.layout)`"
        )
