"""What must agree between a stored training and the call that continues it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fintrader.agents.agent import Agent
from fintrader.agents.budget import Budget, TrainProgress, TrainResult
from fintrader.agents.policy import market_identity
from fintrader.config import Settings
from fintrader.envs.observation import layout_to_json

if TYPE_CHECKING:
    from fintrader.data.tensors import MarketTensors
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.agents.base import Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.checkpoint import below, prefixed, read_tensors, write_tensors
from fintrader.errors import CheckpointError, ConfigError, TrainingError
from fintrader.files import append_jsonl, read_jsonl, write_text

_ASIDE = {"num_envs", "workers", "evaluation_episodes"}
"""Settings of environments that say how a problem is played, not which; the number of accounts stands by itself."""


_hashes: WeakKeyDictionary[MarketTensors, str] = WeakKeyDictionary()


def identity_of(agent: Agent, env: Any) -> dict[str, Any]:
    """Plain JSON: the agent's settings, its layout, the accounts, and the market (every bar of it) and its rules."""
    market, settings = getattr(env, "market", None), getattr(env, "settings", None)
    return {
        "agent": agent.settings.model_dump(mode="json"),
        "layout": layout_to_json(agent.layout),
        "num_envs": env.num_envs,
        "market": None if market is None else _market(market),
        "env": settings.model_dump(mode="json", exclude=_ASIDE) if isinstance(settings, Settings) else None,
    }


def differences(stored: Any, own: Any, name: str = "") -> Iterator[str]:
    """Dotted names of what differs. What an older version did not store is not compared."""
    if isinstance(stored, dict) and isinstance(own, dict):
        for key in stored.keys() & own.keys():
            yield from differences(stored[key], own[key], f"{name}.{key}" if name else key)
    elif stored != own:
        yield name


def _market(market: MarketTensors) -> dict[str, Any]:
    # Replicas and rounds of one pod share a market: its bytes are read once.
    if market not in _hashes:
        _hashes[market] = market.content_hash()
    return {**market_identity(market), "num_bars": market.num_bars, "content_hash": _hashes[market]}


FORMAT = "fintrader-training-1"


SAVING_SHARE = 10


class TrainingEnvironment(Protocol):
    """What `train` needs of a vector environment: torch tensors on the agent's device, autoreset `SAME_STEP`."""

    num_envs: int

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """First observations `[B, D]`."""

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """obs `[B, D]`, reward, terminated, truncated `[B]`; `info["final_obs"]` where an episode ended."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue bit-exactly."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict()`."""


class _Clock:
    """Seconds by part of the loop; on a GPU they measure launches, since waiting for results would slow it down."""

    def __init__(self) -> None:
        self.parts = {"env": 0.0, "inference": 0.0, "learning": 0.0}
        self.mark = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.parts[part] += now - self.mark
        self.mark = now

    def rates(self, steps: int) -> Metrics:
        """Env-steps a second through each part since the last call."""
        rates = {f"steps_per_second_{part}": steps / max(seconds, 1e-9) for part, seconds in self.parts.items()}
        rates["steps_per_second"] = steps / max(sum(self.parts.values()), 1e-9)
        self.parts = dict.fromkeys(self.parts, 0.0)
        return rates


def train(
    agent: Agent,
    env: Any,
    budget: Budget,
    *,
    folder: Path | None = None,
    on_progress: Callable[[TrainProgress], None] | None = None,
    checkpoint_seconds: float = 10.0,
) -> TrainResult:
    """Train `agent` in `env` (see `TrainingEnvironment`) until `budget` is used up.

    Raises TrainingError when a loss, an action or a weight is no longer finite (the state is then in
    `folder/failed.safetensors`), CheckpointError when `folder` holds the state of another training, ConfigError when
    the environment does not suit the agent.

    The state is stored every `checkpoint_seconds`, or every ten times as long as storing it takes, whichever is longer;
    after every update if 0.
    """
    _check(agent, env)
    if hasattr(agent, "training_env"):
        env = agent.training_env(env)
    run = _Training(agent, env, folder)
    run.begin()
    anneal = getattr(agent, "anneal", None)
    if anneal is not None:
        anneal(budget.fraction(run.env_steps, run.seconds))
    clock = _Clock()
    started = time.perf_counter() - run.seconds
    saved = time.perf_counter()
    metrics: Metrics = {}
    steps_before = run.env_steps
    # Only an update can be the end: between two, an agent holds half a rollout that belongs to no result.
    learned: Metrics | None = {}
    while learned is None or budget.fraction(run.env_steps, run.seconds) < 1.0:
        action = agent.act(run.obs)
        if not run.look_at(action):
            raise run.failure(["actions"])
        clock.lap("inference")
        next_obs, reward, terminated, truncated, info = env.step(action)
        transition = Transition(
            run.obs, action, reward.float(), terminated, truncated, true_next_obs(next_obs, info, terminated, truncated)
        )
        clock.lap("env")
        agent.observe(transition)
        clock.lap("inference")
        run.obs = next_obs
        run.env_steps += env.num_envs
        learned = agent.update()
        clock.lap("learning")
        if learned is None:
            continue
        if getattr(agent, "differentiable", False):
            run.cut_graph()
        run.updates += 1
        run.seconds = time.perf_counter() - started
        if broken := run.broken(learned):
            raise run.failure(broken)
        metrics = {**learned, **clock.rates(run.env_steps - steps_before)}
        steps_before = run.env_steps
        run.log(metrics)
        fraction = budget.fraction(run.env_steps, run.seconds)
        if anneal is not None:
            anneal(fraction)
        if time.perf_counter() - saved >= pause_between(checkpoint_seconds, run.saving) or fraction >= 1.0:
            run.keep()
            saved = time.perf_counter()
        if on_progress is not None:
            on_progress(
                TrainProgress(fraction, run.env_steps, run.updates, run.seconds, metrics["steps_per_second"], metrics)
            )
        clock.mark = time.perf_counter()
    if run.fresh_since_save:
        run.keep()
    return TrainResult(run.env_steps, run.updates, run.seconds, metrics or run.last_metrics(), agent.policy)


def pause_between(wanted: float, saving: float) -> float:
    """Seconds between two saves: `wanted`, but so many that a save of `saving` seconds costs a tenth of the time."""
    return max(wanted, SAVING_SHARE * saving) if wanted else 0.0


def true_next_obs(obs: Tensor, info: Mapping[str, Any], terminated: Tensor, truncated: Tensor) -> Tensor:
    """`[B, D]`: where each account's step led; under `SAME_STEP` autoreset that is `final_obs` where it ended."""
    final = info.get("final_obs")
    if final is None:
        return obs
    return torch.where((terminated | truncated).unsqueeze(-1), final, obs)


class _Training:
    """The state of one training, in memory and on disk."""

    def __init__(self, agent: Agent, env: Any, folder: Path | None) -> None:
        self.agent, self.env, self.folder = agent, env, Path(folder) if folder is not None else None
        self.obs = torch.empty(0)
        self.env_steps = self.updates = 0
        self.seconds = 0.0
        self.fresh_since_save = False
        self.saving = 0.0
        """Seconds that the last save took."""
        # Actions that the environment takes on the host can be looked at for nothing; elsewhere a look is a wait.
        self.on_host = agent.device.type == "cpu" or getattr(env, "on_host", False)
        self.finite: Tensor | None = None

    @property
    def path(self) -> Path:
        assert self.folder is not None
        return self.folder / "state.safetensors"

    @cached_property
    def identity(self) -> dict[str, Any]:
        return identity_of(self.agent, self.env)

    def look_at(self, action: Tensor) -> bool:
        """Whether `action [B, N]` is finite. On a GPU the answer is kept there, and given by `broken`."""
        finite = action.detach().sum().isfinite()  # one pass: a sum is finite only if everything in it is
        if self.on_host:
            return bool(finite)
        self.finite = finite if self.finite is None else self.finite & finite
        return True

    def broken(self, metrics: Metrics) -> list[str]:
        """Names of the metrics that are not finite, and `actions` if one since the last call was not."""
        names = [name for name, value in metrics.items() if not math.isfinite(value)]
        finite, self.finite = self.finite, None
        return names if finite is None or bool(finite) else ["actions", *names]

    def cut_graph(self) -> None:
        """Forget how the accounts came to be where they are: the next update differentiates from here."""
        self.obs = self.obs.detach()
        self.env.load_state_dict({name: tensor.detach() for name, tensor in self.env.state_dict().items()})

    def begin(self) -> None:
        """Continue from the folder's state, or start."""
        if self.folder is None or not self.path.exists():
            self.obs, _ = self.env.reset(seed=self.agent.seed)
            if self.folder is not None:
                self._trim_log()
            return
        tensors, header = read_tensors(self.path, FORMAT)
        if odd := sorted(differences(header["identity"], self.identity)):
            raise CheckpointError(
                f"{self.path} belongs to another training ({', '.join(odd[:5])} differ{'s' if len(odd) == 1 else ''}); "
                "use another folder, or delete this one to start over"
            )
        device = self.agent.device
        self.agent.load_state_dict({name: tensor.to(device) for name, tensor in below("agent", tensors).items()})
        fresh, _ = self.env.reset(seed=self.agent.seed)
        self.env.load_state_dict({name: tensor.to(device) for name, tensor in below("env", tensors).items()})
        # A classic environment cannot be stored: its episodes begin anew.
        self.obs = tensors["obs"].to(device) if getattr(self.env, "resumable", True) else fresh
        self.env_steps, self.updates = int(header["env_steps"]), int(header["updates"])
        self.seconds = float(header["seconds"])
        self._trim_log()

    def _trim_log(self) -> None:
        """Drop what was logged after the stored state: those updates happen again."""
        assert self.folder is not None
        records = [record for record in read_jsonl(self.folder / "metrics.jsonl") if record["update"] <= self.updates]
        lines = "".join(json.dumps(record, sort_keys=True, allow_nan=False) + "\n" for record in records)
        write_text(self.folder / "metrics.jsonl", lines)

    def log(self, metrics: Metrics) -> None:
        """Append one update's metrics."""
        self.fresh_since_save = True
        if self.folder is None:
            return
        counters = {"update": self.updates, "env_steps": self.env_steps, "seconds": round(self.seconds, 3)}
        append_jsonl(self.folder / "metrics.jsonl", {**counters, **metrics, **_memory(self.agent.device)})

    def last_metrics(self) -> Metrics:
        """Those of a training that had already ended."""
        records = read_jsonl(self.folder / "metrics.jsonl") if self.folder is not None else []
        last = records[-1] if records else {}
        return {name: value for name, value in last.items() if name not in ("update", "env_steps", "seconds")}

    def keep(self) -> None:
        """Save, unless the last update broke the policy: the last good state is then worth more than this one."""
        if not all(bool(weights.isfinite().all()) for weights in self.agent.policy.parameters()):
            raise self.failure(["weights"])
        began = time.perf_counter()
        self.save()
        self.saving = time.perf_counter() - began

    def save(self, name: str = "state.safetensors") -> None:
        """Write the state atomically."""
        self.fresh_since_save = False
        if self.folder is None:
            return
        tensors = {
            **prefixed("agent", self.agent.state_dict()),
            **prefixed("env", self.env.state_dict()),
            "obs": self.obs,
        }
        header = {
            "format": FORMAT,
            "identity": self.identity,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "seconds": self.seconds,
        }
        write_tensors(self.folder / name, tensors, header)

    def failure(self, broken: Sequence[str]) -> TrainingError:
        """The error for numbers that are no longer finite; keeps the state, apart from the last good one."""
        where = ""
        if self.folder is not None:
            self.save("failed.safetensors")
            where = f"; the state is in {self.folder / 'failed.safetensors'}"
        return TrainingError(
            f"update {self.updates}: no longer finite: {', '.join(broken)}; "
            f"lower agent.learning_rate or check the features{where}"
        )


def _memory(device: torch.device) -> Metrics:
    """Peak memory: of the device on a GPU, of the process elsewhere, in MiB."""
    if device.type == "cuda":
        return {"memory_mib": torch.cuda.max_memory_allocated(device) / 2**20}
    import resource

    return {"memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10}


def read_agent_state(folder: Path) -> dict[str, Tensor]:
    """The agent's part of a training folder's state: what a child's `inherit` takes. Raises CheckpointError."""
    tensors, _ = read_tensors(Path(folder) / "state.safetensors", FORMAT)
    return below("agent", tensors)


def _check(agent: Agent, env: Any) -> None:
    """Raises ConfigError when `agent` would learn wrongly in `env`, or not at all."""
    settings = getattr(env, "settings", None)
    if (shown := getattr(settings, "observation", "flat")) != "flat":
        raise ConfigError(
            f"env.observation is {shown!r}, which no agent here reads; set it to flat "
            "(it is for your own policies in Python: see the docs, The environment)"
        )
    mode = getattr(env, "autoreset_mode", None) or getattr(env, "metadata", {}).get("autoreset_mode")
    if mode is not None and mode is not AutoresetMode.SAME_STEP:
        # The other modes show a last observation as if the episode went on, or step on after its end.
        raise ConfigError(f"the environment resets by {mode}; make it with autoreset_mode=AutoresetMode.SAME_STEP")
    head = getattr(agent, "head", None)
    if getattr(settings, "action", None) == "trade" and getattr(head, "targets_weights", False):
        raise ConfigError(
            "agent.head.kind `aim` makes target weights, but env.action is `trade`; "
            "set env.action to target or agent.head.kind to direct"
        )
    layout = getattr(env, "layout", None)
    if layout is not None and layout != agent.layout:
        raise ConfigError(
            "the agent was made for another observation layout; make it with `make_agent(..., env.layout)`"
        )
